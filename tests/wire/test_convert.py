"""Any protocol to any other and back: nothing is lost that both can carry."""

from itertools import product

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support import corpus
from tidegate.model import EventFlag
from tidegate.wire import (
    PROTOCOLS,
    EncodeOptions,
    EventReader,
    ShapeBook,
    decode_batch,
    encode_batch,
)
from tidegate.wire.capabilities import not_carried

ENCODINGS = ("open-protocol", "canal-json", "simple json", "simple avro", "craft", "cdc")
FILES = {
    "open-protocol": "open.b1",
    "canal-json": "canal.ext",
    "simple json": "simple.json",
    "simple avro": "simple.avro",
    "craft": "craft.b16",
}
OPTIONS = {
    "canal-json": {"enable_tidb_extension": True},
    "simple avro": {"encoding_format": "avro"},
    "cdc": {"profile": "operations"},
}
SOURCES = [(scenario, name) for scenario in ("types", "ddl", "nopk") for name in FILES]


def convert(batch: pa.RecordBatch, shapes: ShapeBook, name: str) -> pa.RecordBatch:
    protocol = name.split()[0]
    encoded = encode_batch(protocol, batch, shapes=shapes, **OPTIONS.get(name, {}))
    changes = decode_batch(protocol, encoded["key"], encoded["value"])
    assert "error" not in changes["kind"].to_pylist()
    return changes


def seen(batch: pa.RecordBatch, shapes: ShapeBook, through: str, source: str) -> list[dict]:
    """The batch's events, less what the protocol `through` cannot carry."""
    lost = not_carried(
        source.split()[0], through.split()[0], EncodeOptions(**OPTIONS.get(through, {}))
    )
    events = []
    for event in EventReader(shapes).documents(batch):
        kept = {
            name: event[name]
            for name in ("kind", "commitTs", "database", "table", "after", "before")
            if name in event
        }
        if event["kind"] == "schema" or (event["kind"] == "watermark" and "watermarks" in lost):
            continue
        if event["kind"] == "ddl":
            kept["query"] = event["ddl"]["query"]
            if source.split()[0] != "simple":
                kept["type"] = event["ddl"]["type"]
            if "simple" in (source.split()[0], through.split()[0]):
                # Simple's DDL has its names in the schemas it brings, and other protocols bring none.
                kept.pop("database", None)
                kept.pop("table", None)
        if through == "cdc" and event["kind"] in ("insert", "update"):
            # cdc has no values before an update, without which Open and Craft show an insert.
            kept["kind"] = "insert or update"
            kept.pop("before", None)
        events.append(kept)
    return events


@pytest.mark.parametrize("through", ENCODINGS)
@pytest.mark.parametrize("scenario, source", SOURCES)
def test_there_and_back(scenario, source, through):
    messages = corpus.messages(f"{scenario}.{FILES[source]}")
    original = decode_batch(
        source.split()[0],
        [message.key for message in messages],
        [message.value for message in messages],
    )
    # Craft's FLOAT bytes are damaged by the sender: what they read as, no FLOAT column can hold.
    original = original.filter(pc.equal(pc.bit_wise_and(original["flags"], EventFlag.CORRUPTED), 0))
    shapes = ShapeBook([original])
    there = convert(original, shapes, through)
    shapes_there = ShapeBook([there])
    assert seen(there, shapes_there, through, source) == seen(original, shapes, through, source)
    back = convert(there, shapes_there, source)
    shapes_back = ShapeBook([back])
    assert seen(back, shapes_back, through, source) == seen(original, shapes, through, source)


@pytest.mark.parametrize("source, target", list(product(PROTOCOLS, PROTOCOLS)))
def test_what_is_lost_is_said(source, target):
    lost = not_carried(source, target, EncodeOptions())
    assert (source == target and target != "canal-json") <= (lost == [])
    assert ("deletes" in lost) == (target == "cdc" and source != "cdc")


def test_column_order_survives_protocols_that_keep_it():
    messages = corpus.messages("alias.craft.b16")
    original = decode_batch("craft", None, [message.value for message in messages])
    through = convert(original, ShapeBook([original]), "canal-json")
    is_row = pc.is_in(original["kind"], pa.array(["insert", "update", "delete"]))
    rows = pc.is_in(through["kind"], pa.array(["insert", "update", "delete"]))
    assert through.filter(rows)["after"] == original.filter(is_row)["after"]
