"""What goes wrong around a mirror: a sentence says so, and when it is mended nothing was lost.

Faults of the mirror's own process are those of test_crash.py.
"""

import re
import shutil
import subprocess
from functools import cache

import pytest

from tests.support.lake import new_lake
from tests.support.soak import Soak, SoakFeed, check
from tidegate.lake.lock import lake_lock
from tidegate.lake.mirror import MirrorSettings
from tidegate.lake.run import Feed, MirrorRun
from tidegate.model import LakeError
from tidegate.spark import changes


@cache
def bank():
    return SoakFeed("bank", "canal-json", rows=300, seed=3, watermarks=4, resends=1)


@pytest.fixture
def soak(kafka, tmp_path, request):
    """A topic of its own and a place for a lake."""
    return Soak(kafka, bank(), tmp_path, topic=request.node.name.replace("[", "-").rstrip("]"))


def feed_of(spark, soak, **identity):
    uri = f"kafka://{soak.broker.address}/{soak.topic}?{soak.feed.query}"
    frame = changes(spark, uri, max_per_trigger=identity.pop("max_per_trigger", 300))
    return Feed(frame, {"topics": soak.topic, "protocol": "canal-json"} | identity)


def mirrored(spark, soak, **identity):
    """Reads what is there and applies it."""
    lake = new_lake(spark, soak.lake)
    MirrorRun(lake, feed_of(spark, soak, **identity), MirrorSettings(max_step_seconds=2)).once()
    return lake


# --- the checkpoint -------------------------------------------------------------------------------


def damage_last(folder, content):
    files = [file for file in folder.iterdir() if file.name.isdigit()]
    last = max(files, key=lambda file: int(file.name))
    last.write_text(content)
    return last


def remove_last(folder):
    last = damage_last(folder, "")
    last.unlink()
    (folder / f".{last.name}.crc").unlink(missing_ok=True)


DAMAGES = {
    "offsets changed": lambda place: damage_last(place / "offsets", 'v1\n{}\n{"t":{"0":1}}'),
    "commit cut off": lambda place: damage_last(place / "commits", "v1\n{"),
    "an older copy": lambda place: (remove_last(place / "offsets"), remove_last(place / "commits")),
    "offsets gone": lambda place: shutil.rmtree(place / "offsets"),
    "metadata gone": lambda place: (place / "metadata").unlink(),
}


def test_a_damaged_checkpoint_is_seen_and_can_be_removed(spark, soak):
    for part in (0.3, 0.6):  # two batches, so that there is an older copy
        soak.send(part)
        mirrored(spark, soak)
    place = soak.lake / "checkpoint"
    sound = soak.folder / "sound"
    shutil.copytree(place, sound)
    soak.send(1.0)
    for damage in DAMAGES.values():
        damage(place)
        with pytest.raises(LakeError, match=r"^The checkpoint .* is damaged: .*\. Remove that"):
            mirrored(spark, soak)
        shutil.rmtree(place)
        shutil.copytree(sound, place)
    # The way out that the error names.
    shutil.rmtree(place)
    lake = mirrored(spark, soak)
    check(lake, soak, instants=2)


def test_a_lost_checkpoint_is_no_reason_to_pass_over_messages_that_are_gone(spark, soak):
    soak.send(0.3)
    mirrored(spark, soak)
    soak.send(1.0)
    shutil.rmtree(soak.lake / "checkpoint")
    ends = dict.fromkeys(range(3), 0)
    for message in soak.feed.messages:
        ends[message.partition] += 1
    soak.broker.delete_before(soak.topic, {n: end - 1 for n, end in ends.items()})
    for _ in range(2):
        with pytest.raises(LakeError, match=r"begins at offset \d+ .* messages are lost"):
            mirrored(spark, soak)


# --- two of them, or another feed -----------------------------------------------------------------


def test_a_second_mirror_on_the_lake_is_refused(spark, soak):
    soak.send(0.1)
    soak.lake.mkdir()
    with (
        lake_lock(soak.lake),
        pytest.raises(LakeError, match=r"Another mirror \(process \d+\) is at work on the lake"),
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
    check(mirrored(spark, soak, max_per_trigger=50), soak, instants=1)


def test_a_feed_is_the_lakes_from_the_start(spark, soak):
    """Also where the first mirror was cut off before it had recorded anything."""

    class Cut(Exception):
        pass

    def cut(name):
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


def test_a_full_disk_is_told_and_the_mirror_goes_on_when_there_is_room(spark, soak, small_disk):
    lake = new_lake(spark, soak.lake)
    soak.send(1.0)
    fill_disk(small_disk, 60_000)
    run = MirrorRun(lake, feed_of(spark, soak), MirrorSettings(max_step_seconds=1))
    with pytest.raises(LakeError) as caught:
        run.once()
    assert re.search(r"(?i)no space (is )?left on", str(caught.value))
    assert re.search(r"(?i)make room .*start the mirror again\.$", str(caught.value))
    assert "\n" not in str(caught.value)
    small_disk.unlink()
    check(mirrored(spark, soak), soak, instants=2)
