"""Kafka as a source, on a real broker: every message once, and no loss unnoticed."""

import json
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer

from tests.support.corpus import Message
from tests.support.kafka import free_port
from tests.support.spark import fresh
from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.model import SourceError
from tidegate.source import consumption
from tidegate.source.base import RoundLimits
from tidegate.source.kafka import KafkaSource
from tidegate.wire import CAPTURE_SCHEMA

EVERYTHING = RoundLimits()


def config_of(kafka, topic, dispatchers="", rules="['*.*']"):
    uri = kafka.uri(topic, "canal-json", enable_tidb_extension="true")
    text = f"[filter]\nrules = {rules}\n[sink]\ndispatchers = [{dispatchers}]"
    return ChangefeedConfig.from_toml(text, uri)


def source_of(kafka, topic, *more, **settings):
    return KafkaSource(config_of(kafka, topic, *more), **settings)


def by_table(prefix):
    """A dispatch rule that gives every table a topic."""
    return "{matcher = ['*.*'], topic = '" + prefix + "_{schema}_{table}'}"


def messages(count, start=0, partitions=3):
    return [
        Message(number % partitions, b"k%d" % number, b"v%d" % number)
        for number in range(start, start + count)
    ]


def read(source, plan):
    """What the splits of a plan have, as it is read elsewhere: (topic, partition, offset, value)."""
    reader = pickle.loads(pickle.dumps(source.reader))
    found = []
    for split in plan.splits:
        for batch in reader.read(json_copy(split)):
            assert batch.schema == CAPTURE_SCHEMA
            columns = (
                batch[name].to_pylist() for name in ("topic", "partition", "offset", "value")
            )
            found += zip(*columns, strict=True)
    return found


def json_copy(split):
    return type(split)(json.loads(json.dumps(split.place)), split.messages)


def rounds(source, limits, position=None):
    """All messages, in as many rounds as it takes; and the plans."""
    found, plans, position = [], [], position or {}
    while True:
        plan = source.plan(json.loads(json.dumps(position)), limits)
        plans.append(plan)
        found += read(source, plan)
        position = plan.position
        if not plan.behind:
            return found, plans


def offsets(plan, topic):
    return plan.position["topics"][topic]["offsets"]


