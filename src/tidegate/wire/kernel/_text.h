/* Numbers, text and checksums at the byte level, shared by every compiled module of
 * tidegate.wire.
 *
 * Promises: no allocation, no locale, no Python, no state. Nothing outside [p, p + n) is read,
 * and nothing beyond the size that each function states for dst is written, whatever the input.
 * Texts are not NUL-terminated. A function that can refuse its input returns -1 and may have
 * written part of dst.
 *
 * Authorities: Go's strconv and encoding/json (TiCDC writes its numbers and binary text with
 * them), RFC 8259 for JSON numbers, RFC 3629 for UTF-8, RFC 4648 for base64. The tables come
 * from tools/make_text_tables.py. */
#ifndef TG_TEXT_H
#define TG_TEXT_H

#include <float.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_MSC_VER)
#include <intrin.h>
#endif

#include "_codetables.h"
#include "_goprint.h"
#include "_pow10.h"

/* ---- words ----------------------------------------------------------------------------------- */

#if defined(__BYTE_ORDER__) && defined(__ORDER_LITTLE_ENDIAN__)
#define TG_LITTLE_ENDIAN (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
#elif defined(_MSC_VER)
#define TG_LITTLE_ENDIAN 1
#else
#define TG_LITTLE_ENDIAN 0
#endif

static inline uint64_t tg_load64(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

static inline uint64_t tg_load_le64(const uint8_t *p) {
#if TG_LITTLE_ENDIAN
    return tg_load64(p);
#else
    uint64_t word = 0;
    for (int i = 7; i >= 0; i--) word = word << 8 | p[i];
    return word;
#endif
}

static inline void tg_store_le64(uint64_t word, uint8_t *dst) {
#if TG_LITTLE_ENDIAN
    memcpy(dst, &word, 8);
#else
    for (int i = 0; i < 8; i++) dst[i] = (uint8_t)(word >> (8 * i));
#endif
}

#define TG_EACH_BYTE(byte) ((uint64_t)(byte) * 0x0101010101010101u)

/* Not 0 if a byte of the word is 0. */
static inline uint64_t tg_any_zero(uint64_t word) {
    return (word - TG_EACH_BYTE(0x01)) & ~word & TG_EACH_BYTE(0x80);
}

/* The full product a * b: returns the low word, *high gets the other. */
static inline uint64_t tg_mul64(uint64_t a, uint64_t b, uint64_t *high) {
#if defined(__SIZEOF_INT128__)
    __extension__ unsigned __int128 product = a;
    product *= b;
    *high = (uint64_t)(product >> 64);
    return (uint64_t)product;
#elif defined(_MSC_VER) && defined(_M_X64)
    return _umul128(a, b, high);
#else
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t low = a0 * b0;
    uint64_t mid = a1 * b0 + (low >> 32);
    uint64_t mid2 = a0 * b1 + (uint32_t)mid;
    *high = a1 * b1 + (mid >> 32) + (mid2 >> 32);
    return mid2 << 32 | (uint32_t)low;
#endif
}

/* Leading zero bits of a word that is not zero. */
static inline int tg_clz64(uint64_t word) {
#if defined(__GNUC__) || defined(__clang__)
    return __builtin_clzll(word);
#else
    int count = 0;
    for (int step = 32; step > 0; step >>= 1) {
        if (word >> (64 - step) == 0) {
            count += step;
            word <<= step;
        }
    }
    return count;
#endif
}

/* Trailing zero bits of a word that is not zero. */
static inline int tg_ctz64(uint64_t word) {
#if defined(__GNUC__) || defined(__clang__)
    return __builtin_ctzll(word);
#else
    return 63 - tg_clz64(word & (0 - word));
#endif
}

/* floor(log2(10**q)), and floor(log10(2**e)) or of 3/4 * 2**e, for every exponent that a double
 * can meet. The offset keeps the shifted number positive: C leaves the right shift of a negative
 * one to the compiler. */
static inline int tg_floor_log2_pow10(int q) {
    return (int)(((int64_t)q * 1741647 + ((int64_t)4096 << 19)) >> 19) - 4096;
}

static inline int tg_floor_log10_pow2(int e, int three_quarters) {
    int64_t scaled = (int64_t)e * 1262611 - (three_quarters ? 524031 : 0);
    return (int)((scaled + ((int64_t)4096 << 22)) >> 22) - 4096;
}

static inline int tg_is_digit(uint8_t byte) { return (uint8_t)(byte - '0') < 10; }

/* ---- integers -------------------------------------------------------------------------------- */

/* The eight digits of v < 10**8, one a byte, the first in the lowest: split in halves three times,
 * all parts at once. The factors are 2**20 / 100 and 2**10 / 10, rounded up. */
static inline uint64_t tg_eight_digits(uint32_t v) {
    uint64_t parts = v / 10000 | (uint64_t)(v % 10000) << 32;
    uint64_t high = (parts * 10486) >> 20 & 0x0000007f0000007fu;
    parts = high | (parts - high * 100) << 16;
    high = (parts * 103) >> 10 & 0x000f000f000f000fu;
    return high | (parts - high * 10) << 8;
}

/* Decimal text of an integer; dst >= 24 bytes. Returns the length. */
static inline int tg_format_u64(uint64_t v, uint8_t *dst) {
    const uint64_t zeros = TG_EACH_BYTE('0');
    uint64_t middle = 0, low = 0, digits;
    int blocks = 0, count;
    if (v >= 100000000) {
        low = tg_eight_digits((uint32_t)(v % 100000000));
        v /= 100000000;
        blocks = 1;
        if (v >= 100000000) {
            middle = tg_eight_digits((uint32_t)(v % 100000000));
            v /= 100000000;
            blocks = 2;
        }
    }
    digits = tg_eight_digits((uint32_t)v);
    /* Leading zeros go, but the last digit stays. */
    count = 8 - tg_ctz64(digits | (uint64_t)1 << 56) / 8;
    tg_store_le64((digits | zeros) >> (64 - 8 * count), dst);
    if (blocks == 2) {
        tg_store_le64(middle | zeros, dst + count);
        count += 8;
    }
    if (blocks != 0) {
        tg_store_le64(low | zeros, dst + count);
        count += 8;
    }
    return count;
}

static inline int tg_format_i64(int64_t v, uint8_t *dst) {
    if (v >= 0) return tg_format_u64((uint64_t)v, dst);
    dst[0] = '-';
    return 1 + tg_format_u64(0 - (uint64_t)v, dst + 1);
}

/* One to seven bytes as the low bytes of a word. */
static inline uint64_t tg_load_few(const uint8_t *p, size_t n) {
    uint64_t word = 0;
#if TG_LITTLE_ENDIAN
    if (n >= 4) {
        uint32_t first, last;
        memcpy(&first, p, 4);
        memcpy(&last, p + n - 4, 4);
        return first | (uint64_t)last << (8 * (n - 4));
    }
#endif
    for (size_t i = 0; i < n; i++) word |= (uint64_t)p[i] << (8 * i);
    return word;
}

/* The number of eight digits, the first in the lowest byte; over 10**8 if one is none. Digits become
 * pairs, pairs fours, fours the whole. */
static inline uint64_t tg_number_of_digits(uint64_t word) {
    word ^= TG_EACH_BYTE('0');
    if ((word | (word + TG_EACH_BYTE(0x76))) & TG_EACH_BYTE(0x80)) return UINT32_MAX;
    word = (word * 10 + (word >> 8)) & 0x00ff00ff00ff00ffu;
    word = (word * 100 + (word >> 16)) & 0x0000ffff0000ffffu;
    return (word * 10000 + (word >> 32)) & 0xffffffffu;
}

/* An integer from its decimal digits, at most 20 of them. Returns 0, or -1 for any other text and
 * for a value too large. */
static inline int tg_parse_u64(const uint8_t *p, size_t n, uint64_t *out) {
    static const uint32_t powers[8] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000};
    uint64_t value = 0, part;
    if (n == 0 || n > 20) return -1;
    for (; n >= 8; p += 8, n -= 8) {
        part = tg_number_of_digits(tg_load_le64(p));
        if (part == UINT32_MAX) return -1;
        value = value * 100000000 + part;
    }
    if (n > 0) {
        /* zeros before the digits */
        part = tg_load_few(p, n) << (64 - 8 * n) | TG_EACH_BYTE('0') >> (8 * n);
        part = tg_number_of_digits(part);
        if (part == UINT32_MAX) return -1;
        /* Only 20 digits can be too many, of which four are left here. */
        if (n == 4 && value > (UINT64_MAX - part) / 10000) return -1;
        value = value * powers[n] + part;
    }
    *out = value;
    return 0;
}

