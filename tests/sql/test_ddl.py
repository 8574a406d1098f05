"""DDL statements as schema transitions: every statement of the golden corpus, then rules one by one."""

import logging
import random
from dataclasses import dataclass, replace
from functools import cache

import pytest

from tests.support import corpus, truth
from tests.support.table_schema import known_schema
from tidegate.model import sql
from tidegate.model.schema import ABSENT, Column, Index, TableSchema
from tidegate.model.types import Flag
from tidegate.sql.ddl import ChangeKind, TableChange, transition
from tidegate.sql.definition import Charset
from tidegate.sql.statement import MAX_CHARACTERS, MAX_DEPTH, MAX_TOKENS, TableName

UTF8MB4 = Charset("utf8mb4", "utf8mb4_bin")
CLASSIC = [
    "ddl",
    "mixed1",
    "types",
    "types_ck",
    "bank",
    "tall8",
    "tall20",
    "nopk",
    "large",
    "alias",
]
NEW = ["new/ddl", "new/types", "new/bank", "new/x_flags", "new/x_nulls", "new/x_renameswap"]

# --- the golden corpus ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Replayed:
    """A statement of a scenario, what TiDB made of it, and what Tidegate does."""

    query: str
    code: int
    before: TableSchema | None
    expected: TableSchema | None
    raw: dict | None
    change: TableChange


@cache
def statements(scenario):
    return [event for event in corpus.events(scenario) if event["kind"] == "ddl"]


@cache
def replay(scenario, *, carried=False):
    """Every statement of a scenario, applied to the schema that TiDB had before it.

    `carried`: to the schema that Tidegate itself had come to, statement by statement. The new
    architecture does not tell what was before, so there it is always so.
    """
    carried = carried or scenario.startswith("new/")
    tables, gone, charsets, found = {}, {}, {}, []
    for event in statements(scenario):
        raw, raw_before = event["table"], event["preTable"]
        database = event.get("schema") or raw["schema"]
        table = event.get("tableName") or (raw or {}).get("table")
        name = (raw_before["schema"], raw_before["table"]) if raw_before else (database, table)
        if event["typeCode"] == truth.EXCHANGE_PARTITION:
            name = (raw["schema"], raw["table"])
        before = tables.get(name, gone.get(name)) if carried else known_schema(raw_before)
        if event["typeCode"] == RECOVER_TABLE:
            before = gone[RECOVERED[event["query"]]]
        change = transition(
            before,
            event["query"],
            database,
            lookup=lambda *name: tables.get(name),
            charset=charsets.get(database, UTF8MB4),
        )
        found.append(
            Replayed(event["query"], event["typeCode"], before, known_schema(raw), raw, change)
        )
        if change.charset is not None:
            charsets[change.database] = change.charset
        for old in change.tables if change.kind in GOING else ():
            gone[old] = tables.pop(old, None)
        if change.after is not None:
            tables[change.after.database, change.after.table] = change.after
    return found


RECOVER_TABLE = 25
RECOVERED = {
    "RECOVER TABLE `d2`.`x`": ("d2", "x"),
    "FLASHBACK TABLE `rec` TO `rec2`": ("d1", "rec"),
}
GOING = (ChangeKind.DROPPED, ChangeKind.RENAMED)


def comparable(schema):
    """A schema without what no statement tells; the place of the primary key means nothing."""
    if schema is None:
        return None
    keys = sorted(schema.indexes, key=lambda index: index.primary)
    return replace(schema, indexes=tuple(keys), table_id=None, version=None, partitioning=None)


def has_no_rows(replayed):
    return replayed.raw is None or replayed.raw.get("columns") is None


# Where the schema after a statement is not the one that TiDB had, and why.
EXCEPTIONS = {
    # An expression in an index makes a hidden column, whose type only TiDB's type inference tells; it
    # is virtual, so that no row ever carries it.
    "CREATE TABLE `expridx` (`id` INT PRIMARY KEY,`n` VARCHAR(20),INDEX `kx`((LOWER(`n`))))",
    # A view has no rows. TiDB lists its columns, all without a type.
    "CREATE ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW `v1` AS SELECT `id`,`a` FROM `ms`",
    "CREATE OR REPLACE ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW `v1` AS SELECT `id` FROM `ms`",
    # The new architecture names the table of a swap's first rename as it is called in the end.
    "RENAME TABLE `rs`.`a` TO `rs`.`tmp`;",
}
# The classic architecture gives the other table as the one before.
CLASSIC_EXCEPTIONS = {"ALTER TABLE `d1`.`p1` EXCHANGE PARTITION `p0` WITH TABLE `d1`.`ex`"}
DROPS = (2, 4, 24)


def differences(scenario, **how):
    return {
        each.query: (each.change.after, each.expected)
        for each in replay(scenario, **how)
        if comparable(each.change.after)
        != (None if each.code in DROPS else comparable(each.expected))
    }


@pytest.mark.parametrize("scenario", CLASSIC + NEW)
def test_the_schema_after_a_statement_is_the_one_that_tidb_had(scenario):
    exceptions = EXCEPTIONS if scenario.startswith("new/") else EXCEPTIONS | CLASSIC_EXCEPTIONS
    found = {q: d for q, d in differences(scenario).items() if q not in exceptions}
    assert found == {}


@pytest.mark.parametrize("scenario", CLASSIC)
def test_schemas_carried_forward_stay_those_of_tidb(scenario):
    found = {q: d for q, d in differences(scenario, carried=True).items() if q not in EXCEPTIONS}
    assert found == {}


def test_no_exception_is_idle():
    found = {query for scenario in CLASSIC + NEW for query in differences(scenario)}
    assert found == EXCEPTIONS | CLASSIC_EXCEPTIONS


