"""tidegate.wire.kernel.text against what Python, exact arithmetic and published test values say.

What Go writes is given as tables of cases, printed by its strconv and encoding/json.
"""

import base64
import binascii
import math
import struct
import subprocess
import sys
import zlib
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.wire.kernel import text

finite_doubles = st.floats(allow_nan=False, allow_infinity=False)
finite_floats = st.floats(allow_nan=False, allow_infinity=False, width=32)
double_bits = st.integers(0, 2**64 - 1)


def double_of(bits: int) -> float:
    (value,) = struct.unpack("<d", struct.pack("<Q", bits))
    return float(value)


def float_of(bits: int) -> float:
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    return float(value)


def bits_of(value: float) -> int:
    return int.from_bytes(struct.pack("<d", value), "little")


def positional(number: str) -> str:
    """The same decimal without an exponent and without needless zeros."""
    plain = format(Decimal(number), "f")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


# Integers


@pytest.mark.parametrize("power", range(20))
def test_integers_around_each_power_of_ten(power: int) -> None:
    for value in (10**power - 1, 10**power, 10**power + 1):
        assert text.format_int(value) == str(value)
        if value <= 2**63:
            assert text.format_int(-value) == str(-value)


@given(st.integers(-(2**63), 2**64 - 1))
@example(-(2**63))
@example(2**63)
@example(2**64 - 1)
def test_integers_are_written_as_python_writes_them(value: int) -> None:
    assert text.format_int(value) == str(value)


@given(st.integers(0, 2**64 - 1), st.integers(0, 20))
@example(2**64 - 1, 0)
@example(0, 20)
def test_unsigned_integers_are_read_from_their_digits(value: int, width: int) -> None:
    assert text.parse_u64(str(value).encode()) == value
    assert text.parse_u64(str(value).zfill(width).encode()) == value


@given(st.integers(-(2**63), 2**63 - 1))
@example(-(2**63))
@example(2**63 - 1)
def test_signed_integers_are_read_from_their_digits(value: int) -> None:
    assert text.parse_i64(str(value).encode()) == value


@pytest.mark.parametrize(
    "digits",
    ["", "-", "+1", " 1", "1 ", "--1", "1-2", "0x1", "1e3", "1.0", "१", "18446744073709551616"]
    + ["99999999999999999999", "000000000000000000000", "12345678/", "1234567:", "1234567\xb1"],
)
def test_texts_that_are_no_integers(digits: str) -> None:
    for function in (text.parse_u64, text.parse_i64):
        with pytest.raises(ValueError, match="integer"):
            function(digits.encode())


def test_integers_beyond_the_signed_range() -> None:
    for digits in (b"9223372036854775808", b"-9223372036854775809"):
        with pytest.raises(ValueError, match="integer"):
            text.parse_i64(digits)
    with pytest.raises(ValueError, match="integer"):
        text.parse_u64(b"-1")


# Floating point to text

GO_DOUBLES = [
    (1.0, "1"),
    (0.1, "0.1"),
    (-0.0, "-0"),
    (0.0, "0"),
    (100.0, "100"),
    (-2.5, "-2.5"),
    (1e20, "100000000000000000000"),
    (1e21, "1000000000000000000000"),
    (1e23, "100000000000000000000000"),
    (0.000001, "0.000001"),
    (123456.789, "123456.789"),
    (0.30000000000000004, "0.30000000000000004"),
    (9007199254740991.0, "9007199254740991"),
    (9007199254740992.0, "9007199254740992"),
    (9007199254740994.0, "9007199254740994"),
    (2.0**63, "9223372036854776000"),
    (9.4e-323, "0." + "0" * 322 + "94"),
    (5e-324, "0." + "0" * 323 + "5"),
    (2.2250738585072014e-308, "0." + "0" * 307 + "22250738585072014"),
    (1.7976931348623157e308, "17976931348623157" + "0" * 292),
]


