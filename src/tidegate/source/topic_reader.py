"""Reads the topic of a sink URI for eyes: from an offset or a time on, to the end or forever."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import pyarrow as pa

from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.source.client import Connection, client_settings
from tidegate.source.consumption import OffsetRange, read_ranges
from tidegate.source.topics import KafkaTopics


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading starts in every partition: an offset (below 0: from the end), or a time."""

    offset: int | None = None
    time_ms: int | None = None


class TopicReader:
    """The messages of the topic of a sink URI, in batches of CAPTURE_SCHEMA."""

    def __init__(self, config: ChangefeedConfig, start: Start, *, follow: bool = False) -> None:
        self._connection = Connection.of(config)
        self._settings = client_settings(config)
        self._topic = config.topic or ""
        self._start = start
        self._follow = follow

    def batches(self) -> Generator[pa.RecordBatch]:
        """All messages up to those that are there when reading starts; with `follow` forever."""
        yield from read_ranges(self._settings, self._ranges())

    def _ranges(self) -> list[OffsetRange]:
        topics = KafkaTopics(self._connection)
        there = topics.partitions()
        if self._topic not in there:
            raise topics.absent(self._topic, there)
        places = [(self._topic, number) for number in range(there[self._topic])]
        starts, ends = topics.starts(places), topics.ends(places)
        times = {}
        if self._start.time_ms is not None:
            times = topics.at_time(places, self._start.time_ms)
        ranges = []
        for place in places:
            low, high = starts[place], ends[place]
            wanted = self._start.offset
            if wanted is not None:
                start = min(max(low, high + wanted if wanted < 0 else wanted), high)
            elif times:
                start = times[place] if times[place] >= 0 else high
            else:
                start = low
            ranges.append(OffsetRange(*place, start, None if self._follow else high))
        return ranges
