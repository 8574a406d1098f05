"""Delta tables: each in a folder of its own, with column mapping, deletion vectors and wide types.

A table is its folder, so that a rename changes only what the table says of itself. Every commit
carries the position as its user metadata. A change of columns that rewrites no row, and whatever
changes no row at all, is one commit of the table's metadata through Delta's own transaction.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyarrow.fs import FileSelector, FileSystem, FileType
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StructType,
)

from tidegate.lake.formats.base import (
    LAKE,
    OP,
    ORIGIN,
    OWN_DATABASE,
    POSITION,
    RETIRED,
    SCHEMA,
    CommitConflict,
    Guard,
    LakePlace,
    LoadedLog,
    Located,
    LogChange,
    LogRewritten,
    LogTable,
    Position,
    TableFormat,
    TablePassed,
    java_classes,
    local_folder,
    of_partition,
    origin_of,
)
from tidegate.lake.formats.column_changes import ColumnPlan, plan
from tidegate.lake.storage.file_store import (
    FileStore,
    hadoop_properties,
    is_remote,
    make_folder,
    s3a_settings,
)
from tidegate.lake.storage.log_files import LogFile, LogWriter, WrittenFile, within
from tidegate.lake.storage.names import new_folder
from tidegate.lake.storage.predicates import Condition
from tidegate.model import TableSchema
from tidegate.model.sql import parts_of, quoted
from tidegate.spark.types import spark_schema, spark_type
from tidegate.sql.ddl import TableChange

_PROPERTIES = {
    "delta.columnMapping.mode": "name",
    "delta.enableDeletionVectors": "true",
    "delta.enableTypeWidening": "true",
    # The position of every commit is in its own file.
    "delta.checkpointInterval": "20",
    # A table may get its first DATETIME later, and Delta does not add the feature by itself.
    "delta.feature.timestampNtz": "supported",
}
_LOG_SETTINGS = {"delta.enableDeletionVectors": "false"}
_WITHOUT_HISTORY = {
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.enableExpiredLogCleanup": "true",
}
_CHANGELOG = "changelog"
_MANY_VERSIONS = 50
"""Versions after which files are joined: to count the files takes a job."""
_PROPERTIES_OF_LOG = "_tidegate"
"""The folder in a log's own that has its properties; Delta passes over such names."""
_APPLICATION = "tidegate"
"""Whose transactions the commits to a table carry: of two that begin alike, Delta lets one pass."""
_CONFLICTS = "io.delta.exceptions.Concurrent"
"""How the names of the exceptions begin that Delta throws for commits that are in each other's way;
`_METADATA_CHANGED` is another one."""
_METADATA_CHANGED = "io.delta.exceptions.MetadataChangedException"
_PROPERTIES_AGE = timedelta(minutes=10)
"""How old a file of a log's properties must be to go."""
_MOST_VERSIONS = 100
"""Of a log, between two looks at what was added; above that all its files are looked at again."""
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_WRITE = "spark.databricks.delta.write"
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
    folders = _Folders(spark, place)
    return folders.is_table(f"{folders.own}/{_CHANGELOG}")


