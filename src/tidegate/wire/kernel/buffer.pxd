"""Growable memory: byte buffers, string cells (an Arrow string column in the making), and an arena.

Everything is plain C memory, so that decoders run without the GIL. A failed allocation makes the
call return -1; nothing is lost, and the message that asked for it becomes an error row.
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from tidegate.wire.kernel.cursor cimport TG_LIKELY, Span, tg_copy


cdef struct Buffer:
    uint8_t *data
    size_t used
    size_t size


cdef inline int buffer_grow(Buffer *b, size_t more) noexcept nogil:
    cdef size_t wanted = b.used + more
    cdef size_t size = b.size + (b.size >> 1) + 256
    cdef uint8_t *data
    if size < wanted + 64:
        size = wanted + 64
    data = <uint8_t *>realloc(b.data, size)
    if data == NULL:
        return -1
    b.data = data
    b.size = size
    return 0


cdef inline int buffer_reserve(Buffer *b, size_t more) noexcept nogil:
    """Makes room for `more` bytes and 32 behind them (vector copies write past their end)."""
    if TG_LIKELY(b.size - b.used >= more + 32):
        return 0
    return buffer_grow(b, more + 32)


cdef inline int buffer_add(Buffer *b, const uint8_t *p, size_t n) noexcept nogil:
    if buffer_reserve(b, n) < 0:
        return -1
    if n:
        memcpy(b.data + b.used, p, n)
    b.used += n
    return 0


cdef inline int buffer_add_byte(Buffer *b, uint8_t byte) noexcept nogil:
    if buffer_reserve(b, 1) < 0:
        return -1
    b.data[b.used] = byte
    b.used += 1
    return 0


cdef inline int buffer_add_i32(Buffer *b, int32_t value) noexcept nogil:
    return buffer_add(b, <const uint8_t *>&value, 4)


cdef inline int buffer_add_uvarint(Buffer *b, uint64_t value) noexcept nogil:
    if buffer_reserve(b, 10) < 0:
        return -1
    while value >= 0x80:
        b.data[b.used] = <uint8_t>(value | 0x80)
        b.used += 1
        value >>= 7
    b.data[b.used] = <uint8_t>value
    b.used += 1
    return 0


cdef inline void buffer_free(Buffer *b) noexcept nogil:
    free(b.data)
    b.data = NULL
    b.used = 0
    b.size = 0


# --- cells: nullable strings, one behind the other -----------------------------------------------

cdef struct Cells:
    Buffer text     # the bytes of all cells
    Buffer ends     # int32: a zero, then where each cell ends in text
    Buffer valid    # a byte a cell: 0 is NULL
    size_t count


cdef inline int32_t *cells_ends(const Cells *c) noexcept nogil:
    """Where the end of the next cell belongs; before it stands that of the last."""
    return <int32_t *>c.ends.data + c.count + 1


cdef inline int cells_reserve(Cells *c, size_t cells) noexcept nogil:
    """Room for so many cells more: call once a row, before cell_end and cell_null."""
    if buffer_reserve(&c.ends, cells * 4) < 0 or buffer_reserve(&c.valid, cells) < 0:
        return -1
    return 0


cdef inline void cell_end(Cells *c) noexcept nogil:
    """What was put into c.text since the last cell is the next cell."""
    cells_ends(c)[0] = <int32_t>c.text.used
    c.valid.data[c.count] = 1
    c.count += 1
    c.ends.used += 4
    c.valid.used += 1


cdef inline void cell_null(Cells *c) noexcept nogil:
    cells_ends(c)[0] = <int32_t>c.text.used
    c.valid.data[c.count] = 0
    c.count += 1
    c.ends.used += 4
    c.valid.used += 1


cdef inline int cell_copy(Cells *c, const uint8_t *p, size_t n, const uint8_t *limit) noexcept nogil:
    """One cell with these bytes, which must be valid UTF-8."""
    if buffer_reserve(&c.text, n) < 0:
        return -1
    tg_copy(c.text.data + c.text.used, p, n, limit)
    c.text.used += n
    cell_end(c)
    return 0


cdef inline void cells_cut(Cells *c, size_t count) noexcept nogil:
    """Takes back all cells from the count-th on."""
    c.count = count
    c.text.used = <size_t>(cells_ends(c) - 1)[0]
    c.ends.used = (count + 1) * 4
    c.valid.used = count


cdef inline void cells_free(Cells *c) noexcept nogil:
    buffer_free(&c.text)
    buffer_free(&c.ends)
    buffer_free(&c.valid)
    c.count = 0


# --- arena: small things that must not move ------------------------------------------------------

cdef struct ArenaChunk:
    ArenaChunk *next
    size_t used
    size_t size


cdef struct Arena:
    ArenaChunk *head


cdef inline uint8_t *arena_take(Arena *a, size_t n) noexcept nogil:
    """n bytes, aligned to 16, with 16 zero bytes behind them (see tg_same)."""
    cdef size_t wanted = (n + 16 + 15) & ~<size_t>15
    cdef size_t header = (sizeof(ArenaChunk) + 15) & ~<size_t>15
    cdef size_t size
    cdef ArenaChunk *chunk = a.head
    cdef uint8_t *place
    if chunk == NULL or chunk.size - chunk.used < wanted:
        size = 16384 if wanted < 4096 else wanted * 2
        chunk = <ArenaChunk *>malloc(header + size)
        if chunk == NULL:
            return NULL
        chunk.next = a.head
        chunk.used = 0
        chunk.size = size
        a.head = chunk
    place = <uint8_t *>chunk + header + chunk.used
    chunk.used += wanted
    memset(place + n, 0, wanted - n)
    return place


cdef inline int arena_keep(Arena *a, const uint8_t *p, size_t n, Span *out) noexcept nogil:
    cdef uint8_t *place = arena_take(a, n)
    if place == NULL:
        return -1
    if n:
        memcpy(place, p, n)
    out.p = place
    out.n = n
    return 0


cdef inline void arena_free(Arena *a) noexcept nogil:
    cdef ArenaChunk *chunk = a.head
    cdef ArenaChunk *after
    while chunk != NULL:
        after = chunk.next
        free(chunk)
        chunk = after
    a.head = NULL
