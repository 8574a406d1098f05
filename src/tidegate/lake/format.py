"""What the mirror asks of a table format; `iceberg` and `delta` answer, each in its own module.

A table's own history says how far it has come: every commit that the mirror makes carries the
`Position` it reaches, so that a step that is repeated after a crash is seen to be done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from tidegate.feed.ddl import TableChange
from tidegate.lake.conditions import Condition
from tidegate.lake.logfiles import LogFile, LogWriter
from tidegate.lake.names import own
from tidegate.model import TableSchema

OP = own("op")
"""The column of `merge`'s source that says what to do: `u` puts the row there, `d` removes it."""


OWN_DATABASE = "_tidegate"
"""Where a lake keeps its changelog and its record."""
DROPPED_DATABASE = "_tidegate_dropped"
"""Where a catalog has the tables that were dropped upstream, until nothing needs them any more."""


class Position(NamedTuple):
    """How far a table has come: every row up to `ts`, and the first `ddl` statements at `ts`.

    Rows at the commit_ts of a statement go before it, so positions are ordered as tuples are. A
    step that puts rows right at an instant that the tables had reached has its number in `mended`.
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
    def create(self, database: str, table: str, schema: TableSchema, position: Position) -> str:
        """Makes an empty table with the columns of `schema` that rows carry; its identifier.

        The table remembers its `origin`. One of that name that is already there is in the way and
        is retired.
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

    @abstractmethod
    def forget_versions(self, identifier: str, *, keep_seconds: float) -> None:
        """Forgets the versions of a log that are older, where having many makes a commit slow."""

    def here(self, identifier: str) -> str:
        """An identifier that another session has written down, as this one has it."""
        return identifier

    # --- what a lake keeps for itself -------------------------------------------------------------

    @abstractmethod
    def locate(self) -> list[Located]:
        """Every mirrored table that is there, also those that are retired."""

    @abstractmethod
    def create_log(
        self,
        name: str,
        columns: StructType,
        partition_by: Sequence[str] = (),
        bounded: Sequence[str] = (),
    ) -> str:
        """A table of the lake's own that only grows; its identifier. Kept if it is there.

        Every file tells the least and greatest of its numbers, and of the columns `bounded`.
        """

    @abstractmethod
    def append_to_log(self, identifier: str, rows: pa.Table) -> None:
        """Adds rows to a log, in one commit."""

    @abstractmethod
    def stream_to_log(self, identifier: str, changes: DataStreamWriter) -> StreamingQuery:
        """Starts a query that adds what it reads to a log, each row once."""

    def log_writer(self, identifier: str) -> LogWriter | None:
        """What writes a log's files where events are decoded; None where only Spark can do so."""
        return None

    def add_files(
        self, identifier: str, files: Sequence[Row], properties: Mapping[str, str]
    ) -> None:
        """Makes files (rows of WRITTEN_TYPE) part of a log and writes properties, in one commit."""
        raise NotImplementedError(f"{self.name} has no log_writer")

    def log_files(
        self, identifier: str, version: int, condition: Condition
    ) -> list[LogFile] | None:
        """The files of a log that may have rows which meet a condition.

        None where files cannot be read as they are, but only through Spark.
        """
        return None

    def added_files(self, identifier: str, since: int, version: int) -> list[LogFile] | None:
        """The files that a log got from one of its versions to another.

        None where that cannot be told, or more was done than to add files.
        """
        return None

    @abstractmethod
    def properties(self, identifier: str) -> Mapping[str, str]:
        """What `set_properties` wrote beside a table."""

    @abstractmethod
    def set_properties(self, identifier: str, properties: Mapping[str, str]) -> None:
        """Writes small texts beside a table, in one commit and without a snapshot."""


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


def session_settings(place: LakePlace, format_name: str) -> dict[str, str]:
    """The Spark settings with which a session can reach the tables of a lake."""
    from tidegate.lake import delta, iceberg

    settings: dict[str, Callable[[LakePlace], dict[str, str]]] = {
        "iceberg": iceberg.session_settings,
        "delta": delta.session_settings,
    }
    return settings[format_name](place)


def has_lake(name: str, spark: SparkSession, place: LakePlace) -> bool:
    """Whether there is a lake in a place; nothing is made there."""
    from tidegate.lake import delta, iceberg

    formats: dict[str, Callable[[SparkSession, LakePlace], bool]] = {
        "iceberg": iceberg.has_lake,
        "delta": delta.has_lake,
    }
    return formats[name](spark, place)


def open_format(name: str, spark: SparkSession, place: LakePlace) -> TableFormat:
    """The tables of a lake in one of the formats."""
    from tidegate.lake.delta import DeltaFormat
    from tidegate.lake.iceberg import IcebergFormat

    formats: dict[str, Callable[[SparkSession, LakePlace], TableFormat]] = {
        "iceberg": IcebergFormat,
        "delta": DeltaFormat,
    }
    return formats[name](spark, place)
