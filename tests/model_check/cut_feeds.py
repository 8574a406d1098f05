"""Plays a feed, cut at random places, into the real mirror on a lake in memory.

After every step each table must equal the upstream at `applied_ts` (without watermarks: at the
end), or carry a mark that says that it may differ. What is wrong names feed, cut and table.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from tests.model_check.memory_lake import MemoryLake, MemoryTable, contents
from tests.model_check.sender import Cut, Delivery, Message, Sent, Source, deliveries
from tests.support.table_model import Name, Row, Table, TableModel
from tidegate.changefeed.receive.topic_use import FeedTopics
from tidegate.lake.apply.plan.tables import State
from tidegate.lake.job.mirror import Mirror, MirrorSettings
from tidegate.model.schema import Column
from tidegate.spark.types import arrow_type, from_text_array

_MOST_STEPS = 10_000
_SHOWN_ROWS = 3
_SHOWN_CUTS = 40

KINDS = {
    "arrival": "parts in the order of arrival",
    "speeds": "each partition at its own speed",
    "restarts": "the same, with a new mirror for every part",
    "messages": "message by message",
}


def random_cut(chance: random.Random, kind: str) -> Cut:
    """A cut of one of KINDS."""
    if kind == "messages":
        return Cut(0)
    count, seed = chance.randint(2, 9), chance.randrange(10_000)
    return Cut(count, seed, skew=kind != "arrival", restarts=kind == "restarts")


class Mark(NamedTuple):
    """What a mirror says of a table that may differ: its state, and how the reason begins."""

    state: State
    reason: str
    depends: bool = False
    """Whether it depends on the cut if the table is marked."""


@dataclass(frozen=True, slots=True)
class TypedTable:
    """A table in Python's values: what a lake must hold of it."""

    columns: tuple[Column, ...]
    rows: Counter[str]
    """How often each row is there; a row is its values as Python shows them."""


