"""The one table of MySQL's types and Spark's: what a column is in Spark, and its values both ways.

Values come as the text of the change batch (docs/batch.md) and go back to it. Reading never fails:
a text that does not fit its column is NULL, and `misfits` tells such a NULL from a real one. Dates
that are none (`0000-00-00`, `2020-00-10`) are NULL by rule and no misfits. docs/types.md has the
table and the rules.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
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
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidegate.model import Column, MySQLType, ValueForm
from tidegate.wire.batch.typed import read_texts
from tidegate.wire.kernel.text import format_double, format_float

UTC = "UTC"
MAX_PRECISION = 38
"""Digits of Spark's widest decimal."""

_UINT64 = DecimalType(20, 0)
_FIXED_TYPES: dict[int, DataType] = {
    MySQLType.FLOAT: FloatType(),
    MySQLType.DOUBLE: DoubleType(),
    MySQLType.DATE: DateType(),
    MySQLType.NEWDATE: DateType(),
    MySQLType.DATETIME: TimestampNTZType(),
    MySQLType.TIMESTAMP: TimestampType(),
    MySQLType.YEAR: IntegerType(),
    MySQLType.VECTOR: ArrayType(FloatType()),
}


@lru_cache(maxsize=4096)
def spark_type(column: Column) -> DataType:
    """The Spark type that holds every value of the column."""
    form = column.value_form
    if column.code == MySQLType.LONGLONG:
        return _UINT64 if form == ValueForm.UNSIGNED else LongType()
    if column.code == MySQLType.LONG:
        return LongType() if form == ValueForm.UNSIGNED else IntegerType()
    if form in (ValueForm.INTEGER, ValueForm.UNSIGNED) and column.code not in _BY_NUMBER:
        return IntegerType()
    if form == ValueForm.BINARY:
        return BinaryType()
    if column.code == MySQLType.NEWDECIMAL:
        return _decimal_type(column)
    if column.code == MySQLType.BIT:
        return LongType() if 0 < (column.length or 0) < 64 else _UINT64
    return _FIXED_TYPES.get(column.code, StringType())


_BY_NUMBER = (MySQLType.BIT, MySQLType.ENUM, MySQLType.SET)


def _decimal_type(column: Column) -> DataType:
    """DECIMAL has up to 65 digits in MySQL; where Spark has no room, or none is told, the text."""
    precision, scale = column.length, max(column.decimals or 0, 0)
    if precision is None or not 0 < precision <= MAX_PRECISION or scale > precision:
        return StringType()
    return DecimalType(precision, scale)


def spark_schema(columns: Iterable[Column]) -> StructType:
    """The columns in Spark; all may be NULL, since a text that does not fit is."""
    return StructType([StructField(column.name, spark_type(column)) for column in columns])


# --- the texts that each type reads ---------------------------------------------------------------

_INTEGER = "-?[0-9]+"
_REAL = r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_DATETIME = _DATE + r" [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
# Without groups that repeat: Java would need a deep stack for them, and a vector may be long.
_VECTOR = r"\[[-.,0-9]*\]"
_BASE64 = "^[A-Za-z0-9+/]*={0,2}$"


def _pattern(kind: DataType) -> str:
    """What a text must look like to be read as this type."""
    if isinstance(kind, DecimalType):
        if kind.scale == 0:
            return r"^-?[0-9]+(?:\.0*)?$"
        return rf"^-?(?:[0-9]+(?:\.[0-9]{{0,{kind.scale}}}0*)?|\.[0-9]{{1,{kind.scale}}}0*)$"
    return f"^{_PATTERNS[type(kind)]}$"


_PATTERNS: dict[type[DataType], str] = {
    IntegerType: _INTEGER,
    LongType: _INTEGER,
    FloatType: _REAL,
    DoubleType: _REAL,
    DateType: _DATE,
    TimestampNTZType: _DATETIME,
    TimestampType: _DATETIME,
    ArrayType: _VECTOR,
}
_TEMPORAL = (DateType, TimestampNTZType, TimestampType)


