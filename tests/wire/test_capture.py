"""Captures: what is written is read again, and what is wrong is named with its line."""

import gzip
import io
import json
import sys
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.model import CaptureError
from tidegate.wire import CAPTURE_SCHEMA, read_capture, write_capture

ROWS = [
    {
        "topic": "a",
        "partition": 0,
        "offset": 5,
        "timestamp": None,
        "key": None,
        "value": b"\x00one",
    },
    {
        "topic": "a",
        "partition": 1,
        "offset": 9,
        "timestamp": datetime(2026, 1, 2, 3, 4, 5, 678000, UTC),
        "key": b"k",
        "value": None,
    },
]


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz", "c.parquet"])
def test_a_written_capture_reads_the_same(tmp_path, name):
    batch = pa.RecordBatch.from_pylist(ROWS, CAPTURE_SCHEMA)
    assert write_capture(tmp_path / name, [batch]) == 2
    (read,) = read_capture(tmp_path / name)
    assert read.to_pylist() == ROWS


def lines(tmp_path, *documents):
    path = tmp_path / "c.jsonl"
    path.write_text("".join((d if isinstance(d, str) else json.dumps(d)) + "\n" for d in documents))
    return path


def test_offsets_are_counted_in_each_partition_where_there_are_none(tmp_path):
    path = lines(tmp_path, *({"partition": p, "key": None, "value": ""} for p in (0, 1, 0, 0, 1)))
    (read,) = read_capture(path)
    assert read["offset"].to_pylist() == [0, 0, 1, 2, 1]
    pq.write_table(pa.table({"key": [None, b"k"], "value": [b"a", b"b"]}), tmp_path / "c.parquet")
    (read,) = read_capture(tmp_path / "c.parquet")
    assert read["offset"].to_pylist() == [0, 1]
    assert read["partition"].to_pylist() == [0, 0]


def test_other_members_and_blank_lines_are_ignored(tmp_path):
    path = lines(tmp_path, {"value": "YQ==", "note": "row n=1"}, "", {"value": None})
    (read,) = read_capture(path)
    assert read["value"].to_pylist() == [b"a", None]


def test_standard_input_is_json_lines(monkeypatch):
    data = io.TextIOWrapper(io.BytesIO(b'{"partition":0,"key":null,"value":"YQ=="}\n'))
    monkeypatch.setattr(sys, "stdin", data)
    (read,) = read_capture("-")
    assert read["value"].to_pylist() == [b"a"]


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        "{}",
        '{"value":1}',
        '{"value":"%"}',
        '{"value":"","partition":"0"}',
        '{"value":"","offset":"x"}',
        '{"value":"","topic":5}',
        '{"value":"","partition":99999999999}',
        '{"value":"","timestamp":"now"}',
        "[" * 100_000,
    ],
)
def test_a_line_that_is_no_message_is_named(tmp_path, line):
    path = lines(tmp_path, {"value": ""}, line)
    with pytest.raises(CaptureError, match="Line 2 of the capture") as caught:
        list(read_capture(path))
    assert caught.value.line == 2


def test_files_that_are_no_captures_are_named(tmp_path):
    with pytest.raises(CaptureError, match="no such file"):
        list(read_capture(tmp_path / "nothing.jsonl"))
    with pytest.raises(CaptureError, match="no such file"):
        list(read_capture(tmp_path / "nothing.parquet"))
    (tmp_path / "bad.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(CaptureError, match="Parquet"):
        list(read_capture(tmp_path / "bad.parquet"))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"value":""}\n' * 1000)[:-9])
    with pytest.raises(CaptureError, match="gzip"):
        list(read_capture(tmp_path / "cut.jsonl.gz"))
    pq.write_table(pa.table({"value": [b"a"]}), tmp_path / "half.parquet")
    with pytest.raises(CaptureError, match="no column key"):
        list(read_capture(tmp_path / "half.parquet"))
