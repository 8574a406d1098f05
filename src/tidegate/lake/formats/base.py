"""What the mirror asks of a table format; `iceberg` and `delta` answer, each in its own module.

A table's own history says how far it has come: every commit that the mirror makes carries the
`Position` it reaches, so that a step that is repeated after a crash is seen to be done.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidegate.lake.storage.file_store import FileStore
from tidegate.lake.storage.log_files import LogFile, LogWriter, WrittenFile, read_files
from tidegate.lake.storage.names import own
from tidegate.lake.storage.predicates import Condition
from tidegate.model import ConfigError, LakeError, TableSchema
from tidegate.sql.ddl import TableChange

OP = own("op")
"""The column of `merge`'s source that says what to do: `u` puts the row there, `d` removes it."""


OWN_DATABASE = "_tidegate"
"""Where a lake keeps its changelog and its record."""
DROPPED_DATABASE = "_tidegate_dropped"
"""Where a catalog has the tables that were dropped upstream, until nothing needs them any more."""
LOADING_DATABASE = "_tidegate_loading"
"""Where a catalog has the tables that a load has not finished yet."""


# What a mirrored table says of itself, in properties.
POSITION = "tidegate.position"
SCHEMA = "tidegate.schema"
ORIGIN = "tidegate.origin"
RETIRED = "tidegate.retired"
LAKE = "tidegate.lake"
"""Whose a table is: the name of the database in which its lake keeps its changelog."""

EPOCH = "tidegate.epoch"
"""What a log says of the lease under which alone it may be written to."""
ATTEMPTS = 20
"""How often a commit to a log is tried while others commit to it."""

_Result = TypeVar("_Result")


def local_folder(text: str) -> Path:
    """The folder of a lake on this machine, absolute; ConfigError for another kind of place."""
    scheme, colon, rest = text.partition("://")
    if colon and scheme != "file":
        raise ConfigError(
            "folder", f"the lake's own catalog is a file, and {text} is not: name a catalog"
        )
    return Path(rest if colon else text).absolute()


def not_ours(identifier: str, lake: str | None) -> LakeError:
    """What to say where a table of somebody else has the name that one of this lake is to have."""
    whose = "it is none of Tidegate's" if lake is None else f"it is of the lake that has {lake!r}"
    return LakeError(
        f"There is already a table {identifier}, and {whose}",
        "Give this lake names of its own with --prefix (a new lake), or rename the table with "
        "--rename",
    )


class Position(NamedTuple):
    """How far a table has come: every row up to `ts`, and the first `ddl` statements at `ts`.

    Rows at the commit_ts of a statement go before it, so positions are ordered as tuples are. A
    step that puts rows right at an instant that the tables had reached has its number in `mended`;
    where rows come in several parts to one position, `mended` counts the parts.
    """

    ts: int
    ddl: int = 0
    mended: int = 0

    def __str__(self) -> str:
        return f"{self.ts}.{self.ddl}" + (f".{self.mended}" if self.mended else "")

    @classmethod
    def parse(cls, text: str) -> Position:
        """Reads what `str` gives."""
        return cls(*map(int, text.split(".")))


class Located(NamedTuple):
    """A mirrored table as the lake itself shows it.

    `uid` stays the same whatever the table is called. `origin` tells the step that made it: the
    name it was made under and the position, as `origin_of` writes it. `retired` tells that it was
    dropped, and is here for its versions only.
    """

    identifier: str
    uid: str
    origin: str
    position: Position
    retired: bool = False


def origin_of(database: str, table: str, position: Position) -> str:
    """What a table remembers of its making."""
    return f"{database}.{table}@{position}"


