"""Craft: what its bytes mean, in both directions, and what is refused.

Messages are put together here by a writer of a few lines that can also write what TiCDC never does.
"""

import json
import struct
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import corpus
from tidegate.model import EncodeError, EventFlag, SchemaNotSeen, UnsupportedByProtocol
from tidegate.wire import CHANGE_SCHEMA, ShapeBook, decode_batch, encode_batch

TS = 470492978054692864
NEW, OLD = 1, 2
ROW, DDL, RESOLVED = 1, 2, 3


# --- a writer of messages --------------------------------------------------------------------------


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def varint(value: int) -> bytes:
    return uvarint((value << 1 ^ value >> 63) & 2**64 - 1)


def deltas(values: list[int]) -> bytes:
    return b"".join(varint(b - a) for a, b in zip([0, *values], values, strict=False))


def nullable(values: list[bytes | None]) -> bytes:
    lengths = b"".join(varint(-1 if value is None else len(value)) for value in values)
    return lengths + b"".join(value or b"" for value in values)


def float64(value: float) -> bytes:
    return struct.pack("<d", value)


@dataclass
class Group:
    """A column group; a column is (name id, type, flags, value)."""

    kind: int
    columns: list[tuple[int, int, int, bytes | None]]
    count: int | None = None
    extra: bytes = b""

    def __bytes__(self) -> bytes:
        ids, types, flags, values = zip(*self.columns, strict=True) if self.columns else ([],) * 4
        return b"".join(
            (
                bytes([self.kind]),
                uvarint(len(ids) if self.count is None else self.count),
                deltas(list(ids)),
                b"".join(map(uvarint, types)),
                b"".join(map(uvarint, flags)),
                nullable(list(values)),
                self.extra,
            )
        )


@dataclass
class Message:
    """A message of rows, each a list of groups; every part can be given another value."""

    rows: list[list[Group]]
    terms: list[bytes] = field(default_factory=lambda: [b"d", b"t", b"a", b"b", b"c"])
    version: int = 1
    ts: list[int] | None = None
    kinds: list[int] | None = None
    partitions: list[int] | None = None
    schemas: list[int] | None = None
    tables: list[int] | None = None
    bodies: list[bytes] | None = None
    header_size: int = 0  # added to the right one, as are the following
    dictionary_size: int = 0
    body_size: int = 0
    group_size: int = 0
    more_tables: list[list[int]] = field(default_factory=list)
    events: int | None = None
    tables_size: int | None = None
    dictionary: bytes | None = None
    meta: list[int] | None = None

    def __bytes__(self) -> bytes:
        bodies = self.bodies
        if bodies is None:
            bodies = [b"".join(map(bytes, groups)) for groups in self.rows]
        n = len(bodies)
        ts = self.ts or [TS] * n
        header = b"".join(
            (
                b"".join(uvarint((b - a) % 2**64) for a, b in zip([0, *ts], ts, strict=False)),
                b"".join(map(uvarint, self.kinds or [ROW] * n)),
                deltas(self.partitions or [-1] * n),
                deltas(self.schemas or [0] * n),
                deltas(self.tables or [1] * n),
            )
        )
        dictionary = self.dictionary
        if dictionary is None:
            dictionary = b"".join(
                (
                    uvarint(len(self.terms)),
                    *(uvarint(len(term)) for term in self.terms),
                    *self.terms,
                )
            )
        sizes = [len(body) for body in bodies]
        sizes[-1] += self.body_size
        groups = [[len(bytes(group)) for group in row] for row in self.rows]
        if groups:
            groups[-1][-1] += self.group_size
        meta = [len(header) + self.header_size, len(dictionary) + self.dictionary_size]
        tables = (
            uvarint(2) + deltas(meta)
            if self.meta is None
            else uvarint(len(self.meta)) + deltas(self.meta)
        )
        tables += uvarint(n if self.events is None else self.events) + deltas(sizes)
        for table in groups + self.more_tables:
            tables += uvarint(len(table)) + deltas(table)
        size = len(tables) if self.tables_size is None else self.tables_size
        return b"".join(
            (uvarint(self.version), header, *bodies, dictionary, tables, uvarint(size)[::-1])
        )


def one(*columns: tuple[int, int, int, bytes | None], kind: int = NEW) -> Message:
    return Message([[Group(kind, list(columns))]])


def decode(*messages: bytes | Message) -> list[dict[str, Any]]:
    batch = decode_batch("craft", None, [bytes(message) for message in messages])
    batch.validate(full=True)
    return batch.to_pylist()


def events(*messages: bytes | Message) -> list[dict[str, Any]]:
    return [row for row in decode(*messages) if row["kind"] != "schema"]


def fault(message: bytes | Message) -> tuple[str, int]:
    [event] = events(message)
    assert event["kind"] == "error", event
    assert event["raw_value"] == bytes(message)
    return event["error"]["code"], event["error"]["position"]


