"""Makes the planner of a step from what the mirror knows of tables, rows and the feed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate.lake.apply.planner import Planner
from tidegate.lake.changelog.changelog import Changelog, Group, of_table
from tidegate.lake.changelog.interval import Interval
from tidegate.lake.formats.base import Position
from tidegate.lake.job.step.choosing import StepScope
from tidegate.lake.job.step.session import MirrorSession
from tidegate.lake.storage.predicates import above, every
from tidegate.sql.tables import Name

Overtaken = Callable[[Name, int], bool]
"""Whether rows of a name from after an instant were applied by earlier steps."""


class StepPlanning:
    """Makes planners; each changes the state's tables and book as it plans."""

    def __init__(self, session: MirrorSession) -> None:
        self._session = session
        self._state = session.state

    def planner_of(self, changelog: Changelog, scope: StepScope) -> Planner:
        """The planner of a step that moves the tables on."""
        end = Position(scope.target)
        if not self._session.gate.has_watermarks:
            end = Position(scope.target, 2 * len(scope.statements) + 1)
        applied = self._applied_rows(changelog, scope.interval, scope.groups)
        return self.planner(scope.groups, end, applied, self._overtaken(changelog))

    def planner(
        self,
        groups: Sequence[Group],
        end: Position,
        applied: Sequence[Group] = (),
        overtaken: Overtaken = lambda name, ts: False,
    ) -> Planner:
        """A planner for these rows, up to a position."""
        session, settings = self._session, self._session.settings
        return Planner(
            self._state.tables,
            self._state.book,
            *session.schemas.layouts([*groups, *applied]),
            end,
            session.schemas.keys_of_shapes(groups),
            settings.routes,
            completes=settings.upstream is not None,
            policy=session.policy,
            unsupported=session.lake.tables.unsupported,
            zone=settings.time_zone,
            in_commit_order=session.gate.has_watermarks,
            applied=applied,
            topics=settings.topics,
            overtaken=overtaken,
        )

    def _applied_rows(
        self, changelog: Changelog, interval: Interval, groups: Sequence[Group]
    ) -> list[Group]:
        """The rows of the last instant that were applied in time, if others came late."""
        if not any(group.late for group in groups):
            return []
        changelog, schemas = changelog.whole(), self._session.schemas
        applied = changelog.groups(Interval(interval.applied))
        schemas.learn_shapes(changelog, applied)
        return [group for group in applied if schemas.missing(group) is None]

    def _overtaken(self, changelog: Changelog) -> Overtaken:
        applied = ~self._state.offsets.beyond()
        if self._session.gate.has_watermarks or not self._state.offsets.last:
            return lambda name, ts: False

        def overtaken(name: Name, ts: int) -> bool:
            later = every(of_table(*name), applied, above("commit_ts", ts))
            return changelog.whole().has_changes(later)

        return overtaken
