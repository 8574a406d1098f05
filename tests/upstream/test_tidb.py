"""What is sent to TiDB, word for word, and what is made of its answers.

A proxy in front of MariaDB plays TiDB: it answers what only TiDB knows as a real one was seen to.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest

from tests.support.mariadb import PASSWORD, USER
from tests.support.tidb_proxy import Refusal
from tidegate.changefeed.config.filter import TableFilter
from tidegate.changefeed.config.settings import Secret
from tidegate.model import tso_from_datetime
from tidegate.sql.tables import Name, TableBook
from tidegate.upstream.chunks import Chunk, chunks_of
from tidegate.upstream.database import GarbageCollection, ReadOptions
from tidegate.upstream.detection import open_database
from tidegate.upstream.errors import (
    AccessDenied,
    DatabaseError,
    DatabaseUnreachable,
    NoSuchTable,
    SnapshotLost,
)
from tidegate.upstream.mysql import MySQL
from tidegate.upstream.reading import ChunkReader
from tidegate.upstream.server import DatabaseServer
from tidegate.upstream.tidb import ROW_ID, TiDB
from tidegate.verify.database import connect as verified

T = 470_000_000_000_000_123
INIT = "SET time_zone = '+00:00', sql_mode = ''"
OLD = Refusal(8055, "snapshot is older than GC safe point 2026-11-17 10:10:44 +0000 UTC")


@pytest.fixture
def tidb(proxy):
    """TiDB at T, whose tables are MariaDB's."""
    proxy.answer(r"SET SESSION tidb_.*|SET RESOURCE GROUP .*", [])
    proxy.answer("SHOW MASTER STATUS", [("tidb-binlog", str(T), "", "", "")])
    proxy.answer(r"SHOW VARIABLES LIKE 'tidb_snapshot'", [("tidb_snapshot", "")])
    proxy.answer(
        r"(SELECT _tidb_rowid FROM) .*",
        Refusal(1054, "Unknown column '_tidb_rowid' in 'field list'"),
    )
    return TiDB(proxy.server)


def sent(proxy):
    """What it was asked, but for what PyMySQL itself asks."""
    own = ("SET NAMES", "SET AUTOCOMMIT", INIT)
    return [each for each in proxy.statements if not each.startswith(own)]


def test_the_kind_of_server_is_found_out(proxy, tidb):
    assert open_database(proxy.server) == tidb
    proxy.answers.clear()
    options = ReadOptions(low_priority=True)
    assert open_database(proxy.server, options) == MySQL(proxy.server, options)


def test_a_session_at_a_tso(proxy, tidb):
    with tidb.session(T) as session:
        assert session.is_open
    assert INIT in proxy.statements
    assert sent(proxy) == [
        f"SET SESSION tidb_snapshot = '{T}'",
        "SET SESSION tidb_enable_paging = ON",
        "SHOW MASTER STATUS",
    ]


def test_a_session_in_a_resource_group(proxy):
    proxy.answer(r"SET .*", [])
    with TiDB(proxy.server, ReadOptions(resource_group="slow`")).session():
        pass
    assert sent(proxy)[-1] == "SET RESOURCE GROUP `slow```"


def test_the_tso_is_taken_from_a_session_without_a_snapshot(proxy, tidb):
    assert tidb.take_ts() == T
    assert sent(proxy) == ["SHOW MASTER STATUS"]


def test_a_user_that_may_not_ask_for_the_status_takes_the_tso_of_a_transaction(proxy, tidb):
    proxy.answer("SHOW MASTER STATUS", Refusal(1227, "Access denied; you need REPLICATION CLIENT"))
    proxy.answer("BEGIN", [])
    proxy.answer("SELECT @@tidb_current_ts", [(str(T + 1),)])
    assert tidb.take_ts() == T + 1
    with tidb.session(T) as session:
        assert session.is_open


