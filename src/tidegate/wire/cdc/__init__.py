"""The cdc protocol: docs/protocols/cdc.md."""

from tidegate.wire.cdc.decode import OPTIONS, Decoder, Encoder

__all__ = ["OPTIONS", "Decoder", "Encoder"]
