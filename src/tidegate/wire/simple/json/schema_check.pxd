"""The check of table schemas: see schema_check.pyx."""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.simple.json.decode cimport SchemaFacts

cdef int read_schema(Cursor *c, Buffer *scratch, SchemaFacts *out) noexcept nogil
