"""A table that has a column of every type MySQL and TiDB know, and values for it.

Rows are put together from a stock of ready ones, so that a row of fifty columns costs little more
than one of five. The stock holds the ends of every range, NULL in every column that may be, texts
that a careless codec spoils, and a few of some 30,000 bytes.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from random import Random

from tidegate.wire.kernel.text import format_double, format_float
from tidegate.workload.truth import Row

Make = Callable[[Random], str | None]

_STOCK = 512
_LONG_EVERY = 64  # ready rows
_LONG = "a long text, 長い文 "
_WORDS = (
    "",
    "plain",
    "it's",
    'she said "no"',
    "back\\slash",
    "line\nfeed\ttab\r",
    "<b>&amp;</b>",
    "naïve café",
    "値段は¥100",
    "🙂👍🏽",
    "\u2028\u2029",
    "nul\x00and\x1f",
    "100%_like",
    "NULL",
    "0",
    "  led by spaces",
)


def _integer(least: int, most: int) -> Make:
    ends = [number for number in (least, most, -1, 0, 1) if least <= number <= most]

    def make(chance: Random) -> str:
        if chance.random() < 0.3:
            return str(ends[int(chance.random() * len(ends))])
        return str(least + int(chance.random() * (most - least)))

    return make


def _decimal(digits: int, scale: int, *, unsigned: bool = False) -> Make:
    def make(chance: Random) -> str:
        number = str(chance.getrandbits(220) % 10 ** max(1, int(chance.random() * (digits + 1))))
        number = number.rjust(scale + 1, "0")
        text = f"{number[:-scale]}.{number[-scale:]}" if scale else number
        is_negative = not unsigned and chance.random() < 0.4 and any(c in "123456789" for c in text)
        return f"-{text}" if is_negative else text

    return make


def _float(chance: Random) -> str:
    sizes = (0.0, 1.0, 0.1, 1e-10, 1e10, 3.4e38)
    return format_float(sizes[int(chance.random() * 6)] * (chance.random() * 1.9 - 0.95) + 0.0)


def _double(chance: Random) -> str:
    sizes = (0.0, 1.0, 0.1, 1e-200, 1e15, 1.7e308)
    return format_double(sizes[int(chance.random() * 6)] * (chance.random() * 2 - 1) + 0.0)


def _positive(make: Callable[[Random], str]) -> Make:
    return lambda chance: make(chance).removeprefix("-")


def _fixed(make: Callable[[float], str], most: float) -> Make:
    return lambda chance: make(round((chance.random() * 2 - 1) * most, 2) + 0.0)


def _date(chance: Random) -> str:
    ends = ("1000-01-01", "9999-12-31", "1970-01-01", "2024-02-29", "1582-10-15")
    if chance.random() < 0.2:
        return ends[int(chance.random() * 5)]
    return f"{1900 + int(chance.random() * 200)}-{_two(chance, 12, 1)}-{_two(chance, 28, 1)}"


def _two(chance: Random, count: int, first: int = 0) -> str:
    return f"{first + int(chance.random() * count):02}"


def _fraction(chance: Random, digits: int) -> str:
    if not digits:
        return ""
    return f".{int(chance.random() * 10**digits) if chance.random() < 0.8 else 0:0{digits}}"


def _datetime(digits: int) -> Make:
    def make(chance: Random) -> str:
        clock = f"{_two(chance, 24)}:{_two(chance, 60)}:{_two(chance, 60)}"
        return f"{_date(chance)} {clock}{_fraction(chance, digits)}"

    return make


def _timestamp(digits: int) -> Make:
    def make(chance: Random) -> str:
        day = f"{1971 + int(chance.random() * 66)}-{_two(chance, 12, 1)}-{_two(chance, 28, 1)}"
        clock = f"{_two(chance, 24)}:{_two(chance, 60)}:{_two(chance, 60)}"
        return f"{day} {clock}{_fraction(chance, digits)}"

    return make


def _time(digits: int) -> Make:
    def make(chance: Random) -> str:
        if chance.random() < 0.2:
            zeros = "." + "0" * digits if digits else ""
            ends = ("-838:59:59", "838:59:59", "00:00:00")
            return ends[int(chance.random() * 3)] + zeros
        sign = "-" if chance.random() < 0.3 else ""
        hours = 1 + int(chance.random() * 837)
        rest = f"{_two(chance, 60)}:{_two(chance, 60)}{_fraction(chance, digits)}"
        return f"{sign}{hours:02}:{rest}"

    return make


def _year(chance: Random) -> str:
    return str(1901 + int(chance.random() * 255)) if chance.random() < 0.9 else "0"


def _text(most: int) -> Make:
    def make(chance: Random) -> str:
        text = ""
        for _ in range(int(chance.random() * 4)):
            text += _WORDS[int(chance.random() * len(_WORDS))]
        return text[:most]

    return make


def _char(most: int) -> Make:
    """CHAR loses its trailing spaces."""
    make = _text(most)
    return lambda chance: (make(chance) or "").rstrip(" ")


def _bytes(least: int, most: int) -> Make:
    def make(chance: Random) -> str:
        size = least + int(chance.random() * (most - least + 1))
        return b64encode(chance.getrandbits(8 * size + 8).to_bytes(size + 1, "big")[1:]).decode()

    return make


def _json(chance: Random) -> str:
    """JSON as TiDB writes it: members in order, a space after each colon and comma."""
    word = json.dumps(_WORDS[int(chance.random() * len(_WORDS))], ensure_ascii=False)
    forms = (
        "null",
        "true",
        "[]",
        "{}",
        word,
        str(int(chance.random() * 2e9) - 10**9),
        f'{{"a": {word}, "b": [1, 2.5, null], "nested": {{"deep": [true, false]}}}}',
        f'[{word}, {{"k": {int(chance.random() * 100)}}}]',
    )
    return forms[int(chance.random() * len(forms))]


def _vector(size: int | None) -> Make:
    def make(chance: Random) -> str:
        count = size or 1 + int(chance.random() * 5)
        numbers = (round(chance.random() * 20 - 10, 1) for _ in range(count))
        return "[" + ",".join(format_float(number + 0.0) for number in numbers) + "]"

    return make


# name: (its definition, what makes its values)
COLUMNS: dict[str, tuple[str, Make]] = {
    "ti": ("TINYINT", _integer(-128, 127)),
    "tu": ("TINYINT UNSIGNED", _integer(0, 255)),
    "bo": ("TINYINT(1)", _integer(0, 1)),
    "si": ("SMALLINT", _integer(-32768, 32767)),
    "su": ("SMALLINT UNSIGNED", _integer(0, 65535)),
    "mi": ("MEDIUMINT", _integer(-(2**23), 2**23 - 1)),
    "mu": ("MEDIUMINT UNSIGNED", _integer(0, 2**24 - 1)),
    "i": ("INT", _integer(-(2**31), 2**31 - 1)),
    "iu": ("INT UNSIGNED", _integer(0, 2**32 - 1)),
    "bi": ("BIGINT", _integer(-(2**63), 2**63 - 1)),
    "bu": ("BIGINT UNSIGNED", _integer(0, 2**64 - 1)),
    "f": ("FLOAT", _float),
    "fu": ("FLOAT UNSIGNED", _positive(_float)),
    "d": ("DOUBLE", _double),
    "du": ("DOUBLE UNSIGNED", _positive(_double)),
    "d2": ("DOUBLE(20,2)", _fixed(format_double, 1e12)),
    "de": ("DECIMAL(10,2)", _decimal(10, 2)),
    "deu": ("DECIMAL(30,10) UNSIGNED", _decimal(30, 10, unsigned=True)),
    "de65": ("DECIMAL(65,30)", _decimal(65, 30)),
    "de0": ("DECIMAL(38,0)", _decimal(38, 0)),
    "b1": ("BIT(1)", _integer(0, 1)),
    "b33": ("BIT(33)", _integer(0, 2**33 - 1)),
    "b64": ("BIT(64)", _integer(0, 2**64 - 1)),
    "da": ("DATE", _date),
    "dt": ("DATETIME", _datetime(0)),
    "dt3": ("DATETIME(3)", _datetime(3)),
    "dt6": ("DATETIME(6)", _datetime(6)),
    "ts": ("TIMESTAMP NULL", _timestamp(0)),
    "ts6": ("TIMESTAMP(6) NULL", _timestamp(6)),
    "tm": ("TIME", _time(0)),
    "tm3": ("TIME(3)", _time(3)),
    "tm6": ("TIME(6)", _time(6)),
    "y": ("YEAR", _year),
    "c": ("CHAR(20)", _char(20)),
    "vc": ("VARCHAR(255)", _text(255)),
    "tt": ("TINYTEXT", _text(60)),
    "tx": ("TEXT", _text(100)),
    "mt": ("MEDIUMTEXT", _text(100)),
    "lt": ("LONGTEXT", _text(100)),
    "bn": ("BINARY(16)", _bytes(16, 16)),
    "vb": ("VARBINARY(300)", _bytes(0, 60)),
    "tb": ("TINYBLOB", _bytes(0, 40)),
    "bl": ("BLOB", _bytes(0, 40)),
    "mb": ("MEDIUMBLOB", _bytes(0, 40)),
    "lb": ("LONGBLOB", _bytes(0, 40)),
    "e": ("ENUM('a','b','c,d','it''s','值')", _integer(1, 5)),
    "s": ("SET('x','y','z','值')", _integer(0, 15)),
    "j": ("JSON", _json),
    "v": ("VECTOR", _vector(None)),
    "v3": ("VECTOR(3)", _vector(3)),
}

_LONG_PLACE = list(COLUMNS).index("lt")

CREATE = "CREATE TABLE `everything` (`id` INT PRIMARY KEY,{})".format(
    ",".join(f"`{name}` {definition}" for name, (definition, _) in COLUMNS.items())
)


class Stock:
    """Ready rows of some columns, without the key."""

    def __init__(self, chance: Random) -> None:
        self._random = chance.random
        self._rows = [
            tuple(None if chance.random() < 0.1 else make(chance) for _, make in COLUMNS.values())
            for _ in range(_STOCK)
        ]
        for number in range(0, _STOCK, _LONG_EVERY):
            row = list(self._rows[number])
            row[_LONG_PLACE] = _LONG * (1000 + int(chance.random() * 500))
            self._rows[number] = tuple(row)

    def row(self, key: str) -> Row:
        """A new row."""
        return (key, *self._rows[int(self._random() * _STOCK)])

    def changed(self, row: Row) -> Row:
        """The row with some of its columns from another one."""
        other = self._rows[int(self._random() * _STOCK)]
        first = int(self._random() * len(other))
        end = min(len(other), first + 1 + int(self._random() * 12))
        return (*row[: first + 1], *other[first:end], *row[end + 1 :])

    def rewrite(self, change: Callable[[Row], Row]) -> None:
        """Does to ready rows what a statement does to the table's.

        A column that it adds is NULL in every third of them, and not always the default.
        """
        width = len(self._rows[0])
        self._rows = [change(("", *row))[1:] for row in self._rows]
        if len(self._rows[0]) > width:
            self._rows[::3] = [(*row[:-1], None) for row in self._rows[::3]]
