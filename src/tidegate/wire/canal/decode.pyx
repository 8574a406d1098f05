"""Canal-JSON: one JSON object a message, every value a string; decoded and encoded.

Reads what TiCDC writes, with and without the TiDB extension, since v4.0, and what the official Canal
writes; writes what TiCDC writes. Authority: TiCDC's Canal-JSON document and, where it is silent or
wrong, the bytes of TiCDC's own encoder (docs/protocols/canal-json.md lists the choices).

Messages of one table repeat themselves. A message that no earlier one predicts goes the general way:
one pass notes where every member stands, a second one puts the values into the order of the row's
shape. What it was made of (a Plan) is remembered, and the next message is compared with it: only
what lies between the predicted bytes is then looked at. Whatever is not as predicted goes the
general way again, which alone decides what is wrong with a message.
"""

cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, qsort
from libc.string cimport memcmp, memcpy, memset

from tidegate.model import (
    ConfigError,
    EncodeError,
    Flag,
    MySQLType,
    SchemaNotSeen,
    UnsupportedByProtocol,
    action_code,
    canal_ddl_type,
    java_sql_type,
    parse_type,
    type_name,
)
from tidegate.wire.kernel.claim_check import pack

from tidegate.wire.batch.builder cimport (
    FLAG_CLAIM_CHECK,
    FLAG_HANDLE_KEY_ONLY,
    HAS_AFTER,
    HAS_BEFORE,
    HAS_COMMIT_TS,
    HAS_TABLE_ID,
    KIND_DDL,
    KIND_DELETE,
    KIND_ERROR,
    KIND_INSERT,
    KIND_UPDATE,
    KIND_WATERMARK,
    MAX_COLUMNS,
    BatchReader,
    CellsView,
    Extra,
    Message,
    MessageBuilder,
    Row,
    ShapeColumn,
    StringsView,
    bit_at,
    long_at,
    row_init,
    string_at,
    view_cell,
    view_count,
    view_has,
)
from tidegate.wire.batch.builder cimport Decoder as BatchDecoder
from tidegate.wire.kernel.buffer cimport (
    Arena,
    Buffer,
    Cells,
    arena_free,
    arena_keep,
    arena_take,
    buffer_add,
    buffer_free,
    buffer_reserve,
    cell_end,
    cell_null,
    cells_cut,
    cells_ends,
    cells_reserve,
)
from tidegate.wire.kernel.cursor cimport (
    FAULT_BINARY,
    FAULT_COLUMNS,
    FAULT_DUPLICATE,
    FAULT_EMPTY,
    FAULT_MEMORY,
    FAULT_MISSING,
    FAULT_NONE,
    FAULT_NUMBER,
    FAULT_RANGE,
    FAULT_TEMPORAL,
    FAULT_TYPE,
    FAULT_UNKNOWN_KIND,
    FAULT_VALUE,
    TG_LIKELY,
    TG_UNLIKELY,
    Cursor,
    Span,
    cursor_init,
    fail,
    fail_at,
    left,
    take,
    tg_copy,
    tg_copy_plain_run,
    tg_plain_run,
    tg_same,
)
from tidegate.wire.kernel.json cimport (
    json_bool,
    json_element,
    json_escape,
    json_finish,
    json_i64,
    json_is,
    json_member,
    json_number,
    json_open,
    json_peek,
    json_skip_other,
    json_space,
    json_span,
    json_u64,
)
from tidegate.wire.kernel.jsonwrite cimport STYLE_EASYJSON, json_put_string, put_i64
from tidegate.wire.kernel.text cimport (
    tg_base64_decode,
    tg_base64_encode,
    tg_is_digit,
    tg_latin1_from_utf8,
    tg_shift_decimal,
    tg_utf8_from_latin1,
)
from tidegate.wire.kernel.values cimport (
    FORM_BINARY,
    FORM_DATE,
    FORM_DATETIME,
    FORM_DECIMAL,
    FORM_DOUBLE,
    FORM_FLOAT,
    FORM_INTEGER,
    FORM_TIME,
    FORM_UNSIGNED,
    FORM_VECTOR,
    FORM_YEAR,
    bits_of,
    form_of,
)


cdef extern from "_canal.h" nogil:
    enum:
        CANAL_PADDING
        CANAL_TEXT
        CANAL_BINARY
        CANAL_DECIMAL
        CANAL_DATETIME
        CANAL_DATE
        CANAL_TIME
        CANAL_FLOAT
        CANAL_YEAR
        CANAL_VECTOR
        CANAL_UNCLEAR
        CANAL_GOOD
        CANAL_BAD_RANGE
        CANAL_BAD_TIME
        CANAL_BAD_VALUE
    const uint8_t *canal_ts
    const uint8_t *canal_sql
    const uint8_t *canal_insert
    const uint8_t *canal_update
    const uint8_t *canal_delete
    const uint8_t *canal_no_old
    const uint8_t *canal_old
    const uint8_t *canal_data
    const uint8_t *canal_commit_ts
    const uint8_t *canal_handle_key
    const uint8_t *canal_row_key
    const uint8_t *canal_database
    const uint8_t *canal_table

    ctypedef struct canal_word:
        const uint8_t *p
        size_t n

    canal_word canal_word_of(const uint8_t *p, size_t n) noexcept
    bint canal_same_word(const canal_word *a, const canal_word *b) noexcept
    uint64_t canal_word_hash(const canal_word *word, uint64_t seed) noexcept
    void canal_copy(uint8_t *dst, const uint8_t *p, size_t n) noexcept
    uint64_t canal_hash(const uint8_t *p, size_t n, uint64_t seed) noexcept
    size_t canal_digit_run(const uint8_t *p) noexcept
    uint64_t canal_number(const uint8_t *p, size_t n) noexcept

    ctypedef struct canal_rule:
        int kind

    void canal_integer_rule(canal_rule *rule, int bits, bint is_unsigned) noexcept
    int canal_check(const canal_rule *rule, const uint8_t *p, size_t n) noexcept

    ctypedef struct canal_member:
        pass

    const uint8_t *canal_plain_member(const uint8_t *p, const uint8_t *end, bint numbers,
                                      canal_member *out) noexcept

    ctypedef struct canal_literal:
        uint8_t *head
        const uint8_t *whole
        uint32_t size
        uint32_t mask
        uint32_t next
        uint64_t weight

    ctypedef struct canal_layout:
        int32_t count
        canal_literal *names
        canal_rule *rules
        canal_literal *types
        uint32_t *slots
        int shift
        int window
        size_t types_size
        uint64_t types_weight

    ctypedef struct canal_cells:
        uint8_t *base
        uint8_t *text
        int32_t *ends
        uint8_t *valid
        uint8_t *spare

    ctypedef int64_t (*canal_unescape)(const uint8_t **p, const uint8_t *end, const uint8_t *limit,
                                       uint8_t *text, size_t n, unsigned int *high) noexcept nogil
    uint64_t canal_type_slot(const uint8_t *p, int window, int shift) noexcept
    const uint8_t *canal_read_row(const canal_layout *layout, const uint8_t *p, const uint8_t *end,
                                  const uint8_t *limit, canal_cells *cells, const uint8_t *types,
                                  uint8_t *missing, int32_t *left_out,
                                  canal_unescape unescape) noexcept


# --- what a type's text says of its values -------------------------------------------------------

# The names that begin a type's text; what they mean is model.types' to say.
_TYPE_WORDS = (
    "tinyint", "smallint", "mediumint", "int", "integer", "bigint", "bool", "boolean", "bit",
    "float", "double", "real", "decimal", "numeric", "dec", "fixed",
    "date", "time", "datetime", "timestamp", "year", "enum", "set", "json", "vector",
    "char", "varchar", "tinytext", "text", "mediumtext", "longtext",
    "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob",
)

cdef struct TypeWord:
    char text[16]
    size_t size
    int code
    int flags

cdef TypeWord _type_words[40]
cdef int _type_word_count = 0


def _fill_type_words() -> None:
    global _type_word_count
    cdef bytes text
    for word in _TYPE_WORDS:
        parsed = parse_type(word)
        text = word.encode()
        _type_words[_type_word_count].size = len(text)
        memcpy(_type_words[_type_word_count].text, <const char *>text, len(text))
        _type_words[_type_word_count].code = parsed.code
        _type_words[_type_word_count].flags = parsed.flags
        _type_word_count += 1


_fill_type_words()


cdef struct Column:
    canal_word name
    canal_word type
    uint64_t hash           # of the name
    int32_t next            # in the bucket of names
    int32_t key
    uint64_t seen           # the serial of the object in which the column was last met
    canal_rule rule         # of its values
    bint varies             # its sqlType depends on its value


cdef inline uint8_t _lower(uint8_t byte) noexcept nogil:
    return byte | 0x20 if 65 <= byte <= 90 else byte


cdef bint _has_word(const canal_word *text, size_t start, const char *word, size_t n) noexcept nogil:
    """Whether the (lower-case) word stands somewhere in the text, in any case."""
    cdef size_t i, j
    if text.n < n:
        return False
    for i in range(start, text.n - n + 1):
        j = 0
        while j < n and _lower(text.p[i + j]) == <uint8_t>word[j]:
            j += 1
        if j == n:
            return True
    return False


cdef void _set_rule(canal_rule *rule, int code, int flags) noexcept nogil:
    """The rule of the values of a type; any text goes where the type is not known."""
    cdef int form = form_of(code, flags)
    rule.kind = CANAL_TEXT
    if form == FORM_INTEGER or form == FORM_UNSIGNED:
        canal_integer_rule(rule, bits_of(code), form == FORM_UNSIGNED)
    elif form == FORM_BINARY:
        rule.kind = CANAL_BINARY
    elif form == FORM_DECIMAL:
        rule.kind = CANAL_DECIMAL
    elif form == FORM_DATETIME:
        rule.kind = CANAL_DATETIME
    elif form == FORM_DATE:
        rule.kind = CANAL_DATE
    elif form == FORM_TIME:
        rule.kind = CANAL_TIME
    elif form == FORM_FLOAT or form == FORM_DOUBLE:
        rule.kind = CANAL_FLOAT
    elif form == FORM_YEAR:
        rule.kind = CANAL_YEAR
    elif form == FORM_VECTOR:
        rule.kind = CANAL_VECTOR


