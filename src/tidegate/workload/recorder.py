"""What happens in an upstream, collected in plain lists and made a change batch at once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, NamedTuple

import pyarrow as pa

from tidegate.model import TableSchema, action_code, canal_ddl_type
from tidegate.wire import CHANGE_SCHEMA
from tidegate.wire.batch.shapes import shape_columns, shape_id
from tidegate.workload.truth import Row

BATCH_EVENTS = 10_000


@dataclass(frozen=True, slots=True)
class Subject:
    """What events are about: a table with one schema; or, without a shape, what a DDL names.

    `number` is its place among all of them.
    """

    number: int
    database: str | None = None
    table: str | None = None
    table_id: int | None = None
    version: int | None = None
    shape: int | None = None
    columns: str | None = None


class _Entry(NamedTuple):
    kind: str
    commit_ts: int
    subject: int
    after: Row | None
    before: Row | None


class Recorder:
    """Collects events until `batch` takes them."""

    def __init__(self) -> None:
        self._entries: list[tuple[Any, ...]] = []
        self._ddl: dict[int, dict[str, Any]] = {}
        self._schemas: dict[int, str] = {}
        self._subjects = [Subject(0)]
        self.row = self._entries.append
        """Takes a row change: (kind, commit_ts, number of its subject, after, before)."""

    @property
    def is_full(self) -> bool:
        """Whether there is enough for a batch."""
        return len(self._entries) >= BATCH_EVENTS

    def table(self, schema: TableSchema) -> Subject:
        """What the rows of a table are about from now on."""
        return self._subject(
            schema.database,
            schema.table,
            schema.table_id,
            schema.version,
            shape_id(schema),
            shape_columns(schema),
        )

    def _subject(self, *facts: Any) -> Subject:
        subject = Subject(len(self._subjects), *facts)
        self._subjects.append(subject)
        return subject

    def watermark(self, commit_ts: int) -> None:
        """Nothing at or before `commit_ts` follows."""
        self._entries.append(_Entry("watermark", commit_ts, 0, None, None))

    def ddl(
        self,
        commit_ts: int,
        query: str,
        database: str,
        after: TableSchema | None = None,
        before: TableSchema | None = None,
    ) -> None:
        """A statement, with the schema of its table after and before it."""
        place = len(self._entries)
        told = () if after is None else (after.table, after.table_id, after.version)
        subject = self._subject(database, *told)
        self._entries.append(_Entry("ddl", commit_ts, subject.number, None, None))
        code = action_code("", query)
        word = None if code is None else canal_ddl_type(code)
        self._ddl[place] = {"type": word, "code": code, "query": query}
        members = {"tableSchema": after, "preTableSchema": before}
        schemas = {name: told.to_object() for name, told in members.items() if told is not None}
        if schemas:
            self._schemas[place] = json.dumps(schemas, ensure_ascii=False, separators=(",", ":"))

    def batch(self) -> pa.RecordBatch:
        """What was collected since the last time, as one change batch."""
        kinds, times, subjects, after, before = (
            zip(*self._entries, strict=True) if self._entries else ((),) * 5
        )
        used = (self._subjects[number] for number in sorted(set(subjects)))
        shapes = list({subject.shape: subject for subject in used if subject.columns}.values())
        head, count = len(shapes), len(self._entries)
        about = pa.array([*(subject.number for subject in shapes), *subjects], pa.int32())
        of_rows = pa.array([*([0] * head), *subjects], pa.int32())
        none = [None] * head
        ddl: list[dict[str, Any] | None] = [None] * (head + count)
        schemas: list[str | None] = [*(subject.columns for subject in shapes), *([None] * count)]
        for place, statement in self._ddl.items():
            ddl[head + place] = statement
        for place, schema in self._schemas.items():
            schemas[head + place] = schema
        columns = {
            "event": pa.array([-1] * head + [0] * count, pa.int32()),
            "kind": pa.array(["schema"] * head + list(kinds), pa.string()),
            "commit_ts": pa.array([*none, *times], pa.int64()),
            "database": self._told("database", pa.string()).take(about),
            "table": self._told("table", pa.string()).take(about),
            "table_id": self._told("table_id", pa.int64()).take(of_rows),
            "shape": self._told("shape", pa.int64()).take(about),
            "schema_version": self._told("version", pa.int64()).take(of_rows),
            "after": _lists([*none, *after]),
            "before": _lists([*none, *before]),
            "ddl": pa.array(ddl, CHANGE_SCHEMA.field("ddl").type),
            "schema": pa.array(schemas, pa.string()),
            "flags": pa.array([0] * (head + count), pa.int32()),
        }
        self._entries.clear()
        self._ddl.clear()
        self._schemas.clear()
        return change_batch(columns)

    def _told(self, fact: str, kind: pa.DataType) -> pa.Array:
        return pa.array([getattr(subject, fact) for subject in self._subjects], kind)


def _lists(rows: list[Row | None]) -> pa.Array:
    """Rows as a list array; all their values at once, which is several times faster than rows."""
    values = pa.array(list(chain.from_iterable(filter(None, rows))), pa.string())
    ends = accumulate((0 if row is None else len(row) for row in rows), initial=0)
    return pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()),
        values,
        type=CHANGE_SCHEMA.field("after").type,
        mask=pa.array([row is None for row in rows], pa.bool_()),
    )


def change_batch(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """A change batch of these columns; all others are null."""
    count = len(columns["kind"])
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(count, field.type)
        for field in CHANGE_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA)
