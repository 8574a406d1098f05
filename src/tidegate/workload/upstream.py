"""A database that a workload writes to: tables in memory, and a record of every change.

Schemas follow from the statements by `tidegate.sql.ddl`, as they do in a consumer; what a
statement does to rows is told by the workload itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import itemgetter
from typing import Any

import pyarrow as pa

from tidegate.model import TableSchema
from tidegate.model.tso import LOGICAL_BITS, physical_ms
from tidegate.sql.ddl import TableChange, transition
from tidegate.sql.definition import Charset
from tidegate.workload.clock import Clock
from tidegate.workload.recorder import Recorder
from tidegate.workload.truth import Row, Truth, TruthTable

UTF8MB4 = Charset("utf8mb4", "utf8mb4_bin")
_FIRST_TABLE_ID = 100


class Table:
    """A table; `rows` are by handle key, a plain text where the key is one column."""

    def __init__(self, schema: TableSchema, subject: int) -> None:
        self.rows: dict[Any, Row] = {}
        self.redefine(schema, subject)

    def redefine(self, schema: TableSchema, subject: int) -> None:
        """Gives the table another schema."""
        self.schema = schema
        self.subject = subject
        self.place = {name: place for place, name in enumerate(schema.column_names)}
        self.key: Callable[[Row], Any] = itemgetter(
            *(self.place[name] for name in schema.handle_key())
        )

    @property
    def name(self) -> tuple[str, str]:
        return self.schema.database, self.schema.table

    def truth(self) -> TruthTable:
        """The table as it is now, for keeps."""
        single = len(self.schema.handle_key()) == 1
        rows = {((key,) if single else key): row for key, row in self.rows.items()}
        return TruthTable(published(self.schema), rows)


class Upstream:
    """Tables, and (with `recorder`) everything that happens to them.

    Between two steps of a workload there is exactly one transaction (`begin`, then rows) or one
    statement.
    """

    def __init__(self, rows: int, rate: int, recorder: Recorder | None = None) -> None:
        self.rows = rows
        self.changes = 0
        """How many row changes there have been."""
        self.commit_ts = 0
        self.tables: dict[tuple[str, str], Table] = {}
        self._clock = Clock(rate)
        self._recorder = recorder
        self._row = None if recorder is None else recorder.row
        self._table_ids = _FIRST_TABLE_ID

    @property
    def room(self) -> int:
        """How many row changes are left to make."""
        return self.rows - self.changes

    @property
    def now_ms(self) -> int:
        """The time of the transaction, in milliseconds since 1970 UTC."""
        return physical_ms(self.commit_ts)

    @property
    def next_ts(self) -> int:
        """When the next transaction or statement will be."""
        return self._clock.next(self.changes)

    def truth(self) -> Truth:
        """The tables as they are now."""
        return Truth({name: table.truth() for name, table in self.tables.items()})

    def end(self) -> None:
        """Says with a last watermark that all is complete."""
        if self._recorder is not None:
            self._recorder.watermark(self._clock.last_mark())

    # --- rows -------------------------------------------------------------------------------------

    def begin(self) -> int:
        """The next transaction; gives its commit timestamp."""
        self.commit_ts = ts = self._clock.tick(self.changes)
        marks = self._clock.marks(ts)
        if marks and self._recorder is not None:
            for mark in marks:
                self._recorder.watermark(mark)
        return ts

    def insert(self, table: Table, row: Row) -> None:
        table.rows[table.key(row)] = row
        self.changes += 1
        if self._row is not None:
            self._row(("insert", self.commit_ts, table.subject, row, None))

    def update(self, table: Table, before: Row, after: Row) -> None:
        """An update, also of the key."""
        old, new = table.key(before), table.key(after)
        if old != new:
            del table.rows[old]
        table.rows[new] = after
        self.changes += 1
        if self._row is not None:
            self._row(("update", self.commit_ts, table.subject, after, before))

    def delete(self, table: Table, row: Row) -> None:
        del table.rows[table.key(row)]
        self.changes += 1
        if self._row is not None:
            self._row(("delete", self.commit_ts, table.subject, None, row))

    # --- statements -------------------------------------------------------------------------------

    def create_database(self, name: str) -> None:
        ts = self.begin()
        if self._recorder is not None:
            self._recorder.ddl(ts, f"CREATE DATABASE `{name}`", name)

    def create_table(self, database: str, query: str) -> Table:
        """CREATE TABLE in TiDB's spelling."""
        ts = self.begin()
        after = self._after(_transition(None, query, database), ts, self._new_table_id())
        table = Table(after, 0)
        self.tables[table.name] = table
        self._redefine(table, after)
        self._record(ts, query, database, after, None)
        return table

    def alter(self, table: Table, query: str, rewrite: Callable[[Row], Row] | None = None) -> None:
        """A statement that changes a table's schema; `rewrite` is what it does to a row."""
        ts = self.begin()
        before = table.schema
        change = _transition(before, query, before.database)
        after = self._after(change, ts, before.table_id or 0)
        self._redefine(table, after)
        if rewrite is not None:
            rows = (rewrite(row) for row in table.rows.values())
            table.rows = {table.key(row): row for row in rows}
        self._record(ts, query, before.database, after, before)

    def truncate(self, table: Table) -> None:
        """TRUNCATE TABLE: the table gets another id, its schema stays."""
        ts = self.begin()
        before = table.schema
        after = replace(before, table_id=self._new_table_id())
        table.rows = {}
        self._redefine(table, after)
        self._record(ts, f"TRUNCATE TABLE `{before.table}`", before.database, after, before)

    def rename(self, table: Table, new: str) -> None:
        """RENAME TABLE: the version of the schema stays."""
        ts = self.begin()
        before = table.schema
        after = replace(before, table=new)
        del self.tables[table.name]
        self._redefine(table, after)
        self.tables[table.name] = table
        query = f"RENAME TABLE `{before.table}` TO `{new}`"
        self._record(ts, query, before.database, after, before)

    def drop(self, table: Table) -> None:
        """DROP TABLE."""
        ts = self.begin()
        schema = table.schema
        del self.tables[table.name]
        query = f"DROP TABLE `{schema.database}`.`{schema.table}`"
        self._record(ts, query, schema.database, schema, schema)

    def _new_table_id(self) -> int:
        self._table_ids += 2  # a DDL job takes one, too
        return self._table_ids

    def _after(self, change: TableChange, ts: int, table_id: int) -> TableSchema:
        assert change.after is not None, change
        # A schema's version is a little older than the commit of its statement.
        return replace(change.after, table_id=table_id, version=ts - (1 << LOGICAL_BITS))

    def _redefine(self, table: Table, schema: TableSchema) -> None:
        subject = 0 if self._recorder is None else self._recorder.table(schema).number
        table.redefine(schema, subject)

    def _record(
        self,
        ts: int,
        query: str,
        database: str,
        after: TableSchema | None,
        before: TableSchema | None,
    ) -> None:
        if self._recorder is not None:
            told = [None if schema is None else published(schema) for schema in (after, before)]
            self._recorder.ddl(ts, query, database, *told)


