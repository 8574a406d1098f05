"""What messages of Simple's Avro are made of: docs/protocols/simple.md."""

from tidegate.wire.codec.prelude cimport *


cdef extern from "_avro.h" nogil:
    size_t TG_AVRO_AHEAD
    size_t tg_varint_at(const uint8_t *p, uint64_t *out) noexcept
    uint8_t *tg_put_varint(uint8_t *dst, uint64_t value) noexcept
    uint64_t tg_name_word(const uint8_t *p, size_t n) noexcept
    size_t tg_value_size(const uint8_t *p, unsigned int kind, size_t zone) noexcept


cdef enum:
    MESSAGE_INDEX = 11      # of Message in the outermost union
    VERSION = 1


# MessageType, and the index of the payload
cdef enum:
    WATERMARK = 0
    BOOTSTRAP = 1
    DDL = 2
    DML = 3


# DMLType
cdef enum:
    INSERT = 0
    UPDATE = 1
    DELETE = 2


# The union of a row's values: the index as it stands in a message, zigzag.
cdef enum:
    VALUE_NULL = 0
    VALUE_LONG = 2
    VALUE_FLOAT = 4
    VALUE_DOUBLE = 6
    VALUE_STRING = 8
    VALUE_BYTES = 10
    VALUE_TIMESTAMP = 12
    VALUE_UNSIGNED = 14


cdef enum:
    INTEGER_ROOM = 24       # the longest texts of numbers
    DOUBLE_ROOM = 400
    PREDICTIONS = 4         # how many column lists of one table are tried on a message
    # What is remembered, at most: more is decoded all the same, but not predicted.
    NAME_SIZE = 64
    HEAD_SIZE = 1024
    COLUMNS = 1024
    ZONED_COLUMNS = 64      # the bits of ZoneShape.zones
    CHAIN = 8
