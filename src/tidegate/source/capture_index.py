"""What a capture file has, found without its messages: rows, partitions, and where to cut it.

Of Parquet the footer says most of it; topic, partition and offset columns are read where it does
not. Lines must be read to be counted.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.model import CaptureError
from tidegate.wire.capture import (
    is_gzip,
    is_parquet,
    line_place,
    lines_of,
    parquet_file,
)

CapturePlace = tuple[str | None, int]
"""Topic (None where the capture has none) and partition."""

MARK_ROWS = 10_000
_EXACT_LENGTH = 60
"""Writers may shorten longer strings in the statistics of a column."""
_PLACES = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("missing", pa.bool_())])


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file of lines from which it can be read: row, byte and number of the line."""

    row: int
    byte: int
    line: int


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A group of rows of a Parquet file, with its bytes in memory."""

    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class CaptureIndex:
    """One file of a capture.

    `checksum` is that of the footer of Parquet, else that of all lines. `groups` are those of
    Parquet, `marks` those of lines; a compressed file can only be read from its beginning.
    """

    rows: int
    size: int
    checksum: str
    places: frozenset[CapturePlace]
    groups: tuple[RowGroup, ...] = ()
    marks: tuple[Mark, ...] = ()
    is_compressed: bool = False
    unnumbered: pa.Table | None = None
    """The topic and partition of each row and whether its offset is missing, if any is."""

    def counts_before(self, row: int) -> dict[CapturePlace, int]:
        """How many rows before this one have no offset, by partition."""
        if self.unnumbered is None or row == 0:
            return {}
        head = self.unnumbered.slice(0, row)
        grouped = head.filter(head["missing"]).group_by(["topic", "partition"])
        counted = grouped.aggregate([([], "count_all")])
        names = ("topic", "partition", "count_all")
        topics, partitions, counts = (counted[name].to_pylist() for name in names)
        return dict(zip(zip(topics, partitions, strict=True), counts, strict=True))

    def mark_before(self, row: int) -> Mark:
        """The last mark that is not after a row."""
        return next(mark for mark in reversed(self.marks) if mark.row <= row)


def indexed(name: str, file: BufferedReader) -> CaptureIndex:
    """What an open file of a capture has; CaptureError where it is none."""
    try:
        if is_parquet(name, file):
            checksum = _footer_checksum(file)
            file.seek(0)
            with parquet_file(name, file) as parquet:
                return _of_parquet(parquet, checksum)
        compressed = is_gzip(name, file)
        return _of_lines(name, file, compressed)
    except (EOFError, OSError, zlib.error) as error:
        raise CaptureError(name, 0, f"it cannot be read ({error})") from error


# --- lines ----------------------------------------------------------------------------------------


def _of_lines(name: str, file: BufferedReader, compressed: bool) -> CaptureIndex:
    marks = [Mark(0, 0, 1)]
    rows = byte = size = checksum = 0
    tables: list[pa.Table] = []
    places: list[tuple[str | None, int, bool]] = []
    for number, line in enumerate(lines_of(name, file), 1):
        checksum = zlib.crc32(line, checksum)
        if not line.isspace():
            if rows and rows % MARK_ROWS == 0:
                if not compressed:
                    marks.append(Mark(rows, byte, number))
                tables.append(_places(places))
                places = []
            topic, partition, offset = line_place(name, number, line)
            places.append((topic, partition, offset is None))
            rows += 1
        byte += len(line)
        size += len(line)
    tables.append(_places(places))
    table = pa.concat_tables(tables)
    return CaptureIndex(
        rows,
        size,
        f"{checksum:08x}",
        _distinct(table),
        marks=tuple(marks),
        is_compressed=compressed,
        unnumbered=table if pc.any(table["missing"]).as_py() else None,
    )


def _places(rows: list[tuple[str | None, int, bool]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ([], [], [])
    arrays = [pa.array(column, each.type) for column, each in zip(columns, _PLACES, strict=True)]
    return pa.Table.from_arrays(arrays, schema=_PLACES)


def _distinct(table: pa.Table) -> frozenset[CapturePlace]:
    pairs = table.group_by(["topic", "partition"]).aggregate([])
    columns = (pairs[name].to_pylist() for name in ("topic", "partition"))
    return frozenset(zip(*columns, strict=True))


# --- Parquet --------------------------------------------------------------------------------------


def _footer_checksum(file: BufferedReader) -> str:
    """The footer has the sizes and bounds of all columns: another content has another footer."""
    length = file.seek(0, os.SEEK_END)
    file.seek(max(0, length - 8))
    footer = int.from_bytes(file.read(8)[:4], "little")
    file.seek(max(0, length - 8 - footer))
    return f"{zlib.crc32(file.read()):08x}"


def _of_parquet(file: pq.ParquetFile, checksum: str) -> CaptureIndex:
    about = file.metadata
    numbers = range(about.num_row_groups)
    groups = [about.row_group(number) for number in numbers]
    columns = (
        {groups[0].column(n).path_in_schema: n for n in range(about.num_columns)} if groups else {}
    )
    statistics = [_Statistics.of(group, columns) for group in groups]
    unnumbered = None
    if not all(each.is_numbered for each in statistics):
        unnumbered = _place_table(file, list(numbers))
        if not pc.any(unnumbered["missing"]).as_py():
            unnumbered = None
    places: set[CapturePlace] = set()
    unclear = []
    for number, each in enumerate(statistics):
        if each.place is not None:
            places.add(each.place)
        else:
            unclear.append(number)
    if unnumbered is not None:
        places |= _distinct(unnumbered)
    elif unclear:
        places |= _distinct(_place_table(file, unclear))
    return CaptureIndex(
        about.num_rows,
        sum(group.total_byte_size for group in groups),
        checksum,
        frozenset(places),
        groups=tuple(RowGroup(group.num_rows, group.total_byte_size) for group in groups),
        unnumbered=unnumbered,
    )


@dataclass(frozen=True, slots=True)
class _Statistics:
    """What the footer says of a group of rows: its one partition, and whether all have offsets."""

    place: CapturePlace | None
    is_numbered: bool

    @classmethod
    def of(cls, group: Any, columns: Mapping[str, int]) -> _Statistics:
        by_name = {
            name: group.column(columns[name]).statistics
            for name in ("topic", "partition", "offset")
            if name in columns
        }
        topic, partition = _only(by_name, "topic", None), _only(by_name, "partition", 0)
        offset = by_name.get("offset")
        is_numbered = offset is not None and offset.has_null_count and offset.null_count == 0
        is_one = topic is not None and partition is not None and group.num_rows > 0
        place = (topic[0], partition[0]) if is_one and topic and partition else None
        return cls(place, is_numbered)


def _only(by_name: Mapping[str, Any], name: str, absent: Any) -> tuple[Any] | None:
    """The only value of a column, if the statistics show that it has but one."""
    if name not in by_name:
        return (absent,)
    about = by_name[name]
    if about is None or not about.has_min_max or not about.has_null_count or about.null_count:
        return None
    if about.min != about.max or (isinstance(about.min, str) and len(about.min) > _EXACT_LENGTH):
        return None
    return (about.min,) if isinstance(about.min, str | int) else None


def _place_table(file: pq.ParquetFile, groups: list[int]) -> pa.Table:
    names = set(file.schema_arrow.names)
    read = [name for name in ("topic", "partition", "offset") if name in names]
    if read:
        table = file.read_row_groups(groups, columns=read)
        count = table.num_rows
    else:
        table = None
        count = sum(file.metadata.row_group(number).num_rows for number in groups)

    def column(name: str, kind: pa.DataType) -> Any:
        return table[name].cast(kind) if name in read else pa.nulls(count, kind)

    partition = pc.fill_null(column("partition", pa.int32()), 0)
    missing = pc.is_null(column("offset", pa.int64()))
    return pa.Table.from_arrays(
        [column("topic", pa.string()), partition, missing], schema=_PLACES
    ).combine_chunks()


def numbered_lines(
    name: str, file: BufferedReader, mark: Mark, start: int, end: int
) -> Iterator[tuple[int, bytes]]:
    """The lines of the messages from row `start` to before `end`, with their numbers."""
    if mark.byte:
        file.seek(mark.byte)
    lines: Any = file if mark.byte else lines_of(name, file)
    row = mark.row
    for number, line in enumerate(lines, mark.line):
        if row == end:
            return
        if line.isspace():
            continue
        if row >= start:
            yield number, line
        row += 1
