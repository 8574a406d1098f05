"""`mirror --load` and `reload`, as a person and as a program would call them."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tests.cli.test_lake import tidegate  # noqa: F401
from tests.lake.test_load import INSTANTS
from tests.support import corpus, dumps
from tidegate.changefeed.config.settings import Secret
from tidegate.lake.job.settings import LakeSettings
from tidegate.model import ConfigError, LakeError
from tidegate.wire import CAPTURE_SCHEMA, write_capture

TS = INSTANTS["bank_mid"]


@pytest.fixture
def dump(tmp_path):
    (tmp_path / "dump").mkdir()
    return dumps.unpacked("bank_mid.csv", tmp_path / "dump")


@pytest.fixture
def feed(tmp_path):
    messages = [message._asdict() for message in corpus.messages("bank.open.b16.stream")]
    write_capture(tmp_path / "feed.parquet", [pa.RecordBatch.from_pylist(messages, CAPTURE_SCHEMA)])
    return tmp_path / "feed.parquet"


def test_a_mirror_begins_with_a_dump_and_says_how_it_goes(
    spark,
    tmp_path,
    dump,
    feed,
    tidegate,  # noqa: F811
):
    load = ["--load", dump, "--load-snapshot", TS, "--lake", tmp_path / "lake"]
    assert tidegate("mirror", feed, *load, "--once", "--output", "json") == 0
    told = tidegate.documents()
    assert [each for each in told if each.get("phase") == "loading"]
    done = told[-1]
    rows = sum(len(table["rows"]) for table in dumps.truth("bank_mid").values())
    assert (done["load"]["rows"], done["load"]["ts"], done["fine"]) == (rows, TS, True)
    assert done["load"]["partsDone"] == done["load"]["parts"]
    assert done["incomplete"] == done["stopped"] == done["diverged"] == []
    # The same command once more has nothing to load.
    assert tidegate("mirror", feed, *load, "--once") == 0
    assert "loaded" not in tidegate.out
    with pytest.raises(LakeError, match=r"The lake is at .* shows"):
        tidegate("reload", "bank.accounts", *load)


def test_a_copy_of_one_instant_needs_no_feed_and_can_be_followed_later(
    spark,
    tmp_path,
    dump,
    feed,
    tidegate,  # noqa: F811
):
    lake = ["--lake", tmp_path / "lake"]
    load = ["--load", dump, "--load-snapshot", TS]
    assert tidegate("mirror", *load, "--load-mode", "only", *lake) == 0
    assert "2 tables" in tidegate.out
    assert tidegate("status", *lake, "--output", "json") == 0
    assert json.loads(tidegate.out)["appliedTs"] == TS
    assert tidegate("mirror", feed, "--once", *lake, "--output", "json") == 0
    done = tidegate.documents()[-1]
    assert done["appliedTs"] > TS
    assert (done["fine"], done["incomplete"]) == (True, [])


def test_the_password_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("from the file\n")
    text = "[load]\nsource = 'mysql://me@db:4001/'\n"
    settings = LakeSettings.parse(text)
    assert settings.load.server().password.reveal() == ""
    monkeypatch.setenv("TIDEGATE_LOAD_PASSWORD", "from the environment")
    assert LakeSettings.parse(text).load.server().password == Secret("from the environment")
    settings = LakeSettings.parse(f"{text}password-file = '{tmp_path}/secret'")
    assert settings.load.server().password == Secret("from the file")
    assert "from the file" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("source = 'mysql://'", "load.source"),
        ("mode = 'always'", "load.mode"),
        ("cdc = 'ftp://x'", "load.cdc"),
        ("dialect = 'oracle'", "dialect"),
        ("snapshots = 5", "load.snapshots"),
    ],
)
def test_a_wrong_setting_is_named(text, setting):
    with pytest.raises(ConfigError) as raised:
        LakeSettings.parse(f"[load]\n{text}")
    assert raised.value.setting == setting
