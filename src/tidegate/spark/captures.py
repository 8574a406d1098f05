"""Captures as Spark reads them: Parquet files that have every column of a message.

Parquet captures that have all of them are read where they are. Others (JSON lines, Parquet without
offsets) are first written so, once, into a cache folder, in the order of their files: offsets that
a capture lacks are counted over all of it, and a restarted query must find the same ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidegate.model import CaptureError
from tidegate.spark.jars import cache_folder
from tidegate.wire import CAPTURE_SCHEMA, capture_files, read_captures, write_capture

MESSAGE_TYPE: StructType = from_arrow_schema(CAPTURE_SCHEMA)
"""The columns of messages in Spark's types."""

Message = tuple[bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class Located:
    """Where the Parquet files of a capture are: a folder, or what Spark takes for one."""

    path: str

    def head(self, spark: SparkSession, count: int) -> list[Message]:
        """Its first messages."""
        reader = spark.read.schema(MESSAGE_TYPE).option("pathGlobFilter", "*.parquet")
        rows = reader.parquet(self.path).select("key", "value").limit(count).collect()
        return [(_bytes(row["key"]), _bytes(row["value"])) for row in rows]


def _bytes(part: bytearray | None) -> bytes | None:
    return None if part is None else bytes(part)


def locate(path: str, rows_per_file: int | None = None) -> Located:
    """The capture in Spark's form; `rows_per_file` bounds what a trigger reads."""
    if "://" in path:
        return Located(path)  # storage that Spark reads; it must be Parquet
    files = capture_files(path)
    if rows_per_file is None and all(_is_complete(file) for file in files):
        return Located(_as_pattern(path))
    return Located(str(_normalised(files, rows_per_file)))


def _as_pattern(path: str) -> str:
    """Spark takes paths for patterns: what would be one is escaped.

    A single file is given as a pattern that only it fits, since a stream takes a plain path for a
    folder.
    """
    text = os.path.abspath(path)
    text = "".join(f"\\{letter}" if letter in "*?[]{}\\" else letter for letter in text)
    return text if os.path.isdir(path) else f"{text[:-1]}[{text[-1]}]"


def _is_complete(file: Path) -> bool:
    if file.suffix != ".parquet":
        return False
    try:
        return set(CAPTURE_SCHEMA.names) <= set(pq.read_schema(file).names)
    except pa.ArrowException as error:
        reason = f"it cannot be read as Parquet ({error})"
        raise CaptureError(str(file), 0, reason) from error


def _normalised(files: list[Path], rows_per_file: int | None) -> Path:
    """The folder of Parquet files made from these; made now unless it is there."""
    states = [(str(file.absolute()), *_state(file)) for file in files]
    told = json.dumps([states, rows_per_file]).encode()
    target = cache_folder("captures") / hashlib.sha256(told).hexdigest()[:32]
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=".writing-"))
    try:
        number = 0
        for number, batch in enumerate(_pieces(files, rows_per_file)):
            file = scratch / f"part-{number:08}.parquet"
            write_capture(file, [batch])
            os.utime(file, ns=((number + 1) * 1_000_000,) * 2)  # streams read files by their time
        if number == 0 and not any(scratch.iterdir()):
            write_capture(scratch / "part-00000000.parquet", [])
        scratch.rename(target)
    except OSError:
        if not target.is_dir():  # else another process was faster with the same content
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _state(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_mtime_ns, stat.st_size


def _pieces(files: list[Path], rows_per_file: int | None) -> Iterator[pa.RecordBatch]:
    for batch in read_captures(files):
        step = rows_per_file or max(batch.num_rows, 1)
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)
