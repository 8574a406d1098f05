"""What TiCDC really sends: re-sends, other column orders, partial old rows, topics that come late.

Each feed is a few Canal-JSON messages, read in parts into a real lake.
"""

import json

import pyarrow as pa
import pytest

from tests.support.lake import contents, new_lake
from tidegate.lake.apply import executor
from tidegate.lake.apply.plan.tables import State
from tidegate.lake.job.mirror import Mirror
from tidegate.wire import decode_batch
from tidegate.wire.batch.key_updates import mark_moves

BASE = 1 << 40
KEYED = "(`id` INT PRIMARY KEY, `v` INT)"


class Topic:
    """Messages of one partition of one topic, added by hand."""

    def __init__(self, name="t", partition=0):
        self.name, self.partition = name, partition
        self.offset = 0

    def read(self, *messages):
        """The events of messages that follow those read before."""
        offsets = range(self.offset, self.offset + len(messages))
        self.offset += len(messages)
        batch = decode_batch(
            "canal-json",
            None,
            pa.array(messages, pa.binary()),
            topics=self.name,
            partitions=pa.array([self.partition] * len(messages), pa.int32()),
            offsets=pa.array(offsets, pa.int64()),
        )
        return pa.Table.from_batches([mark_moves(batch)])


def message(
    ts,
    table,
    kind,
    *,
    after=None,
    before=None,
    query="",
    keys=("id",),
    types=None,
    database="d",
    **more,
):
    row = after or before or {}
    kinds = dict.fromkeys(row, "int") | (types or {})
    kinds = {name: kinds[name] for name in row}
    document = {
        "id": 0,
        "database": database,
        "table": table,
        "pkNames": list(keys) or None,
        "isDdl": kind == "QUERY",
        "type": kind,
        "es": (BASE + ts) >> 18 if more.get("extension", True) else ts,
        "ts": 1,
        "sql": query,
        "sqlType": dict.fromkeys(row, 4) or None,
        "mysqlType": kinds or None,
        "data": [row] if row else None,
        "old": [before] if after and before else None,
    }
    if more.get("extension", True):
        name = "watermarkTs" if kind == "TIDB_WATERMARK" else "commitTs"
        document["_tidb"] = {name: BASE + ts}
    return json.dumps(document).encode()


def ddl(ts, query, table="t", **more):
    return message(ts, table, "QUERY", query=query, **more)


def insert(ts, table="t", **more):
    row = {name: more.pop(name) for name in list(more) if name in "abcdivkwid"}
    return message(ts, table, "INSERT", after=row, **more)


def mark(ts):
    return message(ts, "", "TIDB_WATERMARK")


class Played:
    """A lake that is fed part by part; every part is followed by all steps that it allows."""

    def __init__(self, spark, folder, partitions=(("t", 0),), **settings):
        self.lake = new_lake(spark, folder)
        self.mirror = Mirror(self.lake, **settings)
        self.partitions = list(partitions)

    def add(self, *parts):
        self.lake.changelog.add(pa.concat_tables(parts))
        while self.mirror.step(self.partitions):
            pass
        return self

    def rows(self, table="t"):
        return contents(self.lake).get(("d", table))

    def table(self, name="t"):
        return self.mirror.state.tables["d", name]

    def state(self, name="t"):
        return self.mirror.state.state_of(self.table(name))


def test_a_column_that_the_old_row_does_not_carry_has_not_changed(spark, tmp_path):
    """Without a key the old row is found by all its columns."""
    topic, lake = Topic(), Played(spark, tmp_path)
    rows = {"a": "1", "b": "7", "c": "1"}
    lake.add(
        topic.read(
            ddl(1, "CREATE TABLE `t` (`a` INT, `b` INT, `c` INT)"),
            message(2, "t", "INSERT", after=rows, keys=()),
            mark(3),
        ),
    )
    changed = message(4, "t", "UPDATE", after=rows | {"b": "8"}, before={"b": "7"}, keys=())
    lake.add(topic.read(changed, mark(5)))
    assert lake.rows() == [("1", "8", "1")]
    assert lake.state() is State.MIRRORED


def test_an_update_of_a_table_without_a_key_that_lacks_the_old_row_stops_it(spark, tmp_path):
    topic, lake = Topic(), Played(spark, tmp_path)
    lake.add(
        topic.read(
            ddl(1, "CREATE TABLE `t` (`a` INT)"),
            ddl(1, f"CREATE TABLE `u` {KEYED}", "u"),
            message(2, "t", "INSERT", after={"a": "1"}, keys=()),
            mark(3),
            message(4, "t", "UPDATE", after={"a": "2"}, keys=()),
            insert(5, "u", id="1", v="1"),
            mark(6),
        ),
    )
    assert (lake.state(), lake.rows("u")) == (State.STOPPED, [("1", "1")])
    assert "an update came without the values of the old row" in lake.table().reason


