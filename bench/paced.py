"""Sends the workload at 2,000 changes a second, for `bench.following`.

`python -m bench.paced BROKER TOPIC CHANGES` stamps changes with the time of their sending as the
time of their commit, and sends watermarks as often as TiCDC does. It prints a line a tick: the commit_ts,
the time, how many rows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from bench.feeds import put, sender
from tidegate.changefeed.receive.gate import ROW_KINDS
from tidegate.model.tso import tso_from_ms
from tidegate.workload import workload

RATE = 2_000
TICK = 0.25
KEYS = 20_000


def ticks(rows: int) -> Iterator[pa.RecordBatch]:
    """The workload, what comes before the rows first and then a tick's rows at a time.

    A row change needs the schema event of its shape in the same batch.
    """
    size = int(RATE * TICK)
    for batch in workload("sysbench", rows=rows, seed=1, keys=KEYS).batches():
        kind = batch["kind"]
        yield batch.filter(pc.is_in(kind, pa.array(["ddl", "schema"])))
        shapes = batch.filter(pc.equal(kind, "schema"))
        changes = batch.filter(pc.is_in(kind, pa.array(ROW_KINDS)))
        for start in range(0, changes.num_rows, size):
            part = changes.slice(start, size)
            yield pa.Table.from_batches([shapes, part]).combine_chunks().to_batches()[0]


def stamped(batch: pa.RecordBatch, ts: int) -> pa.RecordBatch:
    """All changes at one commit_ts."""
    is_schema = pc.equal(batch["kind"], "schema")
    stamps = pc.if_else(is_schema, pa.scalar(None, pa.int64()), pa.scalar(ts, pa.int64()))
    place = batch.schema.get_field_index("commit_ts")
    return batch.set_column(place, batch.schema.field(place), stamps)


def main() -> None:
    """Sends at the rate, whatever the receiver does."""
    address, topic, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    feed = sender(address, topic)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5})
    due = time.time()
    for batch in ticks(rows):
        count = sum(kind in ROW_KINDS for kind in batch["kind"].to_pylist())
        due += TICK if count else 0.0
        time.sleep(max(0.0, due - time.time()))
        now = time.time()
        ts = tso_from_ms(int(now * 1000))
        mark = pa.RecordBatch.from_pylist(
            [{"event": 0, "kind": "watermark", "commit_ts": ts, "flags": 0}], batch.schema
        )
        put(producer, topic, feed.send(stamped(batch, ts)))
        put(producer, topic, feed.send(mark))
        producer.flush()
        if count:
            print(ts, now, count, flush=True)
    put(producer, topic, feed.close())
    producer.flush()


if __name__ == "__main__":
    main()
