"""Captures as sources: every message once, with the same offset in every round and restart."""

import gzip
import json
import os
import shutil
from base64 import b64encode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.model import CaptureError, SourceError
from tidegate.source.base import RoundLimits
from tidegate.source.capture import CaptureSource
from tidegate.wire import CAPTURE_SCHEMA, capture_files, read_captures

EVERYTHING = RoundLimits()


def rows(count, start=0, partitions=3, topic="t", offsets=False):
    return [
        {
            "topic": topic,
            "partition": number % partitions,
            "offset": number // partitions if offsets else None,
            "timestamp": number,
            "key": b"k%d" % number,
            "value": b"v%d" % number,
        }
        for number in range(start, start + count)
    ]


def lines(messages):
    for number, message in enumerate(messages):
        document = {name: part for name, part in message.items() if part is not None}
        document |= {name: b64encode(message[name]).decode() for name in ("key", "value")}
        yield json.dumps(document).encode() + b"\n" + (b"\n" if number % 7 == 0 else b"")


def write(path, messages, without=(), group=None):
    if path.suffix == ".parquet":
        table = pa.Table.from_pylist(messages, CAPTURE_SCHEMA).drop_columns(list(without))
        pq.write_table(table, path, row_group_size=group)
    else:
        content = b"".join(lines(messages))
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def read(source, limits, position=None):
    """All messages round by round, as after a restart before each; and the plans."""
    messages, plans = [], []
    position = position or {}
    while True:
        plan = source().plan(json.loads(json.dumps(position)), limits)
        plans.append(plan)
        for split in plan.splits:
            batches = list(source().reader.read(split))
            assert sum(batch.num_rows for batch in batches) == split.messages
            for batch in batches:
                assert batch.schema == CAPTURE_SCHEMA
                messages += batch.to_pylist()
        position = plan.position
        if not plan.behind:
            return messages, plans


def expected(path):
    return [row for batch in read_captures(capture_files(str(path))) for row in batch.to_pylist()]


CAPTURES = {
    "lines": lambda folder: write(folder / "a.jsonl", rows(100)),
    "lines with offsets": lambda folder: write(folder / "a.jsonl", rows(100, offsets=True)),
    "compressed lines": lambda folder: write(folder / "a.jsonl.gz", rows(100)),
    "parquet": lambda folder: write(folder / "a.parquet", rows(100, offsets=True), group=30),
    "parquet without offsets": lambda folder: write(
        folder / "a.parquet", rows(100), without=["offset"], group=30
    ),
    "parquet with some offsets": lambda folder: write(
        folder / "a.parquet", rows(50, offsets=True) + rows(50, 50), group=30
    ),
    "parquet of keys and values": lambda folder: write(
        folder / "a.parquet", rows(100), without=["topic", "partition", "offset", "timestamp"]
    ),
    "several files": lambda folder: (
        write(folder / "a.jsonl", rows(40)),
        write(folder / "b.parquet", []),
        write(folder / "c.parquet", rows(40, 40), without=["offset"], group=7),
        write(folder / "d.jsonl.gz", rows(20, 80)),
    ),
    "several topics": lambda folder: (
        write(folder / "a.parquet", rows(30, topic="x") + rows(30, topic="y"), group=30),
        write(folder / "b.jsonl", rows(30, topic="y")),
    ),
}


@pytest.mark.parametrize("messages", [None, 1, 7, 33])
@pytest.mark.parametrize("name", CAPTURES)
def test_every_message_comes_once_with_its_offset_however_it_is_cut(tmp_path, name, messages):
    CAPTURES[name](tmp_path)
    limits = RoundLimits(messages=messages, split_messages=11)
    found, plans = read(lambda: CaptureSource(tmp_path), limits)
    assert found == expected(tmp_path)
    assert len({plan.partitions for plan in plans}) == 1  # known from the first round on
    assert plans[0].partitions == {(row["topic"] or "", row["partition"]) for row in found}
    for plan in plans:
        assert messages is None or sum(split.messages for split in plan.splits) <= messages
    assert [plan.behind for plan in plans] == sorted((plan.behind for plan in plans), reverse=True)


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "parquet"])
def test_a_single_file_is_a_capture_whatever_its_name(tmp_path, suffix):
    write(tmp_path / f"a.{suffix}", rows(30, offsets=True))
    (tmp_path / f"a.{suffix}").rename(tmp_path / "capture")
    found, _ = read(lambda: CaptureSource(tmp_path / "capture"), EVERYTHING)
    assert found == rows_as_read(rows(30, offsets=True))


