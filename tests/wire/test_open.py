"""The Open Protocol: what its messages say, both ways, and what is refused."""

import json
import random
from base64 import b64decode, b64encode
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model import ConfigError, EncodeError, EventFlag, SchemaNotSeen, UnsupportedByProtocol
from tidegate.wire import CHANGE_SCHEMA, ShapeBook, decode_batch, encode_batch
from tidegate.wire.kernel.compression import compress, decompress

TS = 415508878783938562
NONE = dict.fromkeys(CHANGE_SCHEMA.names) | {"event": 0, "flags": 0}


def size(part: bytes) -> bytes:
    return len(part).to_bytes(8)


def frame(*events: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """Key and value of a message with these events."""
    keys = b"".join(size(key) + key for key, _ in events)
    return (1).to_bytes(8) + keys, b"".join(size(value) + value for _, value in events)


def unframe(key: bytes, value: bytes) -> list[tuple[bytes, bytes]]:
    """The events of a message."""

    def parts(data: bytes) -> list[bytes]:
        found = []
        while data:
            length = int.from_bytes(data[:8])
            found.append(data[8 : 8 + length])
            data = data[8 + length :]
        return found

    assert key[:8] == (1).to_bytes(8)
    return list(zip(parts(key[8:]), parts(value), strict=True))


def row_key(table: str = "t1", **members) -> bytes:
    key = {"ts": TS, "scm": "test", "tbl": table, **members, "t": 1}
    return json.dumps(key, separators=(",", ":")).encode()


def decode(*messages: tuple[bytes | None, bytes | None], **options) -> list[dict]:
    """The events of messages; `after` and `before` by column, without what is not carried."""
    batch = decode_batch(
        "open-protocol", [key for key, _ in messages], [value for _, value in messages], **options
    )
    batch.validate(full=True)
    shapes = {}
    found = []
    for row in batch.to_pylist():
        if row["kind"] == "schema":
            shapes[row["shape"]] = json.loads(row["schema"])["columns"]
            continue
        row["columns"] = shapes.get(row["shape"])
        missing = row["before_missing"] or bytes(999)
        for side in ("after", "before"):
            if row[side] is not None:
                pairs = zip(row["columns"], row[side], strict=True)
                row[side] = {
                    column["name"]: text
                    for place, (column, text) in enumerate(pairs)
                    if side == "after" or not missing[place >> 3] >> (place & 7) & 1
                }
        found.append(row)
    return found


def decode_value(value: bytes | str, key: bytes | None = None) -> dict:
    """The one row of an event with this value."""
    key = row_key() if key is None else key
    (row,) = decode(frame((key, value.encode() if isinstance(value, str) else value)))
    return row


def schema_row(columns: list[dict], shape: int = 7, table: str = "t1") -> dict:
    document = json.dumps({"columns": columns})
    names = {"database": "test", "table": table, "shape": shape}
    return NONE | names | {"kind": "schema", "event": -1, "schema": document}


def change_row(kind: str, after=None, before=None, shape: int = 7, **members) -> dict:
    names = {"database": "test", "table": "t1", "shape": shape, "commit_ts": TS}
    return NONE | names | {"kind": kind, "after": after, "before": before} | members


def batch_of(*rows: dict) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), CHANGE_SCHEMA)


def encode(*rows: dict, **options) -> list[list[tuple[bytes, bytes]]]:
    """The events of each message."""
    messages = encode_batch("open-protocol", batch_of(*rows), **options)
    pairs = zip(messages["key"].to_pylist(), messages["value"].to_pylist(), strict=True)
    return [unframe(key, value) for key, value in pairs]


def column(name: str, code: int, flags: int) -> dict:
    return {"name": name, "code": code, "flags": flags, "key": bool(flags & 2)}


ID, VAL = column("id", 3, 11), column("val", 15, 64)
TABLE = schema_row([ID, VAL])


# --- the document's own examples -----------------------------------------------------------------

DOCUMENT = [
    (
        '{"ts":415508856908021766,"scm":"test","tbl":"t1","t":2}',
        '{"q":"CREATE TABLE test.t1(id int primary key, val varchar(16))","t":3}',
        {"kind": "ddl", "commit_ts": 415508856908021766, "database": "test", "table": "t1"},
    ),
    (
        '{"ts":415508856908021766,"t":3}',
        "",
        {"kind": "watermark", "commit_ts": 415508856908021766, "database": None, "table": None},
    ),
    (
        '{"ts":415508878783938562,"scm":"test","tbl":"t1","t":1}',
        '{"u":{"id":{"t":3,"h":true,"v":1},"val":{"t":15,"v":"YWE="}}}',
        {"kind": "insert", "after": {"id": "1", "val": "YWE="}, "before": None},
    ),
    (
        '{"ts":415508881418485761,"scm":"test","tbl":"t1","t":1}',
        '{"d":{"id":{"t":3,"h":true,"v":1}}}',
        {"kind": "delete", "after": None, "before": {"id": "1"}},
    ),
]


@pytest.mark.parametrize("key, value, expected", DOCUMENT)
def test_the_examples_of_the_document(key, value, expected):
    (row,) = decode(frame((key.encode(), value.encode())))
    assert {name: row[name] for name in expected} == expected


def test_old_senders_give_no_flags():
    row = decode_value(DOCUMENT[2][1])
    assert row["columns"] == [
        {"name": "id", "type": "int", "code": 3, "key": True},
        {"name": "val", "type": "varchar", "code": 15},
    ]


def test_a_ddl_has_its_code_and_canals_word():
    row = decode_value('{"q":"x","t":3}', b'{"ts":1,"scm":"d","tbl":"t","t":2}')
    assert row["ddl"] == {"type": "CREATE", "code": 3, "query": "x"}


@pytest.mark.parametrize("value", ['{"q":"x","t":"7"}', '{"t":7,"q":"x","more":[1,{"a":null}]}'])
def test_a_ddl_type_may_be_a_numeric_string(value):
    row = decode_value(value, b'{"ts":1,"scm":"d","tbl":"","t":2}')
    assert row["ddl"] == {"type": "CINDEX", "code": 7, "query": "x"}
    assert (row["database"], row["table"]) == ("d", None)


# --- messages ------------------------------------------------------------------------------------


def test_a_message_may_hold_no_event():
    key, _ = frame()
    assert decode((key, b""), (key, None)) == []


@pytest.mark.parametrize("value", [bytes(8), b"", None])
def test_a_resolved_event_may_have_no_value(value):
    key, _ = frame((b'{"ts":5,"t":3}', b""))
    (row,) = decode((key, value))
    assert (row["kind"], row["commit_ts"]) == ("watermark", 5)


