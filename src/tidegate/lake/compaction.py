"""Compacts the logs of a lake: many small files become few, read and written with Arrow.

The new files are written first, by a Spark job or, where there is little to do, by the driver. One
commit then puts them in the place of the old ones; it fails if the lease is lost or somebody else
has replaced one of the files. What others append meanwhile stays. A crash before that commit leaves
files that no version names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from tidegate.lake.formats.log_table import FilesReplaced, LogTable
from tidegate.lake.storage.file_store import FileStore
from tidegate.lake.storage.log_files import (
    WRITTEN_TYPE,
    LogFile,
    LogWriter,
    WrittenFile,
    holding,
    read_files,
)
from tidegate.lake.storage.predicates import ALWAYS, NEVER, Condition
from tidegate.model import LakeError
from tidegate.spark.workers import forget_zip_importers

TARGET_BYTES = 128 << 20
"""How large files become; one of half the size is left as it is."""
_FANOUT = 8
"""This number of files of about the same size become one, so that few rows are written often."""
_SMALLEST = 64 << 10
"""Files below this size count as equally large."""
_DRIVER_BYTES = 16 << 20
"""Up to this size, compressed, the driver rewrites files without a job."""


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """Which files of a log are rewritten: each batch becomes one file per partition.

    Rows that meet `dropped` are left out. The files `removed` go with all their rows.
    """

    batches: tuple[tuple[LogFile, ...], ...] = ()
    removed: tuple[LogFile, ...] = ()
    dropped: Condition = field(default=NEVER)

    @property
    def files(self) -> list[LogFile]:
        """All files that are replaced."""
        return [*(file for batch in self.batches for file in batch), *self.removed]


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """How many files a compaction has replaced, and how many it has written."""

    replaced: int = 0
    written: int = 0


def is_small(file: LogFile) -> bool:
    """Whether a file is worth being rewritten together with others."""
    return file.bytes < TARGET_BYTES // 2


def batches_of(files: Sequence[LogFile], *, all_small: bool) -> list[tuple[LogFile, ...]]:
    """The small files of one partition in batches of up to TARGET_BYTES, each to become one file.

    Files are compacted with others of about their size, and when there are several: so a row is
    rewritten a few times in all, however often that is done. With `all_small`, any two will do.
    """
    classes: dict[int, list[LogFile]] = {}
    for file in files:
        if is_small(file):
            classes.setdefault(0 if all_small else _size_class(file), []).append(file)
    least = 2 if all_small else _FANOUT
    chosen = (each for each in classes.values() if len(each) >= least)
    return [batch for each in chosen for batch in _filled(each) if len(batch) > 1]


def _size_class(file: LogFile) -> int:
    number, limit = 0, _SMALLEST
    while file.bytes >= limit:
        number, limit = number + 1, limit * _FANOUT
    return number


def _filled(files: Sequence[LogFile]) -> Iterator[tuple[LogFile, ...]]:
    batch: list[LogFile] = []
    size = 0
    for file in files:
        if batch and size + file.bytes > TARGET_BYTES:
            yield tuple(batch)
            batch, size = [], 0
        batch.append(file)
        size += file.bytes
    yield tuple(batch)


def compact_log(
    spark: SparkSession, log: LogTable, *, all_small: bool = False, dropped: Condition = NEVER
) -> CompactionReport:
    """Compacts a log, and drops the rows that meet a condition; all in one commit.

    With `all_small`, also files of which there are few.
    """
    loaded = log.load()
    files = log.files(loaded.version, ALWAYS)
    partitions: dict[tuple[object, ...], list[LogFile]] = {}
    for file in files:
        partitions.setdefault(file.partition, []).append(file)
    batches = [
        batch for each in partitions.values() for batch in batches_of(each, all_small=all_small)
    ]
    chosen = {file.path for batch in batches for file in batch}
    store = loaded.store()
    for file in holding(files, dropped, log.schema):
        if file.path not in chosen and _has_rows(store, file, dropped, log.schema.names[0]):
            batches.append((file,))
    return rewrite(spark, log, RewritePlan(tuple(batches), dropped=dropped), loaded.writer())


def _has_rows(store: FileStore, file: LogFile, condition: Condition, column: str) -> bool:
    return next(read_files(store, [file], condition, [column]), None) is not None


def rewrite(
    spark: SparkSession,
    log: LogTable,
    plan: RewritePlan,
    writer: LogWriter,
    *,
    on_written: Callable[[Sequence[WrittenFile]], None] = lambda files: None,
) -> CompactionReport:
    """Carries out a plan in one commit; nothing where somebody else has replaced the files.

    `on_written` hears of the new files before they are committed.
    """
    if not plan.files:
        return CompactionReport()
    work = _RewriteWork(plan.batches, plan.dropped, writer)
    written = work.here() if _is_little(plan) else work.in_tasks(spark)
    on_written(written)
    try:
        log.replace_files([file.path for file in plan.files], written)
    except FilesReplaced:
        for file in written:
            writer.store.filesystem(file.path).delete_file(writer.store.path(file.path))
        return CompactionReport()
    log.files_added = 0
    return CompactionReport(len(plan.files), len(written))


def _is_little(plan: RewritePlan) -> bool:
    return sum(file.bytes for batch in plan.batches for file in batch) <= _DRIVER_BYTES


@dataclass(frozen=True, slots=True)
class _RewriteWork:
    """What is sent to the Python workers: from files to fewer files."""

    batches: tuple[tuple[LogFile, ...], ...]
    dropped: Condition
    writer: LogWriter

    def here(self) -> list[WrittenFile]:
        return [
            WrittenFile.of(report)
            for number in range(len(self.batches))
            for reports in self._rewritten(number)
            for report in reports.to_pylist()
        ]

    def in_tasks(self, spark: SparkSession) -> list[WrittenFile]:
        tasks = len(self.batches)
        reports = spark.range(0, tasks, 1, tasks).mapInArrow(self.__call__, WRITTEN_TYPE)
        return [WrittenFile.of(row.asDict()) for row in reports.collect()]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        forget_zip_importers()
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from self._rewritten(number)

    def _rewritten(self, number: int) -> Iterator[pa.RecordBatch]:
        """Reports of the files that a batch has become."""
        return self.writer.write(self._kept(self.batches[number]))

    def _kept(self, files: Sequence[LogFile]) -> Iterator[pa.RecordBatch]:
        """The rows of files, but for those that are dropped."""
        expected, read = sum(file.rows for file in files), 0
        for batch in read_files(self.writer.store, files, ALWAYS, self.writer.schema.names):
            read += batch.num_rows
            kept = _without(batch, self.dropped)
            if kept.num_rows:
                yield kept
        if read != expected:
            raise LakeError(
                f"Files of {self.writer.folder} have {read} rows, and the table says {expected}",
                "Something else has changed files of the lake: restore them from a backup",
            )


def _without(batch: pa.RecordBatch, dropped: Condition) -> pa.RecordBatch:
    """The rows that do not meet a condition; one that is NULL is not met."""
    if dropped == NEVER:
        return batch
    table = pa.Table.from_batches([batch])
    place = pa.array(range(batch.num_rows), pa.int64())
    found = table.append_column("_place", place).filter(dropped.arrow())["_place"]
    if not len(found):
        return batch
    return batch.filter(pc.invert(pc.is_in(place, found)))
