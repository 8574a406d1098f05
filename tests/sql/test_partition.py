"""Partitions: how statements cut a table, and which rows a partition holds."""

import base64
import sqlite3
from functools import cache

import pytest
import sqlglot

from tests.support import corpus
from tests.support.truth import EXCHANGE_PARTITION
from tidegate.model.schema import Partition, Partitioning, TableSchema
from tidegate.sql.ddl import ChangeKind, transition
from tidegate.sql.definition import Charset

UTF8MB4 = Charset("utf8mb4", "utf8mb4_bin")


def after(*statements):
    """The table that the statements leave, and the last change."""
    schema = change = None
    for statement in statements:
        change = transition(schema, statement, "d", charset=UTF8MB4)
        schema = change.after
    return schema, change


def table(partitioning, columns="a int, b int, s varchar(9), d date"):
    return f"create table t ({columns}) partition by {partitioning}"


def names(schema):
    return [each.name for each in schema.partitioning.partitions]


RANGE = table(
    "range (a) (partition p0 values less than (10), partition p1 values less than (20), "
    "partition p2 values less than maxvalue)"
)
LIST = table(
    "list (a) (partition p0 values in (1, -2, NULL), partition p1 values in (3) comment 'x', "
    "partition rest default)"
)
HASH = table("hash (a) partitions 3")


@pytest.mark.parametrize(
    ("partitioning", "expected"),
    [
        (
            "RANGE (`a`) (PARTITION `p0` VALUES LESS THAN (10),PARTITION `p1` VALUES LESS THAN (MAXVALUE))",
            Partitioning(
                method="range",
                by=("`a`",),
                partitions=(
                    Partition(name="p0", values=(("10",),)),
                    Partition(name="p1", values=(("MAXVALUE",),)),
                ),
            ),
        ),
        (
            "RANGE COLUMNS (`d`, s) (PARTITION `p0` VALUES LESS THAN (_UTF8MB4'2024-04-01', x'61'))",
            Partitioning(
                method="range",
                by=("`d`", "`s`"),
                partitions=(Partition(name="p0", values=(("'2024-04-01'", "x'61'"),)),),
            ),
        ),
        (
            "LIST COLUMNS (`a`,`s`) (PARTITION `p0` VALUES IN ((1,_UTF8MB4'it''s'),(NULL,_UTF8MB4'b')))",
            Partitioning(
                method="list",
                by=("`a`", "`s`"),
                partitions=(Partition(name="p0", values=(("1", "'it''s'"), ("NULL", "'b'"))),),
            ),
        ),
        (
            "LINEAR HASH (`a`) PARTITIONS 2",
            Partitioning(
                method="hash",
                by=("`a`",),
                partitions=(Partition(name="p0"), Partition(name="p1")),
            ),
        ),
        (
            "KEY ALGORITHM = 2 (`a`)",
            Partitioning(method="key", by=("`a`",), partitions=(Partition(name="p0"),)),
        ),
        (
            "RANGE (`a`) INTERVAL (10) FIRST PARTITION LESS THAN (10) LAST PARTITION LESS THAN (90)",
            Partitioning(method="range", by=("`a`",)),
        ),
        ("WHIM (a)", None),
    ],
)
def test_a_table_knows_how_it_is_cut(partitioning, expected):
    schema, change = after(table(partitioning))
    assert (change.kind, schema.partitioning) == (ChangeKind.CREATED, expected)
    assert TableSchema.from_json(schema.to_json()) == schema


@pytest.mark.parametrize(
    ("create", "clause", "expected"),
    [
        (RANGE, "ADD PARTITION (PARTITION `p3` VALUES LESS THAN (40))", ["p0", "p1", "p2", "p3"]),
        (RANGE, "DROP PARTITION P0, p2", ["p1"]),
        (RANGE, "DROP PARTITION IF EXISTS nix, p1", ["p0", "p2"]),
        (RANGE, "TRUNCATE PARTITION p1", ["p0", "p1", "p2"]),
        (
            RANGE,
            "REORGANIZE PARTITION p0,p1 INTO (PARTITION x VALUES LESS THAN (5), PARTITION y VALUES LESS THAN (20))",
            ["x", "y", "p2"],
        ),
        (RANGE, "PARTITION BY HASH (a) PARTITIONS 2", ["p0", "p1"]),
        (HASH, "ADD PARTITION PARTITIONS 2", ["p0", "p1", "p2", "p3", "p4"]),
        (HASH, "COALESCE PARTITION 2", ["p0"]),
        (LIST, "ADD COLUMN c INT", ["p0", "p1", "rest"]),
    ],
)
def test_statements_change_the_cut(create, clause, expected):
    schema, _ = after(create, f"ALTER TABLE t {clause}")
    assert names(schema) == expected


