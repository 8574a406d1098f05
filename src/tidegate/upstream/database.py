"""An upstream database that can be loaded from: one interface, for TiDB and for MySQL's relatives.

A `DatabaseSession` is one connection, on TiDB at one TSO. What both kinds of servers say alike
(which tables there are, what their columns are) is here; what only one of them can say is in
`tidb` and `mysql`. A session that an error left in doubt is closed, never used again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

import pyarrow as pa

from tidegate.changefeed.config.filter import SYSTEM_DATABASES, TableFilter
from tidegate.model import Column, SourceError, TableSchema
from tidegate.model.sql import quoted
from tidegate.sql.ddl import transition
from tidegate.sql.tables import DEFAULT_CHARSET, Name
from tidegate.upstream.errors import DatabaseError, SnapshotLost, failure
from tidegate.upstream.result_rows import BrokenResult, ResultError, ResultRows, UnreadableValue
from tidegate.upstream.server import DatabaseServer, driver, selected

BATCH_BYTES = 8 << 20
"""Bytes of rows in one Arrow batch, about."""

_TABLES = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS, DATA_LENGTH FROM information_schema.tables "
    "WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY TABLE_SCHEMA, TABLE_NAME"
)


class DatabaseSession:
    """One connection; `at` is the TSO whose rows it reads, None for the present."""

    def __init__(self, server: DatabaseServer, at: int | None = None) -> None:
        self.server = server
        self.at = at
        self._connection: Any = None
        self._connection = self._asked(server.connect)

    def __enter__(self) -> DatabaseSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether statements can be sent; not after an error that left the session in doubt."""
        return self._connection is not None and self._connection.open

    def close(self) -> None:
        """Ends the connection; nothing if it is gone."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            _abandon(connection)

    def rows(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a short answer, values as the server writes them."""

        def ask() -> list[tuple[Any, ...]]:
            with self._open().cursor() as cursor:
                cursor.execute(statement, parameters or None)
                return list(cursor.fetchall())

        answer: list[Any] = self._asked(ask)
        return answer

    def named(self, statement: str) -> list[dict[str, Any]]:
        """The rows of a short answer, each as a dictionary."""

        def ask() -> list[dict[str, Any]]:
            with self._open().cursor(driver().cursors.DictCursor) as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall())

        answer: list[Any] = self._asked(ask)
        return answer

    def values(self, statement: str, columns: Sequence[Column]) -> list[tuple[str | None, ...]]:
        """The rows of a short answer in the change batch's strings."""
        batches = list(self.stream(statement, columns))
        return [
            row for batch in batches for row in zip(*(c.to_pylist() for c in batch), strict=True)
        ]

    def stream(
        self, statement: str, columns: Sequence[Column], batch_bytes: int = BATCH_BYTES
    ) -> Iterator[list[pa.StringArray]]:
        """The rows of a statement as they arrive: for each batch, an array for each column.

        A stream that is not read to its end closes the session.
        """
        connection = self._open()
        finished = False
        try:
            self._asked(lambda: connection.query(statement, unbuffered=True))
            rows = _result(connection, columns)
            readinto = _receiver(connection)
            while batch := self._asked(lambda: rows.read(readinto, batch_bytes)):
                yield batch
            finished = True
        except UnreadableValue as error:
            name = columns[error.column].name
            raise SourceError(
                f"the database at {self.server.address}",
                f"a value of the column {name!r} {error.reason}",
                "Correct the row in the database: its bytes do not fit the column's type",
            ) from None
        finally:
            if not finished:
                self.close()

    def _open(self) -> Any:
        if not self.is_open:
            raise failure(self.server.address, BrokenResult("the connection is closed"))
        return self._connection

    def _asked(self, ask: Callable[[], Any]) -> Any:
        """The answer; an error becomes a sentence, and ends a session that it leaves in doubt."""
        errors = (driver().err.MySQLError, ResultError, BrokenResult, OSError)
        try:
            return ask()
        except errors as error:
            raised = failure(self.server.address, error)
            if not isinstance(raised, DatabaseError) or isinstance(raised, SnapshotLost):
                self.close()
            raise raised from None


def _result(connection: Any, columns: Sequence[Column]) -> ResultRows:
    """Takes the rows of the running statement over from PyMySQL, which has read their heading."""
    result = connection._result
    result.unbuffered_active = False
    connection._result = None
    if result.field_count != len(columns):
        raise BrokenResult(f"{result.field_count} columns came, not {len(columns)}")
    connection._sock.settimeout(connection._read_timeout)
    types = [(column.code, int(column.type_flags)) for column in columns]
    return ResultRows(types, connection._next_seq_id)


def _receiver(connection: Any) -> Callable[[memoryview], int]:
    """Receives straight into a buffer, after what PyMySQL has read ahead."""
    ahead: list[bytes] = []

    def receive(room: memoryview) -> int:
        if not ahead:  # the first time: PyMySQL's own buffer is then empty for good
            ahead.append(connection._rfile.read1(len(room)))
            room[: len(ahead[0])] = ahead[0]
            return len(ahead[0])
        received: int = connection._sock.recv_into(room)
        return received

    return receive


