"""The Avro encoding of the Simple protocol, compiled: see simple_avro.pyx."""

from tidegate.wire import batch, simple_encode

OPTIONS: frozenset[str]

class Decoder(batch.Decoder):
    def __init__(self, out: object = None) -> None: ...

class Encoder(simple_encode.Encoder): ...