INT_ID = (2, 3, 11, b"\x02")  # the handle key: a INT = 1


# --- batches ---------------------------------------------------------------------------------------


def shape_row(number: int, columns: list[dict[str, Any]], table: str = "t") -> dict[str, Any]:
    return {
        "event": -1,
        "kind": "schema",
        "flags": 0,
        "database": "d",
        "table": table,
        "shape": number,
        "schema": json.dumps({"columns": columns}),
    }


def row(kind: str, *, shape: int = 1, table: str = "t", **members: Any) -> dict[str, Any]:
    return {
        "event": 0,
        "kind": kind,
        "flags": 0,
        "commit_ts": TS,
        "database": "d",
        "table": table,
        "shape": shape,
        **members,
    }


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=CHANGE_SCHEMA)


def column(name: str, code: int, flags: int = 0) -> dict[str, Any]:
    return {"name": name, "code": code, "flags": flags, "key": bool(flags & 2)}


def encode(*rows: dict[str, Any], **settings: Any) -> list[bytes]:
    encoded = encode_batch("craft", batch(*rows), **settings)
    assert encoded["key"].null_count == len(encoded)
    return encoded["value"].to_pylist()


# --- values ----------------------------------------------------------------------------------------

# type code, flags, bytes, text
VALUES = [
    (1, 0, b"\x01", "-1"),
    (1, 0, b"\xff\x01", "-128"),
    (1, 0, b"\xfe\x01", "127"),
    (1, 128, b"\xff\x01", "255"),
    (2, 0, varint(-32768), "-32768"),
    (2, 128, uvarint(65535), "65535"),
    (9, 0, varint(-8388608), "-8388608"),
    (9, 128, uvarint(2**24 - 1), "16777215"),
    (3, 0, varint(2**31 - 1), "2147483647"),
    (3, 128, uvarint(2**32 - 1), "4294967295"),
    (8, 0, varint(-(2**63)), "-9223372036854775808"),
    (8, 0, varint(2**63 - 1), "9223372036854775807"),
    (8, 128, uvarint(2**64 - 1), "18446744073709551615"),
    (4, 0, float64(1.5), "1.5"),
    (4, 0, float64(struct.unpack("<f", struct.pack("<f", 0.1))[0]), "0.1"),
    (4, 128, float64(2.0**100), "1267650600000000000000000000000"),
    (5, 0, float64(0.1), "0.1"),
    (5, 0, float64(-0.0), "-0"),
    (5, 0, float64(5e-324), "0." + "0" * 323 + "5"),
    (7, 0, b"2020-02-29 23:59:59.123456", "2020-02-29 23:59:59.123456"),
    (12, 0, b"0000-00-00 00:00:00", "0000-00-00 00:00:00"),
    (10, 0, b"2020-00-31", "2020-00-31"),
    (14, 0, b"9999-12-31", "9999-12-31"),
    (11, 0, b"-838:59:59.000000", "-838:59:59.000000"),
    (13, 193, varint(2155), "2155"),
    (13, 193, varint(0), "0"),
    (15, 0, "é€𝄞\0".encode(), "é€𝄞\0"),
    (15, 1, b"\x00\xff", "AP8="),
    (253, 0, b"", ""),
    (254, 1, b"", ""),
    (249, 0, b"text", "text"),
    (252, 1, b"blob", "YmxvYg=="),
    (250, 0, b"x" * 5000, "x" * 5000),
    (251, 1, b"\x01\x02\x03", "AQID"),
    (16, 193, uvarint(2**64 - 1), "18446744073709551615"),
    (245, 65, b'{"k": [1, null]}', '{"k": [1, null]}'),
    (246, 65, b"-99999999999999999999.99", "-99999999999999999999.99"),
    (246, 65, b"0", "0"),
    (247, 64, b"\x00", "0"),
    (247, 64, uvarint(65535), "65535"),
    (248, 64, uvarint(2**63), "9223372036854775808"),
    (225, 65, b"[1.5,2,-30000000000]", "[1.5,2,-30000000000]"),
    (225, 65, b"[]", "[]"),
    (6, 0, None, None),
    (255, 0, None, None),
    (3, 0, None, None),
    (15, 0, None, None),
]


@pytest.mark.parametrize("code, flags, wire, text", VALUES)
def test_a_value_has_one_form_on_the_wire_and_one_in_text(code, flags, wire, text):
    message = one(INT_ID, (3, code, flags, wire))
    message.terms = [b"d", b"t", b"a", b"b"]
    [event] = events(message)
    assert (event["kind"], event["after"], event["flags"]) == ("insert", ["1", text], 0)
    columns = [column("a", 3, 11), column("b", code, flags)]
    assert encode(shape_row(1, columns), row("insert", after=["1", text])) == [bytes(message)]


