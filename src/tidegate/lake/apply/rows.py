"""Reads the row changes of one table from change batches: values by the names of their columns.

Rows of several shapes (a column was added, the sender sorts) are read alike. Where the table has
other columns than the rows were sent with, values are fitted to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.changefeed.receive.release import fingerprint
from tidegate.lake.formats.column_changes import fitted
from tidegate.model import Column, TableSchema
from tidegate.model.types import MOMENTS, REALS
from tidegate.spark.types import UTC, arrow_type, from_text_array, real_texts
from tidegate.wire.batch.key_updates import values_at

NO_DATE = "0000-00-00"
"""The string in keys of all invalid dates: the lake holds NULL for each of them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The order of the values in the rows of one shape."""

    shape: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads the row changes of one table: they come with the columns of `sent`, if that is given.

    What `schema` lacks of them is passed over, what they lack of it is NULL. `zone` is that of the
    feed's TIMESTAMP values.
    """

    schema: TableSchema
    layouts: tuple[Layout, ...]
    zone: str = UTC
    sent: TableSchema | None = None

    # --- strings ----------------------------------------------------------------------------------

    def strings(self, changes: pa.Table, values: pa.ListArray, name: str) -> pa.Array:
        """The strings of a column in lists of values, whatever their shapes."""
        found = pa.nulls(len(values), pa.string())
        shapes = changes["shape"].combine_chunks()
        numbers = pa.array(range(len(values)), pa.int64())
        for layout in self.layouts:
            if name not in layout.names:
                continue
            strings = values_at(values, numbers, layout.names.index(name))
            if len(self.layouts) == 1:
                return strings
            found = pc.if_else(pc.fill_null(pc.equal(shapes, layout.shape), False), strings, found)
        return found

    def key_strings(self, changes: pa.Table, values: pa.ListArray, name: str) -> pa.Array:
        """The strings of a key column: the same for all that is the same in the lake."""
        strings, column = self.strings(changes, values, name), self.schema.column(name)
        if column is None or column.code not in (*MOMENTS, *REALS):
            return strings
        typed = from_text_array(column, strings, self.zone)
        if column.code in REALS:
            return real_texts(pc.add(typed, 0))  # 0 and -0 are one key
        is_none = pc.and_(pc.is_null(typed), pc.is_valid(strings))
        return pc.if_else(is_none, NO_DATE, strings)

    def old_strings(self, changes: pa.Table, name: str) -> pa.Array:
        """The strings of a column in the old rows; where these lack it, it has not changed."""
        before, after = (changes[side].combine_chunks() for side in ("before", "after"))
        old = self.strings(changes, before, name)
        bits = changes["before_missing"].combine_chunks()
        if bits.null_count == len(bits):
            return old
        shapes = changes["shape"].combine_chunks()
        lacks = pa.array([False]).take(pa.repeat(pa.scalar(0), len(bits)))
        for layout in self.layouts:
            if name in layout.names:
                here = pc.fill_null(pc.equal(shapes, layout.shape), False)
                lacks = pc.or_(lacks, pc.and_(here, _are_marked(bits, layout.names.index(name))))
        return pc.if_else(lacks, self.strings(changes, after, name), old)

    # --- values -----------------------------------------------------------------------------------

    def typed(
        self, changes: pa.Table, values: pa.ListArray, known: Mapping[str, pa.Array]
    ) -> list[pa.Array]:
        """Every column that the table keeps; the strings of some are `known` otherwise."""
        return [
            self._fitted(
                column,
                known[column.name]
                if column.name in known
                else self.strings(changes, values, column.name),
            )
            for column in self.schema.carried
        ]

    def completed(self, rows: pa.ListArray, known: Mapping[str, pa.Array]) -> list[pa.Array]:
        """The same of rows that the upstream gave: as `sent` has them, their times in UTC."""
        sent = self.sent or self.schema
        places = {name: place for place, name in enumerate(sent.carried_names)}
        numbers = pa.array(range(len(rows)), pa.int64())
        found = []
        for column in self.schema.carried:
            was = sent.column(column.name)
            if column.name in known:
                found.append(self._value(column, known[column.name]))
            elif was is None or column.name not in places:
                found.append(pa.nulls(len(rows), arrow_type(column)))
            else:
                strings = values_at(rows, numbers, places[column.name])
                value = fitted(column, replace(was, zone=None), strings, self.zone, UTC)
                found.append(value.cast(arrow_type(column)))
        return found

    def _fitted(self, column: Column, strings: pa.Array) -> pa.Array:
        sent = column if self.sent is None else self.sent.column(column.name)
        if sent is None or sent == column:
            return self._value(column, strings)
        return fitted(column, sent, strings, self.zone).cast(arrow_type(column))

    def _value(self, column: Column, strings: pa.Array) -> pa.Array:
        return from_text_array(column, strings, self.zone).cast(arrow_type(column))

    def incomplete_shapes(self) -> list[int]:
        """The shapes that do not have all columns."""
        every = set((self.sent or self.schema).carried_names)
        return [each.shape for each in self.layouts if not every <= set(each.names)]

    # --- copies -----------------------------------------------------------------------------------

    def fingerprint(self, row: Mapping[str, Any]) -> str:
        """What tells a row change from others; the order of its columns does not count."""
        names = {layout.shape: layout.names for layout in self.layouts}
        return fingerprint(row, lambda shape, version: names.get(shape))


def _are_marked(bits: pa.BinaryArray, place: int) -> pa.BooleanArray:
    """Whether bitmaps such as `before_missing` have the bit of a column."""
    with_bit = [bytes([byte]) for byte in range(256) if byte >> (place & 7) & 1]
    start = place >> 3
    return pc.is_in(pc.binary_slice(bits, start, start + 1), pa.array(with_bit, bits.type))


@dataclass(frozen=True, slots=True)
class Copies:
    """Row changes at one instant that were applied: what comes of them again is left out."""

    at: int
    reader: RowReader
    applied: frozenset[str] = field(default=frozenset(), repr=False)

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "kind",
        "commit_ts",
        "shape",
        "after",
        "before",
        "before_missing",
    )

    def without(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without copies."""
        then = pc.fill_null(pc.equal(batch["commit_ts"], self.at), False)
        if not self.applied or not pc.any(then).as_py():
            return batch
        rows = batch.select(list(self.COLUMNS)).filter(then).to_pylist()
        fresh = [self.reader.fingerprint(row) not in self.applied for row in rows]
        keep = pa.array([True] * batch.num_rows)
        return batch.filter(pc.replace_with_mask(keep, then, pa.array(fresh, pa.bool_())))
