"""Plans: rows and statements of an interval become steps in the right order, per table.

Under a policy other than evolve the mirror may have columns of its own: a table of cases says what
every policy makes of every kind of statement.
"""

import json
from dataclasses import replace

import pytest

from tidegate.lake.apply.plan.row_planning import NOT_FROM_START
from tidegate.lake.apply.plan.steps import (
    Create,
    Delete,
    Drop,
    Evolve,
    PastEffect,
    PastKind,
    Rename,
    Rows,
    Statement,
)
from tidegate.lake.apply.plan.tables import State, Status
from tidegate.lake.apply.planner import Planner, first_schema_change
from tidegate.lake.apply.policy import Policy
from tidegate.lake.apply.rows import Layout
from tidegate.lake.changelog.changelog import Group
from tidegate.lake.formats.base import Position
from tidegate.lake.routes import Routes
from tidegate.model import Column, Flag, Index, TableSchema
from tidegate.sql.ddl_names import DdlId
from tidegate.sql.tables import Name, TableBook

CREATE = "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` INT)"


def statement(ts, query, ordinal=1, table="t"):
    return Statement(DdlId(ts, "d", table, query), Position(ts, ordinal))


def group(segment, *, table="t", kind="insert", shape=1, rows=3, first_ts=1, late=False):
    return Group("d", table, kind, shape, None, segment, late, False, rows, first_ts, first_ts)


class Lake:
    """The tables and schemas of a lake that is only planned for."""

    def __init__(self, *statements):
        self.tables, self.book = {}, TableBook()
        self.layouts = {(1, None): ("id", "v"), (2, None): ("id", "v", "w"), (3, None): ("id",)}
        self.layouts[4, None] = ("id", "w")
        self.schemas = {}
        if statements:
            self.plan(statements, [], 1)

    def plan(self, statements, groups, target=100, policy=Policy.EVOLVE):
        planner = Planner(
            self.tables, self.book, self.layouts, self.schemas, Position(target), policy=policy
        )
        return planner.plan(statements, groups)

    def run(self, policy, *queries):
        """Plans statements one after the other, from instant 5 on."""
        told = [statement(at, query) for at, query in enumerate(queries, 5)]
        return self.plan(told, [], policy=policy)

    @property
    def table(self):
        return self.tables["d", "t"]


def kinds(steps):
    return [type(step) for step in steps]


def test_rows_go_in_one_step_up_to_a_statement_of_their_table():
    lake = Lake(statement(1, CREATE), statement(1, CREATE.replace("`t`", "`u`"), 2, "u"))
    steps = lake.plan(
        [statement(5, "ALTER TABLE t ADD COLUMN w INT")],
        [group(0), group(0, table="u"), group(1, shape=2), group(1, table="u")],
    )
    assert kinds(steps) == [Rows, Evolve, Rows, Rows]
    before, evolve, after, other = steps
    assert (before.position, before.segments) == (Position(5, 0), (0, 0))
    assert evolve.position == Position(5, 1)
    assert (after.position, after.segments) == (Position(100), (1, 1))
    assert after.layouts == (Layout(2, ("id", "v", "w")),)
    # The other table is not cut: its rows of both segments are one step.
    assert (other.name, other.segments, other.count) == (Name("d", "u"), (0, 1), 6)


def test_a_table_that_is_dropped_and_made_again_is_another_one():
    lake = Lake(statement(1, CREATE))
    first = lake.tables["d", "t"]
    steps = lake.plan([statement(5, "DROP TABLE t"), statement(6, CREATE)], [group(0), group(2)])
    assert kinds(steps) == [Rows, Drop, Create, Rows]
    assert steps[0].table is steps[1].table is first
    assert steps[2].table is steps[3].table is lake.tables["d", "t"]
    assert lake.tables["d", "t"] is not first


def test_a_table_that_no_statement_made_begins_before_its_rows_also_without_watermarks():
    for target, first_ts in ((Position(100), 7), (Position(3, 1), 1 << 58)):
        lake = Lake()
        lake.schemas[1, None] = TableSchema(database="d", table="t", columns=())
        planner = Planner(lake.tables, lake.book, {(1, None): ()}, lake.schemas, target)
        made, rows = planner.plan([], [group(0, first_ts=first_ts)])
        assert (type(made), type(rows)) == (Create, Rows)
        assert made.position < rows.position == target


