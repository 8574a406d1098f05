"""The files of a capture, on this machine or on an object store, listed and opened alike."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from tidegate.model import CaptureError, SourceError
from tidegate.wire import capture_files
from tidegate.wire.capture import SUFFIXES

_BUFFER_BYTES = 1 << 20
_S3 = ("s3", "s3a", "s3n")


@dataclass(frozen=True, slots=True)
class FileState:
    """A file by its name, with what shows that it was not changed."""

    name: str
    size: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class CaptureFiles:
    """The file at a path, or the capture files in the folder there.

    `path` is local, or a URI (`s3://bucket/folder`) whose storage is reached with `properties`, by
    Iceberg's names for them (`s3.endpoint`); without any, as pyarrow finds its way.
    """

    path: str
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Whether the files are on this machine."""
        return "://" not in self.path

    @property
    def identity(self) -> str:
        """The path, whatever folder the process works in."""
        return str(Path(self.path).absolute()) if self.is_local else self.path

    def listed(self) -> tuple[list[FileState], bool]:
        """The files in the order of their names, and whether they are in a folder."""
        if self.is_local:
            files = capture_files(self.path)
            stats = [file.stat() for file in files]
            states = [
                FileState(file.name, stat.st_size, stat.st_mtime_ns)
                for file, stat in zip(files, stats, strict=True)
            ]
            return states, os.path.isdir(self.path)
        store, place = self._store()
        try:
            info = store.get_file_info(place)
            is_folder = info.type == pafs.FileType.Directory
            if info.type == pafs.FileType.NotFound:
                raise CaptureError(self.path, 0, "there is no such file")
            found = store.get_file_info(pafs.FileSelector(place)) if is_folder else [info]
        except (pa.ArrowException, OSError) as error:
            raise self._unreachable(error) from error
        states = [
            FileState(each.base_name, each.size, each.mtime_ns or 0)
            for each in sorted(found, key=lambda each: str(each.base_name))
            if each.is_file and (not is_folder or _is_capture(each.base_name))
        ]
        if not states:
            endings = ", ".join(SUFFIXES)
            raise CaptureError(self.path, 0, f"the folder has no files ending in {endings}")
        return states, is_folder

    def name_of(self, name: str) -> str:
        """The path of a file of the capture, for messages."""
        if self.is_local:
            return os.path.join(self.path, name) if os.path.isdir(self.path) else self.path
        path = self.path.rstrip("/")
        return path if path.endswith(f"/{name}") else f"{path}/{name}"

    def open(self, name: str) -> BufferedReader:
        """A file of the capture; CaptureError where it cannot be read."""
        path = self.name_of(name)
        try:
            if self.is_local:
                return cast(BufferedReader, open(path, "rb", _BUFFER_BYTES))
            store, place = self._store()
            place = place if place.endswith(f"/{name}") else f"{place}/{name}"
            return BufferedReader(cast(Any, store.open_input_file(place)), _BUFFER_BYTES)
        except FileNotFoundError as error:
            raise CaptureError(path, 0, "there is no such file") from error
        except (pa.ArrowException, OSError) as error:
            raise CaptureError(path, 0, str(error)) from error

    def _store(self) -> tuple[Any, str]:
        """The filesystem, and the path in it."""
        parts = urlsplit(self.path)
        try:
            if self.properties:
                from pyiceberg.io.pyarrow import PyArrowFileIO

                files = PyArrowFileIO(dict(self.properties))
                store = files.fs_by_scheme(parts.scheme, parts.netloc)
                place = f"{parts.netloc}{parts.path}" if parts.scheme != "hdfs" else parts.path
                return store, place.rstrip("/")
            uri = f"s3{self.path[len(parts.scheme) :]}" if parts.scheme in _S3 else self.path
            store, place = pafs.FileSystem.from_uri(uri)
            return store, str(place).rstrip("/")
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: BaseException) -> SourceError:
        reason = " ".join(str(error).split()).rstrip(".")
        step = "Check the URI, and the storage's address and credentials"
        return SourceError(f"the capture {self.path!r}", reason, step)


def _is_capture(name: str) -> bool:
    return name.endswith(SUFFIXES) and name[0] not in "._"
