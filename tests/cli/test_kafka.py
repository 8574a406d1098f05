"""Commands on Kafka: a topic is shown and written without Spark, and bridged with it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from base64 import b64encode
from datetime import UTC, datetime

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import corpus
from tests.support.consumed import consumed
from tests.support.kafka import free_port
from tests.support.spark import fresh
from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.send.changefeed import OUTGOING_SCHEMA
from tidegate.cli.kafka import parse_start
from tidegate.model import ConfigError, SinkError, SourceError
from tidegate.source.topic_reader import Start, TopicReader
from tidegate.source.topic_writer import TopicWriter

PYTHON = [sys.executable, "-m", "tidegate.cli"]
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def tidegate(*arguments, **environment):
    return subprocess.run(
        [*PYTHON, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
        timeout=300,
    )


def events(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def topic(kafka):
    """The golden stream of Canal-JSON in three partitions."""
    name = fresh("inspected")
    kafka.create(name)
    kafka.send({name: corpus.messages("types.canal.ext")})
    return name


# --- inspect --------------------------------------------------------------------------------------


def test_a_topic_is_shown_whole_and_its_protocol_guessed(kafka, topic):
    done = tidegate("inspect", f"kafka://{kafka.address}/{topic}", "--output", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found = [event for event in events(done) if event["kind"] != "schema"]
    assert len(found) == len(corpus.messages("types.canal.ext"))
    assert {event["topic"] for event in found} == {topic}
    for number in range(3):
        offsets = [event["offset"] for event in found if event["partition"] == number]
        assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--from-offset", "1"], lambda at, end: at >= 1),
        (["--from-offset", "-1"], lambda at, end: at == end - 1),
        (["--from-offset", "1000000"], lambda at, end: False),
        (["--from-time", "1h"], lambda at, end: True),
        (["--from-time", "2100-01-01T00:00:00"], lambda at, end: False),
    ],
)
def test_reading_begins_where_asked(kafka, topic, options, expected):
    ends = {}
    for message in consumed(kafka, topic):
        ends[message.partition] = message.offset + 1
    uri = kafka.uri(topic, "canal-json", enable_tidb_extension="true")
    done = tidegate("inspect", uri, "--output", "json", *options)
    assert done.returncode == 0, done.stderr
    found = {(event["partition"], event["offset"]) for event in events(done)}
    assert found == {
        (number, at) for number, end in ends.items() for at in range(end) if expected(at, end)
    }


def test_following_shows_what_comes_later(kafka):
    name = fresh("followed")
    kafka.create(name, partitions=1)
    messages = [message._replace(partition=0) for message in corpus.messages("types.canal.ext")]
    uri = kafka.uri(name, "canal-json", enable_tidb_extension="true")
    kafka.send({name: messages[:2]})
    process = subprocess.Popen(
        [*PYTHON, "inspect", uri, "--follow", "--limit", "4", "--output", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    first = [json.loads(process.stdout.readline()) for _ in range(2)]
    kafka.send({name: messages[2:4]})
    rest, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")
    found = first + [json.loads(line) for line in rest.splitlines()]
    assert [event["offset"] for event in found] == [0, 1, 2, 3]


def test_a_topic_that_is_not_there_is_named_with_the_nearest(kafka, topic):
    done = tidegate("inspect", f"kafka://{kafka.address}/{topic}s")
    assert done.returncode == 2
    assert f"Cannot read the topic '{topic}s': it does not exist." in done.stderr
    assert f"did you mean '{topic}'" in done.stderr


def refusal(uri):
    """Why a topic cannot be read, and how long that took to find out."""
    config = ChangefeedConfig.from_uri(f"{uri}{'&' if '?' in uri else '?'}protocol=craft")
    started = time.monotonic()
    with pytest.raises(SourceError) as raised:
        next(TopicReader(config, Start()).batches())
    assert time.monotonic() - started < 6
    return raised.value.reason


def test_a_host_name_that_does_not_resolve_is_named():
    assert refusal("kafka://no-such-host.invalid:9092/t") == "its host name cannot be resolved"


def test_a_refused_connection_is_named():
    assert refusal(f"kafka://127.0.0.1:{free_port()}/t") == "it refuses the connection"


def test_tls_to_a_port_without_it_is_named(kafka):
    assert refusal(f"kafka+ssl://{kafka.address}/t").startswith("TLS fails (SSL handshake failed")


def test_a_login_that_is_refused_is_named(kafka):
    login = "sasl-mechanism=PLAIN&sasl-user=u&sasl-password=secret"
    reason = refusal(f"kafka://{kafka.address}/t?{login}")
    assert reason.startswith("it refuses the login (SASL PLAIN mechanism")
    assert "secret" not in reason


def test_a_port_that_closes_every_connection_and_one_that_is_silent_are_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert refusal(f"kafka://{address}/t") == "it does not answer within 5 seconds"

        def hang_up():
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                client.recv(1)
                client.close()

        threading.Thread(target=hang_up, daemon=True).start()
        assert refusal(f"kafka://{address}/t") == "it closes the connection at once"
        server.shutdown(socket.SHUT_RDWR)


def test_without_the_library_the_next_step_is_said(tmp_path):
    (tmp_path / "confluent_kafka.py").write_text("raise ModuleNotFoundError(name=__name__)\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = tidegate("inspect", "kafka://127.0.0.1:1/t", PYTHONPATH=path)
    assert done.returncode == 2
    assert "pip install 'tidegate[kafka]'" in done.stderr


def test_options_of_topics_are_refused_for_captures(tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    done = tidegate("inspect", tmp_path / "a.jsonl", "--follow")
    assert done.returncode == 2
    assert "--follow are for kafka://" in done.stderr


@pytest.mark.parametrize(
    ("offset", "text", "expected"),
    [
        (None, None, Start()),
        (7, None, Start(7)),
        (None, "15m", Start(None, 1767312000_000 - 900_000)),
        (None, "2d", Start(None, 1767312000_000 - 2 * 86_400_000)),
        (None, "2026-01-02T00:00:00", Start(None, 1767312000_000)),
        (None, "2026-01-02T00:00:00.250+02:00", Start(None, 1767304800_250)),
    ],
)
def test_starts_are_offsets_times_or_ages(offset, text, expected):
    assert parse_start(offset, text, NOW) == expected


@pytest.mark.parametrize(("offset", "text"), [(1, "15m"), (None, "yesterday"), (None, "15")])
def test_a_start_that_says_nothing_clear_is_refused(offset, text):
    with pytest.raises(click.UsageError):
        parse_start(offset, text, NOW)


# --- writing --------------------------------------------------------------------------------------


def outgoing(*rows):
    names = OUTGOING_SCHEMA.names
    return pa.RecordBatch.from_pylist(
        [dict(zip(names, row, strict=True)) for row in rows], schema=OUTGOING_SCHEMA
    )


def test_messages_go_to_their_partitions_and_topics_are_made(kafka):
    name, other = fresh("written"), fresh("other")
    writer = TopicWriter(ChangefeedConfig.from_uri(kafka.uri(name, "craft", partition_num="4")))
    assert writer.partitions() == 4
    rows = [
        (None if n % 2 else other, n % 4, b"k%d" % n, None if n == 3 else b"v") for n in range(20)
    ]
    writer.write(outgoing(*rows))
    writer.close()
    found = consumed(kafka, name, other)
    assert sorted((one.topic, one.partition, one.key, one.value) for one in found) == sorted(
        (topic or name, *rest) for topic, *rest in rows
    )
    again = TopicWriter(ChangefeedConfig.from_uri(kafka.uri(name, "craft")))
    assert again.partitions() == 4
    more = TopicWriter(ChangefeedConfig.from_uri(kafka.uri(name, "craft", partition_num="5")))
    with pytest.raises(ConfigError, match=r"it is 5, but the topic '.*' has 4 partitions"):
        more.partitions()


def test_no_more_is_written_in_a_second_than_asked_for(kafka):
    name = fresh("paced")
    writer = TopicWriter(ChangefeedConfig.from_uri(kafka.uri(name, "craft")), rate=100)
    writer.partitions()
    started = time.monotonic()
    writer.write(outgoing(*[(None, 0, None, b"v")] * 51))
    assert time.monotonic() - started >= 0.5
    writer.close()


def test_a_broker_that_takes_nothing_is_named():
    address = f"127.0.0.1:{free_port()}"
    writer = TopicWriter(ChangefeedConfig.from_uri(f"kafka://{address}/t?protocol=craft"))
    with pytest.raises(
        SinkError, match=f"Kafka at {re.escape(address)}: it refuses the connection"
    ):
        writer.partitions()


def test_a_workload_is_sent_to_kafka_as_it_would_be_to_a_capture(kafka, tmp_path):
    name = fresh("generated")
    uri = kafka.uri(name, "simple", partition_num="2")
    done = tidegate("generate", "bank", uri, "--rows", 200, "--output", "json")
    assert done.returncode == 0, done.stderr
    capture = tmp_path / "bank.parquet"
    same = tidegate("generate", "bank", capture, "--rows", 200, "--sink-uri", uri)
    assert same.returncode == 0, same.stderr
    expected = sorted(
        (row["partition"], number, row["key"], row["value"])
        for number, row in enumerate(pq.read_table(capture).to_pylist())
    )
    found = [(one.partition, one.key, one.value) for one in consumed(kafka, name)]
    assert found == [(partition, key, value) for partition, _, key, value in expected]
    assert json.loads(done.stderr)["messages"] == len(found)


@pytest.mark.parametrize(
    ("destination", "options", "says"),
    [
        ("kafka://h:1/t?protocol=craft", ["--sink-uri", "kafka://h:1/t"], "leave --sink-uri out"),
        ("a.jsonl", ["--rate", "10"], "--rate is for kafka://"),
    ],
)
def test_what_contradicts_is_refused(destination, options, says):
    done = tidegate("generate", "bank", destination, *options)
    assert done.returncode == 2
    assert says in done.stderr


# --- bridge ---------------------------------------------------------------------------------------


def test_a_capture_is_bridged_to_kafka(kafka, tmp_path):
    capture = tmp_path / "in.jsonl"
    lines = [
        {
            "partition": message.partition,
            "key": message.key and b64encode(message.key).decode(),
            "value": message.value and b64encode(message.value).decode(),
        }
        for message in corpus.messages("types.canal.ext")
    ]
    capture.write_text("".join(json.dumps(line) + "\n" for line in lines))
    name = fresh("bridged")
    uri = kafka.uri(name, "craft", partition_num="2")
    arguments = ["bridge", capture, uri, "--once", "--master", "local[2]", "--output", "json"]
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = tidegate(*arguments, **state)
    assert done.returncode == 0, done.stderr
    plan, *batches, end = events(done)
    assert (plan["event"], plan["from"], plan["to"]) == ("plan", "canal-json", "craft")
    assert [batch["event"] for batch in batches] == ["batch"] * len(batches)
    assert (end["event"], end["bad"], end["held"]) == ("done", 0, 0)
    assert done.stderr == ""  # nothing of Spark's or the JVM's
    assert end["messages"] == len(consumed(kafka, name)) > 0


# --- a broker for trials --------------------------------------------------------------------------


def test_a_broker_for_trials_ends_with_its_process_and_says_a_uri_that_sends_watermarks(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.kafka"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(3)]
    uri = said[1].split()[-1]
    assert ChangefeedConfig.from_uri(uri).sends_watermarks
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert list(tmp_path.glob("tidegate-kafka-*")) == []
    assert refusal(uri.partition("?")[0]) == "it refuses the connection"
