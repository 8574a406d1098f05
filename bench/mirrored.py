"""The same feed by Tidegate, with everything switched on.

`python -m bench.mirrored BROKER TOPIC FOLDER iceberg|delta` prints its seconds, the rows of the tables,
and where the time went as JSON.
"""

from __future__ import annotations

import json
import sys
import time

from tidegate.lake import Feed, Lake, LakePlace, MirrorRun, session_settings
from tidegate.spark import changes, session


def main() -> None:
    """Mirrors until caught up."""
    broker, topic, folder, table_format = sys.argv[1:5]
    started = time.monotonic()
    place = LakePlace(folder)
    spark = session("mirrored", master="local[2]", settings=session_settings(place, table_format))
    lake = Lake(spark, place, table_format)
    uri = f"kafka://{broker}/{topic}?protocol=canal-json&enable-tidb-extension=true"
    feed = Feed(changes(spark, uri, max_per_trigger=500_000), {"topic": topic})
    opened = time.monotonic()
    progress = MirrorRun(lake, feed).once()
    seconds = time.monotonic() - started
    found = {str(name): rows.count() for name, rows in lake.snapshot().items()}
    print(
        json.dumps(
            {
                "seconds": round(seconds, 2),
                "rows": found,
                "start": round(opened - started, 2),
                "ingest": round(progress.ingest_seconds, 2),
                "apply": round(progress.apply_seconds, 2),
                "steps": progress.steps,
                "phases": dict(progress.last.phases) if progress.last else {},
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main()
