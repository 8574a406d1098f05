"""Table filter rules read as TiDB's tools read them."""

import pickle

import pytest

from tidegate.changefeed.config.filter import TableFilter
from tidegate.model import ConfigError

# rules, then tables that are in and tables that are out
CASES = [
    # names
    (["db1.tbl1", "db2.tbl2"], ["db1.tbl1", "db2.tbl2"], ["db1.tbl2", "db3.tbl3", "db1.tbl11"]),
    (["$a_1.naïve"], ["$a_1.naïve"], ["a_1.naïve"]),
    # wildcards
    (["*.*"], ["a.b", "中.文"], []),
    (["data.*"], ["data.t", "DATA.t"], ["dat.t", "data1.t"]),
    (["*.backup_*"], ["a.backup_", "b.backup_x"], ["a.backup", "a.xbackup_x"]),
    (["d?.t"], ["d1.t", "dé.t"], ["d.t", "d12.t"]),
    (
        ["db[0-9].tbl[0-9a-f][0-9a-f]"],
        ["db0.tbl00", "db9.tblff"],
        ["db00.tbl00", "db0.tbl0", "db0.tblgg", "dbx.tbl00"],
    ),
    (["t[!a-c].*"], ["td.x", "t[.x"], ["ta.x", "tc.x"]),
    (["t[^a].*"], ["t^.x", "ta.x"], ["tb.x"]),
    ([r"t[\]\-].*"], ["t].x", "t-.x"], ["t\\.x"]),
    (["a$*.b"], ["a$.b", "a$x.b"], ["a.b"]),
    # escapes and quotes
    ([r"db\.with\.dots.*"], [("db.with.dots", "t")], [("db", "with.dots.t")]),
    ([r"a\*.b"], ["a*.b"], ["ax.b"]),
    ([r"a\*?.b"], ["a*x.b"], ["axx.b", "a*.b"]),
    ([r"\é*.t"], ["éa.t"], ["a.t"]),
    (['"db.with.dots"."tbl\\1"'], [("db.with.dots", "tbl\\1")], [("db.with.dots", "tbl1")]),
    (["`a``b`.`*`"], [("a`b", "*")], [("a`b", "x")]),
    (['"foo""bar".t'], [('foo"bar', "t")], [('foo""bar', "t")]),
    # regular expressions, found anywhere in a name
    ([r"/^db\d{2,}$/./^tbl\d{2,}$/"], ["db01.tbl22"], ["db1.tbl22", "xdb01.tbl22"]),
    (["/b/.*"], ["db01.t", "b.t"], ["d.t"]),
    ([r"/a\/b/.t"], [("xa/by", "t")], [("ab", "t")]),
    ([r"/^a.b$/.`t`"], ["a.b.t", ("axb", "t")], [("ab", "t")]),
    ([r"/^\d+$/.*"], ["123.t"], [("١٢٣", "t")]),
    # exclusions: the last rule that matches decides
    (["!*.Password"], [], ["a.b", "a.Password"]),
    (["*.*", "!*.Password"], ["a.b"], ["a.Password", "a.password"]),
    (
        ["employees.*", "!*.dep*", "*.departments"],
        ["employees.employees", "employees.departments", "else.departments"],
        ["irrelevant.table", "employees.dept_emp"],
    ),
    # blank ones and comments
    (["", "  \t", "# a.b", "  x.y  "], ["x.y"], ["a.b"]),
    ([], [], ["a.b"]),
]


def table(name: str | tuple[str, str]) -> tuple[str, str]:
    if isinstance(name, tuple):
        return name
    database, _, rest = name.rpartition(".")
    return database, rest


@pytest.mark.parametrize("rules, inside, outside", CASES, ids=lambda value: repr(value)[:40])
def test_the_last_matching_rule_decides(
    rules: list[str],
    inside: list[str | tuple[str, str]],
    outside: list[str | tuple[str, str]],
) -> None:
    tables = TableFilter.parse(rules)

    assert [name for name in inside if not tables.matches(*table(name))] == []
    assert [name for name in outside if tables.matches(*table(name))] == []


@pytest.mark.parametrize("rule", ["Db.TBL", "D*.T*", "/^DB$/.`tbL`", '"dB".t[A-C]?', "DB.*"])
def test_case_matters_only_if_asked(rule: str) -> None:
    insensitive = TableFilter.parse([rule])
    sensitive = TableFilter.parse([rule], case_sensitive=True)

    assert insensitive.matches("db", "tbl")
    assert insensitive.matches("DB", "TBL")
    assert not sensitive.matches("db", "tbl")


def test_a_text_holds_one_rule_a_line() -> None:
    tables = TableFilter.parse("\n# all but one\n*.*\n!a.b\n")

    assert tables.matches("a", "c")
    assert not tables.matches("a", "b")


@pytest.mark.parametrize(
    "rules, databases",
    [
        (["a.x"], {"a"}),
        (["*.*", "!b.x"], {"a", "b"}),
        (["*.*", "!b.*"], {"a"}),
        (["*.*", "!b.*", "b.x"], {"a", "b"}),
        (["!a.*"], set()),
    ],
)
def test_databases_that_can_have_a_table(rules: list[str], databases: set[str]) -> None:
    tables = TableFilter.parse(rules)

    assert {name for name in ("a", "b") if tables.matches_database(name)} == databases


@pytest.mark.parametrize(
    "rule, reason",
    [
        ("db", "it has no table part: write database.table"),
        ("db.", "a name is missing: write database.table"),
        ("!", "a name is missing: write database.table"),
        ("`db`x.t", "a dot must follow the database, not 'x'"),
        ("a.b.c", "nothing may follow the table, but '.c' does"),
        ("a.`b`c", "nothing may follow the table, but 'c' does"),
        ("a.b # c", "' ' must be escaped with a backslash or the name be quoted"),
        ("a-b.c", "'-' must be escaped with a backslash or the name be quoted"),
        ("a.b\\", "a backslash cannot be the last character"),
        ("a.\\n", "a backslash cannot stand before the letter or digit 'n'"),
        ("a.[", "the character class after [ must end with ] and not be empty"),
        ("a.[]", "the character class after [ must end with ] and not be empty"),
        ("a.[z-a]", "the pattern is no regular expression: invalid character class range: z-a"),
        ("`a.b", "a quoted name must end with ` and not be empty"),
        ('"".b', 'a quoted name must end with " and not be empty'),
        ("/a.b", "a regular expression must end with / and not be empty"),
        ("/(/.b", "the pattern is no regular expression: missing ): ("),
        ("@tables.txt", "a file of rules is not read here: put its lines in its place"),
    ],
)
def test_a_wrong_rule_is_named_and_explained(rule: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TableFilter.parse(["*.*", rule])

    assert caught.value.setting == "filter.rules[1]"
    assert caught.value.reason == f"{reason} (the rule is {rule!r})"


def test_a_filter_can_be_sent_to_workers() -> None:
    tables = TableFilter.parse(["a*.b", "/x/.`y`"])

    assert pickle.loads(pickle.dumps(tables)) == tables
