"""Which rows of the changelog a step of the mirror takes, and in what order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidegate.lake.conditions import NEVER, Condition, above, equal, every, up_to
from tidegate.lake.rows import BY_COMMIT


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
    order: str = BY_COMMIT

    @property
    def late(self) -> Condition:
        """Whether a row came after its instant was applied."""
        return NEVER if self.late_ts is None else equal("commit_ts", self.late_ts)

    def segment(self) -> Column:
        """The number of statements before a row; one at the row's own commit_ts is not."""
        passed = [(F.col("commit_ts") > cut).cast("int") for cut in self.cuts]
        return reduce(Column.__add__, passed, F.lit(0))

    def within(self, first: int, last: int) -> Condition:
        """The rows of these segments; as ranges, which files' statistics answer."""
        parts = [self.rows]
        if first > 0:
            parts.append(above("commit_ts", self.cuts[first - 1]))
        if last < len(self.cuts):
            parts.append(up_to("commit_ts", self.cuts[last]))
        return every(*parts)
