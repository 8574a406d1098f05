"""`python -m bench.lake`: what it costs to mirror a feed into a lake.

Real Kafka, three partitions, sysbench rows of 20 columns as Canal-JSON with the whole old row, two
cores for Spark. Every contestant starts cold in a process of its own, one after the other.

  scripts    one table, by Tidegate and by the scripts of `bench.script`: ratios are what counts.
             Iceberg in a local folder, Iceberg in a REST catalog with files in S3, Delta;
             --contestants chooses among them
  steps      many small steps: the CPU that they take in a local folder and with REST + S3
  parts      CPU per message of each part of an ingest task, in one process without Spark
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.feeds import produce
from bench.places import LOCAL, REST, Places, places
from tests.support.kafka import Broker, broker

KEYS = 100_000
STEPS = 40

CONTESTANTS = {
    "tidegate": ("bench.mirrored", LOCAL, "iceberg"),
    "tidegate-rest": ("bench.mirrored", REST, "iceberg"),
    "tidegate-delta": ("bench.mirrored", LOCAL, "delta"),
    "script": ("bench.script", LOCAL, "iceberg"),
    "script-rest": ("bench.script", REST, "iceberg"),
    "script-delta": ("bench.script", LOCAL, "delta"),
}
"""Module, place and format of each."""
WANTED = (
    ("seconds", "script", "tidegate", ">=", 3.0),
    ("seconds", "script-delta", "tidegate", ">=", 5.0),
    ("seconds", "script-rest", "tidegate-rest", ">=", 2.5),
    ("seconds", "script-delta", "tidegate-delta", ">=", 2.0),
    ("cpu", "tidegate-rest", "tidegate", "<=", 1.3),
)
"""What one contestant may take, in times of what another takes."""


def run(module: str, *arguments: str) -> str:
    """What a contestant prints last."""
    found = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False
    )
    if found.returncode:
        sys.exit(found.stderr[-4000:])
    return found.stdout.strip().splitlines()[-1]


def mirrored(kafka: Broker, topic: str, here: Places) -> dict[str, Any]:
    """A feed by Tidegate."""
    return contestant(kafka, topic, here, "tidegate")


def contestant(
    kafka: Broker, topic: str, here: Places, name: str, conf: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A feed by one of the contestants; `conf` are settings of Spark for Tidegate."""
    module, kind, table_format = CONTESTANTS[name]
    place = here.new(kind, table_format)
    if conf and name.startswith("tidegate"):
        place = replace(place, settings={**place.settings, **conf})
    found: dict[str, Any] = json.loads(run(module, kafka.address, topic, place.to_text()))
    return found


def scripts(
    kafka: Broker,
    folder: Path,
    rows: int,
    chosen: Sequence[str] = tuple(CONTESTANTS),
    conf: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Tidegate beside the scripts."""
    sent = produce(kafka, "bench", rows, KEYS)
    results: dict[str, Any] = {"messages": sent}
    print(f"{sent:,} messages", flush=True)
    with places(folder, remote=any(CONTESTANTS[name][1] == REST for name in chosen)) as here:
        for name in chosen:
            found = results[name] = contestant(kafka, "bench", here, name, conf)
            shown = [f"{found['seconds']:.1f} s", f"{found['cpu']:.1f} s of CPU"]
            shown += [
                f"{part} {found[part]}" for part in ("start", "ingest", "apply") if part in found
            ]
            print(f"{name}: {', '.join(shown)}", flush=True)
    if len({results[name]["rows"] for name in chosen}) > 1:
        sys.exit("The contestants have different numbers of rows.")
    results["ratios"] = ratios(results, WANTED)
    return results


def ratios(
    results: Mapping[str, Any], wanted: Iterable[tuple[str, str, str, str, float]]
) -> dict[str, float]:
    """Prints and gives how many times as much contestants took, beside what is wanted."""
    found = {}
    for unit, name, other, sign, bound in wanted:
        if name in results and other in results:
            ratio = round(results[name][unit] / results[other][unit], 2)
            fine = ratio >= bound if sign == ">=" else ratio <= bound
            print(
                f"{unit}: {name} {ratio:.2f} × {other}; wanted {sign} {bound}"
                f"{'' if fine else ': MISSED'}",
                flush=True,
            )
            found[f"{unit}: {name} / {other}"] = ratio
    return found


def steps(kafka: Broker, folder: Path, rows: int) -> dict[str, Any]:
    """Many small steps here and there."""
    results: dict[str, Any] = {}
    with places(folder, remote=True) as here:
        for name, kind in (("tidegate", LOCAL), ("tidegate-rest", REST)):
            arguments = kafka.address, here.new(kind).to_text(), str(rows)
            found = results[name] = json.loads(run("bench.stepwise", *arguments))
            print(
                f"{name}: {found['steps']} steps, {found['seconds']:.1f} s, {found['cpu']:.1f} s of "
                f"CPU, {found['cpu of steps']:.1f} without the start",
                flush=True,
            )
    wanted = [(unit, "tidegate-rest", "tidegate", "<=", 1.3) for unit in ("cpu", "cpu of steps")]
    results["ratios"] = ratios(results, wanted)
    return results


def parts(kafka: Broker, folder: Path, rows: int) -> dict[str, Any]:
    """The parts of an ingest task."""
    produce(kafka, "parts", rows, rows // 20)
    found: dict[str, Any] = json.loads(run("bench.parts", kafka.address, "parts", str(folder)))
    print(f"µs of CPU a message: {found}", flush=True)
    return found


def tables(kafka: Broker, folder: Path, rows: int) -> dict[str, Any]:
    """One table beside twenty."""
    produce(kafka, "one", rows, KEYS)
    produce(kafka, "twenty", rows, KEYS // 20, tables=20)
    with places(folder, remote=False) as here:
        found = {topic: mirrored(kafka, topic, here) for topic in ("one", "twenty")}
    ratio = found["twenty"]["seconds"] / found["one"]["seconds"]
    print(f"{rows:,} changes of twenty tables take {ratio:.2f} × the time of one", flush=True)
    return {**found, "ratio": ratio}


def flat(kafka: Broker, folder: Path, rows: int) -> dict[str, Any]:
    """A short feed beside a long one."""
    results: dict[str, Any] = {}
    with places(folder, remote=False) as here:
        for count in (rows // 50, rows):
            topic = f"feed{count}"
            produce(kafka, topic, count, KEYS)
            found = mirrored(kafka, topic, here)
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
    "steps": (steps, STEPS),
    "parts": (parts, 400_000),
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
    parser.add_argument("--rows", type=int, help="changes (`steps`: steps), for a shorter run")
    parser.add_argument(
        "--contestants",
        nargs="+",
        choices=CONTESTANTS,
        default=list(CONTESTANTS),
        help="of the case scripts: who takes part, in this order",
    )
    parser.add_argument(
        "--spark-conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark for Tidegate's sessions of the case scripts",
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    for case in arguments.cases:
        work, rows = CASES[case]
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="bench-lake-") as folder, broker() as kafka:
            size = arguments.rows or rows
            if case == "scripts":
                conf = dict(text.split("=", 1) for text in arguments.spark_conf)
                results[case] = scripts(kafka, Path(folder), size, arguments.contestants, conf)
            else:
                results[case] = work(kafka, Path(folder), size)
        print(f"{case}: done after {time.monotonic() - started:.0f} s", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
