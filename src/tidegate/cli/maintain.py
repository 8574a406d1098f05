"""`tidegate maintain`: joins small files and forgets what is older than it is to keep."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import click

from tidegate.cli.lakes import exclusive, opened, settings_of


def maintain(*, keep: float | None, output: str, **options: Any) -> None:
    """Does it for every table, and says what was done."""
    from tidegate.lake.maintenance import maintain

    settings = settings_of(**options).remembered()
    days = settings.keep_days if keep is None else keep
    with exclusive(settings), opened(settings) as lake:
        for table in maintain(lake, timedelta(days=days)):
            if output == "json":
                document = {"table": table.table, "seconds": table.seconds, **table.done}
                click.echo(json.dumps(document, ensure_ascii=False))
                continue
            done = ", ".join(f"{count:,} {what}" for what, count in table.done.items() if count)
            click.echo(f"{table.table}: {done or 'nothing to do'} ({table.seconds:.1f} s)")
