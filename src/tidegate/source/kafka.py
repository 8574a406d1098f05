"""Kafka as a source of ingest: the topics of a changefeed, planned as ranges of offsets.

A position has each topic's id and the next offset of each of its partitions. A topic that was
deleted and created again, and messages that were deleted before they were read, are refused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.config.subscription import Subscription
from tidegate.model import SourceError
from tidegate.source.base import (
    RoundLimits,
    RoundPlan,
    Source,
    SourcePosition,
    SourceSplit,
    SplitReader,
)
from tidegate.source.client import Connection, client_settings
from tidegate.source.consumption import OffsetRange, close_consumers, lost, read_ranges
from tidegate.source.sharing import shares, splits
from tidegate.source.topics import RETRY_SECONDS, KafkaTopics, TopicPlace

LATER_PATIENCE = 60.0
"""Seconds to wait for brokers that have answered before: they may be restarting."""
SETTLE_SECONDS = 20.0
"""How long topics may be listed and not be described, as they are while they are created."""
SMALLEST_SAMPLE = 10_000
SAMPLE_MESSAGES = 100
HEAD_PARTITIONS = 20


class KafkaReader(SplitReader):
    """Reads ranges of offsets with a consumer that the process keeps."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)

    def read(self, split: SourceSplit) -> Iterator[pa.RecordBatch]:
        return read_ranges(self._settings, [OffsetRange(*each) for each in split.place["ranges"]])


@dataclass(slots=True)
class _Topic:
    """A topic as it is now."""

    id: str
    ends: list[int]


class KafkaSource(Source):
    """The topics that a changefeed writes to.

    `tasks` is about how many splits a round has where its messages allow it.
    """

    def __init__(self, config: ChangefeedConfig, *, tasks: int | None = None) -> None:
        self._connection = Connection.of(config)
        self._settings = client_settings(config)
        self._subscription = Subscription.of(config)
        self._tasks = tasks or 2 * (os.cpu_count() or 1)
        self._topics: KafkaTopics | None = None
        self._message_bytes: float | None = None

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"topics": self._subscription.text}

    @property
    def reader(self) -> SplitReader:
        return KafkaReader(self._settings)

    def plan(self, position: SourcePosition, limits: RoundLimits) -> RoundPlan:
        known = position.get("topics", {})
        topics = self._survey(known)
        for name, topic in topics.items():
            if name in known:
                _check_same(name, topic, known[name])
        starts = self._starts(known, topics)
        ends = {
            (name, number): end
            for name, topic in topics.items()
            for number, end in enumerate(topic.ends)
        }
        backlog = {place: end - starts[place] for place, end in ends.items()}
        size = self._size_of_messages(limits, sum(backlog.values()))
        taken = shares(backlog, _fewer(limits.messages, limits.bytes, size))
        ranges = [
            OffsetRange(*place, starts[place], starts[place] + count)
            for place, count in sorted(taken.items())
            if count
        ]
        per_split = _fewer(limits.split_messages, limits.split_bytes, size)
        assert per_split is not None
        reached = {
            name: {
                "id": topic.id,
                "offsets": [
                    starts[name, number] + taken[name, number] for number in range(len(topic.ends))
                ],
            }
            for name, topic in topics.items()
        }
        missing = sorted(set(known) - set(topics))
        return RoundPlan(
            splits=tuple(_split(group) for group in splits(ranges, per_split, self._tasks)),
            position={"topics": {name: known[name] for name in missing} | reached},
            partitions=frozenset(ends),
            pending=frozenset(place for place, count in backlog.items() if count),
            left=frozenset(place for place, count in backlog.items() if count > taken[place]),
            behind=sum(backlog.values()) - sum(taken.values()),
            missing=tuple(missing),
        )

    def head(self, count: int) -> list[tuple[bytes | None, bytes | None]]:
        topics = self._survey({})
        places = [(name, n) for name, topic in topics.items() for n in range(len(topic.ends))]
        places.sort(key=lambda place: (place[0] != self._subscription.default, place))
        starts = self._asked.starts(places)
        ranges: list[OffsetRange] = []
        for name, number in places:
            start, end = starts[name, number], topics[name].ends[number]
            if start < end and len(ranges) < HEAD_PARTITIONS:
                ranges.append(OffsetRange(name, number, start, min(end, start + count)))
        messages: list[tuple[bytes | None, bytes | None]] = []
        for batch in read_ranges(self._settings, ranges):
            messages += zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
            if len(messages) >= count:
                break
        if messages:
            size = sum(len(key or b"") + len(value or b"") for key, value in messages)
            self.observe(len(messages), size)
        return messages[:count]

    def observe(self, messages: int, size: int) -> None:
        if messages:
            self._message_bytes = max(1.0, size / messages)

    def close(self) -> None:
        self._topics = None
        close_consumers()

    # --- what the brokers say ---------------------------------------------------------------------

    @property
    def _asked(self) -> KafkaTopics:
        if self._topics is None:
            self._topics = KafkaTopics(self._connection)
        return self._topics

    def _survey(self, known: Mapping[str, Any]) -> dict[str, _Topic]:
        """The changefeed's topics as they are now, and those that were read before.

        Topics are listed again after the ends were asked for: a topic that was created in between
        may have rows from before a watermark that lies before one of these ends.
        """
        asked = self._asked
        topics: dict[str, _Topic] = {}
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            there = asked.partitions()
            names = {name for name in there if name in known or self._subscription.matches(name)}
            topics = {name: topic for name, topic in topics.items() if name in names}
            counts = {name: len(topic.ends) for name, topic in topics.items()}
            new = {name: range(counts.get(name, 0), there[name]) for name in sorted(names)}
            new = {name: numbers for name, numbers in new.items() if numbers}
            # A topic that is not listed may be without a leader for a moment.
            unclear = {} if new else asked.ids(set(known) - names)
            if not new and not unclear:
                break
            if time.monotonic() > deadline:
                raise _unsettled(min([*new, *unclear]))
            if unclear or not self._describe(topics, new):
                time.sleep(RETRY_SECONDS)
        asked.patience = LATER_PATIENCE
        default = self._subscription.default
        if not known and self._subscription.pattern is None and default not in topics:
            raise asked.absent(default, there)
        return topics

    def _describe(self, topics: dict[str, _Topic], new: Mapping[str, range]) -> bool:
        """Adds ids and ends of partitions; says whether there were any."""
        ids = self._asked.ids(name for name in new if name not in topics)
        here = {name: numbers for name, numbers in new.items() if name in topics or name in ids}
        ends = self._asked.ends((name, number) for name in here for number in here[name])
        for name, numbers in here.items():
            if all((name, number) in ends for number in numbers):
                topic = topics.setdefault(name, _Topic(ids.get(name, ""), []))
                topic.ends += [ends[name, number] for number in numbers]
        return bool(ends)

    def _starts(
        self, known: Mapping[str, Any], topics: Mapping[str, _Topic]
    ) -> dict[TopicPlace, int]:
        """Where each partition is read on: SourceError where messages from there on are lost."""
        starts: dict[TopicPlace, int] = {}
        unread: dict[TopicPlace, int | None] = {}
        for name, topic in topics.items():
            offsets = known.get(name, {}).get("offsets", ())
            for number, end in enumerate(topic.ends):
                start = offsets[number] if number < len(offsets) else None
                if start is not None and start > end:
                    raise _shorter(name, number, start, end)
                if start == end:
                    starts[name, number] = end
                else:
                    unread[name, number] = start
        for place, low in self._asked.starts(unread).items():
            start = unread[place]
            if start is not None and start < low:
                raise lost(*place, start, low)
            starts[place] = low if start is None else start
        return starts

    def _size_of_messages(self, limits: RoundLimits, backlog: int) -> float | None:
        """About how many bytes a message has; None: not known."""
        if self._message_bytes is None and limits.bytes is not None and backlog > SMALLEST_SAMPLE:
            self.head(SAMPLE_MESSAGES)
        return self._message_bytes


