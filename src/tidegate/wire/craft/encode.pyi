"""The encoder of Craft, compiled: see encode.pyx."""

from tidegate.wire.codec.encoder import MessageEncoder

OPTIONS: frozenset[str]

class CraftEncoder(MessageEncoder): ...
