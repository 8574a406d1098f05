"""A mirror in a process of its own, which pauses itself (driver, JVM, workers) where it is told.

It says on its standard output what it does, and in the end what has ended it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidegate.model import TidegateError


class LeasedMirror:
    """A running child; `options` are those of `main`."""

    def __init__(self, log: Path, uri: str, place: dict[str, Any], **options: Any) -> None:
        command = [sys.executable, "-m", "tests.support.leased_mirror", uri, json.dumps(place)]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        with log.open("wb") as errors:
            # A process group of its own: what is sent to it reaches the JVM, too.
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )

    def wait_for(self, line: str) -> str:
        """Follows what it says until it says this, or another word after it in the line."""
        assert self.process.stdout is not None
        for said in self.process.stdout:
            if said.strip().startswith(line):
                return said.strip()
        raise AssertionError(f"the mirror ended and did not say {line!r}")

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def close(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
        self.process.communicate()


@contextmanager
def leased_mirror(*given: Any, **options: Any) -> Iterator[LeasedMirror]:
    """A child that is gone in the end."""
    child = LeasedMirror(*given, **options)
    try:
        yield child
    finally:
        child.close()


def _run(options: argparse.Namespace) -> None:
    from tidegate.lake.formats import session_settings
    from tidegate.lake.formats.base import LakePlace
    from tidegate.lake.job.mirror import MirrorSettings
    from tidegate.lake.job.run import MirrorRun
    from tidegate.lake.job.settings import LakeSettings
    from tidegate.lake.job.source import open_feed
    from tidegate.lake.lake import Lake
    from tidegate.spark import session

    def say(what: str) -> None:
        os.write(1, f"{what}\n".encode())

    def boundary(name: str) -> None:
        if name == options.pause:
            options.pause = None
            say(f"paused at {name}")
            os.killpg(0, signal.SIGSTOP)
            say("continued")

    given = json.loads(options.place)
    spark_settings, format_name = given.pop("spark", {}), given.pop("format", "iceberg")
    place = LakePlace(**given)
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    settings = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": quick}
    settings |= session_settings(place, format_name) | spark_settings
    libraries = ("kafka", format_name)
    spark = session("tidegate-lease", master="local[2]", settings=settings, libraries=libraries)
    feed = open_feed(spark, LakeSettings(source=options.uri, max_messages=400))
    lake = Lake.create(spark, place, format_name)
    run = MirrorRun(
        lake,
        feed,
        MirrorSettings(lease_seconds=options.lease, max_step_seconds=4.0),
        on_progress=lambda progress: say(f"{progress.phase} {progress.applied_ts}"),
        boundary=boundary,
    )
    try:
        run.once() if options.once else run.forever()
    except TidegateError as error:
        say(f"ended {error}")
        raise
    say("ended well")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uri")
    parser.add_argument("place", help="the fields of LakePlace, `format`, and settings of `spark`")
    parser.add_argument("--lease", type=float, default=30.0)
    parser.add_argument("--pause", help="the boundary where it pauses when it is first there")
    parser.add_argument("--once", type=int, default=0)
    _run(parser.parse_args())


if __name__ == "__main__":
    main()
