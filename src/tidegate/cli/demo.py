"""`tidegate demo`: two upstream databases are made up, mirrored into lakes, and checked.

The bank's money must add up at every recorded snapshot, and in the end all tables must equal what
the workloads know. `--wire` shows the shipped captures of each protocol instead.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.inspect import inspect
from tidegate.cli.lakes import instant, opened, settings_of, working
from tidegate.cli.words import counted, say_json

if TYPE_CHECKING:
    from tidegate.lake.job.run import Progress
    from tidegate.lake.job.settings import LakeSettings
    from tidegate.lake.lake import Lake
    from tidegate.workload import Workload

CAPTURES = (
    ("open-protocol", "open-protocol.jsonl"),
    ("canal-json", "canal-json.jsonl"),
    ("simple, as JSON", "simple-json.jsonl"),
    ("simple, as Avro", "simple-avro.jsonl"),
    ("craft", "craft.jsonl"),
    ("cdc", "cdc.jsonl"),
)
MARK = ".tidegate-demo"
"""The file that says that a folder is a demo's, and may be made anew."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """A database of the demo, and the changefeed that tells of it."""

    name: str
    what: str
    uri: str
    share: float
    snapshots: int
    """Into how many parts of upstream time the mirror is to cut it."""


UPSTREAMS = (
    Upstream(
        "bank",
        "accounts and transfers; the sum of all balances never changes",
        "kafka://localhost:9092/bank?protocol=canal-json&enable-tidb-extension=true&partition-num=3",
        1.0,
        5,
    ),
    Upstream(
        "orders",
        "a shop: foreign keys, every column type, DDL on the way",
        "kafka://localhost:9092/shop?protocol=simple&partition-num=3",
        0.5,
        1,
    ),
)


def demo(folder: str, rows: int, output: str) -> bool:
    """Does it all; whether every check held."""
    root = _folder(folder)
    say = _Json() if output == "json" else _Text()
    started = time.monotonic()
    fine = True
    sources = {
        upstream.name: _generate(root, upstream, round(rows * upstream.share), say)
        for upstream in UPSTREAMS
    }
    # One session for both lakes.
    with opened(settings_of(config=None, lake=str(root / UPSTREAMS[0].name)), create=True):
        for upstream in UPSTREAMS:
            source = sources[upstream.name]
            settings = settings_of(
                config=None,
                lake=str(root / upstream.name),
                source=str(root / f"{upstream.name}.parquet"),
                max_step_ms=round(source.seconds / upstream.snapshots * 1000) + 1,
            )
            fine &= _mirror(settings, upstream, source.workload, say)
    say.end(root, fine, time.monotonic() - started)
    return fine


def _folder(name: str) -> Path:
    root = Path(name)
    if root.exists():
        if not (root / MARK).exists() and any(root.iterdir()):
            raise click.UsageError(f"{name} is there and is no demo's: give another --folder.")
        shutil.rmtree(root)
    root.mkdir(parents=True)
    (root / MARK).write_text("Made by `tidegate demo`, which may remove it again.\n")
    return root


@dataclass(frozen=True, slots=True)
class _Source:
    workload: Workload
    seconds: float
    """Upstream time that its changes take."""


def _generate(root: Path, upstream: Upstream, rows: int, say: _Say) -> _Source:
    from tidegate.changefeed.config.changefeed import ChangefeedConfig
    from tidegate.changefeed.send.changefeed import Changefeed
    from tidegate.model.tso import physical_ms
    from tidegate.wire import write_capture
    from tidegate.workload import workload

    source = workload(upstream.name, rows=rows)
    feed = Changefeed(ChangefeedConfig.from_uri(upstream.uri), clock=None)
    times: list[int] = []

    def messages() -> Iterator[Any]:
        for batch in source.batches():
            times.extend(ts for ts in batch["commit_ts"].to_pylist() if ts)
            yield feed.send(batch)
        yield feed.close()

    count = write_capture(root / f"{upstream.name}.parquet", messages())
    seconds = (physical_ms(max(times)) - physical_ms(min(times))) / 1000
    say.made(upstream, rows, count, str(feed.config.protocol))
    return _Source(source, seconds)


def _mirror(settings: LakeSettings, upstream: Upstream, workload: Workload, say: _Say) -> bool:
    from tidegate.lake.job.run import MirrorRun
    from tidegate.lake.job.source import open_feed

    with opened(settings, create=True) as lake:
        feed = open_feed(lake.spark, settings)
        settings.remember(feed.identity)
        started = time.monotonic()
        with working(f"mirroring {upstream.name}"):
            progress = MirrorRun(lake, feed, settings.mirror()).once()
        say.mirrored(upstream, progress, time.monotonic() - started)
        fine = _check_sums(lake, say) if upstream.name == "bank" else True
        return _check_tables(lake, workload, say) and fine


