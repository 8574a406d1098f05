"""What goes wrong with Kafka and with messages, and what a query then does: see docs/spark.md."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from fuzz.mutate import mutate
from tests.support import corpus
from tests.support.corpus import Message
from tests.support.kafka import Broker
from tests.support.spark import arrow, assert_equal, decoded, fresh, stream
from tidegate.model import SourceError
from tidegate.spark import changes, explained, progress

SMALL = "ddl.canal.ext.stream"


@contextmanager
def running(df: DataFrame, folder: Path) -> Iterator[tuple[Any, Any]]:
    """A query that runs on, and a function that gives what it has written so far."""
    output = str(folder / "output")
    writer = df.writeStream.format("parquet").option("checkpointLocation", str(folder / "state"))
    query = writer.start(output)

    def written() -> pa.Table:
        query.processAllAvailable()
        return arrow(df.sparkSession.read.schema(df.schema).parquet(output))

    try:
        yield query, written
    finally:
        query.stop()


def poisoned(name: str, count: int) -> tuple[str, list[Message], set[int]]:
    """Good messages with bad ones among them, all of one partition, and which were mutated."""
    if name.startswith("poison"):
        bad = [poison.message for poison in corpus.poison(name)][:: 5000 // count]
        good = corpus.messages(name.replace("poison", "types"))
    else:
        chance = random.Random(7)
        good = corpus.messages(name)
        bad = [_broken(chance.choice(good), chance) for _ in range(count)]
    mixed: list[Message] = []
    mutated = set()
    for number, message in enumerate(bad):
        mixed.append(good[number % len(good)]._replace(partition=0))
        mutated.add(len(mixed))
        mixed.append(message._replace(partition=0))
    protocol = {"open": "open-protocol", "canal": "canal-json"}.get(name.split(".")[1])
    return protocol or name.split(".")[1], mixed, mutated


def _broken(message: Message, chance: random.Random) -> Message:
    return message._replace(value=mutate(message.value or b"", chance))


POISONED = [
    "poison.open.b16",
    "poison.canal.ext",
    "poison.craft.b16",
    "types.simple.json",
    "types.simple.avro",
]


def test_bad_messages_are_rows_and_the_good_ones_arrive(
    spark: SparkSession, kafka: Broker, tmp_path: Path
) -> None:
    cases = {name: poisoned(name, 1000) for name in POISONED}
    topics = {name: fresh(name) for name in POISONED}
    kafka.create(*topics.values(), partitions=1)
    kafka.send({topics[name]: messages for name, (_, messages, _) in cases.items()})

    for name, (protocol, messages, mutated) in cases.items():
        frame = changes(spark, kafka.uri(topics[name], protocol), max_per_trigger=1500)
        with running(frame, tmp_path / name) as (query, written):
            found = written()
            assert_equal(found, decoded(protocol, topics[name], messages))
            errors = found.filter(pc.equal(found["kind"], "error"))
            assert set(errors["offset"].to_pylist()) <= mutated
            assert len(errors) > len(mutated) // 10
            assert pc.all(pc.is_valid(pc.struct_field(errors["error"], "reason"))).as_py()
            assert progress(query, frame).decoded.bad_messages == len(errors)

            more = messages[::2][:100]
            kafka.send({topics[name]: more})
            assert_equal(written(), decoded(protocol, topics[name], messages + more))
            assert query.exception() is None


def test_a_broker_that_stops_and_a_topic_that_grows(
    spark: SparkSession, kafka: Broker, tmp_path: Path
) -> None:
    topic = fresh("grows")
    kafka.create(topic, partitions=3)
    messages = list(corpus.messages(SMALL))
    half = len(messages) // 2
    kafka.send({topic: messages[:half]})
    frame = changes(spark, kafka.uri(topic, "canal-json"))
    with running(frame, tmp_path) as (query, written):
        assert_equal(written(), decoded("canal-json", topic, messages[:half]))

        with kafka.stopped():
            assert query.isActive
        kafka.send({topic: messages[half:]})
        assert_equal(written(), decoded("canal-json", topic, messages))

        kafka.add_partitions(topic, 4)
        late = [message._replace(partition=3) for message in messages[:50]]
        kafka.send({topic: late})
        assert_equal(written(), decoded("canal-json", topic, messages + late))
        ends = progress(query, frame)
        assert set(ends.behind) == {(topic, partition) for partition in range(4)}
        assert ends.most_behind == 0
        assert query.exception() is None


def test_a_message_larger_than_the_fetch_size_is_read(spark: SparkSession, kafka: Broker) -> None:
    topic = fresh("large")
    kafka.create(topic, partitions=1)
    small = corpus.messages(SMALL)[:20]
    value = next(message.value for message in small if b'"type":"INSERT"' in (message.value or b""))
    assert value is not None
    grown = value.replace(b'"sql":""', b'"sql":"' + b"x" * 5_000_000 + b'"')
    assert len(grown) > 5_000_000
    messages = [message._replace(partition=0) for message in small]
    messages.insert(10, Message(0, None, grown, ""))
    kafka.send({topic: messages})

    fetch = {"kafka.max.partition.fetch.bytes": "10000", "kafka.fetch.max.bytes": "10000"}
    frame = changes(spark, kafka.uri(topic, "canal-json"), batch=True, options=fetch)
    assert_equal(arrow(frame), decoded("canal-json", topic, messages))


def test_messages_deleted_before_they_were_read_stop_the_query_unless_told_otherwise(
    spark: SparkSession, kafka: Broker, tmp_path: Path
) -> None:
    topic = fresh("deleted")
    kafka.create(topic, partitions=1)
    messages = [message._replace(partition=0) for message in corpus.messages(SMALL)[:300]]
    kafka.send({topic: messages[:100]})
    uri = kafka.uri(topic, "canal-json")
    stream(changes(spark, uri), tmp_path)
    kafka.send({topic: messages[100:]})
    kafka.delete_before(topic, {0: 200})

    with pytest.raises(StreamingQueryException) as raised:
        stream(changes(spark, uri), tmp_path)
    error = explained(raised.value, f"topic {topic!r}")
    assert isinstance(error, SourceError)
    assert "Kafka no longer has messages that were not read yet" in str(error)

    found, _ = stream(changes(spark, uri, fail_on_data_loss=False), tmp_path)
    whole = decoded("canal-json", topic, messages)
    gone = pc.and_(pc.greater_equal(whole["offset"], 100), pc.less(whole["offset"], 200))
    here = pc.and_(pc.not_equal(whole["event"], -1), pc.invert(gone))
    assert found.filter(pc.not_equal(found["event"], -1)).num_rows == pc.sum(here).as_py()
    assert set(found["offset"].to_pylist()) == {*range(100), *range(200, 300)}


def test_a_topic_that_does_not_exist_is_told_in_words(spark: SparkSession, kafka: Broker) -> None:
    topic = fresh("missing")
    with pytest.raises(Exception) as raised:
        changes(spark, kafka.uri(topic, "canal-json"), batch=True).count()
    error = explained(raised.value, f"topic {topic!r}")
    assert str(error).startswith(f"Cannot read topic {topic!r}: the topic does not exist.")
