"""Plays a case against the real mirror and says what is wrong with the result.

After every step each table must equal the upstream at `applied_ts` (without watermarks: at the end),
or carry a mark that says how it may differ. Exceptions, a gate that stands still and results that
depend on how the feed is cut are failures too.
"""

from __future__ import annotations

import json
import random
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any

from tests.model_check.history import AMBIGUOUS, Name, Op, TableState, Upstream, played
from tests.model_check.memory_lake import (
    MemoryLake,
    MemoryTable,
    contents,
    new_mirror,
)
from tests.model_check.reasons import Facts, wrong_reasons
from tests.model_check.sender import Cut, Delivery, Feed, Sender, Sent, decoded, deliveries
from tidegate.changefeed.receive.schema_cache import SchemaKey
from tidegate.lake.apply.plan.tables import State, Status, Table
from tidegate.lake.apply.repair.judging import STATEMENT
from tidegate.lake.job.mirror import Mirror

EXCEPTION = "exception"
SENDER_FAILS = "the sender fails"
LATE_STATEMENT = STATEMENT.partition(":")[0]
_MOST_STEPS = 10_000
_SHOWN_ROWS = 6


@dataclass(frozen=True, slots=True)
class Case:
    """A history, the feed that carries it, and the cuts whose results must agree."""

    ops: tuple[Op, ...]
    feed: Feed
    cuts: tuple[Cut, ...]

    def to_json(self) -> str:
        """What `from_json` reads; an operation a line."""
        ops = ",\n  ".join(json.dumps(op, ensure_ascii=False) for op in self.ops)
        feed = json.dumps(self.feed.to_object())
        cuts = json.dumps([asdict(cut) for cut in self.cuts])
        return f'{{"feed": {feed},\n "cuts": {cuts},\n "ops": [\n  {ops}\n ]}}\n'

    @classmethod
    def from_json(cls, text: str) -> Case:
        """The case that `to_json` wrote down."""
        found = json.loads(text)
        cuts = tuple(Cut(**cut) for cut in found["cuts"])
        return cls(tuple(found["ops"]), Feed(**found["feed"]), cuts)


@dataclass(frozen=True, slots=True)
class Mark:
    """What the mirror says of a table that may differ from the upstream."""

    name: Name
    state: str
    reason: str


