"""The predicted path: rows of remembered tables, whose maps may come in any order.

A row that is not as predicted is left to the general path, which gives the same result.
"""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.simple.avro.decode cimport *
from tidegate.wire.simple.avro.layout cimport *
from tidegate.wire.simple.avro.tables cimport plain_column
from tidegate.wire.simple.avro.values cimport *


cdef inline int end_row(SimpleAvroDecoder self, Cursor *c, RowFacts *f, Row *row) noexcept nogil:
    """Ends a row change whose kind, shape and cells are there."""
    cdef Extra *extra
    row.commit_ts = f.commit_ts
    row.table_id = f.table_id
    row.schema_version = f.schema_version
    row.has |= HAS_COMMIT_TS | HAS_TABLE_ID | HAS_SCHEMA_VERSION
    # TiCDC marks claim checks as handle-key-only too.
    if f.claim_check.n:
        row.flags |= FLAG_CLAIM_CHECK
    elif f.handle_key_only:
        row.flags |= FLAG_HANDLE_KEY_ONLY
    if f.claim_check.n or f.has_checksum:
        extra = self.out.new_extra(row)
        if extra == NULL or \
                (f.claim_check.n and self.out.keep(&f.claim_check, &extra.claim_check) < 0):
            return fail(c, FAULT_MEMORY)
        if f.has_checksum:
            extra.has_checksum = True
            extra.checksum = f.checksum
            row.flags |= FLAG_CHECKSUM
            if f.checksum.corrupted:
                row.flags |= FLAG_CORRUPTED
    return self.out.add_row(c, row)


# The quick way: the columns of a table seen before, in any order.
cdef inline bint predicted_row(SimpleAvroDecoder self, Cursor *c, RowFacts *f) noexcept nogil:
    """Whether the values were as predicted; otherwise nothing has happened."""
    cdef const uint8_t *map = c.p + (2 if f.type == DELETE else 1)
    cdef uint64_t hash, raw = 0
    cdef Table *t
    cdef int tries = 1
    if <size_t>(c.limit - c.end) < TG_AVRO_AHEAD or map >= c.end:
        return False
    if tg_varint_at(map, &raw) == 0 or raw & 1:
        return False
    raw >>= 1
    if f.known != NULL and <uint64_t>f.known.count == raw and try_table(self, c, f, f.known):
        return True
    hash = tg_hash(f.head.p, f.head.n, 0) if f.known == NULL else f.known.known.hash
    t = <Table *>first_known(&self.memory, hash)
    while t != NULL and tries < PREDICTIONS:
        if t != f.known and t.known.hash == hash and <uint64_t>t.count == raw and \
                same_span(&t.head, &f.head):
            if try_table(self, c, f, t):
                return True
            tries += 1
        t = <Table *>t.known.next
    return False


cdef inline bint try_table(SimpleAvroDecoder self, Cursor *c, RowFacts *f, Table *t) noexcept nogil:
    """Whether the values are those of this table; otherwise nothing has happened."""
    cdef const uint8_t *values = c.p
    if predicted_values(self, c, f, t):
        self.memory.last = &t.known
        return True
    self.out.rollback()
    c.fault = FAULT_NONE
    c.p = values
    return False


cdef inline bint predicted_values(SimpleAvroDecoder self, Cursor *c, RowFacts *f,
                                  Table *t) noexcept nogil:
    cdef Place *after
    cdef Place *before
    cdef const uint8_t *end = c.end
    cdef size_t room = 2 * left(c) + INTEGER_ROOM * <size_t>t.count
    cdef uint64_t zones = 0
    cdef Row row
    if buffer_reserve(&self.places, 2 * <size_t>t.count * sizeof(Place)) < 0:
        return False
    after = <Place *>self.places.data
    before = after + t.count
    memset(after, 0, 2 * <size_t>t.count * sizeof(Place))
    row_init(&row, KIND_INSERT)
    if not find_places(self, c, t, after, f.type != DELETE) or \
            not find_places(self, c, t, before, f.type != INSERT) or c.p != end:
        return False
    if f.type != DELETE:
        row.has |= HAS_AFTER
        if not predicted_cells(self, c, t, &self.out.after, after, room, &zones):
            return False
    if f.type != INSERT:
        row.kind = KIND_UPDATE if f.type == UPDATE else KIND_DELETE
        row.has |= HAS_BEFORE
        if not predicted_cells(self, c, t, &self.out.before, before, room, &zones):
            return False
    c.p = end
    row.shape = zone_shape(self, c, t, zones)
    return row.shape >= 0 and end_row(self, c, f, &row) == 0


