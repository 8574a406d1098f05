"""The cdc binary format in both profiles: what its bytes mean, in both directions, and what is refused."""

import json
from base64 import b64encode
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model import (
    ConfigError,
    EncodeError,
    SchemaNotSeen,
    UnsupportedByProtocol,
    type_name,
)
from tidegate.wire import CHANGE_SCHEMA, decode_batch, encode_batch
from tidegate.wire.kernel.text import crc32c

TS = 415508856908021766
MAGIC = 0xBAAAD700
DML, DDL = 0, 1
INSERT, UPDATE, DELETE = 1, 2, 3
NULL = 6


# --- a writer of messages --------------------------------------------------------------------------


def be32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    length, head = len(data), bytearray()
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*head, length]) + data


def compact(document: object) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def header(kind: int, *, magic: int = MAGIC, version: int = 1, ts: int = TS) -> bytes:
    return be32(magic) + bytes([version]) + ts.to_bytes(8, "big") + bytes([kind])


def sealed(content: bytes, *, length: int | None = None, crc: int | None = None) -> bytes:
    length = len(content) if length is None else length
    return be32(length) + content + be32(crc32c(content) if crc is None else crc)


def ddl(job: str, database: str = "d", table: str = "t") -> bytes:
    return header(DDL) + sealed(string(database) + string(table) + string(job))


def document_row(
    values: list[tuple[str, int, bytes]], infos: list[object], *, table: str = "t"
) -> bytes:
    return b"".join(
        (
            string("d"),
            string(table),
            be32(len(values)),
            *(string(name) + bytes([code]) + string(data) for name, code, data in values),
            be32(len(infos)),
            *(string(info if isinstance(info, str) else compact(info)) for info in infos),
        )
    )


def document(values: list[tuple[str, int, bytes]], infos: list[object]) -> bytes:
    return header(DML) + sealed(document_row(values, infos))


def operation(
    kind: int, values: list[tuple[str, object]], infos: list[object], *, table: str = "t"
) -> bytes:
    return b"".join(
        (
            string("d"),
            string(table),
            be32(kind),
            be32(len(values)),
            *(
                string(name)
                + string(value if isinstance(value, str) else compact({"value": value[0]}))
                for name, value in values
            ),
            be32(len(infos)),
            *(string(compact(info)) for info in infos),
        )
    )


def operations(*rows: bytes, count: int | None = None) -> bytes:
    return header(DML) + be32(len(rows) if count is None else count) + sealed(b"".join(rows))


def column(name: str, code: int, flags: int = 0, type: str | None = None) -> dict[str, Any]:
    told = {"name": name, "type": type, "code": code, "flags": flags, "key": bool(flags & 2)}
    return {
        member: value for member, value in told.items() if value is not None and value is not False
    }


def decode(*messages: bytes, encoding: str | None = None) -> list[dict[str, Any]]:
    changes = decode_batch("cdc", None, list(messages), encoding=encoding)
    changes.validate(full=True)
    return changes.to_pylist()


def events(*messages: bytes, encoding: str | None = None) -> list[dict[str, Any]]:
    return [event for event in decode(*messages, encoding=encoding) if event["kind"] != "schema"]


def fault(message: bytes, *, encoding: str | None = None) -> str:
    [event] = events(message, encoding=encoding)
    assert event["kind"] == "error", event
    return event["error"]["code"]


# --- batches ---------------------------------------------------------------------------------------


def shape_row(columns: list[dict[str, Any]], *, shape: int = 1, table: str = "t") -> dict[str, Any]:
    return {
        "event": -1,
        "kind": "schema",
        "flags": 0,
        "database": "d",
        "table": table,
        "shape": shape,
        "schema": json.dumps({"columns": columns}),
    }


def row(kind: str, **members: Any) -> dict[str, Any]:
    plain = {"event": 0, "flags": 0, "commit_ts": TS, "database": "d", "table": "t", "shape": 1}
    return {"kind": kind, **plain, **members}


def encode(*rows: dict[str, Any], **settings: Any) -> list[bytes]:
    batch = pa.RecordBatch.from_pylist(list(rows), schema=CHANGE_SCHEMA)
    encoded = encode_batch("cdc", batch, **settings)
    assert encoded["key"].null_count == len(encoded)
    return encoded["value"].to_pylist()


