"""The Avro encoding of the Simple protocol, both ways, with fastavro as the other side."""

from __future__ import annotations

import json
import random
import struct
from base64 import b64encode
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import corpus
from tests.support.avro_schema import NAMESPACE, SIMPLE_AVRO_SCHEMA
from tidegate.model import ConfigError, EncodeError, EventFlag, SchemaNotSeen, TableSchema
from tidegate.wire import CHANGE_SCHEMA, EncodeOptions, ShapeBook
from tidegate.wire.batch.reader import BatchReader
from tidegate.wire.codec import decoder as codec
from tidegate.wire.codec.messages import MessageBuilder
from tidegate.wire.kernel.claim_check import unpack
from tidegate.wire.kernel.compression import compress, decompress
from tidegate.wire.simple.avro.decode import SimpleAvroDecoder
from tidegate.wire.simple.avro.encode import SimpleAvroEncoder

SCHEMA = fastavro.parse_schema(SIMPLE_AVRO_SCHEMA)
COMMIT_TS, BUILD_TS, VERSION = 447984084414103554, 1708923662983, 447984074911121426

Json = dict[str, Any]


# --- the other side -------------------------------------------------------------------------------


def written(kind: str, payload: Json) -> bytes:
    """A message as fastavro writes it."""
    record = {"WATERMARK": "Watermark", "BOOTSTRAP": "Bootstrap"}.get(kind, kind)
    stream = BytesIO()
    message = {"type": kind, "payload": (f"{NAMESPACE}.{record}", {"version": 1, **payload})}
    fastavro.schemaless_writer(stream, SCHEMA, (f"{NAMESPACE}.Message", message))
    return stream.getvalue()


def read(message: bytes) -> Json:
    """A message as fastavro reads it: its payload, records of values as pairs of name and content."""
    stream = BytesIO(message)
    _, found = fastavro.schemaless_reader(stream, SCHEMA, return_record_name=True)
    assert stream.read() == b""
    name, payload = found["payload"]
    assert name.rpartition(".")[2].upper() == found["type"]
    return {"kind": found["type"], **payload}


def long(value: int) -> tuple[str, int]:
    return ("long", value)


def unsigned(value: int) -> tuple[str, Json]:
    return (f"{NAMESPACE}.UnsignedBigint", {"value": value})


def moment(value: str, location: str = "UTC") -> tuple[str, Json]:
    return (f"{NAMESPACE}.Timestamp", {"location": location, "value": value})


def row(kind: str, data: Json | None, old: Json | None, **members: Any) -> bytes:
    return written(
        "DML",
        {
            "database": "simple",
            "table": "user",
            "tableID": 148,
            "type": kind,
            "commitTs": COMMIT_TS,
            "buildTs": BUILD_TS,
            "schemaVersion": VERSION,
            "data": data,
            "old": old,
            **members,
        },
    )


# --- our side -------------------------------------------------------------------------------------


def decode(*values: bytes | None) -> pa.RecordBatch:
    batch = codec.decode(SimpleAvroDecoder(), None, codec.binary_array(list(values)))
    batch.validate(full=True)
    return batch


def events(batch: pa.RecordBatch) -> list[Json]:
    """The batch's events without the members that are null; rows with the names of their columns."""
    shapes = {}
    found = []
    for one in batch.to_pylist():
        if one["event"] < 0:
            shapes[one["shape"]] = json.loads(one["schema"])["columns"]
            continue
        event = {name: value for name, value in one.items() if value is not None}
        del event["event"]
        if one["shape"] is not None:
            event["columns"] = shapes[event.pop("shape")]
            names = [column["name"] for column in event["columns"]]
            missing = event.pop("before_missing", b"")
            for side in {"after", "before"} & event.keys():
                event[side] = dict(zip(names, event[side], strict=True))
            for index, name in enumerate(names):
                if missing and missing[index >> 3] >> (index & 7) & 1:
                    assert event["before"].pop(name) is None
        found.append(event)
    return found


def fault(message: bytes | None) -> tuple[str, int]:
    (event,) = events(decode(message))
    assert event["kind"] == "error"
    return event["error"]["code"], event["error"]["position"]


def encode(batch: pa.RecordBatch, shapes: ShapeBook | None = None, **options: Any) -> list[bytes]:
    compression = options.get("compression")
    options = {"encoding_format": "avro", "build_ts": BUILD_TS, **options}
    messages = MessageBuilder()
    encoder = SimpleAvroEncoder(
        EncodeOptions(**options),
        (lambda value: compress(compression, value)) if compression else None,
    )
    encoder.encode(BatchReader(batch), ShapeBook([batch]) if shapes is None else shapes, messages)
    found = messages.finish()
    assert found["key"].null_count == len(found)
    values: list[bytes] = found["value"].to_pylist()
    return values


# --- table schemas --------------------------------------------------------------------------------


def column(
    name: str, type_: str, default: Any = None, nullable: bool = True, **members: Any
) -> Json:
    """A column as Simple's JSON has it."""
    is_text = type_ in ("varchar", "char", "text", "enum", "set")
    data_type = {
        "mysqlType": type_,
        "charset": "utf8mb4" if is_text else "binary",
        "collate": "utf8mb4_bin" if is_text else "binary",
        "length": 11,
        **members,
    }
    return {"name": name, "dataType": data_type, "nullable": nullable, "default": default}


def table(*columns: Json, table_name: str = "user", version: int = VERSION) -> Json:
    primary = {"name": "primary", "unique": True, "primary": True, "nullable": False}
    return {
        "schema": "simple",
        "table": table_name,
        "tableID": 148,
        "version": version,
        "columns": list(columns),
        "indexes": [primary | {"columns": [columns[0]["name"]]}],
    }


INTEGERS = ["tinyint", "smallint", "mediumint", "int", "bigint"]
NUMERIC = [*INTEGERS, "decimal", "float", "double", "bit", "year"]


