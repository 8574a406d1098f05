/* The innermost loops of Craft: the lengths of a column group's values, and the values from and to text.
 *
 * Contract: nothing at or beyond `limit` is read. Sizes are checked by tg_craft_sizes, so that tg_craft_text may trust
 * them. What is wrong comes back as a TG_CRAFT_ code; craft.pyx knows what it stands for.
 */
#ifndef TG_CRAFT_H
#define TG_CRAFT_H

#include "_scan.h"
#include "_text.h"
#include "_values.h"

#if defined(__GNUC__) || defined(__clang__)
#define TG_ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define TG_ALWAYS_INLINE inline
#endif

/* The forms of values.pxd. */
enum {
    TG_FORM_INTEGER = 1,
    TG_FORM_UNSIGNED = 2,
    TG_FORM_FLOAT = 3,
    TG_FORM_DOUBLE = 4,
    TG_FORM_DECIMAL = 5,
    TG_FORM_DATE = 6,
    TG_FORM_DATETIME = 7,
    TG_FORM_TIME = 8,
    TG_FORM_TEXT = 9,
    TG_FORM_BINARY = 10,
    TG_FORM_JSON = 11,
    TG_FORM_VECTOR = 12,
    TG_FORM_YEAR = 13
};

/* What comes back instead of a length. */
enum {
    TG_CRAFT_NULL = -1,
    TG_CRAFT_UTF8 = -2,
    TG_CRAFT_NUMBER = -3,
    TG_CRAFT_RANGE = -4,
    TG_CRAFT_TEMPORAL = -5,
    TG_CRAFT_LENGTH = -6,
    TG_CRAFT_VALUE = -7,
    TG_CRAFT_TYPE = -8,
    TG_CRAFT_BASE64 = -9
};

/* Zigzag varints at *at, one a value: its size, or -1 for NULL. They must add up to what is left up to `end`; *at then
 * points to the first value. Up to 16 entries behind the `count` in sizes may be overwritten. Returns 0, or -1. */
static inline int tg_craft_sizes(const uint8_t **at, const uint8_t *end, const uint8_t *limit, int32_t count,
                                 int32_t *sizes) {
    const uint8_t *p = *at;
    uint64_t total = 0;
    int32_t i = 0;
    if (end - p < count) return -1;
    while (i < count) {
        uint64_t raw;
        unsigned shift;
#ifdef TG_SSE2
        if (TG_LIKELY(limit - p >= 16)) {
            /* The run of lengths that take one byte: half is the size, odd ones are NULL and must be 1. */
            static const uint8_t lanes[32] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
            const __m128i zero = _mm_setzero_si128();
            __m128i block = _mm_loadu_si128((const __m128i *)p);
            int run = __builtin_ctz((unsigned)_mm_movemask_epi8(block) | 0x10000u);
            __m128i half, null, words;
            if (run > count - i) run = count - i;
            block = _mm_and_si128(block, _mm_loadu_si128((const __m128i *)(lanes + 16 - run)));
            half = _mm_and_si128(_mm_srli_epi16(block, 1), _mm_set1_epi8(0x3f));
            null = _mm_cmpeq_epi8(_mm_and_si128(block, _mm_set1_epi8(1)), _mm_set1_epi8(1));
            if (TG_UNLIKELY(_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_and_si128(half, null), zero)) != 0xffff)) return -1;
            half = _mm_or_si128(half, null);
            words = _mm_unpacklo_epi8(half, null);
            _mm_storeu_si128((__m128i *)(sizes + i), _mm_unpacklo_epi16(words, _mm_srai_epi16(words, 15)));
            _mm_storeu_si128((__m128i *)(sizes + i + 4), _mm_unpackhi_epi16(words, _mm_srai_epi16(words, 15)));
            if (run > 8) {
                words = _mm_unpackhi_epi8(half, null);
                _mm_storeu_si128((__m128i *)(sizes + i + 8), _mm_unpacklo_epi16(words, _mm_srai_epi16(words, 15)));
                _mm_storeu_si128((__m128i *)(sizes + i + 12), _mm_unpackhi_epi16(words, _mm_srai_epi16(words, 15)));
            }
            half = _mm_sad_epu8(_mm_andnot_si128(null, half), zero);
            total += (uint64_t)(_mm_cvtsi128_si32(half) + _mm_extract_epi16(half, 4));
            i += run;
            p += run;
            if (i == count) break;
            if (run == 16) continue;
        }
