"""The encoder of `cdc`, compiled: see encode.pyx."""

from tidegate.wire.codec.encoder import MessageEncoder

OPTIONS: frozenset[str]

class CdcEncoder(MessageEncoder): ...
