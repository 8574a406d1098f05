"""The predicted path: messages that repeat the bytes of an earlier one between their values.

A message that is not as predicted is left to the general path, which gives the same row.
"""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.simple.json.decode cimport *
from tidegate.wire.simple.json.layout cimport *
from tidegate.wire.simple.json.tables cimport hash_names, plain_column


# --- small readers --------------------------------------------------------------------------------

cdef inline bint take_byte(Cursor *c, uint8_t byte) noexcept nogil:
    if c.p < c.end and c.p[0] == byte:
        c.p += 1
        return True
    return False


cdef inline bint take_natural(Cursor *c, int64_t *out) noexcept nogil:
    """Advances over a whole number; no fault is noted."""
    cdef size_t n = tg_natural(c.p, c.end, c.limit, out)
    c.p += n
    return n != 0


cdef inline bint skip_natural(Cursor *c) noexcept nogil:
    cdef size_t n = tg_digit_run(c.p, c.end, c.limit)
    if n == 0 or n > 18 or (n > 1 and c.p[0] == c'0'):
        return False
    c.p += n
    return True


cdef inline bint take_known(Cursor *c, Remembered *known, int64_t *out) noexcept nogil:
    """Advances over what was remembered, but for the comma behind it."""
    if known.size == 0 or not take(c, known.text, known.size):
        return False
    c.p -= 1
    out[0] = known.value
    return True


cdef inline bint remember_text(Cursor *c, const uint8_t *began, int64_t value,
                               Remembered *known) noexcept nogil:
    """Remembers what stands between `began` and a comma at the cursor; False: there is none."""
    if c.p >= c.end or c.p[0] != c',' or c.p - began >= REMEMBERED_BYTES:
        return False
    known.value = value
    known.size = <uint32_t>(c.p - began) + 1
    memcpy(known.text, began, known.size)
    return True


cdef inline bint predicted_id(Cursor *c, Remembered *known, int64_t *out) noexcept nogil:
    cdef const uint8_t *began = c.p
    return take_known(c, known, out) or (
        take_natural(c, out) and remember_text(c, began, out[0], known))


cdef inline bint predicted_version(Cursor *c, Remembered *known, int64_t *out) noexcept nogil:
    """`,"buildTs":…,"schemaVersion":…`: messages made within a millisecond have the same."""
    cdef const uint8_t *began = c.p
    return take_known(c, known, out) or (
        take(c, BUILD_TS.p, BUILD_TS.n) and skip_natural(c)
        and take(c, SCHEMA_VERSION.p, SCHEMA_VERSION.n) and take_natural(c, out)
        and remember_text(c, began, out[0], known))


# The quick way: the message is, byte for byte, what TiCDC writes for a table seen before.
cdef inline bint predicted_message(SimpleJsonDecoder self, Cursor *c) noexcept nogil:
    """Whether the message was as predicted; otherwise nothing has happened."""
    cdef Table *first = predicted_table(self, c)
    cdef Table *t = first
    cdef const uint8_t *behind_head = c.p
    cdef int tries = 0
    while t != NULL and tries < PREDICTIONS:
        if predicted_row(self, c, t):
            self.memory.last = &t.known
            return True
        self.out.rollback()
        c.fault = FAULT_NONE
        c.p = behind_head
        tries += 1
        # Others of the same table: with other columns, or with the handle key alone.
        t = <Table *>(first_known(&self.memory, first.known.hash) if t == first else t.known.next)
        while t != NULL and (t == first or t.known.hash != first.known.hash or
                             not same_span(&t.head, &first.head)):
            t = <Table *>t.known.next
    c.p = c.start
    return False


cdef inline Table *predicted_table(SimpleJsonDecoder self, Cursor *c) noexcept nogil:
    """A table with whose head the message begins, the cursor behind it; or NULL."""
    cdef Span database, table
    cdef unsigned int ignored = 0
    cdef uint64_t hash
    cdef Table *t = <Table *>self.memory.last
    if t != NULL and take(c, t.head.p, t.head.n):
        return t
    if not take(c, HEAD.p, HEAD.n):
        return NULL
    database.p = c.p
    database.n = tg_plain_run(c.p, c.end, c.limit, &ignored)
    c.p += database.n
    if not take(c, HEAD_TABLE.p, HEAD_TABLE.n):
        return NULL
    table.p = c.p
    table.n = tg_plain_run(c.p, c.end, c.limit, &ignored)
    hash = hash_names(&database, &table)
    t = <Table *>first_known(&self.memory, hash)
    c.p = c.start
    while t != NULL:
        if t.known.hash == hash and take(c, t.head.p, t.head.n):
            return t
        t = <Table *>t.known.next
    return NULL


