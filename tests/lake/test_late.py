"""Messages that could be read only when the tables had gone past them: the tables are repaired.

The feeds are real messages. Those that are to be bad at first are compressed, which the feed is not
said to be; the retry is told of it.
"""

import json
import os
from datetime import timedelta
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.lake import contents, fill, new_lake
from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.send.changefeed import Changefeed
from tidegate.lake.apply.plan.row_planning import NOT_FROM_START
from tidegate.lake.apply.plan.tables import LACKED, Table
from tidegate.lake.apply.repair.judging import (
    CHANGED,
    FORGOTTEN,
    NO_KEY,
    Followed,
    Judgement,
    effects_of,
    follow,
)
from tidegate.lake.job.mirror import Mirror, MirrorSettings
from tidegate.lake.maintenance import maintain
from tidegate.lake.quarantine import Quarantine
from tidegate.lake.routes import Routes
from tidegate.model import LakeError
from tidegate.spark.decoding import Reading
from tidegate.sql.ddl_names import DdlId
from tidegate.sql.tables import Name, TableBook
from tidegate.wire import decode_batch
from tidegate.wire.batch.key_updates import mark_moves
from tidegate.workload import workload

GOING_ON = MirrorSettings(bad_messages="continue")


# --- feeds ----------------------------------------------------------------------------------------


def compressed(value):
    return pa.Codec("lz4").compress(value, asbytes=True)


def poisoned(protocol, messages, is_bad):
    """The changes of (partition, key, value) messages, those that `is_bad` picks unreadable."""
    values = [
        compressed(value) if is_bad(number) else value
        for number, (_, _, value) in enumerate(messages)
    ]
    offsets, ends = [], {}
    for partition, _, _ in messages:
        offsets.append(ends.get(partition, 0))
        ends[partition] = offsets[-1] + 1
    batch = decode_batch(
        protocol,
        pa.array([key for _, key, _ in messages], pa.binary()),
        pa.array(values, pa.binary()),
        partitions=pa.array([partition for partition, _, _ in messages], pa.int32()),
        offsets=pa.array(offsets, pa.int64()),
    )
    return pa.Table.from_batches([mark_moves(batch)])


def mirrored(lake, partitions, **settings):
    mirror = Mirror(lake, settings=GOING_ON, **settings)
    steps = []
    while report := mirror.step(partitions):
        steps.append(report)
    mirror.settle()
    return mirror, steps


def canal(ts, table, kind, *, after=None, before=None, query="", keys=("id",)):
    """A Canal-JSON message with the TiDB extension."""
    columns = dict.fromkeys((after or before or {}), "int")
    document = {
        "id": 0,
        "database": "d",
        "table": table,
        "pkNames": list(keys) or None,
        "isDdl": kind == "QUERY",
        "type": kind,
        "es": ts >> 18,
        "ts": ts >> 18,
        "sql": query,
        "sqlType": dict.fromkeys(columns, 4) or None,
        "mysqlType": columns or None,
        "data": [after or before] if after or before else None,
        "old": [before] if after and before else None,
        "_tidb": {"watermarkTs" if kind == "TIDB_WATERMARK" else "commitTs": ts},
    }
    return 0, None, json.dumps(document).encode()


class Script:
    """A feed written by hand, one change after the other; those with `late` cannot be read."""

    def __init__(self):
        self.messages = []
        self.late = set()

    def add(self, table, kind, *, late=False, **content):
        if late:
            self.late.add(len(self.messages))
        ts = (1 << 40) + len(self.messages)
        self.messages.append(canal(ts, table, kind, **content))

    def ddl(self, query, table="", *, late=False):
        self.add(table, "QUERY", query=query, late=late)

    def create(self, table, late=False):
        self.ddl(f"CREATE TABLE `{table}` (`id` INT PRIMARY KEY, `v` INT)", table, late=late)

    def put(self, table, key, value, late=False, **more):
        after = {"id": str(key), "v": str(value)}
        self.add(table, "INSERT", after=after, late=late, **more)

    def move(self, table, old, new, value, late=False):
        after = {"id": str(new), "v": str(value)}
        self.add(table, "UPDATE", after=after, before=after | {"id": str(old)}, late=late)

    def take(self, table, key, late=False):
        self.add(table, "DELETE", before={"id": str(key), "v": "0"}, late=late)

    def watermark(self):
        self.add("", "TIDB_WATERMARK")

    def changes(self):
        return poisoned("canal-json", self.messages, self.late.__contains__)


