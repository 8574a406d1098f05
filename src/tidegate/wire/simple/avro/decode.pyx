"""The Simple protocol in Avro: one record a message, with one event.

Authority: docs/protocols/simple.md, which lays the records out as TiCDC's encoders write them; the
meaning is that of Simple's JSON. Rows are Avro maps, in random order: the columns of a shape are
sorted by name, as they are in JSON, and so they are written. A message decodes completely or not at
all.
"""

from tidegate.wire.simple.schema import DDL_TYPES

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.simple.avro.layout cimport *
from tidegate.wire.simple.avro.predict cimport *
from tidegate.wire.simple.avro.schemas cimport *
from tidegate.wire.simple.avro.tables cimport *
from tidegate.wire.simple.avro.values cimport *


cdef Span _ddl_types[8]
_kept_alive = [b"timestamp"]
TIMESTAMP.p = <const uint8_t *><const char *>_kept_alive[0]
TIMESTAMP.n = 9
for _i in range(8):
    _ddl_types[<int>_i].p = <const uint8_t *><const char *>DDL_TYPES[_i]
    _ddl_types[<int>_i].n = len(DDL_TYPES[_i])


cdef int _by_name(const void *a, const void *b) noexcept nogil:
    """Bytewise order of two entries, the earlier in the message first where the names are equal."""
    cdef const Entry *first = <const Entry *>a
    cdef const Entry *second = <const Entry *>b
    cdef size_t n = first.name.n if first.name.n < second.name.n else second.name.n
    cdef int order = memcmp(first.name.p, second.name.p, n)
    if order != 0:
        return order
    if first.name.n != second.name.n:
        return 1 if first.name.n > second.name.n else -1
    return (first.name.p > second.name.p) - (first.name.p < second.name.p)


cdef inline Entry *_entries_of(const Buffer *b) noexcept nogil:
    return <Entry *>b.data


