"""What the mirror asks of a table format, asked of each format on real tables."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from tidegate.lake.formats import open_format
from tidegate.lake.formats.base import OP, LakePlace, Located, Position, TableFormat, origin_of
from tidegate.lake.formats.commits import Guard, LeaseLost
from tidegate.lake.formats.delta import DeltaLog
from tidegate.lake.formats.delta import upkeep as delta_upkeep
from tidegate.lake.formats.delta.log import remove_old_properties
from tidegate.lake.formats.iceberg import IcebergFormat
from tidegate.lake.formats.iceberg import upkeep as iceberg_upkeep
from tidegate.lake.formats.log_table import FilesReplaced
from tidegate.lake.storage.file_store import FileStore
from tidegate.lake.storage.log_files import holding, read_files, rows_of
from tidegate.lake.storage.predicates import ALWAYS, above, equal
from tidegate.model import TableSchema
from tidegate.spark.types import spark_schema
from tidegate.sql.ddl import TableChange, transition

CREATE = (
    "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), price DECIMAL(10,2), at DATETIME(3))"
)
AT = dt.datetime(2024, 2, 29, 12, 30, 59, 500000)
ROWS = [(1, "one", Decimal("1.50"), AT), (2, None, None, None)]


def schema_of(statement: str) -> TableSchema:
    schema = transition(None, statement, "shop").after
    assert schema is not None
    return schema


@dataclass
class Table:
    """A table of the format under test, and the clock of its positions."""

    spark: SparkSession
    tables: TableFormat
    identifier: str
    now: int = 10

    @property
    def schema(self) -> TableSchema:
        return self.tables.upstream_schema(self.identifier)

    def tick(self) -> Position:
        self.now += 1
        return Position(self.now)

    def frame(self, rows: Sequence[tuple[Any, ...]], *, op: bool = False) -> DataFrame:
        fields = spark_schema(self.schema.carried).fields
        kind = StructType([*fields, StructField(OP, StringType())] if op else fields)
        return self.spark.createDataFrame([tuple(row) for row in rows], kind)

    def append(self, *rows: tuple[Any, ...]) -> None:
        self.tables.append(self.identifier, self.frame(rows), self.tick())
        self.check_position()

    def merge(self, *rows: tuple[Any, ...], key: Sequence[str] = ("id",)) -> None:
        self.tables.merge(self.identifier, self.frame(rows, op=True), key, self.tick())
        self.check_position()

    def change(self, statement: str) -> TableChange:
        return transition(self.schema, statement, "shop")

    def alter(self, statement: str, zone: str = "UTC") -> None:
        change = self.change(statement)
        position = Position(self.tick().ts, 1)
        self.tables.evolve(self.identifier, self.schema, change, position, zone)
        assert self.tables.position(self.identifier) == position
        assert self.schema == change.after

    def check_position(self) -> None:
        assert self.tables.position(self.identifier) == Position(self.now)

    @property
    def names(self) -> list[str]:
        return self.tables.read(self.identifier).columns

    def rows(self, version: int | None = None) -> list[tuple[Any, ...]]:
        found = self.tables.read(self.identifier, version).collect()
        return sorted((tuple(row) for row in found), key=lambda row: repr(row))

    def column(self, name: str) -> list[Any]:
        read = self.tables.read(self.identifier)
        return [row[0] for row in read.orderBy("id").select(f"`{name}`").collect()]


@pytest.fixture(scope="module", params=["iceberg", "delta"])
def tables(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> TableFormat:
    folder = str(tmp_path_factory.mktemp(f"lake-{request.param}"))
    place = LakePlace(folder, name=f"formats_{request.param}")
    return open_format(request.param, spark, place)


@pytest.fixture
def table(spark: SparkSession, tables: TableFormat, request: pytest.FixtureRequest) -> Table:
    """A new table with the columns of CREATE and the two ROWS."""
    name = request.node.name.partition("[")[0]
    identifier = tables.create("shop", name, schema_of(CREATE), Position(10, 1))
    made = Table(spark, tables, identifier)
    made.append(*ROWS)
    return made


def test_a_table_is_made_and_tells_what_it_is(spark: SparkSession, tables: TableFormat) -> None:
    schema = schema_of(CREATE)
    identifier = tables.create("my.shop 库", "it`s", schema, Position(5, 1))
    assert tables.position(identifier) == Position(5, 1)
    assert tables.upstream_schema(identifier) == schema
    assert tables.read(identifier).schema.simpleString() == (
        "struct<id:int,name:string,price:decimal(10,2),at:timestamp_ntz>"
    )
    assert tables.read(identifier, tables.version(identifier)).count() == 0
    located = {found.identifier: found for found in tables.locate()}
    assert located[identifier].origin == origin_of("my.shop 库", "it`s", Position(5, 1))
    assert located[identifier].uid == tables.uid(identifier)
    # One that is in the way is retired.
    again = tables.create("my.shop 库", "it`s", schema, Position(7, 1))
    both = [found for found in tables.locate() if "it`s" in found.origin]
    assert {found.origin: found.retired for found in both} == {
        origin_of("my.shop 库", "it`s", Position(5, 1)): True,
        origin_of("my.shop 库", "it`s", Position(7, 1)): False,
    }
    assert [found.identifier for found in both if not found.retired] == [again]
    tables.drop(again)
    tables.drop(again)
    assert tables.position(again) is None


def test_rows_are_put_and_removed_by_key(table: Table) -> None:
    before = table.tables.version(table.identifier)
    table.merge(
        (1, "uno", Decimal("2.00"), None, "u"),
        (2, None, None, None, "d"),
        (3, "three", None, AT, "u"),
        (4, None, None, None, "d"),
    )
    after = [(1, "uno", Decimal("2.00"), None), (3, "three", None, AT)]
    assert table.rows() == after
    table.merge(
        (1, "uno", Decimal("2.00"), None, "u"),
        (3, "three", None, AT, "u"),
    )
    assert table.rows() == after  # repeated, it changes nothing
    assert table.rows(before) == sorted(ROWS, key=repr)
    table.merge((9, None, None, None, "d"))  # a commit even so: the position is there
    table.merge()
    assert table.rows() == after


def test_a_merge_into_an_empty_table_only_puts(table: Table) -> None:
    table.tables.delete(table.identifier, None, table.tick())
    table.check_position()
    assert table.rows() == []
    table.merge((1, "one", None, None, "u"), (2, None, None, None, "d"))
    assert table.rows() == [(1, "one", None, None)]


def test_keys_of_several_columns_and_of_text(table: Table) -> None:
    table.merge((1, "one", None, None, "d"), (2, None, None, AT, "u"), key=("id", "name"))
    assert table.rows() == [(2, None, None, AT)]
    table.merge((3, "it's \\ 值", None, None, "u"), key=("name",))
    table.merge((4, "it's \\ 值", None, None, "u"), key=("name",))
    assert table.rows() == [(2, None, None, AT), (4, "it's \\ 值", None, None)]


def test_rows_without_a_key_are_replaced_whole(table: Table) -> None:
    table.append((1, "one", Decimal("1.50"), AT))
    changes = table.frame(
        [
            (1, "one", Decimal("1.50"), AT, "d"),
            (7, "x", None, None, "u"),
            (7, "x", None, None, "u"),
        ],
        op=True,
    )
    table.tables.replace_rows(table.identifier, changes, table.tick())
    table.check_position()
    assert table.rows() == [(2, None, None, None), (7, "x", None, None), (7, "x", None, None)]


def test_rows_are_removed_by_a_condition(table: Table) -> None:
    table.tables.delete(table.identifier, "`id` > 1", table.tick())
    table.check_position()
    assert table.rows() == [ROWS[0]]
    table.tables.delete(table.identifier, "`id` > 1", table.tick())
    table.check_position()
    table.tables.stamp(table.identifier, table.tick())
    table.check_position()
    assert table.rows() == [ROWS[0]]


def test_columns_are_added_with_what_rows_hold_in_them(table: Table) -> None:
    before = table.tables.version(table.identifier)
    table.alter(
        "ALTER TABLE t ADD COLUMN `n.o` BIGINT NOT NULL DEFAULT 7 FIRST, "
        "ADD COLUMN label VARCHAR(9) DEFAULT 'it''s' AFTER id, ADD COLUMN none INT, "
        "ADD COLUMN day DATE DEFAULT '2024-02-29', ADD COLUMN made DATETIME(3) DEFAULT '2024-02-29 01:02:03.5', "
        "ADD COLUMN seen TIMESTAMP DEFAULT '2024-02-29 01:02:03', ADD COLUMN raw VARBINARY(4) DEFAULT 'ab', "
        "ADD COLUMN real8 DOUBLE DEFAULT 1.5, ADD COLUMN real4 FLOAT DEFAULT 2.5, ADD COLUMN dec3 DECIMAL(9,3) DEFAULT 1.5, "
        "ADD COLUMN kind ENUM('a','b') DEFAULT 'b', ADD COLUMN big BIGINT UNSIGNED DEFAULT 18446744073709551615, "
        "ADD COLUMN clock TIMESTAMP DEFAULT CURRENT_TIMESTAMP"
    )
    assert table.names == [
        "n.o", "id", "label", "name", "price", "at", "none", "day", "made", "seen", "raw", "real8",
        "real4", "dec3", "kind", "big", "clock",
    ]  # fmt: skip
    added = table.tables.read(table.identifier).drop("id", "name", "price", "at", "seen")
    row = (
        7, "it's", None, dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 1, 2, 3, 500000),
        bytearray(b"ab"), 1.5, 2.5, Decimal("1.500"), "b", Decimal(2**64 - 1), None,
    )  # fmt: skip
    assert [tuple(found) for found in added.collect()] == [row, row]
    # Conditions see these values too.
    where = "`n.o` = 7 AND label = 'it''s' AND day = DATE'2024-02-29' AND kind = 'b'"
    assert table.tables.read(table.identifier).where(where).count() == 2
    assert table.tables.read(table.identifier).where("seen = TIMESTAMP'2024-02-29 01:02:03Z'").count() == 2  # fmt: skip
    assert table.tables.read(table.identifier, before).columns == ["id", "name", "price", "at"]


def test_columns_are_dropped_renamed_swapped_and_moved(table: Table) -> None:
    before = table.tables.version(table.identifier)
    table.alter("ALTER TABLE t RENAME COLUMN name TO other")
    table.alter("ALTER TABLE t RENAME COLUMN price TO name")
    table.alter("ALTER TABLE t RENAME COLUMN other TO price")
    assert table.names == ["id", "price", "name", "at"]
    assert table.column("price") == ["one", None]
    table.alter("ALTER TABLE t MODIFY COLUMN at DATETIME(3) FIRST, DROP COLUMN price")
    assert table.names == ["at", "id", "name"]
    assert table.rows() == [(None, 2, None), (AT, 1, Decimal("1.50"))]
    # A name is given again, to a column that is another one.
    table.alter("ALTER TABLE t RENAME COLUMN name TO price, ADD COLUMN name INT")
    assert table.rows() == [(None, 2, None, None), (AT, 1, Decimal("1.50"), None)]
    table.alter("ALTER TABLE t DROP COLUMN price, ADD COLUMN price INT")
    assert table.names == ["at", "id", "name", "price"]
    assert table.column("price") == [None, None]
    table.merge((None, 3, 4, 5, "u"))
    assert table.column("price") == [None, None, 5]
    assert table.tables.read(table.identifier, before).columns == ["id", "name", "price", "at"]
    assert table.rows(before) == sorted(ROWS, key=repr)


def test_types_become_wider_in_place_and_others_by_conversion(table: Table) -> None:
    before = table.tables.version(table.identifier)
    uid = table.tables.uid(table.identifier)
    table.alter("ALTER TABLE t MODIFY COLUMN id BIGINT, MODIFY COLUMN price DECIMAL(12,2)")
    assert table.rows() == sorted(ROWS, key=repr)
    table.merge((2**40, "big", Decimal("9999999999.99"), None, "u"))
    assert table.column("price")[-1] == Decimal("9999999999.99")
    table.alter(
        "ALTER TABLE t CHANGE COLUMN price amount INT UNSIGNED, MODIFY COLUMN at DATETIME, "
        "ADD COLUMN price VARCHAR(5) DEFAULT 'n', MODIFY COLUMN id VARCHAR(30) FIRST"
    )
    assert table.names == ["id", "name", "amount", "at", "price"]
    assert table.rows() == [
        ("1", "one", 2, dt.datetime(2024, 2, 29, 12, 31), "n"),
        ("1099511627776", "big", 10000000000, None, "n"),
        ("2", None, None, None, "n"),
    ]
    assert table.rows(before) == sorted(ROWS, key=repr)
    assert table.tables.uid(table.identifier) == uid
    assert [found.uid for found in table.tables.locate() if found.uid == uid] == [uid]


def test_values_become_what_tidb_makes_of_them(table: Table) -> None:
    table.alter(
        "ALTER TABLE t ADD COLUMN kind ENUM('x','y') DEFAULT 'y', ADD COLUMN raw BINARY(2) DEFAULT 'a', "
        "ADD COLUMN words VARCHAR(20) DEFAULT 'y,x', ADD COLUMN number INT DEFAULT 1234, "
        "ADD COLUMN half DOUBLE DEFAULT 2.5, ADD COLUMN clock TIME(3) DEFAULT '01:02:03.5', "
        "ADD COLUMN `real` FLOAT DEFAULT 1.256"
    )
    table.alter(
        "ALTER TABLE t MODIFY COLUMN kind INT, MODIFY COLUMN raw BINARY(3), "
        "MODIFY COLUMN words SET('x','y'), MODIFY COLUMN number VARBINARY(9), "
        "MODIFY COLUMN half BIGINT, MODIFY COLUMN clock TIME, MODIFY COLUMN at BIGINT, "
        "MODIFY COLUMN `real` DOUBLE(8,2)"
    )
    changed = table.tables.read(table.identifier).drop("name", "price").orderBy("id")
    same = (2, bytearray(b"a\0\0"), "x,y", bytearray(b"1234"), 2, "01:02:04", 1.26)
    assert [tuple(row) for row in changed.collect()] == [
        (1, 20240229123100, *same),
        (2, None, *same),
    ]


def test_a_table_gets_its_first_datetime_and_timestamp_later(
    spark: SparkSession, tables: TableFormat
) -> None:
    create = "CREATE TABLE t (id INT PRIMARY KEY, day DATE, other DATE)"
    table = Table(spark, tables, tables.create("shop", "later", schema_of(create), Position(10, 1)))
    table.append((1, dt.date(2024, 2, 29), None))
    table.alter("ALTER TABLE t MODIFY COLUMN day DATETIME")
    assert table.rows() == [(1, dt.datetime(2024, 2, 29), None)]
    second = Table(
        spark, tables, tables.create("shop", "added", schema_of(create), Position(10, 1))
    )
    second.append((1, None, None))
    second.alter("ALTER TABLE t ADD COLUMN at DATETIME, ADD COLUMN seen TIMESTAMP NULL")
    assert second.rows() == [(1, None, None, None, None)]


def test_local_times_and_instants_become_each_other_in_the_zone_of_the_feed(table: Table) -> None:
    instant, zone = "TIMESTAMP'2025-12-31 15:00:00.5Z'", "Asia/Tokyo"

    def is_instant(name: str) -> bool:
        read = table.tables.read(table.identifier)
        return read.where(f"`{name}` = {instant}").count() == 2

    table.alter("ALTER TABLE t ADD ts TIMESTAMP(1) DEFAULT '2026-01-01 00:00:00.5'", zone)
    assert is_instant("ts")
    table.alter(
        "ALTER TABLE t MODIFY ts DATETIME(1), ADD copy TIMESTAMP(1) DEFAULT '2026-01-01'", zone
    )
    assert table.column("ts") == [dt.datetime(2026, 1, 1, 0, 0, 0, 500000)] * 2
    table.alter("ALTER TABLE t MODIFY ts TIMESTAMP(1), MODIFY copy DATE", zone)
    assert is_instant("ts")
    assert table.column("copy") == [dt.date(2026, 1, 1)] * 2
    table.alter("ALTER TABLE t MODIFY ts VARCHAR(30)", zone)
    assert table.column("ts") == ["2026-01-01 00:00:00.5"] * 2
    table.alter("ALTER TABLE t MODIFY ts TIMESTAMP(1)", zone)
    assert is_instant("ts")


def test_what_rows_do_not_show_changes_the_schema_only(table: Table) -> None:
    table.alter("ALTER TABLE t MODIFY COLUMN name VARCHAR(40) NOT NULL DEFAULT 'x'")
    told = table.schema.column("name")
    assert told is not None
    assert (told.length, told.nullable) == (40, False)
    assert table.rows() == sorted(ROWS, key=repr)


def test_a_rename_keeps_the_table_and_frees_its_name(table: Table) -> None:
    tables, old = table.tables, table.schema
    uid = tables.uid(table.identifier)
    new = tables.rename(table.identifier, "other-shop", "renamed", Position(20, 1))
    assert tables.position(new) == Position(20, 1)
    assert tables.uid(new) == uid
    assert (tables.upstream_schema(new).database, tables.upstream_schema(new).table) == ("other-shop", "renamed")  # fmt: skip
    # A step that is done again, as after a crash.
    assert tables.rename(table.identifier, "other-shop", "renamed", Position(20, 1)) == new
    again = tables.create("shop", old.table, old, Position(21, 1))
    assert (tables.read(again).count(), tables.read(new).count()) == (0, 2)
    assert tables.uid(again) != uid
    tables.drop(again)
    assert tables.read(new).count() == 2


def located(table: Table, uid: str) -> Located:
    (found,) = (each for each in table.tables.locate() if each.uid == uid)
    return found


def test_a_retired_table_keeps_its_versions_and_frees_its_name(table: Table) -> None:
    tables, schema = table.tables, table.schema
    uid, version = tables.uid(table.identifier), tables.version(table.identifier)
    assert not located(table, uid).retired
    tables.retire(table.identifier, Position(20, 1))
    again = tables.create("shop", schema.table, schema, Position(21, 1))
    found = located(table, uid)
    assert (found.retired, found.position) == (True, Position(20, 1))
    assert found.identifier != again
    table.identifier = found.identifier
    assert table.rows(version) == sorted(ROWS, key=repr)
    tables.retire(found.identifier, Position(20, 1))  # done again, as after a crash
    assert located(table, uid) == found
    tables.drop(found.identifier)
    assert uid not in [each.uid for each in tables.locate()]
    assert tables.read(again).count() == 0
    tables.retire(found.identifier, Position(20, 1))  # it is there no more


def test_a_retirement_that_was_cut_off_is_finished(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an Iceberg catalog it is two commits: the name, and what the table says of itself."""
    if not isinstance(table.tables, IcebergFormat):
        return
    uid = table.tables.uid(table.identifier)
    with monkeypatch.context() as patched:
        patched.setattr(IcebergFormat, "_mark_retired", None)
        with pytest.raises(TypeError):
            table.tables.retire(table.identifier, Position(20, 1))
    found = located(table, uid)
    assert (found.retired, found.position) == (False, Position(11))
    table.tables.retire(found.identifier, Position(20, 1))
    assert located(table, uid) == found._replace(retired=True, position=Position(20, 1))