@pytest.mark.parametrize("clause", ["REMOVE PARTITIONING", "LAST PARTITION LESS THAN (50)"])
def test_a_cut_that_is_gone_or_not_known(clause):
    schema, change = after(RANGE, f"ALTER TABLE t {clause}")
    assert (change.kind, schema.partitioning) == (ChangeKind.UNCHANGED, None)


# The table, the partitions dropped, and the rows (a, b, s, d) that they hold of ROWS.
ROWS = [
    (None, 1, "a", "2020-01-01"),
    (-2, 2, "b", "2020-06-30"),
    (3, 3, None, "2021-01-01"),
    (10, 7, "it's \\", "2021-12-31"),
    (19, 4, "B", None),
    (20, None, "c", "1999-12-31"),
]
HELD = [
    (RANGE, "p0", [0, 1, 2]),
    (RANGE, "p1", [3, 4]),
    (RANGE, "p2", [5]),
    (RANGE, "p0, p1", [0, 1, 2, 3, 4]),
    (RANGE, "p2, p0", [0, 1, 2, 5]),
    (LIST, "p0", [0, 1]),
    (LIST, "p1", [2]),
    (LIST, "rest", [3, 4, 5]),
    (HASH, "p0", [0, 2]),
    (HASH, "p1, p2", [1, 3, 4, 5]),
    (
        table(
            "range columns (a, b) (partition p0 values less than (10, 7), partition p1 values less than (19, maxvalue), partition p2 values less than (maxvalue, maxvalue))"
        ),
        "p1",
        [3, 4],
    ),
    (
        table(
            "range columns (d) (partition p0 values less than ('2020-01-01'), partition p1 values less than ('2021-01-01'), partition p2 values less than (maxvalue))"
        ),
        "p1",
        [0, 1],
    ),
    (
        table(
            "range columns (d) (partition p0 values less than ('2020-01-01'), partition p1 values less than (maxvalue))"
        ),
        "p0",
        [4, 5],
    ),
    (
        table(
            "list columns (s) (partition p0 values in ('a', 'B'), partition p1 values in (_utf8mb4'it''s \\\\', NULL))"
        ),
        "p0",
        [0, 4],
    ),
    (
        table(
            "list columns (s) (partition p0 values in ('a', 'B'), partition p1 values in (_utf8mb4'it''s \\\\', NULL))"
        ),
        "p1",
        [2, 3],
    ),
    (
        table(
            "list columns (a, s) (partition p0 values in ((NULL, 'a'), (3, NULL)), partition p1 values in ((20, 'c')))"
        ),
        "p0",
        [0, 2],
    ),
    (
        table(
            "range columns (d) (partition p0 values less than ('20200101'), partition p1 values less than ('2021-1-1 00:00:00'), partition p2 values less than (maxvalue))"
        ),
        "p1",
        [0, 1],
    ),
    (
        table(
            "range columns (d) (partition p0 values less than (DATE'2020-01-01'), partition p1 values less than (maxvalue))"
        ),
        "p0",
        [4, 5],
    ),
    (
        table(
            "range columns (a) (partition p0 values less than ('10'), partition p1 values less than (maxvalue))"
        ),
        "p0",
        [0, 1, 2],
    ),
    (
        table(
            "range (a % 7 + 1) (partition p0 values less than (4), partition p1 values less than (7))"
        ),
        "p1",
        [2, 3, 4],
    ),
]


def held(condition):
    """The rows for which a condition of Spark's holds."""
    database = sqlite3.connect(":memory:")
    database.execute("create table t (n, a, b, s, d)")
    database.executemany(
        "insert into t values (?, ?, ?, ?, ?)", [(n, *row) for n, row in enumerate(ROWS)]
    )
    condition = sqlglot.parse_one(condition, read="spark").sql("sqlite")
    return [n for (n,) in database.execute(f"select n from t where {condition} order by n")]


