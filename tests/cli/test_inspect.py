"""`tidegate inspect` as a person and as a program would call it."""

import json
import subprocess
import sys
from base64 import b64encode

import pytest

from tests.support import corpus
from tidegate.cli.render import readable

PYTHON = [sys.executable, "-m", "tidegate.cli"]


def tidegate(*arguments, stdin=None):
    return subprocess.run(
        [*PYTHON, *map(str, arguments)], input=stdin, capture_output=True, text=True, check=False
    )


def capture(messages):
    return "".join(
        json.dumps(
            {
                "partition": message.partition,
                "key": message.key and b64encode(message.key).decode(),
                "value": message.value and b64encode(message.value).decode(),
                "note": message.note,
            }
        )
        + "\n"
        for message in messages
    )


@pytest.fixture(
    params=["open.b16", "canal.ext", "simple.json", "simple.avro", "craft.b16", "canal.lz4"]
)
def types(request, tmp_path):
    path = tmp_path / "types.jsonl"
    path.write_text(capture(corpus.messages(f"types.{request.param}")))
    return path


def test_json_has_one_event_a_line(types):
    done = tidegate("inspect", types, "--output", "json")
    assert (done.returncode, done.stderr) == (0, "")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["kind"] for event in events if event["kind"] != "schema"] == [
        event["type"]
        if event["kind"] == "row"
        else {"resolved": "watermark"}.get(event["kind"], "ddl")
        for event in corpus.events("types")
    ]
    row = next(event for event in events if event["kind"] == "insert")
    assert {"partition", "offset", "event", "commitTs", "database", "table", "shape"} <= row.keys()
    assert row["types"]["id"] == "int"
    assert row["keys"] == ["id"]
    assert None not in row.values()


def test_text_shows_every_event_and_a_summary(types):
    done = tidegate("inspect", types)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["part", "offset", "commit"]
    assert "(guessed)" in lines[-1]
    assert "CREATE TABLE" in done.stdout
    assert "\x1b" not in done.stdout


