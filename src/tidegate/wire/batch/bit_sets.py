"""BIT and SET values that came as signed numbers.

Simple's Avro encoding has only signed longs, and its rows do not tell a BIT from a BIGINT: a BIT or
SET whose highest of 64 bits is set reads as a negative number until the table schema is known.
"""

from __future__ import annotations

from bisect import bisect_right

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model import MySQLType
from tidegate.wire.batch.shapes import ShapeBook

_BIT_SETS = (MySQLType.BIT, MySQLType.SET)
_ROW = ("shape", "schema_version")


def unsigned_bit_sets(batch: pa.RecordBatch, shapes: ShapeBook) -> pa.RecordBatch:
    """The batch with every BIT and SET, as far as `shapes` knows them, as an unsigned number."""
    if not any(shapes.has_type(code) for code in _BIT_SETS):
        return batch
    if batch.column("schema_version").null_count == batch.num_rows:
        return batch  # no row is Simple's
    places = _places(batch, shapes)
    if not places:
        return batch
    for side in ("after", "before"):
        index = batch.schema.get_field_index(side)
        mended = _mended(batch, batch.column(index), places)
        if mended is not None:
            batch = batch.set_column(index, batch.schema.field(index), mended)
    return batch


def _places(batch: pa.RecordBatch, shapes: ShapeBook) -> dict[tuple[int, int], set[int]]:
    """For each shape and version in use, which of its columns are BIT or SET."""
    used = pa.Table.from_batches([batch.select(_ROW)]).group_by(list(_ROW)).aggregate([])
    bit_sets = {}
    for key in zip(*(used[name].to_pylist() for name in _ROW), strict=True):
        shape = None if None in key else shapes.shape(*key)
        if shape is not None:
            bit_sets[key] = {i for i, one in enumerate(shape.columns) if one.code in _BIT_SETS}
    return {key: columns for key, columns in bit_sets.items() if columns}


def _mended(
    batch: pa.RecordBatch, rows: pa.ListArray, places: dict[tuple[int, int], set[int]]
) -> pa.ListArray | None:
    """The rows without negative values in these places; None if they have none."""
    cells = rows.values
    negative = pc.indices_nonzero(pc.starts_with(cells, "-")).to_pylist()
    if not negative:
        return None
    begins = rows.offsets.to_pylist()
    keys = list(zip(*(batch.column(name).to_pylist() for name in _ROW), strict=True))
    texts = cells.to_pylist()
    for cell in negative:
        row = bisect_right(begins, cell) - 1
        if 0 <= row < len(keys) and cell - begins[row] in places.get(keys[row], ()):
            texts[cell] = str(int(texts[cell]) + (1 << 64))
    return pa.ListArray.from_arrays(
        pa.array(begins, pa.int32()),
        pa.array(texts, cells.type),
        type=rows.type,
        mask=rows.is_null(),
    )
