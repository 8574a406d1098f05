"""Plans: the columns of one table as Canal-JSON messages list them, found again by their names."""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.canal.decode cimport *


cdef inline int by_name(const void *a, const void *b) noexcept nogil:
    cdef const canal_word *left_name = &(<const Column *>a).name
    cdef const canal_word *right_name = &(<const Column *>b).name
    cdef size_t n = left_name.n if left_name.n < right_name.n else right_name.n
    cdef int order = memcmp(left_name.p, right_name.p, n)
    if order:
        return order
    return (left_name.n > right_name.n) - (left_name.n < right_name.n)


cdef inline void fill_buckets(Plan *plan) noexcept nogil:
    """The table of column names, from the columns and their hashes."""
    cdef int32_t i
    cdef int32_t *bucket
    memset(plan.buckets, 0xff, (plan.bucket_mask + 1) * sizeof(int32_t))
    for i in range(plan.count):
        bucket = &plan.buckets[plan.columns[i].hash & plan.bucket_mask]
        plan.columns[i].next = bucket[0]
        bucket[0] = i


cdef inline size_t power_above(size_t n) noexcept nogil:
    cdef size_t power = 8
    while power < n:
        power *= 2
    return power


cdef inline void release_plan(KnownTable *plan) noexcept nogil:
    arena_free(&(<Plan *>plan).arena)
    free(plan)


cdef inline uint64_t names_hash(CanalDecoder self, const uint8_t *database, size_t database_size,
                                const uint8_t *table, size_t table_size) noexcept nogil:
    return canal_hash(database, database_size, self.seed) ^ \
        canal_hash(table, table_size, ~self.seed)


# --- plans -------------------------------------------------------------------------------------
cdef inline int32_t column_of(CanalDecoder self, const Plan *plan, const Span *name,
                              int32_t guess) noexcept nogil:
    """The index of the column of that name, -1: there is none. Here and in what follows, 16 bytes
    may be read of every text: messages, scratch and arenas are padded."""
    cdef canal_word word = canal_word_of(name.p, name.n)
    cdef uint64_t h
    cdef int32_t i
    if guess < plan.count and canal_same_word(&plan.columns[guess].name, &word):
        return guess
    h = canal_word_hash(&word, self.seed)
    i = plan.buckets[h & plan.bucket_mask]
    while i >= 0:
        if canal_same_word(&plan.columns[i].name, &word):
            return i
        i = plan.columns[i].next
    return -1


cdef inline Plan *plan_of(CanalDecoder self, Cursor *c, Parts *parts, const Members *data,
                          Plan *before) noexcept nogil:
    """The plan of the row; after_slots says where its values are. before: the plan of the row
    before, if any. NULL: a fault, noted in c."""
    cdef uint64_t h
    cdef KnownTable *known
    if data.count > MAX_COLUMNS:
        fail(c, FAULT_COLUMNS)
        return NULL
    if buffer_reserve(&self.after_slots, data.count * sizeof(int32_t)) < 0:
        fail(c, FAULT_MEMORY)
        return NULL
    if before != NULL and same_columns(self, before, data):
        return before
    h = names_hash(
            self, parts.database.p, parts.database.n, parts.table.p, parts.table.n
    )
    known = first_known(&self.memory, h)
    while known != NULL:
        if known.hash == h and plan_fits(self, <Plan *>known, parts, data):
            self.memory.last = known
            return <Plan *>known
        known = known.next
    return new_plan(self, c, parts, data, h)


cdef inline bint same_columns(CanalDecoder self, const Plan *plan,
                              const Members *data) noexcept nogil:
    """Whether the row has the plan's columns in the plan's order; if so, its slots are set."""
    cdef Member *members = <Member *>self.members.data + data.first
    cdef canal_word word
    cdef int32_t i
    if data.count != <size_t>plan.count:
        return False
    for i in range(plan.count):
        word = canal_word_of(members[i].name.p, members[i].name.n)
        if not canal_same_word(&plan.columns[i].name, &word):
            return False
        (<int32_t *>self.after_slots.data)[i] = <int32_t>data.first + i
    return True


