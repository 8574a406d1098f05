"""The Simple protocol in Avro: one record a message, with one event.

Authority: docs/protocols/simple.md, which lays the records out as TiCDC's encoders write them; the
meaning is that of Simple's JSON. Rows are Avro maps, in random order: the columns of a shape are
sorted by name, as they are in JSON, and so they are written. A message decodes completely or not at
all.
"""

from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, UINT32_MAX
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcmp, memcpy, memset

from tidegate.model import EncodeError, SchemaNotSeen
from tidegate.wire.simple import encode as shared

from tidegate.wire.batch.builder cimport Decoder as BatchDecoder
from tidegate.wire.simple.encode cimport Encoder as SimpleEncoder
from tidegate.wire.simple.encode cimport Plan as SimplePlan
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
    Extra,
    Message,
    Row,
    ShapeColumn,
    bit_at,
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
    cell_end,
    cell_null,
    cells_reserve,
)
from tidegate.wire.kernel.cursor cimport (
    FAULT_COLUMNS,
    FAULT_DUPLICATE,
    FAULT_EMPTY,
    FAULT_LENGTH,
    FAULT_MEMORY,
    FAULT_MISSING,
    FAULT_NONE,
    FAULT_RANGE,
    FAULT_TEMPORAL,
    FAULT_TRAILING,
    FAULT_TRUNCATED,
    FAULT_TYPE,
    FAULT_UNION,
    FAULT_UTF8,
    FAULT_VALUE,
    FAULT_VERSION,
    TG_LIKELY,
    TG_UNLIKELY,
    Cursor,
    Span,
    fail,
    fail_at,
    left,
    read_u8,
    read_uvarint,
    read_varint,
    take,
    tg_copy,
    tg_same,
    unzigzag,
    zigzag,
)
from tidegate.wire.kernel.jsonwrite cimport STYLE_ENCODING_JSON, json_put_body, json_put_string, put_i64
from tidegate.wire.kernel.text cimport (
    tg_base64_decode,
    tg_base64_encode,
    tg_format_double,
    tg_format_float,
    tg_format_i64,
    tg_format_u64,
    tg_hash,
    tg_load_le64,
    tg_parse_double,
    tg_parse_float,
    tg_parse_i64,
    tg_parse_u64,
    tg_utf8_rune,
    tg_utf8_valid,
)
from tidegate.wire.kernel.values cimport (
    FORM_BINARY,
    FORM_DOUBLE,
    FORM_FLOAT,
    FORM_INTEGER,
    FORM_NULL,
    FORM_UNKNOWN,
    FORM_UNSIGNED,
    FORM_YEAR,
    bits_of,
    form_of,
    signed_fits,
    tg_copy_high,
    tg_datetime_valid,
    unsigned_fits,
)

OPTIONS = shared.OPTIONS

cdef extern from "_avro.h" nogil:
    size_t TG_AVRO_AHEAD
    size_t tg_varint_at(const uint8_t *p, uint64_t *out) noexcept
    uint8_t *tg_put_varint(uint8_t *dst, uint64_t value) noexcept
    uint64_t tg_name_word(const uint8_t *p, size_t n) noexcept
    size_t tg_value_size(const uint8_t *p, unsigned int kind, size_t zone) noexcept

cdef enum:
    MESSAGE_INDEX = 11      # of Message in the outermost union
    VERSION = 1

# MessageType, and the index of the payload
cdef enum:
    WATERMARK = 0
    BOOTSTRAP = 1
    DDL = 2
    DML = 3

# DMLType
cdef enum:
    INSERT = 0
    UPDATE = 1
    DELETE = 2

# The union of a row's values: the index as it stands in a message, zigzag.
cdef enum:
    VALUE_NULL = 0
    VALUE_LONG = 2
    VALUE_FLOAT = 4
    VALUE_DOUBLE = 6
    VALUE_STRING = 8
    VALUE_BYTES = 10
    VALUE_TIMESTAMP = 12
    VALUE_UNSIGNED = 14

cdef enum:
    INTEGER_ROOM = 24       # the longest texts of numbers
    DOUBLE_ROOM = 400
    PREDICTIONS = 4         # how many column lists of one table are tried on a message
    # What is remembered, at most: more is decoded all the same, but not predicted.
    NAME_SIZE = 64
    HEAD_SIZE = 1024
    COLUMNS = 1024
    ZONED_COLUMNS = 64      # the bits of ZoneShape.zones
    CHAIN = 8

# DDLType
_DDL_TYPES = (b"CREATE", b"ALTER", b"ERASE", b"RENAME", b"TRUNCATE", b"CINDEX", b"DINDEX", b"QUERY")
cdef Span _ddl_types[8]
cdef Span TIMESTAMP

_kept_alive = [b"timestamp"]
TIMESTAMP.p = <const uint8_t *><const char *>_kept_alive[0]
TIMESTAMP.n = 9
for _i in range(8):
    _ddl_types[<int>_i].p = <const uint8_t *><const char *>_DDL_TYPES[_i]
    _ddl_types[<int>_i].n = len(_DDL_TYPES[_i])


# --- Avro's primitives ----------------------------------------------------------------------------

cdef inline int _read_length(Cursor *c, size_t *out) noexcept nogil:
    """A length of bytes that are there."""
    cdef const uint8_t *at = c.p
    cdef uint64_t raw = 0
    if read_uvarint(c, &raw) < 0:
        return -1
    if raw & 1 or raw >> 1 > left(c):
        return fail_at(c, FAULT_LENGTH, at)
    out[0] = raw >> 1
    return 0


cdef inline int _read_sized(Cursor *c, Span *out) noexcept nogil:
    """A string or bytes."""
    if _read_length(c, &out.n) < 0:
        return -1
    out.p = c.p
    c.p += out.n
    return 0


cdef inline int _read_text(Cursor *c, Span *out) noexcept nogil:
    if _read_sized(c, out) < 0:
        return -1
    if not tg_utf8_valid(out.p, out.n):
        return fail_at(c, FAULT_UTF8, out.p)
    return 0


cdef inline int _read_index(Cursor *c, uint64_t choices, uint64_t *out) noexcept nogil:
    """The index of a union's branch, or of an enum's symbol."""
    cdef const uint8_t *at = c.p
    if read_uvarint(c, out) < 0:
        return -1
    if out[0] & 1 or out[0] >> 1 >= choices:
        return fail_at(c, FAULT_UNION, at)
    out[0] >>= 1
    return 0


cdef inline int _read_int(Cursor *c, int64_t *out) noexcept nogil:
    """Avro's int."""
    cdef const uint8_t *at = c.p
    if read_varint(c, out) < 0:
        return -1
    if out[0] > INT32_MAX or out[0] < INT32_MIN:
        return fail_at(c, FAULT_RANGE, at)
    return 0


cdef inline int _read_bounded(Cursor *c, int64_t most, int64_t *out) noexcept nogil:
    """A long from 0 to `most`."""
    cdef const uint8_t *at = c.p
    if read_varint(c, out) < 0:
        return -1
    if out[0] < 0 or out[0] > most:
        return fail_at(c, FAULT_RANGE, at)
    return 0


cdef inline int _read_bool(Cursor *c, bint *out) noexcept nogil:
    cdef uint8_t byte = 0
    if read_u8(c, &byte) < 0:
        return -1
    if byte > 1:
        return fail_at(c, FAULT_TYPE, c.p - 1)
    out[0] = byte
    return 0


cdef struct Block:
    uint64_t count          # of the items that follow; 0: the array or map ends here
    const uint8_t *end      # where they must end; NULL: anywhere


cdef inline int _read_block(Cursor *c, Block *out) noexcept nogil:
    """The head of a block of items. A negative count is followed by their size."""
    cdef int64_t count = 0
    cdef size_t size
    out.end = NULL
    if read_varint(c, &count) < 0:
        return -1
    out.count = <uint64_t>count
    if count < 0:
        if _read_length(c, &size) < 0:
            return -1
        out.count = 0 - <uint64_t>count
        out.end = c.p + size
    return 0


cdef inline int _end_block(Cursor *c, const Block *block) noexcept nogil:
    if block.end != NULL and block.end != c.p:
        return fail(c, FAULT_LENGTH)
    return 0


# --- table schemas: Avro in, Simple's JSON out ----------------------------------------------------

