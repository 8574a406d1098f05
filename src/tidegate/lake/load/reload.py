"""Loads single tables again and puts them in the place of what the lake has of them.

The tables are read as of the lake's own instant, so they fit to all others and to every later
change of the feed. One recorded step shows them; the old ones stay readable at earlier instants. A
table that is stopped, incomplete or diverged is mirrored again from then on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tidegate.lake.apply.plan.steps import Create
from tidegate.lake.apply.plan.tables import Status, Table
from tidegate.lake.apply.planner import Planner
from tidegate.lake.formats.base import Position
from tidegate.lake.lake import Lake
from tidegate.lake.load.loader import begun, fill, planned_tables
from tidegate.lake.load.plans import LoadPlan, LoadPlans
from tidegate.lake.load.sources import LoadSource
from tidegate.lake.load.staging import LoadProgress, Staging
from tidegate.lake.maintenance import obstacle
from tidegate.lake.record import Intent, MirrorState, Snapshot
from tidegate.lake.routes import Routes
from tidegate.model import LakeError, SourceError, tso_to_datetime
from tidegate.sql.tables import Name
from tidegate.upstream.errors import SnapshotLost


class Reload:
    """Reloads tables of a lake. No mirror may run on it meanwhile: see `lease`."""

    def __init__(
        self,
        lake: Lake,
        source: LoadSource,
        names: Sequence[Name],
        *,
        routes: Routes | None = None,
        threads: int = 4,
        epoch: int | None = None,
        on_progress: Callable[[LoadProgress], None] = lambda progress: None,
        boundary: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._lake = lake
        self._source = source
        self._names = tuple(names)
        self._routes = routes or Routes()
        self._threads = threads
        self._plans = LoadPlans(lake.tables, epoch)
        self._on_progress = on_progress
        self._boundary = boundary
        self.progress = LoadProgress(source.description)

    def run(self) -> list[Table]:
        """Reloads the tables; as they then are."""
        state = self._state()
        plan = self._unfinished(state)
        if plan is not None:
            return self._carry_out(plan, state)
        self._check(state)
        try:
            with self._source.held(state.applied_ts):
                plan = self._continued(state) or self._planned(state)
                return self._carry_out(plan, state)
        except SnapshotLost as lost:
            raise _too_old(state.applied_ts, lost) from lost

    # --- what may be done -------------------------------------------------------------------------

    def _state(self) -> MirrorState:
        state = self._lake.snapshots.state()
        if state is None:
            raise LakeError(
                "The lake has no tables yet", "Load all of them with `tidegate mirror … --load`"
            )
        return state

    def _unfinished(self, state: MirrorState) -> LoadPlan | None:
        """The reload that was cut off while tables were put in place; it is finished first."""
        intent = self._lake.snapshots.intended()
        if intent is None or intent.step <= state.step or not intent.reload:
            return None
        plan = self._plans.last()
        assert plan is not None
        assert plan.id == intent.reload
        return plan

    def _check(self, state: MirrorState) -> None:
        """Refuses what could not be exact."""
        found = obstacle(self._lake, state)
        if found is not None:
            raise found
        if not state.gate.has_watermarks:
            raise LakeError(
                "The feed has no watermarks, so nobody knows which of its changes a reloaded table "
                "already has",
                "Load all tables into a new lake: `tidegate mirror … --load … --lake NEW`",
            )
        for name in self._names:
            if not self._routes.wants(name):
                raise LakeError(
                    f"The table {name} is not among those that the lake mirrors",
                    "Name a table that the lake's filter selects; `tidegate status` shows them",
                )
        ts, shown = state.applied_ts, self._source.fixed_ts
        if shown is not None and shown != ts:
            raise LakeError(
                f"The lake is at {ts} ({_time(ts)}), and {self._source.description} shows {shown} "
                f"({_time(shown)})",
                "Reload from TiDB, which can show the lake's instant: --load mysql://…",
            )
        if shown is None and not self._source.has_snapshots:
            raise LakeError(
                f"{self._source.description} shows only the present, not the lake's instant {ts}",
                "If nobody writes to it, and it has been as it is since then, say so with "
                f"--load-snapshot {ts}",
            )

    # --- planning ---------------------------------------------------------------------------------

    @property
    def _identity(self) -> Mapping[str, Any]:
        names = sorted(map(str, self._names))
        return {**self._source.identity, "reload": names}

    def _continued(self, state: MirrorState) -> LoadPlan | None:
        """The plan of a reload that was cut off before, if it still fits to the lake."""
        plan = self._plans.last()
        is_same = plan is not None and plan.source == self._identity
        return plan if is_same and plan is not None and plan.ts == state.applied_ts else None

    def _planned(self, state: MirrorState) -> LoadPlan:
        wanted = {name.folded for name in self._names}
        rules = Routes(tuple(_rule(name) for name in self._names))
        loaded, sizes = self._source.tables(state.applied_ts, rules)
        loaded = loaded.without(lambda name: name.folded not in wanted)
        there = {Name(each.database, each.table).folded for each in loaded.schemas}
        for name, reason in loaded.unreadable.items():
            raise SourceError(
                self._source.description, f"{name} cannot be followed: {reason}", _LEAVE
            )
        missing = [str(name) for name in self._names if name.folded not in there]
        if missing:
            raise SourceError(
                self._source.description,
                f"it has no table {', '.join(missing)} at {_time(state.applied_ts)}",
                "Check the name, and that the user may SELECT from the table",
            )
        tables = planned_tables(self._source, state.applied_ts, loaded.schemas, sizes)
        plan = LoadPlan(state.applied_ts, self._identity, tables)
        self._plans.add(plan)
        self._boundary("reload planned")
        return plan

    # --- doing it ---------------------------------------------------------------------------------

    def _carry_out(self, plan: LoadPlan, state: MirrorState) -> list[Table]:
        old, steps = self._steps(plan, state)
        self.progress = begun(self.progress, plan, steps)
        staging = Staging(
            self._lake.tables,
            plan,
            self._source.reader(plan.ts),
            self.progress,
            routes=self._routes,
            boundary=self._boundary,
            check=lambda: self._on_progress(self.progress),
        )
        staging.find(self._lake.snapshots.needed(0) | {table.uid for table in old})
        fill(staging, plan, steps, self._threads)
        self._on_progress(self.progress)
        self._swap(plan, state, old, steps, staging)
        self.progress.ended = time.monotonic()
        return [step.table for step in steps]

    def _steps(self, plan: LoadPlan, state: MirrorState) -> tuple[list[Table], list[Create]]:
        """The tables that go, and the steps for those that come, which are in the state then."""
        names = {table.name.folded for table in plan.tables}
        old = [table for name, table in state.tables.items() if name in names]
        for name in names:
            state.tables.pop(name, None)
        position = Position(plan.ts, len(state.gate.applied_ddl))
        planner = Planner(
            state.tables,
            state.book,
            {},
            {},
            position,
            routes=self._routes,
            unsupported=self._lake.tables.unsupported,
        )
        steps = planner.loaded(table.schema for table in plan.tables)
        for table in plan.tables:
            made = state.tables[table.name.folded]
            if made.status is Status.STOPPED:
                raise LakeError(
                    f"{made.name} cannot be reloaded. {made.reason}".rstrip("."), _LEAVE
                )
        return old, steps

    def _swap(
        self,
        plan: LoadPlan,
        state: MirrorState,
        old: Sequence[Table],
        steps: Sequence[Create],
        staging: Staging,
    ) -> None:
        tables, snapshots = self._lake.tables, self._lake.snapshots
        version = self._lake.changelog.log.version()
        # Readers find a table by its uid while a step is under way, and no mirror does this one.
        intent = Intent(state.step + 1, state.applied_ts, version, retried=state.retried)
        snapshots.intend(replace(intent, reload=plan.id))
        self._boundary("reload intended")
        located = {each.uid: each for each in tables.locate()}
        for table in old:
            found = located.get(table.uid)
            if found is not None and not found.retired:
                tables.retire(found.identifier, steps[0].position)
                self._boundary("reload retired")
        staging.publish(steps)
        state.step += 1
        state.gate.close_tables(step.name for step in steps)
        wall = datetime.now(UTC)
        changed = [
            Snapshot(
                state.applied_ts,
                wall,
                step.name,
                step.table.identifier,
                step.table.uid,
                tables.version(step.table.identifier),
            )
            for step in steps
        ]
        self._boundary("reload published")
        snapshots.record(state, changed)
        self._boundary("reload recorded")


_LEAVE = "Leave it out; the reason says what is in the way"


def _rule(name: Name) -> str:
    """A rule of a table filter that selects one table."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name)


def _time(ts: int) -> str:
    return f"{tso_to_datetime(ts):%Y-%m-%d %H:%M:%S} UTC"


def _too_old(ts: int, lost: SnapshotLost) -> LakeError:
    return LakeError(
        f"The database no longer has the rows of {_time(ts)}, the instant of the lake "
        f"({lost.reason})",
        "Let the mirror catch up with `tidegate mirror --once`, and reload at once after it; or "
        "keep the past for longer: SET GLOBAL tidb_gc_life_time = '1h'",
    )
