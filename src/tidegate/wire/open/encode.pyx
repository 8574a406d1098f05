"""Writes Open Protocol messages, the bytes of either architecture of TiCDC.

Authority: TiCDC's Open Protocol document, and the bytes of its encoders where the document is silent or
wrong (docs/protocols/open-protocol.md says where).
"""

from tidegate.model import EncodeError, Flag, action_code

from tidegate.wire.codec.encoder cimport RECORD_OVERHEAD, MessageEncoder, RowPlan
from tidegate.wire.codec.prelude cimport *
from tidegate.wire.open.layout cimport *


# --- encoding ------------------------------------------------------------------------------------

OPTIONS = frozenset(
    {
        "claim_check",
        "compression",
        "delete_only_output_handle_key_columns",
        "generation",
        "large_message_handle",
        "mix_tables",
        "only_output_updated_columns",
        "output_old_value",
    }
)


cdef enum:
    STYLE_NEW = 0               # jsoniter: no HTML or separators escaped, neither \b nor \f
    UNFIT = -2                  # a value that its column cannot hold


# Which columns of a row are written.
cdef enum Choice:
    ALL_COLUMNS = 0
    HANDLE_COLUMNS = 1
    UPDATED_COLUMNS = 2


# A column as it is written: the bytes before the value, and how the value is spelled.
cdef struct Slot:
    const uint8_t *literal      # `,"name":{"t":3,"h":true,"f":11,"v":`, padded
    size_t size
    int32_t column              # its place in the shape
    int32_t code
    uint8_t reading
    uint8_t handle


cdef bytes _json_string(str text, int style):
    cdef bytes plain = text.encode()
    cdef Buffer buffer
    cdef const uint8_t *p = <const uint8_t *><const char *>plain
    memset(&buffer, 0, sizeof(Buffer))
    try:
        if json_put_string(&buffer, p, len(plain), p + len(plain), style) < 0:
            raise MemoryError
        return (<const char *>buffer.data)[:buffer.used]
    finally:
        buffer_free(&buffer)


