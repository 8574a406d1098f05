"""What can be wrong with a run, found before Spark, which takes ten seconds to start."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from tidegate.cli.kafka import Start, TopicReader, check_brokers
from tidegate.cli.source import check_protocol, first_messages, open_source

if TYPE_CHECKING:
    from tidegate.feed.config import ChangefeedConfig
    from tidegate.lake.settings import LakeSettings


def check_place(settings: LakeSettings) -> None:
    """Raises LakeError where the lake was moved or copied."""
    from tidegate.lake.iceberg import local_folder, recorded
    from tidegate.lake.lake import check_folder

    if settings.catalog is not None or "://" in settings.place.folder:
        return
    folder = local_folder(settings.place.folder)
    catalog = recorded(folder)
    if catalog is not None:
        check_folder(catalog.folder, str(folder))


def check_feed(settings: LakeSettings) -> None:
    """Raises where the feed is not the lake's, cannot be read, or is of another protocol."""
    from tidegate.lake.run import check_identity
    from tidegate.lake.settings import recall
    from tidegate.lake.source import capture_path, early_identity
    from tidegate.spark.sources import feed_settings

    assert settings.source is not None
    config = feed_settings(settings.source, settings.changefeed)
    identity = early_identity(settings)
    bound_to = (recall(settings.place.folder) or {}).get("feed", {})
    check_identity({name: bound_to[name] for name in identity if name in bound_to}, identity)
    path = capture_path(settings.source)
    if path is None:
        assert config is not None
        _check_topic(config, settings)
    elif "://" not in path:
        protocol = settings.protocol or (config.protocol if config else None)
        compression = settings.compression or (config.compression if config else None)
        open_source(
            path,
            protocol=protocol,
            encoding=settings.encoding,
            compression=compression,
            claim_check=None,
        )


def can_ask_kafka(config: ChangefeedConfig) -> bool:
    """Whether Kafka can be asked without Spark: the library is there and knows the login."""
    mechanism = None if config.kafka is None else config.kafka.settings.get("sasl-mechanism")
    return find_spec("confluent_kafka") is not None and mechanism != "oauthbearer"


def _check_topic(config: ChangefeedConfig, settings: LakeSettings) -> None:
    from tidegate.spark.sources import topic_options

    if not can_ask_kafka(config):
        return
    if "subscribe" not in topic_options(config):  # topics are made as tables come
        check_brokers(config)
        return
    batches = TopicReader(config, Start()).batches()
    first = next(batches, None)
    batches.close()
    protocol = settings.protocol or config.protocol
    if first is not None and protocol is not None:
        compression = settings.compression or config.compression
        source = f"the topic {config.topic!r}"
        check_protocol(source, first_messages(first), protocol, settings.encoding, compression)
