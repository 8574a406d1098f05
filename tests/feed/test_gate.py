"""The gate: what watermarks release, what they hold, and what has come before."""

from datetime import timedelta

import pyarrow as pa
import pytest

from tests.support.changes import batch, change, ddl, places, row, table, watermark
from tidegate.feed.gate import MAX_JUMP, DdlId, Gate, Source
from tidegate.model.tso import tso_from_ms

DAY = tso_from_ms(24 * 3600 * 1000)
NOW = 20_000 * DAY  # in 2024


def gate(partitions=2, **settings):
    return Gate([("t", number) for number in range(partitions)], **settings)


def sources(*numbers):
    return tuple(Source("t", number) for number in numbers)


# --- watermarks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("marks", "resolved"),
    [
        ((), 0),
        ((watermark(10, "0/0"),), 0),  # partition 1 is silent
        ((watermark(10, "0/0"), watermark(7, "1/0")), 7),
        ((watermark(10, "0/0"), watermark(7, "1/0"), watermark(12, "1/1")), 10),
        ((watermark(10, "0/0"), watermark(7, "1/0"), watermark(3, "1/1")), 7),
    ],
)
def test_resolved_is_the_lowest_of_the_highest_watermarks(marks, resolved):
    found = gate()
    assert found.observe(batch(*marks)) == resolved
    assert found.resolved_ts == resolved


def test_partitions_that_are_silent_so_far_are_named():
    found = gate(3)
    found.observe(batch(watermark(10, "1/0")))
    assert found.silent == sources(0, 2)
    assert found.watermarks == dict(zip(sources(0, 1, 2), (0, 10, 0), strict=True))


def test_a_watermark_that_goes_back_is_ignored_and_counted():
    found = gate(1)
    found.observe(batch(watermark(10), watermark(9), watermark(10), watermark(4)))
    assert (found.resolved_ts, found.went_back) == (10, 2)


def test_a_partition_seen_first_in_a_batch_counts_from_then_on():
    found = gate(1)
    assert found.observe(batch(watermark(10))) == 10
    assert found.observe(batch(row("insert", 11, "5/0"), watermark(20))) == 10
    assert found.observe(batch(watermark(15, "5/1"))) == 15


def test_resolved_never_goes_back_when_partitions_are_added():
    found = gate(1)
    found.observe(batch(watermark(10)))
    found.add_partitions([("t", 1), ("t", 0)])
    assert found.resolved_ts == 10
    assert found.observe(batch(watermark(20))) == 10
    assert found.observe(batch(watermark(8, "1/0"))) == 10
    assert found.observe(batch(watermark(18, "1/1"))) == 18


def test_partitions_of_two_topics_are_not_the_same():
    found = Gate([("t", 0), ("u", 0)])
    found.observe_watermark(("t", 0), 10)
    assert found.resolved_ts == 0
    assert found.observe_watermark(("u", 0), 4) == 4


# --- jumps ----------------------------------------------------------------------------------------


def test_a_watermark_years_ahead_is_reported_and_not_obeyed():
    found = gate(1)
    found.observe(batch(watermark(NOW), watermark(NOW + 400 * DAY)))
    assert found.resolved_ts == NOW
    assert [(jump.watermark, jump.reference) for jump in found.jumps] == [(NOW + 400 * DAY, NOW)]
    assert "partition 0 of topic 't' is far ahead" in str(found.jumps[0])
    assert "2024-10-04" in str(found.jumps[0])


def test_a_feed_goes_on_after_a_damaged_watermark():
    found = gate(1)
    found.observe(batch(watermark(NOW), watermark(2**62), watermark(NOW + DAY)))
    assert (found.resolved_ts, found.went_back, found.jump_count) == (NOW + DAY, 0, 1)


def test_a_jump_is_obeyed_when_the_next_watermark_confirms_it():
    found = gate(1)
    later = NOW + 800 * DAY
    assert found.observe(batch(watermark(NOW), watermark(later))) == NOW
    assert found.observe(batch(watermark(later + 1))) == later + 1
    assert found.jump_count == 1


def test_a_jump_is_not_confirmed_by_a_further_one():
    found = gate(1)
    marks = (NOW, NOW + 400 * DAY, NOW + 800 * DAY, NOW + 1200 * DAY)
    assert found.observe(batch(*map(watermark, marks))) == NOW
    assert found.jump_count == 3


