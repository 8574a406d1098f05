"""Row checksums: whether rows still are what TiDB wrote.

TiDB's checksum of a row is the CRC-32 (IEEE) of its values in the order of the columns' ids, which
is the order of a table schema's columns; docs/protocols/simple.md says what of each value goes in.
No row is dropped: a row whose checksum does not match is marked.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcpy, memset

from datetime import datetime, timezone
from zoneinfo import ZoneInfo

import pyarrow as pa

from tidegate.model import Flag, MySQLType
from tidegate.model.types import INTEGERS, STRINGS

from tidegate.wire.batch.builder cimport (
    FLAG_CHECKSUM_FAILED,
    FLAG_CLAIM_CHECK,
    FLAG_HANDLE_KEY_ONLY,
)
from tidegate.wire.batch.reader cimport (
    BatchReader,
    CellsView,
    long_at,
    string_at,
    view_cell,
    view_count,
    view_has,
)
from tidegate.wire.kernel.buffer cimport Buffer, buffer_free, buffer_reserve
from tidegate.wire.kernel.cursor cimport Span
from tidegate.wire.kernel.text cimport (
    tg_base64_decode,
    tg_crc32,
    tg_parse_double,
    tg_parse_float,
    tg_parse_i64,
    tg_parse_u64,
)

# How a column's values go into the checksum.
cdef enum Part:
    PART_NUMBER = 1     # 64 bits
    PART_FLOAT = 2      # the bits of the double, also of a FLOAT
    PART_DOUBLE = 3
    PART_TEXT = 4       # a 32-bit length and the bytes
    PART_BINARY = 5
    PART_MOMENT = 6     # the text of the moment in UTC
    PART_VECTOR = 7     # a 32-bit count and the bits of the floats

_NUMBERS = frozenset({*INTEGERS, MySQLType.YEAR, MySQLType.ENUM, MySQLType.SET, MySQLType.BIT})
_NOTHING = frozenset({MySQLType.NULL, MySQLType.GEOMETRY})


cdef struct Step:
    int32_t column
    int32_t part


cdef class _Plan:
    """The columns of a shape in the order of its table schema."""
    cdef Step *steps
    cdef int32_t count
    cdef int32_t columns
    cdef list zones     # by step

    def __cinit__(self, shape):
        places = {column.name: index for index, column in enumerate(shape.columns)}
        # Virtual generated columns are in the schema, but not in rows and not in checksums.
        declared = [
            column
            for column in shape.schema.columns
            if column.name in places and column.code not in _NOTHING
        ]
        self.columns = len(shape.columns)
        self.zones = [shape.columns[places[column.name]].zone for column in declared]
        self.steps = <Step *>malloc((len(declared) + 1) * sizeof(Step))
        if self.steps == NULL:
            raise MemoryError
        for column in declared:
            self.steps[self.count].column = places[column.name]
            self.steps[self.count].part = _part_of(column)
            self.count += 1

    def __dealloc__(self):
        free(self.steps)


def _part_of(column) -> int:
    if column.code in _NUMBERS:
        return PART_NUMBER
    if column.code in STRINGS:
        return PART_BINARY if column.type_flags & Flag.BINARY else PART_TEXT
    return {
        MySQLType.FLOAT: PART_FLOAT,
        MySQLType.DOUBLE: PART_DOUBLE,
        MySQLType.TIMESTAMP: PART_MOMENT,
        MySQLType.VECTOR: PART_VECTOR,
    }.get(column.code, PART_TEXT)


cdef uint32_t _add_sized(uint32_t crc, const uint8_t *p, size_t n) noexcept nogil:
    cdef uint8_t size[4]
    size[0] = <uint8_t>n
    size[1] = <uint8_t>(n >> 8)
    size[2] = <uint8_t>(n >> 16)
    size[3] = <uint8_t>(n >> 24)
    return tg_crc32(tg_crc32(crc, size, 4), p, n)


cdef uint32_t _add_word(uint32_t crc, uint64_t word, int size) noexcept nogil:
    """The `size` low bytes of the word, least significant first."""
    cdef uint8_t little[8]
    cdef int i
    for i in range(size):
        little[i] = <uint8_t>(word >> (8 * i))
    return tg_crc32(crc, little, size)


cdef bint _add_vector(uint32_t *crc, const Span *text) noexcept nogil:
    """[1,2.5,…] as its count and floats."""
    cdef const uint8_t *p = text.p + 1
    cdef const uint8_t *end = text.p + text.n - 1
    cdef const uint8_t *comma
    cdef uint32_t count = 0, bits
    cdef float number = 0
    cdef size_t i
    if text.n < 2 or text.p[0] != c'[' or end[0] != c']':
        return False
    if p < end:
        count = 1
        for i in range(<size_t>(end - p)):
            count += p[i] == c','
    crc[0] = _add_word(crc[0], count, 4)
    while count:
        comma = <const uint8_t *>memchr(p, c',', end - p)
        if comma == NULL:
            comma = end
        if tg_parse_float(p, comma - p, &number) < 0:
            return False
        memcpy(&bits, &number, 4)
        crc[0] = _add_word(crc[0], bits, 4)
        p = comma + 1
        count -= 1
    return True


cdef bint _add_value(uint32_t *crc, int part, const Span *text, Buffer *scratch) noexcept nogil:
    """Adds a value that is not NULL, other than a moment; False if it is none of its type."""
    cdef int64_t signed_number = 0, size
    cdef uint64_t number = 0
    cdef double real = 0
    cdef float short_real = 0
    if part == PART_TEXT:
        crc[0] = _add_sized(crc[0], text.p, text.n)
    elif part == PART_NUMBER:
        if text.n and text.p[0] == c'-':
            if tg_parse_i64(text.p, text.n, &signed_number) < 0:
                return False
            number = <uint64_t>signed_number
        elif tg_parse_u64(text.p, text.n, &number) < 0:
            return False
        crc[0] = _add_word(crc[0], number, 8)
    elif part == PART_FLOAT or part == PART_DOUBLE:
        if part == PART_DOUBLE:
            if tg_parse_double(text.p, text.n, &real) < 0:
                return False
        elif tg_parse_float(text.p, text.n, &short_real) < 0:
            return False
        else:
            real = short_real
        memcpy(&number, &real, 8)
        crc[0] = _add_word(crc[0], number, 8)
    elif part == PART_BINARY:
        if buffer_reserve(scratch, text.n + 3) < 0:
            return False
        size = tg_base64_decode(text.p, text.n, scratch.data)
        if size < 0:
            return False
        crc[0] = _add_sized(crc[0], scratch.data, size)
    else:
        return _add_vector(crc, text)
    return True


def _in_utc(text, zone, fold):
    """The text of a TIMESTAMP in UTC; None if its zone is not known here. fold tells which of the
    two moments is meant that have the same text when a clock is set back."""
    if zone == "UTC" or text.startswith("0000-00-00"):
        return text
    try:
        local = datetime.fromisoformat(text[:19]).replace(tzinfo=ZoneInfo(zone), fold=fold)
        return local.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S") + text[19:]
    except (TypeError, ValueError, KeyError, OSError, OverflowError):
        return None


cdef enum:
    DIFFERS = 0
    MATCHES = 1
    UNKNOWN = 2     # nobody can tell


cdef int _compare(_Plan plan, const CellsView *cells, int64_t row, int64_t expected, int fold,
                  Buffer *scratch) except -1:
    """Whether the row's values have this checksum."""
    cdef uint32_t crc = 0
    cdef int32_t i
    cdef Span text
    cdef bytes moment
    for i in range(plan.count):
        if not view_cell(cells, row, plan.steps[i].column, &text):
            continue
        if plan.steps[i].part == PART_MOMENT:
            found = _in_utc((<const char *>text.p)[:text.n].decode(), plan.zones[i], fold)
            if found is None:
                return UNKNOWN
            moment = found.encode()
            crc = _add_sized(crc, moment, len(moment))
        elif not _add_value(&crc, plan.steps[i].part, &text, scratch):
            return DIFFERS
    return MATCHES if crc == expected else DIFFERS


