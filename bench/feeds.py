"""Feeds in a real Kafka for benchmarks: the workload `sysbench`, rows of 20 columns, in any protocol.

Canal-JSON updates carry the whole old row, as TiCDC sends them unless it is told otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from confluent_kafka import Producer

from tests.support.kafka import Broker
from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.send.changefeed import Changefeed
from tidegate.workload import Workload, workload

PARTITIONS = 3
DATABASE, TABLE = "sbtest", "sbtest1"
CANAL = {"protocol": "canal-json", "enable-tidb-extension": "true"}
_RULES = '[sink]\ndispatchers = [{matcher = ["*.*"], partition = "index-value"}]'


def uri(address: str, topic: str, parameters: Mapping[str, str] = CANAL) -> str:
    """The sink URI of a feed in this topic."""
    told = {**parameters, "partition-num": str(PARTITIONS)}
    query = "&".join(f"{name}={value}" for name, value in told.items())
    return f"kafka://{address}/{topic}?{query}"


def sender(address: str, topic: str, parameters: Mapping[str, str] = CANAL) -> Changefeed:
    """The sending side of such a feed; rows of a key go to one partition."""
    return Changefeed(
        ChangefeedConfig.from_toml(_RULES, uri(address, topic, parameters)), clock=None
    )


def put(producer: Producer, topic: str, messages: pa.RecordBatch) -> None:
    """Hands messages to the producer."""
    columns = (messages[name].to_pylist() for name in ("partition", "key", "value"))
    for partition, key, value in zip(*columns, strict=True):
        producer.produce(topic, value=value, key=key, partition=partition)
    producer.poll(0)


def produce(
    kafka: Broker,
    topic: str,
    rows: int,
    keys: int,
    tables: int = 1,
    parameters: Mapping[str, str] = CANAL,
) -> int:
    """Sends the workload; the number of messages."""
    kafka.create(topic, partitions=PARTITIONS)
    feed = sender(kafka.address, topic, parameters)
    producer = Producer(
        {
            "bootstrap.servers": kafka.address,
            "linger.ms": 50,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    sent = 0
    source = workload("sysbench", rows=rows, seed=1, keys=keys, tables=tables)
    for batch in _messages(feed, source):
        put(producer, topic, batch)
        producer.flush()
        sent += batch.num_rows
    return sent


def _messages(feed: Changefeed, source: Workload) -> Iterator[pa.RecordBatch]:
    """One batch at a time: millions of messages would fill the memory."""
    yield from map(feed.send, source.batches())
    yield feed.close()
