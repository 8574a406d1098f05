"""Change feeds as Spark DataFrames: sessions and jars, sources, decoding, tables, progress."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.spark.decoding import CHANGE_TYPE, decode
    from tidegate.spark.metrics import Progress, Tally
    from tidegate.spark.publishing import Published, publish
    from tidegate.spark.queries import explained, progress
    from tidegate.spark.sessions import missing, session
    from tidegate.spark.sources import changes
    from tidegate.spark.tables import find_schema, table

# By name when first used: fetching jars needs no pyspark, a worker that decodes no session.
_HOMES = {
    "CHANGE_TYPE": "decoding",
    "Progress": "metrics",
    "Tally": "metrics",
    "Published": "publishing",
    "changes": "sources",
    "decode": "decoding",
    "explained": "queries",
    "find_schema": "tables",
    "missing": "sessions",
    "progress": "queries",
    "publish": "publishing",
    "session": "sessions",
    "table": "tables",
}

__all__ = [
    "CHANGE_TYPE",
    "Progress",
    "Published",
    "Tally",
    "changes",
    "decode",
    "explained",
    "find_schema",
    "missing",
    "progress",
    "publish",
    "session",
    "table",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