# What TiDB's job types are to rows; an index is something only if it is unique.
KINDS = {
    1: {ChangeKind.DATABASE_CREATED},
    2: {ChangeKind.DATABASE_DROPPED},
    3: {ChangeKind.CREATED},
    4: {ChangeKind.DROPPED},
    5: {ChangeKind.ALTERED},
    6: {ChangeKind.ALTERED},
    7: {ChangeKind.ALTERED, ChangeKind.UNCHANGED},
    8: {ChangeKind.ALTERED, ChangeKind.UNCHANGED},
    10: {ChangeKind.UNCHANGED},
    11: {ChangeKind.TRUNCATED},
    12: {ChangeKind.ALTERED},
    13: {ChangeKind.UNCHANGED},
    14: {ChangeKind.RENAMED},
    15: {ChangeKind.ALTERED},
    17: {ChangeKind.UNCHANGED},
    18: {ChangeKind.UNCHANGED},
    19: {ChangeKind.UNCHANGED},
    20: {ChangeKind.PRUNED},
    21: {ChangeKind.UNCHANGED},
    22: {ChangeKind.UNCHANGED},
    23: {ChangeKind.PRUNED},
    24: {ChangeKind.UNCHANGED},
    25: {ChangeKind.UNMIRRORED},
    26: {ChangeKind.DATABASE_ALTERED},
    32: {ChangeKind.ALTERED},
    33: {ChangeKind.ALTERED},
    41: {ChangeKind.UNCHANGED},
    42: {ChangeKind.UNMIRRORED},
    61: {ChangeKind.ALTERED},
    64: {ChangeKind.UNCHANGED},
    65: {ChangeKind.UNCHANGED},
    71: {ChangeKind.UNCHANGED},
    72: {ChangeKind.UNCHANGED},
}


@pytest.mark.parametrize("scenario", CLASSIC + NEW)
def test_every_job_type_is_the_kind_of_change_that_it_is_to_rows(scenario):
    odd = [
        (each.query, each.change.kind)
        for each in replay(scenario, carried=True)
        if each.change.kind not in KINDS[each.code]
    ]
    assert odd == []


def test_a_change_that_is_not_mirrored_says_why_in_a_sentence():
    reasons = {
        each.change.reason
        for scenario in CLASSIC + NEW
        for each in replay(scenario, carried=True)
        if each.change.kind is ChangeKind.UNMIRRORED
    }
    assert reasons == {
        "EXCHANGE PARTITION swaps rows between `d1`.`p1` and `d1`.`ex`, and the feed carries none of them.",
        "RECOVER TABLE brings back rows that the feed does not send again.",
        "FLASHBACK TABLE brings back rows that the feed does not send again.",
    }


def row_text(value, column):
    """A default of the truth as rows carry the value."""
    if value is None:
        return None
    text = value["v"]
    if column.base_type == "enum":
        return str(column.elements.index(text) + 1)
    return text


def test_rows_hold_what_tidb_gave_them_in_an_added_column():
    for scenario in ("ddl", "mixed1", "new/ddl", "new/x_flags", "alias"):
        for each in replay(scenario):
            told = {column["n"]: column for column in (each.raw or {}).get("columns") or ()}
            for change in each.change.columns:
                if change.before is None and change.after.generated is None:
                    origin = told[change.after.name]["originDefault"]
                    assert change.fill == row_text(origin, change.after), each.query


def test_every_schema_survives_its_json_form():
    for scenario in ("ddl", "types", "mixed1"):
        for each in replay(scenario, carried=True):
            after = each.change.after
            assert after is None or TableSchema.from_json(after.to_json()) == after


def test_nothing_is_logged(caplog):
    with caplog.at_level(logging.DEBUG):
        for scenario in ("ddl", "mixed1"):
            replay.__wrapped__(scenario, carried=True)
    assert caplog.records == []


# --- columns: types, lengths, defaults ------------------------------------------------------------


def created(definitions, options="", **how):
    change = transition(
        None, f"CREATE TABLE t ({definitions}) {options}", "d", **({"charset": UTF8MB4} | how)
    )
    assert change.kind is ChangeKind.CREATED, change.reason
    return change.after


def column(definition):
    return created(f"c {definition}").columns[0]


@pytest.mark.parametrize(
    ("definition", "full_type", "length"),
    [
        ("tinyint", "tinyint(4)", 4),
        ("TINYINT UNSIGNED", "tinyint(3) unsigned", 3),
        ("smallint unsigned", "smallint(5) unsigned", 5),
        ("mediumint unsigned", "mediumint(8) unsigned", 8),
        ("middleint", "mediumint(9)", 9),
        ("integer", "int(11)", 11),
        ("int4 unsigned", "int(10) unsigned", 10),
        ("int(5) zerofill", "int(5) unsigned zerofill", 5),
        ("int signed", "int(11)", 11),
        ("bigint unsigned", "bigint(20) unsigned", 20),
        ("bool", "tinyint(1)", 1),
        ("boolean not null", "tinyint(1)", 1),
        ("serial", "bigint(20) unsigned", 20),
        ("float", "float", 12),
        ("float(24)", "float", 12),
        ("float(25)", "double", 22),
        ("float(7,3)", "float(7,3)", 7),
        ("double precision", "double", 22),
        ("real", "double", 22),
        ("double(20,5) unsigned", "double(20,5) unsigned", 20),
        ("decimal", "decimal(10,0)", 10),
        ("dec(7)", "decimal(7,0)", 7),
        ("numeric(7,2) unsigned", "decimal(7,2) unsigned", 7),
        ("fixed(65,30)", "decimal(65,30)", 65),
        ("bit", "bit(1)", 1),
        ("bit(64)", "bit(64)", 64),
        ("year", "year(4)", 4),
        ("date", "date", 10),
        ("time", "time", 10),
        ("time(2)", "time(2)", 13),
        ("datetime", "datetime", 19),
        ("datetime(6)", "datetime(6)", 26),
        ("timestamp(3)", "timestamp(3)", 23),
        ("char", "char(1)", 1),
        ("character(3)", "char(3)", 3),
        ("national char(3)", "char(3)", 3),
        ("nchar varying(9)", "varchar(9)", 9),
        ("character varying(9)", "varchar(9)", 9),
        ("varchar(9)", "varchar(9)", 9),
        ("char(9) character set binary", "binary(9)", 9),
        ("varchar(9) charset binary", "varbinary(9)", 9),
        ("char(9) byte", "binary(9)", 9),
        ("binary", "binary(1)", 1),
        ("varbinary(9)", "varbinary(9)", 9),
        ("tinytext", "tinytext", 255),
        ("text", "text", 65535),
        ("text(10)", "tinytext", 255),
        ("text(100)", "text", 65535),
        ("text(20000)", "mediumtext", 16777215),
        ("text(100) character set latin1", "tinytext", 255),
        ("text character set binary", "blob", 65535),
        ("blob(255)", "tinyblob", 255),
        ("blob(16777216)", "longblob", 4294967295),
        ("long varchar", "mediumtext", 16777215),
        ("long varbinary", "mediumblob", 16777215),
        ("longtext", "longtext", 4294967295),
        ("varchar(20000)", "mediumtext", 16777215),  # without strict mode
        ("json", "json", 4294967295),
        ("vector", "vector", -1),
        ("vector<float>(3)", "vector(3)", 3),
        ("enum('a','bcd ','值')", "enum('a','bcd','值')", 3),
        ("set('a','bcd','值')", "set('a','bcd','值')", 9),
        ("enum(x'61', 'b')", "enum('a','b')", 1),
    ],
)
def test_a_type_has_the_length_that_tidb_gives_it(definition, full_type, length):
    made = column(definition)
    assert (made.full_type, made.length) == (full_type, length)


