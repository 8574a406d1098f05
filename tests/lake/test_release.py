"""One release rule: the mirror, publishing, `Upstream` and a replay agree on what may be applied.

Each case is a feed of Canal-JSON messages in two parts: the second brings rows and statements at
the instant that the first part has reached. What follows is sent on, or is not, by those that pass
a feed on; and it shows in the tables, or does not, of those that keep tables.
"""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.lake.test_irregular_feeds import KEYED, Topic, ddl, insert, mark, message
from tests.model_check.memory_lake import MemoryLake, contents, new_mirror
from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.receive.gate import Gate
from tidegate.changefeed.receive.upstream import Upstream
from tidegate.changefeed.send.changefeed import Changefeed
from tidegate.spark.sending import Sender
from tidegate.verify.replay import Replay
from tidegate.wire import decode_batch

CONFIG = ChangefeedConfig(protocol="canal-json", enable_tidb_extension=True, partition_num=1)
SOURCE = ("t", 0)
CREATE = ddl(1, f"CREATE TABLE `t` {KEYED}")
CREATE_U = ddl(1, f"CREATE TABLE `u` {KEYED}", "u")
GONE, THERE = {"id": "1", "v": "7"}, {"id": "1", "v": "8"}

CASES = {
    "a statement of a database closes all its tables": (
        [CREATE, insert(2, id="1", v="1"), ddl(4, "DROP DATABASE `d`", ""), mark(4)],
        [insert(4, "new", id="2", v="2"), mark(6)],
        [],
        {},
    ),
    "names are compared without regard to case": (
        [CREATE, insert(2, id="1", v="1"), ddl(4, "TRUNCATE TABLE `t`"), mark(4)],
        [insert(4, "T", id="2", v="2", database="D"), mark(6)],
        [],
        {"t": []},
    ),
    "a statement closes all tables that it names": (
        [CREATE, CREATE_U, insert(2, "u", id="1", v="1"), ddl(4, "DROP TABLE `t`, `u`"), mark(4)],
        [insert(4, "u", id="2", v="2"), mark(6)],
        [],
        {},
    ),
    "a row that is sent again is one whatever the order of its columns": (
        [
            *(CREATE, message(2, "t", "INSERT", after=GONE), mark(3)),
            message(4, "t", "DELETE", before=GONE),
            *(message(4, "t", "INSERT", after=THERE), mark(4)),
        ],
        [message(4, "t", "DELETE", before=dict(reversed(GONE.items()))), mark(6)],
        [],
        {"t": [("1", "8")]},
    ),
    "a row that is new at that instant is released": (
        [CREATE, CREATE_U, insert(2, id="1", v="1"), ddl(4, "TRUNCATE TABLE `t`"), mark(4)],
        [insert(4, "u", id="2", v="2"), mark(6)],
        [("insert", "u")],
        {"t": [], "u": [("2", "2")]},
    ),
    "a statement that is spelled in another way is the same": (
        [CREATE, insert(2, id="1", v="1"), ddl(4, "ALTER TABLE `t` RENAME AS `t2`", "t2"), mark(4)],
        [ddl(4, "RENAME TABLE `d`.`t` TO `d`.`t2`", "t2"), mark(6)],
        [],
        {"t2": [("1", "1")]},
    ),
}

cases = pytest.mark.parametrize(
    ("first", "second", "passed", "tables"), CASES.values(), ids=CASES.keys()
)


def parts(*messages):
    topic = Topic(*SOURCE)
    return [topic.read(*part) for part in messages]


def changes_in(table):
    kept = table.filter(pc.is_in(table["kind"], pa.array(["insert", "update", "delete", "ddl"])))
    return [(row["kind"], row["table"]) for row in kept.to_pylist()]


def one_batch(table):
    return table.combine_chunks().to_batches()[0]


@cases
def test_upstream_passes_on_what_is_released(first, second, passed, tables):
    upstream = Upstream([SOURCE])
    sent = [upstream.read(one_batch(part)) for part in parts(first, second)]
    assert changes_in(pa.Table.from_batches(sent[1:])) == passed


@cases
def test_publishing_sends_what_is_released(first, second, passed, tables):
    sender = Sender(Changefeed(CONFIG, clock=None, watermark_interval=0), Gate([SOURCE]))
    sent = []
    for part in parts(first, second):
        sender.gate.observe(part)
        is_schema = pc.equal(part["kind"], "schema")
        told = one_batch(part.filter(is_schema)) if pc.any(is_schema).as_py() else None
        told = part.schema.empty_table().to_batches() if told is None else [told]
        told = told[0] if told else pa.RecordBatch.from_pylist([], part.schema)
        messages = sender.send(told, part.filter(pc.invert(is_schema)))
        sent.append(decode_batch("canal-json", messages["key"], messages["value"]))
        sender.gate.mark_applied(sender.gate.resolved_ts)
    assert changes_in(pa.Table.from_batches(sent[1:])) == passed


@cases
def test_the_mirror_applies_what_is_released(first, second, passed, tables):
    lake = MemoryLake()
    mirror = new_mirror(lake, CONFIG, watermarks=True)
    for part in parts(first, second):
        lake.changelog.add(part)
        while mirror.step([SOURCE]):
            pass
    found = {
        name.table: sorted(tuple(map(str, row)) for row in table.rows)
        for name, table in contents(mirror).items()
    }
    assert found == tables


@cases
def test_a_replay_comes_to_what_is_released(first, second, passed, tables):
    replay = Replay()
    replay.run(map(one_batch, parts(first, second)))
    found = {name.table: sorted(table.rows.values()) for name, table in replay.tables.items()}
    assert found == tables
