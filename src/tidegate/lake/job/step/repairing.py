"""Repairs tables after late events: events that came when the tables had gone past them.

They are of messages that a retry of the quarantine could read, or of partitions that the tables
went on without. A repair is a step of its own at the instant that was reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.changefeed.receive.order import BY_ARRIVAL, BY_COMMIT, in_order
from tidegate.lake.apply.plan.steps import Statement, Step
from tidegate.lake.apply.repair.judging import NO_SCHEMA, Judgement, effects_of
from tidegate.lake.apply.repair.late_log import LateEvents, LateLog
from tidegate.lake.changelog.changelog import Changelog, Group, Offsets
from tidegate.lake.changelog.interval import Interval
from tidegate.lake.formats.base import Position
from tidegate.lake.job.step.execution import StepExecution
from tidegate.lake.job.step.planning import StepPlanning
from tidegate.lake.job.step.recording import StepRecorder, StepReport
from tidegate.lake.job.step.session import MirrorSession, StepTimer
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
from tidegate.model import TableSchema
from tidegate.sql.ddl_names import DdlId, ddl_id
from tidegate.sql.tables import Name


class LateRepair:
    """Finds late events and repairs the tables that they concern."""

    def __init__(
        self,
        session: MirrorSession,
        planning: StepPlanning,
        execution: StepExecution,
        recorder: StepRecorder,
    ) -> None:
        self._session = session
        self._state = session.state
        self._planning = planning
        self._execution = execution
        self._recorder = recorder

    def of_retried_messages(self) -> StepReport | None:
        """Takes in what a retry could read; None if the tables had not gone past any of it."""
        session, state = self._session, self._state
        again = session.unfinished
        until = session.retried if again is None else again.retried
        if state.retried >= until or not (again is None or again.repairs):
            return None
        places = session.lake.quarantine.read_since(state.retried, until)
        changelog = session.pinned_changelog()
        taken = ~state.offsets.beyond()
        if session.gate.loaded_ts:
            since = above("commit_ts", session.gate.loaded_ts)
            taken = taken & some(since, equal("kind", "schema"), equal("kind", "watermark"))
        late = LateEvents(taken, places=places)
        log = session.lake.late_log(changelog, late)
        events = log.control_events()
        session.gate.observe(events)
        session.schemas.learn(events)
        ddl = events.filter(pc.equal(events["kind"], "ddl"))
        is_late = pc.less(ddl["commit_ts"], state.applied_ts)
        session.seen.statements.append(ddl.filter(pc.invert(is_late)))
        return self._repair(changelog, log, ddl.filter(is_late), state.offsets, until)

    def of_late_partitions(self, changelog: Changelog) -> StepReport | None:
        """Takes in what came by partitions that the tables went on without.

        A partition is first seen late, or its topic was out of use: what it then brings, and had
        not promised by a watermark before, was never applied.
        """
        session, state = self._session, self._state
        again, sources = session.unfinished, self._late_sources()
        if not sources or not (again is None or again.repairs):
            return None
        condition = self._late_condition(sources)
        offsets = state.offsets.advanced(
            {source: session.seen.offsets.last[source] for source in sources}
        )
        if not changelog.has_changes(condition):
            state.offsets = offsets
            session.gate.settle(sources)
            return None
        changelog = changelog.whole()
        late = LateEvents(~state.offsets.beyond() | condition, condition)
        log = session.lake.late_log(changelog, late)
        events = log.control_events()
        ddl = events.filter(pc.equal(events["kind"], "ddl"))
        session.gate.settle(sources)
        session.gate.note_applied(map(ddl_id, ddl.to_pylist()))
        return self._repair(changelog, log, ddl, offsets, state.retried)

    def _late_sources(self) -> dict[tuple[str, int], int]:
        """Partitions with new messages that had promised less than the tables have: how much."""
        applied, known = self._state.applied_ts, self._state.offsets.last
        gate = self._session.gate
        if not gate.has_watermarks or not applied:
            return {}
        promised = {
            source: gate.watermark_of(source)
            for source, last in self._session.seen.offsets.last.items()
            if last > known.get(source, -1)
        }
        return {source: ts for source, ts in promised.items() if ts < applied}

    def _late_condition(self, sources: Mapping[tuple[str, int], int]) -> Condition:
        known, seen = self._state.offsets.last, self._session.seen.offsets.last
        after = {source: known.get(source, -1) for source in sources}
        until = {source: seen[source] for source in sources}
        return every(
            above_by_partition("offset", after, others=False),
            ~above_by_partition("offset", until, others=True),
            above_by_partition("commit_ts", sources, others=False),
            up_to("commit_ts", self._state.applied_ts),
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
        timer, session, state = StepTimer(), self._session, self._state
        judged = self._judge(changelog, log, late_ddl)
        state.offsets = offsets
        if not (judged.since or judged.created or judged.stopped):
            state.retried = retried
            self._recorder.skip_step()
            return None
        groups = self._readable(changelog, log, judged)
        timer.lap("plan")
        session.boundary("planned")
        self._execution.intend(state.applied_ts, changelog, retried, repairs=True)
        before, steps = self._recorder.places(), self._steps(judged, groups)
        interval = self._untaken(judged.created)
        since, until = judged.since, session.row_limit_ts
        self._execution.carry_out(
            steps, session.lake.repair, changelog, interval, log=log, since=since, until=until
        )
        timer.lap("apply")
        for name, first in judged.since.items():
            table = state.tables.get(name.folded)
            if table is not None:
                table.lack(first, state.applied_ts)
        state.retried = retried
        count = sum(group.rows for group in groups if group.late)
        return self._recorder.end_step(steps, before, count, timer)

    def _untaken(self, statements: Sequence[DdlId]) -> Interval:
        """The order of late rows, and the late statements that cut them."""
        order = BY_COMMIT if self._session.gate.has_watermarks else BY_ARRIVAL
        return Interval(ALWAYS, tuple(each.commit_ts for each in statements), order=order)

    def _late_times(self, changelog: Changelog, log: LateLog) -> dict[Name, list[int]]:
        """The distinct commit_ts of late rows by table, without copies of rows that came in time.

        Without watermarks a commit_ts does not identify a transaction, and nothing is known to be a
        copy.
        """
        until, schemas = self._session.row_limit_ts, self._session.schemas
        times = log.times(until)
        if until is None or not times:
            return times
        groups = log.groups({name: of_table[0] for name, of_table in times.items()}, until)
        schemas.learn_shapes(changelog, groups)
        names, _ = schemas.layouts(group for group in groups if schemas.missing(group) is None)
        return log.times_without_copies(times, until, names)

    def _judge(self, changelog: Changelog, log: LateLog, late_ddl: pa.Table) -> Judgement:
        """What rows are late, too, and what is to be done about all of it."""
        session, state = self._session, self._state
        times = self._late_times(changelog, log)
        by_text = not session.gate.has_watermarks
        late_ids = [ddl_id(row) for row in in_order(late_ddl, by_arrival=by_text).to_pylist()]
        firsts = [of_table[0] for of_table in times.values()]
        firsts += [each.commit_ts for each in late_ids]
        done: list[DdlId] = []
        if firsts:
            others = log.statements_since(min(firsts))
            others = others.filter(pc.less_equal(others["commit_ts"], state.applied_ts))
            done = [ddl_id(row) for row in in_order(others, by_arrival=by_text).to_pylist()]
        keys = {each.key(by_text=by_text) for each in done}
        # Of one that is among them, another partition's copy could be read in time.
        late_ids = [each for each in late_ids if each.key(by_text=by_text) not in keys]
        statements = sorted([*done, *late_ids], key=lambda each: each.commit_ts)
        judged = Judgement(
            state.tables,
            state.book,
            session.settings.routes,
            effects_of(statements, state.book, times),
            session.lake.snapshots.kept_since(),
            state.applied_ts,
            frozenset(late_ids),
        )
        for each in late_ids:
            judged.statement(each)
        for name, of_table in times.items():
            judged.rows(name, of_table)
        return judged

    def _readable(self, changelog: Changelog, log: LateLog, judged: Judgement) -> list[Group]:
        """The rows whose schemas are known; tables of others are stopped."""
        schemas = self._session.schemas
        cuts = [each.commit_ts for each in judged.created]
        groups = log.groups(judged.since, self._session.row_limit_ts, cuts)
        schemas.learn_shapes(changelog, groups)
        if any(map(schemas.missing, groups)):  # forgotten: the changelog still has it
            schemas.learn(log.schemas_of(judged.since))
        unreadable = [Name(*key[:2]) for key in filter(None, map(schemas.missing, groups))]
        for name in unreadable:
            made = TableSchema(database=name.database, table=name.table)
            judged.stop(name, NO_SCHEMA, judged.since[name], made)
        gone = {name.folded for name in (*judged.stopped, *unreadable)}
        return [group for group in groups if Name(group.database, group.table).folded not in gone]

    def _steps(self, judged: Judgement, groups: list[Group]) -> list[Step]:
        """Tables that were not made in time, and rows, at the instant that was reached."""
        state, gate = self._state, self._session.gate
        end = Position(state.step + 1, 2 * len(judged.created) + 1)
        if gate.has_watermarks:
            count = max(len(gate.applied_ddl), len(judged.created))
            end = Position(state.applied_ts, count, state.step + 1)
        planner = self._planning.planner(groups, end)
        statements = [
            Statement(each, Position(min(end.ts, each.commit_ts), number))
            for number, each in enumerate(judged.created, 1)
        ]
        return planner.plan(statements, groups)
