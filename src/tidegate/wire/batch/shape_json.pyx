"""The JSON of a shape, as the `schema` rows of a change batch have it (docs/batch.md)."""

from libc.stdint cimport int32_t
from libc.string cimport memcpy

from tidegate.model.types import type_name

from tidegate.wire.batch.builder cimport Shape, ShapeColumn
from tidegate.wire.kernel.buffer cimport Buffer, buffer_add, buffer_reserve
from tidegate.wire.kernel.cursor cimport Span
from tidegate.wire.kernel.jsonwrite cimport STYLE_PLAIN, json_put_string, put_i64, tg_copy_writable_run


cdef Span _type_members[256][4]
cdef Span _flag_members[256]
_kept_alive = []


def _fill_type_members() -> None:
    """`,"type":"bigint","code":8` by code and by the flag bits that matter, BINARY and UNSIGNED; and
    `,"flags":65` by flags."""
    cdef int code, variant
    cdef bytes text
    for code in range(256):
        for variant in range(4):
            name = type_name(code, (variant & 1) | (128 if variant & 2 else 0))
            text = b',"type":"%b","code":%d' % (name.encode(), code)
            _kept_alive.append(text)
            _type_members[code][variant].p = text
            _type_members[code][variant].n = len(text)
        text = b',"flags":%d' % code
        _kept_alive.append(text)
        _flag_members[code].p = text
        _flag_members[code].n = len(text)


_fill_type_members()


cdef inline void _put_known(Buffer *b, const void *text, size_t n) noexcept nogil:
    """Bytes for which there is room."""
    memcpy(b.data + b.used, text, n)
    b.used += n


cdef inline int _put_text(Buffer *b, const Span *text) noexcept nogil:
    """A text of a shape, behind which 16 bytes may be read, as a JSON string; and room for 128 bytes."""
    cdef size_t run
    if buffer_reserve(b, text.n + 160) < 0:
        return -1
    b.data[b.used] = c'"'
    run = tg_copy_writable_run(text.p, text.p + text.n, text.p + text.n + 16, b.data + b.used + 1)
    if run == text.n:
        b.data[b.used + 1 + run] = c'"'
        b.used += run + 2
        return 0
    if json_put_string(b, text.p, text.n, text.p + text.n, STYLE_PLAIN) < 0:
        return -1
    return buffer_reserve(b, 128)


cdef int write_shape(Buffer *b, const Shape *shape) noexcept nogil:
    """The JSON of a shape's schema event."""
    cdef int32_t i
    cdef ShapeColumn *column
    cdef Span *member
    if buffer_add(b, b'{"columns":[', 12) < 0:
        return -1
    for i in range(shape.count):
        column = &shape.columns[i]
        if buffer_reserve(b, 128) < 0:
            return -1
        if i:
            _put_known(b, b',', 1)
        _put_known(b, b'{"name":', 8)
        if _put_text(b, &column.name) < 0:
            return -1
        if column.type.n:
            _put_known(b, b',"type":', 8)
            if _put_text(b, &column.type) < 0:
                return -1
            if column.code >= 0:
                _put_known(b, b',"code":', 8)
                put_i64(b, column.code)
        elif column.code >= 0:
            member = &_type_members[column.code & 255][
                0 if column.flags < 0 else (column.flags & 1) | ((column.flags >> 6) & 2)
            ]
            _put_known(b, member.p, member.n)
        if 0 <= column.flags < 256:
            _put_known(b, _flag_members[column.flags].p, _flag_members[column.flags].n)
        elif column.flags >= 0:
            _put_known(b, b',"flags":', 9)
            put_i64(b, column.flags)
        if column.key:
            _put_known(b, b',"key":true', 11)
        if column.zone.n:
            _put_known(b, b',"zone":', 8)
            if _put_text(b, &column.zone) < 0:
                return -1
        _put_known(b, b'}', 1)
    return buffer_add(b, b']}', 2)
