"""The Simple protocol, in JSON and in Avro: docs/protocols/simple.md."""

from tidegate.wire.simple.decode import OPTIONS, Decoder, Encoder

__all__ = ["OPTIONS", "Decoder", "Encoder"]
