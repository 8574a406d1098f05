"""The decoder of `cdc`, compiled: see decode.pyx."""

from tidegate.wire.codec.decoder import MessageDecoder

class CdcDecoder(MessageDecoder):
    def __init__(self, out: object = None, *, encoding: str | None = None) -> None: ...
