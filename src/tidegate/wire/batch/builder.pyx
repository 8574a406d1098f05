# cython: freethreading_compatible=False
"""The change batch, built from decoded rows.

Memory is plain C until `finish`, which hands the buffers to Arrow without copying cells.
"""

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.ddl import canal_ddl_type
from tidegate.wire.batch.change import CHANGE_SCHEMA, KINDS

from tidegate.wire.batch.shape_json cimport write_shape
from tidegate.wire.kernel.buffer cimport *
from tidegate.wire.kernel.cursor cimport *
from tidegate.wire.kernel.memory cimport (
    bitmap_of,
    give_buffer,
    recycle_buffer,
    recycle_cells,
    take_room,
)
from tidegate.wire.kernel.text cimport tg_hash

# A word for programs and a sentence for people, for each Fault; the sentence follows
# "byte N of the value: ".
FAULTS = (
    ("none", "nothing is wrong"),
    ("truncated", "the message ends in the middle of something"),
    ("trailing", "the message goes on behind its end"),
    ("syntax", "this is not what the format allows here"),
    ("utf8", "this text is not valid UTF-8"),
    ("depth", "this is nested more than 64 levels deep"),
    ("escape", "this is not a valid escape"),
    ("number", "this is not a valid number"),
    ("range", "this number is out of range"),
    ("type", "a value of another type belongs here"),
    ("missing", "a member that must be here is missing"),
    ("duplicate", "this member is here twice"),
    ("version", "this protocol version is not known; version 1 is"),
    ("magic", "the message does not begin with the protocol's mark"),
    ("checksum", "the checksum does not match the content"),
    ("length", "this length goes beyond the message"),
    ("base64", "this is not valid base64"),
    ("binary", "this text does not stand for bytes"),
    ("columns", "the columns do not fit together"),
    ("kind", "this kind of event is not known"),
    ("union", "this Avro union or enum index does not exist"),
    ("empty", "the message is empty"),
    ("too-large", "the message does not fit into this batch; decode it in smaller batches"),
    ("memory", "there was not enough memory for this message"),
    ("compression", "the message could not be decompressed"),
    ("claim-check", "the claim-check object could not be used"),
    ("temporal", "this is not a valid date or time"),
    ("shape", "two different column lists have the same shape id"),
    ("key", "the message's key is not what this protocol has"),
    ("value", "this value does not fit its column"),
    ("name", "the name of this member is a known one in another case"),
)

TOO_MUCH = "a column of this batch is over 2 GiB; decode in smaller batches"

cdef object INT32 = pa.int32()
cdef object INT64 = pa.int64()
cdef object STRING = pa.string()
cdef object STRINGS = pa.list_(pa.string())
cdef list FIELDS = [(field.name, field.type) for field in CHANGE_SCHEMA]


cdef Span _ddl_spans[256]
_kept_alive = []


def _fill_ddl_words() -> None:
    cdef bytes word
    cdef int code
    for code in range(256):
        word = canal_ddl_type(code).encode()
        _kept_alive.append(word)
        _ddl_spans[code].p = word
        _ddl_spans[code].n = len(word)


_fill_ddl_words()


cdef const Span *ddl_word_of(uint8_t code) noexcept nogil:
    return &_ddl_spans[code]


cdef Span _kind_spans[7]


def _fill_kinds() -> None:
    cdef bytes text
    for code, name in enumerate(KINDS):
        text = name.encode() + bytes(16)
        _kept_alive.append(text)
        _kind_spans[code].p = text
        _kind_spans[code].n = len(name)


_fill_kinds()


cdef inline void _no_span(Span *span) noexcept nogil:
    span.p = NULL
    span.n = 0


cdef inline bint _same_name(const Span *a, const Span *b) noexcept nogil:
    return a.n == b.n and (a.p == NULL) == (b.p == NULL) and (a.n == 0 or memcmp(a.p, b.p, a.n) == 0)


