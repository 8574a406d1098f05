"""The commands on lakes, as a person and as a program would call them, in the run's one session."""

import csv
import io
import json
import os
import re
import shutil
import signal
import sqlite3
from contextlib import closing
from types import SimpleNamespace

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.changing import Changing
from tests.support.spark import fresh
from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.send.changefeed import Changefeed
from tidegate.cli.app import commands
from tidegate.cli.bridge import _failure
from tidegate.cli.words import counted
from tidegate.lake import Lake, LakePlace
from tidegate.lake.job.diagnosis import first_cause
from tidegate.lake.job.run import READING, spark_failure
from tidegate.model import ConfigError, LakeError, SourceError
from tidegate.source.errors import TaskError
from tidegate.wire import write_capture
from tidegate.workload import workload

ROWS = 600
CANAL = "kafka://127.0.0.1:9092/bank?protocol=canal-json&enable-tidb-extension=true&partition-num=3"


def capture(path, name="bank", uri=CANAL, rows=ROWS, seed=0, toml="", source=None):
    feed = Changefeed(ChangefeedConfig.from_toml(toml, uri), clock=None)

    def messages():
        for batch in (source or workload(name, rows=rows, seed=seed)).batches():
            yield feed.send(batch)
        yield feed.close()

    write_capture(path, messages())
    return path


class Shell:
    """Runs commands; `out` and `err` are what the last one said."""

    def __init__(self, capsys):
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments):
        self._capsys.readouterr()
        try:
            return commands.main(list(map(str, arguments)), standalone_mode=False)
        finally:
            self.out, self.err = self._capsys.readouterr()

    def documents(self):
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def tidegate(capsys):
    return Shell(capsys)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lakes")


@pytest.fixture(scope="module")
def bank(spark, folder):
    """A lake of the bank, in several snapshots; and the capture that it was made from."""
    path = capture(folder / "bank.parquet")
    lake = folder / "bank"
    arguments = ["mirror", path, "--lake", lake, "--once", "--max-step-seconds", "0.25"]
    assert commands.main([*map(str, arguments), "--output", "json"], standalone_mode=False) == 0
    return lake


@pytest.fixture(scope="module")
def truth():
    return workload("bank", rows=ROWS).final().tables


def test_read_gives_the_rows_as_objects(tidegate, bank, truth):
    assert tidegate("read", "bank.accounts", "--lake", bank, "--output", "json") == 0
    table = truth["bank", "accounts"]
    names = table.schema.column_names
    expected = [dict(zip(names, row, strict=True)) for row in table.rows.values()]
    assert tidegate.documents() == sorted(expected, key=lambda row: int(row["id"]))


def test_read_gives_csv_in_which_null_is_not_the_empty_text(tidegate, bank, truth):
    assert tidegate("read", "BANK.transfers", "--lake", bank, "--output", "csv") == 0
    head, *rows = csv.reader(io.StringIO(tidegate.out))
    table = truth["bank", "transfers"]
    assert head == list(table.schema.column_names)
    expected = [["" if value is None else value for value in row] for row in table.rows.values()]
    assert rows == sorted(expected, key=lambda row: int(row[0]))


def test_read_without_a_name_lists_the_tables(tidegate, bank):
    assert tidegate("read", "--lake", bank, "--output", "json") == 0
    assert [each["table"] for each in tidegate.documents()] == ["accounts", "transfers"]
    assert tidegate("read", "--lake", bank) == 0
    assert "bank.transfers" in tidegate.out


def test_read_names_what_was_meant(tidegate, bank):
    with pytest.raises(LakeError, match=r"no table bank\.account\. Did you mean 'bank\.accounts'"):
        tidegate("read", "bank.account", "--lake", bank)


def test_read_goes_back_to_every_recorded_instant(tidegate, bank, spark):
    instants = [ts for ts, _ in Lake(spark, LakePlace(str(bank))).snapshots.instants()]
    assert len(instants) >= 2
    at = instants[0]
    assert tidegate("read", "bank.accounts", "--lake", bank, "--at", at, "--output", "json") == 0
    table = workload("bank", rows=ROWS).at(at).tables["bank", "accounts"]
    assert len(tidegate.documents()) == len(table.rows)
    assert sum(round(float(row["balance"]) * 100) for row in tidegate.documents()) == 10**11


