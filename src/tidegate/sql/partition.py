"""Partitions: how a table is cut, what statements do to that, and which rows a partition holds.

DROP and TRUNCATE PARTITION remove rows that the feed does not name. Where the cut is known from the
statements that made it, the rows are those for which a condition holds (`condition_of`, in Spark's
SQL); where the condition cannot be written, an `Unreadable` says why. Authority: TiDB's
documentation of partitioned tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tidegate.model import sql
from tidegate.model.schema import Column, Partition, Partitioning, TableSchema
from tidegate.model.sql import Token, TokenKind, quoted
from tidegate.model.types import INTEGERS, STRINGS, MySQLType, is_binary
from tidegate.sql.casts import convert
from tidegate.sql.statement import Statement, Unreadable

if TYPE_CHECKING:
    from sqlglot import exp

MAX_PARTITIONS = 8192  # TiDB's own limit
_MAXVALUE = "MAXVALUE"
_DEFAULT = "DEFAULT"
_NULL = "NULL"
_HASH_METHODS = ("hash", "key")


# --- reading --------------------------------------------------------------------------------------


def read_partitioning(statement: Statement) -> Partitioning:
    """Read what stands after PARTITION BY, to the end."""
    statement.take("LINEAR")  # TiDB takes LINEAR HASH for HASH
    method = statement.take_one_of("RANGE", "LIST", "HASH", "KEY").lower()
    if not method:
        raise statement.unexpected("a way of partitioning")
    in_columns = statement.take("COLUMNS") or method == "key"
    if statement.take("ALGORITHM"):
        statement.expect("=")
        statement.next("a number")
    inside = statement.bracket()
    if in_columns:
        by = tuple(quoted(Statement(part).column_name()) for part in sql.split(inside))
    else:
        by = (_text(inside),)
    count = _read_count(statement) if statement.take("PARTITIONS") else 1
    partitions: tuple[Partition, ...] = ()
    if statement.sees("("):
        partitions = read_partitions(statement)
    elif method in _HASH_METHODS:
        partitions = _numbered(0, count)
    statement.skip()
    return Partitioning(method=method, by=by, partitions=partitions)


def _read_count(statement: Statement) -> int:
    token = statement.next("a number of partitions")
    if token.kind is not TokenKind.NUMBER or not token.text.isdigit() or len(token.text) > 5:
        raise Unreadable("the number of partitions is not understood")
    return int(token.text)


def _numbered(start: int, count: int) -> tuple[Partition, ...]:
    if start + count > MAX_PARTITIONS:
        raise Unreadable(f"there are more than {MAX_PARTITIONS:,} partitions")
    return tuple(Partition(name=f"p{at}") for at in range(start, start + count))


def read_partitions(statement: Statement) -> tuple[Partition, ...]:
    """Read the definitions in a bracket."""
    found = tuple(_read_partition(Statement(part)) for part in sql.split(statement.bracket()))
    if len(found) > MAX_PARTITIONS:
        raise Unreadable(f"there are more than {MAX_PARTITIONS:,} partitions")
    return found


def _read_partition(statement: Statement) -> Partition:
    statement.expect("PARTITION")
    name = statement.name("a partition")
    values: tuple[tuple[str, ...], ...] = ()
    if statement.take("VALUES", "LESS", "THAN"):
        if statement.take(_MAXVALUE):
            values = ((_MAXVALUE,),)
        else:
            values = (tuple(_value(part) for part in sql.split(statement.bracket())),)
    elif statement.take("VALUES", "IN"):
        values = tuple(_read_value(part) for part in sql.split(statement.bracket()))
    elif statement.take(_DEFAULT):
        values = ((_DEFAULT,),)
    statement.skip()  # comments, placement, engines
    return Partition(name=name, values=values)


def _read_value(tokens: list[Token]) -> tuple[str, ...]:
    """A value of LIST, or the values in a bracket of LIST COLUMNS."""
    statement = Statement(tokens)
    if statement.sees("("):
        return tuple(_value(part) for part in sql.split(statement.bracket()))
    return (_value(tokens),)


def _value(tokens: list[Token]) -> str:
    """A bound or value; the words among them in upper case, to be known again."""
    key = tokens[0].key if len(tokens) == 1 else ""
    return key if key in (_MAXVALUE, _DEFAULT, _NULL) else _text(tokens)


def _text(tokens: Iterable[Token]) -> str:
    """An expression as TiDB's parser restores it, but without introducers."""
    return " ".join(_spelled(token) for token in tokens)


