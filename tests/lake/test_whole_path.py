"""Irregular feeds by the command line: captures and Kafka in, rows and states of a real lake out.

Each lake takes a feed of many small stories, a table or two each, so that one run serves many rules.
"""

import json

import pytest

from tests.changefeed.test_replay import Source
from tests.lake.test_irregular_feeds import BASE, KEYED, ddl, mark, message
from tests.support import corpus
from tests.support.commands import CapturedFeed, MirroredLake, Sent, run, write_messages
from tests.support.lake import expected as expected_rows
from tests.support.spark import fresh
from tests.wire.test_open import frame
from tidegate.model import LakeError, SourceError
from tidegate.wire import read_capture

ONE, TWO, THREE = ("1", "1"), ("2", "2"), ("3", "3")


def create(ts, name, columns=KEYED, **more):
    database, table = name.split(".")
    return ddl(ts, f"CREATE TABLE `{table}` {columns}", table, database=database, **more)


def put(ts, name, *, keys=("id",), types=None, **row):
    database, table = name.split(".")
    return message(ts, table, "INSERT", after=row, keys=keys, types=types, database=database)


def say(ts, name, query, **more):
    """A statement, with the database and table that the feed names beside it."""
    database, table = name.split(".")
    return ddl(ts, query, table, database=database, **more)


# --- one topic of Canal-JSON with watermarks ------------------------------------------------------

PARTITIONED = (
    "(`s` VARCHAR(9) PRIMARY KEY) COLLATE utf8mb4_bin PARTITION BY LIST COLUMNS (`s`) "
    "(PARTITION p0 VALUES IN ('a'), PARTITION p1 VALUES IN ('c'))"
)
NEW_YEAR = "2026-01-01 00:00:00"
TEXT = {"types": {"s": "varchar"}, "keys": ("s",)}
TIMES = {"types": {"made": "timestamp", "seen": "timestamp"}}
KEYLESS = {"keys": ()}


def first_part():
    named = ["d2.a", "e1.b", "e3.b", "e3.c", "d1.r", "d2.r", "f.t", "d.job"]
    yield from (create(1, name) for name in [*named, "d.default", "d.now"])
    yield create(1, "d.order")
    yield put(2, "d.order", id="1", v="7")
    yield create(1, "d.partial", "(`a` INT, `b` INT, `c` INT)")
    yield from (create(1, name, "(`a` INT)") for name in ("d.resent", "d.twins"))
    yield create(1, "d.listed", PARTITIONED)
    yield from (put(2, name, id="1", v="1") for name in [*named, "d.default", "d.now"])
    yield put(2, "d.partial", a="1", b="7", c="1", **KEYLESS)
    yield from (put(2, "d.listed", s=text, **TEXT) for text in ("a", "a ", "c"))
    yield put(2, "m.cut", id="1", v="1")
    yield message(3, "order", "DELETE", before={"id": "1", "v": "7"})
    yield put(3, "d.order", id="1", v="8")
    yield mark(3)


