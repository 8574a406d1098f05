"""The row changes of a change batch by table and shape, column by column, without a Python row."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.changefeed.receive.gate import ROW_KINDS

_KEY = ("database", "table", "table_id", "shape", "schema_version")
_ROW_KINDS = pa.array(ROW_KINDS)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Row changes that mean the same by their columns; `places` are their rows in the batch."""

    database: str
    table: str
    table_id: int | None
    shape: int | None
    version: int | None
    places: pa.Int64Array


def is_row(batch: pa.RecordBatch) -> pa.BooleanArray:
    """Which events of a batch are row changes."""
    return pc.is_in(batch["kind"], _ROW_KINDS)


def row_groups(batch: pa.RecordBatch) -> list[RowGroup]:
    """The row changes of a batch by table, shape and version, in the order of their first rows."""
    if batch.num_rows == 0:
        return []
    places = pa.array(range(batch.num_rows), pa.int64())
    table = pa.table([*(batch[name] for name in _KEY), places], names=[*_KEY, "place"])
    grouped = table.filter(is_row(batch)).group_by(list(_KEY), use_threads=False)
    found = grouped.aggregate([("place", "list")])
    keys = zip(*(found[name].to_pylist() for name in _KEY), strict=True)
    return [
        RowGroup(database or "", table or "", table_id, shape, version, rows.values)
        for (database, table, table_id, shape, version), rows in zip(
            keys, found["place_list"], strict=True
        )
    ]


def cells(rows: pa.ListArray, places: pa.Int64Array, column: int) -> pa.StringArray:
    """One column's texts in these rows, none of which is null."""
    starts = pc.cast(rows.offsets.take(places), pa.int64())
    return rows.values.take(pc.add(starts, column))


def row_cells(batch: pa.RecordBatch, places: pa.Int64Array, column: int) -> pa.StringArray:
    """One column's texts in these row changes: of the new row, else of the old one."""
    is_new = batch["after"].is_valid().take(places)
    if is_new.true_count == len(places):
        return cells(batch["after"], places, column)
    if is_new.true_count == 0:
        return cells(batch["before"], places, column)
    new = cells(batch["after"], places.filter(is_new), column)
    old = cells(batch["before"], places.filter(pc.invert(is_new)), column)
    among_new = pc.cumulative_sum(pc.cast(is_new, pa.int64()))
    among_old = pc.cumulative_sum(pc.cast(pc.invert(is_new), pa.int64()))
    index = pc.if_else(is_new, pc.subtract(among_new, 1), pc.add(among_old, len(new) - 1))
    return pa.concat_arrays([new, old]).take(index)


def modulo(numbers: pa.Int64Array, divisor: int) -> pa.Int64Array:
    """What is left of numbers that are not negative; Arrow has no such function."""
    return pc.subtract(numbers, pc.multiply(pc.divide(numbers, divisor), divisor))


def kept(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    """The rows where the mask is true; copied only if they do not stand together."""
    count = mask.true_count
    if count == batch.num_rows:
        return batch
    if count == 0:
        return batch.slice(0, 0)
    first = pc.index(mask, True).as_py()
    together = mask.slice(first, count)
    return batch.slice(first, count) if together.true_count == count else batch.filter(mask)


def scattered(
    places: list[pa.Int64Array], values: list[pa.Array], count: int, type_: pa.DataType
) -> pa.Array:
    """Values at their places in an array of this length; null where no place is named."""
    if not places:
        return pa.nulls(count, type_)
    named, found = pa.concat_arrays(places), pa.concat_arrays(values)
    return found.take(pc.inverse_permutation(named, max_index=count - 1))


def taken(batch: pa.RecordBatch, places: pa.Int64Array) -> pa.RecordBatch:
    """The rows at these places; copied only if they do not stand together, in their order."""
    count = len(places)
    if count and pc.all(pc.fill_null(pc.equal(pc.pairwise_diff(places), 1), True)).as_py():
        return batch.slice(places[0].as_py(), count)
    return batch.take(places)