def test_a_lake_is_found_whatever_its_catalog_was_called(bank, spark, truth, tmp_path):
    """The embedded catalog knows its tables under one name, and a session may have many lakes."""
    lake = Lake(spark, LakePlace(str(bank), name="elsewhere"))
    assert lake.read("bank", "accounts").count() == len(truth["bank", "accounts"].rows)
    twin = tmp_path / "twin"
    shutil.copytree(bank, twin)
    with closing(sqlite3.connect(twin / "catalog.db")) as catalog:
        moved = "UPDATE iceberg_tables SET metadata_location = replace(metadata_location, ?, ?)"
        catalog.execute(moved, (str(bank), str(twin)))
        catalog.commit()
    with pytest.raises(LakeError, match="has another lake under the name"):
        Lake(spark, LakePlace(str(twin)))


def test_a_lake_of_delta_tables(tidegate, spark, tmp_path):
    path = capture(tmp_path / "bank.parquet", rows=40)
    lake = ["--lake", tmp_path / "lake"]
    assert tidegate("mirror", path, *lake, "--once", "--format", "delta") == 0
    assert tidegate("verify", *lake, "--capture", path) == 0
    assert "all 2 tables are equal" in tidegate.out


def test_status_tells_instants_tables_and_the_feed(tidegate, bank, truth):
    assert tidegate("status", "--lake", bank, "--rows", "--output", "json") == 0
    (document,) = tidegate.documents()
    assert document["consistency"] == "snapshot"
    assert document["appliedTs"] == document["resolvedTs"] > 0
    assert document["feed"]["protocol"] == "canal-json"
    assert document["quarantined"] == 0
    assert [(each["table"], each["state"], each["rows"]) for each in document["tables"]] == [
        ("accounts", "mirrored", len(truth["bank", "accounts"].rows)),
        ("transfers", "mirrored", len(truth["bank", "transfers"].rows)),
    ]
    assert tidegate("status", "--lake", bank) == 0
    assert "mirrored" in tidegate.out


def test_status_tells_what_needs_a_look(tidegate, spark, tmp_path):
    """Of transfers neither CREATE nor BOOTSTRAP can be read; one of them is another statement."""
    uri = "kafka://h:9092/bank?protocol=simple&partition-num=3"
    path = capture(tmp_path / "bank.parquet", uri=uri, rows=10)
    messages = pq.read_table(path)
    values, bad = messages["value"].to_pylist(), 0
    for place, value in enumerate(values):
        told = json.loads(value)
        if "tableSchema" not in told or told["tableSchema"]["table"] != "transfers":
            continue
        if told["type"] == "CREATE":
            del told["tableSchema"]
            told |= {"type": "QUERY", "sql": "RECOVER TABLE `bank`.`gone`"}
            values[place] = json.dumps(told).encode()
        else:
            values[place], bad = b"{", bad + 1
    column = messages.column_names.index("value")
    pq.write_table(messages.set_column(column, "value", pa.array(values, pa.binary())), path)
    lake = ["--lake", tmp_path / "lake"]
    assert tidegate("mirror", path, *lake, "--once", "--bad-messages", "continue") == 1

    assert tidegate("status", *lake, "--output", "json") == 1
    (document,) = tidegate.documents()
    assert 0 < document["appliedTs"] < document["resolvedTs"]
    assert document["applied"] < document["resolved"]
    assert document["lagSeconds"] > 0
    assert (document["quarantined"], document["retried"], document["fine"]) == (bad, 0, False)
    assert [(each["table"], each["state"]) for each in document["tables"]] == [
        ("accounts", "mirrored"),
        ("gone", "stopped"),
    ]
    assert "RECOVER TABLE" in document["tables"][1]["reasons"][0]
    (waiting,) = document["waiting"]
    assert (waiting["database"], waiting["table"]) == ("bank", "transfers")
    assert waiting["rows"] > 0

    assert tidegate("status", *lake) == 1
    lines = [line.strip() for line in tidegate.out.splitlines()]
    told = dict(line.split(None, 1) for line in lines if line)
    assert told["applied"].endswith(f"({document['appliedTs']})")
    assert told["resolved"].startswith(document["resolved"][:10])
    assert told["lag"].split()[-1] in ("s", "min", "h", "days")
    assert told["quarantined"] == counted(bad, "message")
    assert told["bank.accounts"].startswith("mirrored")
    assert told["bank.gone"].startswith("stopped")
    assert "RECOVER TABLE" in told["bank.gone"]
    assert told["waiting:"] == (
        f"{counted(waiting['rows'], 'row')} of bank.transfers for schema version {waiting['version']}"
    )


