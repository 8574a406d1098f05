"""Conditions of chunks: literals that read back, and ranges that cover each row exactly once."""

from __future__ import annotations

import sqlite3
from base64 import b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model import Column
from tidegate.upstream.predicates import between, literal


@pytest.mark.parametrize(
    ("type", "value", "expected"),
    [
        ("int", "-5", "-5"),
        ("bigint unsigned", "18446744073709551615", "18446744073709551615"),
        ("year", "0", "0"),
        ("enum('a')", "1", "1"),
        ("bit(64)", "18446744073709551615", "18446744073709551615"),
        ("decimal(65,30)", "-0.10", "-0.10"),
        ("float", "0.1", "0.10000000149011612e0"),
        ("double", "0.1", "0.1e0"),
        ("double", "1" + "0" * 300, "1e+300"),
        ("varbinary(9)", b64encode(b"\0'\\\xff").decode(), "x'00275cff'"),
        ("binary(1)", "", "x''"),
        ("varchar(9)", "it's", "'it''s'"),
        ("varchar(9)", "\\'; DROP\0\n\r\x1a", "'\\\\''; DROP\\0\\n\\r\\Z'"),
        ("varchar(9)", "é😀", "'é😀'"),
        ("date", "0000-00-00", "'0000-00-00'"),
        ("datetime(6)", "2020-01-01 00:00:00.000001", "'2020-01-01 00:00:00.000001'"),
        ("time", "-838:59:59", "'-838:59:59'"),
    ],
)
def test_literals(type, value, expected):
    assert literal(Column.of_type("c", type), value) == expected


@pytest.mark.parametrize(
    ("type", "value"),
    [("int", "1 OR 1"), ("decimal(9,2)", "1);"), ("double", "x"), ("varbinary(3)", "a'b")],
)
def test_a_value_that_is_none_of_its_type_is_no_literal(type, value):
    with pytest.raises((ValueError, ArithmeticError)):
        literal(Column.of_type("c", type), value)


A, B = Column.of_type("a", "int"), Column.of_type("b", "int")
S = Column.of_type("s", "varchar(9)", charset="utf8mb4")


@pytest.mark.parametrize(
    ("columns", "low", "high", "strict", "expected"),
    [
        ([A], None, None, False, ""),
        ([A], None, ("5",), False, "`a` < 5"),
        ([A], ("5",), None, False, "`a` >= 5"),
        ([A], ("5",), None, True, "`a` > 5"),
        ([A], ("5",), ("9",), False, "`a` >= 5 AND `a` < 9"),
        ([A], ("5",), ("9",), True, "`a` > 5 AND `a` < 9"),
        ([A], ("5",), ("5",), False, "`a` = 5 AND FALSE"),
        ([A, B], ("1", "2"), None, False, "(`a` > 1 OR (`a` = 1 AND `b` >= 2))"),
        ([A, B], None, ("1", "2"), False, "(`a` < 1 OR (`a` = 1 AND `b` < 2))"),
        ([A, B], ("1", "2"), ("1", "7"), False, "`a` = 1 AND `b` >= 2 AND `b` < 7"),
        (
            [A, B],
            ("1", "2"),
            ("3", "4"),
            False,
            "((`a` > 1 AND `a` < 3) OR (`a` = 1 AND `b` >= 2) OR (`a` = 3 AND `b` < 4))",
        ),
        ([A, B], ("1",), ("3",), False, "`a` >= 1 AND `a` < 3"),
        ([A, B], ("1",), ("1", "4"), False, "`a` = 1 AND `b` < 4"),
        (
            [S, B],
            ("x", "1"),
            ("X", "2"),
            False,
            "((`s` > 'x' AND `s` < 'X') OR (`s` = 'x' AND `s` < 'X' AND `b` >= 1) OR "
            "(`s` = 'X' AND `s` > 'x' AND `b` < 2) OR "
            "(`s` = 'x' AND `s` = 'X' AND `b` >= 1 AND `b` < 2))",
        ),
    ],
)
def test_conditions(columns, low, high, strict, expected):
    assert between(columns, low, high, strict=strict) == (f" WHERE {expected}" if expected else "")


NUMBERS = st.integers(-3, 3).map(str)
WORDS = st.sampled_from(["", "a", "A", "b", "B", "ab", "aB"])


@settings(deadline=None)
@given(
    keys=st.sets(st.tuples(NUMBERS, WORDS, NUMBERS), max_size=40),
    columns=st.permutations([0, 1, 2]),
    picks=st.sets(st.integers(0, 39), max_size=12),
    prefix=st.integers(1, 3),
    collation=st.sampled_from(["BINARY", "NOCASE"]),
)
def test_neighbouring_ranges_cover_each_row_exactly_once(keys, columns, picks, prefix, collation):
    """SQLite compares: without regard to case, two strings can differ and be equal."""
    all_columns = [A, S, B]
    key = [all_columns[place] for place in columns]
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute(f"CREATE TABLE t (a INT, s TEXT COLLATE {collation}, b INT)")
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", sorted(keys))
        listed = ", ".join(f"`{column.name}`" for column in key)
        ordered = connection.execute(f"SELECT {listed} FROM t ORDER BY {listed}").fetchall()
        bounds = [
            tuple(map(str, ordered[at]))[:prefix] for at in sorted(picks) if at < len(ordered)
        ]
        lows, highs = [None, *bounds], [*bounds, None]
        covered = []
        for low, high in zip(lows, highs, strict=True):
            where = between(key, low, high)
            covered += connection.execute(f"SELECT rowid FROM t{where}").fetchall()
        assert sorted(covered) == [(number,) for number in range(1, len(keys) + 1)]
        for low, high in zip(lows[1:], highs[1:], strict=True):
            if prefix < len(key):
                break  # reading resumes after whole keys only
            same = " AND ".join(
                f"`{column.name}` = {literal(column, value)}"
                for column, value in zip(key, low, strict=True)
            )
            whole, after = (between(key, low, high, strict=strict) for strict in (False, True))
            without = f"SELECT rowid FROM t{whole} AND NOT ({same}) ORDER BY 1"
            rest = f"SELECT rowid FROM t{after} ORDER BY 1"
            assert connection.execute(rest).fetchall() == connection.execute(without).fetchall()
    finally:
        connection.close()
