"""What a load is to do, written down in the lake before it begins: the instant, tables and parts.

Regions of a table change, so a load that was cut off continues with the bounds that it began with.
Which parts are done is not written here: each table's own commits say how many there are.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from tidegate.lake.formats.base import LOADING_DATABASE, Position, TableFormat, origin_of
from tidegate.lake.load.sources import Part, TableSize
from tidegate.lake.load.state import LoadedTables
from tidegate.lake.storage.log_files import rows_of
from tidegate.lake.storage.predicates import equal
from tidegate.model import TableSchema
from tidegate.sql.definition import Charset
from tidegate.sql.tables import Name

NAME = "loads"
_COLUMNS = StructType(
    [
        StructField("load", StringType()),
        StructField("wall", TimestampType()),
        StructField("kind", StringType()),
        StructField("database", StringType()),
        StructField("table", StringType()),
        StructField("number", LongType()),
        StructField("content", StringType()),
    ]
)
_LOAD, _TABLE, _PART, _UNREADABLE, _DATABASE = "load", "table", "part", "unreadable", "database"
Row = tuple[str, str | None, str | None, int | None, str]


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table, its parts and about how much it has."""

    schema: TableSchema
    parts: tuple[Part, ...]
    size: TableSize = field(default_factory=TableSize)

    @property
    def name(self) -> Name:
        """The table's name."""
        return Name(self.schema.database, self.schema.table)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A load at `ts` from the source with this identity."""

    ts: int
    source: Mapping[str, Any]
    tables: tuple[PlannedTable, ...]
    unreadable: Mapping[Name, str] = field(default_factory=dict)
    databases: Mapping[str, Charset | None] = field(default_factory=dict)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def loaded(self) -> LoadedTables:
        """The tables of the instant."""
        schemas = tuple(table.schema for table in self.tables)
        return LoadedTables(schemas, self.unreadable, self.databases)

    def staged_name(self, name: Name) -> Name:
        """What a table is called in the lake until it is whole."""
        text = json.dumps([self.id, *name]).encode()
        return Name(LOADING_DATABASE, f"t_{blake2b(text, digest_size=10).hexdigest()}")

    def origin(self, name: Name, position: Position) -> str:
        """By what a table is found again that this load has made."""
        return origin_of(*self.staged_name(name), position)

    def rows(self) -> Iterator[Row]:
        """What is written down."""
        yield _LOAD, None, None, self.ts, json.dumps(dict(self.source))
        for table in self.tables:
            content = [table.schema.to_object(), table.size.rows, table.size.bytes]
            yield _TABLE, *table.name, len(table.parts), _json(content)
            for number, part in enumerate(table.parts):
                yield _PART, *table.name, number, _json(part)
        for name, reason in self.unreadable.items():
            yield _UNREADABLE, *name, None, reason
        for database, charset in self.databases.items():
            yield _DATABASE, database, None, None, _json(charset)

    @classmethod
    def of_rows(cls, load: str, rows: list[dict[str, Any]]) -> LoadPlan:
        """The plan that was written down."""
        by_kind: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            by_kind.setdefault(row["kind"], []).append(row)
        parts: dict[Name, dict[int, Part]] = {}
        for row in by_kind.get(_PART, ()):
            parts.setdefault(_name(row), {})[row["number"]] = json.loads(row["content"])
        (head,) = by_kind[_LOAD]
        return cls(
            head["number"],
            json.loads(head["content"]),
            tuple(_table(row, parts.get(_name(row), {})) for row in by_kind.get(_TABLE, ())),
            {_name(row): row["content"] for row in by_kind.get(_UNREADABLE, ())},
            {row["database"]: _charset(row["content"]) for row in by_kind.get(_DATABASE, ())},
            load,
        )


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _name(row: Mapping[str, Any]) -> Name:
    return Name(row["database"], row["table"])


def _charset(text: str) -> Charset | None:
    content = json.loads(text)
    return None if content is None else Charset(*content)


def _table(row: Mapping[str, Any], parts: Mapping[int, Part]) -> PlannedTable:
    schema, rows, size = json.loads(row["content"])
    listed = tuple(parts[number] for number in range(row["number"]))
    return PlannedTable(TableSchema.from_json(schema), listed, TableSize(rows, size))


class LoadPlans:
    """The loads of a lake; the last one counts."""

    def __init__(self, tables: TableFormat, epoch: int | None = None) -> None:
        """`epoch` is that of the lease under which plans may be written."""
        self._log = tables.create_log(NAME, _COLUMNS)
        if epoch is not None:
            self._log.fence(epoch)

    def add(self, plan: LoadPlan) -> None:
        """Writes a plan down, in one commit."""
        wall = datetime.now(UTC)
        rows = [(plan.id, wall, *row) for row in plan.rows()]
        self._log.add_rows(rows_of(_COLUMNS, rows))

    def last(self) -> LoadPlan | None:
        """The load that was begun last."""
        heads = [
            (row["wall"], row["load"])
            for batch in self._log.read(equal("kind", _LOAD), ["wall", "load"])
            for row in batch.to_pylist()
        ]
        if not heads:
            return None
        _, load = max(heads)
        columns = ["kind", "database", "table", "number", "content"]
        batches = self._log.read(equal("load", load), columns)
        return LoadPlan.of_rows(load, [row for each in batches for row in each.to_pylist()])
