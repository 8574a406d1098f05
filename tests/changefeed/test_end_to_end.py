"""Sender to receiver: a workload's changes as messages, in every protocol and with every option that
changes bytes, come to the workload's own tables in the end and at every watermark on the way.

Not here is `handle-key-only`, whose messages leave out values that are in no message at all.
"""

from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.mirror import Mirror
from tests.support.playing import REPEATS, RESTARTS, Log, play, quietly
from tests.support.table_model import state_of
from tidegate.changefeed.config.changefeed import ChangefeedConfig, DispatchRule
from tidegate.changefeed.receive.gate import Gate
from tidegate.changefeed.send.changefeed import Changefeed
from tidegate.model.tso import tso_from_ms
from tidegate.wire import CHANGE_SCHEMA, decode_batch, encode_batch
from tidegate.workload import workload

PARTITIONS = 3
ROWS = 1500
SMALL = 1200  # bytes: rows of many columns do not fit and are kept apart
LARGE = 20_000  # a table schema fits, a row with a long text does not
CLAIM_CHECK = {"large_message_handle": "claim-check", "max_message_bytes": SMALL}


@dataclass(frozen=True)
class Way:
    """A changefeed by the settings that matter."""

    name: str
    protocol: str
    settings: dict = field(default_factory=dict)
    generation: str = "classic"
    dispatch: str = "index-value"
    columns: tuple = ()

    @property
    def consistency(self):
        extended = self.settings.get("enable_tidb_extension")
        without = self.protocol == "cdc" or (self.protocol == "canal-json" and not extended)
        return "eventual" if without else "snapshot"


def canal(name, **settings):
    return Way(f"canal.{name}", "canal-json", {"enable_tidb_extension": True} | settings)


def opened(name, generation="classic", **settings):
    return Way(f"open.{name}", "open-protocol", settings, generation)


def simple(name, generation="classic", **settings):
    return Way(f"simple.{name}", "simple", settings, generation)


WAYS = [
    Way("canal", "canal-json"),
    canal("ext"),
    canal("compat", content_compatible=True),
    canal("updcols", only_output_updated_columns=True),
    canal("delhk", delete_only_output_handle_key_columns=True),
    canal("snappy", compression="snappy"),
    canal("lz4", compression="lz4"),
    canal("cc", **CLAIM_CHECK),
    canal("cc.raw", claim_check_raw_value=True, **CLAIM_CHECK),
    opened("b1", max_batch_size=1),
    opened("b16"),
    opened("new", "new"),
    opened("noold", output_old_value=False),
    opened("updcols", only_output_updated_columns=True),
    opened("delhk", delete_only_output_handle_key_columns=True),
    opened("snappy", compression="snappy"),
    opened("lz4", compression="lz4"),
    opened("small", max_message_bytes=90_000),
    opened("cc", max_batch_size=1, **CLAIM_CHECK | {"max_message_bytes": 2000}),
    simple("json"),
    simple("json.new", "new"),
    simple("json.first", send_bootstrap_to_all_partition=False),
    simple("json.often", send_bootstrap_in_msg_count=5),
    simple("json.never", send_bootstrap_interval_in_sec=0, send_bootstrap_in_msg_count=0),
    simple("json.snappy", compression="snappy"),
    simple("json.cc", **CLAIM_CHECK | {"max_message_bytes": LARGE}),
    simple("avro.cc", encoding_format="avro", **CLAIM_CHECK | {"max_message_bytes": LARGE}),
    simple("avro", encoding_format="avro"),
    simple("avro.new", "new", encoding_format="avro"),
    simple("avro.lz4", encoding_format="avro", compression="lz4"),
    Way("craft.b1", "craft", {"max_batch_size": 1}),
    Way("craft.b16", "craft"),
    Way("craft.delhk", "craft", {"delete_only_output_handle_key_columns": True}),
    Way("cdc.operations", "cdc"),
    Way("canal.by-table", "canal-json", {"enable_tidb_extension": True}, dispatch="table"),
    Way("open.by-ts", "open-protocol", dispatch="ts"),
]