@pytest.mark.parametrize(
    ("definition", "default"),
    [
        ("int", None),
        ("int default null", None),
        ("int default 007", "7"),
        ("int default +5", "5"),
        ("int default - 5", "-5"),
        ("int default '1.5'", "2"),
        ("int default 1e2", "100"),
        ("int default true", "1"),
        ("int default x'10'", "16"),
        ("bigint unsigned default 18446744073709551615", "18446744073709551615"),
        ("decimal(5,2) default 1.005", "1.005"),
        ("decimal(5,2) default .5", "0.5"),
        ("decimal(5,2) default (-4217.2954)", "-4217.2954"),
        ("double default -1.5e+10", "-15000000000"),
        ("double default 1e-7", "0.0000001"),
        ("float default 0.1", "0.1"),
        ("float default 16777217", "16777216"),
        ("float(7,2) default 1.255", "1.25"),  # as a double it is less than half way
        ("float(7,2) default 1.256", "1.26"),
        ("varchar(9) default 5", "5"),
        ("varchar(9) default 1e3", "1000"),
        ("varchar(9) default ''", ""),
        ("varchar(9) default 'it''s'", "it's"),
        ("varchar(9) default _utf8mb4'é'", "é"),
        ("varchar(9) default N'é'", "é"),
        ("varchar(9) default x'c3a9'", "é"),
        ("varchar(9) default 0x61", "a"),
        ("binary(4) default 'ab'", "ab\0\0"),
        ("varbinary(4) default 'ab'", "ab"),
        ("bit(8) default b'101'", 5),
        ("bit(8) default 7", 7),
        ("bit(8) default x'ff'", 255),
        ("bit(16) default 'A'", 65),
        ("bit(1) default '1'", 49),
        ("enum('a','b') default 'b'", "b"),
        ("enum('a','b') default 2", "b"),
        ("enum('a','B') collate utf8mb4_general_ci default 'b'", "B"),
        ("set('a','b','c') default 'c,a'", "a,c"),
        ("set('a','b','c') default 6", "b,c"),
        ("set('a','b','c') default ''", ""),
        ("date default '2000-1-2'", "2000-01-02"),
        ("date default 20000102", "2000-01-02"),
        ("date default '99.1.2'", "1999-01-02"),
        ("datetime default 0", "0000-00-00 00:00:00"),
        ("datetime(1) default 20000102030405.67", "2000-01-02 03:04:05.7"),
        ("datetime default '2000-01-02'", "2000-01-02 00:00:00"),
        ("datetime(3) default '2000-01-02 03:04:05'", "2000-01-02 03:04:05.000"),
        ("datetime default '1999-12-31 23:59:59.5'", "2000-01-01 00:00:00"),
        ("datetime(1) default '1999-12-31 23:59:59.96'", "2000-01-01 00:00:00.0"),
        ("datetime default timestamp'2000-01-02 03:04:05'", "2000-01-02 03:04:05"),
        ("datetime default '0000-00-00 00:00:00'", "0000-00-00 00:00:00"),
        ("time default '1:2'", "01:02:00"),
        ("time(2) default '-12:30:00.456'", "-12:30:00.46"),
        ("time default 123456", "12:34:56"),
        ("year default 2001", "2001"),
        ("year not null", "0000"),
        ("timestamp default current_timestamp", "CURRENT_TIMESTAMP"),
        ("datetime(3) default now(3) on update now(3)", "CURRENT_TIMESTAMP"),
        ("date default (current_date())", "CURRENT_DATE"),
        ("varchar(36) default (uuid())", "uuid()"),
        ("int default next value for s", "nextval(`s`)"),
        ("int default nextval(`d`.`s`)", "nextval(`d`.`s`)"),
        ("json default (JSON_OBJECT(_UTF8MB4'a',1))", "json_object(_utf8mb4'a', 1)"),
    ],
)
def test_a_default_is_kept_as_tidb_keeps_it(definition, default):
    assert column(definition).default == default


