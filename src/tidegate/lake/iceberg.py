"""Iceberg tables: format version 3, merge-on-read, in the lake's own catalog or in one given.

Every commit is a snapshot whose summary holds the position. What needs no rows goes through
Iceberg's Java API: a position is read without a job, and a change of columns is one transaction of
schema, properties and an empty snapshot. Rows go through Spark.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import UnsupportedOperationException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
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
from tidegate.lake.conditions import Condition
from tidegate.lake.conversion import ColumnPlan, plan
from tidegate.lake.format import (
    DROPPED_DATABASE,
    OP,
    OWN_DATABASE,
    LakePlace,
    Located,
    Position,
    TableFormat,
    origin_of,
)
from tidegate.lake.lock import make_folder
from tidegate.lake.logfiles import LogFile, LogWriter, field_id, with_field_ids
from tidegate.lake.names import new_folder
from tidegate.model import ConfigError, TableSchema
from tidegate.model.sql import parts_of, quoted
from tidegate.spark.types import from_text_array, spark_schema, spark_type

CATALOG_FILE = "catalog.db"
_CHANGELOG = "changelog"
POSITION = "tidegate.position"
SCHEMA = "tidegate.schema"
ORIGIN = "tidegate.origin"
RETIRED = "tidegate.retired"

_TARGET_BYTES = 256 << 20
_MANY_FILES = 50
"""Files beyond what the size of a table asks for, above which they are joined."""
_SIZE = "total-files-size"
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
    "write.target-file-size-bytes": str(_TARGET_BYTES),
    # As many tasks as there are files of a small table are more work than what they read.
    "read.split.open-file-cost": str(256 << 10),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    "write.metadata.metrics.max-inferred-column-defaults": "100",
    "commit.retry.num-retries": "10",
    "commit.manifest.min-count-to-merge": "20",
}
_LOG_PROPERTIES = {
    "format-version": "2",
    "write.distribution-mode": "none",
    # Old rows may be removed while new ones come.
    "write.delete.isolation-level": "snapshot",
    # A task has rows of many tables in no order, and writes a file for each.
    "write.spark.fanout.enabled": "true",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.retry.num-retries": "10",
    "write.metadata.metrics.default": "none",
}
_ORDERED_TYPES = (IntegerType, LongType)
"""What a log keeps the bounds of, file by file: offsets and timestamps, not texts and rows."""
_MOST_VERSIONS = 1_000
"""Of a log, between two looks at what was added; above that the whole table is planned anew."""
_METRICS = "write.metadata.metrics.column."
_ORPHAN_AGE = timedelta(hours=25)
"""How old files of no version must be to go; Iceberg takes no less than a day."""
_FEW_KEYS = 200
"""Up to so many keys Iceberg looks for each of them in the bounds of files."""


def session_settings(place: LakePlace) -> dict[str, str]:
    """The settings of Spark for the tables of a lake, and its catalog unless one is named."""
    settings = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    }
    if place.catalog is not None:
        return settings
    folder = local_folder(place.folder)
    catalog = f"spark.sql.catalog.{place.name}"
    return settings | {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{folder / CATALOG_FILE}",
        f"{catalog}.jdbc.schema-version": "V1",
        # Several processes may have the file open: they wait for each other, and readers for none.
        f"{catalog}.jdbc.busy_timeout": "60000",
        f"{catalog}.jdbc.journal_mode": "WAL",
        f"{catalog}.warehouse": str(folder / "tables"),
        # A table may have been changed elsewhere, or by the Java API.
        f"{catalog}.cache-enabled": "false",
        # For checkpoints; see `_write_no_checksums`.
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    }


def local_folder(text: str) -> Path:
    """The folder of a lake on this machine, absolute; ConfigError for another kind of place."""
    scheme, colon, rest = text.partition("://")
    if colon and scheme != "file":
        raise ConfigError(
            "folder", f"the lake's own catalog is a file, and {text} is not: name a catalog"
        )
    return Path(rest if colon else text).absolute()


class Recorded(NamedTuple):
    """What the embedded catalog of a folder says of itself.

    It finds its tables under its `name` only, and their files below the folder it was made in.
    """

    name: str
    folder: str


def recorded(folder: Path) -> Recorded | None:
    """What the catalog in a folder says; None where there is none, or nothing in it."""
    path = folder / CATALOG_FILE
    if not path.is_file():
        return None
    with closing(sqlite3.connect(path)) as connection:
        is_made = "SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'"
        if connection.execute(is_made).fetchone() is None:
            return None
        # A log of the lake's own is where the catalog puts it, below the folder of all tables.
        found = connection.execute(
            "SELECT catalog_name, metadata_location FROM iceberg_tables WHERE table_name = ? "
            "ORDER BY metadata_location LIKE ? DESC",
            (_CHANGELOG, f"%{OWN_DATABASE}/{_CHANGELOG}/%"),
        ).fetchone()
    if found is None:
        return None
    name, location = found
    return Recorded(name, location.removeprefix("file:").rpartition("/tables/")[0])


def has_lake(spark: SparkSession, place: LakePlace) -> bool:
    """Whether the catalog of a place has a changelog."""
    if place.catalog is None:
        return recorded(local_folder(place.folder)) is not None
    log = quoted(place.catalog, place.prefix + OWN_DATABASE, _CHANGELOG)
    return spark.catalog.tableExists(log)


class IcebergFormat(TableFormat):
    """Iceberg tables of one lake."""

    name = "iceberg"
    reserved = frozenset(
        ["_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id"]
        + ["_last_updated_sequence_number"]
    )

    def __init__(self, spark: SparkSession, place: LakePlace) -> None:
        self.spark = spark
        self._place = place
        self._making_namespaces = threading.Lock()
        self._log_writers: dict[str, LogWriter] = {}
        self._catalog_name = place.catalog or place.name
        if place.catalog is None:
            make_folder(local_folder(place.folder))
            for name, value in session_settings(place).items():
                if name != "spark.sql.extensions":
                    spark.conf.set(name, value)
        self._jvm: Any = spark.sparkContext._jvm
        session: Any = spark._jsparkSession
        if place.catalog is None:
            self._write_no_checksums(session)
        manager = session.sessionState().catalogManager()
        self._catalog = manager.catalog(self._catalog_name).icebergCatalog()

    def _write_no_checksums(self, session: Any) -> None:
        """Of local files Hadoop keeps checksums that nobody reads: Parquet and Avro have their own.

        It runs `chmod` for each file that it makes, so this takes as long again as the file itself.
        """
        root = self._jvm.org.apache.hadoop.fs.Path("file:///")
        root.getFileSystem(session.sessionState().newHadoopConf()).setWriteChecksum(False)

    # --- tables by name ---------------------------------------------------------------------------

    def identifier(self, database: str, table: str) -> str:
        """How SQL names the table of that name."""
        # A catalog takes a dot for the end of one level of names and the beginning of the next.
        level = (self._place.prefix + database).replace("%", "%25").replace(".", "%2E")
        return quoted(self._catalog_name, level, table)

    def here(self, identifier: str) -> str:
        # A session with several lakes has other names for their catalogs.
        return quoted(self._catalog_name, *parts_of(identifier)[1:]) if identifier else ""

    def _strings(self, *parts: str) -> Any:
        gateway: Any = self.spark.sparkContext._gateway
        array = gateway.new_array(self._jvm.java.lang.String, len(parts))
        for place, part in enumerate(parts):
            array[place] = part
        return array

    def _namespace(self, *parts: str) -> Any:
        return self._jvm.org.apache.iceberg.catalog.Namespace.of(self._strings(*parts))

    def _java_name(self, identifier: str) -> Any:
        _, *namespace, table = parts_of(identifier)
        names = self._jvm.org.apache.iceberg.catalog.TableIdentifier
        return names.of(self._namespace(*namespace), table)

    def _load(self, identifier: str) -> Any:
        return self._catalog.loadTable(self._java_name(identifier))

    def _exists(self, identifier: str) -> bool:
        return bool(self._catalog.tableExists(self._java_name(identifier)))

    def _ensure_namespace(self, identifier: str) -> None:
        _, *namespace, _ = parts_of(identifier)
        java_namespace = self._namespace(*namespace)
        with self._making_namespaces:
            if not self._catalog.namespaceExists(java_namespace):
                name = quoted(self._catalog_name, *namespace)
                self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name}")

    # --- create, drop, rename ---------------------------------------------------------------------

    def create(self, database: str, table: str, schema: TableSchema, position: Position) -> str:
        identifier = self.identifier(database, table)
        self.retire(identifier, position)
        self._ensure_namespace(identifier)
        name = self._java_name(identifier)
        builder = self._catalog.buildTable(name, self._java_schema(schema))
        told = _told(schema, position) | {ORIGIN: origin_of(database, table, position)}
        for key, value in (_PROPERTIES | told).items():
            builder = builder.withProperty(key, value)
        if self._place.catalog is None:
            folder = local_folder(self._place.folder) / "tables" / new_folder(database, table)
            builder = builder.withLocation(str(folder))
        transaction = builder.createTransaction()
        self._add_snapshot(transaction, position)
        transaction.commitTransaction()
        return identifier

    def _java_schema(self, schema: TableSchema) -> Any:
        kind = spark_schema(schema.carried)
        java_kind = self._jvm.org.apache.spark.sql.types.DataType.fromJson(kind.json())
        return self._jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(java_kind)

    def _java_type(self, kind: DataType) -> Any:
        java_kind = self._jvm.org.apache.spark.sql.types.DataType.fromJson(kind.json())
        return self._jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(java_kind)

    def _add_snapshot(self, table: Any, position: Position) -> None:
        """An empty snapshot, so that the schema of now is that of a version, with its position."""
        table.newAppend().set(POSITION, str(position)).commit()

    def retire(self, identifier: str, position: Position) -> None:
        if not self._exists(identifier):
            return
        name = f"t_{self.uid(identifier).replace('-', '')}"
        new = quoted(self._catalog_name, self._place.prefix + DROPPED_DATABASE, name)
        # After a crash the name may be the new one already.
        if new != identifier:
            self._ensure_namespace(new)
            try:
                self._catalog.renameTable(self._java_name(identifier), self._java_name(new))
            except UnsupportedOperationException:
                # There are catalogs that rename no table: the name is needed more than the history.
                self.drop(identifier)
                return
        self.set_properties(new, {RETIRED: str(position), POSITION: str(position)})

    def drop(self, identifier: str) -> None:
        if self._exists(identifier):
            # A folder of our own making is no other table's: it can go too.
            self._catalog.dropTable(self._java_name(identifier), self._place.catalog is None)

    def rename(self, identifier: str, database: str, table: str, position: Position) -> str:
        new = self.identifier(database, table)
        # After a crash the name may be the new one already, and the position the old.
        if new != identifier and self._exists(identifier):
            self._ensure_namespace(new)
            self._catalog.renameTable(self._java_name(identifier), self._java_name(new))
        schema = replace(self.upstream_schema(new), database=database, table=table)
        transaction = self._load(new).newTransaction()
        self._set_properties(transaction, _told(schema, position))
        self._add_snapshot(transaction, position)
        transaction.commitTransaction()
        return new

    def _set_properties(self, transaction: Any, properties: Mapping[str, str]) -> None:
        update = transaction.updateProperties()
        for key, value in properties.items():
            update = update.set(key, value)
        update.commit()

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
        table = self._load(identifier)
        transaction = table.newTransaction()
        self._change_columns(transaction, before, columns)
        self._add_columns(transaction, columns, zone)
        self._set_properties(transaction, told)
        self._add_snapshot(transaction, position)
        transaction.commitTransaction()

    def _change_columns(
        self, transaction: Any, before: TableSchema, columns: Sequence[ColumnPlan]
    ) -> None:
        update = transaction.updateSchema()
        kept = {column.before.name for column in columns if column.before is not None}
        for gone in before.carried:
            if gone.name not in kept:
                update = update.deleteColumn(gone.name)
        for column in columns:
            if column.before is None:
                continue
            if column.is_converted:
                new = self._java_type(spark_type(column.after))
                update = update.updateColumn(column.before.name, new)
            if column.before.name != column.after.name:
                update = update.renameColumn(column.before.name, column.after.name)
        update.commit()

    def _add_columns(self, transaction: Any, columns: Sequence[ColumnPlan], zone: str) -> None:
        # After the others, since an added column may have the name that another had.
        update = transaction.updateSchema()
        for column in columns:
            if column.before is not None:
                continue
            kind = self._java_type(spark_type(column.after))
            value = self._default(column, kind, zone)
            # With a parent, if none, dots in the name are nothing but dots.
            if value is None:
                update = update.addColumn(None, column.after.name, kind)
            else:
                update = update.addColumn(None, column.after.name, kind, None, value)
        previous = None
        for column in columns:
            name = column.after.name
            update = (
                update.moveFirst(name) if previous is None else update.moveAfter(name, previous)
            )
            previous = name
        update.commit()

    def _default(self, column: ColumnPlan, kind: Any, zone: str) -> Any:
        """What the rows that are there hold in an added column, as an Iceberg literal."""
        if column.fill is None:
            return None
        value = from_text_array(column.after, pa.array([column.fill]), zone)[0].as_py()
        of: Any = self._jvm.org.apache.iceberg.expressions.Literal.of
        if value is None:
            return None
        if isinstance(value, bytes):
            return of(self._jvm.java.nio.ByteBuffer.wrap(value))
        if isinstance(value, Decimal):
            return of(f"{value:f}").to(kind)
        if isinstance(value, date):  # of which datetime is one
            return of(value.isoformat()).to(kind)
        return of(value).to(kind)

    def _rewrite(
        self,
        identifier: str,
        values: Sequence[Column],
        told: Mapping[str, str],
        position: Position,
    ) -> None:
        """The table anew with its new columns, in one commit; its versions stay."""
        rows = self.read(identifier).select(*values)
        writer = rows.writeTo(identifier).using("iceberg")
        for key, value in told.items():
            writer = writer.tableProperty(key, value)
        writer.option(f"snapshot-property.{POSITION}", str(position)).createOrReplace()

    # --- rows -------------------------------------------------------------------------------------

    def delete(self, identifier: str, condition: str | None, position: Position) -> None:
        if condition is None:
            everything = self._jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()
            removal = self._load(identifier).newDelete().deleteFromRowFilter(everything)
            removal.set(POSITION, str(position)).commit()
            return
        with self._committing(self.spark, position) as session:
            session.sql(f"DELETE FROM {identifier} WHERE {condition}")
        self._ensure(identifier, position)

    def merge(
        self,
        identifier: str,
        changes: DataFrame | pa.Table,
        key: Sequence[str],
        position: Position,
    ) -> None:
        bounds = None
        own = isinstance(changes, DataFrame) and not changes.is_cached
        if isinstance(changes, pa.Table):
            bounds = _Bounds.of_few(changes, key)
            changes = self.spark.createDataFrame(changes)
        names = [name for name in changes.columns if name != OP]
        if self._is_empty(self._load(identifier)):
            put = changes.where(F.col(quoted(OP)) == "u").select(*(quoted(name) for name in names))
            self.append(identifier, put, position)
            return
        view = f"tidegate_changes_{uuid.uuid4().hex}"
        try:
            if own:
                changes = changes.persist()
            bounds = bounds or _Bounds.of(changes, key)
            if bounds is not None:
                changes.createOrReplaceTempView(view)
                statement = _merge_statement(identifier, view, names, key, bounds)
                with self._committing(changes.sparkSession, position) as session:
                    session.sql(statement)
        finally:
            changes.sparkSession.catalog.dropTempView(view)
            if own:
                changes.unpersist()
        self._ensure(identifier, position)

    def append(self, identifier: str, rows: DataFrame, position: Position) -> None:
        rows.writeTo(identifier).option(f"snapshot-property.{POSITION}", str(position)).append()
        self._ensure(identifier, position)

    def replace_rows(self, identifier: str, changes: DataFrame, position: Position) -> None:
        names = [quoted(name) for name in changes.columns if name != OP]
        same = " AND ".join(f"t.{name} <=> s.{name}" for name in names)
        values = ", ".join(f"s.{name}" for name in names)
        op = f"s.{quoted(OP)}"
        view = f"tidegate_changes_{uuid.uuid4().hex}"
        changes = changes.persist()
        changes.createOrReplaceTempView(view)
        try:
            with self._committing(changes.sparkSession, position) as session:
                session.sql(
                    f"MERGE INTO {identifier} AS t USING {view} AS s ON {op} = 'd' AND {same} "
                    "WHEN MATCHED THEN DELETE "
                    f"WHEN NOT MATCHED AND {op} <> 'd' "
                    f"THEN INSERT ({', '.join(names)}) VALUES ({values})"
                )
        finally:
            changes.sparkSession.catalog.dropTempView(view)
            changes.unpersist()
        self._ensure(identifier, position)

    def _is_empty(self, table: Any) -> bool:
        snapshot = table.currentSnapshot()
        return snapshot is None or snapshot.summary().get("total-records") == "0"

    @contextmanager
    def _committing(self, spark: SparkSession, position: Position) -> Iterator[SparkSession]:
        """A session whose commits carry the position: the setting is the whole session's."""
        java_session: Any = spark._jsparkSession
        session = SparkSession(spark.sparkContext, java_session.cloneSession())
        session.conf.set(f"spark.sql.iceberg.snapshot-property.{POSITION}", str(position))
        for name, value in _MERGE_SETTINGS.items():
            session.conf.set(name, value)
        yield session

    def stamp(self, identifier: str, position: Position) -> None:
        self._add_snapshot(self._load(identifier), position)

    def _ensure(self, identifier: str, position: Position) -> None:
        """What changed no row may have made no commit."""
        table = self._load(identifier)
        if _position(table) != position:
            self._add_snapshot(table, position)

    # --- looking ----------------------------------------------------------------------------------

    def position(self, identifier: str) -> Position | None:
        return _position(self._load(identifier)) if self._exists(identifier) else None

    def uid(self, identifier: str) -> str:
        return str(self._load(identifier).uuid().toString())

    def upstream_schema(self, identifier: str) -> TableSchema:
        return TableSchema.from_json(self._load(identifier).properties().get(SCHEMA))

    def version(self, identifier: str) -> int:
        return int(self._load(identifier).currentSnapshot().snapshotId())

    def read(self, identifier: str, version: int | None = None) -> DataFrame:
        if version is None:
            return self.spark.table(identifier)
        return self.spark.sql(f"SELECT * FROM {identifier} VERSION AS OF {version}")

    # --- what a lake keeps for itself -------------------------------------------------------------

    def locate(self) -> list[Located]:
        found = []
        for namespace in self._catalog.listNamespaces():
            for name in self._catalog.listTables(namespace):
                table = self._catalog.loadTable(name)
                origin = table.properties().get(ORIGIN)
                if origin is not None:
                    identifier = quoted(self._catalog_name, *namespace.levels(), name.name())
                    position = self.position(identifier)
                    assert position is not None
                    uid = str(table.uuid().toString())
                    is_retired = table.properties().get(RETIRED) is not None
                    found.append(Located(identifier, uid, origin, position, is_retired))
        return found

    def create_log(
        self,
        name: str,
        columns: StructType,
        partition_by: Sequence[str] = (),
        bounded: Sequence[str] = (),
    ) -> str:
        identifier = quoted(self._catalog_name, self._place.prefix + OWN_DATABASE, name)
        if not self._exists(identifier):
            self._ensure_namespace(identifier)
            schema = self._java_type(columns)
            spec = self._jvm.org.apache.iceberg.PartitionSpec.builderFor(schema)
            for column in partition_by:
                spec = spec.identity(column)
            builder = self._catalog.buildTable(self._java_name(identifier), schema)
            builder = builder.withPartitionSpec(spec.build())
            numbers = [each.name for each in columns if isinstance(each.dataType, _ORDERED_TYPES)]
            metrics = {f"{_METRICS}{each}": "full" for each in (*numbers, *bounded)}
            for key, value in (_LOG_PROPERTIES | metrics).items():
                builder = builder.withProperty(key, value)
            transaction = builder.createTransaction()
            transaction.newAppend().commit()
            transaction.commitTransaction()
        return identifier

    def append_to_log(self, identifier: str, rows: pa.Table) -> None:
        writer = self.log_writer(identifier)
        if writer is None:
            self.spark.createDataFrame(rows).writeTo(identifier).append()
            return
        told = pa.Table.from_batches(writer.write(rows.combine_chunks().to_batches()))
        self.add_files(identifier, [Row(**file) for file in told.to_pylist()], {})

    def stream_to_log(self, identifier: str, changes: DataStreamWriter) -> StreamingQuery:
        return changes.format("iceberg").toTable(identifier)

    def log_writer(self, identifier: str) -> LogWriter | None:
        if self._place.catalog is not None:
            return None  # its files may be where only the catalog's own settings lead
        writer = self._log_writers.get(identifier)
        if writer is None:
            table = self._load(identifier)
            told = json.loads(self._jvm.org.apache.iceberg.SchemaParser.toJson(table.schema()))
            folder = Path(table.location(), "data")
            folder.mkdir(exist_ok=True)
            columns = to_arrow_schema(self.spark.table(identifier).schema)
            partition_by = tuple(each.name() for each in table.spec().fields())
            schema = with_field_ids(columns, told)
            kept = self.properties(identifier)
            bounded = tuple(each.name for each in schema if _METRICS + each.name in kept)
            writer = LogWriter(str(folder), schema, partition_by, bounded)
            self._log_writers[identifier] = writer
        return writer

    def add_files(
        self, identifier: str, files: Sequence[Row], properties: Mapping[str, str]
    ) -> None:
        table = self._load(identifier)
        spec, iceberg = table.spec(), self._jvm.org.apache.iceberg
        writer = self.log_writer(identifier)
        assert writer is not None
        from_json = iceberg.ContentFileParser.fromJson
        read = iceberg.util.JsonUtil.mapper().readTree
        transaction = table.newTransaction()
        append = transaction.newAppend()
        for file in files:
            told = json.dumps(_data_file(file, writer, spec.specId()))
            append = append.appendFile(from_json(read(told), spec))
        append.commit()
        if properties:
            self._set_properties(transaction, properties)
        transaction.commitTransaction()

    def log_files(
        self, identifier: str, version: int, condition: Condition
    ) -> list[LogFile] | None:
        if self._place.catalog is not None:
            return None
        expressions = self._jvm.org.apache.iceberg.expressions.Expressions
        table = self._load(identifier)
        scan = table.newScan().useSnapshot(version).includeColumnStats()
        scan = scan.filter(condition.iceberg(expressions))
        with closing(scan.planFiles()) as planned:
            files, tasks = [], planned.iterator()
            while tasks.hasNext():
                task = tasks.next()
                if not task.deletes().isEmpty():
                    return None
                files.append(task.file())
        return self._log_files(table, files)

    def added_files(self, identifier: str, since: int, version: int) -> list[LogFile] | None:
        if self._place.catalog is not None:
            return None
        table = self._load(identifier)
        files: list[Any] = []
        for _ in range(_MOST_VERSIONS):
            if version == since:
                return self._log_files(table, files)
            # The first version has none before it.
            snapshot = None if version is None else table.snapshot(version)
            if snapshot is None or snapshot.operation() != "append":
                return None
            files.extend(snapshot.addedDataFiles(table.io()))
            version = snapshot.parentId()
        return None

    def _log_files(self, table: Any, files: Sequence[Any]) -> list[LogFile]:
        schema = json.loads(self._jvm.org.apache.iceberg.SchemaParser.toJson(table.schema()))
        spec = table.spec()
        to_json = self._jvm.org.apache.iceberg.ContentFileParser.toJson
        partition = [each.name() for each in spec.fields()]
        found = []
        for file in files:
            told = json.loads(to_json(file, spec))
            known = _known(told, partition, schema["fields"])
            found.append(LogFile(told["file-path"], told["file-size-in-bytes"], known))
        return found

    def properties(self, identifier: str) -> Mapping[str, str]:
        return dict(self._load(identifier).properties())

    def set_properties(self, identifier: str, properties: Mapping[str, str]) -> None:
        update = self._load(identifier).updateProperties()
        for key, value in properties.items():
            update = update.set(key, value)
        update.commit()

    # --- upkeep -----------------------------------------------------------------------------------

    def is_scattered(self, identifier: str) -> bool:
        summary = self._load(identifier).currentSnapshot().summary()
        files, size = (int(summary.get(name) or 0) for name in ("total-data-files", _SIZE))
        return files - size // _TARGET_BYTES > _MANY_FILES

    def join_files(self, identifier: str) -> None:
        self._rewrite_files(identifier, {})

    def forget_versions(self, identifier: str, *, keep_seconds: float) -> None:
        oldest = int((time.time() - keep_seconds) * 1000)
        self._load(identifier).expireSnapshots().expireOlderThan(oldest).commit()

    def _rewrite_files(self, identifier: str, options: Mapping[str, str]) -> Row:
        position = self.position(identifier)
        if position is not None:
            # The snapshot of a rewrite has none in its summary.
            self._load(identifier).updateProperties().set(POSITION, str(position)).commit()
        texts = [_literal(text) for option in options.items() for text in option]
        given = f", options => map({', '.join(texts)})" if options else ""
        (found,) = self._call("rewrite_data_files", identifier, given)
        return found

    def _call(self, procedure: str, identifier: str, arguments: str = "") -> list[Row]:
        _, *name = parts_of(identifier)
        system = quoted(self._catalog_name) + ".system"
        return self.spark.sql(
            f"CALL {system}.{procedure}(table => {_literal(quoted(*name))}{arguments})"
        ).collect()

    def maintain(self, identifier: str, *, keep_seconds: float) -> Mapping[str, int]:
        oldest = datetime.now(UTC) - timedelta(seconds=keep_seconds)
        files = self._rewrite_files(
            identifier, {"delete-file-threshold": "1", "remove-dangling-deletes": "true"}
        )
        (manifests,) = self._call("rewrite_manifests", identifier)
        (expired,) = self._call("expire_snapshots", identifier, _older_than(oldest))
        # In a folder of our own making; where a catalog chooses them, tables may share one.
        orphans = self._remove_orphans(identifier) if self._place.catalog is None else 0
        return {
            "data files joined": files["rewritten_data_files_count"],
            "data files written": files["added_data_files_count"],
            "manifests joined": manifests["rewritten_manifests_count"],
            "data files removed": expired["deleted_data_files_count"],
            "delete files removed": expired["deleted_position_delete_files_count"]
            + expired["deleted_equality_delete_files_count"],
            "manifests removed": expired["deleted_manifest_files_count"],
            "snapshots removed": expired["deleted_manifest_lists_count"],
            "orphan files removed": orphans,
        }

    def _remove_orphans(self, identifier: str) -> int:
        """Removes what was written for commits that never came; how many files that were.

        Only those of yesterday and before: a commit may be under way.
        """
        before = datetime.now(UTC) - _ORPHAN_AGE
        return len(self._call("remove_orphan_files", identifier, _older_than(before)))


