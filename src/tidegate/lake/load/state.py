"""What a lake knows after a load at the instant T: the first state of its mirror.

Every table that is selected is there as of T, so `applied_ts` starts at T and the gate passes over
all changes and statements with commit_ts ≤ T, whatever names the tables had then. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.changefeed.receive.gate import Gate
from tidegate.lake.apply.plan.steps import Create
from tidegate.lake.apply.plan.tables import Tables
from tidegate.lake.apply.planner import Planner
from tidegate.lake.formats.base import Position
from tidegate.lake.record import MirrorState
from tidegate.lake.routes import Routes
from tidegate.model import TableSchema
from tidegate.model.tso import LOGICAL_BITS
from tidegate.sql.definition import Charset
from tidegate.sql.tables import Name, TableBook

NOT_SENT = (
    "It has no key, and TiCDC sends changes of such tables only with force-replicate = true: if "
    "the changefeed has that, name its settings with --changefeed and load again."
)
STEP = 1
"""The number of the step that an initial load is."""


def last_before(ts: int) -> int:
    """The last instant of the millisecond before the one of `ts`."""
    return (ts >> LOGICAL_BITS << LOGICAL_BITS) - 1


def covered_ts(ts: int, *, watermarks: bool) -> int:
    """Up to which commit_ts of a feed everything is in a load at `ts`.

    A feed without watermarks tells only the millisecond of a change. What it sends of the
    millisecond of `ts` may be later, so it is applied again: that is right in the end.
    """
    if watermarks or last_before(ts + 1) == ts:
        return ts
    return last_before(ts)


def load_position(ts: int, *, watermarks: bool) -> Position:
    """Where tables stand that a load at `ts` makes; without watermarks steps are counted."""
    return Position(ts if watermarks else STEP)


@dataclass(frozen=True, slots=True)
class LoadedTables:
    """What an instant of the upstream has.

    `unreadable` are tables whose definition cannot be followed, with the reason. `databases` are
    those all of whose tables are in `schemas`.
    """

    schemas: tuple[TableSchema, ...]
    unreadable: Mapping[Name, str] = field(default_factory=dict)
    databases: Mapping[str, Charset | None] = field(default_factory=dict)

    def without(self, is_left_out: Callable[[Name], bool]) -> LoadedTables:
        """The same without some tables."""
        kept = [each for each in self.schemas if not is_left_out(Name(each.database, each.table))]
        unreadable = {name: why for name, why in self.unreadable.items() if not is_left_out(name)}
        return replace(self, schemas=tuple(kept), unreadable=unreadable)


@dataclass(slots=True)
class FirstState:
    """The state of a mirror after an initial load, and the tables that are to be filled for it."""

    state: MirrorState
    creates: list[Create]

    @classmethod
    def of(
        cls,
        loaded: LoadedTables,
        ts: int,
        *,
        watermarks: bool,
        feed: Mapping[str, Any],
        routes: Routes | None = None,
        unsupported: Callable[[TableSchema], str] = lambda schema: "",
        sends_keyless: bool = True,
    ) -> FirstState:
        """The tables of `loaded` that the routes select, as of `ts`."""
        routes = routes or Routes()
        gate = Gate(watermarks=watermarks)
        gate.mark_loaded(covered_ts(ts, watermarks=watermarks))
        tables: Tables = {}
        book = _book(loaded, routes)
        position = load_position(ts, watermarks=watermarks)
        planner = Planner(tables, book, {}, {}, position, routes=routes, unsupported=unsupported)
        creates = planner.loaded(loaded.schemas)
        for step in creates:
            if not sends_keyless and not step.schema.handle_key():
                step.table.diverge(NOT_SENT, guessed=True)
        for name, reason in loaded.unreadable.items():
            if routes.wants(name):
                planner.refuse(name, reason)
        state = MirrorState(gate=gate, book=book, tables=tables, step=STEP, feed=dict(feed))
        return cls(state, creates)


def _book(loaded: LoadedTables, routes: Routes) -> TableBook:
    book = TableBook()
    for database, charset in loaded.databases.items():
        if routes.rules:  # tables that are not selected are not known
            book.put_charset(database, charset)
        else:
            book.put_database(database, charset)
    return book
