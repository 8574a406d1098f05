"""What each protocol can carry, and so what a conversion loses."""

from __future__ import annotations

from tidegate.wire.options import EncodeOptions

_FACTS = {
    "watermarks": "watermarks",
    "commit-ts": "the exact commit timestamp (only its milliseconds)",
    "deletes": "deletes",
    "old-values": "the values before an update",
    "flags": "column flags (nullable, unique, generated)",
    "type-names": "the types of columns in each message (they are in its schema messages)",
    "partition-ids": "the ids of partitions of partitioned tables",
    "table-ids": "table ids",
    "table-schemas": "whole table schemas (defaults, indexes, lengths)",
    "schema-versions": "schema versions",
    "checksums": "row checksums",
    "zones": "the time zone of TIMESTAMP values",
    "ddl-codes": "TiDB's number for each kind of DDL",
    "zerofill": "ZEROFILL",
}

_CARRIED = {
    "open-protocol": {
        "watermarks", "commit-ts", "deletes", "old-values", "flags", "type-names",
        "partition-ids", "ddl-codes",
    },
    "canal-json": {
        "watermarks", "commit-ts", "deletes", "old-values", "type-names", "zerofill",
    },
    "simple": {
        "watermarks", "commit-ts", "deletes", "old-values", "type-names", "partition-ids",
        "table-ids", "table-schemas", "schema-versions", "checksums", "zones", "zerofill",
    },
    "craft": {
        "watermarks", "commit-ts", "deletes", "old-values", "flags", "type-names",
        "partition-ids", "ddl-codes",
    },
    "cdc": {"commit-ts", "flags", "type-names", "ddl-codes"},
}  # fmt: skip


def not_carried(source: str, target: str, options: EncodeOptions) -> list[str]:
    """What messages of the source protocol have and those of the target, so set, have not."""
    carried = set(_CARRIED[target])
    if target == "canal-json" and not options.enable_tidb_extension:
        carried -= {"watermarks", "commit-ts"}
    if target == "open-protocol" and not options.output_old_value:
        carried -= {"old-values"}
    if target == "cdc" and options.profile == "operations":
        carried |= {"deletes"}
    return [words for fact, words in _FACTS.items() if fact in _CARRIED[source] - carried]
