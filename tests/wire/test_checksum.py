"""Row checksums: what goes into them, what they find, and what is left alone."""

from __future__ import annotations

import json
import struct
import zlib
from base64 import b64encode
from typing import Any

import pyarrow as pa
import pytest

from tests.support import corpus
from tidegate.model import EventFlag
from tidegate.wire import CHANGE_SCHEMA, EventReader, ShapeBook, decode_batch
from tidegate.wire.batch.checksum import verify

SHAPE, VERSION = 7, 11


def column(name: str, type_: str, **data_type: Any) -> dict[str, Any]:
    return {"name": name, "dataType": {"mysqlType": type_, **data_type}, "nullable": True}


def batch(
    columns: list[dict[str, Any]],
    *rows: dict[str, Any],
    zones: dict[str, str] | None = None,
    names: list[str] | None = None,
) -> pa.RecordBatch:
    """A batch of these rows of one table, its shape and its schema."""
    zones = zones or {}
    names = sorted(one["name"] for one in columns) if names is None else names
    shape = {
        "columns": [
            {"name": name, "type": "timestamp", "zone": zones[name]}
            if name in zones
            else {"name": name}
            for name in names
        ]
    }
    schema = {"schema": "d", "table": "t", "tableID": 1, "version": VERSION, "columns": columns}
    table = {"database": "d", "table": "t", "flags": 0, "event": 0}
    told = [
        table | {"kind": "schema", "shape": SHAPE, "schema": json.dumps(shape)},
        table | {"kind": "schema", "schema": json.dumps({"tableSchema": schema})},
        *(table | {"shape": SHAPE, "schema_version": VERSION, "flags": 4} | row for row in rows),
    ]
    return pa.RecordBatch.from_pylist(told, CHANGE_SCHEMA)


def insert(values: list[str | None], current: int, **more: Any) -> dict[str, Any]:
    checksum = {"version": 0, "corrupted": False, "current": current, "previous": 0}
    return {"kind": "insert", "after": values, "checksum": checksum, **more}


def failed(changes: pa.RecordBatch, shapes: ShapeBook | None = None) -> list[bool]:
    """Of each row with a checksum, whether it is marked."""
    verified = verify(changes, ShapeBook([changes]) if shapes is None else shapes)
    assert verified.drop_columns("flags") == changes.drop_columns("flags")
    verified.validate(full=True)
    return [
        bool(row["flags"] & EventFlag.CHECKSUM_FAILED)
        for row in verified.to_pylist()
        if row["checksum"] is not None
    ]


def number(value: int) -> bytes:
    return struct.pack("<Q", value % 2**64)


