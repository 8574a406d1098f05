/* The innermost loops of Canal-JSON: values against the rules of their types, and rows of which everything
 * but the values is predicted.
 *
 * Contract of the predicted way: behind `end`, the end of the message, CANAL_PADDING bytes may be read, and behind
 * the room for a row's text as many may be written. Nobody asks there at each step whether the message still goes
 * on: what is returned may lie behind `end`, and the caller refuses it then. Both builds, with and without vector
 * instructions, give the same results.
 */
#ifndef TG_CANAL_H
#define TG_CANAL_H

#include "_scan.h"
#include "_text.h"
#include "_values.h"

enum { CANAL_PADDING = 64 };

/* ---- predicted bytes: zeros behind them, since they are compared in blocks of 16 (tg_same) -------------------------- */

static const uint8_t canal_ts[32] = ",\"ts\":";
static const uint8_t canal_sql[48] = ",\"sql\":\"\",\"sqlType\":{";
static const uint8_t canal_insert[32] = "INSERT\",\"es\":";
static const uint8_t canal_update[32] = "UPDATE\",\"es\":";
static const uint8_t canal_delete[32] = "DELETE\",\"es\":";
static const uint8_t canal_no_old[48] = "},\"old\":null,\"data\":[{";
static const uint8_t canal_old[32] = "},\"old\":[{";
static const uint8_t canal_data[32] = "}],\"data\":[{";
static const uint8_t canal_commit_ts[48] = "}],\"_tidb\":{\"commitTs\":";
static const uint8_t canal_handle_key[48] = ",\"onlyHandleKey\":true}}";
static const uint8_t canal_row_key[32] = ",\"rowkey\":\"";
static const uint8_t canal_database[48] = "{\"id\":0,\"database\":\"";
static const uint8_t canal_table[32] = "\",\"table\":\"";

/* ---- words ---------------------------------------------------------------------------------------------------------- */

static inline uint64_t canal_load32(const uint8_t *p) {
    uint32_t word;
    memcpy(&word, p, 4);
    return word;
}

static inline uint64_t canal_load_be64(const uint8_t *p) {
#if defined(__GNUC__) || defined(__clang__)
    return __builtin_bswap64(tg_load_le64(p));
#else
    return (uint64_t)p[0] << 56 | (uint64_t)p[1] << 48 | (uint64_t)p[2] << 40 | (uint64_t)p[3] << 32 |
           (uint64_t)p[4] << 24 | (uint64_t)p[5] << 16 | (uint64_t)p[6] << 8 | (uint64_t)p[7];
#endif
}

/* A text by its first sixteen bytes, zeros behind its end: enough to tell most names apart, without a branch on their
 * lengths. */
typedef struct {
    uint64_t low, high;
    const uint8_t *p;
    size_t n;
} canal_word;

/* 16 bytes at p may be read. */
static inline canal_word canal_word_of(const uint8_t *p, size_t n) {
    static const uint8_t ones[32] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
    const uint8_t *mask = ones + 16 - (n < 16 ? n : 16);
    canal_word word = {tg_load_le64(p) & tg_load_le64(mask), tg_load_le64(p + 8) & tg_load_le64(mask + 8), p, n};
    return word;
}

static inline int canal_same_word(const canal_word *a, const canal_word *b) {
    return ((a->low ^ b->low) | (a->high ^ b->high) | (a->n ^ b->n)) == 0 &&
           (TG_LIKELY(a->n <= 16) || memcmp(a->p + 16, b->p + 16, a->n - 16) == 0);
}

/* A hash for tables in memory. Every byte counts, and the seed keeps a sender from choosing names that collide. */
static inline uint64_t canal_hash(const uint8_t *p, size_t n, uint64_t seed) {
    uint64_t h = seed ^ (n * 0x9e3779b97f4a7c15u);
    uint64_t word = 0;
    if (n >= 8) {
        const uint8_t *last = p + n - 8;
        for (; p < last; p += 8) {
            h = (h ^ tg_load_le64(p)) * 0xbf58476d1ce4e5b9u;
            h ^= h >> 29;
        }
        word = tg_load_le64(last);
    } else if (n >= 4) {
        word = canal_load32(p) | canal_load32(p + n - 4) << 32;
    } else if (n) {
        word = (uint64_t)p[0] | (uint64_t)p[n / 2] << 8 | (uint64_t)p[n - 1] << 16;
    }
    h = (h ^ word) * 0x94d049bb133111ebu;
    return h ^ h >> 32;
}

