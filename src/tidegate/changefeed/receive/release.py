"""The release rule: which changes of a feed may be applied now. One description, no engine.

`Gate.release` makes a `Release`. Everything after `applied_ts` up to `until` is released. So is a
change at `applied_ts` itself, unless it was applied, or a statement applied at that instant closed
its table: rows at a statement's commit_ts go before it. A change at or below `applied_ts` that its
partition had not promised by a watermark is late. A change at or below `loaded_ts` is in what the
consumer loaded from the database: nothing releases it. Arrow batches are split here; `Span` is what
other engines render.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.sql.ddl_names import Name, ddl_id
from tidegate.wire.batch.shapes import ShapeBook

ROW_KINDS = ("insert", "update", "delete")
GATED_KINDS = (*ROW_KINDS, "ddl")
EVERYTHING = 2**63 - 1
"""As `until`: whatever the commit_ts."""

CONTENT = (
    *("kind", "database", "table", "shape", "schema_version"),
    *("after", "before", "before_missing"),
)
"""The columns that `fingerprint` reads."""

ColumnNames = Callable[[int, int | None], Sequence[str] | None]
"""The names of the columns of a shape and schema version, where they are known."""


class Source(NamedTuple):
    """A partition of a topic; the topic is empty where the caller did not say."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Span:
    """Changes above one commit_ts and up to another, of one partition or of all.

    Rows of the tables in `but` are left out; their names are in lower case, and an empty table
    stands for all tables of its database.
    """

    above: int
    up_to: int
    source: Source | None = None
    but: frozenset[Name] = frozenset()


@dataclass(frozen=True, slots=True)
class Masks:
    """One boolean an event of a batch; all false for watermarks, schemas and errors."""

    released: pa.BooleanArray
    held: pa.BooleanArray
    redelivered: pa.BooleanArray
    late: pa.BooleanArray


@dataclass(frozen=True, slots=True)
class Split:
    """A batch or table cut in four; watermarks, schemas and errors are in none of them."""

    released: pa.Table
    held: pa.Table
    redelivered: pa.Table
    late: pa.Table

    @property
    def due(self) -> pa.Table:
        """What has not been applied and may be: released and late."""
        return pa.concat_tables([self.late, self.released]) if len(self.late) else self.released


@dataclass(frozen=True, slots=True)
class Release:
    """What may be applied now.

    `statements` are the keys of those that were applied at `applied_ts`, `rows` the fingerprints of
    such rows where the consumer keeps them, and `closed` the tables whose rows at that instant come
    too late, as in `Span.but`. `promised` is the watermark of each partition when changes were last
    applied. With `by_arrival` changes are applied as they come, and nothing is held or late.
    """

    until: int = EVERYTHING
    applied_ts: int = 0
    statements: frozenset[Hashable] = frozenset()
    closed: frozenset[Name] = frozenset()
    rows: frozenset[str] = frozenset()
    promised: Mapping[Source, int] = field(default_factory=dict)
    by_arrival: bool = False
    loaded_ts: int = 0

    # --- as spans ---------------------------------------------------------------------------------

    @property
    def fresh(self) -> Span:
        """Everything after what was applied."""
        return Span(self.applied_ts, self.until)

    @property
    def again(self) -> Span:
        """The last instant once more: what of it was not applied is released."""
        above = max(self.applied_ts - 1, self.loaded_ts)
        return Span(above, min(self.applied_ts, self.until), but=self.closed)

    @property
    def late(self) -> tuple[Span, ...]:
        """What the partitions that were behind bring late."""
        return tuple(
            Span(max(promised, self.loaded_ts), self.applied_ts, source)
            for source, promised in self.promised.items()
            if max(promised, self.loaded_ts) < self.applied_ts and not self.by_arrival
        )

    # --- for Arrow --------------------------------------------------------------------------------

    def masks(self, batch: pa.RecordBatch | pa.Table, names_of: ColumnNames | None = None) -> Masks:
        """What is released, held, re-delivered and late, each event in at most one of them.

        With `names_of` a row that was applied is known again whatever the order of its columns.
        """
        table = as_table(batch)
        gated = pc.is_in(table["kind"], pa.array(GATED_KINDS))
        ts = table["commit_ts"]
        ripe, loaded = gated, pc.and_(gated, False)
        if self.loaded_ts:
            loaded = pc.and_(gated, _true(pc.less_equal(ts, self.loaded_ts)))
        if self.until != EVERYTHING:
            ripe = pc.and_(gated, _true(pc.less_equal(ts, self.until)))
        if self.by_arrival:
            never = _array(pc.and_(gated, False))
            held, ripe = pc.and_not(gated, ripe), pc.and_not(ripe, loaded)
            return Masks(_array(ripe), _array(pc.and_not(held, loaded)), _array(loaded), never)
        done, closed = self._at_applied(table, names_of)
        old = pc.or_(_true(pc.less(ts, self.applied_ts)), pc.or_(done, closed))
        old = pc.or_(old, loaded)
        uncovered = pc.and_not(self._uncovered(table), done)
        late = pc.and_(gated, uncovered)
        redelivered = pc.and_(gated, pc.and_not(old, uncovered))
        passed = pc.or_(late, redelivered)
        released = pc.and_not(ripe, passed)
        held = pc.and_not(gated, pc.or_(released, passed))
        return Masks(_array(released), _array(held), _array(redelivered), _array(late))

    def split(self, batch: pa.RecordBatch | pa.Table, names_of: ColumnNames | None = None) -> Split:
        """The events that are released, held, re-delivered and late, in the batch's order."""
        table = as_table(batch)
        masks = self.masks(table, names_of)
        return Split(
            table.filter(masks.released),
            table.filter(masks.held),
            table.filter(masks.redelivered),
            table.filter(masks.late),
        )

    def _uncovered(self, table: pa.Table) -> pa.ChunkedArray:
        """Events at or below `applied_ts` that no watermark of their partition had covered."""
        ts = table["commit_ts"]
        found = pc.and_(_true(pc.less_equal(ts, self.applied_ts)), False)
        sources = table.select(["topic", "partition"]).group_by(["topic", "partition"])
        for row in sources.aggregate([]).to_pylist():
            promised = max(self.promised.get(source_of(row), 0), self.loaded_ts)
            if promised < self.applied_ts:
                topic, partition = (
                    pc.is_in(table[name], pa.array([row[name]], table[name].type))
                    for name in ("topic", "partition")
                )
                since = pc.and_(pc.greater(ts, promised), pc.less_equal(ts, self.applied_ts))
                found = pc.or_(found, pc.and_(pc.and_(topic, partition), _true(since)))
        return found

    def _at_applied(
        self, table: pa.Table, names_of: ColumnNames | None
    ) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """Events at `applied_ts` itself that were applied, and rows that a statement forbids."""
        at = _true(pc.equal(table["commit_ts"], self.applied_ts))
        if not (self.statements or self.rows or self.closed) or not pc.any(at).as_py():
            return pc.and_(at, False), pc.and_(at, False)
        rows = table.filter(at).to_pylist()
        done = pa.array([self._was_applied(row, names_of) for row in rows], pa.bool_())
        closed = pa.array(map(self._is_closed, rows), pa.bool_())
        mask = _array(at)
        return pc.replace_with_mask(mask, mask, done), pc.replace_with_mask(mask, mask, closed)

    def _was_applied(self, row: dict[str, Any], names_of: ColumnNames | None) -> bool:
        if row["kind"] == "ddl":
            return ddl_id(row).key() in self.statements
        return bool(self.rows) and fingerprint(row, names_of) in self.rows

    def _is_closed(self, row: dict[str, Any]) -> bool:
        name = folded(row["database"] or "", row["table"] or "")
        return row["kind"] in ROW_KINDS and not self.closed.isdisjoint((name, (name[0], "")))


