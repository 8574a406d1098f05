"""Schemas by version: from the beginning, from the middle, over renames, and what waits."""

import json

import pytest

from tests.support.changes import batch, change, row, table
from tidegate.changefeed.receive.schema_cache import SchemaCache, SchemaKey
from tidegate.model import Position, SchemaNotSeen, TableSchema


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def schema(version, name="a", *columns):
    made = [
        {"name": column, "dataType": {"mysqlType": "int"}, "nullable": True}
        for column in columns or ("id",)
    ]
    return {"schema": "d", "table": name, "version": version, "columns": made, "indexes": []}


def bootstrap(version, name="a", at="0/0"):
    document = json.dumps({"tableSchema": schema(version, name)})
    return change("schema", None, at, database="d", table=name, schema=document)


def ddl(commit_ts, after, before=None, at="0/0"):
    document = {"tableSchema": after} | ({"preTableSchema": before} if before else {})
    return row("ddl", commit_ts, at, after["table"], schema=json.dumps(document))


def shape(number, name="a"):
    document = json.dumps({"columns": [{"name": "id"}]})
    return change("schema", None, database="d", table=name, shape=number, schema=document)


def insert(version, at="0/0", name="a", commit_ts=50):
    return row("insert", commit_ts, at, name, shape=1, schema_version=version)


def counts(found):
    return found.ready.num_rows, found.waiting.num_rows


# --- the two scenarios ----------------------------------------------------------------------------


def test_from_the_beginning_every_row_finds_its_schema():
    cache = SchemaCache()
    events = (ddl(9, schema(8)), insert(8), ddl(19, schema(18), schema(8)), insert(18))
    cache.add(batch(*events))
    assert counts(cache.split(batch(*events))) == (4, 0)
    assert cache.keys == (SchemaKey("d", "a", 8), SchemaKey("d", "a", 18))
    assert cache.waiting() == []


def test_from_the_middle_rows_wait_for_a_bootstrap():
    cache = SchemaCache()
    rows = (insert(8, "0/0"), insert(8, "1/0"), insert(9, "0/0", "other"))
    cache.add(batch(*rows))
    found = cache.split(batch(*rows))
    assert counts(found) == (0, 3)
    cache.add(batch(bootstrap(8)))
    found = cache.split(found.waiting)
    assert counts(found) == (2, 1)
    assert [entry.key for entry in cache.waiting()] == [SchemaKey("d", "other", 9)]


def test_a_row_waits_for_its_own_version():
    cache = SchemaCache()
    cache.add(batch(bootstrap(8)))
    assert counts(cache.split(batch(insert(8), insert(9), insert(7)))) == (1, 2)


def test_the_schema_before_a_ddl_is_known_too():
    cache = SchemaCache()
    cache.add(batch(ddl(19, schema(18), schema(8))))
    assert counts(cache.split(batch(insert(8), insert(18)))) == (2, 0)


def test_rows_without_a_version_never_wait():
    assert counts(SchemaCache().split(batch(insert(None)))) == (1, 0)


def test_events_that_are_not_rows_never_wait():
    found = SchemaCache().split(batch(ddl(9, schema(8)), change("watermark", 10), insert(8)))
    assert counts(found) == (2, 1)


def test_a_rename_keeps_the_version_and_brings_the_new_name():
    cache = SchemaCache()
    cache.add(batch(bootstrap(8, "a")))
    renamed = insert(8, name="b")
    assert counts(cache.split(batch(renamed))) == (0, 1)
    cache.add(batch(ddl(19, schema(8, "b"), schema(8, "a"))))
    assert counts(cache.split(batch(renamed, insert(8, name="a")))) == (2, 0)


# --- shapes ---------------------------------------------------------------------------------------


def test_a_shape_is_known_with_its_schema():
    cache = SchemaCache()
    cache.add(table(shape(1), bootstrap(8)))
    assert cache.shape(1, 8).columns[0].type == "int"
    assert cache.schema("d", "a", 8) == TableSchema.from_json(schema(8))


@pytest.mark.parametrize(
    ("number", "version", "message"),
    [(2, None, "shape 2 has not been seen"), (1, 9, "d.a version 9 has not been seen")],
)
def test_a_shape_that_is_not_known_is_an_error(number, version, message):
    cache = SchemaCache()
    cache.add(batch(shape(1), bootstrap(8)))
    with pytest.raises(SchemaNotSeen, match=message):
        cache.shape(number, version)


def test_the_latest_schema_is_that_of_the_highest_version():
    cache = SchemaCache()
    cache.add(batch(ddl(19, schema(18)), bootstrap(8), bootstrap(30, "b")))
    assert cache.latest("d", "a").version == 18
    assert cache.latest("d", "c") is None


# --- what waits -----------------------------------------------------------------------------------


def test_what_waits_is_told_with_its_count_first_place_and_age():
    clock = Clock()
    cache = SchemaCache(clock=clock)
    found = cache.split(batch(insert(8, "1/5"), insert(8, "1/4")))
    clock.now = 130.0
    both = table(insert(9, "0/7", "b"), *found.waiting.to_pylist())
    cache.split(both)
    clock.now = 142.0
    first, second = cache.waiting()
    assert (first.key, first.rows, first.first) == (("d", "a", 8), 2, Position("t", 1, 4, 0))
    assert (first.since, first.age, second.age) == (100.0, 42.0, 12.0)
    assert (
        str(first) == "2 rows wait for the schema of d.a version 8, the first at t[1]@4#0, for 42 s"
    )


