"""Kafka's topics, asked of the broker by the client that Spark's connector brings along.

A feed's topics are made as TiCDC makes them: where they are missing and `auto-create-topic` is on.
What is there already says how many partitions there are, and how long a message may be.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.send.changefeed import DEFAULT_PARTITIONS
from tidegate.model import ConfigError, SinkError, SourceError

ANSWER_SECONDS = 20
_RETRY_SECONDS = 0.2
_UNKNOWN = "UnknownTopicOrPartitionException"
_EXISTS = "TopicExistsException"
# What TiCDC leaves to Kafka of the longest message that a topic takes.
_MESSAGE_OVERHEAD = 128


def check_answer(spark: SparkSession, config: ChangefeedConfig) -> None:
    """Raises SourceError where Kafka does not answer: a query would wait for minutes to say so."""
    assert config.topic is not None
    try:
        with Topics(spark, config) as topics:
            topics.partitions(config.topic)
    except SinkError as error:
        raise SourceError(error.sink, error.reason, error.step) from error


class Topics:
    """The topics of one changefeed; to be used in a `with`."""

    def __init__(self, spark: SparkSession, config: ChangefeedConfig) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._config = config
        self._made: set[str] = set()
        self._admin: Any = None

    def __enter__(self) -> Topics:
        properties = self._jvm.java.util.Properties()
        limits = {
            "request.timeout.ms": str(ANSWER_SECONDS * 500),
            "default.api.timeout.ms": str(ANSWER_SECONDS * 1000),
        }
        told = self._config.kafka_options().items()
        options = {name.removeprefix("kafka."): value for name, value in told}
        for name, value in (limits | options).items():
            properties.setProperty(name, value)
        try:
            self._admin = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
        except Py4JJavaError as error:
            raise self._refused(error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._admin.close(self._jvm.java.time.Duration.ofSeconds(1))

    def prepare(self) -> tuple[int, int]:
        """Makes the default topic if need be; gives its partitions and the longest message."""
        assert self._config.topic is not None
        count = self._ready(self._config.topic, self._config.partition_num)
        longest = self._longest_message(self._config.topic)
        limit = self._config.max_message_bytes
        return count, limit if limit <= longest else longest - _MESSAGE_OVERHEAD

    def ready(self, topics: Iterable[str | None], partitions: int) -> None:
        """Makes those of the topics that are missing."""
        for topic in topics:
            if topic is not None and topic not in self._made:
                self._ready(topic, partitions)

    def _ready(self, topic: str, wanted: int | None) -> int:
        found = self.partitions(topic)
        if found is None:
            if not self._config.auto_create_topic:
                raise SinkError(
                    f"the topic {topic!r}",
                    "it does not exist, and auto-create-topic is off",
                    "Make the topic, or turn auto-create-topic on",
                )
            found = wanted or DEFAULT_PARTITIONS
            self._create(topic, found)
        if wanted is not None and wanted > found:
            raise ConfigError(
                "partition-num", f"it is {wanted}, but the topic {topic!r} has {found} partitions"
            )
        self._made.add(topic)
        return wanted or found

    def partitions(self, topic: str) -> int | None:
        """How many partitions a topic has; None if it is not there."""
        names = self._jvm.java.util.ArrayList()
        names.add(topic)
        try:
            told = self._admin.describeTopics(names).allTopicNames().get()
        except Py4JJavaError as error:
            if _UNKNOWN in _said(error):
                return None
            raise self._refused(error) from error
        count: int = told.get(topic).partitions().size()
        return count

    def _create(self, topic: str, partitions: int) -> None:
        wanted = self._jvm.java.util.ArrayList()
        new_topic = self._jvm.org.apache.kafka.clients.admin.NewTopic
        wanted.add(new_topic(topic, partitions, self._config.replication_factor))
        try:
            self._admin.createTopics(wanted).all().get()
        except Py4JJavaError as error:
            if _EXISTS not in _said(error):
                raise self._refused(error) from error

    def _longest_message(self, topic: str) -> int:
        config = self._jvm.org.apache.kafka.common.config.ConfigResource
        resource = config(config.Type.TOPIC, topic)
        asked = self._jvm.java.util.ArrayList()
        asked.add(resource)
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                configs = self._admin.describeConfigs(asked).all().get()
                return int(configs.get(resource).get("max.message.bytes").value())
            except Py4JJavaError as error:
                # A broker may not have heard yet of a topic that was just created.
                if _UNKNOWN not in _said(error) or time.monotonic() > deadline:
                    raise self._refused(error) from error
            time.sleep(_RETRY_SECONDS)

    def _refused(self, error: Py4JJavaError) -> SinkError:
        brokers = self._config.kafka_options()["kafka.bootstrap.servers"]
        said = _said(error)
        if "TimeoutException" in said or "No resolvable bootstrap urls" in said:
            reason = "it does not answer"
        else:
            reason = said.splitlines()[0]
        return SinkError(
            f"Kafka at {brokers}", reason, "Check the address, the security settings and the broker"
        )


def _said(error: Py4JJavaError) -> str:
    """The exception's own words, and those of what caused it."""
    said = []
    cause = error.java_exception
    while cause is not None:
        said.append(str(cause.toString()))
        cause = cause.getCause()
    return "\n".join(reversed(said))