cdef inline bint plan_fits(CanalDecoder self, Plan *plan, const Parts *parts,
                           const Members *data) noexcept nogil:
    """Whether the plan's columns, types and keys are those of the row; sets its slots."""
    cdef Member *members = <Member *>self.members.data
    cdef int32_t *slots = <int32_t *>self.after_slots.data
    cdef canal_word type
    cdef int32_t i, column, matched = 0
    cdef bint in_order = True
    cdef size_t j
    if data.count != <size_t>plan.count or \
            not same_span(&plan.database, &parts.database) or not same_span(&plan.table, &parts.table):
        return False
    self.serial += 1
    for i in range(plan.count):
        column = column_of(self, plan, &members[data.first + i].name, i)
        if column < 0 or plan.columns[column].seen == self.serial:
            return False
        plan.columns[column].seen = self.serial
        slots[column] = <int32_t>data.first + i
        in_order &= column == i
    if not in_order and not plan.by_name:
        return False
    self.serial += 1
    for j in range(parts.mysql_type.first, parts.mysql_type.first + parts.mysql_type.count):
        column = column_of(self, plan, &members[j].name, <int32_t>(j - parts.mysql_type.first))
        if column < 0:
            continue
        if plan.columns[column].seen == self.serial or members[j].text.p == NULL:
            return False
        type = canal_word_of(members[j].text.p, members[j].text.n)
        if not canal_same_word(&plan.columns[column].type, &type):
            return False
        plan.columns[column].seen = self.serial
        matched += 1
    if matched != plan.count:
        return False
    self.serial += 1
    matched = 0
    for j in range(parts.pk_names.first, parts.pk_names.first + parts.pk_names.count):
        column = column_of(self, plan, &members[j].name, 0)
        if column < 0:
            continue
        if plan.columns[column].seen == self.serial or not plan.columns[column].key:
            return False
        plan.columns[column].seen = self.serial
        matched += 1
    if matched != plan.keys:
        return False
    # In the plan's order, and sqlType does not say otherwise; or else the plan goes by name.
    return in_natural_order(self, plan, parts, data) == in_order or (in_order and plan.by_name)


cdef inline bint in_natural_order(CanalDecoder self, const Plan *plan, const Parts *parts,
                                  const Members *data) noexcept nogil:
    """Whether data and sqlType agree in the order of the columns.

    Both are written in the table's order. Where they disagree, something between the sender and
    us has shuffled the members; the columns are then ordered by name, or each message would have
    a shape of its own.
    """
    cdef Member *members = <Member *>self.members.data
    cdef const int32_t *slots = <const int32_t *>self.after_slots.data
    cdef int32_t column, guess = 0, place = -1
    cdef size_t j
    for j in range(parts.sql_type.first, parts.sql_type.first + parts.sql_type.count):
        column = column_of(self, plan, &members[j].name, guess)
        if column < 0:
            continue
        if slots[column] <= place:
            return False
        place = slots[column]
        guess = column + 1
    return True


cdef inline Plan *new_plan(CanalDecoder self, Cursor *c, Parts *parts, const Members *data,
                           uint64_t h) noexcept nogil:
    cdef Plan *plan
    plan = <Plan *>calloc(1, sizeof(Plan))
    if plan == NULL:
        fail(c, FAULT_MEMORY)
        return NULL
    plan.known.hash = h
    plan.count = <int32_t>data.count
    if fill_plan(self, c, parts, data, plan) < 0 or register_plan(self, c, plan) < 0:
        release_plan(&plan.known)
        return NULL
    # Names, types and literals of all columns together are not longer than the message.
    plan.known.size = 4 * <size_t>(c.end - c.start) + \
        data.count * (sizeof(Column) + 2 * sizeof(canal_literal) + 128)
    remember_table(&self.memory, &plan.known)
    return plan


