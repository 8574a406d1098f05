"""One mirror at a time: who gets the lease of a lake, and that nobody else's commit counts.

Most combinations of places and moments run with TIDEGATE_ALL=1 only.
"""

import os
import signal
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from uuid import uuid4

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from tests.support.lake import new_lake
from tests.support.leased_mirror import leased_mirror
from tests.support.soak import Soak, SoakFeed, check
from tidegate.lake.formats import open_format
from tidegate.lake.formats.base import OP, LakePlace, Position, TablePassed
from tidegate.lake.formats.commits import CommitConflict, Guard, LeaseLost
from tidegate.lake.job.mirror import MirrorSettings
from tidegate.lake.job.run import MirrorRun
from tidegate.lake.job.settings import LakeSettings
from tidegate.lake.job.source import open_feed
from tidegate.lake.lake import Lake
from tidegate.lake.lease import (
    LakeTaken,
    Lease,
    LeaseClock,
    LeaseEntry,
    LeaseOwner,
    LeaseRecord,
    check_free,
    local_lease,
)
from tidegate.lake.storage.log_files import rows_of
from tidegate.model import ConfigError
from tidegate.spark.types import spark_schema
from tidegate.sql.ddl import transition

ALL = bool(os.environ.get("TIDEGATE_ALL"))


# --- who has it -----------------------------------------------------------------------------------


class Clock(LeaseClock):
    """Time that passes when somebody waits; `events` happen at their time."""

    def __init__(self):
        self.time = 1000.0
        self.events = []

    def now(self):
        return self.time

    def wait(self, seconds):
        self.pass_by(seconds)

    def pass_by(self, seconds):
        end = self.time + seconds
        due = sorted((event for event in self.events if event[0] <= end), key=lambda each: each[0])
        self.events = [event for event in self.events if event[0] > end]
        for at, happen in due:
            self.time = max(self.time, at)
            happen()
        self.time = end

    def at(self, seconds, happen):
        self.events.append((self.time + seconds, happen))


class MemoryRecord(LeaseRecord):
    """A lake's record of its lease, and the epoch of its logs."""

    place = "lake"

    def __init__(self):
        self.text = None
        self.epoch = 0
        self.fails = None

    def read(self):
        return self.text

    def write(self, text, expected):
        if self.fails is not None:
            raise self.fails
        if self.text != expected:
            raise LeaseLost("another one")
        self.text = text

    def fence(self, epoch):
        self.epoch = epoch

    def tidy(self):
        pass


ELSEWHERE = LeaseOwner("a", "there", 7, "1", "another machine")
HERE = LeaseOwner.new()
GONE = replace(HERE, pid=1 << 30)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def record():
    return MemoryRecord()


@pytest.fixture
def lease(record, clock):
    def make(owner=ELSEWHERE, seconds=30.0):
        return Lease(record, seconds, owner=replace(owner, id=uuid4().hex), clock=clock)

    return make


def test_a_lease_that_was_given_back_is_had_at_once_in_the_next_epoch(lease, record, clock):
    first, second = lease(), lease()
    first.acquire()
    assert record.epoch == first.epoch == 1
    first.release()
    second.acquire()
    assert record.epoch == second.epoch == 2
    assert clock.now() == 1000.0
    with pytest.raises(LeaseLost, match="has given back its lease"):
        first.check()


def test_an_owner_that_renews_is_seen_to_live_and_the_other_is_refused(lease, clock):
    first, second = lease(), lease()
    first.acquire()
    clock.at(10.0, first.renew)
    with pytest.raises(
        LakeTaken,
        match=r"at work on the lake 'lake': process 7 on there, whose lease runs until "
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC unless it renews it\. Stop it first",
    ):
        second.acquire()
    assert clock.now() <= 1000.0 + 10.0 + 3.0
    first.check()


