"""A mirror at work: ingest and apply side by side, until caught up or for ever.

While ingest is far behind, the tables wait: one large step costs less than many small ones. Caught
up, a step follows every round.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tidegate.changefeed.receive.topic_use import FeedTopics
from tidegate.lake.apply.failures import FULL, causes
from tidegate.lake.changelog.ingest import Ingest, IngestThread, RoundReport
from tidegate.lake.formats.base import LakePlace
from tidegate.lake.job.diagnosis import diagnosed, first_cause
from tidegate.lake.job.mirror import Mirror, MirrorSettings, StepReport
from tidegate.lake.job.probe import ExecutorProbe, unusable_python
from tidegate.lake.job.upkeep import Upkeep
from tidegate.lake.lake import Lake
from tidegate.lake.load.job import FeedCheck, LoadJob, LoadRequest, LoadStopped
from tidegate.lake.load.loader import LoadTarget, check_loadable
from tidegate.lake.load.staging import LoadProgress
from tidegate.model import LakeError, SourceUnreachable, TidegateError
from tidegate.source.base import RoundLimits, Source
from tidegate.source.errors import error_in
from tidegate.spark.decoding import Reading

_ROUND_SECONDS = 10.0
"""How long a run that is stopped waits for the round under way."""
READING = "Reading the feed"
SOURCES = ("topics", "capture")
"""What names the source of a feed in its identity: Kafka topics, or the path of a capture."""
FAR_BEHIND = 256 << 20
"""Bytes yet to be read above which the tables wait for ingest."""


@dataclass(frozen=True, slots=True)
class Feed:
    """What a lake mirrors. `identity` must stay as it is for the life of the lake."""

    source: Source
    reading: Reading
    identity: Mapping[str, Any]
    watermarks: bool = True
    limits: RoundLimits = field(default_factory=RoundLimits)
    """What a round reads at most."""
    topics: FeedTopics = field(default_factory=FeedTopics)
    """What the changefeed's settings say about its topics."""
    sends: Callable[[str, str], bool] = lambda database, table: True
    """Whether the changefeed's filter selects a table."""
    sends_keyless: bool = False
    """Whether it is known to send tables without a key (`force-replicate`)."""


