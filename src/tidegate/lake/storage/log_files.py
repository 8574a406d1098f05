"""Reads and writes the Parquet files of a log directly from Python.

A decoded batch is Arrow already. The Python worker that decoded it writes it as Parquet, so that
rows never pass through the JVM value by value, which costs several times what decoding does. Only
the names of the files go to the driver, and the table's format commits them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import dataset
from pyarrow.fs import FileSystem, LocalFileSystem
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from tidegate.lake.storage.file_store import FileStore, is_remote
from tidegate.lake.storage.names import own
from tidegate.lake.storage.predicates import Condition

PENDING_BYTES = 128 << 20
"""What a task keeps in memory at most before it writes: change batches, as large as in Arrow."""
ROW_GROUP_BYTES = 32 << 20
_CLUSTER_BYTES = 4 << 20
"""Rows of small tables share a group up to this size."""
_BATCH_ROWS = 32_768
_RUN_ROWS = 100
"""Rows that are cheaper to cut out of a batch than to copy, on average."""

WRITTEN_TYPE = (
    StructType()
    .add("path", StringType())
    .add("rows", LongType())
    .add("bytes", LongType())
    .add("partition", ArrayType(StringType()))
    .add("bounds", StringType())
    .add("groups", StringType())
    .add("summary", StringType())
)
"""What a task reports of a file that it wrote; `bounds` is JSON: the number of NULLs, the least and
the greatest value, by column. `groups` is JSON: the file's groups of rows."""
_WRITTEN_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("partition", pa.list_(pa.string())),
        ("bounds", pa.string()),
        ("groups", pa.string()),
        ("summary", pa.string()),
    ]
)

_FIELD_ID = b"PARQUET:field_id"
_WANTED = own("wanted")

Values = tuple[str | None, ...]
Bounds = Mapping[str, tuple[int, Any, Any]]
"""The number of NULLs, the least and the greatest value, by column."""


class RowGroup(NamedTuple):
    """A group of rows in a file: its size without compression, and bounds of some columns."""

    bytes: int
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a task wrote, ready to be committed.

    `summary` is what a `FileContent` says of it.
    """

    path: str
    rows: int
    bytes: int
    partition: Values
    bounds: Bounds
    groups: tuple[RowGroup, ...] = ()
    summary: str | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> WrittenFile:
        """From a row of WRITTEN_TYPE."""
        return cls(
            row["path"],
            row["rows"],
            row["bytes"],
            tuple(row["partition"]),
            _bounds_of(json.loads(row["bounds"])),
            tuple(RowGroup(size, _bounds_of(each)) for size, each in json.loads(row["groups"])),
            row["summary"],
        )


def _bounds_of(entries: Mapping[str, Sequence[Any]]) -> Bounds:
    """Bounds that were JSON."""
    return {name: (nulls, least, most) for name, (nulls, least, most) in entries.items()}


class FileSummarizer(Protocol):
    """Makes the summary of one file."""

    def add(self, events: pa.Table) -> None:
        """Takes in rows of the file."""

    def finish(self) -> Any:
        """The summary, which has a method `to_text`."""


class FileContent(Protocol):
    """What a writer knows of the rows that it writes; it is sent to the Python workers."""

    key: bytes
    """Where the summary of a file is in its footer."""
    group_columns: tuple[str, ...]
    """The columns of which each group of rows reports the bounds."""

    def summarizer(self) -> FileSummarizer:
        """What makes the summary of a file."""

    def sections(self, rows: pa.Table) -> Iterator[pa.Table]:
        """The rows in parts that are to be in different groups of a file."""


@dataclass(frozen=True, slots=True)
class LogWriter:
    """Writes batches into the folder of a log; it is sent to the Python workers.

    `schema` has the columns with their ids in the table. A file holds the rows of one combination
    of the columns `partition_by`, and reports the bounds of the columns `bounded`. Each group of
    rows in a file is sorted by `sorted_by`, so that readers skip the groups without their rows.
    """

    folder: str
    schema: pa.Schema
    partition_by: tuple[str, ...]
    bounded: tuple[str, ...]
    sorted_by: tuple[str, ...] = ()
    store: FileStore = field(default_factory=FileStore)
    content: FileContent | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes all of them; a row of WRITTEN_TYPE for each file."""
        files: dict[Values, _OpenFile] = {}
        pending = 0
        for batch in batches:
            row_bytes = batch.nbytes / max(1, batch.num_rows)
            for values, part in split(batch, self.partition_by):
                file = files.get(values)
                if file is None:
                    file = files[values] = _OpenFile(self, self._new_path())
                pending += file.add(part, int(row_bytes * part.num_rows))
            while pending > PENDING_BYTES:
                pending -= max(files.values(), key=lambda each: each.pending).flush()
        reports = [
            {
                "path": file.path,
                "rows": file.rows,
                "bytes": file.close(),
                "partition": values,
                "bounds": json.dumps(file.bounds(self.bounded)),
                "groups": json.dumps(file.groups()),
                "summary": file.summary,
            }
            for values, file in files.items()
        ]
        yield pa.RecordBatch.from_pylist(reports, _WRITTEN_SCHEMA)

    def write_here(self, rows: pa.Table) -> list[WrittenFile]:
        """Writes a table in this process."""
        reports = pa.Table.from_batches(self.write(rows.combine_chunks().to_batches()))
        return [WrittenFile.of(report) for report in reports.to_pylist()]

    def _new_path(self) -> str:
        return f"{self.folder}/{uuid.uuid4()}.parquet"


