/* Members of JSON objects whose names are known beforehand, many at a time: reading them where they stand as expected, and
 * writing them. Values are plain text or null. And whole numbers.
 *
 * Promises: nothing at or behind `limit` is read; what is accepted lies below `end`. A function that gives up has not judged
 * the input: the caller reads or writes the same member the general way, and must, as without AVX2 all are left to it.
 */
#ifndef TIDEGATE_MEMBERS_H
#define TIDEGATE_MEMBERS_H

#include "_scan.h"
#include "_text.h"
#include "_values.h"

#if defined(TG_SSE2) && defined(__x86_64__) && defined(__GNUC__)
#define TG_AVX2 1
#include <immintrin.h>

static inline int tg_has_avx2(void) {
    static int answer = -1;
    if (TG_UNLIKELY(answer < 0)) answer = __builtin_cpu_supports("avx2") != 0;
    return answer;
}
#endif

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* A member as it is expected: `literal` is everything from the comma before its name to the quote before its text. */
typedef struct {
    const uint8_t *literal; /* with 32 readable bytes behind it */
    uint32_t size;          /* of the literal */
    uint32_t bare;          /* of its part up to the colon, behind which null may stand instead */
    uint32_t mask;          /* tg_literal_mask(size) */
    uint64_t zone_bit;      /* not 0: a date and time, and a brace behind it; the bit is set in `zones` */
} tg_expected;

/* Where reading stands, and where texts go: cells as in buffer.pxd. */
typedef struct {
    const uint8_t *p;
    const uint8_t *end;
    const uint8_t *limit;
    uint8_t *text;  /* the first byte of all cells */
    uint8_t *dst;   /* the next byte; (end - p) + 32 bytes of room */
    int32_t *ends;
    uint8_t *valid;
    uint64_t zones;
} tg_members;

/* Bit i is set for each of the first 32 bytes of a literal that count. */
static inline uint32_t tg_literal_mask(size_t size) {
    return size >= 32 ? 0xffffffffu : (1u << size) - 1u;
}

#ifdef TG_AVX2
__attribute__((target("avx2"))) static size_t tg_take_members_avx2(tg_members *m, const tg_expected *expected, size_t count) {
    const __m256i quote = _mm256_set1_epi8('"'), slash = _mm256_set1_epi8('\\'), control = _mm256_set1_epi8(0x1f);
    const uint8_t *p = m->p, *const end = m->end, *const limit = m->limit;
    uint8_t *const text = m->text, *const valid = m->valid, *dst = m->dst;
    int32_t *const ends = m->ends;
    size_t i;
    for (i = 0; i < count; i++) {
        const tg_expected *const x = &expected[i];
        const uint8_t *at;
        uint8_t *to = dst;
        uint32_t high = 0, stop;
        __m256i block;
        if (TG_UNLIKELY(limit - p < (ptrdiff_t)x->size + 32)) break;
        block = _mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)x->literal));
        if (TG_UNLIKELY((~(uint32_t)_mm256_movemask_epi8(block) & x->mask) != 0) ||
            (TG_UNLIKELY(x->size > 32) && memcmp(p + 32, x->literal + 32, x->size - 32) != 0)) {
            if ((size_t)(end - p) < (size_t)x->bare + 4 || memcmp(p, x->literal, x->bare) != 0 ||
                memcmp(p + x->bare, "null", 4) != 0) break;
            p += x->bare + 4;
            valid[i] = 0;
            ends[i] = (int32_t)(dst - text);
            continue;
        }
        for (at = p + x->size;;) {
            block = _mm256_loadu_si256((const __m256i *)at);
            _mm256_storeu_si256((__m256i *)to, block);
            /* unsigned c < 0x20  <=>  min(c, 0x1f) == c */
            stop = (uint32_t)_mm256_movemask_epi8(_mm256_or_si256(
                _mm256_or_si256(_mm256_cmpeq_epi8(block, quote), _mm256_cmpeq_epi8(block, slash)),
                _mm256_cmpeq_epi8(_mm256_min_epu8(block, control), block)));
            if (TG_LIKELY(stop != 0)) break;
            high |= (uint32_t)_mm256_movemask_epi8(block);
            at += 32;
            to += 32;
            if (limit - at < 32 || at >= end) goto done;
        }
        high |= (uint32_t)_mm256_movemask_epi8(block) & (stop ^ (stop - 1));
        at += __builtin_ctz(stop);
        to += __builtin_ctz(stop);
        if (TG_UNLIKELY(at >= end || *at != '"')) break;
        if (TG_UNLIKELY(high != 0) && !tg_utf8_valid(dst, (size_t)(to - dst))) break;
        at++;
        if (x->zone_bit) {
            if (at >= end || *at != '}' || !tg_datetime_valid(dst, (size_t)(to - dst))) break;
            at++;
            m->zones |= x->zone_bit;
        }
        p = at;
        dst = to;
        valid[i] = 1;
        ends[i] = (int32_t)(dst - text);
    }
