"""Table filter rules: which tables a changefeed sends, and which a dispatch rule is for.

The language is that of TiDB's tools (`table-filter` in TiDB's documentation): `db.table` with
wildcards, escapes, quoted names, `!` exclusions and `/regular expressions/`; the last rule that
matches decides. Regular expressions are RE2's, as in TiDB, by way of Arrow: they read the same and
take linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model import ConfigError

SYSTEM_DATABASES = frozenset(
    {
        "dm_heartbeat",
        "information_schema",
        "inspection_schema",
        "metrics_schema",
        "mysql",
        "performance_schema",
        "sys",
        "tidb_cdc",
    }
)
"""What TiCDC never sends, whatever the rules say; in lower case."""

_REGEX = re.compile(r"/((?:\\.|[^/])+)/", re.DOTALL)
_QUOTED = {
    '"': re.compile(r'"((?:""|[^"])+)"'),
    "`": re.compile(r"`((?:``|[^`])+)`"),
}
_CLASS = re.compile(r"\[(!?)((?:\\[^0-9a-zA-Z]|[^\\\]])+)\]")
_PLAIN = re.compile(r"[0-9A-Za-z$_\x80-\U0010ffff]+")
_WILDCARDS = {"*": ".*", "?": "."}
_BODY = re.compile(r"(?:\(\?i\))?\(\?s\)\^(.*)\$", re.DOTALL)
_PARTS = re.compile(r"\\.|\.\*?|\[\^?(?:\\.|[^\\\]])+\]|.", re.DOTALL)

IN_TOPICS = "[A-Za-z0-9._-]"
"""A character of a topic's name, as a regular expression."""


@dataclass(frozen=True, slots=True)
class _Pattern:
    """One half of a rule: a name, or an expression, or (with neither) everything."""

    name: str | None = None
    regex: str | None = None
    wildcards: bool = False
    """Whether the expression was written with wildcards."""

    @property
    def takes_all(self) -> bool:
        return self.name is None and self.regex is None

    def folded(self) -> _Pattern:
        """The same for names in lower case."""
        if self.name is not None:
            return _Pattern(name=self.name.lower())
        return self if self.regex is None else replace(self, regex="(?i)" + self.regex)

    def matches(self, name: str) -> bool:
        if self.name is not None:
            return self.name == name
        return self.regex is None or _found(self.regex, name)

    def in_topics(self) -> str:
        """An expression for all that such names can be in the names of topics, in any case."""
        if self.name is not None:
            return "".join(map(_letter_in_topics, self.name))
        body = _BODY.fullmatch(self.regex or "")
        if not self.wildcards or body is None:
            return IN_TOPICS + "*"
        return "".join(map(_part_in_topics, _PARTS.findall(body[1])))


def _part_in_topics(part: str) -> str:
    """Wildcards and classes take any character here: too much is better than too little."""
    if part == ".*":
        return IN_TOPICS + "*"
    is_class = part.startswith("[") and len(part) > 1
    return IN_TOPICS if part == "." or is_class else _letter_in_topics(part[-1])


def _letter_in_topics(letter: str) -> str:
    if letter.isascii() and letter.isalpha():
        return f"[{letter.lower()}{letter.upper()}]"
    if letter == ".":
        return "[._]"
    return letter if letter.isascii() and (letter.isdigit() or letter == "-") else "_"


def _found(regex: str, name: str) -> bool:
    return bool(pc.match_substring_regex(pa.scalar(name, pa.string()), regex).as_py())


@dataclass(frozen=True, slots=True)
class _Rule:
    database: _Pattern
    table: _Pattern
    includes: bool

    def folded(self) -> _Rule:
        return _Rule(self.database.folded(), self.table.folded(), self.includes)


