"""What a mirror that follows a feed does now and then, so that steps do not get slower.

Every round and every step leaves small files and a version. Files are compacted here when there are
many. The lake's own tables, of whose versions only the last ones are ever read, forget the others;
those of mirrored tables are history that users read, and `maintenance` forgets them after a while.
"""

from __future__ import annotations

import time
from datetime import timedelta

from tidegate.lake.compaction import compact_log
from tidegate.lake.formats.log_table import LogTable
from tidegate.lake.job.mirror import Mirror
from tidegate.lake.lake import Lake
from tidegate.lake.maintenance import (
    LOG_SECONDS,
    age_of_versions,
    compact_events,
    maintain,
    obstacle,
)

_MANY_FILES = 64
"""After this number of new files a log is compacted and its versions are forgotten."""
_MOST_VERSIONS = 2_000
"""Of a table: every commit writes down all of them."""


class Upkeep:
    """The upkeep of one lake, in the thread of its steps: no step is under way.

    All of the lake is maintained at an interval (seconds; None: never), and then `keep` says how
    long instants are kept, unless a table has had too many versions since.
    """

    def __init__(
        self, lake: Lake, *, interval: float | None = None, keep: timedelta = timedelta(days=7)
    ) -> None:
        self._lake = lake
        self._interval = interval
        self._keep = keep
        self._maintained = time.monotonic()

    def after_step(self, mirror: Mirror) -> None:
        """Looks at the tables that the last step has changed, and does what is due."""
        tables = self._lake.tables
        for table in mirror.changed:
            if tables.is_scattered(table.identifier):
                tables.compact_files(table.identifier)
        self.compact_logs(mirror)
        if self._interval is not None and time.monotonic() - self._maintained >= self._interval:
            self._maintain(mirror)
            self._maintained = time.monotonic()

    def compact_logs(self, mirror: Mirror) -> None:
        """Compacts the logs that have got many files; also while no step can be made."""
        lake = self._lake
        if lake.changelog.log.files_added >= _MANY_FILES:
            compact_events(lake, mirror.state)
            self._forget_versions(lake.changelog.log)
        if lake.snapshots.log.files_added >= _MANY_FILES:
            compact_log(lake.spark, lake.snapshots.log)
            self._forget_versions(lake.snapshots.log)

    def _forget_versions(self, log: LogTable) -> None:
        log.files_added = 0
        self._lake.tables.forget_versions(log.identifier, keep_seconds=LOG_SECONDS)

    def _maintain(self, mirror: Mirror) -> None:
        mirror.settle()
        if obstacle(self._lake, mirror.state) is None:
            age = age_of_versions(self._lake, _MOST_VERSIONS)
            for _ in maintain(self._lake, self._keep if age is None else min(age, self._keep)):
                pass
