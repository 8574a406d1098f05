"""The sending rules of a changefeed: what goes where, in which order, and how often."""

import json
from collections import Counter

import pyarrow as pa
import pytest

from tests.support.changes import batch, change, ddl, row, watermark
from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.send.changefeed import OUTGOING_SCHEMA, Changefeed
from tidegate.model import Column, ConfigError, EncodeError, Flag, TableSchema, tso_from_ms
from tidegate.wire import decode_batch, from_folder

INT, VARCHAR = 3, 15
KEY = int(Flag.HANDLE_KEY | Flag.PRIMARY_KEY | Flag.BINARY)
UNIQUE = int(Flag.UNIQUE_KEY | Flag.NULLABLE | Flag.BINARY)
COLUMNS = [
    {"name": "id", "type": "int", "code": INT, "flags": KEY, "key": True},
    {"name": "u", "type": "int", "code": INT, "flags": UNIQUE},
    {"name": "v", "type": "varchar", "code": VARCHAR, "flags": int(Flag.NULLABLE)},
]


class Clock:
    """Seconds that pass when told to."""

    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


def config(protocol="canal-json", toml="", parameters="", topic="t"):
    uri = f"kafka://broker:9092/{topic}?protocol={protocol}{parameters}"
    if protocol == "canal-json":
        uri += "&enable-tidb-extension=true"
    return ChangefeedConfig.from_toml(toml, uri)


def feed(protocol="canal-json", toml="", parameters="", **settings):
    settings = {"clock": Clock(), "partitions": 3} | settings
    return Changefeed(config(protocol, toml, parameters), **settings)


def shape(table="a", database="d", number=None):
    document = json.dumps({"columns": COLUMNS})
    number = SHAPES[table] if number is None else number
    return change("schema", None, database=database, table=table, shape=number, schema=document)


SHAPES = {"a": 1, "b": 2, "c": 3, "a2": 4}


def values(*found):
    return [None if value is None else str(value) for value in found]


def insert(ts, after, table="a", **more):
    return row("insert", ts, table=table, shape=SHAPES[table], after=values(*after), **more)


def delete(ts, before, table="a", **more):
    return row("delete", ts, table=table, shape=SHAPES[table], before=values(*before), **more)


def update(ts, before, after, table="a", **more):
    told = {"after": values(*after), "before": values(*before)}
    return row("update", ts, table=table, shape=SHAPES[table], **told, **more)


def tso(seconds):
    return tso_from_ms(int(seconds * 1000))


def read(sent, protocol="canal-json", **settings):
    """The events of what was sent, without shapes."""
    assert sent.schema == OUTGOING_SCHEMA
    places = pa.array(range(sent.num_rows), pa.int64())
    found = decode_batch(
        protocol,
        sent["key"],
        sent["value"],
        topics=sent["topic"],
        partitions=sent["partition"],
        offsets=places,
        **settings,
    ).to_pylist()
    assert not [event for event in found if event["kind"] == "error"]
    return [event for event in found if event["event"] >= 0]


def shown(events):
    """Kind, id and commit_ts of each event."""
    sides = [event["after"] or event["before"] or [None] for event in events]
    return [
        (event["kind"], side[0], event["commit_ts"])
        for event, side in zip(events, sides, strict=True)
    ]


def kinds(sent, protocol="canal-json"):
    return Counter(event["kind"] for event in read(sent, protocol))


# --- where rows go --------------------------------------------------------------------------------

DISPATCH = """
[sink]
dispatchers = [
    {matcher = ["d.a"], partition = "index-value", topic = "feed_{schema}_{table}"},
    {matcher = ["d.b"], partition = "ts"},
    {matcher = ["d.c"], partition = "columns", columns = ["v"]},
]
"""


def test_every_row_of_a_key_goes_to_one_partition_of_its_topic():
    rows = [insert(number, (number % 7, number, "x")) for number in range(1, 60)]
    sent = feed(toml=DISPATCH, partitions=5).send(batch(shape(), *rows))
    found = read(sent)
    assert [event["commit_ts"] for event in found] == list(range(1, 60))
    assert {event["topic"] for event in found} == {"feed_d_a"}
    homes = {(event["after"][0], event["partition"]) for event in found}
    assert len(homes) == 7
    assert len({partition for _, partition in homes}) > 1


