"""Writes messages of the `cdc` binary format, in either profile: docs/protocols/cdc.md."""

cimport cython

import json

from tidegate.model import EncodeError, Flag, type_flags
from tidegate.model.types import BLOBS, is_string

from tidegate.wire.cdc.layout cimport *
from tidegate.wire.codec.encoder cimport MessageEncoder, RowPlan
from tidegate.wire.codec.prelude cimport *


OPTIONS = frozenset({"profile"})


# --- encoding ------------------------------------------------------------------------------------

def _column_json(column, flags):
    """A column in the profile "document": what a shape says of it."""
    document = {"name": column.name, "type": column.type, "code": column.code, "flags": flags}
    if column.key:
        document["key"] = True
    if column.zone is not None:
        document["zone"] = column.zone
    return document


_TO_MYSQL = (
    (Flag.PRIMARY_KEY, MYSQL_PRIMARY_KEY),
    (Flag.UNIQUE_KEY, MYSQL_UNIQUE_KEY),
    (Flag.MULTIPLE_KEY, MYSQL_MULTIPLE_KEY),
    (Flag.UNSIGNED, MYSQL_UNSIGNED),
    (Flag.BINARY, MYSQL_BINARY),
)


def _column_info(column, flags, place):
    """A column in the profile "operations": TiDB's ColumnInfo, and beside it what that cannot say."""
    mysql = sum(bit for flag, bit in _TO_MYSQL if flags & flag)
    if not flags & Flag.NULLABLE:
        mysql |= MYSQL_NOT_NULL
    if column.code in BLOBS:
        mysql |= MYSQL_BLOB
    binary = flags & Flag.BINARY or not is_string(column.code)
    document = {
        "id": place + 1,
        "name": {"O": column.name, "L": column.name.lower()},
        "offset": place,
        "type": {
            "Tp": column.code,
            "Flag": mysql,
            "Flen": -1,
            "Decimal": -1,
            "Charset": "binary" if binary else "utf8mb4",
            "Collate": "binary" if binary else "utf8mb4_bin",
            "Elems": None,
        },
        "state": STATE_PUBLIC,
        "comment": "",
        "mysqlType": column.type,
        "flags": flags,
    }
    if column.key:
        document["key"] = True
    if column.zone is not None:
        document["zone"] = column.zone
    return document


