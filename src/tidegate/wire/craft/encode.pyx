"""Writes Craft messages, rows of a table joined as TiCDC joins them.

Authority: docs/protocols/craft.md, after TiCDC's Craft document and the bytes its encoder writes.
"""

cimport cython

from tidegate.model import EncodeError, Flag, action_code, type_flags

from tidegate.wire.codec.encoder cimport MessageEncoder, RowPlan
from tidegate.wire.codec.prelude cimport *
from tidegate.wire.craft.layout cimport *


OPTIONS = frozenset({"delete_only_output_handle_key_columns", "mix_tables"})


# --- encoding ------------------------------------------------------------------------------------

# What went wrong with a value, in words.
_REFUSALS = {
    TG_CRAFT_NUMBER: "the value is not a number",
    TG_CRAFT_RANGE: "the value is out of the range of its type",
    TG_CRAFT_BASE64: "the value of a binary column is not base64",
}


# A row that waits for its message to be complete.
cdef struct Pending:
    uint64_t commit_ts
    int64_t partition
    int32_t plan
    int32_t new_count       # columns in the first group; 0: there is no such group
    int32_t old_count
    int32_t old_picks       # where the picks of the second begin in Encoder.picks, -1: all columns
    size_t sizes            # where its sizes begin in Encoder.sizes: those of the first group first
    size_t values           # where its values begin in Encoder.values
    size_t new_bytes
    size_t old_bytes


# How rows of a shape are written. Everything hangs on `block`.
cdef struct Plan:
    uint8_t *block
    int32_t count
    int32_t schema          # terms
    int32_t table
    int32_t handle_count
    int32_t *terms          # the name of each column
    int32_t *codes
    int32_t *flags
    int32_t *handles        # which columns are of the handle key
    uint16_t *forms         # see TG_CRAFT_FORM
    size_t estimate         # TiCDC's estimate of a whole group without its values
    Buffer head             # a whole group's bytes up to its lengths, as of the message `head_of`
    int64_t head_of


# A name that messages may have in their dictionaries.
cdef struct Term:
    const uint8_t *p
    int32_t n
    int32_t id              # in the message `id_of`
    int64_t id_of


cdef class CraftPlan(RowPlan):
    """The number of a Plan, and the shape that it is for."""
    cdef int32_t number