static inline uint64_t canal_word_hash(const canal_word *word, uint64_t seed) {
    uint64_t h;
    if (TG_UNLIKELY(word->n > 16)) return canal_hash(word->p, word->n, seed);
    h = (word->low ^ seed) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 29 ^ word->high ^ word->n) * 0x94d049bb133111ebu;
    return h ^ h >> 32;
}

/* ---- digits --------------------------------------------------------------------------------------------------------- */

/* Bit i is set where the i-th of the 32 bytes at p is no digit. */
static inline uint32_t canal_no_digits(const uint8_t *p) {
#ifdef TG_SSE2
    const __m128i zero = _mm_set1_epi8('0'), nine = _mm_set1_epi8(9);
    __m128i low = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)p), zero);
    __m128i high = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)(p + 16)), zero);
    uint32_t digits = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(low, nine), low));
    digits |= (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(high, nine), high)) << 16;
    return ~digits;
#else
    uint32_t others = 0;
    for (int i = 0; i < 32; i++) others |= (uint32_t)!tg_is_digit(p[i]) << i;
    return others;
#endif
}

/* The place of the lowest bit of a word that is not zero. */
static inline size_t canal_lowest(uint32_t word) {
#if defined(__GNUC__) || defined(__clang__)
    return (size_t)__builtin_ctz(word);
#else
    size_t place = 0;
    while (!(word >> place & 1)) place++;
    return place;
#endif
}

static inline void canal_copy32(uint8_t *dst, const uint8_t *p) { memcpy(dst, p, 32); }

/* Copies n bytes; 32 bytes may be read at p and written at dst. */
static inline void canal_copy(uint8_t *dst, const uint8_t *p, size_t n) {
    if (TG_LIKELY(n <= 32)) {
        canal_copy32(dst, p);
    } else {
        memcpy(dst, p, n);
    }
}

/* How many digits stand at p, at most 31; 32 bytes may be read. */
static inline size_t canal_digit_run(const uint8_t *p) { return canal_lowest(canal_no_digits(p) | 0x80000000u); }

/* The value of eight digits. */
static inline uint64_t canal_eight_digits(const uint8_t *p) {
    uint64_t pairs = tg_load_le64(p) - 0x3030303030303030u;
    pairs = pairs * 10 + (pairs >> 8);
    return ((pairs & 0x000000ff000000ffu) * 0x000f424000000064u +
            (pairs >> 16 & 0x000000ff000000ffu) * 0x0000271000000001u) >> 32;
}

/* The value of n <= 19 digits. */
static inline uint64_t canal_number(const uint8_t *p, size_t n) {
    uint64_t value = 0;
    for (; n >= 8; p += 8, n -= 8) value = value * 100000000u + canal_eight_digits(p);
    for (; n; p++, n--) value = value * 10 + (uint64_t)(*p - '0');
    return value;
}

/* ---- rules of values ------------------------------------------------------------------------------------------------ */

enum {
    CANAL_TEXT,     /* any text, also of types that are not known */
    CANAL_BINARY,   /* code points up to U+00FF stand for bytes */
    CANAL_INTEGER,
    CANAL_DECIMAL,
    CANAL_DATETIME,
    CANAL_DATE,
    CANAL_TIME,
    CANAL_FLOAT,
    CANAL_YEAR,
    CANAL_VECTOR,
    CANAL_UNCLEAR   /* of a type that is not known but may be binary: TiCDC takes any name with "blob" for one */
};

/* What is wrong with a value. */
enum { CANAL_GOOD, CANAL_BAD_NUMBER, CANAL_BAD_RANGE, CANAL_BAD_TIME, CANAL_BAD_VALUE };

