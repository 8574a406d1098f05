"""Topics in use: what statements retire, what comes back, and what is always there."""

from random import Random

import pytest

from tests.support.changes import ddl
from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.receive.topic_use import (
    FeedTopics,
    TopicSurvey,
    TopicUse,
    earlier_use,
)
from tidegate.changefeed.send.dispatch import Dispatcher
from tidegate.sql.tables import Name, TableBook

URI = "kafka://h:1/main?protocol=open-protocol"


def rules(topic):
    toml = f"[sink]\ndispatchers = [{{matcher = ['*.*'], topic = '{topic}'}}]"
    dispatcher = Dispatcher(ChangefeedConfig.from_toml(toml, URI), 1)
    return FeedTopics("main", dispatcher.topic, dispatcher.may_be_of)


BY_TABLE = rules("{schema}_{table}")
BY_DATABASE = rules("{schema}")
UNKNOWN = FeedTopics()


def statement(query, table="a", topic="d_a", database="d"):
    return ddl(query, 5, "0/0", table) | {"topic": topic, "database": database}


def book(*tables, key="PRIMARY KEY"):
    found = TableBook()
    for table in tables:
        found.run(f"CREATE TABLE {table} (id INT {key})", "d")
    return found


def survey(topics, known, others=()):
    fresh = TopicSurvey(topics)
    fresh.learn(known, others)
    return fresh


def after(*statements, topics=BY_TABLE, tables=("a", "b"), before=None, known=(), there=()):
    tables = book(*tables)
    asked = survey(topics, tables, known)
    return asked.use(before or TopicUse(), statements, tables, there=lambda: there)


@pytest.mark.parametrize(
    ("query", "retired", "awaited"),
    [
        ("ALTER TABLE a ADD COLUMN c INT", set(), {"main", "d_a", "d_b"}),
        ("DROP TABLE a", {"d_a"}, {"main", "d_b"}),
        ("RENAME TABLE a TO c", {"d_a"}, {"main", "d_b", "d_c"}),
        ("RENAME TABLE a TO e.a", {"d_a"}, {"main", "d_b", "e_a"}),
        ("TRUNCATE TABLE a", set(), {"main", "d_a", "d_b"}),
        ("CREATE TABLE c (id INT PRIMARY KEY)", set(), {"main", "d_a", "d_b", "d_c"}),
    ],
)
def test_a_topic_retires_when_its_last_table_leaves(query, retired, awaited):
    found = after(statement(query))
    assert (found.retired, found.awaited) == (retired, awaited)


def test_a_dropped_database_takes_the_topics_of_unknown_tables_along():
    drop = statement("DROP DATABASE `e`", table="", topic="main", database="e")
    found = after(drop, there=["main", "d_a", "d_b", "e_u", "e_", "f_e_u", "x"])
    assert found.retired == {"e_u"}


def test_a_topic_that_another_table_dispatches_to_does_not_retire():
    drop = statement("DROP TABLE a", topic="d")
    assert after(drop, topics=BY_DATABASE).retired == set()
    assert after(drop, topics=BY_DATABASE, tables=("a",)).retired == {"d"}


def test_a_table_of_which_only_the_name_is_known_keeps_its_topic():
    drop = statement("DROP TABLE a", topic="d")
    found = after(drop, topics=BY_DATABASE, tables=("a",), known=[Name("d", "x")])
    assert found.retired == set()


def test_a_database_that_is_dropped_retires_the_topics_of_all_its_tables():
    drop = statement("DROP DATABASE d", table="", topic="main")
    found = after(drop, known=[Name("d", "x"), Name("e", "y")])
    assert found.retired == {"d_a", "d_b", "d_x"}
    assert found.awaited == {"main", "e_y"}


def test_a_rename_swap_retires_only_the_topic_of_the_name_between():
    swap = statement("RENAME TABLE a TO t, b TO a, t TO b")
    assert after(swap).retired == {"d_t"}


def test_the_default_topic_never_retires():
    assert after(statement("DROP TABLE a", topic="main")).retired == {"d_a"}
    alone = FeedTopics("main")
    assert after(statement("DROP TABLE a", topic="main"), topics=alone) == TopicUse()


@pytest.mark.parametrize(
    "query", ["CREATE TABLE a (id INT PRIMARY KEY)", "RENAME TABLE b TO a", "RECOVER TABLE a"]
)
def test_a_retired_topic_comes_back_with_a_table(query):
    before = after(statement("DROP TABLE a"))
    tables = book("b")
    again = survey(BY_TABLE, tables).use(before, [statement(query)], tables)
    assert "d_a" not in again.retired
    assert "d_a" in again.awaited


def test_statements_count_in_their_order():
    create = statement("CREATE TABLE a (id INT PRIMARY KEY)")
    drop = statement("DROP TABLE a")
    assert after(drop, create).retired == set()
    assert after(drop, create, drop).retired == {"d_a"}


