"""What each part of an ingest task costs, without Spark: CPU per message in one process.

`python -m bench.parts BROKER TOPIC FOLDER` reads one split of a feed and writes its files, part by
part; and reads the files as a step does. Prints µs a message, the best of several turns, as JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from bench.feeds import uri
from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.lake.apply.last_changes import LatestRows
from tidegate.lake.changelog.changelog import CONTROL, OF_ROWS, as_rows, columns
from tidegate.lake.storage.file_store import FileStore
from tidegate.lake.storage.log_files import LogFile, LogWriter, WrittenFile, read_files
from tidegate.source.base import RoundLimits
from tidegate.source.kafka import KafkaSource
from tidegate.spark.decoding import Reading
from tidegate.wire.batch.key_updates import mark_moves

TURNS = 7
T = TypeVar("T")


class Parts:
    """The best CPU time of each part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, name: str, work: Callable[[], T]) -> T:
        """Does a part; its time counts if it is the best so far."""
        gc.collect()
        started = time.process_time()
        result = work()
        spent = time.process_time() - started
        self.seconds[name] = min(spent, self.seconds.get(name, spent))
        return result


def turn(parts: Parts, source: KafkaSource, folder: str) -> tuple[int, list[WrittenFile]]:
    """One split from messages to files; how many messages there were, and the files."""
    split = source.plan({}, RoundLimits()).splits[0]
    messages = parts.time("consume, to Arrow", lambda: list(source.reader.read(split)))
    decode = Reading("canal-json").decoder()
    changes = parts.time("decode", lambda: [decode(batch) for batch in messages])
    marked = parts.time("mark moves", lambda: [mark_moves(batch) for batch in changes])
    rows = parts.time(
        "omit what did not change",
        lambda: [as_rows(pa.Table.from_batches([batch])) for batch in marked],
    )
    writer = LogWriter(
        folder,
        to_arrow_schema(columns()),
        (CONTROL,),
        ("topic", "database", "table"),
        ("database", "table"),
    )
    batches = [batch for table in rows for batch in table.to_batches()]
    reports = parts.time("write Parquet", lambda: list(writer.write(batches)))
    files = [WrittenFile.of(row) for report in reports for row in report.to_pylist()]
    of_rows = [LogFile(file.path, file.bytes) for file in files if file.partition == ("false",)]
    parts.time(
        "read for a step",
        lambda: list(read_files(FileStore(), of_rows, OF_ROWS, list(LatestRows.READ))),
    )
    return sum(batch.num_rows for batch in messages), files


def main() -> None:
    """Measures all parts."""
    broker, topic, folder = sys.argv[1:4]
    pa.set_cpu_count(1)
    source = KafkaSource(ChangefeedConfig.from_uri(uri(broker, topic)), tasks=4)
    parts = Parts()
    for number in range(TURNS):
        count, files = turn(parts, source, str(Path(folder, str(number))))
    source.close()
    print(
        json.dumps(
            {
                "messages": count,
                "us": {name: round(each / count * 1e6, 2) for name, each in parts.seconds.items()},
                "bytes a message": round(sum(file.bytes for file in files) / count, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
