"""Reads chunks of upstream tables as Arrow batches of the change batch's strings.

Rows come unbuffered and in the order of the key. A connection that is lost is made again at the
same TSO, and reading continues after the last row that was delivered. A table without a key has no
such order: its chunk must be repeated as a whole, and `ChunkInterrupted` says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType

import pyarrow as pa

from tidegate.model import SourceError, TableSchema
from tidegate.upstream.chunks import Chunk
from tidegate.upstream.database import BATCH_BYTES, DatabaseSession, UpstreamDatabase
from tidegate.upstream.errors import DatabaseUnreachable

ATTEMPTS = 5
"""How often a chunk is tried without a row in between."""


class ChunkInterrupted(SourceError):
    """Reading broke off after rows were delivered, and where is not known: repeat the chunk."""


class ChunkReader:
    """Reads chunks at one TSO over one connection, which is made when it is needed."""

    def __init__(
        self,
        database: UpstreamDatabase,
        at: int | None = None,
        *,
        batch_bytes: int = BATCH_BYTES,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._database = database
        self._at = at
        self._batch_bytes = batch_bytes
        self._pause = pause
        self._session: DatabaseSession | None = None

    def __enter__(self) -> ChunkReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        if self._session is not None:
            self._session.close()

    def read(self, chunk: Chunk, schema: TableSchema) -> Iterator[pa.RecordBatch]:
        """The rows of a chunk: a string column for each column that rows carry."""
        rest, attempts, delivered = chunk, 0, False
        while True:
            try:
                for batch in self._batches(rest, schema):
                    yield batch.select(schema.carried_names)
                    attempts, delivered = 0, True
                    rest = _rest(rest, batch)
                return
            except DatabaseUnreachable as error:
                attempts += 1
                if delivered and not chunk.key:
                    raise ChunkInterrupted(
                        error.source,
                        f"{error.reason}, after some rows of {chunk.name}, which has no key",
                        "Read the chunk again from its start",
                    ) from None
                if attempts == ATTEMPTS:
                    raise
                self._pause(0.2 * 2**attempts)

    def _batches(self, chunk: Chunk, schema: TableSchema) -> Iterator[pa.RecordBatch]:
        if self._session is None or not self._session.is_open:
            self._session = self._database.session(self._at)
        columns = chunk.columns(schema)
        names = [column.name for column in columns]
        statement = chunk.select(schema, self._database.select)
        for arrays in self._session.stream(statement, columns, self._batch_bytes):
            yield pa.RecordBatch.from_arrays(arrays, names=names)


def _rest(chunk: Chunk, batch: pa.RecordBatch) -> Chunk:
    """What is left of a chunk after the last row of a batch."""
    if not chunk.key:
        return chunk
    return chunk.resumed_after([batch[name][-1].as_py() for name in chunk.key])


def read_chunk(
    database: UpstreamDatabase, chunk: Chunk, schema: TableSchema, at: int | None
) -> Iterator[pa.RecordBatch]:
    """The rows of one chunk, over a connection of its own."""
    with ChunkReader(database, at) as reader:
        yield from reader.read(chunk, schema)