@pytest.mark.parametrize(("value", "expected"), GO_DOUBLES)
def test_doubles_as_go_formats_them(value: float, expected: str) -> None:
    assert text.format_double(value) == expected
    assert positional(repr(value)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, "1"),
        (0.1, "0.1"),
        (-0.0, "-0"),
        (3.4028234663852886e38, "34028235" + "0" * 31),
        (1.1754943508222875e-38, "0." + "0" * 37 + "11754944"),
        (1.401298464324817e-45, "0." + "0" * 44 + "1"),
        (16777216.0, "16777216"),
        (33554432.0, "33554432"),
        (67108864.0, "67108864"),
        (1e10, "10000000000"),
        (8589973504.0, "8589974000"),
        (1e-6, "0.000001"),
    ],
)
def test_floats_as_go_formats_them(value: float, expected: str) -> None:
    assert text.format_float(value) == expected


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_has_no_text(value: float) -> None:
    with pytest.raises(ValueError, match="no decimal text"):
        text.format_double(value)
    with pytest.raises(ValueError, match="no decimal text"):
        text.format_float(value)


@given(double_bits)
def test_doubles_have_the_digits_of_repr(bits: int) -> None:
    value = double_of(bits)
    if math.isfinite(value):
        assert text.format_double(value) == positional(repr(value))


@given(finite_doubles)
def test_ordinary_doubles_have_the_digits_of_repr(value: float) -> None:
    assert text.format_double(value) == positional(repr(value))


def test_every_power_of_two_and_its_neighbours() -> None:
    """Below a power of two the next double is only half as far away as above it."""
    for exponent in range(2047):
        for bits in ((exponent << 52) - 1, exponent << 52, (exponent << 52) + 1):
            if bits >= 0:
                value = double_of(bits)
                assert text.format_double(value) == positional(repr(value))


