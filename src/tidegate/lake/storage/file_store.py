"""Reaches the files of a lake's tables from Python, wherever the catalog put them.

The driver builds a `FileStore` from what the table itself says of its storage, credentials
included, and sends it to the tasks: executors need no storage settings of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyarrow.fs import FileSystem, LocalFileSystem
from pyspark.sql import SparkSession

from tidegate.model import LakeError

S3A = "fs.s3a."
_S3A_PROPERTIES = {
    "access.key": "s3.access-key-id",
    "secret.key": "s3.secret-access-key",
    "session.token": "s3.session-token",
    "endpoint": "s3.endpoint",
    "endpoint.region": "s3.region",
}
"""Hadoop's settings for S3, by Iceberg's names for them."""
_DELTA_OPTIONS = {
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.endpoint": "aws_endpoint",
    "s3.region": "aws_region",
    "client.region": "aws_region",
}
_DELTA_BOUNDS = {"connect_timeout": "5s", "retry_timeout": "25s"}
"""How long delta-rs tries to reach a store; it would try for three minutes."""


@dataclass(frozen=True, slots=True)
class FileStore:
    """Opens files by their location; `properties` are Iceberg's FileIO properties."""

    properties: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> FileStore:
        """A store with these properties."""
        return cls(tuple(sorted(properties.items())))

    def filesystem(self, location: str) -> FileSystem:
        """The file system of a location."""
        return _filesystem(self, *_place(location))

    def path(self, location: str) -> str:
        """The path of a location in its file system."""
        if is_remote(location):
            return location.partition("://")[2]
        return f"/{location[5:].lstrip('/')}" if location.startswith("file:") else location

    def delta_options(self) -> dict[str, str]:
        """The same in the words of delta-rs."""
        told = {
            _DELTA_OPTIONS[name]: value for name, value in self.properties if name in _DELTA_OPTIONS
        }
        if told.get("aws_endpoint", "").startswith("http://"):
            told["aws_allow_http"] = "true"
        return told and told | _DELTA_BOUNDS


def is_remote(location: str) -> bool:
    """Whether a location is in an object store, not on a disk of this machine."""
    scheme = location.partition("://")[0] if "://" in location else ""
    return scheme not in ("", "file")


def make_folder(folder: Path) -> None:
    """Makes a folder of a lake if it is not there; LakeError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error


def unwritable(folder: Path, error: OSError) -> LakeError:
    """What to say where a file of the lake cannot be written."""
    return LakeError(
        f"The lake {str(folder)!r} cannot be written to: {error.strerror}",
        "Make room there, or see to its permissions, and start the mirror again",
    )


def s3a_settings(spark: SparkSession) -> dict[str, str]:
    """Hadoop's settings for S3 (`fs.s3a.…`) in a session."""
    context: Any = spark.sparkContext
    settings = context._jsc.hadoopConfiguration().getPropsWithPrefix(S3A)
    return {S3A + name: value for name, value in dict(settings).items()}


def hadoop_properties(settings: Mapping[str, str]) -> dict[str, str]:
    """Iceberg's FileIO properties for Hadoop's settings for S3 (`fs.s3a.…`)."""
    told = {
        _S3A_PROPERTIES[name.removeprefix(S3A)]: value
        for name, value in settings.items()
        if name.startswith(S3A) and name.removeprefix(S3A) in _S3A_PROPERTIES
    }
    endpoint = told.get("s3.endpoint")
    if endpoint and "://" not in endpoint:
        secure = settings.get(f"{S3A}connection.ssl.enabled", "true") != "false"
        told["s3.endpoint"] = f"{'https' if secure else 'http'}://{endpoint}"
    if settings.get(f"{S3A}path.style.access") == "false":
        told["s3.force-virtual-addressing"] = "true"
    return told


def _place(location: str) -> tuple[str, str]:
    parts = urlsplit(location)
    return (parts.scheme, parts.netloc) if is_remote(location) else ("", "")


@lru_cache(maxsize=32)
def _filesystem(store: FileStore, scheme: str, netloc: str) -> FileSystem:
    if not scheme:
        return LocalFileSystem()
    # It takes half a second to import, and local lakes do without.
    from pyiceberg.io.pyarrow import PyArrowFileIO

    files: Any = PyArrowFileIO(dict(store.properties))
    try:
        found: FileSystem = files.fs_by_scheme(scheme, netloc)
    except ValueError as error:
        raise LakeError(
            f"Files of the lake are at {scheme}://{netloc}, which Tidegate cannot open: {error}",
            "Use a catalog whose tables are in S3, Azure, Google Cloud Storage, HDFS or a folder",
        ) from error
    return found
