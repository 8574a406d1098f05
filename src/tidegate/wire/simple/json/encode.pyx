"""Writes Simple's JSON: docs/protocols/simple.md."""

from tidegate.model import MySQLType
from tidegate.wire.simple.schema import go_json

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.simple.encode cimport SimpleEncoder, SimplePlan
from tidegate.wire.simple.json.layout cimport *


# --- the encoder ----------------------------------------------------------------------------------

cdef class SimpleJsonPlan(SimplePlan):
    cdef tg_written *columns    # in the order of their names
    cdef size_t size            # of all literals
    cdef bytes literals
    cdef bytes head             # `{"version":1,"database":"d","table":"t"`
    cdef bytes tail             # `,"buildTs":1,"schemaVersion":2`

    def __cinit__(self, shape, version, database, table, build_ts, time_zone):
        cdef int32_t i
        cdef const uint8_t *literal
        self.head = b'{"version":1'
        for name, value in ((b',"database":', database), (b',"table":', table)):
            if value:
                self.head += name + go_json(value)
        self.tail = b',"buildTs":%d,"schemaVersion":%d' % (build_ts, version)
        self.columns = <tg_written *>malloc((len(shape.columns) + 1) * sizeof(tg_written))
        if self.columns == NULL:
            raise MemoryError
        ordered = sorted(enumerate(shape.columns), key=lambda column: column[1].name.encode())
        texts = []
        for i, (index, column) in enumerate(ordered):
            bare = b"," + go_json(column.name) + b":"
            text = bare + b'"'
            is_moment = column.code == MySQLType.TIMESTAMP
            if is_moment:
                zone = go_json(column.zone or time_zone)
                text = bare + b'{"location":' + zone + b',"value":"'
            self.columns[i].index = index
            self.columns[i].is_key = column.key
            self.columns[i].has_zone = is_moment
            self.columns[i].size = len(text)
            self.columns[i].bare = len(bare)
            texts.append(text)
        self.literals = b"".join(texts) + bytes(32)     # tg_put_members reads on behind them
        self.size = len(self.literals)
        literal = self.literals
        for i in range(len(ordered)):
            self.columns[i].literal = literal
            literal += self.columns[i].size

    def __dealloc__(self):
        free(self.columns)


cdef const char *_COMMIT_TS[3]
_COMMIT_TS[0] = b',"type":"INSERT","commitTs":'
_COMMIT_TS[1] = b',"type":"UPDATE","commitTs":'
_COMMIT_TS[2] = b',"type":"DELETE","commitTs":'


cdef inline int _put(Buffer *b, bytes text) noexcept:
    return buffer_add(b, <const uint8_t *><const char *>text, len(text))


cdef int _put_side(Buffer *b, const tg_written *columns, int32_t count, size_t literals,
                   const CellsView *view, int64_t row, const Span *missing,
                   bint keys_only) noexcept nogil:
    """The object `data` or `old`; columns whose bit is set in `missing` are not carried.

    literals: the bytes of all literals."""
    cdef tg_cells cells
    cdef const tg_written *column = columns
    cdef const tg_written *behind = columns + count
    cdef size_t began = b.used
    cdef size_t room
    cdef Span text
    cells.ends = view.ends + view.lists[row]
    cells.valid = view.valid
    cells.valid_base = view.valid_base + view.lists[row]
    cells.text = view.text
    cells.limit = view.limit
    cells.missing = missing.p
    cells.missing_size = missing.n
    cells.keys_only = keys_only
    room = literals + <size_t>(cells.ends[count] - cells.ends[0]) + 4 * <size_t>count + 32
    while True:
        if buffer_reserve(b, room) < 0:
            return -1
        cells.dst = b.data + b.used
        column += tg_put_members(&cells, column, <size_t>(behind - column))
        b.used = <size_t>(cells.dst - b.data)
        if column == behind:
            break
        # What was left: text that needs escapes, and what stands at the end of the batch's memory.
        if tg_is_carried(&cells, column):
            if tg_is_null(&cells, column.index):
                if buffer_add(b, column.literal, column.bare) < 0 or \
                        buffer_add(b, b"null", 4) < 0:
                    return -1
            else:
                text.p = cells.text + cells.ends[column.index]
                text.n = <size_t>(cells.ends[column.index + 1] - cells.ends[column.index])
                if buffer_add(b, column.literal, column.size) < 0 or \
                        json_put_body(b, text.p, text.n, cells.limit, STYLE_ENCODING_JSON) < 0 or \
                        buffer_add(b, b'"}', 1 + column.has_zone) < 0:
                    return -1
        column += 1
    if b.used == began:
        return buffer_add(b, b"{}", 2)
    b.data[began] = c'{'    # instead of the comma before the first member
    return buffer_add_byte(b, c'}')


