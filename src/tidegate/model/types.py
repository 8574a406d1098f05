"""The type table: what MySQL column types are called, how their values read, their Java codes.

Authority: the type, flag and Java tables of TiCDC's Open Protocol and Canal-JSON documents, and the
bytes that TiCDC's own encoders write where those documents are silent (vector, null values, the
BINARY flag on numbers). Every function is total: a code, a name or a value from a hostile message
gives UNSPECIFIED or UNKNOWN, never an exception.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import lru_cache


class MySQLType(IntEnum):
    """Column type codes of the MySQL protocol, as TiDB numbers them."""

    UNSPECIFIED = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    DURATION = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    VECTOR = 225
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINYBLOB = 249
    MEDIUMBLOB = 250
    LONGBLOB = 251
    BLOB = 252
    VARSTRING = 253
    STRING = 254
    GEOMETRY = 255


class Flag(IntFlag):
    """Column flags of the Open Protocol; BINARY says nothing unless the type is a string type."""

    BINARY = 1
    HANDLE_KEY = 2
    GENERATED = 4
    PRIMARY_KEY = 8
    UNIQUE_KEY = 16
    MULTIPLE_KEY = 32
    NULLABLE = 64
    UNSIGNED = 128


class ValueForm(IntEnum):
    """How the text of a value reads; UNSIGNED also holds the numbers of BIT, ENUM and SET."""

    UNKNOWN = 0
    INTEGER = 1
    UNSIGNED = 2
    FLOAT = 3
    DOUBLE = 4
    DECIMAL = 5
    TEMPORAL = 6
    TEXT = 7
    BINARY = 8
    JSON = 9
    VECTOR = 10
    YEAR = 11


class JavaSQLType(IntEnum):
    """The codes of java.sql.Types that Canal-JSON's `sqlType` uses."""

    BIT = -7
    TINYINT = -6
    BIGINT = -5
    CHAR = 1
    DECIMAL = 3
    INTEGER = 4
    SMALLINT = 5
    REAL = 7
    DOUBLE = 8
    VARCHAR = 12
    DATE = 91
    TIME = 92
    TIMESTAMP = 93
    BLOB = 2004
    CLOB = 2005


INTEGERS = frozenset(
    {MySQLType.TINY, MySQLType.SHORT, MySQLType.INT24, MySQLType.LONG, MySQLType.LONGLONG}
)
MOMENTS = frozenset({MySQLType.DATE, MySQLType.DATETIME, MySQLType.TIMESTAMP})
"""Days, with or without their time."""
REALS = frozenset({MySQLType.FLOAT, MySQLType.DOUBLE})
TEMPORALS = frozenset(
    {
        MySQLType.DATE,
        MySQLType.NEWDATE,
        MySQLType.DURATION,
        MySQLType.DATETIME,
        MySQLType.TIMESTAMP,
    }
)
CHARS = frozenset({MySQLType.VARCHAR, MySQLType.VARSTRING, MySQLType.STRING})
BLOBS = frozenset({MySQLType.TINYBLOB, MySQLType.BLOB, MySQLType.MEDIUMBLOB, MySQLType.LONGBLOB})
STRINGS = CHARS | BLOBS


def is_integer(code: int, flags: int = 0) -> bool:
    """TINYINT to BIGINT, signed or not."""
    return code in INTEGERS


def is_unsigned(code: int, flags: int) -> bool:
    """A number declared UNSIGNED, or a type whose values are bit sets or indexes."""
    return value_form(code, flags) == ValueForm.UNSIGNED or bool(flags & Flag.UNSIGNED)


def is_float(code: int, flags: int = 0) -> bool:
    """FLOAT or DOUBLE."""
    return code in REALS


def is_decimal(code: int, flags: int = 0) -> bool:
    """DECIMAL."""
    return code == MySQLType.NEWDECIMAL


def is_temporal(code: int, flags: int = 0) -> bool:
    """DATE, TIME, DATETIME or TIMESTAMP; YEAR is a number."""
    return code in TEMPORALS


