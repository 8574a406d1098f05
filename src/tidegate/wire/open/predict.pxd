"""The predicted path: events that repeat the bytes of an earlier one between their values.

An event that is not as predicted is left to the general path, which gives the same row.
"""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.open.decode cimport *
from tidegate.wire.open.layout cimport *
from tidegate.wire.open.values cimport *


cdef inline void release_table(KnownTable *known) noexcept nogil:
    cdef Table *table = <Table *>known
    cdef int i
    for i in range(table.plan_count):
        free(table.plans[i].lanes)
    free(table.block)
    free(table)


cdef inline uint64_t hash_names(const Span *database, const Span *table) noexcept nogil:
    return tg_hash(database.p, database.n, 1) ^ tg_hash(table.p, table.n, 2)


# --- as predicted ---
cdef inline bint predicted_key(OpenDecoder self, Cursor *k, Key *key) noexcept nogil:
    """Whether the key is a row's of a table remembered, with nothing unusual in it."""
    cdef const uint8_t *p = k.p
    cdef const uint8_t *end = k.end
    cdef uint8_t text[32]
    cdef size_t n
    cdef bint is_row = False
    # Timestamps have 18 digits from 1992 to 2090.
    if end - p < 32 or memcmp(p, b'{"ts":', 6) != 0 or p[6] == 48 or p[24] != c',' or \
            tg_parse_u64(p + 6, 18, <uint64_t *>&key.commit_ts) < 0:
        return False
    p += 24
    key.known = <Table *>self.memory.last
    if TG_UNLIKELY(key.known == NULL or key.known.literal.n == 0
                   or end - p < <Py_ssize_t>key.known.literal.n
                   or not open_same(p, key.known.literal.p, key.known.literal.n)):
        key.known = table_at(self, p, end, k.limit)
        if key.known == NULL:
            return False
        self.memory.last = &key.known.known
    p += key.known.literal.n
    key.database = key.known.database
    key.table = key.known.table
    key.location.p = NULL
    key.has_partition = False
    key.only_handle_key = False
    while end - p > 1:
        if end - p >= 7 and memcmp(p, b',"t":1', 6) == 0 and not is_row:
            is_row = True
            p += 6
            continue
        if end - p < 9:
            return False
        n = open_integer(p + 7, end, k.limit, text)
        if n == 0 or n > 18:
            return False
        if memcmp(p, b',"rid":', 7) == 0:
            p += 7 + n
        elif memcmp(p, b',"ptn":', 7) == 0 and not key.has_partition:
            key.has_partition = True
            tg_parse_i64(p + 7, n, &key.partition)
            p += 7 + n
        else:
            return False
    return is_row and end - p == 1 and p[0] == c'}'


cdef inline Table *table_at(OpenDecoder self, const uint8_t *p, const uint8_t *end,
                            const uint8_t *limit) noexcept nogil:
    """The table whose `,"scm":…,"tbl":…` stands at p, if it is remembered with that literal."""
    cdef unsigned int high = 0
    cdef Span database, table
    cdef Table *known
    if end - p < 24 or memcmp(p, b',"scm":"', 8) != 0:
        return NULL
    database.p = p + 8
    database.n = tg_plain_run(database.p, end, limit, &high)
    p = database.p + database.n
    if end - p < 12 or memcmp(p, b'","tbl":"', 9) != 0:
        return NULL
    table.p = p + 9
    table.n = tg_plain_run(table.p, end, limit, &high)
    p = table.p + table.n
    if end - p < 2 or p[0] != c'"':
        return NULL
    known = find_table(self, &database, &table)
    return NULL if known == NULL or known.literal.n == 0 else known


cdef inline Table *find_table(OpenDecoder self, const Span *database,
                              const Span *table) noexcept nogil:
    cdef uint64_t h = hash_names(database, table)
    cdef KnownTable *known = first_known(&self.memory, h)
    while known != NULL:
        if known.hash == h and same_span(&(<Table *>known).database, database) and \
                same_span(&(<Table *>known).table, table):
            return <Table *>known
        known = known.next
    return NULL


cdef inline bint predicted_row(OpenDecoder self, Cursor *c, Key *key) noexcept nogil:
    """Whether the value was as predicted: then its row is there. Otherwise nothing has happened."""
    cdef Row row
    cdef Table *table = key.known
    cdef int i = table.recent
    cdef int tried
    cdef size_t after = self.out.after.count
    cdef size_t before = self.out.before.count
    cdef size_t missing = self.out.missing.used
    if c.end - c.p < 8:
        return False
    for tried in range(table.plan_count):
        row_init(&row, KIND_INSERT)
        if TG_LIKELY(predicted_value(self, &table.plans[i], &row, c.p, c.end, c.limit)):
            table.recent = i
            row.shape = table.plans[i].shape
            if TG_LIKELY(end_row(self, c, &row, key) == 0):
                return True
            c.fault = FAULT_NONE    # the general path meets it again, and reports it
        cells_cut(&self.out.after, after)
        cells_cut(&self.out.before, before)
        self.out.missing.used = missing
        i = i + 1 if i + 1 < table.plan_count else 0
    return False