def test_events_are_numbered_within_their_message():
    insert = row_key(), b'{"u":{"id":{"t":3,"f":11,"v":1}}}'
    rows = decode(frame(insert, (b'{"ts":5,"t":3}', b""), insert), frame(insert))
    assert [row["event"] for row in rows] == [0, 1, 2, 0]


def test_an_empty_object_is_no_event():
    """Old versions sent one for a row that came and went within a transaction."""
    insert = row_key(), b'{"u":{"id":{"t":3,"f":11,"v":1}}}'
    rows = decode(frame((row_key(), b"{}"), insert))
    assert [(row["kind"], row["event"]) for row in rows] == [("insert", 1)]


KEYS = [
    ('{"ts":%d,"scm":"d","tbl":"t","rid":5,"ptn":77,"t":1}', 77, 0, None),
    ('{"ts":%d,"scm":"d","tbl":"t","t":1,"ptn":77}', 77, 0, None),
    ('{"ts":%d,"scm":"d","tbl":"t","rid":-5,"t":1,"ohk":true}', None, 1, None),
    (
        '{"ts":%d,"scm":"d","tbl":"t","t":1,"ohk":true,"ohk":false,"ccl":"a/b.json"}',
        None,
        2,
        "a/b.json",
    ),
    ('{"ts":%d,"scm":"d","tbl":"t","t":1,"ccl":"a\\/b.json"}', None, 2, "a/b.json"),
    ('{"ccl":"x","t":1,"ohk":true,"tbl":"t","ptn":-1,"scm":"d","ts":%d}', -1, 3, "x"),
    ('{ "t" : 1 , "scm" : "d" , "tbl":"\\u0074","new":{"a":[1]},"ts":%d }', None, 0, None),
]


@pytest.mark.parametrize("key, partition, flags, location", KEYS)
@pytest.mark.parametrize("seen_before", [0, 3])
def test_keys_of_both_architectures_in_any_order(key, partition, flags, location, seen_before):
    value = b'{"u":{"id":{"t":3,"f":11,"v":1}}}'
    plain = b'{"ts":%d,"scm":"d","tbl":"t","t":1}' % TS
    event = (key % TS).encode(), value
    row = decode(frame(*[(plain, value)] * seen_before, event))[-1]
    assert (row["database"], row["table"], row["commit_ts"]) == ("d", "t", TS)
    assert (row["table_id"], row["flags"], row["claim_check"]) == (partition, flags, location)
    assert row["after"] == {"id": "1"}


# --- values, both ways ---------------------------------------------------------------------------

# type code, flags, JSON as the classic encoder writes it, text in the batch[, JSON of the new one]
VALUES = [
    (1, 65, "-128", "-128"),
    (1, 193, "255", "255"),
    (2, 65, "-32768", "-32768"),
    (9, 193, "16777215", "16777215"),
    (3, 65, "0", "0"),
    (3, 193, "4294967295", "4294967295"),
    (8, 65, "-9223372036854775808", "-9223372036854775808"),
    (8, 193, "18446744073709551615", "18446744073709551615"),
    (16, 193, "18446744073709551615", "18446744073709551615"),
    (247, 64, "65535", "65535"),
    (248, 64, "9223372036854775808", "9223372036854775808"),
    (13, 193, "2155", "2155"),
    (13, 193, "0", "0"),
    (4, 65, "1.5", "1.5"),
    (4, 65, "3.4028235e+38", "3" + "40282350000000000000000000000000000000"),
    (4, 65, "1e-7", "0.0000001", "1e-07"),
    (4, 65, "0.000001", "0.000001"),
    (5, 65, "1e+21", "1" + "0" * 21),
    (5, 65, "100000000000000000000", "1" + "0" * 20),
    (5, 65, "-2.718281828459045", "-2.718281828459045"),
    (5, 65, "5e-324", "0." + "0" * 323 + "5"),
    (246, 65, '"-129012.1230000"', "-129012.1230000"),
    (246, 65, '"0"', "0"),
    (10, 65, '"2000-02-29"', "2000-02-29"),
    (10, 65, '"0000-00-00"', "0000-00-00"),
    (12, 65, '"2015-12-20 23:58:58.123456"', "2015-12-20 23:58:58.123456"),
    (7, 65, '"1973-12-30 15:30:00"', "1973-12-30 15:30:00"),
    (11, 65, '"-838:59:59.000000"', "-838:59:59.000000"),
    (15, 64, '""', ""),
    (15, 64, '"quote\\" slash\\\\ /\\n\\r\\t"', 'quote" slash\\ /\n\r\t'),
    (
        15,
        64,
        '"\\u003ca\\u0026b\\u003e\\b\\f\\u0000"',
        "<a&b>\b\f\0",
        '"<a&b>\\u0008\\u000c\\u0000"',
    ),
    (254, 64, '"中文😀\x7f"', "中文😀\x7f"),
    (15, 64, '"line\\u2028sep\\u2029"', "line\u2028sep\u2029", '"line\u2028sep\u2029"'),
    (253, 64, '"test"', "test"),
    (15, 65, '"\\\\x89PNG\\\\r\\\\n\\\\x1a\\\\n"', b64encode(b"\x89PNG\r\n\x1a\n").decode()),
    (254, 65, '"\\\\\\"\\\\\\\\ é\\\\u200b"', b64encode('"\\ é\u200b'.encode()).decode()),
    (15, 65, '""', ""),
    (252, 64, '"5rWL6K+VdGV4dA=="', "测试text"),
    (251, 64, '""', ""),
    (249, 65, '"//4="', "//4="),
    (250, 65, '"AA=="', "AA=="),
    (245, 65, '"{\\"key1\\": \\"value1\\"}"', '{"key1": "value1"}'),
    (225, 65, '"[1,2.5,-3]"', "[1,2.5,-3]"),
    (3, 65, "null", None),
    (15, 64, "null", None),
    (6, 64, "null", None),
]


@pytest.mark.parametrize("code, flags, text, expected", [case[:4] for case in VALUES])
@pytest.mark.parametrize("members", ['"t":{t},"f":{f},"v":{v}', '"v":{v} , "f":{f},"t":{t}'])
@pytest.mark.parametrize("seen_before", [0, 3])
def test_values_decode(code, flags, text, expected, members, seen_before):
    inner = members.format(t=code, f=flags, v=text)
    null = f'{{"u":{{"c":{{"t":{code},"f":{flags},"v":null}}}}}}'.encode()
    value = f'{{"u":{{"c":{{{inner}}}}}}}'.encode()
    row = decode(frame(*[(row_key(), null)] * seen_before, (row_key(), value)))[-1]
    assert row["after"] == {"c": expected}
    assert [(column["code"], column["flags"]) for column in row["columns"]] == [(code, flags)]


