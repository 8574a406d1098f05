"""Histories of an upstream: a list of operations, played on tables that know their true rows.

An operation is a plain list, so that a history can be saved and shrunk; one that does not fit the
tables it meets is passed over. Rows, columns and spellings are computed here, by TiDB's rules and
by nothing of the code under test; `TableSchema` is used only to say on the wire what a table is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.model import TableSchema
from tidegate.model.schema import ABSENT, Column, Index

Op = list[Any]
Name = tuple[str, str]
Row = tuple[str | None, ...]

START_MS = 1_767_225_600_000
LOGICAL = 18

VALUES: dict[str, tuple[str, ...]] = {
    "int": ("0", "1", "2", "3", "4", "-5", "12", "25"),
    "bigint": ("0", "1", "7", "-9", "4611686018427387904"),
    "bigint unsigned": ("0", "1", "2", "9223372036854775808", "18446744073709551615"),
    "double": ("0", "-0", "1.5", "2", "-3"),
    "varchar(20)": ("", "a", "b", "A", "é", "null", "x'y"),
    "varchar(40)": ("", "a", "b", "A", "é", "null", "x'y"),
}
"""The values of each type; few, so that keys meet again."""

WIDER = {"int": ("bigint", "varchar(20)"), "varchar(20)": ("varchar(40)",)}
"""What MODIFY COLUMN makes of a type: conversions that keep the text of every value."""


@dataclass(frozen=True, slots=True)
class ColumnModel:
    """A column; `default` None is no default, or NULL."""

    name: str
    type: str
    nullable: bool = True
    default: str | None = None

    def sql(self) -> str:
        """The definition as TiDB restores it."""
        text = f"`{self.name}` {self.type.upper()}"
        if not self.nullable:
            text += " NOT NULL"
        if self.default is not None:
            mark = "_UTF8MB4" if self.type.startswith("varchar") else ""
            text += f" DEFAULT {mark}'{self.default}'" if mark else f" DEFAULT {self.default}"
        return text


@dataclass(frozen=True, slots=True)
class IndexModel:
    """A unique index or the primary key."""

    name: str
    columns: tuple[str, ...]
    primary: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """A row and the commit_ts that wrote it last."""

    values: Row
    written: int


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at an instant. `rows` are by TiDB's row id; `born` is when it was created.

    `defined` is when its columns were spelled out; a table that is made LIKE another has them from
    that one, and nothing tells them if that was before the feed.
    """

    database: str
    name: str
    table_id: int
    version: int
    born: int
    defined: int
    columns: tuple[ColumnModel, ...]
    indexes: tuple[IndexModel, ...] = ()
    clustered: bool = False
    partitions: tuple[tuple[str, int], ...] = ()
    rows: dict[Any, Stored] = field(default_factory=dict)
    excuses: frozenset[str] = frozenset()
    """Why a mirror may say that it cannot follow this table."""
    past: frozenset[str] = frozenset()
    """The kinds of statements that the table has seen since it was created."""

    @property
    def key(self) -> Name:
        return self.database, self.name

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def place(self, column: str) -> int:
        return self.names.index(column)

    @property
    def handle(self) -> tuple[str, ...]:
        """The columns that identify a row to TiCDC; empty if none do."""
        for index in self.indexes:
            if index.primary:
                return index.columns
        solid = {column.name for column in self.columns if not column.nullable}
        unique = [index.columns for index in self.indexes if solid.issuperset(index.columns)]
        return min(unique, key=len, default=())

    def key_of(self, index: IndexModel, values: Row) -> tuple[Any, ...] | None:
        """What an index compares; None where NULL keeps it from comparing."""
        found = []
        for name in index.columns:
            column = self.columns[self.place(name)]
            value = values[self.place(name)]
            if value is None:
                return None
            found.append(float(value) if column.type == "double" else value)
        return tuple(found)

    def admits(self, values: Row, but: Any = None) -> bool:
        """Whether a row may stand beside the others."""
        for index in self.indexes:
            key = self.key_of(index, values)
            if key is not None and any(
                self.key_of(index, other.values) == key
                for rowid, other in self.rows.items()
                if rowid != but
            ):
                return False
        return not self.partitions or self.number(values) < self.partitions[-1][1]

    def number(self, values: Row) -> int:
        """What a row of a partitioned table is partitioned by."""
        return int(values[self.place("id")] or 0)

    def schema(self) -> TableSchema:
        """What a feed says of the table."""
        return TableSchema(
            database=self.database,
            table=self.name,
            table_id=self.table_id,
            version=self.version,
            columns=tuple(_wire_column(column) for column in self.columns),
            indexes=tuple(
                Index(
                    name="PRIMARY" if index.primary else index.name,
                    unique=True,
                    primary=index.primary,
                    nullable=any(
                        column.nullable for column in self.columns if column.name in index.columns
                    ),
                    columns=index.columns,
                )
                for index in self.indexes
            ),
        )


