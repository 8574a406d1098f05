"""MySQL's types in Spark: every value of the golden corpus goes there and comes back as it was."""

from __future__ import annotations

import datetime as dt
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.support import truth
from tests.support.table_schema import known_schema
from tidegate.model import Column, Flag
from tidegate.spark import types

Texts = Sequence[str | None]


def column(text: str, **known: Any) -> Column:
    return Column.of_type("c", text, **known)


def table(columns: Iterable[Texts]) -> pa.Table:
    """Columns of different lengths, filled up with NULL."""
    lists = [list(texts) for texts in columns]
    longest = max(map(len, lists))
    return pa.table(
        {
            str(place): pa.array(texts + [None] * (longest - len(texts)), pa.string())
            for place, texts in enumerate(lists)
        }
    )


class Read:
    """Texts as Spark reads them: the values, which do not fit, and the texts of the values."""

    def __init__(
        self, spark: SparkSession, columns: Sequence[Column], texts: Iterable[Texts], zone: str
    ) -> None:
        self.texts = table(texts)
        names = self.texts.column_names
        values = [
            types.from_text(column, F.col(name), zone)
            for column, name in zip(columns, names, strict=True)
        ]
        misfits = [
            types.misfits(column, F.col(name), zone)
            for column, name in zip(columns, names, strict=True)
        ]
        back = [
            types.to_text(column, value, zone)
            for column, value in zip(columns, values, strict=True)
        ]
        frame = spark.createDataFrame(self.texts).select(
            F.struct(*(value.alias(name) for value, name in zip(values, names, strict=True))).alias("values"),
            F.struct(*(value.alias(name) for value, name in zip(misfits, names, strict=True))).alias("misfits"),
            F.struct(*(value.alias(name) for value, name in zip(back, names, strict=True))).alias("back"),
        )  # fmt: skip
        self.schema = frame.select("values.*").schema
        self._found = frame.toArrow().combine_chunks()

    def _part(self, part: str, place: int) -> pa.Array:
        return self._found[part].chunk(0).field(place) if self._found.num_rows else pa.array([])

    def values(self, place: int = 0) -> pa.Array:
        return self._part("values", place)

    def misfits(self, place: int = 0) -> list[bool]:
        return self._part("misfits", place).to_pylist()

    def back(self, place: int = 0) -> list[str | None]:
        return self._part("back", place).to_pylist()


def read(spark: SparkSession, told: Column, *texts: str | None, zone: str = "UTC") -> Read:
    return Read(spark, [told], [texts], zone)


def golden_columns() -> tuple[list[Column], list[list[str | None]]]:
    """Every type of column that rows of the scenario `types` carry, and all values of each."""
    found: dict[Column, dict[str | None, None]] = {}
    for event in truth.events("types"):
        if event.schema is None or event.kind not in truth.ROWS:
            continue
        schema = known_schema(event.schema.raw)
        assert schema is not None
        for value in (*(event.after or ()), *(event.before or ())):
            told = schema.column(value.name)
            assert told is not None
            bare = replace(
                told, name="c", default=None, nullable=None, charset=None, collation=None
            )
            found.setdefault(bare, {})[value.text] = None
    return list(found), [list(texts) for texts in found.values()]


def test_golden_values_come_back_as_they_were(spark: SparkSession) -> None:
    columns, texts = golden_columns()
    assert len(columns) > 60
    found = Read(spark, columns, texts, "UTC")
    assert [field.dataType for field in found.schema] == list(map(types.spark_type, columns))
    for place, told in enumerate(columns):
        sent = found.texts[str(place)].combine_chunks()
        where = told.full_type
        assert (where, found.back(place)) == (where, [mended(told, t) for t in sent.to_pylist()])
        assert (where, any(found.misfits(place))) == (where, False)
        typed = types.from_text_array(told, sent)
        assert (where, typed.type) == (where, types.arrow_type(told))
        assert (where, typed) == (where, found.values(place).cast(typed.type))


