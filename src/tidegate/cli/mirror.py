"""`tidegate mirror`: keeps a lake's tables equal to the upstream's, and says how it goes."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from tidegate.cli.checks import check_feed
from tidegate.cli.lakes import (
    Making,
    instant,
    iso,
    lag_seconds,
    making,
    opened,
    settings_of,
    span,
    state_line,
    table_facts,
)
from tidegate.cli.words import counted, foreign_line, say, say_json, waiting_line

if TYPE_CHECKING:
    from tidegate.lake.job.run import Progress
    from tidegate.lake.job.settings import LakeSettings
    from tidegate.lake.lake import Lake
    from tidegate.lake.load.staging import LoadProgress

TROUBLED = ("stopped", "incomplete", "diverged")
"""The states of tables that a summary names."""
LOADING = "loading"
LINE_SECONDS = 10.0
"""How often a line is written where there is no terminal."""


def mirror(source: str | None, *, once: bool, output: str, **options: Any) -> bool:
    """Runs the mirror; whether all is well in the end: nothing stopped, waiting or quarantined."""
    from tidegate.changefeed.config.settings import Secret
    from tidegate.lake.routes import Routes

    format_name = options.pop("format_name")
    seconds = options.pop("max_step_seconds")
    upstream = options.pop("upstream")
    load, cdc = options.pop("load_source"), options.pop("load_cdc")
    renames = Routes.parse((), options.pop("rename_texts")).renames
    chosen = settings_of(
        source=source,
        format=format_name,
        rename=renames,
        upstream=Secret(upstream) if upstream else None,
        load_source=Secret(load) if load else None,
        load_cdc=Secret(cdc) if cdc else None,
        max_step_ms=None if seconds is None else round(seconds * 1000),
        **options,
    )
    feed = chosen.source
    if feed is None and chosen.load.is_wanted and chosen.load.mode == "only":
        return copy(chosen.claim(format_name is not None), output)
    if feed is None:
        raise click.UsageError("No feed is named: give SOURCE, or feed.source in --config.")
    chosen = chosen.claim(format_name is not None)
    libraries = ("kafka",) if feed.startswith("kafka") else ()
    report = _JsonReport() if output == "json" else _report()
    with making(chosen) as made:
        check_feed(chosen)
        with opened(chosen, *libraries, create=True) as lake:
            chosen = replace(chosen, prefix=lake.place.prefix)
            try:
                return _run(lake, chosen, once, report, made)
            except BaseException as error:
                if not made.keeps and chosen.is_remote:
                    lake.discard(error)
                raise


def copy(settings: LakeSettings, output: str) -> bool:
    """Loads a lake that follows no feed, or none yet."""
    from tidegate.lake.job.run import MirrorRun
    from tidegate.lake.load.copying import no_feed

    report = _JsonReport() if output == "json" else _report()
    with making(settings) as made, opened(settings, create=True) as lake:
        made.keeps = True
        settings.remember({})
        started = time.monotonic()
        load = settings.load.request(lake.spark, None)
        run = MirrorRun(lake, no_feed(), settings.mirror(), on_progress=report.progress, load=load)
        with _stopping() as stop, report:
            run.load_only(stop.is_asked)
        summary = summarise(lake, run.progress, time.monotonic() - started)
        report.done(summary)
        return bool(summary["fine"])


def _run(lake: Lake, settings: LakeSettings, once: bool, report: Report, made: Making) -> bool:
    from tidegate.lake.apply.policy import SchemaChangeRefused
    from tidegate.lake.job.run import MirrorRun
    from tidegate.lake.job.source import open_feed
    from tidegate.lake.quarantine import BadMessages

    feed = open_feed(lake.spark, settings)
    settings.remember({})
    report.begin(feed.identity)

    def progress(progress: Progress) -> None:
        if progress.messages or progress.load is not None:
            settings.remember(feed.identity)
        report.progress(progress)

    load = settings.load.request(lake.spark, feed.topics.default)
    run = MirrorRun(lake, feed, settings.mirror(), on_progress=progress, load=load)
    started = time.monotonic()
    stopped_by: BadMessages | SchemaChangeRefused | None = None
    with _binding(lake, settings, feed.identity, made), _stopping() as stop, report:
        try:
            if settings.load.mode == "only":
                run.load_only(stop.is_asked)
            elif once:
                run.once(stop.is_asked)
            else:
                run.forever(stop.is_asked, settings.interval_ms / 1000)
        except (BadMessages, SchemaChangeRefused) as error:
            stopped_by = error
    summary = summarise(lake, run.progress, time.monotonic() - started)
    if stopped_by is not None:
        summary["error"] = str(stopped_by)
    report.done(summary)
    return bool(summary["fine"]) and stopped_by is None


@contextmanager
def _binding(
    lake: Lake, settings: LakeSettings, identity: Mapping[str, Any], made: Making
) -> Iterator[None]:
    """Makes the lake the feed's if anything was read, however the run ends."""
    made.keeps = True
    try:
        yield
    except BaseException as error:
        try:
            made.keeps = not lake.is_empty()
        except Exception as failure:  # Spark is gone: what was read is not known, and stays
            error.add_note(f"Whether anything was read is not known: {failure}")
        if made.keeps:
            settings.remember(identity)
        raise
    if not lake.is_empty():
        settings.remember(identity)


