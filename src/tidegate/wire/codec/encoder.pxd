"""The base of all encoders: see encoder.pyx."""

from libc.stdint cimport int32_t, int64_t

from tidegate.wire.batch.reader cimport BatchReader
from tidegate.wire.codec.messages cimport MessageBuilder

cdef enum:
    RECORD_OVERHEAD = 36    # what TiCDC counts for Kafka's own framing of a record


cdef class RowPlan:
    """How the rows of a shape are written; protocols add the bytes between the values."""
    cdef str protocol
    cdef readonly object shape
    cdef int32_t count          # of columns


cdef class MessageEncoder:
    cdef str protocol
    cdef object options
    cdef object compress
    cdef size_t max_bytes       # of a message, with RECORD_OVERHEAD
    cdef int32_t max_events     # of a message
    # The batch being encoded.
    cdef BatchReader reader
    cdef object shapes
    cdef MessageBuilder messages
    # Plans by shape and schema version; the one used last.
    cdef dict plans
    cdef RowPlan last_plan
    cdef int64_t last_shape
    cdef int64_t last_version

    # What protocols do.
    cdef RowPlan new_plan(self, object shape)
    cdef int begin(self) except -1
    cdef int add_row(self, int64_t row, int kind) except -1
    cdef int add_ddl(self, int64_t row) except -1
    cdef int add_watermark(self, int64_t row) except -1
    cdef int add_schema(self, int64_t row) except -1
    cdef int finish(self) except -1

    # What they share.
    cdef RowPlan plan_of(self, int64_t row)
    cdef int check_row(self, RowPlan plan, int64_t row, int kind) except -1
    cdef int64_t commit_ts(self, int64_t row) except -1
    cdef int compress_value(self, size_t start) except -1
    cdef object too_large(self, RowPlan plan, size_t size)
    cdef bytes keep_elsewhere(self, bytes key, bytes value)
