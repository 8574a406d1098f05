"""Verification: what is equal is found equal, and every kind of difference is named."""

from dataclasses import replace

import pyarrow as pa
import pytest

from tests.changefeed.test_replay import Source, decoded
from tests.support import corpus
from tests.support.changes import batch, ddl, watermark
from tests.support.lake import fill, new_lake
from tidegate.lake.job.mirror import Mirror
from tidegate.sql.tables import Name, TableBook
from tidegate.verify.comparison import Expected, Verification, of_feed, of_truth
from tidegate.verify.replay import ReplayedTable
from tidegate.workload import workload

ACCOUNTS = Name("bank", "accounts")


@pytest.fixture(scope="module")
def bank(spark, tmp_path_factory):
    """A lake of a workload, and the truth of it."""
    source = workload("bank", rows=200)
    lake = new_lake(spark, tmp_path_factory.mktemp("verify"))
    fill(lake, placed(pa.Table.from_batches(source.batches())))
    mirror = Mirror(lake)
    while mirror.step([("", 0)]):
        pass
    mirror.settle()
    return lake, of_truth(source.final().tables)


def placed(changes):
    """Changes as if they had come by one partition, an event a message."""
    rows = changes.num_rows
    places = {"partition": pa.array([0] * rows, pa.int32()), "offset": pa.array(range(rows))}
    for name, values in places.items():
        changes = changes.set_column(changes.column_names.index(name), name, values)
    return changes


def compare(bank, change=lambda rows: rows, name=ACCOUNTS):
    lake, truth = bank
    table = truth[name]
    changed = {**truth, name: Expected(table.schema, change(list(table.rows)))}
    at = lake.snapshots.instants()[-1][0]
    return {found.name: found for found in Verification(lake, at, 3).run(changed)}


def test_equal_tables_are_equal(bank):
    found = compare(bank)
    assert all(table.is_equal and table.lake == table.expected for table in found.values())
    assert found[ACCOUNTS].lake.rows > 10


@pytest.mark.parametrize(
    "change, what, key",
    [
        (lambda rows: rows[1:], "extra", 0),
        (lambda rows: [*rows, ("99999", *rows[0][1:])], "missing", "99999"),
        (lambda rows: [(*rows[0][:1], "somebody", *rows[0][2:]), *rows[1:]], "different", 0),
        (lambda rows: [(*rows[0][:1], None, *rows[0][2:]), *rows[1:]], "different", 0),
    ],
)
def test_a_difference_is_named_by_its_key(bank, change, what, key):
    table = compare(bank, change)[ACCOUNTS]
    expected = bank[1][ACCOUNTS].rows[key][0] if isinstance(key, int) else key
    assert not table.is_equal
    assert [(each.what, dict(each.key)) for each in table.differences] == [(what, {"id": expected})]


def test_tables_that_only_one_side_has_differ(bank):
    lake, truth = bank
    at = lake.snapshots.instants()[-1][0]
    elsewhere = Name("bank", "elsewhere")
    wanted = {
        elsewhere: truth[ACCOUNTS],
        Name("BANK", "Transfers"): truth[Name("bank", "transfers")],
    }
    found = {table.name: table for table in Verification(lake, at).run(wanted)}
    assert (found[ACCOUNTS].expected, found[elsewhere].lake) == (None, None)
    assert not found[ACCOUNTS].is_equal
    assert not found[elsewhere].is_equal
    assert found[Name("bank", "transfers")].is_equal


def test_another_column_is_named(bank):
    lake, truth = bank
    table = truth[ACCOUNTS]
    schema = replace(
        table.schema,
        columns=tuple(
            replace(column, name="holder") if column.name == "owner" else column
            for column in table.schema.columns
        ),
    )
    at = lake.snapshots.instants()[-1][0]
    found = {
        each.name: each
        for each in Verification(lake, at).run({**truth, ACCOUNTS: Expected(schema, table.rows)})
    }
    assert found[ACCOUNTS].columns == ("holder", "owner")


@pytest.mark.parametrize(
    "name", ["bank.open.b16.stream", "new/ddl.canal.ext.stream", "ddl.simple.json.stream"]
)
def test_a_feed_replayed_in_memory_comes_to_what_select_showed(name):
    """Against the model that SELECT's own results have confirmed."""
    variant = corpus.variant(name)
    found = of_feed(decoded(name).to_batches(), None)
    model = Source(variant.truth).at(2**63)
    for key, table in model.tables.items():
        replayed = found[Name(*key)]
        if not replayed.skipped:
            rows = sorted(tuple(row.values()) for row in table.rows.values())
            assert sorted(replayed.rows, key=str) == sorted(rows, key=str)
    told = {tuple(name) for name, table in found.items() if not table.skipped}
    assert told <= set(model.tables)
    assert len(told) >= 2


