"""A DataFrame of changes becomes a feed: messages by a changefeed's rules, to Kafka, in order.

All changes of a batch pass through one task, in the order of their commits. A stream is sent up to
its resolved timestamp: what is later is held in the checkpoint's folder until it is complete, so
that a watermark never runs ahead of a row, and a DDL follows all earlier rows of all partitions.
A batch that Spark runs again is sent again, as TiCDC does after a failure; nothing is left out.
docs/publish.md says what follows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.receive.gate import EVENTUAL, SNAPSHOT, Gate
from tidegate.changefeed.receive.release import (
    EVERYTHING,
    GATED_KINDS,
    ROW_KINDS,
    Release,
    Span,
)
from tidegate.changefeed.receive.schema_cache import SchemaCache
from tidegate.changefeed.send.changefeed import Changefeed
from tidegate.model import ConfigError, SinkError, TableSchema, TidegateError
from tidegate.spark.checkpoints import CheckpointFolder
from tidegate.spark.decoding import CHANGE_TYPE, origin
from tidegate.spark.rows import check_rows, rows_as_changes
from tidegate.spark.sending import OUTGOING_TYPE, Returned, Sender, Sending, Sent
from tidegate.spark.sources import feed_settings
from tidegate.spark.topics import Topics
from tidegate.wire import CHANGE_SCHEMA

TRIGGER_SECONDS = 1.0

_STATE_VERSION = 1
_STATE = "tidegate"
_KEPT_STATES = 2
_REQUEST_OVERHEAD = 4096
"""What a request to Kafka has beside the message in it."""
_BATCH_BYTES = 64 * 1024
"""What Kafka's client sends at a time to a partition; a topic's limit is also one for that."""
_TOLD_COLUMNS = [
    name for name in CHANGE_SCHEMA.names if name not in ("after", "before", "raw_key", "raw_value")
]
_SENT_KINDS = (*ROW_KINDS, "ddl", "watermark")

Generation = Literal["classic", "new"]


@dataclass(frozen=True, slots=True)
class Published:
    """What one batch came to; of a stream, of one micro-batch.

    `held` counts rows and DDL that wait for a watermark, or for the schema of one of them;
    `waiting` names the schemas. `resolved_ts` is up to where the source is complete.
    """

    batch: int | None
    messages: int
    bytes: int
    kinds: Mapping[str, int]
    bad: int
    held: int
    waiting: tuple[str, ...]
    watermark: int
    resolved_ts: int
    consistency: str

    @property
    def rows(self) -> int:
        """Inserts, updates and deletes that were sent."""
        return sum(self.kinds.get(kind, 0) for kind in ROW_KINDS)

    def to_json(self) -> dict[str, Any]:
        """For logs and `--output json`."""
        return {
            "batch": self.batch,
            "messages": self.messages,
            "bytes": self.bytes,
            "rows": self.rows,
            "kinds": dict(sorted(self.kinds.items())),
            "bad": self.bad,
            "held": self.held,
            "waiting": list(self.waiting),
            "watermark": self.watermark,
            "resolvedTs": self.resolved_ts,
            "consistency": self.consistency,
        }


def publish(
    df: DataFrame,
    destination: str,
    *,
    schema: TableSchema | None = None,
    changefeed: ChangefeedConfig | str | Path | None = None,
    checkpoint: str | Path | None = None,
    once: bool = False,
    watermarks: bool | None = None,
    quarantine: str | Path | None = None,
    generation: Generation = "classic",
    time_zone: str = "UTC",
    interval: float = TRIGGER_SECONDS,
    on_batch: Callable[[Published], None] | None = None,
    options: Mapping[str, str] | None = None,
) -> Published | StreamingQuery:
    """Sends changes (docs/batch.md) to Kafka as the changefeed of this sink URI would.

    With `schema`, `df` is of typed rows of that table instead, with `_op` (insert, update, delete)
    and, if there, `_commit_ts`; a watermark follows each batch of them.

    A bounded DataFrame is sent at once, whole, and what was sent is given back. A stream becomes a
    query, which needs a `checkpoint` folder; it is started every `interval` seconds, or with `once`
    reads what there is and ends. `on_batch` is told of every micro-batch.

    `watermarks` says whether the changes come with watermarks, where the source does not tell.
    Without them nothing is held, changes go in the order of their times, and no watermarks are
    sent. Messages that could not be read are put into the folder `quarantine` (of a stream: `bad`
    in the checkpoint's folder); without one a bounded DataFrame that has any is refused.

    `generation` is the TiCDC to agree with where the two architectures differ, `time_zone` that of
    the feed's TIMESTAMP values; `options` are passed to Spark's sink.
    """
    if schema is None:
        _check_columns(df)
    else:
        check_rows(df, schema)
    config = feed_settings(destination, changefeed)
    if config is None or config.kafka is None:
        raise ConfigError("destination", "it is no Kafka: write kafka://host:port/topic?protocol=…")
    known = origin(df)
    if watermarks is None and known is not None:
        watermarks = known.watermarks
    publisher = _Publisher(
        config,
        generation=generation,
        time_zone=time_zone,
        quarantine=None if quarantine is None else str(quarantine),
        options=dict(options or {}),
        schema=schema,
    )
    with Topics(df.sparkSession, config) as topics:
        publisher.prepare(topics)
    if not df.isStreaming:
        return publisher.send_all(df, watermarks)
    if checkpoint is None:
        raise ConfigError("checkpoint", "a stream needs a folder to remember where it stands")
    stream = _Stream(
        publisher,
        CheckpointFolder(df.sparkSession, str(checkpoint)),
        watermarks is not False and schema is None,
        on_batch,
    )
    writer = df.writeStream.option("checkpointLocation", str(checkpoint))
    if once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(interval * 1000)} milliseconds")
    return writer.foreachBatch(stream.send).start()


def _check_columns(df: DataFrame) -> None:
    types = {each.name: each.dataType for each in df.schema.fields}
    for wanted in CHANGE_TYPE.fields:
        if wanted.name not in types:
            raise ConfigError("df", f"it has no column {wanted.name!r}; give what `changes` gives")


# --- sending --------------------------------------------------------------------------------------


class _Publisher:
    """Sends what it is given, in order, to the topics of one changefeed."""

    def __init__(
        self,
        config: ChangefeedConfig,
        *,
        generation: Generation,
        time_zone: str,
        quarantine: str | None,
        options: dict[str, str],
        schema: TableSchema | None,
    ) -> None:
        self.config = config
        self.schema = schema
        self.quarantine = quarantine
        self._generation = generation
        self._time_zone = time_zone
        self._options = options
        self._partitions = 0
        self._ready: set[str | None] = set()

    def changes(self, df: DataFrame) -> DataFrame:
        """What the caller gave, of which not all may be known to be changes yet; it is kept."""
        if self.schema is not None:
            df = rows_as_changes(df, self.schema, self._time_zone)
        return df.select(*CHANGE_SCHEMA.names).persist(StorageLevel.MEMORY_AND_DISK)

    def prepare(self, topics: Topics) -> None:
        """Makes the default topic; its settings bound what is sent."""
        self._partitions, longest = topics.prepare()
        self.config = replace(self.config, max_message_bytes=longest)
        self._ready.add(self.config.topic)

    def feed(self, topics: Sequence[str] = ()) -> Changefeed:
        """A changefeed that has sent nothing yet; every watermark of the source is sent on.

        `topics` are those that a run before this one has sent to.
        """
        return Changefeed(
            self.config,
            partitions=self._partitions,
            generation=self._generation,
            time_zone=self._time_zone,
            watermark_interval=0,
            topics=topics,
        )

    def send(self, df: DataFrame, sender: Sender, told: pa.RecordBatch) -> Sender:
        """Sends changes that may all be sent; gives the sender as it is then."""
        spark = df.sparkSession
        returned = Returned.expect(spark)
        ordered = df.repartition(1).sortWithinPartitions("commit_ts")
        messages = ordered.mapInArrow(Sending(sender, told, returned).__call__, OUTGOING_TYPE)
        try:
            messages.write.format("kafka").options(**self._sink_options()).save()
        except (PySparkException, Py4JJavaError) as error:
            raise _explained(error, self.config) from error
        found = returned.take()
        assert found is not None, "the task that sends has not ended"
        return found

    def _sink_options(self) -> dict[str, str]:
        longest = self.config.max_message_bytes + _REQUEST_OVERHEAD
        chosen = {
            **self.config.kafka_options(),
            **self.config.producer_options(),
            "kafka.max.request.size": str(longest),
            "kafka.batch.size": str(min(_BATCH_BYTES, self.config.max_message_bytes)),
        }
        if chosen["kafka.acks"] != "all":
            # Only an idempotent producer keeps the order of requests that are sent again.
            chosen["kafka.max.in.flight.requests.per.connection"] = "1"
        return chosen | self._options

    def make_topics(self, df: DataFrame, tables: set[tuple[str, str]], feed: Changefeed) -> None:
        """Makes the topics that rows of these tables go to, unless they are there."""
        wanted = {feed.dispatcher.topic(*table) for table in tables} - self._ready
        if wanted:
            with Topics(df.sparkSession, self.config) as topics:
                topics.ready(sorted(filter(None, wanted)), self._partitions)
            self._ready |= wanted

    def send_all(self, df: DataFrame, watermarks: bool | None) -> Published:
        """Sends a bounded DataFrame."""
        df = self.changes(df)
        try:
            found = _Facts.of(df, known=SchemaCache())
            if found.bad:
                self.put_away(df, found)
            gate = Gate(sorted(found.sources))
            gate.observe(found.marks)
            if watermarks is None:
                watermarks = found.marks.num_rows > 0
            latest = gate.resolved_ts if watermarks else 0
            feed = self.feed()
            self.make_topics(df, found.tables, feed)
            sender = Sender(feed, None, transactions=watermarks)
            sent = self.send(_sendable(df, Release(), latest), sender, found.told()).sent
            return _published(None, sent, found, 0, (), latest, watermarks)
        finally:
            df.unpersist()

    def put_away(self, df: DataFrame, found: _Facts) -> None:
        if self.quarantine is None:
            raise SinkError(
                f"the topic {self.config.topic!r}",
                f"{found.bad} messages of the source could not be read, the first one "
                f"{found.first_bad}",
                "Leave them out (kind <> 'error'), or name a folder for them with quarantine",
            )
        bad = df.where("kind = 'error'")
        bad.coalesce(1).write.mode("append").parquet(self.quarantine)


def _sendable(df: DataFrame, release: Release, latest_mark: int) -> DataFrame:
    """Rows and DDL that are due, and the watermarks up to the latest that may be sent.

    Of the instant that was applied all that is open; `Sender` knows what of it was sent.
    """
    kind, ts = F.col("kind"), F.col("commit_ts")
    marks = (kind == "watermark") & (ts <= latest_mark) & (ts >= release.applied_ts)
    return df.where((kind.isin(*GATED_KINDS) & _due(release)) | marks)


def _due(release: Release) -> Column:
    """Whether a change has not been applied and may be."""
    if release.until == EVERYTHING:
        return F.lit(True)
    return reduce(Column.__or__, map(_within, (release.fresh, release.again, *release.late)))


def _within(span: Span) -> Column:
    """Whether a change is of a span."""
    ts = F.col("commit_ts")
    found = (ts > span.above) & (ts <= span.up_to)
    if span.source is not None:
        found = found & (F.coalesce("topic", F.lit("")) == span.source.topic)
        found = found & (F.coalesce("partition", F.lit(0)) == span.source.partition)
    for database, table in sorted(span.but):
        named = F.lower("database") == database
        named = named & (F.lower("table") == table) if table else named
        found = found & ~(F.col("kind").isin(*ROW_KINDS) & F.coalesce(named, F.lit(False)))
    return found


def _published(
    batch: int | None,
    sent: Sent,
    found: _Facts,
    held: int,
    waiting: tuple[str, ...],
    resolved_ts: int,
    watermarks: bool,
) -> Published:
    return Published(
        batch=batch,
        messages=sent.messages,
        bytes=sent.bytes,
        kinds=sent.kinds,
        bad=found.bad,
        held=held,
        waiting=waiting,
        watermark=sent.watermark,
        resolved_ts=resolved_ts,
        consistency=SNAPSHOT if watermarks else EVENTUAL,
    )


def _explained(error: Exception, config: ChangefeedConfig) -> Exception:
    """Our own errors come from the task as text; Kafka's are told in words."""
    text = str(error)
    found = re.search(r"tidegate\.model\.errors\.\w+: ([^\n]+)", text)
    if found is None and isinstance(error.__cause__, TidegateError):
        return error.__cause__
    if found is not None:
        step = "Correct the source or the changefeed; what was not sent is sent by the next run"
        return SinkError(f"the topic {config.topic!r}", found[1].strip().rstrip("."), step)
    for name, reason in (
        ("RecordTooLargeException", "a message is longer than the broker takes"),
        ("TimeoutException", "Kafka does not answer"),
        ("AuthorizationException", "Kafka does not let us write to it"),
    ):
        if name in text:
            step = "Check the broker; what was not sent is sent by the next run"
            return SinkError(f"the topic {config.topic!r}", reason, step)
    return error


# --- what is in a batch ---------------------------------------------------------------------------


@dataclass(slots=True)
class _Facts:
    """What the driver must know of a batch: a few rows of it, and a count by table."""

    cache: SchemaCache
    marks: pa.Table
    shapes: pa.Table
    bad: int
    first_bad: str
    sources: set[tuple[str, int]]
    groups: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, df: DataFrame, known: SchemaCache) -> _Facts:
        """Two small questions to a batch; `known` learns its schemas."""
        special = df.where(F.col("kind").isin("watermark", "schema", "ddl", "error"))
        order = ["topic", "partition", "offset", "event"]
        told = (
            special.select(*_TOLD_COLUMNS).toArrow().sort_by([(key, "ascending") for key in order])
        )
        told = _as_changes(told)
        known.add(told)
        kind = told["kind"]
        errors = told.filter(pc.equal(kind, "error")).slice(0, 1).to_pylist()
        first_bad = ""
        if errors:
            place = f"partition {errors[0]['partition']}, offset {errors[0]['offset']}"
            first_bad = f"at {place}: {errors[0]['error']['reason']}"
        keys = ["topic", "partition", "kind", "database", "table", "schema_version"]
        counted = df.where(F.col("kind").isin(*_SENT_KINDS)).groupBy(*keys)
        groups = counted.agg(
            F.count("*").alias("rows"),
            F.min("commit_ts").alias("first"),
            F.max("commit_ts").alias("last"),
        )
        found = groups.toArrow().to_pylist()
        return cls(
            cache=known,
            marks=told.filter(pc.equal(kind, "watermark")),
            shapes=told.filter(pc.equal(told["event"], -1)),
            bad=pc.sum(pc.cast(pc.equal(kind, "error"), pa.int64())).as_py() or 0,
            first_bad=first_bad,
            sources={(row["topic"] or "", row["partition"] or 0) for row in found},
            groups=found,
        )

    @property
    def tables(self) -> set[tuple[str, str]]:
        """The tables that rows and DDL are of."""
        return {(row["database"] or "", row["table"]) for row in self.groups if row["table"]}

    @property
    def stamps(self) -> list[int]:
        """The watermarks."""
        found: list[int] = self.marks["commit_ts"].to_pylist()
        return found

    def told(self) -> pa.RecordBatch:
        """Schema rows of all that is known."""
        rows = {row["shape"]: row for row in self.shapes.to_pylist()}
        found = list(rows.values())
        for key in self.cache.keys:
            schema = self.cache.schema(*key)
            assert schema is not None
            document = json.dumps({"tableSchema": schema.to_object()}, ensure_ascii=False)
            found.append(
                {
                    "kind": "schema",
                    "event": 0,
                    "flags": 0,
                    "database": key.database,
                    "table": key.table,
                    "schema_version": key.version,
                    "schema": document,
                }
            )
        return pa.RecordBatch.from_pylist(found, schema=CHANGE_SCHEMA)


