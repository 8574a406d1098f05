"""What Spark's processes take: the driver's Python, its JVM, and the Python workers (Linux).

Read from /proc. Workers are the processes that the JVM started; PySpark keeps them for later tasks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DRIVER, JVM, WORKERS = "driver Python", "JVM", "Python workers"
ROLES = (JVM, WORKERS, DRIVER)

_GONE = FileNotFoundError, ProcessLookupError
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of CPU so far and bytes resident now, of all processes of a role."""

    cpu: float = 0.0
    resident: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.cpu + other.cpu, self.resident + other.resident)


def usage() -> dict[str, Usage]:
    """By role, of the Spark session of this process."""
    found = {role: Usage() for role in ROLES}
    for role, pid in _processes():
        of_process = _usage(pid)
        if of_process is not None:
            found[role] += of_process
    return found


def cpu_by_role() -> dict[str, float]:
    """Seconds of CPU so far, by role."""
    return {role: round(of_role.cpu, 2) for role, of_role in usage().items()}


def cpu() -> float:
    """Seconds of CPU that Spark has taken so far, in all its processes."""
    return sum(of_role.cpu for of_role in usage().values())


def _processes() -> Iterator[tuple[str, int]]:
    own = os.getpid()
    yield DRIVER, own
    for child in _children(own):
        if b"org.apache.spark.deploy.SparkSubmit" in _command(child):  # not the broker
            yield JVM, child
            for descendant in _descendants(child):
                # The JVM also starts small commands, which are it itself until they run.
                if b"pyspark.daemon" in _command(descendant):
                    yield WORKERS, descendant


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            yield from map(int, task.read_text().split())
        except _GONE:  # the thread has just ended
            continue


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except _GONE:  # the process has just ended
        return b""


def _usage(pid: int) -> Usage | None:
    """None if the process has ended meanwhile."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except _GONE:
        return None
    # After the name, which is in parentheses and may hold anything: utime, stime and those of
    # children that have ended are the 12th to 15th.
    ticks = map(int, stat.rpartition(")")[2].split()[11:15])
    return Usage(sum(ticks) / _TICK, pages * _PAGE)
