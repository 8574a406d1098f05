"""Canal-JSON: one JSON object a message, every value a string; decoded.

Reads what TiCDC writes, with and without the TiDB extension, since v4.0, and what the official Canal
writes. Authority: TiCDC's Canal-JSON document and, where it is silent or
wrong, the bytes of TiCDC's own encoder (docs/protocols/canal-json.md lists the choices).

Messages of one table repeat themselves. A message that no earlier one predicts goes the general way:
one pass notes where every member stands, a second one puts the values into the order of the row's
shape. What it was made of (a Plan) is remembered, and the next message is compared with it: only
what lies between the predicted bytes is then looked at. Whatever is not as predicted goes the
general way again, which alone decides what is wrong with a message.
"""


from tidegate.model import parse_type

from tidegate.wire.canal.parts cimport read_parts
from tidegate.wire.canal.plans cimport column_of, plan_of, release_plan
from tidegate.wire.canal.predict cimport predict, try_prediction
from tidegate.wire.codec.prelude cimport *


# --- what a type's text says of its values -------------------------------------------------------

# The names that begin a type's text; what they mean is model.types' to say.
_TYPE_WORDS = (
    "tinyint", "smallint", "mediumint", "int", "integer", "bigint", "bool", "boolean", "bit",
    "float", "double", "real", "decimal", "numeric", "dec", "fixed",
    "date", "time", "datetime", "timestamp", "year", "enum", "set", "json", "vector",
    "char", "varchar", "tinytext", "text", "mediumtext", "longtext",
    "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob",
)


cdef struct TypeWord:
    char text[16]
    size_t size
    int code
    int flags


cdef TypeWord _type_words[40]
cdef int _type_word_count = 0


def _fill_type_words() -> None:
    global _type_word_count
    cdef bytes text
    for word in _TYPE_WORDS:
        parsed = parse_type(word)
        text = word.encode()
        _type_words[_type_word_count].size = len(text)
        memcpy(_type_words[_type_word_count].text, <const char *>text, len(text))
        _type_words[_type_word_count].code = parsed.code
        _type_words[_type_word_count].flags = parsed.flags
        _type_word_count += 1


_fill_type_words()


cdef inline uint8_t _lower(uint8_t byte) noexcept nogil:
    return byte | 0x20 if 65 <= byte <= 90 else byte


cdef bint _has_word(const canal_word *text, size_t start, const char *word,
                    size_t n) noexcept nogil:
    """Whether the (lower-case) word stands somewhere in the text, in any case."""
    cdef size_t i, j
    if text.n < n:
        return False
    for i in range(start, text.n - n + 1):
        j = 0
        while j < n and _lower(text.p[i + j]) == <uint8_t>word[j]:
            j += 1
        if j == n:
            return True
    return False


cdef void set_type(Column *column) noexcept nogil:
    """What the text of the column's type says of its values."""
    cdef char word[16]
    cdef size_t n = 0
    cdef uint8_t byte
    cdef int i
    cdef int code = -1, flags = 0
    cdef canal_word *type = &column.type
    while n < type.n and n < 16:
        byte = _lower(type.p[n])
        if not (97 <= byte <= 122 or 48 <= byte <= 57 or byte == c'_'):
            break
        word[n] = <char>byte
        n += 1
    for i in range(_type_word_count):
        if _type_words[i].size == n and memcmp(_type_words[i].text, word, n) == 0:
            code = _type_words[i].code
            flags = _type_words[i].flags
            break
    if n == 4 and memcmp(word, b"long", 4) == 0 and _has_word(type, 4, b"varbinary", 9):
        code = CODE_MEDIUMBLOB
        flags = COLUMN_BINARY
    if code < 0 and (_has_word(type, 0, b"blob", 4) or _has_word(type, 0, b"binary", 6)):
        column.varies = False
        column.rule.kind = CANAL_UNCLEAR
        return
    # MySQL: ZEROFILL implies UNSIGNED
    if _has_word(type, n, b"unsigned", 8) or _has_word(type, n, b"zerofill", 8):
        flags |= COLUMN_UNSIGNED
    column.varies = form_of(code, flags) == FORM_UNSIGNED and code <= CODE_INT24
    set_rule(&column.rule, code, flags)


