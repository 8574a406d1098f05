"""A log of a lake in an Iceberg table of any catalog, committed through Iceberg's Java API."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql.types import IntegerType, LongType

from tidegate.lake.formats.commits import CommitConflict, Guard, java_classes
from tidegate.lake.formats.iceberg.commits import (
    CONFLICT,
    begin,
    commit_exactly,
    remove_uncommitted,
    snapshot_id,
)
from tidegate.lake.formats.log_table import (
    FilesReplaced,
    LoadedLog,
    LogChange,
    LogRewritten,
    LogTable,
    of_partition,
)
from tidegate.lake.storage.file_store import FileStore, hadoop_properties, is_remote
from tidegate.lake.storage.log_files import (
    LogFile,
    LogWriter,
    WrittenFile,
    field_id,
    with_field_ids,
    within,
)
from tidegate.lake.storage.predicates import Condition

LOG_PROPERTIES = {
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
ORDERED_TYPES = (IntegerType, LongType)
"""What a log keeps the bounds of, file by file: offsets and timestamps, not texts and rows."""
_MOST_VERSIONS = 1_000
"""Of a log, between two looks at what was added; above that the whole table is planned anew."""
METRICS = "write.metadata.metrics.column."
_VENDING = "org.apache.iceberg.io.SupportsStorageCredentials"


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
            each.name for each in self.schema if kept.containsKey(METRICS + each.name)
        )

    def load(self) -> LoadedLog:
        return _LoadedIcebergLog(self, self._load())

    def files(self, version: int, condition: Condition) -> list[LogFile]:
        expressions = self.jvm.org.apache.iceberg.expressions.Expressions
        table = self._load()
        if table.snapshot(version) is None:
            raise LogRewritten(f"{self.identifier} no longer has its version {version}")
        scan = table.newScan().useSnapshot(version).includeColumnStats()
        scan = scan.filter(condition.iceberg(expressions))
        return self._log_files(table, _planned(scan))

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
            partition = described["partition"]
            known = of_partition(self.partition_by, partition)
            known &= within(_bounds(described, self._fields["fields"]))
            size, rows = described["file-size-in-bytes"], described["record-count"]
            log_files.append(LogFile(described["file-path"], size, rows, known, tuple(partition)))
        return log_files


class _LoadedIcebergLog(LoadedLog):
    """An Iceberg table of a log, as the catalog had it."""

    def __init__(self, log: IcebergLog, table: Any) -> None:
        self._log = log
        self._table = table
        self.version = snapshot_id(table)
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

    def commit(
        self,
        files: Sequence[WrittenFile],
        properties: Mapping[str, str],
        replaced: Collection[str] = (),
    ) -> None:
        log = self._log
        transaction = begin(log.jvm, self._table)
        added = [self._java_file(file) for file in files]
        if replaced:
            self._replace(transaction, added, replaced)
        else:
            append = transaction.newAppend()
            for file in added:
                append = append.appendFile(file)
            append.commit()
        if properties:
            update = transaction.updateProperties()
            for key, value in properties.items():
                update = update.set(key, value)
            update.commit()
        try:
            commit_exactly(transaction)
        except Py4JJavaError as error:
            if CONFLICT not in java_classes(error):
                raise
            remove_uncommitted(transaction)
            raise CommitConflict(log.identifier) from error

    def _java_file(self, file: WrittenFile) -> Any:
        log, spec, iceberg = self._log, self._table.spec(), self._log.jvm.org.apache.iceberg
        described = json.dumps(_data_file(file, log.schema, log.partition_by, spec.specId()))
        node = iceberg.util.JsonUtil.mapper().readTree(described)
        return iceberg.ContentFileParser.fromJson(node, spec)

    def _replace(self, transaction: Any, added: Sequence[Any], replaced: Collection[str]) -> None:
        """Puts files in the place of others, in a transaction on this state of the table."""
        removed = [
            file for file in _planned(self._table.newScan()) if str(file.location()) in replaced
        ]
        if len(removed) < len(replaced):
            raise FilesReplaced(self._log.identifier)
        # A rewrite says to incremental readers that no row has changed.
        before, after = (sum(file.recordCount() for file in files) for files in (removed, added))
        change = transaction.newRewrite() if before == after else transaction.newOverwrite()
        for file in removed:
            change = change.deleteFile(file)
        for file in added:
            change = change.addFile(file)
        change.commit()


def _planned(scan: Any) -> list[Any]:
    """The data files of a scan, as Iceberg's own objects."""
    with closing(scan.planFiles()) as planned:
        files, tasks = [], planned.iterator()
        while tasks.hasNext():
            files.append(tasks.next().file())
    return files


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
