"""Kafka for commands that must start at once: topics read and written without Spark.

It needs confluent-kafka (`pip install 'tidegate[kafka]'`). The connection is that of the sink URI,
in the words of librdkafka. Every question to a broker has a time limit, and an error says what
failed: the name, the connection, TLS or the login.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pyarrow as pa

from tidegate.feed.config import ChangefeedConfig, SinkUri
from tidegate.feed.settings import nearest
from tidegate.model import ConfigError, SinkError, SourceError
from tidegate.wire import CAPTURE_SCHEMA

ANSWER_SECONDS = 5.0
ATTEMPT_SECONDS = 1.5
"""How long one question waits: time for the other addresses of a host whose first one refuses."""
POLL_SECONDS = 0.5
STALL_SECONDS = 30.0
BATCH_MESSAGES = 10_000
FLUSH_SECONDS = 60.0

_AGE = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_STEP = "Check the address and the security settings, and that the broker runs"
_OTHER_SECURITY = "Check whether the port expects TLS (kafka+ssl://…) or a login (sasl-user=…)"


def is_kafka(source: str) -> bool:
    """Whether SOURCE or DEST names a topic."""
    return source.startswith(("kafka://", "kafka+ssl://"))


def connection_of(source: str) -> tuple[ChangefeedConfig, bool]:
    """The settings of a sink URI, and whether it names the protocol."""
    uri = SinkUri.parse(source)
    if uri.protocol is not None:
        return ChangefeedConfig.from_uri(uri), True
    # Any protocol serves: only the connection counts until messages have been looked at.
    named = replace(uri, parameters={**uri.parameters, "protocol": "open-protocol"})
    return ChangefeedConfig.from_uri(named), False


def _library() -> Any:
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ModuleNotFoundError as error:
        raise SourceError(
            "Kafka", "confluent-kafka is not installed", "Run: pip install 'tidegate[kafka]'"
        ) from error
    return confluent_kafka


# --- the connection -------------------------------------------------------------------------------


def client_settings(config: ChangefeedConfig) -> dict[str, Any]:
    """How to reach Kafka, in the words of librdkafka."""
    connection = config.kafka
    if connection is None:
        raise ConfigError("sink-uri", "it names no Kafka: write kafka://host:port/topic")
    told = connection.settings
    mechanism = told.get("sasl-mechanism")
    layers = ("SASL" if mechanism else "", "SSL" if connection.uses_tls else "PLAINTEXT")
    settings: dict[str, Any] = {
        "bootstrap.servers": ",".join(connection.brokers),
        "security.protocol": "_".join(filter(None, layers)),
        "log_level": 0,
    }
    for name, option in (
        ("kafka-client-id", "client.id"),
        ("dial-timeout", "socket.connection.setup.timeout.ms"),
        ("read-timeout", "socket.timeout.ms"),
        ("ca", "ssl.ca.location"),
        ("cert", "ssl.certificate.location"),
        ("key", "ssl.key.location"),
    ):
        if name in told:
            settings[option] = told[name]
    if connection.uses_tls and told.get("insecure-skip-verify"):
        settings["enable.ssl.certificate.verification"] = False
    return settings if mechanism is None else settings | _sasl(mechanism, told)


def _sasl(mechanism: str, told: Any) -> dict[str, Any]:
    settings = {"sasl.mechanisms": mechanism.upper()}
    if mechanism == "gssapi":
        principal = f"{told['sasl-gssapi-user']}@{told['sasl-gssapi-realm']}"
        return settings | {
            "sasl.kerberos.service.name": told["sasl-gssapi-service-name"],
            "sasl.kerberos.keytab": told["sasl-gssapi-keytab-path"],
            "sasl.kerberos.principal": principal,
        }
    if mechanism == "oauthbearer":
        raise ConfigError(
            "sasl-mechanism",
            "this command does not log in by OAuth; `tidegate bridge` does",
            source="the Kafka settings",
        )
    return settings | {
        "sasl.username": told["sasl-user"],
        "sasl.password": told["sasl-password"].reveal(),
    }


class Connection:
    """Asks brokers for topics, and explains why they do not answer."""

    def __init__(self, config: ChangefeedConfig) -> None:
        self.kafka = _library()
        self._config = config
        self._failures: list[Any] = []

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a client whose failures are to be explained here."""
        return client_settings(self._config) | {"error_cb": self._failures.append}

    def topics(self, client: Any, topic: str | None = None) -> Any:
        """The topics there are, or the one named, by name; KafkaException where nobody answers."""
        deadline = time.monotonic() + ANSWER_SECONDS
        asked = {} if topic is None else {"topic": topic}
        while True:
            left = max(0.1, min(ATTEMPT_SECONDS, deadline - time.monotonic()))
            try:
                return client.list_topics(**asked, timeout=left).topics
            except self.kafka.KafkaException:
                client.poll(0)  # calls back with what has failed
                down = self.kafka.KafkaError._ALL_BROKERS_DOWN
                all_down = any(each.code() == down for each in self._failures)
                if all_down or time.monotonic() >= deadline:
                    raise

    def explained(self, error: Any) -> tuple[str, str, str]:
        """Who fails, why, and what to do next."""
        brokers = ",".join(self._config.kafka.brokers if self._config.kafka else ())
        return f"Kafka at {brokers}", *self._reason(error)

    def _reason(self, error: Any) -> tuple[str, str]:
        codes, failures = self.kafka.KafkaError, [*self._failures, error]
        kinds = {each.code() for each in failures}
        if codes._RESOLVE in kinds:
            step = "Check the host name in the sink URI, and this machine's DNS"
            return "its host name cannot be resolved", step
        logins = [each.str() for each in failures if each.code() == codes._AUTHENTICATION]
        if logins:
            step = "Check sasl-mechanism, sasl-user and sasl-password in the sink URI"
            return f"it refuses the login ({_brief(logins[0])})", step
        # A broker that hangs up within the handshake is a failure of transport.
        handshakes = [
            each.str()
            for each in failures
            if each.code() == codes._SSL or "SSL handshake" in each.str()
        ]
        if handshakes:
            step = "Check that the port speaks TLS, and ca, cert and key in the sink URI"
            return f"TLS fails ({_brief(handshakes[0])})", step
        if any("Connection refused" in each.str() for each in failures):
            return "it refuses the connection", "Check host and port, and that the broker runs"
        if codes._ALL_BROKERS_DOWN in kinds:
            return "it closes the connection at once", _OTHER_SECURITY
        if error.code() in (codes._TRANSPORT, codes._TIMED_OUT):
            return f"it does not answer within {ANSWER_SECONDS:g} seconds", _STEP
        return error.str().rstrip("."), _STEP


