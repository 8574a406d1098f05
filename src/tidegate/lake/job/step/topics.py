"""What a mirror concludes from new events about the feed's topics: which are in use, which foreign.

A subscription by pattern may match topics of other applications. A topic of which no message can be
read, and to which no known table dispatches, is foreign: its messages stay in quarantine, and they
neither stop the mirror nor hold the gate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.changefeed.receive.gate import Gate
from tidegate.changefeed.receive.order import in_order
from tidegate.changefeed.receive.topic_use import FeedTopics, TopicUse, earlier_use
from tidegate.lake.changelog.changelog import Offsets
from tidegate.lake.quarantine import Quarantine, place_of
from tidegate.sql.ddl_names import ddl_id

Row = dict[str, Any]


def needs_judgement(
    gate: Gate, topics: FeedTopics, events: pa.Table, fresh: Collection[tuple[str, int]]
) -> bool:
    """Whether new events may change which topics are in use: a statement, or a new partition."""
    if topics.topic_of is None:
        names = {source.topic for source in gate.watermarks}
        if topics.default is not None or len(names) < 2:
            return False
    elif gate.topics.awaited is None:
        return True
    has_statements = pc.any(pc.equal(events["kind"], "ddl"), min_count=0).as_py()
    return bool(has_statements or unheard(gate, fresh))


def unheard(gate: Gate, fresh: Collection[tuple[str, int]]) -> set[tuple[str, int]]:
    """Partitions with new events that had sent neither rows nor watermarks before."""
    return {source for source in fresh if not gate.has_spoken(source)}


def bootstrapped(events: pa.Table) -> set[tuple[str, int]]:
    """The partitions by which BOOTSTRAP messages came: they are of tables that send rows there."""
    schemas = events.filter(pc.equal(events["kind"], "schema"))
    sources = schemas.group_by(["topic", "partition"]).aggregate([]).to_pylist()
    return {(row["topic"], row["partition"]) for row in sources}


def unapplied(gate: Gate, statements: pa.Table) -> list[Row]:
    """The statements that the tables do not have, in their order."""
    return [row for row in in_order(statements).to_pylist() if not _is_applied(gate, row)]


def _is_applied(gate: Gate, statement: Row) -> bool:
    ts = statement["commit_ts"]
    if ts > gate.applied_ts:
        return False
    if ts <= gate.loaded_ts:
        return True
    if ts == gate.applied_ts:
        return gate.has_applied(ddl_id(statement))
    source = (statement["topic"] or "", statement["partition"])
    promised = max(gate.watermark_of(source), gate.statements_of(source[0]))
    return bool(ts <= promised)


def use_before(
    gate: Gate, topics: FeedTopics, statements: pa.Table, there: Callable[[], Collection[str]]
) -> TopicUse:
    """The topics in use before the statements that the tables do not have.

    Statements up to a load have no effect on the tables, but they show which topics tables left.
    """
    if not gate.loaded_ts or gate.applied_ts > gate.loaded_ts:
        return gate.topics
    early = [row for row in in_order(statements).to_pylist() if row["commit_ts"] <= gate.loaded_ts]
    return earlier_use(gate.topics, topics, early, there)


def bad_messages(
    gate: Gate, events: pa.Table, said: set[str], seen: Offsets, quarantine: Quarantine
) -> list[Row]:
    """The messages of the feed that cannot be read, but for those that a retry has read since.

    Those of foreign topics are counted in the gate instead. `said` are the topics of which
    something new could be read, `seen` is what came before.
    """
    errors: list[Row] = events.filter(pc.equal(events["kind"], "error")).to_pylist()
    if not errors and not gate.unreadable:
        return []
    readable = {source.topic for source in gate.speaking} | said
    ours = gate.unreadable.keys() & readable
    if ours:
        errors = _errors_of(ours, quarantine) + [row for row in errors if row["topic"] not in ours]
        gate.unreadable = {each: n for each, n in gate.unreadable.items() if each not in ours}
    if not errors:
        return []
    settled = quarantine.settled()
    errors = [row for row in errors if place_of(row) not in settled]
    foreign = _foreign(gate, seen, {row["topic"] or "" for row in errors} - readable)
    for row in errors:
        if row["topic"] in foreign:
            gate.unreadable[row["topic"]] = gate.unreadable.get(row["topic"], 0) + 1
    return [row for row in errors if row["topic"] not in foreign]


def _errors_of(topics: Collection[str], quarantine: Quarantine) -> list[Row]:
    """All bad messages of topics that turn out to be the feed's."""
    return [
        {**message.place._asdict(), "error": {"reason": message.reason}}
        for message in quarantine.messages()
        if message.place.topic in topics
    ]


def _foreign(gate: Gate, seen: Offsets, topics: set[str]) -> set[str]:
    """Those of the topics that have never been readable and to which no table dispatches."""
    if gate.topics.awaited is None:
        return set()
    were_readable = {topic for topic, _ in seen.last} - gate.unreadable.keys()
    return topics - gate.topics.awaited - were_readable
