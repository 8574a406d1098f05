"""Workloads as feeds that can be cut: sent with random settings of a changefeed, some of it twice."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tests.model_check.cut_feeds import CutFeed, TypedTruth
from tests.model_check.generate import random_feed
from tests.model_check.sender import TOPIC, Feed, Message
from tests.support.table_model import model_of
from tidegate.changefeed.send.changefeed import Changefeed
from tidegate.lake.job.source import feed_topics
from tidegate.model.tso import physical_ms
from tidegate.wire import decode_batch
from tidegate.wire.batch.key_updates import mark_moves
from tidegate.workload import Workload, workload

ROWS = 400
RATE = 100
"""Changes a second: there is a watermark every second."""
_LARGE = {"large_message_handle": "claim-check", "max_message_bytes": 20_000}


@lru_cache(maxsize=4)
def source(name: str) -> Workload:
    return workload(name, rows=ROWS, seed=5, rate=RATE)


@lru_cache(maxsize=4)
def typed_truth(name: str) -> TypedTruth:
    """What a workload knows to be true."""
    return TypedTruth(lambda ts: model_of(source(name).at(ts)))


@lru_cache(maxsize=4)
def tied_tables(name: str) -> frozenset[tuple[str, str]]:
    """The tables that have rows in the very millisecond of a statement about them.

    A feed without watermarks tells no more of time than that.
    """
    statements, rows = set(), set()
    for batch in source(name).batches():
        for event in batch.select(["kind", "commit_ts", "database", "table"]).to_pylist():
            if event["commit_ts"] is not None and event["kind"] != "watermark":
                place = event["database"], event["table"], physical_ms(event["commit_ts"])
                (statements if event["kind"] == "ddl" else rows).add(place)
    return frozenset((database, table) for database, table, _ in statements & rows)


def random_settings(chance: random.Random) -> Feed:
    """A changefeed; also with Avro, compression, claim checks, and the protocol `cdc`."""
    feed = random_feed(chance)
    options: dict[str, Any] = dict(feed.options)
    if chance.random() < 0.08:
        # Its old rows are whole, and its one topic has one order.
        return Feed(protocol="cdc", partitions=chance.choice((1, 3)), dispatch="index-value")
    if feed.protocol == "simple" and chance.random() < 0.5:
        options["encoding_format"] = "avro"
    if not feed.has_watermarks:
        feed = replace(feed, partitions=chance.choice((1, 3)), dispatch="index-value")
    elif feed.protocol != "craft":
        more = chance.choice(
            ({}, {}, {}, {"compression": "snappy"}, {"compression": "lz4"}, _LARGE)
        )
        options |= more
    return replace(feed, options=options, late_topics=False)


class WorkloadSender:
    """Sends a workload; a sender that restarts begins again after an earlier watermark."""

    def __init__(self, name: str, feed: Feed, chance: random.Random) -> None:
        self._name = name
        self._feed = feed
        self._chance = chance
        self._config = feed.config()
        self._objects: dict[str, bytes] = {}
        self._changefeed = Changefeed(
            self._config,
            partitions=feed.partitions,
            clock=None,
            generation=feed.generation,
            claim_check=self._keep,
            build_ts=1,
            watermark_interval=0,
            remember=True,
        )
        self._messages: list[Message] = []
        self._sources: dict[tuple[str, int], int] = {}
        self._offsets: dict[tuple[str, int], int] = {}

    def _keep(self, content: bytes) -> str:
        location = f"{len(self._objects)}.json"
        self._objects[location] = content
        return location

    def send(self) -> CutFeed:
        """The whole workload as a feed."""
        watermarks = [0]
        self._open(TOPIC)
        for batch in self._parts():
            self._take(self._changefeed.send(batch))
            watermarks.append(self._changefeed.watermark)
            if self._config.sends_watermarks and self._chance.random() < 0.15:
                self._take(self._changefeed.resend(self._chance.choice(watermarks[-3:])))
        self._take(self._changefeed.close())
        return CutFeed(
            name=f"{self._name} by {self._feed}",
            messages=tuple(self._messages),
            decode=self._decode,
            truth=typed_truth(self._name),
            watermark=self._changefeed.watermark if self._config.sends_watermarks else None,
            sources=self._sources,
            topics=feed_topics(self._config),
        )

    def _parts(self) -> Iterator[pa.RecordBatch]:
        """The changes, cut after each watermark as a sender gets them."""
        for batch in source(self._name).batches():
            marks = pc.indices_nonzero(pc.equal(batch["kind"], "watermark")).to_pylist()
            ends = dict.fromkeys([0, *(mark + 1 for mark in marks), batch.num_rows])
            yield from (batch.slice(start, end - start) for start, end in pairwise(ends))

    def _open(self, topic: str) -> None:
        for partition in range(self._feed.partitions):
            self._sources.setdefault((topic, partition), len(self._messages))

    def _take(self, messages: pa.RecordBatch) -> None:
        for row in messages.to_pylist():
            topic = row["topic"] or TOPIC
            self._open(topic)
            at = topic, row["partition"]
            offset = self._offsets[at] = self._offsets.get(at, -1) + 1
            self._messages.append(
                Message(len(self._messages), *at, offset, row["key"], row["value"])
            )

    def _decode(self, part: Sequence[Message]) -> pa.Table:
        batch = decode_batch(
            self._feed.protocol,
            pa.array([message.key for message in part], pa.binary()),
            pa.array([message.value for message in part], pa.binary()),
            topics=pa.array([message.topic for message in part], pa.string()),
            partitions=pa.array([message.partition for message in part], pa.int32()),
            offsets=pa.array([message.offset for message in part], pa.int64()),
            encoding=self._feed.options.get("encoding_format"),
            compression=self._feed.options.get("compression"),
            claim_check=self._objects.__getitem__,
        )
        return pa.Table.from_batches([mark_moves(batch)])
