"""Rows that came too late: their messages could be read only when the tables had gone past them.

The last change of a key decides, and the changelog has all that came since. So the keys that late
rows touch are looked up there once more, and put in the tables as they must be now. A table whose
columns have changed since then is left as it is, and named.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidegate.feed.tables import Name
from tidegate.lake.changelog import ROW_KINDS, Group
from tidegate.lake.format import Position
from tidegate.lake.lake import Lake
from tidegate.lake.names import quoted
from tidegate.lake.plan import Status, Table
from tidegate.lake.routes import Routes
from tidegate.lake.rows import BY_ARRIVAL, BY_COMMIT, Layout, RowReader, carried
from tidegate.lake.snapshots import MirrorState, Snapshot

Reasons = dict[tuple[str, str], str]
"""Why the late events of a table are in the changelog only."""


def late_events(state: MirrorState, events: pa.Table) -> pa.Table:
    """Rows and statements that the tables have gone past."""
    last = state.offsets.last
    rows = events.select(["topic", "partition", "offset", "commit_ts"]).to_pylist()
    mask = [
        row["offset"] <= last.get((row["topic"] or "", row["partition"]), -1)
        and (not state.gate.has_watermarks or (row["commit_ts"] or 0) <= state.applied_ts)
        for row in rows
    ]
    kinds = pc.is_in(events["kind"], pa.array([*ROW_KINDS, "ddl"]))
    return events.filter(pc.and_(pa.chunked_array([pa.array(mask, pa.bool_())]), kinds))


def apply_late(lake: Lake, events: pa.Table) -> Reasons:
    """Puts late rows right, which the changelog has already; tables that cannot be are told."""
    state = lake.snapshots.state()
    if state is None:
        return {}
    late = late_events(state, events)
    told = state.feed.get("tables", {})
    routes = Routes(tuple(told.get("include", ())), told.get("rename", {}))
    reasons: Reasons = {}
    names = {(row["database"] or "", row["table"] or "") for row in late.to_pylist()}
    for name in sorted(names):
        if routes.wants(Name(*name)):
            reason = _apply(lake, state, Name(*name), late)
            if reason:
                reasons[name] = reason
    return reasons


def _apply(lake: Lake, state: MirrorState, name: Name, late: pa.Table) -> str:
    """One table; the reason if it cannot be done."""
    ours = pc.and_(pc.equal(late["database"], name.database), pc.equal(late["table"], name.table))
    rows = late.filter(ours)
    table = state.tables.get(name.folded)
    if table is None or table.status is Status.STOPPED:
        return "the lake does not mirror it now"
    if "ddl" in rows["kind"].to_pylist():
        return "a statement cannot be applied afterwards"
    key = table.schema.handle_key()
    if not key:
        return "it has no key"
    first = pc.min(rows["commit_ts"]).as_py()
    for statement in lake.changelog.statements_since(first).to_pylist():
        if statement["database"] == name.database and statement["commit_ts"] <= state.applied_ts:
            return "there have been statements since then"
    since, order = F.lit(True), BY_ARRIVAL
    if state.gate.has_watermarks:
        since = F.col("commit_ts").between(first, state.applied_ts)
        order = BY_COMMIT
    reader = _reader(lake, state, table, name, since)
    if reader is None:
        return "its columns have changed since then"
    history = reader.last_of_each_key(lake.changelog.rows_of(*name).where(since), key, order)
    touched = reader.last_of_each_key(lake.spark.createDataFrame(rows), key, order)
    _merge(lake, state, table, _of_keys(history, touched, key), key)
    return ""


def _of_keys(history: DataFrame, touched: DataFrame, key: tuple[str, ...]) -> DataFrame:
    left, right = history.alias("l"), touched.alias("r")
    pairs = (F.col(f"l.{quoted(name)}").eqNullSafe(F.col(f"r.{quoted(name)}")) for name in key)
    return left.join(right, reduce(Column.__and__, pairs), "left_semi")


def _reader(
    lake: Lake, state: MirrorState, table: Table, name: Name, since: Column
) -> RowReader | None:
    """Reads the rows of the table since then; None if not all have the columns that it has now."""
    of_table = (F.col("database") == name.database) & (F.col("table") == name.table)
    groups = lake.changelog.groups(since & of_table, F.lit(0), F.lit(False))
    unknown = {group.shape for group in groups if state.cache.shapes.shape(group.shape) is None}
    if unknown:
        for batch in lake.changelog.shapes({(name.database, name.table): unknown}).to_batches():
            state.cache.shapes.add(batch)
    layouts = {Layout(group.shape, _names(state, group)) for group in groups}
    now = set(carried(table.schema))
    if any(set(layout.names) != now for layout in layouts):
        return None
    ordered = sorted(layouts, key=lambda layout: layout.shape)
    return RowReader(table.schema, ordered, state.feed.get("time zone", lake.zone))


def _names(state: MirrorState, group: Group) -> tuple[str, ...]:
    shape = state.cache.shape(group.shape, group.schema_version)
    return tuple(column.name for column in shape.columns)


def _merge(
    lake: Lake, state: MirrorState, table: Table, changes: DataFrame, key: tuple[str, ...]
) -> None:
    """The table at the same instant in another version, which is recorded."""
    position = lake.tables.position(table.identifier) or Position(state.applied_ts)
    lake.tables.merge(table.identifier, changes, key, position)
    state.step += 1
    version = lake.tables.version(table.identifier)
    now = datetime.now(UTC)
    found = Snapshot(state.applied_ts, now, table.name, table.identifier, version)
    lake.snapshots.record(state, [found])
