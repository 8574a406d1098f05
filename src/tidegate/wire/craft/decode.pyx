"""The Craft protocol: compact binary messages of many events, with a dictionary of names.

Authority: docs/protocols/craft.md, after TiCDC's Craft document and the bytes its encoder writes. A
message decodes completely or not at all: every size in its tables must agree with what is there.
"""

cimport cython

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.craft.layout cimport *


# --- decoding ------------------------------------------------------------------------------------

# What the header says of one event, and the size of its body.
cdef struct Event:
    uint64_t commit_ts
    uint64_t kind
    int64_t partition
    int64_t schema
    int64_t table
    size_t size


# A column group as it was seen before: what stands before its lengths and values, and how to read
# these. Everything hangs on `block`.
cdef struct Group:
    uint8_t *block
    Span head               # the bytes from the number of columns to the last flag
    int64_t schema          # term ids
    int64_t table
    int32_t shape
    int32_t count
    size_t room             # bytes of text that the values may need beyond their own
    const int32_t *terms    # the name of each column
    const uint16_t *forms   # see TG_CRAFT_FORM
    const int32_t *codes
    const int32_t *flags


# A term dictionary as it was seen before, and the column groups seen with it.
cdef struct Dictionary:
    KnownTable known        # its hash is that of `bytes`
    Buffer bytes
    Buffer spans            # Span, into bytes
    size_t count
    Group groups[KNOWN_GROUPS]
    int group_count
    int next_group          # the one to be forgotten next


cdef inline void _forget(Group *group) noexcept nogil:
    free(group.block)
    group.block = NULL


cdef void _release_dictionary(KnownTable *known) noexcept nogil:
    cdef Dictionary *dictionary = <Dictionary *>known
    cdef int i
    buffer_free(&dictionary.bytes)
    buffer_free(&dictionary.spans)
    for i in range(dictionary.group_count):
        _forget(&dictionary.groups[i])
    free(dictionary)


cdef inline bint _has_bytes(const Dictionary *dictionary, const uint8_t *p,
                            size_t n) noexcept nogil:
    return dictionary.bytes.used == n and memcmp(dictionary.bytes.data, p, n) == 0


cdef int _fault_of(int64_t code) noexcept nogil:
    """The fault that a TG_CRAFT_ code stands for."""
    if code == TG_CRAFT_UTF8:
        return FAULT_UTF8
    if code == TG_CRAFT_NUMBER:
        return FAULT_NUMBER
    if code == TG_CRAFT_RANGE:
        return FAULT_RANGE
    if code == TG_CRAFT_TEMPORAL:
        return FAULT_TEMPORAL
    if code == TG_CRAFT_LENGTH:
        return FAULT_LENGTH
    if code == TG_CRAFT_VALUE:
        return FAULT_VALUE
    return FAULT_TYPE