# --- expressions of Spark -------------------------------------------------------------------------


def from_text(column: Column, value: SparkColumn, zone: str = UTC) -> SparkColumn:
    """The typed value of a text; NULL where the text does not fit.

    `zone` is that of the feed, in which it writes TIMESTAMPs; a zone of the column's own wins.
    """
    kind = spark_type(column)
    if _has_64_bits(column):
        value = _unsigned(value)
    if isinstance(kind, StringType):
        return _labels(column, value)
    if isinstance(kind, BinaryType):
        padded = value.rlike(_BASE64) & (F.length(value) % 4 == 0)
        return F.when(padded, F.try_to_binary(value, F.lit("base64")))
    fits = value.rlike(_pattern(kind))
    if isinstance(kind, ArrayType):
        inside = F.substring(value, F.lit(2), F.length(value) - 2)
        numbers = F.transform(F.split(inside, ","), _real_number)
        empty = F.array().cast(kind)
        read = F.when(value == "[]", empty).otherwise(numbers)
        return F.when(fits & ~F.exists(read, F.isnull), read)
    if isinstance(kind, TimestampType):
        # With its zone in the text, it does not depend on that of the session.
        return F.when(fits, F.concat(value, F.lit(f" {column.zone or zone}")).try_cast(kind))
    if isinstance(kind, FloatType | DoubleType):
        return F.when(fits, _finite(value, kind))
    return F.when(fits, value.try_cast(kind))


def _has_64_bits(column: Column) -> bool:
    """Whether values may use the highest of 64 bits.

    Simple's Avro writes it as the sign, and a row alone does not tell a BIT from a BIGINT.
    """
    if column.code == MySQLType.SET:
        return len(column.elements) in (0, 64)
    return column.code == MySQLType.BIT and isinstance(spark_type(column), DecimalType)


_NEGATIVE = "^-[0-9]{1,19}$"
_SIGN_BIT = 1 << 63


def _unsigned(value: SparkColumn) -> SparkColumn:
    number = F.when(value.rlike(_NEGATIVE), value.try_cast(LongType()))
    wrapped = (number.cast(_UINT64) + F.lit(Decimal(1 << 64))).cast(_UINT64)
    return F.when(number.isNotNull(), wrapped.cast(StringType())).otherwise(value)


def _unsigned_array(values: pa.StringArray) -> pa.StringArray:
    negative = pc.fill_null(pc.match_substring_regex(values, _NEGATIVE), False)
    numbers = map(int, values.filter(negative).to_pylist())
    texts = [str(each + 2 * _SIGN_BIT if each >= -_SIGN_BIT else each) for each in numbers]
    return pc.replace_with_mask(values, negative, pa.array(texts, values.type)) if texts else values


def _real_number(text: SparkColumn) -> SparkColumn:
    return F.when(text.rlike(f"^{_REAL}$"), _finite(text, FloatType()))


def _finite(value: SparkColumn, kind: DataType) -> SparkColumn:
    number = value.try_cast(kind)
    return F.when(F.abs(number) < F.lit(float("inf")), number)


def misfits(column: Column, value: SparkColumn, zone: str = UTC) -> SparkColumn:
    """Whether there is a text that `from_text` cannot read; never NULL."""
    kind = spark_type(column)
    lost = value.isNotNull() & from_text(column, value, zone).isNull()
    if isinstance(kind, _TEMPORAL):
        return lost & ~value.rlike(_pattern(kind))  # a date of that form is NULL by rule
    return lost


def to_text(column: Column, value: SparkColumn, zone: str = UTC) -> SparkColumn:
    """The text of a typed value, as the change batch has it: the inverse of `from_text`."""
    kind = spark_type(column)
    if isinstance(kind, StringType):
        return _numbers(column, value)
    if isinstance(kind, BinaryType):
        return F.translate(F.base64(value), "\r\n", "")  # Spark breaks it into lines
    if isinstance(kind, DecimalType):
        return _decimal_text(kind, value)
    if isinstance(kind, FloatType):
        return _float_text(value)
    if isinstance(kind, DoubleType):
        return _double_text(value)
    if isinstance(kind, ArrayType):
        return _vector_text(value)
    if isinstance(kind, TimestampNTZType):
        return _datetime_text(column, value)
    if isinstance(kind, TimestampType):
        return _datetime_text(column, _local(value, column.zone or zone))
    return value.cast(StringType())


