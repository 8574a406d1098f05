"""What to do to move the lake's tables from one instant to a later one: steps, in order, no I/O.

Rows of a table are applied in one step up to the next statement that touches it. Steps on different
tables may run at once; a step waits for all earlier ones that name the same table.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tidegate.feed.ddl import ChangeKind, TableChange
from tidegate.feed.gate import DdlId
from tidegate.feed.tables import Effect, Name, TableBook
from tidegate.lake.changelog import Group
from tidegate.lake.format import Position
from tidegate.lake.routes import Routes
from tidegate.lake.rows import Layout, carried
from tidegate.model import EventFlag, TableSchema

UPSTREAM_NEEDED = (
    "Messages that were too large carry only the key of a row: name the database that the feed "
    "comes from with the setting upstream (--upstream mysql://user:password@host:port/), and "
    "mirror the table anew."
)
CLAIM_CHECK_NEEDED = (
    "Messages that were too large are in claim-check storage: name it with the setting "
    "claim-check, and mirror the table anew."
)


class Status(Enum):
    """How it stands with a table."""

    MIRRORED = "mirrored"
    STOPPED = "stopped"  # what the feed says of it cannot be mirrored


@dataclass(slots=True)
class Table:
    """An upstream table and its mirror: where that is, and how it stands."""

    name: Name
    schema: TableSchema
    identifier: str = ""
    uid: str = ""
    status: Status = Status.MIRRORED
    reason: str = ""
    since: int = 0
    """When the table was stopped."""
    eventual: bool = False
    """Whether rows were completed from an upstream that shows them only as they are now."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A DDL of the feed that is to be done: what it says, and where a table stands after it.

    The position before it, one `ddl` less, is for the rows that go before it.
    """

    id: DdlId
    position: Position


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do to one table; it waits for earlier steps with any of its `names`."""

    table: Table
    position: Position
    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Rows(Step):
    """Row changes after one instant up to another, under the name that the table has then."""

    name: Name
    schema: TableSchema
    layouts: tuple[Layout, ...]
    segments: tuple[int, int]
    late: bool
    moves: bool
    count: int
    incomplete: bool = False
    """Whether some have only the key, and must be completed from the upstream."""


@dataclass(frozen=True, slots=True)
class Create(Step):
    """A new table."""

    name: Name
    schema: TableSchema


@dataclass(frozen=True, slots=True)
class Drop(Step):
    """The table is gone, but for its versions."""


@dataclass(frozen=True, slots=True)
class Rename(Step):
    """Another name."""

    new_name: Name


@dataclass(frozen=True, slots=True)
class Evolve(Step):
    """Other columns."""

    before: TableSchema
    change: TableChange


@dataclass(frozen=True, slots=True)
class Delete(Step):
    """Rows that go with a statement: all, or those of a condition."""

    condition: str | None


Tables = dict[tuple[str, str], Table]


