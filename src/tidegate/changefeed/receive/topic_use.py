"""Which topics of a feed are in use: TiCDC sends watermarks to the topics of existing tables only.

A statement that drops or renames the last table of a topic retires that topic: no watermark comes
by it again until another table dispatches to it. The default topic of the sink is always in use.
No I/O; the result lives in the gate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

from tidegate.model import TableSchema
from tidegate.sql.ddl import ChangeKind
from tidegate.sql.ddl_names import ddl_id, plain_change
from tidegate.sql.tables import Effect, Name, TableBook, TableNames

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


class _TableTopic(NamedTuple):
    """A table that was applied, with what its name and schema say of its topic."""

    name: Name
    schema: TableSchema | None
    topic: str | None
    sends_rows: bool


class TopicSurvey:
    """Says which topics are in use once some statements have run.

    It keeps the topics of the tables that were applied, so that what a judgement costs depends on
    the statements that were not, and not on the number of tables.
    """

    def __init__(self, topics: FeedTopics) -> None:
        self.topics = topics
        self.names = TableNames()
        self.tables: dict[Folded, _TableTopic] = {}
        self.by_topic: dict[str, set[Folded]] = {}
        self.senders: dict[str, set[Folded]] = {}
        """The tables that send rows, by topic."""
        self.awaited: frozenset[str] = frozenset()
        """The default topic, and those of tables that send rows."""
        self.without_schema: dict[Folded, Name] = {}

    def learn(self, book: TableBook, known: Iterable[Name]) -> None:
        """Takes in the tables that were applied.

        `known` are tables that exist though the book may not have their schemas.
        """
        schemas = {(schema.database.lower(), schema.table.lower()): schema for schema in book}
        tables: dict[Folded, _TableTopic] = {}
        for name in known:
            if name.folded not in schemas:
                before = self.tables.get(name.folded)
                is_same = before is not None and before.schema is None and before.name == name
                tables[name.folded] = before if before and is_same else self._table(name, None)
        for folded, schema in schemas.items():
            before = self.tables.get(folded)
            if before is None or before.schema is not schema:
                before = self._table(Name(schema.database, schema.table), schema)
            tables[folded] = before
        for folded, before in self.tables.items():
            if tables.get(folded) is not before:
                self._forget(folded, before)
        for folded, table in tables.items():
            if self.tables.get(folded) is not table:
                self._remember(folded, table)
        self.tables = tables
        default = {topic for topic in (self.topics.default,) if topic is not None}
        self.awaited = frozenset(default.union(self.senders))

    def use(
        self,
        before: TopicUse,
        statements: Iterable[Mapping[str, Any]],
        book: TableBook,
        seen: Iterable[Name] = (),
        there: Callable[[], Collection[str]] = tuple,
    ) -> TopicUse:
        """The topics in use once these statements have run, in their order; the book is copied.

        `statements` are DDL rows of a change batch, `seen` tables that have sent rows and were not
        learned, `there` gives the topics that have sent something.
        """
        if self.topics.is_one:
            return before
        trial = _Trial(self, before, book, seen, there)
        for _, together in groupby(statements, lambda row: row["commit_ts"]):
            trial.run(list(together))
        return trial.use()

    def _table(self, name: Name, schema: TableSchema | None) -> _TableTopic:
        topic_of = self.topics.topic_of
        topic = None if topic_of is None else topic_of(*name)
        return _TableTopic(name, schema, topic, schema is None or bool(schema.handle_key()))

    def _remember(self, folded: Folded, table: _TableTopic) -> None:
        self.names.add(table.name)
        if table.schema is None:
            self.without_schema[folded] = table.name
        if table.topic is not None:
            self.by_topic.setdefault(table.topic, set()).add(folded)
        if table.topic and table.sends_rows:
            self.senders.setdefault(table.topic, set()).add(folded)

    def _forget(self, folded: Folded, table: _TableTopic) -> None:
        self.names.discard(folded)
        self.without_schema.pop(folded, None)
        for by_topic in (self.by_topic, self.senders):
            tables = by_topic.get(table.topic or "")
            if tables is not None:
                tables.discard(folded)
                if not tables:
                    del by_topic[table.topic or ""]


def earlier_use(
    before: TopicUse,
    topics: FeedTopics,
    statements: Iterable[Mapping[str, Any]],
    there: Callable[[], Collection[str]] = tuple,
) -> TopicUse:
    """The topics in use after statements from before a load, of whose tables the book knows none.

    The tables that are there after them count as `unseen`: the load may have left them out.
    """
    if topics.is_one:
        return before
    trial = _Trial(TopicSurvey(topics), before, TableBook(), (), there)
    for _, together in groupby(statements, lambda row: row["commit_ts"]):
        trial.run(list(together))
    return replace(trial.use(), awaited=before.awaited, unseen=trial.names)


class _Trial:
    """The tables that exist while statements run, and the topics that tables have left."""

    def __init__(
        self,
        survey: TopicSurvey,
        before: TopicUse,
        book: TableBook,
        seen: Iterable[Name],
        there: Callable[[], Collection[str]],
    ) -> None:
        self._survey = survey
        self._before = before
        self._topics = survey.topics
        self._there = there
        self._book = book.copy()
        self._names = survey.names.copy()
        self._touched: set[Folded] = set()
        """Tables that may be other than the survey has them."""
        for name in before.unseen:
            if name not in self._names:
                self._add(name)
        for name in seen:
            if self._book.get(*name) is None:
                self._add(name)
        self._homes = dict(before.homes)
        self._shared = set(before.shared)
        self._left: set[str] = set()
        self._rowless: set[Folded] = set()

    @property
    def names(self) -> frozenset[Name]:
        """The tables that exist now."""
        return frozenset(self._names)

    def _add(self, name: Name) -> None:
        self._names.add(name)
        self._touched.add(name.folded)

    def run(self, together: Sequence[Mapping[str, Any]]) -> None:
        """Runs the statements of one commit_ts."""
        arranged = self._book.arrange(together, ddl_id, self._names, lambda row: row["topic"])
        for row in arranged:
            self._run(row)

    def _run(self, row: Mapping[str, Any]) -> None:
        query = (row["ddl"] or {}).get("query") or ""
        database, table = row["database"] or "", row["table"] or ""
        topic = row["topic"] or ""
        effects = self._book.run(
            query, database, table or None, self._names, may_come_from=self._origins(topic)
        )
        home = topic if len(effects) == 1 else None
        of_table = effects[0].change.kind is not ChangeKind.DATABASE_DROPPED if effects else table
        if not of_table:
            self._shared.add(topic)
            home = None
        change = plain_change(query, database)
        if change.kind is ChangeKind.DATABASE_DROPPED:
            # Of its tables that have sent no rows nothing else is known than their topics.
            gone = change.database or database
            self._left |= {each for each in self._there() if self._topics.may_be_of(each, gone)}
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
            self._touched.add(name.folded)
            self._leave(self._names.discard(name.folded) or name, home)
            if effect.new_name is not None:
                self._add(effect.new_name)
        elif effect.kind is not ChangeKind.UNMIRRORED or _RECOVERED.match(query):
            self._add(name)
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

    # --- what comes of it -------------------------------------------------------------------------

    def use(self) -> TopicUse:
        """The topics in use now."""
        self._touched |= self._book.take_changes()
        names = [name for each in self._touched if (name := self._names.get(each)) is not None]
        touched = [(self._topic(name), name) for name in names]
        awaited = None if self._topics.topic_of is None else self._awaited(touched)
        left = (self._before.retired | self._left) - self._shared
        known = self._survey.without_schema.items()
        unseen = [
            *(name for folded, name in known if folded not in self._touched),
            *(name for name in names if self._book.get(*name) is None),
        ]
        return TopicUse(
            frozenset(left - self._used(left, {topic for topic, _ in touched})),
            awaited,
            self._homes,
            frozenset(self._shared),
            frozenset(unseen),
        )

    def _used(self, topics: Set[str], touched: Set[str | None]) -> set[str]:
        """Those of the topics that have tables; `touched` are topics of tables that are touched."""
        if self._topics.topic_of is None:
            homes = self._homes.items()
            return {each for name, each in homes if each in topics and self._names.get(name)}
        by_topic = self._survey.by_topic
        return {
            each
            for each in topics
            if each in touched
            or each == self._topics.default
            or not by_topic.get(each, set()) <= self._touched
        }

    def _awaited(self, touched: Sequence[tuple[str | None, Name]]) -> frozenset[str]:
        """The default topic, and the topics of tables that send rows."""
        survey = self._survey
        old = (survey.tables.get(each) for each in self._touched)
        doubtful = {each.topic for each in old if each is not None and each.topic}
        lost = {each for each in doubtful if survey.senders.get(each, set()) <= self._touched}
        lost.discard(self._topics.default or "")
        gained = {topic for topic, name in touched if topic and self._sends_rows(name)}
        if gained <= survey.awaited and lost <= gained:
            return survey.awaited
        return (survey.awaited - lost) | gained


def _spelled(name: Name, database: str, table: str) -> Name:
    """The name as the feed spells it beside the statement, whose own case may differ."""
    beside = Name(database, table)
    return beside if beside.folded == name.folded else name
