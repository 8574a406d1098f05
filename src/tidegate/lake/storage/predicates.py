"""Conditions on the columns of the changelog, stated once and rendered for each engine.

Spark filters rows by them, Arrow does in files that are read without Spark, Iceberg passes over
files whose statistics rule them out, and DELETE takes them as SQL. A condition on a column that is
NULL is not met.
"""

from __future__ import annotations

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import and_, eq, gt, le, or_
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from tidegate.model.sql import quoted

Value = int | str | bool
Part = TypeVar("Part")

_BUCKETS = 256
_BETWEEN = "\0"
"""Between the names of a database and a table: no name has it."""
_FEW_PARTITIONS = 64
"""Up to this number of partitions Iceberg looks for each of them in the bounds of files."""


class Condition(ABC):
    """Something that is true of a row, or not."""

    @abstractmethod
    def spark(self) -> Column:
        """For DataFrames."""

    @abstractmethod
    def sql(self) -> str:
        """For statements of Spark's SQL; it can stand among others without brackets."""

    @abstractmethod
    def arrow(self) -> pc.Expression:
        """For datasets of files."""

    @abstractmethod
    def iceberg(self, expressions: Any) -> Any:
        """For a scan; `expressions` is Iceberg's class of that name."""

    def __and__(self, other: Condition) -> Condition:
        return _Joined((self, other), every=True)

    def __or__(self, other: Condition) -> Condition:
        return _Joined((self, other), every=False)

    def __invert__(self) -> Condition:
        return _Not(self)


@dataclass(frozen=True, slots=True)
class _Compared(Condition):
    name: str
    sign: str
    value: Value

    def spark(self) -> Column:
        found: Column = _SIGNS[self.sign][0](F.col(self.name), self.value)
        return found

    def sql(self) -> str:
        return f"({quoted(self.name)} {self.sign} {_literal(self.value)})"

    def arrow(self) -> pc.Expression:
        return _SIGNS[self.sign][0](pc.field(self.name), self.value)

    def iceberg(self, expressions: Any) -> Any:
        return getattr(expressions, _SIGNS[self.sign][1])(self.name, self.value)


@dataclass(frozen=True, slots=True)
class _OfTables(Condition):
    """Events of tables, looked up by name: no part for each of them."""

    names: tuple[tuple[str, str], ...]

    @property
    def _databases(self) -> list[str]:
        return [database for database, table in self.names if not table]

    @property
    def _tables(self) -> list[str]:
        return [_BETWEEN.join(name) for name in self.names if name[1]]

    def spark(self) -> Column:
        return F.expr(self.sql())

    def sql(self) -> str:
        database, table = "lower(`database`)", "lower(`table`)"
        name = f"concat({database}, {_literal(_BETWEEN)}, {table})"
        parts = [
            f"coalesce({key} IN ({', '.join(map(_literal, keys))}), false)"
            for key, keys in ((database, self._databases), (name, self._tables))
            if keys
        ]
        return f"({' OR '.join(parts)})"

    def arrow(self) -> pc.Expression:
        database, table = (pc.utf8_lower(pc.field(name)) for name in ("database", "table"))
        parts = [database, table, pc.scalar(_BETWEEN)]
        name = pc.Expression._call("binary_join_element_wise", parts, pc.JoinOptions())
        return database.isin(pa.array(self._databases, pa.string())) | name.isin(
            pa.array(self._tables, pa.string())
        )

    def iceberg(self, expressions: Any) -> Any:
        return expressions.alwaysTrue()  # statistics of files do not tell


_SIGNS: dict[str, tuple[Any, str]] = {
    "=": (eq, "equal"),
    ">": (gt, "greaterThan"),
    "<=": (le, "lessThanOrEqual"),
}


def _literal(value: Value) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return str(value).lower()


