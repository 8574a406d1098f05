"""The Craft protocol: compact binary messages of many events, with a dictionary of names.

Authority: docs/protocols/craft.md, after TiCDC's Craft document and the bytes its encoder writes. A
message decodes completely or not at all: every size in its tables must agree with what is there.
"""

cimport cython
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from tidegate.model import EncodeError, Flag, SchemaNotSeen, action_code, type_flags

from tidegate.wire.batch.builder cimport (
    FLAG_CLAIM_CHECK,
    FLAG_CORRUPTED,
    FLAG_HANDLE_KEY_ONLY,
    HAS_AFTER,
    HAS_BEFORE,
    HAS_COMMIT_TS,
    HAS_TABLE_ID,
    KIND_DDL,
    KIND_DELETE,
    KIND_ERROR,
    KIND_INSERT,
    KIND_UPDATE,
    KIND_WATERMARK,
    MAX_COLUMNS,
    BatchReader,
    CellsView,
    Extra,
    Message,
    MessageBuilder,
    Row,
    ShapeColumn,
    StringsView,
    ddl_word,
    long_at,
    row_init,
    string_at,
    view_count,
    view_has,
)
from tidegate.wire.batch.builder cimport Decoder as BatchDecoder
from tidegate.wire.kernel.buffer cimport (
    Buffer,
    Cells,
    buffer_add,
    buffer_add_byte,
    buffer_add_uvarint,
    buffer_free,
    buffer_reserve,
    cell_end,
    cell_null,
    cells_ends,
    cells_reserve,
)
from tidegate.wire.kernel.cursor cimport (
    FAULT_COLUMNS,
    FAULT_DUPLICATE,
    FAULT_EMPTY,
    FAULT_LENGTH,
    FAULT_MEMORY,
    FAULT_MISSING,
    FAULT_NUMBER,
    FAULT_RANGE,
    FAULT_SYNTAX,
    FAULT_TEMPORAL,
    FAULT_TRAILING,
    FAULT_TRUNCATED,
    FAULT_TYPE,
    FAULT_UNKNOWN_KIND,
    FAULT_UTF8,
    FAULT_VALUE,
    FAULT_VERSION,
    TG_LIKELY,
    TG_UNLIKELY,
    Cursor,
    Span,
    fail,
    fail_at,
    left,
    read_u8,
    read_uvarint,
    read_varint,
    take,
    tg_copy,
    unzigzag,
)
from tidegate.wire.kernel.text cimport tg_hash, tg_utf8_valid
from tidegate.wire.kernel.values cimport (
    FORM_DOUBLE,
    FORM_FLOAT,
    FORM_UNKNOWN,
    bits_of,
    form_of,
)

cdef extern from "_craft.h" nogil:
    enum:
        TG_CRAFT_NULL
        TG_CRAFT_UTF8
        TG_CRAFT_NUMBER
        TG_CRAFT_RANGE
        TG_CRAFT_TEMPORAL
        TG_CRAFT_LENGTH
        TG_CRAFT_VALUE
        TG_CRAFT_BASE64
    int tg_craft_sizes(const uint8_t **at, const uint8_t *end, const uint8_t *limit, int32_t count,
                       int32_t *sizes) noexcept
    int64_t tg_craft_value(uint16_t column, const uint8_t *p, int32_t size, const uint8_t *limit,
                           uint8_t *text, int *damaged) noexcept
    ctypedef struct tg_cells:
        const int32_t *ends
        const uint8_t *valid
        int64_t first
        const uint8_t *text
        const uint8_t *limit
    uint8_t *tg_put_uvarint(uint8_t *dst, uint64_t value) noexcept
    uint8_t *tg_put_varint(uint8_t *dst, int64_t value) noexcept
    uint8_t *tg_craft_put_sizes(uint8_t *dst, const int32_t *sizes, int32_t count) noexcept
    int64_t tg_craft_row(const uint16_t *columns, const int32_t *picks, int32_t count, const tg_cells *cells,
                         int32_t *sizes, uint8_t *dst, int32_t *at) noexcept
    int64_t tg_craft_old_row(const uint16_t *columns, int32_t count, const tg_cells *new_cells,
                             const int32_t *new_sizes, const uint8_t *new_bytes,
                             const tg_cells *old_cells, int32_t *sizes, uint8_t *dst, int32_t *at) noexcept
    int64_t tg_craft_values(const uint16_t *columns, const int32_t *sizes, int32_t count, const uint8_t **at,
                            const uint8_t *limit, uint8_t *base, size_t *used, int32_t *ends,
                            uint8_t *valid, int *damaged) noexcept
    int64_t tg_craft_old_values(const uint16_t *columns, const int32_t *new_sizes,
                                const int32_t *sizes, int32_t count, const uint8_t *new_p,
                                const uint8_t **at, const uint8_t *limit, const uint8_t *new_base,
                                const int32_t *new_ends, uint8_t *base, size_t *used, int32_t *ends,
                                uint8_t *valid, int *damaged) noexcept

