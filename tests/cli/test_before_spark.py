"""Mistakes that need no Spark are found without it, and a run that read nothing leaves nothing."""

import json
import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import click
import pyarrow as pa
import pytest

from tests.cli.test_lake import CANAL, capture
from tests.support import corpus
from tests.support.kafka import free_port
from tests.support.spark import fresh
from tidegate.cli.app import commands
from tidegate.cli.lakes import making
from tidegate.lake.formats.commits import Guard
from tidegate.lake.formats.delta import DeltaLog
from tidegate.lake.job.settings import LakeSettings, recall
from tidegate.lake.lease import LeaseClock, LeaseEntry, LeaseOwner
from tidegate.lake.storage.file_store import FileStore
from tidegate.model import CaptureError, ConfigError, LakeError, SourceError

FEED = {"topics": "shop", "protocol": "canal-json"}


@pytest.fixture(autouse=True)
def no_spark(monkeypatch):
    def session(*_, **__):
        pytest.fail("Spark was started")

    monkeypatch.setattr("tidegate.spark.session", session, raising=False)


def run(*arguments):
    return commands.main(list(map(str, arguments)), standalone_mode=False)


@pytest.fixture
def lake(tmp_path):
    return tmp_path / "lakes" / "shop"


@pytest.mark.parametrize(
    ("source", "error", "says"),
    [
        ("nothing.parquet", CaptureError, "there is no such file"),
        ("kafka://no-such-host.invalid:9092/t?protocol=craft", SourceError, "cannot be resolved"),
        ("kafka://127.0.0.1:{port}/t?protocol=craft", SourceError, "refuses the connection"),
        ("kafka://127.0.0.1:{port}/t?protocol=crafts", ConfigError, "protocol"),
        ("kafka://127.0.0.1:{port}/t", ConfigError, "protocol"),
    ],
)
def test_a_feed_that_cannot_be_read_is_named_and_no_lake_is_made(lake, source, error, says):
    with pytest.raises(error, match=says):
        run("mirror", source.format(port=free_port()), "--lake", lake, "--once")
    assert not lake.parent.exists()


def test_a_capture_of_another_protocol_is_refused_before_anything_is_read(lake, tmp_path):
    path = capture(tmp_path / "bank.parquet", rows=10)
    with pytest.raises(SourceError, match="is simple; all look like canal-json"):
        run("mirror", path, "--lake", lake, "--once", "--protocol", "simple")
    odd = tmp_path / "odd.jsonl"
    odd.write_text('{"value":"aGVsbG8="}\n')
    with pytest.raises(click.UsageError, match="of no protocol that is known"):
        run("mirror", odd, "--lake", lake, "--once")
    assert not lake.parent.exists()


def test_a_mistyped_topic_is_named_with_the_nearest_and_binds_no_lake(kafka, lake):
    topic = fresh("shop")
    kafka.create(topic)
    uri = kafka.uri(f"{topic}p", "canal-json", enable_tidb_extension="true")
    with pytest.raises(SourceError, match=f"did you mean '{topic}'"):
        run("mirror", uri, "--lake", lake, "--once")
    assert not lake.parent.exists()


def test_a_topic_of_another_protocol_is_refused_before_anything_is_read(kafka, lake):
    topic = fresh("shop")
    kafka.create(topic)
    kafka.send({topic: corpus.messages("types.canal.ext")})
    with pytest.raises(SourceError, match="is open-protocol; all look like canal-json"):
        run("mirror", kafka.uri(topic, "open-protocol"), "--lake", lake, "--once")
    assert not lake.parent.exists()


def test_another_feed_than_the_lakes_is_refused(lake, tmp_path):
    LakeSettings(folder=str(lake)).remember(FEED)
    with pytest.raises(LakeError, match="topics is 'shop', not 'bank'"):
        run("mirror", CANAL, "--lake", lake, "--once")
    path = capture(tmp_path / "bank.parquet", rows=10)
    with pytest.raises(LakeError, match=r"topics is 'shop', not the capture '.*bank\.parquet"):
        run("mirror", path, "--lake", lake, "--once")
    assert sorted(each.name for each in lake.iterdir()) == ["lake.json"]


def lease_in_iceberg(lake, text):
    """What an embedded catalog has of a lease, without the rest of the lake."""
    metadata = lake / "tables" / "_tidegate" / "lease.json"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(json.dumps({"properties": {"tidegate.lease": text}}))
    changelog = f"file:{lake}/tables/_tidegate/changelog/metadata/1.json"
    with closing(sqlite3.connect(lake / "catalog.db")) as catalog:
        catalog.execute(
            "CREATE TABLE iceberg_tables "
            "(catalog_name, table_namespace, table_name, metadata_location)"
        )
        for name, location in (("changelog", changelog), ("lease", f"file:{metadata}")):
            entry = ("tidegate", "_tidegate", name, location)
            catalog.execute("INSERT INTO iceberg_tables VALUES (?, ?, ?, ?)", entry)
        catalog.commit()


def lease_in_delta(lake, text):
    """A lease in the folder of a lake of Delta tables."""
    folder, columns = (
        str(lake / "tables" / "_tidegate" / "lease"),
        pa.schema([("epoch", pa.int64())]),
    )
    DeltaLog.create(folder, columns, (), FileStore(), {})
    log = DeltaLog("lease", folder, columns, (), (), FileStore, Guard)
    log.set_properties({"tidegate.lease": text})


