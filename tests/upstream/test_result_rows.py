"""Packets of a text result set become Arrow strings, whatever their sizes and however they arrive."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tidb_proxy import END_OF_ROWS, error_payload, packets, row_payload
from tidegate.model import Column
from tidegate.upstream.result_rows import BrokenResult, ResultError, ResultRows, UnreadableValue
from tidegate.upstream.server import text_of

TEXT = Column.of_type("t", "varchar(10)", charset="utf8mb4")


def receiver(stream: bytes, step: int = 1 << 30) -> Callable[[memoryview], int]:
    place = 0

    def receive(room: memoryview) -> int:
        nonlocal place
        part = stream[place : place + min(step, len(room))]
        room[: len(part)] = part
        place += len(part)
        return len(part)

    return receive


def opened(columns: list[Column], sequence: int = 5) -> ResultRows:
    return ResultRows([(each.code, int(each.type_flags)) for each in columns], sequence)


def read(columns, stream, *, step=1 << 30, limit=1 << 20, sequence=5):
    """All rows, and how many each batch had."""
    rows, receive = opened(columns, sequence), receiver(stream, step)
    found, sizes = [], []
    while (batch := rows.read(receive, limit)) is not None:
        for array in batch:
            array.validate(full=True)
        sizes.append(len(batch[0]))
        found += list(zip(*(array.to_pylist() for array in batch), strict=True))
    return found, sizes


def stream_of(rows, sequence=5):
    return packets([*map(row_payload, rows), END_OF_ROWS], sequence)


@pytest.mark.parametrize("size", [0, 1, 250, 251, 255, 256, 65535, 65536, 70000])
def test_values_of_every_length_encoding(size):
    rows = [("x" * size, None), (None, "y"), ("", "z" * size)]
    assert read([TEXT, TEXT], stream_of(rows))[0] == rows


def test_a_row_of_several_packets():
    rows = [("a" * 0xFFFFFF, "b" * 40_000_000), ("c", "d")]
    assert read([TEXT, TEXT], stream_of(rows), step=1 << 16)[0] == rows


def test_a_row_whose_last_packet_is_empty():
    row = ("a" * (0xFFFFFF - 5 - 4), None)  # five bytes of length, one of NULL: 0xffffff in all
    payload = row_payload(row)
    value = "a" * (len(row[0]) + 0xFFFFFF - len(payload))
    assert len(row_payload((value, None))) == 0xFFFFFF
    assert read([TEXT, TEXT], stream_of([(value, None), ("b", "c")]))[0] == [
        (value, None),
        ("b", "c"),
    ]


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 64])
def test_it_does_not_matter_how_the_bytes_arrive(step):
    rows = [(str(number), None if number % 3 else "é€😀") for number in range(300)]
    assert read([TEXT, TEXT], stream_of(rows), step=step)[0] == rows


def test_batches_are_cut_by_bytes():
    rows = [("x" * 1000,)] * 100
    found, sizes = read([TEXT], stream_of(rows), limit=10_000)
    assert found == rows
    assert sizes == [10] * 10


def test_a_result_set_without_rows():
    assert read([TEXT], stream_of([])) == ([], [])


VALUES = {
    "int": ["0", "-1", "00042", "-00042", "2147483647"],
    "int(5) unsigned zerofill": ["00007", "00000"],
    "bigint unsigned": ["18446744073709551615"],
    "year": ["0000", "2024"],
    "decimal(20,4)": ["0.5000", "-0.5000", "12.3400", "-7"],
    "float": ["0.10000000149011612", "3.4028234663852886e38", "-1e-45", "0", "-0", "16777216"],
    "double": ["0.1", "1.7976931348623157e308", "5e-324", "123456789", "1e15", "-0"],
    "bit(64)": ["18446744073709551615", "0"],
    "enum('a','b')": ["0", "2"],
    "set('a','b')": ["3"],
    "date": ["0000-00-00", "2020-02-29"],
    "datetime(6)": ["2020-01-01 10:11:12.500000"],
    "time(3)": ["-838:59:59.000", "00:00:00.500"],
    "json": ['{"a": "é"}'],
    "varchar(10)": ["", "é", "a\0b", "007", "-"],
    "varbinary(10)": ["", "\x00\xff", "abc", "abcd"],
    "blob": ["\xfb\xfe\xff"],
    "longtext": ["x" * 300],
}


@pytest.mark.parametrize("type", VALUES)
def test_strings_are_those_of_the_change_batch(type):
    column = Column.of_type("c", type)
    is_binary = type in ("varbinary(10)", "blob")
    values = [value.encode("latin1" if is_binary else "utf-8") for value in VALUES[type]]
    rows = [(value,) for value in [*values, None]]
    expected = [(text_of(column, value),) for (value,) in rows]
    assert read([column], stream_of(rows))[0] == expected


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_double(number):
    column = Column.of_type("c", "double")
    assert read([column], stream_of([(repr(number),)]))[0] == [(text_of(column, repr(number)),)]


# --- what is no result set ------------------------------------------------------------------------


def test_an_error_of_the_server_within_the_rows():
    stream = packets([row_payload(("a",)), error_payload(9006, "GC life time é")], 5)
    with pytest.raises(ResultError) as caught:
        read([TEXT], stream)
    assert (caught.value.code, caught.value.message) == (9006, "GC life time é")


def test_a_connection_that_ends_early():
    stream = stream_of([("a",), ("b",)])
    for size in range(len(stream)):
        with pytest.raises(BrokenResult, match="ended"):
            read([TEXT], stream[:size])


def test_a_missing_packet():
    stream = packets([row_payload(("a",))], 5) + packets([row_payload(("b",))], 7)
    with pytest.raises(BrokenResult, match="missing"):
        read([TEXT], stream)


def test_the_sequence_starts_again_after_255():
    rows = [(str(number),) for number in range(600)]
    assert read([TEXT], stream_of(rows, 250), sequence=250)[0] == rows


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x01",
        b"\x05abc",
        b"\x01ab",
        b"\xfc\x05",
        b"\xfd\x00\x00",
        b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00",
        b"\xfb\xfb",
    ],
)
def test_a_row_of_another_form(payload):
    with pytest.raises(BrokenResult, match="another form"):
        read([TEXT], packets([payload, END_OF_ROWS], 5))


@pytest.mark.parametrize("value", [b"\xff", b"\xc3", b"\xed\xa0\x80"])
def test_text_that_is_not_utf8(value):
    with pytest.raises(UnreadableValue) as caught:
        read([TEXT, TEXT], stream_of([("a", value)]))
    assert (caught.value.column, caught.value.reason) == (1, "is not UTF-8")


def test_a_character_that_two_values_share():
    with pytest.raises(UnreadableValue, match="UTF-8"):
        read([TEXT], stream_of([(b"\xc3",), (b"\xa9",)]))


@pytest.mark.parametrize("type", ["double", "float"])
def test_a_number_that_is_none(type):
    with pytest.raises(UnreadableValue, match="not a number"):
        read([Column.of_type("c", type)], stream_of([("abc",)]))


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(1, 3))
def test_hostile_bytes_are_refused_or_read(data, count):
    rows, receive = opened([TEXT] * count, 0), receiver(data)
    try:
        while rows.read(receive, 100) is not None:
            pass
    except (BrokenResult, ResultError, UnreadableValue):
        pass
