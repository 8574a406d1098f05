"""The predicted path: messages that repeat the bytes of an earlier one between their values.

A message that is not as predicted is left to the general path, which gives the same rows.
"""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.canal.decode cimport *
from tidegate.wire.canal.plans cimport names_hash, power_above


cdef inline int64_t unescape(const uint8_t **p, const uint8_t *end, const uint8_t *limit,
                             uint8_t *text, size_t n, unsigned int *high) noexcept nogil:
    """See canal_unescape."""
    cdef Cursor c
    cdef size_t run = 0
    c.p = p[0]
    c.end = end
    c.limit = limit
    c.fault = FAULT_NONE
    while c.p < end:
        if c.p[0] == c'"':
            p[0] = c.p + 1
            return <int64_t>n
        if c.p[0] != c'\\' or json_escape(&c, text + n, &run) < 0:
            return -1
        n += run
        run = tg_copy_plain_run(c.p, end, limit, text + n, high)
        n += run
        c.p += run
    return -1


cdef inline const uint8_t *predicted_sql_type(Plan *plan, Cursor *c) noexcept nogil:
    """Over sqlType to behind the opening brace of mysqlType."""
    cdef const uint8_t *p = c.p
    cdef const uint8_t *number
    cdef int32_t i
    cdef Span *segment = plan.segments
    cdef uint8_t leading
    for i in range(plan.segment_count - 1):
        if <size_t>(c.end - p) < segment.n + 8 or not tg_same(p, segment.p, segment.n, c.limit):
            return NULL
        p += segment.n
        segment += 1
        p += p[0] == c'-'
        leading = p[0]
        if not tg_is_digit(leading):
            return NULL
        number = p
        p += 1
        while p < c.end and tg_is_digit(p[0]):
            if leading == c'0':
                return NULL
            p += 1
        # The general path refuses numbers of more than 64 bits; no type has one of ten digits.
        if p - number > 9:
            return NULL
    if <size_t>(c.end - p) < segment.n or not tg_same(p, segment.p, segment.n, c.limit):
        return NULL
    return p + segment.n


cdef inline bint predicted_digits(Cursor *c, uint64_t *value) noexcept nogil:
    cdef size_t n
    if TG_UNLIKELY(c.p >= c.end):
        return False
    n = canal_digit_run(c.p)
    if TG_UNLIKELY(n == 0 or n > 18 or n > left(c) or (c.p[0] == c'0' and n > 1)):
        return False
    value[0] = canal_number(c.p, n)
    c.p += n
    return True


# --- the predicted way -----------------------------------------------------------------------
cdef inline bint predict(CanalDecoder self, Message *m) noexcept nogil:
    """Reads the message by one of the plans; if by none, something may have been put."""
    cdef KnownTable *tried = self.memory.last
    cdef KnownTable *known
    if TG_LIKELY(predicted(self, <Plan *>tried, m)):
        return True
    known = find_raw(self, m)
    while known != NULL:
        if known != tried:
            self.out.rollback()
            if predicted(self, <Plan *>known, m):
                self.memory.last = known
                return True
        known = known.next
    return False


cdef inline KnownTable *find_raw(CanalDecoder self, Message *m) noexcept nogil:
    """The first plan of the bucket of the table that a TiCDC message names; NULL: none, or another
    layout, or names with escapes."""
    cdef const uint8_t *p = m.value
    cdef const uint8_t *end = p + m.value_size
    cdef const uint8_t *database
    cdef size_t run
    cdef size_t database_size
    cdef unsigned int high = 0
    if m.value_size < 48 or not tg_same(p, canal_database, 20, m.value_limit):
        return NULL
    p += 20
    database = p
    database_size = tg_plain_run(p, end, m.value_limit, &high)
    p += database_size
    if <size_t>(end - p) < 16 or not tg_same(p, canal_table, 11, m.value_limit):
        return NULL
    p += 11
    run = tg_plain_run(p, end, m.value_limit, &high)
    return first_known(&self.memory, names_hash(self, database, database_size, p, run))