cdef inline int _put(Cursor *c, Buffer *b, const char *text, size_t n) noexcept nogil:
    if buffer_add(b, <const uint8_t *>text, n) < 0:
        return fail(c, FAULT_MEMORY)
    return 0


cdef int _put_span(Cursor *c, Buffer *b, const Span *text) noexcept nogil:
    if json_put_string(b, text.p, text.n, text.p + text.n, STYLE_ENCODING_JSON) < 0:
        return fail(c, FAULT_MEMORY)
    return 0


cdef int _put_text(Cursor *c, Buffer *b) noexcept nogil:
    cdef Span text
    if _read_text(c, &text) < 0:
        return -1
    return _put_span(c, b, &text)


cdef int _put_long(Cursor *c, Buffer *b, int64_t number) noexcept nogil:
    if put_i64(b, number) < 0:
        return fail(c, FAULT_MEMORY)
    return 0


cdef int _put_bool(Cursor *c, Buffer *b) noexcept nogil:
    cdef bint value
    if _read_bool(c, &value) < 0:
        return -1
    return _put(c, b, b"true", 4) if value else _put(c, b, b"false", 5)


cdef int _put_texts(Cursor *c, Buffer *b) noexcept nogil:
    """An array of strings."""
    cdef Block block
    cdef bint first = True
    if _put(c, b, b"[", 1) < 0:
        return -1
    while True:
        if _read_block(c, &block) < 0:
            return -1
        if block.count == 0:
            return _put(c, b, b"]", 1)
        while block.count:
            if not first and _put(c, b, b",", 1) < 0:
                return -1
            if _put_text(c, b) < 0:
                return -1
            first = False
            block.count -= 1
        if _end_block(c, &block) < 0:
            return -1


cdef inline bint _is(const Span *text, const char *word, size_t n) noexcept nogil:
    return text.n == n and memcmp(text.p, word, n) == 0


cdef int64_t _fraction_of(const Span *type, int64_t length) noexcept nogil:
    """The digits behind a time's seconds, from its display width: Avro's `decimal` tells only those
    of DECIMAL (and of TIMESTAMP, in the new architecture)."""
    cdef int64_t digits = 0
    if _is(type, b"datetime", 8) or _is(type, b"timestamp", 9):
        digits = length - 20    # YYYY-MM-DD HH:MM:SS.
    elif _is(type, b"time", 4):
        digits = length - 11    # -HHH:MM:SS.
    return digits if 0 < digits <= 6 else 0


cdef int _put_default(Cursor *c, Buffer *b, const Span *type) noexcept nogil:
    """Avro has a BIT's default as its bytes, most significant first; JSON has the number. Of other
    types it is a string, but nobody has made sure that it is UTF-8: what is not is replaced, as
    Go does in JSON."""
    cdef Span text
    cdef uint64_t bits = 0
    cdef uint32_t rune = 0
    cdef size_t i = 0
    cdef int length
    if _read_sized(c, &text) < 0:
        return -1
    if _is(type, b"bit", 3) and 0 < text.n <= 8:
        for i in range(text.n):
            bits = bits << 8 | text.p[i]
        if buffer_reserve(b, INTEGER_ROOM) < 0:
            return fail(c, FAULT_MEMORY)
        b.used += tg_format_u64(bits, b.data + b.used)
        return 0
    if tg_utf8_valid(text.p, text.n):
        return _put_span(c, b, &text)
    if _put(c, b, b'"', 1) < 0:
        return -1
    while i < text.n:
        length = tg_utf8_rune(text.p + i, text.n - i, &rune)
        if length == 0:
            if _put(c, b, b"\\ufffd", 6) < 0:
                return -1
            i += 1
        else:
            if json_put_body(b, text.p + i, length, text.p + text.n, STYLE_ENCODING_JSON) < 0:
                return fail(c, FAULT_MEMORY)
            i += length
    return _put(c, b, b'"', 1)


cdef int _put_type(Cursor *c, Buffer *b, Span *type) noexcept nogil:
    """DataType. What is zero or false is left out in JSON."""
    cdef int64_t length = 0, decimals = 0
    cdef uint64_t given = 0
    cdef bint flag
    if _put(c, b, b'{"mysqlType":', 13) < 0 or \
            _read_text(c, type) < 0 or _put_span(c, b, type) < 0 or \
            _put(c, b, b',"charset":', 11) < 0 or _put_text(c, b) < 0 or \
            _put(c, b, b',"collate":', 11) < 0 or _put_text(c, b) < 0 or \
            read_varint(c, &length) < 0:
        return -1
    if length and (_put(c, b, b',"length":', 10) < 0 or _put_long(c, b, length) < 0):
        return -1
    if _read_index(c, 2, &given) < 0:
        return -1
    if not given:
        decimals = _fraction_of(type, length)
    elif _read_int(c, &decimals) < 0:
        return -1
    if decimals and (_put(c, b, b',"decimal":', 11) < 0 or _put_long(c, b, decimals) < 0):
        return -1
    if _read_index(c, 2, &given) < 0:
        return -1
    if given and (_put(c, b, b',"elements":', 12) < 0 or _put_texts(c, b) < 0):
        return -1
    if _read_index(c, 2, &given) < 0:
        return -1
    if given:
        if _read_bool(c, &flag) < 0 or (flag and _put(c, b, b',"unsigned":true', 16) < 0):
            return -1
    if _read_index(c, 2, &given) < 0:
        return -1
    if given:
        if _read_bool(c, &flag) < 0 or (flag and _put(c, b, b',"zerofill":true', 16) < 0):
            return -1
    return _put(c, b, b'}', 1)


cdef int _put_column(Cursor *c, Buffer *b) noexcept nogil:
    """ColumnSchema."""
    cdef Span type
    cdef uint64_t given = 0
    if _put(c, b, b'{"name":', 8) < 0 or _put_text(c, b) < 0 or \
            _put(c, b, b',"dataType":', 12) < 0 or _put_type(c, b, &type) < 0 or \
            _put(c, b, b',"nullable":', 12) < 0 or _put_bool(c, b) < 0 or \
            _put(c, b, b',"default":', 11) < 0 or _read_index(c, 2, &given) < 0:
        return -1
    if given:
        if _put_default(c, b, &type) < 0:
            return -1
    elif _put(c, b, b"null", 4) < 0:
        return -1
    return _put(c, b, b"}", 1)


cdef int _put_index(Cursor *c, Buffer *b) noexcept nogil:
    """IndexSchema."""
    if _put(c, b, b'{"name":', 8) < 0 or _put_text(c, b) < 0 or \
            _put(c, b, b',"unique":', 10) < 0 or _put_bool(c, b) < 0 or \
            _put(c, b, b',"primary":', 11) < 0 or _put_bool(c, b) < 0 or \
            _put(c, b, b',"nullable":', 12) < 0 or _put_bool(c, b) < 0 or \
            _put(c, b, b',"columns":', 11) < 0 or _put_texts(c, b) < 0:
        return -1
    return _put(c, b, b"}", 1)


cdef int _put_items(Cursor *c, Buffer *b, bint columns) noexcept nogil:
    """The array of a table's columns or indexes."""
    cdef Block block
    cdef bint first = True
    if _put(c, b, b"[", 1) < 0:
        return -1
    while True:
        if _read_block(c, &block) < 0:
            return -1
        if block.count == 0:
            return _put(c, b, b"]", 1)
        while block.count:
            if not first and _put(c, b, b",", 1) < 0:
                return -1
            if (_put_column(c, b) if columns else _put_index(c, b)) < 0:
                return -1
            first = False
            block.count -= 1
        if _end_block(c, &block) < 0:
            return -1


cdef int _put_schema(Cursor *c, Buffer *b, SchemaFacts *facts) noexcept nogil:
    """TableSchema. JSON calls the database `schema`."""
    if _read_text(c, &facts.database) < 0 or _read_text(c, &facts.table) < 0 or \
            read_varint(c, &facts.table_id) < 0 or \
            _read_bounded(c, INT64_MAX, &facts.version) < 0:
        return -1
    if _put(c, b, b'{"schema":', 10) < 0 or _put_span(c, b, &facts.database) < 0 or \
            _put(c, b, b',"table":', 9) < 0 or _put_span(c, b, &facts.table) < 0 or \
            _put(c, b, b',"tableID":', 11) < 0 or _put_long(c, b, facts.table_id) < 0 or \
            _put(c, b, b',"version":', 11) < 0 or _put_long(c, b, facts.version) < 0 or \
            _put(c, b, b',"columns":', 11) < 0 or _put_items(c, b, True) < 0 or \
            _put(c, b, b',"indexes":', 11) < 0 or _put_items(c, b, False) < 0:
        return -1
    return _put(c, b, b"}", 1)


