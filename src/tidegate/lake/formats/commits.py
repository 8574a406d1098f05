"""What allows a commit to a lake, and what refuses one: the lease's guard, and others' commits."""

from __future__ import annotations

import random
import time
from typing import Any

from tidegate.model import LakeError

EPOCH = "tidegate.epoch"
"""What a log says of the lease under which alone it may be written to."""
ATTEMPTS = 20
"""How often a commit to a log is tried while others commit to it."""


class CommitConflict(Exception):
    """A table was changed after it was loaded: what was to be committed to it was not."""


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