def in_avro(schema: Json, generation: str = "classic") -> Json:
    """The same schema as TiCDC puts it into Avro."""

    def data_type(told: Json) -> Json:
        name = told["mysqlType"]
        decimals = name == "decimal" or (name == "timestamp" and generation == "new")
        sign = name in NUMERIC
        return {
            "mysqlType": name,
            "charset": told["charset"],
            "collate": told["collate"],
            "length": told.get("length", 0),
            "decimal": told.get("decimal", 0) if decimals else None,
            "elements": told.get("elements", []) if name in ("enum", "set") else None,
            "unsigned": told.get("unsigned", False) if sign else None,
            "zerofill": told.get("zerofill", False) if sign else None,
        }

    def default(one: Json) -> str | None:
        if one["dataType"]["mysqlType"] == "bit" and one["default"] is not None:
            return chr(one["default"])
        return one["default"]

    columns = [
        one | {"dataType": data_type(one["dataType"]), "default": default(one)}
        for one in schema["columns"]
    ]
    return {
        "database": schema["schema"],
        **{name: value for name, value in schema.items() if name != "schema"},
        "columns": columns,
    }


USER = table(
    column("id", "int", nullable=False),
    column("name", "varchar", length=255),
    column("age", "int"),
    column("score", "float", length=12),
)
EVERY_TYPE = table(
    column("id", "bigint", nullable=False, unsigned=True, length=20),
    column("ti", "tinyint", "7", unsigned=True, zerofill=True, length=3),
    column("de", "decimal", "1.50", length=10, decimal=2),
    column("d0", "decimal", length=10),
    column("bi", "bit", 5, length=4, unsigned=True),
    column("dt", "datetime", "CURRENT_TIMESTAMP", length=26, decimal=6),
    column("d6", "datetime", length=19),
    column("ts", "timestamp", length=23, decimal=3),
    column("t", "time", length=12, decimal=1),
    column("ye", "year", "2001", unsigned=True, zerofill=True, length=4),
    column("e", "enum", "b", elements=["a", "b<&>\u2028\"'"], length=1),
    column("s", "set", elements=[], length=0),
    column("vb", "varbinary", "\0\ufffd", length=10),
    column("ve", "vector", length=-1),
    column("té 😀\n", "json", length=4294967295),
)


def without_nothing(schema: Json) -> Json:
    """Simple's JSON has no member for a length of 0 and for no elements."""
    empty = (0, [])
    columns = [
        one
        | {"dataType": {k: v for k, v in one["dataType"].items() if v not in empty or v is False}}
        for one in schema["columns"]
    ]
    return schema | {"columns": columns}


@pytest.mark.parametrize("generation", ["classic", "new"])
@pytest.mark.parametrize("schema", [USER, EVERY_TYPE], ids=["user", "every type"])
def test_bootstrap(schema, generation):
    message = written(
        "BOOTSTRAP", {"buildTs": BUILD_TS, "tableSchema": in_avro(schema, generation)}
    )
    batch = decode(message)
    (event,) = events(batch)
    text = event.pop("schema")
    assert event == {
        "kind": "schema",
        "database": "simple",
        "table": "user",
        "table_id": 148,
        "schema_version": VERSION,
        "flags": 0,
    }
    found = json.loads(text)["tableSchema"]
    expected = without_nothing(schema)
    assert without_nothing(found) == expected
    assert TableSchema.from_json(found) == TableSchema.from_json(expected)
    assert encode(batch, generation=generation) == [message]


def test_schemas_read_as_simples_own_json_text():
    message = written("BOOTSTRAP", {"buildTs": BUILD_TS, "tableSchema": in_avro(EVERY_TYPE)})
    text = decode(message)["schema"][0].as_py()
    assert text.startswith(
        '{"tableSchema":{"schema":"simple","table":"user","tableID":148,"version":447984074911121426,'
        '"columns":[{"name":"id","dataType":{"mysqlType":"bigint","charset":"binary","collate":"binary",'
        '"length":20,"unsigned":true},"nullable":false,"default":null},'
    )
    assert r'"elements":["a","b\u003c\u0026\u003e\u2028\"' in text
    assert text.endswith(
        '"indexes":[{"name":"primary","unique":true,"primary":true,"nullable":false,"columns":["id"]}]}}'
    )


@pytest.mark.parametrize(
    ("type_", "content", "default"),
    [
        ("bit", b"\x05", 5),
        ("bit", b"\xff", 255),
        ("bit", b"\xff" * 8, 2**64 - 1),
        ("bit", b"", ""),
        ("varbinary", b"\x00\xff\xe2\x82", "\0\ufffd\ufffd\ufffd"),
        ("varchar", "é😀".encode(), "é😀"),
    ],
)
def test_defaults_that_are_no_text(type_, content, default):
    """Avro would have a string here; TiCDC writes whatever bytes the default has."""
    mark = "A" * len(content)
    schema = table(column("id", "int"), column("c", type_))
    avro = in_avro(schema)
    avro["columns"][1]["default"] = mark
    message = written("BOOTSTRAP", {"buildTs": BUILD_TS, "tableSchema": avro})
    place = message.rindex(bytes([2, 2 * len(content)]) + mark.encode()) + 2
    message = message[:place] + content + message[place + len(content) :]
    batch = decode(message)
    found = json.loads(batch["schema"][0].as_py())["tableSchema"]["columns"][1]
    assert found["default"] == default
    if type_ == "bit":
        assert encode(batch) == [message]


DDL_WORDS = ["CREATE", "ALTER", "ERASE", "RENAME", "TRUNCATE", "CINDEX", "DINDEX", "QUERY"]


def ddl(word: str, schema: Json | None, before: Json | None, query: str = "DROP é") -> bytes:
    return written(
        "DDL",
        {
            "type": word,
            "sql": query,
            "commitTs": COMMIT_TS,
            "buildTs": BUILD_TS,
            "tableSchema": schema and in_avro(schema),
            "preTableSchema": before and in_avro(before),
        },
    )