def second_part():
    # The delete of a transaction comes again, its columns in another order.
    yield message(3, "order", "DELETE", before={"v": "7", "id": "1"})
    yield say(4, "d1.a_old", "RENAME TABLE `d1`.`a` TO `d1`.`a_old`")
    yield say(5, "e2.b2", "ALTER TABLE `b` RENAME AS `e2`.`b2`")
    yield say(6, "e2.c2", "ALTER TABLE `c` RENAME AS `e2`.`c2`")
    yield say(7, "d1.r_old", "ALTER TABLE `r` RENAME AS `r_old`")
    yield say(7, "d1.r_old", "RENAME TABLE `d1`.`r` TO `d1`.`r_old`")
    yield say(8, "f.", "DROP DATABASE `f`")
    yield say(9, "f.", "FLASHBACK DATABASE `f`")
    yield put(10, "f.t", id="2", v="2")
    yield say(8, "d.job", "DROP TABLE `job`")
    yield say(9, "d.job", "RECOVER TABLE BY JOB 5")
    yield put(10, "d.job", id="2", v="2")
    changed = {"a": "1", "b": "8", "c": "1"}
    yield message(10, "partial", "UPDATE", after=changed, before={"b": "7"}, keys=())
    yield say(
        11,
        "d.default",
        f"ALTER TABLE `default` ADD COLUMN `made` TIMESTAMP DEFAULT '{NEW_YEAR}', "
        f"ADD COLUMN `seen` DATETIME DEFAULT '{NEW_YEAR}'",
    )
    yield say(12, "d.default", "ALTER TABLE `default` MODIFY COLUMN `seen` TIMESTAMP")
    yield put(13, "d.default", id="2", v="2", made=NEW_YEAR, seen=NEW_YEAR, **TIMES)
    now = "TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP"
    yield say(13, "d.now", f"ALTER TABLE `now` ADD COLUMN `made` {now}")
    yield say(14, "d.listed", "ALTER TABLE `listed` TRUNCATE PARTITION p0")
    yield put(14, "m.whole", id="1", v="1")
    for name in ("m.whole", "m.cut", "m.altered"):
        table = name.partition(".")[2]
        yield say(15, name, f"ALTER TABLE `{table}` ADD COLUMN `w` INT")
        yield put(16, name, id="2", v="2", w="2")
    # TiCDC starts again and sends the last transaction once more.
    row, twin = (put(18, name, a="1", **KEYLESS) for name in ("d.resent", "d.twins"))
    yield from (twin, twin, row, mark(18), row, mark(19))


@pytest.fixture(scope="module")
def stories(spark, tmp_path_factory):
    feed = CapturedFeed(tmp_path_factory.mktemp("stories"), "--time-zone", "Asia/Tokyo")
    feed.add(first_part())
    feed.add(second_part())
    assert feed.status()["appliedTs"] == BASE + 19
    return feed


@pytest.fixture(scope="module")
def states(stories):
    return stories.states()


def test_a_rename_that_names_its_database_takes_no_table_of_another(stories, states):
    assert (stories.rows("d2.a"), stories.rows("d1.a_old")) == ([ONE], None)
    assert states["d2.a"] == "mirrored"


@pytest.mark.parametrize("names", [("e1.b", "e3.b", "e2.b2"), ("e3.c", "e2.c2")])
def test_a_rename_that_names_no_database_stops_all_that_it_may_mean(stories, states, names):
    assert {name: states.get(name) for name in names} == dict.fromkeys(names, "stopped")
    assert stories.rows(names[-1]) is None


def test_a_rename_that_is_sent_in_both_spellings_is_done_once(stories, states):
    assert (stories.rows("d1.r_old"), stories.rows("d2.r")) == ([ONE], [ONE])
    assert (states["d1.r_old"], states["d2.r"]) == ("mirrored", "mirrored")


def test_what_brings_back_rows_that_the_feed_does_not_send_stops_tables(states):
    assert (states.get("f.t"), states.get("d.job")) == ("stopped", "stopped")


def test_an_update_without_a_key_replaces_the_row_of_which_it_names_a_part(stories):
    assert stories.rows("d.partial") == [("1", "8", "1")]


def test_a_row_without_a_key_that_comes_again_after_its_watermark_is_one(stories, states):
    assert (stories.rows("d.resent"), states["d.resent"]) == ([("1",)], "mirrored")


def test_equal_rows_without_a_key_of_which_one_may_be_a_copy_are_not_called_exact(stories, states):
    assert (stories.rows("d.twins"), states["d.twins"]) == ([("1",), ("1",)], "diverged")


def test_a_default_and_a_change_of_type_are_read_in_the_zone_of_the_feed(stories):
    filled, sent = stories.rows("d.default")
    assert filled[2:] == sent[2:] == (NEW_YEAR, NEW_YEAR)


