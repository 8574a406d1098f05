"""DDL by TiDB's action codes, by Canal's words, and from one to the other.

Open and Craft carry TiDB's action code of a DDL job, Canal-JSON and Simple one of eight words.
Codes 1 to 36 are in TiCDC's Open Protocol document, the rest in TiDB's `ActionType`; the words are
those of TiCDC's Canal encoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from tidegate.model import sql
from tidegate.model.sql import TokenKind


class ActionType(IntEnum):
    """TiDB's DDL job types; 66 was never given."""

    NONE = 0
    CREATE_SCHEMA = 1
    DROP_SCHEMA = 2
    CREATE_TABLE = 3
    DROP_TABLE = 4
    ADD_COLUMN = 5
    DROP_COLUMN = 6
    ADD_INDEX = 7
    DROP_INDEX = 8
    ADD_FOREIGN_KEY = 9
    DROP_FOREIGN_KEY = 10
    TRUNCATE_TABLE = 11
    MODIFY_COLUMN = 12
    REBASE_AUTO_ID = 13
    RENAME_TABLE = 14
    SET_DEFAULT_VALUE = 15
    SHARD_ROW_ID = 16
    MODIFY_TABLE_COMMENT = 17
    RENAME_INDEX = 18
    ADD_TABLE_PARTITION = 19
    DROP_TABLE_PARTITION = 20
    CREATE_VIEW = 21
    MODIFY_TABLE_CHARSET_AND_COLLATE = 22
    TRUNCATE_TABLE_PARTITION = 23
    DROP_VIEW = 24
    RECOVER_TABLE = 25
    MODIFY_SCHEMA_CHARSET_AND_COLLATE = 26
    LOCK_TABLE = 27
    UNLOCK_TABLE = 28
    REPAIR_TABLE = 29
    SET_TIFLASH_REPLICA = 30
    UPDATE_TIFLASH_REPLICA_STATUS = 31
    ADD_PRIMARY_KEY = 32
    DROP_PRIMARY_KEY = 33
    CREATE_SEQUENCE = 34
    ALTER_SEQUENCE = 35
    DROP_SEQUENCE = 36
    ADD_COLUMNS = 37
    DROP_COLUMNS = 38
    MODIFY_TABLE_AUTO_ID_CACHE = 39
    REBASE_AUTO_RANDOM_BASE = 40
    ALTER_INDEX_VISIBILITY = 41
    EXCHANGE_TABLE_PARTITION = 42
    ADD_CHECK_CONSTRAINT = 43
    DROP_CHECK_CONSTRAINT = 44
    ALTER_CHECK_CONSTRAINT = 45
    ALTER_TABLE_ALTER_PARTITION = 46
    RENAME_TABLES = 47
    DROP_INDEXES = 48
    ALTER_TABLE_ATTRIBUTES = 49
    ALTER_TABLE_PARTITION_ATTRIBUTES = 50
    CREATE_PLACEMENT_POLICY = 51
    ALTER_PLACEMENT_POLICY = 52
    DROP_PLACEMENT_POLICY = 53
    ALTER_TABLE_PARTITION_PLACEMENT = 54
    MODIFY_SCHEMA_DEFAULT_PLACEMENT = 55
    ALTER_TABLE_PLACEMENT = 56
    ALTER_CACHE_TABLE = 57
    ALTER_TABLE_STATS_OPTIONS = 58
    ALTER_NO_CACHE_TABLE = 59
    CREATE_TABLES = 60
    MULTI_SCHEMA_CHANGE = 61
    FLASHBACK_CLUSTER = 62
    RECOVER_SCHEMA = 63
    REORGANIZE_PARTITION = 64
    ALTER_TTL_INFO = 65
    ALTER_TTL_REMOVE = 67
    CREATE_RESOURCE_GROUP = 68
    ALTER_RESOURCE_GROUP = 69
    DROP_RESOURCE_GROUP = 70
    ALTER_TABLE_PARTITIONING = 71
    REMOVE_PARTITIONING = 72
    ADD_COLUMNAR_INDEX = 73
    MODIFY_ENGINE_ATTRIBUTE = 74
    ALTER_TABLE_MODE = 75
    REFRESH_META = 76
    MODIFY_SCHEMA_READ_ONLY = 77


