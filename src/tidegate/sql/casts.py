"""What a value becomes when its column gets another type: TiDB's conversions, text to text.

MODIFY and CHANGE COLUMN convert the rows that are there, and the feed does not send them again, so
whoever keeps rows must convert them too. Texts are those that rows carry (docs/batch.md). A value
for which the statement would have failed in strict mode has no text after it. Authority: TiDB's
`pkg/types/datum.go`, `convert.go`, `time.go`.
"""

from __future__ import annotations

import json
import re
import struct
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from math import floor, isfinite
from typing import Any

from tidegate.model.schema import Column
from tidegate.model.types import INTEGERS, MOMENTS, STRINGS, MySQLType, is_binary
from tidegate.wire.kernel.text import format_double, format_float

_REALS = (MySQLType.FLOAT, MySQLType.DOUBLE)
_LABELLED = (MySQLType.ENUM, MySQLType.SET)
_BIT_SETS = (MySQLType.BIT, MySQLType.SET)
# More digits than any column holds: 65 of a DECIMAL, 309 of a DOUBLE and its fraction.
_EXACT = Context(prec=800, Emin=-2000, Emax=2000)
_MOST_DIGITS = 700
_NEGATIVE = re.compile(r"-\d{1,19}", re.ASCII)


def convert(before: Column, after: Column, text: str) -> str | None:
    """The text of a value after its column's type has changed; None where it has none."""
    if is_same_type(before, after):
        return text
    if before.code in _BIT_SETS and _NEGATIVE.fullmatch(text):
        text = str(int(text) % (1 << 64))  # the highest bit came as a sign (Simple's Avro)
    value = _read(before, text)
    if after.code in STRINGS and not isinstance(value, bytes | _Label):
        value = text  # of a number or a time, too: as rows carry it
    return None if value is None else _writer(after)(after, value)


def is_same_type(before: Column, after: Column) -> bool:
    """Whether rows carry the same texts of both types."""
    return _type(before) == _type(after)


def _type(column: Column) -> tuple[object, ...]:
    size = None if column.code in INTEGERS else column.length
    return (
        column.code,
        is_binary(column.code, column.type_flags),
        size,
        column.decimals or 0,
        column.elements,
    )


def keeps_values(before: Column, after: Column) -> bool:
    """Whether every value stays what it is, where ENUM and SET are kept by their labels.

    Asked of types that are kept in the same form only; False where it is not known.
    """
    if is_same_type(before, after):
        return True
    old, new = before.code, after.code
    if new in _LABELLED:
        if old not in _LABELLED or not before.elements or not after.elements:
            return False
        return _keeps_labels(before, after)
    if new in STRINGS:
        return _keeps_strings(before, after)
    if new in INTEGERS or new == MySQLType.BIT:
        return True
    if new == MySQLType.YEAR or new in (MySQLType.JSON, MySQLType.DURATION):
        return old == new and (before.decimals or 0) == (after.decimals or 0)
    if new in _REALS:
        return not _has_digits(after)
    return (before.decimals or 0) <= (after.decimals or 0) and old == new != MySQLType.NEWDECIMAL


def _keeps_labels(before: Column, after: Column) -> bool:
    if not set(before.elements) <= set(after.elements):
        return False
    if before.code != MySQLType.SET:
        return True
    kept = [element for element in after.elements if element in before.elements]
    return after.code == MySQLType.SET and kept == list(before.elements)


def _keeps_strings(before: Column, after: Column) -> bool:
    if is_binary(after.code, after.type_flags):
        # BINARY(n) is filled up with zero bytes.
        return is_binary(before.code, before.type_flags) and after.code != MySQLType.STRING
    is_trimmed = after.code == MySQLType.STRING and before.code in STRINGS
    return not is_trimmed or before.code == MySQLType.STRING


# --- values ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Label:
    """A value of an ENUM or SET; the name is None where the elements are not known."""

    number: int
    name: str | None