def mended(told: Column, text: str | None) -> str | None:
    """The one exception: a date that is none."""
    is_date = told.base_type in ("date", "datetime", "timestamp")
    return None if text is not None and is_date and "-00" in text else text


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (column("tinyint"), "int"),
        (column("tinyint unsigned"), "int"),
        (column("smallint unsigned"), "int"),
        (column("mediumint unsigned"), "int"),
        (column("int"), "int"),
        (column("int unsigned"), "bigint"),
        (column("int", flags=Flag.UNSIGNED), "bigint"),
        (column("bigint"), "bigint"),
        (column("bigint unsigned"), "decimal(20,0)"),
        (column("float"), "float"),
        (column("float(10,2)"), "float"),
        (column("double unsigned"), "double"),
        (column("decimal(10,2)"), "decimal(10,2)"),
        (column("decimal(38,30)"), "decimal(38,30)"),
        (column("decimal(39,0)"), "string"),
        (column("decimal"), "string"),
        (column("date"), "date"),
        (column("datetime(6)"), "timestamp_ntz"),
        (column("timestamp(3)"), "timestamp"),
        (column("time(3)"), "string"),
        (column("year"), "int"),
        (column("bit(1)"), "bigint"),
        (column("bit(63)"), "bigint"),
        (column("bit(64)"), "decimal(20,0)"),
        (column("bit"), "decimal(20,0)"),
        (column("enum('a')"), "string"),
        (column("enum"), "string"),
        (column("set"), "string"),
        (column("json"), "string"),
        (column("varchar(10)"), "string"),
        (column("longtext"), "string"),
        (column("varbinary(10)"), "binary"),
        (column("blob"), "binary"),
        (column("text", flags=Flag.BINARY), "binary"),
        (column("vector(3)"), "array<float>"),
        (column("geometry"), "string"),
        (column("no such type"), "string"),
    ],
    ids=lambda value: value.full_type if isinstance(value, Column) else value,
)  # fmt: skip
def test_each_type_has_its_spark_type(told: Column, expected: str) -> None:
    assert types.spark_type(told).simpleString() == expected


MISFITS = [
    (column("int"), ["2147483648", " 1", "+1", "1.0", "1e1", "0x1", "", "-", "one"]),
    (column("bigint"), ["9223372036854775808"]),
    (column("bigint unsigned"), ["100000000000000000000", "1.5"]),
    (column("decimal(4,2)"), ["100.00", "1.005", "1e1", "", "."]),
    (column("float"), ["1" + "0" * 39, "NaN", "inf", "1d", "1e1", ""]),
    (column("double"), ["1" + "0" * 309, "Infinity", "0x1p3"]),
    (column("date"), ["2020-1-1", "2020-01-01 00:00:00", "2020", "yesterday"]),
    (column("datetime"), ["2020-01-01", "2020-01-01T00:00:00", "2020-01-01 00:00:00.1234567"]),
    (column("timestamp"), ["2020-01-01 00:00:00+01:00", "now"]),
    (column("enum('a','b')"), ["3", "-1", "a", ""]),
    (column("set('a','b')"), ["4", "-1", "a", ""]),
    (column("varbinary(9)"), ["A", "AA=", "A A=", "Ä==="]),
    (column("vector(2)"), ["[1,]", "[1,a]", "1,2", "[1e3]", "[1" + "0" * 39 + "]", "["]),
]


@pytest.fixture(scope="module")
def misfits(spark: SparkSession) -> Read:
    return Read(spark, [told for told, _ in MISFITS], [texts for _, texts in MISFITS], "UTC")


@pytest.mark.parametrize("place", range(len(MISFITS)), ids=lambda p: MISFITS[p][0].full_type)
def test_what_does_not_fit_is_null_and_counted(misfits: Read, place: int) -> None:
    told, texts = MISFITS[place]
    assert misfits.values(place).null_count == len(misfits.values(place))
    assert misfits.misfits(place)[: len(texts)] == [True] * len(texts)
    assert not any(misfits.misfits(place)[len(texts) :])  # NULL itself fits
    typed = types.from_text_array(told, misfits.texts[str(place)].combine_chunks())
    assert typed.null_count == len(typed)


