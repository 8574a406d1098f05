"""What a DDL of a change batch is about: its table before and after, and what tells it from others.

One statement may be spelled in several ways: classic TiCDC leaves out what the session implied, the
new architecture names everything. So statements are told apart by what they do, not by their text.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from tidegate.model import sql
from tidegate.sql.ddl import ChangeKind, Reach, TableChange, transition

Name = tuple[str, str]
StatementKey = tuple[str, tuple[Name, ...]]

_CLASSES = (
    ChangeKind.CREATED,
    ChangeKind.DROPPED,
    ChangeKind.RENAMED,
    ChangeKind.TRUNCATED,
)
_OF_DATABASES = (
    ChangeKind.DATABASE_CREATED,
    ChangeKind.DATABASE_ALTERED,
    ChangeKind.DATABASE_DROPPED,
)
_OTHER = "other"


@lru_cache(maxsize=512)
def plain_change(query: str, database: str) -> TableChange:
    """What a statement says by itself, no table being known."""
    return transition(None, query, database)


def statement_key(query: str, database: str) -> StatementKey | None:
    """A coarse class of what a statement does, and the names that it touches, in lower case.

    Of a rename these are the new names, since the old database may be missing. None where the
    statement cannot be read or names nothing.
    """
    change = plain_change(query, database)
    if change.kind in _OF_DATABASES:
        return change.kind.value, (((change.database or "").lower(), ""),)
    tables = change.new_names or change.tables
    if not tables or change.reach is not Reach.TABLES:
        return None
    kind = change.kind.value if change.kind in _CLASSES else _OTHER
    names = {((table.database or "").lower(), table.table.lower()) for table in tables}
    return kind, tuple(sorted(names))


def names_old_database(query: str, database: str) -> bool:
    """Whether it is clear of every table that a statement renames in which database it was."""
    return not any(plain_change(query, database).lacks_database)


def ddl_tables(row: dict[str, Any]) -> tuple[Name | None, Name | None]:
    """The table of a DDL before it, where that is told, and after it; None for those of a database.

    The new architecture sends no schema of before; then the statement itself tells the old name.
    """
    new = (row["database"] or "", row["table"]) if row["table"] else None
    document = json.loads(row["schema"]) if row["schema"] else {}
    for member in ("tableSchema", "preTableSchema"):
        if new is None and document.get(member):
            new = document[member]["schema"], document[member]["table"]
    if document.get("preTableSchema"):
        before = document["preTableSchema"]
        return (before["schema"], before["table"]), new
    query = (row["ddl"] or {}).get("query") or ""
    if "RENAME" not in query.upper():
        return None, new
    change = plain_change(query, row["database"] or "")
    if change.kind is not ChangeKind.RENAMED or any(change.lacks_database):
        return None, new
    old = change.tables[0]
    return (old.database or "", old.table), new


def _words(query: str, database: str) -> tuple[str, ...]:
    """The words of a statement without the name of its database, which only some spellings have."""
    words: list[str] = []
    for token in sql.tokens(query):
        words.append(token.value)
        if token.key == "." and words[-2:-1] and words[-2].lower() == database.lower():
            del words[-2:]
    return tuple(words)


class DdlId(NamedTuple):
    """A DDL, whichever partition it came from; `key` tells it from others."""

    commit_ts: int
    database: str
    table: str
    query: str

    @property
    def names(self) -> tuple[Name, ...]:
        """The tables that it names; those of a statement about a database have no name of theirs.

        Of a rename these are the old names and the new ones.
        """
        change = plain_change(self.query, self.database)
        said = [*change.tables, *change.new_names]
        own = change.database if change.kind in _OF_DATABASES else self.database
        names = [(each.database or self.database, each.table) for each in said]
        return (own or self.database, self.table), *names

    def key(self, *, by_text: bool = False) -> Hashable:
        """When it was committed and what it does to which tables, however it is spelled.

        `by_text` is for feeds that tell no more than the millisecond of a commit: two changes of a
        table's columns may share one, so their words count too. The text also counts where the
        statement cannot be read.
        """
        effect = statement_key(self.query, self.database)
        if effect is None:
            return tuple(self)
        words = _words(self.query, self.database) if by_text and effect[0] == _OTHER else ()
        return self.commit_ts, *effect, words


def ddl_id(row: Mapping[str, Any]) -> DdlId:
    """The DDL of a row of a change batch."""
    query = (row["ddl"] or {}).get("query") or ""
    return DdlId(row["commit_ts"] or 0, row["database"] or "", row["table"] or "", query)
