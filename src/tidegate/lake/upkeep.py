"""What a mirror that follows a feed does now and then, so that steps do not get slower.

Every step leaves a small file and a version. Files are joined here, and the lake's own tables, of
whose versions only the last ones are ever read, forget the others. Versions of mirrored tables are
history that users may want: `maintenance` forgets them when it is asked to.
"""

from __future__ import annotations

from tidegate.lake.lake import Lake
from tidegate.lake.mirror import Mirror

_STEPS = 50
"""After so many steps versions are forgotten."""
_KEPT_SECONDS = 600.0


class Upkeep:
    """The upkeep of one lake, in the thread of its steps: no step is under way."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._steps = 0

    def after_step(self, mirror: Mirror) -> None:
        """Looks at the tables that the last step has changed, and does what is due."""
        tables = self._lake.tables
        for table in mirror.changed:
            if tables.is_scattered(table.identifier):
                tables.join_files(table.identifier)
        self._steps += 1
        if self._steps % _STEPS == 0:
            for log in (self._lake.changelog, self._lake.snapshots):
                tables.forget_versions(log.identifier, keep_seconds=_KEPT_SECONDS)