def rows_as_read(messages):
    return pa.Table.from_pylist(messages, CAPTURE_SCHEMA).to_pylist()


def test_a_round_is_bounded_in_bytes(tmp_path):
    wide = [row | {"value": os.urandom(10_000)} for row in rows(100)]
    for name in ("a.parquet", "b.jsonl"):
        write(tmp_path / name, wide, group=40)
    plan = CaptureSource(tmp_path).plan({}, RoundLimits(bytes=200_000, split_bytes=50_000))
    assert 10 <= sum(split.messages for split in plan.splits) <= 25
    assert all(split.messages <= 5 for split in plan.splits)


@pytest.mark.parametrize("value", [b"x" * 1_000_000, os.urandom(1_000_000)])
def test_batches_of_large_messages_are_bounded_also_where_they_repeat(tmp_path, value):
    wide = [row | {"value": value} for row in rows(600)]
    write(tmp_path / "a.parquet", wide)
    source = CaptureSource(tmp_path)
    (split,) = source.plan({}, EVERYTHING).splits
    sizes = [(batch.num_rows, batch.nbytes) for batch in source.reader.read(split)]
    assert sum(count for count, _ in sizes) == 600
    assert max(size for _, size in sizes) < 300e6


def test_small_files_are_read_by_one_task_and_large_ones_by_several(tmp_path):
    for number in range(20):
        write(tmp_path / f"{number:02}.parquet", rows(10, offsets=True))
    plan = CaptureSource(tmp_path, tasks=4).plan({}, EVERYTHING)
    assert [split.messages for split in plan.splits] == [200]
    write(tmp_path / "large.parquet", rows(50_000, offsets=True))
    plan = CaptureSource(tmp_path / "large.parquet", tasks=4).plan({}, EVERYTHING)
    assert [split.messages for split in plan.splits] == [12_500] * 4


def test_partitions_that_are_said_to_be_there_are_known(tmp_path):
    write(tmp_path / "a.jsonl", rows(3, partitions=2))
    plan = CaptureSource(tmp_path, partition_num=4).plan({}, EVERYTHING)
    assert plan.partitions == {("t", number) for number in range(4)}


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "parquet"])
def test_the_first_messages_are_given_for_a_look(tmp_path, suffix):
    for name, start in (("a", 0), ("b", 4)):
        write(tmp_path / f"{name}.{suffix}", rows(4, start))
    found = CaptureSource(tmp_path).head(6)
    assert found == [(b"k%d" % number, b"v%d" % number) for number in range(6)]
    assert len(CaptureSource(tmp_path).head(100)) == 8


@pytest.mark.parametrize("properties", [{}, {"s3.region": "any"}], ids=["pyarrow", "pyiceberg"])
@pytest.mark.parametrize("name", ["several files", "parquet"])
def test_a_capture_is_read_by_its_uri(tmp_path, name, properties):
    CAPTURES[name](tmp_path)
    uri = f"file://{tmp_path}"
    found, _ = read(lambda: CaptureSource(uri, properties=properties), RoundLimits(messages=60))
    assert found == expected(tmp_path)
    (file, *_) = sorted(tmp_path.iterdir())
    single = f"file://{file}"
    found, _ = read(lambda: CaptureSource(single, properties=properties), EVERYTHING)
    assert found == expected(file)
    with pytest.raises(CaptureError, match="there is no such file"):
        CaptureSource(uri + "/none", properties=properties).plan({}, EVERYTHING)


