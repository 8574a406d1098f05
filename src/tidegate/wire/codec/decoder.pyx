"""Driving the protocol decoders over a batch of messages.

Without compression and claim checks the whole batch is decoded in one go without the GIL. A message
that fails, whatever the reason, becomes an error row; its neighbours are not touched.
"""

from libc.stdint cimport int32_t, uint8_t

import pyarrow as pa

from tidegate.model.errors import ClaimCheckError, CompressionError

from tidegate.wire.batch.builder cimport BatchBuilder, Extra, Row
from tidegate.wire.batch.reader cimport StringsView, string_at
from tidegate.wire.codec.tables cimport forget_tables
from tidegate.wire.kernel.cursor cimport (
    FAULT_CLAIM_CHECK,
    FAULT_COMPRESSION,
    FAULT_NONE,
    FAULT_SYNTAX,
    Cursor,
    Span,
    cursor_init,
)


cdef object _text(const Span *text):
    return None if text.p == NULL else (<const char *>text.p)[:text.n].decode("utf-8", "replace")


cdef class MessageDecoder:
    def __cinit__(self, BatchBuilder out=None, **options):
        self.out = BatchBuilder() if out is None else out

    def __dealloc__(self):
        forget_tables(&self.memory)

    @property
    def remembered(self):
        """How many tables the decoder has learnt and not forgotten."""
        return self.memory.count

    def claim_locations(self):
        """The claim-check locations of the message decoded last, by the number of their event."""
        cdef size_t count = self.out.rows.used // sizeof(Row)
        cdef size_t i
        cdef Row *row
        cdef dict locations = {}
        for i in range(self.out.mark_rows // sizeof(Row), count):
            row = <Row *>self.out.rows.data + i
            if row.extra >= 0:
                location = _text(&(<Extra *>self.out.extras.data + row.extra).claim_check)
                if location is not None:
                    locations[row.event] = location
        return locations

    def redeem(self, key, value, dict kept):
        """Key and value of the message with its claim checks redeemed; kept[event] is the message that
        was kept elsewhere. Where a message is one event, it simply takes the other's place."""
        (message,) = kept.values()
        return message

    cdef int message(self, Message *m, Cursor *c) noexcept nogil:
        return -1


cdef class _Column:
    """A binary column of the input: bytes and the end of what may be read."""
    cdef StringsView view
    cdef const uint8_t *limit
    cdef object array

    def __cinit__(self, array):
        buffers = array.buffers()
        self.array = array
        self.view.valid = NULL if buffers[0] is None else <const uint8_t *><size_t>buffers[0].address
        self.view.valid_base = array.offset
        self.view.ends = <const int32_t *><size_t>buffers[1].address + <Py_ssize_t>array.offset
        self.view.text = NULL if buffers[2] is None else <const uint8_t *><size_t>buffers[2].address
        self.limit = self.view.text if buffers[2] is None else self.view.text + <size_t>buffers[2].size

    cdef size_t size(self):
        """The bytes of all values."""
        return <size_t>(self.view.ends[len(self.array)] - self.view.ends[0])


def binary_array(values):
    """Messages' bytes as one Arrow binary array, from an array or a sequence of bytes and None."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            values = pa.concat_arrays(values.chunks)
    if not isinstance(values, pa.Array):
        values = pa.array(values, pa.binary())
    if values.type != pa.binary():
        values = values.cast(pa.binary())
    if len(values) and values.buffers()[1] is None:
        raise ValueError("the array of messages has no offsets")
    return values


cdef inline int _decode_one(MessageDecoder decoder, Message *m, int32_t i) except -1 nogil:
    """Decodes message i, or puts an error row in its place."""
    cdef Cursor c
    cursor_init(&c, m.value, m.value_size, m.value_limit)
    if decoder.out.begin_message(i, m.key_size + m.value_size) < 0:
        with gil:
            raise MemoryError
    if decoder.message(m, &c) < 0:
        if c.fault == FAULT_NONE:
            c.fault = FAULT_SYNTAX
        if decoder.out.reject(&c, NULL, 0) < 0:
            with gil:
                raise MemoryError
    return 0


cdef void _message_of_bytes(Message *m, object key, object value):
    m.key = NULL if key is None else <const uint8_t *><const char *>key
    m.key_size = 0 if key is None else len(key)
    m.key_limit = m.key + m.key_size
    m.value = NULL if value is None else <const uint8_t *><const char *>value
    m.value_size = 0 if value is None else len(value)
    m.value_limit = m.value + m.value_size


cdef int _reject(MessageDecoder decoder, int fault, object error) except -1:
    cdef Cursor c
    cdef bytes detail = str(error).encode("utf-8", "replace")
    cursor_init(&c, NULL, 0, NULL)
    c.fault = fault
    if decoder.out.reject(&c, <const uint8_t *><const char *>detail, len(detail)) < 0:
        raise MemoryError
    return 0


def decode(MessageDecoder decoder, keys, values, *, topics=None, partitions=None, offsets=None,
           expand=None, claim_check=None):
    """The change batch of these messages.

    keys: a binary array or None; values: a binary array. expand(key, value) -> (key, value) undoes
    compression and raises CompressionError. claim_check(location) -> (key, value) brings the message
    kept elsewhere and raises ClaimCheckError.
    """
    cdef _Column key_column = None
    cdef _Column value_column = _Column(values)
    cdef int32_t i, count = len(values)
    cdef Message m
    cdef Span span
    cdef bytes key_bytes, value_bytes
    if keys is not None:
        if len(keys) != count:
            raise ValueError(f"there are {len(keys)} keys for {count} values")
        key_column = _Column(keys)
    if decoder.out.expect(count, value_column.size()) < 0:
        raise MemoryError
    if expand is None and claim_check is None:
        with nogil:
            for i in range(count):
                m.key = NULL
                m.key_size = 0
                m.key_limit = NULL
                if key_column is not None and string_at(&key_column.view, i, &span):
                    m.key = span.p
                    m.key_size = span.n
                    m.key_limit = key_column.limit
                string_at(&value_column.view, i, &span)
                m.value = span.p
                m.value_size = span.n
                m.value_limit = value_column.limit if span.p != NULL else NULL
                _decode_one(decoder, &m, i)
    else:
        for i in range(count):
            key = None if keys is None else keys[i].as_py()
            value = values[i].as_py()
            try:
                if expand is not None:
                    key, value = expand(key, value)
            except CompressionError as error:
                decoder.out.begin_message(i, 0)
                _reject(decoder, FAULT_COMPRESSION, error)
                continue
            _message_of_bytes(&m, key, value)
            _decode_one(decoder, &m, i)
            if decoder.out.claims == 0 or claim_check is None:
                continue
            try:
                kept = {}
                for event, location in decoder.claim_locations().items():
                    kept[event] = claim_check(location)
                    if expand is not None:
                        kept[event] = expand(*kept[event])
                key, value = decoder.redeem(key, value, kept)
            except (ClaimCheckError, CompressionError) as error:
                _reject(decoder, FAULT_CLAIM_CHECK, error)
                continue
            decoder.out.rollback()
            _message_of_bytes(&m, key, value)
            _decode_one(decoder, &m, i)
    return decoder.out.finish(topics, partitions, offsets, keys, values)
