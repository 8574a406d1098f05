"""A lake in memory for the real mirror: the changelog is Arrow tables, tables are Python rows.

`MemoryLake` offers what `Mirror` asks of a lake. The changelog answers by the code of
`lake.changelog`, only its files are in memory. Rows of keyed tables are reduced by `LatestRows`;
what Spark does otherwise (keyless rows, deletes by condition, changes of type) is done in Python.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tidegate.feed.conversion import convert
from tidegate.feed.tables import Name
from tidegate.lake import mirror as mirror_module
from tidegate.lake.changelog import Changelog, as_rows, of_table
from tidegate.lake.conditions import Condition
from tidegate.lake.conversion import plan as plan_columns
from tidegate.lake.format import OP
from tidegate.lake.interval import Interval
from tidegate.lake.latest import LatestRows
from tidegate.lake.mirror import Mirror
from tidegate.lake.plan import Create, Delete, Drop, Evolve, Rename, Rows, Step
from tidegate.lake.rows import Layout
from tidegate.lake.snapshots import Intent, MirrorState, Snapshot
from tidegate.model import TableSchema
from tidegate.model.schema import Column
from tidegate.spark.types import arrow_type, from_text_array

Values = tuple[Any, ...]

_COMPARED = (
    *("topic", "partition", "offset", "kind", "commit_ts", "database", "table", "shape", "control"),
)
"""The columns that conditions name."""
_OF_ROWS = (
    *("topic", "partition", "offset", "event", "kind", "commit_ts", "shape", "after", "before"),
)


class MemoryLog:
    """All events of a feed; a version is the number of additions."""

    def __init__(self) -> None:
        self.parts: list[pa.Table] = []
        self._whole: tuple[int, pa.Table] | None = None

    def table(self, version: int) -> pa.Table:
        if self._whole is None or self._whole[0] != version:
            self._whole = version, pa.concat_tables(self.parts[:version]).combine_chunks()
        return self._whole[1]


class MemoryChangelog(Changelog):
    """A changelog whose events are read from memory."""

    def __init__(self, log: MemoryLog, version: int | None = None) -> None:
        super().__init__(None, "changelog", version)  # type: ignore[arg-type]
        self._log = log

    def now(self) -> MemoryChangelog:
        return MemoryChangelog(self._log, len(self._log.parts))

    def whole(self) -> MemoryChangelog:
        return self

    def add(self, events: pa.Table) -> None:
        self._log.parts.append(as_rows(events))

    def matching(self, condition: Condition, columns: Sequence[str] = _OF_ROWS) -> pa.Table:
        """Some columns of the events that meet a condition."""
        version = len(self._log.parts) if self.version is None else self.version
        needed = [*dict.fromkeys([*columns, *_COMPARED])]
        found = self._log.table(version).select(needed).filter(condition.arrow())
        return found.select(list(columns))

    def _batches(
        self, condition: Condition, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch] | None:
        return iter(self.matching(condition, columns).to_batches())

    def files(self, condition: Condition) -> None:
        return None


class MemorySnapshots:
    """The record of a lake: the last state, as its JSON."""

    def __init__(self) -> None:
        self._state: tuple[str, str] | None = None
        self._intent: str | None = None

    def state(self) -> MirrorState | None:
        return None if self._state is None else MirrorState.from_json(*self._state)

    def intended(self) -> Intent | None:
        return None if self._intent is None else Intent.from_json(self._intent)

    def intend(self, intent: Intent) -> None:
        self._intent = intent.to_json()

    def record(self, state: MirrorState, changed: Sequence[Snapshot]) -> None:
        self._state = state.progress_json(), state.tables_json()

    def kept_since(self) -> int:
        return 0


class MemoryQuarantine:
    """No message is ever bad."""

    def __init__(self, lake: object) -> None:
        del lake

    def last_time(self) -> int:
        return 0

    def settled(self) -> set[Any]:
        return set()


@dataclass(slots=True)
class MemoryTable:
    """A table: its columns and rows, in Python's values."""

    name: tuple[str, str]
    columns: tuple[Column, ...]
    rows: list[Values] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


class MemoryTables:
    """The tables of a lake by identifier."""

    def __init__(self) -> None:
        self.tables: dict[str, MemoryTable] = {}
        self._made = 0

    def version(self, identifier: str) -> int:
        return 1 if self.tables[identifier] else 0

    def create(self, name: tuple[str, str], schema: TableSchema) -> str:
        for identifier in [key for key, table in self.tables.items() if table.name == name]:
            del self.tables[identifier]  # as a format does: it is in the way
        self._made += 1
        identifier = f"m{self._made}"
        self.tables[identifier] = MemoryTable(name, schema.carried)
        return identifier

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


