"""Rows of which a message has only the key, completed from the database that they come from.

A changefeed with `large-message-handle-option = "handle-key-only"` sends no more of a large row.
TiDB shows the row as it was at the change's commit_ts (`tidb_snapshot`): so it is exact. Another
database shows the row as it is now: it is right in the end, when the feed has caught up with it.
The executors ask, each task over one connection of its own.
"""

from __future__ import annotations

import json
import re
import struct
import time
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import groupby
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from tidegate.model import Column, LakeError, MySQLType, ValueForm
from tidegate.model.sql import quoted
from tidegate.sql.tables import Name
from tidegate.upstream import errors, server
from tidegate.upstream.server import DatabaseServer

SETTING = "upstream"
KEYS_A_SELECT = 32
"""Rows that are too large for a message are large: few are held at once."""
ATTEMPTS = 5

Key = tuple[str, ...]
Texts = list[str | None]

_MARK = "tidegate-upstream:"


class _Failed(Exception):
    """What went wrong in an executor, in a form that the driver finds in Spark's own error."""

    def __init__(self, reason: str, step: str) -> None:
        self.reason = reason
        self.step = step
        super().__init__(f"{_MARK}{json.dumps([reason, step])}")


def failure_in(error: BaseException) -> LakeError | None:
    """What an executor said of the upstream, if that is why a job failed."""
    found = re.search(re.escape(_MARK) + r"(\[.*\])", str(error))
    return None if found is None else LakeError(*json.loads(found[1]))


def check_upstream(server: DatabaseServer) -> bool:
    """Whether the upstream can show the past; LakeError where it cannot be reached."""
    try:
        with _Session(server) as session:
            return session.has_snapshots
    except _Failed as error:
        raise LakeError(error.reason, error.step) from None


@dataclass(frozen=True, slots=True)
class Completion:
    """Which rows are asked for: of which table, with which columns, by which key.

    `zone` is that of the feed, in which keys are that are TIMESTAMPs.
    """

    server: DatabaseServer
    name: Name
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    zone: str = "UTC"

    def rows(self, keys: pa.Table) -> Iterator[tuple[list[pa.Array], pa.ListArray]]:
        """The columns of keys, and the strings of their rows; NULL where a row is gone.

        `keys` has the strings of the key's columns, and commit_ts. TIMESTAMPs of rows are in UTC.
        """
        if keys.num_rows == 0:
            return
        ordered = keys.sort_by("commit_ts")
        stamps = ordered["commit_ts"].to_pylist()
        texts = zip(*(ordered[n].to_pylist() for n in range(len(self.key))), strict=True)
        with _Session(self.server) as session:
            for found in self.found(session, list(zip(stamps, texts, strict=True))):
                columns = [pa.array(part, pa.string()) for part in zip(*found, strict=True)]
                yield columns, pa.array(found.values(), pa.list_(pa.string()))

    def found(
        self, session: _Session, wanted: Sequence[tuple[int, Key]]
    ) -> Iterator[dict[Key, Texts | None]]:
        """The rows of keys, which are in the order of their commit_ts, some at a time."""
        if not session.has_snapshots:
            yield from (self._some(session, keys, None) for keys in _parts(wanted))
            return
        for ts, group in groupby(wanted, key=lambda each: each[0]):
            for keys in _parts(list(group)):
                yield self._some(session, keys, ts)

    def _some(
        self, session: _Session, keys: Sequence[Key], ts: int | None
    ) -> dict[Key, Texts | None]:
        by_key = {self._key_of(row): row for row in self._select(session, keys, ts)}
        rows: dict[Key, Texts | None] = {}
        for key in keys:
            row = by_key.get(self._as_selected(key))
            if row is None:
                # Equal by the rules of its type, it may be written in another way.
                row = next(iter(self._select(session, [key], ts)), None)
            if row is None and ts is not None:
                raise _Failed(
                    f"The upstream {self.server.address} has no such row of {self.name} at {ts} as "
                    "the feed says was changed then",
                    f"Check that the {SETTING} given is the database of this changefeed",
                )
            rows[key] = row
        return rows

    # --- SQL --------------------------------------------------------------------------------------

    def _select(self, session: _Session, keys: Sequence[Key], ts: int | None) -> Iterator[Texts]:
        listed = ", ".join(map(server.selected, self.columns))
        table = quoted(*self.name)
        names = [quoted(name).replace("%", "%%") for name in self.key]
        one = " AND ".join(f"{name} = %s" for name in names)
        start = f"SELECT {listed} FROM {table}".replace("%", "%%")
        statement = f"{start} WHERE {' OR '.join([f'({one})'] * len(keys))}"
        parameters = [
            _parameter(column, text, self.zone)
            for key in keys
            for column, text in zip(self._key_columns(), key, strict=True)
        ]
        for row in session.select(statement, parameters, ts, self.name):
            yield [
                server.text_of(column, value)
                for column, value in zip(self.columns, row, strict=True)
            ]

    def _key_columns(self) -> list[Column]:
        by_name = {column.name: column for column in self.columns}
        return [by_name[name] for name in self.key]

    def _key_of(self, row: Texts) -> tuple[str | None, ...]:
        names = [column.name for column in self.columns]
        return tuple(row[names.index(name)] for name in self.key)

    def _as_selected(self, key: Key) -> tuple[str | None, ...]:
        """A key of the feed as the upstream writes it."""
        return tuple(
            _in_utc(column, text, self.zone)
            for column, text in zip(self._key_columns(), key, strict=True)
        )