class _Folders:
    """The folders of a lake's tables, on a disk or in an object store."""

    def __init__(self, spark: SparkSession, place: LakePlace) -> None:
        self._spark = spark
        folder = place.folder.rstrip("/")
        self.root = folder if is_remote(folder) else str(local_folder(folder))
        self.tables = f"{self.root}/tables"
        self.own = f"{self.tables}/{place.own_database}"

    def store(self) -> FileStore:
        """What opens their files: with Hadoop's settings, by which Spark opens them too."""
        if not is_remote(self.root):
            return FileStore()
        return FileStore.of(hadoop_properties(s3a_settings(self._spark)))

    def files(self, folder: str) -> tuple[FileSystem, str]:
        """The file system of a folder, and its path there."""
        store = self.store()
        return store.filesystem(folder), store.path(folder)

    def listed(self, folder: str) -> list[str]:
        """The names in a folder; none where it does not exist."""
        files, path = self.files(folder)
        found = files.get_file_info(FileSelector(path, allow_not_found=True))
        return sorted(each.base_name for each in found)

    def is_table(self, folder: str) -> bool:
        """Whether a folder is that of a table."""
        return any(name.endswith(".json") for name in self.listed(f"{folder}/_delta_log"))

    def mirrored(self, prefix: str) -> list[str]:
        """The folders of tables whose database has a prefix; another lake may have such ones."""
        own = self.own.rpartition("/")[2]
        return [
            f"{self.tables}/{database}/{table}"
            for database in self.listed(self.tables)
            if database.startswith(prefix) and database != own
            for table in self.listed(f"{self.tables}/{database}")
            if self.is_table(f"{self.tables}/{database}/{table}")
        ]

    def remove(self, folder: str) -> None:
        """Removes the folder of a table; the log first: without it the rest is no table."""
        files, path = self.files(folder)
        for each in (f"{path}/_delta_log", path):
            if files.get_file_info(each).type is FileType.Directory:
                files.delete_dir(each)


