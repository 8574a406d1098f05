"""Tables loaded again into a lake: healed at the lake's instant, and exact from then on."""

from __future__ import annotations

import pytest

from tests.lake.test_load import (
    RULES,
    Cut,
    assert_workload,
    cut_at,
    middle_of,
    source_of,
)
from tests.support.lake import contents
from tests.support.upstream_tables import GrowingCapture, put
from tidegate.lake import Lake
from tidegate.lake.apply.plan.tables import State
from tidegate.lake.job.run import MirrorRun
from tidegate.lake.job.settings import LakeSettings
from tidegate.lake.job.source import open_feed
from tidegate.lake.load.reload import Reload
from tidegate.lake.routes import Routes
from tidegate.model import LakeError
from tidegate.sql.tables import Name
from tidegate.workload import workload

PLACES = ("reload planned", "loaded part", "reload intended", "reload retired", "loaded name")


def mirrored(spark, folder, feed, **given):
    settings = LakeSettings(
        folder=str(folder / "lake"), source=str(feed.folder), include=RULES, **given
    )
    lake = Lake.create(spark, settings.place, settings.format)
    MirrorRun(lake, open_feed(spark, settings), settings.mirror()).once()
    return lake


def states(lake):
    state = lake.snapshots.state()
    return {str(table.name): state.state_of(table) for table in state.tables.values()}


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_incomplete_tables_are_healed_at_the_lakes_instant_and_followed(
    spark,
    tmp_path,
    maria,
    table_format,
):
    source = workload("bank", rows=600, seed=3, rate=100)
    start = middle_of(source, "insert")
    feed = GrowingCapture(tmp_path / "feed", source, start)
    ts = feed.write(middle_of(source, "watermark") + (1500 << 18))
    lake = mirrored(spark, tmp_path, feed, format=table_format)
    names = [Name("bank", "accounts"), Name("bank", "transfers")]
    assert set(states(lake).values()) == {State.INCOMPLETE}
    assert lake.snapshots.state().applied_ts == ts
    incomplete = contents(lake, ts)
    put(maria, source, ts)
    reloads = Routes(RULES)
    for place in PLACES:
        with pytest.raises(Cut):
            Reload(
                lake, source_of(maria, ts), names, routes=reloads, boundary=cut_at(place, 1)
            ).run()
        assert contents(lake) == incomplete, place  # the old tables are shown until the end
    with pytest.raises(LakeError, match="A reload was cut off"):
        mirrored(spark, tmp_path, feed, format=table_format)
    Reload(lake, source_of(maria, ts), names, routes=reloads).run()
    assert set(states(lake).values()) == {State.MIRRORED}
    assert_workload(lake, source, ts)
    last = feed.write()
    lake = mirrored(spark, tmp_path, feed, format=table_format)
    assert lake.snapshots.state().applied_ts == last
    assert_workload(lake, source, last)
    assert set(states(lake).values()) == {State.MIRRORED}


def test_another_instant_than_the_lakes_is_refused(spark, tmp_path, maria):
    source = workload("bank", rows=200, seed=3, rate=100)
    feed = GrowingCapture(tmp_path / "feed", source)
    ts = feed.write()
    lake = mirrored(spark, tmp_path, feed)
    put(maria, source, ts)
    name = Name("bank", "accounts")
    for shown, message in (
        (ts - 1, "The lake is at"),
        (None, f"--load-snapshot {ts}"),
    ):
        with pytest.raises(LakeError, match=message):
            Reload(lake, source_of(maria, shown), [name], routes=Routes(RULES)).run()
    with pytest.raises(LakeError, match="not among those"):
        Reload(lake, source_of(maria, ts), [Name("x", "y")], routes=Routes(RULES)).run()
