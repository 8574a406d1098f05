"""What to do to move the lake's tables from one instant to a later one: steps, in order, no I/O.

Rows of a table are applied in one step up to the next statement that touches it. Steps on different
tables may run at once; a step waits for all earlier ones that name the same table.

What a statement is to do to a table is for the `policy` to say. Where the mirror has then other
columns than the upstream, both schemas are carried on, and rows are fitted to the mirror's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tidegate.feed.ddl import ChangeKind, TableChange
from tidegate.feed.gate import DdlId
from tidegate.feed.tables import Effect, Name, TableBook
from tidegate.lake.changelog import Group
from tidegate.lake.format import DROPPED_DATABASE, OWN_DATABASE, Position
from tidegate.lake.policy import Fit, Policy, by_name, fit
from tidegate.lake.routes import Routes
from tidegate.lake.rows import Layout
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
OWN_PLACE = (
    "The lake keeps its own tables in a database of that name: mirror it, renamed, into another "
    "lake (--rename)."
)
IN_PLACE = "Renamed in the lake, it is in the place of {other}."

MOST_REASONS = 8
"""How many reasons are kept of why a table is not as its upstream."""


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
    upstream: TableSchema | None = None
    """The table as it is upstream, where the mirror has other columns or another order of them."""
    diverged: tuple[str, ...] = ()
    """Why the table is not exactly its upstream: what the policy has left out, in sentences."""
    gone: bool = False
    """Whether the upstream has dropped the table, and the policy keeps it."""

    @property
    def sent(self) -> TableSchema:
        """The schema of the rows that the feed sends."""
        return self.upstream or self.schema

    def diverge(self, reason: str) -> None:
        """Says that the table is no longer exact."""
        if reason not in self.diverged and len(self.diverged) < MOST_REASONS:
            self.diverged = (*self.diverged, reason)


@dataclass(frozen=True, slots=True)
class Statement:
    """A DDL of the feed that is to be done: what it says, and where a table stands after it.

    The position before it, one `ddl` less, is for the rows that go before it. `schemas` is what the
    feed tells beside it of the table's schemas, as JSON.
    """

    id: DdlId
    position: Position
    schemas: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do to one table; it waits for earlier steps with any of its `names`.

    These are the table's names upstream and in the lake.
    """

    table: Table
    position: Position
    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Rows(Step):
    """Row changes after one instant up to another, under the name that the table has then.

    They come with the columns of `sent`, and are fitted to those of `schema`.
    """

    name: Name
    schema: TableSchema
    sent: TableSchema
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
    has the keys of shapes, as far as the wire tells them.
    """

    def __init__(
        self,
        tables: Tables,
        book: TableBook,
        layouts: Mapping[tuple[int, int | None], tuple[str, ...]],
        schemas: Mapping[tuple[int, int | None], TableSchema],
        target: Position,
        keyed: Mapping[int, Sequence[str]] | None = None,
        routes: Routes | None = None,
        *,
        completes: bool = False,
        policy: Policy = Policy.EVOLVE,
        zone: str = "UTC",
    ) -> None:
        """`completes` says that rows of which only the key came can be asked for.

        `zone` is that of the feed's TIMESTAMP values.
        """
        self._tables = tables
        self._book = book
        self._routes = routes or Routes()
        self._layouts = layouts
        self._schemas = schemas
        self._target = target
        self._keyed = keyed or {}
        self._completes = completes
        self._policy = policy
        self._zone = zone
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
        problem = self._misfit(table, groups)
        if problem:
            self._stop(table, problem, position)
            return
        name = Name(groups[0].database, groups[0].table)
        self._steps.append(
            Rows(
                table,
                position,
                self._places(table.name),
                name=name,
                schema=table.schema,
                sent=table.sent,
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
                moves=any(self._may_move(table, group) for group in groups),
                count=sum(group.rows for group in groups),
                incomplete=any(group.partial and self._lacking(table, group) for group in groups),
            )
        )

    def _may_move(self, table: Table, group: Group) -> bool:
        """Whether an update may take a row to another key: seen, or not to be seen on the wire.

        Nothing is seen where the wire's key is not the one that the table is kept by.
        """
        if group.moved or group.kind != "update":
            return group.moved
        return set(self._keyed.get(group.shape, ())) != set(table.sent.handle_key())

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
        # Without watermarks positions count steps, and are before any commit_ts.
        return min(self._target.ts, *(group.first_ts for group in groups)) - 1

    def _misfit(self, table: Table, groups: Sequence[Group]) -> str:
        """Why rows do not fit the table as it is known, or nothing."""
        key, known = table.sent.handle_key(), table.sent.carried_names
        for group in groups:
            more = [name for name in self._names(group) if name not in known]
            if more:
                told = f"Its rows have a column {more[0]!r} that no statement of the feed has made."
                if self._policy.stops:
                    return told
                table.diverge(f"{told} It is left out.")
            less = self._lacking(table, group)
            if not less or (group.partial and key and self._completes):
                continue
            if group.partial & EventFlag.CLAIM_CHECK:
                return CLAIM_CHECK_NEEDED
            if group.partial:
                return UPSTREAM_NEEDED
            told = f"Its rows lack the column {less[0]!r}."
            if self._policy.stops or not key or not set(key).isdisjoint(less):
                return told
            table.diverge(f"{told} It is NULL in them.")
        return ""

    def _names(self, group: Group) -> tuple[str, ...]:
        return self._layouts[group.shape, group.schema_version]

    def _lacking(self, table: Table, group: Group) -> list[str]:
        """The columns that rows do not have and must; those of a delete need no more than a key."""
        key, names = table.sent.handle_key(), self._names(group)
        needed = key if key and group.kind == "delete" else table.sent.carried_names
        return [name for name in needed if name not in names]

    # --- statements -------------------------------------------------------------------------------

    def _statement(self, statement: Statement) -> None:
        told = statement.id
        others = (table.name for table in self._tables.values() if not table.gone)
        for effect in self._book.run(
            told.query,
            told.database,
            told.table or None,
            others,
            schemas=statement.schemas,
            commit_ts=told.commit_ts,
            zone=self._zone,
        ):
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
            self._created(table, effect, position)
        elif table is None and effect.kind is ChangeKind.UNMIRRORED:
            self._stop(self._unmirrored(effect), effect.change.reason or "", position)
        elif table is None:
            return
        elif effect.kind is ChangeKind.DROPPED:
            self._dropped(table, effect, position)
        elif effect.kind is ChangeKind.RENAMED:
            self._rename(table, effect, position)
        elif effect.kind is ChangeKind.UNMIRRORED:
            self._unmirrorable(table, effect, position)
        elif table.status is Status.MIRRORED:
            self._change(table, effect, position)
        else:
            self._learn(table, effect)

    def _come_in(self, effect: Effect, position: Position) -> None:
        """A table that was not mirrored gets a name that is: its rows are not here."""
        self._make_room(effect, position)
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

    def _created(self, table: Table | None, effect: Effect, position: Position) -> None:
        after = effect.change.after
        if table is not None and (
            table.status is Status.STOPPED or (table.gone and not self._policy.keeps)
        ):
            self._drop(table, position)
            table = None
        if after is None:
            return
        if table is None:
            self._create(effect.name, after, position)
        elif table.gone:
            # The rows that were kept stay: the new table goes on in the old one.
            table.gone = False
            if table.schema.handle_key() != after.handle_key():
                told = f"It was made anew with another key ({effect.change.what})."
                self._stop(table, f"{told} The rows that were kept are in its place.", position)
                return
            changes = by_name(table.schema, after)
            what = effect.change.what
            self._fit(table, fit(self._policy, table.schema, after, changes, what), after, position)

    def _create(self, name: Name, schema: TableSchema, position: Position) -> Table:
        table = Table(name, schema)
        obstacle = self._obstacle(name)
        self._tables[name.folded] = table
        if obstacle:
            self._stop(table, obstacle, position)
            return table
        names = self._places(name)
        self._steps.append(Create(table, position, names, name=name, schema=schema))
        return table

    def _places(self, *names: Name) -> tuple[tuple[str, str], ...]:
        """The names upstream, and those in the lake."""
        there = (self._routes.destination(name) for name in names)
        return tuple(dict.fromkeys(name.folded for name in (*names, *there)))

    def _obstacle(self, name: Name, but: Table | None = None) -> str:
        """Why the table cannot have in the lake the name that it is to have there, or nothing."""
        there = self._routes.destination(name)
        if there.database.lower() in (OWN_DATABASE, DROPPED_DATABASE):
            return OWN_PLACE
        for other in self._tables.values():
            is_nowhere = other.status is Status.STOPPED and not other.identifier
            if other is but or is_nowhere:
                continue
            if self._routes.destination(other.name).folded == there.folded:
                return IN_PLACE.format(other=other.name)
        return ""

    def _dropped(self, table: Table, effect: Effect, position: Position) -> None:
        """A table that the upstream has no more, or that is renamed to what is not mirrored."""
        if self._policy.keeps:
            table.gone = True
            table.diverge(f"Its rows stay ({effect.change.what}).")
        else:
            self._drop(table, position)

    def _make_room(self, effect: Effect, position: Position) -> None:
        """What was kept of a table that was dropped goes where another table gets its name."""
        kept = self._tables.get((effect.new_name or effect.name).folded)
        if kept is not None and kept.gone:
            self._drop(kept, position)

    def _drop(self, table: Table, position: Position) -> None:
        del self._tables[table.name.folded]
        self._steps.append(Drop(table, position, self._places(table.name)))

    def _rename(self, table: Table, effect: Effect, position: Position) -> None:
        assert effect.new_name is not None
        if not self._routes.wants(effect.new_name):
            self._dropped(table, effect, position)
            return
        self._make_room(effect, position)
        obstacle = self._obstacle(effect.new_name, but=table)
        if obstacle:
            self._drop(table, position)
            self._stop(self._unmirrored(effect), obstacle, position)
            return
        del self._tables[table.name.folded]
        names = self._places(table.name, effect.new_name)
        self._steps.append(Rename(table, position, names, new_name=effect.new_name))
        table.name = effect.new_name
        self._learn(table, effect)
        self._tables[table.name.folded] = table

    def _change(self, table: Table, effect: Effect, position: Position) -> None:
        change, has_own_columns = effect.change, table.upstream is not None
        if effect.kind is ChangeKind.ALTERED and change.after is not None:
            if has_own_columns or self._policy.keeps:
                found = fit(self._policy, table.schema, change.after, change.columns, change.what)
                self._fit(table, found, change.after, position)
                return
            names = self._places(table.name)
            self._steps.append(Evolve(table, position, names, before=table.schema, change=change))
        elif effect.kind in (ChangeKind.TRUNCATED, ChangeKind.PRUNED):
            if self._policy.keeps:
                table.diverge(f"Its rows stay ({change.what}).")
            elif (
                effect.kind is ChangeKind.PRUNED and has_own_columns and not table.sent.handle_key()
            ):
                # Only a key is sure to have the columns that tell a partition's rows.
                self._unmirrorable(table, effect, position)
                return
            else:
                names = self._places(table.name)
                self._steps.append(Delete(table, position, names, condition=change.removed))
        self._learn(table, effect)

    def _fit(self, table: Table, found: Fit, after: TableSchema, position: Position) -> None:
        """Gives a table with columns of its own those that the policy has for it."""
        if found.problem:
            self._stop(table, found.problem, position)
            return
        if found.change is not None:
            names = self._places(table.name)
            step = Evolve(table, position, names, before=table.schema, change=found.change)
            self._steps.append(step)
        table.schema = found.schema
        table.upstream = None if found.schema == after else after
        for reason in found.left_out:
            table.diverge(reason)

    def _unmirrorable(self, table: Table, effect: Effect, position: Position) -> None:
        reason = effect.change.reason or effect.change.what
        if self._policy.stops or table.status is Status.STOPPED:
            self._stop(table, reason, position)
        else:
            table.diverge(f"{reason} It is left out.")
            table.gone = False
            if self._book.get(*table.name) is None:  # it was dropped, and is back
                self._book.put(table.sent)
        self._learn(table, effect)

    def _learn(self, table: Table, effect: Effect) -> None:
        after, name = effect.change.after, table.name
        if table.upstream is not None:
            table.schema = replace(table.schema, database=name.database, table=name.table)
        # EXCHANGE PARTITION tells of two tables, and the schema of one.
        if after is None or Name(after.database, after.table).folded != name.folded:
            return
        after = replace(after, database=name.database, table=name.table)
        if table.upstream is None:
            table.schema = after
        else:
            table.upstream = after

    def _stop(self, table: Table, reason: str, position: Position) -> None:
        table.status, table.reason, table.since = Status.STOPPED, reason, position.ts


_SCHEMA_CHANGES = (
    ChangeKind.DROPPED,
    ChangeKind.RENAMED,
    ChangeKind.TRUNCATED,
    ChangeKind.PRUNED,
    ChangeKind.ALTERED,
    ChangeKind.UNMIRRORED,
)


def first_schema_change(
    statements: Iterable[Statement], tables: Tables, book: TableBook, routes: Routes
) -> tuple[Statement, Name] | None:
    """The first statement that changes a table that is mirrored then, and the table."""
    book = book.copy()
    mirrored = {name for name, table in tables.items() if table.status is Status.MIRRORED}
    for statement in statements:
        told = statement.id
        for effect in book.run(
            told.query, told.database, told.table or None, schemas=statement.schemas
        ):
            if effect.kind in _SCHEMA_CHANGES and effect.name.folded in mirrored:
                return statement, effect.name
            if effect.kind is ChangeKind.CREATED and routes.wants(effect.name):
                mirrored.add(effect.name.folded)
    return None