class DeltaFormat(TableFormat):
    """Delta tables of one lake: those in the folders below its own."""

    name = "delta"
    reserved = frozenset(["_metadata"])

    def __init__(self, spark: SparkSession, place: LakePlace) -> None:
        self.spark = spark
        self.guard = Guard()
        self._reached = {}
        self._place = place
        self._folders = _Folders(spark, place)
        if not is_remote(self._folders.root):
            make_folder(local_folder(self._folders.tables))
        for name, value in _DELTA_SETTINGS.items():
            spark.conf.set(name, value)
        self._jvm: Any = spark.sparkContext._jvm
        self._lock = threading.Lock()
        self._names: dict[tuple[str, str], str] | None = None

    # --- tables by folder -------------------------------------------------------------------------

    def _identifier(self, folder: str) -> str:
        return f"delta.{quoted(folder)}"

    def _folder(self, identifier: str) -> str:
        return parts_of(identifier)[-1]

    def _exists(self, identifier: str) -> bool:
        return self._folders.is_table(self._folder(identifier))

    def _snapshot(self, identifier: str, session: SparkSession | None = None) -> tuple[Any, Any]:
        """The log of a table and its newest snapshot."""
        logs = self._jvm.org.apache.spark.sql.delta.DeltaLog
        java_session: Any = (session or self.spark)._jsparkSession
        pair = logs.forTableWithSnapshot(java_session, self._folder(identifier))
        return pair._1(), pair._2()

    def _property(self, identifier: str, name: str) -> str | None:
        found = self._snapshot(identifier)[1].metadata().configuration().get(name)
        return str(found.get()) if found.isDefined() else None

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

    # --- create, drop, rename ---------------------------------------------------------------------

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
        told = _told(schema, position) | {ORIGIN: origin_of(database, table, position)}
        told[LAKE] = self._place.own_database
        columns = spark_schema(schema.carried)
        with self._committing(self.spark, position) as session:
            self.guard.check()
            writer = session.createDataFrame([], columns).writeTo(identifier).using("delta")
            for key, value in (_PROPERTIES | told).items():
                writer = writer.tableProperty(key, value)
            writer.create()
        self._reached[identifier] = position
        self._known_names()[database, table] = identifier
        return identifier

    def retire(self, identifier: str, position: Position) -> None:
        if self._exists(identifier) and self._property(identifier, RETIRED) is None:
            told = {RETIRED: str(position), POSITION: str(position)}
            self._commit_metadata(identifier, told, position)
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
            self._commit_metadata(identifier, _told(new, position), position)
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
            log, snapshot = self._before(identifier, position, session)
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
            # That it is read makes a commit of another mirror's a conflict.
            transaction.txnVersion(_APPLICATION)
            actions = self._jvm.java.util.ArrayList()
            number = _number(snapshot) + 1
            actions.add(operations.actions.SetTransaction(_APPLICATION, number, option.empty()))
            converters = self._jvm.scala.jdk.javaapi.CollectionConverters
            self.guard.check()
            transaction.commit(converters.asScala(actions).toSeq(), manual)
        self._reached[identifier] = position

    def _before(
        self, identifier: str, position: Position, session: SparkSession | None = None
    ) -> tuple[Any, Any]:
        """A table that a step is to take to a position; TablePassed where it is there already."""
        log, snapshot = self._snapshot(identifier, session)
        self._check_passed(identifier, self._position(identifier, snapshot), position)
        return log, snapshot

    @contextmanager
    def _changing(
        self, identifier: str, position: Position, spark: SparkSession | None = None
    ) -> Iterator[SparkSession]:
        """A session with which rows of a table are changed, from exactly the state it is in.

        The commit has the number after that of the last one. Where another mirror's commit has
        that number, Delta passes over ours or fails it.
        """
        with self._committing(spark or self.spark, position) as session:
            _, snapshot = self._before(identifier, position, session)
            session.conf.set(f"{_WRITE}.txnAppId", _APPLICATION)
            session.conf.set(f"{_WRITE}.txnVersion", str(_number(snapshot) + 1))
            self.guard.check()
            yield session

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
                self._before(identifier, position)
                self.guard.check()
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
        kept[LAKE] = self._place.own_database
        with self._changing(identifier, position) as session:
            rows = session.table(identifier).select(*values)
            writer = rows.writeTo(identifier).using("delta")
            for key, value in (kept | dict(told)).items():
                writer = writer.tableProperty(key, value)
            writer.createOrReplace()
        self._check_reached(identifier, position)

    # --- rows -------------------------------------------------------------------------------------

    def delete(self, identifier: str, condition: str | None, position: Position) -> None:
        where = "" if condition is None else f" WHERE {condition}"
        with self._changing(identifier, position) as session:
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
            with self._changing(identifier, position, changes.sparkSession) as session:
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
        _, snapshot = self._before(identifier, position)
        self.guard.check()
        writer = rows.write.format("delta").mode("append").option("userMetadata", str(position))
        writer = writer.option("txnAppId", _APPLICATION).option("txnVersion", _number(snapshot) + 1)
        writer.save(self._folder(identifier))
        self._ensure(identifier, position)

    def stamp(self, identifier: str, position: Position) -> None:
        self._commit_metadata(identifier, {POSITION: str(position)}, position)

    def _ensure(self, identifier: str, position: Position) -> None:
        """What changed no row may have made no commit."""
        reached = self.position(identifier)
        if reached is None or reached < position:
            self.stamp(identifier, position)
        elif reached > position:
            raise TablePassed(identifier, reached)
        self._reached[identifier] = position

    def _check_reached(self, identifier: str, position: Position) -> None:
        """Raises where Delta has passed over a commit."""
        reached = self.position(identifier)
        if reached != position:
            raise CommitConflict(f"{identifier} is at {reached}, not at {position}")
        self._reached[identifier] = position

    # --- looking ----------------------------------------------------------------------------------

    def position(self, identifier: str) -> Position | None:
        if not self._exists(identifier):
            return None
        return self._position(identifier, self._snapshot(identifier)[1])

    def _position(self, identifier: str, snapshot: Any) -> Position | None:
        stamped = snapshot.metadata().configuration().get(POSITION)
        positions = [str(stamped.get())] if stamped.isDefined() else []
        positions += self._last_told(identifier, int(snapshot.version()))
        return max((Position.parse(text) for text in positions), default=None)

    def _last_told(self, identifier: str, version: int) -> list[str]:
        """The position of the newest commit that has one; others' commits have none."""
        files, log = self._folders.files(f"{self._folder(identifier)}/_delta_log")
        for number in range(version, -1, -1):
            commit = f"{log}/{number:020d}.json"
            if files.get_file_info(commit).type is FileType.NotFound:
                break
            with files.open_input_stream(commit) as stream:
                lines = stream.read().decode().splitlines()
            for line in lines:
                if line.startswith('{"commitInfo"'):
                    text = json.loads(line)["commitInfo"].get("userMetadata")
                    if text:
                        return [str(text)]
        return []

    def uid(self, identifier: str) -> str:
        return self._folder(identifier).rpartition("/")[2]

    def upstream_schema(self, identifier: str) -> TableSchema:
        return TableSchema.from_json(self._property(identifier, SCHEMA) or "{}")

    def version(self, identifier: str) -> int:
        return int(self._snapshot(identifier)[1].version())

    def read(self, identifier: str, version: int | None = None) -> DataFrame:
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(self._folder(identifier))

    # --- what a lake keeps for itself -------------------------------------------------------------

    def locate(self) -> list[Located]:
        found = []
        for identifier in self._ours():
            position, origin = self.position(identifier), self._property(identifier, ORIGIN)
            if position is not None and origin is not None:
                is_retired = self._property(identifier, RETIRED) is not None
                uid = self.uid(identifier)
                found.append(Located(identifier, uid, origin, position, is_retired))
        return found

    def lakes(self) -> dict[str, Mapping[str, str]]:
        found = {}
        for name in self._folders.listed(self._folders.tables):
            folder = f"{self._folders.tables}/{name}/{_CHANGELOG}"
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

    # --- upkeep -----------------------------------------------------------------------------------

    def is_scattered(self, identifier: str) -> bool:
        return self.version(identifier) % _MANY_VERSIONS == 0

    def join_files(self, identifier: str) -> None:
        with self._committing(self.spark, self.position(identifier)) as session:
            self.guard.check()
            session.sql(f"OPTIMIZE {identifier}")

    def is_conflict(self, error: PySparkException | Py4JJavaError) -> bool:
        names = java_classes(error)
        return any(name.startswith(_CONFLICTS) or name == _METADATA_CHANGED for name in names)

    def _forget_versions(self, identifier: str, *, keep_seconds: float) -> None:
        """Only files of properties: Delta's own checkpoints bound what a commit reads."""
        remove_old_properties(self._folders.store(), self._folder(identifier))

    def _delete_from_log(self, identifier: str, condition: str) -> None:
        self.spark.sql(f"DELETE FROM {identifier} WHERE {condition}")

    def _maintain_log(self, identifier: str, *, keep_seconds: float) -> Mapping[str, int]:
        removed = remove_old_properties(self._folders.store(), self._folder(identifier))
        done = self.maintain(identifier, keep_seconds=keep_seconds)
        return {**done, "property files removed": removed}

    def maintain(self, identifier: str, *, keep_seconds: float) -> Mapping[str, int]:
        with self._committing(self.spark, self.position(identifier)) as session:
            session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
            # VACUUM lists folders in as many tasks as this says: 10,000 as is usual.
            session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "16")
            self.guard.check()
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
        files, path = self._folders.files(self._folder(identifier))
        found = files.get_file_info(FileSelector(path, recursive=True))
        return sum(
            1 for each in found if each.extension == "parquet" and "_delta_log" not in each.path
        )


