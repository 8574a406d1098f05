"""The order in which released changes are applied, whatever partitions they came by.

Changes go by commit_ts; at one commit_ts rows go before DDL. Within a transaction the rows of a
table go delete, update, insert, as TiCDC sorts them when it splits an update of a key, and rows of
one kind in the order of their partition. A DDL that was broadcast to all partitions, or sent
again, is there once, however its copies are spelled. `in_order` sorts whole transactions; what only
asks which change of a key is the last one compares by BY_COMMIT or BY_ARRIVAL.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.changefeed.receive.release import GATED_KINDS
from tidegate.sql.ddl_names import DdlId, ddl_id, names_old_database

POSITION = ("topic", "partition", "offset", "event")
"""The columns that say where an event came from."""
RANK = "rank"
"""The column of `rank_of` in what is sorted."""
BY_COMMIT = ("commit_ts", RANK, "offset", "event")
"""The columns by which changes of one key follow each other."""
BY_ARRIVAL = ("offset", "event", RANK)
"""The same for feeds that say nothing better than the order of arrival."""

_RANKED_KINDS = pa.array(["delete", "update", "insert", "ddl"])


@dataclass(frozen=True, slots=True)
class Step:
    """Rows, then the DDL that follows them; None after the last rows.

    The rows may be those of many transactions: no DDL comes between them.
    """

    rows: pa.Table
    ddl: dict[str, Any] | None = None

    @property
    def ddl_id(self) -> DdlId | None:
        """What tells the DDL from others."""
        return None if self.ddl is None else ddl_id(self.ddl)


@dataclass(frozen=True, slots=True)
class Transaction:
    """All that was committed at one commit_ts: rows, or DDL, or rows and then DDL."""

    commit_ts: int
    rows: pa.Table
    ddl: pa.Table


def rank_of(kinds: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The place of each kind within a transaction; an update that takes a row from a key is 0."""
    return pc.index_in(kinds, _RANKED_KINDS).cast(pa.int8())


def in_order(table: pa.Table, *, by_arrival: bool = False) -> pa.Table:
    """Rows and DDL in the order in which to apply them, every DDL once; nothing else.

    Where rows stand in the table does not matter, only what they say: any interleaving of the
    partitions gives the same. Rows that were sent again stay, for applying them is idempotent.

    `by_arrival` is for feeds that tell no more than the millisecond of a commit (Canal-JSON without
    the TiDB extension): rows then go as their partition has them, and only DDL goes by its time.
    """
    table = table.filter(pc.is_in(table["kind"], pa.array(GATED_KINDS)))
    table = once(table, by_text=by_arrival)
    is_ddl = pc.equal(table["kind"], "ddl")
    nothing = pa.scalar(None, pa.string())
    keys = {
        "commit_ts": _statements_before(table, is_ddl) if by_arrival else table["commit_ts"],
        "phase": pc.cast(is_ddl, pa.int8()),
        # DDL at one commit_ts goes as it was sent: the table it names says nothing of its order.
        "database": pc.if_else(is_ddl, nothing, table["database"]),
        "table": pc.if_else(is_ddl, nothing, table["table"]),
        **({} if by_arrival else {RANK: rank_of(table["kind"])}),
        **{name: table[name] for name in POSITION},
    }
    return table.take(_sorted(pa.table(keys)))


def _statements_before(table: pa.Table, is_ddl: pa.ChunkedArray) -> pa.ChunkedArray:
    """How many statements are older than each event; those of its own time go after rows."""
    ts = table["commit_ts"]
    count = pc.multiply(pc.cast(is_ddl, pa.int64()), 0)
    for cut in ts.filter(is_ddl).unique().to_pylist():
        count = pc.add(count, pc.cast(pc.greater(ts, cut), pa.int64()))
    return count


def once(table: pa.Table, *, by_text: bool = False) -> pa.Table:
    """The table without the copies of a DDL.

    Of several copies the one stays that says most: with schemas, with the database of a renamed
    table; among equals the one of the lowest partition and offset. `by_text` as in `DdlId.key`.
    """
    if table.num_rows == 0:
        return table
    places = pa.array(range(table.num_rows), pa.int64())
    ddl_places = places.filter(pc.equal(table["kind"], "ddl").combine_chunks())
    if len(ddl_places) < 2:
        return table
    columns = ["commit_ts", "database", "table", "ddl", "schema", *POSITION]
    rows = table.select(columns).take(ddl_places)
    order = _sorted(rows.select(list(POSITION)))
    copies: dict[int, list[_Copy]] = {}
    ordered = zip(ddl_places.take(order).to_pylist(), rows.take(order).to_pylist(), strict=True)
    for place, row in ordered:
        ddl = ddl_id(row)
        copies.setdefault(ddl.commit_ts, []).append(_Copy(place, ddl, bool(row["schema"])))
    surplus = [place for each in copies.values() for place in _surplus(each, by_text)]
    if not surplus:
        return table
    return table.filter(pc.invert(pc.is_in(places, pa.array(surplus, pa.int64()))))


class _Copy(NamedTuple):
    place: int
    ddl: DdlId
    has_schemas: bool


def _surplus(copies: Sequence[_Copy], by_text: bool) -> Iterator[int]:
    """The places of DDL of one commit_ts, in order, that another one of them stands for."""
    if len(copies) == 1:  # mostly so: no need to read the statement
        return
    by_key: dict[Hashable, list[_Copy]] = {}
    for copy in copies:
        by_key.setdefault(copy.ddl.key(by_text=by_text), []).append(copy)
    for same in by_key.values():
        best = max(same, key=_says)  # of equals the first
        yield from (copy.place for copy in same if copy is not best)


def _says(copy: _Copy) -> tuple[bool, bool]:
    return copy.has_schemas, names_old_database(copy.ddl.query, copy.ddl.database)


def steps(table: pa.Table, *, by_arrival: bool = False) -> Iterator[Step]:
    """What to do one after the other: the table in order, cut behind every DDL."""
    ordered = in_order(table, by_arrival=by_arrival)
    start = 0
    for place in _places_of_ddl(ordered):
        yield Step(ordered.slice(start, place - start), ordered.slice(place, 1).to_pylist()[0])
        start = place + 1
    if start < ordered.num_rows:
        yield Step(ordered.slice(start))


def transactions(table: pa.Table) -> Iterator[Transaction]:
    """The table in order, a commit_ts at a time.

    A transaction is whole only if all of it was released: give what a gate released at once.
    """
    ordered = in_order(table)
    if ordered.num_rows == 0:
        return
    timestamps = ordered["commit_ts"].to_pylist()
    starts = [
        place for place, ts in enumerate(timestamps) if place == 0 or ts != timestamps[place - 1]
    ]
    for start, end in zip(starts, [*starts[1:], len(timestamps)], strict=True):
        part = ordered.slice(start, end - start)
        is_ddl = pc.equal(part["kind"], "ddl")
        yield Transaction(timestamps[start], part.filter(pc.invert(is_ddl)), part.filter(is_ddl))


def _places_of_ddl(table: pa.Table) -> list[int]:
    found: list[int] = pc.indices_nonzero(pc.equal(table["kind"], "ddl")).to_pylist()
    return found


def _sorted(keys: pa.Table) -> pa.Array:
    """Indices by all columns of `keys`, stable."""
    order = [(name, "ascending") for name in keys.column_names]
    return pc.sort_indices(keys, sort_keys=order)