cdef inline int fill_plan(CanalDecoder self, Cursor *c, Parts *parts, const Members *data,
                          Plan *plan) noexcept nogil:
    """Columns in their order, types, keys; sets the row's slots."""
    cdef Member *members = <Member *>self.members.data
    cdef int32_t *slots = <int32_t *>self.after_slots.data
    cdef size_t bucket_count = power_above(4 * data.count)
    cdef Column *column
    cdef Member *member
    cdef Span kept
    cdef int32_t i, j
    cdef size_t k
    plan.columns = <Column *>arena_take(&plan.arena, data.count * sizeof(Column))
    plan.buckets = <int32_t *>arena_take(&plan.arena, bucket_count * sizeof(int32_t))
    plan.bucket_mask = bucket_count - 1
    if plan.columns == NULL or plan.buckets == NULL or \
            arena_keep(&plan.arena, parts.database.p, parts.database.n, &plan.database) < 0 or \
            arena_keep(&plan.arena, parts.table.p, parts.table.n, &plan.table) < 0:
        return fail(c, FAULT_MEMORY)
    memset(plan.columns, 0, data.count * sizeof(Column))
    for i in range(plan.count):
        member = &members[data.first + i]
        column = &plan.columns[i]
        if arena_keep(&plan.arena, member.name.p, member.name.n, &kept) < 0:
            return fail(c, FAULT_MEMORY)
        column.name = canal_word_of(kept.p, kept.n)
        column.hash = canal_word_hash(&column.name, self.seed)
        slots[i] = <int32_t>data.first + i
    fill_buckets(plan)
    for i in range(plan.count):
        # Of two equal names the later one is found, since it stands first in its bucket.
        j = plan.buckets[plan.columns[i].hash & plan.bucket_mask]
        while j > i:
            if canal_same_word(&plan.columns[j].name, &plan.columns[i].name):
                return fail_at(c, FAULT_DUPLICATE, members[data.first + j].at)
            j = plan.columns[j].next
    for k in range(parts.mysql_type.first, parts.mysql_type.first + parts.mysql_type.count):
        member = &members[k]
        i = column_of(self, plan, &member.name, <int32_t>(k - parts.mysql_type.first))
        if i < 0:
            continue
        column = &plan.columns[i]
        if column.type.p != NULL:
            return fail_at(c, FAULT_DUPLICATE, member.at)
        if member.text.p == NULL:
            return fail_at(c, FAULT_TYPE, member.value_at)
        if arena_keep(&plan.arena, member.text.p, member.text.n, &kept) < 0:
            return fail(c, FAULT_MEMORY)
        column.type = canal_word_of(kept.p, kept.n)
        set_type(column)
    for i in range(plan.count):
        if plan.columns[i].type.p == NULL:
            return fail_at(c, FAULT_COLUMNS, members[data.first + i].at)
    for k in range(parts.pk_names.first, parts.pk_names.first + parts.pk_names.count):
        # A key column need not be carried.
        i = column_of(self, plan, &members[k].name, 0)
        if i < 0:
            continue
        if plan.columns[i].key:
            return fail_at(c, FAULT_DUPLICATE, members[k].at)
        plan.columns[i].key = 1
        plan.keys += 1
    if not in_natural_order(self, plan, parts, data):
        qsort(plan.columns, plan.count, sizeof(Column), by_name)
        fill_buckets(plan)
        for i in range(plan.count):
            j = column_of(self, plan, &members[data.first + i].name, i)
            slots[j] = <int32_t>data.first + i
    plan.by_name = True
    for i in range(1, plan.count):
        plan.by_name &= by_name(&plan.columns[i - 1], &plan.columns[i]) < 0
    return 0


cdef inline int register_plan(CanalDecoder self, Cursor *c, Plan *plan) noexcept nogil:
    cdef ShapeColumn *columns
    cdef int32_t i
    columns = <ShapeColumn *>calloc(<size_t>plan.count + 1, sizeof(ShapeColumn))
    if columns == NULL:
        return fail(c, FAULT_MEMORY)
    for i in range(plan.count):
        columns[i].name.p = plan.columns[i].name.p
        columns[i].name.n = plan.columns[i].name.n
        columns[i].type.p = plan.columns[i].type.p
        columns[i].type.n = plan.columns[i].type.n
        columns[i].code = -1
        columns[i].flags = -1
        columns[i].key = plan.columns[i].key
    plan.shape = self.out.register_shape(c, &plan.database, &plan.table, columns, plan.count)
    free(columns)
    return 0 if plan.shape >= 0 else -1
