"""Ranges of a key as SQL conditions, with literals that a server reads back exactly.

A row comparison is written out column by column, as only then does TiDB make ranges of it. Two
conditions that share a bound never both hold and never both fail, so half-open ranges cover each
row exactly once, whatever collation compares the values.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Sequence
from decimal import Decimal
from struct import pack, unpack

from tidegate.model import Column, MySQLType, ValueForm
from tidegate.model.sql import quoted

Bound = tuple[str, ...]
"""Values of a key's first columns, in the change batch's strings."""

_WHOLE = (ValueForm.INTEGER, ValueForm.UNSIGNED, ValueForm.YEAR)
_NUMBERED = (MySQLType.ENUM, MySQLType.SET, MySQLType.BIT)
_ESCAPES = {"\\": "\\\\", "'": "''", "\0": "\\0", "\n": "\\n", "\r": "\\r", "\x1a": "\\Z"}
_ESCAPED = re.compile(r"[\\'\x00\n\r\x1a]")
# Two strings may differ and still be equal: by collation, padding, or the sign of a zero.
_LOOSE = (ValueForm.TEXT, ValueForm.FLOAT, ValueForm.DOUBLE)


def literal(column: Column, value: str) -> str:
    """A value of a column in SQL, for sessions with sql_mode '' and time_zone '+00:00'."""
    form = column.value_form
    if form in _WHOLE or column.code in _NUMBERED:
        return str(int(value))
    if form == ValueForm.DECIMAL:
        return f"{Decimal(value):f}"  # in quotes it would be compared as a double
    if form == ValueForm.FLOAT:
        return _real(unpack("f", pack("f", float(value)))[0])
    if form == ValueForm.DOUBLE:
        return _real(float(value))
    if form == ValueForm.BINARY:
        return f"x'{b64decode(value, validate=True).hex()}'"
    return f"'{_ESCAPED.sub(lambda match: _ESCAPES[match[0]], value)}'"


def _real(number: float) -> str:
    text = repr(number)
    return text if "e" in text else f"{text}e0"  # without an exponent it would be a decimal


def between(
    columns: Sequence[Column], low: Bound | None, high: Bound | None, *, strict: bool = False
) -> str:
    """` WHERE …` for the rows from `low` on (after it, if `strict`) and below `high`.

    Nothing for all rows. A bound may have fewer values than there are columns.
    """
    condition = _between(columns, low or (), high or (), strict)
    return f" WHERE {condition}" if condition else ""


def _between(columns: Sequence[Column], low: Bound, high: Bound, strict: bool) -> str:
    if not low:
        return _below(columns, high) if high else ""
    if not high:
        return _from(columns, low, strict)
    column = columns[0]
    name = quoted(column.name)
    first, last = literal(column, low[0]), literal(column, high[0])
    if first == last:
        rest = _both(columns[1:], low[1:], high[1:], strict)
        return f"{name} = {first} AND {rest}"
    from_low = _from_rest(columns[1:], low[1:], strict)
    below_high = _below_rest(columns[1:], high[1:])
    if from_low == "" and below_high is None:
        return f"{name} >= {first} AND {name} < {last}"
    loose = column.value_form in _LOOSE
    parts = [f"{name} > {first} AND {name} < {last}"]
    if from_low is not None:
        parts.append(_all(f"{name} = {first}", f"{name} < {last}" if loose else "", from_low))
    if below_high is not None:
        parts.append(_all(f"{name} = {last}", f"{name} > {first}" if loose else "", below_high))
    if loose and from_low is not None and below_high is not None:
        parts.append(_all(f"{name} = {first}", f"{name} = {last}", from_low, below_high))
    return f"({' OR '.join(f'({part})' for part in parts)})" if len(parts) > 1 else parts[0]


def _both(columns: Sequence[Column], low: Bound, high: Bound, strict: bool) -> str:
    """The rest of a key whose first values are equal; of equal bounds nothing is between."""
    from_low = _from_rest(columns, low, strict)
    below_high = _below_rest(columns, high)
    if from_low is None or below_high is None:
        return "FALSE"
    return _between(columns, low, high, strict) or "TRUE"


def _from_rest(columns: Sequence[Column], low: Bound, strict: bool) -> str | None:
    """What must hold of the rest, if the first values are the bound's own: None for never."""
    if not low:
        return None if strict else ""
    return _from(columns, low, strict)


def _below_rest(columns: Sequence[Column], high: Bound) -> str | None:
    return _below(columns, high) if high else None


def _from(columns: Sequence[Column], low: Bound, strict: bool) -> str:
    name, value = quoted(columns[0].name), literal(columns[0], low[0])
    if len(low) == 1:
        return f"{name} {'>' if strict else '>='} {value}"
    return f"({name} > {value} OR ({name} = {value} AND {_from(columns[1:], low[1:], strict)}))"


def _below(columns: Sequence[Column], high: Bound) -> str:
    name, value = quoted(columns[0].name), literal(columns[0], high[0])
    if len(high) == 1:
        return f"{name} < {value}"
    return f"({name} < {value} OR ({name} = {value} AND {_below(columns[1:], high[1:])}))"


def _all(*conditions: str) -> str:
    return " AND ".join(condition for condition in conditions if condition)
