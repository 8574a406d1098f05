"""A DDL statement as a run of tokens that is read from left to right.

`Statement` is bounded in size and depth, so that no text, however hostile, costs more than a fixed
time. What a reader did not expect is an `Unreadable`, with a sentence that says what it met; it
never leaves `tidegate.sql.ddl`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidegate.model import sql
from tidegate.model.sql import Token, TokenKind, quoted

# TiDB's own limits are well below: 4,096 columns, 8,192 partitions a table.
MAX_CHARACTERS = 1 << 20
MAX_TOKENS = 200_000
MAX_DEPTH = 64


class Unreadable(Exception):
    """The statement is not one that can be followed; `reason` says why in a clause."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class TableName(NamedTuple):
    """A table's name; `database` is None where neither statement nor event tells it."""

    database: str | None
    table: str

    def __str__(self) -> str:
        parts = (self.database, self.table) if self.database else (self.table,)
        return quoted(*parts)


def read_statement(text: str) -> Statement:
    """The one statement that the text holds; Unreadable if it is none, several or too much."""
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"it has more than {MAX_CHARACTERS:,} characters")
    if any("\ud800" <= character <= "\udfff" for character in set(text)):
        raise Unreadable("it is not Unicode text")
    tokens = sql.tokens(text, most=MAX_TOKENS + 1)
    if len(tokens) > MAX_TOKENS:
        raise Unreadable(f"it has more than {MAX_TOKENS:,} words and marks")
    if sql.is_broken(tokens):
        raise Unreadable("a quote is not closed")
    depth = 0
    for token in tokens:
        depth += (token.key == "(") - (token.key == ")")
        if not 0 <= depth <= MAX_DEPTH:
            raise Unreadable("its brackets do not match or are nested too deeply")
    if depth:
        raise Unreadable("its brackets do not match")
    statements = list(sql.split(tokens, ";"))
    if len(statements) != 1:
        raise Unreadable("it is empty" if not statements else "there is more than one statement")
    return Statement(statements[0])


class Statement:
    """A cursor over tokens. Words and marks are compared in upper case; names never match them."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def done(self) -> bool:
        """Whether everything is read."""
        return self._at >= len(self._tokens)

    @property
    def rest(self) -> Sequence[Token]:
        """The tokens not read yet."""
        return self._tokens[self._at :]

    def key(self, ahead: int = 0) -> str:
        """The word or mark that stands there, or nothing."""
        at = self._at + ahead
        return self._tokens[at].key if at < len(self._tokens) else ""

    def sees(self, *keys: str) -> bool:
        """Whether exactly these words and marks come next."""
        return all(self.key(ahead) == key for ahead, key in enumerate(keys))

    def take(self, *keys: str) -> bool:
        """Read these words and marks if they come next."""
        found = self.sees(*keys)
        if found:
            self._at += len(keys)
        return found

    def take_one_of(self, *keys: str) -> str:
        """Read one of these words or marks if one comes next, and say which."""
        key = self.key()
        if not key or key not in keys:
            return ""
        self._at += 1
        return key

    def expect(self, *keys: str) -> None:
        """Read these words and marks, which must come next."""
        if not self.take(*keys):
            raise self.unexpected(" ".join(keys))

    def unexpected(self, wanted: str) -> Unreadable:
        """What to raise where something else stands than what is wanted."""
        met = "the end" if self.done else _shown(self._tokens[self._at])
        return Unreadable(f"{wanted} was expected where {met} stands")

    def next(self, wanted: str) -> Token:
        """The next token, whatever it is."""
        if self.done:
            raise self.unexpected(wanted)
        token = self._tokens[self._at]
        self._at += 1
        return token

    def name(self, what: str) -> str:
        """A name, quoted or not; ANSI's double quotes are a name's too where one must stand."""
        token = self.next(f"the name of {what}")
        is_name = token.kind in (TokenKind.NAME, TokenKind.WORD)
        if not is_name and not (token.kind is TokenKind.STRING and token.text[0] == '"'):
            self._at -= 1
            raise self.unexpected(f"the name of {what}")
        return token.text if token.kind is TokenKind.WORD else token.value

    def table_name(self) -> TableName:
        """A table's name, with or without that of its database."""
        first = self.name("a table")
        return TableName(first, self.name("a table")) if self.take(".") else TableName(None, first)

    def column_name(self) -> str:
        """A column's name; those of its table and database before it say nothing new."""
        name = self.name("a column")
        while self.take("."):
            name = self.name("a column")
        return name

    def bracket(self) -> list[Token]:
        """What stands in the bracket that opens here; the bracket is read."""
        self.expect("(")
        start, depth = self._at, 1
        while depth:
            key = self.next(")").key
            depth += (key == "(") - (key == ")")
        return list(self._tokens[start : self._at - 1])

    def parts(self) -> list[Statement]:
        """The rest, cut at its commas; it is read."""
        found = [Statement(part) for part in sql.split(self.rest)]
        self._at = len(self._tokens)
        return found

    def skip(self) -> None:
        """Read the rest without looking at it."""
        self._at = len(self._tokens)


def _shown(token: Token) -> str:
    return token.text if len(token.text) <= 40 else token.text[:40] + "…"