def test_a_storage_that_is_not_known_is_named(tmp_path):
    with pytest.raises(SourceError, match=r"the capture 'nowhere://b/a'.*Check the URI"):
        CaptureSource("nowhere://b/a").plan({}, EVERYTHING)


# --- what may change ------------------------------------------------------------------------------


def test_a_folder_of_parquet_may_get_more_files_also_before_those_that_were_read(tmp_path):
    write(tmp_path / "m.parquet", rows(10), without=["offset"])
    found, plans = read(lambda: CaptureSource(tmp_path), EVERYTHING)
    write(tmp_path / "a.parquet", rows(10, 10, partitions=4), without=["offset"])
    more, later = read(lambda: CaptureSource(tmp_path), RoundLimits(messages=3), plans[-1].position)
    assert [row["key"] for row in found + more] == [b"k%d" % number for number in range(20)]
    for partition in range(4):
        offsets = [row["offset"] for row in found + more if row["partition"] == partition]
        assert offsets == list(range(len(offsets)))
    assert later[0].partitions == {("t", number) for number in range(4)}


def planned(tmp_path):
    return CaptureSource(tmp_path).plan({}, RoundLimits(messages=5)).position


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "parquet"])
def test_a_file_that_was_read_and_is_changed_is_refused(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    write(path, rows(10))
    position = planned(tmp_path)
    write(path, rows(11))
    with pytest.raises(SourceError, match=rf"its file 'a\.{suffix}' was changed"):
        CaptureSource(tmp_path).plan(position, EVERYTHING)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_changed_file_of_the_same_size_is_refused_and_a_copy_is_not(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    write(path, rows(10))
    position = planned(tmp_path)
    content = path.read_bytes()
    shutil.copyfile(path, tmp_path / "copy")
    os.replace(tmp_path / "copy", path)
    os.utime(path, ns=(1, 1))
    assert CaptureSource(tmp_path).plan(position, EVERYTHING).behind == 0
    write(path, [row | {"value": row["value"][::-1]} for row in rows(10)])
    assert path.stat().st_size == len(content)
    with pytest.raises(SourceError, match="was changed"):
        CaptureSource(tmp_path).plan(position, EVERYTHING)


def test_a_file_that_goes_is_refused(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.parquet", rows(10))
    position = planned(tmp_path)
    (tmp_path / "b.parquet").unlink()
    with pytest.raises(SourceError, match=r"its file 'b\.parquet', .* does not exist any more"):
        CaptureSource(tmp_path).plan(position, EVERYTHING)


def test_a_new_file_of_lines_is_refused(tmp_path):
    write(tmp_path / "a.parquet", rows(10))
    position = planned(tmp_path)
    write(tmp_path / "b.jsonl", rows(10))
    with pytest.raises(SourceError, match=r"the new file 'b\.jsonl'"):
        CaptureSource(tmp_path).plan(position, EVERYTHING)


def test_a_file_that_changes_between_plan_and_read_is_refused(tmp_path):
    write(tmp_path / "a.parquet", rows(10))
    source = CaptureSource(tmp_path)
    (split,) = source.plan({}, EVERYTHING).splits
    write(tmp_path / "a.parquet", rows(20))
    with pytest.raises(SourceError, match="was changed"):
        list(source.reader.read(split))


def test_what_is_no_capture_is_refused_by_name_and_line(tmp_path):
    with pytest.raises(CaptureError, match="there is no such file"):
        CaptureSource(tmp_path / "none").plan({}, EVERYTHING)
    with pytest.raises(CaptureError, match="the folder has no files"):
        CaptureSource(tmp_path).plan({}, EVERYTHING)
    write(tmp_path / "a.jsonl", rows(3))
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.write(b'{"partition": 1}\n')
    with pytest.raises(CaptureError, match=r"Line 5 of the capture '.*a\.jsonl' is not a message"):
        CaptureSource(tmp_path).plan({}, EVERYTHING)
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    with pytest.raises(CaptureError, match="cannot be read as Parquet"):
        CaptureSource(tmp_path).plan({}, EVERYTHING)
