"""What a column's values look like, by its type code and flags, and whether a text is such a value.

The forms are those of model.types.value_form, with a form each for dates, times and datetimes.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef extern from "_values.h" nogil:
    bint tg_date_valid(const uint8_t *p, size_t n) noexcept
    bint tg_datetime_valid(const uint8_t *p, size_t n) noexcept
    bint tg_time_valid(const uint8_t *p, size_t n) noexcept
    bint tg_decimal_valid(const uint8_t *p, size_t n, const uint8_t *limit) noexcept
    bint tg_vector_valid(const uint8_t *p, size_t n) noexcept
    bint tg_copy_high(uint8_t *dst, const uint8_t *src, size_t n, const uint8_t *limit) noexcept
    size_t tg_common_prefix(const uint8_t *a, const uint8_t *b, size_t n) noexcept
    int tg_uvarint_of(const uint8_t *p, size_t n, const uint8_t *limit, uint64_t *out) noexcept
    ctypedef struct tg_integer_bounds:
        const char *most_unsigned
        const char *most
        const char *least
    const tg_integer_bounds *tg_bounds_of(int bits) noexcept
    bint tg_digits_within(const uint8_t *p, size_t n, const char *bound) noexcept


# Column types; the same numbers as model.MySQLType.
cdef enum TypeCode:
    CODE_UNSPECIFIED = 0
    CODE_TINY = 1
    CODE_SHORT = 2
    CODE_LONG = 3
    CODE_FLOAT = 4
    CODE_DOUBLE = 5
    CODE_NULL = 6
    CODE_TIMESTAMP = 7
    CODE_LONGLONG = 8
    CODE_INT24 = 9
    CODE_DATE = 10
    CODE_DURATION = 11
    CODE_DATETIME = 12
    CODE_YEAR = 13
    CODE_NEWDATE = 14
    CODE_VARCHAR = 15
    CODE_BIT = 16
    CODE_VECTOR = 225
    CODE_JSON = 245
    CODE_NEWDECIMAL = 246
    CODE_ENUM = 247
    CODE_SET = 248
    CODE_TINYBLOB = 249
    CODE_MEDIUMBLOB = 250
    CODE_LONGBLOB = 251
    CODE_BLOB = 252
    CODE_VARSTRING = 253
    CODE_STRING = 254
    CODE_GEOMETRY = 255


# Flags of a column; the same bits as model.Flag.
cdef enum ColumnFlag:
    COLUMN_BINARY = 1
    COLUMN_HANDLE_KEY = 2
    COLUMN_PRIMARY_KEY = 8
    COLUMN_UNIQUE_KEY = 16
    COLUMN_MULTIPLE_KEY = 32
    COLUMN_NULLABLE = 64
    COLUMN_UNSIGNED = 128


cdef enum Form:
    FORM_UNKNOWN = 0
    FORM_INTEGER = 1
    FORM_UNSIGNED = 2   # also BIT, ENUM and SET
    FORM_FLOAT = 3
    FORM_DOUBLE = 4
    FORM_DECIMAL = 5
    FORM_DATE = 6
    FORM_DATETIME = 7   # also TIMESTAMP
    FORM_TIME = 8
    FORM_TEXT = 9
    FORM_BINARY = 10
    FORM_JSON = 11
    FORM_VECTOR = 12
    FORM_YEAR = 13
    FORM_NULL = 14      # NULL, GEOMETRY and the type without a name: no value is ever carried


cdef inline int form_of(int code, int flags) noexcept nogil:
    """The form of a column's values; FORM_UNKNOWN for a code that MySQL does not have."""
    if code == CODE_TINY or code == CODE_SHORT or code == CODE_LONG or code == CODE_LONGLONG or \
            code == CODE_INT24:
        return FORM_UNSIGNED if flags & COLUMN_UNSIGNED else FORM_INTEGER
    if code == CODE_VARCHAR or CODE_TINYBLOB <= code <= CODE_STRING:
        return FORM_BINARY if flags & COLUMN_BINARY else FORM_TEXT
    if code == CODE_NEWDECIMAL:
        return FORM_DECIMAL
    if code == CODE_TIMESTAMP or code == CODE_DATETIME:
        return FORM_DATETIME
    if code == CODE_DATE or code == CODE_NEWDATE:
        return FORM_DATE
    if code == CODE_FLOAT:
        return FORM_FLOAT
    if code == CODE_DOUBLE:
        return FORM_DOUBLE
    if code == CODE_DURATION:
        return FORM_TIME
    if code == CODE_YEAR:
        return FORM_YEAR
    if code == CODE_BIT or code == CODE_ENUM or code == CODE_SET:
        return FORM_UNSIGNED
    if code == CODE_JSON:
        return FORM_JSON
    if code == CODE_VECTOR:
        return FORM_VECTOR
    if code == CODE_UNSPECIFIED or code == CODE_NULL or code == CODE_GEOMETRY:
        return FORM_NULL
    return FORM_UNKNOWN


cdef inline int bits_of(int code) noexcept nogil:
    """The width of an integer type's values; ENUM holds an index of 16 bits, BIT and SET 64."""
    if code == CODE_TINY:
        return 8
    if code == CODE_SHORT or code == CODE_ENUM:
        return 16
    if code == CODE_INT24:
        return 24
    if code == CODE_LONG:
        return 32
    return 64


cdef inline bint signed_fits(int64_t value, int bits) noexcept nogil:
    return bits == 64 or -(<int64_t>1 << (bits - 1)) <= value < <int64_t>1 << (bits - 1)


cdef inline bint unsigned_fits(uint64_t value, int bits) noexcept nogil:
    return bits == 64 or value < <uint64_t>1 << bits


cdef inline bint year_fits(int64_t value) noexcept nogil:
    return value == 0 or 1901 <= value <= 2155
