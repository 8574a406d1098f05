"""`python -m bench`: the wire layer's speed, sizes and memory, as tables and as JSON."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import chart, craft_sizes, memory, wire


def main() -> None:
    """Runs everything and says what came out."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--turns", type=int, default=9, help="the best of so many turns counts")
    parser.add_argument("--json", type=Path, help="write the results here as JSON")
    parser.add_argument("--chart", type=Path, help="draw the speed table here (.svg or .png)")
    arguments = parser.parse_args()
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # a file has room for whole words
    results = _speed(console, arguments.turns)
    sizes = _sizes(console)
    craft_speed = craft_sizes.speed(arguments.turns)
    _print(console, "Craft beside our JSON (open-protocol), the document's events", craft_speed)
    peaks = memory.run()
    _print(console, "Peak memory of decoding a batch, as a multiple of its input", peaks)
    document = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "wire": [result.document() for result in results],
        "craft_sizes": sizes,
        "craft_speed": craft_speed,
        "memory": peaks,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    if arguments.chart:
        chart.draw(document["wire"], arguments.chart)
    missed = [result for result in results if result.ratio < result.target]
    for result in missed:
        console.print(
            f"[red]below its target:[/] {result.work} {result.protocol} {result.scenario}: "
            f"{result.ratio:.1f} times, wanted {result.target:g}"
        )
    sys.exit(1 if missed else 0)


def _speed(console: Console, turns: int) -> list[wire.Result]:
    console.print(f"One core, best of {turns} turns in alternation; µs of CPU an event.")
    table = Table("work", "protocol", "scenario", title="Wire")
    for head in ("µs/event", "MB/s", "peer", "peer µs", "× faster", "wanted", "Go µs"):
        table.add_column(head, justify="left" if head == "peer" else "right")
    results = []
    with console.status("measuring") as status:
        for result in wire.run(turns):
            status.update(f"measured {result.work} {result.protocol} {result.scenario}")
            results.append(result)
            document = result.document()
            table.add_row(
                result.work,
                result.protocol,
                result.scenario,
                f"{result.ours_us:.3f}",
                f"{document['megabytes_per_second']:,.0f}",
                result.peer,
                f"{result.peer_us:.3f}",
                f"{result.ratio:.1f}",
                f"{result.target:g}",
                f"{document['reference_go_us']:.1f}" if document["reference_go_us"] else "",
            )
    console.print(table)
    return results


def _sizes(console: Console) -> list[dict[str, Any]]:
    rows = craft_sizes.run()
    _print(console, "Craft's size table", rows)
    for note in craft_sizes.NOTES:
        console.print(f"- {note}")
    return rows


def _print(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*("" if value is None else f"{value}" for value in row.values()))
    console.print(table)


main()
