"""The mirror: from the changelog to the tables, from one upstream instant to the next.

A step reads what is new in the changelog, lets the gate say up to which instant everything is
there, and applies the rows and statements up to it. Events that come when the tables have gone past
them are repaired by a step of their own. A step that was cut off is repeated to the same instant
from the same version of the changelog, so that nothing is applied twice. `step` has the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidegate.changefeed.receive.gate import Gate
from tidegate.changefeed.receive.schema_cache import SchemaKey
from tidegate.lake.apply.plan.steps import Rows
from tidegate.lake.apply.plan.tables import Status, Table
from tidegate.lake.changelog.changelog import Changelog
from tidegate.lake.job.step.choosing import StepChooser, StepScope
from tidegate.lake.job.step.execution import StepExecution
from tidegate.lake.job.step.observing import Observer
from tidegate.lake.job.step.planning import StepPlanning
from tidegate.lake.job.step.recording import StepRecorder, StepReport
from tidegate.lake.job.step.repairing import LateRepair
from tidegate.lake.job.step.session import MirrorSession, MirrorSettings, StepTimer
from tidegate.lake.lake import Lake
from tidegate.lake.record import MirrorState

__all__ = ["Mirror", "MirrorSettings", "StepReport"]


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
        """`boundary` is called when a part of a step is done: a crash there must do no harm."""
        session = MirrorSession(
            lake, settings or MirrorSettings(), boundary, watermarks=watermarks, feed=feed or {}
        )
        self._session = session
        self._observer = Observer(session)
        self._chooser = StepChooser(session)
        self._planning = StepPlanning(session)
        self._execution = StepExecution(session)
        self._recorder = StepRecorder(session)
        self._repair = LateRepair(session, self._planning, self._execution, self._recorder)

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
        report = self._repair.of_retried_messages()
        if report is not None:
            return report
        timer = StepTimer()
        changelog = self._observer.observe(partitions, unread)
        timer.lap("observe")
        self._session.boundary("observed")
        report = self._repair.of_late_partitions(changelog)
        if report is not None:
            return report
        scope = self._chooser.choose(changelog)
        if scope is None:
            return None
        timer.lap("plan")
        self._session.boundary("planned")
        return self._apply(changelog, scope, timer)

    def _apply(self, changelog: Changelog, scope: StepScope, timer: StepTimer) -> StepReport:
        session, recorder, statements = self._session, self._recorder, scope.statements
        if scope.groups or statements:
            self._execution.intend(scope.target, changelog, session.state.retried)
        # Without statements no table goes away.
        before = recorder.places() if scope.cuts else {}
        planner = self._planning.planner_of(changelog, scope)
        steps = planner.plan(scope.cuts, scope.groups)
        self._execution.carry_out(steps, session.lake.apply, changelog, scope.interval)
        timer.lap("apply")
        rows = sum(step.count for step in steps if isinstance(step, Rows))
        recorder.mark(scope, planner)
        worth = bool(steps or statements or session.stopped) or recorder.is_overdue
        count = len(statements)
        return recorder.end_step(steps, before, rows, timer, statements=count, worth=worth)

    def settle(self) -> None:
        """Records the instant reached if that was not worth a commit yet."""
        self._recorder.settle()

    # --- how it stands ----------------------------------------------------------------------------

    @property
    def lake(self) -> Lake:
        """The lake whose tables it moves."""
        return self._session.lake

    @property
    def settings(self) -> MirrorSettings:
        """How it works."""
        return self._session.settings

    @property
    def state(self) -> MirrorState:
        """Where it stands: all that a restart needs."""
        return self._session.state

    @property
    def gate(self) -> Gate:
        """What the feed has said of its completeness."""
        return self._session.gate

    @property
    def waiting(self) -> Mapping[SchemaKey, int]:
        """How many rows wait for which schema."""
        return self._chooser.rows.waiting

    @property
    def changed(self) -> list[Table]:
        """The tables that the last step has changed."""
        return self._recorder.changed

    def stopped(self) -> list[Table]:
        """The tables that are no longer mirrored, with the reason."""
        return [table for table in self.state.tables.values() if table.status is Status.STOPPED]
