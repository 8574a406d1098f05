"""Old rows of updates without what did not change: most of an update's `before` repeats `after`.

A column that `before` does not carry has the value of `after`, as where TiCDC itself sends changed
columns only. `before_missing` says which those are (docs/batch.md), so nothing is lost.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memcmp, memcpy, memset

import pyarrow as pa


cdef struct Strings:
    const uint8_t *bytes
    const int32_t *ends     # of a slice: those of its first string and on
    const uint8_t *valid    # NULL: all are
    Py_ssize_t offset


cdef struct Lists:
    const int32_t *ends
    const uint8_t *valid
    Py_ssize_t offset
    Strings values


cdef struct Rows:               # what is written: buffers with room for all that is read
    int32_t *ends
    uint8_t *valid
    int32_t *cell_ends
    uint8_t *cell_valid
    uint8_t *bytes
    int32_t *missing_ends
    uint8_t *missing_valid
    uint8_t *missing
    Py_ssize_t nulls
    Py_ssize_t cell_nulls
    Py_ssize_t missing_nulls
    bint changed


cdef inline bint is_set(const uint8_t *bits, Py_ssize_t place) noexcept nogil:
    return bits == NULL or bits[place >> 3] >> (place & 7) & 1


cdef inline void put(uint8_t *bits, Py_ssize_t place) noexcept nogil:
    bits[place >> 3] |= <uint8_t>(1 << (place & 7))


cdef inline bint same(
    const Strings *left, Py_ssize_t i, const Strings *right, Py_ssize_t j
) noexcept nogil:
    """Whether two strings are the same; NULL is the same as NULL."""
    cdef bint is_there = is_set(left.valid, left.offset + i)
    cdef int32_t size
    if is_there != is_set(right.valid, right.offset + j):
        return False
    if not is_there:
        return True
    size = left.ends[i + 1] - left.ends[i]
    return size == right.ends[j + 1] - right.ends[j] and (
        memcmp(left.bytes + left.ends[i], right.bytes + right.ends[j], <size_t>size) == 0
    )


cdef void omit(
    const Lists *old, const Lists *new, const Strings *missing, Py_ssize_t count, Rows *out
) noexcept nogil:
    cdef Py_ssize_t row, place, width, cell, at
    cdef Py_ssize_t cells = 0
    cdef int32_t size, used = 0
    cdef int32_t bits = 0        # bytes of bitmaps so far
    cdef int32_t length          # bytes of this row's bitmap
    cdef bint is_update, has_bits
    out.ends[0] = out.cell_ends[0] = out.missing_ends[0] = 0
    for row in range(count):
        length = 0
        has_bits = is_set(missing.valid, missing.offset + row)
        if has_bits:
            length = missing.ends[row + 1] - missing.ends[row]
            memcpy(out.missing + bits, missing.bytes + missing.ends[row], <size_t>length)
        if is_set(old.valid, old.offset + row):
            put(out.valid, row)
            cell = old.ends[row]
            width = old.ends[row + 1] - cell
            at = new.ends[row]
            is_update = is_set(new.valid, new.offset + row) and new.ends[row + 1] - at == width
            if is_update and length < (width + 7) >> 3:
                memset(out.missing + bits + length, 0, <size_t>(((width + 7) >> 3) - length))
                length = <int32_t>((width + 7) >> 3)
            for place in range(width):
                if is_update and same(&old.values, cell + place, &new.values, at + place):
                    put(out.missing + bits, place)
                    has_bits = out.changed = True
                    out.cell_nulls += 1
                elif is_set(old.values.valid, old.values.offset + cell + place):
                    size = old.values.ends[cell + place + 1] - old.values.ends[cell + place]
                    memcpy(
                        out.bytes + used, old.values.bytes + old.values.ends[cell + place],
                        <size_t>size,
                    )
                    used += size
                    put(out.cell_valid, cells)
                else:
                    out.cell_nulls += 1
                cells += 1
                out.cell_ends[cells] = used
        else:
            out.nulls += 1
        if has_bits:
            bits += length
            put(out.missing_valid, row)
        else:
            out.missing_nulls += 1
        out.ends[row + 1] = <int32_t>cells
        out.missing_ends[row + 1] = bits


cdef const uint8_t *address(object buffer):
    return NULL if buffer is None else <const uint8_t *><size_t>buffer.address


cdef void strings_of(object array, Strings *out):
    buffers = array.buffers()
    out.offset = array.offset
    out.valid = address(buffers[0])
    out.ends = <const int32_t *>address(buffers[1]) + out.offset
    out.bytes = address(buffers[2])


cdef void lists_of(object array, Lists *out):
    buffers = array.buffers()
    out.offset = array.offset
    out.valid = address(buffers[0])
    out.ends = <const int32_t *>address(buffers[1]) + out.offset
    strings_of(array.values, &out.values)


cdef object bits_for(Py_ssize_t count):
    buffer = pa.allocate_buffer((count + 7) >> 3)
    memset(<uint8_t *>address(buffer), 0, <size_t>((count + 7) >> 3))
    return buffer


def omit_unchanged(batch):
    """The change batch, where `before` of an update has only what differs from `after`.

    The other columns are NULL there and marked in `before_missing`.
    """
    cdef Lists old, new
    cdef Strings missing
    cdef Rows out
    cdef Py_ssize_t count = batch.num_rows
    cdef Py_ssize_t cells, size
    before, after, unknown = (batch.column(name) for name in ("before", "after", "before_missing"))
    if before.null_count == count or after.null_count == count:
        return batch
    if before.type != pa.list_(pa.string()) or unknown.type != pa.binary():
        raise TypeError(f"a change batch is read, not {before.type} and {unknown.type}")
    lists_of(before, &old)
    lists_of(after, &new)
    strings_of(unknown, &missing)
    cells = old.ends[count] - old.ends[0]
    size = old.values.ends[old.ends[count]] - old.values.ends[old.ends[0]]
    valid, cell_valid, missing_valid = bits_for(count), bits_for(cells), bits_for(count)
    ends, cell_ends, missing_ends = (pa.allocate_buffer(4 * (n + 1)) for n in (count, cells, count))
    text = pa.allocate_buffer(size, resizable=True)
    # A bitmap has a byte for eight cells or a part of them, or it is there already.
    most = (cells >> 3) + count + missing.ends[count] - missing.ends[0]
    bitmaps = pa.allocate_buffer(most, resizable=True)
    memset(&out, 0, sizeof(out))
    out.ends, out.valid = <int32_t *>address(ends), <uint8_t *>address(valid)
    out.cell_ends, out.cell_valid = <int32_t *>address(cell_ends), <uint8_t *>address(cell_valid)
    out.bytes = <uint8_t *>address(text)
    out.missing_ends = <int32_t *>address(missing_ends)
    out.missing_valid, out.missing = <uint8_t *>address(missing_valid), <uint8_t *>address(bitmaps)
    with nogil:
        omit(&old, &new, &missing, count, &out)
    if not out.changed:
        return batch
    text.resize(out.cell_ends[out.ends[count]], shrink_to_fit=True)
    bitmaps.resize(out.missing_ends[count], shrink_to_fit=True)
    values = pa.Array.from_buffers(
        pa.string(), out.ends[count], [cell_valid, cell_ends, text], out.cell_nulls
    )
    columns = {
        "before": pa.Array.from_buffers(
            before.type, count, [valid, ends], out.nulls, children=[values]
        ),
        "before_missing": pa.Array.from_buffers(
            pa.binary(), count, [missing_valid, missing_ends, bitmaps], out.missing_nulls
        ),
    }
    return pa.RecordBatch.from_arrays(
        [columns.get(name, batch.column(place)) for place, name in enumerate(batch.schema.names)],
        schema=batch.schema,
    )
