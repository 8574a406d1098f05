"""What a step looks at of a changelog that grows, and what is done to a lake between steps."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.changefeed.test_replay import Source, decoded
from tests.support import corpus
from tests.support.lake import contents, expected, fill, in_chunks, new_lake
from tidegate.changefeed.receive.gate import ROW_KINDS, Gate
from tidegate.lake.changelog.changelog import (
    OF_CONTROL,
    OF_ROWS,
    Changelog,
    Offsets,
    by_arrival,
    of_table,
)
from tidegate.lake.changelog.interval import Interval, RowBounds
from tidegate.lake.changelog.pending import FreshFiles
from tidegate.lake.changelog.summary import NARROW, FileSummary, summarize
from tidegate.lake.compaction import compact_log
from tidegate.lake.formats.iceberg import upkeep as iceberg_upkeep
from tidegate.lake.job import upkeep
from tidegate.lake.job.mirror import Mirror
from tidegate.lake.job.upkeep import Upkeep
from tidegate.lake.storage import log_files as logfiles
from tidegate.lake.storage.log_files import LogFile, LogWriter, holding
from tidegate.lake.storage.predicates import ALWAYS, above, equal, every, up_to
from tidegate.wire.batch.change import CHANGE_SCHEMA

FEED = "bank.canal.ext.stream"
PARTITIONS = [("", number) for number in range(3)]


def events_of(changelog, condition):
    """Events with the columns of summaries, read from files."""
    schema = pa.schema([CHANGE_SCHEMA.field(name).with_nullable(True) for name in NARROW])
    batches = [each.cast(schema) for each in changelog._batches(condition, NARROW)]
    return pa.Table.from_batches(batches, schema)


def same(fresh, whole, seen):
    """Whether summaries tell the same of what was not seen yet as the events themselves."""
    observed, events = fresh.observe(seen), events_of(whole, seen.beyond())
    expected = summarize([events])
    sources = expected.sources.to_pylist()
    assert observed.offsets == {
        (row["topic"], row["partition"]): row["last_offset"] for row in sources
    }
    assert observed.offsets != {}
    wanted = every(OF_CONTROL, seen.beyond(), ~equal("kind", "watermark"))
    own = [row for row in events_of(whole, wanted).to_pylist() if row["shape"] is None]
    assert observed.events.num_rows == len(own)
    gates = Gate(observed.offsets), Gate(observed.offsets)
    gates[0].observe_statements(observed.statements)
    gates[0].observe_runs(observed.runs, observed.cut)
    gates[1].observe(by_arrival(events.filter(~pc.field("kind").isin(ROW_KINDS))))
    assert gates[0].to_json() == gates[1].to_json()
    middle = int(pc.approximate_median(events["commit_ts"]).as_py())
    for bounds in (RowBounds(seen.last), RowBounds(seen.last, middle, middle + (1 << 40))):
        rows = OF_ROWS & seen.beyond()
        if bounds.after is not None:
            at = every(equal("commit_ts", middle), seen.beyond())
            later = every(above("commit_ts", middle), up_to("commit_ts", bounds.until))
            rows = OF_ROWS & (later | at)
        by_reading = whole.groups(Interval(rows, (middle + 5,), bounds.after))
        by_summary = fresh.groups(Interval(rows, (middle + 5,), bounds.after, bounds=bounds))
        assert sorted(by_summary, key=repr) == sorted(by_reading, key=repr)


def test_what_was_added_is_found_without_the_files_of_before(spark, tmp_path):
    lake, fresh, seen = new_lake(spark, tmp_path), FreshFiles(), Offsets()
    earlier: set[str] = set()
    for number, part in enumerate(in_chunks(decoded(FEED), 4)):
        for partition in range(3):  # a task of Spark's reads one
            fill(lake, part.filter(pc.equal(part["partition"], partition)))
        if number == 3:  # files of before and new ones are one
            compact_log(spark, lake.changelog.log, all_small=True)
        whole = lake.changelog.now()
        found = whole.narrowed(fresh, seen, None)
        same(found, whole, seen)
        files = {file.path for file in found.files(ALWAYS)}
        assert files
        assert not files & earlier
        earlier |= files
        seen = seen.advanced(found.observe(seen).offsets)
        found.observed()
        left = whole.narrowed(fresh, seen, None)
        assert left.observe(seen).offsets == {}
        assert left.files(ALWAYS) == []


def test_a_rewrite_of_what_the_tables_have_is_not_looked_at(spark, tmp_path):
    lake, fresh, seen = new_lake(spark, tmp_path), FreshFiles(), Offsets()
    *before, last = in_chunks(decoded(FEED), 4)
    for part in before:
        fill(lake, part)
    found = lake.changelog.now().narrowed(fresh, seen, None)
    seen = seen.advanced(found.observe(seen).offsets)
    version = found.version
    lake.changelog.now().narrowed(fresh, seen, None)
    compact_log(spark, lake.changelog.log, all_small=True)
    fill(lake, last)
    for known, since in ((fresh, None), (FreshFiles(), version)):
        now = lake.changelog.now().narrowed(known, seen, None, since)
        paths = {file.path for file in now.files(ALWAYS)}
        assert len(paths) == 2
        assert all(
            row.path in paths for row in lake.changelog.log.changes(version, now.version)[-1].added
        )
        same(now, lake.changelog.now(), seen)


def test_a_file_without_a_summary_gets_the_same_one_from_its_columns(spark, tmp_path):
    lake = new_lake(spark, tmp_path)
    fill(lake, decoded(FEED))
    changelog = lake.changelog.now()
    restarted = Changelog(lake.tables, changelog.log, changelog.version)
    files = changelog.files(ALWAYS)
    assert len(files) == 2
    for file, summary in restarted.summaries(files):
        footer = pq.read_metadata(file.path)
        sizes = [footer.row_group(n).total_byte_size for n in range(footer.num_row_groups)]
        assert [group.bytes for group in file.groups] == sizes
        assert file.memory == sum(sizes)
        again = changelog._read_summary([file], ALWAYS)
        assert again == summary
        assert FileSummary.from_text(summary.to_text()) == summary


def test_watermarks_have_groups_of_their_own_in_a_file(spark, tmp_path):
    lake = new_lake(spark, tmp_path)
    fill(lake, decoded("mixed1.canal.ext"))
    (file,) = lake.changelog.now().files(OF_CONTROL)
    parquet = pq.ParquetFile(file.path)
    groups = (parquet.read_row_group(n, ["kind"]) for n in range(parquet.num_row_groups))
    kinds = [set(group["kind"].to_pylist()) for group in groups]
    assert {"watermark"} in kinds
    assert all(each == {"watermark"} or "watermark" not in each for each in kinds)


@pytest.mark.parametrize(
    ("condition", "paths"),
    [
        (ALWAYS, ["a", "b", "c"]),
        (equal("topic", "t") & above("offset", 9), ["b", "c"]),
        (~equal("topic", "t"), ["c"]),
        (above("commit_ts", 100), ["a", "b", "c"]),
    ],
)
def test_files_are_passed_over_by_what_is_known_of_them(condition, paths):
    topic, offset = pc.field("topic"), pc.field("offset")
    files = [
        LogFile("a", 1, 1, (topic == "t") & (offset >= 0) & (offset <= 9)),
        LogFile("b", 1, 1, (topic == "t") & (offset >= 5) & (offset <= 15)),
        LogFile("c", 1),
    ]
    names = {"topic": "string", "offset": "int64", "commit_ts": "int64"}
    schema = pa.schema(list(names.items()))
    assert [file.path for file in holding(files, condition, schema)] == paths


def test_upkeep_between_steps_changes_no_row_and_no_instant(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(iceberg_upkeep, "_MANY_FILES", 1)
    monkeypatch.setattr(upkeep, "_MANY_FILES", 1)
    monkeypatch.setattr(upkeep, "LOG_SECONDS", 0.0)
    variant = corpus.variant(FEED)
    lake = new_lake(spark, tmp_path)
    mirror, keeper, instants = Mirror(lake), Upkeep(lake, keep=timedelta(days=36_500)), []
    for part in in_chunks(decoded(FEED), 3):
        fill(lake, part)
        while mirror.step(PARTITIONS):
            keeper.after_step(mirror)
            instants.append(mirror.state.applied_ts)
    assert len(instants) > 1
    for instant in instants:
        assert contents(lake, instant) == expected(Source(variant.truth).at(instant))
    # With the next step the lake is maintained too, and keeps only one version of each table.
    monkeypatch.setattr(upkeep, "_MOST_VERSIONS", 1)
    Upkeep(lake, interval=0.0).after_step(mirror)
    assert lake.snapshots.kept_since() == instants[-1]
    assert contents(lake) == expected(Source(variant.truth).at(instants[-1]))
    again = Mirror(lake)
    assert again.state.applied_ts == instants[-1]
    assert again.step(PARTITIONS) is None


def test_rows_of_all_tables_are_read_at_once(spark, tmp_path):
    lake = new_lake(spark, tmp_path)
    for part in in_chunks(decoded("mixed1.canal.ext"), 3):
        fill(lake, part)
    log, columns = lake.changelog.now(), ["kind", "commit_ts", "offset", "after"]
    by_table = log.rows_by_table(OF_ROWS, columns)
    assert len(by_table) > 3
    place = [("offset", "ascending"), ("commit_ts", "ascending")]
    for name, rows in by_table.items():
        own = pa.Table.from_batches(log._batches(of_table(*name), columns))
        assert rows.select(columns).sort_by(place).equals(own.sort_by(place))
    count = pa.Table.from_batches(log._batches(OF_ROWS, ["kind"])).num_rows
    assert sum(rows.num_rows for rows in by_table.values()) == count


def test_a_file_is_sorted_by_table_and_large_tables_have_groups_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(logfiles, "_CLUSTER_BYTES", 2_000)
    schema = pa.schema([("name", pa.string()), ("n", pa.int64())])
    writer = LogWriter(str(tmp_path), schema, (), ("n", "name"), ("name",))
    names = ["b", "a", "c", "b"] * 100
    rows = pa.table({"name": names, "n": range(400)}, schema)
    (file,) = writer.write_here(rows)
    assert (file.rows, file.bounds) == (400, {"n": (0, 0, 399), "name": (0, "a", "c")})
    found = pq.ParquetFile(file.path)
    groups = [found.read_row_group(n).to_pydict() for n in range(found.num_row_groups)]
    assert [sorted(set(group["name"])) for group in groups] == [["a", "b"], ["c"]]
    assert [n for group in groups for n in group["n"]] == sorted(
        range(400), key=lambda n: (names[n], n)
    )
