"""Messages being written: bytes in plain memory, handed to Arrow at the end."""

from libc.stdint cimport INT32_MAX, int32_t

import pyarrow as pa

from tidegate.wire.batch.change import MESSAGE_SCHEMA

from tidegate.wire.kernel.buffer cimport buffer_add_byte, buffer_add_i32, buffer_free
from tidegate.wire.kernel.memory cimport bitmap_of, give_buffer, recycle_buffer, take_room


cdef class MessageBuilder:
    def __cinit__(self, size_t expected=0):
        """expected: about how many bytes the values will have."""
        if expected and take_room(&self.value, expected) < 0:
            raise MemoryError
        buffer_add_i32(&self.key_ends, 0)
        buffer_add_i32(&self.value_ends, 0)

    def __dealloc__(self):
        buffer_free(&self.key)
        recycle_buffer(&self.value)
        buffer_free(&self.key_ends)
        buffer_free(&self.key_valid)
        buffer_free(&self.value_ends)
        buffer_free(&self.rows)
        buffer_free(&self.events)

    cdef int end(self, bint has_key, int32_t row, int32_t events) except -1:
        """What was added to key and value since the last message is a message."""
        if self.key.used > INT32_MAX or self.value.used > INT32_MAX:
            raise OverflowError("the messages of one batch exceed 2 GiB; encode smaller batches")
        if buffer_add_i32(&self.key_ends, <int32_t>self.key.used) < 0 or \
                buffer_add_byte(&self.key_valid, has_key) < 0 or \
                buffer_add_i32(&self.value_ends, <int32_t>self.value.used) < 0 or \
                buffer_add_i32(&self.rows, row) < 0 or buffer_add_i32(&self.events, events) < 0:
            raise MemoryError
        self.count += 1
        return 0

    cpdef object finish(self):
        """The messages as a RecordBatch of MESSAGE_SCHEMA."""
        count = self.count
        validity = bitmap_of(self.key_valid.data, count)
        return pa.RecordBatch.from_arrays(
            [
                pa.Array.from_buffers(
                    pa.binary(), count, [validity, give_buffer(&self.key_ends), give_buffer(&self.key)]
                ),
                pa.Array.from_buffers(
                    pa.binary(), count, [None, give_buffer(&self.value_ends), give_buffer(&self.value)]
                ),
                pa.Array.from_buffers(pa.int32(), count, [None, give_buffer(&self.rows)]),
                pa.Array.from_buffers(pa.int32(), count, [None, give_buffer(&self.events)]),
            ],
            schema=MESSAGE_SCHEMA,
        )
