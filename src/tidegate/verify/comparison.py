"""Compares the tables of a lake with what they should be: by count and checksum, then row by row.

What should be comes as texts (docs/batch.md) with the table's schema. It is read into the types of
the lake and written back, so that both sides have the same form and only the content is compared:
what the type mapping itself cannot hold is the same on both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidegate.lake.lake import Lake
from tidegate.lake.record import Doubt
from tidegate.lake.routes import Routes
from tidegate.lake.storage.names import own
from tidegate.model import TableSchema
from tidegate.model.sql import quoted
from tidegate.spark.types import from_text, to_text
from tidegate.sql.tables import Name
from tidegate.verify.replay import Replay

Row = tuple[str | None, ...]

_NULL = "\0NULL"
_HASH = own("hash")


@dataclass(frozen=True, slots=True)
class Expected:
    """A table as it should be: rows are texts in the order of the columns that rows carry."""

    schema: TableSchema
    rows: Sequence[Row]
    skipped: str = ""
    """Why the rows are not known."""

    def to_arrow(self) -> pa.Table:
        """A text column for each column."""
        names = self.schema.carried_names
        columns = list(zip(*self.rows, strict=True)) or [()] * len(names)
        arrays = [pa.array(column, pa.string()) for column in columns]
        return pa.Table.from_arrays(arrays, list(names))


class TruthTable(Protocol):
    """A table of a workload: rows by key, values in the order of the schema's columns."""

    @property
    def schema(self) -> TableSchema: ...

    @property
    def rows(self) -> Mapping[Any, Row]: ...


@dataclass(frozen=True, slots=True)
class Sum:
    """How many rows, and a checksum of them that knows no order."""

    rows: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that is not the same: `what` is missing (in the lake), extra or different."""

    what: str
    key: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Compared:
    """How a table of the lake stands against what it should be."""

    name: Name
    lake: Sum | None
    expected: Sum | None
    differences: tuple[Difference, ...] = ()
    columns: tuple[str, ...] = ()
    """Columns that only one of both has."""
    skipped: str = ""
    """Why the table was not compared."""
    is_exact: bool = True
    """Whether the table holds all that the feed and the policy make of it, and no guess."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return self.lake == self.expected and not self.columns