@cache
def source(name):
    return workload(name, rows=ROWS, seed=14, rate=400)


@cache
def changes(name):
    """The changes cut behind each watermark, as a sender may get them."""
    (batch,) = source(name).batches()
    marks = pc.indices_nonzero(pc.equal(batch["kind"], "watermark")).to_pylist()
    return [batch.slice(a, b - a) for a, b in pairwise([0, *(mark + 1 for mark in marks)])]


@cache
def truth(name, ts):
    return state_of(source(name).final() if ts is None else source(name).at(ts))


class Feed:
    """The sender, the messages that it has sent, and what the receiver reads."""

    def __init__(self, way, **more):
        self.way = way
        self.kept = {}
        config = ChangefeedConfig(
            protocol=way.protocol,
            dispatchers=(DispatchRule(("*.*",), way.dispatch),),
            partition_num=PARTITIONS,
            **way.settings,
        )
        self.sender = Changefeed(
            config, clock=None, generation=way.generation, claim_check=self.keep, **more
        )
        self._offsets = dict.fromkeys(range(PARTITIONS), 0)

    def keep(self, content):
        location = f"{len(self.kept)}.json"
        self.kept[location] = content
        return location

    def decoded(self, messages):
        """The messages as a receiver reads them, with the offsets that the topic gives them."""
        offsets = []
        for partition in messages["partition"].to_pylist():
            offsets.append(self._offsets[partition])
            self._offsets[partition] += 1
        batch = decode_batch(
            self.way.protocol,
            messages["key"],
            messages["value"],
            partitions=messages["partition"],
            offsets=pa.array(offsets, pa.int64()),
            encoding=self.way.settings.get("encoding_format"),
            compression=self.way.settings.get("compression"),
            claim_check=self.kept.__getitem__,
        )
        errors = batch.filter(pc.equal(batch["kind"], "error"))
        assert errors.num_rows == 0, errors["error"].to_pylist()[:3]
        return pa.Table.from_batches([batch])


class Receiver(Mirror):
    """Compares each instant that it comes to with the workload."""

    def __init__(self, name, way):
        gate = Gate(
            [("", number) for number in range(PARTITIONS)],
            watermarks=way.consistency == "snapshot",
        )
        self.instants = []
        super().__init__(gate, on_state=lambda ts, model: self._compare(name, ts, model))

    def _compare(self, name, ts, model):
        if self.gate.has_watermarks:
            assert_same(model.state(), truth(name, ts))
            self.instants.append(ts)


def assert_same(actual, expected):
    __tracebackhide__ = True
    for table in {**expected, **actual}:
        there, due = actual.get(table), expected.get(table)
        if there is None or due is None:
            pytest.fail(f"{table} is {'missing' if there is None else 'not of the source'}")
        for key in {**due, **there}:
            if there.get(key) != due.get(key):
                pytest.fail(f"{table} {key}: {there.get(key)}, expected {due.get(key)}")


def around_ddl(table):
    """The table cut where DDL begins and ends; copies of a DDL stay together.

    A feed without watermarks may have only milliseconds to order by: it is read as it comes.
    """
    is_ddl = pc.equal(table["kind"], "ddl").to_pylist()
    changes = [place for place in range(1, len(is_ddl)) if is_ddl[place] != is_ddl[place - 1]]
    return [table.slice(a, b - a) for a, b in pairwise([0, *changes, table.num_rows])]


def receive(receiver, table):
    for part in [table] if receiver.gate.has_watermarks else around_ddl(table):
        receiver.read(part)


