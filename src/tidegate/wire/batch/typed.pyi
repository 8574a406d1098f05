import pyarrow as pa

def read_texts(
    values: pa.StringArray, at: pa.Int32Array | None, place: int, target: pa.DataType
) -> pa.Array | None: ...
