"""Simple in JSON: what its messages mean, in both directions, and what is refused."""

import json
import random
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
    TableSchema,
    UnsupportedByProtocol,
)
from tidegate.wire import CHANGE_SCHEMA, ShapeBook, decode_batch, encode_batch
from tidegate.wire.simple.schema import needs_bootstrap

TS = 447984084414103554
VERSION = 447984074911121426
BUILD_TS = 1708923662983

# The examples of TiCDC's document.
SCHEMA = {
    "schema": "simple",
    "table": "user",
    "tableID": 148,
    "version": VERSION,
    "columns": [
        {
            "name": "id",
            "dataType": {
                "mysqlType": "int",
                "charset": "binary",
                "collate": "binary",
                "length": 11,
            },
            "nullable": False,
            "default": None,
        },
        {
            "name": "name",
            "dataType": {
                "mysqlType": "varchar",
                "charset": "utf8mb4",
                "collate": "utf8mb4_bin",
                "length": 255,
            },
            "nullable": True,
            "default": None,
        },
        {
            "name": "score",
            "dataType": {
                "mysqlType": "float",
                "charset": "binary",
                "collate": "binary",
                "length": 12,
            },
            "nullable": True,
            "default": None,
        },
    ],
    "indexes": [
        {"name": "primary", "unique": True, "primary": True, "nullable": False, "columns": ["id"]}
    ],
}
ROW = {"version": 1, "database": "simple", "table": "user", "tableID": 148}
TIMES = {"commitTs": TS, "buildTs": BUILD_TS}
NEW = {"id": "1", "name": "John Doe", "score": "95"}
BEFORE = {"id": "1", "name": "John Doe", "score": "90.5"}
INSERT = ROW | {"type": "INSERT"} | TIMES | {"schemaVersion": VERSION, "data": NEW}
UPDATE = ROW | {"type": "UPDATE"} | TIMES | {"schemaVersion": VERSION, "data": NEW, "old": BEFORE}
DELETE = ROW | {"type": "DELETE"} | TIMES | {"schemaVersion": VERSION, "old": BEFORE}
WATERMARK = {"version": 1, "type": "WATERMARK"} | TIMES
BOOTSTRAP = {"version": 1, "type": "BOOTSTRAP", "commitTs": 0, "buildTs": BUILD_TS}
BOOTSTRAP |= {"tableSchema": SCHEMA}
ALTER = {"version": 1, "type": "ALTER", "sql": "ALTER TABLE `user` ADD COLUMN `c` INT"} | TIMES
ALTER |= {"tableSchema": SCHEMA | {"version": VERSION + 1}, "preTableSchema": SCHEMA}


def compact(message: Any) -> bytes:
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()


def batch_of(*messages: Any) -> pa.RecordBatch:
    values = [message if isinstance(message, bytes) else compact(message) for message in messages]
    batch = decode_batch("simple", None, pa.array(values, pa.binary()), encoding="json")
    batch.validate(full=True)
    return batch


def rows_of(*messages: Any) -> list[dict[str, Any]]:
    """The events, without the schema rows of shapes."""
    rows = batch_of(*messages).to_pylist()
    return [row for row in rows if row["kind"] != "schema" or row["shape"] is None]


def row_of(message: Any) -> dict[str, Any]:
    (row,) = rows_of(message)
    return row


def fault_of(message: Any) -> str | None:
    row = row_of(message)
    return row["error"]["code"] if row["kind"] == "error" else None


def shape_of(message: Any) -> list[dict[str, Any]]:
    first = batch_of(message).to_pylist()[0]
    assert first["shape"] is not None
    return json.loads(first["schema"])["columns"]


def encoded(batch: pa.RecordBatch, **settings: Any) -> list[bytes]:
    messages = encode_batch("simple", batch, **{"build_ts": BUILD_TS} | settings)
    assert messages["key"].null_count == messages.num_rows
    return messages["value"].to_pylist()


def present(row: dict[str, Any]) -> dict[str, Any]:
    unset = ("offset", "event", "shape", "partition", "topic")
    return {name: value for name, value in row.items() if value is not None and name not in unset}


# --- the document's examples -----------------------------------------------------------------------

