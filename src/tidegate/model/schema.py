"""Table schemas: columns and indexes, and the one JSON form they are kept in.

The JSON form is the `tableSchema` of TiCDC's Simple protocol, member for member, so that its own
text is read as it is and written back unchanged:

    {"schema", "table", "tableID", "version", "columns": [COLUMN], "indexes": [INDEX]}
    COLUMN {"name", "dataType": {"mysqlType", "charset", "collate", "length", "decimal", "elements",
            "unsigned", "zerofill"}, "nullable", "default"}
    INDEX  {"name", "unique", "primary", "nullable", "columns"}

What other protocols tell of a column and Simple does not is added to COLUMN: "code" where it is not
the usual one of the type's name, "flags", "zone". What a DDL statement tells is added too:
"generated" (virtual or stored) to COLUMN, "charset", "collate" and "partitioning" to the table.
What is not known is left out, never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, Final, TypeAlias

from tidegate.model import types
from tidegate.model.errors import SchemaError
from tidegate.model.types import Flag, MySQLType, ValueForm


class Absent(Enum):
    """The type of ABSENT, which says that a member is not there (not even as null)."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent.ABSENT
Default: TypeAlias = str | int | float | bool | Absent | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column; None (ABSENT for the default) where the wire does not say.

    `type` is the name as TiCDC spells it, without parameters: "bigint unsigned", "varbinary".
    `generated` is "virtual" or "stored"; rows never carry a virtual column.
    """

    name: str
    type: str
    code: int
    flags: Flag | None = None
    nullable: bool | None = None
    default: Default = ABSENT
    charset: str | None = None
    collation: str | None = None
    length: int | None = None
    decimals: int | None = None
    elements: tuple[str, ...] = ()
    unsigned: bool = False
    zerofill: bool = False
    zone: str | None = None
    generated: str | None = None

    @classmethod
    def of_type(cls, name: str, text: str, **known: Any) -> Column:
        """A column from the text of its type, with or without parameters: "decimal(10,4)"."""
        parsed = types.parse_type(text)
        of_text: dict[str, Any] = {
            "code": int(parsed.code),
            "length": parsed.length,
            "decimals": parsed.decimals,
            "elements": parsed.elements,
            "unsigned": parsed.unsigned,
            "zerofill": parsed.zerofill,
        }
        default = known.pop("default", ABSENT)
        values = of_text | {member: value for member, value in known.items() if value is not None}
        spelled = _spelling(parsed.base, values["code"], values["unsigned"], values["zerofill"])
        return cls(name=name, type=spelled, default=default, **values)

    @property
    def base_type(self) -> str:
        """The type's name alone: "bigint", "varbinary"."""
        return self.type.removesuffix(" zerofill").removesuffix(" unsigned")

    @property
    def full_type(self) -> str:
        """The type with its parameters, in so far as they are known: "decimal(10,4) unsigned"."""
        if self.code == MySQLType.UNSPECIFIED:
            return self.type
        return types.full_type_name(
            self.code,
            self.type_flags,
            length=self.length,
            decimals=self.decimals,
            elements=self.elements,
            zerofill=self.zerofill,
        )

    @property
    def type_flags(self) -> Flag:
        """The BINARY and UNSIGNED flags: the wire's own, else those that follow from the type."""
        if self.flags is not None:
            return self.flags & (Flag.BINARY | Flag.UNSIGNED)
        binary = types.code_of(self.base_type)[1]
        return types.type_flags(self.code, binary=binary, unsigned=self.unsigned)

    @property
    def value_form(self) -> ValueForm:
        """How the text of the column's values reads."""
        return types.value_form(self.code, self.type_flags)

    @classmethod
    def from_json(cls, member: Mapping[str, Any]) -> Column:
        """A column from COLUMN."""
        name = _member(member, "name", str)
        data_type = _member(member, "dataType", Mapping)
        flags = _optional(member, "flags", int)
        default = member.get("default", ABSENT)
        if not isinstance(default, str | int | float | Absent | None):
            raise SchemaError(f"the default of column {name!r}", "must be text or a number")
        return cls.of_type(
            name,
            _member(data_type, "mysqlType", str),
            code=_optional(member, "code", int),
            flags=None if flags is None else Flag(flags),
            nullable=_optional(member, "nullable", bool),
            charset=_optional(data_type, "charset", str),
            collation=_optional(data_type, "collate", str),
            length=_optional(data_type, "length", int),
            decimals=_optional(data_type, "decimal", int),
            elements=_optional_names(data_type, "elements"),
            unsigned=_optional(data_type, "unsigned", bool),
            zerofill=_optional(data_type, "zerofill", bool),
            zone=_optional(member, "zone", str),
            default=default,
            generated=_optional(member, "generated", str),
        )

    def to_json(self) -> dict[str, Any]:
        """COLUMN, in Simple's order of members."""
        data_type = {
            "mysqlType": self.base_type,
            "charset": self.charset,
            "collate": self.collation,
            "length": self.length,
            "decimal": self.decimals,
            "elements": list(self.elements) or None,
            "unsigned": self.unsigned or None,
            "zerofill": self.zerofill or None,
        }
        column: dict[str, Any] = {"name": self.name, "dataType": _known(data_type)}
        if self.nullable is not None:
            column["nullable"] = self.nullable
        if self.default is not ABSENT:
            column["default"] = self.default
        if self.code != types.code_of(self.base_type)[0]:
            column["code"] = self.code
        if self.flags is not None:
            column["flags"] = int(self.flags)
        if self.zone is not None:
            column["zone"] = self.zone
        if self.generated is not None:
            column["generated"] = self.generated
        return column


