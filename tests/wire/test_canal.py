"""Canal-JSON: what its messages mean, in both directions, and what is refused."""

import json
import random
from base64 import b64decode, b64encode
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import corpus
from tidegate.model import (
    ConfigError,
    EncodeError,
    EventFlag,
    SchemaNotSeen,
    UnsupportedByProtocol,
)
from tidegate.wire import (
    CHANGE_SCHEMA,
    EventReader,
    ShapeBook,
    decode_batch,
    encode_batch,
    to_json_events,
)
from tidegate.wire.kernel.claim_check import unpack

MS = 1639633141221
TS = (MS << 18) + 7
NOW = 1639633142960


def dumps(message: Any) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def dml(kind: str = "INSERT", *, types: dict[str, str], **members: Any) -> dict[str, Any]:
    """A message of rows, members in TiCDC's order."""
    message = {
        "id": 0,
        "database": "d",
        "table": "t",
        "pkNames": ["id"],
        "isDdl": False,
        "type": kind,
        "es": MS,
        "ts": NOW,
        "sql": "",
        "sqlType": dict.fromkeys(types, 12),
        "mysqlType": types,
        "old": None,
        "data": None,
        "_tidb": {"commitTs": TS},
    }
    return message | members


def decode(*messages: Any) -> list[dict[str, Any]]:
    values = [value if isinstance(value, bytes | None) else dumps(value) for value in messages]
    batch = decode_batch("canal-json", None, values)
    batch.validate(full=True)
    return batch.to_pylist()


def events(*messages: Any) -> list[dict[str, Any]]:
    return [row for row in decode(*messages) if row["kind"] != "schema"]


def documents(values: list[bytes]) -> list[dict[str, Any]]:
    """Events by names of columns, with the message they came from."""
    offsets = pa.array(range(len(values)), pa.int64())
    return list(to_json_events([decode_batch("canal-json", None, values, offsets=offsets)]))


def one_by_one(values: list[bytes]) -> list[dict[str, Any]]:
    """The same, each message decoded by a decoder that has seen no other."""
    return [
        event | {"offset": offset}
        for offset, value in enumerate(values)
        for event in documents([value])
    ]


def fault(message: Any) -> tuple[str, int]:
    [event] = events(message)
    assert event["kind"] == "error", event
    return event["error"]["code"], event["error"]["position"]


# --- batches ---------------------------------------------------------------------------------------


def shape_row(*columns: dict[str, Any], number: int = 1, table: str = "t") -> dict[str, Any]:
    return {
        "event": -1,
        "kind": "schema",
        "flags": 0,
        "database": "d",
        "table": table,
        "shape": number,
        "schema": json.dumps({"columns": columns}),
    }


def row(kind: str, **members: Any) -> dict[str, Any]:
    common = {"event": 0, "flags": 0, "commit_ts": TS, "database": "d", "table": "t", "shape": 1}
    return common | {"kind": kind} | members


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=CHANGE_SCHEMA)


def encode(*rows: dict[str, Any], **options: Any) -> list[bytes]:
    options = {"enable_tidb_extension": True, "build_ts": NOW} | options
    encoded = encode_batch("canal-json", batch(*rows), **options)
    assert encoded["key"].null_count == len(encoded)
    return encoded["value"].to_pylist()


INT_ID = {"name": "id", "type": "int", "key": True}


# --- the document's examples -----------------------------------------------------------------------

TP_INT = {
    "c_bigint": "bigint",
    "c_int": "int",
    "c_mediumint": "mediumint",
    "c_smallint": "smallint",
    "c_tinyint": "tinyint",
    "id": "int",
}
TP_INT_ROW = {
    "c_bigint": "9223372036854775807",
    "c_int": "2147483647",
    "c_mediumint": "8388607",
    "c_smallint": "32767",
    "c_tinyint": "127",
    "id": "2",
}
TP_INT_SQL = {
    "c_bigint": -5,
    "c_int": 4,
    "c_mediumint": 4,
    "c_smallint": 5,
    "c_tinyint": -6,
    "id": 4,
}
INSERT = dml(types=TP_INT, database="test", table="tp_int", sqlType=TP_INT_SQL, data=[TP_INT_ROW])
DDL = {
    "id": 0,
    "database": "test",
    "table": "",
    "pkNames": None,
    "isDdl": True,
    "type": "QUERY",
    "es": 1639633094670,
    "ts": 1639633095489,
    "sql": "drop database if exists test",
    "sqlType": None,
    "mysqlType": None,
    "data": None,
    "old": None,
    "_tidb": {"commitTs": 429918007904436226},
}
WATERMARK = DDL | {
    "database": "",
    "isDdl": False,
    "type": "TIDB_WATERMARK",
    "es": 1640007049196,
    "ts": 1640007050284,
    "sql": "",
    "_tidb": {"watermarkTs": 429918007904436226},
}


def test_the_documents_insert():
    schema, event = decode(INSERT)
    assert (event["kind"], event["database"], event["table"]) == ("insert", "test", "tp_int")
    assert (event["commit_ts"], event["after"], event["before"]) == (
        TS,
        [*TP_INT_ROW.values()],
        None,
    )
    assert json.loads(schema["schema"])["columns"] == [
        {"name": name, "type": kind} | ({"key": True} if name == "id" else {})
        for name, kind in TP_INT.items()
    ]


def test_the_documents_ddl_and_watermark():
    ddl, watermark = events(DDL, WATERMARK)
    assert (ddl["kind"], ddl["commit_ts"]) == ("ddl", 429918007904436226)
    assert (ddl["database"], ddl["table"]) == ("test", None)
    assert ddl["ddl"] == {"type": "QUERY", "code": None, "query": "drop database if exists test"}
    assert (watermark["kind"], watermark["commit_ts"]) == ("watermark", 429918007904436226)
    assert (watermark["database"], watermark["table"], watermark["shape"]) == (None, None, None)


@pytest.mark.parametrize("message", [INSERT, DDL, WATERMARK], ids=["insert", "ddl", "watermark"])
def test_the_documents_examples_are_written_as_they_were_read(message):
    es = message["_tidb"].get("commitTs") or message["_tidb"]["watermarkTs"]
    expected = dumps(message | {"es": es >> 18, "ts": NOW})
    changes = decode_batch("canal-json", None, [dumps(message)])
    encoded = encode_batch("canal-json", changes, enable_tidb_extension=True, build_ts=NOW)
    assert encoded["value"].to_pylist() == [expected]


def test_the_documents_bytes_of_a_varbinary():
    raw = bytes([5, 7, 10, 15, 36, 50, 43, 99, 120, 60, 38, 255, 254, 45, 55, 70])
    told = r'"\u0005\u0007\n\u000f$2+cx\u003c\u0026ÿþ-7F"'.encode()
    message = dumps(dml(types={"id": "int", "b": "varbinary"}, data=[{"id": "1", "b": "B"}]))
    [event] = events(message.replace(b'"B"', told))
    assert b64decode(event["after"][1]) == raw
    columns = INT_ID, {"name": "b", "type": "varbinary"}
    [value] = encode(shape_row(*columns), row("insert", after=["1", b64encode(raw).decode()]))
    assert told in value


