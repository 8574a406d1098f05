"""Column and key definitions, from SQL to the model, with everything that TiDB adds by itself.

A definition is read into what it says (`ColumnDefinition`, `KeyDefinition`); `column_of` then makes
the model's column of it: lengths that are left out, character sets that follow from the table's,
BLOBs that take the size their length asks for. Authority: TiDB's `pkg/parser/parser.y`,
`pkg/parser/mysql/util.go` and `pkg/ddl/add_column.go`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tidegate.model import sql
from tidegate.model.schema import Column
from tidegate.model.sql import Token, TokenKind
from tidegate.model.types import (
    BLOBS,
    CHARS,
    DEFAULT_LENGTHS,
    INTEGERS,
    TEMPORALS,
    MySQLType,
    code_of,
)
from tidegate.sql.defaults import NULL, Form, Written, read_default, stored_default
from tidegate.sql.statement import Statement, Unreadable


class Charset(NamedTuple):
    """A character set and its collation; None where it is not known."""

    name: str | None = None
    collation: str | None = None


UNKNOWN = Charset()
BINARY = Charset("binary", "binary")

# The collation that TiDB takes where none is named, and the most bytes a character takes.
_CHARSETS: dict[str, tuple[str, int]] = {
    "utf8mb4": ("utf8mb4_bin", 4),
    "utf8": ("utf8_bin", 3),
    "latin1": ("latin1_bin", 1),
    "ascii": ("ascii_bin", 1),
    "binary": ("binary", 1),
    "gbk": ("gbk_chinese_ci", 2),
    "gb18030": ("gb18030_chinese_ci", 4),
}
_CHARSET_SYNONYMS = {"utf8mb3": "utf8"}


def charset_of(name: str | None, collation: str | None, otherwise: Charset = UNKNOWN) -> Charset:
    """The character set and collation of which one, both or (then `otherwise`) none is named."""
    if name is None and collation is None:
        return otherwise
    if collation is not None:
        collation = collation.lower()
    name = name.lower() if name is not None else (collation or "").partition("_")[0]
    name = _CHARSET_SYNONYMS.get(name, name)
    return Charset(name, collation or _CHARSETS.get(name, (None, 0))[0])


class Position(NamedTuple):
    """Where a column goes: FIRST, or after another."""

    after: str | None


@dataclass(slots=True, kw_only=True)
class KeyDefinition:
    """A primary key, unique key or index; a part that is an expression has no column's name."""

    name: str | None = None
    primary: bool = False
    unique: bool = False
    clustered: bool | None = None
    columns: list[str | None] = field(default_factory=list)
    columnar: bool = False
    foreign: bool = False


@dataclass(slots=True, kw_only=True)
class ColumnDefinition:
    """What a column's definition says."""

    name: str
    base: str = ""
    numbers: tuple[int, ...] = ()
    elements: tuple[str, ...] = ()
    unsigned: bool = False
    zerofill: bool = False
    charset: str | None = None
    collation: str | None = None
    binary: bool = False
    nullable: bool | None = None
    default: Written | None = None
    generated: str | None = None
    keys: list[KeyDefinition] = field(default_factory=list)
    position: Position | None = None


# --- reading a column -----------------------------------------------------------------------------

# Words that go on after the first word of a type's name.
_TYPE_TAILS: dict[str, tuple[tuple[str, ...], ...]] = {
    "DOUBLE": (("PRECISION",),),
    "NATIONAL": (
        ("CHARACTER", "VARYING"),
        ("CHAR", "VARYING"),
        ("VARCHARACTER",),
        ("VARCHAR",),
        ("CHARACTER",),
        ("CHAR",),
    ),
    "CHARACTER": (("VARYING",),),
    "CHAR": (("VARYING",),),
    "NCHAR": (("VARYING",), ("VARCHAR",), ("VARCHARACTER",)),
    "LONG": (("VARBINARY",), ("VARCHAR",)),
}
# Spellings that the type table does not have.
_TYPE_SYNONYMS = {
    "national character varying": "varchar",
    "national char varying": "varchar",
    "national varcharacter": "varchar",
    "nchar varying": "varchar",
    "nchar varchar": "varchar",
    "nchar varcharacter": "varchar",
    "varcharacter": "varchar",
}
_WHOLE_NUMBER_DIGITS = 10


