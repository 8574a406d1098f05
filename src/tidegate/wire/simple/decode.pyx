"""The Simple protocol: JSON or Avro, told apart by the first byte of each message.

A JSON message is an object, perhaps behind white space; an Avro message begins with the index of a
union's branch, which is neither. Both halves write into one batch.
"""

from libc.stdint cimport uint8_t

from tidegate.model import ConfigError
from tidegate.wire.simple import avro_decode as simple_avro
from tidegate.wire.simple import json_decode as simple_json

from tidegate.wire.batch.builder cimport BatchBuilder
from tidegate.wire.batch.builder cimport Decoder as BatchDecoder
from tidegate.wire.batch.builder cimport Message
from tidegate.wire.kernel.cursor cimport FAULT_EMPTY, Cursor, fail

ENCODINGS = {"json": simple_json, "avro": simple_avro}
OPTIONS = simple_json.OPTIONS


cdef class Decoder(BatchDecoder):
    """Decodes messages of both encodings, or, with `encoding`, of that one alone."""
    cdef BatchDecoder json
    cdef BatchDecoder avro

    def __init__(self, BatchBuilder out=None, encoding=None):
        if encoding is not None and encoding not in ENCODINGS:
            raise ConfigError("encoding", f"{encoding!r} is not one of {', '.join(ENCODINGS)}")
        if encoding != "avro":
            self.json = simple_json.Decoder(out=self.out)
        if encoding != "json":
            self.avro = simple_avro.Decoder(out=self.out)

    cdef int message(self, Message *m, Cursor *c) noexcept nogil:
        if m.value == NULL or m.value_size == 0:
            return fail(c, FAULT_EMPTY)
        if self.avro is None or (self.json is not None and _begins_json(m.value[0])):
            return self.json.message(m, c)
        return self.avro.message(m, c)


cdef inline bint _begins_json(uint8_t byte) noexcept nogil:
    return byte == c'{' or byte == 0x20 or byte == 0x0a or byte == 0x0d or byte == 0x09


class Encoder:
    """Encodes change batches in the encoding that the options name."""

    def __new__(cls, options, compress):
        return ENCODINGS[options.encoding_format].Encoder(options, compress)