def test_a_rename_carries_the_table_on_and_frees_its_name():
    lake = Lake(statement(1, CREATE))
    steps = lake.plan(
        [statement(5, "RENAME TABLE t TO t2"), statement(6, CREATE)],
        [group(0), group(1, table="t2"), group(2), group(2, table="t2")],
    )
    assert kinds(steps) == [Rows, Rename, Create, Rows, Rows]
    assert steps[1].names == (("d", "t"), ("d", "t2"))
    assert steps[3].table is steps[2].table
    assert steps[4].table is steps[1].table
    assert steps[4].schema.table == "t2"


def test_names_are_found_whatever_their_case():
    lake = Lake(statement(1, CREATE))
    assert kinds(lake.plan([statement(5, "TRUNCATE TABLE `T`")], [])) == [Delete]


def test_what_cannot_be_mirrored_stops_its_table_only():
    lake = Lake(statement(1, CREATE), statement(1, CREATE.replace("`t`", "`u`"), 2, "u"))
    steps = lake.plan(
        [statement(5, "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE x")],
        [group(0), group(1), group(1, table="u")],
    )
    assert [(type(step), step.table.name.table) for step in steps] == [(Rows, "t"), (Rows, "u")]
    stopped = lake.tables["d", "t"]
    assert stopped.status is Status.STOPPED
    assert "EXCHANGE PARTITION" in stopped.reason
    assert stopped.since == 5
    assert lake.tables["d", "u"].status is Status.MIRRORED


def test_a_stopped_table_begins_anew_when_it_is_made_anew():
    lake = Lake(statement(1, CREATE))
    lake.plan([statement(5, "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE x")], [])
    steps = lake.plan([statement(7, "DROP TABLE t"), statement(8, CREATE)], [group(2)])
    assert kinds(steps) == [Drop, Create, Rows]
    assert lake.tables["d", "t"].status is Status.MIRRORED


def test_rows_that_do_not_fit_stop_the_table():
    lake = Lake(statement(1, CREATE))
    assert lake.plan([], [group(0, shape=2)]) == []
    assert "'w'" in lake.tables["d", "t"].reason


def test_a_delete_needs_no_more_than_the_key():
    lake = Lake(statement(1, CREATE))
    assert kinds(lake.plan([], [group(0, shape=3, kind="delete")])) == [Rows]
    lake.plan([], [group(0, shape=3, kind="insert")])
    assert lake.tables["d", "t"].status is Status.STOPPED


def test_a_table_whose_making_was_not_seen_is_made_from_its_rows():
    lake = Lake()
    lake.schemas[1, None] = TableSchema(database="d", table="t")
    lake.layouts[1, None] = ()
    steps = lake.plan([], [group(0, first_ts=40)])
    assert kinds(steps) == [Create, Rows]
    assert steps[0].position < steps[1].position == Position(100)


def test_a_dropped_database_takes_its_tables_along():
    lake = Lake(statement(1, CREATE), statement(1, CREATE.replace("`t`", "`u`"), 2, "u"))
    steps = lake.plan([statement(5, "DROP DATABASE d", table="")], [group(0, table="u")])
    assert sorted(kinds(steps), key=str) == sorted([Rows, Drop, Drop], key=str)
    assert lake.tables == {}


def test_a_dropped_database_takes_tables_along_that_are_only_known_to_be_there():
    lake = Lake(statement(1, CREATE))
    lake.run(Policy.EVOLVE, "DROP TABLE t", "RECOVER TABLE t")
    assert lake.table.status is Status.STOPPED
    assert kinds(lake.run(Policy.EVOLVE, "DROP DATABASE d")) == [Drop]
    assert lake.tables == {}


def test_a_statement_about_an_unknown_table_is_passed_over():
    lake = Lake()
    assert lake.plan([statement(5, "TRUNCATE TABLE nowhere", table="nowhere")], []) == []