@pytest.mark.parametrize(("create", "partitions", "rows"), HELD)
@pytest.mark.parametrize("verb", ["DROP", "TRUNCATE"])
def test_the_rows_of_a_partition_are_told_by_a_condition(create, partitions, rows, verb):
    _, change = after(create, f"ALTER TABLE t {verb} PARTITION {partitions}")
    assert change.kind is ChangeKind.PRUNED, change.reason
    assert held(change.removed) == rows


def test_what_a_dropped_partition_held_falls_to_the_next():
    _, change = after(RANGE, "ALTER TABLE t DROP PARTITION p1", "ALTER TABLE t DROP PARTITION p2")
    assert held(change.removed) == [3, 4, 5]


def test_truncating_all_partitions_is_truncating_the_table():
    _, change = after(RANGE, "ALTER TABLE t TRUNCATE PARTITION ALL")
    assert change.kind is ChangeKind.TRUNCATED


def test_dropping_partitions_that_are_not_there_is_nothing():
    _, change = after(RANGE, "ALTER TABLE t DROP PARTITION IF EXISTS nix")
    assert (change.kind, change.removed) == (ChangeKind.UNCHANGED, None)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("year(d)", "YEAR(`d`)"),
        ("TO_DAYS(`d`)", "(DATEDIFF(`d`, '1970-01-01') + 719528)"),
        ("YEAR(`d`)*100+MONTH(`d`)", "YEAR(`d`) * 100 + MONTH(`d`)"),
        ("a DIV 10", "`a` DIV 10"),
        ("mod(a, 7)", "`a` % 7"),
        ("ceiling(a)", "CEIL(`a`)"),
        ("extract(year from d)", "EXTRACT(YEAR FROM `d`)"),
    ],
)
def test_expressions_become_sparks(by, expected):
    _, change = after(
        table(f"range ({by}) (partition p0 values less than (5))"),
        "ALTER TABLE t DROP PARTITION p0",
    )
    assert change.removed == f"((({expected}) IS NULL OR ({expected}) < 5))"


def test_seconds_since_1970_are_those_of_a_timestamp() -> None:
    _, change = after(
        table(
            "range (unix_timestamp(t)) (partition p0 values less than (unix_timestamp('2020-01-01')), "
            "partition p1 values less than (unix_timestamp('2021-01-01 00:00:00')))",
            "a int, t timestamp",
        ),
        "ALTER TABLE t DROP PARTITION p1",
    )
    seconds = "UNIX_SECONDS(`t`)"
    assert change.removed == (
        f"((({seconds}) IS NULL OR ({seconds}) < 1609459200)"
        f" AND NOT (({seconds}) IS NULL OR ({seconds}) < 1577836800))"
    )


def test_an_unsigned_bigint_is_hashed_with_a_sign() -> None:
    _, change = after(
        table("hash (a) partitions 3", "a bigint unsigned"), "ALTER TABLE t TRUNCATE PARTITION p1"
    )
    database = sqlite3.connect(":memory:")
    found = [
        number
        for number in (1, 4, 5, 2**63 - 1)
        if database.execute(f"select {change.removed} from (select {number} as a)").fetchone()[0]
    ]
    assert found == [1, 4, 2**63 - 1]
    assert f"ELSE `a` - {2**64} END" in change.removed


CI = "a int, s varchar(9) collate utf8mb4_general_ci"


@pytest.mark.parametrize(
    ("create", "clause", "reason"),
    [
        (
            table("key (a) partitions 2"),
            "TRUNCATE PARTITION p0",
            "TRUNCATE PARTITION removes rows, and the rows of a partition by KEY cannot be told by a condition.",
        ),
        (
            RANGE,
            "DROP PARTITION nix",
            "DROP PARTITION removes rows, and the table as it is known has no partition `nix`.",
        ),
        (
            RANGE,
            "FIRST PARTITION LESS THAN (15)",
            "FIRST PARTITION removes rows, and which partitions lie below the new first one is not known.",
        ),
        (
            "create table t (a int)",
            "DROP PARTITION p0",
            "DROP PARTITION removes rows, and how the table is partitioned is not known.",
        ),
        (
            table("range (unix_timestamp(d)) (partition p0 values less than (5))"),
            "DROP PARTITION p0",
            "DROP PARTITION removes rows, and what unix_timestamp gives is not known.",
        ),
        (
            table("list columns (s) (partition p0 values in ('a'))", CI),
            "DROP PARTITION p0",
            "DROP PARTITION removes rows, and partitions are told by `s`, which ignores case.",
        ),
        (
            table("range (a + ) (partition p0 values less than (5))"),
            "DROP PARTITION p0",
            "DROP PARTITION removes rows, and the partitioning expression is not understood.",
        ),
        (
            table(
                "list (a) (partition p0 values in ("
                + ",".join(map(str, range(9_000)))
                + "), partition p1 default)"
            ),
            "TRUNCATE PARTITION p0, p1",
            "TRUNCATE PARTITION removes rows, and the condition for its rows is too long.",
        ),
    ],
)
def test_rows_that_cannot_be_told_are_not_mirrored(create, clause, reason):
    _, change = after(create, f"ALTER TABLE t {clause}")
    assert (change.kind, change.reason) == (ChangeKind.UNMIRRORED, reason)


