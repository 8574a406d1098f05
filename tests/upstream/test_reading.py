"""Reading chunks: strings of the change batch, exact after lost connections, bounded in memory."""

from __future__ import annotations

import subprocess
import sys
from base64 import b64encode

import pytest

from tidegate.changefeed.config.filter import TableFilter
from tidegate.model import SourceError
from tidegate.upstream import reading
from tidegate.upstream.chunks import Chunk, chunks_of
from tidegate.upstream.errors import DatabaseUnreachable
from tidegate.upstream.mysql import MySQL
from tidegate.upstream.reading import ChunkInterrupted, ChunkReader, read_chunk
from tidegate.upstream.server import text_of

BIG = 2**64 - 1
MEMBERS = ",".join(f"'m{number}'" for number in range(64))

# type: what is inserted, as SQL, and the change batch's string of it
TYPES = {
    "TINYINT": [("-128", "-128")],
    "INT(8) UNSIGNED ZEROFILL": [("7", "7"), ("0", "0")],
    "BIGINT UNSIGNED": [(str(BIG), str(BIG))],
    "BIGINT": [(str(-(2**63)), str(-(2**63)))],
    "YEAR": [("0", "0"), ("2155", "2155")],
    "DECIMAL(65,30)": [("-0.1", "-0." + "1".ljust(30, "0"))],
    "DECIMAL(10,2) ZEROFILL": [("1.5", "1.50")],
    "FLOAT": [
        ("0.1", "0.1"),
        ("3.4028234663852886e38", "34028235" + "0" * 31),
        ("16777216", "16777216"),
    ],
    "DOUBLE": [
        ("1.7976931348623157e308", "17976931348623157" + "0" * 292),
        ("-1e-7", "-0.0000001"),
    ],
    "BIT(64)": [(str(BIG), str(BIG)), ("0", "0")],
    "BIT(1)": [("b'1'", "1")],
    "ENUM('a','b')": [("'b'", "2"), ("''", "0")],
    f"SET({MEMBERS})": [(str(BIG), str(BIG)), ("''", "0")],
    "DATE": [("'0000-00-00'", "0000-00-00"), ("'2020-00-15'", "2020-00-15")],
    "DATETIME": [("'9999-12-31 23:59:59'", "9999-12-31 23:59:59")],
    "DATETIME(6)": [("'2020-01-01 00:00:00.5'", "2020-01-01 00:00:00.500000")],
    "TIMESTAMP(3) NULL": [("'2020-06-01 12:00:00.25'", "2020-06-01 12:00:00.250")],
    "TIME(2)": [("'-838:00:00.5'", "-838:00:00.50"), ("'00:00:00'", "00:00:00.00")],
    "VARCHAR(20)": [("'né😀 \\\\ \\'%s'", "né😀 \\ '%s"), ("''", ""), ("'a\\0b'", "a\0b")],
    "CHAR(9)": [("'a '", "a")],
    "VARCHAR(20) CHARACTER SET latin1": [("'né'", "né")],
    "VARCHAR(20) CHARACTER SET gbk": [("'中'", "中")],
    "LONGTEXT": [("REPEAT('é', 100000)", "é" * 100_000)],
    "BINARY(4)": [("x'ff00'", b64encode(b"\xff\0\0\0").decode())],
    "VARBINARY(9)": [("x'ff00fb'", b64encode(b"\xff\0\xfb").decode()), ("''", "")],
    "LONGBLOB": [("REPEAT(x'00', 70000)", b64encode(bytes(70_000)).decode())],
    "JSON": [("'{\"a\": 1}'", '{"a": 1}')],
}


def schema_of(database, name="t"):
    with database.session() as session:
        (table,) = database.tables(session, TableFilter.parse([f"d.{name}"])).tables
    return table.schema


def values(batches):
    return [row for batch in batches for row in zip(*(c.to_pylist() for c in batch), strict=True)]


def test_values_of_every_type(maria, database):
    columns = [f"c{place} {type}" for place, type in enumerate(TYPES)]
    most = max(map(len, TYPES.values()))
    connection = maria.connect(init_command="SET sql_mode = '', time_zone = '+00:00'")
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE d.t (id INT PRIMARY KEY, {', '.join(columns)})")
        for number in range(most + 1):
            row = [case[number][0] if number < len(case) else "NULL" for case in TYPES.values()]
            cursor.execute(f"INSERT INTO d.t VALUES ({number}, {', '.join(row)})")
    connection.close()
    expected = [
        (str(number), *(case[number][1] if number < len(case) else None for case in TYPES.values()))
        for number in range(most + 1)
    ]
    schema = schema_of(database)
    chunk = Chunk(database="d", table="t", key=("id",))
    assert values(read_chunk(database, chunk, schema, None)) == expected
    # One by one, as rows of which a message has only the key are asked for.
    with database.session() as session:
        raw = session.rows(chunk.select(schema))
    assert [tuple(map(text_of, schema.columns, row)) for row in raw] == expected


