"""The bytes of a dump's files, decompressed as they are read.

Arrow decompresses gzip and zstd. Snappy is Dumpling's `--compress snappy`: the official framing
format, a stream of chunks of at most 64 KiB, each with a checksum, read here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa

from tidegate.model import DumpError
from tidegate.wire.kernel.text import crc32c

_SNAPPY_START = b"sNaPpY"
_SNAPPY_CHUNK = 65536
_DAMAGED = "Copy the file again from where the dump was made, or make the dump again"


class ByteStream(Protocol):
    """What is read of a file: at most `size` bytes, none at its end."""

    def read(self, size: int) -> bytes: ...


@contextmanager
def opened(files: Any, path: str, compression: str, start: int = 0) -> Iterator[ByteStream]:
    """A file's content, from byte `start` on if it is not compressed."""
    try:
        if start:
            source = files.open_input_file(path)
            source.seek(start)
        else:
            source = files.open_input_stream(path, compression=None)
    except (OSError, pa.ArrowException) as error:
        raise DumpError(
            path, f"the file cannot be opened ({error})", "Check its storage"
        ) from error
    with source:
        if compression == "snappy":
            yield _SnappyFrames(source, path)
        elif compression:
            yield _Checked(pa.CompressedInputStream(source, compression), path, compression)
        else:
            yield _Checked(source, path, compression)


def content(files: Any, path: str, compression: str) -> bytes:
    """A whole small file."""
    parts = []
    with opened(files, path, compression) as stream:
        while part := stream.read(1 << 20):
            parts.append(part)
    return b"".join(parts)


class _Checked:
    """A stream whose errors name the file."""

    def __init__(self, source: Any, path: str, compression: str) -> None:
        self._source = source
        self._path = path
        self._compression = compression

    def read(self, size: int) -> bytes:
        try:
            data: bytes = self._source.read(size)
        except (OSError, pa.ArrowException) as error:
            what = f"decompressed as {self._compression}" if self._compression else "read"
            raise DumpError(self._path, f"the file cannot be {what} ({error})", _DAMAGED) from error
        return data


class _SnappyFrames:
    """The framing format of snappy: chunks of a type, a length of three bytes, and a body."""

    def __init__(self, source: Any, path: str) -> None:
        self._source = _Checked(source, path, "")
        self._path = path
        self._codec = pa.Codec("snappy")
        self._is_started = False

    def read(self, size: int) -> bytes:
        parts, left = [], size
        while left > 0 and (part := self._chunk()) is not None:
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _exactly(self, size: int) -> bytes:
        data = self._source.read(size)
        while len(data) < size:
            more = self._source.read(size - len(data))
            if not more:
                break
            data += more
        return data

    def _chunk(self) -> bytes | None:
        """The next data; None at the end."""
        while True:
            head = self._exactly(4)
            if not head:
                return None
            length = int.from_bytes(head[1:], "little")
            body = self._exactly(length)
            if len(head) < 4 or len(body) < length:
                raise self._damaged("it ends in the middle of a chunk")
            kind = head[0]
            if kind == 0xFF:
                if body != _SNAPPY_START:
                    raise self._damaged("it is not in snappy's framing format")
                self._is_started = True
            elif not self._is_started:
                raise self._damaged("it is not in snappy's framing format")
            elif kind in (0, 1):
                return self._data(body, is_compressed=kind == 0)
            elif kind < 0x80:
                raise self._damaged(f"it has a chunk of the unknown kind {kind}")

    def _data(self, body: bytes, *, is_compressed: bool) -> bytes:
        data = self._expanded(body[4:]) if is_compressed else body[4:]
        crc = crc32c(data)
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        if int.from_bytes(body[:4], "little") != masked:
            raise self._damaged("a checksum differs")
        return data

    def _expanded(self, block: bytes) -> bytes:
        size = shift = 0
        for byte in block[:5]:
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if size > _SNAPPY_CHUNK:
            raise self._damaged("a chunk is too large")
        try:
            data: bytes = self._codec.decompress(block, size, asbytes=True)
        except (OSError, pa.ArrowException):
            raise self._damaged("a chunk does not decompress") from None
        return data

    def _damaged(self, reason: str) -> DumpError:
        return DumpError(self._path, f"the file cannot be decompressed: {reason}", _DAMAGED)