@pytest.mark.parametrize("name", ["x", "xx", "X"])
@pytest.mark.parametrize("column", ['"t":3,"{}":1,"f":0,"v":7', '"t":3,"f":0,"v":7,"{}":[1]'])
def test_unknown_members_of_a_column_are_skipped(name, column):
    row = decode_value('{"u":{"c":{' + column.format(name) + "}}}")
    assert row["after"] == {"c": "7"}


@pytest.mark.parametrize("case", VALUES)
@pytest.mark.parametrize("generation", ["classic", "new"])
def test_values_encode(case, generation):
    code, flags, text, expected = case[:4]
    spelled = case[4] if generation == "new" and len(case) == 5 else text
    rows = schema_row([column("c", code, flags)]), change_row("insert", [expected])
    ((event,),) = encode(*rows, generation=generation)
    assert event[1].decode() == f'{{"u":{{"c":{{"t":{code},"f":{flags},"v":{spelled}}}}}}}'


@pytest.mark.parametrize(
    "code, text, expected",
    [
        (5, "1.50", "1.5"),
        (5, "12e2", "1200"),
        (5, "0.1000000000000000055511151231257827", "0.1"),
        (5, "-0", "-0"),
        (4, "3.14000000000000000001", "3.14"),
        (4, "16777217", "16777216"),
        (15, '"\\ud83d\\ude00\\/"', "😀/"),
        (200, '"some text"', "some text"),
        (200, "12.5", "12.5"),
    ],
)
def test_values_spelled_otherwise(code, text, expected):
    row = decode_value(f'{{"u":{{"c":{{"t":{code},"f":64,"v":{text}}}}}}}')
    assert row["after"] == {"c": expected}


UNFIT = [
    (3, 65, '"1"', "type"),
    (3, 65, "1.0", "value"),
    (3, 65, "1e2", "value"),
    (3, 65, "01", "number"),
    (3, 65, "-0", "value"),
    (3, 65, "-", "number"),
    (3, 65, "true", "type"),
    (3, 65, "{}", "type"),
    (3, 65, "nul", "syntax"),
    (1, 65, "256", "value"),
    (1, 65, "-129", "value"),
    (3, 65, "4294967296", "value"),
    (8, 193, "18446744073709551616", "value"),
    (8, 65, "-9223372036854775809", "value"),
    (8, 65, "1" + "0" * 30, "value"),
    (16, 193, "-1", "value"),
    (13, 193, "1900", "value"),
    (247, 64, "65536", "value"),
    (5, 65, '"1"', "type"),
    (5, 65, "1e400", "range"),
    (4, 65, "1e39", "range"),
    (5, 65, "1.", "number"),
    (246, 65, "1", "type"),
    (246, 65, '"1e5"', "value"),
    (246, 65, '""', "value"),
    (246, 65, '"1."', "value"),
    (10, 65, '"2001-02-29"', "temporal"),
    (10, 65, '"2001-13-01"', "temporal"),
    (12, 65, '"2001-01-01 24:00:00"', "temporal"),
    (12, 65, '"2001-01-01"', "temporal"),
    (7, 65, '"2001-01-01T00:00:00"', "temporal"),
    (11, 65, '"839:00:00"', "temporal"),
    (15, 64, "1", "type"),
    (15, 64, '"a', "truncated"),
    (15, 64, '"\\x"', "escape"),
    (15, 64, '"\\ud800"', "escape"),
    (15, 64, '"\n"', "syntax"),
    (15, 65, '"\\\\q"', "binary"),
    (15, 65, '"\\\\x1"', "binary"),
    (252, 64, '"AA"', "base64"),
    (252, 64, '"//4="', "utf8"),
    (252, 65, '"A!=="', "base64"),
    (255, 64, '"x"', "value"),
    (6, 64, "1", "value"),
]


@pytest.mark.parametrize("code, flags, text, fault", UNFIT)
@pytest.mark.parametrize("seen_before", [0, 3])
def test_values_that_do_not_fit_are_refused(code, flags, text, fault, seen_before):
    null = f'{{"u":{{"c":{{"t":{code},"f":{flags},"v":null}}}}}}'.encode()
    value = f'{{"u":{{"c":{{"t":{code},"f":{flags},"v":{text}}}}}}}'.encode()
    before = [frame((row_key(), null))] * seen_before
    *good, row = decode(*before, frame((row_key(), value)))
    assert [other["kind"] for other in good] == ["insert"] * seen_before
    assert row["error"]["code"] == fault
    assert row["error"]["part"] == "value"


@pytest.mark.parametrize(
    "code, flags, text",
    [
        (3, 65, ""),
        (3, 65, "1.5"),
        (3, 65, "4294967296"),
        (3, 65, "007"),
        (5, 65, "x"),
        (15, 65, "A"),
        (250, 65, "!!!!"),
        (6, 64, "x"),
    ],
)
def test_texts_that_no_column_of_their_type_holds_are_not_written(code, flags, text):
    with pytest.raises(EncodeError, match=r"test\.t1\.c as open-protocol"):
        encode(schema_row([column("c", code, flags)]), change_row("insert", [text]))


# --- rows ----------------------------------------------------------------------------------------

U = '"u":{"id":{"t":3,"h":true,"f":11,"v":1},"a":{"t":3,"f":65,"v":2},"b":{"t":15,"f":64,"v":"x"}}'
AFTER = {"id": "1", "a": "2", "b": "x"}


def braces(*members: str) -> str:
    return "{" + ",".join(members) + "}"


ROWS = [
    (braces(U), "insert", AFTER, None),
    (braces(U.replace('"u"', '"d"')), "delete", None, AFTER),
    (braces(U, U.replace('"u"', '"p"')), "update", AFTER, AFTER),
    (braces(U, '"p":{"a":{"t":3,"f":65,"v":null}}'), "update", AFTER, {"a": None}),
    (braces('"p":{"b":{"t":15,"f":64,"v":""}}', U), "update", AFTER, {"b": ""}),
    (
        braces(U, '"p":{"b":{"v":"y","t":15,"f":64},"id":{"t":3,"f":11,"v":1}}'),
        "update",
        AFTER,
        {"b": "y", "id": "1"},
    ),
    (braces(U, '"p":{}'), "update", AFTER, {}),
    ('{"u":{}}', "insert", {}, None),
    (braces('"x":{"u":1}', U, '"y":[]'), "insert", AFTER, None),
]


