"""Typed access to a change batch, without a copy of its columns."""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.wire.batch.change import CHANGE_SCHEMA, KINDS

from tidegate.wire.kernel.cursor cimport Span


cdef const uint8_t *_address(object buffer):
    return NULL if buffer is None else <const uint8_t *><size_t>buffer.address


cdef void _view_strings(StringsView *view, object array):
    buffers = array.buffers()
    view.valid = _address(buffers[0])
    view.valid_base = array.offset
    view.ends = <const int32_t *>_address(buffers[1]) + <Py_ssize_t>array.offset
    view.text = _address(buffers[2])


cdef void _view_longs(LongsView *view, object array):
    buffers = array.buffers()
    view.valid = _address(buffers[0])
    view.valid_base = array.offset
    view.values = <const int64_t *>_address(buffers[1]) + <Py_ssize_t>array.offset


cdef void _view_cells(CellsView *view, object array):
    buffers = array.buffers()
    child = array.values
    inner = child.buffers()
    view.lists_valid = _address(buffers[0])
    view.lists_base = array.offset
    view.lists = <const int32_t *>_address(buffers[1]) + <Py_ssize_t>array.offset
    view.valid = _address(inner[0])
    view.valid_base = child.offset
    view.ends = <const int32_t *>_address(inner[1]) + <Py_ssize_t>child.offset
    view.text = _address(inner[2])
    view.limit = view.text + <Py_ssize_t>(inner[2].size if inner[2] is not None else 0)


cdef class BatchReader:
    def __cinit__(self, batch):
        cdef Py_ssize_t i
        if batch.schema != CHANGE_SCHEMA:
            batch = batch.select(CHANGE_SCHEMA.names).cast(CHANGE_SCHEMA)
        self.batch = batch
        self.count = batch.num_rows
        codes = pc.index_in(batch.column("kind"), value_set=pa.array(KINDS))
        if codes.null_count:
            raise ValueError(f"a change batch has only the kinds {', '.join(KINDS)}")
        self.kinds = <uint8_t *>malloc(self.count + 1)
        if self.kinds == NULL:
            raise MemoryError
        kinds = codes.cast(pa.uint8())
        if self.count:
            memcpy(self.kinds, _address(kinds.buffers()[1]) + <Py_ssize_t>kinds.offset, self.count)
        ddl = batch.column("ddl").flatten()
        checksum = batch.column("checksum").flatten()
        self.keep_alive = [ddl, checksum]
        _view_cells(&self.after, batch.column("after"))
        _view_cells(&self.before, batch.column("before"))
        _view_strings(&self.database, batch.column("database"))
        _view_strings(&self.table, batch.column("table"))
        _view_strings(&self.missing, batch.column("before_missing"))
        _view_strings(&self.ddl_type, ddl[0])
        _view_strings(&self.query, ddl[2])
        _view_strings(&self.schema, batch.column("schema"))
        _view_strings(&self.claim_check, batch.column("claim_check"))
        _view_longs(&self.commit_ts, batch.column("commit_ts"))
        _view_longs(&self.table_id, batch.column("table_id"))
        _view_longs(&self.shape, batch.column("shape"))
        _view_longs(&self.schema_version, batch.column("schema_version"))
        _view_longs(&self.current, checksum[2])
        _view_longs(&self.previous, checksum[3])
        flags = batch.column("flags")
        self.flags = <const int32_t *>_address(flags.buffers()[1]) + <Py_ssize_t>flags.offset

    def __dealloc__(self):
        free(self.kinds)

    cdef bint carried(self, int64_t row, int32_t column) noexcept nogil:
        """Whether the row's `before` carries this column."""
        cdef Span bits
        if not string_at(&self.missing, row, &bits) or <size_t>(column >> 3) >= bits.n:
            return True
        return not (bits.p[column >> 3] >> (column & 7)) & 1

    cpdef object checksum(self, int64_t row):
        """The row's checksum as a dict, or None."""
        return self.batch.column("checksum")[row].as_py()

    cpdef object ddl_code(self, int64_t row):
        return self.keep_alive[0][1][row].as_py()