# TiDB's own words for an action where they are not simply those of the code.
_OTHER_NAMES: dict[int, str] = {
    ActionType.REBASE_AUTO_ID: "rebase auto_increment ID",
    ActionType.SHARD_ROW_ID: "shard row ID",
    ActionType.ADD_TABLE_PARTITION: "add partition",
    ActionType.DROP_TABLE_PARTITION: "drop partition",
    ActionType.TRUNCATE_TABLE_PARTITION: "truncate partition",
    ActionType.ADD_COLUMNS: "add multi-columns",
    ActionType.DROP_COLUMNS: "drop multi-columns",
    ActionType.MODIFY_TABLE_AUTO_ID_CACHE: "modify auto id cache",
    ActionType.REBASE_AUTO_RANDOM_BASE: "rebase auto_random ID",
    ActionType.EXCHANGE_TABLE_PARTITION: "exchange partition",
    ActionType.ALTER_TABLE_ALTER_PARTITION: "alter partition",
    ActionType.DROP_INDEXES: "drop multi-indexes",
    ActionType.ALTER_CACHE_TABLE: "alter table cache",
    ActionType.ALTER_TABLE_STATS_OPTIONS: "alter table statistics options",
    ActionType.ALTER_NO_CACHE_TABLE: "alter table nocache",
    ActionType.MULTI_SCHEMA_CHANGE: "alter table multi-schema change",
    ActionType.RECOVER_SCHEMA: "flashback schema",
    ActionType.REORGANIZE_PARTITION: "alter table reorganize partition",
    ActionType.ALTER_TTL_INFO: "alter table ttl",
    ActionType.ALTER_TTL_REMOVE: "alter table no_ttl",
    ActionType.ALTER_TABLE_PARTITIONING: "alter table partition by",
    ActionType.REMOVE_PARTITIONING: "alter table remove partitioning",
}
_ACTION_NAMES: dict[int, str] = {
    action: _OTHER_NAMES.get(action, action.name.lower().replace("_", " ")) for action in ActionType
}


def action_name(code: int) -> str:
    """TiDB's words for an action code; `none` for a code it does not have."""
    return _ACTION_NAMES.get(code, "none")


_CANAL_WORDS: dict[int, str] = {
    ActionType.CREATE_TABLE: "CREATE",
    ActionType.RENAME_TABLE: "RENAME",
    ActionType.RENAME_TABLES: "RENAME",
    ActionType.ADD_INDEX: "CINDEX",
    ActionType.ADD_FOREIGN_KEY: "CINDEX",
    ActionType.ADD_PRIMARY_KEY: "CINDEX",
    ActionType.DROP_INDEX: "DINDEX",
    ActionType.DROP_FOREIGN_KEY: "DINDEX",
    ActionType.DROP_PRIMARY_KEY: "DINDEX",
    ActionType.DROP_TABLE: "ERASE",
    ActionType.TRUNCATE_TABLE: "TRUNCATE",
    ActionType.ADD_COLUMN: "ALTER",
    ActionType.DROP_COLUMN: "ALTER",
    ActionType.ADD_COLUMNS: "ALTER",
    ActionType.DROP_COLUMNS: "ALTER",
    ActionType.MODIFY_COLUMN: "ALTER",
    ActionType.REBASE_AUTO_ID: "ALTER",
    ActionType.SET_DEFAULT_VALUE: "ALTER",
    ActionType.MODIFY_TABLE_COMMENT: "ALTER",
    ActionType.RENAME_INDEX: "ALTER",
    ActionType.ADD_TABLE_PARTITION: "ALTER",
    ActionType.DROP_TABLE_PARTITION: "ALTER",
    ActionType.MODIFY_TABLE_CHARSET_AND_COLLATE: "ALTER",
    ActionType.TRUNCATE_TABLE_PARTITION: "ALTER",
    ActionType.ALTER_INDEX_VISIBILITY: "ALTER",
    ActionType.MULTI_SCHEMA_CHANGE: "ALTER",
    ActionType.REORGANIZE_PARTITION: "ALTER",
    ActionType.ALTER_TABLE_PARTITIONING: "ALTER",
    ActionType.REMOVE_PARTITIONING: "ALTER",
}


