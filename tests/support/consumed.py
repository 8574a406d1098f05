"""What a plain Kafka client reads from a topic, and the changes in it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from tests.support.kafka import Broker
from tidegate.wire import decode_batch

TIMEOUT = 60


class Consumed(NamedTuple):
    """A message as Kafka gave it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def consumed(broker: Broker, *topics: str) -> list[Consumed]:
    """All messages of topics, partition by partition, from the first to the last."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "tests",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "log_level": 0,
        }
    )
    try:
        listed = consumer.list_topics(timeout=TIMEOUT).topics
        places = [
            TopicPartition(topic, partition, OFFSET_BEGINNING)
            for topic in topics
            for partition in listed[topic].partitions
        ]
        left = 0
        for place in places:
            first, end = consumer.get_watermark_offsets(place, timeout=TIMEOUT)
            left += end - first
        consumer.assign(places)
        found: list[Any] = []
        while len(found) < left:
            some = consumer.consume(min(10_000, left - len(found)), timeout=TIMEOUT)
            assert some, f"only {len(found)} of {left} messages came"
            found += some
    finally:
        consumer.close()
    messages = [
        Consumed(one.topic(), one.partition(), one.offset(), one.key(), one.value())
        for one in found
    ]
    return sorted(messages, key=lambda one: one[:3])


def partition_count(broker: Broker, topic: str) -> int:
    return len(broker.admin().list_topics(topic, timeout=TIMEOUT).topics[topic].partitions)


def changes_of(messages: list[Consumed], protocol: str) -> pa.RecordBatch:
    """The messages, decoded."""
    return decode_batch(
        protocol,
        pa.array([one.key for one in messages], pa.binary()),
        pa.array([one.value for one in messages], pa.binary()),
        topics=pa.array([one.topic for one in messages], pa.string()),
        partitions=pa.array([one.partition for one in messages], pa.int32()),
        offsets=pa.array([one.offset for one in messages], pa.int64()),
    )
