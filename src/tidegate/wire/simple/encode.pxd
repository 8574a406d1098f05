"""What the two encoders of the Simple protocol share: see encode.pyx."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t

from tidegate.wire.codec.encoder cimport MessageEncoder, RowPlan
from tidegate.wire.kernel.cursor cimport Span

cdef enum:
    CACHED_PLANS = 64


cdef class SimplePlan(RowPlan):
    """How the rows of a shape are written. The encoders add what stands between the values."""
    cdef int64_t shape_id
    cdef int64_t version        # 0 where the rows have none
    cdef bint has_version
    cdef bint has_key
    cdef bytes database, table  # the names of the rows, which need not be those of the shape


cdef class SimpleEncoder(MessageEncoder):
    """Encodes change batches; what a message looks like is up to who extends this."""
    cdef PyObject *cached[CACHED_PLANS]
    cdef const int32_t *checksum_versions

    # What a message looks like, not yet compressed. write_row adds it to messages.value: with
    # `location` as a claim check, with the handle key only if `keys_only`.
    cdef SimplePlan row_plan(self, object shape, int64_t version, str database, str table)
    cdef int write_row(self, SimplePlan plan, int64_t row, int kind, const Span *location,
                       bint keys_only, bint says_keys_only) except -1
    cdef bytes watermark(self, int64_t commit_ts)
    cdef bytes ddl(self, str word, str query, int64_t commit_ts, dict schemas)
    cdef bytes bootstrap(self, dict schema)

    cdef SimplePlan _plan(self, int64_t row)
    cdef int _shorten(self, SimplePlan plan, int64_t row, int kind, size_t start) except -1
    cdef int _add(self, int64_t row, bytes value) except -1
    cdef bytes _ddl(self, int64_t row)
    cdef bytes _bootstrap(self, int64_t row)