def test_a_table_whose_place_in_the_lake_is_taken_is_stopped():
    """Also where a statement brings it there; when the place is free again, it is used again."""
    routes = Routes((), {"crm.*": "d.*"})
    tables, book = {}, TableBook()

    def plan(*queries):
        planner = Planner(tables, book, {}, {}, Position(100), routes=routes)
        return planner.plan([statement(at, query) for at, query in enumerate(queries, 5)], [])

    made = plan(CREATE.replace("`t`", "crm.t"), CREATE.replace("`t`", "other.t"))
    for step in made:
        step.table.identifier = str(step.name)
    assert made[0].names == (("crm", "t"), ("d", "t"))
    steps = plan("RENAME TABLE other.t TO d.t")
    assert [(type(step), step.table.identifier) for step in steps] == [(Drop, "other.t")]
    assert "in the place of crm.t" in tables["d", "t"].reason
    steps = plan("DROP TABLE crm.t", CREATE.replace("`t`", "crm.t"))
    assert kinds(steps) == [Drop, Create]
    steps = plan("DROP TABLE crm.t", "DROP TABLE d.t", CREATE)
    assert kinds(steps) == [Drop, Drop, Create]
    # One waits for the other: they are the same table to the lake.
    assert ("d", "t") in set(steps[0].names) & set(steps[2].names)


def test_the_lakes_own_tables_are_in_nobodys_way():
    lake = Lake()
    assert lake.plan([statement(5, CREATE.replace("`t`", "`_TideGate`.`changelog`"))], []) == []
    assert "its own tables" in lake.tables["_tidegate", "changelog"].reason


def test_a_schema_that_comes_with_a_statement_is_taken_where_no_other_is_known():
    lake = Lake()
    before = TableBook()
    before.run(CREATE, "d", "t")
    told = json.dumps({"preTableSchema": before.get("d", "t").to_object()})
    alter = DdlId(5, "d", "t", "ALTER TABLE t ADD COLUMN w INT")
    assert lake.plan([Statement(alter, Position(5, 1), told)], []) == []
    assert lake.tables == {}
    assert lake.book.get("d", "t").column_names == ("id", "v", "w")


@pytest.mark.parametrize("key, moves", [(("id",), False), (("v",), True), ((), True)])
def test_updates_stay_with_their_key_only_where_the_wire_tells_that_key(key, moves):
    lake = Lake(statement(1, CREATE))
    planner = Planner(
        lake.tables, lake.book, lake.layouts, {}, Position(100), {1: key} if key else {}
    )
    (rows,) = planner.plan([], [group(0, kind="update"), group(0)])
    assert rows.moves is moves


# --- policies -------------------------------------------------------------------------------------

EVOLVE, TRY, LENIENT, IGNORE = Policy.EVOLVE, Policy.TRY_EVOLVE, Policy.LENIENT, Policy.IGNORE
PARTED = (
    "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` INT) PARTITION BY RANGE (`id`) "
    "(PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))"
)
SAME = "id int, v int"
FITTED = "later values are fitted"

