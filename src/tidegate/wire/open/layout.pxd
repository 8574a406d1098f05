"""What Open Protocol messages are made of, and how the values of each column type stand in them."""

from tidegate.wire.codec.prelude cimport *


cdef extern from "_open.h" nogil:
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
    MAX_PLANS = 4               # shapes of one table that are predicted
    MAX_PLAN_BYTES = 65536      # literals of one shape that are kept
    VERSION = 1
    ROW = 1
    DDL = 2
    RESOLVED = 3


cdef inline int reading_of(int code, int flags) noexcept nogil:
    """How a column's values stand in the JSON; without flags (-1) a string is text."""
    cdef int form = form_of(code, flags & COLUMN_BINARY if flags > 0 else 0)
    if form == FORM_TEXT:
        return READ_BASE64_TEXT if CODE_TINYBLOB <= code <= CODE_BLOB else READ_TEXT
    if form == FORM_BINARY:
        return READ_BASE64 if CODE_TINYBLOB <= code <= CODE_BLOB else READ_QUOTED
    if form == FORM_INTEGER or form == FORM_UNSIGNED or form == FORM_YEAR:
        return READ_INTEGER
    if form == FORM_DECIMAL:
        return READ_DECIMAL
    if form == FORM_DATE:
        return READ_DATE
    if form == FORM_DATETIME:
        return READ_DATETIME
    if form == FORM_TIME:
        return READ_TIME
    if form == FORM_FLOAT:
        return READ_FLOAT
    if form == FORM_DOUBLE:
        return READ_DOUBLE
    if form == FORM_NULL:
        return READ_NULL
    return READ_ANY if form == FORM_UNKNOWN else READ_TEXT


cdef inline bint integer_fits(const uint8_t *p, size_t n, int code) noexcept nogil:
    """Whether a column of this type can hold the integer, signed or not: the new architecture's flags
    go stale after DDL, so the UNSIGNED flag decides nothing here."""
    cdef uint64_t year = 0
    if code == CODE_YEAR:
        return n <= 4 and tg_parse_u64(p, n, &year) == 0 and year_fits(<int64_t>year)
    if p[0] == c'-':
        return code != CODE_BIT and code != CODE_ENUM and code != CODE_SET and \
            tg_digits_within(p + 1, n - 1, tg_bounds_of(bits_of(code)).least)
    return tg_digits_within(p, n, tg_bounds_of(bits_of(code)).most_unsigned)


cdef inline int sure_digits(int code) noexcept nogil:
    """Integers of so many bytes fit every time (a minus counts as one)."""
    if code == CODE_LONGLONG:
        return 19
    if code == CODE_LONG:
        return 9
    if code == CODE_SHORT:
        return 4
    if code == CODE_INT24:
        return 7
    return 2 if code == CODE_TINY else 0
