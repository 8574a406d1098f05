"""The changelog: every event of a feed with its source position, for ever growing.

Ingest fills it, exactly once. Row changes are in files of their own, apart from all other events,
which are few; within a file they are sorted by table. Everything the mirror knows it has read from
here, by Arrow, file by file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidegate.changefeed.receive.gate import ROW_KINDS
from tidegate.changefeed.receive.schema_cache import SchemaCache, SchemaKey
from tidegate.changefeed.receive.watermarks import WATERMARK_COLUMNS, Run, reduced, runs_of
from tidegate.lake.changelog.interval import Interval
from tidegate.lake.changelog.pending import (
    DECIDED,
    FreshFiles,
    PendingFile,
    decide,
    segments,
)
from tidegate.lake.changelog.summary import (
    EMPTY,
    NARROW,
    SUMMARY_KEY,
    FileSummary,
    Summarizer,
    summarize,
)
from tidegate.lake.formats.base import TableFormat
from tidegate.lake.formats.log_table import LogRewritten, LogTable
from tidegate.lake.storage.file_store import FileStore
from tidegate.lake.storage.log_files import (
    LogFile,
    LogWriter,
    WrittenFile,
    holding,
    read_files,
    read_footer,
    row_groups,
)
from tidegate.lake.storage.predicates import (
    ALWAYS,
    Condition,
    above,
    above_by_partition,
    equal,
    every,
    is_null,
    one_of,
    some,
    up_to,
)
from tidegate.model import EventFlag, LakeError
from tidegate.sql.tables import Name
from tidegate.wire.batch.change import CHANGE_SCHEMA
from tidegate.wire.batch.updates import omit_unchanged

NAME = "changelog"
PARTIAL = EventFlag.HANDLE_KEY_ONLY | EventFlag.CLAIM_CHECK
"""Set where the rest of a row may be elsewhere: upstream, or in claim-check storage."""

CONTROL = "control"
"""The column that tells events about the feed from row changes, which are many times as many."""

OF_ROWS = equal(CONTROL, False)
"""Inserts, updates and deletes."""
OF_CONTROL = equal(CONTROL, True)
"""Watermarks, statements, schemas and bad messages."""
WATERMARKS = OF_CONTROL & equal("kind", "watermark")
OF_BAD_MESSAGES = OF_CONTROL & equal("kind", "error")

_PLACE = ["topic", "partition", "offset", "event"]
TOLD = [
    *(*_PLACE, "kind", "commit_ts", "database", "table"),
    *("shape", "schema_version", "ddl", "schema", "error"),
]
"""What is read of events about the feed."""
_GROUPED_BY = ["database", "table", "kind", "shape", "schema_version"]
EVENT_SCHEMA = pa.schema([*CHANGE_SCHEMA, (CONTROL, pa.bool_())])
"""The columns of the changelog."""
_OF_TABLES = OF_CONTROL & some(
    one_of("kind", ("ddl", "error")), equal("kind", "schema") & is_null("shape")
)
"""Statements, table schemas and bad messages."""
_ENDS = ("last_offset", "last_statement")
_FOOTERS_AT_ONCE = 16


def columns() -> StructType:
    """The columns of the changelog: those of a change batch, and CONTROL."""
    schema: StructType = from_arrow_schema(EVENT_SCHEMA)
    for each in schema:
        each.nullable = True
    return schema


def as_rows(events: pa.Table) -> pa.Table:
    """Events of a feed with the columns of the changelog.

    An update's `before` has only what differs from `after` (docs/batch.md).
    """
    batches = [omit_unchanged(batch) for batch in events.to_batches()]
    events = pa.Table.from_batches(batches, events.schema)
    topic = pc.fill_null(events["topic"], "")
    control = pc.invert(pc.is_in(events["kind"], pa.array(ROW_KINDS)))
    events = events.set_column(events.schema.get_field_index("topic"), "topic", topic)
    return events.append_column(CONTROL, control)


@dataclass(slots=True)
class Offsets:
    """The last offset seen of every partition of every topic."""

    last: dict[tuple[str, int], int] = field(default_factory=dict)

    def beyond(self) -> Condition:
        """Whether an event came after these."""
        return above_by_partition("offset", self.last, others=True)

    def advanced(self, seen: Mapping[tuple[str, int], int]) -> Offsets:
        """These and what was seen since."""
        return Offsets({**self.last, **seen})

    def to_object(self) -> list[list[str | int]]:
        """What `from_object` reads."""
        return [[topic, partition, at] for (topic, partition), at in sorted(self.last.items())]

    @classmethod
    def from_object(cls, told: list[list[str | int]]) -> Offsets:
        """The offsets that `to_object` wrote down."""
        return cls({(str(topic), int(partition)): int(at) for topic, partition, at in told})


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one table, kind and shape between two cuts: how many, first and last commit_ts.

    `moved` says that some of them are updates that were seen to take a row to another key;
    `partial`, with EventFlag's bits, that messages were too large and carried only keys.
    """

    database: str
    table: str
    kind: str
    shape: int
    schema_version: int | None
    segment: int
    late: bool
    moved: bool
    rows: int
    first_ts: int
    last_ts: int
    partial: int = 0


