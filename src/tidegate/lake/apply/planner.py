"""What to do to move the lake's tables from one instant to a later one: steps, in order, no I/O.

Rows of a table are applied in one step up to the next statement that touches it. Steps on different
tables may run at once; a step waits for all earlier ones that name the same table.

What a statement is to do to a table is for the `policy` to say. Where the mirror has then other
columns than the upstream, both schemas are carried on, and rows are fitted to the mirror's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from itertools import pairwise

from tidegate.changefeed.receive.topic_use import FeedTopics
from tidegate.lake.apply.policy import Fit, Policy, by_name, fit
from tidegate.lake.apply.rows import Layout
from tidegate.lake.changelog.changelog import Group
from tidegate.lake.formats.base import (
    DROPPED_DATABASE,
    LOADING_DATABASE,
    OWN_DATABASE,
    Position,
)
from tidegate.lake.routes import Routes
from tidegate.model import EventFlag, TableSchema
from tidegate.sql.ddl import ChangeKind, TableChange
from tidegate.sql.ddl_names import DdlId
from tidegate.sql.tables import Effect, Name, TableBook

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
ROWS_BEFORE_RENAME = (
    "Its rows arrived before the RENAME of {other}, which gave it its name. Mirror the feed again, "
    "into another lake."
)
NOT_FROM_START = (
    "The feed does not have its CREATE TABLE, so rows from before the feed are missing."
)
NO_WHOLE_ROW = "Its columns are not known: the feed has neither its CREATE nor a whole row."
COUNTED_AGAIN = (
    "It has no key, and the feed has no watermarks: a row that TiCDC sends again is counted again."
)
OLDER_KEY = (
    "Its rows arrived before its CREATE TABLE, which says that it has another key. Mirror the feed "
    "again, into another lake."
)
OLDER_ROWS = (
    "Rows from before {query} arrived after it, and the feed has no watermarks that would tell "
    "what they mean now. Mirror the feed again, into another lake."
)
NEWER_ROWS = (
    "Rows from after {query} arrived before it, and the feed has no watermarks that would tell "
    "what it means for them. Mirror the feed again, into another lake."
)

LACKED = "Rows of that instant were read only later. They are in the table at {until} and after it."

MOST_REASONS = 8
"""How many reasons are kept of why a table is not as its upstream."""


class Status(Enum):
    """Whether a table follows the feed."""

    MIRRORED = "mirrored"
    STOPPED = "stopped"  # what the feed says of it cannot be mirrored


class State(StrEnum):
    """What a table promises its readers; docs/guarantees.md has one row for each."""

    MIRRORED = "mirrored"  # equal to the upstream at every snapshot
    EVENTUAL = "eventual"  # equal once the feed is quiet
    DIVERGED = "diverged"  # differs in the ways that its reasons name
    INCOMPLETE = "incomplete"  # lacks rows that were there before the feed began
    STOPPED = "stopped"  # no longer follows the feed


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
    """Why the table is not exactly its upstream, in sentences."""
    guessed: bool = False
    """Whether a value had to be guessed; otherwise the user's policy has made it diverge."""
    missing: str = ""
    """Why rows from before the feed are missing; empty if none are."""
    gone: bool = False
    """Whether the upstream has dropped the table, and the policy keeps it."""
    lacked: tuple[int, int] | None = None
    """From which instant up to which, that one excluded, recorded versions lack what came late."""

    @property
    def sent(self) -> TableSchema:
        """The schema of the rows that the feed sends."""
        return self.upstream or self.schema

    def stop(self, reason: str, since: int) -> None:
        """Says that the table no longer follows the feed."""
        self.status, self.reason, self.since = Status.STOPPED, reason, since

    def diverge(self, reason: str, *, guessed: bool = False) -> None:
        """Says that the table is no longer exact, by the policy or because a value is a guess."""
        self.guessed = self.guessed or guessed
        if reason not in self.diverged and len(self.diverged) < MOST_REASONS:
            self.diverged = (*self.diverged, reason)

    def state(self, eventual: bool = False) -> State:
        """What the table promises; `eventual` says that its feed has no watermarks."""
        if self.status is Status.STOPPED:
            return State.STOPPED
        if self.guessed:
            return State.DIVERGED
        if self.missing:
            return State.INCOMPLETE
        if self.diverged:
            return State.DIVERGED
        return State.EVENTUAL if eventual or self.eventual else State.MIRRORED

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the table may differ from its upstream, in sentences; the gravest first."""
        return tuple(filter(None, (self.reason, self.missing, *self.diverged)))

    @property
    def is_exact(self) -> bool:
        """Whether the table holds what the feed and the user's policy make of it, and no less."""
        return self.status is Status.MIRRORED and not self.missing and not self.guessed

    def lack(self, first: int, until: int) -> None:
        """Says that versions since an instant lack what has come only now."""
        since = first if self.lacked is None else min(first, self.lacked[0])
        self.lacked = since, until

    def lacked_at(self, ts: int | None) -> str:
        """What the version of an instant lacks, as a sentence, or nothing; None is now."""
        if ts is None or self.lacked is None or not self.lacked[0] <= ts < self.lacked[1]:
            return ""
        return LACKED


