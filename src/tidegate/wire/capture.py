"""Captures: messages kept in files, as they came from Kafka.

JSON lines, also compressed with gzip: a message a line, `partition`, `key`, `value` (base64 or
null), optional `topic`, `offset`, `timestamp` (ms); other members are ignored. Parquet: Kafka's
columns, by the names that Spark gives them. Which of these a file is, its first bytes say. `-` is
standard input; a folder is all the capture files in it. Where a capture has no offsets they are
counted from 0 in each partition.
"""

from __future__ import annotations

import binascii
import gzip
import json
import os
import sys
import zlib
from base64 import b64decode
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.model import CaptureError, SinkError

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

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
"""How the names of capture files in a folder end."""

BATCH_ROWS = 10_000
BATCH_BYTES = 64 * 1024 * 1024
_GZIP_MAGIC, _PARQUET_MAGIC = b"\x1f\x8b", b"PAR1"
_GZIP_LEVEL = 4  # 9, the default, takes much longer to save little


class OffsetCounter:
    """Counts offsets where a capture has none; from `counts` on, by partition."""

    def __init__(self, counts: Mapping[tuple[str | None, int], int] | None = None) -> None:
        self._next = dict(counts or {})

    def next(self, topic: str | None, partition: int) -> int:
        """The offset of the next message."""
        offset = self._next.get((topic, partition), 0)
        self._next[topic, partition] = offset + 1
        return offset


def read_capture(source: str | Path) -> Iterator[pa.RecordBatch]:
    """The messages of a capture in order, in batches of CAPTURE_SCHEMA; or CaptureError."""
    is_folder = source != "-" and Path(source).is_dir()
    return read_captures(capture_files(str(source)) if is_folder else [source])


def capture_files(path: str) -> list[Path]:
    """The file, or the capture files of the folder, in the order of their names."""
    place = Path(path)
    if not place.is_dir():
        if not place.is_file():
            raise CaptureError(path, 0, "there is no such file")
        return [place]
    files = [file for file in sorted(place.iterdir()) if file.name.endswith(SUFFIXES)]
    files = [file for file in files if file.is_file() and file.name[0] not in "._"]
    if not files:
        raise CaptureError(path, 0, f"the folder has no files ending in {', '.join(SUFFIXES)}")
    return files


def read_captures(sources: Iterable[str | Path]) -> Iterator[pa.RecordBatch]:
    """The messages of a capture in several files: offsets are counted over all of them."""
    offsets = OffsetCounter()
    for name in map(str, sources):
        with _opened(name) as file:
            if is_parquet(name, file):
                yield from _read_parquet(name, file, offsets)
            else:
                yield from line_batches(name, enumerate(lines_of(name, file), 1), offsets)


@contextmanager
def _opened(name: str) -> Iterator[BufferedReader]:
    if name == "-":
        yield cast(BufferedReader, sys.stdin.buffer)
        return
    try:
        with open(name, "rb") as file:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CaptureError(name, 0, f"the gzip data is damaged ({error})") from error
    except OSError as error:
        raise CaptureError(name, 0, _reason(error)) from error


def is_parquet(name: str, file: BufferedReader) -> bool:
    """Whether a capture file is Parquet; else it is lines."""
    # Looked at without being read: a pipe can be read only once.
    return name.endswith(".parquet") or file.peek(4).startswith(_PARQUET_MAGIC)


def lines_of(name: str, file: BufferedReader) -> IO[bytes]:
    """The lines of a capture file, decompressed."""
    if is_gzip(name, file):
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    return file


def is_gzip(name: str, file: BufferedReader) -> bool:
    """Whether the lines of a capture file are compressed."""
    return name.endswith(".gz") or file.peek(4).startswith(_GZIP_MAGIC)


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    return error.strerror or str(error)


def line_batches(
    name: str, lines: Iterable[tuple[int, bytes]], offsets: OffsetCounter
) -> Iterator[pa.RecordBatch]:
    """The messages of numbered lines."""
    rows: list[dict[str, Any]] = []
    size = 0
    for number, line in lines:
        if line.isspace():
            continue
        rows.append(_message(name, number, line, offsets))
        size += len(line)
        if len(rows) == BATCH_ROWS or size >= BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(rows, CAPTURE_SCHEMA)
            rows, size = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, CAPTURE_SCHEMA)


def line_place(name: str, number: int, line: bytes) -> tuple[str | None, int, int | None]:
    """Topic, partition and (if it has one) offset of a line's message; or CaptureError."""
    try:
        document = _document(line)
    except (ValueError, TypeError, RecursionError) as error:
        raise CaptureError(name, number, str(error)) from error
    return document.get("topic"), document.get("partition") or 0, document.get("offset")


def _message(name: str, number: int, line: bytes, offsets: OffsetCounter) -> dict[str, Any]:
    try:
        document = _document(line)
        topic, partition = document.get("topic"), document.get("partition") or 0
        offset = document.get("offset")
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


def _document(line: bytes) -> dict[str, Any]:
    """A line's members, of which key and value are not decoded; ValueError says what is wrong."""
    document = json.loads(line)
    if not isinstance(document, dict) or "value" not in document:
        raise ValueError('a line is an object with "key" and "value" in base64')
    topic = document.get("topic")
    if not isinstance(topic, str | None) or (topic and not _is_unicode(topic)):
        raise ValueError(f"topic is {topic!r}")
    for member, bits in (("partition", 31), ("offset", 63), ("timestamp", 53)):
        number = document.get(member)
        if number is not None and not (type(number) is int and 0 <= number < 1 << bits):
            raise ValueError(f"{member} is {number!r}")
    return document


