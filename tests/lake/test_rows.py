"""What a key has in the end: by Arrow the same as by Spark, with or without a first look."""

from __future__ import annotations

import random
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.lake.conditions import ALWAYS, above
from tidegate.lake.format import OP
from tidegate.lake.latest import LatestRows
from tidegate.lake.logfiles import LogFile
from tidegate.lake.rows import BY_ARRIVAL, BY_COMMIT, Layout, RowReader
from tidegate.model import Column, TableSchema
from tidegate.wire import CHANGE_SCHEMA

SCHEMA = TableSchema(
    database="shop",
    table="items",
    columns=tuple(
        Column.of_type(name, kind)
        for name, kind in (("a", "int"), ("b", "varchar"), ("n", "decimal(8,2)"), ("d", "datetime"))
    ),
)
LAYOUTS = (Layout(1, ("a", "b", "n", "d")), Layout(2, ("d", "b", "a")))
COLUMNS = ("kind", "shape", "commit_ts", "offset", "event", "after", "before")


def random_changes(seed: int, count: int = 300) -> pa.Table:
    """Changes of few keys: several of a transaction, of two shapes, sent again, moving keys."""
    chance = random.Random(seed)

    def row(shape: int, a: int, b: str) -> list[str | None]:
        day = f"2024-01-{chance.randint(1, 28):02d} 10:00:00"
        number = chance.choice(["1.50", "-3.25", None])
        return [str(a), b, number, day] if shape == 1 else [day, b, str(a)]

    rows = []
    for offset in range(count):
        shape, kind = chance.choice([1, 1, 2]), chance.choice(["insert", "update", "delete"])
        a, b = chance.randint(1, 5), chance.choice("xyz")
        after = None if kind == "delete" else row(shape, a, b)
        before = None
        if kind != "insert":
            moved = kind == "update" and chance.random() < 0.3
            before = row(shape, chance.randint(1, 5) if moved else a, b)
        # A transaction has each of its changes of a key once: the place tells them apart.
        rows.append((kind, shape, 100 + offset // 3, offset, chance.randint(0, 2), after, before))
    schema = pa.schema([CHANGE_SCHEMA.field(name) for name in COLUMNS])
    arrays = [
        pa.array(values, field.type)
        for values, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pa.table(arrays, schema)


def as_set(rows: pa.Table) -> set[tuple[object, ...]]:
    """The rows; a removed one by its key only."""
    return {
        (row["a"], row["b"], *((row["n"], row["d"]) if row[OP] == "u" else ()), row[OP])
        for row in rows.to_pylist()
    }


@pytest.mark.parametrize("order", [BY_COMMIT, BY_ARRIVAL])
@pytest.mark.parametrize("moves", [True, False])
def test_arrow_and_spark_agree(spark, order, moves):
    reader, key = RowReader(SCHEMA, LAYOUTS), ("a", "b")
    latest = LatestRows(SCHEMA, LAYOUTS, key, ALWAYS, order, moves)
    for seed in range(3):
        changes = random_changes(seed)
        by_spark = reader.last_of_each_key(
            spark.createDataFrame(changes), key, order, moves=moves
        ).toArrow()
        parts = [latest.last(latest.entries(changes.slice(at, 100))) for at in range(0, 300, 100)]
        reduced = pa.concat_tables(parts)
        assert reduced.num_rows < changes.num_rows
        by_arrow = latest.rows(latest.last(reduced))
        assert by_spark.num_rows == by_arrow.num_rows == len(as_set(by_arrow)) > 10
        assert as_set(by_arrow) == as_set(by_spark)
        assert latest.rows(latest.last(latest.entries(changes))).num_rows == by_arrow.num_rows


@pytest.mark.parametrize("moves", [True, False])
def test_files_are_read_here_or_by_spark_to_the_same_end(spark, tmp_path, moves):
    latest = LatestRows(SCHEMA, LAYOUTS, ("a", "b"), above("commit_ts", 110), moves=moves)
    files = []
    for seed in range(5):
        path = tmp_path / f"{seed}.parquet"
        pq.write_table(random_changes(seed), path)
        files.append(LogFile(str(path), path.stat().st_size))
    here = latest.here(files)
    there = latest.by_spark(spark, files, 900_000).toArrow()
    assert there.schema == here.schema
    assert here.num_rows == there.num_rows == len(as_set(here)) > 10
    assert as_set(here) == as_set(there)


def test_keys_that_are_no_dates_are_one_key_as_in_the_lake(spark):
    """Else two changes would be merged into one row, which no table takes."""
    columns = (Column.of_type("day", "date"), Column.of_type("v", "int"))
    schema = TableSchema(database="d", table="t", columns=columns)
    layouts = (Layout(1, ("day", "v")),)
    told = [
        ("insert", 1, 1, 1, 0, ["0000-00-00", "1"], None),
        ("insert", 1, 2, 2, 0, ["2021-00-10", "2"], None),
        ("update", 1, 3, 3, 0, ["2021-01-31", "3"], ["2021-00-10", "2"]),
        ("insert", 1, 4, 4, 0, ["2021-02-30", "4"], None),
    ]
    kept = pa.schema([CHANGE_SCHEMA.field(name) for name in COLUMNS])
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in told]
    changes = pa.Table.from_pylist(rows, kept)
    latest = LatestRows(schema, layouts, ("day",), ALWAYS)
    by_arrow = latest.rows(latest.last(latest.entries(changes)))
    by_spark = RowReader(schema, layouts).last_of_each_key(spark.createDataFrame(changes), ["day"])
    for found in (by_arrow, by_spark.toArrow()):
        assert {tuple(row.values()) for row in found.to_pylist()} == {
            (None, 4, "u"),
            (date(2021, 1, 31), 3, "u"),
        }
        assert found.num_rows == 2


@pytest.mark.parametrize("kind", ["double", "float"])
def test_keys_of_real_numbers_keep_their_values_of_any_size(spark, kind):
    """Also those that Java and Arrow write with an exponent; 0 and -0 are one key."""
    columns = (Column.of_type("k", kind), Column.of_type("v", "int"))
    schema = TableSchema(database="d", table="t", columns=columns)
    layouts = (Layout(1, ("k", "v")),)
    large, small = "-1" + "0" * 30, "0." + "0" * 20 + "125"
    texts = ["0", "-0", "16777216", large, small, "1.5"]
    rows = [
        dict(zip(COLUMNS, ("insert", 1, ts, ts, 0, [text, str(ts)], None), strict=True))
        for ts, text in enumerate(texts, 1)
    ]
    moved = ("update", 1, 9, 9, 0, ["2.5", "9"], [large, "4"])
    rows.append(dict(zip(COLUMNS, moved, strict=True)))
    changes = pa.Table.from_pylist(rows, pa.schema([CHANGE_SCHEMA.field(name) for name in COLUMNS]))
    latest = LatestRows(schema, layouts, ("k",), ALWAYS)
    by_arrow = latest.rows(latest.last(latest.entries(changes)))
    by_spark = RowReader(schema, layouts).last_of_each_key(spark.createDataFrame(changes), ["k"])
    as_held = pa.float64() if kind == "double" else pa.float32()
    expected = {0.0: 2, 16777216.0: 3, float(large): None, float(small): 5, 1.5: 6, 2.5: 9}
    wanted = {
        (pa.scalar(key, as_held).as_py(), value, "d" if value is None else "u")
        for key, value in expected.items()
    }
    for result in (by_arrow, by_spark.toArrow()):
        assert {tuple(row.values()) for row in result.to_pylist()} == wanted
        assert result.num_rows == len(wanted)
