"""The tables of a feed: which of them a statement means, in which order, and what is remembered."""

import json
from itertools import permutations

import pytest

from tidegate.model.schema import TableSchema
from tidegate.sql import tables as tables_module
from tidegate.sql.ddl import ChangeKind
from tidegate.sql.ddl_names import DdlId
from tidegate.sql.tables import Name, TableBook

T = "(id INT PRIMARY KEY, v INT)"
CROSS = "ALTER TABLE `mu` RENAME AS `e2`.`mu2`"


def book_of(*names, databases=()):
    """A book that has heard of these tables, and of the creation of these databases."""
    book = TableBook()
    for database in databases:
        book.run(f"CREATE DATABASE `{database}`", database)
    for name in names:
        database, table = name.split(".")
        book.run(f"CREATE TABLE `{table}` {T}", database, table)
    return book


def known(book):
    return {f"{schema.database}.{schema.table}" for schema in book}


def told(effects):
    """What happens to which table, as short texts."""
    return [
        f"{effect.kind.value} {effect.name}" + (f" → {effect.new_name}" if effect.new_name else "")
        for effect in effects
    ]


def schemas(**names):
    """The schemas beside a DDL: `after` and `before`, each as (name, id)."""
    members = {"after": "tableSchema", "before": "preTableSchema"}
    document = {}
    for which, (name, table_id) in names.items():
        database, table = name.split(".")
        column = {"name": "id", "dataType": {"mysqlType": "int"}}
        document[members[which]] = {
            "schema": database,
            "table": table,
            "tableID": table_id,
            "columns": [column],
        }
    return json.dumps(document)


# --- which table is renamed -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "database"),
    [
        ("RENAME TABLE `d1`.`t` TO `d1`.`t_old`", "d1"),
        ("RENAME TABLE `d1`.`t` TO `t_old`", "d1"),
        ("ALTER TABLE `t` RENAME AS `t_old`", "d1"),
        ("RENAME TABLE `t` TO `t_old`", "d1"),
        ("RENAME TABLE `t` TO `d2`.`t_old`", "d1"),
    ],
)
def test_a_rename_whose_old_database_is_clear_touches_no_other(query, database):
    book = book_of("d2.t", databases=["d1", "d2"])
    (effect,) = book.run(query, database, "t_old")
    assert (effect.kind, effect.name, effect.before) == (
        ChangeKind.RENAMED,
        Name("d1", "t"),
        None,
    )
    assert known(book) == {"d2.t"}


def test_a_rename_between_databases_takes_the_only_table_where_the_history_is_known():
    book = book_of("e1.mu", databases=["e1", "e2"])
    assert told(book.run(CROSS, "e2", "mu2")) == ["renamed e1.mu → e2.mu2"]
    assert known(book) == {"e2.mu2"}


@pytest.mark.parametrize(
    ("names", "databases"),
    [
        (["e3.mu"], []),
        (["e3.mu"], ["e3"]),  # e2 was there before the feed, so there may be others
        (["e3.mu", "x.y"], ["e2", "e3"]),
        (["e1.mu", "e3.mu"], ["e1", "e2", "e3"]),
        (["e2.mu", "e3.mu"], ["e2", "e3"]),
    ],
)
def test_a_rename_that_may_mean_several_tables_stops_them_and_the_new_name(names, databases):
    book = book_of(*names, databases=databases)
    effects = book.run(CROSS, "e2", "mu2")
    candidates = [name for name in names if name.endswith(".mu")]
    assert told(effects) == [f"unmirrored {name}" for name in [*candidates, "e2.mu2"]]
    reason = "A table `mu` was renamed to `e2`.`mu2`, and the feed does not tell in which database it was."
    assert {effect.change.reason for effect in effects} == {reason}
    assert known(book) == set(names)


def test_a_table_without_a_schema_may_be_the_one_that_is_renamed():
    book = book_of("e1.mu", databases=["e1", "e2", "e3"])
    effects = book.run(CROSS, "e2", "mu2", [Name("e3", "mu")])
    assert told(effects) == ["unmirrored e1.mu", "unmirrored e3.mu", "unmirrored e2.mu2"]
    book = book_of(databases=["e2", "e3"])
    assert told(book.run(CROSS, "e2", "mu2", [Name("e3", "mu")])) == ["renamed e3.mu → e2.mu2"]


