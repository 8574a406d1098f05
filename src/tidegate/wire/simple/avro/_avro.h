/* Avro's numbers, and walking through its maps quickly, where there is room to read ahead.
 *
 * Contract: every function that reads does so from p on, up to TG_AVRO_AHEAD bytes; the caller
 * makes sure that they are below the end of the memory that may be read, and checks afterwards that
 * what was read lies within the message. Authority: the Apache Avro specification, "Binary
 * encoding". */
#ifndef TIDEGATE_AVRO_H
#define TIDEGATE_AVRO_H

#include "_text.h"

#define TG_AVRO_AHEAD 96

/* The base-128 varint at p, not yet unzigzagged; returns its length, 0 if it has over 64 bits. */
static inline size_t tg_varint_at(const uint8_t *p, uint64_t *out) {
    const uint64_t high = 0x8080808080808080u;
    uint64_t word = tg_load_le64(p);
    uint64_t stop = ~word & high;
    size_t n = 8;
    /* all bits up to that of the last byte; all bits if there is none yet */
    if (stop) {
        n = ((size_t)tg_ctz64(stop) >> 3) + 1;
        word &= stop ^ (stop - 1);
    }
    word &= ~high;
    word = (word & 0x7f007f007f007f00u) >> 1 | (word & 0x007f007f007f007fu);
    word = (word & 0x3fff00003fff0000u) >> 2 | (word & 0x00003fff00003fffu);
    word = (word & 0x0fffffff00000000u) >> 4 | (word & 0x000000000fffffffu);
    if (!stop) {
        word |= (uint64_t)(p[8] & 0x7f) << 56;
        n = 9;
        if (p[8] >= 0x80) {
            if (p[9] > 1) return 0;
            word |= (uint64_t)p[9] << 63;
            n = 10;
        }
    }
    *out = word;
    return n;
}

/* Writes the value as a base-128 varint; returns where it ends. dst >= 16 bytes. */
static inline uint8_t *tg_put_varint(uint8_t *dst, uint64_t value) {
    uint64_t word = value;
    int n;
    if (value < 0x80) {
        *dst = (uint8_t)value;
        return dst + 1;
    }
    if (value >> 56) {
        for (; value >= 0x80; value >>= 7) *dst++ = (uint8_t)(value | 0x80);
        *dst = (uint8_t)value;
        return dst + 1;
    }
    word = (word & 0x00fffffff0000000u) << 4 | (word & 0x000000000fffffffu);
    word = (word & 0x0fffc0000fffc000u) << 2 | (word & 0x00003fff00003fffu);
    word = (word & 0x3f803f803f803f80u) << 1 | (word & 0x007f007f007f007fu);
    /* n bytes have 7 * n bits; all of them but the last are continued. */
    n = (70 - tg_clz64(value)) / 7;
    word |= 0x8080808080808080u & (((uint64_t)1 << (8 * n - 8)) - 1);
    tg_store_le64(word, dst);
    return dst + n;
}

/* What tells a map's names apart: their length, first and last eight bytes; n < 64. */
static inline uint64_t tg_name_word(const uint8_t *p, size_t n) {
    static const uint64_t masks[9] = {0, 0xff, 0xffff, 0xffffff, 0xffffffff, 0xffffffffff,
                                      0xffffffffffff, 0xffffffffffffff, 0xffffffffffffffff};
    size_t some = n < 8 ? n : 8;
    uint64_t first = tg_load_le64(p) & masks[some];
    uint64_t last = tg_load_le64(p + (n - some)) & masks[some];
    return (first ^ (last << 23 | last >> 41)) + n;
}

/* The size of a row's value behind its union index `kind` (zigzag: 0, 2, to 14). There is no branch
 * on the kind or the value: the entries of a map come in random order, and none could be predicted.
 * `zone` is the size of the location that a Timestamp is expected to have. The result means nothing
 * if the value is not well-formed, or has a length of 2**28 or more: whoever reads it will see. */
static inline size_t tg_value_size(const uint8_t *p, unsigned kind, size_t zone) {
    const uint64_t high = 0x8080808080808080u;
#define TG_ALL (~(uint64_t)0)
    /* null, long, float, double, string, bytes, Timestamp, UnsignedBigint */
    static const struct {
        uint64_t fixed, prefixed, counted, zoned;
    } parts[8] = {{0, 0, 0, 0},
                  {0, TG_ALL, 0, 0},
                  {4, 0, 0, 0},
                  {8, 0, 0, 0},
                  {0, TG_ALL, TG_ALL, 0},
                  {0, TG_ALL, TG_ALL, 0},
                  {0, TG_ALL, TG_ALL, TG_ALL},
                  {0, TG_ALL, 0, 0}};
#undef TG_ALL
    uint64_t word, stop, later, length;
    size_t size;
    kind >>= 1;
    zone &= parts[kind].zoned;
    p += zone;
    word = tg_load_le64(p);
    stop = ~word & high;
    later = (~tg_load_le64(p + 8) & high) | (uint64_t)1 << 63;
    size = stop ? (size_t)tg_ctz64(stop) : 64 + (size_t)tg_ctz64(later);
    size = (size >> 3) + 1;
    word &= stop ^ (stop - 1);
    length = (word & 0x7f) | (word >> 1 & 0x3f80);
    length |= (word >> 2 & 0x1fc000) | (word >> 3 & 0xfe00000);
    return zone + parts[kind].fixed + (size & parts[kind].prefixed) +
           (length >> 1 & parts[kind].counted);
}

#endif
