"""Conditions on the columns of the changelog, stated once and rendered for each engine.

Spark filters rows by them, Arrow does in files that are read without Spark, Iceberg passes over
files whose statistics rule them out, and DELETE takes them as SQL. A condition on a column that is
NULL is not met.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import reduce
from operator import and_, eq, gt, le, or_
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from tidegate.model.sql import quoted

Value = int | str | bool


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
        found: Column = reduce(and_ if self.every else or_, (each.spark() for each in self.parts))
        return found

    def sql(self) -> str:
        word = " AND " if self.every else " OR "
        return "(" + word.join(each.sql() for each in self.parts) + ")"

    def arrow(self) -> pc.Expression:
        return reduce(and_ if self.every else or_, (each.arrow() for each in self.parts))

    def iceberg(self, expressions: Any) -> Any:
        join = getattr(expressions, "and" if self.every else "or")
        return reduce(join, (each.iceberg(expressions) for each in self.parts))


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
        return getattr(expressions, "not")(self.part.iceberg(expressions))


@dataclass(frozen=True, slots=True)
class _Always(Condition):
    met: bool

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