@pytest.mark.parametrize("value, kind, after, before", ROWS)
@pytest.mark.parametrize("seen_before", [0, 3])
def test_kinds_of_rows(value, kind, after, before, seen_before):
    event = row_key(), value.encode()
    seen = [(row_key(), braces(U).encode())] * seen_before
    row = decode(frame(*seen, event))[-1]
    assert (row["kind"], row["after"], row["before"]) == (kind, after, before)


def test_what_before_does_not_carry_is_marked_and_null():
    value = braces(U, '"p":{"a":{"t":3,"f":65,"v":null}}').encode()
    batch = decode_batch("open-protocol", *zip(frame((row_key(), value)), strict=True))
    row = batch.to_pylist()[-1]
    assert (row["before"], row["before_missing"]) == ([None, None, None], b"\x05")


@pytest.mark.parametrize(
    "value, fault",
    [
        ("", "empty"),
        ("[]", "type"),
        ('{"u":[]}', "type"),
        ('{"u":{"a":1}}', "type"),
        ('{"u":{"a":{"t":3,"f":65}}}', "missing"),
        ('{"u":{"a":{"f":65,"v":1}}}', "missing"),
        ('{"u":{"a":{"t":3,"t":3,"v":1}}}', "duplicate"),
        ('{"u":{"a":{"t":3,"v":1,"v":1}}}', "duplicate"),
        ('{"u":{"a":{"t":256,"v":1}}}', "range"),
        ('{"u":{"a":{"t":3,"f":4294967296,"v":1}}}', "range"),
        ('{"u":{"a":{"t":3,"h":1,"v":1}}}', "type"),
        ('{"u":{"a":{"t":3,"v":1},"a":{"t":3,"v":1}}}', "duplicate"),
        ('{"u":{"a":{"t":3,"v":1}},"u":{"a":{"t":3,"v":1}}}', "duplicate"),
        ('{"u":{"a":{"t":3,"v":1}},"d":{"a":{"t":3,"v":1}}}', "kind"),
        ('{"u":{"a":{"t":3,"v":1}},"p":{"b":{"t":3,"v":1}}}', "columns"),
        ('{"u":{"a":{"t":3,"v":1}},"p":{"a":{"t":15,"v":"1"}}}', "columns"),
        ('{"u":{"a":{"t":3,"v":1}},"p":{"a":{"t":3,"v":1},"a":{"t":3,"v":1}}}', "duplicate"),
        ('{"p":{"a":{"t":3,"v":1}}}', "missing"),
        ('{"x":{"a":{"t":3,"v":1}}}', "missing"),
        ('{"u":{"a":{"t":3,"v":1}},"P":{"a":{"t":3,"v":1}}}', "name"),
        ('{"u":{"a":{"t":15,"F":1,"v":"x"}}}', "name"),
        ('{"u":{"a":{"t":3,"v":1,"H":true}}}', "name"),
        ('{"u":{"a":{"t":3,"v":1},}}', "syntax"),
        ('{"u":{"a":{"t":3,"v":1,}}}', "syntax"),
        ('{"u":{"a":{"t":3,"v":1}}', "truncated"),
        ('{"u":{"a":{"t":3,"v":1}}}}', "trailing"),
        ('{"u":{"a":{"t":3,"v":1}} "p":{}}', "syntax"),
        ('{"u":{},"u":{}}', "duplicate"),
        ('{"u":' + braces(*(f'"c{n}":{{"t":3,"v":1}}' for n in range(4097))) + "}", "columns"),
    ],
)
def test_rows_that_are_no_rows_are_refused(value, fault):
    assert decode_value(value)["error"]["code"] == fault


@pytest.mark.parametrize(
    "key, fault",
    [
        ("{}", "missing"),
        ('{"ts":1}', "missing"),
        ('{"t":3}', "missing"),
        ('{"ts":1,"t":1}', "missing"),
        ('{"ts":1,"scm":"d","t":1}', "missing"),
        ('{"ts":1,"t":4}', "kind"),
        ('{"ts":1,"t":0}', "kind"),
        ('{"ts":9223372036854775808,"t":3}', "range"),
        ('{"ts":-1,"t":3}', "range"),
        ('{"ts":"1","t":3}', "type"),
        ('{"ts":1,"ts":1,"t":3}', "duplicate"),
        ('{"ts":1,"tS":1,"t":3}', "name"),
        ('{"ts":1,"scm":"d","tbl":"t","t":1,"Ohk":true}', "name"),
        ('{"ts":1,"t":3} x', "trailing"),
        ('{"ts":1,"t":3', "truncated"),
        ('{"ts":1,"scm":1,"tbl":"t","t":1}', "type"),
        ('{"ts":1,"scm":"d","tbl":"t","t":1,"ptn":"x"}', "type"),
        ('{"ts":1,"scm":"d","tbl":"t","t":1,"rid":1.5}', "range"),
        ('{"ts":1,"scm":"d","tbl":"t","t":1,"ohk":1}', "type"),
        ('{"ts":1,"scm":"d","tbl":"\\ud800","t":1}', "escape"),
        ("", "truncated"),
    ],
)
def test_keys_that_are_no_keys_are_refused(key, fault):
    row = decode_value("{}", key.encode())
    assert (row["error"]["code"], row["error"]["part"]) == (fault, "key")


@pytest.mark.parametrize(
    "value, fault",
    [
        ("", "empty"),
        ('{"q":"x"}', "missing"),
        ('{"t":1}', "missing"),
        ('{"q":1,"t":1}', "type"),
        ('{"q":"x","t":"one"}', "number"),
        ('{"q":"x","t":2147483648}', "range"),
        ('{"q":"x","t":1,"t":1}', "duplicate"),
        ('{"q":"x","t":1,"Q":"y"}', "name"),
    ],
)
def test_ddl_that_is_no_ddl_is_refused(value, fault):
    assert decode_value(value, b'{"ts":1,"scm":"d","tbl":"t","t":2}')["error"]["code"] == fault


INSERT = row_key(), b'{"u":{"id":{"t":3,"f":11,"v":1}}}'
KEY, VALUE = frame(INSERT)


@pytest.mark.parametrize(
    "key, value, part, position, fault",
    [
        (None, VALUE, "key", 0, "key"),
        (b"", VALUE, "key", 0, "key"),
        (KEY[:7], VALUE, "key", 0, "key"),
        ((2).to_bytes(8) + KEY[8:], VALUE, "key", 0, "version"),
        (KEY[:12], VALUE, "key", 8, "truncated"),
        (KEY[:-1], VALUE, "key", 16, "length"),
        (KEY, VALUE[:7], "value", 0, "truncated"),
        (KEY, VALUE[:-1], "value", 8, "length"),
        (KEY, VALUE + b"x", "value", len(VALUE), "trailing"),
        (KEY, VALUE + VALUE, "value", len(VALUE), "trailing"),
        (KEY[:8], VALUE, "value", 0, "trailing"),
        (KEY + KEY[8:], VALUE, "value", len(VALUE), "truncated"),
        (KEY, b"", "value", 0, "empty"),
        (KEY, None, "value", 0, "empty"),
        (KEY, bytes(8), "value", 8, "empty"),
    ],
)
def test_framing_that_does_not_fit_is_refused(key, value, part, position, fault):
    (row,) = decode((key, value))
    error = row["error"]
    assert (error["part"], error["position"], error["code"]) == (part, position, fault)


