"""Chunks of real tables: each row is in exactly one of them, by counting and by reading."""

from __future__ import annotations

import json
from collections import Counter
from datetime import date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.changefeed.config.filter import TableFilter
from tidegate.upstream.chunks import Chunk, chunks_of
from tidegate.upstream.database import UpstreamTable
from tidegate.upstream.mysql import MAX_ROWS, MySQL
from tidegate.upstream.reading import ChunkReader

TINY = 2048
"""An eighth of what the server takes a table of a few rows for: a page."""
ROW = 128
"""What it takes a short row for."""

real_server = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def listed(database: MySQL, session, name: str = "t") -> UpstreamTable:
    (table,) = database.tables(session, TableFilter.parse([f"d.{name}"])).tables
    return table


def make(maria, columns: str, rows=(), name: str = "t", options: str = "") -> None:
    connection = maria.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
            cursor.execute(f"DROP TABLE IF EXISTS d.{name}")
            cursor.execute(f"CREATE TABLE d.{name} ({columns}) {options}")
            marks = ", ".join(["%s"] * max(map(len, rows), default=0))
            cursor.executemany(f"INSERT INTO d.{name} VALUES ({marks})", rows)
            cursor.execute(f"ANALYZE TABLE d.{name}")
    finally:
        connection.close()


def check(database: MySQL, rows: int, target: int, session=None) -> list[Chunk]:
    """Each row once: the counts add up, and all that is read is all there is."""
    if session is None:
        with database.session() as own:
            return check(database, rows, target, own)
    table = listed(database, session)
    chunks = list(chunks_of(database, session, table, target))
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    parsed = [Chunk.from_json(json.loads(json.dumps(chunk.to_json()))) for chunk in chunks]
    assert parsed == chunks
    counts = [int(session.rows(chunk.count(table.schema))[0][0]) for chunk in chunks]
    assert sum(counts) == rows
    columns = table.schema.carried
    whole = session.values(Chunk(database="d", table="t").select(table.schema), columns)
    read = [session.values(chunk.select(table.schema), columns) for chunk in chunks]
    assert list(map(len, read)) == counts
    assert Counter(row for part in read for row in part) == Counter(whole)
    assert len(whole) == rows
    return chunks


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6)
DECIMALS = st.decimals(Decimal("-99999.99"), Decimal("99999.99"), places=2, allow_nan=False)
KEYS = {
    "INT": st.integers(-(2**31), 2**31 - 1),
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "BIGINT UNSIGNED": st.one_of(st.integers(0, 99), st.integers(2**63 - 9, 2**64 - 1)),
    "TINYINT": st.integers(-128, 127),
    "DECIMAL(7,2)": DECIMALS,
    "FLOAT": st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda x: x + 0.0),
    "DOUBLE": st.floats(allow_nan=False, allow_infinity=False).map(lambda x: x + 0.0),
    "DATE": st.dates(date(1000, 1, 1)) | st.just("0000-00-00"),
    "DATETIME(6)": st.datetimes(datetime(1000, 1, 1)),
    "TIMESTAMP(3)": st.datetimes(datetime(1971, 1, 1), datetime(2037, 1, 1)).map(
        lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    ),
    "TIME(6)": st.timedeltas(timedelta(hours=-800), timedelta(hours=800)),
    "YEAR": st.integers(1901, 2155),
    "ENUM('c','b','a','é')": st.integers(1, 4),
    "SET('c','b','a')": st.integers(0, 7),
    "BIT(9)": st.integers(0, 511),
    "VARBINARY(9)": st.binary(max_size=6),
    "BINARY(4)": st.binary(max_size=4),
    "VARCHAR(9) COLLATE utf8mb4_bin": TEXT,
    "VARCHAR(9) COLLATE utf8mb4_general_ci": TEXT,
    "VARCHAR(9) COLLATE utf8mb4_unicode_ci": TEXT,
    "CHAR(9) CHARACTER SET latin1": st.text(st.characters(codec="latin-1"), max_size=6),
}


def store(session, rows: set) -> int:
    """The rows as those of the table, save those whose key is another's by the server's rules."""
    session.rows("DELETE FROM d.t")
    numbered = [(*row, number) for number, row in enumerate(rows)]
    if numbered:
        marks = f"({', '.join(['%s'] * len(numbered[0]))})"
        values = [value for row in numbered for value in row]
        session.rows(f"INSERT IGNORE INTO d.t VALUES {', '.join([marks] * len(rows))}", values)
    return int(session.rows("SELECT COUNT(*) FROM d.t")[0][0])


@pytest.mark.parametrize("type", KEYS)
def test_a_key_of_every_kind(maria, database, type):
    make(maria, f"k {type} NOT NULL PRIMARY KEY, v INT")

    @real_server
    @given(st.sets(st.tuples(KEYS[type]), max_size=40), st.integers(1, 4))
    def covers(rows, size):
        check(database, store(session, rows), TINY * size, session)

    with database.session() as session:
        covers()


@pytest.mark.parametrize(
    "types",
    [
        ("INT", "VARCHAR(9) COLLATE utf8mb4_general_ci"),
        ("VARCHAR(9) COLLATE utf8mb4_general_ci", "BIGINT UNSIGNED"),
        ("TINYINT", "DATE", "VARBINARY(9)"),
        ("DATETIME(6)", "DECIMAL(7,2)"),
        ("ENUM('c','b','a','é')", "SET('c','b','a')", "BIT(9)"),
    ],
)
def test_composite_keys(maria, database, types):
    names = [f"k{place}" for place in range(len(types))]
    columns = ", ".join(f"{n} {t} NOT NULL" for n, t in zip(names, types, strict=True))
    make(maria, f"{columns}, v INT, PRIMARY KEY ({', '.join(names)})")
    few = [st.shared(st.lists(KEYS[type], min_size=1, max_size=3), key=type) for type in types]

    @real_server
    @given(st.data(), st.integers(1, 4))
    def covers(data, size):
        pools = [data.draw(pool) for pool in few]
        rows = data.draw(st.sets(st.tuples(*map(st.sampled_from, pools)), max_size=30))
        check(database, store(session, rows), TINY * size, session)

    with database.session() as session:
        covers()


