"""A lake in memory for the real mirror: the changelog is Arrow tables, tables are Python rows.

`MemoryLake` offers what `Mirror` asks of a lake. The changelog answers by the code of
`lake.changelog`, only its files are in memory. Rows of keyed tables are reduced by `LatestRows`;
what Spark does otherwise (keyless rows, deletes by condition, changes of type) is done in Python.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tidegate.feed.config import ChangefeedConfig
from tidegate.feed.conversion import convert
from tidegate.feed.gate import ROW_KINDS
from tidegate.feed.tables import Name
from tidegate.lake.apply import FAILED, MAYBE_RESENT, UnknownOldRow
from tidegate.lake.changelog import (
    TOLD,
    WATERMARKS,
    Changelog,
    Group,
    as_rows,
    by_arrival,
    joined,
    named,
    of_table,
)
from tidegate.lake.conditions import ALWAYS, Condition, above, equal, is_null, some, up_to
from tidegate.lake.conversion import plan as plan_columns
from tidegate.lake.format import OP
from tidegate.lake.interval import Interval
from tidegate.lake.latest import LatestRows
from tidegate.lake.mend import LateEvents
from tidegate.lake.mirror import Mirror, MirrorSettings
from tidegate.lake.plan import Create, Delete, Drop, Evolve, Rename, Rows, Step
from tidegate.lake.rows import Layout
from tidegate.lake.snapshots import Intent, MirrorState, Snapshot
from tidegate.lake.source import feed_topics
from tidegate.model import EventFlag, TableSchema
from tidegate.model.schema import Column
from tidegate.spark.types import arrow_type, from_text_array

Values = tuple[Any, ...]

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

    def last_time(self) -> int:
        return 0

    def settled(self) -> set[Any]:
        return set()


class MemoryLateLog:
    """A changelog in which late events are marked, as `lake.mend.LateLog` has it."""

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
        found: dict[Name, set[int]] = {}
        for row in self._matching(self._late, until).to_pylist():
            found.setdefault(Name(row["database"], row["table"]), set()).add(row["commit_ts"])
        return {name: sorted(times) for name, times in found.items()}

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
            }
            for row in self.rows(first, until, late=False).to_pylist()
        )

    def _matching(self, condition: Condition, until: int | None) -> pa.Table:
        rows = condition & some(*(equal("kind", kind) for kind in ROW_KINDS))
        return self._changelog.matching(rows if until is None else rows & up_to("commit_ts", until))


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
        """The version of a table that must be there; all have but one."""
        return len(self.tables[identifier].columns) and 1

    def unsupported(self, schema: TableSchema) -> str:
        """Every schema will do."""
        del schema
        return ""

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
        self.quarantine = MemoryQuarantine()

    def late_log(self, changelog: MemoryChangelog, late: LateEvents) -> MemoryLateLog:
        return MemoryLateLog(changelog, late)

    def apply(
        self, steps: Sequence[Step], changelog: MemoryChangelog, interval: Interval, **_: Any
    ) -> None:
        Executor(self.tables, changelog, interval).run(steps)

    def repair(
        self,
        steps: Sequence[Step],
        changelog: MemoryChangelog,
        interval: Interval,
        *,
        log: MemoryLateLog,
        since: Mapping[Name, int],
        until: int | None,
        **_: Any,
    ) -> None:
        Repairer(self.tables, changelog, interval, log, since, until).run(steps)


def new_mirror(lake: MemoryLake, config: ChangefeedConfig, *, watermarks: bool) -> Mirror:
    """A mirror that starts, or continues, on this lake; it knows the changefeed's settings."""
    settings = MirrorSettings(topics=feed_topics(config))
    return Mirror(lake, watermarks=watermarks, settings=settings)  # type: ignore[arg-type]


class Executor:
    """Does the steps of a plan."""

    def __init__(
        self, tables: MemoryTables, changelog: MemoryChangelog, interval: Interval
    ) -> None:
        self._tables = tables
        self._changelog = changelog
        self._interval = interval

    def run(self, steps: Sequence[Step]) -> None:
        """Does all steps; a table whose old rows are unknown is stopped."""
        failed: set[int] = set()
        for step in steps:
            if id(step.table) in failed and not isinstance(step, Drop | Rename):
                continue
            try:
                self._do(step)
            except UnknownOldRow as error:
                failed.add(id(step.table))
                step.table.stop(FAILED.format(cause=error), step.position.ts)

    def _do(self, step: Step) -> None:
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

    def _rows(self, step: Rows, table: MemoryTable) -> None:
        if step.schema.carried_names != table.names:
            raise ValueError(f"rows of {step.schema.carried_names} for {table.names}")
        changes, key = self._changes(step), step.schema.handle_key()
        if key:
            _merge(table, self._last_rows(step, changes, key), key)
        else:
            _keyless(table, step, changes, self._changelog.matching(WATERMARKS))

    def _changes(self, step: Rows) -> pa.Table:
        within = self._interval.within(*step.segments)
        changes = self._changelog.matching(of_table(*step.name) & within)
        return self._without_applied(step, changes) if step.late else changes

    def _without_applied(self, step: Rows, changes: pa.Table) -> pa.Table:
        """Without late rows that are copies of what was applied in time."""
        applied = self._changelog.matching(of_table(*step.name) & self._interval.applied)
        copies = {_content(step, event) for event in applied.to_pylist()}
        keep = [
            event["commit_ts"] != self._interval.late_ts or _content(step, event) not in copies
            for event in changes.to_pylist()
        ]
        return changes.filter(pa.array(keep, pa.bool_()))

    def _latest(self, step: Rows, key: Sequence[str]) -> LatestRows:
        order = self._interval.order
        return LatestRows(step.schema, step.layouts, tuple(key), ALWAYS, order, step.moves)

    def _last_rows(self, step: Rows, changes: pa.Table, key: Sequence[str]) -> pa.Table:
        latest = self._latest(step, key)
        return latest.rows(latest.last(latest.entries(changes)))


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
    ) -> None:
        super().__init__(tables, changelog, interval)
        self._all_rows = log.rows(since, until, late=False)
        self._late_rows = log.rows(since, until, late=True)

    def _changes(self, step: Rows) -> pa.Table:
        return self._of_step(step, self._all_rows)

    def _of_step(self, step: Rows, rows: pa.Table) -> pa.Table:
        first, last = step.segments
        cuts = self._interval.cuts
        low = cuts[first - 1] if first else -1
        high = cuts[last] if last < len(cuts) else None
        condition = named(*step.name) & above("commit_ts", low)
        condition = condition if high is None else condition & up_to("commit_ts", high)
        return rows.filter(condition.arrow())

    def _last_rows(self, step: Rows, changes: pa.Table, key: Sequence[str]) -> pa.Table:
        latest = self._latest(step, key)
        names = [f"key{number}" for number in range(len(key))]
        late = latest.entries(self._of_step(step, self._late_rows)).select(names).to_pylist()
        touched = {tuple(row.values()) for row in late}
        last = latest.last(latest.entries(changes))
        keep = [tuple(row.values()) in touched for row in last.select(names).to_pylist()]
        return latest.rows(last.filter(pa.array(keep, pa.bool_())))