def test_rules_by_time_and_columns():
    rows = [insert(ts, (ts, ts, "x"), "b") for ts in range(10, 16)]
    rows += [insert(20 + ts, (ts, ts, "same"), "c") for ts in range(6)]
    found = read(feed(toml=DISPATCH, partitions=4).send(batch(shape("b"), shape("c"), *rows)))
    assert [event["partition"] for event in found[:6]] == [ts % 4 for ts in range(10, 16)]
    assert len({event["partition"] for event in found[6:]}) == 1
    assert {event["topic"] for event in found} == {"t"}


def test_a_capture_has_no_default_topic():
    uri = "file:///folder?protocol=canal-json&enable-tidb-extension=true&partition-num=2"
    sender = Changefeed(ChangefeedConfig.from_uri(uri), clock=Clock())
    sent = sender.send(batch(shape(), insert(1, (1, 1, "x")), watermark(1)))
    assert sent["topic"].null_count == 3
    assert sent["partition"].to_pylist()[1:] == [0, 1]


def test_the_number_of_partitions_is_that_of_the_changefeed_or_ticdcs():
    marks = batch(watermark(5))
    assert feed(partitions=None).send(marks).num_rows == 3
    assert feed(partitions=None, parameters="&partition-num=7").send(marks).num_rows == 7


# --- which rows share a message -------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["open-protocol", "craft"])
@pytest.mark.parametrize("large", ["", "&max-message-bytes=400"])
def test_only_rows_of_one_key_share_a_message(protocol, large):
    rows = [insert(ts, (ts % 5, ts, "x" * 20)) for ts in range(1, 400)]
    sender = feed(protocol, DISPATCH, "&max-batch-size=8" + large)
    sent = sender.send(batch(shape(), *rows))
    messages = {}
    for event in read(sent, protocol):
        messages.setdefault(event["offset"], []).append(event)
    assert all(len({event["after"][0] for event in found}) == 1 for found in messages.values())
    sizes = [len(found) for found in messages.values()]
    assert sum(sizes) == 399
    assert max(sizes) < 8 if large else max(sizes) == 8
    for key in range(5):
        stamps = [e["commit_ts"] for f in messages.values() for e in f if e["after"][0] == str(key)]
        assert stamps == sorted(stamps)


def test_rows_of_a_large_group_share_messages_too():
    rows = [insert(ts, (ts, ts, "x")) for ts in range(1, 1001)]
    sent = feed("open-protocol").send(batch(shape(), *rows))
    assert sent.num_rows == -(-1000 // 16)
    assert len(read(sent, "open-protocol")) == 1000


def test_no_message_reaches_over_a_ddl():
    rows = [insert(1, (1, 1, "x")), ddl("ALTER TABLE a COMMENT 'x'", 2), insert(3, (1, 2, "x"))]
    sent = feed("open-protocol", partitions=1).send(batch(shape(), *rows))
    assert [event["kind"] for event in read(sent, "open-protocol")] == ["insert", "ddl", "insert"]


# --- DDL ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "protocol, partitions",
    [
        ("canal-json", [0]),
        ("open-protocol", [0, 1, 2]),
        ("simple", [0, 1, 2]),
        ("craft", [0, 1, 2]),
    ],
)
def test_a_ddl_follows_all_earlier_rows_to_the_partitions_of_its_protocol(protocol, partitions):
    rows = [insert(ts, (ts, ts, "x")) for ts in range(1, 30)]
    sent = feed(protocol).send(batch(shape(), *rows, ddl("ALTER TABLE a COMMENT 'x'", 30)))
    found = [event for event in read(sent, protocol) if event["kind"] != "schema"]
    assert [event["kind"] for event in found[:29]] == ["insert"] * 29
    assert [event["partition"] for event in found[29:]] == partitions


TOPICS = """
[sink]
dispatchers = [{matcher = ["d.*"], partition = "table", topic = "{schema}.{table}"}]
"""