@dataclass(slots=True)
class Progress:
    """How a run stands."""

    phase: str = "starting"
    messages: int = 0
    bytes: int = 0
    """What these messages took in memory."""
    behind: int | None = None
    """How many messages remain to be read."""
    rows: int = 0
    steps: int = 0
    applied_ts: int = 0
    resolved_ts: int = 0
    last: StepReport | None = None
    ingest_seconds: float = 0.0
    apply_seconds: float = 0.0
    waiting: Mapping[Any, int] = field(default_factory=dict)
    load: LoadProgress | None = None

    @property
    def bytes_behind(self) -> int:
        """About how many bytes remain to be read, by the size of the messages so far."""
        return (self.behind or 0) * self.bytes // max(1, self.messages)


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
        load: LoadRequest | None = None,
    ) -> None:
        """`load` is what a lake without tables begins with."""
        self.lake = lake
        self.feed = feed
        self.settings = settings or MirrorSettings()
        self.progress = Progress()
        self._on_progress = on_progress
        self._boundary = boundary
        self._load = load
        start = None if load is None else load.start
        self._check = FeedCheck(lake, start, watermarks=feed.watermarks)
        self._epoch = 0
        self._shared = ExecutorProbe(lake.spark, lake.changelog.log, lake.place.folder)

    def once(self, stop: Callable[[], bool] = lambda: False) -> Progress:
        """Reads all that the feed has now, and moves the tables as far as that allows.

        When `stop` says so it ends after the round or step that it is in; the next run continues
        from there.
        """
        with ExitStack() as stack:
            with self._telling("Opening the lake"):
                mirror = self._open(stack)
                ingest = self._ingest()
            loaded = self._loaded(mirror, ingest, stop)
            if loaded is None:
                return self.progress
            mirror = loaded
            self._tell("reading")
            with self._telling(READING):
                if not self._read_all(ingest, stop):
                    return self.progress
            self._tell("applying")
            while not stop() and self._step(mirror, ingest):
                self._tell("applying")
            with self._telling("Moving the tables on"):
                mirror.settle()
            self._tell("done")
        return self.progress

    def load_only(self, stop: Callable[[], bool] = lambda: False) -> Progress:
        """Loads the tables, if they are not, and follows nothing."""
        with ExitStack() as stack:
            with self._telling("Opening the lake"):
                mirror = self._open(stack)
                ingest = self._ingest()
            if self._loaded(mirror, ingest, stop) is not None:
                self._tell("done")
        return self.progress

    def _read_all(self, ingest: Ingest, stop: Callable[[], bool]) -> bool:
        """Reads what the feed has at the beginning of the first round; False if it was stopped."""
        left: int | None = None
        while True:
            report = ingest.round()
            if report is None:
                return True
            self._tell("reading")
            # What is sent meanwhile is the next run's: a busy feed would never let this one end.
            left = ingest.behind if left is None else left - report.messages
            if left <= 0:
                return True
            if stop():
                return False

    def forever(self, stop: Callable[[], bool] = lambda: False, interval: float = 1.0) -> Progress:
        """Follows the feed until `stop` says so; a Kafka that goes away is waited for."""
        with ExitStack() as stack:
            with self._telling("Opening the lake"):
                mirror = self._open(stack)
                ingest = self._ingest()
            loaded = self._loaded(mirror, ingest, stop)
            if loaded is None:
                return self.progress
            mirror = loaded
            reading = self._start(ingest, interval)
            stack.callback(lambda: reading.stop(_ROUND_SECONDS))
            settings = self.settings
            upkeep = Upkeep(self.lake, interval=settings.maintain_seconds, keep=settings.keep)
            patience = time.monotonic() + 60
            while not stop():
                if self._is_cut_off(reading):
                    self._tell("waiting for Kafka")
                    time.sleep(min(interval, 1.0))
                    reading = self._start(ingest, interval)
                is_behind = self.progress.bytes_behind > FAR_BEHIND
                if is_behind and time.monotonic() < patience:
                    self._tell("reading")
                    time.sleep(0.5)
                    continue
                moved = self._step(mirror, ingest)
                with self._telling("The upkeep of the lake"):
                    if moved:
                        upkeep.after_step(mirror)
                    else:
                        upkeep.compact_logs(mirror)
                patience = time.monotonic() + 60
                self._tell("following")
                if not moved:
                    time.sleep(0.1)
            reading.stop(_ROUND_SECONDS)
            with self._telling("Moving the tables on"):
                mirror.settle()
        return self.progress

    # --- parts ------------------------------------------------------------------------------------

    def _open(self, stack: ExitStack) -> Mirror:
        self._shared.check()
        lease = stack.enter_context(self.lake.leased(self.settings.lease_seconds))
        self._epoch = lease.epoch
        stack.callback(self.feed.source.close)
        mirror = self._mirror()
        self._claim(mirror)
        self.progress.applied_ts = mirror.state.applied_ts
        return mirror

    def _mirror(self) -> Mirror:
        return Mirror(
            self.lake,
            watermarks=self.feed.watermarks,
            feed=self.feed.identity,
            settings=replace(self.settings, topics=self.feed.topics),
            boundary=self._boundary,
        )

    def _loaded(self, mirror: Mirror, ingest: Ingest, stop: Callable[[], bool]) -> Mirror | None:
        """The mirror after the load, if there is one to do; None if that was stopped."""
        if self._load is None or mirror.state.step:
            return mirror
        check_loadable(self.lake)
        settings, feed = self.settings, self.feed
        target = LoadTarget(
            feed.identity,
            feed.watermarks,
            settings.routes,
            settings.threads,
            feed.sends,
            feed.sends_keyless,
        )
        job = LoadJob(
            self.lake,
            self._load,
            target,
            self._check,
            ingest,
            epoch=self._epoch,
            stop=stop,
            on_progress=self._tell_load,
            boundary=self._boundary,
            is_reading=lambda reading: not self._is_cut_off(reading),
        )
        try:
            with self._telling("Loading the tables"):
                job.run()
        except LoadStopped:
            return None
        mirror = self._mirror()
        self.progress.applied_ts = mirror.state.applied_ts
        return mirror

    def _tell_load(self, progress: LoadProgress) -> None:
        self.progress.load = progress
        self._tell("loading")

    def _claim(self, mirror: Mirror) -> None:
        """Makes the lake this feed's; LakeError if it is another's.

        A feed of which nothing was read has no claim: a mistyped topic must not bind a lake.
        """
        claim = self.lake.claim()
        feed: dict[str, Any] = json.loads(json.dumps(dict(self.feed.identity)))
        if claim is not None and claim["feed"] != feed and self.lake.is_empty():
            claim = None
        theirs = (mirror.state.feed or feed) if claim is None else claim["feed"]
        check_identity(theirs, feed)
        if mirror.state.step and mirror.gate.has_watermarks != self.feed.watermarks:
            raise LakeError(
                "The lake was loaded for a feed with watermarks, and this one has none",
                "Load it again, into another --lake, with this feed as SOURCE",
            )
        if claim is None:
            self.lake.set_claim(theirs)

    # --- ingest -----------------------------------------------------------------------------------

    def _ingest(self) -> Ingest:
        feed = self.feed
        return Ingest(
            self.lake.spark,
            self.lake.changelog,
            feed.source,
            feed.reading,
            feed.limits,
            check_files=self._shared.check_files,
            boundary=self._boundary,
            on_round=self._ingested,
        )

    def _start(self, ingest: Ingest, interval: float) -> IngestThread:
        thread = IngestThread(ingest, interval)
        thread.start()
        return thread

    # --- apply ------------------------------------------------------------------------------------

    def _step(self, mirror: Mirror, ingest: Ingest) -> bool:
        # It matters where the tables' topics are known one by one.
        unread = ingest.unread if self.feed.topics.topic_of is not None else ()
        started = time.monotonic()
        loaded_ts = mirror.gate.loaded_ts
        if loaded_ts and mirror.state.applied_ts == loaded_ts and not self._check.check(loaded_ts):
            return False
        with self._telling("Moving the tables on"):
            self._shared.check()
            report = mirror.step(ingest.partitions, unread)
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

    # --- how it goes ------------------------------------------------------------------------------

    def _ingested(self, report: RoundReport) -> None:
        """Counts a round; a step that applies its rows comes later."""
        self.progress.messages += report.messages
        self.progress.bytes += report.bytes
        self.progress.ingest_seconds += report.seconds
        self.progress.behind = report.behind

    def _is_cut_off(self, reading: IngestThread) -> bool:
        """Whether reading has ended because Kafka, which answered before, does not any more.

        A Kafka that never answered is an error, and so is whatever else has ended it.
        """
        error = reading.failure
        if error is None:
            return False
        has_answered = self.progress.messages or self.progress.applied_ts
        failure = error_in(error) or error
        if has_answered and isinstance(failure, SourceUnreachable):
            return True
        if isinstance(error, TidegateError):
            raise error
        raise self._failure(READING, error)

    def _failure(self, doing: str, error: Exception) -> TidegateError:
        if self._shared.refusal is not None:
            return self._shared.refusal
        return spark_failure(doing, error, self.lake.place)

    def _tell(self, phase: str) -> None:
        self.progress.phase = phase
        self._on_progress(self.progress)

    @contextmanager
    def _telling(self, doing: str) -> Iterator[None]:
        """Whatever fails in Spark is told in a sentence."""
        try:
            yield
        except (PySparkException, Py4JError) as error:
            raise self._failure(doing, error) from error
        except OSError as error:  # of a store that Python opens itself
            known = diagnosed(error, self.lake.place)
            if known is None:
                raise
            raise known from error