class TypedTruth:
    """The upstream's tables at any instant, in the values that a lake holds."""

    def __init__(self, model_at: Callable[[int], TableModel], skipped: Iterable[int] = ()) -> None:
        """`skipped` are the types of columns that are not compared."""
        self._model_at = model_at
        self._skipped = frozenset(skipped)
        self._instants: dict[int, dict[Name, TypedTable]] = {}

    def at(self, ts: int) -> dict[Name, TypedTable]:
        """The tables at an instant."""
        if ts not in self._instants:
            tables = self._model_at(ts).tables
            self._instants[ts] = {name: self._typed(table) for name, table in tables.items()}
        return self._instants[ts]

    def _typed(self, table: Table) -> TypedTable:
        columns = table.schema.carried
        rows = list(table.rows.values())
        values = [_values(column, [row[column.name] for row in rows]) for column in columns]
        return TypedTable(columns, self.shown(columns, zip(*values, strict=True)))

    def shown(self, columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> Counter[str]:
        """The rows of a table, counted; without the columns that are not compared."""
        kept = [place for place, column in enumerate(columns) if column.code not in self._skipped]
        return Counter(repr([_plain(row[place]) for place in kept]) for row in rows)


def _values(column: Column, texts: list[str | None]) -> list[Any]:
    typed = from_text_array(column, pa.array(texts, pa.string()), "UTC")
    return typed.cast(arrow_type(column)).to_pylist()  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """A decimal without its trailing zeros: a change of scale does not change a number."""
    return value.normalize() if isinstance(value, Decimal) else value


class ExactModel(TableModel):
    """A table model that counts equal rows of tables without a key; no row may come twice."""

    def put(self, name: Name, after: Row, before: Row | None = None) -> None:
        """A row as it is now; `before` as it was, if it was there."""
        if before is not None:
            self.take(name, before)
        table = self._table(name)
        if table is not None and not table.schema.handle_key():
            row = {column: after[column] for column in table.carried}
            table.rows[str(id(row)),] = row
        else:
            super().put(name, after)

    def take(self, name: Name, before: Row) -> None:
        """One row like this is gone."""
        table = self._table(name)
        if table is None or table.schema.handle_key():
            super().take(name, before)
            return
        wanted = {column: before[column] for column in table.carried}
        del table.rows[next(key for key, row in table.rows.items() if row == wanted)]


@dataclass(frozen=True)
class CutFeed:
    """A feed's messages, how they are decoded, and what is true."""

    name: str
    messages: tuple[Message, ...]
    decode: Callable[[Sequence[Message]], pa.Table]
    truth: TypedTruth
    watermark: int | None
    """The last watermark; None: the feed has none."""
    sources: Mapping[Source, int]
    """All partitions, each with the number of messages that were sent before it was there."""
    topics: FeedTopics = field(default_factory=FeedTopics)
    late_topics: bool = False

    def sent(self) -> Sent:
        return Sent(self.messages, dict(self.sources), 0, self.watermark or 0)


class Run:
    """One cut of a feed, from the first message to the last."""

    def __init__(self, feed: CutFeed, cut: Cut, marks: Mapping[Name, Mark] | None = None) -> None:
        """`marks` are the tables that must be marked in the end; no others may be on the way."""
        self.feed = feed
        self._expected = marks or {}
        self.cut = cut
        self.problems: list[str] = []
        self.instants: list[int] = []
        self.deliveries = deliveries(feed.sent(), feed, cut)
        self._random = random.Random(cut.seed)
        self._lake = MemoryLake()
        self.mirror = self._new_mirror()

    def _new_mirror(self) -> Mirror:
        settings = MirrorSettings(topics=self.feed.topics)
        watermarks = self.feed.watermark is not None
        return Mirror(self._lake, watermarks=watermarks, settings=settings)  # type: ignore[arg-type]

    def play(self) -> Run:
        """Delivers all messages; stops at the first problem."""
        for number, delivery in enumerate(self.deliveries):
            self._deliver(delivery)
            if self.problems:
                self.problems.append(f"after part {number + 1} of {len(self.deliveries)}")
                return self
        if self.feed.watermark is None:
            self._compare(2**63 - 1)
        needed = {name for name, mark in self._expected.items() if not mark.depends}
        missing = needed - self.marks().keys()
        if missing:
            self.problems.append(f"not marked: {sorted(missing)}")
        if self.feed.watermark is None:
            return self
        if self.mirror.state.applied_ts != self.feed.watermark:
            self.problems.append(
                f"the tables are at {self.mirror.state.applied_ts}, the last watermark is "
                f"{self.feed.watermark}; waiting {self.mirror.waiting}"
            )
        return self

    def _deliver(self, delivery: Delivery) -> None:
        if delivery.messages:
            self._lake.changelog.add(self.feed.decode(delivery.messages))
        if self.cut.restarts:
            if self._random.random() < 0.5:  # otherwise the mirror was killed
                self.mirror.settle()
            self.mirror = self._new_mirror()
        for _ in range(_MOST_STEPS):
            if not self._lake.log.parts:
                return
            if self.mirror.step(delivery.sources, delivery.unread) is None:
                return
            self.instants.append(self.mirror.state.applied_ts)
            if self.feed.watermark is not None:
                self._compare(self.mirror.state.applied_ts)
        self.problems.append("the mirror never stops stepping")

    # --- comparing --------------------------------------------------------------------------------

    def marks(self) -> dict[Name, Mark]:
        """The tables that may differ from the upstream, with all reasons."""
        marks: dict[Name, Mark] = {}
        for table in self.mirror.state.tables.values():
            state = table.state(self.feed.watermark is None)
            if state not in (State.MIRRORED, State.EVENTUAL):
                name = table.name.database, table.name.table
                marks[name] = Mark(state, " ".join(table.reasons))
        return marks

    def _compare(self, ts: int) -> None:
        truth, marks = self.feed.truth.at(ts), self.marks()
        for name, mark in marks.items():
            expected = self._expected.get(name)
            if expected is None or not _agrees(mark, expected):
                self.problems.append(f"{'.'.join(name)} is {mark.state}: {mark.reason} (at {ts})")
        there: dict[Name, MemoryTable] = {}
        there |= {
            (name.database, name.table): table for name, table in contents(self.mirror).items()
        }
        for name in sorted({*truth, *there} - marks.keys()):
            problem = self._difference(truth.get(name), there.get(name))
            if problem:
                self.problems.append(f"{'.'.join(name)} {problem} (at {ts})")

    def _difference(self, truth: TypedTable | None, table: MemoryTable | None) -> str:
        if truth is None or table is None:
            return "is not there upstream" if truth is None else "is missing"
        kinds = [(column.name, str(arrow_type(column))) for column in table.columns]
        wanted = [(column.name, str(arrow_type(column))) for column in truth.columns]
        if kinds != wanted:
            return f"has the columns {kinds}, upstream {wanted}"
        rows = self.feed.truth.shown(table.columns, table.rows)
        if rows == truth.rows:
            return ""
        extra, lacking = rows - truth.rows, truth.rows - rows
        return f"has {_few(extra)} too many and lacks {_few(lacking)}"

    def described(self) -> str:
        """What is wrong, with everything that is needed to see it again."""
        ends = [
            max((message.at for message in each.messages), default=-1) for each in self.deliveries
        ]
        return "\n".join(
            [
                f"{self.feed.name} with {self.cut}",
                f"last message of each part: {_shortened(ends)}",
                *self.problems[:20],
            ]
        )


def _agrees(mark: Mark, expected: Mark) -> bool:
    return mark.state is expected.state and mark.reason.startswith(expected.reason)


def _few(rows: Counter[str]) -> str:
    shown = list(rows.elements())[:_SHOWN_ROWS]
    return f"{rows.total()} rows" + "".join(f" {row[:300]}" for row in shown)


def _shortened(numbers: list[int]) -> str:
    if len(numbers) <= _SHOWN_CUTS:
        return str(numbers)
    return f"{numbers[:_SHOWN_CUTS]} and {len(numbers) - _SHOWN_CUTS} more"
