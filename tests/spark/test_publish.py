"""Changes sent to Kafka and read back by a plain client: TiCDC's rules, one by one."""

from collections import defaultdict
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.support.consumed import changes_of, consumed, partition_count
from tests.support.mirror import Mirror
from tests.support.spark import fresh
from tidegate.feed.config import ChangefeedConfig
from tidegate.feed.dispatch import Dispatcher
from tidegate.feed.gate import ROW_KINDS, Gate
from tidegate.model import ConfigError, SinkError
from tidegate.spark import CHANGE_TYPE, publish
from tidegate.wire import ShapeBook
from tidegate.workload import workload

PARTITIONS = 3
RULES = '[[sink.dispatchers]]\nmatcher = ["*.*"]\npartition = "index-value"\n'
FEEDS = {
    "open": ("open-protocol", {}),
    "canal": ("canal-json", {"enable_tidb_extension": "true"}),
    "craft": ("craft", {}),
    "simple": ("simple", {}),
    "simple-avro": ("simple", {"encoding_format": "avro"}),
    "cdc": ("cdc", {}),
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


def state(truth):
    """A truth as the model of the tests has its state."""
    return {
        name: {
            key: dict(zip(table.schema.column_names, row, strict=True))
            for key, row in table.rows.items()
        }
        for name, table in truth.tables.items()
    }


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
        assert len(key) > 1
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
    assert mirror.model.state() == state(orders().final())
    assert (report.messages, report.bad, report.held) == (len(messages), 0, 0)
    assert report.rows >= 1500