REFUSED_VALUES = [
    (1, 0, varint(128), "range"),
    (1, 0, varint(-129), "range"),
    (1, 128, uvarint(256), "range"),
    (9, 128, uvarint(2**24), "range"),
    (3, 0, varint(2**31), "range"),
    (3, 128, uvarint(2**32), "range"),
    (247, 0, uvarint(65536), "range"),
    (13, 193, varint(1900), "range"),
    (13, 193, varint(2156), "range"),
    (8, 0, b"", "number"),
    (8, 0, b"\x80", "number"),
    (8, 0, b"\x01\x01", "number"),
    (8, 128, b"\xff" * 9 + b"\x02", "number"),
    (8, 128, b"\x80" * 10 + b"\x00", "number"),
    (4, 0, b"\x00" * 4, "length"),
    (5, 0, b"\x00" * 9, "length"),
    (5, 0, float64(float("nan")), "value"),
    (5, 0, float64(float("-inf")), "value"),
    (10, 0, b"2021-02-29", "temporal"),
    (10, 0, b"2021-11-31", "temporal"),
    (10, 0, b"2021/01/02", "temporal"),
    (12, 0, b"2021-01-02 24:00:00", "temporal"),
    (7, 0, b"2021-01-02 00:00:00.", "temporal"),
    (11, 0, b"839:00:00", "temporal"),
    (246, 0, b"1e5", "number"),
    (246, 0, b".5", "number"),
    (225, 0, b"[1,]", "number"),
    (15, 0, b"\xff", "utf8"),
    (245, 0, b"\xed\xa0\x80", "utf8"),
    (6, 0, b"", "type"),
    (255, 0, b"x", "type"),
    (17, 0, b"x", "type"),
    (300, 0, b"x", "type"),
]


@pytest.mark.parametrize("code, flags, wire, expected", REFUSED_VALUES)
def test_a_value_that_its_column_cannot_have_is_refused(code, flags, wire, expected):
    assert fault(one(INT_ID, (3, code, flags, wire)))[0] == expected


REFUSED_TEXTS = [
    (1, 0, "128"),
    (1, 128, "-1"),
    (3, 0, "1.5"),
    (3, 0, ""),
    (8, 128, "18446744073709551616"),
    (13, 193, "1900"),
    (4, 0, "NaN"),
    (5, 0, "one"),
    (5, 0, "1" + "0" * 400),
    (252, 1, "not base64!"),
    (6, 0, "1"),
]


@pytest.mark.parametrize("code, flags, text", REFUSED_TEXTS)
def test_a_text_without_a_form_on_the_wire_is_refused_by_name(code, flags, text):
    columns = [column("a", 3, 11), column("b", code, flags)]
    with pytest.raises(EncodeError) as caught:
        encode(shape_row(1, columns), row("insert", after=["1", text]))
    assert (caught.value.database, caught.value.table, caught.value.field) == ("d", "t", "b")


@pytest.mark.parametrize(
    "wire, text, flags",
    [
        # TiCDC writes 2.0 and then the BIGINT 2000 over the second half of it: nobody can tell.
        ("00000000a01f0040", "2.015442", 0),
        # The number that is left is no FLOAT.
        ("000000000000d07f", format(Decimal(repr(2.0**1022)), "f"), EventFlag.CORRUPTED),
        # What is left is no number.
        ("00000020ffffffff", None, EventFlag.CORRUPTED),
        ("000000000000f07f", None, EventFlag.CORRUPTED),
    ],
)
def test_a_float_damaged_by_the_sender_is_shown_as_it_is(wire, text, flags):
    [event] = events(one(INT_ID, (3, 4, 0, bytes.fromhex(wire))))
    assert (event["after"], event["flags"]) == (["1", text], flags)


def test_a_damaged_float_that_is_a_number_is_written_back_as_it_was():
    message = one(INT_ID, (3, 4, 0, bytes.fromhex("00000060a01ff001")))
    message.terms = [b"d", b"t", b"a", b"b"]
    changes = decode_batch("craft", None, [bytes(message)])
    assert encode_batch("craft", changes)["value"].to_pylist() == [bytes(message)]


# --- events ----------------------------------------------------------------------------------------


def test_the_groups_of_a_row_say_what_was_done_to_it():
    new, old = [INT_ID, (3, 15, 64, b"x")], [INT_ID, (3, 15, 64, None)]
    message = Message(
        [
            [Group(NEW, new)],
            [Group(NEW, new), Group(OLD, old)],
            [Group(OLD, old)],
        ],
        ts=[TS + 5, TS, TS + 1],  # a delta below zero wraps
        partitions=[-1, 77, 78],
    )
    found = events(message)
    assert [
        (event["kind"], event["commit_ts"], event["table_id"], event["after"], event["before"])
        for event in found
    ] == [
        ("insert", TS + 5, None, ["1", "x"], None),
        ("update", TS, 77, ["1", "x"], ["1", None]),
        ("delete", TS + 1, 78, None, ["1", None]),
    ]
    assert [event["event"] for event in found] == [0, 1, 2]
    assert {event["before_missing"] for event in found} == {None}


