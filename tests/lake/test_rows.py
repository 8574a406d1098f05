"""What rows a table has in the end: by key, or counted; here and in tasks; fitted to its columns.

A plain replay, one change after the other, says what is right.
"""

from __future__ import annotations

import random
import re
from datetime import date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from tests.support import changes as feed
from tidegate.changefeed.receive.order import BY_ARRIVAL, BY_COMMIT
from tidegate.lake.apply.changes import FileChanges, FrameChanges
from tidegate.lake.apply.keyless import LOWEST, MESSAGES, NET, CountedRows, Runs, UnknownOldRow
from tidegate.lake.apply.last_changes import LATE, LatestRows
from tidegate.lake.apply.rows import Copies, Layout, RowReader
from tidegate.lake.formats.base import OP
from tidegate.lake.formats.column_changes import ColumnPlan, fitted
from tidegate.lake.storage.file_store import FileStore
from tidegate.lake.storage.log_files import LogFile
from tidegate.lake.storage.predicates import ALWAYS, above
from tidegate.model import Column, TableSchema
from tidegate.spark.types import arrow_type, from_text
from tidegate.wire import CHANGE_SCHEMA
from tidegate.wire.batch.updates import omit_unchanged

SCHEMA = TableSchema(
    database="shop",
    table="items",
    columns=tuple(
        Column.of_type(name, kind)
        for name, kind in (("a", "int"), ("b", "varchar"), ("n", "decimal(8,2)"), ("d", "datetime"))
    ),
)
LAYOUTS = (Layout(1, ("a", "b", "n", "d")), Layout(2, ("d", "b", "a")))
READER = RowReader(SCHEMA, LAYOUTS)
COLUMNS = ("kind", "shape", "commit_ts", "offset", "event", "after", "before")
SIDES = ("after", "before")
DAY = "2024-01-01 10:00:00"


def change_table(*rows: tuple[object, ...]) -> pa.Table:
    """Changes, as tuples of COLUMNS."""
    schema = pa.schema([CHANGE_SCHEMA.field(name) for name in COLUMNS])
    return pa.Table.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in rows], schema)


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
    return change_table(*rows)


def as_set(rows: pa.Table) -> set[tuple[object, ...]]:
    """The rows; a removed one by its key only."""
    return {
        (row["a"], row["b"], *((row["n"], row["d"]) if row[OP] == "u" else ()), row[OP])
        for row in rows.to_pylist()
    }


def replayed(changes: pa.Table, order: tuple[str, ...]) -> set[tuple[object, ...]]:
    """The rows that keys have after all changes, and the keys that have none."""
    ranks = {"delete": 0, "update": 1, "insert": 2}
    rows = [row | {"rank": ranks[row["kind"]]} for row in changes.to_pylist()]
    # An update that takes a row from a key is like a delete of that key, and goes as one.
    entries = []
    for row in rows:
        names = LAYOUTS[row["shape"] - 1].names
        sides = [row[side] and dict(zip(names, row[side], strict=True)) for side in SIDES]
        after, before = sides
        entries.append((row, after or before, after))
        if row["kind"] == "update" and (after["a"], after["b"]) != (before["a"], before["b"]):
            entries.append((row | {"rank": 0}, before, None))
    entries.sort(key=lambda entry: [entry[0][name] for name in order])
    last = {(image["a"], image["b"]): after for _, image, after in entries}
    reader = RowReader(SCHEMA, (Layout(1, SCHEMA.carried_names),))
    found = []
    for (a, b), after in last.items():
        values = [(after or {"a": a, "b": b}).get(name) for name in SCHEMA.carried_names]
        row = pa.table({"shape": [1], "row": pa.array([values], pa.list_(pa.string()))})
        typed = reader.typed(row, row["row"].combine_chunks(), {})
        found.append((*(each[0].as_py() for each in typed), "u" if after else "d"))
    return {row if row[-1] == "u" else (*row[:2], "d") for row in found}


@pytest.mark.parametrize("order", [BY_COMMIT, BY_ARRIVAL])
def test_each_key_is_as_its_last_change_left_it(order):
    latest = LatestRows(READER, ("a", "b"), order)
    for seed in range(20):
        changes = random_changes(seed)
        found = latest.here(changes.to_batches(max_chunksize=100))
        assert found.num_rows == len(as_set(found)) > 10
        assert as_set(found) == replayed(changes, order)


