"""Rows of a MySQL text result set, straight from the packets of a connection to Arrow strings.

The strings are those of the change batch (docs/batch.md). Values are never Python objects, memory
is bounded by the batch and the largest row, and bytes that are no result set are refused.
Authority: "Text Resultset" and "ERR_Packet" of MySQL's client/server protocol.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stddef cimport size_t
from libc.stdint cimport INT32_MAX, int32_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove, memset

import pyarrow as pa

from tidegate.wire.kernel.buffer cimport (
    Buffer,
    Cells,
    buffer_add,
    buffer_add_i32,
    buffer_free,
    buffer_reserve,
    cell_copy,
    cell_end,
    cell_null,
    cells_free,
    cells_reserve,
)
from tidegate.wire.kernel.cursor cimport TG_LIKELY, TG_UNLIKELY, tg_all_set, tg_pack_bits
from tidegate.wire.kernel.text cimport (
    tg_base64_encode,
    tg_format_double,
    tg_format_float,
    tg_is_digit,
    tg_parse_double,
    tg_utf8_valid,
)
from tidegate.wire.kernel.values cimport (
    FORM_BINARY,
    FORM_DECIMAL,
    FORM_DOUBLE,
    FORM_FLOAT,
    FORM_INTEGER,
    FORM_UNSIGNED,
    FORM_YEAR,
    form_of,
)

cdef enum:
    INPUT = 262144              # bytes asked of the connection at once
    HEADER = 4                  # three bytes of length, one of sequence
    WHOLE = 0xffffff            # a packet of this length is continued by the next one
    NUMBER = 400                # the longest text of a double
    SPARE = 1 << 24             # bytes of a column that are kept ready for the next batch

cdef enum How:
    HOW_COPY
    HOW_WHOLE                   # an integer, which ZEROFILL may have padded
    HOW_DECIMAL
    HOW_FLOAT
    HOW_DOUBLE
    HOW_BASE64

cdef enum Outcome:
    WANTS_BYTES
    BATCH_FULL
    SET_ENDED
    SERVER_ERROR
    BAD_SEQUENCE
    BAD_ROW
    BAD_NUMBER
    NO_MEMORY


class ResultError(Exception):
    """The server ended the result set with an error: its code and what it said."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(code, message)


class BrokenResult(Exception):
    """The bytes are not those of a result set, or they ended before it did."""


class UnreadableValue(Exception):
    """A value of a column, counted from 0, is not what its type says."""

    def __init__(self, column: int, reason: str) -> None:
        self.column = column
        self.reason = reason
        super().__init__(column, reason)


@cython.final
cdef class _Block:
    """Owns the memory of an Arrow buffer."""
    cdef uint8_t *data

    def __dealloc__(self):
        free(self.data)


cdef object _given(Buffer *b):
    """The bytes as an Arrow buffer that owns them; b is empty afterwards."""
    cdef _Block block
    cdef size_t used = b.used
    if b.data == NULL:
        return pa.py_buffer(b"")
    block = _Block.__new__(_Block)
    block.data = b.data
    memset(b, 0, sizeof(Buffer))
    return pa.foreign_buffer(<size_t>block.data, used, block)


