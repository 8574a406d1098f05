"""The decoder of the Simple protocol, compiled: see decode.pyx."""

from tidegate.wire.codec.decoder import MessageDecoder

class SimpleDecoder(MessageDecoder):
    def __init__(self, out: object = None, *, encoding: str | None = None) -> None: ...
