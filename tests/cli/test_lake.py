"""The commands on lakes, as a person and as a program would call them, in the run's one session."""

import csv
import io
import json

import pytest

from tidegate.cli.app import commands
from tidegate.feed.changefeed import Changefeed
from tidegate.feed.config import ChangefeedConfig
from tidegate.model import ConfigError, LakeError
from tidegate.wire import write_capture
from tidegate.workload import workload

ROWS = 600
CANAL = "kafka://127.0.0.1:9092/bank?protocol=canal-json&enable-tidb-extension=true&partition-num=3"


def capture(path, name="bank", uri=CANAL, rows=ROWS, seed=0):
    feed = Changefeed(ChangefeedConfig.from_uri(uri), clock=None)

    def messages():
        for batch in workload(name, rows=rows, seed=seed).batches():
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
    arguments = ["mirror", path, "--lake", lake, "--once", "--max-step-seconds", "0.15"]
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
    from tidegate.lake import Lake, LakePlace

    instants = [ts for ts, _ in Lake(spark, LakePlace(str(bank))).snapshots.instants()]
    assert len(instants) >= 2
    at = instants[0]
    assert tidegate("read", "bank.accounts", "--lake", bank, "--at", at, "--output", "json") == 0
    table = workload("bank", rows=ROWS).at(at).tables["bank", "accounts"]
    assert len(tidegate.documents()) == len(table.rows)
    assert sum(round(float(row["balance"]) * 100) for row in tidegate.documents()) == 10**11


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


def test_a_second_run_has_nothing_to_do(tidegate, bank, folder):
    assert tidegate("mirror", folder / "bank.parquet", "--lake", bank, "--once") == 0
    assert "0 rows applied from 0 messages" in tidegate.out


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
        import os

        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


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
        ("[tables]\ninclude = ['shop']", "tables.include[0]"),
        ("[tables]\nrename = { 'a.b' = 'c.*' }", "tables.rename.a.b"),
        ("[feed]\ntime-zone = 'Mars'", "feed.time-zone"),
        ("[feed", "tidegate.toml"),
    ],
)
def test_errors_of_the_file_name_the_setting(text, setting):
    from tidegate.lake.settings import LakeSettings

    with pytest.raises(ConfigError) as raised:
        LakeSettings.parse(text, "tidegate.toml")
    assert raised.value.setting == setting
    assert raised.value.source == "tidegate.toml"


def test_a_folder_that_is_no_lake_is_named(tidegate, tmp_path):
    with pytest.raises(LakeError, match="There is no lake in"):
        tidegate("status", "--lake", tmp_path)