typedef struct {
    int kind;
    /* Of an integer: its digits at most, those of the largest value, and those of the smallest, NULL if it has no sign. */
    int digits;
    const char *most, *least;
    /* The first eight digits of `most` (all, if fewer) as one big-endian number, and what to shift away to compare. */
    uint64_t bound;
    int shift;
} canal_rule;

static inline void canal_integer_rule(canal_rule *rule, int bits, int is_unsigned) {
    const tg_integer_bounds *bounds = tg_bounds_of(bits);
    rule->kind = CANAL_INTEGER;
    rule->most = is_unsigned ? bounds->most_unsigned : bounds->most;
    rule->least = is_unsigned ? NULL : bounds->least;
    rule->digits = (int)strlen(rule->most);
    rule->shift = rule->digits < 8 ? 8 * (8 - rule->digits) : 0;
    rule->bound = 0;
    for (int i = 0; i < 8 && i < rule->digits; i++) rule->bound = rule->bound << 8 | (uint8_t)rule->most[i];
}

static TG_NOINLINE int canal_check_integer(const canal_rule *rule, const uint8_t *p, size_t n) {
    size_t sign = n > 0 && p[0] == '-', i;
    const char *bound = sign ? rule->least : rule->most;
    p += sign;
    n -= sign;
    for (i = 0; i < n && tg_is_digit(p[i]); i++) {}
    if (n == 0 || i < n || bound == NULL) return CANAL_BAD_NUMBER;
    return tg_digits_within(p, n, bound) ? CANAL_GOOD : CANAL_BAD_RANGE;
}

/* A number as the batch has floats: digits, perhaps a point and digits that do not end in zero, no zeros before them,
 * no exponent. */
static inline int canal_check_float(const uint8_t *p, size_t n) {
    size_t i = n > 0 && p[0] == '-', whole = i;
    while (i < n && tg_is_digit(p[i])) i++;
    if (i == whole || (p[whole] == '0' && i > whole + 1)) return CANAL_BAD_NUMBER;
    if (i == n) return CANAL_GOOD;
    if (p[i] != '.' || i + 1 == n || p[n - 1] == '0') return CANAL_BAD_NUMBER;
    for (i++; i < n; i++) {
        if (!tg_is_digit(p[i])) return CANAL_BAD_NUMBER;
    }
    return CANAL_GOOD;
}

static inline int canal_check_year(const uint8_t *p, size_t n) {
    int year = 0;
    if (n == 0 || n > 4) return CANAL_BAD_NUMBER;
    for (size_t i = 0; i < n; i++) {
        if (!tg_is_digit(p[i])) return CANAL_BAD_NUMBER;
        year = year * 10 + (p[i] - '0');
    }
    return year == 0 || (year > 1900 && year < 2156) ? CANAL_GOOD : CANAL_BAD_RANGE;
}

/* Whether an integer is surely right; 32 bytes at p may be read. If not, canal_check_integer says it. */
static inline int canal_plain_integer(const canal_rule *rule, const uint8_t *p, size_t n) {
    uint32_t others = canal_no_digits(p) & (uint32_t)(((uint64_t)1 << (n < 31 ? n : 31)) - 1);
    return (n > 0) & (n < (size_t)rule->digits) & (others == 0);
}

/* What is wrong with a value, if anything; 32 bytes at p may be read. Texts of BINARY columns are looked at where they become bytes. */
static inline int canal_check(const canal_rule *rule, const uint8_t *p, size_t n) {
    switch (rule->kind) {
        case CANAL_INTEGER:
            return TG_LIKELY(canal_plain_integer(rule, p, n)) ? CANAL_GOOD : canal_check_integer(rule, p, n);
        case CANAL_DECIMAL: return tg_decimal_valid(p, n, p + 32) ? CANAL_GOOD : CANAL_BAD_NUMBER;
        case CANAL_DATETIME: return tg_datetime_valid(p, n) ? CANAL_GOOD : CANAL_BAD_TIME;
        case CANAL_DATE: return tg_date_valid(p, n) ? CANAL_GOOD : CANAL_BAD_TIME;
        case CANAL_TIME: return tg_time_valid(p, n) ? CANAL_GOOD : CANAL_BAD_TIME;
        case CANAL_FLOAT: return canal_check_float(p, n);
        case CANAL_YEAR: return canal_check_year(p, n);
        case CANAL_VECTOR: return tg_vector_valid(p, n) ? CANAL_GOOD : CANAL_BAD_NUMBER;
        case CANAL_UNCLEAR: return CANAL_BAD_VALUE;
        default: return CANAL_GOOD;
    }
}