def _wire_column(column: ColumnModel) -> Column:
    is_text = column.type.startswith("varchar")
    return Column.of_type(
        column.name,
        column.type,
        nullable=column.nullable,
        default=column.default if column.default is not None or column.nullable else ABSENT,
        charset="utf8mb4" if is_text else "binary",
        collation="utf8mb4_bin" if is_text else "binary",
    )


@dataclass(frozen=True, slots=True)
class WireDdl:
    """A statement as a feed carries it, with the schemas after and before it."""

    query: str
    database: str
    after: TableSchema | None
    before: TableSchema | None


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row that a transaction changed: `kind` is insert, update or delete."""

    kind: str
    table: TableState
    after: Row | None
    before: Row | None


@dataclass(frozen=True, slots=True)
class Commit:
    """What happened at one commit_ts: row changes, or the events of a statement."""

    ts: int
    rows: tuple[RowChange, ...] = ()
    classic: tuple[WireDdl, ...] = ()
    new: tuple[WireDdl, ...] = ()


@dataclass(frozen=True, slots=True)
class Signal:
    """Something that the sender does between two commits: mark, restart, start, partitions."""

    op: Op


Truth = dict[Name, TableState]

AMBIGUOUS = "ambiguous rename"
"""The excuse of tables that a RENAME without the old database may mean."""
KINDS = (
    "int",
    "composite",
    "string",
    "unsigned",
    "double",
    "unique",
    "none",
    "partitioned",
    "two",
    "narrow",
)
"""The kinds of tables, by their keys; a narrow one has the columns of a partitioned one."""


def _columns_of(kind: str) -> tuple[tuple[ColumnModel, ...], tuple[IndexModel, ...], bool]:
    """Columns, indexes, and whether the primary key is clustered."""

    def solid(name: str, of: str) -> ColumnModel:
        return ColumnModel(name, of, nullable=False)

    v, s = ColumnModel("v", "int"), ColumnModel("s", "varchar(20)")
    primary = IndexModel("PRIMARY", ("id",), primary=True)
    found: dict[str, tuple[tuple[ColumnModel, ...], tuple[IndexModel, ...], bool]] = {
        "int": ((solid("id", "int"), v, s), (primary,), True),
        "composite": (
            (solid("b", "varchar(20)"), solid("a", "int"), v),
            (IndexModel("PRIMARY", ("a", "b"), primary=True),),
            True,
        ),
        "string": ((solid("id", "varchar(20)"), v), (primary,), True),
        "unsigned": ((solid("id", "bigint unsigned"), v), (primary,), True),
        "double": ((solid("id", "double"), v), (primary,), True),
        "unique": ((solid("id", "int"), v, s), (IndexModel("uk", ("id",)),), False),
        "none": ((ColumnModel("id", "int"), v), (), False),
        "partitioned": ((solid("id", "int"), v), (primary,), True),
        "narrow": ((solid("id", "int"), v), (primary,), True),
        "two": (
            (solid("id", "int"), solid("u", "int"), v),
            (primary, IndexModel("uk", ("u",))),
            False,
        ),
    }
    return found[kind]


class Upstream:
    """Plays operations: `commits` is what happened, `truth` what the tables were after each."""

    def __init__(self) -> None:
        self.databases: set[str] = set()
        self.tables: Truth = {}
        self.commits: list[Commit | Signal] = []
        self.truth: list[tuple[int, Truth]] = [(0, {})]
        self.unclear: set[Name] = set()
        """The names of tables that a RENAME without the old database may have meant."""
        self.ts = START_MS << LOGICAL
        self.dropped: dict[Name, TableState] = {}
        """The tables that RECOVER TABLE and FLASHBACK TABLE can bring back."""
        self._op = ""
        self._ids = 100
        self._rowids = 0

    # --- time -------------------------------------------------------------------------------------

    def _tick(self) -> int:
        self.ts = (((self.ts >> LOGICAL) + 2) << LOGICAL) + 1
        return self.ts

    def _new_id(self) -> int:
        self._ids += 2
        return self._ids

    def at(self, ts: int) -> Truth:
        """The tables at an instant."""
        found: Truth = {}
        for when, tables in self.truth:
            if when > ts:
                break
            found = tables
        return found

    # --- operations -------------------------------------------------------------------------------

    def play(self, op: Op) -> bool:
        """Does an operation; False where it does not fit."""
        if op[0] in ("mark", "restart", "start", "partitions"):
            self.commits.append(Signal(op))
            return True
        self._op = op[0]
        action: Callable[..., Commit | None] = getattr(self, f"_{op[0]}")
        commit = action(*op[1:])
        if commit is None:
            return False
        self.commits.append(commit)
        self.truth.append((commit.ts, dict(self.tables)))
        return True

    def _statement(
        self, classic: Sequence[WireDdl], new: Sequence[WireDdl] | None = None
    ) -> Commit:
        return Commit(self.ts, (), tuple(classic), tuple(classic if new is None else new))

    def _create_database(self, database: str) -> Commit | None:
        if database in self.databases:
            return None
        self._tick()
        self.databases.add(database)
        return self._statement([WireDdl(f"CREATE DATABASE `{database}`", database, None, None)])

    def _drop_database(self, database: str) -> Commit | None:
        if database not in self.databases:
            return None
        self._tick()
        self.databases.discard(database)
        for name in [name for name in self.tables if name[0] == database]:
            del self.tables[name]
        self.dropped = {name: t for name, t in self.dropped.items() if name[0] != database}
        return self._statement([WireDdl(f"DROP DATABASE `{database}`", database, None, None)])

    def _create(
        self, database: str, name: str, kind: str, qualified: bool = False
    ) -> Commit | None:
        if database not in self.databases or (database, name) in self.tables:
            return None
        ts = self._tick()
        columns, indexes, clustered = _columns_of(kind)
        partitions = (("p0", 2), ("p1", 10), ("p2", 30)) if kind == "partitioned" else ()
        table = TableState(
            database,
            name,
            self._new_id(),
            _version(ts),
            ts,
            ts,
            columns,
            indexes,
            clustered,
            partitions,
        )
        self.tables[table.key] = table
        self.dropped.pop(table.key, None)
        query = f"CREATE TABLE {_spelled(table.key, qualified)} ({_definition(table)})"
        if partitions:
            parts = ",".join(f"PARTITION `{p}` VALUES LESS THAN ({n})" for p, n in partitions)
            query += f" PARTITION BY RANGE (`id`) ({parts})"
        return self._statement([WireDdl(query, database, table.schema(), None)])

    def _create_like(self, database: str, name: str, of: list[str]) -> Commit | None:
        """CREATE TABLE … LIKE; nobody can tell what a table from before the feed is like."""
        other = self.tables.get((of[0], of[1]))
        if other is None or database not in self.databases or (database, name) in self.tables:
            return None
        ts = self._tick()
        table = replace(
            other,
            database=database,
            name=name,
            table_id=self._new_id(),
            version=_version(ts),
            born=ts,
            rows={},
            excuses=frozenset(),
            past=frozenset({self._op}),
        )
        self.tables[table.key] = table
        self.dropped.pop(table.key, None)
        query = f"CREATE TABLE `{database}`.`{name}` LIKE {_spelled(other.key, True)}"
        return self._statement([WireDdl(query, database, table.schema(), None)])

    def _view(self, database: str, name: str, is_made: bool) -> Commit | None:
        """CREATE VIEW or DROP VIEW; a view has no schema in a feed that this model has seen."""
        if database not in self.databases or (database, name) in self.tables:
            return None
        self._tick()
        query = f"CREATE VIEW `{database}`.`{name}` AS SELECT 1 AS `a`"
        if not is_made:
            query = f"DROP VIEW `{database}`.`{name}`"
        return self._statement([WireDdl(query, database, None, None)])

    def _flashback(self) -> Commit | None:
        """FLASHBACK CLUSTER: all rows are those of an earlier instant, and none is sent."""
        if not self.tables:
            return None
        self._tick()
        for table in list(self.tables.values()):
            self.tables[table.key] = self._unsent(table, {})
        query = "FLASHBACK CLUSTER TO TIMESTAMP '2026-01-01 00:00:00'"
        return self._statement([WireDdl(query, "", None, None)])

    def _unsent(self, table: TableState, rows: dict[Any, Stored]) -> TableState:
        """A table whose rows have changed without a message."""
        excuses, past = table.excuses | {self._op}, table.past | {self._op}
        return replace(table, rows=rows, excuses=excuses, past=past)

    def _drop(self, database: str, name: str) -> Commit | None:
        table = self.tables.pop((database, name), None)
        if table is None:
            return None
        self._tick()
        self.dropped[table.key] = table
        schema = table.schema()
        return self._alike(f"DROP TABLE `{database}`.`{name}`", schema, schema)

    def _recover(self, database: str, name: str) -> Commit | None:
        table = self.dropped.get((database, name))
        if table is None or table.key in self.tables or database not in self.databases:
            return None
        del self.dropped[table.key]
        self._tick()
        table = replace(table, excuses=table.excuses | {"recovered"}, past=table.past | {self._op})
        self.tables[table.key] = table
        return self._alike(f"RECOVER TABLE `{database}`.`{name}`", table.schema(), None)

    def _flashback_table(self, database: str, name: str, new: str) -> Commit | None:
        """FLASHBACK TABLE … TO: a table that was dropped or truncated, under another name."""
        table = self.dropped.get((database, name))
        if table is None or (database, new) in self.tables or database not in self.databases:
            return None
        del self.dropped[table.key]
        self._tick()
        table = self._unsent(replace(table, name=new), table.rows)
        self.tables[table.key] = table
        query = f"FLASHBACK TABLE `{database}`.`{name}` TO `{new}`"
        return self._alike(query, table.schema(), None)

    def _truncate(self, database: str, name: str, qualified: bool = False) -> Commit | None:
        table = self.tables.get((database, name))
        if table is None:
            return None
        ts = self._tick()
        self.dropped[table.key] = table
        after = replace(table, rows={}, table_id=self._new_id(), version=_version(ts))
        return self._altered(table, after, f"TRUNCATE TABLE {_typed(table.key, qualified)}")

    def _alike(self, query: str, after: TableSchema, before: TableSchema | None) -> Commit:
        """A statement that both architectures spell alike; only classic tells the old schema."""
        one = WireDdl(query, after.database, after, before)
        return self._statement([one], [replace(one, before=None)])

    def _altered(self, before: TableState, after: TableState, query: str) -> Commit:
        del self.tables[before.key]
        self.tables[after.key] = replace(after, past=after.past | {self._op})
        return self._alike(query, after.schema(), before.schema())

    # --- names ------------------------------------------------------------------------------------

    def _rename(
        self, database: str, name: str, to_database: str, to_name: str, form: str
    ) -> Commit | None:
        """`form` is rename or alter, with `qualified` after it where the old database is named."""
        table = self.tables.get((database, name))
        target = to_database, to_name
        if table is None or target in self.tables or to_database not in self.databases:
            return None
        self._tick()
        is_named = form.endswith("qualified")
        if not is_named:
            self._excuse_namesakes(table, target)
            table = self.tables[table.key]
        after = replace(table, database=to_database, name=to_name)
        del self.tables[table.key]
        self.tables[after.key] = after
        old = _typed(table.key, is_named)
        new = _spelled(after.key, is_named or database != to_database)
        classic = f"RENAME TABLE {old} TO {new}"
        if form.startswith("alter"):
            classic = f"ALTER TABLE {old} RENAME AS {new}"
        both = f"RENAME TABLE {_spelled(table.key, True)} TO {_spelled(after.key, True)}"
        schema = after.schema()
        return self._statement(
            [WireDdl(classic, to_database, schema, table.schema())],
            [WireDdl(both, to_database, schema, None)],
        )

    def _excuse_namesakes(self, table: TableState, target: Name) -> None:
        """A RENAME that does not name the old database may mean any table of that name."""
        same = [each for each in self.tables.values() if each.name == table.name]
        if len(same) > 1:
            self.unclear.add(target)
            for each in same:
                self.unclear.add(each.key)
                excuses = each.excuses | {AMBIGUOUS}
                self.tables[each.key] = replace(each, excuses=excuses)

    def _rename_many(self, pairs: list[list[str]], classic: bool = False) -> Commit | None:
        """RENAME TABLE of several tables, one after the other: one event each at one commit_ts.

        Classic TiCDC refuses a table that is renamed twice.
        """
        tables = dict(self.tables)
        steps = []
        for database, name, to_database, to_name in pairs:
            table = tables.get((database, name))
            target = to_database, to_name
            if table is None or target in tables or to_database not in self.databases:
                return None
            del tables[table.key]
            after = replace(table, database=to_database, name=to_name)
            tables[target] = after
            steps.append((table, after))
        if classic and len({table.table_id for table, _ in steps}) < len(steps):
            return None
        self._tick()
        self.tables = tables
        final = {table.table_id: table for table in tables.values()}
        old, new = [], []
        for place, (before, after) in enumerate(steps):
            query = f"RENAME TABLE {_spelled(before.key, True)} TO {_spelled(after.key, True)}"
            old.append(WireDdl(query, after.database, after.schema(), before.schema()))
            schema = after.schema()
            if any(later.table_id == after.table_id for later, _ in steps[place + 1 :]):
                # The new architecture already gives the final name, and no id.
                last = final[after.table_id]
                schema = replace(last.schema(), table_id=-1)
            new.append(WireDdl(f"{query};", schema.database, schema, None))
        return self._statement(old, new)

    # --- columns ----------------------------------------------------------------------------------

    def _add_column(
        self, database: str, name: str, column: str, of: str, how: str, place: int, qualified: bool
    ) -> Commit | None:
        """`how` is null, default or solid (NOT NULL without a default)."""
        table = self.tables.get((database, name))
        if table is None or column in table.names or (table.handle == () and how == "solid"):
            return None
        ts = self._tick()
        default = VALUES[of][1] if how == "default" else None
        added = ColumnModel(column, of, how != "solid", default)
        fill = default if how != "solid" else ("" if of.startswith("varchar") else "0")
        place = place % (len(table.columns) + 1)
        where = "" if place == len(table.columns) else " FIRST"
        if 0 < place < len(table.columns):
            where = f" AFTER `{table.columns[place - 1].name}`"
        columns = (*table.columns[:place], added, *table.columns[place:])
        after = _rewritten(
            replace(table, columns=columns, version=_version(ts)),
            lambda values: (*values[:place], fill, *values[place:]),
        )
        query = f"ALTER TABLE {_typed(table.key, qualified)} ADD COLUMN {added.sql()}{where}"
        return self._altered(table, after, query)

    def _drop_column(self, database: str, name: str, n: int, qualified: bool) -> Commit | None:
        table = self.tables.get((database, name))
        if table is None or len(table.columns) < 2 or table.partitions:
            return None
        n %= len(table.columns)
        column = table.columns[n].name
        if any(column in index.columns for index in table.indexes):
            return None
        ts = self._tick()
        columns = (*table.columns[:n], *table.columns[n + 1 :])
        after = _rewritten(
            replace(table, columns=columns, version=_version(ts)),
            lambda values: (*values[:n], *values[n + 1 :]),
        )
        query = f"ALTER TABLE {_typed(table.key, qualified)} DROP COLUMN `{column}`"
        return self._altered(table, after, query)

    def _rename_column(
        self, database: str, name: str, n: int, new: str, qualified: bool
    ) -> Commit | None:
        table = self.tables.get((database, name))
        if table is None or new in table.names or table.partitions:
            return None
        n %= len(table.columns)
        ts, old = self._tick(), table.columns[n]
        columns = (*table.columns[:n], replace(old, name=new), *table.columns[n + 1 :])
        indexes = tuple(
            replace(index, columns=tuple(new if c == old.name else c for c in index.columns))
            for index in table.indexes
        )
        after = replace(table, columns=columns, indexes=indexes, version=_version(ts))
        target = _typed(table.key, qualified)
        query = f"ALTER TABLE {target} RENAME COLUMN `{old.name}` TO `{new}`"
        return self._altered(table, after, query)

    def _modify_column(
        self, database: str, name: str, n: int, choice: int, qualified: bool
    ) -> Commit | None:
        """A wider type; a column of an index keeps its type."""
        table = self.tables.get((database, name))
        if table is None:
            return None
        n %= len(table.columns)
        old = table.columns[n]
        wider = WIDER.get(old.type, ())
        if not wider or old.default is not None:
            return None
        if any(old.name in index.columns for index in table.indexes):
            return None
        ts = self._tick()
        new = replace(old, type=wider[choice % len(wider)])
        columns = (*table.columns[:n], new, *table.columns[n + 1 :])
        after = replace(table, columns=columns, version=_version(ts))
        query = f"ALTER TABLE {_typed(table.key, qualified)} MODIFY COLUMN {new.sql()}"
        return self._altered(table, after, query)

    # --- keys -------------------------------------------------------------------------------------

    def _drop_key(self, database: str, name: str, n: int, form: int) -> Commit | None:
        """DROP INDEX or DROP PRIMARY KEY; a clustered key stays."""
        table = self.tables.get((database, name))
        if table is None or table.clustered or not table.indexes:
            return None
        ts = self._tick()
        n %= len(table.indexes)
        gone = table.indexes[n]
        indexes = (*table.indexes[:n], *table.indexes[n + 1 :])
        after = replace(table, indexes=indexes, version=_version(ts))
        after = _excused_without_key(after)
        if gone.primary:
            query = f"ALTER TABLE `{name}` DROP PRIMARY KEY"
        elif form % 2:
            query = f"DROP INDEX `{gone.name}` ON `{name}`"
        else:
            query = f"ALTER TABLE `{name}` DROP INDEX `{gone.name}`"
        return self._altered(table, after, query)

    def _add_key(self, database: str, name: str, n: int, primary: bool) -> Commit | None:
        """ADD UNIQUE INDEX or ADD PRIMARY KEY of one column without equal values."""
        table = self.tables.get((database, name))
        if table is None or table.partitions:
            return None
        column = table.columns[n % len(table.columns)]
        made = IndexModel("PRIMARY" if primary else f"k{self._ids}", (column.name,), primary)
        if primary and (column.nullable or any(index.primary for index in table.indexes)):
            return None
        if any(index.columns == made.columns for index in table.indexes):
            return None
        keys = [table.key_of(made, row.values) for row in table.rows.values()]
        keys = [key for key in keys if key is not None]
        if len(set(keys)) < len(keys):
            return None
        ts = self._tick()
        self._new_id()
        after = replace(table, indexes=(*table.indexes, made), version=_version(ts))
        clause = f"ADD UNIQUE INDEX `{made.name}`(`{column.name}`)"
        if primary:
            clause = f"ADD PRIMARY KEY(`{column.name}`) /*T![clustered_index] NONCLUSTERED */"
        return self._altered(table, after, f"ALTER TABLE `{name}` {clause}")

    # --- partitions -------------------------------------------------------------------------------

    def _truncate_partition(self, database: str, name: str, n: int) -> Commit | None:
        table = self.tables.get((database, name))
        if table is None or not table.partitions:
            return None
        ts = self._tick()
        n %= len(table.partitions)
        after = replace(table, rows=_outside(table, n), version=_version(ts))
        query = f"ALTER TABLE `{name}` TRUNCATE PARTITION `{table.partitions[n][0]}`"
        return self._altered(table, after, query)

    def _drop_partition(self, database: str, name: str, n: int) -> Commit | None:
        table = self.tables.get((database, name))
        if table is None or len(table.partitions) < 2:
            return None
        ts = self._tick()
        n %= len(table.partitions)
        parts = (*table.partitions[:n], *table.partitions[n + 1 :])
        after = replace(table, rows=_outside(table, n), partitions=parts, version=_version(ts))
        query = f"ALTER TABLE `{name}` DROP PARTITION `{table.partitions[n][0]}`"
        return self._altered(table, after, query)

    def _exchange(self, database: str, name: str, n: int, other: list[str]) -> Commit | None:
        """EXCHANGE PARTITION: rows change places, and none is sent."""
        table, plain = self.tables.get((database, name)), self.tables.get((other[0], other[1]))
        if table is None or plain is None or not table.partitions or plain.partitions:
            return None
        if (table.columns, table.indexes) != (plain.columns, plain.indexes):
            return None
        n %= len(table.partitions)
        staying = _outside(table, n)
        if _outside(replace(table, rows=plain.rows), n):
            return None  # TiDB refuses rows that do not belong into the partition
        ts = self._tick()
        leaving = {rowid: row for rowid, row in table.rows.items() if rowid not in staying}
        version = _version(ts)
        swapped = replace(self._unsent(table, staying | plain.rows), version=version)
        taken = replace(self._unsent(plain, leaving), version=version, table_id=self._new_id())
        self.tables |= {swapped.key: swapped, taken.key: taken}
        query = (
            f"ALTER TABLE {_spelled(table.key, True)} EXCHANGE PARTITION "
            f"`{table.partitions[n][0]}` WITH TABLE {_spelled(plain.key, True)}"
        )
        # Classic names the partitioned table beside it, the new architecture the other one.
        return self._statement(
            [WireDdl(query, database, swapped.schema(), table.schema())],
            [WireDdl(query, taken.database, taken.schema(), plain.schema())],
        )

    # --- rows -------------------------------------------------------------------------------------

    def _txn(self, changes: list[Op]) -> Commit | None:
        """One transaction; changes that do not fit are left out of it."""
        before, ts = dict(self.tables), self.ts
        self._tick()
        touched: dict[Name, None] = {}
        for kind, database, name, *rest in changes:
            table = self.tables.get((database, name))
            changed = None if table is None else self._changed(table, kind, *rest)
            if changed is not None:
                self.tables[changed.key] = changed
                touched[changed.key] = None
        for name in touched:
            self.tables[name] = _settled(before[name], self.tables[name])
        rows = [row for name in touched for row in _net(before[name], self.tables[name])]
        if not rows:
            self.tables, self.ts = before, ts
            return None
        self._excuse_twins(rows)
        return Commit(self.ts, tuple(rows))

    def _excuse_twins(self, rows: Sequence[RowChange]) -> None:
        """Equal rows of one transaction look like one that was sent again, unless there is a key.

        It does not matter whether an insert or an update wrote them, or which of them took them away.
        """
        seen: set[tuple[Name, str, Row]] = set()
        for row in rows:
            for side, values in (("before", row.before), ("after", row.after)):
                if values is None:
                    continue
                if (row.table.key, side, values) in seen and not row.table.handle:
                    table = self.tables[row.table.key]
                    self.tables[table.key] = replace(table, excuses=table.excuses | {"twins"})
                seen.add((row.table.key, side, values))

    def _changed(self, table: TableState, kind: str, *arguments: int) -> TableState | None:
        rows = dict(table.rows)
        rowid: Any = None
        if kind != "insert":
            if not rows:
                return None
            rowid = list(rows)[arguments[0] % len(rows)]
        if kind == "delete":
            del rows[rowid]
            return replace(table, rows=rows)
        old = rows[rowid].values if rowid is not None else None
        values = _values(table, arguments[-1], old, keeps_key=kind == "update")
        if values == old or not table.admits(values, but=rowid):
            return None
        if rowid is not None and (table.clustered or old is None):
            del rows[rowid]
        rows[self._rowid(table, values, rowid)] = Stored(values, self.ts)
        return replace(table, rows=rows)

    def _rowid(self, table: TableState, values: Row, rowid: Any) -> Any:
        if table.clustered:
            return table.key_of(table.indexes[0], values)
        if rowid is not None:
            return rowid
        self._rowids += 1
        return self._rowids


def _version(ts: int) -> int:
    """A schema's version is a little older than the commit of its statement."""
    return ts - (1 << LOGICAL)


