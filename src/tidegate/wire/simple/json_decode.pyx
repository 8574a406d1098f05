"""The Simple protocol in JSON: one object a message, with one event.

Authority: TiCDC's Simple document; where it is silent (the form of TIMESTAMP values, checksums, claim
checks), the bytes that TiCDC's own encoders write. Rows name columns and nothing more of them; what
they mean is in the table schemas that BOOTSTRAP and DDL messages bring. TiCDC sorts the members of
`data` and `old` by name, and so are the columns of a shape here, in whatever order they came.
"""

from libc.stdint cimport INT64_MAX, UINT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcmp, memcpy, memset

from tidegate.model import MySQLType
from tidegate.wire.simple import encode as shared
from tidegate.wire.simple.schema import go_json

from tidegate.wire.batch.builder cimport Decoder as BatchDecoder
from tidegate.wire.simple.encode cimport Encoder as SimpleEncoder
from tidegate.wire.batch.builder cimport (
    FLAG_CHECKSUM,
    FLAG_CLAIM_CHECK,
    FLAG_CORRUPTED,
    FLAG_HANDLE_KEY_ONLY,
    HAS_AFTER,
    HAS_BEFORE,
    HAS_COMMIT_TS,
    HAS_SCHEMA_VERSION,
    HAS_TABLE_ID,
    KIND_DDL,
    KIND_DELETE,
    KIND_INSERT,
    KIND_SCHEMA,
    KIND_UPDATE,
    KIND_WATERMARK,
    MAX_COLUMNS,
    CellsView,
    Checksum,
    Extra,
    Message,
    Row,
    ShapeColumn,
    long_at,
    row_init,
    string_at,
    view_has,
)
from tidegate.wire.kernel.buffer cimport (
    Buffer,
    Cells,
    buffer_add,
    buffer_add_byte,
    buffer_free,
    buffer_reserve,
    cell_copy,
    cell_end,
    cell_null,
    cells_ends,
    cells_reserve,
)
from tidegate.wire.kernel.cursor cimport (
    FAULT_COLUMNS,
    FAULT_DUPLICATE,
    FAULT_EMPTY,
    FAULT_MEMORY,
    FAULT_MISSING,
    FAULT_NONE,
    FAULT_RANGE,
    FAULT_TEMPORAL,
    FAULT_TYPE,
    FAULT_UNKNOWN_KIND,
    FAULT_VALUE,
    FAULT_VERSION,
    TG_LIKELY,
    Cursor,
    Span,
    fail,
    fail_at,
    left,
    take,
    tg_plain_run,
)
from tidegate.wire.kernel.json cimport (
    json_bool,
    json_element,
    json_finish,
    json_i64,
    json_is,
    json_member,
    json_number,
    json_open,
    json_peek,
    json_skip,
    json_skip_other,
    json_skip_string,
    json_span,
    json_text,
)
from tidegate.wire.kernel.jsonwrite cimport STYLE_ENCODING_JSON, json_put_body, json_put_string, put_i64
from tidegate.wire.simple.encode cimport Plan
from tidegate.wire.kernel.text cimport tg_hash, tg_shift_decimal, tg_utf8_valid
from tidegate.wire.kernel.values cimport tg_datetime_valid

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
    LARGE_TABLE = 1 << 20   # bytes: at most one such table is remembered
    MAX_NUMBER = 80         # bytes of a column's default: longer than any of MySQL's
    MAX_DIGITS = 4000       # Python reads whole numbers of at most 4300 digits


# --- literals -------------------------------------------------------------------------------------

_kept_alive = []


cdef Span _literal(bytes text):
    """A span that take() may compare with: there are zeros behind it."""
    cdef Span span
    padded = text + bytes(16)
    _kept_alive.append(padded)
    span.p = padded
    span.n = len(text)
    return span


cdef Span HEAD = _literal(b'{"version":1,"database":"')
cdef Span HEAD_TABLE = _literal(b'","table":"')
cdef Span INSERT_COMMIT_TS = _literal(b',"type":"INSERT","commitTs":')
cdef Span UPDATE_COMMIT_TS = _literal(b',"type":"UPDATE","commitTs":')
cdef Span DELETE_COMMIT_TS = _literal(b',"type":"DELETE","commitTs":')
cdef Span BUILD_TS = _literal(b',"buildTs":')
cdef Span SCHEMA_VERSION = _literal(b',"schemaVersion":')
cdef Span HANDLE_KEY_ONLY = _literal(b',"handleKeyOnly":true')
cdef Span CHECKSUM = _literal(b',"checksum":{"version":')
cdef Span INTACT_CURRENT = _literal(b',"corrupted":false,"current":')
cdef Span CORRUPTED_CURRENT = _literal(b',"corrupted":true,"current":')
cdef Span PREVIOUS = _literal(b',"previous":')
cdef Span DATA = _literal(b',"data":')
cdef Span OLD = _literal(b',"old":')
cdef Span NULL_WORD = _literal(b'null')
cdef Span TIMESTAMP = _literal(b'timestamp')


# --- small readers --------------------------------------------------------------------------------

cdef inline bint _is(const Span *name, const char *word, size_t n) noexcept nogil:
    return name.n == n and memcmp(name.p, word, n) == 0


cdef inline bint _same(const Span *a, const Span *b) noexcept nogil:
    return a.n == b.n and memcmp(a.p, b.p, a.n) == 0


cdef inline bint _byte(Cursor *c, uint8_t byte) noexcept nogil:
    if c.p < c.end and c.p[0] == byte:
        c.p += 1
        return True
    return False


cdef inline bint _natural(Cursor *c, int64_t *out) noexcept nogil:
    """Advances over a whole number; no fault is noted."""
    cdef size_t n = tg_natural(c.p, c.end, c.limit, out)
    c.p += n
    return n != 0


cdef inline bint _skip_natural(Cursor *c) noexcept nogil:
    cdef size_t n = tg_digit_run(c.p, c.end, c.limit)
    if n == 0 or n > 18 or (n > 1 and c.p[0] == c'0'):
        return False
    c.p += n
    return True


cdef inline bint _known(Cursor *c, Remembered *known, int64_t *out) noexcept nogil:
    """Advances over what was remembered, but for the comma behind it."""
    if known.size == 0 or not take(c, known.text, known.size):
        return False
    c.p -= 1
    out[0] = known.value
    return True


cdef inline bint _remember_text(Cursor *c, const uint8_t *began, int64_t value,
                                Remembered *known) noexcept nogil:
    """Remembers what stands between `began` and a comma at the cursor; False: there is none."""
    if c.p >= c.end or c.p[0] != c',' or c.p - began >= REMEMBERED_BYTES:
        return False
    known.value = value
    known.size = <uint32_t>(c.p - began) + 1
    memcpy(known.text, began, known.size)
    return True


cdef inline bint _predicted_id(Cursor *c, Remembered *known, int64_t *out) noexcept nogil:
    cdef const uint8_t *began = c.p
    return _known(c, known, out) or (
        _natural(c, out) and _remember_text(c, began, out[0], known))


cdef inline bint _predicted_version(Cursor *c, Remembered *known, int64_t *out) noexcept nogil:
    """`,"buildTs":…,"schemaVersion":…`: messages made within a millisecond have the same."""
    cdef const uint8_t *began = c.p
    return _known(c, known, out) or (
        take(c, BUILD_TS.p, BUILD_TS.n) and _skip_natural(c)
        and take(c, SCHEMA_VERSION.p, SCHEMA_VERSION.n) and _natural(c, out)
        and _remember_text(c, began, out[0], known))


cdef inline bint _null(Cursor *c) noexcept nogil:
    return json_is(c, b"null", 4)


cdef int _once(Cursor *c, uint32_t *named, uint32_t bit) noexcept nogil:
    if named[0] & bit:
        return fail(c, FAULT_DUPLICATE)
    named[0] |= bit
    return 0


cdef inline Member *_members_of(Buffer *b) noexcept nogil:
    return <Member *>b.data


