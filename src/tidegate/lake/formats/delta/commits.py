"""Commits to Delta tables: each carries the position that it reaches."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyarrow.fs import FileType
from pyspark.sql import DataFrame, SparkSession

from tidegate.lake.formats.base import (
    POSITION,
    SCHEMA,
    LakePlace,
    Position,
    TableFormat,
    TablePassed,
    local_folder,
)
from tidegate.lake.formats.commits import CommitConflict, Guard
from tidegate.lake.formats.delta.folders import Folders
from tidegate.lake.formats.delta.log import APPLICATION
from tidegate.lake.storage.file_store import is_remote, make_folder
from tidegate.model import TableSchema
from tidegate.model.sql import parts_of, quoted

_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_WRITE = "spark.databricks.delta.write"
MAX_COLUMN_ID = "delta.columnMapping.maxColumnId"
COLUMN_ID = "delta.columnMapping.id"
DELTA_SETTINGS = {
    # The state of a table of this kind is small: 50 tasks, as is usual, only take time.
    "spark.databricks.delta.snapshotPartitions": "2",
    # What upkeep has left can be read, also where it is older than a week.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
}


class DeltaCommits(TableFormat):
    """The tables in a lake's folders: what the parts of the format have in common.

    It is not complete: `DeltaFormat` puts the parts together.
    """

    def __init__(self, spark: SparkSession, place: LakePlace) -> None:
        self.spark = spark
        self.guard = Guard()
        self._reached = {}
        self._place = place
        self._folders = Folders(spark, place)
        if not is_remote(self._folders.root):
            make_folder(local_folder(self._folders.tables))
        for name, value in DELTA_SETTINGS.items():
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
                highest = max((field["metadata"][COLUMN_ID] for field in fields), default=0)
                before = configuration.get(MAX_COLUMN_ID)
                if before.isDefined():
                    highest = max(highest, int(before.get()))
                configuration = configuration.updated(MAX_COLUMN_ID, str(highest))
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
            transaction.txnVersion(APPLICATION)
            actions = self._jvm.java.util.ArrayList()
            number = number_of(snapshot) + 1
            actions.add(operations.actions.SetTransaction(APPLICATION, number, option.empty()))
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
            session.conf.set(f"{_WRITE}.txnAppId", APPLICATION)
            session.conf.set(f"{_WRITE}.txnVersion", str(number_of(snapshot) + 1))
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
        positions += self._last_position(identifier, int(snapshot.version()))
        return max((Position.parse(text) for text in positions), default=None)

    def _last_position(self, identifier: str, version: int) -> list[str]:
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


def number_of(snapshot: Any) -> int:
    """The number of the last commit to a table that one of ours made; 0 where none has one."""
    last = snapshot.transactions().get(APPLICATION)
    return int(last.get()) if last.isDefined() else 0