def _as_changes(told: pa.Table) -> pa.Table:
    """The columns that were left out are null."""
    for name in CHANGE_SCHEMA.names:
        if name not in told.column_names:
            kind = CHANGE_SCHEMA.field(name).type
            told = told.append_column(name, pa.nulls(told.num_rows, kind))
    return told.select(CHANGE_SCHEMA.names).cast(CHANGE_SCHEMA)


# --- streams --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _State:
    """What a stream knows after a batch, as it lies in the checkpoint's folder."""

    gate: Gate
    cache: SchemaCache
    shapes: pa.Table
    topics: tuple[str, ...] = ()
    held: str | None = None
    """The folder of the changes that wait."""
    versioned: bool = False
    """Whether rows name versions of schemas, so that they may have to wait for one."""

    def to_json(self) -> str:
        columns = ["shape", "database", "table", "schema"]
        return json.dumps(
            {
                "version": _STATE_VERSION,
                "gate": self.gate.to_json(),
                "schemas": self.cache.to_json(),
                "shapes": [list(row.values()) for row in self.shapes.select(columns).to_pylist()],
                "topics": self.topics,
                "held": self.held,
                "versioned": self.versioned,
            },
            ensure_ascii=False,
        )

    @classmethod
    def from_json(cls, text: str) -> _State:
        told = json.loads(text)
        if told.get("version") != _STATE_VERSION:
            raise ConfigError(
                "checkpoint",
                f"its state has version {told.get('version')!r}, and this is {_STATE_VERSION}: "
                "it was written by another version of Tidegate",
            )
        rows = [
            {
                "kind": "schema",
                "event": -1,
                "flags": 0,
                "shape": shape,
                "database": database,
                "table": table,
                "schema": schema,
            }
            for shape, database, table, schema in told["shapes"]
        ]
        shapes = pa.Table.from_pylist(rows, schema=CHANGE_SCHEMA)
        cache = SchemaCache.from_json(told["schemas"])
        gate = Gate.from_json(told["gate"])
        topics = tuple(told["topics"])
        return cls(gate, cache, shapes, topics, told["held"], told["versioned"])