def test_a_rename_of_a_table_that_nobody_knows_stops_nothing():
    effects = TableBook().run(CROSS, "e2", "mu2")
    assert [effect.kind for effect in effects] == [ChangeKind.RENAMED]
    assert effects[0].new_name == Name("e2", "mu2")


def test_the_schema_before_a_rename_names_the_old_table():
    beside = schemas(before=("e1.mu", 7), after=("e2.mu2", 7))
    book = book_of("e1.mu", "e3.mu")
    assert told(book.run(CROSS, "e2", "mu2", schemas=beside)) == ["renamed e1.mu → e2.mu2"]
    assert known(book) == {"e2.mu2", "e3.mu"}
    book = book_of("e3.mu")
    (effect,) = book.run(CROSS, "e2", "mu2", schemas=beside)
    assert effect.name == Name("e1", "mu")
    assert effect.change.after.column_names == ("id",)
    assert known(book) == {"e2.mu2", "e3.mu"}


def test_the_id_of_a_table_tells_which_one_is_renamed():
    book = book_of("e1.mu")
    book.run(f"CREATE TABLE `mu` {T}", "e3", "mu", schemas=schemas(after=("e3.mu", 7)))
    assert book.get("e3", "mu").table_id == 7
    beside = schemas(after=("e2.mu2", 7))
    assert told(book.run(CROSS, "e2", "mu2", schemas=beside)) == ["renamed e3.mu → e2.mu2"]


@pytest.mark.parametrize("table_id", [0, -1])
def test_an_id_that_stands_for_none_tells_nothing(table_id):
    book = book_of("e1.mu", "e3.mu")
    for name in ("e1", "e3"):
        book.put(TableSchema(database=name, table="mu", table_id=table_id))
    effects = book.run(CROSS, "e2", "mu2", schemas=schemas(after=("e2.mu2", table_id)))
    assert {effect.kind for effect in effects} == {ChangeKind.UNMIRRORED}


def test_a_rename_with_other_clauses_does_both():
    book = book_of("d.t", databases=["d"])
    (effect,) = book.run("ALTER TABLE t ADD COLUMN w INT, RENAME TO u", "d", "u")
    assert told([effect]) == ["renamed d.t → d.u"]
    assert book.get("d", "u").column_names == ("id", "v", "w")


def test_a_rename_with_other_clauses_that_may_mean_several_tables_makes_none():
    book = book_of("d.t", "e.t")
    effects = book.run("ALTER TABLE t ADD COLUMN w INT, RENAME TO d.u", "d", "u")
    assert told(effects) == ["unmirrored d.t", "unmirrored e.t", "unmirrored d.u"]
    assert known(book) == {"d.t", "e.t"}


def test_a_rename_with_a_clause_that_cannot_be_followed_stops_both_names():
    book = book_of("d.t", databases=["d"])
    effects = book.run("ALTER TABLE t DROP COLUMN x, RENAME TO u", "d", "u")
    assert {effect.kind for effect in effects} == {ChangeKind.UNMIRRORED}


# --- what is remembered of databases --------------------------------------------------------------


def saved(book):
    return TableBook.from_object(json.loads(json.dumps(book.to_object())))


@pytest.mark.parametrize("again", [saved, TableBook.copy], ids=["saved", "copied"])
def test_a_book_remembers_which_databases_the_feed_created(again):
    book = again(book_of("e1.mu", databases=["e1", "e2"]))
    assert told(book.run(CROSS, "e2", "mu2")) == ["renamed e1.mu → e2.mu2"]
    book = again(book_of("e1.mu", "x.y", databases=["e1", "e2"]))
    assert len(book.run(CROSS, "e2", "mu2")) == 2


def test_a_book_of_before_knows_no_database_from_its_start():
    state = book_of("e1.mu", databases=["e1", "e2"]).to_object()
    book = TableBook.from_object({name: state[name] for name in ("tables", "charsets")})
    assert told(book.run(CROSS, "e2", "mu2")) == ["unmirrored e1.mu", "unmirrored e2.mu2"]


