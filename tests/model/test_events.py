"""Events for people."""

import dataclasses

import pytest

from tidegate.model.events import (
    BadMessage,
    Ddl,
    Delete,
    EventFlag,
    Insert,
    Kind,
    Position,
    RowChange,
    SchemaSeen,
    Update,
    Watermark,
)
from tidegate.model.schema import TableSchema

ROW = {"commit_ts": 429918007904436226, "database": "shop", "table": "orders", "keys": ("id",)}
SHOP = TableSchema(database="shop", table="orders")
EVENTS = [
    (Insert(**ROW, after={"id": "1"}), "insert"),
    (Update(**ROW, after={"id": "1"}, before={"id": "1"}), "update"),
    (Delete(**ROW, before={"id": "1"}), "delete"),
    (Ddl(commit_ts=1, query="DROP TABLE t", type="ERASE", code=4), "ddl"),
    (Watermark(commit_ts=1), "watermark"),
    (SchemaSeen(database="shop", table="orders", schema=SHOP), "schema"),
    (BadMessage(code="truncated", reason="the value ends early"), "error"),
]


@pytest.mark.parametrize(("event", "kind"), EVENTS)
def test_an_event_knows_its_kind_by_the_word_of_the_change_batch(event, kind):
    assert event.kind == kind


def test_there_is_one_kind_of_event_for_every_word():
    assert {event.kind for event, _ in EVENTS} == set(Kind)


@pytest.mark.parametrize(("event", "_kind"), EVENTS)
def test_an_event_is_frozen_and_has_no_other_members(event, _kind):
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.position = Position()
    assert not hasattr(event, "__dict__")


def test_inserts_updates_and_deletes_are_row_changes():
    assert [isinstance(event, RowChange) for event, _ in EVENTS] == [True] * 3 + [False] * 4


def test_the_key_is_that_of_the_new_row_or_of_the_deleted_one():
    after, before = {"id": "2", "v": "b"}, {"id": "1", "v": "a"}
    assert Insert(**ROW, after=after).key == {"id": "2"}
    assert Update(**ROW, after=after, before=before).key == {"id": "2"}
    assert Delete(**ROW, before=before).key == {"id": "1"}


def test_a_column_not_carried_before_is_not_taken_for_null():
    update = Update(
        **ROW,
        after={"id": "1", "was_null": "x", "not_carried": "y", "same": "z"},
        before={"id": "1", "was_null": None, "same": "z"},
    )
    assert update.changed == ("was_null",)


def test_the_flags_have_the_bits_of_the_change_batch():
    assert [flag.value for flag in EventFlag] == [1, 2, 4, 8, 16, 32, 64]


def test_a_position_names_topic_partition_offset_and_event():
    assert str(Position("t", 2, 7, 1)) == "t[2]@7#1"
    assert Position("t", 0, 9) < Position("t", 1, 0) < Position("t", 1, 1)


def test_a_bad_message_becomes_an_error_with_the_same_facts():
    bad = BadMessage(
        position=Position("t", 2, 7), code="truncated", reason="it ends early", part="value", byte=5
    )
    error = bad.as_error()
    assert (error.topic, error.partition, error.offset) == ("t", 2, 7)
    assert (error.code, error.part, error.position) == ("truncated", "value", 5)
