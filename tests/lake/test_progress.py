"""The counters of a run agree with each other, whenever they are looked at."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.support.lake import new_lake
from tests.support.soak import SoakFeed
from tidegate.lake.job.run import MirrorRun, Progress
from tidegate.lake.job.settings import LakeSettings
from tidegate.lake.job.source import open_feed
from tidegate.wire import CAPTURE_SCHEMA, write_capture


def test_rows_are_never_shown_without_the_messages_they_came_with(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = SoakFeed("bank", "canal-json", rows=200, seed=2, watermarks=5, resends=0)
    capture = tmp_path / "capture.parquet"
    rows = [
        {
            "topic": "t",
            "partition": each.partition,
            "offset": n,
            "key": each.key,
            "value": each.value,
        }
        for n, each in enumerate(feed.messages)
    ]
    write_capture(capture, [pa.RecordBatch.from_pylist(rows, CAPTURE_SCHEMA)])
    seen: list[tuple[int, int, float, float]] = []

    def see(progress: Progress) -> None:
        spent = progress.ingest_seconds, progress.apply_seconds
        seen.append((progress.messages, progress.rows, *spent))

    settings = LakeSettings(source=str(capture), max_messages=60)
    lake = new_lake(spark, tmp_path / "lake")
    run = MirrorRun(lake, open_feed(spark, settings), on_progress=see)
    run.forever(lambda: run.progress.applied_ts >= feed.last_ts, interval=0.0)
    assert run.progress.messages == len(feed.messages)
    assert (run.progress.behind, run.progress.bytes_behind) == (0, 0)
    assert run.progress.bytes >= sum(len(each.value) for each in feed.messages)
    assert 0 < run.progress.rows <= len(feed.messages)
    for messages, rows, reading, applying in seen:
        assert rows <= messages
        assert (reading > 0) == (messages > 0)
        assert rows == 0 or applying > 0


def test_the_backlog_is_measured_in_bytes_by_the_messages_read_so_far() -> None:
    assert Progress().bytes_behind == 0
    assert Progress(messages=4, bytes=4_000, behind=10).bytes_behind == 10_000