# --- values ----------------------------------------------------------------------------------------

# type, the string on the wire (as JSON), text in the batch, sqlType
VALUES = [
    ("tinyint", '"-128"', "-128", -6),
    ("tinyint(1)", '"127"', "127", -6),
    ("tinyint unsigned", '"127"', "127", -6),
    ("tinyint unsigned", '"128"', "128", 5),
    ("tinyint(3) unsigned", '"255"', "255", 5),
    ("smallint", '"-32768"', "-32768", 5),
    ("smallint unsigned", '"32767"', "32767", 5),
    ("smallint unsigned", '"65535"', "65535", 4),
    ("mediumint", '"-8388608"', "-8388608", 4),
    ("mediumint unsigned", '"16777215"', "16777215", 4),
    ("int", '"2147483647"', "2147483647", 4),
    ("int", '"-2147483648"', "-2147483648", 4),
    ("int unsigned", '"2147483648"', "2147483648", -5),
    ("int unsigned zerofill", '"4294967295"', "4294967295", -5),
    ("bigint", '"-9223372036854775808"', "-9223372036854775808", -5),
    ("bigint", '"9223372036854775807"', "9223372036854775807", -5),
    ("bigint unsigned", '"9223372036854775807"', "9223372036854775807", -5),
    ("bigint unsigned", '"9223372036854775808"', "9223372036854775808", 3),
    ("bigint(20) unsigned", '"18446744073709551615"', "18446744073709551615", 3),
    ("bigint unsigned", "null", None, -5),
    ("bit", '"18446744073709551615"', "18446744073709551615", -7),
    ("year", '"2155"', "2155", 12),
    ("year(4)", '"0"', "0", 12),
    ("enum", '"65535"', "65535", 4),
    ("enum('blob','it''s','int unsigned')", '"3"', "3", 4),
    ("set", '"9223372036854775808"', "9223372036854775808", -7),
    ("set('a','b')", '"3"', "3", -7),
    ("float", '"1.5"', "1.5", 7),
    ("float(10,2)", '"-0"', "-0", 7),
    ("double", '"0.0000001"', "0.0000001", 8),
    ("double unsigned", '"' + "9" * 309 + '"', "9" * 309, 8),
    ("decimal", '"-99999999.99"', "-99999999.99", 3),
    ("decimal(65,30)", '"' + "1" * 35 + "." + "0" * 30 + '"', "1" * 35 + "." + "0" * 30, 3),
    ("decimal unsigned", '"0"', "0", 3),
    ("date", '"2020-02-29"', "2020-02-29", 91),
    ("date", '"0000-00-00"', "0000-00-00", 91),
    ("datetime", '"2020-00-31 23:59:59"', "2020-00-31 23:59:59", 93),
    ("datetime(6)", '"9999-12-31 23:59:59.999999"', "9999-12-31 23:59:59.999999", 93),
    ("timestamp", '"1970-01-01 00:00:01"', "1970-01-01 00:00:01", 93),
    ("time", '"-838:59:59"', "-838:59:59", 92),
    ("time(3)", '"00:00:00.001"', "00:00:00.001", 92),
    ("char", '""', "", 1),
    ("varchar(20)", r'"\u003ca\u003e\u0026\t\r\n\\\""', '<a>&\t\r\n\\"', 12),
    ("varchar", r'"\u0000\u0008\u000c\u001f"', "\0\b\f\x1f", 12),
    ("varchar", '"é€𝄞 /\x7f"', "é€𝄞 /\x7f", 12),
    ("varchar", r'"a\u2028\u2029b"', "a\u2028\u2029b", 12),
    ("tinytext", '"tiny"', "tiny", 2005),
    ("text", '"' + "x" * 5000 + '"', "x" * 5000, 2005),
    ("mediumtext", '"m"', "m", 2005),
    ("longtext", '"l"', "l", 2005),
    ("binary", '"ÿ"', "/w==", 2004),
    ("binary(3)", r'"a\u0000\u0080"'.replace("\\u0080", "\x80"), "YQCA", 2004),
    ("varbinary", '""', "", 2004),
    ("tinyblob", '"abc"', "YWJj", 2004),
    ("blob", r'"\"\u003cÿ"', "Ijz/", 2004),
    ("mediumblob", '"' + "é" * 100 + '"', b64encode(b"\xe9" * 100).decode(), 2004),
    ("longblob", "null", None, 2004),
    ("json", r'"{\"k\": [1, null]}"', '{"k": [1, null]}', 12),
    ("vector", '"[1.5,2,-30000000000]"', "[1.5,2,-30000000000]", 12),
    ("vector(3)", '"[]"', "[]", 12),
]


@pytest.mark.parametrize("kind, wire, text, sql_type", VALUES)
def test_a_value_has_one_form_on_the_wire_and_one_in_text(kind, wire, text, sql_type):
    kinds = {"id": "int", "v": kind}
    raw = dumps(
        dml(types=kinds, sqlType={"id": 4, "v": sql_type}, data=[{"id": "1", "v": "VALUE"}])
    ).replace(b'"VALUE"', wire.encode())
    # Twice: the second message is predicted by the first.
    first, second = events(raw, raw)
    assert (first["kind"], first["after"]) == ("insert", ["1", text])
    assert second == first
    encoded = encode(
        shape_row(INT_ID, {"name": "v", "type": kind}),
        row("insert", after=["1", text]),
        content_compatible=True,
    )
    assert encoded == [raw]


# What others than TiCDC send: other spellings of the same values.
OTHER_SPELLINGS = [
    ("double", "1.0E10", "10000000000"),
    ("double", "1.50", "1.5"),
    ("float", "-1.0E-3", "-0.001"),
    ("FLOAT", "100.0", "100"),
    ("VARBINARY(3)", "ÿ", "/w=="),
    ("INT(11) UNSIGNED", "5", "5"),
    ("Long VarBinary", "ÿ", "/w=="),
    ("decimal(10, 4)", "1.0000", "1.0000"),
    ("double precision", "2", "2"),
    ("year", "0000", "0000"),
    ("geometry", "whatever", "whatever"),
    ("new_type(1)", "ÿ", "ÿ"),
    ("", "ÿ", "ÿ"),
]


@pytest.mark.parametrize("kind, wire, text", OTHER_SPELLINGS)
def test_other_spellings_of_values_and_types(kind, wire, text):
    message = dml(types={"id": "int", "v": kind}, data=[{"id": "1", "v": wire}])
    first, second = events(message, message)
    assert first["after"] == second["after"] == ["1", text]