class _Stream:
    """The micro-batches of a query: what is complete is sent, the rest is held."""

    def __init__(
        self,
        publisher: _Publisher,
        folder: CheckpointFolder,
        watermarks: bool,
        on_batch: Callable[[Published], None] | None,
    ) -> None:
        self._publisher = publisher
        self._folder = folder
        self._watermarks = watermarks
        self._on_batch = on_batch
        self._feed: Changefeed | None = None
        if publisher.quarantine is None:
            publisher.quarantine = folder.path("bad")

    def send(self, df: DataFrame, batch: int) -> None:
        """Sends what this batch makes complete; for `foreachBatch`."""
        state = self._load(batch)
        df = self._publisher.changes(df)
        try:
            report = self._send(df, batch, state)
        finally:
            df.unpersist()
        if self._on_batch is not None:
            self._on_batch(report)

    def _send(self, df: DataFrame, batch: int, state: _State) -> Published:
        found = _Facts.of(df, state.cache)
        found.shapes = state.shapes = _each_once(pa.concat_tables([state.shapes, found.shapes]))
        if found.bad:
            self._publisher.put_away(df, found)
        gate = state.gate
        gate.add_partitions(self._folder.partitions(batch))
        gate.add_partitions(sorted(found.sources))
        gate.observe(found.marks)
        if state.held is not None:
            held_before = df.sparkSession.read.schema(CHANGE_TYPE).parquet(self._path(state.held))
            df = df.unionByName(held_before)
        limit, waiting = self._limit(df, found, state)
        if self._feed is None:
            self._feed = self._publisher.feed(state.topics)
        self._publisher.make_topics(df, found.tables, self._feed)
        typed = self._publisher.schema is not None
        latest_mark = max(found.stamps, default=0) if typed else limit or 0
        due = _sendable(df, gate.release(limit), latest_mark)
        sender = Sender(
            self._feed, gate if self._watermarks else None, self._watermarks or typed, limit
        )
        sender = self._publisher.send(due, sender, found.told())
        self._feed = sender.feed
        if sender.gate is not None and limit is not None:
            state.gate = sender.gate
            state.gate.mark_applied(limit)
            state.cache.forget(limit)
        state.topics = tuple(filter(None, sender.feed.topics))
        held = self._hold(df, batch, limit, state)
        self._save(batch, state)
        resolved = state.gate.resolved_ts
        return _published(batch, sender.sent, found, held, waiting, resolved, self._watermarks)

    def _limit(
        self, df: DataFrame, found: _Facts, state: _State
    ) -> tuple[int | None, tuple[str, ...]]:
        """Up to where changes are sent: what is resolved, but not past a row without a schema."""
        if not self._watermarks:
            return None, ()
        release = state.gate.release()
        limit = release.until
        state.versioned |= any(row["schema_version"] is not None for row in found.groups)
        if not state.versioned:
            return limit, ()
        named = df.where(F.col("kind").isin(*ROW_KINDS) & F.col("schema_version").isNotNull())
        named = named.where(_due(release))
        keys = ["database", "table", "schema_version"]
        waiting = []
        for row in named.groupBy(*keys).agg(F.min("commit_ts").alias("first")).collect():
            if state.cache.schema(row[0] or "", row[1] or "", row[2]) is None:
                waiting.append(f"{row[0]}.{row[1]} version {row[2]}")
                limit = min(limit, row["first"] - 1)
        return limit, tuple(sorted(waiting))

    # --- the folder -------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return self._folder.path(_STATE, name)

    def _hold(self, df: DataFrame, batch: int, limit: int | None, state: _State) -> int:
        """Keeps what is later than `limit` for the next batch; gives how many changes there are."""
        if limit is None:
            return 0
        state.held = f"held-{batch}"
        later = df.where(F.col("kind").isin(*_SENT_KINDS) & (F.col("commit_ts") > limit))
        later.coalesce(1).write.mode("overwrite").parquet(self._path(state.held))
        held = df.sparkSession.read.schema(CHANGE_TYPE).parquet(self._path(state.held))
        return held.where("kind <> 'watermark'").count()

    def _load(self, batch: int) -> _State:
        text = self._folder.read(_STATE, f"{batch - 1}.json") if batch > 0 else None
        if text is not None:
            return _State.from_json(text)
        if batch > 0:
            raise SinkError(
                "the feed",
                f"the checkpoint has no state of batch {batch - 1}",
                "Start with a new checkpoint folder",
            )
        gate = Gate(watermarks=self._watermarks)
        shapes = pa.Table.from_batches([], schema=CHANGE_SCHEMA)
        return _State(gate, SchemaCache(), shapes)

    def _save(self, batch: int, state: _State) -> None:
        """Keeps also the state before: Spark may run this batch once more."""
        self._folder.write(state.to_json(), _STATE, f"{batch}.json")
        old = batch - _KEPT_STATES
        if old >= 0:
            self._folder.remove(_STATE, f"{old}.json")
            self._folder.remove(_STATE, f"held-{old}")


def _each_once(shapes: pa.Table) -> pa.Table:
    """One schema row for each shape."""
    first = {shape: place for place, shape in enumerate(shapes["shape"].to_pylist())}
    return shapes.take(pa.array(sorted(first.values()), pa.int64()))