@dataclass(slots=True)
class Verification:
    """Compares a lake at one instant."""

    lake: Lake
    at: int
    most: int = 10
    """How many differing rows are named a table."""
    _doubts: Mapping[tuple[str, str], Doubt] = field(init=False)
    _routes: Routes = field(init=False)

    def __post_init__(self) -> None:
        state = self.lake.snapshots.state()
        self._doubts = self.lake.snapshots.doubts(self.at)
        told = {} if state is None else state.feed.get("tables", {})
        self._routes = Routes(tuple(told.get("include", ())), told.get("rename", {}))

    def run(self, expected: Mapping[Name, Expected]) -> Iterator[Compared]:
        """Each table of either side, in the order of their names."""
        there = {
            snapshot.name.folded: snapshot.name for snapshot in self.lake.snapshots.at(self.at)
        }
        wanted = {
            name.folded: (name, table)
            for name, table in expected.items()
            if self._routes.wants(name)
        }
        for folded in sorted(there.keys() | wanted.keys()):
            name = there.get(folded) or wanted[folded][0]
            doubt = self._doubts.get(folded)
            if doubt is not None:
                yield Compared(name, None, None, skipped=doubt.text, is_exact=doubt.is_exact)
                continue
            table = wanted[folded][1] if folded in wanted else None
            if table is not None and table.skipped:
                yield Compared(name, None, None, skipped=table.skipped)
            else:
                yield self._compare(name, table, folded in there)

    def _compare(self, name: Name, expected: Expected | None, is_there: bool) -> Compared:
        mine = self.lake.texts(*name, self.at) if is_there else None
        theirs = None if expected is None else self._as_in_lake(expected)
        if mine is None or theirs is None or expected is None:
            return Compared(
                name,
                None if mine is None else summed(mine),
                None if theirs is None else summed(theirs),
            )
        odd = set(mine.columns) ^ set(theirs.columns)
        if odd:
            return Compared(name, summed(mine), summed(theirs), columns=tuple(sorted(odd)))
        theirs = theirs.select(*(quoted(column) for column in mine.columns)).cache()
        try:
            sums = summed(mine), summed(theirs)
            found = () if sums[0] == sums[1] else tuple(self._differences(mine, theirs, expected))
            return Compared(name, *sums, found)
        finally:
            theirs.unpersist()

    def _as_in_lake(self, expected: Expected) -> DataFrame:
        """The texts as they are after a way into the lake's types and back."""
        rows = self.lake.spark.createDataFrame(expected.to_arrow())
        columns = {column.name: column for column in expected.schema.columns}
        zone = self.lake.zone
        return rows.select(
            *(
                to_text(
                    columns[name], from_text(columns[name], F.col(quoted(name)), zone), zone
                ).alias(name)
                for name in rows.columns
            )
        )

    def _differences(
        self, mine: DataFrame, theirs: DataFrame, expected: Expected
    ) -> Iterator[Difference]:
        key = list(expected.schema.handle_key())
        if not key:
            yield from self._without_key(mine, theirs)
            return
        left = mine.select(*(quoted(name) for name in key), row_hash(mine).alias(_HASH)).alias("l")
        right = theirs.select(*(quoted(name) for name in key), row_hash(theirs).alias(_HASH))
        right = right.alias("r")
        same = reduce(
            Column.__and__,
            (F.col(f"l.{quoted(name)}").eqNullSafe(F.col(f"r.{quoted(name)}")) for name in key),
        )
        mine_hash, their_hash = F.col(f"l.{quoted(_HASH)}"), F.col(f"r.{quoted(_HASH)}")
        joined = left.join(right, same, "full").where(~mine_hash.eqNullSafe(their_hash))
        what = F.when(mine_hash.isNull(), "missing").when(their_hash.isNull(), "extra")
        rows = joined.select(
            what.otherwise("different"),
            *(
                F.coalesce(f"l.{quoted(name)}", f"r.{quoted(name)}").alias(f"k{place}")
                for place, name in enumerate(key)
            ),
        )
        names = [f"k{place}" for place in range(len(key))]
        for row in rows.orderBy(*names).limit(self.most).collect():
            yield Difference(row[0], dict(zip(key, row[1:], strict=True)))

    def _without_key(self, mine: DataFrame, theirs: DataFrame) -> Iterator[Difference]:
        for what, rows in (
            ("missing", theirs.exceptAll(mine)),
            ("extra", mine.exceptAll(theirs)),
        ):
            for row in rows.limit(self.most).collect():
                yield Difference(what, row.asDict())


def row_hash(rows: DataFrame) -> Column:
    """A number for a row of texts, in which NULL is not nothing."""
    return F.xxhash64(*(F.coalesce(F.col(quoted(name)), F.lit(_NULL)) for name in rows.columns))


def summed(rows: DataFrame) -> Sum:
    """The count and the checksum of rows of texts."""
    total = F.sum(row_hash(rows).cast("decimal(38,0)"))
    found: Any = rows.agg(F.count(F.lit(1)), total).head()
    count, checksum = found
    return Sum(count, f"{int(checksum or 0) & (1 << 64) - 1:016x}")


def of_truth(tables: Mapping[tuple[str, str], TruthTable]) -> dict[Name, Expected]:
    """What a workload knows of its tables."""
    found = {}
    for name, table in tables.items():
        kept = [
            place
            for place, column in enumerate(table.schema.columns)
            if column.generated != "virtual"
        ]
        rows = [tuple(row[place] for place in kept) for row in table.rows.values()]
        found[Name(*name)] = Expected(table.schema, rows)
    return found


def of_feed(batches: Iterable[pa.RecordBatch], until: int | None) -> dict[Name, Expected]:
    """What the changes of a feed up to an instant come to, worked out in memory."""
    replay = Replay()
    replay.run(batches, until)
    return {
        name: Expected(table.schema, list(table.rows.values()), table.skipped)
        for name, table in replay.tables.items()
    }
