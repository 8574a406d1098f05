"""The names of a dump's files: what each holds, of which table, compressed how.

Names are `{db}.{table}.{index}.csv` and the like, with `%2E` for a dot in a name. The index is
missing where the template has none. Compression comes last (`.csv.gz`), but before `.parquet`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

METADATA = "metadata"

_COMPRESSIONS = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_COMPRESSIONS[".snappy"] = "snappy"
_PARQUET_INFIXES = (".snappy", ".zst", ".zstd", ".gz", ".gzip", ".lz4", ".br", ".none")
_OTHERS = (
    "-schema-sequence",
    "-schema-triggers",
    "-schema-post",
    "-placement-policy-create",
)
_IRRELEVANT = re.compile(r"[._].*|.*\.(?:log|crc|md5|sha256)|metadata\..*")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")


class FileKind(Enum):
    """What a file of a dump is for."""

    METADATA = "metadata"
    DATABASE = "database"
    TABLE = "table"
    VIEW = "view"
    DATA = "data"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FileName:
    """A file's name taken apart; `stem` is `db.table` (or `db`) with its escapes."""

    kind: FileKind
    stem: str = ""
    index: str = ""
    format: str = ""
    compression: str = ""


def parse(name: str) -> FileName | None:
    """What a name says, or None if no rule explains it."""
    if name == METADATA:
        return FileName(FileKind.METADATA)
    if _IRRELEVANT.fullmatch(name):
        return FileName(FileKind.OTHER)
    rest, compression = name, ""
    for suffix, algorithm in _COMPRESSIONS.items():
        if name.endswith(suffix):
            rest, compression = name.removesuffix(suffix), algorithm
            break
    stem, dot, extension = rest.rpartition(".")
    if not dot or extension not in ("sql", "csv", "parquet"):
        return None
    if extension == "sql" and (schema := _schema_file(stem, compression)) is not None:
        return schema
    if extension == "parquet":
        if compression:
            return None
        infix = next((each for each in _PARQUET_INFIXES if stem.endswith(each)), "")
        stem = stem.removesuffix(infix)
    return _data_file(stem, extension, compression)


def _schema_file(stem: str, compression: str) -> FileName | None:
    kinds = {
        "-schema-create": FileKind.DATABASE,
        "-schema-view": FileKind.VIEW,
        "-schema": FileKind.TABLE,
        **dict.fromkeys(_OTHERS, FileKind.OTHER),
    }
    for suffix, kind in kinds.items():
        if stem.endswith(suffix):
            return FileName(kind, stem.removesuffix(suffix), "", "sql", compression)
    return None


def _data_file(stem: str, extension: str, compression: str) -> FileName | None:
    parts = stem.split(".")
    if len(parts) == 2:
        return FileName(FileKind.DATA, stem, "", extension, compression)
    if len(parts) == 3 and parts[2].isdigit():
        return FileName(FileKind.DATA, ".".join(parts[:2]), parts[2], extension, compression)
    return None


def unescaped(part: str) -> str:
    """A name without its percent escapes."""
    data = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), part.encode())
    return data.decode(errors="replace")
