"""The `tidegate` command: what it prints is for people, or JSON lines with `--output json`."""

from tidegate.cli.app import main

__all__ = ["main"]
