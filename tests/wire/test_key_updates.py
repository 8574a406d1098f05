"""Updates that change a key are marked, whatever their shape; others are not."""

import pytest

from tests.support import corpus
from tests.support.decoding import decode_variant
from tidegate.model import EventFlag
from tidegate.wire import decode_batch
from tidegate.wire.batch.key_updates import mark_moves


def canal(kind, data, old=None, keys=("id", "part"), commit_ts=1 << 20):
    import json

    types = dict.fromkeys(data, "int")
    return json.dumps(
        {
            "id": 0,
            "database": "d",
            "table": "t",
            "pkNames": list(keys),
            "isDdl": False,
            "type": kind,
            "es": 4,
            "ts": 5,
            "sql": "",
            "sqlType": dict.fromkeys(data, 4),
            "mysqlType": types,
            "old": None if old is None else [old],
            "data": [data],
            "_tidb": {"commitTs": commit_ts},
        }
    ).encode()


def marked(messages):
    batch = mark_moves(decode_batch("canal-json", None, messages))
    rows = [row for row in batch.to_pylist() if row["kind"] != "schema"]
    return [bool(row["flags"] & EventFlag.MOVED) for row in rows]


def test_an_update_of_any_column_of_the_key_is_marked():
    row = {"id": "1", "part": "2", "v": "3"}
    assert marked(
        [
            canal("INSERT", row),
            canal("UPDATE", row, {**row, "v": "9"}),
            canal("UPDATE", row, {**row, "id": "7"}),
            canal("UPDATE", row, {**row, "part": "8"}),
            canal("DELETE", row),
        ]
    ) == [False, False, True, True, False]


def test_what_the_old_row_does_not_carry_has_not_changed():
    row = {"id": "1", "part": "2", "v": "3"}
    assert marked([canal("UPDATE", row, {"v": "9"}), canal("UPDATE", row, {"id": "9"})]) == [
        False,
        True,
    ]


def test_several_shapes_in_a_batch():
    one, other = {"id": "1", "v": "3"}, {"n": "1", "id": "2"}
    assert marked(
        [
            canal("UPDATE", one, {**one, "id": "9"}, keys=["id"]),
            canal("UPDATE", other, {**other, "n": "9"}, keys=["id"]),
            canal("UPDATE", other, {**other, "n": "9"}, keys=["n"]),
            canal("UPDATE", other, {**other, "n": "9"}, keys=[]),
        ]
    ) == [True, False, True, False]


@pytest.mark.parametrize("name", ["types.open.b16", "types.canal.ext", "bank.craft.b16"])
def test_ticdc_splits_what_it_sends(name):
    variant = corpus.variant(name)
    (batch,) = decode_variant(variant, corpus.messages(name))
    assert mark_moves(batch).equals(batch)