def is_string(code: int, flags: int = 0) -> bool:
    """CHAR, VARCHAR, TEXT and their binary twins."""
    return code in STRINGS


def is_binary(code: int, flags: int) -> bool:
    """BINARY, VARBINARY and the BLOB types: values are bytes, base64 in Tidegate's text."""
    return code in STRINGS and bool(flags & Flag.BINARY)


def is_text(code: int, flags: int) -> bool:
    """CHAR, VARCHAR and the TEXT types: values are characters."""
    return code in STRINGS and not flags & Flag.BINARY


def is_json(code: int, flags: int = 0) -> bool:
    """JSON."""
    return code == MySQLType.JSON


def is_vector(code: int, flags: int = 0) -> bool:
    """VECTOR."""
    return code == MySQLType.VECTOR


_FORMS: dict[int, ValueForm] = {
    MySQLType.FLOAT: ValueForm.FLOAT,
    MySQLType.DOUBLE: ValueForm.DOUBLE,
    MySQLType.NEWDECIMAL: ValueForm.DECIMAL,
    MySQLType.BIT: ValueForm.UNSIGNED,
    MySQLType.ENUM: ValueForm.UNSIGNED,
    MySQLType.SET: ValueForm.UNSIGNED,
    MySQLType.JSON: ValueForm.JSON,
    MySQLType.VECTOR: ValueForm.VECTOR,
    MySQLType.YEAR: ValueForm.YEAR,
    **dict.fromkeys(TEMPORALS, ValueForm.TEMPORAL),
}


def value_form(code: int, flags: int) -> ValueForm:
    """How the values of a column read."""
    if code in INTEGERS:
        return ValueForm.UNSIGNED if flags & Flag.UNSIGNED else ValueForm.INTEGER
    if code in STRINGS:
        return ValueForm.BINARY if flags & Flag.BINARY else ValueForm.TEXT
    return _FORMS.get(code, ValueForm.UNKNOWN)


# code: (name, name of the binary twin)
_NAMES: dict[int, tuple[str, str]] = {
    MySQLType.TINY: ("tinyint", "tinyint"),
    MySQLType.SHORT: ("smallint", "smallint"),
    MySQLType.LONG: ("int", "int"),
    MySQLType.FLOAT: ("float", "float"),
    MySQLType.DOUBLE: ("double", "double"),
    MySQLType.NULL: ("null", "null"),
    MySQLType.TIMESTAMP: ("timestamp", "timestamp"),
    MySQLType.LONGLONG: ("bigint", "bigint"),
    MySQLType.INT24: ("mediumint", "mediumint"),
    MySQLType.DATE: ("date", "date"),
    MySQLType.DURATION: ("time", "time"),
    MySQLType.DATETIME: ("datetime", "datetime"),
    MySQLType.YEAR: ("year", "year"),
    MySQLType.NEWDATE: ("date", "date"),
    MySQLType.VARCHAR: ("varchar", "varbinary"),
    MySQLType.BIT: ("bit", "bit"),
    MySQLType.VECTOR: ("vector", "vector"),
    MySQLType.JSON: ("json", "json"),
    MySQLType.NEWDECIMAL: ("decimal", "decimal"),
    MySQLType.ENUM: ("enum", "enum"),
    MySQLType.SET: ("set", "set"),
    MySQLType.TINYBLOB: ("tinytext", "tinyblob"),
    MySQLType.MEDIUMBLOB: ("mediumtext", "mediumblob"),
    MySQLType.LONGBLOB: ("longtext", "longblob"),
    MySQLType.BLOB: ("text", "blob"),
    MySQLType.VARSTRING: ("var_string", "varbinary"),
    MySQLType.STRING: ("char", "binary"),
    MySQLType.GEOMETRY: ("geometry", "geometry"),
}