/* The same with a minus sign where the value is negative. */
static inline int tg_parse_i64(const uint8_t *p, size_t n, int64_t *out) {
    uint64_t value;
    int negative = n > 0 && p[0] == '-';
    if (tg_parse_u64(p + negative, n - (size_t)negative, &value) < 0) return -1;
    if (value > (uint64_t)INT64_MAX + (uint64_t)negative) return -1;
    *out = (int64_t)(negative ? 0 - value : value);
    return 0;
}

/* ---- shortest text of a floating-point number ------------------------------------------------ */

/* floor(c * 10**q * 2**scale) with every lost bit gathered in the lowest one ("round to odd"),
 * for 10**q as the first 128 bits rounded up, which is how Schubfach wants it. */
static inline uint64_t tg_mul_pow10_odd(const uint64_t pow10[2], int inexact, uint64_t c) {
    uint64_t low = pow10[1] + (uint64_t)inexact;
    uint64_t high = pow10[0] + (uint64_t)(low < (uint64_t)inexact);
    uint64_t carry, top;
    uint64_t middle;
    (void)tg_mul64(low, c, &carry);
    middle = tg_mul64(high, c, &top) + carry;
    top += middle < carry;
    return top | (uint64_t)(middle > 1);
}

/* Schubfach (R. Giulietti, "The Schubfach way to render doubles", 2020): of the shortest
 * decimals that read back as c * 2**q, the nearest. `closer` says that the next smaller number
 * is only half as far away as the next larger. Returns the digits d, with the value d *
 * 10**(*exponent); d may end in zeros. */
static inline uint64_t tg_shortest(uint64_t c, int q, int closer, int *exponent) {
    int k = tg_floor_log10_pow2(q, closer);
    int h = q + tg_floor_log2_pow10(-k) + 1;
    const uint64_t *pow10 = tg_pow10[-k - TG_POW10_MIN];
    int inexact = k > 0 || k < -55;
    uint64_t odd = c & 1;
    uint64_t lower = tg_mul_pow10_odd(pow10, inexact, (4 * c - 2 + (uint64_t)closer) << h) + odd;
    uint64_t value = tg_mul_pow10_odd(pow10, inexact, (4 * c) << h);
    uint64_t upper = tg_mul_pow10_odd(pow10, inexact, (4 * c + 2) << h) - odd;
    uint64_t s = value / 4;
    int below, above;
    *exponent = k;
    if (s >= 10) {
        uint64_t tens = s / 10;
        below = lower <= 40 * tens;
        above = 40 * tens + 40 <= upper;
        if (below != above) {
            *exponent = k + 1;
            return tens + (uint64_t)above;
        }
    }
    below = lower <= 4 * s;
    above = 4 * s + 4 <= upper;
    if (below != above) return s + (uint64_t)above;
    return s + (uint64_t)(value > 4 * s + 2 || (value == 4 * s + 2 && (s & 1)));
}

/* digits * 10**exponent without an exponent, digits not zero; dst >= 390 bytes for what a double
 * can hold (the texts are shorter, but whole words are written). */
static inline int tg_write_positional(uint64_t digits, int exponent, uint8_t *dst) {
    uint8_t text[24];
    int count, whole;
    if (exponent < 0) {
        while (digits % 10000 == 0) {
            digits /= 10000;
            exponent += 4;
        }
        if (digits % 100 == 0) {
            digits /= 100;
            exponent += 2;
        }
        if (digits % 10 == 0) {
            digits /= 10;
            exponent += 1;
        }
    }
    if (exponent >= 0) {
        count = tg_format_u64(digits, dst);
        memset(dst + count, '0', (size_t)exponent);
        return count + exponent;
    }
    count = tg_format_u64(digits, text);
    whole = count + exponent;
    if (whole > 0) {
        memcpy(dst, text, 24);
        dst[whole] = '.';
        memcpy(dst + whole + 1, text + whole, (size_t)(count - whole));
        return count + 1;
    }
    memset(dst, '0', (size_t)(2 - whole));
    dst[1] = '.';
    memcpy(dst + 2 - whole, text, 24);
    return 2 - whole + count;
}

/* The shortest digits that read back as v, as Go's FormatFloat(v, 'f', -1, 64): never an
 * exponent, "-0" for the negative zero; dst >= 400 bytes. Returns the length, -1 for NaN and the
 * infinities. */