@dataclass(frozen=True, slots=True)
class TableFilter:
    """Rules, read and ready to be asked; names compare without case unless `case_sensitive`."""

    rules: tuple[_Rule, ...]
    case_sensitive: bool = False

    @classmethod
    def parse(
        cls,
        rules: str | Iterable[str],
        *,
        case_sensitive: bool = False,
        setting: str = "filter.rules",
        source: str | None = None,
    ) -> TableFilter:
        """Reads rules: a list of them, or a text with one a line. Blank ones and comments are none.

        Raises ConfigError, whose setting names the rule at fault: `filter.rules[2]`.
        """
        lines = rules.splitlines() if isinstance(rules, str) else rules
        found = []
        for number, line in enumerate(lines):
            text = line.strip(" \t")
            if not text or text.startswith("#"):
                continue
            try:
                rule = _parse_rule(text)
            except ValueError as error:
                reason = f"{error} (the rule is {text!r})"
                raise ConfigError(f"{setting}[{number}]", reason, source=source) from None
            found.append(rule if case_sensitive else rule.folded())
        return cls(tuple(found), case_sensitive)

    def matches(self, database: str, table: str) -> bool:
        """Whether the table is in: as the last rule that fits says, and not if none fits."""
        database, table = self._folded(database), self._folded(table)
        for rule in reversed(self.rules):
            if rule.database.matches(database) and rule.table.matches(table):
                return rule.includes
        return False

    def matches_database(self, database: str) -> bool:
        """Whether any table of the database can be in."""
        database = self._folded(database)
        for rule in reversed(self.rules):
            if rule.database.matches(database) and (rule.includes or rule.table.takes_all):
                return rule.includes
        return False

    def in_topics(self) -> list[tuple[str, str]]:
        """What databases and tables can be in the names of topics, a pair for each inclusion."""
        rules = (rule for rule in self.rules if rule.includes)
        return [(rule.database.in_topics(), rule.table.in_topics()) for rule in rules]

    def _folded(self, name: str) -> str:
        return name if self.case_sensitive else name.lower()


def _parse_rule(text: str) -> _Rule:
    if text.startswith("@"):
        raise ValueError("a file of rules is not read here: put its lines in its place")
    includes = not text.startswith("!")
    start = 0 if includes else 1
    database, position = _parse_pattern(text, start)
    if position == len(text):
        raise ValueError("it has no table part: write database.table")
    if text[position] != ".":
        raise ValueError(f"a dot must follow the database, not {text[position]!r}")
    table, position = _parse_pattern(text, position + 1)
    if position < len(text):
        raise ValueError(f"nothing may follow the table, but {text[position:]!r} does")
    return _Rule(database, table, includes)


def _parse_pattern(text: str, start: int) -> tuple[_Pattern, int]:
    """The pattern that begins at `start`, and where it ends."""
    if start == len(text):
        raise ValueError("a name is missing: write database.table")
    mark = text[start]
    if mark == "/":
        match = _REGEX.match(text, start)
        if match is None:
            raise ValueError("a regular expression must end with / and not be empty")
        return _Pattern(regex=_checked(match[1])), match.end()
    if mark in _QUOTED:
        match = _QUOTED[mark].match(text, start)
        if match is None:
            raise ValueError(f"a quoted name must end with {mark} and not be empty")
        return _Pattern(name=match[1].replace(mark * 2, mark)), match.end()
    return _parse_wildcards(text, start)


def _parse_wildcards(text: str, start: int) -> tuple[_Pattern, int]:
    name, regex = "", ""
    is_name = True
    position = start
    while position < len(text) and text[position] != ".":
        mark = text[position]
        if plain := _PLAIN.match(text, position):
            name += plain[0]
            regex += plain[0].replace("$", r"\$")
            position = plain.end()
        elif mark == "\\":
            escaped = _escaped(text, position)
            name += escaped
            regex += "\\" + escaped if escaped.isascii() else escaped
            position += 2
        elif mark in _WILDCARDS:
            is_name = False
            regex += _WILDCARDS[mark]
            position += 1
        elif found := _CLASS.match(text, position):
            is_name = False
            regex += _class(found[1], found[2])
            position = found.end()
        elif mark == "[":
            raise ValueError("the character class after [ must end with ] and not be empty")
        else:
            raise ValueError(f"{mark!r} must be escaped with a backslash or the name be quoted")
    if is_name:
        return _Pattern(name=name), position
    if regex == ".*":
        return _Pattern(), position
    return _Pattern(regex=_checked(f"(?s)^{regex}$"), wildcards=True), position


def _escaped(text: str, position: int) -> str:
    if position + 1 == len(text):
        raise ValueError("a backslash cannot be the last character")
    escaped = text[position + 1]
    if escaped.isascii() and escaped.isalnum():
        raise ValueError(f"a backslash cannot stand before the letter or digit {escaped!r}")
    return escaped


def _class(negated: str, content: str) -> str:
    if not negated and content.startswith("^"):
        content = "\\" + content  # only ! negates here
    return f"[{'^' if negated else ''}{content}]"


def _checked(regex: str) -> str:
    try:
        _found(regex, "")
    except pa.ArrowInvalid as error:
        fault = str(error).removeprefix("Invalid regular expression: ")
        raise ValueError(f"the pattern is no regular expression: {fault}") from None
    return regex