def test_a_feed_in_kafka_may_come_another_way_but_be_no_other(tidegate, spark, kafka, tmp_path):
    topic = fresh("bank")
    kafka.create(topic)
    messages = pq.read_table(capture(tmp_path / "bank.parquet", rows=40)).to_pylist()
    half = len(messages) // 2
    kafka.send({topic: [SimpleNamespace(**message) for message in messages[:half]]})
    extension = {"enable_tidb_extension": "true"}
    lake = ["--lake", tmp_path / "lake"]
    uri = kafka.uri(topic, "canal-json", **extension)
    assert tidegate("mirror", uri, *lake, "--once") == 0
    refused = {
        kafka.uri("other", "canal-json", **extension): "topics is",
        kafka.uri(topic, "open-protocol"): "protocol is",
        kafka.uri(topic, "canal-json"): "consistency is 'snapshot', not 'eventual'",
    }
    for wrong, says in refused.items():
        with pytest.raises(LakeError, match=says):
            tidegate("mirror", wrong, *lake, "--once")

    # The same topic of the same broker under another address, at another pace, with claim checks.
    kafka.send({topic: [SimpleNamespace(**message) for message in messages[half:]]})
    config = tmp_path / "tidegate.toml"
    config.write_text('[lake]\nthreads = 2\ninterval = "2s"\nmax-step = "1s"\n')
    same = uri.replace("127.0.0.1", "localhost")
    other = ["--config", config, "--max-messages", 10, "--claim-check", tmp_path]
    assert tidegate("mirror", same, *lake, "--once", *other, "--bad-messages", "continue") == 0
    assert tidegate("verify", *lake, "--workload", "bank", "--rows", 40) == 0


def test_a_second_run_has_nothing_to_do(tidegate, bank, folder):
    assert tidegate("mirror", folder / "bank.parquet", "--lake", bank, "--once") == 0
    assert "0 messages read, 0 rows applied in" in tidegate.out


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--time-zone", "Asia/Tokyo"], "time zone is 'UTC', not 'Asia/Tokyo'"),
        (["--protocol", "open-protocol"], "protocol is 'canal-json', not 'open-protocol'"),
        (["--table-filter", "bank.accounts"], "tables is"),
        (["--rename", "bank.accounts=b.a"], "tables is"),
        (["--format", "delta"], "in the format iceberg, not delta"),
    ],
)
def test_a_restart_that_would_mix_feeds_is_refused(tidegate, bank, folder, arguments, says):
    with pytest.raises(LakeError, match=says):
        tidegate("mirror", folder / "bank.parquet", "--lake", bank, "--once", *arguments)


def test_another_capture_is_refused(tidegate, bank, folder):
    other = capture(folder / "other.parquet", seed=1)
    with pytest.raises(LakeError, match=r"capture is '.*bank.parquet', not '.*other.parquet'"):
        tidegate("mirror", other, "--lake", bank, "--once")


def test_a_capture_that_has_changed_is_refused(tidegate, folder, bank):
    path = folder / "bank.parquet"
    content, times = path.read_bytes(), path.stat()
    try:
        capture(path, rows=ROWS + 40)
        with pytest.raises(LakeError, match="content is"):
            tidegate("mirror", path, "--lake", bank, "--once")
    finally:
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_mirror_that_follows_its_feed_ends_after_its_step(tidegate, spark, tmp_path, monkeypatch):
    (tmp_path / "feed").mkdir()
    capture(tmp_path / "feed" / "one.parquet", rows=40)
    seen = []

    def progress(self, progress):
        seen.append(progress.phase)
        if progress.rows == 40 and progress.phase == "following" and "asked" not in seen:
            seen.append("asked")
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("tidegate.cli.mirror.Report.progress", progress)
    assert tidegate("mirror", tmp_path / "feed", "--lake", tmp_path / "lake") == 0
    assert seen[-1] == "asked"
    assert "stopping after this step" in tidegate.err
    assert "46 messages read, 40 rows applied in" in tidegate.out
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


