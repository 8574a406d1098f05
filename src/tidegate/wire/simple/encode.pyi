"""What the two encoders of the Simple protocol share, compiled: see encode.pyx."""

from tidegate.wire.codec.encoder import MessageEncoder

OPTIONS: frozenset[str]

class SimpleEncoder(MessageEncoder): ...
