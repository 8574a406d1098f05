"""From a DDL statement to what it does to a table: SQL and the schema before, to the schema after.

`transition` is total: it never raises, whatever the statement holds. What it cannot follow, and
what a mirror cannot repeat because the feed carries no rows for it, is a change of kind UNMIRRORED
with a sentence that says why. Statements are read as TiDB's parser restores them (see
`tidegate.model.sql`) and as people write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from zoneinfo import ZoneInfo

from tidegate.model.schema import ABSENT, Index, TableSchema
from tidegate.model.sql import quoted
from tidegate.model.tso import tso_to_datetime
from tidegate.sql.clause import (
    DATABASE_OPTIONS,
    Alter,
    Edit,
    define,
    is_about_partitions,
    read_charset,
    reading,
)
from tidegate.sql.definition import UNKNOWN, Charset, KeyDefinition, charset_of, read_key_columns
from tidegate.sql.draft import ColumnChange, Draft
from tidegate.sql.partition import alter_partitions, condition_of, read_partitioning
from tidegate.sql.statement import Statement, TableName, Unreadable, read_statement

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


class Reach(Enum):
    """Which tables a statement touches."""

    TABLES = "those that it names"
    DATABASE = "all of a database"
    CLUSTER = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """What a statement does to the table whose schema was given, or to those that it names.

    - `what`: the statement in a few words, for people.
    - `tables`: the tables it names; for RENAMED under their old names, `new_names` beside them.
    - `lacks_database`: for RENAMED, of each table: whether the statement names the new database and
      not the old one, which then need not be the one that was given.
    - `database`: the database it names, or the one that was given; `new_database` is the name under
      which FLASHBACK DATABASE brings it back.
    - `reach`: whether it is about these tables, or about all of a database or of the cluster.
    - `recovered`: the name that a table had when it was dropped, which the statement brings back.
    - `after`: the schema that the table then has; also where only indexes or nothing changed.
    - `columns`: the columns that changed; a column keeps its identity through a rename.
    - `removed`: for PRUNED, the rows that are gone, as a condition of Spark's SQL.
    - `charset`: what a statement about a database says of it.
    - `reason`: why the statement cannot be mirrored.
    - `lacks_schema`: whether it cannot be mirrored only because a table's schema is not known.
    - `guesses`: sentences about values of existing rows that the statement does not tell exactly.
    """

    kind: ChangeKind
    what: str
    database: str | None = None
    tables: tuple[TableName, ...] = ()
    new_names: tuple[TableName, ...] = ()
    lacks_database: tuple[bool, ...] = ()
    new_database: str | None = None
    reach: Reach = Reach.TABLES
    recovered: TableName | None = None
    after: TableSchema | None = None
    columns: tuple[ColumnChange, ...] = ()
    removed: str | None = None
    charset: Charset | None = None
    reason: str | None = None
    lacks_schema: bool = False
    guesses: tuple[str, ...] = ()


def transition(
    before: TableSchema | None,
    statement: str,
    database: str | None,
    *,
    lookup: Lookup | None = None,
    charset: Charset = UNKNOWN,
    commit_ts: int | None = None,
    zone: str = "UTC",
) -> TableChange:
    """What `statement` does.

    `before` is the schema of the table that it names, if there is one, and `database` that in which
    it ran. `lookup` finds another table's schema by database and name (CREATE TABLE LIKE).
    `charset` is the database's default, for a table that names none. `commit_ts` is when the
    statement was committed, and `zone` that of the feed: existing rows hold about that time in a
    column that is added with CURRENT_TIMESTAMP.
    """
    now = None if commit_ts is None else _clock(commit_ts, zone)
    try:
        reader = read_statement(statement)
        return _Reading(before, database, lookup, charset, now).statement(reader)
    except Unreadable as unreadable:
        return TableChange(
            kind=ChangeKind.UNMIRRORED,
            what="a statement that cannot be followed",
            database=database if before is None else before.database,
            reason=f"The statement cannot be followed: {unreadable.reason}.",
        )


def _clock(commit_ts: int, zone: str) -> datetime:
    """What clocks in a zone show at a commit."""
    return tso_to_datetime(commit_ts).astimezone(ZoneInfo(zone)).replace(tzinfo=None)


class _Reading:
    """One statement being read."""

    def __init__(
        self,
        before: TableSchema | None,
        database: str | None,
        lookup: Lookup | None,
        charset: Charset,
        now: datetime | None,
    ) -> None:
        self._before = before
        self._database = database
        self._lookup = lookup
        self._charset = charset
        self._now = now

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
        if not statement.done and statement.key() not in DATABASE_OPTIONS:
            name = statement.name("a database")
        charset = read_charset(statement)
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
        charset = charset_of(*read_charset(statement), self._charset)
        draft = Draft(None, charset)
        define(draft, inside.parts())
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
                lacks_schema=True,
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
        old_names, new_names, open_names = [], [], []
        for old, new in pairs:
            open_names.append(self._lacks_database(old, new))
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
        return replace(
            change, new_names=tuple(new_names), lacks_database=tuple(open_names), after=after
        )

    def _lacks_database(self, old: TableName, new: TableName) -> bool:
        """Whether the old database is not known.

        Classic TiCDC names the new database beside the statement; another one beside it is that of
        the session, in which the old table is.
        """
        if old.database is not None or new.database is None:
            return False
        return self._database is None or new.database.lower() == self._database.lower()

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
        word = statement.next("what is brought back").text.upper()
        what = f"FLASHBACK {word}"
        change = self._unmirrored(what.lower(), _ROWS_COME_BACK.format(what))
        if word == "CLUSTER":
            return replace(change, reach=Reach.CLUSTER)
        if word not in ("DATABASE", "SCHEMA"):
            return change
        name = self._spelled(statement.name("a database"))
        new = statement.name("a database") if statement.take("TO") else None
        return replace(change, reach=Reach.DATABASE, database=name, new_database=new)

    def _recovered(self, what: str, statement: Statement) -> TableChange:
        old = self._complete(statement.table_name())
        new = statement.table_name() if statement.take("TO") else old
        new = TableName(new.database or old.database, new.table)
        change = self._unmirrored(f"{what.lower()} {new}", _ROWS_COME_BACK.format(what), new)
        change = replace(change, recovered=old)
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
        if is_about_partitions(statement):
            return self._alter_partitions(table, statement)
        # The commas of SET TIFLASH REPLICA and ORDER BY are not between clauses.
        clauses = [statement] if statement.key() in ("SET", "ORDER") else statement.parts()
        if len(clauses) > MAX_CLAUSES:
            raise Unreadable(f"it has more than {MAX_CLAUSES:,} clauses")
        return self._alter(table, [reading(clause) for clause in clauses])

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
                change = replace(
                    change,
                    kind=ChangeKind.UNMIRRORED,
                    reason=reason,
                    lacks_schema=before is None,
                )
        if before is None:
            return change
        # These two make a new table of the old one.
        table_id = None if verb in ("PARTITION", "REMOVE") else before.table_id
        after = replace(before, partitioning=cut, table_id=table_id, version=None)
        return replace(change, after=after)

    def _alter(self, table: TableName, edits: Iterable[Edit]) -> TableChange:
        alter = Alter(self._before, self._now)
        for edit in edits:
            edit(alter)
        what = f"alter table {table}: " + (_listed(alter.said) or "nothing")
        if alter.needs_schema and self._before is None:
            reason = f"The schema of {self._complete(table)} before it is not known."
            return replace(self._unmirrored(what, reason, table), lacks_schema=True)
        change = self._change(ChangeKind.UNCHANGED, what, table)
        if self._before is None or alter.draft is None:
            after = None
        else:
            after = alter.draft.schema(self._before.database, self._before.table)
            columns = alter.draft.changes()
            guesses = tuple(_guesses(self._complete(table), columns))
            change = replace(change, columns=columns, guesses=guesses)
            if _is_seen_by_rows(self._before, after):
                change = replace(change, kind=ChangeKind.ALTERED)
        change = replace(change, after=after)
        if alter.new_name is None:
            return change
        renamed = self._renamed([(table, alter.new_name)])
        if after is not None:
            new = renamed.new_names[0]
            after = replace(after, database=new.database or "", table=new.table)
        return replace(renamed, columns=change.columns, guesses=change.guesses, after=after)


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


def _guesses(table: TableName, columns: Iterable[ColumnChange]) -> Iterator[str]:
    """What is not sure of the values that existing rows have in added columns."""
    for entry in columns:
        column = entry.after
        if entry.before is not None or column is None or column.generated == "virtual":
            continue
        if entry.is_commit_time:
            yield (
                f"The column {column.name} of earlier rows has the commit time of ALTER TABLE "
                f"{table}, which may be later than the time upstream."
            )
        elif entry.fill is ABSENT:
            yield (
                f"The column {column.name} of earlier rows is NULL, because ALTER TABLE {table} "
                "does not tell its value."
            )


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
