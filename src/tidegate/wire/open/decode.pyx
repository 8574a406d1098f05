"""The TiCDC Open Protocol: batches of events, each a JSON key and a JSON value behind a length.

Reads what both architectures of TiCDC write. Authority: TiCDC's Open Protocol document, and the bytes of
its encoders where the document is silent or wrong (docs/protocols/open-protocol.md says where).
"""

from tidegate.model import ClaimCheckError

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.open.columns cimport is_letter, read_section
from tidegate.wire.open.layout cimport *
from tidegate.wire.open.predict cimport (
    end_row,
    find_table,
    learn_plan,
    learn_table,
    predicted_key,
    predicted_row,
    release_table,
)
from tidegate.wire.open.values cimport read_value, text_fits


cdef uint8_t _readings[256][2]


def _fill_readings() -> None:
    cdef int code
    for code in range(256):
        _readings[code][0] = <uint8_t>reading_of(code, 0)
        _readings[code][1] = <uint8_t>reading_of(code, 1)


_fill_readings()


cdef inline int _known_reading(int code, int flags) noexcept nogil:
    """reading_of, from a table: it is asked for every value of the general path."""
    return _readings[code & 255][flags & COLUMN_BINARY if flags > 0 else 0]


def _events(framed: bytes | None, position: int) -> list[bytes]:
    """A message's keys or values, each with its length before it; ValueError if they are not such."""
    events = []
    while framed is not None and position < len(framed):
        size = 8 + int.from_bytes(framed[position : position + 8])
        if len(framed) - position < size:
            raise ValueError("a length goes beyond the message")
        events.append(framed[position : position + size])
        position += size
    return events


cdef class OpenDecoder(MessageDecoder):
    """Decodes Open Protocol messages. Messages of a table repeat each other's bytes between the values:
    they are compared with those of an earlier message, and only where they differ is JSON parsed."""

    def __cinit__(self, *arguments, **options):
        self.memory.release = release_table

    def __dealloc__(self):
        buffer_free(&self.columns)
        buffer_free(&self.places)
        buffer_free(&self.slots)
        buffer_free(&self.shape_columns)
        buffer_free(&self.aside)

    def redeem(self, bytes key, bytes value, dict kept):
        """A message may hold several claim checks, and other events between them."""
        keys = _events(key, 8)
        values = _events(value, 0)
        for event, (kept_key, kept_value) in kept.items():
            try:
                (keys[event],) = _events(kept_key, 8)
                (values[event],) = _events(kept_value, 0)
            except ValueError as error:
                raise ClaimCheckError(
                    self.claim_locations()[event], "it does not hold one event with key and value"
                ) from error
        return b"".join([key[:8], *keys]), b"".join(values)

    cdef int message(self, Message *m, Cursor *c) noexcept nogil:
        cdef Cursor k
        cdef uint64_t version = 0, size = 0
        cdef const uint8_t *key_end
        cdef const uint8_t *value_end = c.end
        cdef bint no_values = m.value_size == 0
        cursor_init(&k, m.key, m.key_size, m.key_limit)
        k.in_key = 1
        key_end = k.end
        if m.key == NULL:
            return fail_in_key(self, c, &k, FAULT_KEY)
        if read_be64(&k, &version) < 0:
            return fail_in_key(self, c, &k, FAULT_KEY)
        if version != VERSION:
            k.p -= 8
            return fail_in_key(self, c, &k, FAULT_VERSION)
        while k.p < key_end:
            if read_be64(&k, &size) < 0:
                return fail_in_key(self, c, &k, FAULT_TRUNCATED)
            if size > <uint64_t>left(&k):
                return fail_in_key(self, c, &k, FAULT_LENGTH)
            k.end = k.p + size
            # A resolved event may come without a value, not even its length.
            if not no_values:
                if read_be64(c, &size) < 0:
                    return -1
                if size > <uint64_t>left(c):
                    return fail(c, FAULT_LENGTH)
                c.end = c.p + size
            if event(self, &k, c) < 0:
                if k.fault != FAULT_NONE:
                    c[0] = k
                return -1
            k.p = k.end
            k.end = key_end
            c.p = c.end
            c.end = value_end
        if c.p != value_end:
            return fail(c, FAULT_TRAILING)
        return 0


cdef int fail_in_key(OpenDecoder self, Cursor *c, Cursor *k, int fault) noexcept nogil:
    k.fault = fault
    k.fault_at = k.p
    c[0] = k[0]
    return -1


