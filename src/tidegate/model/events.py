"""Events for people: one frozen object for each row of a change batch.

Values are MySQL's own text; bytes of binary columns are base64; NULL is None. A column that the
message does not carry is absent from the mapping, so that *not carried* is never taken for NULL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntFlag, StrEnum
from typing import ClassVar, TypeAlias

from tidegate.model.errors import DecodeError
from tidegate.model.schema import TableSchema
from tidegate.model.tso import tso_to_datetime

Row: TypeAlias = Mapping[str, str | None]


class Kind(StrEnum):
    """What an event is; the words of the change batch's `kind` column."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    DDL = "ddl"
    WATERMARK = "watermark"
    SCHEMA = "schema"
    ERROR = "error"


class EventFlag(IntFlag):
    """What is special about an event.

    BEFORE_AMBIGUOUS: the message may be an update whose old values were not sent.
    CORRUPTED: the sender says that the row did not pass its checksum, or damaged a value of it.
    MOVED: an update that takes the row to another key; set by `mark_moves`, not by decoders.
    """

    HANDLE_KEY_ONLY = 1
    CLAIM_CHECK = 2
    CHECKSUM = 4
    CHECKSUM_FAILED = 8
    BEFORE_AMBIGUOUS = 16
    CORRUPTED = 32
    MOVED = 64


_NO_FLAGS = EventFlag(0)


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where an event was read: the `event`-th of the message at this offset."""

    topic: str = ""
    partition: int = 0
    offset: int = 0
    event: int = 0

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}#{self.event}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events have."""

    kind: ClassVar[Kind]
    position: Position = Position()
    flags: EventFlag = _NO_FLAGS


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange(Event):
    """A change of one row: an Insert, Update or Delete.

    `types` and `keys` are those of the row's shape. `table_id` is the physical id where the wire
    has it: of a partitioned table, that of the partition. Only Simple has a `schema_version`.
    """

    commit_ts: int
    database: str
    table: str
    table_id: int | None = None
    shape: int | None = None
    schema_version: int | None = None
    types: Mapping[str, str] = field(default_factory=dict, repr=False)
    keys: tuple[str, ...] = ()
    after: Row = field(default_factory=dict)
    before: Row = field(default_factory=dict)

    @property
    def commit_time(self) -> datetime:
        """The commit timestamp as an instant in UTC."""
        return tso_to_datetime(self.commit_ts)

    @property
    def key(self) -> Row:
        """The values of the key columns; of the new row, or of the deleted one."""
        row = self.before if self.kind is Kind.DELETE else self.after
        return {name: row[name] for name in self.keys if name in row}


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert(RowChange):
    """A new row in `after`."""

    kind: ClassVar[Kind] = Kind.INSERT


@dataclass(frozen=True, slots=True, kw_only=True)
class Update(RowChange):
    """A row changed from `before` to `after`."""

    kind: ClassVar[Kind] = Kind.UPDATE

    @property
    def changed(self) -> tuple[str, ...]:
        """The columns whose old value was sent and is another."""
        return tuple(
            name
            for name, value in self.after.items()
            if name in self.before and self.before[name] != value
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(RowChange):
    """A row that is gone, in `before`."""

    kind: ClassVar[Kind] = Kind.DELETE


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddl(Event):
    """A statement that changed a schema; `type` is Canal's word, `code` TiDB's action code."""

    kind: ClassVar[Kind] = Kind.DDL
    commit_ts: int
    query: str
    type: str
    code: int | None = None
    database: str = ""
    table: str = ""
    schema: TableSchema | None = field(default=None, repr=False)
    schema_before: TableSchema | None = field(default=None, repr=False)

    @property
    def commit_time(self) -> datetime:
        """The commit timestamp as an instant in UTC."""
        return tso_to_datetime(self.commit_ts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark(Event):
    """Every change up to `commit_ts` has been sent to this partition."""

    kind: ClassVar[Kind] = Kind.WATERMARK
    commit_ts: int

    @property
    def commit_time(self) -> datetime:
        """The watermark as an instant in UTC."""
        return tso_to_datetime(self.commit_ts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSeen(Event):
    """A schema: that of a shape, or a whole table's, brought by BOOTSTRAP or a DDL."""

    kind: ClassVar[Kind] = Kind.SCHEMA
    database: str
    table: str
    schema: TableSchema
    table_id: int | None = None
    shape: int | None = None
    schema_version: int | None = None
    bootstrap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BadMessage(Event):
    """A message that cannot be read, kept whole; `byte` is where in `part` reading failed."""

    kind: ClassVar[Kind] = Kind.ERROR
    code: str
    reason: str
    part: str | None = None
    byte: int | None = None
    raw_key: bytes | None = field(default=None, repr=False)
    raw_value: bytes | None = field(default=None, repr=False)

    def as_error(self) -> DecodeError:
        """The same facts as an error to raise."""
        return DecodeError(
            self.code,
            self.reason,
            topic=self.position.topic,
            partition=self.position.partition,
            offset=self.position.offset,
            part=self.part,
            position=self.byte,
        )
