"""Buffers to Arrow without a copy: see memory.pyx."""

from libc.stdint cimport uint8_t

from tidegate.wire.kernel.buffer cimport Buffer, Cells

cdef void recycle_buffer(Buffer *b) noexcept
cdef void recycle_cells(Cells *cells) noexcept
cdef int take_room(Buffer *b, size_t size) noexcept
cdef object give_buffer(Buffer *b)
cdef object bitmap_of(const uint8_t *bytes, size_t count, int bit=*)
