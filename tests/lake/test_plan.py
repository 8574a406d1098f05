"""Plans: rows and statements of an interval become steps in the right order, per table."""

from tidegate.feed.gate import DdlId
from tidegate.feed.tables import Name, TableBook
from tidegate.lake.changelog import Group
from tidegate.lake.format import Position
from tidegate.lake.plan import (
    Create,
    Delete,
    Drop,
    Evolve,
    Planner,
    Rename,
    Rows,
    Statement,
    Status,
)
from tidegate.lake.rows import Layout
from tidegate.model import TableSchema

CREATE = "CREATE TABLE `t` (`id` INT PRIMARY KEY, `v` INT)"


def statement(ts, query, ordinal=1, table="t"):
    return Statement(DdlId(ts, "d", table, query), Position(ts, ordinal))


def group(segment, *, table="t", kind="insert", shape=1, rows=3, first_ts=1, late=False):
    return Group("d", table, kind, shape, None, segment, late, False, rows, first_ts)


class Lake:
    """The tables and schemas of a lake that is only planned for."""

    def __init__(self, *statements):
        self.tables, self.book = {}, TableBook()
        self.layouts = {(1, None): ("id", "v"), (2, None): ("id", "v", "w"), (3, None): ("id",)}
        self.schemas = {}
        if statements:
            self.plan(statements, [], 1)

    def plan(self, statements, groups, target=100):
        planner = Planner(self.tables, self.book, self.layouts, self.schemas, Position(target))
        return planner.plan(statements, groups)


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


def test_a_statement_about_an_unknown_table_is_passed_over():
    lake = Lake()
    assert lake.plan([statement(5, "TRUNCATE TABLE nowhere", table="nowhere")], []) == []
