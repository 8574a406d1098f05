"""Reads late events and the other events of the tables that they concern.

Late are events that came when the tables had gone past them: those of messages that a retry could
read, and those of partitions that the tables went on without. They are few and seldom, and are
marked by a join, so Spark reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidegate.changefeed.receive.gate import ROW_KINDS
from tidegate.changefeed.receive.release import CONTENT, fingerprint
from tidegate.lake.apply.last_changes import LATE
from tidegate.lake.changelog.changelog import TOLD, Changelog, Group, by_arrival, grouped
from tidegate.lake.changelog.interval import Interval
from tidegate.lake.changelog.row_schemas import LayoutKey
from tidegate.lake.quarantine import PLACE
from tidegate.lake.storage.predicates import (
    ALWAYS,
    NEVER,
    Condition,
    above,
    equal,
    every,
    is_null,
    one_of,
    some,
    up_to,
)
from tidegate.spark.workers import forget_zip_importers
from tidegate.sql.tables import Name

_OF_TABLES = some(
    equal("kind", "watermark"), equal("kind", "ddl"), equal("kind", "schema") & is_null("shape")
)
_FIRST, _LAST, _FINGERPRINT = "_first", "_last", "_fingerprint"
_END_OF_TIME = 2**63 - 1


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

    # --- events about the feed --------------------------------------------------------------------

    def control_events(self) -> pa.Table:
        """Late watermarks, statements and table schemas, in the order of arrival."""
        return _table(self._events.where(F.col(LATE) & _OF_TABLES.spark()))

    def schemas_of(self, names: Iterable[Name]) -> pa.Table:
        """All events about the schemas of tables."""
        events = self._events.where(_OF_TABLES.spark())
        return _table(_between(events, dict.fromkeys(names, (0, _END_OF_TIME))))

    def statements_since(self, ts: int) -> pa.Table:
        """The statements at or after a commit_ts that are not late."""
        in_time = (F.col("kind") == "ddl") & (F.col("commit_ts") >= ts) & ~F.col(LATE)
        return _table(self._events.where(in_time))

    # --- rows -------------------------------------------------------------------------------------

    def times(self, until: int | None) -> dict[Name, list[int]]:
        """The distinct commit_ts of late rows, up to one of them, by the names of the tables."""
        return _times(self._rows(until).where(LATE))

    def times_without_copies(
        self,
        times: Mapping[Name, Sequence[int]],
        until: int,
        names: Mapping[LayoutKey, Sequence[str]],
    ) -> dict[Name, list[int]]:
        """The `times` of late rows that did not also come in time.

        TiCDC sends rows again, and a partition that was added may be where they go then. `names`
        are the columns of shapes: `fingerprint` compares rows by them.
        """
        spans = {name: (of_table[0], of_table[-1]) for name, of_table in times.items()}
        rows = _between(self._rows(until), spans)
        late, in_time = (_fingerprints(rows.where(each), names) for each in (LATE, ~F.col(LATE)))
        same = ["commit_ts", _FINGERPRINT]
        return _times(late.join(in_time.select(*same), same, "left_anti"))

    def rows(self, first: Mapping[Name, int], until: int | None) -> DataFrame:
        """The rows of tables from an instant of each up to another; LATE marks the late ones."""
        last = _END_OF_TIME if until is None else until
        return _between(self._rows(until), {name: (at, last) for name, at in first.items()})

    def groups(
        self, first: Mapping[Name, int], until: int | None, cuts: Sequence[int] = ()
    ) -> list[Group]:
        """How many of these rows there are, by table, kind, shape and segment."""
        segment = Interval(ALWAYS, tuple(cuts)).segment()
        return grouped(self.rows(first, until), segment, F.col(LATE))

    def _rows(self, until: int | None) -> DataFrame:
        rows = self._events.where(F.col("kind").isin(*ROW_KINDS))
        return rows if until is None else rows.where(F.col("commit_ts") <= until)


def _between(events: DataFrame, spans: Mapping[Name, tuple[int, int]]) -> DataFrame:
    """The events of tables, each from one commit_ts up to another.

    Spans are joined, since a condition with a part for each table would grow with their number. The
    bounds of all of them let Spark skip files.
    """
    if not spans:
        return events.where(F.lit(False))
    databases, tables = zip(*spans, strict=True)
    first, last = zip(*spans.values(), strict=True)
    bounds = every(
        *(one_of("database", sorted({*databases})), one_of("table", sorted({*tables}))),
        *(above("commit_ts", min(first) - 1), up_to("commit_ts", max(last))),
    )
    columns = {"database": databases, "table": tables, _FIRST: first, _LAST: last}
    wanted = events.sparkSession.createDataFrame(pa.table(columns))
    joined = events.where(bounds.spark()).join(F.broadcast(wanted), ["database", "table"])
    in_span = F.col("commit_ts").between(F.col(_FIRST), F.col(_LAST))
    return joined.where(in_span).drop(_FIRST, _LAST)


def _fingerprints(rows: DataFrame, names: Mapping[LayoutKey, Sequence[str]]) -> DataFrame:
    """The tables and commit_ts of rows, and what else tells a row from others."""

    def prints(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        forget_zip_importers()
        for batch in batches:
            contents = batch.select(list(CONTENT)).to_pylist()
            marks = [fingerprint(row, lambda *shape: names.get(shape)) for row in contents]
            kept = [batch[name] for name in ("database", "table", "commit_ts")]
            yield pa.record_batch(
                [*kept, pa.array(marks, pa.string())],
                ["database", "table", "commit_ts", _FINGERPRINT],
            )

    schema = f"database string, table string, commit_ts bigint, {_FINGERPRINT} string"
    return rows.select("commit_ts", *CONTENT).mapInArrow(prints, schema)


def _times(rows: DataFrame) -> dict[Name, list[int]]:
    by_table = rows.groupBy("database", "table").agg(F.sort_array(F.collect_set("commit_ts")))
    return {Name(database, table): times for database, table, times in by_table.collect()}


def _table(events: DataFrame) -> pa.Table:
    return by_arrival(events.select(*TOLD).toArrow())
