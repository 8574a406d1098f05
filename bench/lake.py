"""`python -m bench.lake`: what it costs to mirror a feed into a lake.

Real Kafka, three partitions, sysbench rows of 20 columns as Canal-JSON with the whole old row, two
cores for Spark. Every contestant starts cold in a process of its own, one after the other.

  scripts    one table, by Tidegate and by the scripts of `bench.script`: ratios are what counts
  tables     the same number of changes in one table and in twenty
  flat       what an event costs in a short feed and in one fifty times as long
  following  a feed that goes on at 2,000 changes a second: from commit to readable
  large      small changes to a table of five million rows
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.feeds import produce
from tests.support.kafka import Broker, broker

KEYS = 100_000


def run(module: str, *arguments: str) -> str:
    """What a contestant prints last."""
    found = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False
    )
    if found.returncode:
        sys.exit(found.stderr[-4000:])
    return found.stdout.strip().splitlines()[-1]


def mirrored(kafka: Broker, topic: str, folder: Path) -> dict[str, Any]:
    """A feed by Tidegate."""
    found: dict[str, Any] = json.loads(
        run("bench.mirrored", kafka.address, topic, str(folder / topic))
    )
    return found


def scripts(kafka: Broker, folder: Path, rows: int) -> dict[str, Any]:
    """Tidegate beside the scripts."""
    sent = produce(kafka, "bench", rows, KEYS)
    ours = mirrored(kafka, "bench", folder)
    print(f"{sent:,} messages by tidegate: {ours['seconds']:.1f} s", flush=True)
    results: dict[str, Any] = {"messages": sent, "tidegate": ours}
    for table_format in ("iceberg", "delta"):
        place = folder / table_format
        place.mkdir()
        text = run("bench.script", kafka.address, "bench", str(place), table_format)
        seconds, there = text.split()
        ratio = float(seconds) / ours["seconds"]
        results[table_format] = {"seconds": float(seconds), "rows": int(there), "ratio": ratio}
        print(f"by the script with {table_format}: {seconds} s, {ratio:.2f} × ours", flush=True)
    return results


def tables(kafka: Broker, folder: Path, rows: int) -> dict[str, Any]:
    """One table beside twenty."""
    produce(kafka, "one", rows, KEYS)
    produce(kafka, "twenty", rows, KEYS // 20, tables=20)
    found = {topic: mirrored(kafka, topic, folder) for topic in ("one", "twenty")}
    ratio = found["twenty"]["seconds"] / found["one"]["seconds"]
    print(f"{rows:,} changes of twenty tables take {ratio:.2f} × the time of one", flush=True)
    return {**found, "ratio": ratio}


def flat(kafka: Broker, folder: Path, rows: int) -> dict[str, Any]:
    """A short feed beside a long one."""
    results: dict[str, Any] = {}
    for count in (rows // 50, rows):
        topic = f"feed{count}"
        produce(kafka, topic, count, KEYS)
        found = mirrored(kafka, topic, folder)
        found["us"] = (found["seconds"] - found["start"]) / count * 1e6
        results[str(count)] = found
        print(f"{count:,} changes: {found['us']:.1f} µs each, {found['MiB']}", flush=True)
    return results


def following(kafka: Broker, folder: Path, rows: int) -> dict[str, Any]:
    """A feed that goes on."""
    found: dict[str, Any] = json.loads(
        run("bench.following", kafka.address, str(folder), str(rows))
    )
    print(f"from commit to readable: {found}", flush=True)
    return found


def large(kafka: Broker, folder: Path, rows: int) -> dict[str, Any]:
    """Small changes to a large table."""
    found: dict[str, Any] = json.loads(run("bench.large", str(folder), str(rows)))
    print(f"{rows:,} rows: {found}", flush=True)
    return found


CASES: dict[str, tuple[Callable[[Broker, Path, int], dict[str, Any]], int]] = {
    "scripts": (scripts, 2_000_000),
    "tables": (tables, 1_000_000),
    "flat": (flat, 5_000_000),
    "following": (following, 480_000),
    "large": (large, 5_000_000),
}


def main() -> None:
    """Runs one case or all of them."""
    parser = argparse.ArgumentParser(
        prog="bench.lake", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--rows", type=int, help="changes, for a shorter run")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    for case in arguments.cases:
        work, rows = CASES[case]
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="bench-lake-") as folder, broker() as kafka:
            results[case] = work(kafka, Path(folder), arguments.rows or rows)
        print(f"{case}: done after {time.monotonic() - started:.0f} s", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
