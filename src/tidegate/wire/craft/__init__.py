"""The Craft protocol: docs/protocols/craft.md."""

from tidegate.wire.craft.decode import OPTIONS, Decoder, Encoder

__all__ = ["OPTIONS", "Decoder", "Encoder"]
