"""What a mirror knows of its tables, written down in parts: a step records only what it changed.

A part is one table, one schema of the book, there or dropped, or one of the cache. All parts are
written down now and then, when the changes since have become as long as they; reading begins at the
last such record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.changefeed.receive.schema_cache import SchemaCache
from tidegate.lake.apply.plan.tables import Status, Table, Tables
from tidegate.model import TableSchema
from tidegate.sql.tables import Name, TableBook

WHOLE = '{"whole":true'
"""How a record of all parts begins."""

Key = tuple[str | int, ...]
_TABLE, _BOOK, _CACHE, _DATABASES = "table", "book", "cache", "databases"
_DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class KnownTables:
    """The tables of a mirror, the book of schemas, and the cache of schema versions."""

    tables: Tables = field(default_factory=dict)
    book: TableBook = field(default_factory=TableBook)
    cache: SchemaCache = field(default_factory=SchemaCache)

    @classmethod
    def from_records(cls, records: Iterable[str]) -> KnownTables:
        """What records say: the last one of all parts, and those after it, in their order."""
        parts: dict[Key, Any] = {}
        for record in map(json.loads, records):
            if record["whole"]:
                parts = {}
            for key in record["gone"]:
                parts.pop(tuple(key), None)
            parts.update((tuple(key), part) for key, part in record["parts"])
        by_kind: dict[str | int, list[Any]] = {}
        for key, part in parts.items():
            by_kind.setdefault(key[0], []).append(part)
        tables = [_table(part) for part in by_kind.get(_TABLE, ())]
        book = {
            "tables": by_kind.get(_BOOK, []),
            "droppedTables": by_kind.get(_DROPPED, []),
            **by_kind[_DATABASES][0],
        }
        cache = SchemaCache()
        for since, schema in by_kind.get(_CACHE, ()):
            cache.add_schema(TableSchema.from_json(schema), since)
        return cls({each.name.folded: each for each in tables}, TableBook.from_object(book), cache)

    def parts(self) -> dict[Key, tuple[Any, ...]]:
        """What each part is made of: equal, and quickly compared, where nothing has changed."""
        return {
            **{(_TABLE, *name): _values(table) for name, table in self.tables.items()},
            **{
                (_BOOK, schema.database.lower(), schema.table.lower()): (schema,)
                for schema in self.book
            },
            **{
                (_DROPPED, schema.database.lower(), schema.table.lower()): (schema,)
                for schema in self.book.dropped()
            },
            **{(_CACHE, *key): entry for key, entry in self.cache.entries().items()},
            (_DATABASES,): (json.dumps(self.book.databases()),),
        }


@dataclass(slots=True)
class TableRecords:
    """Says what is to be recorded of tables after each step."""

    _parts: dict[Key, tuple[Any, ...]] | None = None
    _whole_size: int = 0
    _size: int = 0

    def start(self, known: KnownTables, records: Iterable[str]) -> None:
        """Continues after what was read."""
        self._parts = known.parts()
        sizes = [(record.startswith(WHOLE), len(record)) for record in records]
        self._whole_size = sum(size for is_whole, size in sizes if is_whole)
        self._size = sum(size for is_whole, size in sizes if not is_whole)

    def changes(self, known: KnownTables) -> str | None:
        """What is to be recorded now; None where nothing has changed."""
        parts, before = known.parts(), self._parts
        if before is None or self._size > self._whole_size:
            text = _record(parts, parts, (), is_whole=True)
            self._whole_size, self._size = len(text), 0
        else:
            changed = [key for key, part in parts.items() if before.get(key) != part]
            gone = before.keys() - parts.keys()
            if not changed and not gone:
                return None
            text = _record(parts, changed, gone, is_whole=False)
            self._size += len(text)
        self._parts = parts
        return text


def _record(
    parts: Mapping[Key, tuple[Any, ...]],
    keys: Iterable[Key],
    gone: Iterable[Key],
    *,
    is_whole: bool,
) -> str:
    record = {
        "whole": is_whole,
        "parts": [[key, _object(key, parts[key])] for key in keys],
        "gone": sorted(gone, key=str),
    }
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def _object(key: Key, part: tuple[Any, ...]) -> Any:
    """A part as JSON has it."""
    if key[0] == _TABLE:
        return [each.to_object() if isinstance(each, TableSchema) else each for each in part]
    if key[0] in (_BOOK, _DROPPED):
        return part[0].to_object()
    if key[0] == _CACHE:
        since, schema = part
        return [since, schema.to_object()]
    return json.loads(part[0])


def _values(table: Table) -> tuple[Any, ...]:
    return (
        *(table.name, table.schema, table.identifier, table.uid, table.status.value),
        *(table.reason, table.since, table.eventual, table.upstream, table.diverged),
        *(table.guessed, table.missing, table.gone, table.lacked),
    )


def _table(values: list[Any]) -> Table:
    name, schema, identifier, uid, status, reason, since, eventual, upstream, diverged = values[:10]
    guessed, missing, gone, lacked = values[10:]
    return Table(
        name=Name(*name),
        schema=TableSchema.from_json(schema),
        identifier=identifier,
        uid=uid,
        status=Status(status),
        reason=reason,
        since=since,
        eventual=eventual,
        upstream=None if upstream is None else TableSchema.from_json(upstream),
        diverged=tuple(diverged),
        guessed=guessed,
        missing=missing,
        gone=gone,
        lacked=None if lacked is None else (lacked[0], lacked[1]),
    )
