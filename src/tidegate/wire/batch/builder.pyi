"""The change batch, compiled: see builder.pyx."""

import pyarrow as pa

FAULTS: tuple[tuple[str, str], ...]

class Decoder: ...

class BatchReader:
    batch: pa.RecordBatch
    count: int
    def __init__(self, batch: pa.RecordBatch) -> None: ...

class MessageBuilder:
    count: int
    def __init__(self, expected: int = 0) -> None: ...
    def finish(self) -> pa.RecordBatch: ...