static inline int tg_format_double(double v, uint8_t *dst) {
    uint64_t bits, fraction, digits;
    int biased, sign, exponent;
    memcpy(&bits, &v, 8);
    sign = (int)(bits >> 63);
    biased = (int)(bits >> 52 & 0x7ff);
    fraction = bits & (((uint64_t)1 << 52) - 1);
    if (biased == 0x7ff) return -1;
    *dst = '-';
    dst += sign;
    if (biased >= 1023 && biased <= 1023 + 52) {
        /* A whole number below 2**53 has no shorter neighbour. */
        int drop = 1023 + 52 - biased;
        uint64_t c = fraction | (uint64_t)1 << 52;
        if ((c & (((uint64_t)1 << drop) - 1)) == 0) return sign + tg_format_u64(c >> drop, dst);
    }
    if (biased != 0) {
        int closer = fraction == 0 && biased > 1;
        digits = tg_shortest(fraction | (uint64_t)1 << 52, biased - 1075, closer, &exponent);
    } else if (fraction != 0) {
        digits = tg_shortest(fraction, -1074, 0, &exponent);
    } else {
        *dst = '0';
        return sign + 1;
    }
    return sign + tg_write_positional(digits, exponent, dst);
}

/* The same for single precision: FormatFloat(v, 'f', -1, 32). */
static inline int tg_format_float(float v, uint8_t *dst) {
    uint32_t bits, fraction;
    uint64_t digits;
    int biased, sign, exponent;
    memcpy(&bits, &v, 4);
    sign = (int)(bits >> 31);
    biased = (int)(bits >> 23 & 0xff);
    fraction = bits & (((uint32_t)1 << 23) - 1);
    if (biased == 0xff) return -1;
    *dst = '-';
    dst += sign;
    if (biased >= 127 && biased <= 127 + 23) {
        int drop = 127 + 23 - biased;
        uint32_t c = fraction | (uint32_t)1 << 23;
        if ((c & (((uint32_t)1 << drop) - 1)) == 0) return sign + tg_format_u64(c >> drop, dst);
    }
    if (biased != 0) {
        int closer = fraction == 0 && biased > 1;
        digits = tg_shortest(fraction | (uint32_t)1 << 23, biased - 150, closer, &exponent);
    } else if (fraction != 0) {
        digits = tg_shortest(fraction, -149, 0, &exponent);
    } else {
        *dst = '0';
        return sign + 1;
    }
    return sign + tg_write_positional(digits, exponent, dst);
}

/* ---- decimal text to binary ------------------------------------------------------------------ */

/* A number text taken apart: whole and fraction are its digits on either side of the point,
 * `digits` all of them as one number, modulo 2**64 (so it is right for up to 19), `exponent`
 * what is written after the e (far too large ones are cut to +-10**15, which is as good). */
typedef struct {
    const uint8_t *whole, *fraction;
    size_t whole_count, fraction_count;
    uint64_t digits;
    int64_t exponent;
    int negative, has_point, has_exponent;
} tg_number;

/* [+-] digits [. digits] [e [+-] digits], with at least one digit before or after the point, and
 * nothing else. Returns 0 or -1. */
static inline int tg_scan_number(const uint8_t *p, size_t n, tg_number *out) {
    size_t i = 0;
    uint64_t digits = 0;
    memset(out, 0, sizeof *out);
    if (n > 0 && (p[0] == '-' || p[0] == '+')) {
        out->negative = p[0] == '-';
        i = 1;
    }
    out->whole = p + i;
    for (; i < n && tg_is_digit(p[i]); i++) digits = digits * 10 + (p[i] & 15u);
    out->whole_count = (size_t)(p + i - out->whole);
    out->fraction = p + i;
    if (i < n && p[i] == '.') {
        out->has_point = 1;
        i++;
        out->fraction = p + i;
        for (; i < n && tg_is_digit(p[i]); i++) digits = digits * 10 + (p[i] & 15u);
        out->fraction_count = (size_t)(p + i - out->fraction);
    }
    if (out->whole_count + out->fraction_count == 0) return -1;
    out->digits = digits;
    if (i < n && (p[i] == 'e' || p[i] == 'E')) {
        int down = 0;
        out->has_exponent = 1;
        i++;
        if (i < n && (p[i] == '-' || p[i] == '+')) {
            down = p[i] == '-';
            i++;
        }
        if (i >= n || !tg_is_digit(p[i])) return -1;
        for (; i < n && tg_is_digit(p[i]); i++) {
            if (out->exponent < 1000000000000000) out->exponent = out->exponent * 10 + (p[i] - '0');
        }
        if (out->exponent > 1000000000000000) out->exponent = 1000000000000000;
        if (down) out->exponent = -out->exponent;
    }
    return i == n ? 0 : -1;
}

/* The digit at place i, counted across the point. */
static inline uint8_t tg_digit_at(const tg_number *number, size_t i) {
    return i < number->whole_count ? number->whole[i] : number->fraction[i - number->whole_count];
}

/* A natural number of at most 128 * 32 bits; the exact comparison below needs fewer than 90
 * limbs. */
typedef struct {
    uint32_t limb[128];
    int count;
} tg_big;

static inline void tg_big_muladd(tg_big *big, uint32_t factor, uint32_t add) {
    uint64_t carry = add;
    for (int i = 0; i < big->count; i++) {
        carry += (uint64_t)big->limb[i] * factor;
        big->limb[i] = (uint32_t)carry;
        carry >>= 32;
    }
    if (carry && big->count < 128) big->limb[big->count++] = (uint32_t)carry;
}

static inline void tg_big_mul_pow5(tg_big *big, int64_t power) {
    for (; power >= 13; power -= 13) tg_big_muladd(big, 1220703125u, 0);
    for (; power > 0; power--) tg_big_muladd(big, 5, 0);
}

static inline void tg_big_shift(tg_big *big, int64_t bits) {
    int limbs = (int)(bits / 32);
    tg_big_muladd(big, (uint32_t)1 << (bits % 32), 0);
    if (limbs > 128 - big->count) limbs = 128 - big->count;
    memmove(big->limb + limbs, big->limb, sizeof(uint32_t) * (size_t)big->count);
    memset(big->limb, 0, sizeof(uint32_t) * (size_t)limbs);
    big->count += limbs;
}

static inline int tg_big_compare(const tg_big *a, const tg_big *b) {
    if (a->count != b->count) return a->count < b->count ? -1 : 1;
    for (int i = a->count - 1; i >= 0; i--) {
        if (a->limb[i] != b->limb[i]) return a->limb[i] < b->limb[i] ? -1 : 1;
    }
    return 0;
}

/* Compares a number with half * 2**exponent, exactly. A point halfway between two doubles has at
 * most 767 significant digits, so the digits after the 800th only say whether there is anything
 * more. The caller has made sure that both sides are of about the same size. */