cdef bint _fails(_Plan plan, const CellsView *cells, int64_t row, int64_t expected,
                 Buffer *scratch) except -1:
    if expected == 0 or not view_has(cells, row):
        return False    # the upstream had no checksum for this row
    if view_count(cells, row) != plan.columns:
        return True
    return _compare(plan, cells, row, expected, 0, scratch) == DIFFERS and \
        _compare(plan, cells, row, expected, 1, scratch) == DIFFERS


def verify(batch, shapes):
    """The batch with EventFlag.CHECKSUM_FAILED set where values and checksum do not match.

    Rows without a checksum, rows whose table schema `shapes` has not seen, and rows that carry only
    some of their columns stay as they are.
    """
    cdef BatchReader reader
    cdef int64_t row, shape = 0, version = 0, current = 0, previous = 0
    cdef int32_t *flags
    cdef Buffer scratch
    cdef Span missing
    cdef _Plan plan
    cdef bint failed
    if batch.column("checksum").null_count == batch.num_rows:
        return batch
    reader = BatchReader(batch)
    changed = bytearray(4 * reader.count)
    flags = <int32_t *><char *>changed
    memcpy(flags, reader.flags, 4 * reader.count)
    plans = {}
    memset(&scratch, 0, sizeof(Buffer))
    try:
        for row in range(reader.count):
            if not long_at(&reader.current, row, &current) or \
                    not long_at(&reader.previous, row, &previous) or \
                    not long_at(&reader.shape, row, &shape) or \
                    not long_at(&reader.schema_version, row, &version) or \
                    flags[row] & (FLAG_HANDLE_KEY_ONLY | FLAG_CLAIM_CHECK):
                continue
            key = (shape, version)
            if key not in plans:
                known = shapes.shape(shape, version)
                plans[key] = None if known is None or known.schema is None else _Plan(known)
            plan = plans[key]
            if plan is None:
                continue
            failed = _fails(plan, &reader.after, row, current, &scratch)
            if not string_at(&reader.missing, row, &missing):
                failed |= _fails(plan, &reader.before, row, previous, &scratch)
            if failed:
                flags[row] |= FLAG_CHECKSUM_FAILED
    finally:
        buffer_free(&scratch)
    column = pa.Array.from_buffers(pa.int32(), reader.count, [None, pa.py_buffer(changed)])
    index = batch.schema.get_field_index("flags")
    return batch.set_column(index, batch.schema.field(index), column)
