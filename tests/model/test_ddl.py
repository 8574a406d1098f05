"""DDL codes and words. The statements with a code are as TiCDC sent them, or of the same form."""

import pytest

from tidegate.model.ddl import ActionType, action_code, action_name, canal_ddl_type


def test_the_first_thirty_six_codes_are_those_of_the_open_protocol():
    assert [action.value for action in ActionType][:37] == list(range(37))
    assert ActionType.DROP_SEQUENCE == 36


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (3, "create table"),
        (13, "rebase auto_increment ID"),
        (20, "drop partition"),
        (26, "modify schema charset and collate"),
        (42, "exchange partition"),
        (61, "alter table multi-schema change"),
        (64, "alter table reorganize partition"),
        (72, "alter table remove partitioning"),
        (66, "none"),
        (255, "none"),
    ],
)
def test_a_code_has_tidbs_own_name(code, name):
    assert action_name(code) == name


@pytest.mark.parametrize(
    ("word", "codes"),
    [
        ("CREATE", {3}),
        ("RENAME", {14, 47}),
        ("CINDEX", {7, 9, 32}),
        ("DINDEX", {8, 10, 33}),
        ("ERASE", {4}),
        ("TRUNCATE", {11}),
        ("ALTER", {5, 6, 12, 13, 15, 17, 18, 19, 20, 22, 23, 37, 38, 41, 61, 64, 71, 72}),
    ],
)
def test_canals_words_cover_these_codes_and_all_others_are_query(word, codes):
    assert {code for code in range(256) if canal_ddl_type(code) == word} == codes
    assert canal_ddl_type(ActionType.CREATE_SCHEMA) == "QUERY"