static inline int tg_compare_exact(const tg_number *number, uint64_t half, int exponent) {
    tg_big left, right;
    int64_t q = number->exponent;
    int used = 0, more = 0;
    uint32_t chunk = 0, scale = 1;
    left.count = 0;
    for (size_t i = 0; i < number->whole_count + number->fraction_count; i++) {
        int in_fraction = i >= number->whole_count;
        uint8_t digit = (uint8_t)(tg_digit_at(number, i) - '0');
        if (used == 0 && digit == 0) {
            q -= in_fraction;
        } else if (used < 800) {
            used++;
            q -= in_fraction;
            chunk = chunk * 10 + digit;
            scale *= 10;
            if (scale == 1000000000u) {
                tg_big_muladd(&left, scale, chunk);
                chunk = 0;
                scale = 1;
            }
        } else {
            more |= digit != 0;
            q += !in_fraction;
        }
    }
    tg_big_muladd(&left, scale, chunk);
    if (more) {
        tg_big_muladd(&left, 10, 1);
        q--;
    }
    right.limb[0] = (uint32_t)half;
    right.limb[1] = (uint32_t)(half >> 32);
    right.count = right.limb[1] ? 2 : 1;
    if (q >= 0) {
        tg_big_mul_pow5(&left, q);
    } else {
        tg_big_mul_pow5(&right, -q);
    }
    if (q >= exponent) {
        tg_big_shift(&left, q - exponent);
    } else {
        tg_big_shift(&right, exponent - q);
    }
    return tg_big_compare(&left, &right);
}

/* The nearest binary number of `precision` bits and smallest normal exponent `min_exponent`,
 * ties to even, as IEEE bits without the sign; may be the infinity or more when it is too large.
 *
 * The first 19 digits w and the 128-bit power give a product that is too small by less than a
 * known bound. Unless a halfway point lies within that bound, the rounding is decided; if one
 * does, the digits are compared with it exactly. (The idea is Eisel and Lemire's, with an error
 * bound in place of their case analysis.) */
static inline uint64_t tg_round_number(const tg_number *number, uint64_t w, int64_t q,
                                       int truncated, int precision, int min_exponent) {
    const uint64_t infinity = (uint64_t)(2 - 2 * min_exponent + 1) << (precision - 1);
    uint64_t p2, p1, p0, carry, mantissa, rest, half, e2 = 0, e1 = 0, e0 = 0;
    const uint64_t *pow10;
    int shift, exponent, keep, up;
    if (w == 0 || q < TG_POW10_MIN) return 0;
    if (q > 308) return infinity;
    shift = tg_clz64(w);
    w <<= shift;
    pow10 = tg_pow10[q - TG_POW10_MIN];
    p0 = tg_mul64(w, pow10[1], &carry);
    p1 = tg_mul64(w, pow10[0], &p2) + carry;
    p2 += p1 < carry;
    /* The bound: the power lacks less than 1 in its last place, and so do the digits. */
    if (q < 0 || q > 55) e0 = w;
    if (truncated) e2 = (uint64_t)1 << shift;
    exponent = tg_floor_log2_pow10((int)q) - 127 - shift + 191;
    if (p2 >> 63 == 0) {
        p2 = p2 << 1 | p1 >> 63;
        p1 = p1 << 1 | p0 >> 63;
        p0 <<= 1;
        e2 <<= 1;
        e1 = e0 >> 63;
        e0 <<= 1;
        exponent--;
    }
    /* The value is now p * 2**(exponent - 191), with 2**191 <= p < 2**192. */
    if (exponent > 1 - min_exponent) return infinity;
    keep = exponent >= min_exponent ? precision : precision - (min_exponent - exponent);
    if (keep < -1) return 0;
    if (keep < 0) {
        mantissa = 0;
        up = tg_compare_exact(number, 1, exponent - keep) > 0;
    } else {
        mantissa = keep ? p2 >> (64 - keep) : 0;
        half = (uint64_t)1 << (63 - keep);
        rest = keep ? p2 & (2 * half - 1) : p2;
        if (rest < half) {
            uint64_t s0 = p0 + e0;
            uint64_t c0 = s0 < e0;
            uint64_t s1 = p1 + e1;
            uint64_t c1 = s1 < e1;
            s1 += c0;
            c1 += s1 < c0;
            up = rest + e2 + c1 >= half ? 2 : 0;
        } else if (rest == half && (p1 | p0) == 0) {
            up = (e0 | e1 | e2) ? 2 : (int)(mantissa & 1);
        } else {
            up = 1;
        }
        if (up == 2) {
            int order = tg_compare_exact(number, 2 * mantissa + 1, exponent - keep);
            up = order > 0 || (order == 0 && (mantissa & 1));
        }
    }
    mantissa += (uint64_t)up;
    /* The leading bit of a normal mantissa adds one to the exponent field, and so does a carry. */
    if (exponent < min_exponent) return mantissa;
    return ((uint64_t)(exponent - min_exponent) << (precision - 1)) + mantissa;
}

/* The first 19 significant digits w, and q such that the value is w * 10**q, or a little more if
 * *truncated. */
static inline uint64_t tg_leading_digits(const tg_number *number, int64_t *q, int *truncated) {
    uint64_t w = 0;
    int64_t power = number->exponent;
    int dropped = 0;
    size_t i;
    if (number->whole_count + number->fraction_count <= 19) {
        *q = power - (int64_t)number->fraction_count;
        *truncated = 0;
        return number->digits;
    }
    for (i = 0; i < number->whole_count; i++) {
        uint8_t digit = (uint8_t)(number->whole[i] - '0');
        if (w < 1000000000000000000u) {
            w = w * 10 + digit;
        } else {
            dropped |= digit;
            power++;
        }
    }
    for (i = 0; i < number->fraction_count; i++) {
        uint8_t digit = (uint8_t)(number->fraction[i] - '0');
        if (w < 1000000000000000000u) {
            w = w * 10 + digit;
            power--;
        } else {
            dropped |= digit;
        }
    }
    *q = power;
    *truncated = dropped != 0;
    return w;
}

#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD == 0
#define TG_EXACT_ARITHMETIC 1
#else
#define TG_EXACT_ARITHMETIC 0
#endif

/* The nearest double, ties to even. The text is [+-] digits [. digits] [e [+-] digits] and
 * nothing else. Returns 0, or -1 for any other text and for a value too large; one too small
 * gives a zero with its sign. */
