"""Feeds that are mirrored by the commands alone: messages in, rows and states out.

A feed is a folder of captures that grows by one file at a time; each file is read by one run of
`tidegate mirror --once`. Only the command line is used, so nothing of the path is left out.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tidegate.cli.app import commands
from tidegate.model import LakeError
from tidegate.wire import write_capture

Ends = dict[tuple[str, int], int]

_MESSAGES = pa.schema(
    [
        ("value", pa.binary()),
        ("key", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)


class Sent(NamedTuple):
    """A message and where it was sent."""

    value: bytes
    key: bytes | None = None
    topic: str = "t"
    partition: int = 0


def run(*arguments: object) -> tuple[int, str]:
    """Runs a command in this process: its exit code and what it printed."""
    with redirect_stdout(io.StringIO()) as printed:
        code = commands.main(list(map(str, arguments)), standalone_mode=False)
    return code or 0, printed.getvalue()


def write_messages(path: Path, messages: Iterable[Sent | bytes], ends: Ends | None = None) -> None:
    """Writes a capture; `ends` are the next offsets of partitions, which it moves on."""
    ends = {} if ends is None else ends
    rows = []
    for each in messages:
        sent = each if isinstance(each, Sent) else Sent(each)
        place = sent.topic, sent.partition
        rows.append({**sent._asdict(), "offset": ends.get(place, 0)})
        ends[place] = ends.get(place, 0) + 1
    write_capture(path, [pa.RecordBatch.from_pylist(rows, _MESSAGES)])


class MirroredLake:
    """A lake, read by commands only."""

    def __init__(self, folder: Path, source: object, *options: object) -> None:
        self.folder = folder
        self._source = source
        self._options = options

    def mirror(self) -> int:
        """Reads and applies all that is in the source; the exit code."""
        lake = ("--lake", self.folder, "--once")
        return run("mirror", self._source, *lake, *self._options)[0]

    def rows(self, table: str) -> list[tuple[str | None, ...]] | None:
        """The rows of a table by key; None if the lake does not have it."""
        try:
            _, printed = run("read", table, "--lake", self.folder, "--output", "json")
        except LakeError as error:
            if "no table" in str(error):
                return None
            raise
        return sorted(tuple(json.loads(line).values()) for line in printed.splitlines())

    def status(self) -> dict[str, Any]:
        """What `tidegate status` prints for programs."""
        _, printed = run("status", "--lake", self.folder, "--output", "json")
        document: dict[str, Any] = json.loads(printed)
        return document

    def states(self) -> dict[str, str]:
        """The state of every table."""
        tables = self.status()["tables"]
        return {f"{each['database']}.{each['table']}": each["state"] for each in tables}


class CapturedFeed(MirroredLake):
    """A lake whose feed comes in parts: each is added to a folder of captures and mirrored."""

    def __init__(self, folder: Path, *options: object) -> None:
        self._captures = folder / "captures"
        self._captures.mkdir(parents=True)
        self._ends: Ends = {}
        self._parts = 0
        super().__init__(folder / "lake", self._captures, *options)

    def add(self, messages: Iterable[Sent | bytes]) -> int:
        """Adds messages to the feed and mirrors it; the exit code."""
        self._parts += 1
        write_messages(self._captures / f"{self._parts:04}.parquet", messages, self._ends)
        return self.mirror()
