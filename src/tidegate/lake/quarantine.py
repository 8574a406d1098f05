"""Bad messages: kept in the changelog with position, reason and bytes until they can be read.

A message that cannot be decoded is a row of kind `error` there. `retry` decodes it again; where
that works now, its events are added to the changelog at the message's own position, and a log of
the lake remembers that the message is settled. A mirror that stopped at it then goes on as if it
had been good from the start; one that went on without it puts its tables right (see `late`).

The log's times only go forward, so that a mirror remembers with one number which of the messages
read in the end it knows. A retry says what it is about to add before it does: of one that was cut
off nobody can tell what the tables have of it, so it is finished before a mirror starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidegate.changefeed.receive.gate import ROW_KINDS
from tidegate.lake.changelog.changelog import OF_BAD_MESSAGES
from tidegate.lake.storage.log_files import rows_of
from tidegate.lake.storage.predicates import (
    ALWAYS,
    NEVER,
    Condition,
    above,
    above_by_partition,
    equal,
    every,
    one_of,
    up_to,
)
from tidegate.model import LakeError
from tidegate.spark.decoding import Reading
from tidegate.wire import CHANGE_SCHEMA
from tidegate.wire.batch.key_updates import mark_moves

if TYPE_CHECKING:
    from tidegate.lake.lake import Lake

NAME = "quarantine"
READ = "read"
"""The outcome of a message that could be read in the end."""
BEGUN = "begun"
"""What is said of a message before its events are added."""
CUT_OFF = "cut off"
"""The outcome where a retry was begun and has added nothing."""

PLACE = ("topic", "partition", "offset")
_PLACES = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
    ]
)
_COLUMNS = StructType(
    [*_PLACES, StructField("wall", TimestampType()), StructField("outcome", StringType())]
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Place(NamedTuple):
    """Where a message is."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        topic = f"topic {self.topic}, " if self.topic else ""
        return f"{topic}partition {self.partition}, offset {self.offset}"


