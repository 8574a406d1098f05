"""Captures: what is written is read again, and what is wrong is named with its line."""

import gzip
import io
import json
import subprocess
import sys
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.model import CaptureError, SinkError
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


PLACES = [(None, None), (1, 9), (0, None)]


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


def test_null_is_no_partition_and_no_offset(tmp_path):
    path = lines(tmp_path, *({"partition": p, "offset": o, "value": ""} for p, o in PLACES))
    (read,) = read_capture(path)
    assert (read["partition"].to_pylist(), read["offset"].to_pylist()) == ([0, 1, 0], [0, 9, 1])
    columns = {"key": [None] * 3, "value": [b""] * 3}
    columns["partition"], columns["offset"] = zip(*PLACES, strict=True)
    pq.write_table(pa.table(columns), tmp_path / "c.parquet")
    (read,) = read_capture(tmp_path / "c.parquet")
    assert (read["partition"].to_pylist(), read["offset"].to_pylist()) == ([0, 1, 0], [0, 9, 1])


def test_other_members_and_blank_lines_are_ignored(tmp_path):
    path = lines(tmp_path, {"value": "YQ==", "note": "row n=1"}, "", {"value": None})
    (read,) = read_capture(path)
    assert read["value"].to_pylist() == [b"a", None]


def test_standard_input_is_json_lines(monkeypatch):
    data = io.BufferedReader(io.BytesIO(b'{"partition":0,"key":null,"value":"YQ=="}\n'))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(data))
    (read,) = read_capture("-")
    assert read["value"].to_pylist() == [b"a"]


@pytest.mark.parametrize("form", ["lines", "gzip", "parquet"])
def test_the_content_of_a_file_says_what_it_is_not_its_name(tmp_path, form):
    line, path = b'{"key":null,"value":"YQ=="}\n', tmp_path / "capture"
    if form == "parquet":
        pq.write_table(pa.table({"key": pa.nulls(1, pa.binary()), "value": [b"a"]}), path)
    else:
        path.write_bytes(gzip.compress(line) if form == "gzip" else line)
    (read,) = read_capture(path)
    assert read["value"].to_pylist() == [b"a"]


def test_a_folder_is_all_its_capture_files_and_offsets_are_counted_over_them(tmp_path):
    for name in ("b.jsonl", "a.jsonl", "notes.txt", ".a.jsonl.part"):
        (tmp_path / name).write_text('{"value":"YQ=="}\n')
    read = pa.Table.from_batches(read_capture(tmp_path))
    assert read["offset"].to_pylist() == [0, 1]


def test_parquet_in_a_pipe_is_named():
    done = subprocess.run(
        [sys.executable, "-m", "tidegate.cli", "inspect", "-"],
        input=b"PAR1" * 4,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"give a file, not a pipe" in done.stderr


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
        '{"value":"","topic":"\\ud800"}',
        '{"value":"","partition":true}',
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
    whole = bytearray(gzip.compress(b"".join(b'{"value":"%d"}\n' % n for n in range(9999))))
    whole[10:40] = b"\xff" * 30
    (tmp_path / "hurt.jsonl.gz").write_bytes(whole)
    with pytest.raises(CaptureError, match="gzip"):
        list(read_capture(tmp_path / "hurt.jsonl.gz"))
    pq.write_table(pa.table({"key": [None], "value": [b"a" * 500]}), tmp_path / "hurt.parquet")
    whole = bytearray((tmp_path / "hurt.parquet").read_bytes())
    whole[30:60] = b"\xff" * 30
    (tmp_path / "hurt.parquet").write_bytes(whole)
    with pytest.raises(CaptureError, match="Parquet"):
        list(read_capture(tmp_path / "hurt.parquet"))
    far = pa.table({"key": [None], "value": [b"a"], "partition": [1 << 40]})
    pq.write_table(far, tmp_path / "far.parquet")
    with pytest.raises(CaptureError, match="Parquet"):
        list(read_capture(tmp_path / "far.parquet"))
    for name in ("folder.jsonl", "folder.jsonl.gz", "folder.parquet"):
        (tmp_path / name).mkdir()
        with pytest.raises(CaptureError, match="the folder has no files"):
            list(read_capture(tmp_path / name))


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz", "c.parquet"])
def test_a_capture_is_whole_or_not_there(tmp_path, name):
    batch = pa.RecordBatch.from_pylist(ROWS, CAPTURE_SCHEMA)
    path = tmp_path / name

    def breaks():
        yield batch
        raise KeyError

    with pytest.raises(KeyError):
        write_capture(path, breaks())
    assert list(tmp_path.iterdir()) == []
    write_capture(path, [batch])
    with pytest.raises(KeyError):
        write_capture(path, breaks())
    (read,) = read_capture(path)
    assert read.to_pylist() == ROWS
    assert write_capture(path, read_capture(path)) == 2
    (read,) = read_capture(path)
    assert read.to_pylist() == ROWS
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz", "c.parquet"])
def test_a_place_that_cannot_be_written_to_is_named(tmp_path, name):
    with pytest.raises(SinkError, match=f"nowhere/{name}': No such file or directory"):
        write_capture(tmp_path / "nowhere" / name, [])
    (tmp_path / name).mkdir()
    with pytest.raises(SinkError, match="directory"):
        write_capture(tmp_path / name, [])