def _decimal_text(kind: DecimalType, value: SparkColumn) -> SparkColumn:
    plain = value.cast(StringType())
    if kind.scale <= 6:
        return plain
    # Without ANSI mode Spark writes small numbers with an exponent, but none that are above one.
    below_ten = F.abs(value).try_cast(DecimalType(kind.scale + 1, kind.scale))
    raised = (below_ten + F.lit(Decimal(1))).cast(StringType())
    sign = F.when(plain.startswith("-"), F.lit("-")).otherwise(F.lit(""))
    small = F.concat(sign, F.lit("0"), F.substring(raised, 2, kind.scale + 1))
    return F.when(plain.contains("E"), small).otherwise(plain)


def _local(value: SparkColumn, zone: str) -> SparkColumn:
    """What clocks in a zone show at an instant, whatever the zone of the session."""
    seconds = (F.unix_micros(value).cast(DecimalType(20, 0)) / F.lit(1_000_000)).cast(
        DecimalType(18, 6)
    )
    epoch = F.lit("1970-01-01 00:00:00").cast(TimestampNTZType())
    utc = epoch + F.make_dt_interval(secs=seconds)
    if zone == UTC:
        return utc
    return F.convert_timezone(F.lit(UTC), F.lit(zone), utc)


def _datetime_text(column: Column, value: SparkColumn) -> SparkColumn:
    text = value.cast(StringType())  # without trailing zeros
    if column.decimals is None:
        return text
    whole = F.substring(text, 1, 19)
    if column.decimals <= 0:
        return whole
    fraction = F.rpad(F.substring(text, 21, 6), column.decimals, "0")
    return F.concat(whole, F.lit("."), fraction)


def text_function(formatted: Callable[[Any], str | None]) -> Callable[[SparkColumn], SparkColumn]:
    """A function of Spark's that makes texts of values with one of Python's; NULL stays NULL."""

    udf: Any = arrow_udf

    def formatted_array(values: pa.Array) -> pa.Array:
        return pa.array(
            [None if value is None else formatted(value) for value in values.to_pylist()],
            pa.string(),
        )

    def write(value: SparkColumn) -> SparkColumn:
        written: SparkColumn = udf(formatted_array, StringType())(value)
        return written

    return write


def _format_vector(numbers: list[float]) -> str:
    return "[" + ",".join(map(format_float, numbers)) + "]"


# Java 17 does not always write the fewest digits that read back to the same number.
_float_text = text_function(format_float)
_double_text = text_function(format_double)
_vector_text = text_function(_format_vector)


# --- ENUM and SET: numbers on the wire, labels in Spark -------------------------------------------


def _labels(column: Column, value: SparkColumn) -> SparkColumn:
    elements = column.elements
    if not elements or column.code not in (MySQLType.ENUM, MySQLType.SET):
        return value
    number = F.when(value.rlike("^[0-9]+$"), value.try_cast(_UINT64))
    if column.code == MySQLType.ENUM:
        # Number 0 is MySQL's empty text for a value that was none of the elements.
        labels = F.array(F.lit(""), *map(F.lit, elements))
        return F.when(number <= len(elements), F.get(labels, number.try_cast(IntegerType())))
    bits = _low_bits(F.when(number < F.lit(Decimal(1 << len(elements))), number))

    def is_chosen(_: SparkColumn, place: SparkColumn) -> SparkColumn:
        return F.call_function("shiftright", bits, place).bitwiseAND(F.lit(1)) == 1

    chosen = F.filter(F.array(*map(F.lit, elements)), is_chosen)
    return F.when(bits.isNotNull(), F.array_join(chosen, ","))


