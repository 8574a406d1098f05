"""Avro's primitives, and the union of a row's values to the strings of the change batch."""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.simple.avro.layout cimport *


# --- Avro's primitives ----------------------------------------------------------------------------

cdef inline int read_length(Cursor *c, size_t *out) noexcept nogil:
    """A length of bytes that are there."""
    cdef const uint8_t *at = c.p
    cdef uint64_t raw = 0
    if read_uvarint(c, &raw) < 0:
        return -1
    if raw & 1 or raw >> 1 > left(c):
        return fail_at(c, FAULT_LENGTH, at)
    out[0] = raw >> 1
    return 0


cdef inline int read_sized(Cursor *c, Span *out) noexcept nogil:
    """A string or bytes."""
    if read_length(c, &out.n) < 0:
        return -1
    out.p = c.p
    c.p += out.n
    return 0


cdef inline int read_text(Cursor *c, Span *out) noexcept nogil:
    if read_sized(c, out) < 0:
        return -1
    if not tg_utf8_valid(out.p, out.n):
        return fail_at(c, FAULT_UTF8, out.p)
    return 0


cdef inline int read_index(Cursor *c, uint64_t choices, uint64_t *out) noexcept nogil:
    """The index of a union's branch, or of an enum's symbol."""
    cdef const uint8_t *at = c.p
    if read_uvarint(c, out) < 0:
        return -1
    if out[0] & 1 or out[0] >> 1 >= choices:
        return fail_at(c, FAULT_UNION, at)
    out[0] >>= 1
    return 0


cdef inline int read_int(Cursor *c, int64_t *out) noexcept nogil:
    """Avro's int."""
    cdef const uint8_t *at = c.p
    if read_varint(c, out) < 0:
        return -1
    if out[0] > INT32_MAX or out[0] < INT32_MIN:
        return fail_at(c, FAULT_RANGE, at)
    return 0


cdef inline int read_bounded(Cursor *c, int64_t most, int64_t *out) noexcept nogil:
    """A long from 0 to `most`."""
    cdef const uint8_t *at = c.p
    if read_varint(c, out) < 0:
        return -1
    if out[0] < 0 or out[0] > most:
        return fail_at(c, FAULT_RANGE, at)
    return 0


cdef inline int read_bool(Cursor *c, bint *out) noexcept nogil:
    cdef uint8_t byte = 0
    if read_u8(c, &byte) < 0:
        return -1
    if byte > 1:
        return fail_at(c, FAULT_TYPE, c.p - 1)
    out[0] = byte
    return 0


cdef struct Block:
    uint64_t count          # of the items that follow; 0: the array or map ends here
    const uint8_t *end      # where they must end; NULL: anywhere


cdef inline int read_block(Cursor *c, Block *out) noexcept nogil:
    """The head of a block of items. A negative count is followed by their size."""
    cdef int64_t count = 0
    cdef size_t size
    out.end = NULL
    if read_varint(c, &count) < 0:
        return -1
    out.count = <uint64_t>count
    if count < 0:
        if read_length(c, &size) < 0:
            return -1
        out.count = 0 - <uint64_t>count
        out.end = c.p + size
    return 0


cdef inline int end_block(Cursor *c, const Block *block) noexcept nogil:
    if block.end != NULL and block.end != c.p:
        return fail(c, FAULT_LENGTH)
    return 0


# --- values ---------------------------------------------------------------------------------------

cdef inline int skip_value(Cursor *c) noexcept nogil:
    cdef uint64_t index = 0
    cdef size_t n = 0
    if read_index(c, 8, &index) < 0:
        return -1
    index <<= 1
    if index == VALUE_NULL:
        return 0
    if index == VALUE_LONG or index == VALUE_UNSIGNED:
        return read_uvarint(c, &index)
    if index == VALUE_FLOAT or index == VALUE_DOUBLE:
        n = 4 if index == VALUE_FLOAT else 8
        if left(c) < n:
            return fail(c, FAULT_TRUNCATED)
    else:
        if read_length(c, &n) < 0:
            return -1
        if index == VALUE_TIMESTAMP:
            c.p += n
            if read_length(c, &n) < 0:
                return -1
    c.p += n
    return 0


cdef inline int put_cell(Cursor *c, Cells *cells, size_t room, Span *location) noexcept nogil:
    """The value at the cursor as the next cell; of a Timestamp also its location.

    `room` bytes of text are reserved for the whole map, and the cells.
    """
    cdef uint8_t *text = cells.text.data + cells.text.used
    cdef uint64_t index = 0, raw = 0
    cdef uint32_t raw_float
    cdef double real
    cdef float short_real
    cdef Span span
    cdef int length
    if TG_LIKELY(c.p < c.end and c.p[0] <= VALUE_UNSIGNED and not c.p[0] & 1):
        index = c.p[0]
        c.p += 1
    else:
        if read_index(c, 8, &index) < 0:
            return -1
        index <<= 1
    if index == VALUE_STRING:
        if read_sized(c, &span) < 0:
            return -1
        if TG_UNLIKELY(tg_copy_high(text, span.p, span.n, c.limit)) and \
                not tg_utf8_valid(span.p, span.n):
            return fail_at(c, FAULT_UTF8, span.p)
        cells.text.used += span.n
    elif index == VALUE_LONG:
        if read_uvarint(c, &raw) < 0:
            return -1
        cells.text.used += tg_format_i64(unzigzag(raw), text)
    elif index == VALUE_NULL:
        cell_null(cells)
        return 0
    elif index == VALUE_UNSIGNED:
        if read_uvarint(c, &raw) < 0:
            return -1
        cells.text.used += tg_format_u64(<uint64_t>unzigzag(raw), text)
    elif index == VALUE_TIMESTAMP:
        if read_sized(c, location) < 0 or read_sized(c, &span) < 0:
            return -1
        if not tg_datetime_valid(span.p, span.n):
            return fail_at(c, FAULT_TEMPORAL, span.p)
        tg_copy(text, span.p, span.n, c.limit)
        cells.text.used += span.n
    elif index == VALUE_BYTES:
        if read_sized(c, &span) < 0:
            return -1
        cells.text.used += tg_base64_encode(span.p, span.n, text)
    else:
        if buffer_reserve(&cells.text, room + DOUBLE_ROOM) < 0:
            return fail(c, FAULT_MEMORY)
        text = cells.text.data + cells.text.used
        if index == VALUE_DOUBLE:
            if left(c) < 8:
                return fail(c, FAULT_TRUNCATED)
            raw = tg_load_le64(c.p)
            memcpy(&real, &raw, 8)
            length = tg_format_double(real, text)
            raw = 8
        else:
            if left(c) < 4:
                return fail(c, FAULT_TRUNCATED)
            raw_float = <uint32_t>c.p[0] | <uint32_t>c.p[1] << 8 | <uint32_t>c.p[2] << 16 | \
                <uint32_t>c.p[3] << 24
            memcpy(&short_real, &raw_float, 4)
            length = tg_format_float(short_real, text)
            raw = 4
        if length < 0:
            return fail(c, FAULT_VALUE)
        c.p += raw
        cells.text.used += length
    cell_end(cells)
    return 0
