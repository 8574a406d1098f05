"""Golden feeds of both generations of TiCDC, cut at random places, through the real mirror.

After every step the tables are those of the source at `applied_ts`, and in the end at the last
watermark. A feed without watermarks is compared once everything is read. `marks_of` lists the
tables that may differ, and why. All variants, with many seeds: TIDEGATE_ALL=1.
"""

from __future__ import annotations

import os
import random
from functools import cache
from zlib import crc32

import pytest

from tests.changefeed.test_replay import EVENTUAL, STOPPED, differences
from tests.model_check.cut_feeds import KINDS, Mark, Run, random_cut
from tests.model_check.golden_feeds import ScenarioModel, golden_feed
from tests.model_check.sender import Cut
from tests.support import corpus, truth
from tidegate.lake.apply.executor import MAYBE_RESENT
from tidegate.lake.apply.plan.row_planning import UPSTREAM_NEEDED
from tidegate.lake.apply.plan.tables import State
from tidegate.sql.ddl import ChangeKind
from tidegate.sql.tables import TableBook

ALL = bool(os.environ.get("TIDEGATE_ALL"))
SMALL = 60
"""Messages of feeds that are also read one by one; with TIDEGATE_ALL=1 five times as many."""
LONG = ("mixed1", "tall8", "tall20")
SCENARIOS = sorted(
    {each.truth for each in corpus.variants() if each.scenario not in ("bank", *LONG)}
)
"""The truth of others is checked in tests/changefeed/test_replay.py."""

HARD = [
    # A stopped table has rows of a schema version that is forgotten: they need not wait for it.
    ("new/ddl.simple.json.stream", Cut(7, 1603, skew=True)),
    # Rows arrive before CREATE TABLE, or after statements that rows from after them overtook.
    ("ddl.canal.stream", Cut(5, 14, skew=True)),
    ("ddl.canal.stream", Cut(5, 35, skew=True, restarts=True)),
    ("ddl.canal.stream", Cut(5, 55, skew=True, restarts=True)),
    # Rows from before ALTER TABLE arrive after the table was renamed.
    ("mixed1.canal.stream", Cut(5, 3, skew=True)),
]


def chosen():
    """Variants and kinds of cuts: every stream, and of the other files a sample."""
    cases = []
    for variant in sorted(corpus.variants(), key=lambda each: (each.truth, each.name)):
        number = crc32(variant.name.encode())
        kinds = [kind for kind in KINDS if kind != "messages"]
        if not ALL:
            every = 5 if variant.scenario in LONG else 1
            if number % (every if variant.stream else 8 * every):
                continue
            kinds = [kinds[number // 24 % len(kinds)]]
        if variant.messages <= SMALL * (5 if ALL else 1):
            kinds.append("messages")
        cases += [(variant.name, kind) for kind in kinds]
    return cases


def marks_of(variant, cut):
    """The tables that may differ from the source, each with its state and why."""
    marks = {}
    if cut.skew and variant in EVENTUAL:
        # Without watermarks nobody knows the order of a statement and the rows of other partitions.
        # Rows that come before its CREATE TABLE do not say that the key of `shardrow` is unique.
        names = changed(variant.truth) | {("d1", "shardrow")}
        marks = {name: Mark(State.STOPPED, "", depends=True) for name in names}
    return marks | _always_marked(variant)


@cache
def changed(scenario):
    """The tables that statements have changed after their CREATE."""
    book, names = TableBook(), set()
    for event in truth.events(scenario):
        for effect in book.run(event.query, event.database or "") if event.kind == "ddl" else ():
            if effect.kind is not ChangeKind.CREATED:
                names |= {effect.name, effect.new_name or effect.name}
    return {(name.database, name.table) for name in names}


def _always_marked(variant):
    if variant.scenario == "ddl":  # EXCHANGE PARTITION, RECOVER TABLE and FLASHBACK TABLE
        return {name: Mark(State.STOPPED, "") for name in STOPPED}
    if variant.scenario == "large" and "hk" in variant.options:
        # Compressed, only the rows of one table are still too large.
        names = ["t"] if variant.compression else ["t", "k", "uk"]
        return {("l", name): Mark(State.STOPPED, UPSTREAM_NEEDED) for name in names}
    if variant.scenario == "nopk" and variant.protocol != "craft":
        # Two identical rows of one transaction in two messages may be one row that is sent again.
        return {("t", "nopk"): Mark(State.DIVERGED, MAYBE_RESENT)}
    return {}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_truth_comes_to_what_select_showed(scenario):
    model = ScenarioModel(scenario).at(2**63)
    assert differences(model, scenario) == set()
    assert model.stopped == (STOPPED if scenario.endswith("ddl") else set())


@pytest.mark.parametrize(("name", "cut"), HARD)
def test_cuts_that_were_hard_once_come_to_the_same(name, cut):
    run = Run(golden_feed(name), cut, marks_of(corpus.variant(name), cut)).play()
    assert not run.problems, run.described()


@pytest.mark.parametrize(("name", "kind"), chosen())
def test_tables_are_those_of_the_source_however_a_feed_is_cut(name, kind):
    variant, feed = corpus.variant(name), golden_feed(name)
    for seed in range(20 if ALL and kind != "messages" and variant.scenario not in LONG else 1):
        cut = random_cut(random.Random(f"{name} {kind} {seed}"), kind)
        run = Run(feed, cut, marks_of(variant, cut)).play()
        assert not run.problems, run.described()
