"""Captures as a source of ingest: files of messages, planned as ranges of rows.

A position has the files in the order in which they were first seen, and the next row. Only a
folder of Parquet files may get more files; a file that was read and changed is refused. Offsets
that a capture lacks are counted over all of it, in that order.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.model import SourceError
from tidegate.source.base import (
    RoundLimits,
    RoundPlan,
    Source,
    SourcePosition,
    SourceSplit,
    SplitReader,
)
from tidegate.source.capture_index import (
    CaptureIndex,
    CapturePlace,
    Mark,
    indexed,
    numbered_lines,
)
from tidegate.source.files import CaptureFiles, FileState
from tidegate.source.sharing import split_size
from tidegate.wire import CAPTURE_SCHEMA
from tidegate.wire.capture import (
    BATCH_BYTES,
    BATCH_ROWS,
    OffsetCounter,
    is_parquet,
    kafka_columns,
    line_batches,
    parquet_file,
)

INDEX_THREADS = 8
DICTIONARY_BYTES = 2 << 20
"""More than a dictionary of values has in Parquet."""
FEW_ROWS = 256


# --- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CaptureReader(SplitReader):
    """Reads rows of capture files."""

    files: CaptureFiles

    def read(self, split: SourceSplit) -> Iterator[pa.RecordBatch]:
        for part in split.place["parts"]:
            yield from self._rows(**part)

    def _rows(
        self,
        file: str,
        size: int,
        start: int,
        end: int,
        counts: list[list[Any]],
        mark: list[int] | None,
    ) -> Iterator[pa.RecordBatch]:
        name = self.files.name_of(file)
        offsets = OffsetCounter({(topic, number): count for topic, number, count in counts})
        with self.files.open(file) as content:
            if content.seek(0, os.SEEK_END) != size:
                raise _changed(self.files, file)
            content.seek(0)
            if is_parquet(name, content):
                yield from _parquet_rows(name, content, start, end, offsets)
            else:
                place = Mark(*mark) if mark else Mark(0, 0, 1)
                lines = numbered_lines(name, content, place, start, end)
                yield from line_batches(name, lines, offsets)


def _parquet_rows(
    name: str, content: Any, start: int, end: int, offsets: OffsetCounter
) -> Iterator[pa.RecordBatch]:
    with parquet_file(name, content) as file:
        columns = [each for each in CAPTURE_SCHEMA.names if each in file.schema_arrow.names]
        row = 0
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            after = row + group.num_rows
            if after > start and row < end:
                rows = _batch_rows(group.num_rows, group.total_byte_size)
                for batch in file.iter_batches(rows, row_groups=[number], columns=columns):
                    first, last = max(0, start - row), min(batch.num_rows, end - row)
                    if first < last:
                        yield kafka_columns(batch.slice(first, last - first), offsets)
                    row += batch.num_rows
                    if row >= end:
                        break
            row = after


def _batch_rows(rows: int, size: int) -> int:
    """How many rows of a group to read at once."""
    if size < DICTIONARY_BYTES:
        # A value that repeats is in the file once: rows may have any part of this size each.
        return FEW_ROWS
    return max(1, min(BATCH_ROWS, BATCH_BYTES * rows // size))


# --- planning -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Known:
    """A file that a position remembers."""

    state: FileState
    checksum: str

    def to_list(self) -> list[Any]:
        return [self.state.name, self.state.size, self.state.changed_ns, self.checksum]


@dataclass(slots=True)
class _Piece:
    """Rows of one file that one task reads."""

    place: dict[str, Any]
    rows: int
    size: int


@dataclass(slots=True)
class _Group:
    """Pieces that one task reads."""

    pieces: list[_Piece] = field(default_factory=list)
    rows: int = 0
    size: int = 0

    def has_room(self, piece: _Piece, rows: int, size: int) -> bool:
        return self.rows + piece.rows <= rows and self.size + piece.size <= size

    def add(self, piece: _Piece) -> None:
        self.pieces.append(piece)
        self.rows += piece.rows
        self.size += piece.size

    def split(self) -> SourceSplit:
        return SourceSplit({"parts": [piece.place for piece in self.pieces]}, self.rows)


class CaptureSource(Source):
    """A capture: a file of JSON lines or Parquet, or a folder of them.

    `partition_num` is how many partitions each topic is said to have; `properties` are those of
    the storage of a capture that is not local (see CaptureFiles).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        partition_num: int | None = None,
        properties: Mapping[str, str] | None = None,
        tasks: int | None = None,
    ) -> None:
        self._files = CaptureFiles(os.fspath(path), dict(properties or {}))
        self._partition_num = partition_num
        self._tasks = tasks or 2 * (os.cpu_count() or 1)
        self._indexes: dict[FileState, CaptureIndex] = {}

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"capture": self._files.identity}

    @property
    def reader(self) -> SplitReader:
        return CaptureReader(self._files)

    def plan(self, position: SourcePosition, limits: RoundLimits) -> RoundPlan:
        files = self._in_order(position)
        unread = files[position.get("at", (0, 0))[0] :]
        self._index(unread)
        walk = _Walk(self._indexes, position, unread)
        splits = walk.splits(limits, self._tasks)
        places = walk.places.union(*(self._indexes[state].places for state in unread))
        return RoundPlan(
            splits=tuple(splits),
            position=walk.position([self._known(state, position) for state in files]),
            partitions=self._partitions(places),
            behind=walk.left,
        )

    def head(self, count: int) -> list[tuple[bytes | None, bytes | None]]:
        messages: list[tuple[bytes | None, bytes | None]] = []
        for state in self._in_order({}):
            place = {"file": state.name, "size": state.size, "start": 0, "end": count}
            split = SourceSplit({"parts": [place | {"counts": [], "mark": None}]})
            for batch in self.reader.read(split):
                messages += zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
                if len(messages) >= count:
                    return messages[:count]
        return messages

    # --- files ------------------------------------------------------------------------------------

    def _in_order(self, position: SourcePosition) -> list[FileState]:
        """All files, those that the position knows first; SourceError where these have changed."""
        states, is_folder = self._files.listed()
        by_name = {state.name: state for state in states}
        known = [_Known(FileState(*each[:3]), each[3]) for each in position.get("files", ())]
        for each in known:
            self._check(each, by_name.get(each.state.name))
        names = {each.state.name for each in known}
        new = [state for state in states if state.name not in names]
        if known and new and not (is_folder and all(_is_parquet_name(name) for name in by_name)):
            raise SourceError(
                f"the capture {self._files.path!r}",
                f"it has the new file {new[0].name!r}, and only a folder of Parquet files may get "
                "more files",
                "Remove the file, or mirror the capture into a new lake",
            )
        return [by_name[each.state.name] for each in known] + new

    def _check(self, known: _Known, now: FileState | None) -> None:
        if now is None:
            raise SourceError(
                f"the capture {self._files.path!r}",
                f"its file {known.state.name!r}, which was read before, does not exist any more",
                "Put the file back",
            )
        if now == known.state:
            return
        # A file that was copied or touched is the same one.
        if now.size == known.state.size:
            self._index([now])
            if self._indexes[now].checksum == known.checksum:
                return
        raise _changed(self._files, known.state.name)

    def _index(self, states: list[FileState]) -> None:
        wanted = [state for state in states if state not in self._indexes]
        if len(wanted) < 2:
            indexes = list(map(self._indexed, wanted))
        else:
            with ThreadPoolExecutor(INDEX_THREADS) as threads:
                indexes = list(threads.map(self._indexed, wanted))
        self._indexes |= zip(wanted, indexes, strict=True)

    def _indexed(self, state: FileState) -> CaptureIndex:
        with self._files.open(state.name) as content:
            return indexed(self._files.name_of(state.name), content)

    def _known(self, state: FileState, position: SourcePosition) -> list[Any]:
        index = self._indexes.get(state)
        if index is not None:
            return _Known(state, index.checksum).to_list()
        # It was read before, and not looked at now.
        return next(list(each) for each in position["files"] if each[0] == state.name)

    def _partitions(self, places: frozenset[CapturePlace]) -> frozenset[tuple[str, int]]:
        partitions = {(topic or "", number) for topic, number in places}
        if self._partition_num is not None:
            for topic in {topic for topic, _ in partitions} or {""}:
                partitions |= {(topic, number) for number in range(self._partition_num)}
        return frozenset(partitions)


