"""Finds out what kind of database answers at an address."""

from __future__ import annotations

from tidegate.upstream.database import DatabaseSession, ReadOptions, UpstreamDatabase
from tidegate.upstream.mysql import MySQL
from tidegate.upstream.server import DatabaseServer
from tidegate.upstream.tidb import TiDB


def open_database(server: DatabaseServer, options: ReadOptions | None = None) -> UpstreamDatabase:
    """TiDB where `tidb_snapshot` is known, else a relative of MySQL."""
    with DatabaseSession(server) as session:
        knows_snapshots = bool(session.rows("SHOW VARIABLES LIKE 'tidb_snapshot'"))
    return (TiDB if knows_snapshots else MySQL)(server, options or ReadOptions())
