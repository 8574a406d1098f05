"""What a lake mirrors: a feed's changes, and what must stay the same of it for the lake's life.

A feed is known by where its messages are and how they are read. Brokers, passwords and speed may
change from run to run; another topic, protocol, time zone or choice of tables would mix two feeds.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyspark.sql import SparkSession

from tidegate.feed.config import ChangefeedConfig, SinkUri
from tidegate.feed.dispatch import Dispatcher
from tidegate.feed.topic_use import FeedTopics
from tidegate.lake.checkpoint import Checkpoint
from tidegate.lake.routes import Routes
from tidegate.lake.run import Feed
from tidegate.lake.settings import LakeSettings
from tidegate.model import ConfigError
from tidegate.spark import captures
from tidegate.spark.decoding import Reading, origin
from tidegate.spark.sources import (
    SNIFFED_MESSAGES,
    bounded_topics,
    changes,
    toml_text,
    topic_options,
)
from tidegate.spark.topics import check_answer
from tidegate.wire import capture_files

_ALWAYS_WATERMARKS = ("open-protocol", "simple", "craft")


def open_feed(spark: SparkSession, settings: LakeSettings) -> Feed:
    """The feed that the settings name, ready to be mirrored."""
    if settings.source is None:
        raise ConfigError("feed.source", "no feed is named: give a sink URI or a capture")
    source = settings.source
    config = _config(source, settings.changefeed)
    path = capture_path(source)
    if path is None and config is not None:
        check_answer(spark, config)
    options: dict[str, str] = {}
    if path is None and config is not None:
        # What was subscribed to before stays: Spark takes a topic that goes for lost messages.
        known = Checkpoint.of(spark, settings.place.folder).topics()
        options = bounded_topics(config, known)
    frame = changes(
        spark,
        source,
        changefeed=config,
        max_per_trigger=settings.max_messages,
        protocol=settings.protocol,
        encoding=settings.encoding,
        compression=settings.compression,
        claim_check=settings.claim_check,
        options=options,
    )
    told = origin(frame)
    assert told is not None
    reading = told.reading
    if path is None:
        assert config is not None
        identity = _kafka_identity(config)
        watermarks, partitions = config.sends_watermarks, []
        topics = feed_topics(config)
    else:
        located = captures.locate(path, settings.max_messages)
        identity = _capture_identity(path)
        watermarks = _has_watermarks(spark, located, reading, config)
        partitions = _partitions(spark, located, config)
        topics = FeedTopics(partition_num=None if config is None else config.partition_num)
    identity |= _reading_identity(reading, watermarks, settings.time_zone, settings.routes)
    return Feed(frame, identity, watermarks, partitions, topics)


def feed_topics(config: ChangefeedConfig) -> FeedTopics:
    """What a changefeed to Kafka writes to."""
    if all(rule.topic is None for rule in config.dispatchers):
        return FeedTopics(config.topic, partition_num=config.partition_num)
    dispatcher = Dispatcher(config, 1)
    return FeedTopics(config.topic, dispatcher.topic, dispatcher.may_be_of, config.partition_num)


def early_identity(settings: LakeSettings) -> dict[str, Any]:
    """What is known of a feed's identity before Spark has looked at its messages."""
    source = settings.source or ""
    config, path = _config(source, settings.changefeed), capture_path(source)
    identity = {"time zone": settings.time_zone, "tables": settings.routes.to_object()}
    protocol = settings.protocol or (config.protocol if config else None)
    if protocol is not None:
        identity["protocol"] = protocol
    if path is not None:
        return identity | _capture_identity(path)
    assert config is not None
    consistency = "snapshot" if config.sends_watermarks else "eventual"
    return identity | _kafka_identity(config) | {"consistency": consistency}


def _config(source: str, changefeed: str | None) -> ChangefeedConfig | None:
    """The changefeed's settings; None for a capture of which nothing is told."""
    uri = None
    if urlsplit(source).scheme.startswith("kafka") or source.startswith("file:"):
        uri = SinkUri.parse(source)
    if changefeed is not None:
        return ChangefeedConfig.from_toml(toml_text(changefeed), uri)
    if uri is None:
        return None
    if uri.scheme == "file" and uri.protocol is None:
        return ChangefeedConfig(sink_uri=uri, partition_num=uri.parameters.get("partition-num"))
    return ChangefeedConfig.from_uri(uri)


def capture_path(source: str) -> str | None:
    """The path of a capture; None for Kafka."""
    if urlsplit(source).scheme.startswith("kafka"):
        return None
    return SinkUri.parse(source).path if source.startswith("file:") else source


# --- what stays -----------------------------------------------------------------------------------


def _kafka_identity(config: ChangefeedConfig) -> dict[str, Any]:
    return {"topics": next(iter(topic_options(config).values()))}


def _capture_identity(path: str) -> dict[str, Any]:
    """Its path; and what it holds, unless it is a folder of Parquet, which may get more files."""
    if "://" in path:
        return {"capture": path}
    identity: dict[str, Any] = {"capture": str(Path(path).absolute())}
    files = capture_files(path)
    if not (Path(path).is_dir() and all(file.suffix == ".parquet" for file in files)):
        stats = [file.stat() for file in files]
        changed = datetime.fromtimestamp(max(stat.st_mtime for stat in stats), UTC)
        size = sum(stat.st_size for stat in stats)
        identity["content"] = f"{size} bytes of {changed:%Y-%m-%d %H:%M:%S} UTC"
    return identity


def _reading_identity(
    reading: Reading, watermarks: bool, time_zone: str, routes: Routes
) -> dict[str, Any]:
    return {
        "protocol": reading.protocol,
        "compression": reading.compression,
        "consistency": "snapshot" if watermarks else "eventual",
        "time zone": time_zone,
        "tables": routes.to_object(),
    }


# --- what a capture tells of itself ---------------------------------------------------------------


def _has_watermarks(
    spark: SparkSession,
    located: captures.Located,
    reading: Reading,
    config: ChangefeedConfig | None,
) -> bool:
    if reading.protocol in _ALWAYS_WATERMARKS:
        return True
    if config is not None and config.protocol is not None and config.enable_tidb_extension:
        return True
    head = located.head(spark, SNIFFED_MESSAGES)
    if any(value is not None and b'"_tidb"' in value for _, value in head):
        return True
    keys, values = (pa.array([part[place] for part in head], pa.binary()) for place in (0, 1))
    messages = pa.RecordBatch.from_arrays([keys, values], ["key", "value"])
    return "watermark" in reading.decoder()(messages)["kind"].to_pylist()


def _partitions(
    spark: SparkSession, located: captures.Located, config: ChangefeedConfig | None
) -> list[tuple[str, int]]:
    """All partitions that the capture has messages of, and those that the feed is said to have."""
    reader = spark.read.schema(captures.MESSAGE_TYPE).option("pathGlobFilter", "*.parquet")
    rows = reader.parquet(located.path).select("topic", "partition").distinct().collect()
    found = {(row["topic"] or "", row["partition"]) for row in rows}
    if config is not None and config.partition_num is not None:
        for topic in {topic for topic, _ in found} or {""}:
            found |= {(topic, number) for number in range(config.partition_num)}
    return sorted(found)