@dataclass(frozen=True, slots=True)
class _Moment:
    """A date, or a date and time; it may be one that no calendar has."""

    year: int
    month: int
    day: int
    hour: int = 0
    minute: int = 0
    second: int = 0
    micros: int = 0
    is_date: bool = False

    def number(self) -> Decimal:
        day = (self.year * 100 + self.month) * 100 + self.day
        if self.is_date:
            return Decimal(day)
        time = (self.hour * 100 + self.minute) * 100 + self.second
        return Decimal(day * 1_000_000 + time) + Decimal(self.micros).scaleb(-6)

    def rounded(self, digits: int) -> _Moment:
        micros = _rounded_micros(self.micros, digits)
        if micros < 1_000_000:
            return replace(self, micros=micros)
        try:
            moved = datetime(
                self.year, self.month, self.day, self.hour, self.minute, self.second
            ) + timedelta(seconds=1)
        except (ValueError, OverflowError):
            return replace(self, micros=0)
        return _Moment(*moved.timetuple()[:6])

    def text(self, digits: int) -> str:
        day = f"{self.year:04}-{self.month:02}-{self.day:02}"
        time = f"{self.hour:02}:{self.minute:02}:{self.second:02}"
        return f"{day} {time}{_fraction(self.micros, digits)}"


@dataclass(frozen=True, slots=True)
class _Duration:
    """A TIME, in microseconds."""

    micros: int

    def number(self) -> Decimal:
        seconds, micros = divmod(abs(self.micros), 1_000_000)
        whole = (seconds // 3600 * 100 + seconds // 60 % 60) * 100 + seconds % 60
        number = Decimal(whole) + Decimal(micros).scaleb(-6)
        return -number if self.micros < 0 else number

    def rounded(self, digits: int) -> _Duration:
        micros = _rounded_micros(abs(self.micros), digits)
        return _Duration(-micros if self.micros < 0 else micros)

    def text(self, digits: int) -> str:
        seconds, micros = divmod(abs(self.micros), 1_000_000)
        sign = "-" if self.micros < 0 else ""
        time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        return sign + time + _fraction(micros, digits)


@dataclass(frozen=True, slots=True)
class _Json:
    """A document as it is written."""

    text: str


_Value = int | float | Decimal | str | bytes | _Label | _Moment | _Duration | _Json


def _rounded_micros(micros: int, digits: int) -> int:
    unit = int(10 ** (6 - digits))
    return (micros + unit // 2) // unit * unit


def _fraction(micros: int, digits: int) -> str:
    return f".{micros:06}"[: digits + 1] if digits else ""


# --- reading --------------------------------------------------------------------------------------

_MOMENT = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?", re.ASCII)
_DURATION = re.compile(r"(-?)(\d{1,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?", re.ASCII)


def _read(column: Column, text: str) -> _Value | None:
    """What a text of the column means; None where it is not one."""
    code = column.code
    if code in STRINGS:
        return _bytes(text) if is_binary(code, column.type_flags) else text
    if code in _LABELLED:
        return _label(column, text)
    if code in MOMENTS:
        return _moment(_MOMENT.fullmatch(text))
    if code == MySQLType.DURATION:
        match = _DURATION.fullmatch(text)
        return None if match is None else _duration(*match.groups())
    if code == MySQLType.JSON:
        return _Json(text)
    if code == MySQLType.VECTOR:
        return text
    return _number(code, text)


def _number(code: int, text: str) -> _Value | None:
    number = _decimal(text)
    if number is None:
        return None
    if code == MySQLType.FLOAT:
        single: float = struct.unpack("<f", struct.pack("<f", float(number)))[0]
        return single
    if code == MySQLType.DOUBLE:
        return float(number)
    return number if code == MySQLType.NEWDECIMAL else int(number)


def _decimal(text: str) -> Decimal | None:
    if len(text) > _MOST_DIGITS:
        return None
    try:
        number = _EXACT.create_decimal(text)
    except (InvalidOperation, ArithmeticError):
        return None
    return number if number.is_finite() else None


def _bytes(text: str) -> bytes | None:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        return None


def _label(column: Column, text: str) -> _Label | None:
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        return None
    number = int(text)
    if not column.elements:
        return _Label(number, None)
    if column.code == MySQLType.SET:
        chosen = (name for bit, name in enumerate(column.elements) if number >> bit & 1)
        return _Label(number, ",".join(chosen))
    known = number <= len(column.elements)
    return _Label(number, ("", *column.elements)[number]) if known else None


def _moment(match: re.Match[str] | None) -> _Moment | None:
    if match is None:
        return None
    return replace(_of_parts(*match.groups()), is_date=match[4] is None)


def _of_parts(*texts: str | None) -> _Moment:
    year, month, day, hour, minute, second = (int(text or 0) for text in texts[:6])
    return _Moment(year, month, day, hour, minute, second, _micros(texts[6]))


def _duration(
    sign: str, hours: str, minutes: str, seconds: str, fraction: str | None
) -> _Duration | None:
    if int(minutes) > 59 or int(seconds) > 59:
        return None
    whole = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    micros = whole * 1_000_000 + _micros(fraction)
    return _Duration(-micros if sign else micros)


def _micros(fraction: str | None) -> int:
    """Of more than six digits, the seventh rounds."""
    digits = (fraction or "").ljust(7, "0")
    return int(digits[:6]) + (digits[6] >= "5")


# --- numbers --------------------------------------------------------------------------------------

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,4})?", re.ASCII)


