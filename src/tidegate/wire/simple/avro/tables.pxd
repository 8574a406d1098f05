"""Remembered tables: which column each name of a row's map is."""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.simple.avro.decode cimport *
from tidegate.wire.simple.avro.layout cimport *


# What is remembered of tables
cdef inline void learn_table(SimpleAvroDecoder self, RowFacts *f, int32_t count) noexcept nogil:
    """Remembers the table of the row just read, whose columns are in `columns`, with the zones
    known before. Without memory, nothing is remembered."""
    cdef const ShapeColumn *columns = <const ShapeColumn *>self.columns.data
    cdef Table *fresh
    cdef Table *earlier
    if count == 0 or count > COLUMNS or f.head.n > HEAD_SIZE:
        return
    fresh = make_table(f, columns, count)
    if fresh == NULL:
        return
    earlier = <Table *>first_known(&self.memory, fresh.known.hash)
    while earlier != NULL and not same_columns(earlier, fresh):
        earlier = <Table *>earlier.known.next
    if earlier != NULL:
        join_zones(fresh, earlier)
        forget_table(&self.memory, &earlier.known)
    remember_table(&self.memory, &fresh.known)


cdef inline void release_table(KnownTable *t) noexcept nogil:
    free(t)


cdef inline void plain_column(ShapeColumn *column, const Span *name) noexcept nogil:
    memset(column, 0, sizeof(ShapeColumn))
    column.name = name[0]
    column.code = -1
    column.flags = -1


cdef inline bint same_columns(const Table *a, const Table *b) noexcept nogil:
    cdef int32_t i
    if a.known.hash != b.known.hash or a.count != b.count or not same_span(&a.head, &b.head):
        return False
    for i in range(a.count):
        if not same_span(&a.columns[i].name, &b.columns[i].name):
            return False
    return True


cdef inline void join_zones(Table *t, const Table *known) noexcept nogil:
    """Adds the zones of the same table as it was known. A new location makes the old ones void."""
    cdef int32_t i
    if known.zone.n == 0 or (t.zone.n and not same_span(&t.zone, &known.zone)):
        return
    if t.zone.n == 0:
        memcpy(<void *>t.zone.p, known.zone.p, known.zone.n)
        t.zone.n = known.zone.n
        t.location.p = t.zone.p + 1
        t.location.n = known.location.n
    for i in range(t.count):
        if known.columns[i].zone_bit and t.columns[i].zone_bit == 0 and t.zones < ZONED_COLUMNS:
            t.columns[i].zone_bit = <uint64_t>1 << t.zones
            t.zones += 1


cdef inline uint8_t *keep_text(uint8_t *text, const uint8_t *p, size_t n, Span *out) noexcept nogil:
    memcpy(text, p, n)
    out.p = text
    out.n = n
    return text + n


cdef inline Table *make_table(const RowFacts *f, const ShapeColumn *columns,
                              int32_t count) noexcept nogil:
    """NULL: there is no memory, or the table cannot be predicted."""
    cdef size_t names = 0, size, buckets = 4
    cdef int32_t i
    cdef Table *t
    cdef TableColumn *column
    cdef uint8_t *text
    for i in range(count):
        if columns[i].name.n >= NAME_SIZE or columns[i].zone.n >= NAME_SIZE:
            return NULL
        names += columns[i].name.n + 1
    while buckets < 4 * <size_t>count:
        buckets *= 2
    # Behind the texts 16 bytes may be read by tg_same, and more by the words of names.
    size = sizeof(Table) + count * sizeof(TableColumn) + (buckets + count) * sizeof(uint16_t) + \
        f.head.n + names + NAME_SIZE + TG_AVRO_AHEAD
    t = <Table *>malloc(size)
    if t == NULL:
        return NULL
    memset(t, 0, size)
    t.count = count
    t.columns = <TableColumn *>(t + 1)
    t.index = <uint16_t *>(t.columns + count)
    t.chain = t.index + buckets
    text = <uint8_t *>(t.chain + count)
    t.known.hash = tg_hash(f.head.p, f.head.n, 0)
    t.known.size = size
    t.database.p = text + (f.database.p - f.head.p)
    t.database.n = f.database.n
    t.table.p = text + (f.table.p - f.head.p)
    t.table.n = f.table.n
    text = keep_text(text, f.head.p, f.head.n, &t.head)
    t.zone.p = text
    text += NAME_SIZE + 1
    for i in range(count):
        column = &t.columns[i]
        text[0] = <uint8_t>(2 * columns[i].name.n)
        keep_text(text + 1, columns[i].name.p, columns[i].name.n, &column.name)
        column.literal.p = text
        column.literal.n = columns[i].name.n + 1
        text += column.literal.n
        if columns[i].zone.n == 0:
            continue
        if t.zone.n == 0:
            (<uint8_t *>t.zone.p)[0] = <uint8_t>(2 * columns[i].zone.n)
            keep_text(<uint8_t *>t.zone.p + 1, columns[i].zone.p, columns[i].zone.n, &t.location)
            t.zone.n = columns[i].zone.n + 1
        if t.zones == ZONED_COLUMNS or not same_span(&t.location, &columns[i].zone):
            free(t)
            return NULL
        column.zone_bit = <uint64_t>1 << t.zones
        t.zones += 1
    if index_names(t, buckets) < 0:
        free(t)
        return NULL
    return t


cdef inline int index_names(Table *t, size_t buckets) noexcept nogil:
    """Spreads the names over the buckets with the factor that lets the fewest meet; -1 if too many
    do all the same."""
    cdef uint64_t factor = <uint64_t>0x9e3779b97f4a7c15, best = factor
    cdef int tries = 32 if t.count <= 64 else 1
    cdef int32_t met, fewest = t.count + 1, longest = 0
    t.shift = 64
    while buckets >> (64 - t.shift) > 1:
        t.shift -= 1
    while tries and fewest:
        met = spread_names(t, buckets, factor, &longest)
        if met < fewest:
            fewest = met
            best = factor
        factor *= <uint64_t>0xd1342543de82ef95
        tries -= 1
    spread_names(t, buckets, best, &longest)
    return -1 if longest > CHAIN else 0


cdef inline int32_t spread_names(Table *t, size_t buckets, uint64_t factor,
                                 int32_t *longest) noexcept nogil:
    """Fills the buckets; how many names met others there, and in how large a crowd."""
    cdef int32_t i, met = 0, crowd
    cdef uint16_t other
    cdef size_t bucket
    t.factor = factor
    longest[0] = 0
    memset(t.index, 0, buckets * sizeof(uint16_t))
    for i in range(t.count):
        bucket = (tg_name_word(t.columns[i].name.p, t.columns[i].name.n) * factor) >> t.shift
        t.chain[i] = t.index[bucket]
        t.index[bucket] = <uint16_t>(i + 1)
        crowd = 1
        other = t.chain[i]
        while other and crowd <= CHAIN:
            crowd += 1
            other = t.chain[other - 1]
        met += crowd > 1
        if crowd > longest[0]:
            longest[0] = crowd
    return met