def _brief(text: str) -> str:
    """What librdkafka says of a failure, without the broker and the time."""
    return re.sub(r"^\S+/\S+: | \(after [^)]*\)$", "", text).strip(" :")


# --- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading begins in every partition: an offset, so many from the end, or a time."""

    offset: int | None = None
    time_ms: int | None = None

    @classmethod
    def parse(cls, offset: int | None, text: str | None, now: datetime | None = None) -> Start:
        """From what a user says: an offset (below 0: from the end), a time or an age (15m)."""
        if offset is not None and text is not None:
            raise click.UsageError("give --from-offset or --from-time, not both.")
        if text is None:
            return cls(offset)
        try:
            if match := _AGE.fullmatch(text.strip()):
                age = timedelta(**{_UNITS[match[2]]: int(match[1])})
                moment = (now or datetime.now(UTC)) - age
            else:
                moment = datetime.fromisoformat(text.strip())
        except (ValueError, OverflowError):
            raise click.UsageError(
                f"--from-time {text!r}: write 2026-01-31T12:00:00, which is UTC unless it "
                "says otherwise, or an age: 90s, 15m, 2h, 1d."
            ) from None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return cls(None, round(moment.timestamp() * 1000))


class TopicReader:
    """The messages of the topic of a sink URI, in batches of CAPTURE_SCHEMA."""

    def __init__(self, config: ChangefeedConfig, start: Start, *, follow: bool = False) -> None:
        self._connection = Connection(config)
        self._kafka = self._connection.kafka
        self._config = config
        self._topic = config.topic or ""
        self._start = start
        self._follow = follow

    def batches(self) -> Generator[pa.RecordBatch]:
        """All messages up to those that are there when reading begins; with `follow` for ever."""
        consumer = self._kafka.Consumer(
            self._connection.settings
            | {
                "group.id": "tidegate-inspect",  # never joined: partitions are taken by hand
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.message.max.bytes": max(self._config.max_message_bytes, 1 << 20),
            }
        )
        try:
            yield from self._read(consumer)
        except self._kafka.KafkaException as error:
            raise self._failed(error.args[0]) from error
        finally:
            consumer.close()

    def _read(self, consumer: Any) -> Iterator[pa.RecordBatch]:
        places, ends = self._places(consumer)
        open_ones = {number for number, end in ends.items() if places[number].offset < end}
        if not open_ones and not self._follow:
            return
        consumer.assign(list(places.values()))
        heard = time.monotonic()
        while self._follow or open_ones:
            messages = []
            for message in consumer.consume(BATCH_MESSAGES, POLL_SECONDS):
                error = message.error()
                if error is None:
                    if self._follow or message.offset() < ends.get(message.partition(), 0):
                        messages.append(message)
                    if message.offset() + 1 >= ends.get(message.partition(), 0):
                        open_ones.discard(message.partition())
                elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                    # The last offsets may be no messages: marks of transactions, or compacted.
                    open_ones.discard(message.partition())
                else:
                    raise self._failed(error)
            if messages:
                yield _batch(messages)
                heard = time.monotonic()
            elif not self._follow and time.monotonic() - heard > STALL_SECONDS:
                reason = f"it has messages, and none came for {STALL_SECONDS:g} seconds"
                step = "Check that the addresses that the brokers advertise can be reached"
                raise SourceError(f"the topic {self._topic!r}", reason, step)

    def _places(self, consumer: Any) -> tuple[dict[int, Any], dict[int, int]]:
        """Where to begin in each partition, and where each ends now."""
        found = self._connection.topics(consumer, self._topic)[self._topic]
        if found.error is not None:
            if found.error.code() == self._kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise self._absent(consumer)
            raise self._failed(found.error)
        places, ends = {}, {}
        for number in sorted(found.partitions):
            place = self._kafka.TopicPartition(self._topic, number)
            low, high = consumer.get_watermark_offsets(place, timeout=ANSWER_SECONDS)
            wanted = self._start.offset
            if wanted is not None:
                place.offset = min(max(low, high + wanted if wanted < 0 else wanted), high)
            elif self._start.time_ms is not None:
                asked = self._kafka.TopicPartition(self._topic, number, self._start.time_ms)
                told = consumer.offsets_for_times([asked], timeout=ANSWER_SECONDS)[0].offset
                place.offset = told if told >= 0 else high
            else:
                place.offset = low
            places[number], ends[number] = place, high
        return places, ends

    def _absent(self, consumer: Any) -> SourceError:
        there = [name for name in self._connection.topics(consumer) if name[:2] != "__"]
        hint = f"; {nearest(self._topic, there)}" if there else ""
        step = f"Check its name{hint}. TiCDC makes it when the changefeed first sends"
        return SourceError(f"the topic {self._topic!r}", "it does not exist", step)

    def _failed(self, error: Any) -> SourceError:
        return SourceError(*self._connection.explained(error))


