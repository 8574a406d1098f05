"""Splits of a dump's tables, and the reading of one: everything that a task needs, picklable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from tidegate.model import DumpError, MySQLType, TableSchema
from tidegate.upstream.dump import columns, parquet, streams
from tidegate.upstream.dump._scan import TEXT, ColumnWriter, RowScanner, ScanError
from tidegate.upstream.dump.options import DumpOptions
from tidegate.upstream.dump.zones import ZoneShift

BLOCK_BYTES = 4 << 20
_FAR = 1 << 62

Fill: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Adds the columns that a dump leaves out to a batch of those that it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpFile:
    """A file with rows of a table; `path` is that in the dump's file system."""

    path: str
    size: int
    format: str
    compression: str = ""
    index: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A file, a range of its bytes that starts and ends between rows, or row groups of Parquet.

    A range has the rows whose lines start in it. `header` says whether a CSV file has one.
    """

    files: Any
    file: DumpFile
    schema: TableSchema
    options: DumpOptions
    header: bool = False
    start: int = 0
    end: int | None = None
    row_groups: tuple[int, ...] | None = None
    fill: Fill | None = None

    @property
    def size(self) -> int:
        """Bytes of the file that are read."""
        return (self.file.size if self.end is None else self.end) - self.start


def read_split(split: Split) -> Iterator[pa.RecordBatch]:
    """The rows: a string column for each carried column, in the order and the forms of the feed."""
    shift = ZoneShift(split.options.time_zone, split.options.feed_zone)
    path = split.file.path
    if split.file.format == "parquet":
        batches = parquet.batches(split.files, path, split.schema, split.row_groups, shift)
    else:
        batches = _zoned(split, _text_batches(split), shift)
    try:
        for batch in batches:
            yield batch if split.fill is None else _filled(split, batch)
    except ScanError as error:
        raise DumpError(
            path, f"in row {error.position} of a batch, {error.reason}", _STEP
        ) from None
    except OverflowError as error:
        raise DumpError(path, str(error), _STEP) from None


def _filled(split: Split, batch: pa.RecordBatch) -> pa.RecordBatch:
    assert split.fill is not None
    names = list(split.schema.carried_names)
    return split.fill(batch).select(names)


def _zoned(
    split: Split, batches: Iterator[pa.RecordBatch], shift: ZoneShift
) -> Iterator[pa.RecordBatch]:
    if not shift.is_needed:
        yield from batches
        return
    for batch in batches:
        for place, column in enumerate(columns.dumped(split.schema)):
            if column.code == MySQLType.TIMESTAMP:
                batch = batch.set_column(place, column.name, shift.array(batch.column(place)))
        yield batch


# --- CSV and SQL ----------------------------------------------------------------------------------

_STEP = "Make the dump again, or load this table from the database"


def scanner_of(
    schema: TableSchema, options: DumpOptions, writers: list[ColumnWriter], **more: Any
) -> RowScanner:
    """A scanner for the files of a table."""
    return RowScanner(
        writers,
        table=schema.table,
        separator=options.separator.encode(),
        delimiter=options.delimiter.encode(),
        null_value=options.null_value.encode(),
        terminator=options.line_terminator.encode(),
        escapes=options.escape_backslash,
        **more,
    )


class _Window:
    """The bytes of a stream that were read and not yet used; it grows where a row needs it."""

    def __init__(self, stream: streams.ByteStream, offset: int) -> None:
        self._stream = stream
        self.data = bytearray()
        self.offset = offset  # that of data[0] in the file
        self.is_final = False

    def drop(self, size: int) -> None:
        """Forgets bytes at the front."""
        del self.data[:size]
        self.offset += size

    def more(self) -> None:
        """Reads on; twice as much where a row is larger than all that was read."""
        wanted = len(self.data) + max(BLOCK_BYTES, len(self.data))
        while len(self.data) < wanted and not self.is_final:
            part = self._stream.read(BLOCK_BYTES)
            self.is_final = not part
            self.data += part

    def skip_line(self) -> None:
        """Forgets everything up to the first line end, with it."""
        while (place := self.data.find(b"\n")) < 0 and not self.is_final:
            self.drop(len(self.data))
            self.more()
        self.drop(place + 1 if place >= 0 else len(self.data))


def _text_batches(split: Split) -> Iterator[pa.RecordBatch]:
    is_sql = split.file.format == "sql"
    form = "raw" if is_sql else split.options.binary_form
    writers = columns.writers(columns.dumped(split.schema), form)
    is_range = split.end is not None or split.start > 0
    scanner = scanner_of(split.schema, split.options, writers, by_lines=is_range)
    # The last byte before the range shows whether a line starts with it.
    start = split.start - 1 if split.start else 0
    with streams.opened(split.files, split.file.path, split.file.compression, start) as stream:
        window = _Window(stream, start)
        if split.start:
            window.skip_line()
            if is_sql:
                _prepare_sql(split, scanner, window)
        elif split.header:
            _read_header(split, window)
        scan = scanner.scan_sql if is_sql else scanner.scan_csv
        yield from _scanned(split, scanner, scan, window)


def _scanned(
    split: Split, scanner: RowScanner, scan: Callable[..., int], window: _Window
) -> Iterator[pa.RecordBatch]:
    position = 0
    while True:
        limit = _FAR if split.end is None else split.end - window.offset
        try:
            position = scan(window.data, position, limit, window.is_final)
        except ScanError as error:
            raise _located(split, window.offset, error) from None
        if scanner.full:
            yield scanner.take()
        elif scanner.done or (window.is_final and position >= len(window.data)):
            break
        else:
            window.drop(position)
            position = 0
            window.more()
    if scanner.rows:
        yield scanner.take()


def _located(split: Split, offset: int, error: ScanError) -> DumpError:
    place = f"at byte {offset + error.position}"
    if split.file.compression:
        place += " of the decompressed content"
    step = _STEP
    if error.option is not None:
        value = getattr(split.options, error.option)
        if error.option == "header":
            value = split.header
        step = (
            f"Check the option `{error.option}` ({value!r} now), which must be as Dumpling was "
            "given it; otherwise make the dump again"
        )
    return DumpError(split.file.path, f"{place}, {error.reason}", step)


def _prepare_sql(split: Split, scanner: RowScanner, window: _Window) -> None:
    """Gives a scanner in the middle of a file the head that all statements of the file have."""
    if not window.data and not window.is_final:
        window.more()
    with streams.opened(split.files, split.file.path, "") as stream:
        head = _Window(stream, 0)
        while (place := head.data.find(b"VALUES\n")) < 0 and not head.is_final:
            head.more()
        try:
            scanner.scan_sql(bytes(head.data[: place + len(b"VALUES\n")]), 0, _FAR, False)
        except ScanError as error:
            raise _located(split, 0, error) from None
    scanner.in_values = window.data[:1] == b"("


def first_row(
    files: Any, file: DumpFile, schema: TableSchema, options: DumpOptions, *, as_text: bool
) -> list[str | None]:
    """The values of a CSV file's first row; ScanError if it is none of the table's."""
    shapes = columns.dumped(schema)
    if as_text:
        writers = [ColumnWriter(column.name, TEXT) for column in shapes]
    else:
        writers = columns.writers(shapes, options.binary_form)
    scanner = scanner_of(schema, options, writers, max_rows=1)
    with streams.opened(files, file.path, file.compression) as stream:
        window = _Window(stream, 0)
        while not scanner.rows and not window.is_final:
            window.more()
            scanner.scan_csv(window.data, 0, _FAR, window.is_final)
    return [values[0] if values else None for values in scanner.take().to_pydict().values()]


def _read_header(split: Split, window: _Window) -> None:
    names = [column.name for column in columns.dumped(split.schema)]
    writers = [ColumnWriter(name, TEXT) for name in names]
    scanner = scanner_of(split.schema, split.options, writers, max_rows=1)
    try:
        while not scanner.rows and not window.is_final:
            window.more()
            end = scanner.scan_csv(window.data, 0, _FAR, window.is_final)
    except ScanError as error:
        raise _located(split, 0, ScanError(error.position, error.reason, "header")) from None
    found = [values[0] for values in scanner.take().to_pydict().values() if values]
    if found != names:
        reason = f"the header is {', '.join(map(str, found))}, and the table has {', '.join(names)}"
        raise _located(split, 0, ScanError(0, reason, "header"))
    window.drop(end)
