"""Checks the table schemas inside Simple's JSON messages, member by member.

A schema is kept as it came; so whoever reads it later can rely on its form.
"""

from tidegate.wire.codec.prelude cimport *
from tidegate.wire.simple.json.decode cimport *

_kept_alive = []


# --- the inside of table schemas -------------------------------------------------------------------

cdef enum:
    MUST_BE_THERE = 16      # added to a form; the member is not null either
    TEXT = 1
    WHOLE_NUMBER = 2
    TRUE_OR_FALSE = 3
    TEXTS = 4
    DEFAULT = 5             # text, but a number for BIT
    TYPE_OBJECT = 6
    PARTITIONING = 7
    PARTITIONS = 8
    LISTS_OF_TEXTS = 9


cdef struct Rule:
    const char *name
    size_t size
    int form


# What TiCDC writes of a column; a schema from Tidegate may also have "code", "flags", "zone" and
# "generated", and tell how its table is partitioned.
cdef Rule[9] COLUMN_RULES
cdef Rule[9] TYPE_RULES
cdef Rule[6] INDEX_RULES
cdef Rule[4] PARTITIONING_RULES
cdef Rule[3] PARTITION_RULES


cdef int _set_rules(Rule *rules, list members) except -1:
    cdef int i
    for i in range(len(members)):
        _kept_alive.append(members[i][0])
        rules[i].name = <const char *>members[i][0]
        rules[i].size = len(members[i][0])
        rules[i].form = members[i][1]
    rules[len(members)].name = NULL
    return 0


_set_rules(COLUMN_RULES, [
    (b"name", TEXT | MUST_BE_THERE),
    (b"dataType", TYPE_OBJECT | MUST_BE_THERE),
    (b"nullable", TRUE_OR_FALSE),
    (b"default", DEFAULT),
    (b"code", WHOLE_NUMBER),
    (b"flags", WHOLE_NUMBER),
    (b"zone", TEXT),
    (b"generated", TEXT),
])
_set_rules(TYPE_RULES, [
    (b"mysqlType", TEXT | MUST_BE_THERE),
    (b"charset", TEXT),
    (b"collate", TEXT),
    (b"length", WHOLE_NUMBER),
    (b"decimal", WHOLE_NUMBER),
    (b"elements", TEXTS),
    (b"unsigned", TRUE_OR_FALSE),
    (b"zerofill", TRUE_OR_FALSE),
])
_set_rules(INDEX_RULES, [
    (b"name", TEXT | MUST_BE_THERE),
    (b"unique", TRUE_OR_FALSE),
    (b"primary", TRUE_OR_FALSE),
    (b"nullable", TRUE_OR_FALSE),
    (b"columns", TEXTS),
])
_set_rules(PARTITIONING_RULES, [
    (b"method", TEXT | MUST_BE_THERE),
    (b"by", TEXTS),
    (b"partitions", PARTITIONS),
])
_set_rules(PARTITION_RULES, [
    (b"name", TEXT | MUST_BE_THERE),
    (b"values", LISTS_OF_TEXTS),
])


cdef int _check_objects(Cursor *c, Buffer *scratch, const Rule *rules) noexcept nogil:
    """A list of objects, or null: Go writes an empty list so."""
    cdef bint first = True
    cdef int more
    if take_null(c):
        return 0
    if json_open(c, c'[') < 0:
        return -1
    while True:
        more = json_element(c, &first)
        if more <= 0:
            return more
        if _check_object(c, scratch, rules) < 0:
            return -1


cdef int _check_object(Cursor *c, Buffer *scratch, const Rule *rules) noexcept nogil:
    """An object with these members; others may hold anything."""
    cdef bint first = True
    cdef Span name
    cdef const uint8_t *opened = c.p
    cdef const Rule *rule
    cdef uint32_t named = 0
    cdef int more
    if json_open(c, c'{') < 0:
        return -1
    while True:
        more = json_member(c, &first, scratch, &name)
        if more < 0:
            return -1
        if more == 0:
            break
        rule = rules
        while rule.name != NULL and not span_is(&name, rule.name, rule.size):
            rule += 1
        if rule.name == NULL:
            if _skip_foreign(c) < 0:
                return -1
        elif name_once(c, &named, <uint32_t>1 << (rule - rules)) < 0 or \
                _check_form(c, scratch, rule.form) < 0:
            return -1
    rule = rules
    while rule.name != NULL:
        if rule.form & MUST_BE_THERE and not named >> (rule - rules) & 1:
            return fail_at(c, FAULT_MISSING, opened)
        rule += 1
    return 0


