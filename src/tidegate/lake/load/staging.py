"""Fills tables that nobody sees yet: parts of rows, read and typed in tasks, appended in commits.

A staged table has a name of its own in the lake, and a position before the instant of the load. It
counts the parts that the table has, so a load that was cut off continues after the last commit; the
table reaches the instant when it gets its name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidegate.lake.apply.plan.steps import Create
from tidegate.lake.formats.base import LOADING_DATABASE, Located, Position, TableFormat
from tidegate.lake.formats.commits import wait_after_conflict
from tidegate.lake.load.plans import LoadPlan, PlannedTable
from tidegate.lake.load.sources import Part, PartReader
from tidegate.lake.routes import Routes
from tidegate.model import SourceUnreachable, TableSchema
from tidegate.source.errors import error_in, raised_in_task
from tidegate.spark.types import arrow_type, from_text_array, spark_schema
from tidegate.spark.workers import forget_zip_importers
from tidegate.upstream.reading import ChunkInterrupted

ATTEMPTS = 5
"""How often parts are read again where the source does not answer."""
PARTS_A_TASK = 2
"""Parts that a commit has for each task that runs at once: few are read again after a crash."""


@dataclass(slots=True)
class LoadProgress:
    """How a load stands."""

    source: str = ""
    ts: int = 0
    tables: int = 0
    tables_done: int = 0
    parts: int = 0
    parts_done: int = 0
    rows: int = 0
    bytes: int = 0
    expected_bytes: int = 0
    started: float = field(default_factory=time.monotonic)
    holds_seconds: float | None = None
    """How long the database still keeps the rows of the instant; None: for ever."""
    ended: float | None = None
    attempt: int = 1
    """Which start it is: the rows of an earlier instant were gone before they were read."""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def seconds(self) -> float:
        """How long this run of it has taken so far, or took."""
        return (self.ended or time.monotonic()) - self.started

    @property
    def seconds_left(self) -> float | None:
        """How long it will take at the rate so far."""
        if not self.parts_done or not self.parts:
            return None
        return self.seconds * (self.parts - self.parts_done) / self.parts_done


@dataclass(frozen=True)
class PartWork:
    """What is sent to the Python workers: from parts to typed rows."""

    reader: PartReader
    schema: TableSchema
    parts: tuple[Part, ...]
    count: Callable[[int, int], None]
    """Is told the rows and bytes of each batch."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        forget_zip_importers()
        numbers = [number for batch in batches for number in batch["id"].to_pylist()]
        for number in numbers:
            with raised_in_task():
                for batch in self.reader.read(self.schema, self.parts[number]):
                    self.count(batch.num_rows, batch.nbytes)
                    yield typed(self.schema, batch)


def typed(schema: TableSchema, strings: pa.RecordBatch) -> pa.RecordBatch:
    """Rows as the lake holds them; TIMESTAMPs come in UTC, whatever the zone of the feed."""
    values = []
    for column in schema.carried:
        array = from_text_array(column, strings[column.name], "UTC")
        values.append(array.cast(arrow_type(column)))
    return pa.RecordBatch.from_arrays(values, names=list(schema.carried_names))