def _check_sums(lake: Lake, say: _Say) -> bool:
    """The bank's money at every snapshot."""
    from pyspark.sql import functions as F

    from tidegate.sql.tables import Name
    from tidegate.workload.bank import TOTAL_CENTS, money

    fine = True
    for ts, _ in lake.snapshots.instants():
        accounts = lake.snapshot(ts).get(Name("bank", "accounts"))
        total = None if accounts is None else accounts.agg(F.sum("balance")).collect()[0][0]
        right = total is None or str(total) == money(TOTAL_CENTS)
        say.summed(ts, None if total is None else str(total), right)
        fine &= right
    return fine


def _check_tables(lake: Lake, workload: Workload, say: _Say) -> bool:
    """All tables against the truth."""
    from tidegate.verify.comparison import Verification, of_truth

    ts = lake.snapshots.instants()[-1][0]
    fine = True
    for table in Verification(lake, ts).run(of_truth(workload.final().tables)):
        right = table.is_equal and not table.skipped
        say.compared(str(table.name), table.lake.rows if table.lake else 0, right)
        fine &= right
    return fine


class _Say:
    """What the demo tells, event by event."""

    def tell(self, event: str, text: str, **facts: Any) -> None:
        raise NotImplementedError

    def made(self, upstream: Upstream, rows: int, messages: int, protocol: str) -> None:
        self.tell(
            "generated",
            f"{upstream.name}: {upstream.what}\n  {rows:,} row changes as {messages:,} messages of "
            f"{protocol}, in 3 partitions",
            workload=upstream.name,
            rows=rows,
            messages=messages,
            protocol=protocol,
        )

    def mirrored(self, upstream: Upstream, progress: Progress, seconds: float) -> None:
        per_second = round(progress.rows / seconds)
        self.tell(
            "mirrored",
            f"\n{upstream.name}: {progress.rows:,} rows mirrored in {seconds:.1f} s "
            f"({per_second:,} rows/s; reading {progress.ingest_seconds:.1f} s, applying "
            f"{progress.apply_seconds:.1f} s), {counted(progress.steps, 'snapshot')}, up to "
            f"{instant(progress.applied_ts)}",
            workload=upstream.name,
            rows=progress.rows,
            seconds=round(seconds, 3),
            rowsPerSecond=per_second,
            snapshots=progress.steps,
            appliedTs=progress.applied_ts,
        )

    def summed(self, ts: int, total: str | None, right: bool) -> None:
        self.tell(
            "sum",
            f"  {_tick(right)} snapshot {instant(ts)}: all balances sum up to {total or 'nothing'}",
            ts=ts,
            total=total,
            right=right,
        )

    def compared(self, table: str, rows: int, right: bool) -> None:
        word = "equals" if right else "DIFFERS FROM"
        self.tell(
            "compared",
            f"  {_tick(right)} {table} {word} the upstream: {counted(rows, 'row')}",
            table=table,
            rows=rows,
            equal=right,
        )

    def end(self, root: Path, fine: bool, seconds: float) -> None:
        word = "all checks held" if fine else "SOME CHECKS FAILED"
        tidegate = _command()
        self.tell(
            "done",
            f"\n{word}; {seconds:.0f} s in all. The lakes are yours to play with:\n"
            f"  {tidegate} status --lake {root}/bank --rows\n"
            f"  {tidegate} read shop.orders --lake {root}/orders --limit 5\n"
            f"  {tidegate} read bank.accounts --lake {root}/bank --at 2026-01-01T00:00:05 "
            "--output json\n"
            f"  {tidegate} verify --lake {root}/orders --capture {root}/orders.parquet\n"
            "and with your own feed:\n"
            f"  {tidegate} mirror 'kafka://HOST:9092/TOPIC?protocol=canal-json"
            "&enable-tidb-extension=true' --lake my-lake",
            fine=fine,
            seconds=round(seconds, 3),
            folder=str(root),
        )


def _command() -> str:
    """How to call the command from here: by its name, or where it is beside this Python."""
    if shutil.which("tidegate"):
        return "tidegate"
    return os.path.relpath(Path(sys.executable).with_name("tidegate"))


class _Text(_Say):
    def tell(self, event: str, text: str, **facts: Any) -> None:
        click.echo(text)


class _Json(_Say):
    def tell(self, event: str, text: str, **facts: Any) -> None:
        say_json({"event": event, **facts})


def _tick(right: bool) -> str:
    return click.style("✓", fg="green") if right else click.style("✗", fg="red")


def show_protocols(output: str) -> None:
    """Shows the shipped captures, one protocol after the other."""
    folder = files("tidegate.cli") / "captures"
    for title, name in CAPTURES:
        if output == "text":
            click.secho(f"\n{title}: tidegate inspect {name}", bold=True)
        with as_file(folder / name) as capture:
            inspect(
                str(capture),
                output=output,
                limit=None,
                tables=(),
                shapes=False,
                protocol=None,
                encoding=None,
                compression=None,
                claim_check=None,
            )
