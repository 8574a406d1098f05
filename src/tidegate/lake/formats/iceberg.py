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
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, UnsupportedOperationException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
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
    DROPPED_DATABASE,
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
    not_ours,
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
from tidegate.lake.storage.log_files import (
    LogFile,
    LogWriter,
    WrittenFile,
    field_id,
    with_field_ids,
    within,
)
from tidegate.lake.storage.names import new_folder
from tidegate.lake.storage.predicates import Condition
from tidegate.model import TableSchema
from tidegate.model.sql import parts_of, quoted
from tidegate.spark.types import from_text_array, spark_schema, spark_type
from tidegate.sql.ddl import TableChange

CATALOG_FILE = "catalog.db"
_CHANGELOG = "changelog"

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
    # A commit that meets another is tried again by `LogTable`, which looks first whose the lake
    # is; Iceberg's own retries would not.
    "commit.retry.num-retries": "0",
    "write.distribution-mode": "none",
    # Old rows may be removed while new ones come.
    "write.delete.isolation-level": "snapshot",
    # Files are read as they are, without delete files beside them.
    "write.delete.mode": "copy-on-write",
    "write.spark.fanout.enabled": "true",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.metadata.metrics.default": "none",
}
_ORDERED_TYPES = (IntegerType, LongType)
"""What a log keeps the bounds of, file by file: offsets and timestamps, not texts and rows."""
_MOST_VERSIONS = 1_000
"""Of a log, between two looks at what was added; above that the whole table is planned anew."""
_METRICS = "write.metadata.metrics.column."
_CONFLICT = "org.apache.iceberg.exceptions.CommitFailedException"
_CONFLICTS = {_CONFLICT, "org.apache.iceberg.exceptions.ValidationException"}
"""What Iceberg throws where somebody else has committed since a table was read."""
_VENDING = "org.apache.iceberg.io.SupportsStorageCredentials"
_REST_TIMEOUTS = {
    "rest.client.connection-timeout-ms": "10000",
    "rest.client.socket-timeout-ms": "60000",
}
"""How long a REST catalog is waited for, unless the user says otherwise: Iceberg waits for ever."""
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


def log_properties(folder: Path, database: str, name: str) -> dict[str, str]:
    """The properties of a log in the embedded catalog of a folder, read without a JVM."""
    path = folder / CATALOG_FILE
    if recorded(folder) is None:
        return {}
    with closing(sqlite3.connect(path)) as connection:
        row = connection.execute(
            "SELECT metadata_location FROM iceberg_tables "
            "WHERE table_namespace = ? AND table_name = ?",
            (database, name),
        ).fetchone()
    if row is None:
        return {}
    metadata = json.loads(Path(row[0].removeprefix("file:")).read_text(encoding="utf-8"))
    properties: dict[str, str] = metadata["properties"]
    return properties


def has_lake(spark: SparkSession, place: LakePlace) -> bool:
    """Whether the catalog of a place has a changelog."""
    if place.catalog is None:
        return recorded(local_folder(place.folder)) is not None
    log = quoted(place.catalog, place.own_database, _CHANGELOG)
    return IcebergFormat(spark, place).exists(log)


def _uncached(spark: SparkSession, place: LakePlace) -> SparkSession:
    """A session whose catalog shows every table as it is now, and does not wait for ever.

    Spark keeps the tables of a catalog in a cache unless it is told otherwise, and would not see
    what is committed by Iceberg's own API, or elsewhere. The caller's session stays as it is.
    """
    if place.catalog is None:
        return spark
    session = spark.newSession()
    settings = spark.conf.getAll
    for name, value in settings.items():
        if name.startswith("spark.sql.catalog.") or spark.conf.isModifiable(name):
            session.conf.set(name, value)
    catalog = f"spark.sql.catalog.{place.catalog}"
    for name, value in _REST_TIMEOUTS.items():
        session.conf.set(f"{catalog}.{name}", settings.get(f"{catalog}.{name}", value))
    session.conf.set(f"{catalog}.cache-enabled", "false")
    return session