OPTIONS = frozenset({"delete_only_output_handle_key_columns", "mix_tables"})

cdef enum:
    VERSION = 1
    # event types
    EVENT_ROW = 1
    EVENT_DDL = 2
    EVENT_RESOLVED = 3
    # column groups
    GROUP_NEW = 1
    GROUP_OLD = 2
    # the longest texts of a number: of a 64-bit integer, and of a double (tg_format_double)
    INTEGER_ROOM = 24
    DOUBLE_ROOM = 400
    # TiCDC's estimate of a message's size: for a row, and for a column beside its name and value
    ROW_ESTIMATE = 32
    COLUMN_ESTIMATE = 16
    # what a decoder remembers
    KNOWN_DICTIONARIES = 64
    KNOWN_GROUPS = 8

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
    uint64_t hash
    Buffer bytes
    Buffer spans            # Span, into bytes
    size_t count
    Group groups[KNOWN_GROUPS]
    int group_count
    int next_group          # the one to be forgotten next


cdef inline void _forget(Group *group) noexcept nogil:
    free(group.block)
    group.block = NULL


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
cdef class Decoder(BatchDecoder):
    cdef Dictionary dictionaries[KNOWN_DICTIONARIES]
    cdef int dictionary_count
    cdef int next_dictionary    # the one to be forgotten next
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

    def __dealloc__(self):
        cdef int i, j
        for i in range(self.dictionary_count):
            buffer_free(&self.dictionaries[i].bytes)
            buffer_free(&self.dictionaries[i].spans)
            for j in range(self.dictionaries[i].group_count):
                _forget(&self.dictionaries[i].groups[j])
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
        cdef uint64_t h
        cdef int i
        cdef Dictionary *known = self.dictionary
        if known != NULL and known.bytes.used == n and memcmp(known.bytes.data, c.p, n) == 0:
            return 0
        self.group = NULL
        self.dictionary = NULL
        h = tg_hash(c.p, n, 0)
        for i in range(self.dictionary_count):
            known = &self.dictionaries[i]
            if known.hash == h and known.bytes.used == n and memcmp(known.bytes.data, c.p, n) == 0:
                self.dictionary = known
                return 0
        if self.dictionary_count < KNOWN_DICTIONARIES:
            known = &self.dictionaries[self.dictionary_count]
            self.dictionary_count += 1
        else:
            known = &self.dictionaries[self.next_dictionary]
            self.next_dictionary = (self.next_dictionary + 1) % KNOWN_DICTIONARIES
        if self._learn_dictionary(c, known) < 0:
            known.hash = 0
            known.bytes.used = 0
            known.count = 0
            return -1
        known.hash = h
        self.dictionary = known
        return 0

    cdef int _learn_dictionary(self, Cursor *c, Dictionary *known) noexcept nogil:
        cdef const uint8_t *began = c.p
        cdef const uint8_t *lengths
        cdef uint64_t count = 0, length = 0, total = 0, i
        cdef Span *spans
        cdef uint8_t *text
        cdef int j
        for j in range(known.group_count):
            _forget(&known.groups[j])
        known.group_count = 0
        known.next_group = 0
        known.bytes.used = 0
        known.spans.used = 0
        known.count = 0
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
        extra.ddl_type = ddl_word(<uint8_t>code)[0]
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
        cdef uint16_t *forms
        cdef int form
        cdef int32_t *places
        cdef uint8_t *head
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
        group.head.n = <size_t>(c.p - began)
        group.block = <uint8_t *>malloc(n * 14 + group.head.n + 16)
        if group.block == NULL:
            return fail(c, FAULT_MEMORY)
        memcpy(group.block, ids, n * 12)
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
        group.shape = self.out.register_shape(c, &spans[event.schema], &spans[event.table], columns, n)
        if group.shape < 0:
            return -1
        group.schema = event.schema
        group.table = event.table
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


# --- encoding ------------------------------------------------------------------------------------

