"""One mirror at a time: a lock on the lake's folder, held by the process and gone with it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate.model import LakeError


@contextmanager
def lake_lock(folder: Path) -> Iterator[None]:
    """Holds the lock of a local lake, or raises LakeError if another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mirror.lock"
    with open(path, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise LakeError(
                f"Another mirror (process {holder}) is at work on the lake {str(folder)!r}",
                "Stop it first, or give this one a lake of its own",
            ) from None
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield
