"""Messages that were too large for Kafka: claim checks, and rows that carry only their key.

Rows are completed from a real MariaDB. TiDB's `tidb_snapshot` is played by its system-versioned
tables: the same questions, translated, answered from the past.
"""

import os
import sys
from base64 import b64encode
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from tests.changefeed.test_replay import Source, decoded
from tests.support import corpus, mariadb
from tests.support.decoding import offsets
from tests.support.lake import contents, expected, fill, in_chunks, new_lake
from tidegate.lake import MirrorRun, MirrorSettings
from tidegate.lake.apply.plan.row_planning import CLAIM_CHECK_NEEDED, UPSTREAM_NEEDED
from tidegate.lake.apply.plan.steps import Rows, Statement
from tidegate.lake.apply.plan.tables import Status
from tidegate.lake.apply.planner import Planner
from tidegate.lake.changelog.changelog import Group
from tidegate.lake.formats.base import Position
from tidegate.lake.job.mirror import Mirror
from tidegate.lake.job.settings import LakeSettings
from tidegate.lake.job.source import open_feed
from tidegate.lake.quarantine import BadMessages
from tidegate.model import Column, ConfigError, EventFlag, Flag, LakeError, TableSchema
from tidegate.model.sql import quoted
from tidegate.model.tso import tso_from_datetime
from tidegate.spark import changes
from tidegate.sql.ddl_names import DdlId
from tidegate.sql.tables import Name, TableBook
from tidegate.upstream.completion import Completion, _Failed, _Session, check_upstream
from tidegate.upstream.server import DatabaseServer
from tidegate.verify.database import read_tables
from tidegate.wire import CAPTURE_SCHEMA, write_capture

PARTITIONS = [("", 0)]
HANDLE_KEY_FEEDS = ["large.open.hk"]  # and one more below, of Canal-JSON
CLAIM_CHECK_FEEDS = ["large.canal.cc"]
if os.environ.get("TIDEGATE_ALL"):
    large = [each for each in corpus.variants() if each.scenario == "large"]
    HANDLE_KEY_FEEDS = [each.name for each in large if "hk" in each.options]
    CLAIM_CHECK_FEEDS = [each.name for each in large if "cc" in each.options]


def truth():
    return expected(Source("large").at(2**63))


# --- claim checks ---------------------------------------------------------------------------------


def capture_of(name, folder):
    """A golden feed as a capture, and the folder of its claim-check objects."""
    messages = corpus.messages(name)
    rows = [
        {
            "topic": "",
            "partition": each.partition,
            "offset": at,
            "key": each.key,
            "value": each.value,
        }
        for each, at in zip(messages, offsets(messages), strict=True)
    ]
    objects = folder / "objects"
    objects.mkdir()
    load = corpus.claim_check_loader(name)
    for location in filter(None, decoded(name)["claim_check"].to_pylist()):
        (objects / location.rpartition("/")[2]).write_bytes(load(location))
    capture = folder / "capture.parquet"
    write_capture(capture, [pa.RecordBatch.from_pylist(rows, schema=CAPTURE_SCHEMA)])
    return capture, objects


@pytest.mark.parametrize("name", CLAIM_CHECK_FEEDS)
def test_claim_checks_are_fetched_and_the_tables_are_whole(spark, tmp_path, name):
    variant = corpus.variant(name)
    capture, objects = capture_of(name, tmp_path)
    lake = new_lake(spark, tmp_path / "lake")
    uri = f"file://{capture}?partition-num=1"
    settings = LakeSettings(source=uri, compression=variant.compression, claim_check=str(objects))
    MirrorRun(lake, open_feed(spark, settings)).once()
    assert contents(lake) == truth()


def test_a_missing_object_is_a_bad_message_and_no_crash(spark, tmp_path):
    capture, objects = capture_of("large.canal.cc", tmp_path)
    lost = sorted(objects.iterdir())[0]
    lost.unlink()
    found = changes(spark, capture, claim_check=objects, batch=True)
    rows = found.toArrow().select(["kind", "offset", "error", "raw_value"]).to_pylist()
    (bad,) = [row for row in rows if row["kind"] == "error"]
    assert lost.name in bad["error"]["reason"]
    assert lost.name.encode() in bad["raw_value"]
    lake = new_lake(spark, tmp_path / "lake")
    fill(lake, found.toArrow())
    with pytest.raises(BadMessages, match="No such file"):
        Mirror(lake).step(PARTITIONS)


# --- without an upstream --------------------------------------------------------------------------

TABLE = TableSchema(
    database="d",
    table="t",
    columns=(Column.of_type("id", "int", flags=Flag.HANDLE_KEY), Column.of_type("v", "text")),
)


