"""A workload's tables of one instant in a real database, and feeds of it that start at any instant."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
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
