"""Where a change goes: its topic, and its partition in it, by a changefeed's dispatch rules.

The first rule whose matcher takes the table decides, and a table that none takes goes by the
default one. The hash is TiCDC's, so that a feed written here falls into the partitions that TiCDC
would choose: the CRC-32 of database and table, and of the name and the value of each column that
counts, combined by XOR (`pkg/hash/position_inertia.go` of TiCDC).
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.changefeed.config.changefeed import ChangefeedConfig, DispatchRule
from tidegate.changefeed.config.filter import TableFilter
from tidegate.changefeed.send.row_groups import RowGroup, modulo, row_cells, row_groups, scattered
from tidegate.model import ConfigError, EncodeError, Flag, MySQLType, SchemaNotSeen
from tidegate.model.types import is_binary
from tidegate.wire import Shape, ShapeBook, ShapeColumn

Generation = Literal["classic", "new"]

_BIT_SETS = (MySQLType.BIT, MySQLType.SET)
_MOST_ROUTES = 10_000


@dataclass(frozen=True, slots=True)
class _Route:
    """The rule of a table, as its number among the rules, and what its rows hash with."""

    number: int
    rule: DispatchRule
    seed: int


@dataclass(frozen=True, slots=True)
class _HashedColumn:
    """A column that counts: its place in the row, the hash of its name, its values as bytes."""

    place: int
    name: int
    to_bytes: Callable[[str], bytes]


class Dispatcher:
    """The dispatch rules of a changefeed, for topics of so many partitions.

    `generation` says which TiCDC to agree with: they hash a NULL in a column named by the rule
    differently.
    """

    def __init__(
        self,
        config: ChangefeedConfig,
        partition_count: int | None = None,
        *,
        generation: Generation = "classic",
    ) -> None:
        count = config.partition_num if partition_count is None else partition_count
        if count is None or count < 1:
            raise ConfigError("partition-num", "give the number of partitions, at least 1")
        self.config = config
        self.partition_count = count
        self.generation = generation
        self._rules = [
            (TableFilter.parse(rule.matcher, case_sensitive=config.case_sensitive), rule)
            for rule in (*config.dispatchers, DispatchRule(("*.*",)))
        ]
        self._routes: dict[tuple[str, str], _Route] = {}

    # --- topics ---

    def topic(self, database: str, table: str) -> str | None:
        """The topic of a table's changes; None where neither rule nor sink URI names one."""
        topic = self._route(database, table).rule.topic
        return self.config.topic if topic is None else topic.substitute(database, table)

    def may_be_of(self, topic: str, database: str) -> bool:
        """Whether a topic can be that of some table of a database, by a rule that names topics."""
        rules = (rule for _, rule in self._rules)
        return any(
            rule.topic is not None and rule.topic.may_be_of(topic, database) for rule in rules
        )

    def ddl_topic(self, database: str | None, table: str | None) -> str | None:
        """The topic of a DDL: the default one if it is not of a table.

        A table that is being renamed is named as it was before.
        """
        return self.topic(database or "", table) if table else self.config.topic

    def topics(self, tables: Iterable[tuple[str, str]]) -> tuple[str, ...]:
        """Every topic that watermarks must go to: those of the tables, and the default one."""
        found = dict.fromkeys([*(self.topic(*table) for table in tables), self.config.topic])
        return tuple(topic for topic in found if topic is not None)

    # --- partitions ---

    def partition(
        self,
        database: str,
        table: str,
        values: Sequence[str | None],
        shape: Shape | None = None,
        *,
        commit_ts: int | None = None,
    ) -> int:
        """The partition of one row: the new one, or the old one of a delete.

        `values` are texts in the order of `shape`, which only rules by values need; `commit_ts` is
        for the rule `ts`.
        """
        route = self._route(database, table)
        if route.rule.partition == "ts":
            return self._of_ts(commit_ts)
        key = route.seed
        for column in self._hashed_columns(route, database, table, shape):
            key ^= self._hash(column, values[column.place], database, table, shape)
        return key % self.partition_count

    def partitions(self, batch: pa.RecordBatch, shapes: ShapeBook | None = None) -> pa.Array:
        """The partition of each row of a change batch, as int32; null for what is no row change.

        `shapes` knows the shapes and schemas of the rows (default: those of this batch).
        """
        return self.partitions_of(self.keys(batch, shapes))

    def partitions_of(self, keys: pa.Int64Array) -> pa.Int32Array:
        """The partitions of rows with these keys."""
        return pc.cast(modulo(keys, self.partition_count), pa.int32())

    def keys(self, batch: pa.RecordBatch, shapes: ShapeBook | None = None) -> pa.Array:
        """What partitions are computed from, as int64: TiCDC batches only rows that share it."""
        book = ShapeBook([batch]) if shapes is None else shapes
        groups = row_groups(batch)
        found = [self.group_keys(batch, group, book) for group in groups]
        if sum(map(len, found)) == batch.num_rows and len(found) == 1:
            return found[0]
        places = [group.places for group in groups]
        return scattered(places, found, batch.num_rows, pa.int64())

    def group_keys(self, batch: pa.RecordBatch, group: RowGroup, book: ShapeBook) -> pa.Int64Array:
        """The keys of the rows of one group, in its order."""
        database, table = group.database, group.table
        route = self._route(database, table)
        if route.rule.partition == "ts":
            return batch["commit_ts"].take(group.places)
        shape = None if group.shape is None else book.shape(group.shape, group.version)
        keys = pa.repeat(pa.scalar(route.seed, pa.int64()), len(group.places))
        for column in self._hashed_columns(route, database, table, shape, group.shape):
            texts = row_cells(batch, group.places, column.place)
            keys = pc.bit_wise_xor(keys, self._hashes(column, texts, database, table, shape))
        return keys

    def _hashes(
        self,
        column: _HashedColumn,
        texts: pa.StringArray,
        database: str,
        table: str,
        shape: Shape | None,
    ) -> pa.Int64Array:
        if column.to_bytes is str.encode and texts.null_count == 0:
            name = column.name
            values = texts.cast(pa.binary()).to_pylist()
            return pa.array([crc32(value, name) for value in values], pa.int64())
        found = [self._hash(column, text, database, table, shape) for text in texts.to_pylist()]
        return pa.array(found, pa.int64())

    def ddl_partitions(self) -> range:
        """Where a DDL goes: to all partitions, but in Canal-JSON only to the first."""
        return range(1 if self.config.protocol == "canal-json" else self.partition_count)

    def watermark_partitions(self) -> range:
        """Where a watermark goes: to all partitions, or nowhere if the feed has none."""
        return range(self.partition_count if self.config.sends_watermarks else 0)

    def bootstrap_partitions(self) -> range:
        """Where the schema of a table goes."""
        to_all = self.config.send_bootstrap_to_all_partition
        return range(self.partition_count if to_all else 1)

    # --- how ---

    def _route(self, database: str, table: str) -> _Route:
        route = self._routes.get((database, table))
        if route is None:
            if len(self._routes) >= _MOST_ROUTES:
                self._routes.clear()
            number, rule = next(
                (number, rule)
                for number, (tables, rule) in enumerate(self._rules)
                if tables.matches(database, table)
            )
            seed = crc32(table.encode(), crc32(database.encode()))
            route = self._routes[database, table] = _Route(number, rule, seed)
        return route

    def _of_ts(self, commit_ts: int | None) -> int:
        if commit_ts is None:
            raise ValueError("the rule ts needs the row's commit_ts")
        return commit_ts % self.partition_count

    def _hashed_columns(
        self,
        route: _Route,
        database: str,
        table: str,
        shape: Shape | None,
        shape_id: int | None = None,
    ) -> list[_HashedColumn]:
        rule = route.rule
        if rule.partition not in ("index-value", "columns"):
            return []
        if shape is None:
            raise SchemaNotSeen(database, table, shape=shape_id)
        if rule.partition == "columns":
            places = self._places(route, shape, rule.columns, "columns")
        elif rule.index is not None:
            indexed = self._index_columns(route, shape, rule.index)
            places = self._places(route, shape, indexed, "index")
        else:
            places = [place for place, column in enumerate(shape.columns) if _is_handle(column)]
        columns = ((place, shape.columns[place]) for place in places)
        return [
            _HashedColumn(place, crc32(column.name.encode()), _to_bytes(column))
            for place, column in columns
        ]

    def _places(self, route: _Route, shape: Shape, names: Iterable[str], setting: str) -> list[int]:
        """Where columns stand; their names have no case in MySQL."""
        places = {column.name.lower(): place for place, column in enumerate(shape.columns)}
        found = []
        for name in names:
            place = places.get(name.lower())
            if place is None:
                has = ", ".join(column.name for column in shape.columns)
                reason = f"the rows of {shape.database}.{shape.table} have no {name!r}, but {has}"
                raise self._rule_error(route, setting, reason)
            found.append(place)
        return found

    def _index_columns(self, route: _Route, shape: Shape, name: str) -> tuple[str, ...]:
        if shape.schema is None or shape.schema.indexes is None:
            raise SchemaNotSeen(shape.database, shape.table, shape=shape.id)
        for index in shape.schema.indexes:
            if index.name.lower() == name.lower():
                if index.unique or index.primary:
                    return index.columns
                reason = f"the index {name!r} of {shape.database}.{shape.table} is not unique"
                raise self._rule_error(route, "index", reason)
        has = ", ".join(index.name for index in shape.schema.indexes) or "none"
        reason = f"{shape.database}.{shape.table} has no index {name!r}; its indexes: {has}"
        raise self._rule_error(route, "index", reason)

    def _rule_error(self, route: _Route, setting: str, reason: str) -> ConfigError:
        return ConfigError(f"sink.dispatchers[{route.number}].{setting}", reason)

    def _hash(
        self,
        column: _HashedColumn,
        text: str | None,
        database: str,
        table: str,
        shape: Shape | None,
    ) -> int:
        if text is None:
            return crc32(b"null", column.name) if self.generation == "classic" else 0
        try:
            return crc32(column.to_bytes(text), column.name)
        except ValueError:
            name = None if shape is None else shape.columns[column.place].name
        raise EncodeError(
            self.config.protocol or "a feed",
            "the value is not what its column's type says",
            database=database,
            table=table,
            field=name,
        )


def _is_handle(column: ShapeColumn) -> bool:
    return column.key or bool((column.flags or 0) & Flag.HANDLE_KEY)


def _to_bytes(column: ShapeColumn) -> Callable[[str], bytes]:
    """How the text of a value is made into what TiCDC hashes."""
    if column.code is not None and is_binary(column.code, column.flags or 0):
        return _from_base64
    return _unsigned if column.code in _BIT_SETS else str.encode


def _from_base64(text: str) -> bytes:
    return b64decode(text, validate=True)


def _unsigned(text: str) -> bytes:
    """Avro has only signed longs: the top bit of a BIT(64) or SET is a sign there."""
    return b"%d" % (int(text) % (1 << 64)) if text.startswith("-") else text.encode()