def test_an_owner_of_another_machine_is_taken_over_after_the_time_of_its_lease(lease, clock):
    first, second = lease(seconds=20.0), lease(seconds=30.0)
    first.acquire()
    clock.pass_by(15.0)  # what the other does not know of
    second.acquire()
    assert 1000.0 + 15.0 + 20.0 <= clock.now() <= 1000.0 + 15.0 + 20.0 + 2.0
    assert second.epoch == 2
    with pytest.raises(LeaseLost, match="process 7 on there has its lease"):
        first.check()
    with pytest.raises(LeaseLost):
        first.renew()
    second.check()


def test_an_owner_is_never_valid_when_another_may_have_taken_over(lease, clock):
    """Its lease counts from before the renewal, the other's patience from after it was seen."""
    first = lease()
    before = clock.now()
    first.acquire()
    clock.pass_by(before + 30.0 - clock.now() - 4.9)
    assert not first._is_valid()


def test_an_owner_of_this_machine_is_judged_by_its_clock(lease, clock):
    first, second = lease(HERE), lease(HERE)
    first.acquire()
    clock.pass_by(29.0)
    with pytest.raises(LakeTaken, match=f"process {os.getpid()} on "):
        second.acquire()
    assert clock.now() == 1029.0
    clock.pass_by(1.0)
    second.acquire()
    assert clock.now() == 1030.0


def test_a_process_of_this_machine_that_has_ended_is_not_waited_for(lease, clock):
    first, second = lease(GONE), lease(HERE)
    first.acquire()
    second.acquire()
    assert clock.now() == 1000.0


def test_a_number_that_another_process_has_now_is_not_the_owners(lease, clock):
    first, second = lease(replace(HERE, started="1")), lease(HERE)
    first.acquire()
    second.acquire()
    assert clock.now() == 1000.0


def test_an_owner_that_was_paused_goes_on_where_nobody_came(lease, clock):
    first = lease()
    first.acquire()
    clock.pass_by(100.0)
    first.check()
    assert first.epoch == 1


def test_a_renewal_that_fails_is_raised_when_the_lease_has_run_out(lease, record, clock):
    first = lease()
    first.acquire()
    record.fails = OSError("unreachable")
    clock.pass_by(20.0)
    first.check()
    clock.pass_by(6.0)
    with pytest.raises(OSError, match="unreachable"):
        first.check()
    record.fails = None
    first.check()


def test_of_two_that_take_over_at_once_one_is_refused(lease, record, clock):
    dead, first, second = lease(GONE), lease(HERE), lease(HERE)
    dead.acquire()
    write = record.write

    def slower(text, expected):
        record.write = write
        first.acquire()
        write(text, expected)

    record.write = slower
    with pytest.raises(LakeTaken):
        second.acquire()
    assert (record.epoch, first.epoch) == (2, 2)
    first.check()


def test_an_entry_is_read_as_it_was_written():
    for entry in (LeaseEntry(), LeaseEntry(3, HERE, 30.0, 12.5, "2026-11-18 10:00:00 UTC")):
        assert LeaseEntry.from_text(entry.to_text()) == entry


def test_a_lease_is_a_second_at_least():
    assert LakeSettings.parse("[lake]\nlease = '5s'\n").mirror().lease_seconds == 5.0
    with pytest.raises(ConfigError, match="a second at least"):
        LakeSettings.parse("[lake]\nlease = '10ms'\n")


# --- commits --------------------------------------------------------------------------------------

