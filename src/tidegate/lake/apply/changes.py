"""Where the row changes of a step are read: in this process, or spread over Spark's tasks.

Mostly these are files of the changelog, which Python reads directly. A repair marks late rows by a
join, so there Spark reads them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tidegate.lake.apply.rows import Copies
from tidegate.lake.changelog.changelog import EVENT_SCHEMA
from tidegate.lake.storage.file_store import FileStore
from tidegate.lake.storage.log_files import LogFile, decoded_bytes, read_files
from tidegate.lake.storage.predicates import Condition
from tidegate.spark.workers import forget_zip_importers

_CHUNK_BYTES = 16 << 20
"""What a task hands to Spark at a time."""
_CHUNK_ROWS = 10_000
_BYTES_A_ROW = 640
"""About what a change takes in memory, where nothing else is known."""

Batches = Iterable[pa.RecordBatch]
Reading = Callable[[Batches], Iterator[pa.Table]]


class Changes(ABC):
    """Row changes of one table."""

    @abstractmethod
    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some of their columns, in this process."""

    @abstractmethod
    def spread(
        self, spark: SparkSession, columns: Sequence[str], reading: Reading, schema: pa.Schema
    ) -> DataFrame:
        """What `reading` makes of some of their columns in each of Spark's tasks."""

    @abstractmethod
    def size(self, count: int, limit: int) -> int:
        """About how many bytes of memory `count` changes are; beyond the limit a lower bound."""


@dataclass(frozen=True, slots=True)
class FileChanges(Changes):
    """Row changes in files of a changelog, those that meet a condition and are no copies."""

    store: FileStore
    files: tuple[LogFile, ...]
    condition: Condition
    copies: Copies | None = None

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from self._read(self.files, columns)

    def spread(
        self, spark: SparkSession, columns: Sequence[str], reading: Reading, schema: pa.Schema
    ) -> DataFrame:
        shares = _shares(self.files, max(1, spark.sparkContext.defaultParallelism))
        names = spark.createDataFrame([(share,) for share in shares], "files array<string>")

        def read(batches: Batches) -> Iterator[pa.RecordBatch]:
            forget_zip_importers()
            lists = (share for batch in batches for share in batch["files"].to_pylist())
            files = [LogFile(path, 0) for share in lists for path in share]
            for table in reading(self._read(files, columns)):
                yield from chunks(table)

        return names.mapInArrow(read, from_arrow_schema(schema))

    def size(self, count: int, limit: int) -> int:
        rows = sum(file.rows for file in self.files)
        share = min(1.0, count / max(1, rows))
        least = int(sum(file.memory for file in self.files) * share)
        if least > limit:
            return least
        size = decoded_bytes(self.store, self.files, self.condition, share, EVENT_SCHEMA)
        return max(least, size)

    def _read(self, files: Sequence[LogFile], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        copies = self.copies
        needed = columns if copies is None else [*dict.fromkeys([*columns, *copies.COLUMNS])]
        for batch in read_files(self.store, files, self.condition, needed):
            yield batch if copies is None else copies.without(batch).select(list(columns))


@dataclass(frozen=True, slots=True)
class FrameChanges(Changes):
    """Row changes that Spark reads."""

    rows: DataFrame

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from self.rows.select(*columns).toArrow().to_batches()

    def spread(
        self, spark: SparkSession, columns: Sequence[str], reading: Reading, schema: pa.Schema
    ) -> DataFrame:
        def read(batches: Batches) -> Iterator[pa.RecordBatch]:
            forget_zip_importers()
            for table in reading(batches):
                yield from chunks(table)

        return self.rows.select(*columns).mapInArrow(read, from_arrow_schema(schema))

    def size(self, count: int, limit: int) -> int:
        return max(limit + 1, count * _BYTES_A_ROW)  # not known, so never few


def chunks(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """A table in parts that Spark can take, however wide its rows are."""
    bytes_a_row = max(1, table.nbytes // max(1, table.num_rows))
    rows = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // bytes_a_row))
    yield from table.to_batches(max_chunksize=rows)


def _shares(files: Sequence[LogFile], count: int) -> list[list[str]]:
    """The files in at most `count` parts of about the same size."""
    shares: list[list[str]] = [[] for _ in range(min(count, len(files)))]
    sizes = [0] * len(shares)
    for file in sorted(files, key=lambda each: -each.memory):
        place = sizes.index(min(sizes))
        shares[place].append(file.path)
        sizes[place] += file.memory
    return shares
