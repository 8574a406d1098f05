"""Messages being written, compiled: see messages.pyx."""

import pyarrow as pa

class MessageBuilder:
    count: int
    def __init__(self, expected: int = 0) -> None: ...
    def finish(self) -> pa.RecordBatch: ...
