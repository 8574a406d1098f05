"""Chunks of a table: ranges of its handle that together hold each row exactly once.

A chunk is plain data. It goes to tasks and into records as JSON, and renders its own SELECT. The
first chunk of a table (or partition) has no lower bound and the last one no upper, so rows that
nobody knew of when the bounds were taken are in one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tidegate.model import Column, TableSchema
from tidegate.model.sql import quoted
from tidegate.sql.tables import Name
from tidegate.upstream.database import (
    DatabaseSession,
    UpstreamDatabase,
    UpstreamTable,
    source_of,
)
from tidegate.upstream.predicates import Bound, between
from tidegate.upstream.server import selected
from tidegate.upstream.tidb import ROW_ID

TARGET_BYTES = 128 << 20
"""The size of a chunk that is aimed at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Rows of a table with `lower` <= key < `upper`; None for no bound.

    Bounds are in the change batch's strings, and may have values for the first columns only.
    `after` says that `lower` itself is not in it. Without a `key` the chunk is all rows.
    """

    database: str
    table: str
    number: int = 0
    partition: str | None = None
    index: str | None = None
    key: tuple[str, ...] = ()
    lower: Bound | None = None
    upper: Bound | None = None
    after: bool = False

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> Chunk:
        """From what `to_json` gives."""
        tuples = {
            name: tuple(members[name])
            for name in ("key", "lower", "upper")
            if members.get(name) is not None
        }
        return cls(**{**members, **tuples})

    def to_json(self) -> dict[str, Any]:
        """An object for JSON; what is not set is left out."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value is not None and value != () and value is not False
        }

    @property
    def name(self) -> Name:
        """The table's name."""
        return Name(self.database, self.table)

    def key_columns(self, schema: TableSchema) -> tuple[Column, ...]:
        """The columns of the key."""
        by_name = {ROW_ID.name: ROW_ID, **{column.name: column for column in schema.columns}}
        return tuple(by_name[name] for name in self.key)

    def columns(self, schema: TableSchema) -> tuple[Column, ...]:
        """What its SELECT gives: the columns that rows carry, then what else the key needs."""
        carried = schema.carried
        names = {column.name for column in carried}
        hidden = (column for column in self.key_columns(schema) if column.name not in names)
        return (*carried, *hidden)

    def select(self, schema: TableSchema, select: str = "SELECT") -> str:
        """Its rows in the order of the key."""
        listed = ", ".join(map(selected, self.columns(schema)))
        return f"{select} {listed} {self._rows(schema)}{self._order()}"

    def count(self, schema: TableSchema) -> str:
        """The statement that counts its rows."""
        return f"SELECT COUNT(*) {self._rows(schema)}"

    def resumed_after(self, key: Sequence[str]) -> Chunk:
        """The rest of it after the row with this key."""
        return replace(self, lower=tuple(key), after=True)

    def _rows(self, schema: TableSchema) -> str:
        where = between(self.key_columns(schema), self.lower, self.upper, strict=self.after)
        return f"FROM {source_of(self.name, self.partition, self.index)}{where}"

    def _order(self) -> str:
        return f" ORDER BY {', '.join(map(quoted, self.key))}" if self.key else ""


def chunks_of(
    database: UpstreamDatabase,
    session: DatabaseSession,
    table: UpstreamTable,
    target_bytes: int = TARGET_BYTES,
) -> Iterator[Chunk]:
    """The chunks of a table, as its bounds become known."""
    handle = database.handle(session, table.schema)
    partitioning = table.schema.partitioning
    partitions: list[str | None] = []
    if partitioning is not None:
        partitions += [each.name for each in partitioning.partitions]
    number = 0
    for partition in partitions or [None]:
        whole = Chunk(database=table.name.database, table=table.name.table, partition=partition)
        lower: Bound | None = None
        if handle is not None:
            whole = replace(
                whole,
                index=handle.index,
                key=tuple(column.name for column in handle.columns),
            )
            for bound in database.bounds(session, table, handle, partition, target_bytes):
                yield replace(whole, number=number, lower=lower, upper=bound)
                number, lower = number + 1, bound
        yield replace(whole, number=number, lower=lower)
        number += 1
