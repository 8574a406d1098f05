"""The encoders as the golden tests call them, and what two encodings of the same may differ in."""

import json
import re
import struct
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from tests.support import corpus, decoding, expectation
from tests.support.corpus import Message, Variant
from tests.support.truth import Event

Json = dict[str, Any]
BUILD_TS = 1_700_000_000_000
FLOAT = 4


def settings(variant: Variant) -> Json:
    """The settings of the feed that wrote a golden file."""
    options = variant.options
    found: Json = {"build_ts": BUILD_TS, "max_batch_size": _batch_size(variant)}
    if variant.protocol == "open":
        found["generation"] = variant.generation
        found["output_old_value"] = "noold" not in options
    if variant.protocol == "canal":
        extended = expectation.rules(variant).watermarks
        found |= {"enable_tidb_extension": extended, "content_compatible": "compat" in options}
    if variant.protocol == "simple":
        found |= {"encoding_format": variant.encoding, "generation": variant.generation}
    if "updcols" in options:
        found["only_output_updated_columns"] = True
    if "delhk" in options and variant.protocol != "simple":  # where TiCDC does not heed it
        found["delete_only_output_handle_key_columns"] = True
    if "mix" in options:
        found["mix_tables"] = True
    if variant.compression:
        found["compression"] = variant.compression
    if options & {"hk", "cc"}:
        handle = "claim-check" if "cc" in options else "handle-key-only"
        found |= {"max_message_bytes": expectation.MESSAGE_LIMIT, "large_message_handle": handle}
    if "raw" in options:
        found["claim_check_raw_value"] = True
    return found


def _batch_size(variant: Variant) -> int:
    if variant.protocol == "open" and variant.compression and not variant.options:
        return 4
    single = {"b1", "noold", "updcols", "delhk"} if variant.protocol == "open" else {"b1"}
    return 1 if variant.options & single else 16


def require(variant: Variant) -> None:
    """Skips the test where the protocol has no encoder yet."""
    decoding.require(variant.protocol)
    module = import_module(f"tidegate.wire.{variant.protocol}")
    if not hasattr(module, "Encoder"):
        pytest.skip(f"{variant.protocol} has no encoder yet")


class Store:
    """A claim-check storage that gives objects the names they have in a golden file."""

    def __init__(self, locations: Sequence[str]) -> None:
        self.locations = locations
        self.objects: list[bytes] = []

    def __call__(self, content: bytes) -> str:
        self.objects.append(content)
        return self.locations[len(self.objects) - 1]


def encode(
    variant: Variant,
    batch: pa.RecordBatch,
    *,
    flushes: Sequence[int] = (),
    store: Store | None = None,
) -> list[Message]:
    """The messages that our encoder writes for a golden file.

    `flushes`: rows of the batch before which a new message must begin.
    """
    from tidegate.wire import ShapeBook, encode_batch

    chosen = settings(variant)
    if store is not None and "cc" in variant.options:
        chosen["claim_check"] = store
    shapes = ShapeBook([batch])
    found = []
    for start, end in pairwise((0, *flushes, batch.num_rows)):
        part = batch.slice(start, end - start)
        protocol = decoding.PROTOCOLS[variant.protocol]
        messages = encode_batch(protocol, part, shapes=shapes, **chosen)
        keys, values = (messages[name].to_pylist() for name in ("key", "value"))
        pairs = zip(keys, values, strict=True)
        found += [Message(0, key, value, "") for key, value in pairs]
    return found


def is_limited(variant: Variant) -> bool:
    """Whether messages are kept under a size, so that each byte counts for where they end."""
    return bool(variant.options & {"hk", "cc"})


def ends_alike(variant: Variant) -> bool:
    """Whether our messages must end where those of the golden file do.

    Not if sizes count and ours are other ones: compressed by another hand, or without the second
    `ohk` that the new architecture writes.
    """
    twice = variant.generation == "new" and "cc" in variant.options
    return not (is_limited(variant) and (variant.compression or twice))