# The blanks at the end of a text count for nothing, but in `binary` and the collations of 0900.
LISTED = "list columns (s) (partition p0 values in ('a ', 'b'), partition p1 values in ('c'))"
RANGED = (
    "range columns (s) (partition p0 values less than ('b  '), "
    "partition p1 values less than (x'6320'), partition p2 values less than (maxvalue))"
)
PADDED = ["utf8mb4_bin", "utf8_bin", "latin1_bin", "ascii_bin"]


def texts_of(partitioning, collation, partition, texts):
    """The texts that a partition holds."""
    columns = f"a int, s varchar(9) collate {collation}"
    _, change = after(table(partitioning, columns), f"ALTER TABLE t TRUNCATE PARTITION {partition}")
    assert change.kind is ChangeKind.PRUNED, change.reason
    database = sqlite3.connect(":memory:")
    condition = sqlglot.parse_one(change.removed, read="spark").sql("sqlite")
    return [
        text
        for text in texts
        if database.execute(f"select {condition} from (select ? as s)", [text]).fetchone()[0]
    ]


@pytest.mark.parametrize("collation", [*PADDED, "gbk_bin", "gb18030_bin"])
def test_blanks_at_the_end_do_not_take_a_text_to_another_partition_of_a_list(collation):
    texts = ["a", "a ", "a  ", " a", "b ", "c", "c  ", "A", None]
    assert texts_of(LISTED, collation, "p0", texts) == ["a", "a ", "a  ", "b "]
    assert texts_of(LISTED, collation, "p1", texts) == ["c", "c  "]


@pytest.mark.parametrize("collation", PADDED)
def test_blanks_at_the_end_do_not_take_a_text_to_another_range(collation):
    texts = [None, "", "a ", "b", "b ", "b    ", "bz ", "c", "c   ", "d"]
    assert texts_of(RANGED, collation, "p0", texts) == [None, "", "a "]
    assert texts_of(RANGED, collation, "p1", texts) == ["b", "b ", "b    ", "bz "]
    assert texts_of(RANGED, collation, "p2", texts) == ["c", "c   ", "d"]


def test_where_blanks_count_they_tell_partitions_apart():
    assert texts_of(LISTED, "utf8mb4_0900_bin", "p0", ["a", "a ", "b", "b "]) == ["a ", "b"]
    _, change = after(
        table("list columns (s) (partition p0 values in ('a'))", "a int, s varbinary(9)"),
        "ALTER TABLE t TRUNCATE PARTITION p0",
    )
    assert "RTRIM" not in change.removed


@pytest.mark.parametrize(
    ("partitioning", "collation", "reason"),
    [
        (LISTED, "utf8mb4_general_ci", "partitions are told by `s`, which ignores case"),
        (LISTED, "utf8mb4_unicode_ci", "partitions are told by `s`, which ignores case"),
        (RANGED, "utf8mb4_0900_ai_ci", "partitions are told by `s`, which ignores case"),
        (LISTED, "gbk_chinese_ci", "partitions are told by `s`, which ignores case"),
        (RANGED, "gbk_bin", "how `s` is ordered is not known"),
        (
            LISTED,
            "utf8mb4_0900_as_cs",
            "partitions are told by `s`, and how it compares is not known",
        ),
        (LISTED.replace("'b'", "x'ff'"), "utf8mb4_bin", "which text x'ff' is is not known"),
    ],
)
def test_a_collation_that_compares_in_another_way_is_refused(partitioning, collation, reason):
    columns = f"a int, s varchar(9) collate {collation}"
    _, change = after(table(partitioning, columns), "ALTER TABLE t TRUNCATE PARTITION p0")
    assert change.kind is ChangeKind.UNMIRRORED
    assert change.reason == f"TRUNCATE PARTITION removes rows, and {reason}."


