"""Changes sent to Kafka and read back by a plain client: TiCDC's rules, one by one."""

import json
from collections import defaultdict
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.support.changes import change, watermark
from tests.support.changes import row as row_change
from tests.support.consumed import changes_of, consumed, partition_count
from tests.support.kafka import free_port
from tests.support.mirror import Mirror
from tests.support.spark import fresh
from tests.support.table_model import state_of
from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.receive.gate import ROW_KINDS, Gate
from tidegate.changefeed.send.dispatch import Dispatcher
from tidegate.model import ConfigError, SinkError
from tidegate.spark import CHANGE_TYPE, publish
from tidegate.sql.ddl import transition
from tidegate.sql.definition import Charset
from tidegate.wire import CHANGE_SCHEMA, ShapeBook
from tidegate.workload import workload

PARTITIONS = 3
KEYLESS = "coupons"
"""The table of `orders` that has a unique key, but no primary one."""
RULES = '[[sink.dispatchers]]\nmatcher = ["*.*"]\npartition = "index-value"\n'
FEEDS = {
    "open": ("open-protocol", {}),
    "canal": ("canal-json", {"enable_tidb_extension": "true"}),
    "craft": ("craft", {}),
    "simple": ("simple", {}),
    "simple-avro": ("simple", {"encoding_format": "avro"}),
}


@cache
def orders(rows=1500, seed=5):
    return workload("orders", rows=rows, seed=seed, rate=400)


@pytest.fixture(scope="module")
def frame(spark, tmp_path_factory):
    """The changes of `orders` as a bounded DataFrame, in any order."""
    folder = tmp_path_factory.mktemp("orders")
    pq.write_table(pa.Table.from_batches(orders().batches()), folder / "changes.parquet")
    return spark.read.schema(CHANGE_TYPE).parquet(str(folder)).repartition(2)


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    path = tmp_path_factory.mktemp("rules") / "changefeed.toml"
    path.write_text(RULES)
    return path


@pytest.fixture(scope="module", params=FEEDS)
def sent(request, frame, rules, kafka):
    protocol, parameters = FEEDS[request.param]
    topic = fresh(f"publish-{request.param}")
    uri = kafka.uri(topic, protocol, partition_num=str(PARTITIONS), **parameters)
    report = publish(frame, uri, changefeed=rules)
    return uri, topic, protocol, report, consumed(kafka, topic)


def by_partition(batch):
    """The events of each partition in the order of Kafka, without schemas."""
    found = defaultdict(list)
    for row in batch.filter(pc.not_equal(batch["kind"], "schema")).to_pylist():
        found[row["partition"]].append(row)
    return found


def test_rows_are_where_the_dispatcher_puts_them(sent, rules):
    uri, _, protocol, _, messages = sent
    batch = changes_of(messages, protocol)
    dispatcher = Dispatcher(ChangefeedConfig.from_toml(rules.read_text(), uri), PARTITIONS)
    is_row = pc.is_in(batch["kind"], pa.array(ROW_KINDS))
    if protocol == "canal-json":  # it does not tell a key that is not the primary one
        is_row = pc.and_(is_row, pc.not_equal(batch["table"], KEYLESS))
    expected = dispatcher.partitions(batch, ShapeBook([batch])).filter(is_row)
    assert batch["partition"].filter(is_row).equals(expected)
    assert set(expected.to_pylist()) == set(range(PARTITIONS))


def test_the_rows_of_a_key_are_in_one_partition_in_the_order_of_their_commits(sent):
    batch = changes_of(sent[4], sent[2])
    book = ShapeBook([batch])
    places, times = {}, {}
    for row in batch.filter(pc.is_in(batch["kind"], pa.array(ROW_KINDS))).to_pylist():
        shape = book.shape(row["shape"], row["schema_version"])
        values = row["after"] if row["after"] is not None else row["before"]
        named = zip(shape.columns, values, strict=True)
        key = (row["table"], *(value for column, value in named if column.key))
        if len(key) == 1:
            assert (sent[2], row["table"]) == ("canal-json", KEYLESS)
            continue
        assert places.setdefault(key, row["partition"]) == row["partition"]
        assert times.get(key, 0) <= row["commit_ts"]
        times[key] = row["commit_ts"]
    assert len(times) > 300


