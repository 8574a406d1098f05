"""The TiCDC Open Protocol: docs/protocols/open-protocol.md."""

from tidegate.wire.open.decode import OPTIONS, Decoder, Encoder

__all__ = ["OPTIONS", "Decoder", "Encoder"]