# statement: for each policy the steps, the columns of the mirror, and a word of what is left out
CASES = {
    "ALTER TABLE t ADD COLUMN w INT DEFAULT 7": {
        EVOLVE: ([Evolve], "id int, v int, w int", ""),
        TRY: ([Evolve], "id int, v int, w int", ""),
        LENIENT: ([Evolve], "id int, v int, w int", ""),
        IGNORE: ([], SAME, "w is left out"),
    },
    "ALTER TABLE t ADD COLUMN w INT FIRST": {
        EVOLVE: ([Evolve], "w int, id int, v int", ""),
        LENIENT: ([Evolve], "id int, v int, w int", ""),  # another order is no other content
        IGNORE: ([], SAME, "w is left out"),
    },
    "ALTER TABLE t DROP COLUMN v": {
        EVOLVE: ([Evolve], "id int", ""),
        TRY: ([Evolve], "id int", ""),
        LENIENT: ([], SAME, "v stays, and is NULL"),
        IGNORE: ([], SAME, "v stays, and is NULL"),
    },
    "ALTER TABLE t RENAME COLUMN v TO w": {
        EVOLVE: ([Evolve], "id int, w int", ""),
        TRY: ([Evolve], "id int, w int", ""),
        LENIENT: ([Evolve], "id int, v int, w int", "v stays beside w"),
        IGNORE: ([], SAME, "w is left out"),
    },
    "ALTER TABLE t RENAME COLUMN id TO k": {  # the key: rows are found by it
        EVOLVE: ([Evolve], "k int, v int", ""),
        LENIENT: ([Evolve], "k int, v int", ""),
        IGNORE: ([Evolve], "k int, v int", ""),
    },
    "ALTER TABLE t MODIFY COLUMN id BIGINT": {
        LENIENT: ([Evolve], "id bigint, v int", ""),
        IGNORE: ([Evolve], "id bigint, v int", ""),
    },
    "ALTER TABLE t MODIFY COLUMN v BIGINT": {
        EVOLVE: ([Evolve], "id int, v bigint", ""),
        TRY: ([Evolve], "id int, v bigint", ""),
        LENIENT: ([Evolve], "id int, v bigint", ""),  # the old values fit
        IGNORE: ([], SAME, FITTED),
    },
    "ALTER TABLE t MODIFY COLUMN v DATE": {
        EVOLVE: ([Evolve], "id int, v date", ""),
        TRY: ([Evolve], "id int, v date", ""),
        LENIENT: ([], SAME, FITTED),
        IGNORE: ([], SAME, FITTED),
    },
    "TRUNCATE TABLE t": {
        EVOLVE: ([Delete], SAME, ""),
        TRY: ([Delete], SAME, ""),
        LENIENT: ([], SAME, "rows stay"),
        IGNORE: ([], SAME, "rows stay"),
    },
    "ALTER TABLE t DROP PARTITION p0": {
        EVOLVE: ([Delete], SAME, ""),
        TRY: ([Delete], SAME, ""),
        LENIENT: ([], SAME, "rows stay"),
        IGNORE: ([], SAME, "rows stay"),
    },
    "RENAME TABLE t TO u; RENAME TABLE u TO t": {
        policy: ([Rename, Rename], SAME, "") for policy in Policy
    },
    "ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE x": {
        TRY: ([], SAME, "EXCHANGE PARTITION"),
        LENIENT: ([], SAME, "EXCHANGE PARTITION"),
        IGNORE: ([], SAME, "EXCHANGE PARTITION"),
    },
    "ALTER TABLE t GARBLE COLUMN v": {
        TRY: ([], SAME, "cannot be followed"),
        LENIENT: ([], SAME, "cannot be followed"),
        IGNORE: ([], SAME, "cannot be followed"),
    },
    "ALTER TABLE t ADD INDEX i (v)": {policy: ([], SAME, "") for policy in Policy},
    "ALTER TABLE t COMMENT = 'x'": {policy: ([], SAME, "") for policy in Policy},
    # A name that is given again goes on in the column that was kept.
    "ALTER TABLE t DROP COLUMN v; ALTER TABLE t ADD COLUMN v VARCHAR(9)": {
        EVOLVE: ([Evolve, Evolve], "id int, v varchar", ""),
        LENIENT: ([], SAME, "goes on in the one that had this name"),
        IGNORE: ([], SAME, "goes on in the one that had this name"),
    },
    "ALTER TABLE t RENAME COLUMN v TO x, RENAME COLUMN id TO v": {
        EVOLVE: ([Evolve], "v int, x int", ""),
    },
}


def columns(schema):
    return ", ".join(f"{column.name} {column.type}" for column in schema.columns)


@pytest.mark.parametrize(
    "query, policy", [(query, policy) for query, told in CASES.items() for policy in told]
)
def test_what_each_policy_makes_of_a_statement(query, policy):
    steps, expected, reason = CASES[query][policy]
    lake = Lake(statement(1, PARTED))
    found = lake.run(policy, *query.split("; "))
    # A column that is kept may be NULL from then on: that is a step without other columns.
    found = [step for step in found if not is_of_schema_only(step)]
    table = lake.table
    assert (kinds(found), columns(table.schema)) == (steps, expected)
    assert table.status is Status.MIRRORED
    assert reason in " ".join(table.diverged)
    assert bool(table.diverged) == bool(reason)
    upstream = lake.book.get("d", "t")
    assert carried_names(table.sent) == carried_names(upstream)
    assert table.schema.handle_key() == upstream.handle_key()


def is_of_schema_only(step):
    return isinstance(step, Evolve) and columns(step.before) == columns(step.change.after)


def carried_names(schema):
    return [column.name for column in schema.columns]