NUMBERS = StructType([StructField("n", IntegerType())])


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_log_takes_no_commit_of_an_earlier_epoch(spark, tmp_path, table_format):
    lake, other = (new_lake(spark, tmp_path / "lake", table_format) for _ in range(2))
    with ExitStack() as stack:
        stack.enter_context(lake.leased(60.0))
        log = lake.changelog.log
        place = lake.place
        assert local_lease(place, table_format).owner.pid == os.getpid()
        with pytest.raises(LakeTaken, match="Another mirror is at work"):
            check_free(place, table_format)
        with pytest.raises(LakeTaken):
            stack.enter_context(other.leased())
        log.set_properties({"mine": "1"})
        other.changelog.log.fence(7)
        for commit in (
            lambda: log.set_properties({"mine": "2"}),
            lambda: log.fence(6),
        ):
            with pytest.raises(LeaseLost, match="Another mirror has taken over the lake"):
                commit()
        assert log.properties()["mine"] == "1"
    check_free(place, table_format)
    assert local_lease(place, table_format).owner is None


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_commit_to_a_log_is_to_the_state_that_was_checked(spark, tmp_path, table_format):
    tables = open_format(
        table_format, spark, LakePlace(str(tmp_path), name=f"checked_{uuid4().hex}")
    )
    log = tables.create_log("numbers", NUMBERS)
    loaded = log.load()
    log.set_properties({"owner": "another"})
    files = loaded.writer().write_here(rows_of(NUMBERS, [(1,)]))
    with pytest.raises(CommitConflict):
        loaded.commit(files, {"owner": "me"})
    assert log.properties()["owner"] == "another"
    log.append(files, {"owner": "me"}, {"owner": "another"})
    assert tables.read(log.identifier).count() == 1


class Interruption(Guard):
    """Lets something happen at the last moment before a commit."""

    def __init__(self, happen):
        self._happen = happen

    def check(self):
        happen, self._happen = self._happen, lambda: None
        happen()


CREATE = "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))"
OPERATIONS = {
    "merge": lambda t, i, p, frame: t.merge(i, frame([(1, "x", "u"), (3, "c", "u")]), ["id"], p),
    "replace_rows": lambda t, i, p, frame: t.replace_rows(i, frame([(3, "c", "u")]), p),
    "append": lambda t, i, p, frame: t.append(i, frame([(3, "c", "u")]).drop(OP), p),
    "delete": lambda t, i, p, frame: t.delete(i, "id = 1", p),
    "delete all": lambda t, i, p, frame: t.delete(i, None, p),
    "stamp": lambda t, i, p, frame: t.stamp(i, p),
    "evolve": lambda t, i, p, frame: t.evolve(
        i,
        t.upstream_schema(i),
        transition(t.upstream_schema(i), "ALTER TABLE t ADD COLUMN n INT DEFAULT 5", "shop"),
        p,
    ),
}


