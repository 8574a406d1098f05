"""The change batch: the one columnar form every protocol is decoded to and encoded from.

One row is one event. `after` and `before` hold a row's values as MySQL text in the order of its
shape; the shape itself comes as a `schema` row of the same batch. See docs/batch.md.
"""

import pyarrow as pa

KINDS = ("insert", "update", "delete", "ddl", "watermark", "schema", "error")
"""The kinds of events; a kind's index here is its code in the compiled modules."""

CHANGE_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        pa.field("event", pa.int32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        ("commit_ts", pa.int64()),
        ("database", pa.string()),
        ("table", pa.string()),
        ("table_id", pa.int64()),
        ("shape", pa.int64()),
        ("schema_version", pa.int64()),
        ("after", pa.list_(pa.string())),
        ("before", pa.list_(pa.string())),
        ("before_missing", pa.binary()),
        (
            "ddl",
            pa.struct([("type", pa.string()), ("code", pa.int32()), ("query", pa.string())]),
        ),
        ("schema", pa.string()),
        pa.field("flags", pa.int32(), nullable=False),
        (
            "checksum",
            pa.struct(
                [
                    ("version", pa.int32()),
                    ("corrupted", pa.bool_()),
                    ("current", pa.int64()),
                    ("previous", pa.int64()),
                ]
            ),
        ),
        ("claim_check", pa.string()),
        (
            "error",
            pa.struct(
                [
                    ("code", pa.string()),
                    ("reason", pa.string()),
                    ("part", pa.string()),
                    ("position", pa.int64()),
                ]
            ),
        ),
        ("raw_key", pa.binary()),
        ("raw_value", pa.binary()),
    ]
)
"""The columns of a change batch."""

MESSAGE_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("events", pa.int32(), nullable=False),
    ]
)
"""What encoders give: messages, each with the batch row of its first event and its event count."""