def sized(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def vector(*values: float) -> bytes:
    return struct.pack(f"<I{len(values)}f", len(values), *values)


BYTES = bytes(range(256))
# column type, its further members, text of the value, what of it goes into the checksum
VALUES = [
    ("tinyint", {}, "-128", number(-128)),
    ("tinyint", {"unsigned": True}, "255", number(255)),
    ("smallint", {}, "-1", number(-1)),
    ("mediumint", {}, "8388607", number(8388607)),
    ("int", {"unsigned": True}, "4294967295", number(4294967295)),
    ("bigint", {}, "-9223372036854775808", number(-(2**63))),
    ("bigint", {"unsigned": True}, "18446744073709551615", number(2**64 - 1)),
    ("year", {}, "2155", number(2155)),
    ("enum", {"elements": ["a"]}, "1", number(1)),
    ("set", {"elements": ["a"]}, "9223372036854775808", number(2**63)),
    ("set", {"elements": ["a"]}, "-9223372036854775808", number(2**63)),
    ("bit", {}, "18446744073709551615", number(-1)),
    ("bit", {}, "-1", number(-1)),
    ("float", {}, "3.14", struct.pack("<d", struct.unpack("<f", struct.pack("<f", 3.14))[0])),
    ("float", {}, "-0", struct.pack("<d", -0.0)),
    ("double", {}, "3.14", struct.pack("<d", 3.14)),
    ("decimal", {}, "-12.50", sized(b"-12.50")),
    ("date", {}, "2020-02-29", sized(b"2020-02-29")),
    ("time", {}, "-838:59:59.5", sized(b"-838:59:59.5")),
    ("datetime", {}, "2020-02-29 01:02:03.5", sized(b"2020-02-29 01:02:03.5")),
    ("json", {}, '{"a": 1}', sized(b'{"a": 1}')),
    ("varchar", {"charset": "utf8mb4"}, "é😀", sized("é😀".encode())),
    ("char", {"charset": "utf8mb4"}, "", sized(b"")),
    ("longtext", {"charset": "utf8mb4"}, "x" * 1000, sized(b"x" * 1000)),
    ("varbinary", {"charset": "binary"}, b64encode(BYTES).decode(), sized(BYTES)),
    ("blob", {"charset": "binary"}, "", sized(b"")),
    ("vector", {}, "[1.5,2,-30000000000]", vector(1.5, 2, -3e10)),
    ("vector", {}, "[]", vector()),
    ("vector", {}, "[0.1]", vector(0.1)),
    ("int", {}, None, b""),
]


@pytest.mark.parametrize(("type_", "members", "text", "part"), VALUES)
def test_what_goes_into_a_checksum(type_, members, text, part):
    columns = [column("id", "int"), column("c", type_, **members)]
    content = number(1) + part
    changes = batch(
        columns,
        insert([text, "1"], zlib.crc32(content)),
        insert([text, "1"], zlib.crc32(content) ^ 1),
        insert([text, "2"], zlib.crc32(content)),
    )
    assert failed(changes) == [False, True, True]


@pytest.mark.parametrize(
    ("type_", "members", "text"),
    [
        ("int", {}, ""),
        ("int", {}, "x"),
        ("bigint", {"unsigned": True}, "18446744073709551616"),
        ("double", {}, "x"),
        ("float", {}, "1e99"),
        ("varbinary", {"charset": "binary"}, "?"),
        ("vector", {}, "["),
        ("vector", {}, "1,2"),
        ("vector", {}, "[1,,2]"),
        ("vector", {}, "[a]"),
    ],
)
def test_a_value_that_is_none_of_its_type_does_not_match(type_, members, text):
    changes = batch([column("c", type_, **members)], insert([text], 1))
    assert failed(changes) == [True]


def test_values_go_in_by_the_order_of_the_schema_not_of_the_row():
    columns = [column("b", "int"), column("a", "int")]
    changes = batch(columns, insert(["1", "2"], zlib.crc32(number(2) + number(1))))
    assert failed(changes) == [False]


def test_a_column_of_the_schema_that_rows_lack_is_a_virtual_one():
    columns = [column("a", "int"), column("virtual", "int"), column("b", "int")]
    changes = batch(
        columns, insert(["1", "2"], zlib.crc32(number(1) + number(2))), names=["a", "b"]
    )
    assert failed(changes) == [False]


@pytest.mark.parametrize(
    ("zone", "text", "in_utc"),
    [
        ("UTC", "2024-07-01 12:00:00.25", b"2024-07-01 12:00:00.25"),
        ("Asia/Shanghai", "2024-07-01 12:00:00", b"2024-07-01 04:00:00"),
        ("Asia/Shanghai", "2024-07-01 01:00:00.123456", b"2024-06-30 17:00:00.123456"),
        ("America/New_York", "2024-07-01 12:00:00", b"2024-07-01 16:00:00"),
        ("America/New_York", "2024-01-01 12:00:00", b"2024-01-01 17:00:00"),
        # set back from 2 to 1 o'clock: two moments have this text
        ("America/New_York", "2024-11-03 01:30:00", b"2024-11-03 05:30:00"),
        ("America/New_York", "2024-11-03 01:30:00", b"2024-11-03 06:30:00"),
        ("Asia/Shanghai", "0000-00-00 00:00:00", b"0000-00-00 00:00:00"),
    ],
)
def test_moments_go_in_as_utc(zone, text, in_utc):
    changes = batch(
        [column("at", "timestamp")],
        insert([text], zlib.crc32(sized(in_utc))),
        insert([text], 1),
        zones={"at": zone},
    )
    assert failed(changes) == [False, True]


def test_a_moment_of_an_unknown_zone_is_left_alone():
    changes = batch(
        [column("at", "timestamp")], insert(["2024-07-01 12:00:00"], 1), zones={"at": "Local"}
    )
    assert failed(changes) == [False]


def update(after: str, before: str, current: int, previous: int, **more: Any) -> dict[str, Any]:
    checksum = {"version": 0, "corrupted": False, "current": current, "previous": previous}
    return {"kind": "update", "after": [after], "before": [before], "checksum": checksum, **more}


def test_both_sides_of_an_update_are_checked():
    one, two = zlib.crc32(number(1)), zlib.crc32(number(2))
    changes = batch(
        [column("a", "int")],
        update("1", "2", one, two),
        update("1", "2", two, two),
        update("1", "2", one, one),
        update("1", "2", 0, 0),
        update("1", "2", one, 0),
        update("1", "2", 0, one),
        update("1", "2", one, one, before_missing=b"\x01"),
    )
    assert failed(changes) == [False, True, True, False, False, True, False]


@pytest.mark.parametrize("flag", [EventFlag.HANDLE_KEY_ONLY, EventFlag.CLAIM_CHECK])
def test_rows_that_carry_only_some_columns_are_left_alone(flag):
    changes = batch([column("a", "int")], insert(["1"], 1, flags=int(flag | EventFlag.CHECKSUM)))
    assert failed(changes) == [False]


def test_rows_whose_schema_has_not_been_seen_are_left_alone():
    changes = batch([column("a", "int")], insert(["1"], 1, schema_version=VERSION + 1))
    assert failed(changes) == [False]
    assert failed(changes, ShapeBook()) == [False]


def test_a_batch_without_checksums_is_given_back():
    changes = batch([column("a", "int")], {"kind": "insert", "after": ["1"]})
    assert verify(changes, ShapeBook([changes])) is changes


def test_slices_of_a_batch():
    one = zlib.crc32(number(1))
    changes = batch([column("a", "int")], *(insert(["1"], one + (i % 3 == 0)) for i in range(20)))
    assert failed(changes.slice(9), ShapeBook([changes])) == [i % 3 == 0 for i in range(7, 20)]


def golden(encoding: str) -> pa.RecordBatch:
    messages = corpus.messages(f"types_ck.simple.{encoding}.ck")
    return decode_batch("simple", None, [message.value for message in messages])


# TiCDC itself says `corrupted` of a JSON value that holds a date, which it cannot write back.
CORRUPTED = ("strs", "13")


@pytest.mark.parametrize("encoding", ["avro", "json"])
def test_every_golden_row_passes_but_the_one_that_its_sender_calls_corrupted(encoding):
    rows = [
        event
        for event in EventReader().events(golden(encoding))
        if event.flags & EventFlag.CHECKSUM
    ]
    assert len(rows) == 187
    marked = [
        (row.table, (row.after or row.before)["id"])
        for row in rows
        if row.flags & EventFlag.CHECKSUM_FAILED
    ]
    assert marked == [CORRUPTED]
    corrupted = [(row.table, row.after["id"]) for row in rows if row.flags & EventFlag.CORRUPTED]
    assert corrupted == [CORRUPTED]


@pytest.mark.parametrize("encoding", ["avro", "json"])
def test_every_value_of_every_golden_row_counts(encoding):
    changes = golden(encoding)
    rows = [row for row in changes.to_pylist() if row["checksum"] is not None]
    # The classic architecture sends the two halves of a split update without checksums.
    rows = [row for row in rows if row["checksum"]["current"] or row["checksum"]["previous"]]
    assert len(rows) == 185
    spoiled = []
    for row in rows:
        for side, checksum in (("after", "current"), ("before", "previous")):
            for index, value in enumerate(row[side] or ()):
                if value is not None and row["checksum"][checksum]:
                    without = [*row[side][:index], None, *row[side][index + 1 :]]
                    spoiled.append(row | {side: without})
    assert len(spoiled) > 1000
    assert all(failed(pa.RecordBatch.from_pylist(spoiled, CHANGE_SCHEMA), ShapeBook([changes])))


def test_inspect_shows_what_failed():
    changes = batch([column("a", "int")], insert(["1"], 1))
    documents = list(EventReader().documents(changes))
    assert documents[-1]["flags"] == ["checksum", "checksum-failed"]
