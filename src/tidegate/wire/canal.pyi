"""Canal-JSON, compiled: see canal.pyx."""

from collections.abc import Callable

from tidegate.wire import batch
from tidegate.wire.options import EncodeOptions
from tidegate.wire.shapes import ShapeBook

OPTIONS: frozenset[str]

class Decoder(batch.Decoder):
    def __init__(self, **options: object) -> None: ...

class Encoder:
    def __init__(
        self, options: EncodeOptions, compress: Callable[[bytes], bytes] | None = None
    ) -> None: ...
    def encode(
        self, reader: batch.BatchReader, shapes: ShapeBook, messages: batch.MessageBuilder
    ) -> None: ...
