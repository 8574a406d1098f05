"""The gate: what watermarks release, what they hold, and what has come before."""

import json
from datetime import timedelta

import pyarrow as pa
import pytest

from tests.support.changes import batch, change, ddl, places, row, table, watermark
from tidegate.changefeed.receive.gate import MAX_JUMP, Gate, Source
from tidegate.changefeed.receive.topic_use import TopicUse
from tidegate.model.tso import tso_from_ms
from tidegate.sql.ddl_names import DdlId

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
    parts = found.release().split(batch(*FEED))
    assert places(parts.released) == ["0/0", "0/1", "0/2"]
    assert places(parts.held) == ["1/0", "1/1"]
    assert places(parts.redelivered) == []


def test_nothing_is_released_while_a_partition_is_silent():
    found = gate(3)
    found.observe(batch(*FEED))
    assert places(found.release().split(batch(*FEED)).released) == []


def test_what_is_below_the_applied_timestamp_is_a_redelivery():
    found = gate()
    found.observe(batch(*FEED))
    found.mark_applied(10)
    parts = found.release().split(batch(*FEED))
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
    assert len(places(applied_at_ten().release().split(table(*AT_TEN)).released)) == 5


def test_after_a_ddl_at_that_timestamp_rows_of_its_table_are_too_late():
    found = applied_at_ten(DdlId(10, "d", "a", "ALTER"), tables=[("d", "old")])
    parts = found.release().split(table(*AT_TEN))
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
    parts = found.release().split(table(again, late))
    assert (places(parts.redelivered), places(parts.released)) == (["0/7"], ["0/8"])


def test_after_a_ddl_of_a_database_rows_of_all_its_tables_are_too_late():
    found = applied_at_ten(DdlId(10, "d", "", "DROP DATABASE d"))
    assert places(found.release().split(table(*AT_TEN)).redelivered) == ["0/0", "0/1", "0/2"]


def test_a_ddl_that_was_applied_is_a_redelivery_however_it_is_spelled():
    found = applied_at_ten(DdlId(10, "d", "t_old", "ALTER TABLE `t` RENAME AS `t_old`"))
    again = ddl("RENAME TABLE `d`.`t` TO `d`.`t_old`", 10, "0/7")
    other = ddl("RENAME TABLE `d`.`u` TO `d`.`u_old`", 10, "0/8")
    parts = Gate.from_json(found.to_json()).release().split(table(again, other))
    assert (places(parts.redelivered), places(parts.released)) == (["0/7"], ["0/8"])


def test_a_ddl_before_the_applied_timestamp_forbids_nothing():
    found = applied_at_ten(DdlId(9, "d", "a", "ALTER"), tables=[("d", "b")])
    assert len(places(found.release().split(table(*AT_TEN)).released)) == 5


def test_masks_are_as_long_as_the_batch():
    masks = gate().release().masks(batch(*FEED))
    assert [len(mask) for mask in (masks.released, masks.held, masks.redelivered)] == [9, 9, 9]
    assert masks.held.to_pylist() == [True] * 5 + [False] * 4


@pytest.mark.parametrize("empty", [batch(), table(), pa.Table.from_batches([], batch().schema)])
def test_nothing_comes_of_nothing(empty):
    found = applied_at_ten(DdlId(10, "d", "a", "ALTER"))
    assert found.observe(empty) == 10
    assert found.release().split(empty).released.num_rows == 0


def test_tables_of_many_chunks_are_as_good_as_one():
    found = applied_at_ten(DdlId(10, "d", "a", "ALTER"))
    chunked = pa.Table.from_batches([batch(entry) for entry in AT_TEN])
    assert found.release().split(chunked).redelivered.to_pylist() == (
        found.release().split(table(*AT_TEN)).redelivered.to_pylist()
    )


# --- feeds without watermarks ---------------------------------------------------------------------


def test_a_feed_with_watermarks_is_consistent_by_snapshots():
    assert gate().consistency == "snapshot"


def test_a_feed_without_watermarks_says_so_and_releases_everything():
    found = gate(watermarks=False)
    parts = found.release().split(batch(*FEED))
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
    assert places(again.release().split(late).redelivered) == ["0/1", "0/0"]


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


# --- topics in use --------------------------------------------------------------------------------


def two_topics(**use):
    found = Gate([("t", 0), ("u", 0)])
    found.topics = TopicUse(**use)
    return found


