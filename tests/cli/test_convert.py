"""`tidegate convert`, and what it says before it starts."""

import json
from collections import Counter

import pyarrow as pa
import pytest

from tests.cli.test_inspect import capture, tidegate
from tests.feed.test_replay import differences
from tests.support import corpus
from tests.support.mirror import Mirror
from tidegate.feed.gate import Gate
from tidegate.wire import decode_batch, read_capture

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


# --- by the rules of a changefeed -----------------------------------------------------------------

URIS = {
    "open-protocol": "protocol=open-protocol",
    "canal-json": "protocol=canal-json&enable-tidb-extension=true",
    "simple": "protocol=simple&encoding-format=avro",
    "craft": "protocol=craft",
}
CHANGEFEED = """
[sink]
dispatchers = [{matcher = ["d1.*"], partition = "index-value"}, {matcher = ["*.*"], partition = "ts"}]
"""


def decoded(path, protocol):
    for messages in read_capture(path):
        columns = {name: messages[name] for name in ("topic", "partition", "offset")}
        yield decode_batch(
            protocol,
            messages["key"],
            messages["value"],
            topics=columns["topic"],
            partitions=columns["partition"],
            offsets=columns["offset"],
        )


@pytest.mark.parametrize(
    "source, target",
    [
        ("open.b16", "canal-json"),
        ("canal.ext", "craft"),
        ("craft.b16", "open-protocol"),
        ("open.b16", "simple"),
        ("simple.json", "simple"),
    ],
)
def test_a_feed_sent_anew_leads_to_the_same_tables(tmp_path, source, target):
    original = tmp_path / "original.jsonl"
    original.write_text(capture(corpus.messages(f"bank.{source}.stream")))
    changefeed = tmp_path / "changefeed.toml"
    changefeed.write_text(CHANGEFEED)
    done = tidegate(
        "convert", original, "--sink-uri", f"file://{tmp_path}/new?{URIS[target]}&partition-num=2",
        "--changefeed", changefeed, "--output", "json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *_, end = map(json.loads, done.stderr.splitlines())
    assert end["destination"] == str(tmp_path / "new" / "messages.parquet")
    assert end["bad"] == 0

    mirror = Mirror(Gate([("", 0), ("", 1)]))
    ddl = Counter()
    for batch in decoded(end["destination"], target):
        mirror.read(pa.Table.from_batches([batch]))
        ddl.update(
            (row["partition"], row["ddl"]["query"])
            for row in batch.to_pylist()
            if row["kind"] == "ddl"
        )
    assert mirror.is_done()
    assert differences(mirror.model, "bank") == set()
    partitions = {0} if target == "canal-json" else {0, 1}
    assert {partition for partition, _ in ddl} == partitions
    assert set(ddl.values()) == {1}


def test_a_feed_without_watermarks_keeps_its_order(tmp_path):
    original = tmp_path / "original.jsonl"
    original.write_text(capture(corpus.messages("bank.canal.stream")))
    converted = tmp_path / "converted.jsonl"
    uri = "kafka://broker:9092/bank?protocol=canal-json&partition-num=1"
    done = tidegate("convert", original, converted, "--sink-uri", uri)
    assert done.returncode == 0, done.stderr
    assert [row[1:] for row in rows(converted)] == [row[1:] for row in rows(original)]


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "give --to PROTOCOL and DEST, or --sink-uri"),
        (["out.jsonl", "--to", "craft", "--changefeed", __file__], "or --sink-uri"),
        (["--sink-uri", "kafka://b:1/t?protocol=craft", "--to", "craft"], "leave those out"),
        (["--sink-uri", "kafka://b:1/t?protocol=craft"], "give DEST"),
        (["out.jsonl", "--sink-uri", "kafka://b:1/t?protocol=crafd"], "did you mean 'craft'"),
    ],
)
def test_what_does_not_go_together_is_said(tmp_path, arguments, said):
    original = tmp_path / "original.jsonl"
    original.write_text(capture(corpus.messages("nopk.canal.ext")))
    done = tidegate("convert", original, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == [original]
