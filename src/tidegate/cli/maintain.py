"""`tidegate maintain`: compacts small files and removes what is older than the retention."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tidegate.cli.lakes import exclusive, instant, iso, settings_of, working
from tidegate.cli.words import counted, say, say_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidegate.lake.lake import Lake


def maintain(*, keep: float | None, output: str, **options: Any) -> None:
    """Does it for every table, and says what was done."""
    settings = settings_of(**options).remembered()
    days = settings.keep_days if keep is None else keep
    with exclusive(settings) as lake:
        _run(lake, timedelta(days=days), output)


def _run(lake: Lake, keep: timedelta, output: str) -> None:
    from tidegate.lake.maintenance import maintain

    tables, total, seconds = 0, dict[str, int](), 0.0
    with working("looking at the lake") as now:
        for table in maintain(lake, keep, lambda name: now(f"maintaining {name}")):
            tables += 1
            seconds += table.seconds
            for what, count in table.done.items():
                total[what] = total.get(what, 0) + count
            if output == "json":
                told = {"event": "table", "table": table.table, "seconds": table.seconds}
                say_json({**told, **table.done})
            else:
                say(f"{table.table}: {_listed(table.done)} ({table.seconds:.1f} s)")
    since = lake.snapshots.kept_since()
    if output == "json":
        done = {"event": "done", "tables": tables, "seconds": round(seconds, 3), **total}
        say_json({**done, "keptSinceTs": since, "keptSince": iso(since)})
    elif not tables:
        say("the lake has no snapshot yet: there is nothing to maintain")
    else:
        say(f"{counted(tables, 'table')}: {_listed(total)} ({seconds:.1f} s)")
        say(f"every snapshot since {instant(since)} can be read")


def _listed(done: Mapping[str, int]) -> str:
    counts = ", ".join(f"{count:,} {what}" for what, count in done.items() if count)
    return counts or "nothing to do"
