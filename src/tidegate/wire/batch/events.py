"""Change batches for people: event objects, and the JSON form that `tidegate inspect` prints.

Both are views over a batch. The reader remembers the schemas it has seen, so that the rows of a
Simple feed have types and keys from the first BOOTSTRAP or DDL on.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from tidegate.model import (
    BadMessage,
    Column,
    Ddl,
    Delete,
    Event,
    EventFlag,
    Insert,
    Position,
    SchemaSeen,
    TableSchema,
    Update,
    Watermark,
)
from tidegate.wire.batch.bit_sets import unsigned_bit_sets
from tidegate.wire.batch.checksum import verify
from tidegate.wire.batch.shapes import Shape, ShapeBook

_ROW_CHANGES = {"insert": Insert, "update": Update, "delete": Delete}


class EventReader:
    """Turns change batches into events, one batch after the other."""

    def __init__(self, shapes: ShapeBook | None = None) -> None:
        self.shapes = ShapeBook() if shapes is None else shapes

    def events(self, batch: pa.RecordBatch) -> Iterator[Event]:
        """The batch's events as objects."""
        for row in self._rows(batch):
            yield self._event(row)

    def documents(self, batch: pa.RecordBatch, *, shapes: bool = False) -> Iterator[dict[str, Any]]:
        """The batch's events in inspect's JSON form; `shapes`: also the schema rows of shapes."""
        for row in self._rows(batch):
            if shapes or row["kind"] != "schema" or row["shape"] is None:
                yield self._document(row)

    def _rows(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        self.shapes.add(batch)
        verified = verify(unsigned_bit_sets(batch, self.shapes), self.shapes)
        rows: list[dict[str, Any]] = verified.to_pylist()
        return rows

    def _event(self, row: dict[str, Any]) -> Event:
        kind = row["kind"]
        common: dict[str, Any] = {
            "position": Position(
                row["topic"] or "", row["partition"] or 0, row["offset"] or 0, row["event"]
            ),
            "flags": EventFlag(row["flags"]),
        }
        if kind in _ROW_CHANGES:
            shape = self._shape(row)
            return _ROW_CHANGES[kind](
                **common,
                commit_ts=row["commit_ts"],
                database=row["database"] or "",
                table=row["table"] or "",
                table_id=row["table_id"],
                shape=row["shape"],
                schema_version=row["schema_version"],
                types=_types(shape),
                keys=shape.keys,
                after=_after(row, shape) or {},
                before=_before(row, shape) or {},
            )
        if kind == "watermark":
            return Watermark(**common, commit_ts=row["commit_ts"])
        if kind == "error":
            error = row["error"]
            return BadMessage(
                **common,
                code=error["code"],
                reason=error["reason"],
                part=error["part"],
                byte=error["position"],
                raw_key=row["raw_key"],
                raw_value=row["raw_value"],
            )
        document = json.loads(row["schema"]) if row["schema"] else {}
        if kind == "ddl":
            return Ddl(
                **common,
                commit_ts=row["commit_ts"],
                query=row["ddl"]["query"] or "",
                type=row["ddl"]["type"] or "",
                code=row["ddl"]["code"],
                database=row["database"] or "",
                table=row["table"] or "",
                schema=_table_schema(document, "tableSchema"),
                schema_before=_table_schema(document, "preTableSchema"),
            )
        schema = _table_schema(document, "tableSchema")
        return SchemaSeen(
            **common,
            database=row["database"] or "",
            table=row["table"] or "",
            schema=self._schema_of_shape(row) if schema is None else schema,
            table_id=row["table_id"],
            shape=row["shape"],
            schema_version=row["schema_version"],
            bootstrap=row["shape"] is None,
        )

    def _shape(self, row: dict[str, Any]) -> Shape:
        shape = self.shapes.shape(row["shape"], row["schema_version"])
        if shape is None:
            raise ValueError(f"the batch has no schema row for its shape {row['shape']}")
        return shape

    def _schema_of_shape(self, row: dict[str, Any]) -> TableSchema:
        shape = self._shape(row)
        return TableSchema(
            database=shape.database,
            table=shape.table,
            columns=tuple(
                Column.of_type(
                    column.name,
                    column.type or "unknown",
                    code=column.code,
                    flags=column.flags,
                    zone=column.zone,
                )
                for column in shape.columns
            ),
        )

    def _document(self, row: dict[str, Any]) -> dict[str, Any]:
        flags = EventFlag(row["flags"])
        document = {
            "topic": row["topic"],
            "partition": row["partition"],
            "offset": row["offset"],
            "event": row["event"],
            "kind": row["kind"],
            "commitTs": row["commit_ts"],
            "database": row["database"],
            "table": row["table"],
            "tableId": row["table_id"],
            "shape": row["shape"],
            "schemaVersion": row["schema_version"],
        }
        if row["kind"] in _ROW_CHANGES:
            shape = self._shape(row)
            document["after"] = _after(row, shape)
            document["before"] = _before(row, shape)
            document["keys"] = list(shape.keys) or None
            document["types"] = _types(shape) or None
        if row["ddl"] is not None:
            document["ddl"] = _present(row["ddl"])
        if row["schema"] is not None:
            document["schema"] = json.loads(row["schema"])
        if flags:
            document["flags"] = [
                flag.name.lower().replace("_", "-") for flag in flags if flag.name is not None
            ]
        document["checksum"] = row["checksum"]
        document["claimCheck"] = row["claim_check"]
        if row["error"] is not None:
            document["error"] = _present(row["error"]) | _present(
                {"key": _base64(row["raw_key"]), "value": _base64(row["raw_value"])}
            )
        return _present(document)


def to_json_events(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """The events of change batches in inspect's JSON form."""
    reader = EventReader()
    for batch in batches:
        yield from reader.documents(batch)


def _present(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def _base64(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode()


def _types(shape: Shape) -> dict[str, str]:
    return {column.name: column.type for column in shape.columns if column.type is not None}


def _table_schema(document: dict[str, Any], member: str) -> TableSchema | None:
    return TableSchema.from_json(document[member]) if document.get(member) else None


def _after(row: dict[str, Any], shape: Shape) -> dict[str, str | None] | None:
    return None if row["after"] is None else _values(shape, row["after"])


def _before(row: dict[str, Any], shape: Shape) -> dict[str, str | None] | None:
    if row["before"] is None:
        return None
    values = _values(shape, row["before"])
    missing = row["before_missing"]
    if missing is not None:
        for index, column in enumerate(shape.columns):
            if missing[index >> 3] >> (index & 7) & 1:
                del values[column.name]
    return values


def _values(shape: Shape, texts: list[str | None]) -> dict[str, str | None]:
    return {column.name: text for column, text in zip(shape.columns, texts, strict=True)}
