"""Workloads in every protocol with random settings, cut at random places, through the real mirror.

After every step the tables are those that the workload knows to be true at `applied_ts`. No table
may be marked but, in feeds without watermarks, those with a statement and rows in one millisecond.
A hundred seeds for each workload: TIDEGATE_ALL=1.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.model_check.cut_feeds import KINDS, Mark, Run, random_cut
from tests.model_check.workload_feeds import WorkloadSender, random_settings, tied_tables
from tidegate.lake.apply.plan.tables import State

SEEDS = range(100 if os.environ.get("TIDEGATE_ALL") else 8)
NAMES = ("bank", "orders", "sysbench")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NAMES)
def test_tables_are_the_workloads_however_the_feed_is_cut(name, seed):
    chance = random.Random(f"{name} {seed}")
    feed = WorkloadSender(name, random_settings(chance), chance).send()
    kinds, marks = [kind for kind in KINDS if kind != "messages"], {}
    if feed.watermark is None:
        kinds = ["arrival"]
        marks = {each: Mark(State.STOPPED, "", depends=True) for each in tied_tables(name)}
    run = Run(feed, random_cut(chance, chance.choice(kinds)), marks).play()
    assert not run.problems, f"seed {seed}: {run.described()}"
    assert run.instants


def test_the_sample_has_every_protocol_and_option():
    feeds = [
        random_settings(random.Random(f"{name} {seed}")) for name in NAMES for seed in range(40)
    ]
    assert {feed.protocol for feed in feeds} == {
        *("canal-json", "open-protocol", "simple", "craft", "cdc"),
    }
    assert {option for feed in feeds for option in feed.options} >= {
        *("enable_tidb_extension", "only_output_updated_columns", "output_old_value"),
        *("delete_only_output_handle_key_columns", "content_compatible", "encoding_format"),
        *("compression", "large_message_handle"),
    }
    assert {feed.dispatch for feed in feeds} == {"default", "table", "index-value", "ts"}
    assert any(feed.topic_per_table for feed in feeds)
