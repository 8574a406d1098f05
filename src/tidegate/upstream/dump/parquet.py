"""Parquet files of a dump: whatever types a file has, to the strings of the feed.

Dumpling and TiDB Cloud map types in different ways, so each column is cast from the type that it
has in the file. What would not be exact (a DECIMAL kept as a double) is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from tidegate.model import Column, DumpError, MySQLType, TableSchema, ValueForm
from tidegate.upstream.dump import columns
from tidegate.upstream.dump._scan import ColumnWriter
from tidegate.upstream.dump.zones import ZoneShift

BATCH_ROWS = 16384
_STEP = "Make the dump again, or load this table from the database"
_MOMENTS = (MySQLType.DATETIME, MySQLType.TIMESTAMP)
_NUMBERS = (ValueForm.INTEGER, ValueForm.UNSIGNED, ValueForm.YEAR)


def row_groups(files: Any, path: str) -> list[int]:
    """The bytes of each row group of a file."""
    with _opened(files, path) as file:
        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        return [
            sum(group.column(i).total_compressed_size for i in range(group.num_columns))
            for group in groups
        ]


def batches(
    files: Any,
    path: str,
    schema: TableSchema,
    groups: tuple[int, ...] | None,
    shift: ZoneShift,
) -> Iterator[pa.RecordBatch]:
    """The rows of some row groups, or of all."""
    shapes = columns.dumped(schema)
    with _opened(files, path) as file:
        names = set(file.schema_arrow.names)
        missing = [column.name for column in shapes if column.name not in names]
        if missing:
            raise DumpError(path, f"the file has no column {', '.join(missing)}", _STEP)
        writers = columns.writers(shapes)
        wanted = [column.name for column in shapes]
        rows = file.iter_batches(
            batch_size=BATCH_ROWS,
            row_groups=None if groups is None else list(groups),
            use_threads=False,
        )
        while True:
            try:
                batch = next(rows, None)
                if batch is None:
                    return
                arrays = [
                    _strings(path, column, writer, batch.column(column.name), shift)
                    for column, writer in zip(shapes, writers, strict=True)
                ]
            except (OSError, pa.ArrowException) as error:
                raise DumpError(path, f"the file cannot be read ({error})", _STEP) from error
            yield pa.RecordBatch.from_arrays(arrays, names=wanted)


def _opened(files: Any, path: str) -> Any:
    try:
        return pq.ParquetFile(files.open_input_file(path))
    except (OSError, pa.ArrowException) as error:
        raise DumpError(path, f"it is not a Parquet file ({error})", _STEP) from error


def _strings(
    path: str, column: Column, writer: ColumnWriter, array: Any, shift: ZoneShift
) -> pa.Array:
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if column.nullable is False and array.null_count:
        lost = " (Dumpling writes an invalid or zero date so)" if column.code in _MOMENTS else ""
        raise DumpError(
            path,
            f"column {column.name!r} is NOT NULL and has a NULL{lost}",
            "Load this table from a CSV or SQL dump, or from the database",
        )
    if types.is_timestamp(kind) and column.code in _MOMENTS:
        return _moments(column, writer, array, shift)
    result = _converted(column, writer, array)
    if result is None:
        raise DumpError(
            path, f"column {column.name!r} of type {column.full_type} is {kind} there", _STEP
        )
    if column.code == MySQLType.TIMESTAMP and shift.is_needed:
        return shift.array(result)
    return result


def _moments(column: Column, writer: ColumnWriter, array: Any, shift: ZoneShift) -> pa.Array:
    is_instant = array.type.tz is not None
    micros = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    strings = writer.take_moments(micros, column.decimals or 0)
    if column.code != MySQLType.TIMESTAMP:
        return strings
    # A type that is adjusted to UTC says by itself what instant it is.
    own = shift.from_utc() if is_instant else shift
    return own.array(strings) if own.is_needed else strings


def _converted(column: Column, writer: ColumnWriter, array: Any) -> pa.Array | None:
    kind, form = array.type, column.value_form
    if types.is_boolean(kind):
        array = array.cast(pa.int8())
        kind = array.type
    if types.is_integer(kind):
        if form in _NUMBERS:  # also the numbers of ENUM, SET and BIT
            return array.cast(pa.string())
        if form == ValueForm.DECIMAL:
            return _decimals(column, writer, array.cast(pa.decimal128(38, 0)))
        if form in (ValueForm.FLOAT, ValueForm.DOUBLE):
            return writer.take_doubles(array.cast(pa.float64()))
        return None
    if types.is_floating(kind):
        if form in (ValueForm.FLOAT, ValueForm.DOUBLE):
            return writer.take_doubles(array.cast(pa.float64()))
        return None
    if types.is_decimal(kind):
        if form == ValueForm.DECIMAL:
            return _decimals(column, writer, array)
        if form in _NUMBERS and kind.scale == 0:
            return _decimals(column, writer, array)
        return None
    if types.is_date32(kind) and column.code == MySQLType.DATE:
        return array.cast(pa.string())
    return _bytes(column, writer, array)


def _bytes(column: Column, writer: ColumnWriter, array: Any) -> pa.Array | None:
    kind = array.type
    if types.is_fixed_size_binary(kind) or types.is_large_binary(kind):
        array = array.cast(pa.binary())
    elif types.is_large_string(kind):
        array = array.cast(pa.string())
    elif not (types.is_string(kind) or types.is_binary(kind)):
        return None
    return writer.take_strings(array)


def _decimals(column: Column, writer: ColumnWriter, array: Any) -> pa.Array:
    """Decimals as MySQL shows them: with all digits of the scale, and no exponent."""
    digits = column.decimals or 0 if column.value_form == ValueForm.DECIMAL else 0
    if types.is_decimal256(array.type):
        texts = [None if value is None else format(value, "f") for value in array.to_pylist()]
        return writer.take_strings(pa.array(texts, pa.string()))
    array = array.cast(pa.decimal128(38, array.type.scale))
    return writer.take_decimals(array, array.type.scale, digits)