def _abandon(connection: Any) -> None:
    """Closes without reading what is still to come."""
    if connection._result is not None:
        connection._result.unbuffered_active = False
    connection._force_close()


# --- what a database tells of itself --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UpstreamTable:
    """A table at an instant; `rows` and `bytes` are the server's estimates."""

    schema: TableSchema
    rows: int = 0
    bytes: int = 0

    @property
    def name(self) -> Name:
        """The table's name."""
        return Name(self.schema.database, self.schema.table)


@dataclass(frozen=True, slots=True)
class Listing:
    """The tables that a filter selects, and those of them whose definition cannot be followed."""

    tables: tuple[UpstreamTable, ...]
    unreadable: dict[Name, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Handle:
    """The columns by which the server stores rows in order, all of them NOT NULL.

    `index` is their index where the server must be told to use it.
    """

    columns: tuple[Column, ...]
    index: str | None = None


@dataclass(frozen=True, slots=True)
class GarbageCollection:
    """How long a database keeps the past; `safe_point` is None where the user may not read it.

    A session at a TSO holds garbage collection back until the TSO is `max_wait` old.
    """

    life_time: timedelta
    max_wait: timedelta
    safe_point: int | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How gently the load reads: TiDB's resource group, and LOW_PRIORITY."""

    resource_group: str | None = None
    low_priority: bool = False


@dataclass(frozen=True)
class UpstreamDatabase(ABC):
    """A database and how it is asked. It holds no connection, so it can go to executors."""

    server: DatabaseServer
    options: ReadOptions = field(default_factory=ReadOptions)

    has_snapshots: ClassVar[bool]
    """Whether sessions can be at a TSO."""

    @abstractmethod
    def take_ts(self) -> int:
        """The present as a TSO. Rows committed later are not in a session at it."""

    @abstractmethod
    def session(self, at: int | None = None) -> DatabaseSession:
        """A new connection whose rows are those of `at`; an error if they are not to be had."""

    @abstractmethod
    def handle(self, session: DatabaseSession, schema: TableSchema) -> Handle | None:
        """How the table's rows are ordered, None if nothing orders them."""

    @abstractmethod
    def bounds(
        self,
        session: DatabaseSession,
        table: UpstreamTable,
        handle: Handle,
        partition: str | None,
        target_bytes: int,
    ) -> Iterator[tuple[str, ...]]:
        """Values of the handle, or of its first columns, in order: where chunks begin and end."""

    @abstractmethod
    def garbage_collection(self) -> GarbageCollection | None:
        """How long the past is kept, as of now; None for a database that shows the present only."""

    @property
    @abstractmethod
    def select(self) -> str:
        """SELECT, with what this server wants beside it."""

    def version(self, session: DatabaseSession) -> str:
        """The server's version, as it says it."""
        return str(session.rows("SELECT VERSION()")[0][0])

    def tables(self, session: DatabaseSession, wanted: TableFilter) -> Listing:
        """The base tables that the filter selects and this user can see."""
        tables, unreadable = [], {}
        for database, name, rows, size in session.rows(_TABLES):
            if database.lower() in SYSTEM_DATABASES or not wanted.matches(database, name):
                continue
            schema = self.schema(session, Name(database, name))
            if isinstance(schema, str):
                unreadable[Name(database, name)] = schema
            else:
                tables.append(UpstreamTable(schema, int(rows or 0), int(size or 0)))
        return Listing(tuple(tables), unreadable)

    def schema(self, session: DatabaseSession, name: Name) -> TableSchema | str:
        """The table as a changefeed's CREATE TABLE would show it, or why it cannot be followed."""
        ((_, statement, *_),) = session.rows(f"SHOW CREATE TABLE {quoted(*name)}")
        change = transition(None, self._as_tidb(statement), name.database, charset=DEFAULT_CHARSET)
        return change.after or change.reason or "The statement makes no table."

    def _as_tidb(self, statement: str) -> str:
        """A CREATE TABLE as TiDB would write it."""
        return statement

    def hidden(self, session: DatabaseSession, names: Iterable[Name]) -> dict[Name, DatabaseError]:
        """Of tables that should be there, those that cannot be read, and why.

        A table that the user has no right to looks in listings as if it did not exist.
        """
        hidden = {}
        for name in names:
            try:
                session.rows(f"SELECT 1 FROM {quoted(*name)} LIMIT 0")
            except DatabaseError as error:
                hidden[name] = error
        return hidden


def handle_values(handle: Handle) -> str:
    """What to SELECT for the columns of a handle."""
    return ", ".join(map(selected, handle.columns))


def source_of(name: Name, partition: str | None, index: str | None = None) -> str:
    """The table, or a partition of it, after FROM; with the index that must be used."""
    where = "" if partition is None else f" PARTITION ({quoted(partition)})"
    by = "" if index is None else f" FORCE INDEX ({quoted(index)})"
    return f"{quoted(*name)}{where}{by}"
