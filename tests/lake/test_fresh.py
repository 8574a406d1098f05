"""What a step looks at of a changelog that grows, and what is done to a lake between steps."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.feed.test_replay import Source, decoded
from tests.support import corpus
from tests.support.lake import contents, expected, fill, in_chunks, new_lake
from tidegate.lake import iceberg, upkeep
from tidegate.lake.changelog import OF_ROWS, FreshFiles, Offsets
from tidegate.lake.conditions import ALWAYS, above, equal
from tidegate.lake.interval import Interval
from tidegate.lake.logfiles import LogFile, holding
from tidegate.lake.mirror import Mirror
from tidegate.lake.upkeep import Upkeep

FEED = "bank.canal.ext.stream"
PARTITIONS = [("", number) for number in range(3)]


def same(fresh, whole, seen):
    """Whether both tell the same of what was not seen yet."""
    interval = Interval(OF_ROWS & seen.beyond())
    assert fresh.control_events(seen).equals(whole.control_events(seen))
    assert fresh.offsets_beyond(seen) == whole.offsets_beyond(seen) != {}
    groups, others = fresh.groups(interval), whole.groups(interval)
    assert sorted(groups, key=repr) == sorted(others, key=repr)


def test_what_was_added_is_found_without_the_files_of_before(spark, tmp_path):
    lake, fresh, seen = new_lake(spark, tmp_path), FreshFiles(), Offsets()
    earlier: set[str] = set()
    for number, part in enumerate(in_chunks(decoded(FEED), 4)):
        for partition in range(3):  # a task of Spark's reads one
            fill(lake, part.filter(pc.equal(part["partition"], partition)))
        if number == 3:  # more was done than to add files
            lake.tables.join_files(lake.changelog.identifier)
        whole = lake.changelog.now()
        found = fresh.of(whole, seen.beyond())
        same(found, whole, seen)
        files = {file.path for file in found.files(ALWAYS)}
        assert files
        assert not files & earlier
        earlier |= files
        seen = seen.advanced(found.offsets_beyond(seen))
        left = fresh.of(whole, seen.beyond())
        assert left.offsets_beyond(seen) == {}
        # Of a file of several partitions it is not known that it has nothing new.
        assert (left.files(ALWAYS) == []) == (number < 3)


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
        LogFile("a", 1, (topic == "t") & (offset >= 0) & (offset <= 9)),
        LogFile("b", 1, (topic == "t") & (offset >= 5) & (offset <= 15)),
        LogFile("c", 1),
    ]
    names = {"topic": "string", "offset": "int64", "commit_ts": "int64"}
    schema = pa.schema(list(names.items()))
    assert [file.path for file in holding(files, condition, schema)] == paths


def test_upkeep_between_steps_changes_no_row_and_no_instant(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(iceberg, "_MANY_FILES", 1)
    monkeypatch.setattr(upkeep, "_STEPS", 1)
    monkeypatch.setattr(upkeep, "_KEPT_SECONDS", 0.0)
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
