"""The Avro half of the Simple protocol: its decoder, for the dispatcher in decode.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from tidegate.wire.batch.builder cimport Decoder as BatchDecoder
from tidegate.wire.batch.builder cimport Checksum, Message, Row
from tidegate.wire.kernel.buffer cimport Buffer, Cells
from tidegate.wire.kernel.cursor cimport Cursor, Span


# An entry of a row's map: where its value stands, its union index first.
cdef struct Entry:
    Span name
    const uint8_t *value


# The same, by column of a remembered table. end: where the value must end.
cdef struct Place:
    const uint8_t *value
    const uint8_t *end


cdef struct TableColumn:
    Span literal            # the name as it stands in a map, its length first
    Span name
    uint64_t zone_bit       # its bit in ZoneShape.zones; 0: no zone seen


# Which columns carry a zone differs from row to row (NULL has none), and with it the shape.
cdef struct ZoneShape:
    uint64_t zones
    int32_t shape


cdef enum:
    REMEMBERED_TABLES = 128
    TABLE_BUCKETS = 256
    ZONE_SHAPES = 16


# What is remembered of a table: which column each name of its maps is. One block of memory.
cdef struct Table:
    Table *next             # the next of the same bucket
    uint64_t hash           # of head
    uint64_t used           # when, for eviction
    Span head               # database and table as they stand in a message
    Span database
    Span table
    Span zone               # the location of its Timestamps as it stands in a message; n = 0: none
    Span location           # the same without its length
    int32_t count
    int32_t zones           # columns with a zone
    TableColumn *columns    # sorted by name
    uint64_t factor         # names to buckets
    unsigned int shift
    uint16_t *index         # the first column of each bucket + 1; 0: none
    uint16_t *chain         # the next column of the same bucket + 1
    uint32_t zone_shape_count
    uint32_t zone_shape_next
    ZoneShape zone_shapes[ZONE_SHAPES]


# A row change up to its values.
cdef struct RowFacts:
    Table *known            # the table used last, if the message has its head
    Span head
    Span database           # these only if the table is not known
    Span table
    int64_t table_id
    int64_t commit_ts
    int64_t schema_version
    int type
    Span claim_check
    bint handle_key_only
    bint has_checksum
    Checksum checksum


# What a table schema says of the event it comes with.
cdef struct SchemaFacts:
    Span database
    Span table
    int64_t table_id
    int64_t version


cdef class Decoder(BatchDecoder):
    cdef Table *tables[REMEMBERED_TABLES]
    cdef int32_t table_count
    cdef Table *buckets[TABLE_BUCKETS]
    cdef Table *last
    cdef uint64_t clock
    cdef Buffer data        # Entry
    cdef Buffer old         # Entry
    cdef Buffer places      # Place
    cdef Buffer columns     # ShapeColumn
    cdef Buffer text        # schemas being written

    cdef int message(self, Message *m, Cursor *c) noexcept nogil
    cdef int _watermark(self, Cursor *c) noexcept nogil
    cdef int _bootstrap(self, Cursor *c) noexcept nogil
    cdef int _ddl(self, Cursor *c) noexcept nogil
    cdef int _row(self, Cursor *c) noexcept nogil
    cdef int _facts(self, Cursor *c, RowFacts *f) noexcept nogil
    cdef bint _predicted(self, Cursor *c, RowFacts *f) noexcept nogil
    cdef bint _try(self, Cursor *c, RowFacts *f, Table *t) noexcept nogil
    cdef bint _predicted_values(self, Cursor *c, RowFacts *f, Table *t) noexcept nogil
    cdef bint _find(self, Cursor *c, Table *t, Place *places, bint wanted) noexcept nogil
    cdef bint _predicted_cells(self, Cursor *c, Table *t, Cells *cells, const Place *places,
                               size_t room, uint64_t *zones) noexcept nogil
    cdef int _general(self, Cursor *c, RowFacts *f) noexcept nogil
    cdef int _entries(self, Cursor *c, Buffer *entries) noexcept nogil
    cdef int _cells(self, Cursor *c, const Buffer *side, int32_t count, Cells *cells,
                    Row *row) noexcept nogil
    cdef int _add(self, Cursor *c, RowFacts *f, Row *row) noexcept nogil
    cdef int32_t _zone_shape(self, Cursor *c, Table *t, uint64_t zones) noexcept nogil
    cdef void _remember(self, RowFacts *f, int32_t count) noexcept nogil
    cdef void _forget(self, Table *t) noexcept nogil
    cdef int _schema_row(self, Cursor *c, Row *row, const SchemaFacts *facts) noexcept nogil
