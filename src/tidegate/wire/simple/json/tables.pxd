"""Remembered tables: the names of their columns, and the bytes between the values of their messages."""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.simple.json.decode cimport *
from tidegate.wire.simple.json.layout cimport *
from tidegate.wire.simple.json.members cimport members_of


# --- names to columns -----------------------------------------------------------------------------

cdef inline int compare_names(const void *a, const void *b) noexcept nogil:
    """Bytewise order of two Member *."""
    cdef const Span *first = &(<const Member **>a)[0].name
    cdef const Span *second = &(<const Member **>b)[0].name
    cdef int order = memcmp(first.p, second.p, first.n if first.n < second.n else second.n)
    if order != 0:
        return order
    return (first.n > second.n) - (first.n < second.n)


cdef inline int32_t find_column(const Table *t, const Span *name) noexcept nogil:
    """The column of that name, or -1."""
    cdef uint32_t at = <uint32_t>tg_hash(name.p, name.n, 0) & t.index_mask
    cdef int32_t column
    while t.index[at]:
        column = <int32_t>t.index[at] - 1
        if same_span(&t.columns[column].name, name):
            return column
        at = (at + 1) & t.index_mask
    return -1


cdef enum:
    PLACED = 0
    UNKNOWN_COLUMN = 1
    TWICE = 2


cdef inline int place_members(const Table *t, const Member *members, int32_t count, int32_t *slots,
                              int32_t *culprit) noexcept nogil:
    """slots[column] = member, -1 where there is none; what else is wrong with which member."""
    cdef int32_t i, column
    memset(slots, 0xff, <size_t>t.count * sizeof(int32_t))
    for i in range(count):
        column = i
        if i >= t.count or not same_span(&t.columns[i].name, &members[i].name):
            column = find_column(t, &members[i].name)
            if column < 0:
                culprit[0] = i
                return UNKNOWN_COLUMN
        if slots[column] >= 0:
            culprit[0] = i
            return TWICE
        slots[column] = i
    return PLACED


# What is remembered of tables
cdef inline Table *table_of(SimpleJsonDecoder self, Cursor *c, Facts *f, Member *members,
                            int32_t count) noexcept nogil:
    """The remembered table with these columns, or a new one; slots are filled. NULL: a fault."""
    cdef uint64_t hash = hash_names(&f.database, &f.table)
    cdef KnownTable *known = first_known(&self.memory, hash)
    cdef Table *t
    cdef int32_t culprit = 0
    cdef int placed
    while known != NULL:
        t = <Table *>known
        if known.hash == hash and t.count == count and same_span(&t.database, &f.database) and \
                same_span(&t.table, &f.table):
            placed = place_members(t, members, count, <int32_t *>self.slots.data, &culprit)
            if placed == TWICE:
                fail_at(c, FAULT_DUPLICATE, members[culprit].at)
                return NULL
            if placed == PLACED:
                self.memory.last = known
                return t
        known = known.next
    return learn_table(self, c, f, members, count, NULL)


cdef inline Table *learn_table(SimpleJsonDecoder self, Cursor *c, Facts *f, const Member *members,
                               int32_t count, Table *earlier) noexcept nogil:
    """Remembers a table. `earlier` is what was known of it: its zones are kept, and its place."""
    cdef Table *fresh = make_table(self, c, f, members, count, earlier)
    cdef int32_t ignored = 0
    if fresh == NULL:
        return NULL
    if earlier != NULL:
        forget_table(&self.memory, &earlier.known)
    remember_table(&self.memory, &fresh.known)
    place_members(fresh, members, count, <int32_t *>self.slots.data, &ignored)
    return fresh


cdef inline void release_table(KnownTable *t) noexcept nogil:
    free((<Table *>t).text)
    free(t)