CLAIM_CHECKS = """
[sink.kafka-config.large-message-handle]
large-message-handle-option = "claim-check"
claim-check-storage-uri = "file://{folder}"
"""


def test_a_mirror_that_stopped_at_bad_messages_goes_on_after_a_retry(tidegate, spark, tmp_path):
    objects, nothing = tmp_path / "objects", tmp_path / "nothing"
    objects.mkdir()
    nothing.mkdir()
    path = capture(
        tmp_path / "large.parquet",
        uri=f"{CANAL}&max-message-bytes=610",
        rows=120,
        toml=CLAIM_CHECKS.format(folder=objects),
    )
    count = len(list(objects.iterdir()))
    assert count > 10
    lake = ["--lake", tmp_path / "lake"]
    run = ["mirror", path, *lake, "--once", "--output", "json"]

    assert tidegate(*run, "--claim-check", nothing) == 1
    *_, done = tidegate.documents()
    assert (done["quarantined"], done["rows"], done["fine"]) == (count, 0, False)
    assert "cannot be read" in done["error"]
    assert tidegate("quarantine", "list", *lake, "--limit", 2) == 1
    assert f"quarantined: {counted(count, 'message')}" in tidegate.out
    place = tidegate.out.split()[0]
    assert tidegate("quarantine", "show", place, *lake, "--output", "json") == 0
    (message,) = tidegate.documents()
    assert message["value"] is not None
    assert f"{message['topic']}:{message['partition']}:{message['offset']}" == place
    with pytest.raises(LakeError, match="No message at"):
        tidegate("quarantine", "show", "bank:0:999999", *lake)

    # Nothing has changed: nothing can be read.
    assert tidegate("quarantine", "retry", *lake, "--claim-check", nothing) == 1
    assert f"0 messages read, {count} still bad" in tidegate.out
    assert tidegate("quarantine", "retry", place, *lake, "--claim-check", objects) == 0
    assert "1 message read" in tidegate.out
    assert tidegate("quarantine", "retry", *lake, "--claim-check", objects) == 0

    assert tidegate(*run, "--claim-check", objects) == 0
    *_, done = tidegate.documents()
    assert (done["quarantined"], done["rows"], done["fine"]) == (0, 120, True)
    assert tidegate("quarantine", "list", *lake) == 0
    assert tidegate("verify", *lake, "--workload", "bank", "--rows", 120) == 0
    assert "all 2 tables are equal" in tidegate.out


def test_what_a_mirror_went_past_is_put_right_after_a_retry(tidegate, spark, tmp_path):
    objects, nothing = tmp_path / "objects", tmp_path / "nothing"
    objects.mkdir()
    nothing.mkdir()
    uri, toml = f"{CANAL}&max-message-bytes=610", CLAIM_CHECKS.format(folder=objects)
    path = capture(tmp_path / "large.parquet", uri=uri, rows=80, toml=toml)
    count = len(list(objects.iterdir()))
    lake = ["--lake", tmp_path / "lake"]
    run = ["mirror", path, *lake, "--once", "--claim-check", nothing]
    assert tidegate(*run, "--bad-messages", "continue") == 1
    compared = ["verify", *lake, "--workload", "bank", "--rows", 80]
    assert tidegate(*compared) == 1

    assert tidegate("quarantine", "retry", *lake, "--claim-check", objects) == 0
    assert "late: the table had gone past" in tidegate.out
    assert "start `tidegate mirror` again: it puts the tables right" in tidegate.out
    assert tidegate("status", *lake) == 1
    assert f"retried: {count} messages could be read since" in tidegate.out
    assert tidegate(*run, "--output", "json") == 0
    *_, done = tidegate.documents()
    assert (done["quarantined"], done["fine"]) == (0, True)
    assert tidegate(*compared) == 0


