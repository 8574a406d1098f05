"""The JSON scanner: strict RFC 8259, no tree, one pass, depth bounded.

Strings come out as valid UTF-8 or not at all: escapes are resolved, lone surrogates, raw control
characters and invalid UTF-8 are faults. Member names are compared decoded.
"""

from libc.stdint cimport UINT64_MAX, int64_t, uint8_t, uint32_t, uint64_t

from tidegate.wire.kernel.buffer cimport (
    Buffer,
    Cells,
    buffer_reserve,
    cell_end,
    cell_null,
)
from tidegate.wire.kernel.cursor cimport (
    FAULT_DEPTH,
    FAULT_ESCAPE,
    FAULT_MEMORY,
    FAULT_NAME,
    FAULT_NUMBER,
    FAULT_RANGE,
    FAULT_SYNTAX,
    FAULT_TRAILING,
    FAULT_TRUNCATED,
    FAULT_TYPE,
    FAULT_UTF8,
    TG_LIKELY,
    TG_UNLIKELY,
    Cursor,
    Span,
    fail,
    fail_at,
    left,
    tg_copy_plain_run,
    tg_plain_run,
)
from tidegate.wire.kernel.text cimport tg_utf8_valid

cdef enum:
    MAX_DEPTH = 64


cdef inline void json_space(Cursor *c) noexcept nogil:
    while c.p < c.end and (c.p[0] == 0x20 or c.p[0] == 0x0a or c.p[0] == 0x0d or c.p[0] == 0x09):
        c.p += 1


cdef inline int json_peek(Cursor *c) noexcept nogil:
    """The next byte that is not white space, -1 at the end (a fault)."""
    if TG_UNLIKELY(c.p < c.end and c.p[0] <= 0x20):
        json_space(c)
    if c.p >= c.end:
        return fail(c, FAULT_TRUNCATED)
    return c.p[0]


cdef inline int json_expect(Cursor *c, uint8_t byte) noexcept nogil:
    cdef int next_byte = json_peek(c)
    if next_byte != byte:
        return -1 if next_byte < 0 else fail(c, FAULT_SYNTAX)
    c.p += 1
    return 0


cdef inline int json_finish(Cursor *c) noexcept nogil:
    """Nothing but white space may follow."""
    json_space(c)
    if c.p != c.end:
        return fail(c, FAULT_TRAILING)
    return 0


# --- strings -------------------------------------------------------------------------------------

cdef inline int _hex4(const uint8_t *p) noexcept nogil:
    cdef int value = 0
    cdef int i, digit
    for i in range(4):
        digit = p[i]
        if 48 <= digit <= 57:
            digit -= 48
        elif 97 <= digit <= 102:
            digit -= 87
        elif 65 <= digit <= 70:
            digit -= 55
        else:
            return -1
        value = value * 16 + digit
    return value


cdef inline size_t utf8_put(uint8_t *dst, uint32_t code) noexcept nogil:
    if code < 0x80:
        dst[0] = <uint8_t>code
        return 1
    if code < 0x800:
        dst[0] = <uint8_t>(0xc0 | (code >> 6))
        dst[1] = <uint8_t>(0x80 | (code & 0x3f))
        return 2
    if code < 0x10000:
        dst[0] = <uint8_t>(0xe0 | (code >> 12))
        dst[1] = <uint8_t>(0x80 | ((code >> 6) & 0x3f))
        dst[2] = <uint8_t>(0x80 | (code & 0x3f))
        return 3
    dst[0] = <uint8_t>(0xf0 | (code >> 18))
    dst[1] = <uint8_t>(0x80 | ((code >> 12) & 0x3f))
    dst[2] = <uint8_t>(0x80 | ((code >> 6) & 0x3f))
    dst[3] = <uint8_t>(0x80 | (code & 0x3f))
    return 4


