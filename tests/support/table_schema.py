"""Table schemas of the truth in the form that Simple sends them and Tidegate keeps them."""

from typing import Any

from tests.support import truth
from tests.support.truth import TableSchema

Json = dict[str, Any]
BIT = 16
REALS = (4, 5)
TIMESTAMP = 7
DECIMAL = 246


def simple_schema(schema: TableSchema, generation: str, encoding: str | None) -> Json:
    """The member `tableSchema` of a message in JSON, and what one in Avro says."""
    columns = schema.columns
    if generation == "classic":
        columns = sorted(columns, key=lambda column: int(column["id"]))
    return {
        "schema": schema.database,
        "table": schema.table,
        "tableID": schema.table_id,
        "version": schema.version,
        "columns": [_column(column, generation, encoding) for column in columns],
        "indexes": _indexes(schema),
    }


def _column(raw: Json, generation: str, encoding: str | None) -> Json:
    name = truth.type_name(raw["t"], binary=raw["cs"] == "binary")
    data_type: Json = {
        "mysqlType": name,
        "charset": raw["cs"],
        "collate": raw["co"],
    }
    if raw["flen"]:
        data_type["length"] = raw["flen"]
    if raw["decimal"] and _has_decimals(raw["t"], generation, encoding):
        data_type["decimal"] = raw["decimal"]
    if raw["elems"]:
        data_type["elements"] = raw["elems"]
    if raw["f"] & truth.UNSIGNED:
        data_type["unsigned"] = True
    if raw["mysqlFlag"] & truth.ZEROFILL:
        data_type["zerofill"] = True
    return {
        "name": raw["n"],
        "dataType": data_type,
        "nullable": bool(raw["f"] & truth.NULLABLE),
        "default": _default(raw, encoding),
    }


def _has_decimals(code: int, generation: str, encoding: str | None) -> bool:
    if encoding == "json":
        return code not in REALS
    return code == DECIMAL or (code == TIMESTAMP and generation == "new")


def _default(raw: Json, encoding: str | None) -> str | int | None:
    if raw["default"] is None:
        return None
    text: str = raw["default"]["v"]
    if raw["t"] == BIT and encoding == "json":
        return int.from_bytes(text.encode("latin-1"), "big")
    return text


def _indexes(schema: TableSchema) -> list[Json]:
    """The indexes; the handle key comes last as `primary` if none of them is the primary key."""
    nullable = {column["n"]: bool(column["f"] & truth.NULLABLE) for column in schema.columns}
    found: list[Json] = [
        {
            "name": index["n"],
            "unique": index["unique"],
            "primary": index["primary"],
            "nullable": any(nullable[name] for name in index["columns"]),
            "columns": index["columns"],
        }
        for index in schema.raw["indexes"] or ()
    ]
    handle = [column["n"] for column in schema.columns if column["f"] & truth.HANDLE_KEY]
    if handle and not any(index["primary"] for index in found):
        key = {"name": "primary", "unique": True, "primary": True, "nullable": False}
        found.append(key | {"columns": handle})
    return found


def without_defaults(schema: Json) -> Json:
    """A schema without the members of its types that say nothing: false, zero, empty.

    Avro has a place for each of them, JSON leaves them out.
    """
    columns = [
        column | {"dataType": {name: value for name, value in column["dataType"].items() if value}}
        for column in schema["columns"]
    ]
    return schema | {"columns": columns}