cdef inline int32_t _count_of(const Buffer *b) noexcept nogil:
    return <int32_t>(b.used // sizeof(Member))


cdef inline const uint8_t *_plain_string(const Cursor *c, const uint8_t *p, Span *out) noexcept nogil:
    """A string at p without escapes: what is behind it, or NULL for any other."""
    cdef unsigned int high = 0
    if p >= c.end or p[0] != c'"':
        return NULL
    out.p = p + 1
    out.n = tg_plain_run(out.p, c.end, c.limit, &high)
    p = out.p + out.n
    if p >= c.end or p[0] != c'"' or (high and not tg_utf8_valid(out.p, out.n)):
        return NULL
    return p + 1


cdef inline bint _plain_member(Cursor *c, bint first, Member *m) noexcept nogil:
    """The next member, if it has plain text as its value and no white space around it: most have.
    If not, nothing has happened."""
    cdef const uint8_t *p = c.p
    cdef const uint8_t *at
    cdef Span name, text
    if not first:
        if p >= c.end or p[0] != c',':
            return False
        p += 1
    p = _plain_string(c, p, &name)
    if p == NULL or p >= c.end or p[0] != c':':
        return False
    at = p + 1
    p = _plain_string(c, at, &text)
    if p == NULL:
        return False
    m.name = name
    m.text = text
    m.limit = c.limit
    m.at = at
    c.p = p
    return True


# --- the inside of table schemas -------------------------------------------------------------------

cdef enum:
    MUST_BE_THERE = 16      # added to a form; the member is not null either
    TEXT = 1
    WHOLE_NUMBER = 2
    TRUE_OR_FALSE = 3
    TEXTS = 4
    DEFAULT = 5             # text, but a number for BIT
    TYPE_OBJECT = 6
    PARTITIONING = 7
    PARTITIONS = 8
    LISTS_OF_TEXTS = 9


cdef struct Rule:
    const char *name
    size_t size
    int form


# What TiCDC writes of a column; a schema from Tidegate may also have "code", "flags", "zone" and
# "generated", and tell how its table is partitioned.
cdef Rule[9] COLUMN_RULES
cdef Rule[9] TYPE_RULES
cdef Rule[6] INDEX_RULES
cdef Rule[4] PARTITIONING_RULES
cdef Rule[3] PARTITION_RULES


cdef int _set_rules(Rule *rules, list told) except -1:
    cdef int i
    for i in range(len(told)):
        _kept_alive.append(told[i][0])
        rules[i].name = <const char *>told[i][0]
        rules[i].size = len(told[i][0])
        rules[i].form = told[i][1]
    rules[len(told)].name = NULL
    return 0


_set_rules(COLUMN_RULES, [
    (b"name", TEXT | MUST_BE_THERE),
    (b"dataType", TYPE_OBJECT | MUST_BE_THERE),
    (b"nullable", TRUE_OR_FALSE),
    (b"default", DEFAULT),
    (b"code", WHOLE_NUMBER),
    (b"flags", WHOLE_NUMBER),
    (b"zone", TEXT),
    (b"generated", TEXT),
])
_set_rules(TYPE_RULES, [
    (b"mysqlType", TEXT | MUST_BE_THERE),
    (b"charset", TEXT),
    (b"collate", TEXT),
    (b"length", WHOLE_NUMBER),
    (b"decimal", WHOLE_NUMBER),
    (b"elements", TEXTS),
    (b"unsigned", TRUE_OR_FALSE),
    (b"zerofill", TRUE_OR_FALSE),
])
_set_rules(INDEX_RULES, [
    (b"name", TEXT | MUST_BE_THERE),
    (b"unique", TRUE_OR_FALSE),
    (b"primary", TRUE_OR_FALSE),
    (b"nullable", TRUE_OR_FALSE),
    (b"columns", TEXTS),
])
_set_rules(PARTITIONING_RULES, [
    (b"method", TEXT | MUST_BE_THERE),
    (b"by", TEXTS),
    (b"partitions", PARTITIONS),
])
_set_rules(PARTITION_RULES, [
    (b"name", TEXT | MUST_BE_THERE),
    (b"values", LISTS_OF_TEXTS),
])


cdef int _check_objects(Cursor *c, Buffer *scratch, const Rule *rules) noexcept nogil:
    """A list of objects, or null: Go writes an empty list so."""
    cdef bint first = True
    cdef int more
    if _null(c):
        return 0
    if json_open(c, c'[') < 0:
        return -1
    while True:
        more = json_element(c, &first)
        if more <= 0:
            return more
        if _check_object(c, scratch, rules) < 0:
            return -1


cdef int _check_object(Cursor *c, Buffer *scratch, const Rule *rules) noexcept nogil:
    """An object with these members; others may hold anything."""
    cdef bint first = True
    cdef Span name
    cdef const uint8_t *opened = c.p
    cdef const Rule *rule
    cdef uint32_t named = 0
    cdef int more
    if json_open(c, c'{') < 0:
        return -1
    while True:
        more = json_member(c, &first, scratch, &name)
        if more < 0:
            return -1
        if more == 0:
            break
        rule = rules
        while rule.name != NULL and not _is(&name, rule.name, rule.size):
            rule += 1
        if rule.name == NULL:
            if _skip_foreign(c) < 0:
                return -1
        elif _once(c, &named, <uint32_t>1 << (rule - rules)) < 0 or \
                _check_form(c, scratch, rule.form) < 0:
            return -1
    rule = rules
    while rule.name != NULL:
        if rule.form & MUST_BE_THERE and not named >> (rule - rules) & 1:
            return fail_at(c, FAULT_MISSING, opened)
        rule += 1
    return 0


cdef int _check_form(Cursor *c, Buffer *scratch, int form) noexcept nogil:
    cdef bint flag = False
    cdef bint first = True
    cdef int64_t number = 0
    cdef Span text
    cdef int found = json_peek(c)
    if not form & MUST_BE_THERE and _null(c):
        return 0
    form &= ~MUST_BE_THERE
    if form == DEFAULT:
        form = TEXT if found == c'"' else TRUE_OR_FALSE if found == c't' or found == c'f' else form
    if form == TEXT:
        return json_skip_string(c) if found == c'"' else fail(c, FAULT_TYPE)
    if form == WHOLE_NUMBER:
        return json_i64(c, &number)
    if form == TRUE_OR_FALSE:
        return json_bool(c, &flag)
    if form == TYPE_OBJECT:
        return _check_object(c, scratch, TYPE_RULES)
    if form == PARTITIONING:
        return _check_object(c, scratch, PARTITIONING_RULES)
    if form == PARTITIONS:
        return _check_objects(c, scratch, PARTITION_RULES)
    if form == TEXTS or form == LISTS_OF_TEXTS:
        if json_open(c, c'[') < 0:
            return -1
        while True:
            found = json_element(c, &first)
            if found <= 0:
                return found
            if _check_form(c, scratch, TEXTS if form == LISTS_OF_TEXTS else TEXT | MUST_BE_THERE) < 0:
                return -1
    if json_number(c, &text) < 0:
        return -1
    return fail_at(c, FAULT_RANGE, text.p) if text.n > MAX_NUMBER else 0


cdef int _skip_foreign(Cursor *c) noexcept nogil:
    """Over a member that is not known, with numbers that Python reads."""
    cdef const uint8_t *p
    cdef size_t digits = 0
    if json_peek(c) < 0:
        return -1
    p = c.p
    if json_skip(c) < 0:
        return -1
    while p < c.p:
        digits = digits + 1 if 48 <= p[0] <= 57 else 0
        if digits > MAX_DIGITS:
            return fail_at(c, FAULT_RANGE, p)
        p += 1
    return 0


# --- names to columns -----------------------------------------------------------------------------

cdef int _by_name(const void *a, const void *b) noexcept nogil:
    """Bytewise order of two Member *."""
    cdef const Span *first = &(<const Member **>a)[0].name
    cdef const Span *second = &(<const Member **>b)[0].name
    cdef int order = memcmp(first.p, second.p, first.n if first.n < second.n else second.n)
    if order != 0:
        return order
    return (first.n > second.n) - (first.n < second.n)


cdef inline int32_t _column(const Table *t, const Span *name) noexcept nogil:
    """The column of that name, or -1."""
    cdef uint32_t at = <uint32_t>tg_hash(name.p, name.n, 0) & t.index_mask
    cdef int32_t column
    while t.index[at]:
        column = <int32_t>t.index[at] - 1
        if _same(&t.columns[column].name, name):
            return column
        at = (at + 1) & t.index_mask
    return -1


cdef enum:
    PLACED = 0
    UNKNOWN_COLUMN = 1
    TWICE = 2


cdef int _place(const Table *t, const Member *members, int32_t count, int32_t *slots,
                int32_t *culprit) noexcept nogil:
    """slots[column] = member, -1 where there is none; what else is wrong with which member."""
    cdef int32_t i, column
    memset(slots, 0xff, <size_t>t.count * sizeof(int32_t))
    for i in range(count):
        column = i
        if i >= t.count or not _same(&t.columns[i].name, &members[i].name):
            column = _column(t, &members[i].name)
            if column < 0:
                culprit[0] = i
                return UNKNOWN_COLUMN
        if slots[column] >= 0:
            culprit[0] = i
            return TWICE
        slots[column] = i
    return PLACED


# --- the decoder ----------------------------------------------------------------------------------

cdef class Decoder(BatchDecoder):
    """Decodes messages of the Simple protocol's JSON encoding."""

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.table_count):
            free(self.tables[i].text)
            free(self.tables[i])
        buffer_free(&self.data)
        buffer_free(&self.old)
        buffer_free(&self.slots)
        buffer_free(&self.columns)
        buffer_free(&self.text)

    cdef int message(self, Message *m, Cursor *c) noexcept nogil:
        cdef Facts f
        cdef Row row
        if m.value == NULL or m.value_size == 0:
            return fail(c, FAULT_EMPTY)
        if self._predicted(c):
            return 0
        memset(&f, 0, sizeof(Facts))
        self.data.used = 0
        self.old.used = 0
        if self._members(c, &f) < 0:
            return -1
        if ~f.has & (MEMBER_VERSION | MEMBER_TYPE):
            return fail(c, FAULT_MISSING)
        if not f.has & MEMBER_COMMIT_TS and f.type != TYPE_BOOTSTRAP:
            return fail(c, FAULT_MISSING)
        if f.type == TYPE_WATERMARK:
            row_init(&row, KIND_WATERMARK)
            row.commit_ts = f.commit_ts
            row.has = HAS_COMMIT_TS
            return self.out.add_row(c, &row)
        if f.type == TYPE_BOOTSTRAP:
            return self._bootstrap(c, &f)
        if f.type == TYPE_DDL:
            return self._ddl(c, &f)
        return self._row(c, &f)

    # The quick way: the message is, byte for byte, what TiCDC writes for a table seen before.

    cdef bint _predicted(self, Cursor *c) noexcept nogil:
        """Whether the message was as predicted; otherwise nothing has happened."""
        cdef Table *first = self._predicted_table(c)
        cdef Table *t = first
        cdef const uint8_t *behind_head = c.p
        cdef int tries = 0
        while t != NULL and tries < PREDICTIONS:
            if self._predicted_row(c, t):
                self._use(t)
                return True
            self.out.rollback()
            c.fault = FAULT_NONE
            c.p = behind_head
            tries += 1
            # Others of the same table: with other columns, or with the handle key alone.
            t = self.buckets[first.hash & (TABLE_BUCKETS - 1)] if t == first else t.next
            while t != NULL and (t == first or t.hash != first.hash or
                                 not _same(&t.head, &first.head)):
                t = t.next
        c.p = c.start
        return False

    cdef Table *_predicted_table(self, Cursor *c) noexcept nogil:
        """A table with whose head the message begins, the cursor behind it; or NULL."""
        cdef Span database, table
        cdef unsigned int ignored = 0
        cdef uint64_t hash
        cdef Table *t = self.last
        if t != NULL and take(c, t.head.p, t.head.n):
            return t
        if not take(c, HEAD.p, HEAD.n):
            return NULL
        database.p = c.p
        database.n = tg_plain_run(c.p, c.end, c.limit, &ignored)
        c.p += database.n
        if not take(c, HEAD_TABLE.p, HEAD_TABLE.n):
            return NULL
        table.p = c.p
        table.n = tg_plain_run(c.p, c.end, c.limit, &ignored)
        hash = _hash_of(&database, &table)
        t = self.buckets[hash & (TABLE_BUCKETS - 1)]
        c.p = c.start
        while t != NULL:
            if t.hash == hash and take(c, t.head.p, t.head.n):
                return t
            t = t.next
        return NULL

    cdef bint _predicted_row(self, Cursor *c, Table *t) noexcept nogil:
        """Reads on behind the head. False: not as predicted, and what was put must be taken back."""
        cdef Row row
        cdef Span *kind
        cdef Extra *extra
        cdef uint64_t zones = 0
        cdef int64_t version = 0
        if t.count == 0 or t.zones > PREDICTABLE_ZONES:
            return False
        row_init(&row, KIND_INSERT)
        if not _predicted_id(c, &t.table_id, &row.table_id) or left(c) < INSERT_COMMIT_TS.n:
            return False
        kind = &INSERT_COMMIT_TS
        row.has = HAS_COMMIT_TS | HAS_TABLE_ID | HAS_SCHEMA_VERSION | HAS_AFTER
        if c.p[9] == c'U':
            kind = &UPDATE_COMMIT_TS
            row.kind = KIND_UPDATE
            row.has |= HAS_BEFORE
        elif c.p[9] == c'D':
            kind = &DELETE_COMMIT_TS
            row.kind = KIND_DELETE
            row.has ^= HAS_AFTER | HAS_BEFORE
        if not take(c, kind.p, kind.n) or not _natural(c, &row.commit_ts) or \
                not _predicted_version(c, &t.version, &row.schema_version) or left(c) < 3:
            return False
        if c.p[2] == c'h' and take(c, HANDLE_KEY_ONLY.p, HANDLE_KEY_ONLY.n):
            row.flags |= FLAG_HANDLE_KEY_ONLY
        elif c.p[2] == c'c' and take(c, CHECKSUM.p, CHECKSUM.n):
            extra = self.out.new_extra(&row)
            if extra == NULL or not _natural(c, &version) or version > 0x7fffffff:
                return False
            extra.has_checksum = True
            extra.checksum.version = <int32_t>version
            row.flags |= FLAG_CHECKSUM
            if not take(c, INTACT_CURRENT.p, INTACT_CURRENT.n):
                if not take(c, CORRUPTED_CURRENT.p, CORRUPTED_CURRENT.n):
                    return False
                extra.checksum.corrupted = True
                row.flags |= FLAG_CORRUPTED
            if not _natural(c, &extra.checksum.current) or \
                    not take(c, PREVIOUS.p, PREVIOUS.n) or \
                    not _natural(c, &extra.checksum.previous) or not _byte(c, c'}') or \
                    extra.checksum.current > UINT32_MAX or extra.checksum.previous > UINT32_MAX:
                return False
        if row.has & HAS_AFTER and (
            not take(c, DATA.p, DATA.n) or not _predicted_side(c, t, &self.out.after, &zones)
        ):
            return False
        if row.has & HAS_BEFORE and (
            not take(c, OLD.p, OLD.n) or not _predicted_side(c, t, &self.out.before, &zones)
        ):
            return False
        if not _byte(c, c'}') or c.p != c.end:
            return False
        row.shape = self._zone_shape(c, t, zones)
        return row.shape >= 0 and self.out.add_row(c, &row) >= 0

    cdef int32_t _zone_shape(self, Cursor *c, Table *t, uint64_t zones) noexcept nogil:
        """The shape of the table's rows when the columns of these bits carry their zone."""
        cdef uint32_t i
        cdef int32_t column, shape
        cdef ShapeColumn *columns
        for i in range(t.zone_shape_count):
            if t.zone_shapes[i].zones == zones:
                return t.zone_shapes[i].shape
        self.columns.used = 0
        if buffer_reserve(&self.columns, <size_t>t.count * sizeof(ShapeColumn)) < 0:
            return fail(c, FAULT_MEMORY)
        columns = <ShapeColumn *>self.columns.data
        for column in range(t.count):
            _plain_column(&columns[column], &t.columns[column].name)
            if t.expected[column].zone_bit & zones:
                columns[column].type = TIMESTAMP
                columns[column].zone = t.columns[column].zone
        shape = self.out.register_shape(c, &t.database, &t.table, columns, t.count)
        if shape < 0:
            return -1
        t.zone_shapes[t.zone_shape_next].zones = zones
        t.zone_shapes[t.zone_shape_next].shape = shape
        t.zone_shape_next = (t.zone_shape_next + 1) % ZONE_SHAPES
        if t.zone_shape_count < ZONE_SHAPES:
            t.zone_shape_count += 1
        return shape

    # The general way: members in any order, with white space, and with others that are not known.

    cdef int _members(self, Cursor *c, Facts *f) noexcept nogil:
        cdef bint first = True
        cdef Span name
        cdef int more
        if json_open(c, c'{') < 0:
            return -1
        while True:
            more = json_member(c, &first, &self.out.scratch, &name)
            if more < 0:
                return -1
            if more == 0:
                return json_finish(c)
            if self._member(c, f, &name) < 0:
                return -1

    cdef int _member(self, Cursor *c, Facts *f, const Span *name) noexcept nogil:
        """The value of one member of the message."""
        cdef const uint8_t *at = c.p
        cdef int64_t version = 0
        cdef uint32_t bit = _member_bit(name)
        if bit == 0:
            return json_skip_other(c, name, _MEMBERS)
        if _once(c, &f.named, bit) < 0:
            return -1
        if c.p[0] == c'n':
            return 0 if _null(c) else fail(c, FAULT_TYPE)
        f.has |= bit
        if bit == MEMBER_VERSION:
            if json_i64(c, &version) < 0:
                return -1
            return 0 if version == 1 else fail_at(c, FAULT_VERSION, at)
        if bit == MEMBER_TYPE:
            if json_span(c, &self.out.scratch, &f.type_text) < 0:
                return -1
            f.type = _type_of(&f.type_text)
            return 0 if f.type >= 0 else fail_at(c, FAULT_UNKNOWN_KIND, at)
        if bit == MEMBER_DATABASE:
            return json_span(c, &self.out.scratch, &f.database)
        if bit == MEMBER_TABLE:
            return json_span(c, &self.out.scratch, &f.table)
        if bit == MEMBER_TABLE_ID:
            return json_i64(c, &f.table_id)
        if bit == MEMBER_COMMIT_TS:
            return _timestamp(c, &f.commit_ts)
        if bit == MEMBER_BUILD_TS:
            return json_i64(c, &version)
        if bit == MEMBER_SCHEMA_VERSION:
            return _timestamp(c, &f.schema_version)
        if bit == MEMBER_DATA:
            return self._values(c, &self.data)
        if bit == MEMBER_OLD:
            return self._values(c, &self.old)
        if bit == MEMBER_SQL:
            return json_span(c, &self.out.scratch, &f.sql)
        if bit == MEMBER_CLAIM_CHECK:
            return json_span(c, &self.out.scratch, &f.claim_check)
        if bit == MEMBER_HANDLE_KEY_ONLY:
            return json_bool(c, &f.handle_key_only)
        if bit == MEMBER_CHECKSUM:
            return self._checksum(c, &f.checksum)
        if bit == MEMBER_TABLE_SCHEMA:
            return self._schema(c, &f.schema)
        return self._schema(c, &f.schema_before)

    cdef int _values(self, Cursor *c, Buffer *members) noexcept nogil:
        """The object `data` or `old`."""
        cdef bint first = True
        cdef Member *m
        cdef const uint8_t *at
        cdef bint ignored
        cdef int more
        if json_open(c, c'{') < 0:
            return -1
        while True:
            if buffer_reserve(members, sizeof(Member)) < 0:
                return fail(c, FAULT_MEMORY)
            m = <Member *>(members.data + members.used)
            memset(m, 0, sizeof(Member))
            if _plain_member(c, first, m):
                first = False
            else:
                more = json_member(c, &first, &self.out.scratch, &m.name)
                if more <= 0:
                    return more
            if members.used >= MAX_COLUMNS * sizeof(Member):
                return fail(c, FAULT_COLUMNS)
            members.used += sizeof(Member)
            if m.at != NULL:
                continue
            at = c.p
            m.at = at
            m.limit = c.limit
            if at[0] == c'"':
                if json_span(c, &self.out.scratch, &m.text) < 0:
                    return -1
                if c.p - at != <Py_ssize_t>m.text.n + 2:
                    m.limit = self.out.scratch.data + self.out.scratch.size
            elif at[0] == c'{':
                if self._moment(c, m) < 0:
                    return -1
            elif at[0] == c'n':
                if not _null(c):
                    return fail(c, FAULT_TYPE)
            elif at[0] == c't' or at[0] == c'f':
                # Other senders may write booleans and numbers as such.
                if json_bool(c, &ignored) < 0:
                    return -1
                m.text.p = at
                m.text.n = <size_t>(c.p - at)
            else:
                m.is_number = True
                if json_number(c, &m.text) < 0:
                    return -1

    cdef int _moment(self, Cursor *c, Member *m) noexcept nogil:
        """A TIMESTAMP: {"location": zone, "value": text}."""
        cdef bint first = True
        cdef Span name
        cdef const uint8_t *opened = c.p
        cdef const uint8_t *at
        cdef uint32_t named = 0
        cdef int more
        c.p += 1
        while True:
            more = json_member(c, &first, &self.out.scratch, &name)
            if more < 0:
                return -1
            if more == 0:
                break
            at = c.p
            if _is(&name, b"location", 8):
                if _once(c, &named, 1) < 0 or json_span(c, &self.out.scratch, &m.zone) < 0:
                    return -1
                if m.zone.n == 0:
                    return fail_at(c, FAULT_VALUE, at)
            elif _is(&name, b"value", 5):
                if _once(c, &named, 2) < 0 or json_span(c, &self.out.scratch, &m.text) < 0:
                    return -1
                if not tg_datetime_valid(m.text.p, m.text.n):
                    return fail_at(c, FAULT_TEMPORAL, at)
                m.limit = m.text.p + m.text.n
            elif json_skip(c) < 0:
                return -1
        return 0 if named == 3 else fail_at(c, FAULT_MISSING, opened)

    cdef int _checksum(self, Cursor *c, Checksum *out) noexcept nogil:
        cdef bint first = True
        cdef Span name
        cdef const uint8_t *opened = c.p
        cdef uint32_t named = 0
        cdef int64_t version = 0
        cdef int more
        if json_open(c, c'{') < 0:
            return -1
        while True:
            more = json_member(c, &first, &self.out.scratch, &name)
            if more < 0:
                return -1
            if more == 0:
                break
            if _is(&name, b"version", 7):
                if _once(c, &named, 1) < 0 or _at_most(c, &version, 0x7fffffff) < 0:
                    return -1
                out.version = <int32_t>version
            elif _is(&name, b"corrupted", 9):
                if _once(c, &named, 2) < 0 or json_bool(c, &out.corrupted) < 0:
                    return -1
            elif _is(&name, b"current", 7):
                if _once(c, &named, 4) < 0 or _at_most(c, &out.current, UINT32_MAX) < 0:
                    return -1
            elif _is(&name, b"previous", 8):
                if _once(c, &named, 8) < 0 or _at_most(c, &out.previous, UINT32_MAX) < 0:
                    return -1
            elif json_skip(c) < 0:
                return -1
        return 0 if named == 15 else fail_at(c, FAULT_MISSING, opened)

    cdef int _schema(self, Cursor *c, SchemaFacts *out) noexcept nogil:
        """A table schema, checked so far that model.TableSchema.from_json reads it, as its text goes
        into the batch as it is."""
        cdef Buffer *scratch = &self.out.scratch
        cdef bint first = True
        cdef Span name
        cdef const uint8_t *opened = c.p
        cdef uint32_t named = 0
        cdef int more, read
        if json_open(c, c'{') < 0:
            return -1
        while True:
            more = json_member(c, &first, scratch, &name)
            if more < 0:
                return -1
            if more == 0:
                break
            if _is(&name, b"schema", 6):
                read = _once(c, &named, 1) or json_span(c, scratch, &out.database)
            elif _is(&name, b"table", 5):
                read = _once(c, &named, 2) or json_span(c, scratch, &out.table)
            elif _is(&name, b"version", 7):
                read = _once(c, &named, 4) or _timestamp(c, &out.version)
            elif _is(&name, b"tableID", 7):
                read = _once(c, &named, 8)
                if read == 0 and not _null(c):
                    out.has_table_id = True
                    read = json_i64(c, &out.table_id)
            elif _is(&name, b"columns", 7):
                read = _once(c, &named, 16) or _check_objects(c, scratch, COLUMN_RULES)
            elif _is(&name, b"indexes", 7):
                read = _once(c, &named, 32) or _check_objects(c, scratch, INDEX_RULES)
            elif _is(&name, b"charset", 7):
                read = _once(c, &named, 64) or _check_form(c, scratch, TEXT)
            elif _is(&name, b"collate", 7):
                read = _once(c, &named, 128) or _check_form(c, scratch, TEXT)
            elif _is(&name, b"partitioning", 12):
                read = _once(c, &named, 256) or _check_form(c, scratch, PARTITIONING)
            else:
                read = _skip_foreign(c)
            if read < 0:
                return -1
        if ~named & 7:
            return fail_at(c, FAULT_MISSING, opened)
        out.raw.p = opened
        out.raw.n = <size_t>(c.p - opened)
        return 0

    # Events

    cdef int _bootstrap(self, Cursor *c, Facts *f) noexcept nogil:
        cdef Row row
        cdef Extra *extra
        if f.schema.raw.p == NULL:
            return fail(c, FAULT_MISSING)
        row_init(&row, KIND_SCHEMA)
        if f.commit_ts:     # TiCDC writes 0, which means nothing
            row.commit_ts = f.commit_ts
            row.has |= HAS_COMMIT_TS
        extra = self.out.new_extra(&row)
        if extra == NULL or self._schema_text(f, &extra.schema) < 0 or \
                _name_row(self, &row, &f.schema) < 0:
            return fail(c, FAULT_MEMORY)
        return self.out.add_row(c, &row)

    cdef int _ddl(self, Cursor *c, Facts *f) noexcept nogil:
        cdef Row row
        cdef Extra *extra
        if not f.has & MEMBER_SQL:
            return fail(c, FAULT_MISSING)
        row_init(&row, KIND_DDL)
        row.commit_ts = f.commit_ts
        row.has = HAS_COMMIT_TS
        extra = self.out.new_extra(&row)
        if extra == NULL or self.out.keep(&f.type_text, &extra.ddl_type) < 0 or \
                self.out.keep(&f.sql, &extra.query) < 0 or \
                self._schema_text(f, &extra.schema) < 0:
            return fail(c, FAULT_MEMORY)
        # A statement on a whole database has neither schema, and so no names.
        if f.schema.raw.p != NULL:
            if _name_row(self, &row, &f.schema) < 0:
                return fail(c, FAULT_MEMORY)
        elif f.schema_before.raw.p != NULL and _name_row(self, &row, &f.schema_before) < 0:
            return fail(c, FAULT_MEMORY)
        return self.out.add_row(c, &row)

    cdef int _schema_text(self, Facts *f, Span *out) noexcept nogil:
        """{"tableSchema":…,"preTableSchema":…} with those that are there; -1 without memory."""
        cdef Buffer *b = &self.text
        b.used = 0
        if f.schema.raw.p != NULL and (
            buffer_add(b, b'{"tableSchema":', 15) < 0
            or buffer_add(b, f.schema.raw.p, f.schema.raw.n) < 0
        ):
            return -1
        if f.schema_before.raw.p != NULL and (
            buffer_add_byte(b, c',' if b.used else c'{') < 0
            or buffer_add(b, b'"preTableSchema":', 17) < 0
            or buffer_add(b, f.schema_before.raw.p, f.schema_before.raw.n) < 0
        ):
            return -1
        if b.used == 0:
            return 0
        if buffer_add_byte(b, c'}') < 0:
            return -1
        out.p = b.data
        out.n = b.used
        return self.out.keep(out, out)

    cdef int _row(self, Cursor *c, Facts *f) noexcept nogil:
        """INSERT, UPDATE or DELETE. The shape's columns are those of `data`, of a DELETE of `old`."""
        cdef Row row
        cdef Extra *extra
        cdef Buffer *side = &self.old if f.type == TYPE_DELETE else &self.data
        cdef Member *members = _members_of(side)
        cdef Member *old = _members_of(&self.old)
        cdef int32_t count = _count_of(side)
        cdef int32_t i, culprit = 0
        cdef int32_t *slots
        cdef uint8_t *bits
        cdef Table *t
        cdef int placed
        cdef uint32_t wanted = MEMBER_DATABASE | MEMBER_TABLE | MEMBER_SCHEMA_VERSION
        if f.type != TYPE_DELETE:
            wanted |= MEMBER_DATA
        elif _count_of(&self.data):
            return fail(c, FAULT_COLUMNS)
        if f.type != TYPE_INSERT:
            wanted |= MEMBER_OLD
        elif _count_of(&self.old):
            return fail(c, FAULT_COLUMNS)
        if f.claim_check.n:
            # The values come from elsewhere, and Go leaves out an object without members.
            wanted &= ~(MEMBER_DATA | MEMBER_OLD)
        if wanted & ~f.has:
            return fail(c, FAULT_MISSING)
        if buffer_reserve(&self.slots, 2 * <size_t>count * sizeof(int32_t)) < 0:
            return fail(c, FAULT_MEMORY)
        slots = <int32_t *>self.slots.data
        t = self._table(c, f, members, count)
        if t == NULL:
            return -1
        if f.type == TYPE_UPDATE:
            placed = _place(t, old, _count_of(&self.old), slots + count, &culprit)
            if placed != PLACED:
                return fail_at(c, FAULT_DUPLICATE if placed == TWICE else FAULT_COLUMNS,
                               old[culprit].at)
            if _join_zones(c, members, old, slots, count) < 0:
                return -1
        if _learns_zones(t, members, slots):
            t = self._remember(c, f, members, count, t)
            if t == NULL:
                return -1
        row_init(&row, KIND_INSERT if f.type == TYPE_INSERT else
                 KIND_UPDATE if f.type == TYPE_UPDATE else KIND_DELETE)
        row.has = HAS_COMMIT_TS | HAS_SCHEMA_VERSION
        row.commit_ts = f.commit_ts
        row.schema_version = f.schema_version
        if f.has & MEMBER_TABLE_ID:
            row.table_id = f.table_id
            row.has |= HAS_TABLE_ID
        row.shape = self._shape(c, t, members, slots)
        if row.shape < 0:
            return -1
        if f.type != TYPE_DELETE:
            row.has |= HAS_AFTER
            if self._cells(c, &self.out.after, members, slots, count) < 0:
                return -1
        if f.type != TYPE_INSERT:
            row.has |= HAS_BEFORE
            if f.type == TYPE_UPDATE:
                slots += count
            if self._cells(c, &self.out.before, old, slots, count) < 0:
                return -1
            if _count_of(&self.old) < count:
                bits = self.out.new_missing(&row, count)
                if bits == NULL:
                    return fail(c, FAULT_MEMORY)
                for i in range(count):
                    if slots[i] < 0:
                        bits[i >> 3] |= <uint8_t>(1 << (i & 7))
        # TiCDC marks claim checks as handle-key-only too.
        if f.claim_check.n:
            row.flags |= FLAG_CLAIM_CHECK
        elif f.handle_key_only:
            row.flags |= FLAG_HANDLE_KEY_ONLY
        if f.claim_check.n or f.has & MEMBER_CHECKSUM:
            extra = self.out.new_extra(&row)
            if extra == NULL:
                return fail(c, FAULT_MEMORY)
            if f.claim_check.n and self.out.keep(&f.claim_check, &extra.claim_check) < 0:
                return fail(c, FAULT_MEMORY)
            if f.has & MEMBER_CHECKSUM:
                extra.has_checksum = True
                extra.checksum = f.checksum
                row.flags |= FLAG_CHECKSUM
                if f.checksum.corrupted:
                    row.flags |= FLAG_CORRUPTED
        return self.out.add_row(c, &row)

    cdef int32_t _shape(self, Cursor *c, Table *t, const Member *members,
                        const int32_t *slots) noexcept nogil:
        cdef uint64_t zones = 0
        cdef int32_t i
        cdef ShapeColumn *columns
        if t.zones <= PREDICTABLE_ZONES:
            for i in range(t.count):
                if members[slots[i]].zone.p != NULL:
                    zones |= t.expected[i].zone_bit
            return self._zone_shape(c, t, zones)
        self.columns.used = 0
        if buffer_reserve(&self.columns, <size_t>t.count * sizeof(ShapeColumn)) < 0:
            return fail(c, FAULT_MEMORY)
        columns = <ShapeColumn *>self.columns.data
        for i in range(t.count):
            _plain_column(&columns[i], &t.columns[i].name)
            if members[slots[i]].zone.p != NULL:
                columns[i].type = TIMESTAMP
                columns[i].zone = members[slots[i]].zone
        return self.out.register_shape(c, &t.database, &t.table, columns, t.count)

    cdef int _cells(self, Cursor *c, Cells *cells, const Member *members, const int32_t *slots,
                    int32_t count) noexcept nogil:
        cdef int32_t i
        cdef int n
        cdef const Member *m
        if cells_reserve(cells, <size_t>count) < 0:
            return fail(c, FAULT_MEMORY)
        for i in range(count):
            if slots[i] < 0 or members[slots[i]].text.p == NULL:
                cell_null(cells)
                continue
            m = &members[slots[i]]
            if not m.is_number:
                if cell_copy(cells, m.text.p, m.text.n, m.limit) < 0:
                    return fail(c, FAULT_MEMORY)
                continue
            if buffer_reserve(&cells.text, m.text.n + 512) < 0:
                return fail(c, FAULT_MEMORY)
            n = tg_shift_decimal(m.text.p, m.text.n, cells.text.data + cells.text.used,
                                 m.text.n + 512)
            if n < 0:
                return fail_at(c, FAULT_RANGE, m.text.p)
            cells.text.used += n
            cell_end(cells)
        return 0

    # What is remembered of tables

    cdef Table *_table(self, Cursor *c, Facts *f, Member *members, int32_t count) noexcept nogil:
        """The remembered table with these columns, or a new one; slots are filled. NULL: a fault."""
        cdef uint64_t hash = _hash_of(&f.database, &f.table)
        cdef Table *t = self.buckets[hash & (TABLE_BUCKETS - 1)]
        cdef int32_t culprit = 0
        cdef int placed
        while t != NULL:
            if t.hash == hash and t.count == count and _same(&t.database, &f.database) and \
                    _same(&t.table, &f.table):
                placed = _place(t, members, count, <int32_t *>self.slots.data, &culprit)
                if placed == TWICE:
                    fail_at(c, FAULT_DUPLICATE, members[culprit].at)
                    return NULL
                if placed == PLACED:
                    self._use(t)
                    return t
            t = t.next
        return self._remember(c, f, members, count, NULL)

    cdef Table *_remember(self, Cursor *c, Facts *f, const Member *members, int32_t count,
                          Table *earlier) noexcept nogil:
        """Remembers a table. `earlier` is what was known of it: its zones are kept, and its place."""
        cdef Table *fresh = self._make_table(c, f, members, count, earlier)
        cdef Table *victim = earlier
        cdef int32_t i, ignored = 0
        if fresh == NULL:
            return NULL
        for i in range(self.table_count):
            # The memory of one hostile message is kept for a while, but not that of many.
            if fresh.size > LARGE_TABLE and self.tables[i].size > LARGE_TABLE:
                victim = self.tables[i]
        if earlier != NULL and victim != earlier:
            self._forget(earlier)
        if victim == NULL and self.table_count == REMEMBERED_TABLES:
            victim = self.tables[0]
            for i in range(1, REMEMBERED_TABLES):
                if self.tables[i].used < victim.used:
                    victim = self.tables[i]
        if victim != NULL:
            self._forget(victim)
        fresh.next = self.buckets[fresh.hash & (TABLE_BUCKETS - 1)]
        self.buckets[fresh.hash & (TABLE_BUCKETS - 1)] = fresh
        self.tables[self.table_count] = fresh
        self.table_count += 1
        self._use(fresh)
        _place(fresh, members, count, <int32_t *>self.slots.data, &ignored)
        return fresh

    cdef void _use(self, Table *t) noexcept nogil:
        self.clock += 1
        t.used = self.clock
        self.last = t

    cdef void _forget(self, Table *t) noexcept nogil:
        cdef Table **link = &self.buckets[t.hash & (TABLE_BUCKETS - 1)]
        cdef int32_t i
        while link[0] != t:
            link = &link[0].next
        link[0] = t.next
        for i in range(self.table_count):
            if self.tables[i] == t:
                self.table_count -= 1
                self.tables[i] = self.tables[self.table_count]
                break
        if self.last == t:
            self.last = NULL
        free(t.text)
        free(t)

    cdef Table *_make_table(self, Cursor *c, Facts *f, const Member *members, int32_t count,
                            const Table *earlier) noexcept nogil:
        """A table of these columns, sorted by name. NULL: a fault."""
        cdef const Member **ordered
        cdef Table *t
        cdef uint32_t slots = 4, at
        cdef size_t fixed
        cdef int32_t i
        self.columns.used = 0
        if buffer_reserve(&self.columns, <size_t>count * sizeof(Member *)) < 0:
            fail(c, FAULT_MEMORY)
            return NULL
        ordered = <const Member **>self.columns.data
        for i in range(count):
            ordered[i] = &members[i]
        qsort(<void *>ordered, count, sizeof(Member *), _by_name)
        for i in range(1, count):
            if _same(&ordered[i - 1].name, &ordered[i].name):
                fail_at(c, FAULT_DUPLICATE,
                        ordered[i].at if ordered[i].at > ordered[i - 1].at else ordered[i - 1].at)
                return NULL
        while slots < 2 * <uint32_t>count:
            slots *= 2
        fixed = sizeof(Table) + slots * sizeof(uint16_t) + \
            <size_t>count * (sizeof(TableColumn) + sizeof(tg_expected))
        t = <Table *>malloc(fixed)
        if t == NULL:
            fail(c, FAULT_MEMORY)
            return NULL
        memset(t, 0, fixed)
        t.count = count
        t.columns = <TableColumn *>(t + 1)
        t.expected = <tg_expected *>(t.columns + count)
        t.index = <uint16_t *>(t.expected + count)
        t.index_mask = slots - 1
        t.hash = _hash_of(&f.database, &f.table)
        if _write_literals(&self.text, t, f, ordered, earlier) < 0:
            free(t)
            fail(c, FAULT_MEMORY)
            return NULL
        t.size = fixed + self.text.used
        for i in range(count):
            at = <uint32_t>tg_hash(t.columns[i].name.p, t.columns[i].name.n, 0) & t.index_mask
            while t.index[at]:
                at = (at + 1) & t.index_mask
            t.index[at] = <uint16_t>(i + 1)
        return t


