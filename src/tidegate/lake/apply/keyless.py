"""Counts the rows of a table without a key: each is there as often as it was put and not removed.

A row that is sent again looks like a second identical row. A partition's rows are cut into runs
where the sender is seen to start again, and the largest count of identical rows in any one run of a
transaction is the right one. Identical rows of several messages in one run may be either: they are
counted, and `messages` says so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StructType

from tidegate.changefeed.receive.order import POSITION
from tidegate.changefeed.receive.release import Source
from tidegate.lake.apply.changes import Changes, chunks
from tidegate.lake.apply.rows import RowReader
from tidegate.lake.storage.names import own
from tidegate.model import EventFlag
from tidegate.spark.types import arrow_type, spark_schema
from tidegate.spark.workers import forget_zip_importers

NET, LOWEST, MESSAGES = own("net"), own("lowest"), own("messages")
"""The columns of a count: how many rows more there are in the end, the least that there were on the
way, and by how many messages identical rows of one transaction came in one run."""

PLACES = (*POSITION, "commit_ts")
"""The columns from which runs are found."""
_READ = (*PLACES, "kind", "shape", "flags", "after", "before", "before_missing")

_SENT = ["content", "commit_ts", "sign", "topic", "partition", "run"]


class UnknownOldRow(Exception):
    """An update of a table without a key does not say which row it changed."""

    def __init__(self) -> None:
        super().__init__("it has no key, and an update came without the values of the old row")


@dataclass(frozen=True, slots=True)
class Runs:
    """Which run the events of each partition are of: from which (offset, event) on."""

    starts: Mapping[Source, tuple[list[tuple[int, int]], list[int]]]

    @classmethod
    def of(cls, rows: pa.Table, marks: pa.Table) -> Runs:
        """From the places of row changes and watermarks.

        A sender has started again where a commit_ts or a watermark is lower than the one before it,
        and where rows follow a watermark that had promised them.
        """
        is_mark = pa.array([False] * rows.num_rows + [True] * marks.num_rows, pa.bool_())
        events = pa.concat_tables([rows.select(list(PLACES)), marks.select(list(PLACES))])
        events = events.append_column("mark", is_mark)
        events = events.sort_by([(name, "ascending") for name in POSITION])
        columns = (events[name].to_pylist() for name in (*PLACES, "mark"))
        by_source = groupby(zip(*columns, strict=True), key=lambda event: Source(*event[:2]))
        return cls({source: _starts(group) for source, group in by_source})

    def numbers(self, changes: pa.Table) -> pa.Array:
        """The run of each row change."""
        columns = (changes[name].to_pylist() for name in POSITION)
        return pa.array(
            [
                self._number(Source(topic, partition), (offset, event))
                for topic, partition, offset, event in zip(*columns, strict=True)
            ],
            pa.int64(),
        )

    def _number(self, source: Source, place: tuple[int, int]) -> int:
        places, numbers = self.starts[source]
        return numbers[0] if len(numbers) == 1 else numbers[bisect_right(places, place) - 1]


def _starts(events: Iterable[tuple[Any, ...]]) -> tuple[list[tuple[int, int]], list[int]]:
    """Where runs of one partition begin, and their numbers."""
    places: list[tuple[int, int]] = []
    numbers: list[int] = []
    times = row_ts = mark_ts = highest = 0
    for _, _, offset, event, ts, is_watermark in events:
        if is_watermark:
            times += ts < mark_ts
            mark_ts, highest = ts, max(highest, ts)
            continue
        times += ts < row_ts
        row_ts = ts
        number = 2 * times + (ts <= highest)
        if not numbers or number != numbers[-1]:
            places.append((offset, event))
            numbers.append(number)
    return places, numbers


@dataclass(frozen=True, slots=True)
class CountedRows:
    """From row changes to how many of each row there are more, or fewer, in the end."""

    reader: RowReader
    runs: Runs

    columns: ClassVar[tuple[str, ...]] = _READ

    def here(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """The columns of the table, NET, LOWEST and MESSAGES: each row once."""
        return self._net(pa.concat_tables([self._schema.empty_table(), *self._counts(batches)]))

    def by_spark(self, spark: SparkSession, changes: Changes) -> DataFrame:
        """The same for many changes."""
        counts = changes.spread(spark, _READ, self._counts, self._schema)
        columns: StructType = spark_schema(self.reader.schema.carried)
        for name in (NET, LOWEST):
            columns = columns.add(name, LongType())
        columns = columns.add(MESSAGES, IntegerType())
        return counts.repartition("content").mapInArrow(self._decide, columns)

    def _decide(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        forget_zip_importers()
        yield from chunks(self._net(pa.Table.from_batches(batches, self._schema)))

    def _counts(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """How often changes of each message put and remove which rows."""
        for batch in batches:
            changes = pa.Table.from_batches([batch]).combine_chunks()
            _check_old_rows(changes)
            runs = self.runs.numbers(changes)
            for side, sign in (("before", -1), ("after", 1)):
                is_there = pc.is_valid(changes[side]).combine_chunks()
                yield self._side(changes.filter(is_there), side, sign, runs.filter(is_there))

    def _side(self, changes: pa.Table, side: str, sign: int, runs: pa.Array) -> pa.Table:
        changes = changes.combine_chunks()
        columns, known = self.reader.schema.carried, {}
        if side == "before":
            known = {each.name: self.reader.old_strings(changes, each.name) for each in columns}
        values = self.reader.typed(changes, changes[side].combine_chunks(), known)
        values = [pc.add(each, 0) if pa.types.is_floating(each.type) else each for each in values]
        signs = pa.repeat(pa.scalar(sign, pa.int8()), len(runs))
        sent = [_contents(values, len(runs)), changes["commit_ts"], signs]
        sent += [changes["topic"], changes["partition"], runs, changes["offset"]]
        ones = pa.repeat(pa.scalar(1, pa.int64()), len(runs))
        return _merged(pa.table([*sent, ones, *values], self._schema.names).cast(self._schema))

    def _net(self, counts: pa.Table) -> pa.Table:
        """From all counts of some rows to how many there are of each in the end."""
        counts = _merged(counts.combine_chunks())
        places = pa.array(range(counts.num_rows), pa.int64())
        counts = counts.append_column("place", places)
        # By the messages of a run, then the largest run of a partition, then all partitions.
        asked = [("count", "sum"), ("place", "min"), ([], "count_all")]
        of_runs = counts.group_by(_SENT, use_threads=False).aggregate(asked)
        of_runs = of_runs.sort_by([("count_sum", "descending"), ("count_all", "ascending")])
        first = [("count_sum", "first"), ("place_min", "min"), ("count_all", "first")]
        of_sources = of_runs.group_by(_SENT[:-1], use_threads=False).aggregate(first)
        sums = [("count_sum_first", "sum"), ("place_min_min", "min"), ("count_all_first", "sum")]
        sent = of_sources.group_by(_SENT[:3], use_threads=False).aggregate(sums)
        # Deletes go first in a transaction. A row from before the feed cannot be taken away: what
        # the sum falls below the number of rows that are there does not count.
        sent = sent.sort_by([(name, "ascending") for name in _SENT[:3]])
        names = ("content", "sign", "count_sum_first_sum", "place_min_min_min")
        rows: dict[str, list[int]] = {}
        columns = (sent[name].to_pylist() for name in (*names, "count_all_first_sum"))
        for content, sign, count, place, messages in zip(*columns, strict=True):
            row = rows.setdefault(content, [place, 0, 0, 0])
            row[1] += sign * count
            row[2] = min(row[2], row[1])
            row[3] = max(row[3], messages)
        taken, net, lowest, most = zip(*rows.values(), strict=True) if rows else ((), (), (), ())
        values = counts.select(self._value_names).take(pa.array(taken, pa.int64()))
        found = values.rename_columns(list(self.reader.schema.carried_names))
        for name, numbers in ((NET, net), (LOWEST, lowest)):
            found = found.append_column(name, pa.array(numbers, pa.int64()))
        return found.append_column(MESSAGES, pa.array(most, pa.int32()))

    @property
    def _value_names(self) -> list[str]:
        return [f"c{number}" for number in range(len(self.reader.schema.carried))]

    @property
    def _schema(self) -> pa.Schema:
        kinds: list[Any] = [("content", pa.string()), ("commit_ts", pa.int64())]
        kinds += [("sign", pa.int8()), ("topic", pa.string()), ("partition", pa.int32())]
        kinds += [("run", pa.int64()), ("offset", pa.int64()), ("count", pa.int64())]
        columns = self.reader.schema.carried
        values = zip(self._value_names, map(arrow_type, columns), strict=True)
        return pa.schema([*kinds, *values])


def _merged(counts: pa.Table) -> pa.Table:
    """The counts of one message's identical rows as one; their values are the same."""
    places = pa.array(range(counts.num_rows), pa.int64())
    grouped = counts.append_column("place", places).group_by([*_SENT, "offset"], use_threads=False)
    merged = grouped.aggregate([("count", "sum"), ("place", "min")])
    found = counts.take(merged["place_min"])
    place = counts.schema.get_field_index("count")
    return found.set_column(place, "count", merged["count_sum"])


def _contents(values: list[pa.Array], count: int) -> pa.Array:
    """What tells each row from others."""
    rows = zip(*(each.to_pylist() for each in values), strict=True) if values else [()] * count
    digests = [blake2b(repr(row).encode(), digest_size=16).hexdigest() for row in rows]
    return pa.array(digests, pa.string())


def _check_old_rows(changes: pa.Table) -> None:
    """Raises UnknownOldRow where the rows that updates change cannot be found."""
    flag = pa.scalar(int(EventFlag.BEFORE_AMBIGUOUS), changes["flags"].type)
    is_ambiguous = pc.fill_null(pc.not_equal(pc.bit_wise_and(changes["flags"], flag), 0), False)
    unknown = pc.or_(pc.is_null(changes["before"]), is_ambiguous)
    if pc.any(pc.and_(pc.equal(changes["kind"], "update"), unknown)).as_py():
        raise UnknownOldRow