# What went wrong with a value, in words.
_REFUSALS = {
    TG_CRAFT_NUMBER: "the value is not a number",
    TG_CRAFT_RANGE: "the value is out of the range of its type",
    TG_CRAFT_BASE64: "the value of a binary column is not base64",
}


# A row that waits for its message to be complete.
cdef struct Pending:
    uint64_t commit_ts
    int64_t partition
    int32_t plan
    int32_t new_count       # columns in the first group; 0: there is no such group
    int32_t old_count
    int32_t old_picks       # where the picks of the second begin in Encoder.picks, -1: all columns
    size_t sizes            # where its sizes begin in Encoder.sizes: those of the first group first
    size_t values           # where its values begin in Encoder.values
    size_t new_bytes
    size_t old_bytes


# How rows of a shape are written. Everything hangs on `block`.
cdef struct Plan:
    uint8_t *block
    int32_t count
    int32_t schema          # terms
    int32_t table
    int32_t handle_count
    int32_t *terms          # the name of each column
    int32_t *codes
    int32_t *flags
    int32_t *handles        # which columns are of the handle key
    uint16_t *forms         # see TG_CRAFT_FORM
    size_t estimate         # TiCDC's estimate of a whole group without its values
    Buffer head             # a whole group's bytes up to its lengths, as of the message `head_of`
    int64_t head_of


# A name that messages may have in their dictionaries.
cdef struct Term:
    const uint8_t *p
    int32_t n
    int32_t id              # in the message `id_of`
    int64_t id_of


