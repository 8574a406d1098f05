"""Ingest: from a source to the changelog, in rounds, each message once.

A round plans splits of the source, reads and decodes them in one Spark job whose tasks write the
changelog's files, and commits the files together with the source's new position and the round's
number. There is no checkpoint beside the changelog that could disagree with it: a round that was
cut off has left nothing but files that no commit names, and is planned again.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructType

from tidegate.lake.changelog.changelog import Changelog, as_rows
from tidegate.lake.storage.log_files import WRITTEN_TYPE, LogWriter, WrittenFile
from tidegate.source.base import (
    RoundLimits,
    RoundPlan,
    Source,
    SourcePosition,
    SourceSplit,
    SplitReader,
)
from tidegate.source.errors import raised_in_task
from tidegate.spark.decoding import MAX_DECODED_BYTES, Reading, bounded
from tidegate.spark.workers import forget_zip_importers
from tidegate.wire.batch.key_updates import mark_moves

_LOG = logging.getLogger(__name__)

ROUND = "tidegate.round"
"""The property of the changelog that holds the last round's number and the source's position."""

_PLAIN_CHARACTERS = 2_000
"""A position longer than this, as JSON, is compressed: a topic per table makes it long."""
_REPORT_TYPE = StructType(
    [*WRITTEN_TYPE, *StructType().add("messages", LongType()).add("read", LongType())]
)
"""What a task reports: its files, and in the first row how many messages and bytes it has read."""


@dataclass(frozen=True, slots=True)
class Reached:
    """How far ingest has come: the number of rounds, and the position after the last one."""

    rounds: int = 0
    position: SourcePosition = field(default_factory=dict)

    def to_text(self) -> str:
        """What `from_text` reads."""
        position = json.dumps(self.position, separators=(",", ":"), sort_keys=True)
        if len(position) > _PLAIN_CHARACTERS:
            packed = b64encode(zlib.compress(position.encode())).decode()
            return json.dumps({"round": self.rounds, "packed": packed})
        return json.dumps({"round": self.rounds, "position": json.loads(position)})

    @classmethod
    def from_text(cls, text: str | None) -> Reached:
        """What the changelog says; nothing was read where it says nothing."""
        if text is None:
            return cls()
        entry = json.loads(text)
        if "packed" in entry:
            entry["position"] = json.loads(zlib.decompress(b64decode(entry["packed"])))
        return cls(entry["round"], entry["position"])


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What a round did."""

    number: int
    messages: int
    bytes: int
    """What the messages take in memory."""
    behind: int
    """How many messages remain to be read."""
    seconds: float


class Ingest:
    """Reads a source into a changelog. One at a time may do so: see `lease`."""

    def __init__(
        self,
        spark: SparkSession,
        changelog: Changelog,
        source: Source,
        reading: Reading,
        limits: RoundLimits,
        *,
        check_files: Callable[[Iterable[str]], None] = lambda paths: None,
        boundary: Callable[[str], None] = lambda name: None,
        on_round: Callable[[RoundReport], None] = lambda report: None,
    ) -> None:
        """`check_files` raises where files that tasks have written must not be committed.

        `on_round` hears of a round before its rows can be applied, so that no row is ever shown
        without the message that it came with.
        """
        self._spark = spark
        self._changelog = changelog
        self._log = changelog.log
        # A round may outlive its run and the lease of that: it must not commit under a later one.
        self._guard = self._log.guard()
        self._source = source
        self._reading = reading
        self._limits = limits
        self._check_files = check_files
        self._boundary = boundary
        self._on_round = on_round
        self._committed = self._log.properties().get(ROUND)
        self.reached = Reached.from_text(self._committed)
        self._plan: RoundPlan | None = None
        self._is_reading = False

    @property
    def partitions(self) -> frozenset[tuple[str, int]]:
        """All partitions of the source that are known, silent ones included."""
        return frozenset() if self._plan is None else self._plan.partitions

    @property
    def unread(self) -> frozenset[tuple[str, int]]:
        """The partitions with messages that are not in the changelog."""
        if self._plan is None:
            return frozenset()
        return self._plan.pending if self._is_reading else self._plan.left

    @property
    def behind(self) -> int:
        """How many messages remain to be read after the last round."""
        return 0 if self._plan is None else self._plan.behind

    @property
    def is_caught_up(self) -> bool:
        """Whether the last round has left nothing to be read."""
        return self._plan is not None and not self._is_reading and not self._plan.behind

    def round(self) -> RoundReport | None:
        """Reads what there is next; None if there is nothing."""
        self._is_reading = True
        plan = self._plan = self._source.plan(self.reached.position, self._limits)
        report = self._read(plan) if plan.splits else None
        self._is_reading = False
        return report

    def _read(self, plan: RoundPlan) -> RoundReport:
        started = time.monotonic()
        work = _SplitWork(plan.splits, self._source.reader, self._reading, self._changelog.writer())
        tasks = len(plan.splits)
        reports = self._spark.range(0, tasks, 1, tasks).mapInArrow(work.__call__, _REPORT_TYPE)
        rows = reports.collect()
        files = [WrittenFile.of(row.asDict()) for row in rows if row["path"] is not None]
        self._boundary("ingested")
        self._check_files(file.path for file in files)
        messages, size = (sum(row[name] for row in rows) for name in ("messages", "read"))
        self._source.observe(messages, size)
        number, seconds = self.reached.rounds + 1, time.monotonic() - started
        report = RoundReport(number, messages, size, plan.behind, seconds)
        self._on_round(report)
        self._commit(files, Reached(number, plan.position))
        self._boundary("committed")
        return report

    def _commit(self, files: list[WrittenFile], reached: Reached) -> None:
        """Commits a round; nothing where somebody else has committed one."""
        text = reached.to_text()
        self._changelog.report(files)
        expected = {ROUND: self._committed}
        self._log.append(files, {ROUND: text}, expected, self._guard)
        self._committed, self.reached = text, reached