@pytest.mark.parametrize("word", DDL_WORDS)
@pytest.mark.parametrize(
    ("schema", "before"),
    [(None, None), (USER, None), (None, USER), (EVERY_TYPE, table(*USER["columns"], version=1))],
)
def test_ddl(word, schema, before):
    message = ddl(word, schema, before)
    batch = decode(message)
    (event,) = events(batch)
    text = event.pop("schema", "{}")
    assert event.pop("ddl") == {"type": word, "code": None, "query": "DROP é"}
    names = {}
    if schema or before:
        names = {"database": "simple", "table": "user", "table_id": 148}
        names["schema_version"] = (schema or before)["version"]
    assert event == {"kind": "ddl", "commit_ts": COMMIT_TS, "flags": 0, **names}
    found = {name: without_nothing(one) for name, one in json.loads(text).items()}
    told = {"tableSchema": schema, "preTableSchema": before}
    assert found == {name: without_nothing(one) for name, one in told.items() if one}
    assert encode(batch) == [message]


@pytest.mark.parametrize(
    ("told", "generation", "word"),
    [
        ({"type": "CREATE"}, "classic", "CREATE"),
        ({"type": None, "code": 3}, "classic", "CREATE"),
        ({"type": None, "code": 42}, "classic", "QUERY"),
        ({"type": "QUERY", "code": 42}, "new", "ALTER"),
        ({"type": None, "query": "ALTER TABLE t ADD COLUMN c INT"}, "classic", "ALTER"),
        ({"type": "SOMETHING"}, "classic", "QUERY"),
    ],
)
def test_ddl_of_other_protocols(told, generation, word):
    told = {"code": None, "query": "", **told}
    event = {"event": 0, "kind": "ddl", "commit_ts": 5, "flags": 0, "ddl": told}
    (message,) = encode(pa.RecordBatch.from_pylist([event], CHANGE_SCHEMA), generation=generation)
    assert read(message)["type"] == word


def test_watermark():
    message = written("WATERMARK", {"commitTs": COMMIT_TS, "buildTs": BUILD_TS})
    assert message[:4] == b"\x16\x00\x00\x02"
    batch = decode(message)
    assert events(batch) == [{"kind": "watermark", "commit_ts": COMMIT_TS, "flags": 0}]
    assert encode(batch) == [message]


# --- rows -----------------------------------------------------------------------------------------

OLD = {"age": long(25), "id": long(1), "name": "John Doe", "score": ("float", 90.5)}
NEW = OLD | {"score": ("float", 95.0)}
OLD_TEXT = {"age": "25", "id": "1", "name": "John Doe", "score": "90.5"}
NEW_TEXT = OLD_TEXT | {"score": "95"}
FACTS = {
    "commit_ts": COMMIT_TS,
    "database": "simple",
    "table": "user",
    "table_id": 148,
    "schema_version": VERSION,
    "columns": [{"name": name} for name in ("age", "id", "name", "score")],
}
BOOTSTRAP = written("BOOTSTRAP", {"buildTs": BUILD_TS, "tableSchema": in_avro(USER)})
CHECKSUM = {"version": 2, "corrupted": False, "current": 2**32 - 1, "previous": 7}
KEY_FACTS = FACTS | {"columns": [{"name": "id"}]}