def shortest_float(bits: int) -> str:
    """The shortest decimal that reads back as a positive float, by exact arithmetic."""
    value = Fraction(float_of(bits))
    below = (value + Fraction(float_of(bits - 1))) / 2
    step = Fraction(float_of(bits + 1)) - value if bits + 1 < 0xFF << 23 else Fraction(2) ** 104
    above = value + step / 2
    power = math.floor(math.log10(float_of(bits)))
    for unit in (Fraction(10) ** (power + 1 - count) for count in range(10)):
        nearby = [unit * (value // unit + up) for up in (0, 1)]
        # A float with an even mantissa owns the points halfway to its neighbours.
        inside = [c for c in nearby if below < c < above or (c in (below, above) and not bits & 1)]
        if inside:
            nearest = min(
                inside, key=lambda candidate: (abs(candidate - value), candidate // unit & 1)
            )
            return positional(f"{nearest / unit}e{round(math.log10(unit))}")
    raise AssertionError(f"nine digits do not do for {value}")


@given(st.integers(1, (0xFF << 23) - 1))
@example((0xFF << 23) - 1)
@example(1)
def test_floats_have_the_shortest_digits(bits: int) -> None:
    assert text.format_float(float_of(bits)) == shortest_float(bits)
    assert text.format_float(-float_of(bits)) == "-" + shortest_float(bits)


def test_every_power_of_two_as_a_float() -> None:
    for exponent in range(255):
        for bits in ((exponent << 23) - 1, exponent << 23, (exponent << 23) + 1):
            if bits > 0:
                assert text.format_float(float_of(bits)) == shortest_float(bits)


# Text to floating point


def halfway(value: float, after: float) -> str:
    """The decimal exactly between two neighbours; it takes up to 767 digits."""
    middle = (Fraction(value) + Fraction(after)) / 2
    twos = middle.denominator.bit_length() - 1
    digits = str(middle.numerator * 5**twos)
    return f"{digits}e-{twos}"


@given(st.integers(0, (0x7FF << 52) - 2))
@example(0)
@example(1)
@example((1 << 52) - 1)
@example(1 << 52)
@example(0x4340000000000000)
def test_a_halfway_text_goes_to_the_even_double(bits: int) -> None:
    low, high = double_of(bits), double_of(bits + 1)
    tie = halfway(low, high)
    digits, _, exponent = tie.partition("e")
    above = f"{digits}{'0' * 40}1e{int(exponent) - 41}"
    below = f"{int(digits) - 1}{'9' * 40}e{int(exponent) - 40}"
    even = high if bits & 1 else low
    assert bits_of(text.parse_double(tie.encode())) == bits_of(even)
    assert bits_of(text.parse_double(above.encode())) == bits_of(high)
    assert bits_of(text.parse_double(below.encode())) == bits_of(low)


@given(st.integers(0, (0xFF << 23) - 2))
@example(0)
@example((1 << 23) - 1)
def test_a_halfway_text_goes_to_the_even_float(bits: int) -> None:
    low, high = float_of(bits), float_of(bits + 1)
    tie = halfway(low, high)
    digits, _, exponent = tie.partition("e")
    # So close to the tie that a double in between would hide the difference.
    above = f"{digits}{'0' * 40}1e{int(exponent) - 41}"
    below = f"{int(digits) - 1}{'9' * 40}e{int(exponent) - 40}"
    assert text.parse_float(tie.encode()) == (high if bits & 1 else low)
    assert text.parse_float(above.encode()) == high
    assert text.parse_float(below.encode()) == low


def spell_number(sign: str, digits: int, point: int, exponent: int | None, letter: str) -> str:
    """A number text with `point` digits after the point; 0 leaves a bare point, -1 none."""
    plain = str(digits)
    if point >= 0:
        plain = plain.rjust(point + 1, "0")
        cut = len(plain) - point
        plain = f"{plain[:cut]}.{plain[cut:]}"
    return sign + plain + ("" if exponent is None else f"{letter}{exponent}")


number_texts = st.builds(
    spell_number,
    st.sampled_from(["", "-", "+"]),
    st.integers(0, 10**30),
    st.integers(-1, 40),
    st.none() | st.integers(-360, 330),
    st.sampled_from(["e", "E"]),
)


@given(number_texts)
@example("1e-400")
@example("-1e-400")
@example("2.4703282292062327208e-324")
@example("2.4703282292062327209e-324")
@example("9007199254740993")
@example("1" + "0" * 400 + "e-400")
@example("0." + "0" * 400 + "1e401")
@example("0e99999999999999999999")
@example("1e-99999999999999999999")
def test_doubles_are_read_as_python_reads_them(number: str) -> None:
    expected = float(number)
    if math.isinf(expected):
        with pytest.raises(ValueError, match="not a number that a double can hold"):
            text.parse_double(number.encode())
    else:
        assert bits_of(text.parse_double(number.encode())) == bits_of(expected)


@pytest.mark.parametrize(
    ("number", "fits"),
    [
        (b"1.7976931348623158e308", True),
        (b"1.7976931348623159e308", False),
        (b"1e309", False),
        (b"-1e309", False),
        (b"1e99999999999999999999", False),
    ],
)
def test_the_largest_double(number: bytes, fits: bool) -> None:
    if fits:
        assert text.parse_double(number) == sys.float_info.max
    else:
        with pytest.raises(ValueError, match="double can hold"):
            text.parse_double(number)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (b"0.1", 0x3DCCCCCD),
        (b"16777217", 0x4B800000),
        (b"16777217.0000000001", 0x4B800001),
        (b"3.4028235677973366e38", 0x7F7FFFFF),
        (b"7.006492321624085e-46", 0x00000000),
        (b"7.006492321624086e-46", 0x00000001),
        (b"-1e-60", 0x80000000),
    ],
)
def test_floats_are_rounded_once(number: bytes, expected: int) -> None:
    assert struct.pack("<f", text.parse_float(number)) == struct.pack("<I", expected)


def test_the_smallest_text_too_large_for_a_float() -> None:
    with pytest.raises(ValueError, match="float can hold"):
        text.parse_float(b"3.4028235677973367e38")


@given(finite_doubles)
def test_a_double_comes_back_from_its_text(value: float) -> None:
    assert bits_of(text.parse_double(text.format_double(value).encode())) == bits_of(value)
    assert bits_of(text.parse_double(repr(value).encode())) == bits_of(value)


@given(finite_floats)
def test_a_float_comes_back_from_its_text(value: float) -> None:
    assert bits_of(text.parse_float(text.format_float(value).encode())) == bits_of(value)


NOT_NUMBERS = [
    b"",
    b"-",
    b"+",
    b".",
    b"-.",
    b"e5",
    b"1e",
    b"1e+",
    b"1e-",
    b"1.2.3",
    b"1e5.0",
    b"--1",
    b" 1",
    b"1 ",
]
NOT_NUMBERS += [b"1_0", b"0x10", b"nan", b"inf", b"Infinity", b"1,5", b"1\x00", b"\xd9\xa1"]


@pytest.mark.parametrize("number", NOT_NUMBERS)
def test_other_texts_are_not_numbers(number: bytes) -> None:
    for function in (text.parse_double, text.parse_float, text.shift_decimal, text.go_json_float):
        with pytest.raises(ValueError, match="is not a"):
            function(number)


# Decimal text to decimal text


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        ("0", "0"),
        ("-0", "-0"),
        ("-0.0", "-0"),
        ("0.000", "0"),
        ("0e5", "0"),
        ("-0E-400", "-0"),
        ("1", "1"),
        ("100", "100"),
        ("1.50", "1.5"),
        ("1.0", "1"),
        ("12.340", "12.34"),
        ("1.50e2", "150"),
        ("1.5e1", "15"),
        ("1.5e0", "1.5"),
        ("1.5E+3", "1500"),
        ("-1.5e-3", "-0.0015"),
        ("1e-7", "0.0000001"),
        ("1e+21", "1000000000000000000000"),
        ("120e-2", "1.2"),
        ("1200e-2", "12"),
        ("0.00120e2", "0.12"),
        ("0.00120e4", "12"),
        ("123.456e1", "1234.56"),
        ("1e-007", "0.0000001"),
        ("1e400", "1" + "0" * 400),
        ("1e-400", "0." + "0" * 399 + "1"),
        ("3.14159265358979323846264338327950288", "3.14159265358979323846264338327950288"),
    ],
)
def test_shift_decimal_keeps_the_digits(number: str, expected: str) -> None:
    assert text.shift_decimal(number.encode()) == expected.encode()
    assert text.shift_decimal(number.encode(), cap=len(expected)) == expected.encode()
    with pytest.raises(ValueError, match="usable size"):
        text.shift_decimal(number.encode(), cap=len(expected) - 1)