REFUSED_VALUES = [
    ("tinyint", "128", "range"),
    ("tinyint", "-129", "range"),
    ("tinyint unsigned", "256", "range"),
    ("tinyint unsigned", "-1", "number"),
    ("smallint", "32768", "range"),
    ("mediumint unsigned", "16777216", "range"),
    ("int", "2147483648", "range"),
    ("int", "-2147483649", "range"),
    ("int unsigned", "4294967296", "range"),
    ("bigint", "9223372036854775808", "range"),
    ("bigint", "-9223372036854775809", "range"),
    ("bigint unsigned", "18446744073709551616", "range"),
    ("bigint", "1" * 40, "range"),
    ("enum", "65536", "range"),
    ("int", "", "number"),
    ("int", "-", "number"),
    ("int", "1.5", "number"),
    ("int", "1a", "number"),
    ("int", "+1", "number"),
    ("int", " 1", "number"),
    ("bigint", "1" * 16 + "x", "number"),
    ("bit", "0x1", "number"),
    ("set", "a,b", "number"),
    ("year", "1900", "range"),
    ("year", "2156", "range"),
    ("year", "20200", "number"),
    ("decimal", "1e5", "number"),
    ("decimal", ".5", "number"),
    ("decimal", "5.", "number"),
    ("decimal", "1.2.3", "number"),
    ("decimal", "", "number"),
    ("double", "NaN", "number"),
    ("double", "1e999", "number"),
    ("float", "", "number"),
    ("vector", "[1,]", "number"),
    ("date", "2021-02-29", "temporal"),
    ("date", "2021-11-31", "temporal"),
    ("date", "2021-1-1", "temporal"),
    ("date", "2021-13-01", "temporal"),
    ("datetime", "2021-01-02 24:00:00", "temporal"),
    ("datetime", "2021-01-02T00:00:00", "temporal"),
    ("datetime", "2021-01-02 00:00:00.", "temporal"),
    ("datetime", "2021-01-02 00:00:00.1234567", "temporal"),
    ("timestamp", "", "temporal"),
    ("time", "839:00:00", "temporal"),
    ("time", "00:60:00", "temporal"),
    ("blob", "\u0100", "binary"),
    ("varbinary", "a\ufffdb", "binary"),
]


@pytest.mark.parametrize("kind, wire, code", REFUSED_VALUES)
def test_a_value_that_its_column_cannot_have_is_refused(kind, wire, code):
    kinds = {"id": "int", "v": kind}
    bad = dumps(dml(types=kinds, data=[{"id": "1", "v": wire}]))
    assert fault(bad) == (code, bad.index(b'"v":', bad.index(b'"data"')) + 4)
    good = dml(types=kinds, data=[{"id": "1", "v": None}])
    assert [event["kind"] for event in events(good, bad, good)] == ["insert", "error", "insert"]
    if not kind.startswith(("blob", "varbinary")):
        with pytest.raises(EncodeError) as refused:
            encode(shape_row(INT_ID, {"name": "v", "type": kind}), row("insert", after=["1", wire]))
        assert refused.value.field == "v"


@pytest.mark.parametrize("kind", ["medyumblob", "varbinarx binary", "BLOBB"])
def test_a_type_that_may_or_may_not_be_binary_is_refused(kind):
    """TiCDC takes any name with `blob` or `binary` in it for bytes."""
    kinds = {"id": "int", "v": kind}
    bad = dml(types=kinds, data=[{"id": "1", "v": "x"}])
    assert fault(bad)[0] == "value"
    good = dml(types=kinds, data=[{"id": "1", "v": None}])
    assert [event["kind"] for event in events(good, bad, good)] == ["insert", "error", "insert"]


@pytest.mark.parametrize("name", ["Old", "DATA", "mysqltype", "isDDL", "_TiDB", "pknames"])
def test_a_member_whose_name_is_known_in_another_case_is_refused(name):
    assert fault(INSERT | {name: None})[0] == "name"
    assert fault({name: None} | INSERT)[0] == "name"


def test_in_the_extension_too():
    told = INSERT | {"_tidb": {"commitTs": TS, "OnlyHandleKey": True}}
    assert fault(told)[0] == "name"


def test_a_binary_value_that_is_not_base64_is_not_written():
    with pytest.raises(EncodeError, match=r"d\.t\.b") as refused:
        encode(shape_row(INT_ID, {"name": "b", "type": "blob"}), row("insert", after=["1", "a!"]))
    assert (refused.value.table, refused.value.field) == ("t", "b")


@pytest.mark.parametrize("text, wire", [("1.50", "1.5"), ("1e3", "1000"), ("-0.0", "-0")])
def test_floats_are_written_as_go_spells_them(text, wire):
    columns = shape_row(INT_ID, {"name": "v", "type": "double"})
    [value] = encode(columns, row("insert", after=["1", text]))
    assert json.loads(value)["data"] == [{"id": "1", "v": wire}]


# --- rows ------------------------------------------------------------------------------------------

AB = {"id": "int", "a": "varchar", "b": "int"}


def missing(event: dict[str, Any]) -> list[int] | None:
    bits = event["before_missing"]
    return (
        None if bits is None else [i for i in range(8 * len(bits)) if bits[i >> 3] >> (i & 7) & 1]
    )


def test_an_update_has_both_rows():
    old, data = {"id": "1", "a": "x", "b": None}, {"id": "1", "a": None, "b": "2"}
    [event] = events(dml("UPDATE", types=AB, old=[old], data=[data]))
    assert (event["kind"], event["before"], event["after"]) == (
        "update", ["1", "x", None], ["1", None, "2"],
    )  # fmt: skip
    assert missing(event) is None


@pytest.mark.parametrize(
    "old, before, left_out",
    [
        ({"a": "x"}, [None, "x", None], [0, 2]),
        ({"b": None}, [None, None, None], [0, 1]),
        ({"id": "1", "b": "7"}, ["1", None, "7"], [1]),
        ({}, [None, None, None], [0, 1, 2]),
        ({"b": "3", "a": None}, [None, None, "3"], [0]),
    ],
)
def test_what_old_leaves_out_is_not_null(old, before, left_out):
    data = {"id": "1", "a": "y", "b": "2"}
    full = dml("UPDATE", types=AB, old=[data], data=[data])
    message = dml("UPDATE", types=AB, old=[old], data=[data])
    # Alone, and predicted by a message that leaves nothing out.
    for event in (events(message)[0], events(full, message)[1]):
        assert (event["kind"], event["before"], missing(event)) == ("update", before, left_out)
        assert event["after"] == ["1", "y", "2"]


def test_more_than_eight_columns_left_out():
    kinds = {f"c{i}": "int" for i in range(20)}
    data = dict.fromkeys(kinds, "1")
    first, second = events(
        *[dml("UPDATE", types=kinds, old=[{"c9": "2"}], data=[data], pkNames=["c0"])] * 2
    )
    assert missing(first) == missing(second) == [i for i in range(20) if i != 9]
    assert first["before_missing"] == second["before_missing"] == b"\xff\xfd\x0f"


