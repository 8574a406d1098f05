"""Delta tables: each in a folder of its own, with column mapping, deletion vectors and wide types.

A table is its folder, so that a rename changes only what the table says of itself. Every commit
carries the position as its user metadata. A change of columns that rewrites no row, and whatever
changes no row at all, is one commit of the table's metadata through Delta's own transaction.
"""

from __future__ import annotations

import json
import shutil
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import (
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StructType,
)

from tidegate.feed.ddl import TableChange
from tidegate.lake.conversion import ColumnPlan, plan
from tidegate.lake.format import (
    OP,
    OWN_DATABASE,
    LakePlace,
    Located,
    Position,
    TableFormat,
    origin_of,
)
from tidegate.lake.iceberg import ORIGIN, POSITION, RETIRED, SCHEMA, local_folder
from tidegate.lake.lock import make_folder
from tidegate.lake.names import new_folder
from tidegate.model import TableSchema
from tidegate.model.sql import parts_of, quoted
from tidegate.spark.types import spark_schema, spark_type

_PROPERTIES = {
    "delta.columnMapping.mode": "name",
    "delta.enableDeletionVectors": "true",
    "delta.enableTypeWidening": "true",
    # The position of every commit is in its own file.
    "delta.checkpointInterval": "20",
    # A table may get its first DATETIME later, and Delta does not add the feature by itself.
    "delta.feature.timestampNtz": "supported",
}
_MANY_VERSIONS = 50
"""Versions after which files are joined: to count the files takes a job."""
_TEXTS = "_tidegate.json"
"""The file in a table's folder that has the texts beside it; Delta passes over such names."""
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_MAX_COLUMN_ID = "delta.columnMapping.maxColumnId"
_COLUMN_ID = "delta.columnMapping.id"
_PHYSICAL_NAME = "delta.columnMapping.physicalName"
_DELTA_SETTINGS = {
    # The state of a table of this kind is small: 50 tasks, as is usual, only take time.
    "spark.databricks.delta.snapshotPartitions": "2",
    # What upkeep has left can be read, also where it is older than a week.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
}


def session_settings(place: LakePlace) -> dict[str, str]:
    """The settings of Spark for Delta tables in folders."""
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        **_DELTA_SETTINGS,
    }


def has_lake(spark: SparkSession, place: LakePlace) -> bool:
    """Whether the folder of a place has a changelog."""
    own = local_folder(place.folder) / "tables" / (place.prefix + OWN_DATABASE)
    return any((own / "changelog" / "_delta_log").glob("*.json"))