def test_a_column_of_the_current_time_is_filled_and_the_table_says_that_it_is_a_guess(
    stories, states
):
    assert stories.rows("d.now") == [("1", "1", "1970-01-01 10:09:54")]
    assert states["d.now"] == "diverged"


def test_a_row_that_comes_again_with_its_columns_in_another_order_is_not_applied_again(stories):
    assert stories.rows("d.order") == [("1", "8")]


def test_a_partition_holds_the_texts_that_differ_by_blanks_at_the_end(stories):
    assert stories.rows("d.listed") == [("c",)]


def test_a_table_from_before_the_feed_is_the_same_however_its_feed_is_cut(stories, states):
    both = [("1", "1", None), ("2", "2", "2")]
    assert (stories.rows("m.whole"), stories.rows("m.cut")) == (both, both)
    assert stories.rows("m.altered") == both[1:]
    names = ("m.whole", "m.cut", "m.altered")
    assert {name: states[name] for name in names} == dict.fromkeys(names, "incomplete")


def test_an_instant_before_the_first_snapshot_is_answered_with_the_first(stories):
    with pytest.raises(LakeError, match=rf"first instant .* \(--at {BASE + 3}\)"):
        run("read", "d2.a", "--lake", stories.folder, "--at", BASE - 1)


# --- feeds that would hold a whole lake -----------------------------------------------------------


@pytest.mark.parametrize(
    ("table_format", "column"),
    [("iceberg", "_row_id"), ("iceberg", "_deleted"), ("delta", "_metadata")],
)
def test_a_reserved_column_name_stops_its_table_only(spark, tmp_path, table_format, column):
    feed = CapturedFeed(tmp_path, "--format", table_format)
    feed.add(
        [
            create(1, "d.t", f"(`id` INT PRIMARY KEY, `{column}` INT)"),
            create(1, "d.u"),
            message(2, "t", "INSERT", after={"id": "1", column: "1"}),
            put(2, "d.u", id="1", v="1"),
            mark(3),
        ]
    )
    assert feed.states() == {"d.t": "stopped", "d.u": "mirrored"}
    assert (feed.rows("d.t"), feed.rows("d.u")) == (None, [ONE])


def test_zero_and_minus_zero_of_one_step_are_one_key_and_a_flashback_of_all_stops_all(
    spark, tmp_path
):
    real = {"types": {"id": "double"}}
    feed = CapturedFeed(tmp_path)
    rows = [put(2, "d.t", id=key, v=key, **real) for key in ("0", "1")]
    feed.add([create(1, "d.t", "(`id` DOUBLE PRIMARY KEY, `v` INT)"), *rows, mark(3)])
    gone = message(4, "t", "DELETE", before={"id": "0", "v": "0"}, **real)
    feed.add([gone, put(5, "d.t", id="-0", v="2", **real), mark(6)])
    assert [row[1] for row in feed.rows("d.t")] == ["2", "1"]
    feed.add([ddl(7, "FLASHBACK CLUSTER TO TIMESTAMP '2026-01-01'", ""), mark(8)])
    assert feed.states() == {"d.t": "stopped"}


# --- feeds without watermarks ---------------------------------------------------------------------


def bare(sent):
    """A message without the extension, which has the milliseconds of a commit only."""
    document = json.loads(sent)
    ts = document.pop("_tidb")["commitTs"] - BASE
    return json.dumps(document | {"es": ts}).encode()


def test_without_watermarks_no_row_comes_back_after_a_restart_or_from_a_slower_partition(
    spark, tmp_path
):
    feed = CapturedFeed(tmp_path)
    story = [
        *(create(1, f"d.{name}") for name in "abcs"),
        *(put(2, f"d.{name}", id="1", v="1") for name in "abc"),
        say(3, "d.a", "TRUNCATE TABLE `a`"),
        say(4, "d.b", "DROP TABLE `b`"),
        say(5, "d.c2", "RENAME TABLE `c` TO `c2`"),
        say(5, "d.s", "TRUNCATE TABLE `s`"),
        put(6, "d.a", id="2", v="2"),
    ]
    first = [*map(bare, story)]
    feed.add(first)
    slow = [put(2, "d.s", id="1", v="1"), put(7, "d.s", id="2", v="2")]
    feed.add([*first, *(Sent(bare(each), partition=1) for each in slow)])
    rows = {name: feed.rows(f"d.{name}") for name in ("a", "b", "c", "c2", "s")}
    assert rows == {"a": [TWO], "b": None, "c": None, "c2": [ONE], "s": [TWO]}


