"""Queries over feeds: where they stand, and in plain words why they stopped."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING

from tidegate.model import ConfigError, SourceError, TidegateError
from tidegate.spark.decoding import origin
from tidegate.spark.metrics import Progress, measure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

MESSAGES_LOST = (
    "Kafka no longer has messages that were not read yet: they were deleted by retention, or the "
    "topic was made anew"
)

# Spark's words, or those of Kafka's client, and what they mean for a feed.
_CAUSES: tuple[tuple[str, str, str], ...] = (
    (
        r"KAFKA_DATA_LOSS|OffsetOutOfRangeException|data may have been lost",
        MESSAGES_LOST,
        "Mirror the affected tables again from a new snapshot, or read on without what is lost "
        "with fail_on_data_loss=False, and keep messages longer (retention.ms)",
    ),
    (
        r"UnknownTopicOrPartitionException",
        "the topic does not exist",
        "Check its name in the sink URI; TiCDC makes the topic when the changefeed first sends",
    ),
    (
        r"(?:GroupAuthorization|TopicAuthorization|ClusterAuthorization|SaslAuthentication|"
        r"SslAuthentication)Exception",
        "Kafka does not let us in",
        "Check user, password and certificates in the sink URI, and what the user may read",
    ),
    (
        r"kafka\S*TimeoutException|TimeoutException[^\n]*(?:node assignment|listTopics|metadata|"
        r"describeTopics|listOffsets)|No resolvable bootstrap urls|DisconnectException",
        "Kafka does not answer",
        "Check that the brokers run and can be reached from here; started again, the query goes on "
        "where it was",
    ),
)


def progress(query: StreamingQuery, changes: DataFrame, *, now: float | None = None) -> Progress:
    """Where a query over `changes` stands; `now` is in seconds since 1970."""
    found = origin(changes)
    if found is None:
        raise ConfigError("changes", "it is not the DataFrame that `changes` or `decode` gave")
    last = query.lastProgress
    # Its members have offsets as the text of Python objects; its JSON has them as JSON.
    told = None if last is None else json.loads(last.json)
    return measure(found.counter, told, time.time() if now is None else now)


def explained(error: BaseException, source: str = "the feed") -> BaseException:
    """The error that made a query or a read fail, as one of ours where its cause is known."""
    if isinstance(error, TidegateError):
        return error
    text = "\n".join(_told(error))
    for pattern, reason, step in _CAUSES:
        if re.search(pattern, text):
            found = SourceError(source, reason, step)
            found.__cause__ = error
            return found
    return error


def _told(error: BaseException | None) -> list[str]:
    """What an error says, and those behind it: Spark's own come as text from the JVM."""
    said: list[str] = []
    while error is not None and len(said) < 20:
        said += [str(error), str(getattr(error, "_stackTrace", "") or "")]
        error = error.__cause__ or error.__context__
    return said