class _Stop:
    """Whether somebody has asked for an end."""

    def __init__(self) -> None:
        self.asked = False

    def is_asked(self) -> bool:
        return self.asked

    def ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        say("stopping after this step (again to stop at once) …", err=True)


@contextmanager
def _stopping() -> Iterator[_Stop]:
    """Ctrl-C and SIGTERM end the run after its current step; a second one at once."""
    stop = _Stop()
    signals = (signal.SIGINT, signal.SIGTERM)
    try:
        before = [signal.signal(number, stop.ask) for number in signals]
    except ValueError:  # not the main thread: whoever started it ends it
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


# --- what came of it ------------------------------------------------------------------------------


def summarise(lake: Lake, progress: Progress, seconds: float) -> dict[str, Any]:
    """How the lake stands after a run, for programs; `fine` is what the exit code says."""
    from tidegate.lake.apply.plan.tables import State
    from tidegate.lake.quarantine import Quarantine
    from tidegate.lake.record import MirrorState

    recorded = lake.snapshots.state()
    state = recorded or MirrorState()
    tables = list(state.tables.values())
    facts = [table_facts(table, state) for table in tables]
    waiting = [
        {"database": key.database, "table": key.table, "version": key.version, "rows": rows}
        for key, rows in progress.waiting.items()
    ]
    bad = Quarantine(lake).count()
    # Reading and applying go side by side while a feed is followed.
    busy = min(seconds, progress.ingest_seconds + progress.apply_seconds)
    return {
        "event": "done",
        "consistency": "unknown" if recorded is None else state.gate.consistency,
        "appliedTs": progress.applied_ts,
        "applied": iso(progress.applied_ts),
        "lagSeconds": lag_seconds(progress.applied_ts),
        "messages": progress.messages,
        "rows": progress.rows,
        "snapshots": progress.steps,
        "tables": sum(each["state"] != State.STOPPED for each in facts),
        "seconds": round(seconds, 3),
        "ingestSeconds": round(progress.ingest_seconds, 3),
        "applySeconds": round(progress.apply_seconds, 3),
        "rowsPerSecond": round(progress.rows / busy) if busy else 0,
        **({} if progress.load is None else {"load": load_facts(progress.load)}),
        **{state: [each for each in facts if each["state"] == state] for state in TROUBLED},
        "waiting": waiting,
        "foreignTopics": dict(state.gate.unreadable),
        "quarantined": bad,
        "fine": not (waiting or bad) and all(table.is_exact for table in tables),
    }


def load_facts(load: LoadProgress) -> dict[str, Any]:
    """How a load stands, for programs."""
    left, holds = load.seconds_left, load.holds_seconds
    return {
        "source": load.source,
        "ts": load.ts,
        "instant": iso(load.ts),
        "attempt": load.attempt,
        "tables": load.tables,
        "tablesDone": load.tables_done,
        "parts": load.parts,
        "partsDone": load.parts_done,
        "rows": load.rows,
        "bytes": load.bytes,
        "expectedBytes": load.expected_bytes,
        "seconds": round(load.seconds, 3),
        "rowsPerSecond": round(load.rows / load.seconds) if load.seconds else 0,
        "secondsLeft": None if left is None else round(left),
        "snapshotHoldsSeconds": None if holds is None else round(holds),
    }


def load_line(load: LoadProgress) -> str:
    """How a load stands, in one line."""
    parts = [
        f"loading {load.source} as of {instant(load.ts)}",
        f"{load.tables_done:,} of {counted(load.tables, 'table')}",
        f"{load.parts_done:,} of {counted(load.parts, 'part')}",
        f"{counted(load.rows, 'row')}, {load.bytes / 1e6:,.1f} MB",
    ]
    if load.seconds >= 1:
        parts.append(f"{load.rows / load.seconds:,.0f} rows/s")
    if load.seconds_left:
        parts.append(f"{span(load.seconds_left)} left")
    if load.attempt > 1:
        parts.append(f"start {load.attempt}")
    return ", ".join(parts)


# --- saying it ------------------------------------------------------------------------------------


