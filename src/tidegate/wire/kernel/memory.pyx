# cython: freethreading_compatible=False
"""Memory that goes to Arrow and comes back: buffers become Arrow buffers without a copy, and the
blocks of batches that are gone serve the next batch. All of this runs with the GIL.
"""

cimport cython
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

import pyarrow as pa

from tidegate.wire.kernel.buffer cimport Buffer, Cells
from tidegate.wire.kernel.cursor cimport tg_all_set, tg_pack_bits


# Blocks that a batch no longer needs, for the next one: a page that the system has to find and clear
# costs as much as decoding a few messages. All of this runs with the GIL.
cdef enum:
    SPARE_BLOCKS = 32
    SMALLEST_SPARE = 1 << 14
    MOST_SPARE = 1 << 25        # bytes of all of them


cdef struct Block:
    uint8_t *data
    size_t size


cdef Block _spares[SPARE_BLOCKS]
cdef int _spare_count = 0
cdef size_t _spare_bytes = 0


cdef void _drop_spare(int index) noexcept:
    """Takes a block out; the order of the others stays."""
    global _spare_count, _spare_bytes
    cdef int i
    _spare_bytes -= _spares[index].size
    _spare_count -= 1
    for i in range(index, _spare_count):
        _spares[i] = _spares[i + 1]


cdef void _recycle(uint8_t *data, size_t size) noexcept:
    """Frees a block, or keeps it in place of the oldest."""
    global _spare_count, _spare_bytes
    if data == NULL or size < SMALLEST_SPARE or size > MOST_SPARE // 2:
        free(data)
        return
    while _spare_count == SPARE_BLOCKS or _spare_bytes + size > MOST_SPARE:
        free(_spares[0].data)
        _drop_spare(0)
    _spares[_spare_count].data = data
    _spares[_spare_count].size = size
    _spare_count += 1
    _spare_bytes += size


cdef void recycle_buffer(Buffer *b) noexcept:
    _recycle(b.data, b.size)
    b.data = NULL
    b.used = 0
    b.size = 0


cdef void recycle_cells(Cells *cells) noexcept:
    recycle_buffer(&cells.text)
    recycle_buffer(&cells.ends)
    recycle_buffer(&cells.valid)


cdef int take_room(Buffer *b, size_t size) noexcept:
    """Room in an empty buffer, in a spare block if one fits. -1: there is no memory."""
    cdef int i, best = -1
    cdef size_t step = 4096
    size += 64
    while step * 8 < size:
        step *= 2
    size = (size + step - 1) // step * step      # so that the next batch's block fits this one's
    for i in range(_spare_count):
        if size <= _spares[i].size <= 2 * size and \
                (best < 0 or _spares[i].size < _spares[best].size):
            best = i
    if best >= 0:
        b.data = _spares[best].data
        b.size = _spares[best].size
        _drop_spare(best)
        return 0
    b.data = <uint8_t *>malloc(size)
    b.size = size if b.data != NULL else 0
    return 0 if b.data != NULL else -1


@cython.final
cdef class OwnedBlock:
    """Owns the block of an Arrow buffer."""
    cdef uint8_t *data
    cdef size_t size

    def __dealloc__(self):
        _recycle(self.data, self.size)


cdef object give_buffer(Buffer *b):
    """The buffer's bytes as an Arrow buffer that owns them; b is empty afterwards."""
    cdef OwnedBlock memory = OwnedBlock.__new__(OwnedBlock)
    cdef size_t used = b.used
    if b.data == NULL:
        return pa.py_buffer(b"")
    memory.data = b.data
    memory.size = b.size
    b.data = NULL
    b.used = 0
    b.size = 0
    return pa.foreign_buffer(<size_t>memory.data, used, memory)


cdef object bitmap_of(const uint8_t *bytes, size_t count, int bit=0):
    """A bitmap of this bit of so many bytes, or None when it is set in all of them."""
    cdef Buffer bits
    if tg_all_set(bytes, count, bit):
        return None
    memset(&bits, 0, sizeof(Buffer))
    if take_room(&bits, count // 8 + 1) < 0:
        raise MemoryError
    tg_pack_bits(bytes, count, bit, bits.data)
    bits.used = (count + 7) // 8
    return give_buffer(&bits)