@cython.final
cdef class _Strings:
    """A string or binary column put together value by value."""
    cdef Buffer text, ends, valid
    cdef size_t count

    def __cinit__(self, size_t room):
        if take_room(&self.ends, 4 * (room + 1)) < 0 or take_room(&self.valid, room) < 0:
            raise MemoryError
        buffer_add_i32(&self.ends, 0)

    def __dealloc__(self):
        recycle_buffer(&self.text)
        recycle_buffer(&self.ends)
        recycle_buffer(&self.valid)

    cdef inline int add(self, const Span *text) noexcept nogil:
        """One of the `room` values, null where p is NULL; 16 bytes behind it can be read. -1 without
        memory."""
        if buffer_reserve(&self.text, text.n) < 0:
            return -1
        if text.p != NULL:
            if TG_LIKELY(text.n <= 16):
                memcpy(self.text.data + self.text.used, text.p, 16)
            else:
                memcpy(self.text.data + self.text.used, text.p, text.n)
            self.text.used += text.n
        self.end(text.p != NULL)
        return 0

    cdef inline void end(self, bint valid) noexcept nogil:
        """What was put into `text` since the last value is the next one."""
        self.count += 1
        (<int32_t *>self.ends.data)[self.count] = <int32_t>self.text.used
        self.ends.used += 4
        self.valid.data[self.valid.used] = valid
        self.valid.used += 1

    cdef object finish(self, object type):
        if self.text.used > INT32_MAX:
            raise OverflowError(TOO_MUCH)
        return pa.Array.from_buffers(
            type,
            self.count,
            [bitmap_of(self.valid.data, self.count), give_buffer(&self.ends), give_buffer(&self.text)],
        )


@cython.final
cdef class _Texts:
    """A string column whose size is known beforehand."""
    cdef Buffer text, ends
    cdef size_t count

    def __cinit__(self, size_t count, size_t size):
        if size > INT32_MAX:
            raise OverflowError(TOO_MUCH)
        if take_room(&self.text, size + 16) < 0 or take_room(&self.ends, 4 * (count + 1)) < 0:
            raise MemoryError
        buffer_add_i32(&self.ends, 0)

    def __dealloc__(self):
        recycle_buffer(&self.text)
        recycle_buffer(&self.ends)

    cdef inline bint add(self, const Span *text) noexcept nogil:
        """The next value, behind which 16 bytes can be read. Whether it is one: p is NULL for null."""
        if text.n > 16:
            memcpy(self.text.data + self.text.used, text.p, text.n)
        elif text.p != NULL:
            memcpy(self.text.data + self.text.used, text.p, 16)
        self.text.used += text.n
        self.skip()
        return text.p != NULL

    cdef inline void skip(self) noexcept nogil:
        """A null."""
        self.count += 1
        (<int32_t *>self.ends.data)[self.count] = <int32_t>self.text.used

    cdef object finish(self, object validity):
        self.ends.used = 4 * (self.count + 1)
        return pa.Array.from_buffers(
            STRING, self.count, [validity, give_buffer(&self.ends), give_buffer(&self.text)]
        )


@cython.final
cdef class _Numbers:
    """A column of 1-, 4- or 8-byte integers: `data` has room for all of them."""
    cdef Buffer data
    cdef size_t count

    def __cinit__(self, size_t width, size_t count):
        self.count = count
        if take_room(&self.data, width * count) < 0:
            raise MemoryError
        self.data.used = width * count

    def __dealloc__(self):
        recycle_buffer(&self.data)

    cdef object finish(self, object type, object validity=None):
        return pa.Array.from_buffers(type, self.count, [validity, give_buffer(&self.data)])


cdef enum:
    FEW_PIECES = 16         # so many values and the nulls between them are put together piece by piece
    SHARED_NULLS = 1 << 16

cdef dict _shared_nulls = {}


cdef object _nulls(object type, size_t count):
    """So many nulls: a part of an array that all batches share."""
    if count > SHARED_NULLS:
        return pa.nulls(count, type)
    shared = _shared_nulls.get(type)
    if shared is None:
        shared = _shared_nulls[type] = pa.nulls(SHARED_NULLS, type)
    return shared.slice(0, count)


