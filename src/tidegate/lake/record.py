"""The record of a lake: which version every table had at which upstream instant.

One commit to it ends a step of the mirror: the instant it reached, a row for each table that
changed, and the mirror's own state. What is in the tables but not recorded here is a step that was
cut off; it is done again, to the same instant, before anything else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from tidegate.changefeed.receive.gate import Gate
from tidegate.changefeed.receive.schema_cache import SchemaCache
from tidegate.lake.apply.plan.steps import PastEffect, PastKind
from tidegate.lake.apply.plan.tables import State, Table, Tables
from tidegate.lake.apply.policy import Policy
from tidegate.lake.changelog.changelog import Offsets
from tidegate.lake.compaction import CompactionReport, compact_log
from tidegate.lake.formats.base import TableFormat
from tidegate.lake.storage.log_files import rows_of
from tidegate.lake.storage.predicates import (
    ALWAYS,
    Condition,
    above,
    equal,
    every,
    is_null,
    one_of,
    up_to,
)
from tidegate.lake.table_states import WHOLE, KnownTables, TableRecords
from tidegate.model import LakeError, TableSchema
from tidegate.model.tso import tso_to_datetime
from tidegate.sql.ddl_names import DdlId
from tidegate.sql.tables import Name, TableBook

NAME = "snapshots"
_INTENT = "tidegate.intent"
_SINCE = "tidegate.kept-since"
_TOUCHED = "tidegate.touched"
_STATE_VERSION = 1
_COLUMNS = StructType(
    [
        StructField("step", LongType()),
        StructField("resolved_ts", LongType()),
        StructField("wall", TimestampType()),
        StructField("database", StringType()),
        StructField("table", StringType()),
        StructField("identifier", StringType()),
        StructField("uid", StringType()),
        StructField("version", LongType()),
        StructField("state", StringType()),
        StructField("tables", StringType()),
    ]
)


@dataclass(slots=True)
class MirrorState:
    """Where a mirror stands: all that a restart needs."""

    gate: Gate = field(default_factory=Gate)
    cache: SchemaCache = field(default_factory=SchemaCache)
    book: TableBook = field(default_factory=TableBook)
    tables: Tables = field(default_factory=dict)
    offsets: Offsets = field(default_factory=Offsets)
    changelog: int | None = None
    """A version of the changelog that has nothing beyond `offsets`; None: not known."""
    step: int = 0
    rows: int = 0
    bad: int = 0
    retried: int = 0
    """Up to which time of the quarantine's log the tables have what could be read in the end."""
    done: list[DdlId] = field(default_factory=list)
    """The last statements of a feed without watermarks; a gate knows those of other feeds."""
    past: list[PastEffect] = field(default_factory=list)
    """What these did to rows from before them, of which more may arrive."""
    feed: dict[str, Any] = field(default_factory=dict)

    @property
    def applied_ts(self) -> int:
        """Every table shows this instant."""
        return self.gate.applied_ts

    def state_of(self, table: Table) -> State:
        """What a table of this feed promises."""
        return table.state(not self.gate.has_watermarks)

    def progress_json(self) -> str:
        """What changes with every step; small."""
        return json.dumps(
            {
                "version": _STATE_VERSION,
                "gate": json.loads(self.gate.to_json()),
                "offsets": self.offsets.to_object(),
                "changelog": self.changelog,
                "step": self.step,
                "rows": self.rows,
                "bad": self.bad,
                "retried": self.retried,
                "done": [list(each) for each in self.done],
                "past": [_past_object(each) for each in self.past],
                "feed": self.feed,
            },
            separators=(",", ":"),
        )

    def known_tables(self) -> KnownTables:
        """What changes with statements."""
        return KnownTables(self.tables, self.book, self.cache)

    @classmethod
    def from_json(cls, progress: str, known: KnownTables) -> MirrorState:
        """The state that was recorded."""
        told = json.loads(progress)
        return cls(
            gate=Gate.from_json(json.dumps(told["gate"])),
            cache=known.cache,
            book=known.book,
            tables=known.tables,
            offsets=Offsets.from_object(told["offsets"]),
            changelog=told.get("changelog"),
            step=told["step"],
            rows=told["rows"],
            bad=told["bad"],
            retried=told.get("retried", 0),
            done=[DdlId(*each) for each in told["done"]],
            past=[_past(each) for each in told.get("past", ())],
            feed=told["feed"],
        )


def _past_object(past: PastEffect) -> list[Any]:
    return [past.commit_ts, past.kind.value, past.name, past.new_name, past.what]


def _past(entry: list[Any]) -> PastEffect:
    commit_ts, kind, name, new_name, what = entry
    new = None if new_name is None else Name(*new_name)
    return PastEffect(commit_ts, PastKind(kind), Name(*name), new, what)