json_numbers = st.builds(
    spell_number,
    st.sampled_from(["", "-"]),
    st.integers(0, 10**40),
    st.sampled_from([-1, *range(1, 50)]),
    st.none() | st.integers(-400, 400),
    st.sampled_from(["e", "E"]),
)


@given(json_numbers)
def test_shift_decimal_is_exact_and_canonical(number: str) -> None:
    shifted = text.shift_decimal(number.encode()).decode()
    assert Fraction(shifted) == Fraction(number)
    assert shifted.startswith("-") == number.startswith("-")
    assert shifted == positional(shifted)


@pytest.mark.parametrize(
    "number", [b"1e401", b"1e-401", b"0e999", b"1e99999999999999999999", b"+1", b".5", b"1e"]
)
def test_shift_decimal_refuses(number: bytes) -> None:
    with pytest.raises(ValueError, match="not a JSON number of usable size"):
        text.shift_decimal(number)


@pytest.mark.parametrize(
    ("number", "json", "strconv"),
    [
        ("0", "0", "0"),
        ("-0", "-0", "-0"),
        ("1", "1", "1"),
        ("-12.5", "-12.5", "-12.5"),
        ("0.000001", "0.000001", "0.000001"),
        ("0.00000123", "0.00000123", "0.00000123"),
        ("0.000000999", "9.99e-7", "9.99e-07"),
        ("0.0000001", "1e-7", "1e-07"),
        ("-0.000000001", "-1e-9", "-1e-09"),
        ("0.0000000001", "1e-10", "1e-10"),
        ("0.00000000000123", "1.23e-12", "1.23e-12"),
        ("100000000000000000000", "100000000000000000000", "100000000000000000000"),
        ("999999999999999900000", "999999999999999900000", "999999999999999900000"),
        ("1000000000000000000000", "1e+21", "1e+21"),
        ("-1230000000000000000000000", "-1.23e+24", "-1.23e+24"),
        ("0." + "0" * 323 + "5", "5e-324", "5e-324"),
        ("17976931348623157" + "0" * 292, "1.7976931348623157e+308", "1.7976931348623157e+308"),
    ],
)
def test_floats_as_gos_json_spells_them(number: str, json: str, strconv: str) -> None:
    assert text.go_json_float(number.encode()) == json.encode()
    assert text.go_json_float(number.encode(), keep_exponent_zero=True) == strconv.encode()
    assert text.shift_decimal(json.encode()) == number.encode()


@pytest.mark.parametrize(
    ("number", "as_float32", "as_double"),
    [
        ("0.00000099999999", "0.00000099999999", "9.9999999e-7"),
        ("0.0000009999999", "9.999999e-7", "9.999999e-7"),
        ("999999999999999999999", "9.99999999999999999999e+20", "9.99999999999999999999e+20"),
        ("999999990000000000000", "9.9999999e+20", "999999990000000000000"),
        ("999999900000000000000", "999999900000000000000", "999999900000000000000"),
    ],
)
def test_the_bounds_are_those_of_the_numbers_width(
    number: str, as_float32: str, as_double: str
) -> None:
    """0.00000099999999 is a little less than 1e-6, but as a float it is the same number."""
    assert text.go_json_float(number.encode(), float32=True) == as_float32.encode()
    assert text.go_json_float(number.encode()) == as_double.encode()


