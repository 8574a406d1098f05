"""Table schemas by (database, table, version): which rows can be read now, and which must wait.

Only the rows of the Simple protocol name a schema version; its BOOTSTRAP and DDL messages bring the
schemas. A consumer that starts from the beginning has every schema before its rows; one that starts
in the middle sees rows first, and those wait for the next BOOTSTRAP ("Message consumption methods"
in TiCDC's Simple protocol document). Rows of other protocols carry all they need and never wait.
Nothing is kept of the rows themselves: they stay where they are, in the caller's log.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.changefeed.receive.gate import ROW_KINDS
from tidegate.model import Position, SchemaNotSeen, TableSchema
from tidegate.sql.ddl_names import ddl_tables
from tidegate.wire.batch.shapes import Shape, ShapeBook

_STATE_VERSION = 1
_KEY = ("database", "table", "schema_version")
_POSITION = ("topic", "partition", "offset", "event")


class SchemaKey(NamedTuple):
    """A version of a table's schema; RENAME gives a table a new name but no new version."""

    database: str
    table: str
    version: int

    def __str__(self) -> str:
        return f"{self.database}.{self.table} version {self.version}"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rows that wait for one schema: how many, where the first is, since when, in seconds."""

    key: SchemaKey
    rows: int
    first: Position
    since: float
    age: float

    def __str__(self) -> str:
        return (
            f"{self.rows:,} rows wait for the schema of {self.key}, the first at {self.first}, "
            f"for {self.age:.0f} s"
        )


@dataclass(frozen=True, slots=True)
class Readable:
    """Events cut in two; events that are not rows are always ready."""

    ready: pa.Table
    waiting: pa.Table


class SchemaCache:
    """The schemas a feed has told so far, and what waits for others.

    `clock` gives seconds, for the age of what waits. `max_rows` and `max_age` bound the waiting:
    `check` raises when they are passed. TiCDC sends BOOTSTRAP every two minutes or ten thousand
    messages of a table unless the changefeed says otherwise, so what waits for long is lost.
    """

    def __init__(
        self,
        shapes: ShapeBook | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_rows: int = 1_000_000,
        max_age: float = 600.0,
    ) -> None:
        self.shapes = ShapeBook() if shapes is None else shapes
        self.max_rows = max_rows
        self.max_age = max_age
        self._clock = clock
        # A schema, and the commit_ts of the last DDL that gave it to its name; None if none did.
        self._schemas: dict[SchemaKey, TableSchema] = {}
        self._since: dict[SchemaKey, int | None] = {}
        self._waiting: dict[SchemaKey, tuple[int, Position, float]] = {}

    # --- what is told -----------------------------------------------------------------------------

    def add(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Learns every shape and schema of a batch: schemas of shapes, BOOTSTRAP and DDL."""
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        for part in table.to_batches():
            self.shapes.add(part)
        told = table.select(["kind", "commit_ts", "database", "table", "ddl", "shape", "schema"])
        told = told.filter(pc.and_(pc.is_valid(told["schema"]), pc.is_null(told["shape"])))
        for row in told.to_pylist():
            document = json.loads(row["schema"])
            commit_ts = row["commit_ts"] if row["kind"] == "ddl" else None
            for member, since in (("tableSchema", commit_ts), ("preTableSchema", None)):
                if document.get(member):
                    self.add_schema(TableSchema.from_json(document[member]), since)
            if row["kind"] == "ddl" and document.get("tableSchema"):
                self._add_renamed(row, TableSchema.from_json(document["tableSchema"]))

    def _add_renamed(self, row: dict[str, Any], schema: TableSchema) -> None:
        """Learns the schema of a renamed table under its old name too: its version is the same.

        Rows from before the RENAME name it, and the new architecture does not send it.
        """
        before, after = ddl_tables(row)
        if before is None or after is None or before == after:
            return
        old = replace(schema, database=before[0], table=before[1])
        if old.version is not None and SchemaKey(*before, old.version) not in self._schemas:
            self.add_schema(old)

    def add_schema(self, schema: TableSchema, since: int | None = None) -> None:
        """Learns one schema; `since` is the commit_ts of the DDL that made it."""
        if schema.version is None:
            return
        key = SchemaKey(schema.database, schema.table, schema.version)
        self.shapes.add_schema(schema)
        self._schemas[key] = schema
        given = [each for each in (since, self._since.get(key)) if each is not None]
        self._since[key] = max(given, default=None)

    def forget(self, applied_ts: int) -> list[SchemaKey]:
        """Drops the versions that no row after `applied_ts` can name, and says which.

        A version of a name is obsolete once a later DDL before `applied_ts` has given the name
        another one. The DDL's commit_ts decides: a version number is older than its DDL, and rows
        between the two still name the version before; and RENAME gives a name an old number again.
        Of versions that no DDL has brought only lower numbers are obsolete. Under the old name of a
        renamed table nothing newer comes, so its last version stays: one small schema a rename.
        """
        current: dict[tuple[str, str], tuple[int, int]] = {}
        for key, since in self._since.items():
            if since is not None and since < applied_ts:
                name = key.database, key.table
                current[name] = max(current.get(name, (since, key.version)), (since, key.version))
        gone = [key for key in self._schemas if self._is_obsolete(key, current)]
        for key in gone:
            del self._schemas[key]
            del self._since[key]
            self.shapes.forget_schema(*key)
        return sorted(gone)

    def _is_obsolete(self, key: SchemaKey, current: dict[tuple[str, str], tuple[int, int]]) -> bool:
        """Whether the name has another version now; `current` is its `since` and number."""
        given = current.get((key.database, key.table))
        if given is None or key.version == given[1]:
            return False
        since = self._since[key]
        return key.version < given[1] if since is None else since < given[0]

    # --- what is known ----------------------------------------------------------------------------

    @property
    def keys(self) -> tuple[SchemaKey, ...]:
        """The versions that are kept."""
        return tuple(sorted(self._schemas))

    def entries(self) -> dict[SchemaKey, tuple[int | None, TableSchema]]:
        """The versions that are kept, with the commit_ts of the DDL that brought each."""
        return {key: (self._since[key], schema) for key, schema in self._schemas.items()}

    def schema(self, database: str, table: str, version: int) -> TableSchema | None:
        """The schema of that version, if it has been seen and is still kept."""
        return self._schemas.get(SchemaKey(database, table, version))

    def latest(self, database: str, table: str) -> TableSchema | None:
        """The schema of the highest version of that name."""
        versions = (key for key in self._schemas if (key.database, key.table) == (database, table))
        key = max(versions, default=None)
        return None if key is None else self._schemas[key]

    def is_lost(self, key: SchemaKey, first_ts: int) -> bool:
        """Whether a version that rows since `first_ts` name can no longer come.

        A later DDL has given the name another version, or a schema without a DDL has a higher
        number: TiCDC sends only the schema that a table has now.
        """
        return any(
            other.version > key.version if since is None else since >= first_ts
            for other, since in self._since.items()
            if other[:2] == key[:2] and other.version != key.version
        )

    def shape(self, shape: int, version: int | None = None) -> Shape:
        """What a row's columns are; raises SchemaNotSeen where that is not known yet."""
        found = self.shapes.shape(shape, version)
        if found is None:
            raise SchemaNotSeen("", "", version=version, shape=shape)
        if version is not None and found.schema is None:
            raise SchemaNotSeen(found.database, found.table, version=version)
        return found

    # --- what waits -------------------------------------------------------------------------------

    def split(self, table: pa.RecordBatch | pa.Table) -> Readable:
        """The events that can be read now, and the rows that wait for their schema.

        Give all that waits each time, old and new: what `waiting` then tells is of this call, but
        for `since`, which is of the first call that found the schema missing.
        """
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        missing = self._missing(table)
        if not missing:
            self._waiting = {}
            return Readable(table, table.slice(0, 0))
        names = table.select(list(_KEY)).to_pylist()
        mask = pa.array([_key(row) in missing for row in names], pa.bool_())
        mask = pc.and_(mask, pc.is_in(table["kind"].combine_chunks(), pa.array(ROW_KINDS)))
        waiting = table.filter(mask)
        self._note(waiting)
        return Readable(table.filter(pc.invert(mask)), waiting)

    def _missing(self, table: pa.Table) -> set[SchemaKey]:
        rows = table.filter(pc.is_in(table["kind"], pa.array(ROW_KINDS))).select(list(_KEY))
        rows = rows.filter(pc.is_valid(rows["schema_version"]))
        named = rows.group_by(list(_KEY)).aggregate([]).to_pylist()
        return {key for key in map(_key, named) if key is not None and key not in self._schemas}

    def _note(self, waiting: pa.Table) -> None:
        now = self._clock()
        found: dict[SchemaKey, tuple[int, Position, float]] = {}
        for row in waiting.select([*_KEY, *_POSITION]).to_pylist():
            key = _key(row)
            if key is None:
                continue
            place = Position(
                row["topic"] or "", row["partition"] or 0, row["offset"] or 0, row["event"]
            )
            if key in found:
                rows, first, since = found[key]
                found[key] = rows + 1, min(first, place), since
            else:
                known = self._waiting.get(key)
                found[key] = 1, place, now if known is None else known[2]
        self._waiting = found

    def waiting(self) -> list[Waiting]:
        """What waited at the last `split`, the longest first."""
        now = self._clock()
        entries = [
            Waiting(key, rows, first, since, now - since)
            for key, (rows, first, since) in self._waiting.items()
        ]
        return sorted(entries, key=lambda entry: (entry.since, entry.key))

    def check(self) -> None:
        """Raises SchemaNotSeen when more rows wait, or for longer, than they may."""
        entries = self.waiting()
        if not entries:
            return
        rows = sum(entry.rows for entry in entries)
        if rows > self.max_rows or entries[0].age > self.max_age:
            worst = entries[0]
            if worst.age <= self.max_age:
                worst = max(entries, key=lambda entry: entry.rows)
            error = SchemaNotSeen(worst.key.database, worst.key.table, version=worst.key.version)
            error.add_note(_report(entries))
            raise error

    # --- restarts ---------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The schemas for `from_json`; shapes come with every batch, what waits is read again."""
        return json.dumps(
            {
                "version": _STATE_VERSION,
                "schemas": [
                    {"since": self._since[key], "schema": self._schemas[key].to_object()}
                    for key in self.keys
                ],
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str, **settings: Any) -> SchemaCache:
        """The cache with these schemas; settings are those of the constructor."""
        told: dict[str, Any] = json.loads(text)
        if told.get("version") != _STATE_VERSION:
            raise ValueError(
                f"The schemas' state has version {told.get('version')!r}, not {_STATE_VERSION}: "
                "it was saved by another version of Tidegate."
            )
        cache = cls(**settings)
        for entry in told["schemas"]:
            cache.add_schema(TableSchema.from_json(entry["schema"]), entry["since"])
        return cache


def _key(row: dict[str, Any]) -> SchemaKey | None:
    version = row["schema_version"]
    if version is None:
        return None
    return SchemaKey(row["database"] or "", row["table"] or "", version)


def _report(entries: Iterable[Waiting]) -> str:
    return "; ".join(str(entry) for entry in entries) + "."
