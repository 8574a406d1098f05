"""The encoder of Canal-JSON, compiled: see encode.pyx."""

from tidegate.wire.codec.encoder import MessageEncoder

OPTIONS: frozenset[str]

class CanalEncoder(MessageEncoder): ...