def test_the_shape_says_what_the_wire_says():
    [schema, event] = decode(one(INT_ID, (3, 15, 64, b"x"), (4, 8, 193, None)))
    assert json.loads(schema["schema"])["columns"] == [
        {"name": "a", "type": "int", "code": 3, "flags": 11, "key": True},
        {"name": "b", "type": "varchar", "code": 15, "flags": 64},
        {"name": "c", "type": "bigint unsigned", "code": 8, "flags": 193},
    ]
    assert (event["database"], event["table"], event["shape"]) == ("d", "t", schema["shape"])


def test_a_message_may_hold_rows_of_many_tables():
    terms = [b"d", b"e", b"t", b"u", b"a"]
    group = [Group(NEW, [(4, 3, 11, b"\x02")])]
    message = Message([group] * 3, terms=terms, schemas=[0, 1, 0], tables=[2, 3, 2])
    assert [(event["database"], event["table"]) for event in events(message)] == [
        ("d", "t"),
        ("e", "u"),
        ("d", "t"),
    ]


@pytest.mark.parametrize(
    "old, before, missing",
    [
        ([INT_ID], ["1", None, None], 0b110),
        ([(4, 3, 0, b"\x06"), INT_ID], ["1", None, "3"], 0b010),
        ([(4, 3, 0, b"\x06"), (3, 3, 0, None), INT_ID], ["1", None, "3"], None),
    ],
)
def test_old_values_may_be_of_fewer_columns_or_in_another_order(old, before, missing):
    new = [INT_ID, (3, 3, 0, b"\x04"), (4, 3, 0, b"\x08")]
    [event] = events(Message([[Group(NEW, new), Group(OLD, old)]]))
    assert event["after"] == ["1", "2", "4"]
    assert event["before"] == before
    assert event["before_missing"] == (None if missing is None else bytes([missing]))


# Messages of TiCDC, and the rows that they are read to and written from.
TICDC = {
    "ddl of a database": (
        "AYCAkNLu2+HDBgIBAAEBE0NSRUFURSBEQVRBQkFTRSBgdGABAXQCGhMBKgU=",
        {
            "kind": "ddl",
            "commit_ts": TS,
            "database": "t",
            "table": None,
            "ddl": {"type": "QUERY", "code": 1, "query": "CREATE DATABASE `t`"},
        },
    ),
    "ddl of a table": (
        "AYCA8N7u2+HDBgIBAAIDTENSRUFURSBUQUJMRSBgZ2JrcGtgIChgZ2AgVkFSQ0hBUigyMCkgQ0hBUkFDVEVSIFNFVCBHQksgUFJJTUFSWSBLRVksYHZgIElOVCkCAQV0Z2JrcGsCGgcBnAEG",
        {
            "kind": "ddl",
            "commit_ts": 470492978081431552,
            "database": "t",
            "table": "gbkpk",
            "ddl": {
                "type": "CREATE",
                "code": 3,
                "query": "CREATE TABLE `gbkpk` (`g` VARCHAR(20) CHARACTER SET GBK PRIMARY KEY,`v` INT)",
            },
        },
    ),
    "watermark": (
        "AYCAkNLu2+HDBgMBAQECGhkBAAU=",
        {"kind": "watermark", "commit_ts": TS, "database": None, "table": None, "ddl": None},
    ),
}


@pytest.mark.parametrize("wire, expected", TICDC.values(), ids=TICDC)
def test_ddl_and_watermarks(wire, expected):
    [event] = decode(b64decode(wire))
    assert {name: event[name] for name in expected} == expected
    assert encode(expected | {"event": 0, "flags": 0}) == [b64decode(wire)]


def test_rows_of_ticdc_are_written_as_ticdc_writes_them():
    wire = b64decode(
        "AYCA8N/u2+HDBgCBgBACAQEBAQEAAAAAAAAAAgAAAAECBAIPAwpBAgJiBAECBAIPAwpBDALkuLvplK4CAQIEAg8DCkEMAuS4u+mU"
        "rhQCAgQCDwMKQQwC5Li76ZSuAgICBAIPAwpBDALkuLvplK4UBAEFAQF0Z2JrcGtndgI8IQQYCiIhARgBIgIiAAEiEQ=="
    )
    changes = decode_batch("craft", None, [wire])
    assert [
        (event["kind"], event["after"], event["before"])
        for event in changes.to_pylist()
        if event["kind"] != "schema"
    ] == [
        ("insert", ["b", "2"], None),
        ("insert", ["主键", "1"], None),
        ("update", ["主键", "10"], ["主键", "1"]),
        ("delete", None, ["主键", "10"]),
    ]
    assert encode_batch("craft", changes)["value"].to_pylist() == [wire]


