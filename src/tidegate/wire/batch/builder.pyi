"""The change batch under construction, compiled: see builder.pyx."""

from collections.abc import Sequence

FAULTS: tuple[tuple[str, str], ...]

def shape_id_of(
    database: str, table: str, columns: Sequence[tuple[str, str, int, int, bool]]
) -> int: ...