def of(topic, event):
    return event | {"topic": topic}


def test_a_retired_topic_does_not_hold_the_gate():
    found = two_topics()
    assert found.observe(batch(watermark(10), of("u", watermark(4)))) == 4
    found.topics = TopicUse(retired=frozenset({"u"}))
    assert found.observe(batch()) == 10


def test_a_topic_that_comes_into_use_again_counts_again():
    found = two_topics(retired=frozenset({"u"}))
    assert found.observe(batch(watermark(10), of("u", watermark(4)))) == 10
    found.topics = TopicUse()
    assert found.observe(batch(watermark(30))) == 10
    assert found.observe(batch(of("u", watermark(25)))) == 25


@pytest.mark.parametrize(
    ("said", "resolved"),
    [
        ((), 10),
        ((of("u", ddl("CREATE VIEW v AS SELECT 1", 5)),), 10),  # its topic gets no watermarks
        ((of("u", change("error")),), 10),
        ((of("u", row("insert", 5)),), 0),
        ((of("u", watermark(7)),), 7),
    ],
)
def test_a_topic_that_no_known_table_dispatches_to_counts_once_it_speaks(said, resolved):
    found = two_topics(awaited=frozenset({"t"}))
    assert found.observe(batch(watermark(10), *said)) == resolved


def test_a_topic_that_a_known_table_dispatches_to_is_waited_for():
    found = two_topics(awaited=frozenset({"t", "u"}))
    assert found.observe(batch(watermark(10))) == 0
    assert found.silent == (Source("u", 0),)


def test_partitions_that_the_feed_does_not_write_to_are_not_waited_for():
    found = gate(4)
    found.partition_num = 2
    assert found.observe(batch(watermark(10, "0/0"), watermark(9, "1/0"))) == 9
    assert found.silent == ()
    assert (
        found.observe(batch(watermark(20, "0/1"), watermark(20, "1/1"), watermark(15, "3/0"))) == 15
    )


def test_what_a_partition_first_seen_later_sends_below_the_applied_timestamp_is_late():
    found = gate(1)
    found.observe(batch(watermark(10)))
    found.mark_applied(10)
    fresh = (row("insert", 5, "1/0"), watermark(20, "1/1"), row("insert", 15, "1/2"))
    found.observe(batch(*fresh, watermark(20)))
    parts = found.release().split(batch(*fresh, row("insert", 5, "0/1")))
    assert places(parts.late) == ["1/0"]
    assert places(parts.released) == ["1/2"]
    assert places(parts.redelivered) == ["0/1"]
    assert places(parts.due) == ["1/0", "1/2"]


def test_rows_of_a_retired_topic_beyond_its_own_watermark_are_late():
    found = two_topics(retired=frozenset({"u"}))
    found.observe(batch(watermark(10), of("u", watermark(4))))
    found.mark_applied(10)
    found = Gate.from_json(found.to_json())
    rows = [of("u", row("insert", ts, f"0/{ts}")) for ts in (3, 4, 5, 10, 11)]
    parts = found.release().split(table(*rows))
    assert places(parts.redelivered) == ["0/3", "0/4"]
    assert places(parts.late) == ["0/5", "0/10"]
    assert places(parts.held) == ["0/11"]
    assert found.watermark_of(("u", 0)) == 4
    assert found.watermark_of(("v", 0)) == 0


def test_a_ddl_that_was_applied_is_a_redelivery_whichever_partition_repeats_it():
    found = two_topics(retired=frozenset({"u"}))
    found.observe(batch(watermark(10), of("u", watermark(4))))
    found.mark_applied(10, [DdlId(10, "d", "a", "ALTER")])
    parts = found.release().split(table(of("u", ddl("ALTER", 10)), of("u", row("insert", 10))))
    assert parts.redelivered["kind"].to_pylist() == ["ddl"]
    assert parts.late["kind"].to_pylist() == ["insert"]


def test_a_late_ddl_that_was_dealt_with_is_applied():
    gate = Gate()
    gate.mark_applied(20)
    gate.note_applied(
        [DdlId(20, "d", "t", "TRUNCATE TABLE t"), DdlId(19, "d", "u", "DROP TABLE u")]
    )
    assert gate.has_applied(DdlId(20, "d", "t", "TRUNCATE TABLE `d`.`t`"))
    assert len(gate.applied_ddl) == 1


