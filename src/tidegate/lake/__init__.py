"""Lakehouse tables that mirror a feed: changelog, apply, schema evolution, snapshots."""

from tidegate.lake.format import LakePlace, session_settings
from tidegate.lake.lake import Lake
from tidegate.lake.mirror import Mirror, MirrorSettings, StepReport
from tidegate.lake.run import Feed, MirrorRun, Progress

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
