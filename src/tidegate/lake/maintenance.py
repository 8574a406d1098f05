"""Maintenance of a lake: compacts files, and forgets what is older than its retention.

Every instant since then can be read as before: of each table the version stays that was its last
one at that time, whenever it was written. A table that was dropped goes for good when none of these
instants shows it. No step of a mirror may be under way meanwhile; reading the feed may go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from tidegate.lake.changelog.retention import Expiry, TakenEvents, compact_changelog
from tidegate.lake.compaction import CompactionReport, compact_log
from tidegate.lake.formats.base import OWN_DATABASE
from tidegate.lake.formats.log_table import LogTable
from tidegate.lake.lake import Lake
from tidegate.lake.quarantine import Quarantine
from tidegate.lake.record import MirrorState
from tidegate.lake.storage.predicates import is_null, up_to
from tidegate.model import LakeError
from tidegate.model.sql import parts_of
from tidegate.model.tso import tso_from_datetime
from tidegate.sql.tables import Name

_FIRST = datetime.fromtimestamp(0, UTC)
"""No TSO tells an earlier time."""
LOG_SECONDS = 600.0
"""How long versions of logs are kept: of those only the last ones are ever read."""
_MARGIN_SECONDS = 0.5
"""What may pass between reckoning how long versions are kept and forgetting the others."""


@dataclass(frozen=True, slots=True)
class Maintained:
    """What was done to a table, by name."""

    table: str
    done: Mapping[str, int]
    seconds: float


def maintain(
    lake: Lake, keep: timedelta, on_table: Callable[[str], None] = lambda name: None
) -> Iterator[Maintained]:
    """Does it, table by table, the lake's own at the end; `on_table` is told before each."""
    state = lake.snapshots.state()
    found = obstacle(lake, state)
    if found is not None:
        raise found
    if state is None:
        return
    now = datetime.now(UTC)
    start = max(now - keep, _FIRST)
    since = min(state.applied_ts, tso_from_datetime(start))
    written = _oldest_needed(lake, since)
    # First, for whoever reads meanwhile, or after a crash: an instant is told to be gone.
    lake.snapshots.keep_since(since)
    for snapshot in sorted(lake.snapshots.at(), key=lambda found: found.name):
        oldest = min(written.get(snapshot.name, datetime.min.replace(tzinfo=UTC)), start)
        on_table(str(snapshot.name))
        # Counted from now: the tables before this one have taken their time.
        passed = datetime.now(UTC)
        seconds = (passed - oldest).total_seconds() if oldest.year > 1 else passed.timestamp()
        work = partial(
            lake.tables.maintain, snapshot.identifier, keep_seconds=seconds + _MARGIN_SECONDS
        )
        yield _maintained(str(snapshot.name), work)
    yield from _remove_dropped(lake, since)
    keep_seconds = min(LOG_SECONDS, (now - start).total_seconds())
    for log, compact in _logs(lake, state, since):
        name = f"{OWN_DATABASE}.{parts_of(log.identifier)[-1]}"
        on_table(name)
        yield _maintained(name, partial(_maintain_log, lake, log, compact, keep_seconds))


def _logs(
    lake: Lake, state: MirrorState, since: int
) -> list[tuple[LogTable, Callable[[], CompactionReport]]]:
    """The logs of a lake, and what compacts each of them and drops what has expired."""
    quarantine = Quarantine(lake).log
    expiry = Expiry(min(since, state.applied_ts) - 1, state.offsets)
    return [
        (lake.changelog.log, lambda: compact_events(lake, state, all_small=True, expiry=expiry)),
        (lake.snapshots.log, lambda: lake.snapshots.forget(since)),
        (quarantine, lambda: compact_log(lake.spark, quarantine, all_small=True)),
    ]


def compact_events(
    lake: Lake, state: MirrorState, *, all_small: bool = False, expiry: Expiry | None = None
) -> CompactionReport:
    """Compacts the changelog of a lake whose tables are at a state."""
    applied_ts = state.applied_ts if state.gate.has_watermarks else None
    taken = TakenEvents(state.offsets, applied_ts, state.changelog)
    return compact_changelog(lake.spark, lake.changelog, taken, all_small=all_small, expiry=expiry)


def _maintain_log(
    lake: Lake, log: LogTable, compact: Callable[[], CompactionReport], keep_seconds: float
) -> Mapping[str, int]:
    report = compact()
    done = lake.tables.maintain_log(log.identifier, keep_seconds=keep_seconds)
    return {
        "data files compacted": report.replaced,
        "data files written": report.written,
        **done,
    }


def obstacle(lake: Lake, state: MirrorState | None) -> LakeError | None:
    """Why it cannot be done now, if so."""
    intended = lake.snapshots.intended()
    if intended is not None and intended.step > (0 if state is None else state.step):
        return LakeError(
            "A step of the mirror was cut off", "Run `tidegate mirror --once` first, to finish it"
        )
    if state is not None and Quarantine(lake).count_since(state.retried):
        return LakeError(
            "The tables do not have yet what a retry of quarantined messages could read",
            "Run `tidegate mirror --once` first, to put them right",
        )
    return None


def age_of_versions(lake: Lake, count: int) -> timedelta | None:
    """How long ago some table had so many versions fewer than now; None: no table has so many."""
    walls: dict[Name, list[tuple[int, datetime]]] = {}
    for row in lake.snapshots.rows_of_tables(~is_null("version")):
        walls.setdefault(Name(row.database, row.table), []).append((row.step, row.wall))
    times = [sorted(each)[-count][1] for each in walls.values() if len(each) >= count]
    return datetime.now(UTC) - max(times) if times else None


def _maintained(name: str, work: Callable[[], Mapping[str, int]]) -> Maintained:
    started = time.monotonic()
    done = work()
    return Maintained(name, done, round(time.monotonic() - started, 3))


def _remove_dropped(lake: Lake, since: int) -> Iterator[Maintained]:
    retired = [found for found in lake.tables.locate() if found.retired]
    needed = lake.snapshots.needed(since) if retired else set()
    for found in retired:
        if found.uid not in needed:
            started = time.monotonic()
            schema = lake.tables.upstream_schema(found.identifier)
            lake.tables.drop(found.identifier)
            done, seconds = {"dropped tables removed": 1}, time.monotonic() - started
            yield Maintained(f"{schema.database}.{schema.table}", done, round(seconds, 3))


def _oldest_needed(lake: Lake, since: int) -> dict[Name, datetime]:
    """When the version before the one that each table had at `since` was recorded.

    What it had then was written after that; without such a version nothing may go.
    """
    walls: dict[Name, list[tuple[int, datetime]]] = {}
    for row in lake.snapshots.rows_of_tables(up_to("resolved_ts", since)):
        walls.setdefault(Name(row.database, row.table), []).append((row.step, row.wall))
    return {name: sorted(each)[-2][1] for name, each in walls.items() if len(each) > 1}
