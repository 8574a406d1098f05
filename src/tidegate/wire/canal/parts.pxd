"""The first pass over a Canal-JSON message: which members it has and where their values are.

It accepts members in any order. Nothing is put into the batch here.
"""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.canal.decode cimport *


cdef inline int read_parts(CanalDecoder self, Cursor *c, Parts *parts) noexcept nogil:
    cdef bint first = True
    cdef Span name, number
    cdef int more, status
    cdef uint32_t part
    if json_open(c, c'{') < 0:
        return -1
    while True:
        more = json_member(c, &first, &self.out.scratch, &name)
        if more <= 0:
            return more
        part = part_of(self, &name)
        if part == 0:
            if json_skip_other(
                c, &name,
                b"id database table pknames isddl type es ts sql sqltype mysqltype data old _tidb ",
            ) < 0:
                return -1
            continue
        if parts.has & part:
            return fail(c, FAULT_DUPLICATE)
        parts.has |= part
        if part == PART_DATA:
            status = read_rows(self, c, &parts.data)
        elif part == PART_OLD:
            status = read_rows(self, c, &parts.old)
        elif part == PART_MYSQL_TYPE:
            status = read_members(self, c, &parts.mysql_type, False)
        elif part == PART_SQL_TYPE:
            status = read_members(self, c, &parts.sql_type, True)
        elif part == PART_PK_NAMES:
            status = read_names(self, c, &parts.pk_names)
        elif part == PART_TIDB:
            status = read_extension(self, c, parts)
        elif part == PART_IS_DDL:
            status = json_bool(c, &parts.is_ddl)
        elif part == PART_ES:
            status = json_i64(c, &parts.es)
        elif part == PART_ID or part == PART_TS:
            status = json_number(c, &number)
        elif part == PART_TYPE:
            parts.type_at = c.p + 1
            status = json_span(c, &self.out.scratch, &parts.type)
        elif part == PART_DATABASE:
            status = read_text(self, c, &parts.database)
        elif part == PART_TABLE:
            status = read_text(self, c, &parts.table)
        else:
            status = read_text(self, c, &parts.sql)
        if status < 0:
            return -1


cdef inline uint32_t part_of(CanalDecoder self, const Span *name) noexcept nogil:
    if name.n == 2:
        if span_is(name, b"id", 2):
            return PART_ID
        if span_is(name, b"es", 2):
            return PART_ES
        if span_is(name, b"ts", 2):
            return PART_TS
    elif name.n == 3:
        if span_is(name, b"old", 3):
            return PART_OLD
        if span_is(name, b"sql", 3):
            return PART_SQL
    elif name.n == 4:
        if span_is(name, b"data", 4):
            return PART_DATA
        if span_is(name, b"type", 4):
            return PART_TYPE
    elif name.n == 5:
        if span_is(name, b"table", 5):
            return PART_TABLE
        if span_is(name, b"isDdl", 5):
            return PART_IS_DDL
        if span_is(name, b"_tidb", 5):
            return PART_TIDB
    elif name.n == 7:
        if span_is(name, b"sqlType", 7):
            return PART_SQL_TYPE
        if span_is(name, b"pkNames", 7):
            return PART_PK_NAMES
    elif name.n == 8:
        if span_is(name, b"database", 8):
            return PART_DATABASE
    elif name.n == 9:
        if span_is(name, b"mysqlType", 9):
            return PART_MYSQL_TYPE
    return 0


cdef inline int read_text(CanalDecoder self, Cursor *c, Span *out) noexcept nogil:
    """A string, or null: p stays NULL."""
    if json_peek(c) == c'n' and json_is(c, b"null", 4):
        return 0
    return json_span(c, &self.out.scratch, out)


cdef inline int read_members(CanalDecoder self, Cursor *c, Members *out,
                             bint numbers) noexcept nogil:
    """An object of strings and nulls, or of whole numbers (whose texts are not kept), or null."""
    cdef bint first = True
    cdef Member *member
    cdef const uint8_t *behind
    cdef int more
    cdef int64_t number = 0
    out.first = self.members.used // sizeof(Member)
    out.present = False
    if json_peek(c) == c'n' and json_is(c, b"null", 4):
        return 0
    if json_open(c, c'{') < 0:
        return -1
    while True:
        if TG_UNLIKELY(buffer_reserve(&self.members, sizeof(Member)) < 0):
            return fail(c, FAULT_MEMORY)
        member = <Member *>(self.members.data + self.members.used)
        if TG_LIKELY(c.p < c.end) and (first or c.p[0] == c','):
            # A Member is laid out as a canal_member.
            behind = canal_plain_member(
                c.p + (not first), c.end, numbers, <canal_member *>member
            )
            if TG_LIKELY(behind != NULL):
                c.p = behind
                first = False
                self.members.used += sizeof(Member)
                continue
        json_space(c)
        member.at = c.p if first else c.p + 1
        more = json_member(c, &first, &self.out.scratch, &member.name)
        if more <= 0:
            break
        member.value_at = c.p
        member.text.p = NULL
        member.text.n = 0
        if numbers:
            if json_i64(c, &number) < 0:
                return -1
        elif c.p[0] == c'"':
            if json_span(c, &self.out.scratch, &member.text) < 0:
                return -1
        elif not json_is(c, b"null", 4):
            return fail(c, FAULT_TYPE)
        self.members.used += sizeof(Member)
    out.count = self.members.used // sizeof(Member) - out.first
    out.present = True
    return more


