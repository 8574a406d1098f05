"""Errors of tasks, carried to the driver as what they are.

Spark passes on the text of a task's exception and nothing else. A Tidegate error is raised in the
task with its class and fields inside that text; the driver raises it again.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.model import TidegateError

_MARK = re.compile(r"tidegate-error:([A-Za-z0-9+/]+=*);")


class TaskError(Exception):
    """A Tidegate error in a task: its sentence for the logs, and itself for the driver."""

    def __init__(self, text: str) -> None:
        super().__init__(text)

    @classmethod
    def of(cls, error: TidegateError) -> TaskError:
        """What to raise in a task."""
        fields = {name: value for name, value in vars(error).items() if _is_plain(value)}
        document = json.dumps([type(error).__name__, error.args, fields])
        return cls(f"{error} (tidegate-error:{b64encode(document.encode()).decode()};)")


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int)


@contextmanager
def raised_in_task() -> Iterator[None]:
    """Within, Tidegate errors are raised so that `error_in` finds them on the driver."""
    try:
        yield
    except TidegateError as error:
        raise TaskError.of(error) from error


def error_in(failure: BaseException | str) -> TidegateError | None:
    """The Tidegate error that a task ended with, if that is why a job failed."""
    match = _MARK.search(str(failure))
    if match is None:
        return None
    name, arguments, fields = json.loads(b64decode(match[1]))
    error = _kinds(TidegateError)[name](*arguments)
    vars(error).update(fields)
    return error


def _kinds(base: type[TidegateError]) -> dict[str, type[TidegateError]]:
    """All classes of errors by their names, which are used once; the task's are loaded here too."""
    kinds = {base.__name__: base}
    for each in base.__subclasses__():
        kinds |= _kinds(each)
    return kinds
