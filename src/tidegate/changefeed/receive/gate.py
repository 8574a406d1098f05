"""The gate: which changes of a feed may be applied now, so that tables always show one instant.

`resolved_ts` is the minimum of the highest watermarks of all partitions that count: those of topics
in use (see `topic_use`). Rows and DDL at or below it are released, later ones are held; `release`
says which, and `Release` has the rule. A change below what has been applied is a re-delivery if a
watermark of its own partition had covered it; otherwise it is late: its partition did not count
then, and it was never applied. At equality the documents and the practice of TiCDC differ, so a
change that arrives with `commit_ts = applied_ts` is still released. What was loaded from the
database (`mark_loaded`) is applied for good, whichever partition brings its changes, and when. No
I/O; the state is small and survives as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.changefeed.receive.release import (
    CONTENT,
    EVERYTHING,
    ROW_KINDS,
    ColumnNames,
    Release,
    Source,
    as_table,
    fingerprint,
    folded,
    source_of,
)
from tidegate.changefeed.receive.topic_use import TopicUse
from tidegate.changefeed.receive.watermarks import Run
from tidegate.model.tso import LOGICAL_BITS, tso_to_datetime
from tidegate.sql.ddl_names import DdlId, Name, ddl_id, ddl_tables

__all__ = ["EVENTUAL", "MAX_JUMP", "ROW_KINDS", "SNAPSHOT", "Gate", "Jump", "Source"]

SNAPSHOT = "snapshot"
EVENTUAL = "eventual"
MAX_JUMP = timedelta(days=366)

_STATE_VERSION = 1
_REMEMBERED_JUMPS = 100


@dataclass(frozen=True, slots=True)
class Jump:
    """A watermark that was not obeyed because it is too far ahead of `reference`."""

    source: Source
    watermark: int
    reference: int

    def __str__(self) -> str:
        topic, partition = self.source
        place = f"partition {partition}" + (f" of topic {topic!r}" if topic else "")
        return (
            f"The watermark {self.watermark} ({_instant(self.watermark)}) of {place} is far ahead "
            f"of {self.reference} ({_instant(self.reference)}) and is not obeyed unless the next "
            "one of this partition confirms it."
        )


@dataclass(slots=True)
class _Partition:
    """`settled` is what it had promised when changes were last marked as applied."""

    watermark: int = 0
    suspect: int | None = None
    settled: int = 0
    spoke: bool = False
    """Whether it has sent rows or watermarks."""
    statement: int = 0
    """The last statement that it has sent: TiCDC sends one only after all rows before it."""

    def settle(self) -> None:
        """Notes how much it had promised when changes were marked as applied."""
        self.settled = max(self.settled, self.watermark, self.statement)


@dataclass(slots=True)
class _Applied:
    """What was done at `ts` itself: DDL, the tables whose rows at `ts` come too late, and rows."""

    ts: int = 0
    ddl: set[DdlId] = field(default_factory=set)
    tables: set[Name] = field(default_factory=set)
    rows: set[str] = field(default_factory=set)


class Gate:
    """Follows the watermarks of a feed and says what they release.

    `partitions` are all partitions of the feed's topics; those that have said nothing yet count as
    0. One that is first seen in a batch is added. `resolved_ts` never goes back: after a partition
    was added it stands still until that partition has caught up.

    Not every partition counts: `topics` says which topics are retired and which are awaited, and
    of a topic only the first `partition_num` partitions are waited for.

    `watermarks=False` is for feeds that carry none (Canal-JSON without the TiDB extension):
    `consistency` is then `eventual`, everything is released as it comes, and nothing is held.

    A watermark more than `max_jump` ahead of all that is known (the highest watermark obeyed so
    far, or `start_ts`, or what was applied) is reported in `jumps` and not obeyed at once, for a
    damaged one would release everything for years. It is obeyed when the next watermark of that
    partition confirms it by being no lower, and no jump from it: so a feed that really was paused
    for years waits for one watermark more. The first watermark of a feed of which nothing is known
    (no `start_ts`) is believed.
    """

    def __init__(
        self,
        partitions: Iterable[Source | tuple[str, int]] = (),
        *,
        watermarks: bool = True,
        start_ts: int = 0,
        max_jump: timedelta = MAX_JUMP,
    ) -> None:
        self.has_watermarks = watermarks
        self.max_jump = max_jump
        self.topics = TopicUse()
        """Which topics are retired, and which must speak; `resolved_ts` follows with `observe`."""
        self.partition_num: int | None = None
        """Partitions at or above it count only once they have sent something; None: all count."""
        self.unreadable: dict[str, int] = {}
        """Topics of which no message could be read so far, with the number of their messages."""
        self.went_back = 0
        """How many watermarks were lower than one before them in their partition."""
        self.jump_count = 0
        self.jumps: list[Jump] = []
        """The first hundred watermarks that were not obeyed at once; `jump_count` counts all."""
        self.unread: frozenset[Source] = frozenset()
        """Partitions known to have messages that have not been read yet.

        They count even if their topic is retired: rows from before that may be among them."""
        self._start_ts = start_ts
        self._partitions: dict[Source, _Partition] = {}
        self._resolved_ts = 0
        self._highest = 0
        """The highest watermark that was obeyed, of all partitions."""
        self._applied = _Applied()
        self._loaded_ts = 0
        self.add_partitions(partitions)

    # --- what is known ----------------------------------------------------------------------------

    @property
    def consistency(self) -> str:
        """`snapshot` where watermarks say what is complete, else `eventual`."""
        return SNAPSHOT if self.has_watermarks else EVENTUAL

    @property
    def resolved_ts(self) -> int:
        """Every change up to here has arrived; 0 until every partition has had a watermark."""
        return self._resolved_ts

    @property
    def applied_ts(self) -> int:
        """Every change up to here has been applied, as `mark_applied` was told."""
        return self._applied.ts

    @property
    def loaded_ts(self) -> int:
        """The instant of the load that the tables began with; 0: they began with the feed."""
        return self._loaded_ts

    @property
    def applied_ddl(self) -> frozenset[DdlId]:
        """The statements that were applied at `applied_ts` itself."""
        return frozenset(self._applied.ddl)

    def has_applied(self, ddl: DdlId) -> bool:
        """Whether this statement, in any spelling, was applied at `applied_ts` itself."""
        if ddl.commit_ts != self._applied.ts:
            return False
        return any(ddl.key() == each.key() for each in self._applied.ddl)

    @property
    def watermarks(self) -> dict[Source, int]:
        """The highest watermark of every partition, 0 for those that are silent so far."""
        return {source: state.watermark for source, state in self._partitions.items()}

    @property
    def silent(self) -> tuple[Source, ...]:
        """The partitions that count and are without a watermark so far."""
        return tuple(source for source in self._counting() if not self.watermarks[source])

    @property
    def speaking(self) -> frozenset[Source]:
        """The partitions that have sent rows or watermarks."""
        return frozenset(source for source, state in self._partitions.items() if state.spoke)

    def has_spoken(self, source: Source | tuple[str, int]) -> bool:
        """Whether a partition has sent rows or watermarks."""
        state = self._partitions.get(Source(*source))
        return state is not None and state.spoke

    @property
    def behind(self) -> tuple[Source, ...]:
        """The partitions of which changes at or below `applied_ts` may be late."""
        states = self._partitions.items()
        had = self.applied_ts
        return tuple(s for s, state in states if max(state.settled, self._loaded_ts) < had)

    def watermark_of(self, source: Source | tuple[str, int]) -> int:
        """The highest watermark of a partition when changes were last marked as applied.

        A change from it above this and at or below `applied_ts` was never applied: it is late. 0
        for a partition that had said nothing then, or was not known; but a load has all up to it.
        """
        state = self._partitions.get(Source(*source))
        return self._loaded_ts if state is None else max(state.settled, self._loaded_ts)

    def statements_of(self, topic: str) -> int:
        """The commit_ts up to which all statements of a topic were applied.

        TiCDC sends a statement to all partitions of its topic, or to the first one. So one that
        comes by a partition that was added later is a copy, if any other had brought a later one.
        """
        states = (state for source, state in self._partitions.items() if source.topic == topic)
        return max((min(state.statement, state.settled) for state in states), default=0)

    # --- what happens -----------------------------------------------------------------------------

    def settle(self, sources: Iterable[Source | tuple[str, int]]) -> None:
        """Says that what was late of these partitions has been repaired."""
        for source in sources:
            state = self._partitions.get(Source(*source))
            if state is not None:
                state.settle()

    def add_partitions(
        self, partitions: Iterable[Source | tuple[str, int]], *, spoke: bool = False
    ) -> None:
        """Makes partitions known; `spoke` says that they have sent rows or watermarks."""
        for topic, partition in partitions:
            state = self._partitions.setdefault(Source(topic, partition), _Partition())
            state.spoke |= spoke

    def observe(self, batch: pa.RecordBatch | pa.Table) -> int:
        """Takes in the watermarks of a batch, in its order, and gives the new `resolved_ts`."""
        table = as_table(batch).select(["topic", "partition", "kind", "commit_ts"])
        sources = table.group_by(["topic", "partition"]).aggregate([]).to_pylist()
        self.add_partitions(sorted(source_of(row) for row in sources))
        rows = table.filter(pc.is_in(table["kind"], pa.array(ROW_KINDS)))
        spoke = rows.group_by(["topic", "partition"]).aggregate([]).to_pylist()
        self.add_partitions(map(source_of, spoke), spoke=True)
        ddl = table.filter(pc.equal(table["kind"], "ddl")).group_by(["topic", "partition"])
        for row in ddl.aggregate([("commit_ts", "max")]).to_pylist():
            state = self._partitions[source_of(row)]
            state.statement = max(state.statement, row["commit_ts_max"] or 0)
        marks = table.filter(pc.equal(table["kind"], "watermark")).to_pylist()
        for row in marks:
            if row["commit_ts"] is not None:
                self._take(source_of(row), row["commit_ts"])
        self._resolve()
        return self._resolved_ts

    def observe_runs(self, runs: Iterable[Run], cut: Callable[[Run, int], Iterable[Run]]) -> int:
        """Takes in watermarks as `watermarks.reduced` gives them, and gives the new `resolved_ts`.

        The runs are in the order of arrival, partition by partition. `cut` gives the watermarks of
        a run reduced once more, with a floor: it is called where what the partition has is in the
        middle of the run. The result is that of every single watermark.
        """
        for run in runs:
            source = Source(run.topic, run.partition)
            floor = self._partitions.setdefault(source, _Partition()).watermark
            parts = cut(run, floor) if run.first < floor <= run.last else (run,)
            for part in parts:
                self._take_run(source, part)
        self._resolve()
        return self._resolved_ts

    def _take_run(self, source: Source, run: Run) -> None:
        state = self._partitions[source]
        self.went_back += run.back
        if run.last < state.watermark:
            state.spoke = True
            self.went_back += run.rising
            return
        self._take(source, run.first)
        if run.rising > 1:
            # The second confirms the first, if that was a jump, and the others are none.
            state.watermark, state.suspect = run.last, None
            self._highest = max(self._highest, run.last)

    def observe_statements(self, last: Mapping[tuple[str, int], int]) -> None:
        """Takes in the commit_ts of the last statement that partitions have sent."""
        for source, ts in last.items():
            state = self._partitions.setdefault(Source(*source), _Partition())
            state.statement = max(state.statement, ts)

    def observe_watermark(self, source: Source | tuple[str, int], watermark: int) -> int:
        """Takes in one watermark and gives the new `resolved_ts`."""
        self._take(Source(*source), watermark)
        self._resolve()
        return self._resolved_ts

    def mark_applied(
        self,
        ts: int,
        ddl: Iterable[DdlId] = (),
        tables: Iterable[Name] = (),
        changes: pa.Table | None = None,
        names_of: ColumnNames | None = None,
    ) -> None:
        """Says that everything up to `ts` has been applied; what is below is then re-delivered.

        `changes` is what was applied, or `ddl` its statements, and `tables` what those at `ts`
        itself touched beyond the tables that they name. Only what happened at `ts` is remembered,
        of a row eight bytes. Without `changes` a row at `ts` that is sent again is released again;
        that does no harm unless a transaction deleted and inserted one key, and only the first of
        the two has been sent again by the next time. `names_of` as in `Release.masks`.

        A `ts` lower than before changes nothing.
        """
        if ts < self._applied.ts:
            return
        if ts > self._applied.ts:
            self._applied = _Applied(ts)
        for state in self._partitions.values():
            state.settle()
        done = [entry for entry in ddl if entry.commit_ts == ts]
        touched = [*tables] if done else []
        if changes is not None:
            at = changes.filter(pc.fill_null(pc.equal(changes["commit_ts"], ts), False))
            is_ddl = pc.equal(at["kind"], "ddl")
            for row in at.filter(is_ddl).to_pylist():
                done.append(ddl_id(row))
                touched += filter(None, ddl_tables(row))
            rows = at.filter(pc.invert(is_ddl)).select(list(CONTENT)).to_pylist()
            self._applied.rows.update(fingerprint(row, names_of) for row in rows)
        self._applied.ddl.update(done)
        touched += (name for entry in done for name in entry.names)
        self._applied.tables.update(folded(*name) for name in touched)

    def mark_loaded(self, ts: int) -> None:
        """Says that the tables were read from the database as of `ts`, before any change of a feed.

        Changes at or below it have no effect any more, whichever partition brings them.
        """
        if self._applied.ts:
            raise ValueError("a load comes before all changes")
        self._applied, self._loaded_ts = _Applied(ts), ts

    def close_tables(self, names: Iterable[Name]) -> None:
        """Says that all rows of tables at `applied_ts` itself are there, whoever sends them now."""
        self._applied.tables.update(folded(*name) for name in names)

    def note_applied(self, ddl: Iterable[DdlId]) -> None:
        """Says that statements which came late have been dealt with.

        Without it one at `applied_ts` itself would be released once more.
        """
        self._applied.ddl.update(each for each in ddl if each.commit_ts == self._applied.ts)

    def _take(self, source: Source, watermark: int) -> None:
        state = self._partitions.setdefault(source, _Partition())
        state.spoke = True
        if watermark < state.watermark:
            self.went_back += 1
            return
        suspect, state.suspect = state.suspect, None
        if self._is_jump(watermark, self._reference()):
            confirmed = suspect is not None and watermark >= suspect
            if not confirmed or self._is_jump(watermark, suspect or 0):
                state.suspect = watermark
                self._report(Jump(source, watermark, self._reference()))
                return
        state.watermark = watermark
        self._highest = max(self._highest, watermark)

    def _reference(self) -> int:
        return max(self._start_ts, self._applied.ts, self._highest)

    def _is_jump(self, watermark: int, reference: int) -> bool:
        limit = int(self.max_jump / timedelta(milliseconds=1)) << LOGICAL_BITS
        return reference > 0 and watermark - reference > limit

    def _report(self, jump: Jump) -> None:
        self.jump_count += 1
        if len(self.jumps) < _REMEMBERED_JUMPS:
            self.jumps.append(jump)

    def _resolve(self) -> None:
        counting = self._counting() if self.has_watermarks else []
        if counting:
            lowest = min(self._partitions[source].watermark for source in counting)
            self._resolved_ts = max(self._resolved_ts, lowest)

    def _counting(self) -> list[Source]:
        """The partitions whose watermarks must all come before anything is complete."""
        topics = {source.topic for source in self._partitions}
        if self.topics.awaited is not None:
            topics &= self.topics.awaited | {source.topic for source in self.speaking | self.unread}
        topics -= self.topics.retired - {source.topic for source in self.unread}
        return [
            source
            for source, state in self._partitions.items()
            if source.topic in topics
            and (state.spoke or self.partition_num is None or source[1] < self.partition_num)
        ]

    # --- what follows -----------------------------------------------------------------------------

    def release(self, until: int | None = None) -> Release:
        """What may be applied now: up to `resolved_ts`, or up to another instant.

        The caller knows that the feed is complete up to `until`, if that is given.
        """
        if until is None:
            until = self._resolved_ts if self.has_watermarks else EVERYTHING
        if not self.has_watermarks:
            return Release(until, by_arrival=True, loaded_ts=self._loaded_ts)
        return Release(
            until,
            self._applied.ts,
            frozenset(entry.key() for entry in self._applied.ddl),
            frozenset(self._applied.tables),
            frozenset(self._applied.rows),
            {source: state.settled for source, state in self._partitions.items()},
            loaded_ts=self._loaded_ts,
        )

    # --- restarts ---------------------------------------------------------------------------------

    def rewound(self) -> Gate:
        """The gate for reading again from before what was applied, held changes having been lost.

        The state belongs to the offsets read so far, and is to be saved with them: a watermark
        speaks only for what was read before it. Where reading begins earlier, no partition may
        count for more than what was applied.
        """
        gate = Gate.from_json(self.to_json())
        for state in gate._partitions.values():
            state.watermark, state.suspect = min(state.watermark, gate.applied_ts), None
            state.settled = min(state.settled, state.watermark)
            state.statement = min(state.statement, state.settled)
        gate._resolved_ts = min(gate._resolved_ts, gate.applied_ts)
        gate._highest = max(gate.watermarks.values(), default=0)
        return gate

    def to_json(self) -> str:
        """The state for `from_json`; equal states give equal text."""
        return json.dumps(
            {
                "version": _STATE_VERSION,
                "watermarks": self.has_watermarks,
                "maxJumpSeconds": self.max_jump.total_seconds(),
                "startTs": self._start_ts,
                "resolvedTs": self._resolved_ts,
                "appliedTs": self._applied.ts,
                "loadedTs": self._loaded_ts,
                "appliedDdl": sorted(self._applied.ddl),
                "appliedTables": sorted(self._applied.tables),
                "appliedRows": sorted(self._applied.rows),
                "wentBack": self.went_back,
                "jumpCount": self.jump_count,
                "jumps": [[*jump.source, jump.watermark, jump.reference] for jump in self.jumps],
                "topics": self.topics.to_object(),
                "partitionNum": self.partition_num,
                "unreadable": dict(sorted(self.unreadable.items())),
                "partitions": [
                    [
                        *(*source, state.watermark, state.suspect),
                        *(state.settled, state.spoke, state.statement),
                    ]
                    for source, state in sorted(self._partitions.items())
                ],
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Gate:
        """The gate whose state this is."""
        told: dict[str, Any] = json.loads(text)
        if told.get("version") != _STATE_VERSION:
            raise ValueError(
                f"The gate's state has version {told.get('version')!r}, not {_STATE_VERSION}: "
                "it was saved by another version of Tidegate."
            )
        gate = cls(
            watermarks=told["watermarks"],
            start_ts=told["startTs"],
            max_jump=timedelta(seconds=told["maxJumpSeconds"]),
        )
        gate._resolved_ts = told["resolvedTs"]
        gate._applied = _Applied(
            told["appliedTs"],
            {DdlId(*entry) for entry in told["appliedDdl"]},
            {folded(database, table) for database, table in told["appliedTables"]},
            set(told["appliedRows"]),
        )
        gate._loaded_ts = told.get("loadedTs", 0)  # absent in states of earlier versions
        gate.went_back = told["wentBack"]
        gate.jump_count = told["jumpCount"]
        gate.jumps = [
            Jump(Source(topic, partition), watermark, reference)
            for topic, partition, watermark, reference in told["jumps"]
        ]
        gate._partitions = dict(map(_partition, told["partitions"]))
        gate._highest = max(gate.watermarks.values(), default=0)
        if "topics" in told:  # absent in states of earlier versions
            gate.topics = TopicUse.from_object(told["topics"])
            gate.partition_num = told["partitionNum"]
            gate.unreadable = told["unreadable"]
        return gate


def _partition(saved: list[Any]) -> tuple[Source, _Partition]:
    """A partition as it was saved; earlier versions saved only watermark and suspect."""
    topic, partition, watermark, suspect, *rest = saved
    settled, spoke, *statement = rest or (watermark, watermark > 0)
    return Source(topic, partition), _Partition(watermark, suspect, settled, spoke, *statement)


def _instant(tso: int) -> str:
    return tso_to_datetime(tso).isoformat(timespec="seconds")