def test_a_ddl_without_a_code_gets_that_of_its_statement():
    ddl = {"type": "ALTER", "code": None, "query": "ALTER TABLE t ADD COLUMN c INT"}
    [message] = encode(row("ddl", shape=None, ddl=ddl))
    [event] = events(message)
    assert event["ddl"] == ddl | {"code": 5}


# --- what is refused -------------------------------------------------------------------------------

MALFORMED = {
    "version 0": (Message([[Group(NEW, [INT_ID])]], version=0), "version"),
    "version 2": (Message([[Group(NEW, [INT_ID])]], version=2), "version"),
    "tables larger than the message": (
        Message([[Group(NEW, [INT_ID])]], tables_size=300),
        "length",
    ),
    "tables too small": (Message([[Group(NEW, [INT_ID])]], tables_size=3), None),
    "an endless size of tables": (b"\x01" + b"\xff" * 40, "length"),
    "no events": (Message([[Group(NEW, [INT_ID])]], events=0), "syntax"),
    "more events than can be": (Message([[Group(NEW, [INT_ID])]], events=2**40), "length"),
    "three meta sizes": (Message([[Group(NEW, [INT_ID])]], meta=[13, 12, 1]), "syntax"),
    "negative header": (Message([[Group(NEW, [INT_ID])]], meta=[-1, 12]), "length"),
    "header too long": (Message([[Group(NEW, [INT_ID])]], header_size=1), "length"),
    "header too short": (Message([[Group(NEW, [INT_ID])]], header_size=-1), "length"),
    "header and dictionary shifted": (
        Message([[Group(NEW, [INT_ID])]], header_size=1, dictionary_size=-1),
        "length",
    ),
    "dictionary too long": (Message([[Group(NEW, [INT_ID])]], dictionary_size=1), "length"),
    "dictionary beyond the message": (
        Message([[Group(NEW, [INT_ID])]], dictionary_size=99),
        "length",
    ),
    "body too long": (Message([[Group(NEW, [INT_ID])]], body_size=1), "length"),
    "body too short": (Message([[Group(NEW, [INT_ID])]], body_size=-1), "length"),
    "group too long": (Message([[Group(NEW, [INT_ID])]], group_size=1), "length"),
    "group too short": (Message([[Group(NEW, [INT_ID])]], group_size=-1), "length"),
    "values too short": (Message([[Group(NEW, [INT_ID], extra=b"x")]]), "length"),
    "a table too many": (Message([[Group(NEW, [INT_ID])]], more_tables=[[1]]), "trailing"),
    "a term too many": (
        Message([[Group(NEW, [INT_ID])]], dictionary=b"\x06\x01\x01\x01\x01\x01dtabc"),
        "length",
    ),
    "a term too few": (
        Message([[Group(NEW, [INT_ID])]], dictionary=b"\x04\x01\x01\x01\x01dtabc"),
        "length",
    ),
    "a term beyond the dictionary": (
        Message([[Group(NEW, [INT_ID])]], dictionary=b"\x05\x01\x01\x01\x01\x7fdtabc"),
        "length",
    ),
    "a term twice": (
        Message([[Group(NEW, [INT_ID])]], terms=[b"d", b"t", b"a", b"a"]),
        "duplicate",
    ),
    "a term that is not UTF-8": (
        Message([[Group(NEW, [INT_ID])]], terms=[b"d", b"t", b"\xff"]),
        "utf8",
    ),
    "commit_ts over 63 bits": (Message([[Group(NEW, [INT_ID])]], ts=[2**63]), "range"),
    "an event of no kind": (Message([[Group(NEW, [INT_ID])]], kinds=[4]), "kind"),
    "partition -2": (Message([[Group(NEW, [INT_ID])]], partitions=[-2]), "range"),
    "a database without a term": (Message([[Group(NEW, [INT_ID])]], schemas=[5]), "range"),
    "a table below null": (Message([[Group(NEW, [INT_ID])]], tables=[-2]), "range"),
    "a row of no table": (Message([[Group(NEW, [INT_ID])]], tables=[-1]), "missing"),
    "a group of no kind": (Message([[Group(3, [INT_ID])]]), "columns"),
    "old before new": (Message([[Group(OLD, [INT_ID]), Group(NEW, [INT_ID])]]), "columns"),
    "two new groups": (Message([[Group(NEW, [INT_ID])] * 2]), "columns"),
    "three groups": (
        Message([[Group(NEW, [INT_ID]), Group(OLD, [INT_ID]), Group(OLD, [INT_ID])]]),
        "columns",
    ),
    "no columns": (Message([[Group(NEW, [])]]), "columns"),
    "more columns than can be": (Message([[Group(NEW, [INT_ID], count=200)]]), "length"),
    "far more columns than can be": (Message([[Group(NEW, [INT_ID], count=2**40)]]), "columns"),
    "a column without a term": (one((5, 3, 0, None)), "range"),
    "a column twice": (one(INT_ID, INT_ID), "duplicate"),
    "flags over 31 bits": (one((2, 3, 2**31, None)), "range"),
    "an old column that is not new": (
        Message([[Group(NEW, [INT_ID]), Group(OLD, [(3, 3, 0, None)])]]),
        "columns",
    ),
    "an old column of another type": (
        Message([[Group(NEW, [INT_ID]), Group(OLD, [(2, 8, 11, None)])]]),
        "columns",
    ),
    "length -2": (Message([[Group(NEW, [])]], bodies=[b"\x01\x01\x04\x03\x0b\x03"]), None),
    "a resolved event with a body": (Message([], bodies=[b"x"], kinds=[RESOLVED]), "trailing"),
    "DDL type 256": (Message([], bodies=[uvarint(256) + b"\x00"], kinds=[DDL]), "range"),
    "a query beyond its event": (Message([], bodies=[b"\x01\x05abc"], kinds=[DDL]), "length"),
    "a query before its event's end": (
        Message([], bodies=[b"\x01\x02abc"], kinds=[DDL]),
        "trailing",
    ),
    "a query that is not UTF-8": (Message([], bodies=[b"\x01\x01\xff"], kinds=[DDL]), "utf8"),
}


