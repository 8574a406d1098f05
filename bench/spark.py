"""`python -m bench.spark`: what reading a feed with Spark costs, beside what one would write by hand.

A real Kafka with three partitions, `local[2]`, bounded reads into Spark's `noop` sink, all in one
session: one turn to warm up, then all contestants in alternation, the best turn of each counts. CPU
is that of the JVM, the Python workers and the driver; the broker's is not in it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from bench import feeds, processes, script
from tests.support.kafka import Broker, broker
from tidegate.model import TableSchema
from tidegate.spark import changes, find_schema, session, table
from tidegate.spark.decoding import Decoding, message_columns, origin
from tidegate.spark.tables import Typing
from tidegate.spark.types import UTC

PARTS = ("speed", "steps", "protocols")
KEYS = 100_000
NAME = f"{feeds.DATABASE}.{feeds.TABLE}"
PROTOCOLS = {
    "open-protocol": {"protocol": "open-protocol"},
    "canal-json": feeds.CANAL,
    "simple json": {"protocol": "simple"},
    "simple avro": {"protocol": "simple", "encoding-format": "avro"},
    "craft": {"protocol": "craft"},
    "cdc": {"protocol": "cdc"},
}

RAW, CHANGES, TABLE = "raw Kafka read", "changes", "table, typed"
RAW_TUNED, FROM_JSON_TUNED = "raw read, our settings", "from_json, our settings"
FROM_JSON, UDF, ARROW_UDF = "from_json and casts", "UDF with orjson", "Arrow UDF with orjson"
LEAST_TIMES_FROM_JSON = 1.5
MOST_TIMES_RAW = 3.0

Batches = Iterable[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one run: by the clock, and of CPU in all of Spark's processes."""

    wall: float
    cpu: float


def measure(frames: Mapping[str, DataFrame], turns: int) -> dict[str, Cost]:
    """The best of each, by the clock and by CPU, after a turn that does not count."""
    for frame in frames.values():
        _run(frame)
    best = {name: Cost(float("inf"), float("inf")) for name in frames}
    for _ in range(turns):
        for name, frame in frames.items():
            cost, known = _run(frame), best[name]
            best[name] = Cost(min(cost.wall, known.wall), min(cost.cpu, known.cpu))
    return best


def _run(frame: DataFrame) -> Cost:
    cpu, started = processes.cpu(), time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return Cost(time.perf_counter() - started, processes.cpu() - cpu)


# --- contestants ----------------------------------------------------------------------------------


def contestants(
    spark: SparkSession, kafka: Broker, topic: str, schema: TableSchema
) -> dict[str, DataFrame]:
    """All that read the same Canal-JSON topic; those written by hand with Kafka's source as it is,
    and as `changes` sets it: more tasks, larger fetches.
    """
    feed = changes(spark, feeds.uri(kafka.address, topic), batch=True)
    found = origin(feed)
    assert found is not None
    return {
        RAW: raw(spark, kafka, topic),
        RAW_TUNED: found.messages,
        CHANGES: feed,
        TABLE: table(feed, NAME, schema=schema),
        FROM_JSON: script.typed(raw(spark, kafka, topic)),
        FROM_JSON_TUNED: script.typed(found.messages),
        UDF: by_udf(spark, kafka, topic, arrow=False),
        ARROW_UDF: by_udf(spark, kafka, topic, arrow=True),
    }


def raw(spark: SparkSession, kafka: Broker, topic: str) -> DataFrame:
    """The messages as they are."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.address)
    return reader.option("subscribe", topic).option("startingOffsets", "earliest").load()


def by_udf(spark: SparkSession, kafka: Broker, topic: str, *, arrow: bool) -> DataFrame:
    """The typed rows by a function that takes a message apart, and Spark's casts."""
    texts = ", ".join(f"{name}: string" for name in script.TYPES)
    parse = F.udf(_parsed, f"struct<op: string, ts: bigint, {texts}>", useArrow=arrow)
    # Otherwise Spark calls it twice a message, once to filter.
    parsed = raw(spark, kafka, topic).select(
        parse.asNondeterministic()("value").alias("m"), "offset"
    )
    return parsed.where("m IS NOT NULL").select(
        "m.op",
        "m.ts",
        "offset",
        *(F.col(f"m.{name}").cast(kind).alias(name) for name, kind in script.TYPES.items()),
    )


