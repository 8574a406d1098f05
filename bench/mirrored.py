"""A feed by Tidegate, with everything switched on.

`python -m bench.mirrored BROKER TOPIC PLACE` mirrors until caught up and prints, as JSON, its
seconds, the CPU of its processes, the rows of the tables, where the time went, and the most memory
that the processes took. PLACE is a `bench.places.BenchPlace`.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from bench.feeds import uri
from bench.places import BenchPlace
from bench.processes import ROLES, cpu_by_role, usage
from tidegate.lake import Lake, MirrorRun
from tidegate.lake.changelog.ingest import warm_up
from tidegate.lake.job.settings import LakeSettings
from tidegate.lake.job.source import open_feed
from tidegate.spark import session


class Watch(threading.Thread):
    """Looks at the memory of all processes every second; the median of each half and the most."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._seen: list[dict[str, int]] = []

    def run(self) -> None:
        while True:
            self._seen.append({role: found.resident for role, found in usage().items()})
            time.sleep(1)

    def told(self) -> dict[str, dict[str, int]]:
        """MiB by role."""
        found = {}
        for role in ROLES:
            sizes = [each[role] >> 20 for each in self._seen]
            half = len(sizes) // 2
            early, late = sorted(sizes[:half] or sizes), sorted(sizes[half:] or sizes)
            found[role] = {
                "first half": early[len(early) // 2],
                "second half": late[len(late) // 2],
                "most": max(sizes),
            }
        return found


def main() -> None:
    """Mirrors until caught up."""
    broker, topic = sys.argv[1:3]
    place = BenchPlace.from_text(sys.argv[3])
    started = time.monotonic()
    spark = session("mirrored", master="local[2]", settings=place.spark())
    watch = Watch()
    watch.start()
    warm_up(spark)
    lake = Lake.create(spark, place.of_lake, place.table_format)
    feed = open_feed(spark, LakeSettings(source=uri(broker, topic)))
    opened = time.monotonic()
    progress = MirrorRun(lake, feed).once()
    seconds = time.monotonic() - started
    memory, cpu = watch.told(), cpu_by_role()
    found = {str(name): rows.count() for name, rows in lake.snapshot().items()}
    print(
        json.dumps(
            {
                "seconds": round(seconds, 2),
                "cpu": round(sum(cpu.values()), 2),
                "cpu by process": cpu,
                "rows": sum(found.values()),
                "tables": len(found),
                "start": round(opened - started, 2),
                "ingest": round(progress.ingest_seconds, 2),
                "apply": round(progress.apply_seconds, 2),
                "steps": progress.steps,
                "phases": dict(progress.last.phases) if progress.last else {},
                "MiB": memory,
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main()
