"""A load in a process of its own that kills itself with SIGKILL at a boundary.

The child opens a lake in a folder, loads it from a dump or a database and follows a capture.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.soak import mirror_session

NAME = "killed_load"
"""What the lake's catalog is called."""


def run(folder: Path, feed: Path, source: str, snapshot: int, kill: str = "", nth: int = 1) -> int:
    """Runs a child to its end; its exit code, negative if it killed itself."""
    command = [sys.executable, "-m", __name__, str(folder), str(feed), source, str(snapshot)]
    with (folder.parent / "child.log").open("ab") as log:
        child = subprocess.run(
            [*command, "--kill", kill, "--nth", str(nth)], stdout=log, stderr=log, timeout=300
        )
    return child.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("feed")
    parser.add_argument("source")
    parser.add_argument("snapshot", type=int)
    parser.add_argument("--kill", default="")
    parser.add_argument("--nth", type=int, default=1)
    _load(parser.parse_args())


def _load(options: argparse.Namespace) -> None:
    from tidegate.changefeed.config.settings import Secret
    from tidegate.lake import Lake
    from tidegate.lake.formats import session_settings
    from tidegate.lake.job.run import MirrorRun
    from tidegate.lake.job.settings import LakeSettings
    from tidegate.lake.job.source import open_feed

    settings = LakeSettings(folder=options.folder, source=options.feed).with_options(
        load_source=Secret(options.source), load_snapshot=options.snapshot, lease_ms=2000
    )
    passed = 0

    def boundary(name: str) -> None:
        nonlocal passed
        passed += name == options.kill
        if name == options.kill and passed == options.nth:
            os.kill(os.getpid(), signal.SIGKILL)

    place = settings.place._replace(name=NAME)
    with mirror_session(session_settings(place, "iceberg")) as spark:
        feed = open_feed(spark, settings)
        lake = Lake.create(spark, place)
        load = settings.load.request(spark, None)
        MirrorRun(lake, feed, settings.mirror(), boundary=boundary, load=load).once()


if __name__ == "__main__":
    main()
