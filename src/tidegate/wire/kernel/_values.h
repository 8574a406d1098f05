/* Values of binary protocols: whether a text is what MySQL writes for its type, copies that look at what they copy.
 *
 * Promises: nothing outside [p, p + n) is read, except by functions with a `limit`, which may read on to it; no state.
 * Zero dates and zero parts of dates are valid (MySQL stores them); a day beyond its month is not.
 */
#ifndef TG_VALUES_H
#define TG_VALUES_H

#include "_scan.h"
#include "_text.h"

/* The bounds of the integer types as digits, by width; `least` is without its minus. */
typedef struct {
    const char *most_unsigned, *most, *least;
} tg_integer_bounds;

static inline const tg_integer_bounds *tg_bounds_of(int bits) {
    static const tg_integer_bounds bounds[5] = {
        {"255", "127", "128"},
        {"65535", "32767", "32768"},
        {"16777215", "8388607", "8388608"},
        {"4294967295", "2147483647", "2147483648"},
        {"18446744073709551615", "9223372036854775807", "9223372036854775808"},
    };
    return &bounds[bits == 8 ? 0 : bits == 16 ? 1 : bits == 24 ? 2 : bits == 32 ? 3 : 4];
}

/* Whether n digits without leading zeros are a number up to the bound. */
static inline int tg_digits_within(const uint8_t *p, size_t n, const char *bound) {
    size_t size = strlen(bound);
    return n < size || (n == size && memcmp(p, bound, n) <= 0);
}

/* Bytes that must be digits (0x30) or fixed marks, as one word to XOR with; then each byte plus its bound in `bounds`
 * stays below 0x80 exactly where it is small enough: 0x76 for a digit, 0x7a for one up to 5, 0x7f for a mark. */
static inline int tg_pattern_fits(uint64_t differ, uint64_t bounds) {
    return ((differ | (differ + bounds)) & 0x8080808080808080u) == 0;
}

static inline int tg_two_digits(uint64_t differ, int at) {
    return (int)(differ >> (8 * at) & 0xff) * 10 + (int)(differ >> (8 * at + 8) & 0xff);
}

/* YYYY-MM-DD at p, ten bytes. */
static inline int tg_date_at(const uint8_t *p) {
    static const uint8_t days[13] = {31, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    uint64_t differ = tg_load_le64(p) ^ 0x2d30302d30303030u;
    unsigned tens = p[8] - '0', units = p[9] - '0', day;
    int month, year;
    if (!tg_pattern_fits(differ, 0x7f76767f76767676u) || tens > 9 || units > 9) return 0;
    month = tg_two_digits(differ, 5);
    day = tens * 10 + units;
    if (month > 12 || day > days[month]) return 0;
    if (month != 2 || day != 29) return 1;
    year = tg_two_digits(differ, 0) * 100 + tg_two_digits(differ, 2);
    return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}

/* HH:MM:SS at p, eight bytes; *hours gets HH. */
static inline int tg_clock_at(const uint8_t *p, int *hours) {
    uint64_t differ = tg_load_le64(p) ^ 0x30303a30303a3030u;
    *hours = tg_two_digits(differ, 0);
    return tg_pattern_fits(differ, 0x767a7f767a7f7676u);
}

/* Nothing, or a point and one to six digits. */
static inline int tg_fraction_valid(const uint8_t *p, size_t n) {
    size_t i;
    if (n == 0) return 1;
    if (n < 2 || n > 7 || p[0] != '.') return 0;
    for (i = 1; i < n; i++) {
        if (!tg_is_digit(p[i])) return 0;
    }
    return 1;
}

static inline int tg_date_valid(const uint8_t *p, size_t n) { return n == 10 && tg_date_at(p); }

/* DATETIME and TIMESTAMP. */
static inline int tg_datetime_valid(const uint8_t *p, size_t n) {
    int hours;
    return n >= 19 && tg_date_at(p) && p[10] == ' ' && tg_clock_at(p + 11, &hours) && hours < 24 &&
           tg_fraction_valid(p + 19, n - 19);
}

/* TIME, from -838:59:59 to 838:59:59 and its fraction. */
static inline int tg_time_valid(const uint8_t *p, size_t n) {
    int hours, hundreds = 0;
    if (n > 0 && p[0] == '-') {
        p++;
        n--;
    }
    if (n >= 9 && p[3] == ':') {
        if (!tg_is_digit(p[0])) return 0;
        hundreds = p[0] - '0';
        p++;
        n--;
    }
    return n >= 8 && tg_clock_at(p, &hours) && hundreds * 100 + hours <= 838 && tg_fraction_valid(p + 8, n - 8);
}

/* [-] digits [. digits] */
static inline int tg_decimal_valid(const uint8_t *p, size_t n, const uint8_t *limit) {
    size_t i = 0, digits;
#ifdef TG_SSE2
    if (TG_LIKELY(n <= 16 && limit - p >= 16)) {
        __m128i block = _mm_loadu_si128((const __m128i *)p);
        /* c - '0' <= 9, unsigned */
        __m128i shifted = _mm_sub_epi8(block, _mm_set1_epi8('0'));
        unsigned digit = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(shifted, _mm_set1_epi8(9)), shifted));
        unsigned other = ~digit & ((1u << n) - 1u);
        unsigned first = n > 0 && p[0] == '-';
        other &= ~first;
        if (other == 0) return n > first;
        i = (size_t)__builtin_ctz(other);
        return (other & (other - 1)) == 0 && p[i] == '.' && i > first && i + 1 < n;
    }
