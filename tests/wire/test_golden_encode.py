"""The encoders write the bytes that TiCDC wrote: the truth as a change batch, encoded, is the golden file.

Two runs of TiCDC differ in the wall clock, in the order of Go's maps, in compressors' choices and in names of
claim-check objects: see `encoding.normal`. Avro's maps have no order at all: its messages are compared as read.
"""

import json
from base64 import b64decode
from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import pytest

from tests.support import corpus, decoding, encoding, expectation, truth, truth_batch
from tests.support.corpus import Message, Variant
from tests.support.truth import UPDATE, Event

Json = dict[str, Any]
BATCHING = ("open", "craft")


def is_written(variant: Variant) -> bool:
    """Streams need a dispatcher, and row keys are not part of a change batch."""
    return not variant.stream and "rowkey" not in variant.options


def files(where: Callable[[Variant], object]) -> Any:
    chosen = [variant for variant in corpus.variants() if is_written(variant) and where(variant)]
    return pytest.mark.parametrize("variant", chosen, ids=lambda variant: variant.name)


def written(variant: Variant, store: encoding.Store | None = None) -> list[Message]:
    """Our messages for a golden file; a batch begins where it had to begin there."""
    encoding.require(variant)
    batch = truth_batch.change_batch(variant)
    flushes: list[int] = []
    if variant.protocol in BATCHING and not encoding.is_limited(variant):
        size = encoding.settings(variant)["max_batch_size"]
        before = batch.num_rows - len(truth_batch.sent(variant))
        flushes = [before + place for place in truth_batch.flushes(variant, size)]
    return encoding.encode(variant, batch, flushes=flushes, store=store)


@files(lambda variant: variant.encoding != "avro" and "cc" not in variant.options)
def test_the_bytes_are_those_of_ticdc(variant: Variant) -> None:
    same_messages(variant, corpus.messages(variant.name), written(variant))


def same_messages(variant: Variant, golden: list[Message], ours: list[Message]) -> None:
    expected, actual = (
        [encoding.normal(variant, message) for message in messages] for messages in (golden, ours)
    )
    counts = [truth_batch.event_count(message) for message in golden]
    if not encoding.ends_alike(variant):
        expected, actual = (
            [[event] for event in chain(*messages)] for messages in (expected, actual)
        )
        counts = [1] * len(expected)
    events = iter(truth_batch.sent(variant))
    for number, (left, right, count) in enumerate(zip(expected, actual, counts, strict=False)):
        here = list(islice(events, count))
        if left != right:
            left = _mended(variant, left, right, here)
        if left != right:
            pytest.fail(encoding.first_difference(f"message {number}", left, right))
    assert len(actual) == len(expected)


def _mended(variant: Variant, golden: Any, ours: Any, events: list[Event]) -> Any:
    """The golden message without the known faults of TiCDC that it may have."""
    if variant.protocol == "craft":
        return encoding.mended_floats(ours, golden, events)
    if variant.protocol == "open" and variant.generation == "new" and len(golden) == len(ours):
        parts = zip(golden, ours, events, strict=True)
        return [
            (key, _mended_value(variant, value, mine, event))
            for (key, value), (_, mine), event in parts
        ]
    return golden


def _mended_value(variant: Variant, golden: bytes, ours: bytes, event: Event) -> bytes:
    """A value of the new architecture: ours, if it differs only where TiCDC is at fault."""
    if event.is_partition and encoding.without_flags(golden) == encoding.without_flags(ours):
        return ours  # the flags of a partitioned table are those before its last DDL
    if "updcols" in variant.options and event.kind == UPDATE and _turned_null(event):
        return ours if _same_but_for_old(golden, ours, event) else golden
    return golden


def _turned_null(event: Event) -> list[str]:
    after = {column.name: column.text for column in event.after or ()}
    return [
        old.name for old in event.before or () if old.text is not None and after[old.name] is None
    ]


def _same_but_for_old(golden: bytes, ours: bytes, event: Event) -> bool:
    """`p` must have all changed columns by name; the rest is as TiCDC writes it."""
    left, right = json.loads(golden), json.loads(ours)
    after = {column.name: column.text for column in event.after or ()}
    changed = [old.name for old in event.before or () if after[old.name] != old.text]
    return left["u"] == right["u"] and list(right["p"]) == changed


@files(lambda variant: variant.encoding != "avro" and "cc" in variant.options)
def test_the_bytes_of_claim_checks_are_those_of_ticdc(variant: Variant) -> None:
    encoding.require(variant)
    store = encoding.Store(encoding.locations(variant))
    ours = written(variant, store)
    load = corpus.claim_check_loader(variant.name)
    kept = [_unpacked(variant, load(location)) for location in store.locations]

    same_messages(variant, corpus.messages(variant.name), ours)
    assert len(store.objects) == len(store.locations)
    for golden, stored in zip(kept, store.objects, strict=True):
        mine = encoding.normal(variant, _unpacked(variant, stored))
        assert mine == encoding.normal(variant, golden)


def _unpacked(variant: Variant, content: bytes) -> Message:
    """The message within a claim-check object."""
    if "raw" in variant.options:
        return Message(0, None, content, "")
    document = json.loads(content)
    assert list(document) == ["key", "value"]
    key = None if document["key"] is None else b64decode(document["key"])
    return Message(0, key, b64decode(document["value"]), "")


@files(lambda variant: variant.encoding == "avro")
def test_avro_says_what_ticdc_says(variant: Variant) -> None:
    encoding.require(variant)
    store = encoding.Store(encoding.locations(variant))
    ours = written(variant, store)
    golden = corpus.messages(variant.name)
    objects = dict(zip(store.locations, store.objects, strict=False))
    whole = corpus.claim_check_loader(variant.name)

    assert len(ours) == len(golden)
    decoding.assert_same(_read(variant, golden, whole), _read(variant, ours, objects.__getitem__))
    assert len(store.objects) == len(store.locations)


def _read(variant: Variant, messages: list[Message], load: Callable[[str], bytes]) -> list[Json]:
    batches = decoding.decode_variant(variant, messages, claim_check=load)
    return [decoding.content(document) for document in decoding.documents(batches)]


@pytest.mark.parametrize("case", corpus.craft_sizes(mended=True), ids=lambda case: case["name"])
def test_craft_writes_whole_floats(case: Json) -> None:
    """The events of Craft's size table, with TiCDC's fault in FLOAT values mended in TiCDC itself."""
    variant = expectation.mended("craft", "mix")
    encoding.require(variant)
    rows = [truth.row_event(raw) for raw in case["events"]]
    ours = encoding.encode(variant, truth_batch.batch_of(variant, rows))

    assert [message.value for message in ours] == [
        message.value for message in corpus.case_messages(case["craft"])
    ]
