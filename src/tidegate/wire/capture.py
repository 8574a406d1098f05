"""Captures: messages kept in files, as they came from Kafka.

`.jsonl`, also `.jsonl.gz`: a message a line, `partition`, `key`, `value` (base64 or null), optional
`topic`, `offset`, `timestamp` (ms); other members are ignored. `.parquet`: Kafka's columns, by the
names that Spark gives them. `-` is JSON lines from standard input. Where a capture has no offsets
they are counted from 0 in each partition.
"""

from __future__ import annotations

import binascii
import gzip
import json
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.model import CaptureError

CAPTURE_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
"""The columns of a batch of messages."""

BATCH_ROWS = 10_000
BATCH_BYTES = 64 * 1024 * 1024


class _Offsets:
    """Counts offsets where a capture has none."""

    def __init__(self) -> None:
        self._next: dict[tuple[str | None, int], int] = {}

    def next(self, topic: str | None, partition: int) -> int:
        offset = self._next.get((topic, partition), 0)
        self._next[topic, partition] = offset + 1
        return offset


def read_capture(source: str | Path) -> Iterator[pa.RecordBatch]:
    """The messages of a capture in order, in batches of CAPTURE_SCHEMA; or CaptureError."""
    return read_captures([source])


def read_captures(sources: Iterable[str | Path]) -> Iterator[pa.RecordBatch]:
    """The messages of a capture in several files: offsets are counted over all of them."""
    offsets = _Offsets()
    for name in map(str, sources):
        if name.endswith(".parquet"):
            yield from _read_parquet(name, offsets)
        else:
            with _open_lines(name) as lines:
                yield from _read_lines(name, lines, offsets)


@contextmanager
def _open_lines(name: str) -> Iterator[IO[bytes]]:
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        with gzip.open(name, "rb") if name.endswith(".gz") else open(name, "rb") as lines:
            yield cast(IO[bytes], lines)
    except FileNotFoundError as error:
        raise CaptureError(name, 0, "there is no such file") from error
    except (EOFError, gzip.BadGzipFile) as error:
        raise CaptureError(name, 0, f"the gzip data is damaged ({error})") from error


def _read_lines(name: str, lines: IO[bytes], offsets: _Offsets) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, Any]] = []
    size = 0
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        rows.append(_message(name, number, line, offsets))
        size += len(line)
        if len(rows) == BATCH_ROWS or size >= BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(rows, CAPTURE_SCHEMA)
            rows, size = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, CAPTURE_SCHEMA)


def _message(name: str, number: int, line: bytes, offsets: _Offsets) -> dict[str, Any]:
    try:
        document = json.loads(line)
        if not isinstance(document, dict) or "value" not in document:
            raise ValueError('a line is an object with "key" and "value" in base64')
        topic = document.get("topic")
        partition = document.get("partition", 0)
        offset = document.get("offset")
        if not isinstance(topic, str | None):
            raise ValueError(f"topic is {topic!r}")
        for member, bits in (("partition", 31), ("offset", 63), ("timestamp", 53)):
            found = document.get(member)
            if found is not None and not (isinstance(found, int) and 0 <= found < 1 << bits):
                raise ValueError(f"{member} is {found!r}")
        if offset is None:
            offset = offsets.next(topic, partition)
        return {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp": document.get("timestamp"),
            "key": _bytes(document.get("key")),
            "value": _bytes(document["value"]),
        }
    except (ValueError, TypeError, RecursionError, binascii.Error) as error:
        raise CaptureError(name, number, str(error)) from error


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text, validate=True)


def _read_parquet(name: str, offsets: _Offsets) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(name) as file:
            missing = {"key", "value"} - set(file.schema_arrow.names)
            if missing:
                raise CaptureError(name, 0, f"it has no column {' or '.join(sorted(missing))}")
            for batch in file.iter_batches(BATCH_ROWS):
                yield _kafka_columns(batch, offsets)
    except FileNotFoundError as error:
        raise CaptureError(name, 0, "there is no such file") from error
    except pa.ArrowException as error:
        raise CaptureError(name, 0, f"it cannot be read as Parquet ({error})") from error


def _kafka_columns(batch: pa.RecordBatch, offsets: _Offsets) -> pa.RecordBatch:
    count = batch.num_rows
    columns: dict[str, pa.Array] = {}
    for field in CAPTURE_SCHEMA:
        if field.name in batch.schema.names:
            columns[field.name] = batch.column(field.name).cast(field.type, safe=False)
        elif field.name == "partition":
            columns[field.name] = pa.array([0] * count, pa.int32())
        elif field.name != "offset":
            columns[field.name] = pa.nulls(count, field.type)
    if "offset" not in columns:
        places = zip(columns["topic"].to_pylist(), columns["partition"].to_pylist(), strict=True)
        columns["offset"] = pa.array([offsets.next(*place) for place in places], pa.int64())
    return pa.RecordBatch.from_arrays(
        [columns[field.name] for field in CAPTURE_SCHEMA], schema=CAPTURE_SCHEMA
    )


def write_capture(destination: str | Path, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes messages (of CAPTURE_SCHEMA, key and value at least) and gives their count."""
    name = str(destination)
    if name.endswith(".parquet"):
        return _write_parquet(name, batches)
    if name == "-":
        return _write_lines(sys.stdout.buffer, batches)
    with gzip.open(name, "wb") if name.endswith(".gz") else open(name, "wb") as lines:
        return _write_lines(cast(IO[bytes], lines), batches)


def _write_lines(lines: IO[bytes], batches: Iterable[pa.RecordBatch]) -> int:
    count = 0
    for batch in batches:
        wanted = [name for name in CAPTURE_SCHEMA.names if name in batch.schema.names]
        for row in batch.select(wanted).to_pylist():
            timestamp = row.pop("timestamp", None)
            if timestamp is not None:
                row["timestamp"] = round(timestamp.timestamp() * 1000)
            if row.get("topic") is None:
                row.pop("topic", None)
            for part in ("key", "value"):
                row[part] = None if row[part] is None else b64encode(row[part]).decode()
            lines.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
            count += 1
    return count


def _write_parquet(name: str, batches: Iterable[pa.RecordBatch]) -> int:
    count = 0
    offsets = _Offsets()
    with pq.ParquetWriter(name, CAPTURE_SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(_kafka_columns(batch, offsets))
            count += batch.num_rows
    return count
