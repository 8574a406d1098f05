"""What decoders remember of tables: found by a hash, bounded in number and in bytes.

Where there is no room, one table makes way, chosen at random. With more tables than room, most are
still known when they come again, in whatever order they come; the oldest making way would mean that
tables that take turns are never known.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t

cdef enum:
    MOST_TABLES = 256
    TABLE_BUCKETS = 512
    MOST_TABLE_BYTES = 32 * 1024 * 1024     # one table alone may have more


# The first member of whatever is remembered.
cdef struct KnownTable:
    KnownTable *next        # of the same bucket
    uint64_t hash
    size_t size             # about how many bytes it takes
    int32_t place           # in TableMemory.tables


ctypedef void (*Release)(KnownTable *) noexcept nogil


cdef struct TableMemory:
    KnownTable *tables[MOST_TABLES]
    KnownTable *buckets[TABLE_BUCKETS]
    KnownTable *last        # the one used last; NULL: none
    int32_t count
    uint32_t chance         # the state of the random numbers
    size_t size             # of all tables
    Release release         # gives the memory of a table back


cdef inline KnownTable *first_known(const TableMemory *memory, uint64_t hash) noexcept nogil:
    """The tables of this hash, and maybe others, are this one and those that follow by `next`."""
    return memory.buckets[hash & (TABLE_BUCKETS - 1)]


cdef inline void forget_table(TableMemory *memory, KnownTable *table) noexcept nogil:
    cdef KnownTable **link = &memory.buckets[table.hash & (TABLE_BUCKETS - 1)]
    while link[0] != table:
        link = &link[0].next
    link[0] = table.next
    memory.count -= 1
    memory.tables[table.place] = memory.tables[memory.count]
    memory.tables[table.place].place = table.place
    memory.size -= table.size
    if memory.last == table:
        memory.last = NULL
    memory.release(table)


cdef inline void remember_table(TableMemory *memory, KnownTable *table) noexcept nogil:
    """Takes the table, whose hash and size are set, as the one used last."""
    cdef KnownTable **bucket = &memory.buckets[table.hash & (TABLE_BUCKETS - 1)]
    while memory.count == MOST_TABLES or \
            (memory.count and memory.size + table.size > MOST_TABLE_BYTES):
        memory.chance = memory.chance * 1664525 + 1013904223
        forget_table(memory, memory.tables[(memory.chance >> 8) % <uint32_t>memory.count])
    table.next = bucket[0]
    bucket[0] = table
    table.place = memory.count
    memory.tables[memory.count] = table
    memory.count += 1
    memory.size += table.size
    memory.last = table


cdef inline void forget_tables(TableMemory *memory) noexcept nogil:
    while memory.count:
        forget_table(memory, memory.tables[memory.count - 1])
