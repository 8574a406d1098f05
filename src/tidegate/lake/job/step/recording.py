"""Ends a step: marks what was applied, and records the tables that changed in one commit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow.compute as pc

from tidegate.lake.apply.plan.steps import Step
from tidegate.lake.apply.plan.tables import Table
from tidegate.lake.apply.planner import Planner
from tidegate.lake.job.step.choosing import StepScope
from tidegate.lake.job.step.session import MirrorSession, StepTimer
from tidegate.lake.record import Snapshot
from tidegate.sql.tables import Name

_REMEMBERED = 1000
_REMEMBERED_EFFECTS = 10_000


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


class StepRecorder:
    """Brings the state up to the end of a step, and records it where that is worth a commit."""

    def __init__(self, session: MirrorSession) -> None:
        self._session = session
        self._state = session.state
        self.changed: list[Table] = []
        """The tables that the last step has changed."""
        self._recorded = float("-inf")
        self._is_unrecorded = False

    @property
    def is_overdue(self) -> bool:
        """Whether an instant is to be recorded though nothing changed."""
        return time.monotonic() - self._recorded > self._session.settings.heartbeat

    def places(self) -> dict[Name, str]:
        """The tables as they are called now, and where they are."""
        return {table.name: table.identifier for table in self._state.tables.values()}

    def mark(self, scope: StepScope, planner: Planner) -> None:
        """Says that everything up to the target is applied."""
        state, seen = self._state, self._session.seen
        ids = [statement.id for statement in scope.statements]
        if state.gate.has_watermarks:
            touched = [name for name, ts in planner.touched.items() if ts == scope.target]
            state.gate.mark_applied(scope.target, ids, touched)
            state.cache.forget(scope.target)
        else:
            last = max(
                [group.first_ts for group in scope.groups] + [each.commit_ts for each in ids] + [0]
            )
            state.gate.mark_applied(max(last, state.applied_ts))
            state.done = [*state.done, *ids][-_REMEMBERED:]
            state.past = [*state.past, *planner.past][-_REMEMBERED_EFFECTS:]
        pending = seen.all_statements()
        keep = pc.greater_equal(pending["commit_ts"], state.applied_ts)
        seen.statements = [
            pending.filter(keep) if state.gate.has_watermarks else pending.slice(0, 0)
        ]
        state.offsets, state.changelog = seen.offsets, seen.changelog
        seen.tables.clear()

    def end_step(
        self,
        steps: Sequence[Step],
        before: Mapping[Name, str],
        rows: int,
        timer: StepTimer,
        *,
        statements: int = 0,
        worth: bool = True,
    ) -> StepReport:
        """Records what was done, if it is worth a commit; `before` are the tables before it."""
        session, state = self._session, self._state
        again = session.unfinished
        # A step that was cut off keeps its number: steps without changes may have gone before it.
        state.step = state.step + 1 if again is None else again.step
        state.rows += rows
        changed = self._changed(steps, before)
        self._is_unrecorded = True
        session.stopped = []
        if worth:
            self._record(changed)
        session.unfinished = None
        timer.lap("record")
        return StepReport(
            resolved_ts=state.applied_ts,
            rows=rows,
            statements=statements,
            tables=tuple(each.name for each in changed),
            seconds=timer.total(),
            phases=timer.laps,
        )

    def skip_step(self) -> None:
        """Notes that there was nothing to do, which `settle` records."""
        self._state.step += 1  # so that what `settle` records is not taken for the last step
        self._is_unrecorded = True

    def settle(self) -> None:
        """Records the instant reached if that was not worth a commit yet."""
        if self._is_unrecorded:
            self._record([])

    def _record(self, changed: list[Snapshot]) -> None:
        self._session.lake.snapshots.record(self._state, changed)
        self._recorded = time.monotonic()
        self._is_unrecorded = False
        self._session.boundary("recorded")

    def _changed(self, steps: Sequence[Step], before: Mapping[Name, str]) -> list[Snapshot]:
        """The tables that are no longer as they were recorded: changed, renamed, new, gone."""
        tables = self._state.tables
        touched = {id(step.table): step.table for step in steps}.values()
        self.changed = [
            table
            for table in touched
            if table.identifier and tables.get(table.name.folded) is table
        ]
        snapshots = [self._snapshot(table) for table in self.changed]
        there = {table.name for table in tables.values() if table.identifier} if before else set()
        for name in before:
            if name not in there:
                snapshots.append(Snapshot(self._state.applied_ts, _now(), name, "", "", None))
        return snapshots

    def _snapshot(self, table: Table) -> Snapshot:
        version = self._session.lake.tables.version(table.identifier)
        return Snapshot(
            self._state.applied_ts, _now(), table.name, table.identifier, table.uid, version
        )


def _now() -> datetime:
    return datetime.now(UTC)