def test_a_snapshot_that_is_too_old_ends_the_session(proxy, tidb):
    proxy.answer(r"SET SESSION tidb_snapshot.*", OLD)
    with pytest.raises(SnapshotLost, match=r"older than GC safe point.*tidb_gc_life_time = '72h'"):
        tidb.session(T)
    assert sent(proxy) == [f"SET SESSION tidb_snapshot = '{T}'"]  # and nothing after it


def test_a_comparison_with_a_past_that_is_gone_says_so(proxy, tidb):
    proxy.answer(r"SET @@tidb_snapshot = .*", OLD)
    uri = f"mysql://{USER}:{quote(PASSWORD, safe='')}@{proxy.server.address}/"
    with pytest.raises(SnapshotLost, match="tidb_gc_life_time"):
        verified(uri, ts=T)


def test_rows_that_are_collected_while_they_are_read(maria, proxy, tidb):
    maria.run("CREATE TABLE d.t (id INT PRIMARY KEY)")
    pauses = []
    with tidb.session(T) as session, ChunkReader(tidb, T, pause=pauses.append) as reader:
        schema = table_of(tidb, session).schema
        proxy.answer(r"SELECT `id` FROM .*", Refusal(9006, "GC life time is shorter"))
        with pytest.raises(SnapshotLost, match="GC life time is shorter"):
            list(reader.read(Chunk(database="d", table="t", key=("id",)), schema))
    assert pauses == []  # it is not tried again


def test_a_session_that_reads_at_another_instant_is_not_believed(proxy, tidb):
    proxy.answer("SHOW MASTER STATUS", [("tidb-binlog", str(T + 5), "", "", "")])
    with pytest.raises(SnapshotLost, match=f"set to {T} reads at {T + 5}"):
        tidb.session(T)


# --- tables ---------------------------------------------------------------------------------------


def table_of(database, session, name="t"):
    (table,) = database.tables(session, TableFilter.parse([f"d.{name}"])).tables
    return table


def test_regions_are_bounds(maria, proxy, tidb):
    maria.run(
        "CREATE TABLE d.t (id INT PRIMARY KEY, v INT)",
        "INSERT INTO d.t SELECT seq, seq FROM d.seq_1_to_100",
    )
    asked = []

    def sampled(match):
        asked.append(match[0])
        return f"SELECT id FROM d.t {match[1]} WHERE id % 25 = 1 ORDER BY id"

    proxy.answer(r"SELECT `id` FROM `d`.`t`(.*) TABLESAMPLE REGIONS\(\) ORDER BY `id`", sampled)
    with tidb.session(T) as session:
        table = table_of(tidb, session)
        chunks = list(chunks_of(tidb, session, table, 1))
    assert asked == ["SELECT `id` FROM `d`.`t` TABLESAMPLE REGIONS() ORDER BY `id`"]
    assert "SELECT _tidb_rowid FROM `d`.`t` LIMIT 1" in proxy.statements
    assert [(chunk.lower, chunk.upper) for chunk in chunks] == [
        (None, ("26",)),
        (("26",), ("51",)),
        (("51",), ("76",)),
        (("76",), None),
    ]
    with ChunkReader(tidb, T) as reader:
        rows = [batch for chunk in chunks for batch in reader.read(chunk, table.schema)]
    assert sum(batch.num_rows for batch in rows) == 100
    select = "SELECT `id`, `v` FROM `d`.`t` WHERE `id` >= 26 AND `id` < 51 ORDER BY `id`"
    assert select in proxy.statements


def test_low_priority(maria, proxy, tidb):
    maria.run("CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1)")
    gentle = TiDB(proxy.server, ReadOptions(low_priority=True))
    proxy.answer(r"SELECT LOW_PRIORITY (.*)", lambda match: f"SELECT {match[1]}")
    with gentle.session(T) as session, ChunkReader(gentle, T) as reader:
        schema = table_of(gentle, session).schema
        (batch,) = reader.read(Chunk(database="d", table="t", key=("id",)), schema)
    assert batch.to_pylist() == [{"id": "1"}]
    assert "SELECT LOW_PRIORITY `id` FROM `d`.`t` ORDER BY `id`" in proxy.statements


