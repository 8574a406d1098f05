"""`sysbench`: wide rows, many keys, a few of them hot; made for speed.

Nothing is kept but how often each key has changed. What the n-th change of a key does, and what the
row then holds, is a hash of seed, key and n, so that whole batches are computed at once: values are
looked up in stocks of ready texts, and the row before a change is computed like the one after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.model.tso import LOGICAL_BITS, tso_from_ms
from tidegate.wire import CHANGE_SCHEMA
from tidegate.workload.clock import DEFAULT_RATE, START_MS, WATERMARK_MS, datetime_text
from tidegate.workload.recorder import BATCH_EVENTS, Recorder, Subject, change_batch
from tidegate.workload.truth import Truth, TruthTable
from tidegate.workload.upstream import Upstream, published

DATABASE = "sbtest"

Numbers: TypeAlias = NDArray[np.int64]
Bits: TypeAlias = NDArray[np.uint64]

_KINDS = pa.array(["insert", "update", "delete", "watermark", "schema"])
_INSERT, _UPDATE, _DELETE, _WATERMARK, _SCHEMA = range(5)
_LONGEST = 4  # rows of a transaction
_STOCK = 4096
_DELETED = 0.2  # of every second change of a key

# name: (definition, every how many changes of a row it changes, as a power of two)
_COLUMNS = {
    "k": ("INT NOT NULL", 0),
    "c": ("CHAR(120) NOT NULL", 1),
    "pad": ("CHAR(60) NOT NULL", 3),
    "qty": ("INT UNSIGNED", 0),
    "price": ("DECIMAL(12,2)", 1),
    "tax": ("DECIMAL(8,4)", 2),
    "total": ("DECIMAL(14,2)", 0),
    "ref": ("BIGINT UNSIGNED", 2),
    "owner": ("BIGINT", 3),
    "region": ("SMALLINT", 4),
    "level": ("TINYINT", 1),
    "rate": ("DOUBLE", 2),
    "share": ("FLOAT", 2),
    "made": ("DATETIME", 5),
    "seen": ("DATETIME(3)", 0),
    "due": ("DATE", 2),
    "stamp": ("TIMESTAMP NULL", 0),
    "code": ("VARCHAR(20)", 3),
    "memo": ("VARCHAR(40)", 1),
}
_WIDTH = 1 + len(_COLUMNS)


@dataclass(slots=True)
class _Changes:
    """A run of row changes, an entry a change; `row` is table * keys + key."""

    row: Numbers
    commit_ts: Numbers
    second: Numbers
    """The whole second of the transaction, counted from the start."""


class Sysbench:
    """Tables `sbtest1` to `sbtestN` of twenty columns; `keys` in each."""

    name = "sysbench"

    def __init__(
        self,
        rows: int,
        seed: int,
        *,
        rate: int = DEFAULT_RATE,
        keys: int = 100_000,
        tables: int = 1,
    ) -> None:
        self.rows = rows
        self.seed = seed
        self.rate = rate
        self.keys = keys
        self.tables = tables
        self._salt = _mixed(np.array([seed % 2**64], np.uint64))[0]

    # --- what everyone may ask --------------------------------------------------------------------

    def batches(self) -> Iterator[pa.RecordBatch]:
        recorder = Recorder()
        upstream = self._created(recorder)
        subjects = [recorder.table(table.schema) for table in upstream.tables.values()]
        yield recorder.batch()
        versions = np.zeros(self.tables * self.keys, np.int32)
        second = 0
        for changes in self._changes():
            yield self._batch(changes, versions, second, subjects)
            second = int(changes.second[-1])
        recorder.watermark(_mark(second + 1))
        yield recorder.batch()

    def final(self) -> Truth:
        return self.at(2**63 - 1)

    def at(self, commit_ts: int) -> Truth:
        upstream = self._created(None, commit_ts)
        versions = np.zeros(self.tables * self.keys, np.int32)
        for changes in self._changes():
            done = int(np.searchsorted(changes.commit_ts, commit_ts, side="right"))
            np.add.at(versions, changes.row[:done], 1)
            if done < len(changes.row):
                break
        truth = {}
        for number, (name, table) in enumerate(upstream.tables.items()):
            first = number * self.keys
            of_table = versions[first : first + self.keys].astype(np.int64)
            there = np.flatnonzero(self._alive(np.arange(self.keys) + first, of_table)) + first
            rows = self._values(there, versions[there].astype(np.int64))
            texts = pa.FixedSizeListArray.from_arrays(rows, _WIDTH).to_pylist()
            truth[name] = TruthTable(
                published(table.schema), {(row[0],): tuple(row) for row in texts}
            )
        return Truth(truth)

    # --- what happens -----------------------------------------------------------------------------

    def _created(self, recorder: Recorder | None, commit_ts: int = 2**63 - 1) -> Upstream:
        """The tables as they are made, as far as that is before `commit_ts`."""
        upstream = Upstream(self.rows, self.rate, recorder)
        columns = ",".join(f"`{name}` {definition}" for name, (definition, _) in _COLUMNS.items())
        if upstream.next_ts <= commit_ts:
            upstream.create_database(DATABASE)
        for number in range(1, self.tables + 1):
            if upstream.next_ts <= commit_ts:
                upstream.create_table(
                    DATABASE,
                    f"CREATE TABLE `sbtest{number}` (`id` BIGINT PRIMARY KEY,{columns},"
                    "INDEX `by_k`(`k`))",
                )
        return upstream

    def _changes(self) -> Iterator[_Changes]:
        """All changes in their order, a batch at a time."""
        last_ms, counter = START_MS, 1 + self.tables  # the statements that made the tables
        for first in range(0, self.rows, BATCH_EVENTS):
            numbers = np.arange(first, min(first + BATCH_EVENTS, self.rows))
            chance = _mixed(numbers.astype(np.uint64) ^ self._salt)
            # The cube of an even distribution: a tenth of all changes go to a thousandth of keys.
            even = (chance >> np.uint64(24)).astype(np.float64) / 2**40
            key = (even * even * even * self.keys).astype(np.int64)
            table = ((chance & np.uint64(0xFFFF)) % np.uint64(self.tables)).astype(np.int64)
            row = table * self.keys + key
            begins = (numbers % _LONGEST == 0) | (chance & np.uint64(0x10000) != 0)
            begins[0] = True
            for back in range(1, _LONGEST):  # a transaction changes a row once
                begins[back:] |= row[back:] == row[:-back]
            begun = np.flatnonzero(begins)
            which = np.cumsum(begins) - 1
            ms = START_MS + numbers[begun] * 1000 // self.rate
            places = np.arange(len(ms))
            counters = places - _run_starts(ms) + 1
            counters[ms == last_ms] += counter
            last_ms, counter = int(ms[-1]), int(counters[-1])
            commit_ts = (ms << LOGICAL_BITS) + counters
            yield _Changes(row, commit_ts[which], ((ms - START_MS) // WATERMARK_MS)[which])

    def _alive(self, row: Numbers, version: Numbers) -> NDArray[np.bool_]:
        """Whether the row is there after its change number `version`; 0 is before the first."""
        chance = self._hash(row, version, 0) >> np.uint64(11)
        deleted = (version % 2 == 0) & (chance < np.uint64(int(_DELETED * 2**53)))
        alive: NDArray[np.bool_] = (version > 0) & ~deleted
        return alive

    def _hash(self, row: Numbers, version: Numbers, purpose: int) -> Bits:
        number = row.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        number += version.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
        return _mixed(number ^ self._salt ^ np.uint64(purpose * 0x165667B19E3779F9 % 2**64))

    # --- batches ----------------------------------------------------------------------------------

    def _batch(
        self,
        changes: _Changes,
        versions: NDArray[np.int32],
        second: int,
        subjects: list[Subject],
    ) -> pa.RecordBatch:
        """The changes with the watermarks between them; counts them in `versions`."""
        row = changes.row
        after = versions[row] + _rank(row) + 1
        np.maximum.at(versions, row, after.astype(np.int32))
        was, now = self._alive(row, after - 1), self._alive(row, after)
        kinds = np.where(was, np.where(now, _UPDATE, _DELETE), _INSERT)
        steps = np.diff(changes.second, prepend=second)
        behind = np.repeat(np.arange(len(row)), steps)
        marks = [_mark(second + number) for number in range(1, len(behind) + 1)]
        head = len(subjects)
        table = np.concatenate([np.arange(head), np.insert(row // self.keys, behind, head)])
        kinds = np.concatenate([np.full(head, _SCHEMA), np.insert(kinds, behind, _WATERMARK)])
        times = np.insert(changes.commit_ts, behind, marks)
        about = pa.array(table)
        of_rows = pa.array(np.where(kinds == _SCHEMA, head, table))
        count = len(kinds)
        return change_batch(
            {
                "event": pa.array(np.where(kinds == _SCHEMA, -1, 0).astype(np.int32)),
                "kind": _KINDS.take(pa.array(kinds)),
                "commit_ts": pa.concat_arrays([pa.nulls(head, pa.int64()), pa.array(times)]),
                "database": _told([DATABASE] * head, about, pa.string()),
                "table": _told([subject.table for subject in subjects], about, pa.string()),
                "table_id": _told([subject.table_id for subject in subjects], of_rows, pa.int64()),
                "shape": _told([subject.shape for subject in subjects], about, pa.int64()),
                "schema_version": _told(
                    [subject.version for subject in subjects], of_rows, pa.int64()
                ),
                "after": _lists(
                    (kinds == _INSERT) | (kinds == _UPDATE),
                    self._values(row[now], after[now]),
                ),
                "before": _lists(
                    (kinds == _UPDATE) | (kinds == _DELETE),
                    self._values(row[was], after[was] - 1),
                ),
                "schema": pa.array(
                    [subject.columns for subject in subjects] + [None] * (count - head),
                    pa.string(),
                ),
                "flags": pa.array(np.zeros(count, np.int32)),
            }
        )

    def _values(self, row: Numbers, version: Numbers) -> pa.Array:
        """The values of rows at versions, row after row."""
        places = np.empty((len(row), _WIDTH), np.int32)
        places[:, 0] = row % self.keys
        for number, (_, period) in enumerate(_COLUMNS.values(), 1):
            chance = self._hash(row, version >> period, number)
            first = self.keys + (number - 1) * _STOCK
            places[:, number] = (chance >> np.uint64(52)).astype(np.int32) + first
        return self._stock.take(pa.array(places.reshape(-1)))

    @cached_property
    def _stock(self) -> pa.Array:
        """The texts of all keys, then the ready texts of each column."""
        chance = Random(self.seed)
        texts: list[str | None] = [str(key) for key in range(1, self.keys + 1)]
        for name, (definition, _) in _COLUMNS.items():
            texts += [_text(name, definition, chance) for _ in range(_STOCK)]
        return pa.array(texts, pa.string())


def _text(name: str, definition: str, chance: Random) -> str | None:
    """A value for a column of sysbench."""
    draw = chance.random
    if "NOT NULL" not in definition and draw() < 0.05:
        return None
    kind = definition.partition(" ")[0]
    if kind == "CHAR(120)":
        return "-".join(f"{int(draw() * 1e11):011}" for _ in range(3))
    if kind == "CHAR(60)":
        return "-".join(f"{int(draw() * 1e11):011}" for _ in range(1))
    if kind in ("INT", "BIGINT", "SMALLINT", "TINYINT"):
        most = {"INT": 10**6, "BIGINT": 10**12, "SMALLINT": 1000, "TINYINT": 100}[kind]
        return str(int(draw() * most))
    if kind.startswith("DECIMAL"):
        scale = int(kind[-2])
        digits = f"{int(draw() * 10**7):0{scale + 1}}"
        return f"{digits[:-scale]}.{digits[-scale:]}"
    if kind in ("DOUBLE", "FLOAT"):
        return str(int(draw() * 10_000) / 16).removesuffix(".0")
    ms = START_MS + int(draw() * 10**10)
    if kind == "DATE":
        return datetime_text(ms)[:10]
    if kind == "DATETIME(3)":
        return f"{datetime_text(ms)}.{ms % 1000:03}"
    if kind in ("DATETIME", "TIMESTAMP"):
        return datetime_text(ms)
    return f"{name} {int(draw() * 1e9):09}"


def _told(
    values: list[str | None] | list[int | None] | list[str], about: pa.Array, kind: pa.DataType
) -> pa.Array:
    """What is told of each event's table; nothing where it has none."""
    return pa.array([*values, None], kind).take(about)


def _lists(is_there: NDArray[np.bool_], values: pa.Array) -> pa.Array:
    """One list of `_WIDTH` values where there is one, else null."""
    ends = np.concatenate([[0], np.cumsum(is_there)]) * _WIDTH
    return pa.ListArray.from_arrays(
        pa.array(ends.astype(np.int32)),
        values,
        type=CHANGE_SCHEMA.field("after").type,
        mask=pa.array(~is_there),
    )


def _mark(second: int) -> int:
    """The watermark of a whole second."""
    return tso_from_ms(START_MS + second * WATERMARK_MS)


def _mixed(number: Bits) -> Bits:
    """A hash of 64 bits (the finalizer of SplitMix64)."""
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


def _run_starts(values: Numbers) -> Numbers:
    """Where the run of equal values begins that each value is part of."""
    places = np.arange(len(values))
    is_first = np.concatenate([[True], values[1:] != values[:-1]])
    return np.maximum.accumulate(np.where(is_first, places, 0))


def _rank(row: Numbers) -> Numbers:
    """How many entries before it are of the same row."""
    order = np.argsort(row, kind="stable")
    rank = np.empty(len(row), np.int64)
    rank[order] = np.arange(len(row)) - _run_starts(row[order])
    return rank
