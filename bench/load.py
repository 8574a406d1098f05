"""`python -m bench.load`: what it costs to read a table of a database, one connection.

A real MariaDB on loopback with a table of sysbench's form. Contestants in alternation, the best
turn of each counts, CPU is that of the reading processes alone:

  tidegate   `ChunkReader`: packets to Arrow strings of the change batch
  pymysql    an unbuffered cursor of PyMySQL, and `text_of` for each value, into Arrow strings
  spark      Spark's JDBC reader into its `noop` sink, `local[1]`, one partition, rows streamed;
             left out where its jar cannot be fetched (`--no-spark` leaves it out, too)
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
from rich.console import Console
from rich.table import Table

from bench import processes
from tests.support import mariadb
from tidegate.changefeed.config.filter import TableFilter
from tidegate.model import SparkError, TableSchema
from tidegate.spark import jars
from tidegate.upstream.chunks import Chunk
from tidegate.upstream.mysql import MySQL
from tidegate.upstream.reading import read_chunk
from tidegate.upstream.server import DatabaseServer, text_of

ROWS = 1_000_000
LEAST_TIMES_SPARK = 2.0
BATCH_ROWS = 10_000
JARS = Path("build/jdbc")
CHUNK = Chunk(database="bench", table="sbtest1", key=("id",))
CREATE = (
    "CREATE TABLE bench.sbtest1 (id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL, "
    "c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL, KEY k_1 (k))"
)
# Eleven and five groups of eleven digits, as sysbench has them.
GROUP = "LPAD(FLOOR(RAND() * 99999999999), 11, '0')"
FILL = (
    "INSERT INTO bench.sbtest1 (k, c, pad) SELECT FLOOR(RAND() * {rows}), "
    f"CONCAT_WS('-', {', '.join([GROUP] * 10)}), CONCAT_WS('-', {', '.join([GROUP] * 5)}) "
    "FROM bench.seq_1_to_{rows}"
)


def by_tidegate(database: MySQL, schema: TableSchema) -> int:
    """Reads the table; the number of rows."""
    return sum(batch.num_rows for batch in read_chunk(database, CHUNK, schema, None))


def by_pymysql(database: MySQL, schema: TableSchema) -> int:
    """The same strings by the driver alone."""
    rows = 0
    connection = database.server.connect(cursorclass=pymysql.cursors.SSCursor)
    try:
        with connection.cursor() as cursor:
            cursor.execute(CHUNK.select(schema))
            while part := cursor.fetchmany(BATCH_ROWS):
                for column, values in zip(schema.carried, zip(*part, strict=True), strict=True):
                    pa.array([text_of(column, value) for value in values], pa.string())
                rows += len(part)
    finally:
        connection.close()
    return rows


@contextmanager
def spark_reader(server: DatabaseServer) -> Iterator[Callable[[], int]]:
    """Spark's JDBC reader."""
    from pyspark.sql import SparkSession

    jars.fetch(JARS, jars.MARIADB)
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", ",".join(str(JARS / jar.file) for jar in jars.MARIADB))
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield lambda: _by_spark(spark, server)
    finally:
        spark.stop()


def _by_spark(spark: Any, server: DatabaseServer) -> int:
    reader = spark.read.format("jdbc").options(
        url=f"jdbc:mysql://{server.host}:{server.port}/{CHUNK.database}?permitMysqlScheme",
        driver=jars.MARIADB[0].provides,
        dbtable=CHUNK.table,
        user=server.user,
        password=server.password.reveal(),
        fetchsize="10000",
    )
    reader.load().write.format("noop").mode("overwrite").save()
    return -1


def measured(work: Callable[[], int]) -> tuple[float, float]:
    """Seconds by the clock, and of CPU in this process and Spark's; the server's is not in it."""
    start, cpu = time.perf_counter(), processes.cpu()
    work()
    return time.perf_counter() - start, processes.cpu() - cpu


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="bench.load", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--json", type=Path, help="write the results here as JSON")
    options = parser.parse_args()
    console = Console()
    with mariadb.server() as running:
        running.run("CREATE DATABASE bench", CREATE, FILL.format(rows=options.rows))
        database = MySQL(DatabaseServer.parse(running.uri, "bench"))
        with database.session() as session:
            (table,) = database.tables(session, TableFilter.parse(["bench.*"])).tables
        contestants: dict[str, Callable[[], int]] = {
            "tidegate": lambda: by_tidegate(database, table.schema),
            "pymysql": lambda: by_pymysql(database, table.schema),
        }
        if options.no_spark:
            results = run(contestants, options.turns)
        else:
            try:
                with spark_reader(database.server) as by_spark:
                    results = run({**contestants, "spark": by_spark}, options.turns)
            except SparkError as error:
                console.print(f"without Spark: {error}")
                results = run(contestants, options.turns)
    rows = report(results, options.rows, len(table.schema.carried))
    shown = Table(*rows[0], title=f"{options.rows:,} rows of sysbench, one connection")
    for row in rows:
        shown.add_row(*map(str, row.values()))
    console.print(shown)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if "spark" in results:
        times = results["spark"][0] / results["tidegate"][0]
        if times < LEAST_TIMES_SPARK:
            raise SystemExit(f"{times:.1f} times Spark's reader, wanted {LEAST_TIMES_SPARK:g}")


def run(contestants: dict[str, Callable[[], int]], turns: int) -> dict[str, tuple[float, float]]:
    """The best turn of each, after one to warm up."""
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for turn in range(turns + 1):
        for name, work in contestants.items():
            result = measured(work)
            if turn:
                results[name].append(result)
    return {
        name: (min(wall for wall, _ in each), min(cpu for _, cpu in each))
        for name, each in results.items()
    }


def report(
    results: dict[str, tuple[float, float]], rows: int, columns: int
) -> list[dict[str, Any]]:
    """A line for each contestant."""
    ours = results["tidegate"]
    return [
        {
            "reader": name,
            "rows/s": round(rows / wall),
            "µs CPU/value": round(cpu / rows / columns * 1e6, 3),
            "tidegate is × by the clock": round(wall / ours[0], 1),
            "× in CPU": round(cpu / ours[1], 1),
        }
        for name, (wall, cpu) in results.items()
    ]


if __name__ == "__main__":
    main()
