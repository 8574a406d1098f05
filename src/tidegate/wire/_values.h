/* Whether a column's text is what MySQL writes for its type: decimals, dates, times.
 *
 * Promises: nothing outside [p, p + n) is read, except that tg_decimal_valid may read on to `limit`; no state. Each
 * function gives 1 or 0. Zero dates and zero parts of dates are valid (MySQL stores them); a day beyond its month is not.
 */
#ifndef TG_VALUES_H
#define TG_VALUES_H

#include "_scan.h"
#include "_text.h"

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

#endif
