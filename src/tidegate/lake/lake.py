"""A lake: the changelog of a feed, the mirrored tables, and the record of their snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from tidegate.feed.tables import Name
from tidegate.lake.changelog import Changelog
from tidegate.lake.format import LakePlace, open_format
from tidegate.lake.snapshots import Snapshot, Snapshots
from tidegate.model import LakeError
from tidegate.model.tso import tso_from_datetime


class Lake:
    """The tables of one feed in one place."""

    def __init__(self, spark: SparkSession, place: LakePlace, format_name: str = "iceberg") -> None:
        self.spark = spark
        self.place = place
        self.format_name = format_name
        self.tables = open_format(format_name, spark, place)
        self.changelog = Changelog.open(self.tables)
        self.snapshots = Snapshots(spark, self.tables)

    def snapshot(self, at: int | datetime | None = None) -> Mapping[Name, DataFrame]:
        """Every table as of one upstream instant: the last recorded that is not after `at`."""
        return {found.name: self._read(found) for found in self.snapshots.at(_ts(at))}

    def read(self, database: str, table: str, at: int | datetime | None = None) -> DataFrame:
        """One table as of an upstream instant, or as it is now."""
        wanted = Name(database, table)
        for found in self.snapshots.at(_ts(at)):
            if found.name.folded == wanted.folded:
                return self._read(found)
        when = "" if at is None else f" at {at}"
        raise LakeError(
            f"The lake has no table {wanted}{when}",
            "Look at what it has with `tidegate status`",
        )

    def _read(self, found: Snapshot) -> DataFrame:
        return self.tables.read(found.identifier, found.version)


def _ts(at: int | datetime | None) -> int | None:
    return tso_from_datetime(at) if isinstance(at, datetime) else at
