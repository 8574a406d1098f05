"""Both encodings of the Simple protocol, compiled: see simple.pyx."""

from collections.abc import Callable
from types import ModuleType

from tidegate.wire import batch
from tidegate.wire.batch import BatchReader, MessageBuilder
from tidegate.wire.options import EncodeOptions
from tidegate.wire.shapes import ShapeBook

ENCODINGS: dict[str, ModuleType]
OPTIONS: frozenset[str]

class Decoder(batch.Decoder):
    def __init__(self, out: object = None, encoding: str | None = None) -> None: ...

class Encoder:
    def __init__(
        self, options: EncodeOptions, compress: Callable[[bytes], bytes] | None
    ) -> None: ...
    def encode(self, reader: BatchReader, shapes: ShapeBook, messages: MessageBuilder) -> None: ...