cdef int event(OpenDecoder self, Cursor *k, Cursor *c) noexcept nogil:
    cdef Key key
    self.out.scratch.used = 0
    if TG_UNLIKELY(not predicted_key(self, k, &key)):
        if read_key(self, k, &key) < 0:
            return -1
        if key.kind == DDL:
            return ddl_event(self, c, &key)
        if key.kind == RESOLVED:
            return resolved_event(self, c, &key)
    if TG_LIKELY(key.known != NULL) and predicted_row(self, c, &key):
        return 0
    return row_event(self, c, &key)


# --- as it comes ---
cdef int read_key(OpenDecoder self, Cursor *k, Key *key) noexcept nogil:
    cdef Span name
    cdef uint64_t number = 0
    cdef int64_t rowid = 0
    cdef bint first = True, has_ts = False
    cdef int more
    cdef const uint8_t *began
    memset(key, 0, sizeof(Key))
    if json_open(k, c'{') < 0:
        return -1
    while True:
        more = json_member(k, &first, &self.out.scratch, &name)
        if more < 0:
            return -1
        if more == 0:
            break
        began = k.p
        if span_is(&name, b"ts", 2):
            if has_ts:
                return fail(k, FAULT_DUPLICATE)
            has_ts = True
            if json_u64(k, &number) < 0:
                return -1
            if number > <uint64_t>0x7fffffffffffffff:
                return fail_at(k, FAULT_RANGE, began)
            key.commit_ts = <int64_t>number
        elif span_is(&name, b"scm", 3):
            if key.database.p != NULL:
                return fail(k, FAULT_DUPLICATE)
            if json_span(k, &self.out.scratch, &key.database) < 0:
                return -1
        elif span_is(&name, b"tbl", 3):
            if key.table.p != NULL:
                return fail(k, FAULT_DUPLICATE)
            if json_span(k, &self.out.scratch, &key.table) < 0:
                return -1
        elif is_letter(&name, c't'):
            if key.kind:
                return fail(k, FAULT_DUPLICATE)
            if json_u64(k, &number) < 0:
                return -1
            if number != ROW and number != DDL and number != RESOLVED:
                return fail_at(k, FAULT_UNKNOWN_KIND, began)
            key.kind = <int>number
        elif span_is(&name, b"rid", 3):
            if json_i64(k, &rowid) < 0:
                return -1
        elif span_is(&name, b"ptn", 3):
            if json_i64(k, &key.partition) < 0:
                return -1
            key.has_partition = True
        elif span_is(&name, b"ohk", 3):
            # The new architecture writes it twice on claim checks, and the second one is right.
            if json_bool(k, &key.only_handle_key) < 0:
                return -1
        elif span_is(&name, b"ccl", 3):
            if json_span(k, &self.out.scratch, &key.location) < 0:
                return -1
        elif json_skip_other(k, &name, b"ts scm tbl t rid ptn ohk ccl ") < 0:
            return -1
    if json_finish(k) < 0:
        return -1
    if not has_ts or key.kind == 0:
        return fail(k, FAULT_MISSING)
    if key.kind == ROW:
        if key.database.p == NULL or key.table.p == NULL:
            return fail(k, FAULT_MISSING)
        key.known = find_table(self, &key.database, &key.table)
    return 0


cdef int resolved_event(OpenDecoder self, Cursor *c, const Key *key) noexcept nogil:
    cdef Row row
    if left(c) != 0:
        return fail(c, FAULT_TRAILING)
    row_init(&row, KIND_WATERMARK)
    row.commit_ts = key.commit_ts
    row.has = HAS_COMMIT_TS
    return self.out.add_row(c, &row)


