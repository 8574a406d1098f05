"""Upstream tables and their mirrors: where these are, and what they promise their readers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from tidegate.model import TableSchema
from tidegate.sql.tables import Name

LACKED = "Rows of that instant were read only later. They are in the table at {until} and after it."

MOST_REASONS = 8
"""How many reasons are kept of why a table is not as its upstream."""


class Status(Enum):
    """Whether a table follows the feed."""

    MIRRORED = "mirrored"
    STOPPED = "stopped"  # what the feed says of it cannot be mirrored


class State(StrEnum):
    """What a table promises its readers; docs/guarantees.md has one row for each."""

    MIRRORED = "mirrored"  # equal to the upstream at every snapshot
    EVENTUAL = "eventual"  # equal once the feed is quiet
    DIVERGED = "diverged"  # differs in the ways that its reasons name
    INCOMPLETE = "incomplete"  # lacks rows that were there before the feed began
    STOPPED = "stopped"  # no longer follows the feed


@dataclass(slots=True)
class Table:
    """An upstream table and its mirror: where that is, and how it stands."""

    name: Name
    schema: TableSchema
    identifier: str = ""
    uid: str = ""
    status: Status = Status.MIRRORED
    reason: str = ""
    since: int = 0
    """When the table was stopped."""
    eventual: bool = False
    """Whether rows were completed from an upstream that shows them only as they are now."""
    upstream: TableSchema | None = None
    """The table as it is upstream, where the mirror has other columns or another order of them."""
    diverged: tuple[str, ...] = ()
    """Why the table is not exactly its upstream, in sentences."""
    guessed: bool = False
    """Whether a value had to be guessed; otherwise the user's policy has made it diverge."""
    missing: str = ""
    """Why rows from before the feed are missing; empty if none are."""
    gone: bool = False
    """Whether the upstream has dropped the table, and the policy keeps it."""
    lacked: tuple[int, int] | None = None
    """From which instant up to which, that one excluded, recorded versions lack what came late."""

    @property
    def sent(self) -> TableSchema:
        """The schema of the rows that the feed sends."""
        return self.upstream or self.schema

    def stop(self, reason: str, since: int) -> None:
        """Says that the table no longer follows the feed."""
        self.status, self.reason, self.since = Status.STOPPED, reason, since

    def diverge(self, reason: str, *, guessed: bool = False) -> None:
        """Says that the table is no longer exact, by the policy or because a value is a guess."""
        self.guessed = self.guessed or guessed
        if reason not in self.diverged and len(self.diverged) < MOST_REASONS:
            self.diverged = (*self.diverged, reason)

    def state(self, eventual: bool = False) -> State:
        """What the table promises; `eventual` says that its feed has no watermarks."""
        if self.status is Status.STOPPED:
            return State.STOPPED
        if self.guessed:
            return State.DIVERGED
        if self.missing:
            return State.INCOMPLETE
        if self.diverged:
            return State.DIVERGED
        return State.EVENTUAL if eventual or self.eventual else State.MIRRORED

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the table may differ from its upstream, in sentences; the gravest first."""
        return tuple(filter(None, (self.reason, self.missing, *self.diverged)))

    @property
    def is_exact(self) -> bool:
        """Whether the table holds what the feed and the user's policy make of it, and no less."""
        return self.status is Status.MIRRORED and not self.missing and not self.guessed

    def lack(self, first: int, until: int) -> None:
        """Says that versions since an instant lack what has come only now."""
        since = first if self.lacked is None else min(first, self.lacked[0])
        self.lacked = since, until

    def lacked_at(self, ts: int | None) -> str:
        """What the version of an instant lacks, as a sentence, or nothing; None is now."""
        if ts is None or self.lacked is None or not self.lacked[0] <= ts < self.lacked[1]:
            return ""
        return LACKED.format(until=self.lacked[1])


Tables = dict[tuple[str, str], Table]