def _spelled(name: Name, qualified: bool) -> str:
    return f"`{name[0]}`.`{name[1]}`" if qualified else f"`{name[1]}`"


def _typed(name: Name, qualified: bool) -> str:
    """A table that is there as a user may type its name: in another case than it has."""
    return _spelled((name[0].lower(), name[1].lower()), qualified)


def _definition(table: TableState) -> str:
    parts = [column.sql() for column in table.columns]
    for index in table.indexes:
        listed = ", ".join(f"`{name}`" for name in index.columns)
        if index.primary:
            kind = "CLUSTERED" if table.clustered else "NONCLUSTERED"
            parts.append(f"PRIMARY KEY({listed}) /*T![clustered_index] {kind} */")
        else:
            parts.append(f"UNIQUE `{index.name}`({listed})")
    return ",".join(parts)


def _rewritten(table: TableState, rewrite: Callable[[Row], Row]) -> TableState:
    rows = {rowid: replace(row, values=rewrite(row.values)) for rowid, row in table.rows.items()}
    return replace(table, rows=rows)


def _excused_without_key(table: TableState) -> TableState:
    return table if table.handle else replace(table, excuses=table.excuses | {"key dropped"})


def _outside(table: TableState, n: int) -> dict[Any, Stored]:
    """The rows that are not in a partition."""
    least = table.partitions[n - 1][1] if n else None
    below = table.partitions[n][1]
    return {
        rowid: row
        for rowid, row in table.rows.items()
        if table.number(row.values) >= below
        or (least is not None and table.number(row.values) < least)
    }