def test_a_delete_is_the_row_before():
    data = {"id": "1", "a": "x", "b": None}
    plain, before_5_4 = events(
        dml("DELETE", types=AB, data=[data]), dml("DELETE", types=AB, data=[data], old=[data])
    )
    assert (plain["kind"], plain["before"], plain["after"]) == ("delete", ["1", "x", None], None)
    assert before_5_4 | {"shape": None} == plain | {"shape": None}


@pytest.mark.parametrize("old", [None, [None], [{}], []])
def test_an_insert_has_no_row_before(old):
    [event] = events(dml(types=AB, data=[{"id": "1", "a": "x", "b": None}], old=old))
    assert (event["kind"], event["before"]) == ("insert", None)


@pytest.mark.parametrize("old", [None, [None]])
def test_an_update_may_come_without_the_row_before(old):
    message = dml("UPDATE", types=AB, data=[{"id": "1", "a": "x", "b": None}], old=old)
    [event] = events(message)
    assert (event["kind"], event["before"], missing(event)) == ("update", None, None)


@pytest.mark.parametrize("data", [[], [{}]])
def test_a_row_without_columns_is_no_event(data):
    assert events(dml(types={}, data=data)) == []


def test_data_may_be_one_row_without_brackets():
    [event] = events(dml(types=AB, data={"id": "1", "a": "x", "b": None}))
    assert event["after"] == ["1", "x", None]


def test_the_official_canal():
    """Members by name, many rows, only what changed in `old`, members that TiCDC does not have."""
    message = {
        "data": [
            {"id": "1", "price": "1.0000", "f": "1.0E10"},
            {"id": "2", "price": None, "f": "2.5"},
        ],
        "database": "shop",
        "es": MS,
        "gtid": "5f2a:1-7",
        "id": 41,
        "isDdl": False,
        "mysqlType": {"id": "int", "price": "decimal(10, 4)", "f": "float"},
        "old": [{"price": "0.5000"}, {"f": None}],
        "pkNames": ["id"],
        "sql": "",
        "sqlType": {"id": 4, "price": 3, "f": 7},
        "table": "orders",
        "ts": NOW,
        "type": "UPDATE",
    }
    schema, first, second = decode(message)
    assert json.loads(schema["schema"])["columns"][1] == {"name": "price", "type": "decimal(10, 4)"}
    assert (first["kind"], first["event"], second["event"]) == ("update", 0, 1)
    assert first["commit_ts"] == second["commit_ts"] == MS << 18
    assert first["after"] == ["1", "1.0000", "10000000000"]
    assert (first["before"], missing(first)) == ([None, "0.5000", None], [0, 2])
    assert second["after"] == ["2", None, "2.5"]
    assert (second["before"], missing(second)) == ([None, None, None], [0, 1])


def test_rows_of_one_message_may_have_their_own_columns():
    rows = [{"id": "1", "a": "x"}, {"a": "y", "id": "2"}, {"id": "3"}]
    found = documents([dumps(dml(types={"id": "int", "a": "varchar"}, data=rows))])
    assert [event["after"] for event in found] == rows
    assert len({event["shape"] for event in found}) == 3


# --- the extension ---------------------------------------------------------------------------------

ONE = {"types": {"id": "int"}, "data": [{"id": "1"}]}


def test_without_the_extension_the_commit_ts_has_only_milliseconds():
    message = dml(**ONE)
    del message["_tidb"]
    assert [event["commit_ts"] for event in events(message, message)] == [MS << 18] * 2
    assert events(message | {"_tidb": None})[0]["commit_ts"] == MS << 18


@pytest.mark.parametrize(
    "extension, found",
    [
        ({"commitTs": TS}, {}),
        ({"commitTs": TS, "onlyHandleKey": True}, {"flags": EventFlag.HANDLE_KEY_ONLY}),
        ({"commitTs": TS, "onlyHandleKey": False}, {}),
        (
            {"commitTs": TS, "claimCheckLocation": "s3://b/é.json"},
            {"flags": EventFlag.CLAIM_CHECK, "claim_check": "s3://b/é.json"},
        ),
        ({"commitTs": TS, "rowkey": "dIAA"}, {}),
        ({"commitTs": TS, "tableId": 71}, {"table_id": 71}),
        ({"tableId": 71, "commitTs": TS, "partitionId": 73}, {"table_id": 73}),
        ({"commitTs": TS, "tableId": 71, "partitionId": 0}, {"table_id": 71}),
        ({"commitTs": TS, "checksum": {"current": [1]}, "origin_ts": 5}, {}),
        ({"commitTs": 2**63 - 1}, {"commit_ts": 2**63 - 1}),
        ({"commitTs": 0}, {"commit_ts": 0}),
    ],
)
def test_members_of_the_extension(extension, found):
    plain, told = events(dml(**ONE), dml(**ONE, _tidb=extension))
    assert told == plain | found


@pytest.mark.parametrize(
    "extension, code",
    [
        ({}, "missing"),
        ({"commitTS": TS}, "name"),
        ({"watermarkTs": TS}, "missing"),
        ({"commitTs": 2**63}, "range"),
        ({"commitTs": -1}, "range"),
        ({"commitTs": 1.5}, "range"),
        ({"commitTs": "1"}, "type"),
        ({"commitTs": None}, "type"),
        ({"commitTs": TS, "onlyHandleKey": 1}, "type"),
        ({"commitTs": TS, "claimCheckLocation": None}, "type"),
        ([TS], "type"),
    ],
)
def test_a_bad_extension_is_refused(extension, code):
    good, bad = events(dml(**ONE), dml(**ONE, _tidb=extension))
    assert (good["kind"], bad["kind"], bad["error"]["code"]) == ("insert", "error", code)


@pytest.mark.parametrize(
    "es, code", [(-1, "range"), (2**45, "range"), ("1", "type"), (1.5, "range"), (None, "type")]
)
def test_a_bad_es_is_refused(es, code):
    message = dml(**ONE, es=es)
    del message["_tidb"]
    assert fault(message)[0] == code


# --- any order -------------------------------------------------------------------------------------


def shuffled(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict):
        names = list(value)
        chance.shuffle(names)
        return {name: shuffled(value[name], chance) for name in names}
    return [shuffled(item, chance) for item in value] if isinstance(value, list) else value


NAMES = ["id", "a", "b", "a_long_column_name_that_does_not_fit_a_block_of_bytes", "é", 'q"<', "n7"]
WIDE = dict(
    zip(
        NAMES,
        ["bigint", "varchar", "blob", "datetime", "decimal", "int unsigned", "enum"],
        strict=True,
    )
)
WIDE_DATA = ["1", "x\\\n", "ÿ", "2020-01-01 00:00:00", "-1.50", "4294967295", None]
WIDE_OLD = ["1", "", None, "2020-01-01 00:00:00.5", "0", "1", "3"]


def wide(kind: str) -> dict[str, Any]:
    return dml(
        kind,
        types=WIDE,
        pkNames=["id", "é", "no such column"],
        data=[dict(zip(NAMES, WIDE_DATA, strict=True))],
        old=[dict(zip(NAMES, WIDE_OLD, strict=True))] if kind == "UPDATE" else None,
    )