# --- values ---------------------------------------------------------------------------------------

cdef int _skip_value(Cursor *c) noexcept nogil:
    cdef uint64_t index = 0
    cdef size_t n = 0
    if _read_index(c, 8, &index) < 0:
        return -1
    index <<= 1
    if index == VALUE_NULL:
        return 0
    if index == VALUE_LONG or index == VALUE_UNSIGNED:
        return read_uvarint(c, &index)
    if index == VALUE_FLOAT or index == VALUE_DOUBLE:
        n = 4 if index == VALUE_FLOAT else 8
        if left(c) < n:
            return fail(c, FAULT_TRUNCATED)
    else:
        if _read_length(c, &n) < 0:
            return -1
        if index == VALUE_TIMESTAMP:
            c.p += n
            if _read_length(c, &n) < 0:
                return -1
    c.p += n
    return 0


cdef inline int _cell(Cursor *c, Cells *cells, size_t room, Span *location) noexcept nogil:
    """The value at the cursor as the next cell; of a Timestamp also its location.

    `room` bytes of text are reserved for the whole map, and the cells.
    """
    cdef uint8_t *text = cells.text.data + cells.text.used
    cdef uint64_t index = 0, raw = 0
    cdef uint32_t raw_float
    cdef double real
    cdef float short_real
    cdef Span span
    cdef int length
    if TG_LIKELY(c.p < c.end and c.p[0] <= VALUE_UNSIGNED and not c.p[0] & 1):
        index = c.p[0]
        c.p += 1
    else:
        if _read_index(c, 8, &index) < 0:
            return -1
        index <<= 1
    if index == VALUE_STRING:
        if _read_sized(c, &span) < 0:
            return -1
        if TG_UNLIKELY(tg_copy_high(text, span.p, span.n, c.limit)) and \
                not tg_utf8_valid(span.p, span.n):
            return fail_at(c, FAULT_UTF8, span.p)
        cells.text.used += span.n
    elif index == VALUE_LONG:
        if read_uvarint(c, &raw) < 0:
            return -1
        cells.text.used += tg_format_i64(unzigzag(raw), text)
    elif index == VALUE_NULL:
        cell_null(cells)
        return 0
    elif index == VALUE_UNSIGNED:
        if read_uvarint(c, &raw) < 0:
            return -1
        cells.text.used += tg_format_u64(<uint64_t>unzigzag(raw), text)
    elif index == VALUE_TIMESTAMP:
        if _read_sized(c, location) < 0 or _read_sized(c, &span) < 0:
            return -1
        if not tg_datetime_valid(span.p, span.n):
            return fail_at(c, FAULT_TEMPORAL, span.p)
        tg_copy(text, span.p, span.n, c.limit)
        cells.text.used += span.n
    elif index == VALUE_BYTES:
        if _read_sized(c, &span) < 0:
            return -1
        cells.text.used += tg_base64_encode(span.p, span.n, text)
    else:
        if buffer_reserve(&cells.text, room + DOUBLE_ROOM) < 0:
            return fail(c, FAULT_MEMORY)
        text = cells.text.data + cells.text.used
        if index == VALUE_DOUBLE:
            if left(c) < 8:
                return fail(c, FAULT_TRUNCATED)
            raw = tg_load_le64(c.p)
            memcpy(&real, &raw, 8)
            length = tg_format_double(real, text)
            raw = 8
        else:
            if left(c) < 4:
                return fail(c, FAULT_TRUNCATED)
            raw_float = <uint32_t>c.p[0] | <uint32_t>c.p[1] << 8 | <uint32_t>c.p[2] << 16 | \
                <uint32_t>c.p[3] << 24
            memcpy(&short_real, &raw_float, 4)
            length = tg_format_float(short_real, text)
            raw = 4
        if length < 0:
            return fail(c, FAULT_VALUE)
        c.p += raw
        cells.text.used += length
    cell_end(cells)
    return 0


cdef int _by_name(const void *a, const void *b) noexcept nogil:
    """Bytewise order of two entries, the earlier in the message first where the names are equal."""
    cdef const Entry *first = <const Entry *>a
    cdef const Entry *second = <const Entry *>b
    cdef size_t n = first.name.n if first.name.n < second.name.n else second.name.n
    cdef int order = memcmp(first.name.p, second.name.p, n)
    if order != 0:
        return order
    if first.name.n != second.name.n:
        return 1 if first.name.n > second.name.n else -1
    return (first.name.p > second.name.p) - (first.name.p < second.name.p)


cdef inline bint _same(const Span *a, const Span *b) noexcept nogil:
    return a.n == b.n and memcmp(a.p, b.p, a.n) == 0


cdef inline Entry *_entries_of(const Buffer *b) noexcept nogil:
    return <Entry *>b.data