def read_column(statement: Statement) -> ColumnDefinition:
    """Read a definition: the name, the type, the options, the place; nothing may stand after it."""
    column = ColumnDefinition(name=statement.column_name())
    read_type(statement, column)
    while not statement.done:
        _read_option(statement, column)
    return column


def read_type(statement: Statement, column: ColumnDefinition) -> None:
    """Read a type's name, its parameters and what belongs to it."""
    first = statement.next("a type")
    if first.kind is not TokenKind.WORD:
        raise Unreadable(f"the type of column {column.name!r} is not understood")
    words = [first.value]
    for tail in _TYPE_TAILS.get(first.value, ()):
        if statement.take(*tail):
            words += tail
            break
    base = " ".join(words).lower()
    if statement.take("<", "FLOAT", ">"):
        base += "<float>"
    column.base = _TYPE_SYNONYMS.get(base, base)
    if column.base == "serial":  # BIGINT UNSIGNED NOT NULL AUTO_INCREMENT UNIQUE
        column.base, column.unsigned, column.nullable = "bigint", True, False
        column.keys.append(KeyDefinition(unique=True, columns=[column.name]))
    if code_of(column.base)[0] == MySQLType.UNSPECIFIED:
        raise Unreadable(f"the type {column.base} of column {column.name!r} is not known")
    if statement.sees("("):
        _read_parameters(statement.bracket(), column)


def _read_parameters(tokens: list[Token], column: ColumnDefinition) -> None:
    values = [part[0] for part in sql.split(tokens) if len(part) == 1]
    if column.base in ("enum", "set"):
        column.elements = tuple(_element(token) for token in values)
        return
    numbers = [token.text for token in values if token.kind is TokenKind.NUMBER]
    if len(numbers) != len(values) or any(
        len(text) > _WHOLE_NUMBER_DIGITS or not text.isdigit() for text in numbers
    ):
        raise Unreadable(f"the length of column {column.name!r} is not understood")
    column.numbers = tuple(int(text) for text in numbers)


def _element(token: Token) -> str:
    if token.kind is TokenKind.BYTES:
        return bytes.fromhex(token.value).decode(errors="replace").rstrip(" ")
    if token.kind is not TokenKind.STRING:
        raise Unreadable("an element of an ENUM or SET is not a text")
    return token.value.rstrip(" ")


def _read_option(statement: Statement, column: ColumnDefinition) -> None:
    if not (
        _read_type_option(statement, column)
        or _read_null_option(statement, column)
        or _read_key_option(statement, column)
        or _read_position(statement, column)
        or _skip_option(statement)
    ):
        raise statement.unexpected(f"an option of column {column.name!r}")


def _read_type_option(statement: Statement, column: ColumnDefinition) -> bool:
    if statement.take("UNSIGNED"):
        column.unsigned = True
    elif statement.take("ZEROFILL"):
        column.unsigned = column.zerofill = True
    elif statement.take("CHARACTER", "SET") or statement.take_one_of("CHARSET"):
        statement.take("=")
        column.charset = read_word(statement)
    elif statement.take("CHAR", "SET"):
        column.charset = read_word(statement)
    elif statement.take("COLLATE"):
        statement.take("=")
        column.collation = read_word(statement)
    elif statement.take("ASCII"):
        column.charset = "latin1"
    elif statement.take("UNICODE"):
        column.charset = "ucs2"
    elif statement.take("BYTE"):
        column.charset = "binary"
    elif statement.take("BINARY"):
        column.binary = True
    else:
        return bool(statement.take_one_of("SIGNED"))
    return True


