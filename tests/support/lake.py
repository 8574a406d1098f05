"""Lakes for tests: a changelog filled straight from decoded batches, tables read back as texts."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.support.table_model import TableModel
from tidegate.lake.formats.base import LakePlace
from tidegate.lake.lake import Lake
from tidegate.model.types import MySQLType

Rows = list[tuple[str | None, ...]]
ZERO_DATES = (MySQLType.DATE, MySQLType.NEWDATE, MySQLType.DATETIME, MySQLType.TIMESTAMP)


def new_lake(spark: SparkSession, folder: Path, format_name: str = "iceberg") -> Lake:
    """An empty lake in its own folder and catalog."""
    return Lake.create(spark, LakePlace(str(folder)), format_name)


def fill(lake: Lake, changes: pa.Table) -> None:
    """Adds decoded events to the changelog, as ingest does."""
    topic = pa.array([""] * changes.num_rows)
    lake.changelog.add(changes.set_column(changes.column_names.index("topic"), "topic", topic))


def contents(
    lake: Lake, at: int | None = None, *, without: Collection[int] = ()
) -> dict[tuple[str, str], Rows]:
    """Every table's rows as texts, columns in order, rows sorted.

    `without` are types whose values are left out.
    """
    found = {}
    schemas = lake.snapshots.schemas(at) if without else {}
    for name, texts in lake.snapshot_texts(at).items():
        rows = [tuple(row) for row in texts.collect()]
        if without:
            kept = [column.code not in without for column in schemas[name].carried]
            rows = [
                tuple(value if keep else None for value, keep in zip(row, kept, strict=True))
                for row in rows
            ]
        found[tuple(name)] = sorted(rows, key=_key)
    return found


def expected(model: TableModel, *, without: Collection[int] = ()) -> dict[tuple[str, str], Rows]:
    """What a lake is to hold: dates that are none are NULL there, by rule."""
    found = {}
    for name, table in model.tables.items():
        columns = table.schema.carried
        rows = []
        for row in table.rows.values():
            values = []
            for column in columns:
                text = row[column.name]
                if text is not None and column.code in ZERO_DATES and _is_no_date(text):
                    text = None
                values.append(None if column.code in without else text)
            rows.append(tuple(values))
        found[name] = sorted(rows, key=_key)
    return found


def _is_no_date(text: str) -> bool:
    return text[:4] == "0000" or text[5:7] == "00" or text[8:10] == "00"


def _key(row: tuple[str | None, ...]) -> list[tuple[bool, str]]:
    return [(value is not None, value or "") for value in row]


def in_chunks(changes: pa.Table, count: int) -> list[pa.Table]:
    """A feed in parts, each message with all its events and shapes, in the order of arrival."""
    places = list(
        zip(*(changes[name].to_pylist() for name in ("partition", "offset")), strict=True)
    )
    order = dict.fromkeys(
        place
        for place, event in zip(places, changes["event"].to_pylist(), strict=True)
        if event >= 0
    )
    arrival = {place: number for number, place in enumerate(order)}
    part = [arrival[place] * count // len(arrival) for place in places]
    return [changes.filter(pa.array([each == number for each in part])) for number in range(count)]
