"""Lakehouse tables that mirror a feed: changelog, apply, schema evolution, snapshots."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.lake.formats import session_settings
    from tidegate.lake.formats.base import LakePlace
    from tidegate.lake.job.mirror import Mirror, MirrorSettings, StepReport
    from tidegate.lake.job.run import Feed, MirrorRun, Progress
    from tidegate.lake.lake import Lake

# By name when first used: a worker that writes files of the changelog needs no planner.
_HOMES = {
    "Feed": "job.run",
    "Lake": "lake",
    "LakePlace": "formats.base",
    "Mirror": "job.mirror",
    "MirrorRun": "job.run",
    "MirrorSettings": "job.mirror",
    "Progress": "job.run",
    "StepReport": "job.mirror",
    "session_settings": "formats",
}

__all__ = [
    "Feed",
    "Lake",
    "LakePlace",
    "Mirror",
    "MirrorRun",
    "MirrorSettings",
    "Progress",
    "StepReport",
    "session_settings",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
