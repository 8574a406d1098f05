"""Feeds of many topics in real lakes: tables that leave their topics, and topics of others."""

import pyarrow as pa
import pytest

from tests.lake.test_late import canal
from tests.support.lake import contents, new_lake
from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.receive.topic_use import FeedTopics
from tidegate.lake.job.mirror import Mirror, MirrorSettings
from tidegate.lake.job.source import feed_topics
from tidegate.lake.quarantine import BadMessages, Quarantine
from tidegate.wire import decode_batch
from tidegate.wire.batch.key_updates import mark_moves

START = 1 << 40
RULES = "[sink]\ndispatchers = [{matcher = ['*.*'], topic = '{schema}_{table}'}]"
URI = "kafka://h:1/main?protocol=canal-json&enable-tidb-extension=true"
BY_TABLE = feed_topics(ChangefeedConfig.from_toml(RULES, URI))


class Topics:
    """A feed whose tables have topics of one partition each, written by hand."""

    def __init__(self, lake):
        self._lake = lake
        self._ends = {}
        self._messages = []

    def raw(self, topic, value):
        offset = self._ends[topic] = self._ends.get(topic, -1) + 1
        self._messages.append((topic, offset, value))

    def row(self, ts, table, topic, key, kind="INSERT"):
        self.raw(topic, canal(START + ts, table, kind, after={"id": str(key)})[2])

    def ddl(self, ts, table, topic, query):
        self.raw(topic, canal(START + ts, table, "QUERY", query=query)[2])

    def watermark(self, ts, *topics):
        for topic in topics:
            self.raw(topic, canal(START + ts, "", "TIDB_WATERMARK")[2])

    def send(self):
        """Puts what was written into the changelog."""
        topics, offsets, values = zip(*self._messages, strict=True)
        nothing = pa.nulls(len(values), pa.binary())
        batch = decode_batch(
            "canal-json",
            nothing,
            pa.array(values, pa.binary()),
            topics=pa.array(topics),
            partitions=pa.array([0] * len(values), pa.int32()),
            offsets=pa.array(offsets, pa.int64()),
        )
        self._lake.changelog.add(pa.Table.from_batches([mark_moves(batch)]))
        self._messages = []


def moved(mirror, *topics):
    while mirror.step([(topic, 0) for topic in topics]):
        pass
    return mirror.state.applied_ts - START


@pytest.mark.parametrize("topics", [BY_TABLE, FeedTopics()], ids=["rules", "no rules"])
@pytest.mark.parametrize(
    ("query", "table", "rows"),
    [("DROP TABLE `a`", "b", ["2", "3"]), ("RENAME TABLE `a` TO `c`", "c", ["1", "3"])],
    ids=["drop", "rename"],
)
def test_a_lake_goes_on_when_a_table_has_left_its_topic(
    spark, tmp_path, query, table, rows, topics
):
    lake = new_lake(spark, tmp_path)
    settings = MirrorSettings(topics=topics)
    mirror = Mirror(lake, settings=settings)
    feed = Topics(lake)
    feed.ddl(1, "", "main", "CREATE DATABASE d")
    for number, name in enumerate("ab", 1):
        topic = f"d_{name}"
        feed.ddl(2, name, topic, f"CREATE TABLE `{name}` (`id` INT PRIMARY KEY)")
        feed.row(3, name, topic, number)
    feed.watermark(5, "main", "d_a", "d_b")
    feed.ddl(7, "c" if table == "c" else "a", "d_a", query)
    feed.row(8, table, f"d_{table}", 3)
    feed.watermark(10, "main", "d_b", *(["d_c"] if table == "c" else []))
    feed.send()
    assert moved(mirror, "main", "d_a", "d_b") == 10
    assert contents(lake)["d", table] == [(row,) for row in rows]
    again = Mirror(lake, settings=settings)
    assert again.gate.topics.retired == {"d_a"}


def test_a_topic_of_which_nothing_can_be_read_stops_and_holds_nothing(spark, tmp_path):
    lake = new_lake(spark, tmp_path)
    settings = MirrorSettings(topics=BY_TABLE)
    mirror = Mirror(lake, settings=settings)
    feed = Topics(lake)
    feed.ddl(2, "a", "d_a", "CREATE TABLE `a` (`id` INT PRIMARY KEY)")
    feed.row(3, "a", "d_a", 1)
    feed.raw("their_logs", b"nothing that TiCDC writes")
    feed.raw("their_logs", b"more of it")
    feed.watermark(5, "main", "d_a")
    feed.send()
    assert moved(mirror, "main", "d_a", "their_logs") == 5
    assert mirror.state.bad == 0
    mirror = Mirror(lake, settings=settings)
    assert mirror.gate.unreadable == {"their_logs": 2}
    assert Quarantine(lake).count() == 2

    feed.row(6, "z", "their_logs", 1)  # it is the feed's after all
    feed.watermark(9, "main", "d_a", "their_logs")
    feed.send()
    with pytest.raises(BadMessages, match="topic their_logs, partition 0, offset 0"):
        mirror.step()
    going_on = Mirror(lake, settings=MirrorSettings(topics=BY_TABLE, bad_messages="continue"))
    assert moved(going_on) == 9
    assert (going_on.gate.unreadable, going_on.state.bad) == ({}, 2)


@pytest.mark.parametrize("topic", ["main", "d_a"])
def test_a_bad_message_in_a_topic_of_the_feed_stops_the_mirror(spark, tmp_path, topic):
    lake = new_lake(spark, tmp_path)
    mirror = Mirror(lake, settings=MirrorSettings(topics=BY_TABLE))
    feed = Topics(lake)
    feed.ddl(2, "a", "main", "CREATE TABLE `a` (`id` INT PRIMARY KEY)")
    feed.raw(topic, b"garbage")
    feed.send()
    with pytest.raises(BadMessages, match=f"topic {topic}, partition 0, offset"):
        mirror.step()


def test_partitions_that_the_feed_does_not_write_to_hold_nothing(spark, tmp_path):
    lake = new_lake(spark, tmp_path)
    mirror = Mirror(lake, settings=MirrorSettings(topics=FeedTopics("main", partition_num=1)))
    feed = Topics(lake)
    feed.ddl(2, "a", "main", "CREATE TABLE `a` (`id` INT PRIMARY KEY)")
    feed.watermark(5, "main")
    feed.send()
    assert mirror.step([("main", 0), ("main", 1)]) is not None
