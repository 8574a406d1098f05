"""The change batch as encoders read it: views of its columns, by row."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from tidegate.wire.kernel.cursor cimport Span


cdef struct CellsView:
    const int32_t *lists            # list offsets
    const uint8_t *lists_valid      # bitmap or NULL (all valid)
    int64_t lists_base              # the bit of row 0 there
    const int32_t *ends             # string offsets
    const uint8_t *valid            # bitmap or NULL
    int64_t valid_base
    const uint8_t *text
    const uint8_t *limit


cdef inline bint bit_at(const uint8_t *bitmap, int64_t i) noexcept nogil:
    return bitmap == NULL or (bitmap[i >> 3] >> (i & 7)) & 1


cdef inline bint view_has(const CellsView *v, int64_t row) noexcept nogil:
    """Whether the row has this list at all."""
    return bit_at(v.lists_valid, v.lists_base + row)


cdef inline int32_t view_count(const CellsView *v, int64_t row) noexcept nogil:
    return v.lists[row + 1] - v.lists[row]


cdef inline bint view_cell(const CellsView *v, int64_t row, int32_t column, Span *out) noexcept nogil:
    """The cell's text; False for NULL."""
    cdef int64_t i = v.lists[row] + column
    if not bit_at(v.valid, v.valid_base + i):
        return False
    out.p = v.text + v.ends[i]
    out.n = <size_t>(v.ends[i + 1] - v.ends[i])
    return True


cdef struct StringsView:
    const int32_t *ends
    const uint8_t *valid
    int64_t valid_base
    const uint8_t *text


cdef inline bint string_at(const StringsView *v, int64_t row, Span *out) noexcept nogil:
    if not bit_at(v.valid, v.valid_base + row):
        out.p = NULL
        out.n = 0
        return False
    out.p = v.text + v.ends[row]
    out.n = <size_t>(v.ends[row + 1] - v.ends[row])
    return True


cdef struct LongsView:
    const int64_t *values
    const uint8_t *valid
    int64_t valid_base


cdef inline bint long_at(const LongsView *v, int64_t row, int64_t *out) noexcept nogil:
    if not bit_at(v.valid, v.valid_base + row):
        return False
    out[0] = v.values[row]
    return True


cdef class BatchReader:
    """Typed access to a change batch. `kinds[row]` is a Kind; the views index by row."""
    cdef readonly object batch
    cdef readonly Py_ssize_t count
    cdef uint8_t *kinds
    cdef CellsView after
    cdef CellsView before
    cdef StringsView database
    cdef StringsView table
    cdef StringsView missing        # before_missing bitmaps; absent: everything is carried
    cdef StringsView ddl_type
    cdef StringsView query
    cdef StringsView schema
    cdef StringsView claim_check
    cdef LongsView commit_ts
    cdef LongsView table_id
    cdef LongsView shape
    cdef LongsView schema_version
    cdef LongsView current          # checksum members
    cdef LongsView previous
    cdef const int32_t *flags
    cdef list keep_alive

    cdef bint carried(self, int64_t row, int32_t column) noexcept nogil
    cpdef object checksum(self, int64_t row)
    cpdef object ddl_code(self, int64_t row)
