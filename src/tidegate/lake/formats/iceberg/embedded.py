"""The embedded catalog of a lake in a local folder: a SQLite file, which is read without a JVM."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from tidegate.lake.formats.base import CHANGELOG, OWN_DATABASE, LakePlace, local_folder

CATALOG_FILE = "catalog.db"


def session_settings(place: LakePlace) -> dict[str, str]:
    """The settings of Spark for the tables of a lake, and its catalog unless one is named."""
    settings = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    }
    if place.catalog is not None:
        return settings
    folder = local_folder(place.folder)
    catalog = f"spark.sql.catalog.{place.name}"
    return settings | {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{folder / CATALOG_FILE}",
        f"{catalog}.jdbc.schema-version": "V1",
        # Several processes may have the file open: they wait for each other, and readers for none.
        f"{catalog}.jdbc.busy_timeout": "60000",
        f"{catalog}.jdbc.journal_mode": "WAL",
        f"{catalog}.warehouse": str(folder / "tables"),
        # A table may have been changed elsewhere, or by the Java API.
        f"{catalog}.cache-enabled": "false",
        # For checkpoints; see `_write_no_checksums`.
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    }


class Recorded(NamedTuple):
    """What the embedded catalog of a folder says of itself.

    It finds its tables under its `name` only, and their files below the folder it was made in.
    """

    name: str
    folder: str


def recorded(folder: Path) -> Recorded | None:
    """What the catalog in a folder says; None where there is none, or nothing in it."""
    path = folder / CATALOG_FILE
    if not path.is_file():
        return None
    with closing(sqlite3.connect(path)) as connection:
        is_made = "SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'"
        if connection.execute(is_made).fetchone() is None:
            return None
        # A log of the lake's own is where the catalog puts it, below the folder of all tables.
        found = connection.execute(
            "SELECT catalog_name, metadata_location FROM iceberg_tables WHERE table_name = ? "
            "ORDER BY metadata_location LIKE ? DESC",
            (CHANGELOG, f"%{OWN_DATABASE}/{CHANGELOG}/%"),
        ).fetchone()
    if found is None:
        return None
    name, location = found
    return Recorded(name, location.removeprefix("file:").rpartition("/tables/")[0])


def log_properties(folder: Path, database: str, name: str) -> dict[str, str]:
    """The properties of a log in the embedded catalog of a folder, read without a JVM."""
    path = folder / CATALOG_FILE
    if recorded(folder) is None:
        return {}
    with closing(sqlite3.connect(path)) as connection:
        row = connection.execute(
            "SELECT metadata_location FROM iceberg_tables "
            "WHERE table_namespace = ? AND table_name = ?",
            (database, name),
        ).fetchone()
    if row is None:
        return {}
    metadata = json.loads(Path(row[0].removeprefix("file:")).read_text(encoding="utf-8"))
    properties: dict[str, str] = metadata["properties"]
    return properties
