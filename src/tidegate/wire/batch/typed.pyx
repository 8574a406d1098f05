"""Values of a change batch in Arrow's types: numbers, dates and times from their texts.

Texts are read where they lie, so a column is taken out of the lists of rows and typed in one pass.
Only what MySQL itself writes is read; for anything else the caller must decide what it means.
"""

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memset

import pyarrow as pa

from tidegate.wire.kernel.text cimport tg_is_digit, tg_parse_double, tg_parse_float, tg_parse_i64, tg_parse_u64
from tidegate.wire.kernel.values cimport tg_date_valid, tg_datetime_valid

cdef enum Kind:
    KIND_INT32
    KIND_INT64
    KIND_FLOAT
    KIND_DOUBLE
    KIND_DECIMAL
    KIND_DATE
    KIND_DATETIME


_KINDS = {
    pa.int32(): (KIND_INT32, 4),
    pa.int64(): (KIND_INT64, 8),
    pa.float32(): (KIND_FLOAT, 4),
    pa.float64(): (KIND_DOUBLE, 8),
    pa.date32(): (KIND_DATE, 4),
    pa.timestamp("us"): (KIND_DATETIME, 8),
}

cdef uint64_t POWERS[20]
POWERS[0] = 1
for _power in range(1, 20):
    POWERS[_power] = POWERS[_power - 1] * 10


cdef struct Texts:
    const uint8_t *bytes
    const int32_t *ends
    const uint8_t *valid
    Py_ssize_t offset
    Py_ssize_t length


cdef struct Positions:
    const int32_t *at
    const uint8_t *valid
    Py_ssize_t offset


cdef inline bint is_set(const uint8_t *bits, Py_ssize_t place) noexcept nogil:
    return bits == NULL or bits[place >> 3] >> (place & 7) & 1


cdef inline int two_digits(const uint8_t *p) noexcept nogil:
    return (p[0] - c"0") * 10 + (p[1] - c"0")


cdef inline int days(const uint8_t *p, int64_t *out) noexcept nogil:
    """Days from 1970-01-01 to a valid date, in the Gregorian calendar; -1 if a part is zero.

    Years begin in March, so that the odd day is the last one; 400 of them have 146,097 days.
    """
    cdef int year = two_digits(p) * 100 + two_digits(p + 2)
    cdef int month = two_digits(p + 5)
    cdef int day = two_digits(p + 8)
    cdef int of_year
    if year == 0 or month == 0 or day == 0:
        return -1
    year -= month <= 2
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    out[0] = year * 365 + year // 4 - year // 100 + year // 400 + of_year - 719468
    return 0


cdef inline int micros(const uint8_t *p, size_t n, int64_t *out) noexcept nogil:
    """Microseconds from 1970-01-01 00:00:00 to a valid date and time."""
    cdef int64_t seconds = 0
    cdef int64_t fraction = 0
    cdef size_t i
    if days(p, &seconds) < 0:
        return -1
    seconds = seconds * 86400 + two_digits(p + 11) * 3600 + two_digits(p + 14) * 60 + two_digits(p + 17)
    for i in range(20, 26):
        fraction = fraction * 10 + (p[i] - c"0" if i < n else 0)
    out[0] = seconds * 1000000 + fraction
    return 0


cdef inline int decimal(
    const uint8_t *p, size_t n, int precision, int scale, uint64_t *out
) noexcept nogil:
    """The number without its point, in 128 bits, low ones first; -1 also if it needs over 64."""
    cdef uint8_t digits[20]
    cdef size_t count = 0
    cdef size_t i = 0
    cdef int fraction = -1
    cdef bint negative = n > 0 and p[0] == c"-"
    cdef uint64_t value = 0
    for i in range(negative, n):
        if p[i] == c"." and fraction < 0 and count > 0:
            fraction = 0
            continue
        if count == 20 or fraction == scale:
            return -1
        digits[count] = p[i]
        count += 1
        fraction += fraction >= 0
    if fraction == 0 or count == 0:
        return -1
    for i in range(scale - (fraction if fraction > 0 else 0)):
        if count == 20:
            return -1
        digits[count] = c"0"
        count += 1
    if tg_parse_u64(digits, count, &value) < 0:
        return -1
    if precision < 20 and value >= POWERS[precision]:
        return -1
    out[0] = 0 - value if negative else value
    out[1] = <uint64_t>0 - (negative and value != 0)
    return 0


cdef inline bint is_real(const uint8_t *p, size_t n) noexcept nogil:
    """Whether the text begins and ends with a digit, but for its sign, and has no exponent."""
    cdef size_t i
    cdef size_t first = n > 0 and p[0] == c"-"
    if n == first or not tg_is_digit(p[first]) or not tg_is_digit(p[n - 1]):
        return False
    for i in range(first, n):
        if not tg_is_digit(p[i]) and p[i] != c".":
            return False
    return True


