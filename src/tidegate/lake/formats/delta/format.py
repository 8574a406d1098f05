"""The Delta tables of one lake, and the logs that it keeps for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.lake.formats.base import CHANGELOG, OWN_DATABASE, LakePlace
from tidegate.lake.formats.delta.columns import DeltaColumns
from tidegate.lake.formats.delta.commits import DELTA_SETTINGS
from tidegate.lake.formats.delta.folders import Folders
from tidegate.lake.formats.delta.log import DeltaLog
from tidegate.lake.formats.delta.rows import DeltaRows
from tidegate.lake.formats.delta.tables import DeltaTables
from tidegate.lake.formats.delta.upkeep import DeltaUpkeep

_LOG_SETTINGS = {"delta.enableDeletionVectors": "false"}
_WITHOUT_HISTORY = {
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.enableExpiredLogCleanup": "true",
}


def session_settings(place: LakePlace) -> dict[str, str]:
    """The settings of Spark for Delta tables in folders."""
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        **DELTA_SETTINGS,
    }


def has_lake(spark: SparkSession, place: LakePlace) -> bool:
    """Whether the folder of a place has a changelog."""
    folders = Folders(spark, place)
    return folders.is_table(f"{folders.own}/{CHANGELOG}")


class DeltaFormat(DeltaTables, DeltaColumns, DeltaRows, DeltaUpkeep):
    """Delta tables of one lake: those in the folders below its own."""

    name = "delta"
    reserved = frozenset(["_metadata"])

    def lakes(self) -> dict[str, Mapping[str, str]]:
        found = {}
        for name in self._folders.listed(self._folders.tables):
            folder = f"{self._folders.tables}/{name}/{CHANGELOG}"
            if name.endswith(OWN_DATABASE) and self._folders.is_table(folder):
                log = self._log(folder, pa.schema([]))
                found[name.removesuffix(OWN_DATABASE)] = log.properties()
        return found

    def discard(self) -> None:
        for name in self._folders.listed(self._folders.own):
            self._folders.remove(f"{self._folders.own}/{name}")

    def _log(
        self,
        folder: str,
        schema: pa.Schema,
        bounded: Sequence[str] = (),
        sorted_by: Sequence[str] = (),
    ) -> DeltaLog:
        identifier, store = self._identifier(folder), self._folders.store
        return DeltaLog(identifier, folder, schema, bounded, sorted_by, store, lambda: self.guard)

    def create_log(
        self,
        name: str,
        columns: StructType,
        partition_by: Sequence[str] = (),
        bounded: Sequence[str] = (),
        sorted_by: Sequence[str] = (),
        history: bool = True,
    ) -> DeltaLog:
        folder = f"{self._folders.own}/{name}"
        schema = to_arrow_schema(columns)
        if not self._folders.is_table(folder):
            settings = _LOG_SETTINGS | ({} if history else _WITHOUT_HISTORY)
            DeltaLog.create(folder, schema, partition_by, self._folders.store(), settings)
        return self._log(folder, schema, bounded, sorted_by)
