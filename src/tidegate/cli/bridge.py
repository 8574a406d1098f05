"""`tidegate bridge`: a feed read from Kafka or a capture and sent on to Kafka as another feed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.changefeed.config.changefeed import SinkUri
from tidegate.cli.lakes import own_interrupts, working
from tidegate.cli.words import counted, say, say_json
from tidegate.model import ConfigError, SinkError, TidegateError, tso_to_datetime
from tidegate.source.client import can_connect, check_brokers
from tidegate.wire.capabilities import not_carried

POLL_SECONDS = 0.5
_OURS = re.compile(r"tidegate\.model\.errors\.\w+: ([^\n]+)")


def bridge(
    source: str,
    destination: str,
    *,
    changefeed: str | None,
    to_changefeed: str | None,
    once: bool,
    checkpoint: str | None,
    starting: str,
    max_per_trigger: int,
    watermarks: bool | None,
    master: str | None,
    output: str,
) -> int:
    """Runs until it is stopped, or with `once` to the end; gives how many messages were bad."""
    sink = SinkUri.parse(destination)
    if sink.scheme == "file":
        raise ConfigError(
            "DEST", "it is a capture: use `tidegate convert SOURCE DEST --sink-uri …` for that"
        )
    folder = checkpoint or default_checkpoint(source, destination)
    _check_ends(source, changefeed, destination, to_changefeed)
    with working("starting Spark"), own_interrupts():
        from pyspark.errors import StreamingQueryException

        from tidegate.spark import changes, publish, session
        from tidegate.spark.decoding import origin
        from tidegate.spark.sources import feed_settings
        from tidegate.spark.topics import check_answer

        spark = session("tidegate-bridge", master=master, libraries=("kafka",))
        told = feed_settings(source, changefeed)
        if told is not None and told.kafka is not None:
            check_answer(spark, told)
        frame = changes(
            spark,
            source,
            changefeed=changefeed,
            starting=starting,
            max_per_trigger=max_per_trigger,
        )
    reading, target = origin(frame), feed_settings(destination, to_changefeed)
    assert reading is not None
    assert target is not None
    protocol, options = reading.reading.protocol, target.encode_options()
    telling = _Telling(output)
    lost = not_carried(protocol, target.protocol or "", options)
    telling.plan(protocol, target.protocol or "", folder, lost)
    query: Any = None
    try:
        query = publish(
            frame,
            destination,
            changefeed=to_changefeed,
            checkpoint=folder,
            once=once,
            watermarks=watermarks,
            on_batch=telling.batch,
        )
        while not query.awaitTermination(POLL_SECONDS):
            pass
    except KeyboardInterrupt:
        pass
    except StreamingQueryException as error:
        raise _failure(error, source) from error
    finally:
        if query is not None:
            query.stop()
        spark.stop()
    telling.done()
    return telling.bad


def _check_ends(
    source: str, changefeed: str | None, destination: str, to_changefeed: str | None
) -> None:
    """Raises where one of both ends cannot be reached, before Spark is started."""
    from tidegate.spark.sources import feed_settings
    from tidegate.wire import capture_files

    ends = [feed_settings(source, changefeed), feed_settings(destination, to_changefeed)]
    if ends[0] is None and "://" not in source:
        capture_files(source)
    for end in ends:
        if end is not None and end.kafka is not None and can_connect(end):
            check_brokers(end)


def default_checkpoint(source: str, destination: str) -> str:
    """The folder that remembers where this bridge stands: the same two ends, the same folder."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    ends = json.dumps([_place(source), _place(destination)])
    name = hashlib.sha256(ends.encode()).hexdigest()[:16]
    return str(Path(home) / "tidegate" / "bridge" / name)


def _place(text: str) -> str:
    """What is named, without how it is reached: a password may change, the place stays."""
    if "://" not in text:
        return str(Path(text).absolute())
    return text.partition("?")[0]


def _failure(error: Exception, source: str) -> BaseException:
    """What the query's own thread has raised comes as text; of Spark's errors the first cause."""
    from tidegate.lake.job.diagnosis import first_cause
    from tidegate.spark import explained

    found = _OURS.findall(str(error))
    if not found:
        known = explained(error, _place(source))
        step = "Mend the cause and start the bridge again: it goes on where it was."
        told = f"The bridge has failed: {first_cause(error)}. {step}"
        return known if isinstance(known, TidegateError) else _Told(told)
    *_, reason = found
    told = reason.strip().removeprefix("Cannot write to ")
    sink, _, rest = told.partition(": ")
    if reason.startswith("Cannot write to ") and rest:
        reason, _, step = rest.rstrip(".").rpartition(". ")
        return SinkError(sink, reason, step)
    return _Told(reason.strip())


class _Told(TidegateError):
    """An error in the words it came with."""

    def __init__(self, words: str) -> None:
        self.words = words
        super().__init__(words)

    def __str__(self) -> str:
        return self.words


@dataclass(slots=True)
class _Telling:
    """Says what happens, for eyes or for programs, a line a batch."""

    output: str
    started: float = field(default_factory=time.monotonic)
    rows: int = 0
    messages: int = 0
    bytes: int = 0
    bad: int = 0
    held: int = 0
    watermark: int = 0

    def plan(self, source: str, target: str, folder: str, lost: list[str]) -> None:
        document = {"event": "plan", "from": source, "to": target, "checkpoint": folder}
        if self.output == "json":
            say_json(document | {"lost": lost})
            return
        say(f"{source} → {target}; where it stands is kept in {folder}")
        for loss in lost:
            say(f"  not carried: {loss}")

    def batch(self, told: Any) -> None:
        """One micro-batch; called by the query's thread."""
        self.rows += told.rows
        self.messages += told.messages
        self.bytes += told.bytes
        self.bad += told.bad
        self.held = told.held
        self.watermark = max(self.watermark, told.watermark)
        if self.output == "json":
            say_json({"event": "batch", **told.to_json()})
            return
        words = [f"batch {told.batch}: {counted(told.rows, 'row')}"]
        if told.kinds.get("ddl"):
            words.append(f"{told.kinds['ddl']:,} DDL")
        words.append(f"{counted(told.messages, 'message')} ({told.bytes / 1e6:,.1f} MB)")
        if told.held:
            words.append(f"{told.held:,} held")
        if told.bad:
            words.append(f"{told.bad:,} bad, put away")
        if told.watermark:
            words.append(f"complete up to {tso_to_datetime(told.watermark):%Y-%m-%d %H:%M:%S} UTC")
        say(", ".join(words))
        for schema in told.waiting:
            say(f"  waiting for the schema of {schema}")

    def done(self) -> None:
        seconds = time.monotonic() - self.started
        if self.output == "json":
            names = ("rows", "messages", "bytes", "bad", "held", "watermark")
            totals = {name: getattr(self, name) for name in names}
            say_json({"event": "done", **totals, "seconds": round(seconds, 3)})
            return
        say(
            f"{counted(self.rows, 'row')} sent as {counted(self.messages, 'message')} "
            f"({self.bytes / 1e6:,.1f} MB) in {seconds:,.1f} s"
        )
        if self.held:
            held = counted(self.held, "change")
            say(f"waiting for a watermark: {held}; the next run goes on with them")