class DeltaLog(LogTable):
    """A log in a Delta table, through delta-rs: no job, no JVM.

    A commit carries the number of a transaction, and the properties are in a file of that number,
    written before it: what they say is true as soon as the commit is there.
    """

    def __init__(
        self,
        identifier: str,
        folder: str,
        columns: pa.Schema,
        bounded: Sequence[str],
        sorted_by: Sequence[str],
        store: Callable[[], FileStore],
        guard: Callable[[], Guard],
    ) -> None:
        """`store` gives what opens files with the credentials of now."""
        self.identifier = identifier
        self.schema = columns
        self.folder = folder
        self.guard = guard
        self._open_store = store
        self.partition_by = tuple(_delta_table(folder, store()).metadata().partition_columns)
        numbers = [each.name for each in columns if pa.types.is_integer(each.type)]
        self.bounded = (*numbers, *bounded)
        self.sorted_by = tuple(sorted_by)

    @staticmethod
    def create(
        folder: str,
        columns: pa.Schema,
        partition_by: Sequence[str],
        store: FileStore,
        settings: Mapping[str, str],
    ) -> None:
        """Makes the empty table of a log."""
        from deltalake import DeltaTable

        DeltaTable.create(
            folder,
            columns,
            mode="ignore",
            partition_by=list(partition_by),
            configuration=dict(settings),
            storage_options=store.delta_options(),
        )

    def load(self) -> LoadedLog:
        return _LoadedDeltaLog(self, self._open_store())

    def store(self) -> FileStore:
        return self._open_store()

    def files(self, version: int, condition: Condition) -> list[LogFile]:
        table = _delta_table(self.folder, self._open_store(), version)
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return [self._log_file(action) for action in actions]

    def _log_file(self, action: Mapping[str, Any]) -> LogFile:
        values = [action[f"partition.{name}"] for name in self.partition_by]
        bounds = {
            name: (action[f"null_count.{name}"], action[f"min.{name}"], action[f"max.{name}"])
            for name in self.bounded
            if action.get(f"min.{name}") is not None
        }
        return LogFile(
            f"{self.folder}/{action['path']}",
            action["size_bytes"],
            action["num_records"],
            of_partition(self.partition_by, values) & within(bounds),
        )

    def changes(self, since: int, version: int) -> list[LogChange]:
        if version - since > _MOST_VERSIONS or version < since:
            raise LogRewritten
        store, log = self._open_store(), f"{self.folder}/_delta_log"
        files, path = store.filesystem(log), store.path(log)
        changes = []
        for number in range(since + 1, version + 1):
            try:
                with files.open_input_stream(f"{path}/{number:020d}.json") as stream:
                    lines = [json.loads(line) for line in stream.read().decode().splitlines()]
            except FileNotFoundError:
                raise LogRewritten from None
            adds = (line["add"] for line in lines if "add" in line)
            added = [self._log_file(_flattened(add, self.schema)) for add in adds]
            removes = (line["remove"]["path"] for line in lines if "remove" in line)
            removed = frozenset(f"{self.folder}/{unquote(each)}" for each in removes)
            changes.append(LogChange(added, removed))
        return changes


