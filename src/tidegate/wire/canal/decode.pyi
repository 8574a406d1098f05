"""The decoder of Canal-JSON, compiled: see decode.pyx."""

from tidegate.wire.codec.decoder import MessageDecoder

class CanalDecoder(MessageDecoder):
    def __init__(self, out: object = None, *, encoding: str | None = None) -> None: ...