def _exact(value: _Value) -> Decimal | None:
    """The number that a value counts as."""
    if isinstance(value, Decimal | int):
        return Decimal(value)
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, _Label):
        return Decimal(value.number)
    if isinstance(value, _Moment | _Duration):
        return value.number()
    if isinstance(value, _Json):
        found = _json_number(value)
        return None if found is None else _exact(found)
    text = _as_text(value)
    match = None if text is None else _NUMBER.fullmatch(text.strip())
    return None if match is None else _decimal(match[0])


def _json_number(value: _Json) -> int | float | str | None:
    """A number, or a text that is read as one; objects, arrays and null are none."""
    document = _document(value.text)
    if isinstance(document, bool):
        return int(document)
    return document if isinstance(document, int | float | str) else None


def _whole(value: _Value) -> int | None:
    """Rounded: half to even what is a double, else half away from zero."""
    if isinstance(value, _Json):
        found = _json_number(value)
        return None if found is None else _whole(found)
    if isinstance(value, _Moment | _Duration):
        value = value.rounded(0)
    number = _exact(value)
    if number is None:
        return None
    rounding = ROUND_HALF_EVEN if isinstance(value, float) else ROUND_HALF_UP
    return int(number.to_integral_value(rounding))


_BITS = {
    MySQLType.TINY: 8,
    MySQLType.SHORT: 16,
    MySQLType.INT24: 24,
    MySQLType.LONG: 32,
    MySQLType.LONGLONG: 64,
}


def _to_integer(column: Column, value: _Value) -> str | None:
    number, bits = _whole(value), _BITS.get(MySQLType(column.code), 64)
    low, high = (0, 1 << bits) if column.unsigned else (-(1 << bits - 1), 1 << bits - 1)
    return None if number is None or not low <= number < high else str(number)


def _to_bit(column: Column, value: _Value) -> str | None:
    number = _whole(value)
    return None if number is None or not 0 <= number < 1 << (column.length or 64) else str(number)


def _to_decimal(column: Column, value: _Value) -> str | None:
    number = _exact(value)
    if number is None or column.length is None:
        return None if number is None else f"{number:f}"
    digits = max(column.decimals or 0, 0)
    number = number.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, _EXACT)
    if number.copy_abs() >= Decimal(1).scaleb(column.length - digits):
        return None
    return f"{abs(number) if number == 0 else number:f}"


def _has_digits(column: Column) -> bool:
    """Whether a FLOAT or DOUBLE is declared with digits after the point."""
    return column.decimals is not None and 0 < column.decimals <= 30