# The word on the wire, TiDB's code, the statement
STATEMENTS = [
    ("QUERY", 1, "CREATE DATABASE `d2` CHARACTER SET = utf8mb4 COLLATE = utf8mb4_general_ci"),
    ("QUERY", 2, "DROP DATABASE `d3`"),
    ("CREATE", 3, "CREATE TABLE `t` (`view` INT PRIMARY KEY,`index` INT)"),
    ("CREATE", 3, "create global temporary table if not exists t (id int) on commit delete rows"),
    ("QUERY", 60, "CREATE TABLE `a` (`id` INT PRIMARY KEY)"),
    ("ERASE", 4, "DROP TABLE `d2`.`ra3`"),
    ("ALTER", 5, "ALTER TABLE `t1` ADD COLUMN `d` VARCHAR(10) NOT NULL DEFAULT _UTF8MB4'dd' FIRST"),
    ("ALTER", 5, "ALTER TABLE `t1` ADD COLUMN /*T! IF NOT EXISTS  */ `d` INT COMMENT 'a, DROP b'"),
    ("ALTER", 5, "alter table t1 add d decimal(10,2)"),
    ("ALTER", 5, "ALTER TABLE t1 ADD COLUMN (d DECIMAL(10,2))"),
    ("ALTER", 61, "ALTER TABLE `e` ADD COLUMN (`a` TIMESTAMP(6) NULL, `b` TINYINT DEFAULT -123)"),
    ("ALTER", 61, "ALTER TABLE `ms` ADD COLUMN `d` INT, DROP COLUMN `b`, MODIFY COLUMN `a` BIGINT"),
    ("ALTER", 61, "ALTER TABLE `pt` ADD INDEX `iv`(`v`), ADD UNIQUE `uc`(`id`, `c`)"),
    ("ALTER", 6, "ALTER TABLE `t1` DROP COLUMN `c`"),
    ("ALTER", 6, "ALTER TABLE t1 DROP c"),
    ("CINDEX", 7, "ALTER TABLE `t1` ADD INDEX `ia`(`a`, `b`)"),
    ("CINDEX", 7, "CREATE UNIQUE INDEX `ub` ON `t1` (`id`, `b2`)"),
    ("CINDEX", 7, "ALTER TABLE t ADD CONSTRAINT u UNIQUE (a)"),
    ("DINDEX", 8, "ALTER TABLE `t1` DROP INDEX `ia2`"),
    ("DINDEX", 8, "DROP INDEX `ub` ON `t1`"),
    ("CINDEX", 9, "ALTER TABLE `c` ADD CONSTRAINT `fk` FOREIGN KEY (`p`) REFERENCES `t`(`id`)"),
    ("ALTER", 61, "ALTER TABLE `c` ADD CONSTRAINT `fk` FOREIGN KEY (`p`) REFERENCES `t`(`id`)"),
    ("DINDEX", 10, "ALTER TABLE `fk2` DROP FOREIGN KEY `fk_1`"),
    ("TRUNCATE", 11, "TRUNCATE TABLE `ra2`"),
    ("ALTER", 12, "ALTER TABLE `t1` MODIFY COLUMN `e` ENUM('a','b','c')"),
    ("ALTER", 12, "ALTER TABLE `t1` CHANGE COLUMN `b` `bee` VARCHAR(50) DEFAULT _UTF8MB4'q'"),
    ("ALTER", 12, "ALTER TABLE `t1` RENAME COLUMN `bee` TO `b2`"),
    ("ALTER", 13, "ALTER TABLE `t1` AUTO_INCREMENT = 5000"),
    ("ALTER", 13, "ALTER TABLE `t1` /*T![force_inc] FORCE  */AUTO_INCREMENT = 1"),
    ("RENAME", 14, "RENAME TABLE `d1`.`ra` TO `d1`.`ra2`;"),
    ("RENAME", 14, "ALTER TABLE `t1` RENAME AS `t2`"),
    ("RENAME", 47, "RENAME TABLE `a` TO `b`, `c` TO `d`"),
    ("ALTER", 15, "ALTER TABLE `t1` ALTER COLUMN `b2` SET DEFAULT (-4217.2954)"),
    ("ALTER", 15, "ALTER TABLE `t1` ALTER COLUMN `b2` DROP DEFAULT"),
    ("QUERY", 16, "ALTER TABLE `t` SHARD_ROW_ID_BITS = 4"),
    ("ALTER", 17, "ALTER TABLE `t1` COMMENT = 'hello ''c'', DROP COLUMN x'"),
    ("ALTER", 61, "ALTER TABLE `t1` COMMENT = 'x' AUTO_INCREMENT = 9"),
    ("ALTER", 18, "ALTER TABLE `t1` RENAME INDEX `ia` TO `ia2`"),
    ("ALTER", 19, "ALTER TABLE `p1` ADD PARTITION (PARTITION `p3` VALUES LESS THAN (40))"),
    ("ALTER", 64, "ALTER TABLE `hp` ADD PARTITION PARTITIONS 2"),
    ("ALTER", 20, "ALTER TABLE `p1` DROP PARTITION `p2`,`p3`"),
    ("ALTER", 23, "ALTER TABLE `p1` TRUNCATE PARTITION p1, p2"),
    (
        "ALTER",
        64,
        "ALTER TABLE `p` REORGANIZE PARTITION `a`,`b` INTO (PARTITION `c` VALUES IN (1))",
    ),
    ("ALTER", 64, "ALTER TABLE `hp` COALESCE PARTITION 1"),
    (
        "ALTER",
        71,
        "ALTER TABLE `hp` PARTITION BY RANGE (`id`) (PARTITION `a` VALUES LESS THAN (9))",
    ),
    ("ALTER", 72, "ALTER TABLE `hp` REMOVE PARTITIONING"),
    ("QUERY", 42, "ALTER TABLE `d1`.`p1` EXCHANGE PARTITION `p0` WITH TABLE `d1`.`ex`"),
    ("ALTER", 42, "ALTER TABLE `d1`.`p1` EXCHANGE PARTITION `p0` WITH TABLE `d1`.`ex`"),
    ("QUERY", 21, "CREATE OR REPLACE ALGORITHM = UNDEFINED VIEW `v1` AS SELECT `id` FROM `ms`"),
    ("QUERY", 24, "DROP VIEW `d1`.`v1`"),
    ("ALTER", 22, "ALTER TABLE `t1` CHARACTER SET UTF8MB4 COLLATE UTF8MB4_GENERAL_CI"),
    ("ALTER", 22, "ALTER TABLE `cs1` DEFAULT CHARACTER SET = UTF8MB4"),
    ("ALTER", 22, "ALTER TABLE `cs1` CONVERT TO CHARACTER SET UTF8MB4"),
    ("QUERY", 25, "RECOVER TABLE `d2`.`x`"),
    ("QUERY", 25, "FLASHBACK TABLE `rec` TO `rec2`"),
    ("QUERY", 63, "FLASHBACK DATABASE `d`"),
    ("QUERY", 26, "ALTER DATABASE `d1` CHARACTER SET = utf8mb4 COLLATE = utf8mb4_general_ci"),
    ("QUERY", 55, "ALTER DATABASE `d1` PLACEMENT POLICY = `p`"),
    ("QUERY", 30, "ALTER TABLE `t` SET TIFLASH REPLICA 2 LOCATION LABELS 'a','b'"),
    ("CINDEX", 32, "ALTER TABLE `p` ADD PRIMARY KEY(`a`) /*T![clustered_index] NONCLUSTERED */"),
    ("DINDEX", 33, "ALTER TABLE `pk1` DROP PRIMARY KEY"),
    ("DINDEX", 33, "DROP INDEX `PRIMARY` ON `pk1`"),
    ("QUERY", 34, "CREATE SEQUENCE `s` START WITH 1"),
    ("ALTER", 41, "ALTER TABLE `t1` ALTER INDEX `ia2` INVISIBLE"),
    ("QUERY", 43, "ALTER TABLE `t` ADD CONSTRAINT `c` CHECK (`a`>0)"),
    ("QUERY", 49, "ALTER TABLE `t` ATTRIBUTES='merge_option=allow'"),
    ("QUERY", 50, "ALTER TABLE `t` PARTITION `p` ATTRIBUTES='merge_option=allow'"),
    ("QUERY", 57, "ALTER TABLE `t` CACHE"),
    ("QUERY", 65, "ALTER TABLE `t` /*T![ttl] TTL = `a` + INTERVAL 2 DAY */ TTL_ENABLE = 'OFF'"),
    ("QUERY", 67, "ALTER TABLE `t` REMOVE TTL"),
    ("QUERY", 73, "CREATE VECTOR INDEX `v` ON `t` ((VEC_COSINE_DISTANCE(`e`)))"),
    ("ERASE", 4, "/* a comment */ DROP -- another\n TABLE t"),
]


@pytest.mark.parametrize(("word", "code", "query"), STATEMENTS)
def test_the_code_is_found_from_the_word_and_the_statement(word, code, query):
    assert action_code(word, query) == code


@pytest.mark.parametrize(
    ("word", "code"),
    [("CREATE", 3), ("ERASE", 4), ("CINDEX", 7), ("DINDEX", 8), ("TRUNCATE", 11), ("RENAME", 14)],
)
def test_the_word_decides_alone_where_the_statement_says_nothing(word, code):
    assert action_code(word, "") == code
    assert action_code(word, "?") == code


@pytest.mark.parametrize("query", ["", "ALTER", "ALTER TABLE", "ALTER TABLE t", "ALTER TABLE t ,"])
def test_without_either_there_is_no_code(query):
    assert action_code("ALTER", query) is None
    assert action_code("QUERY", query) is None


@pytest.mark.parametrize("piece", ["/*", "'", '"', "`", "\\", "(", ",", "--", "/*T![", "'\\"])
def test_a_hostile_statement_is_read_in_one_pass(piece):
    assert action_code("ALTER", "ALTER TABLE t DROP COLUMN " + piece * 200_000) is not None
