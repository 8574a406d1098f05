"""Tables loaded from a dump or a database at T, then followed: equal to the source ever after."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.changefeed.test_replay import STOPPED, Source
from tests.lake.test_mirror import PARTITIONS
from tests.model_check.golden_feeds import golden_feed
from tests.support import corpus, dumps
from tests.support.lake import contents, expected, fill, new_lake
from tidegate.lake.job.mirror import Mirror
from tidegate.lake.load.loader import Loader, LoadTarget
from tidegate.lake.load.sources import DumpSource
from tidegate.model.types import MySQLType
from tidegate.upstream.dump import Dump

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
