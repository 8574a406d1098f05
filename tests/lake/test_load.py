"""Tables loaded from a dump or a database at T, then followed: equal to the source ever after."""

from __future__ import annotations

import os
from dataclasses import replace

import pyarrow.compute as pc
import pytest

from tests.changefeed.test_replay import STOPPED, Source
from tests.lake.test_mirror import PARTITIONS
from tests.model_check.golden_feeds import golden_feed
from tests.support import corpus, dumps, mariadb
from tests.support.lake import contents, expected, fill, new_lake
from tests.support.table_model import model_of
from tests.support.upstream_tables import UNKNOWN, capture, put
from tidegate.lake import Lake
from tidegate.lake.apply.plan.tables import State
from tidegate.lake.job.mirror import Mirror
from tidegate.lake.job.run import MirrorRun
from tidegate.lake.job.settings import LakeSettings
from tidegate.lake.job.source import open_feed
from tidegate.lake.load.job import LoadRequest
from tidegate.lake.load.loader import Loader, LoadTarget
from tidegate.lake.load.sources import DatabaseSource, DumpSource
from tidegate.lake.load.start import FeedStartsLater, KnownStart
from tidegate.model.types import MySQLType
from tidegate.upstream.detection import open_database
from tidegate.upstream.dump import Dump
from tidegate.upstream.server import DatabaseServer
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
    state = loaded(lake, source)
    assert state.applied_ts == INSTANTS[dump.partition(".")[0]]
    check(lake, Mirror(lake), variant, state.applied_ts)
    fill(lake, feed.decode(feed.messages))
    mirror = Mirror(lake)
    while mirror.step(PARTITIONS):
        pass
    assert mirror.state.applied_ts == feed.watermark
    assert all(not table.missing for table in mirror.state.tables.values())
    check(lake, mirror, variant, state.applied_ts)
    check(lake, mirror, variant, mirror.state.applied_ts)


def check(lake, mirror, variant, at):
    """The tables at an instant are those of the source."""
    without = [MySQLType.FLOAT] if variant.protocol == "craft" else []
    truth = expected(Source(variant.truth).at(at), without=without)
    stopped = STOPPED if variant.scenario == "ddl" else set()
    actual = contents(lake, at, without=without)
    assert set(actual) - stopped == set(truth) - stopped
    for name in set(actual) - stopped:
        assert actual[name] == truth[name], name


# --- from a database ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def maria():
    try:
        with mariadb.server() as running:
            yield running
    except mariadb.MissingServer as missing:
        pytest.skip(str(missing))


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