@pytest.mark.parametrize(
    "table, query, topic",
    [
        ("a2", "RENAME TABLE `d`.`a` TO `d`.`a2`", "d.a"),
        ("a2", "ALTER TABLE `a` RENAME TO `a2`", "d.a"),
        ("a", "ALTER TABLE `a` ADD COLUMN c INT", "d.a"),
        (None, "CREATE DATABASE `d`", "t"),
    ],
)
def test_the_topic_of_a_ddl_is_that_of_the_table_before_it(table, query, topic):
    sent = feed(toml=TOPICS).send(batch(ddl(query, 5, table=table)))
    assert sent["topic"].to_pylist() == [topic]


# --- watermarks -----------------------------------------------------------------------------------


def test_a_watermark_goes_to_every_partition_of_every_topic():
    sender = feed(toml=TOPICS)
    events = [shape(), shape("b"), insert(1, (1, 1, "x")), insert(2, (2, 2, "x"), "b")]
    found = read(sender.send(batch(*events, watermark(2))))
    assert [event["kind"] for event in found[:2]] == ["insert", "insert"]
    targets = {(event["topic"], event["partition"]) for event in found[2:]}
    assert targets == {(topic, number) for topic in ("t", "d.a", "d.b") for number in range(3)}
    assert len(found) == 2 + 9


def test_watermarks_keep_to_the_interval_and_the_last_is_sent_at_the_end():
    clock = Clock()
    sender = feed(clock=clock, partitions=1)
    stamps = []
    for step in range(30):
        clock.now = 1_000_000 + step / 10
        sent = sender.send(batch(watermark(100 + step)))
        stamps += [(step, event["commit_ts"]) for event in read(sent)]
    assert stamps == [(0, 100), (10, 110), (20, 120)]
    assert [event["commit_ts"] for event in read(sender.close())] == [129]
    assert sender.close().num_rows == 0
    assert sender.watermark == 129


def test_one_that_was_held_back_is_sent_when_its_time_has_come():
    clock = Clock()
    sender = feed(clock=clock, partitions=1)
    sender.send(batch(watermark(100)))
    assert sender.send(batch(watermark(101))).num_rows == 0
    clock.now += 1
    sent = sender.send(batch(shape(), insert(102, (1, 1, "x"))))
    assert shown(read(sent)) == [("watermark", None, 101), ("insert", "1", 102)]


def test_a_watermark_stands_behind_the_rows_before_it_and_before_those_behind():
    events = [insert(1, (1, 1, "x")), watermark(1), insert(2, (1, 2, "x"))]
    sent = feed(partitions=1).send(batch(shape(), *events))
    assert [event["kind"] for event in read(sent)] == ["insert", "watermark", "insert"]


def test_a_watermark_never_goes_back():
    sender = feed(partitions=1, watermark_interval=0)
    sent = sender.send(batch(watermark(5), watermark(4), watermark(5), watermark(6)))
    assert [event["commit_ts"] for event in read(sent)] == [5, 6]


def test_without_a_clock_the_time_is_that_of_the_changes():
    sender = feed(partitions=1, clock=None)
    marks = [watermark(tso(1000 + step / 4)) for step in range(9)]
    sent = sender.send(batch(*marks))
    assert [event["commit_ts"] for event in read(sent)] == [tso(1000), tso(1001), tso(1002)]


def test_a_feed_that_has_no_watermarks_sends_none():
    uri = "kafka://b:1/t?protocol=canal-json"
    sender = Changefeed(ChangefeedConfig.from_uri(uri), partitions=2)
    assert sender.send(batch(watermark(5))).num_rows == 0
    assert sender.close().num_rows == 0


# --- BOOTSTRAP ------------------------------------------------------------------------------------


def bootstraps(sent):
    return [
        (event["table"], event["partition"])
        for event in read(sent, "simple")
        if event["kind"] == "schema"
    ]


