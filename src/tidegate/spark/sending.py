"""Changes become messages: the one task that all changes of a batch pass through, in order.

Spark sorts by commit_ts; here whole transactions are put in order, broadcast DDL becomes one again,
and a `Changefeed` makes the messages, which the same task then hands to Spark's Kafka sink. So
there is one writer, and the order of sending is the order of the changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidegate.changefeed.receive.gate import Gate
from tidegate.changefeed.receive.order import POSITION, in_order, once
from tidegate.changefeed.receive.release import GATED_KINDS, names_in
from tidegate.changefeed.send.changefeed import OUTGOING_SCHEMA, Changefeed
from tidegate.wire import CHANGE_SCHEMA

OUTGOING_TYPE: StructType = from_arrow_schema(OUTGOING_SCHEMA)
"""The columns that Spark's Kafka sink writes."""


@dataclass(slots=True)
class Sent:
    """What was sent: messages and their bytes, changes by kind, and the last watermark."""

    messages: int = 0
    bytes: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    watermark: int = 0

    def count(self, changes: pa.RecordBatch, messages: pa.RecordBatch) -> None:
        """Adds what `changes` were sent as."""
        self.messages += messages.num_rows
        for part in ("key", "value"):
            self.bytes += pc.sum(pc.binary_length(messages[part])).as_py() or 0
        for entry in pc.value_counts(changes["kind"]).to_pylist():
            kind = entry["values"]
            if kind != "schema":
                self.kinds[kind] = self.kinds.get(kind, 0) + entry["counts"]


@dataclass(slots=True)
class Sender:
    """What goes on from batch to batch: the feed with all it has sent, and the gate."""

    feed: Changefeed
    gate: Gate | None
    """None: everything is sent as it comes, and its commit_ts need not tell transactions."""
    transactions: bool = True
    """Whether all events of one commit_ts are of one transaction."""
    until: int | None = None
    """Up to where changes are sent, if that is not all that the gate releases."""
    sent: Sent = field(default_factory=Sent)

    def send(self, told: pa.RecordBatch, piece: pa.Table) -> pa.RecordBatch:
        """The messages of whole transactions; `told` are schema rows that go before them."""
        self.feed.learn(told)
        names_of = names_in(self.feed.shapes)
        due, release = piece, None
        if self.gate is not None:
            release = self.gate.release(self.until)
            due = release.split(piece, names_of).due
        ordered = in_order(due) if self.transactions else _as_they_came(due)
        changes = _with_marks(ordered, piece)
        batch = pa.concat_batches([told, *changes.to_batches()])
        messages = self.feed.send(batch)
        self.sent.count(batch, messages)
        self.sent.watermark = self.feed.watermark
        if self.gate is not None and release is not None and ordered.num_rows:
            latest = ordered["commit_ts"][-1].as_py()
            if latest == release.until:
                self.gate.mark_applied(latest, changes=ordered, names_of=names_of)
        return messages


class Returned:
    """What the task leaves behind for the driver: the sender as it is afterwards."""

    def __init__(self, accumulator: Accumulator[bytes]) -> None:
        self._accumulator = accumulator

    @classmethod
    def expect(cls, spark: SparkSession) -> Returned:
        """Nothing has been returned yet."""
        return cls(spark.sparkContext.accumulator(b"", _Last()))

    def put(self, sender: Sender) -> None:
        """For the task; Spark carries it to the driver if the task succeeds."""
        self._accumulator.add(cloudpickle.dumps(sender))  # type: ignore[no-untyped-call]

    def take(self) -> Sender | None:
        """For the driver; None if no task has ended."""
        content = self._accumulator.value
        found: Sender | None = cloudpickle.loads(content) if content else None
        return found


class _Last(AccumulatorParam[bytes]):
    def zero(self, value: bytes) -> bytes:
        return b""

    def addInPlace(self, value1: bytes, value2: bytes) -> bytes:
        return value2 or value1


@dataclass(frozen=True, slots=True)
class Sending:
    """What Spark runs in the one task: changes sorted by commit_ts in, messages out.

    `told` are the schema rows of what is known so far.
    """

    sender: Sender
    told: pa.RecordBatch
    returned: Returned

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        told = self.told
        for piece in whole_transactions(map(_as_changes, batches)):
            yield self.sender.send(told, piece)
            told = told.slice(0, 0)
        self.returned.put(self.sender)


def _as_changes(batch: pa.RecordBatch) -> pa.Table:
    """Spark names the parts of types in its own way."""
    return pa.Table.from_batches([batch]).select(CHANGE_SCHEMA.names).cast(CHANGE_SCHEMA)


def whole_transactions(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows, cut only where commit_ts changes; they are in its order."""
    rest: list[pa.Table] = []
    for table in tables:
        if table.num_rows == 0:
            continue
        stamps = table["commit_ts"]
        first, last = stamps[0].as_py(), stamps[-1].as_py()
        if rest and rest[-1]["commit_ts"][-1].as_py() != first:
            yield pa.concat_tables(rest)
            rest = []
        start = 0 if first == last else pc.index(stamps, stamps[-1]).as_py()
        if start:
            yield pa.concat_tables([*rest, table.slice(0, start)])
            rest = []
        rest.append(table.slice(start))
    if rest:
        yield pa.concat_tables(rest)


def _as_they_came(table: pa.Table) -> pa.Table:
    """By commit_ts, then by position: where milliseconds stand for commits, ties say nothing."""
    table = once(table.filter(pc.is_in(table["kind"], pa.array(GATED_KINDS))), by_text=True)
    keys = {
        "commit_ts": table["commit_ts"],
        "phase": pc.cast(pc.equal(table["kind"], "ddl"), pa.int8()),
        **{name: table[name] for name in POSITION},
    }
    order = [(name, "ascending") for name in keys]
    return table.take(pc.sort_indices(pa.table(keys), sort_keys=order))


def _with_marks(ordered: pa.Table, piece: pa.Table) -> pa.Table:
    """The changes with each watermark of the piece once, behind what it says is complete."""
    stamps = piece.filter(pc.equal(piece["kind"], "watermark"))["commit_ts"]
    stamps = pc.unique(stamps).drop_null() if len(stamps) else stamps
    if len(stamps) == 0:
        return ordered
    rows = [
        {"kind": "watermark", "event": 0, "flags": 0, "commit_ts": ts} for ts in stamps.to_pylist()
    ]
    together = pa.concat_tables([ordered, pa.Table.from_pylist(rows, schema=CHANGE_SCHEMA)])
    keys = {
        "commit_ts": together["commit_ts"],
        "is_mark": pc.cast(pc.equal(together["kind"], "watermark"), pa.int8()),
        "place": pa.array(range(together.num_rows), pa.int64()),
    }
    order = [(name, "ascending") for name in keys]
    return together.take(pc.sort_indices(pa.table(keys), sort_keys=order))