def test_a_catalog_that_cannot_rename_drops_the_table(spark: SparkSession, tmp_path: Path) -> None:
    catalog = "spark.sql.catalog.folders"
    spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set(f"{catalog}.type", "hadoop")
    spark.conf.set(f"{catalog}.warehouse", str(tmp_path))
    spark.conf.set(f"{catalog}.cache-enabled", "false")
    tables = open_format("iceberg", spark, LakePlace(str(tmp_path), catalog="folders"))
    identifier = tables.create("shop", "t", schema_of(CREATE), Position(5, 1))
    assert len(tables.locate()) == 1
    tables.retire(identifier, Position(6, 1))
    assert tables.locate() == []


def test_upkeep_keeps_rows_and_position(table: Table) -> None:
    for number in (3, 4):
        table.merge((number, None, None, None, "u"), (1, f"{number}", None, None, "u"))
    rows = table.rows()
    names = table.tables.read(table.identifier).select(F.input_file_name()).collect()
    written = Path(urlsplit(names[0][0]).path)
    orphan = written.with_name("cut-off.parquet")  # what a killed process leaves
    orphan.write_bytes(written.read_bytes())
    long_ago = time.time() - 3 * 86_400
    os.utime(orphan, (long_ago, long_ago))
    done = table.tables.maintain(table.identifier, keep_seconds=0)
    assert done["data files compacted"] >= 2
    assert done["data files removed"] >= 2
    assert not orphan.exists()
    table.check_position()
    assert table.rows() == rows
    table.merge((1, "after", None, None, "u"))
    assert table.column("name")[0] == "after"