/* ---- predicted values ----------------------------------------------------------------------------------------------- */

/* Each copies a value from p to dst, up to its closing quote, if it is of that form, and gives its length; 0 if it is
 * not, or an unusual one. 32 bytes are read and written. */

static inline size_t canal_take_integer(const uint8_t *p, uint8_t *dst, const canal_rule *rule) {
    size_t sign = p[0] == '-', n, digits = (size_t)rule->digits;
    uint32_t others = canal_no_digits(p) & (0xffffffffu << sign);
    uint64_t leading = canal_load_be64(p) >> rule->shift;
    canal_copy32(dst, p);
    if (TG_UNLIKELY(others == 0)) return 0;
    n = canal_lowest(others);
    if (TG_UNLIKELY(n == sign) || TG_UNLIKELY(p[n] != '"')) return 0;
    /* Surely in range, or to be looked at; without a branch on the length, which jumps about. */
    if (TG_UNLIKELY(((n < digits) | ((n == digits) & (leading < rule->bound))) <= (sign & (rule->least == NULL)))) {
        if (canal_check_integer(rule, p, n) != CANAL_GOOD) return 0;
    }
    return n;
}

static inline size_t canal_take_decimal(const uint8_t *p, uint8_t *dst) {
    size_t sign = p[0] == '-', n, point;
    uint32_t others = canal_no_digits(p) & (0xffffffffu << sign);
    canal_copy32(dst, p);
    if (TG_UNLIKELY(others == 0)) return 0;
    point = n = canal_lowest(others);
    if (TG_LIKELY(p[n] == '.')) {
        others &= others - 1;
        if (TG_UNLIKELY(others == 0)) return 0;
        n = canal_lowest(others);
        if (TG_UNLIKELY(n == point + 1)) return 0;
    }
    return point > sign && p[n] == '"' ? n : 0;
}

static inline size_t canal_take_datetime(const uint8_t *p, uint8_t *dst) {
    if (TG_UNLIKELY(p[19] != '"') || TG_UNLIKELY(!tg_datetime_valid(p, 19))) return 0;
    canal_copy32(dst, p);
    return 19;
}

/* Copies a string's body up to the first byte that is special (tg_special), or to where `end` is passed; gives the
 * length. Up to 32 bytes behind `end` are read and written. *high: see tg_plain_run. */
static inline size_t canal_take_text(const uint8_t *p, const uint8_t *end, uint8_t *dst, unsigned *high) {
    const uint8_t *start = p;
#ifdef TG_SSE2
    unsigned seen = 0;
    do {
        __m128i first = _mm_loadu_si128((const __m128i *)p);
        __m128i second = _mm_loadu_si128((const __m128i *)(p + 16));
        uint32_t mask = tg_special_mask(first) | (uint32_t)tg_special_mask(second) << 16;
        _mm_storeu_si128((__m128i *)dst, first);
        _mm_storeu_si128((__m128i *)(dst + 16), second);
        seen |= (unsigned)_mm_movemask_epi8(_mm_or_si128(first, second));
        if (TG_LIKELY(mask != 0)) {
            *high = seen;
            return (size_t)(p - start) + canal_lowest(mask);
        }
        p += 32;
        dst += 32;
    } while (p < end);
    *high = seen;
    return (size_t)(p - start);
#else
    *high = 0;
    while (p < end && !tg_special(*p)) {
        *high |= *p & 0x80u;
        *dst++ = *p++;
    }
    return (size_t)(p - start);
#endif
}

