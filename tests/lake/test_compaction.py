"""Compaction of a lake's logs: fewer files, the same rows, and nobody reads anything again."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from tests.changefeed.test_replay import Source, decoded
from tests.support import corpus
from tests.support.lake import contents, expected, fill, in_chunks, new_lake
from tidegate.lake import compaction
from tidegate.lake.changelog.changelog import OF_CONTROL, OF_ROWS, Changelog, Offsets
from tidegate.lake.changelog.ingest import ROUND
from tidegate.lake.changelog.pending import FreshFiles
from tidegate.lake.changelog.retention import Expiry, TakenEvents, compact_changelog
from tidegate.lake.compaction import TARGET_BYTES, batches_of, compact_log
from tidegate.lake.formats import log_table
from tidegate.lake.formats.commits import LeaseLost
from tidegate.lake.formats.log_table import FilesReplaced
from tidegate.lake.job import upkeep
from tidegate.lake.job.mirror import Mirror
from tidegate.lake.job.upkeep import Upkeep
from tidegate.lake.lease import Lease
from tidegate.lake.maintenance import maintain
from tidegate.lake.storage.log_files import LogFile, rows_of
from tidegate.lake.storage.predicates import ALWAYS, above, equal, up_to

FEED = "bank.canal.ext.stream"
PARTITIONS = [("", number) for number in range(3)]
FORMATS = pytest.mark.parametrize("table_format", ["iceberg", "delta"])
NOTHING = TakenEvents(Offsets(), 0, None)
ORDER = [(name, "ascending") for name in ("topic", "partition", "offset", "event", "shape")]


def events(lake):
    """Every event of the changelog with all its columns, in one order."""
    columns = lake.changelog.log.schema.names
    batches = list(lake.changelog.log.read(ALWAYS, columns))
    return pa.Table.from_batches(batches).sort_by(ORDER).combine_chunks()


def files(lake):
    return lake.changelog.now().files(ALWAYS)


def paths(lake):
    return {file.path for file in files(lake)}


def filled(spark, folder, table_format, rounds=10):
    """A lake into whose changelog a feed came in many rounds."""
    lake = new_lake(spark, folder, table_format)
    for part in in_chunks(decoded(FEED), rounds):
        fill(lake, part)
    return lake


def compacted(lake, taken=NOTHING, **options):
    return compact_changelog(lake.spark, lake.changelog, taken, all_small=True, **options)


@FORMATS
def test_many_rounds_become_few_files_that_say_what_they_hold(spark, tmp_path, table_format):
    lake = filled(spark, tmp_path, table_format)
    lake.changelog.log.set_properties({ROUND: "10"})
    before, by_spark = events(lake), lake.changelog.read().count()
    report = compacted(lake)
    assert (report.replaced, report.written) == (20, 2)
    assert events(lake) == before
    assert lake.changelog.read().count() == by_spark
    assert lake.changelog.log.properties()[ROUND] == "10"
    for file in files(lake):
        rows = lake.changelog._read([file], ALWAYS, ["database", "table"])
        names = pa.Table.from_batches(rows).to_pylist()
        keys = [(row["database"] or "", row["table"] or "") for row in names]
        if file.partition == (False,):
            assert keys == sorted(keys)  # clustered by table
    restarted = Changelog(lake.tables, lake.changelog.log, lake.changelog.now().version)
    for file, summary in restarted.summaries(files(lake)):
        assert summary == restarted._read_summary([file], ALWAYS)
    assert compacted(lake).replaced == 0


@FORMATS
def test_the_tasks_of_a_job_write_the_same(spark, tmp_path, table_format, monkeypatch):
    monkeypatch.setattr(compaction, "_DRIVER_BYTES", 0)
    lake = filled(spark, tmp_path, table_format, 4)
    before = events(lake)
    assert compacted(lake).written == 2
    assert events(lake) == before


@FORMATS
def test_no_step_reads_anything_again(spark, tmp_path, table_format, monkeypatch):
    """Between all steps; the number of files does not grow with the number of rounds."""
    monkeypatch.setattr(upkeep, "_MANY_FILES", 8)
    monkeypatch.setattr(compaction, "_FANOUT", 4)

    def read_again(*given):
        raise AssertionError("a summary was read again")

    monkeypatch.setattr(Changelog, "_read_summary", read_again)
    monkeypatch.setattr("tidegate.lake.changelog.changelog.read_footer", read_again)
    variant, lake = corpus.variant(FEED), new_lake(spark, tmp_path, table_format)
    mirror, keeper, counts = Mirror(lake), Upkeep(lake), []
    for number, part in enumerate(in_chunks(decoded(FEED), 24)):
        fill(lake, part)
        if number % 6 == 5:
            mirror.step(PARTITIONS)
        keeper.compact_logs(mirror)
        counts.append(len(files(lake)))
    while mirror.step(PARTITIONS):
        keeper.compact_logs(mirror)
    assert max(counts) < 24
    assert any(later < earlier for earlier, later in pairwise(counts))
    assert not lake.changelog._memory.reports
    instant = mirror.state.applied_ts
    assert contents(lake) == expected(Source(variant.truth).at(instant))
    monkeypatch.undo()
    again = Mirror(lake)
    assert again.state.applied_ts == mirror.state.applied_ts
    assert again.step(PARTITIONS) is None


@FORMATS
def test_rows_that_wait_are_not_put_together_with_those_that_do_not(spark, tmp_path, table_format):
    lake = filled(spark, tmp_path, table_format)
    middle = int(pc.approximate_median(events(lake)["commit_ts"]).as_py())
    changelog = lake.changelog.now()
    seen = Offsets().advanced(
        changelog.narrowed(FreshFiles(), Offsets(), None).observe(Offsets()).offsets
    )
    before = events(lake)
    compacted(lake, TakenEvents(seen, middle, changelog.version))
    assert events(lake) == before
    of_rows = lake.changelog.now().files(OF_ROWS)
    assert len(of_rows) == 2
    pending = FreshFiles()
    lake.changelog.now().narrowed(pending, seen, middle)
    (waiting,) = pending.files
    (other,) = {file.path for file in of_rows} - {waiting}
    assert waiting in {file.path for file in of_rows}
    later = lake.changelog._read([LogFile(other, 0)], above("commit_ts", middle), ["kind"])
    assert next(later, None) is None


@FORMATS
@pytest.mark.parametrize("crash", ["before the commit", "after the commit"])
def test_a_crash_leaves_every_event_once(spark, tmp_path, table_format, crash, monkeypatch):
    lake = filled(spark, tmp_path, table_format)
    before, replace = events(lake), log_table.LogTable.replace_files

    def crashing(*given, **options):
        if crash == "after the commit":
            replace(*given, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(log_table.LogTable, "replace_files", crashing)
        with pytest.raises(KeyboardInterrupt):
            compacted(lake)
    assert events(lake) == before
    assert len(files(lake)) == (2 if crash == "after the commit" else 20)
    restarted = type(lake)(spark, lake.place, table_format)
    compacted(restarted)
    assert events(restarted) == before
    assert len(files(restarted)) == 2


@FORMATS
def test_rounds_that_are_committed_meanwhile_stay(spark, tmp_path, table_format, monkeypatch):
    *parts, last = in_chunks(decoded(FEED), 5)
    lake = new_lake(spark, tmp_path, table_format)
    for part in parts:
        fill(lake, part)
    before, loads = paths(lake), []
    load = type(lake.changelog.log).load

    def loading(log):
        loaded = load(log)
        loads.append(log)
        if len(loads) == 1:  # between the check and the commit
            other = type(lake)(spark, lake.place, table_format)
            fill(other, last)
        return loaded

    replace = log_table.LogTable.replace_files

    def replacing(log, *given, **options):
        monkeypatch.setattr(type(lake.changelog.log), "load", loading)
        replace(log, *given, **options)

    monkeypatch.setattr(log_table.LogTable, "replace_files", replacing)
    assert compacted(lake).replaced == 8
    monkeypatch.undo()
    assert len(loads) > 1
    assert not before & paths(lake)
    whole = new_lake(spark, tmp_path / "whole", table_format)
    fill(whole, decoded(FEED))
    assert events(lake) == events(whole)


@FORMATS
def test_of_two_that_compact_the_same_files_one_does(spark, tmp_path, table_format, monkeypatch):
    lake = filled(spark, tmp_path, table_format, 3)
    other = type(lake)(spark, lake.place, table_format)
    before, written = events(lake), []
    replace = log_table.LogTable.replace_files

    def replacing(log, old, new, **options):
        written.extend(new)
        monkeypatch.setattr(log_table.LogTable, "replace_files", replace)
        assert compacted(other).replaced == 6
        replace(log, old, new, **options)

    monkeypatch.setattr(log_table.LogTable, "replace_files", replacing)
    assert compacted(lake).replaced == 0
    assert events(lake) == before
    assert not any(Path(file.path.removeprefix("file:")).exists() for file in written)
    with pytest.raises(FilesReplaced):
        lake.changelog.log.replace_files(["gone"], [])


@FORMATS
def test_an_owner_that_has_lost_the_lease_compacts_nothing(spark, tmp_path, table_format):
    lake = filled(spark, tmp_path, table_format, 3)
    before = paths(lake)
    with lake.leased():
        lake.changelog.log.fence(lake.tables.guard.epoch + 1)
        with pytest.raises(LeaseLost):
            compacted(lake)
        assert isinstance(lake.tables.guard, Lease)
    assert paths(lake) == before


@FORMATS
def test_what_has_expired_goes_and_the_rest_stays(spark, tmp_path, table_format, monkeypatch):
    lake = filled(spark, tmp_path, table_format)
    before = events(lake)
    until = int(pc.approximate_median(before["commit_ts"]).as_py())
    changelog = lake.changelog.now()
    seen = Offsets().advanced(
        changelog.narrowed(FreshFiles(), Offsets(), None).observe(Offsets()).offsets
    )
    # Of one partition nothing was applied.
    del seen.last[next(iter(seen.last))]
    expiry = Expiry(until, seen)
    gone = before.filter(expiry.condition().arrow())
    assert 0 < gone.num_rows < before.num_rows
    assert set(gone["kind"].to_pylist()) >= {"insert", "update", "watermark"}
    compacted(lake, TakenEvents(seen, until, None), expiry=expiry)
    left = events(lake)
    assert left.num_rows == before.num_rows - gone.num_rows
    assert left.filter(expiry.condition().arrow()).num_rows == 0
    keep = pc.invert(pc.is_in(pa.array(range(before.num_rows)), kept_out(before, expiry)))
    assert left == before.filter(keep)
    last = paths(lake)
    compacted(lake, TakenEvents(seen, until, None), expiry=expiry)
    assert paths(lake) == last  # once


def kept_out(table, expiry):
    numbered = table.append_column("number", pa.array(range(table.num_rows)))
    return numbered.filter(expiry.condition().arrow())["number"].combine_chunks()


@FORMATS
def test_files_that_have_expired_go_without_being_read(spark, tmp_path, table_format, monkeypatch):
    lake = filled(spark, tmp_path, table_format)
    rows = lake.changelog.now().files(OF_ROWS)
    changelog = lake.changelog.now()
    seen = Offsets().advanced(
        changelog.narrowed(FreshFiles(), Offsets(), None).observe(Offsets()).offsets
    )
    expiry = Expiry(1 << 62, seen)
    plans = []
    rewrite = compaction.rewrite
    monkeypatch.setattr(
        "tidegate.lake.changelog.retention.rewrite",
        lambda *given, **options: plans.append(given[2]) or rewrite(*given, **options),
    )
    compacted(lake, TakenEvents(seen, 1 << 62, None), expiry=expiry)
    assert {file.path for file in rows} <= {file.path for file in plans[0].removed}
    assert lake.changelog.now().files(OF_ROWS) == []
    kinds = {row["kind"] for row in events(lake).select(["kind"]).to_pylist()}
    assert kinds == {"schema"}
    assert len(lake.changelog.now().files(OF_CONTROL)) == 1


@FORMATS
def test_maintenance_compacts_all_logs(spark, tmp_path, table_format):
    variant, lake = corpus.variant(FEED), new_lake(spark, tmp_path, table_format)
    mirror = Mirror(lake)
    for part in in_chunks(decoded(FEED), 4):
        fill(lake, part)
        while mirror.step(PARTITIONS):
            pass
    instants = [ts for ts, _ in lake.snapshots.instants()]
    list(maintain(lake, timedelta(days=36_500)))
    record = lake.snapshots.log
    assert len(record.files(record.version(), ALWAYS)) == 1
    assert len(files(lake)) == 2
    assert [ts for ts, _ in lake.snapshots.instants()] == instants
    for instant in (instants[0], instants[-1]):
        assert contents(lake, instant) == expected(Source(variant.truth).at(instant))
    list(maintain(lake, timedelta()))
    left = [ts for ts, _ in lake.snapshots.instants()]
    assert left[-1] == instants[-1]
    assert set(left) < set(instants)
    assert contents(lake) == expected(Source(variant.truth).at(instants[-1]))


@FORMATS
def test_rows_of_a_log_are_dropped_by_a_condition(spark, tmp_path, table_format):
    kind = StructType([StructField("part", StringType()), StructField("n", IntegerType())])
    lake = new_lake(spark, tmp_path, table_format)
    log = lake.tables.create_log("notes", kind, ["part"])
    for number in range(3):
        log.add_rows(rows_of(kind, [("a", number), ("b", None)]))
    version = log.version()
    compact_log(spark, log, dropped=equal("n", 1))
    (change,) = log.changes(version, log.version())
    assert (len(change.added), len(change.removed)) == (0, 1)

    def values():
        rows = (row for batch in log.read(ALWAYS, ["part", "n"]) for row in batch.to_pylist())
        return sorted((row["part"], row["n"] is None, row["n"] or 0) for row in rows)

    left = [("a", False, 0), ("a", False, 2), *[("b", True, 0)] * 3]
    assert values() == left
    assert compact_log(spark, log, all_small=True, dropped=up_to("n", -1)).written == 2
    assert values() == left
    assert lake.tables.read(log.identifier).count() == 5


def sized(*sizes):
    return [LogFile(f"{number}", size) for number, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "all_small", "batches"),
    [
        ([1000] * 7, False, []),
        ([1000] * 8, False, [8]),
        ([1000] * 7 + [10 << 20], False, []),
        ([1000] * 9 + [10 << 20] * 8, False, [9, 8]),
        ([30 << 20] * 10, False, [4, 4, 2]),
        ([TARGET_BYTES // 2] * 20, False, []),
        ([1000, 30 << 20], True, [2]),
        ([1000], True, []),
        ([60 << 20] * 3, True, [2]),
    ],
)
def test_files_of_about_the_same_size_are_compacted(sizes, all_small, batches):
    assert [len(each) for each in batches_of(sized(*sizes), all_small=all_small)] == batches


def test_a_row_is_rewritten_a_few_times_however_many_rounds_there_are():
    """Rounds of 20 KB for a month, compacted whenever 64 files were added."""
    sizes, written, rounds = [], 0, 64 * 2_000
    for _ in range(rounds // 64):
        sizes += [20_000] * 64
        for batch in batches_of(sized(*sizes), all_small=False):
            for file in batch:
                sizes.remove(file.bytes)
            sizes.append(sum(file.bytes for file in batch))
            written += sizes[-1]
    assert len(sizes) < 64 + rounds * 20_000 // (TARGET_BYTES // 2)
    assert written < 6 * rounds * 20_000