@pytest.mark.parametrize("policy", [LENIENT, IGNORE])
def test_a_kept_table_goes_on_when_it_is_made_again(policy):
    lake = Lake(statement(1, CREATE))
    table = lake.table
    assert lake.run(policy, "DROP TABLE t") == []
    assert lake.table is table
    assert table.gone
    assert "Its rows stay" in table.diverged[0]
    lake.run(policy, "CREATE TABLE `t` (`id` INT PRIMARY KEY, `w` INT)")
    assert lake.table is table
    assert not table.gone
    assert columns(table.schema) == ("id int, v int, w int" if policy is LENIENT else SAME)
    steps = lake.plan([], [group(0, shape=4)], policy=policy)
    assert kinds(steps) == [Rows]
    assert (steps[0].schema, steps[0].sent) == (table.schema, table.upstream)


def test_a_kept_table_with_another_key_stops():
    lake = Lake(statement(1, CREATE))
    lake.run(LENIENT, "DROP TABLE t", "CREATE TABLE `t` (`k` INT PRIMARY KEY)")
    assert lake.table.status is Status.STOPPED
    assert "another key" in lake.table.reason


def test_a_kept_table_gives_way_to_one_that_gets_its_name():
    lake = Lake(statement(1, CREATE), statement(1, CREATE.replace("`t`", "`u`"), 2, "u"))
    kept, other = lake.table, lake.tables["d", "u"]
    steps = lake.run(LENIENT, "DROP TABLE t", "RENAME TABLE u TO t")
    assert [(type(step), step.table) for step in steps] == [(Drop, kept), (Rename, other)]
    assert lake.tables == {("d", "t"): other}
    assert other.diverged == ()


def test_a_kept_table_is_made_anew_once_the_policy_is_evolve_again():
    lake = Lake(statement(1, CREATE))
    kept = lake.table
    lake.run(LENIENT, "DROP TABLE t")
    assert kinds(lake.run(EVOLVE, CREATE)) == [Drop, Create]
    assert lake.table is not kept
    assert lake.table.diverged == ()


def test_a_table_that_has_diverged_is_changed_in_the_columns_it_has():
    lake = Lake(statement(1, CREATE))
    lake.run(IGNORE, "ALTER TABLE t ADD COLUMN w INT", "ALTER TABLE t DROP COLUMN v")
    lake.run(
        EVOLVE,
        "ALTER TABLE t ADD COLUMN x INT",
        "ALTER TABLE t RENAME COLUMN x TO y",
        "ALTER TABLE t MODIFY COLUMN w BIGINT",
        "ALTER TABLE t RENAME COLUMN id TO k",
    )
    assert columns(lake.table.schema) == "k int, v int, y int"
    assert columns(lake.table.sent) == "k int, w bigint, y int"
    assert lake.table.schema.handle_key() == ("k",)