# message, event
ROWS = [
    (row("INSERT", OLD, None), {"kind": "insert", "after": OLD_TEXT, "flags": 0, **FACTS}),
    (
        row("UPDATE", NEW, OLD),
        {"kind": "update", "after": NEW_TEXT, "before": OLD_TEXT, "flags": 0, **FACTS},
    ),
    (row("DELETE", None, OLD), {"kind": "delete", "before": OLD_TEXT, "flags": 0, **FACTS}),
    (
        row("INSERT", {"id": long(1)}, None, handleKeyOnly=True),
        {"kind": "insert", "after": {"id": "1"}, "flags": 1, **KEY_FACTS},
    ),
    (
        row("DELETE", None, {"id": long(1)}, handleKeyOnly=True, claimCheckLocation="file:///é/a.json"),
        {"kind": "delete", "before": {"id": "1"}, "flags": 2, "claim_check": "file:///é/a.json", **KEY_FACTS},
    ),
    (
        row("UPDATE", NEW, OLD, checksum=CHECKSUM),
        {"kind": "update", "after": NEW_TEXT, "before": OLD_TEXT, "flags": 4, "checksum": CHECKSUM, **FACTS},
    ),
    (
        row("INSERT", OLD, None, checksum=CHECKSUM | {"corrupted": True}),
        {"kind": "insert", "after": OLD_TEXT, "flags": 36, "checksum": CHECKSUM | {"corrupted": True}, **FACTS},
    ),
    (
        row("UPDATE", NEW, {"id": long(1), "score": None}),
        {"kind": "update", "after": NEW_TEXT, "before": {"id": "1", "score": None}, "flags": 0, **FACTS},
    ),
    (row("UPDATE", NEW, {}), {"kind": "update", "after": NEW_TEXT, "before": {}, "flags": 0, **FACTS}),
    (
        row("INSERT", OLD, None, tableID=-1, schemaVersion=0, commitTs=0),
        {"kind": "insert", "after": OLD_TEXT, "flags": 0, **FACTS, "table_id": -1, "schema_version": 0, "commit_ts": 0},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("message", "event"), ROWS)
def test_rows(message, event):
    version = event["schema_version"]
    bootstrap = written(
        "BOOTSTRAP", {"buildTs": BUILD_TS, "tableSchema": in_avro(USER | {"version": version})}
    )
    batch = decode(bootstrap, message)
    assert events(batch)[1] == event
    assert [read(one) for one in encode(batch)] == [read(bootstrap), read(message)]


def test_maps_are_written_by_name_in_one_block():
    batch = decode(BOOTSTRAP, row("INSERT", dict(reversed(OLD.items())), None))
    message = encode(batch)[1]
    assert message == row("INSERT", dict(sorted(OLD.items())), None)
    assert message.startswith(b"\x16\x06\x06\x02\x0csimple\x08user\xa8\x02\x00")
    assert message.endswith(
        b"\x00\x00\x00\x02\x08\x06age\x02\x32\x04id\x02\x02\x08name\x08\x10John Doe"
        b"\x0ascore\x04\x00\x00\xb5\x42\x00\x00"
    )


@pytest.mark.parametrize(
    "kind, sides", [("INSERT", (1, 0)), ("UPDATE", (1, 1)), ("DELETE", (0, 1))]
)
def test_a_claim_check_needs_no_values(kind, sides):
    """Go leaves out a map without entries."""
    (event,) = events(decode(row(kind, None, None, claimCheckLocation="s3://bucket/name.json")))
    assert event["kind"] == kind.lower()
    assert event["flags"] == EventFlag.CLAIM_CHECK
    assert ({} if sides[0] else None) == event.get("after")
    assert ({} if sides[1] else None) == event.get("before")


def single(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


BYTES = bytes(range(256))
# column type, its further members, the value in Avro, its text
VALUES = [
    ("tinyint", {}, long(-128), "-128"),
    ("tinyint", {"unsigned": True}, long(255), "255"),
    ("smallint", {}, long(32767), "32767"),
    ("mediumint", {}, long(-8388608), "-8388608"),
    ("int", {}, long(-2147483648), "-2147483648"),
    ("int", {"unsigned": True}, long(4294967295), "4294967295"),
    ("bigint", {}, long(-(2**63)), "-9223372036854775808"),
    ("bigint", {}, long(2**63 - 1), "9223372036854775807"),
    ("bigint", {}, long(0), "0"),
    ("bigint", {"unsigned": True}, unsigned(0), "0"),
    ("bigint", {"unsigned": True}, unsigned(2**63 - 1), "9223372036854775807"),
    ("bigint", {"unsigned": True}, unsigned(-(2**63)), "9223372036854775808"),
    ("bigint", {"unsigned": True}, unsigned(-1), "18446744073709551615"),
    ("float", {}, ("float", single(3.14)), "3.14"),
    ("float", {}, ("float", single(3.4028235e38)), "340282350000000000000000000000000000000"),
    ("float", {}, ("float", single(1e-45)), "0." + "0" * 44 + "1"),
    ("double", {}, ("double", -0.0), "-0"),
    ("double", {}, ("double", 1e300), "1" + "0" * 300),
    ("double", {}, ("double", 5e-324), "0." + "0" * 323 + "5"),
    ("decimal", {"decimal": 2}, "-12.50", "-12.50"),
    ("varchar", {}, "", ""),
    ("varchar", {}, "é😀\0", "é😀\0"),
    ("varchar", {}, "x" * 63, "x" * 63),
    ("text", {}, "y" * 64 + "é", "y" * 64 + "é"),
    ("text", {}, "z" * 100_000, "z" * 100_000),
    ("varbinary", {}, b"", ""),
    ("binary", {}, b"\0", "AA=="),
    ("blob", {}, BYTES, b64encode(BYTES).decode()),
    ("longblob", {}, BYTES[:-1] * 300, b64encode(BYTES[:-1] * 300).decode()),
    ("date", {}, "0000-00-00", "0000-00-00"),
    ("time", {}, "-838:59:59", "-838:59:59"),
    ("datetime", {"length": 26}, "2024-02-29 23:59:59.999999", "2024-02-29 23:59:59.999999"),
    ("timestamp", {}, moment("2024-02-29 23:59:59"), "2024-02-29 23:59:59"),
    ("timestamp", {}, moment("0000-00-00 00:00:00", "Asia/Shanghai"), "0000-00-00 00:00:00"),
    ("year", {}, long(2155), "2155"),
    ("enum", {"elements": ["a"]}, long(1), "1"),
    ("set", {"elements": ["a"]}, long(3), "3"),
    ("set", {"elements": ["a"]}, long(-(2**63)), "-9223372036854775808"),
    ("bit", {"length": 64}, long(5), "5"),
    ("bit", {"length": 64}, long(-1), "-1"),
    ("json", {}, '{"a": [1, null]}', '{"a": [1, null]}'),
    ("vector", {}, "[1,2.5]", "[1,2.5]"),
    ("int", {}, None, None),
    ("timestamp", {}, None, None),
]


def schema_of(type_: str, members: Json) -> bytes:
    schema = table(column("id", "int", nullable=False), column("c", type_, **members))
    return written("BOOTSTRAP", {"buildTs": BUILD_TS, "tableSchema": in_avro(schema)})


@pytest.mark.parametrize(("type_", "members", "value", "text"), VALUES)
def test_values(type_, members, value, text):
    messages = [
        schema_of(type_, members),
        row("INSERT", {"id": long(1), "c": value}, None),
        row("UPDATE", {"c": value, "id": long(1)}, {"c": None, "id": long(1)}),
        row("UPDATE", {"id": long(1), "c": None}, {"id": long(1), "c": value}),
        row("DELETE", None, {"id": long(1), "c": value}),
    ]
    batch = decode(*messages)
    found = events(batch)
    sides = [(one.get("after", {}).get("c"), one.get("before", {}).get("c")) for one in found[1:]]
    assert sides == [(text, None), (text, None), (None, text), (None, text)]
    zone = value[1]["location"] if type_ == "timestamp" and value else None
    expected = {"name": "c", "type": "timestamp", "zone": zone} if zone else {"name": "c"}
    assert [one["columns"] for one in found[1:]] == [[expected, {"name": "id"}]] * 4
    assert [read(one) for one in encode(batch)] == [read(one) for one in messages]


@pytest.mark.parametrize(
    ("text", "classic", "new"),
    [
        ("5", 5, "5"),
        ("18446744073709551615", -1, "18446744073709551615"),
        ("-1", -1, "18446744073709551615"),
    ],
)
def test_bit_is_a_number_or_a_text(text, classic, new):
    batch = changes([column("c", "bit", length=64)], {"after": [text]})
    for generation, value in (("classic", classic), ("new", new)):
        (message,) = encode(batch, generation=generation)[-1:]
        assert read(message)["data"] == {"c": value}
        assert events(decode(message))[0]["after"] == {"c": str(value)}


def changes(columns: list[Json], *rows: Json, zones: Json | None = None) -> pa.RecordBatch:
    """Rows of a table with its schema, as any decoder gives them."""
    told = [
        {"name": one["name"]}
        | ({"zone": zones[one["name"]]} if one["name"] in (zones or {}) else {})
        for one in columns
    ]
    named = {"event": 0, "database": "simple", "table": "user", "flags": 0}
    schema = table(*columns)
    return pa.RecordBatch.from_pylist(
        [
            named
            | {"event": -1, "kind": "schema", "shape": 9, "schema": json.dumps({"columns": told})},
            named | {"kind": "schema", "schema": json.dumps({"tableSchema": schema})},
            *(
                named
                | {"kind": "insert", "commit_ts": 5, "shape": 9, "schema_version": VERSION}
                | one
                for one in rows
            ),
        ],
        CHANGE_SCHEMA,
    )


@pytest.mark.parametrize(
    ("type_", "members", "text"),
    [
        ("tinyint", {}, "128"),
        ("tinyint", {}, "-129"),
        ("tinyint", {"unsigned": True}, "256"),
        ("tinyint", {"unsigned": True}, "-1"),
        ("int", {}, ""),
        ("int", {}, "1.0"),
        ("bigint", {}, "9223372036854775808"),
        ("bigint", {"unsigned": True}, "18446744073709551616"),
        ("year", {}, "x"),
        ("enum", {"elements": []}, "65536"),
        ("bit", {}, "x"),
        ("float", {}, "x"),
        ("double", {}, "1e999"),
        ("blob", {}, "AA"),
        ("blob", {}, "=A=="),
        ("blob", {}, "????"),
        ("blob", {}, "=="),
    ],
)
def test_values_that_are_none_of_their_type_are_refused(type_, members, text):
    batch = changes([column("id", "int"), column("c", type_, **members)], {"after": ["1", text]})
    for generation in ("classic", "new"):
        with pytest.raises(EncodeError) as caught:
            encode(batch, generation=generation)
        assert (caught.value.table, caught.value.field) == ("user", "c")


def test_timestamps_without_a_zone_get_the_one_of_the_options():
    at = [column("at", "timestamp")]
    rows = {"after": ["2024-01-01 00:00:00"]}
    (message,) = encode(changes(at, rows), time_zone="Asia/Shanghai")[1:]
    assert read(message)["data"] == {"at": moment("2024-01-01 00:00:00", "Asia/Shanghai")}
    (message,) = encode(changes(at, rows, zones={"at": "UTC"}), time_zone="Asia/Shanghai")[1:]
    assert read(message)["data"] == {"at": moment("2024-01-01 00:00:00", "UTC")}


def test_rows_of_unknown_type_are_refused():
    batch = changes([column("id", "int")], {"after": ["1"], "schema_version": VERSION + 1})
    with pytest.raises(SchemaNotSeen) as caught:
        encode(batch)
    assert (caught.value.database, caught.value.table) == ("simple", "user")
    with pytest.raises(SchemaNotSeen):
        encode(decode(row("INSERT", OLD, None)))
    with pytest.raises(SchemaNotSeen):
        encode(decode(BOOTSTRAP, row("INSERT", OLD | {"unknown": long(1)}, None)))


def test_schemas_from_another_batch():
    book = ShapeBook([decode(BOOTSTRAP)])
    batch = decode(row("INSERT", OLD, None))
    book.add(batch)
    assert [read(one) for one in encode(batch, book)] == [read(row("INSERT", OLD, None))]


def test_error_rows_are_refused():
    with pytest.raises(EncodeError):
        encode(decode(b"?"))


# --- rows of other protocols ----------------------------------------------------------------------


def test_rows_of_other_protocols_bring_their_schema():
    told = [
        {"name": "z", "type": "bigint unsigned", "code": 8, "flags": 139, "key": True},
        {"name": "a", "type": "varbinary", "code": 15, "flags": 65},
        {"name": "b", "type": "bit", "code": 16, "flags": 193},
    ]
    named = {"event": 0, "database": "d", "table": "t", "flags": 0, "shape": 77}
    batch = pa.RecordBatch.from_pylist(
        [
            named | {"kind": "schema", "event": -1, "schema": json.dumps({"columns": told})},
            named | {"kind": "update", "commit_ts": 5, "after": ["1", "AAE=", "3"], "before": ["1", None, None], "before_missing": b"\x04"},
        ],
        CHANGE_SCHEMA,
    )  # fmt: skip
    bootstrap, update = map(read, encode(batch))
    schema = bootstrap["tableSchema"]
    assert (schema["database"], schema["table"], schema["version"]) == ("d", "t", 77)
    assert [(one["name"], one["dataType"]["mysqlType"], one["dataType"]["unsigned"], one["nullable"]) for one in schema["columns"]] == [
        ("z", "bigint", True, False),
        ("a", "varbinary", None, True),
        ("b", "bit", True, True),
    ]  # fmt: skip
    assert [(one["name"], one["columns"]) for one in schema["indexes"]] == [("primary", ["z"])]
    assert (update["schemaVersion"], update["tableID"]) == (77, 0)
    assert update["data"] == {"a": b"\x00\x01", "b": 3, "z": unsigned(1)}
    assert update["old"] == {"a": None, "z": unsigned(1)}
    assert list(update["data"]) == ["a", "b", "z"]
    again = decode(*encode(batch))
    assert [read(one) for one in encode(again)] == [bootstrap, update]


# --- large messages and compression ---------------------------------------------------------------


def large(text: str = "x" * 5000) -> pa.RecordBatch:
    columns = [column("id", "int", nullable=False), column("v", "varchar", length=9000)]
    return changes(
        columns,
        {"kind": "update", "after": ["1", text], "before": ["2", text], "table_id": 3},
        {"after": ["3", "small"]},
    )


def test_a_row_too_large_is_refused():
    with pytest.raises(EncodeError, match="over max-message-bytes 5000"):
        encode(large(), max_message_bytes=5000)


def test_a_row_too_large_goes_with_its_key_only():
    _, update, insert = map(
        read, encode(large(), max_message_bytes=5000, large_message_handle="handle-key-only")
    )
    assert (update["data"], update["old"]) == ({"id": 1}, {"id": 2})
    assert (update["handleKeyOnly"], update["claimCheckLocation"]) == (True, None)
    assert (insert["data"], insert["handleKeyOnly"]) == ({"id": 3, "v": "small"}, None)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("compression", [None, "snappy", "lz4"])
def test_a_row_too_large_is_kept_elsewhere(raw, compression):
    chance = random.Random(5)
    batch = large("".join(chance.choice("abcdefghijklmnop") for _ in range(9000)))
    kept: list[bytes] = []

    def store(content: bytes) -> str:
        kept.append(content)
        return "file:///x/name.json"

    messages = encode(
        batch,
        max_message_bytes=5000,
        large_message_handle="claim-check",
        claim_check=store,
        claim_check_raw_value=raw,
        compression=compression,
    )
    if compression:
        messages = [decompress(compression, message) for message in messages]
    assert read(messages[1])["claimCheckLocation"] == "file:///x/name.json"
    assert read(messages[1])["handleKeyOnly"] is True
    assert read(messages[1])["data"] == {"id": 1}
    (content,) = kept
    whole = content if raw else unpack("", content)[1]
    if compression:
        whole = decompress(compression, whole)
    assert read(whole) == read(encode(batch)[1])


def test_claim_checks_need_a_store():
    with pytest.raises(ConfigError):
        encode(large(), large_message_handle="claim-check")


def test_a_row_too_large_without_a_key():
    batch = large()
    schema = json.loads(batch["schema"][1].as_py())
    schema["tableSchema"]["indexes"] = []
    rows = batch.to_pylist()
    rows[1]["schema"] = json.dumps(schema)
    with pytest.raises(EncodeError, match="no handle key"):
        encode(
            pa.RecordBatch.from_pylist(rows, CHANGE_SCHEMA),
            max_message_bytes=5000,
            large_message_handle="handle-key-only",
        )


@pytest.mark.parametrize("compression", ["snappy", "lz4"])
def test_every_message_is_compressed(compression):
    batch = decode(BOOTSTRAP, *(message for message, _ in ROWS[:3]), ddl("ALTER", USER, None))
    plain = encode(batch)
    assert [decompress(compression, one) for one in encode(batch, compression=compression)] == plain


# --- maps in any order and any blocks -------------------------------------------------------------


def shuffled(message: bytes, chance: random.Random) -> bytes:
    """The same row with the entries of its maps in another order."""
    payload = read(message)
    payload.pop("kind")
    payload.pop("version")
    for side in ("data", "old"):
        if payload[side]:
            entries = list(payload[side].items())
            chance.shuffle(entries)
            payload[side] = {
                name: long(value) if isinstance(value, int) else value for name, value in entries
            }
    return written("DML", payload)


def test_the_order_of_a_map_says_nothing():
    chance = random.Random(7)
    expected = events(decode(ROWS[1][0]))
    stream = decode(*(shuffled(ROWS[1][0], chance) for _ in range(50)))
    assert events(stream) == expected * 50


MAP = row("INSERT", {"a": long(1), "b": "x"}, None)
MAP_AT = MAP.index(b"\x02\x04\x02a\x02\x02\x02b\x08\x02x\x00\x00")


@pytest.mark.parametrize(
    "blocks",
    [
        b"\x04\x02b\x08\x02x\x02a\x02\x02\x00",
        b"\x02\x02a\x02\x02\x02\x02b\x08\x02x\x00",
        b"\x03\x12\x02a\x02\x02\x02b\x08\x02x\x00",
        b"\x01\x08\x02a\x02\x02\x02\x02b\x08\x02x\x00",
        b"\x04\x82\x00a\x02\x02\x02b\x08\x82\x00x\x00",
    ],
)
@pytest.mark.parametrize("primed", [False, True])
def test_maps_in_blocks(blocks, primed):
    """Several blocks, negative counts with a size in bytes, numbers longer than need be."""
    message = MAP[: MAP_AT + 1] + blocks + b"\x00"
    expected = events(decode(MAP))
    found = events(decode(MAP, message, message) if primed else decode(message))
    assert found == expected * (3 if primed else 1)


COLUMNS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
CELL = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1).map(long),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda value: ("float", value)),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: ("double", value)),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=80),
    st.binary(max_size=80),
    st.sampled_from(["UTC", "Asia/Shanghai"]).map(
        lambda zone: moment("2024-02-29 01:02:03.5", zone)
    ),
    st.integers(-(2**63), 2**63 - 1).map(unsigned),
)