cdef int _check_form(Cursor *c, Buffer *scratch, int form) noexcept nogil:
    cdef bint flag = False
    cdef bint first = True
    cdef int64_t number = 0
    cdef Span text
    cdef int next_byte = json_peek(c)
    cdef int more
    if not form & MUST_BE_THERE and take_null(c):
        return 0
    form &= ~MUST_BE_THERE
    if form == DEFAULT:
        form = TEXT if next_byte == c'"' else TRUE_OR_FALSE if next_byte == c't' or next_byte == c'f' else form
    if form == TEXT:
        return json_skip_string(c) if next_byte == c'"' else fail(c, FAULT_TYPE)
    if form == WHOLE_NUMBER:
        return json_i64(c, &number)
    if form == TRUE_OR_FALSE:
        return json_bool(c, &flag)
    if form == TYPE_OBJECT:
        return _check_object(c, scratch, TYPE_RULES)
    if form == PARTITIONING:
        return _check_object(c, scratch, PARTITIONING_RULES)
    if form == PARTITIONS:
        return _check_objects(c, scratch, PARTITION_RULES)
    if form == TEXTS or form == LISTS_OF_TEXTS:
        if json_open(c, c'[') < 0:
            return -1
        while True:
            more = json_element(c, &first)
            if more <= 0:
                return more
            if _check_form(c, scratch, TEXTS if form == LISTS_OF_TEXTS else TEXT | MUST_BE_THERE) < 0:
                return -1
    if json_number(c, &text) < 0:
        return -1
    return fail_at(c, FAULT_RANGE, text.p) if text.n > MAX_NUMBER else 0


cdef int _skip_foreign(Cursor *c) noexcept nogil:
    """Over a member that is not known, with numbers that Python reads."""
    cdef const uint8_t *p
    cdef size_t digits = 0
    if json_peek(c) < 0:
        return -1
    p = c.p
    if json_skip(c) < 0:
        return -1
    while p < c.p:
        digits = digits + 1 if 48 <= p[0] <= 57 else 0
        if digits > MAX_DIGITS:
            return fail_at(c, FAULT_RANGE, p)
        p += 1
    return 0


cdef int read_schema(Cursor *c, Buffer *scratch, SchemaFacts *out) noexcept nogil:
    """A table schema, checked so far that model.TableSchema.from_json reads it, as its text goes
    into the batch as it is."""
    cdef bint first = True
    cdef Span name
    cdef const uint8_t *opened = c.p
    cdef uint32_t named = 0
    cdef int more, read
    if json_open(c, c'{') < 0:
        return -1
    while True:
        more = json_member(c, &first, scratch, &name)
        if more < 0:
            return -1
        if more == 0:
            break
        if span_is(&name, b"schema", 6):
            read = name_once(c, &named, 1) or json_span(c, scratch, &out.database)
        elif span_is(&name, b"table", 5):
            read = name_once(c, &named, 2) or json_span(c, scratch, &out.table)
        elif span_is(&name, b"version", 7):
            read = name_once(c, &named, 4) or read_timestamp(c, &out.version)
        elif span_is(&name, b"tableID", 7):
            read = name_once(c, &named, 8)
            if read == 0 and not take_null(c):
                out.has_table_id = True
                read = json_i64(c, &out.table_id)
        elif span_is(&name, b"columns", 7):
            read = name_once(c, &named, 16) or _check_objects(c, scratch, COLUMN_RULES)
        elif span_is(&name, b"indexes", 7):
            read = name_once(c, &named, 32) or _check_objects(c, scratch, INDEX_RULES)
        elif span_is(&name, b"charset", 7):
            read = name_once(c, &named, 64) or _check_form(c, scratch, TEXT)
        elif span_is(&name, b"collate", 7):
            read = name_once(c, &named, 128) or _check_form(c, scratch, TEXT)
        elif span_is(&name, b"partitioning", 12):
            read = name_once(c, &named, 256) or _check_form(c, scratch, PARTITIONING)
        else:
            read = _skip_foreign(c)
        if read < 0:
            return -1
    if ~named & 7:
        return fail_at(c, FAULT_MISSING, opened)
    out.raw.p = opened
    out.raw.n = <size_t>(c.p - opened)
    return 0
