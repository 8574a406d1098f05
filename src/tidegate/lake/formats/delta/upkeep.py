"""Compaction and expiry of Delta tables: OPTIMIZE and VACUUM."""

from __future__ import annotations

import math
from collections.abc import Mapping

from py4j.protocol import Py4JJavaError
from pyarrow.fs import FileSelector
from pyspark.errors import PySparkException

from tidegate.lake.formats.commits import java_classes
from tidegate.lake.formats.delta.commits import DeltaCommits
from tidegate.lake.formats.delta.log import remove_old_properties, remove_orphans, remove_replaced

_MANY_VERSIONS = 50
"""Versions after which files are compacted: to count the files takes a job."""
_CONFLICTS = "io.delta.exceptions.Concurrent"
"""How the names of the exceptions begin that Delta throws for commits that are in each other's way;
`_METADATA_CHANGED` is another one."""
_METADATA_CHANGED = "io.delta.exceptions.MetadataChangedException"


class DeltaUpkeep(DeltaCommits):
    """The upkeep of a lake's tables and logs."""

    def is_scattered(self, identifier: str) -> bool:
        return self.version(identifier) % _MANY_VERSIONS == 0

    def compact_files(self, identifier: str) -> None:
        with self._committing(self.spark, self.position(identifier)) as session:
            self.guard.check()
            session.sql(f"OPTIMIZE {identifier}")

    def is_conflict(self, error: PySparkException | Py4JJavaError) -> bool:
        names = java_classes(error)
        return any(name.startswith(_CONFLICTS) or name == _METADATA_CHANGED for name in names)

    def _forget_versions(self, identifier: str, *, keep_seconds: float) -> None:
        """Files that were replaced, and of properties: checkpoints bound what a commit reads."""
        store, folder = self._folders.store(), self._folder(identifier)
        remove_old_properties(store, folder)
        remove_replaced(store, folder, keep_seconds)

    def _maintain_log(self, identifier: str, *, keep_seconds: float) -> Mapping[str, int]:
        store, folder = self._folders.store(), self._folder(identifier)
        return {
            "property files removed": remove_old_properties(store, folder),
            "data files removed": remove_replaced(store, folder, keep_seconds),
            "orphan files removed": remove_orphans(store, folder),
        }

    def maintain(self, identifier: str, *, keep_seconds: float) -> Mapping[str, int]:
        with self._committing(self.spark, self.position(identifier)) as session:
            session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
            # VACUUM lists folders in as many tasks as this says: 10,000 as is usual.
            session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "16")
            self.guard.check()
            joined = session.sql(f"OPTIMIZE {identifier}").head()
            files = self._files(identifier)
            # Delta rounds to whole hours, and would remove what is to be kept.
            session.sql(f"VACUUM {identifier} RETAIN {math.ceil(keep_seconds / 3600)} HOURS")
        assert joined is not None
        return {
            "data files compacted": joined["metrics"]["numFilesRemoved"],
            "data files written": joined["metrics"]["numFilesAdded"],
            "data files removed": files - self._files(identifier),
        }

    def _files(self, identifier: str) -> int:
        files, path = self._folders.files(self._folder(identifier))
        found = files.get_file_info(FileSelector(path, recursive=True))
        return sum(
            1 for each in found if each.extension == "parquet" and "_delta_log" not in each.path
        )
