"""The row scanner of dumps: CSV lines and SQL tuples to Arrow string columns, in the feed's forms.

A scanner reads whole rows only: of a row that the buffer does not hold to its end nothing is kept,
and the caller comes again with more. What Dumpling cannot have written with the options given is an
error with its byte, never a guess. Authority: docs/batch.md for the strings.
"""

import re

import pyarrow as pa

cimport cython
from libc.math cimport isfinite
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy, memset

from tidegate.wire.kernel.buffer cimport (
    Buffer,
    Cells,
    buffer_add,
    buffer_add_i32,
    buffer_free,
    buffer_reserve,
    cell_end,
    cell_null,
    cells_cut,
    cells_free,
    cells_reserve,
)
from tidegate.wire.kernel.cursor cimport tg_all_set, tg_pack_bits
from tidegate.wire.kernel.text cimport (
    tg_ascii_run,
    tg_base64_decode,
    tg_base64_encode,
    tg_format_double,
    tg_format_float,
    tg_format_i64,
    tg_format_u64,
    tg_is_digit,
    tg_parse_double,
    tg_parse_float,
    tg_utf8_valid,
)

cdef extern from *:
    ctypedef unsigned long long uint128 "unsigned __int128"

TEXT, BINARY, INTEGER, DECIMAL, FLOAT, DOUBLE, TEMPORAL, CHOICE, BITS = range(9)
RAW, HEX, BASE64 = range(3)

cdef enum:
    K_TEXT = 0
    K_BINARY = 1
    K_INTEGER = 2
    K_DECIMAL = 3
    K_FLOAT = 4
    K_DOUBLE = 5
    K_TEMPORAL = 6
    K_CHOICE = 7
    K_BITS = 8

cdef enum:
    E_RAW = 0
    E_HEX = 1
    E_BASE64 = 2

MAX_CHOICES = 1 << 16
MAX_HEAD_BYTES = 1 << 20

_HEAD = re.compile(rb"INSERT INTO ((?:[^`]|`[^`]*`)*?)\s*VALUES\s")
_LIST = re.compile(rb"\(((?:`(?:[^`]|``)*`)(?:,\s*`(?:[^`]|``)*`)*)\)\Z")
_NAME = re.compile(rb"`((?:[^`]|``)*)`")


class ScanError(Exception):
    """A buffer cannot be read at this position; `option` names a setting that may be wrong."""

    def __init__(self, position, reason, option=None):
        self.position = position
        self.reason = reason
        self.option = option
        super().__init__(position, reason, option)


@cython.final
cdef class _Memory:
    """Owns the block of an Arrow buffer."""
    cdef uint8_t *data

    def __dealloc__(self):
        free(self.data)


cdef object _give(Buffer *b):
    """The bytes as an Arrow buffer that owns them; b is empty afterwards."""
    cdef _Memory memory = _Memory.__new__(_Memory)
    cdef size_t used = b.used
    if b.data == NULL:
        return pa.py_buffer(b"")
    memory.data = b.data
    memset(b, 0, sizeof(Buffer))
    return pa.foreign_buffer(<size_t>memory.data, used, memory)


cdef inline const uint8_t *_address(object buffer) except NULL:
    """The bytes of an Arrow buffer, which the caller keeps."""
    return <const uint8_t *><size_t>buffer.address


cdef inline int _nibble(uint8_t byte) noexcept nogil:
    if tg_is_digit(byte):
        return byte - 48
    byte |= 32
    return byte - 87 if 97 <= byte <= 102 else -1


