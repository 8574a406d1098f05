"""The time of a workload: commit timestamps that depend on nothing but how many changes there were.

Time runs by the number of changes, `rate` of them to a second. Every whole second is a watermark.
The counter of a commit timestamp begins at 1, so that no commit shares the timestamp of a
watermark, whose counter is 0.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from tidegate.model.tso import physical_ms, tso_from_ms

START_MS = 1_767_225_600_000  # 2026-01-01 00:00:00 UTC
WATERMARK_MS = 1000
DEFAULT_RATE = 2000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock:
    """Gives the timestamps of transactions one after the other."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._last = tso_from_ms(START_MS)
        self._next_mark = START_MS + WATERMARK_MS

    def next(self, changes: int) -> int:
        """When the next transaction commits, after so many changes."""
        return max(self._last, tso_from_ms(self._ms(changes))) + 1

    def tick(self, changes: int) -> int:
        """The timestamp of the transaction that now begins."""
        self._last = self.next(changes)
        return self._last

    def marks(self, commit_ts: int) -> list[int]:
        """The watermarks between the last transaction and the one at `commit_ts`."""
        found = []
        while self._next_mark <= physical_ms(commit_ts):
            found.append(tso_from_ms(self._next_mark))
            self._next_mark += WATERMARK_MS
        return found

    def last_mark(self) -> int:
        """The watermark that follows the last transaction."""
        return tso_from_ms(self._next_mark)

    def _ms(self, changes: int) -> int:
        return START_MS + changes * 1000 // self._rate


@lru_cache(maxsize=4096)
def datetime_text(ms: int) -> str:
    """MySQL's text of an instant in UTC, to the second."""
    return f"{_EPOCH + timedelta(milliseconds=ms):%Y-%m-%d %H:%M:%S}"


def datetime_ms_text(ms: int) -> str:
    """MySQL's text of an instant in UTC as DATETIME(3)."""
    return f"{datetime_text(ms - ms % 1000)}.{ms % 1000:03}"