@cython.final
cdef class CraftDecoder(MessageDecoder):
    cdef Dictionary *dictionary # of this message; NULL: it has no names
    cdef Group *group           # that fitted last
    cdef Buffer events          # Event
    cdef Buffer columns         # ShapeColumn
    cdef Buffer numbers         # int32: term ids, type codes and flags of a group being learnt
    cdef Buffer places          # int32: for each term the column it names, -1: none
    cdef Buffer new_places      # the same of an update's new group
    cdef Buffer old_columns     # int32: for each new column the old one and where its value is
    cdef Buffer new_sizes       # int32: sizes of the values of a row's first group, -1: NULL
    cdef Buffer old_sizes       # the same of its second
    cdef const uint8_t *new_values

    def __cinit__(self, *arguments, **options):
        self.memory.release = _release_dictionary

    def __dealloc__(self):
        buffer_free(&self.events)
        buffer_free(&self.columns)
        buffer_free(&self.numbers)
        buffer_free(&self.places)
        buffer_free(&self.new_places)
        buffer_free(&self.old_columns)
        buffer_free(&self.new_sizes)
        buffer_free(&self.old_sizes)

    cdef int message(self, Message *m, Cursor *c) noexcept nogil:
        cdef Cursor tables
        cdef uint64_t version = 0, count = 0
        cdef int64_t header_size = 0, dictionary_size = 0
        cdef const uint8_t *header
        cdef const uint8_t *body
        cdef const uint8_t *body_end
        if m.value == NULL or m.value_size == 0:
            return fail(c, FAULT_EMPTY)
        if read_uvarint(c, &version) < 0:
            return -1
        if version != VERSION:
            return fail_at(c, FAULT_VERSION, c.start)
        if self._find_tables(c, &tables) < 0:
            return -1
        # From here on c.end is the end of the part being read.
        c.end = tables.p
        if self._read_meta(&tables, left(c), &header_size, &dictionary_size, &count) < 0:
            return self._fail_as(c, &tables)
        header = c.p
        body = header + header_size
        body_end = c.end - dictionary_size
        if self._read_sizes(&tables, body_end - body, count) < 0:
            return self._fail_as(c, &tables)
        c.p = body_end
        if self._read_dictionary(c) < 0:
            return -1
        c.p = header
        c.end = body
        if self._read_header(c, count) < 0:
            return -1
        if self._read_bodies(c, &tables, count) < 0:
            return -1
        if tables.p != tables.end:
            return fail_at(c, FAULT_TRAILING, tables.p)
        return 0

    cdef int _fail_as(self, Cursor *c, const Cursor *part) noexcept nogil:
        """The fault noted in another cursor over the same message becomes the message's."""
        return fail_at(c, part.fault, part.fault_at)

    # --- the parts of a message ---

    cdef int _find_tables(self, Cursor *c, Cursor *tables) noexcept nogil:
        """The size tables: their size is the last thing in the message, a uvarint with its bytes
        in reverse."""
        cdef const uint8_t *p = c.end
        cdef uint64_t size = 0
        cdef unsigned int shift = 0
        while True:
            if p == c.p or shift > 28:
                return fail_at(c, FAULT_LENGTH, p)
            p -= 1
            size |= <uint64_t>(p[0] & 0x7f) << shift
            shift += 7
            if p[0] < 0x80:
                break
        if size > <uint64_t>(p - c.p):
            return fail_at(c, FAULT_LENGTH, p)
        tables[0] = c[0]
        tables.p = p - size
        tables.end = p
        return 0

    cdef int _read_meta(self, Cursor *tables, size_t present, int64_t *header_size, int64_t *dictionary_size,
                        uint64_t *count) noexcept nogil:
        """The first table, of two sizes, and the number of elements of the second: the events."""
        cdef uint64_t two = 0
        cdef int64_t delta = 0
        cdef const uint8_t *at = tables.p
        if read_uvarint(tables, &two) < 0:
            return -1
        if two != 2:
            return fail_at(tables, FAULT_SYNTAX, at)
        at = tables.p
        if read_varint(tables, header_size) < 0 or read_varint(tables, &delta) < 0:
            return -1
        dictionary_size[0] = <int64_t>(<uint64_t>header_size[0] + <uint64_t>delta)
        if header_size[0] < 0 or dictionary_size[0] < 0 or <uint64_t>header_size[0] > present or \
                <uint64_t>dictionary_size[0] > present - <uint64_t>header_size[0]:
            return fail_at(tables, FAULT_LENGTH, at)
        at = tables.p
        if read_uvarint(tables, count) < 0:
            return -1
        if count[0] == 0:
            return fail_at(tables, FAULT_SYNTAX, at)
        # An event takes five bytes of the header and one of the table at least.
        if count[0] > <uint64_t>header_size[0] // 5 or count[0] > left(tables):
            return fail_at(tables, FAULT_LENGTH, at)
        return 0

    cdef int _read_sizes(self, Cursor *tables, size_t present, uint64_t count) noexcept nogil:
        """The sizes of the bodies, which must add up to what is there."""
        cdef Event *events
        cdef int64_t delta = 0
        cdef uint64_t size = 0, total = 0
        cdef uint64_t i
        cdef const uint8_t *at = tables.p
        self.events.used = 0
        if buffer_reserve(&self.events, count * sizeof(Event)) < 0:
            return fail(tables, FAULT_MEMORY)
        events = <Event *>self.events.data
        for i in range(count):
            if read_varint(tables, &delta) < 0:
                return -1
            size += <uint64_t>delta
            if size > present - total:
                return fail_at(tables, FAULT_LENGTH, at)
            total += size
            events[i].size = size
        if total != present:
            return fail_at(tables, FAULT_LENGTH, at)
        return 0

    cdef int _read_dictionary(self, Cursor *c) noexcept nogil:
        """Finds or learns the term dictionary between c.p and c.end."""
        cdef size_t n = left(c)
        cdef const uint8_t *began = c.p
        cdef uint64_t h
        cdef KnownTable *known
        cdef Dictionary *fresh
        if self.dictionary != NULL and _has_bytes(self.dictionary, began, n):
            return 0
        self.group = NULL
        self.dictionary = NULL
        h = tg_hash(began, n, 0)
        known = first_known(&self.memory, h)
        while known != NULL:
            if known.hash == h and _has_bytes(<Dictionary *>known, began, n):
                self.dictionary = <Dictionary *>known
                return 0
            known = known.next
        fresh = <Dictionary *>calloc(1, sizeof(Dictionary))
        if fresh == NULL:
            return fail(c, FAULT_MEMORY)
        if self._learn_dictionary(c, fresh) < 0:
            _release_dictionary(&fresh.known)
            return -1
        fresh.known.hash = h
        fresh.known.size = sizeof(Dictionary) + 4 * n
        remember_table(&self.memory, &fresh.known)
        self.dictionary = fresh
        return 0

    cdef int _learn_dictionary(self, Cursor *c, Dictionary *known) noexcept nogil:
        cdef const uint8_t *began = c.p
        cdef const uint8_t *lengths
        cdef uint64_t count = 0, length = 0, total = 0, i
        cdef Span *spans
        cdef uint8_t *text
        # A message without names (a watermark) has no dictionary at all.
        if c.p < c.end:
            if read_uvarint(c, &count) < 0:
                return -1
            if count > left(c):
                return fail_at(c, FAULT_LENGTH, began)
        if buffer_add(&known.bytes, began, <size_t>(c.end - began)) < 0 or \
                buffer_reserve(&known.spans, count * sizeof(Span)) < 0:
            return fail(c, FAULT_MEMORY)
        spans = <Span *>known.spans.data
        lengths = c.p
        for i in range(count):
            if read_uvarint(c, &length) < 0:
                return -1
            if length > left(c) - total:
                return fail_at(c, FAULT_LENGTH, lengths)
            total += length
            # Reading a length moves the end of the lengths on.
            if total > left(c):
                return fail_at(c, FAULT_LENGTH, lengths)
            spans[i].n = length
        if total != left(c):
            return fail_at(c, FAULT_LENGTH, c.p)
        text = known.bytes.data + (c.p - began)
        for i in range(count):
            if not tg_utf8_valid(text, spans[i].n):
                return fail_at(c, FAULT_UTF8, began + (text - known.bytes.data))
            spans[i].p = text
            text += spans[i].n
        known.count = count
        return self._check_distinct(c, known, lengths)

    cdef int _check_distinct(self, Cursor *c, const Dictionary *known, const uint8_t *where) noexcept nogil:
        """A term has one id, so that columns can be compared by id."""
        cdef size_t size = 16, slot, i
        cdef int32_t *slots
        cdef const Span *spans = <const Span *>known.spans.data
        cdef const Span *other
        while size < known.count * 2:
            size *= 2
        self.numbers.used = 0
        if buffer_reserve(&self.numbers, size * 4) < 0:
            return fail(c, FAULT_MEMORY)
        slots = <int32_t *>self.numbers.data
        memset(slots, 0xff, size * 4)
        for i in range(known.count):
            slot = tg_hash(spans[i].p, spans[i].n, 0) & (size - 1)
            while slots[slot] >= 0:
                other = &spans[slots[slot]]
                if other.n == spans[i].n and memcmp(other.p, spans[i].p, other.n) == 0:
                    return fail_at(c, FAULT_DUPLICATE, where)
                slot = (slot + 1) & (size - 1)
            slots[slot] = <int32_t>i
        return 0

    cdef int _read_term_ids(self, Cursor *c, uint64_t count, bint is_table) noexcept nogil:
        cdef Event *events = <Event *>self.events.data
        cdef const uint8_t *at
        cdef uint64_t last = 0, i
        cdef int64_t delta = 0, number
        for i in range(count):
            at = c.p
            if read_varint(c, &delta) < 0:
                return -1
            last += <uint64_t>delta
            number = <int64_t>last
            if number < -1 or number >= <int64_t>self.dictionary.count:
                return fail_at(c, FAULT_RANGE, at)
            if is_table:
                events[i].table = number
            else:
                events[i].schema = number
        return 0

    cdef int _read_header(self, Cursor *c, uint64_t count) noexcept nogil:
        cdef Event *events = <Event *>self.events.data
        cdef const uint8_t *at
        cdef uint64_t last = 0, delta = 0, i
        cdef int64_t partition = 0
        for i in range(count):
            at = c.p
            if read_uvarint(c, &delta) < 0:
                return -1
            # Rows need not come in order of time: the sum wraps.
            last += delta
            if last > INT64_MAX:
                return fail_at(c, FAULT_RANGE, at)
            events[i].commit_ts = last
        for i in range(count):
            if read_uvarint(c, &events[i].kind) < 0:
                return -1
        last = 0
        for i in range(count):
            at = c.p
            if read_varint(c, &partition) < 0:
                return -1
            last += <uint64_t>partition
            events[i].partition = <int64_t>last
            if events[i].partition < -1:
                return fail_at(c, FAULT_RANGE, at)
        if self._read_term_ids(c, count, False) < 0 or self._read_term_ids(c, count, True) < 0:
            return -1
        if c.p != c.end:
            return fail(c, FAULT_LENGTH)
        return 0

    cdef int _read_bodies(self, Cursor *c, Cursor *tables, uint64_t count) noexcept nogil:
        cdef const Event *event
        cdef uint64_t i
        cdef int done
        for i in range(count):
            event = <const Event *>self.events.data + i
            c.end = c.p + event.size
            if event.kind == EVENT_ROW:
                done = self._read_row(c, tables, event)
            elif event.kind == EVENT_DDL:
                done = self._read_ddl(c, event)
            elif event.kind == EVENT_RESOLVED:
                done = self._read_resolved(c, event)
            else:
                return fail(c, FAULT_UNKNOWN_KIND)
            if done < 0:
                return -1
        return 0

    # --- events ---

    cdef int _read_resolved(self, Cursor *c, const Event *event) noexcept nogil:
        cdef Row row
        if left(c) > 0:
            return fail(c, FAULT_TRAILING)
        row_init(&row, KIND_WATERMARK)
        row.has = HAS_COMMIT_TS
        row.commit_ts = <int64_t>event.commit_ts
        return self.out.add_row(c, &row)

    cdef int _read_ddl(self, Cursor *c, const Event *event) noexcept nogil:
        cdef Row row
        cdef Extra *extra
        cdef uint64_t code = 0, length = 0
        cdef Span query, database, table
        cdef const uint8_t *at = c.p
        if read_uvarint(c, &code) < 0:
            return -1
        if code > 255:
            return fail_at(c, FAULT_RANGE, at)
        at = c.p
        if read_uvarint(c, &length) < 0:
            return -1
        if length > left(c):
            return fail_at(c, FAULT_LENGTH, at)
        query.p = c.p
        query.n = length
        c.p += length
        if c.p != c.end:
            return fail(c, FAULT_TRAILING)
        if not tg_utf8_valid(query.p, query.n):
            return fail_at(c, FAULT_UTF8, query.p)
        self._name_or_null(event.schema, &database)
        self._name_or_null(event.table, &table)
        row_init(&row, KIND_DDL)
        row.has = HAS_COMMIT_TS
        row.commit_ts = <int64_t>event.commit_ts
        row.names = self.out.intern_names(&database, &table)
        extra = self.out.new_extra(&row)
        if row.names < 0 or extra == NULL or self.out.keep(&query, &extra.query) < 0:
            return fail(c, FAULT_MEMORY)
        extra.ddl_code = <int32_t>code
        extra.ddl_type = ddl_word_of(<uint8_t>code)[0]
        return self.out.add_row(c, &row)

    cdef void _name_or_null(self, int64_t term, Span *out) noexcept nogil:
        out.p = NULL
        out.n = 0
        if term >= 0:
            out[0] = (<Span *>self.dictionary.spans.data)[term]
            if out.n == 0:
                out.p = NULL

    cdef int _read_row(self, Cursor *c, Cursor *tables, const Event *event) noexcept nogil:
        cdef Row row
        cdef uint64_t groups = 0
        cdef int64_t first = 0, delta = 0
        cdef uint8_t kind = 0
        cdef const uint8_t *at = tables.p
        cdef const uint8_t *row_end = c.end
        if event.schema < 0 or event.table < 0:
            return fail(c, FAULT_MISSING)
        if read_uvarint(tables, &groups) < 0:
            return self._fail_as(c, tables)
        if groups != 1 and groups != 2:
            return fail_at(c, FAULT_COLUMNS, at)
        if read_varint(tables, &first) < 0 or (groups == 2 and read_varint(tables, &delta) < 0):
            return self._fail_as(c, tables)
        if first < 0 or <uint64_t>first > event.size or \
                (<uint64_t>first if groups == 1 else <uint64_t>first * 2 + <uint64_t>delta) != event.size:
            return fail_at(c, FAULT_LENGTH, at)
        row_init(&row, KIND_INSERT)
        row.has = HAS_COMMIT_TS
        row.commit_ts = <int64_t>event.commit_ts
        if event.partition >= 0:
            row.table_id = event.partition
            row.has |= HAS_TABLE_ID
        c.end = c.p + first
        at = c.p
        if read_u8(c, &kind) < 0:
            return -1
        if kind != GROUP_NEW and (kind != GROUP_OLD or groups == 2):
            return fail_at(c, FAULT_COLUMNS, at)
        if self._find_group(c, event) < 0:
            return -1
        row.shape = self.group.shape
        if kind == GROUP_OLD:
            row.kind = KIND_DELETE
            row.has |= HAS_BEFORE
            if self._read_values(c, self.group, &self.out.before, &row) < 0:
                return -1
        else:
            row.has |= HAS_AFTER
            if self._read_values(c, self.group, &self.out.after, &row) < 0:
                return -1
            if groups == 2:
                row.kind = KIND_UPDATE
                row.has |= HAS_BEFORE
                c.end = row_end
                if self._read_old_group(c, event, &row) < 0:
                    return -1
        return self.out.add_row(c, &row)

    # --- column groups ---

    cdef int _find_group(self, Cursor *c, const Event *event) noexcept nogil:
        """Goes over the group's head; self.group says what it means."""
        cdef Dictionary *known = self.dictionary
        cdef Group *group = self.group
        cdef int i
        if TG_LIKELY(group != NULL and group.schema == event.schema and group.table == event.table) and \
                TG_LIKELY(take(c, group.head.p, group.head.n)):
            return 0
        for i in range(known.group_count):
            group = &known.groups[i]
            if group.schema == event.schema and group.table == event.table and \
                    take(c, group.head.p, group.head.n):
                self.group = group
                return 0
        if known.group_count < KNOWN_GROUPS:
            group = &known.groups[known.group_count]
            memset(group, 0, sizeof(Group))
            known.group_count += 1
        else:
            group = &known.groups[known.next_group]
            known.next_group = (known.next_group + 1) % KNOWN_GROUPS
            _forget(group)
        self.group = NULL
        if self._learn_group(c, event, group) < 0:
            # An impossible id: the slot fits nothing.
            group.schema = -2
            return -1
        self.group = group
        return 0

    cdef int _learn_group(self, Cursor *c, const Event *event, Group *group) noexcept nogil:
        cdef const Span *spans = <const Span *>self.dictionary.spans.data
        cdef const uint8_t *began = c.p
        cdef const uint8_t *at
        cdef uint64_t count = 0, raw = 0, last = 0
        cdef int64_t delta = 0
        cdef int32_t i, n
        cdef int32_t *ids
        cdef int32_t *codes
        cdef int32_t *flags
        cdef int32_t *places
        cdef ShapeColumn *columns
        if read_uvarint(c, &count) < 0:
            return -1
        # A column takes four bytes at least: name, type, flags and the length of its value.
        if count == 0 or count > MAX_COLUMNS:
            return fail_at(c, FAULT_COLUMNS, began)
        if count > left(c) // 4:
            return fail_at(c, FAULT_LENGTH, began)
        n = <int32_t>count
        self.numbers.used = 0
        self.columns.used = 0
        self.places.used = 0
        if buffer_reserve(&self.numbers, n * 12) < 0 or \
                buffer_reserve(&self.columns, n * sizeof(ShapeColumn)) < 0 or \
                buffer_reserve(&self.places, self.dictionary.count * 4) < 0:
            return fail(c, FAULT_MEMORY)
        ids = <int32_t *>self.numbers.data
        codes = ids + n
        flags = codes + n
        places = <int32_t *>self.places.data
        columns = <ShapeColumn *>self.columns.data
        memset(places, 0xff, self.dictionary.count * 4)
        memset(columns, 0, n * sizeof(ShapeColumn))
        for i in range(n):
            at = c.p
            if read_varint(c, &delta) < 0:
                return -1
            last += <uint64_t>delta
            if last >= self.dictionary.count:
                return fail_at(c, FAULT_RANGE, at)
            if places[last] >= 0:
                return fail_at(c, FAULT_DUPLICATE, at)
            places[last] = i
            ids[i] = <int32_t>last
            columns[i].name = spans[last]
        for i in range(n):
            at = c.p
            if read_uvarint(c, &raw) < 0:
                return -1
            if raw > 255 or form_of(<int>raw, 0) == FORM_UNKNOWN:
                return fail_at(c, FAULT_TYPE, at)
            codes[i] = <int32_t>raw
            columns[i].code = <int32_t>raw
        for i in range(n):
            at = c.p
            if read_uvarint(c, &raw) < 0:
                return -1
            if raw > INT32_MAX:
                return fail_at(c, FAULT_RANGE, at)
            flags[i] = <int32_t>raw
            columns[i].flags = <int32_t>raw
            columns[i].key = (raw >> 1) & 1
        if self._keep_group(c, group, began, n) < 0:
            return -1
        group.shape = self.out.register_shape(c, &spans[event.schema], &spans[event.table], columns, n)
        if group.shape < 0:
            return -1
        group.schema = event.schema
        group.table = event.table
        return 0

    cdef int _keep_group(self, Cursor *c, Group *group, const uint8_t *began, int32_t n) noexcept nogil:
        """Keeps the head of the group, from `began` to the cursor, and what self.numbers has of it."""
        cdef const int32_t *codes = <const int32_t *>self.numbers.data + n
        cdef const int32_t *flags = codes + n
        cdef uint16_t *forms
        cdef uint8_t *head
        cdef int32_t i
        cdef int form
        group.head.n = <size_t>(c.p - began)
        group.block = <uint8_t *>malloc(n * 14 + group.head.n + 16)
        if group.block == NULL:
            return fail(c, FAULT_MEMORY)
        memcpy(group.block, self.numbers.data, n * 12)
        forms = <uint16_t *>(group.block + n * 12)
        head = group.block + n * 14
        memcpy(head, began, group.head.n)
        memset(head + group.head.n, 0, 16)
        group.room = 0
        for i in range(n):
            form = form_of(codes[i], flags[i])
            forms[i] = <uint16_t>(form | bits_of(codes[i]) << 8)
            group.room += DOUBLE_ROOM if form == FORM_DOUBLE or form == FORM_FLOAT else INTEGER_ROOM
        group.head.p = head
        group.terms = <const int32_t *>group.block
        group.codes = group.terms + n
        group.flags = group.codes + n
        group.forms = forms
        group.count = n
        return 0

    cdef int _read_sizes_of_values(self, Cursor *c, int32_t count, Buffer *into) noexcept nogil:
        into.used = 0
        if buffer_reserve(into, count * 4 + 64) < 0:
            return fail(c, FAULT_MEMORY)
        if tg_craft_sizes(&c.p, c.end, c.limit, count, <int32_t *>into.data) < 0:
            return fail(c, FAULT_LENGTH)
        return 0

    cdef int _reserve(self, Cursor *c, const Group *group, Cells *cells) noexcept nogil:
        """Room for the group's cells and the text of its values: base64 needs a third more."""
        if cells_reserve(cells, group.count) < 0 or \
                buffer_reserve(&cells.text, left(c) + (left(c) >> 1) + group.room) < 0:
            return fail(c, FAULT_MEMORY)
        return 0

    cdef int _read_values(self, Cursor *c, const Group *group, Cells *cells, Row *row) noexcept nogil:
        cdef int32_t count = group.count
        cdef int damaged = 0
        cdef int64_t done
        if self._read_sizes_of_values(c, count, &self.new_sizes) < 0 or self._reserve(c, group, cells) < 0:
            return -1
        self.new_values = c.p
        done = tg_craft_values(
            group.forms, <const int32_t *>self.new_sizes.data, count, &c.p, c.limit, cells.text.data,
            &cells.text.used, cells_ends(cells),
            cells.valid.data + cells.count, &damaged,
        )
        return self._end_values(c, group, cells, row, done, damaged)

    cdef int _put_old(self, Cursor *c, uint16_t column, const uint8_t *p, int32_t size,
                      Row *row) noexcept nogil:
        """The next cell of `before`, for which there is room."""
        cdef Cells *cells = &self.out.before
        cdef int damaged = 0
        cdef int64_t length = tg_craft_value(
            column, p, size, c.limit, cells.text.data + cells.text.used, &damaged
        )
        if damaged:
            row.flags |= FLAG_CORRUPTED
        if length >= 0:
            cells.text.used += <size_t>length
            cell_end(cells)
        elif length == TG_CRAFT_NULL:
            cell_null(cells)
        else:
            return fail_at(c, _fault_of(length), p)
        return 0

    cdef int _read_old_group(self, Cursor *c, const Event *event, Row *row) noexcept nogil:
        """The second group of an update, behind the new values just read."""
        cdef uint8_t kind = 0
        cdef const uint8_t *at = c.p
        if read_u8(c, &kind) < 0:
            return -1
        if kind != GROUP_OLD:
            return fail_at(c, FAULT_COLUMNS, at)
        if TG_LIKELY(take(c, self.group.head.p, self.group.head.n)):
            return self._read_same_columns(c, self.group, row)
        return self._read_other_columns(c, event, row)

    cdef int _read_same_columns(self, Cursor *c, const Group *group, Row *row) noexcept nogil:
        """Old values of the same columns as the new ones, of which `after` has the cells."""
        cdef int32_t count = group.count
        cdef const Cells *new = &self.out.after
        cdef Cells *cells = &self.out.before
        cdef int damaged = 0
        cdef int64_t done
        if self._read_sizes_of_values(c, count, &self.old_sizes) < 0 or self._reserve(c, group, cells) < 0:
            return -1
        done = tg_craft_old_values(
            group.forms, <const int32_t *>self.new_sizes.data, <const int32_t *>self.old_sizes.data,
            count, self.new_values, &c.p, c.limit, new.text.data, cells_ends(new) - count,
            cells.text.data, &cells.text.used, cells_ends(cells), cells.valid.data + cells.count,
            &damaged,
        )
        return self._end_values(c, group, cells, row, done, damaged)

    cdef int _end_values(self, Cursor *c, const Group *group, Cells *cells, Row *row, int64_t done,
                         int damaged) noexcept nogil:
        """The group's cells count, if all could be read."""
        if done < 0:
            return fail(c, _fault_of(done))
        cells.ends.used += 4 * <size_t>group.count
        cells.valid.used += group.count
        cells.count += group.count
        if damaged:
            row.flags |= FLAG_CORRUPTED
        return 0

    cdef int _read_other_columns(self, Cursor *c, const Event *event, Row *row) noexcept nogil:
        """Old values of fewer columns, or of the same in another order."""
        cdef Group *group = self.group
        cdef int32_t count = group.count
        cdef const ShapeColumn *columns
        cdef const int32_t *sizes
        cdef const uint8_t *at = c.p
        cdef const uint8_t *values
        cdef int32_t *places
        cdef int32_t *olds
        cdef int32_t *offsets
        cdef int32_t i, j, offset = 0
        cdef uint8_t *missing = NULL
        self.new_places.used = 0
        self.old_columns.used = 0
        if buffer_reserve(&self.new_places, self.dictionary.count * 4) < 0 or \
                buffer_reserve(&self.old_columns, count * 8) < 0:
            return fail(c, FAULT_MEMORY)
        places = <int32_t *>self.new_places.data
        olds = <int32_t *>self.old_columns.data
        offsets = olds + count
        memset(places, 0xff, self.dictionary.count * 4)
        memset(olds, 0xff, count * 4)
        for i in range(count):
            places[group.terms[i]] = i
        if self._find_group(c, event) < 0:
            return -1
        group = self.group
        columns = self.out.shape(row.shape).columns
        if self._read_sizes_of_values(c, group.count, &self.old_sizes) < 0:
            return -1
        sizes = <const int32_t *>self.old_sizes.data
        for j in range(group.count):
            i = places[group.terms[j]]
            if i < 0 or columns[i].code != group.codes[j] or columns[i].flags != group.flags[j]:
                return fail_at(c, FAULT_COLUMNS, at)
            olds[i] = j
            offsets[i] = offset
            if sizes[j] > 0:
                offset += sizes[j]
        if group.count < count:
            missing = self.out.new_missing(row, count)
            if missing == NULL:
                return fail(c, FAULT_MEMORY)
        if cells_reserve(&self.out.before, count) < 0 or self._reserve(c, group, &self.out.before) < 0:
            return fail(c, FAULT_MEMORY)
        values = c.p
        for i in range(count):
            j = olds[i]
            if j < 0:
                missing[i >> 3] |= <uint8_t>(1 << (i & 7))
                cell_null(&self.out.before)
            elif self._put_old(c, group.forms[j], values + offsets[i], sizes[j], row) < 0:
                return -1
        c.p = c.end
        return 0
