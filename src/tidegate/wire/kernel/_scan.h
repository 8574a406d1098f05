/* Scanning the body of JSON strings and comparing predicted bytes, 16 bytes a step.
 *
 * Contract: `end` is the end of the message, `limit` (>= end) the end of the memory that may be read.
 * Blocks are loaded only where 16 bytes lie below `limit`; the rest goes byte by byte. Defining
 * TIDEGATE_PORTABLE leaves the x86 paths out; both give the same results.
 */
#ifndef TIDEGATE_SCAN_H
#define TIDEGATE_SCAN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__) && !defined(TIDEGATE_PORTABLE)
#define TG_SSE2 1
#include <emmintrin.h>
#endif

#if defined(__GNUC__) || defined(__clang__)
#define TG_LIKELY(x) __builtin_expect(!!(x), 1)
#define TG_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define TG_NOINLINE __attribute__((noinline))
#else
#define TG_LIKELY(x) (x)
#define TG_UNLIKELY(x) (x)
#define TG_NOINLINE
#endif

/* 1 for bytes that end a plain run of a JSON string: quote, backslash, control characters. */
static inline int tg_special(uint8_t c) { return c == '"' || c == '\\' || c < 0x20; }

#ifdef TG_SSE2
static inline unsigned tg_special_mask(__m128i block) {
    __m128i quote = _mm_cmpeq_epi8(block, _mm_set1_epi8('"'));
    __m128i slash = _mm_cmpeq_epi8(block, _mm_set1_epi8('\\'));
    /* unsigned c < 0x20  <=>  min(c, 0x1f) == c */
    __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(block, _mm_set1_epi8(0x1f)), block);
    return (unsigned)_mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quote, slash), control));
}
#endif

/* The number of bytes from p up to the first special byte or `end`; *high gets bit 7 of what was
 * passed over ORed in (a superset is allowed: bytes behind the stop may be counted too). */
static inline size_t tg_plain_run(const uint8_t *p, const uint8_t *end, const uint8_t *limit,
                                  unsigned *high) {
    const uint8_t *start = p;
#ifdef TG_SSE2
    while (p < end && limit - p >= 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)p);
        unsigned mask = tg_special_mask(block);
        *high |= (unsigned)_mm_movemask_epi8(block);
        if (mask) {
            p += __builtin_ctz(mask);
            return (size_t)((p < end ? p : end) - start);
        }
        p += 16;
    }
    if (p > end) p = end;
#endif
    while (p < end && !tg_special(*p)) {
        *high |= *p & 0x80u;
        p++;
    }
    return (size_t)(p - start);
}

/* tg_plain_run that also copies what it passes over to dst. dst needs (end - p) + 16 bytes. */
static inline size_t tg_copy_plain_run(const uint8_t *p, const uint8_t *end, const uint8_t *limit,
                                       uint8_t *dst, unsigned *high) {
    const uint8_t *start = p;
#ifdef TG_SSE2
    while (p < end && limit - p >= 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)p);
        unsigned mask = tg_special_mask(block);
        _mm_storeu_si128((__m128i *)dst, block);
        *high |= (unsigned)_mm_movemask_epi8(block);
        if (mask) {
            p += __builtin_ctz(mask);
            return (size_t)((p < end ? p : end) - start);
        }
        p += 16;
        dst += 16;
    }
    if (p > end) return (size_t)(end - start);
#endif
    while (p < end && !tg_special(*p)) {
        *high |= *p & 0x80u;
        *dst++ = *p++;
    }
    return (size_t)(p - start);
}

/* As tg_copy_plain_run, for writing JSON: stops also at & < > and 0xe2 (U+2028 and U+2029 begin so). */
static inline int tg_write_special(uint8_t c) {
    return tg_special(c) || c == '&' || c == '<' || c == '>' || c == 0xe2;
}

