"""Which table a DDL of a change batch is about, before it and after it."""

from __future__ import annotations

import json
from typing import Any

from tidegate.feed.ddl import ChangeKind, transition

Name = tuple[str, str]


def ddl_tables(row: dict[str, Any]) -> tuple[Name | None, Name | None]:
    """The table of a DDL before it, where that is told, and after it; None for those of a database.

    The new architecture sends no schema of before; then the statement itself tells the old name.
    """
    new = (row["database"] or "", row["table"]) if row["table"] else None
    document = json.loads(row["schema"]) if row["schema"] else {}
    for member in ("tableSchema", "preTableSchema"):
        if new is None and document.get(member):
            new = document[member]["schema"], document[member]["table"]
    if document.get("preTableSchema"):
        before = document["preTableSchema"]
        return (before["schema"], before["table"]), new
    query = (row["ddl"] or {}).get("query") or ""
    if "RENAME" not in query.upper():
        return None, new
    change = transition(None, query, row["database"])
    if change.kind is not ChangeKind.RENAMED:
        return None, new
    old = change.tables[0]
    return (old.database or "", old.table), new
