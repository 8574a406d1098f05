"""What values become when their column gets another type, as TiDB converts them."""

from __future__ import annotations

import pytest

from tidegate.model import Column
from tidegate.sql.casts import convert, keeps_values

# From, to, and texts as rows carry them: before → after.
CONVERTED = [
    ("decimal(10,2)", "int", {"2.50": "3", "-2.50": "-3", "0.49": "0"}),
    ("double", "int", {"2.5": "2", "3.5": "4", "-2.5": "-2"}),  # half to even
    ("double", "decimal(10,0)", {"2.5": "3"}),
    ("float", "decimal(20,10)", {"0.1": "0.1000000015"}),
    ("decimal(60,20)", "decimal(60,2)", {"1.23500000000000000000": "1.24"}),
    ("double", "double(10,2)", {"1.256": "1.26"}),
    ("varchar(20)", "int", {" 12.5": "13", "1e3": "1000", "-7": "-7", "12abc": None, "": None}),
    ("varchar(20)", "decimal(10,2)", {"1.235": "1.24", "1e2": "100.00"}),
    ("varchar(20)", "double", {"1e5": "100000", "-0.5": "-0.5"}),
    ("varchar(20)", "bigint unsigned", {"18446744073709551615": "18446744073709551615"}),
    ("int", "tinyint", {"127": "127", "300": None}),
    ("int", "year", {"70": "1970", "69": "2069", "0": "0", "2155": "2155", "1900": None}),
    ("varchar(4)", "year", {"0": "2000", "0000": "0", "99": "1999"}),
    ("bit(8)", "varchar(8)", {"97": "97"}),
    ("bit(64)", "varchar(20)", {"-1": "18446744073709551615"}),
    ("enum('a','b')", "int", {"2": "2"}),
    ("set('a','b')", "double", {"3": "3"}),
    ("enum('a','b')", "varchar(9)", {"2": "b", "0": ""}),
    ("set('a','b')", "text", {"3": "a,b", "0": ""}),
    ("enum('a','b')", "enum('b','c','a')", {"1": "3", "2": "1", "0": "0"}),
    ("set('a','b')", "set('b','a')", {"1": "2", "3": "3"}),
    ("varchar(9)", "enum('x','2','y')", {"y": "3", "2": "2", "3": "3", "z": None}),
    ("varchar(9)", "set('x','y')", {"y,x": "3", "": "0"}),
    ("int", "enum('x','y')", {"2": "2", "3": None}),
    ("date", "int", {"2020-01-02": "20200102"}),
    ("datetime(3)", "bigint", {"1999-12-31 23:59:59.500": "20000101000000"}),
    ("datetime(3)", "decimal(20,2)", {"2020-01-02 03:04:05.678": "20200102030405.68"}),
    ("datetime(6)", "datetime(3)", {"2020-01-02 03:04:05.678501": "2020-01-02 03:04:05.679"}),
    ("datetime(3)", "date", {"2020-01-02 23:59:59.999": "2020-01-02"}),
    ("datetime", "time", {"2020-01-02 03:04:05": "03:04:05"}),
    ("datetime", "year", {"2020-01-02 03:04:05": "2020"}),
    ("int", "date", {"20200102": "2020-01-02", "701231": "1970-12-31", "20201301": None}),
    ("bigint", "datetime(3)", {"20200102030405": "2020-01-02 03:04:05.000"}),
    ("varchar(30)", "date", {"2020-1-2": "2020-01-02", "20200102": "2020-01-02", "x": None}),
    ("varchar(30)", "datetime", {"20-1-2 3:4:5.6": "2020-01-02 03:04:06"}),
    ("varchar(30)", "datetime", {"2020-01-02T03:04:05": "2020-01-02 03:04:05"}),
    ("time(3)", "time", {"-12:34:56.500": "-12:34:57"}),
    ("time", "time(3)", {"838:59:59": "838:59:59.000"}),
    ("time", "int", {"-12:34:56": "-123456"}),
    ("int", "time", {"-123456": "-12:34:56", "7": "00:00:07", "60": None}),
    ("varchar(20)", "time", {"1:2": "01:02:00", "1 1:2:3": "25:02:03", "10203": "01:02:03"}),
    ("time", "datetime", {"01:02:03": None}),  # of a day that is not told
    ("int", "varbinary(9)", {"1234": "MTIzNA=="}),
    ("binary(2)", "binary(4)", {"YWI=": "YWIAAA=="}),
    ("varchar(9)", "binary(4)", {"ab": "YWIAAA==", "": "AAAAAA=="}),
    ("varbinary(9)", "varchar(9)", {"YWI=": "ab"}),
    ("varchar(9)", "char(9)", {"ab  ": "ab"}),
    ("varchar(99)", "json", {'{"b":1.0,"a":[1,"<",1e30,null]}': '{"a": [1, "<", 1e30, null], "b": 1.0}'}),
    ("double", "json", {"5": "5.0"}),
    ("datetime", "json", {"2020-01-02 03:04:05": '"2020-01-02 03:04:05.000000"'}),
    ("json", "int", {'"12"': "12", "true": "1", "1.5": "2", "{}": None}),
    ("json", "varchar(9)", {'"12"': '"12"'}),
]  # fmt: skip


def of(text: str) -> Column:
    return Column.of_type("c", text)


@pytest.mark.parametrize(("before", "after", "texts"), CONVERTED)
def test_values_are_converted_as_tidb_does(
    before: str, after: str, texts: dict[str, str | None]
) -> None:
    assert {text: convert(of(before), of(after), text) for text in texts} == texts


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("int", "bigint", True),
        ("varchar(9)", "varchar(20)", True),
        ("char(9)", "varchar(9)", True),
        ("varchar(9)", "char(9)", False),
        ("enum('a','b')", "varchar(9)", True),
        ("enum('a','b')", "enum('c','b','a')", True),
        ("enum('a','b')", "enum('A','b')", False),
        ("set('a','b')", "set('a','x','b')", True),
        ("set('a','b')", "set('b','a')", False),
        ("varchar(9)", "enum('a')", False),
        ("varchar(9)", "json", False),
        ("varchar(9)", "time", False),
        ("time(3)", "time", False),
        ("time", "time(3)", False),
        ("datetime", "datetime(3)", True),
        ("datetime(3)", "datetime", False),
        ("binary(2)", "binary(4)", False),
        ("varbinary(4)", "binary(4)", False),
        ("binary(4)", "varbinary(9)", True),
        ("decimal(60,20)", "decimal(60,2)", False),
        ("double", "double(10,2)", False),
        ("smallint", "year", False),
        ("year", "smallint", True),
    ],
)
def test_what_stays_as_it_is_needs_no_conversion(before: str, after: str, expected: bool) -> None:
    assert keeps_values(of(before), of(after)) is expected


STRANGE = ("", "x", "-", "9" * 999, "1e9999", "0000-00-00", "\0", "[" * 2000, "²", "-²", "=", "-1")


@pytest.mark.parametrize("before", sorted({start for start, _, _ in CONVERTED}))
def test_no_text_is_too_strange(before: str) -> None:
    for after in sorted({to for _, to, _ in CONVERTED}):
        for text in STRANGE:
            found = convert(of(before), of(after), text)
            assert found is None or isinstance(found, str)