cdef bint _predicted_side(Cursor *c, const Table *t, Cells *cells, uint64_t *zones) noexcept nogil:
    """`data` or `old` as predicted: its cells are put."""
    cdef tg_members m
    cdef const tg_expected *x = t.expected
    cdef const tg_expected *behind = t.expected + t.count
    cdef uint8_t *began
    # No text is longer in the batch than in the message, so this is room for all of them.
    if cells_reserve(cells, <size_t>t.count) < 0 or buffer_reserve(&cells.text, left(c)) < 0:
        return False
    m.p = c.p
    m.end = c.end
    m.limit = c.limit
    m.text = cells.text.data
    m.dst = m.text + cells.text.used
    m.ends = cells_ends(cells)
    m.valid = cells.valid.data + cells.count
    m.zones = zones[0]
    while True:
        x += tg_take_members(&m, x, <size_t>(behind - x))
        if x == behind:
            break
        # What was left: text with escapes, and the last bytes that may be read.
        c.p = m.p
        m.valid[0] = 1
        if take(c, x.literal, x.size):
            began = m.dst
            cells.text.used = <size_t>(m.dst - m.text)
            if json_text(c, &cells.text) < 0:
                return False
            m.dst = m.text + cells.text.used
            if x.zone_bit:
                if not tg_datetime_valid(began, <size_t>(m.dst - began)) or not _byte(c, c'}'):
                    return False
                m.zones |= x.zone_bit
        elif take(c, x.literal, x.bare) and take(c, NULL_WORD.p, NULL_WORD.n):
            m.valid[0] = 0
        else:
            return False
        m.p = c.p
        m.ends[0] = <int32_t>(m.dst - m.text)
        m.valid += 1
        m.ends += 1
        x += 1
        if x == behind:
            break
    cells.text.used = <size_t>(m.dst - m.text)
    cells.ends.used += 4 * <size_t>t.count
    cells.valid.used += <size_t>t.count
    cells.count += <size_t>t.count
    zones[0] = m.zones
    c.p = m.p
    return _byte(c, c'}')


