"""Row checksums, compiled: see checksum.pyx."""

import pyarrow as pa

from tidegate.wire.batch.shapes import ShapeBook

def verify(batch: pa.RecordBatch, shapes: ShapeBook) -> pa.RecordBatch: ...
