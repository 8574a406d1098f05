"""Files of a log, written by Arrow in the Python workers that decoded the events, and read so.

A change batch is Arrow's already. Written as Parquet where it was made, it need not go back to the
JVM row by row and value by value, which costs several times what decoding does; only the names of
the files do, and the table's format commits them.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import dataset
from pyarrow.fs import LocalFileSystem
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from tidegate.lake.conditions import Condition

PENDING_BYTES = 128 << 20
"""What a task keeps in memory at most before it writes: change batches, as large as in Arrow."""
ROW_GROUP_BYTES = 32 << 20
_BATCH_ROWS = 32_768

WRITTEN_TYPE = (
    StructType()
    .add("path", StringType())
    .add("rows", LongType())
    .add("bytes", LongType())
    .add("partition", ArrayType(StringType()))
    .add("bounds", StringType())
)
"""What is told of a file that was written; `bounds` as JSON: how many values of a column are NULL,
and the least and the greatest, by the columns' names."""
_WRITTEN_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("partition", pa.list_(pa.string())),
        ("bounds", pa.string()),
    ]
)

_FIELD_ID = b"PARQUET:field_id"

Values = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class LogWriter:
    """Writes change batches into the folder of a log; what Spark sends to its Python workers.

    `schema` has the columns with their ids in the table. A file has the rows of one combination of
    the columns `partition_by`, and tells the bounds of the columns `bounded`.
    """

    folder: str
    schema: pa.Schema
    partition_by: tuple[str, ...]
    bounded: tuple[str, ...]

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes all of them; what is to be told of the files, in rows of WRITTEN_TYPE."""
        files: dict[Values, _File] = {}
        pending = 0
        for batch in batches:
            for values, part in split(batch, self.partition_by):
                file = files.get(values)
                if file is None:
                    file = files[values] = _File(self._new_path(), self.schema)
                pending += file.add(part)
            while pending > PENDING_BYTES:
                pending -= max(files.values(), key=lambda each: each.pending).flush()
        told = [
            {
                "path": file.path,
                "rows": file.rows,
                "bytes": file.close(),
                "partition": values,
                "bounds": json.dumps(file.bounds(self.bounded)),
            }
            for values, file in files.items()
        ]
        yield pa.RecordBatch.from_pylist(told, _WRITTEN_SCHEMA)

    def _new_path(self) -> str:
        return f"{self.folder}/{uuid.uuid4()}.parquet"


@dataclass(slots=True)
class _File:
    path: str
    schema: pa.Schema
    rows: int = 0
    pending: int = 0
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _writer: pq.ParquetWriter | None = None
    _told: list[pq.FileMetaData] = field(default_factory=list)

    def add(self, batch: pa.RecordBatch) -> int:
        """Takes a batch; by how many bytes what is pending grew."""
        before = self.pending
        self._batches.append(batch)
        self.rows += batch.num_rows
        self.pending += batch.get_total_buffer_size()
        if self.pending > ROW_GROUP_BYTES:
            self.flush()
        return self.pending - before

    def flush(self) -> int:
        """Writes what is pending as one group of rows; how many bytes that were."""
        written, self.pending = self.pending, 0
        if self._batches:
            table = pa.Table.from_batches(self._batches).select(self.schema.names)
            self._open().write_table(table.cast(self.schema), row_group_size=table.num_rows)
            self._batches = []
        return written

    def _open(self) -> pq.ParquetWriter:
        if self._writer is None:
            narrow = [each.name for each in self.schema if not pa.types.is_nested(each.type)]
            self._writer = pq.ParquetWriter(
                self.path,
                self.schema,
                compression="zstd",
                compression_level=1,
                # The texts of a row are of all its columns: no dictionary holds them.
                use_dictionary=narrow,
                write_statistics=narrow,
                store_schema=False,
                metadata_collector=self._told,
            )
        return self._writer

    def close(self) -> int:
        """Ends the file; its size."""
        self.flush()
        writer = self._open()
        writer.close()
        return os.path.getsize(self.path)

    def bounds(self, columns: Iterable[str]) -> dict[str, tuple[int, Any, Any]]:
        """Of a file that has ended: NULLs, least and greatest, where there are any values."""
        (told,) = self._told
        places = {told.schema.column(n).path: n for n in range(told.num_columns)}
        found = {}
        for name in columns:
            parts = [
                told.row_group(group).column(places[name]).statistics
                for group in range(told.num_row_groups)
            ]
            ranges = [(part.min, part.max) for part in parts if part.has_min_max]
            if ranges:
                least, greatest = min(low for low, _ in ranges), max(high for _, high in ranges)
                found[name] = sum(part.null_count for part in parts), least, greatest
        return found


def split(batch: pa.RecordBatch, columns: Iterable[str]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """The batch by the values of these columns; booleans as `true` and `false`."""
    keys = [pc.cast(batch[name], pa.string()) for name in columns]
    groups = pa.table(keys, list(columns)).group_by(list(columns)).aggregate([]).to_pylist()
    for group in groups:
        values = tuple(group.values())
        if len(groups) == 1:
            yield values, batch
            return
        chosen: Any = True
        for key, value in zip(keys, values, strict=True):
            same = pc.is_null(key) if value is None else pc.fill_null(pc.equal(key, value), False)
            chosen = same if chosen is True else pc.and_(chosen, same)
        yield values, batch.filter(chosen)


def rows_of(columns: StructType, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """Rows for a log with these columns."""
    schema = to_arrow_schema(columns)
    values = zip(*rows, strict=True)
    arrays = [pa.array(each, of.type) for each, of in zip(values, schema, strict=True)]
    return pa.table(arrays, schema)


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of a log; `known` is true of all its rows."""

    path: str
    bytes: int
    known: pc.Expression | None = None


