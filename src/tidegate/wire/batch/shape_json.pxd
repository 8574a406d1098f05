"""The JSON of a shape: see shape_json.pyx."""

from tidegate.wire.batch.builder cimport Shape
from tidegate.wire.kernel.buffer cimport Buffer

cdef int write_shape(Buffer *b, const Shape *shape) noexcept nogil