#endif
        /* One of any length. As many bytes as lengths to come are there. */
        raw = *p & 0x7f;
        for (shift = 7; *p >= 0x80; shift += 7) {
            p++;
            if (p >= end || shift > 28) return -1;
            raw |= (uint64_t)(*p & 0x7f) << shift;
        }
        p++;
        if (raw > 1 && (raw & 1 || raw >> 1 > INT32_MAX)) return -1;
        sizes[i++] = raw == 1 ? -1 : (int32_t)(raw >> 1);
        total += raw >> 1;
        if (end - p < count - i) return -1;
    }
    (void)limit;
    if (total != (uint64_t)(end - p)) return -1;
    *at = p;
    return 0;
}

static TG_NOINLINE int64_t tg_craft_real(int is_float, const uint8_t *p, size_t n, uint8_t *text, int *damaged) {
    uint64_t raw;
    double real;
    int length;
    if (n != 8) return TG_CRAFT_LENGTH;
    raw = tg_load_le64(p);
    memcpy(&real, &raw, 8);
    if (is_float && (double)(float)real == real) {
        length = tg_format_float((float)real, text);
        if (length >= 0) return length;
    }
    length = tg_format_double(real, text);
    if (is_float) {
        /* TiCDC reserves four bytes for a FLOAT and writes eight, so that the next value overwrites half of it. What is
         * left is shown where it is a number at all. */
        *damaged = 1;
        return length < 0 ? TG_CRAFT_NULL : length;
    }
    return length < 0 ? TG_CRAFT_VALUE : length;
}

/* Writes the text of one value that is not NULL: n bytes and half as many, 24 for an integer, 400 for a real must be
 * there. Gives its length, or a TG_CRAFT_ code. */
static TG_ALWAYS_INLINE int64_t tg_craft_text(int form, int bits, const uint8_t *p, size_t n, const uint8_t *limit,
                                              uint8_t *text, int *damaged) {
    uint64_t raw = 0;
    int64_t number;
    switch (form) {
        case TG_FORM_TEXT:
        case TG_FORM_JSON:
            if (TG_UNLIKELY(tg_copy_high(text, p, n, limit)) && !tg_utf8_valid(p, n)) return TG_CRAFT_UTF8;
            return (int64_t)n;
        case TG_FORM_UNSIGNED:
            if (TG_UNLIKELY(tg_uvarint_of(p, n, limit, &raw) < 0)) return TG_CRAFT_NUMBER;
            if (TG_UNLIKELY(bits < 64 && raw >> bits)) return TG_CRAFT_RANGE;
            return tg_format_u64(raw, text);
        case TG_FORM_INTEGER:
        case TG_FORM_YEAR:
            /* A YEAR is zigzag too, though its column is flagged unsigned. */
            if (TG_UNLIKELY(tg_uvarint_of(p, n, limit, &raw) < 0)) return TG_CRAFT_NUMBER;
            number = (int64_t)(raw >> 1 ^ (0 - (raw & 1)));
            if (TG_UNLIKELY(form == TG_FORM_YEAR)) {
                if (number != 0 && (number < 1901 || number > 2155)) return TG_CRAFT_RANGE;
            } else if (TG_UNLIKELY(bits < 64 && raw >> bits)) {
                return TG_CRAFT_RANGE;
            }
            return tg_format_i64(number, text);
        case TG_FORM_DATETIME:
            if (TG_UNLIKELY(!tg_datetime_valid(p, n))) return TG_CRAFT_TEMPORAL;
            break;
        case TG_FORM_DECIMAL:
            if (TG_UNLIKELY(!tg_decimal_valid(p, n, limit))) return TG_CRAFT_NUMBER;
            break;
        case TG_FORM_DATE:
            if (TG_UNLIKELY(!tg_date_valid(p, n))) return TG_CRAFT_TEMPORAL;
            break;
        case TG_FORM_TIME:
            if (TG_UNLIKELY(!tg_time_valid(p, n))) return TG_CRAFT_TEMPORAL;
            break;
        case TG_FORM_VECTOR:
            if (TG_UNLIKELY(!tg_vector_valid(p, n))) return TG_CRAFT_NUMBER;
            break;
        case TG_FORM_BINARY:
            return (int64_t)tg_base64_encode(p, n, text);
        case TG_FORM_FLOAT:
        case TG_FORM_DOUBLE:
            return tg_craft_real(form == TG_FORM_FLOAT, p, n, text, damaged);
        default:
            return TG_CRAFT_TYPE;
    }
    tg_copy(text, p, n, limit);
    return (int64_t)n;
}

