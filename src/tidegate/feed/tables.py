"""The tables of a feed as its statements have made them: what each DDL does to which table.

`ddl.transition` reads one statement; here its names find the tables they mean, and the schemas are
carried on from statement to statement. Names are compared as TiDB does, without regard to case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tidegate.feed.ddl import ChangeKind, TableChange, transition
from tidegate.feed.definition import Charset
from tidegate.model.schema import TableSchema

# What TiDB gives a database that names none.
DEFAULT_CHARSET = Charset("utf8mb4", "utf8mb4_bin")


class Name(NamedTuple):
    """A table's name; `folded` is what tells it from others."""

    database: str
    table: str

    @property
    def folded(self) -> tuple[str, str]:
        """The name without regard to case."""
        return self.database.lower(), self.table.lower()

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


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


class TableBook:
    """The schemas of a feed's tables by name, and the character sets of its databases."""

    def __init__(self, schemas: Iterable[TableSchema] = ()) -> None:
        self._schemas: dict[tuple[str, str], TableSchema] = {}
        self._charsets: dict[str, Charset] = {}
        for schema in schemas:
            self.put(schema)

    def __iter__(self) -> Iterator[TableSchema]:
        return iter(self._schemas.values())

    def get(self, database: str, table: str) -> TableSchema | None:
        """The schema of a table, or None."""
        return self._schemas.get((database.lower(), table.lower()))

    def put(self, schema: TableSchema) -> None:
        """Says what a table is, from another source than a statement."""
        self._schemas[schema.database.lower(), schema.table.lower()] = schema

    def remove(self, name: Name) -> None:
        """Forgets a table."""
        self._schemas.pop(name.folded, None)

    def copy(self) -> TableBook:
        """Another one that says the same."""
        other = TableBook(self)
        other._charsets = dict(self._charsets)
        return other

    def arrange(self, statements: Sequence[Any]) -> list[Any]:
        """The statements of one commit_ts, ordered by what they depend on."""
        return list(statements)

    # --- statements -------------------------------------------------------------------------------

    def run(
        self, query: str, database: str, table: str | None = None, others: Iterable[Name] = ()
    ) -> list[Effect]:
        """What a statement does, table by table.

        `database` and `table` are what the feed names beside it, `others` tables that are there
        though nothing tells their schemas. The book is then as after it.
        """
        change = self._transition(None, query, database)
        known = self._known(change)
        if known is not None:
            change = self._transition(known, query, database)
        if change.charset is not None:
            self._charsets[(change.database or "").lower()] = change.charset
        if change.kind is ChangeKind.UNMIRRORED and not change.tables and table:
            effects = [
                Effect(change.kind, Name(database, table), change, self.get(database, table))
            ]
        else:
            effects = list(self._effects(change, known, others))
        for effect in effects:
            self._take(effect)
        return effects

    def _transition(self, before: TableSchema | None, query: str, database: str) -> TableChange:
        charset = self._charsets.get(database.lower(), DEFAULT_CHARSET)
        return transition(before, query, database, lookup=self.get, charset=charset)

    def _known(self, change: TableChange) -> TableSchema | None:
        """The first table that the statement names and that is there.

        Classic TiCDC names the new database beside RENAME TABLE `a` TO `new`.`b`: then the table is
        the only one of that name.
        """
        for name in change.tables:
            schema = self.get(name.database or "", name.table)
            if schema is not None:
                return schema
        if change.kind is ChangeKind.RENAMED:
            wanted = change.tables[0].table.lower()
            found = [schema for (_, table), schema in self._schemas.items() if table == wanted]
            if len(found) == 1:
                return found[0]
        return None

    def _effects(
        self, change: TableChange, known: TableSchema | None, others: Iterable[Name]
    ) -> Iterator[Effect]:
        if change.kind is ChangeKind.DATABASE_DROPPED:
            names = [*(Name(schema.database, schema.table) for schema in self), *others]
            gone = (change.database or "").lower()
            for name in {name.folded: name for name in names if name.folded[0] == gone}.values():
                yield Effect(ChangeKind.DROPPED, name, change, self.get(*name))
            return
        if change.kind is ChangeKind.RENAMED:
            yield from self._renames(change, known)
            return
        for told in change.tables:
            before = self.get(told.database or "", told.table)
            name = Name(told.database or "", told.table)
            if before is not None:
                name = Name(before.database, before.table)
            yield Effect(change.kind, name, change, before)

    def _renames(self, change: TableChange, known: TableSchema | None) -> Iterator[Effect]:
        several = len(change.tables) > 1
        moved: dict[tuple[str, str], TableSchema | None] = {}
        for old, new in zip(change.tables, change.new_names, strict=True):
            name, target = Name(old.database or "", old.table), Name(new.database or "", new.table)
            before = moved.pop(name.folded, None) or self.get(*name)
            if before is None and not several:
                before = known
            after = None
            if before is not None:
                name = Name(before.database, before.table)
                after = replace(before, database=target.database, table=target.table, version=None)
            moved[target.folded] = after
            one = replace(change, tables=(old,), new_names=(new,), after=after)
            yield Effect(change.kind, name, one, before, target)

    def _take(self, effect: Effect) -> None:
        after = effect.change.after
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

    # --- restarts ---------------------------------------------------------------------------------

    def to_object(self) -> dict[str, Any]:
        """What `from_object` reads."""
        return {
            "tables": [schema.to_object() for schema in self],
            "charsets": {name: list(charset) for name, charset in self._charsets.items()},
        }

    @classmethod
    def from_object(cls, told: dict[str, Any]) -> TableBook:
        """The book that `to_object` wrote down."""
        book = cls(TableSchema.from_json(schema) for schema in told["tables"])
        book._charsets = {name: Charset(*charset) for name, charset in told["charsets"].items()}
        return book
