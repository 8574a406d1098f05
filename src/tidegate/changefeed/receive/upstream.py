"""A received feed as the stream of changes that it was made of: in commit order, every DDL once.

What `Gate` releases, in the order of `in_order`, and behind it the watermark that released it: so
it can be given to a `Changefeed`. A feed without watermarks cannot be put in order; its changes
stay as they come.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.changefeed.receive.gate import Gate
from tidegate.changefeed.receive.order import in_order
from tidegate.changefeed.receive.release import GATED_KINDS, Source, names_in
from tidegate.sql.ddl_names import ddl_id
from tidegate.wire import CHANGE_SCHEMA, ShapeBook


class Upstream:
    """Takes change batches as they were received and gives them back as they were committed.

    `partitions` are all that the feed has. Rows that were sent again before the watermark that
    covers them are given again.
    """

    def __init__(
        self, partitions: Iterable[Source | tuple[str, int]], *, watermarks: bool = True
    ) -> None:
        self.gate = Gate(partitions, watermarks=watermarks)
        self._held: list[pa.Table] = []
        self._seen: set[Hashable] = set()
        self._shapes = ShapeBook()
        self._names_of = names_in(self._shapes)

    def read(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """The shapes and schemas of a batch, and the changes that it makes complete."""
        table = pa.Table.from_batches([changes])
        self._shapes.add(changes)
        schemas = table.filter(pc.equal(table["kind"], "schema"))
        before = self.gate.resolved_ts
        resolved = self.gate.observe(table)
        if not self.gate.has_watermarks:
            gated = table.filter(pc.is_in(table["kind"], pa.array(GATED_KINDS)))
            return _one(schemas, self._new(gated))
        self._held.append(table)
        if resolved == before:
            return _one(schemas)
        parts = self.gate.release().split(pa.concat_tables(self._held), self._names_of)
        self._held = [parts.held]
        ordered = in_order(parts.due)
        self.gate.mark_applied(resolved, changes=ordered, names_of=self._names_of)
        return _one(schemas, ordered, _watermark(resolved))

    def finish(self) -> pa.RecordBatch:
        """What no watermark has released: it was received all the same."""
        return _one(in_order(pa.concat_tables(self._held))) if self._held else _one()

    def _new(self, table: pa.Table) -> pa.Table:
        """The table without DDL that has come before."""
        copies = []
        for row in _ddl_rows(table):
            identity = ddl_id(row).key(by_text=True)
            if identity in self._seen:
                copies.append(row["place"])
            self._seen.add(identity)
        if not copies:
            return table
        numbers = pa.array(range(table.num_rows), pa.int64())
        return table.filter(pc.invert(pc.is_in(numbers, pa.array(copies, pa.int64()))))


def _ddl_rows(table: pa.Table) -> list[dict[str, object]]:
    places = pc.indices_nonzero(pc.equal(table["kind"], "ddl")).to_pylist()
    names = ["commit_ts", "database", "table", "ddl", "schema"]
    rows = table.select(names).take(pa.array(places, pa.int64())).to_pylist()
    return [row | {"place": place} for row, place in zip(rows, places, strict=True)]


def _watermark(ts: int) -> pa.Table:
    row = {"kind": "watermark", "event": 0, "flags": 0, "commit_ts": ts}
    return pa.Table.from_pylist([row], schema=CHANGE_SCHEMA)


def _one(*tables: pa.Table) -> pa.RecordBatch:
    together = pa.concat_tables([CHANGE_SCHEMA.empty_table(), *tables]).combine_chunks()
    batches = together.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=CHANGE_SCHEMA)
