"""DEFAULT: what a column definition says, what TiDB keeps of it, what existing rows then hold.

TiDB keeps a default as text in a form of its own: numbers of a float or integer column converted,
those of a DECIMAL as they were written, times with their fraction, an ENUM by its element's name,
functions in lower case. That text is what the schemas of the wire show (`stored_default`). A column
that is added to a table with rows gives them the default as a value (`fill`), which is text as rows
carry it. Authority: TiDB's `pkg/ddl/add_column.go`.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from enum import Enum
from math import isfinite

from tidegate.feed.conversion import convert, element_number, member_bits
from tidegate.feed.statement import Statement, Unreadable, quoted
from tidegate.model.schema import ABSENT, Absent, Column, Default
from tidegate.model.sql import Token, TokenKind
from tidegate.model.types import INTEGERS, STRINGS, TEMPORALS, MySQLType, is_binary


class Form(Enum):
    """What is written after DEFAULT."""

    NULL = "null"
    TEXT = "text"
    NUMBER = "number"
    BYTES = "bytes"
    NOW = "now"
    EXPRESSION = "expression"


@dataclass(frozen=True, slots=True)
class Written:
    """A default as it is written: `text` is a number's digits, bytes in hexadecimal, and so on."""

    form: Form
    text: str = ""


NULL = Written(Form.NULL)
_NOW = frozenset({"CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP"})
_TODAY = frozenset({"CURRENT_DATE", "CURDATE"})
_TRUTH = {"TRUE": "1", "FALSE": "0"}
# More digits than any column holds; a hostile number must not cost more.
_EXACT = Context(prec=100, Emin=-1000, Emax=1000, rounding=ROUND_HALF_UP)
_MAX_NUMBER = 400
_MAX_INTEGER_BYTES = 8


def read_default(statement: Statement) -> Written:
    """Read what stands after DEFAULT."""
    if not statement.sees("("):
        return _value(statement)
    inside = statement.bracket()
    reader = Statement(inside)
    written = read_default(reader)
    return written if reader.done else Written(Form.EXPRESSION, _restored(inside))


def _value(statement: Statement) -> Written:
    sign = ""
    while mark := statement.take_one_of("-", "+"):
        if mark == "-":
            sign = "" if sign else "-"
    token = statement.next("a default value")
    if token.kind is TokenKind.NUMBER:
        return Written(Form.NUMBER, sign + token.text)
    if token.kind is TokenKind.STRING:
        return Written(Form.TEXT, token.value)
    if token.kind is TokenKind.BYTES:
        return Written(Form.BYTES, token.value)
    return _of_word(token, statement)


def _of_word(token: Token, statement: Statement) -> Written:
    word = token.key
    if word == "NULL":
        return NULL
    if word in _TRUTH:
        return Written(Form.NUMBER, _TRUTH[word])
    if word in _NOW or word in _TODAY:
        if statement.sees("("):
            statement.bracket()
        return Written(Form.NOW, "CURRENT_DATE" if word in _TODAY else "CURRENT_TIMESTAMP")
    if word in ("DATE", "TIME", "TIMESTAMP") and not statement.sees("("):
        return _value(statement)  # TIMESTAMP'…': a literal that names its type
    if word == "NEXT" and statement.take("VALUE", "FOR"):
        sequence = statement.table_name()
        return Written(Form.EXPRESSION, f"nextval({sequence})")
    if token.kind is TokenKind.WORD and statement.sees("("):
        inside = statement.bracket()
        return Written(Form.EXPRESSION, f"{word.lower()}({_restored(inside)})")
    raise statement.unexpected("a default value")


def _restored(tokens: Iterable[Token]) -> str:
    """An expression as TiDB keeps it: words in lower case, a blank after each comma."""
    return "".join(_spelled(token) for token in tokens)


def _spelled(token: Token) -> str:
    if token.kind is TokenKind.NAME:
        return quoted(token.value)
    if token.kind is TokenKind.STRING:
        introducer = token.text.partition("'")[0].strip().lower()
        return introducer + "'" + token.value.replace("'", "''") + "'"
    if token.key == ",":
        return ", "
    return token.text.lower() if token.kind is TokenKind.WORD else token.text


# --- what TiDB keeps ------------------------------------------------------------------------------


def stored_default(column: Column, written: Written) -> Default:
    """The default as TiDB's schema of the column has it; a number for BIT, else text or None."""
    if written.form is Form.NULL:
        return None
    if written.form in (Form.NOW, Form.EXPRESSION):
        return written.text
    if column.code == MySQLType.BIT:
        return _bit(written)
    if written.form is Form.BYTES:
        return _of_bytes(column, bytes.fromhex(written.text))
    return _text_of(column, _plain(written), is_number=written.form is Form.NUMBER)