CREATE = DdlId(1, "d", "t", "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` TEXT)")
LAYOUTS = {(1, None): ("id", "v"), (2, None): ("id",)}


def group(shape, flag=0, kind="insert"):
    """Rows of the table: all of them (shape 1) or their keys (shape 2)."""
    return Group("d", "t", kind, shape, None, 1, False, False, 3, 7, 7, int(flag))


def planned(*groups, created=True, **settings):
    """The steps of rows, and what becomes of their table."""
    tables = {}
    schemas = {(1, None): TABLE, (2, None): replace(TABLE, columns=TABLE.columns[:1])}
    planner = Planner(tables, TableBook(), LAYOUTS, schemas, Position(100), **settings)
    statements = [Statement(CREATE, Position(1, 1))] if created else []
    steps = planner.plan(statements, [replace(each, segment=len(statements)) for each in groups])
    return [step for step in steps if isinstance(step, Rows)], tables["d", "t"]


@pytest.mark.parametrize(
    "flag, reason",
    [
        (EventFlag.HANDLE_KEY_ONLY, UPSTREAM_NEEDED),
        (EventFlag.CLAIM_CHECK, CLAIM_CHECK_NEEDED),
        (0, "Its rows lack the column 'v'."),
    ],
)
def test_without_an_upstream_the_table_stops_and_names_the_setting(flag, reason):
    steps, table = planned(group(1), group(2, flag))
    assert steps == []
    assert (table.status, table.reason) == (Status.STOPPED, reason)


def test_with_an_upstream_rows_are_to_be_completed_if_they_have_only_the_key():
    (step,), _ = planned(group(1), group(2, EventFlag.HANDLE_KEY_ONLY), completes=True)
    assert step.incomplete
    whole = [group(1, EventFlag.CLAIM_CHECK), group(2, EventFlag.HANDLE_KEY_ONLY, "delete")]
    (step,), _ = planned(*whole, completes=True)
    assert not step.incomplete


def test_rows_that_lack_columns_for_no_reason_are_not_completed():
    steps, table = planned(group(2), completes=True)
    assert steps == []
    assert table.status is Status.STOPPED


def test_a_table_of_which_only_keys_are_known_is_not_made_up():
    keys = group(2, EventFlag.HANDLE_KEY_ONLY)
    steps, table = planned(keys, created=False, completes=True)
    assert steps == []
    assert "columns are not known" in table.reason
    (step,), table = planned(keys, group(1), created=False, completes=True)
    assert step.incomplete
    assert table.schema == TABLE


# --- how an upstream is named ---------------------------------------------------------------------


def test_the_password_is_never_shown():
    server = DatabaseServer.parse("mysql://me:s3cr%40t@db.example:4001/?ssl-ca=/ca.pem", "upstream")
    assert (server.user, server.address) == ("me", "db.example:4001")
    assert server.password.reveal() == "s3cr@t"
    assert server.tls == (("ssl_ca", "/ca.pem"),)
    settings = LakeSettings.parse("[feed]\nupstream = 'mysql://me:s3cr%40t@db.example:4001/'")
    assert settings.mirror().upstream == replace(server, tls=())
    for shown in (server, MirrorSettings(upstream=server), settings):
        assert "s3cr" not in f"{shown} {shown!r}"


@pytest.mark.parametrize(
    "uri",
    [
        "s3cret",
        "http://me:s3cret@host/",
        "mysql://me:s3cret/x@host:1/",
        "mysql://me:s3cret@host/?a=1",
    ],
)
def test_a_wrong_uri_is_told_without_showing_it(uri):
    with pytest.raises(ConfigError) as caught:
        DatabaseServer.parse(uri, "upstream")
    assert "upstream" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_without_the_driver_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(ConfigError, match=r"pip install 'tidegate\[mysql\]'"):
        check_upstream(DatabaseServer("localhost"))


# --- a real database ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def database():
    try:
        mariadb.program()
    except mariadb.MissingServer as missing:
        pytest.skip(str(missing))
    with mariadb.server() as running:
        yield running


def load(database):
    """The statements of the golden feed."""
    database.run("DROP DATABASE IF EXISTS l")
    connection = database.connect()
    try:
        with connection.cursor() as cursor:
            for statement in corpus.statements("large").split(";\n"):
                if statement.strip():
                    cursor.execute(statement)
    finally:
        connection.close()


def upstream_of(database):
    return DatabaseServer.parse(database.uri, "upstream")


