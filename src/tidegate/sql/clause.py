"""The definitions of CREATE TABLE and the clauses of ALTER TABLE, made on a draft of the table.

Every clause that TiDB's grammar has is here: as an edit, or as one that is nothing to a schema. One
that is neither is an `Unreadable`, so that no clause is passed over unseen.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from tidegate.model.schema import TableSchema
from tidegate.model.sql import quoted
from tidegate.sql.defaults import read_default
from tidegate.sql.definition import (
    UNKNOWN,
    Charset,
    ColumnDefinition,
    KeyDefinition,
    charset_of,
    read_column,
    read_key,
    read_word,
    starts_key,
)
from tidegate.sql.draft import MAX_KEYS, Draft, anonymous_name
from tidegate.sql.statement import Statement, TableName, Unreadable

# --- CREATE TABLE's definitions -------------------------------------------------------------------


def define(draft: Draft, definitions: list[Statement]) -> None:
    """Columns first, then the keys that stand alone, then those in a column, as TiDB does."""
    columns: list[ColumnDefinition] = []
    keys: list[KeyDefinition] = []
    for definition in definitions:
        if starts_key(definition):
            key = read_key(definition)
            if key is not None:
                keys.append(key)
        else:
            columns.append(read_column(definition))
    if not columns:
        raise Unreadable("no column is defined")
    keys += [key for column in columns for key in column.keys]
    if len(keys) > MAX_KEYS:
        raise Unreadable(f"there are more than {MAX_KEYS} keys")
    for column in columns:
        draft.add_column(column)
    _name_keys(keys)
    # An index that a foreign key needs is made last, when all others are there.
    for key in sorted(keys, key=lambda key: key.foreign):
        draft.add_key(key)


def _name_keys(keys: list[KeyDefinition]) -> None:
    """Give names to the keys that have none; the primary key takes part and is then PRIMARY."""
    taken = {key.name.lower() for key in keys if key.name is not None and not key.foreign}
    foreign = 0
    for key in keys:
        if key.foreign:
            foreign += 1
            key.name = key.name or f"fk_{foreign}"
        elif key.name is None:
            key.name = anonymous_name(key, taken)
            taken.add(key.name)


DATABASE_OPTIONS = ("DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "PLACEMENT", "ENCRYPTION", "READ")


def read_charset(statement: Statement) -> Charset:
    """The character set and collation among the options that follow, up to the partitions."""
    name = collation = None
    while not statement.done and not statement.sees("PARTITION", "BY"):
        if statement.take("CHARACTER", "SET") or statement.take("CHARSET"):
            statement.take("=")
            name = read_word(statement)
        elif statement.take("COLLATE"):
            statement.take("=")
            collation = read_word(statement)
        else:
            statement.next("an option")
    return Charset(name, collation)


# --- ALTER TABLE's clauses ------------------------------------------------------------------------


class Alter:
    """What the clauses of an ALTER TABLE have done so far."""

    def __init__(self, before: TableSchema | None, now: datetime | None) -> None:
        self.draft = None if before is None else Draft(before, now=now)
        self.needs_schema = False
        self.new_name: TableName | None = None
        self.said: list[str] = []

    def edit(self, what: str, edit: Callable[[Draft], None]) -> None:
        """Something for which the table's schema must be known."""
        self.said.append(what)
        self.needs_schema = True
        if self.draft is not None:
            edit(self.draft)

    def add_key(self, key: KeyDefinition) -> None:
        kind = "primary key" if key.primary else "unique key" if key.unique else "index"
        what = f"add {kind}" + (f" {quoted(key.name)}" if key.name else "")
        if key.unique or key.primary:
            self.edit(what, lambda draft: draft.add_key(key))
            return
        self.said.append(what)
        if self.draft is not None and not key.columnar:
            self.draft.add_key(key)

    def drop_key(self, name: str) -> None:
        self.edit(f"drop index {quoted(name)}", lambda draft: draft.drop_key(name))


Edit = Callable[[Alter], None]


def reading(clause: Statement) -> Edit:
    """The clause as an edit that is read when it is made."""
    return lambda alter: _read_clause(clause, alter)


