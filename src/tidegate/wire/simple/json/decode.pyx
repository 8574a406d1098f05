"""The Simple protocol in JSON: one object a message, with one event.

Authority: TiCDC's Simple document; where it is silent (the form of TIMESTAMP values, checksums, claim
checks), the bytes that TiCDC's own encoders write. Rows name columns and nothing more of them; what
they mean is in the table schemas that BOOTSTRAP and DDL messages bring. TiCDC sorts the members of
`data` and `old` by name, and so are the columns of a shape here, in whatever order they came.
"""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.simple.json.layout cimport *
from tidegate.wire.simple.json.members cimport *
from tidegate.wire.simple.json.predict cimport *
from tidegate.wire.simple.json.tables cimport *


# --- literals -------------------------------------------------------------------------------------

_kept_alive = []


cdef Span _literal(bytes text):
    """A span that take() may compare with: there are zeros behind it."""
    cdef Span span
    padded = text + bytes(16)
    _kept_alive.append(padded)
    span.p = padded
    span.n = len(text)
    return span


HEAD = _literal(b'{"version":1,"database":"')
HEAD_TABLE = _literal(b'","table":"')
INSERT_COMMIT_TS = _literal(b',"type":"INSERT","commitTs":')
UPDATE_COMMIT_TS = _literal(b',"type":"UPDATE","commitTs":')
DELETE_COMMIT_TS = _literal(b',"type":"DELETE","commitTs":')
BUILD_TS = _literal(b',"buildTs":')
SCHEMA_VERSION = _literal(b',"schemaVersion":')
HANDLE_KEY_ONLY = _literal(b',"handleKeyOnly":true')
CHECKSUM = _literal(b',"checksum":{"version":')
INTACT_CURRENT = _literal(b',"corrupted":false,"current":')
CORRUPTED_CURRENT = _literal(b',"corrupted":true,"current":')
PREVIOUS = _literal(b',"previous":')
DATA = _literal(b',"data":')
OLD = _literal(b',"old":')
NULL_WORD = _literal(b'null')
TIMESTAMP = _literal(b'timestamp')


# --- the decoder ----------------------------------------------------------------------------------

cdef class SimpleJsonDecoder(MessageDecoder):
    """Decodes messages of the Simple protocol's JSON encoding."""

    def __cinit__(self, *arguments, **options):
        self.memory.release = release_table

    def __dealloc__(self):
        buffer_free(&self.data)
        buffer_free(&self.old)
        buffer_free(&self.slots)
        buffer_free(&self.columns)
        buffer_free(&self.text)

    cdef int message(self, Message *m, Cursor *c) noexcept nogil:
        cdef Facts f
        cdef Row row
        if m.value == NULL or m.value_size == 0:
            return fail(c, FAULT_EMPTY)
        if predicted_message(self, c):
            return 0
        memset(&f, 0, sizeof(Facts))
        self.data.used = 0
        self.old.used = 0
        if read_members(self, c, &f) < 0:
            return -1
        if ~f.has & (MEMBER_VERSION | MEMBER_TYPE):
            return fail(c, FAULT_MISSING)
        if not f.has & MEMBER_COMMIT_TS and f.type != TYPE_BOOTSTRAP:
            return fail(c, FAULT_MISSING)
        if f.type == TYPE_WATERMARK:
            row_init(&row, KIND_WATERMARK)
            row.commit_ts = f.commit_ts
            row.has = HAS_COMMIT_TS
            return self.out.add_row(c, &row)
        if f.type == TYPE_BOOTSTRAP:
            return _bootstrap(self, c, &f)
        if f.type == TYPE_DDL:
            return _ddl(self, c, &f)
        return _row(self, c, &f)


# Events
cdef int _bootstrap(SimpleJsonDecoder self, Cursor *c, Facts *f) noexcept nogil:
    cdef Row row
    cdef Extra *extra
    if f.schema.raw.p == NULL:
        return fail(c, FAULT_MISSING)
    row_init(&row, KIND_SCHEMA)
    if f.commit_ts:     # TiCDC writes 0, which means nothing
        row.commit_ts = f.commit_ts
        row.has |= HAS_COMMIT_TS
    extra = self.out.new_extra(&row)
    if extra == NULL or _schema_text(self, f, &extra.schema) < 0 or \
            _name_row(self, &row, &f.schema) < 0:
        return fail(c, FAULT_MEMORY)
    return self.out.add_row(c, &row)


cdef int _ddl(SimpleJsonDecoder self, Cursor *c, Facts *f) noexcept nogil:
    cdef Row row
    cdef Extra *extra
    if not f.has & MEMBER_SQL:
        return fail(c, FAULT_MISSING)
    row_init(&row, KIND_DDL)
    row.commit_ts = f.commit_ts
    row.has = HAS_COMMIT_TS
    extra = self.out.new_extra(&row)
    if extra == NULL or self.out.keep(&f.type_text, &extra.ddl_type) < 0 or \
            self.out.keep(&f.sql, &extra.query) < 0 or \
            _schema_text(self, f, &extra.schema) < 0:
        return fail(c, FAULT_MEMORY)
    # A statement on a whole database has neither schema, and so no names.
    if f.schema.raw.p != NULL:
        if _name_row(self, &row, &f.schema) < 0:
            return fail(c, FAULT_MEMORY)
    elif f.schema_before.raw.p != NULL and _name_row(self, &row, &f.schema_before) < 0:
        return fail(c, FAULT_MEMORY)
    return self.out.add_row(c, &row)


