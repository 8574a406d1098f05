"""One table of a feed, typed: its columns in Spark's types, with what happened to each row.

Rows find their columns by name, so rows of every shape fit: before and after a column was added,
with the handle key alone, in any order. A column that a row does not carry is NULL and is named in
`_missing`. Where the changes come straight from a feed they are decoded and typed in one pass.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from tidegate.changefeed.receive.gate import ROW_KINDS
from tidegate.model import Column, ConfigError, SchemaNotSeen, TableSchema
from tidegate.spark.decoding import Decoding, message_columns, origin
from tidegate.spark.types import UTC, arrow_type, from_text, from_text_array, spark_schema
from tidegate.sql.ddl_names import DdlId
from tidegate.sql.tables import TableBook
from tidegate.wire import ShapeBook

_NAMES = pa.list_(pa.field("element", pa.string()))
_PLACE = {
    "_op": ("kind", StringType(), pa.string()),
    "_commit_ts": ("commit_ts", LongType(), pa.int64()),
    "_topic": ("topic", StringType(), pa.string()),
    "_partition": ("partition", IntegerType(), pa.int32()),
    "_offset": ("offset", LongType(), pa.int64()),
    "_event": ("event", IntegerType(), pa.int32()),
}
MISSING, BEFORE, BEFORE_MISSING = "_missing", "_before", "_before_missing"


def table(
    changes: DataFrame,
    name: str | tuple[str, str],
    *,
    schema: TableSchema | None = None,
    before: bool = False,
    zone: str = UTC,
) -> DataFrame:
    """The rows of one table, `"db.table"`: its columns in Spark's types (docs/types.md).

    Before them come `_op` (insert, update, delete), `_commit_ts`, the position (`_topic`,
    `_partition`, `_offset`, `_event`) and `_missing`, the columns that the row does not carry. A
    deleted row has the values it had. With `before`, `_before` has the row as it was before an
    update or delete, and `_before_missing` what is not known of it.

    Without `schema` the table's latest one is looked for: in `changes`, or for a stream in a
    bounded read of its source. `zone` is the feed's own, in which it writes TIMESTAMP values.
    """
    database, table_name = _name(name)
    if schema is None:
        schema = find_schema(changes, database, table_name)
    columns = schema.carried
    typed = table_type(columns, before)
    found = origin(changes)
    if found is not None:
        typing = Typing(
            found.decoding,
            database,
            table_name,
            columns,
            before,
            zone,
        )
        return message_columns(found.messages).mapInArrow(typing.__call__, typed)
    if changes.isStreaming:
        raise ConfigError(
            "changes", "a stream must be what `changes` or `decode` gave; filter the table instead"
        )
    return _by_expressions(changes, database, table_name, columns, before, zone)


def table_type(columns: Iterable[Column], before: bool = False) -> StructType:
    """The columns that `table` gives."""
    row = spark_schema(columns)
    clash = {field.name.lower() for field in row} & {*_PLACE, MISSING, BEFORE, BEFORE_MISSING}
    if clash:
        raise ConfigError("table", f"it has a column {sorted(clash)[0]}, a name of our own")
    fields = [StructField(name, kind) for name, (_, kind, _) in _PLACE.items()]
    fields.append(StructField(MISSING, ArrayType(StringType())))
    fields += row.fields
    if before:
        fields += [StructField(BEFORE, row), StructField(BEFORE_MISSING, ArrayType(StringType()))]
    return StructType(fields)


def _name(name: str | tuple[str, str]) -> tuple[str, str]:
    parts = tuple(name.split(".", 1)) if isinstance(name, str) else name
    if len(parts) != 2 or not all(parts):
        raise ConfigError("table", f'{name!r} names no table: write "database.table"')
    return parts[0], parts[1]


# --- in Python workers ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Typing:
    """What Spark sends to its Python workers: from batches of messages to one table's rows."""

    decoding: Decoding
    database: str
    table: str
    columns: tuple[Column, ...]
    before: bool
    zone: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        layouts: dict[int, _Layout] = {}
        for changes in self.decoding.decoded(batches):
            self._learn(changes, layouts)
            if layouts:
                yield from self._rows(changes, layouts)

    def _learn(self, changes: pa.RecordBatch, layouts: dict[int, _Layout]) -> None:
        """Every batch begins with the shapes of its rows: those of this table that are new."""
        told = changes.select(["event", "shape", "database", "table", "schema"])
        told = told.filter(pc.equal(told["event"], -1))
        for row in told.to_pylist():
            if row["shape"] in layouts or (row["database"], row["table"]) != self._name:
                continue
            document = json.loads(row["schema"])
            layouts[row["shape"]] = _Layout.of(document["columns"], self.columns)

    @property
    def _name(self) -> tuple[str, str]:
        return self.database, self.table

    def _rows(
        self, changes: pa.RecordBatch, layouts: Mapping[int, _Layout]
    ) -> Iterator[pa.RecordBatch]:
        shapes = pa.array(layouts, pa.int64())
        shape, kind = changes.column("shape"), changes.column("kind")
        wanted = pc.and_(pc.is_in(shape, shapes), pc.greater_equal(changes.column("event"), 0))
        gone = pc.equal(kind, "delete")
        for id, layout in layouts.items():
            of_shape = pc.and_(wanted, pc.equal(shape, id)) if len(layouts) > 1 else wanted
            for image, of_image in (("after", pc.invert(gone)), ("before", gone)):
                rows = pc.indices_nonzero(pc.and_(of_shape, of_image))
                if len(rows):
                    yield self._typed(changes, rows.cast(pa.int32()), image, layout)

    def _typed(
        self, changes: pa.RecordBatch, rows: pa.Array, image: str, layout: _Layout
    ) -> pa.RecordBatch:
        """The rows of one shape; all of them have this image."""
        names: list[str] = []
        arrays: list[pa.Array] = []
        for name, (source, _, kind) in _PLACE.items():
            names.append(name)
            arrays.append(changes.column(source).take(rows).cast(kind))
        unknown = changes.column("before_missing").take(rows)
        of_row = unknown if image == "before" else None
        names.append(MISSING)
        arrays.append(layout.missing(len(rows), of_row))
        names += [column.name for column in self.columns]
        arrays += self._values(changes.column(image), rows, layout)
        if self.before:
            old = changes.column("before")
            values = self._values(old, rows, layout)
            there = old.is_valid().take(rows)
            names += [BEFORE, BEFORE_MISSING]
            fields = [pa.field(column.name, arrow_type(column)) for column in self.columns]
            arrays.append(pa.StructArray.from_arrays(values, fields=fields, mask=pc.invert(there)))
            told = layout.missing(len(rows), unknown)
            arrays.append(pc.if_else(there, told, pa.scalar(None, _NAMES)))
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _values(self, lists: pa.ListArray, rows: pa.Array, layout: _Layout) -> list[pa.Array]:
        """Each column, typed. Texts are taken from where the lists have them: no list is copied."""
        starts = lists.offsets.take(rows)
        valid = None
        if lists.null_count:
            valid = lists.is_valid().take(rows)
            if not pc.all(valid).as_py():
                starts = pc.if_else(valid, starts, None)
        texts = lists.values
        found = []
        for column, place, zone in zip(self.columns, layout.places, layout.zones, strict=True):
            if place is None:
                found.append(pa.nulls(len(rows), arrow_type(column)))
                continue
            found.append(from_text_array(column, texts, zone or self.zone, at=starts, place=place))
        return found


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the rows of a shape have each of the table's columns."""

    places: tuple[int | None, ...]
    zones: tuple[str | None, ...]
    absent: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, shape: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> _Layout:
        """From the columns of the shape's schema event."""
        by_name = {column["name"].lower(): place for place, column in enumerate(shape)}
        places = tuple(by_name.get(column.name.lower()) for column in columns)
        named = zip(columns, places, strict=True)
        return cls(
            places,
            tuple(None if place is None else shape[place].get("zone") for place in places),
            tuple(column.name for column, place in named if place is None),
            tuple(column.name for column in columns),
        )

    def missing(self, count: int, bits: pa.Array | None) -> pa.Array:
        """For each row the columns that it does not carry; NULL where it carries all."""
        if bits is None or bits.null_count == count:
            every = list(self.absent) or None
            return pa.nulls(count, _NAMES) if every is None else pa.array([every] * count, _NAMES)
        encoded = bits.dictionary_encode()
        told = [self._missing(each) for each in [*encoded.dictionary.to_pylist(), b""]]
        indices = pc.fill_null(encoded.indices, len(told) - 1)
        return pa.array(told, _NAMES).take(indices)

    def _missing(self, bits: bytes) -> list[str] | None:
        found = [
            name
            for name, place in zip(self.names, self.places, strict=True)
            if place is None or (place >> 3 < len(bits) and bits[place >> 3] >> (place & 7) & 1)
        ]
        return found or None


