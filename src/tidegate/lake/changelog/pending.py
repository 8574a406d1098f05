"""The files of a changelog that may have what the tables have not, with their summaries.

What rows a step has is decided here from summaries, all groups of all files at once. Only where a
group lies on both sides of a statement, of the target, or of what was applied, are rows read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.lake.changelog.interval import Interval, RowBounds
from tidegate.lake.changelog.summary import GROUP_SCHEMA, FileSummary
from tidegate.lake.storage.log_files import LogFile

_NOTHING = -1
FILE = "_file"
"""The column with the number of the file that a group is of."""
DECIDED = [*("database", "table", "kind", "shape", "schema_version"), "segment", "late", "flags"]
"""What rows are counted by."""


@dataclass(slots=True)
class PendingFile:
    """A file with its summary."""

    file: LogFile
    summary: FileSummary
    number: int = 0
    is_observed: bool = False
    is_taken: bool = False
    """Whether the mirror's state covers all its offsets."""
    last: dict[tuple[str, int], int] = field(default_factory=dict)
    """The last offset of each partition."""
    last_ts: int = _NOTHING
    """The highest commit_ts of its row changes."""

    def __post_init__(self) -> None:
        columns = self.summary.sources.select(["topic", "partition", "last_offset"]).to_pydict()
        self.last = {
            (topic, partition): at for topic, partition, at in zip(*columns.values(), strict=True)
        }
        highest = pc.max(self.summary.groups["last_ts"]).as_py()
        self.last_ts = _NOTHING if highest is None else highest

    def is_beyond(self, known: Mapping[tuple[str, int], int]) -> bool:
        """Whether it has anything beyond known offsets."""
        return any(at > known.get(source, _NOTHING) for source, at in self.last.items())

    def is_wholly_beyond(self, known: Mapping[tuple[str, int], int]) -> bool:
        """Whether all of it is beyond known offsets."""
        sources = self.summary.sources
        columns = (sources[name].to_pylist() for name in ("topic", "partition", "first_offset"))
        return all(
            first > known.get((topic, partition), _NOTHING)
            for topic, partition, first in zip(*columns, strict=True)
        )


@dataclass(slots=True)
class FreshFiles:
    """The files that may have what the tables have not, from step to step.

    To plan a whole changelog takes longer the older it is; what was added since the last look is in
    the versions since.
    """

    version: int | None = None
    files: dict[str, PendingFile] = field(default_factory=dict)
    _numbers: int = 0

    def add(self, file: LogFile, summary: FileSummary) -> None:
        """Adds a file."""
        self._numbers += 1
        self.files[file.path] = PendingFile(file, summary, self._numbers)

    def prune(self, taken: Mapping[tuple[str, int], int], applied_ts: int | None) -> None:
        """Drops the files that the tables have all of; `applied_ts` None: whatever is taken."""
        for path in self.files.keys() - self.needed(taken, applied_ts):
            del self.files[path]

    def needed(self, taken: Mapping[tuple[str, int], int], applied_ts: int | None) -> set[str]:
        """The paths of the files that have anything the tables have not."""
        for each in self.files.values():
            each.is_taken = each.is_taken or not each.is_beyond(taken)
        return {
            path
            for path, each in self.files.items()
            if not each.is_taken or (applied_ts is not None and each.last_ts > applied_ts)
        }

    def groups(self) -> pa.Table:
        """The groups of all files, with the number of the file."""
        parts = [GROUP_SCHEMA.append(pa.field(FILE, pa.int64())).empty_table()]
        for each in self.files.values():
            groups = each.summary.groups
            numbers = pa.repeat(pa.scalar(each.number, pa.int64()), groups.num_rows)
            parts.append(groups.append_column(FILE, numbers))
        return pa.concat_tables(parts).combine_chunks()

    def numbered(self, numbers: Iterable[int]) -> list[LogFile]:
        """The files with these numbers."""
        wanted = set(numbers)
        return [each.file for each in self.files.values() if each.number in wanted]


