"""BIT and SET values of Avro are unsigned once the table schema is known."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tidegate.wire import CHANGE_SCHEMA, EventReader, ShapeBook
from tidegate.wire.batch.bit_sets import unsigned_bit_sets

ROW = {"event": 0, "database": "d", "table": "t", "flags": 0}
TYPES = {"a": "bigint", "b": "bit", "s": "set"}


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    shape = {"columns": [{"name": name} for name in TYPES]}
    columns = [{"name": name, "dataType": {"mysqlType": type_}} for name, type_ in TYPES.items()]
    schema = {"schema": "d", "table": "t", "version": 5, "columns": columns}
    told = [
        ROW | {"kind": "schema", "shape": 1, "schema": json.dumps(shape)},
        ROW
        | {"kind": "schema", "schema_version": 5, "schema": json.dumps({"tableSchema": schema})},
        *(
            ROW | {"shape": 1, "schema_version": 5, "kind": "update", "commit_ts": 1} | one
            for one in rows
        ),
    ]
    return pa.RecordBatch.from_pylist(told, CHANGE_SCHEMA)


def sides(changes: pa.RecordBatch) -> list[tuple[Any, Any]]:
    return [(row["after"], row["before"]) for row in changes.to_pylist() if row["kind"] != "schema"]


ROWS = [
    {"after": ["-1", "-1", "-1"], "before": ["5", "5", "-9223372036854775808"]},
    {"kind": "insert", "after": ["-7", None, "0"]},
    {"kind": "delete", "before": [None, "-2", None]},
]
TOP = str(2**64 - 1)
UNSIGNED = [
    (["-1", TOP, TOP], ["5", "5", "9223372036854775808"]),
    (["-7", None, "0"], None),
    (None, [None, "18446744073709551614", None]),
]


def test_negative_bit_sets_become_unsigned():
    changes = batch(*ROWS)
    mended = unsigned_bit_sets(changes, ShapeBook([changes]))
    mended.validate(full=True)
    assert mended.schema == CHANGE_SCHEMA
    assert sides(mended) == UNSIGNED


@pytest.mark.parametrize("start", [3, 4])
def test_slices(start):
    changes = batch(*ROWS)
    mended = unsigned_bit_sets(changes.slice(start), ShapeBook([changes]))
    assert sides(mended) == UNSIGNED[start - 2 :]


def test_batches_with_nothing_to_mend_are_given_back():
    changes = batch({"after": ["-1", "1", "1"], "before": ["-1", "1", "1"]})
    assert sides(unsigned_bit_sets(changes, ShapeBook([changes]))) == sides(changes)
    assert unsigned_bit_sets(changes, ShapeBook()) is changes
    others = batch({"after": ["-1", "-1", "-1"], "schema_version": None}).slice(2)
    assert unsigned_bit_sets(others, ShapeBook([changes])) is others
    later = batch({"after": ["-1", "-1", "-1"], "schema_version": 6})
    assert unsigned_bit_sets(later, ShapeBook([later])) is later


def test_events_show_them_unsigned():
    changes = batch(*ROWS)
    after = [event.after for event in EventReader().events(changes) if event.kind == "update"]
    assert after == [{"a": "-1", "b": TOP, "s": TOP}]