class BadMessages(LakeError):
    """The mirror has come to a message that cannot be read, and is to stop there."""

    def __init__(self, place: Place, reason: str, count: int) -> None:
        self.place = place
        more = f" ({count} messages are bad)" if count > 1 else ""
        super().__init__(
            f"The message at {place} cannot be read: {reason}{more}",
            "It is kept in the lake: see `tidegate quarantine list`, and `retry` once the cause is "
            "mended; to go on without it, mirror with --bad-messages continue",
        )


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that could not be read."""

    place: Place
    code: str
    reason: str
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Retried:
    """What came of a retry: messages read, and those that are still bad.

    `late` counts, by table, the events of messages that the tables had already gone past.
    """

    read: tuple[Place, ...]
    bad: tuple[BadMessage, ...]
    late: dict[tuple[str, str], int]


class Quarantine:
    """The bad messages of a lake."""

    def __init__(self, lake: Lake, *, boundary: Callable[[str], None] = lambda name: None) -> None:
        """`boundary` is told when a part of a retry is done: a crash there must do no harm."""
        self._lake = lake
        self._boundary = boundary
        self.log = lake.tables.create_log(NAME, _COLUMNS)

    def count(self) -> int:
        """How many messages are bad."""
        return self._unsettled().count()

    def messages(self, place: Place | None = None, limit: int | None = None) -> list[BadMessage]:
        """The bad messages in the order of their positions; or the one at a place."""
        rows = self._unsettled()
        if place is not None:
            for name, value in zip(PLACE, place, strict=True):
                rows = rows.where(F.col(name) == F.lit(value))
        rows = rows.orderBy(*PLACE)
        return [_message(row) for row in (rows if limit is None else rows.limit(limit)).collect()]

    def settled(self) -> set[Place]:
        """The messages that could be read in the end."""
        rows = self._lake.tables.read(self.log.identifier).where(F.col("outcome") == READ)
        return {Place(*row) for row in rows.select(*PLACE).distinct().collect()}

    def _unsettled(self) -> DataFrame:
        errors = self._lake.changelog.read().where(OF_BAD_MESSAGES.spark())
        log = self._lake.tables.read(self.log.identifier).where(F.col("outcome") == READ)
        settled = log.select(*PLACE).distinct()
        return errors.join(F.broadcast(settled), list(PLACE), "left_anti")

    # --- what a mirror asks -----------------------------------------------------------------------

    def last_time(self) -> int:
        """The time of the log's last entry, in microseconds; 0 where there is none.

        LakeError where a retry was cut off.
        """
        if self._begun():
            raise LakeError(
                "A retry of quarantined messages was cut off",
                "Run `tidegate quarantine retry` again: it finishes what it had begun",
            )
        return self._last_time()

    def read_since(self, time: int, until: int) -> DataFrame:
        """The places of the messages that were read after one time of the log up to another."""
        at = F.unix_micros("wall")
        log = self._lake.tables.read(self.log.identifier).where((at > time) & (at <= until))
        return log.where(F.col("outcome") == READ).select(*PLACE).distinct()

    def count_since(self, time: int) -> int:
        """How many messages were read after a time of the log."""
        return self.read_since(time, self._last_time()).count()

    def _last_time(self) -> int:
        walls = (
            wall for each in self.log.read(ALWAYS, ["wall"]) for wall in each["wall"].to_pylist()
        )
        return (max(walls, default=_EPOCH) - _EPOCH) // timedelta(microseconds=1)

    def _begun(self) -> set[Place]:
        last: dict[Place, tuple[datetime, str]] = {}
        batches = self.log.read(ALWAYS, [*PLACE, "wall", "outcome"])
        for row in (row for batch in batches for row in batch.to_pylist()):
            place = Place(*(row[name] for name in PLACE))
            entry = row["wall"], row["outcome"]
            last[place] = max(entry, last.get(place, entry))
        return {place for place, (_, outcome) in last.items() if outcome == BEGUN}

    # --- retry ------------------------------------------------------------------------------------

    def retry(self, reading: Reading, places: Iterable[Place] = ()) -> Retried:
        """Decodes bad messages again, all or those at `places`, and takes in what can be read."""
        finished = self._finish_begun()
        wanted = set(places)
        found = [each for each in self.messages() if not wanted or each.place in wanted]
        if not found:
            return Retried(finished, (), {})
        changes = pa.Table.from_batches([_decode(reading, found)])
        bad = {place_of(row): row for row in _rows_of_kind(changes, "error")}
        good = [each.place for each in found if each.place not in bad]
        still = tuple(_message(row) for row in bad.values())
        if not good:
            return Retried(finished, still, {})
        events = _without(changes, bad.keys())
        self._tell(good, BEGUN)
        self._boundary("begun")
        self._append(events)
        self._boundary("appended")
        self._tell(good, READ)
        return Retried((*finished, *good), still, self._late(events))

    def _finish_begun(self) -> tuple[Place, ...]:
        """Says of every message that an earlier retry had begun with what came of it."""
        begun = self._begun()
        if not begun:
            return ()
        there = self._positions_there(sorted(begun))
        self._tell(sorted(there), READ)
        self._tell(sorted(begun - there), CUT_OFF)
        return tuple(sorted(there))

    def _append(self, events: pa.Table) -> None:
        if events.num_rows:
            self._lake.changelog.add(events)

    def _tell(self, places: Sequence[Place], outcome: str) -> None:
        if not places:
            return
        now = datetime.now(UTC)
        after = _EPOCH + timedelta(microseconds=self._last_time() + 1)
        rows = [(*place, max(now, after), outcome) for place in places]
        self.log.add_rows(rows_of(_COLUMNS, rows))

    def _positions_there(self, places: Sequence[Place]) -> set[Place]:
        """Those of which the changelog has events already."""
        wanted = self._lake.spark.createDataFrame([tuple(place) for place in places], _PLACES)
        condition = within(places) & ~equal("kind", "error")
        rows = self._lake.changelog.read().where(condition.spark())
        found = rows.join(F.broadcast(wanted), list(PLACE), "left_semi").select(*PLACE).distinct()
        return {Place(*row) for row in found.collect()}

    def _late(self, events: pa.Table) -> dict[tuple[str, str], int]:
        """Events that the tables have gone past."""
        state = self._lake.snapshots.state()
        if state is None:
            return {}
        found: dict[tuple[str, str], int] = {}
        for kind in (*ROW_KINDS, "ddl"):
            for row in _rows_of_kind(events, kind):
                last = state.offsets.last.get((row["topic"], row["partition"]), -1)
                is_held = state.gate.has_watermarks and row["commit_ts"] > state.applied_ts
                if row["offset"] <= last and not is_held:
                    name = (row["database"] or "", row["table"] or "")
                    found[name] = found.get(name, 0) + 1
        return found


def _decode(reading: Reading, messages: Sequence[BadMessage]) -> pa.RecordBatch:
    columns = {
        "key": pa.array([each.key for each in messages], pa.binary()),
        "value": pa.array([each.value for each in messages], pa.binary()),
        "topic": pa.array([each.place.topic for each in messages], pa.string()),
        "partition": pa.array([each.place.partition for each in messages], pa.int32()),
        "offset": pa.array([each.place.offset for each in messages], pa.int64()),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    return mark_moves(reading.decoder()(batch)).select(CHANGE_SCHEMA.names)


def _rows_of_kind(changes: pa.Table, kind: str) -> Iterator[dict[str, Any]]:
    yield from changes.filter(pc.equal(changes["kind"], kind)).to_pylist()


def _without(changes: pa.Table, places: Iterable[Place]) -> pa.Table:
    """The events of other messages; the shapes of all are harmless and stay."""
    gone = set(places)
    rows = zip(*(changes[name].to_pylist() for name in PLACE), strict=True)
    keep = [Place(topic or "", *rest) not in gone for topic, *rest in rows]
    return changes.filter(pa.array(keep, pa.bool_()))


def within(places: Iterable[Place]) -> Condition:
    """Events of the partitions that have places, between the first and the last of these."""
    first: dict[tuple[str, int], int] = {}
    last: dict[tuple[str, int], int] = {}
    for topic, partition, offset in places:
        source = topic, partition
        first[source] = min(offset - 1, first.get(source, offset - 1))
        last[source] = max(offset, last.get(source, offset))
    if not first:
        return NEVER
    return every(
        # Bounds of files answer these.
        one_of("topic", sorted({topic for topic, _ in first})),
        one_of("partition", sorted({partition for _, partition in first})),
        above("offset", min(first.values())),
        up_to("offset", max(last.values())),
        above_by_partition("offset", first, others=False),
        ~above_by_partition("offset", last, others=True),
    )


def place_of(row: Any) -> Place:
    """Where an event of the changelog is from."""
    return Place(row["topic"] or "", row["partition"], row["offset"])


def _message(row: Any) -> BadMessage:
    error = row["error"]
    key, value = row["raw_key"], row["raw_value"]
    return BadMessage(
        place_of(row),
        error["code"],
        error["reason"],
        None if key is None else bytes(key),
        None if value is None else bytes(value),
    )
