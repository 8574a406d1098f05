"""A feed by Tidegate, with everything switched on.

`python -m bench.mirrored BROKER TOPIC FOLDER` mirrors until caught up and prints, as JSON, its
seconds, the rows of the tables, where the time went, and the most memory that the driver took.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from bench.feeds import uri
from bench.processes import ROLES, usage
from tidegate.lake import Feed, Lake, LakePlace, MirrorRun, session_settings
from tidegate.spark import changes, session

MAX_PER_TRIGGER = 500_000


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
    broker, topic, folder = sys.argv[1:4]
    started = time.monotonic()
    place = LakePlace(folder)
    spark = session("mirrored", master="local[2]", settings=session_settings(place, "iceberg"))
    watch = Watch()
    watch.start()
    lake = Lake.create(spark, place)
    messages = changes(spark, uri(broker, topic), max_per_trigger=MAX_PER_TRIGGER)
    feed = Feed(messages, {"topic": topic})
    opened = time.monotonic()
    progress = MirrorRun(lake, feed).once()
    seconds = time.monotonic() - started
    memory = watch.told()
    found = {str(name): rows.count() for name, rows in lake.snapshot().items()}
    print(
        json.dumps(
            {
                "seconds": round(seconds, 2),
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