def canal_ddl_type(code: int) -> str:
    """Canal's word for an action code, in Canal-JSON and Simple.

    TiCDC's new architecture differs at one place: Simple says ALTER of EXCHANGE PARTITION.
    """
    return _CANAL_WORDS.get(code, "QUERY")


# --- from SQL text back to the code ---------------------------------------------------------------

_NAME = "`"
_QUOTED = "'"


def _tokens(query: str) -> Iterator[str]:
    """Words in upper case, marks as they are, a quoted name as ` and a string as '."""
    for token in sql.tokens(query):
        if token.kind is TokenKind.NAME:
            # DROP INDEX `PRIMARY` drops the primary key: the one name that means something.
            yield "PRIMARY" if token.value.upper() == "PRIMARY" else _NAME
        elif token.kind in (TokenKind.STRING, TokenKind.BROKEN):
            yield _QUOTED
        else:
            yield token.value


_MANY = ActionType.MULTI_SCHEMA_CHANGE

_CREATE: dict[str, ActionType] = {
    "DATABASE": ActionType.CREATE_SCHEMA,
    "SCHEMA": ActionType.CREATE_SCHEMA,
    "TABLE": ActionType.CREATE_TABLE,
    "VIEW": ActionType.CREATE_VIEW,
    "SEQUENCE": ActionType.CREATE_SEQUENCE,
    "VECTOR": ActionType.ADD_COLUMNAR_INDEX,
    "COLUMNAR": ActionType.ADD_COLUMNAR_INDEX,
    "INDEX": ActionType.ADD_INDEX,
    "PLACEMENT": ActionType.CREATE_PLACEMENT_POLICY,
    "RESOURCE": ActionType.CREATE_RESOURCE_GROUP,
}
_DROP: dict[str, ActionType] = {
    "DATABASE": ActionType.DROP_SCHEMA,
    "SCHEMA": ActionType.DROP_SCHEMA,
    "TABLE": ActionType.DROP_TABLE,
    "TABLES": ActionType.DROP_TABLE,
    "VIEW": ActionType.DROP_VIEW,
    "SEQUENCE": ActionType.DROP_SEQUENCE,
    "INDEX": ActionType.DROP_INDEX,
    "PLACEMENT": ActionType.DROP_PLACEMENT_POLICY,
    "RESOURCE": ActionType.DROP_RESOURCE_GROUP,
}
_FLASHBACK: dict[str, ActionType] = {
    "TABLE": ActionType.RECOVER_TABLE,
    "DATABASE": ActionType.RECOVER_SCHEMA,
    "SCHEMA": ActionType.RECOVER_SCHEMA,
    "CLUSTER": ActionType.FLASHBACK_CLUSTER,
}
_ALTER: dict[str, ActionType] = {
    "SEQUENCE": ActionType.ALTER_SEQUENCE,
    "PLACEMENT": ActionType.ALTER_PLACEMENT_POLICY,
    "RESOURCE": ActionType.ALTER_RESOURCE_GROUP,
}
_ADD: dict[str, ActionType] = {
    "INDEX": ActionType.ADD_INDEX,
    "KEY": ActionType.ADD_INDEX,
    "UNIQUE": ActionType.ADD_INDEX,
    "FULLTEXT": ActionType.ADD_INDEX,
    "SPATIAL": ActionType.ADD_INDEX,
    "VECTOR": ActionType.ADD_COLUMNAR_INDEX,
    "COLUMNAR": ActionType.ADD_COLUMNAR_INDEX,
    "PRIMARY": ActionType.ADD_PRIMARY_KEY,
    "FOREIGN": ActionType.ADD_FOREIGN_KEY,
    "CHECK": ActionType.ADD_CHECK_CONSTRAINT,
}
_DROP_PART: dict[str, ActionType] = {
    "INDEX": ActionType.DROP_INDEX,
    "KEY": ActionType.DROP_INDEX,
    "PRIMARY": ActionType.DROP_PRIMARY_KEY,
    "FOREIGN": ActionType.DROP_FOREIGN_KEY,
    "CHECK": ActionType.DROP_CHECK_CONSTRAINT,
    "CONSTRAINT": ActionType.DROP_CHECK_CONSTRAINT,
    "PARTITION": ActionType.DROP_TABLE_PARTITION,
}
_RENAME_PART: dict[str, ActionType] = {
    "COLUMN": ActionType.MODIFY_COLUMN,
    "INDEX": ActionType.RENAME_INDEX,
    "KEY": ActionType.RENAME_INDEX,
}
_ALTER_PART: dict[str, ActionType] = {
    "INDEX": ActionType.ALTER_INDEX_VISIBILITY,
    "CHECK": ActionType.ALTER_CHECK_CONSTRAINT,
    "CONSTRAINT": ActionType.ALTER_CHECK_CONSTRAINT,
}
# Clauses of ALTER TABLE that their first word decides.
_CLAUSES: dict[str, ActionType] = {
    "MODIFY": ActionType.MODIFY_COLUMN,
    "CHANGE": ActionType.MODIFY_COLUMN,
    "CONVERT": ActionType.MODIFY_TABLE_CHARSET_AND_COLLATE,
    "TRUNCATE": ActionType.TRUNCATE_TABLE_PARTITION,
    "REORGANIZE": ActionType.REORGANIZE_PARTITION,
    "COALESCE": ActionType.REORGANIZE_PARTITION,
    "MERGE": ActionType.REORGANIZE_PARTITION,
    "SPLIT": ActionType.REORGANIZE_PARTITION,
    "EXCHANGE": ActionType.EXCHANGE_TABLE_PARTITION,
    "FIRST": ActionType.DROP_TABLE_PARTITION,
    "LAST": ActionType.ADD_TABLE_PARTITION,
    "CACHE": ActionType.ALTER_CACHE_TABLE,
    "NOCACHE": ActionType.ALTER_NO_CACHE_TABLE,
    "SET": ActionType.SET_TIFLASH_REPLICA,
}
# Table options; several may stand in one clause, each with its own action.
_OPTIONS: dict[str, ActionType] = {
    "COMMENT": ActionType.MODIFY_TABLE_COMMENT,
    "AUTO_INCREMENT": ActionType.REBASE_AUTO_ID,
    "AUTO_RANDOM_BASE": ActionType.REBASE_AUTO_RANDOM_BASE,
    "AUTO_ID_CACHE": ActionType.MODIFY_TABLE_AUTO_ID_CACHE,
    "SHARD_ROW_ID_BITS": ActionType.SHARD_ROW_ID,
    "CHARACTER": ActionType.MODIFY_TABLE_CHARSET_AND_COLLATE,
    "CHARSET": ActionType.MODIFY_TABLE_CHARSET_AND_COLLATE,
    "COLLATE": ActionType.MODIFY_TABLE_CHARSET_AND_COLLATE,
    "TTL": ActionType.ALTER_TTL_INFO,
    "TTL_ENABLE": ActionType.ALTER_TTL_INFO,
    "TTL_JOB_INTERVAL": ActionType.ALTER_TTL_INFO,
    "ATTRIBUTES": ActionType.ALTER_TABLE_ATTRIBUTES,
    "PLACEMENT": ActionType.ALTER_TABLE_PLACEMENT,
    "STATS_OPTIONS": ActionType.ALTER_TABLE_STATS_OPTIONS,
    "ENGINE_ATTRIBUTE": ActionType.MODIFY_ENGINE_ATTRIBUTE,
}
_OPTION_STARTS = {*_OPTIONS, "DEFAULT", "FORCE"}
_PARTITION_VERBS = frozenset({"DROP", "TRUNCATE", "REORGANIZE", "REBUILD", "OPTIMIZE", "CHECK"})
_BY_WORD_ALONE: dict[str, ActionType] = {
    "CREATE": ActionType.CREATE_TABLE,
    "RENAME": ActionType.RENAME_TABLE,
    "CINDEX": ActionType.ADD_INDEX,
    "DINDEX": ActionType.DROP_INDEX,
    "ERASE": ActionType.DROP_TABLE,
    "TRUNCATE": ActionType.TRUNCATE_TABLE,
}