def test_go_json_float_wants_positional_text() -> None:
    with pytest.raises(ValueError, match="without an exponent"):
        text.go_json_float(b"1e5")


@given(finite_doubles)
def test_gos_json_spelling_comes_back(value: float) -> None:
    number = text.format_double(value).encode()
    for keep_exponent_zero in (False, True):
        spelled = text.go_json_float(number, keep_exponent_zero=keep_exponent_zero)
        assert (b"e" in spelled) == (value != 0 and not 1e-6 <= abs(value) < 1e21)
        assert text.shift_decimal(spelled) == number


# UTF-8 and Latin-1


def python_says_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


UTF8_EDGES = [
    b"",
    b"\x00",
    b"\x7f",
    b"\x80",
    b"\xbf",
    b"\xc0\x80",
    b"\xc1\xbf",
    b"\xc2\x80",
    b"\xc2",
    b"\xc2\x7f",
    b"\xdf\xbf",
    b"\xe0\x9f\xbf",
    b"\xe0\xa0\x80",
    b"\xe1\x80",
    b"\xed\x9f\xbf",
    b"\xed\xa0\x80",
    b"\xed\xbf\xbf",
    b"\xee\x80\x80",
    b"\xef\xbf\xbf",
    b"\xf0\x8f\xbf\xbf",
    b"\xf0\x90\x80\x80",
    b"\xf0\x9f\x98",
    b"\xf4\x8f\xbf\xbf",
    b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80",
    b"\xff",
]


@pytest.mark.parametrize("edge", UTF8_EDGES)
def test_utf8_edges_at_every_offset(edge: bytes) -> None:
    for before in range(20):
        for after in (0, 1, 7, 8, 17):
            data = b"a" * before + edge + b"z" * after
            assert text.utf8_valid(data) == python_says_utf8(data)


def test_every_pair_of_bytes_and_every_lead_with_its_tail() -> None:
    for first in range(256):
        for second in range(256):
            for tail in (b"", b"\x80", b"\x80\x80"):
                data = bytes((first, second)) + tail
                assert text.utf8_valid(data) == python_says_utf8(data)


@given(st.one_of(st.binary(max_size=60), st.text(max_size=30).map(str.encode)))
def test_utf8_is_what_python_decodes(data: bytes) -> None:
    assert text.utf8_valid(data) == python_says_utf8(data)


@given(st.binary(max_size=80))
def test_latin1_there_and_back(data: bytes) -> None:
    as_utf8 = text.utf8_from_latin1(data)
    assert as_utf8 == data.decode("latin-1").encode()
    assert text.latin1_from_utf8(as_utf8) == data


@given(st.one_of(st.binary(max_size=20), st.text(max_size=20).map(str.encode)))
def test_latin1_takes_what_python_takes(data: bytes) -> None:
    try:
        expected = data.decode("utf-8").encode("latin-1")
    except UnicodeError:
        with pytest.raises(ValueError, match="not UTF-8, or has a code point above"):
            text.latin1_from_utf8(data)
    else:
        assert text.latin1_from_utf8(data) == expected


@pytest.mark.parametrize(
    "data", [b"\xc4\x80", "Ā".encode(), "€".encode(), b"\xc3", b"abc\xc2", b"\xc1\xbf", b"\xff"]
)
def test_latin1_refuses(data: bytes) -> None:
    with pytest.raises(ValueError, match="not UTF-8, or has a code point above"):
        text.latin1_from_utf8(data)


# base64


@pytest.mark.parametrize("length", range(70))
def test_base64_of_every_short_length(length: int) -> None:
    data = bytes((length * 37 + i * 101) & 0xFF for i in range(length))
    encoded = text.base64_encode(data)
    assert encoded == base64.b64encode(data)
    assert text.base64_decode(encoded) == data


@given(st.binary(max_size=300))
def test_base64_there_and_back(data: bytes) -> None:
    assert text.base64_encode(data) == base64.b64encode(data)
    assert text.base64_decode(text.base64_encode(data)) == data