def test_dates_that_are_none_are_null_by_rule(spark: SparkSession) -> None:
    found = read(spark, column("date"), "0000-00-00", "2020-00-10", "2020-02-30", "2020-02-29")
    assert found.values().to_pylist() == [None, None, None, dt.date(2020, 2, 29)]
    assert found.misfits() == [False] * 4


def test_timestamps_are_instants_by_the_zone_of_the_column_else_of_the_feed(
    spark: SparkSession,
) -> None:
    told = column("timestamp(3)")
    own = column("timestamp(3)", zone="-03:00")
    text = ["2024-07-01 12:00:00.500"]
    zone = "Asia/Shanghai"
    shown = spark.conf.get("spark.sql.session.timeZone")
    assert shown is not None
    try:
        for session_zone in ("UTC", "America/New_York"):
            spark.conf.set("spark.sql.session.timeZone", session_zone)
            found = Read(spark, [told, own], [text, text], zone)
            instants = [found.values(place).cast(pa.timestamp("us", "UTC")) for place in (0, 1)]
            assert [array.to_pylist()[0].astimezone(dt.UTC).hour for array in instants] == [4, 15]
            assert [found.back(0), found.back(1)] == [text, text]
            for place, one in enumerate((told, own)):
                array = types.from_text_array(one, pa.array(text), zone)
                assert array == instants[place]
    finally:
        spark.conf.set("spark.sql.session.timeZone", shown)


def test_labels_of_enum_and_set(spark: SparkSession) -> None:
    letters = [f"e{place}" for place in range(64)]
    wide = column(f"set({','.join(map(repr, letters))})")
    enum = column("enum('a','b,c','')")
    bare = column("set")
    texts = [["0", "1", str(1 << 63), str((1 << 64) - 1)], ["0", "1", "2"], ["5"]]
    found = Read(spark, [wide, enum, bare], texts, "UTC")
    assert found.values(0).to_pylist() == ["", "e0", "e63", ",".join(letters)]
    assert found.values(1).to_pylist()[:3] == ["", "a", "b,c"]
    assert found.values(2).to_pylist()[:1] == ["5"]
    assert found.back(0) == texts[0]
    # The empty element cannot be told from number 0, which is an empty text too.
    assert found.back(1)[:3] == ["3", "1", "2"]
    for place, told in enumerate((wide, enum, bare)):
        array = types.from_text_array(told, found.texts[str(place)].combine_chunks())
        assert array == found.values(place)


def test_the_highest_of_64_bits_may_come_as_a_sign(spark: SparkSession) -> None:
    """As in Simple's Avro, whose rows do not tell a BIT or SET from a BIGINT."""
    wide = column(f"set({','.join(repr(str(place)) for place in range(64))})")
    named = [column("bit(64)"), column("bit"), column("set"), wide, column("bigint")]
    texts = ["-1", "-9223372036854775808", "7"]
    found = Read(spark, named, [texts] * len(named), "UTC")
    for place, told in enumerate(named[:-1]):
        assert found.back(place) == ["18446744073709551615", "9223372036854775808", "7"]
        array = types.from_text_array(told, found.texts[str(place)].combine_chunks())
        assert array == found.values(place)
    assert found.back(len(named) - 1) == texts


def test_fractions_of_seconds_are_shown_as_declared_else_as_needed(spark: SparkSession) -> None:
    texts = ["2020-01-01 00:00:00.500000", "2020-01-01 00:00:00"]
    named = [column("datetime"), column("datetime(0)"), column("datetime(2)")]
    found = Read(spark, named, [texts] * 3, "UTC")
    assert found.back(0) == ["2020-01-01 00:00:00.5", "2020-01-01 00:00:00"]
    assert found.back(1) == ["2020-01-01 00:00:00", "2020-01-01 00:00:00"]
    assert found.back(2) == ["2020-01-01 00:00:00.50", "2020-01-01 00:00:00.00"]