def action_code(canal_type: str, query: str) -> int | None:
    """The best action code for a DDL known only by Canal's word and its SQL text, or None."""
    code = _code_of_statement(list(_tokens(query)))
    if code is None:
        return _BY_WORD_ALONE.get(canal_type)
    if canal_ddl_type(code) == canal_type:
        return int(code)
    # The word says what kind of job TiDB made of the statement.
    if canal_type == "QUERY" and code == ActionType.CREATE_TABLE:
        return int(ActionType.CREATE_TABLES)
    if canal_type == "ALTER" and canal_ddl_type(code) in ("CINDEX", "DINDEX"):
        return int(_MANY)  # ADD FOREIGN KEY also makes its index: two jobs
    return int(code)


def _first(words: list[str], table: dict[str, ActionType]) -> ActionType | None:
    """What the first word that the table knows means; names and strings are never such words."""
    return next((table[word] for word in words if word in table), None)


def _code_of_statement(words: list[str]) -> ActionType | None:
    if not words:
        return None
    verb, rest = words[0], words[1:]
    if verb == "CREATE":
        return _first(rest, _CREATE)
    if verb == "DROP":
        return _code_of_drop(rest)
    if verb == "ALTER":
        return _code_of_alter(rest)
    if verb == "TRUNCATE":
        return ActionType.TRUNCATE_TABLE
    if verb == "RENAME":
        many = rest.count("TO") > 1
        return ActionType.RENAME_TABLES if many else ActionType.RENAME_TABLE
    if verb == "FLASHBACK":
        return _first(rest, _FLASHBACK)
    simple = {
        "RECOVER": ActionType.RECOVER_TABLE,
        "LOCK": ActionType.LOCK_TABLE,
        "UNLOCK": ActionType.UNLOCK_TABLE,
        "ADMIN": ActionType.REPAIR_TABLE,
    }
    return simple.get(verb)


