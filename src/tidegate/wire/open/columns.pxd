"""The columns of an event as they stand in the message, before their types are known to fit."""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.open.decode cimport *
from tidegate.wire.open.layout cimport *


cdef inline bint is_letter(const Span *name, uint8_t letter) noexcept nogil:
    return name.n == 1 and name.p[0] == letter


cdef inline int read_section(OpenDecoder self, Cursor *c, Section *section,
                             bint may_be_bare) noexcept nogil:
    """The columns of `u`, `p` or `d` into self.columns, as they stand."""
    cdef Column column
    cdef Span name
    cdef bint open_bare = False
    cdef const uint8_t *name_at
    cdef int next_byte
    if section.there:
        return fail(c, FAULT_DUPLICATE)
    section.there = True
    section.first = self.columns.used // sizeof(Column)
    if json_open(c, c'{') < 0:
        return -1
    memset(&column, 0, sizeof(Column))
    next_byte = json_peek(c)
    while next_byte != c'}':
        if next_byte < 0:
            return -1
        if not open_bare and quick_column(self, c, section):
            next_byte = c.p[0]
            if next_byte == c',':
                c.p += 1
                next_byte = json_peek(c)
                if next_byte == c'}':
                    return fail(c, FAULT_SYNTAX)
            continue
        name_at = c.p
        if next_byte != c'"':
            return fail(c, FAULT_SYNTAX)
        if json_span(c, &self.out.scratch, &name) < 0 or json_expect(c, c':') < 0:
            return -1
        next_byte = json_peek(c)
        if next_byte < 0:
            return -1
        if next_byte == c'{':
            if open_bare:
                return fail(c, FAULT_MISSING)
            column.name = name
            column.name_at = name_at
            column.bare = False
            if read_column(self, c, &column) < 0 or add_column(self, c, section, &column) < 0:
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
            if read_bare(self, c, &name, &column) < 0:
                return -1
            if column.value_at != NULL:
                if add_column(self, c, section, &column) < 0:
                    return -1
                open_bare = False
        next_byte = json_peek(c)
        if next_byte == c',':
            c.p += 1
            next_byte = json_peek(c)
            if next_byte == c'}':
                return fail(c, FAULT_SYNTAX)
        elif next_byte != c'}':
            return -1 if next_byte < 0 else fail(c, FAULT_SYNTAX)
    if open_bare:
        return fail(c, FAULT_MISSING)
    c.p += 1
    return 0


cdef inline int add_column(OpenDecoder self, Cursor *c, Section *section,
                           const Column *column) noexcept nogil:
    if section.count == MAX_COLUMNS:
        return fail(c, FAULT_COLUMNS)
    if buffer_reserve(&self.columns, sizeof(Column)) < 0:
        return fail(c, FAULT_MEMORY)
    (<Column *>(self.columns.data + self.columns.used))[0] = column[0]
    self.columns.used += sizeof(Column)
    section.count += 1
    return 0


cdef inline const uint8_t *quick_value(Column *column, const uint8_t *p, const uint8_t *end,
                                       const uint8_t *limit) noexcept nogil:
    """Notes the value at p, a string, null or an integer, and gives what follows; NULL: another."""
    cdef unsigned int high = 0
    cdef size_t run
    cdef uint8_t text[32]
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
                return NULL
            p += tg_plain_run(p, end, limit, &high)
            column.seen = SEEN_OTHER
        if end - p < 3 or p[0] != c'"':
            return NULL
        p += 1
    elif p[0] == c'n':
        if end - p < 6 or memcmp(p, b"null", 4) != 0:
            return NULL
        column.seen = SEEN_NULL
        p += 4
    else:
        run = open_integer(p, end, limit, text)
        if run == 0 or end - p < <Py_ssize_t>run + 2:
            return NULL
        column.seen = SEEN_INTEGER
        p += run
    column.value_end = p
    return p


cdef inline bint quick_column(OpenDecoder self, Cursor *c, Section *section) noexcept nogil:
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
            p = quick_value(column, p, end, limit)
            if p == NULL:
                return False
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
    column.key = handle or (column.flags >= 0 and column.flags & COLUMN_HANDLE_KEY)
    c.p = p
    self.columns.used += sizeof(Column)
    section.count += 1
    return True