cdef inline int json_escape(Cursor *c, uint8_t *dst, size_t *n) noexcept nogil:
    """Resolves the escape at the cursor (a backslash); dst needs 4 bytes."""
    cdef int code, low
    cdef uint8_t kind
    if left(c) < 2:
        return fail(c, FAULT_TRUNCATED)
    kind = c.p[1]
    n[0] = 1
    if kind == c'"' or kind == c'\\' or kind == c'/':
        dst[0] = kind
    elif kind == c'n':
        dst[0] = 10
    elif kind == c't':
        dst[0] = 9
    elif kind == c'r':
        dst[0] = 13
    elif kind == c'b':
        dst[0] = 8
    elif kind == c'f':
        dst[0] = 12
    elif kind == c'u':
        if left(c) < 6:
            return fail(c, FAULT_TRUNCATED)
        code = _hex4(c.p + 2)
        if code < 0 or 0xdc00 <= code <= 0xdfff:
            return fail(c, FAULT_ESCAPE)
        if 0xd800 <= code <= 0xdbff:
            if left(c) < 12 or c.p[6] != c'\\' or c.p[7] != c'u':
                return fail(c, FAULT_ESCAPE)
            low = _hex4(c.p + 8)
            if low < 0xdc00 or low > 0xdfff:
                return fail(c, FAULT_ESCAPE)
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00)
            c.p += 6
        n[0] = utf8_put(dst, <uint32_t>code)
        c.p += 4
    else:
        return fail(c, FAULT_ESCAPE)
    c.p += 2
    return 0


cdef inline int json_text(Cursor *c, Buffer *b) noexcept nogil:
    """Appends the decoded string to b. The cursor stands behind the opening quote, and goes behind
    the closing one. On a fault what was appended stays (the caller rolls back)."""
    cdef unsigned int high = 0
    cdef size_t run, began = b.used
    cdef const uint8_t *opened = c.p
    if TG_UNLIKELY(buffer_reserve(b, left(c)) < 0):
        return fail(c, FAULT_MEMORY)
    while True:
        run = tg_copy_plain_run(c.p, c.end, c.limit, b.data + b.used, &high)
        c.p += run
        b.used += run
        if TG_UNLIKELY(c.p >= c.end):
            return fail(c, FAULT_TRUNCATED)
        if TG_LIKELY(c.p[0] == c'"'):
            c.p += 1
            break
        if c.p[0] != c'\\':
            return fail(c, FAULT_SYNTAX)
        run = 0
        if json_escape(c, b.data + b.used, &run) < 0:
            return -1
        b.used += run
    if TG_UNLIKELY(high != 0) and not tg_utf8_valid(b.data + began, b.used - began):
        return fail_at(c, FAULT_UTF8, opened)
    return 0


cdef inline int json_cell(Cursor *c, Cells *cells) noexcept nogil:
    """A string as the next cell (room for the cell is reserved); cursor as for json_text."""
    if json_text(c, &cells.text) < 0:
        return -1
    cell_end(cells)
    return 0


cdef inline int json_span(Cursor *c, Buffer *scratch, Span *out) noexcept nogil:
    """The decoded string at the cursor's quote: a span of the message when it is plain, otherwise of
    scratch, which must have been reserved for the whole message (it may not move)."""
    cdef unsigned int high = 0
    cdef size_t run
    cdef const uint8_t *opened
    if json_peek(c) != c'"':
        return fail(c, FAULT_TYPE)
    c.p += 1
    opened = c.p
    run = tg_plain_run(c.p, c.end, c.limit, &high)
    if TG_LIKELY(c.p + run < c.end and c.p[run] == c'"'):
        out.p = c.p
        out.n = run
        c.p += run + 1
        if high != 0 and not tg_utf8_valid(out.p, out.n):
            return fail_at(c, FAULT_UTF8, opened)
        return 0
    run = scratch.used
    if scratch.size - scratch.used < left(c) + 32:
        return fail(c, FAULT_MEMORY)
    if json_text(c, scratch) < 0:
        return -1
    out.p = scratch.data + run
    out.n = scratch.used - run
    return 0


# --- numbers and literals ------------------------------------------------------------------------

