"""The ids of shapes: one algorithm, for rows that were decoded and for tables that were read."""

from __future__ import annotations

from struct import pack

from tests.support import corpus
from tidegate.model import Column, TableSchema
from tidegate.wire import decode_batch
from tidegate.wire.batch.builder import shape_id_of
from tidegate.wire.batch.shapes import Shape, ShapeBook, shape_id
from tidegate.wire.kernel.text import stable_hash


def canonical(text: str | None) -> bytes:
    data = (text or "").encode()
    return pack("<i", -1 if text is None else len(data)) + data


def documented_id(shape: Shape, *, types: bool) -> int:
    """The hash of all that a shape says: strings after their lengths, numbers of 32 bits."""
    form = canonical(shape.database) + canonical(shape.table)
    for column in shape.columns:
        form += canonical(column.name) + canonical(column.type if types else None)
        form += canonical(column.zone)
        for number in (column.code, column.flags):
            form += pack("<i", -1 if number is None else number)
        form += pack("<i", column.key)
    return stable_hash(form) & (2**63 - 1)


def test_decoded_rows_have_the_documented_ids() -> None:
    messages = corpus.messages("bank.open.b1")
    batch = decode_batch(
        "open-protocol", [m.key for m in messages], [m.value or b"" for m in messages]
    )
    book = ShapeBook([batch])
    ids = {id_ for id_ in batch["shape"].to_pylist() if id_ is not None}
    shapes = {id_: book.shape(id_) for id_ in ids}
    assert ids
    assert {id_: documented_id(shape, types=False) for id_, shape in shapes.items() if shape} == {
        id_: id_ for id_ in ids
    }


def test_the_id_of_a_table_is_that_of_its_rows() -> None:
    columns = [("id", "bigint", 8, 11, True), ("name", "varchar", 15, 64, False)]
    form = canonical("shop") + canonical("orders")
    for name, type_, code, flags, key in columns:
        form += canonical(name) + canonical(type_) + canonical(None)
        form += pack("<iii", code, flags, key)
    assert shape_id_of("shop", "orders", columns) == stable_hash(form) & (2**63 - 1)


def test_a_virtual_column_is_no_part_of_the_shape() -> None:
    stored = Column(name="id", type="bigint", code=8)
    virtual = Column(name="twice", type="bigint", code=8, generated="virtual")
    plain = TableSchema(database="shop", table="orders", columns=(stored,))
    both = TableSchema(database="shop", table="orders", columns=(stored, virtual))
    other = TableSchema(database="shop", table="parts", columns=(stored,))
    assert shape_id(plain) == shape_id(both)
    assert shape_id(plain) != shape_id(other)