def check_brokers(config: ChangefeedConfig) -> None:
    """Raises SourceError where no broker of a feed answers."""
    connection = Connection(config)
    consumer = connection.kafka.Consumer(connection.settings | {"group.id": "tidegate-check"})
    try:
        connection.topics(consumer)
    except connection.kafka.KafkaException as error:
        raise SourceError(*connection.explained(error.args[0])) from error
    finally:
        consumer.close()


def _batch(messages: list[Any]) -> pa.RecordBatch:
    columns = [
        [message.topic() for message in messages],
        [message.partition() for message in messages],
        [message.offset() for message in messages],
        [_timestamp(message) for message in messages],
        [message.key() for message in messages],
        [message.value() for message in messages],
    ]
    arrays = [
        pa.array(column, one.type) for column, one in zip(columns, CAPTURE_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=CAPTURE_SCHEMA)


def _timestamp(message: Any) -> int | None:
    kind, milliseconds = message.timestamp()
    return None if kind == 0 else milliseconds


# --- writing --------------------------------------------------------------------------------------


class TopicWriter:
    """Sends messages (OUTGOING_SCHEMA) to their partitions, at most `rate` a second."""

    def __init__(
        self,
        config: ChangefeedConfig,
        *,
        rate: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = Connection(config)
        self._kafka = self._connection.kafka
        self._config = config
        self._rate = rate
        self._clock = clock
        self._failure: Any = None
        self._started: float | None = None
        self._sent = 0
        self._known: dict[str, int] = {}
        self._admin = self._kafka.admin.AdminClient(self._connection.settings)
        told = {} if config.kafka is None else config.kafka.settings
        self._producer = self._kafka.Producer(
            self._connection.settings
            | {
                "acks": told.get("required-acks", -1),
                "compression.type": told.get("compression", "none"),
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
            from tidegate.feed.changefeed import DEFAULT_PARTITIONS

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
                f"the topic {self._config.topic!r}", f"{left} messages were not taken", _STEP
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
