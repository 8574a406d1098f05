"""What the two encoders of the Simple protocol share: which message each row becomes, how large it
may be, and how the rows of a shape are planned.

Authority: TiCDC's Simple document and docs/protocols/simple.md. A row keeps its schema version; one
from another protocol gets the id of its shape, and that shape's schema row becomes a BOOTSTRAP.
"""

from cpython.object cimport PyObject

import json

from tidegate.model import EncodeError, SchemaNotSeen
from tidegate.wire.simple.schema import ddl_word, needs_bootstrap, schema_of_shape, table_schemas

from tidegate.wire.codec.encoder cimport RECORD_OVERHEAD, MessageEncoder
from tidegate.wire.codec.prelude cimport *

OPTIONS = frozenset(
    {
        "generation",
        "encoding_format",
        "compression",
        "large_message_handle",
        "claim_check",
        "claim_check_raw_value",
    }
)

cdef inline bint _is(const Span *text, bytes expected) noexcept:
    return text.n == <size_t>len(expected) and \
        memcmp(text.p, <const char *>expected, text.n) == 0


cdef str _text(const Span *text):
    return "" if text.p == NULL else (<const char *>text.p)[:text.n].decode()


cdef class SimplePlan(RowPlan):
    def refusal(self, reason, place=None):
        """As RowPlan.refusal, with the names of the rows."""
        return EncodeError(
            "simple",
            reason,
            database=self.database.decode(),
            table=self.table.decode(),
            field=None if place is None else self.shape.columns[place].name,
        )