_MERGE_SETTINGS = {
    # The rows of the table that no change can concern are left out before the join.
    "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "1MB",
}


class _Bounds:
    """What is known of the keys of changes before they are merged: enough to pass over files."""

    def __init__(self, condition: str, equal: str) -> None:
        self.condition = condition
        self.equal = equal

    @classmethod
    def of(cls, changes: DataFrame, columns: Sequence[str]) -> _Bounds | None:
        """The bounds of the key's first column; None where there are no changes."""
        key = columns[0]
        column = F.col(quoted(key))
        complete = F.when(~F.array_contains(_nulls(columns), True), 1)
        found = changes.select(
            F.count(F.lit(1)), F.count(complete), F.min(column), F.max(column)
        ).head()
        assert found is not None
        rows, keys, least, greatest = found
        if rows == 0:
            return None
        if keys < rows:  # a key that did not fit its type is NULL
            return cls("", "<=>")
        if not isinstance(least, int | Decimal | str):
            return cls("", "=")
        if rows <= _FEW_KEYS:
            return cls._one_of(key, [row[0] for row in changes.select(column).distinct().collect()])
        return cls._between(key, least, greatest)

    @classmethod
    def of_few(cls, changes: pa.Table, columns: Sequence[str]) -> _Bounds | None:
        """The same of an Arrow table."""
        if not changes.num_rows:
            return None
        if any(changes[name].null_count for name in columns):
            return cls("", "<=>")
        values = changes[columns[0]].unique().to_pylist()
        if not isinstance(values[0], int | Decimal | str):
            return cls("", "=")
        if len(values) <= _FEW_KEYS:
            return cls._one_of(columns[0], values)
        return cls._between(columns[0], min(values), max(values))

    @classmethod
    def _one_of(cls, key: str, values: Sequence[Any]) -> _Bounds:
        return cls(f" AND t.{quoted(key)} IN ({', '.join(map(_literal, values))})", "=")

    @classmethod
    def _between(cls, key: str, least: Any, greatest: Any) -> _Bounds:
        limits = f"{_literal(least)} AND {_literal(greatest)}"
        return cls(f" AND t.{quoted(key)} BETWEEN {limits}", "=")


