"""What a load reads from: the upstream database at one TSO, or a dump of it.

A source chooses the instant T, names the tables of T, cuts each into parts that are JSON, and gives
a reader that can be sent to tasks. Rows come in the strings of the change batch, TIMESTAMPs in UTC.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from tidegate.changefeed.config.filter import TableFilter
from tidegate.lake.load.state import LoadedTables, last_before
from tidegate.lake.routes import Routes
from tidegate.model import TableSchema
from tidegate.sql.definition import Charset
from tidegate.sql.tables import Name
from tidegate.upstream.chunks import TARGET_BYTES, Chunk, chunks_of
from tidegate.upstream.database import DatabaseSession, UpstreamDatabase, UpstreamTable
from tidegate.upstream.dump import Dump, DumpFile, DumpTable, Split, read_split
from tidegate.upstream.guard import GuardReport, SnapshotGuard
from tidegate.upstream.reading import ChunkReader

Part = Mapping[str, Any]
"""A part of a table's rows, as a JSON object."""

NOT_IN_DUMP = "{reason}. Load it from the database: tidegate reload {name} --load mysql://…"


@dataclass(frozen=True, slots=True)
class TableSize:
    """About how much a table has, as far as its source knows."""

    rows: int = 0
    bytes: int = 0


class PartReader(ABC):
    """Reads parts in a task: what is pickled and sent to the workers."""

    @abstractmethod
    def read(self, schema: TableSchema, part: Part) -> Iterator[pa.RecordBatch]:
        """The rows of a part: a string column for each column that rows carry."""


class LoadSource(ABC):
    """Where existing rows are."""

    fixed_ts: int | None = None
    """The only instant that it can show, or is to show."""
    has_snapshots: bool = True
    """Whether rows are those of one instant whatever happens meanwhile."""

    @property
    @abstractmethod
    def description(self) -> str:
        """Where it is, for eyes; without secrets."""

    @property
    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """What must be the same for a load that was cut off to be continued, as JSON."""

    @abstractmethod
    def take_ts(self, *, whole_milliseconds: bool = False) -> int:
        """The instant to load; `whole_milliseconds`: the last one of a millisecond, if possible."""

    @contextmanager
    def held(self, ts: int) -> Iterator[Callable[[], GuardReport | None]]:
        """Keeps the rows of an instant while within; SnapshotLost if they are gone.

        It gives a function that tells how that stands.
        """
        del ts
        yield lambda: None

    @abstractmethod
    def tables(self, ts: int, routes: Routes) -> tuple[LoadedTables, Mapping[Name, TableSize]]:
        """The tables that the routes select, as of an instant."""

    @abstractmethod
    def parts(self, ts: int, schema: TableSchema) -> Iterator[Part]:
        """The rows of a table, each in one part."""

    @abstractmethod
    def reader(self, ts: int) -> PartReader:
        """What reads the parts."""


# --- a database -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChunkPartReader(PartReader):
    """Reads chunks at a TSO, each over a connection of its own."""

    database: UpstreamDatabase
    at: int

    def read(self, schema: TableSchema, part: Part) -> Iterator[pa.RecordBatch]:
        with ChunkReader(self.database, self.at) as reader:
            yield from reader.read(Chunk.from_json(part), schema)


