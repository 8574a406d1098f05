"""The JSON encoding of the Simple protocol, compiled: see simple_json.pyx."""

from tidegate.wire import batch, simple_encode

OPTIONS: frozenset[str]

class Decoder(batch.Decoder):
    def __init__(self, out: object = None) -> None: ...

class Encoder(simple_encode.Encoder): ...
