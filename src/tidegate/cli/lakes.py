"""What the commands on lakes share: opening one, times, and names in errors."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from tidegate.cli.checks import check_place
from tidegate.model import LakeError, SparkError
from tidegate.model.tso import LAST_LOGICAL, physical_ms, tso_from_datetime, tso_to_datetime

if TYPE_CHECKING:
    from tidegate.lake.apply.plan.tables import Table
    from tidegate.lake.job.settings import LakeSettings
    from tidegate.lake.lake import Lake
    from tidegate.lake.record import MirrorState

_LAST_TS = (1 << 63) - 1


def settings_of(
    *,
    config: str | None,
    lake: str | None,
    spark_conf: tuple[str, ...] = (),
    **given: Any,
) -> LakeSettings:
    """The settings of a file and, over it, of options."""
    _need_spark()
    from tidegate.lake.job.settings import LakeSettings

    base = LakeSettings.read(config) if config else LakeSettings()
    spark_settings = dict(base.spark_settings)
    for text in spark_conf:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--spark-conf {text!r}: write NAME=VALUE.")
        spark_settings[name.strip()] = value.strip()
    chosen = base.with_options(folder=lake, spark_settings=spark_settings, **given)
    if chosen.folder is None and chosen.catalog is None:
        raise click.UsageError("No lake is named: give --lake DIR, or lake.folder in --config.")
    return chosen


def _need_spark() -> None:
    if find_spec("pyspark") is None:
        raise SparkError("PySpark is not installed", "Run `pip install 'tidegate[spark]'`")


@contextmanager
def opened(settings: LakeSettings, *libraries: str, create: bool = False) -> Iterator[Lake]:
    """The lake of these settings, in a Spark session that is ended again if it is ours.

    One that is not there is an error, or made with `create`.
    """
    from pyspark.errors import PySparkException

    from tidegate.lake.changelog.ingest import warm_up
    from tidegate.lake.formats import session_settings
    from tidegate.lake.job.diagnosis import check_catalog, diagnosed
    from tidegate.lake.job.probe import check_environment
    from tidegate.lake.job.run import spark_failure
    from tidegate.lake.lake import Lake
    from tidegate.spark import session
    from tidegate.spark.sessions import local_cores, running_session

    check_place(settings)
    # PySpark turns most of Java's errors into its own, but not all.
    java_error: Any = import_module("py4j.protocol").Py4JJavaError
    is_ours = running_session() is None
    with working("starting Spark"), own_interrupts():
        spark = session(
            "tidegate",
            master=settings.master,
            settings=settings.spark_settings,
            defaults=session_settings(settings.place, settings.format),
            libraries=(settings.format, *libraries),
        )
    try:
        check_catalog(spark, settings.place)
        with working("asking the executors"):
            check_environment(spark)
        with working("opening the lake"):
            if create and local_cores(spark.sparkContext.master or "") is not None:
                warm_up(spark)
            make = Lake.create if create else Lake
            place = settings.located(spark).place
            lake = make(spark, place, settings.format, zone=settings.time_zone)
        yield lake
    except (PySparkException, java_error) as error:
        raise spark_failure("The command", error, settings.place) from error
    except OSError as error:  # of a store that Python opens itself
        known = diagnosed(error, settings.place)
        if known is None:
            raise
        raise known from error
    finally:
        if is_ours:
            spark.stop()


@contextmanager
def own_interrupts() -> Iterator[None]:
    """Ctrl-C is Python's own again after Spark has started.

    PySpark's handler asks the JVM to end all jobs, which spoils the question that is under way.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextmanager
def reading(settings: LakeSettings) -> Iterator[Lake]:
    """The lake that is there, for commands that only look; in the feed's time zone."""
    with opened(settings.remembered()) as lake:
        state = lake.snapshots.state()
        if state is not None:
            lake.zone = state.feed.get("time zone", lake.zone)
        yield lake


@contextmanager
def exclusive(settings: LakeSettings) -> Iterator[Lake]:
    """The lake of these settings, while no mirror runs on it and none can start."""
    from tidegate.lake.lease import check_free

    check_free(settings.place, settings.format)
    with opened(settings) as lake, lake.leased(settings.lease_ms / 1000):
        yield lake


@dataclass(slots=True)
class Making:
    """A run that may make a lake; `keeps` says that what it has made is to stay."""

    keeps: bool = False