cdef int ddl_event(OpenDecoder self, Cursor *c, Key *key) noexcept nogil:
    cdef Row row
    cdef Extra *extra
    cdef Span name, text, query
    cdef uint64_t code = 0
    cdef bint first = True, has_code = False
    cdef int more
    cdef const uint8_t *began
    query.p = NULL
    query.n = 0
    if left(c) == 0:
        return fail(c, FAULT_EMPTY)
    if json_open(c, c'{') < 0:
        return -1
    while True:
        more = json_member(c, &first, &self.out.scratch, &name)
        if more < 0:
            return -1
        if more == 0:
            break
        began = c.p
        if is_letter(&name, c'q'):
            if query.p != NULL:
                return fail(c, FAULT_DUPLICATE)
            if json_span(c, &self.out.scratch, &query) < 0:
                return -1
        elif is_letter(&name, c't'):
            if has_code:
                return fail(c, FAULT_DUPLICATE)
            has_code = True
            # The document says it is a string; TiCDC writes a number.
            if c.p[0] == c'"':
                if json_span(c, &self.out.scratch, &text) < 0:
                    return -1
                if digits_u64(text.p, text.n, &code) < 0:
                    return fail_at(c, FAULT_NUMBER, began)
            elif json_u64(c, &code) < 0:
                return -1
            if code > 0x7fffffff:
                return fail_at(c, FAULT_RANGE, began)
        elif json_skip_other(c, &name, b"q t ") < 0:
            return -1
    if json_finish(c) < 0:
        return -1
    if query.p == NULL or not has_code:
        return fail(c, FAULT_MISSING)
    if key.database.n == 0:
        key.database.p = NULL
    if key.table.n == 0:
        key.table.p = NULL
    row_init(&row, KIND_DDL)
    row.commit_ts = key.commit_ts
    row.has = HAS_COMMIT_TS
    row.names = self.out.intern_names(&key.database, &key.table)
    extra = self.out.new_extra(&row)
    if row.names < 0 or extra == NULL:
        return fail(c, FAULT_MEMORY)
    extra.ddl_type = ddl_word_of(<uint8_t>(code if code < 256 else 0))[0]
    extra.ddl_code = <int32_t>code
    if self.out.keep(&query, &extra.query) < 0:
        return fail(c, FAULT_MEMORY)
    return self.out.add_row(c, &row)


cdef int row_event(OpenDecoder self, Cursor *c, Key *key) noexcept nogil:
    cdef Section update, delete, previous
    cdef Span name
    cdef bint first = True
    cdef int more, status
    memset(&update, 0, sizeof(Section))
    memset(&delete, 0, sizeof(Section))
    memset(&previous, 0, sizeof(Section))
    self.columns.used = 0
    self.event_at = c.p
    if left(c) == 0:
        if key.location.p == NULL:
            return fail(c, FAULT_EMPTY)
    else:
        if json_open(c, c'{') < 0:
            return -1
        while True:
            more = json_member(c, &first, &self.out.scratch, &name)
            if more < 0:
                return -1
            if more == 0:
                break
            if is_letter(&name, c'u'):
                status = read_section(self, c, &update, False)
            elif is_letter(&name, c'p'):
                status = read_section(self, c, &previous, True)
            elif is_letter(&name, c'd'):
                status = read_section(self, c, &delete, False)
            else:
                status = json_skip_other(c, &name, b"u p d ")
            if status < 0:
                return -1
        if json_finish(c) < 0:
            return -1
    if not update.there and not delete.there:
        if not first:
            return fail(c, FAULT_MISSING)
        if key.location.p == NULL:
            # Old versions sent `{}` for a row that came and went within a transaction.
            self.out.event += 1
            return 0
        update.there = True
    if delete.there and (update.there or previous.there):
        return fail(c, FAULT_UNKNOWN_KIND)
    return put_row(self, c, key, &update, &delete, &previous)


# --- from columns to a row ---
cdef int put_row(OpenDecoder self, Cursor *c, Key *key, Section *update, Section *delete,
                 Section *previous) noexcept nogil:
    cdef Section *main = delete if delete.there else update
    cdef Column *columns = <Column *>self.columns.data + main.first
    cdef Cells *cells = &self.out.before if delete.there else &self.out.after
    cdef Row row
    cdef int32_t i
    row_init(&row, KIND_DELETE if delete.there else KIND_UPDATE if previous.there else KIND_INSERT)
    row.has = HAS_BEFORE if delete.there else HAS_AFTER
    row.shape = find_shape(self, c, key, columns, main.count)
    if row.shape < 0:
        return -1
    if cells_reserve(cells, main.count) < 0:
        return fail(c, FAULT_MEMORY)
    if reserve_text(self, c, cells) < 0:
        return -1
    for i in range(main.count):
        if put_cell(self, c, cells, &columns[i]) < 0:
            return -1
    if previous.there and put_previous(self, c, &row, main, previous) < 0:
        return -1
    return end_row(self, c, &row, key)


