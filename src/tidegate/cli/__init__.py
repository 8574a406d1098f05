"""The `tidegate` command: what it prints is for people, or JSON lines with `--output json`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import NoReturn

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command line and exits."""
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        print(
            f"tidegate: The command line needs {' and '.join(missing)}. "
            "Run: pip install 'tidegate[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    from tidegate.cli import app

    app.main(arguments)
