"""What a lake mirrors: a feed's changes, and what must stay the same of it for the lake's life.

A feed is known by where its messages are and how they are read. Brokers, passwords and speed may
change from run to run; another topic, protocol, time zone or choice of tables would mix two feeds.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyspark.sql import SparkSession

from tidegate.changefeed.config.changefeed import ChangefeedConfig, SinkUri
from tidegate.changefeed.config.subscription import Subscription
from tidegate.changefeed.receive.topic_use import FeedTopics
from tidegate.changefeed.send.dispatch import Dispatcher
from tidegate.lake.job.run import Feed
from tidegate.lake.job.settings import LakeSettings
from tidegate.lake.routes import Routes
from tidegate.model import ConfigError, SourceError
from tidegate.source.base import RoundLimits
from tidegate.source.capture import CaptureSource
from tidegate.source.kafka import KafkaSource
from tidegate.spark.decoding import Reading
from tidegate.spark.sources import SNIFFED_MESSAGES, encoding_of, storage_of, toml_text
from tidegate.wire import capture_files, sniff_all

_ALWAYS_WATERMARKS = ("open-protocol", "simple", "craft")
_ROUND_MESSAGES = 1_000_000
"""What a round reads at most: after a crash it is repeated whole, and progress shows each."""
_ROUND_BYTES = 2 << 30

Head = list[tuple[bytes | None, bytes | None]]


def open_feed(spark: SparkSession, settings: LakeSettings) -> Feed:
    """The feed that the settings name, ready to be mirrored."""
    if settings.source is None:
        raise ConfigError("feed.source", "no feed is named: give a sink URI or a capture")
    config = _config(settings.source, settings.changefeed)
    path = capture_path(settings.source)
    limits = RoundLimits(settings.max_messages or _ROUND_MESSAGES, _ROUND_BYTES)
    reading = Reading(
        settings.protocol or (config.protocol if config else None) or "",
        settings.encoding or (encoding_of(config) if config else None),
        settings.compression or (config.compression if config else None),
        settings.claim_check if settings.claim_check is not None else storage_of(config),
    )
    if path is None:
        assert config is not None
        source = KafkaSource(config, tasks=2 * spark.sparkContext.defaultParallelism)
        identity = _kafka_identity(config) | _reading_identity(
            reading, config.sends_watermarks, settings.time_zone, settings.routes
        )
        reading.check()
        return Feed(
            source,
            reading,
            identity,
            config.sends_watermarks,
            limits,
            feed_topics(config),
            config.replicates,
            config.force_replicate,
        )
    count = None if config is None else config.partition_num
    tasks = 2 * spark.sparkContext.defaultParallelism
    capture = CaptureSource(path, partition_num=count, tasks=tasks)
    head = capture.head(SNIFFED_MESSAGES)
    reading = _detected(reading, head, path)
    reading.check()
    watermarks = _has_watermarks(head, reading, config)
    identity = _capture_identity(path) | _reading_identity(
        reading, watermarks, settings.time_zone, settings.routes
    )
    topics = FeedTopics(partition_num=count)
    feed = Feed(capture, reading, identity, watermarks, limits, topics)
    if config is None:
        return feed
    return replace(feed, sends=config.replicates, sends_keyless=config.force_replicate)


def _detected(given: Reading, head: Head, path: str) -> Reading:
    """How a capture is read, where the caller did not say all of it."""
    if given.protocol and (given.compression or given.protocol in ("craft", "cdc")):
        return given
    sniffed = sniff_all(head)
    if sniffed is not None and given.protocol in ("", sniffed.protocol):
        compression = given.compression or sniffed.compression
        return replace(given, protocol=sniffed.protocol, compression=compression)
    if given.protocol:
        return given
    raise SourceError(
        f"the capture {path!r}",
        f"none of its first {len(head)} messages is of a protocol that is known",
        "Name the protocol: --protocol canal-json, or file:///…?protocol=canal-json",
    )


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
    return {"topics": Subscription.of(config).text}


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


def _has_watermarks(head: Head, reading: Reading, config: ChangefeedConfig | None) -> bool:
    if reading.protocol in _ALWAYS_WATERMARKS:
        return True
    if config is not None and config.protocol is not None and config.enable_tidb_extension:
        return True
    if any(value is not None and b'"_tidb"' in value for _, value in head):
        return True
    keys, values = (pa.array([part[place] for part in head], pa.binary()) for place in (0, 1))
    messages = pa.RecordBatch.from_arrays([keys, values], ["key", "value"])
    return "watermark" in reading.decoder()(messages)["kind"].to_pylist()