# --- a topic per table ----------------------------------------------------------------------------


def to(topic, *messages):
    return [Sent(each, topic=topic) for each in messages]


def test_renames_of_one_commit_in_several_topics_go_by_what_they_depend_on(spark, tmp_path):
    """RENAME TABLE b TO c, a TO b; and a swap of x and y over tmp."""
    feed = CapturedFeed(tmp_path)
    story = []
    for number, (name, topic) in enumerate(zip("abxy", ("1", "2", "5", "4"), strict=True)):
        row = put(2, f"d.{name}", id=str(number), v=str(number))
        story += to(topic, create(1, f"d.{name}"), row)
    renames = [
        ("1", "a", "b"),
        ("2", "b", "c"),
        ("3", "tmp", "y"),
        ("4", "y", "x"),
        ("5", "x", "tmp"),
    ]
    for topic, old, new in renames:
        ts = 3 if new in "bc" else 4
        story += to(topic, say(ts, f"d.{new}", f"RENAME TABLE `d`.`{old}` TO `d`.`{new}`"), mark(5))
    feed.add([*to("main", ddl(1, "CREATE DATABASE `d`", ""), mark(5)), *story])
    rows = {name: feed.rows(f"d.{name}") for name in ("a", "b", "c", "x", "y", "tmp")}
    row = [[(str(number),) * 2] for number in range(4)]
    assert rows == {"a": None, "b": row[0], "c": row[1], "x": row[3], "y": row[2], "tmp": None}


def test_a_topic_without_tables_is_not_waited_for_and_one_that_is_seen_late_loses_nothing(
    spark, tmp_path
):
    feed = CapturedFeed(tmp_path)
    feed.add(
        [
            *to("main", ddl(1, "CREATE DATABASE `d`", "")),
            *(sent for name in "abc" for sent in to(name, create(1, f"d.{name}"))),
            *to("a", put(2, "d.a", id="1", v="1"), mark(3), say(4, "d.a", "DROP TABLE `a`")),
            *to("b", mark(3), say(4, "d.e", "RENAME TABLE `b` TO `e`")),
            *to("c", put(5, "d.c", id="1", v="1"), mark(9)),
            *to("e", put(5, "d.e", id="1", v="1"), mark(9)),
            *to("main", mark(9)),
        ]
    )
    assert feed.status()["appliedTs"] == BASE + 9
    assert (feed.rows("d.a"), feed.rows("d.c"), feed.rows("d.e")) == (None, [ONE], [ONE])
    late = to("late", create(6, "d.late"), put(7, "d.late", id="1", v="1"), mark(12))
    feed.add([*late, *(sent for name in ("main", "c", "e") for sent in to(name, mark(12)))])
    assert (feed.rows("d.late"), feed.states()["d.late"]) == ([ONE], "mirrored")


# --- Simple: schemas by version -------------------------------------------------------------------


def simple(kind, ts, **members):
    return json.dumps({"version": 1, "type": kind, "commitTs": ts, "buildTs": 1} | members).encode()


def simple_schema(name, version, *columns, table_id):
    database, table = name.split(".")
    whole = {"mysqlType": "int", "charset": "binary", "collate": "binary", "length": 11}
    key = {"name": "primary", "unique": True, "primary": True, "nullable": False, "columns": ["id"]}
    return {
        "schema": database,
        "table": table,
        "tableID": table_id,
        "version": version,
        "columns": [
            {"name": each, "dataType": whole, "nullable": each != "id", "default": None}
            for each in columns
        ],
        "indexes": [key],
    }


