"""Table schemas for the DDL of a Simple feed, where the source of the changes tells none.

A DDL message of Simple names its table by nothing but the schema that it brings. DDL that came by
another protocol has a statement and names only: the schema is then what the statement makes of the
table, as far as it can be followed, and at least its name. Its version is the DDL's commit_ts.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model import TableSchema
from tidegate.sql.ddl import ChangeKind, transition
from tidegate.sql.ddl_names import Name, ddl_tables

_READ = ("commit_ts", "database", "table", "ddl", "schema")


class DdlSchemas:
    """The tables of a feed as its DDL has left them so far."""

    def __init__(self) -> None:
        self._tables: dict[Name, TableSchema] = {}

    def copy(self) -> DdlSchemas:
        """The same, to go back to."""
        other = DdlSchemas()
        other._tables = dict(self._tables)
        return other

    def complete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with a schema in each of its DDL that is about a table."""
        places = pc.indices_nonzero(pc.equal(batch["kind"], "ddl"))
        if len(places) == 0:
            return batch
        rows = batch.select(list(_READ)).take(places).to_pylist()
        told = {place: self._told(row) for place, row in zip(places.to_pylist(), rows, strict=True)}
        if all(row["schema"] == text for row, text in zip(rows, told.values(), strict=True)):
            return batch
        texts = batch["schema"].to_pylist()
        for place, text in told.items():
            texts[place] = text
        index = batch.schema.get_field_index("schema")
        return batch.set_column(index, batch.schema.field(index), pa.array(texts, pa.string()))

    def _told(self, row: dict[str, Any]) -> str | None:
        """The text of a DDL's schemas; the tables are then as after it."""
        old, name = ddl_tables(row)
        if row["schema"]:
            schema = json.loads(row["schema"]).get("tableSchema")
            if name is not None and schema:
                self._tables[name] = TableSchema.from_json(schema)
            text: str = row["schema"]
            return text
        if name is None:
            return None
        before = self._tables.pop(old or name, None)
        query = (row["ddl"] or {}).get("query") or ""
        change = transition(before, query, name[0], lookup=lambda *other: self._tables.get(other))
        schema = change.after or before or TableSchema(database=name[0], table=name[1])
        schema = replace(schema, database=name[0], table=name[1])
        if change.kind is not ChangeKind.DROPPED:
            self._tables[name] = schema
        schema = replace(schema, table_id=0, version=row["commit_ts"])
        schema = replace(schema, charset=None, collation=None, partitioning=None)
        told = schema.to_object()
        return json.dumps({"tableSchema": told}, ensure_ascii=False)
