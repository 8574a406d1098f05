"""Sends the messages of a feed to Kafka, in their order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.model import ConfigError, SinkError
from tidegate.source.client import ANSWER_SECONDS, CHECK_STEP, Connection

POLL_SECONDS = 0.5
FLUSH_SECONDS = 60.0


class TopicWriter:
    """Sends messages (OUTGOING_SCHEMA) to their partitions, at most `rate` a second."""

    def __init__(
        self,
        config: ChangefeedConfig,
        *,
        rate: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = Connection.of(config)
        self._kafka = self._connection.kafka
        self._config = config
        self._rate = rate
        self._clock = clock
        self._failure: Any = None
        self._started: float | None = None
        self._sent = 0
        self._known: dict[str, int] = {}
        self._admin = self._connection.admin()
        values = {} if config.kafka is None else config.kafka.settings
        self._producer = self._connection.producer(
            {
                "acks": values.get("required-acks", -1),
                "compression.type": values.get("compression", "none"),
                "message.max.bytes": config.max_message_bytes + 4096,
                "max.in.flight.requests.per.connection": 1,  # keeps the order, whatever fails
                "linger.ms": 20,
            }
        )

    def partitions(self, topic: str | None = None) -> int:
        """How many the topic has; it is made if it is not there and may be."""
        name = topic or self._config.topic or ""
        if name not in self._known:
            self._known[name] = self._prepare(name)
        return self._known[name]

    def _prepare(self, topic: str) -> int:
        wanted = self._config.partition_num
        found = self._there(topic)
        if found is None:
            if not self._config.auto_create_topic:
                reason = "it does not exist, and auto-create-topic is off"
                step = "Make the topic, or turn auto-create-topic on"
                raise SinkError(f"the topic {topic!r}", reason, step)
            from tidegate.changefeed.send.changefeed import DEFAULT_PARTITIONS

            found = wanted or DEFAULT_PARTITIONS
            self._create(topic, found)
        if wanted is not None and wanted > found:
            reason = f"it is {wanted}, but the topic {topic!r} has {found} partitions"
            raise ConfigError("partition-num", reason)
        return wanted or found

    def _there(self, topic: str) -> int | None:
        try:
            found = self._connection.topics(self._admin).get(topic)
        except self._kafka.KafkaException as error:
            raise self._failed(error.args[0]) from error
        return None if found is None else len(found.partitions)

    def _create(self, topic: str, partitions: int) -> None:
        new = self._kafka.admin.NewTopic(topic, partitions, self._config.replication_factor)
        asked = self._admin.create_topics([new], request_timeout=ANSWER_SECONDS)
        try:
            asked[topic].result(ANSWER_SECONDS)
        except self._kafka.KafkaException as error:
            if error.args[0].code() != self._kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._failed(error.args[0]) from error

    def write(self, messages: pa.RecordBatch) -> None:
        """Sends a batch in its order; waits where that would be faster than `rate`."""
        columns = (messages[name].to_pylist() for name in ("topic", "partition", "key", "value"))
        for topic, partition, key, value in zip(*columns, strict=True):
            self._wait()
            if topic is not None and topic not in self._known:
                self.partitions(topic)
            while True:
                try:
                    self._producer.produce(
                        topic or self._config.topic,
                        value,
                        key,
                        partition=partition,
                        on_delivery=self._delivered,
                    )
                    break
                except BufferError:  # its queue is full: wait until some are delivered
                    self._producer.poll(POLL_SECONDS)
                    self._check()
            self._sent += 1
            self._producer.poll(0)
        self._check()

    def write_all(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Sends batches and waits until all is delivered; gives how many messages there were."""
        for batch in batches:
            self.write(batch)
        self.close()
        return self._sent

    def close(self) -> None:
        """Until all is delivered."""
        left = self._producer.flush(FLUSH_SECONDS)
        self._check()
        if left:
            raise SinkError(
                f"the topic {self._config.topic!r}", f"{left} messages were not taken", CHECK_STEP
            )

    def _wait(self) -> None:
        if self._rate is None:
            return
        if self._started is None:
            self._started = self._clock()
        due = self._started + self._sent / self._rate
        while (left := due - self._clock()) > 0:
            self._producer.poll(min(left, POLL_SECONDS))

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None and self._failure is None:
            self._failure = error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failed(self._failure)

    def _failed(self, error: Any) -> SinkError:
        return SinkError(*self._connection.explained(error))
