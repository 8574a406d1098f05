"""A lake in memory for the real mirror: the changelog is Arrow tables, tables are Python rows.

`MemoryLake` offers what `Mirror` asks of a lake. The changelog answers by the code of
`lake.changelog`, only its files are in memory. Rows are reduced by the code that the executor has;
what Spark does otherwise (merges, deletes by condition, changes of type) is done in Python.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.receive.gate import ROW_KINDS
from tidegate.changefeed.receive.order import POSITION
from tidegate.changefeed.receive.release import fingerprint
from tidegate.lake.apply.executor import FAILED, MAYBE_RESENT
from tidegate.lake.apply.keyless import LOWEST, MESSAGES, NET, CountedRows, Runs, UnknownOldRow
from tidegate.lake.apply.last_changes import LATE, LatestRows
from tidegate.lake.apply.plan.steps import Create, Delete, Drop, Evolve, Rename, Rows, Step
from tidegate.lake.apply.repair.late_log import LateEvents
from tidegate.lake.apply.rows import Copies, RowReader
from tidegate.lake.changelog.changelog import (
    TOLD,
    WATERMARKS,
    Changelog,
    Group,
    Offsets,
    as_rows,
    by_arrival,
    joined,
    named,
    of_table,
)
from tidegate.lake.changelog.interval import Interval
from tidegate.lake.changelog.pending import FreshFiles
from tidegate.lake.changelog.summary import FileSummary, summarize
from tidegate.lake.formats.base import OP, Position, origin_of
from tidegate.lake.formats.column_changes import plan as plan_columns
from tidegate.lake.job.mirror import Mirror, MirrorSettings
from tidegate.lake.job.source import feed_topics
from tidegate.lake.record import Intent, MirrorState, Snapshot
from tidegate.lake.storage.log_files import LogFile
from tidegate.lake.storage.predicates import Condition, above, equal, is_null, some, up_to
from tidegate.lake.table_states import WHOLE, KnownTables, TableRecords
from tidegate.model import TableSchema
from tidegate.model.schema import Column
from tidegate.spark.types import arrow_type, from_text_array
from tidegate.sql.casts import convert
from tidegate.sql.tables import Name
from tidegate.wire.batch.change import CHANGE_SCHEMA

Values = tuple[Any, ...]

_START = Position(0)
_COMPARED = [
    *("topic", "partition", "offset", "kind", "commit_ts", "database", "table", "shape", "control"),
]
"""The columns that conditions name."""
_OF_ROWS = [
    *["topic", "partition", "offset", "event", "kind", "commit_ts", "shape", "flags"],
    *["after", "before", "before_missing", "database", "table", "schema_version"],
]
_PLACE = ["topic", "partition", "offset", "event"]
_GROUPED = ["database", "table", "kind", "shape", "schema_version", "flags"]
_OF_TABLES = some(
    equal("kind", "watermark"), equal("kind", "ddl"), equal("kind", "schema") & is_null("shape")
)


class MemoryLog:
    """All events of a feed; a version is the number of additions."""

    def __init__(self) -> None:
        self.parts: list[pa.Table] = []
        self.summaries: list[FileSummary] = []
        self._whole: tuple[int, pa.Table] | None = None

    def table(self, version: int) -> pa.Table:
        if self._whole is None or self._whole[0] != version:
            parts = [as_rows(CHANGE_SCHEMA.empty_table()), *self.parts[:version]]
            self._whole = version, pa.concat_tables(parts).combine_chunks()
        return self._whole[1]


class MemoryChangelog(Changelog):
    """A changelog whose events are read from memory."""

    def __init__(self, log: MemoryLog, version: int | None = None) -> None:
        super().__init__(None, None, version)  # type: ignore[arg-type]
        self._log = log

    def now(self) -> MemoryChangelog:
        return MemoryChangelog(self._log, len(self._log.parts))

    def at(self, version: int) -> MemoryChangelog:
        return MemoryChangelog(self._log, version)

    def whole(self) -> MemoryChangelog:
        return self

    def narrowed(
        self,
        fresh: FreshFiles,
        taken: Offsets,
        applied_ts: int | None,
        since: int | None = None,
    ) -> MemoryChangelog:
        assert self.version is not None
        for number in range(fresh.version or 0, self.version):
            fresh.add(LogFile(str(number), 0), self._log.summaries[number])
        fresh.prune(taken.last, applied_ts)
        fresh.version = self.version
        narrow = MemoryChangelog(self._log, self.version)
        narrow._fresh = fresh
        return narrow

    def add(self, events: pa.Table) -> None:
        rows = as_rows(events)
        self._log.parts.append(rows)
        self._log.summaries.append(summarize([rows]))

    def _read(
        self, files: Sequence[LogFile], condition: Condition, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        needed = [*dict.fromkeys([*columns, *_COMPARED])]
        for file in files:
            part = self._log.parts[int(file.path)].select(needed).filter(condition.arrow())
            yield from part.select(list(columns)).to_batches()

    def matching(self, condition: Condition, columns: Sequence[str] = _OF_ROWS) -> pa.Table:
        """Some columns of the events that meet a condition."""
        version = len(self._log.parts) if self.version is None else self.version
        needed = [*dict.fromkeys([*columns, *_COMPARED])]
        found = self._log.table(version).select(needed).filter(condition.arrow())
        return found.select(list(columns))

    def _batches(self, condition: Condition, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return iter(self.matching(condition, columns).to_batches())


class MemorySnapshots:
    """The record of a lake: the last state, as its JSON, and what was said of tables."""

    def __init__(self) -> None:
        self._state: str | None = None
        self._of_tables: list[str] = []
        self._records = TableRecords()
        self._intent: str | None = None

    def state(self) -> MirrorState | None:
        if self._state is None:
            return None
        state = MirrorState.from_json(self._state, KnownTables.from_records(self._of_tables))
        self._records.start(state.known_tables(), self._of_tables)
        return state

    def intended(self) -> Intent | None:
        return None if self._intent is None else Intent.from_json(self._intent)

    def intend(self, intent: Intent) -> None:
        self._intent = intent.to_json()

    def record(self, state: MirrorState, changed: Sequence[Snapshot]) -> None:
        self._state = state.progress_json()
        record = self._records.changes(state.known_tables())
        if record is not None:
            self._of_tables = [] if record.startswith(WHOLE) else self._of_tables
            self._of_tables.append(record)

    def kept_since(self) -> int:
        return 0


class MemoryQuarantine:
    """No message is ever bad."""

    def last_time(self) -> int:
        return 0

    def settled(self) -> set[Any]:
        return set()


class MemoryLateLog:
    """A changelog in which late events are marked, as `lake.apply.repair.late_log.LateLog` has it."""

    def __init__(self, changelog: MemoryChangelog, late: LateEvents) -> None:
        if late.places is not None:
            raise ValueError("messages that a retry could read have no place in a lake in memory")
        self._changelog = changelog
        self._late = late.taken & late.condition
        self._in_time = late.taken & ~late.condition
        self._taken = late.taken

    def control_events(self) -> pa.Table:
        return by_arrival(self._changelog.matching(self._late & _OF_TABLES, TOLD))

    def schemas_of(self, names: Iterable[Name]) -> pa.Table:
        wanted = some(*(named(*name) for name in names))
        return by_arrival(self._changelog.matching(self._taken & wanted & _OF_TABLES, TOLD))

    def statements_since(self, ts: int) -> pa.Table:
        statements = equal("kind", "ddl") & above("commit_ts", ts - 1)
        return by_arrival(self._changelog.matching(self._in_time & statements, TOLD))

    def times(self, until: int | None) -> dict[Name, list[int]]:
        return _times(self._matching(self._late, until).to_pylist())

    def times_without_copies(
        self,
        times: Mapping[Name, Sequence[int]],
        until: int,
        names: Mapping[tuple[int, int | None], Sequence[str]],
    ) -> dict[Name, list[int]]:
        def key(row: Mapping[str, Any]) -> tuple[int, str]:
            return row["commit_ts"], fingerprint(row, lambda *shape: names.get(shape))

        in_time = set(map(key, self._matching(self._in_time, until).to_pylist()))
        late = self._matching(self._late, until).to_pylist()
        return _times(row for row in late if key(row) not in in_time)

    def rows(self, first: Mapping[Name, int], until: int | None, *, late: bool) -> pa.Table:
        """Rows of tables since an instant of each; only the `late` ones, or all of them."""
        wanted = (named(*name) & above("commit_ts", at - 1) for name, at in first.items())
        return self._matching((self._late if late else self._taken) & some(*wanted), until)

    def groups(
        self, first: Mapping[Name, int], until: int | None, cuts: Sequence[int] = ()
    ) -> list[Group]:
        late_rows = self.rows(first, until, late=True).to_pylist()
        late = {tuple(row[name] for name in _PLACE) for row in late_rows}
        return joined(
            {name: row[name] for name in _GROUPED}
            | {
                "segment": sum(row["commit_ts"] > cut for cut in cuts),
                "late": tuple(row[name] for name in _PLACE) in late,
                "rows": 1,
                "first_ts": row["commit_ts"],
                "last_ts": row["commit_ts"],
            }
            for row in self.rows(first, until, late=False).to_pylist()
        )

    def _matching(self, condition: Condition, until: int | None) -> pa.Table:
        rows = condition & some(*(equal("kind", kind) for kind in ROW_KINDS))
        return self._changelog.matching(rows if until is None else rows & up_to("commit_ts", until))


def _times(rows: Iterable[Mapping[str, Any]]) -> dict[Name, list[int]]:
    times: dict[Name, set[int]] = {}
    for row in rows:
        times.setdefault(Name(row["database"], row["table"]), set()).add(row["commit_ts"])
    return {name: sorted(of_table) for name, of_table in times.items()}


@dataclass(slots=True)
class MemoryTable:
    """A table: its columns and rows, in Python's values."""

    name: tuple[str, str] | None
    """None if it was dropped."""
    columns: tuple[Column, ...]
    rows: list[Values] = field(default_factory=list)
    position: Position = _START
    origin: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


