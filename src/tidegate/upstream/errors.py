"""What a database answers instead of rows, as errors with a next step.

Codes are MySQL's and TiDB's own (`errno.go`). Errors may cross from executors to the driver, so
each can be pickled with all of its fields.
"""

from __future__ import annotations

from typing import Any

from tidegate.model import SourceError, SourceUnreachable
from tidegate.upstream.result_rows import BrokenResult, ResultError

SNAPSHOT_LOST = (8055, 9006)
REFUSED = (1044, 1045, 1142, 1143, 1227, 1698)
UNKNOWN_DATABASE, UNKNOWN_COLUMN, UNKNOWN_TABLE = 1049, 1054, 1146
LOST_CONNECTION = 2013
# Too many connections, shutdowns, lost connections, locks, killed queries, TiKV or PD that do not
# answer: the same question may well be answered later.
PASSING = (
    *(0, 1040, 1053, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1317, 1927),
    *(2003, 2006, 2013, 2014, 2055),
    *(8022, 8027, 8028, 9001, 9002, 9003, 9004, 9005, 9010, 9012, 9013),
)


class DatabaseError(SourceError):
    """A database refuses a statement; `code` is its number for the reason."""

    def __init__(self, source: str, reason: str, step: str, code: int = 0) -> None:
        super().__init__(source, reason, step)
        self.code = code
        self.args = (source, reason, step, code)


class SnapshotLost(DatabaseError):
    """The database no longer keeps the rows of the instant asked for."""


class AccessDenied(DatabaseError):
    """The user may not do this, or is not known."""


class NoSuchTable(DatabaseError):
    """The database does not have the table, or does not show it to this user."""


class DatabaseUnreachable(SourceUnreachable):
    """The database does not answer now; the same statement may succeed later."""

    def __init__(self, source: str, reason: str, step: str, code: int = 0) -> None:
        super().__init__(source, reason, step)
        self.code = code
        self.args = (source, reason, step, code)


def code_of(error: BaseException) -> int:
    """The server's or the driver's number of an error; that of a lost connection for others."""
    if isinstance(error, ResultError):
        return int(error.code)
    if isinstance(error, BrokenResult | OSError):
        return LOST_CONNECTION
    first = error.args[0] if error.args else None
    return first if isinstance(first, int) else 0


def failure(address: str, error: BaseException) -> SourceError:
    """The error with the words and the next step for its code."""
    code = code_of(error)
    said: Any = error.args[-1] if error.args else type(error).__name__
    source = f"the database at {address}"
    reason = f"it says: {said} ({code})" if code else f"{said}"
    if code in SNAPSHOT_LOST:
        return SnapshotLost(
            source,
            f"{reason}, so its rows of that instant are gone",
            "Start again at a new instant. To keep the past for longer, raise tidb_gc_life_time: "
            "SET GLOBAL tidb_gc_life_time = '72h'",
            code,
        )
    if code in REFUSED:
        return AccessDenied(
            source,
            reason,
            "Check user and password. The user needs SELECT on every table that is read: "
            "GRANT SELECT ON `database`.* TO 'user'@'host'",
            code,
        )
    if code in (UNKNOWN_DATABASE, UNKNOWN_TABLE):
        return NoSuchTable(
            source,
            reason,
            "Check that this is the database of the changefeed, and the table filter",
            code,
        )
    if code in PASSING:
        return DatabaseUnreachable(
            source,
            reason,
            "Check that the server runs and can be reached from here and from Spark's executors",
            code,
        )
    return DatabaseError(source, reason, "Correct the cause that the server names", code)
