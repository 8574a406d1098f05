from collections.abc import Callable
from typing import Any

from tidegate.wire.batch.builder import BatchReader, MessageBuilder
from tidegate.wire.batch.shapes import ShapeBook
from tidegate.wire.options import EncodeOptions

OPTIONS: frozenset[str]

class Decoder:
    def __init__(self, out: Any = None, **options: Any) -> None: ...

class Encoder:
    def __init__(
        self, options: EncodeOptions, compress: Callable[[bytes], bytes] | None
    ) -> None: ...
    def encode(self, reader: BatchReader, shapes: ShapeBook, messages: MessageBuilder) -> None: ...