def test_a_version_can_be_read_however_old_it_is(spark: SparkSession, tmp_path: Path) -> None:
    """Delta by itself refuses those before the last week's, also of a table that rests for long."""
    tables = open_format("delta", spark, LakePlace(str(tmp_path)))
    table = Table(spark, tables, tables.create("shop", "old", schema_of(CREATE), Position(10, 1)))
    table.append(*ROWS)
    version, rows = tables.version(table.identifier), table.rows()
    month_ago = time.time() - 40 * 86_400
    for path in tmp_path.rglob("_delta_log/*.json"):
        os.utime(path, (month_ago, month_ago))
    tables.delete(table.identifier, None, table.tick())
    assert (table.rows(version), table.rows()) == (rows, [])


def test_files_are_joined_where_a_table_is_in_many_pieces(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_upkeep, "_MANY_FILES", 3)
    monkeypatch.setattr(delta_upkeep, "_MANY_VERSIONS", 5)
    tables, before = table.tables, table.tables.version(table.identifier)
    turns = 0
    while not tables.is_scattered(table.identifier):
        turns += 1
        assert turns < 10
        table.merge((1, f"{turns}", None, None, "u"))
    rows = table.rows()
    tables.compact_files(table.identifier)
    assert not tables.is_scattered(table.identifier)
    table.check_position()
    assert table.rows() == rows
    assert table.rows(before) == sorted(ROWS, key=repr)
    table.merge((1, "after", None, None, "u"))
    assert table.column("name")[0] == "after"