cdef inline uint64_t _hash_of(const Span *database, const Span *table) noexcept nogil:
    return tg_hash(database.p, database.n, 1) ^ tg_hash(table.p, table.n, 2)


cdef inline void _plain_column(ShapeColumn *column, const Span *name) noexcept nogil:
    memset(column, 0, sizeof(ShapeColumn))
    column.name = name[0]
    column.code = -1
    column.flags = -1


cdef int _put_text(Buffer *b, const Span *text) noexcept nogil:
    return json_put_string(b, text.p, text.n, text.p + text.n, STYLE_ENCODING_JSON)


cdef int _put_raw(Buffer *b, const Span *text, Span *at) noexcept nogil:
    """Adds the text; at.p is where it stands, counted from the buffer's start."""
    at.p = <const uint8_t *>b.used
    at.n = text.n
    return buffer_add(b, text.p, text.n)


cdef int _write_literals(Buffer *b, Table *t, const Facts *f, const Member **ordered,
                         const Table *earlier) noexcept nogil:
    """Fills in the names and literals of a table, in memory of its own. -1: there is none."""
    cdef TableColumn *column
    cdef tg_expected *x
    cdef const Span *zone
    cdef size_t began
    cdef int32_t i
    b.used = 0
    if buffer_add(b, HEAD.p, HEAD.n - 1) < 0 or _put_text(b, &f.database) < 0 or \
            buffer_add(b, HEAD_TABLE.p + 1, HEAD_TABLE.n - 2) < 0 or _put_text(b, &f.table) < 0 or \
            buffer_add(b, b',"tableID":', 11) < 0:
        return -1
    t.head.p = NULL
    t.head.n = b.used
    if _put_raw(b, &f.database, &t.database) < 0 or _put_raw(b, &f.table, &t.table) < 0:
        return -1
    for i in range(t.count):
        column = &t.columns[i]
        x = &t.expected[i]
        zone = &ordered[i].zone
        if zone.p == NULL and earlier != NULL:
            zone = &earlier.columns[i].zone
        began = b.used
        x.literal = <const uint8_t *>began
        if buffer_add_byte(b, c',' if i else c'{') < 0 or _put_text(b, &ordered[i].name) < 0 or \
                buffer_add_byte(b, c':') < 0:
            return -1
        x.bare = <uint32_t>(b.used - began)
        if zone.n:
            if t.zones < PREDICTABLE_ZONES:
                x.zone_bit = <uint64_t>1 << t.zones
            t.zones += 1
            if buffer_add(b, b'{"location":', 12) < 0 or _put_text(b, zone) < 0 or \
                    buffer_add(b, b',"value":', 9) < 0:
                return -1
        if buffer_add_byte(b, c'"') < 0:
            return -1
        x.size = <uint32_t>(b.used - began)
        x.mask = tg_literal_mask(x.size)
        if _put_raw(b, &ordered[i].name, &column.name) < 0 or \
                (zone.n and _put_raw(b, zone, &column.zone) < 0):
            return -1
    t.text = <uint8_t *>malloc(b.used + 32)
    if t.text == NULL:
        return -1
    memcpy(t.text, b.data, b.used)
    memset(t.text + b.used, 0, 32)      # literals are read on behind their ends
    t.head.p = t.text
    t.database.p = t.text + <size_t>t.database.p
    t.table.p = t.text + <size_t>t.table.p
    for i in range(t.count):
        column = &t.columns[i]
        t.expected[i].literal = t.text + <size_t>t.expected[i].literal
        column.name.p = t.text + <size_t>column.name.p
        if column.zone.n:
            column.zone.p = t.text + <size_t>column.zone.p
    return 0