def test_the_age_begins_anew_once_a_schema_came():
    clock = Clock()
    cache = SchemaCache(clock=clock)
    cache.split(batch(insert(8)))
    cache.add(batch(bootstrap(8)))
    cache.split(batch(insert(8)))
    assert cache.waiting() == []


def test_waiting_within_the_bounds_is_no_error():
    cache = SchemaCache(clock=Clock(), max_rows=2)
    cache.check()
    cache.split(batch(insert(8), insert(8)))
    cache.check()


def test_too_many_rows_that_wait_are_an_error():
    cache = SchemaCache(clock=Clock(), max_rows=2)
    cache.split(batch(insert(9, name="b"), insert(8), insert(8)))
    with pytest.raises(SchemaNotSeen, match=r"schema of d\.a version 8 has not") as raised:
        cache.check()
    assert raised.value.__notes__ == [
        "2 rows wait for the schema of d.a version 8, the first at t[0]@0#0, for 0 s; "
        "1 rows wait for the schema of d.b version 9, the first at t[0]@0#0, for 0 s."
    ]


def test_rows_that_wait_too_long_are_an_error():
    clock = Clock()
    cache = SchemaCache(clock=clock, max_age=60)
    cache.split(batch(insert(8)))
    clock.now += 61
    with pytest.raises(SchemaNotSeen, match=r"d\.a version 8"):
        cache.check()


# --- what is kept ---------------------------------------------------------------------------------


def test_a_version_is_kept_until_a_newer_one_was_applied():
    cache = SchemaCache()
    cache.add(batch(shape(1), bootstrap(8), ddl(19, schema(18)), ddl(29, schema(28))))
    assert cache.forget(19) == []  # rows at 19 still name version 8
    assert cache.forget(20) == [SchemaKey("d", "a", 8)]
    assert cache.schema("d", "a", 8) is None
    assert cache.shapes.schema("d", "a", 8) is None
    assert cache.shapes.schema("d", "a", 18) is not None
    assert cache.forget(100) == [SchemaKey("d", "a", 18)]
    assert cache.keys == (SchemaKey("d", "a", 28),)


def test_a_bootstrap_alone_makes_nothing_old():
    cache = SchemaCache()
    cache.add(batch(bootstrap(8), bootstrap(18)))
    assert cache.forget(100) == []


def test_a_rename_swap_leaves_each_name_the_version_that_it_was_given_last():
    cache = SchemaCache()
    cache.add(batch(ddl(9, schema(8, "a")), ddl(19, schema(18, "b"))))
    cache.add(batch(ddl(29, schema(18, "a")), ddl(29, schema(8, "b"))))
    assert cache.forget(29) == []  # rows at 29 are of before
    assert cache.forget(30) == [SchemaKey("d", "a", 8), SchemaKey("d", "b", 18)]
    assert counts(cache.split(batch(insert(18, name="a"), insert(8, name="b")))) == (2, 0)


def test_a_version_that_comes_back_to_a_name_is_kept():
    """A migration: the table is replaced by a new one, and put back when that fails."""
    cache = SchemaCache()
    cache.add(batch(ddl(9, schema(8)), ddl(29, schema(18)), ddl(39, schema(8))))
    again = SchemaCache.from_json(cache.to_json())
    assert again.forget(35) == []
    assert again.forget(40) == [SchemaKey("d", "a", 18)]
    assert again.keys == (SchemaKey("d", "a", 8),)


def test_a_bootstrap_of_a_higher_version_is_kept_though_a_lower_one_was_given():
    cache = SchemaCache()
    cache.add(batch(bootstrap(7), bootstrap(18), ddl(29, schema(8))))
    assert cache.forget(100) == [SchemaKey("d", "a", 7)]
    assert cache.keys == (SchemaKey("d", "a", 8), SchemaKey("d", "a", 18))


@pytest.mark.parametrize(
    ("told", "lost"),
    [
        ((), False),
        ((ddl(49, schema(18)),), False),  # the rows came after it: by a rename, say
        ((ddl(50, schema(18)),), True),
        ((ddl(60, schema(7)),), True),
        ((bootstrap(18),), True),
        ((bootstrap(7),), False),
        ((ddl(60, schema(18, "b")), bootstrap(18, "b")), False),
    ],
)
def test_a_version_is_lost_when_its_name_has_gone_on_to_another(told, lost):
    cache = SchemaCache()
    cache.add(batch(*told))
    assert cache.is_lost(SchemaKey("d", "a", 8), 50) is lost


def test_the_schemas_survive_a_restart():
    cache = SchemaCache()
    cache.add(batch(bootstrap(8), ddl(19, schema(18, "a", "id", "ü"))))
    again = SchemaCache.from_json(cache.to_json(), max_rows=7)
    assert again.to_json() == cache.to_json()
    assert again.max_rows == 7
    assert again.schema("d", "a", 18) == cache.schema("d", "a", 18)
    assert again.forget(20) == [SchemaKey("d", "a", 8)]


def test_a_state_of_another_version_is_refused():
    with pytest.raises(ValueError, match="another version"):
        SchemaCache.from_json('{"version":0,"schemas":[]}')
