"""Compaction of the changelog, and removal of the events that retention has given up.

Only files are touched that the running mirror has observed, and those that the tables have all of
are never put together with others. So no step has to read anything again: the mirror knows from the
commit which of its files were replaced, and from the tasks' reports what the new ones hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from tidegate.changefeed.receive.gate import ROW_KINDS
from tidegate.lake.changelog.changelog import Changelog, Offsets
from tidegate.lake.changelog.pending import offsets_of
from tidegate.lake.changelog.summary import FileSummary
from tidegate.lake.compaction import (
    CompactionReport,
    RewritePlan,
    batches_of,
    is_small,
    rewrite,
)
from tidegate.lake.formats.log_table import LogRewritten
from tidegate.lake.storage.log_files import LogFile
from tidegate.lake.storage.predicates import ALWAYS, Condition, every, one_of, up_to


@dataclass(frozen=True, slots=True)
class TakenEvents:
    """What the tables have: events up to offsets and, of those, rows up to an instant.

    `applied_ts` is None for a feed that is applied in the order of arrival; `version` is one of the
    changelog that has nothing beyond the offsets, if known.
    """

    offsets: Offsets
    applied_ts: int | None
    version: int | None


@dataclass(frozen=True, slots=True)
class Expiry:
    """Rows, statements and watermarks up to a commit_ts that were applied.

    Those beyond the applied offsets stay, whatever their commit_ts: a feed without watermarks is
    applied by arrival, and a partition may have been behind the others. Shapes, schemas and bad
    messages stay: they are few, and later rows may refer to them.
    """

    until: int
    offsets: Offsets

    def condition(self) -> Condition:
        """Whether an event is given up."""
        kinds = one_of("kind", (*ROW_KINDS, "ddl", "watermark"))
        return every(up_to("commit_ts", self.until), kinds, ~self.offsets.beyond())

    def count(self, summary: FileSummary) -> int:
        """How many events of a file are given up, at least, by its summary."""
        groups, runs, sources = summary.groups, summary.runs, summary.sources
        rows = self._past(groups, groups["last_ts"])
        watermarks = self._past(runs, runs["last"])
        statements = self._past(sources, sources["last_statement"])
        return (
            _total(rows, ["rows"])
            + _total(watermarks, ["rising", "back"])
            + _total(statements, ["statements"])
        )

    def _past(self, table: pa.Table, last_ts: pa.ChunkedArray) -> pa.Table:
        """The parts of a file all of whose events are given up."""
        applied = pc.less_equal(table["last_offset"], offsets_of(table, self.offsets.last))
        return table.filter(pc.and_(pc.less_equal(last_ts, self.until), applied))


def _total(table: pa.Table, columns: Sequence[str]) -> int:
    return sum(pc.sum(table[name], min_count=0).as_py() for name in columns)


def compact_changelog(
    spark: SparkSession,
    changelog: Changelog,
    taken: TakenEvents,
    *,
    all_small: bool = False,
    expiry: Expiry | None = None,
) -> CompactionReport:
    """Puts small files together, and drops what has expired; all in one commit.

    With `all_small`, also files of which there are few.
    """
    try:
        plan = _plan(changelog.as_observed(), taken, all_small, expiry)
    except LogRewritten:  # the version that was observed is forgotten
        plan = _plan(changelog.now(), taken, all_small, expiry)
    writer = changelog.writer()
    return rewrite(spark, changelog.log, plan, writer, on_written=changelog.report)


def _plan(
    changelog: Changelog, taken: TakenEvents, all_small: bool, expiry: Expiry | None
) -> RewritePlan:
    files = changelog.files(ALWAYS)
    needed = changelog.needed_files(taken.offsets, taken.applied_ts, taken.version)
    groups: dict[tuple[object, ...], list[LogFile]] = {}
    for file in files:
        groups.setdefault((file.path in needed, *file.partition), []).append(file)
    settled = [file for file in files if file.path not in needed]
    removed, trimmed = _expired(changelog, settled, expiry)
    gone = {file.path for file in removed}
    batches = []
    for group in groups.values():
        others = [file for file in group if file.path not in gone]
        batches += batches_of(others, all_small=all_small)
    together = {file.path for batch in batches for file in batch}
    batches += [(file,) for file in trimmed if file.path not in together]
    if expiry is None:
        return RewritePlan(tuple(batches))
    return RewritePlan(tuple(batches), tuple(removed), expiry.condition())


def _expired(
    changelog: Changelog, files: Sequence[LogFile], expiry: Expiry | None
) -> tuple[list[LogFile], list[LogFile]]:
    """The files that go as a whole, and those that are worth being rewritten without what expired.

    A large file is rewritten when half of it has expired, so that it is not at every turn.
    """
    if expiry is None:
        return [], []
    removed, trimmed = [], []
    candidates = changelog.holding(files, up_to("commit_ts", expiry.until))
    by_path = {file.path: file for file in candidates}
    for read, summary in changelog.summaries(candidates):
        file = by_path[read.path]
        count = expiry.count(summary)
        if count == file.rows:
            removed.append(file)
        elif count and (is_small(file) or 2 * count >= file.rows):
            trimmed.append(file)
    return removed, trimmed