@dataclass(frozen=True)
class DatabaseSource(LoadSource):
    """A database; `at` is the instant to read, None for the present."""

    database: UpstreamDatabase
    at: int | None = None
    target_bytes: int = TARGET_BYTES
    _sizes: dict[Name, UpstreamTable] = field(default_factory=dict, repr=False, compare=False)

    @property
    def has_snapshots(self) -> bool:  # type: ignore[override]
        return self.database.has_snapshots

    @property
    def fixed_ts(self) -> int | None:  # type: ignore[override]
        return self.at

    @property
    def description(self) -> str:
        return f"the database at {self.database.server.address}"

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"database": self.database.server.address, "at": self.at}

    def take_ts(self, *, whole_milliseconds: bool = False) -> int:
        if self.at is not None:
            return self.at
        ts = self.database.take_ts()
        return last_before(ts) if whole_milliseconds else ts

    @contextmanager
    def held(self, ts: int) -> Iterator[Callable[[], GuardReport | None]]:
        with SnapshotGuard(self.database, ts) as guard:
            yield lambda: guard.report

    def tables(self, ts: int, routes: Routes) -> tuple[LoadedTables, Mapping[Name, TableSize]]:
        with self.database.session(ts) as session:
            wanted = TableFilter.parse(routes.rules or ("*.*",), setting="tables.include")
            listing = self.database.tables(session, wanted)
            databases = _databases(session)
        self._sizes.update((table.name, table) for table in listing.tables)
        schemas = tuple(table.schema for table in listing.tables)
        sizes = {table.name: TableSize(table.rows, table.bytes) for table in listing.tables}
        return LoadedTables(schemas, listing.unreadable, databases), sizes

    def parts(self, ts: int, schema: TableSchema) -> Iterator[Part]:
        name = Name(schema.database, schema.table)
        table = self._sizes.get(name) or UpstreamTable(schema)
        with self.database.session(ts) as session:
            for chunk in chunks_of(self.database, session, table, self.target_bytes):
                yield chunk.to_json()

    def reader(self, ts: int) -> PartReader:
        return ChunkPartReader(self.database, ts)


def _databases(session: DatabaseSession) -> dict[str, Charset | None]:
    """The databases with what their tables inherit."""
    rows = session.rows(
        "SELECT SCHEMA_NAME, DEFAULT_CHARACTER_SET_NAME, DEFAULT_COLLATION_NAME "
        "FROM information_schema.schemata"
    )
    return {name: Charset(charset, collation) for name, charset, collation in rows}


# --- a dump ---------------------------------------------------------------------------------------

_OF_FILE = ("path", "size", "format", "compression", "index")


@dataclass(frozen=True)
class DumpPartReader(PartReader):
    """Reads splits of a dump."""

    dump: Dump

    def read(self, schema: TableSchema, part: Part) -> Iterator[pa.RecordBatch]:
        groups = part.get("row_groups")
        split = Split(
            files=self.dump.files,
            file=DumpFile(**{name: part[name] for name in _OF_FILE}),
            schema=schema,
            options=self.dump.options,
            header=part["header"],
            start=part["start"],
            end=part["end"],
            row_groups=None if groups is None else tuple(groups),
        )
        yield from read_split(split)


@dataclass(frozen=True)
class DumpSource(LoadSource):
    """What Dumpling or TiDB Cloud has written; its instant is that of the dump."""

    dump: Dump
    target_bytes: int = TARGET_BYTES

    @property
    def fixed_ts(self) -> int | None:  # type: ignore[override]
        return self.dump.snapshot_ts

    @property
    def description(self) -> str:
        return f"the dump {self.dump.location}"

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"dump": self.dump.location, "at": self.dump.snapshot_ts, "files": self._files}

    @cached_property
    def _files(self) -> list[int]:
        """How many files and bytes it has: another dump in the same place is another source."""
        files = [file for table in self.dump.tables.values() for file in table.files]
        return [len(self.dump.tables), len(files), sum(file.size for file in files)]

    def take_ts(self, *, whole_milliseconds: bool = False) -> int:
        return self.dump.snapshot_ts

    def tables(self, ts: int, routes: Routes) -> tuple[LoadedTables, Mapping[Name, TableSize]]:
        wanted = {name: each for name, each in self.dump.tables.items() if routes.wants(name)}
        unreadable = {
            name: NOT_IN_DUMP.format(reason=table.needs_database, name=name)
            for name, table in wanted.items()
            if table.needs_database is not None
        }
        whole = {name: table for name, table in wanted.items() if name not in unreadable}
        schemas = tuple(table.schema for table in whole.values())
        sizes = {name: TableSize(bytes=table.size) for name, table in whole.items()}
        return LoadedTables(schemas, unreadable, self.dump.databases), sizes

    def parts(self, ts: int, schema: TableSchema) -> Iterator[Part]:
        table: DumpTable = self.dump.tables[Name(schema.database, schema.table)]
        for split in self.dump.splits(table, self.target_bytes):
            groups = None if split.row_groups is None else list(split.row_groups)
            place = {"header": split.header, "start": split.start, "end": split.end}
            yield {**asdict(split.file), **place, "row_groups": groups}

    def reader(self, ts: int) -> PartReader:
        # Tables and their schemas go with the work, not with the reader.
        return DumpPartReader(replace(self.dump, tables={}))
