"""TiDB: sessions at a TSO, regions as bounds, and how long garbage collection waits.

Every statement that only TiDB knows is sent from here. After a failed SET of `tidb_snapshot` a
session reads the present while `@@tidb_snapshot` shows the TSO that was refused. So such a session
is closed, and a new one is believed only when SHOW MASTER STATUS names the TSO too: that shows
what the session really reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from tidegate.model import Column, TableSchema, tso_from_datetime
from tidegate.model.sql import quoted
from tidegate.sql.tables import Name
from tidegate.upstream.database import (
    DatabaseSession,
    GarbageCollection,
    Handle,
    UpstreamDatabase,
    UpstreamTable,
    handle_values,
    source_of,
)
from tidegate.upstream.errors import (
    UNKNOWN_COLUMN,
    AccessDenied,
    DatabaseError,
    SnapshotLost,
)

ROW_ID = Column.of_type("_tidb_rowid", "bigint", nullable=False)
"""The hidden handle of a table whose primary key does not order its rows."""

REGION_BYTES = 96 << 20
"""What a region holds where the server has no estimate."""

_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


@dataclass(frozen=True)
class TiDB(UpstreamDatabase):
    """TiDB 5.0 or newer."""

    has_snapshots: ClassVar[bool] = True

    def take_ts(self) -> int:
        """The newest TSO of the cluster."""
        with DatabaseSession(self.server) as session:
            position = _position(session)
            if position is not None:
                return position
            session.rows("BEGIN")
            return int(session.rows("SELECT @@tidb_current_ts")[0][0])

    def session(self, at: int | None = None) -> DatabaseSession:
        session = DatabaseSession(self.server, at)
        try:
            if at is not None:
                session.rows(f"SET SESSION tidb_snapshot = '{at:d}'")
            session.rows("SET SESSION tidb_enable_paging = ON")
            if self.options.resource_group is not None:
                session.rows(f"SET RESOURCE GROUP {quoted(self.options.resource_group)}")
            if at is not None:
                self._prove(session, at)
        except BaseException:
            session.close()
            raise
        return session

    def _prove(self, session: DatabaseSession, at: int) -> None:
        position = _position(session)
        if position is not None and position != at:
            raise SnapshotLost(
                f"the database at {self.server.address}",
                f"a session that was set to {at} reads at {position}",
                "Connect to TiDB itself: a proxy that shares sessions cannot be read from",
            )

    def handle(self, session: DatabaseSession, schema: TableSchema) -> Handle | None:
        table = quoted(schema.database, schema.table)
        try:
            session.rows(f"SELECT _tidb_rowid FROM {table} LIMIT 1")
        except DatabaseError as error:
            if error.code != UNKNOWN_COLUMN:
                raise
            by_name = {column.name: column for column in schema.columns}
            return Handle(tuple(by_name[name] for name in schema.primary_key))
        return Handle((ROW_ID,))

    def bounds(
        self,
        session: DatabaseSession,
        table: UpstreamTable,
        handle: Handle,
        partition: str | None,
        target_bytes: int,
    ) -> Iterator[tuple[str, ...]]:
        """The first row of each region, save the first one's, below which there are no rows.

        Rows of an unsigned key from 2^63 on are stored before the others: there the least bound
        can have rows below it that no other region shows, so it is kept.
        """
        regions = session.values(sample_statement(table.name, handle, partition), handle.columns)
        bounds = [tuple(str(value) for value in region) for region in regions]
        joined = _regions_a_chunk(table, len(bounds), target_bytes)
        is_unsigned = len(handle.columns) == 1 and handle.columns[0].unsigned
        yield from bounds[0 if is_unsigned else joined :: joined]

    def garbage_collection(self) -> GarbageCollection | None:
        # Not in a session at a TSO, which would show the safe point of then.
        with DatabaseSession(self.server) as session:
            ((life, wait),) = session.rows(
                "SELECT @@global.tidb_gc_life_time, @@global.tidb_gc_max_wait_time"
            )
            safe_point = _safe_point(session)
        return GarbageCollection(_duration(life), timedelta(seconds=int(wait)), safe_point)

    @property
    def select(self) -> str:
        return "SELECT LOW_PRIORITY" if self.options.low_priority else "SELECT"


def sample_statement(table: Name, handle: Handle, partition: str | None) -> str:
    """Asks for the first row of each region of a table, or of one of its partitions."""
    order = ", ".join(quoted(column.name) for column in handle.columns)
    return (
        f"SELECT {handle_values(handle)} FROM {source_of(table, partition)} "
        f"TABLESAMPLE REGIONS() ORDER BY {order}"
    )


def _regions_a_chunk(table: UpstreamTable, regions: int, target_bytes: int) -> int:
    """How many neighbouring regions make a chunk of about the size wanted."""
    partitions = table.schema.partitioning.partitions if table.schema.partitioning else ()
    size = table.bytes / max(len(partitions), 1) / max(regions, 1) or REGION_BYTES
    return max(1, int(target_bytes / size)) if size < target_bytes else 1


def _position(session: DatabaseSession) -> int | None:
    """The TSO at which the session reads; None where the user may not ask."""
    try:
        ((_, position, *_),) = session.rows("SHOW MASTER STATUS")
    except AccessDenied:
        return None
    return int(position)


def _safe_point(session: DatabaseSession) -> int | None:
    try:
        rows = session.rows(
            "SELECT VARIABLE_VALUE FROM mysql.tidb WHERE VARIABLE_NAME = 'tikv_gc_safe_point'"
        )
    except AccessDenied:
        return None
    if not rows:
        return None
    return tso_from_datetime(datetime.strptime(_micros(rows[0][0]), "%Y%m%d-%H:%M:%S.%f %z"))


def _micros(text: str) -> str:
    """`20261117-10:10:44.000 +0000`; TiDB leaves the fraction out where it is zero at times."""
    return text if "." in text else text.replace(" ", ".000 ", 1)


def _duration(text: str) -> timedelta:
    """A duration as Go writes it: 10m0s."""
    return timedelta(
        seconds=sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    )
