"""Breaking messages on purpose, deterministically: each mutation is a function of a random source."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

INTERESTING = (
    b"\x00", b"\xff", b"\x7f", b"\x80", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null",
    b"-1", b"1e999", b"18446744073709551616", b"\\ud800", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\xff\xff\xff\xff", b"\x00\x00\x00\x00",
)  # fmt: skip


def flip_bit(data: bytes, chance: random.Random) -> bytes:
    """One bit."""
    position = chance.randrange(len(data))
    broken = bytearray(data)
    broken[position] ^= 1 << chance.randrange(8)
    return bytes(broken)


def set_byte(data: bytes, chance: random.Random) -> bytes:
    """One byte, to any value."""
    position = chance.randrange(len(data))
    return data[:position] + bytes([chance.randrange(256)]) + data[position + 1 :]


def truncate(data: bytes, chance: random.Random) -> bytes:
    """The end is missing."""
    return data[: chance.randrange(len(data))]


def remove(data: bytes, chance: random.Random) -> bytes:
    """A stretch is missing."""
    start = chance.randrange(len(data))
    return data[:start] + data[start + chance.randrange(1, 16) :]


def repeat(data: bytes, chance: random.Random) -> bytes:
    """A stretch is there twice."""
    start = chance.randrange(len(data))
    end = min(len(data), start + chance.randrange(1, 64))
    return data[:end] + data[start:end] + data[end:]


def insert(data: bytes, chance: random.Random) -> bytes:
    """Something that means trouble somewhere, between any two bytes."""
    position = chance.randrange(len(data) + 1)
    return data[:position] + chance.choice(INTERESTING) + data[position:]


def overwrite(data: bytes, chance: random.Random) -> bytes:
    """Something that means trouble somewhere, over what was there."""
    piece = chance.choice(INTERESTING)
    position = chance.randrange(len(data))
    return data[:position] + piece + data[position + len(piece) :]


def swap(data: bytes, chance: random.Random) -> bytes:
    """Two stretches change places."""
    first, second, third = sorted(chance.randrange(len(data) + 1) for _ in range(3))
    return data[:first] + data[second:third] + data[first:second] + data[third:]


MUTATIONS: Sequence[Callable[[bytes, random.Random], bytes]] = (
    flip_bit, set_byte, truncate, remove, repeat, insert, overwrite, swap,
)  # fmt: skip


def mutate(data: bytes | None, chance: random.Random) -> bytes | None:
    """One to three mutations."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if not data:
            return chance.choice(INTERESTING) if data is None or chance.random() < 0.5 else data
        data = chance.choice(MUTATIONS)(data, chance)
    return data