cdef int put_cell(OpenDecoder self, Cursor *c, Cells *cells, const Column *column) noexcept nogil:
    """The column's value as the next cell; c.p is left alone, a fault is noted. There is room for
    as many bytes of text as the value has, and 32 more."""
    cdef int reading
    cdef size_t n
    cdef uint8_t *text
    if column.seen == SEEN_NULL:
        cell_null(cells)
        return 0
    reading = _known_reading(column.code, column.flags)
    text = cells.text.data + cells.text.used
    if column.seen == SEEN_PLAIN and reading <= READ_TIME:
        n = <size_t>(column.value_end - column.value_at) - 2
        tg_copy(text, column.value_at + 1, n, c.limit)
        if reading == READ_TEXT or text_fits(reading, text, n, text + n + 16):
            cells.text.used += n
            cell_end(cells)
            return 0
    elif column.seen == SEEN_INTEGER and reading == READ_INTEGER:
        n = <size_t>(column.value_end - column.value_at)
        if n <= <size_t>sure_digits(column.code) or integer_fits(column.value_at, n, column.code):
            tg_copy(text, column.value_at, n, c.limit)
            cells.text.used += n
            cell_end(cells)
            return 0
    return put_other_cell(self, c, cells, column, reading)


cdef int put_other_cell(OpenDecoder self, Cursor *c, Cells *cells, const Column *column,
                        int reading) noexcept nogil:
    cdef Cursor value = c[0]
    value.p = column.value_at
    value.end = column.value_end
    if read_value(&value, &cells.text, &self.aside, reading, column.code) < 0:
        return fail_at(c, value.fault, value.fault_at)
    cell_end(cells)
    return reserve_text(self, c, cells)


cdef int reserve_text(OpenDecoder self, Cursor *c, Cells *cells) noexcept nogil:
    """Room for all plain values of this event."""
    if buffer_reserve(&cells.text, <size_t>(c.end - self.event_at) + 64) < 0:
        return fail(c, FAULT_MEMORY)
    return 0


cdef int32_t find_shape(OpenDecoder self, Cursor *c, Key *key, const Column *columns,
                        int32_t count) noexcept nogil:
    """The shape of these columns, remembered or registered; -1 a fault."""
    cdef Table *table = key.known
    cdef ShapeColumn *known
    cdef ShapeColumn *fresh
    cdef int32_t i, plan, shape
    cdef size_t before
    if table != NULL:
        for plan in range(table.plan_count):
            if table.plans[plan].count != count:
                continue
            known = self.out.shape(table.plans[plan].shape).columns
            for i in range(count):
                if known[i].code != columns[i].code or known[i].flags != columns[i].flags or \
                        known[i].key != columns[i].key or not same_span(&known[i].name, &columns[i].name):
                    break
            else:
                return table.plans[plan].shape
    if check_names(self, c, columns, count) < 0:
        return -1
    self.shape_columns.used = 0
    if buffer_reserve(&self.shape_columns, <size_t>count * sizeof(ShapeColumn)) < 0:
        return fail(c, FAULT_MEMORY)
    fresh = <ShapeColumn *>self.shape_columns.data
    memset(fresh, 0, <size_t>count * sizeof(ShapeColumn))
    for i in range(count):
        fresh[i].name = columns[i].name
        fresh[i].code = columns[i].code
        fresh[i].flags = columns[i].flags
        fresh[i].key = columns[i].key
    before = self.out.shapes.used
    shape = self.out.register_shape(c, &key.database, &key.table, fresh, count)
    if shape < 0:
        return -1
    # A table is remembered at once, a shape when it comes again: messages whose columns stand in
    # another order each time are not worth it.
    if table == NULL:
        table = learn_table(self, key)
    if table != NULL and self.out.shapes.used == before:
        learn_plan(self, table, shape, columns, count)
    return shape


cdef int check_names(OpenDecoder self, Cursor *c, const Column *columns,
                     int32_t count) noexcept nogil:
    """Fills self.slots with the columns by their names; a name that comes twice is a fault."""
    cdef size_t size = 16
    cdef size_t slot
    cdef int32_t *slots
    cdef int32_t i
    while size < <size_t>count * 2:
        size *= 2
    self.slots.used = 0
    if buffer_reserve(&self.slots, size * sizeof(int32_t)) < 0:
        return fail(c, FAULT_MEMORY)
    self.slots.used = size * sizeof(int32_t)
    slots = <int32_t *>self.slots.data
    memset(slots, 0xff, self.slots.used)
    for i in range(count):
        slot = open_name_hash(columns[i].name.p, columns[i].name.n) & (size - 1)
        while slots[slot] >= 0:
            if same_span(&columns[slots[slot]].name, &columns[i].name):
                return fail_at(c, FAULT_DUPLICATE, columns[i].name_at)
            slot = (slot + 1) & (size - 1)
        slots[slot] = i
    return 0


