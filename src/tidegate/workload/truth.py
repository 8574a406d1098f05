"""What a workload is, and what it knows to be true of its tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from tidegate.model import TableSchema

Row: TypeAlias = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class TruthTable:
    """A table: its schema, and its rows by handle key.

    Values are texts as in a change batch (docs/batch.md), in the order of the schema's columns; a
    key is the values of the handle key, in the key's order.
    """

    schema: TableSchema
    rows: dict[Row, Row]


@dataclass(frozen=True, slots=True)
class Truth:
    """All tables by (database, table) as they are at one instant, every change up to it applied."""

    tables: dict[tuple[str, str], TruthTable]


class Workload(Protocol):
    """A stream of changes that can say what they come to."""

    name: str

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The changes as change batches in the order of their commits, from the beginning.

        A batch begins with a `schema` row for each shape that it uses. DDL rows carry the table's
        schema after and before them. A `watermark` row says that nothing at or before it follows.
        """
        ...

    def final(self) -> Truth:
        """The tables in the end."""
        ...

    def at(self, commit_ts: int) -> Truth:
        """The tables at an instant: every change up to it, with it, and none after."""
        ...