# --- in Spark's expressions -----------------------------------------------------------------------


def _by_expressions(
    changes: DataFrame,
    database: str,
    table: str,
    columns: Sequence[Column],
    before: bool,
    zone: str,
) -> DataFrame:
    """The same from any bounded DataFrame of changes, whose shapes are looked at first."""
    of_table = (F.col("database") == database) & (F.col("table") == table)
    shapes = changes.where(of_table & (F.col("event") == -1)).select("shape", "schema").distinct()
    layouts = {
        row["shape"]: _Layout.of(json.loads(row["schema"])["columns"], columns)
        for row in shapes.collect()
    }
    rows = changes.where(of_table & F.col("kind").isin(*ROW_KINDS) & F.col("shape").isin(*layouts))
    image = F.when(F.col("kind") == "delete", F.col("before")).otherwise(F.col("after"))
    bits = F.when(F.col("kind") == "delete", F.col("before_missing"))
    chosen = [F.col(source).alias(name) for name, (source, _, _) in _PLACE.items()]
    chosen.append(_missing_names(bits, layouts, columns).alias(MISSING))
    typed = [
        _value(image, number, column, layouts, zone).alias(column.name)
        for number, column in enumerate(columns)
    ]
    chosen += typed
    if before:
        old = F.col("before")
        there = old.isNotNull()
        values = [
            _value(old, number, column, layouts, zone).alias(column.name)
            for number, column in enumerate(columns)
        ]
        chosen.append(F.when(there, F.struct(*values)).alias(BEFORE))
        unknown = _missing_names(F.col("before_missing"), layouts, columns)
        chosen.append(F.when(there, unknown).alias(BEFORE_MISSING))
    return rows.select(*chosen).to(table_type(columns, before))


