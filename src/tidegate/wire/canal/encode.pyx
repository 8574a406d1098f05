"""Writes Canal-JSON: one message per row, DDL statement or watermark.

Authority: TiCDC's Canal-JSON document and the bytes of its encoders; docs/protocols/canal-json.md says
where they differ.
"""

from tidegate.model import (
    Flag,
    MySQLType,
    SchemaNotSeen,
    UnsupportedByProtocol,
    action_code,
    canal_ddl_type,
    java_sql_type,
    parse_type,
    type_name,
)

from tidegate.wire.canal.rules cimport *
from tidegate.wire.codec.encoder cimport RECORD_OVERHEAD, MessageEncoder, RowPlan
from tidegate.wire.codec.prelude cimport *


# --- encoding ------------------------------------------------------------------------------------

OPTIONS = frozenset(
    {
        "generation",
        "only_output_updated_columns",
        "delete_only_output_handle_key_columns",
        "enable_tidb_extension",
        "content_compatible",
        "compression",
        "large_message_handle",
        "claim_check",
        "claim_check_raw_value",
    }
)
"""The options of EncodeOptions that Canal-JSON knows. Both generations write the same bytes."""


cdef enum:
    WRITTEN = 0
    NO_MEMORY = -1
    BAD_VALUE = -2      # Encoder.bad_column says where


cdef struct WriteColumn:
    Span literal            # ,"name":
    canal_rule rule         # of its values
    # sqlType where it depends on the value: up to `most`, and above it.
    Span most
    Span usual
    Span promoted


# The columns that a message carries: all, or those of the handle key.
cdef struct View:
    int32_t count
    int32_t *columns
    # sqlType, cut where a number depends on a value, then mysqlType up to the value of `old`.
    Span *segments
    int32_t *varying        # the column whose number stands behind each segment but the last
    int32_t varying_count


cdef bytes _quoted(object text):
    """A JSON string as easyjson spells it."""
    cdef Buffer b
    cdef bytes raw = text.encode()
    cdef const uint8_t *p = <const uint8_t *><const char *>raw
    memset(&b, 0, sizeof(Buffer))
    if json_put_string(&b, p, len(raw), p + len(raw), STYLE_EASYJSON) < 0:
        raise MemoryError
    try:
        return (<const char *>b.data)[:b.used]
    finally:
        buffer_free(&b)


def _type_text(column, shape, bint with_parameters) -> str:
    """mysqlType: the name alone, or with its parameters in so far as they are known."""
    parsed = parse_type(column.type)
    if parsed.code == MySQLType.UNSPECIFIED:
        return column.type
    if with_parameters:
        if parsed.params:
            return column.type
        declared = None if shape.schema is None else shape.schema.column(column.name)
        if declared is not None:
            return declared.full_type
    return type_name(parsed.code, parsed.flags, zerofill=parsed.zerofill)


def _in_primary_key(column) -> bool:
    return column.key if column.flags is None else bool(column.flags & Flag.PRIMARY_KEY)


def _in_handle_key(column) -> bool:
    return column.key or bool((column.flags or 0) & Flag.HANDLE_KEY)


