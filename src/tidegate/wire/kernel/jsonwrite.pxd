"""Writing JSON text: one writer, with the spellings of Go's encoders as switches.

encoding/json (classic Open, Simple): HTML characters and U+2028/9 escaped, \\b and \\f short.
easyjson (Canal-JSON): the same but \\u0008 and \\u000c. The new Open encoder: see open/encode.pyx.
"""

from libc.stdint cimport int64_t, uint8_t

from tidegate.wire.kernel.buffer cimport Buffer, buffer_reserve
from tidegate.wire.kernel.text cimport tg_format_i64, tg_format_u64

cdef extern from "_scan.h" nogil:
    size_t tg_copy_writable_run(const uint8_t *p, const uint8_t *end, const uint8_t *limit, uint8_t *dst) noexcept

cdef enum JsonStyle:
    ESCAPE_HTML = 1         # & < > as \u0026 \u003c \u003e
    SHORT_BF = 2            # \b and \f instead of \u0008 and \u000c
    ESCAPE_SEPARATORS = 4   # U+2028 and U+2029 as \u2028 and \u2029

    STYLE_ENCODING_JSON = 7
    STYLE_EASYJSON = 5
    STYLE_PLAIN = 2


cdef inline void _put_u00(Buffer *b, uint8_t byte) noexcept nogil:
    cdef uint8_t high = byte >> 4
    cdef uint8_t low = byte & 15
    cdef uint8_t *d = b.data + b.used
    d[0] = c'\\'
    d[1] = c'u'
    d[2] = c'0'
    d[3] = c'0'
    d[4] = high + 48
    d[5] = low + (48 if low < 10 else 87)
    b.used += 6


cdef inline int json_put_body(Buffer *b, const uint8_t *p, size_t n, const uint8_t *limit, int style) noexcept nogil:
    """The text (valid UTF-8) as a string's body, without quotes. p may be read up to limit."""
    cdef const uint8_t *end = p + n
    cdef size_t run
    cdef uint8_t byte
    cdef uint8_t short_form
    if buffer_reserve(b, 6 * n + 16) < 0:
        return -1
    while True:
        run = tg_copy_writable_run(p, end, limit, b.data + b.used)
        b.used += run
        p += run
        if p >= end:
            return 0
        byte = p[0]
        p += 1
        if byte == c'"' or byte == c'\\':
            b.data[b.used] = c'\\'
            b.data[b.used + 1] = byte
            b.used += 2
        elif byte < 0x20:
            short_form = 0
            if byte == 10:
                short_form = c'n'
            elif byte == 13:
                short_form = c'r'
            elif byte == 9:
                short_form = c't'
            elif style & SHORT_BF:
                if byte == 8:
                    short_form = c'b'
                elif byte == 12:
                    short_form = c'f'
            if short_form:
                b.data[b.used] = c'\\'
                b.data[b.used + 1] = short_form
                b.used += 2
            else:
                _put_u00(b, byte)
        elif byte == 0xe2:
            if style & ESCAPE_SEPARATORS and end - p >= 2 and p[0] == 0x80 and (p[1] == 0xa8 or p[1] == 0xa9):
                b.data[b.used] = c'\\'
                b.data[b.used + 1] = c'u'
                b.data[b.used + 2] = c'2'
                b.data[b.used + 3] = c'0'
                b.data[b.used + 4] = c'2'
                b.data[b.used + 5] = c'8' if p[1] == 0xa8 else c'9'
                b.used += 6
                p += 2
            else:
                b.data[b.used] = byte
                b.used += 1
        elif style & ESCAPE_HTML:
            _put_u00(b, byte)
        else:
            b.data[b.used] = byte
            b.used += 1


cdef inline int json_put_string(Buffer *b, const uint8_t *p, size_t n, const uint8_t *limit, int style) noexcept nogil:
    if buffer_reserve(b, 1) < 0:
        return -1
    b.data[b.used] = c'"'
    b.used += 1
    if json_put_body(b, p, n, limit, style) < 0 or buffer_reserve(b, 1) < 0:
        return -1
    b.data[b.used] = c'"'
    b.used += 1
    return 0


cdef inline int put_i64(Buffer *b, int64_t value) noexcept nogil:
    if buffer_reserve(b, 24) < 0:
        return -1
    b.used += tg_format_i64(value, b.data + b.used)
    return 0
