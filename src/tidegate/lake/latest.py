"""The last change of every key in files of the changelog, found by Arrow in Python workers.

Of many changes of a row only the last one matters to a table. Iceberg's reader makes every value of
every change an object of the JVM before the others can be dropped, and Spark sorts them all by key;
here most are dropped in the batch that they were read in. What is left is a few rows a key, and
`RowReader.last_of_each_key` has the final word on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tidegate.lake.conditions import Condition
from tidegate.lake.logfiles import LogFile, read_files
from tidegate.lake.rows import ARROW_ORDERS, arrow_rank
from tidegate.spark.workers import forget_zip_importers
from tidegate.wire.change import CHANGE_SCHEMA
from tidegate.wire.moves import values_at

_KEPT_BYTES = 128 << 20
"""What a task keeps of the rows before it lets them go, last ones or not."""

_COLUMNS = ("kind", "shape", "commit_ts", "offset", "event", "after", "before")
_SCHEMA = pa.schema([CHANGE_SCHEMA.field(name) for name in _COLUMNS])


@dataclass(frozen=True, slots=True)
class LatestChanges:
    """What Spark sends to its Python workers: from names of files to changes.

    `keys` has, for every shape, the places of the key's columns; only changes that meet the
    condition count. With `moves`, updates that take a row to another key are kept.
    """

    keys: Mapping[int, tuple[int, ...]]
    condition: Condition
    order: str
    moves: bool

    def read_here(self, files: Sequence[LogFile]) -> pa.Table:
        """The changes in the files, for few of them."""
        return pa.concat_tables([_SCHEMA.empty_table(), *self.latest(files)])

    def read(self, spark: SparkSession, files: Sequence[LogFile]) -> DataFrame:
        """The changes in the files: every key's last one, and some that are not."""
        shares = _shares(files, max(1, spark.sparkContext.defaultParallelism))
        names = spark.createDataFrame([(share,) for share in shares], "files array<string>")
        return names.mapInArrow(self.__call__, from_arrow_schema(_SCHEMA))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        forget_zip_importers()
        shares = (share for batch in batches for share in batch["files"].to_pylist())
        files = [LogFile(path, 0) for share in shares for path in share]
        for changes in self.latest(files):
            yield from changes.to_batches(max_chunksize=10_000)

    def latest(self, files: Sequence[LogFile]) -> Iterator[pa.Table]:
        """The changes in the files, in this process."""
        kept: list[pa.Table] = []
        size = fresh = 0
        for batch in read_files(files, self.condition, _COLUMNS):
            found = self.reduced(pa.Table.from_batches([batch]).cast(_SCHEMA))
            kept.append(found)
            size += found.nbytes
            fresh += found.nbytes
            if size <= _KEPT_BYTES:
                continue
            # Worth another look only when as much is new as was kept before.
            if fresh * 2 >= size:
                kept = [self.reduced(pa.concat_tables(kept))]
                size, fresh = kept[0].nbytes, 0
            if size > _KEPT_BYTES:
                yield from kept
                kept, size, fresh = [], 0, 0
        if kept:
            yield self.reduced(pa.concat_tables(kept))

    def reduced(self, changes: pa.Table) -> pa.Table:
        """Without the changes that others of the same key in this table come after."""
        if not changes.num_rows:
            return changes
        changes = changes.combine_chunks()
        after, before = (changes[side].combine_chunks() for side in ("after", "before"))
        shapes = changes["shape"].combine_chunks()
        kept = [pc.indices_nonzero(pc.invert(pc.is_in(shapes, pa.array(list(self.keys)))))]
        for shape, places in self.keys.items():
            rows = pc.indices_nonzero(pc.equal(shapes, shape))
            if not len(rows):
                continue
            now = [values_at(after, rows, place) for place in places]
            was = [values_at(before, rows, place) for place in places]
            keys = [pc.coalesce(*pair) for pair in zip(now, was, strict=True)]
            kept.append(self._last_of_each(changes, rows, keys))
            if self.moves:
                moved = [
                    pc.fill_null(pc.not_equal(*pair), False) for pair in zip(was, now, strict=True)
                ]
                for each in moved:
                    kept.append(rows.filter(each))
        chosen = pc.unique(pa.concat_arrays([each.cast(pa.int64()) for each in kept]))
        return changes.take(chosen.sort())

    def _last_of_each(
        self, changes: pa.Table, rows: pa.Array, keys: Sequence[pa.Array]
    ) -> pa.Array:
        """Of these rows the last one of each key, and those that do not carry it."""
        names = [f"key{number}" for number in range(len(keys))]
        places = {name: changes[name].take(rows) for name in ("commit_ts", "offset", "event")}
        rank = arrow_rank(changes["kind"].combine_chunks().take(rows))
        table = pa.table(
            {**dict(zip(names, keys, strict=True)), **places, "rank": rank, "row": rows}
        )
        order = [(name, "ascending") for name in ARROW_ORDERS[self.order]]
        table = table.select([*names, "row"]).take(pc.sort_indices(table, order))
        last = table.group_by(names, use_threads=False).aggregate([("row", "last")])
        keyless = reduce(pc.or_, (pc.is_null(key) for key in keys))
        return pa.concat_arrays([last["row_last"].combine_chunks(), rows.filter(keyless)])


def _shares(files: Sequence[LogFile], count: int) -> list[list[str]]:
    """The files in so many parts of about the same size; fewer if there are not as many."""
    shares: list[list[str]] = [[] for _ in range(min(count, len(files)))]
    sizes = [0] * len(shares)
    for file in sorted(files, key=lambda each: -each.bytes):
        place = sizes.index(min(sizes))
        shares[place].append(file.path)
        sizes[place] += file.bytes
    return shares
