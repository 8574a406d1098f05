"""Dumps of the real Dumpling: every variant of every scenario loads to its truth, value by value."""

from pathlib import Path

import pytest

from tests.support import dumps
from tests.support.dumps import shortest_float
from tidegate.model import DumpError, MySQLType
from tidegate.upstream.dump import Dump

NUMBERS = {"bank": 470525976140578816, "types": 470525974132555776, "ddl": 470525977742802944}


@pytest.fixture
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Dump:
    """The dump of the variant that the test is for."""
    return Dump.open(
        dumps.unpacked(request.param, tmp_path), options=dumps.options_of(request.param)
    )


def lost_in(variant: str, column: object, value: str | None) -> str | None:
    """What Dumpling made of a value of the truth."""
    code = column.code  # type: ignore[attr-defined]
    if value is None:
        return None
    if code == MySQLType.FLOAT and value != "0" and not 1e-15 <= abs(float(value)) < 1e15:
        return shortest_float(f"{float(value):.6g}")
    if ".parquet" in variant and code in (MySQLType.DATETIME, MySQLType.TIMESTAMP):
        return None if "-00" in value[:10] else value
    return value


@pytest.mark.parametrize(
    ("variant", "opened"), [(each, each) for each in dumps.variants()], indirect=["opened"]
)
def test_every_table_is_its_truth(variant: str, opened: Dump) -> None:
    truth = dumps.truth(variant.partition(".")[0])
    assert {(name.database, name.table) for name in opened.tables} == truth.keys()
    for name, table in opened.tables.items():
        shapes = [column for column in table.schema.columns if column.generated is None]
        real = dumps.expected(table.schema, truth[name])
        dumped = [
            tuple(
                lost_in(variant, column, value) for column, value in zip(shapes, row, strict=True)
            )
            for row in real
        ]
        lossy = {loss.column for loss in opened.losses(table)}
        for row, other in zip(real, dumped, strict=True):
            for column, value, kept in zip(shapes, row, other, strict=True):
                assert value == kept or column.name in lossy, (name, column.name, value)
        names = [column.name for column in shapes]
        if table.left_out:
            continue  # `gen`: see test_dump.py
        found = dumps.rows_of(opened, table, names=names)
        assert sorted(found, key=str) == sorted(dumped, key=str), name


def test_the_lossy_values_of_the_golden_dumps_are_few(tmp_path: Path) -> None:
    dump = Dump.open(dumps.unpacked("types.parquet", tmp_path))
    losses = {
        name.table: sorted({loss.column for loss in dump.losses(table)})
        for name, table in dump.tables.items()
        if dump.losses(table)
    }
    assert losses == {
        "defs": ["c", "d"],
        "reals": ["f", "f2", "fu"],
        "times": ["dt", "dt3", "dt6", "ts", "ts3", "ts6"],
    }


@pytest.mark.parametrize("opened", ["bank.csv", "types.sql", "ddl.parquet"], indirect=True)
def test_the_instant_is_that_of_the_metadata(opened: Dump, request: pytest.FixtureRequest) -> None:
    scenario = request.node.callspec.params["opened"].partition(".")[0]
    assert opened.snapshot_ts == NUMBERS[scenario]


@pytest.mark.parametrize("variant", dumps.CUT_OFF)
def test_a_dump_that_was_cut_off_is_refused(variant: str, tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="there is no file `metadata`"):
        Dump.open(dumps.unpacked(variant, tmp_path))
