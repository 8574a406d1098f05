"""The tables of a feed in memory: all its changes, applied one after the other in commit order.

For feeds of moderate size, to compare a lake with. It shares with the mirror what the feed layer
says of order and statements, and nothing of how tables are written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from tidegate.changefeed.receive.gate import Gate
from tidegate.changefeed.receive.order import Step, steps
from tidegate.changefeed.receive.release import EVERYTHING
from tidegate.changefeed.receive.schema_cache import SchemaCache
from tidegate.model import ABSENT, Delete, Insert, TableSchema, Update
from tidegate.model.sql import quoted
from tidegate.sql.casts import convert
from tidegate.sql.ddl import ChangeKind, TableChange
from tidegate.sql.ddl_names import ddl_id
from tidegate.sql.tables import Effect, Name, TableBook
from tidegate.wire import EventReader

Row = tuple[str | None, ...]

_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "year")


@dataclass(slots=True)
class ReplayedTable:
    """A table: its schema, and its rows by handle key, values in the order of `names`."""

    schema: TableSchema
    rows: dict[Row, Row] = field(default_factory=dict)
    skipped: str = ""
    """Why its rows cannot be told from the feed alone."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that rows carry."""
        return self.schema.carried_names

    def put(self, after: Mapping[str, str | None]) -> None:
        """A row as it is now."""
        self.rows[self._key(after)] = tuple(after.get(name) for name in self.names)

    def take(self, before: Mapping[str, str | None]) -> None:
        """A row is gone."""
        self.rows.pop(self._key(before), None)

    def _key(self, row: Mapping[str, str | None]) -> Row:
        return tuple(row.get(name) for name in self.schema.handle_key())

    def alter(self, change: TableChange) -> None:
        """Gives every row what the columns of the new schema hold."""
        assert change.after is not None
        old = {entry.after.name: entry for entry in change.columns if entry.after is not None}
        names, self.schema = self.names, change.after
        rows = [dict(zip(names, row, strict=True)) for row in self.rows.values()]
        self.rows = {}
        if rows and change.guesses:
            self.skipped = change.guesses[0]
        for row in rows:
            made: dict[str, str | None] = {}
            for name in self.names:
                entry = old.get(name)
                if entry is None:
                    made[name] = row.get(name)
                elif entry.before is not None and entry.after is not None:
                    was = row.get(entry.before.name)
                    made[name] = None if was is None else convert(entry.before, entry.after, was)
                else:
                    made[name] = None if entry.fill is ABSENT else entry.fill
            self.put(made)

    def prune(self, condition: str) -> None:
        """Takes away the rows for which a condition of SQL is true."""
        try:
            gone = self._meeting(condition)
        except (sqlite3.Error, OverflowError):  # it has a function, or a number, that SQLite lacks
            self.skipped = "which rows its partitions held cannot be told here"
            return
        for key in gone:
            del self.rows[key]

    def _meeting(self, condition: str) -> list[Row]:
        is_integer = [
            column.base_type in _INTEGERS
            for column in self.schema.columns
            if column.generated != "virtual"
        ]
        listed = ", ".join(map(quoted, self.names))
        marks = ", ".join("?" * len(self.names))
        keys = list(self.rows)
        connection = sqlite3.connect(":memory:")
        try:
            for name, function in _FUNCTIONS.items():
                connection.create_function(name, -1, function, deterministic=True)
            connection.execute(f"CREATE TABLE t ({listed})")
            connection.executemany(
                f"INSERT INTO t (rowid, {listed}) VALUES (?, {marks})",
                (
                    [number, *_sql_values(self.rows[key], is_integer)]
                    for number, key in enumerate(keys, 1)
                ),
            )
            found = connection.execute(f"SELECT rowid FROM t WHERE {condition}").fetchall()
        finally:
            connection.close()
        return [keys[number - 1] for (number,) in found]


def _of_moment(part: Callable[[datetime], int]) -> Callable[[str | None], int | None]:
    """A function of SQL that gives a part of a date; NULL of what is none."""

    def function(text: str | None) -> int | None:
        moment = _moment(text)
        return None if moment is None else part(moment)

    return function


def _moment(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text or "").replace(tzinfo=UTC)
    except ValueError:
        return None


def _days_between(last: str | None, first: str | None) -> int | None:
    moments = _moment(last), _moment(first)
    if moments[0] is None or moments[1] is None:
        return None
    return (moments[0].date() - moments[1].date()).days