def test_ddl_is_in_every_partition_behind_all_earlier_rows(sent):
    _, _, protocol, _, messages = sent
    partitions = by_partition(changes_of(messages, protocol))
    statements = {
        partition: [(row["commit_ts"], row["ddl"]["query"]) for row in rows if row["kind"] == "ddl"]
        for partition, rows in partitions.items()
    }
    whole = [
        (row["commit_ts"], row["ddl"]["query"])
        for batch in orders().batches()
        for row in batch.filter(pc.equal(batch["kind"], "ddl")).to_pylist()
    ]
    if protocol == "canal-json":  # there, times are milliseconds, and only the first has DDL
        assert [query for _, query in statements.pop(0)] == [query for _, query in whole]
        assert not any(statements.values())
    else:
        assert statements == dict.fromkeys(range(PARTITIONS), whole)
    for rows in partitions.values():
        latest = 0
        for row in rows:
            if row["kind"] == "ddl":
                assert latest <= row["commit_ts"]
            latest = max(latest, row["commit_ts"])


def test_watermarks_are_in_every_partition_and_never_ahead_of_a_row(sent):
    _, _, protocol, report, messages = sent
    partitions = by_partition(changes_of(messages, protocol))
    marks = {
        partition: [row["commit_ts"] for row in rows if row["kind"] == "watermark"]
        for partition, rows in partitions.items()
    }
    whole = pa.Table.from_batches(orders().batches())
    expected = whole.filter(pc.equal(whole["kind"], "watermark"))["commit_ts"].to_pylist()
    assert marks == dict.fromkeys(range(PARTITIONS), expected)
    assert report.watermark == report.resolved_ts == expected[-1]
    for rows in partitions.values():
        mark = 0
        for row in rows:
            if row["kind"] == "watermark":
                mark = row["commit_ts"]
            elif protocol != "canal-json" or row["kind"] != "ddl":
                assert row["commit_ts"] > mark


def test_a_mirror_of_what_was_sent_is_the_truth(sent):
    _, topic, protocol, report, messages = sent
    mirror = Mirror(Gate([(topic, partition) for partition in range(PARTITIONS)]))
    mirror.read(pa.Table.from_batches([changes_of(messages, protocol)]))
    assert mirror.is_done()
    assert mirror.model.state() == state_of(orders().final())
    assert (report.messages, report.bad, report.held) == (len(messages), 0, 0)
    assert report.rows >= 1500


# --- topics, sizes, and what goes wrong -----------------------------------------------------------


def changes_frame(spark, tmp_path, *rows):
    """A bounded DataFrame of hand-written changes."""
    pq.write_table(pa.Table.from_pylist(list(rows), schema=CHANGE_SCHEMA), tmp_path / "c.parquet")
    return spark.read.schema(CHANGE_TYPE).parquet(str(tmp_path))


def shape(number=1, table="t"):
    columns = [
        {"name": "id", "type": "int", "code": 3, "flags": 11, "key": True},
        {"name": "note", "type": "text", "code": 252, "flags": 64},
    ]
    schema = json.dumps({"columns": columns})
    return change("schema", at="0/0/-1", shape=number, database="d", table=table, schema=schema)


def insert(ts, key, note="", **more):
    return row_change("insert", ts, shape=1, after=[str(key), note], table="t", **more)


def test_a_topic_that_is_there_says_how_many_partitions_there_are(spark, kafka, tmp_path):
    topic = fresh("five")
    kafka.create(topic, partitions=5)
    frame = changes_frame(spark, tmp_path, shape(), insert(1 << 18, 1), watermark(2 << 18))
    report = publish(frame, kafka.uri(topic, "open-protocol"))
    marks = [m for m in consumed(kafka, topic) if b'"t":3' in m.key]
    assert sorted(message.partition for message in marks) == list(range(5))
    assert report.messages == 6
    with pytest.raises(ConfigError, match=r"it is 6, but the topic '.*' has 5 partitions"):
        publish(frame, kafka.uri(topic, "open-protocol", partition_num="6"))


def test_tables_go_to_topics_of_their_own_which_are_made(spark, kafka, tmp_path):
    name = fresh("by-table")
    rules = tmp_path / "changefeed.toml"
    rules.write_text(
        f'[[sink.dispatchers]]\nmatcher = ["d.t"]\ntopic = "{name}-{{schema}}-{{table}}"\n'
    )
    folder = tmp_path / "changes"
    folder.mkdir()
    frame = changes_frame(spark, folder, shape(), insert(1 << 18, 1), watermark(2 << 18))
    publish(frame, kafka.uri(name, "open-protocol", partition_num="2"), changefeed=rules)
    assert partition_count(kafka, f"{name}-d-t") == 2
    found = consumed(kafka, name, f"{name}-d-t")
    kinds = sorted((message.topic, message.partition, message.key[8:]) for message in found)
    assert len([each for each in kinds if b'"t":1' in each[2]]) == 1
    assert len([each for each in kinds if b'"t":3' in each[2]]) == 4


