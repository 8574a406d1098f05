"""Upkeep of a lake: small files are joined, and what is older than it is to keep is forgotten.

Every instant since then can be read as before: of each table the version stays that was its last
one at that time, whenever it was written. A table that was dropped goes for good when none of these
instants shows it. No step of a mirror may be under way meanwhile; reading the feed may go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import functions as F
from pyspark.sql.window import Window

from tidegate.changefeed.receive.gate import ROW_KINDS
from tidegate.lake.formats.base import OWN_DATABASE
from tidegate.lake.lake import Lake
from tidegate.lake.quarantine import Quarantine
from tidegate.lake.record import MirrorState
from tidegate.lake.storage.predicates import equal, every, some, up_to
from tidegate.model import LakeError
from tidegate.model.sql import parts_of
from tidegate.model.tso import tso_from_datetime
from tidegate.sql.tables import Name

_FIRST = datetime.fromtimestamp(0, UTC)
"""No TSO tells an earlier time."""
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
        maintain_table = lake.tables.maintain
        yield _one(
            maintain_table, snapshot.identifier, str(snapshot.name), seconds + _MARGIN_SECONDS
        )
    lake.snapshots.forget(since)
    yield from _remove_dropped(lake, since)
    _forget_changes(lake, state, since)
    logs = lake.changelog.log, lake.snapshots.log, Quarantine(lake).log
    for identifier in (log.identifier for log in logs):
        name = f"{OWN_DATABASE}.{parts_of(identifier)[-1]}"
        on_table(name)
        yield _one(lake.tables.maintain_log, identifier, name, (now - start).total_seconds())


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
    rows = lake.tables.read(lake.snapshots.identifier).where(F.col("version").isNotNull())
    newest_first = Window.partitionBy("database", "table").orderBy(F.col("step").desc())
    numbered = rows.withColumn("_number", F.row_number().over(newest_first))
    (found,) = numbered.where(F.col("_number") == count).agg(F.max("wall")).collect()
    return None if found[0] is None else datetime.now(UTC) - found[0].replace(tzinfo=UTC)


def _one(
    work: Callable[..., Mapping[str, int]], identifier: str, name: str, keep_seconds: float
) -> Maintained:
    started = time.monotonic()
    done = work(identifier, keep_seconds=keep_seconds)
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
    rows = lake.tables.read(lake.snapshots.identifier).where(F.col("database").isNotNull())
    grouped = rows.where(F.col("resolved_ts") <= since).groupBy("database", "table")
    last_two = F.slice(F.reverse(F.array_sort(F.collect_list(F.struct("step", "wall")))), 1, 2)
    found = grouped.agg(last_two.alias("last")).collect()
    return {
        Name(row["database"], row["table"]): row["last"][1]["wall"].replace(tzinfo=UTC)
        for row in found
        if len(row["last"]) == 2
    }


def _forget_changes(lake: Lake, state: MirrorState, since: int) -> None:
    """Rows, statements and watermarks before an instant that every table has passed.

    Those beyond the applied offsets stay, whatever their commit_ts: a feed without watermarks is
    applied by arrival, and a partition may have been behind the others. Shapes, schemas and bad
    messages stay: they are few, and later rows may refer to them.
    """
    kinds = some(*(equal("kind", kind) for kind in (*ROW_KINDS, "ddl", "watermark")))
    applied = ~state.offsets.beyond()
    past = up_to("commit_ts", min(since, state.applied_ts) - 1)
    condition = every(past, kinds, applied).sql()
    gone = lake.changelog.read().where(condition).limit(1).count()
    if gone:
        lake.tables.delete_from_log(lake.changelog.log.identifier, condition)
