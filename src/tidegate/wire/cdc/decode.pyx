"""The `cdc` binary format: a checksummed message of strings, in two profiles.

"document" is the layout of the format's document, "operations" that of its only implementation, whose
rows say what was done to them. What both leave open, and the choices made, is in
docs/protocols/cdc.md. A message decodes completely or not at all.
"""

cimport cython

from tidegate.model import ConfigError, Flag

from tidegate.wire.cdc.layout cimport *
from tidegate.wire.codec.prelude cimport *


_PROFILES = {None: PROFILE_ANY, "document": PROFILE_DOCUMENT, "operations": PROFILE_OPERATIONS}


# --- decoding ------------------------------------------------------------------------------------

# One value as it stands in a message; `type` is -1 in the profile "operations".
cdef struct Value:
    Span name
    Span data
    int32_t type


# How to read the value of one column of a known table.
cdef struct Reading:
    int32_t value       # its place among the message's values
    int32_t form
    int32_t code
    int32_t flags


# A table as it was seen before: everything that says what its values are, and what it comes to.
cdef struct Table:
    KnownTable known    # its hash is that of `key`
    Buffer key
    Buffer readings     # Reading, in the order of the shape
    int32_t shape


cdef void _release_table(KnownTable *known) noexcept nogil:
    buffer_free(&(<Table *>known).key)
    buffer_free(&(<Table *>known).readings)
    free(known)


cdef inline bint _has_key(const Table *table, const Buffer *key) noexcept nogil:
    return table.key.used == key.used and memcmp(table.key.data, key.data, key.used) == 0


# What a column's JSON says; TiDB's own ColumnInfo has `name` and `type` as objects.
cdef struct Info:
    ShapeColumn column
    bint has_mysql_flags
    int64_t mysql_flags
    bint binary_charset


cdef void _sub_cursor(Cursor *c, const Span *text, Cursor *out) noexcept nogil:
    """A cursor over a part of the same message."""
    out[0] = c[0]
    out.p = text.p
    out.end = text.p + text.n


cdef int _fail_as(Cursor *c, const Cursor *part) noexcept nogil:
    return fail_at(c, part.fault, part.fault_at)


cdef int _read_string(Cursor *c, Span *out) noexcept nogil:
    cdef uint64_t length = 0
    if read_uvarint(c, &length) < 0:
        return -1
    return read_bytes(c, length, out)


cdef int _read_name(Cursor *c, Span *out) noexcept nogil:
    if _read_string(c, out) < 0:
        return -1
    if not tg_utf8_valid(out.p, out.n):
        return fail_at(c, FAULT_UTF8, out.p)
    return 0


cdef int _put_integer(Cursor *c, const Reading *reading, const Span *text,
                      Cells *cells) noexcept nogil:
    cdef uint8_t *into = cells.text.data + cells.text.used
    cdef uint64_t natural = 0
    cdef int64_t number = 0
    cdef int bits = bits_of(reading.code)
    if reading.form == FORM_UNSIGNED or \
            (reading.flags < 0 and tg_parse_i64(text.p, text.n, &number) < 0):
        # Without flags nobody knows whether the column has a sign.
        if tg_parse_u64(text.p, text.n, &natural) < 0:
            return fail_at(c, FAULT_NUMBER, text.p)
        if not unsigned_fits(natural, bits):
            return fail_at(c, FAULT_RANGE, text.p)
        cells.text.used += tg_format_u64(natural, into)
        return 0
    if tg_parse_i64(text.p, text.n, &number) < 0:
        return fail_at(c, FAULT_NUMBER, text.p)
    if reading.form == FORM_YEAR:
        if not year_fits(number):
            return fail_at(c, FAULT_RANGE, text.p)
    elif not signed_fits(number, bits) and \
            not (reading.flags < 0 and number > 0 and unsigned_fits(<uint64_t>number, bits)):
        return fail_at(c, FAULT_RANGE, text.p)
    cells.text.used += tg_format_i64(number, into)
    return 0


