"""A received feed as its source: in commit order, and sent once more it leads to the same tables."""

import pyarrow as pa
import pytest

from tests.changefeed.test_replay import STOPPED, differences
from tests.support import corpus
from tests.support.changes import batch, ddl, row, watermark
from tests.support.decoding import decode_variant
from tests.support.mirror import Mirror
from tidegate.changefeed.config.changefeed import ChangefeedConfig, DispatchRule
from tidegate.changefeed.receive.gate import Gate
from tidegate.changefeed.receive.upstream import Upstream
from tidegate.changefeed.send.changefeed import Changefeed
from tidegate.wire import decode_batch


def read(upstream, *events):
    found = upstream.read(batch(*events))
    return [(event["kind"], event["commit_ts"]) for event in found.to_pylist()]


def test_changes_come_in_the_order_of_commit_when_all_partitions_are_complete():
    upstream = Upstream([("t", 0), ("t", 1)])
    assert read(upstream, row("insert", 7, "1/0"), row("insert", 5, "0/0")) == []
    assert read(upstream, watermark(9, "0/1"), row("insert", 9, "1/1")) == []
    assert read(upstream, watermark(8, "1/2"), row("insert", 12, "1/3")) == [
        ("insert", 5),
        ("insert", 7),
        ("watermark", 8),
    ]
    assert [event["commit_ts"] for event in upstream.finish().to_pylist()] == [9, 12]


def test_a_ddl_comes_once_and_what_was_given_does_not_come_again():
    upstream = Upstream([("t", 0), ("t", 1)])
    broadcast = [ddl("ALTER TABLE a", 5, "0/1"), ddl("ALTER TABLE a", 5, "1/1")]
    first = read(upstream, row("insert", 4), *broadcast, watermark(6, "0/2"), watermark(6, "1/2"))
    assert first == [("insert", 4), ("ddl", 5), ("watermark", 6)]
    again = [row("insert", 4, "0/3"), ddl("ALTER TABLE a", 5, "0/4"), row("insert", 7, "0/5")]
    marks = watermark(8, "0/6"), watermark(8, "1/3")
    assert read(upstream, *again, *marks) == [("insert", 7), ("watermark", 8)]


def test_without_watermarks_changes_stay_as_they_come():
    upstream = Upstream([("t", 0)], watermarks=False)
    events = row("insert", 4), ddl("ALTER TABLE a", 5), row("insert", 3, "0/2")
    assert read(upstream, *events) == [("insert", 4), ("ddl", 5), ("insert", 3)]
    assert read(upstream, ddl("ALTER TABLE a", 5, "0/3")) == []


def config(protocol):
    return ChangefeedConfig(
        protocol=protocol,
        enable_tidb_extension=True,
        partition_num=2,
        dispatchers=(DispatchRule(("*.*",), "index-value"),),
    )


@pytest.mark.parametrize("target", ["open-protocol", "canal-json", "simple", "craft"])
@pytest.mark.parametrize("source", ["open.b16", "canal.ext", "simple.json", "craft.b16"])
def test_a_feed_that_is_sent_once_more_leads_to_the_same_tables(source, target):
    variant = corpus.variant(f"ddl.{source}.stream")
    upstream = Upstream([("", number) for number in range(3)])
    feed = Changefeed(config(target), clock=None)
    sent = []
    for changes in decode_variant(variant, corpus.messages(variant.name), batch_size=100):
        sent.append(feed.send(upstream.read(changes)))
    sent += [feed.send(upstream.finish()), feed.close()]

    mirror = Mirror(Gate([("", 0), ("", 1)]))
    offset = 0
    for part in sent:
        changes = decode_batch(
            target,
            part["key"],
            part["value"],
            partitions=part["partition"],
            offsets=pa.array(range(offset, offset + part.num_rows), pa.int64()),
        )
        offset += part.num_rows
        mirror.read(pa.Table.from_batches([changes]))
    assert mirror.is_done()
    assert mirror.model.stopped == STOPPED
    floats = "craft" not in source
    assert differences(mirror.model, "ddl", floats=floats) == set()
