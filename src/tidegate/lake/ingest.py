"""Ingest: a plain streaming query from a feed to the changelog, each event once.

It restarts by Spark's own checkpoint and knows nothing of tables; the mirror follows behind.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
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
