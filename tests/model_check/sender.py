"""A model of TiCDC's Kafka sink: what a changefeed sends of a history, byte for byte.

`Changefeed` encodes, dispatches and splits. This module adds what the sink does over time: where
watermarks go, re-sends after a restart, upgrades, partitions that are added, messages that a
failure loses before they are sent again, and the order in which a consumer gets the partitions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tests.model_check.history import Commit, Signal, Upstream
from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.send.changefeed import Changefeed
from tidegate.wire import CHANGE_SCHEMA, decode_batch
from tidegate.wire.batch.key_updates import mark_moves
from tidegate.workload.recorder import Recorder

TOPIC = "feed"
Generation = Literal["classic", "new"]
Source = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Feed:
    """The knobs of a changefeed; `start` and restarts are operations of the history."""

    protocol: str = "canal-json"
    options: dict[str, Any] = field(default_factory=dict)
    """Settings of ChangefeedConfig."""
    generation: Generation = "classic"
    partitions: int = 1
    dispatch: str = "default"
    """TiCDC's partition rule: default, index-value, ts, table."""
    topic_per_table: bool = False
    late_topics: bool = False
    """Whether the consumer learns of a topic only with its first message."""

    @property
    def has_watermarks(self) -> bool:
        return self.protocol != "canal-json" or bool(self.options.get("enable_tidb_extension"))

    @property
    def has_old_rows(self) -> bool:
        """Whether updates and deletes tell all of the old row."""
        shortened = ("only_output_updated_columns", "delete_only_output_handle_key_columns")
        if any(self.options.get(name) for name in (*shortened, "content_compatible")):
            return False
        return bool(self.options.get("output_old_value", True))

    def config(self) -> ChangefeedConfig:
        """The settings as TiCDC has them."""
        rule = f'partition = "{self.dispatch}"'
        if self.topic_per_table:
            rule += ', topic = "{schema}_{table}"'
        text = f"[sink]\ndispatchers = [{{matcher = ['*.*'], {rule}}}]\n"
        plain = ChangefeedConfig.from_toml(text, f"kafka://h:9092/{TOPIC}?protocol={self.protocol}")
        return replace(plain, force_replicate=True, **self.options)

    def to_object(self) -> dict[str, Any]:
        """What `Feed(**object)` reads."""
        return asdict(self)


class Message(NamedTuple):
    """A message; `at` is its place in the order of sending, over all partitions."""

    at: int
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes


@dataclass(frozen=True, slots=True)
class Sent:
    """A whole feed. `sources` has every partition of every topic with the place it came up at."""

    messages: tuple[Message, ...]
    sources: dict[Source, int]
    start_ts: int
    last_watermark: int
    has_resent: bool = False
    has_added_partitions: bool = False
    """Whether partitions were added while the feed ran: rows sent again may come by them."""


