"""`tidegate status`: how a lake stands, without touching it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from tidegate.cli.lakes import (
    instant,
    iso,
    lag_seconds,
    reading,
    settings_of,
    span,
    table_facts,
)
from tidegate.cli.words import counted, foreign_line, say, say_json, visible, waiting_line

if TYPE_CHECKING:
    from tidegate.lake.lake import Lake

_LONGEST_LINE = 100_000
_STYLES = {
    "mirrored": "green",
    "eventual": "green",
    "diverged": "yellow",
    "incomplete": "bold red",
    "stopped": "bold red",
}


def status(*, rows: bool, output: str, **options: Any) -> bool:
    """Shows it; whether all is well: every table exact, nothing waiting or quarantined."""
    with reading(settings_of(**options)) as lake:
        document = look(lake, count_rows=rows)
    if output == "json":
        say_json(document)
    else:
        _show(document)
    return bool(document["fine"])


def look(lake: Lake, *, count_rows: bool = False) -> dict[str, Any]:
    """How the lake stands, for programs; without any reading of tables unless rows are counted."""
    from tidegate.lake.apply.plan.tables import State
    from tidegate.lake.quarantine import Quarantine
    from tidegate.lake.record import MirrorState

    state = lake.snapshots.state() or MirrorState()
    last = {snapshot.name.folded: snapshot for snapshot in lake.snapshots.at()}
    tables = []
    for table in sorted(state.tables.values(), key=lambda table: table.name):
        found = last.get(table.name.folded)
        entry: dict[str, Any] = table_facts(table, state) | {
            "consistency": "eventual" if table.eventual else state.gate.consistency,
            "lastChangeTs": found and found.resolved_ts,
            "lastChange": found and iso(found.resolved_ts),
            "identifier": table.identifier,
        }
        if entry["state"] == State.STOPPED:
            entry["since"] = iso(table.since)
        if count_rows and found is not None:
            entry["rows"] = lake.tables.read(found.identifier, found.version).count()
        tables.append(entry)
    waiting = lake.changelog.waiting(state.applied_ts, state.cache)
    quarantine = Quarantine(lake)
    bad, retried = quarantine.count(), quarantine.count_since(state.retried)
    exact = all(table.is_exact for table in state.tables.values())
    return {
        "lake": lake.place.folder,
        "format": lake.format_name,
        "feed": state.feed,
        "consistency": state.gate.consistency,
        "appliedTs": state.applied_ts,
        "applied": iso(state.applied_ts),
        "lagSeconds": lag_seconds(state.applied_ts),
        "resolvedTs": state.gate.resolved_ts,
        "resolved": iso(state.gate.resolved_ts),
        "snapshots": state.step,
        "rowsApplied": state.rows,
        "silentPartitions": [list(source) for source in state.gate.silent],
        "foreignTopics": dict(state.gate.unreadable),
        "tables": tables,
        "waiting": [
            {"database": key.database, "table": key.table, "version": key.version, "rows": count}
            for key, count in waiting.items()
        ],
        "quarantined": bad,
        "retried": retried,
        "fine": exact and not (waiting or bad or retried),
    }


def _note(entry: dict[str, Any], document: dict[str, Any]) -> str:
    notes = list(entry["reasons"])
    if entry["consistency"] != document["consistency"]:
        notes.append("Rows were completed from an upstream that shows only the present.")
    return visible(" ".join(notes))


def _terminal_width() -> int | None:
    return None if sys.stdout.isatty() else _LONGEST_LINE


def _show(document: dict[str, Any]) -> None:
    # Nothing is cut: a terminal folds what is too long, a file has it in one line.
    console = Console(soft_wrap=True, highlight=False, width=_terminal_width())
    feed = document["feed"]
    where = feed.get("topics") or feed.get("capture") or "nothing yet"
    grid = Grid.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(overflow="fold")
    entries = [
        ("lake", f"{document['lake']} ({document['format']})"),
        ("feed", f"{where} ({feed['protocol']})" if feed else where),
        ("consistency", document["consistency"]),
        ("applied", f"{instant(document['appliedTs'])} ({document['appliedTs']})"),
        ("lag", span(document["lagSeconds"])),
        ("resolved", instant(document["resolvedTs"])),
        (
            "rows applied",
            f"{document['rowsApplied']:,} in {counted(document['snapshots'], 'snapshot')}",
        ),
        ("quarantined", counted(document["quarantined"], "message")),
    ]
    for name, value in entries:
        grid.add_row(Text(name, "dim"), Text(visible(value)))
    console.print(grid)
    tables = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    is_counted = any("rows" in entry for entry in document["tables"])
    for head in ("table", "state", "last change", "rows" if is_counted else "", ""):
        tables.add_column(head, justify="right" if head == "rows" else "left", overflow="fold")
    for entry in document["tables"]:
        tables.add_row(
            Text(visible(f"{entry['database']}.{entry['table']}")),
            Text(entry["state"], _STYLES[entry["state"]]),
            instant(entry["lastChangeTs"] or 0),
            f"{entry['rows']:,}" if "rows" in entry else "",
            Text(_note(entry, document)),
        )
    if document["tables"]:
        console.print()
        console.print(tables)
    for entry in document["waiting"]:
        say(waiting_line(entry))
    if document["retried"]:
        say(
            f"retried: {counted(document['retried'], 'message')} could be read since; the next "
            "`tidegate mirror` takes them in"
        )
    for topic, partition in document["silentPartitions"]:
        say(f"silent: partition {partition} of {topic or 'the capture'} has no watermark")
    for topic, messages in document["foreignTopics"].items():
        say(foreign_line(topic, messages))