@st.composite
def messages_of_tables(draw):
    """Messages of a few tables, whose rows have the same columns in any order and any values."""
    tables = draw(st.lists(st.lists(COLUMNS, unique=True, max_size=12), min_size=1, max_size=3))
    found = []
    for _ in range(draw(st.integers(1, 12))):
        names = draw(st.permutations(draw(st.sampled_from(tables))))
        kind = draw(st.sampled_from(["INSERT", "UPDATE", "DELETE"]))
        data = {name: draw(CELL) for name in names} if kind != "DELETE" else None
        old = (
            {name: draw(CELL) for name in draw(st.permutations(names))}
            if kind != "INSERT"
            else None
        )
        found.append(row(kind, data, old, table=draw(st.sampled_from("tu"))))
    return found


@settings(max_examples=200, deadline=None)
@given(messages_of_tables())
def test_a_prediction_never_changes_a_result(messages):
    alone = [event for message in messages for event in events(decode(message))]
    assert events(decode(*messages)) == alone
    # The last message of a batch has nothing behind it that could be read ahead.
    assert events(decode(*messages, *messages))[len(alone) :] == alone


# types whose values survive a round trip, and the values that fastavro may be given for them
TYPES = {
    "int": st.integers(-(2**31), 2**31 - 1).map(long),
    "bigint": st.integers(-(2**63), 2**63 - 1).map(long),
    "set": st.integers(-(2**63), 2**63 - 1).map(long),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda v: ("float", v)),
    "double": st.floats(allow_nan=False, allow_infinity=False).map(lambda v: ("double", v)),
    "varchar": st.text(st.characters(exclude_categories=["Cs"]), max_size=80),
    "blob": st.binary(max_size=80),
    "timestamp": st.just(moment("2024-02-29 01:02:03.5")),
}