@pytest.mark.parametrize(
    ("type", "regions", "bytes", "target", "bounds"),
    [
        ("INT", ["1", "5", "9"], 3, 1, ["5", "9"]),
        ("INT", ["1", "5", "9", "12", "15"], 5, 2, ["9", "15"]),
        ("INT", ["1", "5", "9"], 3, 100, []),
        ("INT", ["1", "5", "9"], 0, 128 << 20, ["5", "9"]),
        ("INT", ["1"], 1 << 40, 1, []),
        ("INT", [], 0, 1, []),
        # Of an unsigned key the large half is stored first: the small ones may show no bound.
        ("BIGINT UNSIGNED", ["7", "9", str(2**63)], 3, 1, ["7", "9", str(2**63)]),
        ("BIGINT UNSIGNED", [str(2**63)], 1, 1, [str(2**63)]),
    ],
)
def test_neighbouring_regions_are_joined(maria, proxy, tidb, type, regions, bytes, target, bounds):
    maria.run(f"CREATE TABLE d.t (id {type} PRIMARY KEY)")
    listed = " UNION ALL ".join(f"SELECT {value}" for value in regions) or "SELECT 1 LIMIT 0"
    proxy.answer(r".* TABLESAMPLE REGIONS\(\) .*", listed)
    proxy.answer(r"SELECT TABLE_SCHEMA, .*", [("d", "t", "10", str(bytes))])
    with tidb.session(T) as session:
        table = table_of(tidb, session)
        chunks = list(chunks_of(tidb, session, table, target))
    assert [chunk.upper for chunk in chunks] == [*((value,) for value in bounds), None]
    assert [chunk.lower for chunk in chunks] == [None, *((value,) for value in bounds)]


def test_partitions_are_sampled_one_by_one(maria, proxy, tidb):
    maria.run(
        "CREATE TABLE d.t (a INT, b VARCHAR(9) COLLATE utf8mb4_general_ci, PRIMARY KEY (a, b)) "
        "PARTITION BY HASH (a) PARTITIONS 2"
    )
    proxy.answer(r".* TABLESAMPLE .*", [("0", "x"), ("2", "it's")])
    with tidb.session(T) as session:
        table = table_of(tidb, session)
        chunks = list(chunks_of(tidb, session, table, 1))
    sampled = [each for each in proxy.statements if "TABLESAMPLE" in each]
    assert sampled == [
        f"SELECT `a`, `b` FROM `d`.`t` PARTITION (`p{part}`) TABLESAMPLE REGIONS() ORDER BY `a`, `b`"
        for part in range(2)
    ]
    assert [(chunk.number, chunk.partition, chunk.upper) for chunk in chunks] == [
        (0, "p0", ("2", "it's")),
        (1, "p0", None),
        (2, "p1", ("2", "it's")),
        (3, "p1", None),
    ]
    assert chunks[3].select(table.schema) == (
        "SELECT `a`, `b` FROM `d`.`t` PARTITION (`p1`) "
        "WHERE (`a` > 2 OR (`a` = 2 AND `b` >= 'it''s')) ORDER BY `a`, `b`"
    )


