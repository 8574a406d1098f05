"""Feeds mirrored from where users have them, a capture or Kafka, by the settings that users give.

`test_mirror` fills changelogs itself; here a feed goes the whole way, ingest included, and the
tables are compared at every instant that was recorded. Some feeds, all with TIDEGATE_ALL=1.
"""

import os

import pyarrow as pa
import pytest

from tests.changefeed.test_replay import EVENTUAL, STOPPED, STREAMS, Source
from tests.lake.test_mirror import check
from tests.support import corpus
from tests.support.decoding import PROTOCOLS
from tests.support.lake import contents, expected
from tests.support.table_model import model_of
from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.send.changefeed import Changefeed
from tidegate.lake import Lake
from tidegate.lake.job.mirror import Mirror
from tidegate.lake.job.run import MirrorRun
from tidegate.lake.job.settings import LakeSettings
from tidegate.lake.job.source import open_feed
from tidegate.wire import CAPTURE_SCHEMA, write_capture
from tidegate.workload import workload

ALL = bool(os.environ.get("TIDEGATE_ALL"))
CHOSEN = [
    ("bank.simple.json.stream", "kafka", "iceberg"),
    ("bank.canal.stream", "capture", "iceberg"),
]


def short_feeds():
    """A feed of one partition for each of the other scenarios with keys, in each encoding."""
    others = ("types", "types_ck", "alias", "large", "tall8", "x_flags", "x_nulls", "x_renameswap")
    found = {}
    for variant in corpus.variants():
        is_plain = variant.compression is None and not variant.options & {"cc", "hk", "raw"}
        tells_instants = variant.protocol != "canal" or "ext" in variant.options
        if variant.scenario in others and is_plain and tells_instants:
            found.setdefault((variant.truth, variant.protocol, variant.encoding), variant)
    return list(found.values())


CASES = CHOSEN
if ALL:
    CASES = [
        *((variant.name, "kafka", "iceberg") for variant in STREAMS),
        *((variant.name, "capture", "delta") for variant in STREAMS),
        *((variant.name, "capture", "iceberg") for variant in short_feeds()),
    ]


def mirrored(spark, folder, /, **given):
    """A lake that has taken in all of a feed, and its mirror as the next run would find it."""
    settings = LakeSettings(**{"folder": str(folder / "lake"), **given})
    feed = open_feed(spark, settings)
    lake = Lake.create(spark, settings.place, settings.format)
    MirrorRun(lake, feed, settings.mirror()).once()
    return lake, Mirror(lake, watermarks=feed.watermarks)


def captured(variant, folder):
    """A golden stream as `tidegate inspect` and `tidegate mirror` read it."""
    path = folder / "feed.jsonl.gz"
    messages = [message._asdict() for message in corpus.messages(variant.name)]
    write_capture(path, [pa.RecordBatch.from_pylist(messages, CAPTURE_SCHEMA)])
    return str(path)


def sent(variant, broker, topic):
    """The sink URI of a golden stream in a topic of its own."""
    broker.create(topic, partitions=3)
    broker.send({topic: corpus.messages(variant.name)})
    extension = {"enable-tidb-extension": "true"} if variant.options else {}
    return broker.uri(topic, PROTOCOLS[variant.protocol], **extension)


@pytest.mark.parametrize(("name", "way", "table_format"), CASES)
def test_a_golden_feed_comes_to_the_tables_of_its_source(
    request, spark, tmp_path, name, way, table_format
):
    variant = corpus.variant(name)
    if way == "kafka":
        topic = f"mirrored.{name.replace('/', '-')}"
        source = sent(variant, request.getfixturevalue("kafka"), topic)
    else:
        source = captured(variant, tmp_path)
    assert_golden(*mirrored(spark, tmp_path, source=source, format=table_format), variant)


def assert_golden(lake, mirror, variant):
    """The tables are those of the golden feed's source at every instant that was recorded."""
    stopped = {tuple(table.name) for table in mirror.stopped()}
    assert stopped == (STOPPED if variant.scenario == "ddl" else set())
    if variant in EVENTUAL:
        truth = expected(Source(variant.truth).at(2**63))
        actual = contents(lake)
        assert {name: rows for name, rows in actual.items() if name not in stopped} == truth
    else:
        assert mirror.state.applied_ts == mirror.gate.resolved_ts > 0
        for instant, _ in lake.snapshots.instants():
            check(lake, mirror, variant, instant)


class WorkloadFeed:
    """A workload and a capture of its feed."""

    rate = 100

    def __init__(self, name, rows, path):
        self.rows, self.path = rows, path
        self.source = workload(name, rows=rows, seed=3, rate=self.rate)
        uri = "kafka://127.0.0.1:9092/feed?protocol=open-protocol&partition-num=3"
        feed = Changefeed(ChangefeedConfig.from_uri(uri), clock=None)
        write_capture(path, [*map(feed.send, self.source.batches()), feed.close()])
        self.watermark = feed.watermark

    def step_ms(self, snapshots):
        """The time of its source between two of so many snapshots."""
        return self.rows * 1000 // self.rate // snapshots

    def assert_mirrored(self, lake, mirror, snapshots):
        """The lake has so many instants, and at each the tables are what the source knows."""
        instants = sorted({ts for ts, _ in lake.snapshots.instants()})
        assert len(instants) >= snapshots
        assert instants[-1] == self.watermark
        for ts in instants:
            truth = expected(model_of(self.source.at(ts)))
            actual = contents(lake, ts)
            assert actual.keys() == truth.keys(), ts
            for table, rows in truth.items():
                assert actual[table] == rows, (ts, table)
        assert mirror.stopped() == []


@pytest.mark.parametrize("name", ["bank", "orders"])
def test_every_snapshot_of_a_workload_is_what_it_knows_to_be_true(spark, tmp_path, name):
    """All tables at once: what holds across tables upstream holds across them here."""
    rows, snapshots = (20_000, 40) if ALL else (900, 3)
    feed = WorkloadFeed(name, rows, tmp_path / "feed.parquet")
    step = feed.step_ms(snapshots)
    lake, mirror = mirrored(spark, tmp_path, source=str(feed.path), max_step_ms=step)
    feed.assert_mirrored(lake, mirror, snapshots)