class MemoryMirror(Mirror):
    """The mirror on a lake in memory."""

    def _pinned(self, again: Intent | None) -> Changelog:
        log = self.lake.log  # type: ignore[attr-defined]
        return MemoryChangelog(log, len(log.parts) if again is None else again.changelog)

    def _carry_out(
        self, steps: list[Step], applier_of: Any, changelog: Changelog, interval: Interval
    ) -> None:
        assert isinstance(changelog, MemoryChangelog)
        tables: Any = self.lake.tables
        executor = Executor(tables, changelog, interval)
        for step in steps:
            executor.run(step)


def new_mirror(lake: MemoryLake, *, watermarks: bool) -> MemoryMirror:
    """A mirror that starts, or continues, on this lake."""
    mirror_module.Quarantine = MemoryQuarantine  # type: ignore[misc, assignment]
    return MemoryMirror(lake, watermarks=watermarks)  # type: ignore[arg-type]


class Executor:
    """Does the steps of a plan."""

    def __init__(
        self, tables: MemoryTables, changelog: MemoryChangelog, interval: Interval
    ) -> None:
        self._tables = tables
        self._changelog = changelog
        self._interval = interval

    def run(self, step: Step) -> None:
        table = step.table
        if isinstance(step, Create):
            table.identifier = table.uid = self._tables.create(step.name, step.schema)
        elif not table.identifier:
            return
        elif isinstance(step, Rows):
            self._rows(step, self._tables.tables[table.identifier])
        elif isinstance(step, Drop):
            del self._tables.tables[table.identifier]
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

    def _changes(self, step: Rows) -> pa.Table:
        within = self._interval.within(*step.segments)
        changes = self._changelog.matching(of_table(*step.name) & within)
        return self._without_applied(step, changes) if step.late else changes

    def _without_applied(self, step: Rows, changes: pa.Table) -> pa.Table:
        """Without late rows that are copies of what was applied in time."""
        applied = self._changelog.matching(of_table(*step.name) & self._interval.applied)
        content = ["commit_ts", "kind", "after", "before"]
        copies = {repr(row) for row in applied.select(content).to_pylist()}
        keep = [
            row["commit_ts"] != self._interval.late_ts or repr(row) not in copies
            for row in changes.select(content).to_pylist()
        ]
        return changes.filter(pa.array(keep, pa.bool_()))

    def _rows(self, step: Rows, table: MemoryTable) -> None:
        if step.schema.carried_names != table.names:
            raise ValueError(f"rows of {step.schema.carried_names} for {table.names}")
        changes, key = self._changes(step), step.schema.handle_key()
        if key:
            latest = LatestRows(
                step.schema,
                step.layouts,
                tuple(key),
                self._interval.rows,
                self._interval.order,
                step.moves,
            )
            _merge(table, latest.rows(latest.last(latest.entries(changes))), key)
        else:
            _keyless(table, step, changes)


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


def _keyless(table: MemoryTable, step: Rows, changes: pa.Table) -> None:
    """Counts rows: of all sendings of a transaction the one with the most of a row counts."""
    events = changes.sort_by(
        [(name, "ascending") for name in ("topic", "partition", "offset", "event")]
    )
    layouts = {layout.shape: layout for layout in step.layouts}
    run, last = 0, {}
    counts: Counter[tuple[Any, ...]] = Counter()
    for event in events.to_pylist():
        source, ts = (event["topic"], event["partition"]), event["commit_ts"]
        if ts < last.get(source, ts):
            run += 1
        last[source] = ts
        for side, sign in (("before", -1), ("after", 1)):
            if event[side] is not None:
                row = _typed(table.columns, layouts[event["shape"]], event[side])
                counts[row, ts, source, run, sign] += 1
    most: dict[tuple[Any, ...], int] = {}
    for (row, ts, source, _, sign), count in counts.items():
        place = row, ts, source, sign
        most[place] = max(most.get(place, 0), count)
    net: Counter[Values] = Counter(table.rows)
    for (row, _, _, sign), count in most.items():
        net[row] += sign * count
    table.rows = [row for row, count in net.items() for _ in range(max(0, count))]


def _typed(columns: Sequence[Column], layout: Layout, texts: Sequence[str | None]) -> Values:
    by_name = dict(zip(layout.names, texts, strict=True))
    return tuple(_value(column, by_name.get(column.name)) for column in columns)


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


def contents(mirror: MemoryMirror) -> Mapping[Name, MemoryTable]:
    """The tables of the lake by the names that the mirror gives them."""
    tables: Any = mirror.lake.tables
    return {
        table.name: tables.tables[table.identifier]
        for table in mirror.state.tables.values()
        if table.identifier
    }
