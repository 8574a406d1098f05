"""The decoder of the Open Protocol, compiled: see decode.pyx."""

from tidegate.wire.codec.decoder import MessageDecoder

class OpenDecoder(MessageDecoder):
    def __init__(self, out: object = None, *, encoding: str | None = None) -> None: ...