def simple_row(ts, name, version, **row):
    database, table = name.split(".")
    named = {"database": database, "table": table, "tableID": 1, "schemaVersion": version}
    return simple("INSERT", ts, **named, data=row)


def test_the_schema_before_a_rename_says_which_table_it_was(spark, tmp_path):
    feed = CapturedFeed(tmp_path)
    before = [simple_schema(f"e{n}.b", n, "id", "v", table_id=n) for n in (1, 3)]
    created = [
        simple("CREATE", n, sql=f"CREATE TABLE `b` {KEYED}", tableSchema=schema)
        for n, schema in zip((1, 3), before, strict=True)
    ]
    renamed = simple(
        "RENAME",
        6,
        sql="ALTER TABLE `b` RENAME AS `e2`.`b2`",
        tableSchema=simple_schema("e2.b2", 1, "id", "v", table_id=1),
        preTableSchema=before[0],
    )
    rows = [simple_row(5, f"e{n}.b", n, id=str(n), v=str(n)) for n in (1, 3)]
    feed.add([*created, *rows, renamed, simple_row(7, "e2.b2", 1, id="2", v="2")])
    feed.add([simple("WATERMARK", 8)])
    assert (feed.rows("e2.b2"), feed.rows("e3.b")) == ([ONE, TWO], [THREE])
    assert feed.states() == {"e2.b2": "mirrored", "e3.b": "mirrored"}


def test_a_schema_that_cannot_come_any_more_stops_its_table_only(spark, tmp_path):
    feed = CapturedFeed(tmp_path)
    schema = simple_schema("d.u", 1, "id", "v", table_id=2)
    altered = simple_schema("d.t", 6, "id", "v", "w", table_id=1)
    feed.add(
        [
            simple("CREATE", 1, sql=f"CREATE TABLE `u` {KEYED}", tableSchema=schema),
            simple_row(5, "d.t", 3, id="1", v="1"),
            simple("ALTER", 6, sql="ALTER TABLE `t` ADD COLUMN `w` INT", tableSchema=altered),
            simple_row(7, "d.u", 1, id="1", v="1"),
            simple("WATERMARK", 8),
        ]
    )
    assert feed.states() == {"d.t": "stopped", "d.u": "mirrored"}
    assert feed.rows("d.u") == [ONE]


def test_a_rename_swap_of_two_versions_that_comes_watermark_by_watermark_is_followed(
    spark, tmp_path
):
    feed = CapturedFeed(tmp_path)
    part = []
    for each in corpus.messages("new/x_renameswap.simple.json"):
        part.append(Sent(each.value, each.key))
        if b'"WATERMARK"' in each.value:
            feed.add(part)
            part = []
    assert part == []
    document = feed.status()
    assert (document["appliedTs"], document["waiting"]) == (document["resolvedTs"], [])
    truth = Source("new/x_renameswap").at(2**63)
    expected = {".".join(name): rows for name, rows in expected_rows(truth).items()}
    assert {name: feed.rows(name) for name in expected} == expected


# --- Open Protocol and Craft: keys by flags -------------------------------------------------------

HANDLE, UNIQUE, NULLABLE = 2, 16, 64


def open_event(kind, ts, value=None, **members):
    """A message of one event: 1 is a row, 2 a statement, 3 a watermark."""
    key = json.dumps({"ts": ts, **members, "t": kind}).encode()
    return Sent(*reversed(frame((key, b"" if value is None else json.dumps(value).encode()))))


def open_row(ts, a, b, *, keyed):
    columns = {
        "a": {"t": 3, "h": True, "f": HANDLE | UNIQUE, "v": a}
        if keyed
        else {"t": 3, "f": 0, "v": a},
        "b": {"t": 3, "f": NULLABLE, "v": b},
    }
    return open_event(1, ts, {"u": columns}, scm="d", tbl="t")


