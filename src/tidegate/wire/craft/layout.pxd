"""What Craft messages are made of: see _craft.h for the values of a column group."""

from tidegate.wire.codec.prelude cimport *


cdef extern from "_craft.h" nogil:
    enum:
        TG_CRAFT_NULL
        TG_CRAFT_UTF8
        TG_CRAFT_NUMBER
        TG_CRAFT_RANGE
        TG_CRAFT_TEMPORAL
        TG_CRAFT_LENGTH
        TG_CRAFT_VALUE
        TG_CRAFT_BASE64
    int tg_craft_sizes(const uint8_t **at, const uint8_t *end, const uint8_t *limit, int32_t count,
                       int32_t *sizes) noexcept
    int64_t tg_craft_value(uint16_t column, const uint8_t *p, int32_t size, const uint8_t *limit,
                           uint8_t *text, int *damaged) noexcept
    ctypedef struct tg_cells:
        const int32_t *ends
        const uint8_t *valid
        int64_t first
        const uint8_t *text
        const uint8_t *limit
    uint8_t *tg_put_uvarint(uint8_t *dst, uint64_t value) noexcept
    uint8_t *tg_put_varint(uint8_t *dst, int64_t value) noexcept
    uint8_t *tg_craft_put_sizes(uint8_t *dst, const int32_t *sizes, int32_t count) noexcept
    int64_t tg_craft_row(const uint16_t *columns, const int32_t *picks, int32_t count, const tg_cells *cells,
                         int32_t *sizes, uint8_t *dst, int32_t *at) noexcept
    int64_t tg_craft_old_row(const uint16_t *columns, int32_t count, const tg_cells *new_cells,
                             const int32_t *new_sizes, const uint8_t *new_bytes,
                             const tg_cells *old_cells, int32_t *sizes, uint8_t *dst, int32_t *at) noexcept
    int64_t tg_craft_values(const uint16_t *columns, const int32_t *sizes, int32_t count, const uint8_t **at,
                            const uint8_t *limit, uint8_t *base, size_t *used, int32_t *ends,
                            uint8_t *valid, int *damaged) noexcept
    int64_t tg_craft_old_values(const uint16_t *columns, const int32_t *new_sizes,
                                const int32_t *sizes, int32_t count, const uint8_t *new_p,
                                const uint8_t **at, const uint8_t *limit, const uint8_t *new_base,
                                const int32_t *new_ends, uint8_t *base, size_t *used, int32_t *ends,
                                uint8_t *valid, int *damaged) noexcept


cdef enum:
    VERSION = 1
    # event types
    EVENT_ROW = 1
    EVENT_DDL = 2
    EVENT_RESOLVED = 3
    # column groups
    GROUP_NEW = 1
    GROUP_OLD = 2
    # the longest texts of a number: of a 64-bit integer, and of a double (tg_format_double)
    INTEGER_ROOM = 24
    DOUBLE_ROOM = 400
    # TiCDC's estimate of a message's size: for a row, and for a column beside its name and value
    ROW_ESTIMATE = 32
    COLUMN_ESTIMATE = 16
    # what a decoder remembers
    KNOWN_GROUPS = 8
