"""The loop over a batch of messages, compiled: see decoder.pyx."""

from collections.abc import Callable, Sequence

import pyarrow as pa

class MessageDecoder:
    @property
    def remembered(self) -> int: ...

Message = tuple[bytes | None, bytes | None]

def binary_array(values: pa.Array | pa.ChunkedArray | Sequence[bytes | None]) -> pa.Array: ...
def decode(
    decoder: MessageDecoder,
    keys: pa.Array | None,
    values: pa.Array,
    *,
    topics: pa.Array | str | None = None,
    partitions: pa.Array | None = None,
    offsets: pa.Array | None = None,
    expand: Callable[[bytes | None, bytes | None], Message] | None = None,
    claim_check: Callable[[str], tuple[bytes | None, bytes]] | None = None,
) -> pa.RecordBatch: ...