def _value(
    image: SparkColumn, number: int, column: Column, layouts: Mapping[int, _Layout], zone: str
) -> SparkColumn:
    """The column's value: from the place, and in the zone, that the row's shape has for it."""
    chosen: SparkColumn | None = None
    places: dict[tuple[int, str], list[int]] = {}
    for shape, layout in layouts.items():
        place = layout.places[number]
        if place is not None:
            places.setdefault((place, layout.zones[number] or zone), []).append(shape)
    for (place, of_shape), shapes in places.items():
        value = from_text(column, F.get(image, F.lit(place)), of_shape)
        condition = F.col("shape").isin(*shapes)
        chosen = F.when(condition, value) if chosen is None else chosen.when(condition, value)
    return F.lit(None).cast(spark_schema([column])[0].dataType) if chosen is None else chosen


def is_marked(bits: SparkColumn, place: int) -> SparkColumn:
    """Whether a bitmap such as `before_missing` has the bit of a column; NULL where it is short."""
    byte = F.conv(F.hex(F.substring(bits, (place >> 3) + 1, 1)), 16, 10)
    return byte.try_cast("int").bitwiseAND(F.lit(1 << (place & 7))) > 0


def _missing_names(
    bits: SparkColumn, layouts: Mapping[int, _Layout], columns: Sequence[Column]
) -> SparkColumn:
    """The names of the columns that a row does not carry."""
    each = []
    for number, column in enumerate(columns):
        places: dict[int | None, list[int]] = {}
        for shape, layout in layouts.items():
            places.setdefault(layout.places[number], []).append(shape)
        is_missing: SparkColumn = F.lit(False)
        for place, shapes in places.items():
            in_shape = F.col("shape").isin(*shapes)
            if place is None:
                is_missing = is_missing | in_shape
            else:
                set_here = is_marked(bits, place)
                is_missing = is_missing | (in_shape & F.coalesce(set_here, F.lit(False)))
        each.append(F.when(is_missing, F.lit(column.name)))
    names = F.filter(F.array(*each), F.isnotnull)
    return F.when(F.size(names) > 0, names)


