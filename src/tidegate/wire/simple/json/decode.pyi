"""The decoder of Simple in JSON, compiled: see decode.pyx."""

from tidegate.wire.codec.decoder import MessageDecoder

class SimpleJsonDecoder(MessageDecoder):
    def __init__(self, out: object = None, *, encoding: str | None = None) -> None: ...
