"""Changes the columns of Delta tables."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column
from pyspark.sql.types import DataType, DecimalType, DoubleType, FloatType, IntegerType, LongType

from tidegate.lake.formats.base import LAKE, ORIGIN, Position, table_properties
from tidegate.lake.formats.column_changes import ColumnPlan, plan
from tidegate.lake.formats.delta.commits import COLUMN_ID, MAX_COLUMN_ID, DeltaCommits
from tidegate.lake.formats.delta.tables import TABLE_PROPERTIES
from tidegate.model import TableSchema
from tidegate.model.sql import quoted
from tidegate.spark.types import spark_type
from tidegate.sql.ddl import TableChange

_PHYSICAL_NAME = "delta.columnMapping.physicalName"


class DeltaColumns(DeltaCommits):
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
            self._rewrite(
                identifier, [column.value(zone) for column in columns], properties, position
            )
            return
        # A wider type first: to widen it again after a crash changes nothing.
        for column in columns:
            if column.before is not None and column.is_converted:
                name, kind = quoted(column.before.name), spark_type(column.after).simpleString()
                self._before(identifier, position)
                self.guard.check()
                self.spark.sql(f"ALTER TABLE {identifier} ALTER COLUMN {name} TYPE {kind}")
        text = self._snapshot(identifier)[1].metadata().schemaString()
        there = {field["name"]: field for field in json.loads(text)["fields"]}
        highest = int(self._property(identifier, MAX_COLUMN_ID) or 0)
        fields = []
        for column in columns:
            if column.before is not None:
                fields.append(there[column.before.name] | {"name": column.after.name})
                continue
            highest += 1
            fields.append(_new_field(column, highest))
        self._commit_metadata(identifier, properties, position, fields)

    def _rewrite(
        self,
        identifier: str,
        values: Sequence[Column],
        properties: Mapping[str, str],
        position: Position,
    ) -> None:
        """The table anew with its new columns, in one commit; its versions stay."""
        origin = self._property(identifier, ORIGIN)
        kept = TABLE_PROPERTIES | ({} if origin is None else {ORIGIN: origin})
        kept[LAKE] = self._place.own_database
        with self._changing(identifier, position) as session:
            rows = session.table(identifier).select(*values)
            writer = rows.writeTo(identifier).using("delta")
            for key, value in (kept | dict(properties)).items():
                writer = writer.tableProperty(key, value)
            writer.createOrReplace()
        self._check_reached(identifier, position)


def _new_field(column: ColumnPlan, number: int) -> dict[str, Any]:
    return {
        "name": column.after.name,
        "type": json.loads(spark_type(column.after).json()),
        "nullable": True,
        "metadata": {COLUMN_ID: number, _PHYSICAL_NAME: f"col-{uuid.uuid4()}"},
    }


def _needs_rewrite(column: ColumnPlan) -> bool:
    """Delta has no value for a column that a file lacks but NULL."""
    if column.before is None:
        return column.fill is not None
    return column.is_rewritten(_is_widening)


def _is_widening(old: DataType, new: DataType) -> bool:
    """Whether Delta reads values of the old type as the new one."""
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        more = new.scale - old.scale
        return more >= 0 and new.precision - old.precision >= more and old != new
    if isinstance(old, IntegerType):
        return isinstance(new, LongType)
    return isinstance(old, FloatType) and isinstance(new, DoubleType)
