"""What the Canal-JSON decoder remembers of tables, and what it notes of a message."""


from tidegate.wire.codec.prelude cimport *
from tidegate.wire.canal.rules cimport *


cdef struct Column:
    canal_word name
    canal_word type
    uint64_t hash           # of the name
    int32_t next            # in the bucket of names
    int32_t key
    uint64_t seen           # the serial of the object in which the column was last met
    canal_rule rule         # of its values
    bint varies             # its sqlType depends on its value


# --- what was learned from earlier messages ------------------------------------------------------

cdef enum:
    # mysqlType entries that begin alike are tried one after the other, but not more than this.
    MAX_ALIKE = 8


# One column list of one table, and how its messages look.
cdef struct Plan:
    KnownTable known        # its hash is that of the names
    Arena arena
    int32_t shape
    Span database
    Span table
    int32_t count
    int32_t keys
    bint by_name            # the columns are in the order of their names
    Column *columns
    int32_t *buckets        # of column names
    uint64_t bucket_mask
    # The prediction, if there is one: a TiCDC message from its beginning to behind "type":" ...
    bint tried
    bint predicts
    Span prefix
    # ... sqlType, cut where a number depends on a value ...
    Span *segments
    int32_t segment_count
    # ... and what the rows and mysqlType look like.
    canal_layout layout


# A member of sqlType, mysqlType, data or old; or a name of pkNames.
cdef struct Member:
    const uint8_t *at       # its name's opening quote
    Span name
    const uint8_t *value_at
    Span text               # p == NULL: null


cdef struct Members:
    size_t first
    size_t count
    bint present            # not null


# What a message holds, by the names of its members.
cdef enum Part:
    PART_ID = 1
    PART_DATABASE = 2
    PART_TABLE = 4
    PART_PK_NAMES = 8
    PART_IS_DDL = 16
    PART_TYPE = 32
    PART_ES = 64
    PART_TS = 128
    PART_SQL = 256
    PART_SQL_TYPE = 512
    PART_MYSQL_TYPE = 1024
    PART_DATA = 2048
    PART_OLD = 4096
    PART_TIDB = 8192


# Likewise the member _tidb.
cdef enum TidbPart:
    TIDB_COMMIT_TS = 1
    TIDB_WATERMARK_TS = 2
    TIDB_ONLY_HANDLE_KEY = 4
    TIDB_CLAIM_CHECK = 8
    TIDB_TABLE_ID = 16
    TIDB_PARTITION_ID = 32


cdef struct Parts:
    uint32_t has                # Part
    uint32_t extension          # TidbPart
    Span database
    Span table
    Span type
    const uint8_t *type_at      # the word of the type, in the message
    Span sql
    bint is_ddl
    bint has_extension
    bint only_handle_key
    int64_t es
    int64_t commit_ts
    int64_t watermark_ts
    int64_t table_id
    int64_t partition_id
    Span claim_check
    Members pk_names
    Members sql_type
    Members mysql_type
    Members data                # rows: indexes into Decoder.row_members
    Members old


cdef class CanalDecoder(MessageDecoder):
    cdef Buffer members         # Member: of the message being read
    cdef Buffer row_members     # Members: the rows of data and old
    cdef Buffer after_slots     # int32: for each column, its member in the row being put
    cdef Buffer before_slots
    cdef Buffer spare           # bytes of binary values, numbers being shifted
    cdef Buffer padded          # a copy of the message that ends the batch
    cdef uint64_t serial
    cdef uint64_t seed

    cdef int message(self, Message *m, Cursor *c) noexcept nogil


cdef void set_type(Column *column) noexcept nogil