class IcebergFormat(TableFormat):
    """Iceberg tables of one lake."""

    name = "iceberg"
    reserved = frozenset(
        ["_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id"]
        + ["_last_updated_sequence_number"]
    )

    def __init__(self, spark: SparkSession, place: LakePlace) -> None:
        self._place = place
        self.guard = Guard()
        self._reached = {}
        self._making_namespaces = threading.Lock()
        self._catalog_name = place.catalog or place.name
        self.spark = spark = _uncached(spark, place)
        if place.catalog is None:
            make_folder(local_folder(place.folder))
            for name, value in session_settings(place).items():
                if name != "spark.sql.extensions":
                    spark.conf.set(name, value)
        jvm: Any = spark.sparkContext._jvm
        self._jvm = jvm
        session: Any = spark._jsparkSession
        if place.catalog is None:
            self._write_no_checksums(session)
        # A catalog is opened with the settings of the session that is active in the thread.
        sessions: Any = self._jvm.org.apache.spark.sql.classic.SparkSession
        active = sessions.getActiveSession()
        sessions.setActiveSession(session)
        try:
            manager = session.sessionState().catalogManager()
            self._catalog = manager.catalog(self._catalog_name).icebergCatalog()
        finally:
            if active.isDefined():
                sessions.setActiveSession(active.get())

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

    def exists(self, identifier: str) -> bool:
        """Whether there is such a table."""
        return bool(self._catalog.tableExists(self._java_name(identifier)))

    def _ensure_namespace(self, identifier: str) -> None:
        _, *namespace, _ = parts_of(identifier)
        java_namespace = self._namespace(*namespace)
        with self._making_namespaces:
            if not self._catalog.namespaceExists(java_namespace):
                name = quoted(self._catalog_name, *namespace)
                self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name}")

    # --- create, drop, rename ---------------------------------------------------------------------

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
        told = _told(schema, position) | {ORIGIN: origin_of(database, table, position)}
        told[LAKE] = self._place.own_database
        for key, value in (_PROPERTIES | told).items():
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

    def _java_type(self, kind: DataType) -> Any:
        java_kind = self._jvm.org.apache.spark.sql.types.DataType.fromJson(kind.json())
        return self._jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(java_kind)

    def _add_snapshot(self, table: Any, position: Position) -> None:
        """An empty snapshot, so that the schema of now is that of a version, with its position."""
        table.newAppend().set(POSITION, str(position)).commit()

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
        if schema == before and _position(loaded) == position:
            return new
        self._check_passed(new, _position(loaded), position)
        transaction = _begin(self._jvm, loaded)
        self._set_properties(transaction, _told(schema, position))
        self._add_snapshot(transaction, position)
        self._commit(transaction)
        self._reached[new] = position
        return new

    def _before(self, identifier: str, position: Position) -> Any:
        """A table that a step is to take to a position; TablePassed where it is there already."""
        table = self._load(identifier)
        self._check_passed(identifier, _position(table), position)
        return table

    def _commit(self, transaction: Any) -> None:
        self.guard.check()
        _commit_exactly(transaction)

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
            self._before(identifier, position)
            self.guard.check()
            self._rewrite(identifier, [column.value(zone) for column in columns], told, position)
            self._reached[identifier] = position
            return
        transaction = _begin(self._jvm, self._before(identifier, position))
        self._change_columns(transaction, before, columns)
        self._add_columns(transaction, columns, zone)
        self._set_properties(transaction, told)
        self._add_snapshot(transaction, position)
        self._commit(transaction)
        self._reached[identifier] = position

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
        table = self._before(identifier, position)
        if condition is None:
            everything = self._jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()
            transaction = _begin(self._jvm, table)
            removal = transaction.newDelete().deleteFromRowFilter(everything)
            removal.set(POSITION, str(position)).commit()
            self._commit(transaction)
            self._reached[identifier] = position
            return
        # DELETE removes whole files without looking for what was committed meanwhile.
        statement = f"MERGE INTO {identifier} USING (SELECT 1) ON {condition} "
        with self._committing(self.spark, position) as session:
            self._execute(session, f"{statement} WHEN MATCHED THEN DELETE", table, identifier)
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
        table = self._before(identifier, position)
        if self._is_empty(table):
            put = changes.where(F.col(quoted(OP)) == "u").select(*(quoted(name) for name in names))
            self._append(identifier, put, position, table)
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
                    self._execute(session, statement, table, identifier)
        finally:
            changes.sparkSession.catalog.dropTempView(view)
            if own:
                changes.unpersist()
        self._ensure(identifier, position)

    def append(self, identifier: str, rows: DataFrame, position: Position) -> None:
        self._append(identifier, rows, position, self._before(identifier, position))

    def _append(self, identifier: str, rows: DataFrame, position: Position, table: Any) -> None:
        """Adds rows to exactly the state of the table that was loaded.

        Iceberg looks for rows that others have added when it overwrites some, not when it appends;
        so this overwrites none.
        """
        self.guard.check()
        writer = rows.writeTo(identifier).option(f"snapshot-property.{POSITION}", str(position))
        writer = writer.option("isolation-level", "serializable")
        writer = writer.option("validate-from-snapshot-id", _snapshot_id(table))
        writer.overwrite(F.lit(False))
        self._ensure(identifier, position)

    def replace_rows(self, identifier: str, changes: DataFrame, position: Position) -> None:
        names = [quoted(name) for name in changes.columns if name != OP]
        same = " AND ".join(f"t.{name} <=> s.{name}" for name in names)
        values = ", ".join(f"s.{name}" for name in names)
        op = f"s.{quoted(OP)}"
        view = f"tidegate_changes_{uuid.uuid4().hex}"
        table = self._before(identifier, position)
        changes = changes.persist()
        changes.createOrReplaceTempView(view)
        try:
            with self._committing(changes.sparkSession, position) as session:
                statement = (
                    f"MERGE INTO {identifier} AS t USING {view} AS s ON {op} = 'd' AND {same} "
                    "WHEN MATCHED THEN DELETE "
                    f"WHEN NOT MATCHED AND {op} <> 'd' "
                    f"THEN INSERT ({', '.join(names)}) VALUES ({values})"
                )
                self._execute(session, statement, table, identifier)
        finally:
            changes.sparkSession.catalog.dropTempView(view)
            changes.unpersist()
        self._ensure(identifier, position)

    def _execute(self, session: SparkSession, statement: str, table: Any, identifier: str) -> None:
        """Runs a MERGE on exactly the state of the table that was loaded.

        Its commit fails where others have committed to the same rows since it was planned. A pause
        may come before that, so the table is looked at once more between the two.
        """
        java_session: Any = session._jsparkSession
        sessions: Any = self._jvm.org.apache.spark.sql.classic.SparkSession
        sessions.setActiveSession(java_session)
        try:
            spark, state = self._jvm.org.apache.spark.sql, java_session.sessionState()
            mode = spark.execution.CommandExecutionMode.SKIP()
            execution = state.executePlan(state.sqlParser().parsePlan(statement), mode)
            execution.executedPlan()
            now = self._load(identifier)
            if _snapshot_id(now) != _snapshot_id(table):
                raise CommitConflict(f"{identifier} was changed while a step on it was planned")
            self.guard.check()
            rows = spark.catalyst.encoders.RowEncoder.encoderFor(execution.analyzed().schema())
            spark.classic.Dataset(execution, rows).collect()
        finally:
            sessions.setActiveSession(self.spark._jsparkSession)

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
        self._stamp(self._before(identifier, position), position)
        self._reached[identifier] = position

    def _stamp(self, table: Any, position: Position) -> None:
        transaction = _begin(self._jvm, table)
        self._add_snapshot(transaction, position)
        self._commit(transaction)

    def _ensure(self, identifier: str, position: Position) -> None:
        """What changed no row may have made no commit."""
        table = self._load(identifier)
        reached = _position(table)
        if reached is None or reached < position:
            self._stamp(table, position)
        elif reached > position:
            raise TablePassed(identifier, reached)
        self._reached[identifier] = position

    # --- looking ----------------------------------------------------------------------------------

    def position(self, identifier: str) -> Position | None:
        return _position(self._load(identifier)) if self.exists(identifier) else None

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

    def lakes(self) -> dict[str, Mapping[str, str]]:
        found: dict[str, Mapping[str, str]] = {}
        for namespace in self._catalog.listNamespaces():
            name = str(namespace.level(0))
            log = self._java_name(quoted(self._catalog_name, name, _CHANGELOG))
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
            numbers = [each.name for each in columns if isinstance(each.dataType, _ORDERED_TYPES)]
            metrics = {f"{_METRICS}{each}": "full" for each in (*numbers, *bounded)}
            for key, value in (_LOG_PROPERTIES | metrics).items():
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

    # --- upkeep -----------------------------------------------------------------------------------

    def is_scattered(self, identifier: str) -> bool:
        summary = self._load(identifier).currentSnapshot().summary()
        files, size = (int(summary.get(name) or 0) for name in ("total-data-files", _SIZE))
        return files - size // _TARGET_BYTES > _MANY_FILES

    def join_files(self, identifier: str) -> None:
        self._rewrite_files(identifier, {})

    def is_conflict(self, error: PySparkException | Py4JJavaError) -> bool:
        return not _CONFLICTS.isdisjoint(java_classes(error))

    def _forget_versions(self, identifier: str, *, keep_seconds: float) -> None:
        oldest = int((time.time() - keep_seconds) * 1000)
        self._load(identifier).expireSnapshots().expireOlderThan(oldest).commit()

    def _delete_from_log(self, identifier: str, condition: str) -> None:
        self.spark.sql(f"DELETE FROM {identifier} WHERE {condition}")

    def _maintain_log(self, identifier: str, *, keep_seconds: float) -> Mapping[str, int]:
        return self.maintain(identifier, keep_seconds=keep_seconds)

    def _rewrite_files(self, identifier: str, options: Mapping[str, str]) -> Row:
        table = self._load(identifier)
        position = _position(table)
        if position is not None:
            # The snapshot of a rewrite has none in its summary. No snapshot is added for it, which
            # would keep the rewritten files: a property of an earlier position does no harm.
            transaction = _begin(self._jvm, table)
            self._set_properties(transaction, {POSITION: str(position)})
            self._commit(transaction)
        self.guard.check()
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


