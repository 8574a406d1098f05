"""Creates, renames and drops Delta tables."""

from __future__ import annotations

from dataclasses import replace

from tidegate.lake.formats.base import (
    LAKE,
    ORIGIN,
    POSITION,
    RETIRED,
    Located,
    Position,
    origin_of,
    table_properties,
)
from tidegate.lake.formats.delta.commits import DeltaCommits
from tidegate.lake.storage.names import new_folder
from tidegate.model import TableSchema
from tidegate.spark.types import spark_schema

TABLE_PROPERTIES = {
    "delta.columnMapping.mode": "name",
    "delta.enableDeletionVectors": "true",
    "delta.enableTypeWidening": "true",
    # The position of every commit is in its own file.
    "delta.checkpointInterval": "20",
    # A table may get its first DATETIME later, and Delta does not add the feature by itself.
    "delta.feature.timestampNtz": "supported",
}


class DeltaTables(DeltaCommits):
    """Whole tables of one lake."""

    def _known_names(self) -> dict[tuple[str, str], str]:
        """The tables of the lake by the names they have upstream."""
        with self._lock:
            if self._names is None:
                self._names = {}
                for identifier in self._ours():
                    if self._property(identifier, RETIRED) is None:
                        schema = self.upstream_schema(identifier)
                        self._names[schema.database, schema.table] = identifier
            return self._names

    def _ours(self) -> list[str]:
        """The mirrored tables of this lake."""
        identifiers = map(self._identifier, self._folders.mirrored(self._place.prefix))
        own = self._place.own_database
        return [each for each in identifiers if self._property(each, LAKE) == own]

    def create(
        self,
        database: str,
        table: str,
        schema: TableSchema,
        position: Position,
        home: tuple[str, str] | None = None,
    ) -> str:
        in_the_way = self._known_names().get((database, table))
        if in_the_way is not None:
            self.retire(in_the_way, position)
        in_database, name = home or (database, table)
        folder = new_folder(self._place.prefix + in_database, name)
        folder = f"{self._folders.tables}/{folder}"
        identifier = self._identifier(folder)
        properties = table_properties(schema, position) | {
            ORIGIN: origin_of(database, table, position)
        }
        properties[LAKE] = self._place.own_database
        columns = spark_schema(schema.carried)
        with self._committing(self.spark, position) as session:
            self.guard.check()
            writer = session.createDataFrame([], columns).writeTo(identifier).using("delta")
            for key, value in (TABLE_PROPERTIES | properties).items():
                writer = writer.tableProperty(key, value)
            writer.create()
        self._reached[identifier] = position
        self._known_names()[database, table] = identifier
        return identifier

    def retire(self, identifier: str, position: Position) -> None:
        if self._exists(identifier) and self._property(identifier, RETIRED) is None:
            properties = {RETIRED: str(position), POSITION: str(position)}
            self._commit_metadata(identifier, properties, position)
            self._free_names(identifier)

    def _free_names(self, identifier: str) -> None:
        names = self._known_names()
        for name in [name for name, known in names.items() if known == identifier]:
            del names[name]

    def drop(self, identifier: str) -> None:
        self.guard.check()
        self._free_names(identifier)
        self._folders.remove(self._folder(identifier))
        self._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def rename(self, identifier: str, database: str, table: str, position: Position) -> str:
        schema = self.upstream_schema(identifier)
        new = replace(schema, database=database, table=table)
        if new != schema or self.position(identifier) != position:
            self._commit_metadata(identifier, table_properties(new, position), position)
        names = self._known_names()
        if names.get((schema.database, schema.table)) == identifier:
            del names[schema.database, schema.table]
        names[database, table] = identifier
        return identifier

    def locate(self) -> list[Located]:
        found = []
        for identifier in self._ours():
            position, origin = self.position(identifier), self._property(identifier, ORIGIN)
            if position is not None and origin is not None:
                is_retired = self._property(identifier, RETIRED) is not None
                uid = self.uid(identifier)
                found.append(Located(identifier, uid, origin, position, is_retired))
        return found