class Sender:
    """Sends one history."""

    def __init__(self, feed: Feed, upstream: Upstream) -> None:
        self._feed = feed
        self._upstream = upstream
        self._config = feed.config()
        self._generation = feed.generation
        self._partitions = feed.partitions
        self._log: list[tuple[str, int, bytes | None, bytes]] = []
        self._sources: dict[Source, int] = {}
        self._marks: list[int] = []
        self._start_ts = 0
        self._changefeed = self._new_changefeed(0)
        self._since_mark = 0
        self._has_resent = False

    def send(self) -> Sent:
        """All messages of the history, and a last watermark."""
        entries = self._upstream.commits
        starts = [n for n, each in enumerate(entries) if _is(each, "start")]
        first = starts[-1] if starts else 0
        self._start_ts = max((c.ts for c in entries[:first] if isinstance(c, Commit)), default=0)
        self._changefeed = self._new_changefeed(self._start_ts)
        self._run(entries[first:])
        last = max((c.ts for c in entries if isinstance(c, Commit)), default=self._start_ts)
        if last:
            self._watermark(last + 1)
        return Sent(
            tuple(self._numbered()),
            self._sources,
            self._start_ts,
            self._marks[-1] if self._marks else 0,
            self._has_resent,
            self._partitions > self._feed.partitions,
        )

    def _run(self, entries: Sequence[Commit | Signal]) -> None:
        sent: list[Commit | Signal] = []
        pending: list[Commit] = []
        for entry in entries:
            if isinstance(entry, Commit):
                pending.append(entry)
                sent.append(entry)
                continue
            self._changes(pending)
            pending = []
            if entry.op[0] == "mark":
                ts = self._mark_of(sent, entry)
                if ts is not None:
                    self._watermark(ts)
                    sent.append(entry)
            elif entry.op[0] in ("restart", "partitions"):
                self._restart(entry, sent)
        self._changes(pending)

    def _mark_of(self, sent: Sequence[Commit | Signal], signal: Signal) -> int | None:
        """A watermark at the last commit_ts, or a little later."""
        last = max((c.ts for c in sent if isinstance(c, Commit)), default=None)
        return None if last is None else last + (1 if signal.op[1] else 0)

    def _restart(self, signal: Signal, sent: list[Commit | Signal]) -> None:
        """Sends again what follows an earlier watermark, as a new process.

        restart: how many watermarks to go back, the generation, and a seed for lost messages.
        """
        back, generation, lost, count = 0, self._generation, 0, self._partitions
        if signal.op[0] == "partitions":
            count = max(count, signal.op[1])
        else:
            _, back, generation, lost = signal.op
        checkpoint = self._marks[-1 - back] if back < len(self._marks) else self._start_ts
        again = [c for c in sent if isinstance(c, Commit) and c.ts > checkpoint]
        if lost:
            self._lose(random.Random(lost))
        self._has_resent = self._has_resent or bool(again)
        self._generation = "classic" if self._feed.protocol == "craft" else generation
        self._partitions = count
        self._changefeed = self._new_changefeed(checkpoint)
        self._open_sources(checkpoint)
        self._send_again(sent, checkpoint)

    def _send_again(self, sent: Sequence[Commit | Signal], checkpoint: int) -> None:
        pending: list[Commit] = []
        seen: list[Commit | Signal] = []
        for entry in sent:
            seen.append(entry)
            if isinstance(entry, Commit):
                if entry.ts > checkpoint:
                    pending.append(entry)
                continue
            ts = self._mark_of(seen, entry)
            if ts is not None and ts > checkpoint:
                self._changes(pending)
                pending = []
                self._watermark(ts)
        self._changes(pending)

    def _lose(self, rng: random.Random) -> None:
        """Takes back messages since the last watermark, in some partitions: they never arrived."""
        tail = self._log[self._since_mark :]
        keep: dict[Source, int] = {}
        for topic, partition, _, _ in tail:
            keep[topic, partition] = keep.get((topic, partition), 0) + 1
        for source in sorted(keep):
            keep[source] -= rng.randrange(keep[source] + 1)
        kept = []
        for entry in tail:
            source = entry[0], entry[1]
            if keep[source] > 0:
                keep[source] -= 1
                kept.append(entry)
        self._log[self._since_mark :] = kept

    # --- messages ---------------------------------------------------------------------------------

    def _new_changefeed(self, ts: int) -> Changefeed:
        """A changefeed that starts at an instant."""
        changefeed = Changefeed(
            self._config,
            partitions=self._partitions,
            clock=None,
            generation=self._generation,
            build_ts=1,
            watermark_interval=0,
        )
        if self._feed.protocol == "simple":
            self._announce(changefeed, ts)
        return changefeed

    def _announce(self, changefeed: Changefeed, ts: int) -> None:
        """Tells a Simple feed the schemas of the tables that are there when it starts."""
        rows = [
            {
                "kind": "schema",
                "event": 0,
                "flags": 0,
                "database": table.database,
                "table": table.name,
                "schema_version": table.version,
                "schema": f'{{"tableSchema":{table.schema().to_json()}}}',
            }
            for table in self._upstream.at(ts).values()
        ]
        changefeed.learn(pa.RecordBatch.from_pylist(rows, schema=CHANGE_SCHEMA))

    def _changes(self, commits: Sequence[Commit]) -> None:
        if not commits:
            return
        recorder = Recorder()
        for commit in commits:
            subjects: dict[tuple[int, int], int] = {}
            for row in commit.rows:
                key = row.table.table_id, row.table.version
                if key not in subjects:
                    subjects[key] = recorder.table(row.table.schema()).number
                recorder.row((row.kind, commit.ts, subjects[key], row.after, row.before))
            for ddl in commit.classic if self._generation == "classic" else commit.new:
                recorder.ddl(commit.ts, ddl.query, ddl.database, ddl.after, ddl.before)
        self._take(self._changefeed.send(recorder.batch()))

    def _take(self, messages: pa.RecordBatch) -> None:
        for row in messages.to_pylist():
            topic = row["topic"] or TOPIC
            self._open(topic)
            self._log.append((topic, row["partition"], row["key"], row["value"]))

    def _open(self, topic: str) -> None:
        for partition in range(self._partitions):
            self._sources.setdefault((topic, partition), len(self._log))

    def _watermark(self, ts: int) -> None:
        """To all partitions of the topics of tables that are there, and of the default topic."""
        if not self._feed.has_watermarks:
            return
        row = {"kind": "watermark", "event": 0, "flags": 0, "commit_ts": ts}
        batch = pa.RecordBatch.from_pylist([row], schema=CHANGE_SCHEMA)
        encoded = self._changefeed.send(batch)
        if not encoded.num_rows:  # one that was sent before
            return
        key, value = encoded["key"][-1].as_py(), encoded["value"][-1].as_py()
        # BOOTSTRAP messages, if it is time for them, come before it.
        self._take(encoded.filter(pc.not_equal(encoded["value"], value)))
        for topic in self._active_topics(ts):
            self._open(topic)
            for partition in range(self._partitions):
                self._log.append((topic, partition, key, value))
        self._marks.append(ts)
        self._since_mark = len(self._log)

    def _open_sources(self, ts: int) -> None:
        for topic in self._active_topics(ts):
            self._open(topic)

    def _active_topics(self, ts: int) -> list[str]:
        tables = self._upstream.at(ts)
        found = [self._changefeed.dispatcher.topic(*name) for name in tables]
        return sorted({TOPIC, *filter(None, found)})

    def _numbered(self) -> Iterator[Message]:
        offsets: dict[Source, int] = {}
        for at, (topic, partition, key, value) in enumerate(self._log):
            offset = offsets.get((topic, partition), 0)
            offsets[topic, partition] = offset + 1
            yield Message(at, topic, partition, offset, key, value)