def _split(ranges: list[OffsetRange]) -> SourceSplit:
    place = {"ranges": [[each.topic, each.partition, each.start, each.end] for each in ranges]}
    return SourceSplit(place, sum((each.end or 0) - each.start for each in ranges))


def _fewer(messages: int | None, size: int | None, per_message: float | None) -> int | None:
    """How many messages stay within both limits."""
    if size is None or per_message is None:
        return messages
    by_size = max(1, int(size / per_message))
    return by_size if messages is None else min(messages, by_size)


def _check_same(name: str, topic: _Topic, known: Mapping[str, Any]) -> None:
    """Raises SourceError where a topic is not the one that was read before."""
    if known["id"] and topic.id and topic.id != known["id"]:
        sign = f"its id is {topic.id}, and that of the topic read before is {known['id']}"
    elif len(topic.ends) < len(known["offsets"]):
        sign = f"it has {len(topic.ends)} partitions, and had {len(known['offsets'])}"
    else:
        return
    raise SourceError(
        f"the topic {name!r}",
        f"it was deleted and created again: {sign}",
        "Mirror the new topic into a new lake",
    )


def _unsettled(name: str) -> SourceError:
    return SourceError(
        f"the topic {name!r}",
        f"the brokers list it and do not describe it for {SETTLE_SECONDS:g} seconds",
        "Check the brokers and that this user may describe the topic",
    )


def _shorter(name: str, partition: int, start: int, end: int) -> SourceError:
    return SourceError(
        f"the topic {name!r}",
        f"partition {partition} was read up to offset {start} and now ends at {end}: its last "
        "messages were lost by the brokers",
        "Mirror the changefeed into a new lake, from a changefeed that starts again",
    )
