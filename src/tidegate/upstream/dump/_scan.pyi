from collections.abc import Callable, Mapping
from typing import Any

TEXT: int
BINARY: int
INTEGER: int
DECIMAL: int
FLOAT: int
DOUBLE: int
TEMPORAL: int
CHOICE: int
BITS: int
RAW: int
HEX: int
BASE64: int

class ScanError(Exception):
    position: int
    reason: str
    option: str | None
    def __init__(self, position: int, reason: str, option: str | None = None) -> None: ...

class ColumnWriter:
    name: str
    kind: int
    encoding: int
    def __init__(
        self,
        name: str,
        kind: int,
        encoding: int = 0,
        most: int = -1,
        choices: Mapping[bytes, bytes] | None = None,
        resolve: Callable[[bytes], bytes | None] | None = None,
    ) -> None: ...
    def take_strings(self, array: Any) -> Any: ...
    def take_doubles(self, array: Any) -> Any: ...
    def take_decimals(self, array: Any, scale: int, digits: int) -> Any: ...
    def take_moments(self, array: Any, digits: int) -> Any: ...

class RowScanner:
    rows: int
    done: bool
    in_values: bool
    columns: list[ColumnWriter]
    def __init__(
        self,
        columns: list[ColumnWriter],
        *,
        table: str = "",
        separator: bytes = b",",
        delimiter: bytes = b'"',
        null_value: bytes = b"\\N",
        terminator: bytes = b"",
        escapes: bool = True,
        by_lines: bool = False,
        max_rows: int = 65536,
        max_bytes: int = ...,
    ) -> None: ...
    @property
    def full(self) -> bool: ...
    def take(self) -> Any: ...
    def scan_csv(self, data: Any, start: int, limit: int, final: bool) -> int: ...
    def scan_sql(self, data: Any, start: int, limit: int, final: bool) -> int: ...
