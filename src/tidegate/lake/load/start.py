"""Whether a feed has every change after the instant T of a load.

A changefeed that starts at S sends changes with commit_ts > S, so S ≤ T must hold, and no message
that is needed may have been deleted from its topic. TiCDC's API says S, or the user does; else the
first watermark of any partition proves it, since no watermark is below S, and so does any change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow.compute as pc

from tidegate.lake.changelog.changelog import Changelog, Offsets
from tidegate.lake.changelog.pending import FreshFiles
from tidegate.model import LakeError, SourceError, tso_to_datetime
from tidegate.upstream.changefeed_api import ChangefeedApi, ChangefeedState, check_start


class FeedStartsLater(LakeError):
    """Changes between the load and what the feed has are missing, or may be."""


@dataclass(frozen=True, slots=True)
class KnownStart:
    """Where a changefeed starts, by TiCDC's API or by the user's word."""

    ts: int
    changefeed: str = "ID"
    server: str = "URL"

    def check(self, load_ts: int) -> None:
        """Refuses a load before the start."""
        try:
            check_start(self.ts, load_ts, changefeed=self.changefeed, server=self.server)
        except LakeError as error:
            raise FeedStartsLater(*error.args) from None


def start_of(api: ChangefeedApi, changefeed: str | None, topic: str | None) -> KnownStart:
    """The start of a changefeed: the one named, or the only one that writes to the topic."""
    if changefeed is not None:
        states = [api.changefeed(changefeed)]
    else:
        states = [api.changefeed(each.id, each.namespace) for each in api.changefeeds()]
        if len(states) > 1:
            states = [each for each in states if topic is not None and _writes_to(each, topic)]
    if len(states) != 1 or states[0].start_ts is None:
        found = ", ".join(each.id for each in states) or "none"
        raise SourceError(
            f"TiCDC at {api.address}",
            f"which of its changefeeds this feed is of is not clear ({found})",
            "Name it with --changefeed-id; `cdc cli changefeed list` shows all",
        )
    (state,) = states
    assert state.start_ts is not None
    return KnownStart(state.start_ts, state.id, api.address)


def _writes_to(state: ChangefeedState, topic: str) -> bool:
    path = (state.sink_uri or "").partition("?")[0]
    return path.rpartition("/")[2] == topic


@dataclass(frozen=True, slots=True)
class FeedBeginning:
    """What a changelog has first of each partition: the offset, and the watermark if any.

    `change` is the lowest commit_ts of all changes and statements.
    """

    offsets: Mapping[tuple[str, int], int]
    watermarks: Mapping[tuple[str, int], int]
    change: int | None = None

    @classmethod
    def of(cls, changelog: Changelog) -> FeedBeginning:
        """Of all that was read of the feed so far."""
        fresh = FreshFiles()
        observed = changelog.now().narrowed(fresh, Offsets(), None).observe(Offsets())
        watermarks: dict[tuple[str, int], int] = {}
        for run in observed.runs:
            watermarks.setdefault((run.topic, run.partition), run.first)
        offsets: dict[tuple[str, int], int] = {}
        for file in fresh.files.values():
            for row in file.summary.sources.to_pylist():
                source = row["topic"], row["partition"]
                offsets[source] = min(row["first_offset"], offsets.get(source, 1 << 62))
        is_ddl = pc.equal(observed.events["kind"], "ddl")
        times = (
            pc.min(observed.groups["first_ts"]),
            pc.min(observed.events.filter(is_ddl)["commit_ts"]),
        )
        changes = [ts.as_py() for ts in times if ts.is_valid]
        return cls(offsets, watermarks, min(changes, default=None))

    def covers(self, load_ts: int, start: KnownStart | None) -> bool:
        """Whether the feed has all changes after a load; False: that is not known yet.

        FeedStartsLater where it has not, or where that cannot become known.
        """
        if start is not None:
            start.check(load_ts)
        for source, offset in self.offsets.items():
            first = self.watermarks.get(source)
            if offset > 0 and (first is None or first > load_ts):
                raise _deleted(source, load_ts)
        if start is not None:
            return bool(self.offsets)
        if self.change is not None and self.change <= load_ts:
            return True
        if not self.watermarks:
            return False
        if min(self.watermarks.values()) > load_ts:
            raise _unproven(min(self.watermarks.values()), load_ts)
        return True


def _deleted(source: tuple[str, int], load_ts: int) -> FeedStartsLater:
    topic, partition = source
    return FeedStartsLater(
        f"The first messages of partition {partition} of the topic {topic!r} were deleted, and the "
        f"oldest that is left is from after the load ({tso_to_datetime(load_ts):%Y-%m-%d %H:%M:%S} "
        "UTC), so changes between the two are missing",
        "Load again at the present, and raise the topic's retention.ms if the load takes long",
    )


def _unproven(first: int, load_ts: int) -> FeedStartsLater:
    return FeedStartsLater(
        f"The feed's first watermark is {first}, after the instant {load_ts} of the load, so "
        "changes between the two may be missing",
        "Say where the changefeed starts with --cdc http://host:8300 or --start-ts, or create it "
        f"again at the load's instant: cdc cli changefeed create --start-ts={load_ts} --sink-uri=…",
    )


NO_WATERMARKS = LakeError(
    "The feed has no watermarks, which would show that it starts before the load",
    "Say where the changefeed starts: --cdc http://host:8300, or --start-ts TSO (`cdc cli "
    "changefeed query` shows start_ts)",
)
