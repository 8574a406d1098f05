"""What an executor says of its Python, also where Tidegate is not installed.

The function is sent by value, not by its name in this package, so it imports what it needs itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def environment(
    version: str, modules: Iterable[str], _: Iterable[int]
) -> Iterator[tuple[str, str, str | None]]:
    """The host, what is the executor's own, and what it lacks; for `RDD.mapPartitions`."""
    import os
    import platform
    import socket
    from importlib import import_module

    problem = None
    try:
        own = import_module("tidegate").__version__
        if own != version:
            problem = f"it has Tidegate {own}, and the driver has {version}"
        for module in modules:
            import_module(module)
    except ImportError as error:
        python = (
            f"its Python is {platform.python_version()} in {os.path.realpath('/proc/self/exe')}"
        )
        problem = f"it cannot import {error.name or 'a module'} ({error}; {python})"
    # The block manager's folders are named at random, so no two executors have the same.
    yield socket.gethostname(), os.environ.get("SPARK_LOCAL_DIRS") or str(os.getppid()), problem
