"""Changes the columns of Iceberg tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.types import DataType, DecimalType, DoubleType, FloatType, IntegerType, LongType

from tidegate.lake.formats.base import POSITION, Position, table_properties
from tidegate.lake.formats.column_changes import ColumnPlan, plan
from tidegate.lake.formats.iceberg.catalog import IcebergCatalog
from tidegate.lake.formats.iceberg.commits import begin
from tidegate.model import TableSchema
from tidegate.spark.types import from_text_array, spark_type
from tidegate.sql.ddl import TableChange


class IcebergColumns(IcebergCatalog):
    """The columns of a lake's tables."""

    def evolve(
        self,
        identifier: str,
        before: TableSchema,
        change: TableChange,
        position: Position,
        zone: str = "UTC",
    ) -> None:
        assert change.after is not None
        columns = plan(before, change)
        properties = table_properties(change.after, position)
        if any(_needs_rewrite(column) for column in columns):
            self._before(identifier, position)
            self.guard.check()
            self._rewrite(
                identifier, [column.value(zone) for column in columns], properties, position
            )
            self._reached[identifier] = position
            return
        transaction = begin(self._jvm, self._before(identifier, position))
        self._change_columns(transaction, before, columns)
        self._add_columns(transaction, columns, zone)
        self._set_properties(transaction, properties)
        self._add_snapshot(transaction, position)
        self._commit(transaction)
        self._reached[identifier] = position

    def _change_columns(
        self, transaction: Any, before: TableSchema, columns: Sequence[ColumnPlan]
    ) -> None:
        update = transaction.updateSchema()
        kept = {column.before.name for column in columns if column.before is not None}
        for gone in before.carried:
            if gone.name not in kept:
                update = update.deleteColumn(gone.name)
        for column in columns:
            if column.before is None:
                continue
            if column.is_converted:
                new = self._java_type(spark_type(column.after))
                update = update.updateColumn(column.before.name, new)
            if column.before.name != column.after.name:
                update = update.renameColumn(column.before.name, column.after.name)
        update.commit()

    def _add_columns(self, transaction: Any, columns: Sequence[ColumnPlan], zone: str) -> None:
        # After the others, since an added column may have the name that another had.
        update = transaction.updateSchema()
        for column in columns:
            if column.before is not None:
                continue
            kind = self._java_type(spark_type(column.after))
            value = self._default(column, kind, zone)
            # With a parent, if none, dots in the name are nothing but dots.
            if value is None:
                update = update.addColumn(None, column.after.name, kind)
            else:
                update = update.addColumn(None, column.after.name, kind, None, value)
        previous = None
        for column in columns:
            name = column.after.name
            update = (
                update.moveFirst(name) if previous is None else update.moveAfter(name, previous)
            )
            previous = name
        update.commit()

    def _default(self, column: ColumnPlan, kind: Any, zone: str) -> Any:
        """What the rows that are there hold in an added column, as an Iceberg literal."""
        if column.fill is None:
            return None
        value = from_text_array(column.after, pa.array([column.fill]), zone)[0].as_py()
        of: Any = self._jvm.org.apache.iceberg.expressions.Literal.of
        if value is None:
            return None
        if isinstance(value, bytes):
            return of(self._jvm.java.nio.ByteBuffer.wrap(value))
        if isinstance(value, Decimal):
            return of(f"{value:f}").to(kind)
        if isinstance(value, date):  # of which datetime is one
            return of(value.isoformat()).to(kind)
        return of(value).to(kind)

    def _rewrite(
        self,
        identifier: str,
        values: Sequence[Column],
        properties: Mapping[str, str],
        position: Position,
    ) -> None:
        """The table anew with its new columns, in one commit; its versions stay."""
        rows = self.read(identifier).select(*values)
        writer = rows.writeTo(identifier).using("iceberg")
        for key, value in properties.items():
            writer = writer.tableProperty(key, value)
        writer.option(f"snapshot-property.{POSITION}", str(position)).createOrReplace()


def _needs_rewrite(column: ColumnPlan) -> bool:
    if column.before is None:
        is_nested = spark_type(column.after).typeName() == "array"
        return is_nested and column.fill is not None
    return column.is_rewritten(_is_promotion)


def _is_promotion(old: DataType, new: DataType) -> bool:
    """Whether Iceberg reads values of the old type as the new one."""
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return old.scale == new.scale and old.precision < new.precision
    if isinstance(old, IntegerType):
        return isinstance(new, LongType)
    return isinstance(old, FloatType) and isinstance(new, DoubleType)
