"""Whole feeds mirrored into real tables: equal to the source at every instant that is recorded.

The truth is the in-memory model of tests/changefeed/test_replay.py, which SELECT's own results have
confirmed. Not compared are FLOAT columns of Craft, whose bytes TiCDC itself spoils, and the tables
that a statement stops.
"""

import os
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.changefeed.test_replay import SNAPSHOT, STOPPED, Source, decoded
from tests.lake.test_late import Script
from tests.model_check.golden_feeds import golden_feed
from tests.model_check.sender import Cut, deliveries
from tests.support import corpus
from tests.support.lake import contents, expected, fill, in_chunks, new_lake
from tidegate.lake.job.mirror import Mirror
from tidegate.lake.maintenance import maintain, obstacle
from tidegate.model import LakeError
from tidegate.model.sql import quoted
from tidegate.model.types import MySQLType

PARTITIONS = [("", number) for number in range(3)]
# Feeds of every protocol and how they are cut; all of them with TIDEGATE_ALL=1 (with Delta in
# test_sources.py).
CHOSEN = {
    ("bank.open.b16.stream", "iceberg"): Cut(4, seed=1, skew=True, restarts=True),
    ("bank.canal.ext.stream", "delta"): Cut(1),
    ("bank.craft.b16.stream", "iceberg"): Cut(2, seed=2),
    ("ddl.simple.json.stream", "iceberg"): Cut(3, seed=3, skew=True),
}
SLOW_DROPS = [("applied", "delta")] if os.environ.get("TIDEGATE_ALL") else []
if os.environ.get("TIDEGATE_ALL"):
    CHOSEN |= {
        (variant.name, "iceberg"): Cut(3, seed, skew=True) for seed, variant in enumerate(SNAPSHOT)
    }


def check(lake, mirror, variant, at):
    """The tables at an instant are those of the source."""
    without = [MySQLType.FLOAT] if variant.protocol == "craft" else []
    truth = expected(Source(variant.truth).at(at), without=without)
    stopped = {tuple(table.name) for table in mirror.stopped()}
    actual = contents(lake, at, without=without)
    actual = {name: rows for name, rows in actual.items() if name not in stopped}
    assert set(actual) == set(truth) - stopped
    for name, rows in actual.items():
        assert rows == truth[name], name


@pytest.mark.parametrize(("name", "table_format"), CHOSEN)
def test_the_tables_are_those_of_the_source_at_every_instant(spark, tmp_path, name, table_format):
    """However the feed is cut, at whatever speed each partition is read."""
    variant, feed, cut = corpus.variant(name), golden_feed(name), CHOSEN[name, table_format]
    lake = new_lake(spark, tmp_path, table_format)
    mirror = Mirror(lake)
    instants = []
    for delivery in deliveries(feed.sent(), feed, cut):
        fill(lake, feed.decode(delivery.messages))
        if cut.restarts:
            mirror = Mirror(lake)
        while mirror.step(PARTITIONS):
            instants.append(mirror.state.applied_ts)
    assert mirror.state.applied_ts == mirror.gate.resolved_ts > 0
    for instant in instants:
        check(lake, mirror, variant, instant)
    stopped = {tuple(table.name) for table in mirror.stopped()}
    assert stopped == (STOPPED if variant.scenario.endswith("ddl") else set())


def test_a_feed_without_watermarks_comes_to_the_same_in_the_end(spark, tmp_path):
    variant = corpus.variant("bank.canal.stream")
    lake = new_lake(spark, tmp_path)
    mirror = Mirror(lake, watermarks=False)
    for part in in_chunks(decoded(variant.name), 3):
        fill(lake, part)
        while mirror.step(PARTITIONS):
            pass
    assert mirror.gate.consistency == "eventual"
    truth = expected(Source(variant.truth).at(2**63))
    assert contents(lake) == truth


def test_nothing_moves_before_every_partition_has_spoken(spark, tmp_path):
    lake = new_lake(spark, tmp_path)
    mirror = Mirror(lake)
    fill(lake, decoded("bank.canal.ext.stream"))
    assert mirror.step([*PARTITIONS, ("", 3)]) is None
    assert mirror.gate.silent == (("", 3),)


