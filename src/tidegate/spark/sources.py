"""A feed as a DataFrame of changes: Kafka through Spark's own connector, captures as files.

Streaming by default. The same columns come from everywhere (docs/batch.md); where Spark reads
messages and how they are decoded is kept beside the DataFrame, so that `table` can decode and type
in one pass.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, SparkSession

from tidegate.changefeed.config.changefeed import ChangefeedConfig, SinkUri
from tidegate.changefeed.config.subscription import Subscription
from tidegate.model import ConfigError, SourceError, physical_ms
from tidegate.spark import captures
from tidegate.spark.decoding import Origin, Reading, changes_of
from tidegate.spark.metrics import TallyCounter
from tidegate.wire import sniff_all

SNIFFED_MESSAGES = 1000

CLOCK_MARGIN_MS = 60_000
"""How far Kafka's timestamps may lag behind TiDB's clock before `start_ts` could miss a message."""

MAX_PER_TASK = 50_000
"""Messages of a task: with a task a partition of the topic, cores would wait for the largest."""

_FETCHING = {
    # A consumer asks anew for each fetch, and for 500 messages of 1 MiB at most unless told.
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}


def changes(
    spark: SparkSession,
    source: str | Path,
    *,
    batch: bool = False,
    changefeed: ChangefeedConfig | str | Path | None = None,
    starting: str | Mapping[str, Any] = "earliest",
    ending: str | Mapping[str, Any] = "latest",
    start_ts: int | None = None,
    max_per_trigger: int | None = None,
    protocol: str | None = None,
    encoding: str | None = None,
    compression: str | None = None,
    claim_check: str | Path | None = None,
    fail_on_data_loss: bool = True,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The changes of a feed, one row an event, with the columns of docs/batch.md.

    `source` is a sink URI (`kafka://host:port/topic?protocol=…`), or a capture: a JSONL or Parquet
    file, or a folder of them, by its path or as `file://…`; Parquet captures may be on any storage
    that Spark reads. `changefeed` is the feed's TOML file, whose settings count here too (topics,
    compression, claim checks).

    `starting` is earliest, latest or Kafka offsets as Spark writes them, `{"topic": {"0": 12}}`;
    `ending` is the same for `batch=True`. With `start_ts` (a TSO) reading starts at its time, and
    only events committed after it are given. `max_per_trigger` is the most messages of a trigger;
    `options` are passed to Spark's source.

    Without `fail_on_data_loss`, messages that Kafka deleted before they were read are passed over.
    """
    feed = feed_settings(source, changefeed)
    told = Reading(
        protocol or (feed.protocol if feed else None) or "",
        encoding or (encoding_of(feed) if feed else None),
        compression or (feed.compression if feed else None),
        str(claim_check) if claim_check is not None else storage_of(feed),
    )
    if feed is not None and feed.sink_uri is not None and feed.sink_uri.scheme != "file":
        messages = _from_kafka(
            spark,
            feed,
            batch=batch,
            starting=starting,
            ending=ending,
            start_ts=start_ts,
            max_per_trigger=max_per_trigger,
            fail_on_data_loss=fail_on_data_loss,
            options=options or {},
        )
        reading = told
    else:
        path = feed.sink_uri.path if feed is not None and feed.sink_uri is not None else None
        messages, reading = _from_capture(
            spark, path or str(source), told, batch, max_per_trigger, options or {}
        )
    reading.check()

    def whole() -> DataFrame:
        return changes(
            spark,
            source,
            batch=True,
            changefeed=changefeed,
            protocol=reading.protocol,
            encoding=reading.encoding,
            compression=reading.compression,
            claim_check=reading.claim_check,
            fail_on_data_loss=fail_on_data_loss,
            options=options,
        )

    watermarks = None if feed is None or feed.protocol is None else feed.sends_watermarks
    counter = TallyCounter.start(spark)
    return changes_of(Origin(messages, reading, counter, start_ts, whole, watermarks))


# --- what the caller named ------------------------------------------------------------------------


def feed_settings(
    source: str | Path, changefeed: ChangefeedConfig | str | Path | None
) -> ChangefeedConfig | None:
    """The feed's settings; None for a capture of which nothing is told."""
    scheme = urlsplit(source).scheme if isinstance(source, str) else ""
    uri = None
    if isinstance(source, str) and (scheme.startswith("kafka") or source.startswith("file:")):
        uri = SinkUri.parse(source)
    if isinstance(changefeed, ChangefeedConfig):
        if uri is not None and changefeed.sink_uri not in (None, uri):
            raise ConfigError(
                "changefeed",
                "it was read for another sink URI; read it with from_toml and this one",
            )
        if changefeed.sink_uri is None and uri is not None:
            raise ConfigError(
                "changefeed",
                "it has no sink URI; read it with ChangefeedConfig.from_toml(text, uri)",
            )
        return changefeed
    if changefeed is not None:
        return ChangefeedConfig.from_toml(toml_text(changefeed), uri)
    if uri is None:
        return None
    if uri.scheme == "file" and uri.protocol is None:
        return ChangefeedConfig(sink_uri=uri)
    return ChangefeedConfig.from_uri(uri)


