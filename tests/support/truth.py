"""The truth in Tidegate's own form: what a perfect wire would carry of every event.

Nothing of Tidegate is imported here, so that a mistake in its type table or its number formatting cannot
hide in the tests. `expectation` says how much of this each protocol and variant carries.
"""

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any

from tests.support import corpus

HANDLE_KEY = 2
PRIMARY_KEY = 8
NULLABLE = 64
UNSIGNED = 128
ZEROFILL = 64  # among MySQL's own column flags, which are not those of the wire

INSERT, UPDATE, DELETE = "insert", "update", "delete"
ROWS = (INSERT, UPDATE, DELETE)

# type code: (name, name if the character set is binary)
_TYPE_NAMES = {
    0: ("unspecified", "unspecified"),  # of the columns of a view
    1: ("tinyint", "tinyint"),
    2: ("smallint", "smallint"),
    3: ("int", "int"),
    4: ("float", "float"),
    5: ("double", "double"),
    6: ("null", "null"),
    7: ("timestamp", "timestamp"),
    8: ("bigint", "bigint"),
    9: ("mediumint", "mediumint"),
    10: ("date", "date"),
    11: ("time", "time"),
    12: ("datetime", "datetime"),
    13: ("year", "year"),
    15: ("varchar", "varbinary"),
    16: ("bit", "bit"),
    225: ("vector", "vector"),
    245: ("json", "json"),
    246: ("decimal", "decimal"),
    247: ("enum", "enum"),
    248: ("set", "set"),
    249: ("tinytext", "tinyblob"),
    250: ("mediumtext", "mediumblob"),
    251: ("longtext", "longblob"),
    252: ("text", "blob"),
    253: ("var_string", "var_string"),  # of the hidden column of an expression index
    254: ("char", "binary"),
}
_STRING_TYPES = frozenset({15, 249, 250, 251, 252, 253, 254})
_NEVER_UNSIGNED = frozenset({"bit", "year"})  # TiDB flags them so, but never says so

# The word for a DDL in Canal-JSON and Simple, by TiDB's action code; all others are QUERY.
_DDL_WORDS = {
    "CREATE": (3,),
    "RENAME": (14, 60),
    "CINDEX": (7, 9, 32),
    "DINDEX": (8, 10, 33),
    "ERASE": (4,),
    "TRUNCATE": (11,),
    "ALTER": (5, 6, 12, 13, 15, 17, 18, 19, 20, 22, 23, 41, 61, 64, 71, 72),
}
_DDL_WORD = {code: word for word, codes in _DDL_WORDS.items() for code in codes}
EXCHANGE_PARTITION = 42


def type_name(code: int, *, binary: bool) -> str:
    """The bare name of a type; `binary`: of the type whose character set is binary."""
    return _TYPE_NAMES[code][binary]


@dataclass(frozen=True)
class Column:
    """A column of a row: its value as Tidegate's text, and what the source knows of the column."""

    name: str
    code: int
    flags: int
    charset: str
    text: str | None

    @property
    def is_handle(self) -> bool:
        return bool(self.flags & HANDLE_KEY)

    @property
    def is_binary(self) -> bool:
        """Whether the values are bytes, written in base64."""
        return self.code in _STRING_TYPES and self.charset == "binary"

    def type_name(self, *, zerofill: bool = False) -> str:
        """The name without parameters, as Canal-JSON spells it."""
        name = type_name(self.code, binary=self.charset == "binary")
        if name in _NEVER_UNSIGNED:
            return name
        unsigned = " unsigned" if self.flags & UNSIGNED else ""
        return name + unsigned + (" zerofill" if zerofill else "")


@dataclass(frozen=True)
class TableSchema:
    """A table as a DDL left it: the member `table` of the truth of that DDL."""

    database: str
    table: str
    table_id: int
    version: int
    raw: dict[str, Any] = field(repr=False)

    @property
    def columns(self) -> list[dict[str, Any]]:
        return self.raw["columns"] or []

    def full_type(self, name: str) -> str:
        """A column's type with its parameters."""
        return str(self._column(name)["desc"])

    def is_zerofill(self, name: str) -> bool:
        return bool(self._column(name)["mysqlFlag"] & ZEROFILL)

    def _column(self, name: str) -> dict[str, Any]:
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, dict[str, Any]]:
        return {column["n"]: column for column in self.columns}


