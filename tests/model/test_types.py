"""The type table, checked on names, codes and Java codes as TiCDC writes them."""

import pytest

from tidegate.model import types
from tidegate.model.types import Flag, MySQLType, ParsedType, ValueForm

B, U = Flag.BINARY, Flag.UNSIGNED

# code, flags as TiCDC sets them, name in Canal-JSON's mysqlType, form of the values
TYPES = [
    (1, B, "tinyint", ValueForm.INTEGER),
    (1, B | U, "tinyint unsigned", ValueForm.UNSIGNED),
    (2, B, "smallint", ValueForm.INTEGER),
    (3, B, "int", ValueForm.INTEGER),
    (3, B | U, "int unsigned", ValueForm.UNSIGNED),
    (4, B, "float", ValueForm.FLOAT),
    (4, B | U, "float unsigned", ValueForm.FLOAT),
    (5, B, "double", ValueForm.DOUBLE),
    (7, B, "timestamp", ValueForm.TEMPORAL),
    (8, B, "bigint", ValueForm.INTEGER),
    (8, B | U, "bigint unsigned", ValueForm.UNSIGNED),
    (9, B, "mediumint", ValueForm.INTEGER),
    (10, B, "date", ValueForm.TEMPORAL),
    (11, B, "time", ValueForm.TEMPORAL),
    (12, B, "datetime", ValueForm.TEMPORAL),
    (13, B | U, "year", ValueForm.YEAR),
    (15, Flag(0), "varchar", ValueForm.TEXT),
    (15, B, "varbinary", ValueForm.BINARY),
    (16, B | U, "bit", ValueForm.UNSIGNED),
    (225, B, "vector", ValueForm.VECTOR),
    (245, B, "json", ValueForm.JSON),
    (246, B, "decimal", ValueForm.DECIMAL),
    (246, B | U, "decimal unsigned", ValueForm.DECIMAL),
    (247, Flag(0), "enum", ValueForm.UNSIGNED),
    (248, Flag(0), "set", ValueForm.UNSIGNED),
    (249, Flag(0), "tinytext", ValueForm.TEXT),
    (249, B, "tinyblob", ValueForm.BINARY),
    (250, Flag(0), "mediumtext", ValueForm.TEXT),
    (250, B, "mediumblob", ValueForm.BINARY),
    (251, Flag(0), "longtext", ValueForm.TEXT),
    (251, B, "longblob", ValueForm.BINARY),
    (252, Flag(0), "text", ValueForm.TEXT),
    (252, B, "blob", ValueForm.BINARY),
    (254, Flag(0), "char", ValueForm.TEXT),
    (254, B, "binary", ValueForm.BINARY),
]


@pytest.mark.parametrize(("code", "flags", "name", "form"), TYPES)
def test_a_type_has_one_name_and_the_name_gives_its_code_and_flags(code, flags, name, form):
    assert types.type_name(code, flags) == name
    parsed = types.parse_type(name)
    assert (parsed.code, parsed.flags) == (code, flags)
    assert types.value_form(code, flags) == form


def test_keys_and_nullability_do_not_change_a_name():
    flags = B | U | Flag.HANDLE_KEY | Flag.PRIMARY_KEY | Flag.NULLABLE
    assert types.type_name(MySQLType.LONGLONG, flags) == "bigint unsigned"


