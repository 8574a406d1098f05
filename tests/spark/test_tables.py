"""One table, typed: rows of every shape find their columns by name; both ways to do it agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support import corpus
from tests.support.decoding import PROTOCOLS, offsets
from tests.support.spark import stream_rows
from tidegate.changefeed.receive.gate import ROW_KINDS
from tidegate.model import Column, ConfigError, SchemaNotSeen, TableSchema
from tidegate.spark import changes, table
from tidegate.spark.decoding import Decoding, Reading
from tidegate.spark.metrics import Tally, TallyCounter
from tidegate.spark.tables import Typing, schema_from_rows, table_type
from tidegate.spark.types import from_text_array
from tidegate.wire import ShapeBook, decode_batch, write_capture

Row = dict[str, Any]

FEEDS = [
    "bank.open.updcols",
    "ddl.canal.ext.stream",
    "ddl.simple.json.stream",
    "large.canal.hk",
    "types.craft.b16",
    "types.open.b16",
    "types.simple.avro",
]


class NoCounter:
    def add(self, tally: Tally) -> None:
        assert tally.messages > 0


def messages(name: str) -> pa.RecordBatch:
    sent = corpus.messages(name)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["t"] * len(sent)),
            "partition": pa.array([message.partition for message in sent], pa.int32()),
            "offset": pa.array(offsets(sent), pa.int64()),
            "key": pa.array([message.key for message in sent], pa.binary()),
            "value": pa.array([message.value for message in sent], pa.binary()),
        }
    )


def protocol_of(name: str) -> str:
    return PROTOCOLS[corpus.variant(name).protocol]


def decoded(name: str) -> pa.RecordBatch:
    batch = messages(name)
    return decode_batch(
        protocol_of(name),
        batch["key"],
        batch["value"],
        topics=batch["topic"],
        partitions=batch["partition"],
        offsets=batch["offset"],
    )


def told(rows: Sequence[Row]) -> list[Row]:
    """The rows of schemas and DDL as `find_schema` collects them."""
    return [
        {
            **row,
            "query": (row["ddl"] or {}).get("query"),
            "place": tuple(row[name] for name in ("topic", "partition", "offset", "event")),
        }
        for row in rows
        if row["kind"] in ("ddl", "schema")
    ]


def expected(
    rows: Sequence[Row], shapes: ShapeBook, schema: TableSchema, columns: Sequence[Column]
) -> list[Row]:
    """Each row by itself, from its values by name."""
    found = []
    for row in rows:
        named = (row["database"], row["table"]) == (schema.database, schema.table)
        if row["kind"] not in ROW_KINDS or not named:
            continue
        shape = shapes.shape(row["shape"])
        assert shape is not None
        names = [column.name for column in shape.columns]
        zones = {column.name: column.zone for column in shape.columns}
        unknown = {
            name
            for place, name in enumerate(names)
            if row["before_missing"] and row["before_missing"][place // 8] >> place % 8 & 1
        }

        def image(side: str, row: Row = row, names: list[str] = names, zones: Any = zones) -> Any:
            if row[side] is None:
                return None
            texts = dict(zip(names, row[side], strict=True))
            return {
                column.name: from_text_array(
                    column,
                    pa.array([texts.get(column.name)], pa.string()),
                    zones.get(column.name) or "UTC",
                )[0].as_py()
                for column in columns
            }

        absent = [column.name for column in columns if column.name not in names]
        lost = [column.name for column in columns if column.name in {*absent, *unknown}]
        is_delete = row["kind"] == "delete"
        values = image("before" if is_delete else "after")
        found.append(
            {
                "_op": row["kind"],
                "_commit_ts": row["commit_ts"],
                "_topic": row["topic"],
                "_partition": row["partition"],
                "_offset": row["offset"],
                "_event": row["event"],
                "_missing": (lost if is_delete else absent) or None,
                **values,
                "_before": image("before"),
                "_before_missing": (lost or None) if row["before"] is not None else None,
            }
        )
    return found


def by_place(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["_partition"], row["_offset"], row["_event"]))


def columns_of(schema: TableSchema) -> tuple[Column, ...]:
    return schema.carried


@pytest.mark.parametrize("name", FEEDS)
def test_every_table_of_a_feed_is_typed_by_name(name: str) -> None:
    batch = decoded(name)
    rows = batch.to_pylist()
    shapes = ShapeBook([batch])
    tables = {(row["database"], row["table"]) for row in rows if row["event"] == -1}
    typed = 0
    for database, named in sorted(tables):
        schema = schema_from_rows(told(rows), database, named)
        columns = columns_of(schema)
        decoding = Decoding(Reading(protocol_of(name)), cast(TallyCounter, NoCounter()))
        typing = Typing(decoding, database, named, columns, True, "UTC")
        found = [row for part in typing([messages(name)]) for row in part.to_pylist()]
        due = expected(rows, shapes, schema, columns)
        # Not by ==: NaN is not equal to itself, and 1 is to True.
        assert list(map(str, by_place(found))) == list(map(str, by_place(due)))
        assert all(list(row) == table_type(columns, True).names for row in found)
        typed += len(found)
    assert typed == sum(row["kind"] in ROW_KINDS for row in rows)


def test_statements_of_one_instant_follow_each_other_as_they_were_sent() -> None:
    """TiCDC sends each pair of a RENAME TABLE by itself, all with one commit_ts."""
    queries = [
        (1, "CREATE TABLE a (id INT PRIMARY KEY, x INT)"),
        (2, "CREATE TABLE b (id INT PRIMARY KEY, y INT)"),
        (3, "RENAME TABLE a TO c"),
        (3, "RENAME TABLE b TO a"),
        (3, "RENAME TABLE c TO b"),
    ]
    rows = [
        dict.fromkeys(("shape", "schema", "table"))
        | {"kind": "ddl", "commit_ts": ts, "database": "d", "query": query}
        | {"place": (None, 0, offset, 0)}
        for offset, (ts, query) in enumerate(queries)
    ]
    for name, column in (("a", "y"), ("b", "x")):
        schema = schema_from_rows(list(reversed(rows)), "d", name)
        assert schema.column_names == ("id", column)


def test_a_stream_of_a_table_finds_its_schema_in_its_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "feed.jsonl"
    write_capture(path, [messages("bank.simple.json")])
    feed = changes(spark, path, max_per_trigger=1000)
    found = stream_rows(table(feed, "bank.accounts"), tmp_path / "query")

    bounded = table(changes(spark, path, batch=True), "bank.accounts")
    assert by_place(found) == by_place([row.asDict() for row in bounded.collect()])
    assert len(found) > 1000


def test_what_cannot_be_typed_is_told(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "feed.parquet"
    write_capture(path, [messages("bank.canal.ext.stream")])
    feed = changes(spark, path, batch=True)
    with pytest.raises(SchemaNotSeen, match=r"The schema of bank\.none has not been seen"):
        table(feed, "bank.none")
    with pytest.raises(ConfigError, match="names no table"):
        table(feed, "accounts")
    with pytest.raises(ConfigError, match="a stream must be what"):
        table(
            changes(spark, path).where("true"),
            "bank.accounts",
            schema=TableSchema(database="bank", table="accounts"),
        )
    with pytest.raises(ConfigError, match="it has a column _op, a name of our own"):
        table_type([Column.of_type("_op", "int")])


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("ddl.canal.ext.stream", "d1.t1"),
        ("bank.open.updcols", "bank.accounts"),
        ("types.open.b16", "t.times"),
    ],
)
def test_both_ways_agree_in_spark(spark: SparkSession, tmp_path: Path, name: str, of: str) -> None:
    path = tmp_path / "feed.parquet"
    write_capture(path, [messages(name)])
    feed = changes(spark, path, batch=True)
    quick = table(feed, of, before=True)
    plain = table(feed.where("true"), of, before=True)

    assert quick.schema.simpleString() == plain.schema.simpleString()
    rows = [row.asDict(recursive=True) for row in quick.collect()]
    assert len(rows) > 10
    others = [row.asDict(recursive=True) for row in plain.collect()]
    assert list(map(str, by_place(rows))) == list(map(str, by_place(others)))