_SYNONYMS: dict[str, str] = {
    "bool": "tinyint",
    "boolean": "tinyint",
    "int1": "tinyint",
    "int2": "smallint",
    "int3": "mediumint",
    "middleint": "mediumint",
    "int4": "int",
    "integer": "int",
    "int8": "bigint",
    "dec": "decimal",
    "fixed": "decimal",
    "numeric": "decimal",
    "real": "double",
    "double precision": "double",
    "float4": "float",
    "float8": "double",
    "character": "char",
    "nchar": "char",
    "national char": "char",
    "national character": "char",
    "nvarchar": "varchar",
    "national varchar": "varchar",
    "character varying": "varchar",
    "char varying": "varchar",
    "long varchar": "mediumtext",
    "long varbinary": "mediumblob",
    "long": "mediumtext",
    "vector<float>": "vector",
}


def _codes() -> dict[str, tuple[MySQLType, bool]]:
    codes: dict[str, tuple[MySQLType, bool]] = {}
    for code, (plain, twin) in _NAMES.items():
        # DATE and VARBINARY have a second, unused code: the first one that names them stays.
        codes.setdefault(plain, (MySQLType(code), False))
        codes.setdefault(twin, (MySQLType(code), True))
    for synonym, name in _SYNONYMS.items():
        codes[synonym] = codes[name]
    return codes


_CODES = _codes()


def code_of(base: str) -> tuple[MySQLType, bool]:
    """The code of a bare type name, and whether it is a binary string type; or UNSPECIFIED."""
    return _CODES.get(base.strip().lower(), (MySQLType.UNSPECIFIED, False))


def base_name(code: int, flags: int = 0) -> str:
    """The bare name of a type: `int`, `varbinary`, `text`; `unknown` for a code that is none."""
    names = _NAMES.get(code)
    if names is None:
        return "unknown"
    return names[1 if flags & Flag.BINARY else 0]


def type_name(code: int, flags: int, *, zerofill: bool = False) -> str:
    """TiCDC's spelling of a type in Canal-JSON's `mysqlType`, without parameters."""
    name = base_name(code, flags)
    return name + _suffix(code, bool(flags & Flag.UNSIGNED), zerofill)


def _suffix(code: int, unsigned: bool, zerofill: bool) -> str:
    # TiDB holds BIT and YEAR as unsigned, but neither word is ever part of their names.
    if code in (MySQLType.BIT, MySQLType.YEAR):
        return ""
    return (" unsigned" if unsigned else "") + (" zerofill" if zerofill else "")


# The length where none is given or told (-1 or absent).
DEFAULT_LENGTHS: dict[int, int] = {
    MySQLType.TINY: 4,
    MySQLType.SHORT: 6,
    MySQLType.INT24: 9,
    MySQLType.LONG: 11,
    MySQLType.LONGLONG: 20,
    MySQLType.FLOAT: 12,
    MySQLType.DOUBLE: 22,
    MySQLType.NEWDECIMAL: 10,
    MySQLType.BIT: 1,
    MySQLType.STRING: 1,
    MySQLType.VARCHAR: 5,
    MySQLType.VARSTRING: 5,
    MySQLType.YEAR: 4,
}
_WITH_LENGTH = INTEGERS | CHARS | {MySQLType.BIT, MySQLType.YEAR}
_SQL_QUOTED = str.maketrans({"\0": "\\0", "'": "''", "\n": "\\n", "\r": "\\r"})


def full_type_name(
    code: int,
    flags: int,
    *,
    length: int | None = None,
    decimals: int | None = None,
    elements: Iterable[str] = (),
    zerofill: bool = False,
) -> str:
    """The name with its parameters, as `mysqlType` has it when Canal-JSON is content-compatible."""
    params = _params(code, length, decimals, elements)
    suffix = _suffix(code, bool(flags & Flag.UNSIGNED), zerofill)
    return base_name(code, flags) + params + suffix


