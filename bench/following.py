"""A feed that goes on at 2,000 changes a second: how long from a commit until it can be read.

`python -m bench.following BROKER FOLDER CHANGES` sends changes with the time of their sending as
the time of their commit, a watermark after each tick, while a mirror follows. A change can be read
when the instant that holds it is recorded. Prints percentiles as JSON; the first half, in which the
JVM gets warm, is left out.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
from confluent_kafka import Producer

from tidegate.feed.changefeed import Changefeed
from tidegate.feed.config import ChangefeedConfig
from tidegate.lake import Feed, Lake, LakePlace, MirrorRun, session_settings
from tidegate.model.tso import tso_from_ms
from tidegate.spark import changes, session
from tidegate.workload import workload

RATE = 2_000
TICK = 0.25
TOPIC = "following"
ROW_KINDS = ("insert", "update", "delete")


def slices(rows: int) -> Iterator[pa.RecordBatch]:
    """The workload, a tick's changes at a time; watermarks are sent by the clock."""
    size = int(RATE * TICK)
    for batch in workload("sysbench", rows=rows, seed=1, keys=20_000).batches():
        kinds = batch["kind"].to_pylist()
        control = [place for place, kind in enumerate(kinds) if kind in ("ddl", "schema")]
        yield batch.take(pa.array(control, pa.int64()))
        places = [place for place, kind in enumerate(kinds) if kind in ROW_KINDS]
        shapes = batch.take(pa.array([n for n in control if kinds[n] == "schema"], pa.int64()))
        for start in range(0, len(places), size):
            part = batch.take(pa.array(places[start : start + size], pa.int64()))
            yield pa.Table.from_batches([shapes, part]).combine_chunks().to_batches()[0]


def send(address: str, rows: int, sent: list[tuple[int, float, int]]) -> None:
    """Sends the changes at their rate, and notes the instant of each tick."""
    uri = (
        f"kafka://{address}/{TOPIC}?protocol=canal-json&enable-tidb-extension=true&partition-num=3"
    )
    rules = '[sink]\ndispatchers = [{matcher = ["*.*"], partition = "index-value"}]'
    feed = Changefeed(ChangefeedConfig.from_toml(rules, uri), clock=None)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5})
    due = time.time()
    for batch in slices(rows):
        has_rows = any(kind in ROW_KINDS for kind in batch["kind"].to_pylist())
        if has_rows:
            due += TICK
            time.sleep(max(0.0, due - time.time()))
        now = time.time()
        ts = tso_from_ms(int(now * 1000))
        stamps = pa.array(
            [None if k == "schema" else ts for k in batch["kind"].to_pylist()], pa.int64()
        )
        place = batch.schema.get_field_index("commit_ts")
        batch = batch.set_column(place, batch.schema.field(place), stamps)
        mark = pa.RecordBatch.from_pylist(
            [{"event": 0, "kind": "watermark", "commit_ts": ts, "flags": 0}], batch.schema
        )
        for messages in (feed.send(batch), feed.send(mark)):
            columns = (messages[name].to_pylist() for name in ("partition", "key", "value"))
            for partition, key, value in zip(*columns, strict=True):
                producer.produce(TOPIC, value=value, key=key, partition=partition)
        producer.poll(0)
        if has_rows:
            sent.append((ts, now, batch.num_rows))
    producer.flush()


def main() -> None:
    """Follows a feed and prints how far behind it was."""
    address, folder, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    for created in admin.create_topics([NewTopic(TOPIC, 3)]).values():
        created.result()
    place = LakePlace(f"{folder}/{TOPIC}")
    spark = session("following", master="local[2]", settings=session_settings(place, "iceberg"))
    lake = Lake(spark, place)
    uri = f"kafka://{address}/{TOPIC}?protocol=canal-json&enable-tidb-extension=true"
    sent: list[tuple[int, float, int]] = []
    reached: list[tuple[int, float]] = []
    sender = threading.Thread(target=send, args=(address, rows, sent))
    run = MirrorRun(
        lake,
        Feed(changes(spark, uri), {"topic": TOPIC}),
        on_progress=lambda progress: reached.append((progress.applied_ts, time.time())),
    )
    sender.start()
    end = time.time() + rows / RATE + 60
    run.forever(
        lambda: (
            time.time() > end
            or (not sender.is_alive() and bool(reached) and reached[-1][0] >= sent[-1][0])
        )
    )
    sender.join()
    waits: list[float] = []
    for ts, now, count in sent[len(sent) // 2 :]:
        readable = next((at for applied, at in reached if applied >= ts), None)
        if readable is None:
            sys.exit(f"the mirror has not caught up: {reached[-1:]}, {sent[-1]}, {run.progress}")
        waits += [readable - now] * count
    waits.sort()
    steps = run.progress.steps
    print(
        json.dumps(
            {
                "p50": round(waits[len(waits) // 2], 2),
                "p95": round(waits[int(len(waits) * 0.95)], 2),
                "most": round(waits[-1], 2),
                "changes": run.progress.rows,
                "steps": steps,
                "a step": round(run.progress.apply_seconds / max(1, steps), 2),
                "phases": dict(run.progress.last.phases) if run.progress.last else {},
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main()
