"""Ingest: a streaming query from a feed to the changelog, each event once.

It restarts by Spark's own checkpoint and knows nothing of tables; the mirror follows behind. Where
the changelog's folder can be reached from Python, the workers that decode the messages write its
files too, and a batch is one commit that tells its number; elsewhere Spark's own sink writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidegate.feed.gate import ROW_KINDS
from tidegate.lake.changelog import CONTROL, Changelog, as_rows, columns
from tidegate.lake.conditions import Condition
from tidegate.lake.format import TableFormat
from tidegate.lake.logfiles import WRITTEN_TYPE, LogWriter
from tidegate.spark.decoding import Decoding, Origin, message_columns, origin

QUERY = "tidegate-ingest"
_BATCH = "tidegate.batch"


def start_ingest(
    tables: TableFormat,
    changelog: Changelog,
    changes: DataFrame,
    checkpoint: str,
    *,
    wanted: Condition | None = None,
    interval: float | None = None,
    check_files: Callable[[Iterable[str]], None] = lambda paths: None,
) -> StreamingQuery:
    """Starts the query; without an `interval` (seconds) it ends when it has caught up.

    `wanted` is a condition on topic, partition and offset. `check_files` raises where
    files that the Python workers have written must not be committed.
    """
    found, writer = origin(changes), tables.log_writer(changelog.identifier)
    if found is None or writer is None:
        stream = _to_log(changes, wanted)
    else:
        stream = _to_files(tables, changelog, found, writer, wanted, check_files)
    stream = stream.outputMode("append").queryName(QUERY)
    stream = stream.option("checkpointLocation", checkpoint)
    if interval is None:
        stream = stream.trigger(availableNow=True)
    else:
        stream = stream.trigger(processingTime=f"{round(interval * 1000)} milliseconds")
    if found is None or writer is None:
        return tables.stream_to_log(changelog.identifier, stream)
    return stream.start()


def _to_log(changes: DataFrame, wanted: Condition | None) -> DataStreamWriter:
    """By Spark: events come back from the Python workers, and the table's own sink writes them."""
    made = {
        "topic": F.coalesce("topic", F.lit("")).alias("topic"),
        CONTROL: (~F.col("kind").isin(*ROW_KINDS)).alias(CONTROL),
    }
    chosen = changes if wanted is None else changes.where(wanted.spark())
    return chosen.select(*(made.get(each.name, F.col(each.name)) for each in columns())).writeStream


def _to_files(
    tables: TableFormat,
    changelog: Changelog,
    found: Origin,
    writer: LogWriter,
    wanted: Condition | None,
    check_files: Callable[[Iterable[str]], None],
) -> DataStreamWriter:
    """By the Python workers, which tell the driver what they wrote."""
    messages = message_columns(found.messages)
    if wanted is not None:
        messages = messages.where(wanted.spark())
    work = _Writing(found.decoding, writer)

    done = json.loads(tables.properties(changelog.identifier).get(_BATCH, "{}"))

    def add(batch: DataFrame, number: int) -> None:
        # Spark repeats, at its start, a batch of which it does not know whether it was done.
        if done.get("checkpoint") == _identity(batch) and done["number"] >= number:
            return
        files = batch.collect()
        check_files(file["path"] for file in files)
        told = {"checkpoint": _identity(batch), "number": number}
        tables.add_files(changelog.identifier, files, {_BATCH: json.dumps(told)})

    return messages.mapInArrow(work.__call__, WRITTEN_TYPE).writeStream.foreachBatch(add)


def _identity(batch: DataFrame) -> str | None:
    """The id of the query, which its checkpoint has for good."""
    return batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")


@dataclass(frozen=True, slots=True)
class _Writing:
    """What Spark sends to its Python workers: from batches of messages to files of the log."""

    decoding: Decoding
    writer: LogWriter

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = (as_rows(pa.Table.from_batches([each])) for each in self.decoding(batches))
        return self.writer.write(batch for table in tables for batch in table.to_batches())
