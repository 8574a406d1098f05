# The byte-level functions of _text.h, for the other compiled modules; the header has the contracts.

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "_text.h" nogil:
    int tg_is_digit(uint8_t byte) noexcept
    uint64_t tg_load_le64(const uint8_t *p) noexcept

    int tg_format_i64(int64_t v, uint8_t *dst) noexcept
    int tg_format_u64(uint64_t v, uint8_t *dst) noexcept
    int tg_parse_u64(const uint8_t *p, size_t n, uint64_t *out) noexcept
    int tg_parse_i64(const uint8_t *p, size_t n, int64_t *out) noexcept
    int tg_format_double(double v, uint8_t *dst) noexcept
    int tg_format_float(float v, uint8_t *dst) noexcept

    int tg_parse_double(const uint8_t *p, size_t n, double *out) noexcept
    int tg_parse_float(const uint8_t *p, size_t n, float *out) noexcept
    int tg_shift_decimal(const uint8_t *p, size_t n, uint8_t *dst, size_t cap) noexcept
    int tg_go_json_float(
        const uint8_t *p, size_t n, int is_float32, int keep_exponent_zero, uint8_t *dst
    ) noexcept

    size_t tg_ascii_run(const uint8_t *p, size_t n) noexcept
    int tg_utf8_rune(const uint8_t *p, size_t n, uint32_t *rune) noexcept
    int tg_utf8_write(uint32_t rune, uint8_t *dst) noexcept
    int tg_utf8_valid(const uint8_t *p, size_t n) noexcept
    int64_t tg_latin1_from_utf8(const uint8_t *p, size_t n, uint8_t *dst) noexcept
    size_t tg_utf8_from_latin1(const uint8_t *p, size_t n, uint8_t *dst) noexcept

    size_t tg_base64_encode(const uint8_t *p, size_t n, uint8_t *dst) noexcept
    int64_t tg_base64_decode(const uint8_t *p, size_t n, uint8_t *dst) noexcept

    int tg_go_is_print(uint32_t rune) noexcept
    size_t tg_go_quote(const uint8_t *p, size_t n, uint8_t *dst) noexcept
    int64_t tg_go_unquote(const uint8_t *p, size_t n, uint8_t *dst) noexcept

    uint64_t tg_hash(const uint8_t *p, size_t n, uint64_t seed) noexcept
    uint32_t tg_crc32c(const uint8_t *p, size_t n) noexcept
    uint32_t tg_crc32(uint32_t crc, const uint8_t *p, size_t n) noexcept
