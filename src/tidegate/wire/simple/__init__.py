"""The Simple protocol, in JSON and in Avro: docs/protocols/simple.md."""

from collections.abc import Callable

from tidegate.wire.options import EncodeOptions
from tidegate.wire.simple.avro.encode import SimpleAvroEncoder
from tidegate.wire.simple.decode import SimpleDecoder as Decoder
from tidegate.wire.simple.encode import OPTIONS, SimpleEncoder
from tidegate.wire.simple.json.encode import SimpleJsonEncoder

__all__ = ["OPTIONS", "Decoder", "Encoder"]

_ENCODERS = {"json": SimpleJsonEncoder, "avro": SimpleAvroEncoder}


def Encoder(
    options: EncodeOptions, compress: Callable[[bytes], bytes] | None = None
) -> SimpleEncoder:
    """The encoder of the encoding that the options name."""
    return _ENCODERS[options.encoding_format](options, compress)