@dataclass(slots=True)
class _OpenFile:
    of: LogWriter
    path: str
    rows: int = 0
    pending: int = 0
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _writer: pq.ParquetWriter | None = None
    _stream: Any = None
    _footer: list[pq.FileMetaData] = field(default_factory=list)
    _summarizer: FileSummarizer | None = None
    summary: str | None = None
    """What is to be known of the file; once it has ended."""

    def add(self, batch: pa.RecordBatch, size: int) -> int:
        """Takes a batch of about `size` bytes; by how many bytes what is pending grew."""
        before = self.pending
        self._batches.append(batch)
        self.rows += batch.num_rows
        self.pending += size
        if self.pending > ROW_GROUP_BYTES:
            self.flush()
        return self.pending - before

    def flush(self) -> int:
        """Writes what is pending as one group of rows, or several; how many bytes that were."""
        written, self.pending = self.pending, 0
        if self._batches:
            table = pa.Table.from_batches(self._batches).select(self.of.schema.names)
            for part in self._arranged(table.cast(self.of.schema), written):
                self._open().write_table(part, row_group_size=part.num_rows)
            self._batches = []
        return written

    def _arranged(self, table: pa.Table, size: int) -> Iterator[pa.Table]:
        """The rows, `size` bytes, as they are to be written, a group at a time."""
        content = self.of.content
        if content is None:
            yield from _clustered(table, self.of.sorted_by, size)
            return
        if self._summarizer is None:
            self._summarizer = content.summarizer()
        self._summarizer.add(table)
        for section in content.sections(table):
            share = size * section.num_rows // table.num_rows
            yield from _clustered(section, self.of.sorted_by, share)

    def _open(self) -> pq.ParquetWriter:
        if self._writer is None:
            schema, store = self.of.schema, self.of.store
            files, path = store.filesystem(self.path), store.path(self.path)
            narrow = [each.name for each in schema if not pa.types.is_nested(each.type)]
            self._stream = _output(files, path)
            self._writer = pq.ParquetWriter(
                self._stream,
                schema,
                compression="zstd",
                compression_level=1,
                # The strings of a row are of all its columns: no dictionary holds them.
                use_dictionary=narrow,
                write_statistics=narrow,
                store_schema=False,
                metadata_collector=self._footer,
            )
        return self._writer

    def close(self) -> int:
        """Ends the file; its size."""
        self.flush()
        writer = self._open()
        if self._summarizer is not None and self.of.content is not None:
            self.summary = self._summarizer.finish().to_text()
            writer.add_key_value_metadata({self.of.content.key: self.summary})
        writer.close()
        size = int(self._stream.tell())
        self._stream.close()
        return size

    def groups(self) -> tuple[RowGroup, ...]:
        """Of a file that has ended: its groups of rows."""
        (footer,) = self._footer
        content = self.of.content
        return row_groups(footer, () if content is None else content.group_columns)

    def bounds(self, columns: Sequence[str]) -> Bounds:
        """Of a file that has ended: NULLs, least and greatest, where there are any values."""
        (footer,) = self._footer
        return _group_bounds(footer, range(footer.num_row_groups), columns)


