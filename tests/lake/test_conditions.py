"""A condition means the same to Spark, to its SQL, to Arrow and to Iceberg."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate.lake.changelog import Offsets
from tidegate.lake.conditions import (
    ALWAYS,
    NEVER,
    above,
    equal,
    every,
    is_null,
    some,
    up_to,
)

ROWS = pa.table(
    {
        "number": pa.array(range(12)),
        "topic": ["a", "a", "a", "b", "b", "c", "a", "a", "b", "", "c", "a"],
        "partition": pa.array([0, 1, 2, 0, 1, 0, 0, 3, 0, 0, 1, 1], pa.int32()),
        "offset": [5, 6, 0, 9, 0, 1, 6, 0, 10, 0, 2, 7],
        "shape": [None, 1, 2, None, 1, 2, None, 1, 2, None, 1, 2],
    }
)
KNOWN = Offsets({("a", 0): 5, ("a", 1): 6, ("b", 0): 9})
BEYOND = [2, 4, 5, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize(
    ("condition", "numbers"),
    [
        (KNOWN.beyond(), BEYOND),
        (Offsets().beyond(), list(range(12))),
        (equal("topic", "b"), [3, 4, 8]),
        (equal("topic", "it's \\'"), []),
        (every(above("offset", 5), up_to("offset", 7)), [1, 6, 11]),
        (is_null("shape") & ~equal("topic", "a"), [3, 9]),
        (some(equal("shape", 2), is_null("shape")), [0, 2, 3, 5, 6, 8, 9, 11]),
        (every(), list(range(12))),
        (some() | NEVER, []),
        (ALWAYS & equal("partition", 3), [7]),
    ],
)
def test_spark_sql_and_arrow_agree(spark, condition, numbers):
    by_spark = spark.createDataFrame(ROWS).where(condition.spark()).toArrow()
    by_sql = spark.createDataFrame(ROWS).where(condition.sql()).toArrow()
    by_arrow = pa.Table.from_batches(ROWS.to_batches()).filter(condition.arrow())
    assert sorted(by_spark["number"].to_pylist()) == numbers
    assert sorted(by_sql["number"].to_pylist()) == numbers
    assert pc.sort_indices(by_arrow["number"]).to_pylist() == list(range(len(numbers)))
    assert by_arrow["number"].to_pylist() == numbers
