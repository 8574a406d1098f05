"""Watermarks that were reduced give a gate the same as every single one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.changefeed.receive.gate import Gate, Source
from tidegate.changefeed.receive.watermarks import (
    RUN_SCHEMA,
    SMALL_STEP,
    WATERMARK_COLUMNS,
    Run,
    reduced,
    runs_of,
)
from tidegate.model.tso import LOGICAL_BITS

MILLISECOND = 1 << LOGICAL_BITS
JUMP = 10
"""Milliseconds that the gates here take for a jump."""

marks = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.one_of(st.integers(0, 12), st.integers(0, 60)).map(lambda each: each * MILLISECOND),
    ),
    max_size=40,
)


def table(events: Iterable[tuple[int, int]], start: int = 0) -> pa.Table:
    rows = [
        {"topic": "t", "partition": partition, "offset": offset, "event": 0, "commit_ts": ts}
        for offset, (partition, ts) in enumerate(events, start)
    ]
    types = [pa.string(), pa.int32(), pa.int64(), pa.int32(), pa.int64()]
    schema = pa.schema(list(zip(WATERMARK_COLUMNS, types, strict=True)))
    return pa.Table.from_pylist(rows, schema)


@settings(max_examples=500, deadline=None)
@given(st.lists(marks, min_size=1, max_size=3), st.integers(0, JUMP), st.integers(0, 80))
def test_a_gate_makes_the_same_of_runs_as_of_all_watermarks(files, step, start):
    partitions = [("t", number) for number in range(3)]
    every, few = (
        Gate(partitions, max_jump=timedelta(milliseconds=JUMP), start_ts=start * MILLISECOND)
        for _ in range(2)
    )
    tables, count = [], 0
    for events in files:
        tables.append(table(events, count))
        count += len(events)
    together = pa.concat_tables(tables)
    in_order = together.sort_by([("partition", "ascending"), ("offset", "ascending")])
    for row in in_order.to_pylist():
        every.observe_watermark(Source("t", row["partition"]), row["commit_ts"])

    def cut(run: Run, floor: int) -> list[Run]:
        own = pc.field("partition") == run.partition
        own &= (pc.field("offset") >= run.first_offset) & (pc.field("offset") <= run.last_offset)
        floors = {("t", run.partition): floor}
        return runs_of(reduced(together.filter(own), floors, step * MILLISECOND))

    parts = [reduced(each, small_step=step * MILLISECOND) for each in tables]
    few.observe_runs(runs_of(pa.concat_tables(parts)), cut)
    assert few.to_json() == every.to_json()


def test_a_week_of_watermarks_is_one_run_for_each_partition():
    seconds = 100_000
    columns = {
        "topic": ["t"] * seconds * 2,
        "partition": pa.array([number % 2 for number in range(seconds * 2)], pa.int32()),
        "offset": [number // 2 for number in range(seconds * 2)],
        "event": pa.array([0] * seconds * 2, pa.int32()),
        "commit_ts": [(1 + number // 2) * 1000 * MILLISECOND for number in range(seconds * 2)],
    }
    last = seconds * 1000 * MILLISECOND
    found = reduced(pa.table(columns))
    assert found.schema.equals(RUN_SCHEMA)
    assert sorted(runs_of(found)) == [
        Run("t", partition, 0, seconds - 1, 1000 * MILLISECOND, last, seconds, 0)
        for partition in (0, 1)
    ]


def test_runs_end_at_jumps_and_what_went_back_is_counted():
    far = 10 * SMALL_STEP
    events = [(0, ts) for ts in (1, 2, 1, 3, far, far + 1, 5, far + 2)]
    assert [run[4:] for run in runs_of(reduced(table(events)))] == [
        (1, 3, 3, 1),
        (far, far + 2, 3, 1),
    ]
    assert runs_of(reduced(table([]))) == []
