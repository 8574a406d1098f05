"""The order of released changes: by commit_ts, rows before DDL, every DDL once."""

import random

import pyarrow as pa
import pytest

from tests.support.changes import change, ddl, places, row, table, watermark
from tidegate.changefeed.receive.order import in_order, once, steps, transactions
from tidegate.sql.ddl_names import DdlId


def test_changes_go_by_commit_ts_over_all_partitions():
    found = in_order(
        table(row("insert", 7, "0/0"), row("insert", 5, "1/0"), row("insert", 6, "2/0"))
    )
    assert places(found) == ["1/0", "2/0", "0/0"]


def test_rows_at_the_commit_ts_of_a_ddl_go_before_it():
    found = in_order(table(ddl("A", 5, "0/0"), row("insert", 5, "1/0"), row("insert", 6, "1/1")))
    assert places(found) == ["1/0", "0/0", "1/1"]


def test_in_a_transaction_the_rows_of_a_table_go_delete_update_insert():
    found = in_order(
        table(
            row("insert", 5, "0/0"),
            row("update", 5, "0/1"),
            row("delete", 5, "1/0"),
            row("insert", 4, "1/1"),
        )
    )
    assert found["kind"].to_pylist() == ["insert", "delete", "update", "insert"]


def test_rows_of_one_kind_stay_as_they_were_sent():
    rows = [row("insert", 5, f"0/{offset}/{event}") for offset in range(3) for event in range(3)]
    shuffled = random.Random(1).sample(rows, len(rows))
    assert in_order(table(*shuffled)).to_pylist() == table(*rows).to_pylist()


def test_rows_that_were_sent_again_stay():
    assert in_order(table(row("insert", 5, "0/0"), row("insert", 5, "0/7"))).num_rows == 2


def test_only_rows_and_ddl_are_put_in_order():
    found = in_order(
        table(watermark(5), change("schema"), change("error"), row("insert", 5, "1/1"))
    )
    assert places(found) == ["1/1"]


# --- DDL ------------------------------------------------------------------------------------------

BROADCAST = [ddl("A", 5, f"{partition}/{3 * partition}") for partition in (2, 1, 0)]


def test_a_ddl_that_was_broadcast_is_there_once():
    assert places(once(table(*BROADCAST))) == ["0/0"]
    assert places(in_order(table(*BROADCAST))) == ["0/0"]


def test_a_ddl_of_one_partition_only_is_there():
    assert places(in_order(table(ddl("A", 5, "0/3"), row("insert", 4, "2/0")))) == ["2/0", "0/3"]


def test_a_ddl_that_was_sent_again_is_there_once():
    assert places(once(table(ddl("A", 5, "0/3"), ddl("A", 5, "0/9")))) == ["0/3"]


@pytest.mark.parametrize(
    "other",
    [ddl("B", 5, "0/1"), ddl("A", 6, "0/1"), ddl("A", 5, "0/1", "b")],
    ids=["query", "commit_ts", "table"],
)
def test_another_ddl_is_another(other):
    assert once(table(ddl("A", 5, "0/0"), other)).num_rows == 2


def test_ddl_at_one_commit_ts_goes_as_it_was_sent():
    """A rename of two tables is two events at one commit_ts; each partition has both in order."""
    renames = [
        ddl(query, 5, f"{partition}/{offset}", name)
        for partition in range(3)
        for offset, (query, name) in enumerate((("first", "z"), ("second", "a")))
    ]
    for seed in range(10):
        shuffled = random.Random(seed).sample(renames, len(renames))
        found = in_order(table(*shuffled)).to_pylist()
        assert [entry["ddl"]["query"] for entry in found] == ["first", "second"]


# --- steps and transactions -----------------------------------------------------------------------

FEED = (
    row("insert", 4, "1/0", "b"),
    row("insert", 5, "0/0"),
    ddl("A", 5, "0/1"),
    ddl("A", 5, "1/1"),
    ddl("B", 5, "0/2"),
    row("insert", 6, "1/2"),
)


def test_steps_are_cut_behind_every_ddl():
    found = list(steps(table(*FEED)))
    assert [places(step.rows) for step in found] == [["1/0", "0/0"], [], ["1/2"]]
    assert [step.ddl_id for step in found] == [
        DdlId(5, "d", "a", "A"),
        DdlId(5, "d", "a", "B"),
        None,
    ]


def test_the_last_step_may_end_in_a_ddl():
    assert [step.ddl is None for step in steps(table(*FEED[:5]))] == [False, False]


def test_transactions_are_all_of_one_commit_ts():
    found = [
        (entry.commit_ts, places(entry.rows), places(entry.ddl))
        for entry in transactions(table(*FEED))
    ]
    assert found == [(4, ["1/0"], []), (5, ["0/0"], ["0/1", "0/2"]), (6, ["1/2"], [])]