def test_a_partition_may_be_as_far_as_another_one_is():
    found = gate(2)
    found.observe(batch(watermark(NOW, "0/0"), watermark(NOW + DAY, "1/0")))
    assert (found.resolved_ts, found.jump_count) == (NOW, 0)


def test_the_first_watermark_is_measured_by_where_the_feed_started():
    assert gate(1).observe(batch(watermark(2**62))) == 2**62
    found = gate(1, start_ts=NOW)
    assert found.observe(batch(watermark(2**62))) == 0
    assert "2527-06-23" in str(found.jumps[0])


def test_how_far_is_too_far_is_a_setting():
    found = gate(1, max_jump=timedelta(hours=1))
    assert found.observe(batch(watermark(NOW), watermark(NOW + DAY))) == NOW


def test_reports_of_jumps_are_bounded():
    found = gate(1)
    found.observe(batch(watermark(NOW)))
    for number in range(300):
        found.observe(batch(watermark(NOW + (1 + number % 2) * 1000 * DAY)))
        found.observe(batch(watermark(NOW)))
    assert (len(found.jumps), found.jump_count) == (100, 300)


# --- what is released -----------------------------------------------------------------------------

FEED = (
    row("insert", 5, "0/0"),
    row("update", 10, "0/1"),
    row("delete", 11, "1/0"),
    ddl("ALTER", 10, "0/2"),
    ddl("ALTER", 12, "1/1"),
    watermark(10, "0/3"),
    watermark(10, "1/2"),
    change("schema", None, "0/4"),
    change("error", None, "0/5"),
)


def test_changes_up_to_the_resolved_timestamp_are_released():
    found = gate()
    found.observe(batch(*FEED))
    parts = found.split(batch(*FEED))
    assert places(parts.released) == ["0/0", "0/1", "0/2"]
    assert places(parts.held) == ["1/0", "1/1"]
    assert places(parts.redelivered) == []


def test_nothing_is_released_while_a_partition_is_silent():
    found = gate(3)
    found.observe(batch(*FEED))
    assert places(found.split(batch(*FEED)).released) == []


def test_what_is_below_the_applied_timestamp_is_a_redelivery():
    found = gate()
    found.observe(batch(*FEED))
    found.mark_applied(10)
    parts = found.split(batch(*FEED))
    assert places(parts.redelivered) == ["0/0"]
    assert places(parts.released) == ["0/1", "0/2"]


def test_an_applied_timestamp_never_goes_back():
    found = gate()
    found.mark_applied(10)
    found.mark_applied(9)
    assert found.applied_ts == 10


AT_TEN = (
    row("insert", 10, "0/0", "a"),
    row("insert", 10, "0/1", "b"),
    row("insert", 10, "0/2", "old"),
    ddl("ALTER", 10, "0/3", "a"),
    ddl("OTHER", 10, "0/4", "a"),
)


def applied_at_ten(*ddls, tables=()):
    found = gate(1)
    found.observe(batch(watermark(10)))
    found.mark_applied(10, ddls, tables)
    return found


def test_a_late_change_at_the_applied_timestamp_is_still_released():
    assert len(places(applied_at_ten().split(table(*AT_TEN)).released)) == 5


def test_after_a_ddl_at_that_timestamp_rows_of_its_table_are_too_late():
    found = applied_at_ten(DdlId(10, "d", "a", "ALTER"), tables=[("d", "old")])
    parts = found.split(table(*AT_TEN))
    assert places(parts.released) == ["0/1", "0/4"]
    assert places(parts.redelivered) == ["0/0", "0/2", "0/3"]


def test_a_row_that_was_applied_at_that_timestamp_is_a_redelivery():
    """Else the delete of a key could come again, be applied, and its insert then be too old."""
    first = (row("delete", 10, "0/0", before=["1"]), row("insert", 10, "0/1", after=["1"]))
    found = gate(1)
    found.observe(batch(watermark(10)))
    found.mark_applied(10, changes=table(*first, row("insert", 9, "0/2", after=["2"])))
    found = Gate.from_json(found.to_json())
    again = row("delete", 10, "0/7", before=["1"])
    late = row("insert", 10, "0/8", after=["2"])
    parts = found.split(table(again, late))
    assert (places(parts.redelivered), places(parts.released)) == (["0/7"], ["0/8"])


def test_after_a_ddl_of_a_database_rows_of_all_its_tables_are_too_late():
    found = applied_at_ten(DdlId(10, "d", "", "DROP DATABASE d"))
    assert places(found.split(table(*AT_TEN)).redelivered) == ["0/0", "0/1", "0/2"]


