"""The C-level names that decoders and encoders work with, for one `cimport *` in each of them."""

from libc.stdint cimport *
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcmp, memcpy, memmove, memset, strlen

from tidegate.wire.batch.builder cimport *
from tidegate.wire.batch.reader cimport *
from tidegate.wire.codec.decoder cimport *
from tidegate.wire.codec.messages cimport *
from tidegate.wire.codec.tables cimport *
from tidegate.wire.kernel.buffer cimport *
from tidegate.wire.kernel.cursor cimport *
from tidegate.wire.kernel.json cimport *
from tidegate.wire.kernel.jsonwrite cimport *
from tidegate.wire.kernel.text cimport *
from tidegate.wire.kernel.values cimport *
