"""How the lake names things: columns of its own, folders for tables."""

from __future__ import annotations

import re
import uuid


def own(name: str) -> str:
    """A column of ours beside those of a table: MySQL lets no name end with a space."""
    return f"{name} "


def new_folder(database: str, table: str) -> str:
    """A folder for a table that no other table will ever have, since names are given again."""
    return f"{_plain(database)}/{_plain(table)}-{uuid.uuid4().hex[:12]}"


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:60] or "_"