class Planner:
    """Turns statements and row groups into steps, and carries names and schemas through them.

    `tables` and `book` are changed in place: give copies if the steps may never be done. `keyed`
    are the shapes whose key the wire tells.
    """

    def __init__(
        self,
        tables: Tables,
        book: TableBook,
        layouts: Mapping[tuple[int, int | None], tuple[str, ...]],
        schemas: Mapping[tuple[int, int | None], TableSchema],
        target: Position,
        keyed: Container[int] = (),
        routes: Routes | None = None,
        *,
        completes: bool = False,
    ) -> None:
        """`completes` says that rows of which only the key came can be asked for."""
        self._tables = tables
        self._book = book
        self._routes = routes or Routes()
        self._layouts = layouts
        self._schemas = schemas
        self._target = target
        self._keyed = keyed
        self._completes = completes
        self._steps: list[Step] = []
        self._pending: dict[tuple[str, str], list[Group]] = {}
        self.touched: set[Name] = set()
        """The tables that statements touched, by all their names."""

    def plan(self, statements: Sequence[Statement], groups: Iterable[Group]) -> list[Step]:
        """Statement n cuts segment n from segment n + 1."""
        by_segment: dict[int, list[Group]] = {}
        for group in groups:
            by_segment.setdefault(group.segment, []).append(group)
        for segment in range(len(statements) + 1):
            for group in by_segment.get(segment, ()):
                name = Name(group.database, group.table)
                if self._routes.wants(name):
                    self._pending.setdefault(name.folded, []).append(group)
            if segment < len(statements):
                self._statement(statements[segment])
        for folded in sorted(self._pending):
            self._flush(folded, self._target)
        return self._steps

    # --- rows -------------------------------------------------------------------------------------

    def _flush(self, folded: tuple[str, str], position: Position) -> None:
        groups = self._pending.pop(folded, [])
        if not groups:
            return
        table = self._tables.get(folded) or self._unknown(groups)
        if table.status is Status.STOPPED:
            return
        layouts = {(group.shape, group.schema_version) for group in groups}
        known = carried(table.schema)
        problem = self._misfit(table, groups, known)
        if problem:
            self._stop(table, problem, position)
            return
        name = Name(groups[0].database, groups[0].table)
        self._steps.append(
            Rows(
                table,
                position,
                (folded,),
                name=name,
                schema=table.schema,
                layouts=tuple(
                    sorted(
                        {Layout(shape, self._layouts[shape, of]) for shape, of in layouts},
                        key=lambda layout: layout.shape,
                    )
                ),
                segments=(
                    min(group.segment for group in groups),
                    max(group.segment for group in groups),
                ),
                late=any(group.late for group in groups),
                moves=any(self._may_move(group) for group in groups),
                count=sum(group.rows for group in groups),
                incomplete=any(self._lacking(table, group) for group in groups),
            )
        )

    def _may_move(self, group: Group) -> bool:
        """Whether an update may take a row to another key: seen, or not to be seen on the wire."""
        return group.moved or (group.kind == "update" and group.shape not in self._keyed)

    def _unknown(self, groups: Sequence[Group]) -> Table:
        """A table whose CREATE the feed did not bring: the rows themselves say what it is."""
        first = min(
            groups,
            key=lambda group: (bool(group.partial), group.segment, group.kind == "delete"),
        )
        schema = self._schemas[first.shape, first.schema_version]
        name, start = Name(schema.database, schema.table), Position(self._start(groups))
        if first.partial and schema.column_names == self._names(first):
            table = self._tables[name.folded] = Table(name, schema)
            reason = "Its columns are not known: the feed has neither its CREATE nor a whole row."
            self._stop(table, reason, start)
            return table
        self._book.put(schema)
        return self._create(name, schema, start)

    def _start(self, groups: Sequence[Group]) -> int:
        return min(group.first_ts for group in groups) - 1

    def _misfit(self, table: Table, groups: Sequence[Group], known: Sequence[str]) -> str:
        """Why rows do not fit the table as it is known, or nothing."""
        key = table.schema.handle_key()
        for group in groups:
            more = [name for name in self._names(group) if name not in known]
            if more:
                return f"Its rows have a column {more[0]!r} that no statement of the feed has made."
            less = self._lacking(table, group)
            if not less or (group.partial and key and self._completes):
                continue
            if group.partial & EventFlag.CLAIM_CHECK:
                return CLAIM_CHECK_NEEDED
            return UPSTREAM_NEEDED if group.partial else f"Its rows lack the column {less[0]!r}."
        return ""

    def _names(self, group: Group) -> tuple[str, ...]:
        return self._layouts[group.shape, group.schema_version]

    def _lacking(self, table: Table, group: Group) -> list[str]:
        """The columns that rows do not have and must; those of a delete need no more than a key."""
        key, names = table.schema.handle_key(), self._names(group)
        needed = key if key and group.kind == "delete" else carried(table.schema)
        return [name for name in needed if name not in names]

    # --- statements -------------------------------------------------------------------------------

    def _statement(self, statement: Statement) -> None:
        told = statement.id
        for effect in self._book.run(told.query, told.database, told.table or None):
            self.touched.add(effect.name)
            if effect.new_name is not None:
                self.touched.add(effect.new_name)
            if self._routes.wants(effect.name):
                self._effect(effect, statement.position)
            elif effect.new_name is not None and self._routes.wants(effect.new_name):
                self._come_in(effect, statement.position)

    def _effect(self, effect: Effect, position: Position) -> None:
        folded = effect.name.folded
        # Rows at the statement's own commit_ts go before it.
        self._flush(folded, Position(position.ts, position.ddl - 1))
        table = self._tables.get(folded)
        if effect.kind is ChangeKind.CREATED:
            if table is not None and table.status is Status.STOPPED:
                self._drop(table, position)
                table = None
            if table is None and effect.change.after is not None:
                self._create(effect.name, effect.change.after, position)
        elif table is None and effect.kind is ChangeKind.UNMIRRORED:
            self._stop(self._unmirrored(effect), effect.change.reason or "", position)
        elif table is None:
            return
        elif effect.kind is ChangeKind.DROPPED:
            self._drop(table, position)
        elif effect.kind is ChangeKind.RENAMED:
            self._rename(table, effect, position)
        elif effect.kind is ChangeKind.UNMIRRORED:
            self._stop(table, effect.change.reason or effect.change.what, position)
            self._learn(table, effect)
        elif table.status is Status.MIRRORED:
            self._change(table, effect, position)
        else:
            self._learn(table, effect)

    def _come_in(self, effect: Effect, position: Position) -> None:
        """A table that was not mirrored gets a name that is: its rows are not here."""
        self._stop(
            self._unmirrored(effect),
            f"It was {effect.name}, which is not mirrored, so its earlier rows are not here.",
            position,
        )

    def _unmirrored(self, effect: Effect) -> Table:
        """A table that is only known to be there: RECOVER TABLE brings rows no feed carries."""
        name = effect.new_name or effect.name
        schema = effect.change.after or TableSchema(database=name.database, table=name.table)
        table = Table(name, schema)
        self._tables[name.folded] = table
        return table

    def _create(self, name: Name, schema: TableSchema, position: Position) -> Table:
        table = Table(name, schema)
        there = self._routes.destination(name).folded
        for other in self._tables.values():
            if self._routes.destination(other.name).folded == there:
                self._tables[name.folded] = table
                self._stop(
                    table, f"Renamed in the lake, it is in the place of {other.name}.", position
                )
                return table
        self._tables[name.folded] = table
        self._steps.append(Create(table, position, (name.folded,), name=name, schema=schema))
        return table

    def _drop(self, table: Table, position: Position) -> None:
        del self._tables[table.name.folded]
        self._steps.append(Drop(table, position, (table.name.folded,)))

    def _rename(self, table: Table, effect: Effect, position: Position) -> None:
        assert effect.new_name is not None
        if not self._routes.wants(effect.new_name):
            self._drop(table, position)
            return
        del self._tables[table.name.folded]
        names = (table.name.folded, effect.new_name.folded)
        self._steps.append(Rename(table, position, names, new_name=effect.new_name))
        table.name = effect.new_name
        self._learn(table, effect)
        self._tables[table.name.folded] = table

    def _change(self, table: Table, effect: Effect, position: Position) -> None:
        names = (table.name.folded,)
        before, change = table.schema, effect.change
        if effect.kind is ChangeKind.TRUNCATED:
            self._steps.append(Delete(table, position, names, condition=None))
        elif effect.kind is ChangeKind.PRUNED:
            self._steps.append(Delete(table, position, names, condition=change.removed))
        elif change.after is not None and effect.kind is ChangeKind.ALTERED:
            self._steps.append(Evolve(table, position, names, before=before, change=change))
        self._learn(table, effect)

    def _learn(self, table: Table, effect: Effect) -> None:
        if effect.change.after is not None:
            table.schema = replace(
                effect.change.after, database=table.name.database, table=table.name.table
            )

    def _stop(self, table: Table, reason: str, position: Position) -> None:
        table.status, table.reason, table.since = Status.STOPPED, reason, position.ts