# --- the new architecture's `p` without names ----------------------------------------------------


def updated(after: str, before: str) -> dict:
    """id, and columns a to d of type int and e of type varchar, whose texts `after` gives."""
    values = dict(pair.split("=") for pair in after.split())
    columns = [
        f'"{name}":{{"t":{15 if name == "e" else 3},"f":{64 if name == "e" else 65},"v":{value}}}'
        for name, value in values.items()
    ]
    return decode_value(braces('"u":' + braces(*columns), '"p":' + braces(before)))


INT, TEXT = '"t":3,"f":65,"v":%d', '"t":15,"f":64,"v":"%s"'
NAMED = '"%s":{"t":3,"f":65,"v":%s}'


@pytest.mark.parametrize(
    "after, before, expected",
    [
        ("id=1 a=null b=2", INT % 7, {"a": "7"}),
        ("id=1 a=null b=2 e=null", f"{INT % 7},{TEXT % 'x'}", {"a": "7", "e": "x"}),
        (
            "a=null b=null c=null",
            ",".join(INT % n for n in (7, 8, 9)),
            {"a": "7", "b": "8", "c": "9"},
        ),
        (
            "a=null t=1 v=2 f=null",
            f"{INT % 7},{NAMED % ('t', 'null')},{NAMED % ('v', 5)}",
            {"a": "7", "t": None, "v": "5"},
        ),
        ("a=null b=1 c=null", f"{NAMED % ('b', 3)},{INT % 7}", {"b": "3", "c": "7"}),
        ("a=1 t=null", INT % 7, {"t": "7"}),
    ],
)
def test_values_without_a_name_find_their_column(after, before, expected):
    row = updated(after, before)
    assert row["before"] == expected
    assert row["flags"] == 0


@pytest.mark.parametrize(
    "after, before, expected",
    [
        ("a=null b=null", INT % 7, {}),
        (
            "a=null b=null c=1 d=null",
            f"{INT % 7},{NAMED % ('c', 2)},{INT % 8}",
            {"c": "2", "d": "8"},
        ),
        ("a=null b=null c=null", f"{INT % 7},{INT % 8}", {}),
    ],
)
def test_values_that_may_belong_to_several_columns_are_given_up(after, before, expected):
    row = updated(after, before)
    assert row["before"] == expected
    assert row["flags"] == EventFlag.BEFORE_AMBIGUOUS


@pytest.mark.parametrize(
    "after, before, fault",
    [
        ("a=1 b=2", INT % 7, "columns"),
        ("a=null b=2", TEXT % "x", "columns"),
        ("a=null b=2", f"{INT % 7},{INT % 8}", "columns"),
        ("a=null b=1", f"{NAMED % ('b', 3)},{INT % 7}", "columns"),
        ("a=null", '"t":3,"f":65', "missing"),
        ("a=null", '"v":3,"t":3,"f":65', "missing"),
        ("a=null", '"t":3,"a":{"t":3,"f":65,"v":1},"v":3', "missing"),
        ("a=null", '"x":3', "type"),
        ("a=null", '"t":3,"t":3,"v":1', "duplicate"),
    ],
)
def test_values_that_belong_nowhere_are_refused(after, before, fault):
    assert updated(after, before)["error"]["code"] == fault


# --- prediction ----------------------------------------------------------------------------------


def random_row(chance: random.Random) -> tuple[bytes, bytes]:
    """An event of one of a few tables, with values of every form."""
    table = chance.choice(["t1", "t2", 'q"t'])
    columns = {"t1": "id a b e", "t2": "id d f g h", 'q"t': "id k"}[table].split()
    forms = {
        "id": (3, 11, lambda: chance.randrange(-(2**31), 2**31)),
        "a": (8, 193, lambda: chance.randrange(2 ** chance.randrange(1, 65))),
        "b": (15, 64, lambda: "".join(chance.choices('abc "\\\n<é😀', k=chance.randrange(40)))),
        "d": (246, 65, lambda: f"{chance.randrange(10**6)}.{chance.randrange(100):02}"),
        "e": (12, 65, lambda: f"20{chance.randrange(100):02}-0{chance.randrange(1, 9)}-1{chance.randrange(9)} 01:02:03"),
        "f": (5, 65, lambda: chance.random() * 10 ** chance.randrange(-30, 30)),
        "g": (252, 64, lambda: b64encode("é".encode() * chance.randrange(9)).decode()),
        "h": (15, 65, lambda: "\\x00" * chance.randrange(5) + "plain"),
        "k": (251, 65, lambda: b64encode(chance.randbytes(chance.randrange(20))).decode()),
    }  # fmt: skip

    def side(names: list[str]) -> dict:
        found = {}
        for name in names:
            code, flags, value = forms[name]
            handle = {"h": True} if flags & 2 else {}
            null = not handle and chance.random() < 0.2
            found[name] = {"t": code, **handle, "f": flags, "v": None if null else value()}
        return found

    kind = chance.randrange(5)
    if kind == 0:
        members = {"d": side(columns if chance.random() < 0.8 else ["id"])}
    elif kind < 3:
        members = {"u": side(columns)}
    else:
        old = columns if kind == 3 else [name for name in columns if chance.random() < 0.5]
        members = {"u": side(columns), "p": side(old)}
    partition = {"ptn": 7} if chance.random() < 0.3 else {}
    ascii_only = chance.random() < 0.5
    value = json.dumps(members, separators=(",", ":"), ensure_ascii=ascii_only)
    return row_key(table, **partition), value.encode()


def shuffled(document, chance: random.Random):
    if not isinstance(document, dict):
        return document
    members = [(name, shuffled(member, chance)) for name, member in document.items()]
    chance.shuffle(members)
    return dict(members)


def content(row: dict) -> dict:
    """What a row says, whatever its columns' order."""
    said = {
        name: row[name]
        for name in ("kind", "commit_ts", "table", "table_id", "after", "before", "flags")
    }
    error = row["error"] and {name: row["error"][name] for name in ("code", "part", "position")}
    return said | {"error": error, "columns": sorted(map(str, row["columns"] or ()))}