def _is_unicode(text: str) -> bool:
    """Whether it has no lone surrogates, which JSON can spell and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text, validate=True)


def _read_parquet(
    name: str, content: BufferedReader, offsets: OffsetCounter
) -> Iterator[pa.RecordBatch]:
    if not content.seekable():
        raise CaptureError(name, 0, "Parquet is read from its end: give a file, not a pipe")
    with parquet_file(name, content if name == "-" else name) as file:
        for batch in file.iter_batches(BATCH_ROWS):
            yield kafka_columns(batch, offsets)


@contextmanager
def parquet_file(name: str, content: Any) -> Iterator[pq.ParquetFile]:
    """A Parquet capture to be read within, from a path or an open file; or CaptureError."""
    try:
        with pq.ParquetFile(content) as file:
            missing = {"key", "value"} - set(file.schema_arrow.names)
            if missing:
                raise CaptureError(name, 0, f"it has no column {' or '.join(sorted(missing))}")
            yield file
    except (pa.ArrowException, OSError) as error:
        raise CaptureError(name, 0, f"it cannot be read as Parquet ({error})") from error


def kafka_columns(batch: pa.RecordBatch, offsets: OffsetCounter) -> pa.RecordBatch:
    """The columns of a Parquet capture as those of CAPTURE_SCHEMA."""
    count = batch.num_rows
    columns: dict[str, pa.Array] = {}
    for field in CAPTURE_SCHEMA:
        if field.name in batch.schema.names:
            is_time = pa.types.is_timestamp(field.type)  # which may have more digits than we keep
            columns[field.name] = batch.column(field.name).cast(field.type, safe=not is_time)
        else:
            columns[field.name] = pa.nulls(count, field.type)
    columns["partition"] = columns["partition"].fill_null(0)
    if columns["offset"].null_count:
        columns["offset"] = pa.array(
            [
                offsets.next(topic, partition) if offset is None else offset
                for topic, partition, offset in zip(
                    *(columns[name].to_pylist() for name in ("topic", "partition", "offset")),
                    strict=True,
                )
            ],
            pa.int64(),
        )
    return pa.RecordBatch.from_arrays(
        [columns[field.name] for field in CAPTURE_SCHEMA], schema=CAPTURE_SCHEMA
    )


def write_capture(destination: str | Path, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes messages (of CAPTURE_SCHEMA, key and value at least) and gives their count.

    A file is there only when it is whole: what was there before stays until then, so that it may
    be what the messages are read from.
    """
    name = str(destination)
    if name == "-":
        return _write_lines(sys.stdout.buffer, batches)
    with _replacing(name) as path:
        if name.endswith(".parquet"):
            with _writable(name):
                writer = pq.ParquetWriter(path, CAPTURE_SCHEMA)
            with writer:
                return _write_parquet(writer, batches)
        with _writable(name):
            lines = _create(path, compress=name.endswith(".gz"))
        with lines:
            return _write_lines(lines, batches)


@contextmanager
def _replacing(name: str) -> Iterator[str]:
    """Where to write what is to be called so; a pipe or a device is written to itself."""
    target = Path(os.path.realpath(name))
    if target.exists() and not target.is_file():
        yield name
        return
    fresh = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield str(fresh)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def _create(path: str, *, compress: bool) -> IO[bytes]:
    if compress:
        return cast(IO[bytes], gzip.open(path, "wb", _GZIP_LEVEL))
    return open(path, "wb")


@contextmanager
def _writable(name: str) -> Iterator[None]:
    """Says that this capture cannot be written, and why."""
    try:
        yield
    except OSError as error:
        reason = str(error) if error.errno is None else os.strerror(error.errno)
        step = "Name a file in a folder that is there and may be written to"
        raise SinkError(repr(name), reason, step) from error


def _write_lines(lines: IO[bytes], batches: Iterable[pa.RecordBatch]) -> int:
    count = 0
    topics: dict[str | None, bytes] = {None: b""}
    for batch in batches:
        columns = [_cells(batch, name) for name in ("topic", "partition", "offset", "timestamp")]
        parts = [_base64(batch, name) for name in ("key", "value")]
        written = []
        for topic, partition, offset, timestamp, key, value in zip(*columns, *parts, strict=True):
            head = topics.get(topic)
            if head is None:
                head = topics[topic] = b'"topic":%b,' % json.dumps(topic).encode()
            place = b"" if partition is None else b'"partition":%d,' % partition
            if offset is not None:
                place += b'"offset":%d,' % offset
            if timestamp is not None:
                place += b'"timestamp":%d,' % timestamp
            written.append(b'{%b%b"key":%b,"value":%b}\n' % (head, place, key, value))
        lines.write(b"".join(written))
        count += batch.num_rows
    return count


def _cells(batch: pa.RecordBatch, name: str) -> list[Any]:
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    column = batch.column(name)
    if name == "timestamp":
        column = column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    cells: list[Any] = column.to_pylist()
    return cells


def _base64(batch: pa.RecordBatch, name: str) -> list[bytes]:
    return [
        b"null" if content is None else b'"%b"' % b2a_base64(content, newline=False)
        for content in batch.column(name).to_pylist()
    ]


def _write_parquet(writer: pq.ParquetWriter, batches: Iterable[pa.RecordBatch]) -> int:
    count = 0
    offsets = OffsetCounter()
    for batch in batches:
        writer.write_batch(kafka_columns(batch, offsets))
        count += batch.num_rows
    return count
