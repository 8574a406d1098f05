"""Carries out the steps of a plan: tables in parallel, each step once, whatever was cut off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidegate.lake.apply.changes import Changes, FileChanges
from tidegate.lake.apply.failures import may_be_of_one_table, sentence
from tidegate.lake.apply.keyless import (
    LOWEST,
    MESSAGES,
    NET,
    PLACES,
    CountedRows,
    Runs,
    UnknownOldRow,
)
from tidegate.lake.apply.last_changes import LatestRows
from tidegate.lake.apply.plan.steps import Create, Delete, Drop, Evolve, Rename, Rows, Step
from tidegate.lake.apply.rows import Copies, RowReader
from tidegate.lake.changelog.changelog import Changelog, of_table
from tidegate.lake.changelog.interval import Interval
from tidegate.lake.formats.base import OP, Located, TableFormat, origin_of
from tidegate.lake.formats.commits import wait_after_conflict
from tidegate.lake.routes import Routes
from tidegate.lake.storage.names import own
from tidegate.lake.storage.predicates import above_by_partition, every
from tidegate.model.sql import quoted
from tidegate.upstream.completion import Completion, failure_in
from tidegate.upstream.server import DatabaseServer
from tidegate.wire.batch.change import CHANGE_SCHEMA

MAYBE_RESENT = (
    "It has no key, and identical rows of one transaction came one after the other: they are "
    "counted as several rows, but TiCDC may have sent one row again."
)
FAILED = "A change could not be written to it: {cause}."
_SEVERAL = 3
"""Tables with rows in a step from which on their files are read once for all of them."""
_SHARED_BYTES = 128 << 20
"""What is read then at most, in bytes of memory."""
_ATTEMPTS = 5
"""How often a step is tried while others change its table."""
_SMALL_BYTES = 64 << 20
"""What a step may read, in bytes of memory, in this process and without a job of Spark's."""


