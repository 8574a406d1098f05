"""Whose problem a failure is: one table's, or everybody's.

A table whose change cannot be written stops, with the reason, and the others move on. A full disk,
a catalog that does not answer or a Spark that is going down concerns all of them: the run ends, and
the next one does the step again.
"""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tidegate.model import TidegateError

FULL = re.compile("No space left on device|SQLITE_FULL|disk is full|Disk quota exceeded")
_OF_EVERYBODY = re.compile(
    f"{FULL.pattern}"
    "|OutOfMemoryError|SparkContext (was|has been) shut down|stopped SparkContext"
    "|InterruptedException|ExecutorLost|executor (lost|heartbeat)|Connection (refused|reset)"
    "|UnknownHostException|SocketTimeout|TimeoutException|Timed out|ServiceUnavailable"
    "|ServiceFailure|RESTException|Forbidden|NotAuthorized|AccessDenied|AccessControlException"
    "|NoSuchBucket|SdkClientException|SQLITE_(BUSY|IOERR|CANTOPEN|READONLY|CORRUPT)"
    "|UncheckedSQLException|CommitStateUnknown|Read-only file system|Too many open files"
    "|Input/output error|Stale file handle"
)


def causes(error: BaseException) -> list[str]:
    """What an error of Spark's says, and those that it comes from."""
    lines = [str(error)]
    cause = getattr(error, "_cause", None)
    while cause is not None:
        lines.append(str(cause))
        cause = getattr(cause, "_cause", None)
    return lines


def may_be_of_one_table(error: BaseException) -> bool:
    """Whether a failure in a change of a table may be that table's own problem."""
    if isinstance(error, TidegateError | OSError | MemoryError) or not isinstance(error, Exception):
        return False
    if type(error).__module__.startswith("py4j") and not isinstance(error, Py4JJavaError):
        return False  # the JVM is gone
    return not any(_OF_EVERYBODY.search(text) for text in causes(error))


def sentence(error: BaseException) -> str:
    """The first line of the first cause, for people."""
    text = causes(error)[-1].strip()
    if isinstance(error, PySparkException) and error.getCondition():
        text = causes(error)[0].strip()
    first = text.splitlines()[0] if text else type(error).__name__
    return first.rstrip(".")
