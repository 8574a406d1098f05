"""What lies in the folder of a streaming query's checkpoint: Spark's offsets, and our own state.

Files are read and written as Spark does it, so the folder may be on any storage that Spark knows.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession


class CheckpointFolder:
    """The files of one folder."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._settings: Any = spark.sparkContext._jsc.hadoopConfiguration()
        self.folder = folder.rstrip("/")

    def path(self, *names: str) -> str:
        """The path of something in the folder."""
        return "/".join((self.folder, *names))

    def read(self, *names: str) -> str | None:
        """The text of a file; None if it is not there."""
        path, files = self._at(*names)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, text: str, *names: str) -> None:
        """Writes a file; it is there whole, or as it was before."""
        scratch, files = self._at(*names[:-1], f".{names[-1]}.writing")
        target, _ = self._at(*names)
        stream = files.create(scratch, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        files.delete(target, False)
        if not files.rename(scratch, target):
            raise OSError(f"{target} could not be written")

    def names(self, *folder: str) -> list[str]:
        """What is in a folder, in order."""
        path, files = self._at(*folder)
        if not files.exists(path):
            return []
        return sorted(str(status.getPath().getName()) for status in files.listStatus(path))

    def remove(self, *names: str) -> None:
        """Removes a file or folder, if it is there."""
        path, files = self._at(*names)
        files.delete(path, True)

    def partitions(self, batch: int | None = None) -> list[tuple[str, int]]:
        """All partitions of the feed's topics in a batch, or the last one begun; none for captures.

        Spark writes them down before the batch is read: a partition that has said nothing yet is
        known in time.
        """
        if batch is None:
            numbers = [int(name) for name in self.names("offsets") if name.isdigit()]
            if not numbers:
                return []
            batch = max(numbers)
        found: list[tuple[str, int]] = []
        for line in (self.read("offsets", str(batch)) or "").splitlines()[2:]:
            told = json.loads(line) if line.startswith("{") else {}
            for topic, offsets in told.items():
                if isinstance(offsets, dict):
                    found += [(topic, int(partition)) for partition in offsets]
        return sorted(found)

    def _at(self, *names: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(self.path(*names))
        return path, path.getFileSystem(self._settings)
