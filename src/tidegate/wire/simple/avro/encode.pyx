"""Writes Simple's Avro: docs/protocols/simple.md lays the records out."""

from tidegate.model import SchemaNotSeen
from tidegate.wire.simple.schema import DDL_TYPES

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.simple.avro.layout cimport *
from tidegate.wire.simple.encode cimport SimpleEncoder, SimplePlan


# --- encoding -------------------------------------------------------------------------------------

# How a column's values are written.
cdef enum Write:
    WRITE_SIGNED = 1        # a long
    WRITE_UNSIGNED = 2
    WRITE_BITS = 3          # 64 bits as a long; a text from Avro itself may be signed
    WRITE_BITS_TEXT = 4     # the same as a string
    WRITE_BIGINT = 5        # UnsignedBigint
    WRITE_FLOAT = 6
    WRITE_DOUBLE = 7
    WRITE_TEXT = 8          # a string, or the text of a Timestamp
    WRITE_BYTES = 9


cdef struct PlanColumn:
    int32_t index           # in the row
    int32_t write
    int32_t bits            # of a number
    bint is_key
    const uint8_t *literal  # the name and the union index, of a Timestamp also the location
    uint32_t size
    uint32_t bare           # of the name alone


cdef class SimpleAvroPlan(SimplePlan):
    cdef PlanColumn *columns
    cdef int32_t keys
    cdef bytes head         # up to the names of database and table
    cdef bytes tail         # build time and schema version
    cdef bytes literals
    cdef const uint8_t *limit
    cdef size_t room        # what a row may need beyond twice its texts

    def __dealloc__(self):
        free(self.columns)


def _long(number) -> bytes:
    """Avro's int and long: zigzag, then seven bits a byte."""
    raw = number << 1 ^ number >> 63
    groups = bytearray()
    while raw > 0x7f:
        groups.append(raw & 0x7f | 0x80)
        raw >>= 7
    groups.append(raw)
    return bytes(groups)


def _sized(content) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return _long(len(content)) + content


def _array(items) -> bytes:
    return (_long(len(items)) + b"".join(items) if items else b"") + b"\0"


def _optional(content) -> bytes:
    """A union of null and something else."""
    return b"\0" if content is None else b"\2" + content


def _bool(value) -> bytes:
    return b"\1" if value else b"\0"


_WITH_SIGN = frozenset(
    "tinyint smallint mediumint int bigint decimal float double bit year".split()
)


def _data_type(data_type, generation) -> bytes:
    """DataType. What TiCDC's classic architecture leaves out is null here as well."""
    name = data_type["mysqlType"]
    decimals = data_type.get("decimal")
    always_carried = name == "decimal" or (name == "timestamp" and generation == "new")
    # The digits behind a time's seconds follow from its length, if that is known.
    if not always_carried and (data_type.get("length") or not decimals):
        decimals = None
    elif decimals is None:
        decimals = 0
    elements = data_type.get("elements")
    if elements is None and name in ("enum", "set"):
        elements = ()
    signs = [data_type.get(member) for member in ("unsigned", "zerofill")]
    if name in _WITH_SIGN:
        signs = [bool(sign) for sign in signs]
    return b"".join(
        [
            *(_sized(data_type.get(member) or "") for member in ("mysqlType", "charset", "collate")),
            _long(data_type.get("length") or 0),
            _optional(None if decimals is None else _long(decimals)),
            _optional(None if elements is None else _array([_sized(one) for one in elements])),
            *(_optional(None if sign is None else _bool(sign)) for sign in signs),
        ]
    )


