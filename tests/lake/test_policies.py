"""Schema-change policies on real tables: one small upstream, mirrored under each of them."""

import pyarrow as pa
import pytest

from tests.lake.test_verify import placed
from tests.support.changing import Changing
from tests.support.lake import contents, fill, new_lake
from tidegate.lake.apply.policy import Policy, SchemaChangeRefused
from tidegate.lake.job.mirror import Mirror, MirrorSettings
from tidegate.sql.tables import Name
from tidegate.verify.comparison import Verification, of_truth

PARTITIONS = [("", 0)]
BIG = str(2**40)
EXACT = {
    "t": ("k x amount w", [("1", "11", "5", BIG), ("3", "30", "4", "7"), ("4", "40", "6", "8")]),
    "u": ("id n m", [("3", "abc", "5"), ("4", "4", "6")]),
    "p": ("id", [("1",), ("2",)]),
}
FIRST = {
    "t": (
        "id v note amount",
        [("1", "10", "one", "1.50"), ("2", "20", "two", "2.50"), ("3", "30", "three", "3.50")],
    ),
    "u": ("id n", [("1", "1"), ("2", "2")]),
    "p": ("id", [("1",)]),
}
# The tables in the end, and those that are not as upstream.
CASES = {
    Policy.EVOLVE: (EXACT | {"p": FIRST["p"]}, []),  # p is stopped
    Policy.TRY_EVOLVE: (EXACT, ["p"]),
    Policy.LENIENT: (
        EXACT
        | {
            "t": (
                "k v note amount w x",
                [
                    ("1", None, None, "5.00", BIG, "11"),
                    ("3", "30", "three", "3.50", "7", None),
                    ("4", None, None, "6.00", "8", "40"),
                ],
            ),
            "u": (
                "id n m",
                [("1", "1", None), ("2", "22", None), ("3", "abc", "5"), ("4", "4", "6")],
            ),
        },
        ["p", "t", "u"],
    ),
    Policy.IGNORE: (
        EXACT
        | {
            "t": (
                "k v note amount",
                [
                    ("1", None, None, "5.00"),
                    ("3", "30", "three", "3.50"),
                    ("4", None, None, "6.00"),
                ],
            ),
            "u": ("id n", [("1", "1"), ("2", "22"), ("3", None), ("4", "4")]),
        },
        ["p", "t", "u"],
    ),
}


class Crash(Exception):
    pass


def filled(spark, folder, table_format="iceberg"):
    lake = new_lake(spark, folder, table_format)
    fill(lake, placed(pa.Table.from_batches(Changing().batches())))
    return lake


def mirrored(lake, policy, boundary=None):
    def crash(name):
        if name == boundary:
            raise Crash

    mirror = Mirror(lake, settings=MirrorSettings(schema_changes=policy), boundary=crash)
    while mirror.step(PARTITIONS):
        pass
    return mirror


def tables(lake):
    """Every table's columns and rows."""
    rows = contents(lake)
    return {
        name.table: (" ".join(frame.columns), rows[tuple(name)])
        for name, frame in lake.snapshot().items()
    }


@pytest.mark.parametrize(
    "policy, table_format, boundary",
    [
        (Policy.EVOLVE, "iceberg", None),
        (Policy.TRY_EVOLVE, "iceberg", None),
        (Policy.LENIENT, "iceberg", "evolve"),
        (Policy.LENIENT, "delta", None),
        (Policy.IGNORE, "iceberg", None),
    ],
)
def test_the_tables_under_each_policy(spark, tmp_path, policy, table_format, boundary):
    lake = filled(spark, tmp_path, table_format)
    if boundary is not None:
        with pytest.raises(Crash):
            mirrored(lake, policy, boundary)
        # A step that was cut off is finished by the policy that it was begun with.
        mirrored(lake, Policy.EVOLVE)
    mirror = mirrored(lake, policy)
    expected, diverged = CASES[policy]
    assert tables(lake) == expected
    state = lake.snapshots.state()
    assert state.tables == mirror.state.tables
    assert sorted(each.name.table for each in state.tables.values() if each.diverged) == diverged
    stopped = {table.name.table for table in mirror.stopped()}
    assert stopped == ({"p", "elsewhere"} if policy is Policy.EVOLVE else {"elsewhere"})
    check_verification(lake, {*diverged, *stopped})


def check_verification(lake, skipped):
    """Tables that are not exact are not compared; the others are equal."""
    at = lake.snapshots.instants()[-1][0]
    truth = of_truth(Changing().final().tables)
    found = {table.name.table: table for table in Verification(lake, at).run(truth)}
    assert {name for name, table in found.items() if table.skipped} == skipped - {"elsewhere"}
    assert all(table.is_equal for name, table in found.items() if name not in skipped)


def test_the_mirror_ends_before_the_first_change_and_goes_on_under_another_policy(spark, tmp_path):
    lake = filled(spark, tmp_path)
    with pytest.raises(SchemaChangeRefused, match="ADD COLUMN `w`") as raised:
        mirrored(lake, Policy.EXCEPTION)
    assert raised.value.name == Name("d", "t")
    assert "--schema-changes" in str(raised.value)
    assert tables(lake) == FIRST
    with pytest.raises(SchemaChangeRefused):
        mirrored(lake, Policy.EXCEPTION)
    mirrored(lake, Policy.IGNORE)
    assert tables(lake) == CASES[Policy.IGNORE][0]
