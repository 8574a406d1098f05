"""`tidegate inspect`: every event of a capture or a topic, for eyes or as JSON lines."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import pyarrow as pa

from tidegate.cli.kafka import is_kafka, parse_start
from tidegate.cli.render import EventPrinter
from tidegate.cli.source import Progressing, Reading, open_source, open_topic
from tidegate.cli.words import json_line, say
from tidegate.wire.batch.events import EventReader


def inspect(
    source: str,
    *,
    output: str,
    limit: int | None,
    tables: tuple[str, ...],
    shapes: bool,
    from_offset: int | None = None,
    from_time: str | None = None,
    follow: bool = False,
    **reading_options: Any,
) -> int:
    """Prints the events and gives how much needs a look: bad messages, tables without events."""
    if is_kafka(source):
        start = parse_start(from_offset, from_time)
        reading, batches = open_topic(source, start, follow=follow, **reading_options)
    else:
        if from_offset is not None or from_time is not None or follow:
            raise click.UsageError("--from-offset, --from-time and --follow are for kafka://…")
        reading, batches = open_source(source, **reading_options)
    inspection = _Inspection(reading, limit, tables, shapes)
    printer = EventPrinter() if output == "text" else None
    with Progressing(f"reading {source}") as progress, _until_interrupted(follow):
        for event in inspection.events(batches, progress):
            if event["kind"] == "error":
                _name_bad(event)
            if printer is not None:
                printer.print(event)
            else:
                sys.stdout.write(json_line(event))
    if printer is not None:
        printer.summary(reading, inspection.messages, inspection.kinds)
    absent = inspection.absent()
    for name in absent:
        say(_no_events(name, inspection.seen), err=True)
    return inspection.kinds["error"] + len(absent)


class _Inspection:
    """The events that are asked for, and what was seen on the way to them."""

    def __init__(
        self, reading: Reading, limit: int | None, tables: tuple[str, ...], shapes: bool
    ) -> None:
        self._reading = reading
        self._limit = limit
        self._tables = tables
        self._shapes = shapes
        self._is_cut = False
        self.messages = 0
        self.kinds: Counter[str] = Counter()
        self.seen: set[str] = set()
        """The tables that any event is of."""

    def events(
        self, batches: Iterable[pa.RecordBatch], progress: Progressing
    ) -> Iterator[dict[str, Any]]:
        reader = EventReader()
        for batch in batches:
            read_before = self.messages
            for event in reader.documents(self._reading.decode(batch), shapes=self._shapes):
                if not self._is_wanted(event):
                    continue
                self.kinds[event["kind"]] += 1
                yield event
                if self.kinds.total() == self._limit:
                    self._is_cut = True
                    self.messages = read_before + _place(batch, event) + 1
                    return
            self.messages += batch.num_rows
            progress.at(self.messages, self.kinds.total())

    def _is_wanted(self, event: dict[str, Any]) -> bool:
        """Whether the event is of a table asked for, or may be: a bad message is of any."""
        if event.get("table"):
            name = f"{event.get('database')}.{event['table']}"
            self.seen.add(name)
            if name in self._tables:
                return True
        return not self._tables or event["kind"] == "error"

    def absent(self) -> list[str]:
        """The tables asked for that the whole source has no event of."""
        return [] if self._is_cut else [name for name in self._tables if name not in self.seen]


def _place(batch: pa.RecordBatch, event: dict[str, Any]) -> int:
    """Which message of a batch an event comes from."""
    columns = (batch[name].to_pylist() for name in ("topic", "partition", "offset"))
    places = list(zip(*columns, strict=True))
    return places.index((event.get("topic"), event.get("partition"), event.get("offset")))


def _no_events(name: str, seen: set[str]) -> str:
    from tidegate.changefeed.config.settings import nearest

    there = nearest(name, seen) if seen else "it has no events of any table"
    return f"There are no events of {name}: {there}"


@contextmanager
def _until_interrupted(follow: bool) -> Iterator[None]:
    """Ctrl-C is how one stops following: no error."""
    try:
        yield
    except KeyboardInterrupt:
        if not follow:
            raise


def _name_bad(event: dict[str, Any]) -> None:
    topic = f"topic {event['topic']}, " if "topic" in event else ""
    say(
        f"bad message: {topic}partition {event.get('partition')}, offset {event.get('offset')}: "
        f"{event['error']['reason']}",
        err=True,
    )