def _bit(written: Written) -> int | str:
    if written.form is Form.BYTES:
        return _whole(bytes.fromhex(written.text))
    if written.form is Form.NUMBER:
        number = _decimal(written.text)
        return written.text if number is None else int(number)
    return _whole(written.text.encode())


def _whole(value: bytes) -> int:
    if len(value.lstrip(b"\0")) > _MAX_INTEGER_BYTES:
        raise Unreadable("a default has more than 64 bits")
    return int.from_bytes(value, "big")


_TAKES_BYTES = STRINGS | {MySQLType.ENUM, MySQLType.SET, MySQLType.JSON}


def _of_bytes(column: Column, value: bytes) -> str:
    if column.code in _TAKES_BYTES:
        return _padded(column, value).decode(errors="replace")
    return str(_whole(value))


def _padded(column: Column, value: bytes) -> bytes:
    """BINARY(n) is filled up with zero bytes."""
    if column.base_type == "binary" and column.length is not None and column.length > 0:
        return value.ljust(min(column.length, 255), b"\0")
    return value


def _plain(written: Written) -> str:
    """A number as TiDB prints it: whole or decimal digits stay, an exponent is worked out."""
    if written.form is not Form.NUMBER:
        return written.text
    number = _decimal(written.text)
    if number is None:
        return written.text
    if "e" in written.text.lower() and isfinite(float(number)):
        return _positional(float(number))
    return _digits(written.text)


def _digits(text: str) -> str:
    """A decimal number without needless zeros and points: 007 → 7, .5 → 0.5, 1. → 1."""
    sign = "-" if text.startswith("-") else ""
    whole, _, fraction = text.lstrip("+-").partition(".")
    whole = whole.lstrip("0") or "0"
    return sign + whole + ("." + fraction if fraction else "")


def _decimal(text: str) -> Decimal | None:
    if len(text) > _MAX_NUMBER:
        return None
    try:
        number = _EXACT.create_decimal(text.strip())
    except ArithmeticError:
        return None
    return number if number.is_finite() else None


def _positional(number: float) -> str:
    """The shortest digits of a double, without an exponent."""
    text = format(Decimal(repr(number)), "f")
    return text.removesuffix(".0")


def _single(number: float) -> str:
    """The shortest digits of a single-precision float, without an exponent."""
    try:
        exact = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return _positional(number)
    for digits in range(1, 10):
        text = f"{exact:.{digits}g}"
        if struct.unpack("<f", struct.pack("<f", float(text)))[0] == exact:
            return _positional(float(text))
    return _positional(exact)


def _text_of(column: Column, text: str, *, is_number: bool) -> str:
    code = column.code
    if code in INTEGERS:
        number = _decimal(text)
        return text if number is None else str(int(_rounded(number, 0)))
    if code in (MySQLType.FLOAT, MySQLType.DOUBLE):
        return _real(column, text)
    if code in (MySQLType.DATETIME, MySQLType.TIMESTAMP, MySQLType.DATE):
        return _moment(column, text)
    if code == MySQLType.DURATION:
        return _duration(text, column.decimals or 0)
    if code == MySQLType.ENUM:
        return _element(column, text, is_number=is_number)
    if code == MySQLType.SET:
        return _members(column, text, is_number=is_number)
    if column.base_type == "binary":
        return _padded(column, text.encode()).decode(errors="replace")
    return text


def _real(column: Column, text: str) -> str:
    number = _decimal(text)
    if number is None:
        return text
    if column.decimals is not None and 0 < column.decimals <= 30:
        number = _rounded(number, column.decimals)
    value = float(number)
    if not isfinite(value):
        return text
    return _single(value) if column.code == MySQLType.FLOAT else _positional(value)


def _rounded(number: Decimal, digits: int) -> Decimal:
    try:
        return number.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, _EXACT)
    except InvalidOperation:
        return number


_MOMENT = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,9}))?)?)?",
    re.ASCII,
)
_COMPACT = re.compile(r"(\d{4})(\d\d)(\d\d)(?:(\d\d)(\d\d)(\d\d)(?:\.(\d{0,9}))?)?", re.ASCII)


def _moment(column: Column, text: str) -> str:
    """A date or time of day as TiDB prints it; a text in a form of its own stays as it is."""
    match = _MOMENT.fullmatch(text.strip()) or _COMPACT.fullmatch(text.strip())
    if match is None:
        return text
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    if column.code == MySQLType.DATE:
        return f"{year:04}-{month:02}-{day:02}"
    fraction, carry = _fraction(match[7] or "", column.decimals or 0)
    if carry:
        try:
            moved = datetime(year, month, day, hour, minute, second) + timedelta(seconds=1)
        except (ValueError, OverflowError):  # a zero date does not move
            return text
        year, month, day, hour, minute, second = moved.timetuple()[:6]
    return f"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}{fraction}"


