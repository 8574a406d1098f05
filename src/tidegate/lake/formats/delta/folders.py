"""The folders of a lake's Delta tables, on a disk or in an object store."""

from __future__ import annotations

from pyarrow.fs import FileSelector, FileSystem, FileType
from pyspark.sql import SparkSession

from tidegate.lake.formats.base import LakePlace, local_folder
from tidegate.lake.storage.file_store import FileStore, hadoop_properties, is_remote, s3a_settings


class Folders:
    """The folders of a lake's tables, on a disk or in an object store."""

    def __init__(self, spark: SparkSession, place: LakePlace) -> None:
        self._spark = spark
        folder = place.folder.rstrip("/")
        self.root = folder if is_remote(folder) else str(local_folder(folder))
        self.tables = f"{self.root}/tables"
        self.own = f"{self.tables}/{place.own_database}"

    def store(self) -> FileStore:
        """What opens their files: with Hadoop's settings, by which Spark opens them too."""
        if not is_remote(self.root):
            return FileStore()
        return FileStore.of(hadoop_properties(s3a_settings(self._spark)))

    def files(self, folder: str) -> tuple[FileSystem, str]:
        """The file system of a folder, and its path there."""
        store = self.store()
        return store.filesystem(folder), store.path(folder)

    def listed(self, folder: str) -> list[str]:
        """The names in a folder; none where it does not exist."""
        files, path = self.files(folder)
        found = files.get_file_info(FileSelector(path, allow_not_found=True))
        return sorted(each.base_name for each in found)

    def is_table(self, folder: str) -> bool:
        """Whether a folder is that of a table."""
        return any(name.endswith(".json") for name in self.listed(f"{folder}/_delta_log"))

    def mirrored(self, prefix: str) -> list[str]:
        """The folders of tables whose database has a prefix; another lake may have such ones."""
        own = self.own.rpartition("/")[2]
        return [
            f"{self.tables}/{database}/{table}"
            for database in self.listed(self.tables)
            if database.startswith(prefix) and database != own
            for table in self.listed(f"{self.tables}/{database}")
            if self.is_table(f"{self.tables}/{database}/{table}")
        ]

    def remove(self, folder: str) -> None:
        """Removes the folder of a table; the log first: without it the rest is no table."""
        files, path = self.files(folder)
        for each in (f"{path}/_delta_log", path):
            if files.get_file_info(each).type is FileType.Directory:
                files.delete_dir(each)
