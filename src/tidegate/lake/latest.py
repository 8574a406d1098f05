"""What every key of a table has in the end, found by Arrow in files of the changelog.

Of many changes of a row only the last one matters to a table. Iceberg's reader makes every value of
every change an object of the JVM before the others can be dropped, and Spark sorts them all by key;
here most are dropped in the batch that they were read in, by Python workers or, where there are
few, in this process without a job. The rules are those of `rows`, which does the same by Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructType

from tidegate.lake.conditions import Condition
from tidegate.lake.format import OP
from tidegate.lake.logfiles import LogFile, read_files
from tidegate.lake.rows import BY_ARRIVAL, BY_COMMIT, NO_DATE, Layout
from tidegate.model import TableSchema
from tidegate.model.types import MOMENTS, REALS
from tidegate.spark.types import arrow_type, from_text_array, real_texts, spark_schema
from tidegate.spark.workers import forget_zip_importers
from tidegate.wire.change import CHANGE_SCHEMA
from tidegate.wire.moves import values_at

_KEPT_BYTES = 128 << 20
"""What a task keeps of the changes before it lets them go, last ones or not."""
_ROWS_A_TASK = 400_000
"""Changes for each of the tasks that have the final word; most were dropped before."""

_PLACE = ("commit_ts", "offset", "event")
_READ = ("kind", "shape", *_PLACE, "after", "before")
_ORDERS = {
    BY_COMMIT: ("commit_ts", "rank", "offset", "event"),
    BY_ARRIVAL: ("offset", "event", "rank"),
}


@dataclass(frozen=True, slots=True)
class LatestRows:
    """What Spark sends to its Python workers: from names of files to the rows of a table.

    Only changes that meet the condition count. `moves` False says that no update takes a row to
    another key.
    """

    schema: TableSchema
    layouts: tuple[Layout, ...]
    key: tuple[str, ...]
    condition: Condition
    order: str = BY_COMMIT
    moves: bool = True
    zone: str = "UTC"

    # --- from files to rows -----------------------------------------------------------------------

    def here(self, files: Sequence[LogFile]) -> pa.Table:
        """The columns of the table and OP: each key once, as its last change left it."""
        found = pa.concat_tables([self._entry_schema.empty_table(), *self._entries_in(files)])
        return self.rows(self.last(found))

    def by_spark(self, spark: SparkSession, files: Sequence[LogFile], count: int) -> DataFrame:
        """The same for so many changes."""
        shares = _shares(files, max(1, spark.sparkContext.defaultParallelism))
        names = spark.createDataFrame([(share,) for share in shares], "files array<string>")
        entries = names.mapInArrow(self._read, from_arrow_schema(self._entry_schema))
        tasks = int(spark.conf.get("spark.sql.shuffle.partitions") or 2) + count // _ROWS_A_TASK
        of_keys = entries.repartition(tasks, *self._key_names)
        columns: StructType = spark_schema(self.schema.carried).add(OP, StringType())
        return of_keys.mapInArrow(self._decide, columns)

    def _read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        forget_zip_importers()
        shares = (share for batch in batches for share in batch["files"].to_pylist())
        for entries in self._entries_in([LogFile(path, 0) for share in shares for path in share]):
            yield from entries.to_batches(max_chunksize=10_000)

    def _decide(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        forget_zip_importers()
        entries = pa.Table.from_batches(batches, self._entry_schema)
        yield from self.rows(self.last(entries)).to_batches(max_chunksize=10_000)

    def _entries_in(self, files: Sequence[LogFile]) -> Iterator[pa.Table]:
        """The entries of the changes in files, without most that others supersede."""
        kept: list[pa.Table] = []
        size = fresh = 0
        for batch in read_files(files, self.condition, _READ):
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
        new = [self._key_texts(changes, after, name) for name in self.key]
        old = [self._key_texts(changes, before, name) for name in self.key]
        kind = changes["kind"].combine_chunks()
        known = pc.not_equal(kind, "delete").cast(pa.int8())
        rank = pc.add(known, pc.equal(kind, "insert").cast(pa.int8()))
        found = self._entries(changes, list(zip(new, old, strict=True)), rank, after)
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
        return pa.table([*columns, *places, rank, row], self._entry_schema.names).cast(
            self._entry_schema
        )

    def last(self, entries: pa.Table) -> pa.Table:
        """The last entry of every key."""
        names = self._key_names
        order = pc.sort_indices(entries, [(name, "ascending") for name in _ORDERS[self.order]])
        keys = entries.select(names).take(order).append_column("entry", order)
        chosen = keys.group_by(names, use_threads=False).aggregate([("entry", "last")])
        return entries.take(chosen["entry_last"])

    def rows(self, entries: pa.Table) -> pa.Table:
        """The columns of the table and OP, from each key's last entry."""
        entries = entries.combine_chunks()
        values = entries["row"].combine_chunks()
        texts = dict(zip(self.key, self._key_names, strict=True))
        found = [
            from_text_array(
                column,
                entries[texts[column.name]].combine_chunks()
                if column.name in texts
                else self._texts(entries, values, column.name),
                self.zone,
            ).cast(arrow_type(column))
            for column in self.schema.carried
        ]
        op = pc.if_else(pc.is_null(values), "d", "u")
        return pa.table([*found, op], [*(column.name for column in self.schema.carried), OP])

    def _key_texts(self, changes: pa.Table, values: pa.ListArray, name: str) -> pa.Array:
        """The texts of a column of the key: the same for all that is the same in the lake."""
        texts, column = self._texts(changes, values, name), self.schema.column(name)
        if column is None or column.code not in (*MOMENTS, *REALS):
            return texts
        typed = from_text_array(column, texts, self.zone)
        if column.code in REALS:
            return real_texts(pc.add(typed, 0))  # 0 and -0 are one key
        is_none = pc.and_(pc.is_null(typed), pc.is_valid(texts))
        return pc.if_else(is_none, NO_DATE, texts)

    def _texts(self, changes: pa.Table, values: pa.ListArray, name: str) -> pa.Array:
        """The texts of a column in lists of values, whatever their shapes."""
        found = pa.nulls(len(values), pa.string())
        shapes = changes["shape"].combine_chunks()
        numbers = pa.array(range(len(values)), pa.int64())
        for layout in self.layouts:
            if name not in layout.names:
                continue
            texts = values_at(values, numbers, layout.names.index(name))
            if len(self.layouts) == 1:
                return texts
            found = pc.if_else(pc.fill_null(pc.equal(shapes, layout.shape), False), texts, found)
        return found

    @property
    def _key_names(self) -> list[str]:
        return [f"key{number}" for number in range(len(self.key))]

    @property
    def _entry_schema(self) -> pa.Schema:
        places = [CHANGE_SCHEMA.field(name).with_nullable(True) for name in (*_PLACE, "shape")]
        keys = [pa.field(name, pa.string()) for name in self._key_names]
        row = pa.field("row", pa.list_(pa.string()))
        return pa.schema([*keys, *places, pa.field("rank", pa.int8()), row])


def _shares(files: Sequence[LogFile], count: int) -> list[list[str]]:
    """The files in so many parts of about the same size; fewer if there are not as many."""
    shares: list[list[str]] = [[] for _ in range(min(count, len(files)))]
    sizes = [0] * len(shares)
    for file in sorted(files, key=lambda each: -each.bytes):
        place = sizes.index(min(sizes))
        shares[place].append(file.path)
        sizes[place] += file.bytes
    return shares