cdef inline int read_bare(OpenDecoder self, Cursor *c, const Span *name,
                          Column *column) noexcept nogil:
    """One of the members t, h, f, v that stand in `p` without their column: `v` comes last."""
    cdef bint handle = False
    if is_letter(name, c't'):
        if column.code >= 0:
            return fail(c, FAULT_DUPLICATE)
        return read_code(self, c, column)
    if is_letter(name, c'f'):
        if column.flags >= 0:
            return fail(c, FAULT_DUPLICATE)
        return read_flags(self, c, column)
    if is_letter(name, c'h'):
        if json_bool(c, &handle) < 0:
            return -1
        column.key |= handle
        return 0
    if not is_letter(name, c'v'):
        return fail(c, FAULT_TYPE)
    if column.code < 0:
        return fail(c, FAULT_MISSING)
    return read_span(self, c, column)


cdef inline int read_code(OpenDecoder self, Cursor *c, Column *column) noexcept nogil:
    cdef uint64_t number = 0
    cdef const uint8_t *began = c.p
    if json_u64(c, &number) < 0:
        return -1
    if number > 255:
        return fail_at(c, FAULT_RANGE, began)
    column.code = <int32_t>number
    return 0


cdef inline int read_flags(OpenDecoder self, Cursor *c, Column *column) noexcept nogil:
    cdef uint64_t number = 0
    cdef const uint8_t *began = c.p
    if json_u64(c, &number) < 0:
        return -1
    if number > 0x7fffffff:
        return fail_at(c, FAULT_RANGE, began)
    column.flags = <int32_t>number
    return 0


cdef inline int read_span(OpenDecoder self, Cursor *c, Column *column) noexcept nogil:
    """Notes where the value is; it is read once type and flags are known."""
    cdef Span number
    cdef int status
    column.value_at = c.p
    column.seen = SEEN_OTHER
    if c.p[0] == c'"':
        status = json_skip_string(c)
    elif c.p[0] == c'n':
        column.seen = SEEN_NULL
        status = 0 if json_is(c, b"null", 4) else fail(c, FAULT_SYNTAX)
    elif c.p[0] == c'-' or 48 <= c.p[0] <= 57:
        status = json_number(c, &number)
    else:
        status = fail(c, FAULT_TYPE)
    column.value_end = c.p
    return status


cdef inline int read_column(OpenDecoder self, Cursor *c, Column *column) noexcept nogil:
    cdef bint first = True, has_handle = False, handle = False
    cdef Span name
    cdef uint8_t letter
    cdef int next_byte, status
    column.code = -1
    column.flags = -1
    column.key = 0
    column.value_at = NULL
    c.p += 1
    while True:
        next_byte = json_peek(c)
        if next_byte == c'}':
            break
        if not first:
            if next_byte != c',':
                return -1 if next_byte < 0 else fail(c, FAULT_SYNTAX)
            c.p += 1
            next_byte = json_peek(c)
        first = False
        if next_byte != c'"':
            return -1 if next_byte < 0 else fail(c, FAULT_SYNTAX)
        letter = 0
        if TG_LIKELY(left(c) >= 6 and c.p[2] == c'"' and c.p[3] == c':' and c.p[1] >= c'a'):
            letter = c.p[1]
            name.p = c.p + 1
            name.n = 1
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
            status = read_code(self, c, column)
        elif letter == c'f':
            if column.flags >= 0:
                return fail(c, FAULT_DUPLICATE)
            status = read_flags(self, c, column)
        elif letter == c'v':
            if column.value_at != NULL:
                return fail(c, FAULT_DUPLICATE)
            status = read_span(self, c, column)
        elif letter == c'h':
            if has_handle:
                return fail(c, FAULT_DUPLICATE)
            has_handle = True
            status = json_bool(c, &handle)
        else:
            status = json_skip_other(c, &name, b"t h f v ")
        if status < 0:
            return -1
    if column.code < 0 or column.value_at == NULL:
        return fail(c, FAULT_MISSING)
    column.key = handle or (column.flags >= 0 and column.flags & COLUMN_HANDLE_KEY)
    column.plain = column.value_end == c.p
    c.p += 1
    return 0