@cython.final
cdef class _Rare:
    """A column in which few rows have a value."""
    cdef list rows          # in rising order
    cdef list values

    def __cinit__(self):
        self.rows = []
        self.values = []

    cdef int add(self, size_t row, object value) except -1:
        self.rows.append(row)
        self.values.append(value)
        return 0

    cdef object finish(self, object type, size_t total):
        cdef _Numbers index, valid
        cdef size_t i
        values = pa.array(self.values, type)
        if len(self.rows) > FEW_PIECES:
            index = _Numbers(4, total)
            valid = _Numbers(1, total)
            memset(index.data.data, 0, index.data.used)
            memset(valid.data.data, 0, total)
            for i, row in enumerate(self.rows):
                (<int32_t *>index.data.data)[<size_t>row] = <int32_t>i
                valid.data.data[<size_t>row] = 1
            return values.take(index.finish(pa.int32(), bitmap_of(valid.data.data, total)))
        pieces = []
        began = 0
        for i, row in enumerate(self.rows):
            pieces += [_nulls(type, row - began), values.slice(i, 1)]
            began = row + 1
        return pa.concat_arrays([*pieces, _nulls(type, total - began)])


# The bits of a row's mask: those of Row.has below HAS_MISSING, and these.
cdef enum:
    MASK_COMMIT_TS = 0
    MASK_TABLE_ID = 1
    MASK_SCHEMA_VERSION = 2
    MASK_AFTER = 3
    MASK_BEFORE = 4
    MASK_SHAPE = 5
    MASK_DATABASE = 6
    MASK_TABLE = 7


@cython.final
cdef class _Rows:
    """The rows of a batch, behind a schema row for each shape in use, and what they have together."""
    cdef Buffer schema_rows     # Row
    cdef const Row *rows
    cdef size_t seen
    cdef size_t total
    cdef size_t kind_bytes, database_bytes, table_bytes     # of the texts of all rows
    cdef bint any_missing, any_extra, any_error

    def __dealloc__(self):
        buffer_free(&self.schema_rows)

    cdef inline const Row *at(self, size_t i) noexcept nogil:
        return <const Row *>self.schema_rows.data + i if i < self.seen else self.rows + (i - self.seen)

    cdef inline void count(self, const Row *row, const Names *names) noexcept nogil:
        """Adds the row's texts to what all have."""
        self.kind_bytes += _kind_spans[row.kind].n
        if row.names >= 0:
            self.database_bytes += names[row.names].database.n
            self.table_bytes += names[row.names].table.n

    cdef object positions(self):
        """The message of each row."""
        cdef _Numbers column = _Numbers(4, self.total)
        cdef size_t i
        for i in range(self.total):
            (<int32_t *>column.data.data)[i] = self.at(i).message
        return column.finish(INT32)

    cdef dict columns(self, const Names *names, const Shape *shapes, Cells *after, Cells *before):
        """The columns that every row has, in one pass over the rows: they are many, and so are the
        rows. The cells are given away."""
        cdef size_t i, total = self.total
        cdef _Numbers masks = _Numbers(1, total)
        cdef _Numbers event = _Numbers(4, total), flags = _Numbers(4, total)
        cdef _Numbers commit_ts = _Numbers(8, total), table_id = _Numbers(8, total)
        cdef _Numbers shape = _Numbers(8, total), version = _Numbers(8, total)
        cdef _Numbers after_ends = _Numbers(4, total + 1), before_ends = _Numbers(4, total + 1)
        cdef _Texts kind = _Texts(total, self.kind_bytes)
        cdef _Texts database = _Texts(total, self.database_bytes)
        cdef _Texts table = _Texts(total, self.table_bytes)
        cdef const Row *row
        cdef const Names *name
        cdef uint8_t *bits = masks.data.data
        cdef uint8_t mask
        (<int32_t *>after_ends.data.data)[0] = 0
        (<int32_t *>before_ends.data.data)[0] = 0
        for i in range(total):
            row = self.at(i)
            mask = row.has & (HAS_MISSING - 1)
            (<int32_t *>event.data.data)[i] = row.event
            (<int32_t *>flags.data.data)[i] = row.flags
            (<int64_t *>commit_ts.data.data)[i] = row.commit_ts
            (<int64_t *>table_id.data.data)[i] = row.table_id
            (<int64_t *>version.data.data)[i] = row.schema_version
            (<int32_t *>after_ends.data.data)[i + 1] = row.after_end
            (<int32_t *>before_ends.data.data)[i + 1] = row.before_end
            (<int64_t *>shape.data.data)[i] = 0
            if TG_LIKELY(row.shape >= 0):
                (<int64_t *>shape.data.data)[i] = shapes[row.shape].id
                mask |= 1 << MASK_SHAPE
            kind.add(&_kind_spans[row.kind])
            if TG_LIKELY(row.names >= 0):
                name = &names[row.names]
                mask |= <uint8_t>(database.add(&name.database) << MASK_DATABASE)
                mask |= <uint8_t>(table.add(&name.table) << MASK_TABLE)
            else:
                database.skip()
                table.skip()
            bits[i] = mask
        return {
            "event": event.finish(INT32),
            "kind": kind.finish(None),
            "commit_ts": commit_ts.finish(INT64, bitmap_of(bits, total, MASK_COMMIT_TS)),
            "database": database.finish(bitmap_of(bits, total, MASK_DATABASE)),
            "table": table.finish(bitmap_of(bits, total, MASK_TABLE)),
            "table_id": table_id.finish(INT64, bitmap_of(bits, total, MASK_TABLE_ID)),
            "shape": shape.finish(INT64, bitmap_of(bits, total, MASK_SHAPE)),
            "schema_version": version.finish(INT64, bitmap_of(bits, total, MASK_SCHEMA_VERSION)),
            "after": _lists(after_ends, bitmap_of(bits, total, MASK_AFTER), after),
            "before": _lists(before_ends, bitmap_of(bits, total, MASK_BEFORE), before),
            "flags": flags.finish(INT32),
        }


