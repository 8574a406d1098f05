"""`tidegate read`: the rows of a mirrored table, now or as of an earlier upstream instant."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from tidegate.cli.lakes import (
    check_instant,
    instant,
    iso,
    no_such_table,
    reading,
    settings_of,
    split_name,
    ts_of,
)
from tidegate.cli.render import readable
from tidegate.cli.words import json_line, say, say_json, visible

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.lake.lake import Lake

TEXT_ROWS = 20
"""What text shows unless more is asked for; programs get all."""


def read(
    name: str | None, *, at: str | None, limit: int | None, output: str, **options: Any
) -> None:
    """Prints the rows, or the tables where none is named."""
    ts = ts_of(at)
    wanted = None if name is None else split_name(name)
    with reading(settings_of(**options)) as lake:
        if wanted is None:
            _list(lake, ts, output)
            return
        rows = find(lake, *wanted, ts)
        warn(lake, *wanted, ts)
        if output == "text":
            _show(rows, limit or TEXT_ROWS, limit is None)
        else:
            write(rows if limit is None else rows.limit(limit), output)


def find(lake: Lake, database: str, table: str, ts: int | None) -> DataFrame:
    """The rows of a table as texts, by key; an error names what is there instead."""
    check_instant(lake, ts)
    found = lake.snapshots.at(ts)
    wanted = (database.lower(), table.lower())
    if not any(snapshot.name.folded == wanted for snapshot in found):
        when = "" if ts is None else f" at {instant(ts)}"
        raise no_such_table(f"{database}.{table}", [str(each.name) for each in found], when)
    return lake.texts(database, table, ts, ordered=True)


def warn(lake: Lake, database: str, table: str, ts: int | None) -> None:
    """Says on standard error where a table is not what its upstream was at an instant."""
    doubt = lake.snapshots.doubts(ts).get((database.lower(), table.lower()))
    if doubt is not None and not doubt.is_exact:
        say(f"{doubt.name} is {doubt.text}", err=True)


def _list(lake: Lake, ts: int | None, output: str) -> None:
    if ts is not None:
        check_instant(lake, ts)
    found = sorted(lake.snapshots.at(ts), key=lambda snapshot: snapshot.name)
    for snapshot in found:
        if output == "json":
            document = {
                "database": snapshot.name.database,
                "table": snapshot.name.table,
                "lastChangeTs": snapshot.resolved_ts,
                "lastChange": iso(snapshot.resolved_ts),
                "identifier": snapshot.identifier,
                "version": snapshot.version,
            }
            say_json(document)
        elif output == "csv":
            csv.writer(sys.stdout, lineterminator="\n").writerow(snapshot.name)
        else:
            say(f"{instant(snapshot.resolved_ts)}  {snapshot.name}")
    if not found and output == "text":
        say("The lake has no tables at that instant.", err=True)


def write(rows: DataFrame, output: str) -> None:
    """Rows as JSON lines, an object each, or as CSV with a head; NULL is null, or empty."""
    names = rows.columns
    if output == "json":
        for row in _rows(rows):
            sys.stdout.write(json_line(dict(zip(names, row, strict=True))))
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for row in _rows(rows):
        # A text that is empty is told from NULL by its quotes.
        if any(value == "" for value in row):
            cells = ["" if value is None else _quoted(value) for value in row]
            sys.stdout.write(",".join(cells) + "\n")
        else:
            writer.writerow(["" if value is None else value for value in row])


def _quoted(value: str) -> str:
    if value and not any(mark in value for mark in ',"\r\n'):
        return value
    return '"' + value.replace('"', '""') + '"'


def _rows(rows: DataFrame) -> Iterator[Any]:
    return rows.toLocalIterator(prefetchPartitions=True)


def _show(rows: DataFrame, limit: int, says_more: bool) -> None:
    found = rows.limit(limit + 1).collect()
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in rows.columns:
        grid.add_column(Text(visible(name)))
    for row in found[:limit]:
        grid.add_row(*(Text(readable(value, None), "" if value else "dim") for value in row))
    Console(highlight=False, width=None if sys.stdout.isatty() else 10_000).print(grid)
    if len(found) > limit and says_more:
        say(f"… the first {limit} rows; --limit shows more, --output json all", err=True)