cdef object _bitmap(const uint8_t *valid, size_t count):
    cdef Buffer bits
    if tg_all_set(valid, count, 0):
        return None
    memset(&bits, 0, sizeof(Buffer))
    if buffer_reserve(&bits, count // 8 + 1) < 0:
        raise MemoryError
    tg_pack_bits(valid, count, 0, bits.data)
    bits.used = (count + 7) // 8
    return _given(&bits)


cdef inline bint _splits_no_character(const Cells *cells) noexcept nogil:
    """Whether no value of a valid text begins in the middle of a character."""
    cdef const int32_t *ends = <const int32_t *>cells.ends.data
    cdef size_t i
    cdef uint8_t broken = 0
    for i in range(cells.count):
        if <size_t>ends[i] < cells.text.used:
            broken |= (cells.text.data[ends[i]] & 0xc0) == 0x80
    return not broken


cdef inline size_t _padding(const uint8_t *p, size_t n) noexcept nogil:
    """How many zeros stand before the first digit that counts."""
    cdef size_t zeros = 0
    while zeros + 1 < n and p[zeros] == c"0" and tg_is_digit(p[zeros + 1]):
        zeros += 1
    return zeros


cdef inline int _add_number(Cells *cells, const uint8_t *p, size_t n) noexcept nogil:
    """A decimal text without the zeros before it, which no feed carries. -1 without memory."""
    cdef size_t zeros
    if buffer_reserve(&cells.text, n) < 0:
        return -1
    if n > 1 and p[0] == c"-":
        cells.text.data[cells.text.used] = c"-"
        cells.text.used += 1
        p += 1
        n -= 1
    zeros = _padding(p, n)
    buffer_add(&cells.text, p + zeros, n - zeros)
    cell_end(cells)
    return 0


cdef inline int _add_real(Cells *cells, const uint8_t *p, size_t n, bint single) noexcept nogil:
    """1 if the text is no number, -1 without memory."""
    cdef double value = 0
    cdef int length
    if tg_parse_double(p, n, &value) < 0:
        return 1
    if buffer_reserve(&cells.text, NUMBER) < 0:
        return -1
    if single:
        length = tg_format_float(<float>value, cells.text.data + cells.text.used)
    else:
        length = tg_format_double(value, cells.text.data + cells.text.used)
    if length < 0:
        return 1
    cells.text.used += <size_t>length
    cell_end(cells)
    return 0


cdef inline int _add_base64(Cells *cells, const uint8_t *p, size_t n) noexcept nogil:
    if buffer_reserve(&cells.text, 4 * ((n + 2) // 3)) < 0:
        return -1
    cells.text.used += tg_base64_encode(p, n, cells.text.data + cells.text.used)
    cell_end(cells)
    return 0


cdef inline int _how(int form) noexcept:
    if form == FORM_INTEGER or form == FORM_UNSIGNED or form == FORM_YEAR:
        return HOW_WHOLE
    if form == FORM_DECIMAL:
        return HOW_DECIMAL
    if form == FORM_FLOAT:
        return HOW_FLOAT
    if form == FORM_DOUBLE:
        return HOW_DOUBLE
    if form == FORM_BINARY:
        return HOW_BASE64
    return HOW_COPY


@cython.final
cdef class ResultRows:
    """A result set that is being read; `types` has the code and the flags of each column."""

    cdef size_t columns
    cdef int *how
    cdef Cells *cells
    cdef Buffer input           # what was received; `taken` bytes of it are used
    cdef size_t taken
    cdef size_t wanted          # bytes from `taken` on that the next packet takes, if it is known
    cdef Buffer joined          # a row of several packets
    cdef bint joins
    cdef uint8_t sequence
    cdef size_t held            # bytes of the batch under way
    cdef size_t faulty          # the column of an unreadable value
    cdef readonly bint ended

    def __cinit__(self, types, int sequence):
        cdef size_t i
        self.columns = len(types)
        self.how = <int *>calloc(self.columns + 1, sizeof(int))
        self.cells = <Cells *>calloc(self.columns + 1, sizeof(Cells))
        if self.how == NULL or self.cells == NULL:
            raise MemoryError
        for i in range(self.columns):
            code, flags = types[i]
            self.how[i] = _how(form_of(code, flags))
        self.sequence = <uint8_t>sequence
        self._start_cells()

    def __dealloc__(self):
        cdef size_t i
        if self.cells != NULL:
            for i in range(self.columns):
                cells_free(&self.cells[i])
        free(self.cells)
        free(self.how)
        buffer_free(&self.input)
        buffer_free(&self.joined)

    def read(self, readinto, size_t limit):
        """The next rows as a list of string arrays, about `limit` bytes of them; None at the end.

        `readinto` puts received bytes into a buffer and returns their number, 0 at the end.
        """
        cdef int outcome
        while not self.ended:
            with nogil:
                outcome = self._parse(limit)
            if outcome == WANTS_BYTES:
                self._receive(readinto)
            elif outcome == BATCH_FULL:
                break
            elif outcome == SET_ENDED:
                self.ended = True
            else:
                self._refuse(outcome)
        return self._take() if self.columns and self.cells[0].count else None

    cdef _receive(self, readinto):
        cdef size_t room
        if self.taken:
            self.input.used -= self.taken
            memmove(self.input.data, self.input.data + self.taken, self.input.used)
            self.taken = 0
        room = self.wanted - self.input.used if self.wanted > self.input.used else 0
        if room < INPUT:
            room = INPUT
        if buffer_reserve(&self.input, room) < 0:
            raise MemoryError
        view = PyMemoryView_FromMemory(
            <char *>self.input.data + self.input.used, <Py_ssize_t>room, PyBUF_WRITE
        )
        received = readinto(view)
        view.release()
        if not received:
            raise BrokenResult("the connection ended within a result set")
        self.input.used += <size_t>received

    cdef _refuse(self, int outcome):
        cdef bytes packet
        self.ended = True
        if outcome == NO_MEMORY:
            raise MemoryError
        if outcome == BAD_NUMBER:
            raise UnreadableValue(self.faulty, "is not a number")
        if outcome == SERVER_ERROR:
            packet = self.joined.data[: self.joined.used]
            code = int.from_bytes(packet[1:3], "little")
            message = packet[9:] if packet[3:4] == b"#" else packet[3:]
            raise ResultError(code, message.decode("utf-8", "replace"))
        reason = "a packet is missing" if outcome == BAD_SEQUENCE else "a row has another form"
        raise BrokenResult(reason)

    cdef int _parse(self, size_t limit) noexcept nogil:
        cdef const uint8_t *p
        cdef size_t length, there
        cdef int outcome
        while True:
            if self.held >= limit:
                return BATCH_FULL
            p = self.input.data + self.taken
            there = self.input.used - self.taken
            self.wanted = HEADER
            if there < HEADER:
                return WANTS_BYTES
            length = p[0] | <size_t>p[1] << 8 | <size_t>p[2] << 16
            self.wanted = HEADER + length
            if there < self.wanted:
                return WANTS_BYTES
            if p[3] != self.sequence:
                return BAD_SEQUENCE
            self.sequence += 1
            self.taken += self.wanted
            p += HEADER
            if TG_UNLIKELY(self.joins or length == WHOLE):
                outcome = self._join(p, length)
            elif length > 0 and p[0] >= 0xfe and (p[0] == 0xff or length < 9):
                return self._end(p, length)
            else:
                outcome = self._row(p, length, self.input.data + self.input.used)
            if TG_UNLIKELY(outcome != BATCH_FULL):
                return outcome

    cdef int _end(self, const uint8_t *p, size_t length) noexcept nogil:
        if p[0] == 0xfe:
            return SET_ENDED
        self.joined.used = 0
        return NO_MEMORY if buffer_add(&self.joined, p, length) < 0 else SERVER_ERROR

    cdef int _join(self, const uint8_t *p, size_t length) noexcept nogil:
        """Adds a packet to a row of several."""
        cdef int outcome
        self.joins = True
        if buffer_add(&self.joined, p, length) < 0:
            return NO_MEMORY
        if length == WHOLE:
            return BATCH_FULL
        outcome = self._row(self.joined.data, self.joined.used, self.joined.data + self.joined.used)
        self.joins = False
        buffer_free(&self.joined)
        return outcome

    cdef int _row(self, const uint8_t *p, size_t length, const uint8_t *limit) noexcept nogil:
        """Adds a row; BATCH_FULL says that it is there."""
        cdef const uint8_t *end = p + length
        cdef Cells *cells
        cdef size_t i, n
        cdef int outcome
        for i in range(self.columns):
            cells = &self.cells[i]
            if cells_reserve(cells, 1) < 0:
                return NO_MEMORY
            if p == end:
                return BAD_ROW
            n = p[0]
            p += 1
            if n >= 0xfb:
                if n == 0xfb:
                    cell_null(cells)
                    continue
                p = _long_length(p, end, &n)
                if p == NULL:
                    return BAD_ROW
            if n > <size_t>(end - p):
                return BAD_ROW
            outcome = self._value(cells, self.how[i], p, n, limit)
            if TG_UNLIKELY(outcome != 0):
                self.faulty = i
                return NO_MEMORY if outcome < 0 else BAD_NUMBER
            p += n
        self.held += length + 5 * self.columns
        return BATCH_FULL if p == end else BAD_ROW

    cdef inline int _value(
        self, Cells *cells, int how, const uint8_t *p, size_t n, const uint8_t *limit
    ) noexcept nogil:
        if TG_LIKELY(how == HOW_COPY):
            return cell_copy(cells, p, n, limit)
        if how == HOW_WHOLE or how == HOW_DECIMAL:
            if TG_LIKELY(n > 0 and p[0] != c"0" and p[0] != c"-"):
                return cell_copy(cells, p, n, limit)
            return _add_number(cells, p, n)
        if how == HOW_BASE64:
            return _add_base64(cells, p, n)
        return _add_real(cells, p, n, how == HOW_FLOAT)

    cdef _start_cells(self):
        cdef size_t i
        self.held = 0
        for i in range(self.columns):
            if buffer_add_i32(&self.cells[i].ends, 0) < 0:
                raise MemoryError

    cdef list _take(self):
        cdef size_t i
        arrays = [self._array(i) for i in range(self.columns)]
        self._start_cells()
        return arrays

    cdef object _array(self, size_t i):
        cdef Cells *cells = &self.cells[i]
        cdef size_t count = cells.count
        cdef size_t text = cells.text.used
        if text > INT32_MAX:
            raise OverflowError("a column of one batch holds more than 2 GiB")
        if self.how[i] == HOW_COPY and not (
            tg_utf8_valid(cells.text.data, text) and _splits_no_character(cells)
        ):
            raise UnreadableValue(i, "is not UTF-8")
        valid = _bitmap(cells.valid.data, count)
        ends, bytes_ = _given(&cells.ends), _given(&cells.text)
        cells.count = 0
        cells.valid.used = 0
        # The next batch is likely to be as large, but one huge value says nothing of the next.
        if text > SPARE:
            text = SPARE
        if buffer_reserve(&cells.ends, 4 * (count + 1)) < 0 or buffer_reserve(&cells.text, text) < 0:
            raise MemoryError
        return pa.Array.from_buffers(pa.string(), count, [valid, ends, bytes_])


cdef inline const uint8_t *_long_length(
    const uint8_t *p, const uint8_t *end, size_t *out
) noexcept nogil:
    """Reads the rest of a length of more than a byte, whose first byte is in `out`."""
    cdef size_t size, i
    cdef uint64_t value = 0
    if out[0] == 0xff:
        return NULL
    size = 2 if out[0] == 0xfc else 3 if out[0] == 0xfd else 8
    if <size_t>(end - p) < size:
        return NULL
    for i in range(size):
        value |= <uint64_t>p[i] << (8 * i)
    out[0] = <size_t>value
    return p + size