def test_every_byte_at_every_place_of_a_group() -> None:
    alphabet = base64.b64encode(bytes(range(256)) * 3)
    for place in range(16):
        for byte in range(256):
            data = bytearray(b"ABCDEFGHIJKLMNOP")
            data[place] = byte
            if byte in alphabet and byte != ord("="):
                assert text.base64_decode(bytes(data)) == base64.b64decode(bytes(data))
            elif not (byte == ord("=") and place == 15):
                with pytest.raises(ValueError, match="not canonical base64"):
                    text.base64_decode(bytes(data))


@pytest.mark.parametrize(
    "data",
    [
        b"A",
        b"AA",
        b"AAA",
        b"AAAAA",
        b"=",
        b"====",
        b"A===",
        b"AA=A",
        b"AB==",
        b"AAB=",
        b"AA==AAAA",
        b"AAA=AAAA",
        b"AA==\n",
        b" AAA",
        b"AA-_",
        b"AAAA====",
        b"AAAAA===",
        b"AAAAAAA=====",
        b"AAP=",
    ],
)
def test_base64_must_be_canonical(data: bytes) -> None:
    with pytest.raises(ValueError, match="not canonical base64"):
        text.base64_decode(data)


@given(st.text(alphabet="ABZaz09+/=", max_size=12).map(str.encode))
def test_base64_is_decoded_only_if_it_encodes_back(data: bytes) -> None:
    try:
        expected = base64.b64decode(data, validate=True)
    except binascii.Error:
        expected = None
    if expected is not None and base64.b64encode(expected) == data:
        assert text.base64_decode(data) == expected
    else:
        with pytest.raises(ValueError, match="not canonical base64"):
            text.base64_decode(data)


# Go's quoted strings


@pytest.mark.parametrize(
    ("data", "quoted"),
    [
        (b"", b""),
        (b"plain 'text'", b"plain 'text'"),
        (b'say "hi"', b'say \\"hi\\"'),
        (b"back\\slash", b"back\\\\slash"),
        (b"\x00\x01\x06", b"\\x00\\x01\\x06"),
        (b"\x07\x08\t\n\x0b\x0c\r", b"\\a\\b\\t\\n\\v\\f\\r"),
        (b"\x0e\x1b\x1f\x7f", b"\\x0e\\x1b\\x1f\\x7f"),
        (b"\x80\xff\xc3", b"\\x80\\xff\\xc3"),
        (b"\xed\xa0\x80", b"\\xed\\xa0\\x80"),
        ("é中😀".encode(), "é中😀".encode()),
        (
            "\u0080\u00a0\u00ad\u200b\u2028\ufeff".encode(),
            b"\\u0080\\u00a0\\u00ad\\u200b\\u2028\\ufeff",
        ),
        ("\ue000\uffff".encode(), b"\\ue000\\uffff"),
        ("\ufffd\u3000".encode(), "\ufffd\\u3000".encode()),
        ("\U000e0001\U0010ffff".encode(), b"\\U000e0001\\U0010ffff"),
        ("\u0cf3\U0001fae8".encode(), "\u0cf3\U0001fae8".encode()),
    ],
)
def test_quoted_as_go_quotes(data: bytes, quoted: bytes) -> None:
    assert text.go_quote(data) == quoted
    assert text.go_unquote(quoted) == data


@given(st.one_of(st.binary(max_size=40), st.text(max_size=30).map(str.encode)))
def test_quoted_text_comes_back(data: bytes) -> None:
    quoted = text.go_quote(data)
    assert quoted.decode("utf-8").isprintable() or any(
        rune > "\x7f" for rune in quoted.decode("utf-8")
    )
    assert text.go_unquote(quoted) == data


@pytest.mark.parametrize(
    ("quoted", "data"),
    [
        (b"\\x41\\x4a\\x4A", b"AJJ"),
        (b"\\101\\000\\377", b"A\x00\xff"),
        (b"\\u0041\\u00e9\\u20AC", "Aé€".encode()),
        (b"\\U0001F600", "😀".encode()),
        (b"\\'\\\"\\\\", b"'\"\\"),
        (b"\\xff raw \xff", b"\xff raw \xff"),
    ],
)
def test_escapes_that_go_reads(quoted: bytes, data: bytes) -> None:
    assert text.go_unquote(quoted) == data


