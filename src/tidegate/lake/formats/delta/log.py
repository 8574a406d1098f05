"""A log of a lake in a Delta table, through delta-rs: no job, no JVM."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow.fs import FileSelector

from tidegate.lake.formats.commits import CommitConflict, Guard
from tidegate.lake.formats.log_table import (
    FilesReplaced,
    LoadedLog,
    LogChange,
    LogRewritten,
    LogTable,
    of_partition,
)
from tidegate.lake.storage.file_store import FileStore, is_remote
from tidegate.lake.storage.log_files import LogFile, LogWriter, WrittenFile, within
from tidegate.lake.storage.predicates import Condition

APPLICATION = "tidegate"
"""Whose transactions the commits to a table carry: of two that begin alike, Delta lets one pass."""
_PROPERTIES_OF_LOG = "_tidegate"
"""The folder in a log's own that has its properties; Delta passes over such names."""
_PROPERTIES_AGE = timedelta(minutes=10)
"""How old a file of a log's properties must be to go."""
_ORPHAN_HOURS = 25
"""How old files of no version must be to go."""
_MOST_VERSIONS = 100
"""Of a log, between two looks at what was added; above that all its files are looked at again."""


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
            tuple(values),
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

    def commit(
        self,
        files: Sequence[WrittenFile],
        properties: Mapping[str, str],
        replaced: Collection[str] = (),
    ) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        actions = self._actions(files, replaced)
        number = self._new_number()
        self._write_properties(number, self.properties | properties)
        committing = CommitProperties(
            max_commit_retries=0, app_transactions=[Transaction(APPLICATION, number)]
        )
        try:
            # Delta fails it where a version since this one has a transaction of the same
            # application, which every commit to a log has.
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                list(self._log.partition_by),
                commit_properties=committing,
            )
        except CommitFailedError as error:
            raise CommitConflict(self._log.identifier) from error

    def _actions(self, files: Sequence[WrittenFile], replaced: Collection[str]) -> list[Any]:
        """The files that a commit adds and removes."""
        if not replaced:
            return [self._added(file, True) for file in files]
        every = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        gone = [each for each in every if f"{self._log.folder}/{each['path']}" in replaced]
        if len(gone) < len(replaced):
            raise FilesReplaced(self._log.identifier)
        # Where it is false, streaming readers know that no row has changed.
        is_change = sum(each["num_records"] for each in gone) != sum(file.rows for file in files)
        removed = [self._removed(each, is_change) for each in gone]
        return [*(self._added(file, is_change) for file in files), *removed]

    def _removed(self, action: Mapping[str, Any], is_change: bool) -> Any:
        from deltalake.transaction import RemoveAction

        values = {name: action[f"partition.{name}"] for name in self._log.partition_by}
        partition = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in values.items()
        }
        now = int(time.time() * 1000)
        return RemoveAction(action["path"], is_change, now, action["size_bytes"], partition)

    def _added(self, file: WrittenFile, is_change: bool) -> Any:
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
            is_change,
            json.dumps(stats, ensure_ascii=False),
        )

    def _new_number(self) -> int:
        """Above all before it, and nobody else's, so that no file of properties is overwritten."""
        before = self._table.transaction_version(APPLICATION) or 0
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
    number = table.transaction_version(APPLICATION)
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
    current = _delta_table(folder, store).transaction_version(APPLICATION)
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


def remove_replaced(store: FileStore, folder: str, keep_seconds: float) -> int:
    """Removes files that were replaced in a log that long ago, in whole hours; how many."""
    hours = math.ceil(keep_seconds / 3600)
    return _vacuumed(_delta_table(folder, store), hours, orphans=False)


def remove_orphans(store: FileStore, folder: str) -> int:
    """Removes files that no commit names, if they are old: a round may be under way; how many."""
    return _vacuumed(_delta_table(folder, store), _ORPHAN_HOURS, orphans=True)


def _vacuumed(table: Any, hours: int, *, orphans: bool) -> int:
    removed = table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=orphans)
    if removed:  # it commits even where there is nothing to remove
        table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=orphans)
    return len(removed)


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