cdef int _join_zones(Cursor *c, Member *members, const Member *old, const int32_t *slots,
                     int32_t count) noexcept nogil:
    """Gives the members of `data` the zones that only `old` tells: both have one shape."""
    cdef int32_t i
    cdef Member *new
    cdef const Member *before
    for i in range(count):
        if slots[count + i] < 0 or old[slots[count + i]].zone.p == NULL:
            continue
        new = &members[slots[i]]
        before = &old[slots[count + i]]
        if new.zone.p == NULL:
            new.zone = before.zone
        elif not _same(&new.zone, &before.zone):
            return fail_at(c, FAULT_COLUMNS, before.at)
    return 0


cdef bint _learns_zones(const Table *t, const Member *members, const int32_t *slots) noexcept nogil:
    """Whether a member has another zone than is known of its column."""
    cdef int32_t i
    for i in range(t.count):
        if members[slots[i]].zone.p != NULL and not _same(&members[slots[i]].zone,
                                                          &t.columns[i].zone):
            return True
    return False


cdef int _name_row(Decoder decoder, Row *row, const SchemaFacts *schema) noexcept nogil:
    """Names, version and id from a schema; -1 without memory."""
    cdef Span database = schema.database
    cdef Span table = schema.table
    if database.n == 0:
        database.p = NULL
    if table.n == 0:
        table.p = NULL
    row.names = decoder.out.intern_names(&database, &table)
    row.schema_version = schema.version
    row.has |= HAS_SCHEMA_VERSION
    if schema.has_table_id:
        row.table_id = schema.table_id
        row.has |= HAS_TABLE_ID
    return row.names


