"""The JSON half of the Simple protocol: its decoder, for the dispatcher in decode.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from tidegate.wire.batch.builder cimport Decoder as BatchDecoder
from tidegate.wire.batch.builder cimport Checksum, Message, Row
from tidegate.wire.kernel.buffer cimport Buffer, Cells
from tidegate.wire.kernel.cursor cimport Cursor, Span


cdef extern from "_members.h" nogil:
    ctypedef struct tg_expected:
        const uint8_t *literal
        uint32_t size
        uint32_t bare
        uint32_t mask
        uint64_t zone_bit

    ctypedef struct tg_members:
        const uint8_t *p
        const uint8_t *end
        const uint8_t *limit
        uint8_t *text
        uint8_t *dst
        int32_t *ends
        uint8_t *valid
        uint64_t zones

    ctypedef struct tg_written:
        const uint8_t *literal
        uint32_t size
        uint32_t bare
        int32_t index
        uint8_t is_key
        uint8_t has_zone

    ctypedef struct tg_cells:
        const int32_t *ends
        const uint8_t *valid
        int64_t valid_base
        const uint8_t *text
        const uint8_t *limit
        const uint8_t *missing
        size_t missing_size
        int keys_only
        uint8_t *dst

    uint32_t tg_literal_mask(size_t size) noexcept
    size_t tg_take_members(tg_members *m, const tg_expected *expected, size_t count) noexcept
    bint tg_is_carried(const tg_cells *c, const tg_written *w) noexcept
    bint tg_is_null(const tg_cells *c, int32_t index) noexcept
    size_t tg_put_members(tg_cells *c, const tg_written *members, size_t count) noexcept
    size_t tg_digit_run(const uint8_t *p, const uint8_t *end, const uint8_t *limit) noexcept
    size_t tg_natural(const uint8_t *p, const uint8_t *end, const uint8_t *limit,
                      int64_t *out) noexcept


# A member of `data` or `old`, decoded but not yet in its place.
cdef struct Member:
    Span name
    Span text               # a number as it stands; p == NULL: null
    Span zone               # the location of a TIMESTAMP; p == NULL: none
    const uint8_t *limit    # how far text may be read
    const uint8_t *at       # where its value stands in the message
    bint is_number


cdef struct TableColumn:
    Span name
    Span zone               # n == 0: none seen


cdef enum:
    REMEMBERED_BYTES = 80


# Text that mostly is that of the message before, up to a comma, and the number in it.
cdef struct Remembered:
    uint8_t text[REMEMBERED_BYTES + 16]     # take() reads on behind its end
    uint32_t size                           # 0: nothing yet
    int64_t value


# Which columns carry a zone differs from row to row (NULL has none), and with it the shape.
cdef struct ZoneShape:
    uint64_t zones
    int32_t shape


cdef enum:
    REMEMBERED_TABLES = 64
    TABLE_BUCKETS = 128
    ZONE_SHAPES = 16


# What is remembered of a table: the bytes that stand between the values of its messages.
cdef struct Table:
    Table *next             # the next of the same bucket
    uint64_t hash           # of both names
    uint64_t used           # when, for eviction
    uint8_t *text           # the memory of all names and literals
    size_t size             # of everything
    Span database
    Span table
    Span head               # `{"version":1,"database":"d","table":"t","tableID":`
    Remembered table_id     # `118,`
    Remembered version      # `,"buildTs":1794788297977,"schemaVersion":470492983135043586,`
    int32_t count
    int32_t zones           # columns with a zone; more than 64 are not predicted
    TableColumn *columns    # sorted by name
    tg_expected *expected   # how each of them is expected in `data` and `old`
    uint16_t *index         # open addressing over the names: column + 1, 0 is free
    uint32_t index_mask
    uint32_t zone_shape_count
    uint32_t zone_shape_next
    ZoneShape zone_shapes[ZONE_SHAPES]


cdef struct SchemaFacts:
    Span raw                # p == NULL: there is none
    Span database
    Span table
    int64_t version
    int64_t table_id
    bint has_table_id


# The members of a message.
cdef struct Facts:
    uint32_t named          # bits of MEMBER_*: which are there
    uint32_t has            # and which of them are not null
    int type                # TYPE_*
    Span type_text
    Span database
    Span table
    Span sql
    Span claim_check
    int64_t table_id
    int64_t commit_ts
    int64_t schema_version
    bint handle_key_only
    Checksum checksum
    SchemaFacts schema
    SchemaFacts schema_before


cdef class Decoder(BatchDecoder):
    cdef Table *tables[REMEMBERED_TABLES]
    cdef int32_t table_count
    cdef Table *buckets[TABLE_BUCKETS]
    cdef Table *last
    cdef uint64_t clock
    cdef Buffer data        # Member
    cdef Buffer old         # Member
    cdef Buffer slots       # int32: where the members of data, then of old stand, by column
    cdef Buffer columns     # ShapeColumn
    cdef Buffer text        # literals being made

    cdef int message(self, Message *m, Cursor *c) noexcept nogil
    cdef bint _predicted(self, Cursor *c) noexcept nogil
    cdef Table *_predicted_table(self, Cursor *c) noexcept nogil
    cdef bint _predicted_row(self, Cursor *c, Table *t) noexcept nogil
    cdef int _members(self, Cursor *c, Facts *f) noexcept nogil
    cdef int _member(self, Cursor *c, Facts *f, const Span *name) noexcept nogil
    cdef int _values(self, Cursor *c, Buffer *members) noexcept nogil
    cdef int _moment(self, Cursor *c, Member *m) noexcept nogil
    cdef int _checksum(self, Cursor *c, Checksum *out) noexcept nogil
    cdef int _schema(self, Cursor *c, SchemaFacts *out) noexcept nogil
    cdef int _row(self, Cursor *c, Facts *f) noexcept nogil
    cdef int _cells(self, Cursor *c, Cells *cells, const Member *members, const int32_t *slots,
                    int32_t count) noexcept nogil
    cdef int _ddl(self, Cursor *c, Facts *f) noexcept nogil
    cdef int _bootstrap(self, Cursor *c, Facts *f) noexcept nogil
    cdef int _schema_text(self, Facts *f, Span *out) noexcept nogil
    cdef Table *_table(self, Cursor *c, Facts *f, Member *members, int32_t count) noexcept nogil
    cdef Table *_remember(self, Cursor *c, Facts *f, const Member *members, int32_t count,
                          Table *earlier) noexcept nogil
    cdef void _use(self, Table *t) noexcept nogil
    cdef void _forget(self, Table *t) noexcept nogil
    cdef Table *_make_table(self, Cursor *c, Facts *f, const Member *members, int32_t count,
                            const Table *earlier) noexcept nogil
    cdef int32_t _zone_shape(self, Cursor *c, Table *t, uint64_t zones) noexcept nogil
    cdef int32_t _shape(self, Cursor *c, Table *t, const Member *members,
                        const int32_t *slots) noexcept nogil
