"""Creates, renames and drops Iceberg tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import UnsupportedOperationException

from tidegate.lake.formats.base import (
    DROPPED_DATABASE,
    LAKE,
    ORIGIN,
    POSITION,
    RETIRED,
    SCHEMA,
    Located,
    Position,
    local_folder,
    not_ours,
    origin_of,
    table_properties,
)
from tidegate.lake.formats.iceberg.catalog import IcebergCatalog
from tidegate.lake.formats.iceberg.commits import begin, position_of
from tidegate.lake.formats.iceberg.upkeep import TARGET_BYTES
from tidegate.lake.storage.names import new_folder
from tidegate.model import TableSchema
from tidegate.model.sql import quoted
from tidegate.spark.types import spark_schema

_PROPERTIES = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # A commit is small and its rows come in no order that is worth a shuffle.
    "write.distribution-mode": "none",
    "write.delete.distribution-mode": "none",
    "write.update.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
    "write.parquet.compression-codec": "zstd",
    "write.target-file-size-bytes": str(TARGET_BYTES),
    # As many tasks as there are files of a small table are more work than what they read.
    "read.split.open-file-cost": str(256 << 10),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    "write.metadata.metrics.max-inferred-column-defaults": "100",
    "commit.retry.num-retries": "10",
    "commit.manifest.min-count-to-merge": "20",
}


class IcebergTables(IcebergCatalog):
    """Whole tables of one lake."""

    def create(
        self,
        database: str,
        table: str,
        schema: TableSchema,
        position: Position,
        home: tuple[str, str] | None = None,
    ) -> str:
        identifier = self.identifier(database, table)
        self._check_ours(identifier)
        self.retire(identifier, position)
        self._ensure_namespace(identifier)
        name = self._java_name(identifier)
        builder = self._catalog.buildTable(name, self._java_schema(schema))
        properties = table_properties(schema, position) | {
            ORIGIN: origin_of(database, table, position)
        }
        properties[LAKE] = self._place.own_database
        for key, value in (_PROPERTIES | properties).items():
            builder = builder.withProperty(key, value)
        if self._place.catalog is None:
            folder = local_folder(self._place.folder) / "tables"
            folder /= new_folder(*(home or (database, table)))
            builder = builder.withLocation(str(folder))
        transaction = builder.createTransaction()
        self._add_snapshot(transaction, position)
        self.guard.check()
        transaction.commitTransaction()
        self._reached[identifier] = position
        return identifier

    def _check_ours(self, identifier: str) -> None:
        """Raises LakeError where a table of that name is there and is not this lake's."""
        if self.exists(identifier):
            lake = self._load(identifier).properties().get(LAKE)
            if lake != self._place.own_database:
                raise not_ours(identifier, lake)

    def _java_schema(self, schema: TableSchema) -> Any:
        kind = spark_schema(schema.carried)
        java_kind = self._jvm.org.apache.spark.sql.types.DataType.fromJson(kind.json())
        return self._jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(java_kind)

    def retire(self, identifier: str, position: Position) -> None:
        if not self.exists(identifier):
            return
        name = f"t_{self.uid(identifier).replace('-', '')}"
        new = quoted(self._catalog_name, self._place.prefix + DROPPED_DATABASE, name)
        # After a crash the name may be the new one already.
        if new != identifier:
            self._ensure_namespace(new)
            self.guard.check()
            try:
                self._catalog.renameTable(self._java_name(identifier), self._java_name(new))
            except UnsupportedOperationException:
                # There are catalogs that rename no table: the name is needed more than the history.
                self.drop(identifier)
                return
        self._mark_retired(new, position)

    def _mark_retired(self, identifier: str, position: Position) -> None:
        update = self._load(identifier).updateProperties()
        for key in (RETIRED, POSITION):
            update = update.set(key, str(position))
        update.commit()

    def drop(self, identifier: str) -> None:
        if self.exists(identifier):
            self.guard.check()
            # A folder of our own making is no other table's: it can go too.
            self._catalog.dropTable(self._java_name(identifier), self._place.catalog is None)

    def rename(self, identifier: str, database: str, table: str, position: Position) -> str:
        new = self.identifier(database, table)
        # After a crash the name may be the new one already, and the position the old.
        if new != identifier and self.exists(identifier):
            self._check_ours(new)
            self._ensure_namespace(new)
            self.guard.check()
            self._catalog.renameTable(self._java_name(identifier), self._java_name(new))
        self._reached[new] = self._reached.pop(identifier, Position(0))
        loaded = self._load(new)
        before = TableSchema.from_json(loaded.properties().get(SCHEMA))
        schema = replace(before, database=database, table=table)
        if schema == before and position_of(loaded) == position:
            return new
        self._check_passed(new, position_of(loaded), position)
        transaction = begin(self._jvm, loaded)
        self._set_properties(transaction, table_properties(schema, position))
        self._add_snapshot(transaction, position)
        self._commit(transaction)
        self._reached[new] = position
        return new

    def locate(self) -> list[Located]:
        found = []
        for namespace in self._namespaces():
            if not namespace.level(0).startswith(self._place.prefix):
                continue
            for name in self._catalog.listTables(namespace):
                table = self._loaded(name)
                if table is None or table.properties().get(LAKE) != self._place.own_database:
                    continue
                origin = table.properties().get(ORIGIN)
                if origin is not None:
                    identifier = quoted(self._catalog_name, *namespace.levels(), name.name())
                    position = self.position(identifier)
                    assert position is not None
                    uid = str(table.uuid().toString())
                    is_retired = table.properties().get(RETIRED) is not None
                    found.append(Located(identifier, uid, origin, position, is_retired))
        return found

    def _loaded(self, name: Any) -> Any | None:
        """A table that was listed; None if it is gone since, or not for us to see."""
        try:
            return self._catalog.loadTable(name)
        except Py4JJavaError as error:
            kind = str(error.java_exception.getClass().getSimpleName())
            if kind not in ("NoSuchTableException", "ForbiddenException"):
                raise
            return None