def folded(database: str, table: str) -> Name:
    """A name as `Span.but` has it."""
    return database.lower(), table.lower()


def names_in(shapes: ShapeBook) -> ColumnNames:
    """The names of the columns of all shapes that a book knows."""

    def names_of(shape: int, version: int | None) -> Sequence[str] | None:
        found = shapes.shape(shape, version)
        return None if found is None else [column.name for column in found.columns]

    return names_of


def fingerprint(row: Mapping[str, Any], names_of: ColumnNames | None = None) -> str:
    """A stable hash of what a row change says, wherever it came from.

    Where the names of its columns are known, their order does not count, and a column that it does
    not carry is NULL; in the old row of an update it is as in the new one.
    """
    names = None
    if names_of is not None and row["shape"] is not None:
        names = names_of(row["shape"], row.get("schema_version"))
    name = folded(row.get("database") or "", row.get("table") or "")
    said = [row["kind"], *name, row["shape"] if names is None else None]
    said += [_by_name(values, names) for values in (row["after"], old_values(row))]
    content = json.dumps(said, separators=(",", ":"))
    return blake2b(content.encode(), digest_size=8).hexdigest()


def old_values(row: Mapping[str, Any]) -> Sequence[str | None] | None:
    """The old row of a change; a column that it does not carry has not changed."""
    old, new, bits = row["before"], row["after"], row.get("before_missing")
    if old is None or new is None or bits is None:
        found: Sequence[str | None] | None = old
        return found
    return [new[place] if is_marked(bits, place) else value for place, value in enumerate(old)]


def is_marked(bits: bytes | None, place: int | None) -> bool:
    """Whether a bitmap such as `before_missing` has the bit of a column."""
    if bits is None or place is None or place >> 3 >= len(bits):
        return False
    return bool(bits[place >> 3] >> (place & 7) & 1)


def _by_name(values: Sequence[str | None] | None, names: Sequence[str] | None) -> Any:
    if values is None or names is None:
        return values
    pairs = zip(names, values, strict=False)
    return sorted((name, value) for name, value in pairs if value is not None)


def source_of(row: Mapping[str, Any]) -> Source:
    """The partition that an event came by."""
    return Source(row["topic"] or "", row["partition"] or 0)


def as_table(batch: pa.RecordBatch | pa.Table) -> pa.Table:
    """The same as a table."""
    return pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch


def _true(mask: pa.ChunkedArray) -> pa.ChunkedArray:
    """A comparison with null is not true."""
    return pc.fill_null(mask, False)


def _array(mask: pa.ChunkedArray) -> pa.BooleanArray:
    if isinstance(mask, pa.ChunkedArray):
        mask = mask.combine_chunks()
    if isinstance(mask, pa.ChunkedArray):  # of a table without chunks
        return pa.array([], pa.bool_())
    return mask