# --- the schema, where none is given --------------------------------------------------------------


def find_schema(changes: DataFrame, database: str, table: str) -> TableSchema:
    """The table's latest schema that the feed tells of: by DDL, by Simple's messages, by shapes.

    A stream is not read for it, but its source, once, from the beginning to where it is now.
    """
    found = origin(changes)
    if found is not None and found.whole is not None:
        changes = found.whole()
    elif changes.isStreaming:
        raise ConfigError("schema", "of this stream it cannot be found: give it")
    told = changes.where(F.col("kind").isin("ddl", "schema")).groupBy(
        "kind",
        "commit_ts",
        "database",
        "table",
        "shape",
        "schema",
        F.col("ddl.query").alias("query"),
    )
    first = told.agg(F.min(F.struct("topic", "partition", "offset", "event")).alias("place"))
    return schema_from_rows([row.asDict() for row in first.collect()], database, table)


def schema_from_rows(rows: Iterable[Mapping[str, Any]], database: str, table: str) -> TableSchema:
    """The latest schema by `schema` and `ddl` rows, which may be in any order.

    Statements of one commit_ts follow each other by their `place`: topic, partition, offset, event.
    """
    book, shapes = TableBook(), ShapeBook()
    seen: set[tuple[int, str | None]] = set()
    last: tuple[int, int] | None = None
    known: TableSchema | None = None
    for row in _arranged(rows, book):
        document = json.loads(row["schema"]) if row["schema"] else {}
        if row["shape"] is not None:
            shapes.add_shape(row["shape"], row["database"], row["table"], document)
            if (row["database"], row["table"]) == (database, table):
                order = (len(document["columns"]), row["shape"])
                last = order if last is None else max(last, order)
            continue
        if row["kind"] == "ddl" and (row["commit_ts"], row["query"]) not in seen:
            seen.add((row["commit_ts"], row["query"]))
            book.run(
                row["query"],
                row["database"] or "",
                row["table"],
                schemas=row["schema"],
                commit_ts=row["commit_ts"],
            )
        if document.get("tableSchema"):
            book.put(TableSchema.from_json(document["tableSchema"]))
        known = book.get(database, table) or known  # also of a table that is gone since
    if known is not None:
        return replace(known, database=database, table=table)
    shape = None if last is None else shapes.shape(last[1])
    if shape is None or any(column.type is None for column in shape.columns):
        raise SchemaNotSeen(database, table)
    columns = tuple(
        Column.of_type(column.name, column.type or "", code=column.code, zone=column.zone)
        for column in shape.columns
    )
    return TableSchema(database=database, table=table, columns=columns)


def _arranged(rows: Iterable[Mapping[str, Any]], book: TableBook) -> Iterator[Mapping[str, Any]]:
    """The rows in order; statements of one commit_ts as the book, when they are run, has it."""
    for _, group in groupby(sorted(rows, key=_order), key=lambda row: _order(row)[:2]):
        together = list(group)
        is_ddl = together[0]["kind"] == "ddl"
        yield from book.arrange(together, _ddl_id) if is_ddl else together


def _ddl_id(row: Mapping[str, Any]) -> DdlId:
    return DdlId(row["commit_ts"] or 0, row["database"] or "", row["table"] or "", row["query"])


def _order(row: Mapping[str, Any]) -> tuple[int, bool, tuple[str, int, int, int]]:
    topic, partition, offset, event = row["place"]
    place = (topic or "", partition or 0, offset or 0, event)
    return row["commit_ts"] or 0, row["kind"] != "ddl", place
