"""What the two encoders of the Simple protocol share: which message each row becomes, how large it
may be, and how the rows of a shape are planned.

Authority: TiCDC's Simple document and docs/protocols/simple.md. A row keeps its schema version; one
from another protocol gets the id of its shape, and that shape's schema row becomes a BOOTSTRAP.
"""

from cpython.object cimport PyObject

import json

from tidegate.model import ConfigError, EncodeError, SchemaNotSeen
from tidegate.wire.kernel.claim_check import pack
from tidegate.wire.simple.schema import ddl_word, needs_bootstrap, schema_of_shape, table_schemas

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

RECORD_OVERHEAD = 36
"""What TiCDC adds to a message's size for Kafka's own record framing."""


cdef inline bint _is(const Span *text, bytes expected) noexcept:
    return text.n == <size_t>len(expected) and \
        memcmp(text.p, <const char *>expected, text.n) == 0


cdef str _text(const Span *text):
    return "" if text.p == NULL else (<const char *>text.p)[:text.n].decode()


cdef class SimpleEncoder:

    def __init__(self, options, compress):
        self.options = options
        self.compress = compress
        self.plans = {}
        self.most = options.max_message_bytes - RECORD_OVERHEAD
        if options.large_message_handle == "claim-check" and options.claim_check is None:
            raise ConfigError("claim_check", "claim checks need a place to keep the messages")

    def encode(self, BatchReader reader, shapes, MessageBuilder messages):
        """Writes the rows of the batch as messages, one each, in order."""
        cdef Py_ssize_t row
        cdef int kind
        versions = reader.batch.column("checksum").flatten()[0]
        self.checksum_versions = \
            <const int32_t *><size_t>versions.buffers()[1].address + <Py_ssize_t>versions.offset
        self.reader = reader
        self.shapes = shapes
        self.messages = messages
        for row in range(reader.count):
            kind = reader.kinds[row]
            if kind == KIND_INSERT or kind == KIND_UPDATE or kind == KIND_DELETE:
                self._row(row, kind)
            elif kind == KIND_WATERMARK:
                self._add(row, self.watermark(self.commit_ts(row)))
            elif kind == KIND_DDL:
                self._add(row, self._ddl(row))
            elif kind == KIND_SCHEMA:
                message = self._bootstrap(row)
                if message is not None:
                    self._add(row, message)
            else:
                raise EncodeError("simple", f"row {row} is a message that could not be decoded")

    cdef SimplePlan new_plan(self, object shape, int64_t version, str database, str table):
        raise NotImplementedError

    cdef int write_row(self, SimplePlan plan, Py_ssize_t row, int kind, const Span *location,
                       bint keys_only, bint says_keys_only) except -1:
        raise NotImplementedError

    cdef bytes watermark(self, int64_t commit_ts):
        raise NotImplementedError

    cdef bytes ddl(self, str word, str query, int64_t commit_ts, dict schemas):
        raise NotImplementedError

    cdef bytes bootstrap(self, dict schema):
        raise NotImplementedError

    cdef int64_t commit_ts(self, Py_ssize_t row) except? -1:
        cdef int64_t commit_ts = 0
        if not long_at(&self.reader.commit_ts, row, &commit_ts):
            raise EncodeError("simple", f"row {row} has no commit_ts")
        return commit_ts

    # Rows

    cdef int _row(self, Py_ssize_t row, int kind) except -1:
        cdef SimplePlan plan = self._plan(row)
        cdef size_t began = self.messages.value.used
        cdef bint says_keys_only = self.reader.flags[row] & FLAG_HANDLE_KEY_ONLY != 0
        cdef Span location
        string_at(&self.reader.claim_check, row, &location)
        self.write_row(plan, row, kind, &location, False, says_keys_only)
        if <int64_t>self._compressed(began) > self.most:
            self._shorten(plan, row, kind, began)
        return self.messages.end(False, <int32_t>row, 1)

    cdef SimplePlan _plan(self, Py_ssize_t row):
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
            if plan.shape == shape and plan.has_version == has_version and \
                    plan.version == version and \
                    _is(&database, plan.database) and _is(&table, plan.table):
                self._check_counts(plan, row)
                return plan
        key = (shape, version if has_version else None)
        names = (_text(&database), _text(&table))
        plan = self.plans.get((key, names))
        if plan is None:
            known = self.shapes.shape(*key)
            if known is None:
                raise SchemaNotSeen(*names, version=key[1], shape=shape)
            plan = self.new_plan(known, version if has_version else shape, names[0], names[1])
            plan.shape = shape
            plan.has_version = has_version
            plan.version = version
            plan.database, plan.table = (name.encode() for name in names)
            plan.count = len(known.columns)
            plan.has_key = bool(known.keys)
            self.plans[key, names] = plan
        self.cached[slot] = <PyObject *>plan
        self._check_counts(plan, row)
        return plan

    cdef int _check_counts(self, SimplePlan plan, Py_ssize_t row) except -1:
        """The kind of the row and its values fit together."""
        cdef int kind = self.reader.kinds[row]
        cdef bint after = view_has(&self.reader.after, row)
        cdef bint before = view_has(&self.reader.before, row)
        if (kind != KIND_DELETE and not after) or (kind == KIND_DELETE and not before) or \
                (after and view_count(&self.reader.after, row) != plan.count) or \
                (before and view_count(&self.reader.before, row) != plan.count):
            raise EncodeError("simple", f"row {row} does not have a value for each column",
                              database=plan.database.decode(), table=plan.table.decode())
        return 0

    cdef size_t _compressed(self, size_t began) except? 0:
        """Compresses what stands in the value since `began`; gives its size."""
        cdef Buffer *b = &self.messages.value
        if self.compress is not None:
            small = self.compress((<const char *>b.data + began)[:b.used - began])
            b.used = began
            if buffer_add(b, <const uint8_t *><const char *>small, len(small)) < 0:
                raise MemoryError
        return b.used - began

    cdef int _shorten(self, SimplePlan plan, Py_ssize_t row, int kind, size_t began) except -1:
        """Writes a row that is too large once more, with its handle key only."""
        cdef Buffer *b = &self.messages.value
        cdef Span location
        location.p = NULL
        location.n = 0
        handle = self.options.large_message_handle
        if handle is None:
            raise self._too_large(b.used - began, plan)
        if not plan.has_key:
            raise EncodeError("simple", "the row is too large, and its table has no handle key",
                              database=plan.database.decode(), table=plan.table.decode())
        if handle == "claim-check":
            value = (<const char *>b.data + began)[:b.used - began]
            content = value if self.options.claim_check_raw_value else pack(None, value)
            kept = self.options.claim_check(content).encode()
            location.p = <const uint8_t *><const char *>kept
            location.n = len(kept)
        b.used = began
        self.write_row(plan, row, kind, &location, True, True)
        if <int64_t>self._compressed(began) > self.most:
            raise self._too_large(b.used - began, plan)
        return 0

    def _too_large(self, size, SimplePlan plan=None):
        most = self.options.max_message_bytes
        return EncodeError(
            "simple",
            f"the message has {size} bytes, over max-message-bytes {most}",
            database=None if plan is None else plan.database.decode(),
            table=None if plan is None else plan.table.decode(),
        )

    # Other events

    cdef int _add(self, Py_ssize_t row, bytes value) except -1:
        cdef size_t began = self.messages.value.used
        if buffer_add(&self.messages.value, <const uint8_t *><const char *>value, len(value)) < 0:
            raise MemoryError
        if <int64_t>self._compressed(began) > self.most:
            raise self._too_large(self.messages.value.used - began)
        return self.messages.end(False, <int32_t>row, 1)

    cdef bytes _ddl(self, Py_ssize_t row):
        ddl = self.reader.batch.column("ddl")[row].as_py() or {}
        query = ddl.get("query") or ""
        word = ddl_word(ddl.get("type"), ddl.get("code"), query, self.options.generation)
        schemas = table_schemas(self.reader.batch.column("schema")[row].as_py())
        return self.ddl(word, query, self.commit_ts(row), schemas)

    cdef bytes _bootstrap(self, Py_ssize_t row):
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
