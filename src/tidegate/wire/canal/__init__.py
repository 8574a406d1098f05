"""Canal-JSON: docs/protocols/canal-json.md."""

from tidegate.wire.canal.decode import OPTIONS, Decoder, Encoder

__all__ = ["OPTIONS", "Decoder", "Encoder"]
