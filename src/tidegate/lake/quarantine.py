"""Bad messages: kept in the changelog with position, reason and bytes until they can be read.

A message that cannot be decoded is a row of kind `error` there. `retry` decodes it again; where
that works now, its events are added to the changelog at the message's own position, and a log of
the lake remembers that the message is settled. A mirror that stopped at it then goes on as if it
had been good from the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
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

from tidegate.feed.gate import ROW_KINDS
from tidegate.model import LakeError
from tidegate.spark.decoding import Reading
from tidegate.wire import CHANGE_SCHEMA

if TYPE_CHECKING:
    from tidegate.lake.lake import Lake
from tidegate.lake.logfiles import rows_of

NAME = "quarantine"
READ = "read"
"""The outcome of a message that could be read in the end."""

_PLACE = ("topic", "partition", "offset")
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
    """What came of a retry: messages read and still bad, and rows that came too late to be applied.

    `late` counts, by table, events of messages that the tables had already gone past.
    """

    read: tuple[Place, ...]
    bad: tuple[BadMessage, ...]
    late: dict[tuple[str, str], int]


class Quarantine:
    """The bad messages of a lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self.log = lake.tables.create_log(NAME, _COLUMNS)

    def count(self) -> int:
        """How many messages are bad."""
        return self._unsettled().count()

    def messages(self, place: Place | None = None, limit: int | None = None) -> list[BadMessage]:
        """The bad messages in the order of their positions; or the one at a place."""
        rows = self._unsettled()
        if place is not None:
            for name, value in zip(_PLACE, place, strict=True):
                rows = rows.where(F.col(name) == F.lit(value))
        rows = rows.orderBy(*_PLACE)
        return [_message(row) for row in (rows if limit is None else rows.limit(limit)).collect()]

    def settled(self) -> set[Place]:
        """The messages that could be read in the end."""
        rows = self._lake.tables.read(self.log).where(F.col("outcome") == READ)
        return {Place(*row) for row in rows.select(*_PLACE).distinct().collect()}

    def _unsettled(self) -> DataFrame:
        errors = self._lake.changelog.read().where(F.col("kind") == "error")
        log = self._lake.tables.read(self.log).where(F.col("outcome") == READ)
        settled = log.select(*_PLACE).distinct()
        return errors.join(F.broadcast(settled), list(_PLACE), "left_anti")

    # --- retry ------------------------------------------------------------------------------------

    def retry(self, reading: Reading, places: Iterable[Place] = ()) -> Retried:
        """Decodes bad messages again, all or those at `places`, and takes in what can be read."""
        wanted = set(places)
        found = [each for each in self.messages() if not wanted or each.place in wanted]
        if not found:
            return Retried((), (), {})
        changes = pa.Table.from_batches([_decode(reading, found)])
        bad = {place_of(row): row for row in _rows_of_kind(changes, "error")}
        good = [each.place for each in found if each.place not in bad]
        still = tuple(_message(row) for row in bad.values())
        if not good:
            return Retried((), still, {})
        events = _without(changes, bad.keys())
        # A run that was cut off here has added its events and not said so.
        there = self._positions_there(good)
        self._append(_without(events, there))
        self._settle(good)
        return Retried(tuple(good), still, self._late(events))

    def _append(self, events: pa.Table) -> None:
        if events.num_rows:
            self._lake.changelog.add(events)

    def _settle(self, places: Sequence[Place]) -> None:
        wall = datetime.now(UTC)
        rows = [(*place, wall, READ) for place in places]
        self._lake.tables.append_to_log(self.log, rows_of(_COLUMNS, rows))

    def _positions_there(self, places: Sequence[Place]) -> set[Place]:
        """Those of which the changelog has events already."""
        wanted = self._lake.spark.createDataFrame([tuple(place) for place in places], _PLACES)
        rows = self._lake.changelog.read().where(F.col("kind") != "error")
        found = rows.join(F.broadcast(wanted), list(_PLACE), "left_semi").select(*_PLACE).distinct()
        return {Place(*row) for row in found.collect()}

    def _late(self, events: pa.Table) -> dict[tuple[str, str], int]:
        """Events that the tables have gone past: they are in the changelog only."""
        state = self._lake.snapshots.state()
        if state is None:
            return {}
        found: dict[tuple[str, str], int] = {}
        for kind in (*ROW_KINDS, "ddl"):
            for row in _rows_of_kind(events, kind):
                last = state.offsets.last.get((row["topic"], row["partition"]), -1)
                if row["offset"] <= last:
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
    return reading.decoder()(batch).select(CHANGE_SCHEMA.names)


def _rows_of_kind(changes: pa.Table, kind: str) -> Iterator[dict[str, Any]]:
    yield from changes.filter(pc.equal(changes["kind"], kind)).to_pylist()


def _without(changes: pa.Table, places: Iterable[Place]) -> pa.Table:
    """The events of other messages; the shapes of all are harmless and stay."""
    gone = set(places)
    rows = zip(*(changes[name].to_pylist() for name in _PLACE), strict=True)
    keep = [Place(topic or "", *rest) not in gone for topic, *rest in rows]
    return changes.filter(pa.array(keep, pa.bool_()))


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