def published(schema: TableSchema) -> TableSchema:
    """A schema as a feed tells it: the character set of the table itself is not part of it."""
    return replace(schema, charset=None, collation=None)


def _transition(before: TableSchema | None, query: str, database: str) -> TableChange:
    return transition(before, query, database, charset=UTF8MB4)


class Scripted:
    """A workload that is a script: steps, each of which is one transaction or one statement."""

    name = ""

    def __init__(self, rows: int, seed: int, rate: int) -> None:
        self.rows = rows
        self.seed = seed
        self.rate = rate

    def steps(self, upstream: Upstream) -> Iterator[None]:
        """Writes to the upstream; stops after every transaction and every statement."""
        raise NotImplementedError

    def batches(self) -> Iterator[pa.RecordBatch]:
        recorder = Recorder()
        upstream = Upstream(self.rows, self.rate, recorder)
        for _ in self.steps(upstream):
            if recorder.is_full:
                yield recorder.batch()
        upstream.end()
        yield recorder.batch()

    def final(self) -> Truth:
        upstream = Upstream(self.rows, self.rate)
        for _ in self.steps(upstream):
            pass
        return upstream.truth()

    def at(self, commit_ts: int) -> Truth:
        upstream = Upstream(self.rows, self.rate)
        steps = self.steps(upstream)
        while upstream.next_ts <= commit_ts and next(steps, self) is not self:
            pass
        return upstream.truth()
