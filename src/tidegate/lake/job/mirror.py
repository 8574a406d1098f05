"""The mirror: from the changelog to the tables, from one upstream instant to the next.

A step reads what the changelog has got since the last one, lets the gate say up to which instant
everything is there, and applies the rows and statements up to it. After a retry of bad messages a
step puts right what the tables had gone past (see `late`). Steps are repeated after a crash to the
same instant from the same version of the changelog, so that nothing is applied twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.changefeed.receive.gate import Gate, Source
from tidegate.changefeed.receive.order import BY_ARRIVAL, BY_COMMIT, in_order
from tidegate.changefeed.receive.schema_cache import SchemaKey
from tidegate.changefeed.receive.topic_use import FeedTopics, topic_use
from tidegate.lake.apply.late import NO_SCHEMA, Judgement, effects_of
from tidegate.lake.apply.planner import (
    PastEffect,
    Planner,
    Rows,
    Statement,
    Status,
    Step,
    Table,
    first_schema_change,
)
from tidegate.lake.apply.policy import Policy, SchemaChangeRefused
from tidegate.lake.apply.repair import LateEvents, LateLog
from tidegate.lake.changelog.changelog import (
    OF_ROWS,
    Changelog,
    Group,
    Observed,
    Offsets,
    of_table,
)
from tidegate.lake.changelog.interval import Interval
from tidegate.lake.changelog.pending import FreshFiles
from tidegate.lake.changelog.row_schemas import RowSchemas
from tidegate.lake.formats.base import Position
from tidegate.lake.job.observing import (
    bad_messages,
    bootstrapped,
    needs_judgement,
    unapplied,
    unheard,
    use_before,
)
from tidegate.lake.lake import Lake
from tidegate.lake.lease import SECONDS as LEASE_SECONDS
from tidegate.lake.quarantine import BadMessages, place_of
from tidegate.lake.record import Intent, MirrorState, Snapshot
from tidegate.lake.routes import Routes
from tidegate.lake.storage.predicates import (
    ALWAYS,
    Condition,
    above,
    above_by_partition,
    equal,
    every,
    some,
    up_to,
)
from tidegate.model import LakeError, TableSchema
from tidegate.model.tso import LOGICAL_BITS
from tidegate.sql.ddl import ChangeKind
from tidegate.sql.ddl_names import DdlId, ddl_id, plain_change
from tidegate.sql.tables import Name
from tidegate.upstream.completion import check_upstream
from tidegate.upstream.server import DatabaseServer

MAX_STATEMENTS = 100
"""How many statements a step takes at most; an instant before the next one is as good as any."""

_REMEMBERED = 1000
_REMEMBERED_EFFECTS = 10_000
_SCHEMA_PATIENCE_MS = 600_000
"""How much of upstream time may pass until rows have their schema. TiCDC sends each schema every
two minutes unless the changefeed says otherwise."""

SCHEMA_LOST = (
    "The schema of its rows (version {version}) is not in the feed and does not come any more: the "
    "feed began after it was sent. Mirror the feed from an earlier start, or mirror a new one."
)


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
    tables: set[Name] = field(default_factory=set)
    """Tables with rows that are not applied yet, in partitions that had said nothing before."""
    changelog: int | None = None
    """The version of the changelog that was read."""


class Mirror:
    """Moves the tables of a lake. One at a time may do so: see `lease`."""

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
        self._retried = lake.quarantine.last_time()
        if found is None:
            self.state.retried = self._retried
        self._unfinished = lake.snapshots.intended()
        if self._unfinished is not None and self._unfinished.step <= self.state.step:
            self._unfinished = None
        if self._unfinished is not None and self._unfinished.reload:
            raise LakeError(
                "A reload was cut off while it put its tables in place",
                "Run `tidegate reload` again with the same tables, which finishes it",
            )
        if found is not None:
            changelog = self._pinned(self._unfinished)
            self._seen.statements.append(changelog.statements_since(self.state.applied_ts))
        self._recorded = float("-inf")
        self._unrecorded = False
        self.waiting: dict[SchemaKey, int] = {}
        """How many rows wait for which schema."""
        self.changed: list[Table] = []
        """The tables that the last step has changed."""
        self._stopped: list[Name] = []

    @property
    def gate(self) -> Gate:
        """What the feed has said of its completeness."""
        return self.state.gate

    # --- a step -----------------------------------------------------------------------------------

    def step(
        self,
        partitions: Iterable[tuple[str, int]] = (),
        unread: Iterable[tuple[str, int]] = (),
    ) -> StepReport | None:
        """Moves the tables on, as far as the changelog allows; None if it does not.

        `partitions` are all those of the feed, also silent ones; `unread` those of them that have
        messages which are not in the changelog yet.
        """
        again = self._unfinished
        report = self._repair_retried(again)
        if report is not None:
            return report
        timer = _Timer()
        changelog = self._narrowed(self._pinned(again))
        self.gate.add_partitions([*partitions, *unread])
        self.gate.unread = frozenset(Source(*source) for source in unread)
        self._observe(changelog)
        timer.lap("observe")
        self._boundary("observed")
        report = self._repair_late_sources(changelog, again)
        if report is not None:
            return report
        target = self._target() if again is None else again.target
        if target is None:
            return None
        statements, target = self._statements(target)
        if again is None and self.settings.schema_changes is Policy.EXCEPTION:
            statements, target = self._before_schema_change(statements, target)
        interval, cuts, groups = self._rows_of(changelog, statements, target)
        groups = self._without_lost(groups, statements, target)
        lower = self._before_waiting(groups)
        if lower is not None and again is None:
            if lower <= self.state.applied_ts:
                return None
            statements, target = self._statements(lower)
            interval, cuts, groups = self._rows_of(changelog, statements, target)
            groups = self._without_lost(groups, statements, target)
        timer.lap("plan")
        self._boundary("planned")
        return self._apply(changelog, target, cuts, interval, groups, timer)

    def _rows_of(
        self, changelog: Changelog, statements: Sequence[Statement], target: int
    ) -> tuple[Interval, list[Statement | PastEffect], list[Group]]:
        """The rows up to an instant, counted, and the statements that cut them."""
        cuts: list[Statement | PastEffect] = list(statements)
        interval = self._interval(target, cuts)
        groups = changelog.groups(interval)
        past = self._past_of(groups)
        if past:
            # Rows from before these statements arrived after them.
            cuts = sorted([*past, *statements], key=lambda each: each.commit_ts)
            interval = self._interval(target, cuts)
            groups = changelog.groups(interval)
        self._schemas.learn_shapes(changelog, groups)
        return interval, cuts, groups

    def _past_of(self, groups: Sequence[Group]) -> list[PastEffect]:
        """What was done earlier to tables of which older rows have come only now.

        Only a feed without watermarks remembers it. A rename leads to other names.
        """
        first: dict[tuple[str, str], int] = {}
        for group in groups:
            name = Name(group.database, group.table).folded
            first[name] = min(group.first_ts, first.get(name, group.first_ts))
        past = []
        for each in self.state.past:
            since = first.get(each.name.folded)
            if since is not None and since <= each.commit_ts:
                past.append(each)
                if each.new_name is not None:
                    name = each.new_name.folded
                    first[name] = min(since, first.get(name, since))
        return past

    def _pinned(self, again: Intent | None) -> Changelog:
        changelog = self.lake.changelog
        if again is None:
            return changelog.now()
        return changelog.at(again.changelog)

    def _narrowed(self, changelog: Changelog) -> Changelog:
        """The changelog with only those files that may have what the tables have not."""
        state = self.state
        return changelog.narrowed(self._fresh, state.offsets, self._applied_ts(), state.changelog)

    def _observe(self, changelog: Changelog) -> None:
        gate, seen = self.gate, self._seen.offsets
        observed = changelog.observe(seen)
        gate.add_partitions(seen.last)
        gate.add_partitions(sorted(observed.offsets))
        self._schemas.learn(observed.events)
        is_statement = pc.equal(observed.events["kind"], "ddl")
        self._seen.statements.append(observed.events.filter(is_statement))
        if gate.has_watermarks:
            self._judge_topics(observed)
        gate.observe_statements(observed.statements)
        gate.observe_runs(observed.runs, observed.cut)
        bad = bad_messages(gate, observed.events, observed.readable, seen, self.lake.quarantine)
        self.state.bad += len(bad)
        if bad and self.settings.bad_messages == "stop":
            first = bad[0]
            raise BadMessages(place_of(first), first["error"]["reason"], len(bad))
        self._seen.offsets = seen.advanced(observed.offsets)
        self._seen.changelog = changelog.version
        changelog.observed()

    def _judge_topics(self, observed: Observed) -> None:
        """Tells the gate which topics are in use after all statements seen, applied or not."""
        topics, state, seen = self.settings.topics, self.state, self._seen
        self.gate.partition_num = topics.partition_num
        events, fresh = observed.events, observed.offsets
        if needs_judgement(self.gate, topics, events, fresh):
            rows = observed.tables_of_rows(unheard(self.gate, fresh), state.applied_ts)
            self.gate.add_partitions(sorted([*rows, *bootstrapped(events)]), spoke=True)
            seen.tables.update(*rows.values())
            known = [table.name for table in state.tables.values() if not table.gone]
            known += seen.tables
            pending = pa.concat_tables(seen.statements, promote_options="default")
            statements = unapplied(self.gate, pending)
            there = {source.topic for source in self.gate.watermarks}
            before = use_before(self.gate, topics, pending, there)
            self.gate.topics = topic_use(before, topics, statements, state.book, known, there)

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
        release = self.gate.release(target if self.gate.has_watermarks else None)
        pending = pending.filter(release.masks(pending).released)
        rows = in_order(pending, by_arrival=not self.gate.has_watermarks).to_pylist()
        if not self.gate.has_watermarks:
            done = {each.key(by_text=True) for each in self.state.done}
            rows = [row for row in rows if ddl_id(row).key(by_text=True) not in done]
            return [
                Statement(ddl_id(row), Position(target, 2 * n), row["schema"], row["topic"])
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
            position = Position(ts, counts[ts])
            found.append(Statement(ddl_id(row), position, row["schema"], row["topic"]))
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

    def _interval(self, target: int, statements: Sequence[Statement | PastEffect]) -> Interval:
        cuts = (statement.commit_ts for statement in statements)
        release = self.gate.release(target if self.gate.has_watermarks else None)
        offsets = self.state.offsets
        return Interval.released(release, OF_ROWS, offsets.beyond(), offsets.last, cuts)

    def _without_lost(
        self, groups: Sequence[Group], statements: Sequence[Statement], target: int
    ) -> list[Group]:
        """The rows whose schema is there or may yet come; the tables of others are stopped."""
        kept = []
        dropped = _dropped_databases(statements)
        for group in groups:
            key = self._schemas.missing(group)
            if key is not None and self._is_of_stopped(group):
                continue
            is_dropped = dropped.get(group.database.lower(), 0) >= group.first_ts
            if key is None or not (is_dropped or self._is_lost(key, group, target)):
                kept.append(group)
            else:
                self._stop_unreadable(key, group)
        return kept

    def _is_of_stopped(self, group: Group) -> bool:
        """Whether rows are of a table that is stopped, and before any statement of the step.

        Their schema need not come: none of them is applied.
        """
        table = self.state.tables.get(Name(group.database, group.table).folded)
        return table is not None and table.status is Status.STOPPED and group.segment == 0

    def _is_lost(self, key: SchemaKey, group: Group, target: int) -> bool:
        """Whether a schema cannot come any more: a later one is there, or it is overdue."""
        overdue = group.first_ts + (_SCHEMA_PATIENCE_MS << LOGICAL_BITS)
        return self.state.cache.is_lost(key, group.first_ts) or overdue < target

    def _stop_unreadable(self, key: SchemaKey, group: Group) -> None:
        name = Name(key.database, key.table)
        if not self.settings.routes.wants(name):
            return
        tables = self.state.tables
        table = tables.get(name.folded)
        if table is None:
            schema = TableSchema(database=name.database, table=name.table)
            table = tables[name.folded] = Table(name, schema)
        if table.status is Status.MIRRORED:
            table.stop(SCHEMA_LOST.format(version=key.version), group.first_ts)
            self._stopped.append(name)

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

    def _repair_retried(self, again: Intent | None) -> StepReport | None:
        """Takes in what a retry could read; None if the tables had not gone past any of it."""
        until = self._retried if again is None else again.retried
        if self.state.retried >= until or not (again is None or again.mends):
            return None
        places = self.lake.quarantine.read_since(self.state.retried, until)
        changelog = self._pinned(again)
        taken = ~self.state.offsets.beyond()
        if self.gate.loaded_ts:
            since = above("commit_ts", self.gate.loaded_ts)
            taken = taken & some(since, equal("kind", "schema"), equal("kind", "watermark"))
        late = LateEvents(taken, places=places)
        log = self.lake.late_log(changelog, late)
        events = log.control_events()
        self.gate.observe(events)
        self._schemas.learn(events)
        ddl = events.filter(pc.equal(events["kind"], "ddl"))
        is_late = pc.less(ddl["commit_ts"], self.state.applied_ts)
        self._seen.statements.append(ddl.filter(pc.invert(is_late)))
        return self._repair(changelog, log, ddl.filter(is_late), self.state.offsets, until)

    def _repair_late_sources(self, changelog: Changelog, again: Intent | None) -> StepReport | None:
        """Takes in what came by partitions that the tables went on without.

        A partition is first seen late, or its topic was out of use: what it then brings, and had
        not promised by a watermark before, was never applied.
        """
        sources = self._late_sources()
        if not sources or not (again is None or again.mends):
            return None
        condition = self._late_condition(sources)
        offsets = self.state.offsets.advanced(
            {source: self._seen.offsets.last[source] for source in sources}
        )
        if not changelog.has_changes(condition):
            self.state.offsets = offsets
            self.gate.settle(sources)
            return None
        changelog = changelog.whole()
        late = LateEvents(~self.state.offsets.beyond() | condition, condition)
        log = self.lake.late_log(changelog, late)
        events = log.control_events()
        ddl = events.filter(pc.equal(events["kind"], "ddl"))
        self.gate.settle(sources)
        self.gate.note_applied(map(ddl_id, ddl.to_pylist()))
        return self._repair(changelog, log, ddl, offsets, self.state.retried)

    def _late_sources(self) -> dict[tuple[str, int], int]:
        """Partitions with new messages that had promised less than the tables have: how much."""
        applied, known = self.state.applied_ts, self.state.offsets.last
        if not self.gate.has_watermarks or not applied:
            return {}
        promised = {
            source: self.gate.watermark_of(source)
            for source, last in self._seen.offsets.last.items()
            if last > known.get(source, -1)
        }
        return {source: ts for source, ts in promised.items() if ts < applied}

    def _late_condition(self, sources: Mapping[tuple[str, int], int]) -> Condition:
        known, seen = self.state.offsets.last, self._seen.offsets.last
        after = {source: known.get(source, -1) for source in sources}
        until = {source: seen[source] for source in sources}
        return every(
            above_by_partition("offset", after, others=False),
            ~above_by_partition("offset", until, others=True),
            above_by_partition("commit_ts", sources, others=False),
            up_to("commit_ts", self.state.applied_ts),
        )

    def _repair(
        self,
        changelog: Changelog,
        log: LateLog,
        late_ddl: pa.Table,
        offsets: Offsets,
        retried: int,
    ) -> StepReport | None:
        """Repairs the tables that late events concern; None if there are none."""
        timer, state = _Timer(), self.state
        judged = self._judge(log, late_ddl)
        state.offsets = offsets
        if not (judged.since or judged.created or judged.stopped):
            state.retried = retried
            state.step += 1  # so that what `settle` records is not taken for the last step
            self._unrecorded = True
            return None
        groups = self._readable(changelog, log, judged)
        timer.lap("plan")
        self._boundary("planned")
        self._intend(state.applied_ts, changelog, retried, mends=True)
        before, steps = self._places(), self._repairing(judged, groups)
        interval = self._untaken(judged.created)
        since, until = judged.since, self._applied_ts()
        self._carry_out(
            steps, self.lake.repair, changelog, interval, log=log, since=since, until=until
        )
        timer.lap("apply")
        for name, first in judged.since.items():
            table = state.tables.get(name.folded)
            if table is not None:
                table.lack(first, state.applied_ts)
        state.retried = retried
        count = sum(group.rows for group in groups if group.late)
        return self._end_step(steps, before, count, timer)

    def _applied_ts(self) -> int | None:
        """Up to which instant rows are taken; None: not by their commit_ts."""
        return self.state.applied_ts if self.gate.has_watermarks else None

    def _untaken(self, statements: Sequence[DdlId]) -> Interval:
        """The order of late rows, and the late statements that cut them."""
        order = BY_COMMIT if self.gate.has_watermarks else BY_ARRIVAL
        return Interval(ALWAYS, tuple(each.commit_ts for each in statements), order=order)

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

    def _readable(self, changelog: Changelog, log: LateLog, judged: Judgement) -> list[Group]:
        """The rows whose schemas are known; tables of others are stopped."""
        cuts = [each.commit_ts for each in judged.created]
        groups = log.groups(judged.since, self._applied_ts(), cuts)
        self._schemas.learn_shapes(changelog, groups)
        if any(map(self._schemas.missing, groups)):  # forgotten: the changelog still has it
            self._schemas.learn(log.schemas_of(judged.since))
        unreadable = [Name(*key[:2]) for key in filter(None, map(self._schemas.missing, groups))]
        for name in unreadable:
            made = TableSchema(database=name.database, table=name.table)
            judged.stop(name, NO_SCHEMA, judged.since[name], made)
        gone = {name.folded for name in (*judged.stopped, *unreadable)}
        return [group for group in groups if Name(group.database, group.table).folded not in gone]

    def _repairing(self, judged: Judgement, groups: list[Group]) -> list[Step]:
        """Tables that were not made in time, and rows, at the instant that was reached."""
        state = self.state
        end = Position(state.step + 1, 2 * len(judged.created) + 1)
        if self.gate.has_watermarks:
            count = max(len(self.gate.applied_ddl), len(judged.created))
            end = Position(state.applied_ts, count, state.step + 1)
        planner = self._planner(groups, end)
        statements = [
            Statement(each, Position(min(end.ts, each.commit_ts), number))
            for number, each in enumerate(judged.created, 1)
        ]
        return planner.plan(statements, groups)

    # --- doing it ---------------------------------------------------------------------------------

    def _apply(
        self,
        changelog: Changelog,
        target: int,
        cuts: list[Statement | PastEffect],
        interval: Interval,
        groups: list[Group],
        timer: _Timer,
    ) -> StepReport:
        state = self.state
        statements = [each for each in cuts if isinstance(each, Statement)]
        if groups or statements:
            self._intend(target, changelog, state.retried)
        # Without statements no table goes away.
        before = self._places() if cuts else {}
        end = Position(target)
        if not self.gate.has_watermarks:
            end = Position(target, 2 * len(statements) + 1)
        applied = self._applied_rows(changelog, interval, groups)
        planner = self._planner(groups, end, applied, self._overtaken(changelog))
        steps = planner.plan(cuts, groups)
        self._carry_out(steps, self.lake.apply, changelog, interval)
        timer.lap("apply")
        rows = sum(step.count for step in steps if isinstance(step, Rows))
        self._mark(target, statements, planner, groups)
        state.offsets, state.changelog = self._seen.offsets, self._seen.changelog
        self._seen.tables.clear()
        idle = time.monotonic() - self._recorded
        worth = bool(steps or statements or self._stopped) or idle > self.settings.heartbeat
        return self._end_step(steps, before, rows, timer, statements=len(statements), worth=worth)

    def _applied_rows(
        self, changelog: Changelog, interval: Interval, groups: Sequence[Group]
    ) -> list[Group]:
        """The rows of the last instant that were applied in time, if others came late."""
        if not any(group.late for group in groups):
            return []
        changelog = changelog.whole()
        applied = changelog.groups(Interval(interval.applied))
        self._schemas.learn_shapes(changelog, applied)
        return [group for group in applied if self._schemas.missing(group) is None]

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
        self._stopped = []
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

    def _overtaken(self, changelog: Changelog) -> Callable[[Name, int], bool]:
        """Whether rows of a name from after an instant were applied by earlier steps."""
        applied = ~self.state.offsets.beyond()
        if self.gate.has_watermarks or not self.state.offsets.last:
            return lambda name, ts: False

        def overtaken(name: Name, ts: int) -> bool:
            later = every(of_table(*name), applied, above("commit_ts", ts))
            return changelog.whole().has_changes(later)

        return overtaken

    def _planner(
        self,
        groups: Sequence[Group],
        end: Position,
        applied: Sequence[Group] = (),
        overtaken: Callable[[Name, int], bool] = lambda name, ts: False,
    ) -> Planner:
        return Planner(
            self.state.tables,
            self.state.book,
            *self._schemas.layouts([*groups, *applied]),
            end,
            self._schemas.keys_of_shapes(groups),
            self.settings.routes,
            completes=self.settings.upstream is not None,
            policy=self._policy,
            unsupported=self.lake.tables.unsupported,
            zone=self.settings.time_zone,
            in_commit_order=self.gate.has_watermarks,
            applied=applied,
            topics=self.settings.topics,
            overtaken=overtaken,
        )

    def _carry_out(
        self,
        steps: list[Step],
        carry_out: Callable[..., None],
        changelog: Changelog,
        interval: Interval,
        **more: Any,
    ) -> None:
        """Does steps by the lake's `apply` or `repair`."""
        self._look_upstream(steps)
        carry_out(
            steps,
            changelog,
            interval,
            zone=self.settings.time_zone,
            threads=self.settings.threads,
            again=self._unfinished is not None,
            routes=self.settings.routes,
            upstream=self.settings.upstream,
            on_step=lambda step: self._boundary(type(step).__name__.lower()),
            **more,
        )
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
                target, ids, [name for name, ts in planner.touched.items() if ts == target]
            )
            state.cache.forget(target)
        else:
            last = max(
                [group.first_ts for group in groups] + [each.commit_ts for each in ids] + [0]
            )
            state.gate.mark_applied(max(last, state.applied_ts))
            state.done = [*state.done, *ids][-_REMEMBERED:]
            state.past = [*state.past, *planner.past][-_REMEMBERED_EFFECTS:]
        pending = pa.concat_tables(self._seen.statements, promote_options="default")
        keep = pc.greater_equal(pending["commit_ts"], state.applied_ts)
        self._seen.statements = [
            pending.filter(keep) if self.gate.has_watermarks else pending.slice(0, 0)
        ]

    def _changed(self, steps: list[Step], before: Mapping[Name, str]) -> list[Snapshot]:
        """The tables that are no longer as they were recorded: changed, renamed, new, gone."""
        tables = self.state.tables
        touched = {id(step.table): step.table for step in steps}.values()
        self.changed = [
            table
            for table in touched
            if table.identifier and tables.get(table.name.folded) is table
        ]
        found = [self._snapshot(table) for table in self.changed]
        there = {table.name for table in tables.values() if table.identifier} if before else set()
        for name in before:
            if name not in there:
                found.append(Snapshot(self.state.applied_ts, _now(), name, "", "", None))
        return found

    def _snapshot(self, table: Table) -> Snapshot:
        version = self.lake.tables.version(table.identifier)
        return Snapshot(
            self.state.applied_ts, _now(), table.name, table.identifier, table.uid, version
        )

    def stopped(self) -> list[Table]:
        """The tables that are no longer mirrored, with the reason."""
        return [table for table in self.state.tables.values() if table.status is Status.STOPPED]


def _dropped_databases(statements: Iterable[Statement]) -> dict[str, int]:
    """The databases that statements drop, in lower case, with the last commit_ts of that."""
    dropped = {}
    for each in statements:
        change = plain_change(each.id.query, each.id.database)
        if change.kind is ChangeKind.DATABASE_DROPPED:
            dropped[(change.database or "").lower()] = each.commit_ts
    return dropped


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