def test_a_log_forgets_versions_and_no_rows(tables: TableFormat) -> None:
    kind = StructType([StructField("n", IntegerType())])
    log = tables.create_log("long", kind)
    for number in range(3):
        log.add_rows(rows_of(kind, [(number,)]))
    tables.forget_versions(log.identifier, keep_seconds=600)
    version = log.version()
    log.add_rows(rows_of(kind, [(3,)]))
    assert tables.read(log.identifier, version).count() == 3
    tables.forget_versions(log.identifier, keep_seconds=0)
    assert sorted(row["n"] for row in tables.read(log.identifier).collect()) == [0, 1, 2, 3]
    if isinstance(tables, IcebergFormat):
        with pytest.raises(PySparkException, match=str(version)):
            tables.read(log.identifier, version).count()


def test_a_log_grows_and_holds_properties(tables: TableFormat) -> None:
    kind = StructType([StructField("part", StringType()), StructField("n", IntegerType())])
    log = tables.create_log("notes", kind, ["part"])
    log.add_rows(rows_of(kind, [("a", 1), ("b", 2)]))
    assert tables.create_log("notes", kind, ["part"]).version() == log.version()
    log.add_rows(rows_of(kind, [("a", 3)]), {"tidegate.round": "1"})
    log.set_properties({"tidegate.note": "it's"})
    log.set_properties({"tidegate.other": "值"})
    kept = tables.create_log("notes", kind, ["part"]).properties()
    assert [kept[f"tidegate.{name}"] for name in ("round", "note", "other")] == ["1", "it's", "值"]
    assert sorted(row["n"] for row in tables.read(log.identifier).collect()) == [1, 2, 3]
    assert log.identifier not in [found.identifier for found in tables.locate()]


