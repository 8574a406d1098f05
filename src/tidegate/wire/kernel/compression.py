"""Compressed values: snappy (one raw block) and lz4 (frames), as TiCDC writes them.

The open protocol compresses each event's value inside the message; the others the whole value. What
a value may grow to is bounded before any memory is taken for it.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

import pyarrow as pa

from tidegate.model import CompressionError, ConfigError

MAX_EXPANDED_BYTES = 64 * 1024 * 1024
"""What one value may decompress to, unless the caller says otherwise."""

COMPRESSIONS = ("snappy", "lz4")
LZ4_MAGIC = b"\x04\x22\x4d\x18"

_LENGTH = Struct(">Q")
_SNAPPY_GAIN = 24  # one copy element, three bytes, makes 64 bytes; a little more to be safe


def decompress(algorithm: str, data: bytes, limit: int = MAX_EXPANDED_BYTES) -> bytes:
    """The bytes that were compressed; CompressionError if they are no such thing or too many."""
    if algorithm == "snappy":
        return _decompress_snappy(data, limit)
    if algorithm == "lz4":
        return _decompress_lz4(data, limit)
    raise ConfigError("compression", f"{algorithm!r} is not one of {', '.join(COMPRESSIONS)}")


def _decompress_snappy(data: bytes, limit: int) -> bytes:
    size = 0
    for index, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    else:
        raise CompressionError("snappy", "it does not begin with a length")
    if size > limit:
        raise CompressionError(
            "snappy", f"it would grow to {size} bytes, over the limit of {limit}"
        )
    if size > len(data) * _SNAPPY_GAIN:
        raise CompressionError("snappy", f"{len(data)} bytes cannot hold {size}")
    try:
        expanded: bytes = pa.Codec("snappy").decompress(data, size, asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise CompressionError("snappy", "it is damaged") from error
    return expanded


def _decompress_lz4(data: bytes, limit: int) -> bytes:
    if not data.startswith(LZ4_MAGIC):
        raise CompressionError("lz4", "it does not begin with an lz4 frame")
    parts = []
    left = limit + 1
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "lz4") as stream:
            while left > 0:
                part = stream.read(min(left, 1024 * 1024))
                if not part:
                    break
                parts.append(part)
                left -= len(part)
    except (OSError, pa.ArrowException) as error:
        raise CompressionError("lz4", "it is damaged") from error
    if left <= 0:
        raise CompressionError("lz4", f"it grows beyond the limit of {limit} bytes")
    return b"".join(parts)


def compress(algorithm: str, data: bytes) -> bytes:
    """The value as TiCDC would compress it (not the same bytes: any encoder may choose its own)."""
    if algorithm not in COMPRESSIONS:
        raise ConfigError("compression", f"{algorithm!r} is not one of {', '.join(COMPRESSIONS)}")
    compressed: bytes = pa.Codec(algorithm).compress(data, asbytes=True)
    return compressed


def compressor(algorithm: str | None) -> Callable[[bytes], bytes] | None:
    """`compress` for this algorithm, or None for none."""
    if algorithm is None:
        return None
    compress(algorithm, b"")
    return lambda data: compress(algorithm, data)


Expand = Callable[[bytes | None, bytes | None], tuple[bytes | None, bytes | None]]


def expander(protocol: str, algorithm: str | None, limit: int) -> Expand | None:
    """What undoes the compression of one message, key and value; None where there is none."""
    if algorithm is None:
        return None
    if algorithm not in COMPRESSIONS:
        raise ConfigError("compression", f"{algorithm!r} is not one of {', '.join(COMPRESSIONS)}")
    if protocol == "open-protocol":
        return lambda key, value: (key, _expand_events(algorithm, key, value, limit))
    return lambda key, value: (key, value and decompress(algorithm, value, limit))


def _expand_events(
    algorithm: str, key: bytes | None, value: bytes | None, limit: int
) -> bytes | None:
    """An open-protocol value whose events are no longer compressed.

    A resolved event's value is empty and never compressed. A value whose lengths are wrong is left
    for the decoder to refuse.
    """
    if not value:
        return value
    parts = []
    position = 0
    while position < len(value):
        if len(value) - position < 8:
            return value
        (length,) = _LENGTH.unpack_from(value, position)
        position += 8
        if length > len(value) - position:
            return value
        event = value[position : position + length]
        if event:
            event = decompress(algorithm, event, limit)
            limit -= len(event)
        parts += [_LENGTH.pack(len(event)), event]
        position += length
    return b"".join(parts)