cdef class OpenPlan(RowPlan):
    """The columns of a shape in the order in which they are written."""
    cdef Slot *slots
    cdef int32_t handles        # how many columns make up the handle key
    cdef int32_t rowid          # the column that is the row's integer handle, -1: not known
    cdef list literals

    def __cinit__(self, shape, int style):
        cdef int32_t i
        cdef Slot *slot
        cdef bytes literal
        self.protocol = "open-protocol"
        self.shape = shape
        self.count = <int32_t>len(shape.columns)
        self.rowid = -1
        self.literals = []
        self.slots = <Slot *>malloc((<size_t>self.count + 1) * sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError
        places = list(range(self.count))
        if style != STYLE_NEW:
            # encoding/json writes a map in the order of its keys' bytes.
            places.sort(key=lambda place: shape.columns[place].name.encode())
        for i, place in enumerate(places):
            column = shape.columns[place]
            if column.code is None:
                raise self.refusal("the type of the column is not known", place)
            flags = column.flags or 0
            slot = &self.slots[i]
            slot.column = place
            slot.code = column.code
            slot.reading = <uint8_t>reading_of(slot.code, flags)
            slot.handle = column.key or (flags & Flag.HANDLE_KEY) != 0
            self.handles += slot.handle
            literal = b',%b:{"t":%d,%b"f":%d,"v":' % (
                _json_string(column.name, style), slot.code, b'"h":true,' if slot.handle else b"", flags
            )
            slot.size = len(literal)
            literal += bytes(32)
            self.literals.append(literal)
            slot.literal = <const uint8_t *><const char *>literal
            # Of a table whose primary key is one integer column, that is TiDB's own handle of a row,
            # unless the key is NONCLUSTERED, which the wire does not tell.
            if slot.handle and flags & Flag.PRIMARY_KEY and sure_digits(slot.code):
                self.rowid = place
        if self.handles != 1:
            self.rowid = -1

    def __dealloc__(self):
        free(self.slots)


cdef inline int _put(Buffer *b, const char *text, size_t n) noexcept nogil:
    return buffer_add(b, <const uint8_t *>text, n)


cdef inline void _set_be64(uint8_t *place, uint64_t value) noexcept nogil:
    cdef int i
    for i in range(8):
        place[i] = <uint8_t>(value >> (56 - 8 * i))


cdef class OpenEncoder(MessageEncoder):
    """Writes change batches as Open Protocol messages, rows of a table joined as TiCDC joins them."""
    cdef OpenPlan plan          # of the row being written
    cdef dict heads             # `,"scm":"d","tbl":"t"` by database and table
    cdef bytes head             # the last one, and its names
    cdef bytes database
    cdef bytes table
    cdef int style
    cdef bint new
    cdef bint old_value
    cdef bint only_updated
    cdef bint delete_handle_only
    cdef bint mix_tables
    cdef Buffer aside           # bytes of a binary value
    cdef Buffer quoted          # the same in Go's escapes
    cdef int32_t unfit          # the column that could not be written
    # The message being put together: it goes on while rows fit.
    cdef int32_t events
    cdef int32_t first_row
    cdef size_t key_start
    cdef size_t value_start
    cdef bytes joined_head      # the table of its rows

    def __init__(self, options, compress=None):
        MessageEncoder.__init__(self, options, compress)
        self.protocol = "open-protocol"
        self.heads = {}
        self.new = options.generation == "new"
        self.style = STYLE_NEW if self.new else STYLE_ENCODING_JSON
        self.old_value = options.output_old_value
        self.only_updated = options.only_output_updated_columns
        self.delete_handle_only = options.delete_only_output_handle_key_columns
        self.mix_tables = options.mix_tables

    def __dealloc__(self):
        buffer_free(&self.aside)
        buffer_free(&self.quoted)

    cdef int begin(self) except -1:
        self.events = 0
        return 0

    cdef int finish(self) except -1:
        return self.finish_message(self.messages)

    cdef RowPlan new_plan(self, object shape):
        return OpenPlan(shape, self.style)

    # --- messages ---

    cdef int finish_message(self, MessageBuilder messages) except -1:
        if self.events:
            messages.end(True, self.first_row, self.events)
            self.events = 0
        return 0

    cdef int begin_event(self, MessageBuilder messages) except -1:
        """Room for the lengths, which are known at the end."""
        if buffer_reserve(&messages.key, 8) < 0 or buffer_reserve(&messages.value, 8) < 0:
            raise MemoryError
        messages.key.used += 8
        messages.value.used += 8
        return 0

    cdef int end_event(self, MessageBuilder messages, int64_t row, size_t key_at, size_t value_at,
                       bint alone) except -1:
        """The event written from key_at and value_at on joins the message, or begins another one."""
        cdef size_t key_end = messages.key.used
        cdef size_t value_end = messages.value.used
        cdef size_t size = key_end - key_at + value_end - value_at
        _set_be64(messages.key.data + key_at, key_end - key_at - 8)
        _set_be64(messages.value.data + value_at, value_end - value_at - 8)
        if self.events and (
            alone
            or self.events >= self.max_events
            or (self.joined_head is not self.head and not self.mix_tables)
            or key_at - self.key_start + value_at - self.value_start + RECORD_OVERHEAD + size > self.max_bytes
        ):
            messages.key.used = key_at
            messages.value.used = value_at
            self.finish_message(messages)
            messages.key.used = key_end
            messages.value.used = value_end
        if self.events == 0:
            if buffer_reserve(&messages.key, 8) < 0:
                raise MemoryError
            memmove(messages.key.data + key_at + 8, messages.key.data + key_at, key_end - key_at)
            _set_be64(messages.key.data + key_at, VERSION)
            messages.key.used += 8
            self.key_start = key_at
            self.value_start = value_at
            self.first_row = <int32_t>row
            self.joined_head = self.head
        self.events += 1
        if alone:
            self.finish_message(messages)
        return 0

    # --- keys ---

    cdef int find_head(self, BatchReader reader, int64_t row, bint is_ddl) except -1:
        """self.head for the names of this row."""
        cdef Span database, table
        string_at(&reader.database, row, &database)
        string_at(&reader.table, row, &table)
        if not is_ddl and (database.n == 0 or table.n == 0):
            raise EncodeError("open-protocol", f"row {row} of the batch names no table")
        if self.head is not None and len(self.database) == <Py_ssize_t>database.n and \
                len(self.table) == <Py_ssize_t>table.n and \
                memcmp(<const char *>self.database, database.p, database.n) == 0 and \
                memcmp(<const char *>self.table, table.p, table.n) == 0:
            return 0
        self.database = (<const char *>database.p)[:database.n]
        self.table = (<const char *>table.p)[:table.n]
        self.head = self.heads.get((self.database, self.table))
        if self.head is None:
            self.head = b"".join(
                b',"%b":%b' % (member, _json_string(name.decode(), self.style))
                for member, name in ((b"scm", self.database), (b"tbl", self.table))
                # The classic encoder leaves out what is empty: a database's DDL has no table.
                if name or self.new
            )
            self.heads[self.database, self.table] = self.head
        return 0

    cdef int put_key(self, MessageBuilder messages, int64_t commit_ts, int kind) except -1:
        cdef Buffer *b = &messages.key
        if _put(b, b'{"ts":', 6) < 0 or put_i64(b, commit_ts) < 0:
            raise MemoryError
        if kind != RESOLVED and _put(b, <const char *>self.head, len(self.head)) < 0:
            raise MemoryError
        return 0

    cdef int put_row_key(self, BatchReader reader, MessageBuilder messages, int64_t row, int kind,
                         int64_t commit_ts, bint only_handle_key, const Span *location) except -1:
        cdef Buffer *b = &messages.key
        cdef int64_t number = 0
        cdef bint failed = False
        self.put_key(messages, commit_ts, ROW)
        if not self.new:
            if self.plan.rowid >= 0 and self.row_id(reader, row, kind, &number) and number != 0:
                failed |= _put(b, b',"rid":', 7) < 0 or put_i64(b, number) < 0
            if long_at(&reader.table_id, row, &number):
                failed |= _put(b, b',"ptn":', 7) < 0 or put_i64(b, number) < 0
        failed |= _put(b, b',"t":1', 6) < 0
        if location.p != NULL:
            # The new architecture writes `"ohk":true` before it, which means the opposite.
            if self.new:
                failed |= _put(b, b',"ohk":false', 12) < 0
            failed |= _put(b, b',"ccl":', 7) < 0
            failed |= json_put_string(b, location.p, location.n, location.p + location.n, self.style) < 0
        elif only_handle_key:
            failed |= _put(b, b',"ohk":true', 11) < 0
        if self.new and long_at(&reader.table_id, row, &number):
            failed |= _put(b, b',"ptn":', 7) < 0 or put_i64(b, number) < 0
        if failed or _put(b, b"}", 1) < 0:
            raise MemoryError
        return 0

    cdef bint row_id(self, BatchReader reader, int64_t row, int kind, int64_t *out) noexcept nogil:
        """TiDB's integer handle of the row: 64 bits, signed whatever the column is."""
        cdef Span cell
        cdef uint64_t unsigned = 0
        if not view_cell(&reader.before if kind == KIND_DELETE else &reader.after, row, self.plan.rowid, &cell):
            return False
        if digits_i64(cell.p, cell.n, out) == 0:
            return True
        if digits_u64(cell.p, cell.n, &unsigned) < 0:
            return False
        out[0] = <int64_t>unsigned
        return True

    # --- rows ---

    cdef int add_row(self, int64_t row, int kind) except -1:
        cdef BatchReader reader = self.reader
        cdef MessageBuilder messages = self.messages
        cdef int64_t commit_ts = self.commit_ts(row)
        cdef size_t key_at = messages.key.used
        cdef size_t value_at = messages.value.used
        cdef int32_t flags = reader.flags[row]
        cdef Span location
        self.find_head(reader, row, False)
        self.plan = <OpenPlan>self.plan_of(row)
        self.check_row(self.plan, row, kind)
        if not string_at(&reader.claim_check, row, &location) or not flags & FLAG_CLAIM_CHECK:
            location.p = NULL
        self.begin_event(messages)
        self.put_row_key(reader, messages, row, kind, commit_ts, (flags & FLAG_HANDLE_KEY_ONLY) != 0, &location)
        self.put_row_value(reader, messages, row, kind, ALL_COLUMNS)
        self.compress_value(value_at + 8)
        if self.is_too_large(messages, key_at, value_at):
            self.write_large(reader, messages, row, kind, commit_ts, key_at, value_at)
        self.end_event(messages, row, key_at, value_at, False)
        return 0

    cdef bint is_too_large(self, MessageBuilder messages, size_t key_at, size_t value_at):
        """Whether the event would not even fit alone: with the version, and both lengths."""
        return messages.key.used - key_at + messages.value.used - value_at + 8 + RECORD_OVERHEAD > self.max_bytes

    cdef int write_large(self, BatchReader reader, MessageBuilder messages, int64_t row, int kind,
                         int64_t commit_ts, size_t key_at, size_t value_at) except -1:
        """Puts the handle key in the place of a row that is too large, as the options ask."""
        cdef Span location
        cdef bytes kept
        cdef size_t size = messages.key.used - key_at + messages.value.used - value_at + 8 + RECORD_OVERHEAD
        if self.options.large_message_handle is None or \
                reader.flags[row] & (FLAG_HANDLE_KEY_ONLY | FLAG_CLAIM_CHECK):
            raise self.too_large(self.plan, size)
        if self.plan.handles == 0:
            raise self.plan.refusal("the row is too large, and its table has no handle key")
        location.p = NULL
        location.n = 0
        if self.options.large_message_handle == "claim-check":
            _set_be64(messages.key.data + key_at, messages.key.used - key_at - 8)
            _set_be64(messages.value.data + value_at, messages.value.used - value_at - 8)
            kept = self.keep_elsewhere(
                VERSION.to_bytes(8) + (<const char *>messages.key.data)[key_at:messages.key.used],
                (<const char *>messages.value.data)[value_at:messages.value.used],
            )
            location.p = <const uint8_t *><const char *>kept
            location.n = len(kept)
        messages.key.used = key_at + 8
        messages.value.used = value_at + 8
        self.put_row_key(reader, messages, row, kind, commit_ts, True, &location)
        self.put_row_value(reader, messages, row, kind, HANDLE_COLUMNS)
        self.compress_value(value_at + 8)
        if self.is_too_large(messages, key_at, value_at):
            raise self.plan.refusal(
                "the row is too large, and its handle key alone does not fit either"
            )
        return 0

    cdef int put_row_value(self, BatchReader reader, MessageBuilder messages, int64_t row, int kind,
                           int choice) except -1:
        cdef int written
        self.unfit = -1
        if kind == KIND_DELETE and self.delete_handle_only:
            choice = HANDLE_COLUMNS
            if self.plan.handles == 0:
                raise self.plan.refusal("it has no handle key, and nothing else may be written of a delete")
        with nogil:
            written = self.put_sides(reader, &messages.value, row, kind, choice)
        if written == UNFIT:
            raise self.plan.refusal("a value does not fit its column", self.unfit)
        if written < 0:
            raise MemoryError
        return 0

    cdef int put_sides(self, BatchReader reader, Buffer *b, int64_t row, int kind, int choice) noexcept nogil:
        cdef int written
        cdef size_t mark
        if kind == KIND_DELETE:
            if _put(b, b'{"d":{', 6) < 0:
                return -1
            written = self.put_section(reader, b, &reader.before, row, choice)
            if written < 0:
                return written
            return _put(b, b"}}", 2)
        if _put(b, b'{"u":{', 6) < 0:
            return -1
        written = self.put_section(reader, b, &reader.after, row, choice)
        if written < 0:
            return written
        if kind == KIND_UPDATE and self.old_value and view_has(&reader.before, row):
            mark = b.used
            if _put(b, b'},"p":{', 7) < 0:
                return -1
            if self.only_updated:
                choice |= UPDATED_COLUMNS
            written = self.put_section(reader, b, &reader.before, row, choice)
            if written < 0:
                return written
            # The classic encoder leaves an empty `p` out.
            if written == 0 and not self.new:
                b.used = mark
        return _put(b, b"}}", 2)

    cdef int put_section(self, BatchReader reader, Buffer *b, const CellsView *view, int64_t row,
                         int choice) noexcept nogil:
        """How many columns were written; -1 without memory, UNFIT for a value that does not fit."""
        cdef Slot *slot = self.plan.slots
        cdef Slot *end = slot + self.plan.count
        cdef size_t lead = 1    # the first column has no comma before it
        cdef int count = 0
        cdef int failed
        cdef Span cell, missing
        cdef bint there
        missing.p = NULL
        missing.n = 0
        if view == &reader.before:
            string_at(&reader.missing, row, &missing)
        while slot < end:
            if choice & HANDLE_COLUMNS and not slot.handle:
                slot += 1
                continue
            if missing.p != NULL and <size_t>(slot.column >> 3) < missing.n and \
                    (missing.p[slot.column >> 3] >> (slot.column & 7)) & 1:
                slot += 1
                continue
            there = view_cell(view, row, slot.column, &cell)
            if choice & UPDATED_COLUMNS and not self.is_updated(reader, row, slot.column, there, &cell):
                slot += 1
                continue
            if not there:
                cell.n = 0
            if buffer_reserve(b, slot.size + 6 * cell.n + 64) < 0:
                return -1
            tg_copy(b.data + b.used, slot.literal + lead, slot.size - lead, slot.literal + slot.size + 32)
            b.used += slot.size - lead
            lead = 0
            count += 1
            if not there:
                memcpy(b.data + b.used, b"null}", 5)
                b.used += 5
            else:
                failed = self.put_value(b, slot, &cell, view.limit)
                if failed < 0:
                    self.unfit = slot.column
                    return failed
                b.data[b.used] = c'}'
                b.used += 1
            slot += 1
        return count

    cdef bint is_updated(self, BatchReader reader, int64_t row, int32_t column, bint there,
                         const Span *cell) noexcept nogil:
        cdef Span after
        if view_cell(&reader.after, row, column, &after) != there:
            return True
        return there and (after.n != cell.n or memcmp(after.p, cell.p, cell.n) != 0)

    cdef int put_value(self, Buffer *b, const Slot *slot, const Span *cell, const uint8_t *limit) noexcept nogil:
        """The value, with room for it and 32 bytes more reserved (six bytes for each of its own)."""
        cdef uint8_t *place = b.data + b.used
        cdef int reading = slot.reading
        cdef size_t n
        cdef int64_t size
        if reading == READ_INTEGER:
            n = open_integer(cell.p, cell.p + cell.n, limit, place)
            if n == 0 or n != cell.n or not (n <= <size_t>sure_digits(slot.code)
                                             or integer_fits(cell.p, n, slot.code)):
                return UNFIT
            b.used += n
            return 0
        if reading == READ_FLOAT or reading == READ_DOUBLE:
            size = tg_go_json_float(cell.p, cell.n, reading == READ_FLOAT, self.new, place)
            if size < 0:
                return UNFIT
            b.used += <size_t>size
            return 0
        if reading == READ_NULL:
            return UNFIT
        place[0] = c'"'
        if reading <= READ_TIME or reading == READ_ANY:
            n = tg_copy_writable_run(cell.p, cell.p + cell.n, limit, place + 1)
            if TG_LIKELY(n == cell.n):
                place[n + 1] = c'"'
                b.used += n + 2
                return 0
            b.used += 1
            if json_put_body(b, cell.p, cell.n, limit, self.style) < 0:
                return -1
        elif reading == READ_BASE64_TEXT:
            b.used += 1 + tg_base64_encode(cell.p, cell.n, place + 1)
        else:
            self.aside.used = 0
            if buffer_reserve(&self.aside, cell.n) < 0:
                return -1
            size = tg_base64_decode(cell.p, cell.n, self.aside.data)
            if size < 0:
                return UNFIT
            if reading == READ_BASE64:
                memcpy(place + 1, cell.p, cell.n)
                b.used += 1 + cell.n
            else:
                if buffer_reserve(&self.quoted, 4 * <size_t>size) < 0:
                    return -1
                n = tg_go_quote(self.aside.data, <size_t>size, self.quoted.data)
                b.used += 1
                if json_put_body(b, self.quoted.data, n, self.quoted.data + n, self.style) < 0:
                    return -1
        if buffer_reserve(b, 32) < 0:
            return -1
        b.data[b.used] = c'"'
        b.used += 1
        return 0

    # --- DDL and watermarks ---

    cdef int add_ddl(self, int64_t row) except -1:
        cdef BatchReader reader = self.reader
        cdef MessageBuilder messages = self.messages
        cdef int64_t commit_ts = self.commit_ts(row)
        cdef size_t key_at = messages.key.used
        cdef size_t value_at = messages.value.used
        cdef Buffer *b = &messages.value
        cdef Span query, word
        if not string_at(&reader.query, row, &query):
            raise EncodeError("open-protocol", f"the DDL in row {row} of the batch has no query")
        code = reader.ddl_code(row)
        if code is None:
            string_at(&reader.ddl_type, row, &word)
            code = action_code(
                (<const char *>word.p)[:word.n].decode(), (<const char *>query.p)[:query.n].decode()
            )
        self.find_head(reader, row, True)
        self.begin_event(messages)
        self.put_key(messages, commit_ts, DDL)
        if _put(&messages.key, b',"t":2}', 7) < 0 or _put(b, b'{"q":', 5) < 0 or \
                json_put_string(b, query.p, query.n, query.p + query.n, self.style) < 0 or \
                _put(b, b',"t":', 5) < 0 or put_i64(b, 0 if code is None else code) < 0 or \
                _put(b, b"}", 1) < 0:
            raise MemoryError
        self.compress_value(value_at + 8)
        self.end_event(messages, row, key_at, value_at, True)
        return 0

    cdef int add_watermark(self, int64_t row) except -1:
        cdef MessageBuilder messages = self.messages
        cdef int64_t commit_ts = self.commit_ts(row)
        cdef size_t key_at = messages.key.used
        cdef size_t value_at = messages.value.used
        self.begin_event(messages)
        self.put_key(messages, commit_ts, RESOLVED)
        if _put(&messages.key, b',"t":3}', 7) < 0:
            raise MemoryError
        self.end_event(messages, row, key_at, value_at, True)
        return 0
