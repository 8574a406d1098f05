"""Bytes and changes: every TiCDC protocol, decoded to and encoded from one columnar batch."""

from tidegate.wire.batch.change import CHANGE_SCHEMA, KINDS, MESSAGE_SCHEMA
from tidegate.wire.batch.events import EventReader, to_json_events
from tidegate.wire.batch.shapes import Shape, ShapeBook, ShapeColumn
from tidegate.wire.capture import (
    CAPTURE_SCHEMA,
    capture_files,
    read_capture,
    read_captures,
    write_capture,
)
from tidegate.wire.kernel.claim_check import from_folder, from_uri, to_folder
from tidegate.wire.options import EncodeOptions
from tidegate.wire.protocols import PROTOCOLS, decode_batch, encode_batch
from tidegate.wire.sniff import Sniffed, other_protocol, sniff, sniff_all

__all__ = [
    "CAPTURE_SCHEMA",
    "CHANGE_SCHEMA",
    "KINDS",
    "MESSAGE_SCHEMA",
    "PROTOCOLS",
    "EncodeOptions",
    "EventReader",
    "Shape",
    "ShapeBook",
    "ShapeColumn",
    "Sniffed",
    "capture_files",
    "decode_batch",
    "encode_batch",
    "from_folder",
    "from_uri",
    "other_protocol",
    "read_capture",
    "read_captures",
    "sniff",
    "sniff_all",
    "to_folder",
    "to_json_events",
    "write_capture",
]
