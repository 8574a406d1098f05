"""What several commands say in the same words."""

from __future__ import annotations

from typing import Any


def counted(number: int, noun: str) -> str:
    """How many of a thing: "1 row", "2,000 rows"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def waiting_line(entry: dict[str, Any]) -> str:
    """The rows of a table for which no schema has come yet."""
    rows, table = counted(entry["rows"], "row"), f"{entry['database']}.{entry['table']}"
    return f"waiting: {rows} of {table} for schema version {entry['version']}"