def test_the_flags_have_the_bits_of_the_open_protocol():
    assert Flag(85) == Flag.NULLABLE | Flag.UNIQUE_KEY | Flag.GENERATED | Flag.BINARY
    assert Flag(46) == Flag.MULTIPLE_KEY | Flag.PRIMARY_KEY | Flag.GENERATED | Flag.HANDLE_KEY


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "int(10) unsigned",
            {"base": "int", "code": 3, "unsigned": True, "params": "10", "length": 10},
        ),
        (
            "int(5) unsigned zerofill",
            {
                "base": "int",
                "code": 3,
                "unsigned": True,
                "zerofill": True,
                "params": "5",
                "length": 5,
            },
        ),
        ("INT ZEROFILL", {"base": "int", "code": 3, "unsigned": True, "zerofill": True}),
        ("bigint signed", {"base": "bigint", "code": 8}),
        (
            "decimal(10, 4)",
            {"base": "decimal", "code": 246, "params": "10, 4", "length": 10, "decimals": 4},
        ),
        ("NUMERIC(7)", {"base": "decimal", "code": 246, "params": "7", "length": 7}),
        ("double(8,2)", {"base": "double", "code": 5, "params": "8,2", "length": 8, "decimals": 2}),
        ("double precision", {"base": "double", "code": 5}),
        ("tinyint(1)", {"base": "tinyint", "code": 1, "params": "1", "length": 1}),
        ("bool", {"base": "tinyint", "code": 1, "length": 1}),
        ("Boolean", {"base": "tinyint", "code": 1, "length": 1}),
        ("integer", {"base": "int", "code": 3}),
        (
            "varbinary(16)",
            {"base": "varbinary", "code": 15, "binary": True, "params": "16", "length": 16},
        ),
        ("character varying(9)", {"base": "varchar", "code": 15, "params": "9", "length": 9}),
        ("datetime(6)", {"base": "datetime", "code": 12, "params": "6", "decimals": 6}),
        ("year(4)", {"base": "year", "code": 13, "params": "4", "length": 4}),
        ("bit(64)", {"base": "bit", "code": 16, "params": "64", "length": 64}),
        ("vector(3)", {"base": "vector", "code": 225, "params": "3", "length": 3}),
        ("set('a','b')", {"base": "set", "code": 248, "params": "'a','b'", "elements": ("a", "b")}),
        (
            "ENUM('a', 'it''s', 'x,y', ')')",
            {
                "base": "enum",
                "code": 247,
                "params": "'a', 'it''s', 'x,y', ')'",
                "elements": ("a", "it's", "x,y", ")"),
            },
        ),
        (
            r"enum('a\nb\\')",
            {"base": "enum", "code": 247, "params": r"'a\nb\\'", "elements": ("a\nb\\",)},
        ),
        (r"enum('a\')", {"base": "enum", "code": 247, "params": r"'a\'", "elements": ("a\\",)}),
        ("enum", {"base": "enum", "code": 247}),
    ],
)
def test_a_types_text_is_taken_apart(text, expected):
    assert types.parse_type(text) == ParsedType(**{**expected, "code": MySQLType(expected["code"])})


@pytest.mark.parametrize("text", ["", " ", "inte", "42", "(3)", "int) (", "'int'", "enum('a'"])
def test_a_text_that_is_no_type_is_unspecified(text):
    assert types.parse_type(text).code == MySQLType.UNSPECIFIED


@pytest.mark.parametrize("text", ["enum(" + "'" * 100_001 + ")", "set('" + "\\" * 100_001 + ")"])
def test_a_hostile_list_of_elements_is_read_in_one_pass(text):
    assert types.parse_type(text).base in ("enum", "set")


@pytest.mark.parametrize(
    "text",
    [
        "tinyint(1)",
        "tinyint(3) unsigned",
        "int(11)",
        "int(5) unsigned zerofill",
        "bigint(20) unsigned",
        "decimal(10,4)",
        "decimal(30,10) unsigned",
        "float",
        "float(10,2)",
        "double unsigned",
        "double(20,5)",
        "bit(33)",
        "year(4)",
        "date",
        "time(3)",
        "datetime",
        "timestamp(6)",
        "char(10)",
        "binary(16)",
        "varchar(255)",
        "varbinary(300)",
        "text",
        "longblob",
        "json",
        "vector",
        "vector(3)",
        "enum('red','b,lue','it''s','值')",
        "set('x','w w')",
    ],
)
def test_the_full_name_of_content_compatible_messages_comes_back(text):
    p = types.parse_type(text)
    full = types.full_type_name(
        p.code,
        p.flags,
        length=p.length,
        decimals=p.decimals,
        elements=p.elements,
        zerofill=p.zerofill,
    )
    assert full == text


