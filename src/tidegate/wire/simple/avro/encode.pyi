"""The encoder of Simple in Avro, compiled: see encode.pyx."""

from tidegate.wire.simple.encode import SimpleEncoder

class SimpleAvroEncoder(SimpleEncoder): ...