def test_a_database_that_was_dropped_is_no_longer_heard_of():
    book = book_of("old.t", databases=["e1", "e2"])
    book.run("DROP DATABASE old", "old")
    book.run(f"CREATE TABLE mu {T}", "e1", "mu")
    assert told(book.run(CROSS, "e2", "mu2")) == ["renamed e1.mu → e2.mu2"]


def test_a_database_that_is_made_again_has_no_character_set_of_before():
    book = TableBook()
    book.run("CREATE DATABASE d COLLATE utf8mb4_general_ci", "d")
    book.run("DROP DATABASE d", "d")
    book.run("CREATE DATABASE d", "d")
    book.run("CREATE TABLE t (s VARCHAR(9))", "d", "t")
    assert book.get("d", "t").column("s").collation == "utf8mb4_bin"


# --- what brings rows back ------------------------------------------------------------------------


def test_flashback_cluster_stops_every_table():
    book = book_of("d.t", "e.u")
    effects = book.run("FLASHBACK CLUSTER TO TIMESTAMP '2026-01-01'", "", None, [Name("f", "w")])
    assert told(effects) == ["unmirrored d.t", "unmirrored e.u", "unmirrored f.w"]


def test_flashback_database_stops_the_tables_that_its_drop_took_along():
    book = book_of("d.t", "d.u", "e.t")
    book.run("DROP DATABASE d", "d", None, [Name("d", "w")])
    again = saved(book)
    assert sorted(told(again.run("FLASHBACK DATABASE `D`", "d"))) == [
        "unmirrored d.t",
        "unmirrored d.u",
        "unmirrored d.w",
    ]
    # Nothing else is left of the DROP than what has come back.
    assert told(again.run("FLASHBACK DATABASE d", "d")) == ["unmirrored d.t", "unmirrored d.u"]


def test_flashback_database_stops_tables_under_the_new_name():
    book = book_of("d.t")
    book.run("DROP DATABASE d", "d")
    book.run("CREATE DATABASE d", "d")
    (effect,) = book.run("FLASHBACK SCHEMA d TO n", "n")
    assert (effect.kind, effect.name) == (ChangeKind.UNMIRRORED, Name("n", "t"))
    assert effect.change.reason.startswith("FLASHBACK SCHEMA brings back rows")


def test_flashback_database_stops_the_tables_that_are_there():
    book = book_of("d.t", "e.t")
    assert told(book.run("FLASHBACK DATABASE d", "d")) == ["unmirrored d.t"]


def test_the_tables_of_few_dropped_databases_are_remembered(monkeypatch):
    monkeypatch.setattr(tables_module, "MAX_DROPPED", 2)
    book = book_of("a.t", "b.t", "c.t")
    for name in "abc":
        book.run(f"DROP DATABASE {name}", name)
    assert told(book.run("FLASHBACK DATABASE a", "a")) == []
    assert told(book.run("FLASHBACK DATABASE b", "b")) == ["unmirrored b.t"]
    assert told(book.run("FLASHBACK DATABASE c", "c")) == ["unmirrored c.t"]


@pytest.mark.parametrize(
    ("gone", "back", "name"),
    [
        ("DROP TABLE d.t", "RECOVER TABLE `D`.`T`", "d.t"),
        ("DROP TABLE d.t", "FLASHBACK TABLE d.t TO u", "d.u"),
        ("TRUNCATE TABLE d.t", "FLASHBACK TABLE d.t TO u", "d.u"),
        ("DROP DATABASE d", "FLASHBACK DATABASE d TO n", "n.t"),
    ],
)
def test_a_table_that_comes_back_has_the_columns_that_it_had(gone, back, name):
    book = book_of("d.t")
    book.run(gone, "d")
    again = saved(book)
    assert told(again.run(back, "d")) == [f"unmirrored {name}"]
    (effect,) = again.run(f"CREATE TABLE x.y LIKE {name}", "x")
    assert effect.kind is ChangeKind.CREATED
    assert effect.change.after.column_names == ("id", "v")


