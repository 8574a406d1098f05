"""Whole feeds, sent: the messages of the golden streams, on the same partitions.

The streams have rows sent again, which are left out here; in which order TiCDC writes rows of
different keys that it found in its queue together, no rule tells.
"""

import json
import re
from collections import defaultdict
from itertools import groupby
from typing import NamedTuple

import pytest

from tests.support import corpus, decoding, encoding, truth, truth_batch
from tests.support.corpus import Message
from tidegate.changefeed.config.changefeed import ChangefeedConfig, DispatchRule
from tidegate.changefeed.send.changefeed import Changefeed

PARTITIONS = 3
# Of the largest scenario one feed a protocol, for the sake of time.
LARGEST = {"open.updcols", "canal.compat.ext", "craft.b16", "simple.avro"}
STREAMS = [
    variant
    for variant in corpus.variants()
    if variant.stream
    and (
        variant.scenario != "mixed1" or variant.name.split(".", 1)[1][: -len(".stream")] in LARGEST
    )
]
JOINING = ("open", "craft")
OTHER_SETTINGS = {"build_ts", "generation", "mix_tables"}
ROW_KEY = re.compile(rb',"rowkey":"[^"]*"')


def changefeed(variant, **settings):
    told = {k: v for k, v in encoding.settings(variant).items() if k not in OTHER_SETTINGS}
    config = ChangefeedConfig(
        protocol=decoding.PROTOCOLS[variant.protocol],
        dispatchers=(DispatchRule(("*.*",), "index-value"),),
        partition_num=PARTITIONS,
        **told,
    )
    settings = {"clock": lambda: 0.0, "watermark_interval": 0} | settings
    return Changefeed(config, generation=variant.generation, build_ts=encoding.BUILD_TS, **settings)


def messages(batch):
    columns = (batch[name].to_pylist() for name in ("partition", "key", "value"))
    return [Message(*row, "") for row in zip(*columns, strict=True)]


def sent(variant, size=1000):
    feed = changefeed(variant)
    batch = truth_batch.source_batch(variant)
    found = []
    for start in range(0, batch.num_rows, size):
        found += messages(feed.send(batch.slice(start, size)))
    return found + messages(feed.close())


class Unit(NamedTuple):
    """One event of a message: what it is, the row that it is of, and how it is written."""

    kind: str
    row: str
    written: object


def units(variant, found):
    """The events of each partition in order, each once."""
    batches = decoding.decode_variant(variant, found)
    normal = {}
    for message, offset in zip(found, decoding.offsets(found), strict=True):
        normal[message.partition, offset] = written(variant, message)
    by_partition = defaultdict(dict)
    for document in decoding.documents(batches):
        place = document["partition"], document["offset"]
        event = normal[place]
        if isinstance(event, list):
            event = event[document["event"]]
        if event is None:
            event = json.dumps(without_floats(decoding.content(document)), sort_keys=True)
        values = document.get("after") or document.get("before") or {}
        key = [values[name] for name in document.get("keys", ())]
        row = json.dumps([document.get("database"), document.get("table"), key])
        by_partition[document["partition"]][Unit(document["kind"], row, event)] = None
    return {partition: list(found) for partition, found in by_partition.items()}


def written(variant, message):
    """The bytes of a message without what differs from run to run; None: only what it says."""
    if variant.protocol == "craft" or variant.encoding == "avro":
        return None
    if "rowkey" in variant.options:  # no change batch has it
        message = message._replace(value=ROW_KEY.sub(b"", message.value))
    return encoding.normal(variant, message)


def without_floats(document):
    """TiCDC spoils the FLOAT values of Craft."""
    floats = {name for name, type_ in document.get("types", {}).items() if type_ == "float"}
    for side in ("after", "before"):
        if side in document:
            document[side] = {k: v for k, v in document[side].items() if k not in floats}
    return document


def comparable(found, *, joined):
    """The units in order; where rows are joined, by row between DDL and watermarks."""
    if not joined:
        return found
    parts = []
    for is_row, part in groupby(found, key=lambda unit: unit.kind in truth.ROWS):
        part = list(part)
        parts += sorted(part, key=lambda unit: unit.row) if is_row else part
    return parts


@pytest.mark.parametrize("variant", STREAMS, ids=lambda variant: variant.name)
def test_the_messages_are_those_of_ticdc(variant):
    encoding.require(variant)
    joined = variant.protocol in JOINING
    golden = units(variant, corpus.messages(variant.name))
    ours = units(variant, sent(variant))
    assert sorted(ours) == sorted(golden) == list(range(PARTITIONS))
    for partition in range(PARTITIONS):
        expected, actual = (comparable(side[partition], joined=joined) for side in (golden, ours))
        for number, (left, right) in enumerate(zip(expected, actual, strict=False)):
            if left != right:
                where = f"partition {partition}, event {number}"
                pytest.fail(encoding.first_difference(where, left, right))
        assert len(actual) == len(expected)