def test_small_decimals_are_written_without_exponent_in_either_mode(spark: SparkSession) -> None:
    told = column("decimal(38,30)")
    digits = "0." + "0" * 29
    texts = [digits + "1", "-" + digits + "1", digits + "0", "-99999999." + "9" * 30]
    ansi = spark.conf.get("spark.sql.ansi.enabled")
    assert ansi is not None
    try:
        for mode in ("true", "false"):
            spark.conf.set("spark.sql.ansi.enabled", mode)
            assert read(spark, told, *texts).back() == texts
    finally:
        spark.conf.set("spark.sql.ansi.enabled", ansi)


# --- any value at all -----------------------------------------------------------------------------

MANY = settings(
    max_examples=3,
    deadline=None,
    phases=[Phase.generate],  # an example is a Spark job: too dear to shrink
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ALPHABET = st.text("0123456789-.: e,[]", max_size=24)
KINDS = [
    (column("int"), st.integers(-(2**31), 2**31 - 1).map(str)),
    (column("bigint"), st.integers(-(2**63), 2**63 - 1).map(str)),
    (column("bigint unsigned"), st.integers(0, 2**64 - 1).map(str)),
    (column("decimal(30,9)"), st.decimals(-(10**20), 10**20, places=9).map(lambda n: f"{n:f}")),
    (column("double"), st.floats(allow_nan=False, allow_infinity=False).map(lambda n: truth.positional(repr(n)).removesuffix(".0"))),
    (column("date"), st.dates(dt.date(1, 1, 1)).map(str)),
    (column("datetime(6)"), st.datetimes(dt.datetime(1, 1, 1)).map(lambda t: t.isoformat(" ", "microseconds"))),
    (column("timestamp(6)"), st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2038, 1, 1)).map(lambda t: t.isoformat(" ", "microseconds"))),
    (column("varbinary(99)"), st.binary().map(lambda b: b64encode(b).decode())),
]  # fmt: skip


@MANY
@given(st.tuples(*(st.lists(kind, min_size=1, max_size=200) for _, kind in KINDS)))
def test_any_value_comes_back(spark: SparkSession, texts: tuple[list[str], ...]) -> None:
    columns = [told for told, _ in KINDS]
    found = Read(spark, columns, texts, "UTC")
    for place, told in enumerate(columns):
        sent = found.texts[str(place)].combine_chunks()
        assert found.back(place) == sent.to_pylist()
        typed = types.from_text_array(told, sent)
        assert typed == found.values(place).cast(typed.type)


@MANY
@given(st.lists(ALPHABET, min_size=50, max_size=200))
def test_any_text_reads_the_same_in_spark_and_in_arrow(
    spark: SparkSession, texts: list[str]
) -> None:
    columns = [
        *(told for told, _ in KINDS),
        column("float"),
        column("vector"),
        column("set('a','b')"),
    ]
    found = Read(spark, columns, [texts] * len(columns), "UTC")
    for place, told in enumerate(columns):
        typed = types.from_text_array(told, pa.array(texts, pa.string()))
        read = found.values(place).cast(typed.type)
        differing = [
            (told.full_type, text, one, other)
            for text, one, other in zip(texts, typed.to_pylist(), read.to_pylist(), strict=True)
            if one != other
        ]
        assert differing == []


def test_the_values_of_a_slice_are_read() -> None:
    sliced = pa.array(["x", "1", None, "2", "y"])[1:4]
    assert types.from_text_array(column("int"), sliced).to_pylist() == [1, None, 2]
    empty = types.from_text_array(column("decimal(5,2)"), pa.array([], pa.string()))
    assert empty == pa.array([], pa.decimal128(5, 2))
    assert types.from_text_array(column("decimal(5,2)"), pa.array(["1.50"])).to_pylist() == [
        Decimal("1.50")
    ]
