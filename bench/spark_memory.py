"""`python -m bench.spark_memory`: whether a long stream of changes keeps its memory.

A stream of `changes` over a real Kafka, in triggers of a bounded size, into Spark's `noop` sink,
while the resident memory of the JVM, of the Python workers and of the driver is looked at once a
second. The JVM takes its whole heap of 1 GiB at once, so that what is resident shows the rest of its
memory; what lives in the heap is looked at after collections that are asked for.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from bench import feeds, processes
from tests.support.kafka import broker
from tidegate.spark import changes, progress, session

MIB = 1024 * 1024
TOPIC = "memory"
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-Xms1g -XX:+AlwaysPreTouch",
}
WARM_UP = 0.2
"""The part of the messages that does not count: the JVM loads and compiles, workers start."""
LIVE_HEAP = "JVM, live heap"
HEAP_LOOKS = 10
MOST_GROWTH = 0.05
COLOURS = {
    processes.JVM: "#1f6f8b",
    processes.WORKERS: "#e07a5f",
    processes.DRIVER: "#81b29a",
    LIVE_HEAP: "#99c1de",
}


@dataclass(slots=True)
class Samples:
    """Bytes resident by role, and the messages that were decoded, at seconds since the start."""

    seconds: list[float] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    resident: dict[str, list[int]] = field(
        default_factory=lambda: {role: [] for role in (*processes.ROLES, LIVE_HEAP)}
    )

    def take(self, seconds: float, messages: int, live_heap: int) -> None:
        """One sample more."""
        self.seconds.append(seconds)
        self.messages.append(messages)
        for role, usage in processes.usage().items():
            self.resident[role].append(usage.resident)
        self.resident[LIVE_HEAP].append(live_heap)

    def growth(self, role: str) -> float:
        """How much more is kept in the last third after the warm-up than in the first.

        That is the lowest value of each: above it is what is on its way in that moment.
        """
        warm = WARM_UP * self.messages[-1]
        settled = [
            value
            for value, messages in zip(self.resident[role], self.messages, strict=True)
            if messages >= warm
        ]
        third = len(settled) // 3
        if third == 0:
            sys.exit("the run was too short to tell anything; give it more --rows")
        return min(settled[-third:]) / min(settled[:third]) - 1


def run(rows: int, keys: int, per_trigger: int, console: Console) -> Samples:
    """Streams a feed of so many row changes to its end; what was seen meanwhile."""
    with broker() as kafka:
        started = time.monotonic()
        sent = feeds.produce(kafka, TOPIC, rows, keys)
        taken = time.monotonic() - started
        console.print(f"{sent:,} messages are in Kafka after {taken:.0f} s.")
        return watched(feeds.uri(kafka.address, TOPIC), sent, per_trigger)


def watched(uri: str, messages: int, per_trigger: int) -> Samples:
    """Streams the feed to its end, a sample a second."""
    samples = Samples()
    spark = session("memory", master="local[2]", settings=SETTINGS, libraries=("kafka",))
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as folder:
        feed = changes(spark, uri, max_per_trigger=per_trigger)
        writer = feed.writeStream.format("noop").option("checkpointLocation", folder)
        started = time.monotonic()
        query = writer.trigger(availableNow=True).start()
        ended = False
        live, looked_at = _live_heap(spark), 0
        while not ended:
            ended = bool(query.awaitTermination(1))
            decoded = progress(query, feed).decoded.messages
            if decoded - looked_at >= messages // HEAP_LOOKS:
                live, looked_at = _live_heap(spark), decoded
            samples.take(time.monotonic() - started, decoded, live)
        spark.stop()
    if samples.messages[-1] != messages:
        sys.exit(f"{samples.messages[-1]:,} messages were decoded of {messages:,}")
    return samples


def _live_heap(spark: SparkSession) -> int:
    """The bytes of the JVM's heap that are in use after a full collection."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return int(runtime.totalMemory() - runtime.freeMemory())


def draw(samples: Samples, path: Path) -> None:
    """The memory of each role over the messages that were decoded."""
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    for role, values in samples.resident.items():
        label = f"{role} ({samples.growth(role):+.1%} after the warm-up)"
        decoded = [messages / 1e6 for messages in samples.messages]
        axes.plot(decoded, [value / MIB for value in values], label=label, color=COLOURS[role])
    axes.axvline(samples.messages[-1] / 1e6 * WARM_UP, color="grey", linewidth=0.8, linestyle=":")
    axes.set_ylim(0)
    axes.set_xlim(0)
    axes.set_xlabel("million messages decoded; the dotted line ends the warm-up")
    axes.set_ylabel("MiB")
    axes.set_title(f"A stream of {samples.messages[-1] / 1e6:.0f} million changes")
    axes.legend(fontsize=9, loc="center right")
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    """Streams, and says whether memory stayed."""
    parser = argparse.ArgumentParser(prog="bench.spark_memory", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--per-trigger", type=int, default=100_000)
    parser.add_argument("--json", type=Path, help="write the samples here as JSON")
    parser.add_argument("--chart", type=Path, help="draw them here (.svg or .png)")
    arguments = parser.parse_args()
    console = Console()
    samples = run(arguments.rows, arguments.keys, arguments.per_trigger, console)
    sys.exit(tell(samples, console, arguments.json, arguments.chart))


def tell(samples: Samples, console: Console, samples_to: Path | None, chart_to: Path | None) -> int:
    """Prints, keeps and draws what was seen; 1 if something grew."""
    columns = Table(title=f"{samples.messages[-1]:,} messages in {samples.seconds[-1]:.0f} s")
    columns.add_column("", no_wrap=True)
    for head in ("MiB at most", "MiB at the end", "growth"):
        columns.add_column(head, justify="right")
    document: dict[str, Any] = {"seconds": samples.seconds, "messages": samples.messages}
    for role, values in samples.resident.items():
        document[role] = values
        columns.add_row(
            role,
            f"{max(values) / MIB:,.0f}",
            f"{values[-1] / MIB:,.0f}",
            f"{samples.growth(role):+.1%}",
        )
    console.print(columns)
    if samples_to:
        samples_to.write_text(json.dumps(document) + "\n")
    if chart_to:
        draw(samples, chart_to)
    grown = [role for role in samples.resident if samples.growth(role) > MOST_GROWTH]
    for role in grown:
        console.print(f"[red]grows after the warm-up:[/] {role} {samples.growth(role):+.1%}")
    return 1 if grown else 0


if __name__ == "__main__":
    main()
