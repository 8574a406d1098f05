"""Small changes to a large table: what a merge reads and writes of it.

`python -m bench.large FOLDER ROWS` fills a table of the lake's format, merges a thousand changes
several times into it and into a table a hundredth as large, and prints seconds and files as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidegate.lake.formats import open_format, session_settings
from tidegate.lake.formats.base import OP, LakePlace, Position, TableFormat
from tidegate.model import Column, TableSchema
from tidegate.spark import session

CHANGES = 1_000
TURNS = 5


def measured(spark: SparkSession, tables: TableFormat, rows: int) -> dict[str, Any]:
    """The best of several merges into a table of so many rows."""
    kinds = (("id", "bigint"), ("name", "varchar"), ("amount", "bigint"))
    columns = tuple(Column.of_type(name, kind) for name, kind in kinds)
    schema = TableSchema(database="shop", table=f"of{rows}", columns=columns)
    table = tables.create("shop", schema.table, schema, Position(1))
    number = F.col("id")
    filled = spark.range(rows).select(
        number, F.md5(number.cast("string")).alias("name"), (number * 7).alias("amount")
    )
    tables.append(table, filled, Position(2))
    chance, seconds, summary = random.Random(1), [], {}
    for turn in range(TURNS):
        # Rows that were written lately change most: all keys of the newest tenth are as likely.
        keys = chance.sample(range(rows * 9 // 10, rows), CHANGES)
        changes = pa.table(
            {
                "id": pa.array(keys, pa.int64()),
                "name": pa.array([f"changed {turn}"] * CHANGES),
                "amount": pa.array([turn] * CHANGES, pa.int64()),
                OP: pa.array(["u"] * CHANGES),
            }
        )
        started = time.monotonic()
        tables.merge(table, changes, ["id"], Position(3 + turn))
        seconds.append(round(time.monotonic() - started, 2))
        told = spark.sql(
            f"SELECT summary FROM {table}.snapshots ORDER BY committed_at DESC LIMIT 1"
        )
        summary = dict(told.collect()[0][0])
    return {
        "seconds": seconds,
        "data files": int(summary["total-data-files"]),
        "data files rewritten": int(summary.get("deleted-data-files", 0)),
        "rows written": int(summary.get("added-records", 0)),
    }


def main() -> None:
    """Measures a large and a small table."""
    folder, rows = sys.argv[1], int(sys.argv[2])
    place = LakePlace(f"{folder}/large")
    spark = session("large", master="local[2]", settings=session_settings(place, "iceberg"))
    tables = open_format("iceberg", spark, place)
    print(json.dumps({str(count): measured(spark, tables, count) for count in (rows // 100, rows)}))
    spark.stop()


if __name__ == "__main__":
    main()
