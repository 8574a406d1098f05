"""What the mirror of a table becomes when its upstream changes: five policies, no I/O.

They have the names of Flink CDC's `schema.change.behavior`, and its meaning as far as a mirror can
have it; docs/ddl.md tells each of them. A mirror with other columns than its upstream goes on by
the names of the columns: `fit` says which it has after a statement, and what is left out.

Under every policy the columns of the key are those of the upstream, since rows are found by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampNTZType,
)

from tidegate.lake.formats.column_changes import ColumnPlan
from tidegate.model import Column, Flag, LakeError, TableSchema
from tidegate.model.schema import Absent
from tidegate.spark.types import spark_type
from tidegate.sql.ddl import ChangeKind, TableChange
from tidegate.sql.draft import ColumnChange
from tidegate.sql.tables import Name

_KEY_FLAGS = Flag.HANDLE_KEY | Flag.PRIMARY_KEY | Flag.UNIQUE_KEY | Flag.MULTIPLE_KEY
_MOST_OF_A_STATEMENT = 500


class Policy(Enum):
    """What is done about schema changes of tables that are mirrored."""

    EVOLVE = "evolve"
    TRY_EVOLVE = "try_evolve"
    LENIENT = "lenient"
    IGNORE = "ignore"
    EXCEPTION = "exception"

    @property
    def stops(self) -> bool:
        """Whether a table stops where it cannot be mirrored exactly; else that is left out."""
        return self in (Policy.EVOLVE, Policy.EXCEPTION)

    @property
    def keeps(self) -> bool:
        """Whether no statement takes rows or columns away."""
        return self in (Policy.LENIENT, Policy.IGNORE)


class SchemaChangeRefused(LakeError):
    """The mirror has come to a schema change, and is to stop there."""

    def __init__(self, name: Name, query: str) -> None:
        self.name = name
        self.query = query
        more = " …" if len(query) > _MOST_OF_A_STATEMENT else ""
        super().__init__(
            f"A statement changes {name}, which is mirrored, and the setting schema-changes is "
            f"exception: {query[:_MOST_OF_A_STATEMENT]}{more}",
            "When the readers of the table are ready for it, mirror on with --schema-changes "
            "evolve, or with another policy",
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """The columns of a mirror after a statement.

    `change` leads there from the columns before; None where these stay as they are. `left_out` says
    in sentences what is not as upstream, `problem` why the table cannot go on.
    """

    schema: TableSchema
    change: TableChange | None = None
    left_out: tuple[str, ...] = ()
    problem: str = ""


@dataclass(slots=True)
class _Slot:
    """A column of the mirror: as it was, None if it is new, and as it is."""

    before: Column | None
    after: Column
    fill: str | Absent | None = None


def fit(
    policy: Policy,
    mirror: TableSchema,
    after: TableSchema,
    changes: Iterable[ColumnChange],
    what: str,
) -> Fit:
    """What a statement makes of a mirror with columns of its own.

    `after` is the upstream's schema after it, `changes` its columns that changed, `what` the
    statement in a few words.
    """
    key = after.handle_key()
    slots = [_Slot(column, column) for column in mirror.carried]
    left_out = _follow(policy, slots, key, changes)
    problem = _settle(slots, after)
    known = {slot.after.name for slot in slots}
    indexes = after.indexes
    if indexes is not None:
        indexes = tuple(index for index in indexes if known.issuperset(index.columns))
    columns = tuple(slot.after for slot in slots)
    schema = replace(after, columns=columns, indexes=indexes)
    if columns == after.carried:
        schema = after
    if not problem and schema.handle_key() != key:
        problem = f"The mirror does not have the columns of its key, {', '.join(key) or 'none'}"
    if problem:
        return Fit(schema, problem=f"{problem} ({what}).")
    sentences = tuple(f"{sentence} ({what})." for sentence in left_out)
    is_same = [slot.before for slot in slots] == list(columns) == list(mirror.carried)
    if is_same and schema.own_indexes == mirror.own_indexes:
        return Fit(schema, left_out=sentences)
    entries = tuple(
        ColumnChange(before=slot.before, after=slot.after, fill=slot.fill)
        for slot in slots
        if slot.before != slot.after
    )
    change = TableChange(kind=ChangeKind.ALTERED, what=what, after=schema, columns=entries)
    return Fit(schema, change, sentences)


def by_name(mirror: TableSchema, after: TableSchema) -> list[ColumnChange]:
    """The changes that lead from one table to another that has taken its name."""
    return [
        ColumnChange(before=mirror.column(column.name), after=column) for column in after.carried
    ]


def _follow(
    policy: Policy, slots: list[_Slot], key: Sequence[str], changes: Iterable[ColumnChange]
) -> list[str]:
    """Does to the slots what the policy has of the changes; what it leaves out."""
    told: list[str] = []
    were = {slot.after.name: slot for slot in slots}
    added: list[ColumnChange] = []
    for change in changes:
        new = change.after
        slot = None if change.before is None else were.get(change.before.name)
        if new is None:
            if slot is not None and policy.keeps:
                told.append(f"The column {slot.after.name} stays, and is NULL in later rows")
            elif slot is not None:
                slots.remove(slot)
        elif new.generated == "virtual":
            continue
        elif slot is None:
            added.append(change)
        elif new.name in key or not policy.keeps:
            slot.after = new
        elif change.is_rename:
            told.append(f"The column {slot.after.name} stays beside {new.name}")
            added.append(ColumnChange(before=None, after=new))
        elif policy is Policy.LENIENT and holds(slot.after, new):
            slot.after = new
        elif ColumnPlan(slot.after, new).is_converted:
            kept = slot.after.full_type
            told.append(f"The column {new.name} stays {kept}, and later values are fitted to it")
    taken = {slot.after.name for slot in slots}
    for change in added:
        new = change.after
        assert new is not None
        if new.name in taken:
            told.append(f"The column {new.name} goes on in the one that had this name")
        elif policy is Policy.IGNORE and new.name not in key:
            told.append(f"The column {new.name} is left out")
        elif change.before is None or (policy is Policy.LENIENT and new.name not in key):
            slots.append(_Slot(None, new, change.fill))
    return told


def _settle(slots: list[_Slot], after: TableSchema) -> str:
    """Gives the slots what else is known of their columns; why they do not go together."""
    key = after.handle_key()
    upstream = {column.name: column for column in after.carried}
    seen: set[str] = set()
    strange = ""
    for slot in slots:
        name = slot.after.name
        if name.lower() in seen:
            return f"The name of its column {name} is taken by one that was kept"
        seen.add(name.lower())
        now = upstream.get(name)
        if now is not None and (name in key or not ColumnPlan(now, slot.after).is_converted):
            slot.after = now
            continue
        flags = slot.after.flags
        flags = None if flags is None else flags & ~_KEY_FLAGS
        slot.after = replace(slot.after, nullable=True, flags=flags)
        strange = strange or name
    if strange and not key:
        return (
            "It has no key, so its rows are found by all their columns, and upstream "
            f"{strange} is not what it was"
        )
    return ""


def holds(old: Column, new: Column) -> bool:
    """Whether the new type has every value of the old one."""
    if not ColumnPlan(new, old).is_converted:
        return True
    was, now = spark_type(old), spark_type(new)
    if isinstance(was, DecimalType) and isinstance(now, DecimalType):
        return now.scale >= was.scale and _whole_digits(now) >= _whole_digits(was)
    if isinstance(was, IntegerType | LongType) and isinstance(now, DecimalType):
        return _whole_digits(now) >= (10 if isinstance(was, IntegerType) else 19)
    return isinstance(now, _WIDER.get(type(was), ()))


def _whole_digits(kind: DecimalType) -> int:
    return kind.precision - kind.scale


_WIDER: dict[type[DataType], tuple[type[DataType], ...]] = {
    IntegerType: (LongType, DoubleType, StringType),
    LongType: (StringType,),
    DecimalType: (StringType,),
    FloatType: (DoubleType, StringType),
    DoubleType: (StringType,),
    DateType: (TimestampNTZType, StringType),
    TimestampNTZType: (StringType,),
}