def _values(table: TableState, seed: int, old: Row | None, *, keeps_key: bool) -> Row:
    """A row made of a number; an update `keeps_key` of the old row."""
    indexed = {name for index in table.indexes for name in index.columns}
    found: list[str | None] = []
    for place, column in enumerate(table.columns):
        if old is not None and keeps_key and column.name in indexed:
            found.append(old[place])
            continue
        choices: list[str | None] = list(VALUES[column.type])
        if column.nullable:
            choices.append(None)
        found.append(choices[seed % len(choices)])
        seed = seed // len(choices) + 7 * seed + 3
    return tuple(found)


def _settled(before: TableState, after: TableState) -> TableState:
    """The table after a transaction, in which a row that came back as it was is not written."""
    rows = {
        rowid: old if (old := before.rows.get(rowid)) and old.values == row.values else row
        for rowid, row in after.rows.items()
    }
    return replace(after, rows=rows)


def _net(before: TableState, after: TableState) -> list[RowChange]:
    """What a transaction did to a table: each row once, deletes before updates before inserts."""
    gone, changed, made = [], [], []
    for rowid, row in before.rows.items():
        now = after.rows.get(rowid)
        if now is None:
            gone.append(RowChange("delete", after, None, row.values))
        elif now.values != row.values:
            changed.append(RowChange("update", after, now.values, row.values))
    for rowid, row in after.rows.items():
        if rowid not in before.rows:
            made.append(RowChange("insert", after, row.values, None))
    return [*gone, *changed, *made]


def played(ops: Sequence[Op]) -> Upstream:
    """The history that operations make."""
    upstream = Upstream()
    for op in ops:
        upstream.play(op)
    return upstream
