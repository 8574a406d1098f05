"""What Simple's encoders say of tables: schemas in TiCDC's own order of members, and DDL words.

Schemas come from change batches: those that Simple itself brought, which are given back as they
came, and the shapes of rows from other protocols, of which a schema is made as far as they tell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.model import (
    ActionType,
    Column,
    Flag,
    MySQLType,
    TableSchema,
    action_code,
    canal_ddl_type,
    type_name,
)
from tidegate.model.types import STRINGS, is_binary
from tidegate.wire.batch.shapes import Shape, ShapeColumn

DDL_TYPES = (b"CREATE", b"ALTER", b"ERASE", b"RENAME", b"TRUNCATE", b"CINDEX", b"DINDEX", b"QUERY")
"""The kinds of DDL events, in the order of Avro's enum."""

_TABLE = ("schema", "table", "tableID", "version", "columns", "indexes")
_COLUMN = ("name", "dataType", "nullable", "default")
_TYPE = (
    "mysqlType",
    "charset",
    "collate",
    "length",
    "decimal",
    "elements",
    "unsigned",
    "zerofill",
)
_INDEX = ("name", "unique", "primary", "nullable", "columns")
_OURS = frozenset({"code", "flags", "zone"})
"""What Tidegate adds to a column where the wire says it; Simple's does not."""

# Go's encoding/json writes these so that JSON can stand inside of HTML and JavaScript.
_GO_ESCAPES = str.maketrans(
    {
        "<": "\\u003c",
        ">": "\\u003e",
        "&": "\\u0026",
        "\u2028": "\\u2028",
        "\u2029": "\\u2029",
    }
)


def go_json(value: Any) -> bytes:
    """JSON text as Go's encoding/json writes it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate(_GO_ESCAPES).encode()


def table_schemas(text: str | None) -> dict[str, dict[str, Any]]:
    """`tableSchema` and `preTableSchema` out of a batch's `schema` text, as Simple writes them.

    Raises SchemaError for a text that holds no such schema.
    """
    document = json.loads(text) if text else {}
    schemas = {}
    for member in ("tableSchema", "preTableSchema"):
        if document.get(member):
            TableSchema.from_json(document[member])
            schemas[member] = _in_order(document[member])
    return schemas


def _in_order(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with its members in TiCDC's order; those that TiCDC does not have come last."""
    ordered = _ordered(schema, _TABLE)
    ordered["columns"] = [_column(column) for column in schema.get("columns") or ()]
    ordered["indexes"] = [_ordered(index, _INDEX) for index in schema.get("indexes") or ()]
    return ordered


def _column(column: Mapping[str, Any]) -> dict[str, Any]:
    ordered = _ordered(column, _COLUMN)
    ordered["dataType"] = _ordered(column["dataType"], _TYPE)
    return {name: value for name, value in ordered.items() if name not in _OURS}


def _ordered(members: Mapping[str, Any], order: Sequence[str]) -> dict[str, Any]:
    known = {name: members[name] for name in order if name in members}
    return known | {name: value for name, value in members.items() if name not in known}


def needs_bootstrap(columns: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a shape's columns are of another protocol, so that Simple's rows of it need a schema.

    Of Simple's own rows nothing is known but names, and the zones of TIMESTAMP columns.
    """
    typed = [column.get("code") is not None or column.get("type") is not None for column in columns]
    own = all(column.get("code") is None and column.get("zone") is not None for column in columns)
    return all(typed) and not own


def schema_of_shape(
    shape: Shape, columns: Sequence[Mapping[str, Any]], version: int
) -> dict[str, Any]:
    """A table schema as far as a shape tells: columns, types, and the handle key as `primary`.

    `columns` is what the wire itself said of them.
    """
    keys = list(shape.keys)
    primary = {"name": "primary", "unique": True, "primary": True, "nullable": False}
    return {
        "schema": shape.database,
        "table": shape.table,
        "tableID": 0,
        "version": version,
        "columns": [
            _column_of_shape(column, wire.get("flags"))
            for column, wire in zip(shape.columns, columns, strict=True)
        ],
        "indexes": [primary | {"columns": keys}] if keys else [],
    }


def _column_of_shape(carried: ShapeColumn, wire_flags: int | None) -> dict[str, Any]:
    flags = carried.flags or 0
    code = MySQLType.UNSPECIFIED if carried.code is None else carried.code
    text = carried.type or type_name(code, flags)
    unsigned = bool(flags & Flag.UNSIGNED) or None
    column = Column.of_type(carried.name, text, code=code, unsigned=unsigned)
    is_text = (code in STRINGS and not is_binary(code, flags)) or code in (
        MySQLType.ENUM,
        MySQLType.SET,
    )
    data_type = {
        "mysqlType": column.base_type,
        "charset": "utf8mb4" if is_text else "binary",
        "collate": "utf8mb4_bin" if is_text else "binary",
    }
    return {
        "name": carried.name,
        "dataType": _ordered(data_type | column.to_json()["dataType"], _TYPE),
        "nullable": not carried.key if wire_flags is None else bool(wire_flags & Flag.NULLABLE),
        "default": None,
    }


def ddl_word(word: str | None, code: int | None, query: str | None, generation: str) -> str:
    """The `type` of a DDL message: the word it came with, else the one of its code or its text."""
    if code == ActionType.EXCHANGE_TABLE_PARTITION:
        return "ALTER" if generation == "new" else "QUERY"
    if word:
        return word
    if code is None:
        code = action_code("", query or "")
    return "QUERY" if code is None else canal_ddl_type(code)