# --- values ----------------------------------------------------------------------------------------

# type code, flags, data of the profile "document", JSON of the profile "operations", text
VALUES = [
    (1, 0, b"-128", -128, "-128"),
    (1, 128, b"255", 255, "255"),
    (3, 0, b"2147483647", 2147483647, "2147483647"),
    (8, 128, b"18446744073709551615", 18446744073709551615, "18446744073709551615"),
    (4, 0, b"1.5", 1.5, "1.5"),
    (5, 0, b"-0.25", -0.25, "-0.25"),
    (
        7,
        0,
        b"2020-02-29 23:59:59.123456",
        "2020-02-29 23:59:59.123456",
        "2020-02-29 23:59:59.123456",
    ),
    (10, 0, b"0000-00-00", "0000-00-00", "0000-00-00"),
    (11, 0, b"-838:59:59", "-838:59:59", "-838:59:59"),
    (13, 128, b"2155", 2155, "2155"),
    (15, 0, "é€𝄞".encode(), "é€𝄞", "é€𝄞"),
    (15, 1, b"\x00\xff", "AP8=", "AP8="),
    (252, 0, b"", "", ""),
    (252, 1, b"blob", "YmxvYg==", "YmxvYg=="),
    (16, 128, b"18446744073709551615", 18446744073709551615, "18446744073709551615"),
    (245, 65, b'{"k": [1]}', '{"k": [1]}', '{"k": [1]}'),
    (246, 65, b"-99999999999999999999.99", "-99999999999999999999.99", "-99999999999999999999.99"),
    (247, 64, b"2", 2, "2"),
    (225, 65, b"[1,2.5]", "[1,2.5]", "[1,2.5]"),
    (3, 64, None, None, None),
    (252, 65, None, None, None),
    (6, 0, None, None, None),
]
ID = column("id", 3, 11, "int")


def named(code: int, flags: int) -> dict[str, Any]:
    return column("v", code, flags, type_name(code, flags))


@pytest.mark.parametrize("code, flags, data, value, text", VALUES)
def test_a_value_has_one_form_in_the_document_and_one_in_text(code, flags, data, value, text):
    infos = [ID, named(code, flags)]
    typed = ("v", NULL, b"") if data is None else ("v", code, data)
    message = document([("id", 3, b"1"), typed], infos)
    assert [(event["kind"], event["after"]) for event in events(message)] == [
        ("insert", ["1", text])
    ]
    assert encode(shape_row(infos), row("insert", after=["1", text])) == [message]


@pytest.mark.parametrize("code, flags, data, value, text", VALUES)
def test_a_value_has_one_form_in_an_operation_and_one_in_text(code, flags, data, value, text):
    infos = [ID, named(code, flags)]
    message = operations(operation(INSERT, [("id", [1]), ("v", [value])], infos))
    assert [(event["kind"], event["after"]) for event in events(message)] == [
        ("insert", ["1", text])
    ]
    [written] = encode(shape_row(infos), row("insert", after=["1", text]), profile="operations")
    value_json = string("v") + string(compact({"value": value}))
    assert value_json in written
    assert [event["after"] for event in events(written)] == [["1", text]]


REFUSED = [
    (1, 0, b"128", 128, "range"),
    (3, 128, b"-1", -1, "number"),
    (3, 0, b"", 1.5, "number"),
    (13, 128, b"1900", 1900, "range"),
    (5, 0, b"NaN", None, "number"),
    (10, 0, b"2021-02-29", "2021-02-29", "temporal"),
    (12, 0, b"2021-01-01", "2021-01-01", "temporal"),
    (11, 0, b"900:00:00", "900:00:00", "temporal"),
    (246, 0, b"1e5", "1e5", "number"),
    (225, 0, b"1", "1", "number"),
    (15, 0, b"\xff", None, "utf8"),
    (255, 0, b"x", "x", "type"),
]


@pytest.mark.parametrize("code, flags, data, value, expected", REFUSED)
def test_a_value_that_its_column_cannot_have_is_refused(code, flags, data, value, expected):
    info = column("v", code, flags)
    assert fault(document([("v", code, data)], [info])) == expected
    if value is not None:
        assert fault(operations(operation(INSERT, [("v", [value])], [info]))) == expected