class _Walk:
    """The way through the files from a position on; counts offsets where files have none."""

    def __init__(
        self,
        indexes: Mapping[FileState, CaptureIndex],
        position: SourcePosition,
        unread: list[FileState],
    ) -> None:
        self._indexes = indexes
        self._unread = unread
        self._number, self._row = position.get("at", (0, 0))
        self._first = self._number
        self._counts: Counter[CapturePlace] = Counter(
            {(topic, partition): count for topic, partition, count in position.get("counts", ())}
        )
        self.places = frozenset(
            (topic, partition) for topic, partition in position.get("partitions", ())
        )
        self.left = sum(indexes[state].rows for state in unread) - self._row

    def splits(self, limits: RoundLimits, tasks: int) -> list[SourceSplit]:
        """What tasks read."""
        rows = self.left if limits.messages is None else min(limits.messages, self.left)
        room = limits.bytes
        most = split_size(rows, limits.split_messages, tasks)
        groups: list[_Group] = []
        while rows and (room is None or room > 0):
            budget = limits.split_bytes if room is None else min(room, limits.split_bytes)
            state, index = self._file()
            piece = self._piece(state, index, rows if index.is_compressed else most, rows, budget)
            if not groups or not groups[-1].has_room(piece, most, limits.split_bytes):
                groups.append(_Group())
            groups[-1].add(piece)
            rows -= piece.rows
            self.left -= piece.rows
            room = None if room is None else room - piece.size
        return [group.split() for group in groups]

    def _file(self) -> tuple[FileState, CaptureIndex]:
        """The file that has the next row."""
        while True:
            state = self._unread[self._number - self._first]
            index = self._indexes[state]
            if self._row < index.rows:
                return state, index
            self._leave(index)

    def _leave(self, index: CaptureIndex) -> None:
        """Goes on to the next file."""
        self._counts.update(index.counts_before(index.rows))
        self.places |= index.places
        self._number, self._row = self._number + 1, 0

    def _piece(
        self, state: FileState, index: CaptureIndex, most: int, rows: int, budget: int
    ) -> _Piece:
        """Rows from here on, of one group of rows of Parquet."""
        start = self._row
        group_end, per_row = _group_at(index, start)
        end = min(group_end, start + min(most, rows), start + max(1, int(budget / per_row)))
        counts = self._counts + Counter(index.counts_before(start))
        mark = index.mark_before(start) if index.marks else None
        place = {
            "file": state.name,
            "size": state.size,
            "start": start,
            "end": end,
            "counts": [] if index.unnumbered is None else _listed(counts),
            "mark": None if mark is None else [mark.row, mark.byte, mark.line],
        }
        self._row = end
        return _Piece(place, end - start, int((end - start) * per_row))

    def position(self, files: list[list[Any]]) -> dict[str, Any]:
        """How far this is; with what must be known of the files that are read."""
        while self._number - self._first < len(self._unread):
            index = self._indexes[self._unread[self._number - self._first]]
            if self._row < index.rows:
                break
            self._leave(index)
        return {
            "files": files,
            "at": [self._number, self._row],
            "counts": _listed(self._counts),
            "partitions": [list(place) for place in sorted(self.places, key=_by_name)],
        }


def _listed(counts: Mapping[CapturePlace, int]) -> list[list[Any]]:
    return [[*place, counts[place]] for place in sorted(counts, key=_by_name)]


def _by_name(place: CapturePlace) -> tuple[str, int]:
    return place[0] or "", place[1]


def _group_at(index: CaptureIndex, row: int) -> tuple[int, float]:
    """Where the group of rows ends that a row is in, and about how many bytes each has."""
    end = 0
    for group in index.groups:
        end += group.rows
        if row < end:
            return end, max(1.0, group.size / group.rows)
    return index.rows, max(1.0, index.size / max(1, index.rows))


def _is_parquet_name(name: str) -> bool:
    return name.endswith(".parquet")


def _changed(files: CaptureFiles, name: str) -> SourceError:
    return SourceError(
        f"the capture {files.path!r}",
        f"its file {name!r} was changed after it was read",
        "Put the file back as it was, or mirror the capture into a new lake",
    )
