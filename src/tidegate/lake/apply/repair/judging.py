"""Decides what late events mean for tables: which are repaired, and which are stopped.

The last change of a key decides what a table holds. So the keys that late rows touch are looked up
again in the changelog, which has all later changes too, and get the row of the last one. Where that
is not possible (no key, a statement in between, a late statement, changes that have expired) the
table is stopped with the reason. No I/O here: `LateRepair` carries it out.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from tidegate.lake.apply.plan.tables import Status, Table, Tables
from tidegate.lake.routes import Routes
from tidegate.model import TableSchema
from tidegate.sql.ddl import ChangeKind
from tidegate.sql.ddl_names import DdlId
from tidegate.sql.tables import Effect, Name, TableBook

_HOW = "could be read only when the table had gone past it"
_AGAIN = "Mirror the feed again, into another lake."
NO_KEY = f"A message with its rows {_HOW}, and it has no key by which to repair them. {_AGAIN}"
CHANGED = f"A message with its rows {_HOW}, and since then there was {{query}}. {_AGAIN}"
FORGOTTEN = f"A message with its rows {_HOW}, and later changes have expired. {_AGAIN}"
NO_SCHEMA = f"A message with its rows {_HOW}, and their schema is not known any more. {_AGAIN}"
STATEMENT = f"A message with a statement {_HOW}: {{query}}. {_AGAIN}"

_SHOWN = 200
_EMPTIED = (ChangeKind.DROPPED, ChangeKind.TRUNCATED)
_GONE = (ChangeKind.DROPPED,)
_ORIGINS = (ChangeKind.CREATED, ChangeKind.RENAMED)
_LEFT = (ChangeKind.DROPPED, ChangeKind.RENAMED)
_HARMLESS = (ChangeKind.CREATED, ChangeKind.UNCHANGED)


class Done(NamedTuple):
    """What a statement did to a table."""

    statement: DdlId
    effect: Effect


def effects_of(
    statements: Iterable[DdlId], book: TableBook, others: Iterable[Name] = ()
) -> list[Done]:
    """What statements did that were carried out earlier, in their order.

    The book is the current one, and `others` are tables that existed then. Keys are left out of the
    book: an index that a statement adds exists now, and adding it twice could not be followed.
    """
    found = []
    plain, names = book.copy(), list(others)
    for schema in book:
        plain.put(replace(schema, indexes=()))
    for _, of_one_time in groupby(statements, key=attrgetter("commit_ts")):
        # Which tables were there then is not known.
        for told in TableBook().arrange(list(of_one_time), lambda ddl: ddl):
            effects = plain.copy().run(
                told.query, told.database, told.table or None, names, commit_ts=told.commit_ts
            )
            found += [Done(told, effect) for effect in effects]
    return found


class Followed(NamedTuple):
    """A table that late changes are of: its name now, when they were, and what changed it since.

    The last is the text of a statement, or nothing.
    """

    name: Name
    times: Sequence[int]
    changed: str


def follow(
    name: Name,
    times: Sequence[int],
    done: Sequence[Done],
    ends: Container[ChangeKind] = _EMPTIED,
    changed: str = "",
) -> Iterator[Followed]:
    """Which tables have the late changes that were made at these `times` under this name.

    Those before a statement that `ends` them are of no account; changes at its own commit_ts were
    before it.
    """
    for number, (statement, effect) in enumerate(done):
        before = [each for each in times if each <= statement.commit_ts]
        if effect.name.folded != name.folded or not before:
            continue
        after = [each for each in times if each > statement.commit_ts]
        if effect.kind in ends:
            times, changed = after, ""
        elif effect.new_name is not None:
            later = done[number + 1 :]
            yield from follow(effect.new_name, before, later, ends, statement.query)
            times, changed = after, ""
        elif effect.kind not in _HARMLESS:
            changed = statement.query
    if times:
        yield Followed(name, times, changed)


@dataclass(slots=True)
class Judgement:
    """What is to be done about late changes, given one table and one statement at a time.

    `history` is what statements did since the first of them, in their order, including those that
    are `late` themselves. Tables that cannot be repaired are stopped in `tables`.
    """

    tables: Tables
    book: TableBook
    routes: Routes
    history: Sequence[Done]
    kept_since: int
    applied_ts: int
    late: frozenset[DdlId] = frozenset()
    since: dict[Name, int] = field(default_factory=dict)
    """The tables to repair, with the commit_ts of their first late rows."""
    stopped: list[Name] = field(default_factory=list)
    created: list[DdlId] = field(default_factory=list)
    """The late statements that can be carried out now: what they create does not exist yet, what
    they drop is what they found."""
    _made: set[tuple[str, str]] = field(default_factory=set)

    @property
    def done(self) -> list[Done]:
        """What was applied in time."""
        return [each for each in self.history if each.statement not in self.late]

    def statement(self, told: DdlId) -> None:
        """A late statement: the tables that it touched are stopped, if they are still there.

        A table that it made, and of which nothing else has come, is made now; later statements
        about that table follow it.
        """
        later = [each for each in self.done if each.statement.commit_ts >= told.commit_ts]
        effects = [each.effect for each in effects_of([told], self.book)]
        for effect in effects:
            if effect.name.folded in self._made:
                self._follow_made(told, effect)
            elif len(effects) == 1 and self._still_drops(effect, later):
                self.created.append(told)
            elif effect.kind is not ChangeKind.UNCHANGED:
                self._touched(told, effect, later)

    def _still_drops(self, effect: Effect, later: Sequence[Done]) -> bool:
        """Whether a late DROP TABLE finds the table that it found upstream."""
        is_there = effect.name.folded in self.tables
        return effect.kind is ChangeKind.DROPPED and is_there and _is_last(effect, later)

    def _follow_made(self, told: DdlId, effect: Effect) -> None:
        if told not in self.created:
            self.created.append(told)
        if effect.kind is ChangeKind.DROPPED or effect.new_name is not None:
            self._made.discard(effect.name.folded)
        if effect.new_name is not None:
            self._made.add(effect.new_name.folded)

    def _touched(self, told: DdlId, effect: Effect, later: Sequence[Done]) -> None:
        if effect.kind is ChangeKind.CREATED and self._makes(told, effect, later):
            return
        # The table may have got another name since by a statement that is late as well.
        after, history = effect.change.after, self._history_after(told)
        made = {(effect.new_name or effect.name).folded: after if effect.kind in _ORIGINS else None}
        for name in filter(None, (effect.name, effect.new_name)):
            for found in follow(name, [told.commit_ts], history, _GONE):
                reason = STATEMENT.format(query=_shown(told.query))
                self.stop(found.name, reason, told.commit_ts, made.get(name.folded))
                self._tell_origin(found.name, effect)
        if effect.kind in _LEFT and _is_last(effect, later):
            self._leave(effect.name)

    def _makes(self, told: DdlId, effect: Effect, later: Sequence[Done]) -> bool:
        """Whether a late CREATE TABLE can be carried out now, or made a table that is gone."""
        for found in follow(effect.name, [told.commit_ts], later, _GONE):
            if effect.change.after is None or found.changed or found.name.folded in self.tables:
                return False
            self.created.append(told)
            self._made.add(found.name.folded)
        return True

    def _history_after(self, told: DdlId) -> Sequence[Done]:
        """What statements did after a late one, which need not be among them itself."""
        places = [
            place
            for place, each in enumerate(self.history, 1)
            if each.statement == told or each.statement.commit_ts < told.commit_ts
        ]
        return self.history[max(places, default=0) :]

    def _tell_origin(self, name: Name, effect: Effect) -> None:
        """Notes that the feed does say where a table is from."""
        table = self.tables.get(name.folded)
        if table is not None and effect.kind in _ORIGINS:
            table.missing = ""

    def _leave(self, name: Name) -> None:
        """Notes that the upstream has no table of that name: none sends rows or watermarks."""
        table = self.tables.get(name.folded)
        if table is not None:
            table.gone = True
        self.book.remove(name)

    def rows(self, name: Name, times: Sequence[int]) -> None:
        """Late rows of a table, by the name it had then and their commit_ts."""
        for found in follow(name, times, self.done):
            table, first = self.tables.get(found.name.folded), min(found.times)
            if first < self.kept_since:
                self.stop(found.name, FORGOTTEN, first)
            elif found.changed:
                self.stop(found.name, CHANGED.format(query=_shown(found.changed)), first)
            elif table is not None and not table.schema.handle_key():
                self.stop(found.name, NO_KEY, first)
            elif self.routes.wants(name) and (table is None or table.status is Status.MIRRORED):
                self.since[name] = first

    def stop(self, name: Name, reason: str, first: int, made: TableSchema | None = None) -> None:
        """Stops a table if it is mirrored; or, if it was `made` by what is late, names it.

        `first` is the commit_ts of the first late change.
        """
        table = self.tables.get(name.folded)
        if table is None and made is not None and self.routes.wants(name):
            table = self.tables[name.folded] = Table(name, made)
        if table is not None and table.status is Status.MIRRORED:
            table.lack(first, self.applied_ts)
            table.stop(reason, self.applied_ts)
            self.stopped.append(name)


def _is_last(effect: Effect, later: Iterable[Done]) -> bool:
    """Whether no later statement is about the name that a table had."""
    name = effect.name.folded
    names = (each for _, other in later for each in (other.name, other.new_name))
    return all(each is None or each.folded != name for each in names)


def _shown(query: str) -> str:
    return query if len(query) <= _SHOWN else f"{query[:_SHOWN]}…"
