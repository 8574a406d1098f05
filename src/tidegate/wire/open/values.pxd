"""Values of the Open Protocol's JSON to the strings of the change batch."""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.open.layout cimport *


# --- values --------------------------------------------------------------------------------------

cdef inline bint text_fits(int reading, const uint8_t *p, size_t n,
                           const uint8_t *limit) noexcept nogil:
    if reading == READ_TEXT:
        return True
    if reading == READ_DECIMAL:
        return tg_decimal_valid(p, n, limit)
    if reading == READ_DATETIME:
        return tg_datetime_valid(p, n)
    if reading == READ_DATE:
        return tg_date_valid(p, n)
    return tg_time_valid(p, n)


cdef inline int read_float(Cursor *c, Buffer *text, bint single) noexcept nogil:
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


cdef inline int read_value(Cursor *c, Buffer *text, Buffer *aside, int reading,
                           int code) noexcept nogil:
    """Appends the text of the value at the cursor: 1, 0 for NULL, -1 a fault. `aside` is scratch."""
    cdef const uint8_t *began
    cdef size_t n, mark = text.used
    cdef int64_t size
    cdef Span number
    cdef int next_byte = json_peek(c)
    began = c.p
    if next_byte < 0:
        return -1
    if next_byte == c'n':
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
        if not integer_fits(c.p, n, code):
            return fail(c, FAULT_VALUE)
        c.p += n
        # Only now is it known that the number ends here and has no fraction.
        if c.p < c.end and (c.p[0] == c'.' or c.p[0] == c'e' or c.p[0] == c'E'):
            return fail_at(c, FAULT_VALUE, began)
        text.used = mark + n
        return 1
    if reading == READ_FLOAT or reading == READ_DOUBLE:
        return read_float(c, text, reading == READ_FLOAT)
    if next_byte != c'"':
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
        if not text_fits(reading, text.data + mark, n, text.data + text.used + 16):
            return fail_at(c, FAULT_VALUE if reading == READ_DECIMAL else FAULT_TEMPORAL, began)
    return 1