def test_bad_messages_are_named_and_make_exit_code_1(tmp_path):
    messages = corpus.messages("types.canal.ext")[:3]
    broken = [messages[0], messages[1]._replace(value=b'{"id":'), messages[2]]
    done = tidegate(
        "inspect", "-", "--output", "json", "--protocol", "canal-json", stdin=capture(broken)
    )
    assert done.returncode == 1
    assert "bad message: partition 0, offset 1: byte 6 of the value:" in done.stderr
    kinds = [json.loads(line)["kind"] for line in done.stdout.splitlines()]
    assert kinds.count("error") == 1
    assert len(kinds) == 3


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["inspect"], "Missing argument 'SOURCE'"),
        (["inspect", "nothing.jsonl"], "there is no such file"),
        (["inspect", "x.jsonl", "--protocol", "avro"], "'avro' is not one of"),
        (["inspect", "x.jsonl", "--output", "xml"], "'xml' is not one of"),
        (["inspect", "x.jsonl", "--claim-check", "nowhere"], "does not exist"),
        (["inspect", "kafka://h:1/t", "--from-time", "99999999999d"], "or an age"),
        (["inspect", "docs"], "the folder has no files ending in"),
        (["generate", "bank", "nowhere/b.parquet", "--rows", "1"], "No such file or directory"),
        (["read", "d.t", "--lake", "x", "--at", "1960-01-01"], "a time since 1970"),
        (["read", "d.t", "--lake", "x", "--at", "9" * 30], "give a TSO"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["convert", "a", "b"], "give --to PROTOCOL and DEST"),
        (["convert", "a", "b", "--to", "craft", "--option", "x=1"], "max-message-bytes"),
        (
            ["convert", "a", "b", "--to", "craft", "--option", "max-batch-size=many"],
            "not a whole number",
        ),
    ],
)
def test_usage_errors_say_what_is_wrong_and_exit_2(arguments, says):
    done = tidegate(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["inspect", "nothing.jsonl", "--output", "json"], "there is no such file"),
        (["inspect", "--output=json"], "Missing argument 'SOURCE'"),
    ],
)
def test_errors_are_json_too_where_that_is_asked_for(arguments, says):
    done = tidegate(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    told = json.loads(done.stderr)
    assert told["event"] == "error"
    assert says in told["error"]


def test_messages_of_no_known_protocol_are_a_usage_error():
    done = tidegate("inspect", "-", stdin='{"value":"aGVsbG8="}\n')
    assert done.returncode == 2
    assert "Name it with --protocol" in done.stderr


def test_an_empty_capture_is_fine():
    done = tidegate("inspect", "-", stdin="")
    assert done.returncode == 0
    assert done.stdout == "0 messages: no events\n"


def test_a_folder_is_shown_as_one_capture(tmp_path):
    messages = corpus.messages("types.canal.ext")
    (tmp_path / "a.jsonl").write_text(capture(messages[:5]))
    (tmp_path / "b.jsonl").write_text(capture(messages[5:]))
    done = tidegate("inspect", tmp_path)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith(f"{len(messages)} messages of canal-json")


def test_a_table_without_events_is_named_with_those_that_have_some(types):
    done = tidegate("inspect", types, "--table", "t.bit")
    assert done.returncode == 1
    assert done.stderr == "There are no events of t.bit: did you mean 't.bits'\n"


def test_with_a_limit_only_messages_up_to_the_last_event_shown_are_counted(tmp_path):
    path = tmp_path / "types.jsonl"
    path.write_text(capture(corpus.messages("types.canal.ext")))
    done = tidegate("inspect", path, "--limit", 3)
    assert done.stdout.splitlines()[-1].startswith("3 messages of canal-json (guessed)")
    done = tidegate("inspect", path, "--limit", 3, "--table", "no.such")
    assert "no.such" in done.stderr


@pytest.mark.parametrize(
    ("given", "stream", "named"),
    [
        ("open-protocol", "canal.ext", "canal-json"),
        ("canal-json", "open.b16", "open-protocol"),
        ("craft", "simple.avro", "simple (avro)"),
        ("cdc", "canal.lz4", "canal-json compressed with lz4"),
    ],
)
def test_a_wrong_protocol_is_refused_with_the_one_that_the_messages_are_of(given, stream, named):
    messages = capture(corpus.messages(f"types.{stream}"))
    done = tidegate("inspect", "-", "--protocol", given, stdin=messages)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"is {given}; all look like {named}" in done.stderr


def test_messages_of_which_one_can_be_read_are_not_refused():
    good = corpus.messages("types.canal.ext")[:3]
    other = corpus.messages("types.simple.json")[:2]
    done = tidegate("inspect", "-", "--protocol", "simple", stdin=capture([*good, *other]))
    assert done.returncode == 1
    assert done.stderr.count("bad message") == 3


def test_limit_and_table_show_less(types):
    done = tidegate("inspect", types, "--limit", 3, "--output", "json")
    assert len(done.stdout.splitlines()) == 3
    done = tidegate("inspect", types, "--table", "t.bits", "--output", "json")
    assert {json.loads(line)["table"] for line in done.stdout.splitlines()} == {"bits"}


def test_bad_messages_are_named_whatever_table_is_asked_for():
    messages = corpus.messages("types.canal.ext")[:3]
    broken = [messages[0], messages[1]._replace(value=b'{"id":'), messages[2]]
    done = tidegate("inspect", "-", "--table", "no.such", stdin=capture(broken))
    assert done.returncode == 1
    assert "bad message: partition 0, offset 1" in done.stderr


@pytest.mark.parametrize(
    "value, type_name, shown",
    [
        ("iVBORw==", "varbinary(16)", "0x89504e47"),
        (
            "/w==" * 30,
            "blob",
            "/w==/w==/w==/w==/w==/w==/w==/w==/w==/w==… (120 characters) (no base64)",
        ),
        ("abc", "blob", "abc (no base64)"),
        ("//" * 30, "blob", f"0x{'ff' * 20}… (45 bytes)"),
        ("YWJj", "blob", "abc"),
        ("a\x1b[31m\n", "text", "a\\x1b[31m\\n"),
        ("\n" * 41, "text", "\\n" * 40 + "… (41 characters)"),
        ("x" * 40, None, "x" * 40),
        ("", "text", "''"),
        (None, "text", "NULL"),
    ],
)
def test_values_are_made_readable(value, type_name, shown):
    assert readable(value, type_name) == shown


def test_an_event_is_one_line_that_no_terminal_obeys():
    ddl = json.loads(corpus.messages("types.canal.ext")[0].value)
    ddl |= {"sql": "CREATE TABLE t (\n  a INT COMMENT '\x1b[31mred'\n)", "table": "t\r\nt"}
    line = {"value": b64encode(json.dumps(ddl).encode()).decode()}
    done = tidegate("inspect", "-", stdin=json.dumps(line))
    assert done.returncode == 0
    event = done.stdout.split("\n")[1]
    assert event.endswith(r".t\r\nt: CREATE TABLE t (\n  a INT COMMENT '\x1b[31mred'\n)  [QUERY]")


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_claim_checks_are_loaded_from_a_folder_or_a_uri(tmp_path, form):
    messages = corpus.messages("large.canal.cc")
    load = corpus.claim_check_loader("large.canal.cc")
    for message in messages:
        location = json.loads(message.value).get("_tidb", {}).get("claimCheckLocation")
        if location:
            (tmp_path / location.rsplit("/", 1)[-1]).write_bytes(load(location))
    done = tidegate(
        "inspect",
        "-",
        "--claim-check",
        form.format(tmp_path),
        "--output",
        "json",
        stdin=capture(messages),
    )
    assert done.returncode == 0
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert all("flags" not in row for row in rows)
    assert max(len(row.get("after", {}).get("c") or "") for row in rows) > 3000