def test_text_that_the_column_does_not_hold_is_reported(maria, database):
    maria.run(
        "CREATE TABLE d.t (id INT PRIMARY KEY, v VARBINARY(9))",
        "INSERT INTO d.t VALUES (1, x'ff')",
    )
    schema = schema_of(database)
    claimed = schema.from_json(
        schema.to_json().replace("varbinary", "varchar").replace("binary", "utf8mb4")
    )
    with pytest.raises(SourceError, match="a value of the column 'v' is not UTF-8"):
        list(read_chunk(database, Chunk(database="d", table="t", key=("id",)), claimed, None))


def test_batches_are_bounded_by_bytes(maria, database):
    maria.run(
        "CREATE TABLE d.t (id INT PRIMARY KEY, v CHAR(100))",
        "INSERT INTO d.t SELECT seq, REPEAT('x', 100) FROM d.seq_1_to_5000",
    )
    with ChunkReader(database, batch_bytes=50_000) as reader:
        batches = list(
            reader.read(Chunk(database="d", table="t", key=("id",)), schema_of(database))
        )
    assert len(batches) > 5
    assert max(batch.nbytes for batch in batches) < 100_000


def test_one_connection_reads_many_chunks_and_is_left_usable(maria, database, proxy):
    maria.run(
        "CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t SELECT seq FROM d.seq_1_to_9"
    )
    through = MySQL(proxy.server)
    with ChunkReader(through) as reader:
        for _ in range(3):
            chunk = Chunk(database="d", table="t", key=("id",))
            assert len(values(reader.read(chunk, schema_of(database)))) == 9
    assert sum(each.startswith("SET time_zone") for each in proxy.statements) == 1


def test_a_reader_that_stops_within_a_chunk_can_read_another(maria, database):
    maria.run(
        "CREATE TABLE d.t (id INT PRIMARY KEY, v CHAR(100))",
        "INSERT INTO d.t SELECT seq, 'x' FROM d.seq_1_to_50000",
    )
    schema, chunk = schema_of(database), Chunk(database="d", table="t", key=("id",))
    with ChunkReader(database, batch_bytes=1000) as reader:
        first = reader.read(chunk, schema)
        next(first)
        first.close()
        assert len(values(reader.read(Chunk.resumed_after(chunk, ["49990"]), schema))) == 10


# --- lost connections -----------------------------------------------------------------------------

KEYED = {
    "id INT PRIMARY KEY": "seq",
    "id VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY": "CONCAT(CHAR(65 + seq % 50), seq)",
    "id INT, b VARCHAR(9), PRIMARY KEY (b, id)": "seq, CONCAT('it''s ', seq % 7)",
    "id DOUBLE PRIMARY KEY": "seq / 7",
    "id DECIMAL(20,10) PRIMARY KEY": "seq / 7",
    "id VARBINARY(9) PRIMARY KEY": "UNHEX(HEX(seq * 7919))",
}


@pytest.mark.parametrize("columns", KEYED)
def test_reading_continues_after_the_last_row(maria, proxy, columns):
    rows = 3000
    maria.run(
        f"CREATE TABLE d.t ({columns}, v CHAR(100))",
        f"INSERT INTO d.t SELECT {KEYED[columns]}, REPEAT('x', 100) FROM d.seq_1_to_{rows}",
    )
    database, pauses = MySQL(proxy.server), []
    with database.session() as session:
        (table,) = database.tables(session, TableFilter.parse(["d.t"])).tables
        (chunk,) = chunks_of(database, session, table)
        whole = session.values(chunk.select(table.schema), table.schema.carried)
    with ChunkReader(database, batch_bytes=10_000, pause=pauses.append) as reader:
        proxy.cuts = [30_000, 100_000, 0, 70_000]
        read = values(reader.read(chunk, table.schema))
    assert read == whole
    assert len(read) == rows
    assert len(pauses) == 4
    assert any("WHERE" in each for each in proxy.statements)


