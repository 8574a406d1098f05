"""A whole consumer in memory: change batches in, tables out, as the gate and the order have it.

What has been read and is not yet applied is kept in `pending`, as a changelog keeps it.
"""

from collections.abc import Callable

import pyarrow as pa

from tests.support.table_model import TableModel
from tidegate.changefeed.receive.gate import Gate
from tidegate.changefeed.receive.order import Step, steps
from tidegate.changefeed.receive.schema_cache import SchemaCache
from tidegate.model import Delete, Insert, Update
from tidegate.sql.ddl_names import DdlId
from tidegate.wire import EventReader


class Mirror:
    """Takes chunks of change batches; `on_state` is called with each new instant of the tables."""

    def __init__(
        self,
        gate: Gate,
        *,
        cache: SchemaCache | None = None,
        model: TableModel | None = None,
        on_state: Callable[[int, TableModel], None] = lambda ts, model: None,
    ) -> None:
        self.gate = gate
        self.cache = SchemaCache() if cache is None else cache
        self.model = TableModel() if model is None else model
        self.pending: list[pa.Table] = []
        self.redelivered = 0
        self._on_state = on_state

    def read(self, chunk: pa.Table) -> None:
        """Takes in what was read, and applies what that makes complete."""
        before = self.gate.resolved_ts
        self.cache.add(chunk)
        self.pending.append(chunk)
        if self.gate.observe(chunk) > before or self.gate.consistency == "eventual":
            self.release()

    def release(self) -> None:
        """Applies everything up to the resolved timestamp."""
        parts = self.gate.release().split(pa.concat_tables(self.pending))
        self.redelivered += parts.redelivered.num_rows
        readable = self.cache.split(parts.due)
        assert readable.waiting.num_rows == 0, self.cache.waiting()
        self.pending = [parts.held]
        at = self.gate.resolved_ts
        ddl: list[DdlId] = []
        touched: list[tuple[str, str]] = []
        for step in steps(readable.ready, by_arrival=not self.gate.has_watermarks):
            self._rows(step.rows)
            if step.ddl_id is not None:
                names = self._ddl(step)
                ddl.append(step.ddl_id)
                touched += names if step.ddl_id.commit_ts == at else []
        self.gate.mark_applied(at, ddl, touched, readable.ready)
        self.cache.forget(at)
        self._on_state(at, self.model)

    def is_done(self) -> bool:
        """Whether all that was read has been applied; what came again afterwards counts as such."""
        parts = self.gate.release().split(pa.concat_tables(self.pending))
        return parts.held.num_rows == 0 and parts.due.num_rows == 0

    def _rows(self, table: pa.Table) -> None:
        reader = EventReader(self.cache.shapes)
        for batch in table.combine_chunks().to_batches():
            for event in reader.events(batch):
                assert isinstance(event, Insert | Update | Delete)
                name = (event.database, event.table)
                if isinstance(event, Delete):
                    self.model.take(name, dict(event.before))
                else:
                    self.model.put(name, dict(event.after))

    def _ddl(self, step: Step) -> list[tuple[str, str]]:
        assert step.ddl is not None
        effects = self.model.run(step.ddl["ddl"]["query"], step.ddl["database"] or "")
        names = [effect.name for effect in effects]
        names += [effect.new_name for effect in effects if effect.new_name is not None]
        return [(name.database, name.table) for name in names]

    # --- restarts ---------------------------------------------------------------------------------

    def resumed(self) -> "Mirror":
        """Another one that goes on where this one stopped, from what it had saved."""
        gate, cache = (
            Gate.from_json(self.gate.to_json()),
            SchemaCache.from_json(self.cache.to_json()),
        )
        other = Mirror(gate, cache=cache, model=self.model.copy(), on_state=self._on_state)
        other.pending = list(self.pending)
        return other

    def rewound(self) -> "Mirror":
        """Another one that has lost what was pending, to read again from what was not applied."""
        cache = SchemaCache.from_json(self.cache.to_json())
        return Mirror(
            self.gate.rewound(), cache=cache, model=self.model.copy(), on_state=self._on_state
        )