def test_a_table_is_told_before_its_first_row_and_then_by_time():
    clock = Clock()
    sender = feed("simple", clock=clock, partitions=2)
    first = read(sender.send(batch(shape(), insert(1, (1, 1, "x")))), "simple")
    assert [event["kind"] for event in first] == ["schema", "schema", "insert"]
    clock.now += 119
    assert bootstraps(sender.send(batch(insert(2, (2, 2, "x"))))) == []
    clock.now += 1
    assert bootstraps(sender.send(batch())) == [("a", 0), ("a", 1)]
    clock.now += 119
    assert bootstraps(sender.send(batch())) == []


def test_a_quiet_table_is_not_told_until_it_speaks_again():
    clock = Clock()
    sender = feed("simple", clock=clock, partitions=1)
    sender.send(batch(shape(), insert(1, (1, 1, "x"))))
    told = []
    for _ in range(40):
        clock.now += 60
        told += bootstraps(sender.send(batch()))
    assert len(told) == 15  # every two minutes of the first thirty
    sent = read(sender.send(batch(insert(2, (2, 2, "x")))), "simple")
    assert [event["kind"] for event in sent] == ["schema", "insert"]


def test_a_table_is_told_again_after_so_many_rows():
    sender = feed("simple", "[sink]\nsend-bootstrap-in-msg-count = 10", partitions=1)
    rows = [insert(ts, (ts, ts, "x")) for ts in range(1, 36)]
    kinds = []
    for part in (rows[:7], rows[7:12], rows[12:]):
        kinds += [event["kind"] for event in read(sender.send(batch(shape(), *part)), "simple")]
    told = [place for place, kind in enumerate(kinds) if kind == "schema"]
    assert told == [0, 11, 22, 33]


@pytest.mark.parametrize(
    "settings, told",
    [
        ("", [("a", 0), ("a", 1), ("a", 2)]),
        ("send-bootstrap-to-all-partition = false", [("a", 0)]),
        ("send-bootstrap-interval-in-sec = 0\nsend-bootstrap-in-msg-count = 0", []),
    ],
)
def test_where_and_whether_a_table_is_told(settings, told):
    sent = feed("simple", f"[sink]\n{settings}").send(batch(shape(), insert(1, (1, 1, "x"))))
    assert bootstraps(sent) == told


def told_schema(table, version, table_id):
    schema = TableSchema(
        database="d", table=table, table_id=table_id, version=version,
        columns=(Column.of_type("id", "int"),), indexes=(),
    )  # fmt: skip
    text = json.dumps({"tableSchema": schema.to_object()})
    names = {"database": "d", "table": table, "schema_version": version}
    return change("schema", None, schema=text, **names)


@pytest.mark.parametrize("at_start, told", [("true", [("a", 0), ("b", 0)]), ("false", [("b", 0)])])
def test_all_tables_can_be_told_at_the_start(at_start, told):
    sender = feed("simple", f"[sink]\nsend-all-bootstrap-at-start = {at_start}", partitions=1)
    names = change("schema", None, database="d", table="b", shape=2)
    names["schema"] = json.dumps({"columns": [{"name": "id"}]})
    one = row("insert", 5, table="b", table_id=8, shape=2, schema_version=4, after=["1"])
    schemas = told_schema("a", 3, 7), told_schema("b", 4, 8), names
    assert bootstraps(sender.send(batch(*schemas, one))) == told


def test_rows_of_a_shape_that_no_ddl_has_told_are_preceded_by_it():
    sender = feed("simple", partitions=1)
    sender.send(batch(shape(), insert(1, (1, 1, "x"))))
    other = row("insert", 2, shape=9, after=values(1, 1, "x"))
    sent = read(sender.send(batch(shape(number=9), other)), "simple")
    assert [event["kind"] for event in sent] == ["schema", "insert"]


# --- splitting ------------------------------------------------------------------------------------


def sent_order(*events, **settings):
    found = read(feed(partitions=1, **settings).send(batch(shape(), *events)))
    return [(event["kind"], (event["after"] or event["before"])[0]) for event in found]


