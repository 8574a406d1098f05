"""`tidegate convert`, and what it says before it starts."""

import json
from collections import Counter

import pyarrow as pa
import pytest

from tests.changefeed.test_replay import differences
from tests.cli.test_inspect import capture, tidegate
from tests.support import corpus
from tests.support.mirror import Mirror
from tidegate.changefeed.receive.gate import Gate
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


def changed(path, target, *options):
    done = tidegate(
        "convert", path, path.with_name("out.jsonl"), "--to", target, "--output", "json", *options
    )
    lines = done.stderr.splitlines()
    return done.returncode, json.loads(lines[0])["lost"], lines[1:-1], json.loads(lines[-1])


def test_deletes_that_the_target_cannot_carry_are_said_and_left_out(tmp_path):
    original = tmp_path / "original.jsonl"
    original.write_text(capture(corpus.messages("nopk.canal.ext")))
    code, lost, refused, end = changed(original, "cdc")
    assert (code, refused, end["bad"], end["refused"]) == (0, [], 0, 0)
    assert "deletes" in lost
    deletes = sum(kind == "delete" for _, kind, *_ in rows(original))
    assert end["deletesLeftOut"] == deletes > 0
    assert len(rows(tmp_path / "out.jsonl")) == len(rows(original)) - deletes


@pytest.mark.parametrize("target", ["craft", "cdc", "canal-json"])
def test_rows_that_the_target_cannot_carry_are_named_and_left_out(tmp_path, target):
    original = tmp_path / "original.jsonl"
    original.write_text(capture(corpus.messages("large.open.hk")))
    options = ["--option", "profile=operations"] if target == "cdc" else []
    code, lost, refused, end = changed(original, target, *options)
    assert code == 1
    assert any("only the key is there" in words for words in lost)
    marked = [
        event
        for event in map(
            json.loads, tidegate("inspect", original, "--output", "json").stdout.splitlines()
        )
        if "handle-key-only" in event.get("flags", ())
    ]
    assert len(refused) == end["refused"] == len(marked) > 0
    for line, event in zip(refused, marked, strict=True):
        place = f"partition 0, offset {event['offset']}, event {event['event']}"
        assert line.startswith(f"left out: {place}: Cannot encode l.")
    assert len(rows(tmp_path / "out.jsonl")) == len(rows(original)) - len(marked)


def test_lines_with_and_without_topic_or_partition_are_converted_once(tmp_path):
    messages = corpus.messages("alias.canal.ext")
    lines = [json.loads(line) for line in capture(messages).splitlines()]
    for number, line in enumerate(lines):
        line |= [{"topic": "a"}, {}, {"partition": None}][number % 3]
    original = tmp_path / "original.jsonl"
    original.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert changed(original, "craft")[0] == 0
    assert sorted(map(str, rows(tmp_path / "out.jsonl"))) == sorted(map(str, rows(original)))


def test_a_capture_may_be_converted_in_its_place(tmp_path):
    path = tmp_path / "capture.jsonl"
    path.write_text(capture(corpus.messages("alias.canal.ext")))
    before = rows(path)
    assert tidegate("convert", path, path, "--to", "craft").returncode == 0
    assert rows(path) == before
    kept = path.read_bytes()
    done = tidegate("convert", path, path, "--to", "craft", "--option", "compression=lz4")
    assert done.returncode == 2
    assert path.read_bytes() == kept


@pytest.mark.parametrize(
    "option",
    [
        "generation=old",
        "encoding-format=xml",
        "profile=none",
        "compression=zstd",
        "large-message-handle=none",
        "max-message-bytes=0",
        "max-batch-size=0",
        "time-zone=Mars/Olympus",
        "claim-check=/no/such/folder",
        "mix-tables=yes",
        "max-batch-size=many",
        "no-such-option=1",
    ],
)
def test_a_wrong_option_is_usage(tmp_path, option):
    original = tmp_path / "original.jsonl"
    original.write_text(capture(corpus.messages("alias.canal.ext")))
    for target in ("simple", "cdc"):
        done = tidegate("convert", original, tmp_path / "out", "--to", target, "--option", option)
        assert done.returncode == 2
        assert option.partition("=")[0].replace("-", "_") in done.stderr.replace("-", "_")
        assert "Traceback" not in done.stderr


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


@pytest.mark.parametrize(
    ("command", "lists"),
    [
        (["convert", "--option", "help"], "max-batch-size=16"),
        (["convert", "a", "b", "--to", "craft", "--option", "help"], "enable-tidb-extension=false"),
        (["generate", "--option", "help"], "bank: rate=2000, accounts=1000"),
        (["verify", "--option", "help"], "sysbench: rate=2000"),
    ],
)
def test_option_help_lists_the_options_whatever_else_is_given(command, lists):
    done = tidegate(*command)
    assert (done.returncode, done.stderr) == (0, "")
    assert lists in done.stdout


def test_an_empty_capture_is_converted_to_an_empty_one(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    out = tmp_path / "out.jsonl"
    done = tidegate("convert", tmp_path / "empty.jsonl", out, "--to", "craft", "--output", "json")
    plan, end = map(json.loads, done.stderr.splitlines())
    assert (done.returncode, plan["from"], plan["lost"], end["written"]) == (0, None, [], 0)
    assert out.read_text() == ""
