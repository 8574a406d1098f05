"""What the decoder of Simple's Avro remembers of tables, and what it notes of a message."""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.simple.avro.layout cimport *

# An entry of a row's map: where its value stands, its union index first.
cdef struct Entry:
    Span name
    const uint8_t *value


# The same, by column of a remembered table. end: where the value must end.
cdef struct Place:
    const uint8_t *value
    const uint8_t *end


cdef struct TableColumn:
    Span literal            # the name as it stands in a map, its length first
    Span name
    uint64_t zone_bit       # its bit in ZoneShape.zones; 0: no zone seen


# Which columns carry a zone differs from row to row (NULL has none), and with it the shape.
cdef struct ZoneShape:
    uint64_t zones
    int32_t shape


cdef enum:
    ZONE_SHAPES = 16


# What is remembered of a table: which column each name of its maps is. One block of memory.
cdef struct Table:
    KnownTable known        # its hash is that of head
    Span head               # database and table as they stand in a message
    Span database
    Span table
    Span zone               # the location of its Timestamps as it stands in a message; n = 0: none
    Span location           # the same without its length
    int32_t count
    int32_t zones           # columns with a zone
    TableColumn *columns    # sorted by name
    uint64_t factor         # names to buckets
    unsigned int shift
    uint16_t *index         # the first column of each bucket + 1; 0: none
    uint16_t *chain         # the next column of the same bucket + 1
    uint32_t zone_shape_count
    uint32_t zone_shape_next
    ZoneShape zone_shapes[ZONE_SHAPES]


# A row change up to its values.
cdef struct RowFacts:
    Table *known            # the table used last, if the message has its head
    Span head
    Span database           # these only if the table is not known
    Span table
    int64_t table_id
    int64_t commit_ts
    int64_t schema_version
    int type
    Span claim_check
    bint handle_key_only
    bint has_checksum
    Checksum checksum


# What a table schema says of the event it comes with.
cdef struct SchemaFacts:
    Span database
    Span table
    int64_t table_id
    int64_t version


# The type of the columns whose values carry a time zone.
cdef Span TIMESTAMP


cdef class SimpleAvroDecoder(MessageDecoder):
    cdef Buffer data        # Entry
    cdef Buffer old         # Entry
    cdef Buffer places      # Place
    cdef Buffer columns     # ShapeColumn
    cdef Buffer text        # schemas being written

    cdef int message(self, Message *m, Cursor *c) noexcept nogil
