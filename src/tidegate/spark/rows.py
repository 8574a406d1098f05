"""Typed rows of one table as changes: what `publish` makes of them.

A row has the table's columns, `_op` (insert, update, delete) and, if there, `_commit_ts` (a TSO).
Rows without one are all of one transaction: that of the moment at which they are sent.
"""

from __future__ import annotations

import time

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from tidegate.changefeed.receive.gate import ROW_KINDS
from tidegate.model import ConfigError, TableSchema, tso_from_ms
from tidegate.spark.decoding import CHANGE_TYPE
from tidegate.spark.types import spark_type, to_text
from tidegate.wire.batch.shapes import shape_columns, shape_id

OP, COMMIT_TS = "_op", "_commit_ts"


def check_rows(df: DataFrame, schema: TableSchema) -> None:
    """Raises ConfigError where the DataFrame lacks a column of the table, or its own ones."""
    for name in (OP, *schema.carried_names):
        if name not in df.columns:
            what = "inserts, updates and deletes" if name == OP else f"{schema.table}'s own"
            raise ConfigError("df", f"it has no column {name!r} ({what})")
    if not schema.handle_key():
        raise ConfigError("schema", f"{schema.database}.{schema.table} has no key")


def rows_as_changes(df: DataFrame, schema: TableSchema, zone: str) -> DataFrame:
    """The change batch of typed rows; behind them a watermark, for they are all there is by now."""
    told = {column.name: column for column in schema.columns}
    texts = [
        to_text(told[name], F.col(f"`{name}`").cast(spark_type(told[name])), zone)
        for name in schema.carried_names
    ]
    values = F.array(*texts)
    kind = F.lower(F.col(OP))
    wrong = F.concat(F.lit(f"{OP} must be insert, update or delete, not "), F.col(OP))
    commit_ts = F.lit(tso_from_ms(time.time_ns() // 1_000_000))
    if COMMIT_TS in df.columns:
        commit_ts = F.col(COMMIT_TS)
    rows = df.select(
        *_columns(
            event=F.lit(0),
            kind=F.when(kind.isin(*ROW_KINDS), kind).otherwise(F.raise_error(wrong)),
            commit_ts=commit_ts,
            database=F.lit(schema.database),
            table=F.lit(schema.table),
            table_id=F.lit(schema.table_id),
            shape=F.lit(shape_id(schema)),
            after=F.when(kind != "delete", values),
            before=F.when(kind == "delete", values),
        )
    )
    return rows.unionByName(_shape(df, schema)).unionByName(_watermark(rows))


def _columns(**given: SparkColumn) -> list[SparkColumn]:
    """The columns of a change batch; those not given are null."""
    given.setdefault("flags", F.lit(0))
    return [
        given.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
        for field in CHANGE_TYPE.fields
    ]


def _shape(df: DataFrame, schema: TableSchema) -> DataFrame:
    one = df.sparkSession.range(1)
    return one.select(
        *_columns(
            event=F.lit(-1),
            kind=F.lit("schema"),
            database=F.lit(schema.database),
            table=F.lit(schema.table),
            shape=F.lit(shape_id(schema)),
            schema=F.lit(shape_columns(schema)).cast(StringType()),
        )
    )


def _watermark(rows: DataFrame) -> DataFrame:
    latest = rows.agg(F.max("commit_ts").alias("latest")).where("latest IS NOT NULL")
    return latest.select(
        *_columns(event=F.lit(0), kind=F.lit("watermark"), commit_ts=F.col("latest"))
    )