def read_word(statement: Statement) -> str:
    """A word that may be quoted in any way: the name of a character set or collation."""
    token = statement.next("a word")
    return token.text if token.kind is TokenKind.WORD else token.value


def _read_null_option(statement: Statement, column: ColumnDefinition) -> bool:
    if statement.take("NOT", "NULL"):
        column.nullable = False
    elif statement.take("NULL"):
        column.nullable = True
    elif statement.take("AUTO_INCREMENT"):
        column.nullable = False
    elif statement.take("SERIAL", "DEFAULT", "VALUE"):  # NOT NULL AUTO_INCREMENT UNIQUE
        column.nullable = False
        column.keys.append(KeyDefinition(unique=True, columns=[column.name]))
    elif statement.take("DEFAULT"):
        column.default = read_default(statement)
    elif statement.take("GENERATED", "ALWAYS", "AS") or statement.take("AS"):
        statement.bracket()
        column.generated = "virtual"
    elif statement.take_one_of("STORED", "PERSISTENT"):
        column.generated = "stored"
    else:
        return statement.take("VIRTUAL")
    return True


def _read_key_option(statement: Statement, column: ColumnDefinition) -> bool:
    if statement.take("PRIMARY", "KEY") or statement.take("PRIMARY") or statement.take("KEY"):
        key = KeyDefinition(primary=True, unique=True, columns=[column.name])
        key.clustered = _read_clustered(statement)
    elif statement.take("UNIQUE"):
        statement.take("KEY")
        key = KeyDefinition(unique=True, columns=[column.name])
    else:
        return False
    statement.take_one_of("GLOBAL", "LOCAL")
    column.keys.append(key)
    return True


def _read_clustered(statement: Statement) -> bool | None:
    word = statement.take_one_of("CLUSTERED", "NONCLUSTERED")
    return word == "CLUSTERED" if word else None


def _read_position(statement: Statement, column: ColumnDefinition) -> bool:
    if statement.take("FIRST"):
        column.position = Position(None)
    elif statement.take("AFTER"):
        column.position = Position(statement.column_name())
    else:
        return False
    return True


_ONE_WORD_OPTIONS = ("VISIBLE", "INVISIBLE", "ENFORCED")
_OPTIONS_WITH_A_VALUE = (
    "COMMENT",
    "COLUMN_FORMAT",
    "STORAGE",
    "SRID",
    "ENGINE_ATTRIBUTE",
    "SECONDARY_ENGINE_ATTRIBUTE",
)


def _skip_option(statement: Statement) -> bool:
    """Options that change nothing in the schema."""
    if statement.take_one_of(*_ONE_WORD_OPTIONS) or statement.take("NOT", "ENFORCED"):
        return True
    if statement.take_one_of(*_OPTIONS_WITH_A_VALUE):
        statement.take("=")
        statement.next("a value")
    elif statement.take("AUTO_RANDOM"):
        if statement.sees("("):
            statement.bracket()
    elif statement.take("ON", "UPDATE"):
        read_default(statement)
    elif statement.take("CONSTRAINT"):
        if not statement.sees("CHECK"):
            statement.name("a constraint")
    elif statement.take("CHECK"):
        statement.bracket()
    elif statement.take("REFERENCES"):
        _skip_reference(statement)
    else:
        return False
    return True


def _skip_reference(statement: Statement) -> None:
    statement.table_name()
    if statement.sees("("):
        statement.bracket()
    while statement.take("MATCH"):
        statement.next("a word")
    while statement.take("ON", "DELETE") or statement.take("ON", "UPDATE"):
        if not (
            statement.take("SET", "NULL")
            or statement.take("SET", "DEFAULT")
            or statement.take("NO", "ACTION")
        ):
            statement.next("a word")


# --- reading a key --------------------------------------------------------------------------------

_COLUMNAR = ("VECTOR", "COLUMNAR", "FULLTEXT", "SPATIAL")


