"""From a DDL statement to what it does to a table: SQL and the schema before, to the schema after.

`transition` is total: it never raises, whatever the statement holds. What it cannot follow, and
what a mirror cannot repeat because the feed carries no rows for it, is a change of kind UNMIRRORED
with a sentence that says why. Statements are read as TiDB's parser restores them (see
`tidegate.model.sql`) and as people write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum

from tidegate.feed.default import read_default
from tidegate.feed.definition import (
    UNKNOWN,
    Charset,
    ColumnDefinition,
    KeyDefinition,
    charset_of,
    read_column,
    read_key,
    read_key_columns,
    read_word,
    starts_key,
)
from tidegate.feed.draft import MAX_KEYS, ColumnChange, Draft, anonymous_name
from tidegate.feed.partition import alter_partitions, condition_of, read_partitioning
from tidegate.feed.statement import Statement, TableName, Unreadable, quoted, read_statement
from tidegate.model.schema import Index, TableSchema

MAX_CLAUSES = 4096

Lookup = Callable[[str, str], TableSchema | None]


class ChangeKind(Enum):
    """What a statement does."""

    CREATED = "created"
    DROPPED = "dropped"
    RENAMED = "renamed"
    TRUNCATED = "truncated"
    PRUNED = "pruned"  # the rows of some partitions are gone
    ALTERED = "altered"
    UNCHANGED = "unchanged"  # nothing that rows would show
    UNMIRRORED = "unmirrored"
    DATABASE_CREATED = "database created"
    DATABASE_ALTERED = "database altered"
    DATABASE_DROPPED = "database dropped"  # with all its tables


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """What a statement does to the table whose schema was given, or to those that it names.

    - `what`: the statement in a few words, for people.
    - `tables`: the tables it names; for RENAMED under their old names, `new_names` beside them.
    - `database`: the database it names, or the one that was given.
    - `after`: the schema that the table then has; also where only indexes or nothing changed.
    - `columns`: the columns that changed; a column keeps its identity through a rename.
    - `removed`: for PRUNED, the rows that are gone, as a condition of Spark's SQL.
    - `charset`: what a statement about a database says of it.
    - `reason`: why the statement cannot be mirrored.
    """

    kind: ChangeKind
    what: str
    database: str | None = None
    tables: tuple[TableName, ...] = ()
    new_names: tuple[TableName, ...] = ()
    after: TableSchema | None = None
    columns: tuple[ColumnChange, ...] = ()
    removed: str | None = None
    charset: Charset | None = None
    reason: str | None = None


def transition(
    before: TableSchema | None,
    statement: str,
    database: str | None,
    *,
    lookup: Lookup | None = None,
    charset: Charset = UNKNOWN,
) -> TableChange:
    """What `statement` does.

    `before` is the schema of the table that it names, if there is one, and `database` that in which
    it ran. `lookup` finds another table's schema by database and name (CREATE TABLE LIKE).
    `charset` is the database's default, for a table that names none.
    """
    try:
        reader = read_statement(statement)
        return _Reading(before, database, lookup, charset).statement(reader)
    except Unreadable as unreadable:
        return TableChange(
            kind=ChangeKind.UNMIRRORED,
            what="a statement that cannot be followed",
            database=database if before is None else before.database,
            reason=f"The statement cannot be followed: {unreadable.reason}.",
        )


class _Reading:
    """One statement being read."""

    def __init__(
        self,
        before: TableSchema | None,
        database: str | None,
        lookup: Lookup | None,
        charset: Charset,
    ) -> None:
        self._before = before
        self._database = database
        self._lookup = lookup
        self._charset = charset

    def statement(self, statement: Statement) -> TableChange:
        verb = statement.take_one_of(*_VERBS)
        if not verb:
            raise statement.unexpected("a DDL statement")
        return _VERBS[verb](self, statement)

    # --- names ------------------------------------------------------------------------------------

    def _spelled(self, database: str | None) -> str | None:
        """A database as the feed spells it; where the statement leaves it out, the one given."""
        if database is None:
            return self._database
        known = (self._database, None if self._before is None else self._before.database)
        return next((name for name in known if name and name.lower() == database.lower()), database)

    def _complete(self, name: TableName) -> TableName:
        """The name of a table that is there, as the feed spells it and with its database."""
        before = self._before
        if before is not None and before.table.lower() == name.table.lower():
            database = name.database or before.database
            if database.lower() == before.database.lower():
                return TableName(before.database, before.table)
        return TableName(self._spelled(name.database), name.table)

    def _change(self, kind: ChangeKind, what: str, *tables: TableName) -> TableChange:
        """A change of these tables; one that leaves the table as it is."""
        named = tuple(self._complete(table) for table in tables)
        database = named[0].database if named else self._database
        return TableChange(kind=kind, what=what, database=database, tables=named)

    def _unchanged(self, what: str) -> TableChange:
        return TableChange(kind=ChangeKind.UNCHANGED, what=what, database=self._database)

    def _unmirrored(self, what: str, reason: str, *tables: TableName) -> TableChange:
        change = self._change(ChangeKind.UNMIRRORED, what, *tables)
        return replace(change, after=self._before, reason=reason)

    # --- CREATE -----------------------------------------------------------------------------------

    def create(self, statement: Statement) -> TableChange:
        statement.take("OR", "REPLACE")
        if statement.take_one_of("DATABASE", "SCHEMA"):
            return self._database_change(ChangeKind.DATABASE_CREATED, "create database", statement)
        for kind in ("GLOBAL", "LOCAL"):
            statement.take(kind, "TEMPORARY")
        statement.take("TEMPORARY")
        if statement.take("TABLE"):
            return self._create_table(statement)
        key = KeyDefinition(unique=statement.take("UNIQUE"))
        key.columnar = bool(statement.take_one_of("FULLTEXT", "SPATIAL", "VECTOR", "COLUMNAR"))
        if statement.take("INDEX"):
            return self._create_index(statement, key)
        for word in _OTHER_OBJECTS:
            if any(token.key == word for token in statement.rest[:16]):
                return self._unchanged(f"create {word.lower()}")
        raise statement.unexpected("what is created")

    def _database_change(self, kind: ChangeKind, what: str, statement: Statement) -> TableChange:
        statement.take("IF", "NOT", "EXISTS")
        statement.take("IF", "EXISTS")
        name = self._database
        if not statement.done and statement.key() not in _OPTION_STARTS:
            name = statement.name("a database")
        charset = _read_charset(statement)
        return TableChange(
            kind=kind,
            what=what + (f" {quoted(name)}" if name else ""),
            database=name,
            charset=None if charset == UNKNOWN else charset_of(*charset),
        )

    def _create_table(self, statement: Statement) -> TableChange:
        statement.take("IF", "NOT", "EXISTS")
        # The table need not be the one whose schema is given: LIKE may well name that.
        name = statement.table_name()
        name = TableName(self._spelled(name.database), name.table)
        change = replace(
            self._change(ChangeKind.CREATED, f"create table {quoted(name.table)}"),
            database=name.database,
            tables=(name,),
        )
        if statement.take("LIKE"):
            return self._create_like(change, name, statement.table_name())
        inside = Statement(statement.bracket())
        if inside.take("LIKE"):
            return self._create_like(change, name, inside.table_name())
        if any(token.key == "SELECT" for token in statement.rest):
            raise Unreadable("a table is made from a query")
        charset = charset_of(*_read_charset(statement), self._charset)
        draft = Draft(None, charset)
        _define(draft, inside.parts())
        if statement.take("PARTITION", "BY"):
            with suppress(Unreadable):  # then how it is partitioned is not known
                draft.partitioning = read_partitioning(statement)
        after = draft.schema(name.database or "", name.table)
        return replace(change, after=after)

    def _create_like(self, change: TableChange, name: TableName, other: TableName) -> TableChange:
        other = TableName(self._spelled(other.database), other.table)
        schema = self._lookup(other.database or "", other.table) if self._lookup else None
        if schema is None:
            return replace(
                change,
                kind=ChangeKind.UNMIRRORED,
                reason=f"The table is made like {other}, whose schema is not known.",
            )
        after = replace(
            schema,
            database=name.database or "",
            table=name.table,
            table_id=None,
            version=None,
            indexes=schema.own_indexes,
        )
        return replace(change, after=after)

    def _create_index(self, statement: Statement, key: KeyDefinition) -> TableChange:
        statement.take("IF", "NOT", "EXISTS")
        key.name = statement.name("an index")
        if statement.take_one_of("USING", "TYPE"):
            statement.next("a kind of index")
        statement.expect("ON")
        table = statement.table_name()
        read_key_columns(statement, key)
        return self._alter(table, [lambda alter: alter.add_key(key)])

    # --- DROP, TRUNCATE, RENAME, and what brings rows back ----------------------------------------

    def drop(self, statement: Statement) -> TableChange:
        if statement.take_one_of("DATABASE", "SCHEMA"):
            return self._database_change(ChangeKind.DATABASE_DROPPED, "drop database", statement)
        for kind in ("GLOBAL", "LOCAL"):
            statement.take(kind, "TEMPORARY")
        statement.take("TEMPORARY")
        if statement.take_one_of("TABLE", "TABLES"):
            statement.take("IF", "EXISTS")
            tables = [part.table_name() for part in statement.parts()]
            what = "drop table " + _listed(str(table) for table in tables)
            return self._change(ChangeKind.DROPPED, what, *tables)
        if statement.take("INDEX"):
            statement.take("IF", "EXISTS")
            name = statement.name("an index")
            statement.expect("ON")
            return self._alter(statement.table_name(), [lambda alter: alter.drop_key(name)])
        for word in _OTHER_OBJECTS:
            if statement.key() == word:
                return self._unchanged(f"drop {word.lower()}")
        raise statement.unexpected("what is dropped")

    def truncate(self, statement: Statement) -> TableChange:
        statement.take("TABLE")
        table = statement.table_name()
        change = self._change(ChangeKind.TRUNCATED, f"truncate table {table}", table)
        after = None if self._before is None else replace(self._before, table_id=None, version=None)
        return replace(change, after=after)

    def rename(self, statement: Statement) -> TableChange:
        if not statement.take_one_of("TABLE", "TABLES"):
            raise statement.unexpected("TABLE")
        pairs = []
        for part in statement.parts():
            old = part.table_name()
            part.expect("TO")
            pairs.append((old, part.table_name()))
        if not pairs:
            raise statement.unexpected("a table")
        return self._renamed(pairs)

    def _renamed(self, pairs: list[tuple[TableName, TableName]]) -> TableChange:
        old_names, new_names = [], []
        for old, new in pairs:
            complete = self._complete(old)
            if new.database is None:
                # The session's database: the old one's too, if that was left out as well.
                given = self._database if old.database is not None else complete.database
                new = TableName(given or complete.database, new.table)
            new = TableName(self._spelled(new.database), new.table)
            old_names.append(complete)
            new_names.append(new)
        what = "rename table " + _listed(
            f"{old} to {new}" for old, new in zip(old_names, new_names, strict=True)
        )
        change = self._change(ChangeKind.RENAMED, what, *old_names)
        after = self._after_rename(old_names, new_names)
        return replace(change, new_names=tuple(new_names), after=after)

    def _after_rename(self, old: list[TableName], new: list[TableName]) -> TableSchema | None:
        if self._before is None:
            return None
        known = (self._before.database.lower(), self._before.table.lower())
        for was, name in zip(old, new, strict=True):
            if ((was.database or "").lower(), was.table.lower()) == known or len(old) == 1:
                return replace(
                    self._before, database=name.database or "", table=name.table, version=None
                )
        return None

    def recover(self, statement: Statement) -> TableChange:
        if not statement.take("TABLE"):
            return self._unmirrored("recover", _ROWS_COME_BACK.format("RECOVER"))
        if statement.sees("BY"):
            return self._unmirrored("recover table", _ROWS_COME_BACK.format("RECOVER TABLE"))
        return self._recovered("RECOVER TABLE", statement)

    def flashback(self, statement: Statement) -> TableChange:
        if statement.take("TABLE"):
            return self._recovered("FLASHBACK TABLE", statement)
        what = f"FLASHBACK {statement.next('what is brought back').text.upper()}"
        return self._unmirrored(what.lower(), _ROWS_COME_BACK.format(what))

    def _recovered(self, what: str, statement: Statement) -> TableChange:
        old = self._complete(statement.table_name())
        new = statement.table_name() if statement.take("TO") else old
        new = TableName(new.database or old.database, new.table)
        change = self._unmirrored(f"{what.lower()} {new}", _ROWS_COME_BACK.format(what), new)
        if self._before is None:
            return change
        after = replace(self._before, database=new.database or "", table=new.table, version=None)
        return replace(change, after=after)

    # --- ALTER ------------------------------------------------------------------------------------

    def alter(self, statement: Statement) -> TableChange:
        if statement.take_one_of("DATABASE", "SCHEMA"):
            return self._database_change(ChangeKind.DATABASE_ALTERED, "alter database", statement)
        statement.take("IGNORE")
        if not statement.take("TABLE"):
            for word in _OTHER_OBJECTS:
                if any(token.key == word for token in statement.rest[:16]):
                    return self._unchanged(f"alter {word.lower()}")
            raise statement.unexpected("TABLE")
        statement.take("IF", "EXISTS")
        table = statement.table_name()
        if statement.take("EXCHANGE", "PARTITION"):
            return self._exchange(table, statement)
        if _is_about_partitions(statement):
            return self._alter_partitions(table, statement)
        # The commas of SET TIFLASH REPLICA and ORDER BY are not between clauses.
        clauses = [statement] if statement.key() in ("SET", "ORDER") else statement.parts()
        if len(clauses) > MAX_CLAUSES:
            raise Unreadable(f"it has more than {MAX_CLAUSES:,} clauses")
        return self._alter(table, [_reading(clause) for clause in clauses])

    def _exchange(self, table: TableName, statement: Statement) -> TableChange:
        statement.name("a partition")
        statement.expect("WITH", "TABLE")
        other = statement.table_name()
        return self._unmirrored(
            f"exchange a partition of {table} with {other}",
            f"EXCHANGE PARTITION swaps rows between {table} and {other}, "
            "and the feed carries none of them.",
            table,
            other,
        )

    def _alter_partitions(self, table: TableName, statement: Statement) -> TableChange:
        verb = statement.key()
        change = self._change(
            ChangeKind.UNCHANGED, f"alter table {table}: {verb.lower()} partition", table
        )
        if statement.take("TRUNCATE", "PARTITION", "ALL"):
            return replace(change, kind=ChangeKind.TRUNCATED, after=self._before)
        before = self._before
        cut, emptied = None, None
        try:
            cut, emptied = alter_partitions(
                statement, None if before is None else before.partitioning
            )
            if emptied and before is None:
                raise Unreadable("the schema of the table is not known")
            if emptied and before is not None:
                removed = condition_of(before, emptied)
                change = replace(change, kind=ChangeKind.PRUNED, removed=removed)
        except Unreadable as unreadable:
            if verb in ("DROP", "TRUNCATE", "FIRST"):
                reason = f"{verb} PARTITION removes rows, and {unreadable.reason}."
                change = replace(change, kind=ChangeKind.UNMIRRORED, reason=reason)
        if before is None:
            return change
        # These two make a new table of the old one.
        table_id = None if verb in ("PARTITION", "REMOVE") else before.table_id
        after = replace(before, partitioning=cut, table_id=table_id, version=None)
        return replace(change, after=after)

    def _alter(self, table: TableName, edits: Iterable[_Edit]) -> TableChange:
        alter = _Alter(self._before)
        for edit in edits:
            edit(alter)
        what = f"alter table {table}: " + (_listed(alter.said) or "nothing")
        if alter.needs_schema and self._before is None:
            return self._unmirrored(
                what, f"The schema of {self._complete(table)} before it is not known.", table
            )
        change = self._change(ChangeKind.UNCHANGED, what, table)
        if self._before is None or alter.draft is None:
            after = None
        else:
            after = alter.draft.schema(self._before.database, self._before.table)
            change = replace(change, columns=alter.draft.changes())
            if _is_seen_by_rows(self._before, after):
                change = replace(change, kind=ChangeKind.ALTERED)
        change = replace(change, after=after)
        if alter.new_name is None:
            return change
        renamed = self._renamed([(table, alter.new_name)])
        if after is not None:
            new = renamed.new_names[0]
            after = replace(after, database=new.database or "", table=new.table)
        return replace(renamed, columns=change.columns, after=after)


_ROWS_COME_BACK = "{} brings back rows that the feed does not send again."
_OTHER_OBJECTS = (
    "VIEW",
    "SEQUENCE",
    "PLACEMENT",
    "RESOURCE",
    "USER",
    "ROLE",
    "BINDING",
    "STATISTICS",
    "RANGE",
    "INSTANCE",
    "FUNCTION",
    "PROCEDURE",
)
_VERBS: dict[str, Callable[[_Reading, Statement], TableChange]] = {
    "CREATE": _Reading.create,
    "DROP": _Reading.drop,
    "TRUNCATE": _Reading.truncate,
    "RENAME": _Reading.rename,
    "RECOVER": _Reading.recover,
    "FLASHBACK": _Reading.flashback,
    "ALTER": _Reading.alter,
    **dict.fromkeys(
        ("LOCK", "UNLOCK", "ADMIN", "ANALYZE", "GRANT", "REVOKE", "SET"),
        lambda reading, statement: reading._unchanged("a statement that leaves tables as they are"),
    ),
}


def _is_seen_by_rows(before: TableSchema, after: TableSchema) -> bool:
    """Whether columns or keys differ; other indexes are nothing to rows."""
    if after.indexes is None:  # keys are then known by their flags
        return before.columns != after.columns
    plain = tuple(replace(column, flags=None) for column in before.columns)
    return plain != after.columns or _keys(before.own_indexes) != _keys(after.indexes)


def _keys(indexes: tuple[Index, ...] | None) -> set[tuple[bool, bool, tuple[str, ...]]]:
    return {(key.primary, key.nullable, key.columns) for key in indexes or () if key.unique}


def _listed(said: Iterable[str], most: int = 8) -> str:
    phrases = list(said)
    more = len(phrases) - most
    return ", ".join(phrases[:most]) + (f" and {more} more" if more > 0 else "")


# --- CREATE TABLE's definitions -------------------------------------------------------------------


def _define(draft: Draft, definitions: list[Statement]) -> None:
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


_OPTION_STARTS = ("DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "PLACEMENT", "ENCRYPTION", "READ")


def _read_charset(statement: Statement) -> Charset:
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


class _Alter:
    """What the clauses of an ALTER TABLE have done so far."""

    def __init__(self, before: TableSchema | None) -> None:
        self.draft = None if before is None else Draft(before)
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


_Edit = Callable[[_Alter], None]


def _reading(clause: Statement) -> _Edit:
    """The clause as an edit that is read when it is made."""
    return lambda alter: _read_clause(clause, alter)


def _read_clause(clause: Statement, alter: _Alter) -> None:
    word = clause.take_one_of(*_CLAUSES)
    if word:
        _CLAUSES[word](clause, alter)
    elif clause.key() in _TABLE_OPTIONS:
        _read_options(clause, alter)
    elif clause.key() in _IDLE_CLAUSES or _is_about_partitions(clause):
        alter.said.append(clause.key().lower())
        if alter.draft is not None and clause.key() in ("PARTITION", "REMOVE"):
            alter.draft.partitioning = None  # beside other clauses it is not followed
        clause.skip()
    if not clause.done:
        raise clause.unexpected("the end of a clause")


def _read_options(clause: Statement, alter: _Alter) -> None:
    alter.said.append(f"option {clause.key().lower()}")
    charset = _read_charset(clause)
    if charset != UNKNOWN and alter.draft is not None:
        alter.draft.set_charset(*charset)


def _read_add(clause: Statement, alter: _Alter) -> None:
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


def _add_column(column: ColumnDefinition, alter: _Alter, *, if_missing: bool) -> None:
    def add(draft: Draft) -> None:
        if not (if_missing and draft.has_column(column.name)):
            draft.add_column(column)
            for key in column.keys:
                draft.add_key(key)

    alter.edit(f"add column {quoted(column.name)}", add)


def _read_add_key(clause: Statement, alter: _Alter) -> None:
    key = read_key(clause)
    if key is None:
        alter.said.append("add check")
    else:
        alter.add_key(key)


def _read_drop(clause: Statement, alter: _Alter) -> None:
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
    alter: _Alter, what: str, name: str, if_exists: bool, edit: Callable[[Draft, str], None]
) -> None:
    def edit_if_there(draft: Draft) -> None:
        if not (if_exists and not draft.has_column(name)):
            edit(draft, name)

    alter.edit(what, edit_if_there)


def _read_modify(clause: Statement, alter: _Alter) -> None:
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


def _read_change(clause: Statement, alter: _Alter) -> None:
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


def _read_alter(clause: Statement, alter: _Alter) -> None:
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


def _read_rename(clause: Statement, alter: _Alter) -> None:
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


def _read_convert(clause: Statement, alter: _Alter) -> None:
    clause.expect("TO")
    named = _read_charset(clause)
    if (named.name or "").upper() == "DEFAULT":
        raise Unreadable("it converts to the default of the database, which is not known")
    charset = charset_of(*named)
    alter.edit("convert the character set", lambda draft: draft.convert_charset(charset))


_CLAUSES: dict[str, Callable[[Statement, _Alter], None]] = {
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
    {
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
    }
)
_TABLE_OPTIONS = frozenset(
    {
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
    }
)
_PARTITION_VERBS = frozenset(
    {
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
    }
)


def _is_about_partitions(statement: Statement) -> bool:
    """Whether the rest is about partitions: then its commas are between their names."""
    if statement.key() in _PARTITION_VERBS and statement.key(1) == "PARTITION":
        return True
    return (
        statement.sees("PARTITION")
        or statement.sees("REMOVE", "PARTITIONING")
        or statement.sees("MERGE", "FIRST", "PARTITION")
        or statement.sees("SPLIT", "LAST", "PARTITION")
    )