def test_a_chunk_without_a_key_is_repeated_as_a_whole(maria, proxy):
    maria.run(
        "CREATE TABLE d.t (v CHAR(100))",
        "INSERT INTO d.t SELECT REPEAT('x', 100) FROM d.seq_1_to_20000",
    )
    database = MySQL(proxy.server)
    schema, chunk = schema_of(database), Chunk(database="d", table="t")
    with ChunkReader(database, batch_bytes=10_000, pause=lambda _: None) as reader:
        proxy.cuts = [0]  # before the first row: nothing is lost yet
        batches = reader.read(chunk, schema)
        next(batches)
        proxy.cut_all()
        with pytest.raises(ChunkInterrupted, match=r"d\.t, which has no key.*Read the chunk again"):
            list(batches)
        assert len(values(reader.read(chunk, schema))) == 20_000


def test_a_server_that_stays_away_ends_the_reading(maria, proxy):
    maria.run("CREATE TABLE d.t (id INT PRIMARY KEY)")
    database = MySQL(proxy.server)
    schema, pauses = schema_of(database), []
    proxy.close()
    with ChunkReader(database, pause=pauses.append) as reader, pytest.raises(DatabaseUnreachable):
        list(reader.read(Chunk(database="d", table="t", key=("id",)), schema))
    assert len(pauses) == reading.ATTEMPTS - 1


def test_a_query_that_is_killed_is_asked_again(maria, database):
    maria.run(
        "CREATE TABLE d.t (id INT PRIMARY KEY, v CHAR(200))",
        "INSERT INTO d.t SELECT seq, REPEAT('x', 200) FROM d.seq_1_to_100000",
    )
    schema, pauses = schema_of(database), []
    with ChunkReader(database, batch_bytes=10_000, pause=pauses.append) as reader:
        batches = reader.read(Chunk(database="d", table="t", key=("id",)), schema)
        read = values([next(batches)])
        ((id,),) = _processes(maria)
        maria.run(f"KILL CONNECTION {id}")
        read += values(batches)
    assert [int(row[0]) for row in read] == list(range(1, 100_001))
    assert pauses


def _processes(maria):
    connection = maria.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT ID FROM information_schema.processlist WHERE INFO LIKE '%ORDER BY `id`%' "
                "AND ID <> CONNECTION_ID()"
            )
            return list(cursor.fetchall())
    finally:
        connection.close()


# --- memory ---------------------------------------------------------------------------------------

WIDE_READER = """
import resource, sys
from tidegate.model import TableSchema
from tidegate.upstream.chunks import Chunk
from tidegate.upstream.mysql import MySQL
from tidegate.upstream.reading import read_chunk
from tidegate.upstream.server import DatabaseServer

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

database = MySQL(DatabaseServer.parse(sys.argv[1], "load"))
schema = TableSchema.from_json(sys.stdin.read())
before, rows = None, 0
for batch in read_chunk(database, Chunk(database="d", table="t", key=("id",)), schema, None):
    before = before or peak()
    rows += batch.num_rows
print(rows, peak() - before)
"""


def test_wide_rows_take_bounded_memory(maria, database):
    maria.run(
        "CREATE TABLE d.t (id INT PRIMARY KEY, v LONGBLOB)",
        "INSERT INTO d.t SELECT seq, REPEAT('x', 1000000) FROM d.seq_1_to_200",
    )
    done = subprocess.run(
        [sys.executable, "-c", WIDE_READER, maria.uri],
        input=schema_of(database).to_json(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    rows, grown = map(int, done.stdout.split())
    assert rows == 200
    assert grown < 60  # MiB, of 267 in all


def test_definitions_of_mariadb_are_read_as_tidbs(maria, database):
    maria.run(
        "CREATE TABLE d.t (id INT PRIMARY KEY, j JSON NOT NULL COMMENT 'it''s', k JSON, "
        "a TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3), "
        "n INT DEFAULT 7, s VARCHAR(9) COLLATE utf8mb4_bin DEFAULT 'x', y YEAR, "
        "g INT AS (n + 1) STORED, UNIQUE KEY u (s))"
    )
    schema = schema_of(database)
    types = ["int", "json", "json", "timestamp", "int", "varchar", "year", "int"]
    assert [column.base_type for column in schema.columns] == types
    assert [column.nullable for column in schema.columns[:4]] == [False, False, True, False]
    assert schema.column("g").generated == "stored"
    assert schema.column("s").collation == "utf8mb4_bin"
    assert schema.handle_key() == ("id",)
