"""The initial load of a lake: all tables at one instant, shown in one recorded step.

The plan is written down first, then tables are filled under names that nobody looks at, and when
all are whole they get their names and the record shows them. Killed anywhere, a load continues with
the parts that are missing while its instant can be read, and begins again at a new one otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from tidegate.lake.apply.plan.steps import Create
from tidegate.lake.lake import Lake
from tidegate.lake.load.plans import LoadPlan, LoadPlans, PlannedTable
from tidegate.lake.load.sources import LoadSource, TableSize
from tidegate.lake.load.staging import LoadProgress, Staging
from tidegate.lake.load.start import FeedStartsLater
from tidegate.lake.load.state import FirstState
from tidegate.lake.record import MirrorState, Snapshot
from tidegate.lake.routes import Routes
from tidegate.model import LakeError, TableSchema
from tidegate.sql.tables import Name
from tidegate.upstream.errors import SnapshotLost
from tidegate.upstream.guard import GuardReport

MOST_STARTS = 3
"""How often a load begins at a new instant where the rows of the last one were lost."""
_PLANNERS = 8


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """What the tables are loaded for: the feed that continues them, and how they are kept."""

    feed: Mapping[str, Any]
    watermarks: bool = True
    routes: Routes = field(default_factory=Routes)
    threads: int = 4
    sends: Callable[[str, str], bool] = lambda database, table: True
    """Whether the feed's own filter selects a table."""
    sends_keyless: bool = True
    """Whether the feed is known to send tables without a key."""


class Loader:
    """Loads a lake from a source. One at a time may do so: see `lease`."""

    def __init__(
        self,
        lake: Lake,
        source: LoadSource,
        target: LoadTarget,
        *,
        epoch: int | None = None,
        on_progress: Callable[[LoadProgress], None] = lambda progress: None,
        boundary: Callable[[str], None] = lambda name: None,
        check: Callable[[int], None] = lambda ts: None,
        settle: Callable[[int], None] = lambda ts: None,
    ) -> None:
        """`epoch` is that of the lease. `check` raises where a load at an instant is of no use.

        `settle` does so too, before the tables are shown.
        """
        self._lake = lake
        self._source = source
        self._target = target
        self._plans = LoadPlans(lake.tables, epoch)
        self._on_progress = on_progress
        self._boundary = boundary
        self._check = check
        self._settle = settle
        self._again = False
        """Whether the instant of the last plan is of no use any more."""
        self.progress = LoadProgress(source.description)

    def run(self) -> MirrorState:
        """Loads all tables; the state that is then recorded."""
        if self._lake.snapshots.state() is not None:
            raise LakeError(
                "The lake has tables already", "Load single tables again with `tidegate reload`"
            )
        for start in range(1, MOST_STARTS + 1):
            self.progress = LoadProgress(self._source.description, attempt=start)
            try:
                return self._run_once()
            except (SnapshotLost, FeedStartsLater):
                if start == MOST_STARTS or self._source.fixed_ts is not None:
                    raise
                self._again = True
        raise AssertionError("unreachable")

    def _run_once(self) -> MirrorState:
        last = None if self._again else self._plans.last()
        if last is not None and last.source == self._identity:
            return self._at(last.ts, last)
        return self._at(self._new_ts(), None)

    @property
    def _identity(self) -> dict[str, Any]:
        """What must be the same for a load that was cut off to be continued."""
        target = self._target
        kept = {"tables": target.routes.to_object(), "watermarks": target.watermarks}
        return {**self._source.identity, **kept}

    def _new_ts(self) -> int:
        return self._source.take_ts(whole_milliseconds=not self._target.watermarks)

    def _at(self, ts: int, plan: LoadPlan | None) -> MirrorState:
        self._check(ts)
        with self._source.held(ts) as report:
            if plan is None:
                plan = self._planned(ts)
                self._plans.add(plan)
                self._boundary("load planned")
            return self._carry_out(plan, report)

    # --- planning ---------------------------------------------------------------------------------

    def _planned(self, ts: int) -> LoadPlan:
        routes = self._target.routes
        loaded, sizes = self._source.tables(ts, routes)
        loaded = loaded.without(lambda name: not self._target.sends(*name))
        if not loaded.schemas and not loaded.unreadable:
            raise LakeError(
                f"There is no table to load in {self._source.description}",
                "Check the table filter, and that the user may SELECT from the tables: one that it "
                "has no right to looks as if it did not exist",
            )
        tables = planned_tables(self._source, ts, loaded.schemas, sizes)
        return LoadPlan(ts, self._identity, tables, loaded.unreadable, loaded.databases)

    # --- doing it ---------------------------------------------------------------------------------

    def _carry_out(self, plan: LoadPlan, report: Callable[[], GuardReport | None]) -> MirrorState:
        first = FirstState.of(
            plan.loaded,
            plan.ts,
            watermarks=self._target.watermarks,
            feed=self._target.feed,
            routes=self._target.routes,
            unsupported=self._lake.tables.unsupported,
            sends_keyless=self._target.sends_keyless,
        )
        progress = begun(self.progress, plan, first.creates)
        self.progress = progress
        self._on_progress(progress)

        def check() -> None:
            self._look(report(), plan.ts)

        staging = Staging(
            self._lake.tables,
            plan,
            self._source.reader(plan.ts),
            progress,
            routes=self._target.routes,
            boundary=self._boundary,
            check=check,
        )
        staging.find()
        fill(staging, plan, first.creates, self._target.threads)
        check()
        self._settle(plan.ts)
        staging.publish(first.creates)
        self._record(first)
        progress.ended = time.monotonic()
        return first.state

    def _look(self, report: GuardReport | None, ts: int) -> None:
        """Tells how the load stands; raises where it must not go on."""
        if report is not None:
            if report.lost is not None:
                raise report.lost
            left = report.time_left(datetime.now(UTC))
            self.progress.holds_seconds = None if left is None else left.total_seconds()
        self._check(ts)
        self._on_progress(self.progress)

    def _record(self, first: FirstState) -> None:
        state, tables = first.state, self._lake.tables
        state.retried = self._lake.quarantine.last_time()
        wall = datetime.now(UTC)
        changed = [
            Snapshot(
                state.applied_ts,
                wall,
                table.name,
                table.identifier,
                table.uid,
                tables.version(table.identifier),
            )
            for table in state.tables.values()
            if table.identifier
        ]
        self._boundary("load published")
        self._lake.snapshots.record(state, changed)
        self._boundary("load recorded")


