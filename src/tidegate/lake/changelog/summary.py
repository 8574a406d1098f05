"""What a file of the changelog holds, in a few rows: the driver reads this instead of events.

The task that writes a file makes its summary. It travels to the driver with the task's report and
is kept in the file's Parquet footer, so that a restart reads footers only. A file without one was
not written by Tidegate; it is summarized by reading its narrow columns once.
"""

from __future__ import annotations

import io
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.changefeed.receive.gate import ROW_KINDS
from tidegate.changefeed.receive.watermarks import RUN_SCHEMA, WATERMARK_COLUMNS, reduced
from tidegate.wire.batch.change import CHANGE_SCHEMA

SUMMARY_KEY = b"tidegate.summary.1"
"""Where a Parquet footer has the summary; the number is that of its form."""

GROUP_KEYS = [
    *("topic", "partition", "database", "table", "kind", "shape", "schema_version", "flags"),
]
GROUP_SCHEMA = pa.schema(
    [CHANGE_SCHEMA.field(name).with_nullable(True) for name in GROUP_KEYS]
    + [(name, pa.int64()) for name in ("rows", "first_ts", "last_ts")]
    + [(name, pa.int64()) for name in ("first_offset", "last_offset")]
)
"""Row changes that have all of GROUP_KEYS in common."""

_COUNTS = ["rows", "statements", "schemas", "errors", "readable"]
SOURCE_SCHEMA = pa.schema(
    [
        *(CHANGE_SCHEMA.field(name) for name in ("topic", "partition")),
        *((name, pa.int64()) for name in ("first_offset", "last_offset")),
        ("last_statement", pa.int64()),
        *((name, pa.int64()) for name in _COUNTS),
    ]
)
"""What a partition has sent; `schemas` are those of tables, `readable` all but errors."""

NARROW = [
    *("topic", "partition", "offset", "event", "kind", "commit_ts", "database", "table"),
    *("shape", "schema_version", "flags"),
]
"""The columns that a summary is made of."""
_SOURCE = ["topic", "partition"]


@dataclass(frozen=True, slots=True)
class FileSummary:
    """The events of a file: row changes by group, all events by partition, watermarks as runs."""

    groups: pa.Table
    sources: pa.Table
    runs: pa.Table

    def to_text(self) -> str:
        """What `from_text` reads: compressed, and of plain characters."""
        stream = io.BytesIO()
        for table in (self.groups, self.sources, self.runs):
            with pa.ipc.new_stream(stream, table.schema) as writer:
                writer.write_table(table)
        return b64encode(zlib.compress(stream.getvalue())).decode()

    @classmethod
    def from_text(cls, text: str | bytes) -> FileSummary:
        """The summary that `to_text` wrote down."""
        stream = io.BytesIO(zlib.decompress(b64decode(text)))
        return cls(*(pa.ipc.open_stream(stream).read_all() for _ in range(3)))

    @property
    def has_control_events(self) -> bool:
        """Whether there are statements, table schemas or errors."""
        counts = (pc.sum(self.sources[name]).as_py() for name in _COUNTS[1:4])
        return any(counts)


def summarize(tables: Iterable[pa.Table]) -> FileSummary:
    """The summary of events, which have the columns NARROW at least."""
    summarizer = Summarizer()
    for table in tables:
        summarizer.add(table)
    return summarizer.finish()


@dataclass(slots=True)
class Summarizer:
    """Makes the summary of a file from what is written to it, part by part."""

    _groups: list[pa.Table] = field(default_factory=list)
    _sources: list[pa.Table] = field(default_factory=list)
    _watermarks: list[pa.Table] = field(default_factory=list)

    def add(self, events: pa.Table) -> None:
        """Takes in events."""
        narrow = events.select(NARROW)
        is_row = pc.is_in(narrow["kind"], pa.array(ROW_KINDS))
        rows = narrow.filter(is_row)
        if rows.num_rows:
            self._groups.append(_groups_of(rows))
        if rows.num_rows < narrow.num_rows:
            control = narrow.filter(pc.invert(is_row))
            self._sources.append(_merged_sources([_sources_of(control)]))
            marks = control.filter(pc.equal(control["kind"], "watermark"))
            self._watermarks.append(marks.select(WATERMARK_COLUMNS))

    def finish(self) -> FileSummary:
        """The summary of all that was added."""
        groups = _merged_groups(self._groups)
        sources = [*self._sources, *_sources_of_groups(groups)]
        if len(sources) != 1 or not self._sources:
            sources = [_merged_sources(sources)]
        runs = RUN_SCHEMA.empty_table()
        if self._watermarks:
            runs = reduced(pa.concat_tables(self._watermarks))
        return FileSummary(groups, sources[0], runs)