def check_identity(recorded: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuses a feed that is not the one that the lake has."""
    given = json.loads(json.dumps(dict(identity)))
    for name, value in recorded.items():
        if given.get(name) == value:
            continue
        other = f"{given.get(name)!r}"
        source = next((each for each in SOURCES if each in given), None)
        if name in SOURCES and source is not None and source != name:
            other = f"the {source} {given[source]!r}"
        raise LakeError(
            f"The lake mirrors a feed whose {name} is {value!r}, not {other}",
            "Give the feed of this lake, or another --lake",
        )


def disk_full(doing: str, error: Exception, folder: str) -> LakeError | None:
    """What to say where an error comes of a full disk; None where it does not."""
    if not any(FULL.search(text) for text in causes(error)):
        return None
    return LakeError(
        f"{doing} failed: no space is left on the disk of the lake {folder!r}, or on that of "
        "Spark's own files",
        "Make room and start the mirror again",
    )


def spark_failure(doing: str, error: Exception, place: LakePlace) -> TidegateError:
    """What went wrong within Spark, in a sentence: the first cause, without its stack."""
    known = (
        disk_full(doing, error, place.folder)
        or error_in(error)
        or unusable_python(error)
        or diagnosed(error, place)
    )
    if known is not None:
        return known
    return LakeError(
        f"{doing} failed: {first_cause(error)}", "Fix the cause and start the mirror again"
    )
