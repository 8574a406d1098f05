"""A dump as a whole: its instant, its tables with their files, and how they are split.

Opening lists the folder, reads `metadata` and the schema files, and refuses what is not a complete
dump of Dumpling or TiDB Cloud; rows are read by `read_split`, anywhere.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from tidegate.model import Column, DumpError, MySQLType, TableSchema
from tidegate.sql.definition import Charset
from tidegate.sql.tables import Name
from tidegate.upstream.dump import columns, metadata, names, parquet, schemas, streams
from tidegate.upstream.dump._scan import ScanError
from tidegate.upstream.dump.names import FileKind, FileName
from tidegate.upstream.dump.options import DumpOptions, is_fixed
from tidegate.upstream.dump.split import DumpFile, Fill, Split, first_row

TARGET_BYTES = 128 << 20
_READERS = 16
_CHUNK_AND_FILE = 13  # digits of an index with -r and -F: nine of the chunk, four of the file


@dataclass(frozen=True, slots=True)
class Loss:
    """Values of a column that are not in the dump as they are in the database."""

    column: str
    reason: str

    def __str__(self) -> str:
        return f"{self.column}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class DumpTable:
    """A table of a dump; one without rows has no files."""

    schema: TableSchema
    files: tuple[DumpFile, ...] = ()

    @property
    def name(self) -> Name:
        """The table's name."""
        return Name(self.schema.database, self.schema.table)

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.files)

    @property
    def format(self) -> str | None:
        """csv, sql or parquet; None if it has no files."""
        return self.files[0].format if self.files else None

    @property
    def left_out(self) -> tuple[str, ...]:
        """The columns that a feed carries and the dump does not: stored generated ones."""
        return columns.left_out(self.schema)

    @property
    def needs_database(self) -> str | None:
        """Why rows of the dump alone are not whole rows; None if they are."""
        if not self.left_out or not self.files:
            return None
        one = len(self.left_out) == 1
        return (
            f"Dumpling leaves out stored generated columns, and {self.name} has "
            f"{'one' if one else 'some'}: {', '.join(self.left_out)}"
        )


@dataclass(frozen=True, kw_only=True)
class Dump:
    """An opened dump; `snapshot_ts` is the TSO that its rows are of."""

    location: str
    files: Any
    options: DumpOptions
    snapshot_ts: int
    tables: Mapping[Name, DumpTable]
    databases: Mapping[str, Charset | None] = field(default_factory=dict)
    """All databases of the dump, with what their tables inherit."""

    @classmethod
    def open(
        cls, location: str, files: FileSystem | None = None, options: DumpOptions | None = None
    ) -> Dump:
        """The dump in a folder: a local path or URI, or a path in `files`."""
        options = options or DumpOptions()
        store, folder = _store(location, files)
        listing = _Listing.of(store, folder, location)
        text = None
        if listing.metadata is not None:
            text = streams.content(store, listing.metadata, "").decode(errors="replace")
        return cls(
            location=location,
            files=store,
            options=options,
            snapshot_ts=metadata.snapshot_ts(location, text, options),
            tables=listing.tables(),
            databases=dict(listing.databases.values()),
        )

    @cached_property
    def has_header(self) -> bool:
        """Whether the CSV files have a header; a dump has it in all of them or in none.

        A first row that is not the columns' names shows that there is none. One that is shows a
        header if it cannot be a row: a number's name is not a number.
        """
        if self.options.header is not None:
            return self.options.header
        unsure = None
        for table in self.tables.values():
            if table.format != "csv" or not columns.dumped(table.schema):
                continue
            is_header = self._starts_with_header(table)
            if is_header is not None:
                return is_header
            unsure = table
        if unsure is None:
            return True
        raise DumpError(
            self.location,
            f"the first row of {unsure.name} may be a header or values, and no other table "
            "shows which",
            "Set the option `header`: false if Dumpling was given --no-header",
        )

    def _starts_with_header(self, table: DumpTable) -> bool | None:
        file = table.files[0]
        expected = [column.name for column in columns.dumped(table.schema)]
        try:
            found = first_row(self.files, file, table.schema, self.options, as_text=True)
        except ScanError:
            return False
        if found != expected:
            return False
        try:
            first_row(self.files, file, table.schema, self.options, as_text=False)
        except ScanError:
            return True
        is_too_long = (
            column.code in (MySQLType.VARCHAR, MySQLType.STRING)
            and column.length is not None
            and 0 <= column.length < len(column.name)
            for column in columns.dumped(table.schema)
        )
        is_document = (
            column.code in (MySQLType.JSON, MySQLType.VECTOR)
            and not column.name.strip().startswith(("{", "[", '"'))
            and column.name.strip() not in ("true", "false", "null")
            and not column.name.strip()[:1].isdigit()
            for column in columns.dumped(table.schema)
        )
        return True if any(is_too_long) or any(is_document) else None

    def splits(
        self, table: DumpTable, target_bytes: int = TARGET_BYTES, fill: Fill | None = None
    ) -> list[Split]:
        """The table's rows in parts of about `target_bytes` of file, each row in one of them.

        `fill` adds the columns that the dump leaves out (`left_out`); without it a table that has
        such is refused.
        """
        reason = table.needs_database
        if reason is not None and fill is None:
            raise DumpError(
                self.location, reason, "Load this table from the database with --load mysql://…"
            )
        if table.files and not columns.dumped(table.schema):
            raise DumpError(
                self.location,
                f"every column of {table.name} is generated, so the dump has none of them",
                "Load this table from the database",
            )
        whole = Split(
            files=self.files,
            file=DumpFile(path="", size=0, format=""),
            schema=table.schema,
            options=self.options,
            header=table.format == "csv" and self.has_header,
            fill=fill if table.left_out else None,
        )
        return [
            part
            for file in table.files
            for part in _parts(replace(whole, file=file), max(target_bytes, 1))
        ]

    def losses(self, table: DumpTable) -> list[Loss]:
        """What Dumpling itself loses of the table's values, by column."""
        return [
            Loss(column.name, reason)
            for column in columns.dumped(table.schema)
            for reason in self._losses_of(table, column)
            if table.files
        ]

    def _losses_of(self, table: DumpTable, column: Column) -> Iterable[str]:
        if column.code == MySQLType.FLOAT:
            yield "TiDB shows only six digits of a FLOAT from 1e15 on or below 1e-15"
        if column.code in (MySQLType.DATETIME, MySQLType.TIMESTAMP) and table.format == "parquet":
            yield "an invalid or zero date is NULL in Parquet"
        if column.code == MySQLType.TIMESTAMP and not is_fixed(self.options.time_zone):
            yield (
                f"in {self.options.time_zone} clocks show some times twice, and the dump does not "
                "say which of the two is meant"
            )
        if column.code == MySQLType.ENUM and "" in column.elements:
            yield "an invalid value looks like the element ''"