def _fraction(digits: str, wanted: int) -> tuple[str, bool]:
    """The fraction of a second with so many digits, and whether a whole second is carried."""
    if wanted == 0:
        return "", digits[:1] >= "5"
    rounded = _rounded(Decimal("0." + (digits or "0")), wanted)
    return f"{rounded:.{wanted}f}"[1:], rounded >= 1


_DURATION = re.compile(r"(-?)(\d{1,3}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,9}))?)?", re.ASCII)
_COMPACT_DURATION = re.compile(r"(-?)(\d{1,7})(?:\.(\d{0,9}))?", re.ASCII)


def _duration(text: str, digits: int) -> str:
    if match := _DURATION.fullmatch(text.strip()):
        hours, minutes, seconds = (int(part or 0) for part in match.group(2, 3, 4))
    elif match := _COMPACT_DURATION.fullmatch(text.strip()):
        digits_only = match[2].rjust(6, "0")
        hours, minutes, seconds = (
            int(part) for part in (digits_only[:-4], digits_only[-4:-2], digits_only[-2:])
        )
    else:
        return text
    fraction, carry = _fraction(match[match.re.groups] or "", digits)
    total = hours * 3600 + minutes * 60 + seconds + carry
    return f"{match[1]}{total // 3600:02}:{total // 60 % 60:02}:{total % 60:02}{fraction}"


def _element(column: Column, text: str, *, is_number: bool) -> str:
    place = element_number(column, text, is_number=is_number)
    return text if place is None else column.elements[place - 1]


def _members(column: Column, text: str, *, is_number: bool) -> str:
    mask = member_bits(column, text, is_number=is_number)
    if mask is None:
        return text
    return ",".join(name for bit, name in enumerate(column.elements) if mask >> bit & 1)


# --- what existing rows hold ----------------------------------------------------------------------


def fill(column: Column, written: Written | None) -> str | Absent | None:
    """The value that rows have in a column added to them, as rows carry it.

    ABSENT where the statement does not tell: the time at which it ran, an expression.
    """
    if column.generated is not None:
        return ABSENT
    if written is None or written.form is Form.NULL:
        return None if column.nullable else _zero(column)
    if written.form in (Form.NOW, Form.EXPRESSION):
        return ABSENT
    is_number = written.form is Form.NUMBER
    stored = stored_default(column, written)
    text = "" if stored is None else str(stored)
    if column.code == MySQLType.ENUM:
        place = element_number(column, text)
        return ABSENT if place is None else str(place)
    if column.code == MySQLType.SET:
        mask = member_bits(column, text)
        return ABSENT if mask is None else str(mask)
    if column.code == MySQLType.NEWDECIMAL:
        number = _decimal(text)
        return ABSENT if number is None else f"{_rounded(number, column.decimals or 0):f}"
    if is_binary(column.code, column.type_flags):
        raw = bytes.fromhex(written.text) if written.form is Form.BYTES else text.encode()
        return base64.b64encode(raw if is_number else _padded(column, raw)).decode()
    if column.code in _CONVERTED:
        is_year = column.code == MySQLType.YEAR and written.form is not Form.TEXT
        found = convert(_NUMBER if is_year else _TEXT, column, text)
        return ABSENT if found is None else found
    return text


_TEXT, _NUMBER = Column.of_type("", "varchar"), Column.of_type("", "bigint")
# What is written may be of another form than that in which rows carry it.
_CONVERTED = TEMPORALS | {MySQLType.YEAR, MySQLType.STRING}


_ZEROS: dict[int, str] = {
    MySQLType.DATE: "0000-00-00",
    MySQLType.DATETIME: "0000-00-00 00:00:00",
    MySQLType.TIMESTAMP: "0000-00-00 00:00:00",
    MySQLType.ENUM: "1",  # its first element
    MySQLType.JSON: "null",
    MySQLType.VECTOR: "[]",
    **dict.fromkeys(STRINGS, ""),
}


def _zero(column: Column) -> str:
    """The value of a NOT NULL column that was given none."""
    if is_binary(column.code, column.type_flags):
        return base64.b64encode(_padded(column, b"")).decode()
    if column.code in (MySQLType.NEWDECIMAL, MySQLType.DURATION):
        return convert(_NUMBER, column, "0") or "0"  # with its decimals
    return _ZEROS.get(column.code, "0")