cdef object _lists(_Numbers ends, object validity, Cells *cells):
    """A list<string> column of these cells; ends: where each row's end."""
    strings = pa.Array.from_buffers(
        STRING,
        cells.count,
        [bitmap_of(cells.valid.data, cells.count), give_buffer(&cells.ends), give_buffer(&cells.text)],
    )
    recycle_buffer(&cells.valid)
    return pa.Array.from_buffers(
        STRINGS, ends.count - 1, [validity, give_buffer(&ends.data)], children=[strings]
    )


cdef inline uint8_t *_canonical_number(uint8_t *place, int32_t value) noexcept nogil:
    memcpy(place, &value, 4)
    return place + 4


cdef inline uint8_t *_canonical_text(uint8_t *place, const Span *text) noexcept nogil:
    cdef size_t n = text.n
    place = _canonical_number(place, -1 if text.p == NULL else <int32_t>n)
    # Most texts are short: two copies of fixed size, which may overlap, instead of a call.
    if 8 <= n <= 16:
        memcpy(place, text.p, 8)
        memcpy(place + n - 8, text.p + n - 8, 8)
    elif 4 <= n < 8:
        memcpy(place, text.p, 4)
        memcpy(place + n - 4, text.p + n - 4, 4)
    elif n:
        memcpy(place, text.p, n)
    return place + n