def _spelled(token: Token) -> str:
    if token.kind is TokenKind.NAME:
        return quoted(token.value)
    if token.kind is TokenKind.STRING:
        return "'" + token.value.replace("'", "''") + "'"
    if token.kind is TokenKind.BYTES:
        return f"x'{token.value}'"
    return token.text


# --- altering -------------------------------------------------------------------------------------


def alter_partitions(
    statement: Statement, partitioning: Partitioning | None
) -> tuple[Partitioning | None, tuple[str, ...] | None]:
    """Read a clause about partitions: the table's cut after it, and the partitions emptied by it.

    None for the cut where there is none or it is no longer known; None for the partitions where no
    rows are removed.
    """
    if statement.take("PARTITION", "BY"):
        return read_partitioning(statement), None
    if statement.take("REMOVE", "PARTITIONING"):
        return None, None
    if statement.take("TRUNCATE", "PARTITION"):
        return partitioning, _read_names(statement)
    if statement.take("DROP", "PARTITION"):
        exists = statement.take("IF", "EXISTS")
        names = _read_names(statement)
        if exists and partitioning is not None:
            known = {partition.name.lower() for partition in partitioning.partitions}
            names = tuple(name for name in names if name.lower() in known)
        return _without(partitioning, names), names
    if statement.sees("FIRST", "PARTITION"):
        raise Unreadable("which partitions lie below the new first one is not known")
    return _recut(statement, partitioning), None


def _read_names(statement: Statement) -> tuple[str, ...]:
    return tuple(part.name("a partition") for part in statement.parts())


def _partitions(partitioning: Partitioning | None) -> tuple[Partition, ...]:
    return () if partitioning is None else partitioning.partitions


def _without(partitioning: Partitioning | None, names: Iterable[str]) -> Partitioning | None:
    if partitioning is None:
        return None
    gone = {name.lower() for name in names}
    return replace(
        partitioning,
        partitions=tuple(
            partition for partition in partitioning.partitions if partition.name.lower() not in gone
        ),
    )


def _recut(statement: Statement, partitioning: Partitioning | None) -> Partitioning | None:
    """ADD, COALESCE and REORGANIZE PARTITION; rows move, and none goes."""
    partitions = _partitions(partitioning)
    if statement.take("ADD", "PARTITION"):
        statement.take("IF", "NOT", "EXISTS")
        if statement.take("PARTITIONS"):
            partitions += _numbered(len(partitions), _read_count(statement))
        elif statement.sees("("):
            partitions += read_partitions(statement)
        else:
            partitions += _numbered(len(partitions), 1)
    elif statement.take("COALESCE", "PARTITION"):
        partitions = partitions[: max(len(partitions) - _read_count(statement), 0)]
    elif statement.take("REORGANIZE", "PARTITION"):
        partitions = _reorganized(statement, partitions)
    elif statement.sees("LAST", "PARTITION") or statement.key() in ("MERGE", "SPLIT"):
        partitioning = None  # intervals: TiDB names and bounds the new ones by itself
    statement.skip()
    return None if partitioning is None else replace(partitioning, partitions=partitions)


def _reorganized(statement: Statement, partitions: tuple[Partition, ...]) -> tuple[Partition, ...]:
    names = set()
    while not statement.done and not statement.take("INTO"):
        if not statement.take(","):
            names.add(statement.name("a partition").lower())
    if not statement.sees("("):
        return partitions
    new = read_partitions(statement)
    place = next(
        (at for at, each in enumerate(partitions) if each.name.lower() in names), len(partitions)
    )
    kept = [each for each in partitions if each.name.lower() not in names]
    return (*kept[:place], *new, *kept[place:])


# --- which rows -----------------------------------------------------------------------------------

