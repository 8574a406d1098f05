"""The decoder of Craft, compiled: see decode.pyx."""

from tidegate.wire.codec.decoder import MessageDecoder

class CraftDecoder(MessageDecoder):
    def __init__(self, out: object = None, *, encoding: str | None = None) -> None: ...