@pytest.mark.parametrize(
    ("definition", "fill"),
    [
        ("int", None),
        ("int not null", "0"),
        ("int default 7", "7"),
        ("decimal(5,2) not null default 1.005", "1.01"),
        ("varchar(9) not null", ""),
        ("varchar(9) default null", None),
        ("binary(3) not null", "AAAA"),
        ("varbinary(9) default x'00ff'", "AP8="),
        ("blob not null", ""),
        ("datetime(3) not null", "0000-00-00 00:00:00"),
        ("date not null", "0000-00-00"),
        ("date default '99-1-2'", "1999-01-02"),
        ("time not null", "00:00:00"),
        ("time(3) not null", "00:00:00.000"),
        ("time default '2020-01-02 03:04:05'", "03:04:05"),
        ("decimal(60,20) not null", "0.00000000000000000000"),
        ("char(9) default 'a '", "a"),
        ("year not null", "0"),
        ("year default 70", "1970"),
        ("year default '0'", "2000"),
        ("bit(8) not null", "0"),
        ("bit(8) default b'101'", "5"),
        ("bit(8) default '5'", "53"),
        ("bit(1) default '1'", "1"),
        ("bit default 'FALSE'", "0"),
        ("float(7,2) default 1.256", "1.26"),
        ("tinyint default '12'", "12"),
        ("decimal(5,2) default 12e-1", "1.20"),
        ("binary(4) default 12", "MTIAAA=="),
        ("binary(4) default 0xff", "/wAAAA=="),
        ("enum('a','b') default 2", "2"),
        ("set('a','b') default 3", "3"),
        ("enum('a','b') not null", "1"),
        ("enum('a','b') default 'b'", "2"),
        ("set('a','b') not null", "0"),
        ("set('a','b') default 'a,b'", "3"),
        ("json not null", "null"),
        ("timestamp default current_timestamp", ABSENT),
        ("json default (json_array())", ABSENT),
        ("int as (id + 1) stored", ABSENT),
        ("int as (id + 1)", ABSENT),
    ],
)
def test_rows_that_were_there_are_filled_as_rows_carry_values(definition, fill):
    change = transition(created("id int"), f"ALTER TABLE t ADD COLUMN c {definition}", "d")
    assert [each.fill for each in change.columns] == [fill]


@pytest.mark.parametrize(
    ("definition", "options", "charset", "collation"),
    [
        ("varchar(9)", "", "utf8mb4", "utf8mb4_bin"),
        ("varchar(9)", "charset=gbk", "gbk", "gbk_chinese_ci"),
        ("varchar(9)", "default collate latin1_bin", "latin1", "latin1_bin"),
        ("varchar(9)", "DEFAULT CHARACTER SET = UTF8MB3", "utf8", "utf8_bin"),
        ("varchar(9) charset ascii", "charset gbk", "ascii", "ascii_bin"),
        ("varchar(9) collate utf8_general_ci", "", "utf8", "utf8_general_ci"),
        ("varchar(9) binary", "collate utf8mb4_general_ci", "utf8mb4", "utf8mb4_bin"),
        ("varchar(9) BINARY CHARACTER SET LATIN1", "", "latin1", "latin1_bin"),
        ("char(9) ascii", "", "latin1", "latin1_bin"),
        ("enum('a')", "charset utf8", "utf8", "utf8_bin"),
        ("int", "charset utf8", "binary", "binary"),
        ("varbinary(9)", "charset utf8", "binary", "binary"),
    ],
)
def test_a_column_has_its_own_character_set_or_that_of_the_table(
    definition, options, charset, collation
):
    made = created(f"c {definition}", options).columns[0]
    assert (made.charset, made.collation) == (charset, collation)


def test_a_character_set_that_nobody_told_is_left_open():
    made = created("a varchar(9), b int", charset=Charset())
    assert [(each.charset, each.collation) for each in made.columns] == [
        (None, None),
        ("binary", "binary"),
    ]
    assert (made.charset, made.collation) == (None, None)


@pytest.mark.parametrize(
    ("definition", "nullable", "generated"),
    [
        ("int", True, None),
        ("int null", True, None),
        ("int not null", False, None),
        ("int auto_increment", False, None),
        ("bigint auto_random(5, 54) primary key", False, None),
        ("int primary key", False, None),
        ("int key", False, None),
        ("serial", False, None),
        ("timestamp", True, None),
        ("int generated always as (1 + (2)) virtual", True, "virtual"),
        ("int as (1) stored not null", False, "stored"),
        ("int as (1)", True, "virtual"),
        ("int comment 'not null, b int' check (c > 0) not enforced", True, None),
        ("int column_format fixed storage disk references x(a) on delete set null", True, None),
    ],
)
def test_options_of_a_column(definition, nullable, generated):
    made = column(definition)
    assert (made.nullable, made.generated) == (nullable, generated)


# --- TiDB's spelling ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("CREATE TABLE `t` (`a``b` INT,`列` INT,`select` INT)", ["a`b", "列", "select"]),
        ("create table t (a int, -- , b int\n c int /* , d int */, # x\n e int)", ["a", "c", "e"]),
        ('create table "t" ("a" int, "b""c" int)', ["a", 'b"c']),
        ("CREATE TABLE `d`.`t` (`d`.`t`.`a` INT)", ["a"]),
        ("/*!40101 create */ table t (a int /*!50000 , b int */);", ["a", "b"]),
        ("CREATE GLOBAL TEMPORARY TABLE `t` (`a` INT) ON COMMIT DELETE ROWS", ["a"]),
        ("CREATE TABLE /*T! IF NOT EXISTS */ `t` (`a` INT)", ["a"]),
        ("CREATE TABLE `t` (`vector` INT,`key` INT, vector vector(3))", None),
    ],
)
def test_names_are_read_in_every_spelling(statement, names):
    change = transition(None, statement, "d")
    assert (list(change.after.column_names) if change.after else None) == names