# Functions of TiDB's partitioning expressions that mean the same to Spark, and our own words.
_FUNCTIONS = (
    "ABS CEIL CEILING FLOOR MOD DIV YEAR QUARTER MONTH DAY DAYOFMONTH DAYOFWEEK DAYOFYEAR WEEKDAY "
    "HOUR MINUTE SECOND DATEDIFF EXTRACT FROM TO_DAYS UNIX_TIMESTAMP"
)
_OWN_WORDS = "OR AND NOT IN IS NULL COALESCE TRUE FALSE CASE WHEN THEN ELSE END RTRIM"
_UNDERSTOOD = frozenset(f"{_FUNCTIONS} {_OWN_WORDS}".split())
_MAX_TOKENS = 20_000
_EPOCH_IN_TO_DAYS = 719528


def condition_of(schema: TableSchema, names: Iterable[str]) -> str:
    """The rows that the partitions of these names hold, as a condition of Spark's SQL."""
    partitioning = schema.partitioning
    if partitioning is None or not partitioning.partitions:
        raise Unreadable("how the table is partitioned is not known")
    if partitioning.method == "key":
        raise Unreadable("the rows of a partition by KEY cannot be told by a condition")
    places = {each.name.lower(): at for at, each in enumerate(partitioning.partitions)}
    wanted = []
    for name in names:
        if name.lower() not in places:
            raise Unreadable(f"the table as it is known has no partition {quoted(name)}")
        wanted.append(places[name.lower()])
    known = _in_columns(schema, partitioning)
    if known.method == "hash":
        known = replace(known, by=(_signed(schema, known.by[0]),))
    conditions = [_in_partitions(known, run) for run in _runs(wanted)]
    return _in_spark(" OR ".join(f"({condition})" for condition in conditions) or "FALSE")


def _runs(places: Iterable[int]) -> Iterator[range]:
    """Places that follow each other, together."""
    start: int | None = None
    end = 0
    for place in sorted(set(places)):
        if start is not None and place == end:
            end += 1
            continue
        if start is not None:
            yield range(start, end)
        start, end = place, place + 1
    if start is not None:
        yield range(start, end)


def _in_columns(schema: TableSchema, partitioning: Partitioning) -> Partitioning:
    """The cut with the names of the table's columns, and values in the form that theirs have."""
    by = tuple(_with_names(schema, part) for part in partitioning.by)
    columns = [_column(schema, part) for part in by]
    if partitioning.method == "range":
        for column in columns:
            _check_order(column)
    return replace(
        partitioning,
        by=tuple(map(_as_compared, columns, by)),
        partitions=tuple(
            replace(
                each,
                values=tuple(
                    tuple(map(_fitted, columns, value)) if len(value) == len(columns) else value
                    for value in each.values
                ),
            )
            for each in partitioning.partitions
        ),
    )


def _signed(schema: TableSchema, part: str) -> str:
    """What TiDB hashes: of an unsigned BIGINT the same bits with a sign."""
    column = _column(schema, part)
    if column is None or column.code != MySQLType.LONGLONG or not column.unsigned:
        return part
    return f"CASE WHEN {part} < {1 << 63} THEN {part} ELSE {part} - {1 << 64} END"


def _column(schema: TableSchema, part: str) -> Column | None:
    """The column that a part of the cut is, if it is nothing else."""
    tokens = sql.tokens(part, restored=True)
    alone = len(tokens) == 1 and tokens[0].kind is TokenKind.NAME
    return schema.column(tokens[0].value) if alone else None


_WRITTEN = Column.of_type("", "varchar")
_FITTED = INTEGERS | {MySQLType.DATE, MySQLType.DATETIME}


def _fitted(column: Column | None, value: str) -> str:
    """A text that is compared with a number or a date, as one: '20240401' for 2024-04-01, too."""
    tokens = sql.tokens(value, restored=True)
    if column is not None and _is_text(column) and len(tokens) == 1:
        return _fitted_text(column, tokens[0])
    if len(tokens) > 1 and tokens[0].key in ("DATE", "TIMESTAMP"):
        tokens = tokens[1:]
    is_text = len(tokens) == 1 and tokens[0].kind is TokenKind.STRING
    if column is None or not is_text or column.code not in _FITTED:
        return value
    found = convert(_WRITTEN, column, tokens[0].value)
    if found is None:
        raise Unreadable(f"what {value} is among {quoted(column.name)} is not known")
    return found if column.code in INTEGERS else f"'{found}'"


