"""The value rules of Canal-JSON, for its decoder and its encoder: see _canal.h."""

from tidegate.wire.codec.prelude cimport *


cdef extern from "_canal.h" nogil:
    enum:
        CANAL_PADDING
        CANAL_TEXT
        CANAL_BINARY
        CANAL_DECIMAL
        CANAL_DATETIME
        CANAL_DATE
        CANAL_TIME
        CANAL_FLOAT
        CANAL_YEAR
        CANAL_VECTOR
        CANAL_UNCLEAR
        CANAL_GOOD
        CANAL_BAD_RANGE
        CANAL_BAD_TIME
        CANAL_BAD_VALUE
    const uint8_t *canal_ts
    const uint8_t *canal_sql
    const uint8_t *canal_insert
    const uint8_t *canal_update
    const uint8_t *canal_delete
    const uint8_t *canal_no_old
    const uint8_t *canal_old
    const uint8_t *canal_data
    const uint8_t *canal_commit_ts
    const uint8_t *canal_handle_key
    const uint8_t *canal_row_key
    const uint8_t *canal_database
    const uint8_t *canal_table

    ctypedef struct canal_word:
        const uint8_t *p
        size_t n

    canal_word canal_word_of(const uint8_t *p, size_t n) noexcept
    bint canal_same_word(const canal_word *a, const canal_word *b) noexcept
    uint64_t canal_word_hash(const canal_word *word, uint64_t seed) noexcept
    void canal_copy(uint8_t *dst, const uint8_t *p, size_t n) noexcept
    uint64_t canal_hash(const uint8_t *p, size_t n, uint64_t seed) noexcept
    size_t canal_digit_run(const uint8_t *p) noexcept
    uint64_t canal_number(const uint8_t *p, size_t n) noexcept

    ctypedef struct canal_rule:
        int kind

    void canal_integer_rule(canal_rule *rule, int bits, bint is_unsigned) noexcept
    int canal_check(const canal_rule *rule, const uint8_t *p, size_t n) noexcept

    ctypedef struct canal_member:
        pass

    const uint8_t *canal_plain_member(const uint8_t *p, const uint8_t *end, bint numbers,
                                      canal_member *out) noexcept

    ctypedef struct canal_literal:
        uint8_t *head
        const uint8_t *whole
        uint32_t size
        uint32_t mask
        uint32_t next
        uint64_t weight

    ctypedef struct canal_layout:
        int32_t count
        canal_literal *names
        canal_rule *rules
        canal_literal *types
        uint32_t *slots
        int shift
        int window
        size_t types_size
        uint64_t types_weight

    ctypedef struct canal_cells:
        uint8_t *base
        uint8_t *text
        int32_t *ends
        uint8_t *valid
        uint8_t *spare

    ctypedef int64_t (*canal_unescape)(const uint8_t **p, const uint8_t *end, const uint8_t *limit,
                                       uint8_t *text, size_t n, unsigned int *high) noexcept nogil
    uint64_t canal_type_slot(const uint8_t *p, int window, int shift) noexcept
    const uint8_t *canal_read_row(const canal_layout *layout, const uint8_t *p, const uint8_t *end,
                                  const uint8_t *limit, canal_cells *cells, const uint8_t *types,
                                  uint8_t *missing, int32_t *left_out,
                                  canal_unescape unescape) noexcept


cdef inline void set_rule(canal_rule *rule, int code, int flags) noexcept nogil:
    """The rule of the values of a type; any text goes where the type is not known."""
    cdef int form = form_of(code, flags)
    rule.kind = CANAL_TEXT
    if form == FORM_INTEGER or form == FORM_UNSIGNED:
        canal_integer_rule(rule, bits_of(code), form == FORM_UNSIGNED)
    elif form == FORM_BINARY:
        rule.kind = CANAL_BINARY
    elif form == FORM_DECIMAL:
        rule.kind = CANAL_DECIMAL
    elif form == FORM_DATETIME:
        rule.kind = CANAL_DATETIME
    elif form == FORM_DATE:
        rule.kind = CANAL_DATE
    elif form == FORM_TIME:
        rule.kind = CANAL_TIME
    elif form == FORM_FLOAT or form == FORM_DOUBLE:
        rule.kind = CANAL_FLOAT
    elif form == FORM_YEAR:
        rule.kind = CANAL_YEAR
    elif form == FORM_VECTOR:
        rule.kind = CANAL_VECTOR