class MemoryTables:
    """The tables of a lake by identifier."""

    def __init__(self) -> None:
        self.tables: dict[str, MemoryTable] = {}
        self._made = 0

    def version(self, identifier: str) -> int:
        """The version of a table that must be there; all have but one."""
        return len(self.tables[identifier].columns) and 1

    def unsupported(self, schema: TableSchema) -> str:
        """Every schema will do."""
        del schema
        return ""

    def create(self, name: tuple[str, str], schema: TableSchema, position: Position) -> str:
        for table in self.tables.values():
            if table.name == name:  # as a format does: it is in the way
                table.name, table.position = None, position
        self._made += 1
        identifier = f"m{self._made}"
        origin = origin_of(*name, position)
        self.tables[identifier] = MemoryTable(name, schema.carried, [], position, origin)
        return identifier

    def made_by(self, origin: str) -> str | None:
        """The table that a step made before it was cut off."""
        return next((key for key, each in self.tables.items() if each.origin == origin), None)

    def rename(self, identifier: str, name: tuple[str, str]) -> None:
        taken = [key for key, table in self.tables.items() if table.name == name]
        if taken and taken != [identifier]:
            raise ValueError(f"a table is renamed to {name}, which is there")
        self.tables[identifier].name = name


class MemoryLake:
    """What `Mirror` needs of a lake."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.changelog = MemoryChangelog(self.log)
        self.snapshots = MemorySnapshots()
        self.tables = MemoryTables()
        self.quarantine = MemoryQuarantine()

    def late_log(self, changelog: MemoryChangelog, late: LateEvents) -> MemoryLateLog:
        return MemoryLateLog(changelog, late)

    def apply(
        self,
        steps: Sequence[Step],
        changelog: MemoryChangelog,
        interval: Interval,
        *,
        again: bool,
        on_step: Callable[[Step], None],
        **_: Any,
    ) -> None:
        Executor(self.tables, changelog, interval, again=again, on_step=on_step).run(steps)

    def repair(
        self,
        steps: Sequence[Step],
        changelog: MemoryChangelog,
        interval: Interval,
        *,
        log: MemoryLateLog,
        since: Mapping[Name, int],
        until: int | None,
        again: bool,
        on_step: Callable[[Step], None],
        **_: Any,
    ) -> None:
        Repairer(
            *(self.tables, changelog, interval, log, since, until), again=again, on_step=on_step
        ).run(steps)


def new_mirror(
    lake: MemoryLake,
    config: ChangefeedConfig,
    *,
    watermarks: bool,
    boundary: Callable[[str], None] = lambda name: None,
) -> Mirror:
    """A mirror that starts, or continues, on this lake; it knows the changefeed's settings."""
    settings = MirrorSettings(topics=feed_topics(config))
    return Mirror(
        lake,  # type: ignore[arg-type]
        watermarks=watermarks,
        settings=settings,
        boundary=boundary,
    )


