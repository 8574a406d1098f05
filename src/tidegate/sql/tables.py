"""The tables of a feed as its statements have made them: what each DDL does to which table.

`ddl.transition` reads one statement; here its names find the tables they mean, and the schemas are
carried on from statement to statement. Names are compared as TiDB does, without regard to case.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from tidegate.model.schema import TableSchema
from tidegate.model.sql import quoted
from tidegate.sql.ddl import ChangeKind, Lookup, Reach, TableChange, transition
from tidegate.sql.ddl_names import DdlId, plain_change
from tidegate.sql.definition import Charset
from tidegate.sql.statement import TableName

# What TiDB gives a database that names none.
DEFAULT_CHARSET = Charset("utf8mb4", "utf8mb4_bin")
MAX_DROPPED = 10_000
"""How many tables of dropped databases are remembered."""
MAX_DROPPED_SCHEMAS = 1_000
"""How many schemas of dropped tables are remembered."""

Folded = tuple[str, str]
_Each = TypeVar("_Each")


class Name(NamedTuple):
    """A table's name; `folded` is what tells it from others."""

    database: str
    table: str

    @property
    def folded(self) -> Folded:
        """The name without regard to case."""
        return self.database.lower(), self.table.lower()

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


class TableNames(Collection[Name]):
    """Names of tables, each once whatever its case, and the databases that they are in."""

    def __init__(self, names: Iterable[Name] = ()) -> None:
        self._names: dict[Folded, Name] = {}
        self._counts: Counter[str] = Counter()
        for name in names:
            self.add(name)

    def __iter__(self) -> Iterator[Name]:
        return iter(self._names.values())

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, Name) and name.folded in self._names

    def get(self, folded: Folded) -> Name | None:
        """The name as it was spelled last."""
        return self._names.get(folded)

    def add(self, name: Name) -> None:
        """Adds a name, or spells it in another way."""
        folded = name.folded
        if folded not in self._names:
            self._counts[folded[0]] += 1
        self._names[folded] = name

    def discard(self, folded: Folded) -> Name | None:
        """Takes a name away, if it is there, and gives it."""
        name = self._names.pop(folded, None)
        if name is not None:
            self._counts[folded[0]] -= 1
        return name

    def copy(self) -> TableNames:
        """The same names."""
        other = TableNames()
        other._names, other._counts = dict(self._names), self._counts.copy()
        return other

    def databases(self) -> set[str]:
        """The databases of the tables, in lower case."""
        return {name for name, count in self._counts.items() if count}


def _databases_of(names: Collection[Name]) -> set[str]:
    """The databases of tables, in lower case."""
    if isinstance(names, TableNames):
        return names.databases()
    return {name.database.lower() for name in names}


