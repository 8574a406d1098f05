"""What decoding did, and how far behind a query is.

Each Python worker counts what it decodes: messages, bytes, events by kind, time, and the highest
watermark of each partition. Spark carries the counts to the driver when a task has succeeded. A
batch that Spark runs twice is counted twice: these are numbers to watch, not to balance books with.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.accumulators import Accumulator, AccumulatorParam

from tidegate.model import physical_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Place = tuple[str | None, int | None]
"""A topic's partition."""


@dataclass(slots=True)
class Tally:
    """What was decoded; `watermarks` has the highest of each partition."""

    messages: int = 0
    bytes: int = 0
    decode_ns: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    watermarks: dict[Place, int] = field(default_factory=dict)

    @classmethod
    def of(cls, messages: pa.RecordBatch, changes: pa.RecordBatch, decode_ns: int) -> Tally:
        """The tally of one batch."""
        counted = pc.value_counts(changes.column("kind")).to_pylist()
        tally = cls(
            messages=messages.num_rows,
            bytes=sum(messages.column(part).nbytes for part in ("key", "value")),
            decode_ns=decode_ns,
            kinds={entry["values"]: entry["counts"] for entry in counted},
        )
        if "watermark" in tally.kinds:
            rows = changes.filter(pc.equal(changes.column("kind"), "watermark"))
            told = rows.select(["topic", "partition", "commit_ts"]).to_pylist()
            for row in told:
                place = row["topic"], row["partition"]
                if row["commit_ts"] is not None:
                    highest = tally.watermarks.get(place, 0)
                    tally.watermarks[place] = max(highest, row["commit_ts"])
        return tally

    @property
    def bad_messages(self) -> int:
        """Messages that could not be read."""
        return self.kinds.get("error", 0)

    @property
    def rows(self) -> int:
        """Inserts, updates and deletes."""
        return sum(self.kinds.get(kind, 0) for kind in ("insert", "update", "delete"))

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.messages + other.messages,
            self.bytes + other.bytes,
            self.decode_ns + other.decode_ns,
            {
                kind: self.kinds.get(kind, 0) + other.kinds.get(kind, 0)
                for kind in {**self.kinds, **other.kinds}
            },
            {
                place: max(self.watermarks.get(place, 0), other.watermarks.get(place, 0))
                for place in {**self.watermarks, **other.watermarks}
            },
        )

    def __sub__(self, earlier: Tally) -> Tally:
        """What came since; watermarks stay the highest."""
        return Tally(
            self.messages - earlier.messages,
            self.bytes - earlier.bytes,
            self.decode_ns - earlier.decode_ns,
            {kind: count - earlier.kinds.get(kind, 0) for kind, count in self.kinds.items()},
            dict(self.watermarks),
        )


class _Adding(AccumulatorParam[Tally]):
    """How Spark adds tallies."""

    def zero(self, value: Tally) -> Tally:
        return Tally()

    def addInPlace(self, value1: Tally, value2: Tally) -> Tally:
        return value1 + value2


class TallyCounter:
    """A Spark accumulator of tallies; workers add, the driver reads."""

    def __init__(self, accumulator: Accumulator[Tally]) -> None:
        self._accumulator = accumulator

    @classmethod
    def start(cls, spark: SparkSession) -> TallyCounter:
        """A counter at zero."""
        return cls(spark.sparkContext.accumulator(Tally(), _Adding()))

    def add(self, tally: Tally) -> None:
        """Counts a batch; for workers."""
        self._accumulator.add(tally)

    @property
    def value(self) -> Tally:
        """All so far; for the driver."""
        return self._accumulator.value


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a query stands: what was decoded so far, and how far behind each partition is.

    `behind` counts messages that Kafka has and the query has not taken; `lag` is the seconds from
    a partition's highest watermark to now. A partition that sent no watermark has no lag.
    """

    batch: int | None
    decoded: Tally
    behind: Mapping[Place, int]
    lag: Mapping[Place, float]

    @property
    def most_behind(self) -> int:
        """Messages still to be read of the partition that has most of them."""
        return max(self.behind.values(), default=0)

    @property
    def longest_lag(self) -> float | None:
        """The lag of the slowest partition: the whole feed is complete up to then."""
        return max(self.lag.values(), default=None)

    def since(self, earlier: Progress) -> Tally:
        """What was decoded in between: of one batch, if both were taken at the ends of batches."""
        return self.decoded - earlier.decoded

    def to_json(self) -> dict[str, Any]:
        """For logs and `--output json`."""
        decoded = self.decoded
        return {
            "batch": self.batch,
            "messages": decoded.messages,
            "bytes": decoded.bytes,
            "rows": decoded.rows,
            "kinds": dict(sorted(decoded.kinds.items())),
            "badMessages": decoded.bad_messages,
            "decodeSeconds": round(decoded.decode_ns / 1e9, 6),
            "partitions": [
                {
                    "topic": topic,
                    "partition": partition,
                    "behind": self.behind.get((topic, partition)),
                    "lagSeconds": self.lag.get((topic, partition)),
                }
                for topic, partition in sorted({**self.behind, **self.lag}, key=str)
            ],
        }


def measure(
    counter: TallyCounter, last: Mapping[str, Any] | None, now: float | None = None
) -> Progress:
    """The progress of a query by its counter and Spark's own report on its last batch."""
    decoded = counter.value
    now = time.time() if now is None else now
    behind: dict[Place, int] = {}
    for source in (last or {}).get("sources", ()):
        taken, there = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
        behind |= {place: offset - taken.get(place, 0) for place, offset in there.items()}
    return Progress(
        batch=None if last is None else last["batchId"],
        decoded=decoded,
        behind=behind,
        lag={place: now - physical_ms(ts) / 1000 for place, ts in decoded.watermarks.items()},
    )


def _offsets(told: Any) -> dict[Place, int]:
    """Kafka's offsets as Spark reports them, `{topic: {partition: offset}}`; files have none."""
    if not isinstance(told, Mapping):
        return {}
    return {
        (topic, int(partition)): offset
        for topic, offsets in told.items()
        if isinstance(offsets, Mapping)
        for partition, offset in offsets.items()
    }