class _LoadedDeltaLog(LoadedLog):
    """A Delta table of a log at its newest version."""

    def __init__(self, log: DeltaLog, store: FileStore) -> None:
        self._log = log
        self._store = store
        self._table = _delta_table(log.folder, store)
        self.version = int(self._table.version())
        self.properties = _properties(self._table, log.folder, store)

    def store(self) -> FileStore:
        return self._store

    def writer(self) -> LogWriter:
        log = self._log
        return LogWriter(
            log.folder, log.schema, log.partition_by, log.bounded, log.sorted_by, self._store
        )

    def commit(self, files: Sequence[WrittenFile], properties: Mapping[str, str]) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        number = self._new_number()
        self._write_properties(number, self.properties | properties)
        committing = CommitProperties(
            max_commit_retries=0, app_transactions=[Transaction(_APPLICATION, number)]
        )
        try:
            # Delta fails it where a version since this one has a transaction of the same
            # application, which every commit to a log has.
            self._table.create_write_transaction(
                [self._action(file) for file in files],
                "append",
                self._table.schema(),
                list(self._log.partition_by),
                commit_properties=committing,
            )
        except CommitFailedError as error:
            raise CommitConflict(self._log.identifier) from error

    def _action(self, file: WrittenFile) -> Any:
        from deltalake.transaction import AddAction

        bounds = file.bounds.items()
        stats = {
            "numRecords": file.rows,
            "minValues": {name: least for name, (_, least, _) in bounds},
            "maxValues": {name: greatest for name, (_, _, greatest) in bounds},
            "nullCount": {name: nulls for name, (nulls, _, _) in bounds},
        }
        return AddAction(
            file.path.removeprefix(f"{self._log.folder}/"),
            file.bytes,
            dict(zip(self._log.partition_by, file.partition, strict=True)),
            int(time.time() * 1000),
            True,
            json.dumps(stats, ensure_ascii=False),
        )

    def _new_number(self) -> int:
        """Above all before it, and nobody else's, so that no file of properties is overwritten."""
        before = self._table.transaction_version(_APPLICATION) or 0
        return ((before >> 32) + 1 << 32) + secrets.randbits(31)

    def _write_properties(self, number: int, properties: Mapping[str, str]) -> None:
        folder = self._log.folder
        location = _properties_location(folder, number)
        files, path = self._store.filesystem(location), self._store.path(location)
        if not is_remote(folder):
            files.create_dir(path.rpartition("/")[0], recursive=True)
        with files.open_output_stream(path) as stream:
            stream.write(json.dumps(properties, ensure_ascii=False).encode())


