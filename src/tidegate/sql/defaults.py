"""DEFAULT: what a column definition says, what TiDB keeps of it, what existing rows then hold.

TiDB keeps a default as text in a form of its own: numbers of a float or integer column converted,
those of a DECIMAL as they were written, times with their fraction, an ENUM by its element's name,
functions in lower case. That text is what the schemas of the wire show (`stored_default`). A column
that is added to a table with rows gives them the default as a value (`fill`), which is text as rows
carry it. Authority: TiDB's `pkg/ddl/add_column.go`.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from math import isfinite

from tidegate.model.schema import ABSENT, Absent, Column, Default
from tidegate.model.sql import Token, TokenKind, quoted
from tidegate.model.types import INTEGERS, MOMENTS, STRINGS, TEMPORALS, MySQLType, is_binary
from tidegate.sql.casts import convert, element_number, member_bits
from tidegate.sql.statement import Statement, Unreadable
from tidegate.wire.kernel.text import format_double


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


# --- literals -------------------------------------------------------------------------------------

_TEXT, _BYTES = Column.of_type("", "varchar"), Column.of_type("", "varbinary")
_WHOLE, _REAL = Column.of_type("", "bigint"), Column.of_type("", "double")
_BITS = Column.of_type("", "bit(64)")
_TAKES_BYTES = STRINGS | {MySQLType.ENUM, MySQLType.SET, MySQLType.JSON}


def _literal(column: Column, written: Written) -> tuple[Column, str]:
    """What is written as a value: of which type it is, and its text as rows carry it."""
    if written.form is Form.BYTES:
        raw = bytes.fromhex(written.text)
        if column.code not in _TAKES_BYTES:
            return _WHOLE, str(_number_of(raw))
        if is_binary(column.code, column.type_flags):
            return _BYTES, b64encode(raw).decode()
        return _TEXT, raw.decode(errors="replace")
    if written.form is not Form.NUMBER:
        is_bit = column.code == MySQLType.BIT  # its bytes are the number
        return (_WHOLE, str(_number_of(written.text.encode()))) if is_bit else (_TEXT, written.text)
    if "e" in written.text.lower():
        number = float(written.text)
        return (_REAL, format_double(number)) if isfinite(number) else (_TEXT, written.text)
    text = _digits(written.text)
    return (_TEXT if "." in text else _WHOLE), text  # a decimal as a text keeps all its digits


def _number_of(value: bytes) -> int:
    if len(value.lstrip(b"\0")) > _MAX_INTEGER_BYTES:
        raise Unreadable("a default has more than 64 bits")
    return int.from_bytes(value, "big")


def _digits(text: str) -> str:
    """A decimal number without needless zeros and points: 007 → 7, .5 → 0.5, 1. → 1."""
    sign = "-" if text.startswith("-") else ""
    whole, _, fraction = text.lstrip("+-").partition(".")
    whole = whole.lstrip("0") or "0"
    return sign + whole + ("." + fraction if fraction else "")


# --- what TiDB keeps ------------------------------------------------------------------------------

_KEPT_CONVERTED = INTEGERS | TEMPORALS | {MySQLType.FLOAT, MySQLType.DOUBLE}


def stored_default(column: Column, written: Written) -> Default:
    """The default as TiDB's schema of the column has it; a number for BIT, else text or None."""
    if written.form is Form.NULL:
        return None
    if written.form in (Form.NOW, Form.EXPRESSION):
        return written.text
    literal, text = _literal(column, written)
    if column.code == MySQLType.BIT:
        found = convert(literal, _BITS, text)
        return text if found is None else int(found)
    if column.code in _KEPT_CONVERTED:
        return convert(literal, column, text) or text
    is_number = written.form is Form.NUMBER
    if column.code == MySQLType.ENUM:
        place = element_number(column, text, is_number=is_number)
        return text if place is None else column.elements[place - 1]
    if column.code == MySQLType.SET:
        mask = member_bits(column, text, is_number=is_number)
        return text if mask is None else _members(column, mask)
    if is_binary(column.code, column.type_flags):
        return b64decode(convert(literal, column, text) or "").decode(errors="replace")
    return text


def _members(column: Column, mask: int) -> str:
    return ",".join(name for bit, name in enumerate(column.elements) if mask >> bit & 1)


# --- what existing rows hold ----------------------------------------------------------------------

# What BIT(1) takes by its meaning, and not by its bytes.
_FLAGS = {"true": "1", "1": "1", "false": "0", "0": "0"}


def fill(column: Column, written: Written | None) -> str | Absent | None:
    """The value that rows have in a column added to them, as rows carry it.

    ABSENT where the statement does not tell: the time at which it ran (see `time_of`), an
    expression.
    """
    if column.generated is not None:
        return ABSENT
    if written is None or written.form is Form.NULL:
        return None if column.nullable else _zero(column)
    if written.form in (Form.NOW, Form.EXPRESSION):
        return ABSENT
    if column.code == MySQLType.BIT and column.length == 1 and written.form is Form.TEXT:
        flag = _FLAGS.get(written.text.lower())
        if flag is not None:
            return flag
    literal, text = _literal(column, written)
    found = convert(literal, column, text)
    return ABSENT if found is None else found


def time_of(column: Column, written: Written | None, now: datetime | None) -> str | None:
    """The time `now` as a column has it that is added with CURRENT_TIMESTAMP or CURRENT_DATE.

    None where it has another default, or is of a type that cannot have this one.
    """
    if now is None or written is None or written.form is not Form.NOW:
        return None
    if column.generated is not None or column.code not in MOMENTS:
        return None
    if column.code == MySQLType.DATE:
        return f"{now:%Y-%m-%d}"
    if written.text == "CURRENT_DATE":
        now = datetime(now.year, now.month, now.day)
    digits = max(column.decimals or 0, 0)
    fraction = f".{now.microsecond:06}"[: digits + 1] if digits else ""
    return f"{now:%Y-%m-%d %H:%M:%S}{fraction}"


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
        return convert(_TEXT, column, "") or ""
    if column.code in (MySQLType.NEWDECIMAL, MySQLType.DURATION):
        return convert(_WHOLE, column, "0") or "0"  # with its decimals
    return _ZEROS.get(column.code, "0")