@dataclass(frozen=True, slots=True)
class Effect:
    """What a statement does to one table.

    `name` is the table's name before it, `new_name` another one after it. `before` is the schema
    that the table had, None if it was not known; `change.after` the one it has then.
    """

    kind: ChangeKind
    name: Name
    change: TableChange
    before: TableSchema | None = None
    new_name: Name | None = None


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement, and what the feed tells beside it."""

    query: str
    database: str
    table: str | None
    others: Collection[Name]
    before: TableSchema | None
    after: TableSchema | None
    commit_ts: int | None = None
    zone: str = "UTC"
    may_come_from: Callable[[str, str], bool] | None = None

    @classmethod
    def of(
        cls,
        query: str,
        database: str,
        table: str | None,
        others: Collection[Name],
        schemas: str | None,
        commit_ts: int | None = None,
        zone: str = "UTC",
        may_come_from: Callable[[str, str], bool] | None = None,
    ) -> _Statement:
        document = json.loads(schemas) if schemas else {}
        before, after = (
            TableSchema.from_json(document[member]) if document.get(member) else None
            for member in ("preTableSchema", "tableSchema")
        )
        return cls(query, database, table, others, before, after, commit_ts, zone, may_come_from)

    def names(self) -> Iterator[Name]:
        """The tables that the feed names beside the statement."""
        if self.table:
            yield Name(self.database, self.table)
        for schema in filter(None, (self.after, self.before)):
            yield Name(schema.database, schema.table)


class TableBook:
    """The schemas of a feed's tables by name, and what is known of its databases.

    The history is known from its start if every database that the book has heard of was created by
    the feed, or loaded: then there is no table that the book does not know.
    """

    def __init__(self, schemas: Iterable[TableSchema] = ()) -> None:
        self._schemas: dict[Folded, TableSchema] = {}
        self._charsets: dict[str, Charset] = {}
        self._heard_of: set[str] = set()
        self._created: set[str] = set()
        self._dropped: dict[str, list[str]] = {}
        self._dropped_schemas: dict[Folded, TableSchema] = {}
        self._changed: set[Folded] = set()
        for schema in schemas:
            self.put(schema)

    def __iter__(self) -> Iterator[TableSchema]:
        return iter(self._schemas.values())

    def get(self, database: str, table: str) -> TableSchema | None:
        """The schema of a table, or None."""
        return self._schemas.get((database.lower(), table.lower()))

    def put(self, schema: TableSchema) -> None:
        """Says what a table is, from another source than a statement."""
        folded = schema.database.lower(), schema.table.lower()
        self._schemas[folded] = schema
        self._heard_of.add(folded[0])
        self._changed.add(folded)

    def put_database(self, name: str, charset: Charset | None = None) -> None:
        """Says that every table of a database is known, and what its tables inherit."""
        self._heard_of.add(name.lower())
        self._created.add(name.lower())
        self.put_charset(name, charset)

    def put_charset(self, name: str, charset: Charset | None) -> None:
        """Says what new tables of a database inherit; None: the default."""
        if charset is not None:
            self._charsets[name.lower()] = charset

    def remove(self, name: Name) -> None:
        """Forgets a table."""
        self._schemas.pop(name.folded, None)
        self._changed.add(name.folded)

    def take_changes(self) -> set[Folded]:
        """The tables that were put or removed since this was last asked, or the book was copied."""
        changed, self._changed = self._changed, set()
        return changed

    def copy(self) -> TableBook:
        """Another one that says the same."""
        other = TableBook()
        other._schemas = dict(self._schemas)
        other._charsets = dict(self._charsets)
        other._heard_of = set(self._heard_of)
        other._created = set(self._created)
        other._dropped = dict(self._dropped)  # the lists in it are replaced, never changed
        other._dropped_schemas = dict(self._dropped_schemas)
        return other

    # --- statements -------------------------------------------------------------------------------

    def run(
        self,
        query: str,
        database: str,
        table: str | None = None,
        others: Collection[Name] = (),
        *,
        schemas: str | None = None,
        commit_ts: int | None = None,
        zone: str = "UTC",
        may_come_from: Callable[[str, str], bool] | None = None,
    ) -> list[Effect]:
        """What a statement does, table by table.

        `database`, `table` and `schemas` (JSON with `tableSchema` and `preTableSchema`) are what
        the feed tells beside it, `others` tables that are there though nothing tells their schemas.
        `commit_ts` and `zone`, that of the feed, say what time it was. `may_come_from` says of a
        table, by database and name, whether its statements come by the topic that this one came by.
        The book is then as after it.
        """
        statement = _Statement.of(
            query, database, table, others, schemas, commit_ts, zone, may_come_from
        )
        before = statement.before
        if before is not None and self.get(before.database, before.table) is None:
            self.put(before)
        change, effects = self._read(statement, self.get)
        self._hear(statement, change)
        for effect in effects:
            self._take(effect)
        self._note_database(change, effects)
        return effects

    def names_of(
        self,
        query: str,
        database: str,
        table: str | None = None,
        others: Collection[Name] = (),
        *,
        schemas: str | None = None,
    ) -> set[Name]:
        """Every table that `run` would touch or ask for, by all its names; nothing is run."""
        statement = _Statement.of(query, database, table, others, schemas)
        names: set[Name] = set(statement.names())

        def lookup(database: str, table: str) -> TableSchema | None:
            names.add(Name(database, table))
            return self.get(database, table)

        change, effects = self._read(statement, lookup)
        names.update(map(_name, (*change.tables, *change.new_names)))
        for effect in effects:
            names.update(filter(None, (effect.name, effect.new_name)))
        return names

    def _read(self, statement: _Statement, lookup: Lookup) -> tuple[TableChange, list[Effect]]:
        """What a statement says, and what that does to which tables."""
        change = self._transition(None, statement, lookup)
        if change.kind is not ChangeKind.RENAMED:
            schemas = (self.get(*_name(named)) for named in change.tables)
            known = next(filter(None, schemas), None)
            if known is not None:
                change = self._transition(known, statement, lookup)
        effects = self._effects(change, statement, lookup)
        return change, [_with_id(effect, statement.after) for effect in effects]

    def _effects(
        self, change: TableChange, statement: _Statement, lookup: Lookup
    ) -> Iterator[Effect]:
        kind, names = change.kind, [_name(named) for named in change.tables]
        if kind is ChangeKind.RENAMED:
            yield from self._renames(change, statement, lookup)
            return
        if kind is ChangeKind.DATABASE_DROPPED:
            kind = ChangeKind.DROPPED
            names = self._known(statement, (change.database or "").lower())
        elif change.reach is not Reach.TABLES:
            names = self._reached(change, statement)
        elif kind is ChangeKind.UNMIRRORED and not change.tables:
            names = list(statement.names())[:1]
        for name in names:
            before = self.get(*name)
            recovered = self._recovered(change, name) if before is None else None
            known = before or recovered
            spelled = name if known is None else Name(known.database, known.table)
            one = change if recovered is None else replace(change, after=recovered)
            yield Effect(kind, spelled, one, before)

    def _transition(
        self, before: TableSchema | None, statement: _Statement, lookup: Lookup
    ) -> TableChange:
        return transition(
            before,
            statement.query,
            statement.database,
            lookup=lookup,
            charset=self._charsets.get(statement.database.lower(), DEFAULT_CHARSET),
            commit_ts=statement.commit_ts,
            zone=statement.zone,
        )

    def _known(self, statement: _Statement, database: str | None = None) -> list[Name]:
        """The tables that are there, of a database if one is named, in lower case."""
        names = [*(Name(schema.database, schema.table) for schema in self), *statement.others]
        return list(
            {
                name.folded: name
                for name in reversed(names)  # as the book spells it, where it knows it
                if database is None or name.folded[0] == database
            }.values()
        )[::-1]

    def _reached(self, change: TableChange, statement: _Statement) -> list[Name]:
        """The tables of a database, also those that its DROP took along, or all tables."""
        if change.reach is Reach.CLUSTER:
            return self._known(statement)
        old, new = change.database or "", change.new_database or change.database or ""
        tables = [name.table for name in self._known(statement, old.lower())]
        tables += self._dropped.get(old.lower(), ())
        return list({table.lower(): Name(new, table) for table in reversed(tables)}.values())[::-1]

    def _recovered(self, change: TableChange, name: Name) -> TableSchema | None:
        """The schema of a table that a statement brings back: the one from before its DROP.

        Later statements may go by it: CREATE TABLE LIKE, for example.
        """
        old = None if change.recovered is None else _name(change.recovered)
        if change.reach is Reach.DATABASE:
            old = Name(change.database or "", name.table)
        schema = None if old is None else self._dropped_schemas.get(old.folded)
        if schema is None or old is None:
            return None
        if old.folded == name.folded:  # as it was created, whatever the statement spells
            name = Name(schema.database, schema.table)
        return replace(schema, database=name.database, table=name.table, version=None)

    # --- renames ----------------------------------------------------------------------------------

    def _renames(
        self, change: TableChange, statement: _Statement, lookup: Lookup
    ) -> Iterator[Effect]:
        moved: dict[Folded, TableSchema | None] = {}
        is_single = len(change.tables) == 1
        for old, new, lacks_database in zip(
            change.tables, change.new_names, change.lacks_database, strict=True
        ):
            origins, target = [_name(old)], _name(new)
            if lacks_database:
                origins = self._origins(old, target, statement) or origins
            if len(origins) > 1:
                yield from self._unclear(change, old, target, origins)
                continue
            name = origins[0]
            before = moved.pop(name.folded, None) or self.get(*name)
            one = replace(change, tables=(old,), new_names=(new,))
            if before is not None:
                name = Name(before.database, before.table)
                after: TableSchema | None = before
                if is_single:
                    one = self._transition(before, statement, lookup)
                    after = one.after
                if one.kind is not ChangeKind.RENAMED or after is None:
                    # Other clauses of the statement cannot be followed.
                    yield Effect(one.kind, name, one, before)
                    yield Effect(one.kind, target, one, self.get(*target))
                    continue
                after = replace(after, database=target.database, table=target.table, version=None)
                one = replace(one, tables=(TableName(*name),), after=after)
            moved[target.folded] = one.after
            yield Effect(change.kind, name, one, before, target)

    def _origins(self, old: TableName, target: Name, statement: _Statement) -> list[Name]:
        """The tables that a statement may mean which does not name the old database.

        The table that was renamed, if that is sure; otherwise all candidates and the new name.
        """
        told = statement.before
        if told is not None and told.table.lower() == old.table.lower():
            return [Name(told.database, told.table)]
        known = [
            name
            for name in self._known(statement)
            if name.table.lower() == old.table.lower() and name.folded != target.folded
        ]
        table_id = _table_id(statement.after)
        same = [name for name in known if table_id and _table_id(self.get(*name)) == table_id]
        if len(same) == 1:
            return same
        tells_database = False
        if statement.may_come_from is not None:
            known = [name for name in known if statement.may_come_from(*name)]
            tells_database = not statement.may_come_from(_NOWHERE, old.table)
        if not known:
            return []
        is_sure = len(known) == 1 and (
            tells_database
            or self._knows_history({target.folded[0], *_databases_of(statement.others)})
        )
        return known if is_sure else [*known, target]

    def _knows_history(self, databases: Iterable[str]) -> bool:
        """Whether the databases heard of, and these in lower case, were created by the feed."""
        return self._heard_of.union(databases) <= self._created

    def _unclear(
        self, change: TableChange, old: TableName, target: Name, names: Iterable[Name]
    ) -> Iterator[Effect]:
        """The tables of which one was renamed, and the new name: none can be mirrored further."""
        reason = (
            f"A table {quoted(old.table)} was renamed to {quoted(*target)}, and the feed does not "
            "tell in which database it was."
        )
        for name in names:
            unmirrored = replace(
                change,
                kind=ChangeKind.UNMIRRORED,
                tables=(TableName(*name),),
                new_names=(),
                lacks_database=(),
                after=None,
                columns=(),
                guesses=(),
                reason=reason,
            )
            yield Effect(ChangeKind.UNMIRRORED, name, unmirrored, self.get(*name))

    def arrange(
        self,
        statements: Sequence[_Each],
        id_of: Callable[[_Each], DdlId],
        others: Iterable[Name] = (),
        topic_of: Callable[[_Each], str | None] = lambda each: None,
    ) -> list[_Each]:
        """Statements of one commit_ts, in the order in which they can have been done.

        A RENAME of several tables is an event a table, and these may come by several topics; those
        of one topic (`topic_of`, None where that is not known) are in order. A rename goes when its
        old name is there and its new name is free, or else when its old name is not known; the
        first that came goes first. Other statements stay where they are.
        """
        topics = {topic_of(each) for each in statements}
        if len(topics) == 1 and None not in topics:
            return list(statements)
        pairs = [_single_rename(id_of(each)) for each in statements]
        places = [place for place, pair in enumerate(pairs) if pair is not None]
        if len(places) < 2:
            return list(statements)
        renames = {place: pair for place, pair in enumerate(pairs) if pair is not None}
        known = {*self._schemas, *(name.folded for name in others)}
        targets = {pair.new[0] for pair in renames.values()}
        topic = {place: topic_of(statements[place]) for place in places}
        order = _rename_order(renames, topic, known, knows_all=self._knows_history(targets))
        arranged = list(statements)
        for place, taken in zip(places, order, strict=True):
            arranged[place] = statements[taken]
        return arranged

    # --- what statements leave --------------------------------------------------------------------

    def _take(self, effect: Effect) -> None:
        after = effect.change.after
        if effect.kind in (ChangeKind.DROPPED, ChangeKind.TRUNCATED) and effect.before is not None:
            self._remember_schema(effect.name, effect.before)
        if effect.kind is ChangeKind.DROPPED:
            self.remove(effect.name)
        elif effect.kind is ChangeKind.RENAMED:
            self.remove(effect.name)
            if after is not None:
                self.put(after)
        elif effect.kind is ChangeKind.CREATED:
            if after is not None and effect.before is None:
                self.put(after)
        elif after is not None and Name(after.database, after.table).folded == effect.name.folded:
            self.put(after)

    def _hear(self, statement: _Statement, change: TableChange) -> None:
        """Notes the databases that a statement tells of."""
        databases = {change.database, change.new_database, statement.database}
        databases.update(named.database for named in (*change.tables, *change.new_names))
        databases |= _databases_of(statement.others)
        self._heard_of.update(name.lower() for name in databases if name)

    def _note_database(self, change: TableChange, effects: Sequence[Effect]) -> None:
        name = (change.database or "").lower()
        if change.kind is ChangeKind.DATABASE_CREATED:
            self._created.add(name)
            self._charsets.pop(name, None)
        elif change.kind is ChangeKind.DATABASE_DROPPED:
            self._charsets.pop(name, None)
            self._heard_of.discard(name)
            self._created.discard(name)
            self._remember_dropped(name, [effect.name.table for effect in effects])
        elif change.reach is Reach.DATABASE:
            self._dropped.pop(name, None)
        if change.charset is not None:
            self._charsets[name] = change.charset

    def _remember_schema(self, name: Name, schema: TableSchema) -> None:
        """Notes what RECOVER TABLE and FLASHBACK bring back; TRUNCATE drops a table as well."""
        self._dropped_schemas.pop(name.folded, None)
        self._dropped_schemas[name.folded] = schema
        if len(self._dropped_schemas) > MAX_DROPPED_SCHEMAS:
            del self._dropped_schemas[next(iter(self._dropped_schemas))]

    def _remember_dropped(self, database: str, tables: list[str]) -> None:
        self._dropped.pop(database, None)
        self._dropped[database] = tables[:MAX_DROPPED]
        while sum(map(len, self._dropped.values())) > MAX_DROPPED:
            del self._dropped[next(iter(self._dropped))]

    # --- restarts ---------------------------------------------------------------------------------

    def to_object(self) -> dict[str, Any]:
        """What `from_object` reads."""
        return {
            "tables": [schema.to_object() for schema in self],
            "droppedTables": [schema.to_object() for schema in self.dropped()],
            **self.databases(),
        }

    def dropped(self) -> Iterator[TableSchema]:
        """The schemas of tables that were dropped, and may come back."""
        return iter(self._dropped_schemas.values())

    def databases(self) -> dict[str, Any]:
        """The same without tables: what is known of databases."""
        return {
            "charsets": {name: list(charset) for name, charset in self._charsets.items()},
            "databases": sorted(self._heard_of),
            "createdDatabases": sorted(self._created),
            "droppedDatabases": self._dropped,
        }

    @classmethod
    def from_object(cls, members: dict[str, Any]) -> TableBook:
        """The book that `to_object` wrote down."""
        book = cls(TableSchema.from_json(schema) for schema in members["tables"])
        book._charsets = {name: Charset(*charset) for name, charset in members["charsets"].items()}
        book._heard_of.update(members.get("databases", book._charsets))
        book._created.update(members.get("createdDatabases", ()))
        book._dropped = {
            name: list(tables) for name, tables in members.get("droppedDatabases", {}).items()
        }
        for schema in map(TableSchema.from_json, members.get("droppedTables", ())):
            book._remember_schema(Name(schema.database, schema.table), schema)
        return book


def _name(named: TableName) -> Name:
    return Name(named.database or "", named.table)


def _table_id(schema: TableSchema | None) -> int | None:
    """The id of a table; 0 and -1 stand for none."""
    is_told = schema is not None and schema.table_id is not None and schema.table_id > 0
    return schema.table_id if schema is not None and is_told else None


def _with_id(effect: Effect, told: TableSchema | None) -> Effect:
    """The effect with the id that the feed tells of the table."""
    after, table_id = effect.change.after, _table_id(told)
    if after is None or told is None or table_id is None:
        return effect
    if Name(after.database, after.table).folded != Name(told.database, told.table).folded:
        return effect
    return replace(effect, change=replace(effect.change, after=replace(after, table_id=table_id)))


# --- renames of one instant -----------------------------------------------------------------------


_NOWHERE = "\0"
"""A database that no table is in."""


class _Pair(NamedTuple):
    """A table's old name, whose database is empty where it is not told, and its new one.

    `final` is the name that the event gives beside the statement: the new architecture of TiCDC
    names the table as it is called after all renames of the same commit_ts.
    """

    old: Folded
    new: Folded
    final: Folded


def _single_rename(ddl: DdlId) -> _Pair | None:
    change = plain_change(ddl.query, ddl.database)
    if change.kind is not ChangeKind.RENAMED or len(change.tables) != 1:
        return None
    old, new = _name(change.tables[0]), _name(change.new_names[0])
    if change.lacks_database[0]:
        old = Name("", old.table)
    final = Name(ddl.database, ddl.table) if ddl.table else new
    return _Pair(old.folded, new.folded, final.folded)


def _rename_order(
    renames: dict[int, _Pair], topic: dict[int, str | None], known: set[Folded], *, knows_all: bool
) -> list[int]:
    """The places of renames in the order in which they can be done."""
    order = []
    waiting, known = dict(renames), set(known)
    earlier = _earlier(renames)
    while waiting:
        first = {topic[place]: place for place in sorted(waiting, reverse=True)}
        ready = [
            place
            for place in waiting
            if (topic[place] is None or place in first.values())
            and waiting.keys().isdisjoint(earlier.get(place, ()))
        ] or list(waiting)
        place = min(ready, key=lambda place: _hindrance(place, waiting, known, knows_all))
        pair = waiting.pop(place)
        known -= {_there(pair.old, known)}
        known.add(pair.new)
        order.append(place)
    return order


def _earlier(renames: dict[int, _Pair]) -> dict[int, set[int]]:
    """Which renames go before which, as far as the final names of the tables tell.

    A table that is called otherwise in the end is renamed once more afterwards; one that has its
    final name is not, so that whoever had that name gave it up before.
    """
    earlier: dict[int, set[int]] = {}
    news = {pair.new for pair in renames.values()}
    if all(pair.final == pair.new for pair in renames.values()) or not all(
        pair.final in news for pair in renames.values()
    ):
        return earlier  # the classic architecture: each event has the name of its own statement
    for place, pair in renames.items():
        for other, later in renames.items():
            if other != place and later.old == pair.new:
                first, second = (other, place) if pair.final == pair.new else (place, other)
                earlier.setdefault(second, set()).add(first)
    return earlier


def _there(name: Folded, known: set[Folded]) -> Folded | None:
    """The table that a name means, if it is known."""
    if name[0]:
        return name if name in known else None
    same = [each for each in known if each[1] == name[1]]
    return same[0] if len(same) == 1 else None


def _hindrance(
    place: int, waiting: dict[int, _Pair], known: set[Folded], knows_all: bool
) -> tuple[bool, bool, bool, int]:
    """How much speaks against a rename being the next one.

    A name may be taken by a table that is not known: if another rename waits to free it, that one
    goes first.
    """
    pair = waiting[place]
    if pair.new in known:
        return True, False, False, place
    may_be_taken = not knows_all and any(
        other.old in (pair.new, ("", pair.new[1])) for at, other in waiting.items() if at != place
    )
    return False, may_be_taken, _there(pair.old, known) is None, place