def test_a_backslash_is_plain_in_what_tidb_restored_and_escapes_in_what_people_wrote():
    restored = "CREATE TABLE `t` (`e` ENUM('a\\','\\n'),`v` VARCHAR(9) DEFAULT _UTF8MB4'\\t')"
    written = "create table `t` (`e` enum('a\\\\','\\n'), v varchar(9) default '\\'')"
    made = [transition(None, text, "d").after for text in (restored, written)]
    assert [each.columns[0].elements for each in made] == [("a\\", "\\n"), ("a\\", "\n")]
    assert [each.columns[1].default for each in made] == ["\\t", "'"]


def test_tidbs_own_syntax_is_nothing_to_the_schema():
    made = created(
        "`id` BIGINT /*T![auto_rand] AUTO_RANDOM(5) */ PRIMARY KEY /*T![clustered_index] CLUSTERED */,"
        "`a` VARCHAR(20) DEFAULT _UTF8MB4'a,''\n)',"
        "UNIQUE `u`(`a`) /*T![global_index] GLOBAL */ COMMENT 'x'",
        "/*T! SHARD_ROW_ID_BITS = 4 */ /*T![auto_id_cache] AUTO_ID_CACHE = 1 */ "
        "/*T![ttl] TTL = `tt` + INTERVAL 1 DAY */ /*T![placement] PLACEMENT POLICY=`p` */ "
        "PARTITION BY KEY (`id`) PARTITIONS 3",
    )
    assert made.columns[1].default == "a,'\n)"
    assert made.primary_key == ("id",)
    assert [index.name for index in made.indexes] == ["u", "PRIMARY"]


# --- keys -----------------------------------------------------------------------------------------


def keys(schema):
    return [(each.name, each.unique, each.columns) for each in schema.indexes]


@pytest.mark.parametrize(
    ("definitions", "expected"),
    [
        ("a int, primary key (a)", [("PRIMARY", True, ("a",))]),
        ("a int, b int, primary key (B, A)", [("PRIMARY", True, ("b", "a"))]),
        ("a int, constraint pk primary key using btree (a)", [("PRIMARY", True, ("a",))]),
        ("a varchar(9), unique (a(3) desc)", [("a", True, ("a",))]),
        ("a int unique", [("a", True, ("a",))]),
        ("a int unique key, key (a)", [("a", False, ("a",)), ("a_2", True, ("a",))]),
        ("a int, constraint x unique y (a)", [("x", True, ("a",))]),
        (
            "a int, index ((a + 1), a)",
            [("expression_index", False, ("_V$_expression_index_0", "a"))],
        ),
        ("a int, unique u (a) where a > 0", [("u", False, ("a",))]),
        ("a int, fulltext key f (a), check (a > 0)", [("f", False, ("a",))]),
        ("a int, foreign key (a) references x (b)", [("fk_1", False, ("a",))]),
        ("a int, constraint f foreign key i (a) references x (b)", [("f", False, ("a",))]),
        ("a int primary key, foreign key (a) references x (b)", [("PRIMARY", True, ("a",))]),
        ("a serial", [("a", True, ("a",))]),
        ("`primary` int unique", [("primary_2", True, ("primary",))]),
    ],
)
def test_keys_have_tidbs_names(definitions, expected):
    assert keys(created(definitions)) == expected


# --- ALTER TABLE ----------------------------------------------------------------------------------

T = "id int primary key, a int not null, b varchar(9) default 'x', unique ub (b), key ka (a)"


def alter(clauses, definitions=T):
    return transition(created(definitions), f"ALTER TABLE t {clauses}", "d")


@pytest.mark.parametrize(
    ("clauses", "names"),
    [
        ("ADD c INT", "id a b c"),
        ("ADD COLUMN c INT FIRST", "c id a b"),
        ("ADD COLUMN c INT AFTER A", "id a c b"),
        ("ADD COLUMN c INT FIRST, ADD COLUMN d INT FIRST", "d c id a b"),
        ("ADD COLUMN c INT AFTER id, ADD COLUMN d INT AFTER c", "id c d a b"),
        ("ADD COLUMN (c INT, d INT)", "id a b c d"),
        ("ADD (c INT, d INT, INDEX (c))", "id a b c d"),
        ("ADD COLUMN /*T! IF NOT EXISTS  */`A` BIGINT, ADD c INT", "id a b c"),
        ("DROP a, DROP COLUMN B", "id"),
        ("DROP COLUMN IF EXISTS nix", "id a b"),
        ("MODIFY a BIGINT FIRST", "a id b"),
        ("MODIFY COLUMN A BIGINT", "id A b"),
        ("CHANGE a aa INT AFTER b", "id b aa"),
        ("CHANGE COLUMN a b2 INT, DROP b", "id b2"),
        ("RENAME COLUMN a TO c, RENAME COLUMN b TO a", "id c a"),
        ("RENAME COLUMN a TO A", "id A b"),
        ("ADD COLUMN c INT, DROP COLUMN a, MODIFY COLUMN b TEXT FIRST", "b id c"),
    ],
)
def test_columns_and_their_order(clauses, names):
    change = alter(clauses)
    assert " ".join(change.after.column_names) == names


def test_a_column_keeps_its_identity_through_a_rename():
    change = alter(
        "CHANGE a aa BIGINT FIRST, DROP COLUMN b, ADD COLUMN b INT, RENAME COLUMN id TO i"
    )
    told = [
        (each.before and each.before.name, each.after and each.after.name, each.is_rename)
        for each in change.columns
    ]
    assert told == [("a", "aa", True), ("id", "i", True), (None, "b", False), ("b", None, False)]


def test_modify_says_everything_anew_but_keys_stay():
    after = alter("MODIFY COLUMN b VARCHAR(20) NOT NULL, MODIFY id BIGINT UNSIGNED").after
    assert after.column("b").default is None
    assert after.column("id").full_type == "bigint(20) unsigned"
    assert after.column("id").nullable is False
    assert after.primary_key == ("id",)
    assert {index.name: index.nullable for index in after.indexes}["ub"] is False


def test_keys_follow_their_columns():
    after = alter("RENAME COLUMN b TO bb, DROP COLUMN a").after
    assert keys(after) == [("ub", True, ("bb",)), ("PRIMARY", True, ("id",))]