# --- plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 1, 50, 170])
def test_every_message_comes_once_and_in_order_however_rounds_and_splits_are_cut(kafka, limit):
    topic = fresh("cut")
    kafka.create(topic)
    count = 500 if limit != 1 else 5
    kafka.send({topic: messages(count)})
    found, plans = rounds(source_of(kafka, topic), RoundLimits(messages=limit, split_messages=37))
    assert sorted(found) == sorted(
        (topic, number % 3, number // 3, b"v%d" % number) for number in range(count)
    )
    for partition in range(3):
        values = [at for _, number, at, _ in found if number == partition]
        assert values == sorted(values)
    for plan in plans:
        taken = [split.messages for split in plan.splits]
        assert limit is None or sum(taken) <= limit
        assert all(each <= 37 for each in taken)


def test_a_split_gives_the_same_messages_again(kafka):
    topic = fresh("again")
    kafka.create(topic)
    kafka.send({topic: messages(100)})
    source = source_of(kafka, topic)
    plan = source.plan({}, RoundLimits(messages=60))
    first = read(source, plan)
    kafka.send({topic: messages(100, 100)})
    # A split may have several partitions; only within one of them is the order the same.
    assert sorted(read(source_of(kafka, topic), plan)) == sorted(first)
    assert len(first) == 60


def test_silent_partitions_are_known_and_nothing_is_planned_for_them(kafka):
    topic = fresh("silent")
    kafka.create(topic, partitions=5)
    kafka.send({topic: messages(4, partitions=2)})
    plan = source_of(kafka, topic).plan({}, EVERYTHING)
    assert plan.partitions == {(topic, number) for number in range(5)}
    assert offsets(plan, topic) == [2, 2, 0, 0, 0]
    assert plan.pending == {(topic, 0), (topic, 1)}
    assert plan.left == frozenset()
    assert [split.messages for split in plan.splits] == [4]
    assert source_of(kafka, topic).plan(plan.position, EVERYTHING).splits == ()


def test_a_backlog_is_shared_so_that_no_partition_waits_for_another(kafka):
    topic = fresh("shared")
    kafka.create(topic)
    streams = [*messages(3000, partitions=1), *[Message(1, None, b"v")] * 10]
    kafka.send({topic: streams})
    plan = source_of(kafka, topic).plan({}, RoundLimits(messages=100))
    taken = offsets(plan, topic)
    assert sum(taken) == 100
    assert taken[1] == 10
    assert plan.behind == 2910


def test_a_round_is_bounded_in_bytes_by_the_messages_read_before(kafka):
    topic = fresh("bytes")
    kafka.create(topic, partitions=1)
    kafka.send({topic: [Message(0, None, bytes(1000))] * 300})
    source = source_of(kafka, topic)
    source.head(10)
    plan = source.plan({}, RoundLimits(bytes=100_000, split_bytes=20_000))
    assert [split.messages for split in plan.splits] == [20] * 5
    source.observe(10, 50_000)
    plan = source.plan({}, RoundLimits(bytes=100_000))
    assert [split.messages for split in plan.splits] == [20]


def test_a_thousand_topics_are_read_by_few_tasks(kafka):
    prefix = fresh("many")
    topics = [f"{prefix}_shop_t{number}" for number in range(1000)]
    kafka.create(*topics, partitions=1)
    kafka.send({topic: messages(3, partitions=1) for topic in topics})
    source = source_of(kafka, f"{prefix}_main", by_table(prefix), "['shop.*']")
    plan = source.plan({}, EVERYTHING)
    assert len(plan.partitions) == 1000
    assert len(plan.splits) <= 4
    assert sorted(read(source, plan)) == sorted(
        (topic, 0, at, b"v%d" % at) for topic in topics for at in range(3)
    )
    assert source.plan(plan.position, EVERYTHING).splits == ()
    kafka.delete(*topics)


# --- topics and partitions that come and go -------------------------------------------------------


def test_new_partitions_are_read_from_their_first_message(kafka):
    topic = fresh("wider")
    kafka.create(topic, partitions=1)
    kafka.send({topic: messages(5, partitions=1)})
    source = source_of(kafka, topic)
    plan = source.plan({}, EVERYTHING)
    kafka.add_partitions(topic, 3)
    eventually(
        lambda: source.plan(plan.position, EVERYTHING).partitions, {(topic, n) for n in range(3)}
    )
    kafka.send({topic: [Message(2, None, b"new")]})
    assert read(source, source.plan(plan.position, EVERYTHING)) == [(topic, 2, 0, b"new")]


def test_new_topics_are_read_and_topics_of_others_are_not(kafka):
    prefix = fresh("growing")
    main, first, second, other = (
        f"{prefix}_{name}" for name in ("main", "shop_a", "shop_b", "logs_a")
    )
    kafka.create(main, first, other, partitions=1)
    kafka.send({name: [Message(0, None, b"1")] for name in (main, first, other)})
    source = source_of(kafka, main, by_table(prefix), "['shop.*']")
    found, plans = rounds(source, EVERYTHING)
    assert {topic for topic, *_ in found} == {main, first}
    kafka.create(second, partitions=1)
    kafka.send({second: [Message(0, None, b"2")]})
    found, plans = rounds(source, EVERYTHING, plans[-1].position)
    assert found == [(second, 0, 0, b"2")]
    # The filter may change: what was read before is still read.
    kafka.send({first: [Message(0, None, b"3")]})
    narrow = source_of(kafka, main, by_table(prefix), "['shop.b']")
    assert rounds(narrow, EVERYTHING, plans[-1].position)[0] == [(first, 0, 1, b"3")]


def test_a_topic_that_is_gone_is_named_and_keeps_its_place(kafka):
    prefix = fresh("leaving")
    main, gone = f"{prefix}_main", f"{prefix}_shop_a"
    kafka.create(main, gone, partitions=1)
    kafka.send({name: [Message(0, None, b"1")] for name in (main, gone)})
    source = source_of(kafka, main, by_table(prefix))
    plan = source.plan({}, EVERYTHING)
    assert plan.missing == ()
    kafka.delete(gone)
    eventually(lambda: source.plan(plan.position, EVERYTHING).missing, (gone,))
    later = source.plan(plan.position, EVERYTHING)
    assert later.position == plan.position
    assert later.partitions == {(main, 0)}


def test_a_topic_that_was_created_again_is_refused(kafka):
    topic = fresh("again")
    kafka.create(topic)
    kafka.send({topic: messages(30)})
    source = source_of(kafka, topic)
    plan = source.plan({}, EVERYTHING)
    kafka.delete(topic)
    eventually(lambda: source.plan(plan.position, EVERYTHING).missing, (topic,))
    create_again(kafka, topic)
    kafka.send({topic: messages(300)})
    with pytest.raises(SourceError, match=rf"'{topic}': it was deleted and created again"):
        source.plan(plan.position, EVERYTHING)


def create_again(kafka, topic):
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + 30
    while True:
        try:
            kafka.create(topic)
            return
        except KafkaException:  # it is still being deleted
            assert time.monotonic() < deadline


def eventually(ask, expected):
    """Waits until brokers have heard of what the controller did."""
    deadline = time.monotonic() + 30
    while (found := ask()) != expected:
        assert time.monotonic() < deadline, found


def test_a_topic_that_does_not_exist_is_named_with_the_nearest(kafka):
    topic = fresh("present")
    kafka.create(topic)
    source = source_of(kafka, topic + "s")
    for ask in (lambda: source.plan({}, EVERYTHING), lambda: source.head(1)):
        with pytest.raises(
            SourceError, match=f"'{topic}s': it does not exist.*did you mean '{topic}'"
        ):
            ask()
    assert source_of(kafka, topic + "s", by_table(topic)).plan({}, EVERYTHING).splits == ()


# --- messages that are lost -----------------------------------------------------------------------


def test_messages_that_retention_has_deleted_unread_are_missed(kafka):
    topic = fresh("retained")
    kafka.create(topic)
    kafka.send({topic: messages(300)})
    source = source_of(kafka, topic)
    plan = source.plan({}, RoundLimits(messages=60))
    kafka.delete_before(topic, {0: 50})
    with pytest.raises(
        SourceError, match="partition 0 were deleted before they were read: offset 20 to 49"
    ):
        source.plan(plan.position, EVERYTHING)
    # A lake that is new starts with what there is.
    assert len(read(source, source.plan({}, EVERYTHING))) == 250


def test_messages_that_are_deleted_between_plan_and_read_are_missed(kafka):
    topic = fresh("deleted")
    kafka.create(topic, partitions=1)
    kafka.send({topic: messages(300, partitions=1)})
    source = source_of(kafka, topic)
    plan = source.plan({}, EVERYTHING)
    kafka.delete_before(topic, {0: 50})
    with pytest.raises(
        SourceError, match="partition 0 were deleted before they were read: offset 0"
    ):
        read(source, plan)
    kafka.send({topic: messages(3, partitions=1)})
    # The next read is not harmed by the failure.
    assert len(read(source, source.plan({}, EVERYTHING))) == 253


def test_a_partition_that_has_become_shorter_is_refused(kafka):
    topic = fresh("shorter")
    kafka.create(topic, partitions=1)
    kafka.send({topic: messages(3, partitions=1)})
    source = source_of(kafka, topic)
    position = json.loads(json.dumps(source.plan({}, EVERYTHING).position))
    position["topics"][topic]["offsets"] = [4]
    with pytest.raises(SourceError, match="partition 0 was read up to offset 4 and now ends at 3"):
        source.plan(position, EVERYTHING)


# --- offsets without messages ---------------------------------------------------------------------


def transactional(kafka, name):
    producer = Producer(
        {"bootstrap.servers": kafka.address, "transactional.id": name, "log_level": 0}
    )
    producer.init_transactions(30)
    return producer


def test_marks_of_transactions_and_aborted_messages_are_gaps(kafka):
    topic = fresh("transactions")
    kafka.create(topic, partitions=2)
    producer = transactional(kafka, topic)
    expected = []
    at = 0
    for number in range(12):
        producer.begin_transaction()
        for _ in range(5):
            producer.produce(topic, b"v%d" % number, partition=0)
        if number % 3:
            producer.commit_transaction(30)
            expected += [(topic, 0, at + each, b"v%d" % number) for each in range(5)]
        else:
            producer.flush(30)
            producer.abort_transaction(30)
        at += 6
    source = source_of(kafka, topic)
    for limits in (EVERYTHING, RoundLimits(messages=7), RoundLimits(split_messages=5)):
        assert rounds(source, limits)[0] == expected
    kafka.send({topic: [Message(1, None, b"w")] * 3})
    found, _ = rounds(source, RoundLimits(messages=9))
    assert sorted(found) == sorted(expected + [(topic, 1, at, b"w") for at in range(3)])


def test_an_open_transaction_is_read_when_it_is_committed(kafka):
    topic = fresh("open")
    kafka.create(topic, partitions=1)
    kafka.send({topic: [Message(0, None, b"before")]})
    producer = transactional(kafka, topic)
    producer.begin_transaction()
    producer.produce(topic, b"within", partition=0)
    producer.flush(30)
    kafka.send({topic: [Message(0, None, b"after")]})
    source = source_of(kafka, topic)
    found, plans = rounds(source, EVERYTHING)
    assert found == [(topic, 0, 0, b"before")]
    producer.commit_transaction(30)
    found, _ = rounds(source, EVERYTHING, plans[-1].position)
    assert found == [(topic, 0, 1, b"within"), (topic, 0, 2, b"after")]


def test_compacted_messages_are_gaps(kafka):
    topic = fresh("compacted")
    kafka.create(
        topic,
        partitions=1,
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="100",
    )
    sent = [Message(0, b"k%d" % (number % 10), b"v%d" % number) for number in range(200)]
    kafka.send({topic: sent})
    deadline = time.monotonic() + 60
    source = source_of(kafka, topic)
    more = 0
    while len(rounds(source, EVERYTHING)[0]) > 100 + more:  # a new segment lets the old be cleaned
        assert time.monotonic() < deadline
        kafka.send({topic: [Message(0, b"more", b"more")]})
        more += 1
        time.sleep(0.2)
    for limits in (RoundLimits(messages=13), RoundLimits(split_messages=11), EVERYTHING):
        found, plans = rounds(source, limits)
        kept = {value for _, _, _, value in found}
        assert {b"v%d" % number for number in range(190, 200)} <= kept
        assert [at for _, _, at, _ in found] == sorted({at for _, _, at, _ in found})
        assert offsets(plans[-1], topic) == [200 + more]


# --- reading --------------------------------------------------------------------------------------


def test_large_messages_come_in_bounded_batches(kafka):
    topic = fresh("wide")
    kafka.create(topic, partitions=1, max_message_bytes=str(16 << 20))
    size = 1 << 20
    kafka.send({topic: [Message(0, b"k", bytes([number]) * size) for number in range(200)]})
    source = source_of(kafka, topic)
    plan = source.plan({}, EVERYTHING)
    batches = [batch for split in plan.splits for batch in source.reader.read(split)]
    assert max(batch.nbytes for batch in batches) <= consumption.BATCH_BYTES + size
    assert [value[0] for batch in batches for value in batch["value"].to_pylist()] == list(
        range(200)
    )


def test_a_message_without_key_or_value_is_one(kafka):
    topic = fresh("empty")
    kafka.create(topic, partitions=1)
    kafka.send({topic: [Message(0, None, None), Message(0, b"", b""), Message(0, b"k", None)]})
    source = source_of(kafka, topic)
    (split,) = source.plan({}, EVERYTHING).splits
    (batch,) = source.reader.read(split)
    assert batch["key"].to_pylist() == [None, b"", b"k"]
    assert batch["value"].to_pylist() == [None, b"", None]
    assert source.head(10) == [(None, None), (b"", b""), (b"k", None)]


def test_reading_that_is_given_up_leaves_a_consumer_that_reads_right(kafka):
    topic = fresh("partly")
    kafka.create(topic, partitions=1)
    kafka.send({topic: messages(30_000, partitions=1)})
    source = source_of(kafka, topic, tasks=1)
    (split,) = source.plan({}, EVERYTHING).splits
    for _ in range(3):
        started = source.reader.read(split)
        next(started)
        started.close()
    both = zip(source.reader.read(split), source.reader.read(split), strict=True)
    assert all(one["offset"].equals(other["offset"]) for one, other in both)


def test_a_broker_that_is_down_is_named_and_one_that_comes_back_is_waited_for(monkeypatch):
    from tests.support.kafka import broker

    with broker() as own:
        own.create("t", partitions=1)
        own.send({"t": messages(10, partitions=1)})
        source = source_of(own, "t")
        plan = source.plan({}, EVERYTHING)
        with own.stopped():
            with monkeypatch.context() as patched:
                patched.setattr(consumption, "STALL_SECONDS", 2.0)
                with pytest.raises(SourceError, match="Cannot read"):
                    read(source, plan)
            with ThreadPoolExecutor(1) as threads:
                waiting = threads.submit(source.plan, {}, EVERYTHING)
                own.start()
                assert waiting.result(60).position == plan.position
        assert len(read(source, plan)) == 10


def test_brokers_that_never_answered_are_not_waited_for():
    uri = f"kafka://127.0.0.1:{free_port()}/t?protocol=craft"
    started = time.monotonic()
    with pytest.raises(SourceError, match="it refuses the connection"):
        KafkaSource(ChangefeedConfig.from_uri(uri)).plan({}, EVERYTHING)
    assert time.monotonic() - started < 6


def test_the_identity_of_a_feed_is_its_topics():
    def identity(dispatchers, rules="['*.*']", host="a:1"):
        uri = f"kafka://{host}/main?protocol=canal-json"
        text = f"[filter]\nrules = {rules}\n[sink]\ndispatchers = [{dispatchers}]"
        return KafkaSource(ChangefeedConfig.from_toml(text, uri)).identity

    assert identity("") == {"topics": "main"} == identity("", host="b:2")
    named = "{matcher = ['a.*'], topic = 'other'}"
    assert identity(named) == {"topics": "main,other"}
    assert (
        identity(by_table("x")) == identity(by_table("x"), "['shop.*']") != identity(by_table("y"))
    )
