"""Updates that change a key, as TiCDC's Kafka sink sends them: a DELETE and an INSERT.

An update is split when a column of the handle key or of a unique index changes, so that every row
of a key goes to one partition. A transaction's rows of that table are then put in order: classic
TiCDC sorts them delete, update, insert; the new architecture leaves them as they are but for the
inserts of split updates, which go to the end. (`trySplitAndSortUpdateEvent` of TiCDC.)
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.changefeed.send.row_groups import cells, is_row, row_groups
from tidegate.model import EventFlag, Flag
from tidegate.wire import Shape, ShapeBook

Generation = Literal["classic", "new"]

_KEYS = Flag.HANDLE_KEY | Flag.UNIQUE_KEY
_RANK = {"delete": 0, "update": 1, "insert": 2}
_TRANSACTION = ("commit_ts", "database", "table", "table_id")


def split_updates(
    batch: pa.RecordBatch, shapes: ShapeBook, generation: Generation = "classic"
) -> pa.RecordBatch:
    """The batch with every update that changes a key as two events.

    A transaction is sorted as far as it stands in this batch. What an update does not say of its
    old row (only-output-updated-columns) has not changed.
    """
    places = _changing_keys(batch, shapes)
    if not places:
        return batch
    halves = _doubled(batch, places)
    order = _order(halves, places, generation)
    return halves if order is None else halves.take(pa.array(order, pa.int64()))


def _changing_keys(batch: pa.RecordBatch, shapes: ShapeBook) -> list[int]:
    """Where the updates that change a key stand."""
    is_update = pc.and_(pc.equal(batch["kind"], "update"), batch["before"].is_valid())
    if is_update.true_count == 0:
        return []
    found: set[int] = set()
    for group in row_groups(batch):
        shape = None if group.shape is None else shapes.shape(group.shape, group.version)
        keys = [] if shape is None else _key_places(shape)
        rows = group.places.filter(is_update.take(group.places)) if keys else group.places[:0]
        for column in keys if len(rows) else ():
            after, before = (cells(batch[side], rows, column) for side in ("after", "before"))
            changed = rows.filter(_differ(after, before))
            found.update(_told(batch, changed.to_pylist(), column))
    return sorted(found)


def _key_places(shape: Shape) -> list[int]:
    return [
        place
        for place, column in enumerate(shape.columns)
        if column.key or (column.flags or 0) & _KEYS
    ]


def _differ(left: pa.StringArray, right: pa.StringArray) -> pa.BooleanArray:
    """Where two columns differ; NULL is like NULL alone."""
    one_null = pc.xor(left.is_null(), right.is_null())
    return pc.or_(pc.fill_null(pc.not_equal(left, right), False), one_null)


def _told(batch: pa.RecordBatch, rows: list[int], column: int) -> list[int]:
    """Those of the rows whose old value of the column is told."""
    missing = batch["before_missing"]
    if not rows or missing.null_count == len(missing):
        return rows
    found = zip(rows, missing.take(pa.array(rows, pa.int64())).to_pylist(), strict=True)
    return [row for row, bits in found if bits is None or not _has_bit(bits, column)]


def _has_bit(bits: bytes, column: int) -> bool:
    return bool(bits[column >> 3] >> (column & 7) & 1)


def _doubled(batch: pa.RecordBatch, places: list[int]) -> pa.RecordBatch:
    """The batch with these updates twice: as a delete, and behind it as an insert."""
    rows: list[int] = []
    start = 0
    for place in places:
        rows += range(start, place + 1)
        rows.append(place)
        start = place + 1
    rows += range(start, batch.num_rows)
    doubled = batch.take(pa.array(rows, pa.int64()))
    deletes = [place + number for number, place in enumerate(places)]
    numbers = pa.array(range(doubled.num_rows), pa.int64())
    is_delete = pc.is_in(numbers, pa.array(deletes, pa.int64()))
    is_insert = pc.is_in(numbers, pa.array([place + 1 for place in deletes], pa.int64()))
    is_half = pc.or_(is_delete, is_insert)
    kind = pc.if_else(is_delete, "delete", pc.if_else(is_insert, "insert", doubled["kind"]))
    doubled = _with(doubled, "kind", kind)
    doubled = _with(doubled, "before", _whole_before(doubled, deletes))
    for name, gone in (("after", is_delete), ("before", is_insert), ("before_missing", is_half)):
        doubled = _with(doubled, name, _nulled(doubled[name], gone))
    return _without_checksums(doubled, is_half)


def _whole_before(doubled: pa.RecordBatch, deletes: list[int]) -> pa.Array:
    """The old rows, in which what was not told of the deleted ones is as in the new row."""
    rows = pa.array(deletes, pa.int64())
    told = doubled["before_missing"].take(rows)
    if told.null_count == len(told):
        return doubled["before"]
    whole = doubled["before"].to_pylist()
    after = doubled["after"].take(rows).to_pylist()
    for place, new, bits in zip(deletes, after, told.to_pylist(), strict=True):
        if bits is not None:
            whole[place] = [
                new[column] if _has_bit(bits, column) else value
                for column, value in enumerate(whole[place])
            ]
    return pa.array(whole, doubled["before"].type)


def _without_checksums(batch: pa.RecordBatch, is_half: pa.BooleanArray) -> pa.RecordBatch:
    """A checksum is of a whole update: its halves go without, as classic TiCDC sends them."""
    if batch["checksum"].null_count == batch.num_rows:
        return batch
    batch = _with(batch, "checksum", _nulled(batch["checksum"], is_half))
    plain = pc.bit_wise_and(batch["flags"], ~int(EventFlag.CHECKSUM | EventFlag.CHECKSUM_FAILED))
    return _with(batch, "flags", pc.cast(pc.if_else(is_half, plain, batch["flags"]), pa.int32()))


def _nulled(values: pa.Array, mask: pa.BooleanArray) -> pa.Array:
    return pc.if_else(mask, pa.scalar(None, values.type), values)


def _with(batch: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    index = batch.schema.get_field_index(name)
    return batch.set_column(index, batch.schema.field(index), values)


def _order(halves: pa.RecordBatch, places: list[int], generation: Generation) -> list[int] | None:
    """The order of all events, if any is to be moved: within its transaction and table."""
    inserts = {place + number + 1 for number, place in enumerate(places)}
    concerned = _transactions(halves, inserts)
    order: list[int] | None = None
    for rows in concerned:
        if generation == "classic":
            kinds = halves["kind"].take(pa.array(rows, pa.int64())).to_pylist()
            ranks = [_RANK[kind] for kind in kinds]
        else:
            ranks = [int(row in inserts) for row in rows]
        ranked = sorted(range(len(rows)), key=ranks.__getitem__)
        if ranked != list(range(len(rows))):
            order = list(range(halves.num_rows)) if order is None else order
            for slot, number in zip(rows, ranked, strict=True):
                order[slot] = rows[number]
    return order


def _transactions(halves: pa.RecordBatch, inserts: set[int]) -> list[list[int]]:
    """The rows of each transaction and table that has a split update."""
    rows = pa.array(sorted(inserts), pa.int64())
    stamps = pc.unique(halves["commit_ts"].take(rows))
    near = pc.and_(pc.is_in(halves["commit_ts"], stamps), is_row(halves))
    places = pc.indices_nonzero(near).to_pylist()
    names = halves.select(list(_TRANSACTION)).take(pa.array(places, pa.int64())).to_pylist()
    found: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for place, name in zip(places, names, strict=True):
        found[tuple(name.values())].append(place)
    return [rows for rows in found.values() if not inserts.isdisjoint(rows)]