@pytest.mark.parametrize(
    "before, after, is_split",
    [
        ((1, 5, "x"), (1, 5, "y"), False),
        ((1, 5, "x"), (1, 5, "x"), False),
        ((1, 5, "x"), (2, 5, "x"), True),
        ((1, 5, "x"), (1, 6, "x"), True),
        ((1, None, "x"), (1, 6, "x"), True),
        ((1, 5, "x"), (1, None, "x"), True),
        ((1, None, "x"), (1, None, "y"), False),
    ],
)
def test_an_update_of_a_key_is_a_delete_and_an_insert(before, after, is_split):
    sent = read(feed(partitions=1).send(batch(shape(), update(1, before, after))))
    told = [(event["kind"], event["before"], event["after"]) for event in sent]
    if is_split:
        assert told == [("delete", values(*before), None), ("insert", None, values(*after))]
    else:
        assert told == [("update", values(*before), values(*after))]


TRANSACTION = (
    insert(8, (9, 9, "x")),
    insert(9, (1, 1, "x")),
    update(9, (2, 2, "x"), (3, 2, "x")),
    update(9, (4, 4, "x"), (4, 4, "y")),
    delete(9, (5, 5, "x")),
    insert(10, (6, 6, "x")),
    delete(10, (7, 7, "x")),
)


def test_classic_ticdc_sorts_the_transaction_of_a_split_update():
    assert sent_order(*TRANSACTION) == [
        ("insert", "9"),
        ("delete", "2"),
        ("delete", "5"),
        ("update", "4"),
        ("insert", "1"),
        ("insert", "3"),
        ("insert", "6"),
        ("delete", "7"),
    ]


def test_new_ticdc_puts_the_inserts_of_split_updates_at_the_end_of_their_transaction():
    assert sent_order(*TRANSACTION, generation="new") == [
        ("insert", "9"),
        ("insert", "1"),
        ("delete", "2"),
        ("update", "4"),
        ("delete", "5"),
        ("insert", "3"),
        ("insert", "6"),
        ("delete", "7"),
    ]


def test_two_rows_that_swap_their_unique_values_are_deleted_first():
    swap = update(1, (1, 10, "x"), (1, 20, "x")), update(1, (2, 20, "x"), (2, 10, "x"))
    assert sent_order(*swap) == [
        ("delete", "1"),
        ("delete", "2"),
        ("insert", "1"),
        ("insert", "2"),
    ]


def test_what_an_update_does_not_tell_of_its_old_row_has_not_changed():
    told = update(1, (None, None, "x"), (1, 5, "y"), before_missing=b"\x03")
    sent = read(feed(partitions=1).send(batch(shape(), told)))
    assert [event["kind"] for event in sent] == ["update"]
    told = update(1, (7, None, None), (1, 5, "y"), before_missing=b"\x06")
    sent = read(feed(partitions=1).send(batch(shape(), told)))
    assert [event["before"] for event in sent] == [["7", "5", "y"], None]


# --- what is sent at all --------------------------------------------------------------------------


def test_tables_that_the_filter_leaves_out_are_not_sent():
    events = [
        shape(),
        shape("b"),
        insert(1, (1, 1, "x")),
        insert(2, (2, 2, "x"), "b"),
        ddl("ALTER TABLE b ADD COLUMN x INT", 3, table="b"),
        ddl("ALTER TABLE a ADD COLUMN x INT", 4),
        ddl("CREATE DATABASE d", 5, table=None),
        change("ddl", 6, database="mysql", ddl={"type": "QUERY", "query": "CREATE DATABASE mysql"}),
    ]
    sender = feed(toml='[filter]\nrules = ["*.*", "!d.b"]', partitions=1)
    assert [event["commit_ts"] for event in read(sender.send(batch(*events)))] == [1, 4, 5]


@pytest.mark.parametrize(
    "rules, sent", [('["d.a"]', True), ('["d.a*"]', True), ('["d.a2"]', None), ('["d.b"]', False)]
)
def test_a_rename_is_sent_if_the_table_was_in_the_feed(rules, sent):
    sender = feed(toml=f"[filter]\nrules = {rules}", partitions=1)
    rename = batch(ddl("RENAME TABLE `d`.`a` TO `d`.`a2`", 5, table="a2"))
    if sent is None:
        with pytest.raises(ConfigError, match="let the rules take both names"):
            sender.send(rename)
    else:
        assert sender.send(rename).num_rows == sent


