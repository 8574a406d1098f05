"""What ingest reads from: a source plans splits on the driver and reads them in tasks.

A source is one of Kafka, capture files, or (later) TiCDC's storage sink. Planning is the driver's
work and touches no message; reading a split happens in any process, after any restart, and gives
the same messages again. A position is JSON: the changelog commits it together with the files that
hold what was read up to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

SourcePosition = Mapping[str, Any]
"""How far a source has been read, as a JSON object; `{}` is the beginning."""


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """What one round of ingest reads at most; None: no limit.

    `split_messages` and `split_bytes` bound what one task reads.
    """

    messages: int | None = None
    bytes: int | None = None
    split_messages: int = 200_000
    split_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class SourceSplit:
    """A part of a source that one task reads; JSON only, so that it can be sent anywhere."""

    place: Mapping[str, Any]
    messages: int | None = None
    """About how many messages it has, where that is known."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What to read next.

    `position` is the one reached when all splits are read. `partitions` are all partitions of the
    source, silent ones included. `behind` counts the messages that remain after this round.
    `missing` names topics that were read before and no longer exist. `pending` are the partitions
    with messages after the position that was planned from, `left` those with messages after this
    round.
    """

    splits: tuple[SourceSplit, ...]
    position: SourcePosition
    partitions: frozenset[tuple[str, int]] = frozenset()
    pending: frozenset[tuple[str, int]] = frozenset()
    left: frozenset[tuple[str, int]] = frozenset()
    behind: int = 0
    missing: tuple[str, ...] = ()


class SplitReader(ABC):
    """Reads splits in a task: what is pickled and sent to the workers."""

    @abstractmethod
    def read(self, split: SourceSplit) -> Iterator[pa.RecordBatch]:
        """The messages of a split, in batches of CAPTURE_SCHEMA, in order.

        SourceError where they cannot be read. No message is left out and none is repeated.
        """


class Source(ABC):
    """Where the messages of a feed are."""

    @property
    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """What must stay the same for the life of a lake, as JSON; known before anything is read.

        A Kafka topic's id is not here but in the position: a topic that was deleted and created
        again is refused by `plan`.
        """

    @abstractmethod
    def plan(self, position: SourcePosition, limits: RoundLimits) -> RoundPlan:
        """What comes after a position. SourceError where messages after it are lost."""

    @property
    @abstractmethod
    def reader(self) -> SplitReader:
        """What reads the splits."""

    def head(self, count: int) -> list[tuple[bytes | None, bytes | None]]:
        """The first messages (key, value), to detect the protocol from."""
        raise NotImplementedError

    def observe(self, messages: int, size: int) -> None:  # noqa: B027
        """Learns what a round has read: how many messages, of how many bytes.

        Where a plan cannot know the size of messages, it goes by those read before.
        """

    def close(self) -> None:  # noqa: B027
        """Lets go of connections."""
