"""The mirror: from the changelog to the tables, from one upstream instant to the next.

A step reads what the changelog has got since the last one, lets the gate say up to which instant
everything is there, and applies the rows and statements up to it. After a retry of bad messages a
step puts right what the tables had gone past (see `late`). Steps are repeated after a crash to the
same instant from the same version of the changelog, so that nothing is applied twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.feed.gate import DdlId, Gate, ddl_id
from tidegate.feed.order import in_order
from tidegate.feed.schema_cache import SchemaKey
from tidegate.feed.tables import Name
from tidegate.lake.apply import Applier
from tidegate.lake.changelog import OF_ROWS, Changelog, FreshFiles, Group, Offsets, named
from tidegate.lake.conditions import NEVER, Condition, above, equal, every, some, up_to
from tidegate.lake.format import Position
from tidegate.lake.interval import Interval
from tidegate.lake.lake import Lake
from tidegate.lake.late import NO_SCHEMA, Judgement, effects_of
from tidegate.lake.mend import LateLog, Mender, groups_of
from tidegate.lake.mysql import DatabaseServer
from tidegate.lake.plan import (
    Planner,
    Rows,
    Statement,
    Status,
    Step,
    Table,
    first_schema_change,
)
from tidegate.lake.policy import Policy, SchemaChangeRefused
from tidegate.lake.quarantine import BadMessages, Quarantine, place_of
from tidegate.lake.routes import Routes
from tidegate.lake.rows import BY_ARRIVAL, BY_COMMIT
from tidegate.lake.schemas import RowSchemas
from tidegate.lake.snapshots import Intent, MirrorState, Snapshot
from tidegate.lake.upstream_rows import check_upstream
from tidegate.model.tso import LOGICAL_BITS

MAX_STATEMENTS = 100
"""How many statements a step takes at most; an instant before the next one is as good as any."""

_REMEMBERED = 1000


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


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step did."""

    resolved_ts: int
    rows: int
    statements: int
    tables: tuple[Name, ...]
    seconds: float
    phases: Mapping[str, float]
    """Seconds of each phase: observe, plan, apply, record."""


@dataclass(slots=True)
class _Seen:
    """What has been read of the changelog beyond the last step; a restart reads it again."""

    offsets: Offsets
    statements: list[pa.Table] = field(default_factory=list)