def test_only_so_many_schemas_of_dropped_tables_are_remembered(monkeypatch):
    monkeypatch.setattr(tables_module, "MAX_DROPPED_SCHEMAS", 2)
    book = book_of("d.a", "d.b", "d.c")
    for table in "abca":
        book.run(f"CREATE TABLE {table} {T}", "d")
        book.run(f"DROP TABLE {table}", "d")
    assert [schema.table for schema in book.dropped()] == ["c", "a"]


def test_recover_by_job_stops_the_table_that_the_feed_names():
    query = "RECOVER TABLE BY JOB 5"
    assert told(TableBook().run(query, "d", "t")) == ["unmirrored d.t"]
    assert told(TableBook().run(query, "", schemas=schemas(after=("d.t", 1)))) == ["unmirrored d.t"]


# --- schemas that are not known -------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "ALTER TABLE t ADD COLUMN w INT",
        "ALTER TABLE t DROP PARTITION p",
        "ALTER TABLE t TRUNCATE PARTITION p",
        "CREATE UNIQUE INDEX i ON t (v)",
    ],
)
def test_a_statement_says_whether_it_lacks_only_the_schema(query):
    (effect,) = TableBook().run(query, "d", "t")
    assert (effect.kind, effect.change.lacks_schema) == (ChangeKind.UNMIRRORED, True)
    book = book_of("d.t")
    (effect,) = book.run("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE t", "d", "t")[:1]
    assert (effect.kind, effect.change.lacks_schema) == (ChangeKind.UNMIRRORED, False)
    assert not book.run(query, "d", "t")[0].change.lacks_schema


def test_a_statement_tells_the_schema_of_a_table_that_is_not_known():
    book = TableBook()
    beside = schemas(before=("d.t", 5), after=("d.t", 5))
    (effect,) = book.run("ALTER TABLE t ADD COLUMN w INT", "d", "t", schemas=beside)
    assert effect.kind is ChangeKind.ALTERED
    assert book.get("d", "t").column_names == ("id", "w")
    assert book.get("d", "t").table_id == 5


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "database", "beside", "expected"),
    [
        ("ALTER TABLE t ADD COLUMN w INT", "d", None, ["d.t"]),
        ("CREATE TABLE n LIKE x.o", "d", None, ["d.n", "x.o"]),
        ("DROP TABLE t, x.u", "d", None, ["d.t", "x.u"]),
        ("RENAME TABLE `d`.`t` TO `x`.`t`", "x", None, ["d.t", "x.t"]),
        ("ALTER TABLE t RENAME AS x.w", "x", None, ["d.t", "e.t", "x.t", "x.w"]),
        (
            "ALTER TABLE t RENAME AS x.w",
            "x",
            schemas(before=("y.t", 1), after=("x.w", 1)),
            ["x.t", "x.w", "y.t"],
        ),
        ("DROP DATABASE e", "e", None, ["e.t"]),
        ("FLASHBACK CLUSTER TO TSO 5", "", None, ["d.t", "e.t"]),
        ("ALTER TABLE p EXCHANGE PARTITION a WITH TABLE x.y", "d", None, ["d.p", "x.y"]),
        ("CREATE DATABASE z", "z", None, []),
    ],
)
def test_the_names_of_a_statement_are_all_that_it_touches(query, database, beside, expected):
    book = book_of("d.t", "e.t")
    before = book.to_object()
    assert sorted(map(str, book.names_of(query, database, schemas=beside))) == expected
    assert book.to_object() == before


# --- renames of one instant -----------------------------------------------------------------------


def renames(*pairs):
    return [
        DdlId(5, "d", new, f"RENAME TABLE `d`.`{old}` TO `d`.`{new}`")
        for old, new in (pair.split(">") for pair in pairs)
    ]


def rename_all(book, statements):
    for each in book.arrange(statements, lambda ddl: ddl):
        book.run(each.query, each.database, each.table)


