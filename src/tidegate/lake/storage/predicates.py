"""Conditions on the columns of the changelog, stated once and rendered for each engine.

Spark filters rows by them, Arrow does in files that are read without Spark, and Iceberg passes over
files whose statistics rule them out. A condition on a column that is NULL is not met. None of them
grows into a chain with the number of tables or partitions: those are looked up in a set.
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

_SEPARATOR = "\0"
"""Between the names of a database and a table: neither can have it."""
_BUCKETS = 256
_FEW_PARTITIONS = 64
"""Up to this number of partitions Iceberg looks for each of them in the bounds of files."""


class Condition(ABC):
    """Something that is true of a row, or not."""

    @abstractmethod
    def spark(self) -> Column:
        """For DataFrames."""

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
        column: Column = _SIGNS[self.sign][0](F.col(self.name), self.value)
        return column

    def arrow(self) -> pc.Expression:
        return _SIGNS[self.sign][0](pc.field(self.name), self.value)

    def iceberg(self, expressions: Any) -> Any:
        return getattr(expressions, _SIGNS[self.sign][1])(self.name, self.value)


@dataclass(frozen=True, slots=True)
class _OfTables(Condition):
    """The name of an event's table, or of its database, looked up in a set, in any case."""

    names: frozenset[tuple[str, str]]

    def _keys(self) -> list[str]:
        return [_SEPARATOR.join(name) for name in sorted(self.names)]

    def spark(self) -> Column:
        database, table = (
            F.lower(F.coalesce(F.col(name), F.lit(""))) for name in ("database", "table")
        )
        keys = self._keys()
        separator = F.lit(_SEPARATOR)
        by_name = F.concat(database, separator, table).isin(keys)
        return by_name | F.concat(database, separator).isin(keys)

    def arrow(self) -> pc.Expression:
        call, nothing = pc.Expression._call, pc.scalar("")
        database, table = (
            pc.utf8_lower(call("coalesce", [pc.field(name), nothing]))
            for name in ("database", "table")
        )
        keys = pa.array(self._keys(), pa.string())

        def is_known(name: pc.Expression) -> pc.Expression:
            parts = [database, name, pc.scalar(_SEPARATOR)]
            return call("binary_join_element_wise", parts, pc.JoinOptions()).isin(keys)

        return is_known(table) | is_known(nothing)

    def iceberg(self, expressions: Any) -> Any:
        return expressions.alwaysTrue()  # bounds of files are in their own case


_SIGNS: dict[str, tuple[Any, str]] = {
    "=": (eq, "equal"),
    ">": (gt, "greaterThan"),
    "<=": (le, "lessThanOrEqual"),
}


def _literal(value: str | bool) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return str(value).lower()


@dataclass(frozen=True, slots=True)
class _Null(Condition):
    name: str

    def spark(self) -> Column:
        return F.col(self.name).isNull()

    def arrow(self) -> pc.Expression:
        return pc.field(self.name).is_null()

    def iceberg(self, expressions: Any) -> Any:
        return expressions.isNull(self.name)


@dataclass(frozen=True, slots=True)
class _Joined(Condition):
    parts: tuple[Condition, ...]
    every: bool

    def spark(self) -> Column:
        column: Column = _joined(and_ if self.every else or_, [each.spark() for each in self.parts])
        return column

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
        return F.expr(self._sql())

    def _sql(self) -> str:
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
        most = max(partition for _, partition, _ in self.values)
        if max(most, len(self.values)) > _FEW_PARTITIONS:
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
    """The event is of one of the tables, whose names are in lower case, in any case.

    An empty table stands for all tables of its database.
    """
    return _OfTables(frozenset(names)) if names else NEVER


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
