"""A mirror at work: ingest and apply side by side, until caught up or for ever.

While ingest is far behind, the tables wait: one large step costs less than many small ones. Caught
up, a step follows every batch.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.feed.topic_use import FeedTopics
from tidegate.lake import ingest
from tidegate.lake.changelog import Offsets
from tidegate.lake.checkpoint import Checkpoint
from tidegate.lake.failures import FULL, causes
from tidegate.lake.lake import Lake
from tidegate.lake.lock import jvm_lock, lake_lock
from tidegate.lake.mirror import Mirror, MirrorSettings, StepReport
from tidegate.lake.probe import SharedFolder
from tidegate.lake.upkeep import Upkeep
from tidegate.model import LakeError, SourceError, TidegateError
from tidegate.spark.queries import MESSAGES_LOST, explained

_FLOOR = "tidegate.floor"
_BATCH_SECONDS = 10.0
READING = "Reading the feed"
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
    topics: FeedTopics = field(default_factory=FeedTopics)
    """What the changefeed's settings say about its topics."""


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
        locked: bool = False,
    ) -> None:
        """`locked` says that the caller holds the lock of the lake."""
        self.lake = lake
        self._locked = locked
        self.feed = feed
        self.settings = settings or MirrorSettings()
        self.progress = Progress()
        self._on_progress = on_progress
        self._boundary = boundary
        self._counted = ""
        self._checkpoint = Checkpoint.of(lake.spark, lake.place.folder)
        self._shared = SharedFolder(lake.spark, lake.place, lake.format_name)

    def once(self, stop: Callable[[], bool] = lambda: False) -> Progress:
        """Reads all that the feed has now, and moves the tables as far as that allows.

        When `stop` says so it ends after the step that it is in; the next run goes on from there.
        """
        with ExitStack() as stack:
            with self._telling("Opening the lake"):
                mirror = self._open(stack)
                query = self._start(mirror, None, stack)
            self._tell("reading")
            while not self._has_ended(query):
                self._ingested(query)
                self._tell("reading")
                if stop():
                    return self.progress
            self._check(query)
            self._ingested(query)
            self._tell("applying")
            while not stop() and self._step(mirror):
                self._tell("applying")
            with self._telling("Moving the tables on"):
                mirror.settle()
            self._tell("done")
        return self.progress

    def forever(self, stop: Callable[[], bool] = lambda: False, interval: float = 1.0) -> Progress:
        """Follows the feed until `stop` says so; a Kafka that goes away is waited for."""
        with ExitStack() as stack:
            with self._telling("Opening the lake"):
                mirror = self._open(stack)
                query = self._start(mirror, interval, stack)
            settings = self.settings
            upkeep = Upkeep(self.lake, interval=settings.maintain_seconds, keep=settings.keep)
            patience = time.monotonic() + 60
            while not stop():
                if self._is_cut_off(query):
                    self._tell("waiting for Kafka")
                    time.sleep(min(interval, 1.0))
                    with self._telling(READING):
                        query = self._start(mirror, interval, stack)
                self._ingested(query)
                behind = (self.progress.behind or 0) > FAR_BEHIND
                if behind and time.monotonic() < patience:
                    self._tell("reading")
                    time.sleep(0.5)
                    continue
                moved = self._step(mirror)
                # The step may have applied a batch that Spark has reported since.
                self._ingested(query)
                if moved:
                    with self._telling("The upkeep of the lake"):
                        upkeep.after_step(mirror)
                patience = time.monotonic() + 60
                self._tell("following")
                if not moved:
                    time.sleep(0.1)
            self._finish_batch(query)
            with self._telling("Moving the tables on"):
                mirror.settle()
        return self.progress

    # --- parts ------------------------------------------------------------------------------------

    def _open(self, stack: ExitStack) -> Mirror:
        self._shared.check()
        folder = self.lake.place.folder
        if "://" not in folder:
            if not self._locked:
                stack.enter_context(lake_lock(Path(folder)))
            stack.enter_context(jvm_lock(Path(folder), self.lake.spark))
        mirror = Mirror(
            self.lake,
            watermarks=self.feed.watermarks,
            feed=self.feed.identity,
            settings=replace(self.settings, topics=self.feed.topics),
            boundary=self._boundary,
        )
        self._claim(mirror)
        self.progress.applied_ts = mirror.state.applied_ts
        return mirror

    def _claim(self, mirror: Mirror) -> None:
        """Makes the lake this feed's; LakeError if it is another's.

        A feed of which nothing was read has no claim: a mistyped topic must not bind a lake.
        """
        claim = self.lake.claim()
        feed: dict[str, Any] = json.loads(json.dumps(dict(self.feed.identity)))
        if claim is not None and claim["feed"] != feed and self.lake.is_empty():
            self._checkpoint.remove()
            claim = None
        theirs = (mirror.state.feed or feed) if claim is None else claim["feed"]
        check_identity(theirs, feed)
        if claim is None:
            self.lake.set_claim(theirs)

    # --- ingest -----------------------------------------------------------------------------------

    def _start(self, mirror: Mirror, interval: float | None, stack: ExitStack) -> StreamingQuery:
        floor = self._floor(mirror)
        self._checkpoint.remove_drafts()
        query = ingest.start_ingest(
            self.lake.tables,
            self.lake.changelog,
            self.feed.changes,
            self._checkpoint.folder,
            wanted=floor.beyond() if floor.last else None,
            interval=interval,
            check_files=self._shared.check_files,
        )
        stack.callback(query.stop)
        if floor.last:
            self._check_gap(query, floor)
        return query

    def _floor(self, mirror: Mirror) -> Offsets:
        """What to pass over, since the changelog has it and the checkpoint does not know."""
        tables, changelog = self.lake.tables, self.lake.changelog
        done = mirror.state.offsets
        known = done.advanced(changelog.offsets_beyond(done))
        text = tables.properties(changelog.identifier).get(_FLOOR)
        floor = Offsets() if text is None else Offsets.from_object(json.loads(text))
        begun = self._checkpoint.is_begun()
        if begun:
            # The checkpoint of a capture tells files, not offsets.
            is_capture = "capture" in self.feed.identity
            self._checkpoint.check(Offsets() if is_capture else known, floor)
        if known.last == floor.last or (begun and self._checkpoint.is_done()):
            return floor
        if "capture" in self.feed.identity:
            if begun:
                return floor
            raise LakeError(
                f"The checkpoint {self._checkpoint.folder!r} is gone, and without it nothing "
                "tells which files of the capture the lake has",
                "Mirror the capture into another --lake",
            )
        # The checkpoint is new, or does not know whether its last batch is there: the lake does.
        tables.set_properties(changelog.identifier, {_FLOOR: json.dumps(known.to_object())})
        return known

    def _check_gap(self, query: StreamingQuery, floor: Offsets) -> None:
        """Raises LakeError if the topic no longer has what follows the floor."""
        starts = self._checkpoint.starts()
        while not starts and query.isActive:
            time.sleep(0.1)
            starts = self._checkpoint.starts()
        for (topic, partition), last in floor.last.items():
            first = starts.get((topic, partition), 0)
            if first > last + 1:
                raise LakeError(
                    f"Topic {topic!r} begins at offset {first} of partition {partition} now, and "
                    f"the lake has only what came up to {last}: messages are lost",
                    "Mirror the feed into another --lake, from a new changefeed",
                )

    # --- apply ------------------------------------------------------------------------------------

    def _step(self, mirror: Mirror) -> bool:
        ends = self._checkpoint.ends()
        # What a batch reads is in the changelog only when the batch is done. It matters where the
        # tables' topics are known one by one.
        has_topics = self.feed.topics.topic_of is not None
        is_reading = bool(ends) and has_topics and not self._checkpoint.is_done()
        unread = mirror.unread(ends) if is_reading else []
        started = time.monotonic()
        with self._telling("Moving the tables on"):
            self._shared.check()
            report = mirror.step([*self.feed.partitions, *ends], unread)
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

    def _ingested(self, query: StreamingQuery) -> None:
        fresh = _progress_since(query, self._counted)
        if not fresh:
            return
        last = fresh[0]
        told = last.sources[0].metrics if last.sources else {}
        text = told.get("maxOffsetsBehindLatest") if told else None
        self.progress.behind = None if text is None else int(float(text))
        # The time of reading is that of the batches that had messages: both come from Spark.
        read = [each for each in fresh if each.numInputRows]
        self.progress.messages += sum(each.numInputRows for each in read)
        self.progress.ingest_seconds += (
            sum(each.durationMs.get("triggerExecution", 0) for each in read) / 1000
        )
        self._counted = last.timestamp

    def _finish_batch(self, query: StreamingQuery) -> None:
        """Waits a little for the batch under way, whose events may be in the tables, to be told."""
        deadline = time.monotonic() + _BATCH_SECONDS
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(0.05)
        self._ingested(query)

    def _has_ended(self, query: StreamingQuery) -> bool:
        with self._telling(READING):
            return bool(query.awaitTermination(1))

    def _is_cut_off(self, query: StreamingQuery) -> bool:
        """Whether the query, having read what was there, has ended because Kafka does not answer.

        Kafka's client is patient by itself, for minutes. One that never answered is an error, and
        so is whatever else has ended the query: asked for once, since it may end at any moment.
        """
        error = query.exception()
        if error is None:
            return False
        has_answered = self.progress.messages or self.progress.applied_ts
        if has_answered and any(_UNREACHABLE.search(text) for text in causes(error)):
            return True
        raise self._failure(READING, error)

    def _check(self, query: StreamingQuery) -> None:
        error = query.exception()
        if error is not None:
            raise self._failure(READING, error)

    def _failure(self, doing: str, error: Exception) -> TidegateError:
        if self._shared.refusal is not None:
            return self._shared.refusal
        return spark_failure(doing, error, self.lake.place.folder)

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