cdef class SimpleEncoder(MessageEncoder):
    def __init__(self, options, compress=None):
        MessageEncoder.__init__(self, options, compress)
        self.protocol = "simple"

    cdef int begin(self) except -1:
        versions = self.reader.batch.column("checksum").flatten()[0]
        self.checksum_versions = \
            <const int32_t *><size_t>versions.buffers()[1].address + <Py_ssize_t>versions.offset
        return 0

    cdef int add_watermark(self, int64_t row) except -1:
        return self._add(row, self.watermark(self.commit_ts(row)))

    cdef int add_ddl(self, int64_t row) except -1:
        return self._add(row, self._ddl(row))

    cdef int add_schema(self, int64_t row) except -1:
        message = self._bootstrap(row)
        return 0 if message is None else self._add(row, message)

    cdef SimplePlan row_plan(self, object shape, int64_t version, str database, str table):
        raise NotImplementedError

    cdef int write_row(self, SimplePlan plan, int64_t row, int kind, const Span *location,
                       bint keys_only, bint says_keys_only) except -1:
        raise NotImplementedError

    cdef bytes watermark(self, int64_t commit_ts):
        raise NotImplementedError

    cdef bytes ddl(self, str word, str query, int64_t commit_ts, dict schemas):
        raise NotImplementedError

    cdef bytes bootstrap(self, dict schema):
        raise NotImplementedError

    # Rows

    cdef int add_row(self, int64_t row, int kind) except -1:
        cdef SimplePlan plan = self._plan(row)
        cdef size_t start = self.messages.value.used
        cdef bint says_keys_only = self.reader.flags[row] & FLAG_HANDLE_KEY_ONLY != 0
        cdef Span location
        string_at(&self.reader.claim_check, row, &location)
        self.write_row(plan, row, kind, &location, False, says_keys_only)
        self.compress_value(start)
        if self.messages.value.used - start + RECORD_OVERHEAD > self.max_bytes:
            self._shorten(plan, row, kind, start)
        return self.messages.end(False, <int32_t>row, 1)

    cdef SimplePlan _plan(self, int64_t row):
        """The plan for this row's shape, version and names."""
        cdef int64_t shape = 0, version = 0
        cdef bint has_version = long_at(&self.reader.schema_version, row, &version)
        cdef Span database, table
        cdef size_t slot
        cdef SimplePlan plan
        string_at(&self.reader.database, row, &database)
        string_at(&self.reader.table, row, &table)
        if not long_at(&self.reader.shape, row, &shape):
            raise SchemaNotSeen(_text(&database), _text(&table))
        slot = <size_t>(shape ^ (version * 31)) % CACHED_PLANS
        if self.cached[slot] != NULL:
            plan = <SimplePlan>self.cached[slot]
            if plan.shape_id == shape and plan.has_version == has_version and \
                    plan.version == version and \
                    _is(&database, plan.database) and _is(&table, plan.table):
                self.check_row(plan, row, self.reader.kinds[row])
                return plan
        key = (shape, version if has_version else None)
        names = (_text(&database), _text(&table))
        plan = self.plans.get((key, names))
        if plan is None:
            known = self.shapes.shape(*key)
            if known is None:
                raise SchemaNotSeen(*names, version=key[1], shape=shape)
            plan = self.row_plan(known, version if has_version else shape, names[0], names[1])
            plan.shape = known
            plan.shape_id = shape
            plan.has_version = has_version
            plan.version = version
            plan.database, plan.table = (name.encode() for name in names)
            plan.count = len(known.columns)
            plan.has_key = bool(known.keys)
            self.plans[key, names] = plan
        self.cached[slot] = <PyObject *>plan
        self.check_row(plan, row, self.reader.kinds[row])
        return plan

    cdef int _shorten(self, SimplePlan plan, int64_t row, int kind, size_t start) except -1:
        """Writes a row that is too large once more, with its handle key only."""
        cdef Buffer *b = &self.messages.value
        cdef Span location
        cdef bytes kept
        location.p = NULL
        location.n = 0
        handle = self.options.large_message_handle
        if handle is None:
            raise self.too_large(plan, b.used - start + RECORD_OVERHEAD)
        if not plan.has_key:
            raise plan.refusal("the row is too large, and its table has no handle key")
        if handle == "claim-check":
            kept = self.keep_elsewhere(None, (<const char *>b.data)[start:b.used])
            location.p = <const uint8_t *><const char *>kept
            location.n = len(kept)
        b.used = start
        self.write_row(plan, row, kind, &location, True, True)
        self.compress_value(start)
        if b.used - start + RECORD_OVERHEAD > self.max_bytes:
            raise self.too_large(plan, b.used - start + RECORD_OVERHEAD)
        return 0

    # Other events

    cdef int _add(self, int64_t row, bytes value) except -1:
        cdef Buffer *b = &self.messages.value
        cdef size_t start = b.used
        if buffer_add(b, <const uint8_t *><const char *>value, len(value)) < 0:
            raise MemoryError
        self.compress_value(start)
        if b.used - start + RECORD_OVERHEAD > self.max_bytes:
            raise self.too_large(None, b.used - start + RECORD_OVERHEAD)
        return self.messages.end(False, <int32_t>row, 1)

    cdef bytes _ddl(self, int64_t row):
        ddl = self.reader.batch.column("ddl")[row].as_py() or {}
        query = ddl.get("query") or ""
        word = ddl_word(ddl.get("type"), ddl.get("code"), query, self.options.generation)
        schemas = table_schemas(self.reader.batch.column("schema")[row].as_py())
        return self.ddl(word, query, self.commit_ts(row), schemas)

    cdef bytes _bootstrap(self, int64_t row):
        """The message of a schema row. Shapes of Simple's own rows have none: their schemas come
        apart."""
        cdef int64_t shape = 0
        text = self.reader.batch.column("schema")[row].as_py()
        if long_at(&self.reader.shape, row, &shape):
            columns = json.loads(text)["columns"]
            if not needs_bootstrap(columns):
                return None
            return self.bootstrap(schema_of_shape(self.shapes.shape(shape), columns, shape))
        schema = table_schemas(text).get("tableSchema")
        if schema is None:
            raise EncodeError("simple", f"the schema row {row} has no tableSchema")
        return self.bootstrap(schema)