cdef inline int32_t _count_of(const Buffer *b) noexcept nogil:
    return <int32_t>(b.used // sizeof(Entry))


cdef int _sort(Cursor *c, Buffer *entries) noexcept nogil:
    """Brings the entries into the order of their names, of which each may be there once."""
    cdef Entry *all = _entries_of(entries)
    cdef int32_t i
    if entries.used == 0:
        return 0
    qsort(all, _count_of(entries), sizeof(Entry), _by_name)
    for i in range(1, _count_of(entries)):
        if _same(&all[i - 1].name, &all[i].name):
            return fail_at(c, FAULT_DUPLICATE, all[i].name.p)
    return 0


# --- the decoder ----------------------------------------------------------------------------------

cdef class Decoder(BatchDecoder):
    """Decodes messages of the Simple protocol's Avro encoding."""

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.table_count):
            free(self.tables[i])
        buffer_free(&self.data)
        buffer_free(&self.old)
        buffer_free(&self.places)
        buffer_free(&self.columns)
        buffer_free(&self.text)

    cdef int message(self, Message *m, Cursor *c) noexcept nogil:
        cdef uint64_t type = 0, payload = 0
        cdef int64_t version = 0
        cdef const uint8_t *at = c.p
        cdef int read
        if m.value == NULL or m.value_size == 0:
            return fail(c, FAULT_EMPTY)
        if _read_index(c, MESSAGE_INDEX + 1, &type) < 0:
            return -1
        if type != MESSAGE_INDEX:
            return fail_at(c, FAULT_UNION, at)
        if _read_index(c, 4, &type) < 0:
            return -1
        at = c.p
        if _read_index(c, 4, &payload) < 0:
            return -1
        if type != payload:
            return fail_at(c, FAULT_UNION, at)
        at = c.p
        if _read_int(c, &version) < 0:
            return -1
        if version != VERSION:
            return fail_at(c, FAULT_VERSION, at)
        if type == DML:
            return self._row(c)
        if type == WATERMARK:
            read = self._watermark(c)
        elif type == DDL:
            read = self._ddl(c)
        else:
            read = self._bootstrap(c)
        if read == 0 and c.p != c.end:
            return fail(c, FAULT_TRAILING)
        return read

    cdef int _watermark(self, Cursor *c) noexcept nogil:
        cdef Row row
        cdef int64_t build_ts = 0
        row_init(&row, KIND_WATERMARK)
        if _read_bounded(c, INT64_MAX, &row.commit_ts) < 0 or read_varint(c, &build_ts) < 0:
            return -1
        row.has = HAS_COMMIT_TS
        return self.out.add_row(c, &row)

    cdef int _bootstrap(self, Cursor *c) noexcept nogil:
        cdef Row row
        cdef SchemaFacts facts
        cdef int64_t build_ts = 0
        row_init(&row, KIND_SCHEMA)
        self.text.used = 0
        if read_varint(c, &build_ts) < 0 or _put(c, &self.text, b'{"tableSchema":', 15) < 0 or \
                _put_schema(c, &self.text, &facts) < 0 or _put(c, &self.text, b"}", 1) < 0:
            return -1
        return self._schema_row(c, &row, &facts)

    cdef int _ddl(self, Cursor *c) noexcept nogil:
        cdef Row row
        cdef Extra *extra
        cdef SchemaFacts facts, before
        cdef Span query
        cdef int64_t build_ts = 0
        cdef uint64_t type = 0, given = 0, given_before = 0
        row_init(&row, KIND_DDL)
        self.text.used = 0
        if _read_index(c, 8, &type) < 0 or _read_text(c, &query) < 0 or \
                _read_bounded(c, INT64_MAX, &row.commit_ts) < 0 or \
                read_varint(c, &build_ts) < 0 or _read_index(c, 2, &given) < 0:
            return -1
        row.has = HAS_COMMIT_TS
        if given and (_put(c, &self.text, b'{"tableSchema":', 15) < 0 or
                      _put_schema(c, &self.text, &facts) < 0):
            return -1
        if _read_index(c, 2, &given_before) < 0:
            return -1
        if given_before and (_put(c, &self.text, b',' if given else b'{', 1) < 0 or
                             _put(c, &self.text, b'"preTableSchema":', 17) < 0 or
                             _put_schema(c, &self.text, &before) < 0):
            return -1
        extra = self.out.new_extra(&row)
        if extra == NULL or self.out.keep(&query, &extra.query) < 0:
            return fail(c, FAULT_MEMORY)
        extra.ddl_type = _ddl_types[type]
        if not given and not given_before:
            return self.out.add_row(c, &row)    # a statement on a whole database: no names
        if _put(c, &self.text, b"}", 1) < 0:
            return -1
        return self._schema_row(c, &row, &facts if given else &before)

    cdef int _schema_row(self, Cursor *c, Row *row, const SchemaFacts *facts) noexcept nogil:
        """Ends a row that brings the schema in `text` and is about the table of `facts`."""
        cdef Extra *extra = self.out.new_extra(row)
        cdef Span text, database = facts.database, table = facts.table
        text.p = self.text.data
        text.n = self.text.used
        if extra == NULL or self.out.keep(&text, &extra.schema) < 0:
            return fail(c, FAULT_MEMORY)
        if database.n == 0:
            database.p = NULL
        if table.n == 0:
            table.p = NULL
        row.names = self.out.intern_names(&database, &table)
        if row.names < 0:
            return fail(c, FAULT_MEMORY)
        row.table_id = facts.table_id
        row.schema_version = facts.version
        row.has |= HAS_TABLE_ID | HAS_SCHEMA_VERSION
        return self.out.add_row(c, row)

    # --- rows ---

    cdef int _row(self, Cursor *c) noexcept nogil:
        cdef RowFacts f
        if self._facts(c, &f) < 0:
            return -1
        return 0 if self._predicted(c, &f) else self._general(c, &f)

    cdef int _facts(self, Cursor *c, RowFacts *f) noexcept nogil:
        """Everything up to the values. The names are not looked at yet, but for their sizes."""
        cdef uint64_t index = 0
        cdef int64_t number = 0
        f.known = self.last
        f.head.p = c.p
        if f.known != NULL and take(c, f.known.head.p, f.known.head.n):
            f.head.n = f.known.head.n
        else:
            f.known = NULL
            if _read_sized(c, &f.database) < 0 or _read_sized(c, &f.table) < 0:
                return -1
            f.head.n = <size_t>(c.p - f.head.p)
        if read_varint(c, &f.table_id) < 0 or _read_index(c, 3, &index) < 0:
            return -1
        f.type = <int>index
        if _read_bounded(c, INT64_MAX, &f.commit_ts) < 0 or read_varint(c, &number) < 0 or \
                _read_bounded(c, INT64_MAX, &f.schema_version) < 0:
            return -1
        f.claim_check.n = 0
        f.handle_key_only = False
        f.has_checksum = False
        if TG_LIKELY(left(c) >= 3 and (c.p[0] | c.p[1] | c.p[2]) == 0):
            c.p += 3
            return 0
        if _read_index(c, 2, &index) < 0 or (index and _read_text(c, &f.claim_check) < 0):
            return -1
        if _read_index(c, 2, &index) < 0 or (index and _read_bool(c, &f.handle_key_only) < 0):
            return -1
        if _read_index(c, 2, &index) < 0:
            return -1
        if index:
            f.has_checksum = True
            if _read_int(c, &number) < 0 or _read_bool(c, &f.checksum.corrupted) < 0 or \
                    _read_bounded(c, UINT32_MAX, &f.checksum.current) < 0 or \
                    _read_bounded(c, UINT32_MAX, &f.checksum.previous) < 0:
                return -1
            f.checksum.version = <int32_t>number
        return 0

    cdef int _add(self, Cursor *c, RowFacts *f, Row *row) noexcept nogil:
        """Ends a row change whose kind, shape and cells are there."""
        cdef Extra *extra
        row.commit_ts = f.commit_ts
        row.table_id = f.table_id
        row.schema_version = f.schema_version
        row.has |= HAS_COMMIT_TS | HAS_TABLE_ID | HAS_SCHEMA_VERSION
        # TiCDC marks claim checks as handle-key-only too.
        if f.claim_check.n:
            row.flags |= FLAG_CLAIM_CHECK
        elif f.handle_key_only:
            row.flags |= FLAG_HANDLE_KEY_ONLY
        if f.claim_check.n or f.has_checksum:
            extra = self.out.new_extra(row)
            if extra == NULL or \
                    (f.claim_check.n and self.out.keep(&f.claim_check, &extra.claim_check) < 0):
                return fail(c, FAULT_MEMORY)
            if f.has_checksum:
                extra.has_checksum = True
                extra.checksum = f.checksum
                row.flags |= FLAG_CHECKSUM
                if f.checksum.corrupted:
                    row.flags |= FLAG_CORRUPTED
        return self.out.add_row(c, row)

    # The quick way: the columns of a table seen before, in any order.

    cdef bint _predicted(self, Cursor *c, RowFacts *f) noexcept nogil:
        """Whether the values were as predicted; otherwise nothing has happened."""
        cdef const uint8_t *map = c.p + (2 if f.type == DELETE else 1)
        cdef uint64_t hash, raw = 0
        cdef Table *t
        cdef int tries = 1
        if <size_t>(c.limit - c.end) < TG_AVRO_AHEAD or map >= c.end:
            return False
        if tg_varint_at(map, &raw) == 0 or raw & 1:
            return False
        raw >>= 1
        if f.known != NULL and <uint64_t>f.known.count == raw and self._try(c, f, f.known):
            return True
        hash = tg_hash(f.head.p, f.head.n, 0) if f.known == NULL else f.known.hash
        t = self.buckets[hash & (TABLE_BUCKETS - 1)]
        while t != NULL and tries < PREDICTIONS:
            if t != f.known and t.hash == hash and <uint64_t>t.count == raw and \
                    _same(&t.head, &f.head):
                if self._try(c, f, t):
                    return True
                tries += 1
            t = t.next
        return False

    cdef bint _try(self, Cursor *c, RowFacts *f, Table *t) noexcept nogil:
        """Whether the values are those of this table; otherwise nothing has happened."""
        cdef const uint8_t *values = c.p
        if self._predicted_values(c, f, t):
            self.clock += 1
            t.used = self.clock
            self.last = t
            return True
        self.out.rollback()
        c.fault = FAULT_NONE
        c.p = values
        return False

    cdef bint _predicted_values(self, Cursor *c, RowFacts *f, Table *t) noexcept nogil:
        cdef Place *after
        cdef Place *before
        cdef const uint8_t *end = c.end
        cdef size_t room = 2 * left(c) + INTEGER_ROOM * <size_t>t.count
        cdef uint64_t zones = 0
        cdef Row row
        if buffer_reserve(&self.places, 2 * <size_t>t.count * sizeof(Place)) < 0:
            return False
        after = <Place *>self.places.data
        before = after + t.count
        memset(after, 0, 2 * <size_t>t.count * sizeof(Place))
        row_init(&row, KIND_INSERT)
        if not self._find(c, t, after, f.type != DELETE) or \
                not self._find(c, t, before, f.type != INSERT) or c.p != end:
            return False
        if f.type != DELETE:
            row.has |= HAS_AFTER
            if not self._predicted_cells(c, t, &self.out.after, after, room, &zones):
                return False
        if f.type != INSERT:
            row.kind = KIND_UPDATE if f.type == UPDATE else KIND_DELETE
            row.has |= HAS_BEFORE
            if not self._predicted_cells(c, t, &self.out.before, before, room, &zones):
                return False
        c.p = end
        row.shape = self._zone_shape(c, t, zones)
        return row.shape >= 0 and self._add(c, f, &row) == 0

    cdef bint _find(self, Cursor *c, Table *t, Place *places, bint wanted) noexcept nogil:
        """Finds the value of every column in the map here; if none is wanted, that there is none.
        TG_AVRO_AHEAD bytes behind the message may be read."""
        cdef const uint8_t *p = c.p
        cdef const uint8_t *end = c.end
        cdef TableColumn *columns = t.columns
        cdef uint64_t factor = t.factor, raw = 0
        cdef unsigned int shift = t.shift
        cdef size_t zone = t.zone.n
        cdef size_t n
        cdef uint16_t column
        cdef int32_t i
        if p >= end or p[0] != (2 if wanted else 0):
            return False
        p += 1
        c.p = p
        if not wanted:
            return True
        n = tg_varint_at(p, &raw)
        if n == 0 or raw != <uint64_t>t.count << 1:
            return False
        p += n
        for i in range(t.count):
            # The name: its length in one byte, as all remembered names are shorter than 64.
            n = p[0]
            if p >= end or n >= 2 * NAME_SIZE or n & 1:
                return False
            column = t.index[(tg_name_word(p + 1, n >> 1) * factor) >> shift]
            n = (n >> 1) + 1
            if <size_t>(end - p) <= n:
                return False
            while True:
                if column == 0:
                    return False
                column -= 1
                if columns[column].literal.n == n and \
                        tg_same(p, columns[column].literal.p, n, c.limit):
                    break
                column = t.chain[column]
            p += n
            if places[column].value != NULL or p[0] > VALUE_UNSIGNED or p[0] & 1:
                return False
            places[column].value = p
            n = tg_value_size(p + 1, p[0], zone) + 1
            if n > <size_t>(end - p):
                return False
            p += n
            places[column].end = p
        if p >= end or p[0] != 0:
            return False
        c.p = p + 1
        return True

    cdef bint _predicted_cells(self, Cursor *c, Table *t, Cells *cells, const Place *places,
                               size_t room, uint64_t *zones) noexcept nogil:
        cdef int32_t i
        cdef Span location
        if cells_reserve(cells, t.count) < 0 or buffer_reserve(&cells.text, room) < 0:
            return False
        location.p = NULL
        for i in range(t.count):
            c.p = places[i].value
            if _cell(c, cells, room, &location) < 0 or c.p != places[i].end:
                return False
            if location.p != NULL:
                if t.columns[i].zone_bit == 0 or not _same(&location, &t.location):
                    return False
                zones[0] |= t.columns[i].zone_bit
                location.p = NULL
        return True

    cdef int32_t _zone_shape(self, Cursor *c, Table *t, uint64_t zones) noexcept nogil:
        """The shape with a zone at these columns. -1: a fault."""
        cdef ShapeColumn *columns
        cdef ZoneShape *known
        cdef uint32_t i
        cdef int32_t k
        for i in range(t.zone_shape_count):
            if t.zone_shapes[i].zones == zones:
                return t.zone_shapes[i].shape
        if buffer_reserve(&self.columns, <size_t>t.count * sizeof(ShapeColumn)) < 0:
            return fail(c, FAULT_MEMORY)
        columns = <ShapeColumn *>self.columns.data
        for k in range(t.count):
            _plain_column(&columns[k], &t.columns[k].name)
            if t.columns[k].zone_bit & zones:
                columns[k].type = TIMESTAMP
                columns[k].zone = t.location
        known = &t.zone_shapes[t.zone_shape_next]
        known.shape = self.out.register_shape(c, &t.database, &t.table, columns, t.count)
        known.zones = zones
        if known.shape < 0:
            return -1
        t.zone_shape_next = (t.zone_shape_next + 1) % ZONE_SHAPES
        if t.zone_shape_count < ZONE_SHAPES:
            t.zone_shape_count += 1
        return known.shape

    # The general way: any columns.

    cdef int _general(self, Cursor *c, RowFacts *f) noexcept nogil:
        """Any row. The shape's columns are those of `data`, of a DELETE those of `old`."""
        cdef Row row
        cdef uint64_t has_data = 0, has_old = 0
        cdef const uint8_t *end = c.end
        cdef const uint8_t *values = c.p
        cdef Buffer *side = &self.old if f.type == DELETE else &self.data
        cdef ShapeColumn *columns
        cdef int32_t i, count
        self.data.used = 0
        self.old.used = 0
        if f.known != NULL:
            c.p = f.head.p
            _read_sized(c, &f.database)
            _read_sized(c, &f.table)
            c.p = values
        elif not tg_utf8_valid(f.database.p, f.database.n):
            return fail_at(c, FAULT_UTF8, f.database.p)
        elif not tg_utf8_valid(f.table.p, f.table.n):
            return fail_at(c, FAULT_UTF8, f.table.p)
        if _read_index(c, 2, &has_data) < 0 or (has_data and self._entries(c, &self.data) < 0) or \
                _read_index(c, 2, &has_old) < 0 or (has_old and self._entries(c, &self.old) < 0):
            return -1
        if c.p != end:
            return fail(c, FAULT_TRAILING)
        if (f.type == INSERT and self.old.used) or (f.type == DELETE and self.data.used):
            return fail_at(c, FAULT_COLUMNS, values)
        # A claim check's values are elsewhere, so that they need not be here.
        if f.claim_check.n == 0 and ((f.type != DELETE and not has_data) or
                                     (f.type != INSERT and not has_old)):
            return fail_at(c, FAULT_MISSING, values)
        if _sort(c, &self.data) < 0 or _sort(c, &self.old) < 0:
            return -1
        count = _count_of(side)
        if buffer_reserve(&self.columns, <size_t>count * sizeof(ShapeColumn)) < 0:
            return fail(c, FAULT_MEMORY)
        columns = <ShapeColumn *>self.columns.data
        for i in range(count):
            _plain_column(&columns[i], &_entries_of(side)[i].name)
        row_init(&row, KIND_INSERT)
        if f.type != DELETE:
            row.has |= HAS_AFTER
            if self._cells(c, &self.data, count, &self.out.after, &row) < 0:
                return -1
        if f.type != INSERT:
            row.kind = KIND_UPDATE if f.type == UPDATE else KIND_DELETE
            row.has |= HAS_BEFORE
            if self._cells(c, &self.old, count, &self.out.before, &row) < 0:
                return -1
        c.p = end
        row.shape = self.out.register_shape(c, &f.database, &f.table, columns, count)
        if row.shape < 0 or self._add(c, f, &row) < 0:
            return -1
        self._remember(f, count)
        return 0

    cdef int _entries(self, Cursor *c, Buffer *entries) noexcept nogil:
        """A map, in blocks."""
        cdef Block block
        cdef const uint8_t *at
        cdef Entry *entry
        while True:
            at = c.p
            if _read_block(c, &block) < 0:
                return -1
            if block.count == 0:
                return 0
            if block.count > MAX_COLUMNS or \
                    <uint64_t>_count_of(entries) + block.count > MAX_COLUMNS:
                return fail_at(c, FAULT_COLUMNS, at)
            # A name's length and a union index take two bytes.
            if block.count > left(c) // 2:
                return fail_at(c, FAULT_LENGTH, at)
            if buffer_reserve(entries, block.count * sizeof(Entry)) < 0:
                return fail(c, FAULT_MEMORY)
            while block.count:
                entry = <Entry *>(entries.data + entries.used)
                if _read_text(c, &entry.name) < 0:
                    return -1
                entry.value = c.p
                if _skip_value(c) < 0:
                    return -1
                entries.used += sizeof(Entry)
                block.count -= 1
            if _end_block(c, &block) < 0:
                return -1

    cdef int _cells(self, Cursor *c, const Buffer *side, int32_t count, Cells *cells,
                    Row *row) noexcept nogil:
        """The cells of the row's columns from sorted entries, which may lack some of them in an
        update's `old`; zones go to the columns."""
        cdef ShapeColumn *columns = <ShapeColumn *>self.columns.data
        cdef const Entry *entries = _entries_of(side)
        cdef int32_t i, k = 0, present = _count_of(side)
        cdef size_t room = 2 * <size_t>(c.end - c.start) + INTEGER_ROOM * <size_t>count
        cdef uint8_t *missing = NULL
        cdef Span location
        if cells_reserve(cells, count) < 0 or buffer_reserve(&cells.text, room) < 0:
            return fail(c, FAULT_MEMORY)
        if present < count:
            missing = self.out.new_missing(row, count)
            if missing == NULL:
                return fail(c, FAULT_MEMORY)
        for i in range(count):
            if k == present or not _same(&entries[k].name, &columns[i].name):
                if missing == NULL:
                    break
                missing[i >> 3] |= <uint8_t>(1 << (i & 7))
                cell_null(cells)
                continue
            c.p = entries[k].value
            location.p = NULL
            if _cell(c, cells, room, &location) < 0:
                return -1
            if location.p != NULL:
                if location.n == 0:
                    return fail_at(c, FAULT_VALUE, entries[k].value)
                if not tg_utf8_valid(location.p, location.n):
                    return fail_at(c, FAULT_UTF8, location.p)
                if columns[i].zone.n and not _same(&columns[i].zone, &location):
                    return fail_at(c, FAULT_COLUMNS, location.p)
                columns[i].type = TIMESTAMP
                columns[i].zone = location
            k += 1
        if k < present:
            return fail_at(c, FAULT_COLUMNS, entries[k].name.p)
        return 0

    # What is remembered of tables

    cdef void _remember(self, RowFacts *f, int32_t count) noexcept nogil:
        """Remembers the table of the row just read, whose columns are in `columns`, with the zones
        known before. Without memory, nothing is remembered."""
        cdef const ShapeColumn *columns = <const ShapeColumn *>self.columns.data
        cdef Table *fresh
        cdef Table *known
        cdef Table *victim
        cdef int32_t i
        if count == 0 or count > COLUMNS or f.head.n > HEAD_SIZE:
            return
        fresh = _make_table(f, columns, count)
        if fresh == NULL:
            return
        known = self.buckets[fresh.hash & (TABLE_BUCKETS - 1)]
        while known != NULL and not _same_columns(known, fresh):
            known = known.next
        if known != NULL:
            _join_zones(fresh, known)
        victim = known
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
        self.clock += 1
        fresh.used = self.clock
        self.last = fresh

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
        free(t)