cdef inline bint predicted_row(SimpleJsonDecoder self, Cursor *c, Table *t) noexcept nogil:
    """Reads on behind the head. False: not as predicted, and what was put must be taken back."""
    cdef Row row
    cdef Span *kind
    cdef Extra *extra
    cdef uint64_t zones = 0
    cdef int64_t version = 0
    if t.count == 0 or t.zones > PREDICTABLE_ZONES:
        return False
    row_init(&row, KIND_INSERT)
    if not predicted_id(c, &t.table_id, &row.table_id) or left(c) < INSERT_COMMIT_TS.n:
        return False
    kind = &INSERT_COMMIT_TS
    row.has = HAS_COMMIT_TS | HAS_TABLE_ID | HAS_SCHEMA_VERSION | HAS_AFTER
    if c.p[9] == c'U':
        kind = &UPDATE_COMMIT_TS
        row.kind = KIND_UPDATE
        row.has |= HAS_BEFORE
    elif c.p[9] == c'D':
        kind = &DELETE_COMMIT_TS
        row.kind = KIND_DELETE
        row.has ^= HAS_AFTER | HAS_BEFORE
    if not take(c, kind.p, kind.n) or not take_natural(c, &row.commit_ts) or \
            not predicted_version(c, &t.version, &row.schema_version) or left(c) < 3:
        return False
    if c.p[2] == c'h' and take(c, HANDLE_KEY_ONLY.p, HANDLE_KEY_ONLY.n):
        row.flags |= FLAG_HANDLE_KEY_ONLY
    elif c.p[2] == c'c' and take(c, CHECKSUM.p, CHECKSUM.n):
        extra = self.out.new_extra(&row)
        if extra == NULL or not take_natural(c, &version) or version > 0x7fffffff:
            return False
        extra.has_checksum = True
        extra.checksum.version = <int32_t>version
        row.flags |= FLAG_CHECKSUM
        if not take(c, INTACT_CURRENT.p, INTACT_CURRENT.n):
            if not take(c, CORRUPTED_CURRENT.p, CORRUPTED_CURRENT.n):
                return False
            extra.checksum.corrupted = True
            row.flags |= FLAG_CORRUPTED
        if not take_natural(c, &extra.checksum.current) or \
                not take(c, PREVIOUS.p, PREVIOUS.n) or \
                not take_natural(c, &extra.checksum.previous) or not take_byte(c, c'}') or \
                extra.checksum.current > UINT32_MAX or extra.checksum.previous > UINT32_MAX:
            return False
    if row.has & HAS_AFTER and (
        not take(c, DATA.p, DATA.n) or not predicted_side(c, t, &self.out.after, &zones)
    ):
        return False
    if row.has & HAS_BEFORE and (
        not take(c, OLD.p, OLD.n) or not predicted_side(c, t, &self.out.before, &zones)
    ):
        return False
    if not take_byte(c, c'}') or c.p != c.end:
        return False
    row.shape = zone_shape(self, c, t, zones)
    return row.shape >= 0 and self.out.add_row(c, &row) >= 0


cdef inline int32_t zone_shape(SimpleJsonDecoder self, Cursor *c, Table *t,
                               uint64_t zones) noexcept nogil:
    """The shape of the table's rows when the columns of these bits carry their zone."""
    cdef uint32_t i
    cdef int32_t column, shape
    cdef ShapeColumn *columns
    for i in range(t.zone_shape_count):
        if t.zone_shapes[i].zones == zones:
            return t.zone_shapes[i].shape
    self.columns.used = 0
    if buffer_reserve(&self.columns, <size_t>t.count * sizeof(ShapeColumn)) < 0:
        return fail(c, FAULT_MEMORY)
    columns = <ShapeColumn *>self.columns.data
    for column in range(t.count):
        plain_column(&columns[column], &t.columns[column].name)
        if t.expected[column].zone_bit & zones:
            columns[column].type = TIMESTAMP
            columns[column].zone = t.columns[column].zone
    shape = self.out.register_shape(c, &t.database, &t.table, columns, t.count)
    if shape < 0:
        return -1
    t.zone_shapes[t.zone_shape_next].zones = zones
    t.zone_shapes[t.zone_shape_next].shape = shape
    t.zone_shape_next = (t.zone_shape_next + 1) % ZONE_SHAPES
    if t.zone_shape_count < ZONE_SHAPES:
        t.zone_shape_count += 1
    return shape


cdef inline bint predicted_side(Cursor *c, const Table *t, Cells *cells,
                                uint64_t *zones) noexcept nogil:
    """`data` or `old` as predicted: its cells are put."""
    cdef tg_members m
    cdef const tg_expected *x = t.expected
    cdef const tg_expected *behind = t.expected + t.count
    cdef uint8_t *began
    # No text is longer in the batch than in the message, so this is room for all of them.
    if cells_reserve(cells, <size_t>t.count) < 0 or buffer_reserve(&cells.text, left(c)) < 0:
        return False
    m.p = c.p
    m.end = c.end
    m.limit = c.limit
    m.text = cells.text.data
    m.dst = m.text + cells.text.used
    m.ends = cells_ends(cells)
    m.valid = cells.valid.data + cells.count
    m.zones = zones[0]
    while True:
        x += tg_take_members(&m, x, <size_t>(behind - x))
        if x == behind:
            break
        # What was left: text with escapes, and the last bytes that may be read.
        c.p = m.p
        m.valid[0] = 1
        if take(c, x.literal, x.size):
            began = m.dst
            cells.text.used = <size_t>(m.dst - m.text)
            if json_text(c, &cells.text) < 0:
                return False
            m.dst = m.text + cells.text.used
            if x.zone_bit:
                if not tg_datetime_valid(began, <size_t>(m.dst - began)) or not take_byte(c, c'}'):
                    return False
                m.zones |= x.zone_bit
        elif take(c, x.literal, x.bare) and take(c, NULL_WORD.p, NULL_WORD.n):
            m.valid[0] = 0
        else:
            return False
        m.p = c.p
        m.ends[0] = <int32_t>(m.dst - m.text)
        m.valid += 1
        m.ends += 1
        x += 1
        if x == behind:
            break
    cells.text.used = <size_t>(m.dst - m.text)
    cells.ends.used += 4 * <size_t>t.count
    cells.valid.used += <size_t>t.count
    cells.count += <size_t>t.count
    zones[0] = m.zones
    c.p = m.p
    return take_byte(c, c'}')