def script():
    """Late rows and statements of several kinds."""
    feed = Script()
    for table in ("keyed", "indexed", "altered", "emptied"):
        feed.create(table)
    feed.ddl("CREATE TABLE `keyless` (`id` INT, `v` INT)", "keyless")
    for key in range(1, 6):
        feed.put("keyed", key, 0)
    feed.put("keyed", 6, 1, late=True)
    feed.put("keyed", 7, 1, late=True)
    feed.put("keyed", 7, 2)
    feed.take("keyed", 1, late=True)
    feed.take("keyed", 2, late=True)
    feed.put("keyed", 2, 3)
    feed.move("keyed", 3, 30, 4, late=True)
    feed.move("keyed", 4, 40, 4, late=True)
    feed.put("keyed", 4, 5)
    for table in ("indexed", "altered", "emptied"):
        feed.put(table, 1, 1, late=True)
    feed.put("keyless", 1, 1, keys=(), late=True)
    feed.ddl("ALTER TABLE `indexed` ADD INDEX `i` (`v`)", "indexed")
    feed.ddl("ALTER TABLE `altered` ADD COLUMN `w` INT", "altered")
    feed.ddl("TRUNCATE TABLE `emptied`", "emptied")
    feed.put("emptied", 2, 1, late=True)
    feed.create("unseen", late=True)
    feed.watermark()
    return feed


READING = Reading("canal-json", compression="lz4")
STOPPED = {
    "keyless": NO_KEY,
    "altered": CHANGED.format(query="ALTER TABLE `altered` ADD COLUMN `w` INT"),
}
RIGHT = {
    "keyed": [("2", "3"), ("30", "4"), ("4", "5"), ("40", "4"), ("5", "0"), ("6", "1"), ("7", "2")],
    "indexed": [("1", "1")],
    "emptied": [("2", "1")],
    "unseen": [],
}
FORMATS = ["iceberg", *(["delta"] if os.environ.get("TIDEGATE_ALL") else [])]


class Crash(Exception):
    pass


def crash_at(boundary):
    def told(name):
        if name == boundary:
            raise Crash

    return told


def versions(lake):
    return {each.identifier: lake.tables.version(each.identifier) for each in lake.tables.locate()}


def rows(lake, table):
    return sorted(tuple(row) for row in lake.texts("d", table).collect())


@pytest.mark.parametrize("table_format", FORMATS)
def test_late_changes_are_put_right_or_stop_their_table(spark, tmp_path, table_format):
    """Once, though the step that does it is cut off twice."""
    feed, partitions = script(), [("", 0)]
    lake = new_lake(spark, tmp_path, table_format)
    fill(lake, feed.changes())
    mirror, _ = mirrored(lake, partitions)
    assert mirror.stopped() == []
    gone_past = [("1", "0"), ("2", "3"), ("3", "0"), ("4", "5"), ("5", "0"), ("7", "2")]
    assert rows(lake, "keyed") == gone_past

    retried = Quarantine(lake).retry(READING)
    assert (len(retried.read), retried.bad) == (len(feed.late), ())
    assert retried.late["d", "keyed"] == 6
    with pytest.raises(LakeError, match=r"do not have yet .* Run `tidegate mirror --once` first"):
        list(maintain(lake, timedelta()))

    for boundary in ("intended", "applied"):
        with pytest.raises(Crash):
            Mirror(lake, settings=GOING_ON, boundary=crash_at(boundary)).step(partitions)
    # All is in the tables and nothing is recorded: nothing is written again.
    there = versions(lake)
    mirror, steps = mirrored(lake, partitions)
    assert [(step.rows, step.resolved_ts) for step in steps] == [(8, mirror.state.applied_ts)]
    assert versions(lake) == there
    assert {name: rows(lake, name) for name in RIGHT} == RIGHT
    assert {table.name.table: table.reason for table in mirror.stopped()} == STOPPED
    assert mirrored(lake, partitions)[1] == []


def test_an_instant_is_doubted_for_what_it_lacks_not_for_what_is_wrong_now(spark, tmp_path):
    feed, partitions = Script(), [("", 0)]
    lake = new_lake(spark, tmp_path)
    feed.create("a")
    feed.put("b", 1, 1)  # its CREATE TABLE is not in the feed
    feed.watermark()
    feed.put("a", 1, 1, late=True)
    feed.watermark()
    feed.put("a", 2, 2)
    feed.watermark()
    feed.ddl("TRUNCATE TABLE `b`", "b")
    feed.watermark()
    changes = feed.changes()
    instants = []
    for first, end in pairwise((0, 3, 5, 7, 9)):
        offsets = changes["offset"]
        within = pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, end))
        fill(lake, changes.filter(within))
        if end == 9:
            Quarantine(lake).retry(READING)
        mirror, _ = mirrored(lake, partitions)
        instants.append(mirror.state.applied_ts)
    assert rows(lake, "a") == [("1", "1"), ("2", "2")]
    doubts = [
        {name[1]: doubt.text for name, doubt in lake.snapshots.doubts(at).items()}
        for at in (*instants, None)
    ]
    incomplete = {"b": f"incomplete: {NOT_FROM_START}"}
    lacking = {"a": f"diverged: {LACKED.format(until=instants[2])}"}
    assert doubts == [incomplete, incomplete | lacking, incomplete, {}, {}]
    assert not lake.snapshots.doubts(instants[1])["d", "a"].is_exact


