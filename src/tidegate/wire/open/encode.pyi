"""The encoder of the Open Protocol, compiled: see encode.pyx."""

from tidegate.wire.codec.encoder import MessageEncoder

OPTIONS: frozenset[str]

class OpenEncoder(MessageEncoder): ...
