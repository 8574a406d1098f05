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

from tidegate.lake.changelog import Changelog, of_table
from tidegate.lake.format import OP, Located, TableFormat, origin_of
from tidegate.lake.interval import Interval
from tidegate.lake.latest import LatestRows
from tidegate.lake.mysql import DatabaseServer
from tidegate.lake.names import own
from tidegate.lake.plan import Create, Delete, Drop, Evolve, Rename, Rows, Step
from tidegate.lake.routes import Routes
from tidegate.lake.rows import RowReader
from tidegate.lake.upstream_rows import Completion, failure_in
from tidegate.model.sql import quoted

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
        located: Sequence[Located] | None = None,
        routes: Routes | None = None,
        upstream: DatabaseServer | None = None,
        on_step: Callable[[Step], None] = lambda step: None,
    ) -> None:
        self._tables = tables
        self._changelog = changelog
        self._interval = interval
        self._zone = zone
        self._threads = threads
        self._on_step = on_step
        self._routes = routes or Routes()
        self._upstream = upstream
        # What an interrupted run left: tables by what does not change of them.
        self._by_uid = {each.uid: each for each in located or ()}
        self._by_origin = {each.origin: each for each in located or ()}
        self._again = located is not None

    def run(self, steps: Sequence[Step]) -> None:
        """Does all steps; raises the first error, when none is running any more."""
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
        for step in steps:
            found = self._by_uid.get(step.table.uid)
            if step.table.uid and found is not None:
                step.table.identifier = found.identifier
            elif step.table.uid:
                step.table.identifier = ""  # it is gone, as a later step has it

    def _do(self, step: Step, before: Sequence[Future[None]]) -> None:
        for future in before:
            future.result()
        if isinstance(step, Create):
            self._create(step)
        elif step.table.identifier and not self._is_done(step):
            self._change(step)
        self._on_step(step)

    def _is_done(self, step: Step) -> bool:
        if not self._again:
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
            self._incomplete_rows(step, reader, self._changes(step))
        elif key:
            rows = self._last_rows(step, reader, key)
            self._tables.merge(step.table.identifier, rows, key, step.position)
        else:
            self._keyless(step, reader.whole_rows(self._changes(step)))

    def _changes(self, step: Rows) -> DataFrame:
        """The rows of a step as they are in the changelog."""
        within = self._interval.within(*step.segments)
        changes = self._changelog.rows_of(*step.name).where(within.spark())
        return self._without_applied(step, changes) if step.late else changes

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
            changes = self._changes(step)
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

    def _without_applied(self, step: Rows, changes: DataFrame) -> DataFrame:
        """Without the late rows that are but copies of what was applied in time."""
        content = ["commit_ts", "kind", "after", "before"]
        applied = self._changelog.rows_of(*step.name).where(self._interval.applied.spark())
        copies = applied.select(*content).distinct()
        on_time = changes.where(~self._interval.late.spark())
        late = changes.where(self._interval.late.spark())
        matches = [late[name].eqNullSafe(copies[name]) for name in content]
        return on_time.unionAll(late.join(copies, matches, "left_anti"))

    def _keyless(self, step: Rows, rows: DataFrame) -> None:
        """A table without a key holds each row as often as it was put there and not removed.

        Sent again, a row cannot be told from another one like it but by this: the sender goes back
        in time. So a partition's rows are cut into runs in which commit_ts never goes back, and of
        all runs that show a transaction the one with the most of a row counts.
        """
        names = [quoted(name) for name in step.schema.carried_names]
        ts, topic, partition = (_own(name) for name in ("commit_ts", "topic", "partition"))
        order = Window.partitionBy(topic, partition).orderBy(
            _own("offset"), _own("event"), _own("count")
        )
        back = F.coalesce((ts < F.lag(ts).over(order)).cast("int"), F.lit(0))
        runs = rows.withColumn(own("run"), F.sum(back).over(order))
        sent = runs.groupBy(*names, ts, topic, partition, _own("run"), _own("count")).agg(
            F.sum(_own("count")).alias(own("sum"))
        )
        most = sent.groupBy(*names, ts, topic, partition, _own("count")).agg(
            F.max_by(_own("sum"), F.abs(_own("sum"))).alias(own("sum"))
        )
        net = most.groupBy(*names).agg(F.sum(_own("sum")).alias(own("net")))
        net = net.where(_own("net") != 0).alias("net")
        now = self._tables.read(step.table.identifier).withColumn(own("one"), F.lit(1)).alias("now")
        same = [F.col(f"net.{name}").eqNullSafe(F.col(f"now.{name}")) for name in names]
        counted = (
            net.join(now, same, "left")
            .groupBy(*(F.col(f"net.{name}") for name in names), _own("net"))
            .agg(F.count(_own("one")).alias(own("there")))
        )
        # All copies go and the right number comes: one commit.
        gone = counted.where(_own("there") > 0).select(*names, F.lit("d").alias(OP))
        wanted = F.greatest(F.lit(0), _own("there") + _own("net")).cast("int")
        copies = F.explode(F.array_repeat(F.lit("u"), wanted)).alias(OP)
        put = counted.select(*names, copies)
        # Made before the commit: a statement cannot read the table that it changes by another way.
        changes = gone.unionAll(put).localCheckpoint()
        self._tables.replace_rows(step.table.identifier, changes, step.position)


def _own(name: str) -> Column:
    return F.col(quoted(own(name)))
