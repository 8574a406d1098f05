"""Every golden stream, through a real broker, reads in Spark as its messages decode: each once.

One query reads all topics of a protocol, in small triggers, is stopped in the middle and
started again; its output is compared topic by topic.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support import corpus
from tests.support.corpus import Variant
from tests.support.decoding import PROTOCOLS
from tests.support.kafka import Broker
from tests.support.spark import assert_equal, decoded, stream
from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.spark import changes
from tidegate.spark.decoding import origin

STREAMS = [variant for variant in corpus.variants() if variant.stream]
TRIGGERS = 4


def topic(variant: Variant) -> str:
    return "golden." + variant.name.replace("/", "-")


@pytest.fixture(scope="module")
def sent(kafka: Broker) -> Broker:
    """All streams in the broker, a topic each, with three partitions."""
    kafka.create(*map(topic, STREAMS), partitions=3)
    kafka.send({topic(variant): corpus.messages(variant.name) for variant in STREAMS})
    return kafka


def has_run_a_batch(query: Any) -> bool:
    return query.lastProgress is not None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_golden_streams_read_as_they_decode(
    spark: SparkSession, sent: Broker, tmp_path: Path, protocol: str
) -> None:
    variants = [variant for variant in STREAMS if variant.protocol == protocol]
    count = sum(variant.messages for variant in variants)
    topics = list(map(topic, variants))
    uri = sent.uri(topics[0], PROTOCOLS[protocol])
    rules = [f"{{matcher = ['d{n}.*'], topic = '{name}'}}" for n, name in enumerate(topics)]
    feed = ChangefeedConfig.from_toml(f"[sink]\ndispatchers = [{', '.join(rules)}]", uri)
    assert all(variant.compression is None for variant in variants)

    def read() -> DataFrame:
        return changes(spark, uri, changefeed=feed, max_per_trigger=count // TRIGGERS)

    part, _ = stream(read(), tmp_path, until=has_run_a_batch)
    frame = read()
    whole, progress = stream(frame, tmp_path)

    by_topic = {name: whole.filter(pc.equal(whole["topic"], name)) for name in topics}
    for variant, name in zip(variants, topics, strict=True):
        messages = corpus.messages(variant.name)
        told = decoded(PROTOCOLS[protocol], name, messages, encoding=variant.encoding)
        assert_equal(by_topic[name], told)
    assert whole.num_rows == sum(table.num_rows for table in by_topic.values())
    read_again = sum(batch["numInputRows"] for batch in progress)
    assert 0 < read_again < count, "the restart was not in the middle"
    assert 0 < part.num_rows < whole.num_rows
    read_from = origin(frame)
    assert read_from is not None
    assert read_from.counter.value.messages == read_again