cdef int read_one(
    int kind, const uint8_t *p, size_t n, uint8_t *out, int precision, int scale
) noexcept nogil:
    """Writes the value of a text; -1 if it is not plainly one."""
    cdef int64_t number = 0
    if kind == KIND_INT64:
        return tg_parse_i64(p, n, <int64_t *>out)
    if kind == KIND_INT32:
        if tg_parse_i64(p, n, &number) < 0 or not INT32_MIN <= number <= INT32_MAX:
            return -1
        (<int32_t *>out)[0] = <int32_t>number
        return 0
    if kind == KIND_DECIMAL:
        return decimal(p, n, precision, scale, <uint64_t *>out)
    if kind == KIND_DATETIME:
        return micros(p, n, <int64_t *>out) if tg_datetime_valid(p, n) else -1
    if kind == KIND_DATE:
        if not tg_date_valid(p, n) or days(p, &number) < 0:
            return -1
        (<int32_t *>out)[0] = <int32_t>number
        return 0
    if not is_real(p, n):
        return -1
    if kind == KIND_DOUBLE:
        return tg_parse_double(p, n, <double *>out)
    return tg_parse_float(p, n, <float *>out)


cdef const uint8_t *address(object buffer):
    return NULL if buffer is None else <const uint8_t *><size_t>buffer.address


cdef Py_ssize_t read_all(
    int kind,
    int width,
    Texts *texts,
    Positions *positions,
    Py_ssize_t count,
    int place,
    int precision,
    int scale,
    uint8_t *data,
    uint8_t *valid,
) noexcept nogil:
    """How many are null; -1 if a text is not plainly a value, -2 if a position is outside."""
    cdef Py_ssize_t nulls = 0
    cdef Py_ssize_t i, index
    cdef int32_t start
    memset(valid, 0, (count + 7) >> 3)
    for i in range(count):
        index = i
        if positions.at != NULL:
            index = <Py_ssize_t>positions.at[i] + place
        if positions.at != NULL and not is_set(positions.valid, positions.offset + i):
            nulls += 1
            memset(data + i * width, 0, width)
            continue
        if index < 0 or index >= texts.length:
            return -2
        if not is_set(texts.valid, texts.offset + index):
            nulls += 1
            memset(data + i * width, 0, width)
            continue
        start = texts.ends[index]
        if read_one(
            kind, texts.bytes + start, <size_t>(texts.ends[index + 1] - start),
            data + i * width, precision, scale,
        ) < 0:
            return -1
        valid[i >> 3] |= <uint8_t>(1 << (i & 7))
    return nulls


def read_texts(values, at, int place, target):
    """The texts `values[at + place]` in the type `target`; None if one is not plainly such a value.

    `values` are strings, `at` is an int32 array; without it all of `values` are read. What is null
    stays null. Plain are a minus sign and digits, with digits after a point for decimals and
    floating point, of a number that the type holds; and dates and times that exist.
    """
    cdef Texts texts
    cdef Positions positions
    cdef int kind, width
    cdef int precision = 0
    cdef int scale = 0
    cdef Py_ssize_t count, nulls
    cdef uint8_t *data_at
    cdef uint8_t *valid_at
    if isinstance(target, pa.Decimal128Type):
        kind, width, precision, scale = KIND_DECIMAL, 16, target.precision, target.scale
    else:
        kind, width = _KINDS[target]
    if values.type != pa.string() or (at is not None and at.type != pa.int32()):
        raise TypeError(f"strings at int32 positions are read, not {values.type}")
    if scale < 0:
        return None
    buffers = values.buffers()
    texts.offset, texts.length = values.offset, len(values)
    texts.valid = address(buffers[0]) if values.null_count else NULL
    texts.ends = <const int32_t *>address(buffers[1]) + texts.offset
    texts.bytes = address(buffers[2])
    positions.at, positions.valid, positions.offset = NULL, NULL, 0
    count = len(values)
    if at is not None:
        of_positions = at.buffers()
        count = len(at)
        positions.offset = at.offset
        positions.valid = address(of_positions[0]) if at.null_count else NULL
        positions.at = <const int32_t *>address(of_positions[1]) + positions.offset
    if count == 0:
        return pa.array([], target)
    data = pa.allocate_buffer(count * width)
    valid = pa.allocate_buffer((count + 7) >> 3)
    data_at = <uint8_t *><size_t>data.address
    valid_at = <uint8_t *><size_t>valid.address
    with nogil:
        nulls = read_all(
            kind, width, &texts, &positions, count, place, precision, scale, data_at, valid_at
        )
    if nulls == -2:
        raise IndexError(f"a position is outside of the {len(values)} texts")
    if nulls < 0:
        return None
    return pa.Array.from_buffers(target, count, [valid if nulls else None, data], nulls)
