"""A mirror at work: ingest and apply side by side, until caught up or for ever.

While ingest is far behind, the tables wait: one large step costs less than many small ones. Caught
up, a step follows every batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.lake import ingest
from tidegate.lake.lake import Lake
from tidegate.lake.lock import jvm_lock, lake_lock
from tidegate.lake.mirror import Mirror, MirrorSettings, StepReport
from tidegate.model import LakeError

CHECKPOINT = "checkpoint"
FAR_BEHIND = 200_000
"""Messages yet to be read above which the tables wait for ingest."""


@dataclass(frozen=True, slots=True)
class Feed:
    """What a lake mirrors. `identity` must stay as it is for the life of the lake."""

    changes: DataFrame
    identity: Mapping[str, Any]
    watermarks: bool = True
    partitions: Iterable[tuple[str, int]] = ()
    """Partitions that are known beforehand; Kafka's are found out."""


@dataclass(slots=True)
class Progress:
    """How a run stands."""

    phase: str = "starting"
    messages: int = 0
    behind: int | None = None
    rows: int = 0
    steps: int = 0
    applied_ts: int = 0
    resolved_ts: int = 0
    last: StepReport | None = None
    ingest_seconds: float = 0.0
    apply_seconds: float = 0.0
    waiting: Mapping[Any, int] = field(default_factory=dict)


class MirrorRun:
    """Runs a mirror on one lake."""

    def __init__(
        self,
        lake: Lake,
        feed: Feed,
        settings: MirrorSettings | None = None,
        *,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        boundary: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.lake = lake
        self.feed = feed
        self.settings = settings or MirrorSettings()
        self.progress = Progress()
        self._on_progress = on_progress
        self._boundary = boundary
        self._checkpoint = f"{lake.place.folder.rstrip('/')}/{CHECKPOINT}"

    def once(self, stop: Callable[[], bool] = lambda: False) -> Progress:
        """Reads all that the feed has now, and moves the tables as far as that allows.

        When `stop` says so it ends after the step that it is in; the next run goes on from there.
        """
        with ExitStack() as stack:
            mirror = self._open(stack)
            query = self._start(None, stack)
            self._tell("reading")
            while not self._has_ended(query):
                self._ingested(query)
                self._tell("reading")
                if stop():
                    return self.progress
            self._check(query)
            self._ingested(query)
            self.progress.ingest_seconds = self._since()
            self._tell("applying")
            while not stop() and self._step(mirror):
                self._tell("applying")
            mirror.settle()
            self._tell("done")
        return self.progress

    def forever(self, stop: Callable[[], bool] = lambda: False, interval: float = 1.0) -> Progress:
        """Follows the feed until `stop` says so."""
        with ExitStack() as stack:
            mirror = self._open(stack)
            query = self._start(interval, stack)
            patience = time.monotonic() + 60
            while not stop():
                self._check(query)
                self._ingested(query)
                behind = (self.progress.behind or 0) > FAR_BEHIND
                if behind and time.monotonic() < patience:
                    self._tell("reading")
                    time.sleep(0.5)
                    continue
                moved = self._step(mirror)
                patience = time.monotonic() + 60
                self._tell("following")
                if not moved:
                    time.sleep(0.1)
            mirror.settle()
        return self.progress

    # --- parts ------------------------------------------------------------------------------------

    def _open(self, stack: ExitStack) -> Mirror:
        folder = self.lake.place.folder
        if "://" not in folder:
            stack.enter_context(lake_lock(Path(folder)))
            stack.enter_context(jvm_lock(Path(folder), self.lake.spark))
        self._started = time.monotonic()
        mirror = Mirror(
            self.lake,
            watermarks=self.feed.watermarks,
            feed=self.feed.identity,
            settings=self.settings,
            boundary=self._boundary,
        )
        check_identity(mirror.state.feed, self.feed.identity)
        self.progress.applied_ts = mirror.state.applied_ts
        return mirror

    def _start(self, interval: float | None, stack: ExitStack) -> StreamingQuery:
        query = ingest.start_ingest(
            self.lake.tables,
            self.lake.changelog,
            self.feed.changes,
            self._checkpoint,
            interval=interval,
        )
        stack.callback(query.stop)
        return query

    def _step(self, mirror: Mirror) -> bool:
        known = [*self.feed.partitions, *ingest.partitions(self.lake.spark, self._checkpoint)]
        started = time.monotonic()
        report = mirror.step(known)
        progress = self.progress
        progress.resolved_ts = mirror.gate.resolved_ts
        progress.applied_ts = mirror.state.applied_ts
        progress.waiting = dict(mirror.waiting)
        if report is None:
            return False
        progress.apply_seconds += time.monotonic() - started
        progress.steps += 1
        progress.rows += report.rows
        progress.last = report
        return True

    def _ingested(self, query: StreamingQuery) -> None:
        last = query.lastProgress
        if last is None:
            return
        told = last.sources[0].metrics if last.sources else {}
        text = told.get("maxOffsetsBehindLatest") if told else None
        self.progress.behind = None if text is None else int(float(text))
        self.progress.messages = sum(each.numInputRows for each in query.recentProgress)

    def _has_ended(self, query: StreamingQuery) -> bool:
        try:
            return bool(query.awaitTermination(1))
        except PySparkException as error:
            raise ingest_error(error) from error

    def _check(self, query: StreamingQuery) -> None:
        error = query.exception()
        if error is not None:
            raise ingest_error(error)

    def _tell(self, phase: str) -> None:
        self.progress.phase = phase
        self._on_progress(self.progress)

    def _since(self) -> float:
        return time.monotonic() - self._started


def check_identity(recorded: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuses a feed that is not the one that the lake has."""
    for name, value in identity.items():
        if name in recorded and recorded[name] != value:
            raise LakeError(
                f"The lake mirrors a feed whose {name} is {recorded[name]!r}, not {value!r}",
                "Give the feed of this lake, or another --lake",
            )


def ingest_error(error: PySparkException) -> LakeError:
    """What went wrong with the query, in a sentence."""
    text = str(error).strip().splitlines()
    return LakeError(
        f"Reading the feed failed: {text[0] if text else type(error).__name__}",
        "Nothing is lost: mend the cause and start the mirror again",
    )
