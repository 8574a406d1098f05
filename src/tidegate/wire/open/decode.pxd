"""What the Open Protocol's decoder remembers of tables, and what it notes of an event."""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.open.layout cimport *


# --- what the decoder remembers ------------------------------------------------------------------

# A column of a predicted shape: the bytes before its value, as they stood in an earlier message.
cdef struct Lane:
    const uint8_t *literal      # `},"name":{"t":3,"f":65,"v":`, padded
    int32_t size
    int32_t code
    uint8_t reading
    uint8_t sure_digits


cdef struct Plan:
    Lane *lanes                 # the literals lie behind them in the same block
    size_t size                 # of the block
    int32_t count
    int32_t shape


cdef struct Table:
    KnownTable known            # its hash is that of the names
    uint8_t *block              # holds the three texts
    Span database
    Span table
    Span literal                # `,"scm":"d","tbl":"t"`, padded; n = 0: the names are not plain
    Plan plans[MAX_PLANS]
    int32_t plan_count
    int32_t recent              # the plan that fitted last
    int32_t oldest              # the plan to give up next


# --- one event -----------------------------------------------------------------------------------

cdef struct Key:
    int64_t commit_ts
    int64_t partition
    Span database           # p == NULL: not there
    Span table
    Span location
    Table *known            # a row's table as remembered, or NULL
    int kind
    bint has_partition
    bint only_handle_key


# What a value is, as far as it could be seen without its type.
cdef enum Seen:
    SEEN_OTHER = 0
    SEEN_NULL = 1
    SEEN_PLAIN = 2      # a string without escapes and beyond ASCII nothing
    SEEN_INTEGER = 3


# A column object as it stands in the message.
cdef struct Column:
    Span name
    const uint8_t *name_at      # its opening quote
    const uint8_t *value_at
    const uint8_t *value_end
    int32_t code
    int32_t flags
    int32_t key
    int32_t place               # in `p`: the index of its column in `u`
    uint8_t seen
    uint8_t plain               # a brace follows the value at once, so that it can be predicted
    uint8_t bare                # in `p`: members without a column (a defect of the new architecture)


cdef struct Section:
    size_t first                # in Decoder.columns
    int32_t count
    bint there
    bint bare


cdef class OpenDecoder(MessageDecoder):
    cdef Buffer columns         # Column: those of the event being read
    cdef Buffer places          # int32: for each column of `u`, its index in `p` or -1
    cdef Buffer slots           # int32: hash table over column names
    cdef Buffer shape_columns   # ShapeColumn
    cdef Buffer aside           # bytes of a value on their way
    cdef const uint8_t *event_at    # where the value of the event being read begins

    cdef int message(self, Message *m, Cursor *c) noexcept nogil
