"""`tidegate generate`, run as a user runs it."""

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

from tests.support.mirror import Mirror
from tidegate.changefeed.receive.gate import Gate
from tidegate.cli.app import commands, main
from tidegate.cli.source import open_source
from tidegate.wire import read_capture
from tidegate.workload import workload

FILES = ["capture.parquet", "capture.jsonl", "capture.jsonl.gz"]


def run(*arguments):
    return CliRunner().invoke(commands, ["generate", *map(str, arguments)], catch_exceptions=False)


def read(path):
    reading, batches = open_source(
        str(path), protocol=None, encoding=None, compression=None, claim_check=None
    )
    return reading, [reading.decode(batch) for batch in batches]


@pytest.mark.parametrize("file", FILES)
def test_a_capture_holds_the_workload(tmp_path, file):
    path = tmp_path / file
    done = run("bank", "--rows", 500, "--seed", 3, path, "--output", "json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stderr)
    assert told["rows"] == 500
    assert told["protocol"] == "canal-json"
    reading, batches = read(path)
    assert reading.protocol == "canal-json"
    messages = sum(batch.num_rows for batch in read_capture(path))
    assert messages == told["messages"]
    table = pa.Table.from_batches(batches)
    assert set(table["partition"].to_pylist()) >= {0, 1, 2}
    mirror = Mirror(Gate([("tidegate", number) for number in range(3)]))
    mirror.read(table)
    truth = workload("bank", rows=500, seed=3).final()
    state = mirror.model.state()
    assert {name: set(rows) for name, rows in state.items()} == {
        name: set(told.rows) for name, told in truth.tables.items()
    }
    accounts = truth.tables["bank", "accounts"].rows
    balances = {key: row["balance"] for key, row in state["bank", "accounts"].items()}
    assert balances == {key: row[3] for key, row in accounts.items()}


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    contents = []
    for number, seed in enumerate([5, 5, 6]):
        path = tmp_path / f"{number}.jsonl"
        assert run("orders", "--rows", 300, "--seed", seed, path).exit_code == 0
        contents.append(path.read_bytes())
    assert contents[0] == contents[1] != contents[2]


@pytest.mark.parametrize(
    ("protocol", "guessed"),
    [("open-protocol", "open-protocol"), ("simple", "simple"), ("craft", "craft")],
)
def test_the_sink_uri_says_how_it_is_sent(tmp_path, protocol, guessed):
    path = tmp_path / "capture.parquet"
    uri = f"kafka://h:9092/orders?protocol={protocol}&partition-num=2"
    done = run("sysbench", "--rows", 300, "--option", "keys=50", "--sink-uri", uri, path)
    assert done.exit_code == 0, done.output
    assert "300 row changes of sysbench" in done.stderr
    reading, batches = read(path)
    assert reading.protocol == guessed
    kinds = [kind for batch in batches for kind in batch["kind"].to_pylist()]
    assert sum(kind in ("insert", "update", "delete") for kind in kinds) == 300
    assert "error" not in kinds
    assert {p for batch in batches for p in batch["partition"].to_pylist()} == {0, 1}


def test_a_changefeed_file_counts_and_the_sink_uri_wins_over_it(tmp_path):
    file = tmp_path / "changefeed.toml"
    file.write_text(
        '[sink]\nprotocol = "simple"\n[filter]\nrules = ["bank.accounts"]\n', encoding="utf-8"
    )
    path = tmp_path / "capture.jsonl"
    done = run("bank", "--rows", 100, "--changefeed", file, path, "--output", "json")
    assert json.loads(done.stderr)["protocol"] == "simple"
    _, batches = read(path)
    tables = {name for batch in batches for name in batch["table"].drop_null().to_pylist()}
    assert tables == {"accounts"}
    uri = "file:///captures?protocol=open-protocol"
    done = run(
        "bank", "--rows", 100, "--changefeed", file, "--sink-uri", uri, path, "--output", "json"
    )
    assert json.loads(done.stderr)["protocol"] == "open-protocol"


def test_a_changefeed_file_without_a_protocol_gets_the_usual_one(tmp_path):
    file = tmp_path / "changefeed.toml"
    file.write_text('[filter]\nrules = ["*.*"]\n', encoding="utf-8")
    path = tmp_path / "capture.jsonl"
    done = run("bank", "--rows", 10, "--changefeed", file, path, "--output", "json")
    assert json.loads(done.stderr)["protocol"] == "canal-json"
    _, batches = read(path)
    assert pc.any(pc.equal(batches[0]["kind"], "watermark")).as_py()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["shop", "x.jsonl"], "'shop' is not one of 'bank', 'orders', 'sysbench'"),
        (["bank", "x.jsonl", "--option", "keys=1"], "accounts, rate"),
        (["bank", "x.jsonl", "--option", "accounts=many"], "whole number"),
        (["bank", "x.jsonl", "--option", "accounts=0"], "at least 1"),
        (["bank", "x.jsonl", "--sink-uri", "kafka://h:1/t?protocol=canl"], "canal-json"),
        (["bank", "x.jsonl", "--changefeed", "no-such.toml"], "does not exist"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(tmp_path, monkeypatch, capsys, arguments, reason):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["generate", *arguments])
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "x.jsonl").exists()