@pytest.mark.parametrize(
    "code, flags, value, expected",
    [
        (3, 0, compact({"value": "1"}), "type"),
        (15, 0, compact({"value": 1}), "type"),
        (15, 0, compact({"value": True}), "type"),
        (15, 0, compact({"value": [1]}), "type"),
        (15, 1, compact({"value": "=="}), "base64"),
        (15, 0, "{}", "missing"),
        (15, 0, compact({"other": 1}), "missing"),
        (15, 0, '{"value":"a","value":"b"}', "trailing"),
        (15, 0, '{"value":"a"} x', "trailing"),
        (15, 0, '{"value":"a', "truncated"),
        (15, 0, "1", "type"),
        (15, 0, "", "truncated"),
    ],
)
def test_a_value_must_be_the_only_member_of_an_object(code, flags, value, expected):
    message = operations(operation(INSERT, [("v", value)], [column("v", code, flags)]))
    assert fault(message) == expected


@pytest.mark.parametrize("profile", ["document", "operations"])
@pytest.mark.parametrize(
    "code, flags, text",
    [
        (1, 0, "128"),
        (3, 0, "x"),
        (3, 128, "-1"),
        (13, 193, "1"),
        (5, 0, "NaN"),
        (252, 1, "!"),
        (6, 0, "1"),
    ],
)
def test_a_text_without_a_form_on_the_wire_is_refused_by_name(profile, code, flags, text):
    with pytest.raises(EncodeError) as caught:
        encode(shape_row([column("v", code, flags)]), row("insert", after=[text]), profile=profile)
    assert caught.value.field == "v"


# --- columns ---------------------------------------------------------------------------------------


def test_what_is_said_of_columns_makes_the_shape():
    infos = [ID, column("v", 15, 64, "varchar(10)") | {"zone": "UTC"}]
    [schema, event] = decode(document([("id", 3, b"1"), ("v", 15, b"x")], infos))
    assert json.loads(schema["schema"])["columns"] == infos
    assert (event["database"], event["table"], event["commit_ts"]) == ("d", "t", TS)


def test_the_order_of_values_does_not_matter():
    infos = [ID, column("v", 15, 64)]
    values = [("id", 3, b"1"), ("v", 15, b"x")]
    found = events(document(values, infos), document(values[::-1], infos))
    assert [event["after"] for event in found] == [["1", "x"]] * 2
    assert len({event["shape"] for event in found}) == 1


def test_columns_without_a_value_are_not_carried():
    infos = [ID, column("v", 15, 64)]
    [schema, event] = decode(document([("v", 15, b"x")], infos))
    assert [told["name"] for told in json.loads(schema["schema"])["columns"]] == ["v"]
    assert event["after"] == ["x"]


def test_without_a_word_of_columns_the_values_types_count():
    values = [("i", 8, b"18446744073709551615"), ("n", NULL, b""), ("s", 15, b"x")]
    [schema, event] = decode(document(values, []))
    assert event["after"] == ["18446744073709551615", None, "x"]
    assert json.loads(schema["schema"])["columns"] == [
        {"name": "i", "type": "bigint", "code": 8},
        {"name": "n"},
        {"name": "s", "type": "varchar", "code": 15},
    ]


def test_the_column_info_of_tidb_is_understood():
    info = {
        "id": 1,
        "name": {"O": "Id", "L": "id"},
        "offset": 0,
        "origin_default": None,
        "type": {"Tp": 8, "Flag": 0b100011, "Flen": 20, "Charset": "binary", "Elems": None},
        "state": 5,
    }
    other = {"name": {"O": "v", "L": "v"}, "type": {"Tp": 252, "Flag": 0, "Charset": "utf8mb4"}}
    [schema, event] = decode(
        operations(operation(INSERT, [("Id", [7]), ("v", ["x"])], [info, other]))
    )
    assert event["after"] == ["7", "x"]
    assert json.loads(schema["schema"])["columns"] == [
        {"name": "Id", "type": "bigint unsigned", "code": 8, "flags": 1 | 2 | 8 | 128, "key": True},
        {"name": "v", "type": "text", "code": 252, "flags": 64},
    ]