def starts_key(statement: Statement) -> bool:
    """Whether a key or another constraint is defined here, and not a column."""
    word = statement.key()
    if word in ("VECTOR", "COLUMNAR"):
        return statement.key(1) in ("INDEX", "KEY")
    return word in (
        "PRIMARY",
        "UNIQUE",
        "INDEX",
        "KEY",
        "FULLTEXT",
        "SPATIAL",
        "CONSTRAINT",
        "FOREIGN",
        "CHECK",
    )


def read_key(statement: Statement) -> KeyDefinition | None:
    """Read the definition of a key; None for a constraint that is no key (CHECK)."""
    name = None
    if statement.take("CONSTRAINT") and statement.key() not in ("PRIMARY", "UNIQUE", "FOREIGN"):
        name = None if statement.sees("CHECK") else statement.name("a constraint")
    if statement.take("CHECK"):
        statement.bracket()
        statement.skip()
        return None
    key = KeyDefinition(name=name)
    if statement.take("PRIMARY", "KEY"):
        key.primary = key.unique = True
    elif statement.take("FOREIGN", "KEY"):
        key.foreign = True
    elif statement.take("UNIQUE"):
        key.unique = True
        statement.take_one_of("INDEX", "KEY")
    else:
        key.columnar = bool(statement.take_one_of(*_COLUMNAR))
        if not statement.take_one_of("INDEX", "KEY") and not key.columnar:
            raise statement.unexpected("a key")
    statement.take("IF", "NOT", "EXISTS")
    read_key_parts(statement, key)
    return key


def read_key_parts(statement: Statement, key: KeyDefinition) -> None:
    """Read a key's name, if there is one, and its columns; what stands after them is skipped."""
    if not statement.sees("(") and not statement.sees("USING"):
        name = statement.name("a key")
        key.name = key.name or name  # that of the constraint goes before that of the index
    if statement.take_one_of("USING", "TYPE"):
        statement.next("a kind of index")
    read_key_columns(statement, key)


def read_key_columns(statement: Statement, key: KeyDefinition) -> None:
    """Read a key's columns and options."""
    for part in sql.split(statement.bracket()):
        reader = Statement(part)
        key.columns.append(None if reader.sees("(") else reader.column_name())
    while not statement.done:
        clustered = _read_clustered(statement)
        if clustered is not None:
            key.clustered = clustered
        elif statement.next("an option").key == "WHERE":
            key.unique = key.primary  # unique among some rows only


# --- from a definition to the model ---------------------------------------------------------------

# TEXT and BLOB by the bytes they hold.
_BLOB_KINDS: tuple[tuple[str, str, int], ...] = (
    ("tinytext", "tinyblob", 255),
    ("text", "blob", 65535),
    ("mediumtext", "mediumblob", 16777215),
    ("longtext", "longblob", 4294967295),
)
_BLOB_LENGTHS = {name: most for *names, most in _BLOB_KINDS for name in names}
_BINARY_TWINS = {"char": "binary", "varchar": "varbinary"} | {
    text: blob for text, blob, _ in _BLOB_KINDS
}
# Length where none is given; that of an integer is one less where it has no sign, save BIGINT's.
_LENGTHS: dict[int, int] = {
    **DEFAULT_LENGTHS,
    MySQLType.JSON: 4294967295,
    MySQLType.VECTOR: -1,
}
_TEMPORAL_LENGTHS: dict[int, int] = {
    MySQLType.DATE: 10,
    MySQLType.DURATION: 10,
    MySQLType.DATETIME: 19,
    MySQLType.TIMESTAMP: 19,
}
_SINGLE_PRECISION_BITS = 24
_VARCHAR_BYTES = 65535
_HAS_CHARSET = CHARS | BLOBS | {MySQLType.ENUM, MySQLType.SET}


class _Size(NamedTuple):
    base: str
    length: int | None = None
    decimals: int | None = None