def _begin(jvm: Any, table: Any) -> Any:
    """A transaction on exactly the state of a table that was loaded.

    `newTransaction` would ask the catalog again, and take over what others have committed.
    """
    operations = table.operations()
    begin = jvm.org.apache.iceberg.Transactions.replaceTableTransaction
    return begin(table.name(), operations, operations.current())


def _commit_exactly(transaction: Any) -> None:
    """Commits to exactly the state that a transaction began with.

    `commitTransaction` reloads the table, and repeats the changes on what others have committed.
    A REST catalog compares nothing but the current snapshot, so every such transaction adds one.
    """
    start, changed = transaction.startMetadata(), transaction.currentMetadata()
    transaction.underlyingOps().commit(start, changed)


def _snapshot_id(table: Any) -> int:
    return int(table.currentSnapshot().snapshotId())


class IcebergLog(LogTable):
    """A log in an Iceberg table of any catalog."""

    def __init__(
        self,
        jvm: Any,
        load: Callable[[], Any],
        identifier: str,
        columns: pa.Schema,
        sorted_by: tuple[str, ...],
        hadoop: Callable[[], Mapping[str, str]],
        guard: Callable[[], Guard],
    ) -> None:
        """`load` gives the table as the catalog has it now, `hadoop` Hadoop's settings for it."""
        self.jvm = jvm
        self._load = load
        self.identifier = identifier
        self.sorted_by = sorted_by
        self.hadoop = hadoop
        self.guard = guard
        table = load()
        self._fields = json.loads(jvm.org.apache.iceberg.SchemaParser.toJson(table.schema()))
        self.schema = with_field_ids(columns, self._fields)
        self.partition_by = tuple(each.name() for each in table.spec().fields())
        kept = table.properties()
        self.bounded = tuple(
            each.name for each in self.schema if kept.containsKey(_METRICS + each.name)
        )

    def load(self) -> LoadedLog:
        return _LoadedIcebergLog(self, self._load())

    def files(self, version: int, condition: Condition) -> list[LogFile]:
        expressions = self.jvm.org.apache.iceberg.expressions.Expressions
        table = self._load()
        scan = table.newScan().useSnapshot(version).includeColumnStats()
        scan = scan.filter(condition.iceberg(expressions))
        with closing(scan.planFiles()) as planned:
            files, tasks = [], planned.iterator()
            while tasks.hasNext():
                files.append(tasks.next().file())
        return self._log_files(table, files)

    def changes(self, since: int, version: int) -> list[LogChange]:
        table = self._load()
        changes: list[LogChange] = []
        at: int | None = version
        for _ in range(_MOST_VERSIONS):
            if at == since:
                return changes[::-1]
            # The first version has none before it.
            snapshot = None if at is None else table.snapshot(at)
            if snapshot is None:
                break
            added = self._log_files(table, list(snapshot.addedDataFiles(table.io())))
            removed: frozenset[str] = frozenset()
            if snapshot.operation() != "append":
                gone = snapshot.removedDataFiles(table.io())
                removed = frozenset(str(file.location()) for file in gone)
            changes.append(LogChange(added, removed))
            at = snapshot.parentId()
        raise LogRewritten

    def _log_files(self, table: Any, files: Sequence[Any]) -> list[LogFile]:
        spec = table.spec()
        to_json = self.jvm.org.apache.iceberg.ContentFileParser.toJson
        log_files = []
        for file in files:
            described = json.loads(to_json(file, spec))
            known = of_partition(self.partition_by, described["partition"])
            known &= within(_bounds(described, self._fields["fields"]))
            size, rows = described["file-size-in-bytes"], described["record-count"]
            log_files.append(LogFile(described["file-path"], size, rows, known))
        return log_files