def _low_bits(number: SparkColumn) -> SparkColumn:
    """The 64 bits of an unsigned number as a long, whose highest bit is its sign."""
    wrap = F.lit(Decimal(1 << 64))
    signed = F.when(number >= F.lit(Decimal(1 << 63)), number - wrap).otherwise(number)
    return signed.try_cast(LongType())


def _numbers(column: Column, value: SparkColumn) -> SparkColumn:
    elements = column.elements
    if not elements or column.code not in (MySQLType.ENUM, MySQLType.SET):
        return value
    if column.code == MySQLType.ENUM:
        place = F.array_position(F.array(*map(F.lit, elements)), F.lit(value))
        known = F.when((place > 0) | (value == ""), place)
        return known.cast(StringType())
    bits = [F.lit(Decimal(1 << place)).cast(_UINT64) for place in range(len(elements))]
    bit_of = F.map_from_arrays(F.array(*map(F.lit, elements)), F.array(*bits))

    def with_bit(number: SparkColumn, element: SparkColumn) -> SparkColumn:
        return (number + F.try_element_at(bit_of, element)).cast(_UINT64)

    number = F.aggregate(F.split(value, ","), F.lit(Decimal(0)).cast(_UINT64), with_bit)
    return F.when(value == "", F.lit("0")).otherwise(number.cast(StringType()))


# --- arrays of Arrow ------------------------------------------------------------------------------

_ARROW_TYPES: dict[type[DataType], pa.DataType] = {
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    DateType: pa.date32(),
    TimestampNTZType: pa.timestamp("us"),
    TimestampType: pa.timestamp("us", tz=UTC),
    StringType: pa.string(),
    BinaryType: pa.binary(),
    ArrayType: pa.list_(pa.field("element", pa.float32())),
}
# The bytes that a type's texts have, and their shortest length: what Arrow reads beyond these
# (blanks, exponents, hexadecimals, a day without its time) Spark reads otherwise.
_ALPHABETS: dict[type[DataType], tuple[bytes, int]] = {
    IntegerType: (b"-0123456789", 1),
    LongType: (b"-0123456789", 1),
    DecimalType: (b"-.0123456789", 1),
    FloatType: (b"-.0123456789", 1),
    DoubleType: (b"-.0123456789", 1),
    DateType: (b"-0123456789", 10),
    TimestampNTZType: (b"-.: 0123456789", 19),
    TimestampType: (b"-.: 0123456789", 19),
}


def arrow_type(column: Column) -> pa.DataType:
    """The Arrow type in which Spark takes the column's values from Python."""
    kind = spark_type(column)
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return _ARROW_TYPES[type(kind)]


def from_text_array(
    column: Column,
    values: pa.StringArray,
    zone: str = UTC,
    *,
    at: pa.Int32Array | None = None,
    place: int = 0,
) -> pa.Array:
    """The typed values of texts, those that `from_text` gives; with `at` those at `at + place`."""
    kind = spark_type(column)
    target = arrow_type(column)
    if _has_64_bits(column):
        values, at, place = _unsigned_array(_texts_at(values, at, place)), None, 0
    if type(kind) not in _ALPHABETS:
        return _from_other_texts(column, kind, _texts_at(values, at, place))
    local = pa.timestamp("us") if isinstance(kind, TimestampType) else target
    found = read_texts(values, at, place, local)
    if found is None:
        found = _read_array(kind, _texts_at(values, at, place), local)
    if not isinstance(kind, TimestampType):
        return found
    own = column.zone or zone
    if own != UTC:
        found = pc.assume_timezone(found, own, ambiguous="earliest", nonexistent="latest")
    return found.cast(target)


def real_texts(values: pa.Array) -> pa.Array:
    """The texts of FLOAT or DOUBLE values, as `from_text_array` reads them: without an exponent."""
    write = format_float if pa.types.is_float32(values.type) else format_double
    texts = [None if value is None else write(value) for value in values.to_pylist()]
    return pa.array(texts, pa.string())