@pytest.mark.parametrize("seed", range(20))
def test_a_row_reads_the_same_alone_in_a_stream_and_shuffled(seed):
    chance = random.Random(seed)
    events = [random_row(chance) for _ in range(80)]
    stream = decode(*map(frame, events))
    batched = decode(*(frame(*events[start : start + 16]) for start in range(0, len(events), 16)))
    alone = [decode(frame(event))[0] for event in events]
    mixed = [
        decode(
            frame(tuple(json.dumps(shuffled(json.loads(part), chance)).encode() for part in event))
        )[0]
        for event in events
    ]

    assert [row["kind"] for row in stream if row["error"]] == []
    for name in ("after", "before", "shape", "kind", "flags", "before_missing"):
        assert [row[name] for row in stream] == [row[name] for row in alone]
        assert [row[name] for row in batched] == [row[name] for row in alone]
    assert list(map(content, mixed)) == list(map(content, alone))


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_row_reads_the_same_alone_and_in_a_stream(seed):
    chance = random.Random(seed)
    key, value = random_row(chance)
    damaged = []
    for _ in range(150):
        broken = bytearray(value)
        for _ in range(chance.choice([1, 1, 1, 2])):
            broken[chance.randrange(len(broken))] = chance.choice(b'0159",:{}\\xntf- \x80\x00')
        if chance.random() < 0.3:
            place = chance.randrange(len(broken))
            del broken[place : place + chance.randrange(4)]
        damaged.append((key, bytes(broken)))
    good = frame((key, value))
    stream = decode(*chain_with(good, map(frame, damaged)))[3:][1::2]
    alone = [decode(frame(event)) for event in damaged]

    assert [[content(row)] for row in stream] == [list(map(content, rows)) for rows in alone]


def chain_with(good, messages):
    """Three good ones, then one before each."""
    found = [good] * 3
    for message in messages:
        found += [good, message]
    return found


def test_more_tables_and_shapes_than_are_remembered():
    rows = []
    for turn in range(4):
        for table in range(100):
            names = ["id", *(f"c{n}" for n in range((table + turn) % 7))]
            columns = ",".join(f'"{name}":{{"t":3,"f":65,"v":{table}}}' for name in names)
            rows.append((row_key(f"t{table}"), f'{{"u":{{{columns}}}}}'.encode()))
    stream = decode(*map(frame, rows))
    assert [row["after"] for row in stream] == [decode(frame(row))[0]["after"] for row in rows]
    assert [row["table"] for row in stream] == [json.loads(key)["tbl"] for key, _ in rows]


def test_a_remembered_name_does_not_let_bad_json_pass():
    plain = frame((b'{"ts":415508878783938562,"scm":"d","tbl":"t","t":1}', INSERT[1]))
    bad = frame((b'{"ts":415508878783938562 ,"scm":"d","tbl":"t" "t":1}', INSERT[1]))
    assert [row["kind"] for row in decode(plain, plain, plain, bad)] == ["insert"] * 3 + ["error"]


# --- encoding ------------------------------------------------------------------------------------


def test_the_classic_and_the_new_architecture():
    table = schema_row([ID, VAL, column("B", 3, 65)])
    row = change_row("update", ["1", "x", "2"], ["1", "y", "2"], table_id=77)
    ((classic,),) = encode(table, row)
    ((new,),) = encode(table, row, generation="new")
    assert classic[0] == b'{"ts":%d,"scm":"test","tbl":"t1","rid":1,"ptn":77,"t":1}' % TS
    assert new[0] == b'{"ts":%d,"scm":"test","tbl":"t1","t":1,"ptn":77}' % TS
    assert list(json.loads(classic[1])["u"]) == ["B", "id", "val"]
    assert list(json.loads(new[1])["p"]) == ["id", "val", "B"]
    assert classic[1].startswith(
        b'{"u":{"B":{"t":3,"f":65,"v":2},"id":{"t":3,"h":true,"f":11,"v":1},'
    )


@pytest.mark.parametrize(
    "columns, texts, rowid",
    [
        ([ID], ["5"], 5),
        ([ID], ["-5"], -5),
        ([ID], ["0"], None),
        ([column("id", 8, 139)], ["18446744073709551615"], -1),
        ([column("id", 15, 10)], ["5"], None),
        ([column("id", 3, 19)], ["5"], None),
        ([column("id", 3, 43), column("k", 3, 43)], ["5", "6"], None),
        ([VAL], ["x"], None),
    ],
)
def test_the_row_id_is_known_of_one_integer_primary_key(columns, texts, rowid):
    for kind in ("insert", "delete"):
        sides = {"after" if kind == "insert" else "before": texts}
        ((event,),) = encode(schema_row(columns), change_row(kind, **sides))
        assert json.loads(event[0]).get("rid") == rowid


def test_ddl_and_watermarks_stand_alone():
    insert = change_row("insert", ["1", "x"])
    ddl = NONE | {
        "kind": "ddl",
        "commit_ts": TS,
        "database": "test",
        "ddl": {"type": "QUERY", "code": 1, "query": "create <x>"},
    }
    watermark = NONE | {"kind": "watermark", "commit_ts": TS}
    rows = TABLE, insert, ddl, insert, insert, watermark, insert
    messages = encode_batch("open-protocol", batch_of(*rows))
    assert messages["row"].to_pylist() == [1, 2, 3, 5, 6]
    assert messages["events"].to_pylist() == [1, 1, 2, 1, 1]
    assert messages["value"][3].as_py() == bytes(8)
    _, (classic,), _, (resolved,), _ = encode(*rows)
    _, (new,), *_ = encode(*rows, generation="new")
    assert classic == (
        b'{"ts":%d,"scm":"test","t":2}' % TS,
        b'{"q":"create \\u003cx\\u003e","t":1}',
    )
    assert new == (b'{"ts":%d,"scm":"test","tbl":"","t":2}' % TS, b'{"q":"create <x>","t":1}')
    assert resolved == (b'{"ts":%d,"t":3}' % TS, b"")


def test_a_ddl_without_a_code_gets_one_from_its_statement():
    ddl = NONE | {
        "kind": "ddl",
        "commit_ts": TS,
        "database": "d",
        "table": "t",
        "ddl": {"type": "ALTER", "code": None, "query": "ALTER TABLE t ADD COLUMN a INT"},
    }
    ((event,),) = encode(ddl)
    assert json.loads(event[1])["t"] == 5


def counts(messages: list) -> list[int]:
    return [len(message) for message in messages]


def test_rows_join_up_to_the_batch_size():
    rows = [change_row("insert", [str(n), "x"]) for n in range(40)]
    assert counts(encode(TABLE, *rows)) == [16, 16, 8]
    assert counts(encode(TABLE, *rows, max_batch_size=1)) == [1] * 40


