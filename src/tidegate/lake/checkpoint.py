"""Spark's checkpoint of ingest: how far the feed has been read, and whether that can be believed.

Spark writes down the offsets of a batch before its events are in the changelog, and its commit
after. A checkpoint that says otherwise was damaged, or put back from an older copy: going on from
it would pass over events or take them twice.
"""

from __future__ import annotations

import json
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tidegate.lake.changelog import Offsets
from tidegate.model import LakeError

NAME = "checkpoint"
Ends = dict[tuple[str, int], int]


class Checkpoint:
    """The checkpoint in a folder, on whatever storage Spark reaches."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self.folder = folder
        self._jvm: Any = spark.sparkContext._jvm
        self._settings = spark.sparkContext._jsc.hadoopConfiguration()

    @classmethod
    def of(cls, spark: SparkSession, lake: str) -> Checkpoint:
        """The checkpoint of the lake in a folder."""
        return cls(spark, f"{lake.rstrip('/')}/{NAME}")

    # --- what it says -----------------------------------------------------------------------------

    def is_begun(self) -> bool:
        """Whether a batch of the feed was begun."""
        return bool(self._batches("offsets") or self._batches("commits"))

    def is_done(self) -> bool:
        """Whether the last batch that was begun is known to be in the changelog."""
        return self._batches("offsets")[-1:] == self._batches("commits")[-1:]

    def ends(self) -> Ends:
        """Up to which offset the last batch that was begun reads; nothing for captures.

        It has all partitions of the topics before the batch's events are in the changelog, so that
        a silent one is known in time.
        """
        begun = self._batches("offsets")
        if not begun:
            return {}
        found: Ends = {}
        for line in self._read(f"offsets/{begun[-1]}").splitlines()[2:]:
            found |= _kafka_offsets(line)
        return found

    def topics(self) -> list[str]:
        """The topics that were read so far; none of a damaged checkpoint, which `check` reports."""
        try:
            return sorted({topic for topic, _ in self.ends()})
        except (Py4JJavaError, ValueError):
            return []

    def starts(self) -> Ends:
        """From which offset a topic was read at first; nothing as long as that is not known."""
        if not self._exists("sources/0/0"):
            return {}
        text = self._read("sources/0/0")
        return _kafka_offsets(text[text.find("{") :])

    def remove_drafts(self) -> None:
        """Removes what a first batch that could not be begun has left: Spark would not start."""
        if self.is_begun():
            return
        for name in ("offsets", "commits"):
            path, files = self._path(name)
            files.delete(path, True)

    def remove(self) -> None:
        """Removes it whole: what it has read is of no use."""
        path = self._jvm.org.apache.hadoop.fs.Path(self.folder)
        path.getFileSystem(self._settings).delete(path, True)

    # --- whether it is right ----------------------------------------------------------------------

    def check(self, known: Offsets, floor: Offsets) -> None:
        """Raises LakeError where it cannot be, given the offsets that the changelog has.

        Up to the `floor` it may know less than the changelog: that much is passed over.
        """
        begun, done = (self._batches(name) for name in ("offsets", "commits"))
        last_begun, last_done = (batches[-1] if batches else -1 for batches in (begun, done))
        if (begun or done) and not self._exists("metadata"):
            raise self._damaged("its metadata is missing")
        if last_done not in (last_begun, last_begun - 1):
            raise self._damaged(f"batch {last_done} is done, but {last_begun} was the last begun")
        try:
            for name in ("metadata", f"commits/{last_done}"):
                if self._exists(name):
                    json.loads(self._read(name).removeprefix("v1\n"))
            ends = self.ends()
        except (Py4JJavaError, ValueError) as error:
            raise self._damaged(_sentence(error)) from error
        starts = self.starts()
        if last_done >= 0 and not known.last and any(ends[at] > starts.get(at, 0) for at in ends):
            raise self._damaged("it has read messages that the lake does not have")
        for (topic, partition), last in known.last.items():
            end = ends.get((topic, partition), 0)
            if topic and last >= end and last > floor.last.get((topic, partition), -1):
                raise self._damaged(
                    f"it ends at offset {end} of partition {partition} of topic {topic!r}, and the "
                    f"lake has later messages, up to {last}"
                )

    def _damaged(self, reason: str) -> LakeError:
        return LakeError(
            f"The checkpoint {self.folder!r} is damaged: {reason}",
            "Remove that folder and start the mirror again: it reads the topic from its beginning "
            "and passes over what the lake has",
        )

    # --- files ------------------------------------------------------------------------------------

    def _batches(self, name: str) -> list[int]:
        path, files = self._path(name)
        if not files.exists(path):
            return []
        names = [status.getPath().getName() for status in files.listStatus(path)]
        return sorted(int(name) for name in names if name.isdigit())

    def _exists(self, name: str) -> bool:
        path, files = self._path(name)
        return bool(files.exists(path))

    def _read(self, name: str) -> str:
        path, files = self._path(name)
        stream = files.open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def _path(self, name: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(self.folder, name)
        return path, path.getFileSystem(self._settings)


def _kafka_offsets(line: str) -> Ends:
    """What a line says of a topic's partitions; other sources write other things."""
    told = json.loads(line) if line.startswith("{") else {}
    return {
        (topic, int(partition)): offset
        for topic, offsets in told.items()
        if isinstance(offsets, dict)
        for partition, offset in offsets.items()
    }


def _sentence(error: Py4JJavaError | ValueError) -> str:
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    return text.splitlines()[0] if text else type(error).__name__