def test_equal_rows_of_a_table_without_a_key_are_one_where_a_watermark_is_between(spark, tmp_path):
    topic, lake = Topic(), Played(spark, tmp_path, [("t", 0), ("t", 1)])
    other = Topic(partition=1)
    row = message(2, "t", "INSERT", after={"a": "1"}, keys=())
    lake.add(
        topic.read(ddl(1, "CREATE TABLE `t` (`a` INT)"), row, mark(3), row, row, mark(4)),
        other.read(mark(4)),
    )
    assert lake.rows() == [("1",), ("1",)]


def test_a_row_sent_again_with_its_columns_in_another_order_is_applied_once(spark, tmp_path):
    """A transaction deletes and inserts one key; only the delete is sent again."""
    topic, lake = Topic(), Played(spark, tmp_path)
    gone, there = {"id": "1", "v": "7"}, {"id": "1", "v": "8"}
    lake.add(
        topic.read(
            ddl(1, f"CREATE TABLE `t` {KEYED}"),
            message(2, "t", "INSERT", after=gone),
            mark(3),
            message(4, "t", "DELETE", before=gone),
            message(4, "t", "INSERT", after=there),
            mark(4),
        ),
    )
    assert lake.rows() == [("1", "8")]
    swapped = dict(reversed(gone.items()))
    lake.add(topic.read(message(4, "t", "DELETE", before=swapped), mark(5)))
    assert lake.rows() == [("1", "8")]


def test_zero_and_minus_zero_are_one_key(spark, tmp_path):
    """Also for the MERGE, which an empty table does without."""
    topic, lake = Topic(), Played(spark, tmp_path)
    real = {"id": "double"}
    lake.add(
        topic.read(
            ddl(1, "CREATE TABLE `t` (`id` DOUBLE PRIMARY KEY, `v` INT)"),
            message(2, "t", "INSERT", after={"id": "0", "v": "1"}, types=real),
            mark(3),
        ),
    )
    lake.add(
        topic.read(
            message(4, "t", "DELETE", before={"id": "0", "v": "1"}, types=real),
            message(5, "t", "INSERT", after={"id": "-0", "v": "2"}, types=real),
            message(5, "t", "INSERT", after={"id": "0.5", "v": "3"}, types=real),
            mark(6),
        ),
    )
    assert [row[1] for row in lake.rows()] == ["2", "3"]
    assert lake.state() is State.MIRRORED


@pytest.mark.parametrize(
    "column", ["_row_id", "_pos", "_FILE", "_spec_id", "_partition", "_deleted"]
)
def test_a_column_name_that_the_format_reserves_stops_its_table_only(spark, tmp_path, column):
    topic, lake = Topic(), Played(spark, tmp_path)
    lake.add(
        topic.read(
            ddl(1, f"CREATE TABLE `t` (`id` INT PRIMARY KEY, `{column}` INT)"),
            ddl(1, f"CREATE TABLE `u` {KEYED}", "u"),
            ddl(1, f"CREATE TABLE `later` {KEYED}", "later"),
            message(2, "t", "INSERT", after={"id": "1", column: "1"}),
            insert(2, "u", id="1", v="1"),
            ddl(3, f"ALTER TABLE `later` ADD COLUMN `{column}` INT", "later"),
            mark(4),
        ),
    )
    assert (lake.state(), lake.state("later"), lake.state("u")) == (
        "stopped",
        "stopped",
        "mirrored",
    )
    assert f"Its column {column} has a name that Iceberg reserves" in lake.table().reason
    assert contents(lake.lake) == {("d", "u"): [("1", "1")], ("d", "later"): []}


def test_a_failure_in_one_table_stops_it_and_no_other(spark, tmp_path, monkeypatch):
    """The failure is Spark's own: the table in the lake was changed by somebody else."""
    topic, lake = Topic(), Played(spark, tmp_path)
    lake.add(
        topic.read(
            ddl(1, f"CREATE TABLE `t` {KEYED}"),
            ddl(1, f"CREATE TABLE `u` {KEYED}", "u"),
            ddl(1, f"CREATE TABLE `w` {KEYED}", "w"),
            mark(2),
        ),
    )
    spark.sql(f"ALTER TABLE {lake.table().identifier} DROP COLUMN v")
    lake.add(
        topic.read(
            *(insert(3, name, id="1", v="1") for name in "tuw"),
            ddl(4, "RENAME TABLE `t` TO `x`"),
            ddl(5, f"CREATE TABLE `t` {KEYED}"),
            insert(6, id="2", v="2"),
            mark(7),
        ),
    )
    assert {name: lake.state(name) for name in "tuwx"} == {
        "t": "mirrored",
        "u": "mirrored",
        "w": "mirrored",
        "x": "stopped",
    }
    assert lake.table("x").reason.startswith("A change could not be written to it: ")
    assert (lake.rows("t"), lake.rows("u")) == ([("2", "2")], [("1", "1")])
    assert Mirror(lake.lake).state.state_of(lake.table("x")) is State.STOPPED


def test_a_failure_that_is_everybodys_stops_the_run(spark, tmp_path, monkeypatch):
    topic, lake = Topic(), Played(spark, tmp_path)
    parts = topic.read(ddl(1, f"CREATE TABLE `t` {KEYED}"), insert(2, id="1", v="1"), mark(3))

    def full(self, step):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(executor.Applier, "_rows", full)
        with pytest.raises(OSError, match="No space"):
            lake.add(parts)
    again = Mirror(lake.lake)
    assert again.step(lake.partitions)
    assert lake.rows() == [("1", "1")]