def locations(variant: Variant) -> list[str]:
    """Where the claim-check objects of a golden file are, in the order of its messages."""
    messages = corpus.messages(variant.name)
    documents = decoding.documents(decoding.decode_variant(variant, messages))
    return [document["claimCheck"] for document in documents if "claimCheck" in document]


def expanded(variant: Variant, message: Message) -> Message:
    """The message without compression: two compressors need not write the same bytes."""
    from tidegate.wire.kernel.compression import MAX_EXPANDED_BYTES, expander

    expand = expander(decoding.PROTOCOLS[variant.protocol], variant.compression, MAX_EXPANDED_BYTES)
    if expand is None:
        return message
    key, value = expand(message.key, message.value)
    return message._replace(key=key, value=value)


_WALL_CLOCK = re.compile(rb'"(ts|buildTs)":\d{13}')
_ROW_ID = re.compile(rb',"rid":-?\d+')
_OHK_TWICE = b',"ohk":true,"ohk":false,"ccl":'
_FLAGS = re.compile(rb'"f":\d+')


def normal(variant: Variant, message: Message) -> Any:
    """A message without what two runs of TiCDC itself would write differently.

    For Open also without `rid`: the number of a row that no column holds.
    """
    message = expanded(variant, message)
    value = message.value or b""
    if variant.protocol == "open":
        keys, values = expectation.split_open(message)
        return [(_open_key(key), value) for key, value in zip(keys, values, strict=True)]
    if variant.protocol == "canal":
        return _without_map_order(_WALL_CLOCK.sub(rb'"\1":0', value, count=1))
    if variant.encoding == "json":
        return _WALL_CLOCK.sub(rb'"\1":0', value, count=1)
    return value


def _open_key(key: bytes) -> bytes:
    # The new architecture says twice whether only the handle key is there; the second is right.
    return _ROW_ID.sub(b"", key).replace(_OHK_TWICE, b',"ohk":false,"ccl":')


def without_flags(value: bytes) -> bytes:
    """An Open value without the flags of its columns."""
    return _FLAGS.sub(b'"f":0', value)


def _without_map_order(value: bytes) -> bytes:
    text = value.decode()
    start = text.find('"mysqlType":{') + len('"mysqlType":')
    if start < len('"mysqlType":'):
        return value
    types, end = json.JSONDecoder().raw_decode(text, start)
    return (text[:start] + json.dumps(dict(sorted(types.items()))) + text[end:]).encode()


def mended_floats(ours: bytes, golden: bytes, events: Sequence[Event]) -> bytes:
    """A Craft message of TiCDC with the tails of its FLOAT values as they should be.

    Where the messages differ, ours must have a FLOAT of these rows as eight bytes, of which the
    golden one has the first four.
    """
    floats = set(_float_bytes(events))
    mended = bytearray(golden)
    for place, (left, right) in enumerate(zip(ours, golden, strict=False)):
        if left != right:
            for start in range(place - 7, place - 3):
                whole = ours[start : start + 8]
                if whole in floats and golden[start : start + 4] == whole[:4]:
                    mended[start : start + 8] = whole
    return bytes(mended)


def _float_bytes(events: Sequence[Event]) -> Iterator[bytes]:
    for event in events:
        for column in (*(event.after or ()), *(event.before or ())):
            if column.code == FLOAT and column.text is not None:
                (single,) = struct.unpack("<f", struct.pack("<f", float(column.text)))
                yield struct.pack("<d", single)


def first_difference(name: str, expected: Any, actual: Any) -> str:
    """Where two normal forms of a message begin to differ."""
    left, right = (repr(side) for side in (expected, actual))
    pairs = zip(left, right, strict=False)
    place = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
    start = max(0, place - 150)
    return f"{name}, character {place}:\n  …{right[start : place + 250]}\nexpected\n  …{left[start : place + 250]}"