def test_operations_are_written_with_the_column_info_of_tidb():
    [message] = encode(shape_row([ID]), row("insert", after=["1"]), profile="operations")
    content = message[22:-4]
    info = json.loads(content[content.index(b'{"id"') :])
    assert (info["name"], info["offset"], info["state"]) == ({"O": "id", "L": "id"}, 0, 5)
    assert (info["type"]["Tp"], info["type"]["Flag"]) == (
        3,
        1 | 2 | 128,
    )  # not null, primary, binary


@pytest.mark.parametrize(
    "infos, expected",
    [
        ([column("other", 3)], "columns"),
        ([column("v", 3), column("v", 3)], "duplicate"),
        ([column("v", 8)], "type"),
        ([column("v", 99)], "type"),
        ([{"code": 3}], "missing"),
        ([column("v", 300)], "range"),
        ([{"name": "v", "flags": -1}], "range"),
        ([{"name": 1}], "type"),
        (['{"name":"v","name":"v"}'], "duplicate"),
        (["[]"], "type"),
        (["{} x"], "trailing"),
    ],
)
def test_what_is_said_of_columns_must_fit_the_values(infos, expected):
    assert fault(document([("v", 3, b"1")], infos)) == expected


# --- operations ------------------------------------------------------------------------------------


def test_operations_say_what_was_done():
    values, infos = [("id", [1])], [ID]
    message = operations(*(operation(kind, values, infos) for kind in (INSERT, UPDATE, DELETE)))
    assert [(event["kind"], event["after"], event["before"]) for event in events(message)] == [
        ("insert", ["1"], None),
        ("update", ["1"], None),
        ("delete", None, ["1"]),
    ]
    rows = [row("insert", after=["1"]), row("update", after=["1"], before=["1"])]
    rows.append(row("delete", before=["1"]))
    [written] = encode(shape_row([ID]), *rows, profile="operations")
    assert events(written) == events(message)