def test_only_keys_that_late_changes_touch_come_out():
    whole, touching = LatestRows(READER, ("a", "b")), LatestRows(READER, ("a", "b"), touched=True)
    changes = random_changes(1)
    late = [number in (17, 250) for number in range(changes.num_rows)]
    marked = changes.append_column(LATE, pa.array(late))
    found = touching.here(marked.to_batches(max_chunksize=100))
    touched = as_set(whole.here(changes.filter(pa.array(late)).to_batches()))
    keys = {row[:2] for row in touched}
    assert as_set(found) == {row for row in replayed(changes, BY_COMMIT) if row[:2] in keys}
    assert 1 < found.num_rows < 5


def test_files_and_frames_are_read_here_or_by_spark_to_the_same_end(spark, tmp_path):
    latest = LatestRows(READER, ("a", "b"))
    condition = above("commit_ts", 110)
    files, tables = [], []
    for seed in range(5):
        path = tmp_path / f"{seed}.parquet"
        tables.append(random_changes(seed))
        pq.write_table(tables[-1], path)
        files.append(LogFile(str(path), path.stat().st_size, 300))
    changes = FileChanges(FileStore(), tuple(files), condition)
    here = latest.here(changes.batches(latest.columns))
    there = latest.by_spark(spark, changes, 600 << 20).toArrow()
    frame = spark.createDataFrame(pa.concat_tables(tables)).where(condition.spark())
    framed = latest.by_spark(spark, FrameChanges(frame)).toArrow()
    assert there.schema == here.schema == framed.schema
    assert here.num_rows == there.num_rows == framed.num_rows == len(as_set(here)) > 10
    assert as_set(here) == as_set(there) == as_set(framed)


def test_values_that_compress_well_are_not_taken_for_small(tmp_path):
    path = tmp_path / "wide.parquet"
    wide = pa.table({"after": ["x" * 100_000] * 500, "commit_ts": range(500)})
    pq.write_table(wide, path, compression="zstd", use_dictionary=False, row_group_size=100)
    file = LogFile(str(path), path.stat().st_size, 500)
    assert file.bytes < 100_000
    changes = FileChanges(FileStore(), (file,), above("commit_ts", 299))
    assert 19_000_000 < changes.size(200, limit=1 << 30) < 22_000_000
    assert FileChanges(FileStore(), (), ALWAYS).size(0, limit=1) == 0


def test_copies_of_what_was_applied_are_left_out(tmp_path):
    """Whatever the order of their columns; a row of another instant is no copy."""
    first = change_table(("insert", 1, 5, 1, 0, ["1", "x", None, DAY], None))
    again = change_table(
        ("insert", 2, 5, 7, 0, [DAY, "x", "1"], None),
        ("insert", 2, 5, 8, 0, [DAY, "y", "1"], None),
        ("insert", 2, 6, 9, 0, [DAY, "x", "1"], None),
    )
    prints = frozenset(map(READER.fingerprint, first.to_pylist()))
    again = again.append_column("before_missing", pa.nulls(3, pa.binary()))
    path = tmp_path / "again.parquet"
    pq.write_table(again, path)
    copies = Copies(5, READER, prints)
    changes = FileChanges(FileStore(), (LogFile(str(path), 1, 3),), ALWAYS, copies)
    offsets = [batch["offset"].to_pylist() for batch in changes.batches(["offset"])]
    assert offsets == [[8, 9]]


def test_keys_that_are_no_dates_are_one_key_as_in_the_lake():
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
    latest = LatestRows(RowReader(schema, layouts), ("day",))
    found = latest.here(change_table(*told).to_batches())
    assert {tuple(row.values()) for row in found.to_pylist()} == {
        (None, 4, "u"),
        (date(2021, 1, 31), 3, "u"),
    }
    assert found.num_rows == 2


@pytest.mark.parametrize("kind", ["double", "float"])
def test_keys_of_real_numbers_keep_their_values_of_any_size(kind):
    """Also those that Java and Arrow write with an exponent; 0 and -0 are one key."""
    columns = (Column.of_type("k", kind), Column.of_type("v", "int"))
    schema = TableSchema(database="d", table="t", columns=columns)
    layouts = (Layout(1, ("k", "v")),)
    large, small = "-1" + "0" * 30, "0." + "0" * 20 + "125"
    texts = ["0", "-0", "16777216", large, small, "1.5"]
    rows = [("insert", 1, ts, ts, 0, [text, str(ts)], None) for ts, text in enumerate(texts, 1)]
    rows.append(("update", 1, 9, 9, 0, ["2.5", "9"], [large, "4"]))
    latest = LatestRows(RowReader(schema, layouts), ("k",))
    found = latest.here(change_table(*rows).to_batches())
    as_held = pa.float64() if kind == "double" else pa.float32()
    expected = {0.0: 2, 16777216.0: 3, float(large): None, float(small): 5, 1.5: 6, 2.5: 9}
    wanted = {
        (pa.scalar(key, as_held).as_py(), value, "d" if value is None else "u")
        for key, value in expected.items()
    }
    assert {tuple(row.values()) for row in found.to_pylist()} == wanted
    assert found.num_rows == len(wanted)