cdef class SimpleJsonEncoder(SimpleEncoder):
    """Encodes change batches as messages of the Simple protocol's JSON encoding."""

    cdef SimplePlan row_plan(self, object shape, int64_t version, str database, str table):
        return SimpleJsonPlan(shape, version, database, table, self.options.build_ts, self.options.time_zone)

    cdef int write_row(self, SimplePlan general, int64_t row, int kind, const Span *location,
                       bint keys_only, bint says_keys_only) except -1:
        cdef SimpleJsonPlan plan = general
        cdef Buffer *b = &self.messages.value
        cdef bint corrupted
        cdef int64_t table_id = 0, current = 0, previous = 0
        cdef Span missing
        cdef bint failed
        missing.p = NULL
        missing.n = 0
        failed = _put(b, plan.head) < 0
        if long_at(&self.reader.table_id, row, &table_id) and table_id:
            failed |= buffer_add(b, b',"tableID":', 11) < 0 or put_i64(b, table_id) < 0
        failed |= buffer_add(b, <const uint8_t *>_COMMIT_TS[kind], 28) < 0 or put_i64(b, self.commit_ts(row)) < 0 or \
            _put(b, plan.tail) < 0
        if location.p != NULL:
            failed |= buffer_add(b, b',"claimCheckLocation":', 22) < 0 or json_put_string(
                b, location.p, location.n, location.p + location.n, STYLE_ENCODING_JSON
            ) < 0
        # TiCDC marks claim checks so too.
        if location.p != NULL or says_keys_only:
            failed |= buffer_add(b, b',"handleKeyOnly":true', 21) < 0
        if long_at(&self.reader.current, row, &current) and \
                long_at(&self.reader.previous, row, &previous):
            corrupted = self.reader.flags[row] & FLAG_CORRUPTED != 0
            failed |= buffer_add(b, b',"checksum":{"version":', 23) < 0 or \
                put_i64(b, self.checksum_versions[row]) < 0 or \
                (buffer_add(b, b',"corrupted":true,"current":', 28) if corrupted else
                 buffer_add(b, b',"corrupted":false,"current":', 29)) < 0 or put_i64(b, current) < 0 or \
                buffer_add(b, b',"previous":', 12) < 0 or put_i64(b, previous) < 0 or \
                buffer_add_byte(b, c'}') < 0
        if kind != KIND_DELETE:
            failed |= buffer_add(b, b',"data":', 8) < 0 or \
                _put_side(b, plan.columns, plan.count, plan.size, &self.reader.after, row,
                          &missing, keys_only) < 0
        if kind != KIND_INSERT:
            failed |= buffer_add(b, b',"old":', 7) < 0
            if view_has(&self.reader.before, row):
                string_at(&self.reader.missing, row, &missing)
                failed |= _put_side(b, plan.columns, plan.count, plan.size, &self.reader.before,
                                    row, &missing, keys_only) < 0
            else:
                failed |= buffer_add(b, b"{}", 2) < 0
        failed |= buffer_add_byte(b, c'}') < 0
        if failed:
            raise MemoryError
        return 0

    cdef bytes watermark(self, int64_t commit_ts):
        return b'{"version":1,"type":"WATERMARK","commitTs":%d,"buildTs":%d}' % (
            commit_ts, self.options.build_ts)

    cdef bytes ddl(self, str word, str query, int64_t commit_ts, dict schemas):
        text = b'{"version":1,"type":%b,"sql":%b,"commitTs":%d,"buildTs":%d' % (
            go_json(word), go_json(query), commit_ts, self.options.build_ts)
        for member, schema in schemas.items():
            text += b',"%b":%b' % (member.encode(), go_json(schema))
        return text + b"}"

    cdef bytes bootstrap(self, dict schema):
        return b'{"version":1,"type":"BOOTSTRAP","commitTs":0,"buildTs":%d,"tableSchema":%b}' % (
            self.options.build_ts, go_json(schema))
