"""Ingest: a plain streaming query from a feed to the changelog, each event once.

It restarts by Spark's own checkpoint and knows nothing of tables; the mirror follows behind.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.lake.changelog import Changelog, columns
from tidegate.lake.format import TableFormat

QUERY = "tidegate-ingest"


def start_ingest(
    tables: TableFormat,
    changelog: Changelog,
    changes: DataFrame,
    checkpoint: str,
    *,
    interval: float | None = None,
) -> StreamingQuery:
    """Starts the query; without an `interval` (seconds) it ends when it has caught up."""
    named = [F.col(each.name) for each in columns() if each.name != "topic"]
    topic = F.coalesce("topic", F.lit("")).alias("topic")
    writer = changes.select(topic, *named).writeStream.outputMode("append").queryName(QUERY)
    writer = writer.option("checkpointLocation", checkpoint)
    if interval is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(interval * 1000)} milliseconds")
    return tables.stream_to_log(changelog.identifier, writer)


def partitions(spark: SparkSession, checkpoint: str) -> list[tuple[str, int]]:
    """All partitions of the feed's topics, as of the last batch that was begun; none for captures.

    From the checkpoint, where they stand before the batch's events are in the changelog: a
    partition that has said nothing yet is known in time.
    """
    found: list[tuple[str, int]] = []
    for line in _last_offsets(spark, f"{checkpoint}/offsets")[2:]:
        told = json.loads(line) if line.startswith("{") else {}
        for topic, offsets in told.items():
            if isinstance(offsets, dict):
                found += [(topic, int(partition)) for partition in offsets]
    return sorted(found)


def _last_offsets(spark: SparkSession, folder: str) -> list[str]:
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(folder)
    files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    if not files.exists(path):
        return []
    names = [status.getPath().getName() for status in files.listStatus(path)]
    batches = sorted(int(name) for name in names if name.isdigit())
    if not batches:
        return []
    stream = files.open(jvm.org.apache.hadoop.fs.Path(folder, str(batches[-1])))
    try:
        data = bytes(stream.readAllBytes())
    finally:
        stream.close()
    return data.decode().splitlines()