def _known(
    told: Mapping[str, Any], partition: Sequence[str], fields: Sequence[Mapping[str, Any]]
) -> pc.Expression:
    """What is true of all rows of a file, which Iceberg tells in JSON."""
    found = pc.scalar(True)
    for name, value in zip(partition, told["partition"], strict=True):
        column = pc.field(name)
        found &= column.is_null() if value is None else column == value
    columns = {each["id"]: each for each in fields}
    nulls = dict(zip(*told["null-value-counts"].values(), strict=True))
    lower, upper = (
        dict(zip(*told[bounds].values(), strict=True))
        for bounds in ("lower-bounds", "upper-bounds")
    )
    for number in lower.keys() & upper.keys():
        kind, column = columns[number]["type"], pc.field(columns[number]["name"])
        if nulls.get(number) != 0 or kind not in _BOUNDS:
            continue
        least, most = (_BOUNDS[kind](bytes.fromhex(of[number])) for of in (lower, upper))
        # Arrow concludes less from two limits that are the same.
        found &= column == least if least == most else (column >= least) & (column <= most)
    return found


def _number(value: bytes) -> int:
    return int.from_bytes(value, "little", signed=True)


_BOUNDS: dict[str, Callable[[bytes], int | str]] = {
    "int": _number,
    "long": _number,
    "string": bytes.decode,
}
"""How Iceberg serializes a bound, by the type of the column."""


