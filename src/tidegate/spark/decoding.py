"""Messages to changes inside Spark: the wire decoders run on Arrow batches in Python workers.

What a worker is sent is a `Reading` and nothing else; a batch of messages goes in, the change batch
of docs/batch.md comes out. Bad messages are rows, never failures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from tidegate.model import ConfigError, UnknownProtocol
from tidegate.spark.metrics import Tally, TallyCounter
from tidegate.spark.workers import forget_zip_importers
from tidegate.wire import CHANGE_SCHEMA, PROTOCOLS, decode_batch, from_uri
from tidegate.wire.batch.key_updates import mark_moves

CHANGE_TYPE: StructType = from_arrow_schema(CHANGE_SCHEMA)
"""The columns of a change batch in Spark's types."""

MAX_DECODED_BYTES = 64 * 1024 * 1024
"""Messages decoded at a time, whatever the session's batches are: their texts are 2 GiB at most."""

_MESSAGE_TYPES = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
}


@dataclass(frozen=True, slots=True)
class Reading:
    """How messages are read; `claim_check` is the folder or URI of their claim-check objects."""

    protocol: str
    encoding: str | None = None
    compression: str | None = None
    claim_check: str | None = None

    def decoder(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """A function from messages (key, value and, as far as there, their place) to changes."""
        if self.protocol not in PROTOCOLS:
            raise UnknownProtocol(self.protocol, PROTOCOLS)
        load = None if self.claim_check is None else from_uri(self.claim_check)

        def decode_messages(messages: pa.RecordBatch) -> pa.RecordBatch:
            names = messages.schema.names
            place = {
                f"{name}s": messages.column(name)
                for name in ("topic", "partition", "offset")
                if name in names
            }
            return decode_batch(
                self.protocol,
                messages.column("key"),
                messages.column("value"),
                encoding=self.encoding,
                compression=self.compression,
                claim_check=load,
                **place,
            )

        return decode_messages

    def check(self) -> None:
        """Raises on the driver what would else fail in every task."""
        empty = pa.RecordBatch.from_arrays([pa.array([], pa.binary())] * 2, ["key", "value"])
        self.decoder()(empty)


@dataclass(frozen=True, slots=True)
class Decoding:
    """What Spark sends to its Python workers: from batches of messages to change batches.

    These have only what was committed after `start_ts`, if that is given, and what has no time:
    schemas and errors.
    """

    reading: Reading
    counter: TallyCounter
    start_ts: int | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return map(mark_moves, self.decoded(batches))

    def decoded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same, but updates that take a row to another key are not marked as such."""
        decode_messages = self.reading.decoder()
        forget_zip_importers()
        for batch in batches:
            for messages in bounded(batch, MAX_DECODED_BYTES):
                started = time.perf_counter_ns()
                changes = decode_messages(messages)
                spent = time.perf_counter_ns() - started
                self.counter.add(Tally.of(messages, changes, spent))
                yield self._later(changes)

    def _later(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        if self.start_ts is None:
            return changes
        ts = changes["commit_ts"]
        timeless = pc.or_(pc.is_null(ts), pc.is_in(changes["kind"], pa.array(["schema", "error"])))
        return changes.filter(pc.or_(timeless, pc.fill_null(pc.greater(ts, self.start_ts), False)))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a DataFrame of changes comes from, of which it has the events after `start_ts`.

    `whole` reads the same feed from its beginning, bounded. `watermarks` tells, if known, whether
    the feed has any.
    """

    messages: DataFrame
    reading: Reading
    counter: TallyCounter
    start_ts: int | None = None
    whole: Callable[[], DataFrame] | None = None
    watermarks: bool | None = None

    @property
    def decoding(self) -> Decoding:
        """How its messages become changes."""
        return Decoding(self.reading, self.counter, self.start_ts)


_ORIGINS: WeakKeyDictionary[DataFrame, Origin] = WeakKeyDictionary()


def remember(changes: DataFrame, found: Origin) -> DataFrame:
    """Keeps the origin beside the DataFrame for as long as that lives."""
    _ORIGINS[changes] = found
    return changes


def origin(changes: DataFrame) -> Origin | None:
    """Where the DataFrame comes from, if it is what `changes` or `decode` gave, untouched."""
    return _ORIGINS.get(changes)


def bounded(batch: pa.RecordBatch, limit: int) -> Iterator[pa.RecordBatch]:
    """The batch in parts of at most `limit` bytes, or of one message that is larger."""
    if batch.nbytes <= limit:
        yield batch
        return
    start = size = 0
    for row in range(batch.num_rows):
        grown = sum(len(batch.column(part)[row].as_py() or b"") for part in ("key", "value"))
        if size + grown > limit and row > start:
            yield batch.slice(start, row - start)
            start, size = row, 0
        size += grown
    yield batch.slice(start)


def decode(
    df: DataFrame,
    protocol: str,
    *,
    encoding: str | None = None,
    compression: str | None = None,
    claim_check: str | None = None,
) -> DataFrame:
    """The changes in any DataFrame with `key` and `value`, streaming or not (see docs/batch.md).

    `topic`, `partition` and `offset` are taken along where they are there. `claim_check` is the
    folder, or the URI of one, that holds the feed's claim-check objects.
    """
    reading = Reading(protocol, encoding, compression, claim_check)
    reading.check()
    return changes_of(Origin(df, reading, TallyCounter.start(df.sparkSession)))


def changes_of(found: Origin) -> DataFrame:
    """The changes in messages whose settings are known to be right."""
    messages = message_columns(found.messages)
    return remember(messages.mapInArrow(found.decoding.__call__, CHANGE_TYPE), found)


def message_columns(df: DataFrame) -> DataFrame:
    """The columns of messages, as far as there, in the types that the decoders take."""
    types = {field.name: field.dataType for field in df.schema.fields}
    for name in ("key", "value"):
        if name not in types:
            raise ConfigError(name, "the DataFrame has no such column; messages have key and value")
    return df.select(
        *(
            F.col(name) if types[name] == wanted else F.col(name).cast(wanted).alias(name)
            for name, wanted in _MESSAGE_TYPES.items()
            if name in types
        )
    )
