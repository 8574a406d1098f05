"""The Avro schema of Simple's messages, for fastavro as an independent reader and writer in tests.

Put together from the layout in docs/protocols/simple.md; the records stand in the order that gives
`Message` the index 11 of the outermost union.
"""

from __future__ import annotations

from typing import Any

NAMESPACE = "com.pingcap.simple.avro"

Fields = list[tuple[str, Any]]


def _record(name: str, fields: Fields) -> dict[str, Any]:
    members = [{"name": field, "type": type_} for field, type_ in fields]
    return {"namespace": NAMESPACE, "type": "record", "name": name, "fields": members}


def _enum(name: str, *symbols: str) -> dict[str, Any]:
    return {"namespace": NAMESPACE, "type": "enum", "name": name, "symbols": list(symbols)}


def _array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _named(name: str) -> str:
    return f"{NAMESPACE}.{name}"


def _optional(type_: Any) -> list[Any]:
    return ["null", type_]


_VALUE = [
    "null", "long", "float", "double", "string", "bytes", _named("Timestamp"),
    _named("UnsignedBigint"),
]  # fmt: skip
_ROW = _optional({"type": "map", "values": _VALUE})
_SENT: Fields = [("version", "int")]

SIMPLE_AVRO_SCHEMA: list[dict[str, Any]] = [
    _record(
        "DataType",
        [
            ("mysqlType", "string"),
            ("charset", "string"),
            ("collate", "string"),
            ("length", "long"),
            ("decimal", _optional("int")),
            ("elements", _optional(_array("string"))),
            ("unsigned", _optional("boolean")),
            ("zerofill", _optional("boolean")),
        ],
    ),
    _record(
        "ColumnSchema",
        [
            ("name", "string"),
            ("dataType", _named("DataType")),
            ("nullable", "boolean"),
            ("default", _optional("string")),
        ],
    ),
    _record(
        "IndexSchema",
        [
            ("name", "string"),
            ("unique", "boolean"),
            ("primary", "boolean"),
            ("nullable", "boolean"),
            ("columns", _array("string")),
        ],
    ),
    _record(
        "TableSchema",
        [
            ("database", "string"),
            ("table", "string"),
            ("tableID", "long"),
            ("version", "long"),
            ("columns", _array(_named("ColumnSchema"))),
            ("indexes", _array(_named("IndexSchema"))),
        ],
    ),
    _record(
        "Checksum",
        [("version", "int"), ("corrupted", "boolean"), ("current", "long"), ("previous", "long")],
    ),
    _record("Watermark", [*_SENT, ("commitTs", "long"), ("buildTs", "long")]),
    _record("Bootstrap", [*_SENT, ("buildTs", "long"), ("tableSchema", _named("TableSchema"))]),
    _record(
        "DDL",
        [
            *_SENT,
            (
                "type",
                _enum(
                    "DDLType",
                    "CREATE",
                    "ALTER",
                    "ERASE",
                    "RENAME",
                    "TRUNCATE",
                    "CINDEX",
                    "DINDEX",
                    "QUERY",
                ),
            ),
            ("sql", "string"),
            ("commitTs", "long"),
            ("buildTs", "long"),
            ("tableSchema", _optional(_named("TableSchema"))),
            ("preTableSchema", _optional(_named("TableSchema"))),
        ],
    ),
    _record("Timestamp", [("location", "string"), ("value", "string")]),
    _record("UnsignedBigint", [("value", "long")]),
    _record(
        "DML",
        [
            *_SENT,
            ("database", "string"),
            ("table", "string"),
            ("tableID", "long"),
            ("type", _enum("DMLType", "INSERT", "UPDATE", "DELETE")),
            ("commitTs", "long"),
            ("buildTs", "long"),
            ("schemaVersion", "long"),
            ("claimCheckLocation", _optional("string")),
            ("handleKeyOnly", _optional("boolean")),
            ("checksum", _optional(_named("Checksum"))),
            ("data", _ROW),
            ("old", _ROW),
        ],
    ),
    _record(
        "Message",
        [
            ("type", _enum("MessageType", "WATERMARK", "BOOTSTRAP", "DDL", "DML")),
            ("payload", [_named(name) for name in ("Watermark", "Bootstrap", "DDL", "DML")]),
        ],
    ),
]
