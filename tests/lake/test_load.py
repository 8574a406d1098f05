"""Tables loaded from a dump or a database at T, then followed: equal to the source ever after."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.changefeed.test_replay import STOPPED, Source
from tests.lake.test_mirror import PARTITIONS
from tests.model_check.golden_feeds import golden_feed
from tests.support import corpus, dumps, killed_load
from tests.support.lake import contents, expected, fill, new_lake
from tests.support.table_model import model_of
from tests.support.tidb_proxy import Refusal, tidb_proxy
from tests.support.upstream_tables import UNKNOWN, capture, put
from tidegate.lake import Lake
from tidegate.lake.apply.plan.tables import State
from tidegate.lake.formats.base import LOADING_DATABASE, LakePlace
from tidegate.lake.job.mirror import Mirror
from tidegate.lake.job.run import MirrorRun
from tidegate.lake.job.settings import LakeSettings
from tidegate.lake.job.source import open_feed
from tidegate.lake.load import staging
from tidegate.lake.load.job import LoadRequest
from tidegate.lake.load.loader import Loader, LoadTarget
from tidegate.lake.load.plans import LoadPlans
from tidegate.lake.load.sources import DatabaseSource, DumpSource
from tidegate.lake.load.start import FeedStartsLater, KnownStart
from tidegate.lake.load.state import last_before
from tidegate.lake.routes import Routes
from tidegate.model.types import MySQLType
from tidegate.upstream.detection import open_database
from tidegate.upstream.dump import Dump
from tidegate.upstream.errors import SnapshotLost
from tidegate.upstream.server import DatabaseServer
from tidegate.upstream.tidb import TiDB
from tidegate.wire import CAPTURE_SCHEMA, write_capture
from tidegate.workload import workload

ALL = bool(os.environ.get("TIDEGATE_ALL"))
INSTANTS = {"bank_mid": 470492981111816192, "ddl_mid": 470492980264828928}
CASES = [
    ("bank_mid.csv", "bank.open.b16.stream", "iceberg"),
    ("ddl_mid.sql.zstd.chunks", "ddl.simple.json.stream", "iceberg"),
    ("bank_mid.parquet", "bank.canal.ext.stream", "delta"),
]
if ALL:
    CASES = [
        (dump, each.name, "iceberg")
        for dump in dumps.variants()
        for each in corpus.variants()
        if dump.partition(".")[0] in INSTANTS
        and each.stream
        and each.generation == "classic"
        and f"{each.scenario}_mid" == dump.partition(".")[0]
    ]


def dump_of(variant, folder):
    options = replace(dumps.options_of(variant), snapshot=INSTANTS[variant.partition(".")[0]])
    return Dump.open(dumps.unpacked(variant, folder), options=options)


def loaded(lake, source, **target):
    return Loader(lake, source, LoadTarget({}, **target)).run()


@pytest.mark.parametrize(("dump", "stream", "table_format"), CASES)
def test_a_dump_and_what_the_feed_sent_since_are_the_sources_tables(
    spark, tmp_path, dump, stream, table_format
):
    (tmp_path / "dump").mkdir()
    source = DumpSource(dump_of(dump, tmp_path / "dump"), target_bytes=4096)
    variant, feed = corpus.variant(stream), golden_feed(stream)
    lake = new_lake(spark, tmp_path / "lake", table_format)
    ts, watermarks = INSTANTS[dump.partition(".")[0]], feed.watermark is not None
    state = loaded(lake, source, watermarks=watermarks)
    assert state.applied_ts == (ts if watermarks else last_before(ts))
    check(lake, variant, ts)
    fill(lake, feed.decode(feed.messages))
    mirror = Mirror(lake)
    while mirror.step(PARTITIONS):
        pass
    assert all(not table.missing for table in mirror.state.tables.values())
    if watermarks:
        assert mirror.state.applied_ts == feed.watermark
        check(lake, variant, ts)
    check(lake, variant, feed.watermark or 2**63 - 1)


def check(lake, variant, at):
    """The tables at an instant are those of the source."""
    without = [MySQLType.FLOAT] if variant.protocol == "craft" else []
    truth = expected(Source(variant.truth).at(at), without=without)
    stopped = STOPPED if variant.scenario == "ddl" else set()
    actual = contents(lake, at, without=without)
    assert set(actual) - stopped == set(truth) - stopped
    for name in set(actual) - stopped:
        assert actual[name] == truth[name], name


# --- from a database ------------------------------------------------------------------------------


def middle_of(source, kind):
    """The commit_ts in the middle of all changes of a kind."""
    instants = sorted(
        ts
        for batch in source.batches()
        for ts in batch.filter(pc.equal(batch["kind"], kind))["commit_ts"].to_pylist()
    )
    return instants[len(instants) // 2]


def source_of(maria, ts=None, **more):
    database = open_database(DatabaseServer.parse(maria.uri, "load.source"))
    return DatabaseSource(database, ts, **more)


RULES = ("bank.*", "shop.*", f"!shop.{UNKNOWN}")


def run_of(spark, folder, feed, request, **settings):
    settings = {"folder": str(folder / "lake"), "source": str(feed), "include": RULES, **settings}
    chosen = LakeSettings(**settings)
    lake = Lake.create(spark, chosen.place, chosen.format)
    return MirrorRun(lake, open_feed(spark, chosen), chosen.mirror(), load=request)


def truth_at(source, ts):
    """The workload's tables as the lake is to hold them."""
    tables = expected(model_of(source.at(ts)))
    return {name: rows for name, rows in tables.items() if name[1] != UNKNOWN}


