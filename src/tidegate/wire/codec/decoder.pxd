"""The base of all decoders: see decoder.pyx."""

from libc.stdint cimport uint8_t

from tidegate.wire.batch.builder cimport BatchBuilder
from tidegate.wire.codec.tables cimport TableMemory
from tidegate.wire.kernel.cursor cimport Cursor


# One message as the decoders get it. key/value NULL: null.
cdef struct Message:
    const uint8_t *key
    size_t key_size
    const uint8_t *key_limit
    const uint8_t *value
    size_t value_size
    const uint8_t *value_limit


cdef class MessageDecoder:
    """What the decoders of all protocols extend: `message` decodes one message into `out`."""
    cdef BatchBuilder out
    cdef TableMemory memory     # what the decoder has learnt; it sets memory.release
    cdef int message(self, Message *m, Cursor *c) noexcept nogil