@pytest.mark.parametrize("kind", ["INSERT", "UPDATE", "DELETE"])
def test_members_may_come_in_any_order_and_spelling(kind):
    chance = random.Random(kind)
    original = wide(kind)
    [expected] = documents([dumps(original)])
    assert set(expected["keys"]) == {"id", "é"}
    values = []
    for number in range(100):
        message = shuffled(original, chance)
        separators = [(",", ":"), (" ,\t", "\r:\n ")][number % 2]
        values.append(
            json.dumps(message, ensure_ascii=number % 3 == 0, separators=separators).encode()
        )
    for found in documents(values):
        found["keys"].sort()
        different = {"shape", "offset", "keys"}
        assert {k: v for k, v in found.items() if k not in different} == {
            k: v for k, v in expected.items() if k not in different
        }


def test_the_columns_are_in_the_order_of_data():
    kinds = {"z": "int", "a": "int", "m": "int"}
    data = {"m": "1", "z": "2", "a": "3"}
    message = dml(types=kinds, sqlType={"m": 4, "z": 4, "a": 4}, data=[data])
    [event] = documents([dumps(message)])
    assert list(event["after"]) == ["m", "z", "a"]


def test_shuffled_messages_have_one_shape():
    """Where data and sqlType disagree the order says nothing, and the columns are ordered by name."""
    chance = random.Random(3)
    values = [dumps(shuffled(wide("INSERT"), chance)) for _ in range(50)]
    found = [event for event in documents(values) if list(event["after"]) == sorted(NAMES)]
    assert len(found) > 45
    assert len({event["shape"] for event in found}) == 1


def test_no_sql_type_at_all():
    message = dml(**ONE, sqlType=None)
    assert events(message)[0]["after"] == ["1"]


# --- what is refused -------------------------------------------------------------------------------

GOOD = dumps(dml("UPDATE", types=AB, data=[{"id": "1", "a": "x", "b": "2"}],
                 old=[{"id": "1", "a": "y", "b": "2"}]))  # fmt: skip


@pytest.mark.parametrize("value", [None, b""])
def test_an_empty_message_is_refused(value):
    assert fault(value) == ("empty", 0)


@pytest.mark.parametrize(
    "before, after, code",
    [
        (b'"type":"UPDATE",', b"", "missing"),
        (b'"database":"d",', b"", "missing"),
        (b'"table":"t"', b'"table":null', "missing"),
        (b'"data":[{"id":"1","a":"x","b":"2"}]', b'"data":null', "missing"),
        (b'"mysqlType":{"id":"int","a":"varchar","b":"int"}', b'"mysqlType":null', "missing"),
        (b'"type":"UPDATE"', b'"type":"UPSERT"', "kind"),
        (b'"type":"UPDATE"', b'"type":"QUERY"', "kind"),
        (b'"type":"UPDATE"', b'"type":null', "type"),
        (b'"isDdl":false', b'"isDdl":true', "kind"),
        (b'"isDdl":false', b'"isDdl":0', "type"),
        (b'"id":0', b'"id":"0"', "type"),
        (b'"id":0', b'"id":00', "number"),
        (b'"ts":', b'"ts":x', "type"),
        (b'"es":', b'"es":1,"es":', "duplicate"),
        (b'"data":', b'"data":[],"data":', "duplicate"),
        (b'"commitTs":', b'"commitTs":1,"commitTs":', "duplicate"),
        (b'"data":[{"id":"1"', b'"data":[{"id":"1","id":"1"', "duplicate"),
        (b'"old":[{"id":"1"', b'"old":[{"id":"1","id":"1"', "duplicate"),
        (b'"mysqlType":{"id":"int"', b'"mysqlType":{"id":"int","id":"int"', "duplicate"),
        (b'"pkNames":["id"]', b'"pkNames":["id","id"]', "duplicate"),
        (b'"pkNames":["id"]', b'"pkNames":"id"', "type"),
        (b'"pkNames":["id"]', b'"pkNames":[1]', "type"),
        (b'"mysqlType":{"id":"int",', b'"mysqlType":{', "columns"),
        (b'"mysqlType":{"id":"int"', b'"mysqlType":{"id":null', "type"),
        (b'"mysqlType":{"id":"int"', b'"mysqlType":{"id":4', "type"),
        (b'"sqlType":{"id":12', b'"sqlType":{"id":"12"', "type"),
        (b'"sqlType":{"id":12', b'"sqlType":{"id":1.5', "range"),
        (b'"sqlType":{"id":12', b'"sqlType":{"id":012', "number"),
        (b'"sqlType":{', b'"sqlType":[{', "type"),
        (b'"data":[{"id":"1"', b'"data":[{"id":1', "type"),
        (b'"data":[{"id":"1"', b'"data":[{"id":true', "type"),
        (b'"data":[{"id":"1"', b'"data":[{"id":["1"]', "type"),
        (b'"data":[{', b'"data":[null,{', "columns"),
        (b'"data":[{"id":"1","a":"x","b":"2"}]', b'"data":[null]', "type"),
        (b'"data":[{"id":"1","a":"x","b":"2"}]', b'"data":"x"', "type"),
        (b'"old":[{"id":"1"', b'"old":[{"c":"1"', "columns"),
        (b'"old":[{"id":"1"', b'"old":[{"c":"1","id":"1"', "columns"),
        (b'"old":[{', b'"old":[{},{', "columns"),
        (b'"a":"x"', b'"a":"\xff"', "utf8"),
        (b'"a":"x"', b'"a":"\xed\xa0\x80"', "utf8"),
        (b'"a":"x"', rb'"a":"\ud800"', "escape"),
        (b'"a":"x"', rb'"a":"\x"', "escape"),
        (b'"a":"x"', b'"a":"\n"', "syntax"),
        (b'"a":"x"', b'"a":nul', "type"),
        (b'"a":"x",', b'"a":"x",,', "syntax"),
        (b'"a":"x",', b'"a":"x"', "syntax"),
        (b'"a":"x"', b'"a";"x"', "syntax"),
        (b'{"id":0', b'[{"id":0', "type"),
        (b'"sql":""', b'"sql":[' + b"[" * 99, "type"),
        (b'"sql":""', b'"more":' + b"[" * 99, "depth"),
    ],
)  # fmt: skip
def test_a_bad_message_is_refused(before, after, code):
    assert [event["kind"] for event in events(GOOD)] == ["update"]
    bad = GOOD.replace(before, after, 1)
    assert bad != GOOD
    assert fault(bad)[0] == code
    # Also where a prediction is at hand.
    good, refused, again = events(GOOD, bad, GOOD)
    assert (good["kind"], refused["kind"], again["kind"]) == ("update", "error", "update")
    assert refused["error"]["code"] == code


def test_an_insert_with_a_row_before_is_refused():
    data = {"id": "1", "a": "x", "b": "2"}
    assert fault(dml(types=AB, data=[data], old=[data]))[0] == "columns"


