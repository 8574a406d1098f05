"""One mirror at a time: a lock on the lake's folder, held by the process and gone with it.

The JVM holds one, too: when a mirror is killed, its JVM lives on for a moment and may still finish
a commit. The next mirror waits until it is gone.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tidegate.model import LakeError

LOCK = "mirror.lock"
ENDING_SECONDS = 120.0
"""How long to wait for the JVM of a mirror that was killed."""


@contextmanager
def lake_lock(folder: Path) -> Iterator[None]:
    """Holds the lock of a local lake, or raises LakeError if another process has it."""
    make_folder(folder)
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
        except BlockingIOError:
            holder = os.pread(lock, 20, 0).decode() or "unknown"
            raise LakeError(
                f"Another mirror (process {holder}) is at work on the lake {str(folder)!r}",
                "Stop it first, or give this one a lake of its own",
            ) from None
        except OSError as error:
            raise unwritable(folder, error) from error
        yield
    finally:
        os.close(lock)


def make_folder(folder: Path) -> None:
    """Makes a folder of a lake if it is not there; LakeError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error


def unwritable(folder: Path, error: OSError) -> LakeError:
    """What to say where a file of the lake cannot be written."""
    return LakeError(
        f"The lake {str(folder)!r} cannot be written to: {error.strerror}",
        "Make room there, or see to its permissions, and start the mirror again",
    )


@contextmanager
def jvm_lock(folder: Path, spark: SparkSession) -> Iterator[None]:
    """Holds the lock of a local lake in the JVM; for one who has `lake_lock`."""
    jvm: Any = spark.sparkContext._jvm
    file = jvm.java.io.RandomAccessFile(str(folder / "jvm.lock"), "rw")
    try:
        deadline = time.monotonic() + ENDING_SECONDS
        while (lock := file.getChannel().tryLock()) is None:
            if time.monotonic() > deadline:
                raise LakeError(
                    f"The Spark of an earlier mirror is still at work on the lake {str(folder)!r}",
                    "End that java process, then start the mirror again",
                )
            time.sleep(0.1)
        try:
            yield
        finally:
            lock.release()
    finally:
        file.close()
