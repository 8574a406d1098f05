"""Messages being written: see messages.pyx."""

from libc.stdint cimport int32_t

from tidegate.wire.kernel.buffer cimport Buffer


cdef class MessageBuilder:
    """Messages being written: fill `key` and `value`, then end the message."""
    cdef Buffer key
    cdef Buffer value
    cdef Buffer key_ends
    cdef Buffer key_valid
    cdef Buffer value_ends
    cdef Buffer rows
    cdef Buffer events
    cdef readonly Py_ssize_t count

    cdef int end(self, bint has_key, int32_t row, int32_t events) except -1
    cpdef object finish(self)