def test_a_default_can_be_set_and_dropped():
    assert alter("ALTER b SET DEFAULT 'y'").after.column("b").default == "y"
    assert alter("ALTER COLUMN b DROP DEFAULT").after.column("b").default is None


@pytest.mark.parametrize(
    ("clauses", "kind", "expected"),
    [
        ("ADD PRIMARY KEY (id, a)", ChangeKind.ALTERED, ["PRIMARY"]),
        ("ADD UNIQUE (a)", ChangeKind.ALTERED, ["a"]),
        ("ADD INDEX (a)", ChangeKind.UNCHANGED, ["a"]),
        ("ADD INDEX (a), ADD INDEX (a)", ChangeKind.UNCHANGED, ["a", "a_2"]),
        ("ADD VECTOR INDEX v((VEC_COSINE_DISTANCE(a))) USING HNSW", ChangeKind.UNCHANGED, []),
        ("ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES x(y)", ChangeKind.UNCHANGED, ["f"]),
        ("ADD CONSTRAINT CHECK (a > 0)", ChangeKind.UNCHANGED, []),
    ],
)
def test_only_unique_keys_are_something_to_rows(clauses, kind, expected):
    change = alter(clauses, "id int, a int not null")
    assert (change.kind, [index.name for index in change.after.indexes]) == (kind, expected)


def test_dropping_keys():
    change = alter("DROP INDEX UB, DROP PRIMARY KEY, DROP INDEX ka")
    assert (change.kind, change.after.indexes) == (ChangeKind.ALTERED, ())
    assert change.after.column("id").nullable is False
    assert alter("DROP KEY ka").kind is ChangeKind.UNCHANGED
    assert alter("DROP INDEX `PRIMARY`").after.primary_key == ()


def test_create_and_drop_index_are_alterations_too():
    before = created(T)
    added = transition(before, "CREATE UNIQUE INDEX `ua` ON `d`.`T` (`a`, `id`)", "d")
    assert (added.kind, keys(added.after)[-1]) == (ChangeKind.ALTERED, ("ua", True, ("a", "id")))
    dropped = transition(added.after, "DROP INDEX /*T! IF EXISTS  */`UA` ON `t`", "d")
    assert (dropped.kind, dropped.after) == (ChangeKind.ALTERED, before)


def test_a_primary_key_makes_its_columns_not_null():
    after = alter("ADD PRIMARY KEY (a)", "id int, a int").after
    assert [each.nullable for each in after.columns] == [True, False]


def test_converting_the_character_set_reaches_every_text():
    change = alter("CONVERT TO CHARACTER SET gbk", T + ", c varbinary(9), e enum('a')")
    assert [each.charset for each in change.after.columns] == [
        *("binary", "binary", "gbk", "binary", "gbk"),
    ]
    assert (change.after.charset, change.after.collation) == ("gbk", "gbk_chinese_ci")


def test_the_tables_character_set_is_that_of_columns_added_later():
    change = alter("DEFAULT CHARACTER SET = latin1, ADD COLUMN c TEXT")
    assert [change.after.column(name).charset for name in "bc"] == ["utf8mb4", "latin1"]


def test_a_key_made_up_by_simple_is_no_key():
    unique = Index(name="u", unique=True, columns=("a",))
    before = replace(
        created("a int not null, b int"),
        indexes=(unique, Index(name="primary", unique=True, primary=True, columns=("a",))),
    )
    after = transition(before, "ALTER TABLE t ADD COLUMN c INT", "d").after
    assert after.indexes == (unique,)
    after = transition(before, "ALTER TABLE t ADD PRIMARY KEY (a)", "d").after
    assert [index.name for index in after.indexes] == ["u", "PRIMARY"]


def test_flags_of_the_wire_follow_where_indexes_are_not_known():
    key = Flag.BINARY | Flag.HANDLE_KEY | Flag.PRIMARY_KEY
    before = TableSchema(
        database="d",
        table="t",
        columns=(
            Column.of_type("a", "int", flags=key),
            Column.of_type("b", "int", flags=Flag.BINARY | Flag.NULLABLE),
        ),
    )
    change = transition(
        before, "ALTER TABLE t MODIFY a BIGINT UNSIGNED, MODIFY b TEXT NOT NULL", "d"
    )
    assert [each.flags for each in change.after.columns] == [key | Flag.UNSIGNED, Flag(0)]
    assert change.after.column("a").nullable is False
    dropped = transition(before, "ALTER TABLE t DROP PRIMARY KEY", "d")
    assert (dropped.kind, dropped.after.handle_key()) == (ChangeKind.ALTERED, ())
    added = transition(dropped.after, "ALTER TABLE t ADD PRIMARY KEY (b)", "d")
    assert (added.kind, added.after.handle_key()) == (ChangeKind.ALTERED, ("b",))


IDLE = [
    "COMMENT = 'x, DROP COLUMN a'",
    "AUTO_INCREMENT = 5000",
    "/*T![force_inc] FORCE  */AUTO_INCREMENT = 1",
    "/*T![ttl] TTL = `a` + INTERVAL 2 MONTH */ /*T![ttl] TTL_ENABLE = 'OFF' */",
    "REMOVE TTL",
    "SHARD_ROW_ID_BITS = 4",
    "AUTO_ID_CACHE 100",
    "ENGINE = InnoDB, COMMENT 'x'",
    "SET TIFLASH REPLICA 2 LOCATION LABELS 'a', 'b'",
    "PLACEMENT POLICY = p",
    "ATTRIBUTES 'merge_option=allow'",
    "CACHE",
    "NOCACHE",
    "ALGORITHM = INPLACE, LOCK = NONE",
    "ORDER BY a, b",
    "RENAME INDEX ka TO kb",
    "ALTER INDEX ka INVISIBLE",
    "DROP FOREIGN KEY f",
    "DROP CONSTRAINT c",
    "ADD CONSTRAINT c CHECK (a > 0) NOT ENFORCED",
    "ADD PARTITION (PARTITION p VALUES LESS THAN (1), PARTITION q VALUES LESS THAN MAXVALUE)",
    "ADD PARTITION PARTITIONS 2",
    "COALESCE PARTITION 1",
    "REORGANIZE PARTITION p, q INTO (PARTITION r VALUES LESS THAN (1))",
    "PARTITION BY HASH (id) PARTITIONS 3",
    "REMOVE PARTITIONING",
    "PARTITION p ATTRIBUTES 'x'",
    "LAST PARTITION LESS THAN (5)",
    "",
]


