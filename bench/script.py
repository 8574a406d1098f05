"""What a user would write today: from_json with a schema by hand, the last change of each key of a
batch, MERGE in foreachBatch. Knows one table, no DDL, no watermark, no re-send.

`python -m bench.script BROKER TOPIC PLACE` prints its seconds, its CPU and the rows of the table, as
JSON; PLACE is a `bench.places.BenchPlace`. Tuned as well as is known: results persisted, as many shuffle partitions as cores, deletion vectors (Delta), format
version 3 and merge-on-read (Iceberg).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.places import CATALOG, BenchPlace
from bench.processes import cpu_by_role
from tidegate.spark import session

TRIGGER = 100_000
TYPES = {
    "id": "bigint",
    "k": "int",
    "c": "string",
    "pad": "string",
    "qty": "bigint",
    "price": "decimal(12,2)",
    "tax": "decimal(8,4)",
    "total": "decimal(14,2)",
    "ref": "decimal(20,0)",
    "owner": "bigint",
    "region": "int",
    "level": "int",
    "rate": "double",
    "share": "float",
    "made": "timestamp_ntz",
    "seen": "timestamp_ntz",
    "due": "date",
    "stamp": "timestamp",
    "code": "string",
    "memo": "string",
}


def changes(spark: SparkSession, broker: str, topic: str) -> DataFrame:
    """The rows of the feed, typed, with what orders them."""
    raw = (
        spark.readStream.format("kafka")
        .option("maxOffsetsPerTrigger", TRIGGER)
        .option("kafka.bootstrap.servers", broker)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    return typed(raw)


def typed(raw: DataFrame) -> DataFrame:
    """The typed rows of messages as Spark's Kafka source gives them, streaming or not."""
    texts = ", ".join(f"{name}: string" for name in TYPES)
    row = f"array<struct<{texts}>>"
    message = f"type string, isDdl boolean, data {row}, _tidb struct<commitTs: bigint>"
    parsed = raw.select(
        F.from_json(F.col("value").cast("string"), message).alias("m"), "partition", "offset"
    ).where("m.type in ('INSERT', 'UPDATE', 'DELETE')")
    return parsed.select(
        F.col("m.type").alias("op"),
        F.col("m._tidb.commitTs").alias("ts"),
        "offset",
        F.explode("m.data").alias("d"),
    ).select(
        "op",
        "ts",
        "offset",
        *(F.col(f"d.{name}").cast(kind).alias(name) for name, kind in TYPES.items()),
    )


def settings(place: BenchPlace) -> dict[str, str]:
    """Spark's settings for the tables."""
    chosen = {"spark.sql.shuffle.partitions": "2", **place.settings}
    if place.table_format == "delta":
        return chosen | {"spark.databricks.delta.snapshotPartitions": "2"}
    if place.catalog is not None:
        return chosen
    catalog = f"spark.sql.catalog.{CATALOG}"
    return chosen | {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": f"{place.folder}/warehouse",
    }


def create(spark: SparkSession, place: BenchPlace) -> str:
    """The table; its name."""
    columns = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
    table_format = place.table_format
    if table_format == "delta":
        name = f"delta.`{place.folder}/table`"
        properties = "'delta.enableDeletionVectors' = 'true'"
    else:
        # By the name of its place: contestants share a catalog.
        database = f"{CATALOG}.db_{Path(place.folder).name}"
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {database}")
        name = f"{database}.sbtest1"
        modes = (f"'write.{work}.mode' = 'merge-on-read'" for work in ("merge", "update", "delete"))
        properties = ", ".join(("'format-version' = '3'", *modes))
    spark.sql(f"CREATE TABLE {name} ({columns}) USING {table_format} TBLPROPERTIES ({properties})")
    return name


def main() -> None:
    """Runs the script until it has caught up."""
    broker, topic = sys.argv[1:3]
    place = BenchPlace.from_text(sys.argv[3])
    started = time.monotonic()
    spark = session("script", master="local[2]", settings=settings(place))
    table = create(spark, place)

    def merge(batch: DataFrame, number: int) -> None:
        row = F.struct("op", *TYPES)
        last = (
            batch.groupBy("id")
            .agg(F.max_by(row, F.struct("ts", "offset")).alias("r"))
            .select("r.*")
            .persist()
        )
        last.createOrReplaceTempView("changes")
        columns = ", ".join(TYPES)
        values = ", ".join(f"s.{name}" for name in TYPES)
        last.sparkSession.sql(
            f"MERGE INTO {table} t USING changes s ON t.id = s.id "
            "WHEN MATCHED AND s.op = 'DELETE' THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{n} = s.{n}' for n in TYPES)} "
            f"WHEN NOT MATCHED AND s.op <> 'DELETE' THEN INSERT ({columns}) VALUES ({values})"
        )
        last.unpersist()

    query = (
        changes(spark, broker, topic)
        .writeStream.foreachBatch(merge)
        .option("checkpointLocation", f"{place.folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seconds = time.monotonic() - started
    cpu = cpu_by_role()
    print(
        json.dumps(
            {
                "seconds": round(seconds, 2),
                "cpu": round(sum(cpu.values()), 2),
                "cpu by process": cpu,
                "rows": spark.sql(f"SELECT * FROM {table}").count(),
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main()
