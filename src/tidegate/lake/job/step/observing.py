"""Reads what is new in the changelog: watermarks, statements, schemas, topics, bad messages."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow.compute as pc

from tidegate.changefeed.receive.gate import Source
from tidegate.changefeed.receive.topic_use import TopicSurvey
from tidegate.lake.changelog.changelog import Changelog, Observed
from tidegate.lake.job.step.session import MirrorSession
from tidegate.lake.job.step.topics import (
    bad_messages,
    bootstrapped,
    needs_judgement,
    unapplied,
    unheard,
    use_before,
)
from tidegate.lake.quarantine import BadMessages, place_of


class Observer:
    """Brings the gate and the schemas up to what the changelog has."""

    def __init__(self, session: MirrorSession) -> None:
        self._session = session
        self._survey = TopicSurvey(session.settings.topics)
        self._surveyed = -1
        """How many tables the state had when the survey learned them."""

    def observe(
        self, partitions: Iterable[tuple[str, int]], unread: Iterable[tuple[str, int]]
    ) -> Changelog:
        """Takes in what is new; gives the changelog that the rest of the step reads."""
        session, gate = self._session, self._session.gate
        changelog = self._narrowed(session.pinned_changelog())
        unread = list(unread)
        gate.add_partitions([*partitions, *unread])
        gate.unread = frozenset(Source(*source) for source in unread)
        self._observe(changelog)
        return changelog

    def _narrowed(self, changelog: Changelog) -> Changelog:
        """The changelog with only those files that may have what the tables have not."""
        session, state = self._session, self._session.state
        return changelog.narrowed(
            session.fresh, state.offsets, session.row_limit_ts, state.changelog
        )

    def _observe(self, changelog: Changelog) -> None:
        session, gate = self._session, self._session.gate
        seen = session.seen.offsets
        observed = changelog.observe(seen)
        gate.add_partitions(seen.last)
        gate.add_partitions(sorted(observed.offsets))
        session.schemas.learn(observed.events)
        is_statement = pc.equal(observed.events["kind"], "ddl")
        session.seen.statements.append(observed.events.filter(is_statement))
        if gate.has_watermarks:
            self._judge_topics(observed)
        gate.observe_statements(observed.statements)
        gate.observe_runs(observed.runs, observed.cut)
        quarantine = session.lake.quarantine
        bad = bad_messages(gate, observed.events, observed.readable, seen, quarantine)
        session.state.bad += len(bad)
        if bad and session.settings.bad_messages == "stop":
            first = bad[0]
            raise BadMessages(place_of(first), first["error"]["reason"], len(bad))
        session.seen.offsets = seen.advanced(observed.offsets)
        session.seen.changelog = changelog.version
        changelog.observed()

    def _judge_topics(self, observed: Observed) -> None:
        """Tells the gate which topics are in use after all statements seen, applied or not."""
        session, gate = self._session, self._session.gate
        topics, state, seen = session.settings.topics, session.state, session.seen
        gate.partition_num = topics.partition_num
        events, fresh = observed.events, observed.offsets
        if needs_judgement(gate, topics, events, fresh):
            rows = observed.tables_of_rows(unheard(gate, fresh), state.applied_ts)
            gate.add_partitions(sorted([*rows, *bootstrapped(events)]), spoke=True)
            seen.tables.update(*rows.values())
            self._learn_tables()
            pending = seen.all_statements()

            def there() -> set[str]:
                return {source.topic for source in gate.watermarks}

            before = use_before(gate, topics, pending, there)
            gate.topics = self._survey.use(
                before, unapplied(gate, pending), state.book, seen.tables, there
            )

    def _learn_tables(self) -> None:
        """Tells the survey of tables that steps have made or changed since the last time."""
        state = self._session.state
        # What is taken away, or marked as gone, is changed in the book as well.
        if state.book.take_changes() or self._surveyed != len(state.tables):
            tables = state.tables.values()
            self._survey.learn(state.book, (each.name for each in tables if not each.gone))
            self._surveyed = len(state.tables)