def test_a_collation_that_is_not_known_is_refused():
    created = transition(None, table(LISTED), "d").after
    change = transition(created, "ALTER TABLE t TRUNCATE PARTITION p0", "d")
    assert change.kind is ChangeKind.UNMIRRORED


def test_without_a_schema_nothing_is_known_of_partitions():
    change = transition(None, "ALTER TABLE t DROP PARTITION p", "d")
    assert change.reason == "DROP PARTITION removes rows, and the schema of the table is not known."


def test_the_partitioned_table_of_the_golden_corpus_ends_with_tidbs_rows():
    """Rows come and go by the feed, whole partitions by their conditions."""
    schema = None
    mirror = sqlite3.connect(":memory:")
    mirror.execute("create table events (id, day, primary key (id, day))")
    pruned = 0
    for event in corpus.events("mixed1"):
        if event["kind"] == "ddl" and "`crm`.`events`" in event["query"]:
            change = transition(schema, event["query"], "crm")
            schema = change.after
            if change.kind is ChangeKind.PRUNED:
                pruned += mirror.execute(f"delete from events where {change.removed}").rowcount
        elif event["kind"] == "row" and event["table"] == "events":
            for side, statement in (
                ("before", "delete from events where id = ? and day = ?"),
                ("after", "insert into events values (?, ?)"),
            ):
                if event[side] is not None:
                    values = {
                        column["n"]: column["v"]["v"] for column in event[side] if column["v"]
                    }
                    mirror.execute(statement, (values["id"], values["day"]))
    final = next(each for each in corpus.final("mixed1")["tables"] if each["table"] == "events")
    order = [column["n"] for column in final["columns"]]
    expected = {(row[order.index("id")], row[order.index("day")]) for row in final["rows"]}
    assert pruned > 0
    assert set(mirror.execute("select id, day from events")) == expected


@cache
def placing(schema, columns):
    """A query that tells of a row, given its columns, which partitions' conditions hold for it."""
    conditions = [
        transition(schema, f"ALTER TABLE t TRUNCATE PARTITION `{name}`", "d").removed
        for name in names(schema)
    ]
    row = ", ".join(f"? as `{name}`" for name in columns)
    return f"select {', '.join(conditions)} from (select {row})"


def partitions_of(schema, values):
    row = sqlite3.connect(":memory:").execute(placing(schema, tuple(values)), list(values.values()))
    return [name for name, holds in zip(names(schema), row.fetchone(), strict=True) if holds]


def typed(column):
    value = column["v"]
    if value is None:
        return None
    if value["k"] == "bytes":
        return base64.b64decode(value["v"]).decode()
    return int(value["v"]) if value["k"] in ("i64", "u64") else value["v"]


@pytest.mark.parametrize("scenario", ["types", "ddl", "mixed1"])
def test_every_row_of_the_golden_corpus_is_in_the_partition_that_tidb_put_it_in(scenario):
    tables, places, rows = {}, {}, 0
    for event in corpus.events(scenario):
        if event["kind"] == "ddl" and event["typeCode"] != EXCHANGE_PARTITION:
            told = event["table"]
            before = tables.get((event["preTable"] or told).get("id"))
            change = transition(before, event["query"], told["schema"], charset=UTF8MB4)
            if change.after is not None:
                tables[told["id"]] = change.after
            places = {id_: name for id_, name in places.items() if id_[0] != told.get("id")}
        elif event["kind"] == "row" and event["isPartition"]:
            schema = tables[event["logicalTableID"]]
            if schema.partitioning.method == "key":
                continue
            row = event["after"] or event["before"]
            by = {each.strip("`") for each in schema.partitioning.by}
            found = partitions_of(
                schema, {each["n"]: typed(each) for each in row if each["n"] in by}
            )
            place = places.setdefault((event["logicalTableID"], event["physicalTableID"]), found)
            assert (found, len(found)) == (place, 1)
            rows += 1
    assert rows > 0
    assert len({(key[0], name) for key, (name,) in places.items()}) == len(places)
