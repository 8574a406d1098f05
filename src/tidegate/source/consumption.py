"""Reads offset ranges of Kafka partitions with librdkafka, into Arrow batches.

A range ends by offsets, not by counts: offsets of compacted and transactional topics have gaps.
Batches are bounded in messages and in bytes, and reading never waits forever.
"""

from __future__ import annotations

import gc
import os
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.model import SourceError, SourceUnreachable
from tidegate.source.client import Connection
from tidegate.source.topics import TopicPlace
from tidegate.wire import CAPTURE_SCHEMA
from tidegate.wire.kernel.binary import binary_arrays

BATCH_MESSAGES = 10_000
BATCH_BYTES = 64 << 20
FIRST_MESSAGES = 500
"""As long as the size of messages is not known, few are taken at once."""
POLL_SECONDS = 0.1
STALL_SECONDS = 30.0
QUEUES = (1_000, 8_000, 50_000)
"""How many messages of a partition a consumer may fetch ahead: one consumer is kept of each."""

_FETCHING = {
    "group.id": "tidegate",  # never joined: partitions are assigned here
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # else messages that were deleted would be passed over
    "isolation.level": "read_committed",
    "fetch.queue.backoff.ms": 2,  # the default of 1,000 makes short ranges wait
    "fetch.wait.max.ms": 10,
    "fetch.message.max.bytes": 8 << 20,
    "queued.max.messages.kbytes": 32 << 10,
    "check.crcs": False,
}


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The messages of a partition from `start` to before `end`; None: without end."""

    topic: str
    partition: int
    start: int
    end: int | None

    @property
    def place(self) -> TopicPlace:
        """Topic and partition."""
        return self.topic, self.partition


# --- consumers ------------------------------------------------------------------------------------

_idle: dict[tuple[Any, ...], list[tuple[Connection, Any]]] = {}
"""Consumers of this process that nobody uses now, by their settings."""


@contextmanager
def consumer_of(settings: Mapping[str, Any], queue: int) -> Iterator[tuple[Connection, Any]]:
    """A consumer to be used within, kept for the next range; one that failed is not.

    `queue` is about how many messages of a partition to fetch ahead: a longer queue than a range
    fetches messages past its end for nothing.
    """
    length = next((length for length in QUEUES if queue <= length), QUEUES[-1])
    # A process that was forked has the consumers of its parent, but not their threads.
    key = (os.getpid(), length, *sorted((name, str(value)) for name, value in settings.items()))
    idle = _idle.setdefault(key, [])
    if idle:
        connection, consumer = idle.pop()
    else:
        connection = Connection(settings)
        consumer = connection.consumer(_FETCHING | {"queued.min.messages": length})
    try:
        yield connection, consumer
        consumer.unassign()
    except GeneratorExit:  # the reader of the messages has enough of them
        consumer.unassign()
        idle.append((connection, consumer))
        raise
    except BaseException:
        consumer.close()
        raise
    idle.append((connection, consumer))


def close_consumers() -> None:
    """Closes the consumers of this process that nobody uses."""
    for key in [key for key in _idle if key[0] == os.getpid()]:
        for _, consumer in _idle.pop(key):
            consumer.close()


# --- reading --------------------------------------------------------------------------------------


def read_ranges(
    settings: Mapping[str, Any], ranges: Sequence[OffsetRange]
) -> Iterator[pa.RecordBatch]:
    """The messages of ranges of different partitions; in order within each partition."""
    wanted = [each for each in ranges if each.end is None or each.start < each.end]
    if not wanted:
        return
    longest = max(QUEUES[-1] if each.end is None else each.end - each.start for each in wanted)
    with consumer_of(settings, longest) as (connection, consumer):
        try:
            yield from _Consumption(connection, consumer, wanted).batches()
        except connection.kafka.KafkaException as error:
            raise connection.failed(error.args[0]) from error


class _Consumption:
    """Ranges that are being read by one consumer."""

    def __init__(
        self, connection: Connection, consumer: Any, ranges: Sequence[OffsetRange]
    ) -> None:
        self._connection = connection
        self._kafka = connection.kafka
        self._consumer = consumer
        self._ends = {each.place: each.end for each in ranges}
        self._next = {each.place: each.start for each in ranges}
        self._open = set(self._ends)
        self._is_endless = any(each.end is None for each in ranges)
        self._trouble: Any = None
        codes = self._kafka.KafkaError
        self._passing = {
            codes._TRANSPORT,
            codes._ALL_BROKERS_DOWN,
            codes._RESOLVE,
            codes._TIMED_OUT,
            codes.NOT_LEADER_FOR_PARTITION,
            codes.LEADER_NOT_AVAILABLE,
            codes.REPLICA_NOT_AVAILABLE,
            codes.OFFSET_NOT_AVAILABLE,
            codes.FENCED_LEADER_EPOCH,
            codes.UNKNOWN_LEADER_EPOCH,
            # Of the group, which is never joined.
            codes.COORDINATOR_NOT_AVAILABLE,
            codes.COORDINATOR_LOAD_IN_PROGRESS,
            codes.NOT_COORDINATOR,
            codes.GROUP_AUTHORIZATION_FAILED,
            codes._WAIT_COORD,
        }

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All messages, in batches of at most BATCH_MESSAGES and about BATCH_BYTES."""
        self._consumer.assign(
            [self._kafka.TopicPartition(*place, start) for place, start in self._next.items()]
        )
        count = FIRST_MESSAGES
        only = next(iter(self._ends)) if len(self._ends) == 1 else None
        heard = time.monotonic()
        while self._open:
            with _uncollected():
                received = self._consumer.consume(min(count, self._left()), POLL_SECONDS)
            messages = self._within(received)
            if messages:
                # Keys are small where values are not: only the bytes of values are bounded.
                arrays = binary_arrays([message.value() for message in messages], BATCH_BYTES)
                start = 0
                for values in arrays:
                    yield _batch(messages[start : start + len(values)], values, only)
                    start += len(values)
                size = sum(values.nbytes for values in arrays)
                per_message = max(1, size // len(messages))
                count = max(1, min(BATCH_MESSAGES, BATCH_BYTES // per_message))
            if received or self._is_endless:
                heard = time.monotonic()
            elif time.monotonic() - heard > STALL_SECONDS:
                raise self._stalled()

    def _left(self) -> int:
        """How many messages there can be until the ends: waiting for more would be for nothing."""
        if self._is_endless:
            return BATCH_MESSAGES
        if len(self._open) == 1:
            (place,) = self._open
            return max(1, (self._ends[place] or 0) - self._next[place])
        left = sum((self._ends[place] or 0) - self._next[place] for place in self._open)
        return max(1, left)

    def _within(self, received: list[Any]) -> list[Any]:
        """The messages that lie in their ranges; notes which ranges are read."""
        messages = [message for message in received if message.error() is None]
        if messages:
            if len(self._ends) == 1:
                messages = self._within_one(messages)
            else:
                messages = self._within_several(messages)
        if len(messages) < len(received):
            for message in received:
                if message.error() is not None:
                    self._note(message)
        return messages

    def _within_one(self, messages: list[Any]) -> list[Any]:
        (place,) = self._ends
        end = self._ends[place]
        last = messages[-1].offset()
        self._next[place] = last + 1
        if end is None or last + 1 < end:
            return messages
        self._open.discard(place)
        if last < end:
            return messages
        return messages[: bisect_left(messages, end, key=lambda message: message.offset())]

    def _within_several(self, messages: list[Any]) -> list[Any]:
        inside = []
        overrun = set()
        for message in messages:
            place = (message.topic(), message.partition())
            offset, end = message.offset(), self._ends[place]
            if end is None or offset < end:
                inside.append(message)
            elif place in self._open:
                overrun.add(place)
            self._next[place] = offset + 1
            if end is not None and offset + 1 >= end:
                self._open.discard(place)
        if overrun and self._open:  # more of these would be fetched for nothing
            places = [self._kafka.TopicPartition(*place) for place in overrun]
            self._consumer.incremental_unassign(places)
        return inside

    def _note(self, message: Any) -> None:
        """Takes note of the end of a partition, or of an error."""
        error, codes = message.error(), self._kafka.KafkaError
        place = (message.topic(), message.partition())
        if error.code() == codes._PARTITION_EOF:
            # The last offsets may have no messages: marks of transactions, or compacted ones.
            end = self._ends.get(place)
            if end is not None and message.offset() >= end:
                self._open.discard(place)
        elif error.code() == codes._AUTO_OFFSET_RESET:
            raise lost(*place, self._next.get(place, 0))
        elif error.code() in (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC):
            step = "Check the brokers: a topic that is deleted takes its messages along"
            raise SourceError(f"the topic {place[0]!r}", "it does not exist any more", step)
        elif error.code() in self._passing:
            self._trouble = error
        else:
            raise self._connection.failed(error)

    def _stalled(self) -> SourceError:
        topic, partition = min(self._open)
        if self._trouble is not None:
            return self._connection.failed(self._trouble)
        reason = (
            f"it has messages in partition {partition}, and none came for {STALL_SECONDS:g} seconds"
        )
        step = "Check that the addresses that the brokers advertise can be reached"
        return SourceUnreachable(f"the topic {topic!r}", reason, step)


def lost(topic: str, partition: int, offset: int, start: int | None = None) -> SourceError:
    """Says that messages were deleted before they were read."""
    until = "" if start is None else f" to {start - 1}"
    return SourceError(
        f"the topic {topic!r}",
        f"messages of partition {partition} were deleted before they were read: offset {offset}"
        f"{until}",
        "Mirror the changefeed into a new lake, and set a longer retention for the topic",
    )


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection: thousands of new messages would set it off for nothing."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def _batch(messages: list[Any], values: pa.BinaryArray, place: TopicPlace | None) -> pa.RecordBatch:
    """The messages as Arrow columns; `place` is that of all of them, if it is one."""
    count = len(messages)
    topic, partition = (CAPTURE_SCHEMA.field(name).type for name in ("topic", "partition"))
    (keys,) = binary_arrays([message.key() for message in messages])
    if place is None:
        topics = pa.array([message.topic() for message in messages], topic)
        partitions = pa.array([message.partition() for message in messages], partition)
    else:
        topics = pa.repeat(pa.scalar(place[0], topic), count)
        partitions = pa.repeat(pa.scalar(place[1], partition), count)
    arrays = [
        topics,
        partitions,
        _integers([message.offset() for message in messages]),
        _timestamps([message.timestamp()[1] for message in messages]),
        keys,
        values,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=CAPTURE_SCHEMA)


def _integers(numbers: list[int]) -> pa.Array:
    """Cheaper than to have Arrow look at each of them."""
    content = pa.py_buffer(array("q", numbers))
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, content])


def _timestamps(milliseconds: list[int]) -> pa.Array:
    kind = CAPTURE_SCHEMA.field("timestamp").type
    if min(milliseconds) < 0:  # -1: written by a client that knows no times
        return pa.array([None if each < 0 else each for each in milliseconds], kind)
    return _integers(milliseconds).view(kind)
