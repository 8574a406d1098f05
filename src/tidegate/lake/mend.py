"""A step that puts tables right: reads late events beside all others, and merges what they touch.

Late are the events of messages that a retry has read and that the tables had gone past; `late` says
what is to be done about them. That is seldom and concerns few tables, so all of it goes by Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidegate.feed.gate import ROW_KINDS
from tidegate.feed.tables import Name
from tidegate.lake.apply import Applier
from tidegate.lake.changelog import PARTIAL, Changelog, Group
from tidegate.lake.plan import Rows
from tidegate.lake.quarantine import PLACE
from tidegate.lake.rows import RowReader
from tidegate.model import EventFlag

LATE = "_late"
_TOLD = [*PLACE, "event", "kind", "commit_ts", "database", "table", "shape", "schema_version"]
_TOLD += ["ddl", "schema", "error"]


class LateLog:
    """A changelog with the places of the messages that a retry has read.

    `taken` are the events that the mirror has read; those beyond are not late, whatever they are.
    """

    def __init__(self, changelog: Changelog, places: DataFrame, taken: Column) -> None:
        marks = places.select(*PLACE).distinct().withColumn(LATE, F.lit(True))
        events = changelog.read().where(taken).join(F.broadcast(marks), list(PLACE), "left")
        self._events = events.withColumn(LATE, F.coalesce(LATE, F.lit(False)))

    # --- what is told -----------------------------------------------------------------------------

    def control_events(self) -> pa.Table:
        """Late watermarks, statements and table schemas, in the order of arrival."""
        return _table(self._events.where(F.col(LATE) & _tells_of_tables()))

    def schemas_of(self, names: Iterable[Name]) -> pa.Table:
        """All that was told of the schemas of tables."""
        return _table(self._events.where(_any(map(of_table, names)) & _tells_of_tables()))

    def statements_since(self, ts: int) -> pa.Table:
        """The statements at or after a commit_ts that are not late."""
        in_time = (F.col("kind") == "ddl") & (F.col("commit_ts") >= ts) & ~F.col(LATE)
        return _table(self._events.where(in_time))

    # --- rows -------------------------------------------------------------------------------------

    def times(self, until: int | None) -> dict[Name, list[int]]:
        """The commit_ts of late rows, each once, up to one of them, by the names of the tables."""
        rows = self._rows(until).where(LATE)
        found = rows.groupBy("database", "table").agg(F.sort_array(F.collect_set("commit_ts")))
        return {Name(database, table): times for database, table, times in found.collect()}

    def since(self, first: dict[Name, int], until: int | None) -> DataFrame:
        """The rows of tables from an instant of each up to another; LATE tells which are late."""
        ts = F.col("commit_ts")
        wanted = _any(of_table(name) & (ts >= F.lit(at)) for name, at in first.items())
        return self._rows(until).where(wanted)

    def _rows(self, until: int | None) -> DataFrame:
        rows = self._events.where(F.col("kind").isin(*ROW_KINDS))
        return rows if until is None else rows.where(F.col("commit_ts") <= until)


def groups_of(rows: DataFrame) -> list[Group]:
    """What rows there are, counted by table, kind and shape."""
    found = rows.groupBy("database", "table", "kind", "shape", "schema_version", LATE).agg(
        F.count("*").alias("rows"),
        F.min("commit_ts").alias("first_ts"),
        F.bit_or("flags").alias("flags"),
    )
    groups = []
    for row in found.collect():
        told = row.asDict()
        flags, late = told.pop("flags") or 0, told.pop(LATE)
        moved, partial = bool(flags & EventFlag.MOVED), int(flags & PARTIAL)
        groups.append(Group(**told, segment=0, late=late, moved=moved, partial=partial))
    return groups


class Mender(Applier):
    """Puts right the keys that late rows touch, as the last of all their changes has them.

    `rows` are those of all tables that are concerned, since the first late ones.
    """

    def __init__(self, *args: Any, rows: DataFrame, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._late_rows = rows

    def _rows(self, step: Rows) -> None:
        changes = self._late_rows.where(of_table(step.name))
        touched = F.col(LATE)
        reader = RowReader(step.schema, step.layouts, self._zone, step.sent, touched)
        key = step.schema.handle_key()
        if key and step.incomplete:
            self._incomplete_rows(step, reader, changes)
        elif key:
            order = self._interval.order
            rows = reader.last_of_each_key(changes, key, order, moves=step.moves)
            self._tables.merge(step.table.identifier, rows, key, step.position)
        else:  # all its rows are late: it was not there
            self._keyless(step, reader.whole_rows(changes))


def of_table(name: Name) -> Column:
    """Whether an event is of a table, by the name it had then."""
    return (F.col("database") == name.database) & (F.col("table") == name.table)


def _tells_of_tables() -> Column:
    kind = F.col("kind")
    return kind.isin("watermark", "ddl") | ((kind == "schema") & F.col("shape").isNull())


def _any(conditions: Iterable[Column]) -> Column:
    return reduce(Column.__or__, conditions, F.lit(False))


def _table(events: DataFrame) -> pa.Table:
    found: pa.Table = events.select(*_TOLD).toArrow()
    return found.sort_by([(name, "ascending") for name in (*PLACE, "event")])