cdef void _set_type(Column *column) noexcept nogil:
    """What the text of the column's type says of its values."""
    cdef char word[16]
    cdef size_t n = 0
    cdef uint8_t byte
    cdef int i
    cdef int code = -1, flags = 0
    cdef canal_word *type = &column.type
    while n < type.n and n < 16:
        byte = _lower(type.p[n])
        if not (97 <= byte <= 122 or 48 <= byte <= 57 or byte == c'_'):
            break
        word[n] = <char>byte
        n += 1
    for i in range(_type_word_count):
        if _type_words[i].size == n and memcmp(_type_words[i].text, word, n) == 0:
            code = _type_words[i].code
            flags = _type_words[i].flags
            break
    if n == 4 and memcmp(word, b"long", 4) == 0 and _has_word(type, 4, b"varbinary", 9):
        code = 250
        flags = 1
    if code < 0 and (_has_word(type, 0, b"blob", 4) or _has_word(type, 0, b"binary", 6)):
        column.varies = False
        column.rule.kind = CANAL_UNCLEAR
        return
    # MySQL: ZEROFILL implies UNSIGNED
    if _has_word(type, n, b"unsigned", 8) or _has_word(type, n, b"zerofill", 8):
        flags |= 128
    column.varies = form_of(code, flags) == FORM_UNSIGNED and code <= 9
    _set_rule(&column.rule, code, flags)


cdef inline int _value_fault(const Column *column, const uint8_t *p, size_t n) noexcept nogil:
    """What is wrong with a value of the column; 32 bytes of it may be read. Not for BINARY."""
    cdef int found = canal_check(&column.rule, p, n)
    if TG_LIKELY(found == CANAL_GOOD):
        return FAULT_NONE
    if found == CANAL_BAD_TIME:
        return FAULT_TEMPORAL
    if found == CANAL_BAD_VALUE:
        return FAULT_VALUE
    return FAULT_RANGE if found == CANAL_BAD_RANGE else FAULT_NUMBER


# --- what was learned from earlier messages ------------------------------------------------------

cdef enum:
    MAX_PLANS = 256
    # What all plans together may take before they are forgotten.
    MAX_PLAN_BYTES = 32 * 1024 * 1024
    PLAN_BUCKETS = 512
    # mysqlType entries that begin alike are tried one after the other, but not more than this.
    MAX_ALIKE = 8


# One column list of one table, and how its messages look.
cdef struct Plan:
    Arena arena
    uint64_t hash           # of the names
    int32_t next            # in the bucket of names, -1 at the end
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


# These names, and those of the member _tidb, for json_skip_other.
cdef const char *_MEMBERS = (
    b"id database table pknames isddl type es ts sql sqltype mysqltype data old _tidb "
)
cdef const char *_EXTENSION_MEMBERS = (
    b"committs watermarkts onlyhandlekey claimchecklocation tableid partitionid "
)


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


cdef inline bint _is(const Span *text, const char *word, size_t n) noexcept nogil:
    return text.n == n and memcmp(text.p, word, n) == 0


cdef inline bint _same(const Span *a, const Span *b) noexcept nogil:
    return a.n == b.n and memcmp(a.p, b.p, a.n) == 0


cdef int _by_name(const void *a, const void *b) noexcept nogil:
    cdef const canal_word *left_name = &(<const Column *>a).name
    cdef const canal_word *right_name = &(<const Column *>b).name
    cdef size_t n = left_name.n if left_name.n < right_name.n else right_name.n
    cdef int order = memcmp(left_name.p, right_name.p, n)
    if order:
        return order
    return (left_name.n > right_name.n) - (left_name.n < right_name.n)


cdef void _fill_buckets(Plan *plan) noexcept nogil:
    """The table of column names, from the columns and their hashes."""
    cdef int32_t i
    cdef int32_t *bucket
    memset(plan.buckets, 0xff, (plan.bucket_mask + 1) * sizeof(int32_t))
    for i in range(plan.count):
        bucket = &plan.buckets[plan.columns[i].hash & plan.bucket_mask]
        plan.columns[i].next = bucket[0]
        bucket[0] = i


cdef size_t _power_above(size_t n) noexcept nogil:
    cdef size_t power = 8
    while power < n:
        power *= 2
    return power


cdef void _plan_free(Plan *plan) noexcept nogil:
    arena_free(&plan.arena)
    free(plan)


cdef int64_t _unescape(const uint8_t **p, const uint8_t *end, const uint8_t *limit, uint8_t *text,
                       size_t n, unsigned int *high) noexcept nogil:
    """See canal_unescape."""
    cdef Cursor c
    cdef size_t run = 0
    c.p = p[0]
    c.end = end
    c.limit = limit
    c.fault = FAULT_NONE
    while c.p < end:
        if c.p[0] == c'"':
            p[0] = c.p + 1
            return <int64_t>n
        if c.p[0] != c'\\' or json_escape(&c, text + n, &run) < 0:
            return -1
        n += run
        run = tg_copy_plain_run(c.p, end, limit, text + n, high)
        n += run
        c.p += run
    return -1


cdef inline const uint8_t *_predicted_sql_type(Plan *plan, Cursor *c) noexcept nogil:
    """Over sqlType to behind the opening brace of mysqlType."""
    cdef const uint8_t *p = c.p
    cdef int32_t i
    cdef Span *segment = plan.segments
    cdef uint8_t leading
    for i in range(plan.segment_count - 1):
        if <size_t>(c.end - p) < segment.n + 8 or not tg_same(p, segment.p, segment.n, c.limit):
            return NULL
        p += segment.n
        segment += 1
        p += p[0] == c'-'
        leading = p[0]
        if not tg_is_digit(leading):
            return NULL
        p += 1
        while p < c.end and tg_is_digit(p[0]):
            if leading == c'0':
                return NULL
            p += 1
    if <size_t>(c.end - p) < segment.n or not tg_same(p, segment.p, segment.n, c.limit):
        return NULL
    return p + segment.n


cdef inline bint _predicted_digits(Cursor *c, uint64_t *value) noexcept nogil:
    cdef size_t n
    if TG_UNLIKELY(c.p >= c.end):
        return False
    n = canal_digit_run(c.p)
    if TG_UNLIKELY(n == 0 or n > 18 or n > left(c) or (c.p[0] == c'0' and n > 1)):
        return False
    value[0] = canal_number(c.p, n)
    c.p += n
    return True