def assert_workload(lake, source, ts):
    truth = truth_at(source, ts)
    actual = contents(lake, ts)
    assert actual.keys() == truth.keys(), ts
    for table, rows in truth.items():
        assert actual[table] == rows, (ts, table)


@pytest.mark.parametrize("name", ["bank", "orders"])
def test_a_database_is_loaded_at_t_and_followed_by_feeds_that_start_before_it_or_at_it(
    spark, tmp_path, maria, name
):
    source = workload(name, rows=900, seed=3, rate=100)
    ts = middle_of(source, {"bank": "insert", "orders": "ddl"}[name])
    put(maria, source, ts)
    for place, start in (("before", 0), ("at", ts)):
        folder = tmp_path / place
        folder.mkdir()
        watermark = capture(folder / "feed.parquet", source, start)
        known = KnownStart(start) if start else None
        request = LoadRequest(source_of(maria, ts, target_bytes=4096), known)
        run = run_of(spark, folder, folder / "feed.parquet", request)
        run.once()
        lake = run.lake
        assert run.progress.load.rows == sum(map(len, truth_at(source, ts).values()))
        state = lake.snapshots.state()
        assert state.applied_ts == watermark
        assert {state.state_of(table) for table in state.tables.values()} == {State.MIRRORED}
        for instant, _ in lake.snapshots.instants():
            assert_workload(lake, source, instant)
        assert lake.snapshots.instants()[0][0] == ts


def test_a_feed_that_starts_after_the_load_is_refused(spark, tmp_path, maria):
    source = workload("bank", rows=900, seed=3, rate=100)
    ts = middle_of(source, "insert")
    put(maria, source, ts)
    capture(tmp_path / "feed.parquet", source, ts + (1 << 18))
    request = LoadRequest(source_of(maria, ts))
    run = run_of(spark, tmp_path, tmp_path / "feed.parquet", request)
    with pytest.raises(FeedStartsLater, match=r"first watermark .* after the instant"):
        run.once()
    assert run.lake.snapshots.state() is None
    run = MirrorRun(
        run.lake, run.feed, run.settings, load=replace(request, start=KnownStart(ts + 1))
    )
    with pytest.raises(FeedStartsLater, match=f"--start-ts={ts}"):
        run.once()


# --- cut off --------------------------------------------------------------------------------------


class Cut(Exception):
    """A load ends here."""


def cut_at(name, nth):
    passed = 0

    def boundary(each):
        nonlocal passed
        passed += each == name
        if passed >= nth:  # nothing is done after it, in no thread
            raise Cut(name)

    return boundary


PLACES = [
    *[("load planned", 1), ("loaded table", 1), ("loaded part", 1), ("loaded part", 1)],
    *[("loaded name", 1), ("load published", 1)],
]


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_load_that_is_cut_off_continues_with_what_is_missing(
    monkeypatch, spark, tmp_path, table_format
):
    monkeypatch.setattr(staging, "PARTS_A_TASK", 1)
    (tmp_path / "dump").mkdir()
    source = DumpSource(dump_of("bank_mid.sql.zstd.chunks", tmp_path / "dump"))
    lake = new_lake(spark, tmp_path / "lake", table_format)
    plans = set()
    for name, nth in PLACES:
        with pytest.raises(Cut):
            Loader(lake, source, LoadTarget({}, threads=1), boundary=cut_at(name, nth)).run()
        assert lake.snapshots.state() is None
        plans.add(LoadPlans(lake.tables).last().id)
    loader = Loader(lake, source, LoadTarget({}, threads=1), boundary=cut_at("load recorded", 1))
    with pytest.raises(Cut):
        loader.run()
    assert len(plans) == 1
    assert loader.progress.rows == 0  # all parts were there
    check(lake, corpus.variant("bank.open.b16.stream"), INSTANTS["bank_mid"])
    assert not [each for each in lake.tables.locate() if LOADING_DATABASE in each.identifier]