def _groups_of(rows: pa.Table) -> pa.Table:
    aggregates: list[Any] = [([], "count_all")]
    aggregates += [(name, of) for name in ("commit_ts", "offset") for of in ("min", "max")]
    grouped = rows.group_by(GROUP_KEYS, use_threads=False).aggregate(aggregates)
    names = ["count_all", "commit_ts_min", "commit_ts_max", "offset_min", "offset_max"]
    return grouped.select([*GROUP_KEYS, *names]).rename_columns(GROUP_SCHEMA.names)


def _merged_groups(parts: list[pa.Table]) -> pa.Table:
    if not parts:
        return GROUP_SCHEMA.empty_table()
    if len(parts) > 1:
        grouped = pa.concat_tables(parts).group_by(GROUP_KEYS, use_threads=False)
        merged = grouped.aggregate(
            [("rows", "sum"), ("first_ts", "min"), ("last_ts", "max")]
            + [("first_offset", "min"), ("last_offset", "max")]
        )
        names = ["rows_sum", "first_ts_min", "last_ts_max", "first_offset_min", "last_offset_max"]
        parts = [merged.select([*GROUP_KEYS, *names])]
    order = [(name, "ascending") for name in GROUP_KEYS]
    return parts[0].rename_columns(GROUP_SCHEMA.names).cast(GROUP_SCHEMA).sort_by(order)


def _sources_of(control: pa.Table) -> pa.Table:
    kind, ts = control["kind"], control["commit_ts"]
    is_statement, is_error = pc.equal(kind, "ddl"), pc.equal(kind, "error")
    of_table = pc.and_(pc.equal(kind, "schema"), pc.is_null(control["shape"]))
    nothing = pa.scalar(None, pa.int64())
    columns = {
        **{name: control[name] for name in _SOURCE},
        "first_offset": control["offset"],
        "last_offset": control["offset"],
        "last_statement": pc.if_else(is_statement, ts, nothing),
        "rows": pc.multiply(control["offset"], 0),
        "statements": is_statement,
        "schemas": of_table,
        "errors": is_error,
        "readable": pc.invert(is_error),
    }
    return pa.table(columns).cast(SOURCE_SCHEMA)


def _sources_of_groups(groups: pa.Table) -> Iterator[pa.Table]:
    if groups.num_rows:
        zero = pc.multiply(groups["rows"], 0)
        columns = [groups["first_offset"], groups["last_offset"]]
        columns += [pa.nulls(groups.num_rows, pa.int64()), groups["rows"], zero, zero, zero]
        keys = [groups[name] for name in _SOURCE]
        yield pa.table([*keys, *columns, groups["rows"]], schema=SOURCE_SCHEMA)


def _merged_sources(parts: list[pa.Table]) -> pa.Table:
    aggregates = [("first_offset", "min"), ("last_offset", "max"), ("last_statement", "max")]
    aggregates += [(name, "sum") for name in _COUNTS]
    sources = pa.concat_tables([SOURCE_SCHEMA.empty_table(), *parts])
    merged = sources.group_by(_SOURCE, use_threads=False).aggregate(aggregates)
    names = [*_SOURCE, *(f"{name}_{of}" for name, of in aggregates)]
    merged = merged.select(names).rename_columns(SOURCE_SCHEMA.names).cast(SOURCE_SCHEMA)
    return merged.sort_by([(name, "ascending") for name in _SOURCE])


EMPTY = summarize([])
"""The summary of no events."""