class Executor:
    """Does the steps of a plan; `again` says that some may have been done before a crash."""

    def __init__(
        self,
        tables: MemoryTables,
        changelog: MemoryChangelog,
        interval: Interval,
        *,
        again: bool,
        on_step: Callable[[Step], None],
    ) -> None:
        self._tables = tables
        self._changelog = changelog
        self._interval = interval
        self._again = again
        self._on_step = on_step

    def run(self, steps: Sequence[Step]) -> None:
        """Does all steps; a table whose old rows are unknown is stopped."""
        failed: set[int] = set()
        for step in steps:
            if id(step.table) not in failed or isinstance(step, Drop | Rename):
                try:
                    self._try(step)
                except UnknownOldRow as error:
                    failed.add(id(step.table))
                    step.table.stop(FAILED.format(cause=error), step.position.ts)
            self._on_step(step)

    def _try(self, step: Step) -> None:
        table = step.table
        if isinstance(step, Create):
            made = self._tables.made_by(origin_of(*step.name, step.position))
            if made is None or not self._again:
                made = self._tables.create(step.name, step.schema, step.position)
            table.identifier = table.uid = made
        elif table.identifier:
            known = self._tables.tables[table.identifier]
            if not self._again or known.position < step.position:
                self._do(step)
                known.position = step.position
            elif isinstance(step, Rows) and not step.schema.handle_key():
                reader = RowReader(step.schema, step.layouts, sent=step.sent)
                changes, marks = self._changes(step, reader), self._changelog.matching(WATERMARKS)
                _counts(step, reader, changes, marks)

    def _do(self, step: Step) -> None:
        table = step.table
        if isinstance(step, Rows):
            self._rows(step, self._tables.tables[table.identifier])
        elif isinstance(step, Drop):
            self._tables.tables[table.identifier].name = None
            table.identifier = ""
        elif isinstance(step, Rename):
            self._tables.rename(table.identifier, step.new_name)
        elif isinstance(step, Evolve):
            _evolve(self._tables.tables[table.identifier], step)
        elif isinstance(step, Delete):
            _delete(self._tables.tables[table.identifier], step.condition)
        else:
            raise TypeError(f"no such step: {type(step).__name__}")

    # --- rows -------------------------------------------------------------------------------------

    def _rows(self, step: Rows, table: MemoryTable) -> None:
        if step.schema.carried_names != table.names:
            raise ValueError(f"rows of {step.schema.carried_names} for {table.names}")
        reader = RowReader(step.schema, step.layouts, sent=step.sent)
        changes, key = self._changes(step, reader), step.schema.handle_key()
        if key:
            _merge(table, self._last_rows(step, reader, changes, key), key)
        else:
            _keyless(table, step, reader, changes, self._changelog.matching(WATERMARKS))

    def _changes(self, step: Rows, reader: RowReader) -> pa.Table:
        within = self._interval.within(*step.segments)
        changes = self._changelog.matching(of_table(*step.name) & within)
        return self._without_applied(step, reader, changes) if step.late else changes

    def _without_applied(self, step: Rows, reader: RowReader, changes: pa.Table) -> pa.Table:
        """Without late rows that are copies of what was applied in time."""
        applied = self._changelog.matching(of_table(*step.name) & self._interval.applied)
        assert self._interval.late_ts is not None
        prints = frozenset(map(reader.fingerprint, applied.select(Copies.COLUMNS).to_pylist()))
        copies = Copies(self._interval.late_ts, reader, prints)
        batches = map(copies.without, changes.to_batches())
        return pa.Table.from_batches(batches, changes.schema)

    def _latest(self, step: Rows, reader: RowReader, key: Sequence[str]) -> LatestRows:
        return LatestRows(reader, tuple(key), self._interval.order, step.moves)

    def _last_rows(
        self, step: Rows, reader: RowReader, changes: pa.Table, key: Sequence[str]
    ) -> pa.Table:
        latest = self._latest(step, reader, key)
        return latest.here(changes.select(latest.columns).to_batches())