@cython.final
cdef class Decoder(BatchDecoder):
    cdef Buffer members         # Member: of the message being read
    cdef Buffer row_members     # Members: the rows of data and old
    cdef Buffer after_slots     # int32: for each column, its member in the row being put
    cdef Buffer before_slots
    cdef Buffer spare           # bytes of binary values, numbers being shifted
    cdef Buffer padded          # a copy of the message that ends the batch
    cdef Plan *plans[MAX_PLANS]
    cdef int32_t buckets[PLAN_BUCKETS]
    cdef int32_t plan_count
    cdef int32_t last           # the plan used last, -1: none
    cdef size_t plan_bytes
    cdef uint64_t serial
    cdef uint64_t seed

    def __cinit__(self, *arguments, **options):
        self.seed = <uint64_t><uintptr_t><void *>self * 0x9e3779b97f4a7c15u
        self._forget()

    def __dealloc__(self):
        self._forget()
        buffer_free(&self.members)
        buffer_free(&self.row_members)
        buffer_free(&self.after_slots)
        buffer_free(&self.before_slots)
        buffer_free(&self.spare)
        buffer_free(&self.padded)

    cdef void _forget(self) noexcept nogil:
        cdef int32_t i
        for i in range(self.plan_count):
            _plan_free(self.plans[i])
        self.plan_count = 0
        self.plan_bytes = 0
        self.last = -1
        memset(self.buckets, 0xff, sizeof(self.buckets))

    cdef int message(self, Message *m, Cursor *c) noexcept nogil:
        cdef Message padded
        if m.value == NULL or m.value_size == 0:
            return fail(c, FAULT_EMPTY)
        if TG_UNLIKELY(<size_t>(m.value_limit - m.value) < m.value_size + CANAL_PADDING):
            if self._pad(m, &padded) < 0:
                return fail(c, FAULT_MEMORY)
            cursor_init(c, padded.value, padded.value_size, padded.value_limit)
            return self._read(&padded, c)
        return self._read(m, c)

    cdef int _pad(self, const Message *m, Message *out) noexcept nogil:
        """A copy of the batch's last message, with bytes behind it that may be read."""
        self.padded.used = 0
        if buffer_reserve(&self.padded, m.value_size + CANAL_PADDING) < 0:
            return -1
        memcpy(self.padded.data, m.value, m.value_size)
        memset(self.padded.data + m.value_size, 0, CANAL_PADDING)
        out.value = self.padded.data
        out.value_size = m.value_size
        out.value_limit = self.padded.data + m.value_size + CANAL_PADDING
        return 0

    cdef inline int _read(self, Message *m, Cursor *c) noexcept nogil:
        if self.last >= 0:
            if TG_LIKELY(self._predict(m)):
                return 0
            self.out.rollback()
        return self._general(m, c)

    # --- the predicted way -----------------------------------------------------------------------

    cdef inline bint _predict(self, Message *m) noexcept nogil:
        """Reads the message by one of the plans; if by none, something may have been put."""
        cdef int32_t i
        cdef int32_t tried = self.last
        if TG_LIKELY(self._predicted(self.plans[tried], m)):
            return True
        i = self._find_raw(m)
        while i >= 0:
            if i != tried:
                self.out.rollback()
                if self._predicted(self.plans[i], m):
                    self.last = i
                    return True
            i = self.plans[i].next
        return False

    cdef inline uint64_t _names_hash(self, const uint8_t *database, size_t database_size,
                                     const uint8_t *table, size_t table_size) noexcept nogil:
        return canal_hash(database, database_size, self.seed) ^ \
            canal_hash(table, table_size, ~self.seed)

    cdef int32_t _find_raw(self, Message *m) noexcept nogil:
        """The first plan of the bucket of the table that a TiCDC message names; -1: none, or another
        layout, or names with escapes."""
        cdef const uint8_t *p = m.value
        cdef const uint8_t *end = p + m.value_size
        cdef const uint8_t *database
        cdef size_t run
        cdef size_t database_size
        cdef unsigned int high = 0
        if m.value_size < 48 or not tg_same(p, canal_database, 20, m.value_limit):
            return -1
        p += 20
        database = p
        database_size = tg_plain_run(p, end, m.value_limit, &high)
        p += database_size
        if <size_t>(end - p) < 16 or not tg_same(p, canal_table, 11, m.value_limit):
            return -1
        p += 11
        run = tg_plain_run(p, end, m.value_limit, &high)
        return self.buckets[
            self._names_hash(database, database_size, p, run) & (PLAN_BUCKETS - 1)
        ]

    cdef bint _predicted(self, Plan *plan, Message *m) noexcept nogil:
        """Reads the message if it is one of the plan, exactly as TiCDC lays it out. If not, what
        was put stays for the caller to take back.

        Where the bytes are as predicted nobody asks whether the message still goes on: what is read
        behind it lies in the padding, and in the end the last byte must be the message's last.
        """
        cdef Cursor at
        cdef Cursor *c = &at
        cdef Row row
        cdef Cells *cells
        cdef const uint8_t *p
        cdef const uint8_t *types
        cdef uint64_t es = 0, ts = 0
        cdef uint8_t *missing
        cdef int32_t left_out = 0
        cdef unsigned int high = 0
        if not plan.predicts or m.value_size < plan.prefix.n + plan.layout.types_size + 64 or \
                not tg_same(m.value, plan.prefix.p, plan.prefix.n, m.value_limit):
            return False
        c.start = m.value
        c.end = m.value + m.value_size
        c.limit = m.value_limit
        c.fault = FAULT_NONE
        c.p = m.value + plan.prefix.n
        if take(c, canal_insert, 13):
            row_init(&row, KIND_INSERT)
        elif take(c, canal_update, 13):
            row_init(&row, KIND_UPDATE)
        elif take(c, canal_delete, 13):
            row_init(&row, KIND_DELETE)
        else:
            return False
        if not _predicted_digits(c, &es) or not take(c, canal_ts, 6) or \
                not _predicted_digits(c, &ts) or not take(c, canal_sql, 21):
            return False
        types = _predicted_sql_type(plan, c)
        if types == NULL or <size_t>(c.end - types) < plan.layout.types_size:
            return False
        c.p = types + plan.layout.types_size
        if buffer_reserve(&self.spare, left(c)) < 0:
            return False
        if row.kind == KIND_UPDATE:
            if not take(c, canal_old, 10):
                return False
            missing = self.out.new_missing(&row, plan.count)
            if missing == NULL or \
                    not self._predicted_row(plan, c, &self.out.before, NULL, missing, &left_out):
                return False
            if left_out == 0:
                self.out.missing.used = row.missing
                row.has = 0
            row.has = row.has | HAS_BEFORE
            if not take(c, canal_data, 12):
                return False
        elif not take(c, canal_no_old, 22):
            return False
        cells = &self.out.before if row.kind == KIND_DELETE else &self.out.after
        row.has = row.has | (HAS_BEFORE if row.kind == KIND_DELETE else HAS_AFTER)
        if not self._predicted_row(plan, c, cells, types, NULL, NULL):
            return False
        p = c.p
        if TG_LIKELY(take(c, canal_commit_ts, 23)):
            if not _predicted_digits(c, &ts):
                return False
            row.commit_ts = <int64_t>ts
            if TG_LIKELY(c.p[0] == c'}' and c.p[1] == c'}'):
                c.p += 2
            elif take(c, canal_handle_key, 23):
                row.flags |= FLAG_HANDLE_KEY_ONLY
            elif take(c, canal_row_key, 11):
                c.p += tg_plain_run(c.p, c.end, c.limit, &high)
                if high != 0 or c.p[0] != c'"' or c.p[1] != c'}' or c.p[2] != c'}':
                    return False
                c.p += 3
            else:
                return False
        elif p[0] == c'}' and p[1] == c']' and p[2] == c'}':
            if es > <uint64_t>INT64_MAX >> 18:
                return False
            row.commit_ts = <int64_t>(es << 18)
            c.p += 3
        else:
            return False
        # v6.5 put a line end behind each message
        json_space(c)
        if c.p != c.end:
            return False
        row.has = row.has | HAS_COMMIT_TS
        row.shape = plan.shape
        return self.out.add_row(c, &row) == 0

    cdef inline bint _predicted_row(self, const Plan *plan, Cursor *c, Cells *cells,
                                    const uint8_t *types, uint8_t *missing,
                                    int32_t *left_out) noexcept nogil:
        """The row at the cursor as the next cells; see canal_read_row."""
        cdef canal_cells at
        cdef const uint8_t *end
        # No value is longer than it stands there, but that base64 makes four bytes of three.
        if cells_reserve(cells, plan.count) < 0 or buffer_reserve(
            &cells.text, left(c) // 3 * 4 + 4 * <size_t>plan.count + 2 * CANAL_PADDING
        ) < 0:
            return False
        at.base = cells.text.data
        at.text = cells.text.data + cells.text.used
        at.ends = cells_ends(cells)
        at.valid = cells.valid.data + cells.count
        at.spare = self.spare.data
        end = canal_read_row(
            &plan.layout, c.p, c.end, c.limit, &at, types, missing, left_out, _unescape
        )
        if TG_UNLIKELY(end == NULL or end > c.end):
            return False
        c.p = end
        cells.text.used = <size_t>(at.text - at.base)
        cells.count += <size_t>plan.count
        cells.ends.used += 4 * <size_t>plan.count
        cells.valid.used += <size_t>plan.count
        return True

    cdef int _put_binary(self, Cells *cells, const uint8_t *p, size_t n) noexcept nogil:
        """The bytes that a text of code points up to U+00FF stands for, as a cell in base64; p may be
        the place where the cell goes. Gives a fault."""
        cdef int64_t size
        if buffer_reserve(&self.spare, n + 32) < 0:
            return FAULT_MEMORY
        size = tg_latin1_from_utf8(p, n, self.spare.data)
        if size < 0:
            return FAULT_BINARY
        if buffer_reserve(&cells.text, (<size_t>size + 2) // 3 * 4) < 0:
            return FAULT_MEMORY
        cells.text.used += tg_base64_encode(
            self.spare.data, <size_t>size, cells.text.data + cells.text.used
        )
        cell_end(cells)
        return FAULT_NONE

    # --- the general way, first pass: what the message holds ---------------------------------------

    cdef int _general(self, Message *m, Cursor *c) noexcept nogil:
        cdef Parts parts
        memset(&parts, 0, sizeof(Parts))
        self.members.used = 0
        self.row_members.used = 0
        self.out.scratch.used = 0
        if self._read_parts(c, &parts) < 0 or json_finish(c) < 0:
            return -1
        c.p = c.start
        if not parts.has & PART_TYPE:
            return fail(c, FAULT_MISSING)
        if parts.is_ddl:
            return self._put_ddl(c, &parts)
        if _is(&parts.type, b"TIDB_WATERMARK", 14):
            return self._put_watermark(c, &parts)
        return self._put_rows(m, c, &parts)

    cdef int _read_parts(self, Cursor *c, Parts *parts) noexcept nogil:
        cdef bint first = True
        cdef Span name, number
        cdef int found
        cdef uint32_t part
        if json_open(c, c'{') < 0:
            return -1
        while True:
            found = json_member(c, &first, &self.out.scratch, &name)
            if found <= 0:
                return found
            part = self._part(&name)
            if part == 0:
                if json_skip_other(c, &name, _MEMBERS) < 0:
                    return -1
                continue
            if parts.has & part:
                return fail(c, FAULT_DUPLICATE)
            parts.has |= part
            if part == PART_DATA:
                found = self._read_rows(c, &parts.data)
            elif part == PART_OLD:
                found = self._read_rows(c, &parts.old)
            elif part == PART_MYSQL_TYPE:
                found = self._read_members(c, &parts.mysql_type, False)
            elif part == PART_SQL_TYPE:
                found = self._read_members(c, &parts.sql_type, True)
            elif part == PART_PK_NAMES:
                found = self._read_names(c, &parts.pk_names)
            elif part == PART_TIDB:
                found = self._read_extension(c, parts)
            elif part == PART_IS_DDL:
                found = json_bool(c, &parts.is_ddl)
            elif part == PART_ES:
                found = json_i64(c, &parts.es)
            elif part == PART_ID or part == PART_TS:
                found = json_number(c, &number)
            elif part == PART_TYPE:
                parts.type_at = c.p + 1
                found = json_span(c, &self.out.scratch, &parts.type)
            elif part == PART_DATABASE:
                found = self._read_text(c, &parts.database)
            elif part == PART_TABLE:
                found = self._read_text(c, &parts.table)
            else:
                found = self._read_text(c, &parts.sql)
            if found < 0:
                return -1

    cdef inline uint32_t _part(self, const Span *name) noexcept nogil:
        if name.n == 2:
            if _is(name, b"id", 2):
                return PART_ID
            if _is(name, b"es", 2):
                return PART_ES
            if _is(name, b"ts", 2):
                return PART_TS
        elif name.n == 3:
            if _is(name, b"old", 3):
                return PART_OLD
            if _is(name, b"sql", 3):
                return PART_SQL
        elif name.n == 4:
            if _is(name, b"data", 4):
                return PART_DATA
            if _is(name, b"type", 4):
                return PART_TYPE
        elif name.n == 5:
            if _is(name, b"table", 5):
                return PART_TABLE
            if _is(name, b"isDdl", 5):
                return PART_IS_DDL
            if _is(name, b"_tidb", 5):
                return PART_TIDB
        elif name.n == 7:
            if _is(name, b"sqlType", 7):
                return PART_SQL_TYPE
            if _is(name, b"pkNames", 7):
                return PART_PK_NAMES
        elif name.n == 8:
            if _is(name, b"database", 8):
                return PART_DATABASE
        elif name.n == 9:
            if _is(name, b"mysqlType", 9):
                return PART_MYSQL_TYPE
        return 0

    cdef int _read_text(self, Cursor *c, Span *out) noexcept nogil:
        """A string, or null: p stays NULL."""
        if json_peek(c) == c'n' and json_is(c, b"null", 4):
            return 0
        return json_span(c, &self.out.scratch, out)

    cdef int _read_members(self, Cursor *c, Members *out, bint numbers) noexcept nogil:
        """An object of strings and nulls, or of whole numbers (whose texts are not kept), or null."""
        cdef bint first = True
        cdef Member *member
        cdef const uint8_t *behind
        cdef int found
        cdef int64_t number = 0
        out.first = self.members.used // sizeof(Member)
        out.present = False
        if json_peek(c) == c'n' and json_is(c, b"null", 4):
            return 0
        if json_open(c, c'{') < 0:
            return -1
        while True:
            if TG_UNLIKELY(buffer_reserve(&self.members, sizeof(Member)) < 0):
                return fail(c, FAULT_MEMORY)
            member = <Member *>(self.members.data + self.members.used)
            if TG_LIKELY(c.p < c.end) and (first or c.p[0] == c','):
                # A Member is laid out as a canal_member.
                behind = canal_plain_member(
                    c.p + (not first), c.end, numbers, <canal_member *>member
                )
                if TG_LIKELY(behind != NULL):
                    c.p = behind
                    first = False
                    self.members.used += sizeof(Member)
                    continue
            json_space(c)
            member.at = c.p if first else c.p + 1
            found = json_member(c, &first, &self.out.scratch, &member.name)
            if found <= 0:
                break
            member.value_at = c.p
            member.text.p = NULL
            member.text.n = 0
            if numbers:
                if json_i64(c, &number) < 0:
                    return -1
            elif c.p[0] == c'"':
                if json_span(c, &self.out.scratch, &member.text) < 0:
                    return -1
            elif not json_is(c, b"null", 4):
                return fail(c, FAULT_TYPE)
            self.members.used += sizeof(Member)
        out.count = self.members.used // sizeof(Member) - out.first
        out.present = True
        return found

    cdef int _read_names(self, Cursor *c, Members *out) noexcept nogil:
        """pkNames: strings, or null."""
        cdef bint first = True
        cdef Member member
        cdef int found
        memset(&member, 0, sizeof(Member))
        out.first = self.members.used // sizeof(Member)
        if json_peek(c) == c'n' and json_is(c, b"null", 4):
            return 0
        if json_open(c, c'[') < 0:
            return -1
        while True:
            found = json_element(c, &first)
            if found <= 0:
                break
            member.at = c.p
            if json_span(c, &self.out.scratch, &member.name) < 0:
                return -1
            if buffer_add(&self.members, <const uint8_t *>&member, sizeof(Member)) < 0:
                return fail(c, FAULT_MEMORY)
        out.count = self.members.used // sizeof(Member) - out.first
        out.present = True
        return found

    cdef int _read_row(self, Cursor *c) noexcept nogil:
        cdef Members row
        memset(&row, 0, sizeof(Members))
        if self._read_members(c, &row, False) < 0:
            return -1
        if buffer_add(&self.row_members, <const uint8_t *>&row, sizeof(Members)) < 0:
            return fail(c, FAULT_MEMORY)
        return 0

    cdef int _read_rows(self, Cursor *c, Members *out) noexcept nogil:
        """data or old: an array of rows, one row (a hotfix of TiCDC), or null. A row is an object or,
        in `old` of v5.1, null."""
        cdef bint first = True
        cdef int found = json_peek(c)
        out.first = self.row_members.used // sizeof(Members)
        if found == c'n' and json_is(c, b"null", 4):
            return 0
        if found == c'{':
            found = self._read_row(c)
        else:
            if json_open(c, c'[') < 0:
                return -1
            while True:
                found = json_element(c, &first)
                if found <= 0:
                    break
                if self._read_row(c) < 0:
                    return -1
        out.count = self.row_members.used // sizeof(Members) - out.first
        out.present = True
        return found

    cdef int _read_extension(self, Cursor *c, Parts *parts) noexcept nogil:
        """_tidb. Members of other versions (rowkey, checksum ...) are passed over."""
        cdef bint first = True
        cdef Span name
        cdef int found
        cdef uint32_t part
        if json_peek(c) == c'n' and json_is(c, b"null", 4):
            return 0
        if json_open(c, c'{') < 0:
            return -1
        parts.has_extension = True
        while True:
            found = json_member(c, &first, &self.out.scratch, &name)
            if found <= 0:
                return found
            part = 0
            if _is(&name, b"commitTs", 8):
                part = TIDB_COMMIT_TS
            elif _is(&name, b"watermarkTs", 11):
                part = TIDB_WATERMARK_TS
            elif _is(&name, b"onlyHandleKey", 13):
                part = TIDB_ONLY_HANDLE_KEY
            elif _is(&name, b"claimCheckLocation", 18):
                part = TIDB_CLAIM_CHECK
            elif _is(&name, b"tableId", 7):
                part = TIDB_TABLE_ID
            elif _is(&name, b"partitionId", 11):
                part = TIDB_PARTITION_ID
            if parts.extension & part:
                return fail(c, FAULT_DUPLICATE)
            parts.extension |= part
            if part == TIDB_COMMIT_TS:
                found = self._read_ts(c, &parts.commit_ts)
            elif part == TIDB_WATERMARK_TS:
                found = self._read_ts(c, &parts.watermark_ts)
            elif part == TIDB_ONLY_HANDLE_KEY:
                found = json_bool(c, &parts.only_handle_key)
            elif part == TIDB_CLAIM_CHECK:
                found = json_span(c, &self.out.scratch, &parts.claim_check)
            elif part == TIDB_TABLE_ID:
                found = json_i64(c, &parts.table_id)
            elif part == TIDB_PARTITION_ID:
                found = json_i64(c, &parts.partition_id)
            else:
                found = json_skip_other(c, &name, _EXTENSION_MEMBERS)
            if found < 0:
                return -1

    cdef int _read_ts(self, Cursor *c, int64_t *out) noexcept nogil:
        cdef const uint8_t *at = c.p
        cdef uint64_t value = 0
        if json_u64(c, &value) < 0:
            return -1
        if value > <uint64_t>INT64_MAX:
            return fail_at(c, FAULT_RANGE, at)
        out[0] = <int64_t>value
        return 0

    # --- the general way, second pass: the events ----------------------------------------------------

    cdef int _set_commit_ts(self, Cursor *c, Parts *parts, Row *row) noexcept nogil:
        if parts.has_extension:
            if not parts.extension & TIDB_COMMIT_TS:
                return fail(c, FAULT_MISSING)
            row.commit_ts = parts.commit_ts
        else:
            # `es` is the physical part of the TSO; the logical part is not carried.
            if not parts.has & PART_ES:
                return fail(c, FAULT_MISSING)
            if parts.es < 0 or parts.es > INT64_MAX >> 18:
                return fail(c, FAULT_RANGE)
            row.commit_ts = parts.es << 18
        row.has = row.has | HAS_COMMIT_TS
        return 0

    cdef int _put_watermark(self, Cursor *c, Parts *parts) noexcept nogil:
        cdef Row row
        row_init(&row, KIND_WATERMARK)
        if not parts.extension & TIDB_WATERMARK_TS:
            return fail(c, FAULT_MISSING)
        row.commit_ts = parts.watermark_ts
        row.has = HAS_COMMIT_TS
        return self.out.add_row(c, &row)

    cdef int _put_ddl(self, Cursor *c, Parts *parts) noexcept nogil:
        cdef Row row
        cdef Extra *extra
        row_init(&row, KIND_DDL)
        if _is(&parts.type, b"INSERT", 6) or _is(&parts.type, b"UPDATE", 6) or \
                _is(&parts.type, b"DELETE", 6) or _is(&parts.type, b"TIDB_WATERMARK", 14):
            return fail_at(c, FAULT_UNKNOWN_KIND, parts.type_at)
        if parts.sql.p == NULL:
            return fail(c, FAULT_MISSING)
        if self._set_commit_ts(c, parts, &row) < 0:
            return -1
        if parts.database.n == 0:
            parts.database.p = NULL
        if parts.table.n == 0:
            parts.table.p = NULL
        row.names = self.out.intern_names(&parts.database, &parts.table)
        extra = self.out.new_extra(&row)
        if row.names < 0 or extra == NULL or \
                self.out.keep(&parts.type, &extra.ddl_type) < 0 or \
                self.out.keep(&parts.sql, &extra.query) < 0:
            return fail(c, FAULT_MEMORY)
        return self.out.add_row(c, &row)

    cdef int _put_rows(self, Message *m, Cursor *c, Parts *parts) noexcept nogil:
        cdef int kind
        cdef size_t i
        cdef Members *data
        cdef Members *old
        cdef Plan *plan = NULL
        cdef Row row
        if _is(&parts.type, b"INSERT", 6):
            kind = KIND_INSERT
        elif _is(&parts.type, b"UPDATE", 6):
            kind = KIND_UPDATE
        elif _is(&parts.type, b"DELETE", 6):
            kind = KIND_DELETE
        else:
            return fail_at(c, FAULT_UNKNOWN_KIND, parts.type_at)
        if parts.database.p == NULL or parts.table.p == NULL or not parts.data.present or \
                not parts.mysql_type.present:
            return fail(c, FAULT_MISSING)
        if kind == KIND_UPDATE and parts.old.present and parts.old.count != parts.data.count:
            return fail(c, FAULT_COLUMNS)
        for i in range(parts.data.count):
            data = <Members *>self.row_members.data + parts.data.first + i
            if not data.present:
                return fail(c, FAULT_TYPE)
            old = NULL
            if parts.old.present and i < parts.old.count:
                old = <Members *>self.row_members.data + parts.old.first + i
                if not old.present:
                    old = NULL
            if kind == KIND_INSERT and old != NULL and old.count != 0:
                return fail(c, FAULT_COLUMNS)
            # v4.0 and v5 sent empty rows for what a transaction inserted and deleted again.
            if data.count == 0 and (old == NULL or old.count == 0):
                continue
            plan = self._plan_of(c, parts, data, plan)
            if plan == NULL:
                return -1
            row_init(&row, kind)
            if self._set_commit_ts(c, parts, &row) < 0 or \
                    self._put_row(c, parts, plan, data, old, &row) < 0:
                return -1
        # A plan predicts if it can read the message that it was made of.
        if plan != NULL and not plan.tried and parts.data.count == 1:
            plan.tried = True
            self._try_prediction(m, parts, plan)
        return 0

    cdef int _put_row(self, Cursor *c, Parts *parts, Plan *plan, const Members *data,
                      const Members *old, Row *row) noexcept nogil:
        cdef Extra *extra
        row.shape = plan.shape
        if parts.only_handle_key:
            row.flags |= FLAG_HANDLE_KEY_ONLY
        if parts.claim_check.p != NULL:
            extra = self.out.new_extra(row)
            if extra == NULL or self.out.keep(&parts.claim_check, &extra.claim_check) < 0:
                return fail(c, FAULT_MEMORY)
            row.flags |= FLAG_CLAIM_CHECK
        if parts.extension & TIDB_PARTITION_ID and parts.partition_id:
            row.table_id = parts.partition_id
            row.has = row.has | HAS_TABLE_ID
        elif parts.extension & TIDB_TABLE_ID:
            row.table_id = parts.table_id
            row.has = row.has | HAS_TABLE_ID
        if row.kind == KIND_UPDATE and old != NULL:
            if self._put_before(c, plan, old, row) < 0:
                return -1
        if self._put_cells(
            c, plan, <int32_t *>self.after_slots.data,
            &self.out.before if row.kind == KIND_DELETE else &self.out.after,
        ) < 0:
            return -1
        row.has = row.has | (HAS_BEFORE if row.kind == KIND_DELETE else HAS_AFTER)
        return self.out.add_row(c, row)

    cdef int _put_before(self, Cursor *c, Plan *plan, const Members *old, Row *row) noexcept nogil:
        """`old` may leave columns out; it may not bring others."""
        cdef Member *members = <Member *>self.members.data + old.first
        cdef int32_t *slots
        cdef int32_t i, column
        cdef uint8_t *missing
        if buffer_reserve(&self.before_slots, <size_t>plan.count * sizeof(int32_t)) < 0:
            return fail(c, FAULT_MEMORY)
        slots = <int32_t *>self.before_slots.data
        self.serial += 1
        if old.count != <size_t>plan.count:
            memset(slots, 0xff, <size_t>plan.count * sizeof(int32_t))
            missing = self.out.new_missing(row, plan.count)
            if missing == NULL:
                return fail(c, FAULT_MEMORY)
            memset(missing, 0xff, <size_t>plan.count // 8)
            if plan.count & 7:
                missing[plan.count >> 3] = <uint8_t>((1 << (plan.count & 7)) - 1)
        else:
            missing = NULL
        for i in range(<int32_t>old.count):
            column = self._column(plan, &members[i].name, i)
            if column < 0:
                return fail_at(c, FAULT_COLUMNS, members[i].at)
            if plan.columns[column].seen == self.serial:
                return fail_at(c, FAULT_DUPLICATE, members[i].at)
            plan.columns[column].seen = self.serial
            slots[column] = <int32_t>old.first + i
            if missing != NULL:
                missing[column >> 3] &= <uint8_t>~(1 << (column & 7))
        row.has = row.has | HAS_BEFORE
        return self._put_cells(c, plan, slots, &self.out.before)

    cdef int _put_cells(self, Cursor *c, Plan *plan, const int32_t *slots, Cells *cells) noexcept nogil:
        """The cells of a row; slots: for each column the index of its member, -1: none."""
        cdef Member *members = <Member *>self.members.data
        cdef Member *member
        cdef Column *column
        cdef int32_t i
        cdef int fault
        cdef uint8_t *text
        if cells_reserve(cells, plan.count) < 0:
            return fail(c, FAULT_MEMORY)
        for i in range(plan.count):
            if slots[i] < 0 or members[slots[i]].text.p == NULL:
                cell_null(cells)
                continue
            member = &members[slots[i]]
            column = &plan.columns[i]
            if column.rule.kind == CANAL_BINARY:
                fault = self._put_binary(cells, member.text.p, member.text.n)
                if fault != FAULT_NONE:
                    return fail_at(c, fault, member.value_at)
                continue
            if buffer_reserve(&cells.text, member.text.n) < 0:
                return fail(c, FAULT_MEMORY)
            text = cells.text.data + cells.text.used
            canal_copy(text, member.text.p, member.text.n)
            fault = _value_fault(column, text, member.text.n)
            if TG_UNLIKELY(fault != FAULT_NONE):
                if column.rule.kind == CANAL_FLOAT:
                    fault = self._put_float(cells, &member.text)
                if fault != FAULT_NONE:
                    return fail_at(c, fault, member.value_at)
                continue
            cells.text.used += member.text.n
            cell_end(cells)
        return 0

    cdef int _put_float(self, Cells *cells, const Span *text) noexcept nogil:
        """A float that the official Canal spells in Java's way (1.0E10) as a cell. Gives a fault."""
        cdef int n
        if buffer_reserve(&cells.text, text.n + 512) < 0:
            return FAULT_MEMORY
        n = tg_shift_decimal(text.p, text.n, cells.text.data + cells.text.used, text.n + 512)
        if n < 0:
            return FAULT_NUMBER
        cells.text.used += <size_t>n
        cell_end(cells)
        return FAULT_NONE

    # --- plans -------------------------------------------------------------------------------------

    cdef inline int32_t _column(self, const Plan *plan, const Span *name, int32_t guess) noexcept nogil:
        """The index of the column of that name, -1: there is none. Here and in what follows, 16 bytes
        may be read of every text: messages, scratch and arenas are padded."""
        cdef canal_word word = canal_word_of(name.p, name.n)
        cdef uint64_t h
        cdef int32_t i
        if guess < plan.count and canal_same_word(&plan.columns[guess].name, &word):
            return guess
        h = canal_word_hash(&word, self.seed)
        i = plan.buckets[h & plan.bucket_mask]
        while i >= 0:
            if canal_same_word(&plan.columns[i].name, &word):
                return i
            i = plan.columns[i].next
        return -1

    cdef Plan *_plan_of(self, Cursor *c, Parts *parts, const Members *data, Plan *before) noexcept nogil:
        """The plan of the row; after_slots says where its values are. before: the plan of the row
        before, if any. NULL: a fault, noted in c."""
        cdef uint64_t h
        cdef int32_t i
        cdef Plan *plan
        if data.count > MAX_COLUMNS:
            fail(c, FAULT_COLUMNS)
            return NULL
        if buffer_reserve(&self.after_slots, data.count * sizeof(int32_t)) < 0:
            fail(c, FAULT_MEMORY)
            return NULL
        if before != NULL and self._same_columns(before, data):
            return before
        h = self._names_hash(
            parts.database.p, parts.database.n, parts.table.p, parts.table.n
        )
        i = self.buckets[h & (PLAN_BUCKETS - 1)]
        while i >= 0:
            plan = self.plans[i]
            if plan.hash == h and self._fits(plan, parts, data):
                self.last = i
                return plan
            i = plan.next
        return self._new_plan(c, parts, data, h)

    cdef bint _same_columns(self, const Plan *plan, const Members *data) noexcept nogil:
        """Whether the row has the plan's columns in the plan's order; if so, its slots are set."""
        cdef Member *members = <Member *>self.members.data + data.first
        cdef canal_word word
        cdef int32_t i
        if data.count != <size_t>plan.count:
            return False
        for i in range(plan.count):
            word = canal_word_of(members[i].name.p, members[i].name.n)
            if not canal_same_word(&plan.columns[i].name, &word):
                return False
            (<int32_t *>self.after_slots.data)[i] = <int32_t>data.first + i
        return True

    cdef bint _fits(self, Plan *plan, const Parts *parts, const Members *data) noexcept nogil:
        """Whether the plan's columns, types and keys are those of the row; sets its slots."""
        cdef Member *members = <Member *>self.members.data
        cdef int32_t *slots = <int32_t *>self.after_slots.data
        cdef canal_word type
        cdef int32_t i, column, found = 0
        cdef bint in_order = True
        cdef size_t j
        if data.count != <size_t>plan.count or \
                not _same(&plan.database, &parts.database) or not _same(&plan.table, &parts.table):
            return False
        self.serial += 1
        for i in range(plan.count):
            column = self._column(plan, &members[data.first + i].name, i)
            if column < 0 or plan.columns[column].seen == self.serial:
                return False
            plan.columns[column].seen = self.serial
            slots[column] = <int32_t>data.first + i
            in_order &= column == i
        if not in_order and not plan.by_name:
            return False
        self.serial += 1
        for j in range(parts.mysql_type.first, parts.mysql_type.first + parts.mysql_type.count):
            column = self._column(plan, &members[j].name, <int32_t>(j - parts.mysql_type.first))
            if column < 0:
                continue
            if plan.columns[column].seen == self.serial or members[j].text.p == NULL:
                return False
            type = canal_word_of(members[j].text.p, members[j].text.n)
            if not canal_same_word(&plan.columns[column].type, &type):
                return False
            plan.columns[column].seen = self.serial
            found += 1
        if found != plan.count:
            return False
        self.serial += 1
        found = 0
        for j in range(parts.pk_names.first, parts.pk_names.first + parts.pk_names.count):
            column = self._column(plan, &members[j].name, 0)
            if column < 0:
                continue
            if plan.columns[column].seen == self.serial or not plan.columns[column].key:
                return False
            plan.columns[column].seen = self.serial
            found += 1
        if found != plan.keys:
            return False
        # In the plan's order, and sqlType does not say otherwise; or else the plan goes by name.
        return self._natural(plan, parts, data) == in_order or (in_order and plan.by_name)

    cdef bint _natural(self, const Plan *plan, const Parts *parts, const Members *data) noexcept nogil:
        """Whether data and sqlType agree in the order of the columns.

        Both are written in the table's order. Where they disagree, something between the sender and
        us has shuffled the members; the columns are then ordered by name, or each message would have
        a shape of its own.
        """
        cdef Member *members = <Member *>self.members.data
        cdef const int32_t *slots = <const int32_t *>self.after_slots.data
        cdef int32_t column, guess = 0, place = -1
        cdef size_t j
        for j in range(parts.sql_type.first, parts.sql_type.first + parts.sql_type.count):
            column = self._column(plan, &members[j].name, guess)
            if column < 0:
                continue
            if slots[column] <= place:
                return False
            place = slots[column]
            guess = column + 1
        return True

    cdef Plan *_new_plan(self, Cursor *c, Parts *parts, const Members *data, uint64_t h) noexcept nogil:
        cdef Plan *plan
        if self.plan_count == MAX_PLANS or self.plan_bytes > MAX_PLAN_BYTES:
            self._forget()
        plan = <Plan *>calloc(1, sizeof(Plan))
        if plan == NULL:
            fail(c, FAULT_MEMORY)
            return NULL
        plan.hash = h
        plan.count = <int32_t>data.count
        if self._fill_plan(c, parts, data, plan) < 0 or self._register(c, plan) < 0:
            _plan_free(plan)
            return NULL
        plan.next = self.buckets[h & (PLAN_BUCKETS - 1)]
        self.buckets[h & (PLAN_BUCKETS - 1)] = self.plan_count
        self.plans[self.plan_count] = plan
        self.last = self.plan_count
        self.plan_count += 1
        # Names, types and literals of all columns together are not longer than the message.
        self.plan_bytes += 4 * <size_t>(c.end - c.start) + \
            data.count * (sizeof(Column) + 2 * sizeof(canal_literal) + 128)
        return plan

    cdef int _fill_plan(self, Cursor *c, Parts *parts, const Members *data, Plan *plan) noexcept nogil:
        """Columns in their order, types, keys; sets the row's slots."""
        cdef Member *members = <Member *>self.members.data
        cdef int32_t *slots = <int32_t *>self.after_slots.data
        cdef size_t bucket_count = _power_above(4 * data.count)
        cdef Column *column
        cdef Member *member
        cdef Span kept
        cdef int32_t i, j
        cdef size_t k
        plan.columns = <Column *>arena_take(&plan.arena, data.count * sizeof(Column))
        plan.buckets = <int32_t *>arena_take(&plan.arena, bucket_count * sizeof(int32_t))
        plan.bucket_mask = bucket_count - 1
        if plan.columns == NULL or plan.buckets == NULL or \
                arena_keep(&plan.arena, parts.database.p, parts.database.n, &plan.database) < 0 or \
                arena_keep(&plan.arena, parts.table.p, parts.table.n, &plan.table) < 0:
            return fail(c, FAULT_MEMORY)
        memset(plan.columns, 0, data.count * sizeof(Column))
        for i in range(plan.count):
            member = &members[data.first + i]
            column = &plan.columns[i]
            if arena_keep(&plan.arena, member.name.p, member.name.n, &kept) < 0:
                return fail(c, FAULT_MEMORY)
            column.name = canal_word_of(kept.p, kept.n)
            column.hash = canal_word_hash(&column.name, self.seed)
            slots[i] = <int32_t>data.first + i
        _fill_buckets(plan)
        for i in range(plan.count):
            # Of two equal names the later one is found, since it stands first in its bucket.
            j = plan.buckets[plan.columns[i].hash & plan.bucket_mask]
            while j > i:
                if canal_same_word(&plan.columns[j].name, &plan.columns[i].name):
                    return fail_at(c, FAULT_DUPLICATE, members[data.first + j].at)
                j = plan.columns[j].next
        for k in range(parts.mysql_type.first, parts.mysql_type.first + parts.mysql_type.count):
            member = &members[k]
            i = self._column(plan, &member.name, <int32_t>(k - parts.mysql_type.first))
            if i < 0:
                continue
            column = &plan.columns[i]
            if column.type.p != NULL:
                return fail_at(c, FAULT_DUPLICATE, member.at)
            if member.text.p == NULL:
                return fail_at(c, FAULT_TYPE, member.value_at)
            if arena_keep(&plan.arena, member.text.p, member.text.n, &kept) < 0:
                return fail(c, FAULT_MEMORY)
            column.type = canal_word_of(kept.p, kept.n)
            _set_type(column)
        for i in range(plan.count):
            if plan.columns[i].type.p == NULL:
                return fail_at(c, FAULT_COLUMNS, members[data.first + i].at)
        for k in range(parts.pk_names.first, parts.pk_names.first + parts.pk_names.count):
            # A key column need not be carried.
            i = self._column(plan, &members[k].name, 0)
            if i < 0:
                continue
            if plan.columns[i].key:
                return fail_at(c, FAULT_DUPLICATE, members[k].at)
            plan.columns[i].key = 1
            plan.keys += 1
        if not self._natural(plan, parts, data):
            qsort(plan.columns, plan.count, sizeof(Column), _by_name)
            _fill_buckets(plan)
            for i in range(plan.count):
                j = self._column(plan, &members[data.first + i].name, i)
                slots[j] = <int32_t>data.first + i
        plan.by_name = True
        for i in range(1, plan.count):
            plan.by_name &= _by_name(&plan.columns[i - 1], &plan.columns[i]) < 0
        return 0

    cdef int _register(self, Cursor *c, Plan *plan) noexcept nogil:
        cdef ShapeColumn *columns
        cdef int32_t i
        columns = <ShapeColumn *>calloc(<size_t>plan.count + 1, sizeof(ShapeColumn))
        if columns == NULL:
            return fail(c, FAULT_MEMORY)
        for i in range(plan.count):
            columns[i].name.p = plan.columns[i].name.p
            columns[i].name.n = plan.columns[i].name.n
            columns[i].type.p = plan.columns[i].type.p
            columns[i].type.n = plan.columns[i].type.n
            columns[i].code = -1
            columns[i].flags = -1
            columns[i].key = plan.columns[i].key
        plan.shape = self.out.register_shape(c, &plan.database, &plan.table, columns, plan.count)
        free(columns)
        return 0 if plan.shape >= 0 else -1

    # --- making predictions ------------------------------------------------------------------------

    cdef void _try_prediction(self, Message *m, Parts *parts, Plan *plan) noexcept nogil:
        """Lets the plan predict if it then reads the message itself; what that puts is taken back."""
        cdef size_t rows = self.out.rows.used
        cdef size_t after = self.out.after.count
        cdef size_t before = self.out.before.count
        cdef size_t missing = self.out.missing.used
        cdef size_t extras = self.out.extras.used
        cdef int32_t event = self.out.event
        plan.predicts = self._fill_prediction(m, parts, plan) == 0
        if plan.predicts:
            plan.predicts = self._predicted(plan, m)
        self.out.rows.used = rows
        cells_cut(&self.out.after, after)
        cells_cut(&self.out.before, before)
        self.out.missing.used = missing
        self.out.extras.used = extras
        self.out.event = event

    cdef int _fill_literal(self, Plan *plan, canal_literal *literal, const uint8_t *p,
                           size_t n) noexcept nogil:
        cdef size_t head = n if n < 32 else 32
        cdef Span kept
        memset(literal, 0, sizeof(canal_literal))
        if n > 0xffff or arena_keep(&plan.arena, p, n, &kept) < 0:
            return -1
        memcpy(literal.head, p, head)
        literal.whole = kept.p
        literal.size = <uint32_t>n
        literal.mask = <uint32_t>((<uint64_t>1 << head) - 1)
        literal.weight = canal_hash(p, n, self.seed)
        return 0

    cdef int _fill_prediction(self, Message *m, Parts *parts, Plan *plan) noexcept nogil:
        """The bytes between values as this message has them; -1: it cannot serve."""
        cdef canal_layout *layout = &plan.layout
        cdef const int32_t *slots = <const int32_t *>self.after_slots.data
        cdef Member *member
        cdef uint8_t *opened
        cdef size_t n
        cdef int32_t i
        layout.count = plan.count
        layout.names = <canal_literal *>arena_take(
            &plan.arena, <size_t>plan.count * sizeof(canal_literal)
        )
        layout.rules = <canal_rule *>arena_take(&plan.arena, <size_t>plan.count * sizeof(canal_rule))
        if layout.names == NULL or layout.rules == NULL or \
                arena_keep(&plan.arena, m.value, <size_t>(parts.type_at - m.value), &plan.prefix) < 0:
            return -1
        for i in range(plan.count):
            member = <Member *>self.members.data + slots[i]
            n = <size_t>(member.value_at - member.at)
            # With the quote that opens a value, also where this one is null.
            opened = arena_take(&plan.arena, n + 1)
            if opened == NULL:
                return -1
            memcpy(opened, member.at, n)
            opened[n] = c'"'
            layout.rules[i] = plan.columns[i].rule
            if self._fill_literal(plan, &layout.names[i], opened, n + 1) < 0:
                return -1
        if self._fill_segments(parts, plan) < 0:
            return -1
        return self._fill_types(parts, plan)

    cdef int _fill_segments(self, Parts *parts, Plan *plan) noexcept nogil:
        """sqlType from behind its brace to behind that of mysqlType, cut at the numbers that vary."""
        cdef Member *member = <Member *>self.members.data + parts.sql_type.first
        cdef Member *types = <Member *>self.members.data + parts.mysql_type.first
        cdef const uint8_t *start
        cdef const uint8_t *end
        cdef int32_t i
        if parts.sql_type.count != <size_t>plan.count or parts.mysql_type.count != <size_t>plan.count:
            return -1
        # Members of other layouts may stand in any order.
        if types.at < member.at:
            return -1
        plan.segments = <Span *>arena_take(&plan.arena, (<size_t>plan.count + 1) * sizeof(Span))
        if plan.segments == NULL:
            return -1
        start = member.at
        for i in range(plan.count):
            if plan.columns[i].varies:
                end = member[i].value_at
                if end < start or \
                        arena_keep(&plan.arena, start, <size_t>(end - start),
                                   &plan.segments[plan.segment_count]) < 0:
                    return -1
                plan.segment_count += 1
                start = end + (end[0] == c'-')
                while tg_is_digit(start[0]):
                    start += 1
        if types.at < start or arena_keep(&plan.arena, start, <size_t>(types.at - start),
                                          &plan.segments[plan.segment_count]) < 0:
            return -1
        plan.segment_count += 1
        return 0

    cdef int _fill_types(self, Parts *parts, Plan *plan) noexcept nogil:
        """The entries of mysqlType, and the table that finds them by how they begin."""
        cdef canal_layout *layout = &plan.layout
        cdef Member *member = <Member *>self.members.data + parts.mysql_type.first
        cdef canal_literal *entry
        cdef size_t slot_count = _power_above(4 * <size_t>plan.count)
        cdef const uint8_t *end
        cdef uint32_t *slot
        cdef uint32_t index
        cdef int alike
        layout.types = <canal_literal *>arena_take(
            &plan.arena, (<size_t>plan.count + 1) * sizeof(canal_literal)
        )
        layout.slots = <uint32_t *>arena_take(&plan.arena, slot_count * sizeof(uint32_t))
        if layout.types == NULL or layout.slots == NULL:
            return -1
        memset(layout.slots, 0, slot_count * sizeof(uint32_t))
        layout.shift = 64
        while (<size_t>1 << (64 - layout.shift)) < slot_count:
            layout.shift -= 1
        layout.window = 16
        layout.types_size = <size_t>plan.count - 1
        for index in range(1, <uint32_t>plan.count + 1):
            # The text is a span of the message unless it has escapes, which no type needs.
            end = member.text.p + member.text.n + 1
            if member.value_at + member.text.n + 2 != end or end - member.at < 9:
                return -1
            entry = &layout.types[index]
            if self._fill_literal(plan, entry, member.at, <size_t>(end - member.at)) < 0:
                return -1
            layout.types_size += entry.size
            layout.types_weight += entry.weight
            if entry.size - 1 < <uint32_t>layout.window:
                layout.window = <int>(entry.size - 1)
            member += 1
        for index in range(1, <uint32_t>plan.count + 1):
            entry = &layout.types[index]
            slot = &layout.slots[canal_type_slot(entry.whole + 1, layout.window, layout.shift)]
            alike = 0
            while slot[0]:
                slot = &layout.types[slot[0] & 0xffff].next
                alike += 1
                if alike > MAX_ALIKE:
                    return -1
            slot[0] = index | entry.size << 16
        return 0


# --- encoding ------------------------------------------------------------------------------------

OPTIONS = frozenset(
    {
        "generation",
        "only_output_updated_columns",
        "delete_only_output_handle_key_columns",
        "enable_tidb_extension",
        "content_compatible",
        "compression",
        "large_message_handle",
        "claim_check",
        "claim_check_raw_value",
    }
)
"""The options of EncodeOptions that Canal-JSON knows. Both generations write the same bytes."""

cdef enum:
    # What Kafka's own framing may add to a message, as TiCDC counts it against max-message-bytes.
    RECORD_OVERHEAD = 36

    WRITTEN = 0
    NO_MEMORY = -1
    BAD_VALUE = -2      # Encoder.bad_column says where


cdef struct WriteColumn:
    Span literal            # ,"name":
    canal_rule rule         # of its values
    # sqlType where it depends on the value: up to `most`, and above it.
    Span most
    Span usual
    Span promoted


# The columns that a message carries: all, or those of the handle key.
cdef struct View:
    int32_t count
    int32_t *columns
    # sqlType, cut where a number depends on a value, then mysqlType up to the value of `old`.
    Span *segments
    int32_t *varying        # the column whose number stands behind each segment but the last
    int32_t varying_count


cdef bytes _quoted(object text):
    """A JSON string as easyjson spells it."""
    cdef Buffer b
    cdef bytes raw = text.encode()
    cdef const uint8_t *p = <const uint8_t *><const char *>raw
    memset(&b, 0, sizeof(Buffer))
    if json_put_string(&b, p, len(raw), p + len(raw), STYLE_EASYJSON) < 0:
        raise MemoryError
    try:
        return (<const char *>b.data)[:b.used]
    finally:
        buffer_free(&b)


def _type_text(column, shape, bint with_parameters) -> str:
    """mysqlType: the name alone, or with its parameters in so far as they are known."""
    parsed = parse_type(column.type)
    if parsed.code == MySQLType.UNSPECIFIED:
        return column.type
    if with_parameters:
        if parsed.params:
            return column.type
        declared = None if shape.schema is None else shape.schema.column(column.name)
        if declared is not None:
            return declared.full_type
    return type_name(parsed.code, parsed.flags, zerofill=parsed.zerofill)


def _in_primary_key(column) -> bool:
    return column.key if column.flags is None else bool(column.flags & Flag.PRIMARY_KEY)


def _in_handle_key(column) -> bool:
    return column.key or bool((column.flags or 0) & Flag.HANDLE_KEY)


cdef class _WritePlan:
    """The bytes between the values of a shape's rows."""
    cdef Arena arena
    cdef object shape
    cdef int32_t count
    cdef WriteColumn *columns
    cdef View whole
    cdef View handle
    cdef Span heads[3]          # by kind: from the opening brace to the value of `es`

    def __cinit__(self, shape, bint with_parameters):
        cdef int32_t i
        self.shape = shape
        self.count = len(shape.columns)
        self.columns = <WriteColumn *>self._take(self.count * sizeof(WriteColumn))
        types = []
        codes = []
        for i, column in enumerate(shape.columns):
            if column.type is None:
                raise SchemaNotSeen(shape.database, shape.table, shape=shape.id)
            types.append(_type_text(column, shape, with_parameters))
            codes.append(self._set_column(i, column))
        names = ",".join(
            _quoted(column.name).decode() for column in shape.columns if _in_primary_key(column)
        ).encode()
        for kind, word in ((KIND_INSERT, b"INSERT"), (KIND_UPDATE, b"UPDATE"), (KIND_DELETE, b"DELETE")):
            self.heads[<int>kind] = self._keep(
                b'{"id":0,"database":%b,"table":%b,"pkNames":[%b],"isDdl":false,"type":"%b","es":'
                % (_quoted(shape.database), _quoted(shape.table), names, word)
            )
        every = list(range(self.count))
        handle = [i for i in every if _in_handle_key(shape.columns[i])]
        self._set_view(&self.whole, every, types, codes)
        # Where no key is known, everything is one.
        self._set_view(&self.handle, handle or every, types, codes)

    def __dealloc__(self):
        arena_free(&self.arena)

    cdef void *_take(self, size_t n) except NULL:
        cdef void *place = arena_take(&self.arena, n)
        if place == NULL:
            raise MemoryError
        memset(place, 0, n)
        return place

    cdef Span _keep(self, bytes text) except *:
        cdef Span kept
        if arena_keep(&self.arena, <const uint8_t *><const char *>text, len(text), &kept) < 0:
            raise MemoryError
        return kept

    cdef object _set_column(self, int32_t i, object column):
        """Gives the text of its sqlType, or None where that depends on the value."""
        cdef WriteColumn *out = &self.columns[i]
        parsed = parse_type(column.type)
        code = parsed.code if column.code is None else column.code
        flags = parsed.flags if column.flags is None else column.flags
        out.literal = self._keep(b",%b:" % _quoted(column.name))
        _set_rule(&out.rule, code, flags)
        usual = java_sql_type(code, flags, None)
        promoted = java_sql_type(code, flags, str(2**64 - 1))
        if usual == promoted:
            return b"%d" % usual
        out.usual = self._keep(b"%d" % usual)
        out.promoted = self._keep(b"%d" % promoted)
        out.most = self._keep(b"%d" % ((<object>1 << (bits_of(code) - 1)) - 1))
        return None

    cdef int _set_view(self, View *view, list columns, list types, list codes) except -1:
        cdef int32_t i
        cdef bytes text = b""
        view.count = len(columns)
        view.columns = <int32_t *>self._take(view.count * sizeof(int32_t))
        view.segments = <Span *>self._take((view.count + 1) * sizeof(Span))
        view.varying = <int32_t *>self._take(view.count * sizeof(int32_t))
        for i, column in enumerate(columns):
            view.columns[i] = column
            text += b"%b%b:" % (b"," if i else b"", _quoted(self.shape.columns[column].name))
            if codes[column] is None:
                view.segments[view.varying_count] = self._keep(text)
                view.varying[view.varying_count] = column
                view.varying_count += 1
                text = b""
            else:
                text += codes[column]
        entries = b",".join(
            b"%b:%b" % (_quoted(self.shape.columns[column].name), _quoted(types[column]))
            for column in columns
        )
        view.segments[view.varying_count] = self._keep(
            b'%b},"mysqlType":{%b},"old":' % (text, entries)
        )
        return 0


cdef inline int _put_literal(Buffer *b, const Span *literal) noexcept nogil:
    """Copies what an arena keeps, in whole blocks: 16 bytes behind it may be read."""
    if buffer_reserve(b, literal.n) < 0:
        return -1
    tg_copy(b.data + b.used, literal.p, literal.n, literal.p + literal.n + 16)
    b.used += literal.n
    return 0


cdef inline int _put(Buffer *b, const char *text, size_t n) noexcept nogil:
    return buffer_add(b, <const uint8_t *>text, n)


cdef inline bint _exceeds(const Span *text, const Span *most) noexcept nogil:
    """Whether a text of digits is a larger number."""
    return text.n > most.n or (text.n == most.n and memcmp(text.p, most.p, most.n) > 0)


cdef class Encoder:
    """Writes change batches as Canal-JSON, a message an event."""
    cdef object options
    cdef object compress
    cdef dict plans
    cdef _WritePlan last        # of the shape and version used last
    cdef int64_t last_shape, last_version
    cdef size_t max_bytes
    cdef bint extension
    cdef bint only_updated
    cdef bint delete_handle_only
    cdef Buffer middle          # from behind `es` to the content of sqlType: the same for all rows
    cdef Buffer bytes           # of a binary value, or a number being shifted
    cdef Buffer latin           # the same as text
    cdef int32_t bad_column

    def __init__(self, options, compress=None):
        self.options = options
        self.compress = compress
        self.plans = {}
        self.max_bytes = options.max_message_bytes
        self.extension = options.enable_tidb_extension
        self.only_updated = options.only_output_updated_columns or options.content_compatible
        self.delete_handle_only = options.delete_only_output_handle_key_columns
        if options.large_message_handle is not None and not self.extension:
            raise UnsupportedByProtocol(
                "canal-json",
                f"the option large-message-handle={options.large_message_handle} without the TiDB extension",
                instead="Set enable-tidb-extension",
            )
        if options.large_message_handle == "claim-check" and options.claim_check is None:
            raise ConfigError("claim_check", "large-message-handle=claim-check needs a place to store objects")
        text = b',"ts":%d,"sql":"","sqlType":{' % (options.build_ts or 0)
        if _put(&self.middle, text, len(text)) < 0:
            raise MemoryError

    def __dealloc__(self):
        buffer_free(&self.middle)
        buffer_free(&self.bytes)
        buffer_free(&self.latin)

    def encode(self, BatchReader reader not None, shapes, MessageBuilder messages not None):
        """Writes the batch's rows in order."""
        cdef int64_t row
        cdef int kind
        for row in range(reader.count):
            kind = reader.kinds[row]
            if kind <= KIND_DELETE:
                self._encode_row(reader, shapes, messages, row, kind)
            elif kind == KIND_DDL:
                self._encode_ddl(reader, messages, row)
            elif kind == KIND_WATERMARK:
                if self.extension:
                    self._encode_watermark(reader, messages, row)
            elif kind == KIND_ERROR:
                raise EncodeError("canal-json", f"row {row} of the batch is a message that could not be read")

    cdef int64_t _commit_ts(self, BatchReader reader, int64_t row) except -1:
        cdef int64_t ts = -1
        if not long_at(&reader.commit_ts, row, &ts) or ts < 0:
            raise EncodeError("canal-json", f"row {row} of the batch has no commit_ts")
        return ts

    cdef _WritePlan _plan(self, BatchReader reader, shapes, int64_t row):
        cdef int64_t shape = 0, version = -1
        cdef bint has_version = long_at(&reader.schema_version, row, &version)
        if not long_at(&reader.shape, row, &shape):
            raise EncodeError("canal-json", f"row {row} of the batch has no shape")
        if self.last is not None and shape == self.last_shape and version == self.last_version:
            return self.last
        key = (shape, version if has_version else None)
        plan = self.plans.get(key)
        if plan is None:
            known = shapes.shape(*key)
            if known is None:
                names = (_python_text(&reader.database, row), _python_text(&reader.table, row))
                raise SchemaNotSeen(*names, version=key[1], shape=shape)
            plan = self.plans[key] = _WritePlan(known, self.options.content_compatible)
        self.last = plan
        self.last_shape = shape
        self.last_version = version
        return plan

    # --- rows --------------------------------------------------------------------------------------

    cdef int _encode_row(self, BatchReader reader, shapes, MessageBuilder messages, int64_t row,
                         int kind) except -1:
        cdef _WritePlan plan = self._plan(reader, shapes, row)
        cdef int64_t commit_ts = self._commit_ts(reader, row)
        cdef size_t start = messages.value.used
        cdef View *view = &plan.whole
        cdef int32_t flags = reader.flags[row]
        cdef Span location
        self._check_row(reader, plan, row, kind)
        string_at(&reader.claim_check, row, &location)
        if not self.extension and (flags & (FLAG_HANDLE_KEY_ONLY | FLAG_CLAIM_CHECK)):
            raise EncodeError(
                "canal-json",
                "only the TiDB extension can say that a row is not whole",
                database=plan.shape.database,
                table=plan.shape.table,
            )
        if kind == KIND_DELETE and self.delete_handle_only:
            view = &plan.handle
        self._write(messages, plan, reader, row, kind, commit_ts, view,
                    (flags & FLAG_HANDLE_KEY_ONLY) != 0, &location)
        self._compress(messages, start)
        if messages.value.used - start + RECORD_OVERHEAD > self.max_bytes:
            self._encode_large(messages, plan, reader, row, kind, commit_ts, start)
        messages.end(False, <int32_t>row, 1)
        return 0

    cdef int _check_row(self, BatchReader reader, _WritePlan plan, int64_t row, int kind) except -1:
        """A row has the sides that its kind asks for, each with a value for every column."""
        cdef bint after = view_has(&reader.after, row)
        cdef bint before = view_has(&reader.before, row)
        if (kind == KIND_DELETE and not before) or (kind != KIND_DELETE and not after) or \
                (after and view_count(&reader.after, row) != plan.count) or \
                (before and view_count(&reader.before, row) != plan.count):
            raise EncodeError(
                "canal-json",
                f"row {row} of the batch does not have a value for each column of its shape",
                database=plan.shape.database,
                table=plan.shape.table,
            )
        return 0

    cdef int _encode_large(self, MessageBuilder messages, _WritePlan plan, BatchReader reader,
                           int64_t row, int kind, int64_t commit_ts, size_t start) except -1:
        """Puts the handle key in the place of the row that begins at start, or refuses it."""
        cdef size_t size = messages.value.used - start
        cdef Span location
        cdef bytes text
        cdef bint handle_only = self.options.large_message_handle == "handle-key-only"
        location.p = NULL
        location.n = 0
        if self.options.large_message_handle == "claim-check":
            content = (<const char *>messages.value.data)[start:messages.value.used]
            if not self.options.claim_check_raw_value:
                content = pack(None, content)
            text = self.options.claim_check(content).encode()
            location.p = <const uint8_t *><const char *>text
            location.n = len(text)
        elif not handle_only:
            self._refuse_size(plan, size)
        messages.value.used = start
        self._write(messages, plan, reader, row, kind, commit_ts, &plan.handle, handle_only, &location)
        self._compress(messages, start)
        size = messages.value.used - start
        if size + RECORD_OVERHEAD > self.max_bytes:
            self._refuse_size(plan, size)
        return 0

    cdef int _refuse_size(self, _WritePlan plan, size_t size) except -1:
        raise EncodeError(
            "canal-json",
            f"the message takes {size + RECORD_OVERHEAD} bytes, and max-message-bytes is {self.max_bytes}",
            database=plan.shape.database,
            table=plan.shape.table,
        )

    cdef int _compress(self, MessageBuilder messages, size_t start) except -1:
        cdef bytes compressed
        if self.compress is None:
            return 0
        compressed = self.compress((<const char *>messages.value.data)[start:messages.value.used])
        messages.value.used = start
        if _put(&messages.value, compressed, len(compressed)) < 0:
            raise MemoryError
        return 0

    cdef int _write(self, MessageBuilder messages, _WritePlan plan, BatchReader reader, int64_t row,
                    int kind, int64_t commit_ts, const View *view, bint handle_only,
                    const Span *location) except -1:
        cdef int written = self._write_row(
            &messages.value, plan, reader, row, kind, commit_ts, view, handle_only, location
        )
        if written == NO_MEMORY:
            raise MemoryError
        if written == BAD_VALUE:
            raise EncodeError(
                "canal-json",
                "the value is not one of the column's type",
                database=plan.shape.database,
                table=plan.shape.table,
                field=plan.shape.columns[self.bad_column].name,
            )
        return 0

    cdef int _write_row(self, Buffer *b, _WritePlan plan, BatchReader reader, int64_t row, int kind,
                        int64_t commit_ts, const View *view, bint handle_only,
                        const Span *location) noexcept nogil:
        cdef const CellsView *side = &reader.before if kind == KIND_DELETE else &reader.after
        cdef int32_t i
        cdef int written
        if _put_literal(b, &plan.heads[kind]) < 0 or put_i64(b, commit_ts >> 18) < 0 or \
                buffer_add(b, self.middle.data, self.middle.used) < 0:
            return NO_MEMORY
        for i in range(view.varying_count):
            if _put_literal(b, &view.segments[i]) < 0 or \
                    self._put_sql_type(b, &plan.columns[view.varying[i]], side, row, view.varying[i]) < 0:
                return NO_MEMORY
        if _put_literal(b, &view.segments[view.varying_count]) < 0:
            return NO_MEMORY
        if kind == KIND_UPDATE and view_has(&reader.before, row):
            if _put(b, b"[{", 2) < 0:
                return NO_MEMORY
            written = self._put_old(b, plan, reader, row, view)
            if written < 0:
                return written
            if _put(b, b'}],"data":[{', 12) < 0:
                return NO_MEMORY
        elif _put(b, b'null,"data":[{', 14) < 0:
            return NO_MEMORY
        written = self._put_data(b, plan, side, row, view)
        if written < 0:
            return written
        if not self.extension:
            return WRITTEN if _put(b, b"}]}", 3) == 0 else NO_MEMORY
        if _put(b, b'}],"_tidb":{"commitTs":', 23) < 0 or put_i64(b, commit_ts) < 0 or \
                (handle_only and _put(b, b',"onlyHandleKey":true', 21) < 0):
            return NO_MEMORY
        if location.p != NULL and (
            _put(b, b',"claimCheckLocation":', 22) < 0
            or json_put_string(b, location.p, location.n, location.p + location.n, STYLE_EASYJSON) < 0
        ):
            return NO_MEMORY
        return WRITTEN if _put(b, b"}}", 2) == 0 else NO_MEMORY

    cdef inline int _put_sql_type(self, Buffer *b, const WriteColumn *column, const CellsView *side,
                                  int64_t row, int32_t i) noexcept nogil:
        cdef Span text
        if view_cell(side, row, i, &text) and _exceeds(&text, &column.most):
            return _put_literal(b, &column.promoted)
        return _put_literal(b, &column.usual)

    cdef int _put_old(self, Buffer *b, _WritePlan plan, BatchReader reader, int64_t row,
                      const View *view) noexcept nogil:
        """The columns that `before` carries; if so set, only those whose values changed."""
        cdef Span before, after
        cdef bint is_null
        cdef bint all_carried = not bit_at(reader.missing.valid, reader.missing.valid_base + row)
        cdef size_t skip = 1
        cdef int32_t i, column
        cdef int written
        for i in range(view.count):
            column = view.columns[i]
            if not all_carried and not reader.carried(row, column):
                continue
            is_null = not view_cell(&reader.before, row, column, &before)
            if self.only_updated:
                if not view_cell(&reader.after, row, column, &after):
                    if is_null:
                        continue
                elif not is_null and before.n == after.n and memcmp(before.p, after.p, before.n) == 0:
                    continue
            written = self._put_value(
                b, &plan.columns[column], column, NULL if is_null else &before, reader.before.limit, skip
            )
            if written < 0:
                return written
            skip = 0
        return WRITTEN

    cdef int _put_data(self, Buffer *b, _WritePlan plan, const CellsView *side, int64_t row,
                       const View *view) noexcept nogil:
        cdef Span text
        cdef int32_t i, column
        cdef int written
        for i in range(view.count):
            column = view.columns[i]
            written = self._put_value(
                b, &plan.columns[column], column,
                &text if view_cell(side, row, column, &text) else NULL, side.limit, i == 0,
            )
            if written < 0:
                return written
        return WRITTEN

    cdef inline int _put_value(self, Buffer *b, const WriteColumn *column, int32_t index,
                               const Span *text, const uint8_t *limit, size_t skip) noexcept nogil:
        """A member of data or old. skip: 1 for the first, which has no comma."""
        if buffer_reserve(b, column.literal.n + 16) < 0:
            return NO_MEMORY
        tg_copy(b.data + b.used, column.literal.p + skip, column.literal.n - skip,
                column.literal.p + column.literal.n + 16)
        b.used += column.literal.n - skip
        if text == NULL:
            return _put(b, b"null", 4)
        if column.rule.kind != CANAL_TEXT and not self._is_right(&column.rule, text, limit):
            self.bad_column = index
            return self._put_unusual(b, &column.rule, text)
        return json_put_string(b, text.p, text.n, limit, STYLE_EASYJSON)

    cdef inline bint _is_right(self, const canal_rule *rule, const Span *text,
                               const uint8_t *limit) noexcept nogil:
        """Whether the text can be written as it is: what is written can be read again."""
        cdef uint8_t block[64]
        if rule.kind == CANAL_BINARY:
            return False
        if TG_LIKELY(text.n >= 32 or limit - text.p >= 32):
            return canal_check(rule, text.p, text.n) == CANAL_GOOD
        memset(block, 0, 64)
        memcpy(block, text.p, text.n)
        return canal_check(rule, block, text.n) == CANAL_GOOD

    cdef int _put_unusual(self, Buffer *b, const canal_rule *rule, const Span *text) noexcept nogil:
        """A binary value, or a float that is not spelled as Go spells it."""
        cdef int64_t n
        if buffer_reserve(&self.bytes, text.n + 512) < 0 or buffer_reserve(&self.latin, 2 * text.n + 32) < 0:
            return NO_MEMORY
        if rule.kind == CANAL_FLOAT:
            n = tg_shift_decimal(text.p, text.n, self.bytes.data, text.n + 512)
            if n < 0:
                return BAD_VALUE
            return json_put_string(
                b, self.bytes.data, <size_t>n, self.bytes.data + self.bytes.size, STYLE_EASYJSON
            )
        if rule.kind != CANAL_BINARY:
            return BAD_VALUE
        n = tg_base64_decode(text.p, text.n, self.bytes.data)
        if n < 0:
            return BAD_VALUE
        n = <int64_t>tg_utf8_from_latin1(self.bytes.data, <size_t>n, self.latin.data)
        return json_put_string(
            b, self.latin.data, <size_t>n, self.latin.data + self.latin.size, STYLE_EASYJSON
        )

    # --- DDL and watermarks ------------------------------------------------------------------------

    cdef int _encode_ddl(self, BatchReader reader, MessageBuilder messages, int64_t row) except -1:
        cdef int64_t commit_ts = self._commit_ts(reader, row)
        cdef size_t start = messages.value.used
        query = _python_text(&reader.query, row)
        word = _python_text(&reader.ddl_type, row)
        if not word:
            code = reader.ddl_code(row)
            word = canal_ddl_type(action_code("", query) or 0 if code is None else code)
        self._put_message(
            messages, _python_text(&reader.database, row), _python_text(&reader.table, row),
            b"true", word, commit_ts >> 18, query, b"commitTs", commit_ts,
        )
        self._compress(messages, start)
        messages.end(False, <int32_t>row, 1)
        return 0

    cdef int _encode_watermark(self, BatchReader reader, MessageBuilder messages, int64_t row) except -1:
        cdef int64_t commit_ts = self._commit_ts(reader, row)
        cdef size_t start = messages.value.used
        self._put_message(
            messages, "", "", b"false", "TIDB_WATERMARK", commit_ts >> 18, "", b"watermarkTs", commit_ts
        )
        self._compress(messages, start)
        messages.end(False, <int32_t>row, 1)
        return 0

    cdef int _put_message(self, MessageBuilder messages, database, table, is_ddl, word, es, query,
                          ts_name, commit_ts) except -1:
        """A message without a row: its members stand in another order than those of rows."""
        cdef bytes text = (
            b'{"id":0,"database":%b,"table":%b,"pkNames":null,"isDdl":%b,"type":%b,"es":%d,"ts":%d,'
            b'"sql":%b,"sqlType":null,"mysqlType":null,"data":null,"old":null'
            % (
                _quoted(database), _quoted(table), is_ddl, _quoted(word), es,
                self.options.build_ts or 0, _quoted(query),
            )
        )
        text += b',"_tidb":{"%b":%d}}' % (ts_name, commit_ts) if self.extension else b"}"
        if _put(&messages.value, text, len(text)) < 0:
            raise MemoryError
        return 0


cdef object _python_text(const StringsView *view, int64_t row):
    """The text, empty for null."""
    cdef Span text
    return (<const char *>text.p)[:text.n].decode() if string_at(view, row, &text) else ""