cdef int _at_most(Cursor *c, int64_t *out, int64_t largest) noexcept nogil:
    cdef const uint8_t *at = c.p
    cdef size_t n = tg_natural(at, c.end, c.limit, out)
    if n and at + n < c.end and (at[n] == c',' or at[n] == c'}'):
        c.p += n
    elif json_i64(c, out) < 0:
        return -1
    return fail_at(c, FAULT_RANGE, at) if out[0] < 0 or out[0] > largest else 0


cdef int _timestamp(Cursor *c, int64_t *out) noexcept nogil:
    """A TSO: commitTs, or a schema's version."""
    return _at_most(c, out, INT64_MAX)


# The names of a message's members, for json_skip_other.
cdef const char *_MEMBERS = (
    b"version database table tableid type sql committs buildts schemaversion claimchecklocation "
    b"handlekeyonly checksum data old tableschema pretableschema "
)


cdef uint32_t _member_bit(const Span *name) noexcept nogil:
    """Which member of a message this is; 0: none that is known."""
    if name.n == 3:
        if _is(name, b"old", 3):
            return MEMBER_OLD
        if _is(name, b"sql", 3):
            return MEMBER_SQL
    elif name.n == 4:
        if _is(name, b"data", 4):
            return MEMBER_DATA
        if _is(name, b"type", 4):
            return MEMBER_TYPE
    elif name.n == 5:
        if _is(name, b"table", 5):
            return MEMBER_TABLE
    elif name.n == 7:
        if _is(name, b"version", 7):
            return MEMBER_VERSION
        if _is(name, b"tableID", 7):
            return MEMBER_TABLE_ID
        if _is(name, b"buildTs", 7):
            return MEMBER_BUILD_TS
    elif name.n == 8:
        if _is(name, b"database", 8):
            return MEMBER_DATABASE
        if _is(name, b"commitTs", 8):
            return MEMBER_COMMIT_TS
        if _is(name, b"checksum", 8):
            return MEMBER_CHECKSUM
    elif _is(name, b"schemaVersion", 13):
        return MEMBER_SCHEMA_VERSION
    elif _is(name, b"handleKeyOnly", 13):
        return MEMBER_HANDLE_KEY_ONLY
    elif _is(name, b"claimCheckLocation", 18):
        return MEMBER_CLAIM_CHECK
    elif _is(name, b"tableSchema", 11):
        return MEMBER_TABLE_SCHEMA
    elif _is(name, b"preTableSchema", 14):
        return MEMBER_PRE_TABLE_SCHEMA
    return 0


