"""Carries a plan out: writes the intent down first, then lets the lake do the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidegate.lake.apply.plan.steps import Rows, Step
from tidegate.lake.changelog.changelog import Changelog
from tidegate.lake.changelog.interval import Interval
from tidegate.lake.job.step.session import MirrorSession
from tidegate.lake.record import Intent
from tidegate.upstream.completion import check_upstream


class StepExecution:
    """Does what was planned, so that a crash at any point leaves a step that can be repeated."""

    def __init__(self, session: MirrorSession) -> None:
        self._session = session

    def intend(
        self, target: int, changelog: Changelog, retried: int, *, repairs: bool = False
    ) -> None:
        """Writes down what is about to be done, unless that was done and the step cut off."""
        session = self._session
        if session.unfinished is not None:
            session.state.retried = session.unfinished.retried
            return
        assert changelog.version is not None
        policy, number = session.policy.value, session.state.step + 1
        intent = Intent(number, target, changelog.version, policy, retried, repairs)
        session.lake.snapshots.intend(intent)
        session.boundary("intended")

    def carry_out(
        self,
        steps: Sequence[Step],
        carry_out: Callable[..., None],
        changelog: Changelog,
        interval: Interval,
        **more: Any,
    ) -> None:
        """Does steps by the lake's `apply` or `repair`."""
        session, settings = self._session, self._session.settings
        self._look_upstream(steps)
        carry_out(
            steps,
            changelog,
            interval,
            zone=settings.time_zone,
            threads=settings.threads,
            again=session.unfinished is not None,
            routes=settings.routes,
            upstream=settings.upstream,
            on_step=lambda step: session.boundary(type(step).__name__.lower()),
            **more,
        )
        session.boundary("applied")

    def _look_upstream(self, steps: Sequence[Step]) -> None:
        """Asks the upstream, where it is needed, what it can do: now rather than in the middle."""
        incomplete = [step for step in steps if isinstance(step, Rows) and step.incomplete]
        upstream = self._session.settings.upstream
        if incomplete and upstream is not None and not check_upstream(upstream):
            for step in incomplete:
                step.table.eventual = True