@dataclass(frozen=True, slots=True)
class Intent:
    """A step that was begun: to which instant, by which version of the changelog and policy.

    `retried` is what `MirrorState.retried` is after it; `repairs` says that the step repairs
    what came late, and goes to no other instant. `reload` is the load whose tables it puts in the
    place of others, if that is what it does.
    """

    step: int
    target: int
    changelog: int
    policy: str = Policy.EVOLVE.value
    retried: int = 0
    repairs: bool = False
    reload: str = ""

    def to_json(self) -> str:
        """What `from_json` reads."""
        return json.dumps(list(astuple(self)))

    @classmethod
    def from_json(cls, text: str) -> Intent:
        """The intent that was written down."""
        return cls(*json.loads(text))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at an instant; `version` None: it is gone."""

    resolved_ts: int
    wall: datetime
    name: Name
    identifier: str
    uid: str
    version: int | None


class RecordRow(NamedTuple):
    """A table at the end of a step; `version` None: it is gone."""

    step: int
    resolved_ts: int
    wall: datetime
    database: str
    table: str
    identifier: str
    uid: str
    version: int | None


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a table may not be what its upstream is; an exact one differs by the user's policy."""

    name: Name
    text: str
    is_exact: bool


class Snapshots:
    """The record of one lake."""

    def __init__(self, spark: SparkSession, tables: TableFormat) -> None:
        self._spark = spark
        self._tables = tables
        self.log = tables.create_log(NAME, _COLUMNS)
        self.identifier = self.log.identifier
        self._table_records = TableRecords()

    # --- writing ----------------------------------------------------------------------------------

    def intend(self, intent: Intent) -> None:
        """Writes down what is about to be done."""
        self.log.set_properties({_INTENT: intent.to_json()})

    def intended(self) -> Intent | None:
        """The last step that was begun, done or not."""
        text = self.log.properties().get(_INTENT)
        return None if text is None else Intent.from_json(text)

    def record(self, state: MirrorState, changed: Iterable[Snapshot]) -> None:
        """Ends a step, in one commit."""
        wall = datetime.now(UTC)
        ts = state.applied_ts
        tables = self._table_records.changes(state.known_tables())
        rows: list[tuple[Any, ...]] = [
            (state.step, ts, wall, *each.name, each.identifier, each.uid, each.version, None, None)
            for each in changed
        ]
        rows.append((state.step, ts, wall, *[None] * 5, state.progress_json(), tables))
        self.log.add_rows(rows_of(_COLUMNS, rows))

    def touch(self) -> None:
        """Writes to the record without changing it, to see whether that is possible."""
        self.log.set_properties({_TOUCHED: datetime.now(UTC).isoformat()})

    def keep_since(self, since: int) -> None:
        """Says that no instant before `since` can be read any more."""
        self.log.set_properties({_SINCE: str(since)})

    def forget(self, since: int) -> CompactionReport:
        """Drops what tells of instants before `since`; the tables at that instant stay known.

        The rest is compacted.
        """
        steps = {each.step for each in self._last_rows(up_to("resolved_ts", since)).values()}
        final = _greatest(self.log.read(ALWAYS, ["step"]), "step")
        kept = one_of("step", sorted(steps | ({final} if final is not None else set())))
        earlier = up_to("resolved_ts", since - 1) & is_null("tables")
        return compact_log(self._spark, self.log, all_small=True, dropped=every(earlier, ~kept))

    def kept_since(self) -> int:
        """The earliest instant that can still be read; 0: all of them."""
        return int(self.log.properties().get(_SINCE, "0"))

    # --- reading ----------------------------------------------------------------------------------

    def state(self) -> MirrorState | None:
        """The state at the end of the last step that was recorded."""
        has_state = ~is_null("state")
        step = _greatest(self.log.read(has_state, ["step"]), "step")
        if step is None:
            return None
        last = self.log.read(has_state & equal("step", step), ["state", "wall"])
        _, progress = max((row["wall"], row["state"]) for each in last for row in each.to_pylist())
        records = self._of_tables()
        state = MirrorState.from_json(progress, KnownTables.from_records(records))
        for table in state.tables.values():
            table.identifier = self._tables.here(table.identifier)
        self._table_records.start(state.known_tables(), records)
        return state

    def _of_tables(self, ts: int | None = None) -> list[str]:
        """What was recorded of tables, up to an instant: all of them, and changes since."""
        wanted = ~is_null("tables")
        if ts is not None:
            wanted = wanted & up_to("resolved_ts", ts)
        first, records = 0, list[tuple[int, datetime, str]]()
        for batch in self.log.read(wanted, ["step", "wall", "tables"]):
            for step, wall, text in zip(*(each.to_pylist() for each in batch.columns), strict=True):
                if text.startswith(WHOLE):
                    first = max(first, step)
                if step >= first:
                    records.append((step, wall, text))
        return [text for step, _, text in sorted(records) if step >= first]

    def instants(self) -> list[tuple[int, datetime]]:
        """Every instant that was recorded, in order."""
        batches = self.log.read(~is_null("state"), ["step", "wall", "resolved_ts"])
        rows = sorted(row for each in batches for row in zip(*_columns(each), strict=True))
        return [(ts, wall) for _, wall, ts in rows]

    def tables(self, ts: int | None = None) -> list[Table]:
        """The tables as they were recorded at that instant, with the states of then."""
        records = self._of_tables(ts)
        return list(KnownTables.from_records(records).tables.values()) if records else []

    def schemas(self, ts: int | None = None) -> dict[Name, TableSchema]:
        """The upstream schemas of the tables at that instant."""
        return {table.name: table.schema for table in self.tables(ts)}

    def doubts(self, ts: int | None = None) -> dict[tuple[str, str], Doubt]:
        """The tables that may not be what their upstream was at that instant, and why.

        What was known then counts, and what is known by now of the same table.
        """
        return doubts_of(self.tables(ts), self.tables() if ts is not None else (), ts)

    def at(self, ts: int | None = None) -> list[Snapshot]:
        """The tables at the last instant recorded that is not after `ts`, or now.

        A table that was renamed or dropped since, also by a step that is under way or was cut off,
        is found by its uid. One whose versions went with it, in a catalog that cannot rename, is
        left out.
        """
        if ts is not None and ts < self.kept_since():
            first = tso_to_datetime(self.kept_since())
            raise LakeError(
                f"The lake keeps its snapshots since {first:%Y-%m-%d %H:%M:%S} UTC only",
                "Ask for a later instant; `tidegate maintain --keep` says how long they are kept",
            )
        until = ALWAYS if ts is None else up_to("resolved_ts", ts)
        rows = self._last_rows(until).values()
        snapshots = [self._snapshot(row) for row in rows if row.version is not None]
        if ts is None and not self._is_under_way():
            return snapshots
        there = {each.uid: each.identifier for each in self._tables.locate()}
        return [
            replace(each, identifier=there[each.uid]) for each in snapshots if each.uid in there
        ]

    def _snapshot(self, row: RecordRow) -> Snapshot:
        name, identifier = Name(row.database, row.table), self._tables.here(row.identifier)
        return Snapshot(row.resolved_ts, row.wall, name, identifier, row.uid, row.version)

    def _is_under_way(self) -> bool:
        """Whether a later step was begun: it may have renamed or dropped tables."""
        intent = self.intended()
        if intent is None:
            return False
        recorded = _greatest(self.log.read(ALWAYS, ["step"]), "step")
        return intent.step > (recorded or 0)

    def rows_of_tables(self, condition: Condition) -> Iterator[RecordRow]:
        """What was recorded of tables, in any order."""
        for batch in self.log.read(condition & ~is_null("database"), RecordRow._fields):
            for row in zip(*_columns(batch), strict=True):
                yield RecordRow(*row)

    def _last_rows(self, condition: Condition) -> dict[Name, RecordRow]:
        """What was recorded last under every name."""
        last: dict[Name, RecordRow] = {}
        for row in self.rows_of_tables(condition):
            name = Name(row.database, row.table)
            if name not in last or last[name].step < row.step:
                last[name] = row
        return last

    def needed(self, since: int) -> set[str]:
        """The uids of the tables that some instant from `since` on shows."""
        later = self.rows_of_tables(above("resolved_ts", since))
        then = self._last_rows(up_to("resolved_ts", since)).values()
        return {row.uid for row in (*later, *then) if row.version is not None}


def _greatest(batches: Iterable[pa.RecordBatch], column: str) -> Any:
    """The greatest value of a column; None where there are no rows."""
    return max((pc.max(batch[column]).as_py() for batch in batches), default=None)


def doubts_of(
    then: Iterable[Table], now: Iterable[Table], ts: int | None
) -> dict[tuple[str, str], Doubt]:
    """Why tables may not be what their upstream was: as they were `then`, and are known `now`."""
    known = {table.uid: table for table in now if table.uid}
    doubts = {}
    for table in then:
        lacking = known.get(table.uid, table).lacked_at(ts)
        if table.reasons or lacking:
            state = State.DIVERGED if lacking and not table.reasons else table.state()
            text = f"{state.value}: {' '.join((*table.reasons, lacking)).rstrip()}"
            doubts[table.name.folded] = Doubt(table.name, text, table.is_exact and not lacking)
    return doubts


def _columns(batch: pa.RecordBatch) -> list[list[Any]]:
    """The columns of a batch as Python values."""
    return [each.to_pylist() for each in batch.columns]