def test_what_could_not_be_decoded_is_not_sent():
    with pytest.raises(EncodeError, match="could not be decoded"):
        feed().send(batch(change("error")))


def test_settings_that_cannot_be_written_are_refused():
    toml = "[sink]\ncolumn-selectors = [{matcher = ['d.*'], columns = ['id']}]"
    with pytest.raises(ConfigError, match="column-selectors"):
        feed(toml=toml)


def test_a_changefeed_without_a_protocol_is_refused():
    with pytest.raises(ConfigError, match="protocol"):
        Changefeed(ChangefeedConfig())


# --- large messages -------------------------------------------------------------------------------

LARGE = """
[sink.kafka-config.large-message-handle]
large-message-handle-option = "{option}"
claim-check-storage-uri = "{storage}"
"""


def test_a_message_that_cannot_fit_is_an_error_and_nothing_is_sent():
    sender = feed(parameters="&max-message-bytes=600", partitions=1)
    events = [insert(1, (1, 1, "x")), insert(2, (2, 2, "x" * 1000)), watermark(2)]
    with pytest.raises(EncodeError, match="over max-message-bytes 600"):
        sender.send(batch(shape(), *events))
    assert sender.watermark == 0
    sent = read(sender.send(batch(events[0], watermark(1))))
    assert [event["kind"] for event in sent] == ["insert", "watermark"]


@pytest.mark.parametrize("protocol", ["canal-json", "open-protocol", "simple"])
def test_large_rows_are_kept_where_the_changefeed_says(tmp_path, protocol):
    toml = LARGE.format(option="claim-check", storage=tmp_path.as_uri())
    sender = feed(protocol, toml, "&max-message-bytes=1000")
    sent = sender.send(batch(shape(), insert(1, (1, 1, "x")), insert(2, (2, 2, "x" * 2000))))
    assert len(list(tmp_path.iterdir())) == 1
    found = read(sent, protocol, claim_check=from_folder(tmp_path))
    rows = [event["after"] for event in found if event["kind"] == "insert"]
    assert rows[1][2] == "x" * 2000


def test_large_rows_with_their_handle_key_only():
    toml = LARGE.format(option="handle-key-only", storage="")
    sender = feed(toml=toml, parameters="&max-message-bytes=900")
    (found,) = read(sender.send(batch(shape(), insert(2, (2, 2, "x" * 2000)))))
    assert found["after"] == ["2"]


def test_a_storage_that_is_not_a_folder_needs_a_way_to_write_to_it():
    toml = LARGE.format(option="claim-check", storage="s3://bucket/kept")
    with pytest.raises(ConfigError, match="claim-check-storage-uri"):
        feed("open-protocol", toml)
    kept = []

    def keep(content):
        kept.append(content)
        return "s3://bucket/kept/1.json"

    sender = feed("open-protocol", toml, "&max-message-bytes=1000", claim_check=keep)
    sender.send(batch(shape(), insert(2, (2, 2, "x" * 2000))))
    assert len(kept) == 1


# --- sending again --------------------------------------------------------------------------------


def test_rows_since_a_watermark_are_sent_again_as_after_a_failure():
    sender = feed("simple", partitions=1, remember=True)
    events = [insert(1, (1, 1, "x")), watermark(1), insert(2, (2, 2, "x"))]
    sender.send(batch(shape(), *events, ddl("ALTER TABLE a COMMENT 'x'", 3)))
    sender.send(batch(insert(4, (4, 4, "x"))))
    again = read(sender.resend(1), "simple")
    assert shown(again) == [
        ("schema", None, None),
        ("insert", "2", 2),
        ("ddl", None, 3),
        ("insert", "4", 4),
    ]
    assert sender.resend(4).num_rows == 0


def test_only_a_feed_that_remembers_can_send_again():
    with pytest.raises(ValueError, match="remember=True"):
        feed().resend(0)