def _parsed(value: bytes) -> tuple[Any, ...] | None:
    message = orjson.loads(value)
    if message["type"] not in ("INSERT", "UPDATE", "DELETE"):
        return None
    row = message["data"][0]
    return (message["type"], message["_tidb"]["commitTs"], *map(row.get, script.TYPES))


def check_same(frames: Mapping[str, DataFrame], rows: int) -> None:
    """Ends the run unless all that give typed rows give the same ones."""
    of_row = F.bit_xor(F.xxhash64(*script.TYPES))
    found = {
        name: tuple(frame.agg(F.count("*"), of_row).first() or ())
        for name, frame in frames.items()
        if "id" in frame.columns
    }
    if len(set(found.values())) != 1 or found[TABLE][0] != rows:
        sys.exit(f"the contestants do not give the same {rows} rows: {found}")


# --- where the time goes --------------------------------------------------------------------------


def _dropping(function: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
    """Runs a function of a Python worker and lets nothing of its result cross back."""

    def run(batches: Batches) -> Batches:
        for _ in function(batches):
            pass
        return iter(())

    return run


def _as_they_are(batches: Batches) -> Batches:
    return batches


# What each run does more than another one.
STEPS = {
    "read from Kafka": ("read", None),
    "cross to Python": ("to Python", "read"),
    "decode": ("decoded", "to Python"),
    "changes cross back": (CHANGES, "decoded"),
    "cast to the table's types": ("typed", "decoded"),
    "typed rows cross back": (TABLE, "typed"),
}


def steps(feed: DataFrame, typed: DataFrame, schema: TableSchema) -> dict[str, DataFrame]:
    """Runs that do one thing more each; their differences are what the thing costs."""
    found = origin(feed)
    assert found is not None
    messages = message_columns(found.messages)
    decoding = Decoding(found.reading, found.counter)
    typing = Typing(decoding, feeds.DATABASE, feeds.TABLE, schema.columns, False, UTC, None)

    def dropped(function: Callable[[Batches], Batches]) -> DataFrame:
        return messages.mapInArrow(_dropping(function), messages.schema)

    return {
        "read": messages,
        "to Python": dropped(_as_they_are),
        "decoded": dropped(decoding),
        CHANGES: feed,
        "typed": dropped(typing),
        TABLE: typed,
    }


# --- what comes out -------------------------------------------------------------------------------


def main() -> None:
    """Runs the parts that are wanted and says what came out."""
    parser = argparse.ArgumentParser(prog="bench.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="of the Canal-JSON topic")
    parser.add_argument("--protocol-rows", type=int, default=200_000, help="of each protocol")
    parser.add_argument("--turns", type=int, default=5, help="the best of so many counts")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--json", type=Path, help="write the results here as JSON")
    arguments = parser.parse_args()
    console = Console()
    document: dict[str, Any] = {"rows": arguments.rows}
    missed: list[str] = []
    with broker() as kafka:
        spark = session("bench", master="local[2]", libraries=("kafka",))
        if {"speed", "steps"} & set(arguments.only):
            started = time.perf_counter()
            sent = feeds.produce(kafka, "canal", arguments.rows, KEYS)
            taken = time.perf_counter() - started
            console.print(f"{sent:,} messages are in Kafka after {taken:.0f} s.")
            feed = changes(spark, feeds.uri(kafka.address, "canal"), batch=True)
            schema = find_schema(feed, feeds.DATABASE, feeds.TABLE)
            frames = contestants(spark, kafka, "canal", schema)
            check_same(frames, arguments.rows)
        if "speed" in arguments.only:
            costs = measure(frames, arguments.turns)
            document["speed"] = {name: asdict(cost) for name, cost in costs.items()}
            _print_speed(console, costs, arguments.rows)
            missed = _missed(costs)
        if "steps" in arguments.only:
            runs = steps(frames[CHANGES], frames[TABLE], schema)
            document["steps"] = _print_steps(
                console, measure(runs, arguments.turns), arguments.rows
            )
        if "protocols" in arguments.only:
            document["protocols"] = _protocols(
                console, spark, kafka, arguments.protocol_rows, arguments.turns
            )
        spark.stop()
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    for line in missed:
        console.print(f"[red]below its target:[/] {line}")
    sys.exit(1 if missed else 0)


def _missed(costs: Mapping[str, Cost]) -> list[str]:
    found = []
    faster = costs[FROM_JSON].wall / costs[TABLE].wall
    if faster < LEAST_TIMES_FROM_JSON:
        found.append(f"{TABLE}: {faster:.2f} times {FROM_JSON}, wanted {LEAST_TIMES_FROM_JSON:g}")
    longer = costs[CHANGES].wall / costs[RAW].wall
    if longer > MOST_TIMES_RAW:
        found.append(
            f"{CHANGES}: {longer:.2f} times the time of the {RAW}, wanted {MOST_TIMES_RAW:g}"
        )
    return found


def _print_speed(console: Console, costs: Mapping[str, Cost], rows: int) -> None:
    columns = Table(title=f"{rows:,} row changes, Canal-JSON, 20 columns, local[2]")
    columns.add_column("", no_wrap=True)
    for head in ("s", "rows/s", "µs CPU/row", "× raw's time", "× from_json's rows/s"):
        columns.add_column(head, justify="right")
    for name, cost in costs.items():
        columns.add_row(
            name,
            f"{cost.wall:.2f}",
            f"{rows / cost.wall:,.0f}",
            f"{cost.cpu / rows * 1e6:.1f}",
            f"{cost.wall / costs[RAW].wall:.2f}",
            f"{costs[FROM_JSON].wall / cost.wall:.2f}",
        )
    console.print(columns)


def _print_steps(
    console: Console, costs: Mapping[str, Cost], rows: int
) -> dict[str, dict[str, float]]:
    columns = Table("step", title="Where the time goes: µs a row change")
    for head in ("by the clock", "CPU"):
        columns.add_column(head, justify="right")
    found = {}
    for step, (run, less) in STEPS.items():
        base = Cost(0.0, 0.0) if less is None else costs[less]
        spent = {
            "wall_us": (costs[run].wall - base.wall) / rows * 1e6,
            "cpu_us": (costs[run].cpu - base.cpu) / rows * 1e6,
        }
        found[step] = spent
        columns.add_row(step, f"{spent['wall_us']:.2f}", f"{spent['cpu_us']:.2f}")
    console.print(columns)
    return found


def _protocols(
    console: Console, spark: SparkSession, kafka: Broker, rows: int, turns: int
) -> dict[str, dict[str, float]]:
    columns = Table("protocol", title=f"Every protocol: rows/s of {rows:,} row changes")
    for head in ("messages", CHANGES, TABLE):
        columns.add_column(head, justify="right")
    found = {}
    for label, parameters in PROTOCOLS.items():
        topic = label.replace(" ", "-")
        sent = feeds.produce(kafka, f"all-{topic}", rows, KEYS, parameters=parameters)
        feed = changes(spark, feeds.uri(kafka.address, f"all-{topic}", parameters), batch=True)
        typed = table(feed, NAME)
        if typed.count() != rows:
            sys.exit(f"{label}: there are not {rows} rows of {NAME}")
        costs = measure({CHANGES: feed, TABLE: typed}, turns)
        per_second = {name: rows / cost.wall for name, cost in costs.items()}
        found[label] = {"messages": sent, **per_second}
        columns.add_row(
            label, f"{sent:,}", f"{per_second[CHANGES]:,.0f}", f"{per_second[TABLE]:,.0f}"
        )
    console.print(columns)
    return found


if __name__ == "__main__":
    main()