def _spelling(base: str, code: int, unsigned: bool, zerofill: bool) -> str:
    if code == MySQLType.UNSPECIFIED:
        return base
    return _spelled(code, types.code_of(base)[1], unsigned, zerofill)


@lru_cache(maxsize=1024)
def _spelled(code: int, binary: bool, unsigned: bool, zerofill: bool) -> str:
    flags = types.type_flags(code, binary=binary, unsigned=unsigned)
    return types.type_name(code, flags, zerofill=zerofill)


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """An index; `nullable` says that at least one of its columns may be NULL."""

    name: str
    unique: bool = False
    primary: bool = False
    nullable: bool = False
    columns: tuple[str, ...] = ()

    @property
    def identifies(self) -> bool:
        """Whether the index tells every row from every other."""
        return self.primary or (self.unique and not self.nullable)

    @classmethod
    def from_json(cls, member: Mapping[str, Any]) -> Index:
        """An index from INDEX."""
        return cls(
            name=_member(member, "name", str),
            unique=_optional(member, "unique", bool) or False,
            primary=_optional(member, "primary", bool) or False,
            nullable=_optional(member, "nullable", bool) or False,
            columns=_optional_names(member, "columns") or (),
        )

    def to_json(self) -> dict[str, Any]:
        """INDEX."""
        return {
            "name": self.name,
            "unique": self.unique,
            "primary": self.primary,
            "nullable": self.nullable,
            "columns": list(self.columns),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition: its name and, in SQL, what is in it.

    For RANGE one tuple, the bound that its rows are less than; for LIST a tuple for each value.
    """

    name: str
    values: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitioning:
    """How a table is partitioned: `method` is range, list, hash or key, `by` is in SQL.

    `by` holds one expression, or the columns of RANGE COLUMNS, LIST COLUMNS and KEY.
    """

    method: str
    by: tuple[str, ...]
    partitions: tuple[Partition, ...] = ()

    @classmethod
    def from_json(cls, member: Mapping[str, Any]) -> Partitioning:
        """{"method", "by": [SQL], "partitions": [{"name", "values": [[SQL]]}]}."""
        partitions = _optional(member, "partitions", Sequence) or ()
        return cls(
            method=_member(member, "method", str),
            by=_optional_names(member, "by") or (),
            partitions=tuple(
                Partition(
                    name=_member(_object(partition, "partitions"), "name", str),
                    values=tuple(
                        _optional_names({"values": values}, "values") or ()
                        for values in _optional(partition, "values", Sequence) or ()
                    ),
                )
                for partition in partitions
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """The object that `from_json` reads."""
        return {
            "method": self.method,
            "by": list(self.by),
            "partitions": [
                {"name": partition.name, "values": [list(values) for values in partition.values]}
                for partition in self.partitions
            ],
        }


@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """A table as a schema event or a shape shows it; `indexes` is None where the wire has none.

    `partitioning` is None for a table that has no partitions, and where they are not known.
    """

    database: str
    table: str
    table_id: int | None = None
    version: int | None = None
    columns: tuple[Column, ...] = ()
    indexes: tuple[Index, ...] | None = None
    charset: str | None = None
    collation: str | None = None
    partitioning: Partitioning | None = None

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    def column(self, name: str) -> Column | None:
        """The column of this name, or None."""
        return self._by_name.get(name)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names in order."""
        return tuple(column.name for column in self.columns)

    @property
    def carried(self) -> tuple[Column, ...]:
        """The columns that rows carry, and that a mirrored table has: all but virtual ones."""
        return tuple(column for column in self.columns if column.generated != "virtual")

    @property
    def carried_names(self) -> tuple[str, ...]:
        """The names of these."""
        return tuple(column.name for column in self.carried)

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The columns of the primary key in the index's order; empty if there is none."""
        for index in self.indexes or ():
            if index.primary and not self._is_made_up(index):
                return index.columns
        return self._flagged(Flag.PRIMARY_KEY)

    def _is_made_up(self, index: Index) -> bool:
        """Whether Simple added the index to show the handle key of a table without a primary key.

        It then repeats the columns of a unique index under the name `primary`; TiDB's own is
        `PRIMARY`, and a lone integer key, which TiDB keeps without an index, repeats no other.
        """
        return index.name == "primary" and any(
            other.identifies and not other.primary and other.columns == index.columns
            for other in self.indexes or ()
        )

    @property
    def own_indexes(self) -> tuple[Index, ...] | None:
        """The indexes that the table really has: without the one that Simple may have added."""
        if self.indexes is None:
            return None
        return tuple(index for index in self.indexes if not self._is_made_up(index))

    def handle_key(self) -> tuple[str, ...]:
        """The columns by which TiCDC identifies a row; empty if the table has no such key.

        The primary key, else the unique index without nullable columns that has the fewest columns,
        the first of these. Where the wire flags the columns itself, its flags decide.
        """
        return self._handle_key

    @cached_property
    def _handle_key(self) -> tuple[str, ...]:
        flagged = self._flagged(Flag.HANDLE_KEY)
        if flagged or self.indexes is None:
            return flagged
        if self.primary_key:
            return self.primary_key
        keys = [index.columns for index in self.indexes if self._can_be_handle(index)]
        return min(keys, key=len, default=())

    def _can_be_handle(self, index: Index) -> bool:
        if not index.identifies or not index.columns:
            return False
        columns = [self.column(name) for name in index.columns]
        return all(
            column is not None and not column.nullable and column.generated != "virtual"
            for column in columns
        )

    def _flagged(self, flag: Flag) -> tuple[str, ...]:
        return tuple(
            column.name
            for column in self.columns
            if column.flags is not None and column.flags & flag
        )

    def flags(self, name: str) -> Flag:
        """A column's flags: the wire's own, else those that TiCDC gives by type and indexes.

        GENERATED is there only where a DDL statement told that the column is.
        """
        column = self._by_name[name]
        if column.flags is not None:
            return column.flags
        # Whole numbers until the end: an operation on flags costs as much as all of these.
        bits = int(column.type_flags)
        if column.charset is not None and column.charset != "binary":
            bits &= ~_BINARY  # the columns of a view have no character set at all
        if column.nullable:
            bits |= _NULLABLE
        if column.generated is not None:
            bits |= _GENERATED
        if name in self.handle_key():
            bits |= _HANDLE_KEY
        for index in self.indexes or ():
            if name in index.columns and not self._is_made_up(index):
                bits |= _index_bits(index)
        return Flag(bits)

    @classmethod
    def from_json(cls, text: str | bytes | Mapping[str, Any]) -> TableSchema:
        """A schema from its JSON text, or from the object that the text holds."""
        schema = text if isinstance(text, Mapping) else _parsed(text)
        columns = _optional(schema, "columns", Sequence) or ()
        indexes = _optional(schema, "indexes", Sequence)
        partitioning = _optional(schema, "partitioning", Mapping)
        return cls(
            database=_optional(schema, "schema", str) or "",
            table=_optional(schema, "table", str) or "",
            table_id=_optional(schema, "tableID", int),
            version=_optional(schema, "version", int),
            columns=tuple(Column.from_json(_object(column, "columns")) for column in columns),
            indexes=None
            if indexes is None
            else tuple(Index.from_json(_object(index, "indexes")) for index in indexes),
            charset=_optional(schema, "charset", str),
            collation=_optional(schema, "collate", str),
            partitioning=None if partitioning is None else Partitioning.from_json(partitioning),
        )

    def to_json(self) -> str:
        """The compact JSON text, members in Simple's order."""
        return json.dumps(self.to_object(), ensure_ascii=False, separators=(",", ":"))

    def to_object(self) -> dict[str, Any]:
        """The object that the JSON text holds."""
        indexes, partitioning = self.indexes, self.partitioning
        return _known(
            {
                "schema": self.database,
                "table": self.table,
                "tableID": self.table_id,
                "version": self.version,
                "columns": [column.to_json() for column in self.columns],
                "indexes": None if indexes is None else [index.to_json() for index in indexes],
                "charset": self.charset,
                "collate": self.collation,
                "partitioning": None if partitioning is None else partitioning.to_json(),
            }
        )


_BINARY = int(Flag.BINARY)
_NULLABLE = int(Flag.NULLABLE)
_HANDLE_KEY = int(Flag.HANDLE_KEY)
_GENERATED = int(Flag.GENERATED)
_PRIMARY_KEY = int(Flag.PRIMARY_KEY)
_UNIQUE_KEY = int(Flag.UNIQUE_KEY)
_MULTIPLE_KEY = int(Flag.MULTIPLE_KEY)


def _index_bits(index: Index) -> int:
    bits = 0
    if index.primary:
        bits |= _PRIMARY_KEY
    elif index.unique:
        bits |= _UNIQUE_KEY
    if len(index.columns) > 1 or not index.unique:
        bits |= _MULTIPLE_KEY
    return bits


# --- reading members ------------------------------------------------------------------------------


def _known(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def _parsed(text: str | bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError("the text", f"is not JSON ({error})") from error
    return _object(value, "the text")


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SchemaError(where, "must hold an object")
    return value


def _optional(members: Mapping[str, Any], name: str, kind: type) -> Any:
    """The member, or None if it is absent or null; a member of another kind is an error."""
    value = members.get(name)
    if value is None or type(value) is kind:
        return value
    is_text_for_list = kind is Sequence and isinstance(value, str)
    is_bool_for_int = kind is int and isinstance(value, bool)
    if not isinstance(value, kind) or is_text_for_list or is_bool_for_int:
        raise SchemaError(repr(name), f"must be {_KINDS[kind]}, not {type(value).__name__}")
    return value


def _member(members: Mapping[str, Any], name: str, kind: type) -> Any:
    value = _optional(members, name, kind)
    if value is None:
        raise SchemaError(repr(name), "is missing")
    return value


def _optional_names(members: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    values = _optional(members, name, Sequence)
    if values is None:
        return None
    if not all(isinstance(value, str) for value in values):
        raise SchemaError(repr(name), "must hold texts only")
    return tuple(values)


_KINDS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    Mapping: "an object",
    Sequence: "a list",
}