@pytest.mark.parametrize(
    "query, policy, says",
    [
        ("ALTER TABLE t ADD COLUMN w INT NOT NULL; ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (w)", IGNORE, "columns of its key, w"),
        ("ALTER TABLE t DROP COLUMN v; ALTER TABLE t RENAME COLUMN id TO v", LENIENT, "name of its column v is taken"),
        ("ALTER TABLE t DROP PRIMARY KEY, DROP COLUMN v", LENIENT, "It has no key"),
        ("ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE x", EVOLVE, "EXCHANGE PARTITION"),
        ("ALTER TABLE t GARBLE COLUMN v", EVOLVE, "cannot be followed"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_go_on_stops(query, policy, says):
    lake = Lake(statement(1, CREATE))
    lake.run(policy, *query.split("; "))
    assert lake.table.status is Status.STOPPED
    assert says in lake.table.reason


@pytest.mark.parametrize("policy", [TRY, LENIENT, IGNORE])
def test_rows_are_fitted_to_the_columns_that_are_there(policy):
    lake = Lake(statement(1, CREATE))
    (rows,) = lake.plan([], [group(0, shape=2), group(0, shape=3)], policy=policy)
    assert rows.schema == rows.sent == lake.table.schema
    assert not rows.incomplete
    assert "'w'" in lake.table.diverged[0]
    assert "lack the column 'v'" in lake.table.diverged[1]
    lake.layouts[5, None] = ("v",)
    assert lake.plan([], [group(0, shape=5)], policy=policy) == []
    assert "lack the column 'id'" in lake.table.reason


@pytest.mark.parametrize(
    "query, table",
    [
        (CREATE.replace("`t`", "`u`"), None),
        ("ALTER TABLE t ADD INDEX i (v)", None),
        ("CREATE TABLE IF NOT EXISTS t (id INT PRIMARY KEY)", None),
        ("DROP TABLE elsewhere", None),
        ("ALTER TABLE t ADD COLUMN w INT", "t"),
        ("TRUNCATE TABLE t", "t"),
        ("DROP TABLE elsewhere, T", "t"),
        ("DROP DATABASE d", "t"),
        ("RENAME TABLE t TO u", "t"),
        ("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE x", "t"),
        ("ALTER TABLE t GARBLE", "t"),
        (CREATE.replace("`t`", "`u`") + "; TRUNCATE TABLE u", "u"),
    ],
)
def test_the_first_schema_change_of_a_mirrored_table_is_found(query, table):
    lake = Lake(statement(1, CREATE))
    before = lake.book.to_object()
    told = [statement(at, each) for at, each in enumerate(query.split("; "), 5)]
    found = first_schema_change(told, lake.tables, lake.book, Routes())
    assert found == (None if table is None else (told[-1], Name("d", table)))
    assert lake.book.to_object() == before


# --- tables that the feed does not make -----------------------------------------------------------


def unmade(*keys, table="t", names=("id", "v", "w"), shape=1, lake=None):
    """A lake that knows the rows of a shape, which flag these columns as the key."""
    lake = lake or Lake()
    columns = tuple(
        replace(Column.of_type(name, "int"), flags=Flag.HANDLE_KEY if name in keys else Flag(0))
        for name in names
    )
    lake.schemas[shape, None] = TableSchema(database="d", table=table, columns=columns)
    lake.layouts[shape, None] = names
    return lake


def cut(statements, groups):
    """The same history in one step, and in as many steps as there are segments."""
    last = max(each.segment for each in groups)
    yield [(statements, groups)]
    yield [
        (statements[n : n + 1], [replace(each, segment=0) for each in groups if each.segment == n])
        for n in range(last + 1)
    ]


@pytest.mark.parametrize("parts", [0, 1], ids=["one step", "several"])
@pytest.mark.parametrize(
    "rows",
    [
        [group(0, first_ts=1), group(1, shape=2, first_ts=6)],
        [group(1, shape=2, first_ts=6)],
        [group(0, kind="delete", shape=3, first_ts=1), group(1, shape=2, first_ts=6)],
    ],
    ids=["row, ALTER, row", "ALTER, row", "delete, ALTER, row"],
)
def test_a_feed_begun_in_the_middle_comes_to_the_same_however_it_is_cut(rows, parts):
    altered = statement(5, "ALTER TABLE t ADD COLUMN w INT")
    for number, pieces in enumerate(cut([altered], rows)):
        lake = unmade("id", names=("id", "v"))
        unmade("id", shape=2, lake=lake)
        if number != parts:
            continue
        for statements, groups in pieces:
            lake.plan(statements, groups)
        assert columns(lake.table.schema) == "id int, v int, w int"
        assert lake.table.state() is State.INCOMPLETE
        assert lake.table.missing == NOT_FROM_START


def test_a_table_of_which_only_deletes_are_known_is_not_made():
    lake = unmade("id")
    assert lake.plan([], [group(0, kind="delete", shape=3)]) == []
    assert lake.tables == {}


@pytest.mark.parametrize("keys", [("id", "v"), ()], ids=["another key", "no key"])
def test_a_table_that_only_its_rows_tell_of_has_the_key_that_they_flag(keys):
    lake = unmade("id")
    lake.plan([], [group(0)])
    assert lake.table.schema.handle_key() == ("id",)
    unmade(*keys, shape=2, lake=lake)
    (rows,) = lake.plan([statement(5, "ALTER TABLE t DROP INDEX i")], [group(1, shape=2)])
    assert rows.schema.handle_key() == lake.table.schema.handle_key() == keys


def test_rows_that_flag_another_key_may_list_their_columns_in_another_order():
    lake = unmade("id")
    lake.plan([], [group(0)])
    unmade("v", names=("w", "v", "id"), shape=2, lake=lake)
    (rows,) = lake.plan([statement(5, "ALTER TABLE t DROP INDEX i")], [group(1, shape=2)])
    assert rows.schema.handle_key() == ("v",)
    assert rows.schema.carried_names == ("id", "v", "w")


@pytest.mark.parametrize("last, state", [(4, State.INCOMPLETE), (6, State.STOPPED)])
def test_a_delete_that_lacks_columns_stops_a_table_without_a_key_only_after_its_first_row(
    last, state
):
    lake = unmade()
    unmade(names=("id",), shape=2, lake=lake)
    deletes = replace(group(0, kind="delete", shape=2, first_ts=4), last_ts=last)
    lake.plan([], [deletes, group(0, first_ts=5)])
    assert lake.table.state() is state


def test_a_table_made_by_a_statement_keeps_its_key_whatever_rows_flag():
    lake = Lake(statement(1, "CREATE TABLE t (id INT PRIMARY KEY, v INT, w INT)"))
    unmade("v", lake=lake)
    (rows,) = lake.plan([], [group(0)])
    assert rows.schema.handle_key() == ("id",)


def test_truncate_makes_an_incomplete_table_whole_and_drop_and_create_too():
    for queries in (["TRUNCATE TABLE t"], ["DROP TABLE t", CREATE], [CREATE]):
        lake = unmade("id", names=("id", "v"))
        lake.plan([], [group(0)])
        assert lake.table.state() is State.INCOMPLETE
        lake.run(Policy.EVOLVE, *queries)
        assert lake.table.state() is State.MIRRORED


@pytest.mark.parametrize(("table", "state"), [("t", State.STOPPED), ("", State.INCOMPLETE)])
def test_a_table_recovered_by_job_is_not_exact_whether_or_not_the_feed_names_it(table, state):
    lake = unmade("id", names=("id", "v"))
    told = ["DROP TABLE t", "RECOVER TABLE BY JOB 5"]
    recovered = [statement(5, told[0]), statement(6, told[1], table=table)]
    lake.plan([statement(1, CREATE), *recovered], [group(1), group(3, first_ts=7)])
    assert lake.table.state() is state


def test_a_rename_carries_over_that_a_table_is_incomplete():
    lake = unmade("id")
    lake.plan([statement(5, "RENAME TABLE t TO u")], [group(0)])
    assert lake.tables["d", "u"].state() is State.INCOMPLETE


# --- feeds without watermarks ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "past, reached",
    [
        (PastEffect(5, PastKind.EMPTIED, Name("d", "t")), []),
        (PastEffect(5, PastKind.RENAMED, Name("d", "t"), Name("d", "u")), [("t", "u")]),
        (PastEffect(5, PastKind.EMPTIED, Name("d", "other")), [("t", "t")]),
    ],
    ids=["gone", "renamed", "of another table"],
)
def test_rows_from_before_a_statement_that_was_carried_out_go_where_it_sent_them(past, reached):
    lake = Lake(statement(1, CREATE), statement(1, CREATE.replace("`t`", "`u`"), 2, "u"))
    steps = lake.plan([past], [group(0), group(1, table="u")])
    found = [(step.name.table, step.table.name.table) for step in steps]
    assert sorted(found) == sorted([*reached, ("u", "u")])


def test_rows_of_a_name_that_was_another_tables_in_between_are_read_apart():
    """Each in a step with a position of its own, which a crash may leave behind it."""
    lake = Lake(statement(1, CREATE), statement(1, CREATE.replace("`t`", "`u`"), 2, "u"))
    past = [
        PastEffect(5, PastKind.RENAMED, Name("d", "t"), Name("d", "x")),
        PastEffect(6, PastKind.EMPTIED, Name("d", "t")),
        PastEffect(7, PastKind.RENAMED, Name("d", "x"), Name("d", "t")),
    ]
    steps = lake.plan(past, [group(0), group(1), group(3)])
    assert [step.segments for step in steps] == [(0, 0), (3, 3)]
    assert [step.position for step in steps] == [Position(100), Position(100, 0, 1)]


def test_a_table_that_comes_and_goes_in_one_step_is_never_made():
    lake = Lake()
    steps = lake.plan([statement(5, CREATE), statement(6, "DROP TABLE t")], [group(1)])
    assert (steps, lake.tables) == ([], {})


def test_rows_from_before_a_change_of_columns_that_was_carried_out_stop_the_table():
    lake = Lake(statement(1, CREATE))
    past = PastEffect(5, PastKind.CHANGED, Name("d", "t"), what="alter table t: drop column v")
    assert lake.plan([past], [group(1)])
    assert lake.plan([past], [group(0)]) == []
    assert "Rows from before alter table t: drop column v arrived after it" in lake.table.reason


@pytest.mark.parametrize(
    "later, stopped",
    [
        (PastEffect(6, PastKind.RENAMED, Name("d", "t"), Name("d", "u")), ["u"]),
        (PastEffect(6, PastKind.EMPTIED, Name("d", "t")), []),
        (PastEffect(6, PastKind.EMPTIED, Name("d", "other")), ["t"]),
    ],
    ids=["renamed", "emptied", "another table emptied"],
)
def test_rows_from_before_a_change_of_columns_stop_the_table_that_has_them_now(later, stopped):
    lake = Lake(statement(1, CREATE), statement(1, CREATE.replace("`t`", "`u`"), 2, "u"))
    past = PastEffect(5, PastKind.CHANGED, Name("d", "t"), what="alter table t: drop column v")
    assert lake.plan([past, later], [group(0)]) == []
    names = [each.name.table for each in lake.tables.values() if each.status is Status.STOPPED]
    assert names == stopped


def test_statements_after_a_create_that_follows_its_rows_begin_with_what_it_says():
    lake = Lake()
    columns = (Column.of_type("id", "int"), Column.of_type("v", "decimal"))
    key = Index(name="PRIMARY", unique=True, primary=True, columns=("id",))
    told = TableSchema(database="d", table="t", columns=columns, indexes=(key,))
    lake.schemas[1, None] = told
    planner = Planner(
        lake.tables, lake.book, lake.layouts, lake.schemas, Position(100), in_commit_order=False
    )
    create = "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` DECIMAL(12,2))"
    planner.plan([statement(5, create), statement(6, "ALTER TABLE t ADD COLUMN w INT")], [group(0)])
    column = lake.table.schema.column("v")
    assert (lake.table.missing, column.length, column.decimals) == ("", 12, 2)


@pytest.mark.parametrize(
    "query, stopped",
    [
        ("DROP TABLE t", ["t"]),
        ("TRUNCATE TABLE t", ["t"]),
        ("ALTER TABLE t ADD COLUMN w INT", ["t"]),
        ("RENAME TABLE t TO u", ["t", "u"]),
        ("DROP TABLE x", []),
    ],
)
def test_a_statement_that_later_rows_have_overtaken_stops_its_table(query, stopped):
    lake = Lake(statement(1, CREATE), statement(1, CREATE.replace("`t`", "`x`"), 2, "x"))
    planner = Planner(
        lake.tables,
        lake.book,
        lake.layouts,
        lake.schemas,
        Position(100),
        in_commit_order=False,
        overtaken=lambda name, ts: (name.table, ts) == ("t", 5),
    )
    planner.plan([statement(5, query, table=query.split()[2]), statement(6, CREATE)], [])
    names = [each.name.table for each in lake.tables.values() if each.status is Status.STOPPED]
    assert sorted(names) == stopped
    for name in stopped:
        assert lake.tables["d", name].reason.startswith("Rows from after")


def test_a_table_whose_rows_arrived_before_its_rename_is_stopped():
    lake = Lake(statement(1, CREATE), statement(1, CREATE.replace("`t`", "`u`"), 2, "u"))
    lake.plan([statement(5, "RENAME TABLE t TO u")], [])
    (table,) = lake.tables.values()
    assert (table.name, table.status) == (Name("d", "u"), Status.STOPPED)
    assert table.reason.startswith("Its rows arrived before the RENAME of d.t")


def test_a_step_says_what_its_statements_mean_for_rows_from_before_them():
    lake = Lake(statement(1, CREATE))
    planner = Planner(lake.tables, lake.book, lake.layouts, lake.schemas, Position(100))
    told = [
        "ALTER TABLE t ADD COLUMN w INT",
        "TRUNCATE TABLE t",
        "RENAME TABLE t TO u",
        "DROP TABLE u",
    ]
    planner.plan([statement(at, query) for at, query in enumerate(told, 5)], [])
    assert [(each.commit_ts, each.kind, each.name.table) for each in planner.past] == [
        (5, "changed", "t"),
        (6, "emptied", "t"),
        (7, "renamed", "t"),
        (8, "emptied", "u"),
    ]