@pytest.mark.parametrize("more", [b"x", b"{}", b"\0", b"}"])
def test_nothing_may_follow(more):
    assert fault(GOOD + more) == ("trailing", len(GOOD))
    assert [event["kind"] for event in events(GOOD, GOOD + more)] == ["update", "error"]


@pytest.mark.parametrize("more", [b"\r\n", b" ", b"\n\n"])
def test_a_line_end_may_follow(more):
    """v6.5 put one behind every message."""
    first, second = events(GOOD, GOOD + more)
    assert first == second


@pytest.mark.parametrize(
    "change, code",
    [
        ({"sql": None}, "missing"),
        ({"type": "INSERT"}, "kind"),
        ({"type": "TIDB_WATERMARK"}, "kind"),
        ({"_tidb": {}}, "missing"),
        ({"sql": 1}, "type"),
    ],
)
def test_a_bad_ddl_is_refused(change, code):
    assert fault(DDL | change)[0] == code


def test_a_watermark_needs_its_ts():
    assert fault(WATERMARK | {"_tidb": {"commitTs": TS}})[0] == "missing"
    assert fault(WATERMARK | {"_tidb": None})[0] == "missing"


@pytest.mark.parametrize("name", ["database", "table"])
def test_a_ddl_may_lack_names(name):
    without = {k: v for k, v in DDL.items() if k != name}
    for message in (DDL | {name: ""}, DDL | {name: None}, without):
        assert events(message)[0][name] is None


def test_too_many_columns_are_refused():
    kinds = {f"c{i}": "int" for i in range(4097)}
    assert fault(dml(types=kinds, data=[dict.fromkeys(kinds, "1")]))[0] == "columns"


def test_many_columns_with_names_alike():
    kinds = {f"column_with_a_long_name_{i}": "int" for i in range(3000)}
    data = [dict.fromkeys(kinds, "1")]
    message = dml("UPDATE", types=kinds, data=data, old=data)
    first, second = events(message, message)
    assert first["after"] == second["before"] == ["1"] * 3000


# --- prediction ------------------------------------------------------------------------------------


def test_predicted_messages_read_as_they_do_alone():
    """All kinds of events of several tables, in one stream and one by one."""
    values = [message.value for message in corpus.messages("types.canal.ext")]
    values += [message.value for message in corpus.messages("types.canal.updcols")]
    values += [message.value for message in corpus.messages("types.canal.delhk")]
    random.Random(1).shuffle(values)
    assert documents(values) == one_by_one(values)


@pytest.mark.parametrize("kind", ["INSERT", "UPDATE", "DELETE"])
def test_a_message_does_not_go_on_in_the_next_one(kind):
    """The two halves of a message lie side by side in memory; neither is one."""
    value = dumps(wide(kind))
    for cut in range(1, len(value)):
        good, first, second = events(value, value[:cut], value[cut:] + b" " * 80)[:3]
        assert (good["kind"], first["kind"], second["kind"]) == (kind.lower(), "error", "error")


@pytest.mark.parametrize("kind", ["INSERT", "UPDATE"])
def test_every_change_of_a_byte_reads_as_it_does_alone(kind):
    value = dumps(wide(kind))
    values = [value]
    for place in range(len(value)):
        for byte in b'"\\}0\xc3':
            values += [value[:place] + bytes([byte]) + value[place + 1 :]]
        values += [value[:place] + value[place + 1 :], value[: place + 1] + value[place:]]
    found = {event["offset"]: event for event in documents(values)}
    alone = {event["offset"]: event for event in one_by_one(values)}
    assert found == alone


@pytest.mark.parametrize("number", [2**64, 2**63, -(2**63) - 1, 10**30])
def test_sql_type_out_of_range_is_refused_after_good_messages(number):
    # The number of an unsigned column depends on its value, so that it is no part of a prediction.
    types = {"id": "int unsigned", "name": "varchar"}
    good = dml(types=types, sqlType={"id": 4, "name": 12}, data=[{"id": "1", "name": "a"}])
    bad = good | {"sqlType": {"id": number, "name": 12}}
    alone = events(bad)
    assert [event["kind"] for event in alone] == ["error"]
    assert events(good, good, bad)[2]["error"] == alone[0]["error"]


def test_mysql_type_is_compared_entry_by_entry():
    """Of the same length, of the same entries, and yet another table."""
    kinds = {"a1": "int", "a2": "bit", "a3": "int"}
    data = [dict.fromkeys(kinds, "1")]
    good = dumps(dml(types=kinds, data=data))
    same = dumps(dml(types={"a3": "int", "a1": "int", "a2": "bit"}, data=data))
    same = same.replace(
        b'"sqlType":{"a3":12,"a1":12,"a2":12}', b'"sqlType":{"a1":12,"a2":12,"a3":12}'
    )
    other = good.replace(b'"a1":"int","a2":"bit"', b'"a1":"bit","a2":"int"')
    twice = good.replace(b'"a3":"int"}', b'"a1":"int"}')
    found = documents([good, same, other, twice, good])
    assert [event["kind"] for event in found] == ["insert"] * 3 + ["error", "insert"]
    assert found[0]["shape"] == found[1]["shape"] == found[4]["shape"] != found[2]["shape"]
    assert found[2]["types"] == {"a1": "bit", "a2": "int", "a3": "int"}
    assert found[3]["error"]["code"] == "duplicate"


def test_more_tables_than_are_remembered():
    values = [
        dumps(dml(types={"id": "int", f"c{number % 400}": "varchar"}, table=f"t{number % 300}",
                  data=[{"id": str(number), f"c{number % 400}": "x"}]))
        for number in range(2000)
    ]  # fmt: skip
    found = documents(values)
    assert [event["after"]["id"] for event in found] == [str(number) for number in range(2000)]
    assert [event["table"] for event in found] == [f"t{number % 300}" for number in range(2000)]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
binaries = st.binary(max_size=40).map(lambda raw: b64encode(raw).decode())
numbers = st.integers(-(2**63), 2**63 - 1).map(str)
COLUMNS = [
    ("bigint", numbers),
    ("bigint unsigned", st.integers(0, 2**64 - 1).map(str)),
    ("tinyint unsigned", st.integers(0, 255).map(str)),
    ("varchar(40)", texts),
    ("blob", binaries),
    ("decimal(20,4)", st.decimals(-(10**15), 10**15, places=4).map(lambda d: format(d, "f"))),
    ("datetime(6)", st.datetimes().map(lambda d: d.strftime("%Y-%m-%d %H:%M:%S.%f").zfill(26))),
    ("date", st.dates().map(lambda d: d.isoformat())),
    ("enum('a','b')", st.integers(0, 65535).map(str)),
    ("json", texts),
]