cdef inline void _plain_column(ShapeColumn *column, const Span *name) noexcept nogil:
    memset(column, 0, sizeof(ShapeColumn))
    column.name = name[0]
    column.code = -1
    column.flags = -1


cdef bint _same_columns(const Table *a, const Table *b) noexcept nogil:
    cdef int32_t i
    if a.hash != b.hash or a.count != b.count or not _same(&a.head, &b.head):
        return False
    for i in range(a.count):
        if not _same(&a.columns[i].name, &b.columns[i].name):
            return False
    return True


cdef void _join_zones(Table *t, const Table *known) noexcept nogil:
    """Adds the zones of the same table as it was known. A new location makes the old ones void."""
    cdef int32_t i
    if known.zone.n == 0 or (t.zone.n and not _same(&t.zone, &known.zone)):
        return
    if t.zone.n == 0:
        memcpy(<void *>t.zone.p, known.zone.p, known.zone.n)
        t.zone.n = known.zone.n
        t.location.p = t.zone.p + 1
        t.location.n = known.location.n
    for i in range(t.count):
        if known.columns[i].zone_bit and t.columns[i].zone_bit == 0 and t.zones < ZONED_COLUMNS:
            t.columns[i].zone_bit = <uint64_t>1 << t.zones
            t.zones += 1


