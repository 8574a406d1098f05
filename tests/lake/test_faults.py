"""What goes wrong around a mirror: a sentence says so, and when it is mended nothing was lost.

Faults of the mirror's own process are those of test_crash.py.
"""

import os
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from datetime import timedelta
from functools import cache

import pytest

from tests.support.lake import new_lake
from tests.support.soak import Soak, SoakFeed, check
from tidegate.cli.app import commands
from tidegate.lake.changelog.ingest import ROUND
from tidegate.lake.job.mirror import MirrorSettings
from tidegate.lake.job.run import MirrorRun
from tidegate.lake.job.settings import LakeSettings
from tidegate.lake.job.source import open_feed
from tidegate.lake.lake import check_folder
from tidegate.lake.storage.file_store import make_folder
from tidegate.model import LakeError, SourceError

ALL = os.environ.get("TIDEGATE_ALL")


@cache
def bank():
    return SoakFeed("bank", "canal-json", rows=300, seed=3, watermarks=4, resends=1)


@pytest.fixture
def soak(kafka, tmp_path, request):
    """A topic of its own and a place for a lake."""
    return Soak(kafka, bank(), tmp_path, topic=request.node.name.replace("[", "-").rstrip("]"))


def feed_of(spark, soak, **identity):
    uri = f"kafka://{soak.broker.address}/{soak.topic}?{soak.feed.query}"
    settings = LakeSettings(source=uri, max_messages=identity.pop("max_messages", 300))
    named = {"topics": soak.topic, "protocol": "canal-json"} | identity
    return replace(open_feed(spark, settings), identity=named)


def mirrored(spark, soak, **identity):
    """Reads what is there and applies it."""
    lake = new_lake(spark, soak.lake)
    MirrorRun(lake, feed_of(spark, soak, **identity), MirrorSettings(max_step_seconds=2)).once()
    return lake


# --- the topic ------------------------------------------------------------------------------------


def test_messages_that_are_gone_before_they_were_read_are_reported(spark, soak):
    soak.send(0.3)
    mirrored(spark, soak)
    soak.send(1.0)
    ends = dict.fromkeys(range(3), 0)
    for message in soak.feed.messages:
        ends[message.partition] += 1
    soak.broker.delete_before(soak.topic, {n: end - 1 for n, end in ends.items()})
    for _ in range(2):
        with pytest.raises(SourceError, match=r"were deleted before they were read: offset \d+ to"):
            mirrored(spark, soak)


def test_a_topic_that_was_deleted_and_created_again_is_another_one(spark, soak):
    soak.send(0.3)
    lake = mirrored(spark, soak)
    events, position = lake.changelog.read().count(), lake.changelog.log.properties()[ROUND]
    soak.broker.delete(soak.topic)
    again = Soak(soak.broker, bank(), soak.folder, topic=soak.topic)
    again.send(1.0)
    with pytest.raises(SourceError, match="it was deleted and created again: its id is"):
        mirrored(spark, soak)
    assert lake.changelog.read().count() == events
    assert lake.changelog.log.properties()[ROUND] == position


def test_a_round_that_is_cut_off_before_its_commit_is_read_again(spark, soak):
    class Cut(Exception):
        pass

    def cut(name):
        if name == "ingested":
            raise Cut

    soak.send(1.0)
    lake = new_lake(spark, soak.lake)
    with pytest.raises(Cut):
        MirrorRun(lake, feed_of(spark, soak), boundary=cut).once()
    assert lake.is_empty()
    check(mirrored(spark, soak), soak, instants=2)


# --- two of them, or another feed -----------------------------------------------------------------


def test_a_second_mirror_on_the_lake_is_refused(spark, soak):
    soak.send(0.1)
    with (
        new_lake(spark, soak.lake).leased(),
        pytest.raises(LakeError, match=r"Another mirror is at work on the lake .*: process \d+ on"),
    ):
        mirrored(spark, soak)
    mirrored(spark, soak)


def test_another_feed_is_refused_and_other_brokers_and_rates_are_not(spark, soak):
    soak.send(0.5)
    mirrored(spark, soak)
    with pytest.raises(LakeError, match=r"whose topics is 'test_another.*', not 'others'"):
        mirrored(spark, soak, topics="others")
    with pytest.raises(LakeError, match="whose protocol is 'canal-json', not 'simple'"):
        mirrored(spark, soak, protocol="simple")
    soak.send(1.0)
    check(mirrored(spark, soak, max_messages=50), soak, instants=1)


