"""The Simple protocol: JSON or Avro, detected from the first byte of each message.

A JSON message is an object, perhaps after white space; an Avro message begins with the index of a
union's branch, which is neither. Both decoders write into one batch.
"""

from tidegate.model import ConfigError
from tidegate.wire.simple.avro.decode import SimpleAvroDecoder
from tidegate.wire.simple.json.decode import SimpleJsonDecoder

from tidegate.wire.codec.prelude cimport *

ENCODINGS = ("json", "avro")


cdef class SimpleDecoder(MessageDecoder):
    """Decodes messages of both encodings, or, with `encoding`, of that one alone."""
    cdef MessageDecoder json
    cdef MessageDecoder avro

    def __init__(self, BatchBuilder out=None, encoding=None):
        if encoding is not None and encoding not in ENCODINGS:
            raise ConfigError("encoding", f"{encoding!r} is not one of {', '.join(ENCODINGS)}")
        if encoding != "avro":
            self.json = SimpleJsonDecoder(out=self.out)
        if encoding != "json":
            self.avro = SimpleAvroDecoder(out=self.out)

    cdef int message(self, Message *m, Cursor *c) noexcept nogil:
        if m.value == NULL or m.value_size == 0:
            return fail(c, FAULT_EMPTY)
        if self.avro is None or (self.json is not None and _begins_json(m.value[0])):
            return self.json.message(m, c)
        return self.avro.message(m, c)


cdef inline bint _begins_json(uint8_t byte) noexcept nogil:
    return byte == c'{' or byte == 0x20 or byte == 0x0a or byte == 0x0d or byte == 0x09
