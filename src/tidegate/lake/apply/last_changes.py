"""Computes the final row of each key of a table from its row changes, with Arrow.

Only the last change of a key matters to a table. Most changes are dropped in the batch they were
read in, by Python workers or, where there are few, in this process without a job. Changes of a key
follow each other as `changefeed.receive.order` says. A row that was sent again is the same change
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

from tidegate.changefeed.receive.order import BY_COMMIT, RANK, rank_of
from tidegate.lake.apply.changes import Changes, chunks
from tidegate.lake.apply.rows import RowReader
from tidegate.lake.formats.base import OP
from tidegate.spark.types import spark_schema
from tidegate.spark.workers import forget_zip_importers
from tidegate.upstream.completion import Completion
from tidegate.wire.batch.change import CHANGE_SCHEMA

LATE = "_late"
"""The column that marks late rows where a repair reads them beside others."""

_KEPT_BYTES = 128 << 20
"""What a task keeps of the changes before it lets them go, last ones or not."""
_BYTES_A_TASK = 256 << 20
"""Changes for each of the tasks that have the final word; most were dropped before."""

_PLACE = ("commit_ts", "offset", "event")


@dataclass(frozen=True, slots=True)
class LatestRows:
    """From changes to the rows that keys have in the end; Spark sends it to its Python workers.

    `moves` False says that no update takes a row to another key. With `touched` only keys of which
    some change is LATE come out. Where some shapes have only the key, `completion` asks for rows.
    """

    reader: RowReader
    key: tuple[str, ...]
    order: tuple[str, ...] = BY_COMMIT
    moves: bool = True
    touched: bool = False
    completion: Completion | None = None

    READ: ClassVar[tuple[str, ...]] = ("kind", "shape", *_PLACE, "after", "before")
    """The columns that changes are read with."""

    # --- from changes to rows ---------------------------------------------------------------------

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that changes are read with here."""
        return (*self.READ, LATE) if self.touched else self.READ

    def here(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """The columns of the table and OP: each key once, as its last change left it."""
        found = pa.concat_tables([self._entry_schema.empty_table(), *self._reduced(batches)])
        return pa.concat_tables(self._rows(self.last(found)))

    def by_spark(self, spark: SparkSession, changes: Changes, size: int = 0) -> DataFrame:
        """The same for changes that take about `size` bytes of memory."""
        entries = changes.spread(spark, self.columns, self._reduced, self._entry_schema)
        tasks = int(spark.conf.get("spark.sql.shuffle.partitions") or 2)
        tasks += size // _BYTES_A_TASK
        of_keys = entries.repartition(tasks, *self._key_names)
        columns: StructType = spark_schema(self.reader.schema.carried).add(OP, StringType())
        return of_keys.mapInArrow(self._decide, columns)

    def _decide(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        forget_zip_importers()
        entries = pa.Table.from_batches(batches, self._entry_schema)
        for rows in self._rows(self.last(entries)):
            yield from chunks(rows)

    def _reduced(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """The entries of changes, without most that others supersede."""
        kept: list[pa.Table] = []
        size = fresh = 0
        for batch in batches:
            kept.append(self.last(self.entries(pa.Table.from_batches([batch]))))
            size += kept[-1].nbytes
            fresh += kept[-1].nbytes
            if size <= _KEPT_BYTES:
                continue
            # Worth another look only when as much is new as was kept before.
            if fresh * 2 >= size:
                kept = [self.last(pa.concat_tables(kept))]
                size, fresh = kept[0].nbytes, 0
            if size > _KEPT_BYTES:
                yield from kept
                kept, size, fresh = [], 0, 0
        if kept:
            yield self.last(pa.concat_tables(kept))

    # --- parts ------------------------------------------------------------------------------------

    def entries(self, changes: pa.Table) -> pa.Table:
        """What changes do to keys: the key, when, and the row that it gets, NULL for none."""
        changes = changes.combine_chunks()
        after, before = (changes[side].combine_chunks() for side in ("after", "before"))
        new = [self.reader.key_strings(changes, after, name) for name in self.key]
        old = [self.reader.key_strings(changes, before, name) for name in self.key]
        kind = changes["kind"].combine_chunks()
        found = self._entries(changes, list(zip(new, old, strict=True)), rank_of(kind), after)
        if not self.moves:
            return found
        # A key is never NULL: where the old row has none, the message did not carry it.
        pairs = list(zip(old, new, strict=True))
        differs = reduce(pc.or_, (pc.fill_null(pc.not_equal(*pair), False) for pair in pairs))
        first = pa.repeat(pa.scalar(0, pa.int8()), len(kind))
        gone = self._entries(changes, pairs, first, pa.nulls(len(kind), after.type))
        moved = pc.and_(pc.equal(kind, "update"), differs)
        return pa.concat_tables([found, gone.filter(moved)])

    def _entries(
        self,
        changes: pa.Table,
        keys: Sequence[tuple[pa.Array, pa.Array]],
        rank: pa.Array,
        row: pa.Array,
    ) -> pa.Table:
        """A key is the first of two that is there."""
        columns = [pc.coalesce(*pair) for pair in keys]
        places = [changes[name] for name in (*_PLACE, "shape")]
        late = [changes[LATE]] if self.touched else []
        return pa.table([*columns, *places, rank, row, *late], self._entry_schema.names).cast(
            self._entry_schema
        )

    def last(self, entries: pa.Table) -> pa.Table:
        """The last entry of every key; it is LATE if any of them is."""
        names = self._key_names
        order = pc.sort_indices(entries, [(name, "ascending") for name in self.order])
        keys = entries.select(names).take(order).append_column("entry", order)
        asked = [("entry", "last")]
        if self.touched:
            keys = keys.append_column(LATE, entries[LATE].take(order))
            asked.append((LATE, "any"))
        chosen = keys.group_by(names, use_threads=False).aggregate(asked)
        found = entries.take(chosen["entry_last"])
        if not self.touched:
            return found
        place = found.schema.get_field_index(LATE)
        return found.set_column(place, LATE, chosen[f"{LATE}_any"])

    def _rows(self, entries: pa.Table) -> Iterator[pa.Table]:
        """The columns of the table and OP, from each key's last entry."""
        if self.touched:
            entries = entries.filter(entries[LATE])
        if self.completion is None:
            yield self._whole(entries)
            return
        shapes = pa.array(self.reader.incomplete_shapes(), pa.int64())
        lacks = pc.and_(pc.is_valid(entries["row"]), pc.is_in(entries["shape"], shapes))
        yield self._whole(entries.filter(pc.invert(lacks)))
        wanted = entries.filter(lacks).select([*self._key_names, "commit_ts"])
        for keys, rows in self.completion.rows(wanted):
            known = dict(zip(self.key, keys, strict=True))
            yield self._table(self.reader.completed(rows, known), rows)

    def _whole(self, entries: pa.Table) -> pa.Table:
        entries = entries.combine_chunks()
        values = entries["row"].combine_chunks()
        keys = (entries[name].combine_chunks() for name in self._key_names)
        known = dict(zip(self.key, keys, strict=True))
        return self._table(self.reader.typed(entries, values, known), values)

    def _table(self, columns: Sequence[pa.Array], rows: pa.ListArray) -> pa.Table:
        op = pc.if_else(pc.is_null(rows), "d", "u")
        return pa.table([*columns, op], [*self.reader.schema.carried_names, OP])

    @property
    def _key_names(self) -> list[str]:
        return [f"key{number}" for number in range(len(self.key))]

    @property
    def _entry_schema(self) -> pa.Schema:
        places = [CHANGE_SCHEMA.field(name).with_nullable(True) for name in (*_PLACE, "shape")]
        keys = [pa.field(name, pa.string()) for name in self._key_names]
        row = pa.field("row", pa.list_(pa.string()))
        late = [pa.field(LATE, pa.bool_())] if self.touched else []
        return pa.schema([*keys, *places, pa.field(RANK, pa.int8()), row, *late])
