/* The innermost steps of the Open Protocol: integers, short numbers, and comparisons with predicted bytes.
 *
 * Promises: nothing outside [p, end) is read, except by functions with a `limit`, which may read on to it; no state.
 */
#ifndef TG_OPEN_H
#define TG_OPEN_H

#include "_scan.h"
#include "_text.h"

#ifdef TG_SSE2
static inline unsigned open_digit_mask(__m128i block) {
    __m128i digit = _mm_sub_epi8(block, _mm_set1_epi8('0'));
    return (unsigned)_mm_movemask_epi8(
        _mm_cmpeq_epi8(_mm_min_epu8(digit, _mm_set1_epi8(9)), digit));
}
#endif

/* The integer at p, [-] digits without leading zeros and at most 20 of them: its length with the
 * sign, or 0. It is copied to dst, which needs 32 bytes. What stands behind it is not looked at. */
static inline size_t open_integer(const uint8_t *p, const uint8_t *end, const uint8_t *limit, uint8_t *dst) {
    size_t sign = p < end && *p == '-';
    size_t n = sign;
#ifdef TG_SSE2
    if (TG_LIKELY(limit - p >= 32)) {
        __m128i block = _mm_loadu_si128((const __m128i *)p);
        _mm_storeu_si128((__m128i *)dst, block);
        n += (size_t)__builtin_ctz(~(open_digit_mask(block) >> sign));
        if (n == 16) {
            block = _mm_loadu_si128((const __m128i *)(p + 16));
            _mm_storeu_si128((__m128i *)(dst + 16), block);
            n += (size_t)__builtin_ctz(~open_digit_mask(block));
        }
        if (end - p < (ptrdiff_t)n) n = (size_t)(end - p);
    } else
#endif
    {
        if (sign) *dst = '-';
        while (n <= sign + 20 && end - p > (ptrdiff_t)n && tg_is_digit(p[n])) {
            dst[n] = p[n];
            n++;
        }
    }
    if (n == sign || n > sign + 20) return 0;
    if (p[sign] == '0' && n + sign > 1) return 0;
    return n;
}

/* A number of up to three digits from the low bytes of a word, without branches that depend on
 * how many there are; *digits is 0 if there is none, or a zero before others. */
static inline uint32_t open_short_number(uint64_t word, int *digits) {
    uint32_t parts = ((uint32_t)word & 0xffffffu) ^ 0x303030u;
    uint32_t others = (parts | (parts + 0x767676u)) & 0x808080u;
    int count = tg_ctz64(others | 0x80000000u) / 8;
    uint32_t aligned = parts << (8 * (3 - count)) & 0xffffffu;
    *digits = count > 1 && (parts & 0xffu) == 0 ? 0 : count;
    return (aligned & 0xffu) * 100 + (aligned >> 8 & 0xffu) * 10 + (aligned >> 16);
}

/* Whether the n bytes at p and q are the same. */
static inline int open_same(const uint8_t *p, const uint8_t *q, size_t n) {
#ifdef TG_SSE2
    if (TG_LIKELY(n >= 16)) {
        __m128i differ = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(p + n - 16)),
                                       _mm_loadu_si128((const __m128i *)(q + n - 16)));
        size_t i;
        for (i = 0; i + 16 < n; i += 16) {
            differ = _mm_or_si128(differ, _mm_xor_si128(_mm_loadu_si128((const __m128i *)(p + i)),
                                                        _mm_loadu_si128((const __m128i *)(q + i))));
        }
        return _mm_movemask_epi8(_mm_cmpeq_epi8(differ, _mm_setzero_si128())) == 0xffff;
    }
#endif
    return memcmp(p, q, n) == 0;
}

/* Of a column's name, for a table that lives no longer than a message. */
static inline uint64_t open_name_hash(const uint8_t *p, size_t n) {
    uint64_t h = n * 0x9e3779b97f4a7c15u;
    uint32_t first, last;
    if (n >= 8) {
        size_t i;
        for (i = 0; i + 8 < n; i += 8) h = tg_fold(h ^ tg_load64(p + i), 0xa4093822299f31d1u);
        return tg_fold(h ^ tg_load64(p + n - 8), 0xc0ac29b7c97c50ddu);
    }
    if (n >= 4) {
        memcpy(&first, p, 4);
        memcpy(&last, p + n - 4, 4);
    } else {
        first = n ? p[0] : 0u;
        last = n ? (uint32_t)p[n / 2] << 8 | p[n - 1] : 0u;
    }
    return tg_fold(h ^ ((uint64_t)first << 32 | last), 0xc0ac29b7c97c50ddu);
}

#endif