@dataclass(frozen=True, slots=True)
class Decision:
    """What summaries say of an interval: rows that were counted, and where rows must be read."""

    counted: pa.Table
    files: list[int]
    tables: list[str]
    """Names of tables, without those of their databases, of which rows are read in the files."""


def decide(groups: pa.Table, interval: Interval, bounds: RowBounds) -> Decision:
    """Counts the groups that are wholly within a segment of an interval."""
    first, last = groups["first_ts"], groups["last_ts"]
    known = offsets_of(groups, bounds.beyond)
    some_beyond = pc.greater(groups["last_offset"], known)
    all_beyond = pc.greater(groups["first_offset"], known)
    if bounds.after is None or bounds.until is None:
        touched, whole = some_beyond, all_beyond
        if bounds.loaded:
            touched = pc.and_(touched, pc.greater(last, bounds.loaded))
            whole = pc.and_(whole, pc.greater(first, bounds.loaded))
        late: Any = pc.and_(whole, False)
    else:
        counts = pc.invert(_is_closed(groups, bounds.closed))
        if bounds.loaded:
            counts = pc.and_(counts, pc.greater(last, bounds.loaded))
        after, until = bounds.after, bounds.until
        at = pc.and_(pc.less_equal(first, after), pc.greater_equal(last, after))
        some_late = pc.and_(pc.and_(at, some_beyond), counts)
        fresh = pc.and_(pc.greater(last, after), pc.less_equal(first, until))
        touched = pc.or_(fresh, some_late)
        late = pc.and_(pc.and_(pc.equal(first, after), pc.equal(last, after)), all_beyond)
        late = pc.and_(late, counts)
        inside = pc.and_(pc.greater(first, after), pc.less_equal(last, until))
        whole = pc.or_(inside, late)
    segment = segments(first, interval.cuts)
    whole = pc.and_(whole, pc.equal(segment, segments(last, interval.cuts)))
    straddling = groups.filter(pc.and_(touched, pc.invert(whole)))
    files = straddling[FILE].unique()
    tables = straddling["table"].unique()
    # Of a table that is read in a file, no group is counted from that file's summary.
    is_read = pc.and_(pc.is_in(groups[FILE], files), pc.is_in(groups["table"], tables))
    table = groups.append_column("segment", segment).append_column("late", late)
    counted = table.filter(pc.and_(pc.and_(touched, whole), pc.invert(is_read)))
    return Decision(counted, files.to_pylist(), [each or "" for each in tables.to_pylist()])


def segments(ts: pa.Array | pa.ChunkedArray, cuts: Iterable[int]) -> pa.Array | pa.ChunkedArray:
    """The number of cuts before each commit_ts."""
    nothing = pc.multiply(ts, 0)
    passed = (pc.greater(ts, cut).cast(pa.int64()) for cut in cuts)
    return reduce(pc.add, passed, nothing)


def offsets_of(table: pa.Table, known: Mapping[tuple[str, int], int]) -> pa.Array:
    """The last known offset of each row's partition, or -1."""
    names = ["topic", "partition"]
    sources = table.select(names).group_by(names, use_threads=False).aggregate([]).to_pydict()
    pairs = list(zip(sources["topic"], sources["partition"], strict=True))
    offsets = pa.array([known.get(pair, _NOTHING) for pair in pairs], pa.int64())
    keys = pa.array([f"{topic}/{partition}" for topic, partition in pairs], pa.string())
    own = pc.binary_join_element_wise(table["topic"], table["partition"].cast(pa.string()), "/")
    return offsets.take(pc.index_in(own, keys).combine_chunks())


def _is_closed(groups: pa.Table, closed: Iterable[tuple[str, str]]) -> Any:
    """Whether groups are of closed tables; an empty table stands for all of its database."""
    keys = pa.array(["\0".join(name) for name in closed], pa.string())
    database, table = (
        pc.utf8_lower(pc.fill_null(groups[name], "")) for name in ("database", "table")
    )
    by_name = pc.is_in(pc.binary_join_element_wise(database, table, "\0"), keys)
    return pc.or_(by_name, pc.is_in(pc.binary_join_element_wise(database, "", "\0"), keys))
