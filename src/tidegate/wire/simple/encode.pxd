"""What the two encoders of the Simple protocol share: see encode.pyx."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t

from tidegate.wire.batch.reader cimport BatchReader
from tidegate.wire.codec.messages cimport MessageBuilder
from tidegate.wire.kernel.cursor cimport Span

cdef enum:
    CACHED_PLANS = 64


cdef class SimplePlan:
    """How the rows of a shape are written. The encoders add what stands between the values."""
    cdef int64_t shape
    cdef int64_t version        # 0 where the rows have none
    cdef bint has_version
    cdef bint has_key
    cdef int32_t count          # of columns
    cdef bytes database, table


cdef class SimpleEncoder:
    """Encodes change batches; what a message looks like is up to who extends this."""
    cdef object options
    cdef object compress
    cdef dict plans
    cdef PyObject *cached[CACHED_PLANS]
    cdef BatchReader reader
    cdef object shapes
    cdef MessageBuilder messages
    cdef const int32_t *checksum_versions
    cdef int64_t most           # bytes of a message

    # What a message looks like, not yet compressed. write_row adds it to messages.value: with
    # `location` as a claim check, with the handle key only if so told.
    cdef SimplePlan new_plan(self, object shape, int64_t version, str database, str table)
    cdef int write_row(self, SimplePlan plan, Py_ssize_t row, int kind, const Span *location,
                       bint keys_only, bint says_keys_only) except -1
    cdef bytes watermark(self, int64_t commit_ts)
    cdef bytes ddl(self, str word, str query, int64_t commit_ts, dict schemas)
    cdef bytes bootstrap(self, dict schema)

    cdef int64_t commit_ts(self, Py_ssize_t row) except? -1
    cdef int _row(self, Py_ssize_t row, int kind) except -1
    cdef SimplePlan _plan(self, Py_ssize_t row)
    cdef int _check_counts(self, SimplePlan plan, Py_ssize_t row) except -1
    cdef size_t _compressed(self, size_t began) except? 0
    cdef int _shorten(self, SimplePlan plan, Py_ssize_t row, int kind, size_t began) except -1
    cdef int _add(self, Py_ssize_t row, bytes value) except -1
    cdef bytes _ddl(self, Py_ssize_t row)
    cdef bytes _bootstrap(self, Py_ssize_t row)
