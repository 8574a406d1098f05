"""A few histories into real Iceberg and Delta tables, by the same oracle as in memory."""

from pathlib import Path

import pytest

from tests.model_check.generate import random_case
from tests.model_check.history import played
from tests.model_check.memory_lake import MemoryTable
from tests.model_check.oracle import Case, Crash, Oracle
from tests.model_check.sender import Cut, Sender, decoded, deliveries
from tests.support.lake import new_lake
from tidegate.lake.job.mirror import Mirror, MirrorSettings
from tidegate.lake.job.source import feed_topics

CASES = Path(__file__).parent / "cases"
SEEDS = [(33, "iceberg"), (36, "delta"), (574, "iceberg")]
# Saved cases, and the states of their tables at the end.
SAVED = [
    ("keyless_rows_sent_again_into_an_added_partition", ["mirrored"]),
    ("topic_of_a_renamed_table_gets_rows_again_in_an_added_partition", ["mirrored"]),
    ("keyless_rows_that_may_be_sent_again_and_a_crash", ["diverged"]),
]


def real_contents(lake):
    """The tables of a lake in the values that Spark gives."""
    schemas = lake.snapshots.schemas()
    found = {}
    for name, rows in lake.snapshot().items():
        columns = tuple(schemas[name].column(column) for column in rows.columns)
        values = [tuple(row) for row in rows.collect()]
        found[name.database, name.table] = MemoryTable(tuple(name), columns, values)
    return found


@pytest.mark.parametrize(("seed", "table_format"), SEEDS)
def test_real_tables_equal_the_upstream_at_the_end(spark, tmp_path, seed, table_format):
    case = random_case(seed)
    upstream = played(case.ops)
    sent = Sender(case.feed, upstream).send()
    lake = new_lake(spark, tmp_path, table_format)
    mirror = Mirror(lake, watermarks=case.feed.has_watermarks)
    for delivery in deliveries(sent, case.feed, Cut(2, seed)):
        lake.changelog.add(decoded(case.feed, delivery.messages))
        while mirror.step(delivery.sources) is not None:
            pass
    mirror.settle()
    oracle = Oracle(case.feed, upstream, sent)
    assert not oracle.standstill(mirror)
    assert list(oracle.differences(mirror, real_contents(lake), upstream.ts)) == []


@pytest.mark.parametrize(("name", "states"), SAVED)
def test_a_saved_case_holds_in_real_tables_also_if_every_step_is_cut_off(
    spark, tmp_path, name, states
):
    case = Case.from_json((CASES / f"{name}.json").read_text(encoding="utf-8"))
    upstream = played(case.ops)
    sent = Sender(case.feed, upstream).send()
    lake = new_lake(spark, tmp_path)
    settings = MirrorSettings(topics=feed_topics(case.feed.config()))
    cut_off = set()

    def crash(boundary):
        intent = lake.snapshots.intended()
        if boundary == "applied" and intent.step not in cut_off:
            cut_off.add(intent.step)
            raise Crash

    mirror = Mirror(lake, settings=settings, boundary=crash)
    for delivery in deliveries(sent, case.feed, case.cuts[-1]):
        lake.changelog.add(decoded(case.feed, delivery.messages))
        is_moving = True
        while is_moving:
            try:
                is_moving = mirror.step(delivery.sources, delivery.unread) is not None
            except Crash:
                mirror = Mirror(lake, settings=settings, boundary=crash)
    mirror.settle()
    oracle = Oracle(case.feed, upstream, sent)
    assert cut_off
    assert not oracle.standstill(mirror)
    assert list(oracle.differences(mirror, real_contents(lake), upstream.ts)) == []
    assert [mirror.state.state_of(table) for table in mirror.state.tables.values()] == states
