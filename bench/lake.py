"""`python -m bench.lake`: a feed into one table, by Tidegate and by the scripts of `bench.script`.

Real Kafka, three partitions, sysbench rows of 20 columns as Canal-JSON with the whole old row. Every
contestant starts cold in a process of its own, one after the other; ratios are what counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.feeds import produce
from tests.support.kafka import broker


def run(module: str, *arguments: str) -> str:
    """What a contestant prints last."""
    found = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False
    )
    if found.returncode:
        sys.exit(found.stderr[-4000:])
    return found.stdout.strip().splitlines()[-1]


def main() -> None:
    """Runs all contestants and prints the ratios."""
    parser = argparse.ArgumentParser(prog="bench.lake", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--tables", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=["tidegate", "iceberg", "delta"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, object] = {"rows": arguments.rows, "tables": arguments.tables}
    with tempfile.TemporaryDirectory(prefix="bench-lake-") as folder, broker() as kafka:
        started = time.monotonic()
        sent = produce(kafka, "bench", arguments.rows, arguments.keys, arguments.tables)
        print(f"{sent:,} messages in Kafka after {time.monotonic() - started:.0f} s", flush=True)
        ours = None
        if "tidegate" in arguments.only:
            found = json.loads(
                run("bench.mirrored", kafka.address, "bench", f"{folder}/tidegate", "iceberg")
            )
            ours = found["seconds"]
            results["tidegate"] = found
            print(f"tidegate: {ours:.1f} s  {json.dumps(found)}", flush=True)
        for table_format in ("iceberg", "delta"):
            if table_format not in arguments.only:
                continue
            place = f"{folder}/{table_format}"
            Path(place).mkdir()
            text = run("bench.script", kafka.address, "bench", place, table_format)
            seconds, rows = text.split()
            results[table_format] = {"seconds": float(seconds), "rows": int(rows)}
            ratio = f", {float(seconds) / ours:.2f} × ours" if ours else ""
            print(f"script with {table_format}: {float(seconds):.1f} s{ratio}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