class TableFormat(ABC):
    """Tables of one format in one lake.

    `identifier` is how SQL names a table there (quoted, with its catalog); `create` and `rename`
    give it. Every method that changes a table is atomic, or can be repeated after a crash in its
    middle, and leaves `position` at what it was given; a caller does not call it where `position`
    is already there. Methods may be called for different tables from several threads.
    """

    name: str
    spark: SparkSession
    guard: Guard
    """What allows commits: `lease` puts its own here."""
    _reached: dict[str, Position]
    """Where this process has taken tables to."""

    reserved: frozenset[str] = frozenset()
    """Names, in lower case, that the format has for columns of its own."""

    def unsupported(self, schema: TableSchema) -> str:
        """Why the format cannot hold a table with these columns, or nothing."""
        for name in schema.carried_names:
            if name.lower() in self.reserved:
                return (
                    f"Its column {name} has a name that {self.name.capitalize()} reserves. Rename "
                    "the column upstream, then create the table again."
                )
        return ""

    @abstractmethod
    def create(
        self,
        database: str,
        table: str,
        schema: TableSchema,
        position: Position,
        home: tuple[str, str] | None = None,
    ) -> str:
        """Makes an empty table with the columns of `schema` that rows carry; its identifier.

        The table remembers its `origin`. One of that name that is already there is in the way and
        is retired. `home` is the name that its folder is given, if that is another.
        """

    @abstractmethod
    def retire(self, identifier: str, position: Position) -> None:
        """Takes a table, if it is there, out of the way: its name is free, its versions stay."""

    @abstractmethod
    def drop(self, identifier: str) -> None:
        """Removes a table with its versions, if it is there."""

    @abstractmethod
    def rename(self, identifier: str, database: str, table: str, position: Position) -> str:
        """Gives a table another name, also of another database; its new identifier."""

    @abstractmethod
    def evolve(
        self,
        identifier: str,
        before: TableSchema,
        change: TableChange,
        position: Position,
        zone: str = "UTC",
    ) -> None:
        """Makes the columns those of `change.after`: added, dropped, renamed, moved, other types.

        Columns keep their identity by `change.columns`; rows that are there get `fill` in an added
        column. `zone` is that of the feed, in which local times become instants and instants local
        times. A change of type that the format cannot make in place rewrites the table.
        """

    @abstractmethod
    def delete(self, identifier: str, condition: str | None, position: Position) -> None:
        """Removes the rows for which a condition of Spark's SQL is true; None: all rows."""

    @abstractmethod
    def merge(
        self,
        identifier: str,
        changes: DataFrame | pa.Table,
        key: Sequence[str],
        position: Position,
    ) -> None:
        """Puts and removes rows by key: `changes` has the table's columns and OP, a key once.

        Few changes may come as an Arrow table.
        """

    @abstractmethod
    def append(self, identifier: str, rows: DataFrame, position: Position) -> None:
        """Adds rows (the table's columns) without looking for their keys."""

    @abstractmethod
    def replace_rows(self, identifier: str, changes: DataFrame, position: Position) -> None:
        """Removes every row that equals one with OP `d`, and adds those with OP `u`, as they are.

        For tables without a key; `changes` has the table's columns and OP.
        """

    @abstractmethod
    def stamp(self, identifier: str, position: Position) -> None:
        """Commits nothing but the position: what changed has no rows, as a new column."""

    @abstractmethod
    def position(self, identifier: str) -> Position | None:
        """How far the table has come; None where there is no such table."""

    @abstractmethod
    def uid(self, identifier: str) -> str:
        """What stays the same whatever the table is called."""

    @abstractmethod
    def upstream_schema(self, identifier: str) -> TableSchema:
        """The schema that the table was given last, by `create`, `evolve` or `rename`."""

    @abstractmethod
    def version(self, identifier: str) -> int:
        """What `read` takes to show the table as it is now for ever (snapshot id, version)."""

    @abstractmethod
    def read(self, identifier: str, version: int | None = None) -> DataFrame:
        """The table now, or at a version, with the columns that it had then."""

    @abstractmethod
    def maintain(self, identifier: str, *, keep_seconds: float) -> Mapping[str, int]:
        """Joins small files and forgets versions older than that; what was done, by name."""

    @abstractmethod
    def is_scattered(self, identifier: str) -> bool:
        """Whether a table is in so many pieces that it is time to join them; quickly told."""

    @abstractmethod
    def join_files(self, identifier: str) -> None:
        """Joins small files, and writes those anew of which many rows are gone."""

    def _check_passed(self, identifier: str, reached: Position | None, position: Position) -> None:
        """Raises TablePassed where somebody else has taken a table to a position, or past it.

        Several steps of one statement have the same position.
        """
        is_ours = reached == position == self._reached.get(identifier)
        if reached is not None and reached >= position and not is_ours:
            raise TablePassed(identifier, reached)

    # --- upkeep of logs ---------------------------------------------------------------------------

    def maintain_log(self, identifier: str, *, keep_seconds: float) -> Mapping[str, int]:
        """What `maintain` does, of a log, to which others may commit meanwhile."""
        return self._retried(
            identifier, lambda: self._maintain_log(identifier, keep_seconds=keep_seconds)
        )

    def forget_versions(self, identifier: str, *, keep_seconds: float) -> None:
        """Forgets the versions of a log that are older, where having many makes a commit slow."""
        self._retried(
            identifier, lambda: self._forget_versions(identifier, keep_seconds=keep_seconds)
        )

    def delete_from_log(self, identifier: str, condition: str) -> None:
        """Removes the rows of a log for which a condition of Spark's SQL is true."""
        self._retried(identifier, lambda: self._delete_from_log(identifier, condition))

    def _retried(self, identifier: str, work: Callable[[], _Result]) -> _Result:
        """Does work on a log again where somebody else's commit was in the way of its own."""
        for attempt in range(1, ATTEMPTS + 1):
            self.guard.check()
            try:
                return work()
            except (PySparkException, Py4JJavaError) as error:
                if not self.is_conflict(error):
                    raise
                if attempt == ATTEMPTS:
                    raise contended(identifier) from error
                wait_after_conflict(attempt)
        raise AssertionError("unreachable")

    def met_another(self, error: Exception) -> bool:
        """Whether a change of a table failed because somebody else has changed the table."""
        if isinstance(error, PySparkException | Py4JJavaError):
            return self.is_conflict(error)
        return isinstance(error, CommitConflict | TablePassed)

    @abstractmethod
    def is_conflict(self, error: PySparkException | Py4JJavaError) -> bool:
        """Whether a commit failed because of somebody else's."""

    @abstractmethod
    def _maintain_log(self, identifier: str, *, keep_seconds: float) -> Mapping[str, int]:
        """One attempt at it."""

    @abstractmethod
    def _forget_versions(self, identifier: str, *, keep_seconds: float) -> None:
        """One attempt at it."""

    @abstractmethod
    def _delete_from_log(self, identifier: str, condition: str) -> None:
        """One attempt at it."""

    def here(self, identifier: str) -> str:
        """An identifier that another session has written down, as this one has it."""
        return identifier

    # --- what a lake keeps for itself -------------------------------------------------------------

    @abstractmethod
    def locate(self) -> list[Located]:
        """Every mirrored table of this lake that is there, also those that are retired."""

    @abstractmethod
    def lakes(self) -> Mapping[str, Mapping[str, str]]:
        """The lakes in the same catalog or folder: the properties of each changelog, by prefix."""

    @abstractmethod
    def discard(self) -> None:
        """Removes the lake's own logs; for a lake into which nothing was mirrored."""

    @abstractmethod
    def create_log(
        self,
        name: str,
        columns: StructType,
        partition_by: Sequence[str] = (),
        bounded: Sequence[str] = (),
        sorted_by: Sequence[str] = (),
        history: bool = True,
    ) -> LogTable:
        """A log of the lake's own, created unless it exists.

        Every file reports the bounds of its integers, and of the columns `bounded`. Without
        `history`, nobody reads earlier versions.
        """


