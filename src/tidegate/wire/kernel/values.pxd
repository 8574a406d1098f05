"""What a column's values look like, by its type code and flags, and whether a text is such a value.

The forms are those of model.types.value_form, with dates, times and moments told apart.
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
    if code == 1 or code == 2 or code == 3 or code == 8 or code == 9:
        return FORM_UNSIGNED if flags & 128 else FORM_INTEGER
    if code == 15 or 249 <= code <= 254:
        return FORM_BINARY if flags & 1 else FORM_TEXT
    if code == 246:
        return FORM_DECIMAL
    if code == 7 or code == 12:
        return FORM_DATETIME
    if code == 10 or code == 14:
        return FORM_DATE
    if code == 4:
        return FORM_FLOAT
    if code == 5:
        return FORM_DOUBLE
    if code == 11:
        return FORM_TIME
    if code == 13:
        return FORM_YEAR
    if code == 16 or code == 247 or code == 248:
        return FORM_UNSIGNED
    if code == 245:
        return FORM_JSON
    if code == 225:
        return FORM_VECTOR
    if code == 0 or code == 6 or code == 255:
        return FORM_NULL
    return FORM_UNKNOWN


cdef inline int bits_of(int code) noexcept nogil:
    """The width of an integer type's values; ENUM holds an index of 16 bits, BIT and SET 64."""
    if code == 1:
        return 8
    if code == 2 or code == 247:
        return 16
    if code == 9:
        return 24
    if code == 3:
        return 32
    return 64


cdef inline bint signed_fits(int64_t value, int bits) noexcept nogil:
    return bits == 64 or -(<int64_t>1 << (bits - 1)) <= value < <int64_t>1 << (bits - 1)


cdef inline bint unsigned_fits(uint64_t value, int bits) noexcept nogil:
    return bits == 64 or value < <uint64_t>1 << bits


cdef inline bint year_fits(int64_t value) noexcept nogil:
    return value == 0 or 1901 <= value <= 2155
