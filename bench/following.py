"""A feed that goes on at 2,000 changes a second: how long from a commit until it can be read.

`python -m bench.following BROKER FOLDER CHANGES` mirrors what `bench.paced` sends meanwhile. A
change can be read when the instant that holds it is recorded. Prints percentiles as JSON; the first
half, in which the JVM gets warm, is left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench.feeds import PARTITIONS, uri
from bench.paced import RATE
from tidegate.lake import Lake, LakePlace, MirrorRun, Progress, session_settings
from tidegate.lake.job.settings import LakeSettings
from tidegate.lake.job.source import open_feed
from tidegate.spark import session

TOPIC = "following"
PATIENCE = 60
"""Seconds after the last change was sent until the run is given up."""


class Watch:
    """What a run reached, and when."""

    def __init__(self) -> None:
        self.reached: list[tuple[int, float]] = []
        self.steps: list[dict[str, float]] = []

    def __call__(self, progress: Progress) -> None:
        if self.reached and self.reached[-1][0] == progress.applied_ts:
            return
        self.reached.append((progress.applied_ts, time.time()))
        if progress.last is not None:
            told = {"rows": progress.last.rows, "seconds": progress.last.seconds}
            self.steps.append({**told, **progress.last.phases})


def lines(file: Path) -> list[tuple[int, float, int]]:
    """What the sender has told so far."""
    found = [line.split() for line in file.read_text().splitlines()]
    return [(int(ts), float(now), int(count)) for ts, now, count in found]


def waits(sent: list[tuple[int, float, int]], reached: list[tuple[int, float]]) -> list[float]:
    """Seconds from commit to readable, a number a change, in order of size."""
    found: list[float] = []
    for ts, now, count in sent:
        readable = next((at for applied, at in reached if applied >= ts), None)
        if readable is None:
            sys.exit(f"The mirror has not caught up: sent {sent[-1]}, reached {reached[-1:]}")
        found += [readable - now] * count
    return sorted(found)


def main() -> None:
    """Follows a feed and prints how far behind it was."""
    address, folder, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    admin = AdminClient({"bootstrap.servers": address})
    for created in admin.create_topics([NewTopic(TOPIC, PARTITIONS)]).values():
        created.result()
    place = LakePlace(f"{folder}/{TOPIC}")
    spark = session("following", master="local[2]", settings=session_settings(place, "iceberg"))
    lake, watch, told = Lake.create(spark, place), Watch(), Path(folder, "sent.txt")
    feed = open_feed(spark, LakeSettings(source=uri(address, TOPIC)))
    run = MirrorRun(lake, feed, on_progress=watch)
    with told.open("w") as output:
        command = [sys.executable, "-m", "bench.paced", address, TOPIC, str(rows)]
        sender = subprocess.Popen(command, stdout=output)
    end = time.time() + rows / RATE + PATIENCE

    def is_over() -> bool:
        if time.time() > end:
            return True
        return sender.poll() is not None and watch.reached[-1][0] >= lines(told)[-1][0]

    try:
        run.forever(is_over)
        if sender.wait():
            sys.exit("The sender has failed.")
    finally:
        sender.kill()
    sent = lines(told)
    found = waits(sent[len(sent) // 2 :], watch.reached)
    late = watch.steps[len(watch.steps) // 2 :]
    print(
        json.dumps(
            {
                "p50": round(found[len(found) // 2], 2),
                "p95": round(found[int(len(found) * 0.95)], 2),
                "most": round(found[-1], 2),
                "changes": run.progress.rows,
                "steps": run.progress.steps,
                "a step of the second half": {
                    name: round(sum(step[name] for step in late) / len(late), 2) for name in late[0]
                },
            }
        )
    )

    spark.stop()


if __name__ == "__main__":
    main()