cdef int _schema_text(SimpleJsonDecoder self, Facts *f, Span *out) noexcept nogil:
    """{"tableSchema":…,"preTableSchema":…} with those that are there; -1 without memory."""
    cdef Buffer *b = &self.text
    b.used = 0
    if f.schema.raw.p != NULL and (
        buffer_add(b, b'{"tableSchema":', 15) < 0
        or buffer_add(b, f.schema.raw.p, f.schema.raw.n) < 0
    ):
        return -1
    if f.schema_before.raw.p != NULL and (
        buffer_add_byte(b, c',' if b.used else c'{') < 0
        or buffer_add(b, b'"preTableSchema":', 17) < 0
        or buffer_add(b, f.schema_before.raw.p, f.schema_before.raw.n) < 0
    ):
        return -1
    if b.used == 0:
        return 0
    if buffer_add_byte(b, c'}') < 0:
        return -1
    out.p = b.data
    out.n = b.used
    return self.out.keep(out, out)


cdef int _check_members(SimpleJsonDecoder self, Cursor *c, const Facts *f) noexcept nogil:
    """A row change has the members that its type asks for."""
    cdef uint32_t wanted = MEMBER_DATABASE | MEMBER_TABLE | MEMBER_SCHEMA_VERSION
    if f.type != TYPE_DELETE:
        wanted |= MEMBER_DATA
    elif count_of(&self.data):
        return fail(c, FAULT_COLUMNS)
    if f.type != TYPE_INSERT:
        wanted |= MEMBER_OLD
    elif count_of(&self.old):
        return fail(c, FAULT_COLUMNS)
    if f.claim_check.n:
        # The values come from elsewhere, and Go leaves out an object without members.
        wanted &= ~(MEMBER_DATA | MEMBER_OLD)
    if wanted & ~f.has:
        return fail(c, FAULT_MISSING)
    return 0


cdef int _put_extra(SimpleJsonDecoder self, Cursor *c, const Facts *f, Row *row) noexcept nogil:
    """The flags of a row, its claim check and its checksum."""
    cdef Extra *extra
    # TiCDC marks claim checks as handle-key-only too.
    if f.claim_check.n:
        row.flags |= FLAG_CLAIM_CHECK
    elif f.handle_key_only:
        row.flags |= FLAG_HANDLE_KEY_ONLY
    if f.claim_check.n or f.has & MEMBER_CHECKSUM:
        extra = self.out.new_extra(row)
        if extra == NULL:
            return fail(c, FAULT_MEMORY)
        if f.claim_check.n and self.out.keep(&f.claim_check, &extra.claim_check) < 0:
            return fail(c, FAULT_MEMORY)
        if f.has & MEMBER_CHECKSUM:
            extra.has_checksum = True
            extra.checksum = f.checksum
            row.flags |= FLAG_CHECKSUM
            if f.checksum.corrupted:
                row.flags |= FLAG_CORRUPTED
    return 0


cdef int _row(SimpleJsonDecoder self, Cursor *c, Facts *f) noexcept nogil:
    """INSERT, UPDATE or DELETE. The shape's columns are those of `data`, of a DELETE of `old`."""
    cdef Row row
    cdef Buffer *side = &self.old if f.type == TYPE_DELETE else &self.data
    cdef Member *members = members_of(side)
    cdef Member *old = members_of(&self.old)
    cdef int32_t count = count_of(side)
    cdef int32_t i, culprit = 0
    cdef int32_t *slots
    cdef uint8_t *bits
    cdef Table *t
    cdef int placed
    if _check_members(self, c, f) < 0:
        return -1
    if buffer_reserve(&self.slots, 2 * <size_t>count * sizeof(int32_t)) < 0:
        return fail(c, FAULT_MEMORY)
    slots = <int32_t *>self.slots.data
    t = table_of(self, c, f, members, count)
    if t == NULL:
        return -1
    if f.type == TYPE_UPDATE:
        placed = place_members(t, old, count_of(&self.old), slots + count, &culprit)
        if placed != PLACED:
            return fail_at(c, FAULT_DUPLICATE if placed == TWICE else FAULT_COLUMNS,
                           old[culprit].at)
        if _join_zones(c, members, old, slots, count) < 0:
            return -1
    if _learns_zones(t, members, slots):
        t = learn_table(self, c, f, members, count, t)
        if t == NULL:
            return -1
    row_init(&row, KIND_INSERT if f.type == TYPE_INSERT else
             KIND_UPDATE if f.type == TYPE_UPDATE else KIND_DELETE)
    row.has = HAS_COMMIT_TS | HAS_SCHEMA_VERSION
    row.commit_ts = f.commit_ts
    row.schema_version = f.schema_version
    if f.has & MEMBER_TABLE_ID:
        row.table_id = f.table_id
        row.has |= HAS_TABLE_ID
    row.shape = _shape(self, c, t, members, slots)
    if row.shape < 0:
        return -1
    if f.type != TYPE_DELETE:
        row.has |= HAS_AFTER
        if _cells(self, c, &self.out.after, members, slots, count) < 0:
            return -1
    if f.type != TYPE_INSERT:
        row.has |= HAS_BEFORE
        if f.type == TYPE_UPDATE:
            slots += count
        if _cells(self, c, &self.out.before, old, slots, count) < 0:
            return -1
        if count_of(&self.old) < count:
            bits = self.out.new_missing(&row, count)
            if bits == NULL:
                return fail(c, FAULT_MEMORY)
            for i in range(count):
                if slots[i] < 0:
                    bits[i >> 3] |= <uint8_t>(1 << (i & 7))
    if _put_extra(self, c, f, &row) < 0:
        return -1
    return self.out.add_row(c, &row)