def column_of(definition: ColumnDefinition, table: Charset) -> Column:
    """The column that a definition makes in a table of this character set."""
    charset = _column_charset(definition, table)
    size = _size(definition, charset)
    code = code_of(size.base)[0]
    is_year = code == MySQLType.YEAR  # TiDB holds it as unsigned and filled with zeros, BIT too
    column = Column.of_type(
        definition.name,
        size.base,
        length=size.length,
        decimals=size.decimals or None,
        elements=definition.elements,
        unsigned=definition.unsigned or is_year or code == MySQLType.BIT,
        zerofill=definition.zerofill or is_year,
        nullable=definition.nullable is not False,
        charset=charset.name,
        collation=charset.collation,
        generated=definition.generated,
    )
    written = definition.default
    if written is None and is_year and not column.nullable:
        written = Written(Form.TEXT, "0000")  # the one implicit default that TiDB writes down
    return replace(column, default=stored_default(column, written or NULL))


def _column_charset(definition: ColumnDefinition, table: Charset) -> Charset:
    code, is_binary = code_of(definition.base)
    if code not in _HAS_CHARSET or is_binary:
        return BINARY
    charset = charset_of(definition.charset, definition.collation, table)
    named_both = definition.charset is not None and definition.collation is not None
    if definition.binary and not named_both and charset.name is not None:
        return charset_of(charset.name, None)  # CHAR(9) BINARY: the default collation
    return charset


def _size(definition: ColumnDefinition, charset: Charset) -> _Size:
    """The type, length and decimals; a length may ask for another type than the one named."""
    code, _ = code_of(definition.base)
    base = Column.of_type("", definition.base).base_type
    if charset.name == "binary":
        base = _BINARY_TWINS.get(base, base)
    numbers = definition.numbers
    first = numbers[0] if numbers else None
    second = numbers[1] if len(numbers) > 1 else None
    if code in TEMPORALS:
        digits = first if first and code != MySQLType.DATE else 0
        return _Size(base, _TEMPORAL_LENGTHS[code] + (1 + digits if digits else 0), digits)
    if code == MySQLType.YEAR:
        return _Size(base, 4)
    if code in (MySQLType.ENUM, MySQLType.SET):
        return _Size(base, _elements_length(code, definition.elements))
    if code == MySQLType.FLOAT and first is not None and second is None:
        base = "double" if first > _SINGLE_PRECISION_BITS else base
        return _Size(base, _LENGTHS[code_of(base)[0]])
    width = _CHARSETS.get(charset.name or "", ("", 4))[1]
    if code in BLOBS:
        return _blob(base, None if first is None else first * width)
    if code == MySQLType.VARCHAR and charset.name and (first or 0) > _VARCHAR_BYTES // width:
        text = "blob" if charset.name == "binary" else "text"
        return _blob(text, (first or 0) * width)  # without strict mode TiDB makes it a TEXT
    if first is not None:
        return _Size(base, first, second)
    if definition.base in ("bool", "boolean"):
        return _Size(base, 1)
    shorter = definition.unsigned and code in INTEGERS and code != MySQLType.LONGLONG
    return _Size(base, _LENGTHS[code] - shorter if code in _LENGTHS else None)


def _elements_length(code: int, elements: tuple[str, ...]) -> int:
    """In bytes: of the longest element of an ENUM, of a SET with all its members."""
    sizes = [len(element.encode()) for element in elements]
    return max(sizes, default=0) if code == MySQLType.ENUM else sum(sizes) + len(sizes) - 1


def _blob(base: str, size: int | None) -> _Size:
    """TEXT(n) and BLOB(n) are the smallest of their kind that holds so many bytes."""
    if size is not None and base in ("text", "blob"):
        base = next(
            (text if base == "text" else blob for text, blob, most in _BLOB_KINDS if size <= most),
            base,
        )
    return _Size(base, _BLOB_LENGTHS[base])