def _content(step: Rows, event: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a row change says, its columns by name."""
    names = step.sent.carried_names
    layout = next((each for each in step.layouts if each.shape == event["shape"]), None)
    sides = []
    for side in ("after", "before"):
        by_name = dict(zip(layout.names, event[side] or (), strict=False)) if layout else {}
        sides.append(None if event[side] is None else tuple(by_name.get(name) for name in names))
    return event["commit_ts"], event["kind"], *sides


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


def _keyless(table: MemoryTable, step: Rows, changes: pa.Table, marks: pa.Table) -> None:
    """Counts rows: of all runs of a partition the one with the most of a row counts."""
    for event in changes.to_pylist():
        is_unknown = event["before"] is None or event["flags"] & EventFlag.BEFORE_AMBIGUOUS
        if event["kind"] == "update" and is_unknown:
            raise UnknownOldRow
    layouts = {layout.shape: layout for layout in step.layouts}
    counts: Counter[tuple[Any, ...]] = Counter()
    messages: dict[tuple[Any, ...], set[int]] = {}
    for event, run in _runs(changes, marks):
        source = event["topic"], event["partition"]
        for sign, texts in ((-1, _old_texts(event)), (1, event["after"])):
            if texts is not None:
                row = _typed(table.columns, layouts[event["shape"]], texts)
                place = row, event["commit_ts"], source, run, sign
                counts[place] += 1
                messages.setdefault(place, set()).add(event["offset"])
    most: dict[tuple[Any, ...], int] = {}
    senders: Counter[tuple[Any, ...]] = Counter()
    for (row, ts, source, run, sign), count in counts.items():
        place = row, ts, source, sign
        if count > most.get(place, 0):
            senders[row, ts, sign] += len(messages[row, ts, source, run, sign])
            senders[row, ts, sign] -= most.get(place, 0) and 1
            most[place] = count
    if any(count > 1 for count in senders.values()):
        step.table.diverge(MAYBE_RESENT, guessed=True)
    net: Counter[Values] = Counter(table.rows)
    for (row, _, _, sign), count in sorted(most.items(), key=lambda each: (each[0][1], each[0][3])):
        net[row] = max(0, net[row] + sign * count)
    table.rows = [row for row, count in net.items() for _ in range(max(0, count))]


def _runs(changes: pa.Table, marks: pa.Table) -> Iterator[tuple[dict[str, Any], Any]]:
    """The rows with the run in which their partition sent them.

    The sender has started again where a commit_ts or a watermark is lower than the one before it,
    and where rows follow a watermark that had promised them.
    """
    events = pa.concat_tables([changes, marks]).sort_by([(name, "ascending") for name in _PLACE])
    source, starts, row_ts, mark_ts, highest = None, 0, 0, 0, 0
    for event in events.to_pylist():
        here, ts = (event["topic"], event["partition"]), event["commit_ts"]
        if here != source:
            source, starts, row_ts, mark_ts, highest = here, 0, 0, 0, 0
        if event["kind"] == "watermark":
            starts += ts < mark_ts
            mark_ts, highest = ts, max(highest, ts)
        else:
            starts += ts < row_ts
            row_ts = ts
            yield event, (starts, ts <= highest)


def _old_texts(event: Mapping[str, Any]) -> Sequence[str | None] | None:
    """The old row; a column that it does not carry has not changed."""
    old, bits = event["before"], event["before_missing"]
    if old is None or bits is None:
        return None if old is None else list(old)
    return [
        new if bits[place >> 3] >> (place & 7) & 1 else value
        for place, (value, new) in enumerate(zip(old, event["after"], strict=True))
    ]


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


def contents(mirror: Mirror) -> Mapping[Name, MemoryTable]:
    """The tables of the lake by the names that the mirror gives them."""
    tables: Any = mirror.lake.tables
    return {
        table.name: tables.tables[table.identifier]
        for table in mirror.state.tables.values()
        if table.identifier
    }
