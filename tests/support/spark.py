"""DataFrames of changes in tests: run to their end, and compared by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from tests.support.corpus import Message
from tests.support.decoding import offsets
from tidegate.wire import CHANGE_SCHEMA, decode_batch
from tidegate.wire.batch.key_updates import mark_moves

PLACE = ("topic", "partition", "offset", "event")
TIMEOUT = 600


def arrow(df: DataFrame) -> pa.Table:
    """The rows of a bounded DataFrame of changes."""
    return df.toArrow().select(CHANGE_SCHEMA.names).cast(CHANGE_SCHEMA)


def stream(
    df: DataFrame,
    folder: Path,
    *,
    until: Callable[[Any], object] | None = None,
) -> tuple[pa.Table, list[Any]]:
    """What a stream of changes gives until it has read all there is now, and its progress.

    The folder keeps its checkpoint and output: a second run goes on where the first ended. With
    `until`, which is asked after each batch, it is stopped in the middle.
    """
    written, progress = _run(df, folder, until)
    return arrow(written), progress


def stream_rows(df: DataFrame, folder: Path) -> list[dict[str, Any]]:
    """The rows that any stream gives until it has read all there is now."""
    return [row.asDict(recursive=True) for row in _run(df, folder)[0].collect()]


def _run(
    df: DataFrame, folder: Path, until: Callable[[Any], object] | None = None
) -> tuple[DataFrame, list[Any]]:
    output = folder / "output"
    writer = df.writeStream.format("parquet").option("checkpointLocation", str(folder / "state"))
    query = writer.trigger(availableNow=True).start(str(output))
    try:
        if until is None:
            assert query.awaitTermination(TIMEOUT), "the query did not end"
        else:
            while query.isActive and not until(query):
                query.awaitTermination(0.05)
        progress = list(query.recentProgress)
    finally:
        query.stop()
    return df.sparkSession.read.schema(df.schema).parquet(str(output)), progress


def decoded(protocol: str, topic: str, messages: Sequence[Message], **settings: Any) -> pa.Table:
    """What Spark is to give of these messages, by the decoders alone."""
    batch = decode_batch(
        protocol,
        [message.key for message in messages],
        [message.value for message in messages],
        topics=topic,
        partitions=pa.array([message.partition for message in messages], pa.int32()),
        offsets=pa.array(offsets(messages), pa.int64()),
        **settings,
    )
    return pa.Table.from_batches([mark_moves(batch)])


def schemas(table: pa.Table) -> dict[Any, Any]:
    """The shapes that a table of changes tells of."""
    rows = table.filter(pc.equal(table["event"], -1)).to_pylist()
    return {row["shape"]: (row["database"], row["table"], row["schema"]) for row in rows}


def events(table: pa.Table) -> pa.Table:
    """All but the rows of shapes, which come once a batch, in the order of their positions."""
    rest = table.filter(pc.not_equal(table["event"], -1))
    return rest.sort_by([(name, "ascending") for name in PLACE]).combine_chunks()


def assert_equal(found: pa.Table, expected: pa.Table) -> None:
    """Every event once, as expected; every shape told of."""
    __tracebackhide__ = True
    left, right = events(found), events(expected)
    assert left.num_rows == right.num_rows
    if not left.equals(right):
        for one, other in zip(left.to_pylist(), right.to_pylist(), strict=True):
            assert one == other
    assert schemas(found) == schemas(expected)


def fresh(prefix: str) -> str:
    """A name for a topic that no other test has."""
    return f"{prefix}-{uuid4().hex[:8]}"