def test_a_load_whose_instant_is_lost_begins_again_and_leaves_nothing_behind(
    spark, tmp_path, maria
):
    source = workload("bank", rows=300, seed=3, rate=100)
    first, second = middle_of(source, "insert"), middle_of(source, "watermark") + (5000 << 18)
    put(maria, source, first)
    lake = new_lake(spark, tmp_path / "lake")
    target = LoadTarget({}, routes=Routes(RULES))

    class Losing(DatabaseSource):
        """The first instant is lost after some parts; the second is that of the end."""

        taken = 0

        def take_ts(self, *, whole_milliseconds=False):
            Losing.taken += 1
            return first if Losing.taken == 1 else second

    parts = 0

    def boundary(name):
        nonlocal parts
        parts += name == "loaded name"
        if parts == 1 and Losing.taken == 1:
            put(maria, source, second)
            raise SnapshotLost("the database", "its rows are gone", "Start again")

    loader = Loader(lake, Losing(source_of(maria).database), target, boundary=boundary)
    assert loader.run().applied_ts == second
    assert (Losing.taken, loader.progress.attempt) == (2, 2)
    assert_workload(lake, source, second)
    assert len(lake.tables.locate()) == len(truth_at(source, second))


def test_a_load_that_is_killed_continues_at_the_same_instant(spark, tmp_path):
    (tmp_path / "dump").mkdir()
    dumps.unpacked("bank_mid.sql.zstd.chunks", tmp_path / "dump")
    variant, ts = corpus.variant("bank.open.b16.stream"), INSTANTS["bank_mid"]
    messages = [message._asdict() for message in corpus.messages(variant.name)]
    write_capture(tmp_path / "feed.parquet", [pa.RecordBatch.from_pylist(messages, CAPTURE_SCHEMA)])
    given = tmp_path / "lake", tmp_path / "feed.parquet", str(tmp_path / "dump"), ts
    for name, nth in [("loaded part", 2), ("loaded name", 1), ("load published", 1)]:
        assert killed_load.run(*given, name, nth) == -signal.SIGKILL, name
    assert killed_load.run(*given) == 0
    lake = Lake(spark, LakePlace(str(tmp_path / "lake"), name=killed_load.NAME))
    mirror = Mirror(lake)
    assert mirror.state.applied_ts == golden_feed(variant.name).watermark
    for instant, _ in lake.snapshots.instants():
        check(lake, variant, instant)


# --- from TiDB ------------------------------------------------------------------------------------


class PlayedTidb:
    """TiDB in front of MariaDB, whose present is `now`; instants in `lost` cannot be read."""

    def __init__(self, proxy, now):
        self.now, self.lost, self.reads = now, set(), []
        self.database = TiDB(proxy.server)
        self._read = now
        proxy.answer(r"SET SESSION tidb_.*", [])
        proxy.answer(r"SET SESSION tidb_snapshot = '(\d+)'", self._snapshot)
        proxy.answer("SHOW MASTER STATUS", lambda _: [("tidb-binlog", str(self._read), "", "", "")])
        proxy.answer("SELECT @@global.*", [("10m0s", "86400")])
        proxy.answer(r"SELECT VARIABLE_VALUE FROM mysql.tidb .*", [])
        proxy.answer(
            r"(.*) TABLESAMPLE REGIONS\(\)(.*)", lambda match: f"{match[1]}{match[2]} LIMIT 3"
        )

    def _snapshot(self, match):
        ts = int(match[1])
        self.reads.append(ts)
        if ts in self.lost:
            return Refusal(8055, "snapshot is older than GC safe point")
        self._read = ts
        return []

    def lose(self, new):
        """The instant that is being read is lost, and time goes on."""
        self.lost.add(self._read)
        self.now = self._read = new


def test_a_snapshot_that_is_lost_in_a_task_is_noticed_and_the_load_begins_again(
    monkeypatch, spark, tmp_path, maria
):
    source = workload("bank", rows=300, seed=3, rate=100)
    first, second = middle_of(source, "insert"), middle_of(source, "watermark") + (5000 << 18)
    put(maria, source, first)
    lake = new_lake(spark, tmp_path / "lake")
    with tidb_proxy(maria.port) as proxy:
        tidb = PlayedTidb(proxy, first)

        def boundary(name):
            if name == "loaded part" and tidb.now == first:
                put(maria, source, second)
                tidb.lose(second)

        target = LoadTarget({}, routes=Routes(RULES), threads=1)
        loader = Loader(
            lake, DatabaseSource(tidb.database, target_bytes=1), target, boundary=boundary
        )
        monkeypatch.setattr(staging, "PARTS_A_TASK", 0)
        assert loader.run().applied_ts == second
    assert loader.progress.attempt == 2
    assert set(tidb.reads) == {first, second}
    assert loader.progress.holds_seconds is not None
    assert_workload(lake, source, second)
    assert len(lake.tables.locate()) == len(truth_at(source, second))