cdef inline bint predicted_commit_ts(Cursor *c, uint64_t es, Row *row) noexcept nogil:
    """Behind the last value: the TiDB extension, or without it `es` as the commit_ts, and the end."""
    cdef const uint8_t *p = c.p
    cdef uint64_t ts = 0
    cdef unsigned int high = 0
    if TG_LIKELY(take(c, canal_commit_ts, 23)):
        if not predicted_digits(c, &ts):
            return False
        row.commit_ts = <int64_t>ts
        if TG_LIKELY(c.p[0] == c'}' and c.p[1] == c'}'):
            c.p += 2
        elif take(c, canal_handle_key, 23):
            row.flags |= FLAG_HANDLE_KEY_ONLY
        elif take(c, canal_row_key, 11):
            c.p += tg_plain_run(c.p, c.end, c.limit, &high)
            if high != 0 or c.p[0] != c'"' or c.p[1] != c'}' or c.p[2] != c'}':
                return False
            c.p += 3
        else:
            return False
    elif p[0] == c'}' and p[1] == c']' and p[2] == c'}':
        if es > <uint64_t>INT64_MAX >> 18:
            return False
        row.commit_ts = <int64_t>(es << 18)
        c.p += 3
    else:
        return False
    # v6.5 put a line end behind each message
    json_space(c)
    return c.p == c.end


cdef inline bint predicted(CanalDecoder self, Plan *plan, Message *m) noexcept nogil:
    """Reads the message if it is one of the plan, exactly as TiCDC lays it out. If not, what
    was put stays for the caller to take back.

    Where the bytes are as predicted nobody asks whether the message still goes on: what is read
    behind it lies in the padding, and in the end the last byte must be the message's last.
    """
    cdef Cursor at
    cdef Cursor *c = &at
    cdef Row row
    cdef Cells *cells
    cdef const uint8_t *types
    cdef uint64_t es = 0, ts = 0
    cdef uint8_t *missing
    cdef int32_t left_out = 0
    if not plan.predicts or m.value_size < plan.prefix.n + plan.layout.types_size + 64 or \
            not tg_same(m.value, plan.prefix.p, plan.prefix.n, m.value_limit):
        return False
    c.start = m.value
    c.end = m.value + m.value_size
    c.limit = m.value_limit
    c.fault = FAULT_NONE
    c.p = m.value + plan.prefix.n
    if take(c, canal_insert, 13):
        row_init(&row, KIND_INSERT)
    elif take(c, canal_update, 13):
        row_init(&row, KIND_UPDATE)
    elif take(c, canal_delete, 13):
        row_init(&row, KIND_DELETE)
    else:
        return False
    if not predicted_digits(c, &es) or not take(c, canal_ts, 6) or \
            not predicted_digits(c, &ts) or not take(c, canal_sql, 21):
        return False
    types = predicted_sql_type(plan, c)
    if types == NULL or <size_t>(c.end - types) < plan.layout.types_size:
        return False
    c.p = types + plan.layout.types_size
    if buffer_reserve(&self.spare, left(c)) < 0:
        return False
    if row.kind == KIND_UPDATE:
        if not take(c, canal_old, 10):
            return False
        missing = self.out.new_missing(&row, plan.count)
        if missing == NULL or \
                not predicted_row(self, plan, c, &self.out.before, NULL, missing, &left_out):
            return False
        if left_out == 0:
            self.out.missing.used = row.missing
            row.has = 0
        row.has = row.has | HAS_BEFORE
        if not take(c, canal_data, 12):
            return False
    elif not take(c, canal_no_old, 22):
        return False
    cells = &self.out.before if row.kind == KIND_DELETE else &self.out.after
    row.has = row.has | (HAS_BEFORE if row.kind == KIND_DELETE else HAS_AFTER)
    if not predicted_row(self, plan, c, cells, types, NULL, NULL):
        return False
    if not predicted_commit_ts(c, es, &row):
        return False
    row.has = row.has | HAS_COMMIT_TS
    row.shape = plan.shape
    return self.out.add_row(c, &row) == 0