static inline int tg_parse_double(const uint8_t *p, size_t n, double *out) {
    static const double powers[23] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                      1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                      1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    tg_number number;
    int64_t q;
    int truncated;
    uint64_t w, bits;
    if (tg_scan_number(p, n, &number) < 0) return -1;
    w = tg_leading_digits(&number, &q, &truncated);
    if (TG_EXACT_ARITHMETIC && !truncated && w <= (uint64_t)1 << 53 && q >= -22 && q <= 22) {
        /* Both operands are exact, so the one operation rounds correctly. */
        double value = q < 0 ? (double)w / powers[-q] : (double)w * powers[q];
        *out = number.negative ? -value : value;
        return 0;
    }
    bits = tg_round_number(&number, w, q, truncated, 53, -1022);
    if (bits >= (uint64_t)0x7ff << 52) return -1;
    bits |= (uint64_t)number.negative << 63;
    memcpy(out, &bits, 8);
    return 0;
}

/* The nearest float, rounded once, from the text itself. */
static inline int tg_parse_float(const uint8_t *p, size_t n, float *out) {
    static const float powers[11] = {1e0f, 1e1f, 1e2f, 1e3f, 1e4f, 1e5f,
                                     1e6f, 1e7f, 1e8f, 1e9f, 1e10f};
    tg_number number;
    int64_t q;
    int truncated;
    uint64_t w, bits;
    uint32_t narrow;
    if (tg_scan_number(p, n, &number) < 0) return -1;
    w = tg_leading_digits(&number, &q, &truncated);
    if (TG_EXACT_ARITHMETIC && !truncated && w <= (uint64_t)1 << 24 && q >= -10 && q <= 10) {
        float value = q < 0 ? (float)w / powers[-q] : (float)w * powers[q];
        *out = number.negative ? -value : value;
        return 0;
    }
    bits = tg_round_number(&number, w, q, truncated, 24, -126);
    if (bits >= (uint64_t)0xff << 23) return -1;
    narrow = (uint32_t)bits | (uint32_t)number.negative << 31;
    memcpy(out, &narrow, 4);
    return 0;
}

/* ---- decimal text to decimal text ------------------------------------------------------------ */

/* Copies the digits [from, to) of a number, counted across its point. */
static inline uint8_t *tg_copy_digits(const tg_number *number, size_t from, size_t to,
                                      uint8_t *dst) {
    size_t whole = number->whole_count;
    if (from < to && from < whole) {
        size_t count = (to < whole ? to : whole) - from;
        memcpy(dst, number->whole + from, count);
        dst += count;
        from += count;
    }
    if (from < to) {
        memcpy(dst, number->fraction + (from - whole), to - from);
        dst += to - from;
    }
    return dst;
}

/* The digits of a number without the zeros before and after: [*first, *end), empty for zero. */
static inline void tg_significant(const tg_number *number, size_t *first, size_t *end) {
    size_t i = 0, j = number->whole_count + number->fraction_count;
    while (i < j && tg_digit_at(number, i) == '0') i++;
    while (i < j && tg_digit_at(number, j - 1) == '0') j--;
    *first = i;
    *end = j;
}

/* A JSON number, written positionally: the same digits, no exponent, no zeros at the end of a
 * fraction, no bare point; "-0" stays. At most cap bytes are written. Returns the length, or -1
 * if the text is no number, its exponent is beyond +-400, or the result is longer than cap. */
static inline int tg_shift_decimal(const uint8_t *p, size_t n, uint8_t *dst, size_t cap) {
    tg_number number;
    size_t first, end, length, leading = 0, trailing = 0;
    int64_t point;
    uint8_t *at = dst;
    if (n == 0 || p[0] == '+' || tg_scan_number(p, n, &number) < 0) return -1;
    if (number.whole_count == 0) return -1;
    if (!number.has_exponent && (number.whole_count == 1 || number.whole[0] != '0') &&
        (!number.has_point || (number.fraction_count && p[n - 1] != '0'))) {
        if (n > cap || n > INT_MAX) return -1;
        memcpy(dst, p, n);
        return (int)n;
    }
    if (number.exponent < -400 || number.exponent > 400) return -1;
    tg_significant(&number, &first, &end);
    if (first == end) {
        if (cap < 1 + (size_t)number.negative) return -1;
        if (number.negative) *at++ = '-';
        *at++ = '0';
        return (int)(at - dst);
    }
    point = (int64_t)number.whole_count + number.exponent;
    length = (size_t)number.negative + (end - first);
    if (point <= (int64_t)first) {
        leading = (size_t)((int64_t)first - point);
        length += 2 + leading;
    } else if (point >= (int64_t)end) {
        trailing = (size_t)(point - (int64_t)end);
        length += trailing;
    } else {
        length += 1;
    }
    if (length > cap || length > INT_MAX) return -1;
    if (number.negative) *at++ = '-';
    if (point <= (int64_t)first) {
        *at++ = '0';
        *at++ = '.';
        memset(at, '0', leading);
        tg_copy_digits(&number, first, end, at + leading);
    } else if (point >= (int64_t)end) {
        at = tg_copy_digits(&number, first, end, at);
        memset(at, '0', trailing);
    } else {
        at = tg_copy_digits(&number, first, (size_t)point, at);
        *at++ = '.';
        tg_copy_digits(&number, (size_t)point, end, at);
    }
    return (int)length;
}

/* Positional text in the spelling of Go's encoding/json: with an exponent below 1e-6 and from
 * 1e21 on, else as it is. encoding/json shortens e-07 to e-7; keep_exponent_zero leaves
 * strconv's two digits, as newer TiCDC does. The bounds are those of the number's own width: a
 * text that reads as the float 1e-6 is not below it. dst >= n + 24 bytes. Returns the length, or
 * -1 if the text is no number or has an exponent already. */
static inline int tg_go_json_float(const uint8_t *p, size_t n, int is_float32,
                                   int keep_exponent_zero, uint8_t *dst) {
    tg_number number;
    size_t first, end;
    int64_t power;
    int scientific;
    uint8_t *at = dst;
    if (n == 0 || n > INT_MAX - 24 || p[0] == '+' || tg_scan_number(p, n, &number) < 0) return -1;
    if (number.has_exponent) return -1;
    tg_significant(&number, &first, &end);
    power = (int64_t)number.whole_count - 1 - (int64_t)first;
    scientific = first != end && (power < -6 || power >= 21);
    if (first != end && (power == -7 || power == 20) && tg_digit_at(&number, first) == '9') {
        if (is_float32) {
            float value;
            if (tg_parse_float(p, n, &value) < 0) return -1;
            if (value < 0) value = -value;
            scientific = value < 1e-6f || value >= 1e21f;
        } else {
            double value;
            if (tg_parse_double(p, n, &value) < 0) return -1;
            if (value < 0) value = -value;
            scientific = value < 1e-6 || value >= 1e21;
        }
    }
    if (!scientific) {
        memcpy(dst, p, n);
        return (int)n;
    }
    if (number.negative) *at++ = '-';
    at = tg_copy_digits(&number, first, first + 1, at);
    if (end > first + 1) {
        *at++ = '.';
        at = tg_copy_digits(&number, first + 1, end, at);
    }
    *at++ = 'e';
    *at++ = power < 0 ? '-' : '+';
    if (power > -10 && power < 0 && keep_exponent_zero) *at++ = '0';
    at += tg_format_u64((uint64_t)(power < 0 ? -power : power), at);
    return (int)(at - dst);
}