cdef uint8_t *_keep(uint8_t *text, const uint8_t *p, size_t n, Span *out) noexcept nogil:
    memcpy(text, p, n)
    out.p = text
    out.n = n
    return text + n


cdef Table *_make_table(const RowFacts *f, const ShapeColumn *columns,
                        int32_t count) noexcept nogil:
    """NULL: there is no memory, or the table cannot be predicted."""
    cdef size_t names = 0, size, buckets = 4
    cdef int32_t i
    cdef Table *t
    cdef TableColumn *column
    cdef uint8_t *text
    for i in range(count):
        if columns[i].name.n >= NAME_SIZE or columns[i].zone.n >= NAME_SIZE:
            return NULL
        names += columns[i].name.n + 1
    while buckets < 4 * <size_t>count:
        buckets *= 2
    # Behind the texts 16 bytes may be read by tg_same, and more by the words of names.
    size = sizeof(Table) + count * sizeof(TableColumn) + (buckets + count) * sizeof(uint16_t) + \
        f.head.n + names + NAME_SIZE + TG_AVRO_AHEAD
    t = <Table *>malloc(size)
    if t == NULL:
        return NULL
    memset(t, 0, size)
    t.count = count
    t.columns = <TableColumn *>(t + 1)
    t.index = <uint16_t *>(t.columns + count)
    t.chain = t.index + buckets
    text = <uint8_t *>(t.chain + count)
    t.hash = tg_hash(f.head.p, f.head.n, 0)
    t.database.p = text + (f.database.p - f.head.p)
    t.database.n = f.database.n
    t.table.p = text + (f.table.p - f.head.p)
    t.table.n = f.table.n
    text = _keep(text, f.head.p, f.head.n, &t.head)
    t.zone.p = text
    text += NAME_SIZE + 1
    for i in range(count):
        column = &t.columns[i]
        text[0] = <uint8_t>(2 * columns[i].name.n)
        _keep(text + 1, columns[i].name.p, columns[i].name.n, &column.name)
        column.literal.p = text
        column.literal.n = columns[i].name.n + 1
        text += column.literal.n
        if columns[i].zone.n == 0:
            continue
        if t.zone.n == 0:
            (<uint8_t *>t.zone.p)[0] = <uint8_t>(2 * columns[i].zone.n)
            _keep(<uint8_t *>t.zone.p + 1, columns[i].zone.p, columns[i].zone.n, &t.location)
            t.zone.n = columns[i].zone.n + 1
        if t.zones == ZONED_COLUMNS or not _same(&t.location, &columns[i].zone):
            free(t)
            return NULL
        column.zone_bit = <uint64_t>1 << t.zones
        t.zones += 1
    if _index_names(t, buckets) < 0:
        free(t)
        return NULL
    return t


cdef int _index_names(Table *t, size_t buckets) noexcept nogil:
    """Spreads the names over the buckets with the factor that lets the fewest meet; -1 if too many
    do all the same."""
    cdef uint64_t factor = <uint64_t>0x9e3779b97f4a7c15, best = factor
    cdef int tries = 32 if t.count <= 64 else 1
    cdef int32_t met, fewest = t.count + 1, longest = 0
    t.shift = 64
    while buckets >> (64 - t.shift) > 1:
        t.shift -= 1
    while tries and fewest:
        met = _spread(t, buckets, factor, &longest)
        if met < fewest:
            fewest = met
            best = factor
        factor *= <uint64_t>0xd1342543de82ef95
        tries -= 1
    _spread(t, buckets, best, &longest)
    return -1 if longest > CHAIN else 0


cdef int32_t _spread(Table *t, size_t buckets, uint64_t factor, int32_t *longest) noexcept nogil:
    """Fills the buckets; how many names met others there, and in how large a crowd."""
    cdef int32_t i, met = 0, crowd
    cdef uint16_t other
    cdef size_t bucket
    t.factor = factor
    longest[0] = 0
    memset(t.index, 0, buckets * sizeof(uint16_t))
    for i in range(t.count):
        bucket = (tg_name_word(t.columns[i].name.p, t.columns[i].name.n) * factor) >> t.shift
        t.chain[i] = t.index[bucket]
        t.index[bucket] = <uint16_t>(i + 1)
        crowd = 1
        other = t.chain[i]
        while other and crowd <= CHAIN:
            crowd += 1
            other = t.chain[other - 1]
        met += crowd > 1
        if crowd > longest[0]:
            longest[0] = crowd
    return met


