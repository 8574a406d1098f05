"""The JSON encoding of the Simple protocol, compiled: see simple_json.pyx."""

from collections.abc import Callable

from tidegate.wire import batch
from tidegate.wire.batch import BatchReader, MessageBuilder
from tidegate.wire.options import EncodeOptions
from tidegate.wire.shapes import ShapeBook

OPTIONS: frozenset[str]
RECORD_OVERHEAD: int

class Decoder(batch.Decoder):
    def __init__(self, out: object = None) -> None: ...

class Encoder:
    def __init__(
        self, options: EncodeOptions, compress: Callable[[bytes], bytes] | None
    ) -> None: ...
    def encode(self, reader: BatchReader, shapes: ShapeBook, messages: MessageBuilder) -> None: ...