def _to_real(column: Column, value: _Value) -> str | None:
    number = _exact(value)
    if number is None:
        return None
    real = float(number)
    if _has_digits(column) and isfinite(real):
        scale = 10.0 ** (column.decimals or 0)
        real = floor(real) + round((real - floor(real)) * scale) / scale
    try:
        if column.code == MySQLType.FLOAT:
            return format_float(struct.unpack("<f", struct.pack("<f", real))[0])
    except OverflowError:
        return None
    return format_double(real) if isfinite(real) else None


_YEARS = (1901, 2155)


def _to_year(column: Column, value: _Value) -> str | None:
    is_zero_text = isinstance(value, str) and len(value) != 4 and value.strip().startswith("0")
    year = value.year if isinstance(value, _Moment) else _whole(value)
    if year is None:
        return None
    if 0 < year < 100 or (year == 0 and is_zero_text):
        year += 2000 if year < 70 else 1900
    return str(year) if year == 0 or _YEARS[0] <= year <= _YEARS[1] else None


# --- texts, bytes, labels, documents --------------------------------------------------------------


def _as_text(value: _Value) -> str | None:
    """A value as a text; bytes that are none are None."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, _Label):
        return str(value.number) if value.name is None else value.name
    return value.text if isinstance(value, _Json) else None


def _to_text(column: Column, value: _Value) -> str | None:
    text = _as_text(value)
    if text is not None and column.code == MySQLType.STRING:
        return text.rstrip(" ")
    return text


_MOST_PADDED = 255  # of BINARY; a hostile length must not cost more


def _to_bytes(column: Column, value: _Value) -> str | None:
    text = _as_text(value)
    raw = value if isinstance(value, bytes) else None if text is None else text.encode()
    if raw is None:
        return None
    if column.code == MySQLType.STRING and (column.length or 0) > 0:
        raw = raw.ljust(min(column.length or 0, _MOST_PADDED), b"\0")
    return b64encode(raw).decode()


def _to_enum(column: Column, value: _Value) -> str | None:
    text = _as_text(value)
    if text is None or (isinstance(value, _Label) and value.number == 0):
        number = _whole(value)
        return str(number) if number is not None and 0 <= number <= len(column.elements) else None
    found = element_number(column, text)
    return None if found is None else str(found)


def _to_set(column: Column, value: _Value) -> str | None:
    text = _as_text(value)
    if text is None:
        number = _whole(value)
        return (
            None if number is None or not 0 <= number < 1 << len(column.elements) else str(number)
        )
    found = member_bits(column, text)
    if found is None and text.isascii() and text.isdigit() and len(text) <= 20:
        found = int(text) if int(text) < 1 << len(column.elements) else None
    return None if found is None else str(found)


def _folds_case(column: Column) -> bool:
    return column.collation is not None and column.collation.endswith("_ci")


def _find(column: Column, name: str) -> int | None:
    """The place of an element by its name as the column's collation compares, counted from 1."""
    if name in column.elements:
        return column.elements.index(name) + 1
    if _folds_case(column):
        folded = [element.casefold() for element in column.elements]
        if name.casefold() in folded:
            return folded.index(name.casefold()) + 1
    return None


def element_number(column: Column, text: str, *, is_number: bool = False) -> int | None:
    """The number of an ENUM's element, from its name or from the number itself."""
    place = None if is_number else _find(column, text.rstrip(" "))
    if place is None and text.isascii() and text.isdigit() and len(text) <= 5:
        place = int(text)
    return place if place is not None and 1 <= place <= len(column.elements) else None


def member_bits(column: Column, text: str, *, is_number: bool = False) -> int | None:
    """The bits of a SET, from its members' names or from the number itself."""
    if is_number:
        number = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else 0
        return number if 0 < number < 1 << len(column.elements) else None
    mask = 0
    for name in text.split(",") if text else ():
        place = _find(column, name.rstrip(" "))
        if place is None:
            return None
        mask |= 1 << (place - 1)
    return mask


