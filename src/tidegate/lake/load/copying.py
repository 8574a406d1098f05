"""A load that no feed continues, or none yet: the place of the feed is taken by one of nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from tidegate.lake.job.run import Feed
from tidegate.source.base import (
    RoundLimits,
    RoundPlan,
    Source,
    SourcePosition,
    SourceSplit,
    SplitReader,
)
from tidegate.spark.decoding import Reading


class NoMessages(Source, SplitReader):
    """A source that never has anything."""

    @property
    def identity(self) -> Mapping[str, Any]:
        return {}

    def plan(self, position: SourcePosition, limits: RoundLimits) -> RoundPlan:
        return RoundPlan((), position)

    @property
    def reader(self) -> SplitReader:
        return self

    def read(self, split: SourceSplit) -> Iterator[pa.RecordBatch]:
        raise AssertionError("there is nothing to read")


def no_feed() -> Feed:
    """Nothing, so that a feed which is named later is the lake's."""
    return Feed(NoMessages(), Reading("open-protocol"), {}, sends_keyless=True)
