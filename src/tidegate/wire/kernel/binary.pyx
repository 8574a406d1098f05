"""Arrow columns of messages from Python's bytes: one copy each, into one buffer."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stddef cimport size_t
from libc.stdint cimport INT32_MAX, int32_t, uint8_t
from libc.string cimport memcpy, memset

import pyarrow as pa


cdef object array_of(list values, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t size, bint nulls):
    cdef Py_ssize_t count = stop - start
    cdef Py_ssize_t place, length, missing = 0
    cdef int32_t used = 0
    data, ends = pa.allocate_buffer(size), pa.allocate_buffer(4 * (count + 1))
    valid = pa.allocate_buffer((count + 7) >> 3) if nulls else None
    cdef uint8_t *bytes_at = <uint8_t *><size_t>data.address
    cdef int32_t *ends_at = <int32_t *><size_t>ends.address
    cdef uint8_t *valid_at = <uint8_t *><size_t>valid.address if nulls else NULL
    cdef object value
    if nulls:
        memset(valid_at, 0, <size_t>((count + 7) >> 3))
    ends_at[0] = 0
    for place in range(count):
        value = values[start + place]
        if value is None:
            missing += 1
        else:
            length = PyBytes_GET_SIZE(value)
            memcpy(bytes_at + used, PyBytes_AS_STRING(value), <size_t>length)
            used += <int32_t>length
            if nulls:
                valid_at[place >> 3] |= <uint8_t>(1 << (place & 7))
        ends_at[place + 1] = used
    return pa.Array.from_buffers(pa.binary(), count, [valid, ends, data], missing)


def binary_arrays(list values, Py_ssize_t limit=INT32_MAX):
    """The values (bytes or None), in arrays of at most `limit` bytes, or of one larger value."""
    cdef Py_ssize_t place, length, size = 0, start = 0
    cdef bint nulls = False
    cdef object value
    arrays = []
    limit = min(limit, INT32_MAX)
    for place in range(len(values)):
        value = values[place]
        if value is None:
            nulls = True
            continue
        if not PyBytes_CheckExact(value):
            raise TypeError(f"bytes become an Arrow column, not {type(value).__name__}")
        length = PyBytes_GET_SIZE(value)
        if length > INT32_MAX:
            raise ValueError(f"a value of {length} bytes is longer than Arrow's columns allow")
        if size + length > limit and size:
            arrays.append(array_of(values, start, place, size, nulls))
            start, size = place, 0
        size += length
    arrays.append(array_of(values, start, len(values), size, nulls))
    return arrays
