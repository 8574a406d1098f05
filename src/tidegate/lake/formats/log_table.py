"""A table of the lake's own that grows by files which Python wrote: changelog, record, quarantine.

Every commit is to exactly the state of the log that was checked: `IcebergLog` and `DeltaLog` make
it, each in its own module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.lake.formats.commits import (
    ATTEMPTS,
    EPOCH,
    CommitConflict,
    Guard,
    LeaseLost,
    contended,
    wait_after_conflict,
)
from tidegate.lake.storage.file_store import FileStore
from tidegate.lake.storage.log_files import LogFile, LogWriter, WrittenFile, read_files
from tidegate.lake.storage.predicates import Condition


class FilesReplaced(Exception):
    """Files that were to be replaced are no longer in the log: somebody else has replaced them."""


class LogRewritten(Exception):
    """What happened between two versions of a log is not known."""


class LogChange(NamedTuple):
    """What one commit did to the files of a log; where it removed any, it rewrote their rows."""

    added: list[LogFile]
    removed: frozenset[str] = frozenset()


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
    def commit(
        self,
        files: Sequence[WrittenFile],
        properties: Mapping[str, str],
        replaced: Collection[str] = (),
    ) -> None:
        """Adds files and sets properties in one commit to exactly this state, or CommitConflict.

        `replaced` are the paths of files that go in the same commit; FilesReplaced where this state
        has not all of them.
        """


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
    files_added: int = 0
    """How many files this process has added to the log since it was compacted."""

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
        check = self._check(expected, guard or self.guard())
        self._commit(self.load(), files, properties or {}, check)

    def replace_files(
        self,
        old: Collection[str],
        new: Sequence[WrittenFile],
        expected: Mapping[str, str | None] | None = None,
        guard: Guard | None = None,
    ) -> None:
        """Puts new files in the place of old ones, given by their paths, in one commit.

        What others append meanwhile stays. Where another commit has replaced one of the old files,
        nothing is committed and FilesReplaced is raised; `expected` and `guard` are as in `append`.
        """
        check = self._check(expected, guard or self.guard())
        self._commit(self.load(), new, {}, check, frozenset(old))

    def _check(
        self, expected: Mapping[str, str | None] | None, guard: Guard
    ) -> Callable[[Any], None]:
        """What is checked of the state that is committed to."""

        def check(state: Any) -> None:
            guard.check()
            check_expected(self.identifier, expected, state)
            guard.check_log(self.identifier, state)

        return check

    def _commit(
        self,
        loaded: LoadedLog,
        files: Sequence[WrittenFile],
        properties: Mapping[str, str],
        check: Callable[[Any], None],
        replaced: Collection[str] = (),
    ) -> None:
        """Commits to a state that was checked; begins again where somebody else has committed."""
        for attempt in range(1, ATTEMPTS + 1):
            check(loaded.properties)
            try:
                loaded.commit(files, properties, replaced)
            except CommitConflict as conflict:
                if attempt == ATTEMPTS:
                    raise contended(self.identifier) from conflict
                wait_after_conflict(attempt)
                loaded = self.load()
            else:
                self.files_added += len(files)
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
        """The files of a version that may have rows which meet a condition.

        LogRewritten where the version is forgotten.
        """

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
        loaded, check = self.load(), self._check(None, self.guard())
        self._commit(loaded, loaded.writer().write_here(rows), properties or {}, check)

    def read(self, condition: Condition, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns of the rows that meet a condition, without a job of Spark's."""
        files = self.files(self.version(), condition)
        return read_files(self.store(), files, condition, columns)


def of_partition(columns: Sequence[str], values: Sequence[Any]) -> pc.Expression:
    """What is true of all rows of a file that has these values of the partition columns."""
    known = pc.scalar(True)
    for name, value in zip(columns, values, strict=True):
        column = pc.field(name)
        known &= column.is_null() if value is None else column == value
    return known
