"""Numbers, text and checksums as the wire spells them: the Python face of _text.h.

For tests and rare use; compiled modules call the C functions through text.pxd. A text that a
function cannot take raises ValueError.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef inline const uint8_t *start(bytes data) noexcept:
    return <const uint8_t *>PyBytes_AS_STRING(data)


cdef inline bytes scratch(Py_ssize_t size):
    return PyBytes_FromStringAndSize(NULL, size)


cdef bytes cut(bytes buffer, int64_t length, str refusal):
    if length < 0:
        raise ValueError(refusal)
    return buffer[:length]


def format_int(value: int) -> str:
    """The decimal text of an integer from -2**63 to 2**64 - 1."""
    cdef uint8_t buffer[24]
    cdef int length
    if value < 0:
        length = tg_format_i64(value, buffer)
    else:
        length = tg_format_u64(value, buffer)
    return buffer[:length].decode("ascii")


def parse_u64(bytes text not None) -> int:
    """The unsigned 64-bit integer of decimal digits."""
    cdef uint64_t value = 0
    if tg_parse_u64(start(text), <size_t>len(text), &value) < 0:
        raise ValueError(f"{text!r} is not an unsigned 64-bit integer.")
    return value


def parse_i64(bytes text not None) -> int:
    """The signed 64-bit integer of decimal digits."""
    cdef int64_t value = 0
    if tg_parse_i64(start(text), <size_t>len(text), &value) < 0:
        raise ValueError(f"{text!r} is not a 64-bit integer.")
    return value


def format_double(double value) -> str:
    """The shortest digits that read back as this double, without an exponent."""
    cdef uint8_t buffer[400]
    cdef int length = tg_format_double(value, buffer)
    if length < 0:
        raise ValueError(f"{value} has no decimal text.")
    return buffer[:length].decode("ascii")


def format_float(float value) -> str:
    """The shortest digits that read back as this single-precision number, without an exponent."""
    cdef uint8_t buffer[400]
    cdef int length = tg_format_float(value, buffer)
    if length < 0:
        raise ValueError(f"{value} has no decimal text.")
    return buffer[:length].decode("ascii")


def parse_double(bytes text not None) -> float:
    """The double nearest to a decimal text."""
    cdef double value = 0
    if tg_parse_double(start(text), <size_t>len(text), &value) < 0:
        raise ValueError(f"{text!r} is not a number that a double can hold.")
    return value


def parse_float(bytes text not None) -> float:
    """The single-precision number nearest to a decimal text."""
    cdef float value = 0
    if tg_parse_float(start(text), <size_t>len(text), &value) < 0:
        raise ValueError(f"{text!r} is not a number that a float can hold.")
    return value


def shift_decimal(bytes text not None, Py_ssize_t cap=-1) -> bytes:
    """A JSON number with the same digits and no exponent, at most cap bytes if cap is given."""
    cdef Py_ssize_t size = cap if cap >= 0 else len(text) + 403
    cdef bytes buffer = scratch(size)
    cdef int length = tg_shift_decimal(
        start(text), <size_t>len(text), <uint8_t *>start(buffer), <size_t>size
    )
    return cut(buffer, length, f"{text!r} is not a JSON number of usable size.")


def go_json_float(
    bytes text not None, *, bint float32=False, bint keep_exponent_zero=False
) -> bytes:
    """A positional number as Go's encoding/json spells a float."""
    cdef bytes buffer = scratch(len(text) + 24)
    cdef int length = tg_go_json_float(
        start(text), <size_t>len(text), float32, keep_exponent_zero, <uint8_t *>start(buffer)
    )
    return cut(buffer, length, f"{text!r} is not a number without an exponent.")


def utf8_valid(bytes data not None) -> bool:
    """Whether the bytes are strict UTF-8."""
    return bool(tg_utf8_valid(start(data), <size_t>len(data)))


def latin1_from_utf8(bytes text not None) -> bytes:
    """The bytes that a UTF-8 text of code points up to U+00FF stands for."""
    cdef bytes buffer = scratch(len(text))
    cdef int64_t length = tg_latin1_from_utf8(
        start(text), <size_t>len(text), <uint8_t *>start(buffer)
    )
    return cut(buffer, length, "The text is not UTF-8, or has a code point above U+00FF.")


def utf8_from_latin1(bytes data not None) -> bytes:
    """Each byte as the code point of its value, in UTF-8."""
    cdef bytes buffer = scratch(2 * len(data))
    return buffer[: tg_utf8_from_latin1(start(data), <size_t>len(data), <uint8_t *>start(buffer))]


def base64_encode(bytes data not None) -> bytes:
    """Standard base64 with padding."""
    cdef bytes buffer = scratch(4 * ((len(data) + 2) // 3))
    return buffer[: tg_base64_encode(start(data), <size_t>len(data), <uint8_t *>start(buffer))]


def base64_decode(bytes text not None) -> bytes:
    """The bytes of canonical base64: padded, no white space, unused bits zero."""
    cdef bytes buffer = scratch(3 * len(text) // 4 + 3)
    cdef int64_t length = tg_base64_decode(
        start(text), <size_t>len(text), <uint8_t *>start(buffer)
    )
    return cut(buffer, length, "The text is not canonical base64.")


def go_is_print(uint32_t rune) -> bool:
    """Whether Go's strconv.IsPrint calls this code point printable."""
    return bool(tg_go_is_print(rune))


def go_quote(bytes data not None) -> bytes:
    """What Go's strconv.Quote writes between the quotes."""
    cdef bytes buffer = scratch(4 * len(data))
    return buffer[: tg_go_quote(start(data), <size_t>len(data), <uint8_t *>start(buffer))]


def go_unquote(bytes text not None) -> bytes:
    """The bytes that a Go string literal stands for, given without its quotes."""
    cdef bytes buffer = scratch(len(text))
    cdef int64_t length = tg_go_unquote(
        start(text), <size_t>len(text), <uint8_t *>start(buffer)
    )
    return cut(buffer, length, "The text has an escape that Go does not know.")


def stable_hash(bytes data not None, uint64_t seed=0) -> int:
    """A 64-bit hash that never changes between versions or machines."""
    return tg_hash(start(data), <size_t>len(data), seed)


def crc32c(bytes data not None) -> int:
    """CRC-32C (Castagnoli)."""
    return tg_crc32c(start(data), <size_t>len(data))


def crc32(bytes data not None, uint32_t crc=0) -> int:
    """CRC-32 (IEEE), continued from crc."""
    return tg_crc32(crc, start(data), <size_t>len(data))
