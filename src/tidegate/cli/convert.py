"""`tidegate convert`: a capture in one protocol to a capture in another.

With a protocol alone, each partition keeps its messages. With a changefeed, the changes are put
in the order of commit and sent once more, by its rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.receive.upstream import Upstream
from tidegate.changefeed.send.changefeed import Changefeed
from tidegate.cli.source import Progressing, Reading, changefeed_text, open_source
from tidegate.cli.words import counted, say, say_json
from tidegate.model import EncodeError, SchemaNotSeen
from tidegate.wire import EncodeOptions, ShapeBook, encode_batch, to_folder, write_capture
from tidegate.wire.capabilities import carries_deletes, not_carried

CAPTURE = "messages.parquet"
"""The capture in a folder that a sink URI names."""

_LEFT_OUT = {"bad": "bad", "refused": "rows that cannot be written", "deletesLeftOut": "deletes"}

_FROM_TEXT = {"true": True, "false": False}


def convert(
    source: str,
    destination: str | None,
    *,
    target: str | None,
    settings: tuple[str, ...],
    sink_uri: str | None,
    changefeed: str | None,
    output: str,
    **reading_options: Any,
) -> int:
    """Writes the capture and gives back how many messages were bad or could not be written."""
    conversion: _SamePartitions | _AnotherFeed
    if sink_uri is None:
        if target is None or changefeed is not None or destination is None:
            raise click.UsageError("give --to PROTOCOL and DEST, or --sink-uri.")
        options = _options(settings)
        reading, batches = open_source(source, **reading_options)
        conversion = _SamePartitions(reading, target, options)
    else:
        if target is not None or settings:
            raise click.UsageError("--sink-uri says what --to and --option say: leave those out.")
        config = _config(sink_uri, changefeed)
        destination = _destination(destination, config)
        reading, batches = open_source(source, **reading_options)
        conversion = _AnotherFeed(reading, config)
    _say(output, {"event": "plan", "from": reading.protocol or None, **conversion.plan()})
    with Progressing(f"converting {source}") as progress:
        if conversion.reads_twice and source == "-":
            whole = list(batches)
            conversion.learn(whole)
            batches = iter(whole)
        elif conversion.reads_twice:
            conversion.learn(open_source(source, **reading_options)[1])
        written = write_capture(destination, conversion.run(batches, progress))
    _say(
        output,
        {
            "event": "done",
            "read": conversion.read,
            "written": written,
            "bad": conversion.bad,
            "refused": conversion.refused,
            "deletesLeftOut": conversion.deletes,
            "destination": destination,
        },
    )
    return conversion.bad + conversion.refused


class _Conversion:
    """Decodes the messages of a source, and names the bad ones."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.read = 0
        self.bad = 0
        self.refused = 0
        self.deletes = 0

    @property
    def reads_twice(self) -> bool:
        """Whether the source is to be read once before: a row may come before its schema does."""
        return self._reading.protocol == "simple"

    def run(
        self, batches: Iterable[pa.RecordBatch], progress: Progressing
    ) -> Iterator[pa.RecordBatch]:
        """The messages of the new capture."""
        events = 0
        for messages in batches:
            changes = self._reading.decode(messages)
            self.read += messages.num_rows
            events += changes.num_rows
            yield from self._encode(self._without_bad(changes))
            progress.at(self.read, events)
        yield from self._rest()

    def _lost(self, target: str, options: EncodeOptions) -> list[str]:
        """What the target cannot carry; nothing of a source without messages."""
        protocol = self._reading.protocol
        return not_carried(protocol, target, options) if protocol else []

    def _without_bad(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        is_error = pc.equal(changes["kind"], "error")
        for row in changes.filter(is_error).to_pylist():
            self.bad += 1
            say(
                f"bad message left out: partition {row['partition']}, offset {row['offset']}: "
                f"{row['error']['reason']}",
                err=True,
            )
        return changes.filter(pc.invert(is_error))

    def _encode(self, changes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError

    def _rest(self) -> Iterator[pa.RecordBatch]:
        yield from ()


class _AnotherFeed(_Conversion):
    """Sends the changes of a feed once more, by the rules of another changefeed."""

    def __init__(self, reading: Reading, config: ChangefeedConfig) -> None:
        super().__init__(reading)
        self._config = config
        self._feed = Changefeed(config, clock=None)
        self._upstream: Upstream | None = None

    reads_twice = True  # also for the partitions that it has, and whether there are watermarks

    def plan(self) -> dict[str, Any]:
        """What is said before anything is done."""
        target = self._config.protocol or ""
        return {
            "to": target,
            "lost": self._lost(target, self._feed.options),
            "ignored": [f"{name}: {reason}" for name, reason in self._config.ignored],
        }

    def learn(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Reads the whole source for its schemas and partitions."""
        sources: set[tuple[str, int]] = set()
        watermarks = False
        for messages in batches:
            changes = self._reading.decode(messages)
            self._feed.learn(changes)
            watermarks |= pc.any(pc.equal(changes["kind"], "watermark")).as_py() or False
            places = pa.Table.from_batches([messages.select(["topic", "partition"])])
            for row in places.group_by(["topic", "partition"]).aggregate([]).to_pylist():
                sources.add((row["topic"] or "", row["partition"]))
        self._upstream = Upstream(sorted(sources), watermarks=watermarks)

    def _encode(self, changes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if self._upstream is not None:
            yield self._feed.send(self._upstream.read(changes))

    def _rest(self) -> Iterator[pa.RecordBatch]:
        if self._upstream is not None:
            yield self._feed.send(self._upstream.finish())
        yield self._feed.close()


class _SamePartitions(_Conversion):
    """Encodes the rows of each partition again, by itself."""

    def __init__(self, reading: Reading, target: str, options: EncodeOptions) -> None:
        super().__init__(reading)
        self._target = target
        self._options = options
        self._shapes = ShapeBook()
        self._announced: set[tuple[str | None, int, int]] = set()
        self._carries_deletes = carries_deletes(target, options)

    def plan(self) -> dict[str, Any]:
        """What is said before anything is done."""
        lost = self._lost(self._target, self._options)
        return {"to": self._target, "lost": lost, "ignored": []}

    def learn(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Reads the whole source for its schemas."""
        for batch in batches:
            self._shapes.add(self._reading.decode(batch))

    def _encode(self, changes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._shapes.add(changes)
        is_shape = pc.and_(pc.equal(changes["kind"], "schema"), pc.is_valid(changes["shape"]))
        shapes = changes.filter(is_shape)
        rows = changes.filter(pc.invert(is_shape))
        if not self._carries_deletes:
            stay = pc.not_equal(rows["kind"], "delete")
            self.deletes += rows.num_rows - pc.sum(stay, min_count=0).as_py()
            rows = rows.filter(stay)
        places = rows.select(["topic", "partition"]).to_pylist()
        for topic, partition in dict.fromkeys((row["topic"], row["partition"]) for row in places):
            here = pc.is_null(rows["topic"]) if topic is None else pc.equal(rows["topic"], topic)
            here = pc.and_kleene(here, pc.equal(rows["partition"], partition))
            yield self._encode_partition(topic, partition, rows.filter(here), shapes)

    def _encode_partition(
        self, topic: str | None, partition: int, rows: pa.RecordBatch, shapes: pa.RecordBatch
    ) -> pa.RecordBatch:
        """A shape is announced in each partition before its first row there (Simple needs it)."""
        used = set(rows["shape"].to_pylist())
        fresh = [
            index
            for index, shape in enumerate(shapes["shape"].to_pylist())
            if shape in used and (topic, partition, shape) not in self._announced
        ]
        self._announced.update(
            (topic, partition, shapes["shape"][index].as_py()) for index in fresh
        )
        batch = pa.concat_batches([shapes.take(pa.array(fresh, pa.int32())), rows])
        try:
            encoded = self._encoded(batch)
        except (EncodeError, SchemaNotSeen):
            encoded = self._encoded(self._without_refused(batch))
        count = encoded.num_rows
        return pa.RecordBatch.from_pydict(
            {
                "topic": pa.array([topic] * count, pa.string()),
                "partition": pa.array([partition] * count, pa.int32()),
                "key": encoded["key"],
                "value": encoded["value"],
            }
        )

    def _encoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return encode_batch(self._target, batch, shapes=self._shapes, options=self._options)

    def _without_refused(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that can be written each by itself; the others are named."""
        stay = []
        for index in range(batch.num_rows):
            row = batch.slice(index, 1)
            try:
                self._encoded(row)
                stay.append(index)
            except (EncodeError, SchemaNotSeen) as error:
                self.refused += 1
                place = row.select(["partition", "offset", "event"]).to_pylist()[0]
                say(
                    f"left out: partition {place['partition']}, offset {place['offset']}, "
                    f"event {place['event']}: {error}",
                    err=True,
                )
        return batch.take(pa.array(stay, pa.int32()))


def _config(sink_uri: str, changefeed: str | None) -> ChangefeedConfig:
    text = "" if changefeed is None else changefeed_text(changefeed)
    return ChangefeedConfig.from_toml(text, sink_uri)


def _destination(destination: str | None, config: ChangefeedConfig) -> str:
    """The capture to write: the one that is named, or that of the folder that the URI names."""
    if destination is not None:
        return destination
    folder = None if config.sink_uri is None else config.sink_uri.path
    if folder is None:
        raise click.UsageError("give DEST, the capture to write; nothing is sent to Kafka here.")
    Path(folder).mkdir(parents=True, exist_ok=True)
    return str(Path(folder) / CAPTURE)


def option_lines() -> list[str]:
    """The settings of a new protocol with their defaults, a line each."""
    defaults = EncodeOptions()
    return [
        f"{name}={_as_text(getattr(defaults, field.name))}"
        for name, field in sorted(_known_options().items())
    ]


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _known_options() -> dict[str, Field[Any]]:
    """The fields of EncodeOptions by the names that TiCDC gives them."""
    return {field.name.replace("_", "-"): field for field in fields(EncodeOptions)}


def _options(settings: tuple[str, ...]) -> EncodeOptions:
    """EncodeOptions from NAME=VALUE texts."""
    known = _known_options()
    chosen: dict[str, Any] = {}
    for setting in settings:
        name, separator, text = setting.partition("=")
        field = known.get(name)
        if not separator or field is None:
            raise click.UsageError(
                f"--option {setting!r}: give NAME=VALUE with one of {', '.join(sorted(known))}."
            )
        chosen[field.name] = _value(name, text, field.type, getattr(EncodeOptions(), field.name))
    return EncodeOptions(**chosen)


def _value(name: str, text: str, annotation: Any, default: Any) -> Any:
    if name == "claim-check":
        if not Path(text).is_dir():
            raise click.UsageError(f"--option {name}: there is no folder {text!r}.")
        return to_folder(text)
    if name == "time-zone":
        try:
            ZoneInfo(text)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise click.UsageError(f"--option {name}: {text!r} is no time zone.") from error
    if isinstance(default, bool):
        if text not in _FROM_TEXT:
            raise click.UsageError(f"--option {name}: {text!r} is neither true nor false.")
        return _FROM_TEXT[text]
    if isinstance(default, int) or name == "build-ts":
        if not text.isdigit():
            raise click.UsageError(f"--option {name}: {text!r} is not a whole number.")
        return int(text)
    return text


def _say(output: str, document: dict[str, Any]) -> None:
    """Progress goes to standard error: the capture itself may go to standard output."""
    if output == "json":
        say_json(document, err=True)
    elif document["event"] == "plan":
        say(f"{document['from'] or 'no messages'} → {document['to']}", err=True)
        for loss in document["lost"]:
            say(f"  not carried: {loss}", err=True)
        for notice in document["ignored"]:
            say(f"  not used: {notice}", err=True)
    else:
        parts = [f"{counted(document['read'], 'message')} read"]
        for member, words in _LEFT_OUT.items():
            if document[member]:
                parts.append(f"{document[member]:,} {words} left out")
        say(
            f"{', '.join(parts)}, {document['written']:,} written to {document['destination']}",
            err=True,
        )
