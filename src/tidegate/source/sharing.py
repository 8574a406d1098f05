"""How a round's messages are shared: among partitions, and among the splits that tasks read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

from tidegate.source.consumption import OffsetRange
from tidegate.source.topics import TopicPlace

SMALLEST_SPLIT = 10_000
"""Messages that are worth a task of their own."""
MOST_RANGES = 500
"""Partitions that one task reads at once at most."""


def shares(backlog: Mapping[TopicPlace, int], limit: int | None) -> dict[TopicPlace, int]:
    """How many messages of each partition a round takes, at most `limit` in all.

    Half of the limit is shared in equal parts, so that no partition waits for others; the rest in
    proportion to the backlogs, so that partitions stay at about the same time.
    """
    total = sum(backlog.values())
    if limit is None or total <= limit:
        return dict(backlog)
    waiting = {place: count for place, count in backlog.items() if count}
    least = limit // 2 // len(waiting)
    taken = {place: min(count, least) for place, count in waiting.items()}
    left, rest = limit - sum(taken.values()), total - sum(taken.values())
    for place, count in waiting.items():
        taken[place] += (count - taken[place]) * left // rest
    # What rounding has left goes to the longest backlogs.
    left = limit - sum(taken.values())
    for place in sorted(waiting, key=lambda place: (taken[place] - waiting[place], place)):
        more = min(left, 1, waiting[place] - taken[place])
        taken[place] += more
        left -= more
    return {place: taken.get(place, 0) for place in backlog}


def split_size(total: int, most: int, tasks: int) -> int:
    """How many messages a split has at most, so that there are about `tasks` of them."""
    return max(1, min(most, max(SMALLEST_SPLIT, -(-total // tasks))))


def splits(ranges: Iterable[OffsetRange], most: int, tasks: int) -> list[list[OffsetRange]]:
    """Ranges for tasks: long ones are cut, short ones are read together.

    No split has more than `most` messages. There are about `tasks` splits, fewer where that would
    be less than SMALLEST_SPLIT messages each.
    """
    listed = list(ranges)
    total = sum(_length(each) for each in listed)
    wanted = split_size(total, most, tasks)
    groups: list[list[OffsetRange]] = []
    room = 0
    for piece in (piece for each in listed for piece in _cut(each, wanted)):
        length = _length(piece)
        # A task reads a partition from one place on.
        if room < length or len(groups[-1]) == MOST_RANGES or groups[-1][-1].place == piece.place:
            groups.append([])
            room = wanted
        groups[-1].append(piece)
        room -= length
    return groups


def _cut(whole: OffsetRange, most: int) -> list[OffsetRange]:
    """The range in equal parts of at most `most` messages."""
    count = -(-_length(whole) // most)
    marks = [whole.start + _length(whole) * number // count for number in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(marks)]


def _length(each: OffsetRange) -> int:
    assert each.end is not None
    return each.end - each.start
