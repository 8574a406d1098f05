"""Tables in memory: what a mirror of a feed must come to, kept as plainly as can be.

A table is its schema and its rows by handle key, or by the whole row where it has none. Rows are put
and taken away idempotently; DDL goes by `tidegate.sql.ddl.transition`. A table that a statement
makes unmirrored (EXCHANGE PARTITION, RECOVER TABLE) is stopped: it is there no more, whatever comes.
"""

import sqlite3
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.model.schema import ABSENT, Column, TableSchema
from tidegate.model.types import MySQLType
from tidegate.sql.ddl import ChangeKind, TableChange
from tidegate.sql.tables import Effect, TableBook
from tidegate.workload import Truth

Row = dict[str, str | None]
Name = tuple[str, str]
INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "year")


@dataclass
class Table:
    """A table's schema and rows."""

    schema: TableSchema
    rows: dict[tuple[str | None, ...], Row] = field(default_factory=dict)

    def key(self, row: Mapping[str, str | None]) -> tuple[str | None, ...]:
        names = self.schema.handle_key() or self.carried
        return tuple(row.get(name) for name in names)

    @property
    def carried(self) -> tuple[str, ...]:
        """The columns that rows carry: all but virtual ones."""
        return self.schema.carried_names

    def alter(self, change: TableChange) -> None:
        """Gives every row what the columns of the new schema hold."""
        assert change.after is not None
        old = {entry.after.name: entry for entry in change.columns if entry.after is not None}
        self.schema = change.after
        rows = []
        for row in self.rows.values():
            made: Row = {}
            for name in self.carried:
                entry = old.get(name)
                if entry is None:
                    made[name] = row[name]
                elif entry.before is not None:
                    made[name] = row[entry.before.name]
                else:
                    assert entry.fill is not ABSENT, f"what {name} holds is not told"
                    made[name] = entry.fill
            rows.append(made)
        self.rows = {self.key(row): row for row in rows}

    def prune(self, condition: str) -> None:
        """Takes away the rows for which a condition of SQL is true."""
        names = self.carried
        connection = sqlite3.connect(":memory:")
        try:
            listed = ", ".join(f"`{name}`" for name in names)
            connection.execute(f"CREATE TABLE t ({listed})")
            marks = ", ".join("?" * len(names))
            keys = list(self.rows)
            for number, key in enumerate(keys, 1):
                values = [
                    _sql_value(self.schema.column(name), self.rows[key][name]) for name in names
                ]
                connection.execute(
                    f"INSERT INTO t (rowid, {listed}) VALUES (?, {marks})", [number, *values]
                )
            gone = connection.execute(f"SELECT rowid FROM t WHERE {condition}").fetchall()
        finally:
            connection.close()
        for (number,) in gone:
            del self.rows[keys[number - 1]]


def _sql_value(column: Column | None, text: str | None) -> str | int | None:
    assert column is not None
    return int(text) if text is not None and column.base_type in INTEGERS else text