def _is(entry: Commit | Signal, kind: str) -> bool:
    return isinstance(entry, Signal) and entry.op[0] == kind


# --- how a consumer gets it -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cut:
    """How a feed is cut into batches: so many, or one for each message (0).

    With `skew` partitions are read at different speeds. `restarts` makes the mirror start again
    between batches. `crashes` cuts it off at the boundaries of its steps, one of so many on average
    (0: never).
    """

    batches: int = 1
    seed: int = 0
    skew: bool = False
    restarts: bool = False
    crashes: int = 0


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a consumer gets at once, and the partitions that it knows then."""

    messages: tuple[Message, ...]
    sources: tuple[Source, ...]
    unread: tuple[Source, ...] = ()
    """Those of the partitions that have messages which the consumer has not got."""


def deliveries(sent: Sent, feed: Feed, cut: Cut) -> list[Delivery]:
    """The feed in batches; each partition in its order."""
    rng = random.Random(cut.seed)
    count = len(sent.messages)
    ends = _ends(count, cut, rng)
    waiting: dict[Source, list[Message]] = {}
    for message in sent.messages:
        waiting.setdefault((message.topic, message.partition), []).append(message)
    found, seen = [], set()
    for number, end in enumerate(ends):
        batch: list[Message] = []
        for source, messages in waiting.items():
            limit = end
            if cut.skew and number < len(ends) - 1 and rng.random() < 0.6:
                limit = rng.randrange(end + 1)
            taken = [message for message in messages if message.at < limit]
            waiting[source] = messages[len(taken) :]
            batch += taken
        seen.update((message.topic, message.partition) for message in batch)
        known = seen if feed.late_topics else {s for s, at in sent.sources.items() if at < end}
        unread = {s for s in known if waiting.get(s) and waiting[s][0].at < end}
        found.append(
            Delivery(tuple(sorted(batch)), tuple(sorted(known | seen)), tuple(sorted(unread)))
        )
    return found


def _ends(count: int, cut: Cut, rng: random.Random) -> list[int]:
    if cut.batches == 0:
        return list(range(1, count + 1))
    inner = (
        sorted(rng.sample(range(1, count), min(cut.batches - 1, count - 1))) if count > 1 else []
    )
    return [*inner, count]


def decoded(feed: Feed, messages: Sequence[Message]) -> pa.Table:
    """The change batch of messages, as ingest makes it."""
    batch = decode_batch(
        feed.protocol,
        pa.array([message.key for message in messages], pa.binary()),
        pa.array([message.value for message in messages], pa.binary()),
        topics=pa.array([message.topic for message in messages], pa.string()),
        partitions=pa.array([message.partition for message in messages], pa.int32()),
        offsets=pa.array([message.offset for message in messages], pa.int64()),
    )
    return pa.Table.from_batches([mark_moves(batch)])