cdef int _type_of(const Span *type) noexcept nogil:
    """TYPE_*, or -1 for a type that Simple does not have."""
    if _is(type, b"INSERT", 6):
        return TYPE_INSERT
    if _is(type, b"UPDATE", 6):
        return TYPE_UPDATE
    if _is(type, b"DELETE", 6):
        return TYPE_DELETE
    if _is(type, b"WATERMARK", 9):
        return TYPE_WATERMARK
    if _is(type, b"BOOTSTRAP", 9):
        return TYPE_BOOTSTRAP
    if _is(type, b"CREATE", 6) or _is(type, b"RENAME", 6) or _is(type, b"CINDEX", 6) or \
            _is(type, b"DINDEX", 6) or _is(type, b"ERASE", 5) or _is(type, b"TRUNCATE", 8) or \
            _is(type, b"ALTER", 5) or _is(type, b"QUERY", 5):
        return TYPE_DDL
    return -1


# --- the encoder ----------------------------------------------------------------------------------

OPTIONS = shared.OPTIONS


cdef class _Plan(Plan):
    cdef tg_written *columns    # in the order of their names
    cdef size_t size            # of all literals
    cdef bytes literals
    cdef bytes head             # `{"version":1,"database":"d","table":"t"`
    cdef bytes tail             # `,"buildTs":1,"schemaVersion":2`

    def __cinit__(self, shape, version, database, table, build_ts, time_zone):
        cdef int32_t i
        cdef const uint8_t *literal
        self.head = b'{"version":1'
        for name, value in ((b',"database":', database), (b',"table":', table)):
            if value:
                self.head += name + go_json(value)
        self.tail = b',"buildTs":%d,"schemaVersion":%d' % (build_ts, version)
        self.columns = <tg_written *>malloc((len(shape.columns) + 1) * sizeof(tg_written))
        if self.columns == NULL:
            raise MemoryError
        ordered = sorted(enumerate(shape.columns), key=lambda column: column[1].name.encode())
        texts = []
        for i, (index, column) in enumerate(ordered):
            bare = b"," + go_json(column.name) + b":"
            text = bare + b'"'
            is_moment = column.code == MySQLType.TIMESTAMP
            if is_moment:
                zone = go_json(column.zone or time_zone)
                text = bare + b'{"location":' + zone + b',"value":"'
            self.columns[i].index = index
            self.columns[i].is_key = column.key
            self.columns[i].has_zone = is_moment
            self.columns[i].size = len(text)
            self.columns[i].bare = len(bare)
            texts.append(text)
        self.literals = b"".join(texts) + bytes(32)     # tg_put_members reads on behind them
        self.size = len(self.literals)
        literal = self.literals
        for i in range(len(ordered)):
            self.columns[i].literal = literal
            literal += self.columns[i].size

    def __dealloc__(self):
        free(self.columns)