def _parts(wanted: Sequence[tuple[int, Key]]) -> Iterator[list[Key]]:
    for start in range(0, len(wanted), KEYS_A_SELECT):
        yield [key for _, key in wanted[start : start + KEYS_A_SELECT]]


def _parameter(column: Column, text: str, zone: str) -> Any:
    """A value of a key such that the server compares it by the column's own type."""
    form = column.value_form
    if form in (ValueForm.INTEGER, ValueForm.UNSIGNED, ValueForm.YEAR):
        return int(text)
    if form == ValueForm.DECIMAL:
        return Decimal(text)
    if form == ValueForm.FLOAT:
        return struct.unpack("f", struct.pack("f", float(text)))[0]
    if form == ValueForm.DOUBLE:
        return float(text)
    if form == ValueForm.BINARY:
        return b64decode(text)
    return _in_utc(column, text, zone)


def _in_utc(column: Column, text: str, zone: str) -> str:
    own = column.zone or zone
    if column.code != MySQLType.TIMESTAMP or own == "UTC" or text.startswith("0000"):
        return text
    whole, point, fraction = text.partition(".")
    local = datetime.fromisoformat(whole).replace(tzinfo=ZoneInfo(own))
    return f"{local.astimezone(UTC):%Y-%m-%d %H:%M:%S}{point}{fraction}"


# --- talking to the server ------------------------------------------------------------------------


class _Session:
    """A connection that is made when it is needed, and made again when it is lost."""

    def __init__(self, server: DatabaseServer) -> None:
        self._server = server
        self._connection: Any = None
        self._has_snapshots = False
        self._at: int | None = None

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @property
    def has_snapshots(self) -> bool:
        """Whether the server can show the past."""
        self._trying(self._connect)
        return self._has_snapshots

    def select(
        self, statement: str, parameters: Sequence[Any], ts: int | None, name: Name
    ) -> Sequence[tuple[Any, ...]]:
        """The rows of a statement, as of a commit_ts."""

        def ask() -> Sequence[tuple[Any, ...]]:
            self._connect()
            with self._connection.cursor() as cursor:
                if ts is not None and ts != self._at:
                    cursor.execute(f"SET @@tidb_snapshot = '{ts:d}'")
                    self._at = ts
                cursor.execute(statement, parameters)
                rows: Sequence[tuple[Any, ...]] = cursor.fetchall()
                return rows

        found: Sequence[tuple[Any, ...]] = self._trying(ask, name)
        return found

    def _connect(self) -> None:
        if self._connection is None:
            connection = self._server.connect()
            self._connection, self._at = connection, None
            self._has_snapshots = server.has_snapshots(connection)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection.close()

    def _trying(self, ask: Any, name: Name | None = None) -> Any:
        failures = server.driver().err.MySQLError
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return ask()
            except failures as error:
                self._close()
                code = errors.code_of(error)
                if code not in errors.PASSING or attempt == ATTEMPTS:
                    raise self._failure(code, error, name) from None
                time.sleep(0.2 * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _failure(self, code: int, error: Exception, name: Name | None) -> _Failed:
        said = error.args[-1] if error.args else type(error).__name__
        of = "" if name is None else f" about rows of {name}"
        asked = f"The upstream {self._server.address} was asked{of} and said: {said} ({code})"
        if code in errors.SNAPSHOT_LOST:
            return _Failed(
                asked,
                "It no longer keeps the past of these rows: a mirror must not be further behind "
                "than tidb_gc_life_time, so raise that. This table can no longer be completed: "
                f"mirror into a new lake, or start once without the setting {SETTING}, which stops "
                "this table and lets the others go on",
            )
        if code in errors.REFUSED:
            return _Failed(
                asked,
                f"Check user and password in {SETTING}; the user must have the right to SELECT",
            )
        if code in (errors.UNKNOWN_DATABASE, errors.UNKNOWN_COLUMN, errors.UNKNOWN_TABLE):
            return _Failed(
                asked,
                f"Check that the {SETTING} given is the database of this changefeed; one that is "
                "not TiDB must still have the table as it was then. Without the setting the table "
                "stops and the others go on",
            )
        return _Failed(
            asked,
            "Check that it can be reached from here and from Spark's executors, then start the "
            "mirror again: nothing is lost",
        )
