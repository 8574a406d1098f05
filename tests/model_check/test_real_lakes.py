"""A few random histories into real Iceberg and Delta tables, by the same oracle as in memory."""

import pytest

from tests.model_check.generate import random_case
from tests.model_check.history import played
from tests.model_check.memory_lake import MemoryTable
from tests.model_check.oracle import Oracle
from tests.model_check.sender import Cut, Sender, decoded, deliveries
from tests.support.lake import new_lake
from tidegate.lake.mirror import Mirror

SEEDS = [(33, "iceberg"), (36, "delta"), (3, "iceberg")]


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
