"""Feeds of tables that were loaded at an instant T, cut at random places, through the real mirror.

The lake begins with the upstream's tables at T, as a load leaves them, and the feed has everything
from its start, from before T. After every step the tables equal the source, none is incomplete, and
what the feed says of the time up to T has no effect. Many seeds: TIDEGATE_ALL=1.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from zlib import crc32

import pyarrow as pa
import pytest

from tests.model_check.cut_feeds import KINDS, CutFeed, Mark, Run, random_cut
from tests.model_check.golden_feeds import golden_feed
from tests.model_check.memory_lake import MemoryLake
from tests.model_check.sender import Cut
from tests.model_check.test_golden_cuts import marks_of
from tests.model_check.workload_feeds import WorkloadSender, random_settings, tied_tables
from tests.support import corpus
from tidegate.lake.apply.plan.tables import State
from tidegate.lake.load.state import FirstState, LoadedTables, last_before
from tidegate.spark.types import arrow_type, from_text_array
from tidegate.sql.tables import Name

ALL = bool(os.environ.get("TIDEGATE_ALL"))
WORKLOADS = ("bank", "orders", "sysbench")
KINDS_WITH_WATERMARKS = [kind for kind in KINDS if kind != "messages"]


class LoadedRun(Run):
    """A run on a lake that was loaded at `ts`."""

    def __init__(self, feed: CutFeed, cut: Cut, ts: int, marks=None) -> None:
        self.loaded_ts = ts
        super().__init__(feed, cut, marks)

    def _new_mirror(self):
        if self._lake.snapshots.state() is None:
            load(self._lake, self.feed, self.loaded_ts)
        return super()._new_mirror()

    def _compare(self, ts: int) -> None:
        assert ts >= self.loaded_ts
        super()._compare(ts)


def load(lake: MemoryLake, feed: CutFeed, ts: int) -> None:
    """Leaves what a load at an instant leaves: whole tables, and one record."""
    model = feed.truth._model_at(ts)
    stopped = {Name(*name): "It was stopped." for name in model.stopped}
    loaded = LoadedTables(
        tuple(table.schema for table in model.tables.values()),
        stopped,
        dict.fromkeys(model._book._created),
    )
    first = FirstState.of(loaded, ts, watermarks=feed.watermark is not None, feed={})
    for step in first.creates:
        table = step.table
        table.identifier = table.uid = lake.tables.create(step.name, step.schema, step.position)
        rows = list(model.tables[step.name.database, step.name.table].rows.values())
        values = []
        for column in step.schema.carried:
            texts = pa.array([row[column.name] for row in rows], pa.string())
            typed = from_text_array(column, texts, "UTC").cast(arrow_type(column))
            values.append(typed.to_pylist())
        lake.tables.tables[table.identifier].rows = list(zip(*values, strict=True))
    lake.snapshots.record(first.state, [])


def instants(feed: CutFeed) -> list[int]:
    """The commit_ts of the feed's changes and statements, and what is right beside them."""
    table = feed.decode(feed.messages)
    kinds, times = table["kind"].to_pylist(), table["commit_ts"].to_pylist()
    changes = [ts for kind, ts in zip(kinds, times, strict=True) if kind not in ("schema", "error")]
    return sorted({ts + shift for ts in changes if ts for shift in (-1, 0)})


def statements(feed: CutFeed) -> list[int]:
    table = feed.decode(feed.messages)
    kinds, times = table["kind"].to_pylist(), table["commit_ts"].to_pylist()
    return sorted({ts for kind, ts in zip(kinds, times, strict=True) if kind == "ddl"})


@pytest.mark.parametrize("seed", range(100 if ALL else 6))
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_that_was_loaded_in_its_middle_is_followed_exactly(name, seed):
    chance = random.Random(f"load {name} {seed}")
    feed = WorkloadSender(name, random_settings(chance), chance).send()
    ts = chance.choice(statements(feed) if chance.random() < 0.4 else instants(feed))
    kinds, marks = KINDS_WITH_WATERMARKS, {}
    if feed.watermark is None:
        ts, kinds = last_before(ts), ["arrival"]
        marks = {each: Mark(State.STOPPED, "", depends=True) for each in tied_tables(name)}
    run = LoadedRun(feed, random_cut(chance, chance.choice(kinds)), ts, marks).play()
    assert not run.problems, f"seed {seed}, loaded at {ts}: {run.described()}"


def silenced(feed: CutFeed, topic: str) -> CutFeed:
    """A feed whose topics with this beginning get nothing after the last statement that they had."""

    def statement_at(message):
        return (
            message.topic.startswith(topic) and "ddl" in feed.decode([message])["kind"].to_pylist()
        )

    last = max(message.at for message in feed.messages if statement_at(message))
    kept = [each for each in feed.messages if not each.topic.startswith(topic) or each.at <= last]
    numbered = tuple(each._replace(at=number) for number, each in enumerate(kept))
    return replace(feed, messages=numbered)


@pytest.mark.parametrize("seed", range(20 if ALL else 2))
def test_topics_that_tables_left_before_the_load_are_not_waited_for(seed):
    """`orders` drops a table; with a topic per table no watermark comes by its topic again."""
    chance = random.Random(f"topics {seed}")
    settings = random_settings(chance)
    while not (settings.topic_per_table and settings.has_watermarks):
        settings = random_settings(chance)
    feed = silenced(WorkloadSender("orders", settings, chance).send(), "shop_audit")
    ts = statements(feed)[-1]
    assert "audit_archive" not in {name for _, name in feed.truth.at(ts)}
    run = LoadedRun(feed, random_cut(chance, chance.choice(KINDS_WITH_WATERMARKS)), ts).play()
    assert not run.problems, f"seed {seed}: {run.described()}"


def golden_cases():
    cases = []
    for variant in sorted(corpus.variants(), key=lambda each: (each.truth, each.name)):
        if not variant.stream or variant.scenario not in ("ddl", "bank", "types", "x_renameswap"):
            continue
        if ALL or crc32(variant.name.encode()) % 4 == 0:
            cases.append(variant.name)
    return cases


@pytest.mark.parametrize("name", golden_cases())
def test_a_golden_feed_that_was_loaded_in_its_middle_is_followed_exactly(name):
    variant, feed = corpus.variant(name), golden_feed(name)
    for seed in range(20 if ALL else 2):
        chance = random.Random(f"load {name} {seed}")
        ts = chance.choice(statements(feed) if chance.random() < 0.5 else instants(feed))
        ts = last_before(ts) if feed.watermark is None else ts
        cut = random_cut(
            chance, "arrival" if feed.watermark is None else chance.choice(KINDS_WITH_WATERMARKS)
        )
        marks = {name: mark._replace(depends=True) for name, mark in marks_of(variant, cut).items()}
        run = LoadedRun(feed, cut, ts, marks).play()
        assert not run.problems, f"seed {seed}, loaded at {ts}: {run.described()}"
