"""`tidegate reload`: loads single tables again, in the place of what the lake has of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.lakes import exclusive, instant, settings_of, table_facts, working
from tidegate.cli.mirror import load_facts, load_line
from tidegate.cli.words import counted, say, say_json

if TYPE_CHECKING:
    from tidegate.lake.job.settings import LakeSettings
    from tidegate.lake.lake import Lake
    from tidegate.lake.routes import Routes
    from tidegate.sql.tables import Name


def reload(tables: tuple[str, ...], *, output: str, **options: Any) -> None:
    """Reloads tables and says what they are now."""
    from tidegate.changefeed.config.settings import Secret

    names = list(map(_name, tables))
    source = options.pop("load_source")
    settings = settings_of(load_source=Secret(source) if source else None, **options).remembered()
    if not settings.load.source:
        raise click.UsageError("Nothing to load from is named: give --load, or load.source.")
    with exclusive(settings) as lake:
        _reload(lake, settings, names, output)


def _reload(lake: Lake, settings: LakeSettings, names: list[Name], output: str) -> None:
    from tidegate.lake.load.reload import Reload

    is_json = output == "json"
    with working("loading") as show:
        work = Reload(
            lake,
            settings.load.open(lake.spark),
            names,
            routes=_routes(lake),
            threads=settings.threads,
            epoch=getattr(lake.tables.guard, "epoch", None),
            on_progress=lambda progress: show(load_line(progress)),
        )
        reloaded = work.run()
    state = lake.snapshots.state()
    assert state is not None
    facts = [table_facts(table, state) for table in reloaded]
    load = load_facts(work.progress)
    if is_json:
        say_json({"event": "reloaded", "tables": facts, "load": load})
        return
    count = counted(len(facts), "table")
    say(f"{count} with {counted(load['rows'], 'row')} reloaded as of {instant(load['ts'])}")


def _routes(lake: Lake) -> Routes:
    """The lake's own filter and renames, as it remembers them."""
    from tidegate.lake.routes import Routes

    state = lake.snapshots.state()
    kept = {} if state is None else state.feed.get("tables", {})
    rules = tuple(kept.get("include", ()))
    return Routes(() if rules == ("*.*",) else rules, kept.get("rename", {}))


def _name(text: str) -> Name:
    from tidegate.sql.tables import Name

    database, dot, table = text.partition(".")
    if not (database and dot and table):
        raise click.UsageError(f"{text!r} is not DATABASE.TABLE.")
    return Name(database, table)
