"""What the two encoders of the Simple protocol share, compiled: see encode.pyx."""

from collections.abc import Callable

from tidegate.wire.batch.builder import BatchReader, MessageBuilder
from tidegate.wire.batch.shapes import ShapeBook
from tidegate.wire.options import EncodeOptions

OPTIONS: frozenset[str]
RECORD_OVERHEAD: int

class Encoder:
    def __init__(
        self, options: EncodeOptions, compress: Callable[[bytes], bytes] | None
    ) -> None: ...
    def encode(self, reader: BatchReader, shapes: ShapeBook, messages: MessageBuilder) -> None: ...
