"""`tidegate verify`: compares a lake with a workload's truth, a capture, or a database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa

from tidegate.cli.generate import workload_options
from tidegate.cli.lakes import check_instant, instant, iso, reading, settings_of, ts_of, working
from tidegate.cli.source import Reading, open_source
from tidegate.cli.words import counted, say, say_json

if TYPE_CHECKING:
    from tidegate.lake.lake import Lake
    from tidegate.sql.tables import Name
    from tidegate.verify.comparison import Compared, Expected


def verify(
    *,
    workload: str | None,
    rows: int,
    seed: int,
    settings: tuple[str, ...],
    capture: str | None,
    mysql: str | None,
    at: str | None,
    most: int,
    output: str,
    **options: Any,
) -> bool:
    """Compares and tells; whether nothing differs."""
    from tidegate.verify.comparison import Verification

    if sum(source is not None for source in (workload, capture, mysql)) != 1:
        raise click.UsageError("Name what to compare with: --workload, --capture or --mysql.")
    reading_options = {
        name: options.pop(name) for name in ("protocol", "encoding", "compression", "claim_check")
    }
    chosen, wanted_ts = settings_of(**options), ts_of(at)
    if workload is not None:
        workload_options(workload, settings)
    source = None if capture is None else open_source(capture, **reading_options)
    with reading(chosen) as lake:
        ts = _recorded(lake, wanted_ts)
        with working("working out what should be there"):
            if workload is not None:
                expected = _of_workload(workload, rows, seed, settings, ts)
            elif source is not None:
                expected = _of_capture(lake, *source, ts)
            else:
                assert mysql is not None
                expected = _of_database(lake, mysql, ts)
        found = []
        for table in Verification(lake, ts, most).run(expected):
            found.append(table)
            tell(table, output)
    fine = all(table.is_equal and table.is_exact for table in found)
    summarise(found, ts, output)
    return fine


def _recorded(lake: Lake, ts: int | None) -> int:
    """The last instant of the lake that is not after the one asked for."""
    check_instant(lake, ts)
    return max(each for each, _ in lake.snapshots.instants() if ts is None or each <= ts)


# --- what should be there -------------------------------------------------------------------------


def _of_workload(
    name: str, rows: int, seed: int, settings: tuple[str, ...], ts: int
) -> Mapping[Name, Expected]:
    from tidegate.verify.comparison import of_truth
    from tidegate.workload import workload

    source = workload(name, rows=rows, seed=seed, **workload_options(name, settings))
    return of_truth(source.at(ts).tables)


def _of_capture(
    lake: Lake, reading: Reading, batches: Iterable[pa.RecordBatch], ts: int
) -> Mapping[Name, Expected]:
    from tidegate.verify.comparison import of_feed

    state = lake.snapshots.state()
    eventual = state is not None and not state.gate.has_watermarks
    return of_feed(map(reading.decode, batches), None if eventual else ts)


def _of_database(lake: Lake, uri: str, ts: int) -> Mapping[Name, Expected]:
    from tidegate.verify.database import read_tables

    schemas = lake.snapshots.schemas(ts)
    names = [snapshot.name for snapshot in lake.snapshots.at(ts)]
    wanted = {name: schemas[name] for name in names if name in schemas}
    return read_tables(uri, wanted, lake.zone, ts)


# --- saying it ------------------------------------------------------------------------------------


def tell(table: Compared, output: str) -> None:
    """One table: equal, or what differs."""
    if output == "json":
        say_json(document(table))
        return
    if table.skipped:
        say(f"not compared  {table.name}: {table.skipped}")
    elif table.is_equal:
        assert table.lake is not None
        rows = counted(table.lake.rows, "row")
        say(f"equal         {table.name}: {rows}, {table.lake.checksum}")
    else:
        say(f"DIFFERENT     {table.name}: {_what(table)}", fg="red")
        for each in table.differences:
            key = ", ".join(f"{name}={value}" for name, value in each.key.items())
            say(f"              {each.what}: {key}")


def _what(table: Compared) -> str:
    if table.lake is None:
        return "the lake does not have it"
    if table.expected is None:
        return "only the lake has it"
    if table.columns:
        return f"only one side has the columns {', '.join(table.columns)}"
    return (
        f"{counted(table.lake.rows, 'row')} ({table.lake.checksum}) in the lake, "
        f"{table.expected.rows:,} ({table.expected.checksum}) expected"
    )


def document(table: Compared) -> dict[str, Any]:
    """A table's comparison for programs."""
    found: dict[str, Any] = {
        "database": table.name.database,
        "table": table.name.table,
        "equal": table.is_equal,
        "lake": table.lake and {"rows": table.lake.rows, "checksum": table.lake.checksum},
        "expected": table.expected
        and {"rows": table.expected.rows, "checksum": table.expected.checksum},
        "differences": [{"what": each.what, "key": dict(each.key)} for each in table.differences],
    }
    if table.columns:
        found["columns"] = list(table.columns)
    if table.skipped:
        found |= {"skipped": table.skipped, "exact": table.is_exact, "equal": None}
    return found


def summarise(found: list[Compared], ts: int, output: str) -> None:
    """The last word."""
    compared = [table for table in found if not table.skipped]
    unequal = [table for table in compared if not table.is_equal]
    inexact = [table for table in found if not table.is_exact]
    if output == "json":
        summary = {
            "event": "done",
            "at": iso(ts),
            "ts": ts,
            "tables": len(compared),
            "different": len(unequal),
            "skipped": len(found) - len(compared),
            "inexact": len(inexact),
        }
        say_json(summary)
    elif unequal:
        say(f"{len(unequal)} of {len(compared)} tables differ at {instant(ts)} ({ts})")
    elif inexact:
        words = f"{counted(len(inexact), 'table')} cannot be compared, {len(compared)} are equal"
        say(f"{words} at {instant(ts)} ({ts})")
    else:
        say(f"all {len(compared)} tables are equal at {instant(ts)} ({ts})")