#else
    (void)limit;
#endif
    i += n > 0 && p[0] == '-';
    digits = i;
    while (i < n && tg_is_digit(p[i])) i++;
    if (i == digits) return 0;
    if (i == n) return 1;
    if (p[i] != '.') return 0;
    digits = ++i;
    while (i < n && tg_is_digit(p[i])) i++;
    return i == n && i > digits;
}

/* [] or numbers between commas in brackets, as TiDB writes a VECTOR; no blanks. */
static inline int tg_vector_valid(const uint8_t *p, size_t n) {
    const uint8_t *end = p + n;
    if (n < 2 || p[0] != '[' || p[n - 1] != ']') return 0;
    if (n == 2) return 1;
    for (p++; p < end; p++) {
        const uint8_t *start = p;
        tg_number number;
        while (*p != ',' && p + 1 < end) p++;
        if (*start == '+' || tg_scan_number(start, (size_t)(p - start), &number) < 0) return 0;
    }
    return 1;
}

/* Copies n bytes; up to 16 bytes more may be written behind dst + n. Gives 1 if one of the n has its high bit set. */
static inline int tg_copy_high(uint8_t *dst, const uint8_t *src, size_t n, const uint8_t *limit) {
    unsigned high = 0;
#ifdef TG_SSE2
    while (n >= 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)src);
        _mm_storeu_si128((__m128i *)dst, block);
        high |= (unsigned)_mm_movemask_epi8(block);
        src += 16;
        dst += 16;
        n -= 16;
    }
    if (TG_LIKELY(limit - src >= 16)) {
        __m128i block = _mm_loadu_si128((const __m128i *)src);
        _mm_storeu_si128((__m128i *)dst, block);
        return (high | ((unsigned)_mm_movemask_epi8(block) & ((1u << n) - 1u))) != 0;
    }
#else
    (void)limit;
#endif
    for (size_t i = 0; i < n; i++) {
        dst[i] = src[i];
        high |= src[i] & 0x80u;
    }
    return high != 0;
}

/* How many of the first n bytes at a and b are the same before one differs. */
static inline size_t tg_common_prefix(const uint8_t *a, const uint8_t *b, size_t n) {
    size_t i = 0;
#ifdef TG_SSE2
    while (n - i >= 16) {
        unsigned same = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(a + i)),
                                                                   _mm_loadu_si128((const __m128i *)(b + i))));
        if (same != 0xffffu) return i + (size_t)__builtin_ctz(~same);
        i += 16;
    }
#endif
    while (i < n && a[i] == b[i]) i++;
    return i;
}

/* A base-128 varint of exactly n bytes, least significant group first. Returns 0, or -1 if it is longer or shorter than
 * that, or over 64 bits. */
static inline int tg_uvarint_of(const uint8_t *p, size_t n, const uint8_t *limit, uint64_t *out) {
    const uint64_t high = 0x8080808080808080u;
    uint64_t value = 0;
    unsigned shift = 0;
    if (TG_LIKELY(n - 1 < 8 && limit - p >= 8)) {
        uint64_t word = tg_load_le64(p) & (~(uint64_t)0 >> (64 - 8 * n));
        if ((word & high) != (high & (((uint64_t)1 << (8 * n - 8)) - 1))) return -1;
        word &= ~high;
        word = (word & 0x7f007f007f007f00u) >> 1 | (word & 0x007f007f007f007fu);
        word = (word & 0x3fff00003fff0000u) >> 2 | (word & 0x00003fff00003fffu);
        *out = (word & 0x0fffffff00000000u) >> 4 | (word & 0x000000000fffffffu);
        return 0;
    }
    if (n == 0 || n > 10) return -1;
    for (size_t i = 0; i < n; i++) {
        if ((p[i] & 0x80) != (i + 1 < n ? 0x80 : 0) || (i == 9 && p[i] > 1)) return -1;
        value |= (uint64_t)(p[i] & 0x7f) << shift;
        shift += 7;
    }
    *out = value;
    return 0;
}

#endif
