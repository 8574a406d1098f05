"""A step that puts tables right: reads late events beside all others, and merges what they touch.

Late are the events of messages that a retry has read and that the tables had gone past; `late` says
what is to be done about them. That is seldom and concerns few tables, so Spark reads the events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidegate.changefeed.receive.gate import ROW_KINDS
from tidegate.lake.apply.changes import Changes, FrameChanges
from tidegate.lake.apply.executor import Applier
from tidegate.lake.apply.last_changes import LATE
from tidegate.lake.apply.planner import Rows
from tidegate.lake.apply.rows import RowReader
from tidegate.lake.changelog.changelog import TOLD, Changelog, Group, by_arrival, grouped, named
from tidegate.lake.changelog.interval import Interval
from tidegate.lake.quarantine import PLACE
from tidegate.lake.storage.predicates import (
    ALWAYS,
    NEVER,
    Condition,
    above,
    equal,
    every,
    is_null,
    some,
    up_to,
)
from tidegate.sql.tables import Name

CONTENT = ("commit_ts", "kind", "database", "table", "shape", "after", "before")
"""The columns in which a row that is sent again equals the first one."""
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
        """The distinct commit_ts of late rows, up to one of them, by the names of the tables.

        Copies of rows that came in time are left out: TiCDC sends them again, and a partition that
        was added may be where they go then. Without watermarks (`until` is None) a commit_ts does
        not identify a transaction, and nothing is known to be a copy.
        """
        late = self._rows(until).where(LATE)
        times = _times(late)
        if until is None or not times:
            return times
        spans = (
            every(named(*name), above("commit_ts", of[0] - 1), up_to("commit_ts", of[-1]))
            for name, of in times.items()
        )
        in_time = self._rows(until).where(some(*spans).spark() & ~F.col(LATE))
        same = [F.col(f"late.{name}").eqNullSafe(F.col(f"in_time.{name}")) for name in CONTENT]
        copies = in_time.select(*CONTENT).alias("in_time")
        return _times(late.select(*CONTENT).alias("late").join(copies, same, "left_anti"))

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

    It reads the rows of all tables concerned, each `since` its first late ones up to an instant. Of
    a table without a key all rows are late: it was not there.
    """

    _touched = True

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

    def _changes(self, step: Rows, reader: RowReader) -> Changes:
        within = named(*step.name) & self._interval.within(*step.segments)
        return FrameChanges(self._late_rows.where(within.spark()))


def _times(rows: DataFrame) -> dict[Name, list[int]]:
    by_table = rows.groupBy("database", "table").agg(F.sort_array(F.collect_set("commit_ts")))
    return {Name(database, table): times for database, table, times in by_table.collect()}


def _table(events: DataFrame) -> pa.Table:
    return by_arrival(events.select(*TOLD).toArrow())
