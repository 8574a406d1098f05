"""Files of a log: batches are split by value, and read files give the rows of a condition."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tidegate.lake.storage.file_store import FileStore
from tidegate.lake.storage.log_files import LogFile, LogWriter, read_files, split
from tidegate.lake.storage.predicates import ALWAYS, NEVER, above, equal, is_null, up_to

SCHEMA = pa.schema([("table", pa.string()), ("at", pa.int64()), ("row", pa.list_(pa.string()))])


def batch_of(tables: list[str | None]) -> pa.RecordBatch:
    rows = [[str(number), None] for number in range(len(tables))]
    arrays = [pa.array(tables, pa.string()), pa.array(range(len(tables))), pa.array(rows)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@pytest.mark.parametrize(
    "tables",
    [
        pytest.param([], id="empty"),
        pytest.param(["a"] * 300, id="one value"),
        pytest.param(["a"] * 300 + [None] * 300 + ["b"] + ["a"] * 300, id="long runs"),
        pytest.param(["a", None, "b"] * 100, id="short runs"),
        pytest.param([random.Random(1).choice("ab") for _ in range(500)], id="by chance"),
    ],
)
def test_a_batch_is_split_by_value_and_keeps_its_order(tables):
    batch = batch_of(tables)
    rows: dict[tuple[str | None, ...], list[int]] = {}
    for values, part in split(batch, ["table"]):
        assert set(part["table"].to_pylist()) <= set(values)
        rows.setdefault(values, []).extend(part["at"].to_pylist())
    expected = {(name,): [at for at, of in enumerate(tables) if of == name] for name in set(tables)}
    assert {values: found for values, found in rows.items() if found} == expected


def test_booleans_are_words():
    batch = pa.RecordBatch.from_pydict({"is_x": pa.array([True] * 200 + [False] * 200)})
    assert [(values, part.num_rows) for values, part in split(batch, ["is_x"])] == [
        (("true",), 200),
        (("false",), 200),
    ]


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        pytest.param(ALWAYS, range(900), id="all"),
        pytest.param(NEVER, [], id="none"),
        pytest.param(above("at", -1), range(900), id="all, by the bounds"),
        pytest.param(above("at", 899), [], id="none, by the bounds"),
        pytest.param(above("at", 9) & up_to("at", 500), range(10, 501), id="some"),
        pytest.param(equal("table", "b"), range(600, 900), id="of one table"),
        pytest.param(is_null("table"), range(300, 600), id="of none"),
    ],
)
def test_the_rows_of_a_condition_are_read_from_files(tmp_path, condition, wanted):
    writer = LogWriter(str(tmp_path), SCHEMA, (), ("table",), ("table",))
    names = ["a"] * 300 + [None] * 300 + ["b"] * 300
    whole = pa.Table.from_batches([batch_of(names)])
    files = [*writer.write_here(whole.slice(0, 450)), *writer.write_here(whole.slice(450))]
    found = [
        row
        for batch in read_files(
            FileStore(), [LogFile(file.path, file.bytes) for file in files], condition, ["row"]
        )
        for row in batch.to_pylist()
    ]
    assert all(list(row) == ["row"] for row in found)
    assert sorted(int(row["row"][0]) for row in found) == list(wanted)