def test_a_table_without_a_clustered_key_is_cut_by_its_row_id(maria, proxy, tidb):
    maria.run(
        "CREATE TABLE d.t (a INT, `_tidb_rowid` BIGINT INVISIBLE AUTO_INCREMENT UNIQUE)",
        "INSERT INTO d.t (a) VALUES (7), (7), (8), (9)",
    )
    proxy.answer(r"SHOW CREATE TABLE .*", [("t", "CREATE TABLE `t` (\n  `a` int DEFAULT NULL\n)")])
    proxy.answer(r"SELECT _tidb_rowid FROM `d`.`t` LIMIT 1", [("1",)])
    proxy.answer(r"SELECT `_tidb_rowid` FROM .* TABLESAMPLE .*", [("1",), ("3",)])
    with tidb.session(T) as session, ChunkReader(tidb, T) as reader:
        table = table_of(tidb, session)
        assert tidb.handle(session, table.schema).columns == (ROW_ID,)
        chunks = list(chunks_of(tidb, session, table, 1))
        rows = [
            row
            for chunk in chunks
            for batch in reader.read(chunk, table.schema)
            for row in batch.to_pylist()
        ]
    assert chunks[0].select(table.schema) == (
        "SELECT `a`, `_tidb_rowid` FROM `d`.`t` WHERE `_tidb_rowid` < 3 ORDER BY `_tidb_rowid`"
    )
    assert rows == [{"a": "7"}, {"a": "7"}, {"a": "8"}, {"a": "9"}]


def test_other_errors_of_the_question_for_the_row_id_are_not_swallowed(maria, proxy, tidb):
    maria.run("CREATE TABLE d.t (id INT PRIMARY KEY)")
    proxy.answer(r"SELECT _tidb_rowid FROM .*", Refusal(1142, "SELECT command denied"))
    with tidb.session(T) as session:
        schema = table_of(tidb, session).schema
        with pytest.raises(AccessDenied):
            tidb.handle(session, schema)


SHOWN = """CREATE TABLE `t` (
  `id` bigint unsigned NOT NULL /*T![auto_rand] AUTO_RANDOM(5) */,
  `n` varchar(20) COLLATE utf8mb4_general_ci DEFAULT 'it''s',
  `b` varbinary(9) NOT NULL,
  `f` float DEFAULT NULL,
  `g` int GENERATED ALWAYS AS (`id` + 1) VIRTUAL,
  `at` timestamp(3) NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
  PRIMARY KEY (`id`) /*T![clustered_index] CLUSTERED */,
  UNIQUE KEY `u` (`b`),
  KEY `k` (`n`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"""
SENT = (
    "CREATE TABLE `d`.`t` (`id` BIGINT UNSIGNED NOT NULL AUTO_RANDOM(5) PRIMARY KEY,"
    "`n` VARCHAR(20) COLLATE utf8mb4_general_ci DEFAULT 'it''s',`b` VARBINARY(9) NOT NULL,"
    "`f` FLOAT,`g` INT GENERATED ALWAYS AS(`id`+1) VIRTUAL,"
    "`at` TIMESTAMP(3) NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),"
    "UNIQUE `u`(`b`),INDEX `k`(`n`))"
)


def test_a_schema_is_that_of_the_changefeeds_create_table(proxy, tidb):
    proxy.answer(r"SHOW CREATE TABLE `d`.`t`", [("t", SHOWN)])
    with tidb.session(T) as session:
        shown = tidb.schema(session, Name("d", "t"))
    book = TableBook()
    book.run("CREATE DATABASE `d`", "d")
    book.run(SENT, "d", "t")
    of_feed = book.get("d", "t")
    assert shown.columns == of_feed.columns
    assert set(shown.indexes) == set(of_feed.indexes)
    assert shown.handle_key() == of_feed.handle_key() == ("id",)
    assert (shown.charset, shown.collation) == (of_feed.charset, of_feed.collation)


def test_a_statement_that_cannot_be_followed_is_listed(maria, database):
    maria.run("CREATE TABLE d.t (id INT PRIMARY KEY, u UUID)")
    with database.session() as session:
        listing = database.tables(session, TableFilter.parse(["d.*"]))
    assert listing.tables == ()
    assert "uuid" in listing.unreadable[Name("d", "t")]