cdef inline int json_number(Cursor *c, Span *out) noexcept nogil:
    """The text of a number, by JSON's grammar."""
    cdef const uint8_t *p
    cdef const uint8_t *digits
    if json_peek(c) < 0:
        return -1
    p = c.p
    if p < c.end and p[0] == c'-':
        p += 1
    digits = p
    while p < c.end and 48 <= p[0] <= 57:
        p += 1
    if p == digits or (digits[0] == 48 and p - digits > 1):
        return fail(c, FAULT_TYPE if digits == c.p and p == digits else FAULT_NUMBER)
    if p < c.end and p[0] == c'.':
        p += 1
        digits = p
        while p < c.end and 48 <= p[0] <= 57:
            p += 1
        if p == digits:
            return fail(c, FAULT_NUMBER)
    if p < c.end and (p[0] == c'e' or p[0] == c'E'):
        p += 1
        if p < c.end and (p[0] == c'+' or p[0] == c'-'):
            p += 1
        digits = p
        while p < c.end and 48 <= p[0] <= 57:
            p += 1
        if p == digits:
            return fail(c, FAULT_NUMBER)
    out.p = c.p
    out.n = <size_t>(p - c.p)
    c.p = p
    return 0


cdef inline int digits_u64(const uint8_t *p, size_t n, uint64_t *out) noexcept nogil:
    """Decimal digits to a 64-bit number: -1 if empty, not digits, or too large."""
    cdef uint64_t value = 0
    cdef size_t i
    cdef uint8_t digit
    if n == 0 or n > 20:
        return -1
    for i in range(n):
        digit = <uint8_t>(p[i] - 48)
        if digit > 9:
            return -1
        if i == 19 and (value > UINT64_MAX // 10 or (value == UINT64_MAX // 10 and digit > 5)):
            return -1
        value = value * 10 + digit
    out[0] = value
    return 0


cdef inline int digits_i64(const uint8_t *p, size_t n, int64_t *out) noexcept nogil:
    cdef uint64_t value = 0
    cdef bint negative = n > 0 and p[0] == c'-'
    if digits_u64(p + negative, n - negative, &value) < 0:
        return -1
    if value > <uint64_t>0x7fffffffffffffff + negative:
        return -1
    out[0] = <int64_t>(0 - value) if negative else <int64_t>value
    return 0


cdef inline int json_u64(Cursor *c, uint64_t *out) noexcept nogil:
    cdef Span text
    if json_number(c, &text) < 0:
        return -1
    if digits_u64(text.p, text.n, out) < 0:
        return fail_at(c, FAULT_RANGE, text.p)
    return 0


cdef inline int json_i64(Cursor *c, int64_t *out) noexcept nogil:
    cdef Span text
    if json_number(c, &text) < 0:
        return -1
    if digits_i64(text.p, text.n, out) < 0:
        return fail_at(c, FAULT_RANGE, text.p)
    return 0


cdef inline bint json_is(Cursor *c, const char *word, size_t n) noexcept nogil:
    """Advances over the literal word (null, true, false) if it stands here."""
    cdef size_t i
    if json_peek(c) < 0 or left(c) < n:
        return False
    for i in range(n):
        if c.p[i] != <uint8_t>word[i]:
            return False
    c.p += n
    return True


cdef inline int json_bool(Cursor *c, bint *out) noexcept nogil:
    if json_is(c, b"true", 4):
        out[0] = True
        return 0
    if json_is(c, b"false", 5):
        out[0] = False
        return 0
    return fail(c, FAULT_TYPE)


# --- structure -----------------------------------------------------------------------------------

cdef inline int json_open(Cursor *c, uint8_t bracket) noexcept nogil:
    cdef int next_byte = json_peek(c)
    if next_byte < 0:
        return -1
    if next_byte != bracket:
        return fail(c, FAULT_TYPE)
    c.p += 1
    return 0


cdef inline int json_member(Cursor *c, bint *first, Buffer *scratch, Span *name) noexcept nogil:
    """The next member of the open object: 1 with its name, the cursor at its value; 0 behind the
    closing brace; -1 a fault. Start with first = True."""
    cdef int next_byte = json_peek(c)
    if next_byte == c'}':
        c.p += 1
        return 0
    if not first[0]:
        if next_byte != c',':
            return -1 if next_byte < 0 else fail(c, FAULT_SYNTAX)
        c.p += 1
        next_byte = json_peek(c)
    if next_byte != c'"':
        return -1 if next_byte < 0 else fail(c, FAULT_SYNTAX)
    first[0] = False
    if json_span(c, scratch, name) < 0 or json_expect(c, c':') < 0:
        return -1
    return 1 if json_peek(c) >= 0 else -1


cdef inline int json_element(Cursor *c, bint *first) noexcept nogil:
    """As json_member, for the open array."""
    cdef int next_byte = json_peek(c)
    if next_byte == c']':
        c.p += 1
        return 0
    if not first[0]:
        if next_byte != c',':
            return -1 if next_byte < 0 else fail(c, FAULT_SYNTAX)
        c.p += 1
        if json_peek(c) == c']':
            return fail(c, FAULT_SYNTAX)
    first[0] = False
    return 1 if json_peek(c) >= 0 else -1


cdef inline int json_skip_string(Cursor *c) noexcept nogil:
    """Over the string at the cursor's quote, checked in full."""
    cdef unsigned int high = 0
    cdef uint8_t four[4]
    cdef size_t n = 0
    cdef const uint8_t *opened
    c.p += 1
    opened = c.p
    while True:
        c.p += tg_plain_run(c.p, c.end, c.limit, &high)
        if c.p >= c.end:
            return fail(c, FAULT_TRUNCATED)
        if c.p[0] == c'"':
            break
        if c.p[0] != c'\\':
            return fail(c, FAULT_SYNTAX)
        if json_escape(c, four, &n) < 0:
            return -1
    if high != 0 and not tg_utf8_valid(opened, <size_t>(c.p - opened)):
        return fail_at(c, FAULT_UTF8, opened)
    c.p += 1
    return 0


cdef inline int json_skip(Cursor *c) noexcept nogil:
    """Over one value of any kind, checked in full, at most MAX_DEPTH levels deep."""
    cdef uint8_t closing[MAX_DEPTH]
    cdef int depth = 0
    cdef int next_byte
    cdef Span number
    while True:
        # a value is expected here
        next_byte = json_peek(c)
        if next_byte < 0:
            return -1
        if next_byte == c'{' or next_byte == c'[':
            if depth == MAX_DEPTH:
                return fail(c, FAULT_DEPTH)
            closing[depth] = c'}' if next_byte == c'{' else c']'
            depth += 1
            c.p += 1
            next_byte = json_peek(c)
            if next_byte != closing[depth - 1]:
                if closing[depth - 1] == c'}':
                    if next_byte != c'"':
                        return -1 if next_byte < 0 else fail(c, FAULT_SYNTAX)
                    if json_skip_string(c) < 0 or json_expect(c, c':') < 0:
                        return -1
                continue
        elif next_byte == c'"':
            if json_skip_string(c) < 0:
                return -1
        elif next_byte == c't':
            if not json_is(c, b"true", 4):
                return fail(c, FAULT_SYNTAX)
        elif next_byte == c'f':
            if not json_is(c, b"false", 5):
                return fail(c, FAULT_SYNTAX)
        elif next_byte == c'n':
            if not json_is(c, b"null", 4):
                return fail(c, FAULT_SYNTAX)
        elif json_number(c, &number) < 0:
            return -1
        # behind a value: close what ends here, or go to the next member
        while depth > 0:
            next_byte = json_peek(c)
            if next_byte == closing[depth - 1]:
                c.p += 1
                depth -= 1
                continue
            if next_byte != c',':
                return -1 if next_byte < 0 else fail(c, FAULT_SYNTAX)
            c.p += 1
            if closing[depth - 1] == c'}':
                if json_peek(c) != c'"':
                    return fail(c, FAULT_SYNTAX)
                if json_skip_string(c) < 0 or json_expect(c, c':') < 0:
                    return -1
            elif json_peek(c) == c']':
                return fail(c, FAULT_SYNTAX)
            break
        if depth == 0:
            return 0


cdef inline int json_skip_other(Cursor *c, const Span *name, const char *known) noexcept nogil:
    """Over the value of a member that is none of the known ones, unless its name is one of them in another
    case: Go's readers take such a one, so that passing over it would be reading something else.
    `known`: these names in lower case, a space behind each."""
    cdef size_t n, i
    cdef uint8_t letter
    while known[0]:
        n = 0
        while known[n] != c' ':
            n += 1
        if n == name.n:
            i = 0
            while i < n:
                letter = name.p[i]
                if c'A' <= letter <= c'Z':
                    letter += 32
                if letter != <uint8_t>known[i]:
                    break
                i += 1
            if i == n:
                return fail(c, FAULT_NAME)
        known += n + 1
    return json_skip(c)