@dataclass(slots=True)
class Verdict:
    """What came of a case: problems, and at the end tables and their marks."""

    problems: list[str] = field(default_factory=list)
    tables: int = 0
    marks: list[Mark] = field(default_factory=list)
    unexcused: list[Mark] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The first words of the first problem: shrinking keeps it."""
        if not self.problems:
            return ""
        what, *more = self.problems[0].split(": ", 2)
        return f"{what}: {more[0]}" if what in (EXCEPTION, SENDER_FAILS) else what


def check(case: Case) -> Verdict:
    """Plays a case with each of its cuts."""
    verdict = Verdict()
    upstream = played(case.ops)
    try:
        sent = Sender(case.feed, upstream).send()
    except Exception as error:  # the sender is code under test, too
        verdict.problems.append(f"{SENDER_FAILS}: {_shown_error(error)}")
        return verdict
    results = []
    for cut in case.cuts:
        run = _Run(case.feed, upstream, sent, cut, verdict)
        run.play()
        if verdict.problems:
            return verdict
        results.append(run.result())
    for cut, result in zip(case.cuts[1:], results[1:], strict=True):
        if not case.feed.has_watermarks:
            continue
        # What an unclear rename means, another spelling of it may tell if it comes in time.
        names = {*result, *results[0]} - upstream.unclear - _unclear(upstream)
        differing = [
            name for name in names if _differ(result.get(name), results[0].get(name), case.feed)
        ]
        if differing:
            name = min(differing)
            verdict.problems.append(
                f"the result depends on the cut: {_dotted(name)} is {results[0].get(name)} "
                f"with {case.cuts[0]}, {result.get(name)} with {cut}"
            )
    return verdict


def _unclear(upstream: Upstream) -> set[Name]:
    """The tables at the end that an unclear rename may have been about."""
    tables = upstream.at(upstream.ts)
    return {name for name, table in tables.items() if AMBIGUOUS in table.excuses}


def _differ(one: Any, other: Any, feed: Feed) -> bool:
    """Whether a table's state or rows differ in a way that must not depend on the cut.

    How much can be told of re-sends depends on it, and what can be done about a topic that is
    noticed late.
    """
    states = {each[0] for each in (one, other) if each}
    if feed.late_topics and State.STOPPED.value in states:
        return False  # the other cut may still wait for the schema of the table's rows
    return one != other and not (one and other and State.DIVERGED.value in states)


class Crash(BaseException):
    """The end of a process in the middle of a step."""


class _Run:
    """One cut of a feed, from the first message to the last."""

    def __init__(
        self, feed: Feed, upstream: Upstream, sent: Sent, cut: Cut, verdict: Verdict
    ) -> None:
        self._feed = feed
        self._upstream = upstream
        self._sent = sent
        self._cut = cut
        self._verdict = verdict
        self._oracle = Oracle(feed, upstream, sent)
        self._lake = MemoryLake()
        self._chance = random.Random(cut.seed)
        self._mirror = self._new_mirror()

    def _new_mirror(self) -> Mirror:
        return new_mirror(
            self._lake,
            self._feed.config(),
            watermarks=self._feed.has_watermarks,
            boundary=self._boundary,
        )

    def _boundary(self, name: str) -> None:
        if self._cut.crashes and self._chance.random() < 1 / self._cut.crashes:
            raise Crash(name)

    def play(self) -> None:
        """Delivers the feed, and compares the tables on the way and at the end."""
        try:
            found = deliveries(self._sent, self._feed, self._cut)
            for number, delivery in enumerate(found, 1):
                self._deliver(delivery, is_last=number == len(found))
                if self._verdict.problems:
                    return
        except Exception as error:  # whatever the mirror raises is a finding
            self._problem(f"{EXCEPTION}: {_shown_error(error)}")
            return
        self._finish()

    def _deliver(self, delivery: Delivery, *, is_last: bool = True) -> None:
        if delivery.messages:
            self._lake.changelog.add(decoded(self._feed, delivery.messages))
        if self._cut.restarts:
            self._settle()
            self._mirror = self._new_mirror()
        if not self._lake.log.parts:
            return
        for _ in range(_MOST_STEPS):
            try:
                if self._mirror.step(delivery.sources, delivery.unread) is None:
                    return
            except Crash:
                self._mirror = self._new_mirror()
                if not is_last and self._chance.random() < 0.5:
                    return  # the next run finds more messages
                continue
            if self._feed.has_watermarks and not self._feed.late_topics:
                self._compare(self._mirror.state.applied_ts)
        self._problem("the mirror never stops stepping")

    def _settle(self) -> None:
        with suppress(Crash):
            self._mirror.settle()

    def _finish(self) -> None:
        problem = self._oracle.standstill(self._mirror)
        if problem:
            self._problem(problem)
            return
        applied, last = self._mirror.state.applied_ts, self._sent.last_watermark
        is_waiting = self._feed.has_watermarks and applied < last
        self._compare(applied if is_waiting else self._upstream.ts)
        if not self._verdict.problems and not is_waiting:
            self._oracle.count(self._mirror, self._verdict)

    def _compare(self, ts: int) -> None:
        for problem in self._oracle.differences(self._mirror, contents(self._mirror), ts):
            self._problem(f"{problem} (at {ts})")

    def result(self) -> dict[Name, Any]:
        """What must not depend on the cut: tables, their states and rows."""
        there = contents(self._mirror)
        found = {}
        for table in self._mirror.state.tables.values():
            state = _state(table, self._feed)
            rows: Any = None
            if state is not State.STOPPED and not table.diverged and _named(table) in there:
                one = there[_named(table)]
                rows = sorted(
                    repr(sorted(zip(one.names, map(_plain, row), strict=True))) for row in one.rows
                )
            found[_named(table)] = (state.value, rows)
        return found

    def _problem(self, text: str) -> None:
        self._verdict.problems.append(f"{text} [{self._cut}]")


@dataclass(frozen=True, slots=True)
class Oracle:
    """Knows what a mirror of a feed must hold."""

    feed: Feed
    upstream: Upstream
    sent: Sent

    def standstill(self, mirror: Mirror) -> str:
        """What is wrong where a mirror that has everything has not come to the last watermark."""
        applied, last = mirror.state.applied_ts, self.sent.last_watermark
        if not self.feed.has_watermarks or applied >= last:
            return ""
        if mirror.waiting and all(map(self._may_come, mirror.waiting)):
            return ""
        return (
            f"the gate stands still: at {applied}, the last watermark is {last}; watermarks "
            f"{mirror.gate.watermarks}, waiting {dict(mirror.waiting)}"
        )

    def _may_come(self, key: SchemaKey) -> bool:
        """Whether TiCDC may still send a schema: it is the one that the table has now.

        It does not come in a feed that sends no BOOTSTRAP messages, and no consumer can know.
        """
        table = self.upstream.tables.get((key.database, key.table))
        is_current = table is not None and table.version == key.version
        return is_current and not self.feed.config().sends_bootstrap

    def differences(
        self, mirror: Mirror, there: Mapping[Name, MemoryTable], ts: int
    ) -> Iterator[str]:
        """How tables differ from the upstream at an instant though no mark says so."""
        truth = self.upstream.at(ts)
        entries = {_named(table): table for table in mirror.state.tables.values()}
        for name, table in truth.items():
            yield from self._table(table, entries.get(name), there.get(name))
        for name, entry in entries.items():
            is_unclear = name in self.upstream.unclear and entry.status is Status.STOPPED
            if name not in truth and not is_unclear and not self._stopped_late(entry):
                yield f"a table too many: {_dotted(name)} is not there upstream"

    def _stopped_late(self, entry: Table) -> bool:
        """Whether a statement came by a topic that was noticed late, and the table says so."""
        is_stopped = entry.status is Status.STOPPED
        says_so = entry.gone or entry.reason.startswith(LATE_STATEMENT)
        return is_stopped and self.feed.late_topics and says_so

    def _table(
        self, truth: TableState, entry: Table | None, found: MemoryTable | None
    ) -> Iterator[str]:
        name = _dotted(truth.key)
        # One that is made like a table from before the feed is known by its first row.
        is_told = truth.defined > self.sent.start_ts
        if entry is None:
            if is_told:
                yield f"a table is missing: {name}"
            return
        state = _state(entry, self.feed)
        if state is State.STOPPED or entry.diverged:
            return
        if found is None:
            yield f"a table is missing: {name}, and is not marked"
        elif sorted(found.names) != sorted(truth.names) or (is_told and found.names != truth.names):
            yield f"other columns: {name} has {found.names}, upstream {truth.names}"
        else:
            yield from self._rows(truth, found, is_incomplete=state is State.INCOMPLETE)

    def _rows(self, truth: TableState, found: MemoryTable, *, is_incomplete: bool) -> Iterator[str]:
        """An incomplete table may lack rows that were written before the feed began."""
        order = [found.names.index(name) for name in truth.names]
        rows = Counter(tuple(_plain(row[place]) for place in order) for row in found.rows)
        wanted: Counter[tuple[Any, ...]] = Counter()
        needed: Counter[tuple[Any, ...]] = Counter()
        for row in truth.rows.values():
            values = _values(truth, row.values)
            wanted[values] += 1
            needed[values] += row.written > self.sent.start_ts
        extra = rows - wanted
        lacking = (needed if is_incomplete else wanted) - rows
        if is_incomplete and not truth.handle and lacking.total() <= self._older_rows(truth):
            lacking.clear()  # without a key nobody can tell which of two equal rows is the older
        if extra or lacking:
            what = "rows are lost" if not extra else "wrong rows" if lacking else "rows too many"
            yield (
                f"{what}: {_dotted(truth.key)} has {_shown(rows)}, upstream {_shown(wanted)}"
                f"{' (incomplete)' if is_incomplete else ''}"
            )

    def _older_rows(self, table: TableState) -> int:
        """How many rows a table had when the feed began."""
        before = self.upstream.at(self.sent.start_ts).values()
        return sum(len(each.rows) for each in before if each.table_id == table.table_id)

    # --- marks ------------------------------------------------------------------------------------

    def count(self, mirror: Mirror, verdict: Verdict) -> None:
        """Counts the tables at the end, and their marks."""
        truth = self.upstream.at(self.upstream.ts)
        verdict.tables += len(truth)
        for table in mirror.state.tables.values():
            state = _state(table, self.feed)
            if state in (State.MIRRORED, State.EVENTUAL):
                continue
            mark = Mark(_named(table), state.value, " ".join(table.reasons))
            if not mark.reason:
                verdict.problems.append(f"a mark without a reason: {mark}")
            facts = Facts(mark.name, truth.get(mark.name), self.feed, self.sent, self.upstream)
            for reason in wrong_reasons(facts, table.reasons):
                verdict.problems.append(f"a wrong reason: {_dotted(mark.name)}: {reason}")
            verdict.marks.append(mark)
            known = truth.get(mark.name)
            if known is not None and not self._excuses(known):
                verdict.unexcused.append(mark)

    def _excuses(self, table: TableState) -> bool:
        """Whether something happened to a table that no mirror can follow."""
        if table.excuses or table.defined <= self.sent.start_ts:
            return True
        if self.sent.has_resent and not self.feed.has_watermarks:
            return True  # rows from before a statement may arrive after it
        # Rows without a key cannot be told from others where the feed tells less, or tells it twice.
        is_telling = self.feed.has_old_rows and self.feed.has_watermarks
        return not table.handle and (self.sent.has_resent or not is_telling)


def _state(table: Table, feed: Feed) -> State:
    return table.state(not feed.has_watermarks)


def _named(table: Table) -> Name:
    return table.name.database, table.name.table


def _dotted(name: Name) -> str:
    return ".".join(name)


def _values(table: TableState, values: tuple[str | None, ...]) -> tuple[Any, ...]:
    """A row in Python's values, by the types that the history gives its columns."""
    return tuple(
        value
        if value is None or column.type.startswith("varchar")
        else float(value)
        if column.type == "double"
        else int(value)
        for column, value in zip(table.columns, values, strict=True)
    )


def _plain(value: Any) -> Any:
    """A value as it is compared; without a key, one of two rows with 0 and -0 is as good."""
    if isinstance(value, float) and value == 0:
        return 0.0
    return int(value) if isinstance(value, Decimal) else value


def _shown(rows: Mapping[tuple[Any, ...], int]) -> str:
    listed = sorted(map(repr, Counter(rows).elements()))
    more = f" and {len(listed) - _SHOWN_ROWS} more" if len(listed) > _SHOWN_ROWS else ""
    return f"{{{' '.join(listed[:_SHOWN_ROWS])}{more}}}"


def _shown_error(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "tidegate" in frame.filename] or list(frames)
    where = f"{own[-1].filename.rpartition('/')[2]}:{own[-1].name}"
    return f"{type(error).__name__} in {where}: {str(error)[:300]}"
