"""The columns of a batch in which few rows have a value, or none: nulls are shared between batches."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tidegate.wire import CHANGE_SCHEMA, decode_batch

# Around a vector's width and around the length of the shared nulls.
LENGTHS = (1, 15, 16, 17, 127, 65_535, 65_536, 65_537)


def watermark(commit_ts: int) -> bytes:
    return b'{"version":1,"type":"WATERMARK","commitTs":%d,"buildTs":1}' % commit_ts


@pytest.mark.parametrize("total", LENGTHS)
@pytest.mark.parametrize("few", [0, 1, 16, 17])
def test_what_few_rows_have_stands_in_their_rows(total: int, few: int) -> None:
    bad = set(random.Random(total).sample(range(total), min(few, total)))
    values = [b"bad %d" % i if i in bad else watermark(i + 1) for i in range(total)]
    batch = decode_batch("simple", None, pa.array(values, pa.binary()))
    batch.validate(full=True)
    assert batch.schema == CHANGE_SCHEMA
    assert batch["kind"].to_pylist() == ["error" if i in bad else "watermark" for i in range(total)]
    assert batch["commit_ts"].to_pylist() == [None if i in bad else i + 1 for i in range(total)]
    found = batch["error"].to_pylist()
    assert {
        i for i, error in enumerate(found) if error and error["code"] and error["reason"]
    } == bad
    assert found.count(None) == total - len(bad)
    assert batch["raw_value"].to_pylist() == [values[i] if i in bad else None for i in range(total)]
    for name in ("topic", "offset", "database", "table_id", "shape", "after", "schema", "ddl"):
        assert batch[name].null_count == len(batch[name]) == total


def test_a_batch_keeps_its_nulls_when_others_come_and_go() -> None:
    first = decode_batch("simple", None, pa.array([watermark(1), b"bad"], pa.binary()))
    before = first.to_pylist()
    for total in LENGTHS:
        decode_batch("simple", None, pa.array([b"bad", *[watermark(2)] * total], pa.binary()))
    first.validate(full=True)
    assert first.to_pylist() == before