@pytest.mark.parametrize("table_format", ["iceberg", *(["delta"] if ALL else [])])
def test_a_lake_that_was_moved_or_copied_is_refused(spark, soak, table_format):
    lake = new_lake(spark, soak.lake, table_format)
    lake.set_claim({"topics": soak.topic})
    for change in (shutil.copytree, shutil.move):
        other = soak.folder / change.__name__
        change(soak.lake, other)
        with pytest.raises(LakeError, match=r"was moved or copied: it was made in .* Move it back"):
            new_lake(spark, other, table_format)


def test_a_lake_may_be_where_a_link_at_its_old_place_leads(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    new.mkdir()
    with pytest.raises(LakeError, match="was moved or copied"):
        check_folder(str(old), str(new))
    old.symlink_to(new)
    check_folder(str(old), str(new))


def test_a_feed_is_the_lakes_from_the_start(spark, soak):
    """Also where the first mirror was cut off before it had recorded anything."""

    class Cut(Exception):
        pass

    def cut(name):
        if name == "observed":
            raise Cut

    soak.send(0.2)
    lake = new_lake(spark, soak.lake)
    with pytest.raises(Cut):
        MirrorRun(lake, feed_of(spark, soak), boundary=cut).once()
    assert lake.snapshots.state() is None
    with pytest.raises(LakeError, match="whose topics is"):
        mirrored(spark, soak, topics="others")


# --- the disk -------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(soak):
    """The lake's folder as a disk of its own, which is nearly full; gives what fills it."""
    soak.lake.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(soak.lake)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("to mount a small disk takes root")
    try:
        yield soak.lake / "filler"
    finally:
        # Lazily, since Spark may still have files open.
        subprocess.run(["umount", "--lazy", str(soak.lake)], check=True)


def fill_disk(filler, leave):
    """Leaves so many bytes."""
    free = shutil.disk_usage(filler.parent).free
    with filler.open("ab") as file:
        file.write(bytes(max(0, free - leave)))


def test_a_place_where_no_lake_can_be_is_told(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(LakeError, match=r"cannot be written to: Not a directory\. Make room"):
        make_folder(file / "lake")


NO_SPACE = r"(?i)^[^\n]*no space (is )?left on[^\n]*make room [^\n]*start the mirror again\.$"


def test_a_full_disk_is_told_and_the_mirror_goes_on_when_there_is_room(spark, soak, small_disk):
    lake = new_lake(spark, soak.lake)
    soak.send(1.0)

    def run():
        settings = MirrorSettings(max_step_seconds=1)
        return MirrorRun(lake, feed_of(spark, soak), settings).once()

    fill_disk(small_disk, 0)
    with pytest.raises(LakeError, match=NO_SPACE):
        run()
    # A lake that is to be made there, by the command.
    uri = f"kafka://{soak.broker.address}/{soak.topic}?{soak.feed.query}"
    command = ["mirror", uri, "--lake", str(soak.lake / "new"), "--once"]
    with pytest.raises(LakeError, match=NO_SPACE):
        commands.main(command, standalone_mode=False)
    # Room for a while: it ends in the middle.
    small_disk.unlink()
    fill_disk(small_disk, 60_000)
    with pytest.raises(LakeError, match=NO_SPACE):
        run()
    small_disk.unlink()
    check(mirrored(spark, soak), soak, instants=1)


# --- Kafka ----------------------------------------------------------------------------------------

OUTAGES = ["long"]  # longer than the client is patient
if ALL:
    OUTAGES.append("short")


@pytest.mark.parametrize("outage", OUTAGES)
def test_a_mirror_goes_on_by_itself_when_kafka_was_away(spark, soak, outage, monkeypatch):
    if outage == "long":
        monkeypatch.setattr("tidegate.source.kafka.LATER_PATIENCE", 1.0)
    soak.send(0.4)
    lake = new_lake(spark, soak.lake)
    feed = feed_of(spark, soak)
    phases, seen = [], threading.Event()

    def restart():
        with soak.broker.stopped():
            assert seen.wait(120)
        soak.send(1.0)

    broker_restarts = threading.Thread(target=restart)

    def progress(told):
        phases.append(told.phase)
        if told.rows and not broker_restarts.ident:
            broker_restarts.start()
            phases.clear()
        if "waiting for Kafka" in phases or (outage == "short" and len(phases) > 20):
            seen.set()

    # Maintained after every step, while ingest goes on.
    settings = MirrorSettings(maintain_seconds=0.0, keep=timedelta(days=36_500))
    run = MirrorRun(lake, feed, settings, on_progress=progress)
    deadline = time.monotonic() + 300
    run.forever(
        lambda: run.progress.applied_ts >= soak.feed.last_ts or time.monotonic() > deadline,
        interval=0.2,
    )
    broker_restarts.join()
    check(lake, soak, instants=1)
    assert run.progress.messages == len(soak.feed.messages)