def row_groups(footer: pq.FileMetaData, columns: Sequence[str]) -> tuple[RowGroup, ...]:
    """The groups of rows of a file, with the bounds of some columns."""
    return tuple(
        RowGroup(footer.row_group(number).total_byte_size, _group_bounds(footer, [number], columns))
        for number in range(footer.num_row_groups)
    )


def _group_bounds(
    footer: pq.FileMetaData, numbers: Sequence[int], columns: Sequence[str]
) -> Bounds:
    """The bounds of columns in some groups of rows together."""
    places = {footer.schema.column(n).path: n for n in range(footer.num_columns)}
    bounds = {}
    for name in columns:
        parts = [footer.row_group(number).column(places[name]).statistics for number in numbers]
        ranges = [(part.min, part.max) for part in parts if part.has_min_max]
        if ranges:
            least, greatest = min(low for low, _ in ranges), max(high for _, high in ranges)
            bounds[name] = sum(part.null_count for part in parts), least, greatest
    return bounds


def read_footer(store: FileStore, path: str) -> pq.FileMetaData:
    """The footer of a file."""
    return pq.read_metadata(store.path(path), filesystem=store.filesystem(path))


def _output(files: FileSystem, path: str) -> Any:
    if isinstance(files, LocalFileSystem):
        files.create_dir(path.rpartition("/")[0], recursive=True)
    return files.open_output_stream(path)


def _clustered(table: pa.Table, columns: Sequence[str], size: int) -> Iterator[pa.Table]:
    """The rows, `size` bytes, sorted by some columns and otherwise as they are.

    Large clusters are by themselves.
    """
    if not columns or not table.num_rows:
        yield table
        return
    keys = table.select(list(columns)).combine_chunks()
    counts = keys.group_by(list(columns)).aggregate([([], "count_all")])
    if counts.num_rows > 1:
        places = pa.array(range(table.num_rows), pa.int64())
        order = [(name, "ascending") for name in (*columns, "_place")]
        table = table.take(pc.sort_indices(keys.append_column("_place", places), order))
        counts = counts.sort_by([(name, "ascending") for name in columns])
    bytes_a_row = size / table.num_rows
    start = end = 0
    for rows in counts["count_all"].to_pylist():
        end += rows
        if (end - start) * bytes_a_row >= _CLUSTER_BYTES:
            yield table.slice(start, end - start)
            start = end
    if end > start:
        yield table.slice(start, end - start)


