"""How the values of each column are written in a dump, and the writers of their feed strings."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from tidegate.model import Column, MySQLType, TableSchema, ValueForm
from tidegate.upstream.dump import _scan
from tidegate.upstream.dump._scan import ColumnWriter

_KINDS = {
    ValueForm.INTEGER: _scan.INTEGER,
    ValueForm.UNSIGNED: _scan.INTEGER,
    ValueForm.YEAR: _scan.INTEGER,
    ValueForm.FLOAT: _scan.FLOAT,
    ValueForm.DOUBLE: _scan.DOUBLE,
    ValueForm.DECIMAL: _scan.DECIMAL,
    ValueForm.TEMPORAL: _scan.TEMPORAL,
    ValueForm.BINARY: _scan.BINARY,
}
_ENCODINGS = {"raw": _scan.RAW, "hex": _scan.HEX, "base64": _scan.BASE64}
_LINELESS = (_scan.INTEGER, _scan.FLOAT, _scan.DOUBLE, _scan.DECIMAL, _scan.TEMPORAL)


def dumped(schema: TableSchema) -> tuple[Column, ...]:
    """The columns that Dumpling writes: all but generated ones, stored or virtual."""
    return tuple(column for column in schema.columns if column.generated is None)


def left_out(schema: TableSchema) -> tuple[str, ...]:
    """The columns that rows of a feed carry and a dump does not."""
    return tuple(column.name for column in schema.carried if column.generated is not None)


def writers(columns: Iterable[Column], binary_form: str = "raw") -> list[ColumnWriter]:
    """A writer for each column; `binary_form` is how CSV has binary values."""
    return [_writer(column, _ENCODINGS[binary_form]) for column in columns]


def is_lineless(columns: Iterable[Column]) -> bool:
    """Whether no value of these columns can hold a line end."""
    return all(_kind(column) in _LINELESS for column in columns)


def _kind(column: Column) -> int:
    if column.code in (MySQLType.ENUM, MySQLType.SET):
        return _scan.CHOICE
    if column.code == MySQLType.BIT:
        return _scan.BITS
    return _KINDS.get(column.value_form, _scan.TEXT)


def _writer(column: Column, encoding: int) -> ColumnWriter:
    kind = _kind(column)
    if kind == _scan.CHOICE:
        elements = [element.encode() for element in column.elements]
        if column.code == MySQLType.SET:
            resolve = partial(_set_number, {name: 1 << i for i, name in enumerate(elements)})
            return ColumnWriter(column.name, kind, choices={b"": b"0"}, resolve=resolve)
        # The empty string is the number 0 (an invalid value), unless it is an element.
        choices = {b"": b"0"}
        choices.update((name, b"%d" % (i + 1)) for i, name in reversed([*enumerate(elements)]))
        return ColumnWriter(column.name, kind, choices=choices)
    most = -1
    if column.length is not None and column.length >= 0:
        if kind == _scan.BITS:
            most = (column.length + 7) // 8
        elif kind == _scan.BINARY:
            most = column.length
    return ColumnWriter(column.name, kind, encoding, most)


def _set_number(bits: dict[bytes, int], text: bytes) -> bytes | None:
    number = 0
    for name in text.split(b","):
        bit = bits.get(name)
        if bit is None:
            return None
        number |= bit
    return b"%d" % number
