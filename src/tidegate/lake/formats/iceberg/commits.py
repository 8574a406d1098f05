"""Commits to exactly the state of an Iceberg table that was loaded and checked."""

from __future__ import annotations

from typing import Any

from tidegate.lake.formats.base import POSITION, Position

CONFLICT = "org.apache.iceberg.exceptions.CommitFailedException"
CONFLICTS = {CONFLICT, "org.apache.iceberg.exceptions.ValidationException"}
"""What Iceberg throws where somebody else has committed since a table was read."""


def begin(jvm: Any, table: Any) -> Any:
    """A transaction on exactly the state of a table that was loaded.

    `newTransaction` would ask the catalog again, and take over what others have committed.
    """
    operations = table.operations()
    begin = jvm.org.apache.iceberg.Transactions.replaceTableTransaction
    return begin(table.name(), operations, operations.current())


def commit_exactly(transaction: Any) -> None:
    """Commits to exactly the state that a transaction began with.

    `commitTransaction` reloads the table, and repeats the changes on what others have committed.
    A REST catalog compares nothing but the current snapshot, so every such transaction adds one.
    """
    start, changed = transaction.startMetadata(), transaction.currentMetadata()
    transaction.underlyingOps().commit(start, changed)


def snapshot_id(table: Any) -> int:
    """The current snapshot of a table."""
    return int(table.currentSnapshot().snapshotId())


def position_of(table: Any) -> Position | None:
    """How far a table has come, by its properties and its last commit."""
    positions = [table.properties().get(POSITION)]
    snapshot = table.currentSnapshot()
    if snapshot is not None:
        positions.append(snapshot.summary().get(POSITION))
    return max((Position.parse(text) for text in positions if text), default=None)


def remove_uncommitted(transaction: Any) -> None:
    """Removes the manifests of a snapshot that was not committed; the data files stay."""
    snapshot = transaction.currentMetadata().currentSnapshot()
    files = transaction.underlyingOps().io()
    for manifest in snapshot.allManifests(files):
        if manifest.snapshotId() == snapshot.snapshotId():
            files.deleteFile(manifest.path())
    files.deleteFile(snapshot.manifestListLocation())