@pytest.mark.parametrize("clauses", IDLE)
def test_what_is_nothing_to_rows(clauses):
    change = alter(clauses)
    before = created(T)
    assert (change.kind, change.after.columns) == (ChangeKind.UNCHANGED, before.columns)
    assert change.tables == (TableName("d", "t"),)
    assert transition(None, f"ALTER TABLE t {clauses}", "d").kind is ChangeKind.UNCHANGED


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE OR REPLACE ALGORITHM = UNDEFINED DEFINER = `a`@`b` SQL SECURITY DEFINER VIEW `v` AS SELECT 1",
        "DROP VIEW `d`.`v`",
        "CREATE SEQUENCE `s`",
        "ALTER SEQUENCE `s` INCREMENT 2",
        "DROP SEQUENCE `s`",
        "CREATE PLACEMENT POLICY `p` FOLLOWERS=1",
        "ALTER PLACEMENT POLICY `p` FOLLOWERS=2",
        "DROP PLACEMENT POLICY `p`",
        "CREATE RESOURCE GROUP `g`",
        "LOCK TABLES t READ",
    ],
)
def test_statements_about_other_things_than_tables(statement):
    change = transition(None, statement, "d")
    assert (change.kind, change.tables, change.after) == (ChangeKind.UNCHANGED, (), None)


# --- other statements -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "kind", "database", "charset"),
    [
        ("CREATE DATABASE `x`", ChangeKind.DATABASE_CREATED, "x", None),
        (
            "create schema if not exists x charset gbk",
            ChangeKind.DATABASE_CREATED,
            "x",
            Charset("gbk", "gbk_chinese_ci"),
        ),
        (
            "ALTER DATABASE COLLATE = utf8_general_ci",
            ChangeKind.DATABASE_ALTERED,
            "d",
            Charset("utf8", "utf8_general_ci"),
        ),
        ("ALTER DATABASE `x` PLACEMENT POLICY = `p`", ChangeKind.DATABASE_ALTERED, "x", None),
        ("DROP DATABASE /*T! IF EXISTS  */`x`", ChangeKind.DATABASE_DROPPED, "x", None),
    ],
)
def test_databases(statement, kind, database, charset):
    change = transition(None, statement, "d")
    assert (change.kind, change.database, change.charset) == (kind, database, charset)


def test_a_drop_names_its_tables():
    change = transition(None, "DROP TABLE IF EXISTS a, `x`.`b` CASCADE", "d")
    assert change.kind is ChangeKind.DROPPED
    assert change.tables == (TableName("d", "a"), TableName("x", "b"))


def test_a_truncated_table_keeps_its_schema():
    before = replace(created(T), table_id=5)
    change = transition(before, "TRUNCATE t", "d")
    assert (change.kind, change.after) == (ChangeKind.TRUNCATED, replace(before, table_id=None))


@pytest.mark.parametrize(
    ("statement", "old", "new"),
    [
        ("RENAME TABLE `t` TO `t2`", ["d.t"], ["d.t2"]),
        ("RENAME TABLE t TO x.t;", ["d.t"], ["x.t"]),
        ("ALTER TABLE t RENAME t2", ["d.t"], ["d.t2"]),
        ("ALTER TABLE t RENAME TO x.t2", ["d.t"], ["x.t2"]),
        ("ALTER TABLE t RENAME AS t2", ["d.t"], ["d.t2"]),
        ("RENAME TABLE u TO v, t TO x.y", ["e.u", "d.t"], ["e.v", "x.y"]),
        ("RENAME TABLE D.T TO `d`.`T2`", ["d.t"], ["d.T2"]),
    ],
)
def test_renames(statement, old, new):
    before = created(T)
    change = transition(before, statement, "e")
    assert change.kind is ChangeKind.RENAMED
    assert [f"{database}.{table}" for database, table in change.tables] == old
    assert [f"{database}.{table}" for database, table in change.new_names] == new
    assert f"{change.after.database}.{change.after.table}" == new[-1]
    assert change.after.columns == before.columns


def test_the_database_is_spelled_as_the_feed_spells_it():
    made = transition(None, "CREATE TABLE `tmpdb`.`T` (`a` INT)", "TmpDB").after
    assert (made.database, made.table) == ("TmpDB", "T")
    change = transition(made, "ALTER TABLE `TMPDB`.`t` ADD COLUMN `b` INT", "TmpDB")
    assert change.tables == (TableName("TmpDB", "T"),)
    assert (change.after.database, change.after.table) == ("TmpDB", "T")