@contextmanager
def making(settings: LakeSettings) -> Iterator[Making]:
    """For a run on a lake that may not be there yet; LakeTaken where another mirror is at work.

    A run that fails before anything was read leaves nothing behind that was not there before.
    """
    from tidegate.lake.lease import LeaseClock, check_free, local_lease
    from tidegate.lake.storage.file_store import make_folder

    check_free(settings.place, settings.format)
    made, folder = Making(), Path(settings.place.folder)
    if "://" in settings.place.folder:
        yield made
        return
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    # A place where no lake can be is reported before Spark starts.
    make_folder(folder)
    there = {each.name for each in folder.iterdir()}
    try:
        yield made
    except BaseException:
        # Another mirror may have been quicker to make the lake.
        is_ours = local_lease(settings.place, settings.format).is_over(LeaseClock())
        if is_ours and not made.keeps:
            _remove_others(folder, there)
            for each in missing:
                with suppress(OSError):  # somebody else has put something there
                    each.rmdir()
        raise


def _remove_others(folder: Path, there: set[str]) -> None:
    for each in folder.iterdir():
        if each.name in there:
            continue
        if each.is_dir():
            shutil.rmtree(each, ignore_errors=True)
        else:
            each.unlink(missing_ok=True)


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Shows on a terminal that something takes its time; gives what says that it is another now."""
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    with Console(stderr=True).status(f"{what} …", spinner="dots") as status:
        yield lambda what: status.update(f"{what} …")


# --- times ----------------------------------------------------------------------------------------


def instant(ts: int) -> str:
    """An upstream instant for eyes, in UTC."""
    return tso_to_datetime(ts).strftime("%Y-%m-%d %H:%M:%S.%f")[:23] if ts else "nothing yet"


def iso(ts: int) -> str | None:
    """An upstream instant for programs."""
    return tso_to_datetime(ts).isoformat(timespec="milliseconds") if ts else None


def lag_seconds(ts: int) -> float | None:
    """How long ago an upstream instant was."""
    return round(time.time() - physical_ms(ts) / 1000, 3) if ts else None


def span(seconds: float | None) -> str:
    """A span of time for eyes."""
    if seconds is None:
        return "unknown"
    if abs(seconds) < 120:
        return f"{seconds:.1f} s"
    if abs(seconds) < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if abs(seconds) < 172_800 else f"{seconds / 86_400:.0f} days"


def ts_of(text: str | None) -> int | None:
    """The upstream instant that a person named: a TSO, or a time, in UTC unless it says another."""
    if text is None:
        return None
    try:
        found = int(text) if text.isascii() and text.isdigit() else _ts_of_time(text)
    except ValueError:
        found = _LAST_TS + 1
    if found > _LAST_TS:
        raise click.UsageError(
            f"--at {text!r}: give a TSO, or a time since 1970 like 2026-11-16T09:30:00 (in UTC) or "
            "2026-11-16T18:30:00.250+09:00."
        )
    return found


def _ts_of_time(text: str) -> int:
    """The last instant of the millisecond that a time is in."""
    found = datetime.fromisoformat(text)
    zoned = found if found.utcoffset() is not None else found.replace(tzinfo=UTC)
    return tso_from_datetime(zoned, LAST_LOGICAL)


# --- names ----------------------------------------------------------------------------------------


def split_name(text: str) -> tuple[str, str]:
    """DATABASE.TABLE in two; a dot may be in the table's name."""
    database, dot, table = text.partition(".")
    if not (database and dot and table):
        raise click.UsageError(f"{text!r} is no DATABASE.TABLE.")
    return database, table


def no_such_table(wanted: str, there: Sequence[str], when: str = "") -> LakeError:
    """What is said of a table that is not there, with those that are."""
    from tidegate.changefeed.config.settings import nearest

    step = f"It has no tables{when or ' yet'}"
    if there:
        hint = nearest(wanted, there)
        step = hint[0].upper() + hint[1:]
    return LakeError(f"The lake has no table {wanted}{when}", step)


def check_instant(lake: Lake, ts: int | None) -> None:
    """Raises LakeError where no snapshot is as old as an instant, with the first that is."""
    instants = [each for each, _ in lake.snapshots.instants()]
    if not instants:
        raise LakeError("The lake has no snapshot yet", "Run `tidegate mirror` first")
    if ts is not None and ts < min(instants):
        first = min(instants)
        raise LakeError(
            f"The lake has no snapshot at or before {instant(ts)}",
            f"The first instant that can be read is {instant(first)} (--at {first})",
        )


# --- states ---------------------------------------------------------------------------------------


def table_facts(table: Table, state: MirrorState) -> dict[str, Any]:
    """What a table promises and why it may differ, for programs."""
    return {
        "database": table.name.database,
        "table": table.name.table,
        "state": state.state_of(table).value,
        "reasons": list(table.reasons),
    }


def state_line(facts: Mapping[str, Any]) -> str:
    """The same for eyes: what is wrong with a table, and why."""
    return f"{facts['state']}: {facts['database']}.{facts['table']}: {' '.join(facts['reasons'])}"