@pytest.mark.parametrize("name", ["orders", "bank"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_the_tables_are_the_workloads(way, name):
    feed, receiver = Feed(way), Receiver(name, way)
    for batch in changes(name):
        receive(receiver, feed.decoded(feed.sender.send(batch)))
    receive(receiver, feed.decoded(feed.sender.close()))
    assert_same(receiver.model.state(), truth(name, None))
    if way.consistency == "snapshot":
        assert len(receiver.instants) == len(changes(name))
    assert bool(feed.kept) == ("large_message_handle" in way.settings and name == "orders")


@pytest.mark.parametrize("way", ["open.b16", "craft.b16", "simple.json"])
def test_only_simple_carries_the_id_of_a_table_that_has_no_partitions(way):
    (way,) = (other for other in WAYS if other.name == way)
    feed = Feed(way)
    tables = [feed.decoded(feed.sender.send(batch)) for batch in changes("orders")]
    rows = [row for table in tables for row in table.to_pylist() if row["after"] or row["before"]]
    told = {row["table_id"] for row in rows if row["table"] == "customers"}
    schema = source("orders").final().tables["shop", "customers"].schema
    assert told == ({schema.table_id} if way.protocol == "simple" else {None})
    assert way.protocol == "simple" or {row["table_id"] for row in rows} == {None}


SENT_AGAIN = ["canal.ext", "open.b16", "open.updcols", "simple.json", "simple.avro", "craft.b16"]


@pytest.mark.parametrize("name", ["orders", "bank"])
@pytest.mark.parametrize("way", SENT_AGAIN)
def test_what_is_sent_again_changes_nothing(way, name):
    (way,) = (other for other in WAYS if other.name == way)
    feed, receiver = Feed(way, remember=True), Receiver(name, way)
    marks = []
    for number, batch in enumerate(changes(name)):
        receive(receiver, feed.decoded(feed.sender.send(batch)))
        marks.append(feed.sender.watermark)
        if number % 2:  # a node fails, and another begins where it knows that all had been sent
            receive(receiver, feed.decoded(feed.sender.resend(marks[-2])))
    receive(receiver, feed.decoded(feed.sender.resend(0)))
    receive(receiver, feed.decoded(feed.sender.close()))
    assert_same(receiver.model.state(), truth(name, None))
    assert receiver.redelivered > ROWS / 4
    assert receiver.is_done()


# The feed, the workload, and how many examples.
PLAYED = [
    ("canal.ext", "orders", 2),
    ("open.b16", "orders", 2),
    ("open.b16", "bank", 2),
    ("simple.json", "orders", 2),
    ("simple.avro", "bank", 1),
    ("craft.b16", "orders", 1),
]


@pytest.mark.parametrize(("way", "name", "examples"), PLAYED)
def test_any_interleaving_repetition_and_restart_shows_the_same_instants(way, name, examples):
    (way,) = (other for other in WAYS if other.name == way)
    feed = Feed(way)
    tables = [feed.decoded(feed.sender.send(batch)) for batch in changes(name)]
    log = Log(pa.concat_tables(tables))

    @quietly(examples)
    @given(seed=st.integers(0, 2**32), repeats=REPEATS, restarts=RESTARTS)
    def check(seed, repeats, restarts):
        instants = []

        def compare(ts, model):
            assert_same(model.state(), truth(name, ts))
            instants.append(ts)

        mirror = play(log, compare, seed, repeats, restarts)
        assert instants == sorted(set(instants))
        assert instants[-1] == feed.sender.watermark
        assert mirror.is_done()

    check()


def test_a_watermark_of_years_ahead_shows_nothing_too_early_and_loses_nothing():
    (way,) = (other for other in WAYS if other.name == "open.b16")
    feed, receiver = Feed(way), Receiver("orders", way)
    for number, batch in enumerate(changes("orders")):
        messages = feed.sender.send(batch)
        if number == 2:  # as a damaged sender would write it, to one partition
            damaged = pa.RecordBatch.from_pylist(
                [{"kind": "watermark", "event": 0, "flags": 0, "commit_ts": tso_from_ms(2**41)}],
                CHANGE_SCHEMA,
            )
            (key,), (value,) = (
                encode_batch("open-protocol", damaged)[name].to_pylist()
                for name in ("key", "value")
            )
            extra = {"topic": None, "partition": 1, "key": key, "value": value}
            extra = pa.RecordBatch.from_pylist([extra], messages.schema)
            messages = pa.concat_batches([extra, messages])
        receive(receiver, feed.decoded(messages))
    assert receiver.gate.jump_count == 1
    assert len(receiver.instants) == len(changes("orders"))
    assert_same(receiver.model.state(), truth("orders", None))