@dataclass(frozen=True, slots=True)
class _Null(Condition):
    name: str

    def spark(self) -> Column:
        return F.col(self.name).isNull()

    def sql(self) -> str:
        return f"({quoted(self.name)} IS NULL)"

    def arrow(self) -> pc.Expression:
        return pc.field(self.name).is_null()

    def iceberg(self, expressions: Any) -> Any:
        return expressions.isNull(self.name)


@dataclass(frozen=True, slots=True)
class _Joined(Condition):
    parts: tuple[Condition, ...]
    every: bool

    def spark(self) -> Column:
        found: Column = _joined(and_ if self.every else or_, [each.spark() for each in self.parts])
        return found

    def sql(self) -> str:
        word = " AND " if self.every else " OR "
        return "(" + word.join(each.sql() for each in self.parts) + ")"

    def arrow(self) -> pc.Expression:
        return _joined(and_ if self.every else or_, [each.arrow() for each in self.parts])

    def iceberg(self, expressions: Any) -> Any:
        join = getattr(expressions, "and" if self.every else "or")
        return _joined(join, [each.iceberg(expressions) for each in self.parts])

    def __invert__(self) -> Condition:
        # Down to the single comparisons, for some are no better negated: see `_Not.iceberg`.
        return _Joined(tuple(~each for each in self.parts), every=not self.every)


def _joined(join: Callable[[Any, Any], Part], parts: Sequence[Part]) -> Part:
    """The parts joined in pairs, and these in pairs again: Spark and Iceberg go down such a tree.

    Arrow makes a chain of it again, and crashes on one of 20,000: use `one_of` or a lookup.
    """
    while len(parts) > 1:
        pairs = [join(*parts[n : n + 2]) for n in range(0, len(parts) - 1, 2)]
        parts = [*pairs, *parts[len(parts) & ~1 :]]
    return parts[0]


@dataclass(frozen=True, slots=True)
class _Not(Condition):
    part: Condition

    def spark(self) -> Column:
        return ~self.part.spark()

    def sql(self) -> str:
        return f"(NOT {self.part.sql()})"

    def arrow(self) -> pc.Expression:
        return ~self.part.arrow()

    def iceberg(self, expressions: Any) -> Any:
        if isinstance(self.part, _OfTables):
            return expressions.alwaysTrue()
        return getattr(expressions, "not")(self.part.iceberg(expressions))


@dataclass(frozen=True, slots=True)
class _OneOf(Condition):
    name: str
    values: tuple[Value, ...]

    def __invert__(self) -> Condition:
        return _Not(self) & ~is_null(self.name)  # Arrow takes NULL for a value like others

    def spark(self) -> Column:
        return F.col(self.name).isin(*self.values)

    def sql(self) -> str:
        return f"({quoted(self.name)} IN ({', '.join(map(_literal, self.values))}))"

    def arrow(self) -> pc.Expression:
        return pc.field(self.name).isin(list(self.values))

    def iceberg(self, expressions: Any) -> Any:
        return getattr(expressions, "in")(self.name, list(self.values))


