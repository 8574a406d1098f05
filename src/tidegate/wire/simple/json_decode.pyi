"""The JSON encoding of the Simple protocol, compiled: see json_decode.pyx."""

from tidegate.wire.batch import builder as batch
from tidegate.wire.simple import encode as simple_encode

OPTIONS: frozenset[str]

class Decoder(batch.Decoder):
    def __init__(self, out: object = None) -> None: ...

class Encoder(simple_encode.Encoder): ...