cdef inline int read_names(CanalDecoder self, Cursor *c, Members *out) noexcept nogil:
    """pkNames: strings, or null."""
    cdef bint first = True
    cdef Member member
    cdef int more
    memset(&member, 0, sizeof(Member))
    out.first = self.members.used // sizeof(Member)
    if json_peek(c) == c'n' and json_is(c, b"null", 4):
        return 0
    if json_open(c, c'[') < 0:
        return -1
    while True:
        more = json_element(c, &first)
        if more <= 0:
            break
        member.at = c.p
        if json_span(c, &self.out.scratch, &member.name) < 0:
            return -1
        if buffer_add(&self.members, <const uint8_t *>&member, sizeof(Member)) < 0:
            return fail(c, FAULT_MEMORY)
    out.count = self.members.used // sizeof(Member) - out.first
    out.present = True
    return more


cdef inline int read_row(CanalDecoder self, Cursor *c) noexcept nogil:
    cdef Members row
    memset(&row, 0, sizeof(Members))
    if read_members(self, c, &row, False) < 0:
        return -1
    if buffer_add(&self.row_members, <const uint8_t *>&row, sizeof(Members)) < 0:
        return fail(c, FAULT_MEMORY)
    return 0


cdef inline int read_rows(CanalDecoder self, Cursor *c, Members *out) noexcept nogil:
    """data or old: an array of rows, one row (a hotfix of TiCDC), or null. A row is an object or,
    in `old` of v5.1, null."""
    cdef bint first = True
    cdef int next_byte = json_peek(c)
    cdef int status
    out.first = self.row_members.used // sizeof(Members)
    if next_byte == c'n' and json_is(c, b"null", 4):
        return 0
    if next_byte == c'{':
        status = read_row(self, c)
    else:
        if json_open(c, c'[') < 0:
            return -1
        while True:
            status = json_element(c, &first)
            if status <= 0:
                break
            if read_row(self, c) < 0:
                return -1
    out.count = self.row_members.used // sizeof(Members) - out.first
    out.present = True
    return status


cdef inline int read_extension(CanalDecoder self, Cursor *c, Parts *parts) noexcept nogil:
    """_tidb. Members of other versions (rowkey, checksum ...) are passed over."""
    cdef bint first = True
    cdef Span name
    cdef int more, status
    cdef uint32_t part
    if json_peek(c) == c'n' and json_is(c, b"null", 4):
        return 0
    if json_open(c, c'{') < 0:
        return -1
    parts.has_extension = True
    while True:
        more = json_member(c, &first, &self.out.scratch, &name)
        if more <= 0:
            return more
        part = 0
        if span_is(&name, b"commitTs", 8):
            part = TIDB_COMMIT_TS
        elif span_is(&name, b"watermarkTs", 11):
            part = TIDB_WATERMARK_TS
        elif span_is(&name, b"onlyHandleKey", 13):
            part = TIDB_ONLY_HANDLE_KEY
        elif span_is(&name, b"claimCheckLocation", 18):
            part = TIDB_CLAIM_CHECK
        elif span_is(&name, b"tableId", 7):
            part = TIDB_TABLE_ID
        elif span_is(&name, b"partitionId", 11):
            part = TIDB_PARTITION_ID
        if parts.extension & part:
            return fail(c, FAULT_DUPLICATE)
        parts.extension |= part
        if part == TIDB_COMMIT_TS:
            status = read_ts(self, c, &parts.commit_ts)
        elif part == TIDB_WATERMARK_TS:
            status = read_ts(self, c, &parts.watermark_ts)
        elif part == TIDB_ONLY_HANDLE_KEY:
            status = json_bool(c, &parts.only_handle_key)
        elif part == TIDB_CLAIM_CHECK:
            status = json_span(c, &self.out.scratch, &parts.claim_check)
        elif part == TIDB_TABLE_ID:
            status = json_i64(c, &parts.table_id)
        elif part == TIDB_PARTITION_ID:
            status = json_i64(c, &parts.partition_id)
        else:
            status = json_skip_other(
                c, &name,
                b"committs watermarkts onlyhandlekey claimchecklocation tableid partitionid ",
            )
        if status < 0:
            return -1


cdef inline int read_ts(CanalDecoder self, Cursor *c, int64_t *out) noexcept nogil:
    cdef const uint8_t *at = c.p
    cdef uint64_t value = 0
    if json_u64(c, &value) < 0:
        return -1
    if value > <uint64_t>INT64_MAX:
        return fail_at(c, FAULT_RANGE, at)
    out[0] = <int64_t>value
    return 0