/* A column's form and, in the high byte, the bits of its integers. */
#define TG_CRAFT_FORM(column) ((column) & 0xff)
#define TG_CRAFT_BITS(column) ((column) >> 8)

/* One value, wherever it stands. */
static TG_NOINLINE int64_t tg_craft_value(uint16_t column, const uint8_t *p, int32_t size, const uint8_t *limit,
                                          uint8_t *text, int *damaged) {
    if (size < 0) return TG_CRAFT_NULL;
    return tg_craft_text(TG_CRAFT_FORM(column), TG_CRAFT_BITS(column), p, (size_t)size, limit, text, damaged);
}

/* All values of a group, one behind the other from p on, as cells: *used is the end of the texts in `base`, ends and
 * valid get `count` entries. Returns 0, or a TG_CRAFT_ code with *at on the value it is about. */
static inline int64_t tg_craft_values(const uint16_t *columns, const int32_t *sizes, int32_t count, const uint8_t **at,
                                      const uint8_t *limit, uint8_t *base, size_t *used, int32_t *ends, uint8_t *valid,
                                      int *damaged) {
    const uint8_t *p = *at;
    const int32_t *last = sizes + count;
    uint8_t *text = base + *used;
    int32_t end = (int32_t)*used;
    memset(valid, 1, (size_t)count);
    for (; sizes < last; sizes++, columns++, ends++) {
        if (TG_LIKELY(*sizes >= 0)) {
            int64_t length = tg_craft_text(TG_CRAFT_FORM(*columns), TG_CRAFT_BITS(*columns), p, (size_t)*sizes, limit,
                                           text, damaged);
            p += *sizes;
            if (TG_LIKELY(length >= 0)) {
                text += length;
                end += (int32_t)length;
                *ends = end;
                continue;
            }
            if (length != TG_CRAFT_NULL) {
                *at = p - *sizes;
                return length;
            }
        }
        valid[count - (last - sizes)] = 0;
        *ends = end;
    }
    *at = p;
    *used = (size_t)(text - base);
    return 0;
}

/* Whether n <= 32 bytes at a and b are the same; both can be read for 32. */
static inline int tg_same_32(const uint8_t *a, const uint8_t *b, size_t n) {
#ifdef TG_SSE2
    __m128i same = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)a), _mm_loadu_si128((const __m128i *)b));
    uint64_t differ = ~(unsigned)_mm_movemask_epi8(same) & 0xffffu;
    if (n > 16) {
        same = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(a + 16)), _mm_loadu_si128((const __m128i *)(b + 16)));
        differ |= (uint64_t)(~(unsigned)_mm_movemask_epi8(same) & 0xffffu) << 16;
    }
    return (differ & (((uint64_t)1 << n) - 1)) == 0;
#else
    return memcmp(a, b, n) == 0;
#endif
}

/* As tg_craft_values, for the old values of a row whose new values stand at `new_p` and are cells already: the text of
 * the i-th goes from new_ends[i - 1] to new_ends[i] in new_base, behind which 32 bytes can be read. Most did not change:
 * where that is quickly seen, the text is copied. */