# --- whole feeds ----------------------------------------------------------------------------------


def sent(uri, rows):
    feed = Changefeed(ChangefeedConfig.from_uri(uri), clock=None)
    batches = [feed.send(batch) for batch in workload("bank", rows=rows).batches()]
    for batch in [*batches, feed.close()]:
        columns = (batch[name].to_pylist() for name in ("partition", "key", "value"))
        yield from zip(*columns, strict=True)


@pytest.mark.parametrize(
    "protocol, watermarks", [("simple", True), ("canal-json", False)], ids=["simple", "eventual"]
)
def test_after_a_retry_the_tables_are_those_of_the_source(spark, tmp_path, protocol, watermarks):
    """Every fifth message is bad at first; of Simple also those that bring a table's schema.

    The retry is cut off twice: it is to be finished before a mirror starts.
    """
    uri = f"kafka://h:9092/bank?protocol={protocol}&partition-num=3"
    messages = list(sent(uri, rows=40))
    partitions = [("", number) for number in range(3)]

    def is_bad(number):
        value = messages[number][2]
        brings_schema = b'"CREATE"' in value or b'"BOOTSTRAP"' in value
        return (number % 5 == 0 and b"WATERMARK" not in value) or (watermarks and brings_schema)

    lake = new_lake(spark, tmp_path)
    fill(lake, poisoned(protocol, messages, is_bad))
    truth = {
        name: sorted(tuple(row) for row in table.rows.values())
        for name, table in workload("bank", rows=40).final().tables.items()
    }
    mirror, _ = mirrored(lake, partitions, watermarks=watermarks)
    assert contents(lake) != truth
    assert bool(mirror.waiting) == (protocol == "simple")

    quarantine = Quarantine(lake)
    bad = sum(map(is_bad, range(len(messages))))
    assert quarantine.count() == bad
    reading = Reading(protocol, compression="lz4")
    for boundary in ("begun", "appended"):
        with pytest.raises(Crash):
            Quarantine(lake, boundary=crash_at(boundary)).retry(reading)
        with pytest.raises(LakeError, match=r"was cut off\. Run `tidegate quarantine retry` again"):
            Mirror(lake)
    # What was added is not added again, and need not be read again.
    assert len(quarantine.retry(Reading(protocol)).read) == bad
    assert quarantine.count() == 0
    mirror, steps = mirrored(lake, partitions)
    assert steps
    assert (mirror.waiting, mirror.stopped()) == ({}, [])
    assert contents(lake) == truth
    assert mirrored(lake, partitions)[1] == []


# --- what is decided ------------------------------------------------------------------------------

T, U, V = (Name("d", table) for table in "tuv")


@pytest.mark.parametrize(
    "statements, expected",
    [
        ([], [Followed(T, [1, 5], "")]),
        ([(1, "TRUNCATE TABLE t")], [Followed(T, [5], "")]),
        ([(5, "DROP TABLE t")], []),
        ([(5, "DROP DATABASE d")], []),
        ([(3, "ALTER TABLE t ADD INDEX i (v)")], [Followed(T, [1, 5], "")]),
        (
            [(3, "ALTER TABLE t DROP COLUMN v")],
            [Followed(T, [1, 5], "ALTER TABLE t DROP COLUMN v")],
        ),
        ([(3, "ALTER TABLE t MODIFY v TEXT"), (6, "TRUNCATE TABLE t")], []),
        ([(3, "ALTER TABLE u ADD COLUMN w INT")], [Followed(T, [1, 5], "")]),
        (
            [(3, "RENAME TABLE t TO u"), (4, "CREATE TABLE t (id INT PRIMARY KEY)")],
            [Followed(U, [1], "RENAME TABLE t TO u"), Followed(T, [5], "")],
        ),
        (
            [(3, "RENAME TABLE t TO u"), (4, "RENAME TABLE u TO v"), (6, "DROP TABLE t")],
            [Followed(V, [1], "RENAME TABLE u TO v")],
        ),
        ([(3, "RENAME TABLE t TO u"), (4, "DROP TABLE u")], [Followed(T, [5], "")]),
    ],
)
def test_late_rows_are_followed_to_the_table_that_has_them(statements, expected):
    book = TableBook()
    for table in "tu":
        book.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT, KEY i (v))", "d")
    done = effects_of([DdlId(ts, "d", "t", query) for ts, query in statements], book)
    assert list(follow(T, [1, 5], done)) == expected


