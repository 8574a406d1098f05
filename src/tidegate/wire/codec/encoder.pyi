"""The base of all encoders, compiled: see encoder.pyx."""

from collections.abc import Callable

from tidegate.wire.batch.reader import BatchReader
from tidegate.wire.batch.shapes import ShapeBook
from tidegate.wire.codec.messages import MessageBuilder
from tidegate.wire.options import EncodeOptions

class MessageEncoder:
    def __init__(
        self, options: EncodeOptions, compress: Callable[[bytes], bytes] | None = None
    ) -> None: ...
    def encode(self, reader: BatchReader, shapes: ShapeBook, messages: MessageBuilder) -> None: ...