static inline int64_t tg_craft_old_values(const uint16_t *columns, const int32_t *new_sizes, const int32_t *sizes,
                                          int32_t count, const uint8_t *new_p, const uint8_t **at,
                                          const uint8_t *limit, const uint8_t *new_base, const int32_t *new_ends,
                                          uint8_t *base, size_t *used, int32_t *ends, uint8_t *valid, int *damaged) {
    const uint8_t *p = *at;
    uint8_t *text = base + *used;
    int32_t i;
    for (i = 0; i < count; i++) {
        const int32_t size = sizes[i], new_size = new_sizes[i];
        const int form = TG_CRAFT_FORM(columns[i]);
        int64_t length = TG_CRAFT_NULL;
        if (TG_LIKELY(size >= 0)) {
            if (form == TG_FORM_TEXT || form == TG_FORM_JSON) {
                length = size;
                if (TG_UNLIKELY(tg_copy_high(text, p, (size_t)size, limit)) && !tg_utf8_valid(p, (size_t)size)) {
                    length = TG_CRAFT_UTF8;
                }
            } else if (size == new_size && size <= 32 && limit - p >= 32 && form != TG_FORM_FLOAT &&
                       tg_same_32(p, new_p, (size_t)size)) {
                length = new_ends[i] - new_ends[i - 1];
                tg_copy(text, new_base + new_ends[i - 1], (size_t)length, new_base + new_ends[i - 1] + 32);
            } else {
                length = tg_craft_value(columns[i], p, size, limit, text, damaged);
            }
            if (TG_UNLIKELY(length < TG_CRAFT_NULL)) {
                *at = p;
                return length;
            }
            p += size;
        }
        valid[i] = length >= 0;
        text += length >= 0 ? length : 0;
        ends[i] = (int32_t)(text - base);
        new_p += new_size >= 0 ? new_size : 0;
    }
    *at = p;
    *used = (size_t)(text - base);
    return 0;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* A base-128 varint, least significant group first; dst >= 10 bytes. Returns where it ends. */
static inline uint8_t *tg_put_uvarint(uint8_t *dst, uint64_t value) {
    while (value >= 0x80) {
        *dst++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *dst++ = (uint8_t)value;
    return dst;
}

static inline uint8_t *tg_put_varint(uint8_t *dst, int64_t value) {
    return tg_put_uvarint(dst, (uint64_t)value << 1 ^ (0 - ((uint64_t)value >> 63)));
}

/* A FLOAT is written as the double that equals it. A text that no float reads as, which is what a decoder makes of a
 * FLOAT that TiCDC has damaged, is written as its own double. */
static TG_NOINLINE int64_t tg_craft_real_bytes(int is_float, const uint8_t *p, size_t n, uint8_t *dst) {
    double real, shortest;
    float narrow;
    uint8_t text[400];
    int length;
    text[0] = 0; /* gcc cannot see that it is written before it is read */
    if (tg_parse_double(p, n, &real) < 0) return TG_CRAFT_NUMBER;
    if (is_float && tg_parse_float(p, n, &narrow) == 0) {
        length = tg_format_float(narrow, text);
        if (tg_parse_double(text, (size_t)length, &shortest) == 0 && shortest == real) real = (double)narrow;
    }
    {
        uint64_t raw;
        memcpy(&raw, &real, 8);
        tg_store_le64(raw, dst);
    }
    return 8;
}

/* Writes the bytes of one value that is not NULL from its text; n bytes, or ten, must be there, and 16 behind them.
 * Gives their number, or a TG_CRAFT_ code. */
static TG_ALWAYS_INLINE int64_t tg_craft_bytes(int form, int bits, const uint8_t *p, size_t n, const uint8_t *limit,
                                               uint8_t *dst) {
    uint64_t natural;
    int64_t number, size;
    switch (form) {
        case TG_FORM_UNSIGNED:
            if (TG_UNLIKELY(tg_parse_u64(p, n, &natural) < 0)) return TG_CRAFT_NUMBER;
            if (TG_UNLIKELY(bits < 64 && natural >> bits)) return TG_CRAFT_RANGE;
            return tg_put_uvarint(dst, natural) - dst;
        case TG_FORM_INTEGER:
        case TG_FORM_YEAR:
            if (TG_UNLIKELY(tg_parse_i64(p, n, &number) < 0)) return TG_CRAFT_NUMBER;
            natural = (uint64_t)number << 1 ^ (0 - ((uint64_t)number >> 63));
            if (form == TG_FORM_YEAR) {
                if (number != 0 && (number < 1901 || number > 2155)) return TG_CRAFT_RANGE;
            } else if (TG_UNLIKELY(bits < 64 && natural >> bits)) {
                return TG_CRAFT_RANGE;
            }
            return tg_put_uvarint(dst, natural) - dst;
        case TG_FORM_TEXT:
        case TG_FORM_JSON:
        case TG_FORM_VECTOR:
        case TG_FORM_DECIMAL:
        case TG_FORM_DATE:
        case TG_FORM_DATETIME:
        case TG_FORM_TIME:
            break;
        case TG_FORM_BINARY:
            size = tg_base64_decode(p, n, dst);
            return size < 0 ? TG_CRAFT_BASE64 : size;
        case TG_FORM_FLOAT:
        case TG_FORM_DOUBLE:
            return tg_craft_real_bytes(form == TG_FORM_FLOAT, p, n, dst);
        default:
            return TG_CRAFT_TYPE;
    }
    tg_copy(dst, p, n, limit);
    return (int64_t)n;
}

/* A row's cells in an Arrow list of strings: of cell i the text from ends[i] to ends[i + 1], NULL where bit first + i of
 * `valid` is not set (no bitmap: all are). */
typedef struct {
    const int32_t *ends;
    const uint8_t *valid;
    int64_t first;
    const uint8_t *text;
    const uint8_t *limit;
} tg_cells;

static inline int tg_cell_valid(const tg_cells *cells, int32_t i) {
    int64_t bit = cells->first + i;
    return cells->valid == NULL || (cells->valid[bit >> 3] >> (bit & 7) & 1);
}

/* The bytes of these columns, one behind the other at dst, and the size of each, -1 for NULL. picks: which cells, or NULL
 * for all. Returns the number of bytes, or a TG_CRAFT_ code with *at the cell that it is about. dst needs as many bytes as
 * the texts have, ten for each cell, and 32. */
static inline int64_t tg_craft_row(const uint16_t *columns, const int32_t *picks, int32_t count, const tg_cells *cells,
                                   int32_t *sizes, uint8_t *dst, int32_t *at) {
    uint8_t *began = dst;
    for (int32_t k = 0; k < count; k++) {
        int32_t i = picks == NULL ? k : picks[k];
        int64_t size;
        if (!tg_cell_valid(cells, i)) {
            sizes[k] = -1;
            continue;
        }
        size = tg_craft_bytes(TG_CRAFT_FORM(columns[i]), TG_CRAFT_BITS(columns[i]), cells->text + cells->ends[i],
                              (size_t)(cells->ends[i + 1] - cells->ends[i]), cells->limit, dst);
        if (TG_UNLIKELY(size < 0)) {
            *at = i;
            return size;
        }
        sizes[k] = (int32_t)size;
        dst += size;
    }
    return dst - began;
}

static TG_NOINLINE int64_t tg_craft_cell(uint16_t column, const tg_cells *cells, int32_t i, uint8_t *dst) {
    if (!tg_cell_valid(cells, i)) return TG_CRAFT_NULL;
    return tg_craft_bytes(TG_CRAFT_FORM(column), TG_CRAFT_BITS(column), cells->text + cells->ends[i],
                          (size_t)(cells->ends[i + 1] - cells->ends[i]), cells->limit, dst);
}

/* tg_craft_row for all of an update's old cells. Most are as the new ones, whose bytes and sizes are known. */
static inline int64_t tg_craft_old_row(const uint16_t *columns, int32_t count, const tg_cells *new_cells,
                                       const int32_t *new_sizes, const uint8_t *new_bytes, const tg_cells *old_cells,
                                       int32_t *sizes, uint8_t *dst, int32_t *at) {
    uint8_t *began = dst;
    const int32_t *new_ends = new_cells->ends, *old_ends = old_cells->ends;
    int32_t i = 0;
    while (i < count) {
        size_t new_left = (size_t)(new_ends[count] - new_ends[i]), old_left = (size_t)(old_ends[count] - old_ends[i]);
        size_t same = tg_common_prefix(new_cells->text + new_ends[i], old_cells->text + old_ends[i],
                                       new_left < old_left ? new_left : old_left);
        size_t passed = 0, bytes = 0;
        int64_t size;
        for (; i < count; i++) {
            int32_t length = old_ends[i + 1] - old_ends[i];
            if (new_ends[i + 1] - new_ends[i] != length || passed + (size_t)length > same ||
                tg_cell_valid(new_cells, i) != tg_cell_valid(old_cells, i)) {
                break;
            }
            passed += (size_t)length;
            sizes[i] = new_sizes[i];
            bytes += (size_t)(new_sizes[i] > 0 ? new_sizes[i] : 0);
        }
        memcpy(dst, new_bytes, bytes);
        dst += bytes;
        new_bytes += bytes;
        if (i == count) break;
        size = tg_craft_cell(columns[i], old_cells, i, dst);
        if (size < TG_CRAFT_NULL) {
            *at = i;
            return size;
        }
        sizes[i] = (int32_t)size;
        dst += size > 0 ? size : 0;
        new_bytes += new_sizes[i] > 0 ? new_sizes[i] : 0;
        i++;
    }
    return dst - began;
}

/* The lengths of values as zigzag varints; dst >= 5 * count bytes. Returns where they end. */
static inline uint8_t *tg_craft_put_sizes(uint8_t *dst, const int32_t *sizes, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        if (TG_LIKELY(sizes[i] < 64)) {
            *dst++ = sizes[i] < 0 ? 1 : (uint8_t)(sizes[i] << 1);
        } else {
            dst = tg_put_uvarint(dst, (uint64_t)sizes[i] << 1);
        }
    }
    return dst;
}

#endif