done:
    m->p = p;
    m->dst = dst;
    m->ends += i;
    m->valid += i;
    return i;
}
#endif

/* Reads members as far as they are as expected. Returns how many were. */
static inline size_t tg_take_members(tg_members *m, const tg_expected *expected, size_t count) {
#ifdef TG_AVX2
    if (TG_LIKELY(tg_has_avx2())) return tg_take_members_avx2(m, expected, count);
#else
    (void)m; (void)expected; (void)count;
#endif
    return 0;
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

/* A member to be written; the literal as above. */
typedef struct {
    const uint8_t *literal; /* with 32 readable bytes behind it */
    uint32_t size;
    uint32_t bare;
    int32_t index;          /* of its cell in the row */
    uint8_t is_key;
    uint8_t has_zone;       /* a brace follows the closing quote */
} tg_written;

/* The cells of a row, and where its members go. */
typedef struct {
    const int32_t *ends;    /* ends[i] to ends[i + 1]: the text of cell i */
    const uint8_t *valid;   /* bitmap, NULL: no cell is null */
    int64_t valid_base;     /* the bit of cell 0 */
    const uint8_t *text;
    const uint8_t *limit;
    const uint8_t *missing; /* bitmap of cells that are not carried */
    size_t missing_size;    /* in bytes */
    int keys_only;
    uint8_t *dst;           /* room for all literals and texts, 4 bytes a member, and 32 */
} tg_cells;

static inline int tg_is_carried(const tg_cells *c, const tg_written *w) {
    size_t byte = (size_t)(w->index >> 3);
    if (c->keys_only && !w->is_key) return 0;
    return byte >= c->missing_size || !(c->missing[byte] >> (w->index & 7) & 1);
}

static inline int tg_is_null(const tg_cells *c, int32_t index) {
    int64_t bit = c->valid_base + index;
    return c->valid != NULL && !(c->valid[bit >> 3] >> (bit & 7) & 1);
}

#ifdef TG_AVX2
__attribute__((target("avx2"))) static size_t tg_put_members_avx2(tg_cells *c, const tg_written *members, size_t count) {
    /* The bytes that JSON text cannot hold, or Go's encoder will not: a class for each high half, and for each low half the
     * classes it completes. 1: controls; 2: " and &; 4: < and >; 8: backslash; 16: 0xe2, with which U+2028 begins. */
    const __m256i high_halves = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(1, 1, 2, 4, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0));
    const __m256i low_halves = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(1, 1, 19, 1, 1, 1, 3, 1, 1, 1, 1, 1, 13, 1, 5, 1));
    const __m256i half = _mm256_set1_epi8(15), zero = _mm256_setzero_si256();
    const uint8_t *const text = c->text, *const limit = c->limit;
    const int32_t *const ends = c->ends;
    const int plain = c->valid == NULL && c->missing_size == 0 && !c->keys_only;
    uint8_t *dst = c->dst;
    size_t i;
    for (i = 0; i < count; i++) {
        const tg_written *const w = &members[i];
        const uint8_t *p;
        uint8_t *to = dst;
        int32_t n;
        if (!plain) {
            if (!tg_is_carried(c, w)) continue;
            if (tg_is_null(c, w->index)) {
                memcpy(dst, w->literal, w->bare);
                memcpy(dst + w->bare, "null", 4);
                dst += w->bare + 4;
                continue;
            }
        }
        _mm256_storeu_si256((__m256i *)to, _mm256_loadu_si256((const __m256i *)w->literal));
        if (TG_UNLIKELY(w->size > 32)) memcpy(to + 32, w->literal + 32, w->size - 32);
        to += w->size;
        p = text + ends[w->index];
        n = ends[w->index + 1] - ends[w->index];
        for (;;) {
            __m256i block, classes;
            uint32_t special;
            if (TG_UNLIKELY(limit - p < 32)) goto done;
            block = _mm256_loadu_si256((const __m256i *)p);
            _mm256_storeu_si256((__m256i *)to, block);
            classes = _mm256_and_si256(
                _mm256_shuffle_epi8(low_halves, _mm256_and_si256(block, half)),
                _mm256_shuffle_epi8(high_halves, _mm256_and_si256(_mm256_srli_epi16(block, 4), half)));
            special = ~(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(classes, zero));
            if (n <= 32) {
                if (TG_UNLIKELY(special & tg_literal_mask((size_t)n))) goto done;
                break;
            }
            if (TG_UNLIKELY(special)) goto done;
            p += 32;
            to += 32;
            n -= 32;
        }
        to += n;
        to[0] = '"';
        to[1] = '}';
        dst = to + 1 + w->has_zone;
    }