def _read_clause(clause: Statement, alter: Alter) -> None:
    word = clause.take_one_of(*_CLAUSES)
    if word:
        _CLAUSES[word](clause, alter)
    elif clause.key() in _TABLE_OPTIONS:
        _read_options(clause, alter)
    elif clause.key() in _IDLE_CLAUSES or is_about_partitions(clause):
        alter.said.append(clause.key().lower())
        if alter.draft is not None and clause.key() in ("PARTITION", "REMOVE"):
            alter.draft.partitioning = None  # beside other clauses it is not followed
        clause.skip()
    if not clause.done:
        raise clause.unexpected("the end of a clause")


def _read_options(clause: Statement, alter: Alter) -> None:
    alter.said.append(f"option {clause.key().lower()}")
    charset = read_charset(clause)
    if charset != UNKNOWN and alter.draft is not None:
        alter.draft.set_charset(*charset)


def _read_add(clause: Statement, alter: Alter) -> None:
    if clause.sees("PARTITION") or clause.sees("STATS_EXTENDED"):
        alter.said.append(f"add {clause.key().lower()}")
        clause.skip()
    elif clause.take("COLUMN") or not starts_key(clause):
        exists = clause.take("IF", "NOT", "EXISTS")
        definitions = Statement(clause.bracket()).parts() if clause.sees("(") else [clause]
        for definition in definitions:
            if starts_key(definition):
                _read_add_key(definition, alter)
            else:
                _add_column(read_column(definition), alter, if_missing=exists)
    else:
        _read_add_key(clause, alter)


def _add_column(column: ColumnDefinition, alter: Alter, *, if_missing: bool) -> None:
    def add(draft: Draft) -> None:
        if not (if_missing and draft.has_column(column.name)):
            draft.add_column(column)
            for key in column.keys:
                draft.add_key(key)

    alter.edit(f"add column {quoted(column.name)}", add)


def _read_add_key(clause: Statement, alter: Alter) -> None:
    key = read_key(clause)
    if key is None:
        alter.said.append("add check")
    else:
        alter.add_key(key)


def _read_drop(clause: Statement, alter: Alter) -> None:
    if clause.take("PRIMARY", "KEY"):
        alter.edit("drop primary key", Draft.drop_primary_key)
    elif clause.take_one_of("INDEX", "KEY"):
        clause.take("IF", "EXISTS")
        alter.drop_key(clause.name("an index"))
    elif clause.take("FOREIGN", "KEY") or clause.take_one_of(
        "CHECK", "CONSTRAINT", "STATS_EXTENDED"
    ):
        alter.said.append("drop a constraint")
        clause.skip()
    else:
        clause.take("COLUMN")
        exists = clause.take("IF", "EXISTS")
        name = clause.column_name()
        clause.take_one_of("RESTRICT", "CASCADE")
        _edit_column(alter, f"drop column {quoted(name)}", name, exists, Draft.drop_column)


def _edit_column(
    alter: Alter, what: str, name: str, if_exists: bool, edit: Callable[[Draft, str], None]
) -> None:
    def edit_if_there(draft: Draft) -> None:
        if not (if_exists and not draft.has_column(name)):
            edit(draft, name)

    alter.edit(what, edit_if_there)


def _read_modify(clause: Statement, alter: Alter) -> None:
    clause.take("COLUMN")
    exists = clause.take("IF", "EXISTS")
    column = read_column(clause)
    _edit_column(
        alter,
        f"modify column {quoted(column.name)}",
        column.name,
        exists,
        lambda draft, name: draft.modify_column(name, column),
    )


def _read_change(clause: Statement, alter: Alter) -> None:
    clause.take("COLUMN")
    exists = clause.take("IF", "EXISTS")
    old = clause.column_name()
    column = read_column(clause)
    _edit_column(
        alter,
        f"change column {quoted(old)} to {quoted(column.name)}",
        old,
        exists,
        lambda draft, name: draft.modify_column(name, column),
    )


def _read_alter(clause: Statement, alter: Alter) -> None:
    if clause.take_one_of("INDEX", "CHECK", "CONSTRAINT"):
        alter.said.append("alter an index or constraint")
        clause.skip()
        return
    clause.take("COLUMN")
    exists = clause.take("IF", "EXISTS")
    name = clause.column_name()
    written = None
    if not clause.take("DROP", "DEFAULT"):
        clause.expect("SET", "DEFAULT")
        written = read_default(clause)
    _edit_column(
        alter,
        f"default of column {quoted(name)}",
        name,
        exists,
        lambda draft, name: draft.set_default(name, written),
    )