cdef inline int end_row(OpenDecoder self, Cursor *c, Row *row, const Key *key) noexcept nogil:
    """What the key says of a row, and the end of it."""
    cdef Extra *extra
    row.commit_ts = key.commit_ts
    row.has |= HAS_COMMIT_TS
    if key.has_partition:
        row.table_id = key.partition
        row.has |= HAS_TABLE_ID
    if key.only_handle_key:
        row.flags |= FLAG_HANDLE_KEY_ONLY
    if key.location.p != NULL:
        row.flags |= FLAG_CLAIM_CHECK
        extra = self.out.new_extra(row)
        if extra == NULL or self.out.keep(&key.location, &extra.claim_check) < 0:
            return fail(c, FAULT_MEMORY)
    return self.out.add_row(c, row)


cdef inline bint predicted_value(OpenDecoder self, Plan *plan, Row *row, const uint8_t *p,
                                 const uint8_t *end, const uint8_t *limit) noexcept nogil:
    if memcmp(p, b'{"u":{', 6) == 0:
        row.has = HAS_AFTER
        p = predicted_section(self, plan, &self.out.after, NULL, p + 6, end, limit)
        if p == NULL or end - p < 2:
            return False
        if memcmp(p, b'}}', 2) == 0:
            return end - p == 2
        if end - p < 9 or memcmp(p, b'},"p":{', 7) != 0:
            return False
        row.kind = KIND_UPDATE
        row.has = HAS_AFTER | HAS_BEFORE
        p = predicted_section(self, plan, &self.out.before, row, p + 7, end, limit)
    elif memcmp(p, b'{"d":{', 6) == 0:
        row.kind = KIND_DELETE
        row.has = HAS_BEFORE
        p = predicted_section(self, plan, &self.out.before, NULL, p + 6, end, limit)
    else:
        return False
    return p != NULL and end - p == 2 and memcmp(p, b'}}', 2) == 0


cdef inline int leave_out(OpenDecoder self, const Plan *plan, Row *row, Py_ssize_t place,
                          uint8_t **missing) noexcept nogil:
    """Marks a column as not carried, in the row's bitmap."""
    if missing[0] == NULL:
        missing[0] = self.out.new_missing(row, plan.count)
        if missing[0] == NULL:
            return -1
    missing[0][place >> 3] |= <uint8_t>(1 << (place & 7))
    return 0


cdef inline void next_cell(int32_t **ends, uint8_t **valid, Lane **lane, Py_ssize_t end,
                           uint8_t is_there) noexcept nogil:
    """Ends the cell of this column; what follows belongs to the next one."""
    ends[0][0] = <int32_t>end
    ends[0] += 1
    valid[0][0] = is_there
    valid[0] += 1
    lane[0] += 1


cdef inline const uint8_t *predicted_section(OpenDecoder self, Plan *plan, Cells *cells, Row *row,
                                             const uint8_t *p, const uint8_t *end,
                                             const uint8_t *limit) noexcept nogil:
    """Reads the columns of the plan from the first one's name to the brace that closes the last,
    and gives what follows; NULL if they do not stand here. With a row, columns may be left out:
    they are marked in its bitmap."""
    cdef Lane *lane = plan.lanes
    cdef Lane *lanes_end = lane + plan.count
    cdef uint8_t *base
    cdef uint8_t *text
    cdef int32_t *ends
    cdef uint8_t *valid
    cdef uint8_t *missing = NULL
    cdef Py_ssize_t n
    cdef Py_ssize_t lead = 2    # before the first column there is no `},`
    cdef size_t run
    cdef unsigned int high
    cdef int reading
    cdef Cursor c
    # No text is longer than what stands for it in the message, but for READ_QUOTED and the floats.
    if cells_reserve(cells, plan.count) < 0 or buffer_reserve(&cells.text, <size_t>(end - p) + 64) < 0:
        return NULL
    base = cells.text.data
    text = base + cells.text.used
    ends = cells_ends(cells)
    valid = cells.valid.data + cells.count
    while lane < lanes_end:
        n = lane.size - lead
        # `1}}}` at least stands behind a literal
        if TG_UNLIKELY(end - p < n + 4 or not open_same(p, lane.literal + lead, n)):
            if row == NULL or leave_out(self, plan, row, lane - plan.lanes, &missing) < 0:
                return NULL
            next_cell(&ends, &valid, &lane, text - base, 0)
            continue
        p += n
        lead = 0
        reading = lane.reading
        if reading <= READ_TIME and p[0] == c'"':
            high = 0
            run = tg_copy_plain_run(p + 1, end, limit, text, &high)
            if TG_LIKELY(p + 1 + run < end and p[1 + run] == c'"'):
                if TG_UNLIKELY(high != 0) and not tg_utf8_valid(text, run):
                    return NULL
                if reading != READ_TEXT and not text_fits(reading, text, run, text + 32):
                    return NULL
                p += run + 2
                text += run
                next_cell(&ends, &valid, &lane, text - base, 1)
                continue
        elif reading == READ_INTEGER and p[0] != c'n':
            run = open_integer(p, end, limit, text)
            if run == 0 or (run > lane.sure_digits and not integer_fits(p, run, lane.code)):
                return NULL
            p += run
            text += run
            next_cell(&ends, &valid, &lane, text - base, 1)
            continue
        if memcmp(p, b"null", 4) == 0:
            p += 4
            next_cell(&ends, &valid, &lane, text - base, 0)
        else:
            cells.text.used = <size_t>(text - base)
            cursor_init(&c, p, <size_t>(end - p), limit)
            if read_value(&c, &cells.text, &self.aside, reading, lane.code) != 1 or \
                    buffer_reserve(&cells.text, <size_t>(end - c.p) + 64) < 0:
                return NULL
            base = cells.text.data
            text = base + cells.text.used
            p = c.p
            next_cell(&ends, &valid, &lane, text - base, 1)
    if lead == 0:
        if p >= end or p[0] != c'}':
            return NULL
        p += 1
    cells.text.used = <size_t>(text - base)
    cells.count += plan.count
    cells.ends.used += 4 * <size_t>plan.count
    cells.valid.used += <size_t>plan.count
    return p


