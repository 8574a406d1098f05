"""A feed that comes part by part, each applied before the next is sent: what many steps cost.

`python -m bench.stepwise BROKER PLACE PARTS` mirrors the workload `bank` so and prints, as JSON, its
seconds and the CPU of its processes, of which what the start has taken is told apart.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.feeds import PARTITIONS, put, sender, uri
from bench.places import BenchPlace
from bench.processes import cpu_by_role
from tidegate.lake import Lake, MirrorRun
from tidegate.lake.job.settings import LakeSettings
from tidegate.lake.job.source import open_feed
from tidegate.spark import session
from tidegate.workload import workload

CHANGES = 1_000
"""Of a part."""
PATIENCE = 120
"""Seconds that a part may take."""


def parts(address: str, topic: str, count: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The messages of each part, and its last watermark."""
    feed = sender(address, topic)
    # So that each part has watermarks, which come once a second.
    source = workload("bank", rows=CHANGES * count, seed=1, rate=CHANGES // 4)
    changes = pa.Table.from_batches(source.batches())
    for number in range(count):
        start = changes.num_rows * number // count
        end = changes.num_rows * (number + 1) // count
        part = changes.slice(start, end - start).combine_chunks()
        messages = [feed.send(batch) for batch in part.to_batches()]
        if number == count - 1:
            messages.append(feed.close())
        marks = part.filter(pc.equal(part["kind"], "watermark"))["commit_ts"]
        yield (
            pa.Table.from_batches(messages).combine_chunks().to_batches()[0],
            pc.max(marks).as_py(),
        )


class Sender:
    """Sends the next part when the last one is applied."""

    def __init__(self, address: str, topic: str, count: int) -> None:
        self._parts = parts(address, topic, count)
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 5})
        self._due = 0
        self._sent = 0.0

    def is_over(self, applied_ts: int) -> bool:
        """Whether all parts are applied; else sends the next one if it is due."""
        if applied_ts < self._due:
            if time.monotonic() > self._sent + PATIENCE:
                sys.exit(f"A part was not applied in {PATIENCE} seconds.")
            return False
        part = next(self._parts, None)
        if part is None:
            return True
        messages, self._due = part
        put(self._producer, self._topic, messages)
        self._producer.flush()
        self._sent = time.monotonic()
        return False


def main() -> None:
    """Mirrors all parts."""
    address, place, count = sys.argv[1], BenchPlace.from_text(sys.argv[2]), int(sys.argv[3])
    admin = AdminClient({"bootstrap.servers": address})
    topic = f"stepwise-{Path(place.folder).name}"
    for created in admin.create_topics([NewTopic(topic, PARTITIONS)]).values():
        created.result()
    parts_sent = Sender(address, topic, count)
    started = time.monotonic()
    spark = session("stepwise", master="local[2]", settings=place.spark())
    lake = Lake.create(spark, place.of_lake, place.table_format)
    run = MirrorRun(lake, open_feed(spark, LakeSettings(source=uri(address, topic))))
    at_start, opened = sum(cpu_by_role().values()), time.monotonic()
    run.forever(lambda: parts_sent.is_over(run.progress.applied_ts), 0.05)
    cpu = cpu_by_role()
    print(
        json.dumps(
            {
                "seconds": round(time.monotonic() - started, 2),
                "start": round(opened - started, 2),
                "steps": run.progress.steps,
                "rows": run.progress.rows,
                "cpu": round(sum(cpu.values()), 2),
                "cpu of steps": round(sum(cpu.values()) - at_start, 2),
                "cpu by process": cpu,
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main()