def _default(value, type_name) -> bytes | None:
    """A BIT's default goes out as its bytes."""
    if value is None:
        return None
    if type_name == "bit" and isinstance(value, int):
        return _sized(value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big"))
    return _sized(str(value))


def _column(column, generation) -> bytes:
    """ColumnSchema."""
    return b"".join(
        [
            _sized(column["name"]),
            _data_type(column["dataType"], generation),
            _bool(column.get("nullable", True)),
            _optional(_default(column.get("default"), column["dataType"]["mysqlType"])),
        ]
    )


def _index(index) -> bytes:
    """IndexSchema."""
    return b"".join(
        [
            _sized(index["name"]),
            *(_bool(index.get(member)) for member in ("unique", "primary", "nullable")),
            _array([_sized(column) for column in index.get("columns") or ()]),
        ]
    )


def _table_schema(schema, generation) -> bytes:
    """TableSchema."""
    return b"".join(
        [
            _sized(schema.get("schema") or ""),
            _sized(schema.get("table") or ""),
            _long(schema.get("tableID") or 0),
            _long(schema.get("version") or 0),
            _array([_column(column, generation) for column in schema.get("columns") or ()]),
            _array([_index(index) for index in schema.get("indexes") or ()]),
        ]
    )


def _opening(kind) -> bytes:
    """The index of Message, its type, the index of its payload, and the version."""
    return _long(MESSAGE_INDEX) + _long(kind) + _long(kind) + _long(VERSION)


cdef int _write_of(int code, int flags, str generation):
    cdef int form = form_of(code, flags)
    if code == CODE_BIT:
        return WRITE_BITS_TEXT if generation == "new" else WRITE_BITS
    if code == CODE_SET:
        return WRITE_BITS
    if form == FORM_INTEGER or form == FORM_YEAR:
        return WRITE_SIGNED
    if form == FORM_UNSIGNED:
        return WRITE_BIGINT if code == CODE_LONGLONG else WRITE_UNSIGNED
    if form == FORM_FLOAT:
        return WRITE_FLOAT
    if form == FORM_DOUBLE:
        return WRITE_DOUBLE
    return WRITE_BYTES if form == FORM_BINARY else WRITE_TEXT


cdef int _union_of(int code, int write):
    if code == CODE_TIMESTAMP:
        return VALUE_TIMESTAMP
    if write == WRITE_SIGNED or write == WRITE_UNSIGNED or write == WRITE_BITS:
        return VALUE_LONG
    if write == WRITE_BIGINT:
        return VALUE_UNSIGNED
    if write == WRITE_FLOAT:
        return VALUE_FLOAT
    if write == WRITE_DOUBLE:
        return VALUE_DOUBLE
    return VALUE_BYTES if write == WRITE_BYTES else VALUE_STRING


cdef inline bint _read_bits(const Span *text, uint64_t *out) noexcept nogil:
    cdef int64_t number = 0
    if text.n and text.p[0] == c'-':
        if tg_parse_i64(text.p, text.n, &number) < 0:
            return False
        out[0] = <uint64_t>number
        return True
    return tg_parse_u64(text.p, text.n, out) == 0


cdef inline uint8_t *_put_value(uint8_t *at, const PlanColumn *column, const Span *text,
                                const uint8_t *limit) noexcept nogil:
    """The value behind its union index; NULL if it is none of its type. There is room for it."""
    cdef int64_t number = 0
    cdef uint64_t raw = 0
    cdef double real
    cdef float short_real
    cdef uint32_t short_raw
    cdef int i
    if column.write == WRITE_TEXT:
        if TG_LIKELY(text.n < 64):
            at[0] = <uint8_t>(text.n << 1)
            at += 1
        else:
            at = tg_put_varint(at, <uint64_t>text.n << 1)
        tg_copy(at, text.p, text.n, limit)
        return at + text.n
    if column.write == WRITE_SIGNED:
        if tg_parse_i64(text.p, text.n, &number) < 0 or not signed_fits(number, column.bits):
            return NULL
        return tg_put_varint(at, zigzag(number))
    if column.write == WRITE_UNSIGNED or column.write == WRITE_BIGINT:
        if tg_parse_u64(text.p, text.n, &raw) < 0 or not unsigned_fits(raw, column.bits):
            return NULL
        return tg_put_varint(at, zigzag(<int64_t>raw))
    if column.write == WRITE_BITS:
        if not _read_bits(text, &raw):
            return NULL
        return tg_put_varint(at, zigzag(<int64_t>raw))
    if column.write == WRITE_BITS_TEXT:
        if not _read_bits(text, &raw):
            return NULL
        i = tg_format_u64(raw, at + 1)
        at[0] = <uint8_t>(i << 1)
        return at + 1 + i
    if column.write == WRITE_DOUBLE:
        if tg_parse_double(text.p, text.n, &real) < 0:
            return NULL
        memcpy(&raw, &real, 8)
        for i in range(8):
            at[i] = <uint8_t>(raw >> (8 * i))
        return at + 8
    if column.write == WRITE_FLOAT:
        if tg_parse_float(text.p, text.n, &short_real) < 0:
            return NULL
        memcpy(&short_raw, &short_real, 4)
        for i in range(4):
            at[i] = <uint8_t>(short_raw >> (8 * i))
        return at + 4
    # The bytes: their number follows from the padding.
    raw = text.n // 4 * 3
    if text.n >= 4:
        raw -= (text.p[text.n - 1] == c'=') + (text.p[text.n - 2] == c'=')
    at = tg_put_varint(at, raw << 1)
    if tg_base64_decode(text.p, text.n, at) != <int64_t>raw:
        return NULL
    return at + raw


cdef inline bint _is_carried(const Span *missing, int32_t column) noexcept nogil:
    return <size_t>(column >> 3) >= missing.n or \
        not (missing.p[column >> 3] >> (column & 7)) & 1


cdef int32_t _put_map(Buffer *b, SimpleAvroPlan plan, const CellsView *cells, int64_t row,
                      const Span *missing, bint keys_only) noexcept nogil:
    """A row as a map; columns whose bit is set in `missing` are not carried. 0; -1 without memory;
    or the number, from 1 on, of the column whose value is none of its type."""
    cdef const PlanColumn *column = plan.columns
    cdef const PlanColumn *end = column + plan.count
    cdef int64_t first = cells.lists[row]
    cdef const int32_t *ends = cells.ends + first
    cdef const uint8_t *texts = cells.text
    cdef const uint8_t *texts_limit = cells.limit
    cdef const uint8_t *literals_limit = plan.limit
    cdef const uint8_t *valid = cells.valid
    cdef int32_t count = plan.keys if keys_only else plan.count
    cdef bint whole = missing.n == 0 and not keys_only
    cdef uint8_t *at
    cdef Span text
    first += cells.valid_base
    if missing.n:
        count = 0
        while column < end:
            count += (column.is_key or not keys_only) and _is_carried(missing, column.index)
            column += 1
        column = plan.columns
    if buffer_reserve(b, 2 * <size_t>(ends[plan.count] - ends[0]) + plan.room) < 0:
        return -1
    at = b.data + b.used
    if count:
        at = tg_put_varint(at, <uint64_t>count << 1)
    while column < end:
        if whole or ((column.is_key or not keys_only) and _is_carried(missing, column.index)):
            tg_copy(at, column.literal, column.size, literals_limit)
            if TG_LIKELY(bit_at(valid, first + column.index)):
                text.p = texts + ends[column.index]
                text.n = <size_t>(ends[column.index + 1] - ends[column.index])
                at = _put_value(at + column.size, column, &text, texts_limit)
                if TG_UNLIKELY(at == NULL):
                    return <int32_t>(column - plan.columns) + 1
            else:
                at[column.bare] = VALUE_NULL
                at += column.bare + 1
        column += 1
    at[0] = 0
    b.used = at + 1 - b.data
    return 0


cdef class SimpleAvroEncoder(SimpleEncoder):
    """Encodes change batches as messages of the Simple protocol's Avro encoding."""

    cdef SimplePlan row_plan(self, object shape, int64_t version, str database, str table):
        cdef SimpleAvroPlan plan = SimpleAvroPlan.__new__(SimpleAvroPlan)
        cdef PlanColumn *column
        cdef const uint8_t *literals
        cdef int index, code, flags
        plan.head = _opening(DML) + _sized(database) + _sized(table)
        plan.tail = _long(self.options.build_ts) + _long(version)
        plan.columns = <PlanColumn *>malloc((len(shape.columns) + 1) * sizeof(PlanColumn))
        if plan.columns == NULL:
            raise MemoryError
        texts = []
        for index, shape_column in sorted(enumerate(shape.columns), key=lambda one: one[1].name.encode()):
            if shape_column.code is None or form_of(shape_column.code, shape_column.flags or 0) == FORM_UNKNOWN:
                raise SchemaNotSeen(database, table, version=version, shape=shape.id)
            code = shape_column.code
            flags = shape_column.flags or 0
            column = &plan.columns[len(texts)]
            name = _sized(shape_column.name)
            column.index = index
            column.is_key = shape_column.key
            plan.keys += shape_column.key
            column.write = _write_of(code, flags, self.options.generation)
            column.bits = bits_of(code)
            column.bare = len(name)
            literal = name + bytes([_union_of(code, column.write)])
            if code == CODE_TIMESTAMP:
                literal += _sized(shape_column.zone or self.options.time_zone)
            column.size = len(literal)
            texts.append(literal)
        plan.literals = b"".join(texts) + bytes(32)
        literals = plan.literals
        plan.limit = literals + len(plan.literals)
        for index in range(len(texts)):
            plan.columns[index].literal = literals
            literals += plan.columns[index].size
        plan.room = len(plan.literals) + (len(texts) + 1) * INTEGER_ROOM
        return plan

    cdef int write_row(self, SimplePlan general, int64_t row, int kind,
                       const Span *location, bint keys_only, bint says_keys_only) except -1:
        cdef SimpleAvroPlan plan = <SimpleAvroPlan>general
        cdef Buffer *b = &self.messages.value
        cdef int64_t table_id = 0, current = 0, previous = 0
        cdef Span missing
        cdef bint has_checksum
        cdef uint8_t *at
        cdef int32_t wrong = 0
        missing.p = NULL
        missing.n = 0
        long_at(&self.reader.table_id, row, &table_id)
        has_checksum = long_at(&self.reader.current, row, &current) and \
            long_at(&self.reader.previous, row, &previous)
        if buffer_reserve(b, len(plan.head) + len(plan.tail) + location.n + 128) < 0:
            raise MemoryError
        at = b.data + b.used
        memcpy(at, <const char *>plan.head, len(plan.head))
        at = tg_put_varint(at + len(plan.head), zigzag(table_id))
        at[0] = 2 * (INSERT if kind == KIND_INSERT else UPDATE if kind == KIND_UPDATE else DELETE)
        at = tg_put_varint(at + 1, zigzag(self.commit_ts(row)))
        memcpy(at, <const char *>plan.tail, len(plan.tail))
        at += len(plan.tail)
        # Three members of which rows mostly have none: null, or something else.
        at[0] = 0 if location.p == NULL else 2
        at += 1
        if location.p != NULL:
            at = tg_put_varint(at, <uint64_t>location.n << 1)
            memcpy(at, location.p, location.n)
            at += location.n
            says_keys_only = True
        at[0] = 2 if says_keys_only else 0
        at[1] = 1
        at += 1 + says_keys_only
        at[0] = 2 if has_checksum else 0
        at += 1
        if has_checksum:
            at = tg_put_varint(at, zigzag(self.checksum_versions[row]))
            at[0] = self.reader.flags[row] & FLAG_CORRUPTED != 0
            at = tg_put_varint(tg_put_varint(at + 1, zigzag(current)), zigzag(previous))
        at[0] = 0 if kind == KIND_DELETE else 2
        b.used = at + 1 - b.data
        if kind != KIND_DELETE:
            wrong = _put_map(b, plan, &self.reader.after, row, &missing, keys_only)
        if wrong == 0:
            wrong = buffer_add_byte(b, 0 if kind == KIND_INSERT else 2)
        if wrong == 0 and kind != KIND_INSERT:
            if view_has(&self.reader.before, row):
                string_at(&self.reader.missing, row, &missing)
                wrong = _put_map(b, plan, &self.reader.before, row, &missing, keys_only)
            else:
                wrong = buffer_add_byte(b, 0)
        if wrong < 0:
            raise MemoryError
        if wrong:
            raise plan.refusal("a value does not fit its column", plan.columns[wrong - 1].index)
        return 0

    cdef bytes watermark(self, int64_t commit_ts):
        return _opening(WATERMARK) + _long(commit_ts) + _long(self.options.build_ts)

    cdef bytes ddl(self, str word, str query, int64_t commit_ts, dict schemas):
        word_index = DDL_TYPES.index(word.encode() if word.encode() in DDL_TYPES else b"QUERY")
        both = [schemas.get(member) for member in ("tableSchema", "preTableSchema")]
        return b"".join(
            [
                _opening(DDL),
                _long(word_index),
                _sized(query),
                _long(commit_ts),
                _long(self.options.build_ts),
                *(_optional(None if one is None else self._schema(one)) for one in both),
            ]
        )

    cdef bytes bootstrap(self, dict schema):
        return _opening(BOOTSTRAP) + _long(self.options.build_ts) + self._schema(schema)

    def _schema(self, schema):
        return _table_schema(schema, self.options.generation)
