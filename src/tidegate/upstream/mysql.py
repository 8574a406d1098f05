"""MySQL, MariaDB and others that speak like them: the present only, bounds sampled from the key.

They have no TSO: what is loaded is exact only if nobody writes meanwhile. Bounds of a key that
begins with an integer are found by halving its range and asking the optimizer how many rows each
half has, which reads a few pages each time. For other keys one pass goes through the index.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tidegate.model import TableSchema, tso_from_ms
from tidegate.model.sql import quoted
from tidegate.model.types import INTEGERS
from tidegate.upstream.database import (
    DatabaseSession,
    GarbageCollection,
    Handle,
    UpstreamDatabase,
    UpstreamTable,
    handle_values,
    source_of,
)
from tidegate.upstream.predicates import Bound, between

MAX_ROWS = 1_000_000
"""Rows of a chunk at most, about."""
MAX_ESTIMATES = 20_000
"""Questions to the optimizer for one table at most."""
WRITE_SECONDS = 3600
"""How long the server waits for a reader that does not read."""

_ROW_BYTES = 128  # where the server has no estimate
# MariaDB's JSON is a text with a check.
_JSON = re.compile(
    r"(`(?:[^`]|``)+`) longtext(?: CHARACTER SET \w+)?(?: COLLATE \w+)?"
    r"((?: (?:NOT NULL|DEFAULT NULL))*)(?: DEFAULT \S+)?(?: COMMENT '(?:[^']|'')*')?"
    r" CHECK \(json_valid\(\1\)\)"
)


@dataclass(frozen=True)
class MySQL(UpstreamDatabase):
    """A server without TiDB's statements."""

    has_snapshots: ClassVar[bool] = False

    def take_ts(self) -> int:
        """The server's clock, in a TSO's form."""
        with DatabaseSession(self.server) as session:
            ((seconds,),) = session.rows("SELECT UNIX_TIMESTAMP(NOW(3))")
        return tso_from_ms(round(float(seconds) * 1000))

    def session(self, at: int | None = None) -> DatabaseSession:
        session = DatabaseSession(self.server, at)
        # A reader that writes files between two batches may take longer than the default, a minute.
        session.rows(f"SET SESSION net_write_timeout = {WRITE_SECONDS}")
        return session

    def handle(self, session: DatabaseSession, schema: TableSchema) -> Handle | None:
        """The primary key, else the first unique key without NULLs: InnoDB stores rows by it."""
        indexes = [index for index in schema.indexes or () if index.identifies and index.columns]
        by_name = {column.name: column for column in schema.carried}
        for index in sorted(indexes, key=lambda index: not index.primary):
            columns = [by_name.get(name) for name in index.columns]
            usable = [column for column in columns if column is not None]
            if len(usable) == len(columns) and not any(column.nullable for column in usable):
                return Handle(tuple(usable), "PRIMARY" if index.primary else index.name)
        return None

    def bounds(
        self,
        session: DatabaseSession,
        table: UpstreamTable,
        handle: Handle,
        partition: str | None,
        target_bytes: int,
    ) -> Iterator[tuple[str, ...]]:
        return _Sampling(session, table, handle, partition, target_bytes).bounds()

    def garbage_collection(self) -> GarbageCollection | None:
        return None

    @property
    def select(self) -> str:
        return "SELECT"

    def _as_tidb(self, statement: str) -> str:
        return _JSON.sub(r"\1 json\2", statement)


class _Sampling:
    """The search for the bounds of one table, or of one of its partitions."""

    def __init__(
        self,
        session: DatabaseSession,
        table: UpstreamTable,
        handle: Handle,
        partition: str | None,
        target_bytes: int,
    ) -> None:
        self._session = session
        self._columns = handle.columns
        self._values = handle_values(handle)
        self._from = f"FROM {source_of(table.name, partition, handle.index)}"
        self._order = ", ".join(quoted(column.name) for column in handle.columns)
        row_bytes = table.bytes / table.rows if table.rows else 0
        self.rows = max(1, min(MAX_ROWS, int(target_bytes / max(row_bytes, _ROW_BYTES))))
        self._estimates = 0

    def bounds(self) -> Iterator[Bound]:
        if self._estimate(None, None) <= self.rows:
            return
        first = self._columns[0]
        if first.code not in INTEGERS:
            yield from self._stepped(None, None)
            return
        name = quoted(first.name)
        edges = self._session.values(
            f"SELECT MIN({name}), MAX({name}) {self._from}", [first, first]
        )
        if edges[0][0] is not None and edges[0][1] is not None:
            low, high = int(edges[0][0]), int(edges[0][1])
            yield from self._halved(low, high + 1)

    def _halved(self, low: int, high: int) -> Iterator[Bound]:
        """Bounds within the values [low, high) of an integer, where enough rows are before them."""
        before = 0
        for start, end, rows in self._leaves(low, high):
            if before and before + rows > self.rows:
                yield (str(start),)
                before = 0
            before += rows
            if end - start == 1 and rows > 2 * self.rows and len(self._columns) > 1:
                yield from self._stepped((str(start),), (str(end),))

    def _leaves(self, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """Neighbouring parts of [low, high), in order, each with about how many rows it has."""
        pending = [(low, high)]
        while pending:
            low, high = pending.pop()
            rows = self._estimate((str(low),), (str(high),))
            if high - low > 1 and rows > self.rows and self._estimates < MAX_ESTIMATES:
                middle = (low + high) // 2
                pending += [(middle, high), (low, middle)]
            else:
                yield low, high, rows

    def _stepped(self, low: Bound | None, high: Bound | None) -> Iterator[Bound]:
        """Every n-th row of the index in a range, after the first one of it."""
        strict = False
        while True:
            where = between(self._columns, low, high, strict=strict)
            found = self._session.values(
                f"SELECT {self._values} {self._from}{where} ORDER BY {self._order} "
                f"LIMIT 1 OFFSET {self.rows - strict}",
                self._columns,
            )
            if not found:
                return
            low, strict = tuple(str(value) for value in found[0]), True
            yield low

    def _estimate(self, low: Bound | None, high: Bound | None) -> int:
        """About how many rows there are, by the optimizer."""
        self._estimates += 1
        where = between(self._columns, low, high)
        plan = self._session.named(
            f"EXPLAIN FORMAT=TRADITIONAL SELECT {self._order} {self._from}{where}"
        )
        return max(int(row["rows"] or 0) for row in plan)