def _fitted_text(column: Column, token: Token) -> str:
    """A text, also one that is written as bytes, without what its collation passes over."""
    text = token.value
    if token.kind is TokenKind.BYTES:
        try:
            text = bytes.fromhex(text).decode()
        except ValueError:
            raise Unreadable(f"which text {token.text} is is not known") from None
    elif token.kind is not TokenKind.STRING:
        return _spelled(token)
    return _spelled(Token(TokenKind.STRING, "", text.rstrip(" ") if _is_padded(column) else text))


def _is_text(column: Column) -> bool:
    return column.code in STRINGS and not is_binary(column.code, column.type_flags)


def _is_padded(column: Column) -> bool:
    """Whether blanks at the end count for nothing, as in all collations of TiDB but the newest."""
    return _is_text(column) and "_0900_" not in (column.collation or "")


def _as_compared(column: Column | None, part: str) -> str:
    """A part of the cut in the form in which TiDB compares it."""
    return f"RTRIM({part})" if column is not None and _is_padded(column) else part


def _check_order(column: Column | None) -> None:
    """Texts are ordered by their code points, but for those of Chinese character sets."""
    collation = (column.collation or "") if column is not None and _is_text(column) else ""
    if column is not None and collation.startswith("gb"):
        raise Unreadable(f"how {quoted(column.name)} is ordered is not known")


def _with_names(schema: TableSchema, text: str) -> str:
    """An expression whose columns are in backquotes, also those that were not."""
    tokens = sql.tokens(text, restored=True)
    columns = {column.name.lower(): column for column in schema.columns}
    spelled = []
    for token, after in zip(tokens, [*tokens[1:], None], strict=True):
        is_call = after is not None and after.key == "("
        is_column = token.kind is TokenKind.WORD and token.text.lower() in columns and not is_call
        spelled.append(quoted(columns[token.text.lower()].name) if is_column else _spelled(token))
    text = " ".join(spelled)
    _check_collation(schema, text)
    _check_instants(schema, text)
    return text


def _check_collation(schema: TableSchema, part: str) -> None:
    """Comparing without regard to case or accents is not what the mirror does."""
    for token in sql.tokens(part, restored=True):
        column = schema.column(token.value) if token.kind is TokenKind.NAME else None
        if column is None or not _is_text(column):
            continue
        collation = column.collation or ""
        if collation.endswith(("_ci", "_ai")):
            raise Unreadable(f"partitions are told by {part}, which ignores case")
        if not collation.endswith("_bin"):
            raise Unreadable(f"partitions are told by {part}, and how it compares is not known")


def _check_instants(schema: TableSchema, part: str) -> None:
    """Of what is no instant, UNIX_TIMESTAMP depends on the zone of the session."""
    tokens = sql.tokens(part, restored=True)
    calls = [token.text for token in tokens if token.key == "UNIX_TIMESTAMP"]
    columns = (schema.column(token.value) for token in tokens if token.kind is TokenKind.NAME)
    if calls and any(each is None or each.code != MySQLType.TIMESTAMP for each in columns):
        raise Unreadable(f"what {calls[0]} gives is not known")


def _in_partitions(partitioning: Partitioning, run: range) -> str:
    if partitioning.method == "list":
        return " OR ".join(_in_list(partitioning, at) for at in run)
    if partitioning.method == "hash":
        (by,), count = partitioning.by, len(partitioning.partitions)
        places = ", ".join(str(at) for at in run)
        return f"COALESCE(ABS(({by}) % {count}), 0) IN ({places})"
    bounds = [each.values[0] if each.values else () for each in partitioning.partitions]
    above = f" AND NOT {_less(partitioning.by, bounds[run.start - 1])}" if run.start else ""
    return _less(partitioning.by, bounds[run.stop - 1]) + above


def _less(by: tuple[str, ...], bound: tuple[str, ...]) -> str:
    """Whether a row is below a bound, part by part; NULL is below everything."""
    if len(by) != len(bound):
        raise Unreadable("a partition's bound does not fit the columns it is for")
    condition = "FALSE"
    for part, value in zip(reversed(by), reversed(bound), strict=True):
        if value == _MAXVALUE:
            condition = "TRUE"
        else:
            below = f"({part}) IS NULL OR ({part}) < {value}"
            same = "" if condition == "FALSE" else f" OR (({part}) = {value} AND {condition})"
            condition = f"({below}{same})"
    return condition