def _to_json(column: Column, value: _Value) -> str | None:
    if isinstance(value, _Moment):
        return json.dumps(value.text(6)[: 10 if value.is_date else None])
    if isinstance(value, _Duration):
        return json.dumps(value.text(6))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float | Decimal):
        return _json_float(float(value))
    text = _as_text(value)
    document = _NO_DOCUMENT if text is None else _document(text)
    return None if document is _NO_DOCUMENT else _json_text(document)


_NO_DOCUMENT: Any = object()
_MOST_LEVELS = 100  # TiDB's own limit


def _document(text: str) -> Any:
    try:
        return json.loads(
            text, parse_int=_json_integer, parse_float=_json_real, parse_constant=_json_real
        )
    except (ValueError, RecursionError):
        return _NO_DOCUMENT


def _json_integer(text: str) -> int | float:
    number = int(text) if len(text) <= 20 else 1 << 64
    return number if -(1 << 63) <= number < 1 << 64 else _json_real(text)


def _json_real(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(text)
    return number


def _json_float(number: float) -> str:
    """As TiDB writes it: an exponent where Go's JSON has one, else at least one decimal."""
    if number and not 1e-6 <= abs(number) < 1e21:
        digits, _, exponent = repr(number).partition("e")
        if exponent:
            return f"{digits.removesuffix('.0')}e{int(exponent)}"
    text = format_double(number)
    return text if "." in text else text + ".0"


_ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\", 0x2028: "\\u2028", 0x2029: "\\u2029"} | {
    code: {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}.get(code, f"\\u{code:04x}")
    for code in range(0x20)
}


def _json_text(document: Any, level: int = 0) -> str | None:
    if level > _MOST_LEVELS:
        return None
    if isinstance(document, dict):
        parts = [
            (_json_text(name), _json_text(document[name], level + 1))
            for name in sorted(document, key=lambda name: name.encode(errors="replace"))
        ]
        if any(value is None for _, value in parts):
            return None
        return "{" + ", ".join(f"{name}: {value}" for name, value in parts) + "}"
    if isinstance(document, list):
        values = [_json_text(each, level + 1) for each in document]
        return None if None in values else "[" + ", ".join(each or "" for each in values) + "]"
    if isinstance(document, str):
        return '"' + document.translate(_ESCAPES) + '"'
    if isinstance(document, bool) or document is None:
        return {True: "true", False: "false", None: "null"}[document]
    return _json_float(document) if isinstance(document, float) else str(document)


# --- dates and times ------------------------------------------------------------------------------

_WRITTEN_MOMENT = re.compile(
    r"(\d{1,4})[^\w\s]+(\d{1,2})[^\w\s]+(\d{1,2})"
    r"(?:[T\s]+(\d{1,2})(?:[^\w\s]+(\d{1,2})(?:[^\w\s]+(\d{1,2})(?:\.(\d*))?)?)?)?Z?",
    re.ASCII,
)
_COMPACT_MOMENT = re.compile(
    r"(\d{4}|\d\d)(\d\d)(\d\d)(?:(\d\d)(\d\d)(\d\d)(?:\.(\d*))?)?", re.ASCII
)


def _to_moment(column: Column, value: _Value) -> str | None:
    if isinstance(value, _Json):
        document = _document(value.text)
        value = document if isinstance(document, str) else value.text
    if isinstance(value, str | bytes):
        found = _written_moment((_as_text(value) or "").strip())
    elif isinstance(value, int):
        found = _numbered_moment(value)
    else:
        found = value if isinstance(value, _Moment) else None  # of a TIME, the day is not known
    if found is None:
        return None
    if column.code == MySQLType.DATE:
        return found.text(0)[:10]
    digits = max(column.decimals or 0, 0)
    return found.rounded(digits).text(digits)


def _written_moment(text: str) -> _Moment | None:
    match = _WRITTEN_MOMENT.fullmatch(text)
    if match is None:
        compact = len(text.partition(".")[0]) in (6, 8, 12, 14)
        match = _COMPACT_MOMENT.fullmatch(text) if compact else None
    if match is None:
        return None
    found = _of_parts(*match.groups())
    return _checked(replace(found, year=_full_year(found.year, match[1])))