/* ---- UTF-8 and Latin-1 ----------------------------------------------------------------------- */

/* How many bytes at the start of [p, p + n) are ASCII. */
static inline size_t tg_ascii_run(const uint8_t *p, size_t n) {
    const uint64_t high = TG_EACH_BYTE(0x80);
    size_t i = 0;
    while (n - i >= 16) {
        if ((tg_load64(p + i) | tg_load64(p + i + 8)) & high) break;
        i += 16;
    }
    if (n - i >= 8 && (tg_load64(p + i) & high) == 0) i += 8;
    while (i < n && p[i] < 0x80) i++;
    return i;
}

/* One code point at p, n > 0: its length, and the rune; 0 if the bytes are not strict UTF-8 (no
 * surrogates, no overlong forms, nothing beyond U+10FFFF). */
static inline int tg_utf8_rune(const uint8_t *p, size_t n, uint32_t *rune) {
    uint32_t a = p[0];
    if (a < 0x80) {
        *rune = a;
        return 1;
    }
    if (a < 0xc2 || n < 2 || (p[1] & 0xc0) != 0x80) return 0;
    if (a < 0xe0) {
        *rune = (a & 0x1f) << 6 | (p[1] & 0x3fu);
        return 2;
    }
    if (n < 3 || (p[2] & 0xc0) != 0x80) return 0;
    if (a < 0xf0) {
        uint32_t value = (a & 0x0f) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
        if (value < 0x800 || (value >= 0xd800 && value < 0xe000)) return 0;
        *rune = value;
        return 3;
    }
    if (n < 4 || (p[3] & 0xc0) != 0x80 || a > 0xf4) return 0;
    *rune = (a & 0x07) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    return *rune >= 0x10000 && *rune <= 0x10ffff ? 4 : 0;
}

/* Writes a valid code point; dst >= 4 bytes. Returns the length. */
static inline int tg_utf8_write(uint32_t rune, uint8_t *dst) {
    if (rune < 0x80) {
        dst[0] = (uint8_t)rune;
        return 1;
    }
    if (rune < 0x800) {
        dst[0] = (uint8_t)(0xc0 | rune >> 6);
        dst[1] = (uint8_t)(0x80 | (rune & 0x3f));
        return 2;
    }
    if (rune < 0x10000) {
        dst[0] = (uint8_t)(0xe0 | rune >> 12);
        dst[1] = (uint8_t)(0x80 | (rune >> 6 & 0x3f));
        dst[2] = (uint8_t)(0x80 | (rune & 0x3f));
        return 3;
    }
    dst[0] = (uint8_t)(0xf0 | rune >> 18);
    dst[1] = (uint8_t)(0x80 | (rune >> 12 & 0x3f));
    dst[2] = (uint8_t)(0x80 | (rune >> 6 & 0x3f));
    dst[3] = (uint8_t)(0x80 | (rune & 0x3f));
    return 4;
}

/* Whether the bytes are strict UTF-8. The automaton's state is a shift: each byte's entry holds the
 * next state for each state, six bits each, so a step costs one load and one shift. */
static inline int tg_utf8_valid(const uint8_t *p, size_t n) {
    const uint64_t high = TG_EACH_BYTE(0x80);
    uint64_t state = TG_UTF8_ACCEPT;
    size_t i = 0;
    while (n - i >= 16) {
        if (((tg_load64(p + i) | tg_load64(p + i + 8)) & high) != 0) {
            for (int k = 0; k < 16; k++) state = tg_utf8_steps[p[i + (size_t)k]] >> (state & 63);
            if ((state & 63) == TG_UTF8_REJECT) return 0;
        } else if ((state & 63) != TG_UTF8_ACCEPT) {
            return 0;
        }
        i += 16;
    }
    if (n - i >= 8 && (state & 63) == TG_UTF8_ACCEPT && (tg_load64(p + i) & high) == 0) i += 8;
    for (; i < n; i++) state = tg_utf8_steps[p[i]] >> (state & 63);
    return (state & 63) == TG_UTF8_ACCEPT;
}

/* UTF-8 text of code points up to U+00FF to one byte each (how Canal-JSON carries binary
 * values); dst >= n bytes, may be p itself. Returns the length, or -1 if a code point is larger
 * or the text is not UTF-8. */
static inline int64_t tg_latin1_from_utf8(const uint8_t *p, size_t n, uint8_t *dst) {
    size_t i = 0, out = 0;
    while (n - i >= 16) {
        uint64_t one = tg_load64(p + i), two = tg_load64(p + i + 8);
        if (((one | two) & TG_EACH_BYTE(0x80)) == 0) {
            memcpy(dst + out, &one, 8);
            memcpy(dst + out + 8, &two, 8);
            i += 16;
            out += 16;
        } else {
            /* Without branches: in binary data nobody can guess them. */
            size_t end = i + 8;
            unsigned bad = 0;
            while (i < end) {
                unsigned byte = p[i], next = p[i + 1], wide = byte >> 7;
                bad |= (0 - wide) & (((byte & 0xfe) ^ 0xc2) | ((next & 0xc0) ^ 0x80));
                dst[out++] = (uint8_t)(byte << 6 * wide | (next & 0x3f & (0 - wide)));
                i += 1 + wide;
            }
            if (bad) return -1;
        }
    }
    while (i < n) {
        if (p[i] < 0x80) {
            dst[out++] = p[i++];
        } else {
            if ((p[i] & 0xfe) != 0xc2 || n - i < 2 || (p[i + 1] & 0xc0) != 0x80) return -1;
            dst[out++] = (uint8_t)(p[i] << 6 | (p[i + 1] & 0x3f));
            i += 2;
        }
    }
    return (int64_t)out;
}