def _in_list(partitioning: Partitioning, at: int) -> str:
    by, values = partitioning.by, partitioning.partitions[at].values
    if (_DEFAULT,) not in values:
        return _is_one_of(by, values)
    others = [
        value for each in partitioning.partitions if each.values != values for value in each.values
    ]
    return f"NOT {_is_one_of(by, others)}"


def _is_one_of(by: tuple[str, ...], values: Iterable[tuple[str, ...]]) -> str:
    """Whether a row has one of the values; never NULL."""
    conditions = []
    simple = []
    for value in values:
        if len(by) != len(value):
            raise Unreadable("a partition's values do not fit the columns they are for")
        if len(by) == 1 and value[0] != _NULL:
            simple.append(value[0])
        else:
            parts = (_same(part, each) for part, each in zip(by, value, strict=True))
            conditions.append("(" + " AND ".join(parts) + ")")
    if simple:
        conditions.append(f"COALESCE(({by[0]}) IN ({', '.join(simple)}), FALSE)")
    return "(" + (" OR ".join(conditions) or "FALSE") + ")"


def _same(part: str, value: str) -> str:
    if value == _NULL:
        return f"({part}) IS NULL"
    return f"COALESCE(({part}) = {value}, FALSE)"


def _in_spark(condition: str) -> str:
    """A condition of MySQL in Spark's SQL. Only what means the same to both gets through."""
    tokens = sql.tokens(condition, most=_MAX_TOKENS + 1, restored=True)
    if len(tokens) > _MAX_TOKENS:
        raise Unreadable("the condition for its rows is too long")
    for token in tokens:
        if token.kind is TokenKind.WORD and token.value not in _UNDERSTOOD:
            raise Unreadable(f"what {token.text} gives is not known")
    # Loaded here: it takes a third of a second, and few statements ask for it.
    from sqlglot import ErrorLevel, errors, exp, parse_one

    text = " ".join(_for_sqlglot(token) for token in tokens)
    try:
        parsed = parse_one(text, into=exp.Condition, read="mysql")
        spelled = parsed.transform(_in_spark_functions).sql(
            "spark", unsupported_level=ErrorLevel.RAISE
        )
    except (errors.SqlglotError, RecursionError) as error:
        raise Unreadable("the partitioning expression is not understood") from error
    return str(spelled)


# sqlglot counts TO_DAYS from another day than MySQL does, and UNIX_TIMESTAMP in the zone of the
# session, so it gets both under names that it does not know.
_RENAMED = {"TO_DAYS": "DAYS_SINCE_YEAR_0", "UNIX_TIMESTAMP": "SECONDS_SINCE_1970"}


def _for_sqlglot(token: Token) -> str:
    if token.kind is TokenKind.STRING:
        return _spelled(token).replace("\\", "\\\\")
    return _RENAMED.get(token.key) or _spelled(token)


def _in_spark_functions(node: exp.Expr) -> exp.Expr:
    from sqlglot import exp

    if not isinstance(node, exp.Anonymous) or len(node.expressions) != 1:
        return node
    inside = node.expressions[0].copy()
    if node.name == _RENAMED["TO_DAYS"]:
        days = exp.func("DATEDIFF", inside, exp.Literal.string("1970-01-01"))
        return exp.paren(exp.Add(this=days, expression=exp.Literal.number(_EPOCH_IN_TO_DAYS)))
    if node.name == _RENAMED["UNIX_TIMESTAMP"]:
        if isinstance(inside, exp.Literal) and inside.is_string:
            return exp.Literal.number(_unix_seconds(inside.name))
        return exp.Anonymous(this="UNIX_SECONDS", expressions=[inside])
    return node


_INSTANT = Column.of_type("", "timestamp")


def _unix_seconds(text: str) -> int:
    """The second that a text is in UTC, the zone that the mirror takes for every session's."""
    found = convert(_WRITTEN, _INSTANT, text)
    try:
        moment = datetime.fromisoformat(found or "").replace(tzinfo=UTC)
    except ValueError:
        raise Unreadable(f"which instant '{text}' is is not known") from None
    return int(moment.timestamp())