@st.composite
def batches(draw) -> list[dict[str, Any]]:
    """Rows of up to three tables."""
    rows, shapes = [], []
    for number in range(1, draw(st.integers(1, 3)) + 1):
        names = draw(st.lists(texts.filter(bool), min_size=1, max_size=6, unique=True))
        kinds = [draw(st.sampled_from(COLUMNS)) for _ in names]
        columns = [
            {"name": name, "type": kind} | ({"key": True} if draw(st.booleans()) else {})
            for name, (kind, _) in zip(names, kinds, strict=True)
        ]
        table = draw(texts)
        shapes.append(shape_row(*columns, number=number, table=table))
        sides = st.tuples(*(st.none() | values for _, values in kinds)).map(list)
        for _ in range(draw(st.integers(1, 6))):
            kind = draw(st.sampled_from(["insert", "update", "delete"]))
            members = {"kind": kind, "table": table, "shape": number}
            if kind != "delete":
                members["after"] = draw(sides)
            if kind != "insert":
                members["before"] = draw(sides)
            if kind == "update":
                bits = draw(st.integers(0, 2 ** len(names) - 1))
                if bits:
                    members["before_missing"] = bytes([bits])
                    members["before"] = [
                        None if bits >> i & 1 else text for i, text in enumerate(members["before"])
                    ]
            rows.append(row(commit_ts=draw(st.integers(0, 2**63 - 1)), **members))
    draw(st.randoms()).shuffle(rows)
    return shapes + rows


@settings(max_examples=150, deadline=None)
@given(batches(), st.booleans())
def test_there_and_back(rows, compatible):
    original = batch(*rows)
    options = {"enable_tidb_extension": True, "content_compatible": compatible}
    values = encode_batch("canal-json", original, **options)["value"].to_pylist()
    ignored = {"shape", "offset", "types", "event"}
    expected = [
        {name: value for name, value in event.items() if name not in ignored}
        for event in to_json_events([original])
    ]
    if compatible:  # `old` then has only what changed
        for event in expected:
            if event["kind"] == "update":
                event["before"] = {
                    name: text
                    for name, text in event["before"].items()
                    if text != event["after"][name]
                }
    for found in (documents(values), one_by_one(values)):
        assert [
            {name: value for name, value in event.items() if name not in ignored} for event in found
        ] == expected


# --- encoding --------------------------------------------------------------------------------------

COLUMNS_AB = (
    INT_ID,
    {"name": "a", "type": "varchar(20)"},
    {"name": "b", "type": "int(10) unsigned"},
)
UPDATE_AB = row("update", before=["1", "x", None], after=["1", "y", None])


def test_the_order_of_members_is_ticdcs():
    [value] = encode(shape_row(*COLUMNS_AB), UPDATE_AB)
    assert value == dumps(
        dml(
            "UPDATE",
            types={"id": "int", "a": "varchar", "b": "int unsigned"},
            sqlType={"id": 4, "a": 12, "b": 4},
            old=[{"id": "1", "a": "x", "b": None}],
            data=[{"id": "1", "a": "y", "b": None}],
        )
    )


def test_without_the_extension():
    rows = shape_row(*COLUMNS_AB), UPDATE_AB, row("watermark", shape=None)
    [value] = encode(*rows, enable_tidb_extension=False)
    assert json.loads(value)["es"] == MS
    assert list(json.loads(value))[-1] == "data"
    assert value.endswith(b"}]}")


@pytest.mark.parametrize(
    "options, types, old",
    [
        (
            {"only_output_updated_columns": True},
            {"id": "int", "a": "varchar", "b": "int unsigned"},
            [{"a": "x"}],
        ),
        (
            {"content_compatible": True},
            {"id": "int", "a": "varchar(20)", "b": "int(10) unsigned"},
            [{"a": "x"}],
        ),
    ],
)
def test_only_what_changed(options, types, old):
    same = row("update", before=["1", "x", "2"], after=["1", "x", "2"])
    from_null = row("update", before=["1", None, "2"], after=["1", "", None])
    found = [
        json.loads(value)
        for value in encode(shape_row(*COLUMNS_AB), UPDATE_AB, same, from_null, **options)
    ]
    assert found[0]["mysqlType"] == types
    assert [message["old"] for message in found] == [old, [{}], [{"a": None, "b": "2"}]]


def test_what_before_does_not_carry_is_not_written():
    update = UPDATE_AB | {"before_missing": b"\x05"}
    [value] = encode(shape_row(*COLUMNS_AB), update)
    assert json.loads(value)["old"] == [{"a": "x"}]


def test_an_update_without_before():
    [value] = encode(shape_row(*COLUMNS_AB), row("update", after=["1", "y", None]))
    assert json.loads(value)["old"] is None


def test_deletes_of_the_handle_key_only():
    delete = row("delete", before=["1", "x", "4294967295"])
    whole, handle = (
        json.loads(
            encode(
                shape_row(*COLUMNS_AB), delete, delete_only_output_handle_key_columns=handle_only
            )[0]
        )
        for handle_only in (False, True)
    )
    assert (whole["sqlType"], whole["old"]) == ({"id": 4, "a": 12, "b": -5}, None)
    assert handle["data"] == [{"id": "1"}]
    assert (handle["sqlType"], handle["mysqlType"]) == ({"id": 4}, {"id": "int"})


def test_pk_names_are_those_of_the_primary_key():
    """The handle key of a table without a primary key is a unique key, which pkNames does not tell."""
    unique = {"name": "u", "type": "int", "code": 3, "flags": 1 | 2 | 16, "key": True}
    delete = row("delete", before=["1", "2"])
    columns = shape_row(unique, {"name": "v", "type": "int", "code": 3, "flags": 65})
    [value] = encode(columns, delete, delete_only_output_handle_key_columns=True)
    assert (json.loads(value)["pkNames"], json.loads(value)["data"]) == ([], [{"u": "1"}])


def test_names_are_escaped_as_easyjson_does():
    columns = {"name": 'a<&"\b\u2028é', "type": "int", "key": True}
    [value] = encode(shape_row(columns, table="<t>"), row("insert", table="<t>", after=["1"]))
    assert rb'"data":[{"a\u003c\u0026\"\u0008\u2028' + "é".encode() + rb'":"1"}]' in value
    assert rb'"table":"\u003ct\u003e"' in value
    assert rb'"pkNames":["a\u003c\u0026\"\u0008\u2028' in value


@pytest.mark.parametrize(
    "ddl, word",
    [
        ({"type": "CREATE", "code": 3, "query": "create table t"}, "CREATE"),
        ({"type": None, "code": 5, "query": "alter"}, "ALTER"),
        ({"type": None, "code": None, "query": "DROP TABLE t"}, "ERASE"),
        ({"type": None, "code": None, "query": "what is this"}, "QUERY"),
    ],
)
def test_ddl(ddl, word):
    [value] = encode(row("ddl", shape=None, ddl=ddl, table=None))
    assert value == dumps(
        DDL
        | {"database": "d", "type": word, "es": MS, "ts": NOW, "sql": ddl["query"]}
        | {"_tidb": {"commitTs": TS}}
    )


LARGE = row("insert", after=["1", "x" * 400, "7"])