def _code_of_drop(rest: list[str]) -> ActionType | None:
    code = _first(rest, _DROP)
    if code == ActionType.DROP_INDEX and "PRIMARY" in rest[: rest.index("INDEX") + 4]:
        return ActionType.DROP_PRIMARY_KEY
    return code


def _code_of_alter(rest: list[str]) -> ActionType | None:
    if not rest:
        return None
    if rest[0] in ("DATABASE", "SCHEMA"):
        return _code_of_alter_database(rest)
    if rest[0] in _ALTER:
        return _ALTER[rest[0]]
    if "TABLE" not in rest:
        return None
    codes = list(_codes_of_clauses(_after_table_name(rest[rest.index("TABLE") + 1 :])))
    if not codes:
        return None
    return codes[0] if len(codes) == 1 else _MANY


def _code_of_alter_database(rest: list[str]) -> ActionType:
    if "PLACEMENT" in rest:
        return ActionType.MODIFY_SCHEMA_DEFAULT_PLACEMENT
    if "TIFLASH" in rest:
        return ActionType.SET_TIFLASH_REPLICA
    if "ONLY" in rest:
        return ActionType.MODIFY_SCHEMA_READ_ONLY
    return ActionType.MODIFY_SCHEMA_CHARSET_AND_COLLATE


def _after_table_name(words: list[str]) -> list[str]:
    if words[:2] == ["IF", "EXISTS"]:
        words = words[2:]
    return words[3:] if words[1:2] == ["."] else words[1:]