cdef class CanalPlan(RowPlan):
    """The bytes between the values of a shape's rows."""
    cdef Arena arena
    cdef WriteColumn *columns
    cdef View whole
    cdef View handle
    cdef Span heads[3]          # by kind: from the opening brace to the value of `es`

    def __cinit__(self, shape, bint with_parameters):
        cdef int32_t i
        self.protocol = "canal-json"
        self.shape = shape
        self.count = len(shape.columns)
        self.columns = <WriteColumn *>self._take(self.count * sizeof(WriteColumn))
        types = []
        codes = []
        for i, column in enumerate(shape.columns):
            if column.type is None:
                raise SchemaNotSeen(shape.database, shape.table, shape=shape.id)
            types.append(_type_text(column, shape, with_parameters))
            codes.append(self._set_column(i, column))
        names = ",".join(
            _quoted(column.name).decode() for column in shape.columns if _in_primary_key(column)
        ).encode()
        for kind, word in ((KIND_INSERT, b"INSERT"), (KIND_UPDATE, b"UPDATE"), (KIND_DELETE, b"DELETE")):
            self.heads[<int>kind] = self._keep(
                b'{"id":0,"database":%b,"table":%b,"pkNames":[%b],"isDdl":false,"type":"%b","es":'
                % (_quoted(shape.database), _quoted(shape.table), names, word)
            )
        every = list(range(self.count))
        handle = [i for i in every if _in_handle_key(shape.columns[i])]
        self._set_view(&self.whole, every, types, codes)
        # Where no key is known, everything is one.
        self._set_view(&self.handle, handle or every, types, codes)

    def __dealloc__(self):
        arena_free(&self.arena)

    cdef void *_take(self, size_t n) except NULL:
        cdef void *place = arena_take(&self.arena, n)
        if place == NULL:
            raise MemoryError
        memset(place, 0, n)
        return place

    cdef Span _keep(self, bytes text) except *:
        cdef Span kept
        if arena_keep(&self.arena, <const uint8_t *><const char *>text, len(text), &kept) < 0:
            raise MemoryError
        return kept

    cdef object _set_column(self, int32_t i, object column):
        """Gives the text of its sqlType, or None where that depends on the value."""
        cdef WriteColumn *out = &self.columns[i]
        parsed = parse_type(column.type)
        code = parsed.code if column.code is None else column.code
        flags = parsed.flags if column.flags is None else column.flags
        out.literal = self._keep(b",%b:" % _quoted(column.name))
        set_rule(&out.rule, code, flags)
        usual = java_sql_type(code, flags, None)
        promoted = java_sql_type(code, flags, str(2**64 - 1))
        if usual == promoted:
            return b"%d" % usual
        out.usual = self._keep(b"%d" % usual)
        out.promoted = self._keep(b"%d" % promoted)
        out.most = self._keep(b"%d" % ((<object>1 << (bits_of(code) - 1)) - 1))
        return None

    cdef int _set_view(self, View *view, list columns, list types, list codes) except -1:
        cdef int32_t i
        cdef bytes text = b""
        view.count = len(columns)
        view.columns = <int32_t *>self._take(view.count * sizeof(int32_t))
        view.segments = <Span *>self._take((view.count + 1) * sizeof(Span))
        view.varying = <int32_t *>self._take(view.count * sizeof(int32_t))
        for i, column in enumerate(columns):
            view.columns[i] = column
            text += b"%b%b:" % (b"," if i else b"", _quoted(self.shape.columns[column].name))
            if codes[column] is None:
                view.segments[view.varying_count] = self._keep(text)
                view.varying[view.varying_count] = column
                view.varying_count += 1
                text = b""
            else:
                text += codes[column]
        entries = b",".join(
            b"%b:%b" % (_quoted(self.shape.columns[column].name), _quoted(types[column]))
            for column in columns
        )
        view.segments[view.varying_count] = self._keep(
            b'%b},"mysqlType":{%b},"old":' % (text, entries)
        )
        return 0


cdef inline int _put_literal(Buffer *b, const Span *literal) noexcept nogil:
    """Copies what an arena keeps, in whole blocks: 16 bytes behind it may be read."""
    if buffer_reserve(b, literal.n) < 0:
        return -1
    tg_copy(b.data + b.used, literal.p, literal.n, literal.p + literal.n + 16)
    b.used += literal.n
    return 0


cdef inline int _put(Buffer *b, const char *text, size_t n) noexcept nogil:
    return buffer_add(b, <const uint8_t *>text, n)


cdef inline bint _exceeds(const Span *text, const Span *most) noexcept nogil:
    """Whether a text of digits is a larger number."""
    return text.n > most.n or (text.n == most.n and memcmp(text.p, most.p, most.n) > 0)