static inline size_t tg_copy_writable_run(const uint8_t *p, const uint8_t *end,
                                          const uint8_t *limit, uint8_t *dst) {
    const uint8_t *start = p;
#ifdef TG_SSE2
    while (p < end && limit - p >= 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)p);
        __m128i extra = _mm_or_si128(
            _mm_or_si128(_mm_cmpeq_epi8(block, _mm_set1_epi8('&')),
                         _mm_cmpeq_epi8(block, _mm_set1_epi8((char)0xe2))),
            /* '<' is 0x3c and '>' is 0x3e: equal but for bit 1 */
            _mm_cmpeq_epi8(_mm_or_si128(block, _mm_set1_epi8(2)), _mm_set1_epi8('>')));
        unsigned mask = tg_special_mask(block) | (unsigned)_mm_movemask_epi8(extra);
        _mm_storeu_si128((__m128i *)dst, block);
        if (mask) {
            p += __builtin_ctz(mask);
            return (size_t)((p < end ? p : end) - start);
        }
        p += 16;
        dst += 16;
    }
    if (p > end) return (size_t)(end - start);
#endif
    while (p < end && !tg_write_special(*p)) *dst++ = *p++;
    return (size_t)(p - start);
}

/* Whether the n bytes at p equal those at `expected`. `expected` must have 15 readable bytes behind
 * its n (arenas are padded); p may be read up to `limit`. The caller has checked n <= end - p. */
static inline int tg_same(const uint8_t *p, const uint8_t *expected, size_t n,
                          const uint8_t *limit) {
#ifdef TG_SSE2
    while ((size_t)(limit - p) >= 16) {
        unsigned differ = ~(unsigned)_mm_movemask_epi8(
                              _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)p),
                                             _mm_loadu_si128((const __m128i *)expected))) & 0xffffu;
        if (n <= 16) return n == 16 ? differ == 0 : (differ & ((1u << n) - 1u)) == 0;
        if (differ) return 0;
        p += 16;
        expected += 16;
        n -= 16;
    }
#else
    (void)limit;
#endif
    return memcmp(p, expected, n) == 0;
}

/* Copies n bytes; up to 16 bytes more may be written behind dst + n. */
static inline void tg_copy(uint8_t *dst, const uint8_t *src, size_t n, const uint8_t *limit) {
#ifdef TG_SSE2
    if (TG_LIKELY(n <= 32 && limit - src >= 32)) {
        __m128i first = _mm_loadu_si128((const __m128i *)src);
        _mm_storeu_si128((__m128i *)dst, first);
        if (n > 16) {
            __m128i second = _mm_loadu_si128((const __m128i *)(src + 16));
            _mm_storeu_si128((__m128i *)(dst + 16), second);
        }
        return;
    }
#else
    (void)limit;
#endif
    memcpy(dst, src, n);
}

/* Whether this bit is set in all bytes. */
static inline int tg_all_set(const uint8_t *bytes, size_t count, int bit) {
    uint8_t all = 0xff;
    for (size_t i = 0; i < count; i++) all &= bytes[i];
    return all >> bit & 1;
}

/* This bit of each byte, one behind the other, least significant first: (count + 7) / 8 bytes. */
static inline void tg_pack_bits(const uint8_t *bytes, size_t count, int bit, uint8_t *out) {
    size_t i = 0;
#ifdef TG_SSE2
    const __m128i up = _mm_cvtsi32_si128(7 - bit);
    for (; count - i >= 16; i += 16) {
        __m128i block = _mm_sll_epi16(_mm_loadu_si128((const __m128i *)(bytes + i)), up);
        unsigned mask = (unsigned)_mm_movemask_epi8(block);
        out[i >> 3] = (uint8_t)mask;
        out[(i >> 3) + 1] = (uint8_t)(mask >> 8);
    }
#endif
    for (; i < count; i++) {
        if ((i & 7) == 0) out[i >> 3] = 0;
        out[i >> 3] |= (uint8_t)((bytes[i] >> bit & 1) << (i & 7));
    }
}

#endif