def test_a_message_over_the_limit_is_refused():
    [value] = encode(shape_row(*COLUMNS_AB), LARGE)
    assert encode(shape_row(*COLUMNS_AB), LARGE, max_message_bytes=len(value) + 36) == [value]
    with pytest.raises(EncodeError, match="max-message-bytes"):
        encode(shape_row(*COLUMNS_AB), LARGE, max_message_bytes=len(value) + 35)


def test_the_handle_key_of_a_large_row():
    large = {"large_message_handle": "handle-key-only", "max_message_bytes": 400}
    small, handle = encode(shape_row(*COLUMNS_AB), UPDATE_AB | {"before": None}, LARGE, **large)
    assert "onlyHandleKey" not in json.loads(small)["_tidb"]
    assert json.loads(handle)["_tidb"] == {"commitTs": TS, "onlyHandleKey": True}
    assert json.loads(handle)["data"] == [{"id": "1"}]
    [event] = events(handle)
    assert (event["flags"], event["after"]) == (EventFlag.HANDLE_KEY_ONLY, ["1"])
    with pytest.raises(EncodeError, match="max-message-bytes"):
        encode(shape_row(*COLUMNS_AB), LARGE, **large | {"max_message_bytes": 100})


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("compression", [None, "snappy", "lz4"])
def test_a_large_row_kept_elsewhere(raw, compression):
    stored: list[bytes] = []

    def store(content: bytes) -> str:
        stored.append(content)
        return f"file:///large<&>/{len(stored)}.json"

    text = "".join(map(chr, random.Random(1).choices(range(0x4E00, 0x9FFF), k=400)))
    large = row("insert", after=["1", text, "7"])
    [value] = encode(
        shape_row(*COLUMNS_AB), large, large_message_handle="claim-check", claim_check=store,
        claim_check_raw_value=raw, compression=compression, max_message_bytes=500,
    )  # fmt: skip
    [full] = encode(shape_row(*COLUMNS_AB), large, compression=compression)
    assert [content if raw else unpack("", content)[1] for content in stored] == [full]
    options = {"compression": compression}
    reduced = decode_batch("canal-json", None, [value], **options).to_pylist()[-1]
    assert (reduced["claim_check"], reduced["after"]) == ("file:///large<&>/1.json", ["1"])
    assert reduced["flags"] == EventFlag.CLAIM_CHECK
    whole = decode_batch("canal-json", None, [value], claim_check=lambda _: stored[0], **options)
    assert whole.to_pylist()[-1]["after"] == ["1", text, "7"]


def test_rows_that_are_not_whole_stay_so():
    values = [
        dumps(dml(**ONE, _tidb={"commitTs": TS, "onlyHandleKey": True})),
        dumps(dml(**ONE, _tidb={"commitTs": TS, "claimCheckLocation": "s3://x"})),
    ]
    values = [value.replace(b'"id":12', b'"id":4') for value in values]
    changes = decode_batch("canal-json", None, values)
    again = encode_batch("canal-json", changes, enable_tidb_extension=True, build_ts=NOW)
    assert again["value"].to_pylist() == values
    with pytest.raises(EncodeError, match="not whole"):
        encode_batch("canal-json", changes)


@pytest.mark.parametrize("compression", ["snappy", "lz4"])
def test_every_message_is_compressed(compression):
    rows = shape_row(*COLUMNS_AB), UPDATE_AB, row("watermark", shape=None)
    values = encode(*rows, compression=compression)
    changes = decode_batch("canal-json", None, values, compression=compression)
    assert [kind for kind in changes["kind"].to_pylist() if kind != "schema"] == [
        "update",
        "watermark",
    ]


@pytest.mark.parametrize(
    "options, error",
    [
        ({"large_message_handle": "handle-key-only", "enable_tidb_extension": False},
         UnsupportedByProtocol),
        ({"large_message_handle": "claim-check"}, ConfigError),
        ({"encoding_format": "avro"}, UnsupportedByProtocol),
        ({"output_old_value": False}, UnsupportedByProtocol),
    ],
)  # fmt: skip
def test_options_that_canal_json_does_not_know(options, error):
    with pytest.raises(error):
        encode(shape_row(*COLUMNS_AB), UPDATE_AB, **options)


def test_the_generation_makes_no_difference():
    rows = shape_row(*COLUMNS_AB), UPDATE_AB
    assert encode(*rows, generation="new") == encode(*rows)


@pytest.mark.parametrize(
    "bad",
    [
        row("insert", after=["1"]),
        row("insert", before=["1", "x", "2"]),
        row("delete", after=["1", "x", "2"]),
        row("update", after=["1", "x", "2"], before=["1"]),
        row("insert", after=["1", "x", "2"], commit_ts=None),
        row("insert", after=["1", "x", "2"], shape=None),
        row("error", shape=None),
    ],
)
def test_a_row_that_is_none_is_not_written(bad):
    with pytest.raises(EncodeError):
        encode(shape_row(*COLUMNS_AB), bad)


def test_a_shape_must_be_known():
    with pytest.raises(SchemaNotSeen) as unknown:
        encode(row("insert", after=["1"], shape=9))
    assert (unknown.value.database, unknown.value.table, unknown.value.shape) == ("d", "t", 9)
    with pytest.raises(SchemaNotSeen):
        encode(shape_row({"name": "id"}), row("insert", after=["1"]))


def test_types_with_parameters_from_a_table_schema():
    """Simple's rows name columns only; the schema of their version tells the rest."""
    schema = {
        "schema": "d", "table": "t", "tableID": 1, "version": 5,
        "columns": [
            {"name": "id", "dataType": {"mysqlType": "int", "charset": "binary", "length": 10,
                                        "unsigned": True}, "nullable": False},
            {"name": "e", "dataType": {"mysqlType": "enum", "charset": "utf8mb4", "length": 1,
                                       "elements": ["a", "b"]}, "nullable": True},
        ],
        "indexes": [{"name": "primary", "unique": True, "primary": True, "nullable": False,
                     "columns": ["id"]}],
    }  # fmt: skip
    changes = batch(
        row("schema", shape=None, schema=json.dumps({"tableSchema": schema})),
        shape_row({"name": "e"}, {"name": "id"}),
        row("insert", after=["2", "1"], schema_version=5),
    )
    book = ShapeBook([changes])
    options = {"shapes": book, "build_ts": NOW}
    [plain] = encode_batch("canal-json", changes, **options)["value"].to_pylist()
    [full] = encode_batch("canal-json", changes, content_compatible=True, **options)[
        "value"
    ].to_pylist()
    assert json.loads(plain)["mysqlType"] == {"e": "enum", "id": "int unsigned"}
    assert json.loads(full)["mysqlType"] == {"e": "enum('a','b')", "id": "int(10) unsigned"}
    assert json.loads(plain)["pkNames"] == ["id"]


def test_events_for_people():
    _, event = EventReader().events(decode_batch("canal-json", None, [GOOD]))
    assert (event.before["a"], event.after["a"], event.keys) == ("y", "x", ("id",))
