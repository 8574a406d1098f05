"""The Iceberg tables of one lake, and the logs that it keeps for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.lake.formats.base import CHANGELOG, OWN_DATABASE, LakePlace, local_folder
from tidegate.lake.formats.iceberg.columns import IcebergColumns
from tidegate.lake.formats.iceberg.embedded import recorded
from tidegate.lake.formats.iceberg.log import LOG_PROPERTIES, METRICS, ORDERED_TYPES, IcebergLog
from tidegate.lake.formats.iceberg.rows import IcebergRows
from tidegate.lake.formats.iceberg.tables import IcebergTables
from tidegate.lake.formats.iceberg.upkeep import IcebergUpkeep
from tidegate.lake.storage.file_store import s3a_settings
from tidegate.model.sql import quoted


class IcebergFormat(IcebergTables, IcebergColumns, IcebergRows, IcebergUpkeep):
    """Iceberg tables of one lake."""

    name = "iceberg"
    reserved = frozenset(
        ["_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id"]
        + ["_last_updated_sequence_number"]
    )

    def lakes(self) -> dict[str, Mapping[str, str]]:
        found: dict[str, Mapping[str, str]] = {}
        for namespace in self._namespaces():
            name = str(namespace.level(0))
            log = self._java_name(quoted(self._catalog_name, name, CHANGELOG))
            if name.endswith(OWN_DATABASE) and self._catalog.tableExists(log):
                found[name.removesuffix(OWN_DATABASE)] = dict(
                    self._catalog.loadTable(log).properties()
                )
        return found

    def discard(self) -> None:
        namespace = self._namespace(self._place.own_database)
        if self._catalog.namespaceExists(namespace):
            for name in self._catalog.listTables(namespace):
                self._catalog.dropTable(name, True)
            self._catalog.dropNamespace(namespace)

    def create_log(
        self,
        name: str,
        columns: StructType,
        partition_by: Sequence[str] = (),
        bounded: Sequence[str] = (),
        sorted_by: Sequence[str] = (),
        history: bool = True,
    ) -> IcebergLog:
        del history  # `forget_versions` is for such logs
        identifier = quoted(self._catalog_name, self._place.own_database, name)
        if not self.exists(identifier):
            self._ensure_namespace(identifier)
            schema = self._java_type(columns)
            spec = self._jvm.org.apache.iceberg.PartitionSpec.builderFor(schema)
            for column in partition_by:
                spec = spec.identity(column)
            builder = self._catalog.buildTable(self._java_name(identifier), schema)
            builder = builder.withPartitionSpec(spec.build())
            numbers = [each.name for each in columns if isinstance(each.dataType, ORDERED_TYPES)]
            metrics = {f"{METRICS}{each}": "full" for each in (*numbers, *bounded)}
            for key, value in (LOG_PROPERTIES | metrics).items():
                builder = builder.withProperty(key, value)
            transaction = builder.createTransaction()
            transaction.newAppend().commit()
            transaction.commitTransaction()
        name_of_java = self._java_name(identifier)
        return IcebergLog(
            self._jvm,
            lambda: self._catalog.loadTable(name_of_java),
            identifier,
            to_arrow_schema(columns),
            tuple(sorted_by),
            self._hadoop_settings,
            lambda: self.guard,
        )

    def _hadoop_settings(self) -> dict[str, str]:
        """Hadoop's settings for S3, for catalogs that open files through Hadoop."""
        own = f"spark.sql.catalog.{self._catalog_name}.hadoop."
        return s3a_settings(self.spark) | {
            name.removeprefix(own): value
            for name, value in self.spark.conf.getAll.items()
            if name.startswith(own)
        }


def has_lake(spark: SparkSession, place: LakePlace) -> bool:
    """Whether the catalog of a place has a changelog."""
    if place.catalog is None:
        return recorded(local_folder(place.folder)) is not None
    log = quoted(place.catalog, place.own_database, CHANGELOG)
    return IcebergFormat(spark, place).exists(log)