def _texts_at(values: pa.StringArray, at: pa.Int32Array | None, place: int) -> pa.StringArray:
    if at is None:
        return values
    return values.take(at if place == 0 else pc.add(at, pa.scalar(place, pa.int32())))


def _from_other_texts(column: Column, kind: DataType, values: pa.StringArray) -> pa.Array:
    """Texts, labels, bytes and vectors."""
    if isinstance(kind, StringType):
        return _label_array(column, values)
    if isinstance(kind, BinaryType):
        return pa.array(map(_bytes, values.to_pylist()), pa.binary())
    return _vector_array(values)


def _bytes(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return a2b_base64(text, strict_mode=True)
    except ValueError:
        return None


def _read_array(kind: DataType, values: pa.Array, target: pa.DataType) -> pa.Array:
    if _is_plain(kind, values):
        try:
            return _without_infinity(values.cast(target))
        except pa.ArrowInvalid:
            pass  # one of them does not fit: each by itself
    matching = _matching(_pattern(kind), values)
    return _without_infinity(pa.array(_each(matching, target), target))


def _is_plain(kind: DataType, values: pa.Array) -> bool:
    """Whether the texts are of such bytes only that Arrow reads them as Spark does."""
    alphabet, shortest = _ALPHABETS[type(kind)]
    shortest_here = pc.min(pc.binary_length(values)).as_py()
    if shortest_here is None:
        return True
    offsets = memoryview(values.buffers()[1]).cast("i")
    start, end = offsets[values.offset], offsets[values.offset + len(values)]
    used = bytes(memoryview(values.buffers()[2])[start:end])
    return shortest_here >= shortest and not used.translate(None, alphabet)


def _matching(pattern: str, values: pa.Array) -> pa.Array:
    return pc.if_else(pc.match_substring_regex(values, pattern), values, None)


def _each(values: pa.Array, target: pa.DataType) -> list[pa.Scalar | None]:
    found: list[pa.Scalar | None] = []
    for value in values:
        try:
            found.append(value.cast(target) if value.is_valid else None)
        except pa.ArrowInvalid:
            found.append(None)
    return found


def _without_infinity(values: pa.Array) -> pa.Array:
    if not pa.types.is_floating(values.type):
        return values
    infinite = pc.is_inf(values)
    return pc.if_else(infinite, None, values) if pc.any(infinite).as_py() else values


def _vector_array(values: pa.Array) -> pa.Array:
    vector_text = re.compile(_VECTOR)
    texts = values.to_pylist()
    fitting = [text is not None and vector_text.fullmatch(text) is not None for text in texts]
    parts = [
        text[1:-1].split(",") if fits and text != "[]" else []
        for text, fits in zip(texts, fitting, strict=True)
    ]
    flat = pa.array([part for numbers in parts for part in numbers], pa.string())
    numbers = _read_array(FloatType(), flat, pa.float32()).to_pylist()
    found: list[list[float] | None] = []
    position = 0
    for part, fits in zip(parts, fitting, strict=True):
        vector = numbers[position : position + len(part)]
        position += len(part)
        found.append(vector if fits and None not in vector else None)
    return pa.array(found, _ARROW_TYPES[ArrayType])


def _label_array(column: Column, values: pa.Array) -> pa.Array:
    if not column.elements or column.code not in (MySQLType.ENUM, MySQLType.SET):
        return values.cast(pa.string())
    encoded = values.dictionary_encode()
    labels = [label(column, text) for text in encoded.dictionary.to_pylist()]
    return pa.array(labels, pa.string()).take(encoded.indices)


@lru_cache(maxsize=4096)
def label(column: Column, text: str) -> str | None:
    """The label of an ENUM or SET whose number is told; None where no element has it."""
    if not re.fullmatch("[0-9]{1,20}", text):
        return None
    number, elements = int(text), column.elements
    if column.code == MySQLType.ENUM:
        return ("", *elements)[number] if number <= len(elements) else None
    if number >= 1 << len(elements):
        return None
    return ",".join(element for place, element in enumerate(elements) if number >> place & 1)
