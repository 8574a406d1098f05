"""The first pass over a message of Simple's JSON: its members, and those of `data` and `old`."""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.simple.json.decode cimport *
from tidegate.wire.simple.json.layout cimport *
from tidegate.wire.simple.json.schema_check cimport read_schema


cdef inline Member *members_of(Buffer *b) noexcept nogil:
    return <Member *>b.data


cdef inline int32_t count_of(const Buffer *b) noexcept nogil:
    return <int32_t>(b.used // sizeof(Member))


cdef inline const uint8_t *plain_string(const Cursor *c, const uint8_t *p,
                                        Span *out) noexcept nogil:
    """A string at p without escapes: what is behind it, or NULL for any other."""
    cdef unsigned int high = 0
    if p >= c.end or p[0] != c'"':
        return NULL
    out.p = p + 1
    out.n = tg_plain_run(out.p, c.end, c.limit, &high)
    p = out.p + out.n
    if p >= c.end or p[0] != c'"' or (high and not tg_utf8_valid(out.p, out.n)):
        return NULL
    return p + 1


cdef inline bint plain_member(Cursor *c, bint first, Member *m) noexcept nogil:
    """The next member, if it has plain text as its value and no white space around it: most have.
    If not, nothing has happened."""
    cdef const uint8_t *p = c.p
    cdef const uint8_t *at
    cdef Span name, text
    if not first:
        if p >= c.end or p[0] != c',':
            return False
        p += 1
    p = plain_string(c, p, &name)
    if p == NULL or p >= c.end or p[0] != c':':
        return False
    at = p + 1
    p = plain_string(c, at, &text)
    if p == NULL:
        return False
    m.name = name
    m.text = text
    m.limit = c.limit
    m.at = at
    c.p = p
    return True


# The general way: members in any order, with white space, and with others that are not known.
cdef inline int read_members(SimpleJsonDecoder self, Cursor *c, Facts *f) noexcept nogil:
    cdef bint first = True
    cdef Span name
    cdef int more
    if json_open(c, c'{') < 0:
        return -1
    while True:
        more = json_member(c, &first, &self.out.scratch, &name)
        if more < 0:
            return -1
        if more == 0:
            return json_finish(c)
        if read_member(self, c, f, &name) < 0:
            return -1


cdef inline int read_member(SimpleJsonDecoder self, Cursor *c, Facts *f,
                            const Span *name) noexcept nogil:
    """The value of one member of the message."""
    cdef const uint8_t *at = c.p
    cdef int64_t version = 0
    cdef uint32_t bit = member_bit(name)
    if bit == 0:
        return json_skip_other(
            c, name,
            b"version database table tableid type sql committs buildts schemaversion claimchecklocation "
            b"handlekeyonly checksum data old tableschema pretableschema ",
        )
    if name_once(c, &f.named, bit) < 0:
        return -1
    if c.p[0] == c'n':
        return 0 if take_null(c) else fail(c, FAULT_TYPE)
    f.has |= bit
    if bit == MEMBER_VERSION:
        if json_i64(c, &version) < 0:
            return -1
        return 0 if version == 1 else fail_at(c, FAULT_VERSION, at)
    if bit == MEMBER_TYPE:
        if json_span(c, &self.out.scratch, &f.type_text) < 0:
            return -1
        f.type = type_of(&f.type_text)
        return 0 if f.type >= 0 else fail_at(c, FAULT_UNKNOWN_KIND, at)
    if bit == MEMBER_DATABASE:
        return json_span(c, &self.out.scratch, &f.database)
    if bit == MEMBER_TABLE:
        return json_span(c, &self.out.scratch, &f.table)
    if bit == MEMBER_TABLE_ID:
        return json_i64(c, &f.table_id)
    if bit == MEMBER_COMMIT_TS:
        return read_timestamp(c, &f.commit_ts)
    if bit == MEMBER_BUILD_TS:
        return json_i64(c, &version)
    if bit == MEMBER_SCHEMA_VERSION:
        return read_timestamp(c, &f.schema_version)
    if bit == MEMBER_DATA:
        return read_values(self, c, &self.data)
    if bit == MEMBER_OLD:
        return read_values(self, c, &self.old)
    if bit == MEMBER_SQL:
        return json_span(c, &self.out.scratch, &f.sql)
    if bit == MEMBER_CLAIM_CHECK:
        return json_span(c, &self.out.scratch, &f.claim_check)
    if bit == MEMBER_HANDLE_KEY_ONLY:
        return json_bool(c, &f.handle_key_only)
    if bit == MEMBER_CHECKSUM:
        return read_checksum(self, c, &f.checksum)
    if bit == MEMBER_TABLE_SCHEMA:
        return read_schema(c, &self.out.scratch, &f.schema)
    return read_schema(c, &self.out.scratch, &f.schema_before)


cdef inline int read_values(SimpleJsonDecoder self, Cursor *c, Buffer *members) noexcept nogil:
    """The object `data` or `old`."""
    cdef bint first = True
    cdef Member *m
    cdef const uint8_t *at
    cdef bint ignored
    cdef int more
    if json_open(c, c'{') < 0:
        return -1
    while True:
        if buffer_reserve(members, sizeof(Member)) < 0:
            return fail(c, FAULT_MEMORY)
        m = <Member *>(members.data + members.used)
        memset(m, 0, sizeof(Member))
        if plain_member(c, first, m):
            first = False
        else:
            more = json_member(c, &first, &self.out.scratch, &m.name)
            if more <= 0:
                return more
        if members.used >= MAX_COLUMNS * sizeof(Member):
            return fail(c, FAULT_COLUMNS)
        members.used += sizeof(Member)
        if m.at != NULL:
            continue
        at = c.p
        m.at = at
        m.limit = c.limit
        if at[0] == c'"':
            if json_span(c, &self.out.scratch, &m.text) < 0:
                return -1
            if c.p - at != <Py_ssize_t>m.text.n + 2:
                m.limit = self.out.scratch.data + self.out.scratch.size
        elif at[0] == c'{':
            if read_moment(self, c, m) < 0:
                return -1
        elif at[0] == c'n':
            if not take_null(c):
                return fail(c, FAULT_TYPE)
        elif at[0] == c't' or at[0] == c'f':
            # Other senders may write booleans and numbers as such.
            if json_bool(c, &ignored) < 0:
                return -1
            m.text.p = at
            m.text.n = <size_t>(c.p - at)
        else:
            m.is_number = True
            if json_number(c, &m.text) < 0:
                return -1


cdef inline int read_moment(SimpleJsonDecoder self, Cursor *c, Member *m) noexcept nogil:
    """A TIMESTAMP: {"location": zone, "value": text}."""
    cdef bint first = True
    cdef Span name
    cdef const uint8_t *opened = c.p
    cdef const uint8_t *at
    cdef uint32_t named = 0
    cdef int more
    c.p += 1
    while True:
        more = json_member(c, &first, &self.out.scratch, &name)
        if more < 0:
            return -1
        if more == 0:
            break
        at = c.p
        if span_is(&name, b"location", 8):
            if name_once(c, &named, 1) < 0 or json_span(c, &self.out.scratch, &m.zone) < 0:
                return -1
            if m.zone.n == 0:
                return fail_at(c, FAULT_VALUE, at)
        elif span_is(&name, b"value", 5):
            if name_once(c, &named, 2) < 0 or json_span(c, &self.out.scratch, &m.text) < 0:
                return -1
            if not tg_datetime_valid(m.text.p, m.text.n):
                return fail_at(c, FAULT_TEMPORAL, at)
            m.limit = m.text.p + m.text.n
        elif json_skip(c) < 0:
            return -1
    return 0 if named == 3 else fail_at(c, FAULT_MISSING, opened)


cdef inline int read_checksum(SimpleJsonDecoder self, Cursor *c, Checksum *out) noexcept nogil:
    cdef bint first = True
    cdef Span name
    cdef const uint8_t *opened = c.p
    cdef uint32_t named = 0
    cdef int64_t version = 0
    cdef int more
    if json_open(c, c'{') < 0:
        return -1
    while True:
        more = json_member(c, &first, &self.out.scratch, &name)
        if more < 0:
            return -1
        if more == 0:
            break
        if span_is(&name, b"version", 7):
            if name_once(c, &named, 1) < 0 or read_at_most(c, &version, 0x7fffffff) < 0:
                return -1
            out.version = <int32_t>version
        elif span_is(&name, b"corrupted", 9):
            if name_once(c, &named, 2) < 0 or json_bool(c, &out.corrupted) < 0:
                return -1
        elif span_is(&name, b"current", 7):
            if name_once(c, &named, 4) < 0 or read_at_most(c, &out.current, UINT32_MAX) < 0:
                return -1
        elif span_is(&name, b"previous", 8):
            if name_once(c, &named, 8) < 0 or read_at_most(c, &out.previous, UINT32_MAX) < 0:
                return -1
        elif json_skip(c) < 0:
            return -1
    return 0 if named == 15 else fail_at(c, FAULT_MISSING, opened)


cdef inline uint32_t member_bit(const Span *name) noexcept nogil:
    """Which member of a message this is; 0: none that is known."""
    if name.n == 3:
        if span_is(name, b"old", 3):
            return MEMBER_OLD
        if span_is(name, b"sql", 3):
            return MEMBER_SQL
    elif name.n == 4:
        if span_is(name, b"data", 4):
            return MEMBER_DATA
        if span_is(name, b"type", 4):
            return MEMBER_TYPE
    elif name.n == 5:
        if span_is(name, b"table", 5):
            return MEMBER_TABLE
    elif name.n == 7:
        if span_is(name, b"version", 7):
            return MEMBER_VERSION
        if span_is(name, b"tableID", 7):
            return MEMBER_TABLE_ID
        if span_is(name, b"buildTs", 7):
            return MEMBER_BUILD_TS
    elif name.n == 8:
        if span_is(name, b"database", 8):
            return MEMBER_DATABASE
        if span_is(name, b"commitTs", 8):
            return MEMBER_COMMIT_TS
        if span_is(name, b"checksum", 8):
            return MEMBER_CHECKSUM
    elif span_is(name, b"schemaVersion", 13):
        return MEMBER_SCHEMA_VERSION
    elif span_is(name, b"handleKeyOnly", 13):
        return MEMBER_HANDLE_KEY_ONLY
    elif span_is(name, b"claimCheckLocation", 18):
        return MEMBER_CLAIM_CHECK
    elif span_is(name, b"tableSchema", 11):
        return MEMBER_TABLE_SCHEMA
    elif span_is(name, b"preTableSchema", 14):
        return MEMBER_PRE_TABLE_SCHEMA
    return 0


cdef inline int type_of(const Span *type) noexcept nogil:
    """TYPE_*, or -1 for a type that Simple does not have."""
    if span_is(type, b"INSERT", 6):
        return TYPE_INSERT
    if span_is(type, b"UPDATE", 6):
        return TYPE_UPDATE
    if span_is(type, b"DELETE", 6):
        return TYPE_DELETE
    if span_is(type, b"WATERMARK", 9):
        return TYPE_WATERMARK
    if span_is(type, b"BOOTSTRAP", 9):
        return TYPE_BOOTSTRAP
    if span_is(type, b"CREATE", 6) or span_is(type, b"RENAME", 6) or span_is(type, b"CINDEX", 6) or \
            span_is(type, b"DINDEX", 6) or span_is(type, b"ERASE", 5) or span_is(type, b"TRUNCATE", 8) or \
            span_is(type, b"ALTER", 5) or span_is(type, b"QUERY", 5):
        return TYPE_DDL
    return -1
