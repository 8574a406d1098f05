"""CREATE statements of a dump's schema files, read as the feed's own statements are.

The files hold what SHOW CREATE TABLE says, where TiDB writes NUL, LF, CR and the quote of a string
as `\\0`, `\\n`, `\\r` and `''`, and a backslash as it is.
"""

from __future__ import annotations

import re

from tidegate.model import DumpError, TableSchema
from tidegate.sql.ddl import ChangeKind, TableChange, transition
from tidegate.sql.definition import Charset
from tidegate.sql.tables import DEFAULT_CHARSET

_COMMENT = re.compile(r"\s*(?:/\*!\d*\s*SET\b.*?\*/\s*;|--[^\n]*\n)", re.DOTALL)
_QUOTED = re.compile(r"`(?:[^`]|``)*`|'(?:[^']|'')*'")
_LONE_BACKSLASH = re.compile(r"\\(?![0nr])")
_STEP = "Make the dump again, or check that the file is one of Dumpling's"


def table_schema(path: str, data: bytes, database: str, charset: Charset | None) -> TableSchema:
    """The table of a `-schema.sql` file."""
    change = _change(path, data, database, charset or DEFAULT_CHARSET)
    if change.kind is not ChangeKind.CREATED or change.after is None:
        why = change.reason or "it is not CREATE TABLE."
        raise DumpError(path, f"its statement cannot be read: {why.rstrip('.')}", _STEP)
    return change.after


def database_of(path: str, data: bytes, database: str) -> tuple[str, Charset | None]:
    """The name and the character set of a `-schema-create.sql` file."""
    change = _change(path, data, database, DEFAULT_CHARSET)
    if change.kind is not ChangeKind.DATABASE_CREATED:
        raise DumpError(path, "it is not CREATE DATABASE", _STEP)
    return change.database or database, change.charset


def _change(path: str, data: bytes, database: str, charset: Charset) -> TableChange:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DumpError(path, f"byte {error.start} is not UTF-8", _STEP) from None
    place = 0
    while (comment := _COMMENT.match(text, place)) is not None:
        place = comment.end()
    return transition(None, _escaped(text[place:].strip()), database, charset=charset)


def _escaped(text: str) -> str:
    """The statement with every plain backslash written as two, as MySQL's own rule has it."""
    if "\\" not in text:
        return text
    return _QUOTED.sub(_with_escapes, text)


def _with_escapes(match: re.Match[str]) -> str:
    quoted = match[0]
    return quoted if quoted[0] == "`" else _LONE_BACKSLASH.sub(r"\\\\", quoted)