def _codes_of_clauses(words: list[str]) -> Iterator[ActionType]:
    """One code for each job that the clauses of an ALTER TABLE make."""
    if words[1:2] == ["PARTITION"] and words[0] in _PARTITION_VERBS:
        clauses = [words]  # its commas are between partition names
    else:
        clauses = list(_split(words))
    of_options: set[ActionType] = set()
    for clause in clauses:
        if clause[0] in _OPTION_STARTS:
            for option in _codes_of_options(clause):
                if (
                    option not in of_options
                ):  # CHARACTER SET and COLLATE, TTL and TTL_ENABLE: one job
                    of_options.add(option)
                    yield option
        else:
            yield from _codes_of_clause(clause)


def _split(words: list[str]) -> Iterator[list[str]]:
    """The parts between the commas that are in no brackets."""
    depth = 0
    clause: list[str] = []
    for word in words:
        depth += (word == "(") - (word == ")")
        if depth == 0 and word in (",", ";"):
            if clause:
                yield clause
            clause = []
        else:
            clause.append(word)
    if clause:
        yield clause


def _codes_of_options(clause: list[str]) -> Iterator[ActionType]:
    for word in clause:
        if word in _OPTIONS:
            yield _OPTIONS[word]


def _codes_of_clause(clause: list[str]) -> Iterator[ActionType]:
    verb, rest = clause[0], clause[1:]
    if verb == "ADD":
        yield from _codes_of_add(rest)
    elif verb == "DROP":
        yield _code_of_drop_part(rest)
    elif verb == "RENAME":
        yield _RENAME_PART.get(_word(rest, 0), ActionType.RENAME_TABLE)
    elif verb == "ALTER":
        yield _ALTER_PART.get(_word(rest, 0), ActionType.SET_DEFAULT_VALUE)
    elif verb == "REMOVE":
        ttl = _word(rest, 0) == "TTL"
        yield ActionType.ALTER_TTL_REMOVE if ttl else ActionType.REMOVE_PARTITIONING
    elif verb == "PARTITION":
        yield _code_of_partition(rest)
    elif verb in _CLAUSES:
        yield _CLAUSES[verb]


def _word(words: list[str], index: int) -> str:
    return words[index] if index < len(words) else ""


def _codes_of_add(rest: list[str]) -> Iterator[ActionType]:
    first = _word(rest, 0)
    if first == "CONSTRAINT":
        yield _first(rest[1:3], _ADD) or ActionType.ADD_CHECK_CONSTRAINT
    elif first == "PARTITION":
        # Adding to a HASH or KEY partitioned table moves rows: TiDB makes it a reorganization.
        moves = "PARTITIONS" in rest[:5]
        yield ActionType.REORGANIZE_PARTITION if moves else ActionType.ADD_TABLE_PARTITION
    elif first in _ADD:
        yield _ADD[first]
    else:
        for _ in range(_added_columns(rest)):
            yield ActionType.ADD_COLUMN


def _added_columns(rest: list[str]) -> int:
    """How many columns ADD [COLUMN] adds: one, or those in the brackets of ADD COLUMN (a, b)."""
    words = [word for word in rest if word not in ("COLUMN", "IF", "NOT", "EXISTS")]
    if _word(words, 0) != "(":
        return 1
    return sum(1 for _ in _split(words[1:-1]))


def _code_of_drop_part(rest: list[str]) -> ActionType:
    if _word(rest, 0) in ("INDEX", "KEY") and "PRIMARY" in rest[1:4]:
        return ActionType.DROP_PRIMARY_KEY
    return _DROP_PART.get(_word(rest, 0), ActionType.DROP_COLUMN)


def _code_of_partition(rest: list[str]) -> ActionType:
    if _word(rest, 0) == "BY":
        return ActionType.ALTER_TABLE_PARTITIONING
    if "ATTRIBUTES" in rest:
        return ActionType.ALTER_TABLE_PARTITION_ATTRIBUTES
    return ActionType.ALTER_TABLE_PARTITION_PLACEMENT