done:
    c->dst = dst;
    return i;
}
#endif

/* Writes members up to one whose text needs escapes. Returns how many were written. */
static inline size_t tg_put_members(tg_cells *c, const tg_written *members, size_t count) {
#ifdef TG_AVX2
    if (TG_LIKELY(tg_has_avx2())) return tg_put_members_avx2(c, members, count);
#else
    (void)c; (void)members; (void)count;
#endif
    return 0;
}

/* ---- whole numbers ---------------------------------------------------------------------------------------------- */

/* Eight digits, the first in the lowest byte. */
static inline uint64_t tg_read_eight(uint64_t word) {
    word = (word & 0x0f0f0f0f0f0f0f0fu) * 2561 >> 8;
    word = (word & 0x00ff00ff00ff00ffu) * 6553601 >> 16;
    return (word & 0x0000ffff0000ffffu) * 42949672960001u >> 32;
}

/* How many digits stand at p; 20 or more are counted as 20. */
static inline size_t tg_digit_run(const uint8_t *p, const uint8_t *end, const uint8_t *limit) {
    size_t n = 0, most = (size_t)(end - p);
#ifdef TG_SSE2
    if (TG_LIKELY(limit - p >= 16)) {
        __m128i shifted = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)p), _mm_set1_epi8('0'));
        __m128i digit = _mm_cmpeq_epi8(_mm_min_epu8(shifted, _mm_set1_epi8(9)), shifted);
        n = (size_t)__builtin_ctz(~(unsigned)_mm_movemask_epi8(digit));
        if (n < 16) return n < most ? n : most;
    }
#else
    (void)limit;
#endif
    while (n < 20 && n < most && tg_is_digit(p[n])) n++;
    return n < most ? n : most;
}

/* A whole number of at most 63 bits, as senders of JSON write it. Returns its length, or 0. */
static inline size_t tg_natural(const uint8_t *p, const uint8_t *end, const uint8_t *limit, int64_t *out) {
    size_t n = tg_digit_run(p, end, limit);
    uint64_t value = 0;
    if (n == 0 || n > 19 || (n > 1 && p[0] == '0')) return 0;
    if (TG_UNLIKELY(limit - p < 8)) {
        for (size_t i = 0; i < n; i++) value = value * 10 + (uint64_t)(p[i] - '0');
    } else if (n <= 8) {
        value = tg_read_eight(tg_load_le64(p) << 8 * (8 - n));
    } else {
        /* The last eight, the eight before, and what there is before those. */
        value = tg_read_eight(tg_load_le64(p + n - 8));
        if (n <= 16) {
            value += tg_read_eight(tg_load_le64(p) << 8 * (16 - n)) * 100000000u;
        } else {
            value += tg_read_eight(tg_load_le64(p + n - 16)) * 100000000u;
            value += tg_read_eight(tg_load_le64(p) << 8 * (24 - n)) * 10000000000000000u;
        }
    }
    if (value > INT64_MAX) return 0;
    *out = (int64_t)value;
    return n;
}

#endif