cdef inline bint predicted_row(CanalDecoder self, const Plan *plan, Cursor *c, Cells *cells,
                               const uint8_t *types, uint8_t *missing,
                               int32_t *left_out) noexcept nogil:
    """The row at the cursor as the next cells; see canal_read_row."""
    cdef canal_cells at
    cdef const uint8_t *end
    # No value is longer than it stands there, but that base64 makes four bytes of three.
    if cells_reserve(cells, plan.count) < 0 or buffer_reserve(
        &cells.text, left(c) // 3 * 4 + 4 * <size_t>plan.count + 2 * CANAL_PADDING
    ) < 0:
        return False
    at.base = cells.text.data
    at.text = cells.text.data + cells.text.used
    at.ends = cells_ends(cells)
    at.valid = cells.valid.data + cells.count
    at.spare = self.spare.data
    end = canal_read_row(
        &plan.layout, c.p, c.end, c.limit, &at, types, missing, left_out, unescape
    )
    if TG_UNLIKELY(end == NULL or end > c.end):
        return False
    c.p = end
    cells.text.used = <size_t>(at.text - at.base)
    cells.count += <size_t>plan.count
    cells.ends.used += 4 * <size_t>plan.count
    cells.valid.used += <size_t>plan.count
    return True


# --- making predictions ------------------------------------------------------------------------
cdef inline void try_prediction(CanalDecoder self, Message *m, Parts *parts,
                                Plan *plan) noexcept nogil:
    """Lets the plan predict if it then reads the message itself; what that puts is taken back."""
    cdef size_t rows = self.out.rows.used
    cdef size_t after = self.out.after.count
    cdef size_t before = self.out.before.count
    cdef size_t missing = self.out.missing.used
    cdef size_t extras = self.out.extras.used
    cdef int32_t event = self.out.event
    plan.predicts = fill_prediction(self, m, parts, plan) == 0
    if plan.predicts:
        plan.predicts = predicted(self, plan, m)
    self.out.rows.used = rows
    cells_cut(&self.out.after, after)
    cells_cut(&self.out.before, before)
    self.out.missing.used = missing
    self.out.extras.used = extras
    self.out.event = event


cdef inline int fill_literal(CanalDecoder self, Plan *plan, canal_literal *literal,
                             const uint8_t *p, size_t n) noexcept nogil:
    cdef size_t head = n if n < 32 else 32
    cdef Span kept
    memset(literal, 0, sizeof(canal_literal))
    if n > 0xffff or arena_keep(&plan.arena, p, n, &kept) < 0:
        return -1
    memcpy(literal.head, p, head)
    literal.whole = kept.p
    literal.size = <uint32_t>n
    literal.mask = <uint32_t>((<uint64_t>1 << head) - 1)
    literal.weight = canal_hash(p, n, self.seed)
    return 0


cdef inline int fill_prediction(CanalDecoder self, Message *m, Parts *parts,
                                Plan *plan) noexcept nogil:
    """The bytes between values as this message has them; -1: it cannot serve."""
    cdef canal_layout *layout = &plan.layout
    cdef const int32_t *slots = <const int32_t *>self.after_slots.data
    cdef Member *member
    cdef uint8_t *opened
    cdef size_t n
    cdef int32_t i
    layout.count = plan.count
    layout.names = <canal_literal *>arena_take(
        &plan.arena, <size_t>plan.count * sizeof(canal_literal)
    )
    layout.rules = <canal_rule *>arena_take(&plan.arena, <size_t>plan.count * sizeof(canal_rule))
    if layout.names == NULL or layout.rules == NULL or \
            arena_keep(&plan.arena, m.value, <size_t>(parts.type_at - m.value), &plan.prefix) < 0:
        return -1
    for i in range(plan.count):
        member = <Member *>self.members.data + slots[i]
        n = <size_t>(member.value_at - member.at)
        # With the quote that opens a value, also where this one is null.
        opened = arena_take(&plan.arena, n + 1)
        if opened == NULL:
            return -1
        memcpy(opened, member.at, n)
        opened[n] = c'"'
        layout.rules[i] = plan.columns[i].rule
        if fill_literal(self, plan, &layout.names[i], opened, n + 1) < 0:
            return -1
    if fill_segments(self, parts, plan) < 0:
        return -1
    return fill_types(self, parts, plan)