/* The same without copying. */
static inline size_t canal_text_run(const uint8_t *p, const uint8_t *end, unsigned *high) {
    const uint8_t *start = p;
#ifdef TG_SSE2
    unsigned seen = 0;
    do {
        __m128i first = _mm_loadu_si128((const __m128i *)p);
        __m128i second = _mm_loadu_si128((const __m128i *)(p + 16));
        uint32_t mask = tg_special_mask(first) | (uint32_t)tg_special_mask(second) << 16;
        seen |= (unsigned)_mm_movemask_epi8(_mm_or_si128(first, second));
        if (TG_LIKELY(mask != 0)) {
            *high = seen;
            return (size_t)(p - start) + canal_lowest(mask);
        }
        p += 32;
    } while (p < end);
    *high = seen;
#else
    *high = 0;
    while (p < end && !tg_special(*p)) *high |= *p++ & 0x80u;
#endif
    return (size_t)(p - start);
}

/* ---- members in any order ------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *at;          /* the opening quote of its name */
    const uint8_t *name;
    size_t name_size;
    const uint8_t *value_at;
    const uint8_t *text;        /* NULL: null, or a number */
    size_t text_size;
} canal_member;

/* The member at p, of which a name and a string, or null, or else (`numbers`) a small whole number are asked, if it has
 * neither white space nor escapes: the common case, without detours. Gives where it ends, or NULL. */
static inline const uint8_t *canal_plain_member(const uint8_t *p, const uint8_t *end, int numbers, canal_member *out) {
    unsigned high;
    size_t n;
    if (TG_UNLIKELY(*p != '"')) return NULL;
    out->at = p++;
    n = canal_text_run(p, end, &high);
    out->name = p;
    out->name_size = n;
    if (TG_UNLIKELY(p[n] != '"') || TG_UNLIKELY(p[n + 1] != ':') ||
        (TG_UNLIKELY(high != 0) && !tg_utf8_valid(p, n))) {
        return NULL;
    }
    p += n + 2;
    out->value_at = p;
    out->text = NULL;
    out->text_size = 0;
    if (TG_UNLIKELY(p >= end)) return NULL;
    if (numbers) {
        p += *p == '-';
        /* One digit or more, four at most, as every code of java.sql.Types has. */
        n = canal_digit_run(p);
        if (TG_UNLIKELY(n - 1 > 3) || TG_UNLIKELY(*p == '0' && n > 1) ||
            TG_UNLIKELY(p[n] != ',' && p[n] != '}')) {
            return NULL;
        }
        p += n;
    } else if (TG_LIKELY(*p == '"')) {
        p++;
        n = canal_text_run(p, end, &high);
        if (TG_UNLIKELY(p[n] != '"') || (TG_UNLIKELY(high != 0) && !tg_utf8_valid(p, n))) return NULL;
        out->text = p;
        out->text_size = n;
        p += n + 1;
    } else {
        if (memcmp(p, "null", 4) != 0) return NULL;
        p += 4;
    }
    return TG_LIKELY(p < end) ? p : NULL;
}

/* ---- predicted rows ------------------------------------------------------------------------------------------------- */

/* The bytes of `mask` (bit i: byte i) at p equal those at `expected`, which are the first of n. 32 bytes are read at
 * both, and no branch depends on n. */
static inline int canal_same32(const uint8_t *p, const uint8_t *expected, uint32_t mask, size_t n) {
#ifdef TG_SSE2
    uint32_t low = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)p),
                                                              _mm_loadu_si128((const __m128i *)expected)));
    uint32_t high = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(p + 16)),
                                                               _mm_loadu_si128((const __m128i *)(expected + 16))));
    (void)n;
    return (~(low | high << 16) & mask) == 0;
#else
    (void)mask;
    return memcmp(p, expected, n < 32 ? n : 32) == 0;
#endif
}

/* Predicted bytes: the first of them beside what else is then needed. */
typedef struct {
    uint8_t head[32];
    const uint8_t *whole;   /* 16 bytes behind it may be read */
    uint32_t size;
    uint32_t mask;          /* which bytes of head count */
    uint32_t next;          /* of an entry of mysqlType: the slot of the next one that begins alike, 0: none */
    uint64_t weight;        /* of an entry of mysqlType: all of them add up to types_weight */
} canal_literal;