cdef inline Table *make_table(SimpleJsonDecoder self, Cursor *c, Facts *f, const Member *members,
                              int32_t count, const Table *earlier) noexcept nogil:
    """A table of these columns, sorted by name. NULL: a fault."""
    cdef const Member **ordered
    cdef Table *t
    cdef uint32_t slots = 4, at
    cdef size_t fixed
    cdef int32_t i
    self.columns.used = 0
    if buffer_reserve(&self.columns, <size_t>count * sizeof(Member *)) < 0:
        fail(c, FAULT_MEMORY)
        return NULL
    ordered = <const Member **>self.columns.data
    for i in range(count):
        ordered[i] = &members[i]
    qsort(<void *>ordered, count, sizeof(Member *), compare_names)
    for i in range(1, count):
        if same_span(&ordered[i - 1].name, &ordered[i].name):
            fail_at(c, FAULT_DUPLICATE,
                    ordered[i].at if ordered[i].at > ordered[i - 1].at else ordered[i - 1].at)
            return NULL
    while slots < 2 * <uint32_t>count:
        slots *= 2
    fixed = sizeof(Table) + slots * sizeof(uint16_t) + \
        <size_t>count * (sizeof(TableColumn) + sizeof(tg_expected))
    t = <Table *>malloc(fixed)
    if t == NULL:
        fail(c, FAULT_MEMORY)
        return NULL
    memset(t, 0, fixed)
    t.count = count
    t.columns = <TableColumn *>(t + 1)
    t.expected = <tg_expected *>(t.columns + count)
    t.index = <uint16_t *>(t.expected + count)
    t.index_mask = slots - 1
    t.known.hash = hash_names(&f.database, &f.table)
    if write_literals(&self.text, t, f, ordered, earlier) < 0:
        free(t)
        fail(c, FAULT_MEMORY)
        return NULL
    t.known.size = fixed + self.text.used
    for i in range(count):
        at = <uint32_t>tg_hash(t.columns[i].name.p, t.columns[i].name.n, 0) & t.index_mask
        while t.index[at]:
            at = (at + 1) & t.index_mask
        t.index[at] = <uint16_t>(i + 1)
    return t


cdef inline uint64_t hash_names(const Span *database, const Span *table) noexcept nogil:
    return tg_hash(database.p, database.n, 1) ^ tg_hash(table.p, table.n, 2)


cdef inline void plain_column(ShapeColumn *column, const Span *name) noexcept nogil:
    memset(column, 0, sizeof(ShapeColumn))
    column.name = name[0]
    column.code = -1
    column.flags = -1


cdef inline int put_text(Buffer *b, const Span *text) noexcept nogil:
    return json_put_string(b, text.p, text.n, text.p + text.n, STYLE_ENCODING_JSON)


cdef inline int put_raw(Buffer *b, const Span *text, Span *at) noexcept nogil:
    """Adds the text; at.p is where it stands, counted from the buffer's start."""
    at.p = <const uint8_t *>b.used
    at.n = text.n
    return buffer_add(b, text.p, text.n)


cdef inline int write_literals(Buffer *b, Table *t, const Facts *f, const Member **ordered,
                               const Table *earlier) noexcept nogil:
    """Fills in the names and literals of a table, in memory of its own. -1: there is none."""
    cdef TableColumn *column
    cdef tg_expected *x
    cdef const Span *zone
    cdef size_t began
    cdef int32_t i
    b.used = 0
    if buffer_add(b, HEAD.p, HEAD.n - 1) < 0 or put_text(b, &f.database) < 0 or \
            buffer_add(b, HEAD_TABLE.p + 1, HEAD_TABLE.n - 2) < 0 or put_text(b, &f.table) < 0 or \
            buffer_add(b, b',"tableID":', 11) < 0:
        return -1
    t.head.p = NULL
    t.head.n = b.used
    if put_raw(b, &f.database, &t.database) < 0 or put_raw(b, &f.table, &t.table) < 0:
        return -1
    for i in range(t.count):
        column = &t.columns[i]
        x = &t.expected[i]
        zone = &ordered[i].zone
        if zone.p == NULL and earlier != NULL:
            zone = &earlier.columns[i].zone
        began = b.used
        x.literal = <const uint8_t *>began
        if buffer_add_byte(b, c',' if i else c'{') < 0 or put_text(b, &ordered[i].name) < 0 or \
                buffer_add_byte(b, c':') < 0:
            return -1
        x.bare = <uint32_t>(b.used - began)
        if zone.n:
            if t.zones < PREDICTABLE_ZONES:
                x.zone_bit = <uint64_t>1 << t.zones
            t.zones += 1
            if buffer_add(b, b'{"location":', 12) < 0 or put_text(b, zone) < 0 or \
                    buffer_add(b, b',"value":', 9) < 0:
                return -1
        if buffer_add_byte(b, c'"') < 0:
            return -1
        x.size = <uint32_t>(b.used - began)
        x.mask = tg_literal_mask(x.size)
        if put_raw(b, &ordered[i].name, &column.name) < 0 or \
                (zone.n and put_raw(b, zone, &column.zone) < 0):
            return -1
    t.text = <uint8_t *>malloc(b.used + 32)
    if t.text == NULL:
        return -1
    memcpy(t.text, b.data, b.used)
    memset(t.text + b.used, 0, 32)      # literals are read on behind their ends
    t.head.p = t.text
    t.database.p = t.text + <size_t>t.database.p
    t.table.p = t.text + <size_t>t.table.p
    for i in range(t.count):
        column = &t.columns[i]
        t.expected[i].literal = t.text + <size_t>t.expected[i].literal
        column.name.p = t.text + <size_t>column.name.p
        if column.zone.n:
            column.zone.p = t.text + <size_t>column.zone.p
    return 0
