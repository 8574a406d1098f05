"""Iceberg and Delta: `open_format` gives the tables of a lake in one of them.

`base` says what the mirror asks of a table format, `log_table` what it asks of the tables of a
lake's own. Each format is a package that knows nothing of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.lake.formats.base import LakePlace, TableFormat


def session_settings(place: LakePlace, format_name: str) -> dict[str, str]:
    """The Spark settings with which a session can reach the tables of a lake."""
    from tidegate.lake.formats import delta, iceberg

    settings: dict[str, Callable[[LakePlace], dict[str, str]]] = {
        "iceberg": iceberg.session_settings,
        "delta": delta.session_settings,
    }
    return settings[format_name](place)


def has_lake(name: str, spark: SparkSession, place: LakePlace) -> bool:
    """Whether there is a lake in a place; nothing is made there."""
    from tidegate.lake.formats import delta, iceberg

    formats: dict[str, Callable[[SparkSession, LakePlace], bool]] = {
        "iceberg": iceberg.has_lake,
        "delta": delta.has_lake,
    }
    return formats[name](spark, place)


def open_format(name: str, spark: SparkSession, place: LakePlace) -> TableFormat:
    """The tables of a lake in one of the formats."""
    from tidegate.lake.formats.delta import DeltaFormat
    from tidegate.lake.formats.iceberg import IcebergFormat

    formats: dict[str, Callable[[SparkSession, LakePlace], TableFormat]] = {
        "iceberg": IcebergFormat,
        "delta": DeltaFormat,
    }
    return formats[name](spark, place)