@cython.final
cdef class Encoder:
    """Writes change batches as Craft messages, rows of a table joined as TiCDC joins them."""
    cdef bint delete_handle_only
    cdef bint mix_tables
    cdef size_t max_bytes
    cdef int32_t max_rows
    cdef dict plan_numbers      # by shape and schema version
    cdef list shapes            # of each plan
    cdef Buffer plans           # Plan
    cdef int32_t plan           # the last one, and what it is for
    cdef int64_t plan_shape
    cdef int64_t plan_version
    cdef dict term_numbers
    cdef list term_bytes
    cdef Buffer terms           # Term
    # The message being put together.
    cdef int64_t message        # counts them
    cdef int32_t first_row
    cdef size_t estimate
    cdef Buffer pending         # Pending
    cdef Buffer sizes           # int32
    cdef Buffer values
    cdef Buffer picks           # int32
    cdef Buffer dictionary      # int32: its terms by id
    cdef Buffer body_sizes      # int64
    cdef Buffer group_sizes     # int64, two a row, the second 0 if there is no second group

    def __cinit__(self, options, compress=None):
        self.delete_handle_only = options.delete_only_output_handle_key_columns
        self.mix_tables = options.mix_tables
        self.max_bytes = max(options.max_message_bytes, 0)
        self.max_rows = max(options.max_batch_size, 1)
        self.plan_numbers = {}
        self.shapes = []
        self.plan = -1
        self.term_numbers = {}
        self.term_bytes = []

    def __dealloc__(self):
        cdef Plan *plans = <Plan *>self.plans.data
        cdef size_t i
        for i in range(self.plans.used // sizeof(Plan)):
            free(plans[i].block)
            buffer_free(&plans[i].head)
        buffer_free(&self.plans)
        buffer_free(&self.terms)
        buffer_free(&self.pending)
        buffer_free(&self.sizes)
        buffer_free(&self.values)
        buffer_free(&self.picks)
        buffer_free(&self.dictionary)
        buffer_free(&self.body_sizes)
        buffer_free(&self.group_sizes)

    def encode(self, BatchReader reader not None, shapes, MessageBuilder messages not None):
        """Writes the batch's rows in order."""
        cdef int64_t row
        cdef int kind
        self._forget_pending()
        for row in range(reader.count):
            kind = reader.kinds[row]
            if kind <= KIND_DELETE:
                self._add_row(reader, shapes, messages, row, kind)
            elif kind == KIND_DDL:
                self._flush(messages)
                self._write_ddl(reader, messages, row)
            elif kind == KIND_WATERMARK:
                self._flush(messages)
                self._write_watermark(reader, messages, row)
            elif kind == KIND_ERROR:
                raise EncodeError("craft", f"row {row} of the batch is a message that could not be read")
        self._flush(messages)

    cdef uint64_t _commit_ts(self, BatchReader reader, int64_t row) except? 0:
        cdef int64_t ts = -1
        if not long_at(&reader.commit_ts, row, &ts) or ts < 0:
            raise EncodeError("craft", f"row {row} of the batch has no commit_ts")
        return <uint64_t>ts

    # --- what rows need ---

    cdef int32_t _term(self, bytes name) except -1:
        cdef Term fresh
        number = self.term_numbers.get(name)
        if number is None:
            number = self.term_numbers[name] = len(self.term_bytes)
            self.term_bytes.append(name)
            fresh.p = <const uint8_t *><const char *>name
            fresh.n = <int32_t>len(name)
            fresh.id = 0
            fresh.id_of = -1
            if buffer_add(&self.terms, <const uint8_t *>&fresh, sizeof(Term)) < 0:
                raise MemoryError
        return number

    cdef int _find_plan(self, BatchReader reader, shapes, int64_t row) except -1:
        """self.plan for the shape of this row."""
        cdef int64_t shape = 0, version = -1
        if not long_at(&reader.shape, row, &shape):
            raise EncodeError("craft", f"row {row} of the batch has no shape")
        if not long_at(&reader.schema_version, row, &version):
            version = -1
        if self.plan >= 0 and shape == self.plan_shape and version == self.plan_version:
            return 0
        key = (shape, None if version < 0 else version)
        number = self.plan_numbers.get(key)
        if number is None:
            known = shapes.shape(*key)
            if known is None:
                raise SchemaNotSeen(
                    _name_at(&reader.database, row), _name_at(&reader.table, row),
                    version=key[1], shape=shape,
                )
            number = self._make_plan(known)
            self.plan_numbers[key] = number
        self.plan = number
        self.plan_shape = shape
        self.plan_version = version
        return 0

    cdef int32_t _make_plan(self, shape) except -1:
        cdef Plan fresh
        cdef int32_t i, n = <int32_t>len(shape.columns)
        cdef int form
        names = [column.name.encode() for column in shape.columns]
        if n == 0 or n > MAX_COLUMNS:
            raise _refusal(shape, f"a row of {n} columns has no form in Craft")
        memset(&fresh, 0, sizeof(Plan))
        fresh.head_of = -1
        fresh.count = n
        fresh.schema = self._term(shape.database.encode())
        fresh.table = self._term(shape.table.encode())
        fresh.block = <uint8_t *>malloc(n * (4 * sizeof(int32_t) + sizeof(uint16_t)))
        if fresh.block == NULL:
            raise MemoryError
        try:
            fresh.terms = <int32_t *>fresh.block
            fresh.codes = fresh.terms + n
            fresh.flags = fresh.codes + n
            fresh.handles = fresh.flags + n
            fresh.forms = <uint16_t *>(fresh.handles + n)
            for i, column in enumerate(shape.columns):
                if column.code is None:
                    raise _refusal(shape, "the type of the column is not known", i)
                flags = column.flags
                if flags is None:
                    flags = int(type_flags(column.code))
                if column.key:
                    flags |= Flag.HANDLE_KEY
                form = form_of(column.code, flags)
                if form == FORM_UNKNOWN:
                    raise _refusal(shape, f"the column's type {column.code} is not known", i)
                fresh.terms[i] = self._term(names[i])
                fresh.codes[i] = column.code
                fresh.flags[i] = flags
                fresh.forms[i] = <uint16_t>(form | bits_of(column.code) << 8)
                fresh.estimate += len(names[i]) + COLUMN_ESTIMATE
                if flags & Flag.HANDLE_KEY:
                    fresh.handles[fresh.handle_count] = i
                    fresh.handle_count += 1
            if buffer_add(&self.plans, <const uint8_t *>&fresh, sizeof(Plan)) < 0:
                raise MemoryError
        except BaseException:
            free(fresh.block)
            raise
        self.shapes.append(shape)
        return <int32_t>(len(self.shapes) - 1)

    # --- rows ---

    cdef int _add_row(self, BatchReader reader, shapes, MessageBuilder messages, int64_t row,
                      int kind) except -1:
        cdef Pending fresh
        cdef Plan *plan
        cdef const Pending *last
        cdef tg_cells after, before
        cdef int64_t done = 0
        cdef int32_t at = 0
        cdef const int32_t *picks = NULL
        cdef bint has_before = kind != KIND_INSERT and view_has(&reader.before, row)
        memset(&fresh, 0, sizeof(Pending))
        fresh.commit_ts = self._commit_ts(reader, row)
        fresh.old_picks = -1
        if not long_at(&reader.table_id, row, &fresh.partition):
            fresh.partition = -1
        self._find_plan(reader, shapes, row)
        if reader.flags[row] & (FLAG_HANDLE_KEY_ONLY | FLAG_CLAIM_CHECK):
            raise EncodeError(
                "craft",
                "only its key is there, and the protocol cannot say so",
                database=_name_at(&reader.database, row),
                table=_name_at(&reader.table, row),
            )
        fresh.plan = self.plan
        plan = <Plan *>self.plans.data + self.plan
        if self.pending.used and not self.mix_tables:
            last = <const Pending *>(self.pending.data + self.pending.used) - 1
            if (<Plan *>self.plans.data)[last.plan].schema != plan.schema or \
                    (<Plan *>self.plans.data)[last.plan].table != plan.table:
                self._flush(messages)
        fresh.sizes = self.sizes.used
        fresh.values = self.values.used
        if kind != KIND_DELETE:
            self._view(&reader.after, row, plan, &after)
            fresh.new_count = plan.count
            self._make_room(plan, &after)
            done = tg_craft_row(
                plan.forms, NULL, plan.count, &after, <int32_t *>(self.sizes.data + self.sizes.used),
                self.values.data + self.values.used, &at,
            )
            if done < 0:
                raise _refusal(self.shapes[self.plan], _REFUSALS.get(done, "the column has no values"), at)
            self.sizes.used += 4 * <size_t>plan.count
            self.values.used += <size_t>done
            fresh.new_bytes = <size_t>done
        elif not has_before:
            raise _refusal(self.shapes[self.plan], f"the delete in row {row} of the batch has no values")
        if has_before:
            self._view(&reader.before, row, plan, &before)
            self._pick_old(reader, row, kind, plan, &fresh)
        if kind == KIND_UPDATE and fresh.old_count == 0 and plan.handle_count:
            # An update of which nothing old is known. It would read as an insert, but its handle key
            # did not change: TiCDC makes a delete and an insert of an update that changes it.
            before = after
            self._pick_handles(plan, &fresh)
        if fresh.old_count:
            self._make_room(plan, &before)
            if fresh.old_picks >= 0:
                picks = <const int32_t *>self.picks.data + fresh.old_picks
            if picks == NULL and fresh.new_count:
                done = tg_craft_old_row(
                    plan.forms, plan.count, &after, <const int32_t *>(self.sizes.data + fresh.sizes),
                    self.values.data + fresh.values, &before,
                    <int32_t *>(self.sizes.data + self.sizes.used),
                    self.values.data + self.values.used, &at,
                )
            else:
                done = tg_craft_row(
                    plan.forms, picks, fresh.old_count, &before,
                    <int32_t *>(self.sizes.data + self.sizes.used),
                    self.values.data + self.values.used, &at,
                )
            if done < 0:
                raise _refusal(self.shapes[self.plan], _REFUSALS.get(done, "the column has no values"), at)
            self.sizes.used += 4 * <size_t>fresh.old_count
            self.values.used += <size_t>done
            fresh.old_bytes = <size_t>done
        if not self.pending.used:
            self.first_row = <int32_t>row
        if buffer_add(&self.pending, <const uint8_t *>&fresh, sizeof(Pending)) < 0:
            raise MemoryError
        self._estimate(plan, &fresh)
        if self.estimate > self.max_bytes or \
                self.pending.used >= <size_t>self.max_rows * sizeof(Pending):
            self._flush(messages)
        return 0

    cdef int _view(self, const CellsView *view, int64_t row, const Plan *plan, tg_cells *out) except -1:
        if not view_has(view, row) or view_count(view, row) != plan.count:
            raise _refusal(
                self.shapes[self.plan],
                f"row {row} of the batch has {view_count(view, row)} values, not {plan.count}",
            )
        out.ends = view.ends + view.lists[row]
        out.valid = view.valid
        out.first = view.valid_base + view.lists[row]
        out.text = view.text
        out.limit = view.limit
        return 0

    cdef int _make_room(self, const Plan *plan, const tg_cells *cells) except -1:
        cdef size_t text = <size_t>(cells.ends[plan.count] - cells.ends[0])
        if buffer_reserve(&self.sizes, 4 * <size_t>plan.count) < 0 or \
                buffer_reserve(&self.values, text + 10 * <size_t>plan.count + 32) < 0:
            raise MemoryError
        return 0

    cdef int _pick_old(self, BatchReader reader, int64_t row, int kind, const Plan *plan,
                       Pending *fresh) except -1:
        """Which columns the group of old values has."""
        cdef Span missing
        cdef int32_t i
        fresh.old_count = plan.count
        if kind == KIND_DELETE and self.delete_handle_only and plan.handle_count:
            self._pick_handles(plan, fresh)
        elif string_at(&reader.missing, row, &missing):
            fresh.old_picks = <int32_t>(self.picks.used // 4)
            fresh.old_count = 0
            for i in range(plan.count):
                if reader.carried(row, i):
                    fresh.old_count += 1
                    if buffer_add(&self.picks, <const uint8_t *>&i, 4) < 0:
                        raise MemoryError
            if kind == KIND_DELETE and fresh.old_count == 0:
                raise _refusal(
                    self.shapes[self.plan], f"the delete in row {row} of the batch has no values"
                )
        return 0

    cdef int _pick_handles(self, const Plan *plan, Pending *fresh) except -1:
        fresh.old_picks = <int32_t>(self.picks.used // 4)
        fresh.old_count = plan.handle_count
        if buffer_add(&self.picks, <const uint8_t *>plan.handles, 4 * <size_t>plan.handle_count) < 0:
            raise MemoryError
        return 0

    cdef void _estimate(self, const Plan *plan, const Pending *row) noexcept nogil:
        """TiCDC's own estimate of what the row adds to its message."""
        cdef const Term *terms = <const Term *>self.terms.data
        cdef const int32_t *picks
        cdef int32_t i
        self.estimate += <size_t>(ROW_ESTIMATE + terms[plan.schema].n + terms[plan.table].n)
        self.estimate += row.new_bytes + row.old_bytes
        if row.new_count:
            self.estimate += plan.estimate
        if row.old_count and row.old_picks < 0:
            self.estimate += plan.estimate
        elif row.old_count:
            picks = <const int32_t *>self.picks.data + row.old_picks
            for i in range(row.old_count):
                self.estimate += <size_t>(terms[plan.terms[picks[i]]].n + COLUMN_ESTIMATE)

    # --- messages ---

    cdef int _flush(self, MessageBuilder messages) except -1:
        """The pending rows are a message."""
        cdef int32_t rows = <int32_t>(self.pending.used // sizeof(Pending))
        if rows == 0:
            return 0
        if self._write_rows(&messages.value, rows) < 0:
            raise MemoryError
        messages.end(False, self.first_row, rows)
        self._forget_pending()
        return 0

    cdef void _forget_pending(self) noexcept nogil:
        self.pending.used = 0
        self.sizes.used = 0
        self.values.used = 0
        self.picks.used = 0
        self.estimate = 0

    cdef inline int64_t _id(self, int32_t term) noexcept nogil:
        """The term's id in this message, which the first use gives it. There is room for it."""
        cdef Term *known = <Term *>self.terms.data + term
        if known.id_of != self.message:
            known.id_of = self.message
            known.id = <int32_t>(self.dictionary.used // 4)
            (<int32_t *>(self.dictionary.data + self.dictionary.used))[0] = term
            self.dictionary.used += 4
        return known.id

    cdef int _write_rows(self, Buffer *b, int32_t count) noexcept nogil:
        cdef const Pending *rows = <const Pending *>self.pending.data
        cdef const Plan *plans = <const Plan *>self.plans.data
        cdef int32_t i
        cdef uint64_t ts = 0
        cdef int64_t last = 0, number
        cdef size_t header, body
        cdef uint8_t *p
        self.message += 1
        self.dictionary.used = 0
        self.body_sizes.used = 0
        self.group_sizes.used = 0
        # Every message could use every term once; a header entry is five varints.
        if buffer_reserve(&self.dictionary, self.terms.used // sizeof(Term) * 4) < 0 or \
                buffer_reserve(&self.body_sizes, 8 * <size_t>count) < 0 or \
                buffer_reserve(&self.group_sizes, 16 * <size_t>count) < 0 or \
                buffer_reserve(b, 1 + 50 * <size_t>count) < 0:
            return -1
        p = b.data + b.used
        p[0] = VERSION
        p += 1
        header = b.used + 1
        for i in range(count):
            p = tg_put_uvarint(p, rows[i].commit_ts - ts)
            ts = rows[i].commit_ts
        for i in range(count):
            p[i] = EVENT_ROW
        p += count
        for i in range(count):
            p = tg_put_varint(p, rows[i].partition - last)
            last = rows[i].partition
        # The ids of all databases come first, then those of the tables, then those of columns.
        last = 0
        for i in range(count):
            number = self._id(plans[rows[i].plan].schema)
            p = tg_put_varint(p, number - last)
            last = number
        last = 0
        for i in range(count):
            number = self._id(plans[rows[i].plan].table)
            p = tg_put_varint(p, number - last)
            last = number
        b.used = <size_t>(p - b.data)
        header = b.used - header
        for i in range(count):
            body = b.used
            if self._write_row(b, &rows[i]) < 0:
                return -1
            (<int64_t *>self.body_sizes.data)[i] = <int64_t>(b.used - body)
        return self._write_end(b, header, count)

    cdef int _write_row(self, Buffer *b, const Pending *row) noexcept nogil:
        cdef int64_t *groups = <int64_t *>(self.group_sizes.data + self.group_sizes.used)
        cdef size_t start = b.used
        self.group_sizes.used += 16
        groups[0] = 0
        groups[1] = 0
        if row.new_count:
            if self._write_group(b, row, GROUP_NEW, NULL, row.new_count, row.sizes, row.values,
                                 row.new_bytes) < 0:
                return -1
            groups[0] = <int64_t>(b.used - start)
            start = b.used
        if row.old_count:
            if self._write_group(
                b, row, GROUP_OLD,
                NULL if row.old_picks < 0 else <const int32_t *>self.picks.data + row.old_picks,
                row.old_count, row.sizes + 4 * <size_t>row.new_count, row.values + row.new_bytes,
                row.old_bytes,
            ) < 0:
                return -1
            groups[1 if row.new_count else 0] = <int64_t>(b.used - start)
        return 0

    cdef int _write_group(self, Buffer *b, const Pending *row, uint8_t kind, const int32_t *picks,
                          int32_t count, size_t sizes, size_t values, size_t size) noexcept nogil:
        cdef Plan *plan = <Plan *>self.plans.data + row.plan
        cdef uint8_t *p
        if buffer_add_byte(b, kind) < 0:
            return -1
        if picks != NULL:
            if self._write_head(b, plan, picks, count) < 0:
                return -1
        else:
            # Once its names have ids, the head of a group is the same throughout a message.
            if plan.head_of != self.message:
                plan.head.used = 0
                if self._write_head(&plan.head, plan, NULL, count) < 0:
                    return -1
                plan.head_of = self.message
            if buffer_add(b, plan.head.data, plan.head.used) < 0:
                return -1
        if buffer_reserve(b, 5 * <size_t>count + size) < 0:
            return -1
        p = tg_craft_put_sizes(b.data + b.used, <const int32_t *>(self.sizes.data + sizes), count)
        memcpy(p, self.values.data + values, size)
        b.used = <size_t>(p - b.data) + size
        return 0

    cdef int _write_head(self, Buffer *b, const Plan *plan, const int32_t *picks, int32_t count) noexcept nogil:
        """The number of columns, their names, types and flags."""
        cdef int64_t last = 0, number
        cdef int32_t i
        cdef uint8_t *p
        if buffer_reserve(b, 5 + 15 * <size_t>count) < 0:
            return -1
        p = tg_put_uvarint(b.data + b.used, <uint64_t>count)
        for i in range(count):
            number = self._id(plan.terms[i if picks == NULL else picks[i]])
            p = tg_put_varint(p, number - last)
            last = number
        for i in range(count):
            p = tg_put_uvarint(p, <uint64_t>plan.codes[i if picks == NULL else picks[i]])
        for i in range(count):
            p = tg_put_uvarint(p, <uint64_t>plan.flags[i if picks == NULL else picks[i]])
        b.used = <size_t>(p - b.data)
        return 0

    cdef int _write_end(self, Buffer *b, size_t header, int32_t count) noexcept nogil:
        """The dictionary and the size tables: header and dictionary, bodies, groups of each row."""
        cdef const Term *terms = <const Term *>self.terms.data
        cdef const int32_t *ids = <const int32_t *>self.dictionary.data
        cdef const int64_t *bodies = <const int64_t *>self.body_sizes.data
        cdef const int64_t *groups = <const int64_t *>self.group_sizes.data
        cdef size_t i, start = b.used, used = self.dictionary.used // 4, tables, text = 0
        cdef int64_t last = 0
        cdef uint8_t *p
        cdef uint8_t reverse[10]
        cdef int n
        for i in range(used):
            text += <size_t>terms[ids[i]].n
        if buffer_reserve(b, text + 5 * used + 25 + 31 * <size_t>count + 40) < 0:
            return -1
        p = b.data + b.used
        if used:
            p = tg_put_uvarint(p, used)
            for i in range(used):
                p = tg_put_uvarint(p, <uint64_t>terms[ids[i]].n)
            for i in range(used):
                memcpy(p, terms[ids[i]].p, <size_t>terms[ids[i]].n)
                p += terms[ids[i]].n
        tables = <size_t>(p - b.data)
        p = tg_put_uvarint(p, 2)
        p = tg_put_varint(p, <int64_t>header)
        p = tg_put_varint(p, <int64_t>(tables - start) - <int64_t>header)
        p = tg_put_uvarint(p, <uint64_t>count)
        for i in range(<size_t>count):
            p = tg_put_varint(p, bodies[i] - last)
            last = bodies[i]
        for i in range(self.group_sizes.used // 16):
            p = tg_put_uvarint(p, 2 if groups[2 * i + 1] else 1)
            p = tg_put_varint(p, groups[2 * i])
            if groups[2 * i + 1]:
                p = tg_put_varint(p, groups[2 * i + 1] - groups[2 * i])
        # Their size, read from the end of the message backwards.
        n = <int>(tg_put_uvarint(reverse, <uint64_t>(p - b.data) - tables) - reverse)
        while n > 0:
            n -= 1
            p[0] = reverse[n]
            p += 1
        b.used = <size_t>(p - b.data)
        return 0

    cdef int _begin_single(self, Buffer *b, uint64_t commit_ts, uint8_t kind, const Span *database,
                           const Span *table) except -1:
        """The version and header of a message of one event that is not a row."""
        cdef uint8_t *p
        cdef int32_t schema_term = -1, table_term = -1
        if database.n:
            schema_term = self._term((<const char *>database.p)[:database.n])
        if table.n:
            table_term = self._term((<const char *>table.p)[:table.n])
        self.message += 1
        self.dictionary.used = 0
        self.body_sizes.used = 0
        self.group_sizes.used = 0
        if buffer_reserve(&self.dictionary, 8) < 0 or buffer_reserve(&self.body_sizes, 8) < 0 or \
                buffer_reserve(b, 64) < 0:
            raise MemoryError
        p = b.data + b.used
        p[0] = VERSION
        p = tg_put_uvarint(p + 1, commit_ts)
        p[0] = kind
        p = tg_put_varint(p + 1, -1)
        p = tg_put_varint(p, -1 if schema_term < 0 else self._id(schema_term))
        p = tg_put_varint(p, -1 if table_term < 0 else self._id(table_term))
        b.used = <size_t>(p - b.data)
        return 0

    cdef int _end_single(self, MessageBuilder messages, int64_t row, size_t start, size_t body) except -1:
        (<int64_t *>self.body_sizes.data)[0] = <int64_t>(messages.value.used - body)
        if self._write_end(&messages.value, body - start - 1, 1) < 0:
            raise MemoryError
        messages.end(False, <int32_t>row, 1)
        return 0

    cdef int _write_ddl(self, BatchReader reader, MessageBuilder messages, int64_t row) except -1:
        cdef Buffer *b = &messages.value
        cdef size_t start = b.used, body
        cdef Span database, table, query
        cdef uint64_t code
        string_at(&reader.database, row, &database)
        string_at(&reader.table, row, &table)
        if not string_at(&reader.query, row, &query):
            raise EncodeError("craft", f"the DDL in row {row} of the batch has no query")
        number = reader.ddl_code(row)
        if number is None:
            number = action_code(_name_at(&reader.ddl_type, row), _name_at(&reader.query, row)) or 0
        if not 0 <= number <= 255:
            raise EncodeError("craft", f"the DDL in row {row} of the batch has the type {number}")
        code = number
        self._begin_single(b, self._commit_ts(reader, row), EVENT_DDL, &database, &table)
        body = b.used
        if buffer_add_uvarint(b, code) < 0 or buffer_add_uvarint(b, query.n) < 0 or \
                buffer_add(b, query.p, query.n) < 0:
            raise MemoryError
        return self._end_single(messages, row, start, body)

    cdef int _write_watermark(self, BatchReader reader, MessageBuilder messages, int64_t row) except -1:
        cdef size_t start = messages.value.used
        cdef Span none
        none.p = NULL
        none.n = 0
        self._begin_single(&messages.value, self._commit_ts(reader, row), EVENT_RESOLVED, &none, &none)
        return self._end_single(messages, row, start, messages.value.used)


cdef str _name_at(const StringsView *view, int64_t row):
    cdef Span text
    return (<const char *>text.p)[:text.n].decode() if string_at(view, row, &text) else ""


def _refusal(shape, reason, place=None):
    """The error that says why a row of this shape, or a column of it, cannot be written."""
    return EncodeError(
        "craft",
        reason,
        database=shape.database,
        table=shape.table,
        field=None if place is None else shape.columns[place].name,
    )
