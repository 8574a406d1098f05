"""The TiCDC Open Protocol: docs/protocols/open-protocol.md."""

from tidegate.wire.open.decode import OpenDecoder as Decoder
from tidegate.wire.open.encode import OPTIONS
from tidegate.wire.open.encode import OpenEncoder as Encoder

__all__ = ["OPTIONS", "Decoder", "Encoder"]
