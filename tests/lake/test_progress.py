"""The counters of a run agree with each other, whatever the order in which Spark reports."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.lake.format import LakePlace
from tidegate.lake.run import Feed, MirrorRun, Progress

FEED: Any = Feed(changes=None, identity={})  # type: ignore[arg-type]


def reported(batch: int, messages: int, milliseconds: int) -> Any:
    """A batch as Spark's JVM reports it."""
    text = json.dumps(
        {
            "id": "6f2e2f3e-0000-4000-8000-000000000000",
            "runId": "6f2e2f3e-0000-4000-8000-000000000001",
            "name": None,
            "timestamp": f"2026-11-16T00:00:{batch:02}.000Z",
            "batchId": batch,
            "batchDuration": milliseconds,
            "numInputRows": messages,
            "inputRowsPerSecond": 0.0,
            "processedRowsPerSecond": 0.0,
            "durationMs": {"triggerExecution": milliseconds},
            "stateOperators": [],
            "sources": [],
            "sink": {"description": "", "numOutputRows": -1, "metrics": {}},
            "observedMetrics": {},
        }
    )
    return SimpleNamespace(json=lambda: text)


class Running(MirrorRun):
    """A run whose mirror applies each batch before Spark has reported it."""

    def __init__(self, batches: list[tuple[int, int]]) -> None:
        context = SimpleNamespace(
            _jvm=None,
            _jsc=SimpleNamespace(hadoopConfiguration=lambda: None),
            master="local[1]",
        )
        lake: Any = SimpleNamespace(
            spark=SimpleNamespace(sparkContext=context),
            place=LakePlace("lake"),
            format_name="iceberg",
        )
        self.seen: list[tuple[int, int, float]] = []
        super().__init__(lake, FEED, on_progress=self._see)
        self._batches = batches
        self._reports: list[Any] = []
        self._query = SimpleNamespace(
            _jsq=SimpleNamespace(recentProgress=lambda: self._reports),
            exception=lambda: None,
            isActive=False,
            status={"isTriggerActive": False},
        )

    def _see(self, progress: Progress) -> None:
        self.seen.append((progress.messages, progress.rows, progress.ingest_seconds))

    def _open(self, stack: Any) -> Any:
        return SimpleNamespace(settle=lambda: None)

    def _start(self, mirror: Any, interval: float | None, stack: Any) -> Any:
        return self._query

    def _step(self, mirror: Any) -> bool:
        if not self._batches:
            return False
        messages, milliseconds = self._batches.pop(0)
        self.progress.rows += messages
        self._reports.append(reported(len(self._reports), messages, milliseconds))
        return True


def test_rows_are_never_shown_without_the_messages_they_came_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "tidegate.lake.run.Upkeep", lambda *_, **__: SimpleNamespace(after_step=lambda mirror: None)
    )
    run = Running([(2052, 3000), (0, 500), (10, 1000)])
    run.forever(lambda: len(run.seen) == 4, interval=0.0)
    assert run.seen == [(2052, 2052, 3.0), (2052, 2052, 3.0), (2062, 2062, 4.0), (2062, 2062, 4.0)]
