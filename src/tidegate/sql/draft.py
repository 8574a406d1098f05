"""A table while a statement changes it: columns that keep their identity, keys that follow them.

Names are compared without regard to case, as TiDB does, and keep the spelling they were given last.
An edit that does not fit the table is an `Unreadable`: then the table is not what was thought.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from tidegate.model.schema import Absent, Column, Index, Partitioning, TableSchema
from tidegate.model.sql import quoted
from tidegate.model.types import BLOBS, CHARS, Flag, MySQLType, is_binary
from tidegate.sql.defaults import Form, Written, fill, stored_default, time_of
from tidegate.sql.definition import (
    UNKNOWN,
    Charset,
    ColumnDefinition,
    KeyDefinition,
    Position,
    charset_of,
    column_of,
)
from tidegate.sql.statement import Unreadable

# TiDB's own limits.
MAX_COLUMNS = 4096
MAX_KEYS = 512
_PRIMARY = "PRIMARY"
_KEY_FLAGS = Flag.HANDLE_KEY | Flag.PRIMARY_KEY | Flag.UNIQUE_KEY | Flag.MULTIPLE_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChange:
    """A column as it was and as it is: None before it was added, and after it was dropped.

    `fill` is what the rows that were there hold in an added column, as rows carry values, a
    TIMESTAMP in the feed's zone; ABSENT where the statement does not tell (an expression).
    `is_commit_time`: it is the time at which the statement was committed (CURRENT_TIMESTAMP).
    """

    before: Column | None
    after: Column | None
    fill: str | Absent | None = None
    is_commit_time: bool = False

    @property
    def is_rename(self) -> bool:
        """Whether the column got another name."""
        return (
            self.before is not None
            and self.after is not None
            and self.before.name != self.after.name
        )


@dataclass(slots=True)
class _Slot:
    before: Column | None
    column: Column
    fill: str | Absent | None = None
    is_commit_time: bool = False

    @property
    def folded(self) -> str:
        return self.column.name.lower()


class Draft:
    """A table that is being made or altered; `now` is what clocks show in the feed's zone."""

    def __init__(
        self,
        before: TableSchema | None,
        charset: Charset = UNKNOWN,
        now: datetime | None = None,
    ) -> None:
        self.before = before
        self.charset = charset
        self._now = now
        self._slots: list[_Slot] = []
        self._names: dict[str, _Slot] = {}
        self._dropped: list[_Slot] = []
        self._keys: list[Index] | None = []
        self.partitioning: Partitioning | None = None
        if before is not None:
            self.partitioning = before.partitioning
            self.charset = Charset(before.charset, before.collation)
            self._slots = [_Slot(column, column) for column in before.columns]
            self._names = {slot.folded: slot for slot in self._slots}
            own = before.own_indexes
            self._keys = None if own is None else list(own)

    # --- columns ----------------------------------------------------------------------------------

    def _slot(self, name: str) -> _Slot:
        slot = self._names.get(name.lower())
        if slot is None:
            raise Unreadable(f"the table as it is known has no column {quoted(name)}")
        return slot

    def _place(self, slot: _Slot) -> int:
        return next(at for at, each in enumerate(self._slots) if each is slot)

    def has_column(self, name: str) -> bool:
        """Whether there is a column of this name."""
        return name.lower() in self._names

    def add_column(self, definition: ColumnDefinition) -> None:
        """ADD COLUMN, or a column of CREATE TABLE."""
        if self.has_column(definition.name):
            raise Unreadable(f"the table already has a column {quoted(definition.name)}")
        if len(self._slots) >= MAX_COLUMNS:
            raise Unreadable(f"there are more than {MAX_COLUMNS:,} columns")
        column = column_of(definition, self.charset)
        time = time_of(column, definition.default, self._now)
        value = fill(column, definition.default) if time is None else time
        slot = _Slot(None, column, value, is_commit_time=time is not None)
        self._names[slot.folded] = slot
        self._slots.insert(self._target(definition.position, len(self._slots)), slot)

    def _target(self, position: Position | None, otherwise: int) -> int:
        if position is None:
            return otherwise
        return 0 if position.after is None else self._place(self._slot(position.after)) + 1

    def modify_column(self, name: str, definition: ColumnDefinition) -> None:
        """MODIFY or CHANGE COLUMN: everything is said anew, only keys stay."""
        slot = self._slot(name)
        if definition.nullable is None and slot.column.name in self._primary():
            definition.nullable = False
        column = column_of(definition, self.charset)
        column = replace(column, flags=_flags_like(slot.column, column))
        self._replace(slot, column)
        if definition.position is not None:
            if (definition.position.after or "").lower() in (slot.folded, name.lower()):
                raise Unreadable(f"column {quoted(name)} cannot go after itself")
            del self._slots[self._place(slot)]
            self._slots.insert(self._target(definition.position, 0), slot)

    def rename_column(self, name: str, new: str) -> None:
        """RENAME COLUMN."""
        slot = self._slot(name)
        self._replace(slot, replace(slot.column, name=new))

    def _replace(self, slot: _Slot, column: Column) -> None:
        """Give a place another column; keys follow its name."""
        old, new = slot.column.name, column.name
        if new.lower() != old.lower() and self.has_column(new):
            raise Unreadable(f"the table already has a column {quoted(new)}")
        del self._names[old.lower()]
        self._names[new.lower()] = slot
        slot.column = column
        if self._keys is not None and new != old:
            self._keys = [
                replace(key, columns=tuple(new if part == old else part for part in key.columns))
                for key in self._keys
            ]

    def drop_column(self, name: str) -> None:
        """DROP COLUMN; keys lose the column, and go with their last one."""
        slot = self._slot(name)
        del self._names[slot.folded]
        del self._slots[self._place(slot)]
        self._dropped.append(slot)
        if self._keys is not None:
            gone = slot.column.name
            keys = [
                replace(key, columns=tuple(part for part in key.columns if part != gone))
                for key in self._keys
            ]
            self._keys = [key for key in keys if key.columns]

    def set_default(self, name: str, written: Written | None) -> None:
        """ALTER COLUMN SET DEFAULT, or DROP DEFAULT."""
        slot = self._slot(name)
        default = stored_default(slot.column, written or Written(Form.NULL))
        slot.column = replace(slot.column, default=default)

    def convert_charset(self, charset: Charset) -> None:
        """CONVERT TO CHARACTER SET: the table's and that of all columns that have one."""
        self.charset = charset
        for slot in self._slots:
            if _has_charset(slot.column):
                slot.column = replace(
                    slot.column, charset=charset.name, collation=charset.collation
                )

    def set_charset(self, name: str | None, collation: str | None) -> None:
        """The table option: columns added later have it."""
        self.charset = charset_of(name, collation, self.charset)

    # --- keys -------------------------------------------------------------------------------------

    def _primary(self) -> tuple[str, ...]:
        if self._keys is None:
            flagged = (slot.column for slot in self._slots if slot.column.flags is not None)
            return tuple(
                column.name for column in flagged if (column.flags or 0) & Flag.PRIMARY_KEY
            )
        return next((key.columns for key in self._keys if key.primary), ())

    def add_key(self, definition: KeyDefinition) -> None:
        """A primary key, a unique key or an index that has its name."""
        name = _PRIMARY if definition.primary else definition.name or self._free_name(definition)
        columns = tuple(
            f"_V$_{name}_{at}"  # the hidden column of an expression
            if part is None
            else self._slot(part).column.name
            for at, part in enumerate(definition.columns)
        )
        if definition.primary:
            self._set_primary(columns)
        elif definition.unique:
            self._flag(columns, Flag.UNIQUE_KEY)
        if self._keys is None or (definition.foreign and self._covers(columns)):
            return
        if any(key.name.lower() == name.lower() for key in self._keys):
            raise Unreadable(f"the table already has a key {quoted(name)}")
        if len(self._keys) >= MAX_KEYS:
            raise Unreadable(f"there are more than {MAX_KEYS} keys")
        unique = definition.unique or definition.primary
        self._keys.append(
            Index(name=name, unique=unique, primary=definition.primary, columns=columns)
        )

    def _free_name(self, definition: KeyDefinition) -> str:
        taken = {key.name for key in self._keys or ()}
        if definition.foreign:
            names = (f"fk_{at}" for at in range(1, len(taken) + 2))
            return next(name for name in names if name not in taken)
        return anonymous_name(definition, taken)

    def _covers(self, columns: tuple[str, ...]) -> bool:
        """Whether a key begins with these columns, so that a foreign key needs none of its own."""
        return any(key.columns[: len(columns)] == columns for key in self._keys or ())

    def _set_primary(self, columns: tuple[str, ...]) -> None:
        for slot in self._slots:
            if slot.column.name in columns:
                slot.column = replace(slot.column, nullable=False)
        self._unflag(Flag.HANDLE_KEY)
        self._flag(columns, Flag.PRIMARY_KEY | Flag.HANDLE_KEY)

    def _flag(self, columns: Iterable[str], flag: Flag) -> None:
        wanted = set(columns)
        for slot in self._slots:
            if slot.column.flags is not None and slot.column.name in wanted:
                slot.column = replace(slot.column, flags=slot.column.flags | flag)

    def _unflag(self, flag: Flag) -> None:
        for slot in self._slots:
            if slot.column.flags is not None:
                slot.column = replace(slot.column, flags=slot.column.flags & ~flag)

    def drop_primary_key(self) -> None:
        """DROP PRIMARY KEY; its columns stay NOT NULL."""
        self._unflag(Flag.PRIMARY_KEY | Flag.HANDLE_KEY)
        if self._keys is not None:
            self._keys = [key for key in self._keys if not key.primary]

    def drop_key(self, name: str) -> None:
        """DROP INDEX; one that is not known is none that rows are identified by."""
        if name.upper() == _PRIMARY:
            self.drop_primary_key()
        elif self._keys is not None:
            self._keys = [key for key in self._keys if key.name.lower() != name.lower()]

    def rename_key(self, name: str, new: str) -> None:
        """RENAME INDEX."""
        if self._keys is not None:
            self._keys = [
                replace(key, name=new) if key.name.lower() == name.lower() else key
                for key in self._keys
            ]

    # --- the result -------------------------------------------------------------------------------

    def schema(self, database: str, table: str) -> TableSchema:
        """The table as it is now."""
        columns = [slot.column for slot in self._slots]
        indexes: tuple[Index, ...] | None = None
        if self._keys is not None:
            # Flags follow from the keys; those that a wire gave may no longer hold.
            columns = [replace(column, flags=None) for column in columns]
            # The hidden column of an expression is none that is known to be NOT NULL.
            filled = {column.name for column in columns if not column.nullable}
            indexes = tuple(
                replace(key, nullable=not filled.issuperset(key.columns)) for key in self._keys
            )
        return TableSchema(
            database=database,
            table=table,
            table_id=None if self.before is None else self.before.table_id,
            columns=tuple(columns),
            indexes=indexes,
            charset=self.charset.name,
            collation=self.charset.collation,
            partitioning=self.partitioning,
        )

    def changes(self) -> tuple[ColumnChange, ...]:
        """The columns that are not what they were, in the order of the table, dropped ones last."""
        kept = [
            ColumnChange(
                before=slot.before,
                after=slot.column,
                fill=slot.fill,
                is_commit_time=slot.is_commit_time,
            )
            for slot in self._slots
            if slot.before is None or _differs(slot.before, slot.column)
        ]
        dropped = [
            ColumnChange(before=slot.before, after=None)
            for slot in self._dropped
            if slot.before is not None
        ]
        return (*kept, *dropped)


def anonymous_name(definition: KeyDefinition, taken: set[str]) -> str:
    """The name that TiDB gives a key that has none: that of its first column, numbered from 2."""
    first = definition.columns[0] if definition.columns else None
    base = "expression_index" if None in definition.columns or first is None else first
    name, number = (f"{base}_2", 3) if base.upper() == _PRIMARY else (base, 2)
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    return name


def _differs(before: Column, after: Column) -> bool:
    return replace(before, flags=None) != replace(after, flags=None)


def _has_charset(column: Column) -> bool:
    if column.code in (MySQLType.ENUM, MySQLType.SET):
        return True
    return column.code in CHARS | BLOBS and not is_binary(column.code, column.type_flags)


def _flags_like(before: Column, after: Column) -> Flag | None:
    """Flags for a column that is said anew, if the wire gave it some: its keys, its new type."""
    if before.flags is None:
        return None
    flags = (before.flags & _KEY_FLAGS) | replace(after, flags=None).type_flags
    if after.nullable:
        flags |= Flag.NULLABLE
    if after.generated is not None:
        flags |= Flag.GENERATED
    return flags
