"""What the mirror asks of a table format; `iceberg` and `delta` answer, each in its own module.

A table's own history says how far it has come: every commit that the mirror makes carries the
`Position` it reaches, so that a step that is repeated after a crash is seen to be done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidegate.lake.formats.commits import (
    ATTEMPTS,
    CommitConflict,
    Guard,
    contended,
    wait_after_conflict,
)
from tidegate.lake.formats.log_table import LogTable
from tidegate.lake.storage.names import own
from tidegate.model import ConfigError, LakeError, TableSchema
from tidegate.sql.ddl import TableChange

OP = own("op")
"""The column of `merge`'s source that says what to do: `u` puts the row there, `d` removes it."""

OWN_DATABASE = "_tidegate"
"""Where a lake keeps its changelog and its record."""
CHANGELOG = "changelog"
"""The table there that every lake has."""
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


def table_properties(schema: TableSchema, position: Position) -> dict[str, str]:
    """What a table says of itself after a change of its columns or its name."""
    return {SCHEMA: schema.to_json(), POSITION: str(position)}


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
        """Compacts small files and forgets versions older than that; what was done, by name."""

    @abstractmethod
    def is_scattered(self, identifier: str) -> bool:
        """Whether a table has so many small files that they should be compacted; quickly told."""

    @abstractmethod
    def compact_files(self, identifier: str) -> None:
        """Compacts small files, and rewrites those of which many rows are gone."""

    def _check_passed(self, identifier: str, reached: Position | None, position: Position) -> None:
        """Raises TablePassed where somebody else has taken a table to a position, or past it.

        Several steps of one statement have the same position.
        """
        is_ours = reached == position == self._reached.get(identifier)
        if reached is not None and reached >= position and not is_ours:
            raise TablePassed(identifier, reached)

    # --- upkeep of logs ---------------------------------------------------------------------------

    def maintain_log(self, identifier: str, *, keep_seconds: float) -> Mapping[str, int]:
        """Forgets versions of a log that are older, and removes files that no version names.

        Others may commit to it meanwhile. What was done, by name.
        """
        return self._retried(
            identifier, lambda: self._maintain_log(identifier, keep_seconds=keep_seconds)
        )

    def forget_versions(self, identifier: str, *, keep_seconds: float) -> None:
        """Forgets the versions of a log that are older, where having many makes a commit slow."""
        self._retried(
            identifier, lambda: self._forget_versions(identifier, keep_seconds=keep_seconds)
        )

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


class TablePassed(Exception):
    """A table has reached a position that a step was to take it to: somebody else did the step."""

    def __init__(self, identifier: str, reached: Position) -> None:
        super().__init__(f"{identifier} is at {reached} already")


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