def toml_text(changefeed: str | Path) -> str:
    """The text of a changefeed's file."""
    try:
        return Path(changefeed).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError("changefeed", f"{changefeed}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        reason = f"{changefeed} is not text in UTF-8 ({error})"
        raise ConfigError("changefeed", reason) from error


def encoding_of(feed: ChangefeedConfig) -> str | None:
    """Only what was told: Simple's decoder reads both of its encodings side by side."""
    return "avro" if feed.protocol == "simple" and feed.encoding_format == "avro" else None


def storage_of(feed: ChangefeedConfig | None) -> str | None:
    if feed is None or feed.large_message_handle != "claim-check":
        return None
    uri = feed.claim_check_storage_uri
    return None if uri is None else uri.reveal()


# --- Kafka ----------------------------------------------------------------------------------------


def _from_kafka(
    spark: SparkSession,
    feed: ChangefeedConfig,
    *,
    batch: bool,
    starting: str | Mapping[str, Any],
    ending: str | Mapping[str, Any],
    start_ts: int | None,
    max_per_trigger: int | None,
    fail_on_data_loss: bool,
    options: Mapping[str, str],
) -> DataFrame:
    chosen = {
        **feed.kafka_options(),
        **topic_options(feed),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "maxRecordsPerPartition": str(MAX_PER_TASK),
        **_FETCHING,
    }
    if start_ts is None:
        chosen["startingOffsets"] = _offsets("starting", starting)
    else:
        chosen["startingTimestamp"] = str(max(0, physical_ms(start_ts) - CLOCK_MARGIN_MS))
        chosen["startingOffsetsByTimestampStrategy"] = "latest"
    if batch:
        chosen["endingOffsets"] = _offsets("ending", ending)
    if max_per_trigger is not None:
        if max_per_trigger < 1:
            raise ConfigError("max_per_trigger", "it must be above 0")
        if not batch:
            chosen["maxOffsetsPerTrigger"] = str(max_per_trigger)
    chosen |= options
    reader: Any = spark.read if batch else spark.readStream
    frame: DataFrame = reader.format("kafka").options(**chosen).load()
    return frame.select("topic", "partition", "offset", "timestamp", "key", "value")


def topic_options(feed: ChangefeedConfig) -> dict[str, str]:
    """Every topic the feed writes to, in the options of Spark's Kafka source."""
    topics = Subscription.of(feed)
    if topics.pattern is None:
        return {"subscribe": ",".join(topics.names)}
    # Spark looks for a pattern anywhere in a name.
    return {"subscribePattern": f"^(?:{topics.pattern})$"}


def _offsets(setting: str, given: str | Mapping[str, Any]) -> str:
    if isinstance(given, Mapping):
        return json.dumps(given)
    if given in ("earliest", "latest"):
        return given
    try:
        if isinstance(json.loads(given), dict):
            return given
    except ValueError:
        pass
    reason = 'use "earliest", "latest" or offsets: {"topic": {"0": 12, "1": -2}}'
    raise ConfigError(setting, f"{given!r} names no offsets; {reason}")


# --- captures -------------------------------------------------------------------------------------


def _from_capture(
    spark: SparkSession,
    path: str,
    told: Reading,
    batch: bool,
    max_per_trigger: int | None,
    options: Mapping[str, str],
) -> tuple[DataFrame, Reading]:
    capture = captures.locate(path, None if batch else max_per_trigger)
    chosen = {"pathGlobFilter": "*.parquet", **options}
    if batch:
        messages = spark.read.schema(captures.MESSAGE_TYPE).options(**chosen).parquet(capture.path)
    else:
        if max_per_trigger is not None:
            chosen.setdefault("maxFilesPerTrigger", "1")
        stream = spark.readStream.schema(captures.MESSAGE_TYPE).options(**chosen)
        messages = stream.parquet(capture.path)
    if told.protocol and (told.compression or told.protocol in ("craft", "cdc")):
        return messages, told
    head = capture.head(spark, SNIFFED_MESSAGES)
    found = sniff_all(head)
    if found is not None and told.protocol in ("", found.protocol):
        compression = told.compression or found.compression
        return messages, Reading(found.protocol, told.encoding, compression, told.claim_check)
    if told.protocol:
        return messages, told
    raise SourceError(
        f"the capture {path!r}",
        f"none of its first {len(head)} messages is of a protocol that is known",
        "Name the protocol: protocol='canal-json', or file:///…?protocol=canal-json",
    )