# --- encoding -------------------------------------------------------------------------------------

# How a column's values are written.
cdef enum Write:
    WRITE_SIGNED = 1        # a long
    WRITE_UNSIGNED = 2
    WRITE_BITS = 3          # 64 bits as a long; a text from Avro itself may be signed
    WRITE_BITS_TEXT = 4     # the same as a string
    WRITE_BIGINT = 5        # UnsignedBigint
    WRITE_FLOAT = 6
    WRITE_DOUBLE = 7
    WRITE_TEXT = 8          # a string, or the text of a Timestamp
    WRITE_BYTES = 9


cdef struct PlanColumn:
    int32_t index           # in the row
    int32_t write
    int32_t bits            # of a number
    bint is_key
    const uint8_t *literal  # the name and the union index, of a Timestamp also the location
    uint32_t size
    uint32_t bare           # of the name alone


cdef class Plan(SimplePlan):
    cdef PlanColumn *columns
    cdef list names
    cdef int32_t keys
    cdef bytes head         # up to the names of database and table
    cdef bytes tail         # build time and schema version
    cdef bytes literals
    cdef const uint8_t *limit
    cdef size_t room        # what a row may need beyond twice its texts

    def __dealloc__(self):
        free(self.columns)


def _long(number) -> bytes:
    """Avro's int and long: zigzag, then seven bits a byte."""
    raw = number << 1 ^ number >> 63
    groups = bytearray()
    while raw > 0x7f:
        groups.append(raw & 0x7f | 0x80)
        raw >>= 7
    groups.append(raw)
    return bytes(groups)


def _sized(content) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return _long(len(content)) + content


def _array(items) -> bytes:
    return (_long(len(items)) + b"".join(items) if items else b"") + b"\0"


def _optional(content) -> bytes:
    """A union of null and something else."""
    return b"\0" if content is None else b"\2" + content


def _bool(value) -> bytes:
    return b"\1" if value else b"\0"


_WITH_SIGN = frozenset(
    "tinyint smallint mediumint int bigint decimal float double bit year".split()
)


def _data_type(told, generation) -> bytes:
    """DataType. What TiCDC's classic architecture leaves out is null here as well."""
    name = told["mysqlType"]
    decimals = told.get("decimal")
    is_told = name == "decimal" or (name == "timestamp" and generation == "new")
    # The digits behind a time's seconds follow from its length, if that is known.
    if not is_told and (told.get("length") or not decimals):
        decimals = None
    elif decimals is None:
        decimals = 0
    elements = told.get("elements")
    if elements is None and name in ("enum", "set"):
        elements = ()
    signs = [told.get(member) for member in ("unsigned", "zerofill")]
    if name in _WITH_SIGN:
        signs = [bool(sign) for sign in signs]
    return b"".join(
        [
            *(_sized(told.get(member) or "") for member in ("mysqlType", "charset", "collate")),
            _long(told.get("length") or 0),
            _optional(None if decimals is None else _long(decimals)),
            _optional(None if elements is None else _array([_sized(one) for one in elements])),
            *(_optional(None if sign is None else _bool(sign)) for sign in signs),
        ]
    )