def _params(code: int, length: int | None, decimals: int | None, elements: Iterable[str]) -> str:
    if code in (MySQLType.ENUM, MySQLType.SET):
        # TiDB escapes these four characters and no others, not even the backslash.
        return "(" + ",".join(f"'{element.translate(_SQL_QUOTED)}'" for element in elements) + ")"
    known = length is not None and length >= 0
    width = length if known else DEFAULT_LENGTHS.get(code)
    digits = decimals if decimals is not None and decimals > 0 else 0
    if code in TEMPORALS:
        return f"({digits})" if digits and code not in (MySQLType.DATE, MySQLType.NEWDATE) else ""
    if code in (MySQLType.FLOAT, MySQLType.DOUBLE):
        return f"({width},{digits})" if digits else ""
    if code == MySQLType.NEWDECIMAL:
        return f"({width},{digits})"
    if code == MySQLType.VECTOR:
        return f"({length})" if known else ""
    return f"({width})" if code in _WITH_LENGTH else ""


@dataclass(frozen=True, slots=True)
class ParsedType:
    """A type's text taken apart; a number alone is `length`, but `decimals` for a time type."""

    base: str
    code: MySQLType
    unsigned: bool = False
    zerofill: bool = False
    binary: bool = False
    params: str = ""
    length: int | None = None
    decimals: int | None = None
    elements: tuple[str, ...] = ()

    @property
    def flags(self) -> Flag:
        """BINARY and UNSIGNED as TiCDC sets them: BINARY wherever the type has no character set."""
        return type_flags(self.code, binary=self.binary, unsigned=self.unsigned)


@lru_cache(maxsize=1024)
def type_flags(code: int, *, binary: bool = False, unsigned: bool = False) -> Flag:
    """The BINARY and UNSIGNED flags that TiCDC gives a column of this type."""
    flags = Flag(0)
    has_charset = (code in STRINGS and not binary) or code in (MySQLType.ENUM, MySQLType.SET)
    if not has_charset:
        flags |= Flag.BINARY
    if unsigned or code in (MySQLType.BIT, MySQLType.YEAR):
        flags |= Flag.UNSIGNED
    return flags