# Those of the conditions that tell a partition's rows, which SQLite does not have.
_FUNCTIONS: dict[str, Callable[..., int | None]] = {
    "YEAR": _of_moment(lambda moment: moment.year),
    "QUARTER": _of_moment(lambda moment: (moment.month + 2) // 3),
    "MONTH": _of_moment(lambda moment: moment.month),
    "DAY": _of_moment(lambda moment: moment.day),
    "DAYOFMONTH": _of_moment(lambda moment: moment.day),
    "DAYOFWEEK": _of_moment(lambda moment: moment.isoweekday() % 7 + 1),
    "DAYOFYEAR": _of_moment(lambda moment: moment.timetuple().tm_yday),
    "WEEKDAY": _of_moment(datetime.weekday),
    "HOUR": _of_moment(lambda moment: moment.hour),
    "MINUTE": _of_moment(lambda moment: moment.minute),
    "SECOND": _of_moment(lambda moment: moment.second),
    "UNIX_SECONDS": _of_moment(lambda moment: int(moment.timestamp())),
    "DATEDIFF": _days_between,
}


def _sql_values(row: Row, is_integer: Sequence[bool]) -> list[str | int | None]:
    return [
        int(text) if integer and text is not None else text
        for text, integer in zip(row, is_integer, strict=True)
    ]


def _is_of_one_commit(ddl: dict[str, Any], step: Step) -> bool:
    """Whether a step goes on with another statement of the same commit_ts."""
    is_next = step.ddl is not None and step.rows.num_rows == 0
    return is_next and step.ddl is not None and step.ddl["commit_ts"] == ddl["commit_ts"]


class Replay:
    """Takes the changes of a feed in; `tables` are what they come to, by name."""

    def __init__(self) -> None:
        self.tables: dict[Name, ReplayedTable] = {}
        self._by_folded: dict[tuple[str, str], Name] = {}
        self._book = TableBook()
        self._cache = SchemaCache()

    def run(self, batches: Iterable[pa.RecordBatch], until: int | None = None) -> None:
        """All changes up to an instant, in commit order."""
        kept, has_marks = [], False
        release = Gate().release(EVERYTHING if until is None else until)
        for batch in batches:
            self._cache.add(batch)
            has_marks = has_marks or "watermark" in batch["kind"].unique().to_pylist()
            kept.append(release.split(batch).due)
        if not kept:
            return
        statements: list[dict[str, Any]] = []
        for step in steps(pa.concat_tables(kept), by_arrival=not has_marks):
            if statements and not _is_of_one_commit(statements[-1], step):
                self._statements(statements)
                statements = []
            self._rows(step.rows)
            if step.ddl is not None:
                statements.append(step.ddl)
        self._statements(statements)

    def _rows(self, rows: pa.Table) -> None:
        reader = EventReader(self._cache.shapes)
        for batch in rows.combine_chunks().to_batches():
            for event in reader.events(batch):
                assert isinstance(event, Insert | Update | Delete)
                table = self._table(Name(event.database, event.table))
                if table.skipped:
                    continue
                if isinstance(event, Update) and event.before:
                    moved = {**event.after, **event.before}
                    table.take(moved)
                if isinstance(event, Delete):
                    table.take(event.before)
                else:
                    table.put(event.after)

    def _table(self, name: Name) -> ReplayedTable:
        known = self._by_folded.get(name.folded)
        if known is not None:
            return self.tables[known]
        schema = self._cache.latest(*name) or TableSchema(database=name.database, table=name.table)
        return self._add(name, ReplayedTable(schema, skipped="its CREATE is not in the capture"))

    def _add(self, name: Name, table: ReplayedTable) -> ReplayedTable:
        self._by_folded[name.folded] = name
        self.tables[name] = table
        return table

    def _remove(self, name: Name) -> ReplayedTable | None:
        known = self._by_folded.pop(name.folded, None)
        return None if known is None else self.tables.pop(known)

    # --- statements -------------------------------------------------------------------------------

    def _statements(self, rows: Sequence[dict[str, Any]]) -> None:
        """Statements of one commit_ts."""
        for row in self._book.arrange(rows, ddl_id, topic_of=lambda row: row["topic"]):
            effects = self._book.run(
                row["ddl"]["query"],
                row["database"] or "",
                row["table"],
                self.tables,
                schemas=row["schema"],
                commit_ts=row["commit_ts"],
            )
            for effect in effects:
                self._effect(effect)

    def _effect(self, effect: Effect) -> None:
        known = self._by_folded.get(effect.name.folded)
        table = None if known is None else self.tables[known]
        after = effect.change.after
        if effect.kind is ChangeKind.CREATED and after is not None:
            if table is None or table.skipped:
                self._remove(effect.name)
                no_key = "" if after.handle_key() else "it has no key"
                self._add(effect.name, ReplayedTable(after, skipped=no_key))
        elif effect.kind is ChangeKind.DROPPED:
            self._remove(effect.name)
        elif effect.kind is ChangeKind.UNMIRRORED:
            found = table or self._table(effect.name)
            found.skipped = effect.change.reason or effect.change.what
        elif table is not None:
            self._change(table, effect)

    def _change(self, table: ReplayedTable, effect: Effect) -> None:
        if effect.kind is ChangeKind.TRUNCATED:
            table.rows.clear()
        elif effect.kind is ChangeKind.PRUNED and effect.change.removed is not None:
            table.prune(effect.change.removed)
        if effect.change.after is not None:
            table.alter(effect.change)
        if effect.new_name is not None:
            self._remove(effect.name)
            self._add(effect.new_name, table)
