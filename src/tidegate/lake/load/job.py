"""A load as a part of a mirror's run: the feed is read into the changelog meanwhile.

So the topic need not keep its messages for as long as the load takes, and a feed that has a hole is
noticed as soon as its first messages are there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.lake.changelog.ingest import Ingest, IngestThread
from tidegate.lake.lake import Lake
from tidegate.lake.load.loader import Loader, LoadTarget
from tidegate.lake.load.sources import LoadSource
from tidegate.lake.load.staging import LoadProgress
from tidegate.lake.load.start import NO_WATERMARKS, FeedBeginning, KnownStart

_PATIENCE_SECONDS = 60.0
"""How long a load that is done waits for the first watermark of its feed."""


class LoadStopped(Exception):
    """Somebody has asked for an end; the next run continues."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What to load a lake from that has no tables yet, and where the feed starts, if known."""

    source: LoadSource
    start: KnownStart | None = None


class FeedCheck:
    """Whether the feed has all changes after the load: asked until that is known."""

    def __init__(self, lake: Lake, start: KnownStart | None, *, watermarks: bool) -> None:
        self._lake = lake
        self._start = start
        self._watermarks = watermarks
        self._version: int | None = None
        self.is_covered = False

    def check(self, load_ts: int) -> bool:
        """Whether it has; False if that is not known yet."""
        if self.is_covered:
            return True
        if self._start is not None:
            self._start.check(load_ts)
        elif not self._watermarks:
            raise NO_WATERMARKS
        version = self._lake.changelog.log.version()
        if version != self._version:
            self._version = version
            beginning = FeedBeginning.of(self._lake.changelog)
            self.is_covered = beginning.covers(load_ts, self._start)
        return self.is_covered


class LoadJob:
    """Runs a load beside ingest."""

    def __init__(
        self,
        lake: Lake,
        request: LoadRequest,
        target: LoadTarget,
        check: FeedCheck,
        ingest: Ingest,
        *,
        epoch: int,
        stop: Callable[[], bool],
        on_progress: Callable[[LoadProgress], None],
        boundary: Callable[[str], None],
        is_reading: Callable[[IngestThread], bool],
    ) -> None:
        """`is_reading` says whether ingest goes on; it raises what has ended it for good."""
        self._check = check
        self._ingest = ingest
        self._stop = stop
        self._is_reading = is_reading
        self._thread = IngestThread(ingest, 1.0)
        self._loader = Loader(
            lake,
            request.source,
            target,
            epoch=epoch,
            on_progress=on_progress,
            boundary=boundary,
            check=self._look,
            settle=self._settle,
        )

    def run(self) -> None:
        """Loads the lake; LoadStopped if it was stopped."""
        self._thread.start()
        try:
            self._loader.run()
        finally:
            self._thread.stop(_PATIENCE_SECONDS)

    def _look(self, ts: int) -> None:
        if self._stop():
            raise LoadStopped
        if not self._is_reading(self._thread):
            self._thread = IngestThread(self._ingest, 1.0)
            self._thread.start()
        self._check.check(ts)

    def _settle(self, ts: int) -> None:
        """Waits until the feed is known to have all changes after the load, for a while."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while not (self._check.check(ts) or self._ingest.is_caught_up):
            if time.monotonic() > until:
                return
            self._look(ts)
            time.sleep(0.2)