def _delta_table(folder: str, store: FileStore, version: int | None = None) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(folder, version, storage_options=store.delta_options())


def _properties_location(folder: str, number: int) -> str:
    return f"{folder}/{_PROPERTIES_OF_LOG}/{number}.json"


def _properties(table: Any, folder: str, store: FileStore) -> dict[str, str]:
    """The properties of a log at a version."""
    number = table.transaction_version(_APPLICATION)
    if number is None:
        return {}
    location = _properties_location(folder, number)
    with store.filesystem(location).open_input_stream(store.path(location)) as stream:
        properties: dict[str, str] = json.loads(stream.read())
    return properties


def log_properties(folder: Path, database: str, name: str) -> dict[str, str]:
    """The properties of a log in the folder of a lake, read without a JVM."""
    path = folder / "tables" / database / name
    if not (path / "_delta_log").is_dir():
        return {}
    return _properties(_delta_table(str(path), FileStore()), str(path), FileStore())


def remove_old_properties(store: FileStore, folder: str) -> int:
    """Removes the files of properties that no longer hold, or never did; how many.

    Those for a commit that may be under way have a higher number than all commits and stay; so do
    those that somebody may be about to read.
    """
    current = _delta_table(folder, store).transaction_version(_APPLICATION)
    location = f"{folder}/{_PROPERTIES_OF_LOG}"
    files, path = store.filesystem(location), store.path(location)
    before = datetime.now(UTC) - _PROPERTIES_AGE
    removed = 0
    for each in files.get_file_info(FileSelector(path, allow_not_found=True)):
        number = int(each.base_name.removesuffix(".json"))
        is_past = number != current and number >> 32 <= (current or 0) >> 32
        if is_past and each.mtime < before:
            files.delete_file(each.path)
            removed += 1
    return removed


def _flattened(add: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """An added file as `get_add_actions` describes it."""
    stats = json.loads(add["stats"])
    partition = {
        name: value == "true"
        if value is not None and schema.field(name).type == pa.bool_()
        else value
        for name, value in add["partitionValues"].items()
    }
    return {
        "path": unquote(add["path"]),
        "size_bytes": add["size"],
        "num_records": stats["numRecords"],
        **{f"partition.{name}": value for name, value in partition.items()},
        **{f"min.{name}": value for name, value in stats["minValues"].items()},
        **{f"max.{name}": value for name, value in stats["maxValues"].items()},
        **{f"null_count.{name}": value for name, value in stats["nullCount"].items()},
    }


def _number(snapshot: Any) -> int:
    """The number of the last commit to a table that one of ours made; 0 where none has one."""
    last = snapshot.transactions().get(_APPLICATION)
    return int(last.get()) if last.isDefined() else 0


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
