"""`tidegate convert`: a capture in one protocol to a capture in another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.cli.source import Progressing, Reading, open_source
from tidegate.wire import EncodeOptions, ShapeBook, encode_batch, to_folder, write_capture
from tidegate.wire.carries import not_carried

_FROM_TEXT = {"true": True, "false": False}


def convert(
    source: str,
    destination: str,
    *,
    target: str,
    settings: tuple[str, ...],
    output: str,
    **reading_options: Any,
) -> int:
    """Writes the capture and gives back how many messages were bad."""
    options = _options(settings)
    reading, batches = open_source(source, **reading_options)
    losses = not_carried(reading.protocol, target, options)
    _say(output, {"event": "plan", "from": reading.protocol, "to": target, "lost": losses})
    conversion = _Conversion(reading, target, options)
    if source != "-":
        conversion.learn(open_source(source, **reading_options)[1])
    with Progressing(f"converting {source}") as progress:
        written = write_capture(destination, conversion.run(batches, progress))
    _say(
        output,
        {
            "event": "done",
            "read": conversion.read,
            "written": written,
            "bad": conversion.bad,
            "destination": destination,
        },
    )
    return conversion.bad


class _Conversion:
    """Decodes batches and encodes their rows again, each partition by itself."""

    def __init__(self, reading: Reading, target: str, options: EncodeOptions) -> None:
        self._reading = reading
        self._target = target
        self._options = options
        self._shapes = ShapeBook()
        self._announced: set[tuple[str | None, int, int]] = set()
        self._offsets: dict[tuple[str | None, int], int] = {}
        self.read = 0
        self.bad = 0

    def learn(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Reads the whole source once for its schemas: a row may come before its schema does."""
        if self._reading.protocol == "simple":
            for batch in batches:
                self._shapes.add(self._reading.decode(batch))

    def run(
        self, batches: Iterator[pa.RecordBatch], progress: Progressing
    ) -> Iterator[pa.RecordBatch]:
        """The messages of the new capture."""
        events = 0
        for messages in batches:
            changes = self._reading.decode(messages)
            self._shapes.add(changes)
            self.read += messages.num_rows
            events += changes.num_rows
            yield from self._encode(changes)
            progress.at(self.read, events)

    def _encode(self, changes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        is_error = pc.equal(changes["kind"], "error")
        for row in changes.filter(is_error).to_pylist():
            self.bad += 1
            click.echo(
                f"bad message left out: partition {row['partition']}, offset {row['offset']}: "
                f"{row['error']['reason']}",
                err=True,
            )
        is_shape = pc.and_(pc.equal(changes["kind"], "schema"), pc.is_valid(changes["shape"]))
        shapes = changes.filter(is_shape)
        rows = changes.filter(pc.invert(pc.or_(is_error, is_shape)))
        places = rows.select(["topic", "partition"]).to_pylist()
        for topic, partition in dict.fromkeys((row["topic"], row["partition"]) for row in places):
            here = pc.equal(rows["partition"], partition)
            if topic is not None:
                here = pc.and_(here, pc.equal(rows["topic"], topic))
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
        encoded = encode_batch(self._target, batch, shapes=self._shapes, options=self._options)
        count = encoded.num_rows
        first = self._offsets.get((topic, partition), 0)
        self._offsets[topic, partition] = first + count
        return pa.RecordBatch.from_pydict(
            {
                "topic": pa.array([topic] * count, pa.string()),
                "partition": pa.array([partition] * count, pa.int32()),
                "offset": pa.array(range(first, first + count), pa.int64()),
                "key": encoded["key"],
                "value": encoded["value"],
            }
        )


def _options(settings: tuple[str, ...]) -> EncodeOptions:
    """EncodeOptions from NAME=VALUE texts, names as TiCDC has them."""
    known = {field.name.replace("_", "-"): field for field in fields(EncodeOptions)}
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
        return to_folder(text)
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
        click.echo(json.dumps(document), err=True)
    elif document["event"] == "plan":
        click.echo(f"{document['from']} → {document['to']}", err=True)
        for loss in document["lost"]:
            click.echo(f"  not carried: {loss}", err=True)
    else:
        bad = f", {document['bad']:,} bad left out" if document["bad"] else ""
        click.echo(
            f"{document['read']:,} messages read{bad}, {document['written']:,} written to "
            f"{document['destination']}",
            err=True,
        )