cdef int32_t find_name(OpenDecoder self, const Column *columns, const Span *name) noexcept nogil:
    """The column of this name by self.slots; -1 if there is none."""
    cdef int32_t *slots = <int32_t *>self.slots.data
    cdef size_t size = self.slots.used // sizeof(int32_t)
    cdef size_t slot = open_name_hash(name.p, name.n) & (size - 1)
    while slots[slot] >= 0:
        if same_span(&columns[slots[slot]].name, name):
            return slots[slot]
        slot = (slot + 1) & (size - 1)
    return -1


cdef int put_previous(OpenDecoder self, Cursor *c, Row *row, Section *main,
                      Section *previous) noexcept nogil:
    """The cells of `before`, in the order of `u`; what `p` does not carry is marked."""
    cdef Column *columns = <Column *>self.columns.data + main.first
    cdef Column *olds = <Column *>self.columns.data + previous.first
    cdef Column *old
    cdef int32_t *places
    cdef int32_t i, place, expected = 0
    cdef bint hashed = False
    cdef uint8_t *missing = NULL
    row.has |= HAS_BEFORE
    self.places.used = 0
    if buffer_reserve(&self.places, <size_t>main.count * sizeof(int32_t)) < 0 or \
            cells_reserve(&self.out.before, main.count) < 0:
        return fail(c, FAULT_MEMORY)
    if reserve_text(self, c, &self.out.before) < 0:
        return -1
    places = <int32_t *>self.places.data
    memset(places, 0xff, <size_t>main.count * sizeof(int32_t))
    for i in range(previous.count):
        old = &olds[i]
        if old.bare:
            continue
        place = expected
        if place >= main.count or not same_span(&columns[place].name, &old.name):
            if not hashed:
                if check_names(self, c, columns, main.count) < 0:
                    return -1
                hashed = True
            place = find_name(self, columns, &old.name)
            if place < 0:
                return fail_at(c, FAULT_COLUMNS, old.name_at)
        if places[place] >= 0:
            return fail_at(c, FAULT_DUPLICATE, old.name_at)
        if _known_reading(old.code, old.flags) != _known_reading(columns[place].code, columns[place].flags):
            return fail_at(c, FAULT_COLUMNS, old.name_at)
        old.place = place
        places[place] = i
        expected = place + 1
    if previous.bare and place_bare(self, c, row, columns, main.count, olds, previous.count, places) < 0:
        return -1
    for i in range(main.count):
        if places[i] >= 0:
            if put_cell(self, c, &self.out.before, &olds[places[i]]) < 0:
                return -1
            continue
        if missing == NULL:
            missing = self.out.new_missing(row, main.count)
            if missing == NULL:
                return fail(c, FAULT_MEMORY)
        missing[i >> 3] |= <uint8_t>(1 << (i & 7))
        cell_null(&self.out.before)
    return 0


cdef int place_bare(OpenDecoder self, Cursor *c, Row *row, Column *columns, int32_t count,
                    Column *olds, int32_t old_count, int32_t *places) noexcept nogil:
    """Finds the columns of values that lost their names. The new architecture forgets the name where
    a value became NULL, and writes in the order of `u`: such a value belongs to a column that is NULL
    in `u`, not in `p`, of its type and flags, and between its neighbours. Where only one way is
    left it is taken, else the value is given up and the row says so."""
    cdef int32_t i, place, bound
    # The first column each can belong to, ...
    place = -1
    for i in range(old_count):
        if not olds[i].bare:
            if olds[i].place <= place:
                return fail_at(c, FAULT_COLUMNS, olds[i].name_at)
            place = olds[i].place
            continue
        place += 1
        while place < count and not is_candidate(self, &columns[place], &olds[i], places[place]):
            place += 1
        if place >= count:
            return fail_at(c, FAULT_COLUMNS, olds[i].name_at)
        olds[i].place = place
    # ... and the last one.
    bound = count
    for i in range(old_count - 1, -1, -1):
        if not olds[i].bare:
            bound = olds[i].place
            continue
        bound -= 1
        while not is_candidate(self, &columns[bound], &olds[i], places[bound]):
            bound -= 1
        if bound != olds[i].place:
            olds[i].place = -1
            row.flags |= FLAG_BEFORE_AMBIGUOUS
    for i in range(old_count):
        if olds[i].bare and olds[i].place >= 0:
            places[olds[i].place] = i
    return 0


cdef bint is_candidate(OpenDecoder self, const Column *column, const Column *old,
                       int32_t taken) noexcept nogil:
    return column.seen == SEEN_NULL and taken < 0 and column.code == old.code and column.flags == old.flags
