"""`python -m bench.backlog`: what a backlog costs the driver.

The changelog's files are written by the real writer, and the mirror starts on a lake that has all
of them, as after a long pause: it reads summaries from footers. Writing is not measured.

  watermarks  a week of watermarks of 24 partitions, one a second, observed by one step
  flat        rows of one table in one step: what an event costs as their number grows
  wide        rows with values of 1 MB in one step: the memory of the driver's Python
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench.processes import DRIVER, usage
from tidegate.lake import Lake, LakePlace, session_settings
from tidegate.lake.changelog.changelog import as_rows
from tidegate.lake.job.mirror import Mirror
from tidegate.model.tso import LOGICAL_BITS
from tidegate.spark import session
from tidegate.wire import decode_batch
from tidegate.wire.batch.change import CHANGE_SCHEMA

WEEK = 7 * 86_400
START = 1_700_000_000_000 << LOGICAL_BITS
SECOND = 1_000 << LOGICAL_BITS
_FILE_SECONDS = 86_400
_FILE_ROWS = 200_000


class Peak:
    """The most memory that the driver's Python has taken while this is open."""

    def __init__(self) -> None:
        self.bytes = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.is_set():
            self.bytes = max(self.bytes, usage()[DRIVER].resident)
            self._done.wait(0.05)


def events(count: int, **columns: Any) -> pa.Table:
    """Events with some columns, and NULL in the others."""
    given = {"event": 0, "flags": 0, "topic": "feed", **columns}
    arrays = []
    for field in CHANGE_SCHEMA:
        value = given.get(field.name)
        if value is None:
            arrays.append(pa.nulls(count, field.type))
        elif isinstance(value, pa.Array | pa.ChunkedArray):
            arrays.append(value.cast(field.type))
        else:
            arrays.append(pa.repeat(pa.scalar(value, field.type), count))
    return pa.table(arrays, schema=CHANGE_SCHEMA)


def watermarks(seconds: int, partitions: int) -> Iterator[pa.Table]:
    """One a second of each partition; a table for each file."""
    for partition in range(partitions):
        for start in range(0, seconds, _FILE_SECONDS):
            numbers = range(start, min(seconds, start + _FILE_SECONDS))
            offset = pa.array(numbers, pa.int64())
            ts = pa.array([START + number * SECOND for number in numbers], pa.int64())
            yield events(
                len(numbers), kind="watermark", partition=partition, offset=offset, commit_ts=ts
            )


def rows(count: int, width: int, keys: int = 10_000) -> Iterator[pa.Table]:
    """Inserts of one table, whose keys repeat, and a watermark after them."""
    filler = "x" * width
    size = min(count, _FILE_ROWS if width < 10_000 else 200)
    yield shape_of()
    number = shape_of()["shape"][0].as_py()
    for start in range(0, count, size):
        numbers = range(start, min(count, start + size))
        values = [[f"{each % keys}", f"{each}{filler}"] for each in numbers]
        yield events(
            len(numbers),
            kind="insert",
            partition=0,
            offset=pa.array(numbers, pa.int64()),
            commit_ts=pa.array([START + each * 1000 for each in numbers], pa.int64()),
            database="bench",
            table="t",
            shape=number,
            after=pa.array(values, pa.list_(pa.string())),
        )
    last = START + count * 1000
    yield events(1, kind="watermark", partition=0, offset=count, commit_ts=last)


def shape_of() -> pa.Table:
    """The event that tells the columns of the rows."""
    message = {
        **{"database": "bench", "table": "t", "pkNames": ["id"], "isDdl": False, "type": "INSERT"},
        **{"id": 0, "es": 1, "ts": 1, "sql": "", "old": None, "_tidb": {"commitTs": START}},
        "sqlType": {"id": 4, "v": 2005},
        "mysqlType": {"id": "int", "v": "longtext"},
        "data": [{"id": "1", "v": ""}],
    }
    value = pa.array([json.dumps(message).encode()], pa.binary())
    table = pa.Table.from_batches([decode_batch("canal-json", None, value)])
    shape = table.filter(pc.equal(table["kind"], "schema"))
    return events(
        1,
        **{
            **{
                name: shape[name]
                for name in ("event", "kind", "database", "table", "shape", "schema")
            },
            **{"partition": 0, "offset": 0},
        },
    )


def fill(lake: Lake, tables: Iterator[pa.Table]) -> int:
    """Writes a file of each table and commits them; how many events there are."""
    writer, files = lake.changelog.writer(), []
    for table in tables:
        files += writer.write_here(as_rows(table))
    lake.changelog.log.append(files)
    return sum(file.rows for file in files)


def step(lake: Lake, partitions: int) -> dict[str, Any]:
    """The first step of a mirror on a lake that was opened again."""
    lake = Lake(lake.spark, lake.place, lake.format_name)
    before = usage()[DRIVER].resident
    with Peak() as peak:
        started = time.monotonic()
        cpu = time.process_time()
        report = Mirror(lake).step([("feed", number) for number in range(partitions)])
    assert report is not None
    return {
        "rows": report.rows,
        "seconds": round(time.monotonic() - started, 2),
        "driver_cpu": round(time.process_time() - cpu, 2),
        "phases": report.phases,
        "driver_before_mb": before >> 20,
        "driver_peak_mb": peak.bytes >> 20,
    }


def main() -> None:
    """Runs one of them, or all."""
    parser = argparse.ArgumentParser(prog="bench.backlog", description=__doc__)
    parser.add_argument("what", nargs="*", default=["watermarks", "flat", "wide"])
    parser.add_argument("--seconds", type=int, default=WEEK, help="of watermarks")
    parser.add_argument("--partitions", type=int, default=24)
    parser.add_argument("--events", type=int, nargs="*", default=[100_000, 2_000_000])
    parser.add_argument("--wide", type=int, default=20_000, help="rows with values of 1 MB")
    arguments = parser.parse_args()
    cases: list[tuple[str, Iterator[pa.Table], int]] = []
    if "watermarks" in arguments.what:
        feed = watermarks(arguments.seconds, arguments.partitions)
        cases.append(("watermarks", feed, arguments.partitions))
    if "flat" in arguments.what:
        cases += [("flat", rows(count, 100), 1) for count in arguments.events]
    if "wide" in arguments.what:
        cases.append(("wide", rows(arguments.wide, 1 << 20, arguments.wide), 1))
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, feed, partitions) in enumerate(cases):
            place = LakePlace(str(Path(folder) / str(number)))
            settings = session_settings(place, "iceberg")
            lake = Lake.create(session("backlog", master="local[2]", settings=settings), place)
            count = fill(lake, feed)
            print(json.dumps({"case": name, "events": count, **step(lake, partitions)}), flush=True)


if __name__ == "__main__":
    main()
