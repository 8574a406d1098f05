"""Reduces the watermarks of a partition to the few that decide what a gate makes of them.

A gate obeys a watermark that is no lower than the last one it obeyed, unless it is a jump; it
counts those that went back. So a stretch of watermarks that rise in small steps is as good as its
first and last one and their number: a `Run`. Only where a stretch begins below what the gate has
and ends above it must it be cut there, for the gate to count what went back; `reduced` does that
for the `floors` it is given. No I/O; tasks reduce what they write, and the driver reads runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.tso import LOGICAL_BITS

SMALL_STEP = int(timedelta(days=1) / timedelta(milliseconds=1)) << LOGICAL_BITS
"""Watermarks further apart begin another run; no gate takes a step of this size for a jump."""

RUN_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("rising", pa.int64()),
        ("back", pa.int64()),
    ]
)
WATERMARK_COLUMNS = ["topic", "partition", "offset", "event", "commit_ts"]


class Run(NamedTuple):
    """The watermarks of one partition from an offset to another.

    `rising` of them rise in small steps; `back` others are certainly lower than one before.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    first: int
    last: int
    rising: int
    back: int


def runs_of(table: pa.Table) -> list[Run]:
    """The rows of a table of RUN_SCHEMA, in the order of arrival."""
    order = [(name, "ascending") for name in ("topic", "partition", "first_offset")]
    columns = table.select(RUN_SCHEMA.names).sort_by(order).to_pydict().values()
    return [Run(*values) for values in zip(*columns, strict=True)]


def reduced(
    watermarks: pa.Table,
    floors: Mapping[tuple[str, int], int] | None = None,
    small_step: int = SMALL_STEP,
) -> pa.Table:
    """The runs of watermarks (WATERMARK_COLUMNS, in any order), as a table of RUN_SCHEMA.

    No run begins below the floor of its partition and ends at or above it.
    """
    series = _sorted(watermarks.filter(pc.is_valid(watermarks["commit_ts"])))
    found: list[Run] = []
    reducer, topic, partition = None, "", -1
    for start, end in _stretches(series, small_step):
        here = series["topic"][start].as_py() or "", series["partition"][start].as_py() or 0
        if reducer is None or here != (topic, partition):
            found += [] if reducer is None else reducer.runs(topic, partition)
            topic, partition = here
            floor = (floors or {}).get(here)
            reducer = _Reducer(series, small_step, set() if floor is None else {floor})
        reducer.take(start, end)
    found += [] if reducer is None else reducer.runs(topic, partition)
    columns = zip(*found, strict=True) if found else [()] * len(RUN_SCHEMA)
    arrays = [pa.array(each, of.type) for each, of in zip(columns, RUN_SCHEMA, strict=True)]
    return pa.table(arrays, schema=RUN_SCHEMA)


def _sorted(watermarks: pa.Table) -> pa.Table:
    """The watermarks by partition, in the order of arrival; with a number for each partition."""
    topics = watermarks["topic"].combine_chunks().dictionary_encode().indices.cast(pa.int64())
    numbers = pc.add(pc.shift_left(topics, 32), pc.cast(watermarks["partition"], pa.int64()))
    table = watermarks.append_column("source", pc.fill_null(numbers, -1)).combine_chunks()
    order = ["source", "offset", "event"]
    lower = same = None
    for name in order:
        step = _steps(table[name])
        falls = pc.less(step, 0)
        lower = falls if lower is None else pc.or_(lower, pc.and_(same, falls))
        equal = pc.equal(step, 0)
        same = equal if same is None else pc.and_(same, equal)
    if pc.any(lower, min_count=0).as_py():
        table = table.sort_by([(name, "ascending") for name in order]).combine_chunks()
    return table


def _steps(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.subtract(column.slice(1), column.slice(0, max(0, len(column) - 1)))


def _stretches(series: pa.Table, small_step: int) -> Iterator[tuple[int, int]]:
    """Where watermarks of one partition rise in small steps: from a place up to another."""
    if not series.num_rows:
        return
    step = _steps(series["commit_ts"])
    other = pc.not_equal(_steps(series["source"]), 0)
    broken = pc.or_(other, pc.or_(pc.less(step, 0), pc.greater(step, small_step)))
    start = 0
    for place in pc.indices_nonzero(broken).to_pylist():
        yield start, place + 1
        start = place + 1
    yield start, series.num_rows


class _Reducer:
    """Makes runs of the stretches of one partition, in their order."""

    def __init__(self, series: pa.Table, small_step: int, cuts: set[int]) -> None:
        """No run begins below one of the `cuts` and ends at or above it."""
        self._offsets = series["offset"]
        self._ts = series["commit_ts"]
        self._small_step = small_step
        self._cuts = cuts
        self._certain: int | None = None
        """A gate that has taken the runs so far has obeyed this one or a higher one."""
        self._runs: list[_OpenRun] = []

    def runs(self, topic: str, partition: int) -> list[Run]:
        """What was made."""
        return [
            Run(topic, partition, run.start, run.end, run.first, run.last, run.count, run.back)
            for run in self._runs
        ]

    def take(self, start: int, end: int) -> None:
        """Takes the next stretch."""
        first, last = self._ts[start].as_py(), self._ts[end - 1].as_py()
        if self._certain is not None and first < self._certain:
            low = self._below(start, end, self._certain)
            start += low
            self._runs[-1].back += low
            self._runs[-1].end = self._offsets[start - 1].as_py()
        if start == end:
            return
        for cut in sorted(self._cuts):
            if self._ts[start].as_py() < cut <= last:
                place = start + self._below(start, end, cut)
                self._append(start, place)
                start = place
        self._append(start, end)

    def _below(self, start: int, end: int, ts: int) -> int:
        """How many of a stretch, which rises, are lower."""
        low = start
        while start < end:
            middle = (start + end) // 2
            if self._ts[middle].as_py() < ts:
                start = middle + 1
            else:
                end = middle
        return start - low

    def _append(self, start: int, end: int) -> None:
        first, last = self._ts[start].as_py(), self._ts[end - 1].as_py()
        run = self._runs[-1] if self._runs else None
        if run is None or not self._continues(run, first):
            if run is not None and run.count == 1:
                # A gate may take it for a jump and not obey it: what is lower may be in order.
                self._cuts.add(run.last)
            run = _OpenRun(self._offsets[start].as_py(), first)
            self._runs.append(run)
        run.end, run.last = self._offsets[end - 1].as_py(), last
        run.count += end - start
        if run.count > 1:
            self._certain = max(last, last if self._certain is None else self._certain)
            self._cuts = {cut for cut in self._cuts if cut > self._certain}

    def _continues(self, run: _OpenRun, first: int) -> bool:
        is_small = 0 <= first - run.last <= self._small_step
        return is_small and not any(run.last < cut <= first for cut in self._cuts)


@dataclass(slots=True)
class _OpenRun:
    start: int
    first: int
    end: int = 0
    last: int = 0
    count: int = 0
    back: int = 0
