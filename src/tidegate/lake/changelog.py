"""The changelog: every event of a feed with its source position, for ever growing.

A plain streaming query fills it, exactly once. It is partitioned by database and table, so that one
table's interval is read without the others; watermarks and bad messages, which have no table, are
apart from all of them. Everything the mirror knows it has read from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BooleanType, StructType

from tidegate.feed.gate import ROW_KINDS
from tidegate.feed.schema_cache import SchemaCache, SchemaKey
from tidegate.lake.format import TableFormat
from tidegate.lake.latest import LatestChanges
from tidegate.model import EventFlag
from tidegate.wire.change import CHANGE_SCHEMA

NAME = "changelog"
PARTIAL = EventFlag.HANDLE_KEY_ONLY | EventFlag.CLAIM_CHECK
"""Set where the rest of a row may be elsewhere: upstream, or in claim-check storage."""

CONTROL = "control"
"""The column that tells events about the feed from row changes, which are many times as many."""

_NARROW = ["topic", "partition", "offset", "event", "kind", "commit_ts", "database", "table"]
_NOTHING = -1


def columns() -> StructType:
    """The columns of the changelog: those of a change batch, and CONTROL."""
    schema: StructType = from_arrow_schema(CHANGE_SCHEMA).add(CONTROL, BooleanType())
    for each in schema:
        each.nullable = True
    return schema


def as_rows(events: DataFrame) -> DataFrame:
    """Events of a feed with the columns of the changelog."""
    made = {
        "topic": F.coalesce("topic", F.lit("")).alias("topic"),
        CONTROL: (~F.col("kind").isin(*ROW_KINDS)).alias(CONTROL),
    }
    return events.select(*(made.get(each.name, F.col(each.name)) for each in columns()))


@dataclass(slots=True)
class Offsets:
    """The last offset seen of every partition of every topic."""

    last: dict[tuple[str, int], int] = field(default_factory=dict)

    def beyond(self) -> Column:
        """Whether an event came after these; made of ranges, which the files' statistics answer."""
        topics = sorted({topic for topic, _ in self.last})
        parts = [~F.col("topic").isin(topics)] if len(topics) != 1 else []
        for topic in topics:
            known = {partition: at for (of, partition), at in self.last.items() if of == topic}
            here = F.col("topic") == topic if len(topics) > 1 else F.lit(True)
            parts.append(here & (F.col("partition") > max(known)))
            parts += [
                here
                & (F.col("partition") == partition)
                & (F.col("offset") > known.get(partition, _NOTHING))
                for partition in range(max(known) + 1)
            ]
        if len(topics) == 1:
            parts.append(F.col("topic") != topics[0])
        return reduce(Column.__or__, parts, F.lit(not self.last))

    def advanced(self, seen: Mapping[tuple[str, int], int]) -> Offsets:
        """These and what was seen since."""
        return Offsets({**self.last, **seen})

    def to_object(self) -> list[list[str | int]]:
        """What `from_object` reads."""
        return [[topic, partition, at] for (topic, partition), at in sorted(self.last.items())]

    @classmethod
    def from_object(cls, told: list[list[str | int]]) -> Offsets:
        """The offsets that `to_object` wrote down."""
        return cls({(str(topic), int(partition)): int(at) for topic, partition, at in told})


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one table, kind and shape between two cuts: how many, and the first commit_ts.

    `moved` says that some of them are updates that were seen to take a row to another key;
    `partial`, with EventFlag's bits, that messages were too large and carried only keys.
    """

    database: str
    table: str
    kind: str
    shape: int
    schema_version: int | None
    segment: int
    late: bool
    moved: bool
    rows: int
    first_ts: int
    partial: int = 0


class Changelog:
    """A changelog at one of its versions, or (`version` None) as it is now."""

    def __init__(self, tables: TableFormat, identifier: str, version: int | None = None) -> None:
        self.identifier = identifier
        self.version = version
        self._tables = tables

    @classmethod
    def open(cls, tables: TableFormat) -> Changelog:
        """The changelog of a lake; made if it is not there."""
        return cls(tables, tables.create_log(NAME, columns(), ["database", "table", CONTROL]))

    def now(self) -> Changelog:
        """The changelog as it is now and stays."""
        return Changelog(self._tables, self.identifier, self._tables.version(self.identifier))

    def read(self) -> DataFrame:
        """All of it."""
        return self._tables.read(self.identifier, self.version)

    def add(self, events: DataFrame) -> None:
        """Adds events, as they were decoded."""
        self._tables.append_to_log(self.identifier, as_rows(events))

    def _events(self, *, control: bool) -> DataFrame:
        """Row changes, or all other events: these are in files of their own."""
        return self.read().where(F.col(CONTROL) == control)

    # --- what is new ------------------------------------------------------------------------------

    def offsets_beyond(self, known: Offsets) -> dict[tuple[str, int], int]:
        """The last offset of every partition that has anything new."""
        found = self.read().where(known.beyond()).groupBy("topic", "partition").agg(F.max("offset"))
        return {(topic, partition): offset for topic, partition, offset in found.collect()}

    def control_events(self, known: Offsets) -> pa.Table:
        """New watermarks, statements, table schemas and bad messages, in the order of arrival."""
        wanted = F.col("kind").isin("watermark", "ddl", "error") | (
            (F.col("kind") == "schema") & F.col("shape").isNull()
        )
        found = self._events(control=True).where(known.beyond() & wanted)
        return _arrow(found.select(*_NARROW, "shape", "schema_version", "ddl", "schema", "error"))

    def statements_since(self, ts: int) -> pa.Table:
        """All statements at or after a commit_ts."""
        found = self._events(control=True).where(
            (F.col("kind") == "ddl") & (F.col("commit_ts") >= ts)
        )
        return _arrow(found.select(*_NARROW, "shape", "schema_version", "ddl", "schema", "error"))

    def first_ts(self) -> int:
        """The commit_ts of the first change."""
        kinds = F.col("kind").isin(*ROW_KINDS, "ddl")
        found = self.read().where(kinds).agg(F.min("commit_ts")).collect()
        return found[0][0] or 0

    def waiting(self, ts: int, cache: SchemaCache) -> dict[SchemaKey, int]:
        """How many rows after an instant wait for schemas that the cache does not have."""
        found = (
            self._events(control=False)
            .where(F.col("schema_version").isNotNull())
            .where(F.col("commit_ts") > ts)
            .groupBy("database", "table", "schema_version")
            .count()
        )
        keys = {SchemaKey(*row[:3]): row[3] for row in found.collect()}
        return {key: rows for key, rows in keys.items() if cache.schema(*key) is None}

    def shapes(self, wanted: Mapping[tuple[str, str], set[int]]) -> pa.Table:
        """The schema events of shapes by their tables, each once or more."""
        conditions = [
            (F.col("database") == database)
            & (F.col("table") == table)
            & F.col("shape").isin(sorted(shapes))
            for (database, table), shapes in wanted.items()
        ]
        found = self._events(control=True).where(
            (F.col("kind") == "schema") & reduce(Column.__or__, conditions, F.lit(False))
        )
        found = found.groupBy("shape").agg(
            *(F.first(name).alias(name) for name in ("database", "table", "schema"))
        )
        table: pa.Table = found.select("shape", "database", "table", "schema").toArrow()
        return table

    # --- rows -------------------------------------------------------------------------------------

    def groups(self, rows: Column, segment: Column, late: Column) -> list[Group]:
        """What rows there are, counted by table, kind, shape and segment."""
        keys = ["database", "table", "kind", "shape", "schema_version"]
        found = (
            self._events(control=False)
            .where(rows)
            .groupBy(*keys, segment.alias("segment"), late.alias("late"))
            .agg(
                F.count("*").alias("rows"),
                F.min("commit_ts").alias("first_ts"),
                F.bit_or("flags").alias("flags"),
            )
        )
        return [_group(row.asDict()) for row in found.collect()]

    def rows_of(self, database: str, table: str) -> DataFrame:
        """The row changes of one table, by the name it had then."""
        return self._events(control=False).where(
            (F.col("database") == database) & (F.col("table") == table)
        )

    def latest(self, database: str, table: str, latest: LatestChanges) -> DataFrame | None:
        """The row changes of one table without most that others supersede; None: not to be had."""
        assert self.version is not None
        having: dict[str, str | bool] = {"database": database, "table": table, CONTROL: False}
        ts = (latest.low, latest.high)
        files = self._tables.log_files(self.identifier, self.version, having, ts)
        return latest.read(self.read().sparkSession, files) if files else None


def _group(row: dict[str, Any]) -> Group:
    flags = row.pop("flags") or 0
    return Group(**row, moved=bool(flags & EventFlag.MOVED), partial=int(flags & PARTIAL))


def _arrow(found: DataFrame) -> pa.Table:
    table: pa.Table = found.toArrow()
    order = [(name, "ascending") for name in ("topic", "partition", "offset", "event")]
    return table.sort_by(order)