def test_a_message_is_a_transaction_or_a_part_of_one():
    rows = [row("insert", after=[str(n)], commit_ts=TS + n // 3) for n in range(5)]
    batch = pa.RecordBatch.from_pylist([shape_row([ID]), *rows], schema=CHANGE_SCHEMA)
    for settings_, expected in (
        ({}, [3, 2]),
        ({"max_batch_size": 2}, [2, 1, 2]),
        ({"max_message_bytes": 400}, [1] * 5),
    ):
        encoded = encode_batch("cdc", batch, profile="operations", **settings_)
        assert encoded["events"].to_pylist() == expected
        found = events(*encoded["value"].to_pylist())
        assert [event["after"] for event in found] == [[str(n)] for n in range(5)]
    assert encode_batch("cdc", batch)["events"].to_pylist() == [1] * 5


def test_a_delete_carries_what_its_row_carries():
    infos = [ID, column("v", 15, 64)]
    delete = row("delete", before=["1", None], before_missing=b"\x02")
    [message] = encode(shape_row(infos), delete, profile="operations")
    assert [event["before"] for event in events(message)] == [["1"]]


# --- DDL -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "told, job",
    [
        ({"type": "CREATE", "code": 3, "query": "CREATE TABLE t (a INT)"}, {"type": 3}),
        ({"type": "ALTER", "code": None, "query": 'x "quoted" é\n'}, {"type": "ALTER"}),
    ],
)
@pytest.mark.parametrize("profile", ["document", "operations"])
def test_a_ddl_keeps_its_query_and_type(told, job, profile):
    message = ddl(compact({"query": told["query"], **job}))
    [event] = events(message)
    assert (event["kind"], event["commit_ts"], event["ddl"]) == ("ddl", TS, told)
    assert encode(row("ddl", shape=None, ddl=told), profile=profile) == [message]


@pytest.mark.parametrize(
    "job, told",
    [
        ("DROP TABLE t", {"type": "QUERY", "code": None, "query": "DROP TABLE t"}),
        ("", {"type": "QUERY", "code": None, "query": ""}),
        (
            compact({"id": 9, "type": 4, "schema_id": 1, "query": "q", "binlog": {"a": [1]}}),
            {"type": "ERASE", "code": 4, "query": "q"},
        ),
        (compact({"query": "q"}), {"type": "QUERY", "code": None, "query": "q"}),
    ],
)
def test_a_job_is_plain_sql_or_tidbs_json(job, told):
    [event] = events(ddl(job))
    assert event["ddl"] == told


def test_empty_names_of_a_ddl_are_null():
    [event] = events(ddl("CREATE DATABASE d", table=""))
    assert (event["database"], event["table"]) == ("d", None)
    [event] = events(ddl("q", database="", table=""))
    assert (event["database"], event["table"]) == (None, None)


# --- what is refused -------------------------------------------------------------------------------

VALUE = [("id", 3, b"1")]
ROW = document_row(VALUE, [ID])
MALFORMED = {
    "another magic": (header(DML, magic=MAGIC + 1) + sealed(ROW), "magic"),
    "version 2": (header(DML, version=2) + sealed(ROW), "version"),
    "a timestamp over 63 bits": (header(DML, ts=2**63) + sealed(ROW), "range"),
    "a message of no kind": (header(2) + sealed(ROW), "kind"),
    "a header only": (header(DML), "truncated"),
    "half a header": (header(DML)[:9], "truncated"),
    "another checksum": (header(DML) + sealed(ROW, crc=0), "checksum"),
    "a length too large": (header(DML) + sealed(ROW, length=len(ROW) + 1), "length"),
    "a length too small": (header(DML) + sealed(ROW, length=len(ROW) - 1), "trailing"),
    "something behind the message": (header(DML) + sealed(ROW) + b"x", "trailing"),
    "something behind the row": (header(DML) + sealed(ROW + b"x"), "trailing"),
    "half a row": (header(DML) + sealed(ROW[:10]), None),
    "no values": (document([], [ID]), "columns"),
    "more values than can be": (
        header(DML) + sealed(string("d") + string("t") + be32(2**31)),
        "length",
    ),
    "more columns than can be": (
        header(DML) + sealed(document_row(VALUE, [])[:-4] + be32(2**31)),
        "length",
    ),
    "a value twice": (document([*VALUE, *VALUE], [ID]), "duplicate"),
    "a NULL with data": (document([("id", NULL, b"1")], [ID]), "type"),
    "a name that is not UTF-8": (header(DML) + sealed(string(b"\xff") + ROW[2:]), "utf8"),
    "an operation of no kind": (operations(operation(4, [("id", [1])], [ID])), "kind"),
    "a row too few": (operations(operation(INSERT, [("id", [1])], [ID]), count=2), "length"),
    "a row too many": (operations(operation(INSERT, [("id", [1])], [ID]), count=0), "trailing"),
    "a job without a query": (ddl("{}"), "missing"),
    "a job that is not JSON": (ddl("{"), "truncated"),
    "a job of no type": (ddl(compact({"query": "q", "type": 256})), "range"),
    "a job with two queries": (ddl('{"query":"a","query":"b"}'), "duplicate"),
    "a job that is not UTF-8": (
        header(DDL) + sealed(string("d") + string("t") + string(b"\xff")),
        "utf8",
    ),
}


@pytest.mark.parametrize("message, expected", MALFORMED.values(), ids=MALFORMED)
def test_what_does_not_fit_together_is_refused(message, expected):
    assert expected in (fault(message), None)


@pytest.mark.parametrize("value", [None, b""])
def test_an_empty_message_is_refused(value):
    [event] = decode_batch("cdc", None, [value]).to_pylist()
    assert event["error"]["code"] == "empty"


def test_the_profile_can_be_fixed():
    one = document(VALUE, [ID])
    other = operations(operation(INSERT, [("id", [1])], [ID]))
    assert [event["kind"] for event in events(one, other)] == ["insert"] * 2
    assert [event["kind"] for event in events(one, other, encoding="document")] == [
        "insert",
        "error",
    ]
    assert [event["kind"] for event in events(one, other, encoding="operations")] == [
        "error",
        "insert",
    ]
    with pytest.raises(ConfigError):
        decode(one, encoding="json")


@pytest.mark.parametrize(
    "wire", [document(VALUE, [ID]), operations(operation(DELETE, [("id", [1])], [ID])), ddl("q")]
)
def test_no_flipped_bit_and_no_cut_gets_through(wire):
    damaged = [
        wire[:byte] + bytes([wire[byte] ^ 1 << bit]) + wire[byte + 1 :]
        for byte in [*range(5), *range(13, len(wire))]  # the timestamp has no checksum
        for bit in range(8)
    ]
    damaged += [wire[:length] for length in range(len(wire))]
    assert {event["kind"] for event in events(*damaged)} == {"error"}


@pytest.mark.parametrize(
    "rows, error",
    [
        ([row("insert", after=["1"])], SchemaNotSeen),
        ([shape_row([ID]), row("insert", shape=None, after=["1"])], EncodeError),
        ([shape_row([ID]), row("insert", after=["1", "2"])], EncodeError),
        ([shape_row([ID]), row("insert", after=None)], EncodeError),
        ([shape_row([ID]), row("insert", after=["1"], commit_ts=None)], EncodeError),
        ([shape_row([{"name": "a"}]), row("insert", after=["1"])], EncodeError),
        ([shape_row([column("a", 99)]), row("insert", after=["1"])], EncodeError),
        ([row("ddl", shape=None, ddl=None)], EncodeError),
        ([row("error", shape=None)], EncodeError),
    ],
)
def test_what_cannot_be_written_is_said(rows, error):
    with pytest.raises(error):
        encode(*rows)


def test_the_document_has_no_deletes_and_names_the_profile_that_has():
    with pytest.raises(EncodeError, match='profile "operations"'):
        encode(shape_row([ID]), row("delete", before=["1"]))


def test_the_document_writes_updates_as_their_new_row():
    update = row("update", after=["2"], before=["1"])
    assert encode(shape_row([ID]), update) == encode(shape_row([ID]), row("insert", after=["2"]))


@pytest.mark.parametrize("profile", ["document", "operations"])
def test_watermarks_are_left_out(profile):
    assert encode(row("watermark", shape=None, database=None, table=None), profile=profile) == []


def test_options_of_other_protocols_are_refused():
    with pytest.raises(UnsupportedByProtocol):
        encode(compression="lz4")


# --- there and back --------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=40)
FORMS = {
    (1, 0): st.integers(-128, 127).map(str),
    (8, 193): st.integers(0, 2**64 - 1).map(str),
    (12, 65): st.datetimes().map(lambda at: at.isoformat(" ")),
    (246, 65): st.decimals(allow_nan=False, allow_infinity=False, places=4).map("{:f}".format),
    (15, 64): texts,
    (252, 65): st.binary(max_size=40).map(lambda value: b64encode(value).decode()),
    (245, 65): texts,
}


@st.composite
def changes(draw) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    tables = []
    for number in range(draw(st.integers(1, 3))):
        names = draw(st.lists(texts, min_size=1, max_size=6, unique=True))
        forms = draw(
            st.lists(st.sampled_from(list(FORMS)), min_size=len(names), max_size=len(names))
        )
        columns = [column(name, *form) for name, form in zip(names, forms, strict=True)]
        rows.append(shape_row(columns, shape=number, table=f"t{number}"))
        tables.append(st.tuples(*(st.none() | FORMS[form] for form in forms)).map(list))
    for _ in range(draw(st.integers(1, 8))):
        number = draw(st.integers(0, len(tables) - 1))
        kind = draw(st.sampled_from(["insert", "update", "delete"]))
        side = "before" if kind == "delete" else "after"
        rows.append(
            row(
                kind,
                shape=number,
                table=f"t{number}",
                commit_ts=draw(st.integers(TS, TS + 2)),
                **{side: draw(tables[number])},
            )
        )
    return rows


SAME = ("kind", "commit_ts", "database", "table", "after", "before")


def same(event: dict[str, Any]) -> dict[str, Any]:
    return {name: event.get(name) for name in SAME}


@settings(max_examples=100, deadline=None)
@given(changes(), st.integers(1, 20))
def test_operations_written_are_read_again(rows, max_batch_size):
    messages = encode(*rows, profile="operations", max_batch_size=max_batch_size)
    expected = [same(event) for event in rows if event["kind"] != "schema"]
    assert [same(event) for event in events(*messages)] == expected
    assert [same(event) for message in messages for event in events(message)] == expected


@settings(max_examples=100, deadline=None)
@given(changes())
def test_documents_written_are_read_again_as_inserts(rows):
    rows = [event for event in rows if event["kind"] != "delete"]
    expected = [same(event) | {"kind": "insert"} for event in rows if event["kind"] != "schema"]
    assert [same(event) for event in events(*encode(*rows))] == expected