@pytest.mark.parametrize("protocol", ["open-protocol", "craft"])
def test_rows_that_flag_another_key_are_followed(spark, tmp_path, protocol):
    """The table is from before the feed: only its rows tell its key."""
    dropped = {"q": "ALTER TABLE `t` DROP INDEX `a`", "t": 8}
    parts = [
        [open_row(BASE + 1, 1, 1, keyed=True), open_event(3, BASE + 2)],
        [
            open_event(2, BASE + 3, dropped, scm="d", tbl="t"),
            open_row(BASE + 4, 1, 2, keyed=False),
            open_event(3, BASE + 5),
        ],
    ]
    feed = CapturedFeed(tmp_path)
    for part in parts:
        feed.add(part if protocol == "open-protocol" else as_craft(tmp_path, part))
    assert feed.rows("d.t") == [("1", "1"), ("1", "2")]


def as_craft(folder, messages):
    whole, other = folder / "open.parquet", folder / "craft.parquet"
    write_messages(whole, messages)
    run("convert", whole, other, "--to", "craft")
    found = [row for batch in read_capture(other) for row in batch.to_pylist()]
    return [Sent(row["value"], row["key"]) for row in found]


# --- Kafka ----------------------------------------------------------------------------------------


def send(kafka, streams):
    kafka.send(
        {
            topic: [corpus.Message(number, None, value, "") for number, value in messages]
            for topic, messages in streams.items()
        }
    )


STORY = [create(1, "shop.t"), put(2, "shop.t", id="1", v="1"), mark(3)]
EXTENSION = {"enable_tidb_extension": "true"}


def test_partitions_that_the_sink_uri_leaves_out_are_not_waited_for(spark, kafka, tmp_path):
    topic = fresh("part")
    kafka.create(topic, partitions=3)
    send(kafka, {topic: [(0, each) for each in STORY]})
    uri = kafka.uri(topic, "canal-json", partition_num="1", **EXTENSION)
    lake = MirroredLake(tmp_path / "lake", uri)
    lake.mirror()
    assert lake.rows("shop.t") == [ONE]


def test_a_mistyped_topic_does_not_keep_the_lake_from_the_right_one(spark, kafka, tmp_path):
    topic = fresh("typed")
    kafka.create(topic, partitions=1)
    send(kafka, {topic: [(0, each) for each in STORY]})
    wrong, right = (kafka.uri(name, "canal-json", **EXTENSION) for name in (f"{topic}p", topic))
    with pytest.raises(SourceError, match="does not exist"):
        MirroredLake(tmp_path / "lake", wrong).mirror()
    lake = MirroredLake(tmp_path / "lake", right)
    lake.mirror()
    assert lake.rows("shop.t") == [ONE]


def test_topics_of_other_applications_hold_no_table(spark, kafka, tmp_path):
    """One is not of a table in the filter; the messages of the other cannot be read."""
    prefix = fresh("feed")
    topics = [prefix, *(f"{prefix}_{name}" for name in ("shop_t", "logs_app", "shop_noise"))]
    kafka.create(*topics, partitions=1)
    noise = [(0, b"nothing that TiCDC writes")] * 3
    own = [(0, each) for each in STORY]
    send(kafka, dict(zip(topics, ([(0, mark(3))], own, noise, noise), strict=True)))
    rules = tmp_path / "changefeed.toml"
    rules.write_text(
        f"[filter]\nrules = ['shop.*']\n"
        f"[sink]\ndispatchers = [{{matcher = ['*.*'], topic = '{prefix}_{{schema}}_{{table}}'}}]\n"
    )
    uri = kafka.uri(prefix, "canal-json", **EXTENSION)
    lake = MirroredLake(tmp_path / "lake", uri, "--changefeed", rules)
    lake.mirror()
    assert (lake.rows("shop.t"), lake.states()) == ([ONE], {"shop.t": "mirrored"})
    assert lake.status()["foreignTopics"] == {topics[3]: 3}