def test_create_like_asks_for_the_other_table():
    other = replace(created(T), database="x", table="o", table_id=7, version=8)
    asked = []

    def lookup(database, table):
        asked.append((database, table))
        return other

    for statement in ("CREATE TABLE IF NOT EXISTS n LIKE `x`.`o`", "CREATE TABLE n (LIKE x.o)"):
        change = transition(None, statement, "d", lookup=lookup)
        assert change.kind is ChangeKind.CREATED
        assert change.after == replace(other, database="d", table="n", table_id=None, version=None)
    assert asked == [("x", "o"), ("x", "o")]
    change = transition(None, "CREATE TABLE n LIKE o", "d")
    assert change.kind is ChangeKind.UNMIRRORED
    assert change.reason == "The table is made like `d`.`o`, whose schema is not known."


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (
            "ALTER TABLE `p` EXCHANGE PARTITION `a` WITH TABLE `x`.`y` WITHOUT VALIDATION",
            "EXCHANGE PARTITION swaps rows between `p` and `x`.`y`, and the feed carries none of them.",
        ),
        (
            "RECOVER TABLE BY JOB 5",
            "RECOVER TABLE brings back rows that the feed does not send again.",
        ),
        (
            "FLASHBACK DATABASE x",
            "FLASHBACK DATABASE brings back rows that the feed does not send again.",
        ),
        (
            "FLASHBACK CLUSTER TO TIMESTAMP '2020-01-01'",
            "FLASHBACK CLUSTER brings back rows that the feed does not send again.",
        ),
        ("ALTER TABLE t ADD c INT", "The schema of `d`.`t` before it is not known."),
        ("DROP INDEX i ON t", "The schema of `d`.`t` before it is not known."),
    ],
)
def test_what_cannot_be_mirrored_says_why(statement, reason):
    change = transition(None, statement, "d")
    assert (change.kind, change.reason) == (ChangeKind.UNMIRRORED, reason)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("", "it is empty"),
        (" ; ", "it is empty"),
        ("DROP TABLE a; DROP TABLE b", "there is more than one statement"),
        ("INSERT INTO t VALUES (1)", "a DDL statement was expected where INSERT stands"),
        ("CREATE TABLE t (a INT", "its brackets do not match"),
        ("CREATE TABLE t (a INT))", "its brackets do not match or are nested too deeply"),
        ("CREATE TABLE t ('a INT)", "a quote is not closed"),
        ("CREATE TABLE t (a HYPERINT)", "the type hyperint of column 'a' is not known"),
        (
            "CREATE TABLE t (a INT SPLENDID)",
            "an option of column 'a' was expected where SPLENDID stands",
        ),
        ("ALTER TABLE t RENAME COLUMN a TO b", "the table already has a column `b`"),
        ("CREATE TABLE t (PRIMARY KEY (a))", "no column is defined"),
        ("CREATE TABLE t (a INT, A INT)", "the table already has a column `A`"),
        ("CREATE TABLE t (a INT) SELECT 1", "a table is made from a query"),
        ("CREATE TABLE", "the name of a table was expected where the end stands"),
        ("CREATE THING x", "what is created was expected where THING stands"),
        ("ALTER TABLE t DROP COLUMN x", "the table as it is known has no column `x`"),
        ("ALTER TABLE t ADD COLUMN a INT", "the table already has a column `a`"),
        ("ALTER TABLE t ADD c INT AFTER x", "the table as it is known has no column `x`"),
        ("ALTER TABLE t MODIFY a INT AFTER a", "column `a` cannot go after itself"),
        ("ALTER TABLE t ADD UNIQUE ub (a)", "the table already has a key `ub`"),
        ("ALTER TABLE t FROBNICATE", "the end of a clause was expected where FROBNICATE stands"),
        ("RENAME TABLE a", "TO was expected where the end stands"),
    ],
)
def test_a_statement_that_cannot_be_followed_says_where(statement, reason):
    change = transition(created(T), statement, "d")
    assert change.kind is ChangeKind.UNMIRRORED
    assert change.reason == f"The statement cannot be followed: {reason}."


# --- hostile statements ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE t (" + "(" * 100_000,
        "CREATE TABLE t (a INT DEFAULT " + "(" * MAX_DEPTH + ")" * MAX_DEPTH + ")",
        "CREATE TABLE t (a INT DEFAULT " + "-" * 100_000 + "1)",
        "CREATE TABLE t (a DECIMAL DEFAULT " + "9" * 100_000 + ")",
        "CREATE TABLE t (a DOUBLE DEFAULT 1e999999999)",
        "CREATE TABLE t (a DECIMAL(9999999999,99999999999))",
        "CREATE TABLE t (a INT) PARTITION BY HASH(a) PARTITIONS 99999",
        "CREATE TABLE t (a BIT DEFAULT b'" + "1" * 100_000 + "')",
        "CREATE TABLE t (a BIT DEFAULT " + "9" * 100_000 + ")",
        "CREATE TABLE t (a INT DEFAULT "
        + "9" * 100_000
        + ", b BIT DEFAULT 1e999, c BIT DEFAULT .5)",
        "CREATE TABLE t (" + ",".join(f"c{n} INT" for n in range(5_000)) + ")",
        "ALTER TABLE t " + ",".join(f"ADD c{n} INT FIRST" for n in range(5_000)),
        "ALTER TABLE t " + ",".join("ADD INDEX (a)" for n in range(2_000)),
        "x" * (MAX_CHARACTERS + 1),
        "," * (MAX_TOKENS + 1),
    ],
)
def test_a_hostile_statement_costs_little_and_raises_nothing(statement):
    change = transition(created(T), statement, "d")
    assert change.kind in (ChangeKind.UNMIRRORED, ChangeKind.CREATED, ChangeKind.UNCHANGED)


def test_no_mutation_of_a_statement_raises():
    random_ = random.Random(17)
    before = created(T)
    queries = [each.query for scenario in ("ddl", "mixed1", "types") for each in replay(scenario)]
    words = [token.text for query in queries for token in sql.tokens(query)]
    for query in queries:
        tokens = [token.text for token in sql.tokens(query)]
        for _ in range(6):
            mutated = list(tokens)
            for _ in range(random_.randint(1, 3)):
                at = random_.randrange(len(mutated))
                mutated[at : at + random_.randint(0, 2)] = random_.sample(
                    words, random_.randint(0, 2)
                )
                mutated = mutated or ["CREATE"]
            change = transition(before, " ".join(mutated), "d")
            assert isinstance(change, TableChange)
            if change.after is not None:
                assert TableSchema.from_json(change.after.to_json()) == change.after
