"""Where tables get their place in the lake, or lose it: what all planning is built on.

A table cannot have the name of another one, nor be in a database that is the lake's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tidegate.changefeed.receive.topic_use import FeedTopics
from tidegate.lake.apply.plan.steps import Create, Drop, PastEffect, Step
from tidegate.lake.apply.plan.tables import Status, Table, Tables
from tidegate.lake.apply.policy import Policy
from tidegate.lake.changelog.changelog import Group
from tidegate.lake.formats.base import DROPPED_DATABASE, LOADING_DATABASE, OWN_DATABASE, Position
from tidegate.lake.routes import Routes
from tidegate.model import TableSchema
from tidegate.sql.tables import Name, TableBook

OWN_PLACE = (
    "The lake keeps its own tables in a database of that name: mirror it, renamed, into another "
    "lake (--rename)."
)
IN_PLACE = "Renamed in the lake, it is in the place of {other}."


class TablePlanning:
    """What is known while a plan is made, and the steps so far.

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

    def _there(self) -> list[Name]:
        return [table.name for table in self._tables.values() if not table.gone]

    def _before(self, position: Position) -> Position:
        """Rows at a statement's own commit_ts go before it."""
        return Position(position.ts, position.ddl - 1)

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

    def _drop(self, table: Table, position: Position) -> None:
        del self._tables[table.name.folded]
        self._steps.append(Drop(table, position, self._places(table.name)))

    def _clear(self, name: Name, position: Position) -> None:
        """Drops what has a name that another table gets."""
        table = self._tables.get(name.folded)
        if table is not None:
            self._drop(table, position)

    def _stop(self, table: Table, reason: str, position: Position) -> None:
        table.stop(reason, position.ts)