@pytest.mark.parametrize("message, expected", MALFORMED.values(), ids=MALFORMED)
def test_what_does_not_fit_together_is_refused(message, expected):
    code, _ = fault(message)
    assert expected in (code, None)


@pytest.mark.parametrize("value", [None, b""])
def test_an_empty_message_is_refused(value):
    [event] = decode_batch("craft", None, [value]).to_pylist()
    assert event["error"]["code"] == "empty"


def test_the_position_of_a_fault_is_that_of_the_value():
    message = bytes(one(INT_ID, (3, 15, 0, b"\xff")))
    assert fault(message) == ("utf8", message.index(b"\xff"))


def test_a_bad_message_takes_nothing_along():
    good, bad = one(INT_ID), Message([[Group(NEW, [INT_ID])], [Group(3, [INT_ID])]])
    assert [event["kind"] for event in events(good, bad, good)] == ["insert", "error", "insert"]


SMALL = [
    bytes(one(INT_ID, (3, 15, 64, b"x" * 70), (4, 4, 0, float64(1.5)))),
    bytes(Message([[Group(NEW, [INT_ID]), Group(OLD, [INT_ID])], [Group(OLD, [INT_ID])]])),
    *(b64decode(wire) for wire, _ in TICDC.values()),
]


@pytest.mark.parametrize("wire", SMALL)
def test_no_flipped_bit_and_no_cut_does_harm(wire):
    damaged = [
        wire[:byte] + bytes([wire[byte] ^ 1 << bit]) + wire[byte + 1 :]
        for byte in range(len(wire))
        for bit in range(8)
    ]
    damaged += [wire[:length] for length in range(len(wire))]
    changes = decode_batch("craft", None, damaged)
    changes.validate(full=True)
    kinds = [event["kind"] for event in events(*(wire[:length] for length in range(len(wire))))]
    assert set(kinds) == {"error"}


# --- batching --------------------------------------------------------------------------------------

COLUMNS = [column("id", 3, 11), column("v", 15, 64)]


def inserts(count: int, **members: Any) -> list[dict[str, Any]]:
    return [row("insert", after=[str(n), "x"], **members) for n in range(count)]


def sizes(*rows: dict[str, Any], **settings: Any) -> list[int]:
    encoded = encode_batch("craft", batch(*rows), **settings)
    return encoded["events"].to_pylist()


def test_a_message_holds_max_batch_size_rows():
    assert sizes(shape_row(1, COLUMNS), *inserts(40)) == [16, 16, 8]
    assert sizes(shape_row(1, COLUMNS), *inserts(5), max_batch_size=2) == [2, 2, 1]


def test_a_message_ends_with_the_row_that_makes_it_too_large():
    # TiCDC's estimate: 32 + database + table for a row, 16 + name + value for a column
    of_a_row = 32 + 2 + (16 + 2 + 1) + (16 + 1 + 1)
    assert sizes(shape_row(1, COLUMNS), *inserts(9), max_message_bytes=3 * of_a_row) == [4, 4, 1]
    assert sizes(shape_row(1, COLUMNS), *inserts(9), max_message_bytes=3 * of_a_row - 1) == [
        3,
        3,
        3,
    ]