@pytest.mark.parametrize(
    ("text", "length", "expected"),
    [("int", None, "int(11)"), ("bigint", -1, "bigint(20)"), ("decimal", None, "decimal(10,0)")],
)
def test_a_length_that_is_not_known_is_the_types_default(text, length, expected):
    p = types.parse_type(text)
    assert types.full_type_name(p.code, p.flags, length=length) == expected


# mysqlType, new or deleted value, sqlType: as in messages of TiCDC
JAVA = [
    ("tinyint", "-128", -6),
    ("tinyint unsigned", "127", -6),
    ("tinyint unsigned", "128", 5),
    ("tinyint unsigned", None, -6),
    ("smallint", "32767", 5),
    ("smallint unsigned", "32767", 5),
    ("smallint unsigned", "32768", 4),
    ("mediumint unsigned", "16777215", 4),
    ("int", "-1", 4),
    ("int unsigned", "2147483647", 4),
    ("int unsigned", "2147483648", -5),
    ("int unsigned zerofill", None, 4),
    ("bigint", "9223372036854775807", -5),
    ("bigint unsigned", "9223372036854775807", -5),
    ("bigint(20) unsigned", "9223372036854775808", 3),
    ("bigint unsigned", None, -5),
    ("float unsigned", "300", 7),
    ("double unsigned", "1e300", 8),
    ("decimal(30,10) unsigned", "99999999999", 3),
    ("char", "x", 1),
    ("binary(16)", "AA==", 2004),
    ("varchar", None, 12),
    ("varbinary", None, 2004),
    ("tinytext", "x", 2005),
    ("longtext", None, 2005),
    ("tinyblob", None, 2004),
    ("blob", "AA==", 2004),
    ("date", "2020-01-01", 91),
    ("time", None, 92),
    ("datetime(6)", "2020-01-01 00:00:00.000000", 93),
    ("timestamp", None, 93),
    ("year", "2155", 12),
    ("enum", "70000", 4),
    ("set", "255", -7),
    ("bit(64)", "18446744073709551615", -7),
    ("json", "{}", 12),
    ("vector(3)", "[1,2,3]", 12),
    ("vector", None, 12),
]


@pytest.mark.parametrize(("text", "value", "expected"), JAVA)
def test_sql_type_follows_the_type_and_for_unsigned_integers_the_value(text, value, expected):
    parsed = types.parse_type(text)
    assert types.java_sql_type(parsed.code, parsed.flags, value) == expected


@pytest.mark.parametrize("value", ["", "abc", "9" * 5000])
def test_a_value_that_is_no_number_keeps_the_types_own_sql_type(value):
    assert types.java_sql_type(MySQLType.TINY, U, value) == -6


@pytest.mark.parametrize("code", [-1, 0, 6, 17, 224, 255, 256, 10**30])
def test_a_code_that_no_value_can_have_is_unknown_and_never_an_error(code):
    assert types.value_form(code, 0) == ValueForm.UNKNOWN
    assert isinstance(types.type_name(code, 255), str)
    assert types.java_sql_type(code, 255, "1") == 12


@pytest.mark.parametrize(
    ("predicate", "names"),
    [
        (types.is_integer, {"tinyint", "smallint", "mediumint", "int", "bigint"}),
        (types.is_float, {"float", "double"}),
        (types.is_decimal, {"decimal"}),
        (types.is_temporal, {"date", "time", "datetime", "timestamp"}),
        (types.is_text, {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}),
        (types.is_binary, {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}),
        (types.is_json, {"json"}),
        (types.is_vector, {"vector"}),
    ],
)
def test_predicates_hold_for_exactly_their_types(predicate, names):
    holds = {types.base_name(code, flags) for code, flags, _, _ in TYPES if predicate(code, flags)}
    assert holds == names
