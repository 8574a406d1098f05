"""The encoder of Simple in JSON, compiled: see encode.pyx."""

from tidegate.wire.simple.encode import SimpleEncoder

class SimpleJsonEncoder(SimpleEncoder): ...