cdef inline int _put(Buffer *b, bytes text) noexcept:
    return buffer_add(b, <const uint8_t *><const char *>text, len(text))


cdef int _put_side(Buffer *b, const tg_written *columns, int32_t count, size_t literals,
                   const CellsView *view, int64_t row, const Span *missing,
                   bint keys_only) noexcept nogil:
    """The object `data` or `old`; columns whose bit is set in `missing` are not carried.

    literals: the bytes of all literals."""
    cdef tg_cells cells
    cdef const tg_written *column = columns
    cdef const tg_written *behind = columns + count
    cdef size_t began = b.used
    cdef size_t room
    cdef Span text
    cells.ends = view.ends + view.lists[row]
    cells.valid = view.valid
    cells.valid_base = view.valid_base + view.lists[row]
    cells.text = view.text
    cells.limit = view.limit
    cells.missing = missing.p
    cells.missing_size = missing.n
    cells.keys_only = keys_only
    room = literals + <size_t>(cells.ends[count] - cells.ends[0]) + 4 * <size_t>count + 32
    while True:
        if buffer_reserve(b, room) < 0:
            return -1
        cells.dst = b.data + b.used
        column += tg_put_members(&cells, column, <size_t>(behind - column))
        b.used = <size_t>(cells.dst - b.data)
        if column == behind:
            break
        # What was left: text that needs escapes, and what stands at the end of the batch's memory.
        if tg_is_carried(&cells, column):
            if tg_is_null(&cells, column.index):
                if buffer_add(b, column.literal, column.bare) < 0 or \
                        buffer_add(b, NULL_WORD.p, NULL_WORD.n) < 0:
                    return -1
            else:
                text.p = cells.text + cells.ends[column.index]
                text.n = <size_t>(cells.ends[column.index + 1] - cells.ends[column.index])
                if buffer_add(b, column.literal, column.size) < 0 or \
                        json_put_body(b, text.p, text.n, cells.limit, STYLE_ENCODING_JSON) < 0 or \
                        buffer_add(b, b'"}', 1 + column.has_zone) < 0:
                    return -1
        column += 1
    if b.used == began:
        return buffer_add(b, b"{}", 2)
    b.data[began] = c'{'    # instead of the comma before the first member
    return buffer_add_byte(b, c'}')


cdef class Encoder(SimpleEncoder):
    """Encodes change batches as messages of the Simple protocol's JSON encoding."""

    cdef Plan new_plan(self, object shape, int64_t version, str database, str table):
        return _Plan(shape, version, database, table, self.options.build_ts, self.options.time_zone)

    cdef int write_row(self, Plan general, Py_ssize_t row, int kind, const Span *location,
                       bint keys_only, bint says_keys_only) except -1:
        cdef _Plan plan = general
        cdef Buffer *b = &self.messages.value
        cdef const Span *word
        cdef int64_t table_id = 0, current = 0, previous = 0
        cdef Span missing
        cdef bint failed
        missing.p = NULL
        missing.n = 0
        word = &INSERT_COMMIT_TS if kind == KIND_INSERT else \
            &UPDATE_COMMIT_TS if kind == KIND_UPDATE else &DELETE_COMMIT_TS
        failed = _put(b, plan.head) < 0
        if long_at(&self.reader.table_id, row, &table_id) and table_id:
            failed |= buffer_add(b, b',"tableID":', 11) < 0 or put_i64(b, table_id) < 0
        failed |= buffer_add(b, word.p, word.n) < 0 or put_i64(b, self.commit_ts(row)) < 0 or \
            _put(b, plan.tail) < 0
        if location.p != NULL:
            failed |= buffer_add(b, b',"claimCheckLocation":', 22) < 0 or _put_text(b, location) < 0
        # TiCDC marks claim checks so too.
        if location.p != NULL or says_keys_only:
            failed |= buffer_add(b, HANDLE_KEY_ONLY.p, HANDLE_KEY_ONLY.n) < 0
        if long_at(&self.reader.current, row, &current) and \
                long_at(&self.reader.previous, row, &previous):
            word = &CORRUPTED_CURRENT if self.reader.flags[row] & FLAG_CORRUPTED else \
                &INTACT_CURRENT
            failed |= buffer_add(b, CHECKSUM.p, CHECKSUM.n) < 0 or \
                put_i64(b, self.checksum_versions[row]) < 0 or \
                buffer_add(b, word.p, word.n) < 0 or put_i64(b, current) < 0 or \
                buffer_add(b, PREVIOUS.p, PREVIOUS.n) < 0 or put_i64(b, previous) < 0 or \
                buffer_add_byte(b, c'}') < 0
        if kind != KIND_DELETE:
            failed |= buffer_add(b, DATA.p, DATA.n) < 0 or \
                _put_side(b, plan.columns, plan.count, plan.size, &self.reader.after, row,
                          &missing, keys_only) < 0
        if kind != KIND_INSERT:
            failed |= buffer_add(b, OLD.p, OLD.n) < 0
            if view_has(&self.reader.before, row):
                string_at(&self.reader.missing, row, &missing)
                failed |= _put_side(b, plan.columns, plan.count, plan.size, &self.reader.before,
                                    row, &missing, keys_only) < 0
            else:
                failed |= buffer_add(b, b"{}", 2) < 0
        failed |= buffer_add_byte(b, c'}') < 0
        if failed:
            raise MemoryError
        return 0

    cdef bytes watermark(self, int64_t commit_ts):
        return b'{"version":1,"type":"WATERMARK","commitTs":%d,"buildTs":%d}' % (
            commit_ts, self.options.build_ts)

    cdef bytes ddl(self, str word, str query, int64_t commit_ts, dict schemas):
        text = b'{"version":1,"type":%b,"sql":%b,"commitTs":%d,"buildTs":%d' % (
            go_json(word), go_json(query), commit_ts, self.options.build_ts)
        for member, schema in schemas.items():
            text += b',"%b":%b' % (member.encode(), go_json(schema))
        return text + b"}"

    cdef bytes bootstrap(self, dict schema):
        return b'{"version":1,"type":"BOOTSTRAP","commitTs":0,"buildTs":%d,"tableSchema":%b}' % (
            self.options.build_ts, go_json(schema))