class _LoadedIcebergLog(LoadedLog):
    """An Iceberg table of a log, as the catalog had it."""

    def __init__(self, log: IcebergLog, table: Any) -> None:
        self._log = log
        self._table = table
        self.version = _snapshot_id(table)
        self.properties = table.operations().current().properties()

    def store(self) -> FileStore:
        """What opens the table's files: its own settings, with credentials vended for it."""
        if not is_remote(self._table.location()):
            return FileStore()
        files = self._table.io()
        properties = hadoop_properties(self._log.hadoop()) | dict(files.properties())
        if self._log.jvm.py4j.reflection.TypeUtil.isInstanceOf(_VENDING, files):
            for credential in files.credentials():
                properties |= dict(credential.config())
        return FileStore.of(properties)

    def writer(self) -> LogWriter:
        log = self._log
        return LogWriter(
            f"{self._table.location()}/data",
            log.schema,
            log.partition_by,
            log.bounded,
            log.sorted_by,
            self.store(),
        )

    def commit(self, files: Sequence[WrittenFile], properties: Mapping[str, str]) -> None:
        table, log = self._table, self._log
        transaction = _begin(log.jvm, table)
        spec, iceberg = table.spec(), log.jvm.org.apache.iceberg
        from_json = iceberg.ContentFileParser.fromJson
        read = iceberg.util.JsonUtil.mapper().readTree
        append = transaction.newAppend()
        for file in files:
            described = json.dumps(_data_file(file, log.schema, log.partition_by, spec.specId()))
            append = append.appendFile(from_json(read(described), spec))
        append.commit()
        if properties:
            update = transaction.updateProperties()
            for key, value in properties.items():
                update = update.set(key, value)
            update.commit()
        try:
            _commit_exactly(transaction)
        except Py4JJavaError as error:
            if _CONFLICT not in java_classes(error):
                raise
            _remove_uncommitted(transaction)
            raise CommitConflict(log.identifier) from error