class Report:
    """Says how a run goes; this one in lines of text, for logs."""

    def __init__(self) -> None:
        self._phase = ""
        self._last = float("-inf")

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, identity: Any) -> None:
        """Says what is mirrored, and what can be promised."""
        where = identity.get("topics") or identity.get("capture")
        say(f"mirroring {where} ({identity['protocol']}), {_promise(identity)}", err=True)

    def progress(self, progress: Progress) -> None:
        """Says how far it is, when that is news."""
        now = time.monotonic()
        if progress.phase == self._phase and now - self._last < LINE_SECONDS:
            return
        self._phase, self._last = progress.phase, now
        load = progress.load if progress.phase == LOADING else None
        say(line(progress) if load is None else load_line(load), err=True)

    def done(self, summary: dict[str, Any]) -> None:
        """Says what came of it."""
        tell(summary)


class _JsonReport(Report):
    def begin(self, identity: Any) -> None:
        say_json({"event": "begin", "feed": dict(identity)})

    def progress(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.phase == self._phase and now - self._last < 1:
            return
        self._phase, self._last = progress.phase, now
        say_json(
            {
                "event": "progress",
                "phase": progress.phase,
                "messages": progress.messages,
                "behind": progress.behind,
                "rows": progress.rows,
                "snapshots": progress.steps,
                "appliedTs": progress.applied_ts,
                "applied": iso(progress.applied_ts),
                "resolvedTs": progress.resolved_ts,
                "lagSeconds": lag_seconds(progress.applied_ts),
                **({} if progress.load is None else {"load": load_facts(progress.load)}),
            }
        )

    def done(self, summary: dict[str, Any]) -> None:
        say_json(summary)


class _LiveReport(Report):
    """A picture on a terminal that is kept up to date."""

    def __init__(self) -> None:
        super().__init__()
        self._live = Live(console=Console(stderr=True), transient=True, refresh_per_second=4)

    def __enter__(self) -> Report:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def progress(self, progress: Progress) -> None:
        grid = Grid.grid(padding=(0, 2))
        behind = "" if progress.behind is None else f"{progress.behind:,} to be read"
        entries = [
            ("phase", progress.phase, ""),
            ("messages read", f"{progress.messages:,}", behind),
            ("rows applied", f"{progress.rows:,}", counted(progress.steps, "snapshot")),
            ("applied", instant(progress.applied_ts), f"lag {_lag(progress)}"),
        ]
        if progress.phase == LOADING and progress.load is not None:
            entries.append(("loaded", load_line(progress.load), ""))
        for name, value, more in entries:
            grid.add_row(Text(name, "dim"), Text(value, "bold"), Text(more, "dim"))
        self._live.update(grid)


def _report() -> Report:
    return _LiveReport() if sys.stderr.isatty() else Report()


def _promise(identity: Any) -> str:
    if identity["consistency"] == "eventual":
        return (
            "consistency: eventual (this feed has no watermarks: tables are right in the end, "
            "not at every snapshot)"
        )
    return "consistency: snapshot"


def _lag(progress: Progress) -> str:
    return span(lag_seconds(progress.applied_ts))


def line(progress: Progress) -> str:
    """How far it is, in one line."""
    parts = [f"{progress.phase}: {counted(progress.messages, 'message')} read"]
    if progress.behind:
        parts.append(f"{progress.behind:,} to be read")
    rows, snapshots = counted(progress.rows, "row"), counted(progress.steps, "snapshot")
    parts.append(f"{rows} applied in {snapshots}")
    if progress.applied_ts:
        parts.append(f"at {instant(progress.applied_ts)}, lag {_lag(progress)}")
    return ", ".join(parts)


def tell(summary: dict[str, Any]) -> None:
    """The summary for eyes."""
    load = summary.get("load")
    if load is not None:
        say(
            f"{counted(load['rows'], 'row')} of {counted(load['tablesDone'], 'table')} loaded from "
            f"{load['source']} as of {instant(load['ts'])}, in {load['seconds']:.1f} s "
            f"({load['rowsPerSecond']:,} rows/s)"
        )
    rows, messages = counted(summary["rows"], "row"), counted(summary["messages"], "message")
    earlier = ""
    if summary["rows"] and not summary["messages"]:
        earlier = " (of messages that an earlier run had read)"
    say(
        f"{messages} read, {rows} applied{earlier} in {summary['seconds']:.1f} s "
        f"({summary['rowsPerSecond']:,} rows/s: reading {summary['ingestSeconds']:.1f} s, applying "
        f"{summary['applySeconds']:.1f} s)"
    )
    say(
        f"{counted(summary['tables'], 'table')}, {counted(summary['snapshots'], 'new snapshot')}, "
        f"at {instant(summary['appliedTs'])} (consistency: {summary['consistency']})"
    )
    for state in TROUBLED:
        for facts in summary[state]:
            say(state_line(facts))
    for entry in summary["waiting"]:
        say(waiting_line(entry))
    for topic, messages in summary["foreignTopics"].items():
        say(foreign_line(topic, messages))
    if summary["quarantined"]:
        say(
            f"quarantined: {counted(summary['quarantined'], 'message')}; "
            "see `tidegate quarantine list`"
        )
    if "error" in summary:
        say(f"tidegate: {summary['error']}", err=True)
