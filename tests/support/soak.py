"""A mirror that is killed again and again, on a real Kafka, and must come out right.

`Soak` fills a topic bit by bit with a workload (statements in mid-flight, rows sent again) and runs
the mirror in a process of its own, which is killed with SIGKILL: by itself at a named boundary of a
step, or from outside at a random moment. The next one starts at once, while the JVM of the last one
may still be ending. `check` then compares the lake with the workload's truth. `make soak` runs this
module; tests/lake/test_crash.py has a short run of it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from tests.support.corpus import Message
from tests.support.kafka import Broker, broker
from tests.support.table_model import model_of
from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.send.changefeed import Changefeed
from tidegate.wire import decode_batch
from tidegate.workload import Workload, workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.lake.lake import Lake

BOUNDARIES = (
    "ingested",
    "committed",
    "observed",
    "planned",
    "intended",
    "create",
    "rows",
    "evolve",
    "rename",
    "delete",
    "drop",
    "applied",
    "recorded",
)
PARTITIONS = 3
LONGEST_RUN = 1800.0
"""Seconds after which a child that does not end is taken for hanging."""
_ENDING_SECONDS = 60.0
_MARK = "TIDEGATE_SOAK"
"""The environment variable by which all that a child starts is found again."""

AT_BOUNDARY = "boundary"
MOMENTS = {
    "start": ({"session"}, 2.0),
    "ingest": ({"reading", "following"}, 4.0),
    "apply": ({"applying", "following"}, 6.0),
}
"""Random moments: at most so many seconds after the child first says one of these."""


# --- the feed -------------------------------------------------------------------------------------


class SoakFeed:
    """The messages of a workload in the order of sending, and what they come to."""

    def __init__(
        self, name: str, protocol: str, *, rows: int, seed: int, watermarks: int, resends: int
    ) -> None:
        self.protocol = protocol
        self.workload: Workload = workload(
            name, rows=rows, seed=seed, rate=max(1, rows // watermarks)
        )
        extension = "&enable-tidb-extension=true" if protocol == "canal-json" else ""
        self.query = f"protocol={protocol}&partition-num={PARTITIONS}{extension}"
        config = ChangefeedConfig.from_uri(f"kafka://127.0.0.1:9092/soak?{self.query}")
        self._sender = Changefeed(config, clock=None, watermark_interval=0, remember=True)
        self.messages: list[Message] = []
        self._make(random.Random(seed), resends)
        self.last_ts = self._sender.watermark
        self.events = self._count_events()

    def _make(self, chance: random.Random, resends: int) -> None:
        parts = [part for batch in self.workload.batches() for part in _behind_watermarks(batch)]
        again = set(chance.sample(range(2, len(parts)), min(resends, len(parts) - 2)))
        marks = [0]
        for number, part in enumerate(parts):
            self._add(self._sender.send(part))
            if number in again:
                self._add(self._sender.resend(chance.choice(marks[-4:])))
            marks.append(self._sender.watermark)
        self._add(self._sender.close())

    def _add(self, sent: pa.RecordBatch) -> None:
        columns = (sent[name].to_pylist() for name in ("partition", "key", "value"))
        self.messages += (Message(*message, "") for message in zip(*columns, strict=True))

    def _count_events(self) -> int:
        keys, values = (
            pa.array([getattr(message, name) for message in self.messages], pa.binary())
            for name in ("key", "value")
        )
        kinds = Counter(decode_batch(self.protocol, keys, values)["kind"].to_pylist())
        assert not kinds["error"], kinds
        return kinds.total() - kinds["schema"]


def _behind_watermarks(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    marks = pc.indices_nonzero(pc.equal(batch["kind"], "watermark")).to_pylist()
    for start, end in pairwise([0, *(mark + 1 for mark in marks), batch.num_rows]):
        if end > start:
            yield batch.slice(start, end - start)


# --- killing --------------------------------------------------------------------------------------


@dataclass
class Ended:
    """How a child came to its end."""

    where: str
    """The boundary, or the last that it said before it was killed; `done` if it was not."""
    killed: bool
    seconds: float


@dataclass(frozen=True)
class SoakPlace:
    """Where a lake is: a folder with its own catalog, or a catalog that `settings` configure."""

    folder: str
    name: str
    settings: dict[str, str] = field(default_factory=dict)
    """Spark's settings of the catalog `name`; empty for a lake with its own catalog."""

    def open(self, spark: SparkSession) -> Lake:
        """The lake; created if it does not exist."""
        from tidegate.lake.formats.base import LakePlace
        from tidegate.lake.lake import Lake

        if self.settings:
            place = LakePlace(self.folder, catalog=self.name, prefix="soak_")
        else:
            place = LakePlace(self.folder, name=self.name)
        return Lake.create(spark, place)


