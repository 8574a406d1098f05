"""The TiCDC Open Protocol: batches of events, each a JSON key and a JSON value behind a length.

Reads what both architectures of TiCDC write, and writes either one's bytes. Authority: TiCDC's Open
Protocol document, and the bytes of its encoders where the document is silent or wrong
(docs/protocols/open-protocol.md says where).
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memmove, memset, strlen

from tidegate.model import (
    ClaimCheckError,
    ConfigError,
    EncodeError,
    Flag,
    SchemaNotSeen,
    action_code,
    canal_ddl_type,
)
from tidegate.wire.kernel.claim_check import pack

from tidegate.wire.batch.builder cimport Decoder as BatchDecoder
from tidegate.wire.batch.builder cimport (
    FLAG_BEFORE_AMBIGUOUS,
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
    long_at,
    row_init,
    string_at,
    view_cell,
    view_count,
    view_has,
)
from tidegate.wire.kernel.buffer cimport (
    Buffer,
    Cells,
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
    FAULT_BASE64,
    FAULT_BINARY,
    FAULT_COLUMNS,
    FAULT_DUPLICATE,
    FAULT_EMPTY,
    FAULT_KEY,
    FAULT_LENGTH,
    FAULT_MEMORY,
    FAULT_MISSING,
    FAULT_NONE,
    FAULT_NUMBER,
    FAULT_RANGE,
    FAULT_SYNTAX,
    FAULT_TEMPORAL,
    FAULT_TRAILING,
    FAULT_TRUNCATED,
    FAULT_TYPE,
    FAULT_UNKNOWN_KIND,
    FAULT_UTF8,
    FAULT_VALUE,
    FAULT_VERSION,
    TG_LIKELY,
    TG_UNLIKELY,
    Cursor,
    Span,
    cursor_init,
    fail,
    fail_at,
    left,
    read_be64,
    tg_copy,
    tg_copy_plain_run,
    tg_plain_run,
)
from tidegate.wire.kernel.json cimport (
    digits_i64,
    digits_u64,
    json_bool,
    json_expect,
    json_finish,
    json_i64,
    json_is,
    json_member,
    json_number,
    json_open,
    json_peek,
    json_skip_other,
    json_skip_string,
    json_span,
    json_text,
    json_u64,
)
from tidegate.wire.kernel.jsonwrite cimport (
    STYLE_ENCODING_JSON,
    json_put_body,
    json_put_string,
    put_i64,
    tg_copy_writable_run,
)
from tidegate.wire.kernel.text cimport (
    tg_base64_decode,
    tg_base64_encode,
    tg_format_double,
    tg_format_float,
    tg_go_json_float,
    tg_go_quote,
    tg_go_unquote,
    tg_hash,
    tg_is_digit,
    tg_load_le64,
    tg_parse_double,
    tg_parse_float,
    tg_parse_i64,
    tg_parse_u64,
    tg_shift_decimal,
    tg_utf8_valid,
)
from tidegate.wire.kernel.values cimport (
    FORM_BINARY,
    FORM_DATE,
    FORM_DATETIME,
    FORM_DECIMAL,
    FORM_DOUBLE,
    FORM_FLOAT,
    FORM_INTEGER,
    FORM_NULL,
    FORM_TEXT,
    FORM_TIME,
    FORM_UNKNOWN,
    FORM_UNSIGNED,
    FORM_YEAR,
    bits_of,
    form_of,
    tg_date_valid,
    tg_datetime_valid,
    tg_decimal_valid,
    tg_time_valid,
    year_fits,
)

cdef extern from * nogil:
    """
    #include "_text.h"
    #include "_scan.h"

    #ifdef TG_SSE2
    static inline unsigned open_digit_mask(__m128i block) {
        __m128i digit = _mm_sub_epi8(block, _mm_set1_epi8('0'));
        return (unsigned)_mm_movemask_epi8(
            _mm_cmpeq_epi8(_mm_min_epu8(digit, _mm_set1_epi8(9)), digit));
    }
    #endif

    /* The integer at p, [-] digits without leading zeros and at most 20 of them: its length with the
     * sign, or 0. It is copied to dst, which needs 32 bytes. What stands behind it is not looked at. */
    static inline size_t open_integer(const uint8_t *p, const uint8_t *end, const uint8_t *limit, uint8_t *dst) {
        size_t sign = p < end && *p == '-';
        size_t n = sign;
    #ifdef TG_SSE2
        if (TG_LIKELY(limit - p >= 32)) {
            __m128i block = _mm_loadu_si128((const __m128i *)p);
            _mm_storeu_si128((__m128i *)dst, block);
            n += (size_t)__builtin_ctz(~(open_digit_mask(block) >> sign));
            if (n == 16) {
                block = _mm_loadu_si128((const __m128i *)(p + 16));
                _mm_storeu_si128((__m128i *)(dst + 16), block);
                n += (size_t)__builtin_ctz(~open_digit_mask(block));
            }
            if (end - p < (ptrdiff_t)n) n = (size_t)(end - p);
        } else
    #endif
        {
            if (sign) *dst = '-';
            while (n <= sign + 20 && end - p > (ptrdiff_t)n && tg_is_digit(p[n])) {
                dst[n] = p[n];
                n++;
            }
        }
        if (n == sign || n > sign + 20) return 0;
        if (p[sign] == '0' && n + sign > 1) return 0;
        return n;
    }

    /* A number of up to three digits from the low bytes of a word, without branches that depend on
     * how many there are; *digits is 0 if there is none, or a zero before others. */
    static inline uint32_t open_short_number(uint64_t word, int *digits) {
        uint32_t parts = ((uint32_t)word & 0xffffffu) ^ 0x303030u;
        uint32_t others = (parts | (parts + 0x767676u)) & 0x808080u;
        int count = tg_ctz64(others | 0x80000000u) / 8;
        uint32_t aligned = parts << (8 * (3 - count)) & 0xffffffu;
        *digits = count > 1 && (parts & 0xffu) == 0 ? 0 : count;
        return (aligned & 0xffu) * 100 + (aligned >> 8 & 0xffu) * 10 + (aligned >> 16);
    }

    /* Whether the n bytes at p and q are the same. */
    static inline int open_same(const uint8_t *p, const uint8_t *q, size_t n) {
    #ifdef TG_SSE2
        if (TG_LIKELY(n >= 16)) {
            __m128i differ = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(p + n - 16)),
                                           _mm_loadu_si128((const __m128i *)(q + n - 16)));
            size_t i;
            for (i = 0; i + 16 < n; i += 16) {
                differ = _mm_or_si128(differ, _mm_xor_si128(_mm_loadu_si128((const __m128i *)(p + i)),
                                                            _mm_loadu_si128((const __m128i *)(q + i))));
            }
            return _mm_movemask_epi8(_mm_cmpeq_epi8(differ, _mm_setzero_si128())) == 0xffff;
        }
    #endif
        return memcmp(p, q, n) == 0;
    }

    /* Of a column's name, for a table that lives no longer than a message. */
    static inline uint64_t open_name_hash(const uint8_t *p, size_t n) {
        uint64_t h = n * 0x9e3779b97f4a7c15u;
        uint32_t first, last;
        if (n >= 8) {
            size_t i;
            for (i = 0; i + 8 < n; i += 8) h = tg_fold(h ^ tg_load64(p + i), 0xa4093822299f31d1u);
            return tg_fold(h ^ tg_load64(p + n - 8), 0xc0ac29b7c97c50ddu);
        }
        if (n >= 4) {
            memcpy(&first, p, 4);
            memcpy(&last, p + n - 4, 4);
        } else {
            first = n ? p[0] : 0u;
            last = n ? (uint32_t)p[n / 2] << 8 | p[n - 1] : 0u;
        }
        return tg_fold(h ^ ((uint64_t)first << 32 | last), 0xc0ac29b7c97c50ddu);
    }
    """
    size_t open_integer(const uint8_t *p, const uint8_t *end, const uint8_t *limit, uint8_t *dst) noexcept
    uint32_t open_short_number(uint64_t word, int *digits) noexcept
    bint open_same(const uint8_t *p, const uint8_t *q, size_t n) noexcept
    uint64_t open_name_hash(const uint8_t *p, size_t n) noexcept


# How a column's values stand in the JSON. Those up to READ_TIME are strings whose text is the value.
cdef enum Reading:
    READ_TEXT = 0
    READ_DECIMAL = 1
    READ_DATE = 2
    READ_DATETIME = 3
    READ_TIME = 4
    READ_INTEGER = 5
    READ_FLOAT = 6
    READ_DOUBLE = 7
    READ_QUOTED = 8         # BINARY, VARBINARY: a string with Go's escapes
    READ_BASE64_TEXT = 9    # the TEXT types: base64 of UTF-8
    READ_BASE64 = 10        # the BLOB types
    READ_ANY = 11           # a type that MySQL does not have: strings and numbers as they are
    READ_NULL = 12          # a type that has no values

cdef enum:
    MAX_TABLES = 64             # tables whose messages are predicted
    MAX_PLANS = 4               # shapes of one table that are predicted
    MAX_PLAN_BYTES = 65536      # literals of one shape that are kept
    VERSION = 1
    ROW = 1
    DDL = 2
    RESOLVED = 3


cdef uint8_t _readings[256][2]


cdef inline int _reading_of(int code, int flags) noexcept nogil:
    """How a column's values stand in the JSON; without flags (-1) a string is text."""
    return _readings[code & 255][flags & 1 if flags > 0 else 0]


def _fill_readings() -> None:
    cdef int code, binary, form
    for code in range(256):
        for binary in range(2):
            form = form_of(code, binary)
            if form == FORM_TEXT and 249 <= code <= 252:
                _readings[code][binary] = READ_BASE64_TEXT
            elif form == FORM_BINARY:
                _readings[code][binary] = READ_BASE64 if 249 <= code <= 252 else READ_QUOTED
            else:
                _readings[code][binary] = {
                    FORM_INTEGER: READ_INTEGER,
                    FORM_UNSIGNED: READ_INTEGER,
                    FORM_YEAR: READ_INTEGER,
                    FORM_DECIMAL: READ_DECIMAL,
                    FORM_DATE: READ_DATE,
                    FORM_DATETIME: READ_DATETIME,
                    FORM_TIME: READ_TIME,
                    FORM_FLOAT: READ_FLOAT,
                    FORM_DOUBLE: READ_DOUBLE,
                    FORM_NULL: READ_NULL,
                    FORM_UNKNOWN: READ_ANY,
                }.get(form, READ_TEXT)


_fill_readings()


# The largest number that an integer type holds without a sign, and the least with one, as text.
cdef struct Bounds:
    const char *high
    const char *low         # without its minus; NULL: there are no negative ones
    uint8_t high_size
    uint8_t low_size


cdef inline void _bounds_of(int code, Bounds *out) noexcept nogil:
    cdef int bits = bits_of(code)
    out.low = "9223372036854775808"
    out.high = "18446744073709551615"
    if bits == 8:
        out.low = "128"
        out.high = "255"
    elif bits == 16:
        out.low = "32768"
        out.high = "65535"
    elif bits == 24:
        out.low = "8388608"
        out.high = "16777215"
    elif bits == 32:
        out.low = "2147483648"
        out.high = "4294967295"
    if code == 13 or code == 16 or code == 247 or code == 248:
        out.low = NULL
    out.high_size = <uint8_t>strlen(out.high)
    out.low_size = <uint8_t>strlen(out.low) if out.low != NULL else 0