cdef int32_t _shape(SimpleJsonDecoder self, Cursor *c, Table *t, const Member *members,
                    const int32_t *slots) noexcept nogil:
    cdef uint64_t zones = 0
    cdef int32_t i
    cdef ShapeColumn *columns
    if t.zones <= PREDICTABLE_ZONES:
        for i in range(t.count):
            if members[slots[i]].zone.p != NULL:
                zones |= t.expected[i].zone_bit
        return zone_shape(self, c, t, zones)
    self.columns.used = 0
    if buffer_reserve(&self.columns, <size_t>t.count * sizeof(ShapeColumn)) < 0:
        return fail(c, FAULT_MEMORY)
    columns = <ShapeColumn *>self.columns.data
    for i in range(t.count):
        plain_column(&columns[i], &t.columns[i].name)
        if members[slots[i]].zone.p != NULL:
            columns[i].type = TIMESTAMP
            columns[i].zone = members[slots[i]].zone
    return self.out.register_shape(c, &t.database, &t.table, columns, t.count)


cdef int _cells(SimpleJsonDecoder self, Cursor *c, Cells *cells, const Member *members,
                const int32_t *slots, int32_t count) noexcept nogil:
    cdef int32_t i
    cdef int n
    cdef const Member *m
    if cells_reserve(cells, <size_t>count) < 0:
        return fail(c, FAULT_MEMORY)
    for i in range(count):
        if slots[i] < 0 or members[slots[i]].text.p == NULL:
            cell_null(cells)
            continue
        m = &members[slots[i]]
        if not m.is_number:
            if cell_copy(cells, m.text.p, m.text.n, m.limit) < 0:
                return fail(c, FAULT_MEMORY)
            continue
        if buffer_reserve(&cells.text, m.text.n + 512) < 0:
            return fail(c, FAULT_MEMORY)
        n = tg_shift_decimal(m.text.p, m.text.n, cells.text.data + cells.text.used,
                             m.text.n + 512)
        if n < 0:
            return fail_at(c, FAULT_RANGE, m.text.p)
        cells.text.used += n
        cell_end(cells)
    return 0


cdef int _join_zones(Cursor *c, Member *members, const Member *old, const int32_t *slots,
                     int32_t count) noexcept nogil:
    """Gives the members of `data` the zones that only `old` tells: both have one shape."""
    cdef int32_t i
    cdef Member *new
    cdef const Member *before
    for i in range(count):
        if slots[count + i] < 0 or old[slots[count + i]].zone.p == NULL:
            continue
        new = &members[slots[i]]
        before = &old[slots[count + i]]
        if new.zone.p == NULL:
            new.zone = before.zone
        elif not same_span(&new.zone, &before.zone):
            return fail_at(c, FAULT_COLUMNS, before.at)
    return 0


cdef bint _learns_zones(const Table *t, const Member *members, const int32_t *slots) noexcept nogil:
    """Whether a member has another zone than is known of its column."""
    cdef int32_t i
    for i in range(t.count):
        if members[slots[i]].zone.p != NULL and not same_span(&members[slots[i]].zone,
                                                          &t.columns[i].zone):
            return True
    return False


cdef int _name_row(SimpleJsonDecoder decoder, Row *row, const SchemaFacts *schema) noexcept nogil:
    """Names, version and id from a schema; -1 without memory."""
    cdef Span database = schema.database
    cdef Span table = schema.table
    if database.n == 0:
        database.p = NULL
    if table.n == 0:
        table.p = NULL
    row.names = decoder.out.intern_names(&database, &table)
    row.schema_version = schema.version
    row.has |= HAS_SCHEMA_VERSION
    if schema.has_table_id:
        row.table_id = schema.table_id
        row.has |= HAS_TABLE_ID
    return row.names