@st.composite
def tables_and_rows(draw):
    columns = draw(
        st.dictionaries(COLUMNS, st.sampled_from(sorted(TYPES)), min_size=1, max_size=20)
    )

    def values() -> Json:
        names = draw(st.permutations(sorted(columns)))
        return {name: draw(st.none() | TYPES[columns[name]]) for name in names}

    schema = table(*(column(name, type_) for name, type_ in columns.items()))
    messages = [written("BOOTSTRAP", {"buildTs": BUILD_TS, "tableSchema": in_avro(schema)})]
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["INSERT", "UPDATE", "DELETE"]))
        data = values() if kind != "DELETE" else None
        old = values() if kind != "INSERT" else None
        messages.append(row(kind, data, old))
    return messages


@settings(max_examples=150, deadline=None)
@given(tables_and_rows())
def test_round_trip(messages):
    batch = decode(*messages)
    again = encode(batch)
    assert [read(one) for one in again] == [read(one) for one in messages]
    assert decode(*again) == batch


# --- malformed messages ---------------------------------------------------------------------------

HEAD = b"\x16\x06\x06\x02\x02d\x02t\x02"  # a row up to its table id
REST = b"\x02\x02\x02\x00\x00\x00"  # the times, the version, and nothing else


def values_of(entries: bytes, count: bytes = b"\x02") -> bytes:
    return HEAD + b"\x00" + REST + b"\x02" + count + entries + b"\x00\x00"