/* How the rows of one table look. */
typedef struct {
    int32_t count;
    canal_literal *names;   /* before the value of each column: "name":" */
    canal_rule *rules;
    /* The entries of mysqlType, "name":"type", as many as columns, in any order. They are found by `window` of their
     * bytes (8 to 16); a slot is an entry's index, from 1 on, and its length in the upper half. */
    canal_literal *types;
    uint32_t *slots;
    int shift, window;
    size_t types_size;
    uint64_t types_weight;
} canal_layout;

static inline uint64_t canal_type_slot(const uint8_t *p, int window, int shift) {
    return (tg_load_le64(p) * 0x9e3779b97f4a7c15u + tg_load_le64(p + window - 8) * 0xd6e8feb86659fd93u) >> shift;
}

/* The whole of a literal whose head fits. */
static inline int canal_same_rest(const canal_literal *literal, const uint8_t *p, const uint8_t *end,
                                  const uint8_t *limit) {
    return TG_LIKELY(literal->size <= 32) ||
           (end - p >= (ptrdiff_t)literal->size && tg_same(p + 32, literal->whole + 32, literal->size - 32, limit));
}

/* One entry of the mysqlType that ends at `end`, at p; gives where the next one begins, or NULL. */
static inline const uint8_t *canal_pass_type(const canal_layout *layout, const uint8_t *p, const uint8_t *end,
                                             const uint8_t *limit, uint64_t *weight) {
    uint32_t slot = layout->slots[canal_type_slot(p + 1, layout->window, layout->shift)];
    for (;;) {
        const canal_literal *entry = &layout->types[slot & 0xffff];
        if (TG_UNLIKELY(slot == 0)) return NULL;
        if (TG_LIKELY(canal_same32(p, entry->head, entry->mask, slot >> 16)) &&
            canal_same_rest(entry, p, end, limit)) {
            *weight -= entry->weight;
            p += slot >> 16;
            return TG_LIKELY(p < end) ? (*p == ',' ? p + 1 : NULL) : p;
        }
        slot = entry->next;
    }
}

/* Where a row is written. */
typedef struct {
    uint8_t *base, *text;   /* of all cells; where this row's begin, and then end */
    int32_t *ends;
    uint8_t *valid;
    uint8_t *spare;         /* as large as the message */
} canal_cells;

/* The rest of a string with escapes: from *p, an escape, to behind the closing quote. n bytes are at text; gives the
 * whole length and moves *p, or gives -1. */
typedef int64_t (*canal_unescape)(const uint8_t **p, const uint8_t *end, const uint8_t *limit, uint8_t *text, size_t n,
                                  unsigned *high);

/* A value's length, -1 if it is not right, and where the message goes on behind it. */
typedef struct {
    const uint8_t *p;
    int64_t n;
} canal_read;

/* Locals whose addresses are given away live in memory: those of the slow way are its own. */
static TG_NOINLINE canal_read canal_escaped(const uint8_t *p, const uint8_t *end, const uint8_t *limit, uint8_t *text,
                                            size_t n, unsigned high, canal_unescape unescape) {
    canal_read read;
    read.p = p;
    read.n = unescape(&read.p, end, limit, text, n, &high);
    if (read.n > 0 && high != 0 && !tg_utf8_valid(text, (size_t)read.n)) read.n = -1;
    return read;
}

static inline canal_read canal_string(const uint8_t *p, const uint8_t *end, const uint8_t *limit, uint8_t *text,
                                      canal_unescape unescape) {
    unsigned high = 0;
    canal_read read;
    size_t n = canal_take_text(p, end, text, &high);
    if (TG_UNLIKELY(p[n] != '"')) return canal_escaped(p + n, end, limit, text, n, high, unescape);
    read.p = p + n + 1;
    read.n = (int64_t)n;
    if (TG_UNLIKELY(high != 0) && !tg_utf8_valid(text, n)) read.n = -1;
    return read;
}

