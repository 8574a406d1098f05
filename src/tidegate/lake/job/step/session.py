"""What the parts of a mirror share: the lake, the settings, the state, and what was read beyond it.

The state is what was recorded last. Everything else here is lost in a crash and is read again from
the changelog and the record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa

from tidegate.changefeed.receive.gate import Gate
from tidegate.changefeed.receive.topic_use import FeedTopics
from tidegate.lake.apply.policy import Policy
from tidegate.lake.changelog.changelog import Changelog, Offsets
from tidegate.lake.changelog.pending import FreshFiles
from tidegate.lake.changelog.row_schemas import RowSchemas
from tidegate.lake.lake import Lake
from tidegate.lake.lease import SECONDS as LEASE_SECONDS
from tidegate.lake.record import Intent, MirrorState
from tidegate.lake.routes import Routes
from tidegate.model import LakeError
from tidegate.sql.tables import Name
from tidegate.upstream.server import DatabaseServer


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """How a mirror works; only `schema_changes` changes what the tables hold in the end.

    `bad_messages` is `stop` or `continue`. `time_zone` is that of the feed's TIMESTAMP values.
    """

    time_zone: str = "UTC"
    threads: int = 4
    bad_messages: str = "stop"
    max_step_seconds: float | None = None
    """Upstream time that one step covers at most; None: all that is there."""
    routes: Routes = field(default_factory=Routes)
    """Which tables, under which names; these must stay as they are for the life of a lake."""
    upstream: DatabaseServer | None = None
    """Where rows are completed of which the feed carries only the key."""
    schema_changes: Policy = Policy.EVOLVE
    """What is done about schema changes of tables that are mirrored."""
    heartbeat: float = 30.0
    """Seconds after which an instant without changes is recorded nevertheless."""
    maintain_seconds: float | None = 3600.0
    """How often a mirror that follows its feed maintains the lake; None: never."""
    keep: timedelta = timedelta(days=7)
    """How long instants are kept then."""
    lease_seconds: float = LEASE_SECONDS
    """How long the lake stays this mirror's after it was heard of last."""
    topics: FeedTopics = field(default_factory=FeedTopics)
    """What the changefeed says about its topics and partitions."""


@dataclass(slots=True)
class Unapplied:
    """What has been read of the changelog beyond the last step; a restart reads it again."""

    offsets: Offsets
    statements: list[pa.Table] = field(default_factory=list)
    tables: set[Name] = field(default_factory=set)
    """Tables with rows that are not applied yet, in partitions that had said nothing before."""
    changelog: int | None = None
    """The version of the changelog that was read."""

    def all_statements(self) -> pa.Table:
        """The statements as one table."""
        return pa.concat_tables(self.statements, promote_options="default")


class MirrorSession:
    """A mirror of one lake between its start and its end."""

    def __init__(
        self,
        lake: Lake,
        settings: MirrorSettings,
        boundary: Callable[[str], None],
        *,
        watermarks: bool,
        feed: Mapping[str, Any],
    ) -> None:
        """`watermarks` and `feed` are for a lake that has no state yet."""
        self.lake = lake
        self.settings = settings
        self.boundary = boundary
        recorded = lake.snapshots.state()
        self.state = recorded or MirrorState(gate=Gate(watermarks=watermarks), feed=dict(feed))
        self.schemas = RowSchemas(self.state.cache)
        self.seen = Unapplied(self.state.offsets)
        self.fresh = FreshFiles()
        """The files of the changelog that may have what the tables have not."""
        self.retried = lake.quarantine.last_time()
        """The time of the last retry of bad messages."""
        if recorded is None:
            self.state.retried = self.retried
        self.unfinished: Intent | None = lake.snapshots.intended()
        """A step that was begun and cut off: it is finished before anything else is done."""
        if self.unfinished is not None and self.unfinished.step <= self.state.step:
            self.unfinished = None
        if self.unfinished is not None and self.unfinished.reload:
            raise LakeError(
                "A reload was cut off while it put its tables in place",
                "Run `tidegate reload` again with the same tables, which finishes it",
            )
        self.stopped: list[Name] = []
        """Tables that were stopped before the plan of the step was made."""
        if recorded is not None:
            statements = self.pinned_changelog().statements_since(self.state.applied_ts)
            self.seen.statements.append(statements)

    @property
    def gate(self) -> Gate:
        """What the feed has said of its completeness."""
        return self.state.gate

    @property
    def row_limit_ts(self) -> int | None:
        """Up to which instant rows are taken; None: not by their commit_ts."""
        return self.state.applied_ts if self.gate.has_watermarks else None

    @property
    def policy(self) -> Policy:
        """That of a step that was cut off, if there is one: it is not done in another way."""
        again = self.unfinished
        return self.settings.schema_changes if again is None else Policy(again.policy)

    def pinned_changelog(self) -> Changelog:
        """The changelog as it is now, or as the step that was cut off had it."""
        changelog = self.lake.changelog
        if self.unfinished is None:
            return changelog.now()
        return changelog.at(self.unfinished.changelog)


class StepTimer:
    """The seconds of each phase of a step."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Ends a phase."""
        now = time.monotonic()
        self.laps[name] = round(now - self._last, 3)
        self._last = now

    def total(self) -> float:
        """The seconds of all phases."""
        return round(time.monotonic() - self._start, 3)