cdef inline int fill_segments(CanalDecoder self, Parts *parts, Plan *plan) noexcept nogil:
    """sqlType from behind its brace to behind that of mysqlType, cut at the numbers that vary."""
    cdef Member *member = <Member *>self.members.data + parts.sql_type.first
    cdef Member *types = <Member *>self.members.data + parts.mysql_type.first
    cdef const uint8_t *start
    cdef const uint8_t *end
    cdef int32_t i
    if parts.sql_type.count != <size_t>plan.count or parts.mysql_type.count != <size_t>plan.count:
        return -1
    # Members of other layouts may stand in any order.
    if types.at < member.at:
        return -1
    plan.segments = <Span *>arena_take(&plan.arena, (<size_t>plan.count + 1) * sizeof(Span))
    if plan.segments == NULL:
        return -1
    start = member.at
    for i in range(plan.count):
        if plan.columns[i].varies:
            end = member[i].value_at
            if end < start or \
                    arena_keep(&plan.arena, start, <size_t>(end - start),
                               &plan.segments[plan.segment_count]) < 0:
                return -1
            plan.segment_count += 1
            start = end + (end[0] == c'-')
            while tg_is_digit(start[0]):
                start += 1
    if types.at < start or arena_keep(&plan.arena, start, <size_t>(types.at - start),
                                      &plan.segments[plan.segment_count]) < 0:
        return -1
    plan.segment_count += 1
    return 0


cdef inline int fill_types(CanalDecoder self, Parts *parts, Plan *plan) noexcept nogil:
    """The entries of mysqlType, and the table that finds them by how they begin."""
    cdef canal_layout *layout = &plan.layout
    cdef Member *member = <Member *>self.members.data + parts.mysql_type.first
    cdef canal_literal *entry
    cdef size_t slot_count = power_above(4 * <size_t>plan.count)
    cdef const uint8_t *end
    cdef uint32_t *slot
    cdef uint32_t index
    cdef int alike
    layout.types = <canal_literal *>arena_take(
        &plan.arena, (<size_t>plan.count + 1) * sizeof(canal_literal)
    )
    layout.slots = <uint32_t *>arena_take(&plan.arena, slot_count * sizeof(uint32_t))
    if layout.types == NULL or layout.slots == NULL:
        return -1
    memset(layout.slots, 0, slot_count * sizeof(uint32_t))
    layout.shift = 64
    while (<size_t>1 << (64 - layout.shift)) < slot_count:
        layout.shift -= 1
    layout.window = 16
    layout.types_size = <size_t>plan.count - 1
    for index in range(1, <uint32_t>plan.count + 1):
        # The text is a span of the message unless it has escapes, which no type needs.
        end = member.text.p + member.text.n + 1
        if member.value_at + member.text.n + 2 != end or end - member.at < 9:
            return -1
        entry = &layout.types[index]
        if fill_literal(self, plan, entry, member.at, <size_t>(end - member.at)) < 0:
            return -1
        layout.types_size += entry.size
        layout.types_weight += entry.weight
        if entry.size - 1 < <uint32_t>layout.window:
            layout.window = <int>(entry.size - 1)
        member += 1
    for index in range(1, <uint32_t>plan.count + 1):
        entry = &layout.types[index]
        slot = &layout.slots[canal_type_slot(entry.whole + 1, layout.window, layout.shift)]
        alike = 0
        while slot[0]:
            slot = &layout.types[slot[0] & 0xffff].next
            alike += 1
            if alike > MAX_ALIKE:
                return -1
        slot[0] = index | entry.size << 16
    return 0
