"""What each protocol can carry, and so what a conversion loses."""

from __future__ import annotations

from tidegate.wire.options import EncodeOptions

_FACTS = {
    "watermarks": "watermarks",
    "commit-ts": "the exact commit timestamp (only its milliseconds)",
    "deletes": "deletes",
    "old-values": "the values before an update",
    "keys-only": "rows of which only the key is there (handle-key-only, claim checks not loaded)",
    "flags": "column flags (nullable, unique, generated)",
    "type-names": "the types of columns in each message (they are in its schema messages)",
    "partition-ids": "the ids of partitions of partitioned tables",
    "table-ids": "table ids",
    "table-schemas": "whole table schemas (defaults, indexes, lengths)",
    "schema-versions": "schema versions",
    "checksums": "row checksums",
    "zones": "the time zone of TIMESTAMP values",
    "ddl-codes": "TiDB's number for each kind of DDL",
    "ddl-names": "the names of database and table beside a DDL (only in the schemas it brings)",
    "zerofill": "ZEROFILL",
}

_CARRIED = {
    "open-protocol": {
        "watermarks", "commit-ts", "deletes", "old-values", "flags", "type-names",
        "partition-ids", "ddl-codes", "ddl-names", "keys-only",
    },
    "canal-json": {
        "watermarks", "commit-ts", "deletes", "old-values", "type-names", "zerofill", "ddl-names",
        "keys-only",
    },
    "simple": {
        "watermarks", "commit-ts", "deletes", "old-values", "type-names", "partition-ids",
        "table-ids", "table-schemas", "schema-versions", "checksums", "zones", "zerofill",
        "keys-only",
    },
    "craft": {
        "watermarks", "commit-ts", "deletes", "old-values", "flags", "type-names",
        "partition-ids", "ddl-codes", "ddl-names",
    },
    "cdc": {"commit-ts", "flags", "type-names", "ddl-codes", "ddl-names"},
}  # fmt: skip


def not_carried(source: str, target: str, options: EncodeOptions) -> list[str]:
    """What messages of the source protocol have and those of the target, so set, have not."""
    lost = _CARRIED[source] - _carried(target, options)
    return [words for fact, words in _FACTS.items() if fact in lost]


def carries_deletes(target: str, options: EncodeOptions) -> bool:
    """Whether messages of this protocol, so set, can say that a row is gone."""
    return "deletes" in _carried(target, options)


def _carried(target: str, options: EncodeOptions) -> set[str]:
    carried = set(_CARRIED[target])
    if target == "canal-json" and not options.enable_tidb_extension:
        carried -= {"watermarks", "commit-ts", "keys-only"}
    if target == "open-protocol" and not options.output_old_value:
        carried -= {"old-values"}
    if target == "cdc" and options.profile == "operations":
        carried |= {"deletes"}
    return carried
