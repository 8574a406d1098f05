"""A workload's tables of one instant in a real database, and feeds of it that start at any instant."""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tests.support.mariadb import Server
from tidegate.changefeed.config.changefeed import ChangefeedConfig
from tidegate.changefeed.send.changefeed import Changefeed
from tidegate.model import Column, MySQLType, ValueForm
from tidegate.model.sql import quoted
from tidegate.wire import write_capture
from tidegate.workload import Workload

URI = "kafka://127.0.0.1:9092/feed?protocol={protocol}&partition-num=3"
UNKNOWN = "everything"
"""A table of `orders` with types that MariaDB does not have."""
_NUMBERS = (MySQLType.ENUM, MySQLType.SET, MySQLType.BIT)


def put(server: Server, source: Workload, ts: int) -> None:
    """Gives the database the tables of the workload at an instant, by its own statements."""
    server.run("DROP DATABASE IF EXISTS bank", "DROP DATABASE IF EXISTS shop")
    connection = server.connect(init_command="SET sql_mode = '', foreign_key_checks = 0")
    try:
        with connection.cursor() as cursor:
            for database, query in _statements(source, ts):
                if f"`{UNKNOWN}`" in query:
                    continue
                if not query.startswith("CREATE DATABASE"):
                    cursor.execute(f"USE {quoted(database)}")
                cursor.execute(query)
            cursor.execute("SET time_zone = '+00:00'")
            for table in source.at(ts).tables.values():
                if table.schema.table == UNKNOWN:
                    continue
                columns = table.schema.carried
                names = ", ".join(quoted(column.name) for column in columns)
                marks = ", ".join(["%s"] * len(columns))
                into = quoted(table.schema.database, table.schema.table)
                places = [table.schema.column_names.index(column.name) for column in columns]
                rows = [
                    [_value(column, row[at]) for column, at in zip(columns, places, strict=True)]
                    for row in table.rows.values()
                ]
                cursor.executemany(f"INSERT INTO {into} ({names}) VALUES ({marks})", rows)
    finally:
        connection.close()


def _statements(source: Workload, ts: int) -> Iterator[tuple[str, str]]:
    for batch in source.batches():
        rows = batch.filter(pc.equal(batch["kind"], "ddl"))
        for row in rows.to_pylist():
            if row["commit_ts"] <= ts:
                yield row["database"], row["ddl"]["query"]


def _value(column: Column, text: str | None) -> Any:
    if text is None:
        return None
    if column.value_form == ValueForm.BINARY:
        return b64decode(text)
    return int(text) if column.code in _NUMBERS else text


def capture(
    path: Path, source: Workload, start_ts: int = 0, protocol: str = "open-protocol"
) -> int:
    """Writes what a changefeed sends that starts at an instant; its last watermark."""
    feed = Changefeed(ChangefeedConfig.from_uri(URI.format(protocol=protocol)), clock=None)
    batches = [feed.send(_since(batch, start_ts)) for batch in source.batches()]
    write_capture(path, [*batches, feed.close()])
    return feed.watermark


def _since(batch: pa.RecordBatch, start_ts: int) -> pa.RecordBatch:
    """The changes after an instant, and what is not a change or a watermark."""
    later = pc.fill_null(pc.greater(batch["commit_ts"], start_ts), True)
    return batch.filter(later)


class GrowingCapture:
    """A folder of captures that gets more files: a feed of a workload, up to one instant at a time."""

    def __init__(self, folder: Path, source: Workload, start_ts: int = 0) -> None:
        folder.mkdir()
        self.folder = folder
        self._feed = Changefeed(
            ChangefeedConfig.from_uri(URI.format(protocol="open-protocol")), clock=None
        )
        self._batches = list(_parts(source, start_ts))
        self._files = 0
        self._offsets: Counter[tuple[str, int]] = Counter()

    def write(self, until: int | None = None) -> int:
        """Sends what was committed up to an instant, or all of it; the last watermark."""
        messages = []
        while self._batches:
            last = pc.max(self._batches[0]["commit_ts"]).as_py()
            if until is not None and last is not None and last > until:
                break
            messages.append(self._feed.send(self._batches.pop(0)))
        if until is None:
            messages.append(self._feed.close())
        self._files += 1
        numbered = map(self._numbered, messages)
        write_capture(self.folder / f"{self._files}.parquet", list(numbered))
        return self._feed.watermark

    def _numbered(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """With offsets that go on from file to file."""
        offsets = []
        for topic, partition in zip(
            messages["topic"].to_pylist(), messages["partition"].to_pylist(), strict=True
        ):
            offsets.append(self._offsets[topic, partition])
            self._offsets[topic, partition] += 1
        return messages.append_column("offset", pa.array(offsets, pa.int64()))


def _parts(source: Workload, start_ts: int) -> Iterator[pa.RecordBatch]:
    """The changes after an instant, cut after each watermark."""
    for whole in source.batches():
        batch = _since(whole, start_ts)
        marks = pc.indices_nonzero(pc.equal(batch["kind"], "watermark")).to_pylist()
        ends = dict.fromkeys([0, *(mark + 1 for mark in marks), batch.num_rows])
        yield from (batch.slice(start, end - start) for start, end in pairwise(ends))