def holding(files: Sequence[LogFile], condition: Condition, schema: pa.Schema) -> list[LogFile]:
    """Those files that may have rows which meet a condition, by what is known of them."""
    parquet, local = dataset.ParquetFileFormat(), LocalFileSystem()
    by_path = {file.path: file for file in files}
    fragments = [
        parquet.make_fragment(file.path, local, partition_expression=file.known) for file in files
    ]
    found = dataset.FileSystemDataset(fragments, schema, parquet, local)
    return [by_path[each.path] for each in found.get_fragments(filter=condition.arrow())]


def read_files(
    files: Sequence[LogFile], condition: Condition, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Some columns of the rows that meet a condition, file by file."""
    if files:
        found = dataset.dataset([file.path for file in files], format="parquet")
        # Arrow's threads read ahead of a slower caller, as far as there are files: without them
        # memory does not grow with the files.
        for batch in found.to_batches(
            batch_size=_BATCH_ROWS,
            columns=list(columns),
            filter=condition.arrow(),
            batch_readahead=2,
            fragment_readahead=1,
            use_threads=False,
        ):
            if batch.num_rows:
                yield batch


def with_field_ids(schema: pa.Schema, told: dict[str, Any]) -> pa.Schema:
    """The schema with the ids that an Iceberg schema (as JSON) has for its columns."""
    return pa.schema(_fields(list(schema), told["fields"]))


def field_id(field: pa.Field) -> int:
    """The id of a column in its table."""
    return int(field.metadata[_FIELD_ID])


def _fields(fields: list[pa.Field], told: list[dict[str, Any]]) -> list[pa.Field]:
    by_name = {each["name"]: each for each in told}
    return [
        pa.field(
            each.name,
            _type(each.type, by_name[each.name]["type"]),
            metadata={_FIELD_ID: str(by_name[each.name]["id"])},
        )
        for each in fields
    ]


def _type(kind: pa.DataType, told: Any) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(_fields([kind.field(n) for n in range(kind.num_fields)], told["fields"]))
    if pa.types.is_list(kind):
        element = _type(kind.value_type, told["element"])
        metadata = {_FIELD_ID: str(told["element-id"])}
        return pa.list_(pa.field("element", element, metadata=metadata))
    return kind
