"""Types of the compiled module."""

from collections.abc import Callable

from tidegate.wire.batch.builder import BatchReader, MessageBuilder
from tidegate.wire.batch.builder import Decoder as BatchDecoder
from tidegate.wire.batch.shapes import ShapeBook
from tidegate.wire.options import EncodeOptions

OPTIONS: frozenset[str]

class Decoder(BatchDecoder):
    def __init__(self, out: object = None, *, encoding: str | None = None) -> None: ...

class Encoder:
    def __init__(
        self, options: EncodeOptions, compress: Callable[[bytes], bytes] | None
    ) -> None: ...
    def encode(self, reader: BatchReader, shapes: ShapeBook, messages: MessageBuilder) -> None: ...
