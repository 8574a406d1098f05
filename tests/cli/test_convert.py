"""`tidegate convert`, and what it says before it starts."""

import json

import pytest

from tests.cli.test_inspect import capture, tidegate
from tests.support import corpus

TARGETS = ("open-protocol", "canal-json", "simple", "craft")


def rows(path):
    done = tidegate("inspect", path, "--output", "json")
    assert done.returncode == 0
    return [
        (event["partition"], event["kind"], event["table"], event.get("after"), event.get("before"))
        for event in map(json.loads, done.stdout.splitlines())
        if event["kind"] in ("insert", "update", "delete")
    ]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", ["open.b16.stream", "canal.ext.stream", "simple.json.stream"])
def test_partitions_keep_their_rows_in_order(tmp_path, source, target):
    original = tmp_path / "original.jsonl"
    original.write_text(capture(corpus.messages(f"ddl.{source}")))
    converted = tmp_path / "converted.parquet"
    done = tidegate(
        "convert", original, converted, "--to", target, "--output", "json",
        *(["--option", "enable-tidb-extension=true"] if target == "canal-json" else []),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plan, end = map(json.loads, done.stderr.splitlines())
    assert plan["to"] == target
    assert end["bad"] == 0

    def by_partition(found):
        return sorted(found, key=lambda row: row[0])

    assert by_partition(rows(converted)) == by_partition(rows(original))


def test_it_says_what_the_target_cannot_carry(tmp_path):
    original = tmp_path / "original.jsonl"
    original.write_text(capture(corpus.messages("nopk.open.b1")))
    done = tidegate("convert", original, tmp_path / "out.jsonl", "--to", "canal-json")
    assert done.returncode == 0
    assert "open-protocol → canal-json" in done.stderr
    assert "not carried: watermarks" in done.stderr
    assert "messages read" in done.stderr


def test_bad_messages_are_left_out_and_named(tmp_path):
    messages = corpus.messages("nopk.canal.ext")
    broken = [messages[0], messages[1]._replace(value=b"{"), *messages[2:]]
    original = tmp_path / "original.jsonl"
    original.write_text(capture(broken))
    done = tidegate("convert", original, tmp_path / "out.jsonl", "--to", "craft")
    assert done.returncode == 1
    assert "bad message left out: partition 0, offset 1" in done.stderr


def test_a_refused_option_says_so(tmp_path):
    original = tmp_path / "original.jsonl"
    original.write_text(capture(corpus.messages("nopk.canal.ext")))
    done = tidegate(
        "convert", original, tmp_path / "out.jsonl", "--to", "craft", "--option", "compression=lz4"
    )
    assert done.returncode == 2
    assert "craft does not carry the option compression" in done.stderr