def split(batch: pa.RecordBatch, columns: Iterable[str]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """The batch by the values of these columns, in one or more parts for each combination.

    Booleans are `true` and `false`. Long runs of rows are not copied.
    """
    names = list(columns)
    if not names or not batch.num_rows:
        yield (), batch
        return
    cuts = _changes_of(batch, names)
    if (len(cuts) + 1) * _RUN_ROWS <= batch.num_rows:
        for start, end in pairwise([0, *cuts, batch.num_rows]):
            first = (batch[name][start] for name in names)
            yield tuple(each.cast(pa.string()).as_py() for each in first), batch[start:end]
        return
    keys = [pc.cast(batch[name], pa.string()) for name in names]
    groups = pa.table(keys, names).group_by(names).aggregate([]).to_pylist()
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


def _changes_of(batch: pa.RecordBatch, columns: Sequence[str]) -> list[int]:
    """The rows, but for the first, whose values of some columns differ from those before."""
    differs: Any = False
    for name in columns:
        here, before = batch[name].slice(1), batch[name].slice(0, batch.num_rows - 1)
        one_null = pc.xor(pc.is_null(here), pc.is_null(before))
        differs = pc.or_(differs, pc.or_(one_null, pc.fill_null(pc.not_equal(here, before), False)))
    return [place + 1 for place in pc.indices_nonzero(differs).to_pylist()]


def rows_of(columns: StructType, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """Rows for a log with these columns."""
    schema = to_arrow_schema(columns)
    values = zip(*rows, strict=True)
    arrays = [pa.array(each, of.type) for each, of in zip(values, schema, strict=True)]
    return pa.table(arrays, schema)


@dataclass(frozen=True, slots=True)
class LogFile:
    """A committed file of a log; `known` is true of all its rows.

    `partition` has the values of the columns by which the log is split into files. `groups` are
    its groups of rows, where the footer, or the task that wrote the file, has told them.
    """

    path: str
    bytes: int
    rows: int = 0
    known: pc.Expression | None = None
    partition: tuple[Any, ...] = ()
    groups: tuple[RowGroup, ...] = ()

    @property
    def memory(self) -> int:
        """Its size without compression; that of the file where its groups are not known."""
        return sum(group.bytes for group in self.groups) or self.bytes


def within(bounds: Mapping[str, tuple[int | None, Any, Any]]) -> pc.Expression:
    """What is true of all rows of a file, given NULLs, least and greatest value by column."""
    known = pc.scalar(True)
    for name, (nulls, least, greatest) in bounds.items():
        if nulls == 0:
            column = pc.field(name)
            # Arrow concludes less from two limits that are the same.
            known &= (
                column == least if least == greatest else (column >= least) & (column <= greatest)
            )
    return known


def holding(files: Sequence[LogFile], condition: Condition, schema: pa.Schema) -> list[LogFile]:
    """Those files that may have rows which meet a condition, by what is known of them."""
    parquet, local = dataset.ParquetFileFormat(), LocalFileSystem()
    by_path = {file.path: file for file in files}
    fragments = [
        parquet.make_fragment(file.path, local, partition_expression=file.known) for file in files
    ]
    whole = dataset.FileSystemDataset(fragments, schema, parquet, local)
    return [by_path[each.path] for each in whole.get_fragments(filter=condition.arrow())]


def read_files(
    store: FileStore, files: Sequence[LogFile], condition: Condition, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Some columns of the rows that meet a condition, file by file."""
    if not files:
        return
    system = store.filesystem(files[0].path)
    paths = [store.path(file.path) for file in files]
    parquet = dataset.ParquetFileFormat()
    if is_remote(files[0].path):
        # One request per column and group of rows would wait for each of them in turn.
        options = dataset.ParquetFragmentScanOptions(pre_buffer=True)
        parquet = dataset.ParquetFileFormat(default_fragment_scan_options=options)
    whole = dataset.dataset(paths, format=parquet, filesystem=system)
    wanted = condition.arrow()
    # Arrow's own filter copies the rows of a batch also where all of them are wanted, which is
    # what most batches are.
    chosen = {name: pc.field(name) for name in columns} | {_WANTED: wanted}
    for fragment in whole.get_fragments():
        groups = fragment.subset(filter=wanted)
        if not groups.row_groups:
            continue
        # Arrow's threads read ahead of a slower caller, as far as there is anything: without them
        # memory does not grow with the files.
        for batch in groups.to_batches(
            whole.schema,
            batch_size=_BATCH_ROWS,
            columns=chosen,
            batch_readahead=2,
            use_threads=False,
        ):
            mask = batch[_WANTED]
            if mask.true_count < batch.num_rows:
                batch = batch.filter(mask)
            if batch.num_rows:
                yield batch.select(list(columns))


def decoded_bytes(
    store: FileStore,
    files: Sequence[LogFile],
    condition: Condition,
    share: float,
    schema: pa.Schema,
) -> int:
    """About how many bytes the rows that meet a condition, a share of all, are when decompressed.

    Small tables share a group of rows, which is small then; a larger group is taken to be of one
    table. The footers of files are read whose groups are not known.
    """
    groups = [group for file in files for group in file.groups]
    known = [
        LogFile(str(number), group.bytes, known=within(group.bounds))
        for number, group in enumerate(groups)
    ]
    sizes = [each.bytes for each in holding(known, condition, schema)]
    others = [file for file in files if not file.groups]
    if others:
        system = store.filesystem(others[0].path)
        paths = [store.path(file.path) for file in others]
        parquet = dataset.dataset(paths, format="parquet", filesystem=system)
        for fragment in parquet.get_fragments():
            chosen = fragment.subset(filter=condition.arrow()).row_groups
            sizes += [group.total_byte_size for group in chosen]
    return int(sum(size if size > _CLUSTER_BYTES else size * share for size in sizes))


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