EXAMPLES = {
    "insert": (
        INSERT,
        {
            "kind": "insert",
            "commit_ts": TS,
            "database": "simple",
            "table": "user",
            "table_id": 148,
            "schema_version": VERSION,
            "after": ["1", "John Doe", "95"],
            "flags": 0,
        },
    ),
    "update": (
        UPDATE,
        {
            "kind": "update",
            "commit_ts": TS,
            "database": "simple",
            "table": "user",
            "table_id": 148,
            "schema_version": VERSION,
            "after": ["1", "John Doe", "95"],
            "before": ["1", "John Doe", "90.5"],
            "flags": 0,
        },
    ),
    "delete": (
        DELETE,
        {
            "kind": "delete",
            "commit_ts": TS,
            "database": "simple",
            "table": "user",
            "table_id": 148,
            "schema_version": VERSION,
            "before": ["1", "John Doe", "90.5"],
            "flags": 0,
        },
    ),
    "watermark": (WATERMARK, {"kind": "watermark", "commit_ts": TS, "flags": 0}),
    "bootstrap": (
        BOOTSTRAP,
        {
            "kind": "schema",
            "database": "simple",
            "table": "user",
            "table_id": 148,
            "schema_version": VERSION,
            "schema": compact({"tableSchema": SCHEMA}).decode(),
            "flags": 0,
        },
    ),
    "ddl": (
        ALTER,
        {
            "kind": "ddl",
            "commit_ts": TS,
            "database": "simple",
            "table": "user",
            "table_id": 148,
            "schema_version": VERSION + 1,
            "ddl": {"type": "ALTER", "code": None, "query": ALTER["sql"]},
            "schema": compact(
                {"tableSchema": ALTER["tableSchema"], "preTableSchema": SCHEMA}
            ).decode(),
            "flags": 0,
        },
    ),
    "ddl of a database": (
        {"version": 1, "type": "QUERY", "sql": "CREATE DATABASE `d`"} | TIMES,
        {
            "kind": "ddl",
            "commit_ts": TS,
            "ddl": {"type": "QUERY", "code": None, "query": "CREATE DATABASE `d`"},
            "flags": 0,
        },
    ),
    "ddl of a table that is gone": (
        {"version": 1, "type": "ERASE", "sql": "DROP TABLE `user`"}
        | TIMES
        | {"preTableSchema": SCHEMA},
        {
            "kind": "ddl",
            "commit_ts": TS,
            "database": "simple",
            "table": "user",
            "table_id": 148,
            "schema_version": VERSION,
            "ddl": {"type": "ERASE", "code": None, "query": "DROP TABLE `user`"},
            "schema": compact({"preTableSchema": SCHEMA}).decode(),
            "flags": 0,
        },
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_the_document_is_read_and_written(name):
    message, expected = EXAMPLES[name]
    assert present(row_of(message)) == expected
    assert encoded(batch_of(message)) == [compact(message)]


@pytest.mark.parametrize(
    "word", ["CREATE", "RENAME", "CINDEX", "DINDEX", "ERASE", "TRUNCATE", "ALTER", "QUERY"]
)
def test_every_kind_of_ddl_has_its_word(word):
    row = row_of(ALTER | {"type": word})
    assert (row["kind"], row["ddl"]["type"]) == ("ddl", word)


def test_rows_say_nothing_of_types():
    assert shape_of(INSERT) == [{"name": "id"}, {"name": "name"}, {"name": "score"}]


# --- values ----------------------------------------------------------------------------------------

MOMENT = {"location": "Asia/Shanghai", "value": "2024-02-29 12:00:00.123456"}

VALUES = [
    # in JSON, in the batch, and whether TiCDC writes it so
    ("text", "text", True),
    ("", "", True),
    (None, None, True),
    (MOMENT, "2024-02-29 12:00:00.123456", True),
    ({"location": "UTC", "value": "0000-00-00 00:00:00"}, "0000-00-00 00:00:00", True),
    ('"\\\n\r\t\b\f\x00\x1f/', '"\\\n\r\t\b\f\x00\x1f/', True),
    ("<&>\u2028\u2029 é 語 😀 \x7f", "<&>\u2028\u2029 é 語 😀 \x7f", True),
    ("x" * 1000, "x" * 1000, True),
    (12, "12", False),
    (-0.5, "-0.5", False),
    (True, "true", False),
    (False, "false", False),
]


@pytest.mark.parametrize("told, text, from_ticdc", VALUES)
@pytest.mark.parametrize("columns_before", [0, 3])
def test_a_value_is_read_and_written(told, text, from_ticdc, columns_before):
    data = {f"a{i}": "before" for i in range(columns_before)} | {"v": told, "w": "behind"}
    message = INSERT | {"data": data}
    again = batch_of(message, message)  # the second is read as predicted
    for row in again.to_pylist()[1:]:
        assert row["after"] == ["before"] * columns_before + [text, "behind"]
    if from_ticdc:
        values = encoded(again)
        assert [json.loads(value) for value in values] == [message, message]
        assert rows_of(*values) == rows_of(message, message)


@pytest.mark.parametrize(
    "number, text",
    [
        ("1e3", "1000"),
        ("1.50", "1.5"),
        ("-0", "-0"),
        ("2E-3", "0.002"),
        ("1e-320", f"0.{'0' * 319}1"),
    ],
)
def test_numbers_of_other_senders_lose_their_exponent(number, text):
    value = compact(INSERT | {"data": {"n": 0}}).replace(b'"n":0', b'"n":' + number.encode())
    assert row_of(value)["after"] == [text]


def test_text_is_escaped_as_by_go():
    value = encoded(batch_of(INSERT | {"data": {"v<": "<&>\u2028\u2029\b\f\x01é\x7f"}}))[0]
    assert b'"v\\u003c":"\\u003c\\u0026\\u003e\\u2028\\u2029\\b\\f\\u0001\xc3\xa9\x7f"' in value


def test_a_moment_marks_its_column_with_the_zone():
    columns = shape_of(INSERT | {"data": {"a": "1", "t": MOMENT}})
    assert columns == [{"name": "a"}, {"name": "t", "type": "timestamp", "zone": "Asia/Shanghai"}]


def test_the_zone_may_be_told_by_either_side_of_an_update():
    shapes = [
        shape_of(UPDATE | {"data": {"t": new}, "old": {"t": old}})
        for new, old in ((MOMENT, None), (None, MOMENT), (MOMENT, MOMENT))
    ]
    assert shapes == [[{"name": "t", "type": "timestamp", "zone": "Asia/Shanghai"}]] * 3
    assert shape_of(UPDATE | {"data": {"t": None}, "old": {"t": None}}) == [{"name": "t"}]


def test_more_than_64_columns_with_zones():
    message = INSERT | {"data": {f"t{i:03}": MOMENT for i in range(100)}}
    batch = batch_of(message, message)
    assert batch.num_rows == 3
    assert encoded(batch) == [compact(message)] * 2


# --- columns ---------------------------------------------------------------------------------------


def test_columns_are_sorted_by_the_bytes_of_their_names():
    names = ["Z", "a", "é", "zz", "z", "語", ""]
    told = {name: f"of {name}" for name in names}
    ordered = sorted(names, key=str.encode)
    assert [column["name"] for column in shape_of(INSERT | {"data": told})] == ordered
    assert row_of(INSERT | {"data": told})["after"] == [f"of {name}" for name in ordered]


def test_old_values_that_are_not_carried_are_not_null():
    row = row_of(UPDATE | {"old": {"score": None}})
    assert row["before"] == [None, None, None]
    assert row["before_missing"] == bytes([0b011])
    batch = batch_of(UPDATE | {"old": {"score": None}}, UPDATE | {"old": {}})
    assert [json.loads(value)["old"] for value in encoded(batch)] == [{"score": None}, {}]


def test_a_message_with_fewer_columns_has_another_shape():
    rows = rows_of(INSERT, INSERT | {"data": {"id": "1"}}, INSERT)
    assert rows[0]["shape"] == rows[2]["shape"] != rows[1]["shape"]


# --- order, white space, what is not known -----------------------------------------------------------


def shuffled(told: Any, chance: random.Random) -> Any:
    if isinstance(told, dict):
        members = [(name, shuffled(value, chance)) for name, value in told.items()]
        chance.shuffle(members)
        return dict(members)
    return [shuffled(value, chance) for value in told] if isinstance(told, list) else told


CHECKSUM = {"version": 2, "corrupted": False, "current": 4294967295, "previous": 0}
KINDS = [INSERT, UPDATE, DELETE, WATERMARK, INSERT | {"checksum": CHECKSUM}]
KINDS += [UPDATE | {"data": NEW | {"t": MOMENT}, "old": BEFORE | {"t": None}}]


@pytest.mark.parametrize("message", KINDS)
def test_order_white_space_and_strange_members_change_nothing(message):
    expected = row_of(message)
    chance = random.Random(1)
    for _ in range(20):
        other = shuffled(message | {"new in v9": {"a": [1, {"b": None}], "data": {}}}, chance)
        assert row_of(compact(other)) == expected
        assert (
            row_of(json.dumps(other, indent=chance.choice([None, 1, "\t\r"])).encode()) == expected
        )
        assert row_of(b" \n\r\t" + json.dumps(other).encode() + b"\n") == expected


def test_schemas_are_copied_as_they_came():
    text = json.dumps(SCHEMA | {"partitions": [1.5, {"deep": None}]}, indent=2)
    value = compact(BOOTSTRAP | {"tableSchema": 0}).replace(b":0}", b":" + text.encode() + b"}")
    assert row_of(value)["schema"] == '{"tableSchema":' + text + "}"


def test_schemas_are_written_in_ticdcs_order_of_members():
    chance = random.Random(2)
    batch = batch_of(*(shuffled(message, chance) for message in (BOOTSTRAP, ALTER)))
    assert encoded(batch) == [compact(BOOTSTRAP), compact(ALTER)]


def stream() -> list[Any]:
    """Rows of several tables and column lists, mixed."""
    chance = random.Random(3)
    found = []
    for turn in range(400):
        message = dict(chance.choice([INSERT, UPDATE, DELETE]))
        message |= {
            "table": f"t{chance.randrange(3)}",
            "tableID": chance.choice([1, 1, 1, 20, 300]),
        }
        message |= {"commitTs": TS + turn, "buildTs": BUILD_TS + turn // 50}
        texts = ["x", "", "é", "a\nb", "y" * 40, "z" * 33, None]
        names = ["id", "name", "n" * 40] if chance.random() < 0.9 else ["id"]
        for side in ("data", "old"):
            if side in message:
                values = {name: chance.choice(texts) for name in names}
                values |= {"at": MOMENT if chance.random() < 0.7 else None}
                message[side] = dict(sorted(values.items()))
        if chance.random() < 0.1:
            message["handleKeyOnly"] = True
        order = ["schemaVersion", "handleKeyOnly", "checksum", "data", "old"]
        if chance.random() < 0.2:
            message["checksum"] = CHECKSUM | {"corrupted": chance.random() < 0.5}
        tail = {name: message.pop(name) for name in order if name in message}
        found.append(message | tail)
    return found


def test_what_is_predicted_is_what_is_read_the_general_way():
    values = [
        json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
        for message in stream()
    ]
    together = rows_of(*values)
    assert [row_of(value) for value in values] == together
    assert rows_of(*(json.dumps(json.loads(value)).encode() for value in values)) == together
    assert "error" not in {row["kind"] for row in together}


def test_many_tables_are_more_than_can_be_remembered():
    names = [f"table {i % 200}" for i in range(1000)]
    rows = rows_of(*(INSERT | {"table": name} for name in names))
    assert [row["table"] for row in rows] == names


def test_a_zone_that_changes():
    zones = ["UTC", "Asia/Shanghai", "UTC", "UTC", "Europe/Berlin"]
    messages = [INSERT | {"data": {"t": MOMENT | {"location": zone}}} for zone in zones]
    batch = batch_of(*messages)
    assert encoded(batch) == [compact(message) for message in messages]


# --- faults ----------------------------------------------------------------------------------------


def without(message: dict[str, Any], name: str) -> dict[str, Any]:
    return {member: value for member, value in message.items() if member != name}


def with_schema(**members: Any) -> dict[str, Any]:
    return BOOTSTRAP | {"tableSchema": SCHEMA | members}


def with_column(**members: Any) -> dict[str, Any]:
    return with_schema(columns=[SCHEMA["columns"][0] | members])


def with_type(**members: Any) -> dict[str, Any]:
    return with_column(dataType=SCHEMA["columns"][0]["dataType"] | members)


def with_index(**members: Any) -> dict[str, Any]:
    return with_schema(indexes=[SCHEMA["indexes"][0] | members])


def twice(message: dict[str, Any], name: str) -> bytes:
    text = compact(message)
    return text[:-1] + b',"%b":%b}' % (name.encode(), compact(message[name]))


TEXT_IN = compact(INSERT | {"data": {"v": "TEXT"}})

FAULTS = [
    ("empty", b""),
    ("truncated", b" "),
    ("type", b"[]"),
    ("type", b"1"),
    ("syntax", b"{1:2}"),
    ("trailing", compact(INSERT) + b"{}"),
    ("missing", without(INSERT, "version")),
    ("name", INSERT | {"HandleKeyOnly": True}),
    ("name", WATERMARK | {"committs": 5}),
    ("name", INSERT | {"preTableschema": None}),
    ("version", INSERT | {"version": 2}),
    ("type", INSERT | {"version": "1"}),
    ("range", INSERT | {"version": 1.5}),
    ("missing", INSERT | {"version": None}),
    ("missing", without(INSERT, "type")),
    ("kind", INSERT | {"type": "REPLACE"}),
    ("kind", INSERT | {"type": "insert"}),
    ("type", INSERT | {"type": 1}),
    *(("missing", without(INSERT, name)) for name in ("database", "table", "commitTs", "data")),
    ("missing", without(INSERT, "schemaVersion")),
    ("missing", without(UPDATE, "old")),
    ("missing", without(UPDATE, "data")),
    ("missing", without(DELETE, "old")),
    ("missing", without(WATERMARK, "commitTs")),
    ("missing", without(BOOTSTRAP, "tableSchema")),
    ("missing", BOOTSTRAP | {"tableSchema": None}),
    ("missing", without(ALTER, "sql")),
    ("columns", INSERT | {"old": {"a": "1"}}),
    ("columns", DELETE | {"data": {"a": "1"}}),
    ("columns", UPDATE | {"old": {"other": "1"}}),
    ("columns", INSERT | {"data": {f"c{i}": None for i in range(4097)}}),
    ("type", INSERT | {"data": []}),
    ("type", INSERT | {"data": {"a": ["1"]}}),
    ("type", INSERT | {"database": 1}),
    ("type", INSERT | {"tableID": "1"}),
    ("range", INSERT | {"tableID": 2**63}),
    ("range", INSERT | {"commitTs": 2**63}),
    ("range", INSERT | {"commitTs": -1}),
    ("range", INSERT | {"commitTs": 1.5}),
    ("range", INSERT | {"schemaVersion": 2**64}),
    ("type", INSERT | {"handleKeyOnly": 1}),
    ("type", INSERT | {"claimCheckLocation": 1}),
    ("type", INSERT | {"checksum": 1}),
    ("missing", INSERT | {"checksum": without(CHECKSUM, "current")}),
    ("range", INSERT | {"checksum": CHECKSUM | {"current": 2**32}}),
    ("range", INSERT | {"checksum": CHECKSUM | {"previous": -1}}),
    ("type", INSERT | {"checksum": CHECKSUM | {"corrupted": 0}}),
    *(("duplicate", twice(INSERT, name)) for name in INSERT),
    ("duplicate", twice(ALTER, "tableSchema")),
    ("duplicate", compact(INSERT).replace(b'"score":', b'"name":')),
    ("duplicate", compact(UPDATE).replace(b'"score":"90.5"', b'"name":""')),
    ("duplicate", compact(INSERT).replace(b'"score":', b'"n\\u0061me":')),
    ("missing", INSERT | {"data": {"t": {}}}),
    ("missing", INSERT | {"data": {"t": without(MOMENT, "location")}}),
    ("missing", INSERT | {"data": {"t": without(MOMENT, "value")}}),
    ("value", INSERT | {"data": {"t": MOMENT | {"location": ""}}}),
    ("type", INSERT | {"data": {"t": MOMENT | {"value": None}}}),
    ("temporal", INSERT | {"data": {"t": MOMENT | {"value": "2023-02-29 00:00:00"}}}),
    ("temporal", INSERT | {"data": {"t": MOMENT | {"value": "2024-02-29"}}}),
    ("columns", UPDATE | {"data": {"t": MOMENT}, "old": {"t": MOMENT | {"location": "UTC"}}}),
    ("range", TEXT_IN.replace(b'"TEXT"', b"1e999")),
    ("number", TEXT_IN.replace(b'"TEXT"', b"01")),
    ("utf8", TEXT_IN.replace(b"TEXT", b"\xff")),
    ("utf8", TEXT_IN.replace(b"TEXT", b"\xed\xa0\x80")),
    ("escape", TEXT_IN.replace(b"TEXT", b"\\ud800")),
    ("escape", TEXT_IN.replace(b"TEXT", b"\\x")),
    ("syntax", TEXT_IN.replace(b"TEXT", b"a\nb")),
    ("truncated", TEXT_IN[:-4]),
    (
        "depth",
        compact(INSERT | {"strange": 0}).replace(b":0}", b":" + b"[" * 100 + b"]" * 100 + b"}"),
    ),
    *(
        ("missing", BOOTSTRAP | {"tableSchema": without(SCHEMA, n)})
        for n in ("schema", "table", "version")
    ),
    ("type", with_schema(schema=1)),
    ("type", with_schema(table=None)),
    ("range", with_schema(version=2**63)),
    ("type", with_schema(tableID="1")),
    ("type", with_schema(columns={})),
    ("type", with_schema(columns=["id"])),
    ("type", with_schema(indexes=1)),
    ("missing", with_schema(columns=[without(SCHEMA["columns"][0], "name")])),
    ("missing", with_schema(columns=[without(SCHEMA["columns"][0], "dataType")])),
    ("type", with_column(name=None)),
    ("type", with_column(dataType=None)),
    ("type", with_column(nullable=1)),
    ("type", with_column(default={})),
    ("type", with_column(default=[])),
    ("range", with_column(default=10**100)),
    ("type", with_column(code="3")),
    ("type", with_column(zone=1)),
    ("type", with_type(mysqlType=None)),
    ("type", with_type(charset=1)),
    ("type", with_type(length="11")),
    ("range", with_type(length=1.5)),
    ("type", with_type(elements="a")),
    ("type", with_type(elements=[1])),
    ("type", with_type(unsigned="true")),
    ("type", with_index(name=None)),
    ("type", with_index(unique=None) | {"tableSchema": SCHEMA | {"indexes": [{"name": 1}]}}),
    ("type", with_index(columns=[None])),
    ("missing", with_schema(indexes=[{}])),
    ("range", compact(with_schema(x=0)).replace(b'"x":0', b'"x":' + b"9" * 4500)),
    ("range", compact(with_column(x=0)).replace(b'"x":0', b'"x":[' + b"9" * 4500 + b"]")),
]


@pytest.mark.parametrize(
    "code, message", FAULTS, ids=lambda told: told if isinstance(told, str) else ""
)
def test_what_cannot_be_meant_is_refused(code, message):
    assert fault_of(message) == code


@pytest.mark.parametrize(
    "code, message", FAULTS, ids=lambda told: told if isinstance(told, str) else ""
)
def test_a_bad_message_leaves_its_neighbours_alone(code, message):
    good = rows_of(INSERT, UPDATE)
    kinds = [row["kind"] for row in rows_of(INSERT, message, UPDATE)]
    assert kinds == ["insert", "error", "update"]
    rows = rows_of(INSERT, message, UPDATE)
    assert [rows[0], rows[2]] == good


def test_an_error_says_where():
    value = compact(INSERT)
    error = row_of(value.replace(b'"INSERT"', b'"UPSERT"'))["error"]
    assert error["position"] == value.index(b'"INSERT"')
    error = row_of(value.replace(b'"commitTs":', b'"commitTs":-'))["error"]
    assert error["position"] == value.index(b'"commitTs":') + len(b'"commitTs":')


def test_null_stands_for_a_member_that_is_not_there():
    members = ["sql", "claimCheckLocation", "handleKeyOnly", "checksum", "old", "tableSchema"]
    assert row_of(INSERT | dict.fromkeys(members)) == row_of(INSERT)


def readable(told: Any) -> bool:
    """Whether a batch with this schema can be read again."""
    batch = batch_of(BOOTSTRAP | {"tableSchema": told})
    if batch["kind"].to_pylist() == ["error"]:
        return True
    (text,) = batch["schema"].to_pylist()
    TableSchema.from_json(json.loads(text)["tableSchema"])
    return len(encoded(batch)) == 1


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def damaged_schemas(draw):
    """The schema with something else in one place."""
    schema = json.loads(json.dumps(SCHEMA))
    at: Any = schema
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = draw(st.sampled_from(keys))
        if not isinstance(at[key], dict | list) or not at[key] or draw(st.booleans()):
            break
        at = at[key]
    if draw(st.booleans()):
        at[key] = draw(anything)
    else:
        del at[key]
    return schema


@given(damaged_schemas())
@settings(max_examples=300, deadline=None)
def test_no_batch_carries_a_schema_that_cannot_be_read(schema):
    assert readable(schema)


PARTITIONING = {
    "method": "RANGE",
    "by": ["id"],
    "partitions": [{"name": "p0", "values": [["10"]]}, {"name": "p1"}],
}


@pytest.mark.parametrize("wrong", [5, [], ["x"], {}, {"a": 1}, True])
@pytest.mark.parametrize("place", ["charset", "collate", "partitioning", "generated"])
def test_members_that_only_tidegate_writes_are_checked_too(place, wrong):
    schema = json.loads(json.dumps(SCHEMA))
    (schema["columns"][0] if place == "generated" else schema)[place] = wrong
    assert row_of(BOOTSTRAP | {"tableSchema": schema})["kind"] == "error"


@pytest.mark.parametrize(
    "wrong",
    [
        {"by": "id"},
        {"by": [1]},
        {"partitions": {}},
        {"partitions": [5]},
        {"partitions": [{}]},
        {"partitions": [{"name": "p", "values": 5}]},
        {"partitions": [{"name": "p", "values": ["5"]}]},
        {"partitions": [{"name": "p", "values": [[5]]}]},
    ],
)
def test_a_schema_with_partitions_is_checked_to_the_ground(wrong):
    good = SCHEMA | {"partitioning": PARTITIONING, "charset": "utf8mb4", "collate": None}
    assert row_of(BOOTSTRAP | {"tableSchema": good})["kind"] == "schema"
    assert readable(good)
    bad = SCHEMA | {"partitioning": PARTITIONING | wrong}
    assert row_of(BOOTSTRAP | {"tableSchema": bad})["kind"] == "error"


# --- flags, checksums, claim checks ------------------------------------------------------------------


def test_checksums_are_kept():
    told = CHECKSUM | {"corrupted": True}
    message = without(INSERT, "data") | {"checksum": told, "data": NEW}
    row = row_of(message)
    assert row["checksum"] == told
    assert EventFlag(row["flags"]) == EventFlag.CHECKSUM | EventFlag.CORRUPTED
    assert encoded(batch_of(message, message)) == [compact(message)] * 2


def test_a_claim_check_is_not_taken_for_a_handle_key_only_message():
    both = {"claimCheckLocation": "s3://bucket/a.json", "handleKeyOnly": True}
    message = without(INSERT, "data") | both | {"data": {"id": "1"}}
    row = row_of(message)
    assert (row["claim_check"], row["flags"]) == ("s3://bucket/a.json", EventFlag.CLAIM_CHECK)
    assert encoded(batch_of(message)) == [compact(message)]
    without_key = without(message, "data")
    assert row_of(without_key)["after"] == []
    only_key = without(message, "claimCheckLocation")
    assert row_of(only_key)["flags"] == EventFlag.HANDLE_KEY_ONLY
    assert encoded(batch_of(only_key, only_key)) == [compact(only_key)] * 2


def test_a_claim_check_is_followed():
    kept = {}

    def store(content: bytes) -> str:
        kept["file:///claims/a.json"] = content
        return "file:///claims/a.json"

    large = UPDATE | {"data": NEW | {"name": "x" * 1000}}
    batch = batch_of(BOOTSTRAP, large)
    options = {
        "large_message_handle": "claim-check",
        "max_message_bytes": 1000,
        "claim_check": store,
    }
    values = encoded(batch, **options)
    assert json.loads(values[1]) == UPDATE | {
        "claimCheckLocation": "file:///claims/a.json",
        "handleKeyOnly": True,
        "data": {"id": "1"},
        "old": {"id": "1"},
    }
    followed = decode_batch("simple", None, values, encoding="json", claim_check=kept.__getitem__)
    assert followed.to_pylist() == batch.to_pylist()
    encoded(batch, **options, claim_check_raw_value=True)
    assert kept["file:///claims/a.json"] == compact(large)


def test_large_messages_with_the_handle_key_only():
    large = INSERT | {"data": NEW | {"name": "x" * 1000}}
    batch = batch_of(BOOTSTRAP, large, INSERT)
    options = {"large_message_handle": "handle-key-only", "max_message_bytes": 1000}
    values = [json.loads(value) for value in encoded(batch, **options)]
    assert values[1] == INSERT | {"handleKeyOnly": True, "data": {"id": "1"}}
    assert values[2] == INSERT


def test_the_limit_counts_kafkas_own_bytes():
    batch = batch_of(BOOTSTRAP, INSERT).slice(2)
    book = ShapeBook([batch_of(BOOTSTRAP, INSERT)])
    size = len(compact(INSERT)) + 36
    assert encoded(batch, shapes=book, max_message_bytes=size) == [compact(INSERT)]
    with pytest.raises(EncodeError, match="max-message-bytes"):
        encoded(batch, shapes=book, max_message_bytes=size - 1)


def test_a_large_row_without_a_handle_key_is_refused():
    keyless = BOOTSTRAP | {"tableSchema": SCHEMA | {"indexes": []}}
    batch = batch_of(keyless, INSERT | {"data": NEW | {"name": "x" * 900}})
    with pytest.raises(EncodeError, match="no handle key"):
        encoded(batch, large_message_handle="handle-key-only", max_message_bytes=950)


def test_claim_checks_need_a_place():
    with pytest.raises(ConfigError):
        encoded(batch_of(WATERMARK), large_message_handle="claim-check")


@pytest.mark.parametrize("algorithm", ["snappy", "lz4"])
def test_every_message_is_compressed(algorithm):
    batch = batch_of(BOOTSTRAP, INSERT, WATERMARK, ALTER)
    values = encoded(batch, compression=algorithm)
    again = decode_batch("simple", None, values, encoding="json", compression=algorithm)
    assert again.to_pylist() == batch.to_pylist()


# --- rows from other protocols -------------------------------------------------------------------------


def canal_row(**members: Any) -> dict[str, Any]:
    return {
        "id": 0, "database": "d", "table": "t", "pkNames": ["id"], "isDdl": False, "type": "INSERT",
        "es": 1, "ts": 1, "sql": "", "sqlType": {"b": 2004, "e": 4, "id": -5, "t": 93, "v": 12},
        "mysqlType": {
            "b": "blob", "e": "enum('a','b')", "id": "bigint(20) unsigned", "t": "timestamp(3)",
            "v": "varchar(10)",
        },
        "old": None,
        "data": [{"b": "\xff", "e": "2", "id": "7", "t": "2024-01-01 00:00:00.000", "v": None}],
        "_tidb": {"commitTs": TS},
    } | members  # fmt: skip


def from_canal(*messages: dict[str, Any]) -> pa.RecordBatch:
    return decode_batch("canal-json", None, [compact(message) for message in messages])


def test_rows_of_another_protocol_bring_their_schema_along():
    batch = from_canal(canal_row())
    bootstrap, insert = (json.loads(value) for value in encoded(batch, time_zone="Asia/Shanghai"))
    shape = batch["shape"].to_pylist()[0]
    binary = {"charset": "binary", "collate": "binary"}
    text = {"charset": "utf8mb4", "collate": "utf8mb4_bin"}

    def column(name: str, nullable: bool = True, **data_type: Any) -> dict[str, Any]:
        return {"name": name, "dataType": data_type, "nullable": nullable, "default": None}

    assert bootstrap == {
        "version": 1,
        "type": "BOOTSTRAP",
        "commitTs": 0,
        "buildTs": BUILD_TS,
        "tableSchema": {
            "schema": "d",
            "table": "t",
            "tableID": 0,
            "version": shape,
            "columns": [
                column("b", mysqlType="blob", **binary),
                column("e", mysqlType="enum", **text, elements=["a", "b"]),
                column("id", False, mysqlType="bigint", **binary, length=20, unsigned=True),
                column("t", mysqlType="timestamp", **binary, decimal=3),
                column("v", mysqlType="varchar", **text, length=10),
            ],
            "indexes": [
                {
                    "name": "primary",
                    "unique": True,
                    "primary": True,
                    "nullable": False,
                    "columns": ["id"],
                }
            ],
        },
    }
    assert list(bootstrap["tableSchema"]["columns"][2]["dataType"]) == [
        "mysqlType", "charset", "collate", "length", "unsigned",
    ]  # fmt: skip
    assert insert == {
        "version": 1,
        "database": "d",
        "table": "t",
        "type": "INSERT",
        "commitTs": TS,
        "buildTs": BUILD_TS,
        "schemaVersion": shape,
        "data": {
            "b": "/w==",
            "e": "2",
            "id": "7",
            "t": {"location": "Asia/Shanghai", "value": "2024-01-01 00:00:00.000"},
            "v": None,
        },
    }


def test_shapes_of_simple_itself_need_no_schema():
    told = [
        shape_of(INSERT),
        shape_of(INSERT | {"data": {"t": MOMENT}}),
        shape_of(INSERT | {"data": {"t": MOMENT, "u": None}}),
    ]
    assert not any(map(needs_bootstrap, told))
    assert needs_bootstrap([{"name": "id", "type": "int"}])
    assert needs_bootstrap([{"name": "id", "type": "timestamp", "code": 7}])


@pytest.mark.parametrize("generation, word", [("classic", "QUERY"), ("new", "ALTER")])
def test_exchanging_a_partition_is_named_by_the_generation(generation, word):
    ddl = {"type": None, "code": 42, "query": "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u"}
    batch = batch_of_rows({"kind": "ddl", "commit_ts": TS, "ddl": ddl})
    (value,) = encoded(batch, generation=generation)
    assert json.loads(value)["type"] == word


@pytest.mark.parametrize(
    "ddl, word",
    [
        ({"type": "TRUNCATE", "code": None, "query": "x"}, "TRUNCATE"),
        ({"type": None, "code": 3, "query": "x"}, "CREATE"),
        ({"type": None, "code": None, "query": "DROP TABLE t"}, "ERASE"),
        ({"type": None, "code": None, "query": "no such statement"}, "QUERY"),
    ],
)
def test_a_ddl_without_a_word_gets_one(ddl, word):
    (value,) = encoded(batch_of_rows({"kind": "ddl", "commit_ts": TS, "ddl": ddl}))
    assert json.loads(value) == {"version": 1, "type": word, "sql": ddl["query"]} | TIMES


def batch_of_rows(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"event": 0, "flags": 0} | row for row in rows], schema=CHANGE_SCHEMA
    )


def test_rows_follow_the_names_of_the_batch():
    batch = batch_of(BOOTSTRAP, INSERT)
    table = pa.array(["elsewhere"] * batch.num_rows)
    renamed = batch.set_column(batch.schema.get_field_index("table"), "table", table)
    value = encoded(renamed, shapes=ShapeBook([batch]))[-1]
    assert json.loads(value)["table"] == "elsewhere"


# --- what cannot be encoded ----------------------------------------------------------------------------


def test_a_row_of_an_unknown_shape():
    row = {"kind": "insert", "commit_ts": TS, "database": "d", "table": "t", "after": ["1"]}
    for shape in ({}, {"shape": 5}):
        with pytest.raises(SchemaNotSeen):
            encoded(batch_of_rows(row | shape))


@pytest.mark.parametrize(
    "change",
    [
        {"after": ["1"]},
        {"after": None},
        {"kind": "delete"},
        {"commit_ts": None},
        {"kind": "error"},
    ],
)
def test_a_row_that_is_not_whole(change):
    batch = batch_of(BOOTSTRAP, INSERT)
    row = batch.to_pylist()[-1] | change
    with pytest.raises(EncodeError):
        encoded(batch_of_rows(row), shapes=ShapeBook([batch]))


def test_options_of_other_protocols_are_refused():
    with pytest.raises(UnsupportedByProtocol):
        encoded(batch_of(WATERMARK), only_output_updated_columns=True)


# --- both encodings ------------------------------------------------------------------------------------


def test_each_message_says_its_encoding_by_its_first_byte():
    avro = [message.value for message in corpus.messages("ddl.simple.avro")]
    mixed = [
        value for pair in zip(avro, [compact(INSERT)] * len(avro), strict=True) for value in pair
    ]
    kinds = decode_batch("simple", None, mixed)["kind"].to_pylist()
    assert "error" not in kinds
    assert kinds.count("insert") > len(avro)
    for encoding, good in (("json", len(avro)), ("avro", None)):
        rows = decode_batch("simple", None, mixed, encoding=encoding).to_pylist()
        assert sum(row["kind"] == "error" for row in rows) == len(avro)
        assert good is None or sum(row["kind"] == "insert" for row in rows) == good


def test_an_encoding_that_does_not_exist():
    with pytest.raises(ConfigError):
        decode_batch("simple", None, [], encoding="xml")


# --- there and back ------------------------------------------------------------------------------------

names = st.text(st.characters(codec="utf-8"), max_size=12)
texts = st.none() | st.text(st.characters(codec="utf-8"), max_size=70)
numbers = st.integers(0, 2**63 - 1)


@st.composite
def messages(draw):
    """A row as TiCDC could send it."""
    kind = draw(st.sampled_from(["INSERT", "UPDATE", "DELETE"]))
    columns = sorted(draw(st.sets(names, min_size=1, max_size=6)), key=str.encode)
    moments = draw(st.sets(st.sampled_from(columns), max_size=2))
    message = {"version": 1, "database": draw(names), "table": draw(names)}
    message |= {"tableID": draw(numbers), "type": kind, "commitTs": draw(numbers)}
    message |= {"buildTs": BUILD_TS, "schemaVersion": draw(numbers)}
    message = {name: value for name, value in message.items() if value or name in TIMES}
    message["schemaVersion"] = message.get("schemaVersion", 0)
    message.setdefault("database", "")
    message.setdefault("table", "")

    def side() -> dict[str, Any]:
        return {
            name: draw(st.sampled_from([MOMENT, None]) if name in moments else texts)
            for name in columns
        }

    if draw(st.booleans()):
        message["checksum"] = CHECKSUM | {"corrupted": draw(st.booleans())}
    if kind != "DELETE":
        message["data"] = side()
    if kind != "INSERT":
        message["old"] = side()
    return message


@given(st.lists(messages(), max_size=8))
@settings(max_examples=150, deadline=None)
def test_batches_come_back_the_same(told):
    batch = batch_of(*(compact(message) for message in told))
    assert "error" not in batch["kind"].to_pylist()
    values = encoded(batch)
    expected = [
        {
            name: value
            for name, value in message.items()
            if value != "" or name not in ("database", "table")
        }
        for message in told
    ]
    assert [json.loads(value) for value in values] == expected
    whole = [
        value
        for value, message in zip(values, told, strict=True)
        if message["database"] and message["table"]
    ]
    kept = [message for message in told if message["database"] and message["table"]]
    assert rows_of(*whole) == rows_of(*kept)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_damaged_message_is_read_the_same_alone_and_in_a_stream(data):
    value = bytearray(compact(data.draw(st.sampled_from(KINDS))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(value) - 1))
        value[at] = data.draw(st.integers(0, 255))
    alone = row_of(bytes(value))
    assert rows_of(*KINDS, bytes(value), *KINDS)[len(KINDS)] == alone