@pytest.mark.parametrize(
    ("format_name", "write"), [("iceberg", lease_in_iceberg), ("delta", lease_in_delta)]
)
def test_a_second_mirror_is_refused_and_takes_nothing_from_the_first(lake, format_name, write):
    now = LeaseClock().now()
    entry = LeaseEntry(4, LeaseOwner.new(), 60.0, now, "2026-11-18 10:00:00 UTC")
    write(lake, entry.to_text())
    LakeSettings(folder=str(lake), format=format_name).remember({})
    there = sorted(lake.rglob("*"))
    says = (
        rf"Another mirror is at work on the lake .*: process {os.getpid()} on .* until 2026-11-18"
    )
    for command in (["mirror", CANAL, "--once"], ["maintain"], ["quarantine", "retry"]):
        with pytest.raises(LakeError, match=says):
            run(*command, "--lake", lake)
    assert sorted(lake.rglob("*")) == there


def test_a_lake_whose_owner_is_dead_is_not_refused(lake):
    owner = replace(LeaseOwner.new(), pid=1 << 30)
    entry = LeaseEntry(4, owner, 60.0, LeaseClock().now(), "2026-11-18 10:00:00 UTC")
    lease_in_iceberg(lake, entry.to_text())
    with making(LakeSettings(folder=str(lake))):
        pass


def test_a_lake_that_was_moved_is_refused(lake, tmp_path):
    lake.mkdir(parents=True)
    LakeSettings(folder=str(lake)).remember({})
    with closing(sqlite3.connect(lake / "catalog.db")) as catalog:
        catalog.execute("CREATE TABLE iceberg_tables (catalog_name, table_name, metadata_location)")
        location = f"file:{lake}/tables/_tidegate/changelog/metadata/1.json"
        catalog.execute(
            "INSERT INTO iceberg_tables VALUES ('tidegate', 'changelog', ?)", (location,)
        )
        catalog.commit()
    shutil.move(lake, tmp_path / "moved")
    with pytest.raises(LakeError, match="was moved or copied"):
        run("status", "--lake", tmp_path / "moved")


@pytest.mark.parametrize(
    ("command", "error", "says"),
    [
        (["status"], LakeError, "There is no lake in"),
        (["read", "d.t"], LakeError, "There is no lake in"),
        (["maintain"], LakeError, "There is no lake in"),
        (["verify", "--capture", "no.jsonl"], CaptureError, "there is no such file"),
        (["verify", "--workload", "bank", "--option", "x=1"], click.UsageError, "rate"),
    ],
)
def test_a_command_on_a_lake_makes_none(lake, command, error, says):
    with pytest.raises(error, match=says):
        run(*command, "--lake", lake)
    assert not lake.parent.exists()


def test_a_bridge_asks_both_ends(tmp_path):
    dead = f"kafka://127.0.0.1:{free_port()}/t?protocol=craft"
    with pytest.raises(SourceError, match="refuses the connection"):
        run("bridge", capture(tmp_path / "bank.parquet", rows=1), dead, "--once")
    with pytest.raises(CaptureError, match="there is no such file"):
        run("bridge", tmp_path / "nothing.parquet", CANAL.replace("9092", "1"), "--once")


# --- what a run leaves ----------------------------------------------------------------------------


def test_a_run_that_fails_removes_what_it_made_and_nothing_else(tmp_path):
    lake = tmp_path / "lake"
    lake.mkdir()
    (lake / "notes.txt").touch()

    def fail():
        with making(LakeSettings(folder=str(lake))):
            (lake / "tables" / "a").mkdir(parents=True)
            (lake / "catalog.db").touch()
            raise OSError(28, "full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert [each.name for each in lake.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("fails", [True, False])
def test_what_was_read_stays(lake, fails):
    try:
        with making(LakeSettings(folder=str(lake))) as made:
            (lake / "catalog.db").touch()
            made.keeps = fails
            if fails:
                raise OSError
    except OSError:
        pass
    assert sorted(each.name for each in lake.iterdir()) == ["catalog.db"]


def test_a_lake_is_bound_to_a_feed_only_when_one_is_remembered(lake):
    settings = LakeSettings(folder=str(lake), format="delta")
    settings.remember({})
    assert recall(str(lake)) == {"format": "delta", "catalog": None, "prefix": "", "feed": {}}
    settings.remember(FEED)
    settings.remember({})
    assert recall(str(lake))["feed"] == FEED
    with pytest.raises(LakeError, match="topics is 'shop', not 'bank'"):
        settings.remember({**FEED, "topics": "bank"})


@pytest.mark.parametrize(
    ("is_empty", "feed"), [(lambda: True, {}), (lambda: False, FEED), (lambda: 1 / 0, FEED)]
)
def test_a_failed_run_binds_the_lake_unless_nothing_was_read(lake, is_empty, feed):
    from tidegate.cli.mirror import _binding

    settings = LakeSettings(folder=str(lake))

    def fail():
        with making(settings) as made:
            settings.remember({})
            with _binding(SimpleNamespace(is_empty=is_empty), settings, FEED, made):
                raise SourceError("the feed", "it is gone", "Look for it")

    with pytest.raises(SourceError):
        fail()
    assert (recall(str(lake)) or {"feed": {}})["feed"] == feed
    assert lake.exists() == bool(feed)