def test_maintenance_joins_files_and_keeps_the_last_instant(tidegate, spark, tmp_path):
    path = capture(tmp_path / "bank.parquet", rows=100)
    at = ["--lake", tmp_path / "lake"]
    assert tidegate("mirror", path, *at, "--once", "--max-step-seconds", "0.01") == 0
    lake = Lake(spark, LakePlace(str(tmp_path / "lake")))
    instants = [ts for ts, _ in lake.snapshots.instants()]
    assert len(instants) >= 5  # so that the first are older than the margin of upkeep
    accounts = lake.tables.identifier("bank", "accounts")

    def count(what):
        return spark.sql(f"SELECT * FROM {accounts}.{what}").count()

    before = {what: count(what) for what in ("data_files", "delete_files")}
    assert before["delete_files"] > 0
    compared = ["verify", *at, "--workload", "bank", "--rows", 100]
    assert tidegate(*compared) == 0

    assert tidegate("maintain", *at, "--keep", 0, "--output", "json") == 0
    *tables, done = tidegate.documents()
    done_to = {each["table"]: each for each in tables}
    logs = {f"_tidegate.{name}" for name in ("changelog", "snapshots", "quarantine")}
    assert done_to.keys() == {"bank.accounts", "bank.transfers", *logs}
    assert done_to["bank.accounts"]["data files compacted"] > 0
    assert done_to["bank.accounts"]["snapshots removed"] > 0
    assert (done["event"], done["tables"], done["keptSinceTs"]) == ("done", 5, instants[-1])
    assert count("data_files") < before["data_files"]
    assert count("delete_files") < before["delete_files"]
    assert tidegate(*compared) == 0
    with pytest.raises(LakeError, match="keeps its snapshots since"):
        tidegate("read", "bank.accounts", *at, "--at", instants[0])

    assert tidegate("maintain", *at, "--keep", 0) == 0
    assert re.search(r"^bank\.transfers: ", tidegate.out, re.MULTILINE)
    assert re.search(r"\n5 tables: .* \(\d+\.\d s\)\nevery snapshot since 2026-", tidegate.out)


def test_schema_changes_by_policy(tidegate, spark, tmp_path):
    path = capture(tmp_path / "changing.parquet", source=Changing())
    lake = ["--lake", tmp_path / "lake"]
    run = ["mirror", path, *lake, "--once", "--output", "json", "--schema-changes"]

    assert tidegate(*run, "exception") == 1
    *_, done = tidegate.documents()
    assert "ADD COLUMN `w`" in done["error"]
    assert (done["tables"], done["rows"], done["stopped"], done["diverged"]) == (3, 6, [], [])

    # The other table of EXCHANGE PARTITION is not there: it is stopped, whatever the policy.
    assert tidegate(*run, "ignore") == 1
    *_, done = tidegate.documents()
    assert [each["table"] for each in done["stopped"]] == ["elsewhere"]
    assert sorted(each["table"] for each in done["diverged"]) == ["p", "t", "u"]

    assert tidegate("status", *lake, "--output", "json") == 1
    (document,) = tidegate.documents()
    found = {each["table"]: each for each in document["tables"]}
    assert found["t"]["state"] == "diverged"
    assert found["t"]["reasons"][0].startswith("The column w is left out (alter table")
    assert tidegate("status", *lake) == 1
    assert re.search(r"d\.t +diverged +.*The column w is left out", tidegate.out)
    assert tidegate("verify", *lake, "--capture", path) == 1  # for the table that is stopped
    assert "diverged: The column w" in tidegate.out
    assert re.search(r"not compared  d\.elsewhere: stopped: ", tidegate.out)


def test_filter_and_renames_by_a_file(tidegate, spark, folder):
    capture(folder / "open.parquet", uri="kafka://h:9092/bank?protocol=open-protocol")
    config = folder / "tidegate.toml"
    config.write_text(
        '[feed]\nsource = "open.parquet"\n[lake]\nfolder = "open"\n'
        '[tables]\ninclude = ["*.*", "!bank.transfers"]\nrename = { "bank.*" = "money.*" }\n'
    )
    assert tidegate("mirror", "--config", config, "--once", "--output", "json") == 0
    *_, done = tidegate.documents()
    assert (done["event"], done["tables"], done["fine"]) == ("done", 1, True)
    assert tidegate("read", "--config", config, "--output", "json") == 0
    (table,) = tidegate.documents()
    assert (table["database"], table["table"]) == ("bank", "accounts")
    assert "`money`.`accounts`" in table["identifier"]