def test_a_first_column_with_few_values_is_cut_within_them(maria, database):
    make(maria, "a INT, b INT, PRIMARY KEY (a, b)")
    maria.run("INSERT INTO d.t SELECT seq DIV 3000, seq FROM d.seq_0_to_5999", "ANALYZE TABLE d.t")
    chunks = check(database, 6000, ROW * 500)
    assert 10 <= len(chunks) <= 16
    assert any(len(chunk.lower or ()) == 2 for chunk in chunks)


def test_keys_far_apart_make_chunks_of_like_sizes(maria, database):
    make(maria, "id BIGINT PRIMARY KEY")
    maria.run(
        "INSERT INTO d.t SELECT seq FROM d.seq_1_to_3000",
        f"INSERT INTO d.t SELECT {2**62} + seq * 1000 FROM d.seq_1_to_3000",
        "ANALYZE TABLE d.t",
    )
    chunks = check(database, 6000, ROW * 500)
    with database.session() as session:
        schema = listed(database, session).schema
        counts = [int(session.rows(chunk.count(schema))[0][0]) for chunk in chunks]
    assert 8 <= len(chunks) <= 30
    assert max(counts) <= 1000


@pytest.mark.parametrize("rows", [0, 1, 2, 3])
@pytest.mark.parametrize("type", ["INT", "VARCHAR(5)"])
def test_few_rows(maria, database, rows, type):
    make(maria, f"k {type} PRIMARY KEY", [(str(number),) for number in range(rows)])
    assert len(check(database, rows, TINY)) == max(rows, 1)


def test_one_chunk_where_it_is_large_enough(maria, database):
    make(maria, "k INT PRIMARY KEY", [(number,) for number in range(50)])
    (chunk,) = check(database, 50, TINY * MAX_ROWS)
    assert chunk.to_json() == {
        "database": "d",
        "table": "t",
        "number": 0,
        "index": "PRIMARY",
        "key": ["k"],
    }


def test_a_table_without_a_key_is_one_chunk(maria, database):
    make(maria, "a INT, b INT", [(1, 1), (1, 1), (None, 2)])
    (chunk,) = check(database, 3, TINY)
    assert chunk.key == ()


def test_a_unique_key_that_may_be_null_is_not_used(maria, database):
    make(maria, "a INT UNIQUE, b INT", [(None, 1), (None, 2), (3, 3)])
    (chunk,) = check(database, 3, TINY)
    assert chunk.key == ()


def test_a_unique_key_without_nulls_is_used(maria, database):
    make(maria, "a INT, b INT NOT NULL, UNIQUE u (b)", [(None, 1), (1, 2), (3, 3)])
    chunks = check(database, 3, TINY)
    assert {(chunk.key, chunk.index) for chunk in chunks} == {(("b",), "u")}
    assert len(chunks) == 3


@pytest.mark.parametrize(
    "partitioning",
    [
        "PARTITION BY HASH (a) PARTITIONS 3",
        "PARTITION BY RANGE (a) (PARTITION `low``` VALUES LESS THAN (10), "
        "PARTITION high VALUES LESS THAN MAXVALUE)",
        "PARTITION BY LIST (a MOD 2) (PARTITION p0 VALUES IN (0), PARTITION p1 VALUES IN (1))",
    ],
)
@pytest.mark.parametrize("key", [", PRIMARY KEY (a)", ""])
def test_partitions(maria, database, partitioning, key):
    make(
        maria,
        f"a INT, b INT{key}",
        [(number, number) for number in range(30)],
        options=partitioning,
    )
    chunks = check(database, 30, TINY * 3)
    assert len({chunk.partition for chunk in chunks}) in (2, 3)
    assert None not in {chunk.partition for chunk in chunks}


def test_names_of_every_kind(maria, database):
    maria.run(
        "CREATE TABLE d.`odd ``%s 'name` (`k``%d` INT PRIMARY KEY, `v '\"` INT)",
        "INSERT INTO d.`odd ``%s 'name` VALUES (1, 2), (3, 4)",
    )
    with database.session() as session, ChunkReader(database) as reader:
        (table,) = database.tables(session, TableFilter.parse(["d.*"])).tables
        rows = [
            row
            for chunk in chunks_of(database, session, table, TINY)
            for batch in reader.read(chunk, table.schema)
            for row in batch.to_pylist()
        ]
    assert rows == [{"k`%d": "1", "v '\"": "2"}, {"k`%d": "3", "v '\"": "4"}]


def test_a_generated_column(maria, database):
    make(
        maria,
        "a INT PRIMARY KEY, v INT AS (a + 1) VIRTUAL, s INT AS (a + 2) STORED",
    )
    maria.run("INSERT INTO d.t (a) VALUES (1)")
    with database.session() as session, ChunkReader(database) as reader:
        table = listed(database, session)
        (chunk,) = chunks_of(database, session, table)
        (batch,) = reader.read(chunk, table.schema)
    assert batch.to_pylist() == [{"a": "1", "s": "3"}]
    assert batch.schema.types == [pa.string()] * 2
