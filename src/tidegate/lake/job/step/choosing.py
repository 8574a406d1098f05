"""Chooses what a step does: the instant that it goes to, the statements up to it, and the rows."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.changefeed.receive.order import in_order
from tidegate.lake.apply.plan.steps import PastEffect, Statement
from tidegate.lake.apply.planner import first_schema_change
from tidegate.lake.apply.policy import Policy, SchemaChangeRefused
from tidegate.lake.changelog.changelog import Changelog, Group
from tidegate.lake.changelog.interval import Interval
from tidegate.lake.formats.base import Position
from tidegate.lake.job.step.row_groups import PendingRows
from tidegate.lake.job.step.session import MirrorSession
from tidegate.model.tso import LOGICAL_BITS
from tidegate.sql.ddl_names import ddl_id

MAX_STATEMENTS = 100
"""How many statements a step takes at most; an instant before the next one is as good as any."""


@dataclass(frozen=True, slots=True)
class StepScope:
    """What a step does: everything up to `target`.

    `cuts` are its statements, and earlier ones that older rows are still to be cut by; `groups` are
    its rows, counted between them.
    """

    target: int
    cuts: list[Statement | PastEffect]
    interval: Interval
    groups: list[Group]

    @property
    def statements(self) -> list[Statement]:
        """The statements that are to be done."""
        return [each for each in self.cuts if isinstance(each, Statement)]


class StepChooser:
    """Chooses the scope of a step."""

    def __init__(self, session: MirrorSession) -> None:
        self._session = session
        self._state = session.state
        self._rows = PendingRows(session)

    @property
    def rows(self) -> PendingRows:
        """The rows that are not applied yet."""
        return self._rows

    def choose(self, changelog: Changelog) -> StepScope | None:
        """What to do now; None if the tables have all that the gate releases."""
        again = self._session.unfinished
        target = self._target() if again is None else again.target
        if target is None:
            return None
        statements, target = self._statements(target)
        if again is None and self._session.settings.schema_changes is Policy.EXCEPTION:
            statements, target = self._before_schema_change(statements, target)
        scope = self._scope(changelog, statements, target)
        lower = self._rows.before_waiting(scope.groups)
        if lower is not None and again is None:
            if lower <= self._state.applied_ts:
                return None
            statements, target = self._statements(lower)
            scope = self._scope(changelog, statements, target)
        return scope

    def _scope(self, changelog: Changelog, statements: list[Statement], target: int) -> StepScope:
        interval, cuts, groups = self._rows.up_to(changelog, statements, target)
        groups = self._rows.without_lost(groups, statements, target)
        return StepScope(target, cuts, interval, groups)

    def _target(self) -> int | None:
        """The instant to go to, if it is a new one."""
        state = self._state
        if not state.gate.has_watermarks:
            return state.step + 1 if self._session.seen.offsets != state.offsets else None
        resolved = state.gate.resolved_ts
        if resolved <= state.applied_ts:
            return None
        seconds = self._session.settings.max_step_seconds
        if seconds is not None:
            start = state.applied_ts or self._session.lake.changelog.first_ts()
            resolved = min(resolved, start + (int(seconds * 1000) << LOGICAL_BITS))
        return resolved

    def _statements(self, target: int) -> tuple[list[Statement], int]:
        """The statements up to an instant, and the instant, earlier if there are too many."""
        gate, pending = self._session.gate, self._session.seen.all_statements()
        release = gate.release(target if gate.has_watermarks else None)
        pending = pending.filter(release.masks(pending).released)
        rows = in_order(pending, by_arrival=not gate.has_watermarks).to_pylist()
        if not gate.has_watermarks:
            done = {each.key(by_text=True) for each in self._state.done}
            rows = [row for row in rows if ddl_id(row).key(by_text=True) not in done]
            return [
                Statement(ddl_id(row), Position(target, 2 * n), row["schema"], row["topic"])
                for n, row in enumerate(rows, 1)
            ], target
        if len(rows) > MAX_STATEMENTS:
            target = rows[MAX_STATEMENTS]["commit_ts"] - 1
            rows = [row for row in rows if row["commit_ts"] <= target] or rows
            target = max(target, rows[-1]["commit_ts"])
        counts: dict[int, int] = {self._state.applied_ts: len(gate.applied_ddl)}
        statements = []
        for row in rows:
            ts = row["commit_ts"]
            counts[ts] = counts.get(ts, 0) + 1
            position = Position(ts, counts[ts])
            statements.append(Statement(ddl_id(row), position, row["schema"], row["topic"]))
        return statements, target

    def _before_schema_change(
        self, statements: list[Statement], target: int
    ) -> tuple[list[Statement], int]:
        """The statements and the instant before a table changes; raises where there is none."""
        state = self._state
        routes = self._session.settings.routes
        first = first_schema_change(statements, state.tables, state.book, routes)
        if first is None:
            return statements, target
        statement, name = first
        before = statement.id.commit_ts - 1
        if not state.gate.has_watermarks or before <= state.applied_ts:
            raise SchemaChangeRefused(name, statement.id.query)
        return self._statements(before)
