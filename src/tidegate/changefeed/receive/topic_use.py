"""Which topics of a feed are in use: TiCDC sends watermarks to the topics of existing tables only.

A statement that drops or renames the last table of a topic retires that topic: no watermark comes
by it again until another table dispatches to it. The default topic of the sink is always in use.
No I/O; the result lives in the gate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from tidegate.sql.ddl import ChangeKind
from tidegate.sql.ddl_names import ddl_id, plain_change
from tidegate.sql.tables import Effect, Name, TableBook

Folded = tuple[str, str]

_RECOVERED = re.compile(r"\s*(?:RECOVER|FLASHBACK)\s+TABLE\b", re.IGNORECASE)
_TEMPORARY = re.compile(r"\s*CREATE\s+(?:\w+\s+)?TEMPORARY\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FeedTopics:
    """What the settings of a changefeed say about its topics.

    `topic_of` gives the topic of a table by the dispatch rules. Where it is None and there is no
    default topic either, a table's topic is the one that its statements came by.
    """

    default: str | None = None
    topic_of: Callable[[str, str], str | None] | None = None
    may_be_of: Callable[[str, str], bool] = lambda topic, database: False
    """Whether a topic can be that of some table of a database."""
    partition_num: int | None = None
    """How many partitions of a topic TiCDC writes to; None: all of them."""

    def origins(self, topic: str | None) -> Callable[[str, str], bool] | None:
        """Which tables a statement may be about that came by a topic; None where that says nothing.

        TiCDC sends a statement to the topic of the table that it changes, by its name before it.
        """
        topic_of = self.topic_of
        if topic_of is None or topic is None or topic == self.default:
            return None
        return lambda database, table: topic_of(database, table) == topic

    @property
    def is_one(self) -> bool:
        """Whether everything goes to the default topic."""
        return self.default is not None and self.topic_of is None


@dataclass(frozen=True, slots=True)
class TopicUse:
    """The topics of a feed after some of its statements.

    `retired` topics had tables and have none now. `awaited` are those to which a known table
    dispatches, so that their watermarks must come; None: the dispatch rules are not known.
    """

    retired: frozenset[str] = frozenset()
    awaited: frozenset[str] | None = None
    homes: Mapping[Folded, str] = field(default_factory=dict)
    """Topics of tables as their statements have shown them, where no dispatch rules are known."""
    shared: frozenset[str] = frozenset()
    """Topics that statements about databases came by: the default topic, where none is known."""
    unseen: frozenset[Name] = frozenset()
    """Tables that statements have named and of which nothing else is known."""

    def to_object(self) -> dict[str, Any]:
        """What `from_object` reads."""
        return {
            "retired": sorted(self.retired),
            "awaited": None if self.awaited is None else sorted(self.awaited),
            "homes": sorted([*name, topic] for name, topic in self.homes.items()),
            "shared": sorted(self.shared),
            "unseen": sorted(self.unseen),
        }

    @classmethod
    def from_object(cls, saved: Mapping[str, Any]) -> TopicUse:
        """The use that `to_object` wrote down."""
        awaited = saved["awaited"]
        return cls(
            frozenset(saved["retired"]),
            None if awaited is None else frozenset(awaited),
            {(database, table): topic for database, table, topic in saved["homes"]},
            frozenset(saved["shared"]),
            frozenset(Name(*name) for name in saved.get("unseen", ())),
        )


def topic_use(
    before: TopicUse,
    topics: FeedTopics,
    statements: Iterable[Mapping[str, Any]],
    book: TableBook,
    known: Iterable[Name] = (),
    there: Collection[str] = (),
) -> TopicUse:
    """The topics in use once these statements have run, in their order, over a copy of the book.

    `statements` are DDL rows of a change batch, `known` tables that exist though the book may not
    have their schemas, `there` the topics that have sent something.
    """
    if topics.is_one:
        return before
    survey = _Survey(before, topics, book, known, there)
    for _, together in groupby(statements, lambda row: row["commit_ts"]):
        survey.run(list(together))
    return survey.use()


def earlier_use(
    before: TopicUse,
    topics: FeedTopics,
    statements: Iterable[Mapping[str, Any]],
    there: Collection[str] = (),
) -> TopicUse:
    """The topics in use after statements from before a load, of whose tables the book knows none.

    The tables that are there after them count as `unseen`: the load may have left them out.
    """
    if topics.is_one:
        return before
    survey = _Survey(before, topics, TableBook(), (), there)
    for _, together in groupby(statements, lambda row: row["commit_ts"]):
        survey.run(list(together))
    return replace(survey.use(), awaited=before.awaited, unseen=survey.names)


class _Survey:
    """The tables that exist while statements run, and the topics that tables have left."""

    def __init__(
        self,
        before: TopicUse,
        topics: FeedTopics,
        book: TableBook,
        known: Iterable[Name],
        there: Collection[str],
    ) -> None:
        self._before = before
        self._topics = topics
        self._there = there
        self._book = book.copy()
        names = [*before.unseen, *known, *(Name(schema.database, schema.table) for schema in book)]
        self._names = {name.folded: name for name in names}
        self._homes = dict(before.homes)
        self._shared = set(before.shared)
        self._left: set[str] = set()
        self._rowless: set[Folded] = set()

    @property
    def names(self) -> frozenset[Name]:
        """The tables that exist now."""
        return frozenset(self._names.values())

    def run(self, together: Sequence[Mapping[str, Any]]) -> None:
        """Runs the statements of one commit_ts."""
        names = list(self._names.values())
        arranged = self._book.arrange(together, ddl_id, names, lambda row: row["topic"])
        for row in arranged:
            self._run(row)

    def _run(self, row: Mapping[str, Any]) -> None:
        query = (row["ddl"] or {}).get("query") or ""
        database, table = row["database"] or "", row["table"] or ""
        topic = row["topic"] or ""
        effects = self._book.run(
            query,
            database,
            table or None,
            list(self._names.values()),
            may_come_from=self._origins(topic),
        )
        home = topic if len(effects) == 1 else None
        of_table = effects[0].change.kind is not ChangeKind.DATABASE_DROPPED if effects else table
        if not of_table:
            self._shared.add(topic)
            home = None
        if plain_change(query, database).kind is ChangeKind.DATABASE_DROPPED:
            # Of its tables that have sent no rows nothing else is known than their topics.
            gone = plain_change(query, database).database or database
            self._left |= {each for each in self._there if self._topics.may_be_of(each, gone)}
        for effect in effects:
            self._take(effect, _spelled(effect.name, database, table), query, home)

    def _origins(self, topic: str) -> Callable[[str, str], bool] | None:
        """Which tables a statement may be about that came by a topic; None: any.

        Without dispatch rules, those whose statements came by it before.
        """
        if self._topics.topic_of is not None or topic not in self._homes.values():
            return self._topics.origins(topic)
        return lambda database, table: self._homes.get(Name(database, table).folded) == topic

    def _take(self, effect: Effect, name: Name, query: str, home: str | None) -> None:
        """Notes what a statement does to one table; `home` is the topic that it came by."""
        if effect.kind in (ChangeKind.DROPPED, ChangeKind.RENAMED):
            self._leave(self._names.pop(name.folded, name), home)
            if effect.new_name is not None:
                self._names[effect.new_name.folded] = effect.new_name
        elif effect.kind is not ChangeKind.UNMIRRORED or _RECOVERED.match(query):
            self._names[name.folded] = name
            if home is not None and self._topics.topic_of is None:
                self._homes[name.folded] = home
            if _TEMPORARY.match(query):
                self._rowless.add(name.folded)

    def _leave(self, name: Name, home: str | None) -> None:
        topics = {home, self._topic(name)}
        self._left |= {topic for topic in topics if topic is not None}
        self._homes.pop(name.folded, None)

    def _topic(self, name: Name) -> str | None:
        if self._topics.topic_of is None:
            return self._homes.get(name.folded)
        return self._topics.topic_of(*name)

    def _sends_rows(self, name: Name) -> bool:
        """Whether TiCDC replicates the table as far as is known: it needs a key to do so."""
        schema = self._book.get(*name)
        return name.folded not in self._rowless and (schema is None or bool(schema.handle_key()))

    def use(self) -> TopicUse:
        """The topics in use now."""
        by_topic = [(self._topic(name), name) for name in self._names.values()]
        default = {topic for topic in (self._topics.default,) if topic is not None}
        used = {topic for topic, _ in by_topic if topic is not None} | default
        awaited = None
        if self._topics.topic_of is not None:
            active = {topic for topic, name in by_topic if topic and self._sends_rows(name)}
            awaited = frozenset(active | default)
        retired = (self._before.retired | self._left) - used - self._shared
        unseen = (name for name in self._names.values() if self._book.get(*name) is None)
        return TopicUse(
            frozenset(retired), awaited, self._homes, frozenset(self._shared), frozenset(unseen)
        )


def _spelled(name: Name, database: str, table: str) -> Name:
    """The name as the feed spells it beside the statement, whose own case may differ."""
    beside = Name(database, table)
    return beside if beside.folded == name.folded else name
