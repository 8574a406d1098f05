"""Golden files as feeds that can be cut, with the truth of their scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa

from tests.model_check.cut_feeds import CutFeed, ExactModel, TypedTruth
from tests.model_check.sender import Message
from tests.support import corpus, truth
from tests.support.decoding import PROTOCOLS, offsets
from tidegate.model.types import MySQLType
from tidegate.wire import decode_batch
from tidegate.wire.batch.key_updates import mark_moves


class ScenarioModel:
    """The tables of a scenario, computed from its truth."""

    def __init__(self, scenario: str) -> None:
        self._events = truth.events(scenario)
        self._start()

    def _start(self) -> None:
        self._model = ExactModel()
        self._next = 0
        self._ts = 0

    def at(self, ts: int) -> ExactModel:
        """The tables at an instant; the next call changes them."""
        if ts < self._ts:
            self._start()
        self._ts = ts
        while self._next < len(self._events) and self._events[self._next].commit_ts <= ts:
            self._take(self._events[self._next])
            self._next += 1
        return self._model

    def _take(self, event: truth.Event) -> None:
        name = event.database or "", event.table or ""
        before, after = truth.mapping(event.before), truth.mapping(event.after)
        if event.kind == "ddl":
            self._model.run(event.query or "", name[0])
        elif event.kind == "delete":
            assert before is not None
            self._model.take(name, before)
        elif event.kind in truth.ROWS:
            assert after is not None
            self._model.put(name, after, before)


@lru_cache(maxsize=2)
def typed_truth(scenario: str, *, floats: bool) -> TypedTruth:
    """The truth of a scenario for comparing; without FLOAT columns unless `floats`."""
    return TypedTruth(ScenarioModel(scenario).at, () if floats else (MySQLType.FLOAT,))


def golden_feed(name: str) -> CutFeed:
    """A golden file as a feed."""
    variant = corpus.variant(name)
    plain = corpus.messages(name)
    messages = tuple(
        Message(at, "", message.partition, offset, message.key, message.value)  # type: ignore[arg-type]
        for at, (message, offset) in enumerate(zip(plain, offsets(plain), strict=True))
    )

    def decode(part: Sequence[Message]) -> pa.Table:
        batch = decode_batch(
            PROTOCOLS[variant.protocol],
            pa.array([message.key for message in part], pa.binary()),
            pa.array([message.value for message in part], pa.binary()),
            topics=pa.array([message.topic for message in part], pa.string()),
            partitions=pa.array([message.partition for message in part], pa.int32()),
            offsets=pa.array([message.offset for message in part], pa.int64()),
            encoding=variant.encoding,
            compression=variant.compression,
            claim_check=corpus.claim_check_loader(name),
        )
        return pa.Table.from_batches([mark_moves(batch)])

    marks = _watermarks(decode(messages))
    return CutFeed(
        name=name,
        messages=messages,
        decode=decode,
        # The bytes of FLOAT columns in Craft are spoiled by TiCDC itself.
        truth=typed_truth(variant.truth, floats=variant.protocol != "craft"),
        watermark=max(marks, default=None),
        sources=dict.fromkeys({("", message.partition) for message in messages}, 0),
    )


def _watermarks(table: pa.Table) -> list[int]:
    kinds, times = table["kind"].to_pylist(), table["commit_ts"].to_pylist()
    return [ts for kind, ts in zip(kinds, times, strict=True) if kind == "watermark"]