def test_statements_of_a_topic_count_as_applied_up_to_the_last_that_any_partition_brought():
    found = gate(2)
    found.observe(batch(ddl("ALTER", 5, "0/0"), watermark(10, "0/1"), watermark(10, "1/0")))
    assert found.statements_of("t") == 0
    found.mark_applied(10)
    found.add_partitions([("t", 2), ("u", 0)])
    found = Gate.from_json(found.to_json())
    assert (found.statements_of("t"), found.statements_of("u")) == (5, 0)


def test_late_rows_are_measured_by_the_watermarks_of_the_last_step():
    found = gate(2)
    found.observe(batch(watermark(10, "0/0"), watermark(12, "1/0")))
    found.mark_applied(10)
    found.observe(batch(watermark(30, "1/1")))
    assert found.watermark_of(("t", 1)) == 12
    found.mark_applied(10)
    assert found.watermark_of(("t", 1)) == 30


def test_the_topics_in_use_survive_a_restart():
    found = two_topics(
        retired=frozenset({"u"}),
        awaited=frozenset({"t"}),
        homes={("d", "a"): "t"},
        shared=frozenset({"s"}),
    )
    found.partition_num = 3
    found.unreadable = {"x": 2}
    again = Gate.from_json(found.to_json())
    assert (again.topics, again.partition_num, again.unreadable) == (found.topics, 3, {"x": 2})
    assert again.to_json() == found.to_json()


def test_a_state_from_before_topics_could_retire_is_read():
    state = json.loads(two_topics().to_json())
    for name in ("topics", "partitionNum", "unreadable"):
        del state[name]
    state |= {"partitions": [["t", 0, 10, None], ["u", 0, 0, None]], "appliedTs": 10}
    found = Gate.from_json(json.dumps(state))
    assert (found.watermark_of(("t", 0)), found.topics) == (10, TopicUse())
    assert found.silent == (Source("u", 0),)


# --- a load ---------------------------------------------------------------------------------------


def loaded(ts, **settings):
    found = gate(1, **settings)
    found.mark_loaded(ts)
    return found


def test_a_load_has_all_changes_up_to_its_instant_whichever_partition_brings_them():
    found = loaded(20)
    events = batch(
        row("insert", 19, "0/0"),
        row("insert", 20, "0/1"),
        row("insert", 21, "0/2"),
        row("insert", 20, "9/0"),
        row("insert", 22, "9/1"),
    )
    found.observe(batch(watermark(30, "0/3"), watermark(30, "9/2")))
    split = found.release().split(events)
    assert places(split.released) == ["0/2", "9/1"]
    assert places(split.redelivered) == ["0/0", "0/1", "9/0"]
    assert not split.late.num_rows


def test_the_instant_of_a_load_is_not_released_once_more():
    again = loaded(20).release(30).again
    assert again.above >= again.up_to
    found = gate(1)
    found.mark_applied(20)
    assert (found.release(30).again.above, found.release(30).again.up_to) == (19, 20)


def test_a_statement_at_the_instant_of_a_load_is_done():
    found = loaded(20)
    found.observe(batch(watermark(30, "0/3")))
    events = batch(ddl("ALTER TABLE a ADD c INT", 20), ddl("ALTER TABLE a ADD e INT", 21, "0/1"))
    assert places(found.release().split(events).released) == ["0/1"]


def test_after_a_load_a_partition_that_was_behind_is_late_from_the_load_on():
    found = loaded(20)
    found.observe_watermark(("t", 0), 40)
    found.mark_applied(40)
    assert found.watermark_of(("t", 7)) == 20
    split = found.release().split(
        batch(row("insert", 20, "7/0"), row("insert", 21, "7/1"), row("insert", 40, "7/2"))
    )
    assert places(split.late) == ["7/1", "7/2"]
    assert places(split.redelivered) == ["7/0"]


def test_without_watermarks_a_load_still_passes_over_what_it_has():
    split = (
        loaded(20, watermarks=False)
        .release()
        .split(batch(row("insert", 20, "0/0"), row("insert", 21, "0/1")))
    )
    assert (places(split.released), places(split.redelivered)) == (["0/1"], ["0/0"])


def test_a_load_survives_as_json_and_comes_before_all_changes():
    found = Gate.from_json(loaded(20).to_json())
    assert (found.loaded_ts, found.applied_ts) == (20, 20)
    found.mark_applied(30)
    with pytest.raises(ValueError, match="before all changes"):
        found.mark_loaded(40)