class DeltaFormat(TableFormat):
    """Delta tables of one lake: those in the folders below its own."""

    name = "delta"
    reserved = frozenset(["_metadata"])

    def __init__(self, spark: SparkSession, place: LakePlace) -> None:
        self.spark = spark
        self._place = place
        self._tables = local_folder(place.folder) / "tables"
        make_folder(self._tables)
        for name, value in _DELTA_SETTINGS.items():
            spark.conf.set(name, value)
        self._jvm: Any = spark.sparkContext._jvm
        self._lock = threading.Lock()
        self._names: dict[tuple[str, str], str] | None = None

    # --- tables by folder -------------------------------------------------------------------------

    def _identifier(self, folder: Path) -> str:
        return f"delta.{quoted(str(folder))}"

    def _folder(self, identifier: str) -> Path:
        return Path(parts_of(identifier)[-1])

    def _exists(self, identifier: str) -> bool:
        log = self._folder(identifier) / "_delta_log"
        return log.is_dir() and any(log.glob("*.json"))

    def _snapshot(self, identifier: str, session: SparkSession | None = None) -> tuple[Any, Any]:
        """The log of a table and its newest snapshot."""
        logs = self._jvm.org.apache.spark.sql.delta.DeltaLog
        java_session: Any = (session or self.spark)._jsparkSession
        pair = logs.forTableWithSnapshot(java_session, str(self._folder(identifier)))
        return pair._1(), pair._2()

    def _property(self, identifier: str, name: str) -> str | None:
        found = self._snapshot(identifier)[1].metadata().configuration().get(name)
        return str(found.get()) if found.isDefined() else None

    def _known_names(self) -> dict[tuple[str, str], str]:
        """The tables of the lake by the names they have upstream."""
        with self._lock:
            if self._names is None:
                self._names = {}
                for folder in self._folders():
                    identifier = self._identifier(folder)
                    if self._property(identifier, RETIRED) is None:
                        schema = self.upstream_schema(identifier)
                        self._names[schema.database, schema.table] = identifier
            return self._names

    def _folders(self) -> list[Path]:
        logs = self._tables.glob("*/*/_delta_log")
        own = self._place.prefix + OWN_DATABASE
        return sorted(log.parent for log in logs if log.parent.parent.name != own)

    # --- create, drop, rename ---------------------------------------------------------------------

    def create(self, database: str, table: str, schema: TableSchema, position: Position) -> str:
        in_the_way = self._known_names().get((database, table))
        if in_the_way is not None:
            self.retire(in_the_way, position)
        folder = self._tables / new_folder(self._place.prefix + database, table)
        identifier = self._identifier(folder)
        told = _told(schema, position) | {ORIGIN: origin_of(database, table, position)}
        columns = spark_schema(schema.carried)
        with self._committing(self.spark, position) as session:
            writer = session.createDataFrame([], columns).writeTo(identifier).using("delta")
            for key, value in (_PROPERTIES | told).items():
                writer = writer.tableProperty(key, value)
            writer.create()
        self._known_names()[database, table] = identifier
        return identifier

    def retire(self, identifier: str, position: Position) -> None:
        if self._exists(identifier):
            told = {RETIRED: str(position), POSITION: str(position)}
            self._commit_metadata(identifier, told, position)
            self._free_names(identifier)

    def _free_names(self, identifier: str) -> None:
        names = self._known_names()
        for name in [name for name, known in names.items() if known == identifier]:
            del names[name]

    def drop(self, identifier: str) -> None:
        self._free_names(identifier)
        folder = self._folder(identifier)
        if folder.is_dir():
            # The log first: without it the rest is no table.
            shutil.rmtree(folder / "_delta_log", ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
        self._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def rename(self, identifier: str, database: str, table: str, position: Position) -> str:
        schema = self.upstream_schema(identifier)
        told = _told(replace(schema, database=database, table=table), position)
        self._commit_metadata(identifier, told, position)
        names = self._known_names()
        if names.get((schema.database, schema.table)) == identifier:
            del names[schema.database, schema.table]
        names[database, table] = identifier
        return identifier

    def _commit_metadata(
        self,
        identifier: str,
        properties: Mapping[str, str],
        position: Position,
        fields: Sequence[dict[str, Any]] | None = None,
    ) -> None:
        """One commit of properties and columns, and of nothing else."""
        with self._committing(self.spark, position) as session:
            log, snapshot = self._snapshot(identifier, session)
            old = snapshot.metadata()
            configuration = old.configuration()
            for key, value in properties.items():
                configuration = configuration.updated(key, value)
            columns = old.schemaString()
            if fields is not None:
                columns = json.dumps({"type": "struct", "fields": fields}, ensure_ascii=False)
                highest = max((field["metadata"][_COLUMN_ID] for field in fields), default=0)
                before = configuration.get(_MAX_COLUMN_ID)
                if before.isDefined():
                    highest = max(highest, int(before.get()))
                configuration = configuration.updated(_MAX_COLUMN_ID, str(highest))
            new = old.copy(
                old.id(),
                old.name(),
                old.description(),
                old.format(),
                columns,
                old.partitionColumns(),
                configuration,
                old.createdTime(),
            )
            option = self._jvm.scala.Option
            transaction = log.startTransaction(option.empty(), option.apply(snapshot))
            transaction.updateMetadata(new, True)
            operations = self._jvm.org.apache.spark.sql.delta
            manual = getattr(getattr(operations, "DeltaOperations$ManualUpdate$"), "MODULE$")
            nothing = self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(
                self._jvm.java.util.ArrayList()
            ).toSeq()
            transaction.commit(nothing, manual)

    @contextmanager
    def _committing(self, spark: SparkSession, position: Position | None) -> Iterator[SparkSession]:
        """A session whose commits carry the position: the setting is the whole session's."""
        java_session: Any = spark._jsparkSession
        clone = java_session.cloneSession()
        session = SparkSession(spark.sparkContext, clone)
        if position is not None:
            session.conf.set(_USER_METADATA, str(position))
        # Delta's transaction looks at the session that is active in the thread.
        sessions = self._jvm.org.apache.spark.sql.classic.SparkSession
        sessions.setActiveSession(clone)
        try:
            yield session
        finally:
            sessions.setActiveSession(java_session)

    # --- columns ----------------------------------------------------------------------------------

    def evolve(
        self,
        identifier: str,
        before: TableSchema,
        change: TableChange,
        position: Position,
        zone: str = "UTC",
    ) -> None:
        assert change.after is not None
        columns = plan(before, change)
        told = _told(change.after, position)
        if any(_needs_rewrite(column) for column in columns):
            self._rewrite(identifier, [column.value(zone) for column in columns], told, position)
            return
        # A wider type first: to widen it again after a crash changes nothing.
        for column in columns:
            if column.before is not None and column.is_converted:
                name, kind = quoted(column.before.name), spark_type(column.after).simpleString()
                self.spark.sql(f"ALTER TABLE {identifier} ALTER COLUMN {name} TYPE {kind}")
        text = self._snapshot(identifier)[1].metadata().schemaString()
        there = {field["name"]: field for field in json.loads(text)["fields"]}
        highest = int(self._property(identifier, _MAX_COLUMN_ID) or 0)
        fields = []
        for column in columns:
            if column.before is not None:
                fields.append(there[column.before.name] | {"name": column.after.name})
                continue
            highest += 1
            fields.append(_new_field(column, highest))
        self._commit_metadata(identifier, told, position, fields)

    def _rewrite(
        self,
        identifier: str,
        values: Sequence[Column],
        told: Mapping[str, str],
        position: Position,
    ) -> None:
        """The table anew with its new columns, in one commit; its versions stay."""
        origin = self._property(identifier, ORIGIN)
        kept = _PROPERTIES | ({} if origin is None else {ORIGIN: origin})
        with self._committing(self.spark, position) as session:
            rows = session.table(identifier).select(*values)
            writer = rows.writeTo(identifier).using("delta")
            for key, value in (kept | dict(told)).items():
                writer = writer.tableProperty(key, value)
            writer.createOrReplace()

    # --- rows -------------------------------------------------------------------------------------

    def delete(self, identifier: str, condition: str | None, position: Position) -> None:
        where = "" if condition is None else f" WHERE {condition}"
        with self._committing(self.spark, position) as session:
            session.sql(f"DELETE FROM {identifier}{where}")
        self._ensure(identifier, position)

    def merge(
        self,
        identifier: str,
        changes: DataFrame | pa.Table,
        key: Sequence[str],
        position: Position,
    ) -> None:
        if isinstance(changes, pa.Table):
            changes = self.spark.createDataFrame(changes)
        matched = " AND ".join(f"t.{quoted(k)} <=> s.{quoted(k)}" for k in key)
        columns = [quoted(name) for name in changes.columns if name != OP]
        assigned = ", ".join(f"{column} = s.{column}" for column in columns)
        self._merge(
            identifier,
            changes,
            position,
            f"ON {matched} WHEN MATCHED AND s.{quoted(OP)} = 'd' THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {assigned} ",
        )

    def replace_rows(self, identifier: str, changes: DataFrame, position: Position) -> None:
        names = [quoted(name) for name in changes.columns if name != OP]
        same = " AND ".join(f"t.{name} <=> s.{name}" for name in names)
        self._merge(
            identifier,
            changes,
            position,
            f"ON s.{quoted(OP)} = 'd' AND {same} WHEN MATCHED THEN DELETE ",
        )

    def _merge(self, identifier: str, changes: DataFrame, position: Position, clauses: str) -> None:
        columns = [quoted(name) for name in changes.columns if name != OP]
        values = ", ".join(f"s.{column}" for column in columns)
        view = f"tidegate_changes_{uuid.uuid4().hex}"
        own = not changes.is_cached
        if own:
            changes = changes.persist()
        changes.createOrReplaceTempView(view)
        try:
            with self._committing(changes.sparkSession, position) as session:
                session.sql(
                    f"MERGE INTO {identifier} AS t USING {view} AS s {clauses}"
                    f"WHEN NOT MATCHED AND s.{quoted(OP)} <> 'd' "
                    f"THEN INSERT ({', '.join(columns)}) VALUES ({values})"
                )
        finally:
            changes.sparkSession.catalog.dropTempView(view)
            if own:
                changes.unpersist()
        self._ensure(identifier, position)

    def append(self, identifier: str, rows: DataFrame, position: Position) -> None:
        writer = rows.write.format("delta").mode("append").option("userMetadata", str(position))
        writer.save(str(self._folder(identifier)))
        self._ensure(identifier, position)

    def stamp(self, identifier: str, position: Position) -> None:
        self._commit_metadata(identifier, {POSITION: str(position)}, position)

    def _ensure(self, identifier: str, position: Position) -> None:
        """What changed no row may have made no commit."""
        if self.position(identifier) != position:
            self.stamp(identifier, position)

    # --- looking ----------------------------------------------------------------------------------

    def position(self, identifier: str) -> Position | None:
        if not self._exists(identifier):
            return None
        _, snapshot = self._snapshot(identifier)
        found = snapshot.metadata().configuration().get(POSITION)
        told = [str(found.get())] if found.isDefined() else []
        told += self._last_told(identifier, int(snapshot.version()))
        return max((Position.parse(text) for text in told), default=None)

    def _last_told(self, identifier: str, version: int) -> list[str]:
        """The position of the newest commit that has one; others' commits have none."""
        log = self._folder(identifier) / "_delta_log"
        for number in range(version, -1, -1):
            commit = log / f"{number:020d}.json"
            if not commit.is_file():
                break
            for line in commit.read_text(encoding="utf-8").splitlines():
                if line.startswith('{"commitInfo"'):
                    text = json.loads(line)["commitInfo"].get("userMetadata")
                    if text:
                        return [str(text)]
        return []

    def uid(self, identifier: str) -> str:
        return self._folder(identifier).name

    def upstream_schema(self, identifier: str) -> TableSchema:
        return TableSchema.from_json(self._property(identifier, SCHEMA) or "{}")

    def version(self, identifier: str) -> int:
        return int(self._snapshot(identifier)[1].version())

    def read(self, identifier: str, version: int | None = None) -> DataFrame:
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(str(self._folder(identifier)))

    # --- what a lake keeps for itself -------------------------------------------------------------

    def locate(self) -> list[Located]:
        found = []
        for folder in self._folders():
            identifier = self._identifier(folder)
            position, origin = self.position(identifier), self._property(identifier, ORIGIN)
            if position is not None and origin is not None:
                is_retired = self._property(identifier, RETIRED) is not None
                uid = self.uid(identifier)
                found.append(Located(identifier, uid, origin, position, is_retired))
        return found

    def create_log(
        self,
        name: str,
        columns: StructType,
        partition_by: Sequence[str] = (),
        bounded: Sequence[str] = (),
    ) -> str:
        folder = self._tables / (self._place.prefix + OWN_DATABASE) / name
        identifier = self._identifier(folder)
        if not self._exists(identifier):
            writer = self.spark.createDataFrame([], columns).writeTo(identifier).using("delta")
            if partition_by:
                first, *others = (F.col(quoted(column)) for column in partition_by)
                writer = writer.partitionedBy(first, *others)
            writer.create()
        return identifier

    def append_to_log(self, identifier: str, rows: pa.Table) -> None:
        frame = self.spark.createDataFrame(rows)
        frame.write.format("delta").mode("append").save(str(self._folder(identifier)))

    def stream_to_log(self, identifier: str, changes: DataStreamWriter) -> StreamingQuery:
        return changes.format("delta").start(str(self._folder(identifier)))

    def properties(self, identifier: str) -> Mapping[str, str]:
        path = self._folder(identifier) / _TEXTS
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def set_properties(self, identifier: str, properties: Mapping[str, str]) -> None:
        # Not properties of Delta's: a change of these fails whoever writes rows meanwhile.
        with self._lock:
            texts = json.dumps({**self.properties(identifier), **properties}, ensure_ascii=False)
            path = self._folder(identifier) / _TEXTS
            draft = path.with_name(f"{_TEXTS}.{uuid.uuid4().hex}")
            draft.write_text(texts, encoding="utf-8")
            draft.replace(path)

    # --- upkeep -----------------------------------------------------------------------------------

    def is_scattered(self, identifier: str) -> bool:
        return self.version(identifier) % _MANY_VERSIONS == 0

    def join_files(self, identifier: str) -> None:
        with self._committing(self.spark, self.position(identifier)) as session:
            session.sql(f"OPTIMIZE {identifier}")

    def forget_versions(self, identifier: str, *, keep_seconds: float) -> None:
        """Nothing: Delta's own checkpoints bound what a commit reads."""

    def maintain(self, identifier: str, *, keep_seconds: float) -> Mapping[str, int]:
        with self._committing(self.spark, self.position(identifier)) as session:
            session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
            # VACUUM lists folders in as many tasks as this says: 10,000 as is usual.
            session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "16")
            joined = session.sql(f"OPTIMIZE {identifier}").head()
            files = self._files(identifier)
            session.sql(f"VACUUM {identifier} RETAIN {keep_seconds / 3600:.6f} HOURS")
        assert joined is not None
        return {
            "data files joined": joined["metrics"]["numFilesRemoved"],
            "data files written": joined["metrics"]["numFilesAdded"],
            "data files removed": files - self._files(identifier),
        }

    def _files(self, identifier: str) -> int:
        folder = self._folder(identifier)
        return sum(1 for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts)


def _told(schema: TableSchema, position: Position) -> dict[str, str]:
    return {SCHEMA: schema.to_json(), POSITION: str(position)}


def _new_field(column: ColumnPlan, number: int) -> dict[str, Any]:
    return {
        "name": column.after.name,
        "type": json.loads(spark_type(column.after).json()),
        "nullable": True,
        "metadata": {_COLUMN_ID: number, _PHYSICAL_NAME: f"col-{uuid.uuid4()}"},
    }


def _needs_rewrite(column: ColumnPlan) -> bool:
    """Delta has no value for a column that a file lacks but NULL."""
    if column.before is None:
        return column.fill is not None
    return column.is_rewritten(_is_widening)


def _is_widening(old: DataType, new: DataType) -> bool:
    """Whether Delta reads values of the old type as the new one."""
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        more = new.scale - old.scale
        return more >= 0 and new.precision - old.precision >= more and old != new
    if isinstance(old, IntegerType):
        return isinstance(new, LongType)
    return isinstance(old, FloatType) and isinstance(new, DoubleType)