def _default(value, type_name) -> bytes | None:
    """A BIT's default goes out as its bytes."""
    if value is None:
        return None
    if type_name == "bit" and isinstance(value, int):
        return _sized(value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big"))
    return _sized(str(value))


def _column(told, generation) -> bytes:
    """ColumnSchema."""
    return b"".join(
        [
            _sized(told["name"]),
            _data_type(told["dataType"], generation),
            _bool(told.get("nullable", True)),
            _optional(_default(told.get("default"), told["dataType"]["mysqlType"])),
        ]
    )


def _index(told) -> bytes:
    """IndexSchema."""
    return b"".join(
        [
            _sized(told["name"]),
            *(_bool(told.get(member)) for member in ("unique", "primary", "nullable")),
            _array([_sized(column) for column in told.get("columns") or ()]),
        ]
    )


def _table_schema(schema, generation) -> bytes:
    """TableSchema."""
    return b"".join(
        [
            _sized(schema.get("schema") or ""),
            _sized(schema.get("table") or ""),
            _long(schema.get("tableID") or 0),
            _long(schema.get("version") or 0),
            _array([_column(column, generation) for column in schema.get("columns") or ()]),
            _array([_index(index) for index in schema.get("indexes") or ()]),
        ]
    )


def _opening(kind) -> bytes:
    """The index of Message, its type, the index of its payload, and the version."""
    return _long(MESSAGE_INDEX) + _long(kind) + _long(kind) + _long(VERSION)


cdef int _write_of(int code, int flags, str generation):
    cdef int form = form_of(code, flags)
    if code == 16:      # BIT
        return WRITE_BITS_TEXT if generation == "new" else WRITE_BITS
    if code == 248:     # SET
        return WRITE_BITS
    if form == FORM_INTEGER or form == FORM_YEAR:
        return WRITE_SIGNED
    if form == FORM_UNSIGNED:
        return WRITE_BIGINT if code == 8 else WRITE_UNSIGNED
    if form == FORM_FLOAT:
        return WRITE_FLOAT
    if form == FORM_DOUBLE:
        return WRITE_DOUBLE
    return WRITE_BYTES if form == FORM_BINARY else WRITE_TEXT


cdef int _union_of(int code, int write):
    if code == 7:       # TIMESTAMP
        return VALUE_TIMESTAMP
    if write == WRITE_SIGNED or write == WRITE_UNSIGNED or write == WRITE_BITS:
        return VALUE_LONG
    if write == WRITE_BIGINT:
        return VALUE_UNSIGNED
    if write == WRITE_FLOAT:
        return VALUE_FLOAT
    if write == WRITE_DOUBLE:
        return VALUE_DOUBLE
    return VALUE_BYTES if write == WRITE_BYTES else VALUE_STRING


cdef inline bint _read_bits(const Span *text, uint64_t *out) noexcept nogil:
    cdef int64_t number = 0
    if text.n and text.p[0] == c'-':
        if tg_parse_i64(text.p, text.n, &number) < 0:
            return False
        out[0] = <uint64_t>number
        return True
    return tg_parse_u64(text.p, text.n, out) == 0


cdef inline uint8_t *_put_value(uint8_t *at, const PlanColumn *column, const Span *text,
                                const uint8_t *limit) noexcept nogil:
    """The value behind its union index; NULL if it is none of its type. There is room for it."""
    cdef int64_t number = 0
    cdef uint64_t raw = 0
    cdef double real
    cdef float short_real
    cdef uint32_t short_raw
    cdef int i
    if column.write == WRITE_TEXT:
        if TG_LIKELY(text.n < 64):
            at[0] = <uint8_t>(text.n << 1)
            at += 1
        else:
            at = tg_put_varint(at, <uint64_t>text.n << 1)
        tg_copy(at, text.p, text.n, limit)
        return at + text.n
    if column.write == WRITE_SIGNED:
        if tg_parse_i64(text.p, text.n, &number) < 0 or not signed_fits(number, column.bits):
            return NULL
        return tg_put_varint(at, zigzag(number))
    if column.write == WRITE_UNSIGNED or column.write == WRITE_BIGINT:
        if tg_parse_u64(text.p, text.n, &raw) < 0 or not unsigned_fits(raw, column.bits):
            return NULL
        return tg_put_varint(at, zigzag(<int64_t>raw))
    if column.write == WRITE_BITS:
        if not _read_bits(text, &raw):
            return NULL
        return tg_put_varint(at, zigzag(<int64_t>raw))
    if column.write == WRITE_BITS_TEXT:
        if not _read_bits(text, &raw):
            return NULL
        i = tg_format_u64(raw, at + 1)
        at[0] = <uint8_t>(i << 1)
        return at + 1 + i
    if column.write == WRITE_DOUBLE:
        if tg_parse_double(text.p, text.n, &real) < 0:
            return NULL
        memcpy(&raw, &real, 8)
        for i in range(8):
            at[i] = <uint8_t>(raw >> (8 * i))
        return at + 8
    if column.write == WRITE_FLOAT:
        if tg_parse_float(text.p, text.n, &short_real) < 0:
            return NULL
        memcpy(&short_raw, &short_real, 4)
        for i in range(4):
            at[i] = <uint8_t>(short_raw >> (8 * i))
        return at + 4
    # The bytes: their number follows from the padding.
    raw = text.n // 4 * 3
    if text.n >= 4:
        raw -= (text.p[text.n - 1] == c'=') + (text.p[text.n - 2] == c'=')
    at = tg_put_varint(at, raw << 1)
    if tg_base64_decode(text.p, text.n, at) != <int64_t>raw:
        return NULL
    return at + raw


cdef inline bint _is_carried(const Span *missing, int32_t column) noexcept nogil:
    return <size_t>(column >> 3) >= missing.n or \
        not (missing.p[column >> 3] >> (column & 7)) & 1


cdef int32_t _put_map(Buffer *b, Plan plan, const CellsView *cells, int64_t row,
                      const Span *missing, bint keys_only) noexcept nogil:
    """A row as a map; columns whose bit is set in `missing` are not carried. 0; -1 without memory;
    or the number, from 1 on, of the column whose value is none of its type."""
    cdef const PlanColumn *column = plan.columns
    cdef const PlanColumn *end = column + plan.count
    cdef int64_t first = cells.lists[row]
    cdef const int32_t *ends = cells.ends + first
    cdef const uint8_t *texts = cells.text
    cdef const uint8_t *texts_limit = cells.limit
    cdef const uint8_t *literals_limit = plan.limit
    cdef const uint8_t *valid = cells.valid
    cdef int32_t count = plan.keys if keys_only else plan.count
    cdef bint whole = missing.n == 0 and not keys_only
    cdef uint8_t *at
    cdef Span text
    first += cells.valid_base
    if missing.n:
        count = 0
        while column < end:
            count += (column.is_key or not keys_only) and _is_carried(missing, column.index)
            column += 1
        column = plan.columns
    if buffer_reserve(b, 2 * <size_t>(ends[plan.count] - ends[0]) + plan.room) < 0:
        return -1
    at = b.data + b.used
    if count:
        at = tg_put_varint(at, <uint64_t>count << 1)
    while column < end:
        if whole or ((column.is_key or not keys_only) and _is_carried(missing, column.index)):
            tg_copy(at, column.literal, column.size, literals_limit)
            if TG_LIKELY(bit_at(valid, first + column.index)):
                text.p = texts + ends[column.index]
                text.n = <size_t>(ends[column.index + 1] - ends[column.index])
                at = _put_value(at + column.size, column, &text, texts_limit)
                if TG_UNLIKELY(at == NULL):
                    return <int32_t>(column - plan.columns) + 1
            else:
                at[column.bare] = VALUE_NULL
                at += column.bare + 1
        column += 1
    at[0] = 0
    b.used = at + 1 - b.data
    return 0


cdef class Encoder(SimpleEncoder):
    """Encodes change batches as messages of the Simple protocol's Avro encoding."""

    cdef SimplePlan new_plan(self, object shape, int64_t version, str database, str table):
        cdef Plan plan = Plan.__new__(Plan)
        cdef PlanColumn *column
        cdef const uint8_t *literals
        cdef int index, code, flags
        plan.head = _opening(DML) + _sized(database) + _sized(table)
        plan.tail = _long(self.options.build_ts) + _long(version)
        plan.columns = <PlanColumn *>malloc((len(shape.columns) + 1) * sizeof(PlanColumn))
        if plan.columns == NULL:
            raise MemoryError
        texts = []
        plan.names = []
        for index, told in sorted(enumerate(shape.columns), key=lambda one: one[1].name.encode()):
            if told.code is None or form_of(told.code, told.flags or 0) == FORM_UNKNOWN:
                raise SchemaNotSeen(database, table, version=version, shape=shape.id)
            code = told.code
            flags = told.flags or 0
            column = &plan.columns[len(texts)]
            name = _sized(told.name)
            column.index = index
            column.is_key = told.key
            plan.keys += told.key
            column.write = _write_of(code, flags, self.options.generation)
            column.bits = bits_of(code)
            column.bare = len(name)
            literal = name + bytes([_union_of(code, column.write)])
            if code == 7:
                literal += _sized(told.zone or self.options.time_zone)
            column.size = len(literal)
            texts.append(literal)
            plan.names.append(told.name)
        plan.literals = b"".join(texts) + bytes(32)
        literals = plan.literals
        plan.limit = literals + len(plan.literals)
        for index in range(len(texts)):
            plan.columns[index].literal = literals
            literals += plan.columns[index].size
        plan.room = len(plan.literals) + (len(texts) + 1) * INTEGER_ROOM
        return plan

    cdef int write_row(self, SimplePlan general, Py_ssize_t row, int kind,
                       const Span *location, bint keys_only, bint says_keys_only) except -1:
        cdef Plan plan = <Plan>general
        cdef Buffer *b = &self.messages.value
        cdef int64_t table_id = 0, current = 0, previous = 0
        cdef Span missing
        cdef bint has_checksum
        cdef uint8_t *at
        cdef int32_t wrong = 0
        missing.p = NULL
        missing.n = 0
        long_at(&self.reader.table_id, row, &table_id)
        has_checksum = long_at(&self.reader.current, row, &current) and \
            long_at(&self.reader.previous, row, &previous)
        if buffer_reserve(b, len(plan.head) + len(plan.tail) + location.n + 128) < 0:
            raise MemoryError
        at = b.data + b.used
        memcpy(at, <const char *>plan.head, len(plan.head))
        at = tg_put_varint(at + len(plan.head), zigzag(table_id))
        at[0] = 2 * (INSERT if kind == KIND_INSERT else UPDATE if kind == KIND_UPDATE else DELETE)
        at = tg_put_varint(at + 1, zigzag(self.commit_ts(row)))
        memcpy(at, <const char *>plan.tail, len(plan.tail))
        at += len(plan.tail)
        # Three members of which rows mostly have none: null, or something else.
        at[0] = 0 if location.p == NULL else 2
        at += 1
        if location.p != NULL:
            at = tg_put_varint(at, <uint64_t>location.n << 1)
            memcpy(at, location.p, location.n)
            at += location.n
            says_keys_only = True
        at[0] = 2 if says_keys_only else 0
        at[1] = 1
        at += 1 + says_keys_only
        at[0] = 2 if has_checksum else 0
        at += 1
        if has_checksum:
            at = tg_put_varint(at, zigzag(self.checksum_versions[row]))
            at[0] = self.reader.flags[row] & FLAG_CORRUPTED != 0
            at = tg_put_varint(tg_put_varint(at + 1, zigzag(current)), zigzag(previous))
        at[0] = 0 if kind == KIND_DELETE else 2
        b.used = at + 1 - b.data
        if kind != KIND_DELETE:
            wrong = _put_map(b, plan, &self.reader.after, row, &missing, keys_only)
        if wrong == 0:
            wrong = buffer_add_byte(b, 0 if kind == KIND_INSERT else 2)
        if wrong == 0 and kind != KIND_INSERT:
            if view_has(&self.reader.before, row):
                string_at(&self.reader.missing, row, &missing)
                wrong = _put_map(b, plan, &self.reader.before, row, &missing, keys_only)
            else:
                wrong = buffer_add_byte(b, 0)
        if wrong < 0:
            raise MemoryError
        if wrong:
            raise EncodeError("simple", f"the value in row {row} is none of its column's type",
                              database=plan.database.decode(), table=plan.table.decode(),
                              field=plan.names[wrong - 1])
        return 0

    cdef bytes watermark(self, int64_t commit_ts):
        return _opening(WATERMARK) + _long(commit_ts) + _long(self.options.build_ts)

    cdef bytes ddl(self, str word, str query, int64_t commit_ts, dict schemas):
        word_index = _DDL_TYPES.index(word.encode() if word.encode() in _DDL_TYPES else b"QUERY")
        told = [schemas.get(member) for member in ("tableSchema", "preTableSchema")]
        return b"".join(
            [
                _opening(DDL),
                _long(word_index),
                _sized(query),
                _long(commit_ts),
                _long(self.options.build_ts),
                *(_optional(None if one is None else self._schema(one)) for one in told),
            ]
        )

    cdef bytes bootstrap(self, dict schema):
        return _opening(BOOTSTRAP) + _long(self.options.build_ts) + self._schema(schema)

    def _schema(self, schema):
        return _table_schema(schema, self.options.generation)

