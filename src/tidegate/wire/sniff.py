"""Naming the protocol of a message by its bytes alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.model import CompressionError
from tidegate.wire.kernel.compression import LZ4_MAGIC, decompress, expander
from tidegate.wire.protocols import decode_batch

_CDC_MAGIC = b"\xba\xaa\xd7\x00"
_OPEN_VERSION = (1).to_bytes(8, "big")
_EXPANDED_LIMIT = 16 * 1024 * 1024
# Columns may have these names too, but not these values: Simple's are strings.
_CANAL_MEMBER = re.compile(rb'"isDdl"\s*:\s*(?:true|false)')
_SIMPLE_MEMBER = re.compile(rb'"(?:version|commitTs|buildTs)"\s*:\s*[0-9]')


@dataclass(frozen=True, slots=True)
class Sniffed:
    """What a message seems to be; encoding only for Simple, compression where there is one."""

    protocol: str
    encoding: str | None = None
    compression: str | None = None

    def __str__(self) -> str:
        encoding = f" ({self.encoding})" if self.encoding else ""
        compression = f" compressed with {self.compression}" if self.compression else ""
        return f"{self.protocol}{encoding}{compression}"


def sniff(key: bytes | None, value: bytes | None) -> Sniffed | None:
    """The protocol of a message, with its compression, or None if it is none that is known."""
    plain = _plain(key, value)
    if plain is not None:
        return plain
    for algorithm in ("lz4", "snappy"):
        sniffed = _compressed(algorithm, key, value)
        if sniffed is not None:
            return sniffed
    return None


def sniff_all(messages: Iterable[tuple[bytes | None, bytes | None]]) -> Sniffed | None:
    """The protocol that most of these messages have."""
    counts: dict[Sniffed, int] = {}
    for key, value in messages:
        sniffed = sniff(key, value)
        if sniffed is not None:
            counts[sniffed] = counts.get(sniffed, 0) + 1
    # Watermarks of the open protocol are never compressed: rows and DDL tell.
    compressed = [sniffed for sniffed in counts if sniffed.compression]
    if compressed:
        counts = {sniffed: counts[sniffed] for sniffed in compressed}
    return max(counts, key=lambda sniffed: counts[sniffed], default=None)


def other_protocol(
    messages: Iterable[tuple[bytes | None, bytes | None]],
    protocol: str,
    *,
    encoding: str | None = None,
    compression: str | None = None,
) -> Sniffed | None:
    """What all of these messages are, where they are not what they are said to be.

    None unless reading them as `protocol` fails for each, and each looks like the same other one.
    """
    pairs = list(messages)
    looks = [sniff(key, value) for key, value in pairs]
    if len({look and look.protocol for look in looks}) != 1:
        return None
    sniffed = sniff_all(pairs)
    if sniffed is None:
        return None
    keys, values = ([pair[place] for pair in pairs] for place in (0, 1))
    changes = decode_batch(protocol, keys, values, encoding=encoding, compression=compression)
    return sniffed if set(changes["kind"].to_pylist()) == {"error"} else None


def _plain(key: bytes | None, value: bytes | None) -> Sniffed | None:
    if key and key.startswith(_OPEN_VERSION) and _is_open_value(value):
        return Sniffed("open-protocol")
    if not value:
        return None
    if value.startswith(_CDC_MAGIC):
        return Sniffed("cdc")
    if value.lstrip(b" \t\r\n").startswith(b"{"):
        return _json(value)
    if _is_avro(value):
        return Sniffed("simple", encoding="avro")
    if _is_craft(value):
        return Sniffed("craft")
    return None


def _is_open_value(value: bytes | None) -> bool:
    """A resolved event has nothing, others begin with a length and a JSON object."""
    return not value or not any(value[:8]) or value[8:9] == b"{"


def _json(value: bytes) -> Sniffed | None:
    if _CANAL_MEMBER.search(value):
        return Sniffed("canal-json")
    if _SIMPLE_MEMBER.search(value):
        return Sniffed("simple", encoding="json")
    return None


def _is_avro(value: bytes) -> bool:
    """Simple's union index 11 (Message), then the kind of message, then its payload's index."""
    return len(value) >= 3 and value[0] == 0x16 and value[1] in (0, 2, 4, 6) and value[2] <= 6


def _is_craft(value: bytes) -> bool:
    """Version 1, and a tail whose size agrees: the size tables begin with a table of two sizes."""
    if len(value) < 6 or value[0] != 1:
        return False
    size = shift = used = 0
    for byte in reversed(value[-10:]):
        size |= (byte & 0x7F) << shift
        shift += 7
        used += 1
        if byte < 0x80:
            break
    start = len(value) - used - size
    return 1 < start < len(value) - used and value[start] == 2


def _compressed(algorithm: str, key: bytes | None, value: bytes | None) -> Sniffed | None:
    if not value:
        return None
    try:
        if key and key.startswith(_OPEN_VERSION):
            expand = expander("open-protocol", algorithm, _EXPANDED_LIMIT)
            assert expand is not None
            inner = _plain(*expand(key, value))
        elif algorithm == "lz4" and not value.startswith(LZ4_MAGIC):
            return None
        else:
            inner = _plain(key, decompress(algorithm, value, _EXPANDED_LIMIT))
    except CompressionError:
        return None  # not compressed so: the next algorithm is tried
    if inner is None or inner.protocol in ("craft", "cdc"):
        return None
    return Sniffed(inner.protocol, inner.encoding, algorithm)