def _progress_since(query: StreamingQuery, instant: str) -> list[StreamingQueryProgress]:
    """What a query has told after an instant, the newest first.

    Spark keeps the last hundred, and `recentProgress` reads all of them from the JVM each time,
    which takes a tenth of a second.
    """
    kept: Any = query._jsq.recentProgress()
    found: list[StreamingQueryProgress] = []
    for place in reversed(range(len(kept))):
        told = StreamingQueryProgress.fromJson(json.loads(kept[place].json()))
        if told.timestamp <= instant:
            break
        found.append(told)
    return found


def check_identity(recorded: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuses a feed that is not the one that the lake has."""
    given = json.loads(json.dumps(dict(identity)))
    for name, value in recorded.items():
        if given.get(name) != value:
            raise LakeError(
                f"The lake mirrors a feed whose {name} is {value!r}, not {given.get(name)!r}",
                "Give the feed of this lake, or another --lake",
            )


_UNREACHABLE = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network|Retriable)Exception"
    "|Timed out waiting for a node assignment|Failed to get records for"
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


def spark_failure(doing: str, error: Exception, folder: str) -> TidegateError:
    """What went wrong within Spark, in a sentence: the first cause, without its stack."""
    full = disk_full(doing, error, folder)
    if full is not None:
        return full
    known = explained(error) if doing == READING else error
    if isinstance(known, SourceError):
        if known.reason == MESSAGES_LOST:
            step = "Mirror the feed into another --lake, from a new changefeed"
            return SourceError(known.source, known.reason, step)
        return known
    lines = causes(error)[-1].strip().splitlines() or [type(error).__name__]
    return LakeError(
        f"{doing} failed: {lines[0].rstrip('.')}",
        "Fix the cause and start the mirror again",
    )
