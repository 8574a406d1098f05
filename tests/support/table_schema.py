"""Table schemas of the truth in the form that Simple sends them and Tidegate keeps them."""

from dataclasses import replace
from typing import Any

from tests.support import truth
from tests.support.truth import TableSchema
from tidegate.model import schema as model

Json = dict[str, Any]
BIT = 16
REALS = (4, 5)
SAYS_NOTHING = (None, False, 0, -1, "", [])


def simple_schema(schema: TableSchema, generation: str) -> Json:
    """The member `tableSchema` of a message in JSON."""
    columns = schema.columns
    if generation == "classic":
        columns = sorted(columns, key=lambda column: int(column["id"]))
    return {
        "schema": schema.database,
        "table": schema.table,
        "tableID": schema.table_id,
        "version": schema.version,
        "columns": [_column(column) for column in columns],
        "indexes": _indexes(schema),
    }


def _column(raw: Json) -> Json:
    name = truth.type_name(raw["t"], binary=raw["cs"] == "binary")
    data_type: Json = {
        "mysqlType": name,
        "charset": raw["cs"],
        "collate": raw["co"],
    }
    if raw["flen"]:
        data_type["length"] = raw["flen"]
    if raw["decimal"] and raw["t"] not in REALS:
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
        "default": _default(raw),
    }


def _default(raw: Json) -> str | int | None:
    if raw["default"] is None:
        return None
    text: str = raw["default"]["v"]
    return _bit_number(text) if raw["t"] == BIT else text


def _bit_number(text: str) -> int:
    return int.from_bytes(text.encode("latin-1"), "big")


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


# The length of a time without fractional seconds.
_WHOLE_SECONDS = {"datetime": 19, "timestamp": 19, "time": 10}


def without_defaults(schema: Json) -> Json:
    """A schema that leaves out what says nothing (false, zero, -1, empty) and has what follows.

    Avro has a place for each member of a type and JSON leaves some out. Avro in turn has no decimals
    for most time types, but their length tells them; and it has the default of a BIT as its bytes.
    """
    return schema | {"columns": [_normal_column(column) for column in schema["columns"]]}


def _normal_column(column: Json) -> Json:
    said = {name: value for name, value in column["dataType"].items() if value not in SAYS_NOTHING}
    whole = _WHOLE_SECONDS.get(said["mysqlType"])
    if whole is not None and said.get("length", 0) > whole:
        said.setdefault("decimal", said["length"] - whole - 1)
    default = column["default"]
    if said["mysqlType"] == "bit" and isinstance(default, str):
        default = _bit_number(default)
    return column | {"dataType": said, "default": default}


def known_schema(raw: Json | None) -> model.TableSchema | None:
    """All that the truth tells of a table; None of a database, and where only a name is told.

    What Simple adds and leaves out is mended: no key is made up, one that TiDB keeps without an index
    is there, and so are the decimals of FLOAT and DOUBLE.
    """
    if raw is None or not raw.get("columns"):
        return None
    told = TableSchema(raw["schema"], raw["table"], raw["id"], int(raw["updateTS"]), raw)
    simple = simple_schema(told, "new")
    indexes = [index for index in simple["indexes"] if index["name"] != "primary"]
    if raw["pkIsHandle"]:
        key = [column["n"] for column in raw["columns"] if column["f"] & truth.PRIMARY_KEY]
        primary = {"name": "PRIMARY", "unique": True, "primary": True, "nullable": False}
        indexes.append(primary | {"columns": key})
    schema = model.TableSchema.from_json(simple | {"indexes": indexes})
    columns = [
        replace(column, generated=_generated(raw_column), decimals=raw_column["decimal"] or None)
        if raw_column["t"] in REALS and raw_column["decimal"] > 0
        else replace(column, generated=_generated(raw_column))
        for column, raw_column in zip(schema.columns, raw["columns"], strict=True)
    ]
    return replace(schema, columns=tuple(columns), charset=raw["charset"], collation=raw["collate"])


def _generated(raw: Json) -> str | None:
    if not raw["generated"]:
        return None
    return "stored" if raw["stored"] else "virtual"