class Staging:
    """The tables of one load that are not recorded yet."""

    def __init__(
        self,
        tables: TableFormat,
        plan: LoadPlan,
        reader: PartReader,
        progress: LoadProgress,
        *,
        routes: Routes,
        boundary: Callable[[str], None] = lambda name: None,
        check: Callable[[], None] = lambda: None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """`check` raises where the load must not go on."""
        self._tables = tables
        self._plan = plan
        self._reader = reader
        self._progress = progress
        self._routes = routes
        self._boundary = boundary
        self._check = check
        self._pause = pause
        self._located: dict[str, Located] = {}
        self._planned = {table.name: table for table in plan.tables}

    def find(self, recorded: Collection[str] = ()) -> None:
        """Finds what an earlier run has left, and drops what is of no plan any more.

        `recorded` are the uids of tables that the lake shows.
        """
        located = self._tables.locate()
        self._located = {each.origin: each for each in located}
        ours = {f"{self._plan.staged_name(name)}" for name in self._planned}
        for each in located:
            name, _, _ = each.origin.rpartition("@")
            is_left = name.startswith(f"{LOADING_DATABASE}.") and name not in ours
            if is_left and not each.retired and each.uid not in recorded:
                self._tables.drop(each.identifier)

    def fill(self, step: Create) -> None:
        """Makes the table of a step, if it is not there, and gives it all its rows."""
        planned = self._planned[step.name]
        done = self._made(step)
        self._count(done, tables=0)
        parallel = self._tables.spark.sparkContext.defaultParallelism
        size = max(1, PARTS_A_TASK * parallel)
        while done < len(planned.parts):
            self._check()
            parts = planned.parts[done : done + size]
            done += len(parts)
            self._append(step, planned, parts, staged_position(step)._replace(mended=done))
            self._count(len(parts), tables=0)
            self._boundary("loaded part")
        self._count(0, tables=1)

    def _made(self, step: Create) -> int:
        """Makes the table; how many of its parts it has."""
        name = self._plan.staged_name(step.name)
        position = staged_position(step)
        found = self._located.get(self._plan.origin(step.name, position))
        if found is not None:
            step.table.identifier, step.table.uid = found.identifier, found.uid
            is_whole = found.position >= step.position
            return len(self._planned[step.name].parts) if is_whole else found.position.mended
        home = self._routes.destination(step.name)
        schema = replace(step.schema, database=name.database, table=name.table)
        identifier = self._tables.create(*name, schema, position, home)
        step.table.identifier, step.table.uid = identifier, self._tables.uid(identifier)
        self._boundary("loaded table")
        return 0

    def _append(
        self, step: Create, planned: PlannedTable, parts: Sequence[Part], position: Position
    ) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._append_once(step, planned, parts, position)
            except (SourceUnreachable, ChunkInterrupted):
                if attempt == ATTEMPTS:
                    raise
                self._pause(0.5 * 2**attempt)
            except Exception as error:
                # The JVM of a load that was killed may finish its last commit a moment later.
                if attempt == ATTEMPTS or not self._tables.met_another(error):
                    raise
                reached = self._tables.position(step.table.identifier)
                if reached is not None and reached >= position:
                    return
                wait_after_conflict(attempt)
            else:
                return

    def _append_once(
        self, step: Create, planned: PlannedTable, parts: Sequence[Part], position: Position
    ) -> None:
        spark = self._tables.spark
        counter = _Counter(spark)
        work = PartWork(self._reader, planned.schema, tuple(parts), counter)
        tasks = len(parts)
        columns = spark_schema(planned.schema.carried)
        rows = spark.range(0, tasks, 1, tasks).mapInArrow(work.__call__, columns)
        try:
            self._tables.append(step.table.identifier, rows, position)
        except PySparkException as error:
            raise error_in(error) or error from error
        with self._progress.lock:
            self._progress.rows += counter.rows
            self._progress.bytes += counter.bytes

    def _count(self, parts: int, *, tables: int) -> None:
        with self._progress.lock:
            self._progress.parts_done += parts
            self._progress.tables_done += tables

    def publish(self, steps: Sequence[Create]) -> None:
        """Gives whole tables their names in the lake."""
        for step in steps:
            name, table = self._routes.destination(step.name), step.table
            table.identifier = self._tables.rename(table.identifier, *name, step.position)
            self._boundary("loaded name")


def staged_position(step: Create) -> Position:
    """Where a table stands before the first of its parts."""
    return Position(step.position.ts - 1)


class _Counter:
    """Counts rows and bytes in tasks."""

    def __init__(self, spark: SparkSession) -> None:
        self._rows = spark.sparkContext.accumulator(0)
        self._bytes = spark.sparkContext.accumulator(0)

    def __call__(self, rows: int, size: int) -> None:
        self._rows.add(rows)
        self._bytes.add(size)

    @property
    def rows(self) -> int:
        return int(self._rows.value)

    @property
    def bytes(self) -> int:
        return int(self._bytes.value)
