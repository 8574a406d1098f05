"""What the decoder of Simple's JSON remembers of tables, and what it notes of a message."""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.simple.json.layout cimport *

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
    ZONE_SHAPES = 16


# What is remembered of a table: the bytes that stand between the values of its messages.
cdef struct Table:
    KnownTable known        # its hash is that of both names
    uint8_t *text           # the memory of all names and literals
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

cdef Span HEAD, HEAD_TABLE, INSERT_COMMIT_TS, UPDATE_COMMIT_TS, DELETE_COMMIT_TS, BUILD_TS, SCHEMA_VERSION, HANDLE_KEY_ONLY
cdef Span CHECKSUM, INTACT_CURRENT, CORRUPTED_CURRENT, PREVIOUS, DATA, OLD, NULL_WORD, TIMESTAMP


cdef enum:
    MEMBER_VERSION = 1
    MEMBER_DATABASE = 2
    MEMBER_TABLE = 4
    MEMBER_TABLE_ID = 8
    MEMBER_TYPE = 16
    MEMBER_SQL = 32
    MEMBER_COMMIT_TS = 64
    MEMBER_BUILD_TS = 128
    MEMBER_SCHEMA_VERSION = 256
    MEMBER_CLAIM_CHECK = 512
    MEMBER_HANDLE_KEY_ONLY = 1024
    MEMBER_CHECKSUM = 2048
    MEMBER_DATA = 4096
    MEMBER_OLD = 8192
    MEMBER_TABLE_SCHEMA = 16384
    MEMBER_PRE_TABLE_SCHEMA = 32768


cdef enum:
    TYPE_INSERT
    TYPE_UPDATE
    TYPE_DELETE
    TYPE_WATERMARK
    TYPE_BOOTSTRAP
    TYPE_DDL


cdef enum:
    PREDICTABLE_ZONES = 64  # the bits of ZoneShape.zones
    PREDICTIONS = 4         # how many column lists of one table are tried on a message
    MAX_NUMBER = 80         # bytes of a column's default: longer than any of MySQL's
    MAX_DIGITS = 4000       # Python reads whole numbers of at most 4300 digits


cdef inline bint take_null(Cursor *c) noexcept nogil:
    return json_is(c, b"null", 4)


cdef inline int name_once(Cursor *c, uint32_t *named, uint32_t bit) noexcept nogil:
    if named[0] & bit:
        return fail(c, FAULT_DUPLICATE)
    named[0] |= bit
    return 0


cdef inline int read_at_most(Cursor *c, int64_t *out, int64_t largest) noexcept nogil:
    cdef const uint8_t *at = c.p
    cdef size_t n = tg_natural(at, c.end, c.limit, out)
    if n and at + n < c.end and (at[n] == c',' or at[n] == c'}'):
        c.p += n
    elif json_i64(c, out) < 0:
        return -1
    return fail_at(c, FAULT_RANGE, at) if out[0] < 0 or out[0] > largest else 0


cdef inline int read_timestamp(Cursor *c, int64_t *out) noexcept nogil:
    """A TSO: commitTs, or a schema's version."""
    return read_at_most(c, out, INT64_MAX)


cdef class SimpleJsonDecoder(MessageDecoder):
    cdef Buffer data        # Member
    cdef Buffer old         # Member
    cdef Buffer slots       # int32: where the members of data, then of old stand, by column
    cdef Buffer columns     # ShapeColumn
    cdef Buffer text        # literals being made

    cdef int message(self, Message *m, Cursor *c) noexcept nogil
