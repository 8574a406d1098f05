"""Claim checks: large messages kept in storage, of which Kafka carries only the location.

An object is named by the last element of the location, whatever storage the location speaks of, as
TiCDC's own consumers do it; so a location cannot lead outside the folder that the caller chose.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from tidegate.model import ClaimCheckError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")

Message = tuple[bytes | None, bytes]


def object_name(location: str) -> str:
    """The object's name in the claim-check storage."""
    name = location.rsplit("/", 1)[-1]
    if not _NAME.match(name):
        raise ClaimCheckError(location, "its last element is not the name of an object")
    return name


def from_folder(folder: str | Path) -> Callable[[str], bytes]:
    """A loader for `decode_batch` that reads objects from a folder."""
    root = Path(folder)

    def load(location: str) -> bytes:
        path = root / object_name(location)
        try:
            return path.read_bytes()
        except OSError as error:
            raise ClaimCheckError(location, f"{error.strerror} ({path})") from error

    return load


def from_uri(place: str) -> Callable[[str], bytes]:
    """A loader that reads objects from a folder, or from a URI of storage that pyarrow knows.

    Such URIs (`s3://bucket/prefix?region=…`, `gs://`, `hdfs://`) are those of pyarrow's
    `FileSystem.from_uri`.
    """
    if "://" not in place:
        return from_folder(place)
    from pyarrow.fs import FileSystem  # 40 ms that others need not spend

    try:
        storage, root = FileSystem.from_uri(place)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise ClaimCheckError(place, f"the storage cannot be opened ({error})") from error

    def load(location: str) -> bytes:
        path = f"{root.rstrip('/')}/{object_name(location)}"
        try:
            with storage.open_input_stream(path) as stream:
                return bytes(stream.read())
        except OSError as error:
            raise ClaimCheckError(location, f"{error} ({path})") from error

    return load


def to_folder(folder: str | Path) -> Callable[[bytes], str]:
    """A writer for `EncodeOptions.claim_check` that keeps objects in a folder."""
    root = Path(folder)

    def store(content: bytes) -> str:
        path = root / f"{uuid4()}.json"
        path.write_bytes(content)
        return f"{root.absolute().as_uri()}/{path.name}"

    return store


def open_claim_check(load: Callable[[str], bytes]) -> Callable[[str], Message]:
    """Loads an object and takes the message out of it. Both forms of objects are told apart by how
    they begin: `{"key":…,"value":…}` in base64, or the value's bytes alone (claim-check-raw-value).
    """

    def message(location: str) -> Message:
        object_name(location)
        content = load(location)
        return unpack(location, content) if content.startswith(b'{"key":') else (None, content)

    return message


def unpack(location: str, content: bytes) -> Message:
    """Key and value out of a claim-check object."""
    try:
        document = json.loads(content)
        key, value = document.get("key"), document["value"]
        return (
            None if key is None else b64decode(key, validate=True),
            b64decode(value, validate=True),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as bad:
        raise ClaimCheckError(location, "it does not hold a key and a value in base64") from bad


def pack(key: bytes | None, value: bytes) -> bytes:
    """A claim-check object as TiCDC writes it."""
    encoded_key = "null" if key is None else f'"{b64encode(key).decode()}"'
    return f'{{"key":{encoded_key},"value":"{b64encode(value).decode()}"}}'.encode()