@dataclass(frozen=True, slots=True)
class Statement:
    """A DDL of the feed that is to be done: what it says, and where a table stands after it.

    The position before it, one `ddl` less, is for the rows that go before it. `schemas` is what the
    feed tells beside it of the table's schemas, as JSON, and `topic` where it came by.
    """

    id: DdlId
    position: Position
    schemas: str | None = None
    topic: str | None = None

    @property
    def commit_ts(self) -> int:
        """When it was committed."""
        return self.id.commit_ts


class PastKind(StrEnum):
    """What a statement that was carried out means for rows from before it."""

    EMPTIED = "emptied"  # they are gone
    RENAMED = "renamed"  # they belong to the table's new name
    CHANGED = "changed"  # what they are now is not known


@dataclass(frozen=True, slots=True)
class PastEffect:
    """What an earlier statement did to a table of a feed without watermarks.

    Rows from before it may still arrive: TiCDC sends them again, or another partition is behind.
    """

    commit_ts: int
    kind: PastKind
    name: Name
    new_name: Name | None = None
    what: str = ""


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
        unsupported: Callable[[TableSchema], str] = lambda schema: "",
        zone: str = "UTC",
        in_commit_order: bool = True,
        applied: Iterable[Group] = (),
        topics: FeedTopics | None = None,
        overtaken: Callable[[Name, int], bool] = lambda name, ts: False,
    ) -> None:
        """`completes` says that rows of which only the key came can be asked for.

        `unsupported` says why the lake cannot hold a table with such columns, or nothing.
        `in_commit_order` is False for a feed without watermarks. `applied` are the rows of the
        last instant that were applied in time; late copies of them are found by comparison.
        `topics` is what the changefeed says about its topics. `overtaken` says whether rows of a
        name from after an instant were applied by earlier steps; only a feed without watermarks
        has such.
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
        self._unsupported = unsupported
        self._zone = zone
        self._in_commit_order = in_commit_order
        self._applied = tuple(applied)
        self._topics = topics or FeedTopics()
        self._overtaken = overtaken
        self._steps: list[Step] = []
        self._pending: dict[tuple[str, str], list[Group]] = {}
        self._segments: dict[Name, set[int]] = {}
        self.touched: dict[Name, int] = {}
        """The tables that statements touched, by all their names, and when the last one did."""
        self.past: list[PastEffect] = []
        """What the statements mean for rows from before them that arrive later."""

    def loaded(self, schemas: Iterable[TableSchema]) -> list[Create]:
        """The tables that a load fills; one that the lake cannot hold is stopped and not made."""
        for schema in schemas:
            name = Name(schema.database, schema.table)
            if self._routes.wants(name):
                self._book.put(schema)
                self._create(name, schema, self._target)
        return [step for step in self._steps if isinstance(step, Create)]

    def refuse(self, name: Name, reason: str) -> None:
        """Notes a table that is there upstream and cannot be mirrored."""
        schema = TableSchema(database=name.database, table=name.table)
        table = self._tables[name.folded] = Table(name, schema)
        self._stop(table, reason, self._target)

    def plan(
        self, statements: Sequence[Statement | PastEffect], groups: Iterable[Group]
    ) -> list[Step]:
        """Statement n cuts segment n from segment n + 1.

        A past effect does nothing to tables: it says what becomes of the rows from before it.
        """
        statements = list(statements)
        by_segment: dict[int, list[Group]] = {}
        for group in groups:
            by_segment.setdefault(group.segment, []).append(group)
            name = Name(group.database, group.table)
            self._segments.setdefault(name, set()).add(group.segment)
        for segment in range(len(statements) + 1):
            for group in by_segment.get(segment, ()):
                name = Name(group.database, group.table)
                if self._routes.wants(name):
                    self._pending.setdefault(name.folded, []).append(group)
            if segment < len(statements):
                self._arrange(statements, segment)
                each = statements[segment]
                if isinstance(each, PastEffect):
                    self._pass(each, statements[segment + 1 :])
                else:
                    self._statement(each)
        for folded in sorted(self._pending):
            self._flush(folded, self._target)
        return self._lasting()

    def _lasting(self) -> list[Step]:
        """The steps without those of tables that come and go within them: nobody sees these.

        In a catalog that forgets what was dropped, they could not be repeated after a crash.
        """
        made, gone = (
            {id(step.table) for step in self._steps if isinstance(step, kind)}
            for kind in (Create, Drop)
        )
        return [step for step in self._steps if id(step.table) not in made & gone]

    def _arrange(self, statements: list[Statement | PastEffect], first: int) -> None:
        """Orders the statements of one commit_ts, from `first` on, by what they depend on."""
        ts = statements[first].commit_ts
        if first and statements[first - 1].commit_ts == ts:
            return
        run = []
        for each in statements[first:]:
            if isinstance(each, PastEffect) or each.commit_ts != ts:
                break
            run.append(each)
        if len(run) < 2:
            return
        positions = [each.position for each in run]
        there = [*self._there(), *(Name(*folded) for folded in self._pending)]
        arranged = self._book.arrange(run, lambda each: each.id, there, lambda each: each.topic)
        statements[first : first + len(run)] = [
            replace(each, position=position)
            for each, position in zip(arranged, positions, strict=True)
        ]

    def _pass(self, past: PastEffect, later: Sequence[Statement | PastEffect]) -> None:
        """Sends rows where a statement that was carried out earlier has sent their table."""
        groups = self._pending.pop(past.name.folded, [])
        if not groups or past.kind is PastKind.EMPTIED:
            return
        if past.new_name is not None:
            self._pending.setdefault(past.new_name.folded, []).extend(groups)
            return
        table = self._heir(past.name, later)
        if table is not None and table.status is Status.MIRRORED:
            self._stop(table, OLDER_ROWS.format(query=past.what), self._target)

    def _heir(self, name: Name, later: Sequence[Statement | PastEffect]) -> Table | None:
        """The table that had a name before later effects; None if it was emptied or dropped."""
        for each in later:
            if isinstance(each, PastEffect) and each.name.folded == name.folded:
                if each.kind is PastKind.EMPTIED:
                    return None
                name = each.new_name or name
        return self._tables.get(name.folded)

    # --- rows -------------------------------------------------------------------------------------

    def _flush(self, folded: tuple[str, str], position: Position) -> None:
        groups = self._pending.pop(folded, [])
        if not groups:
            return
        known = self._tables.get(folded)
        table = known or self._unknown(folded, groups)
        if table is None or table.status is Status.STOPPED:
            return
        self._follow_key(table, groups)
        if not self._in_commit_order and not table.sent.handle_key():
            table.diverge(COUNTED_AGAIN, guessed=True)
        problem = self._misfit(table, groups if known else self._since_first_row(groups))
        if problem:
            self._stop(table, problem, position)
            return
        for number, together in enumerate(self._together(groups)):
            # Each has a position of its own: a crash may leave some of them done.
            at = position._replace(mended=position.mended + number)
            name = Name(together[0].database, together[0].table)
            self._steps.append(self._rows(table, name, together, at))

    def _together(self, groups: Sequence[Group]) -> list[list[Group]]:
        """The rows of a table in parts that one step can read: one name, and no gap in time.

        There are several only without watermarks: rows that arrive after a RENAME have the name
        from before it, and in between that name may have been another table's.
        """
        by_name: dict[Name, list[Group]] = {}
        for group in groups:
            by_name.setdefault(Name(group.database, group.table), []).append(group)
        parts = []
        for name, of_name in by_name.items():
            of_name.sort(key=lambda group: group.segment)
            parts.append(of_name[:1])
            for before, group in pairwise(of_name):
                between = range(before.segment + 1, group.segment)
                if self._segments[name].isdisjoint(between):
                    parts[-1].append(group)
                else:
                    parts.append([group])
        return parts

    def _rows(self, table: Table, name: Name, groups: Sequence[Group], position: Position) -> Rows:
        late = any(group.late for group in groups)
        applied = [each for each in self._applied if (each.database, each.table) == name]
        layouts = {
            (group.shape, group.schema_version) for group in (*groups, *(applied if late else ()))
        }
        return Rows(
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
            late=late,
            moves=any(self._may_move(table, group) for group in groups),
            count=sum(group.rows for group in groups),
            incomplete=any(group.partial and self._lacking(table, group) for group in groups),
        )

    def _may_move(self, table: Table, group: Group) -> bool:
        """Whether an update may take a row to another key: seen, or not to be seen on the wire.

        Nothing is seen where the wire's key is not the one that the table is kept by.
        """
        if group.moved or group.kind != "update":
            return group.moved
        return set(self._keyed.get(group.shape, ())) != set(table.sent.handle_key())

    def _since_first_row(self, groups: list[Group]) -> list[Group]:
        """Without deletes from before the first row of a table that is not known yet.

        They may lack columns that the row has, and find nothing to delete.
        """
        if not self._in_commit_order:
            return groups
        first = min((group.first_ts for group in groups if group.kind != "delete"), default=0)
        return [group for group in groups if group.kind != "delete" or group.last_ts >= first]

    def _unknown(self, folded: tuple[str, str], groups: Sequence[Group]) -> Table | None:
        """A table whose CREATE the feed did not bring: its first row says what it is.

        Deletes say nothing: they may have only a key, and there is nothing to delete yet.
        """
        first = min(
            (group for group in groups if group.kind != "delete"),
            key=lambda group: (group.first_ts, bool(group.partial)),
            default=None,
        )
        if first is None:
            return None
        schema = self._schemas[first.shape, first.schema_version]
        name, start = Name(schema.database, schema.table), Position(self._start(groups))
        if name.folded != folded:  # it was renamed, and the rows are from before that
            name = Name(*folded)
            schema = replace(schema, database=name.database, table=name.table)
        if first.partial and schema.column_names == self._names(first):
            table = self._tables[name.folded] = Table(name, schema)
            self._stop(table, NO_WHOLE_ROW, start)
            return table
        self._book.put(schema)
        table = self._create(name, schema, start)
        table.missing = NOT_FROM_START
        return table

    def _follow_key(self, table: Table, groups: Sequence[Group]) -> None:
        """Takes the key from the rows where no statement gives it.

        A table that was first seen in its rows has indexes without names, so that a statement that
        drops one cannot be followed. Rows of Open and Craft flag the columns of the key.
        """
        if not table.missing or table.upstream is not None:
            return
        last = max(
            (group for group in groups if group.kind != "delete" and not group.partial),
            key=lambda group: group.first_ts,
            default=None,
        )
        schema = None if last is None else self._schemas.get((last.shape, last.schema_version))
        if schema is None or any(column.flags is None for column in schema.columns):
            return
        if schema.handle_key() != table.schema.handle_key() and set(schema.carried_names) == set(
            table.schema.carried_names
        ):
            # Rows may list the columns in another order; the table keeps its own.
            sent = {column.name: column for column in schema.columns}
            columns = tuple(sent.get(each.name, each) for each in table.schema.columns)
            table.schema = replace(table.schema, columns=columns, indexes=schema.indexes)
            self._book.put(table.schema)

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
        said = statement.id
        # Rows before it may be all that tells a table's schema, so they go first.
        for folded in self._pending_of(statement):
            self._flush(folded, self._before(statement.position))
        for effect in self._book.run(
            said.query,
            said.database,
            said.table or None,
            self._there(),
            schemas=statement.schemas,
            commit_ts=said.commit_ts,
            zone=self._zone,
            may_come_from=self._topics.origins(statement.topic),
        ):
            for name in filter(None, (effect.name, effect.new_name)):
                self.touched[name] = said.commit_ts
            self._remember(effect, said)
            if self._routes.wants(effect.name):
                if effect.kind in _PAST_KINDS and self._overtaken(effect.name, said.commit_ts):
                    self._stop_overtaken(effect, statement.position)
                else:
                    self._effect(effect, statement.position)
            elif effect.new_name is not None and self._routes.wants(effect.new_name):
                self._come_in(effect, statement.position)

    def _stop_overtaken(self, effect: Effect, position: Position) -> None:
        """Stops the tables of a statement that rows from after it have overtaken.

        A dropped table stays, stopped: the rows were those of the next one with its name.
        """
        reason = NEWER_ROWS.format(query=effect.change.what)
        self._pending.pop(effect.name.folded, None)
        table = self._tables.get(effect.name.folded)
        if table is not None:
            self._stop(table, reason, position)
        if effect.new_name is not None and self._routes.wants(effect.new_name):
            self._clear(effect.new_name, position)
            self._stop(self._unmirrored(effect), reason, position)

    def _clear(self, name: Name, position: Position) -> None:
        """Drops what has a name that another table gets."""
        table = self._tables.get(name.folded)
        if table is not None:
            self._drop(table, position)

    def _there(self) -> list[Name]:
        return [table.name for table in self._tables.values() if not table.gone]

    def _before(self, position: Position) -> Position:
        """Rows at a statement's own commit_ts go before it."""
        return Position(position.ts, position.ddl - 1)

    def _pending_of(self, statement: Statement) -> list[tuple[str, str]]:
        """The tables with rows before a statement that concerns them."""
        if not self._pending:
            return []
        said = statement.id
        there = [*self._there(), *(Name(*folded) for folded in self._pending)]
        names = self._book.names_of(
            said.query, said.database, said.table or None, there, schemas=statement.schemas
        )
        concerned = {name.folded for name in names}
        return sorted(folded for folded in self._pending if folded in concerned)

    def _remember(self, effect: Effect, said: DdlId) -> None:
        kind = _PAST_KINDS.get(effect.kind)
        if kind is not None:
            past = PastEffect(
                said.commit_ts, kind, effect.name, effect.new_name, effect.change.what
            )
            self.past.append(past)

    def _effect(self, effect: Effect, position: Position) -> None:
        folded = effect.name.folded
        self._flush(folded, self._before(position))
        table = self._tables.get(folded)
        if effect.kind is ChangeKind.CREATED:
            self._created(table, effect, position)
        elif table is None:
            self._unknown_changed(effect, position)
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

    def _unknown_changed(self, effect: Effect, position: Position) -> None:
        """A statement about a table that is not here: its first row will say what it is then."""
        if effect.kind is ChangeKind.UNMIRRORED and not effect.change.lacks_schema:
            self._stop(self._unmirrored(effect), effect.change.reason or "", position)

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
        is_stopped = table is not None and table.status is Status.STOPPED
        if is_stopped and not self._in_commit_order:
            return  # what was dropped is not here: rows of this very table arrived before it
        if table is not None and (is_stopped or (table.gone and not self._policy.keeps)):
            self._drop(table, position)
            table = None
        elif table is not None and table.missing:
            table = self._created_again(table, effect, position)
        if after is None:
            return
        if table is None:
            self._book.put(after)
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

    def _created_again(self, table: Table, effect: Effect, position: Position) -> Table | None:
        """The CREATE of a table whose rows came first; the table that stays, or None.

        In a feed with watermarks the rows are those of an earlier table of that name. Without
        them, another partition may have been behind: then the rows are this table's.
        """
        after = effect.change.after
        if self._in_commit_order or after is None:
            self._drop(table, position)
            return None
        if after.handle_key() != table.schema.handle_key():
            self._stop(table, OLDER_KEY, position)
            return table
        change = replace(effect.change, columns=tuple(by_name(table.schema, after)))
        names = self._places(table.name)
        self._steps.append(Evolve(table, position, names, before=table.schema, change=change))
        table.schema, table.missing = after, ""
        self._book.put(after)  # so that later statements do not begin with what the rows told
        return table

    def _create(self, name: Name, schema: TableSchema, position: Position) -> Table:
        table = Table(name, schema)
        obstacle = self._obstacle(name) or self._unsupported(schema)
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
        if there.database.lower() in (OWN_DATABASE, DROPPED_DATABASE, LOADING_DATABASE):
            return OWN_PLACE
        for other in self._tables.values():
            if other is but or self._is_nowhere(other):
                continue
            if self._routes.destination(other.name).folded == there.folded:
                return IN_PLACE.format(other=other.name)
        return ""

    def _is_nowhere(self, table: Table) -> bool:
        """Whether a stopped table has no place in the lake, nor gets one by an earlier step."""
        if table.status is not Status.STOPPED or table.identifier:
            return False
        return not any(isinstance(step, Create) and step.table is table for step in self._steps)

    def _dropped(self, table: Table, effect: Effect, position: Position) -> None:
        """A table that the upstream has no more, or that is renamed to what is not mirrored."""
        if self._policy.keeps:
            table.gone = True
            table.diverge(f"Its rows stay ({effect.change.what}).")
        else:
            self._drop(table, position)

    def _make_room(self, effect: Effect, position: Position) -> None:
        """What was kept of a table that was dropped goes where another table gets its name.

        So does a stopped table: the upstream has no table of that name any more. Without watermarks
        its rows may be those of the table that gets the name.
        """
        kept = self._tables.get((effect.new_name or effect.name).folded)
        if kept is None or kept.name.folded == effect.name.folded:
            return
        if kept.gone or (kept.status is Status.STOPPED and self._in_commit_order):
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
            if effect.new_name.folded in self._tables:
                obstacle = ROWS_BEFORE_RENAME.format(other=effect.name)
                self._clear(effect.new_name, position)
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
        for guess in change.guesses:
            table.diverge(guess, guessed=True)
        if effect.kind is ChangeKind.ALTERED and change.after is not None:
            if has_own_columns or self._policy.keeps:
                found = fit(self._policy, table.schema, change.after, change.columns, change.what)
                self._fit(table, found, change.after, position)
                return
            problem = self._unsupported(change.after)
            if problem:
                self._stop(table, problem, position)
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
                if effect.kind is ChangeKind.TRUNCATED:
                    table.missing = ""  # no row from before the feed is left upstream
        self._learn(table, effect)

    def _fit(self, table: Table, found: Fit, after: TableSchema, position: Position) -> None:
        """Gives a table with columns of its own those that the policy has for it."""
        problem = found.problem or self._unsupported(found.schema)
        if problem:
            self._stop(table, problem, position)
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
        if table.status is Status.STOPPED:
            pass  # the first reason stays: this statement may be unclear only because of it
        elif self._policy.stops:
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
        table.stop(reason, position.ts)


_PAST_KINDS = {
    ChangeKind.DROPPED: PastKind.EMPTIED,
    ChangeKind.TRUNCATED: PastKind.EMPTIED,
    ChangeKind.RENAMED: PastKind.RENAMED,
    ChangeKind.ALTERED: PastKind.CHANGED,
    ChangeKind.PRUNED: PastKind.CHANGED,
}
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