class Repairer(Executor):
    """Does steps that repair tables: of late rows, the keys that they touch."""

    def __init__(
        self,
        tables: MemoryTables,
        changelog: MemoryChangelog,
        interval: Interval,
        log: MemoryLateLog,
        since: Mapping[Name, int],
        until: int | None,
        *,
        again: bool,
        on_step: Callable[[Step], None],
    ) -> None:
        super().__init__(tables, changelog, interval, again=again, on_step=on_step)
        rows, late = (log.rows(since, until, late=late) for late in (False, True))
        places = {tuple(row.values()) for row in late.select(POSITION).to_pylist()}
        is_late = [tuple(row.values()) in places for row in rows.select(POSITION).to_pylist()]
        self._all_rows = rows.append_column(LATE, pa.array(is_late, pa.bool_()))

    def _changes(self, step: Rows, reader: RowReader) -> pa.Table:
        return self._of_step(step, self._all_rows)

    def _of_step(self, step: Rows, rows: pa.Table) -> pa.Table:
        first, last = step.segments
        cuts = self._interval.cuts
        low = cuts[first - 1] if first else -1
        high = cuts[last] if last < len(cuts) else None
        condition = named(*step.name) & above("commit_ts", low)
        condition = condition if high is None else condition & up_to("commit_ts", high)
        return rows.filter(condition.arrow())

    def _latest(self, step: Rows, reader: RowReader, key: Sequence[str]) -> LatestRows:
        return replace(super()._latest(step, reader, key), touched=True)