def test_a_copy_may_leave_out_what_did_not_change():
    """An old value that is NULL is not one that did not change."""
    update = {"kind": "update", "shape": 1, "after": ["1", "x", "2.00", DAY]}
    whole = update | {"before": ["1", "y", "2.00", DAY]}
    partial = update | {"before": [None, "y", None, None], "before_missing": bytes([0b1101])}
    other = update | {"before": ["1", "y", None, DAY]}
    assert READER.fingerprint(whole) == READER.fingerprint(partial)
    assert READER.fingerprint(other) != READER.fingerprint(partial)


# --- columns that are not as they were sent -------------------------------------------------------

FITTED = [
    ("int", "bigint", ["1", "-7", None]),
    ("bigint", "int", ["1", "-7", "99999999999"]),
    ("bigint", "tinyint", ["5", "300"]),
    ("int", "varchar(20)", ["1", "-7", None]),
    ("varchar(20)", "int", ["12", "x", "", None]),
    ("decimal(8,2)", "int", ["1.50", "-2.50", "2.49"]),
    ("decimal(8,2)", "decimal(6,1)", ["1.25", "-1.35", "99999.99"]),
    ("double", "int", ["2.5", "3.5", "-0.4"]),
    ("double", "decimal(8,2)", ["2.345", "1e3", "-0.005"]),
    ("int", "double", ["1", "-7"]),
    ("float", "double", ["1.5", "0.1"]),
    ("datetime", "date", ["2024-02-29 23:59:59", "0000-00-00 00:00:00"]),
    ("date", "datetime", ["2024-02-29"]),
    ("datetime(6)", "datetime(3)", ["2024-02-29 10:00:00.123456", "2024-12-31 23:59:59.999999"]),
    ("timestamp", "datetime", ["2024-02-29 10:00:00", "2024-07-01 10:00:00"]),
    ("datetime", "timestamp", ["2024-02-29 10:00:00", "2024-07-01 10:00:00"]),
    ("timestamp(3)", "varchar(40)", ["2024-02-29 10:00:00.120"]),
    ("enum('a','b')", "enum('b','a','c')", ["1", "2", "0"]),
    ("enum('a','b')", "varchar(10)", ["1", "2"]),
    ("set('a','b')", "varchar(10)", ["3", "0"]),
    ("varchar(10)", "enum('a','b')", ["a", "b", "z"]),
    ("varchar(10)", "varbinary(10)", ["ab", "ü"]),
    ("varbinary(10)", "varchar(10)", ["YWI="]),
    ("year", "int", ["2024"]),
    ("bit(8)", "int", ["200"]),
    ("json", "varchar(40)", ['{"a": 1}']),
    ("float", "decimal(20,10)", ["0.1", "1.5"]),
    ("double", "float", ["0.1", "1.5"]),
    ("decimal(10,3)", "double", ["0.125", "0.1"]),
    ("bigint unsigned", "int", ["5", "18446744073709551615"]),
    ("int", "bigint unsigned", ["5", "-5"]),
    ("double", "bigint", ["-2.5", "-3.5", "123456789012.5"]),
    ("varchar(30)", "datetime", ["2024-02-29 10:00:00", "x"]),
    ("varchar(30)", "decimal(8,2)", ["1.255", "x", "-7"]),
    ("time", "varchar(20)", ["10:00:00"]),
    ("double", "varchar(30)", ["1.5", "1000000"]),
]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai"])
def test_values_are_fitted_as_the_values_of_a_table_are_converted(spark, zone):
    """Rows that come after a change of type agree with those that were there before."""
    longest = max(len(strings) for _, _, strings in FITTED)
    arrays, by_spark, by_arrow = [], [], []
    for number, (old, new, strings) in enumerate(FITTED):
        sent, kept = Column.of_type("c", old), Column.of_type("c", new)
        arrays.append(pa.array([*strings, *[None] * (longest - len(strings))], pa.string()))
        value = from_text(sent, F.col(f"c{number}"), zone)
        by_spark.append(ColumnPlan(kept, sent).fitted(value, zone).alias(f"c{number}"))
        by_arrow.append(fitted(kept, sent, arrays[-1], zone).cast(arrow_type(kept)))
    frame = spark.createDataFrame(pa.table(arrays, [f"c{number}" for number in range(len(FITTED))]))
    converted = frame.coalesce(1).select(*by_spark).toArrow()
    for case, found, column in zip(FITTED, by_arrow, converted.columns, strict=True):
        assert found.to_pylist() == column.cast(found.type).to_pylist(), case