def check_loadable(lake: Lake) -> None:
    """Refuses a lake whose mirror has begun without a load."""
    if lake.snapshots.intended() is not None:
        raise LakeError(
            "The lake's mirror was begun without a load, and its first step was cut off",
            "Load into another --lake, or mirror on without --load",
        )


def planned_tables(
    source: LoadSource,
    ts: int,
    schemas: Sequence[TableSchema],
    sizes: Mapping[Name, TableSize],
) -> tuple[PlannedTable, ...]:
    """Tables with their parts; the source is asked about several at once."""

    def plan(schema: TableSchema) -> PlannedTable:
        name = Name(schema.database, schema.table)
        return PlannedTable(schema, tuple(source.parts(ts, schema)), sizes.get(name, TableSize()))

    with ThreadPoolExecutor(_PLANNERS, thread_name_prefix="load-plan") as pool:
        return tuple(pool.map(plan, schemas))


def begun(progress: LoadProgress, plan: LoadPlan, steps: Sequence[Create]) -> LoadProgress:
    """How a load stands before its first part."""
    planned = {table.name: table for table in plan.tables}
    of_load = [planned[step.name] for step in steps]
    return replace(
        progress,
        ts=plan.ts,
        tables=len(of_load),
        parts=sum(len(table.parts) for table in of_load),
        expected_bytes=sum(table.size.bytes for table in of_load),
        started=time.monotonic(),
    )


def fill(staging: Staging, plan: LoadPlan, steps: Sequence[Create], threads: int) -> None:
    """Fills tables at once, the largest first, so that none is left to the end alone."""
    sizes = {table.name: (len(table.parts), table.size.bytes) for table in plan.tables}
    ordered = sorted(steps, key=lambda step: sizes[step.name], reverse=True)
    with ThreadPoolExecutor(threads, thread_name_prefix="load") as pool:
        futures = [pool.submit(staging.fill, step) for step in ordered]
        try:
            for future in futures:
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise
