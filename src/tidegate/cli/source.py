"""Reading SOURCE: which protocol it is, and its messages as change batches, with progress."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tidegate.cli.kafka import connection_of
from tidegate.cli.words import counted
from tidegate.model import SourceError
from tidegate.source.topic_reader import Start, TopicReader
from tidegate.wire import (
    Sniffed,
    decode_batch,
    from_uri,
    other_protocol,
    read_capture,
    sniff_all,
)

SNIFFED_MESSAGES = 1000
QUIET_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Reading:
    """How the messages of a source are read; `guessed` says that nobody told."""

    protocol: str
    """Empty where there are no messages to guess it from."""
    encoding: str | None
    compression: str | None
    claim_check: str | None
    guessed: bool

    def describe(self) -> str:
        """The protocol in words."""
        return str(Sniffed(self.protocol, self.encoding, self.compression))

    def decode(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """The change batch of a batch of messages."""
        return decode_batch(
            self.protocol,
            messages.column("key"),
            messages.column("value"),
            topics=messages.column("topic"),
            partitions=messages.column("partition"),
            offsets=messages.column("offset"),
            encoding=self.encoding,
            compression=self.compression,
            claim_check=None if self.claim_check is None else from_uri(self.claim_check),
        )


def open_source(
    source: str,
    *,
    protocol: str | None,
    encoding: str | None,
    compression: str | None,
    claim_check: str | None,
) -> tuple[Reading, Iterator[pa.RecordBatch]]:
    """How to read the source, and its messages; an empty source has no protocol to guess."""
    return _guessed(source, read_capture(source), protocol, encoding, compression, claim_check)


def open_topic(
    source: str,
    start: Start,
    *,
    follow: bool,
    protocol: str | None,
    encoding: str | None,
    compression: str | None,
    claim_check: str | None,
) -> tuple[Reading, Iterator[pa.RecordBatch]]:
    """The same for a topic; its URI may tell the protocol, and how values are compressed."""
    config, names_protocol = connection_of(source)
    if names_protocol:
        protocol = protocol or config.protocol
        compression = compression or config.compression
    batches = TopicReader(config, start, follow=follow).batches()
    return _guessed(source, batches, protocol, encoding, compression, claim_check)


def _guessed(
    source: str,
    batches: Iterator[pa.RecordBatch],
    protocol: str | None,
    encoding: str | None,
    compression: str | None,
    claim_check: str | None,
) -> tuple[Reading, Iterator[pa.RecordBatch]]:
    first = next(batches, None)
    if first is None:
        told = Reading(protocol or "", encoding, compression, claim_check, protocol is None)
        return told, batches
    head = first_messages(first)
    batches = itertools.chain([first], batches)
    if protocol is not None:
        check_protocol(source, head, protocol, encoding, compression)
    found = sniff_all(head)
    if found is not None and protocol in (None, found.protocol):
        reading = Reading(
            found.protocol,
            encoding,
            compression or found.compression,
            claim_check,
            protocol is None,
        )
        return reading, batches
    if protocol is None:
        raise click.UsageError(
            f"the messages of {source} are of no protocol that is known: none of the first "
            f"{len(head)} looks like one. Name it with --protocol."
        )
    return Reading(protocol, encoding, compression, claim_check, False), batches


def first_messages(batch: pa.RecordBatch) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of as many messages as are looked at to know what they are."""
    head = batch.slice(0, SNIFFED_MESSAGES)
    return list(zip(head["key"].to_pylist(), head["value"].to_pylist(), strict=True))


def check_protocol(
    source: str,
    head: Sequence[tuple[bytes | None, bytes | None]],
    protocol: str,
    encoding: str | None,
    compression: str | None,
) -> None:
    """Raises SourceError where all messages are of another protocol than the one named."""
    other = other_protocol(head, protocol, encoding=encoding, compression=compression)
    if other is not None:
        named = Sniffed(protocol, encoding, compression)
        raise SourceError(
            source.partition("?")[0],
            f"none of its first {counted(len(head), 'message')} is {named}; all look like {other}",
            "Name that protocol (--protocol, or protocol=… in the sink URI), or the right source",
        )


def changefeed_text(path: str) -> str:
    """The text of a changefeed's file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{path} is not text in UTF-8 ({error}).") from error


class Progressing:
    """Counts what is done on standard error, once it takes longer than two seconds.

    `total` is about how many events there will be, where that is known.
    """

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what = what
        self._total = total
        self._started = time.monotonic()
        self._progress: Progress | None = None
        self._task: Any = None
        self._wanted = sys.stderr.isatty()

    def __enter__(self) -> Progressing:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def at(self, messages: int, events: int) -> None:
        """Says how far it is."""
        if not self._wanted or time.monotonic() - self._started < QUIET_SECONDS:
            return
        if self._progress is None:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(pulse_style="cyan"),
                TextColumn("{task.fields[messages]:,} messages, {task.fields[events]:,} events"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._progress.add_task(
                self._what, total=self._total, messages=0, events=0
            )
            self._progress.start()
        self._progress.update(self._task, completed=events, messages=messages, events=events)