# --- splitting ------------------------------------------------------------------------------------


def _parts(whole: Split, target: int) -> list[Split]:
    file = whole.file
    if file.size <= target:
        return [whole]
    if file.format == "parquet":
        return _row_groups(whole, target)
    if not _has_safe_lines(whole):
        return [whole]
    count = -(-file.size // target)
    bounds = [file.size * i // count for i in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(bounds)]


def _has_safe_lines(whole: Split) -> bool:
    """Whether every line end of the file is between rows, so that a row is found from anywhere.

    With backslash escapes there is none inside a value, and the scanner refuses a file where that
    is not so. Without them it holds if no column can have one.
    """
    options = whole.options
    if whole.file.compression:
        return False
    if whole.file.format == "csv" and options.line_terminator not in ("", "\n", "\r\n"):
        return False
    return options.escape_backslash or columns.is_lineless(columns.dumped(whole.schema))


def _row_groups(whole: Split, target: int) -> list[Split]:
    parts: list[list[int]] = []
    filled = target
    for number, size in enumerate(parquet.row_groups(whole.files, whole.file.path)):
        if filled + size > target:
            parts.append([])
            filled = 0
        parts[-1].append(number)
        filled += size
    return [replace(whole, row_groups=tuple(part)) for part in parts]


# --- listing --------------------------------------------------------------------------------------


def _store(location: str, files: FileSystem | None) -> tuple[Any, str]:
    if files is not None:
        return files, location.rstrip("/")
    if "://" not in location:
        return LocalFileSystem(), os.path.abspath(location)
    try:
        store, folder = FileSystem.from_uri(location)
    except (OSError, pa.ArrowException) as error:
        raise DumpError(location, f"its storage cannot be reached ({error})", _CHECK) from error
    return store, folder


_CHECK = "Check the path and the rights to it"


class _Listing:
    """The files of a dump by what they are for."""

    def __init__(self, store: Any, folder: str, location: str) -> None:
        self._store = store
        self._folder = folder
        self._location = location
        self.metadata: str | None = None
        self._schemas: dict[str, FileName] = {}
        self._databases: dict[str, FileName] = {}
        self._views: set[str] = set()
        self._data: dict[str, list[DumpFile]] = defaultdict(list)
        self._paths: dict[FileName, str] = {}
        self.databases: dict[str, tuple[str, Charset | None]] = {}

    @classmethod
    def of(cls, store: Any, folder: str, location: str) -> _Listing:
        """The listing of a folder."""
        try:
            infos = store.get_file_info(FileSelector(folder))
        except FileNotFoundError:
            raise DumpError(location, "there is no such folder", _CHECK) from None
        except (OSError, pa.ArrowException) as error:
            raise DumpError(location, f"it cannot be listed ({error})", _CHECK) from error
        listing = cls(store, folder, location)
        for info in sorted(infos, key=lambda info: str(info.base_name)):
            listing._add(info)
        return listing

    def _refused(self, reason: str, step: str) -> DumpError:
        return DumpError(self._location, reason, step)

    def _add(self, info: Any) -> None:
        name = info.base_name
        if info.type == FileType.Directory:
            if not name.startswith((".", "_")):
                raise self._refused(
                    f"it has a folder {name}, and a dump has none",
                    "Give the folder that has the file `metadata`",
                )
            return
        parsed = names.parse(name) if name else FileName(FileKind.OTHER)
        if parsed is None:
            raise self._refused(
                f"the file {name} is not named as Dumpling names files",
                "Move it elsewhere, or make the dump again with Dumpling's default file names",
            )
        if parsed.kind is FileKind.OTHER:
            return
        self._paths[parsed] = info.path
        if parsed.kind is FileKind.METADATA:
            self.metadata = info.path
        elif parsed.kind is FileKind.DATABASE:
            self._databases[parsed.stem] = parsed
        elif parsed.kind is FileKind.VIEW:
            self._views.add(parsed.stem)
        elif parsed.kind is FileKind.TABLE:
            self._schemas[parsed.stem] = parsed
        else:
            self._add_data(parsed, info)

    def _add_data(self, parsed: FileName, info: Any) -> None:
        others = self._data[parsed.stem]
        file = DumpFile(
            path=info.path,
            size=info.size,
            format=parsed.format,
            compression=parsed.compression,
            index=parsed.index,
        )
        if any(other.index == file.index for other in others):
            raise self._refused(
                f"{info.base_name} is there in two forms", "Remove the one that is not of this dump"
            )
        if any(other.format != file.format for other in others):
            raise self._refused(
                f"the rows of {parsed.stem} are in files of two formats",
                "Two dumps are mixed: make a new one in an empty folder",
            )
        others.append(file)

    def tables(self) -> dict[Name, DumpTable]:
        """The tables, with their schemas and files."""
        self._check()
        wanted = [name for stem, name in self._schemas.items() if stem not in self._views]
        with ThreadPoolExecutor(_READERS) as readers:
            contents = dict(
                zip(
                    [*self._databases.values(), *wanted],
                    readers.map(self._content, [*self._databases.values(), *wanted]),
                    strict=True,
                )
            )
        self.databases = {
            stem: schemas.database_of(self._paths[name], contents[name], names.unescaped(stem))
            for stem, name in self._databases.items()
        }
        tables = (self._table(name, contents[name]) for name in wanted)
        return {table.name: table for table in tables}

    def _content(self, name: FileName) -> bytes:
        return streams.content(self._store, self._paths[name], name.compression)

    def _table(self, name: FileName, data: bytes) -> DumpTable:
        path = self._paths[name]
        stem, dot, table = name.stem.partition(".")
        if not dot:
            raise self._refused(
                f"the file {path} is not named as Dumpling names schema files",
                "Make the dump again with Dumpling's default file names",
            )
        database, charset = self.databases.get(stem, (names.unescaped(stem), None))
        schema = schemas.table_schema(path, data, database, charset)
        if schema.table not in (table, names.unescaped(table)):
            raise DumpError(
                path,
                f"it creates the table {schema.table}",
                "A file was renamed, or two dumps are mixed: make a new one in an empty folder",
            )
        files = self._data.get(name.stem, [])
        return DumpTable(
            schema=schema,
            files=tuple(sorted(files, key=lambda file: (len(file.index), file.index))),
        )

    def _check(self) -> None:
        known = self._schemas.keys() - self._views
        for stem in sorted(self._data.keys() - known):
            raise self._refused(
                f"{names.unescaped(stem)} has files with rows and no {stem}-schema.sql",
                "Make the dump again without --no-schemas",
            )
        formats = {file.format for files in self._data.values() for file in files}
        if len(formats) > 1:
            raise self._refused(
                f"it has files in the formats {' and '.join(sorted(formats))}",
                "Two dumps are mixed: make a new one in an empty folder",
            )
        for stem, files in self._data.items():
            for file in files:
                if file.size == 0:
                    raise self._refused(
                        f"the file {file.path} is empty, which Dumpling never leaves",
                        "Copy it again from where the dump was made, or make the dump again",
                    )
            self._check_numbers(stem, [file.index for file in files])

    def _check_numbers(self, stem: str, indexes: list[str]) -> None:
        """With -r and -F the files of a chunk are numbered without a gap; chunks may be empty."""
        chunks: dict[str, set[int]] = defaultdict(set)
        for index in indexes:
            if len(index) == _CHUNK_AND_FILE:
                chunks[index[:9]].add(int(index[9:]))
        for chunk, numbers in chunks.items():
            missing = set(range(max(numbers))) - numbers
            if missing:
                raise self._refused(
                    f"a file of {names.unescaped(stem)} is missing: {chunk}{min(missing):04d}",
                    "Copy it from where the dump was made, or make the dump again",
                )