cdef class CraftEncoder(MessageEncoder):
    """Writes change batches as Craft messages, rows of a table joined as TiCDC joins them."""
    cdef bint delete_handle_only
    cdef bint mix_tables
    cdef Buffer layouts         # Plan
    cdef CraftPlan plan         # of the row being written
    cdef dict term_numbers
    cdef list term_bytes
    cdef Buffer terms           # Term
    # The message being put together.
    cdef int64_t message        # counts them
    cdef int32_t first_row
    cdef size_t estimate
    cdef Buffer pending         # Pending
    cdef Buffer sizes           # int32
    cdef Buffer values
    cdef Buffer picks           # int32
    cdef Buffer dictionary      # int32: its terms by id
    cdef Buffer body_sizes      # int64
    cdef Buffer group_sizes     # int64, two a row, the second 0 if there is no second group

    def __init__(self, options, compress=None):
        MessageEncoder.__init__(self, options, compress)
        self.protocol = "craft"
        self.delete_handle_only = options.delete_only_output_handle_key_columns
        self.mix_tables = options.mix_tables
        self.term_numbers = {}
        self.term_bytes = []

    def __dealloc__(self):
        cdef Plan *plans = <Plan *>self.layouts.data
        cdef size_t i
        for i in range(self.layouts.used // sizeof(Plan)):
            free(plans[i].block)
            buffer_free(&plans[i].head)
        buffer_free(&self.layouts)
        buffer_free(&self.terms)
        buffer_free(&self.pending)
        buffer_free(&self.sizes)
        buffer_free(&self.values)
        buffer_free(&self.picks)
        buffer_free(&self.dictionary)
        buffer_free(&self.body_sizes)
        buffer_free(&self.group_sizes)

    cdef int begin(self) except -1:
        self._forget_pending()
        return 0

    cdef int finish(self) except -1:
        return self._flush(self.messages)

    # --- what rows need ---

    cdef int32_t _term(self, bytes name) except -1:
        cdef Term fresh
        number = self.term_numbers.get(name)
        if number is None:
            number = self.term_numbers[name] = len(self.term_bytes)
            self.term_bytes.append(name)
            fresh.p = <const uint8_t *><const char *>name
            fresh.n = <int32_t>len(name)
            fresh.id = 0
            fresh.id_of = -1
            if buffer_add(&self.terms, <const uint8_t *>&fresh, sizeof(Term)) < 0:
                raise MemoryError
        return number

    cdef RowPlan new_plan(self, object shape):
        cdef CraftPlan plan = CraftPlan.__new__(CraftPlan)
        cdef Plan fresh
        cdef int32_t i, n = <int32_t>len(shape.columns)
        cdef int form
        plan.protocol = "craft"
        plan.shape = shape
        plan.count = n
        plan.number = <int32_t>(self.layouts.used // sizeof(Plan))
        names = [column.name.encode() for column in shape.columns]
        if n == 0 or n > MAX_COLUMNS:
            raise plan.refusal(f"a row of {n} columns has no form in Craft")
        memset(&fresh, 0, sizeof(Plan))
        fresh.head_of = -1
        fresh.count = n
        fresh.schema = self._term(shape.database.encode())
        fresh.table = self._term(shape.table.encode())
        fresh.block = <uint8_t *>malloc(n * (4 * sizeof(int32_t) + sizeof(uint16_t)))
        if fresh.block == NULL:
            raise MemoryError
        try:
            fresh.terms = <int32_t *>fresh.block
            fresh.codes = fresh.terms + n
            fresh.flags = fresh.codes + n
            fresh.handles = fresh.flags + n
            fresh.forms = <uint16_t *>(fresh.handles + n)
            for i, column in enumerate(shape.columns):
                if column.code is None:
                    raise plan.refusal("the type of the column is not known", i)
                flags = column.flags
                if flags is None:
                    flags = int(type_flags(column.code))
                if column.key:
                    flags |= Flag.HANDLE_KEY
                form = form_of(column.code, flags)
                if form == FORM_UNKNOWN:
                    raise plan.refusal(f"the column's type {column.code} is not known", i)
                fresh.terms[i] = self._term(names[i])
                fresh.codes[i] = column.code
                fresh.flags[i] = flags
                fresh.forms[i] = <uint16_t>(form | bits_of(column.code) << 8)
                fresh.estimate += len(names[i]) + COLUMN_ESTIMATE
                if flags & Flag.HANDLE_KEY:
                    fresh.handles[fresh.handle_count] = i
                    fresh.handle_count += 1
            if buffer_add(&self.layouts, <const uint8_t *>&fresh, sizeof(Plan)) < 0:
                raise MemoryError
        except BaseException:
            free(fresh.block)
            raise
        return plan

    # --- rows ---

    cdef int add_row(self, int64_t row, int kind) except -1:
        cdef BatchReader reader = self.reader
        cdef MessageBuilder messages = self.messages
        cdef Pending fresh
        cdef Plan *plan
        cdef const Pending *last
        cdef tg_cells after, before
        cdef int64_t done = 0
        cdef int32_t at = 0
        cdef bint has_before = kind != KIND_INSERT and view_has(&reader.before, row)
        memset(&fresh, 0, sizeof(Pending))
        fresh.commit_ts = <uint64_t>self.commit_ts(row)
        fresh.old_picks = -1
        if not long_at(&reader.table_id, row, &fresh.partition):
            fresh.partition = -1
        self.plan = <CraftPlan>self.plan_of(row)
        if reader.flags[row] & (FLAG_HANDLE_KEY_ONLY | FLAG_CLAIM_CHECK):
            raise self.plan.refusal("only its key is there, and the protocol cannot say so")
        fresh.plan = self.plan.number
        plan = <Plan *>self.layouts.data + self.plan.number
        if self.pending.used and not self.mix_tables:
            last = <const Pending *>(self.pending.data + self.pending.used) - 1
            if (<Plan *>self.layouts.data)[last.plan].schema != plan.schema or \
                    (<Plan *>self.layouts.data)[last.plan].table != plan.table:
                self._flush(messages)
        fresh.sizes = self.sizes.used
        fresh.values = self.values.used
        if kind != KIND_DELETE:
            self._view(&reader.after, row, plan, &after)
            fresh.new_count = plan.count
            self._make_room(plan, &after)
            done = tg_craft_row(
                plan.forms, NULL, plan.count, &after, <int32_t *>(self.sizes.data + self.sizes.used),
                self.values.data + self.values.used, &at,
            )
            if done < 0:
                raise self.plan.refusal(_REFUSALS.get(done, "the column has no values"), at)
            self.sizes.used += 4 * <size_t>plan.count
            self.values.used += <size_t>done
            fresh.new_bytes = <size_t>done
        elif not has_before:
            raise self.plan.refusal(f"the delete in row {row} of the batch has no values")
        if has_before:
            self._view(&reader.before, row, plan, &before)
            self._pick_old(reader, row, kind, plan, &fresh)
        if kind == KIND_UPDATE and fresh.old_count == 0 and plan.handle_count:
            # An update of which nothing old is known. It would read as an insert, but its handle key
            # did not change: TiCDC makes a delete and an insert of an update that changes it.
            before = after
            self._pick_handles(plan, &fresh)
        if fresh.old_count:
            self._put_old(plan, &after, &before, &fresh)
        if not self.pending.used:
            self.first_row = <int32_t>row
        if buffer_add(&self.pending, <const uint8_t *>&fresh, sizeof(Pending)) < 0:
            raise MemoryError
        self._estimate(plan, &fresh)
        if self.estimate > self.max_bytes or \
                self.pending.used >= <size_t>self.max_events * sizeof(Pending):
            self._flush(messages)
        return 0

    cdef int _put_old(self, const Plan *plan, const tg_cells *after, const tg_cells *before,
                      Pending *fresh) except -1:
        """The values of the second group of a row, or of its only one."""
        cdef const int32_t *picks = NULL
        cdef int64_t done
        cdef int32_t at = 0
        self._make_room(plan, before)
        if fresh.old_picks >= 0:
            picks = <const int32_t *>self.picks.data + fresh.old_picks
        if picks == NULL and fresh.new_count:
            done = tg_craft_old_row(
                plan.forms, plan.count, after, <const int32_t *>(self.sizes.data + fresh.sizes),
                self.values.data + fresh.values, before,
                <int32_t *>(self.sizes.data + self.sizes.used),
                self.values.data + self.values.used, &at,
            )
        else:
            done = tg_craft_row(
                plan.forms, picks, fresh.old_count, before,
                <int32_t *>(self.sizes.data + self.sizes.used),
                self.values.data + self.values.used, &at,
            )
        if done < 0:
            raise self.plan.refusal(_REFUSALS.get(done, "the column has no values"), at)
        self.sizes.used += 4 * <size_t>fresh.old_count
        self.values.used += <size_t>done
        fresh.old_bytes = <size_t>done
        return 0

    cdef int _view(self, const CellsView *view, int64_t row, const Plan *plan, tg_cells *out) except -1:
        if not view_has(view, row) or view_count(view, row) != plan.count:
            raise self.plan.refusal(
                f"row {row} of the batch has {view_count(view, row)} values, not {plan.count}",
            )
        out.ends = view.ends + view.lists[row]
        out.valid = view.valid
        out.first = view.valid_base + view.lists[row]
        out.text = view.text
        out.limit = view.limit
        return 0

    cdef int _make_room(self, const Plan *plan, const tg_cells *cells) except -1:
        cdef size_t text = <size_t>(cells.ends[plan.count] - cells.ends[0])
        if buffer_reserve(&self.sizes, 4 * <size_t>plan.count) < 0 or \
                buffer_reserve(&self.values, text + 10 * <size_t>plan.count + 32) < 0:
            raise MemoryError
        return 0

    cdef int _pick_old(self, BatchReader reader, int64_t row, int kind, const Plan *plan,
                       Pending *fresh) except -1:
        """Which columns the group of old values has."""
        cdef Span missing
        cdef int32_t i
        fresh.old_count = plan.count
        if kind == KIND_DELETE and self.delete_handle_only and plan.handle_count:
            self._pick_handles(plan, fresh)
        elif string_at(&reader.missing, row, &missing):
            fresh.old_picks = <int32_t>(self.picks.used // 4)
            fresh.old_count = 0
            for i in range(plan.count):
                if reader.carried(row, i):
                    fresh.old_count += 1
                    if buffer_add(&self.picks, <const uint8_t *>&i, 4) < 0:
                        raise MemoryError
            if kind == KIND_DELETE and fresh.old_count == 0:
                raise self.plan.refusal(
                f"the delete in row {row} of the batch has no values"
                )
        return 0

    cdef int _pick_handles(self, const Plan *plan, Pending *fresh) except -1:
        fresh.old_picks = <int32_t>(self.picks.used // 4)
        fresh.old_count = plan.handle_count
        if buffer_add(&self.picks, <const uint8_t *>plan.handles, 4 * <size_t>plan.handle_count) < 0:
            raise MemoryError
        return 0

    cdef void _estimate(self, const Plan *plan, const Pending *row) noexcept nogil:
        """TiCDC's own estimate of what the row adds to its message."""
        cdef const Term *terms = <const Term *>self.terms.data
        cdef const int32_t *picks
        cdef int32_t i
        self.estimate += <size_t>(ROW_ESTIMATE + terms[plan.schema].n + terms[plan.table].n)
        self.estimate += row.new_bytes + row.old_bytes
        if row.new_count:
            self.estimate += plan.estimate
        if row.old_count and row.old_picks < 0:
            self.estimate += plan.estimate
        elif row.old_count:
            picks = <const int32_t *>self.picks.data + row.old_picks
            for i in range(row.old_count):
                self.estimate += <size_t>(terms[plan.terms[picks[i]]].n + COLUMN_ESTIMATE)

    # --- messages ---

    cdef int _flush(self, MessageBuilder messages) except -1:
        """The pending rows are a message."""
        cdef int32_t rows = <int32_t>(self.pending.used // sizeof(Pending))
        if rows == 0:
            return 0
        if self._write_rows(&messages.value, rows) < 0:
            raise MemoryError
        messages.end(False, self.first_row, rows)
        self._forget_pending()
        return 0

    cdef void _forget_pending(self) noexcept nogil:
        self.pending.used = 0
        self.sizes.used = 0
        self.values.used = 0
        self.picks.used = 0
        self.estimate = 0

    cdef inline int64_t _id(self, int32_t term) noexcept nogil:
        """The term's id in this message, which the first use gives it. There is room for it."""
        cdef Term *known = <Term *>self.terms.data + term
        if known.id_of != self.message:
            known.id_of = self.message
            known.id = <int32_t>(self.dictionary.used // 4)
            (<int32_t *>(self.dictionary.data + self.dictionary.used))[0] = term
            self.dictionary.used += 4
        return known.id

    cdef int _write_rows(self, Buffer *b, int32_t count) noexcept nogil:
        cdef const Pending *rows = <const Pending *>self.pending.data
        cdef const Plan *plans = <const Plan *>self.layouts.data
        cdef int32_t i
        cdef uint64_t ts = 0
        cdef int64_t last = 0, number
        cdef size_t header, body
        cdef uint8_t *p
        self.message += 1
        self.dictionary.used = 0
        self.body_sizes.used = 0
        self.group_sizes.used = 0
        # Every message could use every term once; a header entry is five varints.
        if buffer_reserve(&self.dictionary, self.terms.used // sizeof(Term) * 4) < 0 or \
                buffer_reserve(&self.body_sizes, 8 * <size_t>count) < 0 or \
                buffer_reserve(&self.group_sizes, 16 * <size_t>count) < 0 or \
                buffer_reserve(b, 1 + 50 * <size_t>count) < 0:
            return -1
        p = b.data + b.used
        p[0] = VERSION
        p += 1
        header = b.used + 1
        for i in range(count):
            p = tg_put_uvarint(p, rows[i].commit_ts - ts)
            ts = rows[i].commit_ts
        for i in range(count):
            p[i] = EVENT_ROW
        p += count
        for i in range(count):
            p = tg_put_varint(p, rows[i].partition - last)
            last = rows[i].partition
        # The ids of all databases come first, then those of the tables, then those of columns.
        last = 0
        for i in range(count):
            number = self._id(plans[rows[i].plan].schema)
            p = tg_put_varint(p, number - last)
            last = number
        last = 0
        for i in range(count):
            number = self._id(plans[rows[i].plan].table)
            p = tg_put_varint(p, number - last)
            last = number
        b.used = <size_t>(p - b.data)
        header = b.used - header
        for i in range(count):
            body = b.used
            if self._write_row(b, &rows[i]) < 0:
                return -1
            (<int64_t *>self.body_sizes.data)[i] = <int64_t>(b.used - body)
        return self._write_end(b, header, count)

    cdef int _write_row(self, Buffer *b, const Pending *row) noexcept nogil:
        cdef int64_t *groups = <int64_t *>(self.group_sizes.data + self.group_sizes.used)
        cdef size_t start = b.used
        self.group_sizes.used += 16
        groups[0] = 0
        groups[1] = 0
        if row.new_count:
            if self._write_group(b, row, GROUP_NEW, NULL, row.new_count, row.sizes, row.values,
                                 row.new_bytes) < 0:
                return -1
            groups[0] = <int64_t>(b.used - start)
            start = b.used
        if row.old_count:
            if self._write_group(
                b, row, GROUP_OLD,
                NULL if row.old_picks < 0 else <const int32_t *>self.picks.data + row.old_picks,
                row.old_count, row.sizes + 4 * <size_t>row.new_count, row.values + row.new_bytes,
                row.old_bytes,
            ) < 0:
                return -1
            groups[1 if row.new_count else 0] = <int64_t>(b.used - start)
        return 0

    cdef int _write_group(self, Buffer *b, const Pending *row, uint8_t kind, const int32_t *picks,
                          int32_t count, size_t sizes, size_t values, size_t size) noexcept nogil:
        cdef Plan *plan = <Plan *>self.layouts.data + row.plan
        cdef uint8_t *p
        if buffer_add_byte(b, kind) < 0:
            return -1
        if picks != NULL:
            if self._write_head(b, plan, picks, count) < 0:
                return -1
        else:
            # Once its names have ids, the head of a group is the same throughout a message.
            if plan.head_of != self.message:
                plan.head.used = 0
                if self._write_head(&plan.head, plan, NULL, count) < 0:
                    return -1
                plan.head_of = self.message
            if buffer_add(b, plan.head.data, plan.head.used) < 0:
                return -1
        if buffer_reserve(b, 5 * <size_t>count + size) < 0:
            return -1
        p = tg_craft_put_sizes(b.data + b.used, <const int32_t *>(self.sizes.data + sizes), count)
        memcpy(p, self.values.data + values, size)
        b.used = <size_t>(p - b.data) + size
        return 0

    cdef int _write_head(self, Buffer *b, const Plan *plan, const int32_t *picks, int32_t count) noexcept nogil:
        """The number of columns, their names, types and flags."""
        cdef int64_t last = 0, number
        cdef int32_t i
        cdef uint8_t *p
        if buffer_reserve(b, 5 + 15 * <size_t>count) < 0:
            return -1
        p = tg_put_uvarint(b.data + b.used, <uint64_t>count)
        for i in range(count):
            number = self._id(plan.terms[i if picks == NULL else picks[i]])
            p = tg_put_varint(p, number - last)
            last = number
        for i in range(count):
            p = tg_put_uvarint(p, <uint64_t>plan.codes[i if picks == NULL else picks[i]])
        for i in range(count):
            p = tg_put_uvarint(p, <uint64_t>plan.flags[i if picks == NULL else picks[i]])
        b.used = <size_t>(p - b.data)
        return 0

    cdef int _write_end(self, Buffer *b, size_t header, int32_t count) noexcept nogil:
        """The dictionary and the size tables: header and dictionary, bodies, groups of each row."""
        cdef const Term *terms = <const Term *>self.terms.data
        cdef const int32_t *ids = <const int32_t *>self.dictionary.data
        cdef const int64_t *bodies = <const int64_t *>self.body_sizes.data
        cdef const int64_t *groups = <const int64_t *>self.group_sizes.data
        cdef size_t i, start = b.used, used = self.dictionary.used // 4, tables, text = 0
        cdef int64_t last = 0
        cdef uint8_t *p
        cdef uint8_t reverse[10]
        cdef int n
        for i in range(used):
            text += <size_t>terms[ids[i]].n
        if buffer_reserve(b, text + 5 * used + 25 + 31 * <size_t>count + 40) < 0:
            return -1
        p = b.data + b.used
        if used:
            p = tg_put_uvarint(p, used)
            for i in range(used):
                p = tg_put_uvarint(p, <uint64_t>terms[ids[i]].n)
            for i in range(used):
                memcpy(p, terms[ids[i]].p, <size_t>terms[ids[i]].n)
                p += terms[ids[i]].n
        tables = <size_t>(p - b.data)
        p = tg_put_uvarint(p, 2)
        p = tg_put_varint(p, <int64_t>header)
        p = tg_put_varint(p, <int64_t>(tables - start) - <int64_t>header)
        p = tg_put_uvarint(p, <uint64_t>count)
        for i in range(<size_t>count):
            p = tg_put_varint(p, bodies[i] - last)
            last = bodies[i]
        for i in range(self.group_sizes.used // 16):
            p = tg_put_uvarint(p, 2 if groups[2 * i + 1] else 1)
            p = tg_put_varint(p, groups[2 * i])
            if groups[2 * i + 1]:
                p = tg_put_varint(p, groups[2 * i + 1] - groups[2 * i])
        # Their size, read from the end of the message backwards.
        n = <int>(tg_put_uvarint(reverse, <uint64_t>(p - b.data) - tables) - reverse)
        while n > 0:
            n -= 1
            p[0] = reverse[n]
            p += 1
        b.used = <size_t>(p - b.data)
        return 0

    cdef int _begin_single(self, Buffer *b, uint64_t commit_ts, uint8_t kind, const Span *database,
                           const Span *table) except -1:
        """The version and header of a message of one event that is not a row."""
        cdef uint8_t *p
        cdef int32_t schema_term = -1, table_term = -1
        if database.n:
            schema_term = self._term((<const char *>database.p)[:database.n])
        if table.n:
            table_term = self._term((<const char *>table.p)[:table.n])
        self.message += 1
        self.dictionary.used = 0
        self.body_sizes.used = 0
        self.group_sizes.used = 0
        if buffer_reserve(&self.dictionary, 8) < 0 or buffer_reserve(&self.body_sizes, 8) < 0 or \
                buffer_reserve(b, 64) < 0:
            raise MemoryError
        p = b.data + b.used
        p[0] = VERSION
        p = tg_put_uvarint(p + 1, commit_ts)
        p[0] = kind
        p = tg_put_varint(p + 1, -1)
        p = tg_put_varint(p, -1 if schema_term < 0 else self._id(schema_term))
        p = tg_put_varint(p, -1 if table_term < 0 else self._id(table_term))
        b.used = <size_t>(p - b.data)
        return 0

    cdef int _end_single(self, MessageBuilder messages, int64_t row, size_t start, size_t body) except -1:
        (<int64_t *>self.body_sizes.data)[0] = <int64_t>(messages.value.used - body)
        if self._write_end(&messages.value, body - start - 1, 1) < 0:
            raise MemoryError
        messages.end(False, <int32_t>row, 1)
        return 0

    cdef int add_ddl(self, int64_t row) except -1:
        cdef BatchReader reader = self.reader
        cdef MessageBuilder messages = self.messages
        cdef Buffer *b = &messages.value
        cdef size_t start, body
        cdef Span database, table, query
        cdef uint64_t code
        self._flush(messages)
        start = b.used
        string_at(&reader.database, row, &database)
        string_at(&reader.table, row, &table)
        if not string_at(&reader.query, row, &query):
            raise EncodeError("craft", f"the DDL in row {row} of the batch has no query")
        number = reader.ddl_code(row)
        if number is None:
            number = action_code(_name_at(&reader.ddl_type, row), _name_at(&reader.query, row)) or 0
        if not 0 <= number <= 255:
            raise EncodeError("craft", f"the DDL in row {row} of the batch has the type {number}")
        code = number
        self._begin_single(b, <uint64_t>self.commit_ts(row), EVENT_DDL, &database, &table)
        body = b.used
        if buffer_add_uvarint(b, code) < 0 or buffer_add_uvarint(b, query.n) < 0 or \
                buffer_add(b, query.p, query.n) < 0:
            raise MemoryError
        return self._end_single(messages, row, start, body)

    cdef int add_watermark(self, int64_t row) except -1:
        cdef MessageBuilder messages = self.messages
        cdef size_t start
        cdef Span none
        self._flush(messages)
        start = messages.value.used
        none.p = NULL
        none.n = 0
        self._begin_single(&messages.value, <uint64_t>self.commit_ts(row), EVENT_RESOLVED, &none, &none)
        return self._end_single(messages, row, start, messages.value.used)


cdef str _name_at(const StringsView *view, int64_t row):
    cdef Span text
    return (<const char *>text.p)[:text.n].decode() if string_at(view, row, &text) else ""