@dataclass(frozen=True)
class Event:
    """One event of the source. `schema` is the table's as of a row, or as a DDL left it."""

    kind: str  # as Tidegate names kinds; no `schema` and no `error` here
    commit_ts: int
    database: str | None = None
    table: str | None = None
    table_id: int | None = None  # of a partition: its own id
    logical_table_id: int | None = None
    is_partition: bool = False
    schema_version: int | None = None
    after: tuple[Column, ...] | None = None
    before: tuple[Column, ...] | None = None
    checksum: dict[str, Any] | None = None
    ddl_code: int | None = None
    query: str | None = None
    schema: TableSchema | None = field(default=None, repr=False)
    schema_before: TableSchema | None = field(default=None, repr=False)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the row, as it is now or as it was when deleted."""
        return self.after or self.before or ()

    @property
    def ddl_word(self) -> str:
        return _DDL_WORD.get(self.ddl_code or 0, "QUERY")


def positional(number: str) -> str:
    """A number's digits without an exponent: Go's 'g' form to its 'f' form."""
    return format(Decimal(number), "f")


def text(value: dict[str, str] | None, *, binary: bool) -> str | None:
    """A value of the truth as Tidegate's text."""
    if value is None:
        return None
    kind, told = value["k"], value["v"]
    if kind == "bytes" and not binary:
        return base64.b64decode(told).decode()
    return positional(told) if kind in ("f32", "f64") else told


def columns(raw: Iterable[dict[str, Any]] | None) -> tuple[Column, ...] | None:
    """The columns of one side of a row."""
    if raw is None:
        return None
    return tuple(_column(entry) for entry in raw)


def _column(raw: dict[str, Any]) -> Column:
    binary = raw["t"] in _STRING_TYPES and raw["cs"] == "binary"
    return Column(raw["n"], raw["t"], raw["f"], raw["cs"], text(raw["v"], binary=binary))


def _schema(raw: dict[str, Any] | None) -> TableSchema | None:
    if raw is None or raw.get("id") is None:
        return None
    return TableSchema(raw["schema"], raw["table"], raw["id"], int(raw["updateTS"]), raw)


def row_event(raw: dict[str, Any], schema: TableSchema | None = None) -> Event:
    """A row of the truth files."""
    return Event(
        kind=raw["type"],
        commit_ts=int(raw["commitTs"]),
        database=raw["schema"],
        table=raw["table"],
        table_id=raw["physicalTableID"],
        logical_table_id=raw["logicalTableID"],
        is_partition=raw["isPartition"],
        schema_version=int(raw["schemaVersion"]),
        after=columns(raw["after"]),
        before=columns(raw["before"]),
        checksum=raw.get("checksum"),
        schema=schema,
    )


def ddl_event(raw: dict[str, Any]) -> Event:
    """A DDL of the truth files; where both generations name the table, they do so in two ways."""
    table = raw["table"] or {}
    return Event(
        kind="ddl",
        commit_ts=int(raw["commitTs"]),
        database=raw.get("schema", table.get("schema")) or None,
        table=raw.get("tableName", table.get("table")) or None,
        ddl_code=raw["typeCode"],
        query=raw["query"],
        schema=_schema(raw["table"]),
        schema_before=_schema(raw["preTable"]),
    )


@dataclass(frozen=True)
class Schemas:
    """The table schemas that a scenario went through."""

    by_version: dict[tuple[str, str, int], TableSchema] = field(default_factory=dict)
    latest: dict[tuple[str, str], TableSchema] = field(default_factory=dict)

    def add(self, schema: TableSchema, *, before: bool = False) -> None:
        self.by_version[schema.database, schema.table, schema.version] = schema
        name = schema.database, schema.table
        self.latest[name] = self.latest.get(name, schema) if before else schema

    def find(self, database: str, table: str, version: int) -> TableSchema:
        """The schema of that version.

        After EXCHANGE PARTITION the new architecture gives a table the version of the other one:
        then its own latest.
        """
        return self.by_version.get((database, table, version), self.latest[database, table])


@lru_cache(maxsize=4)
def read(scenario: str) -> tuple[tuple[Event, ...], Schemas]:
    """The events of a scenario in commit order, and the schemas of its tables."""
    found = []
    schemas = Schemas()
    for raw in corpus.events(scenario):
        if raw["kind"] == "resolved":
            found.append(Event("watermark", int(raw["commitTs"])))
        elif raw["kind"] == "ddl":
            event = ddl_event(raw)
            if event.ddl_code == EXCHANGE_PARTITION and event.schema_before is None:
                # The new architecture's truth has no second schema, though its wire does.
                other = schemas.latest[event.database or "", event.table or ""]
                event = replace(event, schema_before=other)
            if event.schema_before is not None:
                schemas.add(event.schema_before, before=True)
            if event.schema is not None:
                schemas.add(event.schema)
            found.append(event)
        else:
            schema = schemas.find(raw["schema"], raw["table"], int(raw["schemaVersion"]))
            found.append(row_event(raw, schema))
    return tuple(found), schemas


def events(scenario: str) -> tuple[Event, ...]:
    """The events of a scenario (`types`, `new/types`) in commit order."""
    return read(scenario)[0]


def schemas(scenario: str) -> Schemas:
    """The schemas that the tables of a scenario had."""
    return read(scenario)[1]


def mapping(side: Iterable[Column] | None) -> dict[str, str | None] | None:
    """Columns as the JSON form has them."""
    return None if side is None else {column.name: column.text for column in side}