@contextmanager
def rest_place() -> Iterator[SoakPlace]:
    """A REST catalog with its tables in S3; both servers run until the end."""
    from tests.support.rest_catalog import rest_catalog
    from tests.support.s3 import object_store

    with object_store() as store:
        store.create_bucket("soak")
        with rest_catalog(store, "s3://soak/warehouse") as catalog:
            prefix = "spark.sql.catalog.rest"
            settings = {prefix: "org.apache.iceberg.spark.SparkCatalog"}
            settings |= {f"{prefix}.{name}": value for name, value in catalog.spark().items()}
            settings |= {f"spark.hadoop.{name}": value for name, value in store.s3a().items()}
            yield SoakPlace("s3a://soak/lake", "rest", settings)


@dataclass
class Soak:
    """A topic, a lake, and children that mirror one into the other."""

    broker: Broker
    feed: SoakFeed
    folder: Path
    seed: int = 0
    topic: str = "soak"
    place: SoakPlace | None = None
    """Where the lake is; None: in `folder`, with its own catalog."""
    max_messages: int = 400
    max_step_seconds: float = 4.0
    passed: set[str] = field(default_factory=set)
    """The boundaries at which a child was killed."""
    ended: list[Ended] = field(default_factory=list)
    _sent: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._mark = f"{_MARK}={uuid4().hex}"
        self.broker.create(self.topic, partitions=PARTITIONS)

    @property
    def lake(self) -> Path:
        """The folder of a lake with its own catalog."""
        return self.folder / "lake"

    @property
    def kills(self) -> int:
        return sum(each.killed for each in self.ended)

    def open(self, spark: SparkSession) -> Lake:
        """The lake, under the name by which its catalog knows it."""
        return self.location.open(spark)

    @property
    def location(self) -> SoakPlace:
        """Where the lake is."""
        return self.place or SoakPlace(str(self.lake), self.topic)

    def send(self, share: float) -> None:
        """Sends the feed up to this share of its messages."""
        end = round(len(self.feed.messages) * share)
        if end > self._sent:
            self.broker.send({self.topic: self.feed.messages[self._sent : end]})
            self._sent = end

    def run(
        self, how: str | None = None, *, armed: Iterable[str] = (), follow: bool = False
    ) -> Ended:
        """One child, until it is killed or done.

        `armed` are boundaries at which it kills itself, when it first passes one; `how` is one of
        MOMENTS, and it is killed at a random time after that, if it has not ended by then.
        """
        command = [sys.executable, "-m", "tests.support.soak", "child"]
        command += [json.dumps(asdict(self.location))]
        command += [f"kafka://{self.broker.address}/{self.topic}?{self.feed.query}"]
        command += ["--max-messages", str(self.max_messages)]
        command += ["--max-step-seconds", str(self.max_step_seconds)]
        command += ["--kill", ",".join(armed)]
        if follow:
            command += ["--follow", str(self.feed.last_ts)]
        started = time.monotonic()
        log = self.folder / f"child-{len(self.ended)}.log"
        with log.open("wb") as errors:
            child = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | dict([self._mark.split("=")]),
            )
        hanging = threading.Timer(LONGEST_RUN, child.kill)
        hanging.start()
        try:
            with child:
                where = self._listen(child, how)
            code = child.returncode
        finally:
            hanging.cancel()
            child.kill()
        seconds = time.monotonic() - started
        if seconds > LONGEST_RUN:
            raise AssertionError(f"the mirror hangs after {where!r}:\n{_end_of(log)}")
        if code not in (0, -signal.SIGKILL):
            raise AssertionError(f"the mirror ended with {code} after {where!r}:\n{_end_of(log)}")
        ended = Ended(where, code != 0, seconds)
        if ended.killed and where in armed:
            self.passed.add(where)
        self.ended.append(ended)
        return ended

    def _listen(self, child: subprocess.Popen[str], how: str | None) -> str:
        """Follows what the child says; kills it in time. The last that it said."""
        assert child.stdout is not None
        waited_for, most = MOMENTS[how] if how is not None else (set(), 0.0)
        timer: threading.Timer | None = None
        said = "nothing"
        for line in child.stdout:
            said = line.strip()
            if said in waited_for and timer is None:
                timer = threading.Timer(self._chance.random() * most, child.kill)
                timer.start()
        if timer is not None:
            timer.cancel()
        return said

    def wait_for_the_dead(self) -> float:
        """Until nothing is left of what the children started; the seconds that took."""
        started = time.monotonic()
        while alive := _processes_with(self._mark):
            if time.monotonic() - started > _ENDING_SECONDS:
                raise AssertionError(f"these live on after their mirror was killed: {alive}")
            time.sleep(0.1)
        return time.monotonic() - started


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-4000:]


