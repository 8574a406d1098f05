"""Table schemas: Avro in, the JSON of the Simple protocol out."""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.simple.avro.decode cimport *
from tidegate.wire.simple.avro.layout cimport *
from tidegate.wire.simple.avro.values cimport *


# --- table schemas: Avro in, Simple's JSON out ----------------------------------------------------

cdef inline int put_literal(Cursor *c, Buffer *b, const char *text, size_t n) noexcept nogil:
    if buffer_add(b, <const uint8_t *>text, n) < 0:
        return fail(c, FAULT_MEMORY)
    return 0


cdef inline int put_span(Cursor *c, Buffer *b, const Span *text) noexcept nogil:
    if json_put_string(b, text.p, text.n, text.p + text.n, STYLE_ENCODING_JSON) < 0:
        return fail(c, FAULT_MEMORY)
    return 0


cdef inline int put_string(Cursor *c, Buffer *b) noexcept nogil:
    cdef Span text
    if read_text(c, &text) < 0:
        return -1
    return put_span(c, b, &text)


cdef inline int put_long(Cursor *c, Buffer *b, int64_t number) noexcept nogil:
    if put_i64(b, number) < 0:
        return fail(c, FAULT_MEMORY)
    return 0


cdef inline int put_bool(Cursor *c, Buffer *b) noexcept nogil:
    cdef bint value
    if read_bool(c, &value) < 0:
        return -1
    return put_literal(c, b, b"true", 4) if value else put_literal(c, b, b"false", 5)


cdef inline int put_texts(Cursor *c, Buffer *b) noexcept nogil:
    """An array of strings."""
    cdef Block block
    cdef bint first = True
    if put_literal(c, b, b"[", 1) < 0:
        return -1
    while True:
        if read_block(c, &block) < 0:
            return -1
        if block.count == 0:
            return put_literal(c, b, b"]", 1)
        while block.count:
            if not first and put_literal(c, b, b",", 1) < 0:
                return -1
            if put_string(c, b) < 0:
                return -1
            first = False
            block.count -= 1
        if end_block(c, &block) < 0:
            return -1


cdef inline int64_t fraction_of(const Span *type, int64_t length) noexcept nogil:
    """The digits behind a time's seconds, from its display width: Avro's `decimal` tells only those
    of DECIMAL (and of TIMESTAMP, in the new architecture)."""
    cdef int64_t digits = 0
    if span_is(type, b"datetime", 8) or span_is(type, b"timestamp", 9):
        digits = length - 20    # YYYY-MM-DD HH:MM:SS.
    elif span_is(type, b"time", 4):
        digits = length - 11    # -HHH:MM:SS.
    return digits if 0 < digits <= 6 else 0


cdef inline int put_default(Cursor *c, Buffer *b, const Span *type) noexcept nogil:
    """Avro has a BIT's default as its bytes, most significant first; JSON has the number. Of other
    types it is a string, but nobody has made sure that it is UTF-8: what is not is replaced, as
    Go does in JSON."""
    cdef Span text
    cdef uint64_t bits = 0
    cdef uint32_t rune = 0
    cdef size_t i = 0
    cdef int length
    if read_sized(c, &text) < 0:
        return -1
    if span_is(type, b"bit", 3) and 0 < text.n <= 8:
        for i in range(text.n):
            bits = bits << 8 | text.p[i]
        if buffer_reserve(b, INTEGER_ROOM) < 0:
            return fail(c, FAULT_MEMORY)
        b.used += tg_format_u64(bits, b.data + b.used)
        return 0
    if tg_utf8_valid(text.p, text.n):
        return put_span(c, b, &text)
    if put_literal(c, b, b'"', 1) < 0:
        return -1
    while i < text.n:
        length = tg_utf8_rune(text.p + i, text.n - i, &rune)
        if length == 0:
            if put_literal(c, b, b"\\ufffd", 6) < 0:
                return -1
            i += 1
        else:
            if json_put_body(b, text.p + i, length, text.p + text.n, STYLE_ENCODING_JSON) < 0:
                return fail(c, FAULT_MEMORY)
            i += length
    return put_literal(c, b, b'"', 1)


