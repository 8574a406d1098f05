"""Shapes and schemas seen so far: what a row's values mean.

A shape says what the wire says of a row's columns. Where the wire says little (Simple's rows name
only columns), the table schema of that version, seen in a BOOTSTRAP or DDL event, says the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model import Flag, TableSchema, parse_type, type_name
from tidegate.wire.batch.builder import shape_id_of


@dataclass(frozen=True, slots=True)
class ShapeColumn:
    """A column as far as it is known; None where nothing says it."""

    name: str
    type: str | None = None
    code: int | None = None
    flags: int | None = None
    key: bool = False
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The ordered columns of a table's rows."""

    id: int
    database: str
    table: str
    columns: tuple[ShapeColumn, ...]
    schema: TableSchema | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The handle key's columns, in column order, as far as known."""
        return tuple(column.name for column in self.columns if column.key)


def _carried_columns(schema: TableSchema) -> list[tuple[str, str, int, int, bool]]:
    """Name, type, code, flags and whether it is a key, of each column that rows carry."""
    keys = schema.handle_key()
    return [
        (
            column.name,
            column.type,
            column.code,
            int(schema.flags(column.name)),
            column.name in keys,
        )
        for column in schema.columns
        if column.generated != "virtual"
    ]


def shape_columns(schema: TableSchema) -> str:
    """The JSON of a shape with all that a schema says of the columns that rows carry."""
    columns: list[dict[str, Any]] = [
        {"name": name, "type": type_, "code": code, "flags": flags} | ({"key": True} if key else {})
        for name, type_, code, flags, key in _carried_columns(schema)
    ]
    return json.dumps({"columns": columns}, ensure_ascii=False, separators=(",", ":"))


def shape_id(schema: TableSchema) -> int:
    """The id of that shape, as decoders give it to rows with these columns."""
    return shape_id_of(schema.database, schema.table, _carried_columns(schema))


class ShapeBook:
    """Collects the `schema` events of change batches and answers what a row's shape is."""

    def __init__(self, batches: Iterable[pa.RecordBatch] = ()) -> None:
        self._shapes: dict[int, Shape] = {}
        self._schemas: dict[tuple[str, str, int], TableSchema] = {}
        self._codes: set[int] = set()
        self._resolved: dict[tuple[int, int | None], Shape] = {}
        for batch in batches:
            self.add(batch)

    def add(self, batch: pa.RecordBatch) -> None:
        """Learns every shape and table schema of the batch."""
        column = batch.column("schema")
        if column.null_count == batch.num_rows:
            return
        schema_rows = batch.select(["shape", "database", "table", "schema"]).filter(
            pc.is_valid(column)
        )
        for row in schema_rows.to_pylist():
            document = json.loads(row["schema"])
            if row["shape"] is not None:
                self.add_shape(row["shape"], row["database"], row["table"], document)
            for member in ("tableSchema", "preTableSchema"):
                if document.get(member):
                    self.add_schema(TableSchema.from_json(document[member]))

    def add_shape(
        self, shape: int, database: str | None, table: str | None, document: dict[str, Any]
    ) -> None:
        """Learns one shape from the JSON of its schema event."""
        if shape not in self._shapes:
            columns = tuple(ShapeColumn(**column) for column in document["columns"])
            self._shapes[shape] = Shape(shape, database or "", table or "", columns)

    def add_schema(self, schema: TableSchema) -> None:
        """Learns one table schema; a later one of the same version wins."""
        if schema.version is None:
            return
        key = (schema.database, schema.table, schema.version)
        if self._schemas.get(key) != schema:
            self._schemas[key] = schema
            self._codes.update(column.code for column in schema.columns)
            self._resolved.clear()

    def has_type(self, code: int) -> bool:
        """Whether a table schema has been seen that has a column of this type."""
        return code in self._codes

    def forget_schema(self, database: str, table: str, version: int) -> None:
        """Drops a table schema that no row needs any more."""
        if self._schemas.pop((database, table, version), None) is not None:
            self._resolved.clear()

    def schema(self, database: str, table: str, version: int) -> TableSchema | None:
        """The table schema of that version, if it has been seen."""
        return self._schemas.get((database, table, version))

    def shape(self, shape: int, schema_version: int | None = None) -> Shape | None:
        """The shape with everything known of its columns, or None if it has not been seen."""
        key = (shape, schema_version)
        resolved = self._resolved.get(key)
        if resolved is None:
            plain = self._shapes.get(shape)
            if plain is None:
                return None
            schema = None
            if schema_version is not None:
                schema = self.schema(plain.database, plain.table, schema_version)
            resolved = self._resolved[key] = _resolve(plain, schema)
        return resolved


def _resolve(shape: Shape, schema: TableSchema | None) -> Shape:
    """Fills in what follows: type from code, code and flags from type, all of it from a schema."""
    declared_columns = {} if schema is None else {column.name: column for column in schema.columns}
    handle = () if schema is None else schema.handle_key()
    columns = []
    for column in shape.columns:
        declared = declared_columns.get(column.name)
        if schema is not None and declared is not None:
            column = ShapeColumn(
                name=column.name,
                type=column.type or declared.type,
                code=declared.code if column.code is None else column.code,
                flags=int(schema.flags(column.name)) if column.flags is None else column.flags,
                key=column.key or column.name in handle,
                zone=column.zone,
            )
        if column.code is None and column.type is not None:
            parsed = parse_type(column.type)
            flags = parsed.flags
            if column.key:
                flags |= Flag.HANDLE_KEY | Flag.PRIMARY_KEY
            column = replace(column, code=int(parsed.code), flags=int(flags))
        elif column.type is None and column.code is not None:
            column = replace(column, type=type_name(column.code, column.flags or 0))
        columns.append(column)
    return replace(shape, columns=tuple(columns), schema=schema)