@pytest.mark.parametrize("boundary", ["planned", "intended", "rows", "rename", "applied"])
def test_a_step_that_is_cut_off_is_done_again(spark, tmp_path, boundary):
    """After a crash a new mirror finishes the step, and what was done is not done twice."""

    class Crash(Exception):
        pass

    def crash(name):
        if name == boundary:
            raise Crash

    feed = decoded("bank.open.b16.stream")
    first, second = in_chunks(feed, 2)
    renamed = statements(
        second,
        (1, "RENAME TABLE `bank`.`journal` TO `bank`.`ledger`"),
        (2, "CREATE TABLE `bank`.`journal` (`id` INT PRIMARY KEY)"),
    )
    lake = new_lake(spark, tmp_path)
    fill(lake, first)
    fill(lake, second)
    fill(lake, renamed)
    with pytest.raises(Crash):
        Mirror(lake, boundary=crash).step(PARTITIONS)
    mirror = Mirror(lake)
    while mirror.step(PARTITIONS):
        pass
    at = mirror.state.applied_ts
    truth = expected(Source("bank").at(2**63))
    actual = contents(lake, at)
    assert actual.pop(("bank", "journal")) == []
    assert actual == {
        ("bank", "ledger"): truth["bank", "journal"],
        ("bank", "accounts"): truth["bank", "accounts"],
    }


def test_a_step_that_was_cut_off_is_over_when_it_is_done_again(spark, tmp_path):
    """Also after steps that were not recorded, and its tables can be read before that."""

    class Crash(Exception):
        pass

    def crash(name):
        if name == "applied" and mirror.state.step > 2:
            raise Crash

    feed = decoded("bank.canal.ext.stream")
    lake = new_lake(spark, tmp_path)
    mirror = Mirror(lake, boundary=crash)
    for part in (feed, later(feed, 100), later(feed, 200)):  # the last two are not worth a record
        fill(lake, part)
        assert mirror.step(PARTITIONS)
    truth = expected(Source("bank").at(2**63))
    fill(lake, statements(feed, (300, "RENAME TABLE `bank`.`journal` TO `bank`.`ledger`")))
    fill(lake, statements(feed, (400, "CREATE TABLE `bank`.`journal` (`id` INT PRIMARY KEY)")))
    with pytest.raises(Crash):
        mirror.step(PARTITIONS)
    assert contents(lake) == truth
    mirror = Mirror(lake)
    assert mirror.step(PARTITIONS)
    assert obstacle(lake, mirror.state) is None
    # A statement that has come before the next start is not lost to it.
    fill(lake, pa.concat_tables([later(feed, 2000), later(feed, 3000, "DROP TABLE bank.ledger")]))
    assert mirror.step(PARTITIONS)
    mirror.settle()
    mirror = Mirror(lake)
    fill(lake, later(feed, 4000))
    assert mirror.step(PARTITIONS)
    assert contents(lake) == {
        ("bank", "accounts"): truth["bank", "accounts"],
        ("bank", "journal"): [],
    }


@pytest.mark.parametrize(
    "boundary, table_format", [("drop", "iceberg"), ("create", "iceberg"), *SLOW_DROPS]
)
def test_a_table_that_was_dropped_is_shown_as_it_was(spark, tmp_path, boundary, table_format):
    """Before its drop, also where that was cut off; upkeep removes it when no instant shows it."""

    class Crash(Exception):
        pass

    def crash(name):
        if name == boundary:
            raise Crash

    feed = decoded("bank.canal.ext.stream")
    dropped = statements(
        feed,
        (1, "DROP TABLE `bank`.`journal`"),
        (2, "CREATE TABLE `bank`.`journal` (`id` INT PRIMARY KEY)"),
        (3, "DROP DATABASE `bank`"),
        (4, "CREATE TABLE `bank`.`journal` (`number` INT PRIMARY KEY)"),
    )
    lake = new_lake(spark, tmp_path, table_format)
    fill(lake, feed)
    mirror = Mirror(lake)
    while mirror.step(PARTITIONS):
        pass
    before = mirror.state.applied_ts
    was = expected(Source("bank").at(before))
    assert contents(lake) == was
    fill(lake, dropped)
    with pytest.raises(Crash):
        Mirror(lake, boundary=crash).step(PARTITIONS)
    mirror = Mirror(lake)
    while mirror.step(PARTITIONS):
        pass
    now = {("bank", "journal"): []}
    assert contents(lake) == contents(lake, mirror.state.applied_ts) == now
    assert lake.read("bank", "journal").columns == ["number"]
    assert contents(lake, before) == was
    if boundary == "drop":  # once is enough: upkeep takes its time
        assert removed(lake, timedelta(days=365 * 50)) == []  # instants show them all
        assert contents(lake, before) == was
    next(maintain(lake, timedelta(0)))  # is cut off
    with pytest.raises(LakeError, match="keeps its snapshots since"):
        lake.snapshot(before)
    # The one that was created and dropped between two instants was never made.
    assert removed(lake, timedelta(0)) == ["bank.accounts", "bank.journal"]
    assert contents(lake) == now
    assert [found.retired for found in lake.tables.locate()] == [False]