def test_a_ddl_that_was_applied_is_a_redelivery_however_it_is_spelled():
    found = applied_at_ten(DdlId(10, "d", "t_old", "ALTER TABLE `t` RENAME AS `t_old`"))
    again = ddl("RENAME TABLE `d`.`t` TO `d`.`t_old`", 10, "0/7")
    other = ddl("RENAME TABLE `d`.`u` TO `d`.`u_old`", 10, "0/8")
    parts = Gate.from_json(found.to_json()).split(table(again, other))
    assert (places(parts.redelivered), places(parts.released)) == (["0/7"], ["0/8"])


def test_a_ddl_before_the_applied_timestamp_forbids_nothing():
    found = applied_at_ten(DdlId(9, "d", "a", "ALTER"), tables=[("d", "b")])
    assert len(places(found.split(table(*AT_TEN)).released)) == 5


def test_masks_are_as_long_as_the_batch():
    masks = gate().masks(batch(*FEED))
    assert [len(mask) for mask in (masks.released, masks.held, masks.redelivered)] == [9, 9, 9]
    assert masks.held.to_pylist() == [True] * 5 + [False] * 4


@pytest.mark.parametrize("empty", [batch(), table(), pa.Table.from_batches([], batch().schema)])
def test_nothing_comes_of_nothing(empty):
    found = applied_at_ten(DdlId(10, "d", "a", "ALTER"))
    assert found.observe(empty) == 10
    assert found.split(empty).released.num_rows == 0


def test_tables_of_many_chunks_are_as_good_as_one():
    found = applied_at_ten(DdlId(10, "d", "a", "ALTER"))
    chunked = pa.Table.from_batches([batch(entry) for entry in AT_TEN])
    assert found.split(chunked).redelivered.to_pylist() == (
        found.split(table(*AT_TEN)).redelivered.to_pylist()
    )


# --- feeds without watermarks ---------------------------------------------------------------------


def test_a_feed_with_watermarks_is_consistent_by_snapshots():
    assert gate().consistency == "snapshot"


def test_a_feed_without_watermarks_says_so_and_releases_everything():
    found = gate(watermarks=False)
    parts = found.split(batch(*FEED))
    assert found.consistency == "eventual"
    assert found.resolved_ts == 0
    assert places(parts.released) == ["0/0", "0/1", "1/0", "0/2", "1/1"]
    assert (parts.held.num_rows, parts.redelivered.num_rows) == (0, 0)


# --- restarts -------------------------------------------------------------------------------------


def test_the_state_survives_a_restart():
    found = gate(3, start_ts=NOW, max_jump=timedelta(days=400))
    found.observe(batch(watermark(NOW, "0/0"), watermark(NOW + 1, "1/0"), watermark(NOW, "2/0")))
    found.observe(batch(watermark(NOW - 1, "0/1"), watermark(NOW + 500 * DAY, "2/1")))
    found.mark_applied(NOW, [DdlId(NOW, "d", "a", "ALTER é")], [("d", "b")])
    again = Gate.from_json(found.to_json())
    assert again.to_json() == found.to_json()
    confirming = batch(watermark(NOW + 500 * DAY, f"{2}/2"))
    assert again.observe(confirming) == found.observe(confirming)
    assert again.watermarks == found.watermarks
    late = table(
        row("insert", NOW, "0/1", "b"), ddl("ALTER é", NOW), row("insert", NOW, "0/1", "c")
    )
    assert places(again.split(late).redelivered) == ["0/1", "0/0"]


def test_to_read_again_a_gate_forgets_watermarks_beyond_what_was_applied():
    found = gate(2)
    found.observe(batch(watermark(30, "0/0"), watermark(20, "1/0")))
    found.mark_applied(10)
    again = found.rewound()
    assert (again.resolved_ts, again.applied_ts) == (10, 10)
    assert set(again.watermarks.values()) == {10}
    assert again.observe(batch(watermark(25, "1/0"))) == 10
    assert found.resolved_ts == 20


def test_an_eventual_gate_stays_one():
    assert Gate.from_json(gate(watermarks=False).to_json()).consistency == "eventual"


def test_a_state_of_another_version_is_refused():
    with pytest.raises(ValueError, match="another version"):
        Gate.from_json('{"version":0}')


def test_a_year_is_no_jump():
    assert timedelta(days=365) < MAX_JUMP