def _merge(table: MemoryTable, changes: pa.Table, key: Sequence[str]) -> None:
    places = [table.names.index(name) for name in key]
    ops = changes[OP].to_pylist()
    rows = list(zip(*(changes[name].to_pylist() for name in table.names), strict=True))
    by_key: dict[Values, tuple[str, Values]] = {}
    for op, row in zip(ops, rows, strict=True):
        found = tuple(row[place] for place in places)
        if found in by_key:
            raise ValueError(f"the key {found} of {table.name} comes twice in one merge")
        by_key[found] = op, row
    kept = [row for row in table.rows if tuple(row[place] for place in places) not in by_key]
    table.rows = kept + [row for op, row in by_key.values() if op != "d"]


def _keyless(
    table: MemoryTable, step: Rows, reader: RowReader, changes: pa.Table, marks: pa.Table
) -> None:
    counts = _counts(step, reader, changes, marks)
    there = Counter(table.rows)
    numbers = [counts[name].to_pylist() for name in (NET, LOWEST)]
    values = [counts[name].to_pylist() for name in table.names]
    for net, lowest, *row in zip(*numbers, *values, strict=True):
        before = there[tuple(row)]
        there[tuple(row)] = before + net + max(0, -(before + lowest))
    table.rows = [row for row, count in there.items() for _ in range(count)]


def _counts(step: Rows, reader: RowReader, changes: pa.Table, marks: pa.Table) -> pa.Table:
    """Counts rows of a table without a key, and marks the table where they may be re-sent ones."""
    counted = CountedRows(reader, Runs.of(changes, marks))
    counts = counted.here(changes.select(counted.columns).to_batches())
    if max(counts[MESSAGES].to_pylist(), default=0) > 1:
        step.table.diverge(MAYBE_RESENT, guessed=True)
    return counts


def _value(column: Column, text: str | None) -> Any:
    array = from_text_array(column, pa.array([text], pa.string()), "UTC")
    return array.cast(arrow_type(column))[0].as_py()


def text_of(value: Any) -> str | None:
    """The text of a value, as the feed has it."""
    if value is None:
        return None
    if isinstance(value, float):
        return repr(int(value)) if value == int(value) else repr(value)
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _evolve(table: MemoryTable, step: Evolve) -> None:
    columns = plan_columns(step.before, step.change)
    before = {column.name: place for place, column in enumerate(table.columns)}

    def converted(row: Values) -> Values:
        made = []
        for each in columns:
            if each.before is None:
                made.append(_value(each.after, each.fill))
                continue
            value = row[before[each.before.name]]
            text = text_of(value)
            if text is not None and each.is_converted:
                value = _value(each.after, convert(each.before, each.after, text))
            made.append(value)
        return tuple(made)

    table.rows = [converted(row) for row in table.rows]
    table.columns = tuple(each.after for each in columns)


def _delete(table: MemoryTable, condition: str | None) -> None:
    if condition is None:
        table.rows = []
        return
    listed = ", ".join(f"`{name}`" for name in table.names)
    marks = ", ".join("?" * len(table.names))
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute(f"CREATE TABLE t ({listed})")
        for number, row in enumerate(table.rows):
            values = [str(value) if isinstance(value, Decimal) else value for value in row]
            connection.execute(
                f"INSERT INTO t (rowid, {listed}) VALUES (?, {marks})", [number, *values]
            )
        gone = {row[0] for row in connection.execute(f"SELECT rowid FROM t WHERE {condition}")}
    finally:
        connection.close()
    table.rows = [row for number, row in enumerate(table.rows) if number not in gone]


def contents(mirror: Mirror) -> Mapping[Name, MemoryTable]:
    """The tables of the lake by the names that the mirror gives them."""
    tables: Any = mirror.lake.tables
    return {
        table.name: tables.tables[table.identifier]
        for table in mirror.state.tables.values()
        if table.identifier
    }
