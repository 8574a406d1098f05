"""Canal-JSON, compiled: see decode.pyx."""

from collections.abc import Callable

from tidegate.wire.batch import builder as batch
from tidegate.wire.batch.shapes import ShapeBook
from tidegate.wire.options import EncodeOptions

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