def _string(data):
    """A string behind its length."""
    length = len(data)
    head = bytearray()
    while length >= 0x80:
        head.append(length & 0x7f | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + data


cdef class CdcPlan(RowPlan):
    """How rows of a shape are written: what stands before each value, and behind all of them."""
    cdef bytes names        # the strings database and table
    cdef list literals      # the name of each column as a string
    cdef list infos         # its JSON as a string
    cdef bytes all_infos    # those of all columns behind their number
    cdef Buffer forms       # int32
    cdef Buffer codes       # int32

    def __cinit__(self, shape, bint operations):
        cdef int32_t form, code
        self.protocol = "cdc"
        self.shape = shape
        self.count = <int32_t>len(shape.columns)
        self.names = _string(shape.database.encode()) + _string(shape.table.encode())
        self.literals = []
        self.infos = []
        if not 0 < self.count <= MAX_COLUMNS:
            raise self.refusal(f"a row of {self.count} columns has no form in cdc")
        for place, column in enumerate(shape.columns):
            if column.code is None:
                raise self.refusal("the type of the column is not known", place)
            flags = column.flags
            if flags is None:
                flags = int(type_flags(column.code))
            if column.key:
                flags |= int(Flag.HANDLE_KEY)
            code = column.code
            form = form_of(code, flags)
            if form == FORM_UNKNOWN:
                raise self.refusal(f"the column's type {code} is not known", place)
            if buffer_add(&self.forms, <const uint8_t *>&form, 4) < 0 or \
                    buffer_add(&self.codes, <const uint8_t *>&code, 4) < 0:
                raise MemoryError
            document = _column_info(column, flags, place) if operations else _column_json(column, flags)
            text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
            self.literals.append(_string(column.name.encode()))
            self.infos.append(_string(text.encode()))
        self.all_infos = self.count.to_bytes(4, "big") + b"".join(self.infos)

    def __dealloc__(self):
        buffer_free(&self.forms)
        buffer_free(&self.codes)


cdef int _put_be32(Buffer *b, uint32_t value) except -1:
    cdef uint8_t bytes_[4]
    _set_be32(bytes_, value)
    if buffer_add(b, bytes_, 4) < 0:
        raise MemoryError
    return 0


cdef inline void _set_be32(uint8_t *place, uint32_t value) noexcept nogil:
    place[0] = <uint8_t>(value >> 24)
    place[1] = <uint8_t>(value >> 16)
    place[2] = <uint8_t>(value >> 8)
    place[3] = <uint8_t>value


cdef int _put_bytes(Buffer *b, bytes data) except -1:
    if buffer_add(b, <const uint8_t *><const char *>data, len(data)) < 0:
        raise MemoryError
    return 0


cdef class CdcEncoder(MessageEncoder):
    """Writes change batches as cdc messages. The format has no watermarks: they are left out."""
    cdef bint operations
    cdef CdcPlan plan       # of the row being written
    cdef Buffer value       # a value being written
    # The message being put together, in the profile "operations".
    cdef int32_t rows
    cdef int32_t first_row
    cdef int64_t rows_ts    # their commit_ts
    cdef Buffer content

    def __init__(self, options, compress=None):
        MessageEncoder.__init__(self, options, compress)
        self.protocol = "cdc"
        self.operations = options.profile == "operations"

    def __dealloc__(self):
        buffer_free(&self.value)
        buffer_free(&self.content)

    cdef RowPlan new_plan(self, object shape):
        return CdcPlan(shape, self.operations)

    cdef int begin(self) except -1:
        self._forget_rows()
        return 0

    cdef int finish(self) except -1:
        return self._flush(self.messages)

    # --- messages ---

    cdef void _forget_rows(self) noexcept:
        self.rows = 0
        self.content.used = 0

    cdef int _flush(self, MessageBuilder messages) except -1:
        """The rows collected are a message."""
        if self.rows:
            self._write_message(messages, TYPE_DML, self.rows_ts, self.first_row, self.rows)
        return 0

    cdef int _write_message(self, MessageBuilder messages, uint8_t kind, int64_t ts, int32_t row,
                            int32_t events) except -1:
        """A message of the content that was put together."""
        cdef Buffer *b = &messages.value
        cdef uint8_t header[HEADER_SIZE]
        if self.content.used > UINT32_MAX:
            raise EncodeError("cdc", f"the message of row {row} of the batch is over 4 GiB")
        _set_be32(header, MAGIC)
        header[4] = VERSION
        _set_be32(header + 5, <uint32_t>(<uint64_t>ts >> 32))
        _set_be32(header + 9, <uint32_t>ts)
        header[13] = kind
        if buffer_add(b, header, HEADER_SIZE) < 0:
            raise MemoryError
        if kind == TYPE_DML and self.operations:
            _put_be32(b, <uint32_t>events)
        _put_be32(b, <uint32_t>self.content.used)
        if buffer_add(b, self.content.data, self.content.used) < 0:
            raise MemoryError
        _put_be32(b, tg_crc32c(self.content.data, self.content.used))
        messages.end(False, row, events)
        self._forget_rows()
        return 0

    cdef int add_ddl(self, int64_t row) except -1:
        cdef BatchReader reader = self.reader
        cdef MessageBuilder messages = self.messages
        cdef Span query
        self._flush(messages)
        if not string_at(&reader.query, row, &query):
            raise EncodeError("cdc", f"the DDL in row {row} of the batch has no query")
        code = reader.ddl_code(row)
        job = {
            "query": _text_at(&reader.query, row).decode(),
            # TiDB's code where it is known, else Canal's word.
            "type": code if code is not None else _text_at(&reader.ddl_type, row).decode() or "QUERY",
        }
        text = json.dumps(job, ensure_ascii=False, separators=(",", ":")).encode()
        _put_bytes(&self.content, _string(_text_at(&reader.database, row)))
        _put_bytes(&self.content, _string(_text_at(&reader.table, row)))
        _put_bytes(&self.content, _string(text))
        return self._write_message(messages, TYPE_DDL, self.commit_ts(row), <int32_t>row, 1)

    # --- rows ---

    cdef int add_row(self, int64_t row, int kind) except -1:
        cdef BatchReader reader = self.reader
        cdef MessageBuilder messages = self.messages
        cdef const CellsView *view = &reader.before if kind == KIND_DELETE else &reader.after
        cdef int64_t ts = self.commit_ts(row)
        cdef size_t start
        self.plan = <CdcPlan>self.plan_of(row)
        if reader.flags[row] & (FLAG_HANDLE_KEY_ONLY | FLAG_CLAIM_CHECK):
            raise self.plan.refusal("only its key is there, and the protocol cannot say so")
        if kind == KIND_DELETE and not self.operations:
            raise self.plan.refusal(
                'the profile "document" cannot tell a delete from an insert; use the profile "operations"'
            )
        if not view_has(view, row) or view_count(view, row) != self.plan.count:
            raise self.plan.refusal(
                f"row {row} of the batch has {view_count(view, row)} values, not {self.plan.count}"
            )
        # A message of the profile "operations" is a transaction, or a part of one.
        if self.rows and (ts != self.rows_ts or self.rows >= self.max_events):
            self._flush(messages)
        start = self.content.used
        self._put_row(reader, view, row, kind)
        if self.rows and self.content.used > self.max_bytes:
            # It goes into the next message instead.
            row_bytes = (<const char *>self.content.data)[start:self.content.used]
            self.content.used = start
            self._flush(messages)
            _put_bytes(&self.content, row_bytes)
        if not self.rows:
            self.first_row = <int32_t>row
        self.rows_ts = ts
        self.rows += 1
        if not self.operations:
            self._flush(messages)
        return 0

    cdef int _put_row(self, BatchReader reader, const CellsView *view, int64_t row, int kind) except -1:
        cdef CdcPlan plan = self.plan
        cdef Buffer *b = &self.content
        cdef int32_t i
        carried = list(range(plan.count))
        if kind == KIND_DELETE:
            carried = [i for i in carried if reader.carried(row, i)]
            if not carried:
                raise plan.refusal(f"the delete in row {row} of the batch has no values")
        _put_bytes(b, plan.names)
        if self.operations:
            _put_be32(
                b, DML_INSERT if kind == KIND_INSERT else DML_UPDATE if kind == KIND_UPDATE else DML_DELETE
            )
        _put_be32(b, <uint32_t>len(carried))
        for i in carried:
            _put_bytes(b, plan.literals[i])
            if self.operations:
                self._put_json(view, row, i)
            else:
                self._put_data(view, row, i)
        if len(carried) == plan.count:
            _put_bytes(b, plan.all_infos)
        else:
            _put_be32(b, <uint32_t>len(carried))
            for i in carried:
                _put_bytes(b, plan.infos[i])
        return 0

    cdef int _check(self, int32_t column, int form, const Span *text) except -1:
        """Numbers must be such, so that what is written can be read again."""
        cdef double real = 0
        cdef uint64_t natural = 0
        cdef int64_t number = 0
        cdef int bits = bits_of((<const int32_t *>self.plan.codes.data)[column])
        if form == FORM_INTEGER or form == FORM_YEAR:
            if tg_parse_i64(text.p, text.n, &number) < 0:
                raise self.plan.refusal("the value is not an integer", column)
            if not (year_fits(number) if form == FORM_YEAR else signed_fits(number, bits)):
                raise self.plan.refusal("the value is out of the range of its type", column)
        elif form == FORM_UNSIGNED:
            if tg_parse_u64(text.p, text.n, &natural) < 0:
                raise self.plan.refusal("the value is not a natural number", column)
            if not unsigned_fits(natural, bits):
                raise self.plan.refusal("the value is out of the range of its type", column)
        elif form == FORM_FLOAT or form == FORM_DOUBLE:
            if tg_parse_double(text.p, text.n, &real) < 0:
                raise self.plan.refusal("the value is not a number", column)
        elif form == FORM_NULL:
            raise self.plan.refusal("the column has no values", column)
        return 0

    cdef int _put_data(self, const CellsView *view, int64_t row, int32_t column) except -1:
        """The profile "document": a type and the value's text, or its bytes if they are binary."""
        cdef Buffer *b = &self.content
        cdef int form = (<const int32_t *>self.plan.forms.data)[column]
        cdef int64_t size
        cdef Span text
        if not view_cell(view, row, column, &text):
            if buffer_add_byte(b, TYPE_NULL) < 0 or buffer_add_byte(b, 0) < 0:
                raise MemoryError
            return 0
        self._check(column, form, &text)
        if form == FORM_BINARY:
            self.value.used = 0
            if buffer_reserve(&self.value, text.n + 3) < 0:
                raise MemoryError
            size = tg_base64_decode(text.p, text.n, self.value.data)
            if size < 0:
                raise self.plan.refusal("the value of a binary column is not base64", column)
            text.p = self.value.data
            text.n = <size_t>size
        if buffer_add_byte(b, <uint8_t>(<const int32_t *>self.plan.codes.data)[column]) < 0 or \
                buffer_add_uvarint(b, text.n) < 0 or buffer_add(b, text.p, text.n) < 0:
            raise MemoryError
        return 0

    cdef int _put_json(self, const CellsView *view, int64_t row, int32_t column) except -1:
        """The profile "operations": a JSON object with the value as a number, a string or null."""
        cdef Buffer *b = &self.value
        cdef int form = (<const int32_t *>self.plan.forms.data)[column]
        cdef bint failed
        cdef Span text
        b.used = 0
        failed = buffer_add(b, <const uint8_t *>b'{"value":', 9) < 0
        if not view_cell(view, row, column, &text):
            failed |= buffer_add(b, <const uint8_t *>b"null", 4) < 0
        else:
            self._check(column, form, &text)
            if form in (FORM_INTEGER, FORM_UNSIGNED, FORM_YEAR, FORM_FLOAT, FORM_DOUBLE):
                failed |= buffer_add(b, text.p, text.n) < 0
            else:
                if form == FORM_BINARY:
                    self._check_base64(column, &text)
                failed |= json_put_string(b, text.p, text.n, text.p + text.n, STYLE_ENCODING_JSON) < 0
        failed |= buffer_add_byte(b, c'}') < 0
        if failed or buffer_add_uvarint(&self.content, b.used) < 0 or \
                buffer_add(&self.content, b.data, b.used) < 0:
            raise MemoryError
        return 0

    cdef int _check_base64(self, int32_t column, const Span *text) except -1:
        """Decodes it behind what is being written, where it is forgotten."""
        if buffer_reserve(&self.value, text.n + 3) < 0:
            raise MemoryError
        if tg_base64_decode(text.p, text.n, self.value.data + self.value.used) < 0:
            raise self.plan.refusal("the value of a binary column is not base64", column)
        return 0


cdef bytes _text_at(const StringsView *view, int64_t row):
    """The text, empty for null."""
    cdef Span text
    return (<const char *>text.p)[:text.n] if string_at(view, row, &text) else b""
