"""Iceberg tables: format version 3, merge-on-read, in the lake's own catalog or in one given.

Every commit is a snapshot whose summary holds the position. What needs no rows goes through
Iceberg's Java API: a position is read without a job, and a change of columns is one transaction of
schema, properties and an empty snapshot. Rows go through Spark.
"""

from tidegate.lake.formats.iceberg.embedded import (
    CATALOG_FILE,
    log_properties,
    recorded,
    session_settings,
)
from tidegate.lake.formats.iceberg.format import IcebergFormat, has_lake

__all__ = [
    "CATALOG_FILE",
    "IcebergFormat",
    "has_lake",
    "log_properties",
    "recorded",
    "session_settings",
]