/* The way back; dst >= 2 * n bytes, not overlapping p. Returns the length. */
static inline size_t tg_utf8_from_latin1(const uint8_t *p, size_t n, uint8_t *dst) {
    size_t i = 0, out = 0;
    while (i < n) {
        size_t end = n - i < 8 ? n : i + 8;
        if (end - i == 8 && (tg_load64(p + i) & TG_EACH_BYTE(0x80)) == 0) {
            memcpy(dst + out, p + i, 8);
            i = end;
            out += 8;
            continue;
        }
        for (; i < end; i++) {
            unsigned wide = p[i] >> 7;
            dst[out] = (uint8_t)(p[i] >> 6 * wide | 0xc0 * wide);
            dst[out + 1] = (uint8_t)(0x80 | (p[i] & 0x3f));
            out += 1 + wide;
        }
    }
    return out;
}

/* ---- base64 ---------------------------------------------------------------------------------- */

/* Standard alphabet with padding; dst >= 4 * ceil(n / 3) bytes, not overlapping p. Returns the
 * length. */
static inline size_t tg_base64_encode(const uint8_t *p, size_t n, uint8_t *dst) {
    uint8_t *at = dst;
    while (n >= 6) {
        uint64_t high = (uint64_t)p[0] << 16 | (uint64_t)p[1] << 8 | p[2];
        uint64_t bits = high << 24 | (uint64_t)p[3] << 16 | (uint64_t)p[4] << 8 | p[5];
        memcpy(at, tg_base64_pair + 2 * (bits >> 36), 2);
        memcpy(at + 2, tg_base64_pair + 2 * (bits >> 24 & 0xfff), 2);
        memcpy(at + 4, tg_base64_pair + 2 * (bits >> 12 & 0xfff), 2);
        memcpy(at + 6, tg_base64_pair + 2 * (bits & 0xfff), 2);
        p += 6;
        n -= 6;
        at += 8;
    }
    if (n >= 3) {
        uint32_t bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
        memcpy(at, tg_base64_pair + 2 * (bits >> 12), 2);
        memcpy(at + 2, tg_base64_pair + 2 * (bits & 0xfff), 2);
        p += 3;
        n -= 3;
        at += 4;
    }
    if (n > 0) {
        uint32_t bits = (uint32_t)p[0] << 16 | (n > 1 ? (uint32_t)p[1] << 8 : 0);
        memcpy(at, tg_base64_pair + 2 * (bits >> 12), 2);
        memcpy(at + 2, tg_base64_pair + 2 * (bits & 0xfff), 2);
        at[3] = '=';
        if (n == 1) at[2] = '=';
        at += 4;
    }
    return (size_t)(at - dst);
}

/* The 24 bits of four letters, with TG_BASE64_BAD if one is not in the alphabet. */
static inline uint32_t tg_base64_group(const uint8_t *p) {
    return tg_base64_bits[0][p[0]] | tg_base64_bits[1][p[1]] | tg_base64_bits[2][p[2]] |
           tg_base64_bits[3][p[3]];
}

/* Canonical base64 only: padding required, unused bits zero, no white space; dst >= 3 * n / 4 +
 * 3 bytes, may be p itself. Returns the length, or -1. */
static inline int64_t tg_base64_decode(const uint8_t *p, size_t n, uint8_t *dst) {
    uint8_t *at = dst;
    const uint8_t *last;
    uint32_t bits;
    int padding;
    if (n == 0) return 0;
    if (n % 4 != 0) return -1;
    last = p + n - 4;
    for (; last - p >= 8; p += 8) {
        uint32_t one = tg_base64_group(p);
        uint32_t two = tg_base64_group(p + 4);
        if ((one | two) & TG_BASE64_BAD) return -1;
        at[0] = (uint8_t)(one >> 16);
        at[1] = (uint8_t)(one >> 8);
        at[2] = (uint8_t)one;
        at[3] = (uint8_t)(two >> 16);
        at[4] = (uint8_t)(two >> 8);
        at[5] = (uint8_t)two;
        at += 6;
    }
    for (; p < last; p += 4) {
        bits = tg_base64_group(p);
        if (bits & TG_BASE64_BAD) return -1;
        at[0] = (uint8_t)(bits >> 16);
        at[1] = (uint8_t)(bits >> 8);
        at[2] = (uint8_t)bits;
        at += 3;
    }
    padding = p[3] != '=' ? 0 : p[2] != '=' ? 1 : 2;
    bits = tg_base64_bits[0][p[0]] | tg_base64_bits[1][p[1]];
    if (padding < 2) bits |= tg_base64_bits[2][p[2]];
    if (padding < 1) bits |= tg_base64_bits[3][p[3]];
    if (bits & (TG_BASE64_BAD | (((uint32_t)1 << (8 * padding)) - 1))) return -1;
    *at++ = (uint8_t)(bits >> 16);
    if (padding < 2) *at++ = (uint8_t)(bits >> 8);
    if (padding < 1) *at++ = (uint8_t)bits;
    return (int64_t)(at - dst);
}

/* ---- Go's quoted strings --------------------------------------------------------------------- */

/* Go's strconv.IsPrint. */
static inline int tg_go_is_print(uint32_t rune) {
    size_t low = 0, high = TG_GOPRINT_COUNT;
    if (rune < 0x80) return rune >= 0x20 && rune < 0x7f;
    if (rune >= 0x4e00 && rune <= 0x9fff) return 1; /* most of Chinese */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (tg_goprint[middle][1] < rune) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < TG_GOPRINT_COUNT && tg_goprint[low][0] <= rune;
}

static inline uint8_t *tg_write_hex(uint32_t value, int digits, uint8_t *dst) {
    for (int i = digits - 1; i >= 0; i--) {
        dst[i] = (uint8_t)"0123456789abcdef"[value & 15];
        value >>= 4;
    }
    return dst + digits;
}

/* Whether all eight bytes are printable ASCII and neither a quote nor a backslash. */
static inline int tg_all_plain(uint64_t word) {
    uint64_t control = word - TG_EACH_BYTE(0x20);
    uint64_t quote = tg_any_zero(word ^ TG_EACH_BYTE('"'));
    uint64_t backslash = tg_any_zero(word ^ TG_EACH_BYTE('\\'));
    uint64_t rubout = tg_any_zero(word ^ TG_EACH_BYTE(0x7f));
    return ((word | control | quote | backslash | rubout) & TG_EACH_BYTE(0x80)) == 0;
}

/* What Go's strconv.Quote writes between its quotes (the Open protocol's form of binary
 * strings); dst >= 4 * n bytes, not overlapping p. Returns the length. */