cdef inline int _value_fault(const Column *column, const uint8_t *p, size_t n) noexcept nogil:
    """What is wrong with a value of the column; 32 bytes of it may be read. Not for BINARY."""
    cdef int verdict = canal_check(&column.rule, p, n)
    if TG_LIKELY(verdict == CANAL_GOOD):
        return FAULT_NONE
    if verdict == CANAL_BAD_TIME:
        return FAULT_TEMPORAL
    if verdict == CANAL_BAD_VALUE:
        return FAULT_VALUE
    return FAULT_RANGE if verdict == CANAL_BAD_RANGE else FAULT_NUMBER


cdef class CanalDecoder(MessageDecoder):
    def __cinit__(self, *arguments, **options):
        self.seed = <uint64_t><uintptr_t><void *>self * 0x9e3779b97f4a7c15u
        self.memory.release = release_plan

    def __dealloc__(self):
        buffer_free(&self.members)
        buffer_free(&self.row_members)
        buffer_free(&self.after_slots)
        buffer_free(&self.before_slots)
        buffer_free(&self.spare)
        buffer_free(&self.padded)

    cdef int message(self, Message *m, Cursor *c) noexcept nogil:
        cdef Message padded
        if m.value == NULL or m.value_size == 0:
            return fail(c, FAULT_EMPTY)
        if TG_UNLIKELY(<size_t>(m.value_limit - m.value) < m.value_size + CANAL_PADDING):
            if _pad(self, m, &padded) < 0:
                return fail(c, FAULT_MEMORY)
            cursor_init(c, padded.value, padded.value_size, padded.value_limit)
            return _read(self, &padded, c)
        return _read(self, m, c)


cdef int _pad(CanalDecoder self, const Message *m, Message *out) noexcept nogil:
    """A copy of the batch's last message, with bytes behind it that may be read."""
    self.padded.used = 0
    if buffer_reserve(&self.padded, m.value_size + CANAL_PADDING) < 0:
        return -1
    memcpy(self.padded.data, m.value, m.value_size)
    memset(self.padded.data + m.value_size, 0, CANAL_PADDING)
    out.value = self.padded.data
    out.value_size = m.value_size
    out.value_limit = self.padded.data + m.value_size + CANAL_PADDING
    return 0


cdef int _read(CanalDecoder self, Message *m, Cursor *c) noexcept nogil:
    if self.memory.last != NULL:
        if TG_LIKELY(predict(self, m)):
            return 0
        self.out.rollback()
    return _general(self, m, c)