def _read_rename(clause: Statement, alter: Alter) -> None:
    if clause.take("COLUMN"):
        old = clause.column_name()
        clause.expect("TO")
        new = clause.column_name()
        alter.edit(
            f"rename column {quoted(old)} to {quoted(new)}",
            lambda draft: draft.rename_column(old, new),
        )
    elif clause.take_one_of("INDEX", "KEY"):
        old = clause.name("an index")
        clause.expect("TO")
        new = clause.name("an index")
        alter.said.append(f"rename index {quoted(old)} to {quoted(new)}")
        if alter.draft is not None:
            alter.draft.rename_key(old, new)
    else:
        clause.take_one_of("TO", "AS", "=")
        alter.new_name = clause.table_name()


def _read_convert(clause: Statement, alter: Alter) -> None:
    clause.expect("TO")
    named = read_charset(clause)
    if (named.name or "").upper() == "DEFAULT":
        raise Unreadable("it converts to the default of the database, which is not known")
    charset = charset_of(*named)
    alter.edit("convert the character set", lambda draft: draft.convert_charset(charset))


_CLAUSES: dict[str, Callable[[Statement, Alter], None]] = {
    "ADD": _read_add,
    "DROP": _read_drop,
    "MODIFY": _read_modify,
    "CHANGE": _read_change,
    "ALTER": _read_alter,
    "RENAME": _read_rename,
    "CONVERT": _read_convert,
}
# Clauses that leave the schema as it is.
_IDLE_CLAUSES = frozenset(
    [
        "SET",
        "ALGORITHM",
        "LOCK",
        "FORCE",
        "WITH",
        "WITHOUT",
        "ENABLE",
        "DISABLE",
        "ORDER",
        "CACHE",
        "NOCACHE",
        "COMPACT",
        "REMOVE",
        "SECONDARY_LOAD",
        "SECONDARY_UNLOAD",
        "READ",
        "IMPORT",
        "DISCARD",
    ]
)
_TABLE_OPTIONS = frozenset(
    [
        "DEFAULT",
        "CHARACTER",
        "CHARSET",
        "COLLATE",
        "COMMENT",
        "ENGINE",
        "AUTO_INCREMENT",
        "AUTO_ID_CACHE",
        "AUTO_RANDOM_BASE",
        "SHARD_ROW_ID_BITS",
        "PRE_SPLIT_REGIONS",
        "AVG_ROW_LENGTH",
        "CHECKSUM",
        "COMPRESSION",
        "CONNECTION",
        "PASSWORD",
        "KEY_BLOCK_SIZE",
        "MAX_ROWS",
        "MIN_ROWS",
        "DELAY_KEY_WRITE",
        "ROW_FORMAT",
        "STATS_PERSISTENT",
        "STATS_AUTO_RECALC",
        "STATS_SAMPLE_PAGES",
        "STATS_OPTIONS",
        "STATS_BUCKETS",
        "STATS_TOPN",
        "STATS_SAMPLE_RATE",
        "STATS_COL_CHOICE",
        "STATS_COL_LIST",
        "PACK_KEYS",
        "INSERT_METHOD",
        "UNION",
        "ENCRYPTION",
        "NODEGROUP",
        "DATA",
        "INDEX",
        "TABLESPACE",
        "STORAGE",
        "ATTRIBUTES",
        "PLACEMENT",
        "TTL",
        "TTL_ENABLE",
        "TTL_JOB_INTERVAL",
        "ENGINE_ATTRIBUTE",
        "SECONDARY_ENGINE",
        "SECONDARY_ENGINE_ATTRIBUTE",
        "AUTOEXTEND_SIZE",
        "TABLE_CHECKSUM",
        "AFFINITY",
        "SPLIT",
    ]
)
_PARTITION_VERBS = frozenset(
    [
        "ADD",
        "DROP",
        "TRUNCATE",
        "REORGANIZE",
        "COALESCE",
        "REBUILD",
        "OPTIMIZE",
        "REPAIR",
        "CHECK",
        "ANALYZE",
        "IMPORT",
        "DISCARD",
        "FIRST",
        "LAST",
    ]
)


def is_about_partitions(statement: Statement) -> bool:
    """Whether the rest is about partitions: then its commas are between their names."""
    if statement.key() in _PARTITION_VERBS and statement.key(1) == "PARTITION":
        return True
    return (
        statement.sees("PARTITION")
        or statement.sees("REMOVE", "PARTITIONING")
        or statement.sees("MERGE", "FIRST", "PARTITION")
        or statement.sees("SPLIT", "LAST", "PARTITION")
    )