@pytest.mark.parametrize("table_format", ["iceberg", "delta"] if ALL else ["iceberg"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_step_of_a_mirror_that_was_paused_changes_nothing_any_more(
    spark, tmp_path, table_format, operation
):
    """While it is paused before its commit, another one does the same step and a later one."""
    place = LakePlace(str(tmp_path / "lake"), name=f"paused_{uuid4().hex}")
    ours, theirs = (open_format(table_format, spark, place) for _ in range(2))
    schema = transition(None, CREATE, "shop").after
    kind = StructType([*spark_schema(schema.carried).fields, StructField(OP, StringType())])

    def frame(rows):
        return spark.createDataFrame(rows, kind)

    identifier = ours.create("shop", "t", schema, Position(10, 1))
    ours.append(identifier, frame([(1, "a", "u"), (2, "b", "u")]).drop(OP), Position(11))
    step = OPERATIONS[operation]

    def another():
        step(theirs, identifier, Position(12, 1), frame)
        theirs.stamp(identifier, Position(13))

    ours.guard = Interruption(another)
    with pytest.raises((CommitConflict, TablePassed, PySparkException, Py4JJavaError)):
        step(ours, identifier, Position(12, 1), frame)
    after = sorted(map(tuple, theirs.read(identifier).collect()))
    assert theirs.position(identifier) == Position(13)
    # As the other one left it: done once.
    alone = theirs.create("shop", "alone", schema, Position(10, 1))
    theirs.append(alone, frame([(1, "a", "u"), (2, "b", "u")]).drop(OP), Position(11))
    step(theirs, alone, Position(12, 1), frame)
    assert after == sorted(map(tuple, theirs.read(alone).collect()))


# --- two processes --------------------------------------------------------------------------------

LEASE = 6.0
LONG = 90.0
"""So long that nobody can have waited for its end."""


@cache
def bank():
    return SoakFeed("bank", "canal-json", rows=300, seed=3, watermarks=4, resends=1)


@pytest.fixture
def soak(kafka, tmp_path, request):
    """A topic of its own."""
    topic = f"lease-{uuid4().hex[:8]}"
    return Soak(kafka, bank(), tmp_path, topic=topic)


def embedded(request, folder):
    return {"folder": str(folder / "lake"), "name": f"lease_{uuid4().hex[:8]}"}


def delta(request, folder):
    return {"folder": str(folder / "lake"), "format": "delta"}


def rest_and_s3(request, folder):
    name = f"c{uuid4().hex[:8]}"
    catalog = f"spark.sql.catalog.{name}"
    settings = {catalog: "org.apache.iceberg.spark.SparkCatalog"}
    for setting, value in request.getfixturevalue("rest_catalog").spark().items():
        settings[f"{catalog}.{setting}"] = value
    return {
        "folder": f"s3a://lake/{name}",
        "catalog": name,
        "prefix": f"{name}_",
        "spark": settings,
    }


PLACES = {each.__name__: each for each in (embedded, delta, rest_and_s3)}


def uri_of(soak):
    return f"kafka://{soak.broker.address}/{soak.topic}?{soak.feed.query}"


def opened(spark, place):
    """The lake of a place, in this process."""
    given = dict(place)
    settings, format_name = given.pop("spark", {}), given.pop("format", "iceberg")
    for name, value in settings.items():
        spark.conf.set(name, value)
    return Lake.create(spark, LakePlace(**given), format_name)


def mirror_here(spark, lake, soak, seconds=LEASE):
    feed = open_feed(spark, LakeSettings(source=uri_of(soak), max_messages=400))
    settings = MirrorSettings(lease_seconds=seconds, max_step_seconds=4.0)
    return MirrorRun(lake, feed, settings)


def taken_over(spark, lake, soak):
    """Mirrors as soon as the lake can be had."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return mirror_here(spark, lake, soak).once()
        except LakeTaken:
            assert time.monotonic() < deadline
            time.sleep(0.2)


@pytest.mark.parametrize("where", PLACES if ALL else ["embedded"])
def test_a_second_mirror_is_refused_and_a_killed_one_is_taken_over(
    spark, soak, tmp_path, request, where
):
    place = PLACES[where](request, tmp_path)
    soak.send(0.5)
    with leased_mirror(tmp_path / "child.log", uri_of(soak), place, lease=LONG) as child:
        child.wait_for("following")
        lake = opened(spark, place)
        with pytest.raises(
            LakeTaken, match=rf"process {child.process.pid} on .*, whose lease runs until 2"
        ):
            mirror_here(spark, lake, soak).once()
        soak.send(1.0)
        child.process.kill()
        child.process.wait()
        # Of a process that is known to be dead nobody waits for the lease.
        started = time.monotonic()
        with lake.leased(LONG):
            assert time.monotonic() - started < LONG / 2
        mirror_here(spark, lake, soak).once()
    check(lake, soak, instants=2)


MOMENTS = ["ingested", "intended", "rows", "applied"]
PAUSES = [("embedded", "intended")]
if ALL:
    PAUSES = [(where, moment) for where in PLACES for moment in MOMENTS]


@pytest.mark.parametrize(("where", "moment"), PAUSES)
def test_a_mirror_that_was_paused_past_its_lease_cannot_commit(
    spark, soak, tmp_path, request, where, moment
):
    place = PLACES[where](request, tmp_path)
    soak.send(0.5)
    options = {"lease": LEASE, "pause": moment}
    with leased_mirror(tmp_path / "child.log", uri_of(soak), place, **options) as child:
        child.wait_for(f"paused at {moment}")
        soak.send(1.0)
        lake = opened(spark, place)
        taken_over(spark, lake, soak)
        check(lake, soak, instants=2)
        before = lake.snapshots.at()
        child.signal(signal.SIGCONT)
        assert "Another mirror has taken over the lake" in child.wait_for("ended")
        assert child.process.wait() != 0
    assert lake.snapshots.at() == before
    check(lake, soak, instants=2)
    for each in before:
        assert lake.tables.version(each.identifier) == each.version
