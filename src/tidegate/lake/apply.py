"""Carries out the steps of a plan: tables in parallel, each step once, whatever was cut off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from tidegate.lake.changelog import WATERMARKS, Changelog, of_table
from tidegate.lake.failures import may_be_of_one_table, sentence
from tidegate.lake.format import OP, Located, TableFormat, origin_of
from tidegate.lake.interval import Interval
from tidegate.lake.latest import LatestRows
from tidegate.lake.mysql import DatabaseServer
from tidegate.lake.names import own
from tidegate.lake.plan import Create, Delete, Drop, Evolve, Rename, Rows, Step
from tidegate.lake.routes import Routes
from tidegate.lake.rows import RowReader
from tidegate.lake.upstream_rows import Completion, failure_in
from tidegate.model import EventFlag
from tidegate.model.sql import quoted

MAYBE_RESENT = (
    "It has no key, and identical rows of one transaction came one after the other: they are "
    "counted as several rows, but TiCDC may have sent one row again."
)
FAILED = "A change could not be written to it: {cause}."
_FEW = 20_000
"""Rows of a step up to which they are read without a job of Spark's."""


class Applier:
    """Does steps on the tables of a lake."""

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
        self._by_uid: dict[str, Located] = {}
        self._by_origin: dict[str, Located] = {}

    def run(self, steps: Sequence[Step]) -> None:
        """Does all steps; raises the first error that is everybody's, when none is running.

        A table with a problem of its own is stopped.
        """
        if self._again:
            self._find_tables(steps)
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
                self._try(step)
            except Exception as error:
                self._judge(step, error)
        self._on_step(step)

    def _judge(self, step: Step, error: Exception) -> None:
        """Stops the table whose problem it is; raises what is everybody's.

        It is the table's if the step fails a second time while the lake can be written.
        """
        if not may_be_of_one_table(error) or not self._is_healthy():
            raise error
        try:
            self._try(step, again=True)
        except Exception as second:
            if not may_be_of_one_table(second) or not self._is_healthy():
                raise
            self._failed.add(id(step.table))
            step.table.stop(FAILED.format(cause=sentence(second)), step.position.ts)

    def _try(self, step: Step, *, again: bool = False) -> None:
        if isinstance(step, Create):
            self._create(step)
        elif step.table.identifier and not self._is_done(step, again=again):
            self._change(step)

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
        if key and step.incomplete:
            self._incomplete_rows(step, reader, self._changes(step, reader))
        elif key:
            rows = self._last_rows(step, reader, key)
            self._tables.merge(step.table.identifier, rows, key, step.position)
        else:
            self._keyless(step, reader, self._changes(step, reader))

    def _changes(self, step: Rows, reader: RowReader) -> DataFrame:
        """The rows of a step as they are in the changelog."""
        within = self._interval.within(*step.segments)
        changes = self._changelog.rows_of(*step.name).where(within.spark())
        return self._without_applied(step, reader, changes) if step.late else changes

    def _last_rows(self, step: Rows, reader: RowReader, key: Sequence[str]) -> DataFrame | pa.Table:
        """What each key has in the end: by Spark alone, or by Arrow where that can read the files.

        Then few rows are found right here, and of many rows most are dropped as they are read.
        """
        interval = self._interval
        within = of_table(*step.name) & interval.within(*step.segments)
        # Only Spark fits rows to other columns than they were sent with.
        by_spark = step.late or step.sent != step.schema
        files = None if by_spark else self._changelog.files(within)
        if files is None:
            changes = self._changes(step, reader)
            return reader.last_of_each_key(changes, key, interval.order, moves=step.moves)
        latest = LatestRows(
            step.schema, step.layouts, tuple(key), within, interval.order, step.moves, self._zone
        )
        if step.count <= _FEW:
            return latest.here(files)
        return latest.by_spark(self._tables.spark, files, step.count)

    def _incomplete_rows(self, step: Rows, reader: RowReader, changes: DataFrame) -> None:
        """Rows of which some have only the key: these are asked for once, before the merge."""
        assert self._upstream is not None
        key = step.schema.handle_key()
        columns = step.sent.carried
        completion = Completion(self._upstream, step.name, columns, key, self._zone)
        rows = reader.last_of_each_key(
            changes, key, self._interval.order, moves=step.moves, complete=completion.rows
        ).persist()
        try:
            rows.count()
            self._tables.merge(step.table.identifier, rows, key, step.position)
        except PySparkException as error:
            failure = failure_in(error)
            if failure is None:
                raise
            raise failure from None
        finally:
            rows.unpersist()

    def _without_applied(self, step: Rows, reader: RowReader, changes: DataFrame) -> DataFrame:
        """Without the late rows that are but copies of what was applied in time.

        Their columns are compared by name: TiCDC may send them in another order than before.
        """
        content = {"ts": F.col("commit_ts"), "kind": F.col("kind")}
        content |= {side: reader.by_name(side) for side in ("after", "before")}
        applied = self._changelog.rows_of(*step.name).where(self._interval.applied.spark())
        copies = applied.select(*(of.alias(name) for name, of in content.items())).distinct()
        on_time = changes.where(~self._interval.late.spark())
        late = changes.where(self._interval.late.spark()).withColumns(
            {own(name): of for name, of in content.items()}
        )
        matches = [late[quoted(own(name))].eqNullSafe(copies[name]) for name in content]
        fresh = late.join(copies, matches, "left_anti").drop(*map(own, content))
        return on_time.unionAll(fresh)

    def _keyless(self, step: Rows, reader: RowReader, changes: DataFrame) -> None:
        """A table without a key holds each row as often as it was put there and not removed.

        A row that is sent again looks like a second row that equals it. A partition's rows are cut
        into runs where the sender is seen to start again, and the largest count of equal rows in
        any one run of a transaction is the right one. Equal rows of several messages in one run
        may be either: they are counted, and the table says so.
        """
        _check_old_rows(changes)
        rows = reader.whole_rows(changes)
        names = [quoted(name) for name in step.schema.carried_names]
        ts, topic, partition = (_own(name) for name in ("commit_ts", "topic", "partition"))
        sent = (
            self._runs(rows)
            .groupBy(*names, ts, topic, partition, _own("run"), _own("count"))
            .agg(
                F.sum(_own("count")).alias(own("sum")),
                F.count_distinct(_own("offset")).alias(own("messages")),
            )
        )
        size = F.abs(_own("sum"))
        most = (
            sent.groupBy(*names, ts, topic, partition, _own("count"))
            .agg(
                F.max_by(_own("sum"), size).alias(own("sum")),
                F.max_by(_own("messages"), size).alias(own("messages")),
            )
            .groupBy(*names, ts, _own("count"))
            .agg(
                F.sum(_own("sum")).alias(own("sum")), F.sum(_own("messages")).alias(own("messages"))
            )
            .localCheckpoint()
        )
        if most.where(_own("messages") > 1).limit(1).count():
            step.table.diverge(MAYBE_RESENT, guessed=True)
        # Deletes go first in a transaction. A row from before the feed cannot be taken away: what
        # the sum falls below the number of rows that are there does not count.
        in_order = Window.partitionBy(*names).orderBy(ts, _own("count"))
        summed = most.withColumn(own("so far"), F.sum(_own("sum")).over(in_order))
        net = summed.groupBy(*names).agg(
            F.sum(_own("sum")).alias(own("net")), F.min(_own("so far")).alias(own("lowest"))
        )
        net = net.where((_own("net") != 0) | (_own("lowest") < 0)).alias("net")
        now = self._tables.read(step.table.identifier).withColumn(own("one"), F.lit(1)).alias("now")
        same = [F.col(f"net.{name}").eqNullSafe(F.col(f"now.{name}")) for name in names]
        counted = (
            net.join(now, same, "left")
            .groupBy(*(F.col(f"net.{name}") for name in names), _own("net"), _own("lowest"))
            .agg(F.count(_own("one")).alias(own("there")))
        )
        # All copies go and the right number comes: one commit.
        gone = counted.where(_own("there") > 0).select(*names, F.lit("d").alias(OP))
        lacking = F.greatest(F.lit(0), -(_own("there") + _own("lowest")))
        wanted = (_own("there") + _own("net") + lacking).cast("int")
        copies = F.explode(F.array_repeat(F.lit("u"), wanted)).alias(OP)
        put = counted.select(*names, copies)
        # Made before the commit: a statement cannot read the table that it changes by another way.
        changes = gone.unionAll(put).localCheckpoint()
        self._tables.replace_rows(step.table.identifier, changes, step.position)

    def _runs(self, rows: DataFrame) -> DataFrame:
        """The rows with the number of the run in which their partition sent them.

        A sender has started again where a commit_ts or a watermark is lower than the one before it,
        and where rows follow a watermark that had promised them.
        """
        first = rows.groupBy(_own("topic"), _own("partition")).agg(
            F.min(_own("offset")).alias(own("first"))
        )
        here = [F.col(name) == _own(name) for name in ("topic", "partition")]
        marks = (
            self._changelog.read()
            .where(WATERMARKS.spark())
            .join(F.broadcast(first), [*here, F.col("offset") > _own("first")], "left_semi")
            .select(
                *(F.col(name).alias(own(name)) for name in ("topic", "partition", "offset")),
                F.col("event").alias(own("event")),
                F.col("commit_ts").alias(own("mark")),
            )
        )
        events = rows.unionByName(marks, allowMissingColumns=True)
        order = Window.partitionBy(_own("topic"), _own("partition")).orderBy(
            _own("offset"), _own("event"), _own("count")
        )
        before = order.rowsBetween(Window.unboundedPreceding, -1)
        lower = [
            _own(name) < F.last(_own(name), True).over(before) for name in ("commit_ts", "mark")
        ]
        starts = F.coalesce(*lower, F.lit(False)).cast("int")
        events = events.withColumn(own("starts"), F.sum(starts).over(order))
        promised = F.coalesce(_own("commit_ts") <= F.max(_own("mark")).over(before), F.lit(False))
        run = F.struct(_own("starts"), promised.alias("promised"))
        return events.withColumn(own("run"), run).where(_own("commit_ts").isNotNull())


class UnknownOldRow(Exception):
    """An update of a table without a key does not say which row it changed."""

    def __init__(self) -> None:
        super().__init__("it has no key, and an update came without the values of the old row")


def _check_old_rows(changes: DataFrame) -> None:
    """Raises UnknownOldRow where rows of a table without a key cannot be found."""
    ambiguous = F.col("flags").bitwiseAND(F.lit(int(EventFlag.BEFORE_AMBIGUOUS))) > 0
    unknown = (F.col("kind") == "update") & (F.col("before").isNull() | ambiguous)
    if changes.where(unknown).limit(1).count():
        raise UnknownOldRow


def _own(name: str) -> Column:
    return F.col(quoted(own(name)))
