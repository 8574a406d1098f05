"""The byte cursor every decoder reads through: bounds are tested on every advance.

A reader that cannot go on calls `fail` once; the first fault of a message is the one reported, with
the byte where it was seen. All readers return 0 or -1 (or a value with the fault noted in the cursor).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp


cdef extern from "_scan.h" nogil:
    bint TG_LIKELY(bint condition) noexcept
    bint TG_UNLIKELY(bint condition) noexcept
    size_t tg_plain_run(const uint8_t *p, const uint8_t *end, const uint8_t *limit, unsigned int *high) noexcept
    size_t tg_copy_plain_run(const uint8_t *p, const uint8_t *end, const uint8_t *limit, uint8_t *dst, unsigned int *high) noexcept
    int tg_same(const uint8_t *p, const uint8_t *expected, size_t n, const uint8_t *limit) noexcept
    int tg_all_set(const uint8_t *bytes, size_t count, int bit) noexcept
    void tg_pack_bits(const uint8_t *bytes, size_t count, int bit, uint8_t *out) noexcept
    void tg_copy(uint8_t *dst, const uint8_t *src, size_t n, const uint8_t *limit) noexcept


# What can be wrong with a message. The words and sentences stand in batch/builder.pyx (FAULTS), one a line.
cpdef enum Fault:
    FAULT_NONE = 0
    FAULT_TRUNCATED = 1
    FAULT_TRAILING = 2
    FAULT_SYNTAX = 3
    FAULT_UTF8 = 4
    FAULT_DEPTH = 5
    FAULT_ESCAPE = 6
    FAULT_NUMBER = 7
    FAULT_RANGE = 8
    FAULT_TYPE = 9
    FAULT_MISSING = 10
    FAULT_DUPLICATE = 11
    FAULT_VERSION = 12
    FAULT_MAGIC = 13
    FAULT_CHECKSUM = 14
    FAULT_LENGTH = 15
    FAULT_BASE64 = 16
    FAULT_BINARY = 17
    FAULT_COLUMNS = 18
    FAULT_UNKNOWN_KIND = 19
    FAULT_UNION = 20
    FAULT_EMPTY = 21
    FAULT_TOO_LARGE = 22
    FAULT_MEMORY = 23
    FAULT_COMPRESSION = 24
    FAULT_CLAIM_CHECK = 25
    FAULT_TEMPORAL = 26
    FAULT_SHAPE = 27
    FAULT_KEY = 28
    FAULT_VALUE = 29
    FAULT_NAME = 30


cdef struct Span:
    const uint8_t *p
    size_t n


cdef inline bint span_is(const Span *span, const char *word, size_t n) noexcept nogil:
    return span.n == n and memcmp(span.p, word, n) == 0


cdef inline bint same_span(const Span *a, const Span *b) noexcept nogil:
    return a.n == b.n and memcmp(a.p, b.p, a.n) == 0


cdef struct Cursor:
    const uint8_t *p        # the next byte
    const uint8_t *end      # the end of the message
    const uint8_t *limit    # >= end: the end of the memory that may be read
    const uint8_t *start    # the first byte, for positions in errors
    int fault               # Fault
    const uint8_t *fault_at
    int in_key              # what is being read: the message's key, or its value


cdef inline void cursor_init(Cursor *c, const uint8_t *p, size_t n, const uint8_t *limit) noexcept nogil:
    c.p = p
    c.start = p
    c.end = p + n
    c.limit = limit if limit > p + n else p + n
    c.fault = FAULT_NONE
    c.fault_at = p
    c.in_key = 0


cdef inline int fail_at(Cursor *c, int fault, const uint8_t *where) noexcept nogil:
    if c.fault == FAULT_NONE:
        c.fault = fault
        c.fault_at = where
    return -1


cdef inline int fail(Cursor *c, int fault) noexcept nogil:
    return fail_at(c, fault, c.p)


cdef inline size_t left(const Cursor *c) noexcept nogil:
    return <size_t>(c.end - c.p)


cdef inline bint take(Cursor *c, const uint8_t *expected, size_t n) noexcept nogil:
    """Advances over `expected` if it stands here. `expected` is padded (see tg_same)."""
    if left(c) < n or not tg_same(c.p, expected, n, c.limit):
        return False
    c.p += n
    return True


cdef inline int read_u8(Cursor *c, uint8_t *out) noexcept nogil:
    if c.p >= c.end:
        return fail(c, FAULT_TRUNCATED)
    out[0] = c.p[0]
    c.p += 1
    return 0


cdef inline int read_be32(Cursor *c, uint32_t *out) noexcept nogil:
    if left(c) < 4:
        return fail(c, FAULT_TRUNCATED)
    out[0] = (<uint32_t>c.p[0] << 24) | (<uint32_t>c.p[1] << 16) | (<uint32_t>c.p[2] << 8) | c.p[3]
    c.p += 4
    return 0


cdef inline int read_be64(Cursor *c, uint64_t *out) noexcept nogil:
    cdef uint32_t high = 0, low = 0
    if left(c) < 8:
        return fail(c, FAULT_TRUNCATED)
    read_be32(c, &high)
    read_be32(c, &low)
    out[0] = (<uint64_t>high << 32) | low
    return 0


cdef inline int read_bytes(Cursor *c, uint64_t n, Span *out) noexcept nogil:
    if n > <uint64_t>left(c):
        return fail(c, FAULT_LENGTH)
    out.p = c.p
    out.n = <size_t>n
    c.p += n
    return 0


cdef inline int read_uvarint(Cursor *c, uint64_t *out) noexcept nogil:
    """Base-128 varint, least significant group first, at most 64 bits; overlong forms are taken."""
    cdef uint64_t value = 0
    cdef unsigned int shift = 0
    cdef uint8_t byte
    if TG_LIKELY(c.p < c.end and c.p[0] < 0x80):
        out[0] = c.p[0]
        c.p += 1
        return 0
    while c.p < c.end:
        byte = c.p[0]
        if shift == 63 and byte > 1:
            return fail(c, FAULT_NUMBER)
        value |= <uint64_t>(byte & 0x7f) << shift
        c.p += 1
        if byte < 0x80:
            out[0] = value
            return 0
        shift += 7
        if shift > 63:
            return fail(c, FAULT_NUMBER)
    return fail(c, FAULT_TRUNCATED)


cdef inline int64_t unzigzag(uint64_t raw) noexcept nogil:
    return <int64_t>((raw >> 1) ^ (0 - (raw & 1)))


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline int read_varint(Cursor *c, int64_t *out) noexcept nogil:
    """Zigzag varint."""
    cdef uint64_t raw = 0
    if read_uvarint(c, &raw) < 0:
        return -1
    out[0] = unzigzag(raw)
    return 0
