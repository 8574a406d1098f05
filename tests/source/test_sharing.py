"""Messages of a round, shared among partitions and tasks."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.source.consumption import OffsetRange
from tidegate.source.sharing import MOST_RANGES, SMALLEST_SPLIT, shares, splits

BACKLOGS = st.lists(st.integers(0, 10**6), min_size=1, max_size=40).map(
    lambda counts: {("t", number): count for number, count in enumerate(counts)}
)


@given(BACKLOGS, st.none() | st.integers(1, 10**6))
def test_a_round_takes_what_the_limit_allows_and_of_every_partition(backlog, limit):
    taken = shares(backlog, limit)
    total = sum(backlog.values())
    assert set(taken) == set(backlog)
    assert sum(taken.values()) == (total if limit is None else min(limit, total))
    assert all(0 <= taken[place] <= backlog[place] for place in backlog)
    if limit is None or limit >= 2 * len(backlog):
        assert all(taken[place] for place in backlog if backlog[place])


@given(
    st.lists(st.integers(1, 300_000), max_size=60),
    st.integers(1_000, 300_000),
    st.integers(1, 16),
)
def test_splits_have_every_message_once_within_their_bounds(lengths, most, tasks):
    ranges = [OffsetRange("t", n, 7, 7 + length) for n, length in enumerate(lengths)]
    groups = splits(ranges, most, tasks)
    joined = {}
    for group in groups:
        assert sum(each.end - each.start for each in group) <= most
        assert len({each.place for each in group}) == len(group) <= MOST_RANGES
        for each in group:
            assert each.start == joined.get(each.place, 7) < each.end
            joined[each.place] = each.end
    assert joined == {each.place: each.end for each in ranges}


def test_short_ranges_are_read_together_and_long_ones_are_cut():
    short = [OffsetRange(f"t{n}", 0, 0, 3) for n in range(1_200)]
    assert [len(group) for group in splits(short, 200_000, 4)] == [500, 500, 200]
    (long,) = [[OffsetRange("t", 0, 0, 4 * SMALLEST_SPLIT)]]
    assert len(splits(long, 200_000, 4)) == 4
    assert len(splits(long, 200_000, 1)) == 1
    assert len(splits(long, SMALLEST_SPLIT // 2, 1)) == 8