cdef inline bint find_places(SimpleAvroDecoder self, Cursor *c, Table *t, Place *places,
                             bint wanted) noexcept nogil:
    """Finds the value of every column in the map here; if none is wanted, that there is none.
    TG_AVRO_AHEAD bytes behind the message may be read."""
    cdef const uint8_t *p = c.p
    cdef const uint8_t *end = c.end
    cdef TableColumn *columns = t.columns
    cdef uint64_t factor = t.factor, raw = 0
    cdef unsigned int shift = t.shift
    cdef size_t zone = t.zone.n
    cdef size_t n
    cdef uint16_t column
    cdef int32_t i
    if p >= end or p[0] != (2 if wanted else 0):
        return False
    p += 1
    c.p = p
    if not wanted:
        return True
    n = tg_varint_at(p, &raw)
    if n == 0 or raw != <uint64_t>t.count << 1:
        return False
    p += n
    for i in range(t.count):
        # The name: its length in one byte, as all remembered names are shorter than 64.
        n = p[0]
        if p >= end or n >= 2 * NAME_SIZE or n & 1:
            return False
        column = t.index[(tg_name_word(p + 1, n >> 1) * factor) >> shift]
        n = (n >> 1) + 1
        if <size_t>(end - p) <= n:
            return False
        while True:
            if column == 0:
                return False
            column -= 1
            if columns[column].literal.n == n and \
                    tg_same(p, columns[column].literal.p, n, c.limit):
                break
            column = t.chain[column]
        p += n
        if places[column].value != NULL or p[0] > VALUE_UNSIGNED or p[0] & 1:
            return False
        places[column].value = p
        n = tg_value_size(p + 1, p[0], zone) + 1
        if n > <size_t>(end - p):
            return False
        p += n
        places[column].end = p
    if p >= end or p[0] != 0:
        return False
    c.p = p + 1
    return True


cdef inline bint predicted_cells(SimpleAvroDecoder self, Cursor *c, Table *t, Cells *cells,
                                 const Place *places, size_t room, uint64_t *zones) noexcept nogil:
    cdef int32_t i
    cdef Span location
    if cells_reserve(cells, t.count) < 0 or buffer_reserve(&cells.text, room) < 0:
        return False
    location.p = NULL
    for i in range(t.count):
        c.p = places[i].value
        if put_cell(c, cells, room, &location) < 0 or c.p != places[i].end:
            return False
        if location.p != NULL:
            if t.columns[i].zone_bit == 0 or not same_span(&location, &t.location):
                return False
            zones[0] |= t.columns[i].zone_bit
            location.p = NULL
    return True


cdef inline int32_t zone_shape(SimpleAvroDecoder self, Cursor *c, Table *t,
                               uint64_t zones) noexcept nogil:
    """The shape with a zone at these columns. -1: a fault."""
    cdef ShapeColumn *columns
    cdef ZoneShape *known
    cdef uint32_t i
    cdef int32_t k
    for i in range(t.zone_shape_count):
        if t.zone_shapes[i].zones == zones:
            return t.zone_shapes[i].shape
    if buffer_reserve(&self.columns, <size_t>t.count * sizeof(ShapeColumn)) < 0:
        return fail(c, FAULT_MEMORY)
    columns = <ShapeColumn *>self.columns.data
    for k in range(t.count):
        plain_column(&columns[k], &t.columns[k].name)
        if t.columns[k].zone_bit & zones:
            columns[k].type = TIMESTAMP
            columns[k].zone = t.location
    known = &t.zone_shapes[t.zone_shape_next]
    known.shape = self.out.register_shape(c, &t.database, &t.table, columns, t.count)
    known.zones = zones
    if known.shape < 0:
        return -1
    t.zone_shape_next = (t.zone_shape_next + 1) % ZONE_SHAPES
    if t.zone_shape_count < ZONE_SHAPES:
        t.zone_shape_count += 1
    return known.shape
