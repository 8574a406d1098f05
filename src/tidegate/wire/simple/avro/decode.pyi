"""The decoder of Simple in Avro, compiled: see decode.pyx."""

from tidegate.wire.codec.decoder import MessageDecoder

class SimpleAvroDecoder(MessageDecoder):
    def __init__(self, out: object = None, *, encoding: str | None = None) -> None: ...