cdef int _put_real(Cursor *c, const Span *text, Cells *cells) noexcept nogil:
    cdef double real = 0
    cdef int length
    if tg_parse_double(text.p, text.n, &real) < 0:
        return fail_at(c, FAULT_NUMBER, text.p)
    length = tg_shift_decimal(text.p, text.n, cells.text.data + cells.text.used, text.n + NUMBER_ROOM)
    if length < 0:
        return fail_at(c, FAULT_NUMBER, text.p)
    cells.text.used += length
    return 0


cdef int _put_text(Cursor *c, const Reading *reading, const Span *text,
                   Cells *cells) noexcept nogil:
    """The next cell from a value's text; binary columns are handled by the callers. There is room."""
    cdef int form = reading.form
    if form == FORM_INTEGER or form == FORM_UNSIGNED or form == FORM_YEAR:
        if _put_integer(c, reading, text, cells) < 0:
            return -1
    elif form == FORM_FLOAT or form == FORM_DOUBLE:
        if _put_real(c, text, cells) < 0:
            return -1
    else:
        if form == FORM_DECIMAL:
            if not tg_decimal_valid(text.p, text.n, text.p + text.n):
                return fail_at(c, FAULT_NUMBER, text.p)
        elif form == FORM_VECTOR:
            if not tg_vector_valid(text.p, text.n):
                return fail_at(c, FAULT_NUMBER, text.p)
        elif form == FORM_DATE:
            if not tg_date_valid(text.p, text.n):
                return fail_at(c, FAULT_TEMPORAL, text.p)
        elif form == FORM_DATETIME:
            if not tg_datetime_valid(text.p, text.n):
                return fail_at(c, FAULT_TEMPORAL, text.p)
        elif form == FORM_TIME:
            if not tg_time_valid(text.p, text.n):
                return fail_at(c, FAULT_TEMPORAL, text.p)
        elif form == FORM_NULL:
            return fail_at(c, FAULT_TYPE, text.p)
        elif not tg_utf8_valid(text.p, text.n):
            return fail_at(c, FAULT_UTF8, text.p)
        tg_copy(cells.text.data + cells.text.used, text.p, text.n, text.p + text.n)
        cells.text.used += text.n
    cell_end(cells)
    return 0