@pytest.mark.parametrize("databases", [["d"], []], ids=["from the start", "midway"])
@pytest.mark.parametrize(
    ("names", "pairs", "expected"),
    [
        ("ab", ["b>c", "a>b"], {"a": "b", "b": "c"}),
        ("ab", ["a>tmp", "b>a", "tmp>b"], {"a": "b", "b": "a"}),
        ("abc", ["c>x", "b>c", "a>b"], {"a": "b", "b": "c", "c": "x"}),
        ("abc", ["a>b2", "c>c2"], {"a": "b2", "b": "b", "c": "c2"}),
    ],
)
def test_renames_of_one_instant_go_in_the_order_that_their_names_allow(
    names, pairs, expected, databases
):
    for shuffled in permutations(renames(*pairs)):
        book = book_of(databases=databases)
        for name in names:
            book.run(f"CREATE TABLE `{name}` (id INT PRIMARY KEY, `{name}` INT)", "d", name)
        rename_all(book, shuffled)
        assert {schema.column_names[1]: schema.table for schema in book} == expected


def test_a_rename_waits_for_a_table_that_is_not_known_to_leave_its_name():
    for shuffled in permutations(renames("b>c", "a>b")):
        book = book_of("d.a")
        rename_all(book, shuffled)
        assert known(book) == {"d.b"}


def test_other_statements_of_one_instant_stay_where_they_are():
    first, second = renames("b>c", "a>b")
    other = DdlId(5, "d", "x", f"CREATE TABLE x {T}")
    found = book_of("d.a", "d.b").arrange([second, other, first], lambda ddl: ddl)
    assert found == [first, other, second]
    assert TableBook().arrange([other], lambda ddl: ddl) == [other]


def test_renames_that_cannot_be_ordered_stay_as_they_came():
    stuck = renames("a>b", "b>a")
    assert book_of("d.a", "d.b").arrange(stuck, lambda ddl: ddl) == stuck


# --- times ----------------------------------------------------------------------------------------

NOON = 1_767_268_800_123 << 18  # 2026-01-01 12:00:00.123 UTC


@pytest.mark.parametrize(
    ("definition", "zone", "fill"),
    [
        ("TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP", "UTC", "2026-01-01 12:00:00"),
        ("TIMESTAMP DEFAULT CURRENT_TIMESTAMP", "Asia/Tokyo", "2026-01-01 21:00:00"),
        ("DATETIME DEFAULT NOW()", "Asia/Tokyo", "2026-01-01 21:00:00"),
        ("DATETIME(2) DEFAULT CURRENT_TIMESTAMP(2)", "UTC", "2026-01-01 12:00:00.12"),
        ("TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6)", "UTC", "2026-01-01 12:00:00.123000"),
        ("DATE DEFAULT (CURRENT_DATE)", "Pacific/Kiritimati", "2026-01-02"),
        ("DATETIME DEFAULT (CURDATE())", "UTC", "2026-01-01 00:00:00"),
    ],
)
def test_a_column_of_the_current_time_is_filled_with_the_commit_time_and_that_is_a_guess(
    definition, zone, fill
):
    query = f"ALTER TABLE t ADD COLUMN c {definition}"
    (effect,) = book_of("d.t").run(query, "d", "t", commit_ts=NOON, zone=zone)
    assert [entry.fill for entry in effect.change.columns] == [fill]
    assert effect.change.guesses == (
        "The column c of earlier rows has the commit time of ALTER TABLE `d`.`t`, "
        "which may be later than the time upstream.",
    )


def test_a_default_that_the_statement_tells_is_no_guess():
    query = "ALTER TABLE t ADD COLUMN c TIMESTAMP DEFAULT '2026-01-01 00:00:00', ADD COLUMN w INT"
    (effect,) = book_of("d.t").run(query, "d", "t", commit_ts=NOON, zone="Asia/Tokyo")
    assert [entry.fill for entry in effect.change.columns] == ["2026-01-01 00:00:00", None]
    assert effect.change.guesses == ()


def test_a_default_that_no_statement_tells_is_reported():
    query = "ALTER TABLE t ADD COLUMN c VARCHAR(36) DEFAULT (UUID()), ADD g INT AS (v + 1) VIRTUAL"
    (effect,) = book_of("d.t").run(query, "d", "t", commit_ts=NOON)
    assert effect.change.guesses == (
        "The column c of earlier rows is NULL, because ALTER TABLE `d`.`t` does not tell its value.",
    )
