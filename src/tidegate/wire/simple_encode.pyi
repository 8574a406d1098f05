"""What the two encoders of the Simple protocol share, compiled: see simple_encode.pyx."""

from collections.abc import Callable

from tidegate.wire.batch import BatchReader, MessageBuilder
from tidegate.wire.options import EncodeOptions
from tidegate.wire.shapes import ShapeBook

OPTIONS: frozenset[str]
RECORD_OVERHEAD: int

class Encoder:
    def __init__(
        self, options: EncodeOptions, compress: Callable[[bytes], bytes] | None
    ) -> None: ...
    def encode(self, reader: BatchReader, shapes: ShapeBook, messages: MessageBuilder) -> None: ...