def test_rows_that_the_upstream_gave_are_in_utc():
    columns = (Column.of_type("id", "int"), Column.of_type("t", "timestamp"))
    kept = TableSchema(
        database="d", table="t", columns=(columns[0], Column.of_type("t", "datetime"))
    )
    sent = TableSchema(database="d", table="t", columns=columns)
    reader = RowReader(kept, (), "Asia/Shanghai", sent)
    rows = pa.array([["1", "2024-02-29 02:00:00"], None], pa.list_(pa.string()))
    _, times = reader.completed(rows, {"id": pa.array(["1", "2"])})
    assert times.to_pylist() == [datetime(2024, 2, 29, 10), None]


# --- tables without a key -------------------------------------------------------------------------


def counted(events, marks=()):
    """What `CountedRows` makes of (offset, commit_ts, kind, value) in one partition, by value."""
    schema = TableSchema(database="d", table="t", columns=(Column.of_type("v", "int"),))
    rows = [
        feed.row(kind, ts, f"0/{offset}", shape=1, **values)
        for offset, ts, kind, value in events
        for values in [{"before" if kind == "delete" else "after": [value]}]
    ]
    changes = feed.table(*rows)
    places = feed.table(*(feed.watermark(ts, f"0/{offset}") for offset, ts in marks))
    reader = RowReader(schema, (Layout(1, ("v",)),))
    found = CountedRows(reader, Runs.of(changes, places)).here(changes.to_batches(max_chunksize=2))
    return {row["v"]: (row[NET], row[LOWEST], row[MESSAGES]) for row in found.to_pylist()}


def test_identical_rows_of_one_run_are_counted_and_reported():
    twice = [(1, 5, "insert", "7"), (2, 5, "insert", "7"), (3, 6, "insert", "8")]
    assert counted(twice) == {7: (2, 0, 2), 8: (1, 0, 1)}


def test_rows_that_are_sent_again_are_counted_once():
    sent = [(1, 5, "insert", "7"), (2, 6, "insert", "8")]
    again = [(offset + 3, *rest) for offset, *rest in sent]
    assert counted([*sent, *again]) == {7: (1, 0, 1), 8: (1, 0, 1)}
    assert counted([(1, 5, "insert", "7"), (3, 5, "insert", "7")], marks=[(2, 5)]) == {7: (1, 0, 1)}


def test_a_row_that_is_removed_before_it_is_put_falls_below_what_is_there():
    events = [(1, 5, "delete", "7"), (2, 6, "insert", "7")]
    assert counted(events) == {7: (0, -1, 1)}


def test_an_update_without_its_old_row_is_refused():
    schema = TableSchema(database="d", table="t", columns=(Column.of_type("v", "int"),))
    changes = feed.table(feed.row("update", 5, "0/1", shape=1, after=["1"]))
    rows = CountedRows(RowReader(schema, (Layout(1, ("v",)),)), Runs.of(changes, feed.table()))
    with pytest.raises(UnknownOldRow):
        rows.here(changes.to_batches())


# --- old rows -------------------------------------------------------------------------------------


def test_the_sql_of_the_documentation_gives_whole_old_rows(spark):
    text = (Path(__file__).parents[2] / "docs" / "mirror.md").read_text()
    (expression,) = re.findall(r"```sql\n(transform.*?)```", text, re.DOTALL)
    wide = [str(number) for number in range(17)]
    old = [
        [*wide[:8], "x", *wide[9:]],
        ["x", *wide[1:16], None],
        [None] * 17,
        wide,
    ]
    new = [wide, wide, [None] * 17, None]
    names = ("after", "before", "before_missing")
    schema = pa.schema([CHANGE_SCHEMA.field(name) for name in names])
    arrays = [
        pa.array(new, schema[0].type),
        pa.array(old, schema[1].type),
        pa.nulls(4, pa.binary()),
    ]
    stored = omit_unchanged(pa.RecordBatch.from_arrays(arrays, schema=schema))
    assert sum(value is not None for row in stored["before"].to_pylist() for value in row) == 19
    rows = spark.createDataFrame(pa.Table.from_batches([stored])).selectExpr(expression).collect()
    assert [row["old_row"] for row in rows] == old
