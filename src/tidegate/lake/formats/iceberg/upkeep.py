"""Compaction and expiry of Iceberg tables, by Iceberg's own procedures."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Row

from tidegate.lake.formats.base import POSITION
from tidegate.lake.formats.commits import java_classes
from tidegate.lake.formats.iceberg.catalog import IcebergCatalog, sql_literal
from tidegate.lake.formats.iceberg.commits import CONFLICTS, begin, position_of
from tidegate.model.sql import parts_of, quoted

TARGET_BYTES = 256 << 20
_MANY_FILES = 50
"""Files beyond what the size of a table asks for, above which they are compacted."""
_SIZE = "total-files-size"
_ORPHAN_AGE = timedelta(hours=25)
"""How old files of no version must be to go; Iceberg takes no less than a day."""


class IcebergUpkeep(IcebergCatalog):
    """The upkeep of a lake's tables and logs."""

    def is_scattered(self, identifier: str) -> bool:
        summary = self._load(identifier).currentSnapshot().summary()
        files, size = (int(summary.get(name) or 0) for name in ("total-data-files", _SIZE))
        return files - size // TARGET_BYTES > _MANY_FILES

    def compact_files(self, identifier: str) -> None:
        self._rewrite_files(identifier, {})

    def is_conflict(self, error: PySparkException | Py4JJavaError) -> bool:
        return not CONFLICTS.isdisjoint(java_classes(error))

    def _forget_versions(self, identifier: str, *, keep_seconds: float) -> None:
        oldest = int((time.time() - keep_seconds) * 1000)
        self._load(identifier).expireSnapshots().expireOlderThan(oldest).commit()

    def _maintain_log(self, identifier: str, *, keep_seconds: float) -> Mapping[str, int]:
        # Appends merge manifests, so those of a log stay few.
        return self._expire(identifier, datetime.now(UTC) - timedelta(seconds=keep_seconds))

    def _rewrite_files(self, identifier: str, options: Mapping[str, str]) -> Row:
        table = self._load(identifier)
        position = position_of(table)
        if position is not None:
            # The snapshot of a rewrite has none in its summary. No snapshot is added for it, which
            # would keep the rewritten files: a property of an earlier position does no harm.
            transaction = begin(self._jvm, table)
            self._set_properties(transaction, {POSITION: str(position)})
            self._commit(transaction)
        self.guard.check()
        texts = [sql_literal(text) for option in options.items() for text in option]
        given = f", options => map({', '.join(texts)})" if options else ""
        (found,) = self._call("rewrite_data_files", identifier, given)
        return found

    def _call(self, procedure: str, identifier: str, arguments: str = "") -> list[Row]:
        _, *name = parts_of(identifier)
        system = quoted(self._catalog_name) + ".system"
        return self.spark.sql(
            f"CALL {system}.{procedure}(table => {sql_literal(quoted(*name))}{arguments})"
        ).collect()

    def maintain(self, identifier: str, *, keep_seconds: float) -> Mapping[str, int]:
        oldest = datetime.now(UTC) - timedelta(seconds=keep_seconds)
        files = self._rewrite_files(
            identifier, {"delete-file-threshold": "1", "remove-dangling-deletes": "true"}
        )
        (manifests,) = self._call("rewrite_manifests", identifier)
        return {
            "data files compacted": files["rewritten_data_files_count"],
            "data files written": files["added_data_files_count"],
            "manifests compacted": manifests["rewritten_manifests_count"],
            **self._expire(identifier, oldest),
        }

    def _expire(self, identifier: str, oldest: datetime) -> dict[str, int]:
        """Forgets versions, and removes the files that no other one has, and orphans."""
        (expired,) = self._call("expire_snapshots", identifier, _older_than(oldest))
        # In a folder of our own making; where a catalog chooses them, tables may share one.
        orphans = self._remove_orphans(identifier) if self._place.catalog is None else 0
        return {
            "data files removed": expired["deleted_data_files_count"],
            "delete files removed": expired["deleted_position_delete_files_count"]
            + expired["deleted_equality_delete_files_count"],
            "manifests removed": expired["deleted_manifest_files_count"],
            "snapshots removed": expired["deleted_manifest_lists_count"],
            "orphan files removed": orphans,
        }

    def _remove_orphans(self, identifier: str) -> int:
        """Removes what was written for commits that never came; how many files that were.

        Only those of yesterday and before: a commit may be under way.
        """
        before = datetime.now(UTC) - _ORPHAN_AGE
        return len(self._call("remove_orphan_files", identifier, _older_than(before)))


def _older_than(instant: datetime) -> str:
    """An argument of a procedure."""
    return f", older_than => TIMESTAMP '{instant:%Y-%m-%d %H:%M:%S.%f}+00:00'"