def test_a_message_holds_one_table_unless_told_otherwise():
    rows = [
        shape_row(1, COLUMNS),
        shape_row(2, COLUMNS, table="u"),
        *inserts(2),
        *inserts(2, shape=2, table="u"),
        *inserts(1),
    ]
    assert sizes(*rows) == [2, 2, 1]
    assert sizes(*rows, mix_tables=True) == [5]
    [message] = encode(*rows, mix_tables=True)
    assert [event["table"] for event in events(message)] == ["t", "t", "u", "u", "t"]


def test_rows_do_not_join_across_a_ddl_or_watermark():
    ddl = row("ddl", shape=None, ddl={"type": "QUERY", "code": 1, "query": "q"})
    mark = row("watermark", shape=None, database=None, table=None)
    rows = [shape_row(1, COLUMNS), *inserts(1), ddl, *inserts(2), mark, *inserts(1)]
    assert sizes(*rows) == [1, 1, 2, 1, 1]
    encoded = encode_batch("craft", batch(*rows))
    assert encoded["row"].to_pylist() == [1, 2, 3, 5, 6]


def test_deletes_can_be_told_to_carry_the_handle_key_only():
    rows = [shape_row(1, COLUMNS), row("delete", before=["1", "x"]), *inserts(1)]
    [message] = encode(*rows, delete_only_output_handle_key_columns=True)
    assert [(event["after"], event["before"]) for event in events(message)] == [
        (None, ["1"]),
        (["0", "x"], None),
    ]


def test_deletes_of_a_table_without_a_handle_key_carry_every_column():
    columns = [column("a", 3), column("b", 15)]
    rows = [shape_row(1, columns), row("delete", before=["1", "x"])]
    [message] = encode(*rows, delete_only_output_handle_key_columns=True)
    assert events(message)[0]["before"] == ["1", "x"]


def test_old_values_not_carried_are_not_written():
    columns = [*COLUMNS, column("w", 3)]
    update = row("update", after=["1", "x", "2"], before=["1", None, None])
    [event] = events(encode(shape_row(1, columns), update | {"before_missing": b"\x02"})[0])
    assert (event["before"], event["before_missing"]) == (["1", None, None], b"\x02")


@pytest.mark.parametrize(
    "old",
    [{"before": None}, {"before": [None, None], "before_missing": b"\x03"}],
)
def test_an_update_of_which_nothing_old_is_known_is_written_with_its_handle_key(old):
    [message] = encode(shape_row(1, COLUMNS), row("update", after=["1", "x"], **old))
    [event] = events(message)
    assert (event["kind"], event["before"], event["before_missing"]) == (
        "update",
        ["1", None],
        b"\x02",
    )


def test_without_a_handle_key_such_an_update_reads_as_an_insert():
    [message] = encode(shape_row(1, [column("a", 3)]), row("update", after=["1"]))
    assert events(message)[0]["kind"] == "insert"


# --- what cannot be written ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows, error",
    [
        ([row("insert", after=["1", "x"])], SchemaNotSeen),
        ([shape_row(1, COLUMNS), row("insert", shape=None, after=["1", "x"])], EncodeError),
        ([shape_row(1, COLUMNS), row("insert", after=["1"])], EncodeError),
        ([shape_row(1, COLUMNS), row("insert", after=None)], EncodeError),
        ([shape_row(1, COLUMNS), row("delete", before=None)], EncodeError),
        (
            [shape_row(1, COLUMNS), row("delete", before=[None] * 2, before_missing=b"\3")],
            EncodeError,
        ),
        ([shape_row(1, COLUMNS), row("insert", after=["1", "x"], commit_ts=None)], EncodeError),
        ([shape_row(1, [{"name": "a"}]), row("insert", after=["1"])], EncodeError),
        ([shape_row(1, [column("a", 99)]), row("insert", after=["1"])], EncodeError),
        ([row("ddl", shape=None, ddl=None)], EncodeError),
        ([row("error", shape=None)], EncodeError),
    ],
)
def test_what_cannot_be_written_is_said(rows, error):
    with pytest.raises(error):
        encode(*rows)


def test_options_of_other_protocols_are_refused():
    with pytest.raises(UnsupportedByProtocol):
        encode(shape_row(1, COLUMNS), compression="lz4")


# --- there and back --------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=80)
floats = st.floats(allow_nan=False, allow_infinity=False)
FORMS = {
    (1, 0): st.integers(-128, 127).map(str),
    (8, 0): st.integers(-(2**63), 2**63 - 1).map(str),
    (8, 193): st.integers(0, 2**64 - 1).map(str),
    (13, 193): st.integers(1901, 2155).map(str),
    (10, 65): st.dates().map(str),
    (12, 65): st.datetimes().map(lambda at: at.isoformat(" ")),
    (246, 65): st.decimals(allow_nan=False, allow_infinity=False, places=4).map("{:f}".format),
    (15, 64): texts,
    (252, 65): st.binary(max_size=80).map(lambda value: b64encode(value).decode()),
    (16, 193): st.integers(0, 2**64 - 1).map(str),
    (245, 65): texts,
}