def test_rows_of_one_table_join_unless_told_otherwise():
    other = schema_row([ID, VAL], shape=8, table="t2")
    there = {"shape": 8, "table": "t2"}
    rows = [change_row("insert", ["1", "x"], **(there if n in (2, 3) else {})) for n in range(6)]
    assert counts(encode(TABLE, other, *rows)) == [2, 2, 2]
    assert counts(encode(TABLE, other, *rows, mix_tables=True)) == [6]


def test_rows_join_up_to_max_message_bytes():
    """A message counts 36 bytes more than it has, and an event 16 more than its key and value."""
    rows = [change_row("insert", [str(n), "x" * 50]) for n in range(1, 10)]
    ((event, *_),) = encode(TABLE, *rows)
    alone = 8 + 36 + 16 + sum(map(len, event))
    more = 16 + sum(map(len, event))
    assert counts(encode(TABLE, *rows, max_message_bytes=alone)) == [1] * 9
    assert counts(encode(TABLE, *rows, max_message_bytes=alone + more - 1)) == [1] * 9
    assert counts(encode(TABLE, *rows, max_message_bytes=alone + more)) == [2, 2, 2, 2, 1]
    with pytest.raises(EncodeError, match="max-message-bytes"):
        encode(TABLE, *rows, max_message_bytes=alone - 1)


LARGE = change_row("update", ["1", "x" * 5000], ["1", "y"])
SMALL = {"max_message_bytes": 3000, "large_message_handle": "handle-key-only"}


def test_large_rows_by_their_handle_key():
    ((large, small),) = encode(TABLE, LARGE, change_row("insert", ["2", "z"]), **SMALL)
    assert large[0].endswith(b'"rid":1,"t":1,"ohk":true}')
    assert (
        large[1]
        == b'{"u":{"id":{"t":3,"h":true,"f":11,"v":1}},"p":{"id":{"t":3,"h":true,"f":11,"v":1}}}'
    )
    assert b"ohk" not in small[0]
    row = decode(frame(large))[0]
    assert (row["kind"], row["flags"], row["after"]) == (
        "update",
        EventFlag.HANDLE_KEY_ONLY,
        {"id": "1"},
    )


def test_large_rows_without_a_handle_key_are_refused():
    keyless = schema_row([column("id", 3, 65), VAL])
    with pytest.raises(EncodeError, match="no handle key"):
        encode(keyless, LARGE, **SMALL)
    with pytest.raises(EncodeError, match="does not fit either"):
        encode(TABLE, LARGE, **SMALL | {"max_message_bytes": 100})


@pytest.mark.parametrize("generation", ["classic", "new"])
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_large_rows_in_claim_checks(generation, compression):
    kept = {}

    def store(content: bytes) -> str:
        kept[f"s3://bucket/{len(kept)}.json"] = content
        return list(kept)[-1]

    chance = random.Random(1)
    noise = change_row("insert", ["3", b64encode(chance.randbytes(4000)).decode()])
    rows = change_row("insert", ["2", "z"]), noise, change_row("insert", ["4", "z"]), noise
    messages = encode_batch(
        "open-protocol", batch_of(TABLE, *rows), generation=generation, compression=compression,
        max_message_bytes=3000, large_message_handle="claim-check", claim_check=store,
    )  # fmt: skip
    assert messages["events"].to_pylist() == [4]
    (message,) = zip(messages["key"].to_pylist(), messages["value"].to_pylist(), strict=True)
    ((key, value), *_) = unframe(*message)[1:2]
    told = b'"ohk":false,"ccl"' if generation == "new" else b'"ccl"'
    assert key.endswith(b'"t":1,%b:"s3://bucket/0.json"}' % told)
    if compression:
        value = decompress(compression, value)
    assert value == b'{"u":{"id":{"t":3,"h":true,"f":11,"v":3}}}'
    document = json.loads(next(iter(kept.values())))
    assert list(document) == ["key", "value"]
    ((inner, _),) = unframe(*(b64decode(part) for part in document.values()))
    assert b"ccl" not in inner
    left_alone = decode(message, compression=compression)
    assert [row["claim_check"] for row in left_alone] == [
        None,
        "s3://bucket/0.json",
        None,
        "s3://bucket/1.json",
    ]
    redeemed = decode(message, compression=compression, claim_check=kept.__getitem__)
    assert [list(row["after"].values()) for row in redeemed] == [row["after"] for row in rows]


@pytest.mark.parametrize(
    "content",
    [b"nothing", b'{"key":null,"value":""}', b'{"key":"%b","value":""}' % b64encode(KEY)]
    + [b'{"key":"%b","value":"%b"}' % (b64encode(KEY + KEY[8:]), b64encode(VALUE))],
)
def test_claim_checks_that_hold_no_event_are_errors(content):
    key = row_key(ccl="x.json")
    (row,) = decode(frame(INSERT, (key, INSERT[1])), claim_check=lambda _: content)
    assert row["error"]["code"] == "claim-check"


def test_compression_is_of_each_value():
    ((one, two),) = encode(
        TABLE,
        change_row("insert", ["1", "x" * 99]),
        change_row("delete", None, ["1", "y"]),
        compression="snappy",
    )
    assert decompress("snappy", one[1]).startswith(b'{"u":')
    assert decompress("snappy", two[1]).startswith(b'{"d":')
    ((watermark,),) = encode(NONE | {"kind": "watermark", "commit_ts": 1}, compression="snappy")
    assert watermark[1] == b""
    rows = decode(frame(one, two), compression="snappy")
    assert [row["kind"] for row in rows] == ["insert", "delete"]
    assert compress("snappy", decompress("snappy", one[1])) == one[1]


UPDATE = change_row("update", ["1", "x"], ["1", None])
SAME = change_row("update", ["1", "x"], ["1", "x"])
SETTINGS = [
    (UPDATE, {"output_old_value": False}, {"u": ["id", "val"]}),
    (UPDATE, {"only_output_updated_columns": True}, {"u": ["id", "val"], "p": ["val"]}),
    (SAME, {"only_output_updated_columns": True}, {"u": ["id", "val"]}),
    (
        SAME,
        {"only_output_updated_columns": True, "generation": "new"},
        {"u": ["id", "val"], "p": []},
    ),
    (SAME, {"only_output_updated_columns": True, "output_old_value": False}, {"u": ["id", "val"]}),
    (SAME | {"before_missing": b"\x01"}, {}, {"u": ["id", "val"], "p": ["val"]}),
    (SAME | {"before_missing": b"\x03"}, {"generation": "new"}, {"u": ["id", "val"], "p": []}),
    (SAME | {"before": None}, {}, {"u": ["id", "val"]}),
    (change_row("delete", None, ["1", "x"]), {}, {"d": ["id", "val"]}),
    (
        change_row("delete", None, ["1", "x"]),
        {"delete_only_output_handle_key_columns": True},
        {"d": ["id"]},
    ),
]