# --- learning ---
cdef inline Table *learn_table(OpenDecoder self, const Key *key) noexcept nogil:
    """Remembers the table of this key; NULL without memory."""
    cdef size_t n = key.database.n + key.table.n + 18
    cdef size_t padded = (n + 31) & ~<size_t>15
    cdef unsigned int high = 0
    cdef Table *table = <Table *>calloc(1, sizeof(Table))
    cdef uint8_t *block = <uint8_t *>malloc(padded + key.database.n + key.table.n)
    if table == NULL or block == NULL:
        free(table)
        free(block)
        return NULL
    memset(block, 0, padded)
    table.block = block
    table.known.hash = hash_names(&key.database, &key.table)
    table.known.size = sizeof(Table) + padded
    table.literal.p = block
    memcpy(block, b',"scm":"', 8)
    memcpy(block + 8, key.database.p, key.database.n)
    memcpy(block + 8 + key.database.n, b'","tbl":"', 9)
    memcpy(block + 17 + key.database.n, key.table.p, key.table.n)
    block[n - 1] = c'"'
    block += padded
    memcpy(block, key.database.p, key.database.n)
    table.database.p = block
    table.database.n = key.database.n
    block += key.database.n
    memcpy(block, key.table.p, key.table.n)
    table.table.p = block
    table.table.n = key.table.n
    if tg_plain_run(table.database.p, block, block, &high) == table.database.n and \
            tg_plain_run(block, block + table.table.n, block + table.table.n, &high) == table.table.n:
        table.literal.n = n
    remember_table(&self.memory, &table.known)
    return table


cdef inline void learn_plan(OpenDecoder self, Table *table, int32_t shape, const Column *columns,
                            int32_t count) noexcept nogil:
    """Remembers how this shape's columns stand in a message, if they stand so that it helps."""
    cdef size_t size = <size_t>count * sizeof(Lane) + 16
    cdef size_t n
    cdef int32_t i
    cdef Plan *plan
    cdef Lane *lanes
    cdef uint8_t *place
    for i in range(count):
        if not columns[i].plain:
            return
        size += (<size_t>(columns[i].value_at - columns[i].name_at) + 2 + 31) & ~<size_t>15
    if size > MAX_PLAN_BYTES:
        return
    lanes = <Lane *>malloc(size)
    if lanes == NULL:
        return
    memset(lanes, 0, size)
    place = <uint8_t *>lanes + <size_t>count * sizeof(Lane)
    for i in range(count):
        n = <size_t>(columns[i].value_at - columns[i].name_at)
        place[0] = c'}'
        place[1] = c','
        memcpy(place + 2, columns[i].name_at, n)
        lanes[i].literal = place
        lanes[i].size = <int32_t>(n + 2)
        lanes[i].code = columns[i].code
        lanes[i].reading = <uint8_t>reading_of(columns[i].code, columns[i].flags)
        lanes[i].sure_digits = <uint8_t>sure_digits(columns[i].code)
        place += (n + 2 + 31) & ~<size_t>15
    if table.plan_count < MAX_PLANS:
        plan = &table.plans[table.plan_count]
        table.recent = table.plan_count
        table.plan_count += 1
    else:
        plan = &table.plans[table.oldest]
        table.recent = table.oldest
        table.oldest = (table.oldest + 1) % MAX_PLANS
        free(plan.lanes)
        table.known.size -= plan.size
        self.memory.size -= plan.size
    plan.lanes = lanes
    plan.size = size
    table.known.size += size
    self.memory.size += size
    plan.count = count
    plan.shape = shape
