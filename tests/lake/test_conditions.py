"""A condition means the same to Spark, to Arrow and to Iceberg."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate.lake.changelog.changelog import Offsets
from tidegate.lake.storage.predicates import (
    ALWAYS,
    NEVER,
    above,
    above_by_partition,
    equal,
    every,
    is_null,
    of_tables,
    one_of,
    some,
    up_to,
)

ROWS = pa.table(
    {
        "number": pa.array(range(12)),
        "database": ["D", "d", "e", "d", "D", "e", "d", None, "e", "", "e", "D"],
        "topic": ["a", "a", "a", "b", "b", "c", "a", "a", "b", "", "c", "a"],
        "table": ["t", "T", "u", None, "Ü", "t", "u", "t", "U", "", "u", "ü"],
        "partition": pa.array([0, 1, 2, 0, 1, 0, 0, 3, 0, 0, 1, 1], pa.int32()),
        "offset": [5, 6, 0, 9, 0, 1, 6, 0, 10, 0, 2, 7],
        "shape": [None, 1, 2, None, 1, 2, None, 1, 2, None, 1, 2],
    }
)
KNOWN = Offsets({("a", 0): 5, ("a", 1): 6, ("b", 0): 9})
MANY = Offsets({**{(f"other {n}", n % 7): n for n in range(20_000)}, **KNOWN.last})
MANY_TABLES = {("d", f"table {n}") for n in range(20_000)} | {("d", "t"), ("e", "")}
BEYOND_TABLES = [3, 4, 6, 7, 9, 11]
BEYOND = [2, 4, 5, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize(
    ("condition", "numbers"),
    [
        (KNOWN.beyond(), BEYOND),
        (~KNOWN.beyond(), [0, 1, 3]),
        (~(KNOWN.beyond() | equal("topic", "b")), [0, 1]),
        (Offsets().beyond(), list(range(12))),
        (MANY.beyond(), BEYOND),
        (above_by_partition("offset", KNOWN.last, others=False), [6, 8, 11]),
        (~above_by_partition("offset", KNOWN.last, others=False), [0, 1, 2, 3, 4, 5, 7, 9, 10]),
        (one_of("topic", ("b", "c", "it's")), [3, 4, 5, 8, 10]),
        (~one_of("shape", (2,)), [1, 4, 7, 10]),
        (one_of("topic", ()), []),
        (equal("topic", "b"), [3, 4, 8]),
        (of_tables({("d", "t")}), [0, 1]),
        (of_tables({("d", "t"), ("d", "ü"), ("e", "u")}), [0, 1, 2, 4, 8, 10, 11]),
        (of_tables({("e", ""), ("d", "t")}), [0, 1, 2, 5, 8, 10]),
        (~of_tables({("e", ""), ("d", "t")}), [3, 4, 6, 7, 9, 11]),
        (~(of_tables({("d", "u")}) & equal("topic", "a")), [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11]),
        (~of_tables(MANY_TABLES), BEYOND_TABLES),
        (of_tables(()), []),
        (equal("topic", "it's \\'"), []),
        (every(above("offset", 5), up_to("offset", 7)), [1, 6, 11]),
        (is_null("shape") & ~equal("topic", "a"), [3, 9]),
        (some(equal("shape", 2), is_null("shape")), [0, 2, 3, 5, 6, 8, 9, 11]),
        (every(), list(range(12))),
        (some() | NEVER, []),
        (ALWAYS & equal("partition", 3), [7]),
    ],
)
def test_spark_and_arrow_agree(spark, condition, numbers):
    by_spark = spark.createDataFrame(ROWS).where(condition.spark()).toArrow()
    by_arrow = pa.Table.from_batches(ROWS.to_batches()).filter(condition.arrow())
    assert sorted(by_spark["number"].to_pylist()) == numbers
    assert pc.sort_indices(by_arrow["number"]).to_pylist() == list(range(len(numbers)))
    assert by_arrow["number"].to_pylist() == numbers


@pytest.mark.parametrize("condition", [of_tables({("d", "t")}), ~of_tables({("d", "t")})])
def test_iceberg_passes_over_no_file_for_a_name_in_any_case(spark, condition):
    """Bounds of files are in their own case: neither the condition nor its opposite rules any out."""
    expressions = spark._jvm.org.apache.iceberg.expressions.Expressions
    assert condition.iceberg(expressions).toString() == "true"