cdef int _put_binary(CanalDecoder self, Cells *cells, const uint8_t *p, size_t n) noexcept nogil:
    """The bytes that a text of code points up to U+00FF stands for, as a cell in base64; p may be
    the place where the cell goes. Gives a fault."""
    cdef int64_t size
    if buffer_reserve(&self.spare, n + 32) < 0:
        return FAULT_MEMORY
    size = tg_latin1_from_utf8(p, n, self.spare.data)
    if size < 0:
        return FAULT_BINARY
    if buffer_reserve(&cells.text, (<size_t>size + 2) // 3 * 4) < 0:
        return FAULT_MEMORY
    cells.text.used += tg_base64_encode(
        self.spare.data, <size_t>size, cells.text.data + cells.text.used
    )
    cell_end(cells)
    return FAULT_NONE


# --- the general way, first pass: what the message holds ---------------------------------------
cdef int _general(CanalDecoder self, Message *m, Cursor *c) noexcept nogil:
    cdef Parts parts
    memset(&parts, 0, sizeof(Parts))
    self.members.used = 0
    self.row_members.used = 0
    self.out.scratch.used = 0
    if read_parts(self, c, &parts) < 0 or json_finish(c) < 0:
        return -1
    c.p = c.start
    if not parts.has & PART_TYPE:
        return fail(c, FAULT_MISSING)
    if parts.is_ddl:
        return _put_ddl(self, c, &parts)
    if span_is(&parts.type, b"TIDB_WATERMARK", 14):
        return _put_watermark(self, c, &parts)
    return _put_rows(self, m, c, &parts)


# --- the general way, second pass: the events ----------------------------------------------------
cdef int _set_commit_ts(CanalDecoder self, Cursor *c, Parts *parts, Row *row) noexcept nogil:
    if parts.has_extension:
        if not parts.extension & TIDB_COMMIT_TS:
            return fail(c, FAULT_MISSING)
        row.commit_ts = parts.commit_ts
    else:
        # `es` is the physical part of the TSO; the logical part is not carried.
        if not parts.has & PART_ES:
            return fail(c, FAULT_MISSING)
        if parts.es < 0 or parts.es > INT64_MAX >> 18:
            return fail(c, FAULT_RANGE)
        row.commit_ts = parts.es << 18
    row.has = row.has | HAS_COMMIT_TS
    return 0


cdef int _put_watermark(CanalDecoder self, Cursor *c, Parts *parts) noexcept nogil:
    cdef Row row
    row_init(&row, KIND_WATERMARK)
    if not parts.extension & TIDB_WATERMARK_TS:
        return fail(c, FAULT_MISSING)
    row.commit_ts = parts.watermark_ts
    row.has = HAS_COMMIT_TS
    return self.out.add_row(c, &row)


cdef int _put_ddl(CanalDecoder self, Cursor *c, Parts *parts) noexcept nogil:
    cdef Row row
    cdef Extra *extra
    row_init(&row, KIND_DDL)
    if span_is(&parts.type, b"INSERT", 6) or span_is(&parts.type, b"UPDATE", 6) or \
            span_is(&parts.type, b"DELETE", 6) or span_is(&parts.type, b"TIDB_WATERMARK", 14):
        return fail_at(c, FAULT_UNKNOWN_KIND, parts.type_at)
    if parts.sql.p == NULL:
        return fail(c, FAULT_MISSING)
    if _set_commit_ts(self, c, parts, &row) < 0:
        return -1
    if parts.database.n == 0:
        parts.database.p = NULL
    if parts.table.n == 0:
        parts.table.p = NULL
    row.names = self.out.intern_names(&parts.database, &parts.table)
    extra = self.out.new_extra(&row)
    if row.names < 0 or extra == NULL or \
            self.out.keep(&parts.type, &extra.ddl_type) < 0 or \
            self.out.keep(&parts.sql, &extra.query) < 0:
        return fail(c, FAULT_MEMORY)
    return self.out.add_row(c, &row)


cdef int _put_rows(CanalDecoder self, Message *m, Cursor *c, Parts *parts) noexcept nogil:
    cdef int kind
    cdef size_t i
    cdef Members *data
    cdef Members *old
    cdef Plan *plan = NULL
    cdef Row row
    if span_is(&parts.type, b"INSERT", 6):
        kind = KIND_INSERT
    elif span_is(&parts.type, b"UPDATE", 6):
        kind = KIND_UPDATE
    elif span_is(&parts.type, b"DELETE", 6):
        kind = KIND_DELETE
    else:
        return fail_at(c, FAULT_UNKNOWN_KIND, parts.type_at)
    if parts.database.p == NULL or parts.table.p == NULL or not parts.data.present or \
            not parts.mysql_type.present:
        return fail(c, FAULT_MISSING)
    if kind == KIND_UPDATE and parts.old.present and parts.old.count != parts.data.count:
        return fail(c, FAULT_COLUMNS)
    for i in range(parts.data.count):
        data = <Members *>self.row_members.data + parts.data.first + i
        if not data.present:
            return fail(c, FAULT_TYPE)
        old = NULL
        if parts.old.present and i < parts.old.count:
            old = <Members *>self.row_members.data + parts.old.first + i
            if not old.present:
                old = NULL
        if kind == KIND_INSERT and old != NULL and old.count != 0:
            return fail(c, FAULT_COLUMNS)
        # v4.0 and v5 sent empty rows for what a transaction inserted and deleted again.
        if data.count == 0 and (old == NULL or old.count == 0):
            continue
        plan = plan_of(self, c, parts, data, plan)
        if plan == NULL:
            return -1
        row_init(&row, kind)
        if _set_commit_ts(self, c, parts, &row) < 0 or \
                _put_row(self, c, parts, plan, data, old, &row) < 0:
            return -1
    # A plan predicts if it can read the message that it was made of.
    if plan != NULL and not plan.tried and parts.data.count == 1:
        plan.tried = True
        try_prediction(self, m, parts, plan)
    return 0


cdef int _put_row(CanalDecoder self, Cursor *c, Parts *parts, Plan *plan, const Members *data,
                  const Members *old, Row *row) noexcept nogil:
    cdef Extra *extra
    row.shape = plan.shape
    if parts.only_handle_key:
        row.flags |= FLAG_HANDLE_KEY_ONLY
    if parts.claim_check.p != NULL:
        extra = self.out.new_extra(row)
        if extra == NULL or self.out.keep(&parts.claim_check, &extra.claim_check) < 0:
            return fail(c, FAULT_MEMORY)
        row.flags |= FLAG_CLAIM_CHECK
    if parts.extension & TIDB_PARTITION_ID and parts.partition_id:
        row.table_id = parts.partition_id
        row.has = row.has | HAS_TABLE_ID
    elif parts.extension & TIDB_TABLE_ID:
        row.table_id = parts.table_id
        row.has = row.has | HAS_TABLE_ID
    if row.kind == KIND_UPDATE and old != NULL:
        if _put_before(self, c, plan, old, row) < 0:
            return -1
    if _put_cells(
            self, c, plan, <int32_t *>self.after_slots.data,
        &self.out.before if row.kind == KIND_DELETE else &self.out.after,
    ) < 0:
        return -1
    row.has = row.has | (HAS_BEFORE if row.kind == KIND_DELETE else HAS_AFTER)
    return self.out.add_row(c, row)


cdef int _put_before(CanalDecoder self, Cursor *c, Plan *plan, const Members *old,
                     Row *row) noexcept nogil:
    """`old` may leave columns out; it may not bring others."""
    cdef Member *members = <Member *>self.members.data + old.first
    cdef int32_t *slots
    cdef int32_t i, column
    cdef uint8_t *missing
    if buffer_reserve(&self.before_slots, <size_t>plan.count * sizeof(int32_t)) < 0:
        return fail(c, FAULT_MEMORY)
    slots = <int32_t *>self.before_slots.data
    self.serial += 1
    if old.count != <size_t>plan.count:
        memset(slots, 0xff, <size_t>plan.count * sizeof(int32_t))
        missing = self.out.new_missing(row, plan.count)
        if missing == NULL:
            return fail(c, FAULT_MEMORY)
        memset(missing, 0xff, <size_t>plan.count // 8)
        if plan.count & 7:
            missing[plan.count >> 3] = <uint8_t>((1 << (plan.count & 7)) - 1)
    else:
        missing = NULL
    for i in range(<int32_t>old.count):
        column = column_of(self, plan, &members[i].name, i)
        if column < 0:
            return fail_at(c, FAULT_COLUMNS, members[i].at)
        if plan.columns[column].seen == self.serial:
            return fail_at(c, FAULT_DUPLICATE, members[i].at)
        plan.columns[column].seen = self.serial
        slots[column] = <int32_t>old.first + i
        if missing != NULL:
            missing[column >> 3] &= <uint8_t>~(1 << (column & 7))
    row.has = row.has | HAS_BEFORE
    return _put_cells(self, c, plan, slots, &self.out.before)


cdef int _put_cells(CanalDecoder self, Cursor *c, Plan *plan, const int32_t *slots,
                    Cells *cells) noexcept nogil:
    """The cells of a row; slots: for each column the index of its member, -1: none."""
    cdef Member *members = <Member *>self.members.data
    cdef Member *member
    cdef Column *column
    cdef int32_t i
    cdef int fault
    cdef uint8_t *text
    if cells_reserve(cells, plan.count) < 0:
        return fail(c, FAULT_MEMORY)
    for i in range(plan.count):
        if slots[i] < 0 or members[slots[i]].text.p == NULL:
            cell_null(cells)
            continue
        member = &members[slots[i]]
        column = &plan.columns[i]
        if column.rule.kind == CANAL_BINARY:
            fault = _put_binary(self, cells, member.text.p, member.text.n)
            if fault != FAULT_NONE:
                return fail_at(c, fault, member.value_at)
            continue
        if buffer_reserve(&cells.text, member.text.n) < 0:
            return fail(c, FAULT_MEMORY)
        text = cells.text.data + cells.text.used
        canal_copy(text, member.text.p, member.text.n)
        fault = _value_fault(column, text, member.text.n)
        if TG_UNLIKELY(fault != FAULT_NONE):
            if column.rule.kind == CANAL_FLOAT:
                fault = _put_float(self, cells, &member.text)
            if fault != FAULT_NONE:
                return fail_at(c, fault, member.value_at)
            continue
        cells.text.used += member.text.n
        cell_end(cells)
    return 0


cdef int _put_float(CanalDecoder self, Cells *cells, const Span *text) noexcept nogil:
    """A float that the official Canal spells in Java's way (1.0E10) as a cell. Gives a fault."""
    cdef int n
    if buffer_reserve(&cells.text, text.n + 512) < 0:
        return FAULT_MEMORY
    n = tg_shift_decimal(text.p, text.n, cells.text.data + cells.text.used, text.n + 512)
    if n < 0:
        return FAULT_NUMBER
    cells.text.used += <size_t>n
    cell_end(cells)
    return FAULT_NONE