def _data_file(file: Row, writer: LogWriter, spec: int) -> dict[str, Any]:
    """A file that was written (a row of WRITTEN_TYPE), as Iceberg tells of files in JSON."""
    schema = writer.schema
    partition = [
        value == "true" if value is not None and schema.field(name).type == pa.bool_() else value
        for name, value in zip(writer.partition_by, file["partition"], strict=True)
    ]
    bounds = json.loads(file["bounds"])
    numbers = [field_id(schema.field(name)) for name in bounds]
    nulls, least, greatest = zip(*bounds.values(), strict=True) if bounds else ((), (), ())
    kinds = [schema.field(name).type for name in bounds]
    lower, upper = (
        [_bound(*each).hex().upper() for each in zip(kinds, values, strict=True)]
        for values in (least, greatest)
    )
    return {
        "spec-id": spec,
        "content": "data",
        "file-path": file["path"],
        "file-format": "parquet",
        "partition": partition,
        "file-size-in-bytes": file["bytes"],
        "record-count": file["rows"],
        "value-counts": {"keys": numbers, "values": [file["rows"]] * len(numbers)},
        "null-value-counts": {"keys": numbers, "values": nulls},
        "lower-bounds": {"keys": numbers, "values": lower},
        "upper-bounds": {"keys": numbers, "values": upper},
    }


