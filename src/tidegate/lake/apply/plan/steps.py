"""The statements that a plan is made from, and the steps that it consists of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidegate.lake.apply.plan.tables import Table
from tidegate.lake.apply.rows import Layout
from tidegate.lake.formats.base import Position
from tidegate.model import TableSchema
from tidegate.sql.ddl import TableChange
from tidegate.sql.ddl_names import DdlId
from tidegate.sql.tables import Name


@dataclass(frozen=True, slots=True)
class Statement:
    """A DDL of the feed that is to be done: what it says, and where a table stands after it.

    The position before it, one `ddl` less, is for the rows that go before it. `schemas` is what the
    feed tells beside it of the table's schemas, as JSON, and `topic` where it came by.
    """

    id: DdlId
    position: Position
    schemas: str | None = None
    topic: str | None = None

    @property
    def commit_ts(self) -> int:
        """When it was committed."""
        return self.id.commit_ts


class PastKind(StrEnum):
    """What a statement that was carried out means for rows from before it."""

    EMPTIED = "emptied"  # they are gone
    RENAMED = "renamed"  # they belong to the table's new name
    CHANGED = "changed"  # what they are now is not known


@dataclass(frozen=True, slots=True)
class PastEffect:
    """What an earlier statement did to a table of a feed without watermarks.

    Rows from before it may still arrive: TiCDC sends them again, or another partition is behind.
    """

    commit_ts: int
    kind: PastKind
    name: Name
    new_name: Name | None = None
    what: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do to one table; it waits for earlier steps with any of its `names`.

    These are the table's names upstream and in the lake.
    """

    table: Table
    position: Position
    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Rows(Step):
    """Row changes after one instant up to another, under the name that the table has then.

    They come with the columns of `sent`, and are fitted to those of `schema`.
    """

    name: Name
    schema: TableSchema
    sent: TableSchema
    layouts: tuple[Layout, ...]
    segments: tuple[int, int]
    late: bool
    moves: bool
    count: int
    incomplete: bool = False
    """Whether some have only the key, and must be completed from the upstream."""


@dataclass(frozen=True, slots=True)
class Create(Step):
    """A new table."""

    name: Name
    schema: TableSchema


@dataclass(frozen=True, slots=True)
class Drop(Step):
    """The table is gone, but for its versions."""


@dataclass(frozen=True, slots=True)
class Rename(Step):
    """Another name."""

    new_name: Name


@dataclass(frozen=True, slots=True)
class Evolve(Step):
    """Other columns."""

    before: TableSchema
    change: TableChange


@dataclass(frozen=True, slots=True)
class Delete(Step):
    """Rows that go with a statement: all, or those of a condition."""

    condition: str | None