static inline size_t tg_go_quote(const uint8_t *p, size_t n, uint8_t *dst) {
    uint8_t *at = dst;
    size_t i = 0;
    while (i < n) {
        size_t end = n - i < 8 ? n : i + 8;
        if (end - i == 8 && tg_all_plain(tg_load64(p + i))) {
            memcpy(at, p + i, 8);
            at += 8;
            i = end;
            continue;
        }
        while (i < end) {
            uint8_t byte = p[i];
            uint8_t next = n - i > 1 ? p[i + 1] : 0;
            uint32_t rune = 0;
            int length = 0;
            if ((byte >= 0xc2) & ((next & 0xc0) == 0x80)) {
                length = tg_utf8_rune(p + i, n - i, &rune);
            }
            if (length == 0) {
                /* Four bytes are written whatever the length: the room is four for each byte. */
                memcpy(at, tg_go_escapes[byte], 4);
                at += tg_go_escapes[byte][4];
                i++;
                continue;
            }
            if (tg_go_is_print(rune)) {
                memcpy(at, p + i, (size_t)length);
                at += length;
            } else {
                int wide = rune >= 0x10000;
                *at++ = '\\';
                *at++ = wide ? 'U' : 'u';
                at = tg_write_hex(rune, wide ? 8 : 4, at);
            }
            i += (size_t)length;
        }
    }
    return (size_t)(at - dst);
}

/* The bytes that such a text stands for; dst >= n bytes, may be p itself. Bytes that are no
 * escape are copied as they are. Returns the length, or -1 on an escape that Go does not have. */
static inline int64_t tg_go_unquote(const uint8_t *p, size_t n, uint8_t *dst) {
    size_t i = 0, out = 0;
    while (i < n) {
        uint32_t value = 0;
        int digits = 0;
        uint8_t letter;
        if (p[i] != '\\') {
            if (n - i >= 8) {
                uint64_t word = tg_load64(p + i);
                if (tg_any_zero(word ^ TG_EACH_BYTE('\\')) == 0) {
                    memcpy(dst + out, &word, 8);
                    i += 8;
                    out += 8;
                    continue;
                }
            }
            dst[out++] = p[i++];
            continue;
        }
        if (n - i >= 4 && p[i + 1] == 'x') {
            unsigned high = tg_hex_value[p[i + 2]], low = tg_hex_value[p[i + 3]];
            if ((high | low) > 15) return -1;
            dst[out++] = (uint8_t)(high << 4 | low);
            i += 4;
            continue;
        }
        if (n - i < 2) return -1;
        letter = p[i + 1];
        i += 2;
        switch (letter) {
            case 'a': dst[out++] = 7; continue;
            case 'b': dst[out++] = 8; continue;
            case 't': dst[out++] = 9; continue;
            case 'n': dst[out++] = 10; continue;
            case 'v': dst[out++] = 11; continue;
            case 'f': dst[out++] = 12; continue;
            case 'r': dst[out++] = 13; continue;
            case '\\': case '"': case '\'': dst[out++] = letter; continue;
            case 'x': return -1;
            case 'u': digits = 4; break;
            case 'U': digits = 8; break;
            default: break;
        }
        if (digits == 0) {
            if (letter > '3' || letter < '0' || n - i < 2) return -1;
            if ((p[i] & 0xf8) != '0' || (p[i + 1] & 0xf8) != '0') return -1;
            dst[out++] = (uint8_t)((letter & 7) << 6 | (p[i] & 7) << 3 | (p[i + 1] & 7));
            i += 2;
            continue;
        }
        if (n - i < (size_t)digits) return -1;
        for (int k = 0; k < digits; k++) {
            uint8_t digit = tg_hex_value[p[i + (size_t)k]];
            if (digit > 15) return -1;
            value = value << 4 | digit;
        }
        i += (size_t)digits;
        if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return -1;
        out += (size_t)tg_utf8_write(value, dst + out);
    }
    return (int64_t)out;
}

/* ---- hash and checksums ---------------------------------------------------------------------- */

static inline uint64_t tg_fold(uint64_t a, uint64_t b) {
    uint64_t high;
    uint64_t low = tg_mul64(a, b, &high);
    return low ^ high;
}

/* A 64-bit hash for ids that are stored and compared across machines. FROZEN: its values are in
 * users' tables, and the tests hold vectors. It is not meant to resist someone who looks for
 * collisions.
 *
 *   h = (seed + A) ^ n * B;   for each 8 bytes w, little-endian:   h = fold(h ^ w, C)
 *   the last 0 to 7 bytes, zero-filled:   h = fold(h ^ w, D);   then SplitMix64's finaliser.
 * fold(a, b) is the low word of the 128-bit product a * b, xor the high word; A to D are digits
 * of pi. */
static inline uint64_t tg_hash(const uint8_t *p, size_t n, uint64_t seed) {
    uint64_t h = (seed + 0x243f6a8885a308d3u) ^ (uint64_t)n * 0xbe5466cf34e90c6du;
    uint64_t tail = 0;
    for (; n >= 8; p += 8, n -= 8) h = tg_fold(h ^ tg_load_le64(p), 0xa4093822299f31d1u);
    for (size_t i = 0; i < n; i++) tail |= (uint64_t)p[i] << (8 * i);
    h = tg_fold(h ^ tail, 0xc0ac29b7c97c50ddu);
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 27) * 0x94d049bb133111ebu;
    return h ^ h >> 31;
}

static inline uint32_t tg_crc_update(const uint32_t table[8][256], uint32_t crc, const uint8_t *p,
                                     size_t n) {
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word = tg_load_le64(p) ^ crc;
        crc = table[7][word & 0xff] ^ table[6][word >> 8 & 0xff] ^ table[5][word >> 16 & 0xff] ^
              table[4][word >> 24 & 0xff] ^ table[3][word >> 32 & 0xff] ^
              table[2][word >> 40 & 0xff] ^ table[1][word >> 48 & 0xff] ^ table[0][word >> 56];
    }
    for (; n > 0; p++, n--) crc = crc >> 8 ^ table[0][(crc ^ *p) & 0xff];
    return crc;
}

/* CRC-32C (Castagnoli) of the bytes. */
static inline uint32_t tg_crc32c(const uint8_t *p, size_t n) {
    return ~tg_crc_update(tg_crc32c_table, 0xffffffffu, p, n);
}

/* CRC-32 (IEEE) of the bytes, continued from `crc`: 0 to begin with, then what the call before
 * returned. */
static inline uint32_t tg_crc32(uint32_t crc, const uint8_t *p, size_t n) {
    return ~tg_crc_update(tg_crc32_table, ~crc, p, n);
}

#endif