MALFORMED = [
    (None, "empty", 0),
    (b"", "empty", 0),
    (b"\x18", "union", 0),
    (b"\x14\x06", "union", 0),
    (b"{", "union", 0),
    (b"\x16\x08", "union", 1),
    (b"\x16\x01", "union", 1),
    (b"\x16\x06\x04", "union", 2),
    (b"\x16\x06\x08", "union", 2),
    (b"\x16\x06\x06\x04", "version", 3),
    (b"\x16\x06\x06\x80\x80\x80\x80\x80\x01", "range", 3),
    (b"\x16\x00\x00\x02\x01\x00", "range", 4),
    (b"\x16\x00\x00\x02\x02\x00\x00", "trailing", 6),
    (b"\x16\x00\x00\x02" + b"\xff" * 10, "number", 13),
    (b"\x16\x04\x04\x02\x10", "union", 4),
    (b"\x16\x04\x04\x02\x00\x02\xff\x02\x02\x00\x00", "utf8", 6),
    (b"\x16\x04\x04\x02\x00\x02x\x02\x02\x04", "union", 9),
    (b"\x16\x04\x04\x02\x00\x02x\x02\x02\x00\x00\x00", "trailing", 11),
    (b"\x16\x06\x06\x02\x01", "length", 4),
    (b"\x16\x06\x06\x02\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", "length", 4),
    (HEAD + b"\x06" + REST, "union", 9),
    (HEAD + b"\x00\x01", "range", 10),
    (HEAD + b"\x00\x02\x02\x01", "range", 12),
    (HEAD + b"\x00\x02\x02\x02\x04", "union", 13),
    (HEAD + b"\x00\x02\x02\x02\x00\x02\x02", "type", 15),
    (HEAD + b"\x00\x02\x02\x02\x00\x00\x02\x02\x00\x01", "range", 18),
    (HEAD + b"\x00" + REST + b"\x00\x00", "missing", 16),
    (HEAD + b"\x02" + REST + b"\x02\x00\x00", "missing", 16),
    (HEAD + b"\x04" + REST + b"\x02\x00\x00", "missing", 16),
    (HEAD + b"\x00" + REST + b"\x02\x00\x02\x02\x00\x00\x00", "columns", 16),
    (HEAD + b"\x04" + REST + b"\x02\x02\x00\x00\x00\x02\x00", "columns", 16),
    (HEAD + b"\x02" + REST + b"\x02\x02\x02a\x00\x00\x02\x02\x02b\x00\x00", "columns", 25),
    (values_of(b"\x02a\x00\x02a\x00", b"\x04"), "duplicate", 22),
    (values_of(b"\x02a\x10"), "union", 20),
    (values_of(b"\x02a\x01"), "union", 20),
    (values_of(b"\x02\xff\x00"), "utf8", 19),
    (values_of(b"\x02a\x08\x02\xff"), "utf8", 22),
    (values_of(b"\x02a\x08\x08x"), "length", 21),
    (values_of(b"\x02a\x08\x01"), "length", 21),
    (values_of(b"\x02a\x02" + b"\xff" * 10), "number", 30),
    (values_of(b"\x02a\x06\x00\x00\x00\x00\x00\x00\xf8\x7f"), "value", 21),
    (values_of(b"\x02a\x04\x00\x00\x80\x7f"), "value", 21),
    (values_of(b"\x02a\x0c\x00\x2a2024-01-01 00:00:00.0"), "value", 20),
    (values_of(b"\x02a\x0c\x06UTC\x262024-13-01 00:00:00"), "temporal", 26),
    (values_of(b"\x02a\x0c\x02\xff\x262024-01-01 00:00:00"), "utf8", 22),
    (values_of(b"", b"\x80\x80\x01"), "columns", 17),
    (values_of(b"", b"\x80\x10"), "length", 17),
    (values_of(b"\x02a\x00", b"\x01\x80\x01"), "length", 18),
    (values_of(b"\x02a\x00", b"\x01\x04"), "length", 22),
    (values_of(b"\x02a\x00", b"\x01\x08"), "length", 22),
    (values_of(b"\x02a\x00") + b"\x00", "trailing", 23),
]