_TYPE = re.compile(
    r"""\s*(?P<base>long\s+var(?:char|binary)\b
        |(?:national\s+)?[a-z_][a-z0-9_]*(?:<float>)?(?:\s+(?:precision|varying)\b)?)
    \s*(?:\((?P<params>.*)\))?(?P<rest>[^()]*)\Z""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
# A list of SQL string literals. TiDB itself writes a backslash unescaped, so that 'a\' is a whole
# element: where the first reading finds no list, the second takes the backslash for what it is.
_LITERALS = (
    re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL),
    re.compile(r"'((?:[^']|'')*)'", re.DOTALL),
)
_COMMA = re.compile(r"\s*,\s*")
_ESCAPE = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPED = {"0": "\0", "n": "\n", "r": "\r", "\\": "\\", "'": "'"}


def _literal_list(params: str, literal: re.Pattern[str]) -> list[str] | None:
    """The bodies of a comma-separated list of literals, or None if the text is not one."""
    bodies = []
    position = 0
    while match := literal.match(params, position):
        bodies.append(match[1])
        position = match.end()
        if position == len(params):
            return bodies
        comma = _COMMA.match(params, position)
        if comma is None:
            return None
        position = comma.end()
    return None


def _unescaped(match: re.Match[str]) -> str:
    escaped: str | None = match[1]
    return "'" if escaped is None else _ESCAPED.get(escaped, match[0])


def _elements(params: str) -> tuple[str, ...]:
    escaping, plain = (_literal_list(params.strip(), literal) for literal in _LITERALS)
    if escaping is not None:
        return tuple(_ESCAPE.sub(_unescaped, body) for body in escaping)
    return tuple(body.replace("''", "'") for body in plain or ())


def _whole_number(text: str) -> int | None:
    text = text.strip()
    return int(text) if 0 < len(text) <= 9 and text.isascii() and text.isdigit() else None


def parse_type(text: str) -> ParsedType:
    """Take a type's text apart, in any case; a text that is no type gives UNSPECIFIED."""
    # The columns of all tables share few types; long texts are lists of elements, or hostile.
    return _parse_known(text) if len(text) <= 32 else _parse(text)


def _parse(text: str) -> ParsedType:
    match = _TYPE.match(text)
    if match is None:
        return ParsedType(base=text.strip().lower(), code=MySQLType.UNSPECIFIED)
    spelled = " ".join(match["base"].lower().split())
    code, binary = code_of(spelled)
    if code == MySQLType.UNSPECIFIED:
        return ParsedType(base=spelled, code=code, params=match["params"] or "")
    words = match["rest"].lower().split()
    zerofill = "zerofill" in words
    params = match["params"] or ""
    length, decimals = _lengths(code, params)
    if spelled in ("bool", "boolean"):
        length = 1
    return ParsedType(
        base=base_name(code, Flag.BINARY if binary else 0),
        code=code,
        unsigned=zerofill or "unsigned" in words,  # MySQL: ZEROFILL implies UNSIGNED
        zerofill=zerofill,
        binary=binary,
        params=params,
        length=length,
        decimals=decimals,
        elements=_elements(params) if code in (MySQLType.ENUM, MySQLType.SET) else (),
    )


_parse_known = lru_cache(maxsize=1024)(_parse)


def _lengths(code: int, params: str) -> tuple[int | None, int | None]:
    if not params or code in (MySQLType.ENUM, MySQLType.SET):
        return None, None
    first, _, second = params.partition(",")
    if code in TEMPORALS:
        return None, _whole_number(first)
    return _whole_number(first), _whole_number(second)


# The Java code of each type, as long as the value is within the signed range.
_JAVA: dict[int, JavaSQLType] = {
    MySQLType.TINY: JavaSQLType.TINYINT,
    MySQLType.SHORT: JavaSQLType.SMALLINT,
    MySQLType.INT24: JavaSQLType.INTEGER,
    MySQLType.LONG: JavaSQLType.INTEGER,
    MySQLType.LONGLONG: JavaSQLType.BIGINT,
    MySQLType.FLOAT: JavaSQLType.REAL,
    MySQLType.DOUBLE: JavaSQLType.DOUBLE,
    MySQLType.NEWDECIMAL: JavaSQLType.DECIMAL,
    MySQLType.DATE: JavaSQLType.DATE,
    MySQLType.NEWDATE: JavaSQLType.DATE,
    MySQLType.DURATION: JavaSQLType.TIME,
    MySQLType.DATETIME: JavaSQLType.TIMESTAMP,
    MySQLType.TIMESTAMP: JavaSQLType.TIMESTAMP,
    MySQLType.YEAR: JavaSQLType.VARCHAR,
    MySQLType.ENUM: JavaSQLType.INTEGER,
    MySQLType.SET: JavaSQLType.BIT,
    MySQLType.BIT: JavaSQLType.BIT,
    MySQLType.JSON: JavaSQLType.VARCHAR,
    MySQLType.VECTOR: JavaSQLType.VARCHAR,
    MySQLType.STRING: JavaSQLType.CHAR,
    MySQLType.VARCHAR: JavaSQLType.VARCHAR,
    MySQLType.VARSTRING: JavaSQLType.VARCHAR,
    **dict.fromkeys(BLOBS, JavaSQLType.CLOB),
}

# An unsigned value above the bound needs the next larger Java type; MEDIUMINT always fits INTEGER.
_PROMOTED: dict[int, tuple[int, JavaSQLType]] = {
    MySQLType.TINY: (127, JavaSQLType.SMALLINT),
    MySQLType.SHORT: (32767, JavaSQLType.INTEGER),
    MySQLType.LONG: (2147483647, JavaSQLType.BIGINT),
    MySQLType.LONGLONG: (9223372036854775807, JavaSQLType.DECIMAL),
}


def java_sql_type(code: int, flags: int, value: str | None) -> int:
    """The `sqlType` of a column in a Canal-JSON message whose new (or deleted) value is `value`."""
    if flags & Flag.UNSIGNED and value is not None and code in _PROMOTED:
        bound, promoted = _PROMOTED[code]
        if _exceeds(value, bound):
            return int(promoted)
    if is_binary(code, flags):
        return int(JavaSQLType.BLOB)
    return int(_JAVA.get(code, JavaSQLType.VARCHAR))


def _exceeds(value: str, bound: int) -> bool:
    try:
        return int(value) > bound
    except ValueError:
        return False