def test_files_of_a_log_are_found_by_what_is_known_of_them(tables: TableFormat) -> None:
    kind = StructType([StructField("part", StringType()), StructField("n", IntegerType())])
    log = tables.create_log("known", kind, ["part"])
    first = log.version()
    log.add_rows(rows_of(kind, [("a", 1), ("b", 20)]))
    second = log.version()
    log.add_rows(rows_of(kind, [("a", 30)]))
    third = log.version()
    every = log.files(third, ALWAYS)
    assert sorted(file.rows for file in every) == [1, 1, 1]
    assert all(file.bytes > 0 for file in every)
    schema = pa.schema([("part", pa.string()), ("n", pa.int32())])
    for condition, count in ((above("n", 5), 2), (equal("part", "a"), 2), (above("n", 40), 0)):
        assert len(holding(log.files(third, condition), condition, schema)) == count
    (last,) = log.changes(second, third)
    added = {file.path for file in last.added}
    assert added == {file.path for file in every} - {f.path for f in log.files(second, ALWAYS)}
    assert sum(len(change.added) for change in log.changes(first, third)) == 3
    rows = read_files(log.store(), every, above("n", 5), ["n"])
    assert sorted(row["n"] for batch in rows for row in batch.to_pylist()) == [20, 30]
    (old,) = holding(log.files(third, equal("n", 20)), equal("n", 20), schema)
    new = log.writer().write_here(rows_of(kind, [("b", 20), ("b", 21)]))
    log.replace_files([old.path], new)
    (change,) = log.changes(third, log.version())
    assert [file.rows for file in change.added] == [2]
    assert change.removed == {old.path}
    assert sum(file.rows for file in log.files(log.version(), ALWAYS)) == 4
    assert sorted(row["n"] for row in tables.read(log.identifier).collect()) == [1, 20, 21, 30]
    with pytest.raises(FilesReplaced):
        log.replace_files([old.path], new)