def _full_year(year: int, written: str) -> int:
    if len(written) > 2:
        return year
    return year + (2000 if year < 70 else 1900)


def _numbered_moment(number: int) -> _Moment | None:
    """20200102 and 20200102030405; of years with two digits, those from 1970 to 2069."""
    if number == 0:
        return _Moment(0, 0, 0)
    text = str(number)
    if number < 0 or len(text) > 14:
        return None
    time = len(text) > 8
    text = text.zfill(12 if time and len(text) <= 12 else 14 if time else 6 if len(text) < 7 else 8)
    return _written_moment(text)


def _checked(moment: _Moment) -> _Moment | None:
    fits = (
        moment.month <= 12
        and moment.day <= 31
        and moment.hour < 24
        and moment.minute < 60
        and moment.second < 60
    )
    if not fits:
        return None
    if moment.micros < 1_000_000:
        return moment
    return replace(moment, micros=999_999).rounded(0)


_WRITTEN_DURATION = re.compile(
    r"(-?)(?:(\d{1,2})\s+)?(\d{1,3})(?::(\d{1,2})(?::(\d{1,2}))?)?(?:\.(\d*))?", re.ASCII
)
_COMPACT_DURATION = re.compile(r"(-?)(\d{1,7})(?:\.(\d*))?", re.ASCII)
_MOST_MICROS = (838 * 3600 + 59 * 60 + 59) * 1_000_000


def _to_duration(column: Column, value: _Value) -> str | None:
    if isinstance(value, _Json):
        document = _document(value.text)
        value = document if isinstance(document, str) else value.text
    found: _Duration | None
    if isinstance(value, _Duration):
        found = value
    elif isinstance(value, _Moment):
        micros = (value.hour * 3600 + value.minute * 60 + value.second) * 1_000_000 + value.micros
        found = _Duration(micros)
    else:
        text = _as_text(value)
        if text is None:
            number = _exact(value)
            text = "" if number is None else f"{number:f}"
        found = _written_duration(text.strip())
    digits = max(column.decimals or 0, 0)
    found = None if found is None else found.rounded(digits)
    return None if found is None or abs(found.micros) > _MOST_MICROS else found.text(digits)


def _written_duration(text: str) -> _Duration | None:
    match = _COMPACT_DURATION.fullmatch(text)
    if match is not None:
        digits = match[2].zfill(6)
        return _duration(match[1], digits[:-4], digits[-4:-2], digits[-2:], match[3])
    match = _WRITTEN_DURATION.fullmatch(text)
    if match is not None:
        sign, days, hours, minutes, seconds, fraction = match.groups()
        hours = str(int(hours) + 24 * int(days or 0))
        return _duration(sign, hours, minutes or "0", seconds or "0", fraction)
    moment = _written_moment(text)
    if moment is None:
        return None
    micros = (moment.hour * 3600 + moment.minute * 60 + moment.second) * 1_000_000
    return _Duration(micros + moment.micros)


# --- which way ------------------------------------------------------------------------------------

_Writer = Callable[[Column, Any], str | None]
_WRITERS: dict[int, _Writer] = {
    **dict.fromkeys(INTEGERS, _to_integer),
    **dict.fromkeys(_REALS, _to_real),
    **dict.fromkeys(MOMENTS, _to_moment),
    MySQLType.NEWDECIMAL: _to_decimal,
    MySQLType.YEAR: _to_year,
    MySQLType.BIT: _to_bit,
    MySQLType.DURATION: _to_duration,
    MySQLType.ENUM: _to_enum,
    MySQLType.SET: _to_set,
    MySQLType.JSON: _to_json,
}


def _writer(column: Column) -> _Writer:
    if column.code in STRINGS and is_binary(column.code, column.type_flags):
        return _to_bytes
    return _WRITERS.get(column.code, _to_text)