def replayed(create, rows, statement):
    """The rows of a table after a statement, as the feed replayed in memory has them."""
    book = TableBook()
    table = ReplayedTable(book.run(create, "d")[0].change.after)
    for row in rows:
        table.put(dict(zip(table.names, row, strict=True)))
    (effect,) = book.run(statement, "d")
    if effect.change.removed is not None:
        table.prune(effect.change.removed)
    table.alter(effect.change)
    return table


@pytest.mark.parametrize(
    ("by", "removed"),
    [
        ("RANGE (YEAR(d)) (PARTITION p0 VALUES LESS THAN (2020), PARTITION p1 VALUES LESS THAN (2021))", "2"),
        ("RANGE (TO_DAYS(d)) (PARTITION p0 VALUES LESS THAN (TO_DAYS('2020-01-01')), PARTITION p1 VALUES LESS THAN (MAXVALUE))", "23"),
        ("RANGE (UNIX_TIMESTAMP(t)) (PARTITION p0 VALUES LESS THAN (1577836800), PARTITION p1 VALUES LESS THAN (MAXVALUE))", "23"),
        ("RANGE COLUMNS (d, id) (PARTITION p0 VALUES LESS THAN ('2020-1-1', 3), PARTITION p1 VALUES LESS THAN (MAXVALUE, 0))", "3"),
        ("HASH (MONTH(d)) PARTITIONS 2", "123"),
        ("LIST (WEEKDAY(d)) (PARTITION p0 VALUES IN (0,1,5,6), PARTITION p1 VALUES IN (2,3,4))", "23"),
    ],
)  # fmt: skip
def test_rows_of_partitions_by_dates_are_told_in_memory(by, removed):
    rows = [(str(at), f"{day} 00:00:00", f"{day} 12:00:00") for at, day in enumerate(("2019-05-05", "2020-01-01", "2021-01-01"), 1)]  # fmt: skip
    create = f"CREATE TABLE t (id INT PRIMARY KEY, d DATETIME, t TIMESTAMP) PARTITION BY {by}"
    table = replayed(create, rows, "ALTER TABLE t TRUNCATE PARTITION p1")
    assert table.skipped == ""
    assert {row[0] for row in rows} - {row[0] for row in table.rows.values()} == set(removed)


def test_a_partition_that_cannot_be_told_in_memory_is_said_so():
    create = "CREATE TABLE t (id INT PRIMARY KEY) PARTITION BY RANGE (id DIV 10) (PARTITION p0 VALUES LESS THAN (1))"
    table = replayed(create, [("1",)], "ALTER TABLE t DROP PARTITION p0")
    assert table.skipped == "which rows its partitions held cannot be told here"


def test_values_are_converted_in_memory_as_in_the_lake():
    create = "CREATE TABLE t (id INT PRIMARY KEY, price DECIMAL(10,2), name VARCHAR(9))"
    table = replayed(
        create,
        [("1", "2.50", "b"), ("2", None, "")],
        "ALTER TABLE t MODIFY COLUMN price INT, MODIFY COLUMN name BINARY(2)",
    )
    assert list(table.rows.values()) == [("1", "3", "YgA="), ("2", None, "AAA=")]


def test_renames_of_one_instant_that_came_by_several_topics_are_replayed_in_their_order():
    """RENAME TABLE b TO c, a TO b is an event a table; here each table has a topic of its own."""
    statements = [
        ("y", 1, "CREATE TABLE a (id INT PRIMARY KEY, of_a INT)"),
        ("y", 2, "CREATE TABLE b (id INT PRIMARY KEY, of_b INT)"),
        ("x", 3, "RENAME TABLE `d`.`a` TO `d`.`b`"),
        ("y", 3, "RENAME TABLE `d`.`b` TO `d`.`c`"),
    ]
    rows = [
        ddl(query, ts, f"0/{offset}") | {"topic": topic}
        for offset, (topic, ts, query) in enumerate(statements)
    ]
    found = of_feed([batch(*rows, watermark(9, "0/9"))], None)
    columns = {str(name): table.schema.column_names[1] for name, table in found.items()}
    assert columns == {"d.b": "of_a", "d.c": "of_b"}


def test_a_table_whose_rows_hold_a_guess_is_not_compared():
    create = "CREATE TABLE t (id INT PRIMARY KEY)"
    alter = "ALTER TABLE t ADD COLUMN made DATETIME DEFAULT CURRENT_TIMESTAMP"
    assert "does not tell its value" in replayed(create, [("1",)], alter).skipped
    assert replayed(create, [], alter).skipped == ""
