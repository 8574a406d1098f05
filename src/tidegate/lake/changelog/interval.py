"""Which rows of the changelog a step of the mirror takes, and in what order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidegate.changefeed.receive.order import BY_ARRIVAL, BY_COMMIT
from tidegate.changefeed.receive.release import Release, Span
from tidegate.lake.storage.predicates import (
    NEVER,
    Condition,
    above,
    equal,
    every,
    of_tables,
    up_to,
)


@dataclass(frozen=True, slots=True)
class RowBounds:
    """Rows from after an instant up to another, and those at the first one that came beyond.

    Without instants, all rows beyond. `beyond` is the last offset known of each partition, and
    `closed` are the tables of which rows at the first instant do not count, as `Span.but` has them.
    Rows at or before `loaded` do not count at all.
    """

    beyond: Mapping[tuple[str, int], int]
    after: int | None = None
    until: int | None = None
    closed: frozenset[tuple[str, str]] = frozenset()
    loaded: int = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """Rows that meet a condition, cut where statements are.

    `cuts` are the commit_ts of the statements: rows of segment n come after n of them. Rows of
    `late_ts`, the last instant, arrived after it was applied; `applied` are those that were there
    in time.
    """

    rows: Condition
    cuts: tuple[int, ...] = ()
    late_ts: int | None = None
    applied: Condition = NEVER
    order: tuple[str, ...] = BY_COMMIT
    bounds: RowBounds | None = None
    """The same as `rows`, where it can be said so; summaries of files answer it."""

    @classmethod
    def released(
        cls,
        release: Release,
        rows: Condition,
        beyond: Condition,
        known: Mapping[tuple[str, int], int],
        cuts: Iterable[int],
    ) -> Interval:
        """The row changes (`rows`) that are released.

        Those not `beyond` have been read before; `known` says the same as offsets.
        """
        loaded = release.loaded_ts
        if release.by_arrival:
            bounds = RowBounds(known, loaded=loaded)
            wanted = beyond if not loaded else beyond & above("commit_ts", loaded)
            return cls(rows & wanted, tuple(cuts), order=BY_ARRIVAL, bounds=bounds)
        then = equal("commit_ts", release.applied_ts)
        wanted = meeting(release.fresh) | every(meeting(release.again), beyond)
        bounds = RowBounds(known, release.applied_ts, release.until, release.closed, loaded)
        applied = rows & then & ~beyond
        return cls(rows & wanted, tuple(cuts), release.applied_ts, applied, bounds=bounds)

    @property
    def late(self) -> Condition:
        """Whether a row came after its instant was applied."""
        return NEVER if self.late_ts is None else equal("commit_ts", self.late_ts)

    def segment(self) -> Column:
        """The number of statements before a row; one at the row's own commit_ts is not."""
        passed = [(F.col("commit_ts") > cut).cast("int") for cut in self.cuts]
        return reduce(Column.__add__, passed, F.lit(0))

    def within(self, first: int, last: int) -> Condition:
        """The rows of these segments."""
        return every(self.rows, self.between(first, last))

    def between(self, first: int, last: int) -> Condition:
        """Whether a row is of these segments; as ranges, which files' statistics answer."""
        parts = []
        if first > 0:
            parts.append(above("commit_ts", self.cuts[first - 1]))
        if last < len(self.cuts):
            parts.append(up_to("commit_ts", self.cuts[last]))
        return every(*parts)


def meeting(span: Span) -> Condition:
    """Whether an event is of a span."""
    parts = [above("commit_ts", span.above), up_to("commit_ts", span.up_to)]
    if span.source is not None:
        parts += [equal("topic", span.source.topic), equal("partition", span.source.partition)]
    if span.but:
        parts.append(~of_tables(span.but))
    return every(*parts)