cdef inline int32_t _count_of(const Buffer *b) noexcept nogil:
    return <int32_t>(b.used // sizeof(Entry))


cdef int _sort(Cursor *c, Buffer *entries) noexcept nogil:
    """Brings the entries into the order of their names, of which each may be there once."""
    cdef Entry *all = _entries_of(entries)
    cdef int32_t i
    if entries.used == 0:
        return 0
    qsort(all, _count_of(entries), sizeof(Entry), _by_name)
    for i in range(1, _count_of(entries)):
        if same_span(&all[i - 1].name, &all[i].name):
            return fail_at(c, FAULT_DUPLICATE, all[i].name.p)
    return 0


# --- the decoder ----------------------------------------------------------------------------------

cdef class SimpleAvroDecoder(MessageDecoder):
    """Decodes messages of the Simple protocol's Avro encoding."""

    def __cinit__(self, *arguments, **options):
        self.memory.release = release_table

    def __dealloc__(self):
        buffer_free(&self.data)
        buffer_free(&self.old)
        buffer_free(&self.places)
        buffer_free(&self.columns)
        buffer_free(&self.text)

    cdef int message(self, Message *m, Cursor *c) noexcept nogil:
        cdef uint64_t type = 0, payload = 0
        cdef int64_t version = 0
        cdef const uint8_t *at = c.p
        cdef int read
        if m.value == NULL or m.value_size == 0:
            return fail(c, FAULT_EMPTY)
        if read_index(c, MESSAGE_INDEX + 1, &type) < 0:
            return -1
        if type != MESSAGE_INDEX:
            return fail_at(c, FAULT_UNION, at)
        if read_index(c, 4, &type) < 0:
            return -1
        at = c.p
        if read_index(c, 4, &payload) < 0:
            return -1
        if type != payload:
            return fail_at(c, FAULT_UNION, at)
        at = c.p
        if read_int(c, &version) < 0:
            return -1
        if version != VERSION:
            return fail_at(c, FAULT_VERSION, at)
        if type == DML:
            return _row(self, c)
        if type == WATERMARK:
            read = _watermark(self, c)
        elif type == DDL:
            read = _ddl(self, c)
        else:
            read = _bootstrap(self, c)
        if read == 0 and c.p != c.end:
            return fail(c, FAULT_TRAILING)
        return read


cdef int _watermark(SimpleAvroDecoder self, Cursor *c) noexcept nogil:
    cdef Row row
    cdef int64_t build_ts = 0
    row_init(&row, KIND_WATERMARK)
    if read_bounded(c, INT64_MAX, &row.commit_ts) < 0 or read_varint(c, &build_ts) < 0:
        return -1
    row.has = HAS_COMMIT_TS
    return self.out.add_row(c, &row)


cdef int _bootstrap(SimpleAvroDecoder self, Cursor *c) noexcept nogil:
    cdef Row row
    cdef SchemaFacts facts
    cdef int64_t build_ts = 0
    row_init(&row, KIND_SCHEMA)
    self.text.used = 0
    if read_varint(c, &build_ts) < 0 or put_literal(c, &self.text, b'{"tableSchema":', 15) < 0 or \
            put_schema(c, &self.text, &facts) < 0 or put_literal(c, &self.text, b"}", 1) < 0:
        return -1
    return _schema_row(self, c, &row, &facts)


cdef int _ddl(SimpleAvroDecoder self, Cursor *c) noexcept nogil:
    cdef Row row
    cdef Extra *extra
    cdef SchemaFacts facts, before
    cdef Span query
    cdef int64_t build_ts = 0
    cdef uint64_t type = 0, given = 0, given_before = 0
    row_init(&row, KIND_DDL)
    self.text.used = 0
    if read_index(c, 8, &type) < 0 or read_text(c, &query) < 0 or \
            read_bounded(c, INT64_MAX, &row.commit_ts) < 0 or \
            read_varint(c, &build_ts) < 0 or read_index(c, 2, &given) < 0:
        return -1
    row.has = HAS_COMMIT_TS
    if given and (put_literal(c, &self.text, b'{"tableSchema":', 15) < 0 or
                  put_schema(c, &self.text, &facts) < 0):
        return -1
    if read_index(c, 2, &given_before) < 0:
        return -1
    if given_before and (put_literal(c, &self.text, b',' if given else b'{', 1) < 0 or
                         put_literal(c, &self.text, b'"preTableSchema":', 17) < 0 or
                         put_schema(c, &self.text, &before) < 0):
        return -1
    extra = self.out.new_extra(&row)
    if extra == NULL or self.out.keep(&query, &extra.query) < 0:
        return fail(c, FAULT_MEMORY)
    extra.ddl_type = _ddl_types[type]
    if not given and not given_before:
        return self.out.add_row(c, &row)    # a statement on a whole database: no names
    if put_literal(c, &self.text, b"}", 1) < 0:
        return -1
    return _schema_row(self, c, &row, &facts if given else &before)


cdef int _schema_row(SimpleAvroDecoder self, Cursor *c, Row *row,
                     const SchemaFacts *facts) noexcept nogil:
    """Ends a row that brings the schema in `text` and is about the table of `facts`."""
    cdef Extra *extra = self.out.new_extra(row)
    cdef Span text, database = facts.database, table = facts.table
    text.p = self.text.data
    text.n = self.text.used
    if extra == NULL or self.out.keep(&text, &extra.schema) < 0:
        return fail(c, FAULT_MEMORY)
    if database.n == 0:
        database.p = NULL
    if table.n == 0:
        table.p = NULL
    row.names = self.out.intern_names(&database, &table)
    if row.names < 0:
        return fail(c, FAULT_MEMORY)
    row.table_id = facts.table_id
    row.schema_version = facts.version
    row.has |= HAS_TABLE_ID | HAS_SCHEMA_VERSION
    return self.out.add_row(c, row)


# --- rows ---
cdef int _row(SimpleAvroDecoder self, Cursor *c) noexcept nogil:
    cdef RowFacts f
    if _facts(self, c, &f) < 0:
        return -1
    return 0 if predicted_row(self, c, &f) else _general(self, c, &f)


cdef int _facts(SimpleAvroDecoder self, Cursor *c, RowFacts *f) noexcept nogil:
    """Everything up to the values. The names are not looked at yet, but for their sizes."""
    cdef uint64_t index = 0
    cdef int64_t number = 0
    f.known = <Table *>self.memory.last
    f.head.p = c.p
    if f.known != NULL and take(c, f.known.head.p, f.known.head.n):
        f.head.n = f.known.head.n
    else:
        f.known = NULL
        if read_sized(c, &f.database) < 0 or read_sized(c, &f.table) < 0:
            return -1
        f.head.n = <size_t>(c.p - f.head.p)
    if read_varint(c, &f.table_id) < 0 or read_index(c, 3, &index) < 0:
        return -1
    f.type = <int>index
    if read_bounded(c, INT64_MAX, &f.commit_ts) < 0 or read_varint(c, &number) < 0 or \
            read_bounded(c, INT64_MAX, &f.schema_version) < 0:
        return -1
    f.claim_check.n = 0
    f.handle_key_only = False
    f.has_checksum = False
    if TG_LIKELY(left(c) >= 3 and (c.p[0] | c.p[1] | c.p[2]) == 0):
        c.p += 3
        return 0
    if read_index(c, 2, &index) < 0 or (index and read_text(c, &f.claim_check) < 0):
        return -1
    if read_index(c, 2, &index) < 0 or (index and read_bool(c, &f.handle_key_only) < 0):
        return -1
    if read_index(c, 2, &index) < 0:
        return -1
    if index:
        f.has_checksum = True
        if read_int(c, &number) < 0 or read_bool(c, &f.checksum.corrupted) < 0 or \
                read_bounded(c, UINT32_MAX, &f.checksum.current) < 0 or \
                read_bounded(c, UINT32_MAX, &f.checksum.previous) < 0:
            return -1
        f.checksum.version = <int32_t>number
    return 0


# The general way: any columns.
cdef int _general(SimpleAvroDecoder self, Cursor *c, RowFacts *f) noexcept nogil:
    """Any row. The shape's columns are those of `data`, of a DELETE those of `old`."""
    cdef Row row
    cdef uint64_t has_data = 0, has_old = 0
    cdef const uint8_t *end = c.end
    cdef const uint8_t *values = c.p
    cdef Buffer *side = &self.old if f.type == DELETE else &self.data
    cdef ShapeColumn *columns
    cdef int32_t i, count
    self.data.used = 0
    self.old.used = 0
    if f.known != NULL:
        c.p = f.head.p
        read_sized(c, &f.database)
        read_sized(c, &f.table)
        c.p = values
    elif not tg_utf8_valid(f.database.p, f.database.n):
        return fail_at(c, FAULT_UTF8, f.database.p)
    elif not tg_utf8_valid(f.table.p, f.table.n):
        return fail_at(c, FAULT_UTF8, f.table.p)
    if read_index(c, 2, &has_data) < 0 or (has_data and _entries(self, c, &self.data) < 0) or \
            read_index(c, 2, &has_old) < 0 or (has_old and _entries(self, c, &self.old) < 0):
        return -1
    if c.p != end:
        return fail(c, FAULT_TRAILING)
    if (f.type == INSERT and self.old.used) or (f.type == DELETE and self.data.used):
        return fail_at(c, FAULT_COLUMNS, values)
    # A claim check's values are elsewhere, so that they need not be here.
    if f.claim_check.n == 0 and ((f.type != DELETE and not has_data) or
                                 (f.type != INSERT and not has_old)):
        return fail_at(c, FAULT_MISSING, values)
    if _sort(c, &self.data) < 0 or _sort(c, &self.old) < 0:
        return -1
    count = _count_of(side)
    if buffer_reserve(&self.columns, <size_t>count * sizeof(ShapeColumn)) < 0:
        return fail(c, FAULT_MEMORY)
    columns = <ShapeColumn *>self.columns.data
    for i in range(count):
        plain_column(&columns[i], &_entries_of(side)[i].name)
    row_init(&row, KIND_INSERT)
    if f.type != DELETE:
        row.has |= HAS_AFTER
        if _cells(self, c, &self.data, count, &self.out.after, &row) < 0:
            return -1
    if f.type != INSERT:
        row.kind = KIND_UPDATE if f.type == UPDATE else KIND_DELETE
        row.has |= HAS_BEFORE
        if _cells(self, c, &self.old, count, &self.out.before, &row) < 0:
            return -1
    c.p = end
    row.shape = self.out.register_shape(c, &f.database, &f.table, columns, count)
    if row.shape < 0 or end_row(self, c, f, &row) < 0:
        return -1
    learn_table(self, f, count)
    return 0


cdef int _entries(SimpleAvroDecoder self, Cursor *c, Buffer *entries) noexcept nogil:
    """A map, in blocks."""
    cdef Block block
    cdef const uint8_t *at
    cdef Entry *entry
    while True:
        at = c.p
        if read_block(c, &block) < 0:
            return -1
        if block.count == 0:
            return 0
        if block.count > MAX_COLUMNS or \
                <uint64_t>_count_of(entries) + block.count > MAX_COLUMNS:
            return fail_at(c, FAULT_COLUMNS, at)
        # A name's length and a union index take two bytes.
        if block.count > left(c) // 2:
            return fail_at(c, FAULT_LENGTH, at)
        if buffer_reserve(entries, block.count * sizeof(Entry)) < 0:
            return fail(c, FAULT_MEMORY)
        while block.count:
            entry = <Entry *>(entries.data + entries.used)
            if read_text(c, &entry.name) < 0:
                return -1
            entry.value = c.p
            if skip_value(c) < 0:
                return -1
            entries.used += sizeof(Entry)
            block.count -= 1
        if end_block(c, &block) < 0:
            return -1


cdef int _cells(SimpleAvroDecoder self, Cursor *c, const Buffer *side, int32_t count, Cells *cells,
                Row *row) noexcept nogil:
    """The cells of the row's columns from sorted entries, which may lack some of them in an
    update's `old`; zones go to the columns."""
    cdef ShapeColumn *columns = <ShapeColumn *>self.columns.data
    cdef const Entry *entries = _entries_of(side)
    cdef int32_t i, k = 0, present = _count_of(side)
    cdef size_t room = 2 * <size_t>(c.end - c.start) + INTEGER_ROOM * <size_t>count
    cdef uint8_t *missing = NULL
    cdef Span location
    if cells_reserve(cells, count) < 0 or buffer_reserve(&cells.text, room) < 0:
        return fail(c, FAULT_MEMORY)
    if present < count:
        missing = self.out.new_missing(row, count)
        if missing == NULL:
            return fail(c, FAULT_MEMORY)
    for i in range(count):
        if k == present or not same_span(&entries[k].name, &columns[i].name):
            if missing == NULL:
                break
            missing[i >> 3] |= <uint8_t>(1 << (i & 7))
            cell_null(cells)
            continue
        c.p = entries[k].value
        location.p = NULL
        if put_cell(c, cells, room, &location) < 0:
            return -1
        if location.p != NULL:
            if location.n == 0:
                return fail_at(c, FAULT_VALUE, entries[k].value)
            if not tg_utf8_valid(location.p, location.n):
                return fail_at(c, FAULT_UTF8, location.p)
            if columns[i].zone.n and not same_span(&columns[i].zone, &location):
                return fail_at(c, FAULT_COLUMNS, location.p)
            columns[i].type = TIMESTAMP
            columns[i].zone = location
        k += 1
    if k < present:
        return fail_at(c, FAULT_COLUMNS, entries[k].name.p)
    return 0