def test_rows_of_a_topic_that_is_first_seen_late_are_not_lost(spark, tmp_path):
    """Its table is made, changed and filled before the instant that the others have reached."""
    main, late = Topic("t"), Topic("late")
    lake = Played(spark, tmp_path)
    lake.add(
        main.read(ddl(1, f"CREATE TABLE `u` {KEYED}", "u"), insert(2, "u", id="1", v="1"), mark(20))
    )
    lake.partitions.append(("late", 0))
    lake.add(
        late.read(
            ddl(5, f"CREATE TABLE `t` {KEYED}"),
            insert(6, id="1", v="1"),
            ddl(7, "ALTER TABLE `t` ADD COLUMN `w` INT"),
            insert(8, id="2", v="2", w="3"),
            insert(9, "u", id="2", v="2"),
            mark(25),
        ),
    )
    assert lake.mirror.state.applied_ts == BASE + 20
    assert (lake.rows(), lake.state()) == ([("1", "1", None), ("2", "2", "3")], State.MIRRORED)
    assert lake.rows("u") == [("1", "1"), ("2", "2")]
    lake.mirror = Mirror(lake.lake)
    lake.add(main.read(mark(30)), late.read(insert(24, id="3", v="3", w="3"), mark(30)))
    assert lake.rows() == [("1", "1", None), ("2", "2", "3"), ("3", "3", "3")]


def test_a_late_copy_is_one_whatever_the_order_of_its_columns_and_the_form_of_its_old_row(
    spark, tmp_path
):
    """The table has no key: a late row that is none of its rows would stop it."""
    main, late = Topic("t"), Topic("t", 1)
    lake = Played(spark, tmp_path)
    old, new = {"a": "1", "b": "7"}, {"a": "1", "b": "8"}
    lake.add(
        main.read(
            ddl(1, "CREATE TABLE `t` (`a` INT, `b` INT)"),
            message(2, "t", "INSERT", after=old, keys=()),
            message(3, "t", "UPDATE", after=new, before=old, keys=()),
            mark(20),
        )
    )
    lake.partitions.append(("t", 1))
    swapped = dict(reversed(new.items()))
    lake.add(
        late.read(
            message(2, "t", "INSERT", after=dict(reversed(old.items())), keys=()),
            message(3, "t", "UPDATE", after=swapped, before={"b": "7"}, keys=()),
            mark(25),
        )
    )
    assert (lake.rows(), lake.state()) == ([("1", "8")], State.MIRRORED)


def test_without_watermarks_rows_that_come_again_do_not_undo_statements(spark, tmp_path):
    topic = Topic()
    lake = Played(spark, tmp_path, watermarks=False)
    early = [
        *(ddl(1, f"CREATE TABLE `{name}` {KEYED}", name, extension=False) for name in "abc"),
        *(insert(2, name, id="1", v="1", extension=False) for name in "abc"),
        ddl(3, "TRUNCATE TABLE `a`", "a", extension=False),
        ddl(4, "DROP TABLE `b`", "b", extension=False),
        ddl(5, "RENAME TABLE `c` TO `c2`", "c2", extension=False),
        insert(6, "a", id="2", v="2", extension=False),
    ]
    truth = {("d", "a"): [("2", "2")], ("d", "c2"): [("1", "1")]}
    lake.add(topic.read(*early))
    assert contents(lake.lake) == truth
    lake.add(topic.read(*early[:6]))  # the sender starts again, and the batch is cut
    assert contents(lake.lake) == truth
    lake.mirror = Mirror(lake.lake)
    lake.add(topic.read(*early[3:]))
    assert contents(lake.lake) == truth
    assert {
        table.name.table: lake.state(table.name.table)
        for table in lake.mirror.state.tables.values()
    } == {"a": "eventual", "c2": "eventual"}


def test_a_table_whose_create_is_not_in_the_feed_is_incomplete_until_it_is_emptied(spark, tmp_path):
    topic, lake = Topic(), Played(spark, tmp_path)
    lake.add(topic.read(message(1, "t", "DELETE", before={"id": "9"}), mark(2)))
    assert lake.rows() is None  # a delete does not tell the columns, and there is nothing to delete
    lake.add(
        topic.read(
            insert(3, id="1", v="1"),
            ddl(4, "ALTER TABLE `t` ADD COLUMN `w` INT"),
            insert(5, id="2", v="2", w="2"),
            mark(6),
        ),
    )
    assert (lake.rows(), lake.state()) == ([("1", "1", None), ("2", "2", "2")], State.INCOMPLETE)
    lake.mirror = Mirror(lake.lake)
    assert "rows from before the feed are missing" in lake.table().reasons[0]
    lake.add(topic.read(ddl(7, "TRUNCATE TABLE `t`"), insert(8, id="3", v="3", w="3"), mark(9)))
    assert (lake.rows(), lake.state()) == ([("3", "3", "3")], State.MIRRORED)