@cython.final
cdef class BatchBuilder:

    def __cinit__(self):
        self.shape_bucket_count = 256
        self.name_bucket_count = 256
        self.shape_buckets = <int32_t *>malloc(256 * sizeof(int32_t))
        self.name_buckets = <int32_t *>malloc(256 * sizeof(int32_t))
        if self.shape_buckets == NULL or self.name_buckets == NULL:
            raise MemoryError
        memset(self.shape_buckets, 0xff, 256 * sizeof(int32_t))
        memset(self.name_buckets, 0xff, 256 * sizeof(int32_t))

    def __dealloc__(self):
        recycle_cells(&self.after)
        recycle_cells(&self.before)
        buffer_free(&self.missing)
        buffer_free(&self.scratch)
        recycle_buffer(&self.rows)
        buffer_free(&self.extras)
        buffer_free(&self.shapes)
        buffer_free(&self.names)
        buffer_free(&self.canonical)
        arena_free(&self.arena)
        free(self.shape_buckets)
        free(self.name_buckets)

    cdef int expect(self, size_t messages, size_t size) noexcept:
        """Makes room for what so many messages of so many bytes usually become: growing step by step
        would copy it again and again. Memory that is not used is never touched."""
        if take_room(&self.rows, messages * sizeof(Row)) < 0 or \
                take_room(&self.after.text, size) < 0 or \
                take_room(&self.after.ends, size // 3) < 0 or \
                take_room(&self.after.valid, size // 12) < 0 or \
                take_room(&self.before.text, size // 2) < 0 or \
                take_room(&self.before.ends, size // 6) < 0 or \
                take_room(&self.before.valid, size // 24) < 0:
            return -1
        # Arrow's offsets begin with a zero.
        buffer_add_i32(&self.after.ends, 0)
        buffer_add_i32(&self.before.ends, 0)
        return 0

    cdef int begin_message(self, int32_t message, size_t size) noexcept nogil:
        """size: the bytes of key and value, for what may have to be decoded aside."""
        self.message = message
        self.event = 0
        self.claims = 0
        self.mark_rows = self.rows.used
        self.mark_after = self.after.count
        self.mark_before = self.before.count
        self.mark_missing = self.missing.used
        self.mark_extras = self.extras.used
        self.scratch.used = 0
        return buffer_reserve(&self.scratch, size + 64)

    cdef void rollback(self) noexcept nogil:
        self.rows.used = self.mark_rows
        self.missing.used = self.mark_missing
        self.extras.used = self.mark_extras
        cells_cut(&self.after, self.mark_after)
        cells_cut(&self.before, self.mark_before)
        self.event = 0
        self.claims = 0

    cdef int reject(self, Cursor *c, const uint8_t *detail, size_t detail_size) noexcept nogil:
        """Takes the message back and puts an error row in its place; -1 only without memory."""
        cdef Row row
        cdef Extra *extra
        cdef Span text
        self.rollback()
        row_init(&row, KIND_ERROR)
        extra = self.new_extra(&row)
        if extra == NULL:
            return -1
        extra.fault = c.fault
        extra.position = c.fault_at - c.start
        extra.in_key = c.in_key
        if detail_size:
            text.p = detail
            text.n = detail_size
            if self.keep(&text, &extra.detail) < 0:
                return -1
        return self.add_row(c, &row)

    cdef int keep(self, const Span *text, Span *out) noexcept nogil:
        """A copy that lives as long as the batch is being built."""
        return arena_keep(&self.arena, text.p, text.n, out)

    cdef int intern_names(self, const Span *database, const Span *table) noexcept nogil:
        """The index of this pair; a span with p == NULL is null. -1 without memory."""
        cdef uint64_t h = tg_hash(database.p, database.n, 1) ^ tg_hash(table.p, table.n, 2)
        cdef size_t bucket = h & (self.name_bucket_count - 1)
        cdef int32_t index = self.name_buckets[bucket]
        cdef Names *entry
        cdef Names fresh
        while index >= 0:
            entry = <Names *>self.names.data + index
            if _same_name(&entry.database, database) and _same_name(&entry.table, table):
                return index
            index = entry.next
        _no_span(&fresh.database)
        _no_span(&fresh.table)
        if database.p != NULL and self.keep(database, &fresh.database) < 0:
            return -1
        if table.p != NULL and self.keep(table, &fresh.table) < 0:
            return -1
        fresh.next = self.name_buckets[bucket]
        index = <int32_t>(self.names.used // sizeof(Names))
        if buffer_add(&self.names, <const uint8_t *>&fresh, sizeof(Names)) < 0:
            return -1
        self.name_buckets[bucket] = index
        return index

    cdef int register_shape(self, Cursor *c, const Span *database, const Span *table,
                            const ShapeColumn *columns, int32_t count) noexcept nogil:
        """The index of the shape with these columns; spans are copied. -1: a fault, noted in c.

        The id is the stable hash of a canonical form: for each string a 32-bit length (-1: null)
        and its bytes, for each number 32 bits, little-endian.
        """
        cdef uint64_t h
        cdef size_t bucket
        cdef size_t size = 8 + database.n + table.n
        cdef int32_t i, index
        cdef Shape *known
        cdef Shape fresh
        cdef uint8_t *place
        if count > MAX_COLUMNS:
            return fail(c, FAULT_COLUMNS)
        for i in range(count):
            size += 24 + columns[i].name.n + columns[i].type.n + columns[i].zone.n
        self.canonical.used = 0
        if buffer_reserve(&self.canonical, size) < 0:
            return fail(c, FAULT_MEMORY)
        self.canonical.used = size
        place = _canonical_text(self.canonical.data, database)
        place = _canonical_text(place, table)
        for i in range(count):
            place = _canonical_text(place, &columns[i].name)
            place = _canonical_text(place, &columns[i].type)
            place = _canonical_text(place, &columns[i].zone)
            place = _canonical_number(place, columns[i].code)
            place = _canonical_number(place, columns[i].flags)
            place = _canonical_number(place, columns[i].key)
        h = tg_hash(self.canonical.data, self.canonical.used, 0) & <uint64_t>0x7fffffffffffffff
        bucket = h & (self.shape_bucket_count - 1)
        index = self.shape_buckets[bucket]
        while index >= 0:
            known = self.shape(index)
            if known.id == <int64_t>h:
                if known.canonical.n == self.canonical.used and \
                        memcmp(known.canonical.p, self.canonical.data, known.canonical.n) == 0:
                    return index
                return fail(c, FAULT_SHAPE)
            index = known.next
        fresh.id = <int64_t>h
        fresh.count = count
        fresh.names = self.intern_names(database, table)
        fresh.columns = <ShapeColumn *>arena_take(&self.arena, count * sizeof(ShapeColumn))
        fresh.canonical.n = self.canonical.used
        if fresh.names < 0 or fresh.columns == NULL or \
                arena_keep(&self.arena, self.canonical.data, self.canonical.used, &fresh.canonical) < 0:
            return fail(c, FAULT_MEMORY)
        # The texts stand in the canonical form; something always follows them there.
        place = <uint8_t *>fresh.canonical.p + 8 + database.n + table.n
        for i in range(count):
            fresh.columns[i] = columns[i]
            fresh.columns[i].name.p = place + 4
            place += 4 + columns[i].name.n
            fresh.columns[i].type.p = place + 4
            place += 4 + columns[i].type.n
            fresh.columns[i].zone.p = place + 4
            place += 16 + columns[i].zone.n
        fresh.next = self.shape_buckets[bucket]
        index = <int32_t>(self.shapes.used // sizeof(Shape))
        if buffer_add(&self.shapes, <const uint8_t *>&fresh, sizeof(Shape)) < 0:
            return fail(c, FAULT_MEMORY)
        self.shape_buckets[bucket] = index
        if <size_t>index > self.shape_bucket_count * 2:
            self._rehash_shapes()
        return index

    cdef void _rehash_shapes(self) noexcept nogil:
        cdef size_t count = self.shape_bucket_count * 8
        cdef int32_t *buckets = <int32_t *>malloc(count * sizeof(int32_t))
        cdef int32_t i
        cdef size_t bucket
        if buckets == NULL:
            return
        memset(buckets, 0xff, count * sizeof(int32_t))
        for i in range(<int32_t>(self.shapes.used // sizeof(Shape))):
            bucket = <uint64_t>self.shape(i).id & (count - 1)
            self.shape(i).next = buckets[bucket]
            buckets[bucket] = i
        free(self.shape_buckets)
        self.shape_buckets = buckets
        self.shape_bucket_count = count

    cdef Shape *shape(self, int32_t index) noexcept nogil:
        """Valid until the next register_shape (its columns stay where they are)."""
        return <Shape *>self.shapes.data + index

    cdef Extra *new_extra(self, Row *row) noexcept nogil:
        """The row's Extra (made at the first call), or NULL. Valid until the next row's first call."""
        cdef Extra fresh
        if row.extra < 0:
            memset(&fresh, 0, sizeof(Extra))
            fresh.ddl_code = -1
            row.extra = <int32_t>(self.extras.used // sizeof(Extra))
            if buffer_add(&self.extras, <const uint8_t *>&fresh, sizeof(Extra)) < 0:
                row.extra = -1
                return NULL
        return <Extra *>self.extras.data + row.extra

    cdef uint8_t *new_missing(self, Row *row, int32_t columns) noexcept nogil:
        """An all-zero bitmap for the row's `before`; NULL without memory."""
        cdef size_t n = (<size_t>columns + 7) // 8
        cdef uint8_t *bits
        if buffer_reserve(&self.missing, n) < 0:
            return NULL
        row.missing = <int32_t>self.missing.used
        row.has |= HAS_MISSING
        bits = self.missing.data + self.missing.used
        memset(bits, 0, n)
        self.missing.used += n
        return bits

    cdef int add_row(self, Cursor *c, Row *row) noexcept nogil:
        """Ends the row: its cells must be there, as many as its shape has columns."""
        if self.after.text.used > INT32_MAX or self.before.text.used > INT32_MAX or \
                self.missing.used > INT32_MAX or self.rows.used // sizeof(Row) >= INT32_MAX // 64:
            return fail(c, FAULT_TOO_LARGE)
        row.message = self.message
        row.event = self.event
        row.after_end = <int32_t>self.after.count
        row.before_end = <int32_t>self.before.count
        if row.shape >= 0:
            row.names = self.shape(row.shape).names
        if row.extra >= 0 and (<Extra *>self.extras.data + row.extra).claim_check.p != NULL:
            self.claims += 1
        self.event += 1
        if buffer_reserve(&self.rows, sizeof(Row)) < 0:
            return fail(c, FAULT_MEMORY)
        (<Row *>(self.rows.data + self.rows.used))[0] = row[0]
        self.rows.used += sizeof(Row)
        return 0

    def finish(self, topics, partitions, offsets, keys, values):
        """The RecordBatch. topics: None, one name, or an array as long as the messages; partitions
        and offsets: None or arrays; keys and values: the messages, for the raw bytes of errors."""
        cdef _Rows rows = self._all_rows()
        total = rows.total
        columns = rows.columns(
            <const Names *>self.names.data, <const Shape *>self.shapes.data, &self.after, &self.before
        )
        columns["schema"] = self._schemas(rows)
        if rows.any_missing:
            columns["before_missing"] = self._missing_bits(rows)
        if rows.any_extra:
            self._extra_columns(columns, rows)
        if isinstance(topics, str):
            columns["topic"] = pa.repeat(topics, total)
            topics = None
        if rows.any_error or topics is not None or partitions is not None or offsets is not None:
            positions = rows.positions()
            for name, array in (("topic", topics), ("partition", partitions), ("offset", offsets)):
                if array is not None:
                    columns[name] = array.take(positions)
            if rows.any_error:
                is_error = pc.equal(columns["kind"], "error")
                wanted = pc.if_else(is_error, positions, pa.scalar(None, INT32))
                columns["raw_value"] = values.take(wanted)
                if keys is not None:
                    columns["raw_key"] = keys.take(wanted)
        return pa.RecordBatch.from_arrays(
            [columns[name] if name in columns else _nulls(type, total) for name, type in FIELDS],
            schema=CHANGE_SCHEMA,
        )

    def _all_rows(self):
        """One schema row for each shape in use, in the order of first use, then the rows."""
        cdef size_t shape_count = self.shapes.used // sizeof(Shape)
        cdef _Numbers first = _Numbers(4, shape_count)      # message of each shape's first row
        cdef int32_t *messages = <int32_t *>first.data.data
        cdef const Names *names = <const Names *>self.names.data
        cdef _Rows rows = _Rows()
        cdef const Row *row
        cdef Row fresh
        cdef size_t i
        rows.rows = <const Row *>self.rows.data
        rows.total = self.rows.used // sizeof(Row)
        memset(messages, 0xff, 4 * shape_count)
        for i in range(rows.total):
            row = rows.rows + i
            rows.count(row, names)
            rows.any_missing |= (row.has & HAS_MISSING) != 0
            rows.any_extra |= row.extra >= 0
            rows.any_error |= row.kind == KIND_ERROR
            if row.shape >= 0 and messages[row.shape] < 0:
                messages[row.shape] = row.message
        for i in range(shape_count):
            if messages[i] < 0:
                continue
            row_init(&fresh, KIND_SCHEMA)
            fresh.message = messages[i]
            fresh.event = -1
            fresh.shape = <int32_t>i
            fresh.names = self.shape(<int32_t>i).names
            fresh.after_end = 0
            fresh.before_end = 0
            rows.count(&fresh, names)
            if buffer_add(&rows.schema_rows, <const uint8_t *>&fresh, sizeof(Row)) < 0:
                raise MemoryError
            rows.seen += 1
        rows.total += rows.seen
        return rows

    def _schemas(self, _Rows rows):
        """The `schema` column: of schema rows their shape, of others what they brought."""
        cdef _Strings column = _Strings(rows.total)
        cdef Span none
        cdef const Row *row
        cdef size_t i
        cdef int done = 0
        _no_span(&none)
        for i in range(rows.total):
            row = rows.at(i)
            if i < rows.seen:
                done = write_shape(&column.text, self.shape(row.shape))
                column.end(True)
            elif row.extra >= 0:
                done = column.add(&(<Extra *>self.extras.data + row.extra).schema)
            else:
                done = column.add(&none)
            if done < 0:
                raise MemoryError
        return column.finish(STRING)

    def _missing_bits(self, _Rows rows):
        cdef _Strings column = _Strings(rows.total)
        cdef Span text
        cdef const Row *row
        cdef size_t i
        for i in range(rows.total):
            row = rows.at(i)
            _no_span(&text)
            if row.has & HAS_MISSING:
                # Buffers have room for 32 bytes behind what they hold.
                text.p = self.missing.data + row.missing
                text.n = (<size_t>self.shape(row.shape).count + 7) // 8
            if column.add(&text) < 0:
                raise MemoryError
        return column.finish(pa.binary())

    def _extra_columns(self, dict columns, _Rows all_rows):
        """The columns only few rows have."""
        cdef const Row *rows = all_rows.rows
        cdef size_t seen = all_rows.seen
        cdef Extra *extra
        cdef size_t i
        cdef _Rare ddl = _Rare(), checksum = _Rare(), claim = _Rare(), error = _Rare()
        for i in range(all_rows.total - seen):
            if rows[i].extra < 0:
                continue
            extra = <Extra *>self.extras.data + rows[i].extra
            if rows[i].kind == KIND_DDL:
                ddl.add(seen + i, {
                    "type": _text(&extra.ddl_type),
                    "code": extra.ddl_code if extra.ddl_code >= 0 else None,
                    "query": _text(&extra.query),
                })
            if extra.has_checksum:
                checksum.add(seen + i, {
                    "version": extra.checksum.version,
                    "corrupted": extra.checksum.corrupted,
                    "current": extra.checksum.current,
                    "previous": extra.checksum.previous,
                })
            if extra.claim_check.p != NULL:
                claim.add(seen + i, _text(&extra.claim_check))
            if rows[i].kind == KIND_ERROR:
                code, reason = FAULTS[extra.fault]
                part = "key" if extra.in_key else "value"
                detail = _text(&extra.detail)
                error.add(seen + i, {
                    "code": code,
                    "reason": f"byte {extra.position} of the {part}: {reason}"
                    + (f" ({detail})" if detail else ""),
                    "part": part,
                    "position": extra.position,
                })
        for name, rare in (("ddl", ddl), ("checksum", checksum), ("claim_check", claim), ("error", error)):
            if (<_Rare>rare).values:
                columns[name] = (<_Rare>rare).finish(CHANGE_SCHEMA.field(name).type, all_rows.total)


cdef object _text(const Span *text):
    return None if text.p == NULL else (<const char *>text.p)[:text.n].decode("utf-8", "replace")


def shape_id_of(str database not None, str table not None, columns):
    """The id of the shape with these columns: (name, type, code, flags, whether it is a key) each."""
    cdef BatchBuilder builder = BatchBuilder()
    cdef Buffer shape_columns
    cdef ShapeColumn column
    cdef Span names[2]
    cdef Cursor c
    cdef int index
    cdef bytes text
    kept = [database.encode(), table.encode()]
    for index in range(2):
        text = kept[index]
        names[index].p = text
        names[index].n = len(text)
    memset(&shape_columns, 0, sizeof(Buffer))
    cursor_init(&c, NULL, 0, NULL)
    try:
        for name, type_, code, flags, is_key in columns:
            memset(&column, 0, sizeof(ShapeColumn))
            text = name.encode()
            kept.append(text)
            column.name.p = text
            column.name.n = len(text)
            text = type_.encode()
            kept.append(text)
            column.type.p = text
            column.type.n = len(text)
            column.code = code
            column.flags = flags
            column.key = is_key
            if buffer_add(&shape_columns, <const uint8_t *>&column, sizeof(ShapeColumn)) < 0:
                raise MemoryError
        index = builder.register_shape(
            &c, &names[0], &names[1], <const ShapeColumn *>shape_columns.data,
            <int32_t>(shape_columns.used // sizeof(ShapeColumn)),
        )
    finally:
        buffer_free(&shape_columns)
    if index < 0:
        raise ValueError(f"the table {database}.{table} has more than {MAX_COLUMNS} columns")
    return builder.shape(index).id
