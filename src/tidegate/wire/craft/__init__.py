"""The Craft protocol: docs/protocols/craft.md."""

from tidegate.wire.craft.decode import CraftDecoder as Decoder
from tidegate.wire.craft.encode import OPTIONS
from tidegate.wire.craft.encode import CraftEncoder as Encoder

__all__ = ["OPTIONS", "Decoder", "Encoder"]
