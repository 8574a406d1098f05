"""The record of a lake: which version every table had at which upstream instant.

One commit to it ends a step of the mirror: the instant it reached, a row for each table that
changed, and the mirror's own state. What is in the tables but not recorded here is a step that was
cut off; it is done again, to the same instant, before anything else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from tidegate.feed.ddl_names import DdlId
from tidegate.feed.gate import Gate
from tidegate.feed.schema_cache import SchemaCache
from tidegate.feed.tables import Name, TableBook
from tidegate.lake.changelog import Offsets
from tidegate.lake.format import Position, TableFormat
from tidegate.lake.logfiles import rows_of
from tidegate.lake.plan import PastEffect, PastKind, State, Status, Table, Tables
from tidegate.lake.policy import Policy
from tidegate.model import LakeError, TableSchema
from tidegate.model.tso import tso_to_datetime

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

    def tables_json(self) -> str:
        """What changes with statements."""
        return json.dumps(
            {
                "book": self.book.to_object(),
                "cache": json.loads(self.cache.to_json()),
                "tables": [_table_object(table) for table in self.tables.values()],
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, progress: str, tables: str) -> MirrorState:
        """The state that was recorded."""
        told, of_tables = json.loads(progress), json.loads(tables)
        found = [_table(entry) for entry in of_tables["tables"]]
        return cls(
            gate=Gate.from_json(json.dumps(told["gate"])),
            cache=SchemaCache.from_json(json.dumps(of_tables["cache"])),
            book=TableBook.from_object(of_tables["book"]),
            tables={table.name.folded: table for table in found},
            offsets=Offsets.from_object(told["offsets"]),
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


def _table_object(table: Table) -> dict[str, Any]:
    return {
        "database": table.name.database,
        "table": table.name.table,
        "schema": table.schema.to_object(),
        "identifier": table.identifier,
        "uid": table.uid,
        "status": table.status.value,
        "reason": table.reason,
        "since": table.since,
        "eventual": table.eventual,
        "upstream": None if table.upstream is None else table.upstream.to_object(),
        "diverged": list(table.diverged),
        "guessed": table.guessed,
        "missing": table.missing,
        "gone": table.gone,
    }


def _table(told: Mapping[str, Any]) -> Table:
    upstream = told.get("upstream")
    return Table(
        name=Name(told["database"], told["table"]),
        schema=TableSchema.from_json(told["schema"]),
        identifier=told["identifier"],
        uid=told["uid"],
        status=Status(told["status"]),
        reason=told["reason"],
        since=told["since"],
        eventual=told.get("eventual", False),
        upstream=None if upstream is None else TableSchema.from_json(upstream),
        diverged=tuple(told.get("diverged", ())),
        guessed=told.get("guessed", False),
        missing=told.get("missing", ""),
        gone=told.get("gone", False),
    )


@dataclass(frozen=True, slots=True)
class Intent:
    """A step that was begun: to which instant, by which version of the changelog and policy.

    `retried` is what `MirrorState.retried` is after it; `mends` says that the step puts right what
    came late, and goes to no other instant.
    """

    step: int
    target: int
    changelog: int
    policy: str = Policy.EVOLVE.value
    retried: int = 0
    mends: bool = False

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


class Snapshots:
    """The record of one lake."""

    def __init__(self, spark: SparkSession, tables: TableFormat) -> None:
        self._spark = spark
        self._tables = tables
        self.identifier = tables.create_log(NAME, _COLUMNS)
        self._recorded_tables: str | None = None

    # --- writing ----------------------------------------------------------------------------------

    def intend(self, intent: Intent) -> None:
        """Writes down what is about to be done."""
        self._tables.set_properties(self.identifier, {_INTENT: intent.to_json()})

    def intended(self) -> Intent | None:
        """The last step that was begun, done or not."""
        text = self._tables.properties(self.identifier).get(_INTENT)
        return None if text is None else Intent.from_json(text)

    def record(self, state: MirrorState, changed: Iterable[Snapshot]) -> None:
        """Ends a step, in one commit."""
        wall = datetime.now(UTC)
        ts = state.applied_ts
        tables = state.tables_json()
        told = None if tables == self._recorded_tables else tables
        rows: list[tuple[Any, ...]] = [
            (state.step, ts, wall, *each.name, each.identifier, each.uid, each.version, None, None)
            for each in changed
        ]
        rows.append((state.step, ts, wall, *[None] * 5, state.progress_json(), told))
        self._tables.append_to_log(self.identifier, rows_of(_COLUMNS, rows))
        self._recorded_tables = tables

    def touch(self) -> None:
        """Writes to the record without changing it, to see whether that is possible."""
        self._tables.set_properties(self.identifier, {_TOUCHED: datetime.now(UTC).isoformat()})

    def keep_since(self, since: int) -> None:
        """Says that no instant before `since` can be read any more."""
        self._tables.set_properties(self.identifier, {_SINCE: str(since)})

    def forget(self, since: int) -> None:
        """Drops what tells of instants before `since`; the tables at that instant stay known."""
        rows = self._tables.read(self.identifier)
        old = rows.where(F.col("database").isNotNull() & (F.col("resolved_ts") <= since))
        last = old.groupBy("database", "table").agg(F.max("step").alias("step"))
        kept = sorted({row["step"] for row in last.collect()})
        final = rows.agg(F.max("step")).collect()[0][0]
        steps = ", ".join(str(step) for step in [*kept, final])
        condition = f"resolved_ts < {since} AND tables IS NULL AND step NOT IN ({steps})"
        if rows.where(condition).limit(1).count():
            self._tables.delete(self.identifier, condition, Position(0))

    def kept_since(self) -> int:
        """The earliest instant that can still be read; 0: all of them."""
        return int(self._tables.properties(self.identifier).get(_SINCE, "0"))

    # --- reading ----------------------------------------------------------------------------------

    def state(self) -> MirrorState | None:
        """The state at the end of the last step that was recorded."""
        rows = self._tables.read(self.identifier).where(F.col("state").isNotNull())
        last = rows.agg(
            F.max_by("state", "step"),
            F.max_by("tables", F.when(F.col("tables").isNotNull(), F.col("step"))),
        ).collect()[0]
        if last[0] is None:
            return None
        self._recorded_tables = last[1]
        state = MirrorState.from_json(last[0], last[1])
        for table in state.tables.values():
            table.identifier = self._tables.here(table.identifier)
        return state

    def instants(self) -> list[tuple[int, datetime]]:
        """Every instant that was recorded, in order."""
        rows = self._tables.read(self.identifier).where(F.col("state").isNotNull())
        found = rows.select("resolved_ts", "wall").orderBy("step").collect()
        return [(ts, wall) for ts, wall in found]

    def schemas(self, ts: int | None = None) -> dict[Name, TableSchema]:
        """The upstream schemas of the tables at that instant."""
        rows = self._tables.read(self.identifier).where(F.col("tables").isNotNull())
        if ts is not None:
            rows = rows.where(F.col("resolved_ts") <= ts)
        text = rows.agg(F.max_by("tables", "step")).collect()[0][0]
        found = [] if text is None else [_table(entry) for entry in json.loads(text)["tables"]]
        return {table.name: table.schema for table in found}

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
        rows = self._tables.read(self.identifier)
        if ts is not None:
            rows = rows.where(F.col("resolved_ts") <= ts)
        last = _last(rows, "step", "resolved_ts", "wall", "identifier", "uid", "version").collect()
        found = [
            Snapshot(
                row["last"]["resolved_ts"],
                row["last"]["wall"],
                Name(row["database"], row["table"]),
                self._tables.here(row["last"]["identifier"]),
                row["last"]["uid"],
                row["last"]["version"],
            )
            for row in last
            if row["database"] is not None and row["last"]["version"] is not None
        ]
        if ts is None and not self._is_under_way(
            max((row["last"]["step"] for row in last), default=0)
        ):
            return found
        there = {each.uid: each.identifier for each in self._tables.locate()}
        return [replace(each, identifier=there[each.uid]) for each in found if each.uid in there]

    def _is_under_way(self, recorded: int) -> bool:
        """Whether a later step was begun: it may have renamed or dropped tables."""
        intent = self.intended()
        return intent is not None and intent.step > recorded

    def needed(self, since: int) -> set[str]:
        """The uids of the tables that some instant from `since` on shows."""
        rows = self._tables.read(self.identifier).where(F.col("database").isNotNull())
        later = rows.where(F.col("resolved_ts") > since).where(F.col("version").isNotNull())
        then = _last(rows.where(F.col("resolved_ts") <= since), "uid", "version")
        return {
            *(row["uid"] for row in later.select("uid").distinct().collect()),
            *(row["last"]["uid"] for row in then.collect() if row["last"]["version"] is not None),
        }


def _last(rows: DataFrame, *wanted: str) -> DataFrame:
    """What was recorded last under every name."""
    last = F.max_by(F.struct(*wanted), "step").alias("last")
    return rows.groupBy("database", "table").agg(last)
