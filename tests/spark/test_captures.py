"""Captures as DataFrames: JSON lines and Parquet, files and folders, streaming and not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support import corpus
from tests.support.spark import arrow, assert_equal, stream
from tidegate.model import CaptureError, SourceError
from tidegate.spark import CHANGE_TYPE, changes, decode
from tidegate.wire import decode_batch, read_capture, read_captures, write_capture
from tidegate.wire.batch.key_updates import mark_moves

FEED = "ddl.canal.ext.stream"


def messages(name: str = FEED) -> pa.RecordBatch:
    sent = corpus.messages(name)
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([message.partition for message in sent], pa.int32()),
            "key": pa.array([message.key for message in sent], pa.binary()),
            "value": pa.array([message.value for message in sent], pa.binary()),
        }
    )


def expected(path: Path, protocol: str = "canal-json", **settings: Any) -> pa.Table:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    batches = [
        mark_moves(
            decode_batch(
                protocol,
                batch["key"],
                batch["value"],
                topics=batch["topic"],
                partitions=batch["partition"],
                offsets=batch["offset"],
                **settings,
            )
        )
        for batch in read_captures(files)
    ]
    return pa.Table.from_batches(batches)


def capture(folder: Path, name: str) -> Path:
    """A capture of the feed, in one file or (a name without suffix) in a folder of three."""
    path = folder / name
    whole = messages()
    if path.suffix:
        write_capture(path, [whole])
        return path
    path.mkdir()
    third = whole.num_rows // 3 + 1
    for number in range(3):
        write_capture(path / f"{number}.jsonl", [whole.slice(number * third, third)])
        lines = (path / f"{number}.jsonl").read_text().splitlines()
        without = [{k: v for k, v in json.loads(line).items() if k != "offset"} for line in lines]
        (path / f"{number}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in without))
    return path


NAMES = ["feed.jsonl", "feed.jsonl.gz", "feed.parquet", "folder"]


@pytest.mark.parametrize("name", NAMES)
def test_a_capture_reads_as_its_messages_decode(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    path = capture(tmp_path, name)
    found = changes(spark, path, batch=True)

    assert found.schema == CHANGE_TYPE
    assert_equal(arrow(found), expected(path))


def test_a_capture_is_a_stream_of_triggers(spark: SparkSession, tmp_path: Path) -> None:
    path = capture(tmp_path, "folder")
    found, progress = stream(changes(spark, path, max_per_trigger=100), tmp_path / "checkpoint")

    assert_equal(found, expected(path))
    assert len(progress) > 3
    assert max(batch["numInputRows"] for batch in progress) <= 100


def test_a_capture_by_uri_names_its_protocol(spark: SparkSession, tmp_path: Path) -> None:
    path = capture(tmp_path, "feed.parquet")

    uri = f"{path.as_uri()}?protocol=canal-json&enable-tidb-extension=true"
    assert_equal(arrow(changes(spark, uri, batch=True)), expected(path))


def test_the_protocol_and_compression_of_a_capture_are_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "feed.jsonl"
    write_capture(path, [messages("types.simple.json.lz4")])

    found = arrow(changes(spark, path, batch=True))
    assert_equal(found, expected(path, "simple", compression="lz4"))


def test_a_capture_of_something_else_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "feed.jsonl"
    path.write_text('{"key":null,"value":"AAAA"}\n')

    with pytest.raises(SourceError, match="none of its first 1 messages"):
        changes(spark, path)
    with pytest.raises(CaptureError, match="no such file"):
        changes(spark, tmp_path / "none.jsonl")


def test_only_events_after_the_start_timestamp(spark: SparkSession, tmp_path: Path) -> None:
    path = capture(tmp_path, "feed.parquet")
    whole = expected(path)
    times = sorted(set(whole["commit_ts"].drop_null().to_pylist()))
    middle = times[len(times) // 2]

    found = arrow(changes(spark, path, batch=True, start_ts=middle))
    keep = [
        row["kind"] in ("schema", "error") or row["commit_ts"] is None or row["commit_ts"] > middle
        for row in whole.to_pylist()
    ]
    assert_equal(found, whole.filter(pa.array(keep)))
    assert 0 < sum(keep) < whole.num_rows


@pytest.mark.parametrize("name", ["large.open.cc", "large.canal.cc", "large.simple.avro.cc"])
def test_claim_checks_are_read_from_a_folder(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    variant = corpus.variant(name)
    load = corpus.claim_check_loader(name)
    path = tmp_path / "feed.parquet"
    write_capture(path, [messages(name)])
    protocol = {"open": "open-protocol", "canal": "canal-json"}.get(variant.protocol, "simple")
    told = expected(path, protocol, claim_check=load)
    store = tmp_path / "store"
    store.mkdir()
    for location in claim_checks(path, protocol):
        (store / location.rpartition("/")[2]).write_bytes(load(location))

    for place in (str(store), store.as_uri()):
        found = changes(spark, path, batch=True, claim_check=place)
        assert_equal(arrow(found), told)


def claim_checks(path: Path, protocol: str) -> list[str]:
    unread = expected(path, protocol)
    return [location for location in unread["claim_check"].to_pylist() if location]


def test_any_dataframe_of_messages_decodes(spark: SparkSession, tmp_path: Path) -> None:
    path = capture(tmp_path, "feed.parquet")
    frame: DataFrame = spark.read.parquet(str(path)).select("value", "key")
    told = pa.Table.from_batches(
        [decode_batch("canal-json", batch["key"], batch["value"]) for batch in read_capture(path)]
    )

    found = arrow(decode(frame, "canal-json"))
    assert found.select(["topic", "partition", "offset"]).drop_null().num_rows == 0
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, told.to_pylist()))