cdef class ColumnWriter:
    """Builds one string column from values as the dump has them.

    `choices` maps the names of an ENUM or SET to numbers; `resolve` adds the combinations of a SET.
    `most` is the most bytes a binary value of the column has, -1 if that is not known.
    """
    cdef readonly str name
    cdef readonly int kind
    cdef readonly int encoding
    cdef int64_t most
    cdef dict choices
    cdef object resolve
    cdef Cells cells
    cdef Buffer scratch

    def __cinit__(self, str name, int kind, int encoding=0, most=-1, choices=None, resolve=None):
        self.name = name
        self.kind = kind
        self.encoding = encoding
        self.most = most
        self.choices = {} if choices is None else dict(choices)
        self.resolve = resolve
        self._start()

    def __dealloc__(self):
        cells_free(&self.cells)
        buffer_free(&self.scratch)

    cdef int _start(self) except -1:
        memset(&self.cells, 0, sizeof(Cells))
        if buffer_add_i32(&self.cells.ends, 0) < 0 or buffer_reserve(&self.cells.text, 64) < 0:
            raise MemoryError
        return 0

    cdef inline int _room(self, size_t n) except -1:
        if self.cells.text.used + n > INT32_MAX:
            raise OverflowError("a column of a batch would have more than 2 GiB")
        if buffer_reserve(&self.cells.text, n) < 0 or cells_reserve(&self.cells, 1) < 0:
            raise MemoryError
        return 0

    cdef inline int put_null(self) except -1:
        if cells_reserve(&self.cells, 1) < 0:
            raise MemoryError
        cell_null(&self.cells)
        return 0

    cdef inline int _copy(self, const uint8_t *p, size_t n) except -1:
        self._room(n)
        if n:
            memcpy(self.cells.text.data + self.cells.text.used, p, n)
        self.cells.text.used += n
        cell_end(&self.cells)
        return 0

    cdef int put(self, const uint8_t *p, size_t n, int encoding) except -1:
        """One value; ValueError if it is none of the column's type."""
        if self.kind == K_TEXT:
            if tg_ascii_run(p, n) != n and not tg_utf8_valid(p, n):
                raise ValueError("is not UTF-8")
            return self._copy(p, n)
        if self.kind == K_INTEGER:
            return self._integer(p, n)
        if self.kind == K_DECIMAL:
            return self._decimal(p, n)
        if self.kind == K_TEMPORAL:
            return self._temporal(p, n)
        if self.kind == K_FLOAT or self.kind == K_DOUBLE:
            return self._real(p, n)
        if self.kind == K_CHOICE:
            return self._choice(p, n)
        return self._bytes(p, n, encoding)

    cdef int _integer(self, const uint8_t *p, size_t n) except -1:
        cdef bint negative = n > 0 and p[0] == 45
        cdef size_t i
        if negative:
            p += 1
            n -= 1
        if n == 0:
            raise ValueError("is not a whole number")
        for i in range(n):
            if not tg_is_digit(p[i]):
                raise ValueError("is not a whole number")
        while n > 1 and p[0] == 48:  # ZEROFILL and YEAR
            p += 1
            n -= 1
        self._room(n + 1)
        if negative and not (n == 1 and p[0] == 48):
            self.cells.text.data[self.cells.text.used] = 45
            self.cells.text.used += 1
        memcpy(self.cells.text.data + self.cells.text.used, p, n)
        self.cells.text.used += n
        cell_end(&self.cells)
        return 0

    cdef int _decimal(self, const uint8_t *p, size_t n) except -1:
        cdef size_t i = 1 if n and p[0] == 45 else 0
        cdef size_t start = i
        cdef bint point = False
        while i < n:
            if p[i] == 46 and not point and i > start and i + 1 < n:
                point = True
            elif not tg_is_digit(p[i]):
                raise ValueError("is not a decimal number")
            i += 1
        if i == start:
            raise ValueError("is not a decimal number")
        return self._copy(p, n)

    cdef int _temporal(self, const uint8_t *p, size_t n) except -1:
        cdef size_t i
        for i in range(n):
            if not (tg_is_digit(p[i]) or p[i] == 45 or p[i] == 58 or p[i] == 32 or p[i] == 46):
                raise ValueError("is not a date or time")
        if n == 0:
            raise ValueError("is not a date or time")
        return self._copy(p, n)

    cdef int _real(self, const uint8_t *p, size_t n) except -1:
        cdef double wide
        cdef float narrow
        if self.kind == K_FLOAT:
            if tg_parse_float(p, n, &narrow) < 0:
                raise ValueError("is not a number")
            return self.put_double(narrow)
        if tg_parse_double(p, n, &wide) < 0:
            raise ValueError("is not a number")
        return self.put_double(wide)

    cdef int put_double(self, double value) except -1:
        cdef int n
        self._room(400)
        if not isfinite(value):
            raise ValueError("is not a finite number")
        if self.kind == K_FLOAT:
            n = tg_format_float(<float>value, self.cells.text.data + self.cells.text.used)
        else:
            n = tg_format_double(value, self.cells.text.data + self.cells.text.used)
        if n < 0:
            raise ValueError("is not a finite number")
        self.cells.text.used += n
        cell_end(&self.cells)
        return 0

    cdef int put_i64(self, int64_t value) except -1:
        self._room(24)
        self.cells.text.used += tg_format_i64(
            value, self.cells.text.data + self.cells.text.used
        )
        cell_end(&self.cells)
        return 0

    cdef int _choice(self, const uint8_t *p, size_t n) except -1:
        cdef bytes name = p[:n]
        number = self.choices.get(name)
        if number is None:
            number = self.resolve(name) if self.resolve is not None else None
            if number is None:
                raise ValueError("is not an element of the column's type")
            if len(self.choices) >= MAX_CHOICES:
                self.choices.clear()
            self.choices[name] = number
        return self._copy(<const uint8_t *><const char *>number, len(<bytes>number))

    cdef int _bytes(self, const uint8_t *p, size_t n, int encoding) except -1:
        """BINARY and BIT, of which `encoding` says how the dump wrote the bytes."""
        cdef int64_t size
        cdef int high, low
        cdef size_t i
        cdef uint64_t bits = 0
        if encoding == E_HEX:
            if n % 2:
                raise ValueError("is not hexadecimal")
            self.scratch.used = 0
            if buffer_reserve(&self.scratch, n // 2) < 0:
                raise MemoryError
            for i in range(n // 2):
                high = _nibble(p[2 * i])
                low = _nibble(p[2 * i + 1])
                if high < 0 or low < 0:
                    raise ValueError("is not hexadecimal")
                self.scratch.data[i] = <uint8_t>(high << 4 | low)
            p = self.scratch.data
            n //= 2
        elif encoding == E_BASE64:
            self.scratch.used = 0
            if buffer_reserve(&self.scratch, 3 * (n // 4) + 8) < 0:
                raise MemoryError
            size = tg_base64_decode(p, n, self.scratch.data)
            if size < 0:
                raise ValueError("is not base64")
            p = self.scratch.data
            n = <size_t>size
        if 0 <= self.most < <int64_t>n:
            raise ValueError(f"has {n} bytes, and the column holds {self.most}")
        if self.kind == K_BITS:
            if n == 0 or n > 8:
                raise ValueError("is not a BIT value")
            for i in range(n):
                bits = bits << 8 | p[i]
            self._room(24)
            self.cells.text.used += tg_format_u64(
                bits, self.cells.text.data + self.cells.text.used
            )
            cell_end(&self.cells)
            return 0
        self._room(4 * ((n + 2) // 3))
        self.cells.text.used += tg_base64_encode(
            p, n, self.cells.text.data + self.cells.text.used
        )
        cell_end(&self.cells)
        return 0

    cdef int put_escaped(
        self, const uint8_t *p, size_t n, uint8_t quote, bint sql, int encoding
    ) except -1:
        """A value with backslash escapes; those that Dumpling does not write are refused."""
        cdef Buffer *target = &self.scratch
        cdef uint8_t *dst
        cdef size_t start, i = 0
        cdef const uint8_t *stop
        cdef uint8_t byte
        if self.kind == K_TEXT:
            self._room(n)
            target = &self.cells.text
        else:
            target.used = 0
            if buffer_reserve(target, n + 64) < 0:
                raise MemoryError
        start = target.used
        dst = target.data + start
        while i < n:
            stop = <const uint8_t *>memchr(p + i, 92, n - i)
            if stop == NULL:
                memcpy(dst, p + i, n - i)
                dst += n - i
                break
            memcpy(dst, p + i, <size_t>(stop - p) - i)
            dst += <size_t>(stop - p) - i
            i = <size_t>(stop - p) + 1
            byte = p[i] if i < n else 0
            if byte == 48:
                dst[0] = 0
            elif byte == 110:
                dst[0] = 10
            elif byte == 114:
                dst[0] = 13
            elif byte == 92 or byte == quote or (sql and byte == 34):
                dst[0] = byte
            elif sql and byte == 90:
                dst[0] = 26
            else:
                raise ValueError("has a backslash that escapes nothing", "escape_backslash")
            dst += 1
            i += 1
        n = <size_t>(dst - (target.data + start))
        if self.kind == K_TEXT:
            dst = target.data + start
            if tg_ascii_run(dst, n) != n and not tg_utf8_valid(dst, n):
                raise ValueError("is not UTF-8")
            target.used += n
            cell_end(&self.cells)
            return 0
        # `put` may decode in place: the scratch buffer has room for that and does not move.
        return self.put(target.data, n, encoding)

    cdef int put_doubled(
        self, const uint8_t *p, size_t n, const uint8_t *quote, size_t width, int encoding
    ) except -1:
        """A value in which a quote is written twice."""
        cdef Buffer *target = &self.scratch
        cdef size_t start, i = 0, used
        if self.kind == K_TEXT:
            self._room(n)
            target = &self.cells.text
        else:
            target.used = 0
            if buffer_reserve(target, n + 64) < 0:
                raise MemoryError
        start = target.used
        used = start
        while i < n:
            target.data[used] = p[i]
            if i + 2 * width <= n and memcmp(p + i, quote, width) == 0:
                memcpy(target.data + used, quote, width)
                used += width
                i += 2 * width
            else:
                used += 1
                i += 1
        n = used - start
        if self.kind == K_TEXT:
            if not tg_utf8_valid(target.data + start, n):
                raise ValueError("is not UTF-8")
            target.used = used
            cell_end(&self.cells)
            return 0
        return self.put(target.data, n, encoding)

    cdef object finish(self):
        """The column, which then starts again."""
        cdef Buffer bits
        cdef size_t count = self.cells.count
        validity = None
        if count and not tg_all_set(self.cells.valid.data, count, 0):
            memset(&bits, 0, sizeof(Buffer))
            if buffer_reserve(&bits, count // 8 + 1) < 0:
                raise MemoryError
            tg_pack_bits(self.cells.valid.data, count, 0, bits.data)
            bits.used = (count + 7) // 8
            validity = _give(&bits)
        array = pa.Array.from_buffers(
            pa.string(), count, [validity, _give(&self.cells.ends), _give(&self.cells.text)]
        )
        cells_free(&self.cells)
        self._start()
        return array

    # --- from Arrow ---------------------------------------------------------------------------

    def take_strings(self, array):
        """A column from an array of binary or string values, converted one by one."""
        cdef const uint8_t *bits = NULL
        cdef const int32_t *offsets
        cdef Py_ssize_t i, offset = array.offset, count = len(array)
        cdef const uint8_t *text = NULL
        cdef int encoding = E_RAW
        validity, starts, values = array.buffers()
        cdef bint nulls = validity is not None and array.null_count
        if count == 0:
            return self.finish()
        if nulls:
            bits = _address(validity)
        offsets = <const int32_t *>_address(starts) + offset
        text = _address(values) if values is not None and values.size else <const uint8_t *>b""
        for i in range(count):
            if nulls and not bits[(offset + i) >> 3] >> ((offset + i) & 7) & 1:
                self.put_null()
            else:
                self._checked(text + offsets[i], offsets[i + 1] - offsets[i], encoding, i)
        return self.finish()

    cdef int _checked(self, const uint8_t *p, size_t n, int encoding, Py_ssize_t row) except -1:
        try:
            self.put(p, n, encoding)
        except ValueError as error:
            raise ScanError(row, f"the value of column {self.name!r} {error.args[0]}") from None
        return 0

    def take_doubles(self, array):
        """A column from an array of doubles."""
        cdef const uint8_t *bits = NULL
        cdef const double *values
        cdef Py_ssize_t i, offset = array.offset, count = len(array)
        validity, numbers = array.buffers()
        cdef bint nulls = validity is not None and array.null_count
        if count == 0:
            return self.finish()
        if nulls:
            bits = _address(validity)
        values = <const double *>_address(numbers) + offset
        for i in range(count):
            if nulls and not bits[(offset + i) >> 3] >> ((offset + i) & 7) & 1:
                self.put_null()
                continue
            try:
                self.put_double(values[i])
            except ValueError as error:
                raise ScanError(i, f"the value of column {self.name!r} {error.args[0]}") from None
        return self.finish()

    def take_decimals(self, array, int scale, int digits):
        """A column from an array of decimal128, with this many digits after the point."""
        cdef const uint8_t *bits = NULL
        cdef Py_ssize_t i, offset = array.offset, count = len(array)
        cdef uint128 value
        validity, numbers = array.buffers()
        cdef bint nulls = validity is not None and array.null_count
        if count == 0:
            return self.finish()
        if nulls:
            bits = _address(validity)
        for i in range(count):
            if nulls and not bits[(offset + i) >> 3] >> ((offset + i) & 7) & 1:
                self.put_null()
                continue
            memcpy(&value, _address(numbers) + 16 * (offset + i), 16)
            if self._put_decimal(value, scale, digits) < 0:
                raise ScanError(i, f"the value of column {self.name!r} has too many digits")
        return self.finish()

    cdef int _put_decimal(self, uint128 value, int scale, int digits) except -2:
        cdef uint8_t text[128]
        cdef bint negative = value >> 127
        cdef int at = 128, i
        if negative:
            value = -value
        for i in range(scale - digits):  # what the column has no digits for must be zeros
            if value % 10:
                return -1
            value //= 10
        for i in range(digits - scale):
            at -= 1
            text[at] = 48
        i = max(digits - scale, 0)
        while value or i <= digits:
            if i == digits and digits:
                at -= 1
                text[at] = 46
            at -= 1
            text[at] = <uint8_t>(48 + <int>(value % 10))
            value //= 10
            i += 1
        if negative:
            at -= 1
            text[at] = 45
        self._copy(text + at, 128 - at)
        return 0

    def take_moments(self, array, int digits):
        """A column from an array of int64 microseconds since 1970, with these fraction digits."""
        cdef const uint8_t *bits = NULL
        cdef const int64_t *values
        cdef Py_ssize_t i, offset = array.offset, count = len(array)
        validity, numbers = array.buffers()
        cdef bint nulls = validity is not None and array.null_count
        if count == 0:
            return self.finish()
        if nulls:
            bits = _address(validity)
        values = <const int64_t *>_address(numbers) + offset
        for i in range(count):
            if nulls and not bits[(offset + i) >> 3] >> ((offset + i) & 7) & 1:
                self.put_null()
            elif self._moment(values[i], digits) < 0:
                raise ScanError(i, f"the value of column {self.name!r} is not a date of MySQL's")
        return self.finish()

    cdef int _moment(self, int64_t micros, int digits) except -2:
        cdef int64_t seconds = micros // 1000000, part = micros % 1000000
        cdef int64_t days, rest, era, doe, yoe, doy, mp, year, month, day
        cdef uint8_t *dst
        cdef int i
        if part < 0:
            part += 1000000
            seconds -= 1
        days = seconds // 86400
        rest = seconds % 86400
        if rest < 0:
            rest += 86400
            days -= 1
        # Days to a date of the proleptic Gregorian calendar, in eras of 400 years from March.
        days += 719468
        era = (days if days >= 0 else days - 146096) // 146097
        doe = days - era * 146097
        yoe = (doe - doe // 1460 + doe // 36524 - doe // 146096) // 365
        doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
        mp = (5 * doy + 2) // 153
        day = doy - (153 * mp + 2) // 5 + 1
        month = mp + 3 if mp < 10 else mp - 9
        year = yoe + era * 400 + (1 if month <= 2 else 0)
        if year < 0 or year > 9999:
            return -1
        self._room(32)
        dst = self.cells.text.data + self.cells.text.used
        _digits(dst, year, 4)
        dst[4] = 45
        _digits(dst + 5, month, 2)
        dst[7] = 45
        _digits(dst + 8, day, 2)
        dst[10] = 32
        _digits(dst + 11, rest // 3600, 2)
        dst[13] = 58
        _digits(dst + 14, rest // 60 % 60, 2)
        dst[16] = 58
        _digits(dst + 17, rest % 60, 2)
        self.cells.text.used += 19
        if digits:
            dst[19] = 46
            _digits(dst + 20, part, 6)
            self.cells.text.used += 1 + digits
        for i in range(6 - digits):
            if part % 10:
                return -1  # more digits than the column has
            part //= 10
        cell_end(&self.cells)
        return 0


cdef inline void _digits(uint8_t *dst, int64_t value, int count) noexcept:
    while count:
        count -= 1
        dst[count] = <uint8_t>(48 + value % 10)
        value //= 10


cdef class RowScanner:
    """Rows of one table to batches; the columns are in the order in which the dump has them.

    A batch is full with `max_rows` rows or about `max_bytes` bytes. After `scan_csv` or `scan_sql`
    the scanner is `done` if the next row starts at or after the limit.
    """
    cdef readonly Py_ssize_t rows
    cdef readonly bint done
    cdef public bint in_values
    cdef readonly list columns
    cdef list _order
    cdef dict _places
    cdef str _table
    cdef bytes _target
    cdef bytes _separator, _delimiter, _null, _terminator
    cdef bint _escapes, _by_lines
    cdef Py_ssize_t _max_rows, _max_bytes, _bytes
    cdef uint8_t _plain[256]      # bytes at which an unquoted CSV value may end
    cdef uint8_t _quoted[256]     # bytes at which a quoted value needs a closer look
    cdef uint8_t _literal[256]

    def __init__(
        self,
        list columns,
        *,
        str table="",
        bytes separator=b",",
        bytes delimiter=b'"',
        bytes null_value=b"\\N",
        bytes terminator=b"",
        bint escapes=True,
        bint by_lines=False,
        Py_ssize_t max_rows=65536,
        Py_ssize_t max_bytes=16 << 20,
    ):
        """`terminator` empty: LF or CR LF. `by_lines`: every SQL tuple must start a line."""
        self.columns = columns
        self._order = list(columns)
        self._places = {(<ColumnWriter?>column).name: column for column in columns}
        self._table = table
        self._separator, self._delimiter = separator, delimiter
        self._null, self._terminator = null_value, terminator
        self._escapes, self._by_lines = escapes, by_lines
        self._max_rows, self._max_bytes = max_rows, max_bytes
        memset(self._plain, 0, 256)
        memset(self._quoted, 0, 256)
        memset(self._literal, 0, 256)
        cdef int byte
        for byte in [separator[0], *list(terminator[:1] or b"\r\n")]:
            self._plain[byte] = 1
        if escapes:
            for byte in (92, 10, 13, 0):
                self._quoted[byte] = self._literal[byte] = 1
            if not delimiter:
                self._plain[92] = 1
        if delimiter:
            self._quoted[delimiter[0]] = 1
        self._literal[39] = 1

    @property
    def full(self):
        """Whether a batch should be taken before more is read."""
        return self.rows >= self._max_rows or self._bytes >= self._max_bytes

    def take(self):
        """The rows read so far as a batch, in the order of the columns given."""
        arrays = [(<ColumnWriter>column).finish() for column in self.columns]
        names = [(<ColumnWriter>column).name for column in self.columns]
        self.rows = self._bytes = 0
        return pa.RecordBatch.from_arrays(arrays, names=names)

    cdef int _cut(self) except -1:
        """Takes back what was read of a row that is not complete."""
        cdef ColumnWriter column
        for column in self._order:
            if column.cells.count > <size_t>self.rows:
                cells_cut(&column.cells, self.rows)
        return 0

    # --- CSV --------------------------------------------------------------------------------------

    def scan_csv(
        self, const uint8_t[::1] data, Py_ssize_t start, Py_ssize_t limit, bint final
    ):
        """Reads rows that start before `limit`; returns where the next one starts."""
        cdef const uint8_t *base
        cdef const uint8_t *end
        cdef const uint8_t *p
        cdef const uint8_t *after
        self.done = start >= limit
        if data.shape[0] == 0:
            return start
        base = &data[0]
        end = base + data.shape[0]
        p = base + start
        while p < end and self.rows < self._max_rows and self._bytes < self._max_bytes:
            if p - base >= limit:
                self.done = True
                break
            after = self._csv_row(base, p, end, final)
            if after == NULL:
                self._cut()
                break
            self.rows += 1
            self._bytes += after - p
            p = after
        if p - base >= limit:
            self.done = True
        return p - base

    cdef const uint8_t *_csv_row(
        self, const uint8_t *base, const uint8_t *p, const uint8_t *end, bint final
    ) except? NULL:
        """Where the row ends; NULL without an error if the buffer does not hold all of it."""
        cdef Py_ssize_t i, count = len(self._order)
        cdef ColumnWriter column
        cdef int match
        for i in range(count):
            if i:
                match = _at(p, end, self._separator)
                if match < 0:
                    return self._more(base, end, final)
                if match == 0:
                    if p[0] == 10 or p[0] == 13:
                        raise ScanError(
                            p - base, f"the row has {i} fields, and the table has {count}", "header"
                        )
                    raise ScanError(p - base, "a separator must follow here", "escape_backslash")
                p += len(self._separator)
            column = <ColumnWriter>self._order[i]
            p = self._csv_field(column, base, p, end, final)
            if p == NULL:
                return NULL
        if self._terminator:
            match = _at(p, end, self._terminator)
            if match > 0:
                return p + len(self._terminator)
        elif p == end:
            match = -1
        elif p[0] == 10:
            return p + 1
        elif p[0] == 13:
            match = -1 if p + 1 == end else p[1] == 10
            if match > 0:
                return p + 2
        else:
            match = 0
        if match < 0:
            return self._more(base, end, final)
        if _at(p, end, self._separator) > 0:
            raise ScanError(p - base, f"the row has more than {count} fields", "header")
        raise ScanError(p - base, "the row must end here", "escape_backslash")

    cdef const uint8_t *_more(
        self, const uint8_t *base, const uint8_t *end, bint final
    ) except? NULL:
        if final:
            raise ScanError(end - base, "the file ends in the middle of a row")
        return NULL

    cdef const uint8_t *_csv_field(
        self,
        ColumnWriter column,
        const uint8_t *base,
        const uint8_t *p,
        const uint8_t *end,
        bint final,
    ) except? NULL:
        cdef const uint8_t *start = p
        cdef size_t width = len(self._delimiter)
        cdef const uint8_t *quote
        cdef bint marked = False
        cdef int match
        if width:
            match = _at(p, end, self._delimiter)
            if match < 0:
                return self._more(base, end, final)
            if match > 0:
                quote = <const uint8_t *><const char *>self._delimiter
                return self._csv_quoted(column, base, p + width, end, final, quote, width)
        while True:
            while p < end and not self._plain[p[0]]:
                p += 1
            if p == end:
                return self._more(base, end, final)
            if not width and p[0] == 92:
                if p + 1 == end:
                    return self._more(base, end, final)
                marked = True
                p += 2
                continue
            match = _at(p, end, self._separator)
            if match < 0:
                return self._more(base, end, final)
            if match > 0:
                break
            if self._terminator:
                match = _at(p, end, self._terminator)
                if match < 0:
                    return self._more(base, end, final)
                if match > 0:
                    break
            elif p[0] == 10 or p[0] == 13:
                break
            p += 1
        cdef size_t n = p - start
        if n == <size_t>len(self._null) and memcmp(start, <const char *>self._null, n) == 0:
            column.put_null()
            return p
        try:
            if width and column.kind in (K_TEXT, K_BINARY, K_CHOICE, K_BITS):
                raise ValueError("is not quoted", "delimiter")
            if marked:
                column.put_escaped(start, n, self._separator[0], False, column.encoding)
            else:
                column.put(start, n, column.encoding)
        except ValueError as error:
            raise self._bad(column, start - base, error) from None
        return p

    cdef const uint8_t *_csv_quoted(
        self,
        ColumnWriter column,
        const uint8_t *base,
        const uint8_t *p,
        const uint8_t *end,
        bint final,
        const uint8_t *quote,
        size_t width,
    ) except? NULL:
        cdef const uint8_t *start = p
        cdef bint marked = False
        cdef int match
        while True:
            if self._escapes:
                while p < end and not self._quoted[p[0]]:
                    p += 1
            else:
                p = <const uint8_t *>memchr(p, quote[0], end - p)
                if p == NULL:
                    p = end
            if p == end:
                return self._more(base, end, final)
            if self._escapes and p[0] == 92:
                marked = True
                if p + 1 == end:
                    return self._more(base, end, final)
                p += 2
                continue
            if p[0] == quote[0]:
                match = 1 if width == 1 else _at(p, end, self._delimiter)
                if match < 0:
                    return self._more(base, end, final)
                if match > 0:
                    if self._escapes:
                        break
                    match = _at(p + width, end, self._delimiter)
                    if match < 0 and not final:
                        return NULL
                    if match <= 0:
                        break
                    marked = True
                    p += 2 * width
                    continue
                if not self._escapes:
                    p += 1
                    continue
            raise ScanError(
                p - base,
                f"the value of column {column.name!r} has a line end, NUL or quote as it is, which "
                "--escape-backslash=true never writes",
                "escape_backslash",
            )
        try:
            if not marked:
                column.put(start, p - start, column.encoding)
            elif self._escapes:
                column.put_escaped(start, p - start, quote[0], False, column.encoding)
            else:
                column.put_doubled(start, p - start, quote, width, column.encoding)
        except ValueError as error:
            raise self._bad(column, start - base, error) from None
        return p + width

    cdef object _bad(self, ColumnWriter column, Py_ssize_t position, object error):
        option = error.args[1] if len(error.args) > 1 else None
        if option is None and column.kind in (K_BINARY, K_BITS):
            option = "dialect"
        return ScanError(position, f"the value of column {column.name!r} {error.args[0]}", option)

    # --- SQL --------------------------------------------------------------------------------------

    def scan_sql(
        self, const uint8_t[::1] data, Py_ssize_t start, Py_ssize_t limit, bint final
    ):
        """Reads tuples that start before `limit`; returns up to where everything was read."""
        cdef const uint8_t *base
        cdef const uint8_t *end
        cdef const uint8_t *p
        cdef const uint8_t *mark
        cdef const uint8_t *after
        cdef Py_ssize_t position
        self.done = False
        if data.shape[0] == 0:
            return start
        base = &data[0]
        end = base + data.shape[0]
        p = base + start
        while self.rows < self._max_rows and self._bytes < self._max_bytes:
            mark = p
            while p < end and (p[0] == 10 or p[0] == 32 or p[0] == 13 or p[0] == 9):
                p += 1
            if p == end:
                if final and self.in_values:
                    raise ScanError(p - base, "the file ends in the middle of a statement")
                return (end if final else mark) - base
            if p - base >= limit:
                self.done = True
                return p - base
            if not self.in_values:
                position = self._statement(data, p - base, final)
                if position < 0:
                    return mark - base
                p = base + position
                continue
            if p[0] != 40:
                raise ScanError(p - base, "a row in brackets must start here", "escape_backslash")
            if self._by_lines and p > base + start and (p - 1)[0] != 10:
                raise ScanError(p - base, "a row does not start on a line of its own")
            after = self._sql_row(base, p, end, final)
            if after != NULL and after == end:
                after = self._more(base, end, final)
            if after == NULL:
                self._cut()
                return mark - base
            if after[0] == 59:
                self.in_values = False
            elif after[0] != 44:
                raise ScanError(after - base, "a comma or semicolon must follow a row")
            self.rows += 1
            self._bytes += after - p
            p = after + 1
        return p - base

    cdef Py_ssize_t _statement(
        self, const uint8_t[::1] data, Py_ssize_t start, bint final
    ) except? -1:
        """Where the values of an INSERT start, or a comment ends; -1 if more must be read."""
        head = bytes(data[start:start + MAX_HEAD_BYTES])
        if head.startswith(b"/*"):
            place = head.find(b"*/")
            if place >= 0:
                return start + place + 2
        elif head.startswith(b";"):
            return start + 1
        elif head.startswith(b"INSERT INTO "):
            match = _HEAD.match(head)
            if match is not None:
                self._begin(match[1], start)
                return start + match.end()
        elif not b"INSERT INTO ".startswith(head) and head != b"/":
            raise ScanError(start, "a statement is neither a comment nor INSERT INTO")
        if final or len(head) == MAX_HEAD_BYTES:
            raise ScanError(start, "a statement has no end")
        return -1

    cdef int _begin(self, bytes target, Py_ssize_t start) except -1:
        """Takes the table and the column list of an INSERT."""
        # A range starts within a statement, and relies on all of them being alike.
        if self._by_lines and self._target is not None and self._target != target:
            raise ScanError(start, "the statements of the file do not list the same columns")
        self._target = target
        listed = _LIST.search(target)
        name = (target if listed is None else target[:listed.start()]).strip()
        escaped = self._table.encode().replace(b"`", b"``")
        # Dumpling leaves out the quotes around a name that starts or ends with one.
        if self._table and name not in (b"`" + escaped + b"`", escaped):
            raise ScanError(start, f"the statement is not for the table {self._table!r}")
        order = list(self.columns)
        if listed is not None:
            names = [
                found.replace(b"``", b"`").decode("utf-8", "replace")
                for found in _NAME.findall(listed[1])
            ]
            if sorted(names) != sorted(self._places):
                raise ScanError(start, f"the statement has the columns {', '.join(names)}")
            order = [self._places[each] for each in names]
        self._order = order
        self.in_values = True
        return 0

    cdef const uint8_t *_sql_row(
        self, const uint8_t *base, const uint8_t *p, const uint8_t *end, bint final
    ) except? NULL:
        cdef Py_ssize_t i, count = len(self._order)
        cdef uint8_t mark
        p += 1
        for i in range(count):
            p = self._sql_literal(<ColumnWriter>self._order[i], base, p, end, final)
            if p == NULL:
                return NULL
            if p == end:
                return self._more(base, end, final)
            mark = 44 if i + 1 < count else 41
            if p[0] != mark:
                if p[0] == 41 or p[0] == 44:
                    raise ScanError(p - base, f"the row does not have {count} values")
                raise ScanError(p - base, "a comma or bracket must follow", "escape_backslash")
            p += 1
        return p

    cdef const uint8_t *_sql_literal(
        self,
        ColumnWriter column,
        const uint8_t *base,
        const uint8_t *p,
        const uint8_t *end,
        bint final,
    ) except? NULL:
        cdef const uint8_t *start
        cdef bint marked = False
        if p == end:
            return self._more(base, end, final)
        if p[0] == 78:  # NULL
            if end - p < 4:
                return self._more(base, end, final)
            if memcmp(p, b"NULL", 4) != 0:
                raise ScanError(p - base, "a value is not a literal")
            column.put_null()
            return p + 4
        try:
            if p[0] == 120 or p[0] == 88:  # x'00ff'
                if p + 1 == end:
                    return self._more(base, end, final)
                start = p + 2
                p = start
                if (start - 1)[0] != 39:
                    raise ValueError("is not a literal")
                p = <const uint8_t *>memchr(start, 39, end - start)
                if p == NULL:
                    return self._more(base, end, final)
                if column.kind != K_BINARY and column.kind != K_BITS:
                    raise ValueError("is binary, and the column is not")
                column.put(start, p - start, E_HEX)
                return p + 1
            if p[0] != 39:
                start = p
                while p < end and p[0] != 44 and p[0] != 41:
                    p += 1
                if p == end:
                    return self._more(base, end, final)
                if column.kind in (K_TEXT, K_BINARY, K_CHOICE, K_BITS):
                    raise ValueError("is not quoted")
                column.put(start, p - start, E_RAW)
                return p
            start = p + 1
            p = start
            while True:
                if self._escapes:
                    while p < end and not self._literal[p[0]]:
                        p += 1
                else:
                    p = <const uint8_t *>memchr(p, 39, end - p)
                    if p == NULL:
                        p = end
                if p == end:
                    return self._more(base, end, final)
                if p[0] == 39:
                    if p + 1 == end and not final:
                        return NULL
                    if p + 1 == end or p[1] != 39:
                        break
                    if self._escapes:
                        raise ValueError(
                            "has a doubled quote, which --escape-backslash=true never writes",
                            "escape_backslash",
                        )
                    marked = True
                    p += 2
                elif p[0] == 92:
                    marked = True
                    if p + 1 == end:
                        return self._more(base, end, final)
                    p += 2
                else:
                    raise ValueError(
                        "has a line end or NUL as it is, which --escape-backslash=true never "
                        "writes",
                        "escape_backslash",
                    )
            if not marked:
                column.put(start, p - start, E_RAW)
            elif self._escapes:
                column.put_escaped(start, p - start, 39, True, E_RAW)
            else:
                column.put_doubled(start, p - start, <const uint8_t *>b"'", 1, E_RAW)
        except ValueError as error:
            raise self._bad(column, p - base, error) from None
        return p + 1


cdef inline int _at(const uint8_t *p, const uint8_t *end, bytes token) noexcept:
    """1 if the token is here, 0 if not, -1 if the buffer ends before that is clear."""
    cdef size_t n = len(token), left = end - p
    cdef const uint8_t *expected = <const uint8_t *><const char *>token
    if left >= n:
        if n == 1:
            return p[0] == expected[0]
        return memcmp(p, expected, n) == 0
    return -1 if memcmp(p, expected, left) == 0 else 0