@dataclass(frozen=True, slots=True)
class _SplitWork:
    """What is sent to the Python workers: from splits to files of the changelog."""

    splits: tuple[SourceSplit, ...]
    reader: SplitReader
    reading: Reading
    writer: LogWriter

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        forget_zip_importers()
        numbers = (number for batch in batches for number in batch["id"].to_pylist())
        for number in numbers:
            counter = _Counter()
            with raised_in_task():
                for report in self.writer.write(self._changes(self.splits[number], counter)):
                    yield _counted(report, counter)

    def _changes(self, split: SourceSplit, counter: _Counter) -> Iterator[pa.RecordBatch]:
        decode = self.reading.decoder()
        for batch in self.reader.read(split):
            counter.messages += batch.num_rows
            counter.size += batch.nbytes
            for part in bounded(batch, MAX_DECODED_BYTES):
                changes = as_rows(pa.Table.from_batches([mark_moves(decode(part))]))
                yield from changes.to_batches()


@dataclass(slots=True)
class _Counter:
    messages: int = 0
    size: int = 0


def _counted(report: pa.RecordBatch, counter: _Counter) -> pa.RecordBatch:
    """Reports of files, in rows of _REPORT_TYPE."""
    schema = report.schema.append(pa.field("messages", pa.int64()))
    schema = schema.append(pa.field("read", pa.int64()))
    if not report.num_rows:
        row = dict.fromkeys(schema.names) | {"messages": counter.messages, "read": counter.size}
        return pa.RecordBatch.from_pylist([row], schema)
    others = [0] * (report.num_rows - 1)
    counts = [pa.array([each, *others], pa.int64()) for each in (counter.messages, counter.size)]
    return pa.RecordBatch.from_arrays([*report.columns, *counts], schema=schema)


def warm_up(spark: SparkSession) -> None:
    """Starts Spark's Python workers and has them import what a round needs, beside other work.

    A worker takes about a second for that, and the JVM as long for its first job.
    """
    tasks = spark.sparkContext.defaultParallelism

    def run() -> None:
        try:
            spark.range(0, tasks, 1, tasks).mapInArrow(_imported, "id long").collect()
        except Exception:
            # The session ended meanwhile, which PySpark reports in many ways, or the first round
            # fails in the same way and says so. A traceback on the terminal helps nobody.
            _LOG.debug("The Python workers were not warmed up", exc_info=True)

    threading.Thread(target=run, name="warm-up", daemon=True).start()


def _imported(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Does nothing: a worker that has it has imported this module."""
    forget_zip_importers()
    yield from batches


class IngestThread:
    """Runs rounds beside the steps of a mirror, until it is stopped or fails."""

    def __init__(self, ingest: Ingest, interval: float) -> None:
        self._ingest = ingest
        self._interval = interval
        self._stopping = threading.Event()
        self.failure: Exception | None = None
        """What has ended it."""
        self._thread = threading.Thread(target=self._run, name="ingest", daemon=True)

    def start(self) -> None:
        """Begins to read."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it reads."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                self._ingest.round()
            except Exception as error:  # whatever it is, the run must hear of it
                self.failure = error
                return
            self._stopping.wait(max(0.0, started + self._interval - time.monotonic()))

    def stop(self, timeout: float) -> None:
        """Ends it after the round under way, if that takes no longer than a time."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
