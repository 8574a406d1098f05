"""What the rows of a changelog are made of: by their shape and, where they tell it, schema version.

The changelog tells shapes and schemas as events of their own; a mirror learns them as it goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from tidegate.changefeed.receive.schema_cache import SchemaCache, SchemaKey
from tidegate.lake.changelog.changelog import Changelog, Group
from tidegate.model import Column, Flag, TableSchema
from tidegate.wire import CHANGE_SCHEMA
from tidegate.wire.batch.shapes import Shape

LayoutKey = tuple[int, int | None]
"""A shape and a schema version."""


class RowSchemas:
    """Reads rows' layouts out of a cache, and learns what that lacks."""

    def __init__(self, cache: SchemaCache) -> None:
        self._cache = cache

    def learn(self, events: pa.Table) -> None:
        """Takes in table schemas and statements."""
        missing = [each for each in CHANGE_SCHEMA if each.name not in events.column_names]
        for each in missing:
            events = events.append_column(each, pa.nulls(events.num_rows, each.type))
        self._cache.add(events)

    def learn_shapes(self, changelog: Changelog, groups: Iterable[Group]) -> None:
        """Looks up the shapes of rows that are not known yet."""
        shapes = self._cache.shapes
        unknown: dict[tuple[str, str], set[int]] = {}
        for group in groups:
            if shapes.shape(group.shape) is None:
                unknown.setdefault((group.database, group.table), set()).add(group.shape)
        if unknown:
            for batch in changelog.shapes(unknown).to_batches():
                shapes.add(batch)

    def missing(self, group: Group) -> SchemaKey | None:
        """The schema without which rows cannot be read; None if there is none such."""
        if group.schema_version is None:
            return None
        key = SchemaKey(group.database, group.table, group.schema_version)
        return key if self._cache.schema(*key) is None else None

    def layouts(
        self, groups: Iterable[Group]
    ) -> tuple[dict[LayoutKey, tuple[str, ...]], dict[LayoutKey, TableSchema]]:
        """The names of the columns that rows carry, in their order, and their tables' schemas."""
        names, schemas = {}, {}
        for group in groups:
            key = (group.shape, group.schema_version)
            shape = self._cache.shape(*key)
            names[key] = tuple(column.name for column in shape.columns)
            schemas[key] = shape.schema or _told_by(shape)
        return names, schemas

    def keys_of_shapes(self, groups: Iterable[Group]) -> dict[int, tuple[str, ...]]:
        """The columns of the key, by shape, where the wire tells them."""
        told = ((group.shape, self._cache.shapes.shape(group.shape)) for group in groups)
        return {number: shape.keys for number, shape in told if shape is not None and shape.keys}


def _told_by(shape: Shape) -> TableSchema:
    """What rows alone tell of a table: names, types, and the key where the wire marks it."""
    columns = []
    for column in shape.columns:
        told = Column.of_type(column.name, column.type or "text", code=column.code)
        flags = None
        if column.flags is not None:
            flags = Flag(column.flags) | (Flag.HANDLE_KEY if column.key else Flag(0))
        columns.append(replace(told, flags=flags, zone=column.zone))
    return TableSchema(database=shape.database, table=shape.table, columns=tuple(columns))