@pytest.mark.parametrize(
    "quoted",
    [
        b"\\",
        b"a\\",
        b"\\q",
        b"\\X41",
        b"\\x",
        b"\\x4",
        b"\\x4g",
        b"\\u004",
        b"\\u00zz",
        b"\\U0001F60",
        b"\\400",
        b"\\18",
        b"\\08",
        b"\\1",
        b"\\12",
        b"\\128",
        b"\\ud800",
        b"\\uDFFF",
        b"\\U00110000",
        b"\\U0000d800",
        b"\\UFFFFFFFF",
        b"\\0",
        b"\\8",
    ],
)
def test_escapes_that_go_does_not_have(quoted: bytes) -> None:
    with pytest.raises(ValueError, match="escape that Go does not know"):
        text.go_unquote(quoted)


def test_printable_runes_number_as_many_as_in_go() -> None:
    """The count and a checksum of what Go 1.26 (Unicode 15.0.0) calls printable."""
    runes = [rune for rune in range(0x110000) if text.go_is_print(rune)]
    assert len(runes) == 148998
    assert zlib.crc32(b"".join(rune.to_bytes(4, "little") for rune in runes)) == 0xB70A3551


# Hash and checksums

HASH_VECTORS = [
    (b"", 0, 0x1F067A2ECDC8BF8C),
    (b"", 1, 0x9D3022EB65A2F7FD),
    (b"a", 0, 0x723F644D7310F780),
    (b"abcdefg", 0, 0x396D2FEF107DC9DB),
    (b"abcdefgh", 0, 0xFEE1A9CBF38498AE),
    (b"abcdefghi", 0, 0x07031B8EA2ACD47A),
    (b"The quick brown fox jumps over the lazy dog", 0, 0xD3D70EE54CA7EF9F),
    (b"The quick brown fox jumps over the lazy dog", 2**64 - 1, 0xF2EF9B72EA1F4FB5),
    (bytes(range(256)), 42, 0x875706AE66B03A8C),
]


@pytest.mark.parametrize(("data", "seed", "expected"), HASH_VECTORS)
def test_the_hash_never_changes(data: bytes, seed: int, expected: int) -> None:
    assert text.stable_hash(data, seed) == expected


def documented_hash(data: bytes, seed: int) -> int:
    word = 2**64 - 1

    def fold(a: int, b: int) -> int:
        return (a * b & word) ^ (a * b >> 64)

    h = (seed + 0x243F6A8885A308D3 & word) ^ (len(data) * 0xBE5466CF34E90C6D & word)
    whole = len(data) // 8 * 8
    for i in range(0, whole, 8):
        h = fold(h ^ int.from_bytes(data[i : i + 8], "little"), 0xA4093822299F31D1)
    h = fold(h ^ int.from_bytes(data[whole:], "little"), 0xC0AC29B7C97C50DD)
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & word
    h = (h ^ h >> 27) * 0x94D049BB133111EB & word
    return h ^ h >> 31


@given(st.binary(max_size=70), double_bits)
def test_the_hash_is_what_its_description_says(data: bytes, seed: int) -> None:
    assert text.stable_hash(data, seed) == documented_hash(data, seed)


def test_a_changed_bit_changes_half_the_hash() -> None:
    data = bytes(range(37))
    original = text.stable_hash(data)
    changes = []
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        changes.append((original ^ text.stable_hash(bytes(changed))).bit_count())
    assert 31 < sum(changes) / len(changes) < 33
    assert min(changes) > 12


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1))
def test_crc32_is_zlibs(data: bytes, crc: int) -> None:
    assert text.crc32(data, crc) == zlib.crc32(data, crc)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_crc32_runs_on(first: bytes, second: bytes) -> None:
    assert text.crc32(second, text.crc32(first)) == text.crc32(first + second)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_crc32c_of_rfc_3720(data: bytes, expected: int) -> None:
    assert text.crc32c(data) == expected


@given(st.binary(max_size=100))
def test_crc32c_bit_by_bit(data: bytes) -> None:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    assert text.crc32c(data) == crc ^ 0xFFFFFFFF


# The tables


def test_the_committed_tables_are_what_the_script_writes() -> None:
    if sys.version_info[:2] not in ((3, 11), (3, 12)):
        pytest.skip("the script wants a Python that knows Unicode 14 or 15.0")
    script = Path(__file__).resolve().parents[2] / "tools" / "make_text_tables.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