# --- garbage collection ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("life", "seconds"),
    [("10m0s", 600), ("72h0m0s", 259200), ("1h30m1.5s", 5401.5), ("500ms", 0.5)],
)
@pytest.mark.parametrize(
    ("safe", "instant"),
    [
        ("20261117-10:10:44.000 +0000", datetime(2026, 11, 17, 10, 10, 44, tzinfo=UTC)),
        ("20261117-18:10:44 +0800", datetime(2026, 11, 17, 10, 10, 44, tzinfo=UTC)),
    ],
)
def test_garbage_collection(proxy, tidb, life, seconds, safe, instant):
    proxy.answer(
        "SELECT @@global.tidb_gc_life_time, @@global.tidb_gc_max_wait_time", [(life, "86400")]
    )
    proxy.answer(
        "SELECT VARIABLE_VALUE FROM mysql.tidb WHERE VARIABLE_NAME = 'tikv_gc_safe_point'",
        [(safe,)],
    )
    assert tidb.garbage_collection() == GarbageCollection(
        timedelta(seconds=seconds), timedelta(days=1), tso_from_datetime(instant)
    )
    assert not any("tidb_snapshot" in each for each in proxy.statements)


def test_a_user_that_may_not_read_the_safe_point(proxy, tidb):
    proxy.answer("SELECT @@global.*", [("10m0s", "86400")])
    proxy.answer(r"SELECT VARIABLE_VALUE FROM mysql.tidb .*", Refusal(1142, "SELECT denied"))
    collection = tidb.garbage_collection()
    assert collection is not None
    assert collection.safe_point is None


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "step"),
    [
        (8055, SnapshotLost, "tidb_gc_life_time"),
        (9006, SnapshotLost, "tidb_gc_life_time"),
        (1044, AccessDenied, "GRANT SELECT"),
        (1045, AccessDenied, "user and password"),
        (1142, AccessDenied, "GRANT SELECT"),
        (1227, AccessDenied, "GRANT SELECT"),
        (1049, NoSuchTable, "table filter"),
        (1146, NoSuchTable, "table filter"),
        (9005, DatabaseUnreachable, "can be reached"),
        (1064, DatabaseError, "Correct the cause"),
    ],
)
def test_errors_are_sentences_with_a_next_step(proxy, tidb, code, kind, step):
    proxy.answer("SELECT 1", Refusal(code, "some words"))
    with tidb.session(T) as session, pytest.raises(kind, match=step) as caught:
        session.rows("SELECT 1")
    assert type(caught.value) is kind
    assert f"it says: some words ({code})" in str(caught.value)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (type(copied), str(copied), copied.code) == (kind, str(caught.value), code)
    if kind in (SnapshotLost, DatabaseUnreachable):
        assert not session.is_open


def test_a_statement_that_is_refused_leaves_the_session_usable(database):
    with database.session() as session:
        with pytest.raises(NoSuchTable):
            session.rows("SELECT 1 FROM d.missing")
        assert session.rows("SELECT 2") == [("2",)]


def test_a_server_that_is_not_there():
    with pytest.raises(DatabaseUnreachable, match="Check that the server runs"):
        TiDB(DatabaseServer("127.0.0.1", 1)).take_ts()


def test_tables_that_the_user_may_not_see(maria, database):
    maria.run(
        "CREATE TABLE d.seen (id INT)",
        "CREATE TABLE d.unseen (id INT)",
        "CREATE OR REPLACE USER 'reader'@'127.0.0.1' IDENTIFIED BY 'r'",
        "GRANT SELECT ON d.seen TO 'reader'@'127.0.0.1'",
    )
    reader = MySQL(replace(database.server, user="reader", password=Secret("r")))
    names = [Name("d", name) for name in ("seen", "unseen")]
    with reader.session() as session:
        listing = reader.tables(session, TableFilter.parse(["d.*"]))
        assert [table.name for table in listing.tables] == names[:1]
        hidden = reader.hidden(session, names)
    assert list(hidden) == names[1:]
    assert isinstance(hidden[names[1]], AccessDenied)
    with database.session() as session:
        missing = database.hidden(session, [Name("d", "gone")])
    assert isinstance(missing[Name("d", "gone")], NoSuchTable)
