"""The two calls of this layer: messages to a change batch, and a change batch to messages.

Each protocol has a package of its own with a `Decoder` and an `Encoder`; Simple has two encodings,
detected from the first byte of each message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from importlib import import_module
from typing import Any, TypeAlias

import pyarrow as pa

from tidegate.model import ConfigError, UnknownProtocol, UnsupportedByProtocol
from tidegate.wire.batch.bit_sets import unsigned_bit_sets
from tidegate.wire.batch.reader import BatchReader
from tidegate.wire.batch.shapes import ShapeBook
from tidegate.wire.codec import decoder as codec
from tidegate.wire.codec.messages import MessageBuilder
from tidegate.wire.kernel.claim_check import open_claim_check
from tidegate.wire.kernel.compression import MAX_EXPANDED_BYTES, compressor, expander
from tidegate.wire.options import EncodeOptions

PROTOCOLS = ("open-protocol", "canal-json", "simple", "craft", "cdc")
"""The protocols, by TiCDC's names."""

_MODULES = {
    "open-protocol": "open",
    "canal-json": "canal",
    "craft": "craft",
    "cdc": "cdc",
    "simple": "simple",
}

Bytes: TypeAlias = pa.Array | pa.ChunkedArray | Sequence[bytes | None]


def _module(protocol: str) -> Any:
    if protocol not in _MODULES:
        raise UnknownProtocol(protocol, PROTOCOLS)
    return import_module(f"tidegate.wire.{_MODULES[protocol]}")


def decode_batch(
    protocol: str,
    keys: Bytes | None,
    values: Bytes,
    *,
    topics: pa.Array | str | None = None,
    partitions: pa.Array | None = None,
    offsets: pa.Array | None = None,
    encoding: str | None = None,
    compression: str | None = None,
    claim_check: Callable[[str], bytes] | None = None,
    max_expanded_bytes: int = MAX_EXPANDED_BYTES,
) -> pa.RecordBatch:
    """Decodes messages into one change batch (see docs/batch.md).

    A message that cannot be read becomes a row of kind `error`; this call raises only for wrong
    arguments. `claim_check(location)` gives the bytes of a claim-check object. The result depends
    on nothing but the arguments.
    """
    module = _module(protocol)
    options = {} if encoding is None else {"encoding": encoding}
    expand = expander(protocol, compression, max_expanded_bytes)
    load = None if claim_check is None else open_claim_check(claim_check)
    batch: pa.RecordBatch = codec.decode(
        module.Decoder(**options),
        None if keys is None else codec.binary_array(keys),
        codec.binary_array(values),
        topics=topics,
        partitions=partitions,
        offsets=offsets,
        expand=expand,
        claim_check=load,
    )
    return batch


def encode_batch(
    protocol: str,
    batch: pa.RecordBatch,
    *,
    shapes: ShapeBook | None = None,
    options: EncodeOptions | None = None,
    **settings: Any,
) -> pa.RecordBatch:
    """Encodes the rows of a change batch into messages (MESSAGE_SCHEMA), in row order.

    `shapes` knows the shapes and schemas of the rows (default: those of this batch). Settings are
    those of EncodeOptions. Raises EncodeError for a row that the protocol cannot carry.
    """
    module = _module(protocol)
    options = _with_settings(options or EncodeOptions(), settings)
    unknown = _changed(options) - set(module.OPTIONS)
    if unknown:
        name = sorted(unknown)[0].replace("_", "-")
        raise UnsupportedByProtocol(protocol, f"the option {name}")
    if options.build_ts is None:
        options = replace(options, build_ts=time.time_ns() // 1_000_000)
    book = ShapeBook([batch]) if shapes is None else shapes
    batch = unsigned_bit_sets(batch, book)
    messages = MessageBuilder(2 * batch.nbytes)  # JSON repeats the names of columns
    compress = compressor(options.compression)
    module.Encoder(options, compress).encode(BatchReader(batch), book, messages)
    result: pa.RecordBatch = messages.finish()
    return result


def _with_settings(options: EncodeOptions, settings: dict[str, Any]) -> EncodeOptions:
    known = {field.name for field in fields(EncodeOptions)}
    for name in settings:
        if name not in known:
            raise ConfigError(name, f"the encoders know only {', '.join(sorted(known))}")
    return replace(options, **settings)


def _changed(options: EncodeOptions) -> set[str]:
    """The options that are not at their defaults, but for those that every protocol ignores."""
    default = EncodeOptions()
    return {
        field.name
        for field in fields(EncodeOptions)
        if getattr(options, field.name) != getattr(default, field.name)
    } - {"build_ts", "max_message_bytes", "max_batch_size", "time_zone"}


def messages(batches: Iterable[pa.RecordBatch]) -> Iterable[tuple[bytes | None, bytes]]:
    """Key and value of each message of encoded batches."""
    for batch in batches:
        yield from zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
