"""Keeps the rows of a TSO from TiDB's garbage collection while a load reads them.

One session stays open at the TSO: the cluster then counts it as a running transaction, and garbage
collection waits for it until the TSO is `tidb_gc_max_wait_time` old. A session that is lost is
opened again. The server refuses that if the rows are gone meanwhile, so what the guard says is
exact whenever the server answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tidegate.model import SourceError, tso_to_datetime
from tidegate.upstream.database import DatabaseSession, UpstreamDatabase
from tidegate.upstream.errors import DatabaseUnreachable, SnapshotLost

INTERVAL = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class GuardReport:
    """How a guard is: `lost` or `unreachable` say why it holds nothing, or may not.

    `holds_until` is when garbage collection stops waiting; None where nothing is collected.
    """

    at: int | None
    checked: datetime
    holds_until: datetime | None = None
    unreachable: DatabaseUnreachable | None = None
    lost: SnapshotLost | None = None

    @property
    def holds(self) -> bool:
        """Whether the rows were there when it was last checked."""
        return self.lost is None and self.unreachable is None

    def time_left(self, now: datetime) -> timedelta | None:
        """How long the rows are still kept at least."""
        return None if self.holds_until is None else self.holds_until - now


class SnapshotGuard:
    """Holds one TSO; `start` checks it each minute in a thread, `check` does so now."""

    def __init__(
        self,
        database: UpstreamDatabase,
        at: int | None,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        interval: timedelta = INTERVAL,
        on_loss: Callable[[SnapshotLost], object] | None = None,
    ) -> None:
        self._database = database
        self._at = at
        self._clock = clock
        self._interval = interval
        self._on_loss = on_loss
        self._session: DatabaseSession | None = None
        self._holds_until: datetime | None = None
        self._report = GuardReport(at, clock())
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> SnapshotGuard:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def report(self) -> GuardReport:
        """What the last check found."""
        return self._report

    def start(self) -> SnapshotGuard:
        """Opens the session, an error if its rows are not to be had, and keeps it."""
        report = self.check()
        trouble: SourceError | None = report.lost or report.unreachable
        if trouble is not None:
            raise trouble
        self._thread = threading.Thread(target=self._run, name="snapshot-guard", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Lets the rows go."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._close_session()

    def check(self) -> GuardReport:
        """Asks the server now. A loss is final: later checks repeat it."""
        with self._lock:
            if self._report.lost is None:
                self._report = self._checked()
                if self._report.lost is not None and self._on_loss is not None:
                    self._on_loss(self._report.lost)
            return self._report

    def _run(self) -> None:
        while not self._closing.wait(self._interval.total_seconds()):
            self.check()

    def _checked(self) -> GuardReport:
        now = self._clock()
        try:
            self._ask()
        except DatabaseUnreachable as error:
            self._close_session()
            return GuardReport(self._at, now, self._holds_until, unreachable=error)
        except SnapshotLost as error:
            self._close_session()
            return GuardReport(self._at, now, lost=error)
        return GuardReport(self._at, now, self._holds_until)

    def _ask(self) -> None:
        if self._session is not None:
            try:
                self._session.rows("SELECT 1")
            except DatabaseUnreachable:
                self._close_session()
        if self._session is None:
            self._session = self._database.session(self._at)
        self._compare_safe_point()

    def _compare_safe_point(self) -> None:
        collection = self._database.garbage_collection()
        if collection is None or self._at is None:
            return
        self._holds_until = tso_to_datetime(self._at) + max(
            collection.max_wait, collection.life_time
        )
        if collection.safe_point is not None and collection.safe_point > self._at:
            raise SnapshotLost(
                f"the database at {self._database.server.address}",
                f"its garbage collection has passed {tso_to_datetime(self._at):%Y-%m-%d %H:%M:%S} "
                "UTC, the instant of the load",
                "Start the load again: it takes a new instant. To keep the past for longer: "
                "SET GLOBAL tidb_gc_life_time = '72h'",
            )

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
