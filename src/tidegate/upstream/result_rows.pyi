from collections.abc import Callable, Sequence

import pyarrow as pa

class ResultError(Exception):
    code: int
    message: str
    def __init__(self, code: int, message: str) -> None: ...

class BrokenResult(Exception): ...

class UnreadableValue(Exception):
    column: int
    reason: str
    def __init__(self, column: int, reason: str) -> None: ...

class ResultRows:
    ended: bool
    def __init__(self, types: Sequence[tuple[int, int]], sequence: int) -> None: ...
    def read(
        self, readinto: Callable[[memoryview], int], limit: int
    ) -> list[pa.StringArray] | None: ...