@pytest.mark.parametrize(
    "query",
    [
        "CREATE VIEW c AS SELECT 1",
        "CREATE GLOBAL TEMPORARY TABLE c (id INT PRIMARY KEY) ON COMMIT DELETE ROWS",
        "CREATE TABLE c (id INT)",
    ],
)
def test_the_topic_of_what_sends_no_rows_is_not_awaited(query):
    assert after(statement(query, "c", "d_c")).awaited == {"main", "d_a", "d_b"}


def test_a_name_is_spelled_as_beside_the_statement():
    drop = statement("DROP TABLE tmpdb.t", "T", "TmpDB_T", "TmpDB")
    assert "TmpDB_T" in after(drop).retired


def test_the_book_is_left_as_it_was():
    known = book("a")
    survey(BY_TABLE, known).use(TopicUse(), [statement("DROP TABLE a")], known)
    assert known.get("d", "a") is not None


# --- without dispatch rules -----------------------------------------------------------------------


def test_without_rules_a_table_has_the_topic_that_its_statements_came_by():
    create = statement("CREATE TABLE c (id INT PRIMARY KEY)", "c", "one")
    other = statement("ALTER TABLE b ADD COLUMN c INT", "b", "two")
    drops = [statement("DROP TABLE c", "c", "one"), statement("DROP TABLE b", "b", "two")]
    found = after(create, other, *drops[:1], topics=UNKNOWN)
    assert (found.retired, found.awaited) == ({"one"}, None)
    assert found.homes == {("d", "b"): "two"}
    assert after(create, other, *drops, topics=UNKNOWN).retired == {"one", "two"}


def test_without_rules_a_rename_is_of_the_table_whose_statements_came_by_its_topic():
    created = "CREATE TABLE a (id INT PRIMARY KEY)"
    use = after(
        statement(created),
        statement(created, topic="e_a", database="e"),
        statement("ALTER TABLE a RENAME AS e.w", table="w", topic="d_a", database="e"),
        topics=UNKNOWN,
        tables=(),
    )
    assert use.retired == {"d_a"}


def test_without_rules_what_statements_have_shown_is_remembered():
    other = statement("ALTER TABLE b ADD COLUMN c INT", "b", "one")
    before = after(other, topics=UNKNOWN)
    drop = statement("DROP TABLE a", "a", "one")
    assert after(drop, topics=UNKNOWN, before=before).retired == set()


def test_without_rules_the_topic_of_statements_about_databases_never_retires():
    create = statement("CREATE DATABASE e", "", "one", "e")
    drop = statement("DROP TABLE a", "a", "one")
    assert after(create, drop, topics=UNKNOWN).retired == set()


# --- a survey that is kept ------------------------------------------------------------------------

QUERIES = [
    "CREATE TABLE {} (id INT PRIMARY KEY)",
    "CREATE TABLE {} (id INT)",
    "DROP TABLE {}",
    "RENAME TABLE {} TO {}",
    "ALTER TABLE {} ADD PRIMARY KEY (id)",
    "ALTER TABLE {} DROP PRIMARY KEY",
    "TRUNCATE TABLE {}",
    "DROP DATABASE d",
    "RECOVER TABLE {}",
]


@pytest.mark.parametrize("topics", [BY_TABLE, BY_DATABASE, UNKNOWN], ids=["table", "db", "unknown"])
@pytest.mark.parametrize("seed", range(20))
def test_a_survey_that_is_kept_says_what_a_new_one_says(topics, seed):
    """Statements wait for a while before they are applied, and tables appear by their rows."""
    random = Random(seed)
    tables, kept, use, waiting = book("a", "b"), TopicSurvey(topics), TopicUse(), []
    for _ in range(60):
        table, other = (Name("d", random.choice("abcdef")) for _ in range(2))
        query = random.choice(QUERIES).format(table.table, other.table)
        waiting.append(statement(query, table.table, f"d_{table.table}"))
        seen = [Name("d", "seen")] if random.random() < 0.2 else []
        known = [Name("d", "stopped")] if random.random() < 0.5 else []
        there = lambda: ["d_a", "d_x", "e_a"]  # noqa: E731
        kept.learn(tables, known)
        of_new = survey(topics, tables, known).use(use, waiting, tables, seen, there)
        use = kept.use(use, waiting, tables, seen, there)
        assert use == of_new
        if random.random() < 0.4:
            for row in waiting:
                tables.run(row["ddl"]["query"], row["database"], row["table"])
            waiting.clear()


# --- before a load --------------------------------------------------------------------------------


def test_statements_up_to_a_load_retire_the_topics_of_tables_that_it_does_not_have():
    early = [
        statement("CREATE TABLE a (id INT PRIMARY KEY)"),
        statement("CREATE TABLE b (id INT PRIMARY KEY)", "b", "d_b"),
        statement("DROP TABLE a"),
    ]
    use = earlier_use(TopicUse(), BY_TABLE, early, lambda: {"main", "d_a", "d_b"})
    assert (use.retired, use.awaited, use.unseen) == ({"d_a"}, None, {Name("d", "b")})
    for name, retired in (("a", set()), ("b", {"d_a"})):
        tables = book(name)
        assert survey(BY_TABLE, tables, []).use(use, [], tables).retired == retired