class Applier:
    """Does steps on the tables of a lake."""

    _touched = False
    """Whether only keys that late rows touch are merged."""

    def __init__(
        self,
        tables: TableFormat,
        changelog: Changelog,
        interval: Interval,
        *,
        zone: str = "UTC",
        threads: int = 4,
        again: bool = False,
        routes: Routes | None = None,
        upstream: DatabaseServer | None = None,
        on_step: Callable[[Step], None] = lambda step: None,
        is_healthy: Callable[[], bool] = lambda: True,
    ) -> None:
        """`again` says that the steps may have been done in part by a run that was cut off.

        `is_healthy` says whether the lake itself can be written, when a step has failed.
        """
        self._tables = tables
        self._changelog = changelog
        self._interval = interval
        self._zone = zone
        self._threads = threads
        self._on_step = on_step
        self._routes = routes or Routes()
        self._upstream = upstream
        self._is_healthy = is_healthy
        self._again = again
        self._failed: set[int] = set()
        self._shared: dict[tuple[str, str], pa.Table] | None = None
        self._by_uid: dict[str, Located] = {}
        self._by_origin: dict[str, Located] = {}

    def run(self, steps: Sequence[Step]) -> None:
        """Does all steps; raises the first error that is everybody's, when none is running.

        A table with a problem of its own is stopped.
        """
        if self._again:
            self._find_tables(steps)
        self._shared = self._small_tables(steps)
        last: dict[tuple[str, str], Future[None]] = {}
        futures = []
        # Each step waits only for earlier ones, and these were started before it: no deadlock.
        with ThreadPoolExecutor(self._threads, thread_name_prefix="apply") as pool:
            for step in steps:
                before = [last[name] for name in step.names if name in last]
                future = pool.submit(self._do, step, before)
                futures.append(future)
                last.update(dict.fromkeys(step.names, future))
        for future in futures:
            future.result()

    def _find_tables(self, steps: Sequence[Step]) -> None:
        """Finds what an interrupted run left, by what does not change of a table."""
        located = self._tables.locate()
        self._by_uid = {each.uid: each for each in located}
        self._by_origin = {each.origin: each for each in located}
        for step in steps:
            found = self._by_uid.get(step.table.uid)
            if step.table.uid and found is not None:
                step.table.identifier = found.identifier
            elif step.table.uid:
                step.table.identifier = ""  # it is gone, as a later step has it

    def _do(self, step: Step, before: Sequence[Future[None]]) -> None:
        for future in before:
            future.result()
        # The name of a table that has failed must still make way for others.
        if id(step.table) not in self._failed or isinstance(step, Drop | Rename):
            try:
                self._attempt(step)
            except Exception as error:
                self._judge(step, error)
        self._on_step(step)

    def _attempt(self, step: Step, *, again: bool = False) -> None:
        """Does a step, from the start where somebody else has changed the table meanwhile.

        That may be the last commit of a mirror that this one has taken over: then it is done.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._try(step, again=again or attempt > 1)
            except Exception as error:
                if attempt == _ATTEMPTS or not self._tables.met_another(error):
                    raise
                wait_after_conflict(attempt)
            else:
                return

    def _judge(self, step: Step, error: Exception) -> None:
        """Stops the table whose problem it is; raises what is everybody's.

        It is the table's if the step fails a second time while the lake can be written.
        """
        if not may_be_of_one_table(error) or not self._is_healthy():
            raise error
        try:
            self._attempt(step, again=True)
        except Exception as second:
            if not may_be_of_one_table(second) or not self._is_healthy():
                raise
            self._failed.add(id(step.table))
            step.table.stop(FAILED.format(cause=sentence(second)), step.position.ts)

    def _try(self, step: Step, *, again: bool = False) -> None:
        if isinstance(step, Create):
            self._create(step)
        elif not step.table.identifier:
            return
        elif not self._is_done(step, again=again):
            self._change(step)
        elif isinstance(step, Rows) and not step.schema.handle_key():
            self._mark_keyless(step)

    def _is_done(self, step: Step, *, again: bool) -> bool:
        if not (self._again or again):
            return False
        position = self._tables.position(step.table.identifier)
        return position is None or position >= step.position

    def _create(self, step: Create) -> None:
        name = self._routes.destination(step.name)
        found = self._by_origin.get(origin_of(*name, step.position))
        if found is not None:
            step.table.identifier, step.table.uid = found.identifier, found.uid
            return
        schema = replace(step.schema, database=name.database, table=name.table)
        identifier = self._tables.create(*name, schema, step.position)
        step.table.identifier, step.table.uid = identifier, self._tables.uid(identifier)

    def _change(self, step: Step) -> None:
        tables, table, at = self._tables, step.table, step.position
        if isinstance(step, Rows):
            self._rows(step)
        elif isinstance(step, Drop):
            tables.retire(table.identifier, at)
            table.identifier = ""
        elif isinstance(step, Rename):
            name = self._routes.destination(step.new_name)
            table.identifier = tables.rename(table.identifier, *name, at)
        elif isinstance(step, Evolve):
            tables.evolve(table.identifier, step.before, step.change, at, self._zone)
        elif isinstance(step, Delete):
            tables.delete(table.identifier, step.condition, at)
        else:
            raise TypeError(f"no such step: {type(step).__name__}")

    # --- rows -------------------------------------------------------------------------------------

    def _rows(self, step: Rows) -> None:
        reader = RowReader(step.schema, step.layouts, self._zone, step.sent)
        key = step.schema.handle_key()
        if not key:
            self._keyless(step, reader)
            return
        completion = None
        if step.incomplete:
            assert self._upstream is not None
            completion = Completion(
                self._upstream, step.name, step.sent.carried, tuple(key), self._zone
            )
        order, touched = self._interval.order, self._touched
        latest = LatestRows(reader, tuple(key), order, step.moves, touched, completion)
        if step.incomplete:
            self._incomplete_rows(step, latest)
        else:
            rows = self._last_rows(step, latest)
            self._tables.merge(step.table.identifier, rows, key, step.position)

    def _changes(self, step: Rows, reader: RowReader) -> Changes:
        """The rows of a step as they are in the changelog."""
        within = of_table(*step.name) & self._interval.within(*step.segments)
        copies = self._copies(step, reader) if step.late else None
        changelog = self._changelog
        return FileChanges(changelog.store, tuple(changelog.files(within)), within, copies)

    def _copies(self, step: Rows, reader: RowReader) -> Copies:
        """The rows of the last instant that were applied in time."""
        assert self._interval.late_ts is not None
        applied = of_table(*step.name) & self._interval.applied
        whole = self._changelog.whole()
        in_time = FileChanges(whole.store, tuple(whole.files(applied)), applied)
        rows = (row for batch in in_time.batches(Copies.COLUMNS) for row in batch.to_pylist())
        prints = frozenset(map(reader.fingerprint, rows))
        return Copies(self._interval.late_ts, reader, prints)

    def _last_rows(self, step: Rows, latest: LatestRows) -> DataFrame | pa.Table:
        """What each key has in the end.

        Few rows are reduced right here, and of many rows most are dropped as they are read.
        """
        if self._shared is not None and not step.late:
            rows = self._shared.get((step.name.database, step.name.table))
            if rows is None:
                return latest.here([])
            rows = rows.filter(self._interval.between(*step.segments).arrow())
            return latest.here(rows.select(list(latest.columns)).combine_chunks().to_batches())
        changes = self._changes(step, latest.reader)
        size = changes.size(step.count, _SMALL_BYTES)
        if size <= _SMALL_BYTES:
            return latest.here(changes.batches(latest.columns))
        return latest.by_spark(self._tables.spark, changes, size)

    def _small_tables(self, steps: Sequence[Step]) -> dict[tuple[str, str], pa.Table] | None:
        """The rows of all tables, where there are several and all of them together are small.

        Each table would else open all files of the step for itself.
        """
        names = {step.name for step in steps if isinstance(step, Rows) and not step.late}
        if len(names) < _SEVERAL or self._touched:
            return None
        changelog, rows = self._changelog, self._interval.rows
        files = tuple(changelog.files(rows))
        count = sum(file.rows for file in files)
        if FileChanges(changelog.store, files, rows).size(count, _SHARED_BYTES) > _SHARED_BYTES:
            return None
        return changelog.rows_by_table(rows, LatestRows.READ)

    def _incomplete_rows(self, step: Rows, latest: LatestRows) -> None:
        """Rows of which some have only the key: these are asked for once, before the merge."""
        changes = self._changes(step, latest.reader)
        size = changes.size(step.count, _SMALL_BYTES)
        rows = latest.by_spark(self._tables.spark, changes, size).persist()
        try:
            rows.count()
            self._tables.merge(step.table.identifier, rows, latest.key, step.position)
        except PySparkException as error:
            failure = failure_in(error)
            if failure is None:
                raise
            raise failure from None
        finally:
            rows.unpersist()

    def _counted(self, step: Rows, reader: RowReader) -> DataFrame:
        """How many of each row a table without a key has more, or fewer, after a step."""
        changes = self._changes(step, reader)
        counted = CountedRows(reader, self._runs(changes))
        spark = self._tables.spark
        if changes.size(step.count, _SMALL_BYTES) <= _SMALL_BYTES:
            net = spark.createDataFrame(counted.here(changes.batches(counted.columns)))
        else:
            try:
                net = counted.by_spark(spark, changes).localCheckpoint()
            except PySparkException as error:
                if UnknownOldRow.__name__ in str(error):
                    raise UnknownOldRow from None
                raise
        if net.where(_own(MESSAGES) > 1).limit(1).count():
            step.table.diverge(MAYBE_RESENT, guessed=True)
        return net

    def _mark_keyless(self, step: Rows) -> None:
        """Says of rows that were counted before a crash whether they may have been sent again."""
        self._counted(step, RowReader(step.schema, step.layouts, self._zone, step.sent))

    def _keyless(self, step: Rows, reader: RowReader) -> None:
        """Changes a table without a key: all copies of a row go, and the right number comes."""
        net = self._counted(step, reader)
        names = [quoted(name) for name in step.schema.carried_names]
        net = net.where((_own(NET) != 0) | (_own(LOWEST) < 0)).alias("net")
        one, there = own("one"), own("there")
        now = self._tables.read(step.table.identifier).withColumn(one, F.lit(1)).alias("now")
        same = [F.col(f"net.{name}").eqNullSafe(F.col(f"now.{name}")) for name in names]
        with_count = (
            net.join(now, same, "left")
            .groupBy(*(F.col(f"net.{name}") for name in names), _own(NET), _own(LOWEST))
            .agg(F.count(_own(one)).alias(there))
        )
        gone = with_count.where(_own(there) > 0).select(*names, F.lit("d").alias(OP))
        lacking = F.greatest(F.lit(0), -(_own(there) + _own(LOWEST)))
        wanted = (_own(there) + _own(NET) + lacking).cast("int")
        copies = F.explode(F.array_repeat(F.lit("u"), wanted)).alias(OP)
        put = with_count.select(*names, copies)
        # Made before the commit: a statement cannot read the table that it changes by another way.
        both = gone.unionAll(put).localCheckpoint()
        self._tables.replace_rows(step.table.identifier, both, step.position)

    def _runs(self, changes: Changes) -> Runs:
        """The runs in which senders sent changes: found from their places and the watermarks."""
        schema = pa.schema([CHANGE_SCHEMA.field(name) for name in PLACES])
        rows = pa.Table.from_batches(
            (each.cast(schema) for each in changes.batches(PLACES)), schema
        )
        bounds = rows.group_by(["topic", "partition"]).aggregate(
            [("offset", "min"), ("offset", "max")]
        )
        sources = {(row["topic"], row["partition"]): row for row in bounds.to_pylist()}
        first, last = (
            {source: row[name] for source, row in sources.items()}
            for name in ("offset_min", "offset_max")
        )
        between = every(
            above_by_partition("offset", first, others=False),
            ~above_by_partition("offset", last, others=True),
        )
        marks = self._changelog.whole().watermarks(between, PLACES)
        return Runs.of(rows, marks)


def _own(name: str) -> Column:
    return F.col(quoted(name))
