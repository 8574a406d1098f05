"""What becomes of the rows of a table when its columns change: one plan for every table format.

`plan` pairs each column of the table after a change with where its values come from. MySQL converts
the values of a column whose type changes, and the feed does not send them again, so the mirror
converts them too: by `tidegate.sql.casts`, or where Spark has the same rule, by Spark.
docs/types.md tells the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from tidegate.model import ABSENT, Column, MySQLType, TableSchema
from tidegate.model.sql import quoted
from tidegate.spark.types import (
    arrow_type,
    from_text,
    from_text_array,
    label,
    spark_type,
    text_function,
    to_text,
)
from tidegate.sql.casts import convert, keeps_values
from tidegate.sql.ddl import TableChange

_REALS = (MySQLType.FLOAT, MySQLType.DOUBLE)
_MOMENTS = (DateType, TimestampNTZType, TimestampType)
_WHOLE = (IntegerType, LongType)
_EXACT = Context(prec=400)  # more digits than a double has
_NUMBERS = (IntegerType, LongType, DecimalType, FloatType, DoubleType)


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """A column after a change: the one that it was, or None and what rows hold in it."""

    after: Column
    before: Column | None = None
    fill: str | None = None

    @property
    def is_converted(self) -> bool:
        """Whether values that are there become other values, or values of another type."""
        if self.before is None:
            return False
        is_kept = spark_type(self.before) == spark_type(self.after)
        return not is_kept or not keeps_values(self.before, self.after)

    def is_rewritten(self, reads: Callable[[DataType, DataType], bool]) -> bool:
        """Whether values must be written again: `reads` tells which types the format promotes."""
        if self.before is None or not self.is_converted:
            return False
        old, new = spark_type(self.before), spark_type(self.after)
        return not (_is_plain(self.after) and reads(old, new))

    def value(self, zone: str) -> SparkColumn:
        """The value of the column, from a row as it was before the change.

        `zone` is that of the feed: clocks in it show the local times that instants become, and that
        become instants.
        """
        if self.before is None:
            text = F.lit(self.fill).cast(StringType())
            found = from_text(self.after, text, zone)
        else:
            found = self.fitted(F.col(quoted(self.before.name)), zone)
        return found.cast(spark_type(self.after)).alias(self.after.name)

    def fitted(self, value: SparkColumn, zone: str) -> SparkColumn:
        """A value of the column before, as it is after."""
        if self.before is None or not self.is_converted:
            return value
        return converted(self.before, self.after, value, zone).cast(spark_type(self.after))


def plan(before: TableSchema, change: TableChange) -> list[ColumnPlan]:
    """The columns of the table after the change, in order."""
    assert change.after is not None
    were = {column.name: column for column in before.carried}
    changes = {entry.after.name: entry for entry in change.columns if entry.after is not None}
    found = []
    for after in change.after.carried:
        entry = changes.get(after.name)
        origin = after if entry is None else entry.before
        was = None if origin is None else were.get(origin.name)
        fill = None if entry is None or entry.fill is ABSENT else entry.fill
        found.append(ColumnPlan(after, was, fill if was is None else None))
    return found


def fitted(
    kept: Column, sent: Column, strings: pa.Array, zone: str, written_in: str | None = None
) -> pa.Array:
    """The values of strings that were sent for one column, as another one keeps them.

    `zone` is that of the feed; `written_in` that of the strings, if it is another. The rule is that
    of `converted`, which does it to values of a table.
    """
    values = from_text_array(sent, strings, written_in or zone)
    if not ColumnPlan(kept, sent).is_converted:
        return values
    zone = sent.zone or kept.zone or zone
    if sent.code == MySQLType.TIMESTAMP and written_in not in (None, zone):
        strings = _local_strings(values, zone, sent.decimals or 0)
    before, after = replace(sent, zone=None), replace(kept, zone=None)
    old, new = spark_type(before), spark_type(after)
    strings = pc.if_else(pc.is_valid(values), strings, None)
    if isinstance(new, StringType) and keeps_values(before, after):
        if isinstance(old, StringType):  # of ENUM and SET the label, too: as it is
            return values
        return _decoded(values) if isinstance(old, BinaryType) else strings
    if isinstance(old, _NUMBERS) and isinstance(new, _NUMBERS) and _is_plain(after):
        return _number_array(before, after, values, strings)
    if not isinstance(new, ArrayType):
        encoded = strings.dictionary_encode()
        each = [convert(before, after, text) for text in encoded.dictionary.to_pylist()]
        strings = pa.array(each, pa.string()).take(encoded.indices)
    return from_text_array(after, strings, zone)


def _number_array(before: Column, after: Column, values: pa.Array, strings: pa.Array) -> pa.Array:
    """Numbers as `_number` casts them: what has no room in the new type is NULL."""
    new, is_real = spark_type(after), before.code in _REALS
    if isinstance(new, FloatType | DoubleType):
        kind = arrow_type(after)
        return values.cast(kind, safe=False) if is_real else from_text_array(after, strings)
    if is_real:  # the number that it is, not the one that its shortest form says
        exact = [None if each is None else repr(each) for each in values.to_pylist()]
        strings = pa.array(exact, pa.string())
    unit = Decimal(1).scaleb(-new.scale if isinstance(new, DecimalType) else 0)
    is_even = is_real and after.code != MySQLType.NEWDECIMAL
    rounding = ROUND_HALF_EVEN if is_even else ROUND_HALF_UP
    encoded = strings.dictionary_encode()
    numbers = [
        format(Decimal(each).quantize(unit, rounding, _EXACT), "f")
        for each in encoded.dictionary.to_pylist()
    ]
    return from_text_array(after, pa.array(numbers, pa.string()).take(encoded.indices))


def _local_strings(instants: pa.Array, zone: str, digits: int) -> pa.Array:
    """What clocks in a zone show at instants, with so many digits of a second."""
    local = pc.local_timestamp(instants.cast(pa.timestamp("us", zone)))
    length = 20 + digits if digits else 19
    return pc.utf8_slice_codeunits(local.cast(pa.string()), 0, length)


def _decoded(values: pa.Array) -> pa.Array:
    texts = [None if each is None else each.decode(errors="replace") for each in values.to_pylist()]
    return pa.array(texts, pa.string())


def converted(before: Column, after: Column, value: SparkColumn, zone: str) -> SparkColumn:
    """A value of the old type as the new one; NULL where it has no counterpart.

    Local times are those that clocks show in the column's own zone, else in `zone`.
    """
    zone = before.zone or after.zone or zone
    before, after = replace(before, zone=None), replace(after, zone=None)
    old, new = spark_type(before), spark_type(after)
    if keeps_values(before, after) and old == new:
        return value
    if isinstance(old, _MOMENTS) and isinstance(new, _MOMENTS):
        return _time(before, after, value, zone)
    if isinstance(old, _NUMBERS) and isinstance(new, _NUMBERS) and _is_plain(after):
        return _number(before, after, value)
    if isinstance(new, StringType) and keeps_values(before, after):
        if isinstance(old, StringType):  # of ENUM and SET the label, too: as it is
            return value
        is_bytes = isinstance(old, BinaryType)
        return value.cast(StringType()) if is_bytes else to_text(before, value, zone)
    text = to_text(before, value, zone)
    if isinstance(new, ArrayType):
        return from_text(after, text)
    text = text_function(partial(_kept, before, after))(text)
    return text if isinstance(new, StringType) else from_text(after, text, zone)


def _kept(before: Column, after: Column, text: str) -> str | None:
    """The text that the lake keeps: labels here, since Spark makes none of what Python gave."""
    found = convert(before, after, text)
    return found if found is None or not after.elements else label(after, found)


def _is_plain(column: Column) -> bool:
    """Whether any number that is in range is a value of the column."""
    return column.code != MySQLType.YEAR and not (column.code in _REALS and column.decimals)


def _number(before: Column, after: Column, value: SparkColumn) -> SparkColumn:
    old, new = spark_type(before), spark_type(after)
    if isinstance(new, _WHOLE) or (isinstance(new, DecimalType) and new.scale == 0):
        # Half away from zero; a double that becomes an integer, half to even.
        to_even = before.code in _REALS and after.code != MySQLType.NEWDECIMAL
        value = value if isinstance(old, _WHOLE) else (F.bround if to_even else F.round)(value, 0)
    return value.try_cast(new)


def _time(before: Column, after: Column, value: SparkColumn, zone: str) -> SparkColumn:
    old, new = spark_type(before), spark_type(after)
    if isinstance(new, DateType):
        return from_text(after, F.substring(to_text(before, value, zone), 1, 10))
    if isinstance(old, DateType):
        local = value.cast(TimestampNTZType())
    else:
        local = to_text(before, value, zone).try_cast(TimestampNTZType())
        if (after.decimals or 0) < (before.decimals or 0):
            local = _rounded(local, after.decimals or 0)
    if isinstance(new, TimestampNTZType):
        return local
    return from_text(after, local.cast(StringType()), zone)


def _rounded(local: SparkColumn, digits: int) -> SparkColumn:
    """A local time rounded to so many digits of a second, half up as MySQL does."""
    micros = F.rpad(F.substring(local.cast(StringType()), 21, 6), 6, "0").cast(LongType())
    unit = 10 ** (6 - digits)
    seconds = (F.round(micros / F.lit(unit), 0) * F.lit(unit) - micros) / F.lit(1_000_000)
    shift = seconds.cast(DecimalType(18, 6))
    return local + F.make_dt_interval(secs=shift)
