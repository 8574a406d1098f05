"""A feed in one protocol, sent on in another: what is mirrored from it is still the truth.

With TIDEGATE_ALL=1 every protocol is sent on in every other one, with 100,000 row changes each.
"""

import os
from functools import cache
from itertools import permutations

import pyarrow as pa
import pytest

from tests.support.consumed import changes_of, consumed
from tests.support.corpus import Message
from tests.support.mirror import Mirror
from tests.support.spark import fresh
from tests.support.table_model import state_of
from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.receive.gate import Gate
from tidegate.changefeed.send.changefeed import Changefeed
from tidegate.spark import changes, publish
from tidegate.workload import workload

PARTITIONS = 3
TIMEOUT = 300
ROWS = 100_000 if os.environ.get("TIDEGATE_ALL") else 3000
FEEDS = {
    "open": ("open-protocol", {}),
    "canal": ("canal-json", {"enable_tidb_extension": "true"}),
    "craft": ("craft", {}),
    "simple": ("simple", {}),
    "avro": ("simple", {"encoding_format": "avro"}),
}
RULES = '[[sink.dispatchers]]\nmatcher = ["*.*"]\npartition = "index-value"\n'


@cache
def orders():
    return workload("orders", rows=ROWS, seed=11, rate=700)


def messages(batch):
    columns = (batch[name].to_pylist() for name in ("partition", "key", "value"))
    return [Message(*row, "") for row in zip(*columns, strict=True)]


@pytest.fixture(scope="module")
def sources(kafka):
    """The workload as each protocol's feed has it, in Kafka."""
    found = {}
    for name, (protocol, parameters) in FEEDS.items():
        uri = kafka.uri(fresh(f"from-{name}"), protocol, partition_num="3", **parameters)
        feed = Changefeed(ChangefeedConfig.from_toml(RULES, uri), clock=None)
        sent = [message for batch in orders().batches() for message in messages(feed.send(batch))]
        topic = feed.config.topic
        kafka.create(topic, partitions=PARTITIONS)
        kafka.send({topic: sent + messages(feed.close())})
        found[name] = uri
    return found


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    path = tmp_path_factory.mktemp("rules") / "changefeed.toml"
    path.write_text(RULES)
    return path


def target(kafka, name):
    protocol, parameters = FEEDS[name]
    topic = fresh(f"to-{name}")
    return topic, protocol, kafka.uri(topic, protocol, partition_num="3", **parameters)


def assert_mirrored(kafka, topic, protocol):
    found = changes_of(consumed(kafka, topic), protocol)
    mirror = Mirror(Gate([(topic, partition) for partition in range(PARTITIONS)]))
    mirror.read(pa.Table.from_batches([found]))
    assert mirror.is_done()
    assert mirror.model.state() == state_of(orders().final())


PAIRS = [
    *permutations(["open", "canal", "craft", "simple"], 2),
    ("avro", "canal"),
    ("craft", "avro"),
]
if os.environ.get("TIDEGATE_ALL"):
    PAIRS = [*permutations(FEEDS, 2)]


@pytest.mark.parametrize(("source", "sink"), PAIRS)
def test_what_is_mirrored_behind_a_bridge_is_the_truth(source, sink, spark, kafka, sources, rules):
    topic, protocol, uri = target(kafka, sink)
    report = publish(changes(spark, sources[source], batch=True), uri, changefeed=rules)
    assert (report.bad, report.held, report.consistency) == (0, 0, "snapshot")
    assert report.rows >= ROWS
    assert_mirrored(kafka, topic, protocol)


def run(query):
    assert query.awaitTermination(TIMEOUT), "the query did not end"


@pytest.mark.parametrize(("source", "sink"), [("canal", "craft")])
def test_a_stream_in_small_triggers_goes_on_after_a_restart(
    source, sink, spark, kafka, sources, rules, tmp_path
):
    topic, protocol, uri = target(kafka, sink)
    reports = []

    def start(after=None):
        def told(report):
            reports.append(report)
            if len(reports) == after:
                raise RuntimeError("stopped in the middle")

        feed = changes(spark, sources[source], max_per_trigger=2 * ROWS // 3)
        return publish(
            feed, uri, changefeed=rules, checkpoint=tmp_path / "state", once=True, on_batch=told
        )

    with pytest.raises(Exception, match="stopped in the middle"):
        run(start(after=2))
    run(start())
    assert [report.batch for report in reports[:3]] == [0, 1, 1]  # what was not noted is sent again
    assert any(report.held for report in reports)
    assert reports[-1].held == 0
    assert [report.watermark for report in reports] == sorted(r.watermark for r in reports)
    assert_mirrored(kafka, topic, protocol)