@st.composite
def tables(draw) -> tuple[list[dict[str, Any]], Any]:
    names = draw(st.lists(texts.filter(len), min_size=1, max_size=9, unique=True))
    forms = draw(st.lists(st.sampled_from(list(FORMS)), min_size=len(names), max_size=len(names)))
    columns = [column(name, *form) for name, form in zip(names, forms, strict=True)]
    return columns, st.tuples(*(st.none() | FORMS[form] for form in forms)).map(list)


@st.composite
def changes(draw) -> list[dict[str, Any]]:
    rows = []
    shapes = draw(st.lists(tables(), min_size=1, max_size=3))
    for number, (columns, _) in enumerate(shapes):
        rows.append(shape_row(number, columns, table=f"t{number}"))
    for _ in range(draw(st.integers(1, 12))):
        number = draw(st.integers(0, len(shapes) - 1))
        values = shapes[number][1]
        kind = draw(st.sampled_from(["insert", "update", "delete"]))
        after = None if kind == "delete" else draw(values)
        # Most columns of an update stay as they are.
        before = None
        if kind != "insert":
            before = draw(values)
            if after is not None:
                kept = draw(st.lists(st.booleans(), min_size=len(after), max_size=len(after)))
                before = [a if same else b for a, b, same in zip(after, before, kept, strict=True)]
        rows.append(
            row(
                kind,
                shape=number,
                table=f"t{number}",
                after=after,
                before=before,
                commit_ts=draw(st.integers(0, 2**63 - 1)),
                table_id=draw(st.none() | st.integers(0, 2**63 - 1)),
            )
        )
    return rows


SAME = ("kind", "commit_ts", "database", "table", "table_id", "after", "before", "before_missing")


def same(event: dict[str, Any]) -> dict[str, Any]:
    return {name: event.get(name) for name in SAME}


@settings(max_examples=150, deadline=None)
@given(changes(), st.booleans(), st.integers(1, 20))
def test_what_is_written_is_read_again(rows, mix_tables, max_batch_size):
    messages = encode(*rows, mix_tables=mix_tables, max_batch_size=max_batch_size)
    found = [same(event) for event in events(*messages)]
    assert found == [same(event) for event in rows if event["kind"] != "schema"]


@settings(max_examples=60, deadline=None)
@given(changes(), st.integers(1, 4), st.randoms())
def test_what_was_read_before_does_not_matter(rows, max_batch_size, random):
    messages = encode(*rows, max_batch_size=max_batch_size) * 3
    random.shuffle(messages)
    in_stream = [same(event) for event in events(*messages)]
    alone = [same(event) for message in messages for event in events(message)]
    assert in_stream == alone


@settings(max_examples=100, deadline=None)
@given(
    st.lists(floats, min_size=1, max_size=5),
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=5),
)
def test_floats_keep_every_bit(doubles, singles):
    columns = [(2 + i, 5, 0, float64(value)) for i, value in enumerate(doubles)]
    columns += [(2 + len(doubles) + i, 4, 0, float64(value)) for i, value in enumerate(singles)]
    message = one(*columns)
    message.terms = [b"d", b"t", *(b"c%d" % i for i in range(len(columns)))]
    read = decode_batch("craft", None, [bytes(message)])
    assert read["flags"].to_pylist()[-1] == 0
    assert encode_batch("craft", read, shapes=ShapeBook([read]))["value"].to_pylist() == [
        bytes(message)
    ]


# --- the published benchmark -----------------------------------------------------------------------


def seed_rows(events_of_case: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the size benchmark's events. Its dates are written 2021/01/02, as no TiDB does."""

    def text(of: dict[str, Any]) -> str | None:
        if of["v"] is None:
            return None
        value = of["v"]["v"]
        return b64decode(value).decode() if of["v"]["k"] == "bytes" else value

    rows = []
    for number, event in enumerate(events_of_case):
        names = {"database": event["schema"], "table": event["table"]}
        columns = [column(c["n"], c["t"], c["f"]) for c in event["after"]]
        change = row(
            event["type"],
            shape=number,
            commit_ts=int(event["commitTs"]),
            table_id=event["physicalTableID"] if event["isPartition"] else None,
            after=[text(c) for c in event["after"]],
            before=[text(c) for c in event["before"]],
        )
        rows += [shape_row(number, columns) | names, change | names]
    return rows


@pytest.mark.parametrize("case", corpus.craft_sizes(mended=True), ids=lambda case: case["name"])
def test_the_size_benchmark_is_reproduced_to_the_byte(case):
    expected = [b64decode(message["value"]) for message in case["craft"]["messages"]]
    assert encode(*seed_rows(case["events"]), mix_tables=True) == expected
    assert sum(map(len, expected)) == case["craft"]["size"]
