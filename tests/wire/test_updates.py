"""Old rows without what did not change: nothing is lost, and nothing else is touched."""

import random

import pyarrow as pa
import pytest

from tests.support import corpus
from tests.support.decoding import decode_variant
from tidegate.wire import CHANGE_SCHEMA
from tidegate.wire.batch.updates import omit_unchanged


def batch_of(*rows):
    """A change batch of (before, after, before_missing)."""
    columns = {"before": 0, "after": 1, "before_missing": 2}
    arrays = [
        pa.array([row[columns[name]] for row in rows], field.type)
        if name in columns
        else pa.nulls(len(rows), field.type)
        for name, field in zip(CHANGE_SCHEMA.names, CHANGE_SCHEMA, strict=True)
    ]
    nullable = pa.schema([field.with_nullable(True) for field in CHANGE_SCHEMA])
    return pa.RecordBatch.from_arrays(arrays, schema=nullable)


def is_missing(row, place):
    bits = row["before_missing"]
    return bits is not None and bool(bits[place >> 3] >> (place & 7) & 1)


def old_rows(batch):
    """What the rows were before, where a column that is missing is as in the new row."""
    return [
        None
        if row["before"] is None
        else [
            (row["after"] or row["before"])[place] if is_missing(row, place) else value
            for place, value in enumerate(row["before"])
        ]
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize(
    ("before", "after", "missing", "stored", "marked"),
    [
        pytest.param(["1", "x"], ["1", "y"], None, [None, "x"], b"\x01", id="one is the same"),
        pytest.param(["1", "x"], ["2", "y"], None, ["1", "x"], None, id="all differ"),
        pytest.param(["1", "x"], ["1", "x"], None, [None, None], b"\x03", id="none differs"),
        pytest.param(["1", None], ["1", None], None, [None, None], b"\x03", id="NULL as NULL"),
        pytest.param(["1", None], ["1", ""], None, [None, None], b"\x01", id="NULL is not empty"),
        pytest.param(["1", ""], ["1", None], None, [None, ""], b"\x01", id="empty is not NULL"),
        pytest.param([None, "x"], ["1", "y"], b"\x01", [None, "x"], b"\x01", id="was missing"),
        pytest.param(["1", "x"], ["10", "xy"], None, ["1", "x"], None, id="beginnings"),
        pytest.param(["1", "x"], None, None, ["1", "x"], None, id="a delete"),
        pytest.param(["1", None], None, b"\x02", ["1", None], b"\x02", id="a partial delete"),
        pytest.param(None, ["1", "x"], None, None, None, id="an insert"),
        pytest.param(["1"], ["1", "x"], None, ["1"], None, id="rows of different lengths"),
        pytest.param(
            [*"abcdefgh", "x"], [*"abcdefgh", "y"], None, [None] * 8 + ["x"], b"\xff\x00", id="9"
        ),
    ],
)
def test_only_what_differs_is_kept(before, after, missing, stored, marked):
    others = (["0", "p"], ["0", "q"], None), (["7"], None, None), (None, ["8"], None)
    batch = batch_of(*others, (before, after, missing), *others)
    omitted = omit_unchanged(batch)
    omitted.validate(full=True)
    row = omitted.slice(3, 1).to_pylist()[0]
    assert (row["before"], row["after"], row["before_missing"]) == (stored, after, marked)


@pytest.mark.parametrize("seed", range(5))
def test_old_rows_can_be_restored_also_from_slices(seed):
    chance = random.Random(seed)

    def values(count):
        return [chance.choice(["", "a", "ab", "é" * 9, None]) for _ in range(count)]

    rows = []
    for _ in range(200):
        width = chance.choice([0, 1, 7, 8, 9, 40])
        before, after = values(width), values(width)
        if chance.random() < 0.5:
            after = [chance.choice(pair) for pair in zip(before, after, strict=True)]
        rows.append((before, after, None) if chance.random() < 0.8 else (before, None, None))
    whole = batch_of(*rows)
    for batch in (whole, whole.slice(13), whole.slice(50, 100), whole.slice(60, 1)):
        omitted = omit_unchanged(batch)
        omitted.validate(full=True)
        assert old_rows(omitted) == old_rows(batch)
        assert omitted.drop_columns(["before", "before_missing"]) == batch.drop_columns(
            ["before", "before_missing"]
        )


@pytest.mark.parametrize("variant", corpus.variants(), ids=lambda variant: variant.name)
def test_old_rows_of_every_protocol_can_be_restored(variant):
    for batch in decode_variant(variant, corpus.messages(variant.name)):
        omitted = omit_unchanged(batch)
        omitted.validate(full=True)
        assert omitted.schema == batch.schema
        assert old_rows(omitted) == old_rows(batch)
        assert old_rows(omit_unchanged(omitted)) == old_rows(batch)


def test_a_batch_without_updates_is_not_touched():
    batch = batch_of((None, ["1"], None), (None, None, None))
    assert omit_unchanged(batch) is batch
    batch = batch_of((None, ["1"], None), (["1"], None, None))
    assert omit_unchanged(batch) is batch