cdef inline bint _integer_fits(const uint8_t *p, size_t n, int code) noexcept nogil:
    """Whether a column of this type can hold the integer, signed or not: the new architecture's flags
    go stale after DDL, so the UNSIGNED flag decides nothing here."""
    cdef Bounds bounds
    cdef uint64_t year = 0
    if code == 13:
        return n <= 4 and tg_parse_u64(p, n, &year) == 0 and year_fits(<int64_t>year)
    _bounds_of(code, &bounds)
    if p[0] == c'-':
        return bounds.low != NULL and (
            n - 1 < bounds.low_size or (n - 1 == bounds.low_size and memcmp(p + 1, bounds.low, n - 1) <= 0)
        )
    return n < bounds.high_size or (n == bounds.high_size and memcmp(p, bounds.high, n) <= 0)


cdef inline int _sure_digits(int code) noexcept nogil:
    """Integers of so many bytes fit every time (a minus counts as one)."""
    if code == 8:
        return 19
    if code == 3:
        return 9
    if code == 2:
        return 4
    if code == 9:
        return 7
    return 2 if code == 1 else 0


# --- values --------------------------------------------------------------------------------------

cdef inline bint _text_fits(int reading, const uint8_t *p, size_t n, const uint8_t *limit) noexcept nogil:
    if reading == READ_TEXT:
        return True
    if reading == READ_DECIMAL:
        return tg_decimal_valid(p, n, limit)
    if reading == READ_DATETIME:
        return tg_datetime_valid(p, n)
    if reading == READ_DATE:
        return tg_date_valid(p, n)
    return tg_time_valid(p, n)


cdef int _read_float(Cursor *c, Buffer *text, bint single) noexcept nogil:
    """A JSON number as the shortest digits of its column's type, without an exponent."""
    cdef Span number
    cdef double wide = 0
    cdef float narrow = 0
    cdef int n
    cdef size_t i = 0, digits = 0
    if json_number(c, &number) < 0:
        return -1
    if buffer_reserve(text, 400) < 0:
        return fail(c, FAULT_MEMORY)
    while i < number.n and number.p[i] != c'e' and number.p[i] != c'E':
        digits += 48 <= number.p[i] <= 57
        i += 1
    # So few digits are the shortest ones of the number that they give, whoever wrote them.
    if i == number.n and digits <= (6 if single else 15):
        n = tg_shift_decimal(number.p, number.n, text.data + text.used, 400)
    elif single:
        n = -1 if tg_parse_float(number.p, number.n, &narrow) < 0 else \
            tg_format_float(narrow, text.data + text.used)
    else:
        n = -1 if tg_parse_double(number.p, number.n, &wide) < 0 else \
            tg_format_double(wide, text.data + text.used)
    if n < 0:
        return fail_at(c, FAULT_RANGE, number.p)
    text.used += n
    return 1


