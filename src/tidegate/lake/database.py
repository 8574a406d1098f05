"""The tables of a database that speaks MySQL's protocol, as texts: to compare a lake with.

TiDB is read as of an instant (`tidb_snapshot`), so that it can be compared while it is written to;
another database as it is now.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tidegate.feed.tables import Name
from tidegate.lake.rows import carried
from tidegate.lake.verify import Expected, Row
from tidegate.model import Column, ConfigError, SourceError, TableSchema, code_of
from tidegate.model.types import MySQLType

SETTING = "--mysql"
_NUMBERED = (MySQLType.ENUM, MySQLType.SET, MySQLType.BIT)


def connect(uri: str, zone: str = "UTC", ts: int | None = None) -> Any:
    """A connection to mysql://user:password@host:port/database, at an instant where TiDB is."""
    try:
        import pymysql
    except ModuleNotFoundError as error:
        if error.name != "pymysql":
            raise
        raise ConfigError(SETTING, "it needs PyMySQL: pip install 'tidegate[mysql]'") from None
    parts = urlsplit(uri)
    if parts.scheme not in ("mysql", "tidb") or not parts.hostname:
        raise ConfigError(SETTING, "write it as mysql://user:password@host:port/database")
    options: dict[str, Any] = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    try:
        connection = pymysql.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=unquote(parts.username or "root"),
            password=unquote(parts.password or ""),
            database=unquote(parts.path.lstrip("/")) or None,
            charset="utf8mb4",
            conv={},  # values stay the texts that the server sends
            use_unicode=False,
            cursorclass=pymysql.cursors.SSCursor,
            **options,
        )
        with connection.cursor() as cursor:
            cursor.execute("SET time_zone = %s", [_offset(zone)])
            if ts is not None and _is_tidb(cursor):
                cursor.execute(f"SET @@tidb_snapshot = '{ts:d}'")
    except pymysql.MySQLError as error:
        raise SourceError(
            f"the database at {parts.hostname}", str(error), "Check the address and the user"
        ) from error
    return connection


def _offset(zone: str) -> str:
    """UTC is known to every server as an offset only."""
    return "+00:00" if zone.upper() in ("UTC", "ETC/UTC", "GMT") else zone


def _is_tidb(cursor: Any) -> bool:
    cursor.execute("SELECT VERSION()")
    found = cursor.fetchall()
    return b"TiDB" in bytes(found[0][0])


def read_tables(
    uri: str, schemas: Mapping[Name, TableSchema], zone: str, ts: int | None = None
) -> dict[Name, Expected]:
    """These tables as the database has them; one that is not there is not in the result."""
    connection = connect(uri, zone, ts)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT table_schema, table_name FROM information_schema.tables")
            there = {tuple(bytes(part).decode().lower() for part in row) for row in cursor}
        return {
            name: Expected(schema, _rows(connection, name, schema))
            for name, schema in schemas.items()
            if name.folded in there
        }
    finally:
        connection.close()


def _rows(connection: Any, name: Name, schema: TableSchema) -> list[Row]:
    columns = {column.name: column for column in schema.columns}
    wanted = [columns[each] for each in carried(schema)]
    listed = ", ".join(_selected(column) for column in wanted)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {listed} FROM {_quoted(name.database)}.{_quoted(name.table)}")
        return [
            tuple(_text(column, value) for column, value in zip(wanted, row, strict=True))
            for row in cursor
        ]


def _selected(column: Column) -> str:
    """A column as the wire's texts have it: the numbers of labels and bits."""
    name = _quoted(column.name)
    return f"{name} + 0" if column.code in _NUMBERED else name


def _text(column: Column, value: bytes | None) -> str | None:
    if value is None:
        return None
    if code_of(column.base_type)[1]:
        return b64encode(value).decode()
    return bytes(value).decode("utf-8")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