@pytest.mark.parametrize(("message", "code", "position"), MALFORMED)
def test_malformed_messages(message, code, position):
    assert fault(message) == (code, position)
    # Behind something that can be predicted it is no other.
    good = row("INSERT", {"a": long(1)}, None, database="d", table="t", tableID=1)
    assert [one["kind"] for one in events(decode(good, good, message, good))] == [
        "insert",
        "insert",
        "error",
        "insert",
    ]


def test_zones_of_one_column_must_agree():
    mixed = row(
        "UPDATE",
        {"c": moment("2024-01-01 00:00:00")},
        {"c": moment("2024-01-01 00:00:00", "Asia/Tokyo")},
    )
    assert fault(mixed)[0] == "columns"
    good = row("INSERT", {"c": moment("2024-01-01 00:00:00")}, None)
    assert [one["kind"] for one in events(decode(good, mixed, good))] == [
        "insert",
        "error",
        "insert",
    ]


def test_invalid_names_of_database_and_table():
    for name in ("database", "table"):
        message = row("INSERT", {"a": long(1)}, None, **{name: "XXXXX"})
        assert fault(message.replace(b"XXXXX", b"XX\xffXX"))[0] == "utf8"


SAMPLES = [
    ROWS[1][0],
    ROWS[4][0],
    ROWS[5][0],
    row("INSERT", {name: value for name, (_, _, value, _) in zip("abcdefghijklmnopqrst", VALUES[10:21], strict=False)}, None),
    ddl("ALTER", EVERY_TYPE, USER),
    written("WATERMARK", {"commitTs": COMMIT_TS, "buildTs": BUILD_TS}),
]  # fmt: skip


@pytest.mark.parametrize("message", SAMPLES)
def test_every_truncation_is_an_error(message):
    cut = [message[:length] for length in range(len(message))]
    assert {one["kind"] for one in events(decode(message, *cut, message))[1:-1]} == {"error"}
    assert {one["kind"] for one in events(decode(*cut))} == {"error"}


@pytest.mark.parametrize("message", SAMPLES)
def test_every_bit_flip_is_read_the_same_behind_a_good_message(message):
    flipped = []
    for bit in range(8 * len(message)):
        changed = bytearray(message)
        changed[bit >> 3] ^= 1 << (bit & 7)
        flipped.append(bytes(changed))
    stream = []
    for one in flipped:
        stream += [message, one]
    together = events(decode(*stream, message))
    alone = [events(decode(one))[0] for one in flipped]
    assert together[1:-1:2] == alone
    assert all(one == together[0] for one in together[::2])


@pytest.mark.parametrize("count", [63, 64, 65, 1000, 1025, 4096, 4097])
def test_many_columns(count):
    names = [f"column {index}" for index in range(count)]
    message = row("INSERT", {name: long(index) for index, name in enumerate(names)}, None)
    found = events(decode(message, message, message))
    if count > 4096:
        assert [one["error"]["code"] for one in found] == ["columns"] * 3
    else:
        after = {name: str(index) for index, name in enumerate(names)}
        assert [one["after"] for one in found] == [after] * 3
        assert list(found[0]["after"]) == sorted(names)


def test_names_that_look_alike():
    """First and last eight bytes and the length are the same."""
    names = [f"same at first {index:03} same at last" for index in range(40)] + [
        "x" * 63,
        "x" * 64,
        "",
    ]
    message = row("UPDATE", {name: name for name in names}, {name: name for name in names[::-1]})
    for event in events(decode(message, message, message)):
        assert event["after"] == event["before"] == {name: name for name in names}


def test_more_tables_than_are_remembered():
    stream = [
        row("INSERT", {"a": long(i), f"b{i}": None}, None, table=f"t{i % 300}") for i in range(900)
    ]
    alone = [events(decode(message))[0] for message in stream]
    assert events(decode(*stream)) == alone


# --- golden messages ------------------------------------------------------------------------------

GOLDEN = ["types.simple.avro", "ddl.simple.avro", "large.simple.avro.hk", "types_ck.simple.avro.ck"]


@pytest.mark.parametrize("name", [*GOLDEN, *(f"new/{name}" for name in GOLDEN[:3])])
def test_golden_messages_are_written_back(name):
    messages = [message.value or b"" for message in corpus.messages(name)]
    generation = "new" if name.startswith("new/") else "classic"
    again = encode(decode(*messages), generation=generation)
    for message, found in zip(messages, again, strict=True):
        assert read(found) | {"buildTs": 0} == read(message) | {"buildTs": 0}


@pytest.mark.parametrize("generation", ["", "new/"])
def test_large_golden_rows_are_shortened_as_ticdc_does(generation):
    whole = decode(
        *(message.value for message in corpus.messages(f"{generation}large.simple.avro"))
    )
    short = [message.value for message in corpus.messages(f"{generation}large.simple.avro.hk")]
    again = encode(
        whole,
        generation="new" if generation else "classic",
        max_message_bytes=3000,
        large_message_handle="handle-key-only",
    )
    for message, found in zip(short, again, strict=True):
        assert read(found) | {"buildTs": 0} == read(message or b"") | {"buildTs": 0}
