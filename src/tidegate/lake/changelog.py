"""The changelog: every event of a feed with its source position, for ever growing.

A streaming query fills it, exactly once. It is partitioned by database and table, so that one
table's interval is read without the others, and row changes are apart from all other events, which
are few. Everything the mirror knows it has read from here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidegate.feed.gate import ROW_KINDS
from tidegate.feed.schema_cache import SchemaCache, SchemaKey
from tidegate.feed.tables import Name
from tidegate.lake.conditions import ALWAYS, Condition, above, equal, every, is_null, some
from tidegate.lake.format import TableFormat
from tidegate.lake.interval import Interval
from tidegate.lake.logfiles import LogFile, holding, read_files
from tidegate.model import EventFlag
from tidegate.wire.change import CHANGE_SCHEMA

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
_NARROW = [*_PLACE, "kind", "commit_ts", "database", "table"]
TOLD = [*_NARROW, "shape", "schema_version", "ddl", "schema", "error"]
"""What is read of events about the feed."""
_GROUPED_BY = ["database", "table", "kind", "shape", "schema_version"]
_NOTHING = -1
_SCHEMA = pa.schema([*CHANGE_SCHEMA, (CONTROL, pa.bool_())])


def columns() -> StructType:
    """The columns of the changelog: those of a change batch, and CONTROL."""
    schema: StructType = from_arrow_schema(_SCHEMA)
    for each in schema:
        each.nullable = True
    return schema


def as_rows(events: pa.Table) -> pa.Table:
    """Events of a feed with the columns of the changelog."""
    topic = pc.fill_null(events["topic"], "")
    control = pc.invert(pc.is_in(events["kind"], pa.array(ROW_KINDS)))
    events = events.set_column(events.schema.get_field_index("topic"), "topic", topic)
    return events.append_column(CONTROL, control)


@dataclass(slots=True)
class Offsets:
    """The last offset seen of every partition of every topic."""

    last: dict[tuple[str, int], int] = field(default_factory=dict)

    def beyond(self) -> Condition:
        """Whether an event came after these; made of ranges, which the files' statistics answer."""
        if not self.last:
            return ALWAYS
        topics = sorted({topic for topic, _ in self.last})
        parts = [~some(*(equal("topic", topic) for topic in topics))]
        for topic in topics:
            known = {partition: at for (of, partition), at in self.last.items() if of == topic}
            later = [
                equal("partition", partition) & above("offset", known.get(partition, _NOTHING))
                for partition in range(max(known) + 1)
            ]
            here = equal("topic", topic)
            parts.append(here & some(above("partition", max(known)), *later))
        return some(*parts)

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
    """Rows of one table, kind and shape between two cuts: how many, and the first commit_ts.

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
    partial: int = 0


class Changelog:
    """A changelog at one of its versions, or (`version` None) as it is now."""

    def __init__(
        self,
        tables: TableFormat,
        identifier: str,
        version: int | None = None,
        fresh: Sequence[LogFile] | None = None,
    ) -> None:
        """`fresh` are the files that alone are looked at, where files can be read by Arrow."""
        self.identifier = identifier
        self.version = version
        self._tables = tables
        self._fresh = fresh

    @classmethod
    def open(cls, tables: TableFormat) -> Changelog:
        """The changelog of a lake; made if it is not there."""
        partition_by = ["database", "table", CONTROL]
        return cls(tables, tables.create_log(NAME, columns(), partition_by, bounded=["topic"]))

    def now(self) -> Changelog:
        """The changelog as it is now and stays."""
        return Changelog(self._tables, self.identifier, self._tables.version(self.identifier))

    def whole(self) -> Changelog:
        """The same with all its files, fresh or not."""
        return Changelog(self._tables, self.identifier, self.version)

    def read(self) -> DataFrame:
        """All of it."""
        return self._tables.read(self.identifier, self.version)

    def add(self, events: pa.Table) -> None:
        """Adds events, as they were decoded."""
        self._tables.append_to_log(self.identifier, as_rows(events))

    def _batches(
        self, condition: Condition, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch] | None:
        """Some columns of the events that meet a condition, read by Arrow and not by Spark.

        None where files cannot be read as they are.
        """
        files = self.files(condition)
        return None if files is None else read_files(files, condition, columns)

    def _table(self, condition: Condition, columns: Sequence[str]) -> pa.Table:
        """The same for few events, in the order of their arrival."""
        batches = self._batches(condition, columns)
        if batches is None:
            found = self.read().where(condition.spark()).select(*columns).toArrow()
        else:
            schema = pa.schema([_SCHEMA.field(name) for name in columns])
            found = pa.Table.from_batches((each.cast(schema) for each in batches), schema)
        return by_arrival(found)

    # --- what is new ------------------------------------------------------------------------------

    def offsets_beyond(self, known: Offsets) -> dict[tuple[str, int], int]:
        """The last offset of every partition that has anything new."""
        batches = self._batches(known.beyond(), ["topic", "partition", "offset"])
        if batches is None:
            rows = self.read().where(known.beyond().spark())
            found = rows.groupBy("topic", "partition").agg(F.max("offset")).collect()
            return {(topic, partition): offset for topic, partition, offset in found}
        last: dict[tuple[str, int], int] = {}
        for batch in batches:
            grouped = pa.Table.from_batches([batch]).group_by(["topic", "partition"])
            for row in grouped.aggregate([("offset", "max")]).to_pylist():
                at = row["topic"], row["partition"]
                last[at] = max(row["offset_max"], last.get(at, _NOTHING))
        return last

    def tables_of_rows(
        self, known: Offsets, sources: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], set[Name]]:
        """Those of the partitions that have sent new row changes, and of which tables."""
        if not sources:
            return {}
        parts = (
            equal("topic", topic) & equal("partition", partition) for topic, partition in sources
        )
        names = ["topic", "partition", "database", "table"]
        condition = every(OF_ROWS, known.beyond(), some(*parts))
        batches = self._batches(condition, names)
        if batches is None:
            rows = self.read().where(condition.spark()).select(*names).distinct().collect()
            entries = [row.asDict() for row in rows]
        else:
            tables = (pa.Table.from_batches([batch]).group_by(names) for batch in batches)
            entries = [row for table in tables for row in table.aggregate([]).to_pylist()]
        by_source: dict[tuple[str, int], set[Name]] = {}
        for row in entries:
            name = Name(row["database"] or "", row["table"] or "")
            by_source.setdefault((row["topic"], row["partition"]), set()).add(name)
        return by_source

    def control_events(self, known: Offsets) -> pa.Table:
        """New watermarks, statements, table schemas and bad messages, in the order of arrival."""
        kinds = [equal("kind", kind) for kind in ("watermark", "ddl", "error")]
        of_table = equal("kind", "schema") & is_null("shape")
        return self._table(every(OF_CONTROL, known.beyond(), some(*kinds, of_table)), TOLD)

    def has_changes(self, condition: Condition) -> bool:
        """Whether any row change or statement meets a condition."""
        changes = condition & some(OF_ROWS, equal("kind", "ddl"))
        batches = self._batches(changes, ["kind"])
        if batches is None:
            return bool(self.read().where(changes.spark()).limit(1).count())
        return next(batches, None) is not None

    def statements_since(self, ts: int) -> pa.Table:
        """All statements at or after a commit_ts."""
        return self.whole()._table(
            every(OF_CONTROL, equal("kind", "ddl"), above("commit_ts", ts - 1)), TOLD
        )

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
        tables = [
            named(database, table) & some(*(equal("shape", shape) for shape in sorted(shapes)))
            for (database, table), shapes in wanted.items()
        ]
        condition = every(OF_CONTROL, equal("kind", "schema"), some(*tables))
        columns = ["shape", "database", "table", "schema"]
        batches = self.whole()._batches(condition, columns)
        if batches is None:
            rows = self.read().where(condition.spark()).groupBy("shape")
            first = (F.first(name).alias(name) for name in columns[1:])
            table: pa.Table = rows.agg(*first).select(*columns).toArrow()
            return table
        seen: dict[int, dict[str, Any]] = {}
        for batch in batches:
            for row in batch.to_pylist():
                seen.setdefault(row["shape"], row)
        return pa.Table.from_pylist(
            list(seen.values()), pa.schema([_SCHEMA.field(name) for name in columns])
        )

    # --- rows -------------------------------------------------------------------------------------

    def groups(self, interval: Interval) -> list[Group]:
        """What rows there are, counted by table, kind, shape and segment."""
        keys = _GROUPED_BY
        batches = self._batches(interval.rows, [*keys, "commit_ts", "flags"])
        if batches is not None:
            return joined(each for batch in batches for each in _grouped(batch, keys, interval))
        rows = self.read().where(interval.rows.spark())
        return grouped(rows, interval.segment(), interval.late.spark())

    def rows_of(self, database: str, table: str) -> DataFrame:
        """The row changes of one table, by the name it had then."""
        return self.read().where(of_table(database, table).spark())

    def files(self, condition: Condition) -> list[LogFile] | None:
        """The files that may have such events; None where they cannot be read as they are."""
        if self._fresh is not None:
            return holding(self._fresh, condition, _SCHEMA)
        if self.version is None:
            return None
        return self._tables.log_files(self.identifier, self.version, condition)


class FreshFiles:
    """The files of a changelog that may have what the tables have not, from step to step.

    To plan a whole changelog takes longer the older it is; what was added since the last look is in
    the versions since.
    """

    def __init__(self) -> None:
        self._version: int | None = None
        self._files: list[LogFile] = []

    def of(self, changelog: Changelog, needed: Condition) -> Changelog:
        """The changelog, of whose files only those are looked at that may have what is needed."""
        tables, identifier, version = changelog._tables, changelog.identifier, changelog.version
        assert version is not None
        added = None
        if self._version is not None:
            added = tables.added_files(identifier, self._version, version)
        files = changelog.files(needed) if added is None else [*self._files, *added]
        if files is None:
            return changelog
        self._version, self._files = version, holding(files, needed, _SCHEMA)
        return Changelog(tables, identifier, version, self._files)


def by_arrival(events: pa.Table) -> pa.Table:
    """Events in the order of their arrival, as far as their columns tell it."""
    order = [(name, "ascending") for name in _PLACE if name in events.column_names]
    table: pa.Table = events.sort_by(order)
    return table


def named(database: str, table: str) -> Condition:
    """Events of one table, by the name it had then."""
    return equal("database", database) & equal("table", table)


def of_table(database: str, table: str) -> Condition:
    """Row changes of one table."""
    return OF_ROWS & named(database, table)


def _grouped(
    batch: pa.RecordBatch, keys: list[str], interval: Interval
) -> Iterator[dict[str, Any]]:
    """What rows a batch has, as `groups` counts them."""
    ts, size = batch["commit_ts"], batch.num_rows
    segment = pa.repeat(pa.scalar(0, pa.int64()), size)
    for cut in interval.cuts:
        segment = pc.add(segment, pc.greater(ts, cut).cast(pa.int64()))
    late = pa.repeat(False, size)
    if interval.late_ts is not None:
        late = pc.equal(ts, interval.late_ts)
    table = pa.Table.from_batches([batch])
    table = table.append_column("segment", segment).append_column("late", late)
    grouped = table.group_by([*keys, "segment", "late", "flags"])
    counted = grouped.aggregate([([], "count_all"), ("commit_ts", "min")])
    for row in counted.to_pylist():
        row["rows"], row["first_ts"] = row.pop("count_all"), row.pop("commit_ts_min")
        yield row


def grouped(rows: DataFrame, segment: Column, late: Column) -> list[Group]:
    """Counts rows by table, kind, shape and segment, by Spark."""
    counted = rows.groupBy(*_GROUPED_BY, segment.alias("segment"), late.alias("late"), "flags").agg(
        F.count("*").alias("rows"), F.min("commit_ts").alias("first_ts")
    )
    return joined(row.asDict() for row in counted.collect())


def joined(rows: Iterable[dict[str, Any]]) -> list[Group]:
    """Groups from what was counted by their columns and flags, maybe in parts."""
    found: dict[Group, Group] = {}
    for row in rows:
        flags = row.pop("flags") or 0
        group = Group(**row, moved=bool(flags & EventFlag.MOVED), partial=int(flags & PARTIAL))
        key = replace(group, rows=0, first_ts=0, moved=False, partial=0)
        known = found.get(key)
        if known is not None:
            group = replace(
                group,
                rows=group.rows + known.rows,
                first_ts=min(group.first_ts, known.first_ts),
                moved=group.moved or known.moved,
                partial=group.partial | known.partial,
            )
        found[key] = group
    return list(found.values())
