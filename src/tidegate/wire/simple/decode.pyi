"""Both encodings of the Simple protocol, compiled: see decode.pyx."""

from collections.abc import Callable
from types import ModuleType

from tidegate.wire.batch import builder as batch
from tidegate.wire.batch.builder import BatchReader, MessageBuilder
from tidegate.wire.batch.shapes import ShapeBook
from tidegate.wire.options import EncodeOptions

ENCODINGS: dict[str, ModuleType]
OPTIONS: frozenset[str]

class Decoder(batch.Decoder):
    def __init__(self, out: object = None, encoding: str | None = None) -> None: ...

class Encoder:
    def __init__(
        self, options: EncodeOptions, compress: Callable[[bytes], bytes] | None
    ) -> None: ...
    def encode(self, reader: BatchReader, shapes: ShapeBook, messages: MessageBuilder) -> None: ...
