"""SQL text as tokens: the one lexer that everything which reads a DDL statement stands on.

TiCDC sends a statement as TiDB's parser restores it: names in backquotes, keywords in upper case,
TiDB's own syntax in comments such as `/*T![ttl] … */`, text with its introducer (`_UTF8MB4'…'`),
quotes doubled and nothing else escaped, not even the backslash. Text that a person wrote is read as
MySQL reads it. A hostile text is read once, whatever it holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import islice
from typing import NamedTuple

from tidegate.model.types import MySQLType, code_of


class TokenKind(Enum):
    """What a token is; BROKEN is a quoted one that the text ends in."""

    WORD = "word"
    NAME = "name"
    STRING = "string"
    BYTES = "bytes"
    NUMBER = "number"
    MARK = "mark"
    BROKEN = "broken"


class Token(NamedTuple):
    """A token: `text` as it stands there, `value` what it means.

    The value of a word is in upper case, that of a quoted token is its content, that of a byte
    literal its bytes in hexadecimal.
    """

    kind: TokenKind
    text: str
    value: str

    @property
    def key(self) -> str:
        """The value of a word or mark, to be compared with keywords; nothing of other tokens."""
        return self.value if self.kind in (TokenKind.WORD, TokenKind.MARK) else ""


# Possessive and with optional closing marks: whatever the text holds, it is passed over once.
# TiDB's and MySQL's executable comments are opened, so that their content is read as statement.
_TOKEN = r"""
      (?P<skip>\s++|/\*T!(?:\[[\w,\ ]*+\])?+|/\*!\d*+|\*/|\#[^\n]*+|--(?!\S)[^\n]*+
        |/\*(?:(?:[^*]++|\*(?!/))*+(?:\*/)?+))
    | (?P<bytes>(?:_\w++\s*+)?+(?:[xX]'[0-9a-fA-F]*+'|[bB]'[01]*+')
        |0x[0-9a-fA-F]++(?![\w$])|0b[01]++(?![\w$]))
    | (?P<string>(?:_[a-zA-Z0-9]++\s*+|[nN])?+(?:'{single}(?P<single>')?+|"{double}(?P<double>")?+))
    | (?P<name>`(?:[^`]++|``)*+(?P<back>`)?+)
    | (?P<number>(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?+\d++)?+(?![\w$]))
    | (?P<word>[\w$@]++)
    | (?P<mark>.)
"""
_FLAGS = re.VERBOSE | re.DOTALL
_ESCAPING = re.compile(
    _TOKEN.format(single=r"(?:[^'\\]++|''|\\.)*+", double=r'(?:[^"\\]++|""|\\.)*+'), _FLAGS
)
_PLAIN = re.compile(_TOKEN.format(single=r"(?:[^']++|'')*+", double=r'(?:[^"]++|"")*+'), _FLAGS)

_ESCAPE = {quote: re.compile(rf"\\(.)|{quote}{quote}", re.DOTALL) for quote in "'\""}
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}


def tokens(text: str, *, most: int | None = None, restored: bool = False) -> list[Token]:
    """The tokens of a statement in order, no more than `most`; comments are left out.

    `restored`: TiDB's parser spelled the text. Otherwise that is found out from the text.
    """
    plain = list(islice(_read(text, _PLAIN), most))
    if restored or "\\" not in text or _is_restored(plain):
        return plain
    escaping = list(islice(_read(text, _ESCAPING), most))
    return plain if is_broken(escaping) and not is_broken(plain) else escaping


def quoted(*parts: str) -> str:
    """A name from its parts, each in backquotes, as MySQL and Spark write one."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def parts_of(name: str) -> list[str]:
    """The parts of what `quoted` gives."""
    return [part.replace("``", "`") for part in re.findall(r"`((?:[^`]|``)*)`", name)]


def is_broken(read: Iterable[Token]) -> bool:
    """Whether a quote that the text opens is still open at its end."""
    return any(token.kind is TokenKind.BROKEN for token in read)


def _is_restored(read: Sequence[Token]) -> bool:
    """Whether TiDB's parser spelled the text, so that its backslashes are plain characters.

    What tells: the words before the first name are in upper case, and the name is in backquotes; no
    type is in lower case, no text in double quotes, no quote open at the end.
    """
    before_name = True
    for token in read:
        if token.kind is TokenKind.BROKEN or token.text[-1] == '"':
            return False
        if token.kind is TokenKind.NAME:
            before_name = False
        is_lower = token.kind is TokenKind.WORD and token.text != token.value
        if is_lower and (before_name or code_of(token.text)[0] != MySQLType.UNSPECIFIED):
            return False
    return not before_name


def _read(text: str, pattern: re.Pattern[str]) -> Iterator[Token]:
    for match in pattern.finditer(text):
        kind, found = match.lastgroup, match[0]
        if kind == "word":
            yield Token(TokenKind.WORD, found, found.upper())
        elif kind == "mark":
            yield Token(TokenKind.MARK, found, found)
        elif kind in ("name", "string"):
            yield _content(match, escapes=pattern is _ESCAPING and kind == "string")
        elif kind == "number":
            yield Token(TokenKind.NUMBER, found, found)
        elif kind == "bytes":
            yield Token(TokenKind.BYTES, found, _hexadecimal(found))


def _content(match: re.Match[str], *, escapes: bool) -> Token:
    found = match[0]
    quote = match["single"] or match["double"] or match["back"]
    if quote is None:
        return Token(TokenKind.BROKEN, found, "")
    body = found[found.index(quote) + 1 : -1]
    kind = TokenKind.NAME if quote == "`" else TokenKind.STRING
    if escapes:
        return Token(kind, found, _ESCAPE[quote].sub(_unescaped, body))
    return Token(kind, found, body.replace(quote * 2, quote))


def _unescaped(match: re.Match[str]) -> str:
    escaped: str | None = match[1]
    if escaped is None:
        return match[0][0]
    # MySQL keeps the backslash before the two wildcards of LIKE.
    return match[0] if escaped in "%_" else _ESCAPED.get(escaped, escaped)


def _hexadecimal(literal: str) -> str:
    """The bytes of x'…', 0x…, b'…' or 0b…, an introducer before them left out."""
    if literal[-1] == "'":
        head, _, digits = literal[:-1].partition("'")
        base = head[-1].lower()
    else:
        base, digits = literal[1], literal[2:]
    if base == "x":
        return ("0" if len(digits) % 2 else "") + digits.lower()
    size = (len(digits) + 7) // 8
    return f"{int(digits, 2):0{2 * size}x}" if size else ""


def split(read: Iterable[Token], at: str = ",") -> Iterator[list[Token]]:
    """The parts between those marks that are in no brackets; empty parts are left out."""
    depth = 0
    part: list[Token] = []
    for token in read:
        depth += (token.key == "(") - (token.key == ")")
        if depth == 0 and token.key == at:
            if part:
                yield part
            part = []
        else:
            part.append(token)
    if part:
        yield part
