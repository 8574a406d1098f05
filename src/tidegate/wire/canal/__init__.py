"""Canal-JSON: docs/protocols/canal-json.md."""

from tidegate.wire.canal.decode import CanalDecoder as Decoder
from tidegate.wire.canal.encode import OPTIONS
from tidegate.wire.canal.encode import CanalEncoder as Encoder

__all__ = ["OPTIONS", "Decoder", "Encoder"]