def test_late_rows_are_followed_through_renames_of_one_instant_by_what_these_depend_on():
    queries = ["RENAME TABLE d.t TO d.u", "RENAME TABLE d.u TO d.v"]
    names = ("u", "v")
    statements = [DdlId(3, "d", *each) for each in zip(names, queries, strict=True)]
    done = effects_of(statements, TableBook())
    assert list(follow(T, [1], done)) == [Followed(U, [1], queries[0])]
    assert list(follow(U, [1], done)) == [Followed(V, [1], queries[1])]


def test_late_rows_of_a_database_that_is_gone_are_of_no_account():
    done = effects_of([DdlId(3, "d", "", "DROP DATABASE d")], TableBook(), [T])
    assert list(follow(T, [1], done)) == []


def test_late_rows_are_followed_to_another_database():
    book, query = TableBook(), "ALTER TABLE t RENAME AS e.w"
    for database in "de":
        book.run(f"CREATE DATABASE {database}", database)
    done = effects_of([DdlId(3, "e", "w", query)], book, [T])
    assert list(follow(T, [1], done)) == [Followed(Name("e", "w"), [1], query)]


def judgement(*statements, kept_since=0):
    book = TableBook()
    effects = book.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "d")
    tables = {T.folded: Table(T, effects[0].change.after)}
    done = effects_of([DdlId(ts, "d", "", query) for ts, query in statements], book)
    return Judgement(tables, book, Routes(), done, kept_since, 100)


def test_late_rows_of_which_the_later_changes_are_forgotten_stop_their_table():
    judged = judgement(kept_since=6)
    judged.rows(T, [5, 7])
    assert (judged.since, judged.stopped) == ({}, [T])
    assert judged.tables[T.folded].reason == FORGOTTEN
    judged = judgement(kept_since=5)
    judged.rows(T, [5, 7])
    assert (judged.since, judged.stopped) == ({T: 5}, [])


@pytest.mark.parametrize(
    "query, later, created, stopped",
    [
        ("ALTER TABLE t ADD COLUMN w INT", [], [], [T]),
        ("ALTER TABLE t ADD COLUMN w INT", [(9, "DROP TABLE t")], [], []),
        ("ALTER TABLE t ADD COLUMN w INT", [(9, "TRUNCATE TABLE t")], [], [T]),
        ("ALTER TABLE t COMMENT 'x'", [], [], []),
        ("RENAME TABLE t TO u", [], [], [T, U]),
        ("RENAME TABLE t TO u", [(9, "DROP TABLE u")], [], [T]),
        ("CREATE TABLE t (id INT PRIMARY KEY)", [], [], [T]),
        ("CREATE TABLE u (id INT PRIMARY KEY)", [], ["u"], []),
        ("CREATE TABLE u (id INT PRIMARY KEY)", [(9, "DROP TABLE u")], [], []),
        ("CREATE TABLE u (id INT PRIMARY KEY)", [(9, "ALTER TABLE u ADD v INT")], [], [U]),
        ("CREATE DATABASE e", [], [], []),
    ],
)
def test_a_late_statement_is_carried_out_only_if_it_makes_what_is_not_there(
    query, later, created, stopped
):
    judged = judgement(*later)
    judged.statement(DdlId(5, "d", "", query))
    assert (len(judged.created), judged.stopped) == (len(created), stopped)


@pytest.mark.parametrize(
    "later, is_gone",
    [([], True), ([(9, "CREATE TABLE t (id INT PRIMARY KEY)")], False)],
    ids=["nothing", "another table of that name"],
)
def test_after_a_late_rename_the_old_name_is_no_tables_unless_another_got_it(later, is_gone):
    judged = judgement(*later)
    judged.statement(DdlId(5, "d", "", "RENAME TABLE t TO u"))
    assert judged.tables[T.folded].gone is is_gone
    assert (judged.book.get(*T) is None) is is_gone


def test_a_late_drop_takes_a_stopped_table_away():
    judged = judgement()
    judged.tables[T.folded].stop("A reason.", 4)
    judged.statement(DdlId(5, "d", "", "DROP TABLE t"))
    assert [each.query for each in judged.created] == ["DROP TABLE t"]