def _remove_uncommitted(transaction: Any) -> None:
    """Removes the manifests of a snapshot that was not committed; the data files stay."""
    snapshot = transaction.currentMetadata().currentSnapshot()
    files = transaction.underlyingOps().io()
    for manifest in snapshot.allManifests(files):
        if manifest.snapshotId() == snapshot.snapshotId():
            files.deleteFile(manifest.path())
    files.deleteFile(snapshot.manifestListLocation())


def _bounds(
    described: Mapping[str, Any], fields: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[Any, Any, Any]]:
    """The nulls and bounds of the columns of a file, which Iceberg describes in JSON."""
    columns = {each["id"]: each for each in fields}
    nulls = dict(zip(*described["null-value-counts"].values(), strict=True))
    lower, upper = (
        dict(zip(*described[bounds].values(), strict=True))
        for bounds in ("lower-bounds", "upper-bounds")
    )
    bounds = {}
    for number in lower.keys() & upper.keys():
        kind, name = columns[number]["type"], columns[number]["name"]
        if kind in _BOUNDS:
            least, greatest = (_BOUNDS[kind](bytes.fromhex(of[number])) for of in (lower, upper))
            bounds[name] = nulls.get(number), least, greatest
    return bounds


def _number(value: bytes) -> int:
    return int.from_bytes(value, "little", signed=True)


_BOUNDS: dict[str, Callable[[bytes], int | str]] = {
    "int": _number,
    "long": _number,
    "string": bytes.decode,
}
"""How Iceberg serializes a bound, by the type of the column."""


def _data_file(
    file: WrittenFile, schema: pa.Schema, partition_by: Sequence[str], spec: int
) -> dict[str, Any]:
    """A file that was written, as Iceberg describes files in JSON."""
    partition = [
        value == "true" if value is not None and schema.field(name).type == pa.bool_() else value
        for name, value in zip(partition_by, file.partition, strict=True)
    ]
    bounds = file.bounds
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
        "file-path": file.path,
        "file-format": "parquet",
        "partition": partition,
        "file-size-in-bytes": file.bytes,
        "record-count": file.rows,
        "value-counts": {"keys": numbers, "values": [file.rows] * len(numbers)},
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