class LogRewritten(Exception):
    """What happened between two versions of a log is not known."""


class LogChange(NamedTuple):
    """What one commit did to the files of a log; where it removed any, it rewrote their rows."""

    added: list[LogFile]
    removed: frozenset[str] = frozenset()


class CommitConflict(Exception):
    """A table was changed after it was loaded: what was to be committed to it was not."""


class TablePassed(Exception):
    """A table has reached a position that a step was to take it to: somebody else did the step."""

    def __init__(self, identifier: str, reached: Position) -> None:
        super().__init__(f"{identifier} is at {reached} already")


class LeaseLost(LakeError):
    """The lake is no longer this process's: nothing may be committed to it."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Another mirror has taken over the lake: {reason}",
            "Leave the lake to it, or stop it and start this one again",
        )


class Guard:
    """Whether this process may commit to a lake; this one allows it, `lease` has the other."""

    def check(self) -> None:
        """Raises LeaseLost where nothing may be committed any more."""

    def check_log(self, identifier: str, properties: Any) -> None:
        """The same for a commit to exactly the state of a log that has these properties."""


def check_expected(
    identifier: str, expected: Mapping[str, str | None] | None, properties: Any
) -> None:
    """Raises LeaseLost where properties are not as expected."""
    for name, value in (expected or {}).items():
        if properties.get(name) != value:
            raise LeaseLost(f"it has written to {identifier}")


class LoadedLog(ABC):
    """A log at one moment, from one request to its catalog."""

    version: int
    properties: Any
    """By `get`; a format may fetch each of them only when it is asked for."""

    @abstractmethod
    def store(self) -> FileStore:
        """What opens files of the log, here or in a task, with the credentials of now."""

    @abstractmethod
    def writer(self) -> LogWriter:
        """What writes files of the log, here or in a task."""

    @abstractmethod
    def commit(self, files: Sequence[WrittenFile], properties: Mapping[str, str]) -> None:
        """Adds files and sets properties in one commit to exactly this state, or CommitConflict."""


class LogTable(ABC):
    """A table of the lake's own that grows by files which Python wrote.

    `append` commits files together with properties, so that what the properties say of the files
    is true whenever it can be read. Every commit is to the state of the log that was checked just
    before; where another one comes between, the check is made again.
    """

    identifier: str
    schema: pa.Schema
    """The columns, with their ids in the table."""
    partition_by: tuple[str, ...]
    """The columns whose values a file has one of each."""
    guard: Callable[[], Guard]
    """Gives what allows commits."""

    @abstractmethod
    def load(self) -> LoadedLog:
        """The log as it is now."""

    def version(self) -> int:
        """The version that the log has now."""
        return self.load().version

    def store(self) -> FileStore:
        """What opens files of the log, here or in a task, with the credentials of now."""
        return self.load().store()

    def writer(self) -> LogWriter:
        """What writes files of the log, here or in a task."""
        return self.load().writer()

    def append(
        self,
        files: Sequence[WrittenFile],
        properties: Mapping[str, str] | None = None,
        expected: Mapping[str, str | None] | None = None,
        guard: Guard | None = None,
    ) -> None:
        """Adds files and sets properties, in one commit.

        Where a property is not as `expected` (None: not set), or the guard does not allow it,
        nothing is committed and LeaseLost is raised. `guard` is the lake's unless one is given.
        """
        guard = guard or self.guard()

        def check(state: Any) -> None:
            guard.check()
            check_expected(self.identifier, expected, state)
            guard.check_log(self.identifier, state)

        self._commit(self.load(), files, properties or {}, check)

    def _commit(
        self,
        loaded: LoadedLog,
        files: Sequence[WrittenFile],
        properties: Mapping[str, str],
        check: Callable[[Any], None],
    ) -> None:
        """Commits to a state that was checked; begins again where somebody else has committed."""
        for attempt in range(1, ATTEMPTS + 1):
            check(loaded.properties)
            try:
                loaded.commit(files, properties)
            except CommitConflict as conflict:
                if attempt == ATTEMPTS:
                    raise contended(self.identifier) from conflict
                wait_after_conflict(attempt)
                loaded = self.load()
            else:
                return

    def fence(self, epoch: int) -> None:
        """Makes the log that of an epoch: holders of earlier ones can no longer commit to it."""

        def check(state: Any) -> None:
            if int(state.get(EPOCH) or 0) > epoch:
                raise LeaseLost(f"it has written to {self.identifier}")

        loaded = self.load()
        if loaded.properties.get(EPOCH) != str(epoch):
            self._commit(loaded, [], {EPOCH: str(epoch)}, check)

    @abstractmethod
    def files(self, version: int, condition: Condition) -> list[LogFile]:
        """The files of a version that may have rows which meet a condition."""

    @abstractmethod
    def changes(self, since: int, version: int) -> list[LogChange]:
        """What commits did from one version to another; LogRewritten if that is forgotten."""

    def properties(self) -> Mapping[str, str]:
        """The properties that were set last."""
        return dict(self.load().properties)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Sets properties, leaving others as they are, in one commit."""
        self.append([], properties)

    def add_rows(self, rows: pa.Table, properties: Mapping[str, str] | None = None) -> None:
        """Writes a few rows and adds them."""
        loaded, guard = self.load(), self.guard()

        def check(state: Any) -> None:
            guard.check()
            guard.check_log(self.identifier, state)

        self._commit(loaded, loaded.writer().write_here(rows), properties or {}, check)

    def read(self, condition: Condition, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns of the rows that meet a condition, without a job of Spark's."""
        files = self.files(self.version(), condition)
        return read_files(self.store(), files, condition, columns)


def java_classes(error: BaseException) -> list[str]:
    """The classes of a Java exception that PySpark has raised, and of its causes."""
    thrown: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    names = []
    while thrown is not None:
        names.append(str(thrown.getClass().getName()))
        thrown = thrown.getCause()
    return names


def wait_after_conflict(attempt: int) -> None:
    """Lets others finish before a commit is tried again: longer each time, and by chance."""
    time.sleep(random.uniform(0, min(1.0, 0.01 * 2**attempt)))


def contended(identifier: str) -> LakeError:
    """What to say where others commit all the time."""
    return LakeError(
        f"Other processes write to {identifier} all the time: {ATTEMPTS} commits to it failed",
        "Find out what else writes to the tables of the lake, stop it and start the mirror again",
    )


def of_partition(columns: Sequence[str], values: Sequence[Any]) -> pc.Expression:
    """What is true of all rows of a file that has these values of the partition columns."""
    known = pc.scalar(True)
    for name, value in zip(columns, values, strict=True):
        column = pc.field(name)
        known &= column.is_null() if value is None else column == value
    return known


class LakePlace(NamedTuple):
    """Where a lake is: a folder (or URI) of its own with its embedded catalog, or a catalog.

    `catalog` is the name of a Spark catalog that the session has; without it the lake's own is
    used, whose tables and SQLite file are in `folder`.
    """

    folder: str
    catalog: str | None = None
    name: str = "tidegate"
    """What the lake's own catalog is called in the session."""
    prefix: str = ""
    """Goes before the name of every database in the lake."""

    @property
    def own_database(self) -> str:
        """Where the lake keeps its changelog and its record; no other lake of the catalog does."""
        return self.prefix + OWN_DATABASE


def session_settings(place: LakePlace, format_name: str) -> dict[str, str]:
    """The Spark settings with which a session can reach the tables of a lake."""
    from tidegate.lake.formats import delta, iceberg

    settings: dict[str, Callable[[LakePlace], dict[str, str]]] = {
        "iceberg": iceberg.session_settings,
        "delta": delta.session_settings,
    }
    return settings[format_name](place)


def has_lake(name: str, spark: SparkSession, place: LakePlace) -> bool:
    """Whether there is a lake in a place; nothing is made there."""
    from tidegate.lake.formats import delta, iceberg

    formats: dict[str, Callable[[SparkSession, LakePlace], bool]] = {
        "iceberg": iceberg.has_lake,
        "delta": delta.has_lake,
    }
    return formats[name](spark, place)


def open_format(name: str, spark: SparkSession, place: LakePlace) -> TableFormat:
    """The tables of a lake in one of the formats."""
    from tidegate.lake.formats.delta import DeltaFormat
    from tidegate.lake.formats.iceberg import IcebergFormat

    formats: dict[str, Callable[[SparkSession, LakePlace], TableFormat]] = {
        "iceberg": IcebergFormat,
        "delta": DeltaFormat,
    }
    return formats[name](spark, place)
