"""The change batch under construction.

A decoder, for each message: reads through a Cursor, fills `after` and `before` cells in the order of
a registered shape, and adds rows. If it returns -1, everything the message added is taken back and an
error row stands in its place. Nothing here needs the GIL but the constructors and `finish`.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from tidegate.wire.kernel.buffer cimport Arena, Buffer, Cells
from tidegate.wire.kernel.cursor cimport Cursor, Span

# The index of each kind in change.KINDS.
cdef enum Kind:
    KIND_INSERT = 0
    KIND_UPDATE = 1
    KIND_DELETE = 2
    KIND_DDL = 3
    KIND_WATERMARK = 4
    KIND_SCHEMA = 5
    KIND_ERROR = 6

# Row.has: which nullable members of a row are set.
cdef enum Has:
    HAS_COMMIT_TS = 1
    HAS_TABLE_ID = 2
    HAS_SCHEMA_VERSION = 4
    HAS_AFTER = 8
    HAS_BEFORE = 16
    HAS_MISSING = 32    # Row.missing is set: some columns of `before` are not carried

# Row.flags; the same values as model.EventFlag.
cdef enum RowFlag:
    FLAG_HANDLE_KEY_ONLY = 1
    FLAG_CLAIM_CHECK = 2
    FLAG_CHECKSUM = 4
    FLAG_CHECKSUM_FAILED = 8
    FLAG_BEFORE_AMBIGUOUS = 16
    FLAG_CORRUPTED = 32

cdef enum:
    MAX_COLUMNS = 4096


cdef struct ShapeColumn:
    Span name
    int32_t code        # MySQL type code; -1: the wire does not say
    int32_t flags       # the Open protocol's flag bits; -1: the wire does not say
    int32_t key         # 1: part of the handle or primary key, as far as the wire says
    Span type           # type text as the wire has it ("int(11) unsigned"); n = 0: none
    Span zone           # time zone of the values; n = 0: none


cdef struct Shape:
    int64_t id
    int32_t names       # database and table, see BatchBuilder.intern_names
    int32_t count
    ShapeColumn *columns
    Span canonical
    int32_t next        # the next shape of the same hash bucket, -1 at the end


cdef struct Names:
    Span database       # p == NULL: null
    Span table
    int32_t next


cdef struct Checksum:
    int32_t version
    bint corrupted
    int64_t current
    int64_t previous


# What only few rows have.
cdef struct Extra:
    Span ddl_type       # p == NULL: null, likewise below
    int32_t ddl_code    # -1: null
    Span query
    Span schema
    Span claim_check
    bint has_checksum
    Checksum checksum
    int32_t fault
    int64_t position
    int32_t in_key
    Span detail         # added to the fault's sentence


cdef struct Row:
    int64_t commit_ts
    int64_t table_id
    int64_t schema_version
    int32_t message     # set by add_row
    int32_t event       # set by add_row
    int32_t shape       # index of a registered shape, -1: none
    int32_t names       # index of interned names, -1: none (null); rows with a shape: set by add_row
    int32_t flags
    int32_t extra       # index of an Extra, -1: none
    int32_t missing     # where its bitmap begins in BatchBuilder.missing (with HAS_MISSING)
    int32_t after_end   # set by add_row
    int32_t before_end  # set by add_row
    uint8_t kind
    uint8_t has


cdef inline void row_init(Row *row, int kind) noexcept nogil:
    row.commit_ts = 0
    row.table_id = 0
    row.schema_version = 0
    row.shape = -1
    row.names = -1
    row.flags = 0
    row.extra = -1
    row.missing = -1
    row.kind = <uint8_t>kind
    row.has = 0


# Canal's word for TiDB's code of a DDL action; it lives as long as the module.
cdef const Span *ddl_word_of(uint8_t code) noexcept nogil


@cython.final
cdef class BatchBuilder:
    cdef Cells after
    cdef Cells before
    cdef Buffer missing         # bitmaps, bit i (least significant first) set: column i not carried
    cdef Buffer scratch         # decoded names and the like; begin_message reserves it (json_span)
    cdef Arena arena            # what rows point to: shapes, names, extras' texts
    cdef Buffer rows            # Row
    cdef Buffer extras          # Extra
    cdef Buffer shapes          # Shape
    cdef Buffer names           # Names
    cdef Buffer canonical
    cdef int32_t *shape_buckets
    cdef size_t shape_bucket_count
    cdef int32_t *name_buckets
    cdef size_t name_bucket_count
    cdef int32_t message
    cdef int32_t event
    cdef size_t mark_rows, mark_after, mark_before, mark_missing, mark_extras
    cdef size_t claims          # rows with a claim-check location in this message

    cdef int expect(self, size_t messages, size_t size) noexcept
    cdef int begin_message(self, int32_t message, size_t size) noexcept nogil
    cdef void rollback(self) noexcept nogil
    cdef int reject(self, Cursor *c, const uint8_t *detail, size_t detail_size) noexcept nogil
    cdef int intern_names(self, const Span *database, const Span *table) noexcept nogil
    cdef int register_shape(self, Cursor *c, const Span *database, const Span *table,
                            const ShapeColumn *columns, int32_t count) noexcept nogil
    cdef Shape *shape(self, int32_t index) noexcept nogil
    cdef void _rehash_shapes(self) noexcept nogil
    cdef Extra *new_extra(self, Row *row) noexcept nogil
    cdef int keep(self, const Span *text, Span *out) noexcept nogil
    cdef uint8_t *new_missing(self, Row *row, int32_t columns) noexcept nogil
    cdef int add_row(self, Cursor *c, Row *row) noexcept nogil