/* A value that is no plain integer, decimal or moment, from behind its opening quote. */
static inline canal_read canal_value(const uint8_t *p, const uint8_t *end, const uint8_t *limit, const canal_rule *rule,
                                     uint8_t *text, uint8_t *spare, canal_unescape unescape) {
    canal_read read = canal_string(p, end, limit, text, unescape);
    if (TG_UNLIKELY(read.n < 0) || TG_LIKELY(rule->kind == CANAL_TEXT)) return read;
    if (rule->kind == CANAL_BINARY) {
        read.n = tg_latin1_from_utf8(text, (size_t)read.n, spare);
        if (read.n >= 0) read.n = (int64_t)tg_base64_encode(spare, (size_t)read.n, text);
    } else if (canal_check(rule, text, (size_t)read.n) != CANAL_GOOD) {
        read.n = -1;
    }
    return read;
}

/* The row whose first member stands at p, and perhaps the mysqlType whose first entry stands at `types`: one entry a
 * column, so that two chains of reads do not wait for one another. Gives where the row ends, or NULL.
 *
 * `missing`, if not NULL, gets the columns that the row leaves out, and *left_out their number; otherwise it may leave
 * out none. */
static inline const uint8_t *canal_read_row(const canal_layout *layout, const uint8_t *p, const uint8_t *end,
                                            const uint8_t *limit, canal_cells *cells, const uint8_t *types,
                                            uint8_t *missing, int32_t *left_out, canal_unescape unescape) {
    const uint8_t *types_end = types + layout->types_size;
    uint64_t weight = layout->types_weight;
    uint8_t *text = cells->text;
    int32_t i, count = layout->count;
    int more = 0;
    memset(cells->valid, 1, (size_t)count);
    for (i = 0; i < count; i++) {
        const canal_literal *name = &layout->names[i];
        const canal_rule *rule = &layout->rules[i];
        size_t n = 0;
        if (types != NULL) {
            types = canal_pass_type(layout, types, types_end, limit, &weight);
            if (TG_UNLIKELY(types == NULL)) return NULL;
            if (TG_UNLIKELY(types >= types_end) && (types > types_end || i + 1 < count)) return NULL;
        }
        if (TG_UNLIKELY(p >= end)) return NULL;
        /* Branches, where sums would do: what is predicted rightly is not waited for. */
        if (TG_LIKELY(more)) {
            if (TG_LIKELY(*p == ',')) {
                p++;
            } else if (missing == NULL) {
                return NULL;
            }
        }
        if (TG_UNLIKELY(!canal_same32(p, name->head, name->mask, name->size)) ||
            TG_UNLIKELY(!canal_same_rest(name, p, end, limit))) {
            size_t size = name->size - 1;
            cells->valid[i] = 0;
            if (end - p >= (ptrdiff_t)size + 4 && tg_same(p, name->whole, size, limit) &&
                memcmp(p + size, "null", 4) == 0 && (!more || p[-1] == ',')) {
                p += size + 4;
                more = 1;
            } else {
                if (missing == NULL) return NULL;
                missing[i >> 3] |= (uint8_t)(1 << (i & 7));
                ++*left_out;
                if (more && p[-1] == ',') p--;
            }
            cells->ends[i] = (int32_t)(text - cells->base);
            continue;
        }
        if (missing != NULL && more && p[-1] != ',') return NULL;
        more = 1;
        p += name->size;
        switch (rule->kind) {
            case CANAL_INTEGER:
                n = canal_take_integer(p, text, rule);
                if (TG_UNLIKELY(n == 0)) return NULL;
                break;
            case CANAL_DECIMAL: n = canal_take_decimal(p, text); break;
            case CANAL_DATETIME: n = canal_take_datetime(p, text); break;
            default: break;
        }
        if (n != 0) {
            p += n + 1;
        } else {
            canal_read read = canal_value(p, end, limit, rule, text, cells->spare, unescape);
            if (TG_UNLIKELY(read.n < 0)) return NULL;
            n = (size_t)read.n;
            p = read.p;
        }
        text += n;
        cells->ends[i] = (int32_t)(text - cells->base);
    }
    if (types != NULL && weight != 0) return NULL;
    cells->text = text;
    return p;
}

#endif