class Mirror:
    """Moves the tables of a lake. One at a time may do so: see `lock`."""

    def __init__(
        self,
        lake: Lake,
        *,
        watermarks: bool = True,
        feed: Mapping[str, Any] | None = None,
        settings: MirrorSettings | None = None,
        boundary: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`boundary` is told when a part of a step is done: a crash there must do no harm."""
        self.lake = lake
        self.settings = settings or MirrorSettings()
        self._boundary = boundary
        found = lake.snapshots.state()
        self.state = found or MirrorState(gate=Gate(watermarks=watermarks), feed=dict(feed or {}))
        self._schemas = RowSchemas(self.state.cache)
        self._seen = _Seen(self.state.offsets)
        self._fresh = FreshFiles()
        self._retried = Quarantine(lake).last_time()
        if found is None:
            self.state.retried = self._retried
        self._unfinished = lake.snapshots.intended()
        if self._unfinished is not None and self._unfinished.step <= self.state.step:
            self._unfinished = None
        if found is not None:
            changelog = self._pinned(self._unfinished)
            self._seen.statements.append(changelog.statements_since(self.state.applied_ts))
        self._recorded = float("-inf")
        self._unrecorded = False
        self.waiting: dict[SchemaKey, int] = {}
        """How many rows wait for which schema."""
        self.changed: list[Table] = []
        """The tables that the last step has changed."""

    @property
    def gate(self) -> Gate:
        """What the feed has said of its completeness."""
        return self.state.gate

    # --- a step -----------------------------------------------------------------------------------

    def step(self, partitions: Iterable[tuple[str, int]] = ()) -> StepReport | None:
        """Moves the tables on, as far as the changelog allows; None if it does not.

        `partitions` are all those of the feed, also silent ones.
        """
        again = self._unfinished
        if self.state.retried < self._retried and (again is None or again.mends):
            report = self._mend()
            if report is not None:
                return report
        timer = _Timer()
        changelog = self._fresh.of(self._pinned(again), self._needed())
        self.gate.add_partitions(partitions)
        self._observe(changelog)
        timer.lap("observe")
        self._boundary("observed")
        target = self._target() if again is None else again.target
        if target is None:
            return None
        statements, target = self._statements(target)
        if again is None and self.settings.schema_changes is Policy.EXCEPTION:
            statements, target = self._before_schema_change(statements, target)
        interval = self._interval(target, statements)
        groups = changelog.groups(interval)
        self._schemas.learn_shapes(changelog, groups)
        lower = self._before_waiting(groups)
        if lower is not None and again is None:
            if lower <= self.state.applied_ts:
                return None
            statements, target = self._statements(lower)
            interval = self._interval(target, statements)
            groups = changelog.groups(interval)
        timer.lap("plan")
        self._boundary("planned")
        return self._apply(changelog, target, statements, interval, groups, timer)

    def _pinned(self, again: Intent | None) -> Changelog:
        changelog = self.lake.changelog
        if again is None:
            return changelog.now()
        return Changelog(self.lake.tables, changelog.identifier, again.changelog)

    def _needed(self) -> Condition:
        """All events that the tables may not have."""
        return self.state.offsets.beyond() | above("commit_ts", self.state.applied_ts)

    def _observe(self, changelog: Changelog) -> None:
        events = changelog.control_events(self._seen.offsets)
        state = self.state
        state.gate.add_partitions(self._seen.offsets.last)
        fresh = changelog.offsets_beyond(self._seen.offsets)
        state.gate.add_partitions(sorted(fresh))
        state.gate.observe(events)
        self._schemas.learn(events)
        self._seen.statements.append(events.filter(pc.equal(events["kind"], "ddl")))
        bad = self._bad(events)
        state.bad += len(bad)
        if bad and self.settings.bad_messages == "stop":
            first = bad[0]
            raise BadMessages(place_of(first), first["error"]["reason"], len(bad))
        self._seen.offsets = self._seen.offsets.advanced(fresh)

    def _bad(self, events: pa.Table) -> list[dict[str, Any]]:
        """The messages that cannot be read, without those that a retry has read since."""
        errors: list[dict[str, Any]] = events.filter(pc.equal(events["kind"], "error")).to_pylist()
        settled = Quarantine(self.lake).settled() if errors else set()
        return [row for row in errors if place_of(row) not in settled]

    def _target(self) -> int | None:
        """The instant to go to, if it is a new one."""
        state = self.state
        if not state.gate.has_watermarks:
            return state.step + 1 if self._seen.offsets != state.offsets else None
        resolved = state.gate.resolved_ts
        if resolved <= state.applied_ts:
            return None
        seconds = self.settings.max_step_seconds
        if seconds is not None:
            start = state.applied_ts or self.lake.changelog.first_ts()
            resolved = min(resolved, start + (int(seconds * 1000) << LOGICAL_BITS))
        return resolved

    def _statements(self, target: int) -> tuple[list[Statement], int]:
        """The statements up to an instant, and the instant, earlier if there are too many."""
        pending = pa.concat_tables(self._seen.statements, promote_options="default")
        if self.gate.has_watermarks:
            ts = pending["commit_ts"]
            late = pc.and_(
                pc.equal(ts, self.state.applied_ts),
                pa.array(
                    [not self.gate.has_applied(ddl_id(row)) for row in pending.to_pylist()],
                    pa.bool_(),
                ),
            )
            wanted = pc.or_(late, pc.greater(ts, self.state.applied_ts))
            pending = pending.filter(pc.and_(wanted, pc.less_equal(ts, target)))
        rows = in_order(pending, by_arrival=not self.gate.has_watermarks).to_pylist()
        if not self.gate.has_watermarks:
            done = set(self.state.done)
            rows = [row for row in rows if ddl_id(row) not in done]
            return [
                Statement(ddl_id(row), Position(target, 2 * n), row["schema"])
                for n, row in enumerate(rows, 1)
            ], target
        if len(rows) > MAX_STATEMENTS:
            target = rows[MAX_STATEMENTS]["commit_ts"] - 1
            rows = [row for row in rows if row["commit_ts"] <= target] or rows
            target = max(target, rows[-1]["commit_ts"])
        counts: dict[int, int] = {self.state.applied_ts: len(self.gate.applied_ddl)}
        found = []
        for row in rows:
            ts = row["commit_ts"]
            counts[ts] = counts.get(ts, 0) + 1
            found.append(Statement(ddl_id(row), Position(ts, counts[ts]), row["schema"]))
        return found, target

    def _before_schema_change(
        self, statements: list[Statement], target: int
    ) -> tuple[list[Statement], int]:
        """The statements and the instant before a table changes; raises where there is none."""
        state = self.state
        routes = self.settings.routes
        found = first_schema_change(statements, state.tables, state.book, routes)
        if found is None:
            return statements, target
        statement, name = found
        before = statement.id.commit_ts - 1
        if not self.gate.has_watermarks or before <= state.applied_ts:
            raise SchemaChangeRefused(name, statement.id.query)
        return self._statements(before)

    def _interval(self, target: int, statements: list[Statement]) -> Interval:
        cuts = tuple(statement.id.commit_ts for statement in statements)
        applied, beyond = self.state.applied_ts, self.state.offsets.beyond()
        if not self.gate.has_watermarks:
            return Interval(OF_ROWS & beyond, cuts, order=BY_ARRIVAL)
        closed = some(*(named(*each) for each in self.gate.closed_tables))
        then = equal("commit_ts", applied)
        fresh = above("commit_ts", applied) & up_to("commit_ts", target)
        rows = OF_ROWS & (fresh | every(then, beyond, ~closed))
        return Interval(rows, cuts, applied, OF_ROWS & then & ~beyond)

    def _before_waiting(self, groups: list[Group]) -> int | None:
        """The last instant before the first row whose schema has not come yet; None: none waits."""
        self.waiting = {}
        first = None
        for group in groups:
            key = self._schemas.missing(group)
            if key is not None:
                self.waiting[key] = self.waiting.get(key, 0) + group.rows
                first = group.first_ts if first is None else min(first, group.first_ts)
        return None if first is None else first - 1

    # --- what came late ---------------------------------------------------------------------------

    def _mend(self) -> StepReport | None:
        """Takes in what a retry could read; None if the tables had not gone past any of it."""
        timer, state, again = _Timer(), self.state, self._unfinished
        until = self._retried if again is None else again.retried
        places = Quarantine(self.lake).read_since(state.retried, until)
        changelog = self._pinned(again)
        log = LateLog(changelog, places, ~state.offsets.beyond().spark())
        events = log.control_events()
        state.gate.observe(events)
        self._schemas.learn(events)
        ddl = events.filter(pc.equal(events["kind"], "ddl"))
        is_late = pc.less(ddl["commit_ts"], state.applied_ts)
        self._seen.statements.append(ddl.filter(pc.invert(is_late)))
        timer.lap("observe")
        judged = self._judge(log, ddl.filter(is_late))
        if not (judged.since or judged.created or judged.stopped):
            state.retried = until
            state.step += 1  # what `settle` records is told from the last step
            self._unrecorded = True
            return None
        rows = log.since(judged.since, self._applied_ts())
        groups = self._readable(changelog, log, judged, groups_of(rows))
        timer.lap("plan")
        self._boundary("planned")
        self._intend(state.applied_ts, changelog, until, mends=True)
        before, steps = self._places(), self._mending(judged, groups)
        self._carry_out(steps, partial(Mender, rows=rows), changelog, self._untaken())
        timer.lap("apply")
        state.retried = until
        count = sum(group.rows for group in groups if group.late)
        return self._end_step(steps, before, count, timer)

    def _applied_ts(self) -> int | None:
        """Up to which instant rows are taken; None: not by their commit_ts."""
        return self.state.applied_ts if self.gate.has_watermarks else None

    def _untaken(self) -> Interval:
        """No rows of the changelog; only the order counts."""
        order = BY_COMMIT if self.gate.has_watermarks else BY_ARRIVAL
        return Interval(NEVER, order=order)

    def _judge(self, log: LateLog, late_ddl: pa.Table) -> Judgement:
        """What rows are late, too, and what is to be done about all of it."""
        state, applied = self.state, self.state.applied_ts
        times = log.times(self._applied_ts())
        by_text = not self.gate.has_watermarks
        late_ids = [ddl_id(row) for row in in_order(late_ddl, by_arrival=by_text).to_pylist()]
        firsts = [found[0] for found in times.values()] + [each.commit_ts for each in late_ids]
        done: list[DdlId] = []
        if firsts:
            others = log.statements_since(min(firsts))
            others = others.filter(pc.less_equal(others["commit_ts"], applied))
            done = [ddl_id(row) for row in in_order(others, by_arrival=by_text).to_pylist()]
        judged = Judgement(
            state.tables,
            state.book,
            self.settings.routes,
            effects_of(done, state.book, times),
            self.lake.snapshots.kept_since(),
            applied,
        )
        keys = {each.key(by_text=by_text) for each in done}
        for each in late_ids:
            # If it is among them, another partition's copy could be read in time.
            if each.key(by_text=by_text) not in keys:
                judged.statement(each)
        for name, found in times.items():
            judged.rows(name, found)
        return judged

    def _readable(
        self, changelog: Changelog, log: LateLog, judged: Judgement, groups: list[Group]
    ) -> list[Group]:
        """The rows whose schemas are known; tables of others are stopped."""
        self._schemas.learn_shapes(changelog, groups)
        if any(map(self._schemas.missing, groups)):  # forgotten: the changelog still has it
            self._schemas.learn(log.schemas_of(judged.since))
        for key in filter(None, map(self._schemas.missing, groups)):
            judged.stop(Name(key.database, key.table), NO_SCHEMA)
        gone = {name.folded for name in judged.stopped}
        return [group for group in groups if Name(group.database, group.table).folded not in gone]

    def _mending(self, judged: Judgement, groups: list[Group]) -> list[Step]:
        """Tables that were not made in time, and rows, at the instant that was reached."""
        state = self.state
        end = Position(state.step + 1, 1)
        if self.gate.has_watermarks:
            end = Position(state.applied_ts, len(self.gate.applied_ddl), state.step + 1)
        planner = self._planner(groups, end)
        start = Position(min([end.ts, *(each.commit_ts for each in judged.created)]))
        planner.plan([Statement(each, start) for each in judged.created], [])
        return planner.plan([], groups)

    # --- doing it ---------------------------------------------------------------------------------

    def _apply(
        self,
        changelog: Changelog,
        target: int,
        statements: list[Statement],
        interval: Interval,
        groups: list[Group],
        timer: _Timer,
    ) -> StepReport:
        state = self.state
        if groups or statements:
            self._intend(target, changelog, state.retried)
        before = self._places()
        end = Position(target)
        if not self.gate.has_watermarks:
            end = Position(target, 2 * len(statements) + 1)
        planner = self._planner(groups, end)
        steps = planner.plan(statements, groups)
        self._carry_out(steps, Applier, changelog, interval)
        timer.lap("apply")
        rows = sum(step.count for step in steps if isinstance(step, Rows))
        self._mark(target, statements, planner, groups)
        state.offsets = self._seen.offsets
        idle = time.monotonic() - self._recorded
        worth = bool(steps or statements) or idle > self.settings.heartbeat
        return self._end_step(steps, before, rows, timer, statements=len(statements), worth=worth)

    def _end_step(
        self,
        steps: list[Step],
        before: Mapping[Name, str],
        rows: int,
        timer: _Timer,
        *,
        statements: int = 0,
        worth: bool = True,
    ) -> StepReport:
        """Records what was done, if it is worth a commit."""
        state, again = self.state, self._unfinished
        # A step that was cut off keeps its number: steps without changes may have gone before it.
        state.step = state.step + 1 if again is None else again.step
        state.rows += rows
        changed = self._changed(steps, before)
        self._unrecorded = True
        if worth:
            self._record(changed)
        self._unfinished = None
        timer.lap("record")
        return StepReport(
            resolved_ts=state.applied_ts,
            rows=rows,
            statements=statements,
            tables=tuple(each.name for each in changed),
            seconds=timer.total(),
            phases=timer.laps,
        )

    def _intend(
        self, target: int, changelog: Changelog, retried: int, *, mends: bool = False
    ) -> None:
        """Writes down what is about to be done, unless that was done and the step cut off."""
        if self._unfinished is not None:
            self.state.retried = self._unfinished.retried
            return
        assert changelog.version is not None
        policy = self._policy.value
        intent = Intent(self.state.step + 1, target, changelog.version, policy, retried, mends)
        self.lake.snapshots.intend(intent)
        self._boundary("intended")

    @property
    def _policy(self) -> Policy:
        """That of a step that was cut off, if there is one: it is not done in another way."""
        again = self._unfinished
        return self.settings.schema_changes if again is None else Policy(again.policy)

    def _places(self) -> dict[Name, str]:
        return {table.name: table.identifier for table in self.state.tables.values()}

    def _planner(self, groups: list[Group], end: Position) -> Planner:
        return Planner(
            self.state.tables,
            self.state.book,
            *self._schemas.layouts(groups),
            end,
            self._schemas.keys_of_shapes(groups),
            self.settings.routes,
            completes=self.settings.upstream is not None,
            policy=self._policy,
            zone=self.settings.time_zone,
        )

    def _carry_out(
        self,
        steps: list[Step],
        applier_of: Callable[..., Applier],
        changelog: Changelog,
        interval: Interval,
    ) -> None:
        lake = self.lake
        self._look_upstream(steps)
        applier = applier_of(
            lake.tables,
            changelog,
            interval,
            zone=self.settings.time_zone,
            threads=self.settings.threads,
            located=None if self._unfinished is None else lake.tables.locate(),
            routes=self.settings.routes,
            upstream=self.settings.upstream,
            on_step=lambda step: self._boundary(type(step).__name__.lower()),
        )
        applier.run(steps)
        self._boundary("applied")

    def _look_upstream(self, steps: list[Step]) -> None:
        """Asks the upstream, where it is needed, what it can do: now rather than in the middle."""
        incomplete = [step for step in steps if isinstance(step, Rows) and step.incomplete]
        upstream = self.settings.upstream
        if incomplete and upstream is not None and not check_upstream(upstream):
            for step in incomplete:
                step.table.eventual = True

    def _record(self, changed: list[Snapshot]) -> None:
        self.lake.snapshots.record(self.state, changed)
        self._recorded = time.monotonic()
        self._unrecorded = False
        self._boundary("recorded")

    def settle(self) -> None:
        """Records the instant reached if that was not worth a commit yet."""
        if self._unrecorded:
            self._record([])

    def _mark(
        self, target: int, statements: list[Statement], planner: Planner, groups: list[Group]
    ) -> None:
        state = self.state
        ids = [statement.id for statement in statements]
        if self.gate.has_watermarks:
            state.gate.mark_applied(
                target, ids, [(name.database, name.table) for name in planner.touched]
            )
            state.cache.forget(target)
        else:
            last = max(
                [group.first_ts for group in groups] + [each.commit_ts for each in ids] + [0]
            )
            state.gate.mark_applied(max(last, state.applied_ts))
            state.done = [*state.done, *ids][-_REMEMBERED:]
        pending = pa.concat_tables(self._seen.statements, promote_options="default")
        keep = pc.greater_equal(pending["commit_ts"], state.applied_ts)
        self._seen.statements = [
            pending.filter(keep) if self.gate.has_watermarks else pending.slice(0, 0)
        ]

    def _changed(self, steps: list[Step], before: Mapping[Name, str]) -> list[Snapshot]:
        """The tables that are no longer as they were recorded: changed, renamed, new, gone."""
        state = self.state
        touched = {id(step.table) for step in steps}
        self.changed = [
            table for table in state.tables.values() if id(table) in touched and table.identifier
        ]
        found = [self._snapshot(table) for table in self.changed]
        there = {table.name for table in state.tables.values() if table.identifier}
        for name in before:
            if name not in there:
                found.append(Snapshot(state.applied_ts, _now(), name, "", "", None))
        return found

    def _snapshot(self, table: Table) -> Snapshot:
        version = self.lake.tables.version(table.identifier)
        return Snapshot(
            self.state.applied_ts, _now(), table.name, table.identifier, table.uid, version
        )

    def stopped(self) -> list[Table]:
        """The tables that are no longer mirrored, with the reason."""
        return [table for table in self.state.tables.values() if table.status is Status.STOPPED]


class _Timer:
    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = round(now - self._last, 3)
        self._last = now

    def total(self) -> float:
        return round(time.monotonic() - self._start, 3)


def _now() -> datetime:
    return datetime.now(UTC)