def _processes_with(mark: str) -> list[str]:
    """The processes that have this in their environment, with their commands."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes()
                found.append(f"{entry.name} {command[:80].decode(errors='replace')}")
        except OSError:  # it has ended meanwhile, or is none of ours
            continue
    return found


# --- the child ------------------------------------------------------------------------------------


@contextmanager
def mirror_session(more: Mapping[str, str]) -> Iterator[Any]:
    """A small Spark session that starts quickly, with more settings."""
    from tidegate.spark import session

    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m "
        "-XX:+UseSerialGC",
        **more,
    }
    spark = session(
        "tidegate-soak", master="local[2]", settings=settings, libraries=("kafka", "iceberg")
    )
    try:
        yield spark
    finally:
        spark.stop()


def _child(options: argparse.Namespace) -> None:
    """Mirrors, and kills itself when it passes one of the boundaries that it was told."""
    from tidegate.lake.job.mirror import MirrorSettings
    from tidegate.lake.job.run import MirrorRun, Progress
    from tidegate.lake.job.settings import LakeSettings
    from tidegate.lake.job.source import open_feed

    place = SoakPlace(**json.loads(options.place))
    armed = set(filter(None, options.kill.split(",")))
    once_said = set()

    def say(what: str) -> None:
        if what not in once_said:
            once_said.add(what)
            print(what, flush=True)

    def boundary(name: str) -> None:
        if name in armed:
            os.write(1, f"{name}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def progress(told: Progress) -> None:
        say(told.phase)

    with mirror_session(place.settings) as spark:
        say("session")
        lake = place.open(spark)
        limits = LakeSettings(source=options.uri, max_messages=options.max_messages)
        identity = {"topics": "soak", "uri": options.uri.partition("?")[2]}
        feed = replace(open_feed(spark, limits), identity=identity)
        settings = MirrorSettings(max_step_seconds=options.max_step_seconds)
        run = MirrorRun(lake, feed, settings, on_progress=progress, boundary=boundary)
        if options.follow is None:
            run.once()
        else:
            run.forever(lambda: run.progress.applied_ts >= options.follow)


# --- what must hold -------------------------------------------------------------------------------


def check(lake: Lake, soak: Soak, *, instants: int) -> int:
    """Compares the lake with the truth; how many instants were looked at.

    The tables at the last instant and at a sample of all that were recorded; and the changelog: every
    event of every message of the topic, once.
    """
    from tests.support.lake import contents, expected

    feed = soak.feed
    recorded = sorted({ts for ts, _ in lake.snapshots.instants()})
    state = lake.snapshots.state()
    assert state is not None
    assert state.applied_ts == recorded[-1] == feed.last_ts
    sample = random.Random(soak.seed).sample(recorded, min(instants, len(recorded)))
    for ts in sorted({*sample, recorded[-1]}):
        actual, truth = contents(lake, ts), expected(model_of(feed.workload.at(ts)))
        assert actual.keys() == truth.keys(), ts
        for name, rows in truth.items():
            assert actual[name] == rows, (ts, name)
    _check_changelog(lake, soak)
    return len(recorded)


def _check_changelog(lake: Lake, soak: Soak) -> None:
    from pyspark.sql import functions as F

    # A message whose rows are of a new shape has a schema event before them.
    place = ["topic", "partition", "offset", "event", "shape"]
    log = lake.changelog.read().withColumn(
        "shape", F.when(F.col("kind") == "schema", F.col("shape"))
    )
    twice = log.groupBy(*place).count().where("count > 1").limit(5).collect()
    assert not twice, twice
    events = log.where("kind <> 'schema'")
    assert events.count() == soak.feed.events
    found = events.groupBy("partition").agg(F.countDistinct("offset"), F.max("offset")).collect()
    sent = Counter(message.partition for message in soak.feed.messages)
    assert {row[0]: (row[1], row[2]) for row in found} == {
        partition: (count, count - 1) for partition, count in sent.items()
    }


# --- make soak ------------------------------------------------------------------------------------


def _soak(options: argparse.Namespace) -> None:
    started = time.monotonic()
    rounds = options.rounds
    feed = SoakFeed(
        options.workload,
        options.protocol,
        rows=options.rows,
        seed=options.seed,
        watermarks=4 * rounds,
        resends=rounds // 3,
    )
    print(
        f"soak: {options.workload} as {options.protocol}, {options.rows:,} row changes, "
        f"{len(feed.messages):,} messages, seed {options.seed}; {rounds} kills are wanted",
        flush=True,
    )
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-soak-"))
        running = stack.enter_context(broker())
        place = stack.enter_context(rest_place()) if options.place == "rest" else None
        soak = Soak(running, feed, Path(name), seed=options.seed, place=place)
        chance = random.Random(options.seed)
        ways = [AT_BOUNDARY, *MOMENTS]
        while soak.kills < rounds:
            number = len(soak.ended)
            soak.send(min(1.0, (soak.kills + 1) / rounds))
            how = ways[number % len(ways)]
            # A boundary that is seldom passed is waited for at every start.
            armed = set(BOUNDARIES) - soak.passed
            if how == AT_BOUNDARY and not armed:
                armed = {chance.choice(BOUNDARIES)}
            if how == AT_BOUNDARY:
                ended = soak.run(armed=armed)
            else:
                ended = soak.run(how, armed=armed, follow=number % 8 > 3)
            what = "killed" if ended.killed else "done, not killed"
            print(
                f"soak: {soak.kills:3}/{rounds} {what} at {ended.where} after "
                f"{ended.seconds:.1f} s ({how})",
                flush=True,
            )
            if number > 4 * rounds:
                raise AssertionError("the children end before they are killed: give more rows")
        soak.send(1.0)
        last = soak.run()
        assert not last.killed
        leaving = soak.wait_for_the_dead()
        print(f"soak: the last run ended after {last.seconds:.1f} s; comparing", flush=True)
        with mirror_session(soak.location.settings) as spark:
            recorded = check(soak.open(spark), soak, instants=options.instants)
    summary = {
        "kills": soak.kills,
        "runs": len(soak.ended),
        "boundaries": sorted(soak.passed),
        "killed": dict(Counter(each.where for each in soak.ended if each.killed)),
        "messages": len(feed.messages),
        "events": feed.events,
        "snapshots": recorded,
        "compared": min(options.instants + 1, recorded),
        "lastProcessGoneAfterSeconds": round(leaving, 1),
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(summary))
    unpassed = set(BOUNDARIES) - soak.passed
    if unpassed:
        raise SystemExit(f"soak: never killed at {', '.join(sorted(unpassed))}: give more rows")
    print(f"soak: all tables equal the truth after {soak.kills} kills, each event once")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="kill a mirror many times, then compare")
    run.add_argument("--rounds", type=int, default=50)
    run.add_argument("--rows", type=int, default=20_000)
    run.add_argument("--seed", type=int, default=1)
    run.add_argument("--workload", default="orders", choices=["orders", "bank"])
    run.add_argument("--protocol", default="canal-json")
    run.add_argument("--instants", type=int, default=12)
    run.add_argument(
        "--place",
        default="embedded",
        choices=["embedded", "rest"],
        help="rest: REST catalog and S3",
    )
    child = commands.add_parser("child", help="mirror; what `run` starts")
    child.add_argument("place", help="a SoakPlace, as JSON")
    child.add_argument("uri")
    child.add_argument("--kill", default="")
    child.add_argument("--follow", type=int)
    child.add_argument("--max-messages", type=int, default=400)
    child.add_argument("--max-step-seconds", type=float, default=4.0)
    options = parser.parse_args()
    (_child if options.command == "child" else _soak)(options)


if __name__ == "__main__":
    main()
