"""An Iceberg catalog of any kind, through Spark's: tables by name, and their states."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType

from tidegate.lake.formats.base import (
    POSITION,
    SCHEMA,
    LakePlace,
    Position,
    TableFormat,
    TablePassed,
    local_folder,
)
from tidegate.lake.formats.commits import Guard
from tidegate.lake.formats.iceberg.commits import begin, commit_exactly, position_of
from tidegate.lake.formats.iceberg.embedded import session_settings
from tidegate.lake.storage.file_store import make_folder
from tidegate.model import TableSchema
from tidegate.model.sql import parts_of, quoted

_REST_TIMEOUTS = {
    "rest.client.connection-timeout-ms": "10000",
    "rest.client.socket-timeout-ms": "60000",
}
"""How long a REST catalog is waited for, unless the user says otherwise: Iceberg waits for ever."""


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


class IcebergCatalog(TableFormat):
    """The catalog of one lake: what the parts of the format have in common.

    It is not complete: `IcebergFormat` puts the parts together.
    """

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

    def _namespaces(self) -> list[Any]:
        """The catalog's databases; none where a Hadoop catalog's warehouse does not exist yet."""
        try:
            return list(self._catalog.listNamespaces())
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() != "NoSuchNamespaceException":
                raise
            return []

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

    def _java_type(self, kind: DataType) -> Any:
        java_kind = self._jvm.org.apache.spark.sql.types.DataType.fromJson(kind.json())
        return self._jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(java_kind)

    def _add_snapshot(self, table: Any, position: Position) -> None:
        """An empty snapshot, so that the schema of now is that of a version, with its position."""
        table.newAppend().set(POSITION, str(position)).commit()

    def _before(self, identifier: str, position: Position) -> Any:
        """A table that a step is to take to a position; TablePassed where it is there already."""
        table = self._load(identifier)
        self._check_passed(identifier, position_of(table), position)
        return table

    def _commit(self, transaction: Any) -> None:
        self.guard.check()
        commit_exactly(transaction)

    def _set_properties(self, transaction: Any, properties: Mapping[str, str]) -> None:
        update = transaction.updateProperties()
        for key, value in properties.items():
            update = update.set(key, value)
        update.commit()

    def stamp(self, identifier: str, position: Position) -> None:
        self._stamp(self._before(identifier, position), position)
        self._reached[identifier] = position

    def _stamp(self, table: Any, position: Position) -> None:
        transaction = begin(self._jvm, table)
        self._add_snapshot(transaction, position)
        self._commit(transaction)

    def _ensure(self, identifier: str, position: Position) -> None:
        """What changed no row may have made no commit."""
        table = self._load(identifier)
        reached = position_of(table)
        if reached is None or reached < position:
            self._stamp(table, position)
        elif reached > position:
            raise TablePassed(identifier, reached)
        self._reached[identifier] = position

    # --- looking ----------------------------------------------------------------------------------

    def position(self, identifier: str) -> Position | None:
        return position_of(self._load(identifier)) if self.exists(identifier) else None

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


def sql_literal(value: Any) -> str:
    """A number or string in SQL; MERGE and CALL take no parameters."""
    return f"CAST(X'{value.encode().hex()}' AS STRING)" if isinstance(value, str) else str(value)