def removed(lake, keep):
    """The dropped tables that upkeep removes."""
    done = list(maintain(lake, keep))
    return sorted(each.table for each in done if "dropped tables removed" in each.done)


def statements(feed, *queries):
    """Statements after the end of a feed, with the watermarks that release them."""
    told = [later(feed, number, query) for number, query in queries]
    return pa.concat_tables([*told, later(feed, 1000)])


def later(feed, number, query=None):
    """What comes so much later than the end of a feed: a statement, or watermarks."""
    last = max(ts for ts in feed["commit_ts"].to_pylist() if ts is not None)
    row = dict.fromkeys(feed.column_names) | {
        "partition": 0,
        "offset": max(feed["offset"].to_pylist()) + 1 + number,
        "event": 0,
        "kind": "watermark",
        "commit_ts": last + number,
        "flags": 0,
    }
    if query is None:
        rows = [row | {"partition": partition} for partition in range(3)]
    else:
        ddl = {"type": "QUERY", "code": None, "query": query}
        rows = [row | {"kind": "ddl", "database": "bank", "table": "journal", "ddl": ddl}]
    return pa.Table.from_pylist(rows, schema=feed.schema)


def sent_again(feed):
    """A feed whose rows all come once more, as after the sender's restart, before the watermarks."""
    is_mark = pc.equal(feed["kind"], "watermark")
    rows, marks = feed.filter(pc.invert(is_mark)), feed.filter(is_mark)
    later = pc.add(rows["offset"], 1000)
    copies = rows.set_column(rows.column_names.index("offset"), "offset", later)
    last = marks.set_column(
        marks.column_names.index("offset"), "offset", pc.add(marks["offset"], 5000)
    )
    return pa.concat_tables([rows, copies, last])


@pytest.mark.parametrize("again", [False, True])
def test_a_table_without_a_key_has_every_row_as_often_as_the_source(spark, tmp_path, again):
    feed = decoded("nopk.canal.ext")
    lake = new_lake(spark, tmp_path)
    fill(lake, sent_again(feed) if again else feed)
    mirror = Mirror(lake)
    while mirror.step([("", 0)]):
        pass
    found = contents(lake)
    assert found["t", "nopk"] == [("1", "z")]  # one of two equal rows was deleted
    assert found["t", "nulluk"] == [("1", "4"), ("5", "2")]
    assert found["t", "nopk2"] == []
    assert mirror.stopped() == []


def test_columns_may_have_any_name(spark, tmp_path):
    """Also those that the mirror has for itself, and such as need quotes."""
    keyed = {"id": "1", "_op": "2", "op": "3", "a.b": "4"}
    plain = dict.fromkeys(("topic", "offset", "event", "commit_ts", "count", "a.b", "a`b"), "5")
    feed = Script()
    for table, columns in (("keyed", keyed), ("plain", plain)):
        kinds = ", ".join(f"{quoted(name)} INT" for name in columns)
        key = ", PRIMARY KEY (`id`)" if table == "keyed" else ""
        feed.ddl(f"CREATE TABLE `{table}` ({kinds}{key})", table)
    feed.add("keyed", "INSERT", after=keyed)
    for _ in range(2):
        feed.add("plain", "INSERT", after=plain, keys=())
    feed.watermark()
    feed.add("keyed", "UPDATE", after=keyed | {"op": "7"}, before=keyed)
    feed.add("plain", "DELETE", before=plain, keys=())
    feed.watermark()
    changes = feed.changes()
    is_first = pc.less(changes["offset"], 6)
    lake = new_lake(spark, tmp_path)
    mirror = Mirror(lake)
    for part in (changes.filter(is_first), changes.filter(pc.invert(is_first))):
        fill(lake, part)
        assert mirror.step([("", 0)])
    assert contents(lake) == {
        ("d", "keyed"): [("1", "2", "7", "4")],
        ("d", "plain"): [tuple(plain.values())],
    }
