"""Members of JSON objects as they are expected and as they are written: see _members.h."""

from tidegate.wire.codec.prelude cimport *

cdef extern from "_members.h" nogil:
    ctypedef struct tg_expected:
        const uint8_t *literal
        uint32_t size
        uint32_t bare
        uint32_t mask
        uint64_t zone_bit

    ctypedef struct tg_members:
        const uint8_t *p
        const uint8_t *end
        const uint8_t *limit
        uint8_t *text
        uint8_t *dst
        int32_t *ends
        uint8_t *valid
        uint64_t zones

    ctypedef struct tg_written:
        const uint8_t *literal
        uint32_t size
        uint32_t bare
        int32_t index
        uint8_t is_key
        uint8_t has_zone

    ctypedef struct tg_cells:
        const int32_t *ends
        const uint8_t *valid
        int64_t valid_base
        const uint8_t *text
        const uint8_t *limit
        const uint8_t *missing
        size_t missing_size
        int keys_only
        uint8_t *dst

    uint32_t tg_literal_mask(size_t size) noexcept
    size_t tg_take_members(tg_members *m, const tg_expected *expected, size_t count) noexcept
    bint tg_is_carried(const tg_cells *c, const tg_written *w) noexcept
    bint tg_is_null(const tg_cells *c, int32_t index) noexcept
    size_t tg_put_members(tg_cells *c, const tg_written *members, size_t count) noexcept
    size_t tg_digit_run(const uint8_t *p, const uint8_t *end, const uint8_t *limit) noexcept
    size_t tg_natural(const uint8_t *p, const uint8_t *end, const uint8_t *limit,
                      int64_t *out) noexcept
