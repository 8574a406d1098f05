"""What can be wrong with a run, found before Spark, which takes ten seconds to start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.changefeed.config.subscription import Subscription
from tidegate.cli.source import check_protocol, first_messages, open_source
from tidegate.source.client import check_brokers
from tidegate.source.topic_reader import Start, TopicReader

if TYPE_CHECKING:
    from tidegate.changefeed.config.changefeed import ChangefeedConfig
    from tidegate.lake.job.settings import LakeSettings


def check_place(settings: LakeSettings) -> None:
    """Raises LakeError where the lake was moved or copied."""
    from tidegate.lake.formats.base import local_folder
    from tidegate.lake.formats.iceberg import recorded
    from tidegate.lake.lake import check_folder

    if settings.catalog is not None or "://" in settings.place.folder:
        return
    folder = local_folder(settings.place.folder)
    catalog = recorded(folder)
    if catalog is not None:
        check_folder(catalog.folder, str(folder))


def check_feed(settings: LakeSettings) -> None:
    """Raises where the feed is not the lake's, cannot be read, or is of another protocol."""
    from tidegate.lake.job.run import SOURCES, check_identity
    from tidegate.lake.job.settings import recall
    from tidegate.lake.job.source import capture_path, early_identity
    from tidegate.spark.sources import feed_settings

    assert settings.source is not None
    config = feed_settings(settings.source, settings.changefeed)
    identity = early_identity(settings)
    bound_to = (recall(settings.place.folder) or {}).get("feed", {})
    known = {name: value for name, value in bound_to.items() if name in (*identity, *SOURCES)}
    check_identity(known, identity)
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


def _check_topic(config: ChangefeedConfig, settings: LakeSettings) -> None:
    if Subscription.of(config).pattern is not None:  # topics are made as tables come
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