cdef inline int put_type(Cursor *c, Buffer *b, Span *type) noexcept nogil:
    """DataType. What is zero or false is left out in JSON."""
    cdef int64_t length = 0, decimals = 0
    cdef uint64_t given = 0
    cdef bint flag
    if put_literal(c, b, b'{"mysqlType":', 13) < 0 or \
            read_text(c, type) < 0 or put_span(c, b, type) < 0 or \
            put_literal(c, b, b',"charset":', 11) < 0 or put_string(c, b) < 0 or \
            put_literal(c, b, b',"collate":', 11) < 0 or put_string(c, b) < 0 or \
            read_varint(c, &length) < 0:
        return -1
    if length and (put_literal(c, b, b',"length":', 10) < 0 or put_long(c, b, length) < 0):
        return -1
    if read_index(c, 2, &given) < 0:
        return -1
    if not given:
        decimals = fraction_of(type, length)
    elif read_int(c, &decimals) < 0:
        return -1
    if decimals and (put_literal(c, b, b',"decimal":', 11) < 0 or put_long(c, b, decimals) < 0):
        return -1
    if read_index(c, 2, &given) < 0:
        return -1
    if given and (put_literal(c, b, b',"elements":', 12) < 0 or put_texts(c, b) < 0):
        return -1
    if read_index(c, 2, &given) < 0:
        return -1
    if given:
        if read_bool(c, &flag) < 0 or (flag and put_literal(c, b, b',"unsigned":true', 16) < 0):
            return -1
    if read_index(c, 2, &given) < 0:
        return -1
    if given:
        if read_bool(c, &flag) < 0 or (flag and put_literal(c, b, b',"zerofill":true', 16) < 0):
            return -1
    return put_literal(c, b, b'}', 1)


cdef inline int put_column(Cursor *c, Buffer *b) noexcept nogil:
    """ColumnSchema."""
    cdef Span type
    cdef uint64_t given = 0
    if put_literal(c, b, b'{"name":', 8) < 0 or put_string(c, b) < 0 or \
            put_literal(c, b, b',"dataType":', 12) < 0 or put_type(c, b, &type) < 0 or \
            put_literal(c, b, b',"nullable":', 12) < 0 or put_bool(c, b) < 0 or \
            put_literal(c, b, b',"default":', 11) < 0 or read_index(c, 2, &given) < 0:
        return -1
    if given:
        if put_default(c, b, &type) < 0:
            return -1
    elif put_literal(c, b, b"null", 4) < 0:
        return -1
    return put_literal(c, b, b"}", 1)


cdef inline int put_index(Cursor *c, Buffer *b) noexcept nogil:
    """IndexSchema."""
    if put_literal(c, b, b'{"name":', 8) < 0 or put_string(c, b) < 0 or \
            put_literal(c, b, b',"unique":', 10) < 0 or put_bool(c, b) < 0 or \
            put_literal(c, b, b',"primary":', 11) < 0 or put_bool(c, b) < 0 or \
            put_literal(c, b, b',"nullable":', 12) < 0 or put_bool(c, b) < 0 or \
            put_literal(c, b, b',"columns":', 11) < 0 or put_texts(c, b) < 0:
        return -1
    return put_literal(c, b, b"}", 1)


cdef inline int put_items(Cursor *c, Buffer *b, bint columns) noexcept nogil:
    """The array of a table's columns or indexes."""
    cdef Block block
    cdef bint first = True
    if put_literal(c, b, b"[", 1) < 0:
        return -1
    while True:
        if read_block(c, &block) < 0:
            return -1
        if block.count == 0:
            return put_literal(c, b, b"]", 1)
        while block.count:
            if not first and put_literal(c, b, b",", 1) < 0:
                return -1
            if (put_column(c, b) if columns else put_index(c, b)) < 0:
                return -1
            first = False
            block.count -= 1
        if end_block(c, &block) < 0:
            return -1


cdef inline int put_schema(Cursor *c, Buffer *b, SchemaFacts *facts) noexcept nogil:
    """TableSchema. JSON calls the database `schema`."""
    if read_text(c, &facts.database) < 0 or read_text(c, &facts.table) < 0 or \
            read_varint(c, &facts.table_id) < 0 or \
            read_bounded(c, INT64_MAX, &facts.version) < 0:
        return -1
    if put_literal(c, b, b'{"schema":', 10) < 0 or put_span(c, b, &facts.database) < 0 or \
            put_literal(c, b, b',"table":', 9) < 0 or put_span(c, b, &facts.table) < 0 or \
            put_literal(c, b, b',"tableID":', 11) < 0 or put_long(c, b, facts.table_id) < 0 or \
            put_literal(c, b, b',"version":', 11) < 0 or put_long(c, b, facts.version) < 0 or \
            put_literal(c, b, b',"columns":', 11) < 0 or put_items(c, b, True) < 0 or \
            put_literal(c, b, b',"indexes":', 11) < 0 or put_items(c, b, False) < 0:
        return -1
    return put_literal(c, b, b"}", 1)