def test_messages_are_no_longer_than_the_topic_takes(spark, kafka, tmp_path):
    topic = fresh("small")
    kafka.create(topic, partitions=1, max_message_bytes="3000")
    many = [insert((1 + number) << 18, number, "x" * 500) for number in range(40)]
    publish(changes_frame(spark, tmp_path, shape(), *many), kafka.uri(topic, "open-protocol"))
    found = consumed(kafka, topic)
    assert max(len(message.key) + len(message.value) for message in found) <= 3000 - 128
    assert 40 > len(found) > 8  # several rows a message, as many as fit


def test_a_row_that_cannot_be_sent_is_named(spark, kafka, tmp_path):
    topic = fresh("too-small")
    kafka.create(topic, partitions=1, max_message_bytes="3000")
    frame = changes_frame(spark, tmp_path, shape(), insert(1 << 18, 1, "x" * 5000))
    with pytest.raises(SinkError, match=r"Cannot write to the topic .*d\.t.* max-message-bytes"):
        publish(frame, kafka.uri(topic, "open-protocol"))
    assert consumed(kafka, topic) == []


def test_bad_messages_are_put_away_or_refused(spark, kafka, tmp_path):
    reason = {"code": "json", "reason": "it is no JSON", "part": "value", "position": 3}
    bad = change("error", at="2/7", error=reason, raw_key=b"k", raw_value=b"v")
    folder = tmp_path / "changes"
    folder.mkdir()
    frame = changes_frame(spark, folder, shape(), insert(1 << 18, 1), bad)
    uri = kafka.uri(fresh("bad"), "craft")
    with pytest.raises(SinkError, match=r"1 messages .* partition 2, offset 7: it is no JSON"):
        publish(frame, uri)
    report = publish(frame, uri, quarantine=tmp_path / "bad")
    assert (report.bad, report.rows, report.consistency) == (1, 1, "eventual")
    (kept,) = spark.read.parquet(str(tmp_path / "bad")).collect()
    assert (kept["offset"], bytes(kept["raw_value"])) == (7, b"v")


def test_what_is_missing_is_said(spark, kafka, frame):
    with pytest.raises(ConfigError, match="it has no column 'topic'"):
        publish(spark.range(1), kafka.uri("t", "craft"))
    with pytest.raises(ConfigError, match="it is no Kafka"):
        publish(frame, "file:///folder?protocol=craft")
    with pytest.raises(SinkError, match="it does not exist, and auto-create-topic is off"):
        publish(frame, kafka.uri(fresh("none"), "craft", auto_create_topic="false"))


def test_a_broker_that_does_not_answer_is_named(frame, monkeypatch):
    monkeypatch.setattr("tidegate.spark.topics.ANSWER_SECONDS", 1)
    port = free_port()
    with pytest.raises(SinkError, match=f"Kafka at 127.0.0.1:{port}: it does not answer"):
        publish(frame, f"kafka://127.0.0.1:{port}/t?protocol=craft")


# --- typed rows -----------------------------------------------------------------------------------

STOCK = """CREATE TABLE `stock` (`id` BIGINT UNSIGNED PRIMARY KEY, `name` VARCHAR(20),
  `price` DECIMAL(10,2), `at` DATETIME(3), `data` VARBINARY(8))"""


def test_typed_rows_become_changes(spark, kafka):
    schema = transition(None, STOCK, "shop", charset=Charset("utf8mb4", "utf8mb4_bin")).after
    rows = spark.sql(
        """SELECT * FROM VALUES
        (2, 'b', 2.5, TIMESTAMP_NTZ'2026-01-02 03:04:05.678', X'00ff', 'insert', 10 << 18),
        (1, 'x', 1, NULL, NULL, 'update', 9 << 18),
        (1, 'x', 1, NULL, NULL, 'delete', 11 << 18)
        AS rows(id, name, price, at, data, _op, _commit_ts)"""
    )
    topic = fresh("typed")
    report = publish(rows, kafka.uri(topic, "craft", partition_num="1"), schema=schema)
    assert (report.rows, report.watermark, report.consistency) == (3, 11 << 18, "snapshot")
    found = changes_of(consumed(kafka, topic), "craft").to_pylist()
    assert [(row["kind"], row["commit_ts"] >> 18, row["after"]) for row in found[1:]] == [
        ("update", 9, ["1", "x", "1.00", None, None]),
        ("insert", 10, ["2", "b", "2.50", "2026-01-02 03:04:05.678", "AP8="]),
        ("delete", 11, None),
        ("watermark", 11, None),
    ]
    with pytest.raises(ConfigError, match="it has no column 'price'"):
        publish(rows.drop("price"), kafka.uri(topic, "craft"), schema=schema)
