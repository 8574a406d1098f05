"""A step that puts tables right: reads late events beside all others, and merges what they touch.

Late are the events of messages that a retry has read and that the tables had gone past; `late` says
what is to be done about them. That is seldom and concerns few tables, so all of it goes by Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidegate.feed.gate import ROW_KINDS
from tidegate.feed.tables import Name
from tidegate.lake.apply import Applier
from tidegate.lake.changelog import TOLD, Changelog, Group, by_arrival, grouped, named
from tidegate.lake.conditions import ALWAYS, NEVER, Condition, above, equal, is_null, some
from tidegate.lake.interval import Interval
from tidegate.lake.plan import Rows
from tidegate.lake.quarantine import PLACE
from tidegate.lake.rows import RowReader

LATE = "_late"
_TELLS_OF_TABLES = some(
    equal("kind", "watermark"), equal("kind", "ddl"), equal("kind", "schema") & is_null("shape")
)


@dataclass(frozen=True, slots=True)
class LateEvents:
    """Which events the tables went past without them.

    `taken` are the events that the mirror has read; those beyond are not late, whatever they are.
    Of these, late are the events of the messages at `places` (what a retry could read), and those
    that meet `condition` (a partition that had promised nothing yet).
    """

    taken: Condition
    condition: Condition = NEVER
    places: DataFrame | None = None


class LateLog:
    """A changelog in which the late events are marked."""

    def __init__(self, changelog: Changelog, late: LateEvents) -> None:
        events = changelog.read().where(late.taken.spark())
        is_late = late.condition.spark()
        if late.places is not None:
            marks = late.places.select(*PLACE).distinct().withColumn(LATE, F.lit(True))
            events = events.join(F.broadcast(marks), list(PLACE), "left")
            is_late = is_late | F.col(LATE)
        self._events = events.withColumn(LATE, F.coalesce(is_late, F.lit(False)))

    # --- what the feed says -----------------------------------------------------------------------

    def control_events(self) -> pa.Table:
        """Late watermarks, statements and table schemas, in the order of arrival."""
        return _table(self._events.where(F.col(LATE) & _TELLS_OF_TABLES.spark()))

    def schemas_of(self, names: Iterable[Name]) -> pa.Table:
        """All events about the schemas of tables."""
        of_tables = some(*(named(*name) for name in names)).spark()
        return _table(self._events.where(of_tables & _TELLS_OF_TABLES.spark()))

    def statements_since(self, ts: int) -> pa.Table:
        """The statements at or after a commit_ts that are not late."""
        in_time = (F.col("kind") == "ddl") & (F.col("commit_ts") >= ts) & ~F.col(LATE)
        return _table(self._events.where(in_time))

    # --- rows -------------------------------------------------------------------------------------

    def times(self, until: int | None) -> dict[Name, list[int]]:
        """The distinct commit_ts of late rows, up to one of them, by the names of the tables."""
        rows = self._rows(until).where(LATE)
        by_table = rows.groupBy("database", "table").agg(F.sort_array(F.collect_set("commit_ts")))
        return {Name(database, table): times for database, table, times in by_table.collect()}

    def rows(self, first: Mapping[Name, int], until: int | None) -> DataFrame:
        """The rows of tables from an instant of each up to another; LATE marks the late ones."""
        wanted = (named(*name) & above("commit_ts", at - 1) for name, at in first.items())
        return self._rows(until).where(some(*wanted).spark())

    def groups(
        self, first: Mapping[Name, int], until: int | None, cuts: Sequence[int] = ()
    ) -> list[Group]:
        """How many of these rows there are, by table, kind, shape and segment."""
        segment = Interval(ALWAYS, tuple(cuts)).segment()
        return grouped(self.rows(first, until), segment, F.col(LATE))

    def _rows(self, until: int | None) -> DataFrame:
        rows = self._events.where(F.col("kind").isin(*ROW_KINDS))
        return rows if until is None else rows.where(F.col("commit_ts") <= until)


class Mender(Applier):
    """Puts right the keys that late rows touch, as the last of all their changes has them.

    It reads the rows of all tables concerned, each `since` its first late ones up to an instant.
    """

    def __init__(
        self,
        *args: Any,
        log: LateLog,
        since: Mapping[Name, int],
        until: int | None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self._late_rows = log.rows(since, until)

    def _rows(self, step: Rows) -> None:
        within = named(*step.name) & self._interval.within(*step.segments)
        changes = self._late_rows.where(within.spark())
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
            self._keyless(step, reader, changes)


def _table(events: DataFrame) -> pa.Table:
    return by_arrival(events.select(*TOLD).toArrow())
