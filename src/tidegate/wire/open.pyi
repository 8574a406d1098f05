from collections.abc import Callable
from typing import Any

from tidegate.wire.batch import BatchReader, MessageBuilder
from tidegate.wire.options import EncodeOptions
from tidegate.wire.shapes import ShapeBook

OPTIONS: frozenset[str]

class Decoder:
    def __init__(self, out: Any = None, **options: Any) -> None: ...

class Encoder:
    def __init__(
        self, options: EncodeOptions, compress: Callable[[bytes], bytes] | None
    ) -> None: ...
    def encode(self, reader: BatchReader, shapes: ShapeBook, messages: MessageBuilder) -> None: ...
