"""The change batch as read, compiled: see reader.pyx."""

import pyarrow as pa

class BatchReader:
    batch: pa.RecordBatch
    count: int
    def __init__(self, batch: pa.RecordBatch) -> None: ...
