"""`tidegate inspect`: every event of a capture or a topic, for eyes or as JSON lines."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from tidegate.cli.kafka import Start, is_kafka
from tidegate.cli.render import EventPrinter
from tidegate.cli.source import Progressing, open_source, open_topic
from tidegate.wire.events import EventReader

_LINE_SEPARATORS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


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
    """Prints the events and gives back how many messages are bad."""
    if is_kafka(source):
        start = Start.parse(from_offset, from_time)
        reading, batches = open_topic(source, start, follow=follow, **reading_options)
    else:
        if from_offset is not None or from_time is not None or follow:
            raise click.UsageError("--from-offset, --from-time and --follow are for kafka://…")
        reading, batches = open_source(source, **reading_options)
    reader = EventReader()
    printer = EventPrinter() if output == "text" else None
    kinds: Counter[str] = Counter()
    messages = shown = 0
    with Progressing(f"reading {source}") as progress, _until_interrupted(follow):
        for batch in batches:
            for event in reader.documents(reading.decode(batch), shapes=shapes):
                if tables and not _is_of(event, tables):
                    continue
                if limit is not None and shown >= limit:
                    break
                shown += 1
                kinds[event["kind"]] += 1
                if event["kind"] == "error":
                    _name_bad(event)
                if printer is not None:
                    printer.print(event)
                else:
                    sys.stdout.write(json_line(event))
            messages += batch.num_rows
            progress.at(messages, shown)
            if limit is not None and shown >= limit:
                break
    if printer is not None:
        printer.summary(reading, messages, kinds)
    return kinds["error"]


def _is_of(event: dict[str, Any], tables: tuple[str, ...]) -> bool:
    """Whether the event is of one of these tables, or may be: a bad message is of any."""
    return event["kind"] == "error" or f"{event.get('database')}.{event.get('table')}" in tables


@contextmanager
def _until_interrupted(follow: bool) -> Iterator[None]:
    """Ctrl-C is how one stops following: no error."""
    try:
        yield
    except KeyboardInterrupt:
        if not follow:
            raise


def json_line(document: dict[str, Any]) -> str:
    """One line, also for readers who take Unicode's line separators for line ends."""
    return json.dumps(document, ensure_ascii=False).translate(_LINE_SEPARATORS) + "\n"


def _name_bad(event: dict[str, Any]) -> None:
    topic = f"topic {event['topic']}, " if "topic" in event else ""
    click.echo(
        f"bad message: {topic}partition {event.get('partition')}, offset {event.get('offset')}: "
        f"{event['error']['reason']}",
        err=True,
    )