cdef class CanalEncoder(MessageEncoder):
    """Writes change batches as Canal-JSON, a message an event."""
    cdef bint extension
    cdef bint only_updated
    cdef bint delete_handle_only
    cdef Buffer middle          # from behind `es` to the content of sqlType: the same for all rows
    cdef Buffer bytes           # of a binary value, or a number being shifted
    cdef Buffer latin           # the same as text
    cdef int32_t bad_column

    def __init__(self, options, compress=None):
        MessageEncoder.__init__(self, options, compress)
        self.protocol = "canal-json"
        self.extension = options.enable_tidb_extension
        self.only_updated = options.only_output_updated_columns or options.content_compatible
        self.delete_handle_only = options.delete_only_output_handle_key_columns
        if options.large_message_handle is not None and not self.extension:
            raise UnsupportedByProtocol(
                "canal-json",
                f"the option large-message-handle={options.large_message_handle} without the TiDB extension",
                instead="Set enable-tidb-extension",
            )
        text = b',"ts":%d,"sql":"","sqlType":{' % (options.build_ts or 0)
        if _put(&self.middle, text, len(text)) < 0:
            raise MemoryError

    def __dealloc__(self):
        buffer_free(&self.middle)
        buffer_free(&self.bytes)
        buffer_free(&self.latin)

    cdef RowPlan new_plan(self, object shape):
        return CanalPlan(shape, self.options.content_compatible)

    # --- rows --------------------------------------------------------------------------------------

    cdef int add_row(self, int64_t row, int kind) except -1:
        cdef BatchReader reader = self.reader
        cdef MessageBuilder messages = self.messages
        cdef CanalPlan plan = <CanalPlan>self.plan_of(row)
        cdef int64_t commit_ts = self.commit_ts(row)
        cdef size_t start = messages.value.used
        cdef View *view = &plan.whole
        cdef int32_t flags = reader.flags[row]
        cdef Span location
        self.check_row(plan, row, kind)
        string_at(&reader.claim_check, row, &location)
        if not self.extension and (flags & (FLAG_HANDLE_KEY_ONLY | FLAG_CLAIM_CHECK)):
            raise plan.refusal("only the TiDB extension can say that a row is not whole")
        if kind == KIND_DELETE and self.delete_handle_only:
            view = &plan.handle
        self._write(messages, plan, reader, row, kind, commit_ts, view,
                    (flags & FLAG_HANDLE_KEY_ONLY) != 0, &location)
        self.compress_value(start)
        if messages.value.used - start + RECORD_OVERHEAD > self.max_bytes:
            self._encode_large(messages, plan, reader, row, kind, commit_ts, start)
        messages.end(False, <int32_t>row, 1)
        return 0

    cdef int _encode_large(self, MessageBuilder messages, CanalPlan plan, BatchReader reader,
                           int64_t row, int kind, int64_t commit_ts, size_t start) except -1:
        """Puts the handle key in the place of the row that begins at start, or refuses it."""
        cdef size_t size = messages.value.used - start
        cdef Span location
        cdef bytes text
        cdef bint handle_only = self.options.large_message_handle == "handle-key-only"
        location.p = NULL
        location.n = 0
        if self.options.large_message_handle == "claim-check":
            text = self.keep_elsewhere(
                None, (<const char *>messages.value.data)[start:messages.value.used]
            )
            location.p = <const uint8_t *><const char *>text
            location.n = len(text)
        elif not handle_only:
            raise self.too_large(plan, size + RECORD_OVERHEAD)
        messages.value.used = start
        self._write(messages, plan, reader, row, kind, commit_ts, &plan.handle, handle_only, &location)
        self.compress_value(start)
        size = messages.value.used - start
        if size + RECORD_OVERHEAD > self.max_bytes:
            raise self.too_large(plan, size + RECORD_OVERHEAD)
        return 0

    cdef int _write(self, MessageBuilder messages, CanalPlan plan, BatchReader reader, int64_t row,
                    int kind, int64_t commit_ts, const View *view, bint handle_only,
                    const Span *location) except -1:
        cdef int written = self._write_row(
            &messages.value, plan, reader, row, kind, commit_ts, view, handle_only, location
        )
        if written == NO_MEMORY:
            raise MemoryError
        if written == BAD_VALUE:
            raise plan.refusal("a value does not fit its column", self.bad_column)
        return 0

    cdef int _write_row(self, Buffer *b, CanalPlan plan, BatchReader reader, int64_t row, int kind,
                        int64_t commit_ts, const View *view, bint handle_only,
                        const Span *location) noexcept nogil:
        cdef const CellsView *side = &reader.before if kind == KIND_DELETE else &reader.after
        cdef int32_t i
        cdef int written
        if _put_literal(b, &plan.heads[kind]) < 0 or put_i64(b, commit_ts >> 18) < 0 or \
                buffer_add(b, self.middle.data, self.middle.used) < 0:
            return NO_MEMORY
        for i in range(view.varying_count):
            if _put_literal(b, &view.segments[i]) < 0 or \
                    self._put_sql_type(b, &plan.columns[view.varying[i]], side, row, view.varying[i]) < 0:
                return NO_MEMORY
        if _put_literal(b, &view.segments[view.varying_count]) < 0:
            return NO_MEMORY
        if kind == KIND_UPDATE and view_has(&reader.before, row):
            if _put(b, b"[{", 2) < 0:
                return NO_MEMORY
            written = self._put_old(b, plan, reader, row, view)
            if written < 0:
                return written
            if _put(b, b'}],"data":[{', 12) < 0:
                return NO_MEMORY
        elif _put(b, b'null,"data":[{', 14) < 0:
            return NO_MEMORY
        written = self._put_data(b, plan, side, row, view)
        if written < 0:
            return written
        if not self.extension:
            return WRITTEN if _put(b, b"}]}", 3) == 0 else NO_MEMORY
        if _put(b, b'}],"_tidb":{"commitTs":', 23) < 0 or put_i64(b, commit_ts) < 0 or \
                (handle_only and _put(b, b',"onlyHandleKey":true', 21) < 0):
            return NO_MEMORY
        if location.p != NULL and (
            _put(b, b',"claimCheckLocation":', 22) < 0
            or json_put_string(b, location.p, location.n, location.p + location.n, STYLE_EASYJSON) < 0
        ):
            return NO_MEMORY
        return WRITTEN if _put(b, b"}}", 2) == 0 else NO_MEMORY

    cdef inline int _put_sql_type(self, Buffer *b, const WriteColumn *column, const CellsView *side,
                                  int64_t row, int32_t i) noexcept nogil:
        cdef Span text
        if view_cell(side, row, i, &text) and _exceeds(&text, &column.most):
            return _put_literal(b, &column.promoted)
        return _put_literal(b, &column.usual)

    cdef int _put_old(self, Buffer *b, CanalPlan plan, BatchReader reader, int64_t row,
                      const View *view) noexcept nogil:
        """The columns that `before` carries; if so set, only those whose values changed."""
        cdef Span before, after
        cdef bint is_null
        cdef bint all_carried = not bit_at(reader.missing.valid, reader.missing.valid_base + row)
        cdef size_t skip = 1
        cdef int32_t i, column
        cdef int written
        for i in range(view.count):
            column = view.columns[i]
            if not all_carried and not reader.carried(row, column):
                continue
            is_null = not view_cell(&reader.before, row, column, &before)
            if self.only_updated:
                if not view_cell(&reader.after, row, column, &after):
                    if is_null:
                        continue
                elif not is_null and before.n == after.n and memcmp(before.p, after.p, before.n) == 0:
                    continue
            written = self._put_value(
                b, &plan.columns[column], column, NULL if is_null else &before, reader.before.limit, skip
            )
            if written < 0:
                return written
            skip = 0
        return WRITTEN

    cdef int _put_data(self, Buffer *b, CanalPlan plan, const CellsView *side, int64_t row,
                       const View *view) noexcept nogil:
        cdef Span text
        cdef int32_t i, column
        cdef int written
        for i in range(view.count):
            column = view.columns[i]
            written = self._put_value(
                b, &plan.columns[column], column,
                &text if view_cell(side, row, column, &text) else NULL, side.limit, i == 0,
            )
            if written < 0:
                return written
        return WRITTEN

    cdef inline int _put_value(self, Buffer *b, const WriteColumn *column, int32_t index,
                               const Span *text, const uint8_t *limit, size_t skip) noexcept nogil:
        """A member of data or old. skip: 1 for the first, which has no comma."""
        if buffer_reserve(b, column.literal.n + 16) < 0:
            return NO_MEMORY
        tg_copy(b.data + b.used, column.literal.p + skip, column.literal.n - skip,
                column.literal.p + column.literal.n + 16)
        b.used += column.literal.n - skip
        if text == NULL:
            return _put(b, b"null", 4)
        if column.rule.kind != CANAL_TEXT and not self._is_right(&column.rule, text, limit):
            self.bad_column = index
            return self._put_unusual(b, &column.rule, text)
        return json_put_string(b, text.p, text.n, limit, STYLE_EASYJSON)

    cdef inline bint _is_right(self, const canal_rule *rule, const Span *text,
                               const uint8_t *limit) noexcept nogil:
        """Whether the text can be written as it is: what is written can be read again."""
        cdef uint8_t block[64]
        if rule.kind == CANAL_BINARY:
            return False
        if TG_LIKELY(text.n >= 32 or limit - text.p >= 32):
            return canal_check(rule, text.p, text.n) == CANAL_GOOD
        memset(block, 0, 64)
        memcpy(block, text.p, text.n)
        return canal_check(rule, block, text.n) == CANAL_GOOD

    cdef int _put_unusual(self, Buffer *b, const canal_rule *rule, const Span *text) noexcept nogil:
        """A binary value, or a float that is not spelled as Go spells it."""
        cdef int64_t n
        if buffer_reserve(&self.bytes, text.n + 512) < 0 or buffer_reserve(&self.latin, 2 * text.n + 32) < 0:
            return NO_MEMORY
        if rule.kind == CANAL_FLOAT:
            n = tg_shift_decimal(text.p, text.n, self.bytes.data, text.n + 512)
            if n < 0:
                return BAD_VALUE
            return json_put_string(
                b, self.bytes.data, <size_t>n, self.bytes.data + self.bytes.size, STYLE_EASYJSON
            )
        if rule.kind != CANAL_BINARY:
            return BAD_VALUE
        n = tg_base64_decode(text.p, text.n, self.bytes.data)
        if n < 0:
            return BAD_VALUE
        n = <int64_t>tg_utf8_from_latin1(self.bytes.data, <size_t>n, self.latin.data)
        return json_put_string(
            b, self.latin.data, <size_t>n, self.latin.data + self.latin.size, STYLE_EASYJSON
        )

    # --- DDL and watermarks ------------------------------------------------------------------------

    cdef int add_ddl(self, int64_t row) except -1:
        cdef BatchReader reader = self.reader
        cdef MessageBuilder messages = self.messages
        cdef int64_t commit_ts = self.commit_ts(row)
        cdef size_t start = messages.value.used
        query = _python_text(&reader.query, row)
        word = _python_text(&reader.ddl_type, row)
        if not word:
            code = reader.ddl_code(row)
            word = canal_ddl_type(action_code("", query) or 0 if code is None else code)
        self._put_message(
            messages, _python_text(&reader.database, row), _python_text(&reader.table, row),
            b"true", word, commit_ts >> 18, query, b"commitTs", commit_ts,
        )
        self.compress_value(start)
        messages.end(False, <int32_t>row, 1)
        return 0

    cdef int add_watermark(self, int64_t row) except -1:
        cdef MessageBuilder messages = self.messages
        cdef int64_t commit_ts
        cdef size_t start = messages.value.used
        if not self.extension:
            return 0
        commit_ts = self.commit_ts(row)
        self._put_message(
            messages, "", "", b"false", "TIDB_WATERMARK", commit_ts >> 18, "", b"watermarkTs", commit_ts
        )
        self.compress_value(start)
        messages.end(False, <int32_t>row, 1)
        return 0

    cdef int _put_message(self, MessageBuilder messages, database, table, is_ddl, word, es, query,
                          ts_name, commit_ts) except -1:
        """A message without a row: its members stand in another order than those of rows."""
        cdef bytes text = (
            b'{"id":0,"database":%b,"table":%b,"pkNames":null,"isDdl":%b,"type":%b,"es":%d,"ts":%d,'
            b'"sql":%b,"sqlType":null,"mysqlType":null,"data":null,"old":null'
            % (
                _quoted(database), _quoted(table), is_ddl, _quoted(word), es,
                self.options.build_ts or 0, _quoted(query),
            )
        )
        text += b',"_tidb":{"%b":%d}}' % (ts_name, commit_ts) if self.extension else b"}"
        if _put(&messages.value, text, len(text)) < 0:
            raise MemoryError
        return 0


cdef object _python_text(const StringsView *view, int64_t row):
    """The text, empty for null."""
    cdef Span text
    return (<const char *>text.p)[:text.n].decode() if string_at(view, row, &text) else ""
