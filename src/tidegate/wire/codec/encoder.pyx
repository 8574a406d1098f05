"""What the encoders of all protocols share: the loop over a batch, plans by shape, checks, sizes.

A row that cannot be written raises EncodeError with the protocol, the table and the column.
"""

from libc.stdint cimport int64_t, uint8_t

from tidegate.model import ConfigError, EncodeError, SchemaNotSeen
from tidegate.wire.kernel.claim_check import pack

from tidegate.wire.batch.builder cimport (
    KIND_DDL,
    KIND_DELETE,
    KIND_SCHEMA,
    KIND_WATERMARK,
)
from tidegate.wire.batch.reader cimport (
    StringsView,
    long_at,
    string_at,
    view_count,
    view_has,
)
from tidegate.wire.kernel.buffer cimport buffer_add
from tidegate.wire.kernel.cursor cimport Span


cdef str _string_at(const StringsView *view, int64_t row):
    """The string, empty for null."""
    cdef Span text
    return (<const char *>text.p)[:text.n].decode() if string_at(view, row, &text) else ""


cdef class RowPlan:
    def refusal(self, reason, place=None):
        """The error that says why a row of this shape, or a column of it, cannot be written."""
        return EncodeError(
            self.protocol,
            reason,
            database=self.shape.database,
            table=self.shape.table,
            field=None if place is None else self.shape.columns[place].name,
        )


cdef class MessageEncoder:
    """Encodes change batches; what a message looks like is up to who extends this."""

    def __init__(self, options, compress=None):
        if options.large_message_handle == "claim-check" and options.claim_check is None:
            raise ConfigError(
                "claim_check", "large-message-handle=claim-check needs a place to store objects"
            )
        self.options = options
        self.compress = compress
        self.plans = {}
        self.max_bytes = max(options.max_message_bytes, 0)
        self.max_events = max(options.max_batch_size, 1)

    def encode(self, BatchReader reader not None, shapes, MessageBuilder messages not None):
        """Writes the batch's rows in order."""
        cdef int64_t row
        cdef int kind
        self.reader = reader
        self.shapes = shapes
        self.messages = messages
        self.begin()
        for row in range(reader.count):
            kind = reader.kinds[row]
            if kind <= KIND_DELETE:
                self.add_row(row, kind)
            elif kind == KIND_DDL:
                self.add_ddl(row)
            elif kind == KIND_WATERMARK:
                self.add_watermark(row)
            elif kind == KIND_SCHEMA:
                self.add_schema(row)
            else:
                raise EncodeError(
                    self.protocol, f"row {row} of the batch is a message that could not be read"
                )
        self.finish()

    cdef RowPlan new_plan(self, object shape):
        raise NotImplementedError

    cdef int begin(self) except -1:
        return 0

    cdef int add_row(self, int64_t row, int kind) except -1:
        raise NotImplementedError

    cdef int add_ddl(self, int64_t row) except -1:
        raise NotImplementedError

    cdef int add_watermark(self, int64_t row) except -1:
        """A protocol without watermarks leaves them out."""
        return 0

    cdef int add_schema(self, int64_t row) except -1:
        """Most protocols carry the columns with each row."""
        return 0

    cdef int finish(self) except -1:
        return 0

    cdef RowPlan plan_of(self, int64_t row):
        """The plan for the shape of this row."""
        cdef int64_t shape = 0, version = -1
        if not long_at(&self.reader.shape, row, &shape):
            raise EncodeError(self.protocol, f"row {row} of the batch has no shape")
        if not long_at(&self.reader.schema_version, row, &version):
            version = -1
        if self.last_plan is not None and shape == self.last_shape and version == self.last_version:
            return self.last_plan
        key = (shape, None if version < 0 else version)
        plan = self.plans.get(key)
        if plan is None:
            known = self.shapes.shape(*key)
            if known is None:
                raise SchemaNotSeen(
                    _string_at(&self.reader.database, row),
                    _string_at(&self.reader.table, row),
                    version=key[1],
                    shape=shape,
                )
            plan = self.plans[key] = self.new_plan(known)
        self.last_plan = plan
        self.last_shape = shape
        self.last_version = version
        return plan

    cdef int check_row(self, RowPlan plan, int64_t row, int kind) except -1:
        """A row has the sides that its kind asks for, each with a value for every column."""
        cdef bint after = view_has(&self.reader.after, row)
        cdef bint before = view_has(&self.reader.before, row)
        if (kind == KIND_DELETE and not before) or (kind != KIND_DELETE and not after) or \
                (after and view_count(&self.reader.after, row) != plan.count) or \
                (before and view_count(&self.reader.before, row) != plan.count):
            raise plan.refusal(
                f"row {row} of the batch does not have a value for each column of its shape"
            )
        return 0

    cdef int64_t commit_ts(self, int64_t row) except -1:
        cdef int64_t ts = -1
        if not long_at(&self.reader.commit_ts, row, &ts) or ts < 0:
            raise EncodeError(self.protocol, f"row {row} of the batch has no commit_ts")
        return ts

    cdef int compress_value(self, size_t start) except -1:
        """Compresses what was written to the value since `start`."""
        cdef bytes value
        if self.compress is None:
            return 0
        value = self.compress((<const char *>self.messages.value.data)[start:self.messages.value.used])
        self.messages.value.used = start
        if buffer_add(&self.messages.value, <const uint8_t *><const char *>value, len(value)) < 0:
            raise MemoryError
        return 0

    cdef object too_large(self, RowPlan plan, size_t size):
        """The error for a message of this size; `plan` is None where it holds no row."""
        reason = f"the message takes {size} bytes, over max-message-bytes {self.max_bytes}"
        return EncodeError(self.protocol, reason) if plan is None else plan.refusal(reason)

    cdef bytes keep_elsewhere(self, bytes key, bytes value):
        """Stores a message as a claim check and gives its location."""
        content = value if self.options.claim_check_raw_value else pack(key, value)
        return self.options.claim_check(content).encode()
