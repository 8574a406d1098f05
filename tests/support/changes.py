"""Small change batches written by hand, for the rules of a feed."""

from typing import Any

import pyarrow as pa

from tidegate.wire import CHANGE_SCHEMA


def change(kind: str, commit_ts: int | None = None, at: str = "0/0", **more: Any) -> dict[str, Any]:
    """An event; `at` is PARTITION/OFFSET or PARTITION/OFFSET/EVENT."""
    partition, offset, event = [*map(int, at.split("/")), 0][:3]
    row = {"topic": "t", "partition": partition, "offset": offset, "event": event, "flags": 0}
    return row | {"kind": kind, "commit_ts": commit_ts} | more


def row(
    kind: str, commit_ts: int, at: str = "0/0", table: str = "a", **more: Any
) -> dict[str, Any]:
    return change(kind, commit_ts, at, database="d", table=table, **more)


def ddl(query: str, commit_ts: int, at: str = "0/0", table: str = "a") -> dict[str, Any]:
    return row("ddl", commit_ts, at, table, ddl={"type": "ALTER", "code": None, "query": query})


def watermark(commit_ts: int, at: str = "0/0") -> dict[str, Any]:
    return change("watermark", commit_ts, at)


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    """The events as a change batch."""
    return pa.RecordBatch.from_pylist(list(rows), CHANGE_SCHEMA)


def table(*rows: dict[str, Any]) -> pa.Table:
    """The events as a table."""
    return pa.Table.from_pylist(list(rows), CHANGE_SCHEMA)


def places(found: pa.Table) -> list[str]:
    """Where each event came from, as PARTITION/OFFSET."""
    return [f"{row['partition']}/{row['offset']}" for row in found.to_pylist()]
