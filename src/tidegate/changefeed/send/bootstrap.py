"""When a Simple feed sends the schema of a table on its own: its BOOTSTRAP messages.

Before the first row of a table, then every so many seconds or rows, and not for tables that have
been quiet for half an hour ("Message generation and sending rules" in TiCDC's Simple document). A
table is known by its id: classic TiCDC counts the partitions of a table apart, the new architecture
does not. Beyond TiCDC's rule a schema is sent ahead of rows whose version no DDL has brought, so
that a consumer can read rows whose source told less than TiDB does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.send.row_groups import RowGroup
from tidegate.wire import CHANGE_SCHEMA, ShapeBook
from tidegate.wire.simple.schema import needs_bootstrap, schema_of_shape

QUIET_SECONDS = 30 * 60

_TableKey: TypeAlias = int | tuple[str, str]
_Version: TypeAlias = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class _Table:
    """A table that rows came of: the version of the last ones, and what was sent when."""

    database: str
    table: str
    shape: int | None
    version: int | None
    sent: float
    last_row: float
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Announcement:
    """A schema to be sent before a row, or (place None) before all; `row` is its schema row."""

    place: int | None
    database: str
    table: str
    row: Mapping[str, Any]


_Saved: TypeAlias = tuple[dict[_TableKey, _Table], set[_Version], dict[_Version, None] | None]


class Bootstraps:
    """Follows the tables of one feed; `shapes` knows what its batches have told."""

    def __init__(
        self, config: ChangefeedConfig, generation: Literal["classic", "new"], shapes: ShapeBook
    ) -> None:
        self._interval = config.send_bootstrap_interval_in_sec
        self._most_rows = config.send_bootstrap_in_msg_count
        self._by_partition = generation == "classic"
        self._shapes = shapes
        self._at_start: dict[_Version, None] | None = None
        if config.send_all_bootstrap_at_start:
            self._at_start = {}
        self._documents: dict[_Version, dict[str, Any]] = {}
        self._shape_texts: dict[int, str] = {}
        self._tables: dict[_TableKey, _Table] = {}
        self._told: set[_Version] = set()

    def parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch cut such that in no part a version of a table is told twice, and differently.

        TRUNCATE TABLE gives a table a new id but, in the new architecture, no new version.
        """
        told = dict(self._documents)
        start = 0
        for place in pc.indices_nonzero(pc.is_valid(batch["schema"])).to_pylist():
            for schema in _schemas(batch["schema"][place].as_py()):
                if told.setdefault(_version(schema), schema) != schema:
                    yield batch.slice(start, place - start)
                    start = place
                    told[_version(schema)] = schema
        yield batch.slice(start)

    def learn(self, batch: pa.RecordBatch) -> None:
        """Keeps what the batch tells of tables; nothing is sent yet."""
        told = batch.select(["kind", "shape", "schema"]).filter(pc.is_valid(batch["schema"]))
        for row in told.to_pylist():
            if row["shape"] is not None:
                self._shape_texts[row["shape"]] = row["schema"]
            for schema in _schemas(row["schema"]):
                self._documents[_version(schema)] = schema
                if self._at_start is not None and row["kind"] == "schema":
                    self._at_start[_version(schema)] = None

    def saw_ddl(self, text: str | None) -> None:
        """A DDL was sent, and with it the schema that it left the table with."""
        schema = (json.loads(text) if text else {}).get("tableSchema")
        if schema:
            self._told.add(_version(schema))

    def saved(self) -> _Saved:
        """What was sent so far, for `restore`."""
        at_start = None if self._at_start is None else dict(self._at_start)
        return dict(self._tables), set(self._told), at_start

    def restore(self, saved: _Saved) -> None:
        """As if what was sent since `saved` had not been."""
        self._tables, self._told, self._at_start = saved

    def forget(self) -> None:
        """As a sender that starts anew, which has sent nothing yet."""
        self._tables, self._told = {}, set()

    def due(self, groups: Iterable[RowGroup], now: float) -> list[Announcement]:
        """The schemas to send before and among the rows of these groups."""
        found = [*self._first(now), *self._again(now)]
        for group in groups:
            found += self._before_rows(group, now)
        return found

    def _first(self, now: float) -> Iterable[Announcement]:
        """The tables that were there before the first change, where all are to be told at once."""
        at_start, self._at_start = self._at_start, None
        for database, name, version in at_start or ():
            table_id = self._documents[database, name, version].get("tableID")
            key = (database, name) if table_id is None else table_id
            table = _Table(database, name, None, version, now, now)
            yield from self._announce(key, table, None)

    def _again(self, now: float) -> Iterable[Announcement]:
        for key, table in list(self._tables.items()):
            if now - table.last_row > QUIET_SECONDS:
                del self._tables[key]
            elif now - table.sent >= self._interval:
                yield from self._announce(key, replace(table, sent=now, rows=0), None)

    def _before_rows(self, group: RowGroup, now: float) -> Iterable[Announcement]:
        key = self._key(group)
        known = self._tables.get(key)
        version = group.shape if group.version is None else group.version
        table = _Table(group.database, group.table, group.shape, group.version, now, now)
        is_told = version is None or (group.database, group.table, version) in self._told
        count = len(group.places)
        left = 0
        if known is not None and is_told:
            table = replace(table, sent=known.sent, rows=known.rows)
            left = max(self._most_rows - known.rows, 0)
        last = 0
        for start in range(left, count, self._most_rows):
            yield from self._announce(key, replace(table, sent=now), group.places[start].as_py())
            table = replace(table, sent=now, rows=0)
            last = start
        self._tables[key] = replace(table, rows=table.rows + count - last)

    def _key(self, group: RowGroup) -> _TableKey:
        name = group.database, group.table
        if self._by_partition:
            return name if group.table_id is None else group.table_id
        schema = None if group.version is None else self._shapes.schema(*name, group.version)
        return name if schema is None or schema.table_id is None else schema.table_id

    def _announce(self, key: _TableKey, table: _Table, place: int | None) -> Iterable[Announcement]:
        self._tables[key] = table
        row = self._row(table)
        if row is not None:
            version = table.shape if table.version is None else table.version
            if version is not None:
                self._told.add((table.database, table.table, version))
            yield Announcement(place, table.database, table.table, row)

    def _row(self, table: _Table) -> dict[str, Any] | None:
        """The schema row; None where nothing is known but the names of columns."""
        row = {
            "kind": "schema",
            "event": 0,
            "flags": 0,
            "database": table.database,
            "table": table.table,
            "schema_version": table.version,
        }
        if table.version is not None:
            schema = self._documents.get((table.database, table.table, table.version))
            if schema is not None:
                return row | {"schema": json.dumps({"tableSchema": schema}, ensure_ascii=False)}
        if table.shape is None or table.shape not in self._shape_texts:
            return None
        columns = json.loads(self._shape_texts[table.shape])["columns"]
        shape = self._shapes.shape(table.shape)
        if shape is None or not needs_bootstrap(columns):
            return None
        version = table.shape if table.version is None else table.version
        made = schema_of_shape(shape, columns, version)
        return row | {"schema": json.dumps({"tableSchema": made}, ensure_ascii=False)}


def schema_batch(announcements: Iterable[Announcement]) -> pa.RecordBatch:
    """The schema rows of announcements as a change batch."""
    rows = [dict(announcement.row) for announcement in announcements]
    return pa.RecordBatch.from_pylist(rows, schema=CHANGE_SCHEMA)


def _schemas(text: str) -> list[dict[str, Any]]:
    document = json.loads(text)
    found = (document.get(member) for member in ("preTableSchema", "tableSchema"))
    return [schema for schema in found if schema and schema.get("version") is not None]


def _version(schema: Mapping[str, Any]) -> _Version:
    return schema["schema"], schema["table"], schema["version"]