class TableModel:
    """All tables of a feed."""

    def __init__(self) -> None:
        self.tables: dict[Name, Table] = {}
        self.stopped: set[Name] = set()
        self._book = TableBook()

    def copy(self) -> "TableModel":
        """Another one like this, as a lake keeps its tables over a restart."""
        other = TableModel()
        other.tables = {
            name: Table(table.schema, dict(table.rows)) for name, table in self.tables.items()
        }
        other.stopped = set(self.stopped)
        other._book = self._book.copy()
        return other

    def state(self) -> dict[Name, dict[tuple[str | None, ...], Row]]:
        """The rows of every table by their keys."""
        return {name: dict(table.rows) for name, table in self.tables.items()}

    # --- rows -------------------------------------------------------------------------------------

    def put(self, name: Name, after: Row, before: Row | None = None) -> None:
        """A row as it is now; `before`, if its key was another."""
        table = self._table(name)
        if table is None:
            return
        missing = set(table.carried) - set(after)
        assert not missing, f"{name} lacks {missing}"
        if before is not None and set(table.schema.handle_key()) <= set(before):
            table.rows.pop(table.key(before), None)
        table.rows[table.key(after)] = {column: after[column] for column in table.carried}

    def take(self, name: Name, before: Row) -> None:
        """A row is gone."""
        table = self._table(name)
        if table is not None:
            table.rows.pop(table.key(before), None)

    def _table(self, name: Name) -> Table | None:
        if name in self.stopped:
            return None
        assert name in self.tables, f"a row of {name}, which is not there"
        return self.tables[name]

    # --- DDL --------------------------------------------------------------------------------------

    def run(self, query: str, database: str) -> list[Effect]:
        """A statement; `database` is the one that the feed names beside it."""
        effects = self._book.run(query, database)
        for effect in effects:
            _ACTIONS.get(effect.kind, TableModel._nothing)(self, effect)
        return effects

    def _nothing(self, effect: Effect) -> None:
        if effect.change.after is not None and effect.name in self.tables:
            self.tables[effect.name].alter(effect.change)

    def _create(self, effect: Effect) -> None:
        assert effect.change.after is not None
        self.stopped.discard(effect.name)
        self.tables.setdefault(effect.name, Table(effect.change.after))

    def _drop(self, effect: Effect) -> None:
        self.tables.pop(effect.name, None)
        self.stopped.discard(effect.name)

    def _rename(self, effect: Effect) -> None:
        assert effect.new_name is not None
        table = self.tables.pop(effect.name)
        table.alter(effect.change)
        self.tables[effect.new_name] = table

    def _truncate(self, effect: Effect) -> None:
        self.tables[effect.name].rows.clear()

    def _prune(self, effect: Effect) -> None:
        assert effect.change.removed is not None
        self.tables[effect.name].prune(effect.change.removed)
        self._nothing(effect)

    def _stop(self, effect: Effect) -> None:
        self.tables.pop(effect.name, None)
        self.stopped.add(effect.name)


_ACTIONS = {
    ChangeKind.CREATED: TableModel._create,
    ChangeKind.DROPPED: TableModel._drop,
    ChangeKind.RENAMED: TableModel._rename,
    ChangeKind.TRUNCATED: TableModel._truncate,
    ChangeKind.PRUNED: TableModel._prune,
    ChangeKind.UNMIRRORED: TableModel._stop,
}


def model_of(truth: Truth) -> TableModel:
    """What a workload knows to be true."""
    model = TableModel()
    for name, told in truth.tables.items():
        names = told.schema.column_names
        rows = {key: dict(zip(names, row, strict=True)) for key, row in told.rows.items()}
        model.tables[name] = Table(told.schema, rows)
    return model


def state_of(truth: Truth) -> dict[Name, dict[tuple[str | None, ...], Row]]:
    """The same, as `TableModel.state` has it."""
    return model_of(truth).state()


# --- as SELECT shows it ---------------------------------------------------------------------------


def selected(table: Table, columns: Iterable[Mapping[str, Any]]) -> list[list[str | None]]:
    """The rows as `final.json` has them, in the order of their texts; without virtual columns.

    Enum and set values are names there and BIT is hexadecimal, as are binary values.
    """
    named = [(table.schema.column(entry["n"]), entry["hex"]) for entry in columns]
    rows = [
        [
            _shown(column, row[column.name], in_hex)
            for column, in_hex in named
            if column and column.name in row
        ]
        for row in table.rows.values()
    ]
    return sorted(rows, key=by_text)


def by_text(row: list[str | None]) -> list[tuple[bool, str]]:
    return [(value is not None, value or "") for value in row]


def _shown(column: Column, text: str | None, in_hex: bool) -> str | None:
    if text is None:
        return None
    if column.code == MySQLType.BIT:
        return int(text).to_bytes(((column.length or 1) + 7) // 8, "big").hex()
    if column.code == MySQLType.ENUM:
        return "" if text == "0" else column.elements[int(text) - 1]
    if column.code == MySQLType.SET:
        return ",".join(name for bit, name in enumerate(column.elements) if int(text) >> bit & 1)
    return b64decode(text).hex() if in_hex else text
