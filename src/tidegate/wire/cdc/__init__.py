"""The `cdc` binary format: docs/protocols/cdc.md."""

from tidegate.wire.cdc.decode import CdcDecoder as Decoder
from tidegate.wire.cdc.encode import OPTIONS
from tidegate.wire.cdc.encode import CdcEncoder as Encoder

__all__ = ["OPTIONS", "Decoder", "Encoder"]