@cython.final
cdef class CdcDecoder(MessageDecoder):
    """Decodes messages of one profile, or of both: how long a message is tells which it has."""
    cdef int profile
    cdef Table *table       # of the row being read
    cdef Buffer values      # Value
    cdef Buffer infos       # Span
    cdef Buffer key         # Table.key of the row being read
    cdef Buffer columns     # ShapeColumn
    cdef Buffer places      # int32

    def __init__(self, out=None, *, encoding=None):
        if encoding not in _PROFILES:
            raise ConfigError("encoding", "cdc has the profiles document and operations")
        self.profile = _PROFILES[encoding]
        self.memory.release = _release_table

    def __dealloc__(self):
        buffer_free(&self.values)
        buffer_free(&self.infos)
        buffer_free(&self.key)
        buffer_free(&self.columns)
        buffer_free(&self.places)

    cdef int message(self, Message *m, Cursor *c) noexcept nogil:
        cdef uint32_t magic = 0
        cdef uint8_t version = 0, kind = 0
        cdef uint64_t ts = 0
        if m.value == NULL or m.value_size == 0:
            return fail(c, FAULT_EMPTY)
        if read_be32(c, &magic) < 0:
            return -1
        if magic != MAGIC:
            return fail_at(c, FAULT_MAGIC, c.start)
        if read_u8(c, &version) < 0:
            return -1
        if version != VERSION:
            return fail_at(c, FAULT_VERSION, c.p - 1)
        if read_be64(c, &ts) < 0:
            return -1
        if ts > INT64_MAX:
            return fail_at(c, FAULT_RANGE, c.p - 8)
        if read_u8(c, &kind) < 0:
            return -1
        if kind == TYPE_DDL:
            return self._read_ddl(c, ts)
        if kind == TYPE_DML:
            return self._read_dml(c, ts)
        return fail_at(c, FAULT_UNKNOWN_KIND, c.p - 1)

    cdef int _open_content(self, Cursor *c) noexcept nogil:
        """Behind this, c is over the content only: its length and checksum are right."""
        cdef uint32_t length = 0, checksum = 0
        cdef Cursor tail
        cdef const uint8_t *at = c.p
        if read_be32(c, &length) < 0:
            return -1
        if <size_t>length + 4 > left(c):
            return fail_at(c, FAULT_LENGTH, at)
        if <size_t>length + 4 < left(c):
            return fail_at(c, FAULT_TRAILING, c.p + length + 4)
        tail = c[0]
        tail.p = c.p + length
        read_be32(&tail, &checksum)
        if tg_crc32c(c.p, length) != checksum:
            return fail_at(c, FAULT_CHECKSUM, c.p + length)
        c.end = c.p + length
        return 0

    cdef int _read_ddl(self, Cursor *c, uint64_t ts) noexcept nogil:
        cdef Row row
        cdef Extra *extra
        cdef Span database, table, job, query, word
        cdef int64_t code = -1
        if self._open_content(c) < 0:
            return -1
        if _read_name(c, &database) < 0 or _read_name(c, &table) < 0 or _read_name(c, &job) < 0:
            return -1
        if c.p != c.end:
            return fail(c, FAULT_TRAILING)
        if self._read_job(c, &job, &query, &word, &code) < 0:
            return -1
        if database.n == 0:
            database.p = NULL
        if table.n == 0:
            table.p = NULL
        row_init(&row, KIND_DDL)
        row.has = HAS_COMMIT_TS
        row.commit_ts = <int64_t>ts
        row.names = self.out.intern_names(&database, &table)
        extra = self.out.new_extra(&row)
        if row.names < 0 or extra == NULL or self.out.keep(&query, &extra.query) < 0 or \
                self.out.keep(&word, &extra.ddl_type) < 0:
            return fail(c, FAULT_MEMORY)
        extra.ddl_code = <int32_t>code
        return self.out.add_row(c, &row)

    cdef int _read_job(self, Cursor *c, const Span *job, Span *query, Span *word, int64_t *code) noexcept nogil:
        """A DDL job is TiDB's JSON of it, of which the query and the type count, or plain SQL."""
        cdef Cursor part
        cdef Span name
        cdef bint first = True, has_query = False, has_type = False
        cdef int more
        word[0] = ddl_word_of(0)[0]
        query[0] = job[0]
        _sub_cursor(c, job, &part)
        if job.n == 0 or json_peek(&part) != c'{':
            return 0
        part.p += 1
        while True:
            more = json_member(&part, &first, &self.out.scratch, &name)
            if more < 0:
                return _fail_as(c, &part)
            if more == 0:
                break
            if span_is(&name, b"query", 5):
                if has_query:
                    return fail_at(c, FAULT_DUPLICATE, part.p)
                has_query = True
                if json_span(&part, &self.out.scratch, query) < 0:
                    return _fail_as(c, &part)
            elif span_is(&name, b"type", 4):
                if has_type:
                    return fail_at(c, FAULT_DUPLICATE, part.p)
                has_type = True
                if json_peek(&part) == c'"':
                    if json_span(&part, &self.out.scratch, word) < 0:
                        return _fail_as(c, &part)
                else:
                    if json_i64(&part, code) < 0:
                        return _fail_as(c, &part)
                    if not 0 <= code[0] <= 255:
                        return fail_at(c, FAULT_RANGE, part.p)
                    word[0] = ddl_word_of(<uint8_t>code[0])[0]
            elif json_skip(&part) < 0:
                return _fail_as(c, &part)
        if json_finish(&part) < 0:
            return _fail_as(c, &part)
        if not has_query:
            return fail_at(c, FAULT_MISSING, job.p)
        return 0

    # --- rows ---

    cdef int _profile_of(self, const Cursor *c) noexcept nogil:
        """Which profile the rest of a DML message has, by where its length stands.

        Both cannot fit: the length of the one would be the number of rows of the other, and rows
        take more than a byte.
        """
        cdef Cursor peek = c[0]
        cdef uint32_t first = 0, second = 0
        if self.profile != PROFILE_ANY:
            return self.profile
        if left(&peek) >= 8:
            read_be32(&peek, &first)
            read_be32(&peek, &second)
            if <size_t>first + 8 != left(c) and <size_t>second + 12 == left(c):
                return PROFILE_OPERATIONS
        return PROFILE_DOCUMENT

    cdef int _read_dml(self, Cursor *c, uint64_t ts) noexcept nogil:
        cdef uint32_t rows = 0, i
        cdef const uint8_t *at = c.p
        if self._profile_of(c) == PROFILE_DOCUMENT:
            if self._open_content(c) < 0 or self._read_row(c, ts, False) < 0:
                return -1
        else:
            if read_be32(c, &rows) < 0 or self._open_content(c) < 0:
                return -1
            for i in range(rows):
                if c.p == c.end:
                    return fail_at(c, FAULT_LENGTH, at)
                if self._read_row(c, ts, True) < 0:
                    return -1
        if c.p != c.end:
            return fail(c, FAULT_TRAILING)
        return 0

    cdef int _read_row(self, Cursor *c, uint64_t ts, bint operations) noexcept nogil:
        cdef Row row
        cdef Span database, table
        cdef uint32_t operation = DML_INSERT
        if _read_name(c, &database) < 0 or _read_name(c, &table) < 0:
            return -1
        if operations and read_be32(c, &operation) < 0:
            return -1
        if operation == DML_INSERT:
            row_init(&row, KIND_INSERT)
        elif operation == DML_UPDATE:
            row_init(&row, KIND_UPDATE)
        elif operation == DML_DELETE:
            row_init(&row, KIND_DELETE)
        else:
            return fail_at(c, FAULT_UNKNOWN_KIND, c.p - 4)
        if self._read_parts(c, operations) < 0 or self._find_table(c, &database, &table) < 0:
            return -1
        row.has = HAS_COMMIT_TS | (HAS_BEFORE if operation == DML_DELETE else HAS_AFTER)
        row.commit_ts = <int64_t>ts
        row.shape = self.table.shape
        if self._put_cells(c, &self.out.before if operation == DML_DELETE else &self.out.after, operations) < 0:
            return -1
        return self.out.add_row(c, &row)

    cdef int _read_parts(self, Cursor *c, bint operations) noexcept nogil:
        """The values and what is said of the columns, into self.values and self.infos."""
        cdef uint32_t count = 0, i
        cdef uint8_t type = 0
        cdef Value *value
        cdef const uint8_t *at = c.p
        self.values.used = 0
        self.infos.used = 0
        if read_be32(c, &count) < 0:
            return -1
        # A value takes two bytes at least, in the profile "document" three.
        if count > left(c) // 2:
            return fail_at(c, FAULT_LENGTH, at)
        if count == 0 or count > MAX_COLUMNS:
            return fail_at(c, FAULT_COLUMNS, at)
        if buffer_reserve(&self.values, count * sizeof(Value)) < 0:
            return fail(c, FAULT_MEMORY)
        for i in range(count):
            value = <Value *>self.values.data + i
            value.type = -1
            if _read_name(c, &value.name) < 0:
                return -1
            if not operations:
                if read_u8(c, &type) < 0:
                    return -1
                value.type = type
            if _read_string(c, &value.data) < 0:
                return -1
        self.values.used = count * sizeof(Value)
        at = c.p
        if read_be32(c, &count) < 0:
            return -1
        if count > left(c):
            return fail_at(c, FAULT_LENGTH, at)
        if count > MAX_COLUMNS:
            return fail_at(c, FAULT_COLUMNS, at)
        if buffer_reserve(&self.infos, count * sizeof(Span)) < 0:
            return fail(c, FAULT_MEMORY)
        for i in range(count):
            if _read_string(c, <Span *>self.infos.data + i) < 0:
                return -1
        self.infos.used = count * sizeof(Span)
        return 0

    cdef int _put_cells(self, Cursor *c, Cells *cells, bint operations) noexcept nogil:
        cdef const Reading *readings = <const Reading *>self.table.readings.data
        cdef const Value *value
        cdef int32_t i, count = <int32_t>(self.table.readings.used // sizeof(Reading))
        if cells_reserve(cells, count) < 0:
            return fail(c, FAULT_MEMORY)
        for i in range(count):
            value = <const Value *>self.values.data + readings[i].value
            if buffer_reserve(&cells.text, 2 * value.data.n + NUMBER_ROOM) < 0:
                return fail(c, FAULT_MEMORY)
            if operations:
                if self._put_json(c, &readings[i], value, cells) < 0:
                    return -1
            elif value.type == TYPE_NULL:
                if value.data.n:
                    return fail_at(c, FAULT_TYPE, value.data.p)
                cell_null(cells)
            elif value.type != readings[i].code:
                return fail_at(c, FAULT_TYPE, value.data.p)
            elif readings[i].form == FORM_BINARY:
                cells.text.used += tg_base64_encode(
                    value.data.p, value.data.n, cells.text.data + cells.text.used
                )
                cell_end(cells)
            elif _put_text(c, &readings[i], &value.data, cells) < 0:
                return -1
        return 0

    cdef int _put_json(self, Cursor *c, const Reading *reading, const Value *value, Cells *cells) noexcept nogil:
        """The next cell from {"value": ...}: numbers are numbers, everything else is a string."""
        cdef Cursor part
        cdef Span name, text
        cdef bint first = True, is_null = False, is_number = False, number_wanted
        cdef int more, next_byte, status
        cdef int form = reading.form
        _sub_cursor(c, &value.data, &part)
        if json_open(&part, c'{') < 0:
            return _fail_as(c, &part)
        more = json_member(&part, &first, &self.out.scratch, &name)
        if more < 0:
            return _fail_as(c, &part)
        if more == 0 or not span_is(&name, b"value", 5):
            return fail_at(c, FAULT_MISSING, value.data.p)
        next_byte = json_peek(&part)
        if next_byte == c'"':
            status = json_span(&part, &self.out.scratch, &text)
        elif next_byte == c'n':
            is_null = json_is(&part, b"null", 4)
            status = 0 if is_null else fail(&part, FAULT_TYPE)
        else:
            is_number = True
            status = json_number(&part, &text)
        if status < 0:
            return _fail_as(c, &part)
        more = json_member(&part, &first, &self.out.scratch, &name)
        if more > 0:
            return fail_at(c, FAULT_TRAILING, part.p)
        if more < 0 or json_finish(&part) < 0:
            return _fail_as(c, &part)
        if is_null:
            cell_null(cells)
            return 0
        number_wanted = form == FORM_INTEGER or form == FORM_UNSIGNED or form == FORM_YEAR or \
            form == FORM_FLOAT or form == FORM_DOUBLE
        if form != FORM_UNKNOWN and form != FORM_DECIMAL and is_number != number_wanted:
            return fail_at(c, FAULT_TYPE, value.data.p)
        if form == FORM_BINARY:
            if tg_base64_decode(text.p, text.n, cells.text.data + cells.text.used) < 0:
                return fail_at(c, FAULT_BASE64, value.data.p)
            tg_copy(cells.text.data + cells.text.used, text.p, text.n, text.p + text.n)
            cells.text.used += text.n
            cell_end(cells)
            return 0
        if _put_text(&part, reading, &text, cells) < 0:
            # An unescaped text is not where the message has it.
            return fail_at(c, part.fault, value.data.p)
        return 0

    # --- what values are ---

    cdef int _add_to_key(self, const Span *text) noexcept nogil:
        if buffer_add_uvarint(&self.key, text.n) < 0:
            return -1
        return buffer_add(&self.key, text.p, text.n)

    cdef int _make_key(self, const Span *database, const Span *table) noexcept nogil:
        """Everything that decides what the row's values are."""
        cdef const Value *values = <const Value *>self.values.data
        cdef const Span *infos = <const Span *>self.infos.data
        cdef size_t count = self.values.used // sizeof(Value)
        cdef size_t info_count = self.infos.used // sizeof(Span)
        cdef size_t i
        self.key.used = 0
        if self._add_to_key(database) < 0 or self._add_to_key(table) < 0 or \
                buffer_add_uvarint(&self.key, count) < 0:
            return -1
        for i in range(count):
            if self._add_to_key(&values[i].name) < 0:
                return -1
            # Where nothing else says what a column is, the type of its value does.
            if info_count == 0 and buffer_add_uvarint(&self.key, <uint64_t>(values[i].type + 1)) < 0:
                return -1
        for i in range(info_count):
            if self._add_to_key(&infos[i]) < 0:
                return -1
        return 0

    cdef int _find_table(self, Cursor *c, const Span *database, const Span *table) noexcept nogil:
        """self.table for the row that was read."""
        cdef Table *fresh = <Table *>self.memory.last
        cdef KnownTable *known
        cdef uint64_t h
        if self._make_key(database, table) < 0:
            return fail(c, FAULT_MEMORY)
        self.table = fresh
        if fresh != NULL and _has_key(fresh, &self.key):
            return 0
        h = tg_hash(self.key.data, self.key.used, 0)
        known = first_known(&self.memory, h)
        while known != NULL:
            if known.hash == h and _has_key(<Table *>known, &self.key):
                self.table = <Table *>known
                self.memory.last = known
                return 0
            known = known.next
        fresh = <Table *>calloc(1, sizeof(Table))
        if fresh == NULL:
            return fail(c, FAULT_MEMORY)
        fresh.known.hash = h
        if self._learn_table(c, fresh, database, table) < 0 or \
                buffer_add(&fresh.key, self.key.data, self.key.used) < 0:
            _release_table(&fresh.known)
            return fail(c, FAULT_MEMORY)
        fresh.known.size = sizeof(Table) + fresh.key.size + fresh.readings.size
        remember_table(&self.memory, &fresh.known)
        self.table = fresh
        return 0

    cdef int _learn_table(self, Cursor *c, Table *known, const Span *database, const Span *table) noexcept nogil:
        cdef const Value *values = <const Value *>self.values.data
        cdef const Span *infos = <const Span *>self.infos.data
        cdef int32_t count = <int32_t>(self.values.used // sizeof(Value))
        cdef int32_t info_count = <int32_t>(self.infos.used // sizeof(Span))
        cdef int32_t i, place, used = 0
        cdef Info info
        cdef Reading reading
        cdef ShapeColumn *columns
        self.columns.used = 0
        known.readings.used = 0
        if buffer_reserve(&self.columns, count * sizeof(ShapeColumn)) < 0 or \
                buffer_reserve(&known.readings, count * sizeof(Reading)) < 0 or \
                self._index_names(c, values, count) < 0:
            return fail(c, FAULT_MEMORY)
        columns = <ShapeColumn *>self.columns.data
        if info_count == 0:
            for i in range(count):
                memset(&columns[i], 0, sizeof(ShapeColumn))
                columns[i].name = values[i].name
                columns[i].code = values[i].type if values[i].type != TYPE_NULL else -1
                columns[i].flags = -1
                reading.value = i
                if self._add_reading(c, known, &columns[i], &reading, values[i].data.p) < 0:
                    return -1
            used = count
        for i in range(info_count):
            if self._read_info(c, &infos[i], &info) < 0:
                return -1
            place = self._take_name(&info.column.name, values)
            if place == -2:
                return fail_at(c, FAULT_DUPLICATE, infos[i].p)
            if place < 0:
                continue
            columns[used] = info.column
            reading.value = place
            if self._add_reading(c, known, &columns[used], &reading, infos[i].p) < 0:
                return -1
            used += 1
        if used != count:
            # A value of a column of which nothing is said.
            return fail_at(c, FAULT_COLUMNS, infos[0].p)
        known.shape = self.out.register_shape(c, database, table, columns, count)
        return -1 if known.shape < 0 else 0

    cdef int _add_reading(self, Cursor *c, Table *known, const ShapeColumn *column, Reading *reading,
                          const uint8_t *at) noexcept nogil:
        reading.code = column.code
        reading.flags = column.flags
        reading.form = FORM_UNKNOWN
        if column.code >= 0:
            reading.form = form_of(column.code, column.flags if column.flags >= 0 else 0)
            if reading.form == FORM_UNKNOWN:
                return fail_at(c, FAULT_TYPE, at)
        if buffer_add(&known.readings, <const uint8_t *>reading, sizeof(Reading)) < 0:
            return fail(c, FAULT_MEMORY)
        return 0

    cdef int _index_names(self, Cursor *c, const Value *values, int32_t count) noexcept nogil:
        """Fills self.places, a hash table of the values by name; a name twice is a fault."""
        cdef size_t size = 16, slot
        cdef int32_t *places
        cdef int32_t i
        while size < <size_t>count * 2:
            size *= 2
        self.places.used = 0
        if buffer_reserve(&self.places, size * 4) < 0:
            return fail(c, FAULT_MEMORY)
        self.places.used = size * 4
        places = <int32_t *>self.places.data
        memset(places, 0xff, size * 4)
        for i in range(count):
            slot = tg_hash(values[i].name.p, values[i].name.n, 0) & (size - 1)
            while places[slot] >= 0:
                if values[places[slot]].name.n == values[i].name.n and \
                        memcmp(values[places[slot]].name.p, values[i].name.p, values[i].name.n) == 0:
                    return fail_at(c, FAULT_DUPLICATE, values[i].name.p)
                slot = (slot + 1) & (size - 1)
            places[slot] = i
        return 0

    cdef int32_t _take_name(self, const Span *name, const Value *values) noexcept nogil:
        """The place of the value with this name, once: -1 if there is none, -2 if it is taken."""
        cdef size_t size = self.places.used // 4
        cdef size_t slot = tg_hash(name.p, name.n, 0) & (size - 1)
        cdef int32_t *places = <int32_t *>self.places.data
        cdef int32_t place
        while places[slot] != -1:
            # Taken ones are kept below -1, as -2 - place.
            place = places[slot] if places[slot] >= 0 else -2 - places[slot]
            if values[place].name.n == name.n and memcmp(values[place].name.p, name.p, name.n) == 0:
                if places[slot] < 0:
                    return -2
                places[slot] = -2 - place
                return place
            slot = (slot + 1) & (size - 1)
        return -1

    cdef int _read_info(self, Cursor *c, const Span *text, Info *info) noexcept nogil:
        cdef Cursor part
        memset(info, 0, sizeof(Info))
        info.column.code = -1
        info.column.flags = -1
        _sub_cursor(c, text, &part)
        if self._read_info_members(&part, info) < 0 or json_finish(&part) < 0:
            return _fail_as(c, &part)
        if info.column.name.p == NULL:
            return fail_at(c, FAULT_MISSING, text.p)
        if info.has_mysql_flags and info.column.flags < 0:
            info.column.flags = self._flags_of_mysql(info)
        if info.column.flags >= 0 and info.column.flags & COLUMN_HANDLE_KEY:
            info.column.key = 1
        return 0

    cdef int32_t _flags_of_mysql(self, const Info *info) noexcept nogil:
        """The Open Protocol's flags for those of TiDB's ColumnInfo."""
        cdef int64_t mysql_flags = info.mysql_flags
        cdef int32_t flags = 0
        if info.binary_charset:
            flags |= COLUMN_BINARY
        if mysql_flags & MYSQL_PRIMARY_KEY:
            flags |= COLUMN_HANDLE_KEY | COLUMN_PRIMARY_KEY
        if mysql_flags & MYSQL_UNIQUE_KEY:
            flags |= COLUMN_UNIQUE_KEY
        if mysql_flags & MYSQL_MULTIPLE_KEY:
            flags |= COLUMN_MULTIPLE_KEY
        if not mysql_flags & MYSQL_NOT_NULL:
            flags |= COLUMN_NULLABLE
        if mysql_flags & MYSQL_UNSIGNED:
            flags |= COLUMN_UNSIGNED
        return flags

    cdef int _read_info_members(self, Cursor *c, Info *info) noexcept nogil:
        cdef Span name
        cdef bint first = True, yes = False
        cdef int64_t number = 0
        cdef int more, seen = 0, member
        if json_open(c, c'{') < 0:
            return -1
        while True:
            more = json_member(c, &first, &self.out.scratch, &name)
            if more <= 0:
                return more
            if span_is(&name, b"name", 4):
                member = 1
                if json_peek(c) == c'{':
                    more = self._read_ci_string(c, &info.column.name)
                else:
                    more = json_span(c, &self.out.scratch, &info.column.name)
            elif span_is(&name, b"type", 4):
                member = 2
                if json_peek(c) == c'{':
                    more = self._read_field_type(c, info)
                else:
                    more = json_span(c, &self.out.scratch, &info.column.type)
            elif span_is(&name, b"mysqlType", 9):
                member = 4
                more = json_span(c, &self.out.scratch, &info.column.type)
            elif span_is(&name, b"code", 4):
                member = 8
                more = json_i64(c, &number)
                if more == 0 and not 0 <= number <= 255:
                    return fail(c, FAULT_RANGE)
                info.column.code = <int32_t>number
            elif span_is(&name, b"flags", 5):
                member = 16
                more = json_i64(c, &number)
                if more == 0 and not 0 <= number <= INT32_MAX:
                    return fail(c, FAULT_RANGE)
                info.column.flags = <int32_t>number
            elif span_is(&name, b"key", 3):
                member = 32
                more = json_bool(c, &yes)
                info.column.key = yes
            elif span_is(&name, b"zone", 4):
                member = 64
                more = json_span(c, &self.out.scratch, &info.column.zone)
            else:
                member = 0
                more = json_skip(c)
            if more < 0:
                return -1
            if seen & member:
                return fail(c, FAULT_DUPLICATE)
            seen |= member

    cdef int _read_ci_string(self, Cursor *c, Span *out) noexcept nogil:
        """TiDB's case-insensitive name: {"O": as written, "L": in lower case}."""
        cdef Span name
        cdef bint first = True
        cdef int more
        if json_open(c, c'{') < 0:
            return -1
        while True:
            more = json_member(c, &first, &self.out.scratch, &name)
            if more <= 0:
                return more
            if span_is(&name, b"O", 1):
                if json_span(c, &self.out.scratch, out) < 0:
                    return -1
            elif json_skip(c) < 0:
                return -1

    cdef int _read_field_type(self, Cursor *c, Info *info) noexcept nogil:
        """TiDB's FieldType, of which the type, the flags and the character set count."""
        cdef Span name, charset
        cdef bint first = True
        cdef int64_t number = 0
        cdef int more
        if json_open(c, c'{') < 0:
            return -1
        while True:
            more = json_member(c, &first, &self.out.scratch, &name)
            if more <= 0:
                return more
            if span_is(&name, b"Tp", 2):
                if json_i64(c, &number) < 0:
                    return -1
                if not 0 <= number <= 255:
                    return fail(c, FAULT_RANGE)
                info.column.code = <int32_t>number
            elif span_is(&name, b"Flag", 4):
                info.has_mysql_flags = True
                if json_i64(c, &info.mysql_flags) < 0:
                    return -1
            elif span_is(&name, b"Charset", 7):
                if json_span(c, &self.out.scratch, &charset) < 0:
                    return -1
                info.binary_charset = span_is(&charset, b"binary", 6)
            elif json_skip(c) < 0:
                return -1