def test_a_commit_to_a_log_that_somebody_else_wrote_to_is_refused(tables: TableFormat) -> None:
    kind = StructType([StructField("n", IntegerType())])
    log, other = (tables.create_log("owned", kind) for _ in range(2))
    log.append(log.writer().write_here(rows_of(kind, [(1,)])), {"owner": "a"}, {"owner": None})
    other.append([], {"owner": "b"}, {"owner": "a"})
    files = log.writer().write_here(rows_of(kind, [(2,)]))
    with pytest.raises(LeaseLost, match="Another mirror has taken over the lake"):
        log.append(files, {"owner": "a"}, {"owner": "a"})
    assert [row["n"] for row in tables.read(log.identifier).collect()] == [1]
    assert log.properties()["owner"] == "b"


def test_files_of_properties_that_no_longer_hold_are_removed(tmp_path: Path) -> None:
    folder, columns = str(tmp_path / "log"), pa.schema([("n", pa.int64())])
    DeltaLog.create(folder, columns, (), FileStore(), {})
    log = DeltaLog("log", folder, columns, (), (), FileStore, Guard)
    for number in range(3):
        log.set_properties({"n": str(number)})
    files = sorted((tmp_path / "log" / "_tidegate").iterdir(), key=lambda path: int(path.stem))
    # One that was written for a commit that may still come, however long it takes.
    pending = files[-1].with_name(f"{(int(files[-1].stem) >> 32) + 1 << 32}.json")
    pending.write_text("{}")
    assert remove_old_properties(FileStore(), folder) == 0
    hour_ago = time.time() - 3600
    for each in (*files, pending):
        os.utime(each, (hour_ago, hour_ago))
    assert remove_old_properties(FileStore(), folder) == 2
    assert {*(tmp_path / "log" / "_tidegate").iterdir()} == {files[-1], pending}
    assert log.properties() == {"n": "2"}


def test_several_threads_can_add_to_a_log(tables: TableFormat) -> None:
    kind = StructType([StructField("n", IntegerType())])
    logs = [tables.create_log("shared", kind) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(
            lambda each: each[1].add_rows(rows_of(kind, [(each[0],)])), enumerate(logs)
        ):
            pass
    rows = tables.read(logs[0].identifier).collect()
    assert sorted(row["n"] for row in rows) == [0, 1, 2, 3]