@pytest.mark.parametrize("row, settings, expected", SETTINGS)
def test_settings_choose_what_is_written(row, settings, expected):
    ((event,),) = encode(TABLE, row, **settings)
    assert {side: list(columns) for side, columns in json.loads(event[1]).items()} == expected


def test_rows_known_only_by_their_handle_key_are_written_so_again():
    key_only = schema_row([ID], shape=9)
    handle = change_row("insert", ["1"], shape=9, flags=1)
    claim = change_row("insert", ["1"], shape=9, flags=2, claim_check="a.json")
    ((one, two),) = encode(key_only, handle, claim)
    assert [(row["flags"], row["claim_check"]) for row in decode(frame(one, two))] == [
        (1, None),
        (2, "a.json"),
    ]


@pytest.mark.parametrize(
    "rows, options, error",
    [
        ([NONE | {"kind": "error"}], {}, EncodeError),
        ([TABLE, change_row("insert", ["1", "x"], commit_ts=None)], {}, EncodeError),
        ([TABLE, change_row("insert", ["1", "x"], table=None)], {}, EncodeError),
        ([TABLE, change_row("insert", ["1", "x"], database="")], {}, EncodeError),
        ([TABLE, change_row("insert", ["1", "x"], shape=None)], {}, EncodeError),
        ([TABLE, change_row("insert", ["1"])], {}, EncodeError),
        ([TABLE, change_row("insert", None, ["1", "x"])], {}, EncodeError),
        ([TABLE, change_row("delete", ["1", "x"])], {}, EncodeError),
        ([NONE | {"kind": "ddl", "commit_ts": 1}], {}, EncodeError),
        ([schema_row([{"name": "a"}]), change_row("insert", ["1"])], {}, EncodeError),
        (
            [schema_row([VAL]), change_row("delete", None, ["x"])],
            {"delete_only_output_handle_key_columns": True},
            EncodeError,
        ),
        ([change_row("insert", ["1", "x"])], {}, SchemaNotSeen),
        ([TABLE], {"large_message_handle": "claim-check"}, ConfigError),
        ([TABLE], {"claim_check_raw_value": True}, UnsupportedByProtocol),
        ([TABLE], {"enable_tidb_extension": True}, UnsupportedByProtocol),
    ],
)
def test_what_cannot_be_written_is_refused(rows, options, error):
    with pytest.raises(error):
        encode(*rows, **options)


# --- there and back ------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NAMES = TEXTS.filter(bool)
BYTES = st.binary(max_size=30).map(lambda data: b64encode(data).decode())
FORMS = [
    (st.just((1, 65)), st.integers(-128, 127).map(str)),
    (st.just((3, 193)), st.integers(0, 2**32 - 1).map(str)),
    (st.just((8, 65)), st.integers(-(2**63), 2**63 - 1).map(str)),
    (st.sampled_from([(8, 193), (16, 193), (248, 64)]), st.integers(0, 2**64 - 1).map(str)),
    (st.just((246, 65)), st.decimals(-(10**9), 10**9, places=4).map(str)),
    (st.just((12, 65)), st.datetimes().map(lambda moment: f"{moment:%Y-%m-%d %H:%M:%S}".zfill(19))),
    (st.sampled_from([(15, 64), (254, 0), (252, 64), (249, 64), (245, 65)]), TEXTS),
    (st.sampled_from([(15, 65), (254, 1), (252, 65), (251, 65)]), BYTES),
    (
        st.just((5, 65)),
        st.integers(-(10**15), 10**15).map(lambda n: f"{n / 1000:.3f}".rstrip("0").rstrip(".")),
    ),
]


@st.composite
def tables(draw):
    names = draw(st.lists(TEXTS, min_size=1, max_size=6, unique=True))
    columns, values = [], []
    for name in names:
        kinds, texts = draw(st.sampled_from(FORMS))
        code, flags = draw(kinds)
        columns.append(column(name, code, flags | (10 if draw(st.booleans()) else 0)))
        values.append(st.none() | texts)
    return columns, st.tuples(*values).map(list)


@settings(deadline=None, max_examples=150)
@given(data=st.data(), generation=st.sampled_from(["classic", "new"]), count=st.integers(1, 6))
def test_random_rows_survive(data, generation, count):
    columns, values = data.draw(tables())
    database, table = data.draw(NAMES), data.draw(NAMES)
    rows = [NONE | schema_row(columns) | {"database": database, "table": table}]
    for _ in range(count):
        kind = data.draw(st.sampled_from(["insert", "update", "delete"]))
        after = None if kind == "delete" else data.draw(values)
        before = None if kind == "insert" else data.draw(values)
        names = {
            "database": database,
            "table": table,
            "commit_ts": data.draw(st.integers(0, 2**63 - 1)),
        }
        rows.append(
            change_row(
                kind, after, before, **names, table_id=data.draw(st.none() | st.integers(-5, 5))
            )
        )
    messages = encode_batch(
        "open-protocol", batch_of(*rows), generation=generation, max_batch_size=2
    )
    found = decode(*zip(messages["key"].to_pylist(), messages["value"].to_pylist(), strict=True))

    names = [column["name"] for column in columns]
    for row, sent in zip(found, rows[1:], strict=True):
        for member in ("kind", "commit_ts", "database", "table", "table_id"):
            assert row[member] == sent[member]
        for side in ("after", "before"):
            expected = sent[side] and dict(zip(names, sent[side], strict=True))
            assert row[side] == expected
        told = {(column["name"], column["code"], column["flags"]) for column in row["columns"]}
        assert told == {(column["name"], column["code"], column["flags"]) for column in columns}


def test_a_batch_decoded_is_a_batch_that_encodes_to_the_same_bytes():
    rows = [change_row("insert", [str(n), f"<{n}>"]) for n in range(1, 40)]
    rows += [change_row("update", ["1", None], ["1", "x"]), change_row("delete", None, ["1", None])]
    messages = encode_batch("open-protocol", batch_of(TABLE, *rows))
    decoded = decode_batch("open-protocol", messages["key"], messages["value"])
    again = encode_batch("open-protocol", decoded, shapes=ShapeBook([decoded]))
    assert again.select(["key", "value", "events"]) == messages.select(["key", "value", "events"])
    starts = again["row"].to_pylist()
    assert all(later - earlier <= 16 for earlier, later in pairwise(starts))