@dataclass(frozen=True, slots=True)
class _AboveByPartition(Condition):
    """A column against a value of each partition, looked up: no part for each of them."""

    name: str
    values: tuple[tuple[str, int, int], ...]
    others: bool
    inverted: bool = False

    def __invert__(self) -> Condition:
        return _AboveByPartition(self.name, self.values, self.others, not self.inverted)

    def spark(self) -> Column:
        return F.expr(self.sql())

    def sql(self) -> str:
        buckets: list[dict[str, int]] = [{} for _ in range(_BUCKETS)]
        for topic, partition, value in self.values:
            key = f"{topic}/{partition}"
            buckets[zlib.crc32(key.encode()) % _BUCKETS][key] = value
        # Spark looks through a map entry by entry.
        maps = _literal(json.dumps(buckets, ensure_ascii=False, separators=(",", ":")))
        key = "concat(topic, '/', `partition`)"
        bucket = f"element_at(from_json({maps}, 'array<map<string,bigint>>'), "
        bucket += f"cast(1 + pmod(crc32({key}), {_BUCKETS}) AS int))"
        sign = "<=" if self.inverted else ">"
        compared = f"{quoted(self.name)} {sign} try_element_at({bucket}, {key})"
        return f"coalesce({compared}, {_literal(self.others != self.inverted)})"

    def arrow(self) -> pc.Expression:
        call = pc.Expression._call
        partition = pc.field("partition").cast(pa.string())
        parts = [pc.field("topic"), partition, pc.scalar("/")]
        key = call("binary_join_element_wise", parts, pc.JoinOptions())
        keys = pa.array([f"{topic}/{number}" for topic, number, _ in self.values], pa.string())
        place = call("index_in", [key], pc.SetLookupOptions(value_set=keys)).cast(pa.int64())
        values = [pc.scalar(pa.scalar(value, pa.int64())) for _, _, value in self.values]
        known = call("choose", [place, *values])
        column = pc.field(self.name)
        compared = column <= known if self.inverted else column > known
        return call("coalesce", [compared, pc.scalar(self.others != self.inverted)])

    def iceberg(self, expressions: Any) -> Any:
        if len(self.values) > _FEW_PARTITIONS:
            return expressions.alwaysTrue()
        tree = self._tree()
        return (~tree if self.inverted else tree).iceberg(expressions)

    def _tree(self) -> Condition:
        """The same in parts that bounds of files answer."""
        topics = sorted({topic for topic, _, _ in self.values})
        parts = [~one_of("topic", topics)] if self.others else []
        for topic in topics:
            known = {partition: value for of, partition, value in self.values if of == topic}
            beyond = above("partition", max(known)) if self.others else NEVER
            above_own = [
                equal("partition", partition) & above(self.name, known.get(partition, -1))
                for partition in range(max(known) + 1)
                if self.others or partition in known
            ]
            parts.append(equal("topic", topic) & some(beyond, *above_own))
        return some(*parts)


@dataclass(frozen=True, slots=True)
class _Always(Condition):
    met: bool

    def __invert__(self) -> Condition:
        return _Always(not self.met)

    def spark(self) -> Column:
        return F.lit(self.met)

    def sql(self) -> str:
        return str(self.met).lower()

    def arrow(self) -> pc.Expression:
        return pc.scalar(self.met)

    def iceberg(self, expressions: Any) -> Any:
        return expressions.alwaysTrue() if self.met else expressions.alwaysFalse()


ALWAYS: Condition = _Always(True)
NEVER: Condition = _Always(False)


def equal(name: str, value: Value) -> Condition:
    """The column has that value."""
    return _Compared(name, "=", value)


def of_tables(names: Collection[tuple[str, str]]) -> Condition:
    """Events of tables, whose names are in lower case, in any case.

    An empty table stands for all tables of its database. However many tables there are, an event is
    compared once.
    """
    return _OfTables(tuple(names)) if names else NEVER


def above(name: str, value: int) -> Condition:
    """The column is greater."""
    return _Compared(name, ">", value)


def up_to(name: str, value: int) -> Condition:
    """The column is not greater."""
    return _Compared(name, "<=", value)


def is_null(name: str) -> Condition:
    """The column is NULL."""
    return _Null(name)


def every(*parts: Condition) -> Condition:
    """All of them are met."""
    return _Joined(parts, every=True) if parts else ALWAYS


def some(*parts: Condition) -> Condition:
    """One of them at least is met."""
    return _Joined(parts, every=False) if parts else NEVER


def one_of(name: str, values: Collection[Value]) -> Condition:
    """The column has one of those values."""
    return _OneOf(name, tuple(values)) if values else NEVER


def above_by_partition(
    name: str, values: Mapping[tuple[str, int], int], *, others: bool
) -> Condition:
    """The column is greater than the value of the event's partition; `others` for those without.

    However many partitions there are, an event is compared once.
    """
    if not values:
        return ALWAYS if others else NEVER
    return _AboveByPartition(name, tuple((*source, at) for source, at in values.items()), others)