@pytest.mark.parametrize("name", HANDLE_KEY_FEEDS)
def test_rows_with_only_a_key_are_completed(spark, tmp_path, database, name):
    load(database)
    lake = new_lake(spark, tmp_path)
    mirror = Mirror(lake, settings=MirrorSettings(upstream=upstream_of(database)))
    events = decoded(name)
    for part in in_chunks(events, 2):
        fill(lake, part)
        while mirror.step(PARTITIONS):
            pass
    assert mirror.state.applied_ts == mirror.gate.resolved_ts
    assert mirror.stopped() == []
    assert contents(lake) == truth()
    # Compressed, the rows of a table may all be small enough to come whole.
    by_key = [
        (row["database"], row["table"])
        for row in events.select(["database", "table", "kind", "flags"]).to_pylist()
        if row["flags"] & EventFlag.HANDLE_KEY_ONLY and row["kind"] != "delete"
    ]
    assert by_key
    recorded = lake.snapshots.state()
    assert {name for name, table in recorded.tables.items() if table.eventual} == set(by_key)


def test_an_upstream_that_fails_stops_the_step_which_is_done_again(spark, tmp_path, database):
    database.run("DROP DATABASE IF EXISTS l")
    lake = new_lake(spark, tmp_path)
    fill(lake, decoded("large.canal.hk"))
    settings = MirrorSettings(upstream=upstream_of(database))
    with pytest.raises(LakeError, match=r"rows of l\.t and said: .*\(1146\)") as caught:
        Mirror(lake, settings=settings).step(PARTITIONS)
    assert mariadb.PASSWORD not in str(caught.value)
    load(database)
    mirror = Mirror(lake, settings=settings)
    while mirror.step(PARTITIONS):
        pass
    assert contents(lake) == truth()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"user": "nobody"}, r"Access denied.*Check user and password"),
        ({"port": 1}, r"refused.*nothing is lost"),
    ],
)
def test_an_upstream_that_does_not_answer_is_told(monkeypatch, database, change, message):
    monkeypatch.setattr("tidegate.upstream.completion.ATTEMPTS", 2)
    with pytest.raises(LakeError, match=message) as caught:
        check_upstream(replace(upstream_of(database), **change))
    assert mariadb.PASSWORD not in str(caught.value)


COLUMNS = {
    "at": "timestamp(3)",
    "e": "enum('a','b')",
    "f": "float",
    "d": "decimal(20,4)",
    "g": "double",
    "s": "set(" + ",".join(f"'m{number}'" for number in range(64)) + ")",
    "bits": "bit(64)",
    "y": "year",
    "z": "int(8) unsigned zerofill",
    "u": "bigint unsigned",
    "bin": "varbinary(20)",
    "blob": "longblob",
    "latin": "varchar(20) charset latin1",
    "%s`": "text",
    "dt": "datetime(6)",
    "day": "date",
    "tm": "time(2)",
    "j": "json",
}
KEY = ("at", "e", "f", "bin", "d")
BIG = 2**64 - 1
ROWS = [
    [
        *(
            "2026-07-01 12:00:00.250",
            2,
            0.1,
            "-1.5000",
            "1.7976931348623157e308",
            BIG,
            BIG,
            0,
            7,
            BIG,
        ),
        *(b"\xff\x00'%s", b"\n" * 100, "né", "%s \\ ' ü𝄞\n", "2026-01-02 03:04:05.000006"),
        *("2026-01-02", "-838:00:00.50", '{"a":1}'),
    ],
    [
        *("2026-01-01 12:00:00.000", 1, 16777216, "0.0000", "123456789.12345679", 5, 1, 2026, 0, 0),
        *(b"", *[None] * 7),
    ],
]
TEXTS = [
    [
        *("2026-07-01 12:00:00.250", "2", "0.1", "-1.5000"),
        *("17976931348623157" + "0" * 292, str(BIG), str(BIG), "0", "7", str(BIG), "/wAnJXM="),
        *(b64encode(b"\n" * 100).decode(), "né", "%s \\ ' ü𝄞\n", "2026-01-02 03:04:05.000006"),
        *("2026-01-02", "-838:00:00.50", '{"a":1}'),
    ],
    [
        *("2026-01-01 12:00:00.000", "1", "16777216", "0.0000", "123456789.12345679", "5", "1"),
        *("2026", "0", "0", "", *[None] * 7),
    ],
]


