"""Texts in Arrow's types: what MySQL writes is read as Python reads it, all else is left to others."""

import datetime as dt
import re
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.wire.batch.typed import read_texts

INT32, INT64, FLOAT, DOUBLE = pa.int32(), pa.int64(), pa.float32(), pa.float64()
DATE, DATETIME = pa.date32(), pa.timestamp("us")


def one(text, target):
    """The value of a text; None if it is not read."""
    found = read_texts(pa.array([text], pa.string()), None, 0, target)
    return None if found is None else found.to_pylist()[0]


@pytest.mark.parametrize(
    ("target", "text", "value"),
    [
        (INT32, "0", 0),
        (INT32, "-2147483648", -(2**31)),
        (INT32, "2147483647", 2**31 - 1),
        (INT64, "-9223372036854775808", -(2**63)),
        (INT64, "9223372036854775807", 2**63 - 1),
        (INT64, "007", 7),
        (FLOAT, "3.25", 3.25),
        (DOUBLE, "-0.1", -0.1),
        (DOUBLE, "1" + "0" * 300, 1e300),
        (pa.decimal128(12, 2), "-12345.60", Decimal("-12345.60")),
        (pa.decimal128(12, 2), "7", Decimal("7.00")),
        (pa.decimal128(12, 2), "0.5", Decimal("0.50")),
        (pa.decimal128(4, 2), "99.99", Decimal("99.99")),
        (pa.decimal128(20, 0), "18446744073709551615", Decimal(2**64 - 1)),
        (pa.decimal128(38, 4), "-0.0000", Decimal("0.0000")),
        (DATE, "1970-01-01", dt.date(1970, 1, 1)),
        (DATE, "0001-01-01", dt.date(1, 1, 1)),
        (DATE, "9999-12-31", dt.date(9999, 12, 31)),
        (DATE, "2000-02-29", dt.date(2000, 2, 29)),
        (DATETIME, "1969-12-31 23:59:59", dt.datetime(1969, 12, 31, 23, 59, 59)),
        (DATETIME, "2024-02-29 01:02:03.4", dt.datetime(2024, 2, 29, 1, 2, 3, 400000)),
        (DATETIME, "9999-12-31 23:59:59.999999", dt.datetime.max),
        (DATETIME, "0001-01-01 00:00:00", dt.datetime.min),
    ],
)  # fmt: skip
def test_what_mysql_writes_is_read(target, text, value):
    assert one(text, target) == value


@pytest.mark.parametrize(
    ("target", "texts"),
    [
        (INT32, ["2147483648", "-2147483649", "", "-", "+1", " 1", "1 ", "1.0", "1e1", "--1", "1-"]),
        (INT64, ["9223372036854775808", "-9223372036854775809", "1" * 21, "x"]),
        (FLOAT, ["1" + "0" * 39, "nan", "inf", "1e1", "+1", "", "-", ".", "1.2.3", "0x1", "1f"]),
        (DOUBLE, ["1" + "0" * 309, "Infinity", "-Inf", "1E5", "1d", "--1"]),
        (pa.decimal128(4, 2), ["100.00", "-100", "1.005", "1.", ".5", "", "-", ".", "1..2", "1.2.3", "1e1", "1-"]),
        (pa.decimal128(20, 0), ["18446744073709551616", "1.0", "-18446744073709551616"]),
        (pa.decimal128(38, 18), ["100.000000000000000001"]),  # more than 64 bits
        (DATE, ["0000-00-00", "0000-01-01", "2020-00-10", "2020-01-00", "2021-02-29", "2020-13-01", "2020-1-1", "2020-01-01 ", ""]),
        (DATETIME, ["2020-01-01", "2020-01-01T00:00:00", "2020-01-01 24:00:00", "2020-01-01 00:60:00", "2020-01-01 00:00:00.", "2020-01-01 00:00:00.1234567", "2020-00-01 00:00:00"]),
    ],
)  # fmt: skip
def test_all_else_is_not(target, texts):
    assert [text for text in texts if one(text, target) is not None] == []


MADE_UP = st.text("0123456789-.: e+", max_size=27)
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)


@given(st.one_of(MADE_UP, st.integers(-(2**65), 2**65).map(str)))
def test_integers_are_those_of_python(text):
    fits = re.fullmatch("-?[0-9]{1,20}", text, re.ASCII) is not None
    for target, bits in ((INT32, 31), (INT64, 63)):
        there = fits and -(2**bits) <= int(text) < 2**bits
        assert one(text, target) == (int(text) if there else None)


@given(
    st.one_of(MADE_UP, st.decimals(-(10**12), 10**12, places=6).map("{:f}".format)),
    st.integers(1, 38),
    st.integers(0, 38),
)
def test_decimals_are_those_of_python(text, precision, scale):
    scale = min(scale, precision)
    found = one(text, pa.decimal128(precision, scale))
    match = NUMBER.fullmatch(text)
    places = len((match[1] or ".")[1:]) if match else 0
    unscaled = (
        int(text.replace(".", "")) * 10 ** (scale - places) if match and places <= scale else None
    )
    if unscaled is None or abs(unscaled) >= 10**precision:
        assert found is None
    elif found is not None:
        assert int(found.scaleb(scale)) == unscaled
    else:  # it is more than is read here: 64 bits, or 20 digits with zeros in front
        digits = len(text.replace("-", "").replace(".", "")) + scale - places
        assert abs(unscaled) >= 2**64 or digits > 20


@given(st.one_of(MADE_UP, st.floats(allow_nan=False, allow_infinity=False).map("{:.17f}".format)))
def test_doubles_are_those_of_python(text):
    assert one(text, DOUBLE) == (float(text) if NUMBER.fullmatch(text) else None)


@given(st.datetimes(), st.integers(0, 6))
def test_every_moment_is_that_of_python(moment, digits):
    moment = moment.replace(
        microsecond=moment.microsecond // 10 ** (6 - digits) * 10 ** (6 - digits)
    )
    text = moment.isoformat(" ", "microseconds")[: 20 + digits if digits else 19]
    assert one(text, DATETIME) == moment
    assert one(text[:10], DATE) == moment.date()


def test_texts_are_found_at_their_positions():
    lists = pa.array([["x"], ["1", "2", None], None, ["3", "4", "5"]])[1:]
    starts = lists.offsets[:-1]
    positions = pa.array([starts[2].as_py(), None, starts[0].as_py()], pa.int32())
    for place, expected in enumerate(([3, None, 1], [4, None, 2], [5, None, None])):
        assert read_texts(lists.values, positions, place, INT64).to_pylist() == expected
    assert read_texts(lists.values, positions[2:], 0, INT64).to_pylist() == [1]


def test_slices_are_read_and_nulls_stay():
    texts = pa.array(["x", *map(str, range(20)), None, "y"])
    found = read_texts(texts[1:22], None, 0, INT32)
    assert found.to_pylist() == [*range(20), None]
    assert (found.null_count, found.type) == (1, INT32)
    found.validate(full=True)
    assert read_texts(texts[:0], None, 0, DATE) == pa.array([], DATE)


@pytest.mark.parametrize(("position", "place"), [(3, 0), (2, 1), (-1, 0), (2**31 - 1, 5)])
def test_a_position_outside_is_refused(position, place):
    with pytest.raises(IndexError, match="outside of the 3 texts"):
        read_texts(pa.array(["1", "2", "3"]), pa.array([position], pa.int32()), place, INT64)


def test_other_arrays_are_refused():
    with pytest.raises(TypeError, match="strings at int32 positions are read, not int64"):
        read_texts(pa.array([1]), None, 0, INT64)
