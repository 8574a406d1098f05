"""Updates that take a row to another key: marked, so that nobody downstream must compare every row.

TiCDC splits such updates into a delete and an insert, but not when it is told to send raw changes,
and the official Canal never does.
"""

from __future__ import annotations

import json
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model import EventFlag


def mark_moves(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The change batch with MOVED in the flags of updates whose key changed.

    Where the wire does not tell the key (Simple), nothing is marked.
    """
    keys = _keys(batch)
    if not keys:
        return batch
    updates = pc.equal(batch["kind"], "update")
    if not pc.any(updates).as_py():
        return batch
    marks = pa.nulls(batch.num_rows, pa.bool_()).fill_null(False)
    any_moved = False
    for shape, places in keys.items():
        rows = pc.indices_nonzero(pc.and_(updates, pc.equal(batch["shape"], shape)))
        if len(rows) == 0:
            continue
        moved = reduce(pc.or_, (_differs(batch, rows, place) for place in places))
        if pc.any(moved).as_py():
            any_moved = True
            marked = rows.filter(moved)
            marks = pc.or_(marks, pc.is_in(_numbers(batch.num_rows), marked.cast(pa.int64())))
    if not any_moved:
        return batch
    bit = pc.if_else(marks, pa.scalar(int(EventFlag.MOVED), pa.int32()), pa.scalar(0, pa.int32()))
    place = batch.schema.get_field_index("flags")
    return batch.set_column(place, batch.schema.field(place), pc.bit_wise_or(batch["flags"], bit))


def _keys(batch: pa.RecordBatch) -> dict[int, list[int]]:
    """The places of the key's columns in the shapes of the batch, where the wire tells them."""
    schema_rows = batch.select(["kind", "shape", "schema"])
    is_shape = pc.and_(pc.equal(schema_rows["kind"], "schema"), pc.is_valid(schema_rows["shape"]))
    key_places = {}
    for row in schema_rows.filter(is_shape).to_pylist():
        columns = json.loads(row["schema"])["columns"]
        places = [place for place, column in enumerate(columns) if column.get("key")]
        if places:
            key_places[row["shape"]] = places
    return key_places


def _differs(batch: pa.RecordBatch, rows: pa.Array, place: int) -> pa.Array:
    """Whether the old value is there and is another one; a key is never NULL."""
    old, new = (values_at(batch[side], rows, place) for side in ("before", "after"))
    return pc.fill_null(pc.not_equal(old, new), False)


def values_at(lists: pa.ListArray, rows: pa.Array, place: int) -> pa.Array:
    """The value at one place of the lists at these rows; NULL where none goes so far."""
    starts = lists.offsets.take(rows)
    there = pc.fill_null(pc.greater(pc.list_value_length(lists).take(rows), place), False)
    places = pc.if_else(there, pc.add(starts, pa.scalar(place, pa.int32())), None)
    return lists.values.take(places)


def _numbers(count: int) -> pa.Array:
    return pa.array(range(count), pa.int64())