def _bound(kind: pa.DataType, value: int | str) -> bytes:
    """The other way."""
    if isinstance(value, str):
        return value.encode()
    return value.to_bytes(kind.bit_width // 8, "little", signed=True)


def _nulls(columns: Sequence[str]) -> Column:
    return F.array(*(F.col(quoted(name)).isNull() for name in columns))


def _older_than(instant: datetime) -> str:
    """An argument of a procedure."""
    return f", older_than => TIMESTAMP '{instant:%Y-%m-%d %H:%M:%S.%f}+00:00'"


def _literal(value: Any) -> str:
    """A number or text in SQL; MERGE and CALL take no parameters."""
    return f"CAST(X'{value.encode().hex()}' AS STRING)" if isinstance(value, str) else str(value)


def _merge_statement(
    identifier: str, view: str, names: Sequence[str], key: Sequence[str], bounds: _Bounds
) -> str:
    columns = [quoted(name) for name in names]
    matched = " AND ".join(f"t.{quoted(k)} {bounds.equal} s.{quoted(k)}" for k in key)
    assigned = ", ".join(f"{column} = s.{column}" for column in columns)
    values = ", ".join(f"s.{column}" for column in columns)
    op = f"s.{quoted(OP)}"
    return (
        f"MERGE INTO {identifier} AS t USING {view} AS s ON {matched}{bounds.condition} "
        f"WHEN MATCHED AND {op} = 'd' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {assigned} "
        f"WHEN NOT MATCHED AND {op} <> 'd' THEN INSERT ({', '.join(columns)}) VALUES ({values})"
    )


def _position(table: Any) -> Position | None:
    told = [table.properties().get(POSITION)]
    snapshot = table.currentSnapshot()
    if snapshot is not None:
        told.append(snapshot.summary().get(POSITION))
    return max((Position.parse(text) for text in told if text), default=None)


def _told(schema: TableSchema, position: Position) -> dict[str, str]:
    return {SCHEMA: schema.to_json(), POSITION: str(position)}


def _needs_rewrite(column: ColumnPlan) -> bool:
    if column.before is None:
        is_nested = spark_type(column.after).typeName() == "array"
        return is_nested and column.fill is not None
    return column.is_rewritten(_is_promotion)


def _is_promotion(old: DataType, new: DataType) -> bool:
    """Whether Iceberg reads values of the old type as the new one."""
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return old.scale == new.scale and old.precision < new.precision
    if isinstance(old, IntegerType):
        return isinstance(new, LongType)
    return isinstance(old, FloatType) and isinstance(new, DoubleType)