class ChangelogContent:
    """What the writer of a changelog's files knows of events."""

    key = SUMMARY_KEY
    group_columns: tuple[str, ...] = ("database", "table", "commit_ts")

    def summarizer(self) -> Summarizer:
        """What makes the summary of a file."""
        return Summarizer()

    def sections(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Watermarks apart from all else: readers of the others pass over them."""
        is_watermark = pc.equal(rows["kind"], "watermark")
        count = pc.sum(is_watermark.cast(pa.int64()), min_count=0).as_py()
        if not 0 < count < rows.num_rows:
            yield rows
            return
        yield rows.filter(pc.invert(is_watermark))
        yield rows.filter(is_watermark)


@dataclass(slots=True)
class Observed:
    """What new files have, from their summaries."""

    offsets: dict[tuple[str, int], int]
    """The last offset of every partition that has anything new."""
    events: pa.Table
    """New statements, table schemas and bad messages, in the order of arrival."""
    runs: list[Run]
    cut: Callable[[Run, int], list[Run]]
    """Watermarks as the gate takes them."""
    statements: dict[tuple[str, int], int]
    """The commit_ts of the last new statement of partitions."""
    readable: set[str]
    """Topics of which something new could be read."""
    groups: pa.Table

    def tables_of_rows(
        self, sources: Collection[tuple[str, int]], applied_ts: int
    ) -> dict[tuple[str, int], set[Name]]:
        """Those of the partitions that have sent new row changes, and the tables of later ones.

        A row at or before `applied_ts` does not say that its table still exists: it may have been
        sent again, after a statement that dropped or renamed the table.
        """
        if not sources:
            return {}
        topics = pa.array(sorted({topic for topic, _ in sources}), pa.string())
        names = ["topic", "partition", "database", "table"]
        rows = self.groups.filter(pc.is_in(self.groups["topic"], topics))
        grouped = (
            rows.group_by(names, use_threads=False).aggregate([("last_ts", "max")]).to_pylist()
        )
        by_source: dict[tuple[str, int], set[Name]] = {}
        for row in grouped:
            source = row["topic"], row["partition"]
            if source in sources:
                tables = by_source.setdefault(source, set())
                if row["last_ts_max"] > applied_ts:
                    tables.add(Name(row["database"] or "", row["table"] or ""))
        return by_source


@dataclass(slots=True)
class ChangelogMemory:
    """What a process knows of a changelog, whichever version it looks at."""

    reports: dict[str, WrittenFile] = field(default_factory=dict)
    """Files of which tasks have just said what they hold, by path, until they are looked at."""
    observed: Changelog | None = None
    """The version all of whose events a mirror in this process has observed."""


class Changelog:
    """A changelog at one of its versions, or (`version` None) as it is now."""

    def __init__(
        self,
        tables: TableFormat,
        log: LogTable,
        version: int | None = None,
        fresh: FreshFiles | None = None,
        store: FileStore | None = None,
        memory: ChangelogMemory | None = None,
    ) -> None:
        """`fresh` are the files that alone are looked at; `store` opens files, where known."""
        self.log = log
        self.version = version
        self._tables = tables
        self._fresh = fresh
        self._store = store
        self._memory = memory or ChangelogMemory()

    @classmethod
    def open(cls, tables: TableFormat) -> Changelog:
        """The changelog of a lake; created if it is not there."""
        log = tables.create_log(
            NAME,
            columns(),
            [CONTROL],
            bounded=["topic", "database", "table"],
            sorted_by=["database", "table"],
        )
        if log.partition_by != (CONTROL,):
            raise LakeError(
                "The lake was made by an earlier version of Tidegate, and cannot be continued",
                "Mirror the feed into a new --lake; the tables of this one stay readable",
            )
        return cls(tables, log)

    def now(self) -> Changelog:
        """The changelog as it is now and stays."""
        loaded = self.log.load()
        store = loaded.store()
        return Changelog(self._tables, self.log, loaded.version, store=store, memory=self._memory)

    def at(self, version: int) -> Changelog:
        """The changelog at a version, with all its files."""
        return Changelog(self._tables, self.log, version, memory=self._memory)

    def as_observed(self) -> Changelog:
        """The version that a mirror in this process has observed; without one, that of now."""
        observed = self._memory.observed
        if observed is None or observed.version is None:
            return self.now()
        return self.at(observed.version)

    def needed_files(
        self, taken: Offsets, applied_ts: int | None, since: int | None = None
    ) -> set[str]:
        """The paths of the files that may have what the tables have not; see `narrowed`."""
        observed = self._memory.observed
        fresh = None if observed is None else observed._fresh
        if fresh is None or fresh.version != self.version:
            fresh = FreshFiles()
            self.narrowed(fresh, taken, applied_ts, since)
        return fresh.needed(taken.last, applied_ts)

    def whole(self) -> Changelog:
        """The same with all its files, fresh or not."""
        return Changelog(
            self._tables, self.log, self.version, store=self._store, memory=self._memory
        )

    # --- files ------------------------------------------------------------------------------------

    def writer(self) -> LogWriter:
        """What writes files of the changelog, with their summaries, here or in a task."""
        return replace(self.log.writer(), content=ChangelogContent())

    def report(self, files: Iterable[WrittenFile]) -> None:
        """Says what files hold that are about to be committed."""
        self._memory.reports.update((file.path, file) for file in files)

    def narrowed(
        self,
        fresh: FreshFiles,
        taken: Offsets,
        applied_ts: int | None,
        since: int | None = None,
    ) -> Changelog:
        """The same, of whose files only those are looked at that may have what is needed.

        That is all beyond the offsets `taken`, and rows after `applied_ts`, unless that is None.
        `fresh` remembers the files for the next time; for the first time `since` is a version up to
        which everything was taken.
        """
        assert self.version is not None
        files = self._needed(fresh, taken, applied_ts, since)
        for path in fresh.files.keys() - files.keys():
            del fresh.files[path]
        new = [file for path, file in files.items() if path not in fresh.files]
        for file, summary in self.summaries(new):
            fresh.add(file, summary)
        fresh.prune(taken.last, applied_ts)
        fresh.version = self.version
        return Changelog(self._tables, self.log, self.version, fresh, self._store, self._memory)

    def _needed(
        self, fresh: FreshFiles, taken: Offsets, applied_ts: int | None, since: int | None
    ) -> dict[str, LogFile]:
        """The files that may have what is needed, by their paths."""
        assert self.version is not None
        later = OF_ROWS & above("commit_ts", applied_ts or 0)
        start = since if fresh.version is None else fresh.version
        try:
            if start is None:
                raise LogRewritten
            changes = self.log.changes(start, self.version)
        except LogRewritten:
            condition = taken.beyond() if applied_ts is None else taken.beyond() | later
            files = self.log.files(self.version, condition)
            return {file.path: file for file in files}
        files_now = {path: each.file for path, each in fresh.files.items()}
        for change in changes:
            # What a rewrite has of files that are not needed is not needed either.
            if not change.removed or files_now.keys() & change.removed:
                files_now.update((file.path, file) for file in change.added)
            else:
                for file in change.added:
                    self._memory.reports.pop(file.path, None)
            for path in change.removed:
                files_now.pop(path, None)
        if fresh.version is None and applied_ts is not None:
            held = self.log.files(self.version, later)
            files_now.update((file.path, file) for file in held)
        return files_now

    def summaries(self, files: Sequence[LogFile]) -> Iterator[tuple[LogFile, FileSummary]]:
        """The summaries of files, and the files with their groups of rows."""
        others = []
        for file in files:
            report = self._memory.reports.pop(file.path, None)
            if report is None or report.summary is None:
                others.append(file)
            else:
                yield replace(file, groups=report.groups), FileSummary.from_text(report.summary)
        if others:
            store = self.store
            with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
                footers = pool.map(lambda file: read_footer(store, file.path), others)
                for file, footer in zip(others, footers, strict=True):
                    text = (footer.metadata or {}).get(SUMMARY_KEY)
                    summary = (
                        self._read_summary([file], ALWAYS)
                        if text is None
                        else FileSummary.from_text(text)
                    )
                    groups = row_groups(footer, ChangelogContent.group_columns)
                    yield replace(file, groups=groups), summary

    def _read_summary(self, files: Sequence[LogFile], condition: Condition) -> FileSummary:
        """The summary of events that meet a condition, from their narrow columns."""
        batches = self._read(files, condition, NARROW)
        return summarize(pa.Table.from_batches([batch]) for batch in batches)

    def read(self) -> DataFrame:
        """All of it, by Spark."""
        return self._tables.read(self.log.identifier, self.version)

    def add(self, events: pa.Table) -> None:
        """Adds events, as they were decoded."""
        files = self.writer().write_here(as_rows(events))
        self.report(files)
        self.log.append(files)

    def files(self, condition: Condition) -> list[LogFile]:
        """The files that may have such events."""
        if self._fresh is not None:
            files = [each.file for each in self._fresh.files.values()]
            return self.holding(files, condition)
        version = self.log.version() if self.version is None else self.version
        return self.holding(self.log.files(version, condition), condition)

    def holding(self, files: Sequence[LogFile], condition: Condition) -> list[LogFile]:
        """Those of some files that may have such events."""
        return holding(files, condition, EVENT_SCHEMA)

    @property
    def store(self) -> FileStore:
        """What opens the files, here and in tasks; its credentials are those of now."""
        if self._store is None:
            self._store = self.log.store()
        return self._store

    def _batches(self, condition: Condition, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns of the events that meet a condition."""
        return self._read(self.files(condition), condition, columns)

    def _read(
        self, files: Sequence[LogFile], condition: Condition, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """The same in some files."""
        return read_files(self.store, files, condition, columns)

    # --- what is new ------------------------------------------------------------------------------

    def observe(self, known: Offsets) -> Observed:
        """What files have beyond known offsets that were not observed before."""
        assert self._fresh is not None
        files = [each for each in self._fresh.files.values() if not each.is_observed]
        new = [each for each in files if each.is_beyond(known.last)]
        parts = [
            each.summary
            if each.is_wholly_beyond(known.last)
            else self._read_summary([each.file], known.beyond())
            for each in new
        ]
        groups, sources, runs = (
            pa.concat_tables([getattr(each, name) for each in (EMPTY, *parts)])
            for name in ("groups", "sources", "runs")
        )
        places = zip(*(sources[name].to_pylist() for name in ("topic", "partition")), strict=True)
        offsets: dict[tuple[str, int], int] = {}
        statements: dict[tuple[str, int], int] = {}
        ends = zip(*(sources[name].to_pylist() for name in _ENDS), strict=True)
        for place, (offset, statement) in zip(places, ends, strict=True):
            offsets[place] = max(offset, offsets.get(place, offset))
            if statement is not None:
                statements[place] = max(statement, statements.get(place, statement))
        is_readable = pc.greater(sources["readable"], 0)
        readable = set(sources["topic"].filter(is_readable).unique().to_pylist())
        has_events = any(each.has_control_events for each in parts)
        return Observed(
            offsets,
            self._control_events(new, parts, known) if has_events else _few([]),
            runs_of(runs),
            lambda run, floor: self._cut(new, run, floor),
            statements,
            readable,
            groups,
        )

    def observed(self) -> None:
        """Notes that all files were observed."""
        assert self._fresh is not None
        self._memory.observed = self
        for each in self._fresh.files.values():
            each.is_observed = True

    def _control_events(
        self, new: Sequence[PendingFile], parts: Sequence[FileSummary], known: Offsets
    ) -> pa.Table:
        """Statements, table schemas and bad messages beyond known offsets."""
        files = {True: list[LogFile](), False: list[LogFile]()}
        for each, summary in zip(new, parts, strict=True):
            if summary.has_control_events:
                files[summary is each.summary].append(each.file)
        return _few(
            [
                *self._read(files[True], _OF_TABLES, TOLD),
                *self._read(files[False], _OF_TABLES & known.beyond(), TOLD),
            ]
        )

    def _cut(self, new: Sequence[PendingFile], run: Run, floor: int) -> list[Run]:
        """The watermarks of a run, reduced with a floor."""
        source = run.topic, run.partition
        files = [each.file for each in new if source in each.last]
        own = every(
            *(WATERMARKS, equal("topic", run.topic), equal("partition", run.partition)),
            *(above("offset", run.first_offset - 1), up_to("offset", run.last_offset)),
        )
        schema = pa.schema([EVENT_SCHEMA.field(name) for name in WATERMARK_COLUMNS])
        batches = [each.cast(schema) for each in self._read(files, own, WATERMARK_COLUMNS)]
        return runs_of(reduced(pa.Table.from_batches(batches, schema), {source: floor}))

    def watermarks(self, condition: Condition, columns: Sequence[str]) -> pa.Table:
        """Some columns of the watermarks that meet a condition."""
        return _few(self._batches(WATERMARKS & condition, columns), columns)

    def has_changes(self, condition: Condition) -> bool:
        """Whether any row change or statement meets a condition."""
        changes = condition & some(OF_ROWS, equal("kind", "ddl"))
        return next(self._batches(changes, ["kind"]), None) is not None

    def statements_since(self, ts: int) -> pa.Table:
        """All statements at or after a commit_ts."""
        later = every(OF_CONTROL, equal("kind", "ddl"), above("commit_ts", ts - 1))
        return _few(self.whole()._batches(later, TOLD))

    def first_ts(self) -> int:
        """The commit_ts of the first change."""
        kinds = F.col("kind").isin(*ROW_KINDS, "ddl")
        found = self.read().where(kinds).agg(F.min("commit_ts")).collect()
        return found[0][0] or 0

    def waiting(self, ts: int, cache: SchemaCache) -> dict[SchemaKey, int]:
        """How many rows after an instant wait for schemas that the cache does not have."""
        found: dict[SchemaKey, int] = {}
        for group in self.groups(Interval(OF_ROWS & above("commit_ts", ts))):
            if group.schema_version is not None:
                key = SchemaKey(group.database, group.table, group.schema_version)
                found[key] = found.get(key, 0) + group.rows
        return {key: rows for key, rows in found.items() if cache.schema(*key) is None}

    def shapes(self, wanted: Mapping[tuple[str, str], set[int]]) -> pa.Table:
        """The schema events of shapes by their tables, each once or more."""
        shapes = sorted(set().union(*wanted.values()))
        tables = sorted({table for _, table in wanted})
        condition = every(
            OF_CONTROL, equal("kind", "schema"), one_of("shape", shapes), one_of("table", tables)
        )
        columns = ["shape", "database", "table", "schema"]
        seen: dict[int, dict[str, Any]] = {}
        # Mostly shapes come with their first rows.
        for changelog in (self, self.whole()):
            for batch in changelog._batches(condition, columns):
                for row in batch.to_pylist():
                    seen.setdefault(row["shape"], row)
            if len(seen) == len(shapes):
                break
        return pa.Table.from_pylist(
            list(seen.values()), pa.schema([EVENT_SCHEMA.field(name) for name in columns])
        )

    # --- rows -------------------------------------------------------------------------------------

    def groups(self, interval: Interval) -> list[Group]:
        """What rows there are, counted by table, kind, shape and segment."""
        columns = [*_GROUPED_BY, "commit_ts", "flags"]
        if self._fresh is None or interval.bounds is None:
            batches = self._batches(interval.rows, columns)
            return joined(each for batch in batches for each in _grouped(batch, interval))
        decision = decide(self._fresh.groups(), interval, interval.bounds)
        counted = list(_counted(decision.counted))
        if decision.files:
            files = self._fresh.numbered(decision.files)
            condition = interval.rows & one_of("table", decision.tables)
            for batch in self._read(files, condition, columns):
                counted += _grouped(batch, interval)
        return joined(counted)

    def rows_by_table(
        self, condition: Condition, columns: Sequence[str]
    ) -> dict[tuple[str, str], pa.Table]:
        """Some columns of few row changes, by the names that their tables had then.

        All files are read once, however many tables there are; within a file, rows are sorted by
        table, so that cutting them apart copies nothing.
        """
        parts: dict[tuple[str, str], list[pa.RecordBatch]] = {}
        names = ["database", "table"]
        for batch in self._batches(condition, [*dict.fromkeys([*columns, *names])]):
            for name, part in _runs_of(batch, names):
                parts.setdefault((name[0], name[1]), []).append(part)
        return {name: pa.Table.from_batches(found) for name, found in parts.items()}


def by_arrival(events: pa.Table) -> pa.Table:
    """Events in the order of their arrival, as far as their columns tell it."""
    order = [(name, "ascending") for name in _PLACE if name in events.column_names]
    table: pa.Table = events.sort_by(order)
    return table


def _few(batches: Iterable[pa.RecordBatch], columns: Sequence[str] = TOLD) -> pa.Table:
    """Few events about the feed, in the order of arrival."""
    schema = pa.schema([EVENT_SCHEMA.field(name) for name in columns])
    return by_arrival(pa.Table.from_batches([each.cast(schema) for each in batches], schema))


def named(database: str, table: str) -> Condition:
    """Events of one table, by the name it had then."""
    return equal("database", database) & equal("table", table)


def of_table(database: str, table: str) -> Condition:
    """Row changes of one table."""
    return OF_ROWS & named(database, table)


def _runs_of(
    batch: pa.RecordBatch, columns: Sequence[str]
) -> Iterator[tuple[list[Any], pa.RecordBatch]]:
    """The batch cut where the values of some columns change."""
    changed = [
        pc.not_equal(batch[name].slice(1), batch[name].slice(0, batch.num_rows - 1))
        for name in columns
    ]
    cuts = pc.indices_nonzero(reduce(pc.or_, changed)).to_pylist()
    for start, end in pairwise([0, *(cut + 1 for cut in cuts), batch.num_rows]):
        yield [batch[name][start].as_py() for name in columns], batch.slice(start, end - start)


def _grouped(batch: pa.RecordBatch, interval: Interval) -> Iterator[dict[str, Any]]:
    """What rows a batch has, as `groups` counts them."""
    ts, size = batch["commit_ts"], batch.num_rows
    late = pa.repeat(False, size)
    if interval.late_ts is not None:
        late = pc.equal(ts, interval.late_ts)
    columns = {
        **{name: batch[name] for name in (*_GROUPED_BY, "flags")},
        **{"first_ts": ts, "last_ts": ts, "rows": pa.repeat(pa.scalar(1, pa.int64()), size)},
        **{"segment": segments(ts, interval.cuts), "late": late},
    }
    return _counted(pa.table(columns))


def _counted(groups: pa.Table) -> Iterator[dict[str, Any]]:
    """Groups that are the same in all that rows are counted by, together."""
    aggregates = [("rows", "sum"), ("first_ts", "min"), ("last_ts", "max")]
    for row in groups.group_by(DECIDED, use_threads=False).aggregate(aggregates).to_pylist():
        row["rows"], row["first_ts"] = row.pop("rows_sum"), row.pop("first_ts_min")
        row["last_ts"] = row.pop("last_ts_max")
        yield row


def grouped(rows: DataFrame, segment: Column, late: Column) -> list[Group]:
    """Counts rows by table, kind, shape and segment, by Spark."""
    counted = rows.groupBy(*_GROUPED_BY, segment.alias("segment"), late.alias("late"), "flags").agg(
        F.count("*").alias("rows"),
        F.min("commit_ts").alias("first_ts"),
        F.max("commit_ts").alias("last_ts"),
    )
    return joined(row.asDict() for row in counted.collect())


def joined(rows: Iterable[dict[str, Any]]) -> list[Group]:
    """Groups from what was counted by their columns and flags, maybe in parts."""
    found: dict[Group, Group] = {}
    for row in rows:
        flags = row.pop("flags") or 0
        group = Group(**row, moved=bool(flags & EventFlag.MOVED), partial=int(flags & PARTIAL))
        key = replace(group, rows=0, first_ts=0, last_ts=0, moved=False, partial=0)
        known = found.get(key)
        if known is not None:
            group = replace(
                group,
                rows=group.rows + known.rows,
                first_ts=min(group.first_ts, known.first_ts),
                last_ts=max(group.last_ts, known.last_ts),
                moved=group.moved or known.moved,
                partial=group.partial | known.partial,
            )
        found[key] = group
    return list(found.values())
