"""The tables of a database that speaks MySQL's protocol, as texts: to compare a lake with.

TiDB is read as of an instant (`tidb_snapshot`), so that it can be compared while it is written to;
another database as it is now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.model import TableSchema
from tidegate.model.sql import quoted
from tidegate.sql.tables import Name
from tidegate.upstream.errors import failure
from tidegate.upstream.server import DatabaseServer, driver, has_snapshots, selected, text_of
from tidegate.verify.comparison import Expected, Row

SETTING = "--mysql"


def connect(uri: str, zone: str = "UTC", ts: int | None = None) -> Any:
    """A connection to mysql://user:password@host:port/, at an instant where TiDB is."""
    server, pymysql = DatabaseServer.parse(uri, SETTING), driver()
    try:
        connection = server.connect(cursorclass=pymysql.cursors.SSCursor)
        with connection.cursor() as cursor:
            cursor.execute("SET time_zone = %s", [_offset(zone)])
            if ts is not None and has_snapshots(connection):
                cursor.execute(f"SET @@tidb_snapshot = '{ts:d}'")
    except pymysql.MySQLError as error:
        raise failure(server.address, error) from error
    return connection


def _offset(zone: str) -> str:
    """UTC is known to every server as an offset only."""
    return "+00:00" if zone.upper() in ("UTC", "ETC/UTC", "GMT") else zone


def read_tables(
    uri: str, schemas: Mapping[Name, TableSchema], zone: str, ts: int | None = None
) -> dict[Name, Expected]:
    """These tables as the database has them; one that is not there is not in the result."""
    connection = connect(uri, zone, ts)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT table_schema, table_name FROM information_schema.tables")
            there = {tuple(part.lower() for part in row) for row in cursor}
        return {
            name: Expected(schema, _rows(connection, name, schema))
            for name, schema in schemas.items()
            if name.folded in there
        }
    finally:
        connection.close()


def _rows(connection: Any, name: Name, schema: TableSchema) -> list[Row]:
    columns = {column.name: column for column in schema.columns}
    wanted = [columns[each] for each in schema.carried_names]
    listed = ", ".join(map(selected, wanted))
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {listed} FROM {quoted(*name)}")
        return [
            tuple(text_of(column, value) for column, value in zip(wanted, row, strict=True))
            for row in cursor
        ]
