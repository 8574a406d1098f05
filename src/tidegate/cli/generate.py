"""`tidegate generate`: the changes of a workload, sent by a changefeed to a capture or to Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click
import pyarrow as pa

from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.send.changefeed import Changefeed
from tidegate.cli.kafka import is_kafka
from tidegate.cli.source import Progressing, changefeed_text
from tidegate.cli.words import counted, say, say_json
from tidegate.source.topic_writer import TopicWriter
from tidegate.wire import write_capture
from tidegate.workload import WORKLOADS, Workload, options_of, workload

SINK_URI = "kafka://127.0.0.1:9092/tidegate?protocol=canal-json&enable-tidb-extension=true"
"""What is sent where nothing says otherwise."""


def generate(
    name: str,
    destination: str,
    *,
    sink_uri: str | None,
    changefeed: str | None,
    rows: int,
    seed: int,
    settings: tuple[str, ...],
    output: str,
    rate: float | None = None,
) -> None:
    """Writes the messages; time is that of the workload, so that the same bytes come each time."""
    to_kafka = is_kafka(destination)
    if to_kafka and sink_uri is not None:
        raise click.UsageError("DEST is the sink URI: leave --sink-uri out.")
    if rate is not None and not to_kafka:
        raise click.UsageError("--rate is for kafka://…; --option rate=N is the workload's own.")
    source = workload(name, rows=rows, seed=seed, **workload_options(name, settings))
    config = _config(destination if to_kafka else sink_uri, changefeed)
    writer = TopicWriter(config, rate=rate) if to_kafka else None
    partitions = None if writer is None else writer.partitions()
    feed = Changefeed(config, partitions=partitions, clock=None)
    generation = _Generation(source, feed)
    started = time.monotonic()
    with Progressing(f"generating {name}", total=rows) as progress:
        if writer is None:
            messages = write_capture(destination, generation.run(progress))
        else:
            messages = writer.write_all(generation.run(progress))
    place = str(config.sink_uri) if to_kafka else destination
    document = {
        "event": "done",
        "workload": name,
        "rows": rows,
        "seed": seed,
        "protocol": feed.config.protocol,
        "events": generation.events,
        "messages": messages,
        "bytes": generation.bytes,
        "watermark": feed.watermark,
        "destination": place,
        "seconds": round(time.monotonic() - started, 3),
    }
    if output == "json":
        say_json(document, err=True)
    else:
        say(
            f"{counted(rows, 'row change')} of {name} (seed {seed}) as {feed.config.protocol}: "
            f"{counted(messages, 'message')}, {generation.bytes / 1e6:,.1f} MB in "
            f"{document['seconds']:.1f} s, written to {place}",
            err=True,
        )


class _Generation:
    """The messages of a workload, and how many there were."""

    def __init__(self, source: Workload, feed: Changefeed) -> None:
        self._source = source
        self._feed = feed
        self.events = 0
        self.bytes = 0
        self._messages = 0

    def run(self, progress: Progressing) -> Iterator[pa.RecordBatch]:
        for changes in self._source.batches():
            self.events += changes.num_rows
            yield self._counted(self._feed.send(changes))
            progress.at(self._messages, self.events)
        yield self._counted(self._feed.close())

    def _counted(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        self._messages += messages.num_rows
        self.bytes += messages["key"].nbytes + messages["value"].nbytes
        return messages


def _config(sink_uri: str | None, changefeed: str | None) -> ChangefeedConfig:
    if changefeed is None:
        return ChangefeedConfig.from_uri(sink_uri or SINK_URI)
    text = changefeed_text(changefeed)
    config = ChangefeedConfig.from_toml(text, sink_uri)
    if config.protocol is None:
        config = ChangefeedConfig.from_toml(text, SINK_URI)
    return config


def option_lines() -> list[str]:
    """The options of every workload, a line each."""
    lines = []
    for name in WORKLOADS:
        options = ", ".join(f"{option}={default}" for option, default in options_of(name).items())
        lines.append(f"{name}: {options}")
    return lines


def workload_options(name: str, settings: tuple[str, ...]) -> dict[str, int]:
    """The options of a workload from NAME=VALUE texts."""
    known = options_of(name)
    chosen = {}
    for setting in settings:
        option, separator, text = setting.partition("=")
        if not separator or option not in known or not (text.isascii() and text.isdigit()):
            raise click.UsageError(
                f"--option {setting!r}: give NAME=VALUE with a whole number and one of "
                f"{', '.join(sorted(known))}."
            )
        chosen[option] = int(text)
    return chosen