cdef int _read_value(Cursor *c, Buffer *text, Buffer *aside, int reading, int code) noexcept nogil:
    """Appends the text of the value at the cursor: 1, 0 for NULL, -1 a fault. `aside` is scratch."""
    cdef const uint8_t *began
    cdef size_t n, mark = text.used
    cdef int64_t size
    cdef Span number
    cdef int found = json_peek(c)
    began = c.p
    if found < 0:
        return -1
    if found == c'n':
        return 0 if json_is(c, b"null", 4) else fail(c, FAULT_SYNTAX)
    if reading == READ_NULL:
        return fail(c, FAULT_VALUE)
    if reading == READ_INTEGER:
        if buffer_reserve(text, 32) < 0:
            return fail(c, FAULT_MEMORY)
        n = open_integer(c.p, c.end, c.limit, text.data + mark)
        if n == 0:
            if json_number(c, &number) < 0:
                return -1
            return fail_at(c, FAULT_VALUE, began)
        if not _integer_fits(c.p, n, code):
            return fail(c, FAULT_VALUE)
        c.p += n
        # Only now is it known that the number ends here and has no fraction.
        if c.p < c.end and (c.p[0] == c'.' or c.p[0] == c'e' or c.p[0] == c'E'):
            return fail_at(c, FAULT_VALUE, began)
        text.used = mark + n
        return 1
    if reading == READ_FLOAT or reading == READ_DOUBLE:
        return _read_float(c, text, reading == READ_FLOAT)
    if found != c'"':
        if reading != READ_ANY:
            return fail(c, FAULT_TYPE)
        if json_number(c, &number) < 0:
            return -1
        if buffer_reserve(text, number.n) < 0:
            return fail(c, FAULT_MEMORY)
        memcpy(text.data + mark, number.p, number.n)
        text.used += number.n
        return 1
    c.p += 1
    if reading == READ_QUOTED:
        aside.used = 0
        if json_text(c, aside) < 0:
            return -1
        size = tg_go_unquote(aside.data, aside.used, aside.data)
        if size < 0:
            return fail_at(c, FAULT_BINARY, began)
        if buffer_reserve(text, (<size_t>size // 3 + 1) * 4) < 0:
            return fail(c, FAULT_MEMORY)
        text.used += tg_base64_encode(aside.data, <size_t>size, text.data + mark)
        return 1
    if json_text(c, text) < 0:
        return -1
    n = text.used - mark
    if reading == READ_BASE64_TEXT:
        size = tg_base64_decode(text.data + mark, n, text.data + mark)
        if size < 0:
            return fail_at(c, FAULT_BASE64, began)
        if not tg_utf8_valid(text.data + mark, <size_t>size):
            return fail_at(c, FAULT_UTF8, began)
        text.used = mark + <size_t>size
    elif reading == READ_BASE64:
        aside.used = 0
        if buffer_reserve(aside, n) < 0:
            return fail(c, FAULT_MEMORY)
        if tg_base64_decode(text.data + mark, n, aside.data) < 0:
            return fail_at(c, FAULT_BASE64, began)
    elif reading <= READ_TIME:
        # json_text has left room behind what it wrote.
        if not _text_fits(reading, text.data + mark, n, text.data + text.used + 16):
            return fail_at(c, FAULT_VALUE if reading == READ_DECIMAL else FAULT_TEMPORAL, began)
    return 1


# --- what the decoder remembers ------------------------------------------------------------------

# A column of a predicted shape: the bytes before its value, as they stood in an earlier message.
cdef struct Lane:
    const uint8_t *literal      # `},"name":{"t":3,"f":65,"v":`, padded
    int32_t size
    int32_t code
    uint8_t reading
    uint8_t sure_digits


cdef struct Plan:
    Lane *lanes                 # the literals lie behind them in the same block
    int32_t count
    int32_t shape


cdef struct Table:
    uint8_t *block              # holds the three texts
    Span database
    Span table
    Span literal                # `,"scm":"d","tbl":"t"`, padded; n = 0: the names are not plain
    Plan plans[MAX_PLANS]
    int32_t plan_count
    int32_t recent              # the plan that fitted last
    int32_t oldest              # the plan to give up next


cdef inline void _forget_plans(Table *table) noexcept nogil:
    cdef int i
    for i in range(table.plan_count):
        free(table.plans[i].lanes)
    table.plan_count = 0
    table.recent = 0
    table.oldest = 0


# --- one event -----------------------------------------------------------------------------------

cdef struct Key:
    int64_t commit_ts
    int64_t partition
    Span database           # p == NULL: not there
    Span table
    Span location
    Table *known            # a row's table as remembered, or NULL
    int kind
    bint has_partition
    bint only_handle_key


# What a value is, as far as it could be seen without its type.
cdef enum Seen:
    SEEN_OTHER = 0
    SEEN_NULL = 1
    SEEN_PLAIN = 2      # a string without escapes and beyond ASCII nothing
    SEEN_INTEGER = 3


# A column object as it stands in the message.
cdef struct Column:
    Span name
    const uint8_t *name_at      # its opening quote
    const uint8_t *value_at
    const uint8_t *value_end
    int32_t code
    int32_t flags
    int32_t key
    int32_t place               # in `p`: the index of its column in `u`
    uint8_t seen
    uint8_t plain               # a brace follows the value at once, so that it can be predicted
    uint8_t bare                # in `p`: members without a column (a defect of the new architecture)


cdef struct Section:
    size_t first                # in Decoder.columns
    int32_t count
    bint there
    bint bare


cdef inline bint _letter(const Span *name, uint8_t letter) noexcept nogil:
    return name.n == 1 and name.p[0] == letter


cdef inline bint _named(const Span *name, const char *word, size_t n) noexcept nogil:
    return name.n == n and memcmp(name.p, word, n) == 0


cdef inline bint _same_name(const Span *a, const Span *b) noexcept nogil:
    return a.n == b.n and memcmp(a.p, b.p, a.n) == 0


cdef inline uint64_t _hash_names(const Span *database, const Span *table) noexcept nogil:
    return tg_hash(database.p, database.n, 1) ^ tg_hash(table.p, table.n, 2)


cdef Span _ddl_words[256]
_kept_alive = []


def _fill_ddl_words() -> None:
    cdef int code
    cdef bytes word
    for code in range(256):
        word = canal_ddl_type(code).encode()
        _kept_alive.append(word)
        _ddl_words[code].p = word
        _ddl_words[code].n = len(word)


_fill_ddl_words()


def _events(framed: bytes | None, position: int) -> list[bytes]:
    """A message's keys or values, each with its length before it; ValueError if they are not such."""
    events = []
    while framed is not None and position < len(framed):
        size = 8 + int.from_bytes(framed[position : position + 8])
        if len(framed) - position < size:
            raise ValueError("a length goes beyond the message")
        events.append(framed[position : position + size])
        position += size
    return events


cdef class Decoder(BatchDecoder):
    """Decodes Open Protocol messages. Messages of a table repeat each other's bytes between the values:
    they are compared with those of an earlier message, and only where they differ is JSON parsed."""
    cdef Table tables[MAX_TABLES]
    cdef uint64_t hashes[MAX_TABLES]
    cdef int32_t table_count
    cdef int32_t next_victim
    cdef Table *current
    cdef Buffer columns         # Column: those of the event being read
    cdef Buffer places          # int32: for each column of `u`, its index in `p` or -1
    cdef Buffer slots           # int32: hash table over column names
    cdef Buffer shape_columns   # ShapeColumn
    cdef Buffer aside           # bytes of a value on their way
    cdef const uint8_t *event_at    # where the value of the event being read begins

    def __dealloc__(self):
        cdef int i
        for i in range(self.table_count):
            _forget_plans(&self.tables[i])
            free(self.tables[i].block)
        buffer_free(&self.columns)
        buffer_free(&self.places)
        buffer_free(&self.slots)
        buffer_free(&self.shape_columns)
        buffer_free(&self.aside)

    def redeem(self, bytes key, bytes value, dict kept):
        """A message may hold several claim checks, and other events between them."""
        keys = _events(key, 8)
        values = _events(value, 0)
        for event, (kept_key, kept_value) in kept.items():
            try:
                (keys[event],) = _events(kept_key, 8)
                (values[event],) = _events(kept_value, 0)
            except ValueError as error:
                raise ClaimCheckError(
                    self.claim_locations()[event], "it does not hold one event with key and value"
                ) from error
        return b"".join([key[:8], *keys]), b"".join(values)

    cdef int message(self, Message *m, Cursor *c) noexcept nogil:
        cdef Cursor k
        cdef uint64_t version = 0, size = 0
        cdef const uint8_t *key_end
        cdef const uint8_t *value_end = c.end
        cdef bint no_values = m.value_size == 0
        cursor_init(&k, m.key, m.key_size, m.key_limit)
        k.in_key = 1
        key_end = k.end
        if m.key == NULL:
            return self.fail_in_key(c, &k, FAULT_KEY)
        if read_be64(&k, &version) < 0:
            return self.fail_in_key(c, &k, FAULT_KEY)
        if version != VERSION:
            k.p -= 8
            return self.fail_in_key(c, &k, FAULT_VERSION)
        while k.p < key_end:
            if read_be64(&k, &size) < 0:
                return self.fail_in_key(c, &k, FAULT_TRUNCATED)
            if size > <uint64_t>left(&k):
                return self.fail_in_key(c, &k, FAULT_LENGTH)
            k.end = k.p + size
            # A resolved event may come without a value, not even its length.
            if not no_values:
                if read_be64(c, &size) < 0:
                    return -1
                if size > <uint64_t>left(c):
                    return fail(c, FAULT_LENGTH)
                c.end = c.p + size
            if self.event(&k, c) < 0:
                if k.fault != FAULT_NONE:
                    c[0] = k
                return -1
            k.p = k.end
            k.end = key_end
            c.p = c.end
            c.end = value_end
        if c.p != value_end:
            return fail(c, FAULT_TRAILING)
        return 0

    cdef int fail_in_key(self, Cursor *c, Cursor *k, int fault) noexcept nogil:
        k.fault = fault
        k.fault_at = k.p
        c[0] = k[0]
        return -1

    cdef int event(self, Cursor *k, Cursor *c) noexcept nogil:
        cdef Key key
        self.out.scratch.used = 0
        if TG_UNLIKELY(not self.predicted_key(k, &key)):
            if self.read_key(k, &key) < 0:
                return -1
            if key.kind == DDL:
                return self.ddl_event(c, &key)
            if key.kind == RESOLVED:
                return self.resolved_event(c, &key)
        if TG_LIKELY(key.known != NULL) and self.predicted_row(c, &key):
            return 0
        return self.row_event(c, &key)

    # --- as predicted ---

    cdef bint predicted_key(self, Cursor *k, Key *key) noexcept nogil:
        """Whether the key is a row's of a table remembered, with nothing unusual in it."""
        cdef const uint8_t *p = k.p
        cdef const uint8_t *end = k.end
        cdef uint8_t text[32]
        cdef size_t n
        cdef bint is_row = False
        # Timestamps have 18 digits from 1992 to 2090.
        if end - p < 32 or memcmp(p, b'{"ts":', 6) != 0 or p[6] == 48 or p[24] != c',' or \
                tg_parse_u64(p + 6, 18, <uint64_t *>&key.commit_ts) < 0:
            return False
        p += 24
        key.known = self.current
        if TG_UNLIKELY(key.known == NULL or key.known.literal.n == 0
                       or end - p < <Py_ssize_t>key.known.literal.n
                       or not open_same(p, key.known.literal.p, key.known.literal.n)):
            key.known = self.table_at(p, end, k.limit)
            if key.known == NULL:
                return False
            self.current = key.known
        p += key.known.literal.n
        key.database = key.known.database
        key.table = key.known.table
        key.location.p = NULL
        key.has_partition = False
        key.only_handle_key = False
        while end - p > 1:
            if end - p >= 7 and memcmp(p, b',"t":1', 6) == 0 and not is_row:
                is_row = True
                p += 6
                continue
            if end - p < 9:
                return False
            n = open_integer(p + 7, end, k.limit, text)
            if n == 0 or n > 18:
                return False
            if memcmp(p, b',"rid":', 7) == 0:
                p += 7 + n
            elif memcmp(p, b',"ptn":', 7) == 0 and not key.has_partition:
                key.has_partition = True
                tg_parse_i64(p + 7, n, &key.partition)
                p += 7 + n
            else:
                return False
        return is_row and end - p == 1 and p[0] == c'}'

    cdef Table *table_at(self, const uint8_t *p, const uint8_t *end, const uint8_t *limit) noexcept nogil:
        """The table whose `,"scm":…,"tbl":…` stands at p, if it is remembered with that literal."""
        cdef unsigned int high = 0
        cdef Span database, table
        cdef Table *found
        if end - p < 24 or memcmp(p, b',"scm":"', 8) != 0:
            return NULL
        database.p = p + 8
        database.n = tg_plain_run(database.p, end, limit, &high)
        p = database.p + database.n
        if end - p < 12 or memcmp(p, b'","tbl":"', 9) != 0:
            return NULL
        table.p = p + 9
        table.n = tg_plain_run(table.p, end, limit, &high)
        p = table.p + table.n
        if end - p < 2 or p[0] != c'"':
            return NULL
        found = self.find_table(&database, &table)
        return NULL if found == NULL or found.literal.n == 0 else found

    cdef Table *find_table(self, const Span *database, const Span *table) noexcept nogil:
        cdef uint64_t h = _hash_names(database, table)
        cdef int i
        for i in range(self.table_count):
            if self.hashes[i] == h and _same_name(&self.tables[i].database, database) and \
                    _same_name(&self.tables[i].table, table):
                return &self.tables[i]
        return NULL

    cdef bint predicted_row(self, Cursor *c, Key *key) noexcept nogil:
        """Whether the value was as predicted: then its row is there. Otherwise nothing has happened."""
        cdef Row row
        cdef Table *table = key.known
        cdef int i = table.recent
        cdef int tried
        cdef size_t after = self.out.after.count
        cdef size_t before = self.out.before.count
        cdef size_t missing = self.out.missing.used
        if c.end - c.p < 8:
            return False
        for tried in range(table.plan_count):
            row_init(&row, KIND_INSERT)
            if TG_LIKELY(self.predicted_value(&table.plans[i], &row, c.p, c.end, c.limit)):
                table.recent = i
                row.shape = table.plans[i].shape
                if TG_LIKELY(self.add_row(c, &row, key) == 0):
                    return True
                c.fault = FAULT_NONE    # the general path meets it again, and reports it
            cells_cut(&self.out.after, after)
            cells_cut(&self.out.before, before)
            self.out.missing.used = missing
            i = i + 1 if i + 1 < table.plan_count else 0
        return False

    cdef int add_row(self, Cursor *c, Row *row, const Key *key) noexcept nogil:
        """What the key says of a row, and the end of it."""
        cdef Extra *extra
        row.commit_ts = key.commit_ts
        row.has |= HAS_COMMIT_TS
        if key.has_partition:
            row.table_id = key.partition
            row.has |= HAS_TABLE_ID
        if key.only_handle_key:
            row.flags |= FLAG_HANDLE_KEY_ONLY
        if key.location.p != NULL:
            row.flags |= FLAG_CLAIM_CHECK
            extra = self.out.new_extra(row)
            if extra == NULL or self.out.keep(&key.location, &extra.claim_check) < 0:
                return fail(c, FAULT_MEMORY)
        return self.out.add_row(c, row)

    cdef bint predicted_value(self, Plan *plan, Row *row, const uint8_t *p, const uint8_t *end,
                              const uint8_t *limit) noexcept nogil:
        if memcmp(p, b'{"u":{', 6) == 0:
            row.has = HAS_AFTER
            p = self.predicted_section(plan, &self.out.after, NULL, p + 6, end, limit)
            if p == NULL or end - p < 2:
                return False
            if memcmp(p, b'}}', 2) == 0:
                return end - p == 2
            if end - p < 9 or memcmp(p, b'},"p":{', 7) != 0:
                return False
            row.kind = KIND_UPDATE
            row.has = HAS_AFTER | HAS_BEFORE
            p = self.predicted_section(plan, &self.out.before, row, p + 7, end, limit)
        elif memcmp(p, b'{"d":{', 6) == 0:
            row.kind = KIND_DELETE
            row.has = HAS_BEFORE
            p = self.predicted_section(plan, &self.out.before, NULL, p + 6, end, limit)
        else:
            return False
        return p != NULL and end - p == 2 and memcmp(p, b'}}', 2) == 0

    cdef const uint8_t *predicted_section(self, Plan *plan, Cells *cells, Row *row, const uint8_t *p,
                                          const uint8_t *end, const uint8_t *limit) noexcept nogil:
        """Reads the columns of the plan from the first one's name to the brace that closes the last,
        and gives what follows; NULL if they do not stand here. With a row, columns may be left out:
        they are marked in its bitmap."""
        cdef Lane *lane = plan.lanes
        cdef Lane *lanes_end = lane + plan.count
        cdef uint8_t *base
        cdef uint8_t *text
        cdef int32_t *ends
        cdef uint8_t *valid
        cdef uint8_t *missing = NULL
        cdef Py_ssize_t n
        cdef Py_ssize_t lead = 2    # before the first column there is no `},`
        cdef size_t run
        cdef unsigned int high
        cdef int reading
        cdef Cursor c
        # No text is longer than what stands for it in the message, but for READ_QUOTED and the floats.
        if cells_reserve(cells, plan.count) < 0 or buffer_reserve(&cells.text, <size_t>(end - p) + 64) < 0:
            return NULL
        base = cells.text.data
        text = base + cells.text.used
        ends = cells_ends(cells)
        valid = cells.valid.data + cells.count
        while lane < lanes_end:
            n = lane.size - lead
            # `1}}}` at least stands behind a literal
            if TG_UNLIKELY(end - p < n + 4 or not open_same(p, lane.literal + lead, n)):
                if row == NULL:
                    return NULL
                if missing == NULL:
                    missing = self.out.new_missing(row, plan.count)
                    if missing == NULL:
                        return NULL
                n = lane - plan.lanes
                missing[n >> 3] |= <uint8_t>(1 << (n & 7))
                ends[0] = <int32_t>(text - base)
                valid[0] = 0
                ends += 1
                valid += 1
                lane += 1
                continue
            p += n
            lead = 0
            reading = lane.reading
            if reading <= READ_TIME and p[0] == c'"':
                high = 0
                run = tg_copy_plain_run(p + 1, end, limit, text, &high)
                if TG_LIKELY(p + 1 + run < end and p[1 + run] == c'"'):
                    if TG_UNLIKELY(high != 0) and not tg_utf8_valid(text, run):
                        return NULL
                    if reading != READ_TEXT and not _text_fits(reading, text, run, text + 32):
                        return NULL
                    p += run + 2
                    text += run
                    valid[0] = 1
                    ends[0] = <int32_t>(text - base)
                    ends += 1
                    valid += 1
                    lane += 1
                    continue
            elif reading == READ_INTEGER and p[0] != c'n':
                run = open_integer(p, end, limit, text)
                if run == 0 or (run > lane.sure_digits and not _integer_fits(p, run, lane.code)):
                    return NULL
                p += run
                text += run
                valid[0] = 1
                ends[0] = <int32_t>(text - base)
                ends += 1
                valid += 1
                lane += 1
                continue
            if memcmp(p, b"null", 4) == 0:
                p += 4
                valid[0] = 0
            else:
                cells.text.used = <size_t>(text - base)
                cursor_init(&c, p, <size_t>(end - p), limit)
                if _read_value(&c, &cells.text, &self.aside, reading, lane.code) != 1 or \
                        buffer_reserve(&cells.text, <size_t>(end - c.p) + 64) < 0:
                    return NULL
                base = cells.text.data
                text = base + cells.text.used
                p = c.p
                valid[0] = 1
            ends[0] = <int32_t>(text - base)
            ends += 1
            valid += 1
            lane += 1
        if lead == 0:
            if p >= end or p[0] != c'}':
                return NULL
            p += 1
        cells.text.used = <size_t>(text - base)
        cells.count += plan.count
        cells.ends.used += 4 * <size_t>plan.count
        cells.valid.used += <size_t>plan.count
        return p

    # --- learning ---

    cdef Table *learn_table(self, const Key *key) noexcept nogil:
        """Remembers the table of this key; NULL without memory."""
        cdef size_t n = key.database.n + key.table.n + 18
        cdef size_t padded = (n + 31) & ~<size_t>15
        cdef unsigned int high = 0
        cdef Table *table
        cdef uint8_t *block
        cdef int i
        block = <uint8_t *>malloc(padded + key.database.n + key.table.n)
        if block == NULL:
            return NULL
        if self.table_count < MAX_TABLES:
            i = self.table_count
            self.table_count += 1
        else:
            i = self.next_victim
            self.next_victim = (i + 1) % MAX_TABLES
            _forget_plans(&self.tables[i])
            free(self.tables[i].block)
        table = &self.tables[i]
        memset(table, 0, sizeof(Table))
        memset(block, 0, padded)
        table.block = block
        self.hashes[i] = _hash_names(&key.database, &key.table)
        table.literal.p = block
        memcpy(block, b',"scm":"', 8)
        memcpy(block + 8, key.database.p, key.database.n)
        memcpy(block + 8 + key.database.n, b'","tbl":"', 9)
        memcpy(block + 17 + key.database.n, key.table.p, key.table.n)
        block[n - 1] = c'"'
        block += padded
        memcpy(block, key.database.p, key.database.n)
        table.database.p = block
        table.database.n = key.database.n
        block += key.database.n
        memcpy(block, key.table.p, key.table.n)
        table.table.p = block
        table.table.n = key.table.n
        if tg_plain_run(table.database.p, block, block, &high) == table.database.n and \
                tg_plain_run(block, block + table.table.n, block + table.table.n, &high) == table.table.n:
            table.literal.n = n
        return table

    cdef void learn_plan(self, Table *table, int32_t shape, const Column *columns, int32_t count) noexcept nogil:
        """Remembers how this shape's columns stand in a message, if they stand so that it helps."""
        cdef size_t size = <size_t>count * sizeof(Lane) + 16
        cdef size_t n
        cdef int32_t i
        cdef Plan *plan
        cdef Lane *lanes
        cdef uint8_t *place
        for i in range(count):
            if not columns[i].plain:
                return
            size += (<size_t>(columns[i].value_at - columns[i].name_at) + 2 + 31) & ~<size_t>15
        if size > MAX_PLAN_BYTES:
            return
        lanes = <Lane *>malloc(size)
        if lanes == NULL:
            return
        memset(lanes, 0, size)
        place = <uint8_t *>lanes + <size_t>count * sizeof(Lane)
        for i in range(count):
            n = <size_t>(columns[i].value_at - columns[i].name_at)
            place[0] = c'}'
            place[1] = c','
            memcpy(place + 2, columns[i].name_at, n)
            lanes[i].literal = place
            lanes[i].size = <int32_t>(n + 2)
            lanes[i].code = columns[i].code
            lanes[i].reading = <uint8_t>_reading_of(columns[i].code, columns[i].flags)
            lanes[i].sure_digits = <uint8_t>_sure_digits(columns[i].code)
            place += (n + 2 + 31) & ~<size_t>15
        if table.plan_count < MAX_PLANS:
            plan = &table.plans[table.plan_count]
            table.recent = table.plan_count
            table.plan_count += 1
        else:
            plan = &table.plans[table.oldest]
            table.recent = table.oldest
            table.oldest = (table.oldest + 1) % MAX_PLANS
            free(plan.lanes)
        plan.lanes = lanes
        plan.count = count
        plan.shape = shape

    # --- as it comes ---

    cdef int read_key(self, Cursor *k, Key *key) noexcept nogil:
        cdef Span name
        cdef uint64_t number = 0
        cdef int64_t rowid = 0
        cdef bint first = True, has_ts = False
        cdef int found
        cdef const uint8_t *began
        memset(key, 0, sizeof(Key))
        if json_open(k, c'{') < 0:
            return -1
        while True:
            found = json_member(k, &first, &self.out.scratch, &name)
            if found < 0:
                return -1
            if found == 0:
                break
            began = k.p
            if _named(&name, b"ts", 2):
                if has_ts:
                    return fail(k, FAULT_DUPLICATE)
                has_ts = True
                if json_u64(k, &number) < 0:
                    return -1
                if number > <uint64_t>0x7fffffffffffffff:
                    return fail_at(k, FAULT_RANGE, began)
                key.commit_ts = <int64_t>number
            elif _named(&name, b"scm", 3):
                if key.database.p != NULL:
                    return fail(k, FAULT_DUPLICATE)
                if json_span(k, &self.out.scratch, &key.database) < 0:
                    return -1
            elif _named(&name, b"tbl", 3):
                if key.table.p != NULL:
                    return fail(k, FAULT_DUPLICATE)
                if json_span(k, &self.out.scratch, &key.table) < 0:
                    return -1
            elif _letter(&name, c't'):
                if key.kind:
                    return fail(k, FAULT_DUPLICATE)
                if json_u64(k, &number) < 0:
                    return -1
                if number != ROW and number != DDL and number != RESOLVED:
                    return fail_at(k, FAULT_UNKNOWN_KIND, began)
                key.kind = <int>number
            elif _named(&name, b"rid", 3):
                if json_i64(k, &rowid) < 0:
                    return -1
            elif _named(&name, b"ptn", 3):
                if json_i64(k, &key.partition) < 0:
                    return -1
                key.has_partition = True
            elif _named(&name, b"ohk", 3):
                # The new architecture writes it twice on claim checks, and the second one is right.
                if json_bool(k, &key.only_handle_key) < 0:
                    return -1
            elif _named(&name, b"ccl", 3):
                if json_span(k, &self.out.scratch, &key.location) < 0:
                    return -1
            elif json_skip_other(k, &name, b"ts scm tbl t rid ptn ohk ccl ") < 0:
                return -1
        if json_finish(k) < 0:
            return -1
        if not has_ts or key.kind == 0:
            return fail(k, FAULT_MISSING)
        if key.kind == ROW:
            if key.database.p == NULL or key.table.p == NULL:
                return fail(k, FAULT_MISSING)
            key.known = self.find_table(&key.database, &key.table)
        return 0

    cdef int resolved_event(self, Cursor *c, const Key *key) noexcept nogil:
        cdef Row row
        if left(c) != 0:
            return fail(c, FAULT_TRAILING)
        row_init(&row, KIND_WATERMARK)
        row.commit_ts = key.commit_ts
        row.has = HAS_COMMIT_TS
        return self.out.add_row(c, &row)

    cdef int ddl_event(self, Cursor *c, Key *key) noexcept nogil:
        cdef Row row
        cdef Extra *extra
        cdef Span name, text, query
        cdef uint64_t code = 0
        cdef bint first = True, has_code = False
        cdef int found
        cdef const uint8_t *began
        query.p = NULL
        query.n = 0
        if left(c) == 0:
            return fail(c, FAULT_EMPTY)
        if json_open(c, c'{') < 0:
            return -1
        while True:
            found = json_member(c, &first, &self.out.scratch, &name)
            if found < 0:
                return -1
            if found == 0:
                break
            began = c.p
            if _letter(&name, c'q'):
                if query.p != NULL:
                    return fail(c, FAULT_DUPLICATE)
                if json_span(c, &self.out.scratch, &query) < 0:
                    return -1
            elif _letter(&name, c't'):
                if has_code:
                    return fail(c, FAULT_DUPLICATE)
                has_code = True
                # The document says it is a string; TiCDC writes a number.
                if c.p[0] == c'"':
                    if json_span(c, &self.out.scratch, &text) < 0:
                        return -1
                    if digits_u64(text.p, text.n, &code) < 0:
                        return fail_at(c, FAULT_NUMBER, began)
                elif json_u64(c, &code) < 0:
                    return -1
                if code > 0x7fffffff:
                    return fail_at(c, FAULT_RANGE, began)
            elif json_skip_other(c, &name, b"q t ") < 0:
                return -1
        if json_finish(c) < 0:
            return -1
        if query.p == NULL or not has_code:
            return fail(c, FAULT_MISSING)
        if key.database.n == 0:
            key.database.p = NULL
        if key.table.n == 0:
            key.table.p = NULL
        row_init(&row, KIND_DDL)
        row.commit_ts = key.commit_ts
        row.has = HAS_COMMIT_TS
        row.names = self.out.intern_names(&key.database, &key.table)
        extra = self.out.new_extra(&row)
        if row.names < 0 or extra == NULL:
            return fail(c, FAULT_MEMORY)
        extra.ddl_type = _ddl_words[code if code < 256 else 0]
        extra.ddl_code = <int32_t>code
        if self.out.keep(&query, &extra.query) < 0:
            return fail(c, FAULT_MEMORY)
        return self.out.add_row(c, &row)

    cdef int row_event(self, Cursor *c, Key *key) noexcept nogil:
        cdef Section update, delete, previous
        cdef Span name
        cdef bint first = True
        cdef int found
        memset(&update, 0, sizeof(Section))
        memset(&delete, 0, sizeof(Section))
        memset(&previous, 0, sizeof(Section))
        self.columns.used = 0
        self.event_at = c.p
        if left(c) == 0:
            if key.location.p == NULL:
                return fail(c, FAULT_EMPTY)
        else:
            if json_open(c, c'{') < 0:
                return -1
            while True:
                found = json_member(c, &first, &self.out.scratch, &name)
                if found < 0:
                    return -1
                if found == 0:
                    break
                if _letter(&name, c'u'):
                    found = self.read_section(c, &update, False)
                elif _letter(&name, c'p'):
                    found = self.read_section(c, &previous, True)
                elif _letter(&name, c'd'):
                    found = self.read_section(c, &delete, False)
                else:
                    found = json_skip_other(c, &name, b"u p d ")
                if found < 0:
                    return -1
            if json_finish(c) < 0:
                return -1
        if not update.there and not delete.there:
            if not first:
                return fail(c, FAULT_MISSING)
            if key.location.p == NULL:
                # Old versions sent `{}` for a row that came and went within a transaction.
                self.out.event += 1
                return 0
            update.there = True
        if delete.there and (update.there or previous.there):
            return fail(c, FAULT_UNKNOWN_KIND)
        return self.put_row(c, key, &update, &delete, &previous)

    cdef int read_section(self, Cursor *c, Section *section, bint may_be_bare) noexcept nogil:
        """The columns of `u`, `p` or `d` into self.columns, as they stand."""
        cdef Column column
        cdef Span name
        cdef bint open_bare = False
        cdef const uint8_t *name_at
        cdef int found
        if section.there:
            return fail(c, FAULT_DUPLICATE)
        section.there = True
        section.first = self.columns.used // sizeof(Column)
        if json_open(c, c'{') < 0:
            return -1
        memset(&column, 0, sizeof(Column))
        found = json_peek(c)
        while found != c'}':
            if found < 0:
                return -1
            if not open_bare and self.quick_column(c, section):
                found = c.p[0]
                if found == c',':
                    c.p += 1
                    found = json_peek(c)
                    if found == c'}':
                        return fail(c, FAULT_SYNTAX)
                continue
            name_at = c.p
            if found != c'"':
                return fail(c, FAULT_SYNTAX)
            if json_span(c, &self.out.scratch, &name) < 0 or json_expect(c, c':') < 0:
                return -1
            found = json_peek(c)
            if found < 0:
                return -1
            if found == c'{':
                if open_bare:
                    return fail(c, FAULT_MISSING)
                column.name = name
                column.name_at = name_at
                column.bare = False
                if self.read_column(c, &column) < 0 or self.add_column(c, section, &column) < 0:
                    return -1
            else:
                if not may_be_bare or name.n != 1:
                    return fail(c, FAULT_TYPE)
                if not open_bare:
                    memset(&column, 0, sizeof(Column))
                    column.code = -1
                    column.flags = -1
                    column.bare = True
                    column.name_at = name_at
                    section.bare = True
                    open_bare = True
                if self.read_bare(c, &name, &column) < 0:
                    return -1
                if column.value_at != NULL:
                    if self.add_column(c, section, &column) < 0:
                        return -1
                    open_bare = False
            found = json_peek(c)
            if found == c',':
                c.p += 1
                found = json_peek(c)
                if found == c'}':
                    return fail(c, FAULT_SYNTAX)
            elif found != c'}':
                return -1 if found < 0 else fail(c, FAULT_SYNTAX)
        if open_bare:
            return fail(c, FAULT_MISSING)
        c.p += 1
        return 0

    cdef int add_column(self, Cursor *c, Section *section, const Column *column) noexcept nogil:
        if section.count == MAX_COLUMNS:
            return fail(c, FAULT_COLUMNS)
        if buffer_reserve(&self.columns, sizeof(Column)) < 0:
            return fail(c, FAULT_MEMORY)
        (<Column *>(self.columns.data + self.columns.used))[0] = column[0]
        self.columns.used += sizeof(Column)
        section.count += 1
        return 0

    cdef bint quick_column(self, Cursor *c, Section *section) noexcept nogil:
        """Reads the column at the cursor if it is written without white space and escapes, members in
        any order, and stops behind it at a comma or brace. If not, nothing has happened."""
        cdef const uint8_t *p = c.p
        cdef const uint8_t *end = c.end
        cdef const uint8_t *limit = c.limit
        cdef Column *column
        cdef unsigned int high = 0
        cdef size_t run
        cdef uint64_t word
        cdef uint32_t number
        cdef int digits = 0
        cdef uint8_t letter
        cdef uint8_t text[32]
        cdef bint handle = False
        if section.count == MAX_COLUMNS or buffer_reserve(&self.columns, sizeof(Column)) < 0:
            return False
        column = <Column *>(self.columns.data + self.columns.used)
        column.name_at = p
        column.code = -1
        column.flags = -1
        column.value_at = NULL
        column.bare = False
        if p[0] != c'"':
            return False
        p += 1
        run = tg_plain_run(p, end, limit, &high)
        column.name.p = p
        column.name.n = run
        p += run
        if end - p < 8 or memcmp(p, b'":{', 3) != 0 or (high != 0 and not tg_utf8_valid(column.name.p, run)):
            return False
        p += 2
        while p[0] == c'{' or p[0] == c',':
            # `{"t":3}}` are eight bytes: so many are there at least
            if end - p < 8:
                return False
            word = tg_load_le64(p)
            if (word & <uint64_t>0xffff00ff00) != <uint64_t>0x3a22002200:   # ?"?":
                return False
            letter = <uint8_t>(word >> 16)
            p += 5
            if letter == c'v':
                if column.value_at != NULL:
                    return False
                column.value_at = p
                if p[0] == c'"':
                    p += 1
                    high = 0
                    run = tg_plain_run(p, end, limit, &high)
                    p += run
                    column.seen = SEEN_PLAIN if high == 0 else SEEN_OTHER
                    while p < end and p[0] == c'\\':
                        p += 2
                        if p >= end:
                            return False
                        p += tg_plain_run(p, end, limit, &high)
                        column.seen = SEEN_OTHER
                    if end - p < 3 or p[0] != c'"':
                        return False
                    p += 1
                elif p[0] == c'n':
                    if end - p < 6 or memcmp(p, b"null", 4) != 0:
                        return False
                    column.seen = SEEN_NULL
                    p += 4
                else:
                    run = open_integer(p, end, limit, text)
                    if run == 0 or end - p < <Py_ssize_t>run + 2:
                        return False
                    column.seen = SEEN_INTEGER
                    p += run
                column.value_end = p
            elif letter == c't' or letter == c'f':
                number = open_short_number(word >> 40, &digits)
                p += digits
                if digits == 0 or p >= end or tg_is_digit(p[0]):
                    return False
                if letter == c't':
                    if column.code >= 0 or number > 255:
                        return False
                    column.code = <int32_t>number
                else:
                    if column.flags >= 0:
                        return False
                    column.flags = <int32_t>number
            elif letter == c'h':
                if handle or end - p < 6 or memcmp(p, b"true", 4) != 0:
                    return False
                handle = True
                p += 4
            else:
                return False
        if p[0] != c'}' or column.code < 0 or column.value_at == NULL:
            return False
        column.plain = column.value_end == p
        p += 1
        if p >= end or (p[0] != c',' and p[0] != c'}'):
            return False
        column.key = handle or (column.flags >= 0 and column.flags & 2)
        c.p = p
        self.columns.used += sizeof(Column)
        section.count += 1
        return True

    cdef int read_bare(self, Cursor *c, const Span *name, Column *column) noexcept nogil:
        """One of the members t, h, f, v that stand in `p` without their column: `v` comes last."""
        cdef bint handle = False
        if _letter(name, c't'):
            if column.code >= 0:
                return fail(c, FAULT_DUPLICATE)
            return self.read_code(c, column)
        if _letter(name, c'f'):
            if column.flags >= 0:
                return fail(c, FAULT_DUPLICATE)
            return self.read_flags(c, column)
        if _letter(name, c'h'):
            if json_bool(c, &handle) < 0:
                return -1
            column.key |= handle
            return 0
        if not _letter(name, c'v'):
            return fail(c, FAULT_TYPE)
        if column.code < 0:
            return fail(c, FAULT_MISSING)
        return self.read_span(c, column)

    cdef inline int read_code(self, Cursor *c, Column *column) noexcept nogil:
        cdef uint64_t number = 0
        cdef const uint8_t *began = c.p
        if json_u64(c, &number) < 0:
            return -1
        if number > 255:
            return fail_at(c, FAULT_RANGE, began)
        column.code = <int32_t>number
        return 0

    cdef inline int read_flags(self, Cursor *c, Column *column) noexcept nogil:
        cdef uint64_t number = 0
        cdef const uint8_t *began = c.p
        if json_u64(c, &number) < 0:
            return -1
        if number > 0x7fffffff:
            return fail_at(c, FAULT_RANGE, began)
        column.flags = <int32_t>number
        return 0

    cdef inline int read_span(self, Cursor *c, Column *column) noexcept nogil:
        """Where the value stands; what it is can be told only when type and flags are known."""
        cdef Span number
        cdef int found
        column.value_at = c.p
        column.seen = SEEN_OTHER
        if c.p[0] == c'"':
            found = json_skip_string(c)
        elif c.p[0] == c'n':
            column.seen = SEEN_NULL
            found = 0 if json_is(c, b"null", 4) else fail(c, FAULT_SYNTAX)
        elif c.p[0] == c'-' or 48 <= c.p[0] <= 57:
            found = json_number(c, &number)
        else:
            found = fail(c, FAULT_TYPE)
        column.value_end = c.p
        return found

    cdef int read_column(self, Cursor *c, Column *column) noexcept nogil:
        cdef bint first = True, has_handle = False, handle = False
        cdef Span name
        cdef uint8_t letter
        cdef int found
        column.code = -1
        column.flags = -1
        column.key = 0
        column.value_at = NULL
        c.p += 1
        while True:
            found = json_peek(c)
            if found == c'}':
                break
            if not first:
                if found != c',':
                    return -1 if found < 0 else fail(c, FAULT_SYNTAX)
                c.p += 1
                found = json_peek(c)
            first = False
            if found != c'"':
                return -1 if found < 0 else fail(c, FAULT_SYNTAX)
            letter = 0
            if TG_LIKELY(left(c) >= 6 and c.p[2] == c'"' and c.p[3] == c':' and c.p[1] >= c'a'):
                letter = c.p[1]
                c.p += 4
            else:
                if json_span(c, &self.out.scratch, &name) < 0 or json_expect(c, c':') < 0:
                    return -1
                if name.n == 1:
                    letter = name.p[0]
            if json_peek(c) < 0:
                return -1
            if letter == c't':
                if column.code >= 0:
                    return fail(c, FAULT_DUPLICATE)
                found = self.read_code(c, column)
            elif letter == c'f':
                if column.flags >= 0:
                    return fail(c, FAULT_DUPLICATE)
                found = self.read_flags(c, column)
            elif letter == c'v':
                if column.value_at != NULL:
                    return fail(c, FAULT_DUPLICATE)
                found = self.read_span(c, column)
            elif letter == c'h':
                if has_handle:
                    return fail(c, FAULT_DUPLICATE)
                has_handle = True
                found = json_bool(c, &handle)
            else:
                found = json_skip_other(c, &name, b"t h f v ")
            if found < 0:
                return -1
        if column.code < 0 or column.value_at == NULL:
            return fail(c, FAULT_MISSING)
        column.key = handle or (column.flags >= 0 and column.flags & 2)
        column.plain = column.value_end == c.p
        c.p += 1
        return 0

    # --- from columns to a row ---

    cdef int put_row(self, Cursor *c, Key *key, Section *update, Section *delete,
                     Section *previous) noexcept nogil:
        cdef Section *main = delete if delete.there else update
        cdef Column *columns = <Column *>self.columns.data + main.first
        cdef Cells *cells = &self.out.before if delete.there else &self.out.after
        cdef Row row
        cdef int32_t i
        row_init(&row, KIND_DELETE if delete.there else KIND_UPDATE if previous.there else KIND_INSERT)
        row.has = HAS_BEFORE if delete.there else HAS_AFTER
        row.shape = self.find_shape(c, key, columns, main.count)
        if row.shape < 0:
            return -1
        if cells_reserve(cells, main.count) < 0:
            return fail(c, FAULT_MEMORY)
        if self.reserve_text(c, cells) < 0:
            return -1
        for i in range(main.count):
            if self.put_cell(c, cells, &columns[i]) < 0:
                return -1
        if previous.there and self.put_previous(c, &row, main, previous) < 0:
            return -1
        return self.add_row(c, &row, key)

    cdef inline int put_cell(self, Cursor *c, Cells *cells, const Column *column) noexcept nogil:
        """The column's value as the next cell; c.p is left alone, a fault is noted. There is room for
        as many bytes of text as the value has, and 32 more."""
        cdef int reading
        cdef size_t n
        cdef uint8_t *text
        if column.seen == SEEN_NULL:
            cell_null(cells)
            return 0
        reading = _reading_of(column.code, column.flags)
        text = cells.text.data + cells.text.used
        if column.seen == SEEN_PLAIN and reading <= READ_TIME:
            n = <size_t>(column.value_end - column.value_at) - 2
            tg_copy(text, column.value_at + 1, n, c.limit)
            if reading == READ_TEXT or _text_fits(reading, text, n, text + n + 16):
                cells.text.used += n
                cell_end(cells)
                return 0
        elif column.seen == SEEN_INTEGER and reading == READ_INTEGER:
            n = <size_t>(column.value_end - column.value_at)
            if n <= <size_t>_sure_digits(column.code) or _integer_fits(column.value_at, n, column.code):
                tg_copy(text, column.value_at, n, c.limit)
                cells.text.used += n
                cell_end(cells)
                return 0
        return self.put_other_cell(c, cells, column, reading)

    cdef int put_other_cell(self, Cursor *c, Cells *cells, const Column *column, int reading) noexcept nogil:
        cdef Cursor value = c[0]
        value.p = column.value_at
        value.end = column.value_end
        if _read_value(&value, &cells.text, &self.aside, reading, column.code) < 0:
            return fail_at(c, value.fault, value.fault_at)
        cell_end(cells)
        return self.reserve_text(c, cells)

    cdef inline int reserve_text(self, Cursor *c, Cells *cells) noexcept nogil:
        """Room for all plain values of this event."""
        if buffer_reserve(&cells.text, <size_t>(c.end - self.event_at) + 64) < 0:
            return fail(c, FAULT_MEMORY)
        return 0

    cdef int32_t find_shape(self, Cursor *c, Key *key, const Column *columns, int32_t count) noexcept nogil:
        """The shape of these columns, remembered or registered; -1 a fault."""
        cdef Table *table = key.known
        cdef ShapeColumn *known
        cdef ShapeColumn *fresh
        cdef int32_t i, plan, shape
        cdef size_t before
        if table != NULL:
            for plan in range(table.plan_count):
                if table.plans[plan].count != count:
                    continue
                known = self.out.shape(table.plans[plan].shape).columns
                for i in range(count):
                    if known[i].code != columns[i].code or known[i].flags != columns[i].flags or \
                            known[i].key != columns[i].key or not _same_name(&known[i].name, &columns[i].name):
                        break
                else:
                    return table.plans[plan].shape
        if self.check_names(c, columns, count) < 0:
            return -1
        self.shape_columns.used = 0
        if buffer_reserve(&self.shape_columns, <size_t>count * sizeof(ShapeColumn)) < 0:
            return fail(c, FAULT_MEMORY)
        fresh = <ShapeColumn *>self.shape_columns.data
        memset(fresh, 0, <size_t>count * sizeof(ShapeColumn))
        for i in range(count):
            fresh[i].name = columns[i].name
            fresh[i].code = columns[i].code
            fresh[i].flags = columns[i].flags
            fresh[i].key = columns[i].key
        before = self.out.shapes.used
        shape = self.out.register_shape(c, &key.database, &key.table, fresh, count)
        if shape < 0:
            return -1
        # A table is remembered at once, a shape when it comes again: messages whose columns stand in
        # another order each time are not worth it.
        if table == NULL:
            table = self.learn_table(key)
        if table != NULL and self.out.shapes.used == before:
            self.learn_plan(table, shape, columns, count)
        return shape

    cdef int check_names(self, Cursor *c, const Column *columns, int32_t count) noexcept nogil:
        """Fills self.slots with the columns by their names; a name that comes twice is a fault."""
        cdef size_t size = 16
        cdef size_t slot
        cdef int32_t *slots
        cdef int32_t i
        while size < <size_t>count * 2:
            size *= 2
        self.slots.used = 0
        if buffer_reserve(&self.slots, size * sizeof(int32_t)) < 0:
            return fail(c, FAULT_MEMORY)
        self.slots.used = size * sizeof(int32_t)
        slots = <int32_t *>self.slots.data
        memset(slots, 0xff, self.slots.used)
        for i in range(count):
            slot = open_name_hash(columns[i].name.p, columns[i].name.n) & (size - 1)
            while slots[slot] >= 0:
                if _same_name(&columns[slots[slot]].name, &columns[i].name):
                    return fail_at(c, FAULT_DUPLICATE, columns[i].name_at)
                slot = (slot + 1) & (size - 1)
            slots[slot] = i
        return 0

    cdef int32_t find_name(self, const Column *columns, const Span *name) noexcept nogil:
        """The column of this name by self.slots; -1 if there is none."""
        cdef int32_t *slots = <int32_t *>self.slots.data
        cdef size_t size = self.slots.used // sizeof(int32_t)
        cdef size_t slot = open_name_hash(name.p, name.n) & (size - 1)
        while slots[slot] >= 0:
            if _same_name(&columns[slots[slot]].name, name):
                return slots[slot]
            slot = (slot + 1) & (size - 1)
        return -1

    cdef int put_previous(self, Cursor *c, Row *row, Section *main, Section *previous) noexcept nogil:
        """The cells of `before`, in the order of `u`; what `p` does not carry is marked."""
        cdef Column *columns = <Column *>self.columns.data + main.first
        cdef Column *olds = <Column *>self.columns.data + previous.first
        cdef Column *old
        cdef int32_t *places
        cdef int32_t i, place, expected = 0
        cdef bint hashed = False
        cdef uint8_t *missing = NULL
        row.has |= HAS_BEFORE
        self.places.used = 0
        if buffer_reserve(&self.places, <size_t>main.count * sizeof(int32_t)) < 0 or \
                cells_reserve(&self.out.before, main.count) < 0:
            return fail(c, FAULT_MEMORY)
        if self.reserve_text(c, &self.out.before) < 0:
            return -1
        places = <int32_t *>self.places.data
        memset(places, 0xff, <size_t>main.count * sizeof(int32_t))
        for i in range(previous.count):
            old = &olds[i]
            if old.bare:
                continue
            place = expected
            if place >= main.count or not _same_name(&columns[place].name, &old.name):
                if not hashed:
                    if self.check_names(c, columns, main.count) < 0:
                        return -1
                    hashed = True
                place = self.find_name(columns, &old.name)
                if place < 0:
                    return fail_at(c, FAULT_COLUMNS, old.name_at)
            if places[place] >= 0:
                return fail_at(c, FAULT_DUPLICATE, old.name_at)
            if _reading_of(old.code, old.flags) != _reading_of(columns[place].code, columns[place].flags):
                return fail_at(c, FAULT_COLUMNS, old.name_at)
            old.place = place
            places[place] = i
            expected = place + 1
        if previous.bare and self.place_bare(c, row, columns, main.count, olds, previous.count, places) < 0:
            return -1
        for i in range(main.count):
            if places[i] >= 0:
                if self.put_cell(c, &self.out.before, &olds[places[i]]) < 0:
                    return -1
                continue
            if missing == NULL:
                missing = self.out.new_missing(row, main.count)
                if missing == NULL:
                    return fail(c, FAULT_MEMORY)
            missing[i >> 3] |= <uint8_t>(1 << (i & 7))
            cell_null(&self.out.before)
        return 0

    cdef int place_bare(self, Cursor *c, Row *row, Column *columns, int32_t count, Column *olds,
                        int32_t old_count, int32_t *places) noexcept nogil:
        """Finds the columns of values that lost their names. The new architecture forgets the name where
        a value became NULL, and writes in the order of `u`: such a value belongs to a column that is NULL
        in `u`, not in `p`, of its type and flags, and between its neighbours. Where only one way is
        left it is taken, else the value is given up and the row says so."""
        cdef int32_t i, place, bound
        # The first column each can belong to, ...
        place = -1
        for i in range(old_count):
            if not olds[i].bare:
                if olds[i].place <= place:
                    return fail_at(c, FAULT_COLUMNS, olds[i].name_at)
                place = olds[i].place
                continue
            place += 1
            while place < count and not self.is_candidate(&columns[place], &olds[i], places[place]):
                place += 1
            if place >= count:
                return fail_at(c, FAULT_COLUMNS, olds[i].name_at)
            olds[i].place = place
        # ... and the last one.
        bound = count
        for i in range(old_count - 1, -1, -1):
            if not olds[i].bare:
                bound = olds[i].place
                continue
            bound -= 1
            while not self.is_candidate(&columns[bound], &olds[i], places[bound]):
                bound -= 1
            if bound != olds[i].place:
                olds[i].place = -1
                row.flags |= FLAG_BEFORE_AMBIGUOUS
        for i in range(old_count):
            if olds[i].bare and olds[i].place >= 0:
                places[olds[i].place] = i
        return 0

    cdef inline bint is_candidate(self, const Column *column, const Column *old, int32_t taken) noexcept nogil:
        return column.seen == SEEN_NULL and taken < 0 and column.code == old.code and column.flags == old.flags


# --- encoding ------------------------------------------------------------------------------------

OPTIONS = frozenset(
    {
        "claim_check",
        "compression",
        "delete_only_output_handle_key_columns",
        "generation",
        "large_message_handle",
        "mix_tables",
        "only_output_updated_columns",
        "output_old_value",
    }
)

cdef enum:
    STYLE_NEW = 0               # jsoniter: no HTML or separators escaped, neither \b nor \f
    RECORD_OVERHEAD = 36        # what TiCDC counts for Kafka's own framing of a record
    UNFIT = -2                  # a value that its column cannot hold

# Which columns of a row are written.
cdef enum Choice:
    ALL_COLUMNS = 0
    HANDLE_COLUMNS = 1
    UPDATED_COLUMNS = 2


# A column as it is written: the bytes before the value, and how the value is spelled.
cdef struct Slot:
    const uint8_t *literal      # `,"name":{"t":3,"h":true,"f":11,"v":`, padded
    size_t size
    int32_t column              # its place in the shape
    int32_t code
    uint8_t reading
    uint8_t handle


cdef bytes _json_string(str text, int style):
    cdef bytes plain = text.encode()
    cdef Buffer buffer
    cdef const uint8_t *p = <const uint8_t *><const char *>plain
    memset(&buffer, 0, sizeof(Buffer))
    try:
        if json_put_string(&buffer, p, len(plain), p + len(plain), style) < 0:
            raise MemoryError
        return (<const char *>buffer.data)[:buffer.used]
    finally:
        buffer_free(&buffer)


cdef class _WritePlan:
    """The columns of a shape in the order in which they are written."""
    cdef Slot *slots
    cdef int32_t count
    cdef int32_t handles        # how many columns make up the handle key
    cdef int32_t rowid          # the column that is the row's integer handle, -1: not known
    cdef object shape
    cdef list literals

    def __cinit__(self, shape, int style):
        cdef int32_t i
        cdef Slot *slot
        cdef bytes literal
        self.shape = shape
        self.count = <int32_t>len(shape.columns)
        self.rowid = -1
        self.literals = []
        self.slots = <Slot *>malloc((<size_t>self.count + 1) * sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError
        places = list(range(self.count))
        if style != STYLE_NEW:
            # encoding/json writes a map in the order of its keys' bytes.
            places.sort(key=lambda place: shape.columns[place].name.encode())
        for i, place in enumerate(places):
            column = shape.columns[place]
            if column.code is None:
                raise self.refusal("the type of the column is not known", place)
            flags = column.flags or 0
            slot = &self.slots[i]
            slot.column = place
            slot.code = column.code
            slot.reading = <uint8_t>_reading_of(slot.code, flags)
            slot.handle = column.key or (flags & Flag.HANDLE_KEY) != 0
            self.handles += slot.handle
            literal = b',%b:{"t":%d,%b"f":%d,"v":' % (
                _json_string(column.name, style), slot.code, b'"h":true,' if slot.handle else b"", flags
            )
            slot.size = len(literal)
            literal += bytes(32)
            self.literals.append(literal)
            slot.literal = <const uint8_t *><const char *>literal
            # Of a table whose primary key is one integer column, that is TiDB's own handle of a row,
            # unless the key is NONCLUSTERED, which the wire does not tell.
            if slot.handle and flags & Flag.PRIMARY_KEY and _sure_digits(slot.code):
                self.rowid = place
        if self.handles != 1:
            self.rowid = -1

    def __dealloc__(self):
        free(self.slots)

    def refusal(self, reason, place=None):
        """The error that says why a row of this shape, or a column of it, cannot be written."""
        return EncodeError(
            "open-protocol",
            reason,
            database=self.shape.database,
            table=self.shape.table,
            field=None if place is None else self.shape.columns[place].name,
        )


cdef inline int _put(Buffer *b, const char *text, size_t n) noexcept nogil:
    return buffer_add(b, <const uint8_t *>text, n)


cdef inline void _set_be64(uint8_t *place, uint64_t value) noexcept nogil:
    cdef int i
    for i in range(8):
        place[i] = <uint8_t>(value >> (56 - 8 * i))


cdef class Encoder:
    """Writes change batches as Open Protocol messages, rows of a table joined as TiCDC joins them."""
    cdef object options
    cdef object compress
    cdef dict plans             # by shape and schema version
    cdef _WritePlan plan        # the last one
    cdef int64_t plan_shape
    cdef int64_t plan_version
    cdef dict heads             # `,"scm":"d","tbl":"t"` by database and table
    cdef bytes head             # the last one, and its names
    cdef bytes database
    cdef bytes table
    cdef int style
    cdef bint new
    cdef bint old_value
    cdef bint only_updated
    cdef bint delete_handle_only
    cdef bint mix_tables
    cdef size_t max_bytes
    cdef int32_t max_events
    cdef Buffer aside           # bytes of a binary value
    cdef Buffer quoted          # the same in Go's escapes
    cdef int32_t unfit          # the column that could not be written
    # The message being put together: it goes on while rows fit.
    cdef int32_t events
    cdef int32_t first_row
    cdef size_t key_start
    cdef size_t value_start
    cdef bytes joined_head      # the table of its rows

    def __init__(self, options, compress=None):
        if options.large_message_handle == "claim-check" and options.claim_check is None:
            raise ConfigError(
                "claim_check", "large-message-handle=claim-check needs a place to store objects"
            )
        self.options = options
        self.compress = compress
        self.plans = {}
        self.heads = {}
        self.new = options.generation == "new"
        self.style = STYLE_NEW if self.new else STYLE_ENCODING_JSON
        self.old_value = options.output_old_value
        self.only_updated = options.only_output_updated_columns
        self.delete_handle_only = options.delete_only_output_handle_key_columns
        self.mix_tables = options.mix_tables
        self.max_bytes = max(options.max_message_bytes, 0)
        self.max_events = max(options.max_batch_size, 1)

    def __dealloc__(self):
        buffer_free(&self.aside)
        buffer_free(&self.quoted)

    def encode(self, BatchReader reader not None, shapes, MessageBuilder messages not None):
        """Writes the batch's rows in order."""
        cdef int64_t row
        cdef int kind
        self.events = 0
        for row in range(reader.count):
            kind = reader.kinds[row]
            if kind <= KIND_DELETE:
                self.write_row(reader, shapes, messages, row, kind)
            elif kind == KIND_DDL:
                self.finish_message(messages)
                self.write_ddl(reader, messages, row)
            elif kind == KIND_WATERMARK:
                self.finish_message(messages)
                self.write_watermark(reader, messages, row)
            elif kind == KIND_ERROR:
                raise EncodeError(
                    "open-protocol", f"row {row} of the batch is a message that could not be read"
                )
        self.finish_message(messages)

    # --- messages ---

    cdef int finish_message(self, MessageBuilder messages) except -1:
        if self.events:
            messages.end(True, self.first_row, self.events)
            self.events = 0
        return 0

    cdef int begin_event(self, MessageBuilder messages) except -1:
        """Room for the lengths, which are known at the end."""
        if buffer_reserve(&messages.key, 8) < 0 or buffer_reserve(&messages.value, 8) < 0:
            raise MemoryError
        messages.key.used += 8
        messages.value.used += 8
        return 0

    cdef int end_event(self, MessageBuilder messages, int64_t row, size_t key_at, size_t value_at,
                       bint alone) except -1:
        """The event written from key_at and value_at on joins the message, or begins another one."""
        cdef size_t key_end = messages.key.used
        cdef size_t value_end = messages.value.used
        cdef size_t size = key_end - key_at + value_end - value_at
        _set_be64(messages.key.data + key_at, key_end - key_at - 8)
        _set_be64(messages.value.data + value_at, value_end - value_at - 8)
        if self.events and (
            alone
            or self.events >= self.max_events
            or (self.joined_head is not self.head and not self.mix_tables)
            or key_at - self.key_start + value_at - self.value_start + RECORD_OVERHEAD + size > self.max_bytes
        ):
            messages.key.used = key_at
            messages.value.used = value_at
            self.finish_message(messages)
            messages.key.used = key_end
            messages.value.used = value_end
        if self.events == 0:
            if buffer_reserve(&messages.key, 8) < 0:
                raise MemoryError
            memmove(messages.key.data + key_at + 8, messages.key.data + key_at, key_end - key_at)
            _set_be64(messages.key.data + key_at, VERSION)
            messages.key.used += 8
            self.key_start = key_at
            self.value_start = value_at
            self.first_row = <int32_t>row
            self.joined_head = self.head
        self.events += 1
        if alone:
            self.finish_message(messages)
        return 0

    cdef int compress_value(self, MessageBuilder messages, size_t value_at) except -1:
        cdef bytes value
        cdef size_t start = value_at + 8
        if self.compress is None:
            return 0
        value = self.compress((<const char *>messages.value.data)[start:messages.value.used])
        messages.value.used = start
        if buffer_add(&messages.value, <const uint8_t *><const char *>value, len(value)) < 0:
            raise MemoryError
        return 0

    # --- keys ---

    cdef int64_t commit_ts(self, BatchReader reader, int64_t row) except -1:
        cdef int64_t ts = -1
        if not long_at(&reader.commit_ts, row, &ts) or ts < 0:
            raise EncodeError("open-protocol", f"row {row} of the batch has no commit_ts")
        return ts

    cdef int find_head(self, BatchReader reader, int64_t row, bint is_ddl) except -1:
        """self.head for the names of this row."""
        cdef Span database, table
        string_at(&reader.database, row, &database)
        string_at(&reader.table, row, &table)
        if not is_ddl and (database.n == 0 or table.n == 0):
            raise EncodeError("open-protocol", f"row {row} of the batch names no table")
        if self.head is not None and len(self.database) == <Py_ssize_t>database.n and \
                len(self.table) == <Py_ssize_t>table.n and \
                memcmp(<const char *>self.database, database.p, database.n) == 0 and \
                memcmp(<const char *>self.table, table.p, table.n) == 0:
            return 0
        self.database = (<const char *>database.p)[:database.n]
        self.table = (<const char *>table.p)[:table.n]
        self.head = self.heads.get((self.database, self.table))
        if self.head is None:
            self.head = b"".join(
                b',"%b":%b' % (member, _json_string(name.decode(), self.style))
                for member, name in ((b"scm", self.database), (b"tbl", self.table))
                # The classic encoder leaves out what is empty: a database's DDL has no table.
                if name or self.new
            )
            self.heads[self.database, self.table] = self.head
        return 0

    cdef int put_key(self, MessageBuilder messages, int64_t commit_ts, int kind) except -1:
        cdef Buffer *b = &messages.key
        if _put(b, b'{"ts":', 6) < 0 or put_i64(b, commit_ts) < 0:
            raise MemoryError
        if kind != RESOLVED and _put(b, <const char *>self.head, len(self.head)) < 0:
            raise MemoryError
        return 0

    cdef int put_row_key(self, BatchReader reader, MessageBuilder messages, int64_t row, int kind,
                         int64_t commit_ts, bint only_handle_key, const Span *location) except -1:
        cdef Buffer *b = &messages.key
        cdef int64_t number = 0
        cdef bint failed = False
        self.put_key(messages, commit_ts, ROW)
        if not self.new:
            if self.plan.rowid >= 0 and self.row_id(reader, row, kind, &number) and number != 0:
                failed |= _put(b, b',"rid":', 7) < 0 or put_i64(b, number) < 0
            if long_at(&reader.table_id, row, &number):
                failed |= _put(b, b',"ptn":', 7) < 0 or put_i64(b, number) < 0
        failed |= _put(b, b',"t":1', 6) < 0
        if location.p != NULL:
            # The new architecture writes `"ohk":true` before it, which means the opposite.
            if self.new:
                failed |= _put(b, b',"ohk":false', 12) < 0
            failed |= _put(b, b',"ccl":', 7) < 0
            failed |= json_put_string(b, location.p, location.n, location.p + location.n, self.style) < 0
        elif only_handle_key:
            failed |= _put(b, b',"ohk":true', 11) < 0
        if self.new and long_at(&reader.table_id, row, &number):
            failed |= _put(b, b',"ptn":', 7) < 0 or put_i64(b, number) < 0
        if failed or _put(b, b"}", 1) < 0:
            raise MemoryError
        return 0

    cdef bint row_id(self, BatchReader reader, int64_t row, int kind, int64_t *out) noexcept nogil:
        """TiDB's integer handle of the row: 64 bits, signed whatever the column is."""
        cdef Span cell
        cdef uint64_t unsigned = 0
        if not view_cell(&reader.before if kind == KIND_DELETE else &reader.after, row, self.plan.rowid, &cell):
            return False
        if digits_i64(cell.p, cell.n, out) == 0:
            return True
        if digits_u64(cell.p, cell.n, &unsigned) < 0:
            return False
        out[0] = <int64_t>unsigned
        return True

    # --- rows ---

    cdef int find_plan(self, BatchReader reader, shapes, int64_t row) except -1:
        """self.plan for the shape of this row."""
        cdef int64_t shape = 0, version = -1
        if not long_at(&reader.shape, row, &shape):
            raise EncodeError("open-protocol", f"row {row} of the batch has no shape")
        if not long_at(&reader.schema_version, row, &version):
            version = -1
        if self.plan is not None and shape == self.plan_shape and version == self.plan_version:
            return 0
        key = (shape, None if version < 0 else version)
        plan = self.plans.get(key)
        if plan is None:
            known = shapes.shape(*key)
            if known is None:
                raise SchemaNotSeen(
                    self.database.decode(), self.table.decode(), version=key[1], shape=shape
                )
            plan = self.plans[key] = _WritePlan(known, self.style)
        self.plan = plan
        self.plan_shape = shape
        self.plan_version = version
        return 0

    cdef int write_row(self, BatchReader reader, shapes, MessageBuilder messages, int64_t row,
                       int kind) except -1:
        cdef int64_t commit_ts = self.commit_ts(reader, row)
        cdef size_t key_at = messages.key.used
        cdef size_t value_at = messages.value.used
        cdef int32_t flags = reader.flags[row]
        cdef Span location
        self.find_head(reader, row, False)
        self.find_plan(reader, shapes, row)
        self.check_row(reader, row, kind)
        if not string_at(&reader.claim_check, row, &location) or not flags & FLAG_CLAIM_CHECK:
            location.p = NULL
        self.begin_event(messages)
        self.put_row_key(reader, messages, row, kind, commit_ts, (flags & FLAG_HANDLE_KEY_ONLY) != 0, &location)
        self.put_row_value(reader, messages, row, kind, ALL_COLUMNS)
        self.compress_value(messages, value_at)
        if self.is_too_large(messages, key_at, value_at):
            self.write_large(reader, messages, row, kind, commit_ts, key_at, value_at)
        self.end_event(messages, row, key_at, value_at, False)
        return 0

    cdef int check_row(self, BatchReader reader, int64_t row, int kind) except -1:
        """A row has the sides that its kind asks for, each with a value for every column."""
        cdef bint after = view_has(&reader.after, row)
        cdef bint before = view_has(&reader.before, row)
        if (kind == KIND_DELETE and not before) or (kind != KIND_DELETE and not after) or \
                (after and view_count(&reader.after, row) != self.plan.count) or \
                (before and view_count(&reader.before, row) != self.plan.count):
            raise self.plan.refusal(
                f"row {row} of the batch does not have a value for each column of its shape"
            )
        return 0

    cdef bint is_too_large(self, MessageBuilder messages, size_t key_at, size_t value_at):
        """Whether the event would not even fit alone: with the version, and both lengths."""
        return messages.key.used - key_at + messages.value.used - value_at + 8 + RECORD_OVERHEAD > self.max_bytes

    cdef int write_large(self, BatchReader reader, MessageBuilder messages, int64_t row, int kind,
                         int64_t commit_ts, size_t key_at, size_t value_at) except -1:
        """Puts the handle key in the place of a row that is too large, as the options ask."""
        cdef Span location
        cdef bytes kept
        cdef size_t size = messages.key.used - key_at + messages.value.used - value_at + 8 + RECORD_OVERHEAD
        too_large = f"it takes {size} bytes, and max-message-bytes is {self.max_bytes}"
        if self.options.large_message_handle is None or reader.flags[row] & (FLAG_HANDLE_KEY_ONLY | FLAG_CLAIM_CHECK):
            raise self.plan.refusal(too_large)
        if self.plan.handles == 0:
            raise self.plan.refusal(f"{too_large}; it has no handle key to write in its place")
        location.p = NULL
        location.n = 0
        if self.options.large_message_handle == "claim-check":
            _set_be64(messages.key.data + key_at, messages.key.used - key_at - 8)
            _set_be64(messages.value.data + value_at, messages.value.used - value_at - 8)
            kept = self.options.claim_check(
                pack(
                    VERSION.to_bytes(8) + (<const char *>messages.key.data)[key_at:messages.key.used],
                    (<const char *>messages.value.data)[value_at:messages.value.used],
                )
            ).encode()
            location.p = <const uint8_t *><const char *>kept
            location.n = len(kept)
        messages.key.used = key_at + 8
        messages.value.used = value_at + 8
        self.put_row_key(reader, messages, row, kind, commit_ts, True, &location)
        self.put_row_value(reader, messages, row, kind, HANDLE_COLUMNS)
        self.compress_value(messages, value_at)
        if self.is_too_large(messages, key_at, value_at):
            raise self.plan.refusal(f"{too_large}; its handle key alone does not fit either")
        return 0

    cdef int put_row_value(self, BatchReader reader, MessageBuilder messages, int64_t row, int kind,
                           int choice) except -1:
        cdef int written
        self.unfit = -1
        if kind == KIND_DELETE and self.delete_handle_only:
            choice = HANDLE_COLUMNS
            if self.plan.handles == 0:
                raise self.plan.refusal("it has no handle key, and nothing else may be written of a delete")
        with nogil:
            written = self.put_sides(reader, &messages.value, row, kind, choice)
        if written == UNFIT:
            raise self.plan.refusal("a value does not fit its column", self.unfit)
        if written < 0:
            raise MemoryError
        return 0

    cdef int put_sides(self, BatchReader reader, Buffer *b, int64_t row, int kind, int choice) noexcept nogil:
        cdef int written
        cdef size_t mark
        if kind == KIND_DELETE:
            if _put(b, b'{"d":{', 6) < 0:
                return -1
            written = self.put_section(reader, b, &reader.before, row, choice)
            if written < 0:
                return written
            return _put(b, b"}}", 2)
        if _put(b, b'{"u":{', 6) < 0:
            return -1
        written = self.put_section(reader, b, &reader.after, row, choice)
        if written < 0:
            return written
        if kind == KIND_UPDATE and self.old_value and view_has(&reader.before, row):
            mark = b.used
            if _put(b, b'},"p":{', 7) < 0:
                return -1
            if self.only_updated:
                choice |= UPDATED_COLUMNS
            written = self.put_section(reader, b, &reader.before, row, choice)
            if written < 0:
                return written
            # The classic encoder leaves an empty `p` out.
            if written == 0 and not self.new:
                b.used = mark
        return _put(b, b"}}", 2)

    cdef int put_section(self, BatchReader reader, Buffer *b, const CellsView *view, int64_t row,
                         int choice) noexcept nogil:
        """How many columns were written; -1 without memory, UNFIT for a value that does not fit."""
        cdef Slot *slot = self.plan.slots
        cdef Slot *end = slot + self.plan.count
        cdef size_t lead = 1    # the first column has no comma before it
        cdef int count = 0
        cdef int failed
        cdef Span cell, missing
        cdef bint there
        missing.p = NULL
        missing.n = 0
        if view == &reader.before:
            string_at(&reader.missing, row, &missing)
        while slot < end:
            if choice & HANDLE_COLUMNS and not slot.handle:
                slot += 1
                continue
            if missing.p != NULL and <size_t>(slot.column >> 3) < missing.n and \
                    (missing.p[slot.column >> 3] >> (slot.column & 7)) & 1:
                slot += 1
                continue
            there = view_cell(view, row, slot.column, &cell)
            if choice & UPDATED_COLUMNS and not self.is_updated(reader, row, slot.column, there, &cell):
                slot += 1
                continue
            if not there:
                cell.n = 0
            if buffer_reserve(b, slot.size + 6 * cell.n + 64) < 0:
                return -1
            tg_copy(b.data + b.used, slot.literal + lead, slot.size - lead, slot.literal + slot.size + 32)
            b.used += slot.size - lead
            lead = 0
            count += 1
            if not there:
                memcpy(b.data + b.used, b"null}", 5)
                b.used += 5
            else:
                failed = self.put_value(b, slot, &cell, view.limit)
                if failed < 0:
                    self.unfit = slot.column
                    return failed
                b.data[b.used] = c'}'
                b.used += 1
            slot += 1
        return count

    cdef bint is_updated(self, BatchReader reader, int64_t row, int32_t column, bint there,
                         const Span *cell) noexcept nogil:
        cdef Span after
        if view_cell(&reader.after, row, column, &after) != there:
            return True
        return there and (after.n != cell.n or memcmp(after.p, cell.p, cell.n) != 0)

    cdef int put_value(self, Buffer *b, const Slot *slot, const Span *cell, const uint8_t *limit) noexcept nogil:
        """The value, with room for it and 32 bytes more reserved (six bytes for each of its own)."""
        cdef uint8_t *place = b.data + b.used
        cdef int reading = slot.reading
        cdef size_t n
        cdef int64_t size
        if reading == READ_INTEGER:
            n = open_integer(cell.p, cell.p + cell.n, limit, place)
            if n == 0 or n != cell.n or not (n <= <size_t>_sure_digits(slot.code)
                                             or _integer_fits(cell.p, n, slot.code)):
                return UNFIT
            b.used += n
            return 0
        if reading == READ_FLOAT or reading == READ_DOUBLE:
            size = tg_go_json_float(cell.p, cell.n, reading == READ_FLOAT, self.new, place)
            if size < 0:
                return UNFIT
            b.used += <size_t>size
            return 0
        if reading == READ_NULL:
            return UNFIT
        place[0] = c'"'
        if reading <= READ_TIME or reading == READ_ANY:
            n = tg_copy_writable_run(cell.p, cell.p + cell.n, limit, place + 1)
            if TG_LIKELY(n == cell.n):
                place[n + 1] = c'"'
                b.used += n + 2
                return 0
            b.used += 1
            if json_put_body(b, cell.p, cell.n, limit, self.style) < 0:
                return -1
        elif reading == READ_BASE64_TEXT:
            b.used += 1 + tg_base64_encode(cell.p, cell.n, place + 1)
        else:
            self.aside.used = 0
            if buffer_reserve(&self.aside, cell.n) < 0:
                return -1
            size = tg_base64_decode(cell.p, cell.n, self.aside.data)
            if size < 0:
                return UNFIT
            if reading == READ_BASE64:
                memcpy(place + 1, cell.p, cell.n)
                b.used += 1 + cell.n
            else:
                if buffer_reserve(&self.quoted, 4 * <size_t>size) < 0:
                    return -1
                n = tg_go_quote(self.aside.data, <size_t>size, self.quoted.data)
                b.used += 1
                if json_put_body(b, self.quoted.data, n, self.quoted.data + n, self.style) < 0:
                    return -1
        if buffer_reserve(b, 32) < 0:
            return -1
        b.data[b.used] = c'"'
        b.used += 1
        return 0

    # --- DDL and watermarks ---

    cdef int write_ddl(self, BatchReader reader, MessageBuilder messages, int64_t row) except -1:
        cdef int64_t commit_ts = self.commit_ts(reader, row)
        cdef size_t key_at = messages.key.used
        cdef size_t value_at = messages.value.used
        cdef Buffer *b = &messages.value
        cdef Span query, word
        if not string_at(&reader.query, row, &query):
            raise EncodeError("open-protocol", f"the DDL in row {row} of the batch has no query")
        code = reader.ddl_code(row)
        if code is None:
            string_at(&reader.ddl_type, row, &word)
            code = action_code(
                (<const char *>word.p)[:word.n].decode(), (<const char *>query.p)[:query.n].decode()
            )
        self.find_head(reader, row, True)
        self.begin_event(messages)
        self.put_key(messages, commit_ts, DDL)
        if _put(&messages.key, b',"t":2}', 7) < 0 or _put(b, b'{"q":', 5) < 0 or \
                json_put_string(b, query.p, query.n, query.p + query.n, self.style) < 0 or \
                _put(b, b',"t":', 5) < 0 or put_i64(b, 0 if code is None else code) < 0 or \
                _put(b, b"}", 1) < 0:
            raise MemoryError
        self.compress_value(messages, value_at)
        self.end_event(messages, row, key_at, value_at, True)
        return 0

    cdef int write_watermark(self, BatchReader reader, MessageBuilder messages, int64_t row) except -1:
        cdef int64_t commit_ts = self.commit_ts(reader, row)
        cdef size_t key_at = messages.key.used
        cdef size_t value_at = messages.value.used
        self.begin_event(messages)
        self.put_key(messages, commit_ts, RESOLVED)
        if _put(&messages.key, b',"t":3}', 7) < 0:
            raise MemoryError
        self.end_event(messages, row, key_at, value_at, True)
        return 0