@pytest.mark.parametrize(
    "text, setting",
    [
        ("[feed]\nsorce = 'x'", "feed.sorce"),
        ("[feeds]\nsource = 'x'", "feeds"),
        ("[lake]\nformat = 'hudi'", "lake.format"),
        ("[lake]\nmax-step = 5", "lake.max-step"),
        ("[lake]\nschema-changes = 'allow'", "lake.schema-changes"),
        ("[tables]\ninclude = ['shop']", "tables.include[0]"),
        ("[tables]\nrename = { 'a.b' = 'c.*' }", "tables.rename.a.b"),
        ("[feed]\ntime-zone = 'Mars'", "feed.time-zone"),
        ("[feed", "tidegate.toml"),
    ],
)
def test_errors_of_the_file_name_the_setting(text, setting):
    from tidegate.lake.job.settings import LakeSettings

    with pytest.raises(ConfigError) as raised:
        LakeSettings.parse(text, "tidegate.toml")
    assert raised.value.setting == setting
    assert raised.value.source == "tidegate.toml"


def test_a_file_that_is_no_text_is_named(tmp_path):
    from tidegate.lake.job.settings import LakeSettings
    from tidegate.spark.sources import toml_text

    path = tmp_path / "odd.toml"
    path.write_bytes(b"\xff\xfe")
    for read in (LakeSettings.read, toml_text):
        with pytest.raises(ConfigError, match="is not text in UTF-8"):
            read(path)
    for command in (["convert", path, path, "--sink-uri", "file:///x"], ["generate", "bank", "x"]):
        with pytest.raises(click.UsageError, match="is not text in UTF-8"):
            commands.main([*map(str, command), "--changefeed", str(path)], standalone_mode=False)


def test_a_folder_that_is_no_lake_is_named(tidegate, tmp_path):
    with pytest.raises(LakeError, match="There is no lake in"):
        tidegate("status", "--lake", tmp_path)


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["verify", "--lake", "x"], "Name what to compare with"),
        (["mirror", "x.parquet"], "No lake is named"),
        (["mirror", "--lake", "x"], "No feed is named"),
        (["read", "accounts", "--lake", "x"], "is no DATABASE.TABLE"),
        (["read", "a.b", "--lake", "x", "--at", "yesterday"], "give a TSO, or a time"),
        (["quarantine", "show", "here", "--lake", "x"], "is no place"),
        (["status", "--lake", "x", "--spark-conf", "a"], "write NAME=VALUE"),
    ],
)
def test_usage_errors_say_what_to_write(tidegate, arguments, says):
    with pytest.raises(click.UsageError, match=says):
        tidegate(*arguments)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("[X] Table is gone.\n=== SQL ===\n", "[X] Table is gone"),
        (
            "An error occurred while calling o1.append.\n: java.io.IOException: full\n",
            "java.io.IOException: full",
        ),
        (
            "Job aborted.\nCaused by: a.B: outer\n\tat x\nCaused by: c.D: No space left\n\tat y",
            "c.D: No space left",
        ),
        (
            "An exception was thrown.\nTraceback (most recent call last):\n  File x\na.BError: no\n",
            "a.BError: no",
        ),
        ("", "Exception"),
    ],
)
def test_of_javas_errors_the_first_cause_is_told(text, reason):
    assert first_cause(Exception(text)) == reason


@pytest.mark.parametrize(
    "text, says",
    [
        ("x.UnknownTopicOrPartitionException: no", "the topic does not exist. Check its name"),
        ("[KAFKA_DATA_LOSS.X] gone", "were deleted by retention"),
        ("something else\n\tat a stack", "something else"),
    ],
)
def test_what_ends_a_query_is_told_with_the_next_step(text, says):
    told = _failure(Exception(text), "k")
    assert says in str(told)
    assert "stack" not in str(told)


def test_what_ends_a_task_is_told_with_the_next_step():
    """Spark passes on the text of a task's error and nothing else."""
    gone = SourceError("the topic 't'", "it does not exist", "Check its name")
    text = f"Job aborted\n  {TaskError.of(gone)}\n\tat a stack"
    told = spark_failure(READING, Exception(text), LakePlace("lake"))
    assert isinstance(told, SourceError)
    assert str(told) == str(gone)
    other = spark_failure(READING, Exception("something else\n\tat a stack"), LakePlace("lake"))
    assert "something else" in str(other)
    assert "stack" not in str(other)