def test_values_have_the_texts_of_the_feed_and_keys_find_their_rows(database):
    """Keys of every kind, with times in the zone of the feed, two hours ahead in summer."""
    listed = ", ".join(f"{quoted(name)} {kind} NULL" for name, kind in COLUMNS.items())
    key = ", ".join(map(quoted, KEY))
    database.run("DROP DATABASE IF EXISTS d", "CREATE DATABASE d")
    database.run(f"CREATE TABLE d.`%s` ({listed}, UNIQUE KEY ({key}))")
    connection = database.connect(init_command="SET time_zone = '+00:00'")
    with connection.cursor() as cursor:
        for row in ROWS:
            cursor.execute(f"INSERT INTO d.`%%s` VALUES ({', '.join(['%s'] * len(row))})", row)
    connection.close()
    columns = tuple(Column.of_type(name, kind) for name, kind in COLUMNS.items())
    places = [list(COLUMNS).index(name) for name in KEY]
    keys = [tuple(row[place] for place in places) for row in TEXTS]
    keys[0] = ("2026-07-01 14:00:00.250", *keys[0][1:])
    keys[1] = ("2026-01-01 13:00:00.000", *keys[1][1:])
    gone = (*keys[1][:1], "2", *keys[1][2:])
    completion = Completion(
        upstream_of(database), Name("d", "%s"), columns, KEY, zone="Europe/Berlin"
    )
    with _Session(upstream_of(database)) as session:
        assert not session.has_snapshots
        (found,) = completion.found(session, [(1, key) for key in [*keys, gone]])
    assert found == {keys[0]: TEXTS[0], keys[1]: TEXTS[1], gone: None}
    schema = TableSchema(database="d", table="%s", columns=columns)
    table = read_tables(database.uri, {Name("d", "%s"): schema}, "UTC")[Name("d", "%s")]
    assert sorted(table.rows) == sorted(map(tuple, TEXTS))


# --- the past -------------------------------------------------------------------------------------


class Past(DatabaseServer):
    """MariaDB in the part of TiDB: `tidb_snapshot` is an instant of system-versioned tables."""

    __slots__ = ()

    def connect(self, **settings):
        import pymysql

        class Cursor(pymysql.cursors.Cursor):
            def execute(self, query, args=None):
                if query == "SHOW VARIABLES LIKE 'tidb_snapshot'":
                    return super().execute("SELECT 'tidb_snapshot', ''")
                if query.startswith("SET @@tidb_snapshot = '"):
                    instant = _instant(int(query.split("'")[1]))
                    if instant.year < 2020:
                        said = "snapshot is older than GC safe point 2020-01-01 00:00:00 +0000 UTC"
                        raise pymysql.err.OperationalError(8055, said)
                    return super().execute(f"SET @@system_versioning_asof = '{instant}'")
                return super().execute(query, args)

        return super().connect(cursorclass=Cursor, **settings)


def _instant(ts):
    return datetime.fromtimestamp((ts >> 18) / 1000, UTC).replace(tzinfo=None)


def _ts(day):
    return tso_from_datetime(datetime(2026, 1, day, tzinfo=UTC))


@pytest.fixture
def past(database):
    instant = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    database.run(
        "DROP DATABASE IF EXISTS p",
        "CREATE DATABASE p",
        "CREATE TABLE p.t (id INT PRIMARY KEY, v TEXT) WITH SYSTEM VERSIONING",
        f"SET @@timestamp = {instant + 86400}",
        "INSERT INTO p.t VALUES (1, 'second'), (2, 'second')",
        f"SET @@timestamp = {instant + 2 * 86400}",
        "UPDATE p.t SET v = 'third' WHERE id = 1",
        f"SET @@timestamp = {instant + 3 * 86400}",
        "DELETE FROM p.t",
    )
    server = upstream_of(database)
    return Past(server.host, server.port, server.user, server.password)


def completion_of(server):
    columns = (Column.of_type("id", "int"), Column.of_type("v", "text"))
    return Completion(server, Name("p", "t"), columns, ("id",))


def test_rows_are_read_as_of_their_own_commit(past):
    with _Session(past) as session:
        wanted = [(_ts(2), ("2",)), (_ts(2), ("1",)), (_ts(3), ("1",))]
        found = list(completion_of(past).found(session, wanted))
    assert found == [
        {("2",): ["2", "second"], ("1",): ["1", "second"]},
        {("1",): ["1", "third"]},
    ]


def test_a_lost_connection_is_made_again_at_the_same_instant(past):
    with _Session(past) as session:
        completion = completion_of(past)
        list(completion.found(session, [(_ts(2), ("1",))]))
        session._connection._force_close()
        assert list(completion.found(session, [(_ts(2), ("1",))])) == [{("1",): ["1", "second"]}]


@pytest.mark.parametrize(
    "ts, message",
    [
        (_ts(5), "no such row of p.t at"),
        (tso_from_datetime(datetime(2019, 1, 1, tzinfo=UTC)), "raise that"),
    ],
)
def test_a_past_that_is_not_there_is_an_error_that_says_what_to_do(past, ts, message):
    with _Session(past) as session, pytest.raises(_Failed) as caught:
        list(completion_of(past).found(session, [(ts, ("1",))]))
    assert message in f"{caught.value.reason}. {caught.value.step}."