@pytest.mark.parametrize("empty", [table(), pa.Table.from_batches([], table().schema)])
def test_nothing_comes_of_nothing(empty):
    assert list(steps(empty)) == []
    assert list(transactions(empty)) == []
    assert in_order(empty).num_rows == 0


def test_any_interleaving_gives_the_same_order():
    expected = in_order(table(*FEED)).to_pylist()
    for seed in range(20):
        shuffled = random.Random(seed).sample(FEED, len(FEED))
        chunks = [table(*shuffled[:2]), table(*shuffled[2:])]
        assert in_order(pa.concat_tables(chunks)).to_pylist() == expected


# --- one statement, spelled in two ways -----------------------------------------------------------

CLASSIC = "ALTER TABLE `t` RENAME AS `t_old`"
NEW = "RENAME TABLE `d`.`t` TO `d`.`t_old`"
CROSS = "ALTER TABLE `t` RENAME AS `d`.`t_old`"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (CLASSIC, NEW),
        (CROSS, "RENAME TABLE `e`.`t` TO `d`.`t_old`;"),
        ("ALTER TABLE `t` ADD COLUMN `c` INT", "alter table d.T add c int"),
        ("CREATE TABLE `t` (`a` INT)", "CREATE TABLE /*T! IF NOT EXISTS */ `d`.`t` (`a` INT)"),
        ("DROP TABLE `t`", "DROP TABLE `D`.`T`"),
        ("TRUNCATE `t`", "TRUNCATE TABLE `d`.`t`"),
        ("DROP DATABASE `d`", "DROP SCHEMA IF EXISTS `d`"),
        ("CREATE DATABASE `d`", "CREATE DATABASE `d` CHARACTER SET = utf8mb4"),
    ],
)
def test_a_statement_that_is_spelled_in_two_ways_is_there_once(one, other):
    assert DdlId(5, "d", "t", one).key() == DdlId(5, "d", "t", other).key()
    assert once(table(ddl(one, 5, "0/0"), ddl(other, 5, "0/1"))).num_rows == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (CLASSIC, "RENAME TABLE `d`.`u` TO `d`.`u_old`"),
        ("DROP TABLE t", "TRUNCATE TABLE t"),
        ("DROP TABLE t", "DROP TABLE u"),
        ("CREATE DATABASE d", "DROP DATABASE d"),
        ("CREATE DATABASE d", "CREATE TABLE d (a INT)"),
        ("CREATE VIEW v AS SELECT 1", "CREATE VIEW w AS SELECT 1"),
        ("FLASHBACK DATABASE d", "FLASHBACK DATABASE e"),
        ("gibberish", "nonsense"),
    ],
)
def test_statements_that_do_another_thing_are_others(one, other):
    assert DdlId(5, "d", "t", one).key() != DdlId(5, "d", "t", other).key()
    assert DdlId(5, "d", "t", one).key() != DdlId(6, "d", "t", one).key()


def test_where_only_the_millisecond_is_told_the_text_counts():
    """Two ALTERs of one table may then have one commit_ts."""
    two = table(
        ddl("ALTER TABLE a ADD COLUMN c INT", 5, "0/0"),
        ddl("ALTER TABLE a ADD COLUMN e INT", 5, "0/1"),
        ddl("ALTER TABLE a ADD COLUMN e INT", 5, "1/1"),
    )
    assert places(once(two, by_text=True)) == ["0/0", "0/1"]
    assert places(in_order(two, by_arrival=True)) == ["0/0", "0/1"]
    assert places(once(two)) == ["0/0"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (CLASSIC, NEW),
        ("ALTER TABLE `t` ADD COLUMN `c` INT", "ALTER TABLE `d`.`t` ADD COLUMN `c` INT"),
        ("CREATE INDEX `i` ON `t` (`c`)", "CREATE INDEX `i` ON `D`.`t` (`c`)"),
    ],
)
def test_where_the_text_counts_the_name_of_the_database_does_not(one, other):
    keys = [DdlId(5, "d", "t", text).key(by_text=True) for text in (one, other)]
    assert keys[0] == keys[1]


def test_the_copy_that_says_more_stays():
    bare, named = ddl(CROSS, 5, "0/0"), ddl("RENAME TABLE `e`.`t` TO `d`.`t_old`", 5, "0/1")
    assert places(once(table(bare, named))) == ["0/1"]
    whole = ddl(CROSS, 5, "0/2") | {"schema": '{"preTableSchema": {"schema": "e", "table": "t"}}'}
    assert places(once(table(bare, named, whole))) == ["0/2"]
    assert places(once(table(named, ddl(named["ddl"]["query"], 5, "0/7")))) == ["0/1"]
